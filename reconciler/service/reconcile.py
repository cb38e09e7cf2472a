"""One pass: scan what is due, inspect, decide, write guarded, and say what was done.

Gather, decide, apply, in bounded batches, oldest first; each batch is one short transaction. A batch that fails is
halved down to the row that fails, and that row is set aside, so that one bad row never stops the others (I10). What is
decided is the core's, what is written the store's; this file only drives.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy.engine import Connection, Engine

from reconciler.core.due import has_passed
from reconciler.core.model import DEFAULT_LIMITS, Decision, Limits
from reconciler.core.states import DecisionAction, Reason, SessionOrigin, SubmissionStatus
from reconciler.core.subturn import ResumePlan
from reconciler.errors import (
    ReconcilerError,
)
from reconciler.service.batches import ENDS_PASS, cursor_of, is_about_rows, one_per_native_session, within_bounds
from reconciler.service.deciding import Decider, Judge, Planned
from reconciler.service.report import SET_ASIDE_NAMED, Decided, PassReport, SetAside
from reconciler.store.around import read_around
from reconciler.store.dialect import db_now, is_sqlite
from reconciler.store.engine import read, run_transaction
from reconciler.store.passes import Cursor, DueRow, Key, count_due, lock_rows, save_pass, scan_due
from reconciler.store.settlement_rows import DecisionRow
from reconciler.store.settlements import DecisionWrite, Landed, Push, Refused, apply_decisions

__all__ = ["Decided", "Judge", "PassReport", "reconcile_once"]

# A row that can't even be held is looked at again after this.
_SET_ASIDE_S = 300.0
# So many rows in a row that can't be written are a fault of the database or of this program, not of the rows.
_FAILED_IN_ROW_MAX = 20
# How far the rows that somebody else held are counted.
_LOCKED_COUNT_MAX = 10_000


@dataclass(slots=True)
class _Batch:
    """What one transaction came to. Made anew by every try."""

    rows: int = 0
    cursor: Cursor | None = None
    count: int = 0
    # Where somebody wants to hear of each.
    decided: list[Decided] = field(default_factory=list)
    deferred: list[Key] = field(default_factory=list)
    # Too long a path to be read under the write lock.
    long: list[Key] = field(default_factory=list)
    # What the pass's row says, where this transaction wrote it.
    saved: dict[str, int] | None = None


def reconcile_once(
    engine: Engine,
    *,
    limits: Limits = DEFAULT_LIMITS,
    limit: int | None = None,
    dry_run: bool = False,
    judge: Judge | None = None,
    decided_by: str | None = None,
    beside: Sequence[Key] = (),
    jitter: Callable[[], float] = random.random,
    progress: Callable[[PassReport], None] | None = None,
    on_decision: Callable[[Decided], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> PassReport:
    """Work off what is due, at most *limit* rows, and return the counts.

    A dry run decides the same and writes nothing; neither does a pass that finds nothing to do. *beside* are rows that
    are looked at though they are not due yet: in a dry run, what a real one would make due before. *progress* is called
    after each batch with the counts so far, *on_decision* for each submission once its batch is committed (in a dry
    run: once it is decided), *stop* is asked between batches.

    Raises:
        DatabaseUnavailable, DatabaseReadOnly, DatabaseFull, DatabaseInvalid, SchemaMismatch: the database could not go
            on; the batches before are committed, nothing of the one at hand is.
        StoreFault: row after row could not be written.
    """
    driver = _Pass(engine, limits, judge or Judge(), dry_run, decided_by, jitter, on_decision)
    driver.run(limit, progress, stop, beside)
    return driver.report


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
        self._instance_id = judge.instance_id
        self._dry_run = dry_run
        self._decided_by = decided_by or judge.instance_id
        self._decider = Decider(limits, judge, lock=not dry_run, jitter=jitter, decided_by=self._decided_by)
        self._on_decision = on_decision
        self._left: set[Key] = set()
        self._failed_in_row = 0
        # The counts that the pass's row has; None while there is no row.
        self._saved: dict[str, int] | None = None
        epoch = datetime.fromtimestamp(0, UTC)
        self.report = PassReport(pass_id=str(uuid.uuid4()), dry_run=dry_run, started_at=epoch, finished_at=epoch)

    # --- driving -----------------------------------------------------------------------------------------------------

    def run(
        self,
        limit: int | None,
        progress: Callable[[PassReport], None] | None,
        stop: Callable[[], bool] | None,
        beside: Sequence[Key],
    ) -> None:
        report = self.report
        with read(self._engine) as conn:
            # Finding nothing takes no write lock.
            cutoff = report.started_at = report.finished_at = db_now(conn)
            if not beside and not count_due(conn, cutoff=cutoff, at_most=1):
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
                self._beside(beside, cutoff, limit)
                break
        self._finish(cutoff)

    def _beside(self, keys: Sequence[Key], cutoff: datetime, limit: int | None) -> None:
        if not keys:
            return
        with read(self._engine) as conn:
            # What has become due in between was found by the scan.
            ahead = [row.key for row in lock_rows(conn, keys, lock=False) if not has_passed(row.reconcile_at, cutoff)]
        taken = ahead if limit is None else ahead[: max(0, limit - self.report.scanned)]
        self.report.more = self.report.more or len(taken) < len(ahead)
        self.report.scanned += len(taken)
        self._deferred(taken)

    def _scan(self, cutoff: datetime, cursor: Cursor | None, size: int) -> _Batch:
        seen: list[DueRow] = []

        def find(conn: Connection) -> list[DueRow]:
            rows = scan_due(conn, cutoff=cutoff, limit=size, after=cursor, lock=not self._dry_run)
            seen[:] = rows
            return rows

        self.report.batches += 1
        try:
            batch = self._transaction(find, fresh=True)
        except ENDS_PASS as error:
            if not is_about_rows(error) or not seen:
                raise
        except Exception:
            if not seen:
                raise
        else:
            batch.deferred += batch.long
            return batch
        # Something among these rows can't be written, or read. The rest must not wait for it.
        batch = _Batch(rows=len(seen), cursor=cursor_of(seen[-1]))
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
        self.report.more = self.report.more or bool(keys)

    def _by_keys(self, keys: Sequence[Key]) -> list[Key]:
        try:
            batch = self._transaction(lambda conn: lock_rows(conn, keys, lock=not self._dry_run))
            for key in batch.long:
                batch.deferred += self._transaction_after_reading(key).deferred
        except ENDS_PASS as error:
            if not is_about_rows(error):
                raise
            found: ReconcilerError | Exception = error
        except Exception as error:  # noqa: BLE001 - whatever a row does to the transaction, the others go on (I10)
            found = error
        else:
            return batch.deferred
        if len(keys) > 1:
            return self._halve(keys)
        self._set_aside(keys[0], found)
        return []

    def _halve(self, keys: Sequence[Key]) -> list[Key]:
        if len(keys) == 1:
            return self._by_keys(keys)
        middle = len(keys) // 2
        return [*self._by_keys(keys[:middle]), *self._by_keys(keys[middle:])]

    def _transaction(self, find: Callable[[Connection], list[DueRow]], *, fresh: bool = False) -> _Batch:
        if self._dry_run:
            with read(self._engine) as conn:
                return self._tell(self._work(conn, find(conn), fresh))
        return self._committed(lambda conn: self._work(conn, find(conn), fresh))

    def _transaction_after_reading(self, key: Key) -> _Batch:
        """Decide about one row in a transaction that reads, then write in another one, under the guard alone (I3)."""
        with read(self._engine) as conn:
            rows = lock_rows(conn, [key], lock=False)
            around = self._decider.surroundings(conn, rows)
            planned = self._decider.decide(conn, rows, around)
            plans = self._decider.plans(conn, planned)
        return self._committed(
            lambda conn: self._carry_out(conn, planned, plans, db_now(conn), _Batch(), read_here=False)
        )

    def _committed(self, work: Callable[[Connection], _Batch]) -> _Batch:
        before = replace(self.report, settled=dict(self.report.settled))

        def once(conn: Connection) -> _Batch:
            # A transaction is tried again as a whole: what it counted is counted anew.
            self._reset(before)
            return work(conn)

        try:
            batch = run_transaction(self._engine, once)
        except BaseException:
            self._reset(before)
            raise
        self._saved = batch.saved or self._saved
        return self._tell(batch)

    def _tell(self, batch: _Batch) -> _Batch:
        if batch.count:
            self._failed_in_row = 0
        if self._on_decision is not None:
            for decided in batch.decided:
                self._on_decision(decided)
        return batch

    def _reset(self, before: PassReport) -> None:
        self.report.settled = dict(before.settled)
        for name in ("requeued", "held", "advised", "left_alone", "adopted", "conflicts", "unjudged", "judge_after_s"):
            setattr(self.report, name, getattr(before, name))

    # --- one batch ---------------------------------------------------------------------------------------------------

    def _work(self, conn: Connection, rows: list[DueRow], fresh: bool) -> _Batch:
        batch = _Batch(rows=len(rows))
        if not rows:
            return batch
        batch.cursor = cursor_of(rows[-1])
        taken, batch.deferred = one_per_native_session(rows)
        around = self._decider.surroundings(conn, taken)
        taken, long, later = within_bounds(taken, around)
        if is_sqlite(conn) and not self._dry_run:
            batch.long = long
            taken = [row for row in taken if row.key not in long]
        batch.deferred += later
        ready: list[DecisionRow] = []
        if self._on_decision is None and not self._dry_run:
            planned, ready = self._decider.decide_by_case(conn, taken, around)
        else:
            # Somebody wants to hear of the inspection and the facts of each.
            planned = self._decider.decide(conn, taken, around)
        plans = self._decider.plans(conn, planned)
        scanned = self.report.scanned + (len(rows) if fresh else 0)
        return self._carry_out(conn, planned, plans, around.now, batch, scanned=scanned, ready=ready)

    def _carry_out(
        self,
        conn: Connection,
        planned: Sequence[Planned],
        plans: Mapping[Key, ResumePlan | None],
        now: datetime,
        batch: _Batch,
        *,
        scanned: int | None = None,
        ready: Sequence[DecisionRow] = (),
        read_here: bool = True,
    ) -> _Batch:
        writes: list[DecisionWrite | DecisionRow] = [
            one.write(plans[one.key], self._decided_by, read_here=read_here)
            for one in planned
            if one.decision.is_written
        ]
        written = len(writes)
        writes += ready
        pushes = [
            one.push()
            for one in planned
            if not one.decision.is_written and one.decision.reconcile_at != one.gathered.row.reconcile_at
        ]
        results: Sequence[Landed | Refused] = ()
        if not self._dry_run and (writes or pushes):
            results = apply_decisions(conn, writes, now=now, pass_id=self.report.pass_id, pushes=pushes)
        by_key = {(result.session_id, result.submission_id): result for result in results[:written]}
        for one in planned:
            self._count(one, plans[one.key], by_key.get(one.key), batch)
        self._count_ready(ready, results[written:], batch)
        self.report.finished_at = now
        if any(isinstance(result, Landed) for result in results):
            batch.saved = self._save(conn, scanned=self.report.scanned if scanned is None else scanned)
        return batch

    def _count_ready(self, ready: Sequence[DecisionRow], results: Sequence[Landed | Refused], batch: _Batch) -> None:
        settled = self.report.settled
        for row, result in zip(ready, results, strict=True):
            if not isinstance(result, Landed):
                self._refused((row.session_id, row.submission_id), batch)
            elif row.kind.decision_outcome is None:
                self.report.requeued += 1
            else:
                settled[row.kind.decision_outcome] += 1
        batch.count += len(ready)

    def _refused(self, key: Key, batch: _Batch) -> None:
        self.report.conflicts += 1
        if key not in self._left:
            # Inspected afresh, once; after that it stays due.
            self._left.add(key)
            batch.deferred.append(key)

    def _count(self, one: Planned, plan: ResumePlan | None, result: Landed | Refused | None, batch: _Batch) -> None:
        report, decision, row = self.report, one.decision, one.gathered.row
        refused = result.reason.value if isinstance(result, Refused) else None
        if refused is not None:
            self._refused(row.key, batch)
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
        batch.count += 1
        if self._on_decision is None:
            return
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
        """Hold a row that could not be decided or written; where that fails too, look at it again later.

        Raises:
            Exception: *error*, where row after row fails: what holds for all is no matter of one. Those before it are
                set aside, so that a pass which fails so again gets further.
        """
        self._failed_in_row += 1
        if self._failed_in_row > _FAILED_IN_ROW_MAX:
            raise error
        self.report.set_aside += 1
        self._left.add(key)
        text = f"{type(error).__name__}: {error}"[:500]
        if len(self.report.set_aside_rows) < SET_ASIDE_NAMED:
            self.report.set_aside_rows.append(SetAside(*key, text))
        if self._dry_run:
            return
        try:
            held = run_transaction(self._engine, lambda conn: self._hold(conn, key, text))
        except ENDS_PASS as failure:
            if not is_about_rows(failure):
                raise
            held = False
        except Exception:  # noqa: BLE001 - a row that can't even be held must not end the pass (I10)
            held = False
        if held:
            self.report.held += 1
            self._saved = {}
            self._left.discard(key)
            return
        try:
            run_transaction(self._engine, lambda conn: self._put_off(conn, key))
            self._left.discard(key)
        except ENDS_PASS as failure:
            if not is_about_rows(failure):
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
        if isinstance(apply_decisions(conn, [write], now=around.now, pass_id=self.report.pass_id)[0], Refused):
            return False
        self._save(conn, scanned=self.report.scanned, held=self.report.held + 1)
        return True

    def _put_off(self, conn: Connection, key: Key) -> None:
        rows = lock_rows(conn, [key])
        if rows:
            now = db_now(conn)
            later = now + timedelta(seconds=_SET_ASIDE_S)
            apply_decisions(conn, [], now=now, pushes=[Push(*key, rows[0].revision, later)])

    def _save(self, conn: Connection, **changed: int) -> dict[str, int]:
        # In the transaction of what it counts, so that the pass's row is true whatever comes after.
        counts = self.report.columns() | changed
        save_pass(
            conn,
            pass_id=self.report.pass_id,
            instance_id=self._instance_id,
            started_at=self.report.started_at,
            finished_at=max(self.report.finished_at, self.report.started_at),
            counts=counts,
        )
        return counts

    def _finish(self, cutoff: datetime) -> None:
        """Count the due rows that other transactions held all the while, and complete the pass's row if it has one."""
        report = self.report
        if self._dry_run:
            return
        if not report.more:
            with read(self._engine) as conn:
                due = count_due(conn, cutoff=cutoff, at_most=_LOCKED_COUNT_MAX)
            report.locked = max(0, due - len(self._left))
        if self._saved not in (None, self.report.columns()):
            run_transaction(self._engine, self._save)
