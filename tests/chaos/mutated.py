"""The program with a fault put in, for the negative controls: a verdict that has never failed proves nothing.

``python -m tests.chaos.mutated MUTANT …`` runs the command line ``reconciler …`` with that fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.entrypoints.cli import main
from reconciler.store.schema import submissions
from reconciler.store.settlements import DecisionWrite, Landed

reconcile: Any = import_module("reconciler.service.reconcile")


def _forgets_submissions() -> None:
    """A pass drops what it should have queued again."""
    inner: Callable[..., list[Any]] = reconcile.apply_decisions

    def apply(conn: Connection, writes: Sequence[Any], **more: Any) -> list[Any]:
        landed = inner(conn, writes, **more)
        for write, result in zip(writes, landed, strict=False):
            if isinstance(result, Landed) and isinstance(write, DecisionWrite) and write.decision.action == "requeue":
                conn.execute(
                    sa.delete(submissions).where(
                        submissions.c.session_id == write.session_id, submissions.c.id == write.submission_id
                    )
                )
        return landed

    reconcile.apply_decisions = apply


MUTANTS: dict[str, Callable[[], None]] = {
    "forgets_submissions": _forgets_submissions,
}

if __name__ == "__main__":
    MUTANTS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
