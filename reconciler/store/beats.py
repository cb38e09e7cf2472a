"""Beats: leases of many attempts renewed at once, and what the rows say to their holders.

A beat waits for no lock: a locked attempt is renewed next time. It writes the lease only, under no index, and revives
an ended one while its attempt is still current. Knows nothing of threads.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.due import directive
from reconciler.core.model import AttemptFacts, Limits
from reconciler.core.states import AttemptEnd, Directive, Outcome
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.facts import limits_for
from reconciler.store.fence import AttemptRef
from reconciler.store.types import UtcDateTime


@dataclass(frozen=True, slots=True)
class Beat:
    """What one attempt was told. ``renewed`` is False where its row was locked, or where it is lost."""

    attempt_id: str
    directive: Directive
    renewed: bool
    # The submission's, if it has one.
    outcome: Outcome | None = None
    end: AttemptEnd | None = None


_FOUND: Final = (
    "SELECT k.attempt_id AS asked, a.number, a.claimed_at, a.lease_expires_at, a.progress_at, a.begun_at, a.ended_at,"
    " a.end_kind, s.limits, s.current_attempt_id, s.abort_requested_at, s.deadline_at, s.outcome,"
    " {renewed} AS renewed, {now} AS now"
    " FROM k LEFT JOIN attempts a ON a.session_id = k.session_id AND a.attempt_id = k.attempt_id"
    " LEFT JOIN submissions s ON s.session_id = a.session_id AND s.id = a.submission_id"
)
_TYPES: Final = {
    name: UtcDateTime()
    for name in (
        "claimed_at",
        "lease_expires_at",
        "progress_at",
        "begun_at",
        "ended_at",
        "abort_requested_at",
        "deadline_at",
        "now",
    )
}

_BEAT_PG: Final = sa.text(
    "WITH k AS MATERIALIZED (SELECT * FROM unnest(CAST(:sessions AS text[]), CAST(:attempts AS text[]))"
    " AS k(session_id, attempt_id)),"
    " b AS MATERIALIZED (SELECT a.session_id, a.attempt_id FROM k JOIN attempts a"
    " ON a.session_id = k.session_id AND a.attempt_id = k.attempt_id"
    " WHERE a.ended_at IS NULL FOR UPDATE OF a SKIP LOCKED),"
    " u AS (UPDATE attempts a SET beat_at = clock_timestamp(),"
    " lease_expires_at = GREATEST(a.lease_expires_at, clock_timestamp() + a.lease_s * interval '1 second')"
    " FROM b WHERE a.session_id = b.session_id AND a.attempt_id = b.attempt_id RETURNING a.session_id, a.attempt_id) "
    + _FOUND.format(renewed="(u.attempt_id IS NOT NULL)", now="clock_timestamp()")
    + " LEFT JOIN u ON u.session_id = k.session_id AND u.attempt_id = k.attempt_id"
).columns(**_TYPES)

_RENEW_SQLITE: Final = sa.text(
    "UPDATE attempts SET beat_at = :now, lease_expires_at = MAX(lease_expires_at, :lease_expires_at)"
    " WHERE session_id = :session_id AND attempt_id = :attempt_id AND ended_at IS NULL"
).bindparams(sa.bindparam("now", type_=UtcDateTime()), sa.bindparam("lease_expires_at", type_=UtcDateTime()))
_FOUND_SQLITE: Final = (
    sa.text(
        "WITH k AS (SELECT json_extract(value, '$[0]') AS session_id, json_extract(value, '$[1]') AS attempt_id"
        " FROM json_each(:keys)) "
        + _FOUND.format(renewed="(a.ended_at IS NULL AND a.attempt_id IS NOT NULL)", now=":now").replace(
            "SELECT k.attempt_id", "SELECT a.session_id, a.lease_s, k.attempt_id"
        )
    )
    .bindparams(sa.bindparam("now", type_=UtcDateTime()))
    .columns(**_TYPES)
)


def beat(conn: Connection, refs: Sequence[AttemptRef], *, limits: Limits) -> list[Beat]:
    """Renew the leases of *refs* and return what each is told, in the order of *refs*.

    One statement on PostgreSQL, two on SQLite, however many attempts there are.
    """
    if not refs:
        return []
    if is_postgresql(conn):
        rows = conn.execute(
            _BEAT_PG, {"sessions": [ref.session_id for ref in refs], "attempts": [ref.attempt_id for ref in refs]}
        ).all()
    else:
        # Differs on SQLite because it has no data-modifying CTE and no interval; the transaction holds the write lock.
        now = db_now(conn)
        keys = json.dumps([[ref.session_id, ref.attempt_id] for ref in refs])
        rows = conn.execute(_FOUND_SQLITE, {"keys": keys, "now": now}).all()
        renewals = [
            {
                "session_id": row.session_id,
                "attempt_id": row.asked,
                "now": now,
                "lease_expires_at": now + timedelta(seconds=row.lease_s),
            }
            for row in rows
            if row.renewed
        ]
        if renewals:
            conn.execute(_RENEW_SQLITE, renewals)
    told = {
        row.asked: Beat(
            attempt_id=row.asked,
            directive=_directive(row, limits),
            renewed=bool(row.renewed) and row.current_attempt_id == row.asked,
            outcome=None if row.outcome is None else Outcome(row.outcome),
            end=None if row.end_kind is None else AttemptEnd(row.end_kind),
        )
        for row in rows
    }
    return [told[ref.attempt_id] for ref in refs]


def _directive(row: sa.Row[tuple[object, ...]], limits: Limits) -> Directive:
    found = row._mapping
    claimed_at = found["claimed_at"]
    own = limits_for(limits, found["limits"])
    if not isinstance(claimed_at, datetime):
        return Directive.LOST
    return directive(
        AttemptFacts(
            attempt_id=str(found["asked"]),
            number=found["number"],
            claimed_at=claimed_at,
            lease_expires_at=found["lease_expires_at"],
            begun=found["begun_at"] is not None,
            made_progress=found["progress_at"] is not None,
            last_progress_at=found["progress_at"],
            end=None if found["end_kind"] is None else AttemptEnd(found["end_kind"]),
        ),
        is_current=found["current_attempt_id"] == found["asked"],
        abort_requested_at=found["abort_requested_at"],
        deadline_at=found["deadline_at"],
        now=found["now"],
        limits=own,
    )
