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


class DecisionRow(NamedTuple):
    """One decision: the guard, what the submission becomes, and what the decision's own row says.

    ``added`` counts its new entries, ``last_number`` the last of them within the session and the call; both are 0 where
    none is added.
    """

    session_id: str
    submission_id: str
    guard_version: int
    guard_revision: int
    guard_attempt: str | None
    guard_lease: datetime | None
    status: str
    hold: str
    held_reason: str | None
    not_before: datetime | None
    reconcile_at: datetime | None
    plan: str | None
    uses_unpark: bool
    crashes_in_row: int | None
    provider_errors: int | None
    outcome: str | None
    outcome_reason: str | None
    outcome_detail: str | None
    answer_entry_id: str | None
    settlement_entry_id: str | None
    recovered: bool | None
    error: str | None
    added: int
    last_number: int
    new_leaf: str | None
    pass_id: str | None
    decided_by: str | None
    action: str
    advice: str | None
    reason: str
    gate: int
    state: str | None
    detail: str | None
    decision_outcome: str | None
    attempt_id: str | None
    attempt_end: str | None
    evidence: str | None
    inspection: str | None
    note: str | None


class EntryRow(NamedTuple):
    """A marker or a settlement entry. ``number`` counts from 1 within the session and the call."""

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
    """What happens to an attempt: it ends (``end_kind``), or its provider error is counted, or both."""

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
    """All rows of one call."""

    decisions: list[DecisionRow] = field(default_factory=list)
    entries: list[EntryRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
