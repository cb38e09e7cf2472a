"""Who did what by hand, and why. A row is written in the transaction of the act, or of the first thing that it does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.store.dialect import db_now
from reconciler.store.schema import audit


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An act by hand. ``parameters`` and ``result`` are canonical JSON."""

    operator: str
    verb: str
    parameters: str
    session_id: str | None = None
    submission_id: str | None = None
    subject: str | None = None
    reason: str | None = None
    result: str | None = None


def write_audit(conn: Connection, row: AuditRow, *, audit_id: str | None = None) -> None:
    """Insert the row, stamped with the database's time."""
    conn.execute(
        sa.insert(audit).values(
            id=audit_id or uuid.uuid4().hex,
            at=db_now(conn),
            operator=row.operator,
            verb=row.verb,
            session_id=row.session_id,
            submission_id=row.submission_id,
            subject=row.subject,
            parameters=row.parameters,
            reason=row.reason,
            result=row.result,
        )
    )


def note_outcome(conn: Connection, audit_id: str, *, result: str, session_id: str | None) -> None:
    """Add to a row what its act came to; where that is missing, the act was cut short."""
    conn.execute(sa.update(audit).where(audit.c.id == audit_id).values(result=result, session_id=session_id))
