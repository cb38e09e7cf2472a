"""`explain`: what the record of a submission proves, what was decided so far, and what a pass would do now."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy.engine import Connection

from reconciler.core.model import Limits, SubmissionInspection
from reconciler.core.states import DecisionAction, Reason
from reconciler.core.subturn import ResumePlan
from reconciler.errors import InvalidInput, ReconcilerError
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.naming import named_submission
from reconciler.ops.values import instant, known_word, parsed, texts, unreadable_in
from reconciler.ops.words import NOTHING_LEFT, rule_of_detail, rule_of_reason
from reconciler.service.deciding import Preview, preview
from reconciler.store import queries
from reconciler.store.facts import limits_for
from reconciler.store.queries import Hit, Row

_ATTEMPTS_MAX: Final = 50


def explain(asked: Asked) -> Reply:
    """Answer `explain`."""
    with asked.reading() as conn:
        hit = named_submission(conn, asked["submission"], asked["session"])
        if hit.pruned:
            return Reply(_pruned(conn, hit))
        row = queries.submission_row(conn, hit.session_id, hit.submission_id)
        if row is None:
            # Gone between two statements of one snapshot: it cannot be.
            raise InvalidInput(f'could not read "{hit.session_id}/{hit.submission_id}"')
        decisions = queries.decisions_of(conn, hit.session_id, hit.submission_id, limit=asked["decisions"])
        attempts = queries.attempts_of(conn, hit.session_id, hit.submission_id, limit=_ATTEMPTS_MAX)
        recorded = queries.last_recorded(conn, hit.session_id, hit.submission_id)
        plan = queries.plan_of(conn, hit.session_id, hit.submission_id)
    ahead = preview(asked.desk.engine, hit.session_id, hit.submission_id, limits=asked.desk.limits)
    if ahead is None:
        inspection: dict[str, Any] | None = _recorded_inspection(row, recorded)
        following: dict[str, Any] = {**_NOTHING, "rule": NOTHING_LEFT}
        plan_shown = None
    else:
        inspection = None if ahead.facts.inspection_error is not None else _inspection(ahead, row)
        following = _held(row, ahead) if _waits_held(row, ahead) else _next(ahead)
        plan_shown = _plan_payload(ahead.plan, plan if ahead.decision.reason is Reason.DECISION_STANDS else None)
    own = _limits_of(asked.desk.limits, plan["limits"])
    payload = {
        **_row_payload(row),
        "unreadable": [text for text in (unreadable_in(row), own) if isinstance(text, str)],
        "inspection": inspection,
        "guards": {
            "session_version": row["session_version"],
            "revision": row["revision"],
            "attempt_id": row["current_attempt_id"],
            "owner": row["owner"],
            "lease_expires_at": instant(row["lease_expires_at"]),
        },
        "budgets": None if isinstance(own, str) else _budgets(row, own),
        "next": following,
        "plan": plan_shown,
        "decision_count": row["decision_count"],
        "decisions": [_decision(one) for one in decisions],
        "attempts": [_attempt(one) for one in attempts],
    }
    return Reply(payload)


# --- the row ---------------------------------------------------------------------------------------------------------


def _row_payload(row: Row) -> dict[str, Any]:
    return {
        "submission_id": row["id"],
        "session_id": row["session_id"],
        "origin": row["origin"],
        "status": known_word("status", row["status"]),
        "outcome": known_word("outcome", row["outcome"]),
        "outcome_reason": row["outcome_reason"],
        "outcome_detail": row["outcome_detail"],
        "recovered": row["recovered"],
        "answer_entry_id": row["answer_entry_id"],
        "settlement_entry_id": row["settlement_entry_id"],
        "admitted_at": instant(row["admitted_at"]),
        "settled_at": instant(row["settled_at"]),
        "pruned_at": None,
        "held_at": instant(row["held_at"]),
        "held_reason": row["held_reason"],
        "late_evidence": parsed(row["late_evidence"]),
    }


_NOTHING: Final[dict[str, Any]] = {
    "action": "none",
    "reason": None,
    "gate": None,
    "rule": NOTHING_LEFT,
    "outcome": None,
    "advice": None,
    "due_at": None,
    "not_before": None,
    "detail": None,
}


def _pruned(conn: Connection, hit: Hit) -> dict[str, Any]:
    row = queries.pruned_row(conn, hit.session_id, hit.submission_id)
    return {
        "submission_id": hit.submission_id,
        "session_id": hit.session_id,
        "origin": None,
        "status": "settled",
        "outcome": None if row is None else row["outcome"],
        "outcome_reason": None,
        "outcome_detail": None,
        "recovered": None,
        "answer_entry_id": None,
        "settlement_entry_id": None,
        "admitted_at": None,
        "settled_at": None if row is None else instant(row["settled_at"]),
        "pruned_at": None if row is None else instant(row["pruned_at"]),
        "held_at": None,
        "held_reason": None,
        "late_evidence": None,
        "unreadable": [],
        "inspection": None,
        "guards": None,
        "budgets": None,
        "next": {**_NOTHING, "rule": "it was settled and pruned: only its outcome is remembered"},
        "plan": None,
        "decision_count": 0,
        "decisions": [],
        "attempts": [],
    }


def _limits_of(limits: Limits, own: str | None) -> Limits | str:
    """Return a submission's limits; in words what is wrong with its own, where they can't be read or don't fit."""
    try:
        return limits_for(limits, own)
    except (ReconcilerError, ValueError, TypeError) as error:
        reason = error.message if isinstance(error, ReconcilerError) else str(error)
        return f'limits holds "{own!s:.60}": {reason}'


def _budgets(row: Row, limits: Limits) -> dict[str, Any]:
    return {
        "attempts": {"spent": row["attempts_spent"], "max": limits.attempts_max + row["attempts_granted"]},
        "crashes_in_row": {"spent": row["crashes_in_row"], "max": limits.crashes_in_row_max},
        "provider_errors": {"spent": row["provider_errors"], "max": limits.provider_errors_max},
        "redispatches": {
            "spent": row["redispatches"],
            "max": limits.redispatches_max + row["redispatches_granted"],
        },
        "releases": {"spent": row["releases"], "max": limits.releases_max},
    }


# --- what the record shows -------------------------------------------------------------------------------------------


def _inspection(ahead: Preview, row: Row) -> dict[str, Any]:
    found = ahead.inspection
    names = {(call.entry_id, call.position): call.call_id for call in ahead.open_calls}
    return {
        "state": found.state.value,
        "detail": found.detail.value,
        "rule": rule_of_detail(found.detail.value),
        "input_entry_id": found.input_entry_id,
        "deciding_entry_id": found.deciding_entry_id,
        "leaf_entry_id": row["leaf_entry_id"],
        "unresolved_tool_calls": list(found.unresolved_tool_calls),
        "interior_open_calls": list(found.interior_open_calls),
        "dispatch": [
            {"entry_id": key[0], "position": key[1], "call_id": names.get(key), "dispatch": word.value}
            for key, word in found.dispatch.items()
        ],
        "stopped_by": found.stopped_by,
        "unlogged_calls_possible": found.unlogged_calls_possible,
        "integrity": found.integrity,
        "problems": list(found.problems),
    }


def _recorded_inspection(row: Row, recorded: Row | None) -> dict[str, Any]:
    """Return what stood in the record when it was settled; its settlement entry decides now."""
    rest: dict[str, Any] = {}
    if recorded is not None and recorded["inspection"]:
        rest = json.loads(recorded["inspection"])
    detail: str = "settled_entry" if recorded is None else recorded["detail"]
    deciding = rest.get("deciding_entry_id")
    if recorded is None:
        deciding = row["settlement_entry_id"]
    state = SubmissionInspection.COMPLETED.value if recorded is None else recorded["state"]
    return {
        "state": state,
        "detail": detail,
        "rule": rule_of_detail(detail),
        "input_entry_id": rest.get("input_entry_id"),
        "deciding_entry_id": deciding,
        "leaf_entry_id": row["leaf_entry_id"],
        "unresolved_tool_calls": rest.get("unresolved_tool_calls", []),
        "interior_open_calls": rest.get("interior_open_calls", []),
        "dispatch": [
            {"entry_id": entry_id, "position": position, "call_id": None, "dispatch": word}
            for entry_id, position, word in rest.get("dispatch", [])
        ],
        "stopped_by": rest.get("stopped_by"),
        "unlogged_calls_possible": rest.get("unlogged_calls_possible", False),
        "integrity": rest.get("integrity"),
        "problems": rest.get("problems", []),
    }


# --- what comes next -------------------------------------------------------------------------------------------------


def _next(ahead: Preview) -> dict[str, Any]:
    decision = ahead.decision
    due = ahead.reconcile_at
    if decision.action is not DecisionAction.WAIT and (ahead.facts.owner_dead or due is None or due < ahead.now):
        # A pass looks for dead owners first, and makes due what they held.
        due = ahead.now
    return {
        "action": decision.action.value,
        "reason": decision.reason.value,
        "gate": decision.gate,
        "rule": rule_of_reason(decision.reason.value),
        "outcome": None if decision.outcome is None else decision.outcome.value,
        "advice": None if decision.advice is None else decision.advice.value,
        "due_at": instant(due),
        "not_before": instant(decision.not_before),
        "detail": ahead.facts.inspection_error or decision.detail,
    }


def _waits_held(row: Row, ahead: Preview) -> bool:
    return row["held_at"] is not None and ahead.decision.action is DecisionAction.WAIT


def _held(row: Row, ahead: Preview) -> dict[str, Any]:
    # A pass leaves it as it is: what it waits for is a person, and that is what the answer has to say.
    return _next(ahead) | {
        "action": DecisionAction.HOLD.value,
        "reason": row["held_reason"],
        "rule": rule_of_reason(row["held_reason"]),
    }


def _plan_payload(ahead: ResumePlan | None, standing: Row | None) -> dict[str, Any] | None:
    plan = ahead
    if plan is None and standing is not None and standing["plan"] is not None:
        plan = ResumePlan.from_json(standing["plan"])
    if plan is None:
        return None
    sub_turn = plan.sub_turn
    return {
        "mode": plan.mode.value,
        "calls_to_close": [
            {
                "entry_id": call.entry_id,
                "position": call.position,
                "call_id": call.call_id,
                "dispatch": call.dispatch.value,
            }
            for call in plan.calls_to_close
        ],
        "partial_entry_id": plan.partial_entry_id,
        # Its tokens and hints are words of the model's answer: they stay inside.
        "sub_turn": None
        if sub_turn is None
        else {
            "outcome": sub_turn.outcome.value,
            "attempted": sub_turn.attempted,
            "reason": sub_turn.reason.value,
        },
    }


# --- history ---------------------------------------------------------------------------------------------------------


def _decision(row: Row) -> dict[str, Any]:
    return {
        "number": row["number"],
        "decided_at": instant(row["decided_at"]),
        "decided_by": row["decided_by"],
        "pass_id": row["pass_id"],
        "action": row["action"],
        "advice": row["advice"],
        "reason": row["reason"],
        "gate": row["gate"],
        "state": row["state"],
        "detail": row["detail"],
        "outcome": row["outcome"],
        "attempt_id": row["attempt_id"],
        "attempt_end": row["attempt_end"],
        "evidence": texts(row["evidence"]),
        "mode": row["plan_mode"],
        "not_before": instant(row["not_before"]),
        "session_version": row["session_version"],
        "revision": row["revision"],
        "note": row["note"],
    }


def _attempt(row: Row) -> dict[str, Any]:
    return {
        "attempt_id": row["attempt_id"],
        "number": row["number"],
        "owner": row["owner"],
        "claimed_at": instant(row["claimed_at"]),
        "begun_at": instant(row["begun_at"]),
        "progress_at": instant(row["progress_at"]),
        "ended_at": instant(row["ended_at"]),
        "end": row["end_kind"],
        "end_reason": row["end_reason"],
    }
