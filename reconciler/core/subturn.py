"""What a resumed turn starts with: the sub-turn loop, and the resume plan (contract 3.4).

The sub-turn loop decides whether the partial text of an interrupted answer names something that the turn's first
retrieval did not look for. The resume plan says how a requeued submission goes on. Both are made from texts and values
that the caller read; this file knows nothing of databases or of how retrieval works.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from numbers import Real
from typing import Final

from reconciler.core.model import (
    CallDispatch,
    Detail,
    Inspection,
    OpenCall,
    SubmissionInspection,
    TurnEvidence,
)
from reconciler.core.states import ResumeMode
from reconciler.errors import InvalidInput

SUB_TURN_LOOP_DEFAULT_BUDGET: Final = 1
SUB_TURN_LOOP_MIN_PARTIAL_LENGTH: Final = 40
SUB_TURN_LOOP_MAX_RESCORE_TOKENS: Final = 5
SUB_TURN_LOOP_MAX_PROPOSED_HINTS: Final = 3
SUB_TURN_LOOP_MIN_TOKEN_LENGTH: Final = 4

PHASE_MID_TURN: Final = "mid-turn"
PHASE_POST_RESPONSE: Final = "post-response"

# Source: the stop words that come with the planner's test vectors.
_STOP_WORD_LINES: Final = """
    about after against all also and another any because been before being between could each every for from had has
    have here into just like many mine more most much nor not once only other ours over own same should some such than
    that the their theirs them then there these they this those under very what when where which while will with would
    your yours
"""
STOP_WORDS: Final = frozenset(_STOP_WORD_LINES.split())


class SubTurnOutcome(StrEnum):
    """What the planner says; every value but the two ``attempted`` ones means that nothing is looked up again."""

    DECLINED_POST_RESPONSE = "declined_post_response"
    DECLINED_PHASE = "declined_phase"
    DECLINED_NO_PARTIAL = "declined_no_partial"
    DECLINED_TOO_SHORT = "declined_too_short"
    BUDGET_EXHAUSTED = "budget_exhausted"
    DECLINED_NO_NEW_TOKENS = "declined_no_new_tokens"
    ATTEMPTED_EMPTY = "attempted_empty"
    ATTEMPTED_ADDED = "attempted_added"


class SubTurnReason(StrEnum):
    """The condition that decided."""

    POST_RESPONSE_CLOSEOUT = "post_response_closeout"
    PHASE_NOT_MID_TURN = "phase_not_mid_turn"
    NO_PARTIAL_RESPONSE = "no_partial_response"
    PARTIAL_RESPONSE_BELOW_MIN_LENGTH = "partial_response_below_min_length"
    BUDGET_ZERO = "budget_zero"
    ALL_PARTIAL_TOKENS_COVERED_BY_BASELINE = "all_partial_tokens_covered_by_baseline"
    MID_TURN_PARTIAL_RESPONSE_HAS_NOVEL_SIGNAL = "mid_turn_partial_response_has_novel_signal"


@dataclass(frozen=True, slots=True)
class SubTurnLoopPlan:
    """Whether to retrieve once more, and with what. ``partial_response_length``: characters of the trimmed text."""

    outcome: SubTurnOutcome
    attempted: bool
    partial_response_length: int
    initial_fact_count: int
    added_fact_count: int
    rescore_tokens: tuple[str, ...]
    proposed_hints: tuple[str, ...]
    budget_max: int
    reason: SubTurnReason
    note: str

    def with_added_facts(self, count: int) -> SubTurnLoopPlan:
        """Return the plan after the retry, which brought *count* facts (all of them, not the ones since last time).

        A plan that was not attempted is returned as it is: there was no retry that could have brought any.

        Raises:
            InvalidInput: *count* is not a whole number of at least 0.
        """
        added = _whole(count, "added fact count")
        if not self.attempted:
            return self
        outcome = SubTurnOutcome.ATTEMPTED_ADDED if added else SubTurnOutcome.ATTEMPTED_EMPTY
        return replace(self, outcome=outcome, added_fact_count=added)


# --- the planner ---------------------------------------------------------------------------------------------------


def plan_sub_turn_loop(
    *,
    phase: str | None = None,
    partial_response: str | None = None,
    latest_message: str | None = None,
    original_entity_hints: Iterable[str] = (),
    initial_fact_count: int = 0,
    budget: float | None = None,
) -> SubTurnLoopPlan:
    """Plan a second retrieval from the text of an interrupted answer.

    *budget* counts further retrievals; it is rounded down and never below 0.

    Raises:
        InvalidInput: the budget is no finite number, a text is no ``str``, or the fact count is no whole number.
    """
    budget_max = _budget(budget)
    facts = _whole(initial_fact_count, "initial fact count")
    partial = _text(partial_response, "partial response").strip()
    latest = _text(latest_message, "latest message")
    given = _hints(original_entity_hints)

    def plan(
        outcome: SubTurnOutcome,
        reason: SubTurnReason,
        note: str,
        tokens: tuple[str, ...] = (),
        hints: tuple[str, ...] = (),
    ) -> SubTurnLoopPlan:
        return SubTurnLoopPlan(
            outcome=outcome,
            attempted=outcome is SubTurnOutcome.ATTEMPTED_EMPTY,
            partial_response_length=len(partial),
            initial_fact_count=facts,
            added_fact_count=0,
            rescore_tokens=tokens,
            proposed_hints=hints,
            budget_max=budget_max,
            reason=reason,
            note=note,
        )

    if phase == PHASE_POST_RESPONSE:
        return plan(
            SubTurnOutcome.DECLINED_POST_RESPONSE,
            SubTurnReason.POST_RESPONSE_CLOSEOUT,
            "The response is finished; facts for it would come too late.",
        )
    if phase != PHASE_MID_TURN:
        return plan(
            SubTurnOutcome.DECLINED_PHASE,
            SubTurnReason.PHASE_NOT_MID_TURN,
            "A second retrieval is planned in mid-turn only.",
        )
    if not partial:
        return plan(
            SubTurnOutcome.DECLINED_NO_PARTIAL, SubTurnReason.NO_PARTIAL_RESPONSE, "There is no partial response."
        )
    if len(partial) < SUB_TURN_LOOP_MIN_PARTIAL_LENGTH:
        return plan(
            SubTurnOutcome.DECLINED_TOO_SHORT,
            SubTurnReason.PARTIAL_RESPONSE_BELOW_MIN_LENGTH,
            f"The partial response has {len(partial)} characters; {SUB_TURN_LOOP_MIN_PARTIAL_LENGTH} are needed.",
        )
    if budget_max == 0:
        return plan(SubTurnOutcome.BUDGET_EXHAUSTED, SubTurnReason.BUDGET_ZERO, "No retrieval is left in the budget.")
    tokens, hints = _novel_tokens(partial, latest, given), _novel_hints(partial, given)
    if not tokens and not hints:
        return plan(
            SubTurnOutcome.DECLINED_NO_NEW_TOKENS,
            SubTurnReason.ALL_PARTIAL_TOKENS_COVERED_BY_BASELINE,
            "The partial response names nothing that the message and the hints did not name.",
        )
    return plan(
        SubTurnOutcome.ATTEMPTED_EMPTY,
        SubTurnReason.MID_TURN_PARTIAL_RESPONSE_HAS_NOVEL_SIGNAL,
        f"The partial response adds {len(tokens)} tokens and {len(hints)} hints.",
        tokens,
        hints,
    )


_NO_TOKEN_CHARACTER: Final = re.compile(r"[^a-z0-9_-]+")

# A match starts at the first letter of a run, so only starts of runs are tried, and no part is given back: the plain
# pattern finds the same, but takes quadratic time on a long run without a slash.
_HINT: Final = re.compile(
    r"(?<![A-Za-z0-9_-])[0-9_-]*+"
    r"([A-Za-z][A-Za-z0-9_-]++)/([A-Za-z][A-Za-z0-9_-]++)(?:/[A-Za-z][A-Za-z0-9_-]++)?"
)


def _tokens(text: str) -> Iterable[str]:
    # What is no token character is a space, and white space and "/" split: one class of separators.
    for token in _NO_TOKEN_CHARACTER.split(text.lower()):
        if len(token) >= SUB_TURN_LOOP_MIN_TOKEN_LENGTH and token not in STOP_WORDS:
            yield token


def _novel_tokens(partial: str, latest: str, given: tuple[str, ...]) -> tuple[str, ...]:
    covered = set(_tokens(latest)).union(*(_tokens(hint) for hint in given))
    return _first(SUB_TURN_LOOP_MAX_RESCORE_TOKENS, _tokens(partial), covered)


def _novel_hints(partial: str, given: tuple[str, ...]) -> tuple[str, ...]:
    covered = {*given, *("/".join(hint.split("/")[:2]) for hint in given)}
    found = (f"{match[1]}/{match[2]}".lower() for match in _HINT.finditer(partial))
    return _first(SUB_TURN_LOOP_MAX_PROPOSED_HINTS, found, covered)


def _first(cap: int, values: Iterable[str], covered: set[str]) -> tuple[str, ...]:
    """Return the first *cap* different values that are not covered, in the order of their first occurrence."""
    kept: dict[str, None] = {}
    for value in values:
        if value not in covered:
            kept[value] = None
            if len(kept) == cap:
                break
    return tuple(kept)


def _budget(value: object) -> int:
    if value is None:
        return SUB_TURN_LOOP_DEFAULT_BUDGET
    if isinstance(value, bool) or not isinstance(value, int | Real):
        raise InvalidInput("sub-turn budget is not a number", hint="pass a finite number, or leave it out")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput("sub-turn budget is not finite", hint="pass a finite number, or leave it out")
    # A whole number keeps its digits.
    return max(0, value if isinstance(value, int) else math.floor(number))


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{name} is not a whole number of at least 0", hint="pass an int of at least 0")
    return value


def _text(value: object, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is not a text", hint="pass a str, or leave it out")
    return value


def _hints(values: object) -> tuple[str, ...]:
    """Return the given hints, trimmed and lower-cased."""
    # A bare text is iterable too, and would silently be taken as hints of one letter each.
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput("entity hints are not a list of texts", hint='pass a list such as ["project/demo"]')
    return tuple(_text(value, "entity hint").strip().lower() for value in values)


# --- tool markers --------------------------------------------------------------------------------------------------

MARKER_TEXT_NOT_STARTED: Final = "never started: call it again if it is still needed"
MARKER_TEXT_UNKNOWN: Final = (
    "outcome unknown: it may have happened or may still be running; check before doing it again"
)


def marker_text(dispatch: CallDispatch) -> str:
    """Return what the model is told of a call that recovery closes: a call is never run again by recovery itself."""
    return MARKER_TEXT_NOT_STARTED if dispatch is CallDispatch.NOT_STARTED else MARKER_TEXT_UNKNOWN


# --- the resume plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """How a requeued submission goes on.

    ``calls_to_close`` are the open calls that the inspection saw, interior ones too, but not those that a person
    approved; ``partial_entry_id`` names the partial answer to go on from (``continue_partial`` only); ``sub_turn`` is
    None where the last response has no text or is finished.
    """

    mode: ResumeMode
    calls_to_close: tuple[OpenCall, ...] = ()
    partial_entry_id: str | None = None
    sub_turn: SubTurnLoopPlan | None = None

    def to_json(self) -> str:
        """Return canonical JSON (ASCII escapes, sorted keys, no blanks): equal plans have equal bytes."""
        return json.dumps(asdict(self), ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ResumePlan:
        """Read what ``to_json`` wrote. Unknown fields are ignored: a newer program may have written them.

        Raises:
            InvalidInput: it is no JSON, or a field is missing or has another type.
        """
        try:
            return _read_plan(json.loads(text))
        except InvalidInput:
            raise
        except (ValueError, RecursionError) as error:
            # No JSON, or a word that this version does not know.
            raise InvalidInput(f"resume plan cannot be read: {error}") from None


_CONTINUE_PARTIAL_DETAILS: Final = frozenset({Detail.RESPONSE_ABORTED, Detail.PROVIDER_ERROR})
_REPAIR_DETAILS: Final = frozenset({Detail.TOOL_CALLS_UNRESOLVED, Detail.TOOL_BATCH_PARTIAL})


def resume_mode(
    inspection: Inspection,
    evidence: TurnEvidence,
    *,
    approved_calls: Iterable[str] = (),
    clean_release: bool = False,
) -> ResumeMode:
    """Derive the mode from the inspection's detail.

    *approved_calls* are the pending calls of a park that ended; they decide while one of them is still open (else there
    is nothing to run, and the detail decides). *clean_release*: the last attempt was given back by its runner.

    Raises:
        InvalidInput: the detail is one that nothing is resumed from.
    """
    approved = frozenset(approved_calls)
    if any(call.call_id in approved for call in evidence.open_calls):
        return ResumeMode.APPROVED
    detail = inspection.detail
    if detail is Detail.INPUT_MISSING:
        return ResumeMode.FRESH
    if detail is Detail.INPUT_ONLY:
        return ResumeMode.FRESH if clean_release else ResumeMode.REDISPATCH
    if inspection.state is not SubmissionInspection.CONTINUABLE:
        raise InvalidInput(
            f'there is no resume plan for a submission that is {inspection.state.value} ("{detail.value}")',
            hint="settle it, hold it, or wait",
        )
    if detail in _REPAIR_DETAILS:
        return ResumeMode.REPAIR_TOOLS
    if detail in _CONTINUE_PARTIAL_DETAILS and evidence.last_response_has_text:
        return ResumeMode.CONTINUE_PARTIAL
    return ResumeMode.CONTINUE


def plan_resume(
    inspection: Inspection,
    evidence: TurnEvidence,
    *,
    mode: ResumeMode | None = None,
    approved_calls: Iterable[str] = (),
    clean_release: bool = False,
    partial_text: str | None = None,
    input_text: str | None = None,
    entity_hints: Iterable[str] = (),
    fact_count: int = 0,
    sub_turn_budget: float | None = None,
) -> ResumePlan:
    """Make the plan that goes with a requeue.

    *mode* is the one that the policy chose; without it ``resume_mode`` derives it. The texts are needed only where the
    last response has text and did not finish (``wants_sub_turn``). *sub_turn_budget* is what is left of it.

    Raises:
        InvalidInput: nothing can be resumed from this inspection, or a value is not valid.
    """
    approved = tuple(approved_calls)
    chosen = mode or resume_mode(inspection, evidence, approved_calls=approved, clean_release=clean_release)
    sub_turn = None
    if wants_sub_turn(evidence):
        sub_turn = plan_sub_turn_loop(
            phase=PHASE_MID_TURN,
            partial_response=partial_text,
            latest_message=input_text,
            original_entity_hints=entity_hints,
            initial_fact_count=fact_count,
            budget=sub_turn_budget,
        )
    return ResumePlan(
        mode=chosen,
        calls_to_close=_calls_to_close(evidence.open_calls, approved if chosen is ResumeMode.APPROVED else ()),
        partial_entry_id=evidence.last_response_entry_id if chosen is ResumeMode.CONTINUE_PARTIAL else None,
        sub_turn=sub_turn,
    )


def wants_sub_turn(evidence: TurnEvidence) -> bool:
    """Tell whether a plan needs the texts of the last response and of the input."""
    return evidence.last_response_has_text and not evidence.last_response_finished


def _calls_to_close(open_calls: tuple[OpenCall, ...], approved: tuple[str, ...]) -> tuple[OpenCall, ...]:
    # Call ids repeat across turns. An approved id means the latest open call of that id, as a result would (R2); an
    # older one of the same id was not what the person saw.
    waiting = set(approved)
    kept: list[OpenCall] = []
    for call in reversed(open_calls):
        if call.call_id in waiting:
            waiting.discard(call.call_id)
        else:
            kept.append(call)
    return tuple(reversed(kept))


# --- reading a stored plan -----------------------------------------------------------------------------------------


def _read_plan(found: object) -> ResumePlan:
    data = _object(found, "the plan")
    partial = _field(data, "partial_entry_id")
    sub_turn = _field(data, "sub_turn")
    return ResumePlan(
        mode=ResumeMode(_string(_field(data, "mode"), "mode")),
        calls_to_close=tuple(_read_call(call) for call in _list(_field(data, "calls_to_close"), "calls_to_close")),
        partial_entry_id=None if partial is None else _string(partial, "partial_entry_id"),
        sub_turn=None if sub_turn is None else _read_sub_turn(sub_turn),
    )


def _read_call(found: object) -> OpenCall:
    data = _object(found, "calls_to_close")
    return OpenCall(
        entry_id=_string(_field(data, "entry_id"), "entry_id"),
        position=_whole(_field(data, "position"), "resume plan: position"),
        call_id=_string(_field(data, "call_id"), "call_id"),
        dispatch=CallDispatch(_string(_field(data, "dispatch"), "dispatch")),
    )


def _read_sub_turn(found: object) -> SubTurnLoopPlan:
    data = _object(found, "sub_turn")
    outcome = SubTurnOutcome(_string(_field(data, "outcome"), "outcome"))
    return SubTurnLoopPlan(
        outcome=outcome,
        attempted=outcome in (SubTurnOutcome.ATTEMPTED_EMPTY, SubTurnOutcome.ATTEMPTED_ADDED),
        partial_response_length=_whole(_field(data, "partial_response_length"), "resume plan: partial_response_length"),
        initial_fact_count=_whole(_field(data, "initial_fact_count"), "resume plan: initial_fact_count"),
        added_fact_count=_whole(_field(data, "added_fact_count"), "resume plan: added_fact_count"),
        rescore_tokens=_strings(_field(data, "rescore_tokens"), "rescore_tokens"),
        proposed_hints=_strings(_field(data, "proposed_hints"), "proposed_hints"),
        budget_max=_whole(_field(data, "budget_max"), "resume plan: budget_max"),
        reason=SubTurnReason(_string(_field(data, "reason"), "reason")),
        note=_string(_field(data, "note"), "note"),
    )


def _field(data: Mapping[str, object], name: str) -> object:
    if name not in data:
        raise InvalidInput(f'resume plan lacks the field "{name}"')
    return data[name]


def _object(found: object, name: str) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise InvalidInput(f"resume plan: {name} is not an object")
    return found


def _list(found: object, name: str) -> list[object]:
    if not isinstance(found, list):
        raise InvalidInput(f"resume plan: {name} is not a list")
    return found


def _string(found: object, name: str) -> str:
    if not isinstance(found, str):
        raise InvalidInput(f"resume plan: {name} is not a text")
    return found


def _strings(found: object, name: str) -> tuple[str, ...]:
    return tuple(_string(value, name) for value in _list(found, name))
