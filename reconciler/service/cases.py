"""Whole decisions by case: rows that the policy can't tell apart are decided once, the others take that decision.

After an outage thousands of rows look alike: their turns have one shape (`shapes`), their counters are the same, their
leases are over. What the policy says of such a row, and what is written of it, depends on its ids only by where they
stand, and on its instants not at all. So a pass keeps, for each shape and case that it settled or requeued, what was
written, with names in the places of ids, and fills in the ids of the next one, and when it may be claimed. It is the
policy's own decision: nothing here decides, and a test compares both on random rows. Whatever is out of the ordinary
has no case: an instant that would have to be compared with the clock, an attempt that can't be judged yet, a decision
that names another time or counts something, a plan that is made from texts or from calls that a person approved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from reconciler.core.due import after
from reconciler.core.model import Inspection, Limits, TurnEvidence
from reconciler.core.policy import BackoffKind, backoff
from reconciler.core.states import DecisionAction, ResumeMode, SessionOrigin
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

    ``text`` is the payload, the evidence, the inspection and the plan, for the ids at ``places`` in the order of
    ``order``. Of a requeue, ``delay`` is what `backoff` is asked with (None: it may be claimed at once).
    """

    kind: Kind
    text: str
    places: tuple[int, ...]
    order: tuple[int, ...]
    parent_place: int | None
    answer_place: int | None
    delay: tuple[BackoffKind, int, Limits] | None = None

    def fill(
        self, row: DueRow, current: AttemptRow, turn: ShapedTurn, now: datetime, jitter: Callable[[], float]
    ) -> DecisionRow:
        """Return what is written of *row*, whose turn and case are the template's, at *now*."""
        entry_ids = turn.entry_ids
        ids = (*entry_ids, *turn.call_ids, current.attempt_id)
        encoded = [encode_basestring_ascii(ids[place]) for place in self.places]
        text = self.text % tuple([encoded[place] for place in self.order])
        payload, evidence, inspection, plan = text.split(_BETWEEN)
        added = int(self.kind.settles)
        not_before = None
        if not self.kind.settles:
            delay = self.delay
            not_before = now if delay is None else after(now, backoff(*delay, jitter=jitter()))
        return DecisionRow(
            self.kind,
            row.session_id,
            row.submission_id,
            row.x_version,
            row.revision,
            current.attempt_id,
            current.lease_expires_at,
            added,
            added,
            None if self.parent_place is None else ids[self.parent_place],
            payload or None,
            None if self.answer_place is None else ids[self.answer_place],
            None,
            None,
            not_before,
            None,
            plan or None,
            None,
            evidence or None,
            inspection,
            None,
            row.x_last_seq,
            row.decision_count,
        )


def template_of(
    write: DecisionWrite, turn: ShapedTurn, delay: tuple[BackoffKind, int, Limits] | None = None
) -> Template | None:
    """Return *write*, a settlement that writes its entry and no more or a requeue, with places for ids; else None.

    Of a requeue *delay* is what its backoff was asked with, None where there was none.
    """
    decision, inspection, attempt_id = write.decision, write.inspection, write.attempt_id
    if (
        decision.detail is not None
        or decision.reconcile_at is not None
        or decision.provider_error_attempt_id is not None
        or inspection is None
        or inspection.problems
        or attempt_id is None
        or (write.note, write.end_digest, write.end_reason) != (None, None, None)
    ):
        return None
    named = _Names(turn)
    try:
        match decision.action:
            case DecisionAction.SETTLE:
                made = _settled(write, inspection, named)
            case DecisionAction.REQUEUE:
                made = _requeued(write, inspection, named)
            case _:
                return None
    except KeyError:
        # It names what is not of its turn.
        return None
    if made is None:
        return None
    texts = (made.payload or "", made.evidence or "", made.inspection or "", made.plan or "")
    text, found = _with_places(_BETWEEN.join(texts))
    used = tuple(dict.fromkeys(found))
    settlement = write.settlement
    return Template(
        made.kind,
        text,
        used,
        tuple([used.index(place) for place in found]),
        None if settlement is None else named.places[settlement.parent_entry_id or ""],
        None if settlement is None or settlement.answer_entry_id is None else named.places[settlement.answer_entry_id],
        delay,
    )


class _Names:
    """What stands in the places of a turn's ids; ``places`` are those of its entries."""

    def __init__(self, turn: ShapedTurn) -> None:
        count = len(turn.entry_ids)
        self.places = {name: place for place, name in enumerate(turn.entry_ids)}
        if len(self.places) != count:
            # An id that comes twice has no place of its own.
            self.places = {}
        self.entries = {name: _NAME.format(place) for name, place in self.places.items()}
        self.calls = {name: _NAME.format(place) for place, name in enumerate(turn.call_ids, start=count)}
        self.attempt = _NAME.format(count + len(turn.call_ids))

    def of(self, write: DecisionWrite, inspection: Inspection) -> DecisionWrite:
        """Return *write* with the names in its decision and in its *inspection*."""
        answer = Answer(inspection, _NO_EVIDENCE, may_grow=False)
        return replace(
            write,
            decision=replace(write.decision, evidence=tuple([self.entries[name] for name in write.decision.evidence])),
            inspection=renamed(answer, self.entries, self.calls).inspection,
        )


def _settled(write: DecisionWrite, inspection: Inspection, named: _Names) -> DecisionRow | None:
    settlement = write.settlement
    if (
        settlement is None
        or settlement.existing_entry_id is not None
        or settlement.calls_to_close
        or settlement.error is not None
        or settlement.attempt_id != write.attempt_id
        or write.decision.not_before is not None
        or write.plan is not None
    ):
        return None
    answer = settlement.answer_entry_id
    renamed_settlement = replace(
        settlement,
        answer_entry_id=None if answer is None else named.entries[answer],
        attempt_id=named.attempt,
        evidence=tuple([named.entries[name] for name in settlement.evidence]),
        parent_entry_id=named.entries[settlement.parent_entry_id or ""],
    )
    return decision_row(replace(named.of(write, inspection), settlement=renamed_settlement))


def _requeued(write: DecisionWrite, inspection: Inspection, named: _Names) -> DecisionRow | None:
    plan = write.plan
    if plan is None or plan.sub_turn is not None or plan.mode is ResumeMode.APPROVED or write.uses_unpark:
        return None
    partial = plan.partial_entry_id
    renamed_plan = replace(
        plan,
        calls_to_close=tuple(
            [
                replace(call, entry_id=named.entries[call.entry_id], call_id=named.calls[call.call_id])
                for call in plan.calls_to_close
            ]
        ),
        partial_entry_id=None if partial is None else named.entries[partial],
    )
    return decision_row(replace(named.of(write, inspection), plan=renamed_plan))


def _with_places(text: str) -> tuple[str, Sequence[int]]:
    found = [int(place) for place in _NAMES_IN_JSON.findall(text)]
    return _NAMES_IN_JSON.sub("%s", text.replace("%", "%%")), found
