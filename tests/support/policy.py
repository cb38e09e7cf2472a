"""Rows, attempts and inspections for tests of the policy: plain values around one instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from reconciler.core.model import STATE_OF_DETAIL, AttemptFacts, Detail, Inspection, SubmissionFacts
from reconciler.core.states import SubmissionStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the instant that many seconds from now."""
    return NOW + timedelta(seconds=seconds)


def row(status: SubmissionStatus = SubmissionStatus.QUEUED, **changes: Any) -> SubmissionFacts:
    """Return a native row without a standing decision, and with nothing else to say."""
    return SubmissionFacts(session_id="s", submission_id="p", status=status, **changes)


def attempt(**changes: Any) -> AttemptFacts:
    """Return an attempt that was claimed a minute ago, has begun, and whose lease ended a second ago."""
    values: dict[str, Any] = {
        "attempt_id": "a1",
        "number": 1,
        "claimed_at": at(-60),
        "lease_expires_at": at(-1),
        "begun": True,
    }
    return AttemptFacts(**(values | changes))


def running(current: AttemptFacts | None = None, **changes: Any) -> SubmissionFacts:
    """Return a row that an attempt works on: the one given, else one whose lease ended."""
    values: dict[str, Any] = {"attempts_spent": 1, "attempts_begun": 1}
    return row(SubmissionStatus.RUNNING, current_attempt=current or attempt(), **(values | changes))


def seen(detail: Detail, **changes: Any) -> Inspection:
    """Return an inspection with that detail and the state that goes with it."""
    values: dict[str, Any] = {"input_entry_id": "input", "deciding_entry_id": "last"}
    return Inspection(state=STATE_OF_DETAIL[detail], detail=detail, **(values | changes))
