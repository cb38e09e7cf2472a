"""Several holders of one subject at once: barriers force the interleavings that matter."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.core.refine import EditBudget, GateAnswer, RefineEpoch, RefineVerdict
from reconciler.errors import EpochClosed, EpochOpen
from reconciler.service.refine import ClosedEpoch, RefineGate
from tests.support.checker import check

WRITERS = 6
Made = Callable[..., Engine]


def at_once(work: list[Callable[[], Any]]) -> list[Any]:
    """Run each of *work* in a thread of its own, released by one barrier; give results and exceptions in order."""
    barrier = threading.Barrier(len(work))
    results: list[Any] = [None] * len(work)

    def run(number: int) -> None:
        barrier.wait(30)
        try:
            results[number] = work[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


def each(gates: list[RefineGate], act: Callable[[RefineGate], Any]) -> list[Any]:
    """Have every gate do *act* at once."""

    def bound(gate: RefineGate) -> Callable[[], Any]:
        return lambda: act(gate)

    return at_once([bound(gate) for gate in gates])


@pytest.fixture
def gates(database_url: str, engine_factory: Made) -> list[RefineGate]:
    """One gate for each writer, each with connections of its own, which are up."""
    made = [RefineGate.over(engine_factory(database_url)) for _ in range(WRITERS)]
    for gate in made:
        gate.subjects()
    return made


def test_the_budget_holds_and_the_best_rises_strictly_whoever_comes_first(
    gates: list[RefineGate], database_url: str
) -> None:
    gates[0].open("s", baseline_score=0.0, budget=EditBudget(10, 0))

    def steps(writer: int) -> Callable[[], list[GateAnswer]]:
        return lambda: [
            gates[writer].gate("s", f"edit {writer} {number}", (writer * 5 + number * 7) % 31 / 31)
            for number in range(5)
        ]

    answers = [answer for result in at_once([steps(writer) for writer in range(WRITERS)]) for answer in result]
    history = gates[0].history("s")
    accepted = [step.candidate_score for step in history if step.verdict is RefineVerdict.ACCEPTED]
    assert sorted(set(accepted)) == accepted
    assert 10 == gates[0].status("s").used == len(history)
    assert list(range(1, 11)) == [step.used for step in history]
    assert 10 == sum(answer.verdict in (RefineVerdict.ACCEPTED, RefineVerdict.REJECTED) for answer in answers)
    assert [] == check(database_url)


def test_one_key_from_all_sides_is_one_step_with_one_answer(gates: list[RefineGate]) -> None:
    gates[0].open("s", baseline_score=0.5)
    for name in ("a", "b", "c"):
        used = gates[0].status("s").used

        def step(gate: RefineGate, name: str = name) -> GateAnswer:
            return gate.gate("s", name, 0.25, step_key=f"key {name}")

        answers = each(gates, step)
        assert [False] + [True] * (WRITERS - 1) == sorted(answer.repeated for answer in answers)
        assert {(RefineVerdict.REJECTED, used + 1)} == {(answer.verdict, answer.used) for answer in answers}


def test_one_bad_edit_from_all_sides_is_scored_once(gates: list[RefineGate]) -> None:
    gates[0].open("s", baseline_score=0.5, budget=EditBudget(9, 0))
    answers = each(gates, lambda gate: gate.gate("s", "bad", 0.25))
    assert ["rejected"] + ["skipped_rejected"] * (WRITERS - 1) == sorted(answer.verdict.value for answer in answers)
    assert 1 == gates[0].status("s").used


def test_of_many_who_open_one_does_and_the_others_are_told(gates: list[RefineGate], database_url: str) -> None:
    for number in range(4):
        results = each(gates, lambda gate: gate.open("s", baseline_score=0.5))
        opened = [result for result in results if isinstance(result, RefineEpoch)]
        assert [number + 1] == [epoch.epoch for epoch in opened]
        assert WRITERS - 1 == sum(isinstance(result, EpochOpen) for result in results)
        closed: list[ClosedEpoch] = each(gates, lambda gate: gate.close("s"))
        assert [False] + [True] * (WRITERS - 1) == sorted(result.already_closed for result in closed)
    assert [] == check(database_url)


def test_steps_against_closing_and_opening_land_in_an_open_epoch_or_are_refused(
    gates: list[RefineGate], database_url: str
) -> None:
    gates[0].open("s", baseline_score=0.0, budget=EditBudget(50, 0))

    def turnover() -> None:
        for _ in range(6):
            gates[0].close("s")
            gates[0].open("s", budget=EditBudget(50, 0))

    def steps(writer: int) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            answers: list[Any] = []
            for number in range(8):
                try:
                    answers.append(gates[writer].gate("s", f"{writer} {number}", number / 8))
                except EpochClosed as error:
                    answers.append(error)
            return answers

        return run

    results = at_once([turnover, *(steps(writer) for writer in range(1, WRITERS))])
    assert None is results[0]
    answered = [answer for result in results[1:] for answer in result if isinstance(answer, GateAnswer)]
    assert len(answered) == len(gates[0].history("s"))
    assert [] == check(database_url)


def test_forgiving_against_steps_loses_neither(gates: list[RefineGate]) -> None:
    gates[0].open("s", baseline_score=1.0, budget=EditBudget(1000, 0))

    def steps(writer: int) -> Callable[[], int]:
        return lambda: sum(
            gates[writer].gate("s", f"e{number % 3}", 0.5).verdict is RefineVerdict.REJECTED for number in range(10)
        )

    def forgiving() -> int:
        return sum(len(gates[0].forgive("s", ["e0", "e1", "e2"]).edit_ids) for _ in range(10))

    forgiven, *rejected = at_once([forgiving, *(steps(writer) for writer in range(1, WRITERS))])
    edits = gates[0].rejected("s", with_forgiven=True)
    assert sum(rejected) == sum(edit.count for edit in edits) == gates[0].status("s").used
    left = [edit for edit in edits if edit.forgiven_at is None]
    assert sum(rejected) - forgiven == len(left) == gates[0].status("s").rejected_count


PROCESS = """
import sys
from reconciler import RefineGate
with RefineGate(sys.argv[1]) as gate:
    print("up", flush=True)
    sys.stdin.readline()
    for number in range(25):
        gate.gate("s", f"edit {sys.argv[2]} {number}", (number * 13 % 29) / 29)
"""


@pytest.mark.slow
def test_processes_share_one_budget(database_url: str, engine: Engine) -> None:
    gate = RefineGate.over(engine)
    gate.open("s", baseline_score=0.0, budget=EditBudget(40, 0))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, database_url, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert "up\n" == child.stdout.readline()
    for child in children:
        child.communicate("go\n", timeout=60)
        assert 0 == child.returncode
    assert (40, 40) == (gate.status("s").used, len(gate.history("s")))
    assert [] == check(database_url)
