"""Guarded writes of decisions: whole batches, each row landing only where it is still the one that was inspected.

A decision is one write: guard, markers, settlement entry, session version, submission row, attempt, decision row (I3,
I11), and all of it or none. This file carries decisions out; it takes none, and knows nothing of inspections beyond
what is recorded of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json_parsed
from reconciler.core.model import (
    KIND_MESSAGE,
    ROLE_TOOL_RESULT,
    Decision,
    Inspection,
    OpenCall,
)
from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, SubmissionStatus
from reconciler.core.subturn import ResumePlan, marker_text
from reconciler.core.terms import submission_settlement_entry_id, tool_marker_entry_id
from reconciler.errors import InvalidInput
from reconciler.store import settlement_sql as sql
from reconciler.store.dialect import is_postgresql
from reconciler.store.settlement_rows import (
    HOLD_CLEAR,
    HOLD_KEEP,
    HOLD_SET,
    AttemptRow,
    DecisionRow,
    EntryRow,
    Kind,
    PushRow,
    Rows,
)


@dataclass(frozen=True, slots=True)
class Settlement:
    """A terminal outcome, and where its entry goes.

    ``existing_entry_id`` names the settlement entry that is adopted: no entry is written then. ``parent_entry_id`` and
    ``becomes_leaf`` follow the contract, section 4; `reconciler.service.resume.place_settlement` answers them.
    ``calls_to_close`` are closed by markers that hang between the parent and the settlement; give none in mirrored or
    damaged sessions. ``error`` is JSON text.
    """

    outcome: Outcome
    reason: str
    detail: str | None = None
    answer_entry_id: str | None = None
    # A daemon wrote it.
    recovered: bool = True
    # The attempt that it ends, or the last one.
    attempt_id: str | None = None
    evidence: tuple[str, ...] = ()
    parent_entry_id: str | None = None
    becomes_leaf: bool = False
    calls_to_close: tuple[OpenCall, ...] = ()
    error: str | None = None
    existing_entry_id: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionWrite:
    """One decision with its guard: what the row must still be, and what it becomes.

    ``session_version``, ``revision``, ``attempt_id`` (the current one) and ``lease_expires_at`` (of that attempt) are
    as inspected; a ``lease_expires_at`` of None asks for no lease: adoption, a forced settlement, or a runner that has
    just proven its own.
    """

    session_id: str
    submission_id: str
    status: SubmissionStatus
    session_version: int
    revision: int
    decision: Decision
    attempt_id: str | None = None
    lease_expires_at: datetime | None = None
    # With SETTLE and ADOPT.
    settlement: Settlement | None = None
    # With REQUEUE, and with ADVISE to requeue.
    plan: ResumePlan | None = None
    # Recorded with the decision.
    inspection: Inspection | None = None
    decided_by: str | None = None
    note: str | None = None
    # A park that was answered: the answer is used up.
    uses_unpark: bool = False
    # For the attempt that ends: the digest of the call that ended it, so that a repeat is recognised.
    end_digest: str | None = None
    end_reason: str | None = None
    # The session's last seq and the row's number of decisions, where they were read in the transaction that writes:
    # SQLite need not read them, and the guard, again.
    last_seq: int | None = None
    decision_count: int | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """A row that is left as it is, and is due later. Not a write in the sense of I12: the revision stays."""

    session_id: str
    submission_id: str
    revision: int
    reconcile_at: datetime | None


class RefusedReason(StrEnum):
    """Why a guarded write did not land."""

    MISSING = "missing"
    # It has its outcome.
    SETTLED = "settled"
    # The session's version is another one.
    VERSION = "version"
    # The row's revision is another one.
    REVISION = "revision"
    # Another attempt is current.
    ATTEMPT = "attempt"
    # The attempt's lease was renewed.
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Landed:
    """The write is in the transaction. ``settlement_entry_id`` is set where it settled."""

    session_id: str
    submission_id: str
    settlement_entry_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was written for this one: the row is not the one that was inspected."""

    session_id: str
    submission_id: str
    reason: RefusedReason


def apply_decisions(
    conn: Connection,
    writes: Sequence[DecisionWrite | DecisionRow],
    *,
    now: datetime,
    pass_id: str | None = None,
    pushes: Sequence[Push] = (),
    last: bool = False,
) -> list[Landed | Refused]:
    """Write the decisions that still hold, in order of *writes*; push *pushes* on.

    A decision may be given as the row that is written of it (`decision_row`): a settlement that writes its entry, or
    one that writes no entry and counts no error.

    Call it in the transaction that holds the locks of the sessions, submissions and current attempts concerned, taken
    in that order (`passes.scan_due`, `passes.lock_rows`; on SQLite the immediate transaction is the lock): the guard
    compares what stands in the tables, and without the locks a beat could land beside it. At most one decision for a
    submission, and for a native session, in one call; a mirrored session may have several.

    *now* is the database's clock, read after the locks. One statement on PostgreSQL (and one more where a row was
    refused, for the reason); on SQLite a constant number, whatever the number of rows. *last*: whatever lands, the
    transaction ends with it (see `sending.send`).

    Raises:
        InvalidInput: a decision that writes nothing, a settlement without an outcome to write, or two for one row.
        IntegrityError, DataError (of SQLAlchemy): a row can't be stored; the transaction is to be rolled back.
    """
    _check(writes)
    if not writes and not pushes:
        return []
    if is_postgresql(conn):
        landed = sql.write_postgresql(conn, _rows(writes, pass_id), _push_rows(pushes), now, last=last)
    else:
        landed = sql.write_sqlite(conn, _rows(writes, pass_id), _push_rows(pushes), now)
    return _results(conn, writes, landed)


def _check(writes: Sequence[DecisionWrite | DecisionRow]) -> None:
    if len({_key(write) for write in writes}) != len(writes):
        seen: set[tuple[str, str]] = set()
        for write in writes:
            if _key(write) in seen:
                raise InvalidInput(f"cannot write two decisions at once for {_name(write)}")
            seen.add(_key(write))
    for write in writes:
        if isinstance(write, DecisionRow):
            continue
        action = write.decision.action
        if not write.decision.is_written:
            raise InvalidInput(f"cannot write a decision to {action.value} for {_name(write)}: it changes nothing")
        settles = action in (DecisionAction.SETTLE, DecisionAction.ADOPT)
        if settles != (write.settlement is not None):
            raise InvalidInput(
                f"cannot write a decision to {action.value} for {_name(write)}: the settlement does not fit it"
            )


def _name(write: DecisionWrite | DecisionRow) -> str:
    return f'submission "{write.submission_id}" of session "{write.session_id}"'


def _results(
    conn: Connection, writes: Sequence[DecisionWrite | DecisionRow], landed: set[tuple[str, str]]
) -> list[Landed | Refused]:
    missed = [] if len(landed) == len(writes) else [write for write in writes if _key(write) not in landed]
    reasons = _refused_reasons(conn, missed) if missed else {}
    results: list[Landed | Refused] = []
    for write in writes:
        key = _key(write)
        if key in reasons:
            results.append(Refused(*key, reasons[key]))
        else:
            results.append(Landed(*key, _settlement_entry_id(write)))
    return results


def _refused_reasons(
    conn: Connection, missed: Sequence[DecisionWrite | DecisionRow]
) -> dict[tuple[str, str], RefusedReason]:
    found = {
        (row.session_id, row.submission_id): row for row in sql.read_guards(conn, [_key(write) for write in missed])
    }
    reasons = {}
    for write in missed:
        row = found.get(_key(write))
        attempt_id, version, revision = (
            (write.guard_attempt, write.guard_version, write.guard_revision)
            if isinstance(write, DecisionRow)
            else (write.attempt_id, write.session_version, write.revision)
        )
        if row is None:
            reason = RefusedReason.MISSING
        elif row.status == SubmissionStatus.SETTLED:
            reason = RefusedReason.SETTLED
        elif row.current_attempt_id != attempt_id:
            reason = RefusedReason.ATTEMPT
        elif row.revision != revision:
            reason = RefusedReason.REVISION
        elif row.version != version:
            reason = RefusedReason.VERSION
        else:
            reason = RefusedReason.LEASE
        reasons[_key(write)] = reason
    return reasons


def _key(write: DecisionWrite | DecisionRow) -> tuple[str, str]:
    return write.session_id, write.submission_id


# --- rows ------------------------------------------------------------------------------------------------------------


def _settlement_entry_id(write: DecisionWrite | DecisionRow) -> str | None:
    if isinstance(write, DecisionRow):
        return submission_settlement_entry_id(write.submission_id) if write.kind.settles else write.settlement_entry_id
    if write.settlement is None:
        return None
    return write.settlement.existing_entry_id or submission_settlement_entry_id(write.submission_id)


def _next_status(write: DecisionWrite) -> SubmissionStatus:
    decision = write.decision
    if decision.action in (DecisionAction.SETTLE, DecisionAction.ADOPT):
        return SubmissionStatus.SETTLED
    if write.status is SubmissionStatus.WAITING and decision.action is not DecisionAction.REQUEUE:
        return SubmissionStatus.WAITING
    return SubmissionStatus.QUEUED


def _holds(write: DecisionWrite) -> str:
    if write.decision.holds:
        return HOLD_SET
    return HOLD_KEEP if write.decision.action is DecisionAction.WAIT else HOLD_CLEAR


def decision_row(write: DecisionWrite) -> DecisionRow:
    """Return the row of a decision that is the only one about its session, and writes no markers."""
    added = _added(write)
    return _decision_row(write, _kind(write), added, added)


def _rows(writes: Sequence[DecisionWrite | DecisionRow], pass_id: str | None) -> Rows:
    rows = Rows(pass_id)
    offsets: dict[str, int] = {}
    kinds: dict[Kind, Kind] = {}
    for write in writes:
        if isinstance(write, DecisionRow):
            rows.decisions.append(write)
            continue
        offset = offsets.get(write.session_id, 0)
        added = _added(write)
        offsets[write.session_id] = offset + added
        _add_markers(rows, write, offset)
        kind = _kind(write)
        rows.decisions.append(_decision_row(write, kinds.setdefault(kind, kind), added, offset + added))
        _add_attempts(rows, write)
    return rows


def _added(write: DecisionWrite) -> int:
    if write.settlement is None or write.settlement.existing_entry_id is not None:
        return 0
    return 1 + len(write.settlement.calls_to_close)


def _add_markers(rows: Rows, write: DecisionWrite, offset: int) -> None:
    settlement = write.settlement
    if settlement is None or settlement.existing_entry_id is not None:
        return
    parent = settlement.parent_entry_id
    for number, call in enumerate(settlement.calls_to_close, start=offset + 1):
        marker_id = tool_marker_entry_id(call.entry_id, call.position)
        rows.entries.append(
            EntryRow(
                session_id=write.session_id,
                submission_id=write.submission_id,
                number=number,
                id=marker_id,
                parent_id=parent,
                kind=KIND_MESSAGE,
                role=ROLE_TOOL_RESULT,
                tool_call_id=call.call_id,
                content="text",
                payload=canonical_json_parsed({"dispatch": call.dispatch.value, "text": marker_text(call.dispatch)}),
            )
        )
        parent = marker_id


def _parent(settlement: Settlement) -> str | None:
    """Return what the settlement's entry hangs from: the last of its markers, where there are any."""
    if settlement.calls_to_close:
        call = settlement.calls_to_close[-1]
        return tool_marker_entry_id(call.entry_id, call.position)
    return settlement.parent_entry_id


def settlement_payload(settlement: Settlement) -> str:
    """Return the canonical JSON that a settlement entry carries (see `facts.read_settlement`)."""
    # Texts, a truth value and a list of texts: nothing that would have to be looked through first.
    return canonical_json_parsed(
        {
            "answer_entry_id": settlement.answer_entry_id,
            "attempt_id": settlement.attempt_id,
            "detail": settlement.detail,
            "error": settlement.error,
            "evidence": list(settlement.evidence),
            "outcome": settlement.outcome.value,
            "reason": settlement.reason,
            "recovered": settlement.recovered,
        }
    )


def _end(write: DecisionWrite) -> str | None:
    """Return how the current attempt ends; None where there is none."""
    if write.attempt_id is None:
        return None
    if write.decision.attempt_end is not None:
        return write.decision.attempt_end.value
    # A row that is not running any more has no current attempt, whatever ended it.
    return (AttemptEnd.SETTLED if write.settlement is not None else AttemptEnd.CRASHED).value


def _says_more(write: DecisionWrite) -> bool:
    """Tell whether more is written of the current attempt than how it ended."""
    return (
        write.end_reason is not None
        or write.end_digest is not None
        or (write.attempt_id is not None and write.decision.provider_error_attempt_id == write.attempt_id)
    )


def _add_attempts(rows: Rows, write: DecisionWrite) -> None:
    counted = write.decision.provider_error_attempt_id
    if write.attempt_id is not None and _says_more(write):
        rows.attempts.append(
            AttemptRow(
                session_id=write.session_id,
                submission_id=write.submission_id,
                attempt_id=write.attempt_id,
                end_kind=_end(write),
                end_reason=write.end_reason,
                end_digest=write.end_digest,
                counted=counted == write.attempt_id,
            )
        )
    if counted is not None and counted != write.attempt_id:
        rows.attempts.append(
            AttemptRow(
                session_id=write.session_id,
                submission_id=write.submission_id,
                attempt_id=counted,
                end_kind=None,
                end_reason=None,
                end_digest=None,
                counted=True,
            )
        )


def _kind(write: DecisionWrite) -> Kind:
    decision, settlement, inspection, counters = (
        write.decision,
        write.settlement,
        write.inspection,
        write.decision.counters,
    )
    settles = settlement is not None and settlement.existing_entry_id is None
    return Kind(
        status=_next_status(write).value,
        hold=_holds(write),
        held_reason=decision.reason.value if decision.holds else None,
        uses_unpark=write.uses_unpark,
        crashes_in_row=None if counters is None else counters.crashes_in_row,
        provider_errors=None if counters is None else counters.provider_errors,
        outcome=None if settlement is None else settlement.outcome.value,
        outcome_reason=None if settlement is None else settlement.reason,
        outcome_detail=None if settlement is None else settlement.detail,
        recovered=None if settlement is None else settlement.recovered,
        settles=settles,
        becomes_leaf=settlement is not None and settles and settlement.becomes_leaf,
        decided_by=write.decided_by,
        action=decision.action.value,
        advice=None if decision.advice is None else decision.advice.value,
        reason=decision.reason.value,
        gate=decision.gate,
        state=None if inspection is None else inspection.state.value,
        detail=None if inspection is None else inspection.detail.value,
        decision_outcome=None if decision.outcome is None else decision.outcome.value,
        attempt_end=None if write.attempt_id is None or decision.attempt_end is None else decision.attempt_end.value,
        end_kind=None if _says_more(write) else _end(write),
    )


def _decision_row(write: DecisionWrite, kind: Kind, added: int, last_number: int) -> DecisionRow:
    decision, settlement, inspection = write.decision, write.settlement, write.inspection
    return DecisionRow(
        kind=kind,
        session_id=write.session_id,
        submission_id=write.submission_id,
        guard_version=write.session_version,
        guard_revision=write.revision,
        guard_attempt=write.attempt_id,
        guard_lease=write.lease_expires_at,
        added=added,
        last_number=last_number if added else 0,
        parent_id=None if settlement is None or not added else _parent(settlement),
        payload=None if settlement is None or not added else settlement_payload(settlement),
        answer_entry_id=None if settlement is None else settlement.answer_entry_id,
        settlement_entry_id=None if settlement is None else settlement.existing_entry_id,
        attempt_id=None if write.attempt_id is not None or settlement is None else settlement.attempt_id,
        not_before=decision.not_before,
        reconcile_at=None if settlement is not None else decision.reconcile_at,
        plan=None if write.plan is None else write.plan.to_json(),
        error=None if settlement is None else settlement.error,
        evidence=canonical_json_parsed(decision.evidence) if decision.evidence else None,
        inspection=None if inspection is None else _inspection_json(inspection),
        note=write.note or decision.detail,
        last_seq=write.last_seq,
        decision_count=write.decision_count,
    )


def _inspection_json(inspection: Inspection) -> str:
    # What has no column of its own; empty parts are left out, so that the usual decision stays short.
    found: dict[str, object] = {
        "input_entry_id": inspection.input_entry_id,
        "deciding_entry_id": inspection.deciding_entry_id,
        "unresolved_tool_calls": inspection.unresolved_tool_calls,
        "interior_open_calls": inspection.interior_open_calls,
        "dispatch": inspection.dispatch
        and [[entry, position, word.value] for (entry, position), word in inspection.dispatch.items()],
        "stopped_by": inspection.stopped_by,
        "unlogged_calls_possible": inspection.unlogged_calls_possible,
        "integrity": inspection.integrity,
        "problems": inspection.problems,
    }
    return canonical_json_parsed({name: value for name, value in found.items() if value})


def _push_rows(pushes: Sequence[Push]) -> list[PushRow]:
    return [PushRow(push.session_id, push.submission_id, push.revision, push.reconcile_at) for push in pushes]
