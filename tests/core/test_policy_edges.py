"""Edges of the policy that planted changes showed to be unwatched."""

from __future__ import annotations

import pytest

from reconciler.core.model import (
    DEFAULT_LIMITS,
    END_CAPABILITY_MISSING,
    Counters,
    Detail,
    SubmissionFacts,
    TurnEvidence,
)
from reconciler.core.policy import counters_after, decide
from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, Reason, SessionOrigin, SubmissionStatus
from tests.support.policy import NOW, at, attempt, row, running, seen


@pytest.mark.parametrize("end", [AttemptEnd.RELEASED, AttemptEnd.PARKED, AttemptEnd.CRASHED, AttemptEnd.SETTLED])
def test_no_end_but_fail_counts_a_provider_error_by_itself(end: AttemptEnd) -> None:
    after = counters_after(Counters(0, 2), attempt(begun=True), end, DEFAULT_LIMITS)
    assert 2 == after.provider_errors


def test_a_passed_deadline_in_a_mirrored_session_is_advice() -> None:
    facts = row(status=SubmissionStatus.QUEUED, origin=SessionOrigin.MIRRORED, deadline_at=at(-1))
    decision = decide(seen(Detail.INPUT_ONLY), facts, NOW, DEFAULT_LIMITS)
    assert (DecisionAction.ADVISE, DecisionAction.SETTLE, Reason.DEADLINE_EXCEEDED) == (
        decision.action,
        decision.advice,
        decision.reason,
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (row(last_attempt=attempt(end=AttemptEnd.RELEASED), last_begun_end=AttemptEnd.RELEASED), Reason.CLEAN_RELEASE),
        (row(last_attempt=attempt(end=AttemptEnd.CRASHED), last_begun_end=AttemptEnd.CRASHED), Reason.REDISPATCH),
        (row(last_attempt=attempt(end=AttemptEnd.CRASHED), redispatches=1), Reason.UNCERTAIN_EXHAUSTED),
    ],
)
def test_the_last_gate_names_itself_at_each_of_its_exits(facts: SubmissionFacts, reason: Reason) -> None:
    decision = decide(seen(Detail.INPUT_ONLY), facts, NOW, DEFAULT_LIMITS)
    assert (11, reason) == (decision.gate, decision.reason)


def test_a_park_for_a_reason_of_that_name_is_no_missing_capability() -> None:
    parked = attempt(end=AttemptEnd.PARKED, end_reason=END_CAPABILITY_MISSING)
    facts = row(last_attempt=parked, last_begun_end=AttemptEnd.PARKED, unparked=True)
    assert Reason.RESUME == decide(seen(Detail.TOOL_RESULTS_READY), facts, NOW, DEFAULT_LIMITS).reason


@pytest.mark.parametrize("end", [AttemptEnd.RELEASED, AttemptEnd.CRASHED, AttemptEnd.PARKED])
def test_an_attempt_that_wrote_no_error_counts_none_when_its_end_is_looked_at(end: AttemptEnd) -> None:
    last = attempt(end=end, provider_error_counted=False)
    facts = row(last_attempt=last, last_begun_end=end, provider_errors=2)
    decision = decide(seen(Detail.TOOL_RESULTS_READY), facts, NOW, DEFAULT_LIMITS)
    assert decision.counters is not None
    assert (2, None) == (decision.counters.provider_errors, decision.provider_error_attempt_id)


def test_a_record_that_could_not_be_inspected_is_held_though_its_last_response_may_still_grow() -> None:
    facts = row(
        origin=SessionOrigin.MIRRORED, inspection_error="it raised", response_may_grow=True, source_quiet_at=at(60)
    )
    decision = decide(seen(Detail.INPUT_ONLY), facts, NOW, DEFAULT_LIMITS)
    assert (6, Reason.INSPECTION_ERROR) == (decision.gate, decision.reason)


def test_a_lease_that_ends_now_is_no_live_one_where_it_may_not_be_judged_yet() -> None:
    facts = running(attempt(lease_expires_at=NOW), may_judge_lease=False)
    decision = decide(seen(Detail.INPUT_ONLY), facts, NOW, DEFAULT_LIMITS)
    assert (DecisionAction.WAIT, Reason.OWNER_UNJUDGED) == (decision.action, decision.reason)


@pytest.mark.parametrize("reason", [Reason.INTEGRITY_HOLD, Reason.INSPECTION_ERROR])
def test_a_native_row_that_is_held_for_its_record_stays_held_though_the_record_is_sound_again(reason: Reason) -> None:
    facts = row(held_at=at(-60), held_reason=reason.value)
    decision = decide(seen(Detail.TOOL_RESULTS_READY), facts, NOW, DEFAULT_LIMITS)
    assert (6, DecisionAction.WAIT, Reason.HELD) == (decision.gate, decision.action, decision.reason)


def test_the_sixth_gate_settles_what_a_moved_leaf_left_behind() -> None:
    facts = row(leaf_moved_at=at(-2 * DEFAULT_LIMITS.leaf_moved_s))
    decision = decide(seen(Detail.LEAF_MOVED), facts, NOW, DEFAULT_LIMITS)
    assert (6, DecisionAction.SETTLE, Outcome.ABORTED) == (decision.gate, decision.action, decision.outcome)


@pytest.mark.parametrize(
    ("begun_before", "last_begun", "reason"),
    [
        (1, False, Reason.ATTEMPTS_EXHAUSTED),
        (0, True, Reason.ATTEMPTS_EXHAUSTED),
        (0, False, Reason.NEVER_BEGUN),
    ],
)
def test_spent_attempts_were_never_begun_only_where_none_had_begun(
    begun_before: int, last_begun: bool, reason: Reason
) -> None:
    facts = row(
        attempts_spent=DEFAULT_LIMITS.attempts_max,
        attempts_begun=begun_before,
        last_attempt=attempt(begun=last_begun, end=AttemptEnd.CRASHED),
    )
    assert reason == decide(seen(Detail.TOOL_RESULTS_READY), facts, NOW, DEFAULT_LIMITS).reason


def test_a_released_attempt_that_wrote_an_error_is_a_matter_of_its_provider_not_of_a_capability() -> None:
    released = attempt(end=AttemptEnd.RELEASED, end_reason=END_CAPABILITY_MISSING)
    facts = row(last_attempt=released, last_begun_end=AttemptEnd.RELEASED)
    evidence = TurnEvidence(error_entry_id="last")
    decision = decide(seen(Detail.PROVIDER_ERROR), facts, NOW, DEFAULT_LIMITS, evidence=evidence)
    assert (9, Reason.PROVIDER_RETRY) == (decision.gate, decision.reason)


@pytest.mark.parametrize(("end", "waits"), [(AttemptEnd.PARKED, False), (AttemptEnd.RELEASED, True)])
def test_only_a_release_is_slowed_down_once_releases_are_used_up(end: AttemptEnd, waits: bool) -> None:
    facts = row(
        last_attempt=attempt(end=end),
        last_begun_end=end,
        attempts_spent=1,
        attempts_begun=1,
        releases=DEFAULT_LIMITS.releases_max,
    )
    decision = decide(seen(Detail.TOOL_RESULTS_READY), facts, NOW, DEFAULT_LIMITS)
    assert decision.not_before is not None
    assert waits == (decision.not_before > NOW)
