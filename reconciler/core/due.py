"""When a row is due, whether its last decision stands, and what its holder is told: the rules about time.

Source: the contract, section 4 (``reconcile_at``, claimable, leases) and section 2 (decision). Instants are aware UTC
by the database's clock, and an instant that equals ``now`` has passed: a row is due *at* its instant, not after it.
This file knows nothing of inspections, and decides nothing about outcomes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from reconciler.core.model import (
    AttemptFacts,
    DecisionOnRecord,
    Detail,
    Limits,
    SubmissionFacts,
)
from reconciler.core.states import (
    DecisionAction,
    Directive,
    Reason,
    SessionOrigin,
    SubmissionStatus,
)

_END_OF_TIME: Final = datetime.max.replace(tzinfo=UTC)

# --- instants ------------------------------------------------------------------------------------------------------


def after(instant: datetime, seconds: float) -> datetime:
    """Return the instant *seconds* later, or the last one that there is: a row must never be lost to an overflow."""
    try:
        return instant + timedelta(seconds=seconds)
    except OverflowError:
        return _END_OF_TIME


def has_passed(instant: datetime | None, now: datetime) -> bool:
    """Tell whether *instant* is there and not ahead of *now*."""
    return instant is not None and instant <= now


def earliest(*instants: datetime | None) -> datetime | None:
    """Return the first of the instants that are there."""
    return min((instant for instant in instants if instant is not None), default=None)


# --- parts of a row's state ----------------------------------------------------------------------------------------


def is_held(facts: SubmissionFacts) -> bool:
    """Tell whether the row needs a person still: held, and not released since."""
    return facts.held_at is not None and not facts.hold_released


def is_parked(facts: SubmissionFacts) -> bool:
    """Tell whether the row waits for an answer that has not come."""
    return facts.status is SubmissionStatus.WAITING and not facts.unparked


def last_sign_at(attempt: AttemptFacts) -> datetime:
    """Return when the attempt last showed progress, else when it was claimed. Beats are no sign."""
    return attempt.last_progress_at or attempt.claimed_at


def overdue_instants(attempt: AttemptFacts, facts: SubmissionFacts, limits: Limits) -> tuple[datetime | None, ...]:
    """Return when the attempt is fenced off though its lease lives: abort, deadline and stall, each with the grace."""
    return (
        None if facts.abort_requested_at is None else after(facts.abort_requested_at, limits.grace_s),
        None if facts.deadline_at is None else after(facts.deadline_at, limits.grace_s),
        after(last_sign_at(attempt), limits.stall_s + limits.grace_s),
    )


def is_lease_over(attempt: AttemptFacts, facts: SubmissionFacts, now: datetime) -> bool:
    """Tell whether the attempt may be taken for dead: proven, or its lease ended and this process may judge that."""
    return facts.owner_dead or (facts.may_judge_lease and has_passed(attempt.lease_expires_at, now))


def may_judge_lease(*, connected_s: float, beat_s: float) -> bool:
    """Tell whether this process may take an ended lease for the death of its owner.

    After an outage of the database every lease has ended and every owner lives: each needs the time of two beats to say
    so. *connected_s* is how long this process's own connection has been up (measured monotonically), *beat_s* the
    attempt's. That somebody wrote since the lease ended proves less than it seems: after an outage longer than a lease
    the first owner to beat would condemn all others.
    """
    return connected_s >= 2 * beat_s


# --- when a row is due ---------------------------------------------------------------------------------------------


class DueCause(StrEnum):
    """The acts that make a row due at once, unless a live lease is on it: the list of the contract, as data.

    A live holder hears of an abort at its next beat, and what it writes on a moved leaf is looked at when it ends.
    """

    IMPORTED = "imported"
    GIVEN_BACK = "given_back"
    FAILED = "failed"
    UNPARKED = "unparked"
    HOLD_RELEASED = "hold_released"
    RETRIED = "retried"
    ABORTED = "aborted"
    LEAF_MOVED_BY_HAND = "leaf_moved_by_hand"


def due_at(facts: SubmissionFacts, now: datetime, limits: Limits, *, cause: DueCause | None = None) -> datetime | None:
    """Return when the row is due: *now* (or earlier) for at once, None for not by itself.

    For rows as acts of runners, importers and operators leave them; *cause* is the act, if it is one that wakes. A
    decision brings its own ``reconcile_at``, which knows of waits that only an inspection shows (a quiet source, a
    moved leaf).
    """
    match facts.status:
        case SubmissionStatus.SETTLED:
            return None
        case SubmissionStatus.RUNNING:
            attempt = facts.current_attempt
            if attempt is None:
                return now
            return earliest(attempt.lease_expires_at, *overdue_instants(attempt, facts, limits))
        case SubmissionStatus.WAITING | SubmissionStatus.QUEUED:
            if cause is not None or facts.abort_requested_at is not None:
                return now
            if is_held(facts):
                return facts.deadline_at
            if facts.hold_released or facts.retried:
                return now
            if is_parked(facts):
                # No instant to wait for would be a wait without end.
                return now if facts.parked_until is None else earliest(facts.parked_until, facts.deadline_at)
            if facts.status is SubmissionStatus.QUEUED and facts.decision_stands:
                return standing_due_at(facts)
            return now
    assert_never(facts.status)  # pragma: no cover


def standing_due_at(facts: SubmissionFacts) -> datetime | None:
    """Return when a queued row with a standing decision is due: its deadline; advice is never due by itself."""
    return None if facts.origin is SessionOrigin.MIRRORED else facts.deadline_at


# --- whether a decision stands -------------------------------------------------------------------------------------

# A WAIT never stands: where one is written (it fenced off an attempt), its end has to be decided on.
_STANDING_ACTIONS: Final = frozenset({DecisionAction.REQUEUE, DecisionAction.HOLD, DecisionAction.ADVISE})


def decision_stands(
    decision: DecisionOnRecord | None,
    *,
    revision: int,
    origin: SessionOrigin,
    leaf_moved_version: int,
    own_entries_added: bool = False,
) -> bool:
    """Tell whether the row's last decision is in force.

    Args:
        decision: the row's last one; None where there is none, or the last act was no decision of the policy.
        revision: the row's, now.
        leaf_moved_version: the session's version when its leaf was last moved by hand.
        own_entries_added: since the decision's version an entry of this submission came. In a native session only a
            current attempt can add one, and its claim raised the revision.
    """
    if decision is None or decision.action not in _STANDING_ACTIONS or decision.revision != revision:
        return False
    if origin is SessionOrigin.NATIVE and _is_for_absent(decision):
        return True
    return not own_entries_added and leaf_moved_version <= decision.session_version


def _is_for_absent(decision: DecisionOnRecord) -> bool:
    # Begin looks for the input under the session's lock, so what others wrote meanwhile changes nothing for it.
    return decision.action is DecisionAction.REQUEUE and (
        decision.reason is Reason.ADMITTED or decision.detail is Detail.INPUT_MISSING
    )


def is_claimable(facts: SubmissionFacts, now: datetime, *, not_before: datetime | None, is_head: bool) -> bool:
    """Tell whether a runner may have the row.

    *not_before* is the standing decision's, None where none makes the row claimable; *is_head*: nothing unsettled is
    before it in its session. A row past its deadline is due, not claimable: its runner would be told to stop.
    """
    return (
        is_head
        and facts.status is SubmissionStatus.QUEUED
        and facts.origin is SessionOrigin.NATIVE
        and facts.decision_stands
        and facts.abort_requested_at is None
        and not is_held(facts)
        and not has_passed(facts.deadline_at, now)
        and has_passed(not_before, now)
    )


# --- what a holder is told -----------------------------------------------------------------------------------------


def directive(
    attempt: AttemptFacts,
    *,
    is_current: bool,
    abort_requested_at: datetime | None,
    deadline_at: datetime | None,
    now: datetime,
    limits: Limits,
) -> Directive:
    """Return what a heartbeat answers. The grace is the holder's time to act on it, so it plays no part here.

    An ended lease is no loss while the attempt is current: the beat revives it.
    """
    if not is_current or attempt.end is not None:
        return Directive.LOST
    if abort_requested_at is not None:
        return Directive.ABORT
    if has_passed(deadline_at, now):
        return Directive.DEADLINE
    if has_passed(after(last_sign_at(attempt), limits.stall_s), now):
        return Directive.STALLED
    return Directive.CONTINUE
