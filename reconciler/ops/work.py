"""The acts that move work on: `submit` admits it, `once` runs a pass."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Final

from sqlalchemy.engine import Connection

from reconciler.core.states import SubmissionStatus
from reconciler.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from reconciler.ops.acting import audit, perform
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.naming import command, named_submission
from reconciler.ops.schedule import catch_up
from reconciler.ops.values import instant
from reconciler.service.deciding import Judge
from reconciler.service.instances import RunnerWatch
from reconciler.service.liveness import this_process
from reconciler.service.reconcile import reconcile_once
from reconciler.service.report import PassReport
from reconciler.store import operator_acts
from reconciler.store.admission import Admitted, NewSubmission, admit, prepare
from reconciler.store.fence import Pruned


def submit(asked: Asked) -> Reply:
    """Carry out `submit`; a dry run does all of it and takes it back."""
    if asked["again"] is not None:
        if asked["session"] is not None:
            raise InvalidInput(
                "--again names what is submitted: it goes without a session, a submission and a payload",
                hint="reconciler submit --again SESSION/SUBMISSION",
            )
        return perform(asked, lambda conn: _admit_again(conn, asked))
    for name in ("session", "submission", "payload"):
        if name not in asked.given:
            raise InvalidInput(f"submit needs a {name}", hint="reconciler submit SESSION SUBMISSION PAYLOAD")
    prepared = prepare(
        NewSubmission(
            session_id=asked["session"],
            submission_id=asked["submission"],
            payload=asked["payload"],
            entity_hints=asked["entity_hints"],
            fact_count=asked["fact_count"],
            deadline_s=asked["deadline_s"],
            kind=asked["kind"],
        ),
        limits=asked.desk.limits,
    )

    def work(conn: Connection) -> Reply:
        reply = _admitted(asked, admit(conn, [prepared])[0])
        if reply.changed:
            audit(conn, asked, *prepared.key)
        return reply

    return perform(asked, work)


def _admitted(asked: Asked, admitted: Admitted) -> Reply:
    payload = {
        "session_id": admitted.session_id,
        "submission_id": admitted.submission_id,
        "status": admitted.status.value,
        "admitted_at": None if asked.dry_run and admitted.created else instant(admitted.admitted_at),
        "created": admitted.created,
        "dry_run": asked.dry_run,
    }
    return Reply(payload, changed=admitted.created)


# --- again -----------------------------------------------------------------------------------------------------------

_AGAIN: Final = re.compile(r"(?P<base>.*)~(?P<number>[1-9][0-9]{0,8})\Z", re.DOTALL)
_AGAIN_MAX: Final = 1000


def _admit_again(conn: Connection, asked: Asked) -> Reply:
    """Admit a settled submission's payload as the next ID~N; one that waits or runs already is the answer."""
    hit = named_submission(conn, asked["again"], None)
    name = f"{hit.session_id}/{hit.submission_id}"
    row = operator_acts.locked(conn, hit.session_id, hit.submission_id)
    original = operator_acts.original_of(conn, hit.session_id, hit.submission_id)
    if isinstance(row, Pruned) or original is None:
        raise NotFound(f'cannot submit "{name}" again: its payload is gone', hint="submit it with its payload")
    if row.status != SubmissionStatus.SETTLED:
        raise Conflict(
            f'cannot submit "{name}" again: it has no outcome yet',
            hint=f"see what it waits for: {command('explain', name)}",
        )
    found = _AGAIN.match(hit.submission_id)
    base, number = (found["base"], int(found["number"])) if found else (hit.submission_id, 1)
    for step in range(1, _AGAIN_MAX):
        prepared = prepare(
            NewSubmission(
                session_id=hit.session_id,
                submission_id=f"{base}~{number + step}",
                payload=json.loads(original.payload),
                entity_hints=json.loads(original.entity_hints or "[]"),
                fact_count=original.fact_count,
                limits=json.loads(original.limits or "{}"),
                kind=original.kind,
            ),
            limits=asked.desk.limits,
        )
        admitted = admit(conn, [prepared])[0]
        if admitted.created:
            operator_acts.link_again(
                conn, admitted.session_id, admitted.submission_id, of=name, operator=asked.desk.operator
            )
            audit(conn, asked, *prepared.key)
        if admitted.status != SubmissionStatus.SETTLED:
            return _admitted(asked, admitted)
    raise LimitExceeded(f'cannot submit "{name}" again: it was {_AGAIN_MAX} times', hint="give it another id")


# --- once ------------------------------------------------------------------------------------------------------------


def once(asked: Asked) -> Reply:
    """Carry out `once`.

    What runners of this host held that are proven dead is due at once, as with a daemon. Leases that ended may be
    judged only by who has watched for two beats: such a call waits them once, and looks again.
    """
    started = time.monotonic()
    here = this_process()
    judge = Judge(here=here, connected_for_s=lambda: time.monotonic() - started)
    watch = RunnerWatch(asked.desk.engine, here)

    def run(limit: int | None) -> PassReport:
        ahead = watch.would_make_due() if asked.dry_run else []
        if not asked.dry_run:
            watch.look()
        return reconcile_once(
            asked.desk.engine,
            limits=asked.desk.limits,
            limit=limit,
            dry_run=asked.dry_run,
            judge=judge,
            decided_by=f"{asked.desk.operator} (once)",
            beside=ahead,
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
    # Where no daemon runs, a timer's calls of `once` keep the schedule.
    payload["slots"] = catch_up(asked)
    return Reply(dict(payload))


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
        set_aside_rows=[*first.set_aside_rows, *second.set_aside_rows],
        **summed,
    )
