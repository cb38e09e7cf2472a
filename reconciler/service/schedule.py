"""The schedule: looks at which slots are due by the database's clock, fires them, and has work done under a lease.

The slot row and what it admits are one transaction; work of the system's own marks its slot done in the transaction of
its last write, or right after it, and is taken over where its instance died. Knows nothing of timers: it is asked to
look, by whoever has one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.engine import Connection, Engine

from reconciler.core.canonical import canonical_json
from reconciler.core.jobs import Job
from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.core.slots import SkippedSlot, SlotPlan, slot_name
from reconciler.errors import Conflict, InvalidInput, ReconcilerError, StoreFault
from reconciler.log import emit
from reconciler.metrics import Metrics
from reconciler.store import slots as ledger
from reconciler.store.admission import NewSubmission, admit, prepare
from reconciler.store.dialect import db_now
from reconciler.store.engine import read, run_transaction

# Slots handled in one transaction.
SLOTS_PER_TRANSACTION: Final = 100
_ROUNDS_MAX: Final = 100
WORK_LEASE_S: Final = 60.0


class Stopped(Exception):
    """The work was asked to stop; its slot is given back."""


class SlotLost(Exception):
    """The slot is another instance's by now; what was not committed must not be."""


@dataclass(slots=True)
class Task:
    """A slot's work: what it may know, and how it says that it goes on. Given to the function that does the work."""

    engine: Engine
    job: str
    slot_at: datetime
    instance_id: str | None
    limits: Limits
    # The newest slot of the job that was done before; None for the first one.
    previous_at: datetime | None
    stopping: Callable[[], bool]
    metrics: Metrics
    # Settings of the work, as the daemon has them.
    settings: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False
    _renewed: float = field(default_factory=time.monotonic)

    def go_on(self) -> None:
        """Say that the work goes on: renews the slot's lease when that is due.

        Raises:
            Stopped: stop, between two transactions; another instance goes on.
            SlotLost: another instance does the work by now.
        """
        if self.stopping():
            raise Stopped
        if time.monotonic() - self._renewed < WORK_LEASE_S / 4:
            return
        renewed = run_transaction(
            self.engine,
            lambda conn: ledger.renew_slot(
                conn, self.job, self.slot_at, instance_id=self.instance_id, lease_s=WORK_LEASE_S
            ),
            idempotent=True,
        )
        if not renewed:
            raise SlotLost
        self._renewed = time.monotonic()

    def finish(self, conn: Connection, result: Mapping[str, Any]) -> None:
        """Mark the slot done in the transaction of the work's last write.

        Raises:
            SlotLost: another instance does the work by now; the transaction must be given up.
        """
        done = ledger.finish_slot(
            conn, self.job, self.slot_at, instance_id=self.instance_id, result=canonical_json(dict(result))
        )
        if not done:
            raise SlotLost
        self.finished = True


Work = Callable[[Task], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Fired:
    """A slot that fired (``error`` None) or could not."""

    job: str
    slot_at: datetime
    late_s: float
    session_id: str | None = None
    submission_id: str | None = None
    error: str | None = None
    # It is to be worked on by this instance, under a lease.
    is_work: bool = False


@dataclass(slots=True)
class _Look:
    """What one transaction came to. Made anew by every try."""

    fired: list[Fired] = field(default_factory=list)
    skipped: list[SkippedSlot] = field(default_factory=list)
    more: bool = False


class Schedule:
    """The jobs of one instance. ``work`` maps the system's own jobs to what they do; a missing one has no stub."""

    def __init__(
        self,
        engine: Engine,
        jobs: Mapping[str, Job],
        *,
        instance_id: str | None,
        limits: Limits = DEFAULT_LIMITS,
        work: Mapping[str, Work] | None = None,
        work_settings: Mapping[str, Any] | None = None,
        metrics: Metrics | None = None,
        admitted: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._instance_id = instance_id
        self._work = dict(work or {})
        self._metrics = metrics or Metrics()
        self._admitted = admitted
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._now: tuple[str, datetime] | None = None
        self.reload(jobs, limits, work_settings or {})

    def reload(self, jobs: Mapping[str, Job], limits: Limits, work_settings: Mapping[str, Any]) -> None:
        """Use other jobs and limits from the next look on.

        Raises:
            InvalidInput: a job neither admits anything nor has work that is known here.
        """
        for job in jobs.values():
            if job.admits is None and job.name not in self._work:
                raise InvalidInput(f'job "{job.name}" admits nothing and is no work of the system\'s own')
        self._jobs, self._limits, self._work_settings = dict(jobs), limits, dict(work_settings)

    # --- looking -----------------------------------------------------------------------------------------------------

    def look(self) -> int:
        """Fire what is due, record what is skipped, take over what was left; return how many slots that were.

        Raises:
            ReconcilerError: the database could not go on; what was committed before stands.
        """
        jobs, handled = self._jobs, 0
        if not jobs:
            return 0
        with read(self._engine) as conn:
            now = db_now(conn)
            states = ledger.job_states(conn, list(jobs))
            left = ledger.expired_slots(conn, list(jobs))
        for job in jobs.values():
            if job.admits is None and self._is_working():
                # One at a time; what is due waits for the next look, here or elsewhere.
                continue
            state = states.get(job.name)
            if state is not None and state.looked_until is not None:
                plan = job.plan(looked_until=state.looked_until, now=now, paused=state.paused_at is not None)
                if plan.is_empty and plan.looked_until == state.looked_until:
                    continue
            handled += self._look_at(job)
        for row in left:
            if row.job in jobs and not self._is_working():
                handled += self._take_over(jobs[row.job], row)
        return handled

    def due(self, conn: Connection) -> dict[str, SlotPlan]:
        """Return what a look would do now, by job; writes nothing."""
        now = db_now(conn)
        states = ledger.job_states(conn, list(self._jobs))
        plans = {}
        for job in self._jobs.values():
            state = states.get(job.name)
            if state is None or state.looked_until is None:
                continue
            plan = job.plan(looked_until=state.looked_until, now=now, paused=state.paused_at is not None)
            if not plan.is_empty:
                plans[job.name] = plan
        return plans

    def look_and_wait(self) -> int:
        """Look, with all work done before it returns: for programs that run once."""
        handled = self.look()
        for _ in range(len(self._work)):
            with self._guard:
                thread = self._thread
            if thread is None or not thread.is_alive():
                break
            thread.join()
            handled += self.look()
        return handled

    def _look_at(self, job: Job) -> int:
        handled = 0
        for _ in range(_ROUNDS_MAX):
            look = run_transaction(self._engine, lambda conn: self._one_look(conn, job))
            self._report(job, look)
            handled += len(look.fired) + len(look.skipped)
            for fired in look.fired:
                if fired.is_work:
                    self._begin_work(job, fired.slot_at)
            if not look.more:
                break
        return handled

    def _one_look(self, conn: Connection, job: Job) -> _Look:
        look = _Look()
        state = ledger.lock_job(conn, job.name)
        if state is None:
            return look
        # Behind the lock: another instance may have looked in between.
        now = db_now(conn)
        if state.looked_until is None:
            ledger.set_looked_until(conn, job.name, now)
            return look
        plan = job.plan(looked_until=state.looked_until, now=now, paused=state.paused_at is not None)
        todo = sorted(
            [*((slot.slot_at, slot) for slot in plan.skip), *((slot_at, None) for slot_at in plan.fire)],
            key=lambda pair: pair[0],
        )
        look.more = len(todo) > SLOTS_PER_TRANSACTION
        todo = todo[:SLOTS_PER_TRANSACTION]
        skipped = [skip for _, skip in todo if skip is not None]
        if skipped and ledger.record_skipped(conn, job.name, skipped, instance_id=self._instance_id, now=now):
            look.skipped = skipped
        for slot_at, skip in todo:
            if skip is None:
                fired = self._fire(conn, job, slot_at, now)
                look.fired += [] if fired is None else [fired]
        until = todo[-1][0] if look.more else plan.looked_until
        if until != state.looked_until:
            ledger.set_looked_until(conn, job.name, until)
        return look

    def _fire(
        self, conn: Connection, job: Job, slot_at: datetime, now: datetime, *, again: bool = False
    ) -> Fired | None:
        """Take a slot and admit what it admits; None where it has fired already."""
        is_work = job.admits is None
        taken = ledger.begin_slot(
            conn,
            job.name,
            slot_at,
            instance_id=self._instance_id,
            now=now,
            lease_s=WORK_LEASE_S if is_work else None,
            again=again,
        )
        if not taken:
            return None
        late_s = round((now - slot_at).total_seconds(), 3)
        if job.admits is None:
            return Fired(job.name, slot_at, late_s, is_work=True)
        session_id, submission_id = job.admits.session_id(job.name, slot_at), job.submission_id(slot_at)
        try:
            prepared = prepare(
                NewSubmission(
                    session_id,
                    submission_id,
                    job.admits.payload,
                    entity_hints=job.admits.entity_hints,
                    deadline_s=job.admits.deadline_s,
                    kind="schedule",
                ),
                limits=self._limits,
            )
            with conn.begin_nested():
                admit(conn, [prepared])
        except StoreFault:
            # The transaction as a whole failed, or is to be tried again.
            raise
        except ReconcilerError as error:
            # This slot can't: a mirrored session, an id used before with other content. The others can.
            ledger.not_admitted(conn, job.name, slot_at, f"{error.code}: {error.message}")
            return Fired(job.name, slot_at, late_s, session_id, submission_id, error=error.message)
        ledger.admitted(conn, job.name, slot_at, session_id, submission_id)
        return Fired(job.name, slot_at, late_s, session_id, submission_id)

    def _report(self, job: Job, look: _Look) -> None:
        by_reason: dict[str, list[datetime]] = {}
        for slot in look.skipped:
            by_reason.setdefault(slot.reason.value, []).append(slot.slot_at)
        for reason, instants in by_reason.items():
            emit(
                "slot.skipped",
                job=job.name,
                count=len(instants),
                reason=reason,
                first_at=slot_name(instants[0]),
                last_at=slot_name(instants[-1]),
            )
        self._metrics.count("reconciler_slots_total", len(look.skipped), status="skipped")
        for fired in look.fired:
            self._metrics.set("reconciler_slot_late_seconds", fired.late_s, job=fired.job)
            if fired.is_work:
                continue
            self._metrics.count("reconciler_slots_total", status="done" if fired.error is None else "failed")
            if fired.error is not None:
                emit("slot.failed", job=fired.job, slot_at=slot_name(fired.slot_at), error=fired.error)
            else:
                emit(
                    "slot.fired",
                    job=fired.job,
                    slot_at=slot_name(fired.slot_at),
                    late_s=fired.late_s,
                    session_id=fired.session_id,
                    submission_id=fired.submission_id,
                )
        if any(fired.error is None and not fired.is_work for fired in look.fired):
            self._admitted()

    # --- by hand -----------------------------------------------------------------------------------------------------

    def run_now(
        self,
        name: str,
        *,
        slot_at: datetime | None = None,
        audit: Callable[[Connection, Fired], None] | None = None,
    ) -> tuple[Fired, Mapping[str, Any] | None]:
        """Fire a job's slot by hand: a new one at this moment, or *slot_at*, which was skipped or has failed.

        Work of the system's own is done before it returns, and what it found comes second.

        Raises:
            InvalidInput: there is no such job.
            Conflict: the slot is done, or being worked on.
        """
        job = self._jobs.get(name)
        if job is None:
            raise InvalidInput(f'there is no job "{name}"', hint=f"known: {', '.join(sorted(self._jobs)) or 'none'}")
        if slot_at is not None and job.next_slot(slot_at - timedelta(microseconds=1)) != slot_at:
            raise InvalidInput(
                f'{slot_name(slot_at)} is no slot of job "{name}" ({job.cron.expression}, {job.zone_name})',
                hint="see `reconciler schedule list`; without an instant it runs at this moment",
            )

        def fire(conn: Connection) -> Fired:
            now = db_now(conn)
            fired = self._fire(conn, job, now if slot_at is None else slot_at, now, again=slot_at is not None)
            if fired is None:
                raise Conflict(
                    f'cannot run slot {slot_name(slot_at or now)} of job "{name}": it is done, or being worked on',
                    hint="only a slot that was skipped or has failed can be run again",
                )
            if audit is not None:
                audit(conn, fired)
            return fired

        fired = run_transaction(self._engine, fire)
        self._report(job, _Look(fired=[fired]))
        if not fired.is_work:
            return fired, None
        return fired, self._do_work(job, fired.slot_at)

    # --- work under a lease ------------------------------------------------------------------------------------------

    def _take_over(self, job: Job, row: ledger.SlotRow) -> int:
        if job.admits is not None:
            return 0
        taken = run_transaction(
            self._engine,
            lambda conn: ledger.take_over(
                conn,
                job.name,
                row.slot_at,
                instance_id=self._instance_id,
                lease_s=WORK_LEASE_S,
                now=db_now(conn),
            ),
        )
        if taken:
            emit(
                "slot.taken_over", job=job.name, slot_at=slot_name(row.slot_at), from_instance_id=row.instance_id or ""
            )
            self._metrics.count("reconciler_slots_taken_over_total")
            self._begin_work(job, row.slot_at)
        return int(taken)

    def _is_working(self) -> bool:
        with self._guard:
            return self._thread is not None and self._thread.is_alive()

    def _begin_work(self, job: Job, slot_at: datetime) -> None:
        thread = threading.Thread(
            target=self._work_in_thread, args=(job, slot_at), name=f"reconciler-{job.name}", daemon=True
        )
        with self._guard:
            self._thread, self._now = thread, (job.name, slot_at)
        thread.start()

    def _work_in_thread(self, job: Job, slot_at: datetime) -> None:
        try:
            self._do_work(job, slot_at)
        except Exception as error:  # noqa: BLE001 - said, and left to its lease: the next look finds it
            emit(
                "slot.failed", job=job.name, slot_at=slot_name(slot_at), error=f"{type(error).__name__}: {error}"[:500]
            )

    def _do_work(self, job: Job, slot_at: datetime) -> Mapping[str, Any] | None:
        """Do a slot's work and mark it; return what it found, None where it was stopped or lost."""
        started = time.monotonic()
        with read(self._engine) as conn:
            before = ledger.last_slots(conn, job.name, limit=1, status="done")
        task = Task(
            engine=self._engine,
            job=job.name,
            slot_at=slot_at,
            instance_id=self._instance_id,
            limits=self._limits,
            previous_at=before[0].slot_at if before else None,
            stopping=self._stop.is_set,
            metrics=self._metrics,
            settings=self._work_settings,
        )
        try:
            result = self._work[job.name](task)
            if not task.finished:
                run_transaction(self._engine, lambda conn: task.finish(conn, result), idempotent=True)
        except Stopped:
            self._give_back(job.name, slot_at)
            return None
        except SlotLost:
            return None
        except StoreFault:
            # The database: the slot's lease runs out, and it is taken over.
            raise
        except Exception as error:
            text = error.message if isinstance(error, ReconcilerError) else f"{type(error).__name__}: {error}"
            run_transaction(
                self._engine,
                lambda conn: ledger.finish_slot(conn, job.name, slot_at, instance_id=self._instance_id, error=text),
                idempotent=True,
            )
            self._metrics.count("reconciler_slots_total", status="failed")
            raise
        self._metrics.count("reconciler_slots_total", status="done")
        emit(
            "slot.finished",
            job=job.name,
            slot_at=slot_name(slot_at),
            took_s=round(time.monotonic() - started, 3),
            result=dict(result),
        )
        return result

    def _give_back(self, job: str, slot_at: datetime) -> None:
        instance_id = self._instance_id
        if instance_id is not None:
            run_transaction(self._engine, lambda conn: ledger.release_slots(conn, instance_id, [(job, slot_at)]))

    def stop(self, *, wait_s: float = 0.0) -> bool:
        """Ask the work to stop and wait for it; return whether none is going on."""
        self._stop.set()
        with self._guard:
            thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(timeout=wait_s)
            return not thread.is_alive()
        return True
