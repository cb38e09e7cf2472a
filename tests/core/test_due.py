"""When rows are due, what stands, who may claim, what a beat answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reconciler.core.due import (
    DueCause,
    after,
    decision_stands,
    directive,
    due_at,
    earliest,
    has_passed,
    is_claimable,
    may_judge_lease,
)
from reconciler.core.model import DEFAULT_LIMITS, DecisionOnRecord, Detail, Limits, SubmissionFacts
from reconciler.core.states import DecisionAction, Directive, Reason, SessionOrigin, SubmissionStatus
from tests.support.policy import NOW, at, attempt, row, running

LIMITS = Limits(grace_s=60, stall_s=7200)
WAITING = SubmissionStatus.WAITING
QUEUED = SubmissionStatus.QUEUED


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(row(SubmissionStatus.SETTLED), None, id="a settled row is never due"),
        pytest.param(row(), NOW, id="queued without a standing decision: now"),
        pytest.param(row(decision_stands=True), None, id="queued and decided without a deadline: not by itself"),
        pytest.param(row(decision_stands=True, deadline_at=at(9)), at(9), id="queued and decided: its deadline"),
        pytest.param(
            row(decision_stands=True, deadline_at=at(9), abort_requested_at=NOW), NOW, id="queued with an abort: now"
        ),
        pytest.param(row(decision_stands=True, retried=True), NOW, id="retried: now"),
        pytest.param(row(decision_stands=True, hold_released=True), NOW, id="released from a hold: now"),
        pytest.param(
            row(decision_stands=True, origin=SessionOrigin.MIRRORED, deadline_at=at(9)), None, id="advice: never"
        ),
        pytest.param(row(origin=SessionOrigin.MIRRORED), NOW, id="imported and not decided: now"),
        pytest.param(row(held_at=at(-9), held_reason="integrity_hold"), None, id="held without a deadline: never"),
        pytest.param(row(held_at=at(-9), deadline_at=at(5)), at(5), id="held: its deadline"),
        pytest.param(row(held_at=at(-9), retried=True), None, id="a retry ends no hold"),
        pytest.param(row(held_at=at(-9), hold_released=True), NOW, id="held and released: now"),
        pytest.param(row(held_at=at(-9), abort_requested_at=NOW), NOW, id="held with an abort: now"),
        pytest.param(row(WAITING, parked_until=at(50)), at(50), id="parked: its end"),
        pytest.param(row(WAITING, parked_until=at(50), deadline_at=at(20)), at(20), id="parked: an earlier deadline"),
        pytest.param(row(WAITING, parked_until=at(50), unparked=True), NOW, id="parked and answered: now"),
        pytest.param(row(WAITING, parked_until=at(50), abort_requested_at=NOW), NOW, id="parked with an abort: now"),
        pytest.param(row(WAITING, parked_until=at(50), held_at=at(-9)), None, id="parked and held: as held"),
        pytest.param(row(WAITING), NOW, id="parked without an end: now, not never"),
        pytest.param(row(SubmissionStatus.RUNNING), NOW, id="running without an attempt: now, not never"),
        pytest.param(running(attempt(lease_expires_at=at(15))), at(15), id="running: the lease's end"),
        pytest.param(
            running(attempt(lease_expires_at=at(99)), abort_requested_at=at(-10)), at(50), id="running: abort and grace"
        ),
        pytest.param(
            running(attempt(lease_expires_at=at(99)), deadline_at=at(-20)), at(40), id="running: deadline and grace"
        ),
        pytest.param(
            running(attempt(lease_expires_at=at(99), claimed_at=at(-7230))),
            at(30),
            id="running: claim, stall and grace",
        ),
        pytest.param(
            running(attempt(lease_expires_at=at(99), claimed_at=at(-9000), last_progress_at=at(-7200))),
            at(60),
            id="running: last progress, stall and grace",
        ),
        pytest.param(
            running(attempt(lease_expires_at=at(-3)), abort_requested_at=NOW), at(-3), id="aborted without a live lease"
        ),
    ],
)
def test_a_row_is_due_when_its_status_says(facts: SubmissionFacts, expected: datetime | None) -> None:
    assert expected == due_at(facts, NOW, LIMITS)


@pytest.mark.parametrize("cause", DueCause)
@pytest.mark.parametrize("facts", [row(decision_stands=True), row(WAITING, parked_until=at(50)), row(held_at=at(-9))])
def test_an_act_makes_an_idle_row_due_at_once(cause: DueCause, facts: SubmissionFacts) -> None:
    assert due_at(facts, NOW, LIMITS, cause=cause) == NOW


@pytest.mark.parametrize("cause", DueCause)
def test_an_act_does_not_hurry_a_live_holder_and_does_not_wake_settled_work(cause: DueCause) -> None:
    held_by_runner = running(attempt(lease_expires_at=at(15)))
    assert due_at(held_by_runner, NOW, LIMITS, cause=cause) == at(15)
    assert due_at(row(SubmissionStatus.SETTLED), NOW, LIMITS, cause=cause) is None


def test_the_acts_that_wake_are_those_of_the_contract() -> None:
    assert {cause.value for cause in DueCause} == {
        "imported",
        "given_back",
        "failed",
        "unparked",
        "hold_released",
        "retried",
        "aborted",
        "leaf_moved_by_hand",
    }


# --- standing decisions --------------------------------------------------------------------------------------------

RESUME = DecisionOnRecord(DecisionAction.REQUEUE, Reason.RESUME, 7, 40, Detail.TOOL_RESULTS_READY)
FIRST_TRY = DecisionOnRecord(DecisionAction.REQUEUE, Reason.FIRST_TRY, 7, 40, Detail.INPUT_MISSING)
PROVIDER_RETRY_OF_ABSENT = DecisionOnRecord(DecisionAction.REQUEUE, Reason.PROVIDER_RETRY, 7, 40, Detail.INPUT_MISSING)
ADMITTED = DecisionOnRecord(DecisionAction.REQUEUE, Reason.ADMITTED, 7, 0)
HELD = DecisionOnRecord(DecisionAction.HOLD, Reason.INTEGRITY_HOLD, 7, 40, Detail.INTEGRITY_HOLD)
HELD_ABSENT = DecisionOnRecord(DecisionAction.HOLD, Reason.RELEASES_EXHAUSTED, 7, 40, Detail.INPUT_MISSING)
ADVICE = DecisionOnRecord(DecisionAction.ADVISE, Reason.RESUME, 7, 40, Detail.TOOL_RESULTS_READY)
FENCED_WAIT = DecisionOnRecord(DecisionAction.WAIT, Reason.LEAF_MOVED_WAIT, 7, 40, Detail.LEAF_MOVED)


@pytest.mark.parametrize(
    ("decision", "changes", "expected"),
    [
        (None, {}, False),
        (RESUME, {}, True),
        (RESUME, {"revision": 8}, False),
        (RESUME, {"leaf_moved_version": 40}, True),
        (RESUME, {"leaf_moved_version": 41}, False),
        (RESUME, {"own_entries_added": True}, False),
        (FIRST_TRY, {"leaf_moved_version": 41, "own_entries_added": True}, True),
        (FIRST_TRY, {"revision": 8}, False),
        (FIRST_TRY, {"origin": SessionOrigin.MIRRORED, "leaf_moved_version": 41}, False),
        (PROVIDER_RETRY_OF_ABSENT, {"leaf_moved_version": 41}, True),
        (ADMITTED, {"leaf_moved_version": 999}, True),
        (ADMITTED, {"revision": 8}, False),
        (HELD, {}, True),
        (HELD, {"leaf_moved_version": 41}, False),
        (HELD_ABSENT, {"leaf_moved_version": 41}, False),
        (ADVICE, {"origin": SessionOrigin.MIRRORED}, True),
        (ADVICE, {"origin": SessionOrigin.MIRRORED, "own_entries_added": True}, False),
        (FENCED_WAIT, {}, False),
    ],
)
def test_a_decision_stands_while_nothing_it_was_taken_on_changed(
    decision: DecisionOnRecord | None, changes: dict[str, Any], expected: bool
) -> None:
    now: dict[str, Any] = {"revision": 7, "origin": SessionOrigin.NATIVE, "leaf_moved_version": 0} | changes
    assert expected == decision_stands(decision, **now)


# --- claimable -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ({}, {}, True),
        ({"decision_stands": False}, {}, False),
        ({"abort_requested_at": at(-1)}, {}, False),
        ({"held_at": at(-1)}, {}, False),
        ({"held_at": at(-1), "hold_released": True}, {}, True),
        ({"origin": SessionOrigin.MIRRORED}, {}, False),
        ({"status": WAITING}, {}, False),
        ({"deadline_at": NOW}, {}, False),
        ({"deadline_at": at(1)}, {}, True),
        ({}, {"not_before": None}, False),
        ({}, {"not_before": at(1)}, False),
        ({}, {"is_head": False}, False),
    ],
)
def test_only_decided_unhindered_work_at_the_head_of_its_session_is_claimable(
    changes: dict[str, Any], asked: dict[str, Any], expected: bool
) -> None:
    facts = row(**({"decision_stands": True} | changes))
    question: dict[str, Any] = {"not_before": NOW, "is_head": True} | asked
    assert expected == is_claimable(facts, NOW, **question)


# --- directives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "changes", "expected"),
    [
        ({}, {}, Directive.CONTINUE),
        ({"lease_expires_at": at(-500)}, {}, Directive.CONTINUE),
        ({}, {"is_current": False}, Directive.LOST),
        ({"end": "crashed"}, {}, Directive.LOST),
        ({}, {"abort_requested_at": NOW}, Directive.ABORT),
        ({}, {"abort_requested_at": NOW, "deadline_at": NOW}, Directive.ABORT),
        ({}, {"is_current": False, "abort_requested_at": NOW}, Directive.LOST),
        ({}, {"deadline_at": NOW}, Directive.DEADLINE),
        ({}, {"deadline_at": at(1)}, Directive.CONTINUE),
        ({"claimed_at": at(-7200)}, {}, Directive.STALLED),
        ({"claimed_at": at(-7199)}, {}, Directive.CONTINUE),
        ({"claimed_at": at(-9999), "last_progress_at": at(-10)}, {}, Directive.CONTINUE),
        ({"claimed_at": at(-9999)}, {"deadline_at": NOW}, Directive.DEADLINE),
    ],
)
def test_a_beat_tells_its_holder_what_to_do(held: dict[str, Any], changes: dict[str, Any], expected: Directive) -> None:
    asked: dict[str, Any] = {"is_current": True, "abort_requested_at": None, "deadline_at": None} | changes
    assert expected == directive(attempt(**held), now=NOW, limits=LIMITS, **asked)


# --- judging a lease, instants -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("connected_s", "expected"), [(10.0, True), (9.9, False), (0.0, False)])
def test_an_ended_lease_is_judged_only_by_who_could_have_seen_two_beats(connected_s: float, expected: bool) -> None:
    assert expected == may_judge_lease(connected_s=connected_s, beat_s=5.0)


def test_an_instant_has_passed_when_it_is_reached() -> None:
    assert has_passed(NOW, NOW)
    assert not has_passed(at(0.001), NOW)
    assert not has_passed(None, NOW)


def test_the_calendar_ends_before_sums_overflow() -> None:
    assert after(NOW, 60) == at(60)
    assert after(NOW, DEFAULT_LIMITS.stall_s * 1e12) == datetime.max.replace(tzinfo=UTC)


def test_the_earliest_of_nothing_is_nothing() -> None:
    assert earliest(None, at(2), at(1)) == at(1)
    assert earliest(None) is None
