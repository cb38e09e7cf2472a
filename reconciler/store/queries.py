"""Operators' reads over the public views: bounded, and without payloads but for the cut texts of `show`.

Every function takes a connection of `engine.read` and returns plain rows. Lists of submissions and of decisions, which
are read page by page, stand in ``listing.py``. Nothing here writes, decides or words anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from reconciler.store import schema as s
from reconciler.store.dialect import db_now, in_list, is_postgresql
from reconciler.store.views import v_attempts, v_decisions, v_instances, v_pending, v_quarantine

# Splits of one name that one statement tries, and hits that it lists.
_SPLITS_PER_STATEMENT: Final = 100
HITS_MAX: Final = 20
# Ids that a nearest match is looked for among.
NEAR_IDS_MAX: Final = 2000

Row = RowMapping


def _rows(result: sa.CursorResult[Any]) -> list[Row]:
    return list(result.mappings())


# --- counts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counts:
    """The state of the whole database at one moment."""

    now: datetime
    by_status: Mapping[str, int]
    held: int
    quarantined_sessions: int
    due: int
    claimable: int
    overdue: int
    blocked: int
    mirrored: int
    lease_ended: int
    unacknowledged: int
    oldest_pending_at: datetime | None
    oldest_due_at: datetime | None
    instances: Mapping[str, int]
    # The newest sign of life of a daemon that has not said good-bye; None where there is none.
    daemon_beat_at: datetime | None
    silent_instances: int
    missed_slots: int
    last_pass: Row | None


def count_all(conn: Connection, *, overdue_s: float) -> Counts:
    """Count what `status` shows; *overdue_s* is how long a submission may be claimable before it counts as overdue."""
    now = db_now(conn)
    # Materialized: what makes a row claimable is asked once for each, not once for each count.
    rows = (
        sa.select(
            v_pending.c.status,
            v_pending.c.reconcile_at,
            v_pending.c.claimable_from,
            v_pending.c.is_blocked,
            v_pending.c.origin,
            v_pending.c.lease_expires_at,
            v_pending.c.admitted_at,
        )
        .cte("pending")
        .prefix_with("MATERIALIZED")
    ).c
    pending = _rows(
        conn.execute(
            sa.select(
                rows.status,
                sa.func.count().label("rows"),
                _count_where(rows.reconcile_at <= now).label("due"),
                _count_where(rows.claimable_from <= now).label("claimable"),
                _count_where(rows.claimable_from <= now - timedelta(seconds=overdue_s)).label("overdue"),
                _count_where(rows.is_blocked.is_(sa.true())).label("blocked"),
                _count_where(rows.origin == "mirrored").label("mirrored"),
                _count_where(rows.lease_expires_at <= now).label("lease_ended"),
                sa.func.min(rows.admitted_at).label("oldest_pending_at"),
                sa.func.min(sa.case((rows.reconcile_at <= now, rows.reconcile_at))).label("oldest_due_at"),
            ).group_by(rows.status)
        )
    )
    held, sessions = conn.execute(
        sa.select(sa.func.count(), sa.func.count(v_quarantine.c.session_id.distinct())).select_from(v_quarantine)
    ).one()
    settled = conn.execute(
        sa.select(sa.func.count()).select_from(s.submissions).where(s.submissions.c.status == s.STATUS_SETTLED)
    ).scalar_one()
    alive = conn.execute(
        sa.select(v_instances.c.kind, sa.func.count())
        .where(v_instances.c.stopped_at.is_(None), v_instances.c.is_silent.is_(sa.false()))
        .group_by(v_instances.c.kind)
    ).all()

    def total(name: str) -> int:
        return sum(int(row[name] or 0) for row in pending)

    def oldest(name: str) -> datetime | None:
        return min((row[name] for row in pending if row[name] is not None), default=None)

    return Counts(
        now=now,
        by_status={row["status"]: row["rows"] for row in pending} | {"settled": settled},
        held=held,
        quarantined_sessions=sessions,
        due=total("due"),
        claimable=total("claimable"),
        overdue=total("overdue"),
        blocked=total("blocked"),
        mirrored=total("mirrored"),
        lease_ended=total("lease_ended"),
        unacknowledged=_count_unacknowledged(conn),
        oldest_pending_at=oldest("oldest_pending_at"),
        oldest_due_at=oldest("oldest_due_at"),
        instances={row[0]: row[1] for row in alive},
        daemon_beat_at=conn.execute(
            sa.select(sa.func.max(v_instances.c.beat_at)).where(
                v_instances.c.kind == "daemon", v_instances.c.stopped_at.is_(None)
            )
        ).scalar_one(),
        silent_instances=conn.execute(
            sa.select(sa.func.count()).select_from(v_instances).where(v_instances.c.is_silent.is_(sa.true()))
        ).scalar_one(),
        missed_slots=_count_missed_slots(conn, now),
        last_pass=_last_pass(conn),
    )


def _count_where(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _count_unacknowledged(conn: Connection) -> int:
    # The words of the partial index, so that it is used.
    count: int = conn.execute(
        sa.select(sa.func.count())
        .select_from(s.submissions)
        .where(
            s.submissions.c.status == s.STATUS_SETTLED,
            s.submissions.c.recovered.is_(sa.true()) if is_postgresql(conn) else s.submissions.c.recovered,
            s.submissions.c.acknowledged_at.is_(None),
        )
    ).scalar_one()
    return count


def _count_missed_slots(conn: Connection, now: datetime) -> int:
    # Taken, not finished, and nobody has taken it over.
    slots = s.schedule_slots
    count: int = conn.execute(
        sa.select(sa.func.count())
        .select_from(slots)
        .where(slots.c.status == sa.literal_column("'taken'"), slots.c.lease_expires_at <= now)
    ).scalar_one()
    return count


def _last_pass(conn: Connection) -> Row | None:
    passes = s.passes
    return (
        conn.execute(
            sa.select(passes.c.id, passes.c.started_at, passes.c.finished_at, passes.c.scanned)
            .order_by(passes.c.started_at.desc(), passes.c.id.desc())
            .limit(1)
        )
        .mappings()
        .first()
    )


# --- naming a submission ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hit:
    """A submission that a name may mean. ``pruned``: only its outcome is remembered."""

    session_id: str
    submission_id: str
    pruned: bool = False


def find_submissions(conn: Connection, name: str, *, session_id: str | None = None) -> list[Hit]:
    """Return the submissions that *name* may mean, at most `HITS_MAX`: as a bare id, and split at every ``/``."""
    hits: list[Hit] = []
    for table, column, pruned in (
        (s.submissions, s.submissions.c.id, False),
        (s.settled_ids, s.settled_ids.c.submission_id, True),
    ):
        for condition in _conditions(table.c.session_id, column, name, session_id):
            found = conn.execute(
                sa.select(table.c.session_id, column)
                .where(condition)
                .order_by(table.c.session_id, column)
                .limit(HITS_MAX)
            )
            hits += [Hit(session, submission, pruned) for session, submission in found]
    unique: dict[tuple[str, str], Hit] = {}
    for hit in hits:
        unique.setdefault((hit.session_id, hit.submission_id), hit)
    return list(unique.values())[:HITS_MAX]


def _conditions(
    session: sa.ColumnElement[str], submission: sa.ColumnElement[str], name: str, session_id: str | None
) -> Iterable[sa.ColumnElement[bool]]:
    if session_id is not None:
        yield sa.and_(session == session_id, submission == name)
        return
    yield submission == name
    slashes = [place for place, character in enumerate(name) if character == "/" and 0 < place < len(name) - 1]
    for start in range(0, len(slashes), _SPLITS_PER_STATEMENT):
        yield sa.or_(
            *(
                sa.and_(session == name[:place], submission == name[place + 1 :])
                for place in slashes[start : start + _SPLITS_PER_STATEMENT]
            )
        )


def recent_submission_ids(conn: Connection, *, session_id: str | None = None) -> list[tuple[str, str]]:
    """Return ids to look for a nearest match among: unsettled ones first, then the last settled; bounded."""
    sub = s.submissions
    unsettled = sa.select(sub.c.session_id, sub.c.id).where(sub.c.status != s.STATUS_SETTLED)
    settled = sa.select(sub.c.session_id, sub.c.id).where(sub.c.status == s.STATUS_SETTLED)
    if session_id is not None:
        unsettled, settled = (query.where(sub.c.session_id == session_id) for query in (unsettled, settled))
    found: list[tuple[str, str]] = []
    for query in (unsettled, settled.order_by(sub.c.settled_at.desc())):
        if len(found) < NEAR_IDS_MAX:
            found += [(row[0], row[1]) for row in conn.execute(query.limit(NEAR_IDS_MAX - len(found)))]
    return found


def recent_session_ids(conn: Connection) -> list[str]:
    """Return ids of sessions to look for a nearest match among; bounded."""
    return list(conn.execute(sa.select(s.sessions.c.id).limit(NEAR_IDS_MAX)).scalars())


# --- one submission --------------------------------------------------------------------------------------------------


def submission_row(conn: Connection, session_id: str, submission_id: str) -> Row | None:
    """Return a submission with its session's origin, version and leaf and its current attempt; None where none is."""
    sub, ses, att = s.submissions, s.sessions, s.attempts
    wide = {"entity_hints", "limits", "plan", "error", "content_digest"}
    return (
        conn.execute(
            sa.select(
                *(column for column in sub.c if column.name not in wide),
                ses.c.origin,
                ses.c.version.label("session_version"),
                ses.c.leaf_entry_id,
                att.c.owner,
                att.c.lease_expires_at,
                att.c.number.label("attempt_number"),
            )
            .select_from(
                sub.join(ses, ses.c.id == sub.c.session_id).outerjoin(
                    att, sa.and_(att.c.session_id == sub.c.session_id, att.c.attempt_id == sub.c.current_attempt_id)
                )
            )
            .where(sub.c.session_id == session_id, sub.c.id == submission_id)
        )
        .mappings()
        .first()
    )


def pruned_row(conn: Connection, session_id: str, submission_id: str) -> Row | None:
    """Return what is remembered of a pruned submission."""
    gone = s.settled_ids
    query = sa.select(gone).where(gone.c.session_id == session_id, gone.c.submission_id == submission_id)
    return conn.execute(query).mappings().first()


def decisions_of(conn: Connection, session_id: str, submission_id: str, *, limit: int) -> list[Row]:
    """Return the newest *limit* decisions, oldest of them first."""
    found = _rows(
        conn.execute(
            sa.select(v_decisions)
            .where(v_decisions.c.session_id == session_id, v_decisions.c.submission_id == submission_id)
            .order_by(v_decisions.c.number.desc())
            .limit(limit)
        )
    )
    return found[::-1]


def attempts_of(conn: Connection, session_id: str, submission_id: str, *, limit: int) -> list[Row]:
    """Return the newest *limit* attempts, oldest of them first."""
    found = _rows(
        conn.execute(
            sa.select(v_attempts)
            .where(v_attempts.c.session_id == session_id, v_attempts.c.submission_id == submission_id)
            .order_by(v_attempts.c.number.desc())
            .limit(limit)
        )
    )
    return found[::-1]


def last_recorded(conn: Connection, session_id: str, submission_id: str) -> Row | None:
    """Return the inspection that was recorded last: state, detail, evidence, and the rest as JSON text."""
    dec = s.decisions
    return (
        conn.execute(
            sa.select(dec.c.state, dec.c.detail, dec.c.evidence, dec.c.inspection)
            .where(dec.c.session_id == session_id, dec.c.submission_id == submission_id, dec.c.state.is_not(None))
            .order_by(dec.c.number.desc())
            .limit(1)
        )
        .mappings()
        .first()
    )


# --- one session -----------------------------------------------------------------------------------------------------

_ENTRY_COLUMNS: Final = tuple(column for column in s.entries.c if column.name != "session_id")


def session_row(conn: Connection, session_id: str) -> Row | None:
    """Return a session with the source it came from; None where there is none."""
    ses, src = s.sessions, s.sources
    return (
        conn.execute(
            sa.select(
                ses,
                src.c.format.label("source_format"),
                src.c.locator.label("source_locator"),
                src.c.quiet_since,
                src.c.owned_at,
            )
            .select_from(ses.outerjoin(src, src.c.id == ses.c.source_id))
            .where(ses.c.id == session_id)
        )
        .mappings()
        .first()
    )


def session_submissions(conn: Connection, session_id: str, *, limit: int) -> list[Row]:
    """Return the newest *limit* submissions of a session, in the order of admission."""
    sub = s.submissions
    found = _rows(
        conn.execute(
            sa.select(
                sub.c.id,
                sub.c.status,
                sub.c.outcome,
                sub.c.outcome_reason,
                sub.c.decision_reason,
                sub.c.held_reason,
                sub.c.admitted_at,
                sub.c.settled_at,
            )
            .where(sub.c.session_id == session_id)
            .order_by(sub.c.ticket.desc())
            .limit(limit)
        )
    )
    return found[::-1]


def count_entries(conn: Connection, session_id: str) -> int:
    """Return how many entries a session has."""
    count: int = conn.execute(
        sa.select(sa.func.count()).select_from(s.entries).where(s.entries.c.session_id == session_id)
    ).scalar_one()
    return count


def newest_entries(conn: Connection, session_id: str, *, limit: int) -> list[Row]:
    """Return the newest *limit* entries by ``seq``, newest first; the columns only."""
    ent = s.entries
    return _rows(
        conn.execute(
            sa.select(*_ENTRY_COLUMNS).where(ent.c.session_id == session_id).order_by(ent.c.seq.desc()).limit(limit)
        )
    )


def walk_up(conn: Connection, session_id: str, entry_id: str, *, limit: int) -> tuple[list[Row], str | None]:
    """Walk from an entry to its ancestors, at most *limit* entries.

    Returns:
        The entries, the one asked for first; and the id that was not there, None where the walk ended well.
    """
    ent = s.entries
    query = sa.select(*_ENTRY_COLUMNS).where(ent.c.session_id == session_id, ent.c.id == sa.bindparam("entry"))
    found: list[Row] = []
    seen: set[str] = set()
    wanted: str | None = entry_id
    while wanted is not None and len(found) < limit and wanted not in seen:
        row = conn.execute(query, {"entry": wanted}).mappings().first()
        if row is None:
            return found, wanted
        seen.add(wanted)
        found.append(row)
        wanted = row["parent_id"]
    return found, None


def missing_entries(conn: Connection, session_id: str, entry_ids: Sequence[str]) -> set[str]:
    """Return which of *entry_ids* the session does not have."""
    if not entry_ids:
        return set()
    ent = s.entries
    there = conn.execute(
        sa.select(ent.c.id).where(ent.c.session_id == session_id, in_list(conn, ent.c.id, entry_ids))
    ).scalars()
    return set(entry_ids) - set(there)


def payload_texts(conn: Connection, session_id: str, entry_ids: Sequence[str], *, chars_max: int) -> dict[str, str]:
    """Return the payloads' first *chars_max* characters (as stored: canonical JSON text) by entry id."""
    if not entry_ids:
        return {}
    pay = s.entry_payloads
    found = conn.execute(
        sa.select(pay.c.entry_id, sa.func.substr(pay.c.payload, 1, chars_max)).where(
            pay.c.session_id == session_id, in_list(conn, pay.c.entry_id, entry_ids)
        )
    )
    return {row[0]: row[1] for row in found}


def plan_of(conn: Connection, session_id: str, submission_id: str) -> Row:
    """Return a submission's stored plan and own limits, both JSON text or null; it must be there."""
    sub = s.submissions
    query = sa.select(sub.c.plan, sub.c.limits).where(sub.c.session_id == session_id, sub.c.id == submission_id)
    return conn.execute(query).mappings().one()
