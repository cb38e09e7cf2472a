"""What epochs and answers of the durable gate say of themselves, and values that a parser made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from reconciler.core.canonical import canonical_json, canonical_json_parsed
from reconciler.core.refine import EditBudget, GateAnswer, RefineEpoch, RefineVerdict
from reconciler.errors import InvalidInput

EPOCH = RefineEpoch(
    subject="s",
    epoch=1,
    baseline_score=0.5,
    best_score=0.5,
    budget=EditBudget(4, 2),
    used=1,
    steps=1,
    rejected_count=1,
    buffer_max=None,
    evicted=0,
    opened_at=datetime(2026, 1, 1, tzinfo=UTC),
)
ANSWER = GateAnswer("s", 1, "e", 0.4, RefineVerdict.REJECTED, 0.5, 3, EditBudget(4, 2))


def test_an_epoch_says_what_it_has_left() -> None:
    assert (True, 3, False) == (EPOCH.is_open, EPOCH.edits_left, EPOCH.may_stop_early)
    closed = replace(EPOCH, used=2, closed_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert (False, 2, True) == (closed.is_open, closed.edits_left, closed.may_stop_early)


def test_an_answer_says_what_its_epoch_has_left() -> None:
    assert (False, 1, True) == (ANSWER.accepted, ANSWER.edits_left, ANSWER.may_stop_early)
    first = replace(ANSWER, verdict=RefineVerdict.ACCEPTED, used=1)
    assert (True, 3, False) == (first.accepted, first.edits_left, first.may_stop_early)


def test_a_parsed_value_has_the_same_text_and_no_number_that_json_has_not() -> None:
    value = {"b": [1, {"c": "\u00e9"}], "a": None}
    assert canonical_json(value) == canonical_json_parsed(value)
    with pytest.raises(InvalidInput):
        canonical_json_parsed([float("nan")])
