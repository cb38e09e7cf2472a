"""Answers by shape: turns that differ in nothing but their ids are inspected once, the others take that answer.

What the classifier says of a turn depends on ids only by which of them are equal. After an outage thousands of turns
look alike (a request, some calls with their results, an answer), so a pass keeps the answer to each shape that it met,
with ids replaced by places. A shape holds every column that the classifier reads; a turn that is no plain chain from
its input to the leaf has none. One pass, one memory: it is bounded, and gone when the pass is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reconciler.core.model import Inspection, OpenCall, TurnEvidence
from reconciler.store.paths import Shape, ShapedTurn

# Of a few kilobytes each.
ANSWERS_MAX: Final = 1_000
# What stands in the place of an id. A turn with more calls than this is not kept.
_PLACES: Final = tuple(str(place) for place in range(1_000))


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found of a turn. ``may_grow`` as in `gather.Gathered`."""

    inspection: Inspection
    evidence: TurnEvidence
    may_grow: bool


@dataclass(slots=True, eq=False)
class Kept:
    """The answer to one shape, with places for ids; and what was made of it for rows of one case (`cases`)."""

    answer: Answer
    cases: dict[object, Any] = field(default_factory=dict)

    def of(self, turn: ShapedTurn) -> Answer:
        """Return the answer in the ids of *turn*, which has the shape."""
        entries = dict(zip(_PLACES, turn.entry_ids, strict=False))
        return renamed(self.answer, entries, dict(zip(_PLACES, turn.call_ids, strict=False)))


class Answers:
    """The answers of one pass by shape, with names for ids."""

    def __init__(self) -> None:
        self.found: dict[Shape, Kept] = {}

    def keep(self, turn: ShapedTurn, answer: Answer) -> Kept | None:
        """Remember the answer to a turn; one that names anything but the turn's own entries and calls is not kept."""
        if len(self.found) >= ANSWERS_MAX or answer.inspection.problems:
            return None
        entries = dict(zip(turn.entry_ids, _PLACES, strict=False))
        calls = dict(zip(turn.call_ids, _PLACES, strict=False))
        try:
            kept = self.found[turn.shape] = Kept(renamed(answer, entries, calls))
        except KeyError:
            return None
        return kept


def renamed(answer: Answer, entries: Mapping[str, str], calls: Mapping[str, str]) -> Answer:
    """Return *answer* with other ids.

    Raises:
        KeyError: it names an entry or a call that has no other name.
    """
    seen, evidence = answer.inspection, answer.evidence
    opened = evidence.open_calls
    if opened:
        opened = tuple(OpenCall(entries[c.entry_id], c.position, calls[c.call_id], c.dispatch) for c in opened)
    flight = evidence.call_in_flight
    input_id, deciding, response, error = (
        seen.input_entry_id,
        seen.deciding_entry_id,
        evidence.last_response_entry_id,
        evidence.error_entry_id,
    )
    return Answer(
        Inspection(
            seen.state,
            seen.detail,
            None if input_id is None else entries[input_id],
            None if deciding is None else entries[deciding],
            tuple([calls[call] for call in seen.unresolved_tool_calls]) if seen.unresolved_tool_calls else (),
            tuple([calls[call] for call in seen.interior_open_calls]) if seen.interior_open_calls else (),
            {(entries[entry], position): word for (entry, position), word in seen.dispatch.items()},
            seen.stopped_by,
            seen.unlogged_calls_possible,
            seen.integrity,
        ),
        TurnEvidence(
            opened,
            None if response is None else entries[response],
            evidence.last_response_has_text,
            evidence.last_response_finished,
            None if error is None else entries[error],
            evidence.error_retryable,
            None if flight is None else opened[-1],
        ),
        answer.may_grow,
    )
