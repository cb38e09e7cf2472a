"""What a pass reads of rows: which are due, what stands in them, and the row that a pass leaves behind.

Locks are taken in one order (session, submission; the attempts follow in `around`; I15) and never waited for in a scan:
a row that somebody else holds is somebody else's work. Knows nothing of entries, and decides nothing.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, get_type_hints

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.unreadable import UnreadableInstant
from reconciler.errors import DatabaseInvalid
from reconciler.store.dialect import Doubtful, array_literal, fetch_tuples, is_postgresql
from reconciler.store.schema import passes, submissions
from reconciler.store.types import utc_from_text, utc_text

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of the last row that was looked at, in the order of the scan: due time, session, submission."""

    reconcile_at: datetime
    session_id: str
    submission_id: str


class DueRow(NamedTuple):
    """A submission with its session, as the columns are; ``x_`` are the session's. See `schema`.

    A named tuple, as the rows beside it: of many columns, made once for every row of a pass. First what differs from
    row to row; then the instants that mostly are none; from ``FIRST_OF_REST`` on, many rows have the same.
    """

    session_id: str
    submission_id: str
    revision: int
    reconcile_at: datetime | None
    current_attempt_id: str | None
    last_attempt_id: str | None
    decision_count: int
    decision_revision: int | None
    decision_version: int | None
    x_version: int
    x_leaf_entry_id: str | None
    x_last_seq: int
    x_leaf_moved_version: int
    x_source_id: str | None
    sub_turns_spent: int
    sub_turn_facts: int
    fact_count: int
    entity_hints: str | None
    deadline_at: datetime | None
    abort_requested_at: datetime | None
    held_at: datetime | None
    parked_until: datetime | None
    unparked_at: datetime | None
    x_leaf_moved_at: datetime | None
    status: str
    held_reason: str | None
    hold_released_reason: str | None
    pending_calls: str | None
    attempts_spent: int
    attempts_begun: int
    attempts_granted: int
    crashes_in_row: int
    provider_errors: int
    redispatches: int
    redispatches_granted: int
    releases: int
    limits: str | None
    decision_action: str | None
    decision_reason: str | None
    decision_detail: str | None
    x_origin: str
    x_leaf_known_empty: bool
    # What can't be read of it, in words; the value reads as None then.
    fault: str | None = None

    @property
    def key(self) -> Key:
        """Session and submission."""
        return self.session_id, self.submission_id


FIRST_OF_INSTANTS: Final = DueRow._fields.index("deadline_at")
FIRST_OF_REST: Final = DueRow._fields.index("status")
_ROW_COLUMNS: Final = tuple(name for name in DueRow._fields if name != "fault")
_SELECTED: Final = ", ".join(
    f"x.{name[2:]} AS {name}"
    if name.startswith("x_")
    else ("s.id AS submission_id" if name == "submission_id" else f"s.{name}")
    for name in _ROW_COLUMNS
)
_INSTANT_PLACES: Final = tuple(
    place for place, hint in enumerate(get_type_hints(DueRow).values()) if hint == datetime | None
)
_FLAG_PLACE: Final = _ROW_COLUMNS.index("x_leaf_known_empty")

# The status stands as a literal: bound, a generic plan can't use the partial index. The row comparison is the index's
# own order, so a pass goes on where it stopped without counting rows again.
_SCAN: Final = (
    f"SELECT {_SELECTED} FROM submissions s JOIN sessions x ON x.id = s.session_id"
    " WHERE s.status <> 'settled' AND s.reconcile_at <= {cutoff}"
    " AND (s.reconcile_at, s.session_id, s.id) > ({at}, {session}, {submission})"
    " ORDER BY s.reconcile_at, s.session_id, s.id LIMIT {limit}"
)
_LOCKED: Final = " FOR UPDATE OF x, s SKIP LOCKED"
_PG_SCAN: Final = _SCAN.format(
    cutoff="%(cutoff)s", at="%(at)s", session="%(session)s", submission="%(submission)s", limit="%(limit)s"
)
# Differs on SQLite because its planner, with statistics of when there were few sessions, would go through all of them.
_SQLITE_SCAN: Final = _SCAN.replace(" JOIN ", " CROSS JOIN ").format(
    cutoff=":cutoff", at=":at", session=":session", submission=":submission", limit=":limit"
)
_PG_KEYS: Final = (
    "unnest(CAST(%(sessions)s AS text[]), CAST(%(submissions)s AS text[])) AS k(session_id, submission_id)"
)
_SQLITE_KEYS: Final = (
    "(SELECT json_extract(value, '$[0]') AS session_id, json_extract(value, '$[1]') AS submission_id"
    " FROM json_each(:keys)) AS k"
)
_BY_KEY: Final = (
    f"SELECT {_SELECTED} FROM {{keys}} CROSS JOIN submissions s CROSS JOIN sessions x"
    " WHERE s.session_id = k.session_id AND s.id = k.submission_id AND x.id = s.session_id AND s.status <> 'settled'"
    " ORDER BY s.reconcile_at, s.session_id, s.id"
)
# Before every row, on both databases.
_BEGINNING: Final = Cursor(datetime.fromisoformat("0001-01-01T00:00:00+00:00"), "", "")


def scan_due(
    conn: Connection, *, cutoff: datetime, limit: int, after: Cursor | None = None, lock: bool = True
) -> list[DueRow]:
    """Return the submissions that are due at *cutoff*, oldest first, with their sessions' and their own rows locked.

    Rows that another transaction holds are left out. At most *limit*, behind the row *after*. Without *lock* nothing is
    locked and nothing left out (a dry run). Differs on SQLite because there the immediate transaction is the lock.
    """
    start = after or _BEGINNING
    parameters: dict[str, Any] = {"session": start.session_id, "submission": start.submission_id, "limit": limit}
    if is_postgresql(conn):
        found = fetch_tuples(
            conn, _PG_SCAN + (_LOCKED if lock else ""), {**parameters, "cutoff": cutoff, "at": start.reconcile_at}
        )
        return _from_postgresql(found)
    found = fetch_tuples(
        conn, _SQLITE_SCAN, {**parameters, "cutoff": utc_text(cutoff), "at": utc_text(start.reconcile_at)}
    )
    return [_from_sqlite(row) for row in found]


def lock_rows(conn: Connection, keys: Sequence[Key], *, lock: bool = True) -> list[DueRow]:
    """Return the unsettled submissions *keys*, oldest due first, locked as `scan_due` does it; due or not.

    What is settled, missing, or held by another transaction is left out.
    """
    if not keys:
        return []
    found = fetch_tuples(
        conn, _by_key(conn) + (_LOCKED if lock and is_postgresql(conn) else ""), key_parameters(conn, keys)
    )
    return _from_postgresql(found) if is_postgresql(conn) else [_from_sqlite(row) for row in found]


def _by_key(conn: Connection) -> str:
    return _BY_KEY.format(keys=_PG_KEYS if is_postgresql(conn) else _SQLITE_KEYS)


def key_parameters(conn: Connection, keys: Sequence[Key]) -> dict[str, Any]:
    """Return *keys* as the parameters of a statement over ``unnest`` or ``json_each``."""
    if is_postgresql(conn):
        return {
            "sessions": array_literal([key[0] for key in keys]),
            "submissions": array_literal([key[1] for key in keys]),
        }
    return {"keys": json.dumps(keys)}


def _from_postgresql(rows: Sequence[Sequence[Any]]) -> list[DueRow]:
    if not isinstance(rows, Doubtful):
        return [DueRow(*row) for row in rows]
    return [_from_doubtful(row) for row in rows]


def _from_doubtful(row: Sequence[Any]) -> DueRow:
    values = list(row)
    fault = None
    for place in _INSTANT_PLACES:
        if isinstance(values[place], UnreadableInstant):
            fault = f'column {_ROW_COLUMNS[place]}: cannot read the time "{values[place].text}"'
            values[place] = None
    return DueRow._make([*values, fault])


def _from_sqlite(row: Sequence[Any]) -> DueRow:
    values = list(row)
    fault = None
    for place in _INSTANT_PLACES:
        if values[place] is not None:
            try:
                values[place] = utc_from_text(values[place])
            except DatabaseInvalid as error:
                # Somebody wrote it by hand. The row is bad, not the pass.
                values[place], fault = None, f"column {_ROW_COLUMNS[place]}: {error}"
    values[_FLAG_PLACE] = bool(values[_FLAG_PLACE])
    return DueRow._make([*values, fault])


def count_due(conn: Connection, *, cutoff: datetime, at_most: int) -> int:
    """Return how many submissions are due at *cutoff*, counting no further than *at_most*."""
    due = (
        sa.select(sa.literal_column("1"))
        .where(sa.text("status <> 'settled'"), submissions.c.reconcile_at <= cutoff)
        .limit(at_most)
        .select_from(submissions)
        .subquery()
    )
    return int(conn.execute(sa.select(sa.func.count()).select_from(due)).scalar_one())


# --- the row of a pass -----------------------------------------------------------------------------------------------

_PASS_COLUMNS: Final = tuple(column.name for column in passes.c)
_PASS_KEPT: Final = ("id", "instance_id", "started_at")
_SAVE: Final = (
    f"INSERT INTO passes ({', '.join(_PASS_COLUMNS)}) VALUES ({{values}}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _PASS_COLUMNS if name not in _PASS_KEPT)
)
_PG_SAVE: Final = _SAVE.format(values=", ".join(f"%({name})s" for name in _PASS_COLUMNS))
_SQLITE_SAVE: Final = _SAVE.format(values=", ".join(f":{name}" for name in _PASS_COLUMNS))


def save_pass(
    conn: Connection,
    *,
    pass_id: str,
    instance_id: str | None,
    started_at: datetime,
    finished_at: datetime,
    counts: Mapping[str, int],
) -> None:
    """Write the pass's row, or bring it up to date, in the transaction of the writes that it counts."""
    values: dict[str, Any] = {"id": pass_id, "instance_id": instance_id, **counts}
    if is_postgresql(conn):
        conn.exec_driver_sql(_PG_SAVE, {**values, "started_at": started_at, "finished_at": finished_at})
    else:
        instants = {"started_at": utc_text(started_at), "finished_at": utc_text(finished_at)}
        conn.exec_driver_sql(_SQLITE_SAVE, values | instants)
