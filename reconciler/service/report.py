"""What a pass says of itself: its counts, and each decision. Values; knows nothing of how they come about."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from reconciler.core.model import Decision, Inspection, SubmissionFacts
from reconciler.core.states import Outcome
from reconciler.core.subturn import ResumePlan


@dataclass(frozen=True, slots=True)
class Decided:
    """What the pass decided about one submission. ``landed`` is None in a dry run."""

    session_id: str
    submission_id: str
    inspection: Inspection
    facts: SubmissionFacts
    decision: Decision
    plan: ResumePlan | None = None
    landed: bool | None = None
    refused: str | None = None


# Rows set aside that a report names.
SET_ASIDE_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class SetAside:
    """A row that could not be decided or written, and why."""

    session_id: str
    submission_id: str
    error: str


@dataclass(slots=True)
class PassReport:
    """What a pass did, in counts. ``set_aside`` counts rows that could not be written; ``held`` includes those held."""

    pass_id: str
    dry_run: bool
    started_at: datetime
    finished_at: datetime
    batches: int = 0
    scanned: int = 0
    settled: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in Outcome})
    requeued: int = 0
    held: int = 0
    advised: int = 0
    left_alone: int = 0
    adopted: int = 0
    conflicts: int = 0
    locked: int = 0
    set_aside: int = 0
    # The first of them, with the reason.
    set_aside_rows: list[SetAside] = field(default_factory=list)
    # Ended leases that this process may not judge yet, and in how many seconds it may judge all of them.
    unjudged: int = 0
    judge_after_s: float = 0.0
    # A limit ended the pass; there may be more that is due.
    more: bool = False

    @property
    def written(self) -> int:
        """How many decisions were written (would be, in a dry run)."""
        return sum(self.settled.values()) + self.requeued + self.held + self.advised + self.adopted

    def as_json(self) -> dict[str, object]:
        """Return the answer of ``once`` (contract, section 5)."""
        return {
            "pass_id": self.pass_id,
            "dry_run": self.dry_run,
            "scanned": self.scanned,
            "settled": dict(self.settled),
            "requeued": self.requeued,
            "held": self.held,
            "left_alone": self.left_alone,
            "adopted": self.adopted,
            "conflicts": self.conflicts,
            "locked": self.locked,
            "advised": self.advised,
            "set_aside": self.set_aside,
            "set_aside_rows": [
                {"session_id": row.session_id, "submission_id": row.submission_id, "error": row.error}
                for row in self.set_aside_rows
            ],
            "unjudged": self.unjudged,
            "more": self.more,
        }

    def columns(self) -> dict[str, int]:
        """Return the counts as the columns of the pass's row."""
        return {
            "scanned": self.scanned,
            "settled_completed": self.settled[Outcome.COMPLETED.value],
            "settled_failed": self.settled[Outcome.FAILED.value],
            "settled_aborted": self.settled[Outcome.ABORTED.value],
            "requeued": self.requeued,
            "held": self.held,
            "left_alone": self.left_alone,
            "adopted": self.adopted,
            "advised": self.advised,
            "conflicts": self.conflicts,
            "locked": self.locked,
            "failed": self.set_aside,
        }
