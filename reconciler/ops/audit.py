"""The audit row of an act, and of one that takes many transactions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.ops.asking import Asked
from reconciler.store.audit import AuditRow, note_outcome, write_audit
from reconciler.store.engine import run_transaction

# What a person's act was given; payloads are no part of an audit.
_LEFT_OUT = frozenset({"payload", "reason", "dry_run"})


class Noted:
    """An act of many transactions: its audit row lands with the first one that changes anything."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._id = uuid.uuid4().hex

    def write(self, conn: Connection) -> None:
        """Write the row, in the transaction at hand."""
        write_audit(conn, audit_row(self._asked, None, None), audit_id=self._id)

    def outcome(self, result: Mapping[str, Any], *, session_id: str | None = None) -> None:
        """Add what the act came to; a death before leaves the row without it."""
        text = canonical_json(result)
        run_transaction(
            self._asked.desk.engine,
            lambda conn: note_outcome(conn, self._id, result=text, session_id=session_id),
            idempotent=True,
        )


def audit_row(asked: Asked, session_id: str | None, submission_id: str | None) -> AuditRow:
    """Return the audit row of an act, without its id and time."""
    from reconciler.ops.dispatch import redact

    given = {
        name: value
        for name, value in asked.params.items()
        if name not in _LEFT_OUT and value is not None and value != [] and value is not False
    }
    return AuditRow(
        operator=asked.desk.operator,
        verb=asked.entry.name,
        session_id=session_id,
        submission_id=submission_id,
        # A source may be a URL with a password in it.
        parameters=canonical_json({name: redact(str(value)) for name, value in given.items()}),
        reason=asked.params.get("reason"),
    )
