"""The worked example: killed at any step and started again, it ends like the run that nobody disturbed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.refine import EditCandidate, run_refine_gate
from reconciler.service.refine import RefineGate
from tests.support.checker import check

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tune_skill.py"
PACKAGE = EXAMPLE.parents[1]


def start(url: str, pause_s: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--database", url, "--pause", str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PACKAGE,
        env={"PYTHONPATH": str(PACKAGE)},
    )


def run_to_the_end(url: str) -> tuple[list[str], Any]:
    child = start(url)
    out, _ = child.communicate(timeout=60)
    assert 0 == child.returncode
    *lines, result = out.splitlines()
    return lines, json.loads(result)


@pytest.mark.slow
def test_a_run_killed_half_way_ends_like_the_uninterrupted_one(
    database_factory: Callable[[], str], database_url: str
) -> None:
    lines, result = run_to_the_end(database_factory())
    assert 12 == len(lines)
    assert (1.0, 9, 5) == (result["best_score"], result["used"], len(result["rules"]))
    for kill_after in (1, 4, 5, 10):
        child = start(database_url, pause_s=0.05)
        assert child.stdout is not None
        for line in child.stdout:
            if line.split()[0] == str(kill_after):
                child.send_signal(signal.SIGKILL)
                break
        child.stdout.close()
        assert -signal.SIGKILL == child.wait(30)
    left, resumed = run_to_the_end(database_url)
    assert len(left) < 3
    assert result == resumed
    # A finished run gives its result again.
    assert ([], result) == run_to_the_end(database_url)
    assert [] == check(database_url)


def test_the_examples_record_is_what_the_pure_gate_says(sqlite_url: str) -> None:
    run_to_the_end(sqlite_url)
    with RefineGate(sqlite_url) as gate:
        epoch = gate.status("date finder")
        steps = gate.history("date finder")
        pure = run_refine_gate(
            epoch.baseline_score, [EditCandidate(step.edit_id, step.candidate_score) for step in steps], epoch.budget
        )
        assert pure == gate.outcome("date finder")
    # Every verdict occurs: the example shows each.
    assert {"accepted", "rejected", "skipped_rejected", "budget_exhausted"} == {step.verdict for step in steps}
