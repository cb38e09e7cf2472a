"""``python -m tests.chaos [--fast] [--cells 1,4] [--database postgresql|sqlite|both] [--control] [--rate N]``

Exit code 0 where every cell passes; with ``--control``, where every cell with its fault in it fails by the line that
must find it. ``--fast`` divides durations, leases, beats and waits by ten.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.chaos.cells import CELLS
from tests.chaos.run import Cell, Outcome, Plan


def main() -> int:
    """Run the cells and print their verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="all times divided by ten")
    parser.add_argument("--cells", default="", help="numbers, separated by commas (default: all)")
    parser.add_argument("--database", choices=["postgresql", "sqlite", "both"], default="both")
    parser.add_argument("--control", action="store_true", help="put each cell's fault in: it must be found")
    parser.add_argument("--rate", type=float, help="submissions offered in a second, instead of a calibration")
    parser.add_argument("--report", type=Path, help="append the results to this file, as JSON lines")
    given = parser.parse_args()
    numbers = {int(part) for part in given.cells.split(",") if part}
    plans = [plan for plan in CELLS if not numbers or plan.number in numbers]
    databases = ["postgresql", "sqlite"] if given.database == "both" else [given.database]
    rows: list[tuple[Outcome, bool]] = []
    for database in databases:
        rate = given.rate
        for plan in plans:
            mutant = plan.control[0] if given.control else None
            outcome = _run(plan, database, scale=0.1 if given.fast else 1.0, mutant=mutant, rate=rate)
            # One calibration for a database's cells: all are offered the same.
            if rate is None:
                rate = outcome.rate
            good = _found(outcome) if given.control else outcome.passed
            rows.append((outcome, good))
            _show(outcome, good, control=given.control)
            if given.report is not None:
                with given.report.open("a") as stream:
                    stream.write(json.dumps(_as_json(outcome, good, control=given.control)) + "\n")
    passed = sum(good for _, good in rows)
    print(f"\n{passed} of {len(rows)} {'controls found' if given.control else 'cells passed'}")
    return 0 if passed == len(rows) else 1


def _run(plan: Plan, database: str, *, scale: float, mutant: str | None, rate: float | None) -> Outcome:
    started = time.monotonic()
    print(f"\ncell {plan.number} {plan.name} on {database}{f' with {mutant}' if mutant else ''}", flush=True)
    cell = Cell(plan, database, scale=scale, mutant=mutant)
    try:
        return cell.run(rate, lambda text: print(f"  {text}", flush=True))
    finally:
        cell.close()
        print(f"  {time.monotonic() - started:.0f} s", flush=True)


def _found(outcome: Outcome) -> bool:
    """Return whether the line that must find the fault did: the stress took place, and that line does not hold."""
    by_name = {line.name: line for line in outcome.lines}
    line = by_name.get(outcome.plan.control[1])
    return line is not None and not line.good and by_name["stress took place"].good


def _show(outcome: Outcome, good: bool, *, control: bool) -> None:
    for line in outcome.lines:
        print(f"  {'ok  ' if line.good else 'FAIL'} {line.name}: {line.found}")
    if outcome.notes:
        print(f"  note {outcome.notes}")
    word = ("found" if good else "NOT FOUND") if control else ("passed" if good else "FAILED")
    print(f"  {word}", flush=True)


def _as_json(outcome: Outcome, good: bool, *, control: bool) -> dict[str, object]:
    return {
        "cell": outcome.plan.number,
        "name": outcome.plan.name,
        "database": outcome.database,
        "control": outcome.plan.control[0] if control else None,
        "passed": good,
        "offered_per_s": round(outcome.rate, 1),
        "capacity_per_s": round(outcome.capacity, 1),
        "lines": [{"name": line.name, "good": line.good, "found": line.found} for line in outcome.lines],
        "notes": outcome.notes,
    }


if __name__ == "__main__":
    sys.exit(main())
