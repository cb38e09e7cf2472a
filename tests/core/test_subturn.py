"""The sub-turn planner: the vectors, each condition, and what holds on every text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core import subturn
from reconciler.core.subturn import (
    STOP_WORDS,
    SUB_TURN_LOOP_DEFAULT_BUDGET,
    SUB_TURN_LOOP_MAX_PROPOSED_HINTS,
    SUB_TURN_LOOP_MAX_RESCORE_TOKENS,
    SUB_TURN_LOOP_MIN_PARTIAL_LENGTH,
    SUB_TURN_LOOP_MIN_TOKEN_LENGTH,
    SubTurnOutcome,
    SubTurnReason,
    plan_sub_turn_loop,
)
from reconciler.errors import InvalidInput

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "sub_turn_loop.json"
LONG = "the checkpoint of project/demo was lost while the queue drained"


def cases() -> dict[str, Any]:
    if not CASES.exists():
        pytest.skip(f"the shared cases are not there: {CASES.name}")
    found: dict[str, Any] = json.loads(CASES.read_text(encoding="utf-8"))
    return found


def test_every_vector_gives_its_plan() -> None:
    for number, vector in enumerate(cases()["vectors"]):
        plan = plan_sub_turn_loop(**vector["input"])
        found = {name: getattr(plan, name) for name in vector["expect"]}
        assert (number, vector["expect"]) == (number, json.loads(json.dumps(found)))


def test_the_stop_words_are_those_of_the_vectors() -> None:
    assert set(cases()["stop_words"]) == STOP_WORDS


def test_the_constants_are_the_contracts() -> None:
    assert (1, 40, 5, 3, 4) == (
        SUB_TURN_LOOP_DEFAULT_BUDGET,
        SUB_TURN_LOOP_MIN_PARTIAL_LENGTH,
        SUB_TURN_LOOP_MAX_RESCORE_TOKENS,
        SUB_TURN_LOOP_MAX_PROPOSED_HINTS,
        SUB_TURN_LOOP_MIN_TOKEN_LENGTH,
    )


@pytest.mark.parametrize(
    ("outcome", "reason", "given_values"),
    [
        ("declined_post_response", "post_response_closeout", {"phase": "post-response", "budget": 0}),
        ("declined_phase", "phase_not_mid_turn", {"budget": 0}),
        ("declined_phase", "phase_not_mid_turn", {"phase": "MID-TURN"}),
        ("declined_no_partial", "no_partial_response", {"phase": "mid-turn", "budget": 0}),
        ("declined_no_partial", "no_partial_response", {"phase": "mid-turn", "partial_response": " \n\u3000"}),
        (
            "declined_too_short",
            "partial_response_below_min_length",
            {"phase": "mid-turn", "partial_response": " " * 9 + "a" * 39, "budget": 0},
        ),
        ("budget_exhausted", "budget_zero", {"phase": "mid-turn", "partial_response": "a" * 40, "budget": 0.99}),
        (
            "declined_no_new_tokens",
            "all_partial_tokens_covered_by_baseline",
            {"phase": "mid-turn", "partial_response": "\u65e5\u672c\u8a9e the and a b c " * 5},
        ),
        (
            "attempted_empty",
            "mid_turn_partial_response_has_novel_signal",
            {"phase": "mid-turn", "partial_response": LONG},
        ),
    ],
)
def test_the_first_condition_that_holds_decides(outcome: str, reason: str, given_values: dict[str, Any]) -> None:
    plan = plan_sub_turn_loop(**given_values)
    assert (outcome, reason) == (plan.outcome, plan.reason)
    assert plan.attempted == (outcome == "attempted_empty")


def test_a_hint_alone_is_signal_enough() -> None:
    plan = plan_sub_turn_loop(
        phase="mid-turn", partial_response="ab/cd " + "the " * 12, latest_message="nothing of the kind"
    )
    assert ("attempted_empty", (), ("ab/cd",)) == (plan.outcome, plan.rescore_tokens, plan.proposed_hints)


def test_hints_are_scanned_from_the_left_and_a_third_part_is_dropped() -> None:
    text = "1Ab-2/c_3/dd/ee/ff, x/yy zz/q Kk/Ll/m 9/aa/bb! " + "the " * 9
    assert ("ab-2/c_3", "ee/ff", "kk/ll") == plan_sub_turn_loop(phase="mid-turn", partial_response=text).proposed_hints


def test_given_hints_cover_their_first_two_parts_whatever_their_case_and_margin() -> None:
    plan = plan_sub_turn_loop(
        phase="mid-turn",
        partial_response=LONG + " team/ops",
        original_entity_hints=[" Project/Demo/notes "],
        latest_message="Checkpoint lost queue",
    )
    assert ("team/ops",) == plan.proposed_hints
    assert ("drained", "team") == plan.rescore_tokens


def test_facts_that_came_turn_an_attempt_into_a_success() -> None:
    plan = plan_sub_turn_loop(phase="mid-turn", partial_response=LONG, initial_fact_count=2)
    assert (SubTurnOutcome.ATTEMPTED_ADDED, 3, 2) == (
        plan.with_added_facts(3).outcome,
        plan.with_added_facts(3).added_fact_count,
        plan.with_added_facts(3).initial_fact_count,
    )
    assert plan == plan.with_added_facts(3).with_added_facts(0)
    assert SubTurnReason.MID_TURN_PARTIAL_RESPONSE_HAS_NOVEL_SIGNAL is plan.with_added_facts(3).reason


def test_a_plan_that_was_not_attempted_gains_no_facts() -> None:
    plan = plan_sub_turn_loop()
    assert plan is plan.with_added_facts(3)


@pytest.mark.parametrize("count", [-1, 1.0, True, None])
def test_a_fact_count_that_is_no_whole_number_is_refused(count: Any) -> None:
    with pytest.raises(InvalidInput):
        plan_sub_turn_loop().with_added_facts(count)
    with pytest.raises(InvalidInput):
        plan_sub_turn_loop(initial_fact_count=count)


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), float("-inf"), True, "1", 10**400])
def test_a_budget_that_is_no_finite_number_is_refused_in_every_phase(budget: Any) -> None:
    with pytest.raises(InvalidInput):
        plan_sub_turn_loop(budget=budget)


@pytest.mark.parametrize(("budget", "most"), [(None, 1), (-0.5, 0), (1.999, 1), (2**60 + 1, 2**60 + 1), (-7, 0)])
def test_the_budget_is_rounded_down_and_never_below_zero(budget: float | None, most: int) -> None:
    assert most == plan_sub_turn_loop(budget=budget).budget_max


@pytest.mark.parametrize(
    "given_values",
    [
        {"partial_response": b"bytes"},
        {"latest_message": 7},
        {"original_entity_hints": "project/demo"},
        {"original_entity_hints": 7},
        {"original_entity_hints": [7]},
    ],
)
def test_values_of_another_type_are_refused(given_values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        plan_sub_turn_loop(**given_values)


texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from(["ab", "a/b", "/", "x1/y2", "/zz/9q", "-", "naïve", "\ud800", "ÅK", " ", "because"])).map(
        "".join
    ),
)


@given(
    st.sampled_from([None, "mid-turn", "post-response", "", "other"]),
    st.none() | texts,
    st.none() | texts,
    st.lists(texts, max_size=4),
    st.integers(0, 9),
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_the_planner_is_total_and_stays_within_its_caps(
    phase: str | None, partial: str | None, latest: str | None, hints: list[str], facts: int, budget: float | None
) -> None:
    plan = plan_sub_turn_loop(
        phase=phase,
        partial_response=partial,
        latest_message=latest,
        original_entity_hints=hints,
        initial_fact_count=facts,
        budget=budget,
    )
    assert len(plan.rescore_tokens) <= SUB_TURN_LOOP_MAX_RESCORE_TOKENS
    assert len(plan.proposed_hints) <= SUB_TURN_LOOP_MAX_PROPOSED_HINTS
    assert all(re.fullmatch(r"[a-z0-9_-]{4,}", token) for token in plan.rescore_tokens)
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]+/[a-z][a-z0-9_-]+", hint) for hint in plan.proposed_hints)
    assert not STOP_WORDS & set(plan.rescore_tokens)
    assert len(set(plan.rescore_tokens)) == len(plan.rescore_tokens)
    assert not {hint.strip().lower() for hint in hints} & set(plan.proposed_hints)
    assert plan.attempted == bool(plan.rescore_tokens or plan.proposed_hints)
    assert plan.budget_max >= 0
    assert (facts, 0) == (plan.initial_fact_count, plan.added_fact_count)
    assert len((partial or "").strip()) == plan.partial_response_length


@given(st.text(alphabet="aB1_-/ é", max_size=60))
def test_the_linear_hint_pattern_finds_what_the_plain_one_finds(text: str) -> None:
    part = "[A-Za-z][A-Za-z0-9_-]+"
    plain = [match[1] for match in re.finditer(f"({part}/{part})(?:/{part})?", text)]
    assert plain == [f"{match[1]}/{match[2]}" for match in subturn._HINT.finditer(text)]
