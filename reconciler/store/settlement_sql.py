"""The statements behind `settlements.apply_decisions`: one data-modifying CTE on PostgreSQL, executemany on SQLite.

What a row becomes is written once (`_SET`), for both databases. Knows rows and columns, nothing of decisions.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple, get_type_hints

from sqlalchemy.engine import Connection

from reconciler.store.dialect import array_literal as array_literal
from reconciler.store.dialect import fetch_tuples, is_postgresql
from reconciler.store.settlement_rows import AttemptRow, DecisionRow, EntryRow, PushRow, Rows
from reconciler.store.types import utc_text

# --- what a submission becomes ---------------------------------------------------------------------------------------

# ``{}`` stands before a name of DecisionRow: "g." on PostgreSQL, ":" on SQLite. NOW is the database's clock.
_SET: Final = """
  status = {}status,
  revision = s.revision + 1,
  reconcile_at = {}reconcile_at,
  not_before = {}not_before,
  last_attempt_id = COALESCE(s.current_attempt_id, s.last_attempt_id),
  current_attempt_id = NULL,
  held_at = CASE {}hold WHEN 'set' THEN COALESCE(s.held_at, NOW) WHEN 'keep' THEN s.held_at END,
  held_reason = CASE {}hold WHEN 'set' THEN {}held_reason WHEN 'keep' THEN s.held_reason END,
  hold_released_reason = NULL,
  parked_at = CASE WHEN {}status = 'waiting' THEN s.parked_at END,
  parked_until = CASE WHEN {}status = 'waiting' THEN s.parked_until END,
  park_reason = CASE WHEN {}status = 'waiting' THEN s.park_reason END,
  pending_calls = CASE WHEN {}status = 'settled' THEN NULL ELSE s.pending_calls END,
  unparked_at = CASE WHEN {}uses_unpark THEN NULL ELSE s.unparked_at END,
  crashes_in_row = COALESCE({}crashes_in_row, s.crashes_in_row),
  provider_errors = COALESCE({}provider_errors, s.provider_errors),
  decision_count = s.decision_count + 1,
  decision_action = {}action,
  decision_reason = {}reason,
  decision_detail = {}detail,
  decision_revision = s.revision + 1,
  decision_version = {}guard_version,
  plan = {}plan,
  outcome = {}outcome,
  outcome_reason = {}outcome_reason,
  outcome_detail = {}outcome_detail,
  answer_entry_id = {}answer_entry_id,
  settlement_entry_id = {}settlement_entry_id,
  recovered = {}recovered,
  error = {}error,
  settled_at = CASE WHEN {}status = 'settled' THEN NOW END
"""

_PG_TYPES: Final[Mapping[Any, str]] = {
    str: "text",
    str | None: "text",
    int: "bigint",
    int | None: "bigint",
    bool: "boolean",
    bool | None: "boolean",
    datetime | None: "timestamptz",
}


def _unnest(prefix: str, row_type: type[Any]) -> str:
    """Return ``unnest(...)`` over one array parameter per field of *row_type*, as a table named *prefix*."""
    names = [(name, _PG_TYPES[hint]) for name, hint in get_type_hints(row_type).items()]
    arrays = ", ".join(f"CAST(%({prefix}_{name})s AS {type_}[])" for name, type_ in names)
    return f"SELECT * FROM unnest({arrays}) AS {prefix}({', '.join(name for name, _ in names)})"


def _arrays(prefix: str, row_type: type[Any], rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    names = [f"{prefix}_{name}" for name in row_type._fields]
    if not rows:
        return dict.fromkeys(names, "{}")
    return {name: array_literal(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


@cache
def _postgresql_statement() -> str:
    # Everything is driven by what ``sub`` returns: a row that lost the guard writes nothing anywhere. The parts see one
    # snapshot, taken after the caller's locks, so the guard compares what is true now.
    return f"""
WITH w AS MATERIALIZED ({_unnest("w", DecisionRow)}),
m AS MATERIALIZED ({_unnest("m", EntryRow)}),
t AS MATERIALIZED ({_unnest("t", AttemptRow)}),
p AS MATERIALIZED ({_unnest("p", PushRow)}),
g AS MATERIALIZED (
  SELECT w.*, x.last_seq
  FROM w
  JOIN sessions x ON x.id = w.session_id AND x.version = w.guard_version
  LEFT JOIN attempts a ON a.session_id = w.session_id AND a.attempt_id = w.guard_attempt
  WHERE w.guard_lease IS NULL OR a.lease_expires_at = w.guard_lease
),
sub AS (
  UPDATE submissions s SET {_SET.replace("{}", "g.").replace("NOW", "%(now)s::timestamptz")}
  FROM g
  WHERE s.session_id = g.session_id AND s.id = g.submission_id AND s.status <> 'settled'
    AND s.revision = g.guard_revision AND s.current_attempt_id IS NOT DISTINCT FROM g.guard_attempt
  RETURNING s.session_id, s.id AS submission_id, s.decision_count, s.revision, g.last_seq
),
ses AS (
  UPDATE sessions x SET
    version = x.version + n.added, last_seq = x.last_seq + n.last_number,
    leaf_entry_id = COALESCE(n.new_leaf, x.leaf_entry_id), updated_at = %(now)s::timestamptz
  FROM (
    SELECT w.session_id, sum(w.added) AS added, max(w.last_number) AS last_number, max(w.new_leaf) AS new_leaf
    FROM sub JOIN w ON w.session_id = sub.session_id AND w.submission_id = sub.submission_id
    WHERE w.added > 0 GROUP BY w.session_id
  ) n
  WHERE x.id = n.session_id
),
ent AS (
  INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, tool_call_id, content,
    is_synthetic, write_ahead, created_at)
  SELECT m.session_id, sub.last_seq + m.number, m.id, m.parent_id, m.kind, m.role, m.submission_id, m.tool_call_id,
    m.content, true, true, %(now)s::timestamptz
  FROM m JOIN sub ON sub.session_id = m.session_id AND sub.submission_id = m.submission_id
),
pay AS (
  INSERT INTO entry_payloads (session_id, entry_id, payload)
  SELECT m.session_id, m.id, m.payload
  FROM m JOIN sub ON sub.session_id = m.session_id AND sub.submission_id = m.submission_id
),
att AS (
  UPDATE attempts a SET
    ended_at = CASE WHEN t.end_kind IS NULL THEN a.ended_at ELSE %(now)s::timestamptz END,
    end_kind = COALESCE(t.end_kind, a.end_kind), end_reason = COALESCE(t.end_reason, a.end_reason),
    end_digest = COALESCE(t.end_digest, a.end_digest),
    provider_error_counted = a.provider_error_counted OR t.counted
  FROM t JOIN sub ON sub.session_id = t.session_id AND sub.submission_id = t.submission_id
  WHERE a.session_id = t.session_id AND a.attempt_id = t.attempt_id
),
dec AS (
  INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, decided_by, action, advice, reason,
    gate, state, detail, outcome, attempt_id, attempt_end, evidence, inspection, plan, not_before, reconcile_at,
    session_version, revision, note)
  SELECT w.session_id, w.submission_id, sub.decision_count, %(now)s::timestamptz, w.pass_id, w.decided_by, w.action,
    w.advice, w.reason, w.gate, w.state, w.detail, w.decision_outcome, w.attempt_id, w.attempt_end, w.evidence,
    w.inspection, w.plan, w.not_before, w.reconcile_at, w.guard_version, sub.revision, w.note
  FROM sub JOIN w ON w.session_id = sub.session_id AND w.submission_id = sub.submission_id
),
psh AS (
  UPDATE submissions s SET reconcile_at = p.reconcile_at
  FROM p
  WHERE s.session_id = p.session_id AND s.id = p.submission_id AND s.revision = p.revision AND s.status <> 'settled'
)
SELECT session_id, submission_id FROM sub
"""


def write_postgresql(conn: Connection, rows: Rows, pushes: Sequence[PushRow], now: datetime) -> set[tuple[str, str]]:
    """Write everything in one statement; return the keys of the submissions that landed."""
    parameters: dict[str, Any] = {"now": now}
    parameters |= _arrays("w", DecisionRow, rows.decisions)
    parameters |= _arrays("m", EntryRow, rows.entries)
    parameters |= _arrays("t", AttemptRow, rows.attempts)
    parameters |= _arrays("p", PushRow, pushes)
    found = conn.exec_driver_sql(_postgresql_statement(), parameters).all()
    return {(row[0], row[1]) for row in found}


# --- SQLite ----------------------------------------------------------------------------------------------------------


class GuardRow(NamedTuple):
    """What stands in the tables of a submission, as far as the guard asks. On SQLite the instant is its text."""

    session_id: str
    submission_id: str
    status: str
    revision: int
    decision_count: int
    current_attempt_id: str | None
    version: int
    last_seq: int
    lease_expires_at: datetime | str | None


_GUARD_COLUMNS: Final = (
    "s.session_id, s.id AS submission_id, s.status, s.revision, s.decision_count, s.current_attempt_id,"
    " x.version, x.last_seq, a.lease_expires_at"
)
_GUARD_JOINS: Final = (
    "JOIN submissions s ON s.session_id = k.session_id AND s.id = k.submission_id"
    " JOIN sessions x ON x.id = s.session_id"
    " LEFT JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id"
)
_GUARDS_POSTGRESQL: Final = (
    f"SELECT {_GUARD_COLUMNS} FROM unnest(CAST(%(sessions)s AS text[]), CAST(%(submissions)s AS text[]))"
    f" AS k(session_id, submission_id) {_GUARD_JOINS}"
)
# CROSS JOIN keeps SQLite from turning the order of the tables round.
_GUARDS_SQLITE: Final = (
    f"SELECT {_GUARD_COLUMNS} FROM (SELECT json_extract(value, '$[0]') AS session_id,"
    " json_extract(value, '$[1]') AS submission_id FROM json_each(:keys)) k"
    f" {_GUARD_JOINS.replace('JOIN', 'CROSS JOIN', 2)}"
)


def read_guards(conn: Connection, keys: Sequence[tuple[str, str]]) -> list[GuardRow]:
    """Return what stands in the tables for the submissions *keys*; a missing one is left out."""
    if is_postgresql(conn):
        parameters = {"sessions": [key[0] for key in keys], "submissions": [key[1] for key in keys]}
        return [GuardRow(*row) for row in fetch_tuples(conn, _GUARDS_POSTGRESQL, parameters)]
    return [GuardRow(*row) for row in fetch_tuples(conn, _GUARDS_SQLITE, {"keys": json.dumps(keys)})]


_NAME: Final = re.compile(r":([a-z_]+)")


class _Statement:
    """A statement over the fields of one kind of row and the columns beside them, ``:now`` among these, by number."""

    def __init__(self, row_type: type[Any], text: str, *more: str) -> None:
        used = set(_NAME.findall(text))
        self._names = tuple(name for name in (*row_type._fields, "now", *more) if name in used)
        numbers = {name: f"?{number}" for number, name in enumerate(self._names, start=1)}
        self.text = _NAME.sub(lambda found: numbers[found[1]], text)

    def values(self, columns: Mapping[str, Sequence[object]]) -> list[tuple[object, ...]]:
        """Return the parameters of each row, of columns by name."""
        return list(zip(*(columns[name] for name in self._names), strict=True))


def _columns(row_type: type[Any], rows: Sequence[tuple[Any, ...]], stamp: str) -> dict[str, Sequence[object]]:
    columns: dict[str, Sequence[object]] = dict(zip(row_type._fields, zip(*rows, strict=True), strict=True))
    for name in _INSTANTS[row_type]:
        columns[name] = [None if value is None else utc_text(value) for value in columns[name]]  # type: ignore[arg-type]
    columns["now"] = [stamp] * len(rows)
    return columns


_INSTANTS: Final = {
    row_type: tuple(name for name, hint in get_type_hints(row_type).items() if hint == datetime | None)
    for row_type in (DecisionRow, EntryRow, AttemptRow, PushRow)
}


_SUBMISSION_SQLITE: Final = _Statement(
    DecisionRow,
    f"UPDATE submissions AS s SET {_SET.replace('{}', ':').replace('NOW', ':now')}"
    " WHERE s.session_id = :session_id AND s.id = :submission_id AND s.revision = :guard_revision",
)
_SESSION_SQLITE: Final = (
    "UPDATE sessions SET version = version + ?, last_seq = last_seq + ?, leaf_entry_id = COALESCE(?, leaf_entry_id),"
    " updated_at = ? WHERE id = ?"
)
_ENTRY_SQLITE: Final = _Statement(
    EntryRow,
    "INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, tool_call_id, content,"
    " is_synthetic, write_ahead, created_at) VALUES (:session_id, :seq, :id, :parent_id, :kind, :role, :submission_id,"
    " :tool_call_id, :content, 1, 1, :now)",
    "seq",
)
_PAYLOAD_SQLITE: Final = _Statement(
    EntryRow, "INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (:session_id, :id, :payload)"
)
_ATTEMPT_SQLITE: Final = _Statement(
    AttemptRow,
    "UPDATE attempts SET ended_at = CASE WHEN :end_kind IS NULL THEN ended_at ELSE :now END,"
    " end_kind = COALESCE(:end_kind, end_kind), end_reason = COALESCE(:end_reason, end_reason),"
    " end_digest = COALESCE(:end_digest, end_digest),"
    " provider_error_counted = MAX(provider_error_counted, :counted)"
    " WHERE session_id = :session_id AND attempt_id = :attempt_id",
)
_DECISION_SQLITE: Final = _Statement(
    DecisionRow,
    "INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, decided_by, action, advice, reason,"
    " gate, state, detail, outcome, attempt_id, attempt_end, evidence, inspection, plan, not_before, reconcile_at,"
    " session_version, revision, note) VALUES (:session_id, :submission_id, :number, :now, :pass_id, :decided_by,"
    " :action, :advice, :reason, :gate, :state, :detail, :decision_outcome, :attempt_id, :attempt_end, :evidence,"
    " :inspection, :plan, :not_before, :reconcile_at, :guard_version, :guard_revision + 1, :note)",
    "number",
)
_PUSH_SQLITE: Final = _Statement(
    PushRow,
    "UPDATE submissions SET reconcile_at = :reconcile_at"
    " WHERE session_id = :session_id AND id = :submission_id AND revision = :revision AND status <> 'settled'",
)


def write_sqlite(conn: Connection, rows: Rows, pushes: Sequence[PushRow], now: datetime) -> set[tuple[str, str]]:
    """Write everything with a constant number of statements; return the keys of the submissions that landed.

    Differs on SQLite because it has no data-modifying CTE: the guard is read first, which is as good inside an
    immediate transaction, and what lost it is left out.
    """
    keys = [(row.session_id, row.submission_id) for row in rows.decisions]
    guards = {(row.session_id, row.submission_id): row for row in read_guards(conn, keys)} if keys else {}
    landed = [row for key, row in zip(keys, rows.decisions, strict=True) if _lands(row, guards.get(key))]
    found = {(row.session_id, row.submission_id) for row in landed}
    stamp = utc_text(now)
    written = [row for row in rows.entries if (row.session_id, row.submission_id) in found]
    touched = [row for row in rows.attempts if (row.session_id, row.submission_id) in found]
    if landed:
        columns = _columns(DecisionRow, landed, stamp)
        columns["number"] = [guards[row.session_id, row.submission_id].decision_count + 1 for row in landed]
        _many(conn, (_SUBMISSION_SQLITE, _DECISION_SQLITE), columns)
    if sums := _session_values(landed, stamp):
        conn.exec_driver_sql(_SESSION_SQLITE, sums)
    if written:
        columns = _columns(EntryRow, written, stamp)
        columns["seq"] = [guards[row.session_id, row.submission_id].last_seq + row.number for row in written]
        _many(conn, (_ENTRY_SQLITE, _PAYLOAD_SQLITE), columns)
    if touched:
        _many(conn, (_ATTEMPT_SQLITE,), _columns(AttemptRow, touched, stamp))
    if pushes:
        _many(conn, (_PUSH_SQLITE,), _columns(PushRow, pushes, stamp))
    return found


def _lands(row: DecisionRow, guard: GuardRow | None) -> bool:
    return (
        guard is not None
        and guard.status != "settled"
        and guard.version == row.guard_version
        and guard.revision == row.guard_revision
        and guard.current_attempt_id == row.guard_attempt
        and (row.guard_lease is None or guard.lease_expires_at == utc_text(row.guard_lease))
    )


def _session_values(landed: Sequence[DecisionRow], stamp: str) -> list[tuple[object, ...]]:
    sums: dict[str, tuple[int, int, str | None]] = {}
    for row in landed:
        if row.added:
            added, last_number, new_leaf = sums.get(row.session_id, (0, 0, None))
            sums[row.session_id] = (added + row.added, max(last_number, row.last_number), row.new_leaf or new_leaf)
    return [(*total, stamp, session_id) for session_id, total in sums.items()]


def _many(conn: Connection, statements: Sequence[_Statement], columns: Mapping[str, Sequence[object]]) -> None:
    for statement in statements:
        conn.exec_driver_sql(statement.text, statement.values(columns))
