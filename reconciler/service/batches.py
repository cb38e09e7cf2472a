"""What one transaction of a pass may hold together, and which errors are a matter of its rows. Values; no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from reconciler.core.states import SessionOrigin
from reconciler.errors import (
    DatabaseFull,
    DatabaseInvalid,
    DatabaseReadOnly,
    DatabaseUnavailable,
    ReconcilerError,
    SchemaMismatch,
)
from reconciler.store.around import Read
from reconciler.store.passes import Cursor, DueRow, Key

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
# The entries that one transaction looks at, roughly: what is more is left to the next one. A single path that is longer
# is read before the write transaction where that keeps all others out (SQLite).
BATCH_ENTRIES_MAX = 20_000
# The whole pass ends at these; anything else is a matter of single rows.
ENDS_PASS: Final = (DatabaseUnavailable, DatabaseReadOnly, DatabaseFull, DatabaseInvalid, SchemaMismatch)


def is_about_rows(error: ReconcilerError) -> bool:
    """Tell whether an error that would end the pass is a matter of the rows at hand after all."""
    if isinstance(error, DatabaseInvalid):
        # A value that can't be read (an instant that somebody wrote by hand) comes without the database's own word.
        return error.detail is None
    # A statement that takes too long is a matter of its rows.
    return isinstance(error.detail, Mapping) and error.detail.get("kind") == "timeout"


def cursor_of(row: DueRow) -> Cursor:
    """Return the row's place in the order of the scan."""
    return Cursor(row.reconcile_at or _NEVER, row.session_id, row.submission_id)


def within_bounds(rows: Sequence[DueRow], around: Read) -> tuple[list[DueRow], list[Key], list[Key]]:
    """Return the rows that one transaction can look at, which of them are too long by themselves, and the others."""
    taken: list[DueRow] = []
    long: list[Key] = []
    total = 0
    for row in rows:
        beside = around.around[row.key]
        expected = 0
        if beside.settlement_entry_id is None:
            leaf_seq = row.x_last_seq if beside.leaf_seq is None else beside.leaf_seq
            expected = max(0, leaf_seq - (beside.input_seq or 1) + 1)
        if taken and total + expected > BATCH_ENTRIES_MAX:
            break
        total += expected
        taken.append(row)
        if expected > BATCH_ENTRIES_MAX:
            long.append(row.key)
    return taken, long, [row.key for row in rows[len(taken) :]]


def one_per_native_session(rows: Sequence[DueRow]) -> tuple[list[DueRow], list[Key]]:
    """Return the rows that can be decided together, and those that have to wait for another one of their session."""
    # A settlement may move a native session's leaf and does move its version, so what the others were inspected by is
    # past. In a mirrored session it moves neither what they show nor the leaf.
    taken, later = [], []
    native: set[str] = set()
    for row in rows:
        if row.x_origin == SessionOrigin.NATIVE and row.session_id in native:
            later.append(row.key)
        else:
            taken.append(row)
            if row.x_origin == SessionOrigin.NATIVE:
                native.add(row.session_id)
    return taken, later
