"""The transitions: every pair, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.core.states import TRANSITIONS, SubmissionEvent, SubmissionStatus, next_status
from reconciler.errors import IllegalTransition
from tests.support.states_page import STATES_PAGE, states_page

# Written out a second time on purpose: a slip in the table would otherwise agree with itself.
LEGAL = {
    ("queued", "claim"): "running",
    ("queued", "requeue"): "queued",
    ("queued", "hold"): "queued",
    ("queued", "settle"): "settled",
    ("running", "requeue"): "queued",
    ("running", "release"): "queued",
    ("running", "fail"): "queued",
    ("running", "fence"): "queued",
    ("running", "hold"): "queued",
    ("running", "park"): "waiting",
    ("running", "settle"): "settled",
    ("waiting", "unpark"): "queued",
    ("waiting", "requeue"): "queued",
    ("waiting", "hold"): "waiting",
    ("waiting", "settle"): "settled",
}


@pytest.mark.parametrize("status", SubmissionStatus)
@pytest.mark.parametrize("event", SubmissionEvent)
def test_every_pair_leads_where_the_table_says_or_is_refused(status: SubmissionStatus, event: SubmissionEvent) -> None:
    expected = LEGAL.get((status.value, event.value))
    if expected is not None:
        assert expected == next_status(status, event).value
        return
    with pytest.raises(IllegalTransition) as refused:
        next_status(status, event)
    assert refused.value.detail == {"kind": "submission", "status": status.value, "event": event.value}


def test_only_settled_is_an_end_and_every_status_reaches_it() -> None:
    assert [status for status, row in TRANSITIONS.items() if not row] == [SubmissionStatus.SETTLED]
    for row in TRANSITIONS.values():
        assert not row or row[SubmissionEvent.SETTLE] is SubmissionStatus.SETTLED


def test_every_event_and_every_status_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(SubmissionStatus)
    assert {event for row in TRANSITIONS.values() for event in row} == set(SubmissionEvent)


def test_the_page_shows_the_transitions_as_they_are() -> None:
    page = Path(__file__).parents[2] / STATES_PAGE
    assert states_page() == page.read_text(encoding="utf-8"), "write it again: python -m tests.support.states_page"
