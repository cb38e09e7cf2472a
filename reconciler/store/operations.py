"""Bulk acts as rows: a frozen list of what is acted on, and what became of each item.

An operation is made in steps, because freezing many members in one transaction would hold SQLite's write lock for too
long: it is *being prepared* (``cancelled`` without an end) until its last member is written, and only then open. What a
crash leaves in preparation never runs. An item is done in the transaction of its act, and once: who finds it taken
takes his act back.

Knows nothing of what the acts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from reconciler.store.dialect import db_now, for_update
from reconciler.store.listing import Filters, Place, submissions_page
from reconciler.store.schema import operation_items, operations

OPEN: Final = "open"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
# Not in the table: see the module's text.
PREPARING: Final = "preparing"

_o, _i = operations.c, operation_items.c


@dataclass(frozen=True, slots=True)
class Operation:
    """A bulk act. ``parameters`` and ``filter`` are JSON texts; ``counts`` is by the items' status."""

    operation_id: str
    verb: str
    status: str
    parameters: str
    filter: str | None
    operator: str | None
    reason: str | None
    created_at: datetime
    finished_at: datetime | None
    total: int
    counts: dict[str, int]


# --- membership ------------------------------------------------------------------------------------------------------


def members_page(
    conn: Connection, filters: Filters, *, after: Place | None, limit: int
) -> tuple[list[tuple[str, str]], Place | None]:
    """Return the next submissions that *filters* select, in the order of `list`, and where to go on."""
    page = submissions_page(conn, filters, limit=limit, after=after)
    return [(row["session_id"], row["submission_id"]) for row in page.rows], page.next


def prepare(
    conn: Connection,
    operation_id: str,
    *,
    verb: str,
    parameters: str,
    filter_text: str,
    operator: str,
    reason: str | None,
) -> None:
    """Write the row of an operation that is being prepared."""
    conn.execute(
        sa.insert(operations).values(
            id=operation_id,
            verb=verb,
            parameters=parameters,
            filter=filter_text,
            operator=operator,
            reason=reason,
            status=CANCELLED,
            created_at=db_now(conn),
            total=0,
        )
    )


def add_members(conn: Connection, operation_id: str, members: Sequence[tuple[str, str]], *, first: int) -> None:
    """Write members of an operation that is being prepared, numbered from *first* on."""
    conn.execute(
        sa.insert(operation_items),
        [
            {
                "operation_id": operation_id,
                "number": number,
                "session_id": session_id,
                "submission_id": submission_id,
                "status": "pending",
            }
            for number, (session_id, submission_id) in enumerate(members, first)
        ],
    )


def open_prepared(conn: Connection, operation_id: str, *, total: int) -> None:
    """Open an operation whose members are all written."""
    conn.execute(sa.update(operations).where(_o.id == operation_id).values(status=OPEN, total=total))


# --- items -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """One member of an operation."""

    number: int
    session_id: str
    submission_id: str
    status: str
    result: str | None = None
    finished_at: datetime | None = None


_ITEM: Final = (_i.number, _i.session_id, _i.submission_id, _i.status, _i.result, _i.finished_at)


def pending_items(conn: Connection, operation_id: str, *, after: int, limit: int) -> list[Item]:
    """Return items that are not done, by number, behind *after*."""
    query = (
        sa.select(*_ITEM)
        .where(_i.operation_id == operation_id, _i.status == sa.literal_column("'pending'"), _i.number > after)
        .order_by(_i.number)
        .limit(limit)
    )
    return [Item(*row) for row in conn.execute(query)]


def items_page(conn: Connection, operation_id: str, *, statuses: Sequence[str], after: int, limit: int) -> list[Item]:
    """Return items of *statuses*, by number, behind *after*."""
    query = (
        sa.select(*_ITEM)
        .where(_i.operation_id == operation_id, _i.status.in_(list(statuses)), _i.number > after)
        .order_by(_i.number)
        .limit(limit)
    )
    return [Item(*row) for row in conn.execute(query)]


def finish_item(conn: Connection, operation_id: str, number: int, *, status: str, result: str) -> bool:
    """Write what became of an item; False where somebody else has done it, or the operation isn't open any more."""
    is_open = sa.select(_o.id).where(_o.id == operation_id, _o.status == OPEN).exists()
    done = conn.execute(
        sa.update(operation_items)
        .where(_i.operation_id == operation_id, _i.number == number, _i.status == "pending", is_open)
        .values(status=status, result=result, finished_at=db_now(conn))
    )
    return bool(done.rowcount == 1)


# --- operations ------------------------------------------------------------------------------------------------------


def close_if_done(conn: Connection, operation_id: str) -> bool:
    """Call an open operation done where none of its items is pending; return whether it was."""
    row = conn.execute(for_update(sa.select(_o.status).where(_o.id == operation_id))).one_or_none()
    if row is None or row.status != OPEN or pending_items(conn, operation_id, after=0, limit=1):
        return False
    conn.execute(sa.update(operations).where(_o.id == operation_id).values(status=DONE, finished_at=db_now(conn)))
    return True


def cancel(conn: Connection, operation_id: str) -> bool:
    """Cancel an operation: what is done stays done, what is pending stays as it is. False where it was over already."""
    row = conn.execute(for_update(sa.select(_o.status, _o.finished_at).where(_o.id == operation_id))).one()
    if row.status == DONE or (row.status == CANCELLED and row.finished_at is not None):
        return False
    conn.execute(sa.update(operations).where(_o.id == operation_id).values(status=CANCELLED, finished_at=db_now(conn)))
    return True


def operation(conn: Connection, operation_id: str) -> Operation | None:
    """Return an operation with the counts of its items; None where there is none."""
    row = conn.execute(sa.select(operations).where(_o.id == operation_id)).mappings().one_or_none()
    return None if row is None else _operation(conn, row)


def list_operations(conn: Connection, *, statuses: Sequence[str], limit: int) -> list[Operation]:
    """Return the newest operations of *statuses* (`PREPARING` is one)."""
    wanted: list[sa.ColumnElement[bool]] = []
    for status in statuses:
        if status == PREPARING:
            wanted.append(sa.and_(_o.status == CANCELLED, _o.finished_at.is_(None)))
        elif status == CANCELLED:
            wanted.append(sa.and_(_o.status == CANCELLED, _o.finished_at.is_not(None)))
        else:
            wanted.append(_o.status == status)
    query = sa.select(operations).where(sa.or_(*wanted)).order_by(_o.created_at.desc(), _o.id.desc()).limit(limit)
    return [_operation(conn, row) for row in conn.execute(query).mappings().all()]


def newest_ids(conn: Connection, *, limit: int) -> list[str]:
    """Return ids of operations to look for a nearest match among."""
    return list(conn.execute(sa.select(_o.id).order_by(_o.created_at.desc()).limit(limit)).scalars())


def _operation(conn: Connection, row: RowMapping) -> Operation:
    counts = conn.execute(
        sa.select(_i.status, sa.func.count()).where(_i.operation_id == row["id"]).group_by(_i.status)
    ).all()
    status: Any = row["status"]
    if status == CANCELLED and row["finished_at"] is None:
        status = PREPARING
    return Operation(
        operation_id=row["id"],
        verb=row["verb"],
        status=status,
        parameters=row["parameters"],
        filter=row["filter"],
        operator=row["operator"],
        reason=row["reason"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        total=row["total"],
        counts={word: int(count) for word, count in counts},
    )
