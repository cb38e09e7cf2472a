"""Faults of the machine below a runner at work, one by one.

What is refused is refused in typed words, what was answered is durable, and once the fault is gone the same calls again
come to one outcome each. The independent checker judges. What a kill leaves behind (torn writes, a log that nobody has
merged) is looked at by the crash injector at every statement; the outages of minutes are the cells of `make chaos`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits, NewEntry
from reconciler.errors import DatabaseFull, DatabaseReadOnly, DatabaseUnavailable, ReconcilerError
from reconciler.service.reconcile import Judge, reconcile_once
from reconciler.service.runner import Runner
from reconciler.store import migrate
from reconciler.store.dialect import Clock, system_clock
from reconciler.store.engine import EngineSettings, make_engine, read
from tests.support.checker import check
from tests.support.daemons import DaemonProcess
from tests.support.postgresql import Server

MakeEngine = Callable[..., Engine]
LIMITS = Limits(backoff_base_s=1e-6, backoff_max_s=1e-6, capability_backoff_s=1e-6, backoff_jitter=0.0)


def runner_on(url: str, **settings: Any) -> Runner:
    return Runner(url, **{"notify": False, "beat_by_itself": False, "reconnect_s": 0.0, "limits": LIMITS, **settings})


def turn(runner: Runner, session_id: str, submission_id: str) -> None:
    """Submit and finish one submission."""
    runner.submit(session_id, submission_id, {"text": "x" * 2000})
    for attempt in runner.claim(10):
        work(attempt)


def work(attempt: Any) -> None:
    attempt.begin()
    call = f"{attempt.submission_id}:{attempt.number}"
    ask = NewEntry("assistant", {"pad": "y" * 2000}, stop_reason="tool_use", tool_call_ids=(call,), starts_logged=True)
    attempt.append([ask])
    attempt.start(call)
    attempt.append([NewEntry("tool_result", {"ok": True}, tool_call_id=call)])
    attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
    attempt.settle("completed")


def finish(url: str, names: set[tuple[str, str]], *, clock: Clock = system_clock, unlike: tuple[str, ...] = ()) -> None:
    """The fault is gone: say everything again, work it off, and judge; what ends with *unlike* is no violation."""
    engine = make_engine(url, settings=EngineSettings(clock=clock))
    try:
        with runner_on(url, reconnect_s=20.0, clock=clock) as runner:
            for session_id, submission_id in sorted(names):
                runner.submit(session_id, submission_id, {"text": "x" * 2000})
            rows: list[Any] = []
            for _ in range(50):
                for attempt in runner.claim(20):
                    work(attempt)
                expire(engine)
                judge = Judge(connected_for_s=lambda: 1e9)
                reconcile_once(engine, limits=LIMITS, judge=judge, decided_by="daemon", jitter=lambda: 0.0)
                with read(engine) as conn:
                    rows = list(conn.execute(sa.text("SELECT session_id, id, status, outcome FROM submissions")))
                if all(row[2] == "settled" for row in rows):
                    break
        assert names == {(row[0], row[1]) for row in rows}
        assert {("settled", "completed")} == {(row[2], row[3]) for row in rows}
        assert [] == [str(one) for one in check(url, quiescent=True) if not str(one).endswith(unlike or ("\0",))]
    finally:
        engine.dispose()


def expire(engine: Engine) -> None:
    """End every lease: who held it is gone."""
    with engine.begin() as conn:
        conn.execute(sa.text("UPDATE attempts SET lease_expires_at = claimed_at WHERE ended_at IS NULL"))
        conn.execute(sa.text("UPDATE submissions SET reconcile_at = admitted_at WHERE status = 'running'"))


def until_refused(act: Callable[[int], None], most: int = 2000) -> tuple[int, ReconcilerError]:
    """Repeat *act* until it is refused; return how often it got through, and how it was refused."""
    for number in range(most):
        try:
            act(number)
        except ReconcilerError as error:
            return number, error
    raise AssertionError(f"never refused, {most} times")


# --- room ------------------------------------------------------------------------------------------------------------


def test_a_full_database_refuses_in_words_and_goes_on_when_there_is_room(sqlite_url: str) -> None:
    with runner_on(sqlite_url) as runner:
        turn(runner, "s", "a")
        limit = "PRAGMA max_page_count = {}"
        with runner._engine.connect() as conn:
            pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()

        def bound(connection: Any, *_: object) -> None:
            connection.execute(limit.format(pages + 8))

        sa.event.listen(runner._engine.pool, "checkout", bound)
        done, refused = until_refused(lambda number: turn(runner, "s", f"b{number}"))
        assert isinstance(refused, DatabaseFull)
        assert "disk is full" in refused.message
        # Reading goes on.
        assert [] == runner.unacknowledged(10)
        sa.event.remove(runner._engine.pool, "checkout", bound)
        with runner._engine.connect() as conn:
            conn.exec_driver_sql(limit.format(1_000_000))
    finish(sqlite_url, {("s", "a"), *(("s", f"b{number}") for number in range(done + 1))})


_UNDER_A_LIMIT = """
import json, resource, signal, sys
from tests.chaos.test_faults import runner_on, turn, until_refused
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
with runner_on(sys.argv[1]) as runner:
    done, refused = until_refused(lambda number: turn(runner, "s", f"b{number}"))
print(json.dumps([done, refused.code, refused.message]))
"""


def test_a_limit_on_the_size_of_files_refuses_in_words_and_loses_nothing(sqlite_url: str) -> None:
    size = Path(sqlite_url.removeprefix("sqlite:///")).stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_A_LIMIT, sqlite_url, str(size + 200_000)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    count, code, message = json.loads(done.stdout)
    assert count > 0
    assert code in ("database_full", "database_unavailable", "store_fault"), message
    finish(sqlite_url, {("s", f"b{number}") for number in range(count + 1)})


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Give a small file system of its own, where one may be mounted."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True, capture_output=True)


def test_a_file_system_that_turned_read_only_is_said_and_waited_out(sqlite_url: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        file = disk / "reconciler.sqlite3"
        shutil.copyfile(sqlite_url.removeprefix("sqlite:///"), file)
        url = f"sqlite:///{file}"
        with runner_on(url) as runner:
            turn(runner, "s", "a")
        # Nobody has it open: a kernel remounts nothing that is written to.
        remount(disk, "ro")
        # Where SQLite can't make the index of its log, it says no more than that it can't open the file.
        with pytest.raises((DatabaseReadOnly, DatabaseUnavailable), match=r"cannot write|unable to open"):
            runner_on(url)
        with DaemonProcess(url, settings={"reconnect_max_s": 0.3}) as daemon:
            daemon.wait_for("database.lost", timeout_s=60)
            remount(disk, "rw")
            daemon.wait_for("daemon.ready", timeout_s=60)
            assert 0 == daemon.stop(), daemon.said()
        finish(url, {("s", "a"), ("s", "b")})


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 4096, 50_000])
def test_a_file_that_is_cut_off_below_a_runner_is_refused_in_words_until_it_is_restored(
    left: int, sqlite_url: str, tmp_path: Path
) -> None:
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    with runner_on(sqlite_url) as runner:
        turn(runner, "s", "a")
        runner._engine.dispose()
        runner._beat_engine.dispose()
        backup = tmp_path / "backup"
        shutil.copyfile(file, backup)
        with file.open("r+b") as stream:
            stream.truncate(left)
        for act in (
            lambda: runner.submit("s", "b", {"text": "x" * 2000}),
            lambda: runner.claim(1),
            lambda: runner.request_abort("s", "a"),
        ):
            with pytest.raises(ReconcilerError):
                act()
        runner._engine.dispose()
        for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
            name.unlink(missing_ok=True)
        shutil.copyfile(backup, file)
    finish(sqlite_url, {("s", "a"), ("s", "b")})


def test_a_log_left_behind_by_a_kill_is_part_of_the_database(sqlite_url: str, tmp_path: Path) -> None:
    file = sqlite_url.removeprefix("sqlite:///")
    script = (
        "import sys, time; from tests.chaos.test_faults import runner_on, turn\n"
        "runner = runner_on(sys.argv[1])\n"
        "for number in range(20):\n"
        "    turn(runner, 's', f'b{number}'); print(number, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, sqlite_url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answered = [next(process.stdout) for _ in range(20)]
        process.kill()
    assert 20 == len(answered)
    assert Path(f"{file}-wal").stat().st_size > 0
    # Without its log the file knows of nothing since: a backup takes both, or goes through the database.
    with contextlib.closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as conn:
        assert (20,) != conn.execute("SELECT count(*) FROM submissions").fetchone()
    finish(sqlite_url, {("s", f"b{number}") for number in range(20)})


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_poisoned_pool_is_got_over(database_url: str) -> None:
    with runner_on(database_url, reconnect_s=20.0) as runner:
        names = set()
        for number in range(6):
            turn(runner, "s", f"a{number}")
            names.add(("s", f"a{number}"))
            # What is in the pool is dead, or in the middle of somebody's failed transaction.
            raw = runner._engine.raw_connection()
            driver: Any = raw.driver_connection
            if isinstance(driver, sqlite3.Connection):
                if number % 2:
                    driver.execute("BEGIN")
                else:
                    driver.execute("PRAGMA query_only = OFF")
                    driver.interrupt()
            elif number % 2:
                with contextlib.suppress(psycopg.Error):
                    driver.execute("SELECT 1 / 0")
            else:
                driver.pgconn.finish()
            raw.close()
    finish(database_url, names)


def test_statements_that_take_too_long_are_refused_in_words_and_land_whole_or_not(postgresql_url: str) -> None:
    url = f"{postgresql_url}?options=-c%20statement_timeout%3D150"
    with runner_on(url) as runner, psycopg.connect(postgresql_url) as other:
        turn(runner, "s", "a")
        other.execute("SELECT 1 FROM reconciler.sessions WHERE id = 's' FOR UPDATE")
        for act in (lambda: runner.submit("s", "b", {"text": "x" * 2000}), lambda: turn(runner, "s", "c")):
            with pytest.raises(ReconcilerError) as caught:
                act()
            assert "database_unavailable" == caught.value.code
        other.rollback()
    finish(postgresql_url, {("s", "a"), ("s", "b"), ("s", "c")})


def test_serialization_failures_are_run_again(postgresql_url: str) -> None:
    # A stricter level than ours, by the address: every two that meet fail, and one of them is run again.
    url = f"{postgresql_url}?options=-c%20default_transaction_isolation%3Dserializable"
    names = {(f"s{number % 3}", f"a{number}") for number in range(24)}
    refused: list[ReconcilerError] = []

    def many(part: int) -> None:
        with runner_on(url, reconnect_s=20.0) as runner:
            for session_id, submission_id in sorted(names)[part::4]:
                try:
                    turn(runner, session_id, submission_id)
                except ReconcilerError as error:
                    refused.append(error)

    threads = [threading.Thread(target=many, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    # Tries have an end; what is refused then is refused as a conflict of the store that may be tried again, or as lost.
    assert {error.code for error in refused} <= {"store_conflict", "attempt_lost", "database_unavailable"}
    finish(postgresql_url, names)


# --- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [1, -1])
def test_a_host_clock_that_is_stepped_by_an_hour_changes_no_outcome(hours: int, sqlite_url: str) -> None:
    # SQLite has no clock but the host's: leases end early or late, outcomes stay what the record says.
    offset = timedelta(0)

    def clock() -> datetime:
        return datetime.now(UTC) + offset

    with runner_on(sqlite_url, clock=clock) as runner:
        turn(runner, "s", "a")
        runner.submit("s", "b", {"text": "x" * 2000})
        (attempt,) = runner.claim(1)
        attempt.begin()
        offset = timedelta(hours=hours)
        engine = make_engine(sqlite_url, settings=EngineSettings(clock=clock))
        judge = Judge(connected_for_s=lambda: 1e9)
        reconcile_once(engine, limits=LIMITS, judge=judge, decided_by="daemon", jitter=lambda: 0.0)
        with contextlib.suppress(ReconcilerError):
            attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
            attempt.settle("completed")
        engine.dispose()
    # Times on record go back with the clock, so that what came later seems to have come before.
    backwards = ("was claimed after the settlement", "had ended") if hours < 0 else ()
    finish(sqlite_url, {("s", "a"), ("s", "b")}, clock=clock, unlike=backwards)


def libfaketime() -> Path:
    """Return the library that tells a program another time: named, the system's, or an installed package's."""
    named = os.environ.get("RECONCILER_TEST_LIBFAKETIME")
    spec = find_spec("libfaketime")
    places = [Path(named)] if named else sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    for folder in (spec.submodule_search_locations or []) if spec else []:
        places += sorted(Path(folder).rglob("libfaketime*.so.1"))
    for place in places:
        if place.is_file():
            return place
    pytest.skip("no libfaketime here (RECONCILER_TEST_LIBFAKETIME names one): the server's clock is not stepped")


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, -1])
def test_a_server_clock_that_is_stepped_by_an_hour_changes_no_outcome(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the server's user can read it: the tests' own folders are for this user alone.
    folder = Path(tempfile.mkdtemp(prefix="reconciler-clock-"))
    folder.chmod(0o755)
    told = folder / "clock"
    told.write_text("+0s")
    told.chmod(0o644)
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(libfaketime()))
        environment.setenv("FAKETIME_TIMESTAMP_FILE", str(told))
        environment.setenv("FAKETIME_NO_CACHE", "1")
        # What waits and times out counts by the clock that nobody steps.
        environment.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        server = Server()
    with server:
        server.address.execute("CREATE DATABASE clock")
        url = server.address.url("clock")
        migrate.upgrade(url)
        with runner_on(url, reconnect_s=20.0, lease_s=120.0) as runner:
            turn(runner, "s", "a")
            for name in ("b", "c"):
                runner.submit(name, "a", {"text": "x" * 2000})
            attempts = runner.claim(2)
            for attempt in attempts:
                attempt.begin()
            before = server.address.execute("SELECT clock_timestamp()")[0][0]
            told.write_text(f"{3600 * hours:+d}s")
            stepped = server.address.execute("SELECT clock_timestamp()")[0][0] - before
            assert abs(stepped.total_seconds() - 3600 * hours) < 600
            engine = make_engine(url)
            judge = Judge(connected_for_s=lambda: 1e9)
            reconcile_once(engine, limits=LIMITS, judge=judge, decided_by="daemon", jitter=lambda: 0.0)
            engine.dispose()
            for attempt in attempts:
                # Forward, its lease is over, and a pass may have given the work to the next attempt.
                with contextlib.suppress(ReconcilerError):
                    attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
                    attempt.settle("completed")
        backwards = ("was claimed after the settlement", "had ended") if hours < 0 else ()
        finish(url, {("s", "a"), ("b", "a"), ("c", "a")}, unlike=backwards)
    shutil.rmtree(folder)


# --- many ------------------------------------------------------------------------------------------------------------

# Forked, once all is imported and nothing is connected: what counts is that they meet, not that each begins.
_MANY = """
import os, sys, time
from tests.chaos.test_faults import runner_on, work
url, number = sys.argv[1], int(sys.argv[2])
waiting, go = os.pipe()
ready, said = os.pipe()
children = []
for one in range(number):
    child = os.fork()
    if child:
        children.append(child)
        continue
    code = 1
    try:
        os.close(go)
        with runner_on(url, owner=f"runner {one}", reconnect_s=120.0, lease_s=600.0) as runner:
            os.write(said, b".")
            os.read(waiting, 1)
            quiet = time.monotonic()
            while time.monotonic() - quiet < 3:
                for attempt in runner.claim(1):
                    work(attempt)
                    os.write(1, f"{attempt.session_id}/{attempt.submission_id}\\n".encode())
                    quiet = time.monotonic()
        code = 0
    except BaseException:
        os.write(said, b"!")
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
os.close(said)
for _ in range(number):
    assert b"." == os.read(ready, 1), "one of them ended before it was ready"
os.close(go)
for child in children:
    assert (child, 0) == os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_of_thirty_two_processes_at_once_each_submission_is_worked_by_one(database_url: str) -> None:
    names = {(f"s{number % 40}", f"a{number}") for number in range(96)}
    with runner_on(database_url, reconnect_s=20.0) as runner:
        for session_id, submission_id in sorted(names):
            runner.submit(session_id, submission_id, {"text": "x" * 2000})
    done = subprocess.run(
        [sys.executable, "-c", _MANY, database_url, "32"], capture_output=True, text=True, timeout=400, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    worked = done.stdout.split()
    assert sorted(f"{session_id}/{submission_id}" for session_id, submission_id in names) == sorted(worked)
    finish(database_url, names)
