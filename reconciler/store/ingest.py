"""Sessions that come from files: entries in pieces, leaf and due rows with the last piece.

One transaction per function, each short: an import of any size is many of them, and a crash between two is mended by
importing again (the source's digest is written last). Nothing of an unfinished import decides anything: the leaf and
the rows that make it visible come with `finish_import`. Where a source rewrote an entry, the old columns and payload
are kept.

Knows nothing of files or formats; the caller compares, this file writes what it is told, under the session's lock, if
the session is still the one that was compared (else StoreConflict).
"""

# ruff: noqa: S608 - the statements are put together from the constants of this file alone; every value is bound.
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.model import KIND_SUBMISSION_SETTLED
from reconciler.core.states import SessionOrigin
from reconciler.errors import SourceOwned, StoreConflict
from reconciler.store.dialect import db_now, in_list, insert_ignore, is_postgresql, upsert
from reconciler.store.driver_sql import DriverSql
from reconciler.store.ingest_reads import (
    COLUMNS,
    Columns,
    SessionRow,
    StoredEntry,
    session_row,
    stored_entries,
    stored_payloads,
)
from reconciler.store.ingest_submissions import NewSubmission, admit, make_due, note_late_evidence
from reconciler.store.schema import (
    entries,
    entry_payloads,
    sessions,
    sources,
    submissions,
    superseded_payloads,
)
from reconciler.store.types import utc_text

# While an import in several pieces is under way, its session's rows are looked at no earlier than this: between two
# pieces a session is half of what it will be. After a crash they come up by themselves.
IMPORT_WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class NewRow:
    """An entry that isn't stored yet."""

    seq: int
    columns: Columns
    payload: str
    written_at: datetime | None


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A stored entry that the source rewrote, or that needs another place. ``payload`` is None where it stays."""

    stored: StoredEntry
    seq: int
    columns: Columns
    payload: str | None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one transaction of an import writes. ``version`` is the session's as it was compared, None for a new one."""

    session_id: str
    version: int | None
    added: Sequence[NewRow] = ()
    changed: Sequence[ChangedRow] = ()
    # (seq, id) of entries that the source no longer has.
    gone: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class SourceState:
    """What is written of a source."""

    source_id: str
    format: str
    format_version: str | None
    locator: str
    bytes_read: int
    lines_read: int
    content_digest: str
    quiet_since: datetime
    problems: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The last piece: what makes the import visible.

    ``touched`` are the submissions of which something that a model, a tool or a person said was added or rewritten,
    with the ids of these entries. ``withdrawn`` are unsettled submissions that the source holds no longer.
    """

    leaf_entry_id: str | None
    leaf_known_empty: bool
    leaf_moved: bool
    submissions: Sequence[NewSubmission]
    touched: Mapping[str, Sequence[str]]
    withdrawn: Sequence[str]


@dataclass(frozen=True, slots=True)
class Finished:
    """What the last piece did."""

    version: int
    submissions_added: tuple[str, ...]
    # Settled before: nothing was changed, the new evidence is noted.
    late: tuple[str, ...]


def begin_import(conn: Connection, source: SourceState, session_id: str, version: int | None) -> SessionRow:
    """Note that an import is under way, make the session where it is new, and return it.

    Raises:
        SourceOwned: the session or the source is native.
        StoreConflict: the session is no longer the one compared (*version*; None where it wasn't there).
    """
    session = _lock(conn, session_id, version)
    now = db_now(conn)
    row = _source_values(source, now)
    # What was read before stays the truth until the import is finished.
    conn.execute(
        insert_ignore(conn, sources, key=["locator", "format"]).values(
            **{**row, "bytes_read": 0, "lines_read": 0, "content_digest": None, "first_import_at": now}
        )
    )
    conn.execute(sa.update(sources).where(sources.c.id == source.source_id).values(importing_since=now))
    conn.execute(
        sa.update(submissions)
        .where(
            submissions.c.session_id == session_id,
            sa.text("status = 'queued'"),
            submissions.c.held_at.is_(None),
            submissions.c.reconcile_at.is_not(None),
        )
        .values(reconcile_at=now + timedelta(seconds=IMPORT_WAIT_S))
    )
    return session


def write_piece(conn: Connection, piece: Piece) -> int:
    """Write a piece and return the session's new version.

    Raises:
        StoreConflict: the session is no longer the one that was compared.
        SourceOwned: it is native by now.
    """
    session = _lock(conn, piece.session_id, piece.version)
    now = db_now(conn)
    version, last = _write(conn, session, piece, now)
    _PROGRESS.run(conn, id=session.session_id, version=version, last_seq=last, now=now)
    return version


def finish_import(conn: Connection, piece: Piece, source: SourceState, finish: Finish) -> Finished:
    """Write the last piece: what is left of the entries, the leaf, the due rows, and how far the source was read.

    Raises:
        StoreConflict, SourceOwned: as `write_piece`.
    """
    session = _lock(conn, piece.session_id, piece.version)
    now = db_now(conn)
    version, last = _write(conn, session, piece, now)
    version += finish.leaf_entry_id != session.leaf_entry_id
    _LEAF.run(
        conn,
        id=session.session_id,
        version=version,
        last_seq=last,
        leaf=finish.leaf_entry_id,
        known_empty=finish.leaf_known_empty,
        source_id=source.source_id,
        now=now,
    )
    if finish.leaf_moved:
        _LEAF_MOVED.run(conn, id=session.session_id, version=version, now=now)
    late: list[str] = []
    # A session that is made just now has none of our settlements, and no rows.
    is_new = piece.version is None
    if not is_new or any(row.columns[_KIND] == KIND_SUBMISSION_SETTLED for row in piece.added):
        _keep_settlements_in_place(conn, session.session_id, finish.leaf_entry_id)
    if not is_new:
        late = note_late_evidence(conn, session.session_id, finish.touched, now)
        if version != piece.version or finish.touched or finish.withdrawn:
            make_due(conn, session.session_id, finish.withdrawn, now)
    added = admit(conn, session.session_id, finish.submissions, now, version)
    _SOURCE_READ.run(conn, **_source_values(source, now))
    return Finished(version, tuple(added), tuple(late))


_KIND: Final = COLUMNS.index("kind")
_PROGRESS: Final = DriverSql(
    "UPDATE sessions SET version = :version, last_seq = :last_seq, updated_at = :now WHERE id = :id"
)
_LEAF: Final = DriverSql(
    "UPDATE sessions SET version = :version, last_seq = :last_seq, updated_at = :now, leaf_entry_id = :leaf,"
    " leaf_known_empty = :known_empty, source_id = :source_id WHERE id = :id"
)
_LEAF_MOVED: Final = DriverSql("UPDATE sessions SET leaf_moved_at = :now, leaf_moved_version = :version WHERE id = :id")
_SOURCE_READ: Final = DriverSql(
    "INSERT INTO sources (id, format, format_version, locator, bytes_read, lines_read, content_digest, quiet_since,"
    " first_import_at, last_import_at, problems)"
    " VALUES (:id, :format, :format_version, :locator, :bytes_read, :lines_read, :content_digest, :quiet_since,"
    " :last_import_at, :last_import_at, :problems)"
    " ON CONFLICT (locator, format) DO UPDATE SET format_version = excluded.format_version,"
    " bytes_read = excluded.bytes_read, lines_read = excluded.lines_read, content_digest = excluded.content_digest,"
    " quiet_since = excluded.quiet_since, last_import_at = excluded.last_import_at, problems = excluded.problems,"
    " importing_since = NULL"
)
_NEW_SESSION: Final = DriverSql(
    "INSERT INTO sessions (id, origin, created_at, updated_at)"
    f" VALUES (:id, '{SessionOrigin.MIRRORED.value}', :now, :now) ON CONFLICT (id) DO NOTHING"
)


def own_session(conn: Connection, session_id: str, source_ids: Collection[str], version: int) -> tuple[int, list[str]]:
    """Make a mirrored session native: raise its version and make every unsettled submission due, with nothing standing.

    Returns the version and the submissions that are due.

    Raises:
        StoreConflict, SourceOwned: as `write_piece`.
    """
    _lock(conn, session_id, version)
    now = db_now(conn)
    conn.execute(
        sa.update(sessions)
        .where(sessions.c.id == session_id)
        .values(origin=SessionOrigin.NATIVE.value, version=version + 1, updated_at=now)
    )
    conn.execute(sa.update(sources).where(in_list(conn, sources.c.id, list(source_ids))).values(owned_at=now))
    due = conn.execute(
        sa.update(submissions)
        .where(submissions.c.session_id == session_id, sa.text("status <> 'settled'"))
        .values(reconcile_at=now, not_before=None, revision=submissions.c.revision + 1)
        .returning(submissions.c.id)
    ).scalars()
    return version + 1, sorted(due)


# --- the parts -------------------------------------------------------------------------------------------------------


def _lock(conn: Connection, session_id: str, version: int | None) -> SessionRow:
    """Lock the session as it was compared; make it where it was not there."""
    if version is None and _NEW_SESSION.run(conn, id=session_id, now=db_now(conn)):
        return SessionRow(session_id, SessionOrigin.MIRRORED, 0, None, 0, None)
    row = session_row(conn, session_id, lock=True)
    if row is None or row.version != version:
        raise StoreConflict(
            f'could not import session "{session_id}": it was changed in between', hint="import it again"
        )
    if row.origin is not SessionOrigin.MIRRORED:
        raise SourceOwned(
            f'cannot import session "{session_id}": it is native here, its file is no longer its record',
            hint="use its runners, or import the file into another database",
        )
    return row


def _write(conn: Connection, session: SessionRow, piece: Piece, now: datetime) -> tuple[int, int]:
    """Write the entries of a piece; return what the session's version and last place become."""
    if piece.gone:
        _remove(conn, session.session_id, piece.gone, now)
    if piece.changed:
        _change(conn, session.session_id, piece.changed, now)
    if piece.added:
        _add(conn, session.session_id, piece.added, now)
    last = max([session.last_seq, *(row.seq for row in piece.added), *(row.seq for row in piece.changed)])
    return session.version + len(piece.added) + len(piece.changed) + len(piece.gone), last


_INSERTED: Final = ("session_id", "seq", *COLUMNS, "created_at")


def _add(conn: Connection, session_id: str, added: Sequence[NewRow], now: datetime) -> None:
    rows = [(session_id, row.seq, *row.columns, row.written_at or now) for row in added]
    texts = [(session_id, row.columns[0], row.payload) for row in added]
    if is_postgresql(conn):
        # Through the driver: COPY takes rows several times faster than statements do.
        with conn.connection.driver_connection.cursor() as cursor:  # type: ignore[union-attr]
            with cursor.copy(f"COPY entries ({', '.join(_INSERTED)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            with cursor.copy("COPY entry_payloads (session_id, entry_id, payload) FROM STDIN") as copy:
                for text in texts:
                    copy.write_row(text)
        return
    conn.exec_driver_sql(
        f"INSERT INTO entries ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})",
        [(*row[:-1], utc_text(row[-1])) for row in rows],
    )
    conn.exec_driver_sql("INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (?, ?, ?)", texts)


def _change(conn: Connection, session_id: str, changed: Sequence[ChangedRow], now: datetime) -> None:
    rewritten = [row for row in changed if row.stored.columns != row.columns or row.payload is not None]
    _supersede(
        conn,
        session_id,
        [(row.stored, row.payload is not None) for row in rewritten],
        now,
    )
    statement = (
        sa.update(entries)
        .where(entries.c.session_id == session_id, entries.c.id == sa.bindparam("p_id"))
        .values(seq=sa.bindparam("p_seq"), **{name: sa.bindparam(f"p_{name}") for name in COLUMNS[1:]})
    )
    conn.execute(
        statement,
        [
            {"p_seq": row.seq, **{f"p_{name}": value for name, value in zip(COLUMNS, row.columns, strict=True)}}
            for row in changed
        ],
    )
    texts = [
        {"session_id": session_id, "entry_id": row.columns[0], "payload": row.payload}
        for row in changed
        if row.payload is not None
    ]
    if texts:
        conn.execute(upsert(conn, entry_payloads, key=["session_id", "entry_id"], update=["payload"]), texts)


def _remove(conn: Connection, session_id: str, gone: Sequence[tuple[int, str]], now: datetime) -> None:
    ids = [entry_id for _, entry_id in gone]
    stored = stored_entries(conn, session_id, ids)
    _supersede(conn, session_id, [(stored[entry_id], True) for entry_id in ids if entry_id in stored], now)
    for table, column in ((entries, entries.c.id), (entry_payloads, entry_payloads.c.entry_id)):
        conn.execute(sa.delete(table).where(table.c.session_id == session_id, in_list(conn, column, ids)))


def _supersede(conn: Connection, session_id: str, rows: Sequence[tuple[StoredEntry, bool]], now: datetime) -> None:
    """Keep what is about to be replaced: columns always, the payload where it is replaced too."""
    if not rows:
        return
    ids = [stored.columns[0] for stored, _ in rows]
    numbers: dict[str, int] = {
        row[0]: row[1]
        for row in conn.execute(
            sa.select(superseded_payloads.c.entry_id, sa.func.max(superseded_payloads.c.number))
            .where(superseded_payloads.c.session_id == session_id, in_list(conn, superseded_payloads.c.entry_id, ids))
            .group_by(superseded_payloads.c.entry_id)
        )
    }
    payloads = stored_payloads(conn, session_id, [stored.columns[0] for stored, whole in rows if whole])
    conn.execute(
        sa.insert(superseded_payloads),
        [
            {
                "session_id": session_id,
                "entry_id": stored.columns[0],
                "number": numbers.get(stored.columns[0], 0) + 1,
                "superseded_at": now,
                "columns": canonical_json({"seq": stored.seq, **dict(zip(COLUMNS, stored.columns, strict=True))}),
                "payload": payloads.get(stored.columns[0]) if whole else None,
            }
            for stored, whole in rows
        ],
    )


def _keep_settlements_in_place(conn: Connection, session_id: str, leaf: str | None) -> None:
    """Hang our settlement entries below the leaf again where their parent is gone or got a later place."""
    parent = entries.alias("parent")
    lost = conn.execute(
        sa.select(entries.c.id)
        .select_from(
            entries.outerjoin(
                parent, sa.and_(parent.c.session_id == entries.c.session_id, parent.c.id == entries.c.parent_id)
            )
        )
        .where(
            entries.c.session_id == session_id,
            entries.c.kind == sa.literal_column(f"'{KIND_SUBMISSION_SETTLED}'"),
            entries.c.attempt_id.is_(None),
            sa.or_(parent.c.id.is_(None), parent.c.seq >= entries.c.seq),
            entries.c.parent_id.is_not(None),
        )
        .order_by(entries.c.seq)
    ).scalars()
    for entry_id in list(lost):
        last = conn.execute(sa.select(sessions.c.last_seq).where(sessions.c.id == session_id)).scalar_one() + 1
        conn.execute(
            sa.update(entries)
            .where(entries.c.session_id == session_id, entries.c.id == entry_id)
            .values(seq=last, parent_id=leaf)
        )
        conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values(last_seq=last))


def _source_values(source: SourceState, now: datetime) -> dict[str, Any]:
    return {
        "id": source.source_id,
        "format": source.format,
        "format_version": source.format_version,
        "locator": source.locator,
        "bytes_read": source.bytes_read,
        "lines_read": source.lines_read,
        "content_digest": source.content_digest,
        "quiet_since": source.quiet_since,
        "last_import_at": now,
        "problems": source.problems,
    }
