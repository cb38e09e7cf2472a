"""The gates one by one, in their order: what each decides, and what it leaves to the next."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from reconciler.core.model import (
    END_CAPABILITY_MISSING,
    CallDispatch,
    Counters,
    Decision,
    Detail,
    Inspection,
    Limits,
    OpenCall,
    SubmissionFacts,
    SubmissionInspection,
    TurnEvidence,
)
from reconciler.core.policy import (
    BackoffKind,
    admission,
    backoff,
    backoff_of,
    counters_after,
    decide,
    event_of,
    fence_end,
)
from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Outcome,
    Reason,
    ResumeMode,
    SessionOrigin,
    SubmissionEvent,
    SubmissionStatus,
)
from tests.support.policy import NOW, at, attempt, row, running, seen

LIMITS = Limits(backoff_jitter=0.0)
QUEUED, WAITING = SubmissionStatus.QUEUED, SubmissionStatus.WAITING
MIRRORED = SessionOrigin.MIRRORED
WAIT, SETTLE, REQUEUE = DecisionAction.WAIT, DecisionAction.SETTLE, DecisionAction.REQUEUE
HOLD, ADVISE, ADOPT = DecisionAction.HOLD, DecisionAction.ADVISE, DecisionAction.ADOPT

FINISHED = seen(Detail.RESPONSE_FINISHED)
UNFINISHED = seen(Detail.TOOL_RESULTS_READY)
ABSENT = seen(Detail.INPUT_MISSING)
INPUT_ONLY = seen(Detail.INPUT_ONLY)
SETTLED_ENTRY = seen(Detail.SETTLED_ENTRY)
DAMAGED = seen(Detail.INTEGRITY_HOLD, integrity="cycle")
LEAF_MOVED = seen(Detail.LEAF_MOVED)
ERRED = TurnEvidence(error_entry_id="err")
REJECTED = TurnEvidence(error_entry_id="err", error_retryable=False)


def ended(end: AttemptEnd, **changes: Any) -> dict[str, Any]:
    """Return the facts of a queued row whose last attempt ended so."""
    last = attempt(end=end, **changes)
    spent = 0 if end in (AttemptEnd.RELEASED, AttemptEnd.PARKED) else 1
    return {
        "last_attempt": last,
        "last_begun_end": end if last.begun else None,
        "attempts_spent": spent,
        "attempts_begun": int(last.begun),
    }


LIVE = attempt(lease_expires_at=at(10))

# --- gates 0 to 2, and what they leave as the row's next instant ---------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "inspection", "action", "reason", "gate", "reconcile_at"),
    [
        # Gate 0.
        (row(decision_stands=True), UNFINISHED, WAIT, "decision_stands", 0, None),
        (row(decision_stands=True, deadline_at=at(5)), UNFINISHED, WAIT, "decision_stands", 0, at(5)),
        (row(decision_stands=True, deadline_at=NOW), UNFINISHED, SETTLE, "deadline_exceeded", 5, None),
        (row(decision_stands=True, abort_requested_at=NOW), UNFINISHED, SETTLE, "abort_requested", 4, None),
        (row(decision_stands=True, hold_released=True), UNFINISHED, REQUEUE, "resume", 10, None),
        (row(decision_stands=True, retried=True), UNFINISHED, REQUEUE, "resume", 10, None),
        (row(decision_stands=True), FINISHED, WAIT, "decision_stands", 0, None),
        (row(decision_stands=True, held_at=at(-9)), DAMAGED, WAIT, "decision_stands", 0, None),
        (row(decision_stands=True, origin=MIRRORED, deadline_at=NOW), UNFINISHED, WAIT, "decision_stands", 0, None),
        (row(SubmissionStatus.SETTLED), FINISHED, WAIT, "already_settled", 0, None),
        # Gate 1.
        (row(), SETTLED_ENTRY, ADOPT, "settlement_found", 1, None),
        (row(settlement_outcome=Outcome.ABORTED), UNFINISHED, ADOPT, "settlement_found", 1, None),
        (running(LIVE), SETTLED_ENTRY, ADOPT, "settlement_found", 1, None),
        (row(held_at=at(-9)), SETTLED_ENTRY, ADOPT, "settlement_found", 1, None),
        (row(attempts_spent=99, deadline_at=NOW), SETTLED_ENTRY, ADOPT, "settlement_found", 1, None),
        # Gate 2, running.
        (running(LIVE), FINISHED, WAIT, "lease_live", 2, at(10)),
        (running(LIVE, deadline_at=at(-59)), FINISHED, WAIT, "lease_live", 2, at(1)),
        (running(LIVE, deadline_at=at(-60)), UNFINISHED, SETTLE, "deadline_exceeded", 5, None),
        (running(LIVE, abort_requested_at=at(-59)), UNFINISHED, WAIT, "lease_live", 2, at(1)),
        (running(LIVE, abort_requested_at=at(-60)), UNFINISHED, SETTLE, "abort_requested", 4, None),
        (running(replace(LIVE, claimed_at=at(-7259))), UNFINISHED, WAIT, "lease_live", 2, at(1)),
        (running(replace(LIVE, claimed_at=at(-7260))), UNFINISHED, REQUEUE, "resume", 10, None),
        (
            running(replace(LIVE, claimed_at=at(-9999), last_progress_at=at(-5))),
            FINISHED,
            WAIT,
            "lease_live",
            2,
            at(10),
        ),
        (running(LIVE, owner_dead=True), UNFINISHED, REQUEUE, "resume", 10, None),
        (running(), UNFINISHED, REQUEUE, "resume", 10, None),
        (running(attempt(lease_expires_at=NOW)), UNFINISHED, REQUEUE, "resume", 10, None),
        (running(may_judge_lease=False), UNFINISHED, WAIT, "owner_unjudged", 2, at(10)),
        (running(attempt(beat_s=2.0), may_judge_lease=False), UNFINISHED, WAIT, "owner_unjudged", 2, at(4)),
        (running(may_judge_lease=False, owner_dead=True), UNFINISHED, REQUEUE, "resume", 10, None),
        (running(may_judge_lease=False, abort_requested_at=at(-60)), UNFINISHED, SETTLE, "abort_requested", 4, None),
        (row(SubmissionStatus.RUNNING), UNFINISHED, REQUEUE, "resume", 10, None),
        # Gate 2, waiting.
        (row(WAITING, parked_until=at(50)), FINISHED, WAIT, "parked", 2, at(50)),
        (row(WAITING, parked_until=at(50), deadline_at=at(20)), UNFINISHED, WAIT, "parked", 2, at(20)),
        (row(WAITING, parked_until=at(50), abort_requested_at=NOW), UNFINISHED, SETTLE, "abort_requested", 4, None),
        (row(WAITING, parked_until=at(50), deadline_at=NOW), UNFINISHED, SETTLE, "deadline_exceeded", 5, None),
        (row(WAITING, parked_until=NOW), UNFINISHED, SETTLE, "park_expired", 5, None),
        (row(WAITING, parked_until=NOW), FINISHED, SETTLE, "completed", 3, None),
        (row(WAITING, parked_until=NOW, unparked=True), UNFINISHED, REQUEUE, "resume", 10, None),
        (row(WAITING, parked_until=at(50), unparked=True), UNFINISHED, REQUEUE, "resume", 10, None),
        (row(WAITING), UNFINISHED, REQUEUE, "resume", 10, None),
        (row(WAITING, parked_until=NOW, held_at=at(-9)), UNFINISHED, WAIT, "held", 2, None),
        (row(WAITING, parked_until=at(50), held_at=at(-9), deadline_at=at(7)), UNFINISHED, WAIT, "held", 2, at(7)),
        (row(WAITING, parked_until=at(50), hold_released=True), UNFINISHED, WAIT, "parked", 2, at(50)),
        (row(WAITING, parked_until=at(50), held_at=at(-9), unparked=True), FINISHED, SETTLE, "completed", 3, None),
        # Gate 2, a source that may still write.
        (
            row(origin=MIRRORED, response_may_grow=True, source_quiet_at=at(30)),
            FINISHED,
            WAIT,
            "source_not_quiet",
            2,
            at(30),
        ),
        (row(origin=MIRRORED, response_may_grow=True, source_quiet_at=NOW), FINISHED, SETTLE, "completed", 3, None),
        (row(origin=MIRRORED, response_may_grow=True), FINISHED, SETTLE, "completed", 3, None),
        (row(origin=MIRRORED, source_quiet_at=at(30)), FINISHED, SETTLE, "completed", 3, None),
        (row(response_may_grow=True, source_quiet_at=at(30)), FINISHED, SETTLE, "completed", 3, None),
        (
            row(origin=MIRRORED, response_may_grow=True, source_quiet_at=at(99), abort_requested_at=at(-1)),
            UNFINISHED,
            WAIT,
            "source_not_quiet",
            2,
            at(59),
        ),
        (
            row(origin=MIRRORED, response_may_grow=True, source_quiet_at=at(99), abort_requested_at=at(-60)),
            UNFINISHED,
            SETTLE,
            "abort_requested",
            4,
            None,
        ),
    ],
)
def test_gates_0_to_2_let_pass_only_what_may_be_decided(
    facts: SubmissionFacts,
    inspection: Inspection,
    action: DecisionAction,
    reason: str,
    gate: int,
    reconcile_at: datetime | None,
) -> None:
    decision = decide(inspection, facts, NOW, LIMITS)
    assert (action, reason, gate) == (decision.action, decision.reason.value, decision.gate)
    assert reconcile_at == decision.reconcile_at


def test_a_wait_of_gates_0_to_2_writes_nothing() -> None:
    for facts in (row(decision_stands=True), running(LIVE), row(WAITING, parked_until=at(9))):
        assert not decide(UNFINISHED, facts, NOW, LIMITS).is_written


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(Outcome.FAILED, Outcome.FAILED), (Outcome.ABORTED, Outcome.ABORTED), (None, Outcome.COMPLETED)],
)
def test_an_adopted_outcome_is_the_entrys(outcome: Outcome | None, expected: Outcome) -> None:
    decision = decide(SETTLED_ENTRY, row(settlement_outcome=outcome), NOW, LIMITS)
    assert expected is decision.outcome
    assert decision.attempt_end is None


def test_adopting_ends_the_attempt_as_settled_though_its_lease_lives() -> None:
    assert decide(SETTLED_ENTRY, running(LIVE), NOW, LIMITS).attempt_end is AttemptEnd.SETTLED


# --- gates 3 to 6 --------------------------------------------------------------------------------------------------

COMPLETED_DETAILS = [
    detail
    for detail in Detail
    if seen(detail).state is SubmissionInspection.COMPLETED and detail is not Detail.SETTLED_ENTRY
]


@pytest.mark.parametrize("detail", COMPLETED_DETAILS)
@pytest.mark.parametrize(
    "facts",
    [
        row(),
        row(attempts_spent=99, crashes_in_row=99, provider_errors=99, redispatches=99),
        row(deadline_at=at(-9)),
        row(abort_requested_at=at(-9)),
        row(held_at=at(-9), held_reason="held_by_operator"),
        row(origin=MIRRORED),
        running(),
        row(**ended(AttemptEnd.FAILED, retryable=False)),
    ],
)
def test_finished_work_is_settled_completed_whatever_else_is_the_matter(detail: Detail, facts: SubmissionFacts) -> None:
    decision = decide(seen(detail), facts, NOW, LIMITS, evidence=REJECTED)
    assert (SETTLE, Outcome.COMPLETED, Reason.COMPLETED, 3) == (
        decision.action,
        decision.outcome,
        decision.reason,
        decision.gate,
    )


def test_a_person_who_stopped_the_turn_asked_for_no_more() -> None:
    for facts in (row(), row(origin=MIRRORED)):
        decision = decide(seen(Detail.RESPONSE_ABORTED, stopped_by="user"), facts, NOW, LIMITS)
        assert (SETTLE, Outcome.ABORTED, Reason.STOPPED_BY_USER) == (
            decision.action,
            decision.outcome,
            decision.reason,
        )


def test_an_operators_abort_settles_a_mirrored_session_too() -> None:
    decision = decide(UNFINISHED, row(origin=MIRRORED, abort_requested_at=NOW), NOW, LIMITS)
    assert (SETTLE, Outcome.ABORTED, Reason.ABORT_REQUESTED) == (decision.action, decision.outcome, decision.reason)


def test_damage_is_held_until_the_deadline() -> None:
    decision = decide(DAMAGED, row(deadline_at=at(9)), NOW, LIMITS)
    assert (HOLD, Reason.INTEGRITY_HOLD, 6, "cycle") == (
        decision.action,
        decision.reason,
        decision.gate,
        decision.detail,
    )
    assert decision.holds
    assert decision.reconcile_at == at(9)


def test_a_failed_inspection_is_held_and_its_stand_in_is_not_believed() -> None:
    for stand_in in (FINISHED, SETTLED_ENTRY, seen(Detail.RESPONSE_ABORTED, stopped_by="user")):
        decision = decide(stand_in, row(inspection_error="boom"), NOW, LIMITS)
        assert (HOLD, Reason.INSPECTION_ERROR, "boom") == (decision.action, decision.reason, decision.detail)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"abort_requested_at": NOW}, Reason.ABORT_REQUESTED),
        ({"deadline_at": NOW}, Reason.DEADLINE_EXCEEDED),
        ({"settlement_outcome": Outcome.FAILED}, Reason.SETTLEMENT_FOUND),
    ],
)
def test_a_row_that_cannot_be_inspected_can_still_end(changes: dict[str, Any], reason: Reason) -> None:
    assert reason is decide(FINISHED, row(inspection_error="boom", **changes), NOW, LIMITS).reason


def test_a_hold_lasts_until_it_is_released_whatever_the_record_says_now() -> None:
    decision = decide(UNFINISHED, row(held_at=at(-9), held_reason="write_failed", deadline_at=at(3)), NOW, LIMITS)
    assert (WAIT, Reason.HELD, 6, at(3)) == (decision.action, decision.reason, decision.gate, decision.reconcile_at)
    assert not decision.is_written


def test_a_released_hold_is_taken_again_where_the_damage_is_still_there() -> None:
    facts = row(hold_released=True, hold_released_reason="integrity_hold")
    assert decide(DAMAGED, facts, NOW, LIMITS).action is HOLD
    assert decide(UNFINISHED, facts, NOW, LIMITS).reason is Reason.RESUME


@pytest.mark.parametrize(
    ("changes", "action", "reason", "reconcile_at"),
    [
        ({"leaf_moved_at": at(-3599)}, WAIT, Reason.LEAF_MOVED_WAIT, at(1)),
        ({"leaf_moved_at": at(-3599), "deadline_at": at(0.5)}, WAIT, Reason.LEAF_MOVED_WAIT, at(0.5)),
        ({"leaf_moved_at": at(-3600)}, SETTLE, Reason.LEAF_MOVED, None),
        ({"leaf_moved_at": None}, HOLD, Reason.LEAF_MOVED, None),
    ],
)
def test_a_moved_leaf_is_waited_for_and_then_given_up(
    changes: dict[str, Any], action: DecisionAction, reason: Reason, reconcile_at: datetime | None
) -> None:
    # Spent attempts, crashes and errors: it never goes on to gate 7.
    facts = row(attempts_spent=99, crashes_in_row=99, **changes)
    decision = decide(LEAF_MOVED, facts, NOW, LIMITS)
    assert (action, reason, reconcile_at) == (decision.action, decision.reason, decision.reconcile_at)
    assert decision.outcome is (Outcome.ABORTED if action is SETTLE else None)


def test_waiting_for_a_moved_leaf_fences_off_a_dead_attempt_once() -> None:
    decision = decide(LEAF_MOVED, running(leaf_moved_at=at(-5)), NOW, LIMITS)
    assert decision.is_written
    assert (AttemptEnd.CRASHED, Counters(crashes_in_row=1)) == (decision.attempt_end, decision.counters)
    assert event_of(decision) is SubmissionEvent.FENCE
    later = decide(LEAF_MOVED, row(leaf_moved_at=at(-5), crashes_in_row=1, **ended(AttemptEnd.CRASHED)), NOW, LIMITS)
    assert not later.is_written
    assert event_of(later) is None


# --- gates 7 to 9 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempts_spent": 20, "attempts_begun": 3}, Reason.ATTEMPTS_EXHAUSTED),
        ({"attempts_spent": 20}, Reason.NEVER_BEGUN),
        ({"attempts_spent": 20, "last_attempt": attempt(end=AttemptEnd.CRASHED)}, Reason.ATTEMPTS_EXHAUSTED),
        ({"attempts_spent": 19}, Reason.RESUME),
        ({"attempts_spent": 20, "attempts_granted": 1}, Reason.RESUME),
        ({"attempts_spent": 21, "attempts_granted": 1}, Reason.NEVER_BEGUN),
    ],
)
def test_spent_attempts_fail_it(changes: dict[str, Any], reason: Reason) -> None:
    assert reason is decide(UNFINISHED, row(**changes), NOW, LIMITS).reason


def test_a_crash_loop_names_the_call_in_flight() -> None:
    call = OpenCall("msg", 0, "call-7", CallDispatch.STARTED)
    evidence = TurnEvidence(open_calls=(call,), call_in_flight=call)
    decision = decide(UNFINISHED, running(crashes_in_row=4), NOW, LIMITS, evidence=evidence)
    assert (SETTLE, Outcome.FAILED, Reason.CRASH_LOOP, 8) == (
        decision.action,
        decision.outcome,
        decision.reason,
        decision.gate,
    )
    assert decision.counters == Counters(crashes_in_row=5)
    assert decision.detail == 'call in flight: "call-7" (started)'
    assert decision.evidence == ("last", "input", "msg")
    assert decide(INPUT_ONLY, running(crashes_in_row=4), NOW, LIMITS).detail is None


@pytest.mark.parametrize("changes", [{"begun": False}, {"made_progress": True}])
def test_only_begun_attempts_without_progress_are_crashes(changes: dict[str, Any]) -> None:
    decision = decide(UNFINISHED, running(attempt(**changes), crashes_in_row=4), NOW, LIMITS)
    assert decision.reason is Reason.RESUME
    assert decision.counters == Counters(crashes_in_row=0 if "made_progress" in changes else 4)


@pytest.mark.parametrize(
    ("facts", "evidence", "reason"),
    [
        (row(**ended(AttemptEnd.FAILED, retryable=True), provider_errors=1), None, Reason.PROVIDER_RETRY),
        (row(**ended(AttemptEnd.FAILED, retryable=False), provider_errors=1), None, Reason.PROVIDER_REJECTED),
        (row(**ended(AttemptEnd.FAILED, retryable=True), provider_errors=1), REJECTED, Reason.PROVIDER_RETRY),
        (row(**ended(AttemptEnd.FAILED), provider_errors=1), REJECTED, Reason.PROVIDER_REJECTED),
        (row(**ended(AttemptEnd.FAILED), provider_errors=7), None, Reason.PROVIDER_RETRY),
        (row(**ended(AttemptEnd.FAILED), provider_errors=8), None, Reason.PROVIDER_ERRORS_EXHAUSTED),
        (running(provider_errors=6), ERRED, Reason.PROVIDER_RETRY),
        (running(provider_errors=7), ERRED, Reason.PROVIDER_ERRORS_EXHAUSTED),
        (running(), REJECTED, Reason.PROVIDER_REJECTED),
        (row(**ended(AttemptEnd.RELEASED)), ERRED, Reason.PROVIDER_RETRY),
        # Nobody's attempt wrote it: the error stood there when the session was taken over.
        (row(), REJECTED, Reason.REDISPATCH),
    ],
)
def test_a_providers_errors_have_a_budget_of_their_own(
    facts: SubmissionFacts, evidence: TurnEvidence | None, reason: Reason
) -> None:
    # A redispatch was spent: a provider's error must not need another.
    decision = decide(
        INPUT_ONLY, replace(facts, redispatches=int(reason is not Reason.REDISPATCH)), NOW, LIMITS, evidence=evidence
    )
    assert reason is decision.reason
    assert decision.gate == (11 if reason is Reason.REDISPATCH else 9)
    if reason is Reason.PROVIDER_RETRY:
        assert not decision.spends_redispatch
        assert decision.not_before is not None
        assert decision.not_before > NOW


def test_an_attempt_counts_one_provider_error_however_often_it_is_decided_upon() -> None:
    first = decide(INPUT_ONLY, running(), NOW, LIMITS, evidence=ERRED)
    assert (Counters(provider_errors=1), "a1") == (first.counters, first.provider_error_attempt_id)
    facts = row(**ended(AttemptEnd.CRASHED, provider_error_counted=True), provider_errors=1)
    again = decide(INPUT_ONLY, facts, NOW, LIMITS, evidence=ERRED)
    assert (Counters(provider_errors=1), None) == (again.counters, again.provider_error_attempt_id)
    assert again.reason is Reason.PROVIDER_RETRY
    given_back = decide(INPUT_ONLY, row(**ended(AttemptEnd.RELEASED)), NOW, LIMITS, evidence=ERRED)
    assert (Counters(provider_errors=1), "a1") == (given_back.counters, given_back.provider_error_attempt_id)
    failed = decide(INPUT_ONLY, row(**ended(AttemptEnd.FAILED), provider_errors=1), NOW, LIMITS, evidence=ERRED)
    assert (Counters(provider_errors=1), None) == (failed.counters, failed.provider_error_attempt_id)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempts_spent": 20, "crashes_in_row": 5, "provider_errors": 8}, Reason.ATTEMPTS_EXHAUSTED),
        ({"attempts_spent": 19, "crashes_in_row": 5, "provider_errors": 8}, Reason.CRASH_LOOP),
        ({"attempts_spent": 19, "crashes_in_row": 4, "provider_errors": 8}, Reason.PROVIDER_ERRORS_EXHAUSTED),
        ({"attempts_spent": 19, "crashes_in_row": 4, "provider_errors": 7}, Reason.PROVIDER_RETRY),
    ],
)
def test_the_budgets_are_asked_in_the_order_of_the_gates(changes: dict[str, Any], reason: Reason) -> None:
    facts = row(**(ended(AttemptEnd.FAILED) | changes))
    assert reason is decide(INPUT_ONLY, facts, NOW, LIMITS).reason


def test_whether_a_retry_helps_is_asked_of_the_runner_only_where_it_failed_the_attempt() -> None:
    crashed = row(**ended(AttemptEnd.CRASHED, retryable=True))
    assert decide(INPUT_ONLY, crashed, NOW, LIMITS, evidence=REJECTED).reason is Reason.PROVIDER_REJECTED


# --- gates 10 and 11 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inspection", "facts", "mode", "reason", "spends"),
    [
        (ABSENT, row(), ResumeMode.FRESH, Reason.FIRST_TRY, False),
        (ABSENT, running(attempt(begun=False)), ResumeMode.FRESH, Reason.FIRST_TRY, False),
        (UNFINISHED, row(), ResumeMode.CONTINUE, Reason.RESUME, False),
        (seen(Detail.TOOL_CALLS_UNRESOLVED), running(), ResumeMode.REPAIR_TOOLS, Reason.RESUME, False),
        (INPUT_ONLY, running(), ResumeMode.REDISPATCH, Reason.REDISPATCH, True),
        (INPUT_ONLY, row(), ResumeMode.REDISPATCH, Reason.REDISPATCH, True),
        (INPUT_ONLY, row(**ended(AttemptEnd.RELEASED)), ResumeMode.FRESH, Reason.CLEAN_RELEASE, False),
        (INPUT_ONLY, row(**ended(AttemptEnd.PARKED)), ResumeMode.FRESH, Reason.CLEAN_RELEASE, False),
        (
            INPUT_ONLY,
            row(**(ended(AttemptEnd.RELEASED, begun=False) | {"last_begun_end": AttemptEnd.CRASHED})),
            ResumeMode.REDISPATCH,
            Reason.REDISPATCH,
            True,
        ),
        (
            INPUT_ONLY,
            running(attempt(begun=False), last_begun_end=AttemptEnd.RELEASED),
            ResumeMode.FRESH,
            Reason.CLEAN_RELEASE,
            False,
        ),
        (
            INPUT_ONLY,
            running(last_begun_end=AttemptEnd.RELEASED),
            ResumeMode.REDISPATCH,
            Reason.REDISPATCH,
            True,
        ),
    ],
)
def test_unfinished_work_goes_on_by_what_the_record_shows(
    inspection: Inspection, facts: SubmissionFacts, mode: ResumeMode, reason: Reason, spends: bool
) -> None:
    decision = decide(inspection, facts, NOW, LIMITS)
    assert (REQUEUE, mode, reason, spends) == (
        decision.action,
        decision.mode,
        decision.reason,
        decision.spends_redispatch,
    )


def test_a_second_redispatch_is_refused_unless_a_person_bought_it() -> None:
    spent = decide(INPUT_ONLY, row(redispatches=1), NOW, LIMITS)
    assert (SETTLE, Outcome.FAILED, Reason.UNCERTAIN_EXHAUSTED) == (spent.action, spent.outcome, spent.reason)
    bought = decide(INPUT_ONLY, row(redispatches=1, redispatches_granted=1), NOW, LIMITS)
    assert (REQUEUE, Reason.REDISPATCH) == (bought.action, bought.reason)


UNLOGGED = seen(Detail.INPUT_ONLY, unlogged_calls_possible=True)
HOLD_UNLOGGED = replace(LIMITS, hold_unlogged=True)


@pytest.mark.parametrize(
    ("inspection", "changes", "limits", "reason"),
    [
        (UNLOGGED, {}, LIMITS, Reason.REDISPATCH),
        (INPUT_ONLY, {}, HOLD_UNLOGGED, Reason.REDISPATCH),
        (UNLOGGED, {}, HOLD_UNLOGGED, Reason.UNLOGGED_CALLS_POSSIBLE),
        (
            UNLOGGED,
            {"hold_released": True, "hold_released_reason": "unlogged_calls_possible", "redispatches_granted": 1},
            HOLD_UNLOGGED,
            Reason.REDISPATCH,
        ),
        (
            UNLOGGED,
            {"hold_released": True, "hold_released_reason": "write_failed"},
            HOLD_UNLOGGED,
            Reason.UNLOGGED_CALLS_POSSIBLE,
        ),
        (UNLOGGED, {"redispatches_granted": 1}, HOLD_UNLOGGED, Reason.REDISPATCH),
        (UNLOGGED, {"redispatches_granted": 1, "redispatches": 1}, HOLD_UNLOGGED, Reason.UNLOGGED_CALLS_POSSIBLE),
        (UNLOGGED, {"redispatches": 1}, HOLD_UNLOGGED, Reason.UNCERTAIN_EXHAUSTED),
        (UNLOGGED, ended(AttemptEnd.RELEASED), HOLD_UNLOGGED, Reason.CLEAN_RELEASE),
        (UNLOGGED, ended(AttemptEnd.FAILED), HOLD_UNLOGGED, Reason.UNLOGGED_CALLS_POSSIBLE),
    ],
)
def test_a_setting_asks_a_person_before_a_redispatch_that_may_repeat_unlogged_calls(
    inspection: Inspection, changes: dict[str, Any], limits: Limits, reason: Reason
) -> None:
    assert reason is decide(inspection, row(**changes), NOW, limits).reason


def test_a_setting_asks_a_person_before_going_on_from_a_started_call() -> None:
    limits = replace(LIMITS, hold_unknown_effects=True)
    started = seen(Detail.TOOL_CALLS_UNRESOLVED, dispatch={("msg", 0): CallDispatch.STARTED})
    unknown = seen(Detail.TOOL_CALLS_UNRESOLVED, dispatch={("msg", 0): CallDispatch.UNKNOWN})
    released = row(hold_released=True, hold_released_reason="unknown_effect")
    assert decide(started, row(), NOW, limits).reason is Reason.UNKNOWN_EFFECT
    assert decide(started, row(**ended(AttemptEnd.FAILED)), NOW, limits).reason is Reason.UNKNOWN_EFFECT
    assert decide(unknown, row(), NOW, limits).reason is Reason.RESUME
    assert decide(started, row(), NOW, LIMITS).reason is Reason.RESUME
    assert decide(started, released, NOW, limits).reason is Reason.RESUME


def test_approved_calls_are_run_while_they_are_open() -> None:
    waiting = seen(Detail.TOOL_CALLS_UNRESOLVED, unresolved_tool_calls=("c1",))
    facts = row(pending_calls=("c1",), **ended(AttemptEnd.PARKED))
    decision = decide(waiting, facts, NOW, LIMITS)
    assert (ResumeMode.APPROVED, Reason.APPROVED) == (decision.mode, decision.reason)
    answered = seen(Detail.TOOL_RESULTS_READY)
    assert decide(answered, facts, NOW, LIMITS).mode is ResumeMode.CONTINUE


def test_a_partial_answer_is_gone_on_from() -> None:
    evidence = TurnEvidence(last_response_entry_id="last", last_response_has_text=True)
    decision = decide(seen(Detail.RESPONSE_ABORTED), running(), NOW, LIMITS, evidence=evidence)
    assert decision.mode is ResumeMode.CONTINUE_PARTIAL


# --- releases, backoff ---------------------------------------------------------------------------------------------

INCAPABLE = ended(AttemptEnd.RELEASED, end_reason=END_CAPABILITY_MISSING, begun=False)


@pytest.mark.parametrize(
    ("facts", "wait_s"),
    [
        (row(), 0),
        (row(**ended(AttemptEnd.RELEASED), releases=1), 0),
        (row(**ended(AttemptEnd.PARKED)), 0),
        (row(**ended(AttemptEnd.HELD)), 0),
        (running(), 1),
        (running(crashes_in_row=2), 4),
        (running(attempt(made_progress=True), crashes_in_row=3), 1),
        (running(attempt(begun=False), attempts_spent=6, attempts_begun=2), 8),
        (row(**ended(AttemptEnd.CRASHED), crashes_in_row=3), 4),
        (row(**ended(AttemptEnd.CRASHED), crashes_in_row=3, retried=True), 0),
        (row(**ended(AttemptEnd.CRASHED), crashes_in_row=3, hold_released=True), 0),
        (row(**ended(AttemptEnd.STALLED), crashes_in_row=1), 1),
        (row(**ended(AttemptEnd.OVERRUN)), 1),
        (row(**ended(AttemptEnd.FAILED), provider_errors=1), 5),
        (row(**ended(AttemptEnd.FAILED), provider_errors=3), 20),
        (row(**INCAPABLE, releases=1), 30),
        (row(**INCAPABLE, releases=3), 120),
        (row(**INCAPABLE, releases=19), 300),
        (row(**(ended(AttemptEnd.RELEASED) | {"attempts_spent": 4}), releases=20), 8),
    ],
)
def test_each_cause_waits_by_its_own_numbers(facts: SubmissionFacts, wait_s: float) -> None:
    decision = decide(UNFINISHED, facts, NOW, LIMITS)
    assert decision.action is REQUEUE
    assert at(wait_s) == decision.not_before
    # The same, told apart from the decision: what it is backed off from, for any jitter.
    found = backoff_of(UNFINISHED, facts, NOW, LIMITS, TurnEvidence())
    assert (found is None) == (wait_s == 0)
    for jitter in (0.0, 0.5, 1.0):
        expected = 0.0 if found is None else backoff(*found, LIMITS, jitter=jitter)
        assert at(expected) == decide(UNFINISHED, facts, NOW, LIMITS, jitter=jitter).not_before


def test_work_that_no_runner_can_do_is_shown_and_in_the_end_held() -> None:
    blocked = decide(ABSENT, row(**INCAPABLE, releases=19), NOW, LIMITS)
    assert (REQUEUE, Reason.CAPABILITY_MISSING, ResumeMode.FRESH) == (blocked.action, blocked.reason, blocked.mode)
    held = decide(ABSENT, row(**INCAPABLE, releases=20), NOW, LIMITS)
    assert (HOLD, Reason.RELEASES_EXHAUSTED) == (held.action, held.reason)
    released = row(**INCAPABLE, releases=20, hold_released=True, hold_released_reason="releases_exhausted")
    assert decide(ABSENT, released, NOW, LIMITS).action is REQUEUE


def test_a_blocked_redispatch_still_costs_one() -> None:
    facts = row(**(INCAPABLE | {"last_begun_end": AttemptEnd.CRASHED}), releases=1)
    decision = decide(INPUT_ONLY, facts, NOW, LIMITS)
    assert (Reason.CAPABILITY_MISSING, True) == (decision.reason, decision.spends_redispatch)


def test_backoff_grows_to_its_cap_and_jitter_takes_some_of_it_off() -> None:
    limits = Limits(backoff_base_s=1, backoff_factor=2, backoff_max_s=300, backoff_jitter=0.25)
    assert [1, 1, 2, 4, 8] == [backoff(BackoffKind.CRASH, n, limits) for n in range(5)]
    assert backoff(BackoffKind.CRASH, 10**9, limits) == 300
    assert backoff(BackoffKind.CRASH, 10**9, limits, jitter=1.0) == 225
    assert backoff(BackoffKind.CRASH, 1, limits, jitter=0.5) == 0.875
    assert backoff(BackoffKind.CRASH, 1, limits, jitter=7.0) == 0.75
    assert backoff(BackoffKind.CRASH, 1, limits, jitter=-7.0) == 1.0


# --- ends and counters of attempts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        (running(), AttemptEnd.CRASHED),
        (running(LIVE, owner_dead=True), AttemptEnd.CRASHED),
        (running(abort_requested_at=at(-99)), AttemptEnd.CRASHED),
        (running(LIVE, abort_requested_at=at(-60)), AttemptEnd.OVERRUN),
        (running(LIVE, deadline_at=at(-60)), AttemptEnd.OVERRUN),
        (running(may_judge_lease=False, deadline_at=at(-60)), AttemptEnd.OVERRUN),
        (running(replace(LIVE, claimed_at=at(-9999))), AttemptEnd.STALLED),
        (running(replace(LIVE, claimed_at=at(-9999)), abort_requested_at=at(-60)), AttemptEnd.OVERRUN),
    ],
)
def test_a_fenced_attempt_ends_by_what_ended_it(facts: SubmissionFacts, end: AttemptEnd) -> None:
    assert facts.current_attempt is not None
    assert end is fence_end(facts.current_attempt, facts, NOW, LIMITS)
    assert end is decide(UNFINISHED, facts, NOW, LIMITS).attempt_end


@pytest.mark.parametrize(
    ("changes", "end", "provider_error", "crashes", "errors"),
    [
        ({}, AttemptEnd.CRASHED, False, 3, 2),
        ({}, AttemptEnd.STALLED, False, 3, 2),
        ({}, AttemptEnd.OVERRUN, False, 2, 2),
        ({}, AttemptEnd.RELEASED, False, 2, 2),
        ({}, AttemptEnd.PARKED, False, 2, 2),
        ({}, AttemptEnd.FAILED, False, 2, 3),
        ({}, AttemptEnd.CRASHED, True, 2, 3),
        ({"provider_error_counted": True}, AttemptEnd.CRASHED, True, 2, 2),
        ({"begun": False}, AttemptEnd.CRASHED, False, 2, 2),
        ({"made_progress": True}, AttemptEnd.CRASHED, False, 0, 2),
        ({"made_progress": True}, AttemptEnd.RELEASED, False, 0, 2),
        ({"made_progress": True}, AttemptEnd.FAILED, False, 0, 3),
    ],
)
def test_the_counters_follow_from_how_an_attempt_ended(
    changes: dict[str, Any], end: AttemptEnd, provider_error: bool, crashes: int, errors: int
) -> None:
    counters = counters_after(Counters(2, 2), attempt(**changes), end, LIMITS, provider_error=provider_error)
    assert Counters(crashes, errors) == counters


def test_counters_stop_at_their_maxima_and_keep_what_was_counted_under_higher_ones() -> None:
    full = Counters(5, 8)
    assert counters_after(full, attempt(), AttemptEnd.CRASHED, LIMITS) == full
    assert counters_after(full, attempt(), AttemptEnd.FAILED, LIMITS) == full
    above = Counters(9, 9)
    assert counters_after(above, attempt(), AttemptEnd.CRASHED, LIMITS) == above


# --- mirrored sessions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inspection", "changes", "evidence", "advice", "reason", "outcome", "mode"),
    [
        (UNFINISHED, {}, None, REQUEUE, Reason.RESUME, None, ResumeMode.CONTINUE),
        (ABSENT, {}, None, REQUEUE, Reason.FIRST_TRY, None, ResumeMode.FRESH),
        (INPUT_ONLY, {}, None, REQUEUE, Reason.REDISPATCH, None, ResumeMode.REDISPATCH),
        (INPUT_ONLY, {"redispatches": 1}, None, SETTLE, Reason.UNCERTAIN_EXHAUSTED, Outcome.FAILED, None),
        (DAMAGED, {}, None, HOLD, Reason.INTEGRITY_HOLD, None, None),
        (UNFINISHED, {"inspection_error": "boom"}, None, HOLD, Reason.INSPECTION_ERROR, None, None),
        (UNFINISHED, {"deadline_at": NOW}, None, SETTLE, Reason.DEADLINE_EXCEEDED, Outcome.FAILED, None),
        (LEAF_MOVED, {"leaf_moved_at": at(-99999)}, None, WAIT, Reason.LEAF_MOVED_WAIT, None, None),
        (LEAF_MOVED, {}, None, WAIT, Reason.LEAF_MOVED_WAIT, None, None),
        (UNFINISHED, {}, REJECTED, SETTLE, Reason.PROVIDER_REJECTED, Outcome.FAILED, None),
        (UNFINISHED, {}, ERRED, REQUEUE, Reason.PROVIDER_RETRY, None, ResumeMode.CONTINUE),
    ],
)
def test_a_mirrored_session_gets_advice_and_is_not_due_again(
    inspection: Inspection,
    changes: dict[str, Any],
    evidence: TurnEvidence | None,
    advice: DecisionAction,
    reason: Reason,
    outcome: Outcome | None,
    mode: ResumeMode | None,
) -> None:
    decision = decide(inspection, row(origin=MIRRORED, **changes), NOW, LIMITS, evidence=evidence)
    assert (ADVISE, advice, reason, outcome, mode) == (
        decision.action,
        decision.advice,
        decision.reason,
        decision.outcome,
        decision.mode,
    )
    assert decision.holds is (advice is HOLD)
    assert (None, None, None, False, None) == (
        decision.reconcile_at,
        decision.not_before,
        decision.counters,
        decision.spends_redispatch,
        decision.provider_error_attempt_id,
    )
    assert decision.is_written
    assert event_of(decision) is None


def test_advice_is_not_due_at_a_deadline_either() -> None:
    for inspection in (UNFINISHED, DAMAGED):
        assert decide(inspection, row(origin=MIRRORED, deadline_at=at(5)), NOW, LIMITS).reconcile_at is None


def test_a_requeued_row_is_due_at_its_deadline() -> None:
    assert decide(UNFINISHED, row(deadline_at=at(5)), NOW, LIMITS).reconcile_at == at(5)
    assert decide(UNFINISHED, row(), NOW, LIMITS).reconcile_at is None


def test_a_mirrored_hold_follows_its_record_and_a_persons_hold_does_not() -> None:
    mended = row(origin=MIRRORED, held_at=at(-9), held_reason="integrity_hold")
    assert decide(UNFINISHED, mended, NOW, LIMITS).advice is REQUEUE
    assert decide(DAMAGED, mended, NOW, LIMITS).advice is HOLD
    kept = row(origin=MIRRORED, held_at=at(-9), held_reason="held_by_operator", deadline_at=at(5))
    decision = decide(UNFINISHED, kept, NOW, LIMITS)
    assert (WAIT, Reason.HELD, None) == (decision.action, decision.reason, decision.reconcile_at)


# --- what a decision carries ---------------------------------------------------------------------------------------


def test_a_decision_names_its_evidence_once() -> None:
    decision = decide(INPUT_ONLY, running(), NOW, LIMITS, evidence=ERRED)
    assert decision.evidence == ("last", "input", "err")
    same = seen(Detail.INPUT_ONLY, deciding_entry_id="input")
    assert decide(same, running(), NOW, LIMITS).evidence == ("input",)
    assert (
        decide(seen(Detail.INPUT_MISSING, input_entry_id=None, deciding_entry_id=None), row(), NOW, LIMITS).evidence
        == ()
    )


def test_admission_makes_a_first_try_claimable_at_once() -> None:
    decision = admission(row(deadline_at=at(9)), NOW)
    assert decision == Decision(
        REQUEUE, Reason.ADMITTED, gate=10, mode=ResumeMode.FRESH, not_before=NOW, reconcile_at=at(9)
    )


@pytest.mark.parametrize(
    ("decision", "event"),
    [
        (Decision(ADOPT, Reason.SETTLEMENT_FOUND, 1), SubmissionEvent.SETTLE),
        (Decision(SETTLE, Reason.COMPLETED, 3), SubmissionEvent.SETTLE),
        (Decision(REQUEUE, Reason.RESUME, 10), SubmissionEvent.REQUEUE),
        (Decision(HOLD, Reason.INTEGRITY_HOLD, 6), SubmissionEvent.HOLD),
        (Decision(WAIT, Reason.PARKED, 2), None),
        (Decision(ADVISE, Reason.RESUME, 10), None),
        (Decision(WAIT, Reason.LEAF_MOVED_WAIT, 6, attempt_end=AttemptEnd.CRASHED), SubmissionEvent.FENCE),
    ],
)
def test_a_decision_is_carried_out_by_one_event(decision: Decision, event: SubmissionEvent | None) -> None:
    assert event is event_of(decision)
