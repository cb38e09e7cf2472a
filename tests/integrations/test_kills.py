"""An agent of the real SDK is killed (SIGKILL, real processes) at its steps, resumed, and judged by its effects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.kill_runs import KillRuns
from tests.integrations.killing import Processes


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Give the forking process, which imports the SDK once."""
    found = Processes()
    yield found
    found.stop()


@pytest.fixture
def runs(database_url: str, tmp_path: Path, processes: Processes) -> Iterator[KillRuns]:
    """Give the driver; what it found is judged by the test."""
    found = KillRuns(database_url, tmp_path / "ledger.jsonl", processes)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_killed_at_steps_all_over_its_life_it_finishes_and_no_call_has_its_effect_twice(
    runs: KillRuns, streamed: bool
) -> None:
    points = len(runs.undisturbed(streamed=streamed))
    # Six of them here, other ones plain than streamed; `python -m tests.integrations.kill_runs --walk` takes each.
    step = points / 6
    for number in range(6):
        point = max(1, round((number + (0.75 if streamed else 0.25)) * step))
        session, work = runs.new_work()
        runs.life(work, session, kill_at=point, streamed=streamed)
        runs.finish(session, work, streamed=streamed)
    found = runs.compare()
    assert [] == found.faults
    # Points of a life vary by one or two: a late kill may find nobody.
    assert 5 <= found.kills <= 6
    assert {"completed": 7} == dict(found.outcomes)


@pytest.mark.slow
def test_killed_at_the_boundaries_of_its_tools_it_tells_the_model_what_is_not_known(runs: KillRuns) -> None:
    names = runs.undisturbed()
    boundaries = [at for at, name in enumerate(names, start=1) if name.startswith("tool")]
    assert len(boundaries) == 6
    for point in boundaries[:4]:
        session, work = runs.new_work()
        assert runs.life(work, session, kill_at=point).killed
        runs.finish(session, work)
    found = runs.compare()
    assert [] == found.faults
    # Both calls of the batch that was interrupted, at most: what had a result by then keeps it.
    assert 4 <= found.markers <= 8


@pytest.mark.slow
def test_killed_again_and_again_one_run_still_finishes(runs: KillRuns) -> None:
    session, work = runs.new_work(runs=2)
    for point in (20, 40, 60, 80):
        runs.life(work, session, kill_at=point)
    runs.finish(session, work)
    found = runs.compare()
    assert [] == found.faults
    assert {"completed": 2} == dict(found.outcomes)


def test_a_finished_run_is_answered_from_the_record_by_another_process(runs: KillRuns) -> None:
    session, work = runs.new_work()
    runs.finish(session, work)
    before = len(runs.undisturbed())
    again = runs.life(work, session)
    assert {name: f"all done: {prompt.split(': ', 1)[1]}" for name, prompt in work.items()} == again.answers
    assert not any(name.startswith(("model", "tool")) for name in again.points)
    assert len(again.points) < before
    assert [] == runs.compare().faults


def test_without_a_decision_nobody_runs_what_crashed(runs: KillRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    session, work = runs.new_work()
    monkeypatch.setattr(runs, "decide", lambda: None)
    assert runs.life(work, session, kill_at=60).killed
    started = time.monotonic()
    told = runs.life(work, session, wait_s=0.5)
    assert time.monotonic() - started < 30
    assert told.error is not None
    assert told.error.startswith("SessionBusy")
    assert not any(name.startswith(("model", "tool")) for name in told.points)
