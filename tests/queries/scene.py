"""A small scene in which the answer to each operators' question is known; `T` counts from the moment of `make`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.store import schema as s
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin

DAY = 86_400.0


@dataclass(frozen=True)
class T:
    """The instant so many seconds after the scene was made; negative: before."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Near:
    """A number of seconds that the clock goes on counting while the test runs."""

    seconds: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self.seconds - 2 <= other <= self.seconds + 120

    __hash__ = None  # type: ignore[assignment]


Row = dict[str, Any]


def _pending(session: str, submission: str, ticket: int, admitted: float, **more: Any) -> Row:
    return {
        "session_id": session,
        "id": submission,
        "status": "queued",
        "ticket": ticket,
        "content_digest": "d",
        "admitted_at": T(admitted),
        "decision_count": 1,
        "decision_action": "admit",
        "decision_reason": "admitted",
        "decision_revision": 0,
        "decision_version": 0,
        **more,
    }


def _settled(submission: str, ticket: int, took: float, at: float, outcome: str, reason: str, **more: Any) -> Row:
    return {
        "session_id": "old",
        "id": submission,
        "status": "settled",
        "ticket": ticket,
        "content_digest": "d",
        "admitted_at": T(at - took),
        "settled_at": T(at),
        "outcome": outcome,
        "outcome_reason": reason,
        "recovered": True,
        "acknowledged_at": T(at + 1),
        "claims": 1,
        "attempts_spent": 1,
        **more,
    }


SUBMISSIONS: list[Row] = [
    _pending(
        "line",
        "a1",
        1,
        -600,
        status="running",
        current_attempt_id="at-a1",
        reconcile_at=T(300),
        deadline_at=T(1200),
        claims=2,
    ),
    _pending("line", "a2", 2, -500, not_before=T(-500)),
    _pending(
        "dead",
        "b1",
        1,
        -6000,
        status="running",
        current_attempt_id="at-b1",
        last_attempt_id="at-b0",
        reconcile_at=T(100),
        crashes_in_row=3,
        attempts_spent=4,
        claims=4,
        decision_action="requeue",
        decision_reason="resume",
    ),
    _pending(
        "quar",
        "c1",
        1,
        -9000,
        held_at=T(-7200),
        held_reason="integrity_hold",
        claims=1,
        decision_action="hold",
        decision_reason="integrity_hold",
        decision_detail="integrity_hold",
    ),
    _pending("quar", "c2", 2, -8000, not_before=T(-8000)),
    _pending(
        "due", "d1", 1, -40, reconcile_at=T(-30), decision_action=None, decision_reason=None, decision_revision=None
    ),
    _pending("ready", "e1", 1, -90, not_before=T(-90)),
    _pending(
        "block",
        "f1",
        1,
        -1000,
        last_attempt_id="at-f1",
        not_before=T(600),
        releases=2,
        claims=2,
        decision_action="requeue",
        decision_reason="capability_missing",
    ),
    _pending(
        "park",
        "g1",
        1,
        -3000,
        status="waiting",
        parked_at=T(-2900),
        parked_until=T(DAY),
        park_reason="approval",
        reconcile_at=T(DAY),
        claims=1,
    ),
    _pending(
        "back",
        "h1",
        1,
        -700,
        not_before=T(120),
        provider_errors=2,
        claims=3,
        decision_action="requeue",
        decision_reason="provider_retry",
    ),
    _pending(
        "stop",
        "i1",
        1,
        -60,
        status="running",
        current_attempt_id="at-i1",
        reconcile_at=T(65),
        abort_requested_at=T(-5),
        claims=1,
    ),
    _pending(
        "mirror",
        "m1",
        1,
        -4000,
        decision_action="advise",
        decision_reason="resume",
        decision_detail="tool_results_ready",
    ),
    _settled(
        "s1",
        1,
        60,
        -3600,
        "completed",
        "settled_by_runner",
        outcome_detail="response_finished",
        answer_entry_id="x1",
        recovered=False,
        acknowledged_at=None,
    ),
    _settled(
        "s2",
        2,
        300,
        -7200,
        "completed",
        "completed",
        outcome_detail="response_finished",
        answer_entry_id="x2",
        acknowledged_at=None,
    ),
    _settled("s3", 3, 10_000, -10_800, "failed", "crash_loop", claims=6, attempts_spent=6),
    _settled("s4", 4, 30, -2 * DAY, "failed", "provider_rejected", outcome_detail="provider_error"),
    _settled("s5", 5, 100, -14_400, "completed", "completed", outcome_detail="moved_on"),
    _settled("s6", 6, 9, -6 * DAY, "aborted", "abort_requested", late_evidence='{"detail":"response_finished"}'),
    _settled("s7", 7, 9, -40 * DAY, "failed", "crash_loop", late_evidence='{"detail":"response_finished"}'),
]


def _attempt(session: str, submission: str, attempt: str, number: int, owner: str, claimed: float, **more: Any) -> Row:
    return {
        "session_id": session,
        "submission_id": submission,
        "attempt_id": attempt,
        "number": number,
        "owner": owner,
        "claimed_at": T(claimed),
        "begun_at": T(claimed + 1),
        "lease_s": 15.0,
        "beat_s": 5.0,
        "beat_at": T(claimed + 2),
        "lease_expires_at": T(claimed + 17),
        **more,
    }


ATTEMPTS: list[Row] = [
    _attempt("line", "a1", "at-a1", 2, "r1", -50, progress_at=T(-20), beat_at=T(-2), lease_expires_at=T(300)),
    _attempt("stop", "i1", "at-i1", 1, "r1", -55, beat_at=T(-2), lease_expires_at=T(200)),
    _attempt("dead", "b1", "at-b1", 4, "r2", -200, beat_at=T(-135), lease_expires_at=T(-120)),
    _attempt("dead", "b1", "at-b0", 3, "r2", -5000, progress_at=T(-4700), ended_at=T(-4000), end_kind="crashed"),
    _attempt(
        "block", "f1", "at-f1", 2, "r1", -300, ended_at=T(-200), end_kind="released", end_reason="capability_missing"
    ),
    _attempt("old", "s3", "at-s3", 6, "r3", -11_000, ended_at=T(-10_800), end_kind="crashed"),
    _attempt("old", "s4", "at-s4", 1, "r3", -3 * DAY, ended_at=T(-2 * DAY), end_kind="crashed"),
    _attempt("old", "s7", "at-s7", 1, "r3", -40 * DAY, ended_at=T(-40 * DAY + 60), end_kind="crashed"),
]


def _decision(session: str, submission: str, number: int, at: float, action: str, reason: str, **more: Any) -> Row:
    return {
        "session_id": session,
        "submission_id": submission,
        "number": number,
        "decided_at": T(at),
        "decided_by": "daemon-1",
        "action": action,
        "reason": reason,
        "session_version": 0,
        "revision": number,
        **more,
    }


_CRASH: Row = {"attempt_end": "crashed", "pass_id": "p1", "state": "continuable", "detail": "tool_results_ready"}

DECISIONS: list[Row] = [
    _decision("dead", "b1", 1, -6000, "admit", "admitted", decided_by="front"),
    _decision("dead", "b1", 2, -4000, "requeue", "resume", attempt_id="at-b0", plan='{"mode":"continue"}', **_CRASH),
    _decision("back", "h1", 2, -300, "requeue", "provider_retry", plan='{"mode":"continue"}', detail="provider_error"),
    _decision(
        "old",
        "s3",
        3,
        -10_800,
        "settle",
        "crash_loop",
        attempt_id="at-s3",
        outcome="failed",
        **{**_CRASH, "pass_id": "p0"},
    ),
    _decision(
        "old",
        "s4",
        2,
        -2 * DAY,
        "settle",
        "provider_rejected",
        attempt_id="at-s4",
        outcome="failed",
        **{**_CRASH, "pass_id": "p-old"},
    ),
    _decision(
        "old",
        "s7",
        2,
        -40 * DAY,
        "settle",
        "crash_loop",
        attempt_id="at-s7",
        outcome="failed",
        **{**_CRASH, "pass_id": "x"},
    ),
    _decision("quar", "c1", 2, -7200, "hold", "integrity_hold", pass_id="p0", note="a parent is missing"),
]

_COUNTS: Row = {
    "settled_completed": 0,
    "settled_failed": 0,
    "settled_aborted": 0,
    "requeued": 0,
    "held": 0,
    "left_alone": 0,
    "adopted": 0,
    "advised": 0,
    "conflicts": 0,
    "locked": 0,
    "failed": 0,
}

PASSES: list[Row] = [
    {
        "id": "p1",
        "started_at": T(-4000),
        "finished_at": T(-3998.5),
        "scanned": 3,
        **_COUNTS,
        "requeued": 1,
        "locked": 2,
    },
    {
        "id": "p0",
        "started_at": T(-10_800),
        "finished_at": T(-10_799),
        "scanned": 2,
        **_COUNTS,
        "settled_failed": 1,
        "held": 1,
    },
    {
        "id": "p-old",
        "started_at": T(-2 * DAY),
        "finished_at": T(-2 * DAY + 1),
        "scanned": 1,
        **_COUNTS,
        "settled_failed": 1,
    },
]


def _slot(job: str, at: float, status: str, taken: float, **more: Any) -> Row:
    return {
        "job": job,
        "slot_at": T(at),
        "status": status,
        "taken_at": T(taken),
        "finished_at": None if status == "taken" else T(taken),
        "takes": 1,
        **more,
    }


SLOTS: list[Row] = [
    _slot("nightly", -3600, "done", -3599),
    _slot("nightly", -7200, "skipped", -3600, reason="too_old", takes=0),
    _slot("sweep", -600, "failed", -595, error="the disk is full"),
    _slot("sweep", -900, "done", -500, takes=2),
    _slot("sweep", -3 * DAY, "failed", -3 * DAY, error="long ago"),
]


def _instance(name: str, kind: str, beat: float, **more: Any) -> Row:
    return {
        "id": name,
        "kind": kind,
        "owner": name,
        "program_version": "1.0",
        "host": "box",
        "pid": 7,
        "started_at": T(-9000),
        "beat_at": T(beat),
        "beat_s": 300.0,
        **more,
    }


INSTANCES: list[Row] = [
    _instance("daemon-1", "daemon", -1),
    _instance("r1", "runner", -2),
    _instance("r2", "runner", -5000),
    _instance("r3", "runner", -9000, stopped_at=T(-9000)),
]


def _epoch(subject: str, epoch: int, used: int, **more: Any) -> Row:
    return {
        "subject": subject,
        "epoch": epoch,
        "baseline_score": 0.5,
        "best_score": 0.75,
        "budget_max": 4,
        "budget_floor": 2,
        "used": used,
        "steps": used + 2,
        "rejected_count": 2,
        "opened_at": T(-900),
        **more,
    }


def _step(subject: str, epoch: int, number: int, edit: str, verdict: str, at: float) -> Row:
    return {
        "subject": subject,
        "epoch": epoch,
        "number": number,
        "step_key": f"{epoch}-{number}",
        "edit_id": edit,
        "candidate_score": 0.25,
        "verdict": verdict,
        "best_score": 0.75,
        "used": 1,
        "stepped_at": T(at),
    }


def _rejected(subject: str, edit: str, drop: float, count: int, **more: Any) -> Row:
    at = {"first_at": T(-5000), "last_at": T(-800)}
    return {"subject": subject, "edit_id": edit, "worst_drop": drop, "count": count, **at, **more}


EPOCHS: list[Row] = [
    _epoch("skill", 1, 4, closed_at=T(-950)),
    _epoch("skill", 2, 3),
    _epoch("other", 1, 1),
]
STEPS: list[Row] = [
    _step("skill", 1, 1, "e-1", "skipped_rejected", -2000),
    _step("skill", 2, 1, "e-1", "skipped_rejected", -700),
    _step("skill", 2, 2, "e-1", "skipped_rejected", -600),
    _step("skill", 2, 3, "e-2", "rejected", -500),
    _step("other", 1, 1, "e-9", "skipped_rejected", -400),
]
REJECTED: list[Row] = [
    _rejected("skill", "e-1", 0.5, 2),
    _rejected("skill", "e-2", 0.25, 1),
    _rejected("skill", "e-3", 0.75, 1, forgiven_at=T(-100)),
    _rejected("other", "e-9", 0.125, 1),
]
AUDIT: list[Row] = [
    {
        "id": "u1",
        "at": T(-5),
        "operator": "tess",
        "verb": "abort",
        "session_id": "stop",
        "submission_id": "i1",
        "parameters": "{}",
        "reason": "no longer needed",
    },
    {"id": "u0", "at": T(-8 * DAY), "operator": "tess", "verb": "prune", "parameters": "{}"},
]


def make(engine: Engine) -> datetime:
    """Put the scene, and return its moment."""
    with begin(engine) as conn:
        now = db_now(conn)
        names = sorted({row["session_id"] for row in SUBMISSIONS})
        tables: list[tuple[sa.Table, list[Row]]] = [
            (
                s.sessions,
                [
                    {
                        "id": name,
                        "origin": "mirrored" if name == "mirror" else "native",
                        "leaf_entry_id": f"{name}-leaf",
                        "last_ticket": 9,
                        "created_at": T(-50 * DAY),
                        "updated_at": T(),
                    }
                    for name in names
                ],
            ),
            (s.submissions, SUBMISSIONS),
            (s.attempts, ATTEMPTS),
            (s.decisions, DECISIONS),
            (s.passes, PASSES),
            (s.schedule_slots, SLOTS),
            (s.instances, INSTANCES),
            (s.refine_epochs, EPOCHS),
            (s.refine_steps, STEPS),
            (s.rejected_edits, REJECTED),
            (s.audit, AUDIT),
        ]
        for table, rows in tables:
            for row in rows:
                conn.execute(sa.insert(table).values({name: instant(value, now) for name, value in row.items()}))
    return now


def instant(value: Any, now: datetime) -> Any:
    """Return a `T` as an instant; anything else as it is."""
    return now + timedelta(seconds=value.seconds) if isinstance(value, T) else value
