"""Whole decisions by case: rows that the policy can't tell apart are decided once, the others take that decision.

After an outage thousands of rows look alike: their turns have one shape (`shapes`), their counters are the same, their
leases are over. What the policy says of such a row, and what is written of it, depends on its ids only by where they
stand, and on its instants not at all. So a pass keeps, for each shape and case that it settled, what was written, with
names in the places of ids, and fills in the ids of the next one. It is the policy's own decision: nothing here decides,
and a test compares both on random rows. Whatever is out of the ordinary has no case: an instant that would have to be
compared with the clock, an attempt that can't be judged yet, a decision that names a time or counts something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from reconciler.core.model import TurnEvidence
from reconciler.core.states import DecisionAction, SessionOrigin
from reconciler.service.shapes import Answer, renamed
from reconciler.store.around import FIRST_OF_REST as FIRST_OF_ATTEMPTS_REST
from reconciler.store.around import AttemptRow, Surroundings
from reconciler.store.passes import FIRST_OF_INSTANTS, FIRST_OF_REST, DueRow
from reconciler.store.paths import ShapedTurn
from reconciler.store.settlement_rows import DecisionRow, Kind
from reconciler.store.settlements import DecisionWrite, decision_row

# All that the policy is told of a row, but ids and instants that it doesn't look at; see `case_of`.
Case = tuple[Any, ...]
# Of one shape; each is some hundred bytes.
CASES_MAX: Final = 100

_NO_EVIDENCE: Final = TurnEvidence()
_NO_INSTANTS: Final = (None,) * (FIRST_OF_REST - FIRST_OF_INSTANTS)


def case_of(row: DueRow, around: Surroundings, now: datetime, may_judge: Callable[[AttemptRow], bool]) -> Case | None:
    """Return the row's case; None where its decision may depend on more than can be told by comparing cases.

    A case is of a native row whose current attempt's lease is over at *now* and may be judged: then gate 2 doesn't
    wait, whatever the attempt's other instants are, and with none of the row's own instants set nothing else is
    compared with the clock.
    """
    current = around.current
    if (
        current is None
        or row[FIRST_OF_INSTANTS:FIRST_OF_REST] != _NO_INSTANTS
        or row.x_origin != SessionOrigin.NATIVE
        or around.settlement_entry_id is not None
        or current.lease_expires_at > now
        or not may_judge(current)
    ):
        return None
    last = around.last
    return (
        row[FIRST_OF_REST:],
        # Whether the last decision stands is told by these and the rest.
        row.decision_revision == row.revision,
        row.decision_version is None or row.x_leaf_moved_version <= row.decision_version,
        row.decision_version is None,
        _attempt_case(current),
        None if last is None else _attempt_case(last),
        around.last_begun_end,
    )


def _attempt_case(attempt: AttemptRow) -> Case:
    return attempt[FIRST_OF_ATTEMPTS_REST:], attempt.begun_at is None, attempt.progress_at is None


# What stands in the place of an id while a template is made: a character of private use on each side of a number.
_NAME: Final = "\ue000{}\ue001"
_NAMES_IN_JSON: Final = re.compile(r'"\\ue000(\d+)\\ue001"')
# Between the texts of one decision: no JSON text holds it.
_BETWEEN: Final = "\0"


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What is written of one case, with places for ids: those of the turn's entries, of its calls, and the attempt's.

    ``text`` is the payload, the evidence and the inspection, for the ids at ``places`` in the order of ``order``.
    """

    kind: Kind
    text: str
    places: tuple[int, ...]
    order: tuple[int, ...]
    parent_place: int
    answer_place: int | None

    def fill(self, row: DueRow, current: AttemptRow, turn: ShapedTurn) -> DecisionRow:
        """Return what is written of *row*, whose turn and case are the template's."""
        entry_ids = turn.entry_ids
        ids = (*entry_ids, *turn.call_ids, current.attempt_id)
        encoded = [encode_basestring_ascii(ids[place]) for place in self.places]
        payload, evidence, inspection = (self.text % tuple([encoded[place] for place in self.order])).split(_BETWEEN)
        return DecisionRow(
            self.kind,
            row.session_id,
            row.submission_id,
            row.x_version,
            row.revision,
            current.attempt_id,
            current.lease_expires_at,
            1,
            1,
            ids[self.parent_place],
            payload,
            None if self.answer_place is None else ids[self.answer_place],
            None,
            None,
            None,
            None,
            None,
            None,
            evidence or None,
            inspection,
            None,
            row.x_last_seq,
            row.decision_count,
        )


def template_of(write: DecisionWrite, turn: ShapedTurn) -> Template | None:
    """Return *write*, a settlement that writes its entry and no more, with places for ids; None for any other."""
    decision, settlement, inspection = write.decision, write.settlement, write.inspection
    if (
        decision.action is not DecisionAction.SETTLE
        or decision.detail is not None
        or decision.not_before is not None
        or decision.reconcile_at is not None
        or decision.provider_error_attempt_id is not None
        or settlement is None
        or settlement.existing_entry_id is not None
        or settlement.calls_to_close
        or settlement.error is not None
        or inspection is None
        or inspection.problems
        or write.attempt_id is None
        or settlement.attempt_id != write.attempt_id
        or (write.plan, write.note, write.end_digest, write.end_reason) != (None, None, None, None)
    ):
        return None
    places = {name: place for place, name in enumerate(turn.entry_ids)}
    entries = {name: _NAME.format(place) for name, place in places.items()}
    calls = {name: _NAME.format(place) for place, name in enumerate(turn.call_ids, start=len(turn.entry_ids))}
    attempt = _NAME.format(len(turn.entry_ids) + len(turn.call_ids))
    answer = settlement.answer_entry_id
    parent = settlement.parent_entry_id
    if len(places) != len(turn.entry_ids) or parent not in places or (answer is not None and answer not in places):
        return None
    try:
        evidence = tuple([entries[name] for name in decision.evidence])
        named = replace(
            write,
            decision=replace(decision, evidence=evidence),
            settlement=replace(
                settlement,
                answer_entry_id=None if answer is None else entries[answer],
                attempt_id=attempt,
                evidence=tuple([entries[name] for name in settlement.evidence]),
                parent_entry_id=entries[parent],
            ),
            inspection=renamed(Answer(inspection, _NO_EVIDENCE, may_grow=False), entries, calls).inspection,
        )
    except KeyError:
        return None
    made = decision_row(named)
    text, found = _with_places(_BETWEEN.join((made.payload or "", made.evidence or "", made.inspection or "")))
    used = tuple(dict.fromkeys(found))
    return Template(
        made.kind,
        text,
        used,
        tuple([used.index(place) for place in found]),
        places[parent],
        None if answer is None else places[answer],
    )


def _with_places(text: str) -> tuple[str, Sequence[int]]:
    found = [int(place) for place in _NAMES_IN_JSON.findall(text)]
    return _NAMES_IN_JSON.sub("%s", text.replace("%", "%%")), found
