"""The acts that move work on: `submit` admits it, `once` runs a pass."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reconciler.ops.asking import EXIT_NEEDS_PERSON, Asked, Reply
from reconciler.ops.values import instant
from reconciler.store.admission import Admitted, NewSubmission, admit, prepare
from reconciler.store.admission import submit as store_submit

if TYPE_CHECKING:
    from reconciler.service.reconcile import PassReport


def submit(asked: Asked) -> Reply:
    """Carry out `submit`; a dry run does all of it and takes it back."""
    new = NewSubmission(
        session_id=asked["session"],
        submission_id=asked["submission"],
        payload=asked["payload"],
        entity_hints=asked["entity_hints"],
        fact_count=asked["fact_count"],
        deadline_s=asked["deadline_s"],
        kind=asked["kind"],
    )
    if asked.dry_run:
        admitted = _planned(asked, new)
    else:
        admitted = store_submit(asked.desk.engine, [new], limits=asked.desk.limits)[0]
    payload = {
        "session_id": admitted.session_id,
        "submission_id": admitted.submission_id,
        "status": admitted.status.value,
        "admitted_at": None if asked.dry_run and admitted.created else instant(admitted.admitted_at),
        "created": admitted.created,
        "dry_run": asked.dry_run,
    }
    return Reply(
        payload,
        session_id=admitted.session_id,
        submission_id=admitted.submission_id,
        changed=admitted.created,
    )


def _planned(asked: Asked, new: NewSubmission) -> Admitted:
    prepared = prepare(new, limits=asked.desk.limits)
    if asked.desk.may_create():
        # No database yet: there is nothing that it could contradict.
        from reconciler.core.states import SubmissionStatus

        return Admitted(new.session_id, new.submission_id, SubmissionStatus.QUEUED, ticket=1, created=True)
    from reconciler.store.engine import run_transaction

    class _TakenBack(Exception):
        pass

    found: list[Admitted] = []

    def plan(conn: object) -> None:
        found[:] = admit(conn, [prepared])  # type: ignore[arg-type]
        raise _TakenBack

    try:
        run_transaction(asked.desk.engine, plan)
    except _TakenBack:
        return found[0]
    raise AssertionError("a dry run was not taken back")


# --- once ------------------------------------------------------------------------------------------------------------


def once(asked: Asked) -> Reply:
    """Carry out `once`. Exit code 3 where this call held something or met a conflict.

    Leases that ended may be judged only by who has watched for two beats: such a call waits them once, and looks again.
    """
    from reconciler.service.reconcile import Judge, reconcile_once

    started = time.monotonic()
    judge = Judge(connected_for_s=lambda: time.monotonic() - started)

    def run(limit: int | None) -> PassReport:
        return reconcile_once(
            asked.desk.engine,
            limits=asked.desk.limits,
            limit=limit,
            dry_run=asked.dry_run,
            judge=judge,
            decided_by=f"{asked.desk.operator} (once)",
            progress=lambda report: asked.desk.progress(report.scanned, None, "looked at"),
        )

    report = run(asked["limit"])
    if report.unjudged and not asked["no_wait"]:
        left = report.judge_after_s - (time.monotonic() - started)
        if left > 0:
            asked.desk.progress(0, None, f"waiting {left:.0f} s to be allowed to judge {report.unjudged} ended leases")
            time.sleep(min(left, _WAIT_MAX_S))
        report = _together(report, run(asked["limit"]))
    payload = report.as_json()
    needs_person = report.held or report.conflicts or report.set_aside
    return Reply(dict(payload), EXIT_NEEDS_PERSON if needs_person else 0)


# Two beats of the slowest runner that is waited for.
_WAIT_MAX_S: Final = 120.0


def _together(first: PassReport, second: PassReport) -> PassReport:
    """Return two looks as one pass: rows that the first could not judge were looked at again by the second."""
    summed = {
        name: getattr(first, name) + getattr(second, name)
        for name in ("requeued", "held", "advised", "adopted", "conflicts", "set_aside")
    }
    return replace(
        second,
        pass_id=second.pass_id if second.written else first.pass_id,
        scanned=first.scanned + max(0, second.scanned - first.unjudged),
        settled={word: count + second.settled[word] for word, count in first.settled.items()},
        left_alone=first.left_alone - first.unjudged + second.left_alone,
        **summed,
    )
