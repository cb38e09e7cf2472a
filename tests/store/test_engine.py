"""Engines and transactions on both databases: what is promised to everything above, and what a bad database says."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import (
    ConfigurationInvalid,
    DatabaseFull,
    DatabaseInvalid,
    DatabaseReadOnly,
    DatabaseUnavailable,
    ReconcilerError,
    SchemaMismatch,
    StoreConflict,
)
from reconciler.store import engine as store
from reconciler.store import migrate, rounds
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.engine import EngineSettings, begin, make_engine, read, require_schema, run_transaction
from reconciler.store.schema import audit
from tests.support.databases import PostgreSQLDatabases

MakeEngine = Callable[..., Engine]


def note(conn: Connection, name: str) -> None:
    conn.execute(
        sa.insert(audit).values(id=name, at=db_now(conn), operator="tester", verb="note", parameters="{}", reason=None)
    )


def notes(engine: Engine) -> list[str]:
    with read(engine) as conn:
        return list(conn.execute(sa.select(audit.c.id).order_by(audit.c.id)).scalars())


# --- naming a database -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "reconciler.sqlite3",
        "/var/lib/reconciler.sqlite3",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:x.sqlite3?mode=ro&uri=true",
        "sqlite:///x.sqlite3?mode=ro",
        "sqlite://x.sqlite3",
        "sqlite+aiosqlite:///x.sqlite3",
        "mysql://host/db",
        "postgresql+psycopg2://host/db",
        "postgresql+asyncpg://host/db",
        "postgresql://host:port/db",
        "postgresql://host/d\nb",
    ],
)
def test_a_url_of_no_database_we_can_use_is_refused_with_a_way_out(url: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        make_engine(url)
    assert caught.value.hint


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_means_the_same_driver(scheme: str) -> None:
    engine = make_engine(f"{scheme}://somebody@localhost/work")
    assert ("postgresql", "psycopg") == (engine.dialect.name, engine.dialect.driver)


def test_messages_never_hold_a_password() -> None:
    secret = "hunter2"
    urls = [
        f"postgresql://user:{secret}@localhost:1/db",
        f"postgresql://localhost:1/db?user=me&password={secret}",
        f"postgresql://user:{secret}@localhost:port/db",
    ]
    for url in urls:
        with pytest.raises(ReconcilerError) as caught:
            require_schema(make_engine(url, settings=EngineSettings(connect_timeout_s=1)))
        assert secret not in f"{caught.value.as_dict()}"


def test_a_relative_sqlite_path_is_kept_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///work.sqlite3"
    engine = make_engine(url, settings=EngineSettings(create=True))
    monkeypatch.chdir(tmp_path / "elsewhere")
    migrate.upgrade(engine)
    engine.dispose()
    assert (tmp_path / "work.sqlite3").exists()


@pytest.mark.parametrize("schema", ["", "1st", "pg_mine", 'a"b', "a b", "a" * 64, "a,public", "ä"])
def test_a_schema_name_that_is_no_plain_identifier_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="as the name of a schema"):
        EngineSettings(schema=schema)


def test_waits_without_a_bound_are_refused() -> None:
    with pytest.raises(ConfigurationInvalid, match="lock_timeout_s"):
        EngineSettings(lock_timeout_s=0)


# --- what a connection is set to -------------------------------------------------------------------------------------


def test_sqlite_is_durable_and_checks_references(sqlite_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(sqlite_url, busy_timeout_s=1.5)
    with begin(engine) as conn:
        settings = {
            name: conn.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "trusted_schema", "query_only")
        }
    expected = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 1500,
        "trusted_schema": 0,
        "query_only": 0,
    }
    assert expected == settings


def test_postgresql_is_durable_and_every_wait_is_bounded(postgresql_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(
        postgresql_url,
        application_name="test of settings",
        statement_timeout_s=7,
        lock_timeout_s=0.5,
        idle_in_transaction_timeout_s=9,
    )
    names = (
        "synchronous_commit",
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "search_path",
        "TimeZone",
        "transaction_isolation",
        "application_name",
    )
    with begin(engine) as conn:
        settings = {name: conn.exec_driver_sql(f"SHOW {name}").scalar() for name in names}
    expected = {
        "synchronous_commit": "on",
        "statement_timeout": "7s",
        "lock_timeout": "500ms",
        "idle_in_transaction_session_timeout": "9s",
        "search_path": '"reconciler"',
        "TimeZone": "UTC",
        "transaction_isolation": "read committed",
        "application_name": "test of settings",
    }
    assert expected == settings


def test_postgresql_options_in_the_url_go_before_ours(postgresql_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(f"{postgresql_url}?options=-c%20statement_timeout%3D1234&application_name=mine")
    with read(engine) as conn:
        assert "1234ms" == conn.exec_driver_sql("SHOW statement_timeout").scalar()
        assert "mine" == conn.exec_driver_sql("SHOW application_name").scalar()
        assert '"reconciler"' == conn.exec_driver_sql("SHOW search_path").scalar()


def test_postgresql_tables_stand_in_the_schema_that_was_asked_for(
    postgresql_databases: PostgreSQLDatabases, engine_factory: MakeEngine
) -> None:
    engine = engine_factory(postgresql_databases.empty(), schema="Work$2")
    migrate.upgrade(engine)
    require_schema(engine)
    with begin(engine) as conn:
        note(conn, "one")
        schemas = set(
            conn.exec_driver_sql("SELECT schemaname FROM pg_tables WHERE tablename !~ '^(pg|sql)_'").scalars()
        )
    assert {"Work$2"} == schemas


def test_a_new_sqlite_file_is_for_its_owner_alone_whatever_the_umask(
    tmp_path: Path, engine_factory: MakeEngine
) -> None:
    path = tmp_path / "new.sqlite3"
    before = os.umask(0)
    try:
        engine = engine_factory(f"sqlite:///{path}", create=True)
        migrate.upgrade(engine)
        with begin(engine) as conn:
            note(conn, "one")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"new.sqlite3": 0o600, "new.sqlite3-wal": 0o600, "new.sqlite3-shm": 0o600} == modes


def test_the_data_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        store.make_private_folder(folder)
        store.make_private_folder(folder)
    finally:
        os.umask(before)
    assert [0o700, 0o700] == [stat.S_IMODE(made.stat().st_mode) for made in (folder, folder.parent)]


def test_a_data_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationInvalid, match="data folder"):
            store.make_private_folder(folder)


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_is_committed_at_the_end_and_rolled_back_by_an_exception(engine: Engine) -> None:
    with begin(engine) as conn:
        note(conn, "kept")
    with pytest.raises(RuntimeError), begin(engine) as conn:
        note(conn, "lost")
        raise RuntimeError
    assert ["kept"] == notes(engine)


def test_reading_cannot_write_and_writing_goes_on_afterwards(engine: Engine) -> None:
    with pytest.raises(DatabaseReadOnly), read(engine) as conn:
        note(conn, "never")
    with begin(engine) as conn:
        note(conn, "after")
    assert ["after"] == notes(engine)


def test_a_reader_sees_one_state_while_others_write(engine: Engine, second_engine: Engine) -> None:
    count = sa.select(sa.func.count()).select_from(audit)
    with read(engine) as conn:
        before = conn.execute(count).scalar_one()
        with begin(second_engine) as other:
            note(other, "meanwhile")
        assert before == conn.execute(count).scalar_one()
    assert ["meanwhile"] == notes(engine)


def test_on_sqlite_the_write_lock_is_taken_before_the_first_read(sqlite_url: str, engine_factory: MakeEngine) -> None:
    first, second = engine_factory(sqlite_url), engine_factory(sqlite_url, busy_timeout_s=0.05)
    with begin(first), pytest.raises(DatabaseUnavailable, match="could not lock"), begin(second):
        pytest.fail("two write transactions at once")


def test_work_is_run_again_as_a_whole_while_another_holds_the_lock(sqlite_url: str, engine_factory: MakeEngine) -> None:
    holder, waiter = engine_factory(sqlite_url), engine_factory(sqlite_url, busy_timeout_s=0.02)
    blocking = holder.connect()
    blocking.begin()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            blocking.rollback()

    run_transaction(waiter, lambda conn: note(conn, "landed"), sleep=nap)
    blocking.close()
    assert 3 == len(naps)
    assert naps[0] < naps[2] <= 0.06
    assert ["landed"] == notes(holder)


def test_a_lock_that_never_ends_ends_the_tries(sqlite_url: str, engine_factory: MakeEngine) -> None:
    holder, waiter = engine_factory(sqlite_url), engine_factory(sqlite_url, busy_timeout_s=0.02)
    naps: list[float] = []
    with begin(holder), pytest.raises(DatabaseUnavailable) as caught:
        run_transaction(waiter, lambda conn: note(conn, "never"), attempts=3, sleep=naps.append)
    assert 2 == len(naps)
    assert caught.value.safe_to_retry


def test_a_row_lock_that_never_ends_ends_the_tries(postgresql_url: str, engine_factory: MakeEngine) -> None:
    holder, waiter = engine_factory(postgresql_url), engine_factory(postgresql_url, lock_timeout_s=0.05)
    with begin(holder) as conn:
        note(conn, "one")
    locked = sa.select(audit).with_for_update()
    tries: list[int] = []

    def work(conn: Connection) -> None:
        tries.append(1)
        conn.execute(locked)

    with begin(holder) as conn, pytest.raises(DatabaseUnavailable, match="could not lock"):
        conn.execute(locked)
        run_transaction(waiter, work, attempts=3, sleep=lambda seconds: None)
    assert 3 == len(tries)


def test_of_two_in_a_deadlock_one_goes_first_and_the_other_is_run_again(
    postgresql_url: str, engine_factory: MakeEngine
) -> None:
    engine = engine_factory(postgresql_url)
    with begin(engine) as conn:
        note(conn, "a")
        note(conn, "b")
    both_hold_one = threading.Barrier(2, timeout=10)
    tries = {"ab": 0, "ba": 0}

    def swap(order: str) -> None:
        def work(conn: Connection) -> None:
            tries[order] += 1
            for name in order:
                conn.execute(sa.update(audit).where(audit.c.id == name).values(operator=order))
                if name == order[0] and tries[order] == 1:
                    both_hold_one.wait()

        run_transaction(engine, work)

    threads = [threading.Thread(target=swap, args=(order,)) for order in tries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [1, 2] == sorted(tries.values())


def test_a_serialization_failure_that_stays_is_a_store_conflict(
    postgresql_url: str, engine_factory: MakeEngine
) -> None:
    engine = engine_factory(postgresql_url)
    with begin(engine) as conn:
        note(conn, "a")

    def work(conn: Connection) -> None:
        conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute(sa.select(audit)).all()
        with begin(engine) as other:
            other.execute(sa.update(audit).values(reason="changed"))
        conn.execute(sa.update(audit).values(reason="stale"))

    with pytest.raises(StoreConflict) as caught:
        run_transaction(engine, work, attempts=2, sleep=lambda seconds: None)
    assert caught.value.safe_to_retry


def _lose_connection(conn: Connection, engine: Engine) -> None:
    pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    with begin(engine) as other:
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")


def test_a_lost_connection_is_tried_again_only_for_idempotent_work(
    postgresql_url: str, engine_factory: MakeEngine
) -> None:
    engine, killer = engine_factory(postgresql_url), engine_factory(postgresql_url)
    tries: list[int] = []

    def work(conn: Connection) -> None:
        tries.append(1)
        if len(tries) == 1:
            _lose_connection(conn, killer)
        note(conn, f"try {len(tries)}")

    with pytest.raises(DatabaseUnavailable, match="connection was lost"):
        run_transaction(engine, work, sleep=lambda seconds: None)
    assert 1 == len(tries)
    tries.clear()
    run_transaction(engine, work, idempotent=True, sleep=lambda seconds: None)
    assert ["try 2"] == notes(engine)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("pings", [False, True])
def test_a_connection_lost_while_idle_costs_a_write_no_error(
    postgresql_url: str, engine_factory: MakeEngine, checked: bool, pings: bool
) -> None:
    if not (checked or pings):
        pytest.skip("found by neither, and every user of one looks at the schema first")
    engine, killer = engine_factory(postgresql_url, pool_pre_ping=pings), engine_factory(postgresql_url)
    if checked:
        require_schema(engine)
    with begin(engine) as conn:
        pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    with begin(killer) as conn:
        conn.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")
    with begin(engine) as conn:
        note(conn, "landed")
    assert ["landed"] == notes(engine)


def test_a_write_takes_a_round_trip_to_begin_and_leaves_the_connection_as_it_was(
    postgresql_url: str, engine_factory: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_factory(postgresql_url)
    require_schema(engine)
    sent: list[str] = []
    execute, exchange = psycopg.Cursor.execute, rounds.exchange

    def ping(*_: Any) -> bool:
        sent.append("ping")
        return True

    def noted(cursor: Any, query: Any, *arguments: Any, **settings: Any) -> Any:
        sent.append(str(query))
        return execute(cursor, query, *arguments, **settings)

    def together(driver: Any, prepared: Any, statements: Any) -> Any:
        sent.append("; ".join(text.decode() for text, _ in statements))
        return exchange(driver, prepared, statements)

    monkeypatch.setattr(type(engine.dialect), "do_ping", ping)
    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    monkeypatch.setattr(rounds, "exchange", together)
    with begin(engine) as conn:
        conn.exec_driver_sql("SELECT 1")
        driver = conn.connection.driver_connection
    # Of the kind that the connection was set back to after it was looked at.
    beginning = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT version_num FROM alembic_version"
    assert [beginning, "SELECT 1"] == sent
    with pytest.raises(ZeroDivisionError), begin(engine) as conn:
        note(conn, "never")
        raise ZeroDivisionError
    with read(engine) as conn:
        assert driver is conn.connection.driver_connection
        assert "repeatable read" == conn.exec_driver_sql("SHOW transaction_isolation").scalar()
    assert [] == notes(engine)


def test_a_transaction_left_open_is_ended_by_the_server(postgresql_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(postgresql_url, idle_in_transaction_timeout_s=0.1)
    with pytest.raises(DatabaseUnavailable), begin(engine) as conn:
        note(conn, "never")
        time.sleep(0.4)
    assert [] == notes(engine)


def test_what_the_work_raises_itself_goes_through_and_rolls_back(engine: Engine) -> None:
    def work(conn: Connection) -> None:
        note(conn, "never")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_transaction(engine, work)
    assert [] == notes(engine)


def test_many_threads_write_without_an_error(engine: Engine) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for round_ in range(5):
                run_transaction(engine, lambda conn: note(conn, f"{number}-{round_}"))  # noqa: B023
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [] == failures
    assert 30 == len(notes(engine))


def _open_new_file(path: str, failures: Any) -> None:
    engine = make_engine(f"sqlite:///{path}", settings=EngineSettings(create=True))
    try:
        migrate.upgrade(engine)
        require_schema(engine)
    except BaseException as error:
        failures.put(repr(error))


def test_several_processes_may_make_the_same_file_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    processes = [
        context.Process(target=_open_new_file, args=(str(tmp_path / "new.sqlite3"), failures)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [0, 0, 0] == [process.exitcode for process in processes]
    assert failures.empty(), failures.get()


# --- a bad database --------------------------------------------------------------------------------------------------


def set_version(engine: Engine, version: str) -> None:
    with begin(engine) as conn:
        conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{version}'")


def test_the_needed_schema_is_accepted_and_nothing_is_written(engine: Engine) -> None:
    require_schema(engine)
    require_schema(engine, for_writing=False)
    assert store.SchemaState("0001", "0001", empty=False) == store.schema_state(engine)


def test_an_empty_database_is_refused_with_the_command_that_makes_the_tables(
    empty_database_url: str, engine_factory: MakeEngine
) -> None:
    engine = engine_factory(empty_database_url)
    with pytest.raises(SchemaMismatch) as caught:
        require_schema(engine)
    assert {"found": None, "needed": store.SCHEMA_NEEDED} == caught.value.detail
    assert "reconciler db upgrade" in str(caught.value.hint)


def test_a_missing_sqlite_file_is_refused_and_not_made(tmp_path: Path, engine_factory: MakeEngine) -> None:
    engine = engine_factory(f"sqlite:///{tmp_path / 'typo.sqlite3'}")
    for use in (require_schema, notes):
        with pytest.raises(SchemaMismatch, match="no such file"):
            use(engine)
    assert [] == list(tmp_path.iterdir())


def _path(engine: Engine) -> Path:
    return Path(str(engine.url.database))


def _remove_log(engine: Engine) -> None:
    for end in ("-wal", "-shm"):
        Path(f"{_path(engine)}{end}").unlink()


def test_a_file_that_goes_away_below_a_program_is_an_outage_and_is_used_again_when_it_is_back(
    sqlite_url: str, engine_factory: MakeEngine, tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    require_schema(engine)
    run_transaction(engine, lambda conn: note(conn, "before"))
    engine.dispose()
    aside = _path(engine).rename(tmp_path / "aside")
    uses: list[Callable[[Engine], Any]] = [
        require_schema,
        notes,
        lambda one: run_transaction(one, lambda conn: note(conn, "lost")),
    ]
    for use in uses:
        with pytest.raises(DatabaseUnavailable, match="it is gone; it was there before") as caught:
            use(engine)
        assert "put it back" in str(caught.value.hint)
    assert not _path(engine).exists(), "nothing is made in its place"
    aside.rename(_path(engine))
    require_schema(engine)
    assert ["before"] == notes(engine)


def test_nothing_is_written_into_a_file_that_was_removed_or_replaced(
    sqlite_url: str, engine_factory: MakeEngine, tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    require_schema(engine)
    run_transaction(engine, lambda conn: note(conn, "old"))
    # The engine keeps its connections open: they lead to a file without a name from now on.
    with closing(sqlite3.connect(_path(engine))) as conn:
        conn.execute(f"VACUUM INTO '{tmp_path / 'backup'}'")
    _path(engine).unlink()
    with pytest.raises(DatabaseUnavailable, match="it is gone"):
        run_transaction(engine, lambda conn: note(conn, "lost"))
    (tmp_path / "backup").rename(_path(engine))
    # SQLite would write what the old file's log holds into the new one: not before it is gone.
    with pytest.raises(DatabaseUnavailable, match="the log of the one before is still there") as caught:
        run_transaction(engine, lambda conn: note(conn, "lost"))
    assert "-wal" in str(caught.value.hint)
    assert "-shm" in str(caught.value.hint)
    _remove_log(engine)
    run_transaction(engine, lambda conn: note(conn, "new"))
    with engine_factory(sqlite_url).connect() as other:
        found = list(other.execute(sa.select(audit.c.id).order_by(audit.c.id)).scalars())
    assert ["new", "old"] == found == notes(engine)


def test_another_file_in_its_place_is_asked_for_its_schema_before_it_is_written_to(
    sqlite_url: str, engine_factory: MakeEngine, tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    require_schema(engine)
    other = tmp_path / "other.sqlite3"
    with closing(sqlite3.connect(other)) as conn:
        conn.execute("CREATE TABLE theirs (x)")
    other.replace(_path(engine))
    _remove_log(engine)
    with pytest.raises(SchemaMismatch):
        run_transaction(engine, lambda conn: note(conn, "lost"))
    with pytest.raises(SchemaMismatch, match="another program's"):
        require_schema(engine)


def test_a_file_that_is_being_put_back_is_waited_for(sqlite_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(sqlite_url)
    require_schema(engine)
    whole = _path(engine).read_bytes()
    engine.dispose()
    _path(engine).unlink()
    _path(engine).touch()
    with pytest.raises(DatabaseUnavailable, match="it is empty, and was not before"):
        require_schema(engine)
    assert 0 == _path(engine).stat().st_size, "nothing is written into what somebody is about to fill"
    _path(engine).write_bytes(whole)
    require_schema(engine)


def test_a_schema_of_a_newer_program_is_refused_before_anything_is_written(
    database_factory: Callable[[], str], engine_factory: MakeEngine
) -> None:
    engine = engine_factory(database_factory())
    set_version(engine, "9999")
    with pytest.raises(SchemaMismatch, match="found schema 9999, which this program does not know; needed") as caught:
        require_schema(engine)
    assert "newer version" in str(caught.value.hint)
    assert [] == notes(engine)


def test_an_older_schema_is_refused_with_the_way_to_upgrade(
    database_factory: Callable[[], str], engine_factory: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_factory(database_factory())
    monkeypatch.setattr(store, "SCHEMA_REVISIONS", ("0000", "0001"))
    set_version(engine, "0000")
    with pytest.raises(SchemaMismatch, match="found schema 0000, needed 0001") as caught:
        require_schema(engine)
    assert "reconciler db upgrade" in str(caught.value.hint)


def test_another_programs_tables_are_refused(empty_database_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(empty_database_url, create=True)
    with begin(engine) as conn:
        if is_postgresql(conn):
            conn.exec_driver_sql("CREATE SCHEMA reconciler")
        conn.exec_driver_sql("CREATE TABLE theirs (id integer)")
    with pytest.raises(SchemaMismatch, match="another program's"):
        require_schema(engine)
    with pytest.raises(SchemaMismatch, match="another program's"):
        migrate.upgrade(engine)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 100, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    content: bytes, tmp_path: Path, engine_factory: MakeEngine
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    engine = engine_factory(f"sqlite:///{path}")
    for act in (require_schema, migrate.upgrade):
        with pytest.raises(DatabaseInvalid, match=r"notes\.txt"):
            act(engine)
    assert content == path.read_bytes()


def test_a_folder_is_no_database(tmp_path: Path, engine_factory: MakeEngine) -> None:
    with pytest.raises(ReconcilerError, match="could not reach"):
        require_schema(engine_factory(f"sqlite:///{tmp_path}"))


def test_a_locked_sqlite_file_is_unavailable(sqlite_url: str, engine_factory: MakeEngine) -> None:
    holder, other = engine_factory(sqlite_url), engine_factory(sqlite_url, busy_timeout_s=0.05)
    with begin(holder), pytest.raises(DatabaseUnavailable, match="could not lock"):
        require_schema(other)
    require_schema(other)


def test_a_read_only_sqlite_engine_reads_and_refuses_to_write(sqlite_url: str, engine_factory: MakeEngine) -> None:
    writer, reader = engine_factory(sqlite_url), engine_factory(sqlite_url, read_only=True)
    with begin(writer) as conn:
        note(conn, "one")
    assert ["one"] == notes(reader)
    assert ["one"] == notes(reader)
    require_schema(reader, for_writing=False)
    with pytest.raises(DatabaseReadOnly), begin(reader) as conn:
        note(conn, "never")


def test_a_read_only_postgresql_engine_reads_and_refuses_to_write(
    postgresql_url: str, engine_factory: MakeEngine
) -> None:
    reader = engine_factory(postgresql_url, read_only=True)
    assert [] == notes(reader)
    require_schema(reader, for_writing=False)
    with pytest.raises(DatabaseReadOnly):
        require_schema(reader)
    with pytest.raises(DatabaseReadOnly), begin(reader) as conn:
        note(conn, "never")


def _check_read_only_file(url: str, results: Any) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write to everything
    engine = make_engine(url)
    for for_writing in (False, True):
        try:
            require_schema(engine, for_writing=for_writing)
            results.put("fine")
        except ReconcilerError as error:
            results.put(error.code)


@pytest.mark.parametrize(
    ("folder_mode", "expected"),
    [(0o755, ["fine", "database_read_only"]), (0o555, ["database_read_only", "database_read_only"])],
    ids=["file", "file and folder"],
)
def test_a_read_only_file_is_refused_for_writing(
    folder_mode: int, expected: list[str], tmp_path: Path, sqlite_url: str
) -> None:
    # Reading needs a folder that may hold the write-ahead log's index. Root may write everywhere: the check runs as
    # nobody then, who must be able to walk here.
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    if os.geteuid() == 0:
        for owned in (path, tmp_path):
            os.chown(owned, 65534, 65534)
        for folder in tmp_path.parents:
            if folder != Path(folder.anchor):
                folder.chmod(folder.stat().st_mode | 0o011)
    path.chmod(0o444)
    tmp_path.chmod(folder_mode)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_check_read_only_file, args=(sqlite_url, results))
    process.start()
    answers = [results.get(timeout=30) for _ in range(2)]
    process.join(30)
    tmp_path.chmod(0o755)
    assert expected == answers


def test_a_full_sqlite_disk_is_told_and_nothing_is_written(sqlite_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(sqlite_url)
    with pytest.raises(DatabaseFull), begin(engine) as conn:
        pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        for number in range(10_000):
            note(conn, f"filler {number} {'x' * 1000}")
    engine.dispose()
    assert [] == notes(engine)


def test_a_server_that_is_not_there_is_unavailable(engine_factory: MakeEngine) -> None:
    engine = engine_factory("postgresql://nobody@127.0.0.1:1/nothing", connect_timeout_s=1)
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1") as caught:
        require_schema(engine)
    assert caught.value.safe_to_retry


def test_a_wrong_password_or_database_says_what_to_check(
    postgresql_url: str, postgresql_databases: PostgreSQLDatabases, engine_factory: MakeEngine
) -> None:
    address = postgresql_databases.address
    for url in (address.url("no_such_database"), address.url("postgres", password="wrong")):
        with pytest.raises(DatabaseUnavailable) as caught:
            require_schema(engine_factory(url))
        assert "check host, database name, user and password" == caught.value.hint


def test_a_pool_without_a_free_connection_is_unavailable(engine_factory: MakeEngine, database_url: str) -> None:
    engine = engine_factory(database_url, pool_size=1, pool_overflow=0, pool_timeout_s=0.05)
    with read(engine), pytest.raises(DatabaseUnavailable, match="every connection of the pool"), read(engine):
        pytest.fail("two connections from a pool of one")


def test_waiting_for_a_database_ends_when_it_answers_or_the_time_is_over(
    engine: Engine, engine_factory: MakeEngine
) -> None:
    store.wait_until_reachable(engine, timeout_s=1)
    naps: list[float] = []
    with pytest.raises(DatabaseUnavailable):
        store.wait_until_reachable(
            engine_factory("postgresql://nobody@127.0.0.1:1/nothing"), timeout_s=0.35, sleep=naps.append
        )
    assert naps


def test_sqlite_of_this_interpreter_has_what_the_schema_needs() -> None:
    # STRICT tables came with 3.37.
    assert sqlite3.sqlite_version_info >= (3, 37)
