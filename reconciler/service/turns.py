"""A turn's beginning and its ends, each in one transaction: what is read of the record, and what follows from it.

Called with the connection of a write transaction. The fence is asked behind the locks; repeats are recognised before
it. Knows nothing of threads, retries or the clock of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json, content_digest
from reconciler.core.classifier import (
    active_path,
    inspect_session,
    open_calls,
    submission_input_entry_id,
    submission_settlement_entry_id,
)
from reconciler.core.model import (
    KIND_MESSAGE,
    ROLE_SIGNAL,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    CallDispatch,
    Decision,
    Detail,
    Inspection,
    Limits,
    OpenCall,
    SessionEntry,
    SubmissionInspection,
)
from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Outcome,
    Reason,
    ResumeMode,
    SubmissionStatus,
)
from reconciler.core.subturn import ResumePlan, marker_text
from reconciler.core.terms import tool_marker_entry_id
from reconciler.errors import Conflict, InvalidInput, NotBegun, NotFound, StoreConflict
from reconciler.service.gather import Gathered, gather
from reconciler.service.resume import answer_entry_id, unresolved_calls
from reconciler.store.around import read_around_one, sent_for_one
from reconciler.store.attempts import Ending, end_attempt, is_repeated_end, record_begin
from reconciler.store.facts import limits_for, read_texts
from reconciler.store.fence import AttemptRef, Held, hold, require_fence, sent_first
from reconciler.store.new_entries import PreparedEntry
from reconciler.store.outcomes import SettledSubmission, settled_from
from reconciler.store.passes import DueRow
from reconciler.store.paths import SessionRead, read_sessions
from reconciler.store.schema import sessions
from reconciler.store.sending import Query
from reconciler.store.settlements import DecisionWrite, Landed, Settlement, apply_decisions

# A session with more entries is read before the locks are taken, and only looked at again under them.
READ_UNDER_LOCK_MAX: Final = 2_000

BEGIN_DIGEST: Final = content_digest({"verb": "begin"})


def end_digest(verb: str, **arguments: object) -> str:
    """Return what tells a repeated call of *verb* from one with other arguments."""
    return content_digest({"verb": verb, **arguments})


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries of a session as they were at *version*."""

    version: int
    leaf_entry_id: str | None
    leaf_known_empty: bool
    read: SessionRead


_SESSION: Final = sa.select(
    sessions.c.version, sessions.c.leaf_entry_id, sessions.c.leaf_known_empty, sessions.c.last_seq
).where(sessions.c.id == sa.bindparam("p_session"))


def read_snapshot(conn: Connection, session_id: str, limits: Limits) -> Snapshot:
    """Read a session whole, in one consistent state.

    Raises:
        NotFound: there is no such session (any more).
        LimitExceeded: it has more entries than ``path_entries_max``.
    """
    row = conn.execute(_SESSION, {"p_session": session_id}).one_or_none()
    if row is None:
        raise NotFound(f'there is no session "{session_id}"')
    return Snapshot(
        version=row.version,
        leaf_entry_id=row.leaf_entry_id,
        leaf_known_empty=row.leaf_known_empty,
        read=_read_whole(conn, session_id, row.last_seq, limits),
    )


def _read_whole(conn: Connection, session_id: str, last_seq: int, limits: Limits) -> SessionRead:
    if last_seq == 0:
        return SessionRead((), None, frozenset())
    ((_, read),) = read_sessions(conn, {session_id: last_seq}, entries_max=limits.path_entries_max)
    return read


def _is_write_ahead(read: SessionRead, path: Sequence[SessionEntry], input_entry_id: str | None) -> bool:
    """R12: whether every entry of the path from the input on is known to come from a write-ahead writer."""
    for entry in reversed(path):
        if entry.id in read.plain:
            return False
        if entry.id == input_entry_id:
            break
    return True


def _inspect_whole(held: Held, read: SessionRead) -> Inspection:
    found = inspect_session(
        read.entries,
        held.row.session_leaf_entry_id,
        held.ref.submission_id,
        write_ahead=True,
        leaf_known_empty=held.row.session_leaf_known_empty,
    )
    if not read.plain:
        return found
    path = active_path(read.entries, held.row.session_leaf_entry_id)
    return inspect_session(
        read.entries,
        held.row.session_leaf_entry_id,
        held.ref.submission_id,
        write_ahead=_is_write_ahead(read, path, found.input_entry_id),
        leaf_known_empty=held.row.session_leaf_known_empty,
    )


def _gather(conn: Connection, held: Held, limits: Limits) -> Gathered:
    """Inspect the turn as a pass would, from the leaf upwards and no further than needed."""
    row = _due_row(held)
    (gathered,) = gather(conn, [row], {row.key: read_around_one(conn, row)}, limits)
    return gathered


_DUE_COLUMNS: Final = tuple(
    (name, f"session_{name[2:]}" if name.startswith("x_") else "id" if name == "submission_id" else name)
    for name in DueRow._fields
    # What a pass could not read of a row; these columns are read with their types.
    if name != "fault"
)


def _due_row(held: Held) -> DueRow:
    return DueRow(**{name: getattr(held.row, column) for name, column in _DUE_COLUMNS})


# --- beginning -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun:
    """The turn has begun. ``path`` is the active path as it stands; None: the call was a repeat, read it."""

    path: tuple[SessionEntry, ...] | None


@dataclass(frozen=True, slots=True)
class Damaged:
    """The session's record is damaged: the submission is held now, and the attempt over."""

    integrity: str


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The record shows that there is no turn to run: the attempt was given back, and a pass decides."""

    detail: str


@dataclass(frozen=True, slots=True)
class TooLong:
    """The session is too long to be read under its lock: read it first (`read_snapshot`), then call again."""


BeginAnswer = Begun | Damaged | NothingToDo | TooLong


def begin(
    conn: Connection, ref: AttemptRef, *, limits: Limits, owner: str | None, snapshot: Snapshot | None = None
) -> BeginAnswer:
    """Start the turn: markers for open calls, the canonical input if the session lacks it, what the plan costs.

    Raises:
        AttemptLost: the attempt may not write (LeaseEnded: it may after a beat).
    """
    held = hold(conn, ref)
    attempt = held.attempt
    if attempt is not None and attempt.begun_at is not None:
        return Begun(None)
    if attempt is not None and attempt.end_digest == BEGIN_DIGEST:
        reason = attempt.end_reason or ""
        return Damaged(reason) if attempt.end_kind == AttemptEnd.HELD else NothingToDo(reason)
    require_fence(held, "begin")
    read = _session_for_begin(conn, held, limits, snapshot)
    if read is None:
        return TooLong()
    inspection = _inspect_whole(held, read)
    if inspection.detail is Detail.INTEGRITY_HOLD:
        _hold(conn, held, inspection, owner)
        return Damaged(inspection.integrity or "")
    if inspection.state is SubmissionInspection.COMPLETED or inspection.detail is Detail.LEAF_MOVED:
        ending = Ending(AttemptEnd.RELEASED, BEGIN_DIGEST, owner, reason=inspection.detail.value)
        end_attempt(conn, held, ending, limits_for(limits, held.row.limits))
        return NothingToDo(inspection.detail.value)
    plan = None if attempt.plan is None else ResumePlan.from_json(attempt.plan)
    path = active_path(read.entries, held.row.session_leaf_entry_id)
    chain = [_marker(call) for call in _calls_to_close(path, held, plan)]
    if inspection.state is SubmissionInspection.ABSENT:
        # Behind the markers: what was open belongs to earlier turns.
        chain.append(
            PreparedEntry(
                id=submission_input_entry_id(ref.submission_id),
                # It waits in the store since admission.
                payload=None,
                role=ROLE_SIGNAL if held.row.kind == "signal" else ROLE_USER,
            )
        )
    record_begin(
        conn,
        held,
        chain,
        spends_redispatch=plan is not None
        and plan.mode is ResumeMode.REDISPATCH
        and held.row.decision_reason != Reason.PROVIDER_RETRY,
        spends_sub_turn=plan is not None and plan.sub_turn is not None and plan.sub_turn.attempted,
    )
    return Begun((*path, *_as_entries(chain, held)))


def _session_for_begin(conn: Connection, held: Held, limits: Limits, snapshot: Snapshot | None) -> SessionRead | None:
    if snapshot is not None and snapshot.version == held.row.session_version:
        return snapshot.read
    if snapshot is None and held.row.session_last_seq > READ_UNDER_LOCK_MAX:
        return None
    # Somebody wrote in between, which in a native session happens once per attempt at most: read it here then.
    return _read_whole(conn, held.ref.session_id, held.row.session_last_seq, limits)


def _calls_to_close(path: Sequence[SessionEntry], held: Held, plan: ResumePlan | None) -> list[OpenCall]:
    waiting = (
        set(read_texts(held.row.pending_calls)) if plan is not None and plan.mode is ResumeMode.APPROVED else set()
    )
    closing: list[OpenCall] = []
    for call in reversed(open_calls(path)):
        # Ids repeat across turns: an approved id means the latest open call of that id (R2).
        if call.call_id in waiting:
            waiting.discard(call.call_id)
        else:
            closing.append(call)
    return list(reversed(closing))


def _marker(call: OpenCall) -> PreparedEntry:
    return PreparedEntry(
        id=tool_marker_entry_id(call.entry_id, call.position),
        payload=canonical_json({"dispatch": call.dispatch.value, "text": marker_text(call.dispatch)}),
        role=ROLE_TOOL_RESULT,
        tool_call_id=call.call_id,
        is_synthetic=True,
    )


def _as_entries(chain: Sequence[PreparedEntry], held: Held) -> tuple[SessionEntry, ...]:
    parent = held.row.session_leaf_entry_id
    made = []
    for entry in chain:
        made.append(
            SessionEntry(
                id=entry.id,
                parent_id=parent,
                kind=KIND_MESSAGE,
                role=entry.role,
                submission_id=held.ref.submission_id,
                attempt_id=held.ref.attempt_id,
                tool_call_id=entry.tool_call_id,
                is_synthetic=entry.is_synthetic,
            )
        )
        parent = entry.id
    return tuple(made)


def _hold(conn: Connection, held: Held, inspection: Inspection, owner: str | None) -> None:
    decision = Decision(
        DecisionAction.HOLD,
        Reason.INTEGRITY_HOLD,
        gate=6,
        attempt_end=AttemptEnd.HELD,
        # An abort is decided on all the same.
        reconcile_at=held.row.deadline_at if held.row.abort_requested_at is None else held.now,
        detail=inspection.integrity,
    )
    _write(conn, held, decision, inspection, owner, BEGIN_DIGEST, end_reason=inspection.integrity)


def _write(
    conn: Connection,
    held: Held,
    decision: Decision,
    inspection: Inspection,
    owner: str | None,
    digest: str,
    *,
    settlement: Settlement | None = None,
    end_reason: str | None = None,
) -> None:
    write = DecisionWrite(
        session_id=held.ref.session_id,
        submission_id=held.ref.submission_id,
        status=SubmissionStatus(held.row.status),
        session_version=held.row.session_version,
        revision=held.row.revision,
        decision=decision,
        attempt_id=held.ref.attempt_id,
        settlement=settlement,
        inspection=inspection,
        decided_by=owner,
        end_digest=digest,
        end_reason=end_reason,
    )
    (result,) = apply_decisions(conn, [write], now=held.now, last=True)
    if not isinstance(result, Landed):
        # Not to be met while the locks are held. Nothing was written; the whole transaction is tried again.
        raise StoreConflict(f"could not write for {held.ref.name}: {result.reason.value}")


# --- settling --------------------------------------------------------------------------------------------------------


def sent_first_to_settle(ref: AttemptRef) -> tuple[Query, ...]:
    """Return what `settle` sends first on PostgreSQL, to go ahead with the transaction's beginning."""
    return (*sent_first(ref), sent_for_one(ref.session_id, ref.submission_id))


def settle(
    conn: Connection, ref: AttemptRef, outcome: Outcome, *, error: str | None, limits: Limits, owner: str | None
) -> SettledSubmission:
    """Write the outcome: markers for what is open, the settlement entry, the row, the attempt, the log.

    *error* is JSON text.

    Raises:
        AttemptLost: the attempt may not write (LeaseEnded: it may after a beat).
        NotBegun: completed, before begin().
        Conflict: it was settled otherwise by this attempt, or the record shows a finished answer and *outcome* is
            another one.
    """
    digest = end_digest("settle", outcome=outcome.value, error=error)
    held = hold(conn, ref)
    if is_repeated_end(held, AttemptEnd.SETTLED, digest):
        return settled_from(held.row)
    require_fence(held, "settle")
    if outcome is Outcome.COMPLETED and held.attempt.begun_at is None:
        raise NotBegun(
            f"cannot settle {ref.name} completed: attempt {held.attempt.number} has not begun", hint="call begin()"
        )
    gathered = _gather(conn, held, limits)
    inspection = gathered.inspection
    is_answered = gathered.error is None and inspection.state is SubmissionInspection.COMPLETED
    if is_answered and outcome is not Outcome.COMPLETED:
        raise Conflict(
            f"cannot settle {ref.name} {outcome.value}: the record shows that its turn is finished"
            f" ({inspection.detail.value}, entry {inspection.deciding_entry_id})",
            detail={"detail": inspection.detail.value, "deciding_entry_id": inspection.deciding_entry_id},
            hint='call settle("completed")',
        )
    evidence = (inspection.deciding_entry_id, inspection.input_entry_id)
    # An empty session has no leaf that could be left alone.
    becomes_leaf = gathered.error is None and (gathered.on_path or held.row.session_last_seq == 0)
    settlement = Settlement(
        outcome=outcome,
        reason=Reason.SETTLED_BY_RUNNER.value,
        detail=None if gathered.error is not None else inspection.detail.value,
        answer_entry_id=answer_entry_id(gathered) if outcome is Outcome.COMPLETED else None,
        recovered=False,
        attempt_id=ref.attempt_id,
        evidence=tuple(dict.fromkeys(entry_id for entry_id in evidence if entry_id is not None)),
        parent_entry_id=gathered.hangs_from,
        becomes_leaf=becomes_leaf,
        calls_to_close=unresolved_calls(gathered) if gathered.on_path else (),
        error=error,
    )
    decision = Decision(
        DecisionAction.SETTLE,
        Reason.SETTLED_BY_RUNNER,
        gate=3 if outcome is Outcome.COMPLETED else 4,
        outcome=outcome,
        attempt_end=AttemptEnd.SETTLED,
        evidence=settlement.evidence,
    )
    _write(conn, held, decision, inspection, owner, digest, settlement=settlement)
    return SettledSubmission(
        session_id=ref.session_id,
        submission_id=ref.submission_id,
        outcome=outcome,
        reason=settlement.reason,
        detail=settlement.detail,
        answer_entry_id=settlement.answer_entry_id,
        settlement_entry_id=submission_settlement_entry_id(ref.submission_id),
        recovered=False,
        error=error,
        settled_at=held.now,
    )


# --- ending without an outcome ---------------------------------------------------------------------------------------


def give_up(conn: Connection, ref: AttemptRef, ending: Ending, act: str, *, limits: Limits) -> SubmissionStatus:
    """End the attempt without an outcome: fail, release, park. Return the status that the submission has now.

    Raises:
        AttemptLost: the attempt may not write (LeaseEnded: it may after a beat).
        Conflict: it was ended so before with other arguments.
        InvalidInput: a call that is to wait for approval is not open on the turn's path, or was started.
    """
    held = hold(conn, ref)
    if is_repeated_end(held, ending.end, ending.digest):
        return SubmissionStatus(held.row.status)
    require_fence(held, act)
    if ending.pending_calls:
        _require_pending(conn, held, ending.pending_calls, limits)
    return end_attempt(conn, held, ending, limits_for(limits, held.row.limits))


def _require_pending(conn: Connection, held: Held, pending: Sequence[str], limits: Limits) -> None:
    dispatch = {call.call_id: call.dispatch for call in _gather(conn, held, limits).evidence.open_calls}
    for call_id in pending:
        if call_id not in dispatch:
            raise InvalidInput(
                f'cannot park {held.ref.name} for call "{call_id}": it is not open on the active path',
                hint="append the response with its calls first, and name the calls that wait for approval",
            )
        if dispatch[call_id] is CallDispatch.STARTED:
            raise InvalidInput(
                f'cannot park {held.ref.name} for call "{call_id}": it was started',
                hint="only a call that has not started yet can be approved; append its result first",
            )
