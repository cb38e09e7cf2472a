"""The fence: what an attempt may still write, asked in the transaction that writes it (I6).

Rows are locked in one order (session, submission; I15). Only then, in a statement of its own and with the clock of that
moment, the attempt is read: while the submission's row is held nobody can end the attempt, and a lease only ever grows.
Knows nothing of what is written behind the fence.
"""

# ruff: noqa: S608 - the statements are put together from the tables' own names; every value is bound.
from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.states import AttemptEnd, Outcome, SubmissionStatus
from reconciler.errors import AttemptLost, NotFound
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.prepared import Prepared
from reconciler.store.schema import attempts, sessions, settled_ids, submissions
from reconciler.store.sending import Query, send


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
_SESSION_NAMES: Final = tuple(
    column.name for column in sessions.c if column.name not in {"id", "last_ticket", "created_at", "updated_at"}
)
_OF_SESSION: Final = frozenset(f"session_{name}" for name in _SESSION_NAMES)


def _lock_statement(names: Sequence[str]) -> sa.Select[Any]:
    # Sessions first: the rows are locked in the order in which the tables are named.
    return (
        sa.select(
            *(
                sessions.c[name.removeprefix("session_")].label(name) if name in _OF_SESSION else submissions.c[name]
                for name in names
            )
        )
        .select_from(sessions.join(submissions, submissions.c.session_id == sessions.c.id))
        .where(sessions.c.id == sa.bindparam("p_session"), submissions.c.id == sa.bindparam("p_submission"))
        .with_for_update(of=[sessions, submissions])
    )


_ATTEMPT: Final = Prepared(
    sa.select(*attempts.c).where(
        attempts.c.session_id == sa.bindparam("p_session"), attempts.c.attempt_id == sa.bindparam("p_attempt")
    )
)
_OUTCOME_KEPT: Final = Prepared(
    sa.select(settled_ids.c.outcome).where(
        settled_ids.c.session_id == sa.bindparam("p_session"),
        settled_ids.c.submission_id == sa.bindparam("p_submission"),
    )
)


class _Narrow(NamedTuple):
    """What an append needs of the two rows."""

    session_id: str
    id: str
    status: str
    outcome: str | None
    current_attempt_id: str | None
    abort_requested_at: datetime | None
    session_version: int
    session_leaf_entry_id: str | None
    session_last_seq: int


_WIDE_NAMES: Final = (
    *(f"session_{name}" for name in _SESSION_NAMES),
    *(column.name for column in submissions.c),
)
_Wide: Final[Any] = namedtuple("_Wide", _WIDE_NAMES)  # type: ignore[misc] # its fields are the tables' columns
_ATTEMPT_NAMES: Final = (*(column.name for column in attempts.c), "now")
_AttemptRow: Final[Any] = namedtuple("_AttemptRow", _ATTEMPT_NAMES)  # type: ignore[misc] # the same


def _lock_text(names: Sequence[str]) -> str:
    columns = ", ".join(f"x.{name.removeprefix('session_')}" if name in _OF_SESSION else f"s.{name}" for name in names)
    return (
        f"SELECT {columns} FROM sessions x JOIN submissions s ON s.session_id = x.id"
        " WHERE x.id = %(session)s AND s.id = %(submission)s FOR UPDATE OF x, s"
    )


_LOCK: Final = {
    False: Prepared(_lock_statement(_Narrow._fields)),
    True: Prepared(_lock_statement(_WIDE_NAMES)),
}
_LOCK_PG: Final = {False: _lock_text(_Narrow._fields), True: _lock_text(_WIDE_NAMES)}
# A statement of its own, behind the locks.
_ATTEMPT_PG: Final = (
    f"SELECT {', '.join(column.name for column in attempts.c)}, clock_timestamp() FROM attempts"
    " WHERE session_id = %(session)s AND attempt_id = %(attempt)s"
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """A submission of which only the outcome is left."""

    outcome: str


def lock_submission(conn: Connection, session_id: str, submission_id: str, *, wide: bool = True) -> Any | Pruned:
    """Lock the session's and the submission's row and return them as one (see `Held.row`), not *wide* as for `hold`.

    Raises:
        NotFound: there is no such submission, and there never was one that was settled.
    """
    keys = {"p_session": session_id, "p_submission": submission_id}
    row = _LOCK[wide].one_or_none(conn, keys)
    if row is not None:
        return row
    kept = _OUTCOME_KEPT.one_or_none(conn, keys)
    if kept is not None:
        return Pruned(kept.outcome)
    raise NotFound(
        f'there is no submission "{session_id}/{submission_id}"',
        hint="check the ids; `reconciler list` shows what there is",
    )


def sent_first(ref: AttemptRef, *, wide: bool = True) -> tuple[Query, ...]:
    """Return what `hold` sends on PostgreSQL, to go ahead with the transaction's beginning (`run_transaction`)."""
    keys = {"session": ref.session_id, "submission": ref.submission_id, "attempt": ref.attempt_id}
    return (_LOCK_PG[wide], keys), (_ATTEMPT_PG, keys)


def hold(conn: Connection, ref: AttemptRef, *, wide: bool = True) -> Held:
    """Lock the session's and the submission's row, then read the attempt and the clock.

    Not *wide*: of the two rows only what an append needs.

    Raises:
        AttemptLost: the submission was settled and pruned since.
        NotFound: there is no such submission.
    """
    if is_postgresql(conn):
        # In one round trip, each with a snapshot of its own: the second sees what was committed before the locks.
        locked, found = send(conn, *sent_first(ref, wide=wide))
        if locked:
            row: Any = (_Wide if wide else _Narrow)._make(locked[0])
            attempt: Any = _AttemptRow._make(found[0]) if found else None
            now: datetime = db_now(conn) if attempt is None else attempt.now
            return _held(ref, now, row, attempt)
    row = lock_submission(conn, ref.session_id, ref.submission_id, wide=wide)
    if isinstance(row, Pruned):
        raise AttemptLost(
            f"cannot write for {ref.name}: it was settled {row.outcome} and pruned since", outcome=row.outcome
        )
    attempt = _ATTEMPT.one_or_none(conn, {"p_session": ref.session_id, "p_attempt": ref.attempt_id})
    return _held(ref, db_now(conn), row, attempt)


def _held(ref: AttemptRef, now: datetime, row: Any, attempt: Any) -> Held:
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
