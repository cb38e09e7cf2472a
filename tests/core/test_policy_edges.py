"""Edges of the policy that planted changes showed to be unwatched."""

from __future__ import annotations

import pytest

from reconciler.core.model import DEFAULT_LIMITS, Counters, Detail
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
