"""Who is alive: rows of daemons, runners and one-shot runs, and the attempts of processes on one machine.

Knows nothing of what instances do, and proves nobody's death: that is read from /proc, elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.store.dialect import db_now, for_update, insert_ignore
from reconciler.store.schema import STATUS_RUNNING, attempts, instances, submissions

# Rows of instances that stopped, or went silent, so long ago are removed.
KEEP_S: Final = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Instance:
    """A process that uses the database. ``id`` is made at its start and never used again."""

    id: str
    kind: str
    owner: str
    program_version: str
    host: str | None
    machine_id: str | None
    boot_id: str | None
    pid_namespace: str | None
    pid: int | None
    process_start: str | None
    beat_s: float


def beat_instance(conn: Connection, instance: Instance) -> datetime:
    """Write a sign of life, and the row where there is none; return the database's clock."""
    now = db_now(conn)
    # A beat after a good-bye takes that back: somebody is there.
    beaten = conn.execute(
        sa.update(instances)
        .where(instances.c.id == instance.id)
        .values(beat_at=now, beat_s=instance.beat_s, stopped_at=None)
    )
    if beaten.rowcount == 0:
        values = {name: getattr(instance, name) for name in Instance.__dataclass_fields__}
        conn.execute(insert_ignore(conn, instances, key=["id"]).values(**values, started_at=now, beat_at=now))
    return now


def stop_instance(conn: Connection, instance_id: str) -> None:
    """Write the good-bye."""
    now = db_now(conn)
    conn.execute(sa.update(instances).where(instances.c.id == instance_id).values(beat_at=now, stopped_at=now))


def forget_instances(conn: Connection, *, keep_s: float = KEEP_S) -> int:
    """Remove instances that were last heard of longer than *keep_s* ago; return how many."""
    removed = conn.execute(sa.delete(instances).where(instances.c.beat_at < db_now(conn) - timedelta(seconds=keep_s)))
    return removed.rowcount


# --- processes of one machine ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holder:
    """A process of this machine that holds attempts, and its last beat; None where it did not say so."""

    machine_id: str | None
    boot_id: str
    pid_namespace: str | None
    pid: int | None
    process_start: str | None
    beat_at: datetime
    attempts: int


_WHO: Final = (
    attempts.c.machine_id,
    attempts.c.boot_id,
    attempts.c.pid_namespace,
    attempts.c.pid,
    attempts.c.process_start,
)


def holders_here(
    conn: Connection, *, machine_id: str | None, boot_id: str, pid_namespace: str | None, limit: int = 10_000
) -> list[Holder]:
    """Return the processes that hold current attempts: those of this boot and pid namespace, and of earlier boots.

    Those of which nothing can ever be proven from here are left out.
    """
    this_boot = sa.and_(
        attempts.c.boot_id == boot_id, attempts.c.pid_namespace == pid_namespace, attempts.c.pid.is_not(None)
    )
    other_boot = sa.and_(attempts.c.boot_id != boot_id, attempts.c.machine_id == machine_id)
    rows = conn.execute(
        sa.select(*_WHO, sa.func.max(attempts.c.beat_at), sa.func.count())
        # The words of the partial index.
        .where(attempts.c.ended_at.is_(None), sa.or_(this_boot, other_boot))
        .group_by(*_WHO)
        .limit(limit)
    )
    return [Holder(*row) for row in rows]


def held_ahead(conn: Connection, holder: Holder, *, limit: int = 1_000) -> list[tuple[str, str]]:
    """Return at most *limit* submissions that a process holds and that are not due yet, as session and submission."""
    found = conn.execute(_held_by(holder, db_now(conn)).limit(limit)).all()
    return [(row.session_id, row.id) for row in found]


def _held_by(holder: Holder, now: datetime) -> sa.Select[tuple[str, str]]:
    held = sa.select(attempts.c.session_id, attempts.c.attempt_id).where(
        attempts.c.ended_at.is_(None),
        *(column.is_not_distinct_from(getattr(holder, column.name)) for column in _WHO),
    )
    return (
        sa.select(submissions.c.session_id, submissions.c.id)
        .where(
            submissions.c.status == STATUS_RUNNING,
            sa.tuple_(submissions.c.session_id, submissions.c.current_attempt_id).in_(held),
            submissions.c.reconcile_at > now,
        )
        .order_by(submissions.c.session_id, submissions.c.id)
    )


def make_due(conn: Connection, holder: Holder, *, limit: int = 1_000) -> int:
    """Make the submissions due that a process holds which is proven dead; return how many it made due.

    At most *limit*; the next call finds the rest.

    A push of ``reconcile_at`` and nothing else: what becomes of them is the next pass's decision.
    """
    now = db_now(conn)
    # Nobody is waited for: a row that is locked is being looked at.
    locked = conn.execute(for_update(_held_by(holder, now).limit(limit), skip_locked=True)).all()
    if locked:
        conn.execute(
            sa.update(submissions)
            .where(
                submissions.c.session_id == sa.bindparam("p_session"), submissions.c.id == sa.bindparam("p_submission")
            )
            .values(reconcile_at=now),
            [{"p_session": row.session_id, "p_submission": row.id} for row in locked],
        )
    return len(locked)
