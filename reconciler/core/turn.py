"""One submission's turn, read entry by entry, and the table that says what it shows (contract 3.1; R1, R3, R4, R11).

``Turn`` is fed the nodes of a path from root to leaf and keeps a few numbers, so that the verdict at any point costs
nothing more and a branch can go on from a copy. What it needs of calls and results stands in the ``Pairing``.

This file knows nothing of leaves, sessions or damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconciler.core.model import (
    CONTENT_NONE,
    KIND_MESSAGE,
    ROLE_ASSISTANT,
    ROLE_TOOL_RESULT,
    STATE_OF_DETAIL,
    STOP_ABORTED,
    STOP_ERROR,
    CallDispatch,
    CallKey,
    Detail,
    Inspection,
    SessionEntry,
    SubmissionInspection,
)
from reconciler.core.pairing import Pairing, describe_open_calls, open_refs
from reconciler.core.terms import (
    FAILED_STOPS,
    RESPONSE_ENDS,
    STOPPED_BY_USER,
    is_bare,
    is_canonical_input,
    is_finished,
    is_foreign_input,
    stop_reason,
)

NOWHERE: Final = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The row of the table that held, with the entries that it names."""

    detail: Detail
    input_entry_id: str | None = None
    deciding_entry_id: str | None = None
    integrity: str | None = None

    @property
    def state(self) -> SubmissionInspection:
        return STATE_OF_DETAIL[self.detail]


class Turn:
    """What the entries fed so far show of a submission's turn. Entries are named by their node."""

    __slots__ = (
        "_answered",
        "_batch_from",
        "_batch_over",
        "_failed_bare_after_last",
        "_foreign",
        "_last",
        "_not_ending",
        "_open",
        "_orphan",
        "_pairing",
        "_submission_id",
        "input",
        "stopped_by",
    )

    def __init__(self, pairing: Pairing, submission_id: str) -> None:
        self._pairing = pairing
        self._submission_id = submission_id
        self._start(NOWHERE)

    def _start(self, node: int) -> None:
        # R3: the last input is the input; what came before it is past.
        self.input = node
        self.stopped_by: str | None = None
        self._foreign = NOWHERE
        self._last = NOWHERE
        self._orphan = NOWHERE
        self._failed_bare_after_last = False
        # The trailing batch (R4): the node of its first message with calls, and its calls counted. The next message
        # with calls begins a new one where the old one is over.
        self._batch_from = NOWHERE
        self._batch_over = True
        self._open = 0
        self._answered = 0
        self._not_ending = 0

    @property
    def batch_from(self) -> int:
        """Node of the first message with calls of the trailing batch; every later call of the path is in the batch."""
        return self._batch_from

    def copy(self) -> Turn:
        """Return a turn that goes on from here by itself."""
        other = Turn.__new__(Turn)
        for name in Turn.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def feed(self, node: int) -> None:
        """Take the next entry of the path."""
        entry = self._pairing.nodes[node]
        if is_canonical_input(entry, self._submission_id):
            self._start(node)
        elif self.input == NOWHERE or self._foreign != NOWHERE:
            # Before the input, or in somebody else's turn: nothing here is about this one.
            return
        elif is_foreign_input(entry, self._submission_id):
            self._foreign = node
        elif not entry.is_sidechain:
            if entry.kind == KIND_MESSAGE:
                self._feed_message(node, entry)
            if entry.stopped_by == STOPPED_BY_USER:
                self.stopped_by = STOPPED_BY_USER

    def _feed_message(self, node: int, entry: SessionEntry) -> None:
        if entry.role == ROLE_TOOL_RESULT:
            self._feed_result(node, entry)
        elif entry.role == ROLE_ASSISTANT and not entry.is_synthetic:
            stop = stop_reason(entry)
            if is_bare(entry) and (stop is None or stop in FAILED_STOPS):
                if stop is not None:
                    self._failed_bare_after_last = True
                    self._batch_over = True
                return
            self._last = node
            self._failed_bare_after_last = False
            self.stopped_by = None
            if entry.tool_call_ids:
                self._feed_calls(node, entry)
            if stop in RESPONSE_ENDS:
                self._batch_over = True

    def _feed_calls(self, node: int, entry: SessionEntry) -> None:
        if self._batch_over:
            self._batch_from = node
            self._batch_over = False
            self._open = self._answered = self._not_ending = 0
        pairing = self._pairing
        for position in range(len(entry.tool_call_ids)):
            call = (node, position)
            if call in pairing.closers:
                self._answered += 1
                # Until its own result comes by: where several branches have one, no order among them may decide.
                self._not_ending += call in pairing.going_on
            else:
                self._open += 1

    def _feed_result(self, node: int, entry: SessionEntry) -> None:
        self.stopped_by = None
        self._batch_over = True
        pairing = self._pairing
        if node in pairing.orphans:
            if self._orphan == NOWHERE:
                self._orphan = node
            return
        call = pairing.call_of.get(node)
        if call is None or self._batch_from == NOWHERE or pairing.depths[call[0]] < pairing.depths[self._batch_from]:
            return
        if not pairing.nodes[call[0]].is_synthetic:
            # Of all results of the call the one on this path counts.
            self._not_ending += (not entry.ends_turn) - (call in pairing.going_on)

    def verdict(self) -> Verdict:
        """Return the first row of the table that holds, ``settled_entry`` aside."""
        nodes = self._pairing.nodes
        if self.input == NOWHERE:
            return Verdict(Detail.INPUT_MISSING)
        input_id = nodes[self.input].id
        if self._foreign != NOWHERE:
            return Verdict(Detail.MOVED_ON, input_id, nodes[self._foreign].id)
        if self._last == NOWHERE:
            if self._orphan != NOWHERE:
                return Verdict(Detail.ORPHAN_RESULT, input_id, nodes[self._orphan].id)
            return Verdict(Detail.INPUT_ONLY, input_id, input_id)
        last = nodes[self._last]
        return Verdict(self._row_of(last), input_id, last.id)

    def _row_of(self, last: SessionEntry) -> Detail:
        if is_finished(last):
            return Detail.EMPTY_RESPONSE if last.content == CONTENT_NONE else Detail.RESPONSE_FINISHED
        if self._open:
            return Detail.TOOL_BATCH_PARTIAL if self._answered else Detail.TOOL_CALLS_UNRESOLVED
        stop = stop_reason(last)
        if last.tool_call_ids:
            if not self._not_ending:
                return Detail.TURN_ENDED_BY_TOOL
            if stop is None and not self._failed_bare_after_last:
                return Detail.TOOL_BATCH_RESOLVED
            return Detail.TOOL_RESULTS_READY
        if stop == STOP_ERROR:
            return Detail.PROVIDER_ERROR
        return Detail.RESPONSE_ABORTED if stop == STOP_ABORTED else Detail.RESPONSE_CUT


def read_turn(pairing: Pairing, submission_id: str) -> Turn:
    """Read the pairing's path from root to leaf."""
    turn = Turn(pairing, submission_id)
    for node in range(pairing.length):
        turn.feed(node)
    return turn


def conclude(
    pairing: Pairing,
    turn: Turn,
    verdict: Verdict,
    *,
    write_ahead: bool | None,
    problems: tuple[str, ...] = (),
) -> Inspection:
    """Put a verdict and the evidence of the path together (R12, R13)."""
    state = verdict.state
    refs = open_refs(pairing)
    calls = describe_open_calls(pairing, refs)
    trailing: list[str] = []
    interior: list[str] = []
    dispatch: dict[CallKey, CallDispatch] = {}
    continuable = state is SubmissionInspection.CONTINUABLE
    for (node, _), call in zip(refs, calls, strict=True):
        in_batch = continuable and turn.batch_from != NOWHERE and node >= turn.batch_from
        (trailing if in_batch else interior).append(call.call_id)
        dispatch[(call.entry_id, call.position)] = call.dispatch
    input_id = verdict.input_entry_id
    if input_id is None and turn.input != NOWHERE:
        input_id = pairing.nodes[turn.input].id
    return Inspection(
        state=state,
        detail=verdict.detail,
        input_entry_id=input_id,
        deciding_entry_id=verdict.deciding_entry_id,
        unresolved_tool_calls=tuple(trailing),
        interior_open_calls=tuple(interior),
        dispatch=dispatch,
        stopped_by=turn.stopped_by,
        unlogged_calls_possible=(
            write_ahead is not True and state in (SubmissionInspection.CONTINUABLE, SubmissionInspection.UNCERTAIN)
        ),
        integrity=verdict.integrity,
        problems=problems,
    )
