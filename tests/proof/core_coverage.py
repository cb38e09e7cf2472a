"""Every branch of the core is reached by the core's own tests: `make core-coverage` fails below 100 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Run the core's tests under coverage; 1 where a statement or a branch was not reached."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
        coverage = [sys.executable, "-m", "coverage"]
        subprocess.run(
            [*coverage, "run", "--branch", "--source=reconciler/core", "-m", "pytest", "tests/core", "-q"],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run([*coverage, "json", "-q", "-o", str(folder / "report.json")], check=True, env=environment)
        found = json.loads((folder / "report.json").read_text())
    totals = found["totals"]
    for path, one in sorted(found["files"].items()):
        if one["missing_lines"] or one["missing_branches"]:
            print(f"{path}: lines {one['missing_lines']}, branches {one['missing_branches']}")
    print(
        f"{totals['covered_lines']} of {totals['num_statements']} statements,"
        f" {totals['covered_branches']} of {totals['num_branches']} branches"
    )
    return 1 if totals["missing_lines"] or totals["missing_branches"] else 0


if __name__ == "__main__":
    sys.exit(main())
