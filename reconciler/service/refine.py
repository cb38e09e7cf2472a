"""The durable refine gate (contract 3.3, I14): epochs, budgets and the memory of rejected edits that outlive processes.

Each call is one transaction, tried again as a whole where another was in the way. Checks come before the first
statement, so that a bad value spends nothing; ids that a call needs are made before its first try.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sqlalchemy.engine import Connection, Engine

from reconciler.core.checks import items_of, require_text, require_whole, shown
from reconciler.core.refine import (
    DEFAULT_EDIT_BUDGET,
    EditBudget,
    EditCandidate,
    GateAnswer,
    RefineEpoch,
    RefineOutcome,
    RefineStep,
    RefineVerdict,
    RejectedEdit,
    RejectedEditBuffer,
    StepRecord,
    check_score,
    check_whole,
)
from reconciler.errors import ConfigurationInvalid, InvalidInput, LimitExceeded, ReservedId
from reconciler.log import quiet_libraries
from reconciler.store import refine as store
from reconciler.store.engine import (
    DEFAULT_SETTINGS,
    EngineSettings,
    make_engine,
    read,
    require_schema,
    run_transaction,
    sqlite_path,
)
from reconciler.store.new_entries import require_id
from reconciler.store.refine import Forgiven
from reconciler.store.refine_gate import KeyedCandidate, unknown_epoch, unknown_subject
from reconciler.store.refine_gate import gate as store_gate

T = TypeVar("T")

CANDIDATES_MAX: Final = 1_000
FORGIVE_MAX: Final = 1_000
PAGE_MAX: Final = 10_000
# What a whole column holds; a larger budget is a mistake.
BUDGET_MAX: Final = 2**31 - 1
_EPOCH_MAX: Final = 2**63 - 1
# How many rejections one transaction drops: well below the second that a write transaction may take.
_TRIM_PIECE: Final = 1_000
# How often opening starts over where rejections come in while the buffer is cut to a new bound.
_OPEN_ROUNDS_MAX: Final = 5
_MADE_KEY_PREFIX: Final = "made:"


@dataclass(frozen=True, slots=True)
class ClosedEpoch:
    """A closed epoch; ``already_closed`` tells that this call found it so."""

    epoch: RefineEpoch
    already_closed: bool


class RefineGate:
    """The refine gate over a database.

    Any number of processes may gate the same subject. Threads may share one gate.
    """

    def __init__(
        self, database_url: str, *, operator: str = "api", settings: EngineSettings = DEFAULT_SETTINGS
    ) -> None:
        """Open the gate on *database_url*. An SQLite file that isn't there yet is made.

        *operator* stands in the audit of what is forgiven or evicted.

        Raises:
            SchemaMismatch: the database has another schema than this program needs.
            ConfigurationInvalid: the URL cannot be used.
            DatabaseUnavailable: it could not be reached.
        """
        if not isinstance(settings, EngineSettings):
            raise ConfigurationInvalid(f"cannot use {shown(settings)} as settings: they are EngineSettings")
        self._operator = _operator(operator)
        path = sqlite_path(database_url)
        if path is not None and not path.exists() and not settings.read_only:
            # Set-up, not migration: nothing can be lost where there is nothing (Alembic is loaded for this alone).
            from reconciler.store.migrate import upgrade

            upgrade(database_url, settings=settings)
        quiet_libraries()
        engine = make_engine(database_url, settings=settings)
        try:
            require_schema(engine, for_writing=not settings.read_only)
        except BaseException:
            engine.dispose()
            raise
        self._engine = engine
        self._owns_engine = True

    @classmethod
    def over(cls, engine: Engine, *, operator: str = "api") -> Self:
        """Return a gate over an engine whose schema was checked, and which stays the caller's."""
        gate = cls.__new__(cls)
        gate._engine = engine
        gate._owns_engine = False
        gate._operator = _operator(operator)
        return gate

    def dispose(self) -> None:
        """Give the connections back. Epochs stay as they are: an open one is gone on with by any process."""
        if self._owns_engine:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.dispose()

    # --- acts ------------------------------------------------------------------------------------------------------

    def open(
        self,
        subject: str,
        *,
        baseline_score: float | None = None,
        budget: EditBudget = DEFAULT_EDIT_BUDGET,
        buffer_max: int | None = None,
        dry_run: bool = False,
    ) -> RefineEpoch:
        """Open the subject's next epoch.

        Without a baseline it begins at the best score so far; a subject's first epoch needs one. *buffer_max* bounds
        how many rejected edits the subject remembers (the worst drops are kept longest): None leaves that as it is
        (at first: all), 0 lifts the bound.

        Raises:
            EpochOpen: one is open; its number is in ``detail``.
            InvalidInput: a value is not valid, or the first epoch has no baseline.
        """
        require_id(subject, "subject")
        baseline = None if baseline_score is None else check_score(baseline_score, "baseline score")
        _check_budget(budget)
        bound = None if buffer_max is None else _limited(check_whole(buffer_max, "buffer_max"), "buffer_max")

        def work(conn: Connection) -> RefineEpoch:
            return store.open_epoch(
                conn, subject, baseline_score=baseline, budget=budget, buffer_max=bound, may_be_over=dry_run
            )

        for _ in range(_OPEN_ROUNDS_MAX):
            try:
                return self._act(work, dry_run=dry_run)
            except store.BufferOverBound:
                self._trim(subject, bound or 0)
        return self._act(work, dry_run=dry_run)

    def gate(
        self,
        subject: str,
        edit_id: str,
        score: float,
        *,
        step_key: str | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> GateAnswer:
        """Gate one candidate in the subject's open epoch, or in the one named.

        A repeated call with the same *step_key* gives its first answer and spends nothing.

        Raises:
            InvalidInput: a value is not valid; nothing is spent.
            EpochClosed: the epoch is closed, or none is open.
            NotFound: no such subject or epoch.
            Conflict: the key was used for another edit or score.
        """
        (answer,) = self.gate_many(
            subject,
            [EditCandidate(edit_id, score)],
            step_keys=None if step_key is None else [step_key],
            epoch=epoch,
            dry_run=dry_run,
        )
        return answer

    def gate_many(
        self,
        subject: str,
        candidates: Iterable[EditCandidate],
        *,
        step_keys: Sequence[str | None] | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> tuple[GateAnswer, ...]:
        """Gate a sequence in one transaction: all of it is recorded, or nothing.

        One answer for each candidate, also behind the end of the budget. *step_keys* has one for each candidate.

        Raises:
            LimitExceeded: more than ``CANDIDATES_MAX``.
            InvalidInput, EpochClosed, NotFound, Conflict: as ``gate``; nothing of the sequence is recorded.
        """
        require_id(subject, "subject")
        _check_epoch(epoch)
        keyed = _keyed(candidates, step_keys)
        if not keyed:
            self.status(subject, epoch=epoch)
            return ()
        return self._act(lambda conn: store_gate(conn, subject, keyed, epoch=epoch), dry_run=dry_run, idempotent=True)

    def close(self, subject: str, *, epoch: int | None = None, dry_run: bool = False) -> ClosedEpoch:
        """Close the epoch named, else the subject's newest. A closed one stays as it is.

        Raises:
            NotFound: no such subject or epoch.
        """
        require_id(subject, "subject")
        _check_epoch(epoch)
        found, closed_now = self._act(
            lambda conn: store.close_epoch(conn, subject, epoch=epoch), dry_run=dry_run, idempotent=True
        )
        return ClosedEpoch(found, already_closed=not closed_now)

    def forgive(
        self, subject: str, edit_ids: Iterable[str], *, reason: str | None = None, dry_run: bool = False
    ) -> Forgiven:
        """Let rejected edits be tried again; who, which and why stands in ``audit``.

        Raises:
            NotFound: no such subject.
            InvalidInput: no edit is named, or an id is not valid.
            LimitExceeded: more than ``FORGIVE_MAX`` edits.
        """
        require_id(subject, "subject")
        asked = [require_id(edit_id, "edit id") for edit_id in items_of(edit_ids, "edit ids", FORGIVE_MAX)]
        if not asked:
            raise InvalidInput(f'no edit of subject "{subject}" is named', hint="name the edits to forgive")
        why = None if reason is None else require_text(reason, "a reason")
        audit_id = _made_id()
        return self._act(
            lambda conn: store.forgive(conn, subject, asked, audit_id=audit_id, operator=self._operator, reason=why),
            dry_run=dry_run,
            idempotent=True,
        )

    # --- questions -------------------------------------------------------------------------------------------------

    def status(self, subject: str, *, epoch: int | None = None) -> RefineEpoch:
        """Return the epoch named, else the subject's newest, open or closed.

        Raises:
            NotFound: no such subject or epoch.
        """
        require_id(subject, "subject")
        _check_epoch(epoch)
        with read(self._engine) as conn:
            newest = store.newest_epoch(conn, subject)
            if newest is None or epoch is None:
                return _found(newest, subject)
            named = store.named_epoch(conn, subject, epoch)
        if named is None:
            raise unknown_epoch(subject, epoch)
        return named

    def subjects(self, *, after: str = "", limit: int = 100) -> tuple[RefineEpoch, ...]:
        """Return the newest epoch of each subject behind *after*, in the order of their ids."""
        _check_after(after)
        with read(self._engine) as conn:
            return tuple(store.newest_epochs(conn, after=after, limit=_page(limit)))

    def epochs(self, subject: str, *, after: int = 0, limit: int = 100) -> tuple[RefineEpoch, ...]:
        """Return the subject's epochs behind the number *after*, oldest first.

        Raises:
            NotFound: no such subject.
        """
        require_id(subject, "subject")
        require_whole(after, "after", 0, _EPOCH_MAX)
        with read(self._engine) as conn:
            _found(store.newest_epoch(conn, subject), subject)
            return tuple(store.epochs(conn, subject, after=after, limit=_page(limit)))

    def history(
        self, subject: str, *, epoch: int | None = None, after: tuple[int, int] = (0, 0), limit: int = 1_000
    ) -> tuple[StepRecord, ...]:
        """Return the subject's steps behind *after* (epoch and number), oldest first; of one epoch where it is named.

        Raises:
            NotFound: no such subject or epoch.
        """
        _check_place(after)
        self.status(subject, epoch=epoch)
        with read(self._engine) as conn:
            found = store.steps(conn, subject, after=after, limit=_page(limit), epoch=epoch)
        return tuple(_without_made_key(step) for step in found)

    def rejected(
        self, subject: str, *, after: str = "", limit: int = 1_000, with_forgiven: bool = False
    ) -> tuple[RejectedEdit, ...]:
        """Return the subject's rejected edits with an id behind *after*, in the order of their ids.

        Raises:
            NotFound: no such subject.
        """
        require_id(subject, "subject")
        _check_after(after)
        with read(self._engine) as conn:
            _found(store.newest_epoch(conn, subject), subject)
            found = store.rejections(conn, subject, after=after, limit=_page(limit), with_forgiven=with_forgiven)
        return tuple(found)

    def rejection(self, subject: str, edit_id: str) -> RejectedEdit | None:
        """Return what is remembered of one edit, forgiven or not; None where it was never rejected, or evicted."""
        require_id(subject, "subject")
        require_id(edit_id, "edit id")
        with read(self._engine) as conn:
            return store.rejection(conn, subject, edit_id)

    def outcome(self, subject: str, *, epoch: int | None = None) -> RefineOutcome:
        """Return an epoch as ``run_refine_gate`` would: best score, scored steps, and what the subject now remembers.

        Raises:
            NotFound: no such subject or epoch.
        """
        found = self.status(subject, epoch=epoch)
        steps: list[RefineStep] = []
        after = (found.epoch, 0)
        while page := self.history(subject, epoch=found.epoch, after=after, limit=PAGE_MAX):
            after = (found.epoch, page[-1].number)
            steps += [
                RefineStep(step.edit_id, step.candidate_score, step.verdict is RefineVerdict.ACCEPTED)
                for step in page
                if step.verdict in (RefineVerdict.ACCEPTED, RefineVerdict.REJECTED)
            ]
        buffer = RejectedEditBuffer()
        last = ""
        while edits := self.rejected(subject, after=last, limit=PAGE_MAX):
            last = edits[-1].edit_id
            for edit in edits:
                buffer.record(edit.edit_id, edit.worst_drop)
        return RefineOutcome(found.best_score, tuple(steps), buffer)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _act(self, work: Callable[[Connection], T], *, dry_run: bool, idempotent: bool = False) -> T:
        if not dry_run:
            return run_transaction(self._engine, work, idempotent=idempotent)

        def undone(conn: Connection) -> T:
            raise _DryRun(work(conn))

        try:
            return run_transaction(self._engine, undone, idempotent=True)
        except _DryRun as planned:
            result: T = planned.result
            return result

    def _trim(self, subject: str, keep: int) -> None:
        """Cut the buffer to *keep*, in pieces that are transactions of their own."""
        dropped = _TRIM_PIECE
        while dropped == _TRIM_PIECE:
            audit_id = _made_id()

            def work(conn: Connection, audit_id: str = audit_id) -> int:
                return store.trim(
                    conn, subject, keep=keep, at_most=_TRIM_PIECE, audit_id=audit_id, operator=self._operator
                )

            dropped = run_transaction(self._engine, work)


class _DryRun(Exception):
    def __init__(self, result: Any) -> None:
        # No fault: it carries a result out of a transaction that is rolled back.
        super().__init__("a dry run writes nothing")
        self.result = result


def _found(epoch: RefineEpoch | None, subject: str) -> RefineEpoch:
    if epoch is None:
        raise unknown_subject(subject)
    return epoch


def _made_id() -> str:
    return str(uuid.uuid4())


def _operator(name: object) -> str:
    try:
        return require_id(name, "the operator of a refine gate")
    except InvalidInput as error:
        raise ConfigurationInvalid(error.message, hint='pass operator="NAME"') from None


def _check_after(after: object) -> None:
    """Check an id to go on behind; the empty text is before all."""
    if after != "":
        require_id(after, "after")


def _check_place(after: object) -> None:
    if not isinstance(after, tuple) or len(after) != 2:
        raise InvalidInput(
            f"cannot use {shown(after)} as after: an epoch and the number of a step", hint="pass a tuple like (2, 17)"
        )
    for number in after:
        require_whole(number, "a number of after", 0, _EPOCH_MAX)


def _check_budget(budget: EditBudget) -> None:
    if not isinstance(budget, EditBudget):
        raise InvalidInput("budget is not an EditBudget", hint="pass EditBudget(max=…, floor=…)")
    _limited(budget.max, "budget max")


def _limited(value: int, name: str) -> int:
    if value > BUDGET_MAX:
        raise LimitExceeded(f"{name} is above {BUDGET_MAX}", hint="pass a smaller one")
    return value


def _check_epoch(epoch: int | None) -> None:
    if epoch is not None and not 1 <= check_whole(epoch, "epoch") <= _EPOCH_MAX:
        raise InvalidInput("epoch is not a number from 1 on", hint="leave it out to mean the open one")


def _page(limit: int) -> int:
    if not 1 <= check_whole(limit, "limit") <= PAGE_MAX:
        raise InvalidInput(f"limit is not from 1 to {PAGE_MAX}", hint="read page by page, with `after`")
    return limit


def _keyed(candidates: Iterable[EditCandidate], step_keys: Sequence[str | None] | None) -> tuple[KeyedCandidate, ...]:
    listed = tuple(items_of(candidates, "candidates", CANDIDATES_MAX))
    keys: Sequence[object] = (
        [None] * len(listed) if step_keys is None else tuple(items_of(step_keys, "step keys", CANDIDATES_MAX))
    )
    if len(keys) != len(listed):
        raise InvalidInput(
            f"{len(listed)} candidates come with {len(keys)} step keys", hint="give one for each, or none at all"
        )
    return tuple(_keyed_one(candidate, key) for candidate, key in zip(listed, keys, strict=True))


def _keyed_one(candidate: object, step_key: object) -> KeyedCandidate:
    if not isinstance(candidate, EditCandidate):
        raise InvalidInput(
            f"cannot gate {shown(candidate)}: candidates are of the type EditCandidate",
            hint="pass EditCandidate(edit_id, score)",
        )
    require_id(candidate.edit_id, "edit id")
    if step_key is None:
        # Known to nobody else: it recognises this call where its answer got lost and the transaction is tried again.
        return KeyedCandidate(candidate.edit_id, candidate.score, _MADE_KEY_PREFIX + uuid.uuid4().hex, asked=False)
    key = require_id(step_key, "step key")
    if key.startswith(_MADE_KEY_PREFIX):
        raise ReservedId(f'step keys that start with "{_MADE_KEY_PREFIX}" are made by the gate', hint="choose another")
    return KeyedCandidate(candidate.edit_id, candidate.score, key, asked=True)


def _without_made_key(step: StepRecord) -> StepRecord:
    if step.step_key is None or not step.step_key.startswith(_MADE_KEY_PREFIX):
        return step
    return replace(step, step_key=None)
