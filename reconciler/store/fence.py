"""The fence: what an attempt may still write, asked in the transaction that writes it (I6).

Rows are locked in one order (session, submission; I15). Only then, in a statement of its own and with the clock of that
moment, the attempt is read: while the submission's row is held nobody can end the attempt, and a lease only ever grows.
Knows nothing of what is written behind the fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.states import AttemptEnd, Outcome, SubmissionStatus
from reconciler.errors import AttemptLost, NotFound
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.schema import attempts, sessions, settled_ids, submissions
from reconciler.store.types import UtcDateTime


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """Which attempt of which submission writes. ``attempt_id`` is the fence."""

    session_id: str
    submission_id: str
    attempt_id: str

    @property
    def name(self) -> str:
        """Return how messages name the submission."""
        return f'submission "{self.session_id}/{self.submission_id}"'


class LeaseEnded(AttemptLost):
    """The attempt's lease has ended, but the attempt is still the current one: a beat revives it."""


@dataclass(frozen=True, slots=True)
class Held:
    """The locked rows of a session and of a submission in it, and the attempt as it was read after the locks.

    ``now`` is the database's clock, read after the locks. ``attempt`` is None where there is no such attempt.
    """

    ref: AttemptRef
    now: datetime
    # The submission's columns, and the session's with the prefix ``session_``.
    row: Any
    attempt: Any


# Each column once, under its own name: the two rows travel in one.
_SESSION_COLUMNS: Final = tuple(
    column.label(f"session_{column.name}")
    for column in sessions.c
    if column.name not in {"id", "last_ticket", "created_at", "updated_at"}
)

_LOCK: Final = (
    # Sessions first: the rows are locked in the order in which the tables are named.
    sa.select(*_SESSION_COLUMNS, *submissions.c)
    .select_from(sessions.join(submissions, submissions.c.session_id == sessions.c.id))
    .where(sessions.c.id == sa.bindparam("p_session"), submissions.c.id == sa.bindparam("p_submission"))
    .with_for_update(of=[sessions, submissions])
)
_ATTEMPT: Final = sa.select(*attempts.c).where(
    attempts.c.session_id == sa.bindparam("p_session"), attempts.c.attempt_id == sa.bindparam("p_attempt")
)
_CLOCK: Final = sa.func.clock_timestamp(type_=UtcDateTime()).label("now")
_ATTEMPT_AND_CLOCK: Final = _ATTEMPT.add_columns(_CLOCK)
_OUTCOME_KEPT: Final = sa.select(settled_ids.c.outcome).where(
    settled_ids.c.session_id == sa.bindparam("p_session"), settled_ids.c.submission_id == sa.bindparam("p_submission")
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A submission of which only the outcome is left."""

    outcome: str


def lock_submission(conn: Connection, session_id: str, submission_id: str) -> Any | Pruned:
    """Lock the session's and the submission's row and return them as one (see `Held.row`).

    Raises:
        NotFound: there is no such submission, and there never was one that was settled.
    """
    keys = {"p_session": session_id, "p_submission": submission_id}
    row = conn.execute(_LOCK, keys).one_or_none()
    if row is not None:
        return row
    outcome = conn.execute(_OUTCOME_KEPT, keys).scalar_one_or_none()
    if outcome is not None:
        return Pruned(outcome)
    raise NotFound(
        f'there is no submission "{session_id}/{submission_id}"',
        hint="check the ids; `reconciler list` shows what there is",
    )


def hold(conn: Connection, ref: AttemptRef) -> Held:
    """Lock the session's and the submission's row, then read the attempt and the clock.

    Raises:
        AttemptLost: the submission was settled and pruned since.
        NotFound: there is no such submission.
    """
    row = lock_submission(conn, ref.session_id, ref.submission_id)
    if isinstance(row, Pruned):
        raise AttemptLost(
            f"cannot write for {ref.name}: it was settled {row.outcome} and pruned since", outcome=row.outcome
        )
    wanted = {"p_session": ref.session_id, "p_attempt": ref.attempt_id}
    if is_postgresql(conn):
        attempt = conn.execute(_ATTEMPT_AND_CLOCK, wanted).one_or_none()
        now: datetime = db_now(conn) if attempt is None else attempt.now
    else:
        # Differs on SQLite because the immediate transaction is the lock, and the clock is the host's.
        attempt = conn.execute(_ATTEMPT, wanted).one_or_none()
        now = db_now(conn)
    if attempt is not None and attempt.submission_id != ref.submission_id:
        attempt = None
    return Held(ref=ref, now=now, row=row, attempt=attempt)


def fence_error(held: Held, act: str) -> AttemptLost | None:
    """Return why the attempt may not write, None where it may. *act* is the verb of the message: "append to"."""
    ref, attempt, row = held.ref, held.attempt, held.row
    start = f"cannot {act} {ref.name}: "
    if attempt is None:
        return AttemptLost(f"{start}it has no attempt {ref.attempt_id}", outcome=row.outcome)
    mine = f"attempt {attempt.number}"
    if row.status == SubmissionStatus.SETTLED:
        return AttemptLost(f"{start}it is settled {row.outcome}", outcome=row.outcome)
    if row.current_attempt_id != ref.attempt_id:
        why = "was replaced by another one" if row.current_attempt_id else _ENDS.get(attempt.end_kind, "is over")
        return AttemptLost(f"{start}{mine} {why}", detail=_detail(held))
    if attempt.lease_expires_at <= held.now:
        return LeaseEnded(f"could not {act} {ref.name}: the lease of {mine} has ended", detail=_detail(held))
    return None


def require_fence(held: Held, act: str) -> None:
    """Refuse a late writer.

    Raises:
        AttemptLost: the attempt is not the current one, or its lease is over (LeaseEnded); nothing was written.
    """
    error = fence_error(held, act)
    if error is not None:
        raise error


def is_current(held: Held) -> bool:
    """Tell whether the attempt is the current one, whatever its lease."""
    return held.attempt is not None and held.row.current_attempt_id == held.ref.attempt_id


_ENDS: Final[dict[str, str]] = {
    AttemptEnd.SETTLED: "was settled",
    AttemptEnd.FAILED: "ended with fail()",
    AttemptEnd.RELEASED: "was given back",
    AttemptEnd.PARKED: "was parked",
    AttemptEnd.CRASHED: "was taken for crashed",
    AttemptEnd.STALLED: "was taken for stalled",
    AttemptEnd.OVERRUN: "ran over its abort or its deadline",
    AttemptEnd.HELD: "was held",
}


def _detail(held: Held) -> dict[str, Any]:
    outcome = held.row.outcome
    return {
        "outcome": None if outcome is None else Outcome(outcome).value,
        "attempt_end": held.attempt.end_kind,
        "current_attempt_id": held.row.current_attempt_id,
    }
