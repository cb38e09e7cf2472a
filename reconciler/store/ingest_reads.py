"""What an import compares a file with: the source, the session, its entries and payloads, in bounded reads.

Knows nothing of files or formats, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json_parsed
from reconciler.core.model import KIND_SUBMISSION_SETTLED, SessionEntry
from reconciler.core.states import SessionOrigin
from reconciler.store.dialect import db_now, in_list
from reconciler.store.driver_sql import DriverSql
from reconciler.store.schema import entries, entry_payloads, submissions
from reconciler.store.types import utc_from_text

# Reads of one statement are bounded by this.
READ_BATCH: Final = 1000

# The columns that a source decides, in the order of `columns_of`.
COLUMNS: Final = (
    "id",
    "parent_id",
    "kind",
    "role",
    "submission_id",
    "stop_reason",
    "tool_call_ids",
    "tool_call_id",
    "content",
    "is_synthetic",
    "is_sidechain",
    "ends_turn",
    "error_retryable",
    "stopped_by",
    "starts_logged",
    "write_ahead",
)
Columns = tuple[Any, ...]


def columns_of(entry: SessionEntry, write_ahead: bool | None) -> Columns:
    """Return what is stored of an entry beside its place, its time and its payload."""
    return (
        entry.id,
        entry.parent_id,
        entry.kind,
        entry.role,
        entry.submission_id,
        entry.stop_reason,
        canonical_json_parsed(entry.tool_call_ids) if entry.tool_call_ids else None,
        entry.tool_call_id,
        entry.content,
        entry.is_synthetic,
        entry.is_sidechain,
        entry.ends_turn,
        entry.error_retryable,
        entry.stopped_by,
        entry.starts_logged,
        write_ahead,
    )


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source that was imported before."""

    source_id: str
    bytes_read: int
    lines_read: int
    content_digest: str | None
    owned_at: datetime | None
    is_importing: bool


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as it stands."""

    session_id: str
    origin: SessionOrigin
    version: int
    leaf_entry_id: str | None
    last_seq: int
    source_id: str | None


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it stands: its place, and its columns in the order of `COLUMNS`."""

    seq: int
    columns: Columns


_SOURCE: Final = DriverSql(
    "SELECT id, bytes_read, lines_read, content_digest, owned_at, importing_since FROM sources"
    " WHERE locator = :locator AND format = :format"
)
_SESSION_COLUMNS: Final = "SELECT id, origin, version, leaf_entry_id, last_seq, source_id FROM sessions WHERE id = :id"
_SESSION: Final = DriverSql(_SESSION_COLUMNS)
_SESSION_LOCKED: Final = DriverSql(_SESSION_COLUMNS, locking=True)
_UNSETTLED: Final = DriverSql("SELECT id FROM submissions WHERE session_id = :session_id AND status <> 'settled'")
_SETTLEMENTS: Final = DriverSql(
    "SELECT submission_id, id FROM entries WHERE session_id = :session_id AND kind = 'submission_settled'"
)
_ADMITTED: Final = DriverSql(
    "SELECT id FROM submissions WHERE session_id = :session_id AND id IN :ids"
    " UNION SELECT submission_id FROM settled_ids WHERE session_id = :session_id AND submission_id IN :ids"
)


def source_row(conn: Connection, locator: str, format_name: str) -> SourceRow | None:
    """Return the source at *locator*, None where it is new."""
    for source_id, size, lines, digest, owned_at, importing in _SOURCE.rows(conn, locator=locator, format=format_name):
        # The driver gives an instant in the zone of its connection.
        owned = utc_from_text(owned_at) if isinstance(owned_at, str) else owned_at and owned_at.astimezone(UTC)
        return SourceRow(source_id, size, lines, digest, owned, importing is not None)
    return None


def session_row(conn: Connection, session_id: str, *, lock: bool = False) -> SessionRow | None:
    """Return the session, None where it is new; locked, where that is asked for."""
    for row in (_SESSION_LOCKED if lock else _SESSION).rows(conn, id=session_id):
        return SessionRow(row[0], SessionOrigin(row[1]), *row[2:])
    return None


def stored_entries(conn: Connection, session_id: str, ids: Sequence[str]) -> dict[str, StoredEntry]:
    """Return those of the entries *ids* that are stored. At most `READ_BATCH` ids."""
    chosen = sa.select(entries.c.seq, *(entries.c[name] for name in COLUMNS)).where(
        entries.c.session_id == session_id, in_list(conn, entries.c.id, list(ids))
    )
    return {row[1]: StoredEntry(row[0], tuple(row[1:])) for row in conn.execute(chosen)}


def stored_payloads(conn: Connection, session_id: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the payloads of the entries *ids*. At most `READ_BATCH` ids."""
    chosen = sa.select(entry_payloads.c.entry_id, entry_payloads.c.payload).where(
        entry_payloads.c.session_id == session_id, in_list(conn, entry_payloads.c.entry_id, list(ids))
    )
    return {row[0]: row[1] for row in conn.execute(chosen)}


def own_ids(conn: Connection, session_id: str, *, after_seq: int) -> list[tuple[int, str]]:
    """Return (seq, id) of the next `READ_BATCH` entries that a source gave: all but our settlement entries."""
    chosen = (
        sa.select(entries.c.seq, entries.c.id)
        .where(
            entries.c.session_id == session_id,
            entries.c.seq > after_seq,
            entries.c.kind != KIND_SUBMISSION_SETTLED,
        )
        .order_by(entries.c.seq)
        .limit(READ_BATCH)
    )
    return [(row[0], row[1]) for row in conn.execute(chosen)]


def unsettled_submissions(conn: Connection, session_id: str) -> set[str]:
    """Return the ids of the session's unsettled submissions."""
    return {row[0] for row in _UNSETTLED.rows(conn, session_id=session_id)}


def settled_among(conn: Connection, session_id: str, ids: Sequence[str]) -> list[str]:
    """Return those of the submissions *ids* that are settled: evidence of them comes too late."""
    chosen = sa.select(submissions.c.id).where(
        submissions.c.session_id == session_id,
        sa.text("status = 'settled'"),
        in_list(conn, submissions.c.id, list(ids)),
    )
    return list(conn.execute(chosen).scalars())


def settlements(conn: Connection, session_id: str) -> dict[str, str]:
    """Return the settlement entries that are stored, ours or the source's: submission to entry."""
    return dict(_SETTLEMENTS.rows(conn, session_id=session_id))


def admitted(conn: Connection, session_id: str, ids: Sequence[str]) -> set[str]:
    """Return those of the submissions *ids* that have a row, or had one before they were pruned."""
    return {row[0] for row in _ADMITTED.rows(conn, session_id=session_id, ids=list(ids))}


def clock(conn: Connection) -> datetime:
    """Return this moment by the database's clock."""
    return db_now(conn)
