"""The durable refine gate's rows: epochs, rejected edits, what operators forgave, and reading it all back.

Every function runs in the caller's transaction and may be run again with it. The subject's newest epoch is the lock of
all that is kept of the subject: who steps, closes, forgives, trims or opens the next one holds that row first, and
reads the rest in statements of its own after that. Steps, the hot path, stand in ``refine_gate.py``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from reconciler.core.canonical import canonical_json
from reconciler.core.refine import (
    EditBudget,
    RefineEpoch,
    RefineVerdict,
    RejectedEdit,
    StepRecord,
)
from reconciler.errors import EpochOpen, InvalidInput, StoreConflict
from reconciler.store import refine_gate
from reconciler.store.dialect import db_now, in_list, insert_ignore
from reconciler.store.refine_gate import EVICT, busy, unknown_epoch, unknown_subject
from reconciler.store.schema import audit, refine_epochs, refine_steps, rejected_edits
from reconciler.store.types import UtcDateTime

FORGIVE_VERB: Final = "refine forgive"
EVICT_VERB: Final = "refine evict"


@dataclass(frozen=True, slots=True)
class Forgiven:
    """What one act of forgiving did. ``edit_ids`` are those it let be tried again, in the order of their ids."""

    audit_id: str
    subject: str
    edit_ids: tuple[str, ...]
    # Asked for, and not rejected (or forgiven before).
    not_rejected: tuple[str, ...]


_SUBJECT: Final[sa.BindParameter[Any]] = sa.bindparam("p_subject")
_OF_SUBJECT: Final = refine_epochs.c.subject == _SUBJECT

_NAMED: Final = (
    sa.select(*refine_epochs.c).where(_OF_SUBJECT, refine_epochs.c.epoch == sa.bindparam("p_epoch")).with_for_update()
)
_NEWEST: Final = sa.select(*refine_epochs.c).where(_OF_SUBJECT).order_by(refine_epochs.c.epoch.desc()).limit(1)
_NEWEST_LOCKED: Final = _NEWEST.with_for_update()
_ALL_EPOCHS: Final = sa.select(
    sa.func.max(refine_epochs.c.epoch).label("epoch"), sa.func.max(refine_epochs.c.best_score).label("best_score")
).where(_OF_SUBJECT)


def _epoch(row: Row[Any]) -> RefineEpoch:
    return RefineEpoch(
        subject=row.subject,
        epoch=row.epoch,
        baseline_score=row.baseline_score,
        best_score=row.best_score,
        budget=EditBudget(row.budget_max, row.budget_floor),
        used=row.used,
        steps=row.steps,
        rejected_count=row.rejected_count,
        buffer_max=row.buffer_max,
        evicted=row.evicted,
        opened_at=row.opened_at,
        closed_at=row.closed_at,
    )


# --- locks ---------------------------------------------------------------------------------------------------------


def _lock_newest(conn: Connection, subject: str) -> RefineEpoch | None:
    """Lock the subject's newest epoch; None where it has none."""
    for _ in range(refine_gate.LOCK_ROUNDS_MAX):
        row = conn.execute(_NEWEST_LOCKED, {"p_subject": subject}).one_or_none()
        if row is None:
            return None
        # The row was chosen before the lock was held: a newer one may stand there since.
        if conn.execute(_ALL_EPOCHS, {"p_subject": subject}).one().epoch == row.epoch:
            return _epoch(row)
    raise busy(subject)


def _lock_known(conn: Connection, subject: str) -> RefineEpoch:
    found = _lock_newest(conn, subject)
    if found is None:
        raise unknown_subject(subject)
    return found


def _lock_named(conn: Connection, subject: str, epoch: int) -> RefineEpoch:
    row = conn.execute(_NAMED, {"p_subject": subject, "p_epoch": epoch}).one_or_none()
    if row is not None:
        return _epoch(row)
    raise unknown_subject(subject) if newest_epoch(conn, subject) is None else unknown_epoch(subject, epoch)


class BufferOverBound(StoreConflict):
    """The subject remembers more rejected edits than the bound that its next epoch shall have."""


# --- epochs --------------------------------------------------------------------------------------------------------


def open_epoch(
    conn: Connection,
    subject: str,
    *,
    baseline_score: float | None,
    budget: EditBudget,
    buffer_max: int | None,
    may_be_over: bool = False,
) -> RefineEpoch:
    """Open the subject's next epoch.

    Without a baseline it begins at the best score of all its epochs. *buffer_max* None keeps the last epoch's bound, 0
    lifts it. *may_be_over* plans as if the buffer were cut to its bound already.

    Raises:
        EpochOpen: one is open.
        InvalidInput: a first epoch without a baseline.
        BufferOverBound: more rejections are kept than the bound allows: ``trim`` first.
        StoreConflict: the row stays busy.
    """
    for _ in range(refine_gate.LOCK_ROUNDS_MAX):
        last = _lock_newest(conn, subject)
        if last is not None and last.is_open:
            raise EpochOpen(
                f'subject "{subject}" has an open epoch already: {last.epoch}',
                detail={"subject": subject, "epoch": last.epoch},
            )
        made = _next_epoch(conn, subject, last, baseline_score, budget, buffer_max, may_be_over)
        statement = insert_ignore(conn, refine_epochs, key=("subject", "epoch")).values(
            subject=subject,
            epoch=made.epoch,
            baseline_score=made.baseline_score,
            best_score=made.best_score,
            budget_max=budget.max,
            budget_floor=budget.floor,
            rejected_count=made.rejected_count,
            buffer_max=made.buffer_max,
            opened_at=made.opened_at,
        )
        if conn.execute(statement).rowcount == 1:
            return made
        # A first epoch has no row to lock: another caller made it meanwhile, and the next round meets it.
    raise busy(subject)


def _next_epoch(
    conn: Connection,
    subject: str,
    last: RefineEpoch | None,
    baseline_score: float | None,
    budget: EditBudget,
    buffer_max: int | None,
    may_be_over: bool,
) -> RefineEpoch:
    if baseline_score is None:
        if last is None:
            raise InvalidInput(
                f'the first epoch of subject "{subject}" needs a baseline score',
                hint="measure the skill as it is now, and give its score: `refine open SUBJECT --baseline SCORE`"
                " (baseline_score in Python)",
            )
        baseline_score = conn.execute(_ALL_EPOCHS, {"p_subject": subject}).one().best_score
    bound = (None if last is None else last.buffer_max) if buffer_max is None else buffer_max or None
    rejected_count = 0 if last is None else last.rejected_count
    if bound is not None and rejected_count > bound:
        if not may_be_over:
            raise BufferOverBound(
                f'could not bound the buffer of subject "{subject}" to {bound}: it holds {rejected_count}',
                hint="try again",
            )
        rejected_count = bound
    return RefineEpoch(
        subject=subject,
        epoch=1 if last is None else last.epoch + 1,
        baseline_score=baseline_score,
        best_score=baseline_score,
        budget=budget,
        used=0,
        steps=0,
        rejected_count=rejected_count,
        buffer_max=bound,
        evicted=0,
        opened_at=db_now(conn),
    )


def close_epoch(conn: Connection, subject: str, *, epoch: int | None) -> tuple[RefineEpoch, bool]:
    """Close the epoch named, else the newest; tell whether this call did it (it may be closed already).

    Raises:
        NotFound: no such subject or epoch.
    """
    found = _lock_known(conn, subject) if epoch is None else _lock_named(conn, subject, epoch)
    if not found.is_open:
        return found, False
    closed = replace(found, closed_at=db_now(conn))
    conn.execute(_CLOSE, {"p_subject": subject, "p_epoch": found.epoch, "p_now": closed.closed_at})
    return closed, True


_CLOSE: Final = (
    sa.update(refine_epochs)
    .where(_OF_SUBJECT, refine_epochs.c.epoch == sa.bindparam("p_epoch"), refine_epochs.c.closed_at.is_(None))
    .values(closed_at=sa.bindparam("p_now", type_=UtcDateTime()))
)


# --- the buffer ----------------------------------------------------------------------------------------------------


def trim(conn: Connection, subject: str, *, keep: int, at_most: int, audit_id: str, operator: str) -> int:
    """Drop the mildest rejections beyond *keep*, *at_most* of them in this transaction; return how many were dropped.

    They are recorded in ``audit`` and counted in the newest epoch. A subject that isn't there has nothing to drop.
    """
    newest = _lock_newest(conn, subject)
    surplus = 0 if newest is None else min(newest.rejected_count - keep, at_most)
    if newest is None or surplus <= 0:
        return 0
    dropped = sorted(conn.execute(EVICT, {"p_subject": subject, "p_count": surplus}).scalars())
    _change_buffer(conn, newest, rejected=-len(dropped), evicted=len(dropped))
    _record(
        conn,
        audit_id,
        subject,
        EVICT_VERB,
        operator,
        parameters={"keep": keep},
        reason=None,
        result={"edit_ids": dropped},
    )
    return len(dropped)


def forgive(
    conn: Connection, subject: str, edit_ids: Collection[str], *, audit_id: str, operator: str, reason: str | None
) -> Forgiven:
    """Let rejected edits be tried again. A repeat with the same *audit_id* gives the first answer.

    Raises:
        NotFound: no such subject.
    """
    newest = _lock_known(conn, subject)
    asked = sorted(set(edit_ids))
    before = conn.execute(sa.select(audit.c.result).where(audit.c.id == audit_id)).scalar_one_or_none()
    if before is not None:
        return _forgiven(audit_id, subject, asked, json.loads(before)["edit_ids"])
    statement = (
        sa.update(rejected_edits)
        .where(
            rejected_edits.c.subject == subject,
            in_list(conn, rejected_edits.c.edit_id, asked),
            rejected_edits.c.forgiven_at.is_(None),
        )
        .values(forgiven_at=db_now(conn))
        .returning(rejected_edits.c.edit_id)
    )
    done = sorted(conn.execute(statement).scalars())
    _change_buffer(conn, newest, rejected=-len(done), evicted=0)
    _record(
        conn,
        audit_id,
        subject,
        FORGIVE_VERB,
        operator,
        parameters={"edit_ids": asked},
        reason=reason,
        result={"edit_ids": done},
    )
    return _forgiven(audit_id, subject, asked, done)


def _forgiven(audit_id: str, subject: str, asked: Sequence[str], done: Sequence[str]) -> Forgiven:
    return Forgiven(audit_id, subject, tuple(done), tuple(edit_id for edit_id in asked if edit_id not in set(done)))


_CHANGE_BUFFER: Final = (
    sa.update(refine_epochs)
    .where(_OF_SUBJECT, refine_epochs.c.epoch == sa.bindparam("p_epoch"))
    .values(
        rejected_count=refine_epochs.c.rejected_count + sa.bindparam("p_rejected"),
        evicted=refine_epochs.c.evicted + sa.bindparam("p_evicted"),
    )
)


def _change_buffer(conn: Connection, newest: RefineEpoch, *, rejected: int, evicted: int) -> None:
    conn.execute(
        _CHANGE_BUFFER,
        {"p_subject": newest.subject, "p_epoch": newest.epoch, "p_rejected": rejected, "p_evicted": evicted},
    )


def _record(
    conn: Connection,
    audit_id: str,
    subject: str,
    verb: str,
    operator: str,
    *,
    parameters: dict[str, Any],
    reason: str | None,
    result: dict[str, Any],
) -> None:
    conn.execute(
        sa.insert(audit).values(
            id=audit_id,
            at=db_now(conn),
            operator=operator,
            verb=verb,
            subject=subject,
            parameters=canonical_json(parameters),
            reason=reason,
            result=canonical_json(result),
        )
    )


# --- reading -------------------------------------------------------------------------------------------------------


def newest_epoch(conn: Connection, subject: str) -> RefineEpoch | None:
    """Return the subject's newest epoch, open or closed; None where it has none."""
    row = conn.execute(_NEWEST, {"p_subject": subject}).one_or_none()
    return None if row is None else _epoch(row)


def named_epoch(conn: Connection, subject: str, epoch: int) -> RefineEpoch | None:
    """Return one epoch of the subject; None where it has no such."""
    row = conn.execute(
        sa.select(*refine_epochs.c).where(_OF_SUBJECT, refine_epochs.c.epoch == epoch), {"p_subject": subject}
    ).one_or_none()
    return None if row is None else _epoch(row)


def epochs(conn: Connection, subject: str, *, after: int, limit: int) -> list[RefineEpoch]:
    """Return the subject's epochs with a number above *after*, oldest first."""
    statement = (
        sa.select(*refine_epochs.c)
        .where(refine_epochs.c.subject == subject, refine_epochs.c.epoch > after)
        .order_by(refine_epochs.c.epoch)
        .limit(limit)
    )
    return [_epoch(row) for row in conn.execute(statement)]


def newest_epochs(conn: Connection, *, after: str, limit: int) -> list[RefineEpoch]:
    """Return the newest epoch of each subject behind *after* (the empty text for all), in the order of subjects."""
    newest = (
        sa.select(refine_epochs.c.subject, sa.func.max(refine_epochs.c.epoch).label("epoch"))
        .where(refine_epochs.c.subject > after)
        .group_by(refine_epochs.c.subject)
        .order_by(refine_epochs.c.subject)
        .limit(limit)
        .subquery()
    )
    statement = (
        sa.select(*refine_epochs.c)
        .join(newest, sa.and_(newest.c.subject == refine_epochs.c.subject, newest.c.epoch == refine_epochs.c.epoch))
        .order_by(refine_epochs.c.subject)
    )
    return [_epoch(row) for row in conn.execute(statement)]


def steps(conn: Connection, subject: str, *, after: tuple[int, int], limit: int, epoch: int | None) -> list[StepRecord]:
    """Return the subject's steps behind *after* (epoch, number), oldest first; of one epoch where it is given."""
    table = refine_steps.c
    statement = (
        sa.select(*table)
        .where(table.subject == subject, sa.tuple_(table.epoch, table.number) > sa.tuple_(*after))
        .order_by(table.epoch, table.number)
        .limit(limit)
    )
    if epoch is not None:
        statement = statement.where(table.epoch == epoch)
    return [
        StepRecord(
            subject=row.subject,
            epoch=row.epoch,
            number=row.number,
            edit_id=row.edit_id,
            candidate_score=row.candidate_score,
            verdict=RefineVerdict(row.verdict),
            best_score=row.best_score,
            used=row.used,
            stepped_at=row.stepped_at,
            step_key=row.step_key,
            evicted_edit_id=row.evicted_edit_id,
        )
        for row in conn.execute(statement)
    ]


def rejections(
    conn: Connection, subject: str, *, after: str, limit: int, with_forgiven: bool = False
) -> list[RejectedEdit]:
    """Return the subject's rejected edits with an id behind *after* (the empty text for all), in the order of ids."""
    table = rejected_edits.c
    statement = (
        sa.select(*table).where(table.subject == subject, table.edit_id > after).order_by(table.edit_id).limit(limit)
    )
    if not with_forgiven:
        statement = statement.where(table.forgiven_at.is_(None))
    return [_rejection(row) for row in conn.execute(statement)]


_REJECTION: Final = sa.select(*rejected_edits.c).where(
    rejected_edits.c.subject == _SUBJECT, rejected_edits.c.edit_id == sa.bindparam("p_edit_id")
)


def rejection(conn: Connection, subject: str, edit_id: str) -> RejectedEdit | None:
    """Return what is remembered of one edit, forgiven or not; None where it was never rejected, or evicted."""
    row = conn.execute(_REJECTION, {"p_subject": subject, "p_edit_id": edit_id}).one_or_none()
    return None if row is None else _rejection(row)


def _rejection(row: Row[Any]) -> RejectedEdit:
    return RejectedEdit(
        subject=row.subject,
        edit_id=row.edit_id,
        worst_drop=row.worst_drop,
        count=row._mapping["count"],
        first_at=row.first_at,
        last_at=row.last_at,
        forgiven_at=row.forgiven_at,
    )
