"""One pass: scan what is due, inspect, decide, write guarded, and say what was done.

Gather, decide, apply, in bounded batches, oldest first; each batch is one short transaction. A batch that fails is
halved down to the row that fails, and that row is set aside, so that one bad row never stops the others (I10). What is
decided is the core's, what is written the store's; this file only drives.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy.engine import Connection, Engine

from reconciler.core.due import may_judge_lease
from reconciler.core.model import DEFAULT_LIMITS, Decision, Inspection, Limits, SubmissionFacts
from reconciler.core.policy import decide
from reconciler.core.states import DecisionAction, Outcome, Reason, SessionOrigin, SubmissionStatus
from reconciler.core.subturn import ResumePlan
from reconciler.errors import (
    DatabaseFull,
    DatabaseInvalid,
    DatabaseReadOnly,
    DatabaseUnavailable,
    ReconcilerError,
    SchemaMismatch,
)
from reconciler.service.gather import Gathered, failed, gather
from reconciler.service.liveness import ProcessIdentity, booted_at, process_start, proven_dead, this_process
from reconciler.service.resume import make_plan, make_settlement, texts_wanted
from reconciler.store.dialect import db_now
from reconciler.store.engine import read, run_transaction
from reconciler.store.facts import attempt_facts, limits_for, submission_facts
from reconciler.store.passes import (
    AttemptRow,
    Cursor,
    DueRow,
    Key,
    count_due,
    lock_rows,
    others_wrote_at,
    read_around,
    save_pass,
    scan_due,
)
from reconciler.store.paths import read_payloads
from reconciler.store.settlements import DecisionWrite, Landed, Push, Refused, apply_decisions

_NEVER = datetime.max.replace(tzinfo=UTC)
# A row that can't even be held is looked at again after this.
_SET_ASIDE_S = 300.0
# How far the rows that somebody else held are counted.
_LOCKED_COUNT_MAX = 10_000
# The whole pass ends at these; anything else is a matter of single rows.
_ENDS_PASS = (DatabaseUnavailable, DatabaseReadOnly, DatabaseFull, DatabaseInvalid, SchemaMismatch)


@dataclass(frozen=True, slots=True)
class Decided:
    """What the pass decided about one submission. ``landed`` is None in a dry run."""

    session_id: str
    submission_id: str
    inspection: Inspection
    facts: SubmissionFacts
    decision: Decision
    plan: ResumePlan | None = None
    landed: bool | None = None
    refused: str | None = None


@dataclass(slots=True)
class PassReport:
    """What a pass did, in counts. ``set_aside`` counts rows that could not be written; ``held`` includes those held."""

    pass_id: str
    dry_run: bool
    started_at: datetime
    finished_at: datetime
    batches: int = 0
    scanned: int = 0
    settled: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in Outcome})
    requeued: int = 0
    held: int = 0
    advised: int = 0
    left_alone: int = 0
    adopted: int = 0
    conflicts: int = 0
    locked: int = 0
    set_aside: int = 0
    # Ended leases that this process may not judge yet, and in how many seconds it may judge all of them.
    unjudged: int = 0
    judge_after_s: float = 0.0
    # A limit ended the pass; there may be more that is due.
    more: bool = False

    @property
    def written(self) -> int:
        """How many decisions were written (would be, in a dry run)."""
        return sum(self.settled.values()) + self.requeued + self.held + self.advised + self.adopted

    def as_json(self) -> dict[str, object]:
        """Return the answer of ``once`` (contract, section 5)."""
        return {
            "pass_id": self.pass_id,
            "dry_run": self.dry_run,
            "scanned": self.scanned,
            "settled": dict(self.settled),
            "requeued": self.requeued,
            "held": self.held,
            "left_alone": self.left_alone,
            "adopted": self.adopted,
            "conflicts": self.conflicts,
            "locked": self.locked,
            "advised": self.advised,
            "set_aside": self.set_aside,
            "unjudged": self.unjudged,
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class Judge:
    """What this process may say about the death of others (contract, section 4, leases).

    ``connected_for_s`` gives how long the database has been reachable without a break, measured monotonically; None
    counts from the beginning of the pass.
    """

    here: ProcessIdentity | None = None
    connected_for_s: Callable[[], float] | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    gathered: Gathered
    facts: SubmissionFacts
    decision: Decision
    limits: Limits


@dataclass(slots=True)
class _Batch:
    """What one transaction came to. Made anew by every try."""

    rows: int = 0
    cursor: Cursor | None = None
    decided: list[Decided] = field(default_factory=list)
    deferred: list[Key] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Preview:
    """What the next pass would do with one submission, if it were due now."""

    inspection: Inspection
    facts: SubmissionFacts
    decision: Decision
    plan: ResumePlan | None
    now: datetime
    reconcile_at: datetime | None


def reconcile_once(
    engine: Engine,
    *,
    limits: Limits = DEFAULT_LIMITS,
    limit: int | None = None,
    dry_run: bool = False,
    judge: Judge | None = None,
    decided_by: str | None = None,
    jitter: Callable[[], float] = random.random,
    progress: Callable[[PassReport], None] | None = None,
    on_decision: Callable[[Decided], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> PassReport:
    """Work off what is due, at most *limit* rows, and return the counts.

    A dry run decides the same and writes nothing; neither does a pass that finds nothing to do. *progress* is called
    after each batch with the counts so far, *on_decision* for each submission once its batch is committed (in a dry
    run: once it is decided), *stop* is asked between batches.

    Raises:
        DatabaseUnavailable, DatabaseReadOnly, DatabaseFull, DatabaseInvalid, SchemaMismatch: the database could not go
            on; the batches before are committed, nothing of the one at hand is.
    """
    driver = _Pass(engine, limits, judge or Judge(), dry_run, decided_by, jitter, on_decision)
    driver.run(limit, progress, stop)
    return driver.report


def preview(
    engine: Engine,
    session_id: str,
    submission_id: str,
    *,
    limits: Limits = DEFAULT_LIMITS,
    judge: Judge | None = None,
) -> Preview | None:
    """Return what the next pass would do with a submission; None where it is settled or there is none. Writes nothing.

    Without jitter, so that the same record gives the same answer.
    """
    driver = _Pass(
        engine, limits, judge or Judge(), dry_run=True, decided_by=None, jitter=lambda: 0.0, on_decision=None
    )
    with read(engine) as conn:
        rows = lock_rows(conn, [(session_id, submission_id)], lock=False)
        if not rows:
            return None
        planned, now = driver.plan(conn, rows)
        plans, _ = driver.plans(conn, planned)
    one = planned[0]
    return Preview(one.gathered.inspection, one.facts, one.decision, plans[rows[0].key], now, rows[0].reconcile_at)


class _Pass:
    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        judge: Judge,
        dry_run: bool,
        decided_by: str | None,
        jitter: Callable[[], float],
        on_decision: Callable[[Decided], None] | None,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._judge = judge
        self._here = judge.here or this_process()
        started = time.monotonic()
        self._connected_for_s = judge.connected_for_s or (lambda: time.monotonic() - started)
        self._dry_run = dry_run
        self._decided_by = decided_by or judge.instance_id
        self._jitter = jitter
        self._on_decision = on_decision
        self._others: tuple[datetime | None] | None = None
        self._own_limits: dict[str, Limits] = {}
        self._left: set[Key] = set()
        self._saved = False
        epoch = datetime.fromtimestamp(0, UTC)
        self.report = PassReport(pass_id=str(uuid.uuid4()), dry_run=dry_run, started_at=epoch, finished_at=epoch)

    # --- driving -----------------------------------------------------------------------------------------------------

    def run(
        self, limit: int | None, progress: Callable[[PassReport], None] | None, stop: Callable[[], bool] | None
    ) -> None:
        report = self.report
        with read(self._engine) as conn:
            # Finding nothing takes no write lock.
            cutoff = report.started_at = report.finished_at = db_now(conn)
            if not count_due(conn, cutoff=cutoff, at_most=1):
                return
        cursor: Cursor | None = None
        while True:
            size = self._limits.scan_batch_max
            if limit is not None:
                size = min(size, limit - report.scanned)
            if size <= 0 or report.batches >= self._limits.pass_batches_max or (stop is not None and stop()):
                report.more = True
                break
            batch = self._scan(cutoff, cursor, size)
            report.scanned += batch.rows
            cursor = batch.cursor or cursor
            self._deferred(batch.deferred)
            if progress is not None:
                progress(report)
            if batch.rows < size:
                break
        self._count_locked(cutoff)

    def _scan(self, cutoff: datetime, cursor: Cursor | None, size: int) -> _Batch:
        seen: list[DueRow] = []

        def find(conn: Connection) -> list[DueRow]:
            rows = scan_due(conn, cutoff=cutoff, limit=size, after=cursor, lock=not self._dry_run)
            seen[:] = rows
            return rows

        self.report.batches += 1
        try:
            return self._transaction(find)
        except _ENDS_PASS as error:
            if not _is_about_rows(error) or not seen:
                raise
        except Exception:
            if not seen:
                raise
        # Something among these rows can't be written, or read. The rest must not wait for it.
        batch = _Batch(rows=len(seen), cursor=_cursor(seen[-1]))
        batch.deferred = self._halve([row.key for row in seen])
        return batch

    def _deferred(self, keys: Sequence[Key]) -> None:
        """See to the rows that could not share a batch with others of their session, or were refused."""
        rounds = 0
        while keys and rounds < self._limits.pass_batches_max:
            rounds += 1
            size = self._limits.scan_batch_max
            rest = list(keys[size:])
            keys = [*self._by_keys(keys[:size]), *rest]

    def _by_keys(self, keys: Sequence[Key]) -> list[Key]:
        try:
            return self._transaction(lambda conn: lock_rows(conn, keys, lock=not self._dry_run)).deferred
        except _ENDS_PASS as error:
            if not _is_about_rows(error):
                raise
            found: ReconcilerError | Exception = error
        except Exception as error:  # noqa: BLE001 - whatever a row does to the transaction, the others go on (I10)
            found = error
        if len(keys) > 1:
            return self._halve(keys)
        self._set_aside(keys[0], found)
        return []

    def _halve(self, keys: Sequence[Key]) -> list[Key]:
        if len(keys) == 1:
            return self._by_keys(keys)
        middle = len(keys) // 2
        return [*self._by_keys(keys[:middle]), *self._by_keys(keys[middle:])]

    def _transaction(self, find: Callable[[Connection], list[DueRow]]) -> _Batch:
        if self._dry_run:
            with read(self._engine) as conn:
                batch = self._work(conn, find(conn))
        else:
            before = replace(self.report, settled=dict(self.report.settled))

            def work(conn: Connection) -> _Batch:
                self._reset(before)
                return self._work(conn, find(conn))

            try:
                batch = run_transaction(self._engine, work)
            except BaseException:
                self._reset(before)
                raise
        if self._on_decision is not None:
            for decided in batch.decided:
                self._on_decision(decided)
        return batch

    def _reset(self, before: PassReport) -> None:
        # A transaction is tried again as a whole: what it counted is counted anew.
        self.report.settled = dict(before.settled)
        for name in ("requeued", "held", "advised", "left_alone", "adopted", "conflicts", "unjudged", "judge_after_s"):
            setattr(self.report, name, getattr(before, name))

    # --- one batch ---------------------------------------------------------------------------------------------------

    def _work(self, conn: Connection, rows: list[DueRow]) -> _Batch:
        batch = _Batch(rows=len(rows))
        if not rows:
            return batch
        batch.cursor = _cursor(rows[-1])
        taken, batch.deferred = _one_per_native_session(rows)
        planned, now = self.plan(conn, taken)
        plans, errors = self.plans(conn, planned)
        writes, pushes = [], []
        for one in planned:
            if one.gathered.row.key in errors:
                raise errors[one.gathered.row.key]
            if one.decision.is_written:
                writes.append(self._write(one, plans[one.gathered.row.key]))
            elif one.decision.reconcile_at != one.gathered.row.reconcile_at:
                pushes.append(_push(one))
        results: Mapping[Key, Landed | Refused] = {}
        if not self._dry_run and (writes or pushes):
            results = {
                (result.session_id, result.submission_id): result
                for result in apply_decisions(conn, writes, now=now, pass_id=self.report.pass_id, pushes=pushes)
            }
        for one in planned:
            self._count(one, plans[one.gathered.row.key], results.get(one.gathered.row.key), batch)
        self.report.finished_at = now
        if any(isinstance(result, Landed) for result in results.values()):
            self._save(conn, batch.rows)
        return batch

    def plan(self, conn: Connection, rows: Sequence[DueRow]) -> tuple[list[_Planned], datetime]:
        """Decide about *rows*, and return the database's clock by which it was decided."""
        around = read_around(conn, rows, lock=not self._dry_run)
        boot = booted_at(around.now)
        planned = []
        for gathered in gather(conn, rows, around.around, self._limits):
            own, fault = self._limits_of(gathered.row)
            if fault is not None:
                gathered = failed(gathered.row, gathered.around, fault, hangs_from=gathered.hangs_from)
            facts = self._facts(conn, gathered, own, around.now, boot)
            decision = decide(
                gathered.inspection, facts, around.now, own, jitter=self._jitter(), evidence=gathered.evidence
            )
            planned.append(_Planned(gathered, facts, decision, own))
        return planned, around.now

    def plans(
        self, conn: Connection, planned: Iterable[_Planned]
    ) -> tuple[dict[Key, ResumePlan | None], dict[Key, ReconcilerError]]:
        """Return the resume plan of each, reading the texts of all in one statement."""
        planned = list(planned)
        wanted = {key for one in planned for key in texts_wanted(one.gathered, one.decision)}
        payloads = read_payloads(conn, sorted(wanted))
        plans: dict[Key, ResumePlan | None] = {}
        errors: dict[Key, ReconcilerError] = {}
        for one in planned:
            key = one.gathered.row.key
            try:
                plans[key] = make_plan(one.gathered, one.decision, one.limits, payloads)
            except ReconcilerError as error:
                plans[key], errors[key] = None, error
        return plans, errors

    def _limits_of(self, row: DueRow) -> tuple[Limits, str | None]:
        if row.limits is None:
            return self._limits, None
        if row.limits not in self._own_limits:
            try:
                self._own_limits[row.limits] = limits_for(self._limits, row.limits)
            except (ReconcilerError, TypeError, ValueError) as error:
                # They were checked at admission: the settings have changed below them, or the column was.
                return self._limits, f"its own limits do not fit the settings: {error}"
        return self._own_limits[row.limits], None

    def _facts(
        self, conn: Connection, gathered: Gathered, limits: Limits, now: datetime, boot: datetime | None
    ) -> SubmissionFacts:
        current = gathered.around.current
        dead, may_judge = False, True
        if current is not None:
            dead = proven_dead(_identity(current), current.beat_at, self._here, booted_at=boot, look_up=process_start)
            if not dead and current.lease_expires_at <= now:
                may_judge = self._may_judge(conn, current)
        return submission_facts(
            gathered.row,
            gathered.around,
            limits,
            owner_dead=dead,
            may_judge_lease=may_judge,
            response_may_grow=gathered.may_grow,
            inspection_error=gathered.error,
        )

    def _may_judge(self, conn: Connection, current: AttemptRow) -> bool:
        connected = self._connected_for_s()
        written_at = None
        if connected < 2 * current.beat_s:
            if self._others is None:
                self._others = (others_wrote_at(conn, instance_id=self._judge.instance_id),)
            written_at = self._others[0]
        return may_judge_lease(
            connected_s=connected,
            beat_s=current.beat_s,
            lease_expires_at=current.lease_expires_at,
            written_at=written_at,
        )

    def _write(self, one: _Planned, plan: ResumePlan | None) -> DecisionWrite:
        row, around, decision = one.gathered.row, one.gathered.around, one.decision
        lease = around.current.lease_expires_at if around.current is not None else None
        last = attempt_facts(around.last)
        return DecisionWrite(
            session_id=row.session_id,
            submission_id=row.submission_id,
            status=SubmissionStatus(row.status),
            session_version=row.x_version,
            revision=row.revision,
            decision=decision,
            attempt_id=row.current_attempt_id,
            lease_expires_at=None if decision.action is DecisionAction.ADOPT else lease,
            settlement=make_settlement(one.gathered, decision),
            plan=plan,
            inspection=None if one.gathered.error is not None else one.gathered.inspection,
            decided_by=self._decided_by,
            uses_unpark=row.current_attempt_id is None and last is not None and last.end == "parked",
        )

    def _count(self, one: _Planned, plan: ResumePlan | None, result: Landed | Refused | None, batch: _Batch) -> None:
        report, decision, row = self.report, one.decision, one.gathered.row
        refused = result.reason.value if isinstance(result, Refused) else None
        if refused is not None:
            report.conflicts += 1
            if row.key not in self._left:
                # Inspected afresh, once; after that it stays due.
                self._left.add(row.key)
                batch.deferred.append(row.key)
        elif decision.action is DecisionAction.SETTLE and decision.outcome is not None:
            report.settled[decision.outcome.value] += 1
        elif decision.action is DecisionAction.ADOPT:
            report.adopted += 1
        elif decision.action is DecisionAction.REQUEUE:
            report.requeued += 1
        elif decision.holds:
            report.held += 1
        elif decision.action is DecisionAction.ADVISE:
            report.advised += 1
        else:
            report.left_alone += 1
        if decision.reason is Reason.OWNER_UNJUDGED and one.gathered.around.current is not None:
            report.unjudged += 1
            report.judge_after_s = max(report.judge_after_s, 2 * one.gathered.around.current.beat_s)
        batch.decided.append(
            Decided(
                row.session_id,
                row.submission_id,
                one.gathered.inspection,
                one.facts,
                decision,
                plan,
                landed=None if self._dry_run else isinstance(result, Landed),
                refused=refused,
            )
        )

    # --- rows that can't be written, and the pass's own row ----------------------------------------------------------

    def _set_aside(self, key: Key, error: Exception) -> None:
        """Hold a row that could not be decided or written; where that fails too, look at it again later."""
        self.report.set_aside += 1
        self._left.add(key)
        if self._dry_run:
            return
        text = f"{type(error).__name__}: {error}"[:500]
        try:
            held = run_transaction(self._engine, lambda conn: self._hold(conn, key, text))
        except _ENDS_PASS as failure:
            if not _is_about_rows(failure):
                raise
            held = False
        except Exception:  # noqa: BLE001 - a row that can't even be held must not end the pass (I10)
            held = False
        if held:
            self.report.held += 1
            self._left.discard(key)
            return
        try:
            run_transaction(self._engine, lambda conn: self._put_off(conn, key))
            self._left.discard(key)
        except _ENDS_PASS as failure:
            if not _is_about_rows(failure):
                raise
        except Exception:  # noqa: BLE001, S110 - it stays due, behind the cursor of this pass
            pass

    def _hold(self, conn: Connection, key: Key, text: str) -> bool:
        rows = lock_rows(conn, [key])
        if not rows:
            return False
        row = rows[0]
        around = read_around(conn, rows)
        is_mirrored = row.x_origin == SessionOrigin.MIRRORED
        current = around.around[key].current
        decision = Decision(
            DecisionAction.ADVISE if is_mirrored else DecisionAction.HOLD,
            Reason.WRITE_FAILED,
            gate=6,
            advice=DecisionAction.HOLD if is_mirrored else None,
            reconcile_at=row.deadline_at if row.deadline_at is not None and row.deadline_at > around.now else None,
            detail=text,
        )
        if current is not None and current.lease_expires_at > around.now:
            # Its runner lives: it is looked at when the lease ends.
            return False
        write = DecisionWrite(
            session_id=row.session_id,
            submission_id=row.submission_id,
            status=SubmissionStatus(row.status),
            session_version=row.x_version,
            revision=row.revision,
            decision=decision,
            attempt_id=row.current_attempt_id,
            lease_expires_at=None if current is None else current.lease_expires_at,
            decided_by=self._decided_by,
        )
        landed = apply_decisions(conn, [write], now=around.now, pass_id=self.report.pass_id)
        self._save(conn, 0, held=1)
        return isinstance(landed[0], Landed)

    def _put_off(self, conn: Connection, key: Key) -> None:
        rows = lock_rows(conn, [key])
        if rows:
            now = db_now(conn)
            later = now + timedelta(seconds=_SET_ASIDE_S)
            apply_decisions(conn, [], now=now, pushes=[Push(*key, rows[0].revision, later)])

    def _save(self, conn: Connection, rows: int, *, held: int = 0) -> None:
        # In the transaction of what it counts, so that the pass's row is true whatever comes after.
        report = self.report
        save_pass(
            conn,
            pass_id=report.pass_id,
            instance_id=self._judge.instance_id,
            started_at=report.started_at,
            finished_at=max(report.finished_at, report.started_at),
            counts={
                "scanned": report.scanned + rows,
                "settled_completed": report.settled[Outcome.COMPLETED.value],
                "settled_failed": report.settled[Outcome.FAILED.value],
                "settled_aborted": report.settled[Outcome.ABORTED.value],
                "requeued": report.requeued,
                "held": report.held + held,
                "left_alone": report.left_alone,
                "adopted": report.adopted,
                "advised": report.advised,
                "conflicts": report.conflicts,
                "locked": report.locked,
                "failed": report.set_aside,
            },
        )
        self._saved = True

    def _count_locked(self, cutoff: datetime) -> None:
        """Count the due rows that other transactions held all the while."""
        report = self.report
        if self._dry_run or report.more:
            return
        with read(self._engine) as conn:
            due = count_due(conn, cutoff=cutoff, at_most=_LOCKED_COUNT_MAX)
        report.locked = max(0, due - len(self._left))
        if report.locked and self._saved:
            run_transaction(self._engine, lambda conn: self._save(conn, 0))


def _is_about_rows(error: ReconcilerError) -> bool:
    # A statement that takes too long is a matter of its rows, until one alone does.
    return isinstance(error.detail, Mapping) and error.detail.get("kind") == "timeout"


def _cursor(row: DueRow) -> Cursor:
    return Cursor(row.reconcile_at or _NEVER, row.session_id, row.submission_id)


def _one_per_native_session(rows: Sequence[DueRow]) -> tuple[list[DueRow], list[Key]]:
    # A settlement may move a native session's leaf and does move its version, so what the others were inspected by is
    # past. In a mirrored session it moves neither what they show nor the leaf.
    taken, later = [], []
    native: set[str] = set()
    for row in rows:
        if row.x_origin == SessionOrigin.NATIVE and row.session_id in native:
            later.append(row.key)
        else:
            taken.append(row)
            if row.x_origin == SessionOrigin.NATIVE:
                native.add(row.session_id)
    return taken, later


def _push(one: _Planned) -> Push:
    row = one.gathered.row
    return Push(row.session_id, row.submission_id, row.revision, one.decision.reconcile_at)


def _identity(row: AttemptRow) -> ProcessIdentity:
    return ProcessIdentity(
        machine_id=row.machine_id,
        boot_id=row.boot_id,
        pid_namespace=row.pid_namespace,
        pid=row.pid,
        process_start=row.process_start,
    )
