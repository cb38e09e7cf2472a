"""What holds for every row and every answer of the classifier, and over whole lives of a submission."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from hypothesis import assume, given
from hypothesis import strategies as st

from reconciler.core.due import after, due_at
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
from reconciler.core.policy import counters_after, decide, event_of
from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Outcome,
    Reason,
    ResumeMode,
    SessionOrigin,
    SubmissionStatus,
    next_status,
)
from tests.support.policy import NOW, at, attempt, row, seen

# --- every row, every answer ---------------------------------------------------------------------------------------

# Around the instants that the limits below make interesting, and far away from them.
seconds = st.sampled_from([-1e7, -9000, -3600, -61, -60, -59, -1, 0, 1, 59, 60, 61, 3600, 9000, 1e7])
instants = seconds.map(at)
maybe_instants = st.none() | instants
counts = st.integers(0, 25)

limits_ = st.builds(
    Limits,
    attempts_max=st.integers(10, 20),
    crashes_in_row_max=st.integers(1, 5),
    provider_errors_max=st.integers(1, 8),
    redispatches_max=st.integers(0, 2),
    releases_max=st.integers(0, 20),
    grace_s=st.sampled_from([0.0, 60.0]),
    hold_unlogged=st.booleans(),
    hold_unknown_effects=st.booleans(),
)

attempts = st.builds(
    AttemptFacts,
    attempt_id=st.just("a1"),
    number=st.just(1),
    claimed_at=instants,
    lease_expires_at=instants,
    begun=st.booleans(),
    made_progress=st.booleans(),
    last_progress_at=maybe_instants,
    retryable=st.none() | st.booleans(),
    end_reason=st.sampled_from([None, "deploy", END_CAPABILITY_MISSING]),
    beat_s=st.sampled_from([None, 1.0]),
    provider_error_counted=st.booleans(),
)
ended_attempts = st.builds(lambda held, end: replace(held, end=end), attempts, st.sampled_from(AttemptEnd))

hold_reasons = st.sampled_from([None, *(reason.value for reason in Reason)])

calls = st.builds(
    OpenCall,
    entry_id=st.just("msg"),
    position=st.just(0),
    call_id=st.sampled_from(["c1", "c2"]),
    dispatch=st.sampled_from(CallDispatch),
)

inspections = st.builds(
    seen,
    st.sampled_from(Detail),
    deciding_entry_id=st.sampled_from([None, "last"]),
    unresolved_tool_calls=st.sampled_from([(), ("c1",), ("c1", "c2")]),
    dispatch=st.dictionaries(st.just(("msg", 0)), st.sampled_from(CallDispatch), max_size=1),
    stopped_by=st.sampled_from([None, None, None, "user"]),
    unlogged_calls_possible=st.booleans(),
    integrity=st.sampled_from([None, "cycle"]),
)

evidences = st.none() | st.builds(
    TurnEvidence,
    open_calls=st.lists(calls, max_size=2).map(tuple),
    last_response_has_text=st.booleans(),
    error_entry_id=st.sampled_from([None, "err"]),
    error_retryable=st.none() | st.booleans(),
    call_in_flight=st.none() | calls,
)


@st.composite
def rows(draw: st.DrawFn) -> SubmissionFacts:
    """Return any row that the schema's CHECKs allow."""
    origin = draw(st.sampled_from([SessionOrigin.NATIVE, SessionOrigin.NATIVE, SessionOrigin.MIRRORED]))
    # Nobody claims or parks a mirrored submission.
    native = origin is SessionOrigin.NATIVE
    status = draw(st.sampled_from(SubmissionStatus if native else [SubmissionStatus.QUEUED, SubmissionStatus.SETTLED]))
    is_running, is_waiting = status is SubmissionStatus.RUNNING, status is SubmissionStatus.WAITING
    held_at = None if is_running else draw(st.none() | instants)
    return SubmissionFacts(
        session_id="s",
        submission_id="p",
        status=status,
        origin=origin,
        decision_stands=draw(st.booleans()),
        settlement_outcome=draw(st.none() | st.none() | st.sampled_from(Outcome)),
        abort_requested_at=draw(maybe_instants),
        deadline_at=draw(maybe_instants),
        held_at=held_at,
        held_reason=None if held_at is None else draw(hold_reasons),
        hold_released=draw(st.booleans()),
        hold_released_reason=draw(hold_reasons),
        retried=draw(st.booleans()),
        parked_until=draw(instants) if is_waiting else None,
        unparked=draw(st.booleans()),
        pending_calls=draw(st.sampled_from([(), ("c1",)])),
        leaf_moved_at=draw(maybe_instants),
        current_attempt=draw(attempts) if is_running else None,
        last_attempt=draw(st.none() | ended_attempts) if native else None,
        last_begun_end=draw(st.none() | st.sampled_from(AttemptEnd)),
        owner_dead=draw(st.booleans()),
        may_judge_lease=draw(st.booleans()),
        attempts_spent=draw(counts),
        attempts_begun=draw(counts),
        attempts_granted=draw(st.integers(0, 2)),
        crashes_in_row=draw(counts),
        provider_errors=draw(counts),
        redispatches=draw(st.integers(0, 3)),
        redispatches_granted=draw(st.integers(0, 2)),
        releases=draw(counts),
        source_quiet_at=draw(maybe_instants),
        response_may_grow=draw(st.booleans()),
        inspection_error=draw(st.sampled_from([None, None, None, "boom"])),
    )


def apply(facts: SubmissionFacts, decision: Decision, now: datetime) -> SubmissionFacts:
    """Return the row as the decision leaves it: what a store has to write, as a value."""
    event = event_of(decision)
    status = facts.status if event is None else next_status(facts.status, event)
    if not decision.is_written:
        return facts
    current = facts.current_attempt
    counters = decision.counters or Counters(facts.crashes_in_row, facts.provider_errors)
    last = facts.last_attempt
    if current is not None:
        last = replace(current, end=decision.attempt_end)
    if last is not None and decision.provider_error_attempt_id == last.attempt_id:
        last = replace(last, provider_error_counted=True)
    is_wait = decision.action is DecisionAction.WAIT
    ends_park = status is not SubmissionStatus.WAITING
    return replace(
        facts,
        status=status,
        decision_stands=not is_wait,
        held_at=now if decision.holds else facts.held_at if is_wait else None,
        held_reason=decision.reason.value if decision.holds else facts.held_reason if is_wait else None,
        hold_released=facts.hold_released and is_wait,
        hold_released_reason=facts.hold_released_reason if is_wait else None,
        retried=facts.retried and is_wait,
        parked_until=None if ends_park else facts.parked_until,
        unparked=False if ends_park else facts.unparked,
        current_attempt=None,
        last_attempt=last,
        last_begun_end=decision.attempt_end if current is not None and current.begun else facts.last_begun_end,
        crashes_in_row=counters.crashes_in_row,
        provider_errors=counters.provider_errors,
    )


@given(inspections, rows(), limits_, st.floats(0, 1), evidences)
def test_every_row_gets_a_decision_that_leaves_it_undue_and_within_the_table(
    inspection: Inspection,
    facts: SubmissionFacts,
    limits: Limits,
    jitter: float,
    evidence: TurnEvidence | None,
) -> None:
    decision = decide(inspection, facts, NOW, limits, jitter=jitter, evidence=evidence)
    assert decision.reconcile_at is None or decision.reconcile_at > NOW
    after_it = apply(facts, decision, NOW)  # raises where the table has no such event
    assert (decision.attempt_end is not None) == (facts.current_attempt is not None and decision.is_written)

    means = decision.advice or decision.action
    assert (decision.outcome is not None) == (means in (DecisionAction.SETTLE, DecisionAction.ADOPT))
    assert (decision.mode is not None) == (means is DecisionAction.REQUEUE)
    assert (decision.not_before is not None) == (decision.action is DecisionAction.REQUEUE)
    assert decision.not_before is None or NOW <= decision.not_before <= at(limits.provider_backoff_max_s)
    assert not decision.spends_redispatch or decision.mode is ResumeMode.REDISPATCH
    assert after_it.status is not SubmissionStatus.RUNNING or not decision.is_written


@given(inspections, rows(), limits_, evidences)
def test_nothing_waits_for_ever(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    decision = decide(inspection, facts, NOW, limits, evidence=evidence)
    if decision.reconcile_at is None:
        left = apply(facts, decision, NOW)
        is_held = left.held_at is not None and not left.hold_released
        assert left.status is SubmissionStatus.SETTLED or left.decision_stands or is_held


@given(inspections, rows(), limits_, evidences)
def test_a_second_decision_on_the_same_record_writes_nothing(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    left = apply(facts, decide(inspection, facts, NOW, limits, evidence=evidence), NOW)
    again = decide(inspection, left, NOW, limits, evidence=evidence)
    assert (again.action, again.is_written) == (DecisionAction.WAIT, False)


@given(inspections, rows(), limits_, evidences)
def test_a_native_row_that_is_asked_about_too_early_keeps_its_instant(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    decision = decide(inspection, facts, NOW, limits, evidence=evidence)
    by_itself = due_at(facts, NOW, limits)
    is_early = by_itself is not None and by_itself > NOW
    if is_early and not decision.is_written and facts.origin is SessionOrigin.NATIVE:
        assert by_itself == decision.reconcile_at


@given(inspections, rows(), limits_, evidences)
def test_finished_work_is_never_run_again_and_nothing_else_is_called_completed(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    decision = decide(inspection, facts, NOW, limits, evidence=evidence)
    is_finished = inspection.state is SubmissionInspection.COMPLETED and facts.inspection_error is None
    if is_finished and decision.gate >= 3:
        assert (decision.action, decision.outcome) == (DecisionAction.SETTLE, Outcome.COMPLETED)
    if decision.action is DecisionAction.SETTLE and decision.outcome is Outcome.COMPLETED:
        assert is_finished


@given(
    st.sampled_from([detail for detail in Detail if seen(detail).state is SubmissionInspection.COMPLETED]),
    rows(),
    limits_,
)
def test_completed_beats_budgets_deadlines_and_aborts(detail: Detail, facts: SubmissionFacts, limits: Limits) -> None:
    idle = replace(
        facts,
        status=SubmissionStatus.QUEUED,
        current_attempt=None,
        parked_until=None,
        decision_stands=False,
        inspection_error=None,
        settlement_outcome=None,
        response_may_grow=False,
    )
    assert Outcome.COMPLETED is decide(seen(detail), idle, NOW, limits).outcome


@given(inspections, rows(), limits_, evidences)
def test_an_abort_reaches_an_outcome_within_the_grace(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    assume(facts.status is not SubmissionStatus.SETTLED)
    asked = replace(facts, abort_requested_at=facts.abort_requested_at or NOW)
    assert asked.abort_requested_at is not None
    end = after(asked.abort_requested_at, limits.grace_s)
    decision = decide(inspection, asked, NOW, limits, evidence=evidence)
    if decision.action is DecisionAction.WAIT:
        assert decision.reconcile_at is not None
        assert decision.reconcile_at <= end
    else:
        assert decision.action in (DecisionAction.SETTLE, DecisionAction.ADOPT)
    later = decide(inspection, asked, max(NOW, end), limits, evidence=evidence)
    assert later.outcome is not None


@given(inspections, rows(), limits_, evidences)
def test_no_counter_rises_above_its_maximum_or_falls_without_progress(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    counters = decide(inspection, facts, NOW, limits, evidence=evidence).counters
    if counters is None:
        return
    assert facts.provider_errors <= counters.provider_errors <= max(facts.provider_errors, limits.provider_errors_max)
    assert counters.crashes_in_row <= max(facts.crashes_in_row, limits.crashes_in_row_max)
    current = facts.current_attempt
    assert counters.crashes_in_row >= facts.crashes_in_row or (current is not None and current.made_progress)


@given(inspections, rows(), limits_, evidences)
def test_a_mirrored_session_is_settled_by_proof_or_request_only(
    inspection: Inspection, facts: SubmissionFacts, limits: Limits, evidence: TurnEvidence | None
) -> None:
    assume(facts.origin is SessionOrigin.MIRRORED)
    decision = decide(inspection, facts, NOW, limits, evidence=evidence)
    assert decision.action not in (DecisionAction.REQUEUE, DecisionAction.HOLD)
    if decision.action is DecisionAction.SETTLE:
        assert decision.reason in (Reason.COMPLETED, Reason.ABORT_REQUESTED, Reason.STOPPED_BY_USER)
    if decision.action is DecisionAction.ADVISE:
        assert decision.reconcile_at is None


# --- whole lives ---------------------------------------------------------------------------------------------------

LIFE_LIMITS = Limits(attempts_max=6, crashes_in_row_max=3, provider_errors_max=4, releases_max=4, parks_max=4)

ways_to_end = st.lists(
    st.tuples(
        st.sampled_from(
            [AttemptEnd.CRASHED, AttemptEnd.STALLED, AttemptEnd.FAILED, AttemptEnd.RELEASED, AttemptEnd.PARKED]
        ),
        st.booleans(),  # had begun
        st.booleans(),  # made progress
        st.sampled_from([Detail.INPUT_MISSING, Detail.INPUT_ONLY, Detail.TOOL_RESULTS_READY, Detail.PROVIDER_ERROR]),
        st.booleans(),  # its last message was an error
    ),
    min_size=1,
    max_size=12,
)


@given(ways_to_end, limits_.map(lambda drawn: replace(LIFE_LIMITS, redispatches_max=drawn.redispatches_max)))
def test_a_submission_that_never_finishes_ends_within_its_budgets(
    ways: list[tuple[AttemptEnd, bool, bool, Detail, bool]], limits: Limits
) -> None:
    facts = row(decision_stands=True)
    parks = 0
    now = NOW
    rounds_max = limits.attempts_max + limits.releases_max + limits.parks_max
    for number in range(1, rounds_max + 2):
        end, begun, progress, detail, wrote_error = ways[number % len(ways)]
        progress = progress and begun
        wrote_error = wrote_error and begun
        claimed = attempt(
            attempt_id=f"a{number}", number=number, claimed_at=now, lease_expires_at=now, begun=begun,
            made_progress=progress,
        )  # fmt: skip
        spends_redispatch = begun and facts.redispatches < limits.redispatches_max
        facts = replace(
            facts,
            status=SubmissionStatus.RUNNING,
            current_attempt=claimed,
            decision_stands=False,
            attempts_spent=facts.attempts_spent + 1,
            attempts_begun=facts.attempts_begun + begun,
            redispatches=facts.redispatches + (spends_redispatch and detail is Detail.INPUT_ONLY),
        )
        if end is AttemptEnd.STALLED:
            later = after(now, limits.stall_s + limits.grace_s)
            facts = replace(facts, current_attempt=replace(claimed, lease_expires_at=after(later, 60)))
            now = later
        elif end is not AttemptEnd.CRASHED:
            facts, parks = _ended_by_runner(facts, claimed, end, limits, parks)
        evidence = TurnEvidence(error_entry_id="err" if wrote_error else None)
        decision = decide(seen(detail), facts, now, limits, evidence=evidence)
        assert facts.attempts_spent <= limits.attempts_max
        assert decision.is_written
        facts = apply(facts, decision, now)
        if facts.status is SubmissionStatus.SETTLED:
            assert decision.outcome is Outcome.FAILED
            return
        assert decision.not_before is not None
        now = max(now, decision.not_before)
    raise AssertionError(f"not ended after {rounds_max + 1} attempts: {facts}")


def _ended_by_runner(
    facts: SubmissionFacts, claimed: AttemptFacts, end: AttemptEnd, limits: Limits, parks: int
) -> tuple[SubmissionFacts, int]:
    counters = counters_after(Counters(facts.crashes_in_row, facts.provider_errors), claimed, end, limits)
    releases, spent = facts.releases, facts.attempts_spent
    if end is AttemptEnd.RELEASED and releases < limits.releases_max:
        releases, spent = releases + 1, spent - 1
    if end is AttemptEnd.PARKED and parks < limits.parks_max:
        parks, spent = parks + 1, spent - 1
    last = replace(claimed, end=end, retryable=True, provider_error_counted=end is AttemptEnd.FAILED)
    return (
        replace(
            facts,
            status=SubmissionStatus.QUEUED,
            current_attempt=None,
            last_attempt=last,
            last_begun_end=end if claimed.begun else facts.last_begun_end,
            attempts_spent=spent,
            releases=releases,
            crashes_in_row=counters.crashes_in_row,
            provider_errors=counters.provider_errors,
        ),
        parks,
    )


def test_a_loop_of_crashes_ends_as_one_and_not_as_spent_attempts() -> None:
    facts = row(decision_stands=True)
    limits = Limits()
    reasons = []
    for number in range(1, limits.attempts_max + 1):
        facts = replace(
            facts,
            status=SubmissionStatus.RUNNING,
            current_attempt=attempt(attempt_id=f"a{number}", number=number),
            attempts_spent=number,
            attempts_begun=number,
        )
        decision = decide(seen(Detail.TOOL_CALLS_UNRESOLVED), facts, NOW, limits)
        reasons.append(decision.reason)
        facts = apply(facts, decision, NOW)
        if facts.status is SubmissionStatus.SETTLED:
            break
    assert reasons == [Reason.RESUME] * 4 + [Reason.CRASH_LOOP]


def test_a_providers_outage_ends_after_its_budget_of_errors() -> None:
    facts = row(decision_stands=True)
    limits = Limits()
    reasons = []
    for number in range(1, limits.attempts_max + 1):
        claimed = attempt(attempt_id=f"a{number}", number=number)
        facts = replace(facts, status=SubmissionStatus.RUNNING, current_attempt=claimed, attempts_spent=number)
        facts, _ = _ended_by_runner(facts, claimed, AttemptEnd.FAILED, limits, 0)
        decision = decide(seen(Detail.INPUT_ONLY), replace(facts, decision_stands=False), NOW, limits)
        reasons.append(decision.reason)
        facts = apply(replace(facts, decision_stands=False), decision, NOW)
        if facts.status is SubmissionStatus.SETTLED:
            break
    assert reasons == [Reason.PROVIDER_RETRY] * 7 + [Reason.PROVIDER_ERRORS_EXHAUSTED]
