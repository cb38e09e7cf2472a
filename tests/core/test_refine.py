"""The pure gate: the vectors, the rules one by one, and what holds on every sequence."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.refine import (
    DEFAULT_EDIT_BUDGET,
    EditBudget,
    EditCandidate,
    GateStep,
    RefineOutcome,
    RefineStep,
    RefineVerdict,
    RejectedEditBuffer,
    accept_edit,
    check_drop,
    check_score,
    edits_remaining,
    gate_step,
    may_stop_early,
    run_refine_gate,
)
from reconciler.errors import InvalidInput

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "refine_gate.json"

finite = st.floats(allow_nan=False, allow_infinity=False)
scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), finite)
candidates = st.lists(st.builds(EditCandidate, st.sampled_from("abcdef"), scores), max_size=30)
budgets = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda pair: EditBudget(max(pair), min(pair)))
buffers = st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, sys.float_info.max)), max_size=4).map(
    RejectedEditBuffer
)


def vectors() -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"the shared cases are not there: {CASES.name}"))]
    found: list[Any] = json.loads(CASES.read_text(encoding="utf-8"))["vectors"]
    return found


@pytest.mark.parametrize("vector", vectors())
def test_each_vector_gives_its_outcome(vector: dict[str, Any]) -> None:
    outcome = run_refine_gate(
        vector["baseline_score"],
        [EditCandidate(**candidate) for candidate in vector["candidates"]],
        EditBudget(**vector["budget"]),
    )
    expect = vector["expect"]
    assert expect["best_score"] == outcome.best_score
    assert [RefineStep(**step) for step in expect["steps"]] == list(outcome.steps)
    assert list(expect["rejected"].items()) == list(outcome.rejected.items())


# --- budget --------------------------------------------------------------------------------------------------------


def test_the_default_budget_is_four_edits_with_a_floor_of_two() -> None:
    assert EditBudget(4, 2) == DEFAULT_EDIT_BUDGET
    assert [True, True, True, True, False] == [edits_remaining(used) for used in range(5)]
    assert [False, False, True, True] == [may_stop_early(used) for used in range(4)]


def test_a_budget_given_replaces_the_default() -> None:
    budget = EditBudget(max=1, floor=0)
    assert (True, False) == (edits_remaining(0, budget), edits_remaining(1, budget))
    assert may_stop_early(0, budget)


@pytest.mark.parametrize(
    ("most", "floor"), [(1, 2), (-1, -1), (4, -1), (4.0, 2), (4, 2.0), (True, 0), (4, True), ("4", 2)]
)
def test_a_budget_that_is_not_whole_or_not_in_order_is_refused(most: Any, floor: Any) -> None:
    with pytest.raises(InvalidInput):
        EditBudget(most, floor)


def test_a_budget_with_a_number_of_thousands_of_digits_is_refused_with_a_short_message() -> None:
    with pytest.raises(InvalidInput, match="an integer of 33220 bits"):
        EditBudget(max=0, floor=10**10000)


@pytest.mark.parametrize("used", [-1, 1.0, True, None])
def test_a_use_that_is_no_whole_number_is_refused(used: Any) -> None:
    with pytest.raises(InvalidInput):
        edits_remaining(used)
    with pytest.raises(InvalidInput):
        may_stop_early(used)


def test_something_else_than_a_budget_is_refused() -> None:
    with pytest.raises(InvalidInput):
        run_refine_gate(0.5, [], (4, 2))  # type: ignore[arg-type]


# --- scores --------------------------------------------------------------------------------------------------------


def test_only_a_strictly_better_score_is_accepted() -> None:
    assert (True, False, False) == (accept_edit(0.5, 0.75), accept_edit(0.5, 0.5), accept_edit(0.5, 0.25))


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, True, None, "0.5", 10**400, 1j, "x" * 200])
def test_a_score_that_is_no_finite_number_is_refused_everywhere(score: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: accept_edit(score, 0.5),
        lambda: accept_edit(0.5, score),
        lambda: EditCandidate("e", score),
        lambda: run_refine_gate(score, []),
        lambda: RejectedEditBuffer().record("e", score),
        lambda: gate_step(0.5, 0, score, known_rejected=False, budget=DEFAULT_EDIT_BUDGET),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert len(caught.value.message) < 200


def test_scores_of_other_number_types_are_taken_as_doubles() -> None:
    assert (0.25, 3.0, 0.0) == (check_score(Fraction(1, 4)), check_score(3), check_score(-0.0))
    assert "0.0" == repr(check_score(-0.0))


def test_a_negative_drop_is_refused() -> None:
    with pytest.raises(InvalidInput):
        check_drop(-0.5)
    assert 0.0 == check_drop(0)


def test_a_drop_beyond_the_largest_double_is_capped_there() -> None:
    largest = sys.float_info.max
    outcome = run_refine_gate(largest, [EditCandidate("e", -largest)])
    assert (("e", largest),) == outcome.rejected.items()


def test_a_bad_candidate_anywhere_is_refused_before_the_buffer_changes() -> None:
    buffer = RejectedEditBuffer([("known", 0.5)])
    with pytest.raises(InvalidInput):
        run_refine_gate(0.5, [EditCandidate("a", 0.1), ("b", 0.2)], rejected=buffer)  # type: ignore[list-item]
    assert (("known", 0.5),) == buffer.items()


def test_an_edit_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInput):
        EditCandidate(7, 0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        RejectedEditBuffer().record(None, 0.5)  # type: ignore[arg-type]


# --- the buffer ----------------------------------------------------------------------------------------------------


def test_the_buffer_keeps_the_worst_drop_and_the_order_of_first_rejection() -> None:
    buffer = RejectedEditBuffer()
    for edit_id, drop in (("a", 0.25), ("b", 0.0), ("a", 0.75), ("a", 0.5)):
        buffer.record(edit_id, drop)
    assert (("a", 0.75), ("b", 0.0)) == buffer.items()
    assert (2, 2) == (len(buffer), buffer.size)
    assert (True, True, False) == (buffer.is_rejected("a"), buffer.is_rejected("b"), buffer.is_rejected("c"))
    assert (0.75, 0.0, 0.0) == (buffer.drop_for("a"), buffer.drop_for("b"), buffer.drop_for("c"))
    assert "b" in buffer
    assert ["a", "b"] == list(buffer)
    assert "RejectedEditBuffer([('a', 0.75), ('b', 0.0)])" == repr(buffer)


def test_buffers_compare_by_content_and_copies_are_apart() -> None:
    buffer = RejectedEditBuffer([("a", 0.5)])
    copy = buffer.copy()
    assert copy == buffer
    copy.record("b", 0.1)
    assert copy != buffer
    assert buffer != {"a": 0.5}
    with pytest.raises(TypeError):
        hash(buffer)


def test_a_buffer_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInput):
        run_refine_gate(0.5, [], rejected={"a": 0.5})  # type: ignore[arg-type]


# --- steps ---------------------------------------------------------------------------------------------------------


def test_a_step_asks_budget_then_memory_then_score() -> None:
    budget = EditBudget(1, 0)

    def step(used: int, score: float, known: bool) -> GateStep:
        return gate_step(0.5, used, score, known_rejected=known, budget=budget)

    assert GateStep(RefineVerdict.BUDGET_EXHAUSTED, 0.5, 1) == step(1, 0.9, True)
    assert GateStep(RefineVerdict.SKIPPED_REJECTED, 0.5, 0) == step(0, 0.9, True)
    assert GateStep(RefineVerdict.ACCEPTED, 0.9, 1) == step(0, 0.9, False)
    assert GateStep(RefineVerdict.REJECTED, 0.5, 1, 0.25) == step(0, 0.25, False)


def test_an_accepted_edit_may_be_proposed_again_and_a_tie_then_rejects_it() -> None:
    outcome = run_refine_gate(0.5, [EditCandidate("a", 0.75), EditCandidate("a", 0.75), EditCandidate("a", 1.0)])
    assert (RefineStep("a", 0.75, True), RefineStep("a", 0.75, False)) == outcome.steps
    assert (0.75, (("a", 0.0),)) == (outcome.best_score, outcome.rejected.items())


@given(scores, candidates, budgets, buffers)
def test_on_every_sequence_the_budget_holds_and_the_best_only_rises(
    baseline: float, sequence: list[EditCandidate], budget: EditBudget, known: RejectedEditBuffer
) -> None:
    before = known.items()
    outcome = run_refine_gate(baseline, sequence, budget, rejected=known)
    assert len(outcome.steps) <= budget.max
    assert before == known.items()
    best = baseline
    for step in outcome.steps:
        assert step.accepted == (step.candidate_score > best)
        best = max(best, step.candidate_score)
    assert best == outcome.best_score
    # What was known bad was never scored, and nothing was forgotten.
    assert not {edit_id for edit_id, _ in before} & {step.edit_id for step in outcome.steps}
    assert all(outcome.rejected.drop_for(edit_id) >= drop for edit_id, drop in before)
    rejected = [step.edit_id for step in outcome.steps if not step.accepted]
    assert len(rejected) == len(set(rejected))
    assert {*rejected, *(edit_id for edit_id, _ in before)} == {edit_id for edit_id, _ in outcome.rejected.items()}


@given(scores, candidates, budgets, buffers, st.randoms(use_true_random=False))
def test_known_rejected_candidates_mixed_in_change_nothing(
    baseline: float, sequence: list[EditCandidate], budget: EditBudget, known: RejectedEditBuffer, random: Any
) -> None:
    plain = run_refine_gate(baseline, sequence, budget, rejected=known)
    mixed = list(sequence)
    for edit_id in known:
        mixed.insert(random.randint(0, len(mixed)), EditCandidate(edit_id, sys.float_info.max))
    assert plain == run_refine_gate(baseline, mixed, budget, rejected=known)


@given(scores, candidates, budgets, st.integers(0, 30))
def test_a_run_cut_in_two_ends_like_the_whole(
    baseline: float, sequence: list[EditCandidate], budget: EditBudget, cut: int
) -> None:
    whole = run_refine_gate(baseline, sequence, budget)
    first = run_refine_gate(baseline, sequence[:cut], budget)
    left = budget.max - len(first.steps)
    second = run_refine_gate(first.best_score, sequence[cut:], EditBudget(left, 0), rejected=first.rejected)
    assert whole == RefineOutcome(second.best_score, first.steps + second.steps, second.rejected)
