"""What an attempt does to its submission's row beside appending: it begins, reports, and ends without an outcome.

Every function is called behind the fence, with the locks of `fence.hold`; each leaves a row of the log where it ends an
attempt (I11). Knows nothing of paths or plans: what they cost is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.due import after, earliest
from reconciler.core.model import AttemptFacts, Counters, Limits
from reconciler.core.policy import counters_after
from reconciler.core.states import AttemptEnd, SubmissionEvent, SubmissionStatus, next_status
from reconciler.errors import Conflict, NotBegun, StoreFault
from reconciler.store.dialect import is_postgresql
from reconciler.store.entries import chain_query, write_chain, write_last
from reconciler.store.fence import AttemptRef, Held, fence_error, hold
from reconciler.store.new_entries import PreparedEntry
from reconciler.store.prepared import Prepared
from reconciler.store.schema import attempts, decisions, submissions
from reconciler.store.sending import Query
from reconciler.store.types import UtcDateTime

# --- rows ------------------------------------------------------------------------------------------------------------


def update_submission(conn: Connection, session_id: str, submission_id: str, changes: dict[str, Any]) -> None:
    """Change the submission's row; its revision rises."""
    conn.execute(
        sa.update(submissions)
        .where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
        .values(revision=submissions.c.revision + 1, **changes)
    )


def _update_attempt(conn: Connection, ref: AttemptRef, changes: dict[str, Any]) -> None:
    conn.execute(
        sa.update(attempts)
        .where(attempts.c.session_id == ref.session_id, attempts.c.attempt_id == ref.attempt_id)
        .values(**changes)
    )


@dataclass(frozen=True, slots=True)
class Logged:
    """An act of a runner in the submission's log. ``extra`` is written as JSON."""

    action: str
    reason: str
    decided_by: str | None
    note: str | None = None
    attempt_end: AttemptEnd | None = None
    extra: dict[str, Any] = field(default_factory=dict)


_INSERT_DECISION: Final = sa.insert(decisions)


def log_act(conn: Connection, row: Any, act: Logged, *, now: datetime, reconcile_at: datetime | None) -> dict[str, Any]:
    """Write the log's next row for a submission that is locked; return the change of its counter.

    *row* is the submission as it was locked, so the act's revision is the next one.
    """
    number = row.decision_count + 1
    conn.execute(
        _INSERT_DECISION,
        {
            "session_id": row.session_id,
            "submission_id": row.id,
            "number": number,
            "decided_at": now,
            "decided_by": act.decided_by,
            "action": act.action,
            "reason": act.reason,
            "attempt_id": row.current_attempt_id,
            "attempt_end": None if act.attempt_end is None else act.attempt_end.value,
            "inspection": canonical_json(act.extra) if act.extra else None,
            "reconcile_at": reconcile_at,
            "session_version": row.session_version,
            "revision": row.revision + 1,
            "note": act.note,
        },
    )
    return {"decision_count": number}


# --- beginning -------------------------------------------------------------------------------------------------------


def record_begin(
    conn: Connection, held: Held, chain: Sequence[PreparedEntry], *, spends_redispatch: bool, spends_sub_turn: bool
) -> None:
    """Write that the attempt begins: its entries below the leaf, and what beginning costs. Once per attempt."""
    row = held.row
    costs = {
        "attempts_begun": row.attempts_begun + 1,
        "redispatches": row.redispatches + int(spends_redispatch),
        "sub_turns_spent": row.sub_turns_spent + int(spends_sub_turn),
    }
    spent = {"spent_redispatch": spends_redispatch, "spent_sub_turn": spends_sub_turn}
    if is_postgresql(conn):
        keys = {
            "session": held.ref.session_id,
            "submission": held.ref.submission_id,
            "attempt": held.ref.attempt_id,
            "now": held.now,
        }
        writes: list[Query] = [(_BEGIN_SUBMISSION_PG, keys | costs), (_BEGIN_ATTEMPT_PG, keys | spent)]
        if chain:
            writes.append(chain_query(held, chain, parent_id=row.session_leaf_entry_id))
        if not write_last(conn, *writes):
            raise _taken(held, chain)
        return
    if chain and not write_chain(conn, held, chain, parent_id=row.session_leaf_entry_id):
        raise _taken(held, chain)
    # Approved calls are used up: after this they are open calls like others.
    keys = {"session": held.ref.session_id, "submission": held.ref.submission_id, "attempt": held.ref.attempt_id}
    _BEGIN_SUBMISSION_SQLITE.run(conn, [keys | costs])
    _BEGIN_ATTEMPT_SQLITE.run(conn, [keys | spent | {"now": held.now}])


# Differs on PostgreSQL because there a round trip costs more than a statement: all of a beginning travels in one.
_BEGIN_SUBMISSION_PG: Final = (
    "UPDATE submissions SET revision = revision + 1, attempts_begun = %(attempts_begun)s,"
    " redispatches = %(redispatches)s, sub_turns_spent = %(sub_turns_spent)s, pending_calls = NULL"
    " WHERE session_id = %(session)s AND id = %(submission)s"
)
_BEGIN_ATTEMPT_PG: Final = (
    "UPDATE attempts SET begun_at = %(now)s, spent_redispatch = %(spent_redispatch)s,"
    " spent_sub_turn = %(spent_sub_turn)s WHERE session_id = %(session)s AND attempt_id = %(attempt)s"
)


def _for_sqlite(text: str) -> sa.TextClause:
    return sa.text(re.sub(r"%\((\w+)\)s", r":\1", text))


_BEGIN_SUBMISSION_SQLITE: Final = Prepared(_for_sqlite(_BEGIN_SUBMISSION_PG))
_BEGIN_ATTEMPT_SQLITE: Final = Prepared(
    _for_sqlite(_BEGIN_ATTEMPT_PG).bindparams(sa.bindparam("now", type_=UtcDateTime()))
)


def _taken(held: Held, chain: Sequence[PreparedEntry]) -> StoreFault:
    return StoreFault(
        f"cannot begin {held.ref.name}: one of the ids {', '.join(entry.id for entry in chain)[:200]} is taken",
        hint="see `reconciler fsck`",
    )


# --- reporting -------------------------------------------------------------------------------------------------------


def report_sub_turn(conn: Connection, ref: AttemptRef, added: int) -> None:
    """Record how many facts the second retrieval brought: once per attempt, all of them.

    Raises:
        AttemptLost: the attempt may not write.
        NotBegun: begin() comes first.
        Conflict: another number was reported, or the attempt has no second retrieval.
    """
    held = hold(conn, ref)
    refused = fence_error(held, "report for")
    reported = None if held.attempt is None else held.attempt.sub_turn_added
    if reported is not None and reported == added:
        return
    if refused is not None:
        raise refused
    if held.attempt.begun_at is None:
        raise NotBegun(
            f"cannot report for {ref.name}: attempt {held.attempt.number} has not begun", hint="call begin()"
        )
    if reported is not None:
        raise Conflict(f"cannot report {added} facts for {ref.name}: {reported} were reported before")
    if not held.attempt.spent_sub_turn:
        raise Conflict(f"cannot report facts for {ref.name}: its plan has no second retrieval")
    update_submission(conn, ref.session_id, ref.submission_id, {"sub_turn_facts": held.row.sub_turn_facts + added})
    _update_attempt(conn, ref, {"sub_turn_added": added})


# --- ending without an outcome ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How a runner gives its attempt up. ``digest`` tells a repeat of the call from another one."""

    end: AttemptEnd
    digest: str
    decided_by: str | None
    reason: str | None = None
    # Of fail: JSON text, and whether a retry can help.
    error: str | None = None
    retryable: bool | None = None
    # Of park.
    park_s: float = 0.0
    pending_calls: tuple[str, ...] = ()


_EVENT: Final = {
    AttemptEnd.FAILED: SubmissionEvent.FAIL,
    AttemptEnd.RELEASED: SubmissionEvent.RELEASE,
    AttemptEnd.PARKED: SubmissionEvent.PARK,
}


def is_repeated_end(held: Held, end: AttemptEnd, digest: str) -> bool:
    """Tell whether exactly this call ended the attempt before.

    Raises:
        Conflict: the same verb ended it with other arguments.
    """
    attempt = held.attempt
    if attempt is None or attempt.end_digest is None or attempt.end_kind != end:
        return False
    if attempt.end_digest == digest:
        return True
    raise Conflict(
        f"cannot end attempt {attempt.number} of {held.ref.name} again: it ended {end.value} with other arguments",
        detail={"end": end.value, "outcome": held.row.outcome},
        hint="repeat the call with what it was first called with",
    )


def end_attempt(conn: Connection, held: Held, ending: Ending, limits: Limits) -> SubmissionStatus:
    """Give the attempt up, behind the fence; return the status that the submission has now.

    Its row waits for a decision: it is due now, except for a park, which is due when its wait is over. A release or a
    park gives the attempt back, as often as the limits allow; what was spent at the beginning of a turn stays spent.
    """
    row, attempt, now = held.row, held.attempt, held.now
    status = next_status(SubmissionStatus(row.status), _EVENT[ending.end])
    counters = counters_after(
        Counters(crashes_in_row=row.crashes_in_row, provider_errors=row.provider_errors),
        AttemptFacts(
            attempt_id=attempt.attempt_id,
            number=attempt.number,
            claimed_at=attempt.claimed_at,
            lease_expires_at=attempt.lease_expires_at,
            begun=attempt.begun_at is not None,
            made_progress=attempt.progress_at is not None,
            provider_error_counted=attempt.provider_error_counted,
        ),
        ending.end,
        limits,
    )
    gives_back = (ending.end is AttemptEnd.RELEASED and row.releases < limits.releases_max) or (
        ending.end is AttemptEnd.PARKED and row.parks < limits.parks_max
    )
    changes: dict[str, Any] = {
        "current_attempt_id": None,
        "last_attempt_id": attempt.attempt_id,
        "not_before": None,
        "crashes_in_row": counters.crashes_in_row,
        "provider_errors": counters.provider_errors,
        "attempts_spent": max(0, row.attempts_spent - int(gives_back)),
    }
    if ending.end is AttemptEnd.RELEASED and gives_back:
        changes["releases"] = row.releases + 1
    reconcile_at: datetime | None = now
    if ending.end is AttemptEnd.PARKED:
        changes |= {
            "parks": row.parks + int(gives_back),
            "parked_at": now,
            "park_reason": ending.reason,
            "pending_calls": canonical_json(ending.pending_calls) if ending.pending_calls else None,
        }
        if row.unparked_at is not None:
            # The answer came before the question.
            status = next_status(status, SubmissionEvent.UNPARK)
        else:
            changes["parked_until"] = after(now, ending.park_s)
            if row.abort_requested_at is None:
                reconcile_at = earliest(changes["parked_until"], row.deadline_at)
    act = Logged(
        action=_EVENT[ending.end].value,
        reason=_LOG_REASON[ending.end],
        decided_by=ending.decided_by,
        note=ending.reason,
        attempt_end=ending.end,
    )
    changes |= log_act(conn, row, act, now=now, reconcile_at=reconcile_at)
    update_submission(
        conn,
        held.ref.session_id,
        held.ref.submission_id,
        {**changes, "status": status.value, "reconcile_at": reconcile_at},
    )
    _update_attempt(
        conn,
        held.ref,
        {
            "ended_at": now,
            "end_kind": ending.end.value,
            "end_digest": ending.digest,
            "end_reason": ending.reason,
            "error": ending.error,
            "retryable": ending.retryable,
            "provider_error_counted": attempt.provider_error_counted or ending.end is AttemptEnd.FAILED,
        },
    )
    return status


_LOG_REASON: Final = {
    AttemptEnd.FAILED: "attempt_failed",
    AttemptEnd.RELEASED: "attempt_released",
    AttemptEnd.PARKED: "attempt_parked",
}
