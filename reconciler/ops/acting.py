"""What every act of an operator has in common: a transaction, an audit row, a dry run that is taken back, an answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from reconciler.errors import StoreConflict
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.audit import audit_row
from reconciler.ops.naming import named_submission
from reconciler.service.gather import Gathered, gather
from reconciler.store import operator_acts as store
from reconciler.store.around import Read, read_around
from reconciler.store.audit import write_audit
from reconciler.store.engine import run_transaction
from reconciler.store.passes import lock_rows

T = TypeVar("T")


class _TakenBack(Exception):
    """Rolls a dry run back."""


def perform(asked: Asked, work: Callable[[Connection], T]) -> T:
    """Do *work* in one transaction and return its result; a dry run is rolled back.

    Raises:
        ReconcilerError: what *work* raises, or the database said; nothing was written.
    """
    found: list[T] = []

    def run(conn: Connection) -> None:
        result = work(conn)
        found[:] = [result]
        if asked.beside is not None and isinstance(result, Reply):
            asked.beside(conn, result)
        if asked.dry_run:
            raise _TakenBack

    with suppress(_TakenBack):
        run_transaction(asked.desk.engine, run)
    return found[0]


def act_reply(
    asked: Asked,
    *,
    session_id: str,
    submission_id: str | None,
    action: str,
    done: bool,
    message: str,
    status: str | None = None,
    outcome: str | None = None,
) -> Reply:
    """Return the answer of an act. *done* is False where it found everything done already."""
    result = "already" if not done else "would" if asked.dry_run else "done"
    return Reply(
        {
            "session_id": session_id,
            "submission_id": submission_id,
            "result": result,
            "action": action,
            "status": status,
            "outcome": outcome,
            "message": message,
            "dry_run": asked.dry_run,
        },
        session_id=session_id,
        submission_id=submission_id,
        changed=done,
    )


def audit(conn: Connection, asked: Asked, session_id: str, submission_id: str | None) -> None:
    """Write the act's audit row in the act's own transaction."""
    write_audit(conn, audit_row(asked, session_id, submission_id))


def named(conn: Connection, asked: Asked) -> tuple[str, str]:
    """Return the session and the submission that were named."""
    hit = named_submission(conn, asked["submission"], asked["session"])
    return hit.session_id, hit.submission_id


def locked(conn: Connection, asked: Asked) -> tuple[str, str, Any]:
    """Lock the submission that was named: its session, its id and its row, or what is left of a pruned one."""
    session_id, submission_id = named(conn, asked)
    return session_id, submission_id, store.locked(conn, session_id, submission_id)


def gathered(conn: Connection, asked: Asked, session_id: str, submission_id: str) -> tuple[Gathered, Read]:
    """Inspect an unsettled submission that this transaction has locked."""
    rows = lock_rows(conn, [(session_id, submission_id)])
    if not rows:
        # Locked by this transaction a moment ago, and unsettled.
        raise StoreConflict(f'could not read "{session_id}/{submission_id}"')
    read = read_around(conn, rows)
    return gather(conn, rows, read.around, asked.desk.limits)[0], read
