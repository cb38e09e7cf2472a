"""What an import does to submissions: rows for new prompts, due rows, and evidence that comes too late.

Parts of the last piece of an import (see ``ingest.py``), under the session's lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.model import INPUT_ID_PREFIX
from reconciler.core.states import SubmissionStatus
from reconciler.store.dialect import in_list, insert_ignore
from reconciler.store.ingest_reads import admitted
from reconciler.store.schema import decisions, entry_payloads, sessions, submissions
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


def make_due(conn: Connection, session_id: str, withdrawn: Sequence[str], now: datetime) -> None:
    """Let the unsettled rows be looked at again: a later prompt decides about the ones before it too.

    A held row stays with the person that it needs. The revision rises, so that advice given before no longer stands.
    """
    unsettled = sa.and_(submissions.c.session_id == session_id, sa.text("status = 'queued'"))
    conn.execute(
        sa.update(submissions)
        .where(unsettled, submissions.c.held_at.is_(None))
        .values(reconcile_at=now, revision=submissions.c.revision + 1)
    )
    if withdrawn:
        conn.execute(
            sa.update(submissions)
            .where(
                unsettled,
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
        ticket: int = conn.execute(sa.select(sessions.c.last_ticket).where(sessions.c.id == session_id)).scalar_one()
        conn.execute(
            sa.insert(submissions),
            [
                {
                    "session_id": session_id,
                    "id": submission.submission_id,
                    "status": SubmissionStatus.QUEUED.value,
                    "revision": 1,
                    "ticket": ticket + number,
                    "kind": submission.kind,
                    "content_digest": submission.content_digest,
                    "admitted_at": now,
                    "reconcile_at": now,
                    "decision_count": 1,
                }
                for number, submission in enumerate(fresh, 1)
            ],
        )
        conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values(last_ticket=ticket + len(fresh)))
        conn.execute(
            sa.insert(decisions),
            [
                {
                    "session_id": session_id,
                    "submission_id": submission.submission_id,
                    "number": 1,
                    "decided_at": now,
                    "action": "import",
                    "reason": "imported",
                    "session_version": version,
                    "revision": 1,
                }
                for submission in fresh
            ],
        )
        _keep_inputs(conn, session_id, fresh)
    return [submission.submission_id for submission in fresh]


def _keep_inputs(conn: Connection, session_id: str, fresh: Iterable[NewSubmission]) -> None:
    rows = [
        {
            "session_id": session_id,
            "entry_id": INPUT_ID_PREFIX + submission.submission_id,
            "payload": submission.payload,
        }
        for submission in fresh
        if submission.payload is not None
    ]
    if rows:
        conn.execute(insert_ignore(conn, entry_payloads, key=["session_id", "entry_id"]), rows)
