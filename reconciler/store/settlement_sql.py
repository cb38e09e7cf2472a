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
from itertools import compress, repeat
from typing import Any, Final, NamedTuple, get_type_hints

from sqlalchemy.engine import Connection

from reconciler.core.model import KIND_SUBMISSION_SETTLED, SETTLEMENT_ID_PREFIX
from reconciler.errors import StoreConflict
from reconciler.store.dialect import array_literal as array_literal
from reconciler.store.dialect import fetch_tuples, is_postgresql
from reconciler.store.sending import execute_sqlite, send
from reconciler.store.settlement_rows import AttemptRow, DecisionRow, EntryRow, Kind, PushRow, Rows
from reconciler.store.types import utc_text

# --- what a submission becomes ---------------------------------------------------------------------------------------

# ``{}`` stands before a name of DecisionRow or Kind: "g." on PostgreSQL, ":" on SQLite. NOW is the database's clock.
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
  settlement_entry_id = CASE WHEN {}settles THEN ENTRY ELSE {}settlement_entry_id END,
  recovered = {}recovered,
  error = {}error,
  settled_at = CASE WHEN {}status = 'settled' THEN NOW END
"""

# The deterministic id of a submission's settlement entry stands before its id.
_ENTRY_ID: Final = f"'{SETTLEMENT_ID_PREFIX}' || "


def _set(prefix: str, now: str) -> str:
    text = _SET.replace("ENTRY", f"{_ENTRY_ID}{{}}submission_id")
    return text.replace("{}", prefix).replace("NOW", now)


_PG_TYPES: Final[Mapping[Any, str]] = {
    str: "text",
    str | None: "text",
    int: "bigint",
    int | None: "bigint",
    bool: "boolean",
    bool | None: "boolean",
    datetime | None: "timestamptz",
    # A kind travels as its number.
    Kind: "int",
}
# What the inspection saw beside the guard: PostgreSQL reads it anew with the guard.
_SEEN: Final = frozenset({"last_seq", "decision_count"})


def _unnest(prefix: str, row_type: type[Any], more: str = "") -> str:
    """Return ``unnest(...)`` over one array parameter per field of *row_type*, as a table named *prefix*."""
    names = [(name, _PG_TYPES[hint]) for name, hint in get_type_hints(row_type).items() if name not in _SEEN]
    arrays = ", ".join(f"CAST(%({prefix}_{name})s AS {type_}[])" for name, type_ in names)
    columns = ", ".join([name for name, _ in names] + more.split())
    return f"SELECT * FROM unnest({arrays}) {'WITH ORDINALITY ' if more else ''}AS {prefix}({columns})"


def _arrays(prefix: str, row_type: type[Any], rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    names = [None if name in _SEEN else f"{prefix}_{name}" for name in row_type._fields]
    columns = zip(*rows, strict=True) if rows else repeat((), len(names))
    return {name: _array(column) for name, column in zip(names, columns, strict=True) if name is not None}


def _array(column: Sequence[object]) -> str:
    # An array that is too short is filled up with nulls: a column that holds nothing needs no elements. (One of them
    # has to be of full length: the keys are.)
    return "{}" if column.count(None) == len(column) else array_literal(column)


def _columns_of(row_type: type[Any], alias: str, *but: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in row_type._fields if name not in _SEEN and name not in but)


@cache
def _postgresql_statement(*, has_entries: bool, has_attempts: bool, has_pushes: bool) -> str:
    # What there are no rows for is left out: each part costs the server its preparation, whatever it writes.
    # Everything is driven by what ``sub`` returns: a row that lost the guard writes nothing anywhere. The parts see one
    # snapshot, taken after the caller's locks, so the guard compares what is true now. What ``sub`` returns is the
    # whole decision, so that nothing is joined again. The sessions and attempts of the guard are looked up one by one
    # (LIMIT keeps the planner from reading them whole while the tables are small), and the condition on what was
    # looked up lets it expect few rows, so that everything behind goes by index too. "Unsettled" is asked by
    # ``settled_at``, not by the status: the partial index of unsettled rows would be walked for each.
    rows = {"w": _unnest("w", DecisionRow), "k": _unnest("k", Kind, "n")}
    if has_entries:
        rows["m"] = _unnest("m", EntryRow)
    if has_attempts:
        rows["t"] = _unnest("t", AttemptRow)
    if has_pushes:
        rows["p"] = _unnest("p", PushRow)
    given = ",\n".join(f"{name} AS MATERIALIZED ({text})" for name, text in rows.items())
    return f"""
WITH {given},
g AS MATERIALIZED (
  SELECT {_columns_of(DecisionRow, "w", "kind")}, {_columns_of(Kind, "k")}, x.last_seq
  FROM w
  JOIN k ON k.n = w.kind
  CROSS JOIN LATERAL (SELECT version, last_seq FROM sessions WHERE id = w.session_id LIMIT 1) x
  LEFT JOIN LATERAL (
    SELECT lease_expires_at FROM attempts
    WHERE session_id = w.session_id AND attempt_id = w.guard_attempt AND w.guard_lease IS NOT NULL LIMIT 1
  ) a ON true
  WHERE x.version = w.guard_version AND (w.guard_lease IS NULL OR a.lease_expires_at = w.guard_lease)
),
sub AS (
  UPDATE submissions s SET {_set("g.", "%(now)s::timestamptz")}
  FROM g
  WHERE s.session_id = g.session_id AND s.id = g.submission_id AND s.settled_at IS NULL
    AND s.revision = g.guard_revision AND s.current_attempt_id IS NOT DISTINCT FROM g.guard_attempt
  RETURNING s.decision_count, s.revision AS new_revision, g.*
),
ses AS (
  UPDATE sessions x SET
    version = x.version + n.added, last_seq = x.last_seq + n.last_number,
    leaf_entry_id = COALESCE(n.new_leaf, x.leaf_entry_id), updated_at = %(now)s::timestamptz
  FROM (
    SELECT session_id, sum(added) AS added, max(last_number) AS last_number,
      max(CASE WHEN becomes_leaf THEN {_ENTRY_ID}submission_id END) AS new_leaf
    FROM sub WHERE added > 0 GROUP BY session_id
  ) n
  WHERE x.id = n.session_id
),
ent AS (
  INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, tool_call_id, content,
    is_synthetic, write_ahead, created_at)
  SELECT session_id, last_seq + last_number, {_ENTRY_ID}submission_id, parent_id, '{KIND_SUBMISSION_SETTLED}', NULL,
    submission_id, NULL, 'none', true, true, %(now)s::timestamptz
  FROM sub WHERE settles
  {_MORE_ENTRIES if has_entries else ""}
),
pay AS (
  INSERT INTO entry_payloads (session_id, entry_id, payload)
  SELECT session_id, {_ENTRY_ID}submission_id, payload FROM sub WHERE settles
  {_MORE_PAYLOADS if has_entries else ""}
),
att AS (
  UPDATE attempts a SET
    ended_at = CASE WHEN t.end_kind IS NULL THEN a.ended_at ELSE %(now)s::timestamptz END,
    end_kind = COALESCE(t.end_kind, a.end_kind), end_reason = COALESCE(t.end_reason, a.end_reason),
    end_digest = COALESCE(t.end_digest, a.end_digest),
    provider_error_counted = a.provider_error_counted OR t.counted
  FROM (
    SELECT session_id, guard_attempt AS attempt_id, end_kind, NULL AS end_reason, NULL AS end_digest, false AS counted
    FROM sub WHERE end_kind IS NOT NULL
    {_MORE_ATTEMPTS if has_attempts else ""}
  ) t
  WHERE a.session_id = t.session_id AND a.attempt_id = t.attempt_id
),
dec AS (
  INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, decided_by, action, advice, reason,
    gate, state, detail, outcome, attempt_id, attempt_end, evidence, inspection, plan, not_before, reconcile_at,
    session_version, revision, note)
  SELECT session_id, submission_id, decision_count, %(now)s::timestamptz, %(pass_id)s::text, decided_by, action,
    advice, reason, gate, state, detail, decision_outcome, COALESCE(guard_attempt, attempt_id), attempt_end, evidence,
    inspection, plan, not_before, reconcile_at, guard_version, new_revision, note
  FROM sub
){_PUSHED if has_pushes else ""}
SELECT session_id, submission_id FROM sub
"""


_MORE_ENTRIES: Final = """UNION ALL
  SELECT m.session_id, sub.last_seq + m.number, m.id, m.parent_id, m.kind, m.role, m.submission_id, m.tool_call_id,
    m.content, true, true, %(now)s::timestamptz
  FROM m JOIN sub ON sub.session_id = m.session_id AND sub.submission_id = m.submission_id"""
_MORE_PAYLOADS: Final = """UNION ALL
  SELECT m.session_id, m.id, m.payload
  FROM m JOIN sub ON sub.session_id = m.session_id AND sub.submission_id = m.submission_id"""
_MORE_ATTEMPTS: Final = """UNION ALL
    SELECT t.session_id, t.attempt_id, t.end_kind, t.end_reason, t.end_digest, t.counted
    FROM t JOIN sub ON sub.session_id = t.session_id AND sub.submission_id = t.submission_id"""
_PUSHED: Final = """,
psh AS (
  UPDATE submissions s SET reconcile_at = p.reconcile_at
  FROM p
  WHERE s.session_id = p.session_id AND s.id = p.submission_id AND s.revision = p.revision AND s.settled_at IS NULL
)"""


def write_postgresql(
    conn: Connection, rows: Rows, pushes: Sequence[PushRow], now: datetime, *, last: bool
) -> set[tuple[str, str]]:
    """Write everything in one statement; return the keys of the submissions that landed."""
    parameters: dict[str, Any] = {"now": now, "pass_id": rows.pass_id}
    kinds = {id(row.kind): row.kind for row in rows.decisions}
    numbers = {name: number for number, name in enumerate(kinds, start=1)}
    parameters |= _arrays("k", Kind, list(kinds.values()))
    parameters |= _arrays("w", DecisionRow, [(numbers[id(row[0])], *row[1:]) for row in rows.decisions])
    if rows.entries:
        parameters |= _arrays("m", EntryRow, rows.entries)
    if rows.attempts:
        parameters |= _arrays("t", AttemptRow, rows.attempts)
    if pushes:
        parameters |= _arrays("p", PushRow, pushes)
    statement = _postgresql_statement(
        has_entries=bool(rows.entries), has_attempts=bool(rows.attempts), has_pushes=bool(pushes)
    )
    (found,) = send(conn, (statement, parameters), last=last)
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

    def __init__(self, text: str) -> None:
        self._names = tuple(dict.fromkeys(_NAME.findall(text)))
        numbers = {name: f"?{number}" for number, name in enumerate(self._names, start=1)}
        self._text = _NAME.sub(lambda found: numbers[found[1]], text)

    def run(self, conn: Connection, columns: Mapping[str, Sequence[object]]) -> int:
        """Run it for each row of *columns*, by name; return how many rows of the table it changed."""
        rows = list(zip(*(columns[name] for name in self._names), strict=True))
        # Whether each row landed is read from it.
        return int(execute_sqlite(conn, self._text, *rows).rowcount) if rows else 0


_INSTANTS: Final = {
    row_type: tuple(name for name, hint in get_type_hints(row_type).items() if hint == datetime | None)
    for row_type in (DecisionRow, EntryRow, AttemptRow, PushRow)
}


def _columns(row_type: type[Any], rows: Sequence[tuple[Any, ...]], stamp: str) -> dict[str, Sequence[object]]:
    columns: dict[str, Sequence[object]] = dict(zip(row_type._fields, zip(*rows, strict=True), strict=True))
    for name in _INSTANTS[row_type]:
        column = columns[name]
        if column.count(None) != len(column):
            columns[name] = [None if value is None else utc_text(value) for value in column]  # type: ignore[arg-type]
    columns["now"] = [stamp] * len(rows)
    return columns


def _decision_columns(rows: Rows, stamp: str) -> dict[str, Sequence[object]]:
    columns = _columns(DecisionRow, rows.decisions, stamp)
    columns |= zip(Kind._fields, zip(*columns.pop("kind"), strict=True), strict=True)
    columns["pass_id"] = [rows.pass_id] * len(rows.decisions)
    return columns


# The version is asked for by the session's own update where there is one, the lease by the attempt's.
_SUBMISSION_SQLITE: Final = _Statement(
    f"UPDATE submissions AS s SET {_set(':', ':now')}"
    " WHERE s.session_id = :session_id AND s.id = :submission_id AND s.revision = :guard_revision"
    " AND s.settled_at IS NULL AND s.current_attempt_id IS :guard_attempt"
    " AND (:added > 0 OR EXISTS (SELECT 1 FROM sessions x WHERE x.id = :session_id AND x.version = :guard_version))"
    " AND (:guard_lease IS NULL OR :end_kind IS NOT NULL OR EXISTS (SELECT 1 FROM attempts a"
    " WHERE a.session_id = :session_id AND a.attempt_id = :guard_attempt AND a.lease_expires_at = :guard_lease))"
)
_SESSION_SQLITE: Final = _Statement(
    "UPDATE sessions SET version = version + :added, last_seq = last_seq + :last_number,"
    " leaf_entry_id = COALESCE(:new_leaf, leaf_entry_id), updated_at = :now"
    " WHERE id = :session_id AND version = :guard_version"
)
_SETTLEMENT_SQLITE: Final = _Statement(
    "INSERT INTO entries (session_id, seq, id, parent_id, kind, submission_id, content, is_synthetic, write_ahead,"
    f" created_at) VALUES (:session_id, :last_seq + :last_number, {_ENTRY_ID}:submission_id, :parent_id,"
    f" '{KIND_SUBMISSION_SETTLED}', :submission_id, 'none', 1, 1, :now)"
)
_SETTLEMENT_PAYLOAD_SQLITE: Final = _Statement(
    "INSERT INTO entry_payloads (session_id, entry_id, payload)"
    f" VALUES (:session_id, {_ENTRY_ID}:submission_id, :payload)"
)
_ENTRY_SQLITE: Final = _Statement(
    "INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, tool_call_id, content,"
    " is_synthetic, write_ahead, created_at) VALUES (:session_id, :last_seq + :number, :id, :parent_id, :kind, :role,"
    " :submission_id, :tool_call_id, :content, 1, 1, :now)"
)
_PAYLOAD_SQLITE: Final = _Statement(
    "INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (:session_id, :id, :payload)"
)
_END_SQLITE: Final = _Statement(
    "UPDATE attempts SET ended_at = :now, end_kind = :end_kind"
    " WHERE session_id = :session_id AND attempt_id = :guard_attempt"
    " AND (:guard_lease IS NULL OR lease_expires_at = :guard_lease)"
)
_ATTEMPT_SQLITE: Final = _Statement(
    "UPDATE attempts SET ended_at = CASE WHEN :end_kind IS NULL THEN ended_at ELSE :now END,"
    " end_kind = COALESCE(:end_kind, end_kind), end_reason = COALESCE(:end_reason, end_reason),"
    " end_digest = COALESCE(:end_digest, end_digest),"
    " provider_error_counted = MAX(provider_error_counted, :counted)"
    " WHERE session_id = :session_id AND attempt_id = :attempt_id"
)
_DECISION_SQLITE: Final = _Statement(
    "INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, decided_by, action, advice, reason,"
    " gate, state, detail, outcome, attempt_id, attempt_end, evidence, inspection, plan, not_before, reconcile_at,"
    " session_version, revision, note) VALUES (:session_id, :submission_id, :decision_count + 1, :now, :pass_id,"
    " :decided_by, :action, :advice, :reason, :gate, :state, :detail, :decision_outcome,"
    " COALESCE(:guard_attempt, :attempt_id), :attempt_end, :evidence, :inspection, :plan, :not_before, :reconcile_at,"
    " :guard_version, :guard_revision + 1, :note)"
)
_PUSH_SQLITE: Final = _Statement(
    "UPDATE submissions SET reconcile_at = :reconcile_at"
    " WHERE session_id = :session_id AND id = :submission_id AND revision = :revision AND status <> 'settled'"
)


def write_sqlite(conn: Connection, rows: Rows, pushes: Sequence[PushRow], now: datetime) -> set[tuple[str, str]]:
    """Write everything with a constant number of statements; return the keys of the submissions that landed.

    Differs on SQLite because it has no data-modifying CTE. Rows that were read in this transaction, which keeps all
    others out, are as they were: the guard is in their updates, and all must land. For others the guard is read first,
    and what lost it is left out.

    Raises:
        StoreConflict: rows that were said to be read in this transaction are not as they were read; take it back.
    """
    stamp = utc_text(now)
    if any(row.last_seq is None for row in rows.decisions):
        rows = _landing(conn, rows)
    if rows.decisions:
        _write_all(conn, rows, stamp)
    if pushes:
        _PUSH_SQLITE.run(conn, _columns(PushRow, pushes, stamp))
    return {(row.session_id, row.submission_id) for row in rows.decisions}


def _write_all(conn: Connection, rows: Rows, stamp: str) -> None:
    columns = _decision_columns(rows, stamp)
    landed = _SUBMISSION_SQLITE.run(conn, columns) == len(rows.decisions)
    if sums := _session_sums(rows.decisions):
        count = len(sums["session_id"])
        landed = _SESSION_SQLITE.run(conn, {**sums, "now": [stamp] * count}) == count and landed
    if ending := _where(columns, "end_kind"):
        landed = _END_SQLITE.run(conn, ending) == len(ending["end_kind"]) and landed
    if not landed:
        raise StoreConflict("could not write decisions: their rows are not as they were read in the same transaction")
    _DECISION_SQLITE.run(conn, columns)
    if settling := _where(columns, "settles"):
        _SETTLEMENT_SQLITE.run(conn, settling)
        _SETTLEMENT_PAYLOAD_SQLITE.run(conn, settling)
    if rows.entries:
        columns = _columns(EntryRow, rows.entries, stamp)
        last_seqs = {row.session_id: row.last_seq for row in rows.decisions}
        columns["last_seq"] = [last_seqs[row.session_id] for row in rows.entries]
        _ENTRY_SQLITE.run(conn, columns)
        _PAYLOAD_SQLITE.run(conn, columns)
    if rows.attempts:
        _ATTEMPT_SQLITE.run(conn, _columns(AttemptRow, rows.attempts, stamp))


def _where(columns: Mapping[str, Sequence[object]], name: str) -> Mapping[str, Sequence[object]]:
    """Return the rows of *columns* that have something in the column *name*; nothing where none has."""
    chosen = columns[name]
    if all(chosen):
        return columns
    if not any(chosen):
        return {}
    return {each: list(compress(column, chosen)) for each, column in columns.items()}


def _landing(conn: Connection, rows: Rows) -> Rows:
    """Return those of *rows* whose guard holds, with what stands in the tables beside it."""
    keys = [(row.session_id, row.submission_id) for row in rows.decisions]
    guards = {(row.session_id, row.submission_id): row for row in read_guards(conn, keys)}
    decisions = [
        row._replace(last_seq=guard.last_seq, decision_count=guard.decision_count)
        for row in rows.decisions
        if (guard := guards.get((row.session_id, row.submission_id))) is not None and _lands(row, guard)
    ]
    landed = {(row.session_id, row.submission_id) for row in decisions}
    return Rows(
        rows.pass_id,
        decisions,
        [row for row in rows.entries if (row.session_id, row.submission_id) in landed],
        [row for row in rows.attempts if (row.session_id, row.submission_id) in landed],
    )


def _lands(row: DecisionRow, guard: GuardRow) -> bool:
    return (
        guard.status != "settled"
        and guard.version == row.guard_version
        and guard.revision == row.guard_revision
        and guard.current_attempt_id == row.guard_attempt
        and (row.guard_lease is None or guard.lease_expires_at == utc_text(row.guard_lease))
    )


def _session_sums(decisions: Sequence[DecisionRow]) -> dict[str, Sequence[object]]:
    """Return what the sessions become, as columns; nothing where no session changes."""
    sums: dict[str, tuple[int, int, int, str | None]] = {}
    for row in decisions:
        if row.added:
            leaf = SETTLEMENT_ID_PREFIX + row.submission_id if row.kind.becomes_leaf else None
            before = sums.get(row.session_id)
            if before is None:
                sums[row.session_id] = (row.guard_version, row.added, row.last_number, leaf)
            else:
                version, added, last_number, new_leaf = before
                last_number = max(last_number, row.last_number)
                sums[row.session_id] = (version, added + row.added, last_number, leaf or new_leaf)
    if not sums:
        return {}
    names = ("guard_version", "added", "last_number", "new_leaf")
    return {"session_id": list(sums), **dict(zip(names, zip(*sums.values(), strict=True), strict=True))}
