"""Measures of the daemon: found again after kills and restarts, idle cost, a storm of ended leases.

``python -m tests.bench.bench_daemon [kill other-host restart idle storm] [--sqlite] [--quick]`` prints one JSON line
per measure and, at the end, a table for the docs. Defaults are the product's: leases of 15 s, beats of 5 s, passes
every 2 s. ``--quick`` is for trying the script out: its numbers say nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import NewEntry
from reconciler.errors import ReconcilerError
from reconciler.service.runner import Runner
from reconciler.store import migrate
from reconciler.store.engine import begin, make_engine, read
from reconciler.store.schema import attempts, submissions
from tests.support.bulk import expired_leases, settled
from tests.support.daemons import DaemonProcess, clean_environment, wait_for
from tests.support.restartable import RestartableServer

# One process that forks runners, each holding one submission: a hundred cost one start of the interpreter.
NURSERY = """
import os, signal, sys, time
from reconciler import Runner
import reconciler.service.runner, psycopg, sqlalchemy.dialects.postgresql, sqlalchemy.dialects.sqlite
url, count, lease_s, beat_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not kept as zombies
for _ in range(count):
    reading, writing = os.pipe()
    if os.fork() == 0:
        runner = Runner(url, lease_s=lease_s, beat_s=beat_s, notify=False)
        (attempt,) = runner.claim(1, wait_s=30)
        attempt.begin()
        os.write(writing, f"{os.getpid()} {attempt.session_id}\\n".encode())
        time.sleep(3600)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        sys.stdout.write(told.readline())
    sys.stdout.flush()
time.sleep(3600)
"""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that *share* of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles that reports show, in seconds."""
    return {
        "n": len(values),
        "p50_s": round(percentile(values, 0.5), 3),
        "p90_s": round(percentile(values, 0.9), 3),
        "p99_s": round(percentile(values, 0.99), 3),
        "max_s": round(max(values), 3),
    }


class Bench:
    """A database of a kind, fresh for each measure."""

    def __init__(self, *, sqlite: bool, quick: bool) -> None:
        self.kind = "sqlite" if sqlite else "postgresql"
        self.quick = quick
        self.results: list[dict[str, Any]] = []
        self.server: RestartableServer | None = None

    @contextmanager
    def database(self) -> Iterator[tuple[str, Engine]]:
        """Give a migrated database; its server too is gone after it."""
        if self.kind == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
                migrate.upgrade(url)
                engine = make_engine(url)
                yield url, engine
                engine.dispose()
            return
        with RestartableServer(durable=True, settings={"shared_buffers": "512MB", "max_connections": 600}) as server:
            self.server = server
            server.address.execute("CREATE DATABASE bench")
            url = server.address.url("bench")
            migrate.upgrade(url)
            engine = make_engine(url)
            yield url, engine
            engine.dispose()
            self.server = None

    def report(self, measure: str, **values: Any) -> None:
        """Print one measure."""
        row = {"measure": measure, "database": self.kind, "quick": self.quick, **values}
        self.results.append(row)
        print(json.dumps(row), flush=True)

    # --- kills -------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """From SIGKILL of a runner on the same host to settled or requeued."""
        self._kills("kill", count=10 if self.quick else 200, lease_s=15.0, beat_s=5.0, same_host=True)

    def other_host(self) -> None:
        """The same, of a runner whose death nothing proves: as on another host. Over the lease, in seconds."""
        lease_s, beat_s = (3.0, 1.0) if self.quick else (15.0, 5.0)
        self._kills("other-host", count=10 if self.quick else 100, lease_s=lease_s, beat_s=beat_s, same_host=False)

    def _kills(self, measure: str, *, count: int, lease_s: float, beat_s: float, same_host: bool) -> None:
        with self.database() as (url, engine):
            with Runner(url, notify=False) as admitting:
                for number in range(count):
                    admitting.submit(f"s{number:04d}", "A", {"text": "go"})
            nursery = subprocess.Popen(
                [sys.executable, "-c", NURSERY, url, str(count), str(lease_s), str(beat_s)],
                stdout=subprocess.PIPE,
                env=clean_environment(),
                start_new_session=True,
            )
            assert nursery.stdout is not None
            try:
                held = [nursery.stdout.readline().decode().split() for _ in range(count)]
                if not same_host:
                    with begin(engine) as conn:
                        conn.execute(sa.update(attempts).values(boot_id="another", machine_id="another"))
                with DaemonProcess(url, settings={"pass_interval_s": 2.0, "beat_s": 10.0}) as daemon:
                    daemon.wait_for("daemon.ready")
                    time.sleep(2 * beat_s + 1)
                    took = self._kill_one_by_one(engine, held, apart_s=0.2 if self.quick else 0.5)
                    daemon.stop()
                over = {} if same_host else {"over_the_lease": spread([value - lease_s for value in took])}
                self.report(measure, lease_s=lease_s, beat_s=beat_s, **spread(took), **over)
            finally:
                os.killpg(nursery.pid, signal.SIGKILL)
                nursery.wait()
                nursery.stdout.close()

    @staticmethod
    def _kill_one_by_one(engine: Engine, held: list[list[str]], *, apart_s: float) -> list[float]:
        killed: dict[str, float] = {}
        took: list[float] = []
        dice = random.Random(1)
        todo = list(held)
        row = submissions.c
        deadline = time.monotonic() + 600
        while len(took) < len(held) and time.monotonic() < deadline:
            if todo:
                pid, session_id = todo.pop()
                # At any moment of a pass's interval.
                time.sleep(apart_s * dice.uniform(0.5, 1.5))
                os.kill(int(pid), signal.SIGKILL)
                killed[session_id] = time.monotonic()
            else:
                time.sleep(0.005)
            with read(engine) as conn:
                running = set(conn.execute(sa.select(row.session_id).where(sa.text("status = 'running'"))).scalars())
            now = time.monotonic()
            for session_id in [one for one in killed if one not in running]:
                took.append(now - killed.pop(session_id))
        assert not killed, f"{len(killed)} were never found"
        return took

    # --- a restart ---------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A restart of PostgreSQL under load: until each verb lands again, and lost leases are judged."""
        if self.kind == "sqlite":
            return
        rounds, down_s = (1, 2.0) if self.quick else (5, 30.0)
        lease_s, beat_s = (3.0, 1.0) if self.quick else (15.0, 5.0)
        back: dict[str, list[float]] = {"claim": [], "append": [], "settle": []}
        judged: list[float] = []
        for _ in range(rounds):
            with self.database() as (url, engine):
                assert self.server is not None
                server = self.server
                expired_leases(engine, 20, beat_s=beat_s, prefix="lost", ago_s=-1.0)
                with DaemonProcess(url, settings={"pass_interval_s": 2.0, "beat_s": 10.0}) as daemon:
                    daemon.wait_for("daemon.ready")
                    worker = _Worker(url, lease_s=lease_s, beat_s=beat_s)
                    worker.start()
                    time.sleep(3.0)
                    server.stop(signal.SIGQUIT)
                    engine.dispose()
                    # Their leases end while the database is away.
                    time.sleep(down_s)
                    server.start()
                    up_at = time.monotonic()
                    for verb in back:
                        landed = wait_for(verb, partial(worker.first_after, verb, up_at), timeout_s=60)
                        back[verb].append(landed - up_at)
                    wait_for("the judgement", partial(_none_left, engine, "lost"), timeout_s=120)
                    judged.append(time.monotonic() - up_at)
                    worker.stop()
                    assert worker.failed is None, worker.failed
                    daemon.stop()
        self.report(
            "restart",
            down_s=down_s,
            two_beats_s=2 * beat_s,
            **{f"until_{verb}": spread(values) for verb, values in back.items()},
            until_lost_leases_judged=spread(judged),
        )

    # --- idle --------------------------------------------------------------------------------------------------------

    def idle(self) -> None:
        """Processor and memory of a daemon with nothing to do over millions of settled submissions."""
        count, seconds = (20_000, 10.0) if self.quick else (2_000_000, 120.0)
        with self.database() as (url, engine):
            settled(engine, count)
            settings = {"pass_interval_s": 2.0, "beat_s": 10.0, "schedule_interval_s": 5.0, "sweep": "17 * * * *"}
            with DaemonProcess(url, settings=settings) as daemon:
                daemon.wait_for("daemon.ready")
                time.sleep(3.0)
                before, started = daemon.cpu_s(), time.monotonic()
                time.sleep(seconds)
                share = (daemon.cpu_s() - before) / (time.monotonic() - started)
                self.report(
                    "idle",
                    settled=count,
                    cpu_percent_of_a_core=round(share * 100, 3),
                    memory_mb=round(daemon.memory_mb(), 1),
                    memory_peak_mb=round(daemon.memory_mb("VmHWM"), 1),
                )
                daemon.stop()

    # --- storm -------------------------------------------------------------------------------------------------------

    def storm(self) -> None:
        """All leases have ended at once: how long until all are decided, and the most memory that took."""
        count = 2_000 if self.quick else 100_000
        with self.database() as (url, engine):
            expired_leases(engine, count, beat_s=5.0)
            with DaemonProcess(url, settings={"pass_interval_s": 2.0}) as daemon:
                daemon.wait_for("daemon.ready")
                started = time.monotonic()
                wait_for("the end of the storm", partial(_none_left, engine, "storm"), timeout_s=1800, every_s=0.5)
                took = time.monotonic() - started
                passes = daemon.events("pass.finished")
                worked = sum(line["took_s"] for line in passes)
                self.report(
                    "storm",
                    leases=count,
                    took_s=round(took, 1),
                    in_passes_s=round(worked, 1),
                    per_s=round(count / worked),
                    memory_peak_mb=round(daemon.memory_mb("VmHWM"), 1),
                )
                daemon.stop()


class _Worker:
    """A runner that works without end, and notes when each verb landed."""

    def __init__(self, url: str, *, lease_s: float, beat_s: float) -> None:
        self._url, self._lease_s, self._beat_s = url, lease_s, beat_s
        self._landed: dict[str, list[float]] = {"claim": [], "append": [], "settle": []}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failed: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)

    def first_after(self, verb: str, instant: float) -> float | None:
        """Return when *verb* landed for the first time after *instant*."""
        return next((landed for landed in list(self._landed[verb]) if landed > instant), None)

    def _run(self) -> None:
        try:
            with Runner(self._url, lease_s=self._lease_s, beat_s=self._beat_s, reconnect_s=300) as runner:
                number = 0
                while not self._stopping.is_set():
                    number += 1
                    runner.submit(f"w{number}", "A", {"text": "go"})
                    for attempt in runner.claim(1, wait_s=5):
                        self._landed["claim"].append(time.monotonic())
                        try:
                            attempt.begin()
                            attempt.append([NewEntry(role="assistant", stop_reason="stop", payload={"text": "done"})])
                            self._landed["append"].append(time.monotonic())
                            attempt.settle("completed")
                            self._landed["settle"].append(time.monotonic())
                        except ReconcilerError as error:
                            # Lost over the outage: the next one is claimed.
                            if error.code != "attempt_lost":
                                raise
                    time.sleep(0.02)
        except BaseException as error:  # carried to the measure
            self.failed = error


def _none_left(engine: Engine, prefix: str) -> bool:
    row = submissions.c
    try:
        with read(engine) as conn:
            count: int = conn.execute(
                sa.select(sa.func.count())
                .select_from(submissions)
                .where(sa.text("status = 'running'"), row.session_id.like(f"{prefix}-%"))
            ).scalar_one()
    except ReconcilerError:
        return False
    return count == 0


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as the docs show them."""
    lines = ["| measure | database | result |", "| --- | --- | --- |"]
    for row in results:
        values = {key: value for key, value in row.items() if key not in ("measure", "database", "quick")}
        shown = "; ".join(
            f"{key} " + (", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value))
            for key, value in values.items()
        )
        lines.append(f"| {row['measure']} | {row['database']} | {shown} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measures that were asked for, all by default."""
    bench_names: dict[str, Callable[[Bench], None]] = {
        "kill": Bench.kill,
        "other-host": Bench.other_host,
        "restart": Bench.restart,
        "idle": Bench.idle,
        "storm": Bench.storm,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", choices=[*bench_names, []], help="which ones (default: all)")
    parser.add_argument("--sqlite", action="store_true", help="on an SQLite file instead of PostgreSQL")
    parser.add_argument("--quick", action="store_true", help="small numbers, to try the script out")
    given = parser.parse_args(argv)
    bench = Bench(sqlite=given.sqlite, quick=given.quick)
    for name in given.measures or bench_names:
        bench_names[name](bench)
    print(table(bench.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
