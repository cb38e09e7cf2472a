"""A whole session as it is stored, with its payloads, for exporting. Reads only, in pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.model import INPUT_ID_PREFIX, SessionEntry
from reconciler.store.schema import entries, entry_payloads, sessions, sources, submissions

_PAGE: Final = 500
_FIELDS: Final = tuple(SessionEntry.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class SessionHead:
    """A session's row, and the format of the source it came from (None: it is native from the beginning)."""

    session_id: str
    origin: str
    leaf_entry_id: str | None
    leaf_known_empty: bool
    source_format: str | None


@dataclass(frozen=True, slots=True)
class EntryRead:
    """An entry with its payload's JSON; None where the payload is lost."""

    entry: SessionEntry
    payload: str | None
    at: datetime
    write_ahead: bool | None


@dataclass(frozen=True, slots=True)
class SubmissionRead:
    """A submission's row. ``input_text``: its input's JSON where it was kept on admission."""

    submission_id: str
    kind: str
    status: str
    outcome: str | None
    input_text: str | None


def session_head(conn: Connection, session_id: str) -> SessionHead | None:
    """Return a session's row; None where there is none."""
    row = conn.execute(
        sa.select(
            sessions.c.id, sessions.c.origin, sessions.c.leaf_entry_id, sessions.c.leaf_known_empty, sources.c.format
        )
        .select_from(sessions.outerjoin(sources, sources.c.id == sessions.c.source_id))
        .where(sessions.c.id == session_id)
    ).one_or_none()
    return None if row is None else SessionHead(*row)


def entries_of(conn: Connection, session_id: str) -> Iterator[EntryRead]:
    """Yield a session's entries in the order of ``seq``, a page at a time."""
    after = -1
    while True:
        rows = (
            conn.execute(
                sa.select(
                    entries.c.seq,
                    entries.c.created_at,
                    entries.c.write_ahead,
                    *(entries.c[name] for name in _FIELDS),
                    entry_payloads.c.payload,
                )
                .select_from(
                    entries.outerjoin(
                        entry_payloads,
                        sa.and_(
                            entry_payloads.c.session_id == entries.c.session_id,
                            entry_payloads.c.entry_id == entries.c.id,
                        ),
                    )
                )
                .where(entries.c.session_id == session_id, entries.c.seq > after)
                .order_by(entries.c.seq)
                .limit(_PAGE)
            )
            .mappings()
            .all()
        )
        for row in rows:
            yield EntryRead(_entry(row), row["payload"], row["created_at"], row["write_ahead"])
        if len(rows) < _PAGE:
            return
        after = rows[-1]["seq"]


def submissions_of(conn: Connection, session_id: str) -> Iterator[SubmissionRead]:
    """Yield a session's submissions in the order of admission, a page at a time."""
    after = -1
    while True:
        rows = conn.execute(
            sa.select(
                submissions.c.ticket,
                submissions.c.id,
                submissions.c.kind,
                submissions.c.status,
                submissions.c.outcome,
                entry_payloads.c.payload,
            )
            .select_from(
                submissions.outerjoin(
                    entry_payloads,
                    sa.and_(
                        entry_payloads.c.session_id == submissions.c.session_id,
                        entry_payloads.c.entry_id == sa.literal(INPUT_ID_PREFIX, sa.Text()).concat(submissions.c.id),
                    ),
                )
            )
            .where(submissions.c.session_id == session_id, submissions.c.ticket > after)
            .order_by(submissions.c.ticket)
            .limit(_PAGE)
        ).all()
        for row in rows:
            yield SubmissionRead(*row[1:])
        if len(rows) < _PAGE:
            return
        after = rows[-1].ticket


def _entry(row: Any) -> SessionEntry:
    values = {name: row[name] for name in _FIELDS}
    values["tool_call_ids"] = tuple(json.loads(values["tool_call_ids"])) if values["tool_call_ids"] else ()
    return SessionEntry(**values)
