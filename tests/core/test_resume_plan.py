"""The resume plan: its mode by the table, what it closes, and its stored form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model import (
    STATE_OF_DETAIL,
    CallDispatch,
    Detail,
    Inspection,
    OpenCall,
    SubmissionInspection,
    TurnEvidence,
)
from reconciler.core.states import ResumeMode
from reconciler.core.subturn import (
    MARKER_TEXT_NOT_STARTED,
    MARKER_TEXT_UNKNOWN,
    ResumePlan,
    SubTurnOutcome,
    marker_text,
    plan_resume,
    plan_sub_turn_loop,
    wants_sub_turn,
)
from reconciler.core.terms import tool_marker_entry_id
from reconciler.errors import InvalidInput

LONG = "the checkpoint of project/demo was lost while the queue drained"
FIRST = OpenCall("m1", 0, "call", CallDispatch.NOT_STARTED)
SECOND = OpenCall("m2", 0, "call", CallDispatch.STARTED)
THIRD = OpenCall("m2", 1, "other", CallDispatch.UNKNOWN)
OPEN = TurnEvidence(open_calls=(FIRST, SECOND, THIRD))
PARTIAL = TurnEvidence(last_response_entry_id="m9", last_response_has_text=True)


def inspected(detail: Detail) -> Inspection:
    return Inspection(STATE_OF_DETAIL[detail], detail)


MODES = {
    Detail.INPUT_MISSING: ResumeMode.FRESH,
    Detail.INPUT_ONLY: ResumeMode.REDISPATCH,
    Detail.TOOL_CALLS_UNRESOLVED: ResumeMode.REPAIR_TOOLS,
    Detail.TOOL_BATCH_PARTIAL: ResumeMode.REPAIR_TOOLS,
    Detail.RESPONSE_ABORTED: ResumeMode.CONTINUE_PARTIAL,
    Detail.PROVIDER_ERROR: ResumeMode.CONTINUE_PARTIAL,
    Detail.ORPHAN_RESULT: ResumeMode.CONTINUE,
    Detail.TOOL_RESULTS_READY: ResumeMode.CONTINUE,
    Detail.RESPONSE_CUT: ResumeMode.CONTINUE,
}


@pytest.mark.parametrize("detail", list(Detail))
def test_the_mode_follows_from_the_detail_and_without_a_mode_there_is_no_plan(detail: Detail) -> None:
    if detail in MODES:
        assert MODES[detail] is plan_resume(inspected(detail), PARTIAL).mode
    else:
        with pytest.raises(InvalidInput, match=detail.value):
            plan_resume(inspected(detail), PARTIAL)


def test_every_continuable_detail_has_a_mode() -> None:
    continuable = {detail for detail, state in STATE_OF_DETAIL.items() if state is SubmissionInspection.CONTINUABLE}
    assert continuable <= set(MODES)


def test_an_input_alone_left_by_a_clean_release_is_sent_fresh() -> None:
    assert ResumeMode.FRESH is plan_resume(inspected(Detail.INPUT_ONLY), TurnEvidence(), clean_release=True).mode


@pytest.mark.parametrize("detail", [Detail.RESPONSE_ABORTED, Detail.PROVIDER_ERROR])
def test_without_text_there_is_nothing_partial_to_go_on_from(detail: Detail) -> None:
    plan = plan_resume(inspected(detail), TurnEvidence(last_response_entry_id="m9"))
    assert ResumePlan(ResumeMode.CONTINUE) == plan


def test_a_partial_answer_is_named_only_where_it_is_continued() -> None:
    assert "m9" == plan_resume(inspected(Detail.PROVIDER_ERROR), PARTIAL).partial_entry_id
    assert None is plan_resume(inspected(Detail.RESPONSE_CUT), PARTIAL).partial_entry_id


def test_the_policys_mode_is_kept() -> None:
    plan = plan_resume(inspected(Detail.INPUT_ONLY), TurnEvidence(), mode=ResumeMode.FRESH)
    assert ResumeMode.FRESH is plan.mode


# --- calls ---------------------------------------------------------------------------------------------------------


def test_every_open_call_is_closed_in_call_order() -> None:
    assert OPEN.open_calls == plan_resume(inspected(Detail.TOOL_CALLS_UNRESOLVED), OPEN).calls_to_close


def test_an_approved_call_stays_open_and_means_the_latest_of_its_id() -> None:
    plan = plan_resume(inspected(Detail.TOOL_BATCH_PARTIAL), OPEN, approved_calls=["call"])
    assert (ResumeMode.APPROVED, (FIRST, THIRD)) == (plan.mode, plan.calls_to_close)


def test_approved_calls_that_were_answered_meanwhile_decide_nothing() -> None:
    plan = plan_resume(inspected(Detail.TOOL_RESULTS_READY), TurnEvidence(), approved_calls=["call"])
    assert ResumePlan(ResumeMode.CONTINUE) == plan


def test_in_any_mode_but_approved_the_approved_calls_are_closed_too() -> None:
    plan = plan_resume(
        inspected(Detail.TOOL_CALLS_UNRESOLVED), OPEN, mode=ResumeMode.REPAIR_TOOLS, approved_calls=["call", "other"]
    )
    assert OPEN.open_calls == plan.calls_to_close


def test_a_marker_says_what_is_known_of_the_call() -> None:
    assert "never started: call it again if it is still needed" == MARKER_TEXT_NOT_STARTED
    assert (
        "outcome unknown: it may have happened or may still be running; check before doing it again"
        == MARKER_TEXT_UNKNOWN
    )
    assert [MARKER_TEXT_UNKNOWN, MARKER_TEXT_NOT_STARTED, MARKER_TEXT_UNKNOWN] == [
        marker_text(dispatch) for dispatch in (CallDispatch.STARTED, CallDispatch.NOT_STARTED, CallDispatch.UNKNOWN)
    ]


def test_a_markers_id_names_the_calls_entry_and_place() -> None:
    assert "tool-marker:3:a:1:2" == tool_marker_entry_id("a:1", 2)


@given(st.tuples(st.text(), st.integers(0, 99)), st.tuples(st.text(), st.integers(0, 99)))
def test_marker_ids_of_two_calls_never_meet(one: tuple[str, int], other: tuple[str, int]) -> None:
    assert (one == other) == (tool_marker_entry_id(*one) == tool_marker_entry_id(*other))


# --- the sub-turn --------------------------------------------------------------------------------------------------


def test_a_sub_turn_is_planned_from_an_unfinished_text_in_every_mode() -> None:
    for detail in MODES:
        plan = plan_resume(
            inspected(detail),
            PARTIAL,
            partial_text=LONG,
            input_text="what of the queue",
            entity_hints=["project/demo"],
            fact_count=2,
            sub_turn_budget=1,
        )
        assert plan.sub_turn == plan_sub_turn_loop(
            phase="mid-turn",
            partial_response=LONG,
            latest_message="what of the queue",
            original_entity_hints=["project/demo"],
            initial_fact_count=2,
            budget=1,
        )


def test_a_spent_sub_turn_budget_buys_nothing() -> None:
    plan = plan_resume(inspected(Detail.RESPONSE_ABORTED), PARTIAL, partial_text=LONG, sub_turn_budget=0)
    assert plan.sub_turn is not None
    assert SubTurnOutcome.BUDGET_EXHAUSTED is plan.sub_turn.outcome


def test_no_sub_turn_without_text_or_after_a_finished_response() -> None:
    finished = TurnEvidence(last_response_has_text=True, last_response_finished=True)
    for evidence in (TurnEvidence(), finished):
        assert not wants_sub_turn(evidence)
        assert None is plan_resume(inspected(Detail.TOOL_RESULTS_READY), evidence, partial_text=LONG).sub_turn


# --- the stored form -----------------------------------------------------------------------------------------------

calls = st.builds(OpenCall, st.text(), st.integers(0, 2**60), st.text(), st.sampled_from(CallDispatch))
sub_turns = st.builds(
    lambda text, hints, budget, facts: plan_sub_turn_loop(
        phase="mid-turn", partial_response=text, original_entity_hints=hints, budget=budget
    ).with_added_facts(facts),
    st.text() | st.just(LONG),
    st.lists(st.text(), max_size=2),
    st.none() | st.integers(0, 2**70),
    st.integers(0, 5),
)
plans = st.builds(
    ResumePlan,
    st.sampled_from(ResumeMode),
    st.lists(calls, max_size=3).map(tuple),
    st.none() | st.text(),
    st.none() | sub_turns,
)


@given(plans)
def test_a_plan_comes_back_as_it_was_and_its_bytes_are_canonical(plan: ResumePlan) -> None:
    stored = plan.to_json()
    assert plan == ResumePlan.from_json(stored)
    assert stored.isascii()
    assert stored == json.dumps(json.loads(stored), sort_keys=True, separators=(",", ":"))
    assert stored == ResumePlan.from_json(stored).to_json()


def test_the_stored_form_is_pinned() -> None:
    plan = plan_resume(inspected(Detail.RESPONSE_ABORTED), TurnEvidence((THIRD,), "m9", True), partial_text=LONG)
    assert (
        '{"calls_to_close":[{"call_id":"other","dispatch":"unknown","entry_id":"m2","position":1}],'
        '"mode":"continue_partial","partial_entry_id":"m9","sub_turn":{"added_fact_count":0,"attempted":true,'
        '"budget_max":1,"initial_fact_count":0,"note":"The partial response adds 5 tokens and 1 hints.",'
        '"outcome":"attempted_empty","partial_response_length":63,"proposed_hints":["project/demo"],'
        '"reason":"mid_turn_partial_response_has_novel_signal",'
        '"rescore_tokens":["checkpoint","project","demo","lost","queue"]}}'
    ) == plan.to_json()


def test_fields_of_a_newer_program_are_ignored() -> None:
    data = json.loads(ResumePlan(ResumeMode.FRESH).to_json()) | {"later": 1}
    assert ResumePlan(ResumeMode.FRESH) == ResumePlan.from_json(json.dumps(data))


STORED = plan_resume(
    inspected(Detail.RESPONSE_ABORTED), TurnEvidence((THIRD,), "m9", True), partial_text=LONG
).to_json()


def spoilt(path: str, value: Any) -> str:
    data = json.loads(STORED)
    *parents, name = path.split(".")
    at: Any = data
    for parent in parents:
        at = at[int(parent) if parent.isdigit() else parent]
    if value is ...:
        del at[name]
    else:
        at[int(name) if name.isdigit() else name] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        spoilt("mode", "unheard_of"),
        spoilt("mode", 7),
        spoilt("mode", ...),
        spoilt("calls_to_close", {}),
        spoilt("calls_to_close.0", 7),
        spoilt("calls_to_close.0.position", -1),
        spoilt("calls_to_close.0.position", True),
        spoilt("calls_to_close.0.dispatch", "perhaps"),
        spoilt("partial_entry_id", 7),
        spoilt("sub_turn", []),
        spoilt("sub_turn.outcome", "unheard_of"),
        spoilt("sub_turn.rescore_tokens", [7]),
        spoilt("sub_turn.note", None),
    ],
)
def test_a_stored_plan_that_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="resume plan"):
        ResumePlan.from_json(text)
