"""Files read ahead in other processes: the same import in everything, also where one dies or can't be had."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.importers.files import opened
from reconciler.service import ingest, read_ahead
from reconciler.service.file_reading import ReadRequest, read_requested
from reconciler.service.ingest import IngestOptions, import_paths
from reconciler.service.read_ahead import BYTES_MIN, JOBS_MAX, ReadAhead, jobs_for
from reconciler.service.spool import Spool
from tests.service.test_ingest import dump, old
from tests.support.daemons import wait_for
from tests.support.session_files import Claude, Pi, as_bytes, write

# Not escaped, as other programs write it.
ODD = '{"type": "custom", "id": "odd", "parentId": "u", "data": "é — 😀"}\n'.encode()
EXAMPLES = Path(__file__).parents[2] / "examples" / "sessions"


@pytest.fixture
def two(database_factory: Callable[[], str], engine_factory: Callable[..., Engine]) -> tuple[Engine, Engine]:
    """Give two databases of a kind."""
    return engine_factory(database_factory()), engine_factory(database_factory())


@pytest.fixture(autouse=True)
def _small_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "FILE_BYTES_MIN", 1)


@pytest.fixture(autouse=True)
def _left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "is_first", lambda *_: False)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Give what was asked of those that read ahead, and whether they had it."""
    asked: list[tuple[str, bool]] = []
    real = ReadAhead.taken

    def noting(self: ReadAhead, name: str, request: Any) -> Any:
        found = real(self, name, request)
        asked.append((Path(name).name, found is not None))
        return found

    monkeypatch.setattr(ReadAhead, "taken", noting)
    return asked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder of sessions of two programs, some of them broken."""
    found = tmp_path / "sessions"
    found.mkdir()
    for path in EXAMPLES.iterdir():
        old(write(found / path.name, [path.read_bytes()]))
    for name, lines in (
        ("escapes", Pi(session_id="e").user("u", "\x7f \ud800 é — 😀").raw(ODD).lines),
        ("empty", []),
        ("unknown", [{"what": "is this"}]),
        (
            "broken",
            [*Claude(session_id="b").add("u", "user", message={"role": "user", "content": "hi"}).lines, b"{]\n"],
        ),
    ):
        old(write(found / f"{name}.jsonl", lines))
    (found / "\udcff.jsonl").write_bytes(as_bytes(Pi(session_id="odd").user("u").lines))
    return found


@contextmanager
def closing_worker(folder: Path) -> Iterator[read_ahead._Worker]:
    worker = read_ahead._Worker(folder)
    try:
        yield worker
    finally:
        worker.end()


def stored(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return all rows, without what a clock wrote."""
    found = dump(engine)
    for source in found.get("sources", ()):
        source["owned_at"] = source["owned_at"] is not None
    return found


def run(engine: Engine, folder: Path, jobs: int, **options: Any) -> dict[str, Any]:
    return import_paths(engine, [str(folder)], IngestOptions(jobs=jobs, **options))


@pytest.mark.parametrize("options", [{}, {"all_prompts": True}, {"own": True, "force": True}, {"dry_run": True}])
def test_it_is_the_same_import(
    two: tuple[Engine, Engine], folder: Path, taken: list[tuple[str, bool]], options: dict[str, Any]
) -> None:
    one, other = two
    for _ in range(2):
        # The second time nothing is new.
        assert run(one, folder, 0, **options) == run(other, folder, 2, **options)
    assert stored(one) == stored(other)
    had = {name for name, is_there in taken if is_there}
    assert {path.name for path in folder.iterdir()} - had == {"empty.jsonl", "unknown.jsonl", "\udcff.jsonl"}


def test_files_that_grew_are_read_from_where_they_were(
    two: tuple[Engine, Engine], folder: Path, taken: list[tuple[str, bool]]
) -> None:
    one, other = two
    session = Pi(session_id="grows").user("u1")
    for lines in (list(session.lines), session.assistant("a1").user("u2").lines):
        write(folder / "grows.jsonl", lines)
        assert run(one, folder, 0) == run(other, folder, 1)
        assert dump(one) == dump(other)
    # By nobody the first time, and by another process the second, before it grew and after.
    assert [("grows.jsonl", False), ("grows.jsonl", True)] * 2 == [item for item in taken if item[0] == "grows.jsonl"]


def test_a_process_that_dies_is_missed_by_nobody(
    two: tuple[Engine, Engine], folder: Path, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[str, bool]]
) -> None:
    one, other = two
    real = read_ahead._Worker.wait_for

    def wait_for(self: Any, number: int) -> bool:
        if number == 4:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        return real(self, number)

    monkeypatch.setattr(read_ahead._Worker, "wait_for", wait_for)
    assert run(one, folder, 0) == run(other, folder, 1)
    assert dump(one) == dump(other)
    assert 3 <= sum(had for _, had in taken) < len(list(folder.iterdir())) - 2


def test_a_program_with_many_open_files_waits_for_them_too(tmp_path: Path, folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this process may have {hard} open files, not 1200")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.dup(0))
        worker = stack.enter_context(closing_worker(tmp_path))
        request = ReadRequest("pi", "said so", None, None, is_owned=False, all_prompts=True, state="")
        assert worker.ask(1, str(folder / "pi-answered.jsonl"), request)
        assert worker.wait_for(1)


def test_where_no_process_can_be_had_all_is_read_here(
    two: tuple[Engine, Engine], folder: Path, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[str, bool]]
) -> None:
    one, other = two

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert run(one, folder, 0) == run(other, folder, 2)
    assert dump(one) == dump(other)
    assert not any(had for _, had in taken)


def test_what_another_process_imported_meanwhile_is_read_anew(
    two: tuple[Engine, Engine], folder: Path, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[str, bool]]
) -> None:
    one, other = two
    real, first = ReadAhead.taken, [True]

    def taken_later(self: ReadAhead, name: str, request: Any) -> Any:
        if first and first.pop():
            # Before the first is taken, and after the next ones were asked for.
            self._ask()
            run(other, folder, 0)
        return real(self, name, request)

    monkeypatch.setattr(ReadAhead, "taken", taken_later)
    run(one, folder, 0)
    run(other, folder, 1)
    assert dump(one) == dump(other)
    assert not all(had for _, had in taken)


def test_nothing_is_left_behind(two: tuple[Engine, Engine], folder: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = (
        "import sys; from reconciler.service import ingest; from reconciler.store.engine import make_engine;"
        "ingest.FILE_BYTES_MIN = 1;"
        "ingest.import_paths(make_engine(sys.argv[1]), [sys.argv[2]], ingest.IngestOptions(jobs=2));"
        "import subprocess; print(subprocess.run(['ps', '--ppid', str(__import__('os').getpid()), '-o', 'args='],"
        " capture_output=True, text=True).stdout)"
    )
    url = two[0].url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-c", script, url, str(folder)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "reading_worker" not in done.stdout
    assert [] == list(temporary.iterdir())


def test_a_process_ends_with_who_asked_and_takes_the_folder_along(tmp_path: Path, folder: Path) -> None:
    # Who asked is killed: nobody else removes what was kept of the payloads.
    private = tmp_path / "private"
    private.mkdir()
    script = (
        "import sys, time; from pathlib import Path; from reconciler.service.read_ahead import _Worker;"
        "from reconciler.service.file_reading import ReadRequest;"
        "worker = _Worker(Path(sys.argv[1]));"
        "worker.ask(1, sys.argv[2], ReadRequest('pi', '', None, None, False, True, ''));"
        "print(worker.wait_for(1), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(private), str(folder / "pi-answered.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        assert b"True\n" == asking.stdout.readline()
        assert {"1.read", "1.spool", "1.taken"} == {path.name for path in private.iterdir()}
        asking.kill()
    wait_for("the folder is gone", lambda: not private.exists())


def test_a_file_that_is_written_to_after_it_was_read_is_read_again(
    two: tuple[Engine, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    found = tmp_path / "two"
    found.mkdir()
    write(found / "a.jsonl", Pi(session_id="a").user("u1").lines)
    session = Pi(session_id="b").user("u1")
    late = write(found / "b.jsonl", session.lines)
    real, began = ReadAhead.taken, ["not yet"]

    def taken(self: ReadAhead, name: str, request: Any) -> Any:
        if began:
            began.clear()
            self._ask()
            asked = self._asked[str(late)]
            assert asked.worker.wait_for(asked.number)
            asked.worker._done[asked.number] = True
            write(late, session.assistant("a1").lines)
        return real(self, name, request)

    monkeypatch.setattr(ReadAhead, "taken", taken)
    ahead = run(other, found, 1)
    assert run(one, found, 0) == ahead
    assert dump(one) == dump(other)


def test_a_package_in_the_folder_at_hand_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("open('was-run', 'w').close()")
    monkeypatch.chdir(tmp_path)
    worker = read_ahead._Worker(tmp_path)
    worker._requests.close()
    worker._process.wait(30)
    worker._told.close()
    assert not (tmp_path / "was-run").exists()


def test_what_nobody_has_begun_is_read_by_who_asks(
    two: tuple[Engine, Engine], folder: Path, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[str, bool]]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(ingest, "FILE_BYTES_MIN", 1)
    one, other = two
    assert run(one, folder, 0) == run(other, folder, 1)
    assert dump(one) == dump(other)


def test_a_file_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [True, False, True] == [read_ahead.is_first(tmp_path, number) for number in (1, 1, 2)]


def test_processes_are_begun_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert 0 == jobs_for([BYTES_MIN * 2], None)
    assert 0 == jobs_for([BYTES_MIN // 2 - 1] * 2, None)
    assert 2 == jobs_for([BYTES_MIN // 2] * 2, None)
    assert JOBS_MAX == jobs_for([BYTES_MIN] * 9, None)
    assert [0, 1, 2, 9] == [jobs_for([1] * 9, jobs) for jobs in (0, 1, 2, 100)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert 0 == jobs_for([BYTES_MIN] * 9, None)


def test_what_goes_between_processes_says_the_same_again(tmp_path: Path, folder: Path) -> None:
    number = 0
    for path in sorted(folder.iterdir()):
        if path.name in ("empty.jsonl", "unknown.jsonl"):
            continue
        number += 1
        with opened(str(path)) as file:
            format_name = "pi" if b'"type": "session"' in path.read_bytes() or "pi-" in path.name else "claude-code"
            request = ReadRequest(format_name, "said so", None, None, is_owned=False, all_prompts=True, state="")
            with Spool(read_ahead.spool_path(tmp_path, number)) as spool:
                read = read_requested(file, request, spool)
                read_ahead.leave(tmp_path, number, read, spool)
                again, kept = read_ahead._read_back(tmp_path, number)
                with kept:
                    assert read == again
                    lines = [item.lines for session in read.result.sessions for item in session.entries]
                    assert [spool.text(line) for line in lines] == [kept.text(line) for line in lines]
                    assert json.loads(kept.text(lines[0]))
