"""The rows of one guarded write, as values: a decision, its entries, the attempts it touches, the rows it pushes on.

The order of the fields is the order of the arrays and parameters in `settlement_sql`. Named tuples, so that rows become
columns, and columns parameters, without a step of the interpreter for each value. Knows nothing of statements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

# What a decision does to a hold.
HOLD_SET: Final = "set"
HOLD_CLEAR: Final = "clear"
HOLD_KEEP: Final = "keep"


class Kind(NamedTuple):
    """What a decision shares with others of its batch: all that names neither a submission nor an instant.

    After an outage thousands of decisions are of a few kinds. Each kind travels once, and the rows name it.
    """

    status: str
    hold: str
    held_reason: str | None
    uses_unpark: bool
    crashes_in_row: int | None
    provider_errors: int | None
    outcome: str | None
    outcome_reason: str | None
    outcome_detail: str | None
    recovered: bool | None
    # It writes a settlement entry of its own, with the deterministic id; and whether that becomes the leaf.
    settles: bool
    becomes_leaf: bool
    decided_by: str | None
    action: str
    advice: str | None
    reason: str
    gate: int
    state: str | None
    detail: str | None
    decision_outcome: str | None
    attempt_end: str | None
    # How the current attempt ends; None where there is none, or where an AttemptRow says it.
    end_kind: str | None


class DecisionRow(NamedTuple):
    """One decision: its kind, the guard, and what is its own.

    ``added`` counts its new entries, ``last_number`` the last of them within the session and the call; both are 0 where
    none is added. ``parent_id`` and ``payload`` are those of its settlement entry, ``settlement_entry_id`` is the entry
    that is adopted. ``attempt_id`` is the attempt it is about, where that isn't the current one.
    """

    kind: Kind
    session_id: str
    submission_id: str
    guard_version: int
    guard_revision: int
    guard_attempt: str | None
    guard_lease: datetime | None
    added: int
    last_number: int
    parent_id: str | None
    payload: str | None
    answer_entry_id: str | None
    settlement_entry_id: str | None
    attempt_id: str | None
    not_before: datetime | None
    reconcile_at: datetime | None
    plan: str | None
    error: str | None
    evidence: str | None
    inspection: str | None
    note: str | None
    # Where they were read in the transaction that writes: the guard vouches for both.
    last_seq: int | None = None
    decision_count: int | None = None


class EntryRow(NamedTuple):
    """A marker below which a settlement entry hangs. ``number`` counts from 1 within the session and the call."""

    session_id: str
    submission_id: str
    number: int
    id: str
    parent_id: str | None
    kind: str
    role: str | None
    tool_call_id: str | None
    content: str
    payload: str


class AttemptRow(NamedTuple):
    """What happens to an attempt beside what the kind says: it ends (``end_kind``), its provider error is counted."""

    session_id: str
    submission_id: str
    attempt_id: str
    end_kind: str | None
    end_reason: str | None
    end_digest: str | None
    counted: bool


class PushRow(NamedTuple):
    """A row that is due later."""

    session_id: str
    submission_id: str
    revision: int
    reconcile_at: datetime | None


@dataclass(slots=True)
class Rows:
    """All rows of one call. ``pass_id`` stands with every decision."""

    pass_id: str | None = None
    decisions: list[DecisionRow] = field(default_factory=list)
    entries: list[EntryRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
