"""What operators do by hand, each inside the caller's transaction, behind the locks of session and submission.

Settling is no business of this file: it goes through ``settlements.apply_decisions`` like every other decision. Here
stand the acts that change a row, a leaf or a record so that the next pass decides afresh. Each writes its line in the
submission's log; the audit row is the caller's. Knows nothing of inspections and policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.model import INPUT_ID_PREFIX, KIND_MESSAGE, ROLE_SIGNAL, ROLE_TOOL_RESULT, ROLE_USER
from reconciler.core.states import DecisionAction, Reason, SessionOrigin, SubmissionStatus
from reconciler.errors import NotFound, SessionMirrored, StoreConflict
from reconciler.store.attempts import Logged, log_act, update_submission
from reconciler.store.dialect import db_now, for_update
from reconciler.store.facts import ACTION_RETRY
from reconciler.store.fence import Pruned, lock_submission
from reconciler.store.schema import (
    STATUS_SETTLED,
    attempts,
    decisions,
    entries,
    entry_payloads,
    sessions,
    submissions,
)

# Rows of one session that a moved leaf wakes in one act.
WOKEN_MAX: Final = 10_000


def locked(conn: Connection, session_id: str, submission_id: str) -> Any | Pruned:
    """Lock a submission with its session and return the row (see `fence.Held.row`), or what is left of a pruned one.

    Raises:
        NotFound: there is no such submission.
    """
    return lock_submission(conn, session_id, submission_id)


def lease_left_s(conn: Connection, row: Any) -> float | None:
    """Return the seconds left of a locked row's lease by the database's clock: below 0 if over, None if not running."""
    if row.current_attempt_id is None:
        return None
    ends: datetime = conn.execute(
        sa.select(attempts.c.lease_expires_at).where(
            attempts.c.session_id == row.session_id, attempts.c.attempt_id == row.current_attempt_id
        )
    ).scalar_one()
    return (ends - db_now(conn)).total_seconds()


def grant_retry(conn: Connection, row: Any, *, operator: str, note: str | None) -> None:
    """End a queued row's backoff and grant it one more attempt; the next pass decides without waiting."""
    now = db_now(conn)
    changes = log_act(conn, row, Logged(ACTION_RETRY, "retried", operator, note=note), now=now, reconcile_at=now)
    changes |= {
        "attempts_granted": row.attempts_granted + 1,
        "not_before": None,
        "reconcile_at": now,
        # No decision stands behind it: the policy sees that a person asked.
        "decision_action": ACTION_RETRY,
        "decision_reason": "retried",
        "decision_revision": None,
    }
    update_submission(conn, row.session_id, row.id, changes)


def release_hold(conn: Connection, row: Any, *, operator: str, note: str | None) -> None:
    """End a hold: the row is due, and the policy knows which hold a person released.

    The release of a hold for calls that may have run without a record buys one redispatch.
    """
    now = db_now(conn)
    changes = log_act(conn, row, Logged("release", row.held_reason, operator, note=note), now=now, reconcile_at=now)
    changes |= {
        "held_at": None,
        "held_reason": None,
        "hold_released_reason": row.held_reason,
        "reconcile_at": now,
    }
    if row.held_reason == Reason.UNLOGGED_CALLS_POSSIBLE:
        changes["redispatches_granted"] = row.redispatches_granted + 1
    update_submission(conn, row.session_id, row.id, changes)


def hold_by_hand(conn: Connection, row: Any, *, reason: Reason, operator: str, note: str | None) -> None:
    """Hold an idle row for a person; a row that is held keeps its first reason."""
    now = db_now(conn)
    changes = log_act(
        conn, row, Logged("hold", reason.value, operator, note=note), now=now, reconcile_at=row.deadline_at
    )
    changes |= {
        "held_at": row.held_at or now,
        "held_reason": row.held_reason or reason.value,
        "not_before": None,
        "reconcile_at": row.deadline_at,
        "decision_action": DecisionAction.HOLD.value,
        "decision_reason": reason.value,
        "decision_revision": row.revision + 1,
        "decision_version": row.session_version,
    }
    update_submission(conn, row.session_id, row.id, changes)


# --- sessions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeafMove:
    """What moving a leaf did: where it was, and the submissions that are looked at anew."""

    before: str | None
    woken: tuple[str, ...] = ()
    moved: bool = True


def lock_native_session(conn: Connection, session_id: str, act: str) -> Any:
    """Lock a native session and return its row.

    Raises:
        NotFound: there is none.
        SessionMirrored: another program owns it.
    """
    row = conn.execute(for_update(sa.select(sessions).where(sessions.c.id == session_id))).one_or_none()
    if row is None:
        raise NotFound(f'there is no session "{session_id}"')
    if row.origin != SessionOrigin.NATIVE:
        raise SessionMirrored(f'cannot {act} session "{session_id}": it is mirrored, another program owns it')
    return row


def live_submission(conn: Connection, session_id: str) -> Any:
    """Return the id, attempt and lease end of the session's running submission; None where none is running."""
    return conn.execute(
        sa.select(submissions.c.id, attempts.c.attempt_id, attempts.c.owner, attempts.c.lease_expires_at)
        .select_from(
            submissions.join(
                attempts,
                sa.and_(
                    attempts.c.session_id == submissions.c.session_id,
                    attempts.c.attempt_id == submissions.c.current_attempt_id,
                ),
            )
        )
        .where(submissions.c.session_id == session_id, submissions.c.current_attempt_id.is_not(None))
    ).first()


def head_submission(conn: Connection, session_id: str) -> str | None:
    """Return the first submission of a session without an outcome: what the session works on."""
    found: str | None = conn.execute(
        sa.select(submissions.c.id)
        .where(submissions.c.session_id == session_id, submissions.c.status != STATUS_SETTLED)
        .order_by(submissions.c.ticket)
        .limit(1)
    ).scalar_one_or_none()
    return found


def move_leaf(conn: Connection, session: Any, entry_id: str, *, operator: str, note: str | None) -> LeafMove:
    """Make *entry_id* the leaf of a locked native session; what waits in it is due, with nothing standing.

    Plans for an input that is not there stand at every version, and what is held waits for its person: both stay.

    Raises:
        NotFound: the session has no such entry.
    """
    if session.leaf_entry_id == entry_id:
        return LeafMove(entry_id, moved=False)
    there = conn.execute(
        sa.select(entries.c.id).where(entries.c.session_id == session.id, entries.c.id == entry_id)
    ).first()
    if there is None:
        raise NotFound(f'session "{session.id}" has no entry "{entry_id}"', hint="see `reconciler show SESSION`")
    now = db_now(conn)
    version = session.version + 1
    conn.execute(
        sa.update(sessions)
        .where(sessions.c.id == session.id)
        .values(version=version, leaf_entry_id=entry_id, leaf_moved_at=now, leaf_moved_version=version, updated_at=now)
    )
    waiting = conn.execute(
        sa.select(submissions.c.id, submissions.c.decision_reason, submissions.c.decision_detail)
        .where(
            submissions.c.session_id == session.id,
            submissions.c.status == sa.literal_column("'queued'"),
            submissions.c.held_at.is_(None),
        )
        .order_by(submissions.c.ticket)
        .limit(WOKEN_MAX)
    ).all()
    woken = [
        row.id for row in waiting if row.decision_reason != Reason.ADMITTED and row.decision_detail != "input_missing"
    ]
    for submission_id in woken:
        row = lock_submission(conn, session.id, submission_id)
        if isinstance(row, Pruned):
            continue
        act = Logged("move_leaf", "leaf_moved_by_hand", operator, note=note)
        changes = log_act(conn, row, act, now=now, reconcile_at=now) | {"not_before": None, "reconcile_at": now}
        update_submission(conn, session.id, submission_id, changes)
    return LeafMove(session.leaf_entry_id, tuple(woken))


def record_result(
    conn: Connection,
    session: Any,
    *,
    entry_id: str,
    tool_call_id: str,
    submission_id: str | None,
    payload: object,
) -> None:
    """Append a tool result below the leaf of a locked native session; it becomes the leaf.

    Raises:
        StoreConflict: the call was closed in between.
    """
    now = db_now(conn)
    there = conn.execute(
        sa.select(entries.c.id).where(entries.c.session_id == session.id, entries.c.id == entry_id)
    ).first()
    if there is not None:
        raise StoreConflict(f'could not record the result of call "{tool_call_id}": it was recorded in between')
    seq = session.last_seq + 1
    conn.execute(
        sa.insert(entries).values(
            session_id=session.id,
            seq=seq,
            id=entry_id,
            parent_id=session.leaf_entry_id,
            kind=KIND_MESSAGE,
            role=ROLE_TOOL_RESULT,
            submission_id=submission_id,
            tool_call_id=tool_call_id,
            content="text",
            is_synthetic=False,
            is_sidechain=False,
            ends_turn=False,
            starts_logged=False,
            write_ahead=True,
            created_at=now,
        )
    )
    conn.execute(
        sa.insert(entry_payloads).values(session_id=session.id, entry_id=entry_id, payload=canonical_json(payload))
    )
    conn.execute(
        sa.update(sessions)
        .where(sessions.c.id == session.id)
        .values(version=session.version + 1, last_seq=seq, leaf_entry_id=entry_id, updated_at=now)
    )


def wake(conn: Connection, row: Any, *, action: str, reason: str, operator: str, note: str | None) -> None:
    """Write an act in a row's log and have it looked at now; a held row keeps waiting for its person."""
    now = db_now(conn)
    running = row.status == SubmissionStatus.RUNNING
    due = row.reconcile_at if running else row.deadline_at if row.held_at is not None else now
    changes = log_act(conn, row, Logged(action, reason, operator, note=note), now=now, reconcile_at=due)
    update_submission(conn, row.session_id, row.id, changes | {"not_before": None, "reconcile_at": due})


# --- once more -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Original:
    """What a submission was admitted with, to admit it again. Texts are JSON."""

    payload: str
    entity_hints: str | None
    fact_count: int
    limits: str | None
    kind: str


def original_of(conn: Connection, session_id: str, submission_id: str) -> Original | None:
    """Return what a submission was admitted with; None where its payload is gone."""
    row = conn.execute(
        sa.select(submissions.c.entity_hints, submissions.c.fact_count, submissions.c.limits, submissions.c.kind).where(
            submissions.c.session_id == session_id, submissions.c.id == submission_id
        )
    ).first()
    if row is None:
        return None
    imported = (
        sa.select(entries.c.id)
        .where(
            entries.c.session_id == session_id,
            entries.c.submission_id == submission_id,
            entries.c.kind == sa.literal_column("'message'"),
            sa.or_(entries.c.role == ROLE_USER, entries.c.role == ROLE_SIGNAL),
            entries.c.is_synthetic.is_(sa.false()),
            entries.c.is_sidechain.is_(sa.false()),
        )
        .order_by(entries.c.seq)
        .limit(1)
    )
    for entry_id in (INPUT_ID_PREFIX + submission_id, conn.execute(imported).scalar_one_or_none()):
        payload = conn.execute(
            sa.select(entry_payloads.c.payload).where(
                entry_payloads.c.session_id == session_id, entry_payloads.c.entry_id == entry_id
            )
        ).scalar_one_or_none()
        if payload is not None:
            return Original(payload, row.entity_hints, row.fact_count, row.limits, row.kind)
    return None


def link_again(conn: Connection, session_id: str, submission_id: str, *, of: str, operator: str) -> None:
    """Write into an admission which submission it repeats, and who asked for it."""
    conn.execute(
        sa.update(decisions)
        .where(
            decisions.c.session_id == session_id,
            decisions.c.submission_id == submission_id,
            decisions.c.number == 1,
        )
        .values(note=f"again: {of}", decided_by=operator)
    )
