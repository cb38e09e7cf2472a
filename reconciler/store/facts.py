"""From rows to the facts that the policy is asked with, and the limits that a submission brought.

Pure: rows in, values out. Knows nothing of connections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from reconciler.core.due import after, decision_stands
from reconciler.core.limits import validate_limits
from reconciler.core.model import AttemptFacts, DecisionOnRecord, Detail, Limits, SubmissionFacts
from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Outcome,
    Reason,
    SessionOrigin,
    SubmissionStatus,
)
from reconciler.errors import InvalidInput
from reconciler.store.around import AttemptRow, Surroundings
from reconciler.store.passes import DueRow

# What a submission may bring of its own; the other limits bound the service, not the submission.
SUBMISSION_LIMITS: Final = frozenset(
    {
        "attempts_max",
        "releases_max",
        "parks_max",
        "crashes_in_row_max",
        "provider_errors_max",
        "redispatches_max",
        "grace_s",
        "stall_s",
        "leaf_moved_s",
        "backoff_base_s",
        "backoff_factor",
        "backoff_max_s",
        "backoff_jitter",
        "provider_backoff_base_s",
        "provider_backoff_max_s",
        "capability_backoff_s",
        "hold_unlogged",
        "hold_unknown_effects",
        "sub_turn_budget",
    }
)

# What an operator's retry leaves as the row's last act.
ACTION_RETRY: Final = "retry"


def limits_for(limits: Limits, own: str | Mapping[str, Any] | None) -> Limits:
    """Return *limits* with what the submission brought (JSON text, or a mapping).

    Raises:
        InvalidInput: a name is not a submission's to set, or the result is no sound configuration.
    """
    if not own:
        return limits
    given = json.loads(own) if isinstance(own, str) else own
    unknown = sorted(set(given) - SUBMISSION_LIMITS)
    if unknown:
        raise InvalidInput(
            f"cannot set {', '.join(unknown)} for one submission",
            hint=f"one of {', '.join(sorted(SUBMISSION_LIMITS))}",
        )
    return validate_limits(replace(limits, **given), error=InvalidInput)


def are_readable_limits(own: str) -> bool:
    """Return whether limits that a submission brought can be read; whether they fit the settings is another matter."""
    try:
        given = json.loads(own)
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and given.keys() <= SUBMISSION_LIMITS


def read_settlement(payload: str | None) -> Mapping[str, Any]:
    """Return what a settlement entry carries; an empty mapping where it can't be read (another program's)."""
    if payload is None:
        return {}
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def settlement_outcome(payload: str | None) -> Outcome | None:
    """Return the outcome that a settlement entry names, None where it names none that we know."""
    found = read_settlement(payload).get("outcome")
    return Outcome(found) if isinstance(found, str) and found in set(Outcome) else None


def attempt_facts(row: AttemptRow | None) -> AttemptFacts | None:
    """Return an attempt as the policy sees it."""
    if row is None:
        return None
    return AttemptFacts(
        attempt_id=row.attempt_id,
        number=row.number,
        claimed_at=row.claimed_at,
        lease_expires_at=row.lease_expires_at,
        begun=row.begun_at is not None,
        made_progress=row.progress_at is not None,
        last_progress_at=row.progress_at,
        end=None if row.end_kind is None else _ENDS[row.end_kind],
        retryable=row.retryable,
        end_reason=row.end_reason,
        beat_s=row.beat_s,
        provider_error_counted=row.provider_error_counted,
    )


# Looked up for every row of a pass: cheaper than asking the class for its members.
_ACTIONS: Final = {action.value: action for action in DecisionAction}
_REASONS: Final = {reason.value: reason for reason in Reason}
_DETAILS: Final = {detail.value: detail for detail in Detail}
_STATUSES: Final = {status.value: status for status in SubmissionStatus}
_ORIGINS: Final = {origin.value: origin for origin in SessionOrigin}
_ENDS: Final = {end.value: end for end in AttemptEnd}


def decision_on_record(row: DueRow) -> DecisionOnRecord | None:
    """Return the row's last decision, None where its last act was none of the policy's."""
    action, reason = _ACTIONS.get(row.decision_action or ""), _REASONS.get(row.decision_reason or "")
    if action is None or reason is None:
        return None
    return DecisionOnRecord(
        action=action,
        reason=reason,
        revision=-1 if row.decision_revision is None else row.decision_revision,
        session_version=-1 if row.decision_version is None else row.decision_version,
        detail=_DETAILS.get(row.decision_detail or ""),
    )


def stands(row: DueRow) -> bool:
    """Tell whether the row's last decision is in force.

    An import that adds entries of a submission raises the revision of its row, so that none is in force any more.
    """
    return decision_stands(
        decision_on_record(row),
        revision=row.revision,
        origin=_ORIGINS[row.x_origin],
        leaf_moved_version=row.x_leaf_moved_version,
    )


def submission_facts(
    row: DueRow,
    around: Surroundings,
    limits: Limits,
    *,
    owner_dead: bool = False,
    may_judge_lease: bool = True,
    response_may_grow: bool = False,
    inspection_error: str | None = None,
) -> SubmissionFacts:
    """Return a row as the policy sees it. *limits* are the submission's own (`limits_for`)."""
    current = attempt_facts(around.current)
    return SubmissionFacts(
        session_id=row.session_id,
        submission_id=row.submission_id,
        status=_STATUSES[row.status],
        origin=_ORIGINS[row.x_origin],
        revision=row.revision,
        session_version=row.x_version,
        decision_stands=stands(row),
        settlement_outcome=None if around.settlement_entry_id is None else _outcome_or_completed(around),
        abort_requested_at=row.abort_requested_at,
        deadline_at=row.deadline_at,
        held_at=row.held_at,
        held_reason=row.held_reason,
        hold_released=row.hold_released_reason is not None,
        hold_released_reason=row.hold_released_reason,
        retried=row.decision_action == ACTION_RETRY,
        parked_until=row.parked_until,
        unparked=row.unparked_at is not None,
        pending_calls=read_texts(row.pending_calls),
        leaf_moved_at=row.x_leaf_moved_at,
        current_attempt=current,
        last_attempt=attempt_facts(around.last),
        last_begun_end=None if around.last_begun_end is None else _ENDS[around.last_begun_end],
        owner_dead=owner_dead,
        may_judge_lease=may_judge_lease,
        attempts_spent=row.attempts_spent,
        attempts_begun=row.attempts_begun,
        attempts_granted=row.attempts_granted,
        crashes_in_row=row.crashes_in_row,
        provider_errors=row.provider_errors,
        redispatches=row.redispatches,
        redispatches_granted=row.redispatches_granted,
        releases=row.releases,
        source_quiet_at=_quiet_at(row, around, limits),
        response_may_grow=response_may_grow,
        inspection_error=inspection_error,
    )


def _outcome_or_completed(around: Surroundings) -> Outcome:
    # An entry of another program may not say which; the classifier's word for it is completed.
    return settlement_outcome(around.settlement_payload) or Outcome.COMPLETED


def _quiet_at(row: DueRow, around: Surroundings, limits: Limits) -> datetime | None:
    if _ORIGINS[row.x_origin] is SessionOrigin.NATIVE or around.quiet_since is None:
        return None
    return after(around.quiet_since, limits.quiet_s)


def read_texts(text: str | None) -> tuple[str, ...]:
    """Return the texts of a JSON array column; empty for null."""
    return () if text is None else tuple(str(value) for value in json.loads(text))
