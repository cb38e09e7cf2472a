"""The audit row of an act that does not write it in its own transaction."""

from __future__ import annotations

from reconciler.core.canonical import canonical_json
from reconciler.ops.asking import Asked, Reply
from reconciler.store.audit import AuditRow, write_audit
from reconciler.store.engine import run_transaction

# What a person's act was given; payloads are no part of an audit.
_LEFT_OUT = frozenset({"payload", "reason", "dry_run"})


def record(asked: Asked, reply: Reply) -> None:
    """Write who did what, why, and what came of it."""
    row = audit_row(asked, reply.session_id, reply.submission_id)
    run_transaction(asked.desk.engine, lambda conn: write_audit(conn, row))


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
