"""What operators do to single submissions. Every act is one transaction with its audit row.

A dry run is the act itself, taken back: what it says is what the act would do at this moment. "Already done" is
success. A refusal names what can be done instead.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from sqlalchemy.engine import Connection

from reconciler.core.model import Decision, Detail, SubmissionInspection
from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, Reason, SubmissionStatus
from reconciler.errors import AlreadySettled, Conflict, SessionDamaged, SessionMirrored, StoreConflict
from reconciler.ops.acting import act_reply, audit, gathered, locked, named, perform
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.naming import command
from reconciler.service.gather import Gathered
from reconciler.service.resume import make_settlement
from reconciler.store import operator_acts as store
from reconciler.store.around import Read, read_around
from reconciler.store.facts import stands
from reconciler.store.fence import Pruned
from reconciler.store.outcomes import request_abort
from reconciler.store.passes import lock_rows
from reconciler.store.settlements import DecisionWrite, Refused, apply_decisions

# --- abort -----------------------------------------------------------------------------------------------------------


def abort(asked: Asked) -> Reply:
    """Carry out `abort`."""
    call_key = uuid.uuid4().hex

    def work(conn: Connection) -> Reply:
        session_id, submission_id = named(conn, asked)
        found = request_abort(
            conn,
            session_id,
            submission_id,
            reason=asked["reason"],
            requested_by=asked.desk.operator,
            grace_s=asked.desk.limits.grace_s,
            call_key=call_key,
            repeated=False,
        )
        if found.made:
            audit(conn, asked, session_id, submission_id)
        if found.outcome is not None:
            message = f"it is settled already: {found.outcome.value}"
        elif not found.made:
            message = "its abort was asked for before"
        elif found.status is SubmissionStatus.RUNNING:
            message = (
                "its runner hears of it at its next beat; without a live lease, or after the grace, a pass settles it"
            )
        else:
            message = "the next pass settles it"
        return act_reply(
            asked,
            session_id=session_id,
            submission_id=submission_id,
            action="abort",
            done=found.made,
            message=message,
            status=found.status.value,
            outcome=None if found.outcome is None else found.outcome.value,
        )

    return perform(asked, work)


# --- retry -----------------------------------------------------------------------------------------------------------


def retry(asked: Asked) -> Reply:
    """Carry out `retry`."""

    def work(conn: Connection) -> Reply:
        session_id, submission_id, row = locked(conn, asked)
        name = f"{session_id}/{submission_id}"
        if isinstance(row, Pruned) or row.status == SubmissionStatus.SETTLED:
            raise AlreadySettled(
                f'cannot retry "{name}": it is settled {row.outcome}, and an outcome never changes',
                detail={"outcome": row.outcome},
                hint=_anew(row, name),
            )
        if row.session_origin != "native":
            raise SessionMirrored(f'cannot retry "{name}": its session is mirrored, another program owns it')
        if row.abort_requested_at is not None:
            raise Conflict(f'cannot retry "{name}": its abort was asked for', hint="the next pass settles it")
        if row.held_at is not None:
            raise Conflict(
                f'cannot retry "{name}": it is held ({row.held_reason})',
                hint=f"see what it is held for, and what ends that: {command('explain', name)}",
            )
        if row.status == SubmissionStatus.WAITING:
            raise Conflict(
                f'cannot retry "{name}": it is parked and waits for an answer', hint="answer it, or abort it"
            )
        left = store.lease_left_s(conn, row)
        already = _nothing_to_retry(conn, row, left)
        if already is None:
            store.grant_retry(conn, row, operator=asked.desk.operator, note=asked["reason"])
            audit(conn, asked, session_id, submission_id)
        return act_reply(
            asked,
            session_id=session_id,
            submission_id=submission_id,
            action="retry",
            done=already is None,
            message=already or "its backoff is over and it has one more attempt; the next pass queues it",
            status=row.status,
        )

    return perform(asked, work)


def _anew(row: Any, name: str) -> str:
    """Return how settled work is done once more, where that is possible."""
    if isinstance(row, Pruned):
        return "its payload is gone: submit it with its payload, under another id"
    if row.session_origin != "native":
        return "its session is mirrored: give the prompt to the program that owns it, or own the session (import --own)"
    return f"submit its payload anew: {command('submit --again', name)}"


def _nothing_to_retry(conn: Connection, row: Any, lease_left_s: float | None) -> str | None:
    if row.status == SubmissionStatus.RUNNING:
        if lease_left_s is not None and lease_left_s > 0:
            return "it is running"
        return "its lease is over: the next pass decides on it"
    if row.decision_action == "retry":
        return "a retry was granted before; the next pass queues it"
    due = lock_rows(conn, [(row.session_id, row.id)])
    now = read_around(conn, due).now
    if due and stands(due[0]) and row.not_before is not None and row.not_before <= now:
        return "it has no backoff: a runner may claim it when its turn comes"
    return None


# --- settle ----------------------------------------------------------------------------------------------------------


def settle(asked: Asked) -> Reply:
    """Carry out `settle`."""
    outcome = Outcome(asked["outcome"])

    def work(conn: Connection) -> Reply:
        session_id, submission_id, row = locked(conn, asked)
        name = f"{session_id}/{submission_id}"
        if isinstance(row, Pruned) or row.status == SubmissionStatus.SETTLED:
            if row.outcome != outcome:
                raise AlreadySettled(
                    f'cannot settle "{name}" as {outcome.value}: it is settled {row.outcome}, and that never changes',
                    detail={"outcome": row.outcome},
                )
            message = f"it is settled already: {row.outcome}"
            return act_reply(
                asked,
                session_id=session_id,
                submission_id=submission_id,
                action="settle",
                done=False,
                message=message,
                status="settled",
                outcome=row.outcome,
            )
        left = store.lease_left_s(conn, row)
        if left is not None and left > 0 and not asked["fence"]:
            raise Conflict(
                f'cannot settle "{name}": its runner holds a live lease, {left:.0f} s of it are left',
                hint="abort it and let the runner stop, or fence the runner off with --fence",
            )
        found, read = gathered(conn, asked, session_id, submission_id)
        _check_outcome(found, outcome, name)
        _write_settlement(conn, asked, found, read, outcome)
        audit(conn, asked, session_id, submission_id)
        return act_reply(
            asked,
            session_id=session_id,
            submission_id=submission_id,
            action="settle",
            done=True,
            message=f"settled {outcome.value} by hand",
            status="settled",
            outcome=outcome.value,
        )

    return perform(asked, work)


def _check_outcome(found: Gathered, outcome: Outcome, name: str) -> None:
    if found.around.settlement_entry_id is not None:
        raise Conflict(
            f'cannot settle "{name}": its record holds a settlement entry already', hint="reconciler once adopts it"
        )
    shows_answer = found.error is None and found.inspection.state is SubmissionInspection.COMPLETED
    if outcome is not Outcome.COMPLETED and shows_answer:
        raise Conflict(
            f'cannot settle "{name}" as {outcome.value}: its record shows finished work'
            f" ({found.inspection.detail.value})",
            hint="settle it completed, or let a pass do it: reconciler once",
        )


def _write_settlement(conn: Connection, asked: Asked, found: Gathered, read: Read, outcome: Outcome) -> None:
    row = found.row
    evidence = tuple(
        entry for entry in (found.inspection.deciding_entry_id, found.inspection.input_entry_id) if entry is not None
    )
    decision = Decision(
        DecisionAction.SETTLE,
        Reason.SETTLED_BY_OPERATOR,
        gate=0,
        outcome=outcome,
        attempt_end=None if row.current_attempt_id is None else AttemptEnd.SETTLED,
        evidence=evidence,
    )
    write = DecisionWrite(
        session_id=row.session_id,
        submission_id=row.submission_id,
        status=SubmissionStatus(row.status),
        session_version=row.x_version,
        revision=row.revision,
        decision=decision,
        attempt_id=row.current_attempt_id,
        lease_expires_at=None,
        settlement=make_settlement(found, decision),
        inspection=None if found.error is not None else found.inspection,
        decided_by=asked.desk.operator,
        note=asked["reason"],
    )
    result = apply_decisions(conn, [write], now=read.now)[0]
    if isinstance(result, Refused):
        raise StoreConflict(f'could not settle "{row.session_id}/{row.submission_id}": {result.reason.value} changed')


# --- release ---------------------------------------------------------------------------------------------------------

# Holds for what the record shows: released only where it doesn't show it any more.
_BY_RECORD: Final = frozenset({Reason.INTEGRITY_HOLD.value, Reason.INSPECTION_ERROR.value})


def release(asked: Asked) -> Reply:
    """Carry out `release`."""

    def work(conn: Connection) -> Reply:
        session_id, submission_id, row = locked(conn, asked)
        name = f"{session_id}/{submission_id}"
        if isinstance(row, Pruned) or row.status == SubmissionStatus.SETTLED or row.held_at is None:
            settled = isinstance(row, Pruned) or row.status == SubmissionStatus.SETTLED
            return act_reply(
                asked,
                session_id=session_id,
                submission_id=submission_id,
                action="release",
                done=False,
                message=f"it is settled: {row.outcome}" if settled else "it is not held",
                status="settled" if settled else row.status,
                outcome=row.outcome,
            )
        moved = ""
        if asked["repair_leaf"] is not None:
            session = store.lock_native_session(conn, session_id, "repair the leaf of")
            move = store.move_leaf(
                conn, session, asked["repair_leaf"], operator=asked.desk.operator, note=asked["reason"]
            )
            moved = f'; the leaf is "{asked["repair_leaf"]}" (was "{move.before}")' if move.moved else ""
            row = store.locked(conn, session_id, submission_id)
        found, _ = gathered(conn, asked, session_id, submission_id)
        _check_sound(found, row, name, asked)
        store.release_hold(conn, row, operator=asked.desk.operator, note=asked["reason"])
        audit(conn, asked, session_id, submission_id)
        return act_reply(
            asked,
            session_id=session_id,
            submission_id=submission_id,
            action="release",
            done=True,
            message=f"released from its hold ({row.held_reason}){moved}; the next pass decides on it",
            status=row.status,
        )

    return perform(asked, work)


def _check_sound(found: Gathered, row: Any, name: str, asked: Asked) -> None:
    damage = found.error
    if damage is None and found.inspection.detail is Detail.INTEGRITY_HOLD:
        damage = found.inspection.integrity
    if damage is None or row.held_reason not in _BY_RECORD:
        return
    by_hand = command("settle", name, "OUTCOME")
    if row.session_origin != "native":
        hint = f"mend the file and import it again, or settle it: {by_hand}"
    elif asked["repair_leaf"] is not None:
        hint = f"the path from that entry is damaged too: name another one, or settle it: {by_hand}"
    else:
        mend = command("release", name, "--repair-leaf ENTRY")
        hint = f"settle it ({by_hand}), abort it ({command('abort', name)}), or mend the record: {mend}"
    raise SessionDamaged(f'cannot release "{name}": what it is held for is still there: {damage}', hint=hint)
