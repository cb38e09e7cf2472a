"""`schedule list|pause|resume|run`: the registry's entries, their readers, and their renderers.

The entries are data; readers load the service when they are asked. What a job is stands in the configuration; what
became of its slots, and whether it is paused, in the database.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reconciler.core.slots import ON_TIME_S, slot_name
from reconciler.errors import Conflict, InvalidInput
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Audit, Database, Entry, Example, Kind, Parameter
from reconciler.ops.render import Column, Payload, Style, plain, table, when
from reconciler.ops.shapes import ANY, COUNT, FLAG, INSTANT, NUMBER, TEXT, listing, maybe, shape, words
from reconciler.ops.values import instant

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.engine import Connection

    from reconciler.core.jobs import Job
    from reconciler.service.schedule import Fired, Schedule
    from reconciler.store.slots import SlotRow

# --- payloads --------------------------------------------------------------------------------------------------------

_STATUS: Final = words("taken", "done", "skipped", "failed")
_SLOT: Final = shape(
    slot_at=INSTANT,
    status=_STATUS,
    reason=maybe(TEXT),
    taken_at=maybe(INSTANT),
    late_s=NUMBER,
    finished_at=maybe(INSTANT),
    instance_id=maybe(TEXT),
    takes=COUNT,
    session_id=maybe(TEXT),
    submission_id=maybe(TEXT),
    error=maybe(TEXT),
    result=ANY,
)
LIST: Final = shape(
    now=INSTANT,
    jobs=listing(
        shape(
            job=TEXT,
            # False for a job that only the database knows: it was configured elsewhere, or before.
            configured=FLAG,
            cron=maybe(TEXT),
            zone=maybe(TEXT),
            catch_up=maybe(TEXT),
            admits=FLAG,
            paused_at=maybe(INSTANT),
            paused_by=maybe(TEXT),
            looked_until=maybe(INSTANT),
            next_at=maybe(INSTANT),
            # Due, not fired in time, and not recorded yet.
            missed=COUNT,
            slots=listing(_SLOT),
        )
    ),
)
ACT: Final = shape(
    job=TEXT,
    result=words("done", "already", "would", "failed"),
    paused_at=maybe(INSTANT),
    slot_at=maybe(INSTANT),
    session_id=maybe(TEXT),
    submission_id=maybe(TEXT),
    found=ANY,
    message=TEXT,
    dry_run=FLAG,
)

# --- entries ---------------------------------------------------------------------------------------------------------

_JOB: Final = Parameter("job", Kind.ID, "the job's name", required=True, positional=True)
_REASON: Final = Parameter("reason", Kind.TEXT, "why, for the audit; needed on a production database")
_DRY_RUN: Final = Parameter("dry_run", Kind.BOOLEAN, "say what would be done, and do nothing", default=False)


def _act(name: str, summary: str, *parameters: Parameter, details: str, examples: tuple[Example, ...]) -> Entry:
    return Entry(
        f"schedule {name}",
        summary,
        f"reconciler.ops.schedule:{name}",
        ACT,
        parameters=(_JOB, *parameters, _REASON, _DRY_RUN),
        details=details,
        examples=examples,
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.INSIDE,
        needs_reason=True,
    )


ENTRIES: Final = (
    Entry(
        "schedule list",
        "List the jobs: when they are due next, and what became of their last slots",
        "reconciler.ops.schedule:list_jobs",
        LIST,
        parameters=(
            Parameter("job", Kind.ID, "this job only"),
            Parameter("slots", Kind.INTEGER, "how many slots of each", default=3, minimum=0, maximum=1_000),
        ),
        details="Jobs stand in the configuration; the database keeps their slots and whether they are paused.",
        examples=(
            Example("reconciler schedule list", "every job"),
            Example("reconciler schedule list --job report --slots 50", "one job's history"),
        ),
    ),
    _act(
        "pause",
        "Pause a job: its slots are recorded as skipped until it is resumed",
        details="Work that it has admitted goes on.",
        examples=(Example("reconciler schedule pause report --reason 'wrong prompt'", "no more reports"),),
    ),
    _act(
        "resume",
        "Resume a paused job, from its next slot on",
        details="Slots of the pause are not caught up with; `schedule run JOB --at INSTANT` runs one of them.",
        examples=(Example("reconciler schedule resume report", "reports again"),),
    ),
    _act(
        "run",
        "Run a job now, or a slot of it that was skipped or has failed",
        Parameter("at", Kind.INSTANT, "the slot's instant; without it a slot of this moment"),
        details="Also while it is paused. The system's own work (sweep, prune) is done before the answer.",
        examples=(
            Example("reconciler schedule run report", "one report now"),
            Example("reconciler schedule run report --at 2026-05-01T02:00:00Z", "the one that was skipped"),
        ),
    ),
)

# --- readers ---------------------------------------------------------------------------------------------------------


def schedule_of(asked: Asked) -> Schedule:
    """Return the schedule of the configuration, as one process that runs once."""
    from reconciler.service.schedule import Schedule
    from reconciler.service.system_work import load_work

    desk = asked.desk
    return Schedule(
        desk.engine,
        desk.jobs,
        instance_id=f"by-hand-{uuid.uuid4().hex}",
        limits=desk.limits,
        work=load_work(),
        work_settings=desk.work_settings,
    )


def list_jobs(asked: Asked) -> Reply:
    """Answer `schedule list`."""
    from reconciler.store import slots as ledger
    from reconciler.store.dialect import db_now

    jobs, wanted = asked.desk.jobs, asked["job"]
    with asked.reading() as conn:
        now = db_now(conn)
        names = [wanted] if wanted else [*jobs, *(name for name in ledger.known_jobs(conn) if name not in jobs)]
        states = ledger.job_states(conn, names)
        if wanted and wanted not in jobs and wanted not in states:
            raise InvalidInput(f'there is no job "{wanted}"', hint=f"known: {', '.join(sorted(jobs)) or 'none'}")
        plans = schedule_of(asked).due(conn)
        rows = []
        for name in names:
            job, state = jobs.get(name), states.get(name)
            plan = plans.get(name)
            due = [] if plan is None else [*plan.fire, *(skipped.slot_at for skipped in plan.skip)]
            paused = state is not None and state.paused_at is not None
            slots = ledger.last_slots(conn, name, limit=asked["slots"]) if asked["slots"] else []
            rows.append(
                {
                    "job": name,
                    "configured": job is not None,
                    "cron": None if job is None else job.cron.expression,
                    "zone": None if job is None else job.zone_name,
                    "catch_up": None if job is None else job.catch_up.value,
                    "admits": job is not None and job.admits is not None,
                    "paused_at": None if state is None else instant(state.paused_at),
                    "paused_by": None if state is None else state.paused_by,
                    "looked_until": None if state is None else instant(state.looked_until),
                    "next_at": None if job is None or paused else instant(job.next_slot(now)),
                    "missed": 0 if paused else sum((now - slot).total_seconds() > ON_TIME_S for slot in due),
                    "slots": [_slot_row(row) for row in slots],
                }
            )
    return Reply({"now": instant(now), "jobs": rows})


def _slot_row(row: SlotRow) -> dict[str, Any]:
    return {
        "slot_at": instant(row.slot_at),
        "status": row.status,
        "reason": row.reason,
        "taken_at": instant(row.taken_at),
        "late_s": round((row.taken_at - row.slot_at).total_seconds(), 3),
        "finished_at": instant(row.finished_at),
        "instance_id": row.instance_id,
        "takes": row.takes,
        "session_id": row.session_id,
        "submission_id": row.submission_id,
        "error": row.error,
        "result": None if row.result is None else json.loads(row.result),
    }


def _job(asked: Asked) -> Job | None:
    """Return the configured job that was named; None where only the database knows it.

    Raises:
        InvalidInput: neither knows it.
    """
    from reconciler.store import slots as ledger

    name: str = asked["job"]
    job = asked.desk.jobs.get(name)
    if job is None:
        with asked.reading() as conn:
            if name not in ledger.job_states(conn, [name]):
                known = ", ".join(sorted(asked.desk.jobs)) or "none"
                raise InvalidInput(f'there is no job "{name}"', hint=f"known: {known}")
    return job


def pause(asked: Asked) -> Reply:
    """Carry out `schedule pause`."""
    from reconciler.ops.acting import perform
    from reconciler.ops.audit import audit_row
    from reconciler.store import slots as ledger
    from reconciler.store.audit import write_audit
    from reconciler.store.dialect import db_now

    _job(asked)
    name: str = asked["job"]

    def work(conn: Connection) -> Reply:
        state = _locked(conn, name)
        if state.paused_at is not None:
            return _reply(asked, "already", paused_at=state.paused_at, message=f'job "{name}" is paused already')
        now = db_now(conn)
        ledger.set_paused(conn, name, paused_at=now, paused_by=asked.desk.operator)
        write_audit(conn, audit_row(asked, None, None))
        return _reply(asked, "done", paused_at=now, message=f'job "{name}" is paused: its slots are skipped')

    return perform(asked, work)


def resume(asked: Asked) -> Reply:
    """Carry out `schedule resume`: slots of the pause that no daemon has recorded are recorded as skipped."""
    from reconciler.ops.acting import perform
    from reconciler.ops.audit import audit_row
    from reconciler.store import slots as ledger
    from reconciler.store.audit import write_audit
    from reconciler.store.dialect import db_now

    job, name = _job(asked), asked["job"]

    def work(conn: Connection) -> Reply:
        state = _locked(conn, name)
        if state.paused_at is None:
            return _reply(asked, "already", message=f'job "{name}" is not paused')
        now = db_now(conn)
        if job is not None and state.looked_until is not None:
            plan = job.plan(looked_until=state.looked_until, now=now, paused=True)
            ledger.record_skipped(conn, name, plan.skip, instance_id=None, now=now)
        ledger.set_paused(conn, name, paused_at=None, paused_by=None)
        ledger.set_looked_until(conn, name, now)
        write_audit(conn, audit_row(asked, None, None))
        return _reply(asked, "done", message=f'job "{name}" goes on with its next slot')

    return perform(asked, work)


def _locked(conn: Connection, name: str) -> Any:
    from reconciler.store import slots as ledger

    state = ledger.lock_job(conn, name, wait=True)
    if state is None:  # a waiting lock finds the row that it has made
        raise AssertionError(f"job {name!r} has no row")
    return state


def run(asked: Asked) -> Reply:
    """Carry out `schedule run`."""
    from reconciler.ops.audit import audit_row
    from reconciler.store.audit import write_audit

    name, at = asked["job"], asked["at"]
    job = asked.desk.jobs.get(name)
    if job is None:
        known = ", ".join(sorted(asked.desk.jobs)) or "none"
        raise InvalidInput(f'the configuration has no job "{name}"', hint=f"known: {known}")
    if asked.dry_run:
        return _would_run(asked, job, at)

    def audited(conn: Connection, fired: Fired) -> None:
        write_audit(conn, audit_row(asked, fired.session_id, fired.submission_id))

    fired, found = schedule_of(asked).run_now(name, slot_at=at, audit=audited)
    if fired.error is not None:
        message = f'slot {slot_name(fired.slot_at)} of job "{name}" could not be run: {fired.error}'
    elif fired.is_work:
        message = f'job "{name}" did its work'
    else:
        message = f'job "{name}" admitted "{fired.session_id}/{fired.submission_id}"'
    return _reply(
        asked,
        "done" if fired.error is None else "failed",
        slot_at=fired.slot_at,
        session_id=fired.session_id,
        submission_id=fired.submission_id,
        found=None if found is None else dict(found),
        message=message,
    )


def _would_run(asked: Asked, job: Job, at: datetime | None) -> Reply:
    from reconciler.store import slots as ledger
    from reconciler.store.dialect import db_now

    with asked.reading() as conn:
        slot_at = db_now(conn) if at is None else at
        row = ledger.slot(conn, job.name, slot_at)
    if row is not None and row.status not in ("skipped", "failed"):
        raise Conflict(
            f'cannot run slot {slot_name(slot_at)} of job "{job.name}": it is {row.status}',
            hint="only a slot that was skipped or has failed can be run again",
        )
    session_id = None if job.admits is None else job.admits.session_id(job.name, slot_at)
    submission_id = None if job.admits is None else job.submission_id(slot_at)
    what = "did its work" if job.admits is None else f'admitted "{session_id}/{submission_id}"'
    return _reply(
        asked,
        "would",
        slot_at=slot_at,
        session_id=session_id,
        submission_id=submission_id,
        message=f'job "{job.name}" {what}',
    )


def _reply(
    asked: Asked,
    result: str,
    *,
    message: str,
    paused_at: datetime | None = None,
    slot_at: datetime | None = None,
    session_id: str | None = None,
    submission_id: str | None = None,
    found: dict[str, Any] | None = None,
) -> Reply:
    return Reply(
        {
            "job": asked["job"],
            "result": "would" if asked.dry_run and result == "done" else result,
            "paused_at": instant(paused_at),
            "slot_at": instant(slot_at),
            "session_id": session_id,
            "submission_id": submission_id,
            "found": found,
            "message": message,
            "dry_run": asked.dry_run,
        },
        session_id=session_id,
        submission_id=submission_id,
        changed=result == "done",
    )


def catch_up(asked: Asked) -> int:
    """Fire what is due, for `once`: where no daemon runs, a timer's calls keep the schedule. Returns how many slots.

    A dry run counts them.
    """
    if not asked.desk.jobs:
        return 0
    schedule = schedule_of(asked)
    if asked.dry_run:
        with asked.reading() as conn:
            return sum(len(plan.fire) + len(plan.skip) for plan in schedule.due(conn).values())
    return schedule.look_and_wait()


# --- renderers -------------------------------------------------------------------------------------------------------


def _list_lines(payload: Payload, style: Style) -> list[str]:
    rows = payload["jobs"]
    if not rows:
        return ["no jobs: they stand in the configuration, [jobs.NAME] with cron and payload"]
    lines = table(
        rows,
        [
            Column("job", lambda row: row["job"], shrinks=True),
            Column("cron", lambda row: row["cron"]),
            Column("zone", lambda row: row["zone"]),
            Column("catch up", lambda row: row["catch_up"]),
            Column("next", lambda row: when(row["next_at"])),
            Column("paused", lambda row: when(row["paused_at"])),
            Column("missed", lambda row: row["missed"] or None, right=True),
            Column("", lambda row: None if row["configured"] else "not configured here"),
        ],
        style,
    )
    slots = [{**slot, "job": row["job"]} for row in rows for slot in row["slots"]]
    if slots:
        lines += ["", style.bold("last slots")]
        lines += table(
            slots,
            [
                Column("job", lambda row: row["job"], shrinks=True),
                Column("slot", lambda row: when(row["slot_at"])),
                Column("status", lambda row: row["status"], coloured=True),
                Column("late", lambda row: f"{row['late_s']:.1f}s", right=True),
                Column("reason", lambda row: row["reason"]),
                Column("admitted", lambda row: row["submission_id"], shrinks=True),
                Column("found", lambda row: None if row["result"] is None else json.dumps(row["result"]), shrinks=True),
                Column("error", lambda row: row["error"], shrinks=True),
            ],
            style,
        )
    return lines


def _act_lines(payload: Payload, _style: Style) -> list[str]:
    found = payload["found"]
    return [plain(payload["message"]), *([] if found is None else [plain(json.dumps(found))])]


RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType(
    {
        "schedule list": _list_lines,
        "schedule pause": _act_lines,
        "schedule resume": _act_lines,
        "schedule run": _act_lines,
    }
)
