"""Edges of the policy that planted changes showed to be unwatched."""

from __future__ import annotations

import pytest

from reconciler.core.model import DEFAULT_LIMITS, END_CAPABILITY_MISSING, Counters, Detail, SubmissionFacts
from reconciler.core.policy import counters_after, decide
from reconciler.core.states import AttemptEnd, DecisionAction, Reason, SessionOrigin, SubmissionStatus
from tests.support.policy import NOW, at, attempt, row, seen


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
