"""One cell: processes started, phases gone through, stress put on and asserted, and the verdict at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.errors import ReconcilerError
from reconciler.store import migrate
from reconciler.store.engine import make_engine, read
from reconciler.store.schema import attempts, submissions
from reconciler.store.views import v_pending
from tests.chaos.ledger import lines
from tests.chaos.stress import Void, connections_held
from tests.chaos.verdict import Line, Sample, found_again, judge, recovery
from tests.support.daemons import DaemonProcess, clean_environment, wait_for
from tests.support.restartable import RestartableServer

SESSIONS = 500
DAEMONS = 2
SHARE_OF_CAPACITY = 0.6
DISK_MB = 192
# Beside those that a cell holds: producer, runners and daemons take about two dozen.
_CONNECTIONS_LEFT = 60
# Faults that are put into the daemons; the others are put into runners and producer.
DAEMON_MUTANTS = ("forgets_submissions",)


@dataclass(frozen=True)
class Phases:
    """Seconds of each phase, at full length."""

    warmup: float
    clean: float
    stress: float
    rest: float


@dataclass(frozen=True)
class Plan:
    """What a cell is: its stress on each database, how many runners, and the fault that its control puts in."""

    number: int
    name: str
    phases: Phases
    postgresql: Callable[[Cell, float], str]
    sqlite: Callable[[Cell, float], str]
    replicas: int = 1
    threads: int = 8
    # (fault, the line of the verdict that must find it)
    control: tuple[str, str] = ("forgets_submissions", "acknowledged = settled, each once")


@dataclass
class Outcome:
    """What came of a cell."""

    plan: Plan
    database: str
    rate: float
    capacity: float
    stress: str = ""
    lines: list[Line] = field(default_factory=list)
    notes: str = ""

    @property
    def passed(self) -> bool:
        """Whether every line holds."""
        return bool(self.lines) and all(line.good for line in self.lines)


class Cell:
    """A cell on its way; stresses act on it."""

    def __init__(self, plan: Plan, database: str, *, scale: float, mutant: str | None = None) -> None:
        self.plan = plan
        self.database = database
        self.scale = scale
        self.mutant = mutant
        self.folder = Path(tempfile.mkdtemp(prefix="reconciler-chaos-"))
        self.control = self.folder / "rate"
        self.server: RestartableServer | None = None
        self.mounted: Path | None = None
        self.rate = 0.0
        self.capacity = 0.0
        self.kills: list[tuple[float, str]] = []
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._daemons: dict[int, DaemonProcess] = {}
        self._wanted: set[int] = set()
        self._made = 0
        self._guard = threading.RLock()
        self._ending = threading.Event()
        self._samples: list[Sample] = []
        self._engine: Engine | None = None
        self.suicides = 0
        self._open_database()

    # --- the database ------------------------------------------------------------------------------------------------

    def _open_database(self) -> None:
        if self.database == "postgresql":
            self.server = RestartableServer(
                durable=True,
                settings={
                    "shared_buffers": "128MB",
                    "max_connections": connections_held(self.scale) + _CONNECTIONS_LEFT,
                    "autovacuum_naptime": "5s",
                    "timezone": "UTC",
                },
            )
            self.server.address.execute("CREATE DATABASE chaos")
            self.url = self.server.address.url("chaos")
            self.file = Path("/nonexistent")
        else:
            place = self._mount() or self.folder
            self.file = place / "chaos.sqlite3"
            self.url = f"sqlite:///{self.file}"
        migrate.upgrade(self.url)

    def _mount(self) -> Path | None:
        if self.plan.number != 1:
            return None
        place = self.folder / "disk"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(place)], capture_output=True, check=False
        )
        self.mounted = place if done.returncode == 0 else None
        return self.mounted

    @property
    def engine(self) -> Engine:
        """An engine of the harness's own."""
        if self._engine is None:
            self._engine = make_engine(self.url)
        return self._engine

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement as a superuser, on a connection of its own."""
        assert self.server is not None
        return self.server.address.execute(text, database="chaos")

    # --- processes ---------------------------------------------------------------------------------------------------

    def _setup(self) -> Path:
        path = self.folder / "setup.json"
        path.write_text(
            json.dumps(
                {
                    "url": self.url,
                    "folder": str(self.folder),
                    "control": str(self.control),
                    # Enough of them, and few enough that some are waited for.
                    "sessions": max(20, round(SESSIONS * self.scale)),
                    "threads": self.plan.threads,
                    "lease_s": 15 * self.scale,
                    "beat_s": 5 * self.scale,
                    "scale": self.scale,
                    "mutant": self.mutant,
                }
            )
        )
        return path

    def start_replica(self, number: int) -> None:
        """Start runner *number*, and daemon *number* with it."""
        with self._guard:
            self._wanted.add(number)
            self._start_worker(number)
            if number not in self._daemons or self._daemons[number].process.poll() is not None:
                self._start_daemon(number)

    def _start_worker(self, number: int) -> None:
        self._made += 1
        self._workers[number] = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker", str(self.folder / "setup.json"), f"w{number}-{self._made}"],
            stderr=(self.folder / f"worker-{number}.log").open("ab"),
            env=clean_environment(),
            start_new_session=True,
        )

    def _start_daemon(self, number: int) -> None:
        limits = {
            "lease_s": 15 * self.scale,
            "beat_s": 5 * self.scale,
            "grace_s": 60 * self.scale,
            "backoff_base_s": self.scale,
            "backoff_max_s": 30 * self.scale,
            "provider_backoff_base_s": 5 * self.scale,
            "provider_backoff_max_s": 30 * self.scale,
            "capability_backoff_s": 3 * self.scale,
        }
        settings = {
            "pass_interval_s": max(0.1, 2 * self.scale),
            "beat_s": 10 * self.scale,
            "reconnect_max_s": max(0.2, 5 * self.scale),
        }
        module = ["tests.chaos.mutated", self.mutant] if self.mutant in DAEMON_MUTANTS else None
        self._daemons[number] = DaemonProcess(self.url, settings=settings, limits=limits, module=module)

    def kill_replica(self, number: int) -> list[int]:
        """Kill runner and daemon *number*; return their process ids."""
        with self._guard:
            self._wanted.discard(number)
            worker, daemon = self._workers[number], self._daemons[number]
            owner = self._owner(worker)
            self._wait_until_at_work(owner)
            worker.kill()
            self.kills.append((time.time(), owner))
            daemon.process.kill()
            worker.wait()
            daemon.process.wait()
            return [worker.pid, daemon.process.pid]

    def _wait_until_at_work(self, owner: str) -> None:
        """Wait for a moment at which a kill hurts: the runner is between a response with calls and its answer."""
        row = attempts.c
        at_work = sa.select(row.attempt_id).where(
            row.ended_at.is_(None), row.owner == owner, row.progress_at.is_not(None)
        )
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            with contextlib.suppress(ReconcilerError), read(self.engine) as conn:
                if conn.execute(at_work.limit(1)).first() is not None:
                    return
            time.sleep(0.001)

    @staticmethod
    def _owner(worker: subprocess.Popen[bytes]) -> str:
        arguments = worker.args
        assert isinstance(arguments, list)
        return str(arguments[-1])

    @staticmethod
    def is_gone(pid: int) -> bool:
        """Return whether no process has this id."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def _keep_workers(self) -> None:
        """Start a runner again that its own work has killed (one turn in a thousand does)."""
        while not self._ending.wait(0.1):
            with self._guard:
                for number in list(self._wanted):
                    if self._workers[number].poll() is not None:
                        if self._workers[number].returncode == -signal.SIGKILL:
                            self.suicides += 1
                        self._start_worker(number)

    # --- load --------------------------------------------------------------------------------------------------------

    def set_rate(self, rate: float) -> None:
        """Have *rate* submissions offered in a second from now on."""
        text = self.control.with_suffix(".new")
        text.write_text(f"{rate:.3f}")
        text.replace(self.control)

    def offered(self) -> int:
        """Return how many submissions the producer has offered."""
        path = self.folder / "offered.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def offered_rate(self) -> float:
        """Return how many were offered in a second, over the last few."""
        now = time.time()
        seconds = max(2.0, 20 * self.scale)
        recent = [line["at"] for line in lines(self.folder, "offered") if line["at"] > now - seconds]
        return len(recent) / seconds

    def _sample(self) -> None:
        is_settled: sa.ColumnElement[bool] = sa.literal_column("status = 'settled'", sa.Boolean())
        statement = sa.select(is_settled, sa.func.count()).select_from(submissions).group_by(is_settled)
        while not self._ending.wait(max(0.1, 0.5 * self.scale)):
            try:
                with read(self.engine) as conn:
                    counts = {bool(settled): count for settled, count in conn.execute(statement)}
            except ReconcilerError:
                continue
            self._samples.append(Sample(time.monotonic(), counts.get(True, 0), counts.get(False, 0)))

    def _pending(self) -> int:
        return self._samples[-1].pending if self._samples else -1

    # --- the course --------------------------------------------------------------------------------------------------

    def run(self, rate: float | None, say: Callable[[str], None]) -> Outcome:
        """Go through the phases and return the verdict. Without a *rate* it is found by calibration first."""
        stress = self.plan.postgresql if self.database == "postgresql" else self.plan.sqlite
        phases = self.plan.phases
        self.set_rate(0)
        self._setup()
        for number in range(max(self.plan.replicas, DAEMONS)):
            if number < self.plan.replicas:
                self.start_replica(number)
            else:
                self._start_daemon(number)
        for daemon in self._daemons.values():
            daemon.wait_for("daemon.ready", timeout_s=60)
        producer = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.producer", str(self.folder / "setup.json")],
            stderr=(self.folder / "producer.log").open("ab"),
            env=clean_environment(),
            start_new_session=True,
        )
        for work in (self._keep_workers, self._sample):
            threading.Thread(target=work, daemon=True).start()
        outcome = Outcome(self.plan, self.database, 0.0, 0.0)
        try:
            self.capacity = self._calibrate(say) if rate is None else rate / SHARE_OF_CAPACITY
            self.rate = self.capacity * SHARE_OF_CAPACITY
            outcome.rate, outcome.capacity = self.rate, self.capacity
            say(f"offered {self.rate:.1f}/s, {SHARE_OF_CAPACITY:.0%} of {self.capacity:.1f}/s")
            self.set_rate(self.rate)
            time.sleep(phases.warmup * self.scale)
            clean_from = time.monotonic()
            time.sleep(phases.clean * self.scale)
            clean_to = time.monotonic()
            try:
                outcome.stress = stress(self, phases.stress * self.scale)
                outcome.lines.append(Line("stress took place", True, outcome.stress))
            except Void as void:
                outcome.lines.append(Line("stress took place", False, str(void)))
            stress_end = time.monotonic()
            time.sleep(phases.rest * self.scale)
            end = time.monotonic()
            self.control.write_text("stop")
            self._drain(producer, outcome)
            outcome.lines += recovery(
                self._samples, (clean_from, clean_to), stress_end, end, scale=self.scale, rate=self.rate
            )
            self._stop_all()
            outcome.lines += judge(self.url, self.engine, self.folder)
            outcome.notes = self._notes()
        finally:
            self._ending.set()
            if producer.poll() is None:
                producer.kill()
            producer.wait()
            self.close()
        return outcome

    def _calibrate(self, say: Callable[[str], None]) -> float:
        """Return how many submissions the machine settles in a second, where more are offered than it can."""
        self.set_rate(100_000)
        time.sleep(1.0 + 5 * self.scale)
        first = self._samples[-1]
        time.sleep(max(3.0, 20 * self.scale))
        last = self._samples[-1]
        self.set_rate(0)
        capacity = (last.settled - first.settled) / (last.at - first.at)
        say(f"calibration: {capacity:.1f}/s")
        wait_for("the end of the calibration's backlog", lambda: self._pending() == 0, timeout_s=300, every_s=0.2)
        return capacity

    def _drain(self, producer: subprocess.Popen[bytes], outcome: Outcome) -> None:
        try:
            producer.wait(150)
            wait_for("the end of the backlog", lambda: self._pending() == 0, timeout_s=60, every_s=0.1)
            outcome.lines.append(Line("comes to rest", True, "nothing waits"))
        except (AssertionError, subprocess.TimeoutExpired):
            outcome.lines.append(
                Line("comes to rest", False, f"{self._pending()} submissions still wait: {self._why()}")
            )

    def _why(self) -> list[dict[str, Any]]:
        """Return what is known of a few that wait."""
        v = v_pending.c
        asked = sa.select(
            v.session_id,
            v.submission_id,
            v.status,
            v.is_head,
            v.held_reason,
            v.not_before,
            v.reconcile_at,
            v.claimable_from,
            v.decision_reason,
            v.owner,
            v.lease_expires_at,
            v.attempt_number,
        )
        with read(self.engine) as conn:
            return [
                {key: str(value) for key, value in row.items() if value is not None}
                for row in conn.execute(asked.where(v.is_head.is_(sa.true())).limit(3)).mappings()
            ]

    def _stop_all(self) -> None:
        self._ending.set()
        with self._guard:
            self._wanted.clear()
            for worker in self._workers.values():
                worker.terminate()
            for worker in self._workers.values():
                try:
                    worker.wait(15)
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()
            for daemon in self._daemons.values():
                daemon.stop()

    def _notes(self) -> str:
        said = [found_again(self.engine, self.kills)] if self.kills else []
        errors = [text for path in self.folder.glob("*.log") for text in path.read_text(errors="replace").splitlines()]
        if errors:
            said.append(f"{len(errors)} lines of errors, the last {errors[-1][:200]!r}")
        said.append(f"{self.suicides} runners killed by their own work")
        if self.server is not None:
            dead = self.sql("SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables")[0][0]
            largest = self.sql(
                "SELECT relname, pg_size_pretty(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
                " ORDER BY pg_total_relation_size(relid) DESC LIMIT 1"
            )[0]
            wal = self.sql("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0]
            settled = self._samples[-1].settled or 1
            said.append(f"{dead} dead rows; largest table {largest[0]} {largest[1]}")
            said.append(f"{float(wal) / settled / 1024:.1f} KiB of log per submission")
        else:
            said.append(f"file {self.file.stat().st_size // 1024} KiB")
        said.append(f"pass at the end {self._pass_ms():.1f} ms")
        return "; ".join(part for part in said if part)

    def _pass_ms(self) -> float:
        from reconciler.service.reconcile import reconcile_once

        started = time.perf_counter()
        reconcile_once(self.engine, dry_run=True)
        return (time.perf_counter() - started) * 1000

    def close(self) -> None:
        """End every process and remove everything."""
        self._ending.set()
        with self._guard:
            for worker in self._workers.values():
                if worker.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        worker.send_signal(signal.SIGCONT)
                        worker.kill()
                worker.wait()
            for daemon in self._daemons.values():
                with contextlib.suppress(ProcessLookupError):
                    daemon.process.send_signal(signal.SIGCONT)
                daemon.__exit__(None, None, None)
        if self._engine is not None:
            self._engine.dispose()
        if self.server is not None:
            self.server.close()
        if self.mounted is not None:
            subprocess.run(["umount", "-l", str(self.mounted)], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
