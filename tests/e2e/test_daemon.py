"""The daemon as a process: readiness, outages, signals, kills, and work that must not be done twice."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.service.wakeup import Notifier
from reconciler.store import migrate
from reconciler.store import slots as ledger
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, read
from reconciler.store.schema import attempts, instances, passes, schedule_slots, submissions
from tests.support.checker import check
from tests.support.daemons import DaemonProcess, NotifySocket, clean_environment, wait_for
from tests.support.restartable import RestartableServer
from tests.support.scenes import Scene, said, turn

pytestmark = pytest.mark.slow

# Leases and beats short enough that a test sees their end.
QUICK = {"lease_s": 1.0, "beat_s": 0.2, "backoff_base_s": 0.1}

RUNNER = """
import sys, time
from reconciler import Runner
runner = Runner(sys.argv[1], lease_s=float(sys.argv[2]), beat_s=float(sys.argv[2]) / 3)
attempts = runner.claim(int(sys.argv[3]), wait_s=20)
for attempt in attempts:
    attempt.begin()
print(len(attempts), flush=True)
time.sleep(600)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., DaemonProcess]]:
    """Give a starter of daemons that are killed after the test."""
    with ExitStack() as stack:

        def make(url: str, *arguments: str, **more: Any) -> DaemonProcess:
            return stack.enter_context(DaemonProcess(url, *arguments, **more))

        yield make


Start = Callable[..., DaemonProcess]


def statuses(engine: Engine) -> dict[str, int]:
    with read(engine) as conn:
        row = submissions.c
        found = conn.execute(sa.select(row.status, sa.func.count()).group_by(row.status)).all()
    return {row[0]: row[1] for row in found}


def due_work(engine: Engine, count: int, *, prefix: str = "s") -> None:
    """Put submissions whose runner died: half of them have their answer, half were cut before it."""
    scene = Scene(engine)
    for number in range(count):
        given = turn("A", *([said("a", submission_id="A", attempt_id=f"at-{number + 1}")] if number % 2 else []))
        scene.session(f"{prefix}{number}", given, payloads={entry.id: {"text": "…"} for entry in given})
        scene.running(f"{prefix}{number}", lease_s=-60.0, beat_s=0.2, attempt={"boot_id": "another"})


# --- life ------------------------------------------------------------------------------------------------------------


def test_it_becomes_ready_works_off_what_is_due_and_stops(
    start: Start, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    due_work(engine, 4)
    with NotifySocket(tmp_path / "notify") as manager:
        daemon = start(database_url, limits=QUICK, environment={"NOTIFY_SOCKET": str(manager.path)})
        daemon.wait_for("daemon.ready")
        done = daemon.wait_for("pass.finished")
        assert (4, 2, 2) == (done["scanned"], done["completed"], done["requeued"])
        wait_for("the instance's row", lambda: _instances(engine))
        time.sleep(1.0)
        assert 1 == len(daemon.events("pass.finished")), "a pass that found nothing was logged"
        assert 0 == daemon.stop()
        assert ["daemon.stopping", "daemon.stopped"] == [line["event"] for line in daemon.lines[-2:]]
    assert {"settled": 2, "queued": 2} == statuses(engine)
    (instance,) = _instances(engine)
    assert ("daemon", True) == (instance.kind, instance.stopped_at is not None)
    assert 1 == len(manager.with_key("READY"))
    assert 1 == len(manager.with_key("STOPPING"))
    assert [] == check(database_url)
    with read(engine) as conn:
        assert [instance.id] == list(conn.execute(sa.select(passes.c.instance_id)).scalars())


def _instances(engine: Engine) -> list[Any]:
    with read(engine) as conn:
        return list(conn.execute(sa.select(instances)).all())


def test_a_database_of_another_schema_ends_it_with_the_way_out(start: Start, tmp_path: Path) -> None:
    daemon = start(f"sqlite:///{tmp_path / 'missing.sqlite3'}")
    assert 1 == daemon.end()
    failed = daemon.events("daemon.failed")[0]
    assert "schema_mismatch" == failed["code"]
    assert "db upgrade" in failed["hint"]


def test_a_configuration_that_is_not_valid_ends_it_before_anything_else(start: Start, sqlite_url: str) -> None:
    daemon = start(sqlite_url, settings={"pass_interval_s": -1})
    assert 1 == daemon.end()
    assert "daemon.pass_interval_s" in daemon.said()


def test_a_runner_killed_on_this_host_is_found_long_before_its_lease_ends(
    start: Start, database_url: str, engine: Engine
) -> None:
    scene_url = database_url
    from reconciler.service.runner import Runner

    with Runner(scene_url, notify=False) as runner:
        for number in range(3):
            runner.submit(f"s{number}", "A", {"text": "go"})
    lost = subprocess.Popen(
        [sys.executable, "-c", RUNNER, scene_url, "600", "3"],
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )
    assert lost.stdout is not None
    assert b"3" == lost.stdout.readline().strip()
    daemon = start(database_url, limits={"backoff_base_s": 0.1})
    daemon.wait_for("daemon.ready")
    time.sleep(0.6)
    assert {"running": 3} == statuses(engine)
    killed_at = time.monotonic()
    lost.kill()
    lost.wait()
    lost.stdout.close()
    wait_for("the requeue", lambda: statuses(engine) == {"queued": 3}, timeout_s=5)
    assert time.monotonic() - killed_at < 5
    assert 3 == daemon.wait_for("runner.died")["attempts"]
    with read(engine) as conn:
        ends = set(conn.execute(sa.select(attempts.c.end_kind)).scalars())
    assert 1 == len(ends)
    assert 0 == daemon.stop()
    assert [] == check(database_url)


# --- outages ---------------------------------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_restart_of_the_database_is_said_once_and_survived(
    start: Start, engine_factory: Callable[..., Engine], tmp_path: Path
) -> None:
    with RestartableServer() as server, NotifySocket(tmp_path / "notify") as manager:
        server.address.execute("CREATE DATABASE work")
        url = server.address.url("work")
        migrate.upgrade(url)
        daemon = start(
            url,
            limits=QUICK,
            environment={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1000000"},
        )
        daemon.wait_for("daemon.ready")
        for how in (signal.SIGINT, signal.SIGQUIT):
            server.stop(how)
            time.sleep(1.5)
            fed = len(manager.with_key("WATCHDOG"))
            server.start()
            count = 1 if how is signal.SIGINT else 2
            restored = daemon.wait_for("database.restored", count=count)
            assert restored["outage_s"] >= 1.0
            assert restored["tries"] >= 2
            assert count == len(daemon.events("database.lost"))
            # An outage is no fault of the loop's: the watchdog goes on being fed.
            assert len(manager.with_key("WATCHDOG")) >= fed > 0
        engine = engine_factory(url)
        due_work(engine, 2)
        daemon.wait_for("pass.finished")
        assert 0 == daemon.stop()
        assert [] == daemon.events("pass.failed")
        assert [] == check(url)
        engine.dispose()


def test_a_file_that_is_taken_away_and_put_back_is_an_outage(
    start: Start, sqlite_url: str, engine_factory: Callable[..., Engine], tmp_path: Path
) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    daemon = start(sqlite_url, limits=QUICK)
    daemon.wait_for("daemon.ready")
    for count in (1, 2):
        aside = path.rename(tmp_path / "aside")
        lost = daemon.wait_for("database.lost", count=count)
        assert ("database_unavailable", None) == (lost["code"], daemon.process.poll())
        assert not path.exists()
        aside.rename(path)
        daemon.wait_for("database.restored", count=count)
    due_work(engine_factory(sqlite_url), 2)
    daemon.wait_for("pass.finished")
    assert 0 == daemon.stop()
    assert [] == daemon.events("daemon.failed")


def test_a_file_that_is_replaced_is_the_one_that_is_worked_on(
    start: Start, sqlite_url: str, engine_factory: Callable[..., Engine], tmp_path: Path
) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"VACUUM INTO '{tmp_path / 'backup'}'")
    daemon = start(sqlite_url, limits=QUICK)
    daemon.wait_for("daemon.ready")
    (tmp_path / "backup").replace(path)
    daemon.wait_for("database.lost")
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    daemon.wait_for("database.restored")
    due_work(engine_factory(sqlite_url), 2)
    assert 2 == daemon.wait_for("pass.finished")["scanned"]
    assert 0 == daemon.stop()
    assert [] == check(sqlite_url)


def test_a_file_that_is_missing_at_the_start_is_refused(start: Start, tmp_path: Path) -> None:
    daemon = start(f"sqlite:///{tmp_path / 'typo.sqlite3'}")
    assert 1 == daemon.end()
    (failed,) = daemon.events("daemon.failed")
    assert "schema_mismatch" == failed["code"]
    assert "no such file" in failed["error"]
    assert [] == list(tmp_path.glob("typo*"))


@pytest.mark.postgresql
def test_it_waits_for_a_database_that_is_not_there_yet(start: Start, tmp_path: Path) -> None:
    with RestartableServer() as server, NotifySocket(tmp_path / "notify") as manager:
        server.address.execute("CREATE DATABASE work")
        url = server.address.url("work")
        migrate.upgrade(url)
        server.stop()
        daemon = start(url, limits=QUICK, environment={"NOTIFY_SOCKET": str(manager.path)})
        daemon.wait_for("database.lost")
        wait_for("an extension of the start's time", lambda: manager.with_key("EXTEND_TIMEOUT_USEC"))
        assert [] == manager.with_key("READY")
        assert [] == daemon.events("daemon.ready")
        server.start()
        daemon.wait_for("daemon.ready")
        wait_for("readiness", lambda: manager.with_key("READY"))
        assert 0 == daemon.stop()


@pytest.mark.postgresql
def test_it_stops_cleanly_while_the_database_is_away(start: Start) -> None:
    with RestartableServer() as server:
        server.address.execute("CREATE DATABASE work")
        url = server.address.url("work")
        migrate.upgrade(url)
        daemon = start(url, limits=QUICK)
        daemon.wait_for("daemon.ready")
        server.stop()
        daemon.wait_for("database.lost")
        assert 0 == daemon.stop()


# --- several daemons -------------------------------------------------------------------------------------------------

JOBS = """
[jobs.report]
cron = "* * * * *"
catch_up = "all"
session = "reports"
payload = { text = "write it" }
"""


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_eight_daemons_fire_a_slot_once(start: Start, database_url: str, engine: Engine, tmp_path: Path) -> None:
    with begin(engine) as conn:
        ledger.lock_job(conn, "report", wait=True)
        ledger.set_looked_until(conn, "report", db_now(conn) - timedelta(minutes=5))
    file = config(tmp_path, JOBS)
    daemons = [start(database_url, "--config", str(file), limits=QUICK) for _ in range(8)]
    for daemon in daemons:
        daemon.wait_for("daemon.ready", timeout_s=60)
    wait_for("the slots", lambda: len(_slots(engine)) >= 5)
    time.sleep(1.0)
    fired = [event for daemon in daemons for event in daemon.events("slot.fired")]
    rows = _slots(engine)
    assert {"done"} == {row.status for row in rows}
    assert sorted(row.submission_id for row in rows) == sorted(event["submission_id"] for event in fired)
    assert {"queued": len(rows)} == statuses(engine)
    assert [0] * 8 == [daemon.stop() for daemon in daemons]
    assert [] == check(database_url)


def _slots(engine: Engine) -> list[Any]:
    with read(engine) as conn:
        return list(conn.execute(sa.select(schedule_slots)).all())


def test_daemons_that_are_killed_in_the_middle_leave_nothing_half_done(
    start: Start, database_url: str, engine: Engine
) -> None:
    due_work(engine, 60)
    limits = {**QUICK, "scan_batch_max": 2}
    killed = 0
    for _ in range(4):
        daemon = start(database_url, limits=limits)
        daemon.wait_for("daemon.ready")
        before = statuses(engine).get("running", 0)
        if before:
            wait_for("some work", partial(_fewer_running, engine, before), every_s=0.002)
        daemon.process.kill()
        assert -signal.SIGKILL == daemon.end()
        killed += 1
    last = start(database_url, limits=limits)
    last.wait_for("daemon.ready")
    wait_for("the rest", lambda: statuses(engine) == {"settled": 30, "queued": 30})
    assert 0 == last.stop()
    assert 4 == killed
    assert [] == check(database_url)
    with read(engine) as conn:
        decided = conn.execute(sa.select(sa.func.max(submissions.c.decision_count))).scalar_one()
    assert 1 == decided


def _fewer_running(engine: Engine, than: int) -> bool:
    return statuses(engine).get("running", 0) < than


# --- signals ---------------------------------------------------------------------------------------------------------


def test_sighup_brings_what_changed_and_refuses_what_is_wrong(start: Start, sqlite_url: str, tmp_path: Path) -> None:
    file = config(tmp_path, "[limits]\nstall_s = 100\n")
    with NotifySocket(tmp_path / "notify") as manager:
        daemon = start(sqlite_url, "--config", str(file), environment={"NOTIFY_SOCKET": str(manager.path)})
        daemon.wait_for("daemon.ready")
        file.write_text(f"[limits]\nstall_s = 200\n[log]\nlevel = 'debug'\n[daemon]\nowner = 'other'\n{JOBS}")
        daemon.signal(signal.SIGHUP)
        reloaded = daemon.wait_for("config.reloaded")
        assert ["limits.stall_s", "log.level", "jobs"] == reloaded["changed"]
        assert ["daemon.owner"] == reloaded["needs_restart"]
        assert 1 == len(manager.with_key("RELOADING"))
        file.write_text("[limits]\nstall_s = 'soon'\n")
        daemon.signal(signal.SIGHUP)
        assert "stall_s" in daemon.wait_for("config.refused")["error"]
        wait_for("readiness after each", lambda: len(manager.with_key("READY")) == 3)
        assert 0 == daemon.stop()


@pytest.mark.postgresql
def test_a_second_signal_hurries_a_stop_that_hangs(
    start: Start, postgresql_url: str, engine_factory: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_factory(postgresql_url)
    with NotifySocket(tmp_path / "notify") as manager:
        daemon = start(
            postgresql_url,
            limits=QUICK,
            environment={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1000000"},
        )
        daemon.wait_for("daemon.ready")
        with begin(engine) as conn:
            conn.exec_driver_sql("LOCK TABLE submissions IN ACCESS EXCLUSIVE MODE")
            time.sleep(1.0)
            fed = len(manager.with_key("WATCHDOG"))
            assert fed > 0
            time.sleep(1.5)
            # A pass that hangs feeds no watchdog: that is what the service manager restarts it for.
            assert fed == len(manager.with_key("WATCHDOG"))
            daemon.signal(signal.SIGTERM)
            daemon.wait_for("daemon.stopping")
            time.sleep(0.6)
            assert daemon.process.poll() is None
            daemon.signal(signal.SIGTERM)
            assert 143 == daemon.end(5)
        assert 1 == len(daemon.events("daemon.hurried"))


def test_a_stop_that_takes_too_long_is_cut_short(
    start: Start, postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    daemon = start(postgresql_url, limits=QUICK, settings={"stop_s": 1.0})
    daemon.wait_for("daemon.ready")
    with begin(engine_factory(postgresql_url)) as conn:
        conn.exec_driver_sql("LOCK TABLE submissions IN ACCESS EXCLUSIVE MODE")
        time.sleep(0.5)
        daemon.signal(signal.SIGTERM)
        assert 143 == daemon.end(8)


# --- wake-ups --------------------------------------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.parametrize("listens", [True, False])
def test_a_hint_brings_a_pass_forward_unless_it_is_switched_off(
    start: Start, postgresql_url: str, engine_factory: Callable[..., Engine], listens: bool
) -> None:
    engine = engine_factory(postgresql_url)
    daemon = start(
        postgresql_url, limits=QUICK, settings={"pass_interval_s": 600, "notify": str(listens).lower(), "jitter": 0}
    )
    daemon.wait_for("daemon.ready")
    if listens:
        wait_for("the listener", lambda: _listeners(engine))
    # Past the passes of the start, and past two beats: what ended may be judged.
    time.sleep(1.0)
    due_work(engine, 2)
    notifier = Notifier(engine)
    notifier.hint()
    if listens:
        wait_for("the pass", lambda: "running" not in statuses(engine), timeout_s=10)
    else:
        time.sleep(1.5)
        assert 2 == statuses(engine)["running"]
        assert 0 == _listeners(engine)
    notifier.stop()
    assert 0 == daemon.stop()


def _listeners(engine: Engine) -> int:
    with read(engine) as conn:
        count: int = conn.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND datname = current_database()"
            " AND pid <> pg_backend_pid()"
        ).scalar_one()
    return count


# --- health ----------------------------------------------------------------------------------------------------------


def _ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answered:
            return answered.status, answered.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError as error:
        return 0, str(error)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.postgresql
def test_health_readiness_and_metrics_say_how_it_is(start: Start, engine_factory: Callable[..., Engine]) -> None:
    port = _free_port()
    with RestartableServer() as server:
        server.address.execute("CREATE DATABASE work")
        url = server.address.url("work")
        migrate.upgrade(url)
        daemon = start(url, "--health-port", str(port), limits=QUICK)
        daemon.wait_for("daemon.ready")
        assert 200 == _ask(port, "/healthz")[0]
        code, body = _ask(port, "/readyz")
        assert (200, []) == (code, json.loads(body)["reasons"])
        engine = engine_factory(url)
        due_work(engine, 4)
        daemon.wait_for("pass.finished")
        engine.dispose()
        metrics = _ask(port, "/metrics")[1]
        assert 'reconciler_decisions_total{action="completed"} 2.0' in metrics
        assert "reconciler_database_up 1.0" in metrics
        server.stop()
        daemon.wait_for("database.lost")
        code, body = _ask(port, "/readyz")
        assert 503 == code
        assert "the database does not answer" in json.loads(body)["reasons"][0]
        # Alive all the same: a restart would not help.
        assert 200 == _ask(port, "/healthz")[0]
        assert "reconciler_database_up 0.0" in _ask(port, "/metrics")[1]
        assert 404 == _ask(port, "/etc/passwd")[0]
        assert 0 == daemon.stop()


def test_a_port_in_use_does_not_keep_it_from_working(start: Start, sqlite_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        daemon = start(sqlite_url, "--health-port", str(taken.getsockname()[1]))
        daemon.wait_for("daemon.ready")
        assert 1 == len(daemon.events("health.failed"))
        assert 0 == daemon.stop()


def test_what_is_said_contains_no_password(start: Start, postgresql_url: str) -> None:
    daemon = start(postgresql_url)
    daemon.wait_for("daemon.ready")
    daemon.stop()
    password = sa.make_url(postgresql_url).password
    assert str(password) not in daemon.said()
