"""A step of the refine gate: the statements between its lock and its commit. The hot path of ``store/refine.py``.

Runs in the caller's transaction and may be run again with it. The epoch's row is locked first; what else a step must
know is read in a statement of its own after that. Verdicts come from ``core.refine.gate_step``; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from reconciler.core.refine import EditBudget, GateAnswer, RefineVerdict, gate_step
from reconciler.errors import Conflict, EpochClosed, NotFound, StoreConflict
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.prepared import Prepared, Values, rows_of
from reconciler.store.schema import refine_epochs, refine_steps, rejected_edits
from reconciler.store.types import UtcDateTime

# A lock that waited may come back with an epoch that was closed, and followed, in between: it is looked for anew. Each
# round needs that others closed and opened an epoch meanwhile.
LOCK_ROUNDS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class KeyedCandidate:
    """A candidate with its step key, which the caller gave (``asked``) or the API made for this call."""

    edit_id: str
    score: float
    step_key: str
    asked: bool


def unknown_subject(subject: str) -> NotFound:
    """Return the error for a subject without an epoch."""
    return NotFound(
        f'there is no refine subject "{subject}" in this database',
        hint="see `reconciler refine status` for those there are; a new one begins with its first epoch:"
        " `refine open SUBJECT --baseline SCORE`",
    )


def unknown_epoch(subject: str, epoch: int) -> NotFound:
    """Return the error for a subject that has no such epoch."""
    return NotFound(f'subject "{subject}" has no epoch {epoch}', hint="leave the epoch out to mean the newest one")


def busy(subject: str) -> StoreConflict:
    """Return the error for a lock that was looked for ``LOCK_ROUNDS_MAX`` times."""
    return StoreConflict(
        f'could not lock the refine subject "{subject}": its epochs are closed and opened faster than that',
        hint="try again",
    )


# --- statements ----------------------------------------------------------------------------------------------------


def _p(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(f"p_{name}")


_NOW: Final = sa.bindparam("p_now", type_=UtcDateTime())
_OF_SUBJECT: Final = refine_epochs.c.subject == _p("subject")

# In the order of `_Standing`.
_STANDING: Final = (
    refine_epochs.c.epoch,
    refine_epochs.c.best_score,
    refine_epochs.c.budget_max,
    refine_epochs.c.budget_floor,
    refine_epochs.c.used,
    refine_epochs.c.steps,
    refine_epochs.c.rejected_count,
    refine_epochs.c.buffer_max,
    refine_epochs.c.evicted,
    refine_epochs.c.closed_at.is_(None).label("is_open"),
)
OPEN: Final = sa.select(*_STANDING).where(_OF_SUBJECT, refine_epochs.c.closed_at.is_(None)).with_for_update()
NAMED: Final = sa.select(*_STANDING).where(_OF_SUBJECT, refine_epochs.c.epoch == _p("epoch")).with_for_update()
NEWEST: Final = sa.select(*_STANDING).where(_OF_SUBJECT).order_by(refine_epochs.c.epoch.desc()).limit(1)

# What a step must know, in one statement after the lock: whether the edit is known bad, and the key's first answer.
_ONE: Final = sa.select(sa.literal(1).label("one")).subquery("one")
_FIRST: Final = refine_steps.alias("s")
_FIRST_EPOCH: Final = refine_epochs.alias("e")
_KNOWN: Final = sa.exists(
    sa.select(sa.literal(1)).where(
        rejected_edits.c.subject == _p("subject"),
        rejected_edits.c.edit_id == _p("edit_id"),
        rejected_edits.c.forgiven_at.is_(None),
    )
).label("known")
FACTS: Final = sa.select(
    _KNOWN,
    _FIRST.c.number,
    _FIRST.c.epoch,
    _FIRST.c.edit_id,
    _FIRST.c.candidate_score,
    _FIRST.c.verdict,
    _FIRST.c.best_score,
    _FIRST.c.used,
    _FIRST.c.evicted_edit_id,
    _FIRST_EPOCH.c.budget_max,
    _FIRST_EPOCH.c.budget_floor,
).select_from(
    _ONE.outerjoin(_FIRST, sa.and_(_FIRST.c.subject == _p("subject"), _FIRST.c.step_key == _p("step_key"))).outerjoin(
        _FIRST_EPOCH, sa.and_(_FIRST_EPOCH.c.subject == _FIRST.c.subject, _FIRST_EPOCH.c.epoch == _FIRST.c.epoch)
    )
)
# The clock of the moment after the lock travels along; on SQLite it is the host's.
_FACTS_AND_CLOCK: Final = FACTS.add_columns(sa.func.clock_timestamp(type_=UtcDateTime()).label("now"))

_INSERT_STEP: Final = sa.insert(refine_steps).values(
    subject=_p("subject"),
    epoch=_p("epoch"),
    number=_p("number"),
    step_key=_p("step_key"),
    edit_id=_p("edit_id"),
    candidate_score=_p("score"),
    verdict=_p("verdict"),
    best_score=_p("best_score"),
    used=_p("used"),
    evicted_edit_id=_p("evicted_edit_id"),
    stepped_at=_NOW,
)
_UPDATE_EPOCH: Final = (
    sa.update(refine_epochs)
    .where(
        _OF_SUBJECT,
        refine_epochs.c.epoch == _p("epoch"),
        # Nobody else can have changed them under the lock; if anybody did, nothing is written.
        refine_epochs.c.steps == _p("steps_before"),
        refine_epochs.c.used == _p("used_before"),
        refine_epochs.c.closed_at.is_(None),
    )
    .values(
        best_score=_p("best_score"),
        used=_p("used"),
        steps=_p("number"),
        rejected_count=_p("rejected_count"),
        evicted=_p("evicted"),
    )
)


def _remember(made: postgresql.Insert | sqlite.Insert) -> postgresql.Insert | sqlite.Insert:
    statement = made.values(
        subject=_p("subject"), edit_id=_p("edit_id"), worst_drop=_p("drop"), count=1, first_at=_NOW, last_at=_NOW
    )
    worse = statement.excluded.worst_drop > rejected_edits.c.worst_drop
    return statement.on_conflict_do_update(
        index_elements=["subject", "edit_id"],
        set_={
            "worst_drop": sa.case((worse, statement.excluded.worst_drop), else_=rejected_edits.c.worst_drop),
            "count": rejected_edits.c.count + 1,
            "last_at": statement.excluded.last_at,
            "forgiven_at": None,
        },
    )


# PostgreSQL writes a step in one statement: a round trip costs more there than what it carries. Differs on SQLite
# because it has no writing WITH, and no round trips.
_STEP_POSTGRESQL: Final = _UPDATE_EPOCH.returning(refine_epochs.c.epoch).add_cte(_INSERT_STEP.cte("step"))
_REJECTED_STEP_POSTGRESQL: Final = _STEP_POSTGRESQL.add_cte(
    _remember(postgresql.insert(rejected_edits)).cte("remembered")
)

MILDEST: Final = (
    sa.select(rejected_edits.c.edit_id)
    .where(rejected_edits.c.subject == _p("subject"), rejected_edits.c.forgiven_at.is_(None))
    .order_by(rejected_edits.c.worst_drop, rejected_edits.c.last_at, rejected_edits.c.edit_id)
    .limit(_p("count"))
)
EVICT: Final = (
    sa.delete(rejected_edits)
    .where(rejected_edits.c.subject == _p("subject"), rejected_edits.c.edit_id.in_(MILDEST))
    .returning(rejected_edits.c.edit_id)
)


# SQLAlchemy's own execution of a step took six times the cost of its statements on SQLite, and twice their processor
# time on PostgreSQL.
_LOCK_OPEN: Final = Prepared(OPEN)
_LOCK_NAMED: Final = Prepared(NAMED)
_READ_NEWEST: Final = Prepared(NEWEST)
_READ_FACTS: Final = Prepared(lambda conn: _FACTS_AND_CLOCK if is_postgresql(conn) else FACTS)
_REMEMBER: Final = Prepared(
    lambda conn: _remember((postgresql if is_postgresql(conn) else sqlite).insert(rejected_edits))
)
_EVICT_MILDEST: Final = Prepared(EVICT)
_WRITE_STEP: Final = Prepared(_INSERT_STEP)
_WRITE_EPOCH: Final = Prepared(_UPDATE_EPOCH)
_WRITE_POSTGRESQL: Final = {False: Prepared(_STEP_POSTGRESQL), True: Prepared(_REJECTED_STEP_POSTGRESQL)}


# --- the gate ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Standing:
    """The locked epoch, as the steps of this transaction change it."""

    subject: str
    epoch: int
    best_score: float
    budget: EditBudget
    used: int
    steps: int
    rejected_count: int
    buffer_max: int | None
    evicted: int
    is_open: bool


def _standing(subject: str, row: Any) -> _Standing:
    epoch, best_score, most, floor, used, steps, rejected_count, buffer_max, evicted, is_open = row
    return _Standing(
        subject,
        epoch,
        best_score,
        EditBudget(most, floor),
        used,
        steps,
        rejected_count,
        buffer_max,
        evicted,
        bool(is_open),
    )


def gate(
    conn: Connection, subject: str, candidates: Sequence[KeyedCandidate], *, epoch: int | None
) -> tuple[GateAnswer, ...]:
    """Gate *candidates* in order, all of them in this transaction.

    For each in this order: a known key gives its first answer, whatever epoch; a closed epoch refuses; the budget, the
    memory and the score decide.

    Raises:
        Conflict: a known key with another edit or score.
        EpochClosed: the epoch named is closed, or none is open.
        NotFound: no such subject or epoch.
        StoreConflict: the epochs turn over too fast to lock one, or a row changed under the lock.
    """

    def question(candidate: KeyedCandidate) -> Values:
        return {"p_subject": subject, "p_edit_id": candidate.edit_id, "p_step_key": candidate.step_key}

    # What the first candidate needs to know is asked behind the lock, in its round trip.
    standing, first_facts = _lock(conn, subject, epoch, question(candidates[0]))
    answers: list[GateAnswer] = []
    for number, candidate in enumerate(candidates):
        facts = first_facts if number == 0 else _READ_FACTS.rows(conn, question(candidate))[0]
        if facts[1] is not None:
            answers.append(_first_answer(subject, candidate, facts))
            continue
        if standing is None or not standing.is_open:
            _refuse(conn, subject, epoch, candidate, standing)
        now = facts.now if is_postgresql(conn) else db_now(conn)
        answers.append(_step(conn, standing, candidate, bool(facts.known), now))
    return tuple(answers)


def _lock(conn: Connection, subject: str, epoch: int | None, question: Values) -> tuple[_Standing | None, Any]:
    """Lock the epoch that a step names, or the open one (None where there is none such), and ask *question* then.

    Each statement sees what was committed before it began: the answer is of after the lock.
    """
    if epoch is not None:
        found, (facts,) = rows_of(
            conn, (_LOCK_NAMED, {"p_subject": subject, "p_epoch": epoch}), (_READ_FACTS, question)
        )
        return (_standing(subject, found[0]) if found else None), facts
    for _ in range(LOCK_ROUNDS_MAX):
        found, (facts,) = rows_of(conn, (_LOCK_OPEN, {"p_subject": subject}), (_READ_FACTS, question))
        if found:
            return _standing(subject, found[0]), facts
        # Nothing, or what was open got closed while the lock was waited for: look whether the next one is open.
        newest = _READ_NEWEST.rows(conn, {"p_subject": subject})
        if not newest or not newest[0][-1]:
            return None, facts
    raise busy(subject)


def _step(
    conn: Connection, standing: _Standing, candidate: KeyedCandidate, known_rejected: bool, now: datetime
) -> GateAnswer:
    """Judge one candidate, write its rows, and bring *standing* up to date."""
    used, steps = standing.used, standing.steps
    judged = gate_step(
        standing.best_score, used, candidate.score, known_rejected=known_rejected, budget=standing.budget
    )
    # What cost nothing leaves a row only for a key to find it by: a skill that proposes the same bad edit for ever
    # must not fill the disk.
    number = steps + 1 if candidate.asked or judged.used > used else None
    evicted_edit_id: str | None = None
    if number is not None:
        values = {
            "p_subject": standing.subject,
            "p_epoch": standing.epoch,
            "p_number": number,
            "p_step_key": candidate.step_key,
            "p_edit_id": candidate.edit_id,
            "p_score": candidate.score,
            "p_verdict": judged.verdict.value,
            "p_best_score": judged.best_score,
            "p_used": judged.used,
            "p_drop": judged.drop,
            "p_steps_before": steps,
            "p_used_before": used,
            "p_now": now,
        }
        evicted_edit_id = _write(conn, standing, judged.verdict, values)
        standing.best_score, standing.used, standing.steps = judged.best_score, judged.used, number
    return GateAnswer(
        subject=standing.subject,
        epoch=standing.epoch,
        edit_id=candidate.edit_id,
        score=candidate.score,
        verdict=judged.verdict,
        best_score=judged.best_score,
        used=judged.used,
        budget=standing.budget,
        number=number,
        step_key=candidate.step_key if candidate.asked else None,
        evicted_edit_id=evicted_edit_id,
    )


def _write(conn: Connection, standing: _Standing, verdict: RefineVerdict, values: dict[str, Any]) -> str | None:
    """Write a step's rows; return the rejected edit that had to give way to it."""
    on_postgresql = is_postgresql(conn)
    rejects = verdict is RefineVerdict.REJECTED
    standing.rejected_count += rejects
    overflows = rejects and standing.buffer_max is not None and standing.rejected_count > standing.buffer_max
    evicted_edit_id: str | None = None
    if rejects and (overflows or not on_postgresql):
        _REMEMBER.run(conn, [values])
    if overflows:
        ((evicted_edit_id,),) = _EVICT_MILDEST.rows(conn, {"p_subject": standing.subject, "p_count": 1})
        standing.rejected_count -= 1
        standing.evicted += 1
    values |= {
        "p_evicted_edit_id": evicted_edit_id,
        "p_rejected_count": standing.rejected_count,
        "p_evicted": standing.evicted,
    }
    if on_postgresql:
        written = len(_WRITE_POSTGRESQL[rejects and not overflows].rows(conn, values))
    else:
        _WRITE_STEP.run(conn, [values])
        written = _WRITE_EPOCH.run(conn, [values])
    if written != 1:
        raise StoreConflict(
            f'could not step in epoch {standing.epoch} of subject "{standing.subject}": its row changed under the lock',
            hint="another program writes these tables; find it",
        )
    return evicted_edit_id


def _first_answer(subject: str, candidate: KeyedCandidate, first: Any) -> GateAnswer:
    _, number, epoch, edit_id, score, verdict, best_score, used, evicted_edit_id, most, floor, *_ = first
    if (edit_id, score) != (candidate.edit_id, candidate.score):
        raise Conflict(
            f'step key "{candidate.step_key}" of subject "{subject}" was used before, for edit "{edit_id}" with'
            f' score {score!r}; now it comes for "{candidate.edit_id}" with {candidate.score!r}',
            detail={"subject": subject, "step_key": candidate.step_key, "epoch": epoch, "number": number},
            hint="use a new key for a new step",
        )
    return GateAnswer(
        subject=subject,
        epoch=epoch,
        edit_id=edit_id,
        score=score,
        verdict=RefineVerdict(verdict),
        best_score=best_score,
        used=used,
        budget=EditBudget(most, floor),
        number=number,
        step_key=candidate.step_key if candidate.asked else None,
        repeated=True,
        evicted_edit_id=evicted_edit_id,
    )


def _refuse(
    conn: Connection, subject: str, epoch: int | None, candidate: KeyedCandidate, found: _Standing | None
) -> NoReturn:
    if found is None:
        if not _READ_NEWEST.rows(conn, {"p_subject": subject}):
            raise unknown_subject(subject)
        if epoch is not None:
            raise unknown_epoch(subject, epoch)
    which = "has no open epoch" if found is None else f"has closed its epoch {found.epoch}"
    raise EpochClosed(
        f'cannot gate edit "{candidate.edit_id}": subject "{subject}" {which}',
        detail={"subject": subject, "epoch": None if found is None else found.epoch},
    )
