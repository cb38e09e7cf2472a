"""What stands around the rows of a batch: attempts, settlement entry, input, leaf, source, and the database's clock.

One statement for all, after the sessions and submissions are locked; it locks the current attempts, so that no lease
which is over at its clock can be renewed any more (I3, I15). Knows nothing of what the rows mean.
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, get_type_hints

from sqlalchemy.engine import Connection

from reconciler.store.dialect import array_literal, db_now, fetch_tuples, is_postgresql
from reconciler.store.passes import DueRow, Key
from reconciler.store.sending import Query
from reconciler.store.types import utc_from_text


class AttemptRow(NamedTuple):
    """An attempt's columns, as far as a decision needs them.

    First what is another one's in every attempt; from ``FIRST_OF_REST`` on, many have the same.
    """

    attempt_id: str
    claimed_at: datetime
    beat_at: datetime
    lease_expires_at: datetime
    begun_at: datetime | None
    progress_at: datetime | None
    ended_at: datetime | None
    machine_id: str | None
    boot_id: str | None
    pid_namespace: str | None
    pid: int | None
    process_start: str | None
    number: int
    beat_s: float
    end_kind: str | None
    end_reason: str | None
    retryable: bool | None
    provider_error_counted: bool


FIRST_OF_REST: Final = AttemptRow._fields.index("number")


class Surroundings(NamedTuple):
    """What stands around a submission's row.

    ``input_seq`` is where its newest canonical input is in the session, on the active path or not. The settlement
    entry's payload is read only where there is one, and how the last attempt ended that had begun only where the
    current one has not: nobody asks otherwise.
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


_ATTEMPT_NAMES: Final = AttemptRow._fields
_ATTEMPT_WIDTH: Final = len(_ATTEMPT_NAMES)
_ATTEMPT_INSTANTS: Final = tuple(
    place for place, hint in enumerate(get_type_hints(AttemptRow).values()) if hint in (datetime, datetime | None)
)
_RETRYABLE_PLACE: Final = _ATTEMPT_NAMES.index("retryable")
_COUNTED_PLACE: Final = _ATTEMPT_NAMES.index("provider_error_counted")


def _attempt_columns(alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in _ATTEMPT_NAMES)


_INPUT_WHERE: Final = (
    "i.session_id = k.session_id AND i.submission_id = k.submission_id AND i.kind = 'message'"
    " AND i.role IN ('user', 'signal') AND NOT i.is_synthetic AND NOT i.is_sidechain"
)
_LAST_BEGUN_END: Final = (
    "CASE WHEN c.begun_at IS NULL THEN (SELECT b.end_kind FROM attempts b WHERE b.session_id = k.session_id"
    " AND b.submission_id = k.submission_id AND b.begun_at IS NOT NULL AND b.ended_at IS NOT NULL"
    " ORDER BY b.number DESC LIMIT 1) END"
)
_CURRENT_WHERE: Final = "c.session_id = k.session_id AND c.attempt_id = k.current_attempt_id"
_LAST_WHERE: Final = "l.session_id = k.session_id AND l.attempt_id = k.last_attempt_id"
_SETTLEMENT_WHERE: Final = (
    "t.session_id = k.session_id AND t.submission_id = k.submission_id AND t.kind = 'submission_settled'"
)
_PAYLOAD: Final = "(SELECT p.payload FROM entry_payloads p WHERE p.session_id = k.session_id AND p.entry_id = t.id)"
_LEAF_SEQ: Final = "(SELECT f.seq FROM entries f WHERE f.session_id = k.session_id AND f.id = k.leaf_entry_id)"
_QUIET_SINCE: Final = "(SELECT q.quiet_since FROM sources q WHERE q.id = k.source_id)"
_KEY_NAMES: Final = (
    "session_id",
    "submission_id",
    "current_attempt_id",
    "last_attempt_id",
    "leaf_entry_id",
    "source_id",
)
_JSON_KEYS: Final = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(_KEY_NAMES))
_PG_KEYS: Final = (
    f"unnest({', '.join(f'CAST(%({name})s AS text[])' for name in _KEY_NAMES)}) AS k({', '.join(_KEY_NAMES)})"
)
# Each table is asked for one row at a time (LIMIT keeps it so): a batch is few rows, and a planner that expects them to
# be many reads whole tables instead, as long as these are small. The clock is read as each row comes out, which is
# after its attempt was locked, so that the latest of them is after all locks.
_PG_AROUND: Final = (
    f"SELECT k.session_id, k.submission_id, {_attempt_columns('c')}, {_attempt_columns('l')}, {_LAST_BEGUN_END},"
    f" t.id, CASE WHEN t.id IS NOT NULL THEN {_PAYLOAD} END, i.id, i.seq, {_LEAF_SEQ},"
    f" CASE WHEN k.source_id IS NOT NULL THEN {_QUIET_SINCE} END, clock_timestamp()"
    f" FROM {_PG_KEYS}"
    f" LEFT JOIN LATERAL (SELECT * FROM attempts c WHERE {_CURRENT_WHERE} LIMIT 1 {{lock}}) c ON true"
    f" LEFT JOIN LATERAL (SELECT * FROM attempts l WHERE {_LAST_WHERE} LIMIT 1) l ON true"
    f" LEFT JOIN LATERAL (SELECT t.id FROM entries t WHERE {_SETTLEMENT_WHERE} LIMIT 1) t ON true"
    f" LEFT JOIN LATERAL (SELECT i.id, i.seq FROM entries i WHERE {_INPUT_WHERE} ORDER BY i.seq DESC LIMIT 1) i ON true"
)
_SQLITE_AROUND: Final = (
    f"SELECT k.session_id, k.submission_id, {_attempt_columns('c')}, {_attempt_columns('l')}, {_LAST_BEGUN_END},"
    f" t.id, CASE WHEN t.id IS NOT NULL THEN {_PAYLOAD} END, i.id, i.seq, {_LEAF_SEQ},"
    f" CASE WHEN k.source_id IS NOT NULL THEN {_QUIET_SINCE} END, NULL"
    f" FROM (SELECT {_JSON_KEYS} FROM json_each(:keys)) AS k"
    f" LEFT JOIN attempts c ON {_CURRENT_WHERE} LEFT JOIN attempts l ON {_LAST_WHERE}"
    f" LEFT JOIN entries t ON {_SETTLEMENT_WHERE}"
    " LEFT JOIN entries i ON i.session_id = k.session_id AND i.seq ="
    f" (SELECT max(i.seq) FROM entries i WHERE {_INPUT_WHERE})"
)


# The same for one row, by its key alone: what the row says is not known yet when this is sent.
_PG_AROUND_ONE: Final = _PG_AROUND.replace(
    _PG_KEYS,
    "(SELECT s.session_id, s.id AS submission_id, s.current_attempt_id, s.last_attempt_id, x.leaf_entry_id, x.source_id"
    " FROM submissions s JOIN sessions x ON x.id = s.session_id"
    " WHERE s.session_id = %(session)s AND s.id = %(submission)s) AS k",
).format(lock="")


def sent_for_one(session_id: str, submission_id: str) -> Query:
    """Return what `read_around_one` sends to PostgreSQL, to go ahead of the answer about its row."""
    return _PG_AROUND_ONE, {"session": session_id, "submission": submission_id}


def read_around_one(conn: Connection, row: DueRow) -> Surroundings:
    """Read what stands around a row that is locked; its attempts are not locked by this."""
    if not is_postgresql(conn):
        return read_around(conn, [row], lock=False).around[row.key]
    (found,) = fetch_tuples(conn, *sent_for_one(row.session_id, row.submission_id))
    return _surroundings(found)


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
        statement = _PG_AROUND.format(lock="FOR UPDATE" if lock else "")
        parameters: dict[str, Any] = {
            name: array_literal(column) for name, column in zip(_KEY_NAMES, zip(*keys, strict=True), strict=True)
        }
        now = None
        for row in fetch_tuples(conn, statement, parameters):
            around[row[0], row[1]] = _surroundings(row)
            now = row[-1] if now is None or row[-1] > now else now
        return Read(now or db_now(conn), around)
    for row in fetch_tuples(conn, _SQLITE_AROUND, {"keys": json.dumps(keys)}):
        around[row[0], row[1]] = _surroundings(row, text=True)
    return Read(db_now(conn), around)


def _surroundings(row: Sequence[Any], *, text: bool = False) -> Surroundings:
    rest = 2 + 2 * _ATTEMPT_WIDTH
    last_begun_end, settlement_id, payload, input_id, input_seq, leaf_seq, quiet_since, _ = row[rest:]
    return Surroundings(
        _attempt(row[2 : 2 + _ATTEMPT_WIDTH], text),
        _attempt(row[2 + _ATTEMPT_WIDTH : rest], text),
        last_begun_end,
        settlement_id,
        payload,
        input_id,
        input_seq,
        leaf_seq,
        utc_from_text(quiet_since) if text and quiet_since is not None else quiet_since,
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
