"""One front for all benchmarks: ``python -m tests.bench [--scale small|full] [--only NAME]``.

Makes what it needs (a PostgreSQL server of its own, files of SQLite, environments for the programs of others below
``.bench``), measures, and writes ``.bench/results.json``; with ``--page`` also the page and the plots in ``docs``.
``runner``, ``refine`` and ``daemon`` are measures of their own with more settings (`bench_runner`, `bench_refine`,
`bench_daemon`); here they run with their defaults, and only where they are asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reconciler.entrypoints.process import prepare_process
from tests.bench.databases import databases
from tests.bench.measures import MEASURES
from tests.bench.measuring import ROOT, SCALES, Bench, machine, moment
from tests.bench.report import write_page

RESULTS = ROOT / ".bench" / "results.json"
ELSEWHERE = {name: f"tests.bench.bench_{name}" for name in ("runner", "refine", "daemon")}


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description="Ratios of everything to its floor, in one run.")
    parser.add_argument("--scale", choices=sorted(SCALES), default="small")
    parser.add_argument("--only", action="append", choices=[*MEASURES, *ELSEWHERE], help="may be given several times")
    parser.add_argument("--kind", action="append", choices=("postgresql", "sqlite"))
    parser.add_argument(
        "--history-payload", type=int, default=1_000, metavar="BYTES", help="of each entry of the long history"
    )
    parser.add_argument("--page", action="store_true", help="write docs/performance.md and its plots from the results")
    parser.add_argument(
        "--keep", action="store_true", help="keep results of earlier runs that this one doesn't measure"
    )
    given = parser.parse_args()
    for name in given.only or ():
        if name in ELSEWHERE:
            subprocess.run([sys.executable, "-m", ELSEWHERE[name]], cwd=ROOT, check=True)
    # In the order in which they are named.
    chosen = list(MEASURES) if given.only is None else [name for name in given.only if name in MEASURES]
    if not chosen:
        return
    prepare_process()
    results = json.loads(RESULTS.read_text()) if given.keep and RESULTS.exists() else {"measures": {}}
    RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=RESULTS.parent) as folder, databases(Path(folder)) as made:
        kinds = tuple(given.kind or ("postgresql", "sqlite"))
        bench = Bench(made, Path(folder), SCALES[given.scale], kinds, given.history_payload)
        results |= {"machine": machine(made), "scale": given.scale, "history_payload": given.history_payload}
        for name in chosen:
            began = time.perf_counter()
            found = MEASURES[name](bench)
            results["measures"][name] = found
            results.setdefault("when", {})[name] = f"{given.scale}, {moment()}"
            RESULTS.write_text(json.dumps(results, indent=2))
            print(f"{name} ({time.perf_counter() - began:.0f} s): {json.dumps(found)}", flush=True)
    if given.page:
        write_page(results)


if __name__ == "__main__":
    main()
