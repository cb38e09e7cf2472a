"""What is done with a submission: the gates, from an inspection and the row's facts to one decision.

Source: the contract, section 3.2. One pure function, ``decide``; each gate is a function of its own and they stand in
``GATES`` in the order in which they are asked. Beside it stands what follows from a decision (the event, the counters,
the end of the attempt that it fences off). This file knows nothing of rows, locks or SQL: it is told facts, and whoever
carries a decision out proves again that it still may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from reconciler.core.due import (
    after,
    earliest,
    has_passed,
    is_held,
    is_lease_over,
    is_parked,
    overdue_instants,
    standing_due_at,
)
from reconciler.core.model import (
    END_CAPABILITY_MISSING,
    AttemptFacts,
    CallDispatch,
    Counters,
    Decision,
    Detail,
    Inspection,
    Limits,
    OpenCall,
    SubmissionFacts,
    SubmissionInspection,
    TurnEvidence,
)
from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Outcome,
    Reason,
    ResumeMode,
    SessionOrigin,
    SubmissionEvent,
    SubmissionStatus,
)
from reconciler.core.subturn import resume_mode

# The ends of attempts that count as crashes: the owner is gone, or hangs.
CRASH_ENDS: Final = frozenset({AttemptEnd.CRASHED, AttemptEnd.STALLED})
# The ends by which a runner gave the turn back with nothing in flight: an input left so was not tried.
CLEAN_ENDS: Final = frozenset({AttemptEnd.RELEASED, AttemptEnd.PARKED})

# --- counters, ends, backoff ---------------------------------------------------------------------------------------


def fence_end(attempt: AttemptFacts, facts: SubmissionFacts, now: datetime, limits: Limits) -> AttemptEnd:
    """Return how an attempt ended that is being fenced off.

    For one that may be fenced off (gate 2 doesn't say wait). A dead owner is a crash whatever else was overdue; of a
    living one the unheeded abort or deadline says more than its lack of progress.
    """
    if is_lease_over(attempt, facts, now):
        return AttemptEnd.CRASHED
    abort_end, deadline_end, _ = overdue_instants(attempt, facts, limits)
    if has_passed(abort_end, now) or has_passed(deadline_end, now):
        return AttemptEnd.OVERRUN
    return AttemptEnd.STALLED


def counters_after(
    counters: Counters, attempt: AttemptFacts, end: AttemptEnd, limits: Limits, *, provider_error: bool = False
) -> Counters:
    """Return the counters as the end of an attempt leaves them.

    *provider_error*: its last message ended with an error; with FAILED it is implied. Progress ends a row of crashes,
    whatever the end. An attempt that came to nothing because of its provider is no crash, and one that had not begun is
    none either: what failed was not this submission. No counter rises above its maximum (I8).
    """
    is_provider_error = provider_error or end is AttemptEnd.FAILED
    crashes = counters.crashes_in_row
    if attempt.made_progress:
        crashes = 0
    elif attempt.begun and end in CRASH_ENDS and not is_provider_error:
        crashes = _raised(crashes, limits.crashes_in_row_max)
    errors = counters.provider_errors
    if is_provider_error and not attempt.provider_error_counted:
        errors = _raised(errors, limits.provider_errors_max)
    return Counters(crashes_in_row=crashes, provider_errors=errors)


def _raised(count: int, maximum: int) -> int:
    # Limits can be lowered under a row: what was counted stays counted.
    return max(count, min(count + 1, maximum))


class BackoffKind(StrEnum):
    """What is backed off from; each has its own numbers."""

    CRASH = "crash"
    PROVIDER = "provider"
    CAPABILITY = "capability"


def backoff(kind: BackoffKind, failures: int, limits: Limits, *, jitter: float = 0.0) -> float:
    """Return the seconds to wait after the *failures*-th failure in a row (at least 1 is taken).

    Exponential, capped; *jitter* (0 to 1) takes up to ``backoff_jitter`` of it off, so that it spreads at the cap too.
    """
    match kind:
        case BackoffKind.CRASH:
            base, cap = limits.backoff_base_s, limits.backoff_max_s
        case BackoffKind.PROVIDER:
            base, cap = limits.provider_backoff_base_s, limits.provider_backoff_max_s
        case BackoffKind.CAPABILITY:
            base, cap = limits.capability_backoff_s, limits.backoff_max_s
        case _:  # pragma: no cover
            assert_never(kind)
    # 64 doublings pass every cap; a larger exponent would only overflow.
    delay = min(cap, base * limits.backoff_factor ** min(max(failures, 1) - 1, 64))
    return delay * (1.0 - limits.backoff_jitter * min(max(jitter, 0.0), 1.0))


# --- the decision --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    """All that the gates look at."""

    inspection: Inspection
    facts: SubmissionFacts
    now: datetime
    limits: Limits
    jitter: float
    evidence: TurnEvidence
    # The attempt asked about: the current one, else the last that ended; and how it ends or ended.
    attempt: AttemptFacts | None
    attempt_end: AttemptEnd | None
    # The provider rejected or failed that attempt (mirrored: the turn).
    provider_error: bool
    # As this decision leaves them, and the attempt whose provider error they count for the first time.
    counters: Counters
    counted_attempt_id: str | None

    @property
    def is_mirrored(self) -> bool:
        return self.facts.origin is SessionOrigin.MIRRORED

    @property
    def fenced(self) -> AttemptEnd | None:
        return None if self.facts.current_attempt is None else self.attempt_end

    @property
    def input_left_clean(self) -> bool:
        current = self.facts.current_attempt
        end = self.attempt_end if current is not None and current.begun else self.facts.last_begun_end
        return end in CLEAN_ENDS


def decide(
    inspection: Inspection,
    facts: SubmissionFacts,
    now: datetime,
    limits: Limits,
    *,
    jitter: float = 0.0,
    evidence: TurnEvidence | None = None,
) -> Decision:
    """Return what is done with a row that is due.

    Total on every row and every answer of the classifier. The answer's ``reconcile_at`` is ahead of *now* or None, so
    a row is never left due; where the answer is not written (``is_written``), pushing ``reconcile_at`` on is all to do.

    Args:
        inspection: the classifier's answer; a stand-in where ``facts.inspection_error`` says that it raised.
        facts: the row, read under the same locks as the inspection.
        now: by the database's clock.
        limits: the submission's own, already checked by ``validate_limits``.
        jitter: 0 to 1, how much of the backoff's jitter is taken.
        evidence: of the turn, the error in it being that of the current attempt, else of the last that ended
            (mirrored: of the turn). Without it nothing is known of errors and texts.
    """
    case = _case(inspection, facts, now, limits, jitter, evidence)
    for gate in GATES:
        decision = gate(case)
        if decision is not None:
            return decision
    return _gate_11(case)


def backoff_of(
    inspection: Inspection, facts: SubmissionFacts, now: datetime, limits: Limits, evidence: TurnEvidence
) -> tuple[BackoffKind, int] | None:
    """Return what `backoff` is asked with where `decide` requeues the row; None where it may be claimed at once."""
    return _backoff(_case(inspection, facts, now, limits, 0.0, evidence))


def admission(facts: SubmissionFacts, now: datetime) -> Decision:
    """Return the decision that admits a first try: it makes the row claimable at once."""
    return Decision(
        DecisionAction.REQUEUE,
        Reason.ADMITTED,
        gate=10,
        mode=ResumeMode.FRESH,
        not_before=now,
        reconcile_at=facts.deadline_at,
    )


def event_of(decision: Decision) -> SubmissionEvent | None:
    """Return the event that carries the decision out, None where the status stays as it is."""
    match decision.action:
        case DecisionAction.ADOPT | DecisionAction.SETTLE:
            return SubmissionEvent.SETTLE
        case DecisionAction.REQUEUE:
            return SubmissionEvent.REQUEUE
        case DecisionAction.HOLD:
            return SubmissionEvent.HOLD
        case DecisionAction.WAIT | DecisionAction.ADVISE:
            return None if decision.attempt_end is None else SubmissionEvent.FENCE
    assert_never(decision.action)  # pragma: no cover


def _case(
    inspection: Inspection,
    facts: SubmissionFacts,
    now: datetime,
    limits: Limits,
    jitter: float,
    evidence: TurnEvidence | None,
) -> _Case:
    seen = evidence if evidence is not None else _evidence_of(inspection)
    current = facts.current_attempt
    attempt = facts.last_attempt if current is None else current
    # In a native session an error counts for the attempt that wrote it; what stood there before is no attempt's.
    has_writer = attempt is not None or facts.origin is SessionOrigin.MIRRORED
    wrote_error = has_writer and seen.error_entry_id is not None
    counters = Counters(crashes_in_row=facts.crashes_in_row, provider_errors=facts.provider_errors)
    end = None if attempt is None else attempt.end
    if current is not None:
        end = fence_end(current, facts, now, limits)
        counters = counters_after(counters, current, end, limits, provider_error=wrote_error)
    # `fail` counts by itself. Any other end may come before anybody has looked at what the attempt wrote last.
    is_counted = attempt is None or attempt.provider_error_counted or end is AttemptEnd.FAILED
    counts_error = wrote_error and not is_counted
    if counts_error and current is None:
        counters = replace(counters, provider_errors=_raised(counters.provider_errors, limits.provider_errors_max))
    return _Case(
        inspection=inspection,
        facts=facts,
        now=now,
        limits=limits,
        jitter=jitter,
        evidence=seen,
        attempt=attempt,
        attempt_end=end,
        provider_error=wrote_error or end is AttemptEnd.FAILED,
        counters=counters,
        counted_attempt_id=attempt.attempt_id if attempt is not None and counts_error else None,
    )


def _evidence_of(inspection: Inspection) -> TurnEvidence:
    # The calls alone; whether they started is not guessed.
    return TurnEvidence(
        open_calls=tuple(
            OpenCall(
                entry_id=inspection.deciding_entry_id or "",
                position=position,
                call_id=call_id,
                dispatch=CallDispatch.UNKNOWN,
            )
            for position, call_id in enumerate(inspection.unresolved_tool_calls)
        )
    )


# --- gates 0 to 4: what the record and people said already ---------------------------------------------------------


def _gate_0(case: _Case) -> Decision | None:
    """A queued row whose decision stands waits for its runner."""
    facts = case.facts
    if facts.status is SubmissionStatus.SETTLED:
        return Decision(DecisionAction.WAIT, Reason.ALREADY_SETTLED, gate=0)
    if (
        facts.status is SubmissionStatus.QUEUED
        and facts.decision_stands
        and facts.abort_requested_at is None
        and not facts.hold_released
        and not facts.retried
    ):
        due = standing_due_at(facts)
        if not has_passed(due, case.now):
            return Decision(DecisionAction.WAIT, Reason.DECISION_STANDS, gate=0, reconcile_at=due)
    return None


def _gate_1(case: _Case) -> Decision | None:
    """The settlement entry decides (I1)."""
    outcome = case.facts.settlement_outcome
    found = _inspected(case) and case.inspection.detail is Detail.SETTLED_ENTRY
    if outcome is None and not found:
        return None
    return Decision(
        DecisionAction.ADOPT,
        Reason.SETTLEMENT_FOUND,
        gate=1,
        # An entry of another program may not say which; the classifier's word for it is completed.
        outcome=outcome or Outcome.COMPLETED,
        attempt_end=None if case.facts.current_attempt is None else AttemptEnd.SETTLED,
        evidence=_evidence(case),
    )


def _gate_2(case: _Case) -> Decision | None:
    """A living attempt, an open park and a source that may still write are waited for."""
    facts, now, limits = case.facts, case.now, case.limits
    if case.is_mirrored and _inspected(case) and facts.response_may_grow:
        # An abort must reach an outcome though the source never falls quiet.
        patience = None if facts.abort_requested_at is None else after(facts.abort_requested_at, limits.grace_s)
        if facts.source_quiet_at is not None and facts.source_quiet_at > now and not has_passed(patience, now):
            end = earliest(facts.source_quiet_at, patience)
            return Decision(DecisionAction.WAIT, Reason.SOURCE_NOT_QUIET, gate=2, reconcile_at=end)
    if facts.status is SubmissionStatus.RUNNING and facts.current_attempt is not None:
        return _wait_for_attempt(case, facts.current_attempt)
    if is_parked(facts) and facts.abort_requested_at is None and not has_passed(facts.deadline_at, now):
        if is_held(facts):
            return Decision(DecisionAction.WAIT, Reason.HELD, gate=2, reconcile_at=facts.deadline_at)
        if facts.parked_until is not None and facts.parked_until > now:
            end = earliest(facts.parked_until, facts.deadline_at)
            return Decision(DecisionAction.WAIT, Reason.PARKED, gate=2, reconcile_at=end)
    return None


def _wait_for_attempt(case: _Case, attempt: AttemptFacts) -> Decision | None:
    facts, now, limits = case.facts, case.now, case.limits
    overdue = overdue_instants(attempt, facts, limits)
    if is_lease_over(attempt, facts, now) or any(has_passed(instant, now) for instant in overdue):
        return None
    if attempt.lease_expires_at > now:
        reason, end = Reason.LEASE_LIVE, attempt.lease_expires_at
    else:
        # After two of its beats this process may judge it.
        beat_s = limits.beat_s if attempt.beat_s is None else attempt.beat_s
        reason, end = Reason.OWNER_UNJUDGED, after(now, 2 * beat_s)
    return Decision(DecisionAction.WAIT, reason, gate=2, reconcile_at=earliest(end, *overdue))


def _gate_3(case: _Case) -> Decision | None:
    """Finished work is finished, whatever it cost and whoever wanted it stopped (I7)."""
    if not _inspected(case) or case.inspection.state is not SubmissionInspection.COMPLETED:
        return None
    return _settle(case, 3, Outcome.COMPLETED, Reason.COMPLETED)


def _gate_4(case: _Case) -> Decision | None:
    """Somebody wanted it stopped."""
    if case.facts.abort_requested_at is not None:
        return _settle(case, 4, Outcome.ABORTED, Reason.ABORT_REQUESTED)
    if _inspected(case) and case.inspection.stopped_by is not None:
        return _settle(case, 4, Outcome.ABORTED, Reason.STOPPED_BY_USER)
    return None


# --- gates 5 to 11: in a mirrored session they advise ---------------------------------------------------------------


def _gate_5(case: _Case) -> Decision | None:
    """Its time is over."""
    facts = case.facts
    if has_passed(facts.deadline_at, case.now):
        return _settle(case, 5, Outcome.FAILED, Reason.DEADLINE_EXCEEDED)
    # A parked row that is held was waited for at gate 2: its park does not expire in a person's hands.
    if is_parked(facts) and has_passed(facts.parked_until, case.now):
        return _settle(case, 5, Outcome.FAILED, Reason.PARK_EXPIRED)
    return None


# Holds that rest on the record alone. In a mirrored session the next import may show something else, and nobody but
# its owner can mend it, so they are derived afresh; a hold that a person or a failed write brought stays.
_HOLDS_OF_THE_RECORD: Final = frozenset(
    {
        Reason.INTEGRITY_HOLD.value,
        Reason.INSPECTION_ERROR.value,
        Reason.UNLOGGED_CALLS_POSSIBLE.value,
        Reason.UNKNOWN_EFFECT.value,
    }
)


def _gate_6(case: _Case) -> Decision | None:
    """The record can't be acted on, or a person has the row in hand."""
    facts, inspection = case.facts, case.inspection
    is_rederived = case.is_mirrored and facts.held_reason in _HOLDS_OF_THE_RECORD
    if is_held(facts) and not is_rederived:
        return _wait(case, Reason.HELD, None if case.is_mirrored else facts.deadline_at)
    if facts.inspection_error is not None:
        return _hold(case, 6, Reason.INSPECTION_ERROR, facts.inspection_error)
    if inspection.detail is Detail.INTEGRITY_HOLD:
        return _hold(case, 6, Reason.INTEGRITY_HOLD, inspection.integrity)
    if inspection.detail is Detail.LEAF_MOVED:
        return _leaf_moved(case)
    return None


def _leaf_moved(case: _Case) -> Decision:
    if case.is_mirrored:
        # Whoever owns the session moved it, and may move it back at any time.
        return _advise(_wait(case, Reason.LEAF_MOVED_WAIT, None))
    moved_at = case.facts.leaf_moved_at
    if moved_at is None:
        # Neither a wait without end nor an outcome without the wait: a person knows who moved it.
        return _hold(case, 6, Reason.LEAF_MOVED, "it is not recorded when the leaf was moved")
    end = after(moved_at, case.limits.leaf_moved_s)
    if has_passed(end, case.now):
        return _settle(case, 6, Outcome.ABORTED, Reason.LEAF_MOVED)
    return _wait(case, Reason.LEAF_MOVED_WAIT, earliest(end, case.facts.deadline_at))


def _gate_7(case: _Case) -> Decision | None:
    """The attempts are spent."""
    facts = case.facts
    if facts.attempts_spent < case.limits.attempts_max + facts.attempts_granted:
        return None
    has_begun = facts.attempts_begun > 0 or (case.attempt is not None and case.attempt.begun)
    reason = Reason.ATTEMPTS_EXHAUSTED if has_begun else Reason.NEVER_BEGUN
    return _settle(case, 7, Outcome.FAILED, reason)


def _gate_8(case: _Case) -> Decision | None:
    """It brings down whoever works on it."""
    if case.counters.crashes_in_row < case.limits.crashes_in_row_max:
        return None
    call = case.evidence.call_in_flight
    if call is None:
        return _settle(case, 8, Outcome.FAILED, Reason.CRASH_LOOP)
    decision = _settle(
        case, 8, Outcome.FAILED, Reason.CRASH_LOOP, f'call in flight: "{call.call_id}" ({call.dispatch.value})'
    )
    return replace(decision, evidence=_unique(*decision.evidence, call.entry_id))


def _gate_9(case: _Case) -> Decision | None:
    """The model's provider failed it."""
    if not case.provider_error:
        return None
    if not _is_retryable(case):
        return _settle(case, 9, Outcome.FAILED, Reason.PROVIDER_REJECTED)
    if case.counters.provider_errors >= case.limits.provider_errors_max:
        return _settle(case, 9, Outcome.FAILED, Reason.PROVIDER_ERRORS_EXHAUSTED)
    return _requeue(case, 9, _mode(case), Reason.PROVIDER_RETRY)


def _is_retryable(case: _Case) -> bool:
    attempt = case.attempt
    if attempt is not None and attempt.end is AttemptEnd.FAILED and attempt.retryable is not None:
        return attempt.retryable
    return case.evidence.error_retryable is not False


def _gate_10(case: _Case) -> Decision | None:
    """What never began starts; what got somewhere goes on from there."""
    match case.inspection.state:
        case SubmissionInspection.ABSENT:
            return _requeue(case, 10, ResumeMode.FRESH, Reason.FIRST_TRY)
        case SubmissionInspection.CONTINUABLE:
            mode = _mode(case)
            return _requeue(case, 10, mode, Reason.APPROVED if mode is ResumeMode.APPROVED else Reason.RESUME)
        case SubmissionInspection.UNCERTAIN | SubmissionInspection.COMPLETED:
            return None
    assert_never(case.inspection.state)  # pragma: no cover


def _gate_11(case: _Case) -> Decision:
    """The request was sent, and nothing shows whether it did anything: once more, at most."""
    if case.input_left_clean:
        return _requeue(case, 11, ResumeMode.FRESH, Reason.CLEAN_RELEASE)
    if case.facts.redispatches >= case.limits.redispatches_max + case.facts.redispatches_granted:
        return _settle(case, 11, Outcome.FAILED, Reason.UNCERTAIN_EXHAUSTED)
    return _requeue(case, 11, ResumeMode.REDISPATCH, Reason.REDISPATCH)


GATES: Final[tuple[Callable[[_Case], Decision | None], ...]] = (
    _gate_0,
    _gate_1,
    _gate_2,
    _gate_3,
    _gate_4,
    _gate_5,
    _gate_6,
    _gate_7,
    _gate_8,
    _gate_9,
    _gate_10,
)

# --- what the gates answer with ------------------------------------------------------------------------------------


def _inspected(case: _Case) -> bool:
    return case.facts.inspection_error is None


def _mode(case: _Case) -> ResumeMode:
    return resume_mode(
        case.inspection,
        case.evidence,
        approved_calls=case.facts.pending_calls,
        clean_release=case.input_left_clean,
    )


def _wait(case: _Case, reason: Reason, end: datetime | None) -> Decision:
    """Wait at gate 6. With an attempt to fence off this is written, else it only pushes the row on."""
    decision = Decision(DecisionAction.WAIT, reason, gate=6, reconcile_at=end)
    if case.fenced is None:
        return replace(decision, evidence=_evidence(case))
    return _complete(case, decision)


def _settle(case: _Case, gate: int, outcome: Outcome, reason: Reason, detail: str | None = None) -> Decision:
    # Put together at once: most decisions of a pass are this one.
    decision = Decision(
        DecisionAction.SETTLE,
        reason,
        gate,
        outcome=outcome,
        attempt_end=case.fenced,
        counters=case.counters,
        evidence=_evidence(case),
        detail=detail,
        provider_error_attempt_id=case.counted_attempt_id,
    )
    return _advise(decision) if case.is_mirrored and gate >= 5 else decision


def _hold(case: _Case, gate: int, reason: Reason, detail: str | None) -> Decision:
    return _answer(
        case, Decision(DecisionAction.HOLD, reason, gate, reconcile_at=case.facts.deadline_at, detail=detail)
    )


def _requeue(case: _Case, gate: int, mode: ResumeMode, reason: Reason) -> Decision:
    """Send it to the next runner, unless a setting or a spent budget asks a person first."""
    hold = _hold_before_requeue(case, gate, mode)
    if hold is not None:
        return hold
    if _lacks_capability(case) and reason is not Reason.PROVIDER_RETRY:
        reason = Reason.CAPABILITY_MISSING
    return _answer(
        case,
        Decision(
            DecisionAction.REQUEUE,
            reason,
            gate,
            mode=mode,
            not_before=after(case.now, _backoff_s(case)),
            reconcile_at=case.facts.deadline_at,
            spends_redispatch=gate == 11 and mode is ResumeMode.REDISPATCH,
        ),
    )


def _hold_before_requeue(case: _Case, gate: int, mode: ResumeMode) -> Decision | None:
    facts, limits = case.facts, case.limits
    released = facts.hold_released_reason if facts.hold_released else None
    if (
        _lacks_capability(case)
        and facts.releases >= limits.releases_max
        and released != Reason.RELEASES_EXHAUSTED.value
    ):
        return _hold(case, gate, Reason.RELEASES_EXHAUSTED, "no runner that came had what it needs")
    if (
        limits.hold_unknown_effects
        and CallDispatch.STARTED in case.inspection.dispatch.values()
        and released != Reason.UNKNOWN_EFFECT.value
    ):
        return _hold(case, gate, Reason.UNKNOWN_EFFECT, "a tool was started and left no result")
    if (
        limits.hold_unlogged
        and mode is ResumeMode.REDISPATCH
        and case.inspection.unlogged_calls_possible
        and released != Reason.UNLOGGED_CALLS_POSSIBLE.value
        # One that a release bought and no attempt has begun yet.
        and facts.redispatches >= facts.redispatches_granted
    ):
        return _hold(case, gate, Reason.UNLOGGED_CALLS_POSSIBLE, "its writer may have run tools without a record")
    return None


def _lacks_capability(case: _Case) -> bool:
    return (
        case.facts.current_attempt is None
        and case.attempt is not None
        and case.attempt.end is AttemptEnd.RELEASED
        and case.attempt.end_reason == END_CAPABILITY_MISSING
    )


def _backoff_s(case: _Case) -> float:
    found = _backoff(case)
    return 0.0 if found is None else backoff(*found, case.limits, jitter=case.jitter)


def _backoff(case: _Case) -> tuple[BackoffKind, int] | None:
    facts, limits, counters = case.facts, case.limits, case.counters
    if facts.retried or facts.hold_released:
        # A person asked for it now.
        return None
    if case.provider_error:
        return BackoffKind.PROVIDER, counters.provider_errors
    if _lacks_capability(case):
        return BackoffKind.CAPABILITY, facts.releases
    if case.attempt_end in CRASH_ENDS or case.attempt_end is AttemptEnd.OVERRUN:
        # Attempts that died before they began count nowhere else, and must not be burnt in seconds.
        failures = max(counters.crashes_in_row, facts.attempts_spent - facts.attempts_begun)
        return BackoffKind.CRASH, failures
    if case.attempt_end is AttemptEnd.RELEASED and facts.releases >= limits.releases_max:
        # No longer given back: a runner that claims and releases in a loop would spend all attempts at once.
        return BackoffKind.CRASH, facts.attempts_spent
    return None


def _answer(case: _Case, decision: Decision) -> Decision:
    complete = _complete(case, decision)
    return _advise(complete) if case.is_mirrored and decision.gate >= 5 else complete


def _complete(case: _Case, decision: Decision) -> Decision:
    return replace(
        decision,
        attempt_end=case.fenced,
        counters=case.counters,
        evidence=_evidence(case),
        provider_error_attempt_id=case.counted_attempt_id,
    )


def _advise(decision: Decision) -> Decision:
    return replace(
        decision,
        action=DecisionAction.ADVISE,
        advice=decision.action,
        counters=None,
        not_before=None,
        reconcile_at=None,
        spends_redispatch=False,
        provider_error_attempt_id=None,
    )


def _evidence(case: _Case) -> tuple[str, ...]:
    error_entry_id = case.evidence.error_entry_id if case.provider_error else None
    return _unique(case.inspection.deciding_entry_id, case.inspection.input_entry_id, error_entry_id)


def _unique(*entry_ids: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry_id for entry_id in entry_ids if entry_id is not None))
