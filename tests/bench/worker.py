"""What is measured in a process of its own: a pass, its memory, a long tail (``python -m tests.bench.worker WHAT``)."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reconciler.core.model import DEFAULT_LIMITS
from reconciler.entrypoints.process import prepare_process
from reconciler.service.gather import gather
from reconciler.service.reconcile import reconcile_once
from reconciler.store.around import read_around
from reconciler.store.engine import make_engine, read
from reconciler.store.passes import lock_rows
from tests.bench.data import SUBMISSION
from tests.bench.measuring import judging, peak_mb


def resident_mb() -> float:
    """Return the memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)


def one_pass(url: str) -> dict[str, Any]:
    """Wait for a line, run one pass, and say when it began and ended by the machine's monotonic clock."""
    engine = make_engine(url)
    with read(engine) as conn:
        lock_rows(conn, [("none", "none")], lock=False)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, cpu = time.monotonic(), time.process_time()
    report = reconcile_once(engine, judge=judging())
    end, cpu = time.monotonic(), time.process_time() - cpu
    return {
        "begin": begin,
        "end": end,
        "cpu": cpu,
        "done": sum(report.settled.values()) + report.requeued,
        "conflicts": report.conflicts,
        "set_aside": report.set_aside,
    }


def storm(url: str) -> dict[str, Any]:
    """Run a pass and return the memory after each tenth of it."""
    engine = make_engine(url)
    seen: list[float] = []
    reconcile_once(engine, judge=judging(), progress=lambda report: seen.append(resident_mb()))
    step = max(1, len(seen) // 10)
    return {"resident_mb": seen[::step], "peak_mb": peak_mb(), "batches": len(seen)}


def inspect(url: str, prefix: str, count: str) -> dict[str, Any]:
    """Inspect the sessions of a prefix, one by one, and return seconds and rows for each, and the memory."""
    engine = make_engine(url)
    times, rows_read = [], []
    with read(engine) as conn:
        # Each several times: the first reading pays for what is made once.
        for number in [*range(int(count))] * 7:
            rows = lock_rows(conn, [(f"{prefix}-{number:07d}", SUBMISSION)], lock=False)
            around = read_around(conn, rows, lock=False)
            begin = time.perf_counter()
            (gathered,) = gather(conn, rows, around.around, DEFAULT_LIMITS)
            times.append(time.perf_counter() - begin)
            rows_read.append(gathered.rows_read)
            if gathered.error is not None:
                raise SystemExit(gathered.error)
    return {"seconds": times, "rows": max(rows_read), "peak_mb": peak_mb()}


if __name__ == "__main__":
    prepare_process()
    whats: dict[str, Callable[..., dict[str, Any]]] = {"pass": one_pass, "storm": storm, "inspect": inspect}
    print(json.dumps(whats[sys.argv[1]](*sys.argv[2:])))
