"""The refine gate: scored candidate edits against a budget and a memory of what was rejected (contract 3.3).

The durable gate keeps the same values in rows and asks ``gate_step`` for every verdict, so that both give one answer;
the frozen values of its epochs, steps and rejections stand at the end. Knows nothing of databases or processes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from numbers import Real
from typing import Final, assert_never

from reconciler.errors import InvalidInput

_DROP_MAX: Final = sys.float_info.max


# --- checks --------------------------------------------------------------------------------------------------------


def check_score(value: object, name: str = "score") -> float:
    """Return *value* as a finite float.

    Everything is compared as a double, because that is what a database keeps: a pure run and a durable one must not
    differ in the digits that a larger integer would have had.

    Raises:
        InvalidInput: no number, a bool, NaN, or beyond the range of a double.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInput(f"{name} is not a number: {_shown(value)}", hint="pass a finite number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput(f"{name} is not finite: {_shown(value)}", hint="pass a finite number")
    # -0.0 becomes 0.0: the two are equal, and one of them would print oddly for ever.
    return number + 0.0


def check_drop(value: object) -> float:
    """Return *value* as a finite drop of at least 0.

    Raises:
        InvalidInput: not a finite number, or negative.
    """
    drop = check_score(value, "score drop")
    if drop < 0:
        raise InvalidInput(f"score drop is negative: {drop!r}", hint="a drop is best score minus candidate score")
    return drop


def check_whole(value: object, name: str) -> int:
    """Return *value* if it is a whole number of at least 0.

    Raises:
        InvalidInput: no ``int``, a bool, or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is not a whole number: {_shown(value)}", hint=f"pass {name} as an int")
    if value < 0:
        raise InvalidInput(f"{name} is negative", hint=f"pass {name} as an int of at least 0")
    return value


def _shown(value: object) -> str:
    """Return a short text for an error message; a number of thousands of digits has no ``repr``."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- budget --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EditBudget:
    """How many candidates one epoch may score, and from how many on it may stop early.

    Raises:
        InvalidInput: not whole, or not ``0 <= floor <= max``.
    """

    max: int = 4
    floor: int = 2

    def __post_init__(self) -> None:
        check_whole(self.max, "budget max")
        check_whole(self.floor, "budget floor")
        if self.floor > self.max:
            raise InvalidInput(
                f"budget floor {_shown(self.floor)} is above its max {_shown(self.max)}",
                hint="lower the floor or raise the max",
            )


DEFAULT_EDIT_BUDGET: Final = EditBudget()


def edits_remaining(used: int, budget: EditBudget = DEFAULT_EDIT_BUDGET) -> bool:
    """Tell whether another candidate may be scored."""
    return check_whole(used, "used") < _budget(budget).max


def may_stop_early(used: int, budget: EditBudget = DEFAULT_EDIT_BUDGET) -> bool:
    """Tell whether enough was tried to stop before the budget is used up. The floor gates nothing else."""
    return check_whole(used, "used") >= _budget(budget).floor


def accept_edit(best_score: float, candidate_score: float) -> bool:
    """Tell whether the candidate is strictly better: a tie is a rejection."""
    return check_score(candidate_score, "candidate score") > check_score(best_score, "best score")


def _budget(value: object) -> EditBudget:
    if not isinstance(value, EditBudget):
        raise InvalidInput(f"budget is not an EditBudget: {_shown(value)}", hint="pass EditBudget(max=…, floor=…)")
    return value


# --- the memory of rejected edits ----------------------------------------------------------------------------------


class RejectedEditBuffer:
    """Edits that were tried and did not help, each with its worst drop, in the order of their first rejection."""

    __slots__ = ("_drops",)

    def __init__(self, items: Iterable[tuple[str, float]] = ()) -> None:
        self._drops: dict[str, float] = {}
        for edit_id, drop in items:
            self.record(edit_id, drop)

    def record(self, edit_id: str, score_drop: float) -> None:
        """Remember *edit_id* as rejected; of several drops the worst is kept.

        Raises:
            InvalidInput: the id is no text, or the drop is not finite or negative; nothing is recorded.
        """
        known = self._drops.get(_edit_id(edit_id))
        drop = check_drop(score_drop)
        if known is None or drop > known:
            self._drops[edit_id] = drop

    def is_rejected(self, edit_id: str) -> bool:
        """Tell whether the edit was rejected before."""
        return edit_id in self._drops

    def drop_for(self, edit_id: str) -> float:
        """Return the edit's worst drop; 0 if it was never rejected (a tie is rejected with 0 as well)."""
        return self._drops.get(edit_id, 0.0)

    @property
    def size(self) -> int:
        """The number of edits remembered."""
        return len(self._drops)

    def __len__(self) -> int:
        return len(self._drops)

    def __contains__(self, edit_id: object) -> bool:
        return edit_id in self._drops

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._drops))

    def items(self) -> tuple[tuple[str, float], ...]:
        """Return the pairs of edit id and worst drop, first rejected first."""
        return tuple(self._drops.items())

    def copy(self) -> RejectedEditBuffer:
        """Return a buffer of its own with the same content."""
        made = RejectedEditBuffer()
        made._drops.update(self._drops)
        return made

    def __eq__(self, other: object) -> bool:
        return self._drops == other._drops if isinstance(other, RejectedEditBuffer) else NotImplemented

    # It changes: as a key it would get lost.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RejectedEditBuffer({list(self._drops.items())!r})"


def _edit_id(value: object) -> str:
    # Any text will do here. The durable gate holds ids to the rule for stored ids (1 to 512 bytes, no controls).
    if not isinstance(value, str):
        raise InvalidInput(f"edit id is not a text: {_shown(value)}", hint="pass the edit's id as a str")
    return value


# --- one step ------------------------------------------------------------------------------------------------------


class RefineVerdict(StrEnum):
    """What the gate says of one candidate."""

    # Strictly better: it is the new best. Costs one.
    ACCEPTED = "accepted"
    # Not better: remembered with its drop. Costs one.
    REJECTED = "rejected"
    # Rejected before: not scored again. Costs nothing.
    SKIPPED_REJECTED = "skipped_rejected"
    # The epoch has no edit left. Costs nothing.
    BUDGET_EXHAUSTED = "budget_exhausted"


@dataclass(frozen=True, slots=True)
class GateStep:
    """A verdict and what holds after it. ``drop`` is 0 but with ``rejected``."""

    verdict: RefineVerdict
    best_score: float
    used: int
    drop: float = 0.0


def gate_step(
    best_score: float, used: int, candidate_score: float, *, known_rejected: bool, budget: EditBudget
) -> GateStep:
    """Judge one candidate: budget first, then the memory, then the score.

    The drop is capped at the largest double: between two finite scores it may overflow.

    Raises:
        InvalidInput: a score is not finite.
    """
    best = check_score(best_score, "best score")
    score = check_score(candidate_score, "candidate score")
    if not edits_remaining(used, budget):
        return GateStep(RefineVerdict.BUDGET_EXHAUSTED, best, used)
    if known_rejected:
        return GateStep(RefineVerdict.SKIPPED_REJECTED, best, used)
    if accept_edit(best, score):
        return GateStep(RefineVerdict.ACCEPTED, score, used + 1)
    return GateStep(RefineVerdict.REJECTED, best, used + 1, drop=min(best - score, _DROP_MAX))


# --- a whole run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EditCandidate:
    """An edit and its held-out score.

    Raises:
        InvalidInput: the id is no text or the score is not finite.
    """

    edit_id: str
    score: float

    def __post_init__(self) -> None:
        _edit_id(self.edit_id)
        object.__setattr__(self, "score", check_score(self.score, "candidate score"))


@dataclass(frozen=True, slots=True)
class RefineStep:
    """A candidate that was scored, and so cost one of the budget."""

    edit_id: str
    candidate_score: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class RefineOutcome:
    """What a run ended with. ``rejected`` is a buffer of its own; the one given to the run is untouched."""

    best_score: float
    steps: tuple[RefineStep, ...]
    rejected: RejectedEditBuffer


def run_refine_gate(
    baseline_score: float,
    candidates: Iterable[EditCandidate],
    budget: EditBudget = DEFAULT_EDIT_BUDGET,
    *,
    rejected: RejectedEditBuffer | None = None,
) -> RefineOutcome:
    """Gate *candidates* in order until the budget is used up.

    A candidate that was rejected before (in *rejected*, or earlier in this run) is skipped and costs nothing. One that
    is strictly better becomes the best; any other is remembered with its drop, a tie with drop 0.

    Raises:
        InvalidInput: a score or the budget is not valid. All of it is checked before the first step, therefore
            *candidates* is read to its end first.
    """
    best = check_score(baseline_score, "baseline score")
    _budget(budget)
    if rejected is not None and not isinstance(rejected, RejectedEditBuffer):
        raise InvalidInput(
            f"rejected is not a RejectedEditBuffer: {_shown(rejected)}", hint="pass RejectedEditBuffer(items)"
        )
    checked = tuple(candidates)
    for candidate in checked:
        if not isinstance(candidate, EditCandidate):
            raise InvalidInput(
                f"candidate is not an EditCandidate: {_shown(candidate)}", hint="pass EditCandidate(edit_id, score)"
            )
    buffer = RejectedEditBuffer() if rejected is None else rejected.copy()
    steps: list[RefineStep] = []
    for candidate in checked:
        known = buffer.is_rejected(candidate.edit_id)
        step = gate_step(best, len(steps), candidate.score, known_rejected=known, budget=budget)
        match step.verdict:
            case RefineVerdict.BUDGET_EXHAUSTED:
                break
            case RefineVerdict.SKIPPED_REJECTED:
                pass
            case RefineVerdict.ACCEPTED:
                best = step.best_score
                steps.append(RefineStep(candidate.edit_id, candidate.score, accepted=True))
            case RefineVerdict.REJECTED:
                buffer.record(candidate.edit_id, step.drop)
                steps.append(RefineStep(candidate.edit_id, candidate.score, accepted=False))
            case _ as never:  # pragma: no cover
                assert_never(never)
    return RefineOutcome(best, tuple(steps), buffer)


# --- what the durable gate keeps -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RefineEpoch:
    """One budgeted round of a subject. Instants are aware UTC, by the database's clock."""

    subject: str
    epoch: int
    baseline_score: float
    best_score: float
    budget: EditBudget
    used: int
    # Rows of its history, those that cost nothing too.
    steps: int
    # The subject's rejected edits that aren't tried again: now in the newest epoch, at its end in an older one.
    rejected_count: int
    # How many of them are kept; None for all. How many were dropped for that in this epoch.
    buffer_max: int | None
    evicted: int
    opened_at: datetime
    closed_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it takes steps."""
        return self.closed_at is None

    @property
    def edits_left(self) -> int:
        """How many candidates it may still score."""
        return self.budget.max - self.used

    @property
    def may_stop_early(self) -> bool:
        """Whether its floor is reached."""
        return may_stop_early(self.used, self.budget)


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """What the durable gate said of one candidate, with the epoch as the step left it."""

    subject: str
    epoch: int
    edit_id: str
    score: float
    verdict: RefineVerdict
    best_score: float
    used: int
    budget: EditBudget
    # The place in the epoch's history; None where the step left no row (it cost nothing, and had no key).
    number: int | None = None
    # The caller's; None where it gave none.
    step_key: str | None = None
    # The call was a repeat: this is its first answer, and nothing was spent.
    repeated: bool = False
    # The rejected edit that a bounded buffer dropped for this one.
    evicted_edit_id: str | None = None

    @property
    def accepted(self) -> bool:
        """Whether the edit is the new best."""
        return self.verdict is RefineVerdict.ACCEPTED

    @property
    def edits_left(self) -> int:
        """How many candidates the epoch could still score after this one."""
        return self.budget.max - self.used

    @property
    def may_stop_early(self) -> bool:
        """Whether the epoch's floor was reached."""
        return may_stop_early(self.used, self.budget)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One row of a subject's history."""

    subject: str
    epoch: int
    number: int
    edit_id: str
    candidate_score: float
    verdict: RefineVerdict
    # After the step.
    best_score: float
    used: int
    stepped_at: datetime
    step_key: str | None = None
    evicted_edit_id: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedEdit:
    """A rejection as it is remembered: the worst drop of all times, and how often the edit was scored and rejected."""

    subject: str
    edit_id: str
    worst_drop: float
    count: int
    first_at: datetime
    last_at: datetime
    # Set: an operator let it be tried again.
    forgiven_at: datetime | None = None
