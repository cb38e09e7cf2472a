"""Acts on a submission by those who hold no attempt of it: abort requests, answers to a park, outcomes taken note of.

One transaction per call, with the locks in order (session, submission). Knows nothing of attempts' writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.due import earliest
from reconciler.core.states import Outcome, SubmissionEvent, SubmissionStatus, next_status
from reconciler.errors import NotFound
from reconciler.store.attempts import Logged, log_act, update_submission
from reconciler.store.dialect import db_now
from reconciler.store.fence import Pruned, lock_submission
from reconciler.store.schema import attempts, decisions, settled_ids, submissions


@dataclass(frozen=True, slots=True)
class Requested:
    """What a request found. ``made``: this call made the change; else it was made before, or there is an outcome."""

    made: bool
    status: SubmissionStatus
    outcome: Outcome | None = None


_KEY: Final = "call_key"


def _made_before(conn: Connection, row: Any, action: str, call_key: str) -> bool:
    # Asked only where the call was tried before: the log tells whose change it was.
    found = conn.execute(
        sa.select(sa.literal(1)).where(
            decisions.c.session_id == row.session_id,
            decisions.c.submission_id == row.id,
            decisions.c.action == action,
            decisions.c.inspection == canonical_json({_KEY: call_key}),
        )
    ).first()
    return found is not None


def _pruned(row: Pruned) -> Requested:
    return Requested(False, SubmissionStatus.SETTLED, Outcome(row.outcome))


def _as_it_is(row: Any, *, made: bool) -> Requested:
    return Requested(made, SubmissionStatus(row.status), None if row.outcome is None else Outcome(row.outcome))


def request_abort(
    conn: Connection,
    session_id: str,
    submission_id: str,
    *,
    reason: str | None,
    requested_by: str | None,
    grace_s: float,
    call_key: str,
    repeated: bool,
) -> Requested:
    """Ask for the end of a submission: the first request counts, and survives every recovery.

    A row without a live lease is due at once; the holder of a live one hears of it at its next beat, and has the grace.

    Raises:
        NotFound: there is no such submission.
    """
    row = lock_submission(conn, session_id, submission_id)
    if isinstance(row, Pruned):
        return _pruned(row)
    if repeated and _made_before(conn, row, "abort", call_key):
        return _as_it_is(row, made=True)
    if row.status == SubmissionStatus.SETTLED or row.abort_requested_at is not None:
        return _as_it_is(row, made=False)
    now = db_now(conn)
    reconcile_at: datetime | None = now
    if row.status == SubmissionStatus.RUNNING:
        lease = conn.execute(
            sa.select(attempts.c.lease_expires_at).where(
                attempts.c.session_id == session_id, attempts.c.attempt_id == row.current_attempt_id
            )
        ).scalar_one()
        if lease > now:
            reconcile_at = earliest(row.reconcile_at, now + timedelta(seconds=grace_s), lease)
    act = Logged("abort", "abort_requested", requested_by, note=reason, extra={_KEY: call_key})
    changes = log_act(conn, row, act, now=now, reconcile_at=reconcile_at)
    changes |= {
        "abort_requested_at": now,
        "abort_reason": reason,
        "not_before": None,
        "reconcile_at": reconcile_at,
    }
    update_submission(conn, session_id, submission_id, changes)
    return _as_it_is(row, made=True)


def unpark(
    conn: Connection,
    session_id: str,
    submission_id: str,
    *,
    answered_by: str | None,
    call_key: str,
    repeated: bool,
) -> Requested:
    """Answer a park: the submission waits no longer. Before the park it is remembered, and the park ends at once.

    Raises:
        NotFound: there is no such submission.
    """
    row = lock_submission(conn, session_id, submission_id)
    if isinstance(row, Pruned):
        return _pruned(row)
    if repeated and _made_before(conn, row, "unpark", call_key):
        return _as_it_is(row, made=True)
    if row.status == SubmissionStatus.SETTLED or row.unparked_at is not None:
        return _as_it_is(row, made=False)
    now = db_now(conn)
    status = SubmissionStatus(row.status)
    changes: dict[str, Any] = {"unparked_at": now}
    reconcile_at = row.reconcile_at
    if status is not SubmissionStatus.RUNNING:
        # No decision stands behind this write. A held row still needs its person; it is due at its deadline.
        held = row.held_at is not None and row.abort_requested_at is None
        reconcile_at = row.deadline_at if held else now
        changes |= {"not_before": None, "reconcile_at": reconcile_at}
    if status is SubmissionStatus.WAITING:
        status = next_status(status, SubmissionEvent.UNPARK)
        changes |= {"status": status.value, "parked_until": None}
    changes |= log_act(
        conn,
        row,
        Logged("unpark", "unparked", answered_by, extra={_KEY: call_key}),
        now=now,
        reconcile_at=reconcile_at,
    )
    update_submission(conn, session_id, submission_id, changes)
    return Requested(True, status)


# --- outcomes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettledSubmission:
    """An outcome and what stands behind it. ``error`` is JSON text."""

    session_id: str
    submission_id: str
    outcome: Outcome
    reason: str
    detail: str | None
    answer_entry_id: str | None
    settlement_entry_id: str
    recovered: bool
    error: str | None
    settled_at: datetime


_SETTLED_COLUMNS: Final = (
    submissions.c.session_id,
    submissions.c.id,
    submissions.c.outcome,
    submissions.c.outcome_reason,
    submissions.c.outcome_detail,
    submissions.c.answer_entry_id,
    submissions.c.settlement_entry_id,
    submissions.c.recovered,
    submissions.c.error,
    submissions.c.settled_at,
)


def settled_from(row: Any) -> SettledSubmission:
    """Return the outcome of a submission's row that has one."""
    return SettledSubmission(
        session_id=row.session_id,
        submission_id=row.id,
        outcome=Outcome(row.outcome),
        reason=row.outcome_reason,
        detail=row.outcome_detail,
        answer_entry_id=row.answer_entry_id,
        settlement_entry_id=row.settlement_entry_id,
        recovered=bool(row.recovered),
        error=row.error,
        settled_at=row.settled_at,
    )


_UNACKNOWLEDGED: Final = (
    sa.select(*_SETTLED_COLUMNS)
    .where(sa.text("status = 'settled' AND recovered AND acknowledged_at IS NULL"))
    .order_by(submissions.c.settled_at, submissions.c.session_id, submissions.c.id)
    .limit(sa.bindparam("p_limit"))
)


def unacknowledged(conn: Connection, limit: int) -> Sequence[SettledSubmission]:
    """Return outcomes that a daemon decided and nobody took note of, oldest first, at most *limit*."""
    return [settled_from(row) for row in conn.execute(_UNACKNOWLEDGED, {"p_limit": limit})]


def acknowledge(conn: Connection, session_id: str, submission_id: str) -> bool:
    """Take note of an outcome; return whether this call did. Not a write of the row's own: the revision stays.

    Raises:
        NotFound: there is no such submission, or it has no outcome yet.
    """
    noted = conn.execute(
        sa.update(submissions)
        .where(
            submissions.c.session_id == session_id,
            submissions.c.id == submission_id,
            sa.text("status = 'settled'"),
            submissions.c.acknowledged_at.is_(None),
        )
        .values(acknowledged_at=db_now(conn))
    ).rowcount
    if noted:
        return True
    found = conn.execute(
        sa.select(submissions.c.acknowledged_at).where(
            submissions.c.session_id == session_id, submissions.c.id == submission_id
        )
    ).scalar_one_or_none()
    if found is not None:
        return False
    pruned = conn.execute(
        sa.select(settled_ids.c.outcome).where(
            settled_ids.c.session_id == session_id, settled_ids.c.submission_id == submission_id
        )
    ).scalar_one_or_none()
    if pruned is not None:
        return False
    raise NotFound(
        f'there is no settled submission "{session_id}/{submission_id}"',
        hint="only an outcome is acknowledged; `reconciler show` says where the submission stands",
    )
