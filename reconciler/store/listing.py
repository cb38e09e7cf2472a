"""Lists that are read page by page: submissions, and decisions as they come.

A page goes on behind the last row of the one before by that row's key, never by an offset: rows that come or go in
between neither repeat nor hide others. The keys of a page are found first, over the few columns that filter and sort;
only the rows of the page are then read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from reconciler.store.dialect import db_now
from reconciler.store.views import v_decisions, v_pending, v_settlements, v_stuck

# Decisions become visible at commit, a little after the instant they carry: `tail` looks back so far.
TAIL_OVERLAP_S: Final = 10.0


class Which(StrEnum):
    """Which submissions are listed."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SETTLED = "settled"
    HELD = "held"
    OVERDUE = "overdue"
    # In v_stuck for longer than the overdue time.
    STUCK = "stuck"
    UNSETTLED = "unsettled"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Filters:
    """What is listed; None means any."""

    which: Which = Which.UNSETTLED
    session_id: str | None = None
    outcome: str | None = None
    # Of the outcome, of the hold, or of the last decision.
    reason: str | None = None
    origin: str | None = None
    owner: str | None = None
    # By the time of admission (unsettled) or of settling.
    since: datetime | None = None
    until: datetime | None = None
    oldest_first: bool = True
    overdue_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ended. ``settled`` tells in which of the two parts of the list."""

    settled: bool
    at: datetime
    session_id: str
    submission_id: str


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, and where the next page begins; None where there is none."""

    rows: Sequence[RowMapping]
    next: Place | None
    now: datetime


def submissions_page(conn: Connection, filters: Filters, *, limit: int, after: Place | None = None) -> Page:
    """Return a page of submissions: what is unsettled first, then what is settled."""
    now = db_now(conn)
    rows: list[RowMapping] = []
    parts = {Which.SETTLED: (True,), Which.ALL: (False, True)}.get(filters.which, (False,))
    for settled in parts:
        if len(rows) > limit or (after is not None and after.settled and not settled):
            continue
        start = after if after is not None and after.settled == settled else None
        query = _settled(filters) if settled else _unsettled(filters, now)
        rows += _part(conn, query, settled, filters.oldest_first, limit + 1 - len(rows), start)
    page = rows[:limit]
    return Page(page, _place(page[-1]) if len(rows) > limit else None, now)


def _place(row: RowMapping) -> Place:
    settled = "settled_at" in row
    at: datetime = row["settled_at"] if settled else row["admitted_at"]
    return Place(settled, at, row["session_id"], row["submission_id"])


def _unsettled(filters: Filters, now: datetime) -> list[sa.ColumnElement[bool]]:
    c = v_pending.c
    conditions: list[sa.ColumnElement[bool]] = []
    late = now - timedelta(seconds=filters.overdue_s)
    match filters.which:
        case Which.QUEUED | Which.RUNNING | Which.WAITING:
            conditions.append(c.status == sa.literal_column(f"'{filters.which.value}'"))
        case Which.HELD:
            conditions.append(c.held_at.is_not(None))
        case Which.OVERDUE:
            conditions.append(c.claimable_from <= late)
        case Which.STUCK:
            stuck = sa.select(v_stuck.c.session_id, v_stuck.c.submission_id).where(v_stuck.c.since <= late)
            conditions.append(sa.tuple_(c.session_id, c.submission_id).in_(stuck))
        case Which.UNSETTLED | Which.ALL | Which.SETTLED:
            pass
    if filters.reason is not None:
        conditions.append(sa.or_(c.held_reason == filters.reason, c.decision_reason == filters.reason))
    if filters.owner is not None:
        conditions.append(c.owner == filters.owner)
    if filters.outcome is not None:
        conditions.append(sa.false())
    return [*conditions, *_common(c, c.admitted_at, filters)]


def _settled(filters: Filters) -> list[sa.ColumnElement[bool]]:
    c = v_settlements.c
    conditions: list[sa.ColumnElement[bool]] = []
    if filters.outcome is not None:
        conditions.append(c.outcome == filters.outcome)
    if filters.reason is not None:
        conditions.append(c.reason == filters.reason)
    if filters.owner is not None:
        conditions.append(sa.false())
    return [*conditions, *_common(c, c.settled_at, filters)]


def _common(c: Any, at: sa.ColumnElement[datetime], filters: Filters) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if filters.session_id is not None:
        conditions.append(c.session_id == filters.session_id)
    if filters.origin is not None:
        conditions.append(c.origin == filters.origin)
    if filters.since is not None:
        conditions.append(at >= filters.since)
    if filters.until is not None:
        conditions.append(at < filters.until)
    return conditions


def _part(
    conn: Connection,
    conditions: list[sa.ColumnElement[bool]],
    settled: bool,
    oldest_first: bool,
    limit: int,
    start: Place | None,
) -> list[RowMapping]:
    view = v_settlements if settled else v_pending
    at = view.c.settled_at if settled else view.c.admitted_at
    key = (at, view.c.session_id, view.c.submission_id)
    if start is not None:
        here = sa.tuple_(*key)
        there = sa.tuple_(
            sa.bindparam(None, start.at, type_=at.type),
            sa.bindparam(None, start.session_id, type_=sa.Text()),
            sa.bindparam(None, start.submission_id, type_=sa.Text()),
        )
        conditions = [*conditions, here > there if oldest_first else here < there]
    order = [column.asc() if oldest_first else column.desc() for column in key]
    keys = (
        sa.select(view.c.session_id, view.c.submission_id).where(*conditions).order_by(*order).limit(limit).cte("keys")
    )
    # Without lengths of time, which nobody lists: PostgreSQL can't take an infinite instant from another.
    columns = [column for column in view.c if not isinstance(column.type, sa.Float)]
    whole = (
        sa.select(*columns)
        .select_from(
            keys.join(
                view, sa.and_(view.c.session_id == keys.c.session_id, view.c.submission_id == keys.c.submission_id)
            )
        )
        .order_by(*order)
    )
    return list(conn.execute(whole).mappings())


# --- decisions as they come ------------------------------------------------------------------------------------------


def decisions_since(
    conn: Connection, *, since: datetime | None, session_id: str | None, limit: int
) -> tuple[list[RowMapping], datetime]:
    """Return decisions in the order of their instants, and the database's time.

    With *since*, the first *limit* from that instant on; without it, the newest *limit*.
    """
    c = v_decisions.c
    key = (c.decided_at, c.session_id, c.submission_id, c.number)
    query = sa.select(v_decisions)
    if session_id is not None:
        query = query.where(c.session_id == session_id)
    now = db_now(conn)
    if since is not None:
        rows = list(conn.execute(query.where(c.decided_at >= since).order_by(*key).limit(limit)).mappings())
        return rows, now
    newest = conn.execute(query.order_by(*(column.desc() for column in key)).limit(limit)).mappings()
    return list(newest)[::-1], now
