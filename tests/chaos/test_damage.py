"""Broken session files, the part that fits into every test run (more: ``make damage``)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import damage

CASES = 60


def test_no_damage_crashes_loops_or_queues_again_what_was_answered(tmp_path: Path) -> None:
    totals = damage.run(damage.corpus_files(), cases=CASES, seed=3, folder=tmp_path)
    assert [] == totals.faults
    assert CASES == totals.cases
    # Not everything was refused, and some of it was damaged.
    assert totals.imported > CASES / 2
    assert totals.states["integrity_hold"] > 0


@pytest.mark.parametrize("name", damage.DAMAGES)
def test_each_damage_changes_files(name: str) -> None:
    files = [path.read_bytes().split(b"\n") for path in damage.corpus_files()[:8]]
    changed = sum(
        damage.DAMAGES[name]([line for line in lines if line], random.Random(seed), files)
        != [line for line in lines if line]
        for seed in range(5)
        for lines in files
    )
    assert changed >= 5


def test_a_pass_that_queues_again_what_was_answered_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control: the gate for finished work is gone.
    from reconciler.core import policy

    monkeypatch.setattr(policy, "GATES", tuple(gate for gate in policy.GATES if gate.__name__ != "_gate_3"))
    totals = damage.run(damage.corpus_files(), cases=CASES, seed=3, folder=tmp_path)
    assert any("is queued again" in fault for fault in totals.faults)
