"""What every measure stands on: the scale, repeats, processes, and the facts about the machine that a reader needs."""

from __future__ import annotations

import json
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reconciler.service.deciding import Judge
from tests.bench.databases import Database, Databases

ROOT = Path(__file__).parents[2]
Result = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much there is of everything."""

    name: str
    # Settled submissions at which finding due work is measured; two entries each.
    histories: tuple[int, ...]
    # Due submissions of one pass.
    due: int
    # Due submissions while memory is watched.
    storm: int
    # Entries of the long histories and tails.
    long: int
    # Jobs given to procrastinate, pgqueuer, DBOS and absurd: what takes each some seconds.
    peers: tuple[int, int, int, int]
    megabytes: int
    repeats: int = 3


SCALES = {
    # For trying the benchmark out: its numbers say nothing.
    "tiny": Scale("tiny", (0, 1_000, 5_000), 1_000, 1_000, 5_000, (50, 200, 30, 100), 2, repeats=1),
    "quick": Scale("quick", (0, 5_000, 20_000), 2_000, 10_000, 20_000, (200, 1_000, 100, 300), 10),
    "small": Scale("small", (0, 10_000, 100_000), 5_000, 20_000, 20_000, (500, 2_000, 200, 500), 20),
    "medium": Scale(
        "medium", (0, 10_000, 100_000, 1_000_000), 10_000, 100_000, 100_000, (1_000, 5_000, 500, 1_000), 20
    ),
    "full": Scale(
        "full", (0, 10_000, 100_000, 1_000_000, 2_000_000), 20_000, 100_000, 100_000, (2_000, 10_000, 1_000, 2_000), 40
    ),
}


@dataclass
class Bench:
    """One run: where its databases come from, how large it is, and what it found."""

    databases: Databases
    folder: Path
    scale: Scale
    kinds: Sequence[str] = ("postgresql", "sqlite")
    # Bytes of each payload of the long history; those of due work are always of 1 KB.
    history_payload: int = 1_000

    @contextmanager
    def database(self, kind: str) -> Iterator[Database]:
        """Give a migrated, empty database of *kind*, and remove it afterwards."""
        made = self.databases.make(kind)
        try:
            yield made
        finally:
            self.databases.drop(made)


def judging() -> Judge:
    """Return a judge that may take an ended lease for a death at once."""
    return Judge(connected_for_s=lambda: 1e9)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that *work* took, by the clock and on the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def server_cpu_s(database: Database) -> float:
    """Return the processor time that the server's processes of this database have used so far; 0 on SQLite.

    Of connections that are open: ask before they are closed. Read from the system, so for a server on this machine.
    """
    if database.kind == "sqlite":
        return 0.0
    conn = database.driver()
    pids = conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    ).fetchall()
    conn.close()
    # Nanoseconds on a processor, of each.
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for (pid,) in pids) / 1e9


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def child(*arguments: str, **options: Any) -> dict[str, Any]:
    """Run ``python -m tests.bench.worker`` in a process of its own and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.worker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        **options,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments[:1])} failed: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def peak_mb() -> float:
    """Return the most memory that this process had."""
    # Of this program alone: what getrusage says begins with the parent's.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def moment() -> str:
    """Return when it is, and how busy the machine is."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f}"


def machine(databases: Databases | None) -> Result:
    """Return what a reader needs to know of the machine; no names of hosts or places."""
    facts: Result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_before": round(os.getloadavg()[0], 1),
        "fsync_us": _fsync_us(),
    }
    if databases is not None:
        facts["postgresql"] = databases.server.address.execute("SHOW server_version")[0][0].split()[0]
    return facts


def _fsync_us() -> float:
    import tempfile

    with tempfile.TemporaryFile() as file:
        times = []
        for _ in range(200):
            file.write(b"x" * 4096)
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return round(median(times) * 1e6, 1)
