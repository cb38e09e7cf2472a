"""The slot ledger: which slots were fired, skipped, are being worked on. Its key is what makes a slot fire once.

Several instances look at the same jobs without a leader: the job's row is locked for a look (nobody waits for it), and
a slot belongs to whoever inserts its row. Knows nothing of cron lines; instants are handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.slots import SkippedSlot
from reconciler.store.dialect import db_now, for_update, in_list, insert_ignore
from reconciler.store.schema import schedule_jobs, schedule_slots

_TAKEN: Final = sa.literal_column("'taken'", sa.Text())
ERROR_CHARS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class JobState:
    """What is durable of a job. ``looked_until`` is None where no daemon has looked at it yet."""

    job: str
    paused_at: datetime | None = None
    paused_by: str | None = None
    looked_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A row of the ledger."""

    job: str
    slot_at: datetime
    status: str
    reason: str | None
    instance_id: str | None
    taken_at: datetime
    lease_expires_at: datetime | None
    finished_at: datetime | None
    error: str | None
    session_id: str | None
    submission_id: str | None
    takes: int
    result: str | None


_COLUMNS: Final = tuple(schedule_slots.c[name] for name in SlotRow.__dataclass_fields__)


# --- reading ---------------------------------------------------------------------------------------------------------


def job_states(conn: Connection, jobs: Collection[str]) -> dict[str, JobState]:
    """Return what is durable of *jobs*; one that nobody has looked at or paused yet has no row."""
    rows = conn.execute(
        sa.select(
            schedule_jobs.c.job, schedule_jobs.c.paused_at, schedule_jobs.c.paused_by, schedule_jobs.c.looked_until
        ).where(in_list(conn, schedule_jobs.c.job, list(jobs)))
    )
    return {row.job: JobState(*row) for row in rows}


def known_jobs(conn: Connection, *, limit: int = 1_000) -> list[str]:
    """Return the names of all jobs that have a row, configured or not."""
    return list(conn.execute(sa.select(schedule_jobs.c.job).order_by(schedule_jobs.c.job).limit(limit)).scalars())


def expired_slots(conn: Connection, jobs: Collection[str], *, limit: int = 100) -> list[SlotRow]:
    """Return slots of *jobs* whose taker's lease has ended by the database's clock, oldest first."""
    rows = conn.execute(
        sa.select(*_COLUMNS)
        .where(
            schedule_slots.c.status == _TAKEN,
            schedule_slots.c.lease_expires_at <= db_now(conn),
            in_list(conn, schedule_slots.c.job, list(jobs)),
        )
        .order_by(schedule_slots.c.lease_expires_at)
        .limit(limit)
    )
    return [SlotRow(*row) for row in rows]


def slot(conn: Connection, job: str, slot_at: datetime) -> SlotRow | None:
    """Return a slot's row, None where it has none."""
    row = conn.execute(
        sa.select(*_COLUMNS).where(schedule_slots.c.job == job, schedule_slots.c.slot_at == slot_at)
    ).first()
    return None if row is None else SlotRow(*row)


def last_slots(conn: Connection, job: str, *, limit: int, status: str | None = None) -> list[SlotRow]:
    """Return the newest slots of a job, newest first."""
    statement = sa.select(*_COLUMNS).where(schedule_slots.c.job == job)
    if status is not None:
        statement = statement.where(schedule_slots.c.status == status)
    rows = conn.execute(statement.order_by(schedule_slots.c.slot_at.desc()).limit(limit))
    return [SlotRow(*row) for row in rows]


# --- looking ---------------------------------------------------------------------------------------------------------


def lock_job(conn: Connection, job: str, *, wait: bool = False) -> JobState | None:
    """Lock a job's row, made where there is none, and return it; None where another instance holds it.

    A job that is seen for the first time begins now: it has no past to catch up with.
    """
    conn.execute(insert_ignore(conn, schedule_jobs, key=["job"]).values(job=job))
    row = conn.execute(
        for_update(
            sa.select(
                schedule_jobs.c.job, schedule_jobs.c.paused_at, schedule_jobs.c.paused_by, schedule_jobs.c.looked_until
            ).where(schedule_jobs.c.job == job),
            skip_locked=not wait,
        )
    ).first()
    return None if row is None else JobState(*row)


def set_looked_until(conn: Connection, job: str, looked_until: datetime) -> None:
    """Note that all slots up to *looked_until* were fired or recorded; the row must be locked."""
    conn.execute(sa.update(schedule_jobs).where(schedule_jobs.c.job == job).values(looked_until=looked_until))


def set_paused(conn: Connection, job: str, *, paused_at: datetime | None, paused_by: str | None) -> None:
    """Pause a job, or resume it (both None); the row must be locked."""
    conn.execute(
        sa.update(schedule_jobs).where(schedule_jobs.c.job == job).values(paused_at=paused_at, paused_by=paused_by)
    )


def record_skipped(
    conn: Connection, job: str, skipped: Iterable[SkippedSlot], *, instance_id: str | None, now: datetime
) -> int:
    """Record slots that do not fire; return how many were not in the ledger yet."""
    rows = [
        {
            "job": job,
            "slot_at": one.slot_at,
            "status": "skipped",
            "reason": one.reason.value,
            "instance_id": instance_id,
            "taken_at": now,
            "finished_at": now,
        }
        for one in skipped
    ]
    recorded = 0
    for row in rows:
        recorded += conn.execute(insert_ignore(conn, schedule_slots, key=["job", "slot_at"]).values(row)).rowcount
    return recorded


# --- firing ----------------------------------------------------------------------------------------------------------


def begin_slot(
    conn: Connection,
    job: str,
    slot_at: datetime,
    *,
    instance_id: str | None,
    now: datetime,
    lease_s: float | None = None,
    again: bool = False,
) -> bool:
    """Take a slot; return False where it has a row already.

    With *lease_s* it is taken until that is over; without, it is done (what it admits is in this transaction). With
    *again* a slot that was skipped or failed may be taken once more.
    """
    values: dict[str, Any] = {
        "status": "done" if lease_s is None else "taken",
        "reason": None,
        "instance_id": instance_id,
        "taken_at": now,
        "lease_expires_at": None if lease_s is None else now + timedelta(seconds=lease_s),
        "finished_at": now if lease_s is None else None,
        "error": None,
    }
    inserted = conn.execute(
        insert_ignore(conn, schedule_slots, key=["job", "slot_at"]).values(job=job, slot_at=slot_at, takes=1, **values)
    )
    if inserted.rowcount == 1:
        return True
    if not again:
        return False
    taken = conn.execute(
        sa.update(schedule_slots)
        .where(
            schedule_slots.c.job == job,
            schedule_slots.c.slot_at == slot_at,
            schedule_slots.c.status.in_(("skipped", "failed")),
        )
        .values(takes=schedule_slots.c.takes + 1, **values)
    )
    return taken.rowcount == 1


def admitted(conn: Connection, job: str, slot_at: datetime, session_id: str, submission_id: str) -> None:
    """Note what a slot admitted, in the transaction of the admission."""
    conn.execute(
        sa.update(schedule_slots)
        .where(schedule_slots.c.job == job, schedule_slots.c.slot_at == slot_at)
        .values(session_id=session_id, submission_id=submission_id)
    )


def not_admitted(conn: Connection, job: str, slot_at: datetime, error: str) -> None:
    """Note that a slot could not admit what it should have."""
    conn.execute(
        sa.update(schedule_slots)
        .where(schedule_slots.c.job == job, schedule_slots.c.slot_at == slot_at)
        .values(status="failed", error=error[:ERROR_CHARS_MAX])
    )


# --- work under a lease ----------------------------------------------------------------------------------------------


def take_over(
    conn: Connection, job: str, slot_at: datetime, *, instance_id: str | None, lease_s: float, now: datetime
) -> bool:
    """Take an unfinished slot whose lease has ended; return False where somebody else was faster."""
    taken = conn.execute(
        sa.update(schedule_slots)
        .where(
            schedule_slots.c.job == job,
            schedule_slots.c.slot_at == slot_at,
            schedule_slots.c.status == _TAKEN,
            schedule_slots.c.lease_expires_at <= now,
        )
        .values(
            instance_id=instance_id,
            taken_at=now,
            lease_expires_at=now + timedelta(seconds=lease_s),
            takes=schedule_slots.c.takes + 1,
        )
    )
    return taken.rowcount == 1


def renew_slot(conn: Connection, job: str, slot_at: datetime, *, instance_id: str | None, lease_s: float) -> bool:
    """Renew the lease on a slot; return False where it is another instance's by now."""
    renewed = conn.execute(
        _mine(job, slot_at, instance_id).values(lease_expires_at=db_now(conn) + timedelta(seconds=lease_s))
    )
    return renewed.rowcount == 1


def finish_slot(
    conn: Connection,
    job: str,
    slot_at: datetime,
    *,
    instance_id: str | None,
    result: str | None = None,
    error: str | None = None,
) -> bool:
    """Mark a slot done (failed, with an *error*), in the transaction of its work's last write.

    False where it is another instance's by now: then that transaction must be given up.
    """
    finished = conn.execute(
        _mine(job, slot_at, instance_id).values(
            status="done" if error is None else "failed",
            finished_at=db_now(conn),
            lease_expires_at=None,
            result=result,
            error=None if error is None else error[:ERROR_CHARS_MAX],
        )
    )
    return finished.rowcount == 1


def release_slots(conn: Connection, instance_id: str, slots: Sequence[tuple[str, datetime]]) -> None:
    """End the leases on an instance's own slots, so that others need not wait for them."""
    now = db_now(conn)
    for job, slot_at in slots:
        conn.execute(_mine(job, slot_at, instance_id).values(lease_expires_at=now))


def _mine(job: str, slot_at: datetime, instance_id: str | None) -> sa.Update:
    return sa.update(schedule_slots).where(
        schedule_slots.c.job == job,
        schedule_slots.c.slot_at == slot_at,
        schedule_slots.c.status == _TAKEN,
        schedule_slots.c.instance_id.is_not_distinct_from(instance_id),
    )
