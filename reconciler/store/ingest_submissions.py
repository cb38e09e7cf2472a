"""What an import does to submissions: rows for new prompts, due rows, and evidence that comes too late.

Parts of the last piece of an import (see ``ingest.py``), under the session's lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.model import INPUT_ID_PREFIX
from reconciler.store.dialect import in_list
from reconciler.store.driver_sql import DriverSql
from reconciler.store.ingest_reads import admitted
from reconciler.store.schema import submissions
from reconciler.store.types import utc_text

LATE_EVIDENCE_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class NewSubmission:
    """A prompt that gets a row. ``payload`` only where no entry holds it."""

    submission_id: str
    kind: str
    content_digest: str
    payload: str | None = None


def note_late_evidence(
    conn: Connection, session_id: str, touched: Mapping[str, Sequence[str]], now: datetime
) -> list[str]:
    if not touched:
        return []
    rows: Sequence[Any] = conn.execute(
        sa.select(submissions.c.id, submissions.c.late_evidence).where(
            submissions.c.session_id == session_id,
            sa.text("status = 'settled'"),
            in_list(conn, submissions.c.id, list(touched)),
        )
    ).all()
    for row in rows:
        before = json.loads(row.late_evidence)["entry_ids"] if row.late_evidence is not None else []
        ids = list(dict.fromkeys((*before, *touched[row.id])))
        note = {"entry_ids": ids[:LATE_EVIDENCE_MAX], "last_at": utc_text(now)}
        conn.execute(
            sa.update(submissions)
            .where(submissions.c.session_id == session_id, submissions.c.id == row.id)
            .values(late_evidence=canonical_json(note), revision=submissions.c.revision + 1)
        )
    return [row.id for row in rows]


_MAKE_DUE: Final = DriverSql(
    "UPDATE submissions SET reconcile_at = :now, revision = revision + 1"
    " WHERE session_id = :session_id AND status = 'queued' AND held_at IS NULL"
)
_TICKETS: Final = DriverSql(
    "UPDATE sessions SET last_ticket = last_ticket + :number WHERE id = :session_id RETURNING last_ticket"
)
_SUBMISSION: Final = DriverSql(
    "INSERT INTO submissions (session_id, id, status, revision, ticket, kind, content_digest, admitted_at,"
    " reconcile_at, decision_count)"
    " VALUES (:session_id, :id, 'queued', 1, :ticket, :kind, :digest, :now, :now, 1)"
)
_DECISION: Final = DriverSql(
    "INSERT INTO decisions (session_id, submission_id, number, decided_at, action, reason, session_version, revision)"
    " VALUES (:session_id, :id, 1, :now, 'import', 'imported', :version, 1)"
)
_INPUT: Final = DriverSql(
    "INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (:session_id, :entry_id, :payload)"
    " ON CONFLICT (session_id, entry_id) DO NOTHING"
)


def make_due(conn: Connection, session_id: str, withdrawn: Sequence[str], now: datetime) -> None:
    """Let the unsettled rows be looked at again: a later prompt decides about the ones before it too.

    A held row stays with the person that it needs. The revision rises, so that advice given before no longer stands.
    """
    _MAKE_DUE.run(conn, session_id=session_id, now=now)
    if withdrawn:
        conn.execute(
            sa.update(submissions)
            .where(
                submissions.c.session_id == session_id,
                sa.text("status = 'queued'"),
                in_list(conn, submissions.c.id, list(withdrawn)),
                submissions.c.abort_requested_at.is_(None),
            )
            .values(
                abort_requested_at=now,
                abort_reason="its source holds the prompt no longer: delivered, taken back, or rewritten",
                reconcile_at=now,
                not_before=None,
                revision=submissions.c.revision + 1,
            )
        )


def admit(conn: Connection, session_id: str, wanted: Sequence[NewSubmission], now: datetime, version: int) -> list[str]:
    """Give prompts their rows, in order; those that have one, or had one before pruning, are left alone."""
    if not wanted:
        return []
    known = admitted(conn, session_id, [submission.submission_id for submission in wanted])
    fresh = [submission for submission in wanted if submission.submission_id not in known]
    if fresh:
        ((last,),) = _TICKETS.rows(conn, session_id=session_id, number=len(fresh))
        common = {"session_id": session_id, "now": now}
        _SUBMISSION.run_many(
            conn,
            [
                {
                    **common,
                    "id": submission.submission_id,
                    "ticket": last - len(fresh) + number,
                    "kind": submission.kind,
                    "digest": submission.content_digest,
                }
                for number, submission in enumerate(fresh, 1)
            ],
        )
        _DECISION.run_many(
            conn, [{**common, "id": submission.submission_id, "version": version} for submission in fresh]
        )
        _INPUT.run_many(
            conn,
            [
                {
                    "session_id": session_id,
                    "entry_id": INPUT_ID_PREFIX + submission.submission_id,
                    "payload": submission.payload,
                }
                for submission in fresh
                if submission.payload is not None
            ],
        )
    return [submission.submission_id for submission in fresh]
