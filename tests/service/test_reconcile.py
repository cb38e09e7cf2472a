"""One pass over rows in every state that a crash may leave, gate by gate, on both databases."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits, SessionEntry
from reconciler.core.subturn import MARKER_TEXT_UNKNOWN
from reconciler.service.deciding import Judge, preview
from reconciler.service.reconcile import PassReport, reconcile_once
from reconciler.store.engine import begin
from reconciler.store.schema import sources, submissions
from tests.support.scenes import Scene, chain, result, said, turn

PATIENT = Judge(connected_for_s=lambda: 3600.0)
NONE_SETTLED = {"completed": 0, "failed": 0, "aborted": 0}


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


def run_pass(scene: Scene, **options: Any) -> PassReport:
    return reconcile_once(scene.engine, **{"judge": PATIENT, "jitter": lambda: 0.0, **options})


def outcome_of(scene: Scene, session_id: str = "s", submission_id: str = "A") -> tuple[str, str | None, str | None]:
    row = scene.row(session_id, submission_id)
    return row.status, row.outcome, row.outcome_reason


# --- gate 0, gate 2: what is left alone ------------------------------------------------------------------------------


def test_a_standing_decision_is_left_alone_and_due_at_its_deadline(scene: Scene) -> None:
    deadline = scene.now() + timedelta(hours=1)
    scene.session(given=turn("A"))
    scene.submission(
        decision_action="requeue",
        decision_reason="redispatch",
        decision_detail="input_only",
        decision_revision=0,
        decision_version=1,
        not_before=scene.now(),
        deadline_at=deadline,
    )
    report = run_pass(scene)
    row = scene.row()
    assert (1, 0) == (report.left_alone, report.written)
    assert (0, deadline, 0) == (row.revision, row.reconcile_at, len(scene.decision_rows()))


def test_a_live_lease_is_left_alone_and_pushed_to_its_end(scene: Scene) -> None:
    scene.session(given=turn("A"))
    attempt = scene.running(lease_s=30)
    report = run_pass(scene)
    assert 1 == report.left_alone
    assert scene.attempt_row(attempt).lease_expires_at == scene.row().reconcile_at
    assert ("running", 0) == (scene.row().status, scene.row().revision)


def test_parked_work_waits_for_its_answer(scene: Scene) -> None:
    until = scene.now() + timedelta(days=1)
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.submission(status="waiting", parked_at=scene.now(), parked_until=until)
    assert 1 == run_pass(scene).left_alone
    assert ("waiting", until) == (scene.row().status, scene.row().reconcile_at)


# --- gate 1: adoption ------------------------------------------------------------------------------------------------


def settlement_payload(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "reason": "settled_by_runner", "answer_entry_id": "a1", "recovered": False}


def test_a_settlement_entry_is_adopted_with_what_it_says(scene: Scene) -> None:
    given = turn("A", said("a1"), SessionEntry("submission-settled:A", kind="submission_settled", submission_id="A"))
    scene.session(given=given, payloads={"submission-settled:A": settlement_payload("failed")})
    attempt = scene.running(lease_s=30)
    report = run_pass(scene)
    row = scene.row()
    assert 1 == report.adopted
    assert ("settled", "failed", "settled_by_runner", False) == (
        row.status,
        row.outcome,
        row.outcome_reason,
        row.recovered,
    )
    assert 3 == len(scene.entry_rows())
    assert "settled" == scene.attempt_row(attempt).end_kind


# --- gate 3: finished work -------------------------------------------------------------------------------------------


def test_a_finished_answer_is_settled_completed_and_becomes_the_leaf(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1")))
    attempt = scene.running()
    report = run_pass(scene)
    row = scene.row()
    session = scene.session_row()
    assert NONE_SETTLED | {"completed": 1} == report.settled
    assert ("settled", "completed", "a1", "submission-settled:A", True) == (
        row.status,
        row.outcome,
        row.answer_entry_id,
        row.settlement_entry_id,
        row.recovered,
    )
    assert ("submission-settled:A", 3, 3) == (session.leaf_entry_id, session.version, session.last_seq)
    assert ("a1", "submission_settled") == (scene.entry_rows()[-1].parent_id, scene.entry_rows()[-1].kind)
    assert "crashed" == scene.attempt_row(attempt).end_kind
    payload = scene.payload("submission-settled:A")
    assert {"outcome": "completed", "reason": "completed", "detail": "response_finished", "recovered": True} == {
        name: payload[name] for name in ("outcome", "reason", "detail", "recovered")
    }


def test_finished_work_is_completed_though_its_abort_was_requested_and_its_time_is_over(scene: Scene) -> None:
    past = scene.now() - timedelta(hours=1)
    scene.session(given=turn("A", said("a1")))
    scene.running(abort_requested_at=past, deadline_at=past, attempts_spent=99)
    run_pass(scene)
    assert ("settled", "completed", "completed") == outcome_of(scene)


def test_a_turn_that_the_person_left_behind_is_completed_without_an_answer(scene: Scene) -> None:
    given = turn("A", said("a1", "tool_use", "t1"), SessionEntry("b", role="user", submission_id="B"))
    scene.session(given=given)
    scene.submission()
    run_pass(scene)
    assert ("settled", "completed", "completed") == outcome_of(scene)
    assert scene.row().answer_entry_id is None


# --- gate 4: aborts --------------------------------------------------------------------------------------------------


def test_an_abort_closes_the_unresolved_calls_with_markers_below_which_it_settles(scene: Scene) -> None:
    given = turn("A", said("a1", "tool_use", "t1", "t2", "t3"), result("r2", "t2"))
    scene.session(given=given)
    scene.running(abort_requested_at=scene.now() - timedelta(hours=1))
    run_pass(scene)
    assert ("settled", "aborted", "abort_requested") == outcome_of(scene)
    tail = [(row.id, row.parent_id, row.role, row.tool_call_id, row.is_synthetic) for row in scene.entry_rows()[3:]]
    assert [
        ("tool-marker:2:a1:0", "r2", "tool_result", "t1", True),
        ("tool-marker:2:a1:2", "tool-marker:2:a1:0", "tool_result", "t3", True),
        ("submission-settled:A", "tool-marker:2:a1:2", None, None, True),
    ] == tail
    assert MARKER_TEXT_UNKNOWN == scene.payload("tool-marker:2:a1:0")["text"]
    assert ("submission-settled:A", 6) == (scene.session_row().leaf_entry_id, scene.session_row().version)


def test_a_turn_that_a_person_stopped_is_aborted(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "aborted", stopped_by="user")))
    scene.running()
    run_pass(scene)
    assert ("settled", "aborted", "stopped_by_user") == outcome_of(scene)


def test_an_abort_of_held_work_ends_the_hold(scene: Scene) -> None:
    now = scene.now()
    scene.session(given=turn("A"))
    scene.submission(held_at=now, held_reason="held_by_operator", abort_requested_at=now)
    run_pass(scene)
    assert ("settled", "aborted", "abort_requested") == outcome_of(scene)
    assert scene.row().held_at is None


# --- gate 5: deadlines -----------------------------------------------------------------------------------------------


def test_what_never_began_fails_at_its_deadline_beside_the_leaf(scene: Scene) -> None:
    scene.session(given=chain(SessionEntry("b", role="user", submission_id="B"), said("b1")))
    scene.submission(deadline_at=scene.now() - timedelta(seconds=1))
    run_pass(scene)
    assert ("settled", "failed", "deadline_exceeded") == outcome_of(scene)
    assert ("b1", "b1") == (scene.entry_rows()[-1].parent_id, scene.session_row().leaf_entry_id)


def test_the_first_submission_of_an_empty_session_can_fail_and_the_next_one_begins_below_it(scene: Scene) -> None:
    scene.session()
    scene.submission(deadline_at=scene.now() - timedelta(seconds=1))
    run_pass(scene)
    assert ("settled", "failed", "deadline_exceeded") == outcome_of(scene)
    # Entries without a leaf would be damage.
    assert (None, "submission-settled:A") == (scene.entry_rows()[0].parent_id, scene.session_row().leaf_entry_id)
    scene.submission("s", "B")
    run_pass(scene)
    assert "first_try" == scene.row("s", "B").decision_reason


def test_a_park_that_nobody_answered_expires(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.submission(status="waiting", parked_at=scene.now(), parked_until=scene.now() - timedelta(seconds=1))
    run_pass(scene)
    assert ("settled", "failed", "park_expired") == outcome_of(scene)
    assert "tool-marker:2:a1:0" in [row.id for row in scene.entry_rows()]


# --- gate 6: damage, moved leaves ------------------------------------------------------------------------------------


def test_a_damaged_session_is_held_and_stays_held(scene: Scene) -> None:
    scene.session(given=[SessionEntry("a1", "gone", role="assistant", stop_reason="error")])
    attempt = scene.running()
    report = run_pass(scene)
    row = scene.row()
    assert 1 == report.held
    assert ("queued", "integrity_hold", None) == (row.status, row.held_reason, row.reconcile_at)
    assert row.held_at is not None
    assert ("crashed", 1) == (scene.attempt_row(attempt).end_kind, len(scene.entry_rows()))
    assert 0 == run_pass(scene).scanned


def test_an_abort_in_a_damaged_session_hangs_below_the_newest_entry_that_can_be_read(scene: Scene) -> None:
    given = chain(SessionEntry("in", role="user", submission_id="A"), said("a1", "error"))
    scene.session(given=[*given, SessionEntry("torn", "a1", kind="unreadable")])
    scene.submission(abort_requested_at=scene.now())
    run_pass(scene)
    assert ("settled", "aborted", "abort_requested") == outcome_of(scene)
    assert ("a1", "torn") == (scene.entry_rows()[-1].parent_id, scene.session_row().leaf_entry_id)


def moved(scene: Scene, hours: float) -> None:
    given = turn("A", said("a1", "tool_use", "t1"))
    scene.session(
        given=[SessionEntry("root", role="system"), *given],
        leaf="root",
        leaf_moved_at=scene.now() - timedelta(hours=hours),
        leaf_moved_version=3,
    )
    scene.submission()


def test_a_leaf_that_was_just_moved_is_waited_for(scene: Scene) -> None:
    moved(scene, hours=0.5)
    assert 1 == run_pass(scene).left_alone
    assert scene.session_row().leaf_moved_at + timedelta(hours=1) == scene.row().reconcile_at


def test_a_leaf_that_stays_moved_aborts_without_touching_it(scene: Scene) -> None:
    moved(scene, hours=2)
    run_pass(scene)
    assert ("settled", "aborted", "leaf_moved") == outcome_of(scene)
    assert "root" == scene.session_row().leaf_entry_id


def test_a_running_attempt_whose_leaf_was_moved_is_fenced_off_while_it_waits(scene: Scene) -> None:
    given = turn("A", said("a1", "tool_use", "t1"))
    scene.session(
        given=[SessionEntry("root", role="system"), *given],
        leaf="root",
        leaf_moved_at=scene.now(),
        leaf_moved_version=3,
    )
    attempt = scene.running()
    run_pass(scene)
    row = scene.row()
    assert ("queued", "wait", None) == (row.status, row.decision_action, row.not_before)
    assert "crashed" == scene.attempt_row(attempt).end_kind
    assert row.reconcile_at > scene.now()


# --- gates 7 to 9: what is spent -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begun", "reason"), [(0, "never_begun"), (20, "attempts_exhausted")])
def test_spent_attempts_fail_it(scene: Scene, begun: int, reason: str) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.running(attempts_spent=20, attempts_begun=begun, attempt={"begun_at": scene.now() if begun else None})
    run_pass(scene)
    assert ("settled", "failed", reason) == outcome_of(scene)


def test_the_last_crash_in_a_row_fails_it_and_names_the_call_in_flight(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.running(crashes_in_row=4)
    run_pass(scene)
    assert ("settled", "failed", "crash_loop") == outcome_of(scene)
    assert 5 == scene.row().crashes_in_row
    assert "a1" in json.loads(scene.decision_rows()[-1].evidence)
    assert "t1" in scene.decision_rows()[-1].note


def test_a_crash_with_progress_starts_the_row_of_crashes_again(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.running(crashes_in_row=4, attempt={"progress_at": scene.now()})
    run_pass(scene)
    assert ("queued", 0) == (scene.row().status, scene.row().crashes_in_row)


@pytest.mark.parametrize(("retryable", "expected"), [(False, "settled"), (True, "queued"), (None, "queued")])
def test_a_failed_attempt_is_paid_by_the_provider_budget_or_rejected(
    scene: Scene, retryable: bool | None, expected: str
) -> None:
    scene.session(given=turn("A"))
    scene.submission(last_attempt_id="at", attempts_spent=1, attempts_begun=1, provider_errors=1)
    scene.attempt(
        "s", "A", "at", ended_at=scene.now(), end_kind="failed", retryable=retryable, provider_error_counted=True
    )
    run_pass(scene)
    row = scene.row()
    assert (expected, 1) == (row.status, row.provider_errors)
    if expected == "settled":
        assert "provider_rejected" == row.outcome_reason
    else:
        assert "provider_retry" == row.decision_reason
        assert row.not_before > scene.now()


def test_an_error_that_a_crashed_attempt_recorded_is_counted_once(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "error", attempt_id="at-1")))
    attempt = scene.running()
    run_pass(scene)
    assert (1, True) == (scene.row().provider_errors, scene.attempt_row(attempt).provider_error_counted)
    with begin(scene.engine) as conn:
        # As a retry leaves it: the decision stands no more, and the row is due.
        conn.execute(sa.update(submissions).values(revision=9, not_before=None, reconcile_at=scene_past(scene)))
    run_pass(scene)
    assert (1, "provider_retry") == (scene.row().provider_errors, scene.row().decision_reason)


def scene_past(scene: Scene) -> Any:
    return sa.literal(scene.now() - timedelta(seconds=1), submissions.c.reconcile_at.type)


# --- gates 10 and 11: another try ------------------------------------------------------------------------------------


def test_what_never_began_is_requeued_fresh(scene: Scene) -> None:
    scene.session()
    scene.running(attempt={"begun_at": None}, attempts_begun=0)
    run_pass(scene)
    row = scene.row()
    assert ("queued", "first_try", "input_missing") == (row.status, row.decision_reason, row.decision_detail)
    assert "fresh" == json.loads(row.plan)["mode"]


def test_an_unresolved_call_is_requeued_with_a_plan_and_nothing_is_appended(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1", "t2"), result("r1", "t1")))
    attempt = scene.running()
    report = run_pass(scene)
    row, plan = scene.row(), json.loads(scene.row().plan)
    assert 1 == report.requeued
    assert ("queued", "resume", None, attempt) == (
        row.status,
        row.decision_reason,
        row.current_attempt_id,
        row.last_attempt_id,
    )
    assert row.not_before is not None
    assert ("repair_tools", ["t2"]) == (plan["mode"], [call["call_id"] for call in plan["calls_to_close"]])
    assert 3 == len(scene.entry_rows())


def test_an_uncertain_request_is_sent_once_more_and_no_further(scene: Scene) -> None:
    scene.session("once", turn("A"))
    scene.session("twice", turn("A"))
    scene.running("once")
    scene.running("twice", redispatches=1)
    run_pass(scene)
    assert ("queued", "redispatch") == (scene.row("once").status, scene.row("once").decision_reason)
    assert ("settled", "failed", "uncertain_exhausted") == outcome_of(scene, "twice")


def test_a_clean_release_before_an_answer_costs_no_redispatch(scene: Scene) -> None:
    scene.session(given=turn("A"))
    scene.submission(last_attempt_id="at", attempts_begun=1, redispatches=1)
    scene.attempt("s", "A", "at", ended_at=scene.now(), end_kind="released")
    run_pass(scene)
    assert ("clean_release", "fresh") == (scene.row().decision_reason, json.loads(scene.row().plan)["mode"])


def test_an_answered_park_is_requeued_approved_and_its_answer_is_used_up(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.submission(last_attempt_id="at", attempts_begun=1, pending_calls='["t1"]', unparked_at=scene.now(), parks=1)
    scene.attempt("s", "A", "at", ended_at=scene.now(), end_kind="parked")
    run_pass(scene)
    row = scene.row()
    assert ("approved", None, '["t1"]') == (row.decision_reason, row.unparked_at, row.pending_calls)
    assert [] == json.loads(row.plan)["calls_to_close"]


def test_a_partial_answer_is_requeued_with_a_second_retrieval_planned_from_its_text(scene: Scene) -> None:
    partial = "The deployment of payment-gateway is described in runbook/failover and needs attention"
    scene.session(
        given=turn("A", said("a1", "aborted")),
        payloads={"a1": {"content": [{"type": "text", "text": partial}]}, "in": "what about the deployment"},
    )
    scene.running(entity_hints='["service/api"]', fact_count=2)
    run_pass(scene)
    plan = json.loads(scene.row().plan)
    assert ("continue_partial", "a1", "attempted_empty", 2) == (
        plan["mode"],
        plan["partial_entry_id"],
        plan["sub_turn"]["outcome"],
        plan["sub_turn"]["initial_fact_count"],
    )
    assert "runbook/failover" in plan["sub_turn"]["proposed_hints"]
    assert "deployment" not in plan["sub_turn"]["rescore_tokens"]


def test_a_submission_is_judged_by_its_own_limits(scene: Scene) -> None:
    scene.session(given=turn("A"))
    scene.running(redispatches=1, limits='{"redispatches_max":2}')
    run_pass(scene)
    assert "redispatch" == scene.row().decision_reason


# --- mirrored sessions -----------------------------------------------------------------------------------------------


def test_a_mirrored_session_is_settled_beside_its_leaf(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1")), origin="mirrored")
    scene.submission()
    run_pass(scene)
    assert ("settled", "completed", "completed") == outcome_of(scene)
    assert ("a1", "a1", 3) == (
        scene.entry_rows()[-1].parent_id,
        scene.session_row().leaf_entry_id,
        scene.session_row().version,
    )


def test_an_abort_of_a_mirrored_submission_writes_no_markers(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")), origin="mirrored")
    scene.submission(abort_requested_at=scene.now())
    run_pass(scene)
    assert ("settled", "aborted", "abort_requested") == outcome_of(scene)
    assert ["in", "a1", "submission-settled:A"] == [row.id for row in scene.entry_rows()]


def test_a_mirrored_submission_that_would_be_requeued_gets_advice_with_its_plan(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")), origin="mirrored")
    scene.submission()
    report = run_pass(scene)
    row, decision = scene.row(), scene.decision_rows()[-1]
    assert 1 == report.advised
    assert ("queued", "advise", None, None) == (row.status, row.decision_action, row.not_before, row.reconcile_at)
    assert ("advise", "requeue", "resume") == (decision.action, decision.advice, decision.reason)
    assert "repair_tools" == json.loads(row.plan)["mode"]
    assert 0 == run_pass(scene).scanned


def test_a_damaged_mirrored_session_is_shown_as_held(scene: Scene) -> None:
    scene.session(given=turn("A"), leaf="gone", origin="mirrored")
    scene.submission()
    assert 1 == run_pass(scene).held
    assert ("integrity_hold", "advise") == (scene.row().held_reason, scene.row().decision_action)


def test_a_response_that_the_source_may_still_be_writing_is_waited_for(scene: Scene) -> None:
    now = scene.now()
    with begin(scene.engine) as conn:
        conn.execute(
            sources.insert().values(
                id="src",
                format="claude_code",
                locator="/a.jsonl",
                bytes_read=1,
                lines_read=1,
                quiet_since=now,
                first_import_at=now,
                last_import_at=now,
            )
        )
    scene.session(given=turn("A", said("a1", None)), origin="mirrored", source_id="src")
    scene.submission()
    assert 1 == run_pass(scene).left_alone
    assert now + timedelta(seconds=120) == scene.row().reconcile_at
    with begin(scene.engine) as conn:
        conn.execute(
            sa.update(sources).values(quiet_since=sa.literal(now - timedelta(hours=1), sources.c.quiet_since.type))
        )
        conn.execute(sa.update(submissions).values(reconcile_at=scene_past(scene)))
    run_pass(scene)
    assert ("settled", "completed", "completed") == outcome_of(scene)


def test_many_prompts_of_one_mirrored_session_are_settled_in_one_batch(scene: Scene) -> None:
    given: list[SessionEntry] = []
    for number in range(20):
        given += chain(
            SessionEntry(f"in{number}", role="user", submission_id=f"P{number}"),
            said(f"a{number}"),
            below=given[-1].id if given else None,
        )
    scene.session(given=given, origin="mirrored")
    for number in range(20):
        scene.submission("s", f"P{number}")
    report = run_pass(scene)
    assert (20, 1) == (report.settled["completed"], report.batches)
    rows = scene.entry_rows()
    assert list(range(1, 61)) == [row.seq for row in rows]
    assert {"a19"} == {row.parent_id for row in rows[40:]}
    assert (60, 60, "a19") == (
        scene.session_row().version,
        scene.session_row().last_seq,
        scene.session_row().leaf_entry_id,
    )


# --- leases: who may judge -------------------------------------------------------------------------------------------


def test_a_lease_that_ended_during_an_outage_is_not_judged_at_once(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.running()
    report = run_pass(scene, judge=Judge(connected_for_s=lambda: 1.0))
    assert (1, 10.0, 1) == (report.unjudged, report.judge_after_s, report.left_alone)
    assert "running" == scene.row().status
    assert scene.row().reconcile_at > scene.now()


def test_that_others_wrote_since_a_lease_ended_is_no_proof_after_an_outage(scene: Scene) -> None:
    # The first owner to beat after an outage must not condemn those whose beat is still to come.
    scene.session("dead", turn("A", said("a1", "tool_use", "t1")))
    scene.session("alive", turn("A"))
    scene.running("dead", lease_s=-60)
    scene.running("alive", lease_s=30)
    run_pass(scene, judge=Judge(connected_for_s=lambda: 1.0))
    assert ["running", "running"] == [scene.row(name).status for name in ("dead", "alive")]


def test_a_process_that_is_proven_dead_is_fenced_off_before_its_lease_ends(scene: Scene) -> None:
    from reconciler.service.liveness import this_process

    here = this_process()
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.running(
        lease_s=30,
        attempt={
            "machine_id": here.machine_id,
            "boot_id": here.boot_id,
            "pid_namespace": here.pid_namespace,
            "pid": here.pid,
            # The same number, another process.
            "process_start": "1",
        },
    )
    run_pass(scene, judge=Judge(connected_for_s=lambda: 0.0))
    assert "queued" == scene.row().status


# --- preview ---------------------------------------------------------------------------------------------------------


def test_a_preview_says_what_the_next_pass_does_and_writes_nothing(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1")))
    scene.running()
    before = scene.dump()
    found = preview(scene.engine, "s", "A", judge=PATIENT)
    assert found is not None
    assert ("requeue", "resume") == (found.decision.action, found.decision.reason)
    assert found.plan is not None
    assert "tool_calls_unresolved" == found.inspection.detail
    assert before == scene.dump()
    run_pass(scene)
    assert scene.row().plan == found.plan.to_json()


def test_there_is_no_preview_of_what_is_settled_or_missing(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1")))
    scene.submission()
    run_pass(scene)
    assert preview(scene.engine, "s", "A") is None
    assert preview(scene.engine, "s", "B") is None


def test_a_limit_ends_the_pass_and_says_that_there_may_be_more(scene: Scene) -> None:
    for number in range(3):
        scene.session(f"s{number}", turn("A", said("a1")))
        scene.submission(f"s{number}")
    assert (2, True) == ((report := run_pass(scene, limit=2)).scanned, report.more)
    assert (1, False) == ((report := run_pass(scene, limits=Limits(scan_batch_max=1))).scanned, report.more)
