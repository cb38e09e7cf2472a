"""Databases of other programs are read, in whatever state they are, and never written, locked or kept waiting."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from reconciler.errors import LimitExceeded, SourceUnreadable, UnknownFormat
from reconciler.importers import foreign_database
from reconciler.importers.detect import DATABASE_IMPORTERS, detect_database
from reconciler.importers.files import session_files
from reconciler.importers.foreign_database import SqliteRows, opened_sqlite
from reconciler.service.inspect_files import inspect_paths
from tests.support.foreign_stores import USER, OpenaiAgents, call_item, said


def numbers(rows: SqliteRows) -> list[int]:
    return rows.snapshot(lambda: [row[0] for row in rows.read("SELECT n FROM t ORDER BY n")])


def state(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Return the files of a folder: content, size, time of the last write."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    }


def database(path: Path, journal: str = "delete") -> sqlite3.Connection:
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    conn.execute(f"PRAGMA journal_mode={journal}")
    conn.execute("CREATE TABLE t (n INTEGER)")
    conn.execute("INSERT INTO t VALUES (1)")
    return conn


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_quiet_database_is_read_and_nothing_beside_it_changes(tmp_path: Path, journal: str) -> None:
    database(tmp_path / "x.db", journal).close()
    before = state(tmp_path)
    with opened_sqlite(str(tmp_path / "x.db")) as rows:
        assert [1] == numbers(rows)
        assert {"t": ("n",)} == rows.snapshot(rows.tables)
    assert before == state(tmp_path)


def test_a_database_with_a_live_log_is_read_with_what_is_in_the_log(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "wal")
    before = state(tmp_path)
    assert {"x.db", "x.db-shm", "x.db-wal"} == set(before)
    with opened_sqlite(str(tmp_path / "x.db")) as rows:
        assert [1] == numbers(rows)
        writer.execute("INSERT INTO t VALUES (2)")
        assert [1, 2] == numbers(rows)
        assert before["x.db"] == state(tmp_path)["x.db"]
    writer.close()


def test_a_reader_keeps_no_writer_waiting_and_sees_one_state(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db", "wal")
    writer.execute("PRAGMA busy_timeout=0")

    def work() -> tuple[int, int]:
        count = "SELECT count(*) FROM t"
        ((first,),) = rows.read(count)
        writer.execute("INSERT INTO t VALUES (2)")
        ((second,),) = rows.read(count)
        return first, second

    with opened_sqlite(str(tmp_path / "x.db")) as rows:
        assert (1, 1) == rows.snapshot(work)
    writer.close()


def test_a_log_that_a_crash_left_is_read(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    writer = database(tmp_path / "live" / "x.db", "wal")
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "live", crashed)
    writer.close()
    before = state(crashed)
    with opened_sqlite(str(crashed / "x.db")) as rows:
        assert [1] == numbers(rows)
    assert before == state(crashed)


def test_a_log_without_its_index_is_read_from_a_copy(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    writer = database(tmp_path / "live" / "x.db", "wal")
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "live", crashed)
    writer.close()
    (crashed / "x.db-shm").unlink()
    before = state(crashed)
    with opened_sqlite(str(crashed / "x.db")) as rows:
        assert [1] == numbers(rows)
    assert before == state(crashed)


def test_a_journal_that_a_crash_left_is_rolled_back_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    writer = database(tmp_path / "live" / "x.db")
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN")
    writer.execute(
        "WITH RECURSIVE c(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM c WHERE n < 20000) INSERT INTO t SELECT n FROM c"
    )
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "live", crashed)
    writer.rollback()
    writer.close()
    before = state(crashed)
    assert before["x.db-journal"][1] > 0
    with opened_sqlite(str(crashed / "x.db")) as rows:
        assert [1] == numbers(rows)
    assert before == state(crashed)


def test_a_database_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db")
    times: list[int] = []

    def work() -> list[int]:
        times.append(len(times))
        if len(times) == 1:
            writer.execute("INSERT INTO t VALUES (2)")
        return [row[0] for row in rows.read("SELECT n FROM t ORDER BY n")]

    with opened_sqlite(str(tmp_path / "x.db")) as rows:
        assert [1, 2] == rows.snapshot(work)
    assert 2 == len(times)
    writer.close()


def test_a_database_that_never_rests_is_given_up(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db")
    with opened_sqlite(str(tmp_path / "x.db")) as rows, pytest.raises(SourceUnreadable, match="it changed each of the"):
        rows.snapshot(lambda: writer.execute("INSERT INTO t VALUES (2)"))
    writer.close()


def test_a_writer_beside_many_readers_never_meets_a_lock(tmp_path: Path) -> None:
    writer = database(tmp_path / "x.db")
    writer.execute("PRAGMA busy_timeout=0")
    faults: list[Exception] = []

    def write() -> None:
        try:
            for number in range(300):
                writer.execute("INSERT INTO t VALUES (?)", (number,))
        except sqlite3.Error as error:
            faults.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        with opened_sqlite(str(tmp_path / "x.db")) as rows:
            try:
                numbers(rows)
            except SourceUnreadable:
                continue
    thread.join()
    writer.close()
    assert [] == faults


# --- what stands in it -----------------------------------------------------------------------------------------------


def test_views_and_virtual_tables_are_no_tables(tmp_path: Path) -> None:
    conn = database(tmp_path / "x.db")
    conn.execute("CREATE VIEW agent_sessions AS SELECT 1 AS session_id, 2 AS created_at, 3 AS updated_at")
    conn.execute("CREATE VIRTUAL TABLE f USING fts5(x)")
    conn.close()
    with opened_sqlite(str(tmp_path / "x.db")) as rows:
        tables = rows.snapshot(rows.tables)
    assert "agent_sessions" not in tables
    assert "f" not in tables


@pytest.mark.parametrize("damage", ["header", "middle", "short"])
def test_a_damaged_database_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.db"
    store = OpenaiAgents(path)
    store.add(*([USER, said("x" * 500)] * 200))
    store.close()
    data = bytearray(path.read_bytes())
    match damage:
        case "header":
            data[16:100] = b"\xff" * 84
        case "middle":
            data[4096:] = b"\x5a" * (len(data) - 4096)
        case "short":
            del data[5000:]
    path.write_bytes(data)
    with pytest.raises(SourceUnreadable) as caught:
        inspect_paths([str(path)], format="openai-agents")
    assert str(path) in caught.value.message


def test_a_value_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_database, "VALUE_BYTES_MAX", 10_000)
    conn = database(tmp_path / "x.db")
    conn.execute("INSERT INTO t VALUES (zeroblob(20000))")
    conn.close()
    with opened_sqlite(str(tmp_path / "x.db")) as rows, pytest.raises(LimitExceeded, match="more than 10000 bytes"):
        numbers(rows)


def test_a_reading_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_database, "READ_S_MAX", 0.05)
    database(tmp_path / "x.db").close()
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
    with opened_sqlite(str(tmp_path / "x.db")) as rows, pytest.raises(LimitExceeded, match="took longer"):
        rows.snapshot(lambda: list(rows.read(endless)))


def test_nothing_can_be_written_through_it(tmp_path: Path) -> None:
    database(tmp_path / "x.db").close()
    with opened_sqlite(str(tmp_path / "x.db")) as rows, pytest.raises(SourceUnreadable):
        rows.snapshot(lambda: list(rows.read("DELETE FROM t")))
    with opened_sqlite(str(tmp_path / "x.db")) as rows, pytest.raises(SourceUnreadable):
        rows.snapshot(lambda: list(rows.read("ATTACH DATABASE 'other.db' AS other")))


def test_text_that_is_no_utf8_is_kept(tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "x.db")
    store.add(USER)
    store.run(
        "INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', CAST(x'7b2261223a22ff227d' AS TEXT))"
    )
    store.close()
    (file,) = inspect_paths([store.name])["files"]
    assert ["invalid_utf8"] == [problem["code"] for problem in file["problems"]]
    assert ["agent_messages/2"] == [problem["place"] for problem in file["problems"]]


# --- which format, which files ---------------------------------------------------------------------------------------


def test_tables_of_nobody_are_named(tmp_path: Path) -> None:
    database(tmp_path / "x.db").close()
    with pytest.raises(UnknownFormat, match=r"its tables are not of a known session format \(tables: t\)"):
        inspect_paths([str(tmp_path / "x.db")])
    with pytest.raises(UnknownFormat, match='not of the format "flue"'):
        inspect_paths([str(tmp_path / "x.db")], format="flue")
    with pytest.raises(UnknownFormat, match="that format is of files"):
        inspect_paths([str(tmp_path / "x.db")], format="pi")


def test_a_file_that_is_no_database_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(SourceUnreadable, match="it is no SQLite database"):
        inspect_paths([str(tmp_path / "x.jsonl")], format="opencode")


def test_one_database_may_hold_sessions_of_two_programs(tmp_path: Path) -> None:
    tables = {
        "agent_sessions": ("session_id", "created_at", "updated_at"),
        "agent_messages": ("id", "session_id", "message_data", "created_at"),
        "checkpoints": (
            "thread_id",
            "checkpoint_ns",
            "checkpoint_id",
            "parent_checkpoint_id",
            "type",
            "checkpoint",
            "metadata",
        ),
        "writes": ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"),
    }
    found = detect_database(tables, "x")
    assert ["openai-agents", "langgraph"] == [detection.format for _, detection in found]
    assert all(detection.reason for _, detection in found)


def test_look_alike_tables_are_nobodys() -> None:
    tables = {"session": ("id", "title"), "message": ("id", "session_id", "data"), "part": ("id", "message_id", "data")}
    with pytest.raises(UnknownFormat):
        detect_database({**tables, "sessions": ("id",), "events": ("id", "timestamp"), "checkpoints": ("id",)}, "x")
    assert 6 == len(DATABASE_IMPORTERS)


def test_a_folder_means_its_databases_and_exports_too_and_no_link_out_of_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    database(inside / "a.db").close()
    database(outside / "b.db").close()
    (inside / "export.json").write_text('{\n  "info": {"id": "ses_1"}, "messages": []}')
    (inside / "package.json").write_text('{"name": "x"}')
    (inside / "text.sqlite").write_text("no database")
    (outside / "secret.jsonl").write_text("{}\n")
    for name in ("secret.jsonl", "b.db"):
        (inside / f"link-{name}").symlink_to(outside / name)
    refused: list[str] = []
    assert [str(inside / "a.db"), str(inside / "export.json")] == session_files([str(inside)], refused)
    assert [str(inside / "link-b.db"), str(inside / "link-secret.jsonl")] == refused
    # What was named is meant.
    assert [str(inside / "link-b.db")] == session_files([str(inside / "link-b.db")])


def test_a_linked_database_is_read_with_the_log_beside_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    writer = database(tmp_path / "real" / "x.db", "wal")
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "x.db")
    with opened_sqlite(str(tmp_path / "link.db")) as rows:
        assert [1] == numbers(rows)
    writer.close()


def test_one_session_that_cannot_be_read_keeps_no_other_one_back(tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "x.db").add(USER, session="a")
    store.add({"__enc__": 1, "payload": "x", "kid": "k", "v": 1}, session="b").add(USER, call_item("c"), session="c")
    files = inspect_paths([store.name])["files"]
    assert ["uncertain", None, "continuable"] == [
        file["submissions"][0]["state"] if file["submissions"] else None for file in files
    ]
    assert "source_unreadable" == files[1]["problems"][0]["code"]
