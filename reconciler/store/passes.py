"""What a pass reads of rows: which are due, what stands in them, and the row that a pass leaves behind.

Locks are taken in one order (session, submission, attempt; I15) and never waited for in a scan: a row that somebody
else holds is somebody else's work. Reads attempts and the database's clock in a statement of its own, after the locks.
Knows nothing of entries' contents, and decides nothing.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.store.dialect import db_now, is_postgresql, upsert
from reconciler.store.schema import attempts, decisions, instances, passes, submissions
from reconciler.store.types import utc_from_text, utc_text

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of the last row that was looked at, in the order of the scan: due time, session, submission."""

    reconcile_at: datetime
    session_id: str
    submission_id: str


@dataclass(frozen=True, slots=True)
class DueRow:
    """A submission with its session, as the columns are; ``x_`` are the session's. See `schema`."""

    session_id: str
    submission_id: str
    status: str
    revision: int
    reconcile_at: datetime | None
    deadline_at: datetime | None
    current_attempt_id: str | None
    last_attempt_id: str | None
    abort_requested_at: datetime | None
    held_at: datetime | None
    held_reason: str | None
    hold_released_reason: str | None
    parked_until: datetime | None
    pending_calls: str | None
    unparked_at: datetime | None
    attempts_spent: int
    attempts_begun: int
    attempts_granted: int
    crashes_in_row: int
    provider_errors: int
    redispatches: int
    redispatches_granted: int
    releases: int
    sub_turns_spent: int
    sub_turn_facts: int
    fact_count: int
    entity_hints: str | None
    limits: str | None
    decision_action: str | None
    decision_reason: str | None
    decision_detail: str | None
    decision_revision: int | None
    decision_version: int | None
    x_origin: str
    x_version: int
    x_leaf_entry_id: str | None
    x_leaf_known_empty: bool
    x_last_seq: int
    x_leaf_moved_at: datetime | None
    x_leaf_moved_version: int
    x_source_id: str | None

    @property
    def key(self) -> Key:
        """Session and submission."""
        return self.session_id, self.submission_id


_ROW_COLUMNS: Final = tuple(name for name in DueRow.__dataclass_fields__)
_SELECTED: Final = ", ".join(
    f"x.{name[2:]} AS {name}"
    if name.startswith("x_")
    else ("s.id AS submission_id" if name == "submission_id" else f"s.{name}")
    for name in _ROW_COLUMNS
)
_INSTANTS: Final = tuple(
    name for name, item in DueRow.__dataclass_fields__.items() if str(item.type).startswith("datetime")
)
_INSTANT_PLACES: Final = tuple(_ROW_COLUMNS.index(name) for name in _INSTANTS)
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
_SQLITE_SCAN: Final = _SCAN.format(
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
        found = conn.exec_driver_sql(
            _PG_SCAN + (_LOCKED if lock else ""), {**parameters, "cutoff": cutoff, "at": start.reconcile_at}
        )
        return [DueRow(*row) for row in found]
    found = conn.exec_driver_sql(
        _SQLITE_SCAN, {**parameters, "cutoff": utc_text(cutoff), "at": utc_text(start.reconcile_at)}
    )
    return [_from_sqlite(row) for row in found]


def lock_rows(conn: Connection, keys: Sequence[Key], *, lock: bool = True) -> list[DueRow]:
    """Return the unsettled submissions *keys*, oldest due first, locked as `scan_due` does it; due or not.

    What is settled, missing, or held by another transaction is left out.
    """
    if not keys:
        return []
    found = conn.exec_driver_sql(
        _by_key(conn) + (_LOCKED if lock and is_postgresql(conn) else ""), key_parameters(conn, keys)
    )
    return [DueRow(*row) for row in found] if is_postgresql(conn) else [_from_sqlite(row) for row in found]


def _by_key(conn: Connection) -> str:
    return _BY_KEY.format(keys=_PG_KEYS if is_postgresql(conn) else _SQLITE_KEYS)


def key_parameters(conn: Connection, keys: Sequence[Key]) -> dict[str, Any]:
    """Return *keys* as the parameters of a statement over ``unnest`` or ``json_each``."""
    if is_postgresql(conn):
        return {"sessions": [key[0] for key in keys], "submissions": [key[1] for key in keys]}
    return {"keys": json.dumps(keys)}


def _from_sqlite(row: Sequence[Any]) -> DueRow:
    values = list(row)
    for place in _INSTANT_PLACES:
        if values[place] is not None:
            values[place] = utc_from_text(values[place])
    values[_FLAG_PLACE] = bool(values[_FLAG_PLACE])
    return DueRow(*values)


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


# --- attempts, the clock, and where a path begins --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt's columns, as far as a decision needs them."""

    attempt_id: str
    number: int
    machine_id: str | None
    boot_id: str | None
    pid_namespace: str | None
    pid: int | None
    process_start: str | None
    claimed_at: datetime
    beat_s: float
    beat_at: datetime
    lease_expires_at: datetime
    begun_at: datetime | None
    progress_at: datetime | None
    ended_at: datetime | None
    end_kind: str | None
    end_reason: str | None
    retryable: bool | None
    provider_error_counted: bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around a submission's row.

    ``input_seq`` is where its newest canonical input is in the session, on the active path or not. The settlement
    entry's payload is read only where there is one.
    """

    current: AttemptRow | None = None
    last: AttemptRow | None = None
    last_begun_end: str | None = None
    settlement_entry_id: str | None = None
    settlement_payload: str | None = None
    input_entry_id: str | None = None
    input_seq: int | None = None
    leaf_seq: int | None = None
    quiet_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """The surroundings of a batch, and the database's clock after all locks."""

    now: datetime
    around: Mapping[Key, Surroundings] = field(default_factory=dict)


_ATTEMPT_NAMES: Final = tuple(AttemptRow.__dataclass_fields__)
_ATTEMPT_WIDTH: Final = len(_ATTEMPT_NAMES)
_ATTEMPT_INSTANTS: Final = tuple(
    place
    for place, item in enumerate(AttemptRow.__dataclass_fields__.values())
    if str(item.type).startswith("datetime")
)
_RETRYABLE_PLACE: Final = _ATTEMPT_NAMES.index("retryable")
_COUNTED_PLACE: Final = _ATTEMPT_NAMES.index("provider_error_counted")


def _attempt_columns(alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in _ATTEMPT_NAMES)


_INPUT_WHERE: Final = (
    "i.session_id = k.session_id AND i.submission_id = k.submission_id AND i.kind = 'message'"
    " AND i.role IN ('user', 'signal') AND NOT i.is_synthetic AND NOT i.is_sidechain"
)
_BEGUN_WHERE: Final = (
    "b.session_id = k.session_id AND b.submission_id = k.submission_id AND b.begun_at IS NOT NULL"
    " AND b.ended_at IS NOT NULL"
)
_AROUND: Final = (
    f"SELECT k.session_id, k.submission_id, {_attempt_columns('c')}, {_attempt_columns('l')},"
    f" (SELECT b.end_kind FROM attempts b WHERE {_BEGUN_WHERE} ORDER BY b.number DESC LIMIT 1),"
    " t.id, p.payload, {input_columns}, f.seq, q.quiet_since, {clock}"
    " FROM {keys}"
    " LEFT JOIN {current} c ON c.session_id = k.session_id AND c.attempt_id = k.current_attempt_id"
    " LEFT JOIN attempts l ON l.session_id = k.session_id AND l.attempt_id = k.last_attempt_id"
    " LEFT JOIN entries t ON t.session_id = k.session_id AND t.submission_id = k.submission_id"
    " AND t.kind = 'submission_settled'"
    " LEFT JOIN entry_payloads p ON p.session_id = t.session_id AND p.entry_id = t.id"
    " {input_join}"
    " LEFT JOIN entries f ON f.session_id = k.session_id AND f.id = k.leaf_entry_id"
    " LEFT JOIN sources q ON q.id = k.source_id"
)
_KEY_NAMES: Final = (
    "session_id",
    "submission_id",
    "current_attempt_id",
    "last_attempt_id",
    "leaf_entry_id",
    "source_id",
)
_PG_AROUND: Final = (
    "WITH k AS MATERIALIZED (SELECT * FROM unnest("
    + ", ".join(f"CAST(%({name})s AS text[])" for name in _KEY_NAMES)
    + f") AS k({', '.join(_KEY_NAMES)})), c AS MATERIALIZED (SELECT a.* FROM k JOIN attempts a"
    " ON a.session_id = k.session_id AND a.attempt_id = k.current_attempt_id {lock}) "
    + _AROUND.format(
        input_columns="i.id, i.seq",
        # Read as each row comes out, which is after its attempt was locked.
        clock="clock_timestamp()",
        keys="k",
        current="c",
        input_join=f"LEFT JOIN LATERAL (SELECT i.id, i.seq FROM entries i WHERE {_INPUT_WHERE}"
        " ORDER BY i.seq DESC LIMIT 1) i ON true",
    ).replace("LEFT JOIN c c", "LEFT JOIN c")
)
_SQLITE_AROUND: Final = _AROUND.format(
    input_columns="i.id, i.seq",
    clock="NULL",
    keys="(SELECT "
    + ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(_KEY_NAMES))
    + " FROM json_each(:keys)) AS k",
    current="attempts",
    input_join="LEFT JOIN entries i ON i.session_id = k.session_id AND i.seq ="
    f" (SELECT max(i.seq) FROM entries i WHERE {_INPUT_WHERE})",
)


def read_around(conn: Connection, rows: Sequence[DueRow], *, lock: bool = True) -> Read:
    """Lock the current attempts of *rows*, and read what stands around each row, in one statement.

    The clock is the database's, after all locks of the batch: no lease that is over at that moment can be renewed any
    more while the transaction lasts.
    """
    if not rows:
        return Read(db_now(conn))
    keys = [
        (
            row.session_id,
            row.submission_id,
            row.current_attempt_id,
            row.last_attempt_id,
            row.x_leaf_entry_id,
            row.x_source_id,
        )
        for row in rows
    ]
    around: dict[Key, Surroundings] = {}
    if is_postgresql(conn):
        statement = _PG_AROUND.format(lock="FOR UPDATE OF a" if lock else "")
        parameters: dict[str, Any] = {name: [key[place] for key in keys] for place, name in enumerate(_KEY_NAMES)}
        now = None
        for row in conn.exec_driver_sql(statement, parameters):
            around[row[0], row[1]] = _surroundings(row)
            now = row[-1] if now is None or row[-1] > now else now
        return Read(now or db_now(conn), around)
    for row in conn.exec_driver_sql(_SQLITE_AROUND, {"keys": json.dumps(keys)}):
        around[row[0], row[1]] = _surroundings(row, text=True)
    return Read(db_now(conn), around)


def _surroundings(row: Sequence[Any], *, text: bool = False) -> Surroundings:
    rest = 2 + 2 * _ATTEMPT_WIDTH
    last_begun_end, settlement_id, payload, input_id, input_seq, leaf_seq, quiet_since, _ = row[rest:]
    return Surroundings(
        current=_attempt(row[2 : 2 + _ATTEMPT_WIDTH], text),
        last=_attempt(row[2 + _ATTEMPT_WIDTH : rest], text),
        last_begun_end=last_begun_end,
        settlement_entry_id=settlement_id,
        settlement_payload=payload,
        input_entry_id=input_id,
        input_seq=input_seq,
        leaf_seq=leaf_seq,
        quiet_since=utc_from_text(quiet_since) if text and quiet_since is not None else quiet_since,
    )


def _attempt(columns: Sequence[Any], text: bool) -> AttemptRow | None:
    if columns[0] is None:
        return None
    if not text:
        return AttemptRow(*columns)
    values = list(columns)
    for place in _ATTEMPT_INSTANTS:
        if values[place] is not None:
            values[place] = utc_from_text(values[place])
    if values[_RETRYABLE_PLACE] is not None:
        values[_RETRYABLE_PLACE] = bool(values[_RETRYABLE_PLACE])
    values[_COUNTED_PLACE] = bool(values[_COUNTED_PLACE])
    return AttemptRow(*values)


# --- who else writes -------------------------------------------------------------------------------------------------

# How far back the decisions are looked through for somebody else's.
_RECENT_DECISIONS: Final = 64


def others_wrote_at(conn: Connection, *, instance_id: str | None) -> datetime | None:
    """Return when anybody but this instance last wrote, as far as beats and recent decisions show it; None if never.

    Later writes may exist: it is used as proof that the database took writes, and a missing proof only means waiting.
    """
    beats = sa.select(sa.func.max(attempts.c.beat_at)).where(attempts.c.ended_at.is_(None))
    alive = sa.select(sa.func.max(instances.c.beat_at)).where(instances.c.id != (instance_id or ""))
    recent = (
        sa.select(decisions.c.decided_at, passes.c.instance_id)
        .select_from(decisions.outerjoin(passes, passes.c.id == decisions.c.pass_id))
        .order_by(decisions.c.decided_at.desc())
        .limit(_RECENT_DECISIONS)
    )
    found = [conn.execute(beats).scalar_one(), conn.execute(alive).scalar_one()]
    for decided_at, decided_in in conn.execute(recent):
        if instance_id is None or decided_in != instance_id:
            found.append(decided_at)
            break
    return max((instant for instant in found if instant is not None), default=None)


# --- the row of a pass -----------------------------------------------------------------------------------------------

_PASS_COUNTS: Final = tuple(
    column.name for column in passes.c if column.name not in ("id", "instance_id", "started_at")
)


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
    values = {"id": pass_id, "instance_id": instance_id, "started_at": started_at, "finished_at": finished_at, **counts}
    conn.execute(upsert(conn, passes, key=["id"], update=_PASS_COUNTS).values(values))


__all__ = [
    "AttemptRow",
    "Cursor",
    "DueRow",
    "Key",
    "Read",
    "Surroundings",
    "count_due",
    "lock_rows",
    "others_wrote_at",
    "read_around",
    "save_pass",
    "scan_due",
]
