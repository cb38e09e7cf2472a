"""What pruning removes, batch by batch: each function is one bounded piece inside the caller's transaction.

What goes is said once, as conditions, for the counts of a dry run and for the deletes. A submission leaves its id,
outcome and content digest behind in the transaction that removes it (I4). A session's row stays: its tickets never
restart (I19). Entries go from the newest to the oldest and only where the session has no submission left, so that a
crash between two batches leaves a sound, shorter session and never a damaged one.

Knows nothing of retention times and schedules: it is given instants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.core.canonical import canonical_json
from reconciler.core.model import INPUT_ID_PREFIX, KIND_SUBMISSION_SETTLED
from reconciler.core.states import Outcome, SubmissionStatus
from reconciler.errors import Conflict, NotFound
from reconciler.store.dialect import db_now, for_update, in_list, insert_ignore, sound_instant
from reconciler.store.schema import (
    STATUS_SETTLED,
    attempts,
    audit,
    decisions,
    entries,
    entry_payloads,
    instances,
    operation_items,
    operations,
    passes,
    schedule_slots,
    sessions,
    settled_ids,
    submissions,
    superseded_payloads,
)

# What stands in the place of a payload that was pruned by itself.
PRUNED_PAYLOAD: Final = canonical_json({"pruned": True})


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The instants before which things go; None keeps all of them.

    ``completed``, ``failed``, ``aborted``: when a submission was settled. ``unacknowledged``: the same for outcomes
    that were decided while nobody listened and that nobody has taken note of. ``entries`` and ``payloads``: a session's
    last change.
    """

    completed: datetime | None = None
    failed: datetime | None = None
    aborted: datetime | None = None
    unacknowledged: datetime | None = None
    entries: datetime | None = None
    payloads: datetime | None = None
    decisions: datetime | None = None
    passes: datetime | None = None
    slots: datetime | None = None
    instances: datetime | None = None
    operations: datetime | None = None
    audit: datetime | None = None


@dataclass(frozen=True, slots=True)
class SettledPlace:
    """Where a batch of settled submissions ended."""

    settled_at: datetime
    session_id: str
    submission_id: str


# --- what goes -------------------------------------------------------------------------------------------------------


def _before(column: sa.ColumnElement[Any], cutoff: datetime) -> sa.ColumnElement[bool]:
    # What holds no instant is not old: it needs a person, who finds it only while it is there.
    return sa.and_(column < sa.bindparam(None, cutoff, type_=column.type, unique=True), sound_instant(column))


def _old_enough(cutoffs: Cutoffs) -> sa.ColumnElement[bool]:
    s = submissions.c
    by_outcome = [
        sa.and_(s.outcome == sa.literal_column(f"'{outcome.value}'"), _before(s.settled_at, cutoff))
        for outcome in Outcome
        if (cutoff := getattr(cutoffs, outcome.value)) is not None
    ]
    if not by_outcome:
        return sa.false()
    # Somebody may still ask for an outcome that was decided while nobody listened.
    unheard = sa.and_(s.recovered.is_(sa.true()), s.acknowledged_at.is_(None))
    heard = sa.not_(unheard)
    if cutoffs.unacknowledged is not None:
        heard = sa.or_(heard, _before(s.settled_at, cutoffs.unacknowledged))
    return sa.and_(s.status == STATUS_SETTLED, sa.or_(*by_outcome), heard)


def _finished_sessions(cutoffs: Cutoffs, cutoff: datetime) -> sa.ColumnElement[bool]:
    """Sessions of which nothing is left to be done, or will be once their submissions are pruned."""
    stays = (
        sa.select(submissions.c.id)
        .where(submissions.c.session_id == sessions.c.id, sa.not_(_old_enough(cutoffs)))
        .exists()
    )
    there = sa.select(entries.c.id).where(entries.c.session_id == sessions.c.id).exists()
    return sa.and_(_before(sessions.c.updated_at, cutoff), sa.not_(stays), there)


def _settled_sessions(cutoff: datetime) -> sa.ColumnElement[bool]:
    open_ = (
        sa.select(submissions.c.id)
        .where(submissions.c.session_id == sessions.c.id, sa.text("submissions.status <> 'settled'"))
        .exists()
    )
    return sa.and_(_before(sessions.c.updated_at, cutoff), sa.not_(open_))


def _payload_may_go() -> sa.ColumnElement[bool]:
    return sa.and_(entries.c.kind != KIND_SUBMISSION_SETTLED, entry_payloads.c.payload != PRUNED_PAYLOAD)


def _old_decisions(cutoff: datetime) -> sa.ColumnElement[bool]:
    # The last one and the one that settled stay: they explain the outcome.
    settled = (
        sa.select(submissions.c.id)
        .where(
            submissions.c.session_id == decisions.c.session_id,
            submissions.c.id == decisions.c.submission_id,
            submissions.c.status == STATUS_SETTLED,
            decisions.c.number < submissions.c.decision_count,
        )
        .exists()
    )
    return sa.and_(_before(decisions.c.decided_at, cutoff), decisions.c.action.not_in(("settle", "adopt")), settled)


def _old_passes(cutoff: datetime) -> sa.ColumnElement[bool]:
    named = (
        sa.select(decisions.c.number)
        .select_from(
            decisions.join(
                submissions,
                sa.and_(
                    submissions.c.session_id == decisions.c.session_id, submissions.c.id == decisions.c.submission_id
                ),
            )
        )
        .where(decisions.c.pass_id == passes.c.id, sa.text("submissions.status <> 'settled'"))
        .exists()
    )
    # By the column that has the index; a pass that ended later began later.
    return sa.and_(_before(passes.c.started_at, cutoff), _before(passes.c.finished_at, cutoff), sa.not_(named))


def _old_slots(cutoff: datetime) -> sa.ColumnElement[bool]:
    slots = schedule_slots
    later = slots.alias("later")
    open_ = (
        sa.select(submissions.c.id)
        .where(
            submissions.c.session_id == slots.c.session_id,
            submissions.c.id == slots.c.submission_id,
            sa.text("submissions.status <> 'settled'"),
        )
        .exists()
    )
    # The newest slot of a job tells where it stands.
    newer = sa.select(later.c.job).where(later.c.job == slots.c.job, later.c.slot_at > slots.c.slot_at).exists()
    return sa.and_(
        _before(slots.c.slot_at, cutoff), slots.c.status != sa.literal_column("'taken'"), newer, sa.not_(open_)
    )


def _old_instances(cutoff: datetime) -> sa.ColumnElement[bool]:
    holds = sa.select(attempts.c.attempt_id).where(
        attempts.c.instance_id == instances.c.id, attempts.c.ended_at.is_(None)
    )
    # Stopped, or silent for so long that nobody waits for it.
    return sa.and_(_before(instances.c.beat_at, cutoff), sa.not_(holds.exists()))


def _old_operations(cutoff: datetime) -> sa.ColumnElement[bool]:
    ended = sa.func.coalesce(operations.c.finished_at, operations.c.created_at, type_=operations.c.created_at.type)
    return sa.and_(operations.c.status != sa.literal_column("'open'"), _before(ended, cutoff))


# --- counting --------------------------------------------------------------------------------------------------------


def count(conn: Connection, cutoffs: Cutoffs) -> dict[str, int]:
    """Return how many rows of each kind would go, by the conditions that the removal uses; writes nothing."""
    found: dict[str, int] = {}
    by_outcome = sa.select(submissions.c.outcome, sa.func.count()).where(_old_enough(cutoffs))
    counted = {row[0]: int(row[1]) for row in conn.execute(by_outcome.group_by(submissions.c.outcome))}
    for outcome in Outcome:
        found[outcome.value] = counted.get(outcome.value, 0)
    found["entries"] = found["payloads"] = 0
    if cutoffs.entries is not None:
        finished = sa.select(sessions.c.id).where(_finished_sessions(cutoffs, cutoffs.entries))
        found["entries"] = _counted(conn, entries, entries.c.session_id.in_(finished))
    if cutoffs.payloads is not None:
        found["payloads"] = int(
            conn.execute(sa.select(sa.func.count()).select_from(_payloads_of_settled(cutoffs.payloads))).scalar_one()
        )
        if cutoffs.entries is not None:
            # What goes with its entry goes once.
            gone = sa.select(sessions.c.id).where(_finished_sessions(cutoffs, cutoffs.entries))
            both = _payloads_of_settled(cutoffs.payloads)
            found["payloads"] -= int(
                conn.execute(
                    sa.select(sa.func.count()).select_from(both).where(both.c.session_id.in_(gone))
                ).scalar_one()
            )
    for name, (table, condition) in _SIMPLE.items():
        cutoff = getattr(cutoffs, name)
        if cutoff is None:
            found[name] = 0
            continue
        goes = condition(cutoff)
        if name == "decisions":
            # Those of submissions that go are counted with them.
            of_one_that_goes = sa.select(submissions.c.id).where(
                submissions.c.session_id == decisions.c.session_id,
                submissions.c.id == decisions.c.submission_id,
                _old_enough(cutoffs),
            )
            goes = sa.and_(goes, sa.not_(of_one_that_goes.exists()))
        found[name] = _counted(conn, table, goes)
    return found


def _counted(conn: Connection, table: sa.Table, condition: sa.ColumnElement[bool]) -> int:
    return int(conn.execute(sa.select(sa.func.count()).select_from(table).where(condition)).scalar_one())


# --- submissions -----------------------------------------------------------------------------------------------------


def prune_submissions(
    conn: Connection, cutoffs: Cutoffs, *, limit: int, after: SettledPlace | None
) -> tuple[dict[str, int], SettledPlace | None]:
    """Remove up to *limit* settled submissions behind *after*, oldest first, and remember what they were.

    Returns:
        How many went by outcome, and where to go on; None where nothing is left behind it.
    """
    s = submissions.c
    key = (s.settled_at, s.session_id, s.id)
    query = (
        sa.select(s.session_id, s.id, s.outcome, s.content_digest, s.ticket, s.claims, s.settled_at)
        .where(_old_enough(cutoffs))
        .order_by(*key)
        .limit(limit)
    )
    if after is not None:
        query = query.where(
            sa.tuple_(*key)
            > sa.tuple_(
                sa.bindparam(None, after.settled_at, type_=s.settled_at.type),
                sa.bindparam(None, after.session_id, type_=sa.Text()),
                sa.bindparam(None, after.submission_id, type_=sa.Text()),
            )
        )
    seen = conn.execute(query).all()
    place = SettledPlace(seen[-1].settled_at, seen[-1].session_id, seen[-1].id) if len(seen) == limit else None
    held = _lock_sessions(conn, sorted({row.session_id for row in seen}))
    rows = [row for row in seen if row.session_id in held]
    if rows:
        _forget_rows(conn, rows)
    gone = {outcome.value: sum(row.outcome == outcome.value for row in rows) for outcome in Outcome}
    return gone, place


def _lock_sessions(conn: Connection, session_ids: Sequence[str]) -> set[str]:
    # Those that somebody works in are left for the next run.
    query = sa.select(sessions.c.id).where(in_list(conn, sessions.c.id, session_ids)).order_by(sessions.c.id)
    return set(conn.execute(for_update(query, skip_locked=True)).scalars())


def _forget_rows(conn: Connection, rows: Sequence[Any]) -> None:
    now = db_now(conn)
    # First: a submission that is gone without being remembered could be run again.
    conn.execute(
        insert_ignore(conn, settled_ids, key=["session_id", "submission_id"]),
        [
            {
                "session_id": row.session_id,
                "submission_id": row.id,
                "outcome": row.outcome,
                "content_digest": row.content_digest,
                "ticket": row.ticket,
                "claims": row.claims,
                "settled_at": row.settled_at,
                "pruned_at": now,
            }
            for row in rows
        ],
    )
    keys = [{"p_session": row.session_id, "p_submission": row.id} for row in rows]
    for table, column in (
        (attempts, attempts.c.submission_id),
        (decisions, decisions.c.submission_id),
        (submissions, submissions.c.id),
    ):
        conn.execute(
            sa.delete(table).where(
                table.c.session_id == sa.bindparam("p_session"), column == sa.bindparam("p_submission")
            ),
            keys,
        )
    # A prompt that never began waits as a payload without an entry.
    begun = (
        sa.select(entries.c.id)
        .where(entries.c.session_id == entry_payloads.c.session_id, entries.c.id == entry_payloads.c.entry_id)
        .exists()
    )
    conn.execute(
        sa.delete(entry_payloads).where(
            entry_payloads.c.session_id == sa.bindparam("p_session"),
            entry_payloads.c.entry_id == sa.bindparam("p_entry"),
            sa.not_(begun),
        ),
        [{"p_session": row.session_id, "p_entry": INPUT_ID_PREFIX + row.id} for row in rows],
    )


# --- entries ---------------------------------------------------------------------------------------------------------


def finished_sessions(conn: Connection, cutoffs: Cutoffs, *, after: str, limit: int) -> list[str]:
    """Return sessions whose entries may go, by id, behind *after*."""
    if cutoffs.entries is None:
        return []
    query = (
        sa.select(sessions.c.id)
        .where(sessions.c.id > after, _finished_sessions(cutoffs, cutoffs.entries))
        .order_by(sessions.c.id)
        .limit(limit)
    )
    return list(conn.execute(query).scalars())


def prune_entries(conn: Connection, session_id: str, cutoffs: Cutoffs, *, limit: int) -> tuple[int, bool]:
    """Remove the newest *limit* entries of a session without submissions; its leaf moves up to what is left.

    Returns:
        How many went, and whether there are more. (0, False) where the session isn't finished any more.
    """
    if cutoffs.entries is None:
        return 0, False
    query = sa.select(sessions.c.leaf_entry_id, sessions.c.version).where(
        sessions.c.id == session_id, _before(sessions.c.updated_at, cutoffs.entries)
    )
    session = conn.execute(for_update(query, skip_locked=True)).one_or_none()
    if session is None or _has_submissions(conn, session_id):
        return 0, False
    rows = conn.execute(
        sa.select(entries.c.seq, entries.c.id, entries.c.parent_id)
        .where(entries.c.session_id == session_id)
        .order_by(entries.c.seq.desc())
        .limit(limit)
    ).all()
    if not rows:
        return 0, False
    parents = {row.id: row.parent_id for row in rows}
    leaf = session.leaf_entry_id
    for _ in range(len(parents)):
        if leaf not in parents:
            break
        leaf = parents[leaf]
    if leaf in parents:
        # A cycle: nothing above it is a path.
        leaf = None
    more = len(rows) == limit
    for table, column in (
        (entry_payloads, entry_payloads.c.entry_id),
        (superseded_payloads, superseded_payloads.c.entry_id),
    ):
        # With the last piece all that is left goes: payloads of prompts that never began.
        narrowed = in_list(conn, column, list(parents)) if more else sa.true()
        conn.execute(sa.delete(table).where(table.c.session_id == session_id, narrowed))
    conn.execute(sa.delete(entries).where(entries.c.session_id == session_id, entries.c.seq >= rows[-1].seq))
    conn.execute(
        sa.update(sessions)
        .where(sessions.c.id == session_id)
        .values(version=session.version + 1, leaf_entry_id=leaf if more else None)
    )
    return len(rows), more


def _has_submissions(conn: Connection, session_id: str) -> bool:
    query = sa.select(submissions.c.id).where(submissions.c.session_id == session_id).limit(1)
    return conn.execute(query).first() is not None


# --- payloads by themselves ------------------------------------------------------------------------------------------


def _payloads_of_settled(cutoff: datetime) -> sa.Subquery:
    return (
        sa.select(entry_payloads.c.session_id, entry_payloads.c.entry_id)
        .select_from(
            sessions.join(entries, entries.c.session_id == sessions.c.id).join(
                entry_payloads,
                sa.and_(entry_payloads.c.session_id == entries.c.session_id, entry_payloads.c.entry_id == entries.c.id),
            )
        )
        .where(_settled_sessions(cutoff), _payload_may_go())
        .subquery()
    )


def prune_payloads(
    conn: Connection, cutoffs: Cutoffs, *, limit: int, after: tuple[str, str]
) -> tuple[int, tuple[str, str] | None]:
    """Empty payloads of settled sessions behind *after* (session, entry); entries stay, so that the record is judged.

    Returns:
        How many were emptied, and where to go on; None at the end.
    """
    if cutoffs.payloads is None:
        return 0, None
    found = _payloads_of_settled(cutoffs.payloads)
    key = (found.c.session_id, found.c.entry_id)
    there = sa.tuple_(*(sa.bindparam(None, text, type_=sa.Text()) for text in after))
    rows = conn.execute(sa.select(*key).where(sa.tuple_(*key) > there).order_by(*key).limit(limit)).all()
    held = _lock_sessions(conn, sorted({row.session_id for row in rows}))
    mine = [row for row in rows if row.session_id in held]
    if mine:
        conn.execute(
            sa.update(entry_payloads)
            .where(
                entry_payloads.c.session_id == sa.bindparam("p_session"),
                entry_payloads.c.entry_id == sa.bindparam("p_entry"),
            )
            .values(payload=PRUNED_PAYLOAD),
            [{"p_session": row.session_id, "p_entry": row.entry_id} for row in mine],
        )
    return len(mine), (rows[-1].session_id, rows[-1].entry_id) if len(rows) == limit else None


# --- the rest --------------------------------------------------------------------------------------------------------

_SIMPLE: Final[dict[str, tuple[sa.Table, Any]]] = {
    "decisions": (decisions, _old_decisions),
    "passes": (passes, _old_passes),
    "slots": (schedule_slots, _old_slots),
    "instances": (instances, _old_instances),
    "operations": (operations, _old_operations),
    "audit": (audit, lambda cutoff: _before(audit.c.at, cutoff)),
}
SIMPLE: Final = tuple(_SIMPLE)
# What each of them is read in the order of, where that keeps a batch from looking at what stays.
_ORDER: Final[dict[str, sa.Column[Any]]] = {
    "decisions": decisions.c.decided_at,
    "passes": passes.c.started_at,
    "instances": instances.c.beat_at,
    "audit": audit.c.at,
}


def prune_simple(conn: Connection, name: str, cutoffs: Cutoffs, *, limit: int) -> tuple[int, bool]:
    """Remove up to *limit* rows of the kind *name* (of `SIMPLE`).

    Returns:
        How many went, and whether there may be more.
    """
    cutoff = getattr(cutoffs, name)
    if cutoff is None:
        return 0, False
    table, condition = _SIMPLE[name]
    key = list(table.primary_key.columns)
    query = sa.select(*key).where(condition(cutoff)).limit(limit)
    if name in _ORDER:
        query = query.order_by(_ORDER[name])
    rows = conn.execute(query).all()
    if not rows:
        return 0, False
    if name == "operations" and _prune_items(conn, [row[0] for row in rows], limit=limit) == limit:
        # An operation goes when its items are gone, a batch at a time.
        return 0, True
    wanted = sa.and_(*(column == sa.bindparam(f"p_{column.name}") for column in key))
    conn.execute(
        sa.delete(table).where(wanted),
        [{f"p_{column.name}": value for column, value in zip(key, row, strict=True)} for row in rows],
    )
    return len(rows), len(rows) == limit


def _prune_items(conn: Connection, operation_ids: Sequence[str], *, limit: int) -> int:
    key = (operation_items.c.operation_id, operation_items.c.number)
    rows = conn.execute(
        sa.select(*key).where(in_list(conn, operation_items.c.operation_id, operation_ids)).limit(limit)
    ).all()
    if rows:
        conn.execute(
            sa.delete(operation_items).where(key[0] == sa.bindparam("p_id"), key[1] == sa.bindparam("p_number")),
            [{"p_id": row[0], "p_number": row[1]} for row in rows],
        )
    return len(rows)


# --- forgetting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was remembered of a pruned submission, until now."""

    session_id: str
    submission_id: str
    outcome: str
    settled_at: datetime


def forget(conn: Connection, session_id: str, submission_id: str) -> Forgotten:
    """Forget that a pruned submission was settled: its id may be admitted again.

    Raises:
        NotFound: nothing of it is remembered.
        Conflict: it isn't pruned: its row is there.
    """
    conn.execute(for_update(sa.select(sessions.c.id).where(sessions.c.id == session_id)))
    there = conn.execute(
        sa.select(submissions.c.status).where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
    ).scalar_one_or_none()
    name = f"{session_id}/{submission_id}"
    if there is not None:
        state = "settled, and not pruned" if there == SubmissionStatus.SETTLED else f"{there}"
        raise Conflict(
            f'cannot forget "{name}": it is {state}', hint="only what pruning has left of a submission can be forgotten"
        )
    where = (settled_ids.c.session_id == session_id, settled_ids.c.submission_id == submission_id)
    row = conn.execute(sa.select(settled_ids).where(*where)).one_or_none()
    if row is None:
        raise NotFound(f'nothing is remembered of a submission "{name}"', hint="it is named SESSION/SUBMISSION")
    conn.execute(sa.delete(settled_ids).where(*where))
    return Forgotten(session_id, submission_id, row.outcome, row.settled_at)
