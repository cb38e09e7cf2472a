"""What goes with a decision: the plan of a requeue, and the place, the answer and the markers of a settlement.

Pure, from what was gathered; only the texts of a plan are asked for beforehand (`texts_wanted`). Knows nothing of SQL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from reconciler.core.model import Decision, Detail, Limits, OpenCall
from reconciler.core.states import DecisionAction, Outcome, Reason, ResumeMode
from reconciler.core.subturn import ResumePlan, plan_resume, wants_sub_turn
from reconciler.service.gather import Gathered
from reconciler.store.facts import read_settlement, read_texts
from reconciler.store.settlements import Settlement

# A plan looks at words, not at books: what is longer is cut.
TEXT_CHARACTERS_MAX: Final = 200_000
_DEPTH_MAX: Final = 8

# Which entry of which session.
EntryKey = tuple[str, str]


# --- plans -----------------------------------------------------------------------------------------------------------


def needs_plan(decision: Decision) -> bool:
    """Tell whether a resume plan goes with the decision, or with its advice."""
    return DecisionAction.REQUEUE in (decision.action, decision.advice)


def texts_wanted(gathered: Gathered, decision: Decision) -> list[EntryKey]:
    """Return the entries whose texts the plan is made from: the partial response and the input; mostly none."""
    if not needs_plan(decision) or not wants_sub_turn(gathered.evidence):
        return []
    session_id = gathered.row.session_id
    entries = (gathered.evidence.last_response_entry_id, gathered.inspection.input_entry_id)
    return [(session_id, entry_id) for entry_id in entries if entry_id is not None]


def make_plan(
    gathered: Gathered, decision: Decision, limits: Limits, payloads: Mapping[EntryKey, str]
) -> ResumePlan | None:
    """Return the plan that goes with the decision, None where none does. *limits* are the submission's own.

    *payloads* are those of `texts_wanted`, JSON text.
    """
    if not needs_plan(decision):
        return None
    row, evidence = gathered.row, gathered.evidence
    return plan_resume(
        gathered.inspection,
        evidence,
        mode=decision.mode,
        approved_calls=read_texts(row.pending_calls) if decision.mode is ResumeMode.APPROVED else (),
        partial_text=_text_of(payloads, row.session_id, evidence.last_response_entry_id),
        input_text=_text_of(payloads, row.session_id, gathered.inspection.input_entry_id),
        entity_hints=read_texts(row.entity_hints),
        fact_count=row.fact_count + row.sub_turn_facts,
        sub_turn_budget=max(0, limits.sub_turn_budget - row.sub_turns_spent),
    )


def _text_of(payloads: Mapping[EntryKey, str], session_id: str, entry_id: str | None) -> str | None:
    payload = None if entry_id is None else payloads.get((session_id, entry_id))
    return None if payload is None else message_text(payload)


_TEXT_TYPES: Final = frozenset({None, "text", "input_text", "output_text", "message", "user", "assistant"})
_INSIDE: Final = ("text", "content", "message", "parts", "prompt")


def message_text(payload: str) -> str:
    """Return the text of a message's payload (JSON text), "" where none can be found.

    Payloads are whatever a runner or a source stores: a text, an object with ``text`` or ``content``, a list of parts,
    a line of a session file with its ``message``. Reasoning, calls and results are no text of the message.
    """
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    return "\n".join(_texts(found, _DEPTH_MAX))[:TEXT_CHARACTERS_MAX]


def _texts(value: object, depth: int) -> list[str]:
    if isinstance(value, str):
        return [value]
    if depth == 0:
        return []
    if isinstance(value, list):
        return [text for part in value if not isinstance(part, str) or part for text in _texts(part, depth - 1)]
    if isinstance(value, dict) and value.get("type") in _TEXT_TYPES:
        for name in _INSIDE:
            if name in value:
                return _texts(value[name], depth - 1)
    return []


# --- settlements -----------------------------------------------------------------------------------------------------

# The entry that decided is the answer, or its bearer.
_ANSWERED_BY_DECIDING: Final = frozenset(
    {
        Detail.EMPTY_RESPONSE,
        Detail.RESPONSE_FINISHED,
        Detail.TURN_ENDED_BY_TOOL,
        Detail.ANSWERED_OFF_PATH,
        Detail.ANSWERED_IN_DAMAGE,
    }
)


def answer_entry_id(gathered: Gathered) -> str | None:
    """Return the entry that holds the recorded answer, None where none was recorded."""
    inspection, evidence = gathered.inspection, gathered.evidence
    if gathered.error is not None:
        return None
    if inspection.detail in _ANSWERED_BY_DECIDING:
        return inspection.deciding_entry_id
    if inspection.detail is Detail.MOVED_ON and evidence.last_response_finished:
        return evidence.last_response_entry_id
    return None


def make_settlement(gathered: Gathered, decision: Decision) -> Settlement | None:
    """Return the settlement that goes with the decision, None where none does.

    Its entry becomes the leaf, below markers for the unresolved calls, only where the input is on the active path of a
    sound native session; else it hangs below the leaf, or below the newest entry that can be read.
    """
    match decision.action:
        case DecisionAction.ADOPT:
            return _adopted(gathered, decision)
        case DecisionAction.SETTLE:
            return _settled(gathered, decision)
        case _:
            return None


def _adopted(gathered: Gathered, decision: Decision) -> Settlement:
    around = gathered.around
    found = read_settlement(around.settlement_payload)
    reason, answer, recovered = found.get("reason"), found.get("answer_entry_id"), found.get("recovered")
    return Settlement(
        outcome=decision.outcome or Outcome.COMPLETED,
        reason=reason if isinstance(reason, str) else Reason.SETTLEMENT_FOUND.value,
        detail=Detail.SETTLED_ENTRY.value,
        answer_entry_id=answer if isinstance(answer, str) else None,
        recovered=recovered if isinstance(recovered, bool) else True,
        existing_entry_id=around.settlement_entry_id,
    )


def _settled(gathered: Gathered, decision: Decision) -> Settlement:
    row = gathered.row
    is_sound = not gathered.is_mirrored and gathered.error is None
    # A session without any entry has no leaf that could be left alone: without one its next turn would look damaged.
    becomes_leaf = is_sound and (gathered.on_path or row.x_last_seq == 0)
    return Settlement(
        outcome=decision.outcome or Outcome.FAILED,
        reason=decision.reason.value,
        detail=None if gathered.error is not None else gathered.inspection.detail.value,
        answer_entry_id=answer_entry_id(gathered) if decision.outcome is Outcome.COMPLETED else None,
        recovered=True,
        attempt_id=row.current_attempt_id or row.last_attempt_id,
        evidence=decision.evidence,
        parent_entry_id=gathered.hangs_from,
        becomes_leaf=becomes_leaf,
        calls_to_close=unresolved_calls(gathered) if becomes_leaf and gathered.on_path else (),
    )


def unresolved_calls(gathered: Gathered) -> tuple[OpenCall, ...]:
    """Return the calls of the trailing batch that have no result, in call order."""
    count = len(gathered.inspection.unresolved_tool_calls)
    # The trailing batch is the last message with calls and what belongs to it, so its calls come last in call order.
    return gathered.evidence.open_calls[-count:] if count else ()
