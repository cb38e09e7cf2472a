"""What verifying settled work reads: rows with their settlement entries, page by page, oldest first.

Reads only. Whether a row agrees with its record is judged elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.store.schema import STATUS_SETTLED, attempts, entries, entry_payloads, submissions


@dataclass(frozen=True, slots=True)
class SettledRow:
    """A settled submission, its settlement entry (None: there is none), and what else must agree with it."""

    session_id: str
    submission_id: str
    settled_at: datetime
    outcome: str
    settlement_entry_id: str | None
    entry_kind: str | None
    entry_submission_id: str | None
    entry_payload: str | None
    answer_entry_id: str | None
    answer_is_there: bool
    live_attempt_id: str | None


@dataclass(frozen=True, slots=True)
class SweepCursor:
    """The last row of a page."""

    settled_at: datetime
    session_id: str
    submission_id: str


_ANSWER: Final = entries.alias("answer")
_LIVE: Final = attempts.alias("live")


def settled_page(
    conn: Connection, *, since: datetime, until: datetime, after: SweepCursor | None, limit: int
) -> list[SettledRow]:
    """Return submissions settled in (*since*, *until*], behind *after*, oldest first."""
    row = submissions.c
    statement = (
        sa.select(
            row.session_id,
            row.id,
            row.settled_at,
            row.outcome,
            row.settlement_entry_id,
            entries.c.kind,
            entries.c.submission_id,
            entry_payloads.c.payload,
            row.answer_entry_id,
            _ANSWER.c.id.is_not(None),
            _LIVE.c.attempt_id,
        )
        .select_from(
            submissions.outerjoin(
                entries, sa.and_(entries.c.session_id == row.session_id, entries.c.id == row.settlement_entry_id)
            )
            .outerjoin(
                entry_payloads,
                sa.and_(
                    entry_payloads.c.session_id == row.session_id, entry_payloads.c.entry_id == row.settlement_entry_id
                ),
            )
            .outerjoin(_ANSWER, sa.and_(_ANSWER.c.session_id == row.session_id, _ANSWER.c.id == row.answer_entry_id))
            .outerjoin(
                _LIVE,
                sa.and_(
                    _LIVE.c.session_id == row.session_id,
                    _LIVE.c.submission_id == row.id,
                    _LIVE.c.ended_at.is_(None),
                ),
            )
        )
        .where(row.status == STATUS_SETTLED, row.settled_at <= until)
        .order_by(row.settled_at, row.session_id, row.id)
        .limit(limit)
    )
    if after is None:
        statement = statement.where(row.settled_at > since)
    else:
        statement = statement.where(
            sa.tuple_(row.settled_at, row.session_id, row.id)
            > sa.tuple_(
                sa.literal(after.settled_at, row.settled_at.type),
                sa.literal(after.session_id),
                sa.literal(after.submission_id),
            )
        )
    return [SettledRow(*found) for found in conn.execute(statement)]
