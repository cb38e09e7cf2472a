"""From locked rows to decisions ready to be written: what a pass and a dry run have in common.

Reads what stands around the rows, has them inspected, asks the policy, and puts the writes together. Writes nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.engine import Connection, Engine

from reconciler.core.due import may_judge_lease
from reconciler.core.model import DEFAULT_LIMITS, Decision, Inspection, Limits, OpenCall, SubmissionFacts
from reconciler.core.policy import backoff_of, decide
from reconciler.core.states import AttemptEnd, DecisionAction
from reconciler.core.subturn import ResumePlan
from reconciler.errors import ReconcilerError
from reconciler.service.cases import CASES_MAX, Template, case_of, template_of
from reconciler.service.gather import Gathered, failed, gather, gather_by_case
from reconciler.service.liveness import ProcessIdentity, booted_at, process_start, proven_dead, this_process
from reconciler.service.resume import make_plan, make_settlement, texts_wanted
from reconciler.service.shapes import Answers
from reconciler.store.around import AttemptRow, Read, read_around
from reconciler.store.engine import read
from reconciler.store.facts import limits_for, submission_facts
from reconciler.store.passes import DueRow, Key, lock_rows
from reconciler.store.paths import ShapedTurn, read_payloads
from reconciler.store.settlement_rows import DecisionRow
from reconciler.store.settlements import DecisionWrite, Push


@dataclass(frozen=True, slots=True)
class Judge:
    """What this process may say about the death of others (contract, section 4, leases).

    ``connected_for_s`` gives how long the database has been reachable without a break, measured monotonically; None
    counts from the beginning of the pass. ``here`` is this process where None. ``instance_id`` signs the
    pass and its decisions.
    """

    here: ProcessIdentity | None = None
    connected_for_s: Callable[[], float] | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A decision about one row, with what it was made from. ``limits`` are the submission's own."""

    gathered: Gathered
    facts: SubmissionFacts
    decision: Decision
    limits: Limits

    @property
    def key(self) -> Key:
        """Session and submission."""
        return self.gathered.row.key

    def push(self) -> Push:
        """Return the row's new due time, where nothing else changes."""
        row = self.gathered.row
        return Push(row.session_id, row.submission_id, row.revision, self.decision.reconcile_at)

    def write(self, plan: ResumePlan | None, decided_by: str | None, *, read_here: bool = True) -> DecisionWrite:
        """Return the guarded write that carries the decision out.

        *read_here*: the row was read in the transaction that writes.
        """
        row, around, decision = self.gathered.row, self.gathered.around, self.decision
        lease = around.current.lease_expires_at if around.current is not None else None
        last = around.last
        return DecisionWrite(
            session_id=row.session_id,
            submission_id=row.submission_id,
            status=self.facts.status,
            session_version=row.x_version,
            revision=row.revision,
            decision=decision,
            attempt_id=row.current_attempt_id,
            # What is adopted is settled already, whatever its attempt does.
            lease_expires_at=None if decision.action is DecisionAction.ADOPT else lease,
            settlement=make_settlement(self.gathered, decision),
            plan=plan,
            inspection=None if self.gathered.error is not None else self.gathered.inspection,
            decided_by=decided_by,
            uses_unpark=row.current_attempt_id is None and last is not None and last.end_kind == AttemptEnd.PARKED,
            last_seq=row.x_last_seq if read_here else None,
            decision_count=row.decision_count if read_here else None,
        )


def template_for(planned: Planned, turn: ShapedTurn, now: datetime, decided_by: str | None) -> Template | None:
    """Return what is written of a row, for others of its case; None where it is good for this row alone."""
    gathered, facts, decision, limits = planned.gathered, planned.facts, planned.decision, planned.limits
    if decision.action is DecisionAction.SETTLE:
        return template_of(planned.write(None, decided_by), turn)
    if (
        decision.action is not DecisionAction.REQUEUE
        # Which of the calls are approved would have to be looked up in each row.
        or facts.pending_calls
        or texts_wanted(gathered, decision)
    ):
        return None
    found = backoff_of(gathered.inspection, facts, now, limits, gathered.evidence)
    write = planned.write(make_plan(gathered, decision, limits, {}), decided_by)
    return template_of(write, turn, None if found is None else (*found, limits))


class Decider:
    """Decides about rows, with what one pass knows of the time and of others."""

    def __init__(
        self,
        limits: Limits,
        judge: Judge,
        *,
        lock: bool,
        jitter: Callable[[], float] = random.random,
        decided_by: str | None = None,
    ) -> None:
        self._decided_by = decided_by
        self._limits = limits
        self._here = judge.here or this_process()
        started = time.monotonic()
        self._connected_for_s = judge.connected_for_s or (lambda: time.monotonic() - started)
        self._lock = lock
        self._jitter = jitter
        self._own_limits: dict[str, Limits] = {}
        self._answers = Answers()

    def surroundings(self, conn: Connection, rows: Sequence[DueRow]) -> Read:
        """Lock the current attempts of *rows*, and read what stands around them, with the database's clock."""
        return read_around(conn, rows, lock=self._lock)

    def decide(self, conn: Connection, rows: Sequence[DueRow], around: Read) -> list[Planned]:
        """Decide about *rows* by what stands around them."""
        return self._decide(conn, gather(conn, rows, around.around, self._limits, self._answers), around.now)

    def decide_by_case(
        self, conn: Connection, rows: Sequence[DueRow], around: Read
    ) -> tuple[list[Planned], list[DecisionRow]]:
        """Decide about *rows*; those of a case that was decided before are ready to be written."""

        def fill(template: Template, row: DueRow, current: AttemptRow, turn: ShapedTurn) -> DecisionRow:
            return template.fill(row, current, turn, around.now, self._jitter)

        gathered, ready, waiting = gather_by_case(
            conn,
            rows,
            around.around,
            self._limits,
            self._answers,
            lambda row, beside: case_of(row, beside, around.now, self._may_judge),
            fill,
        )
        planned = self._decide(conn, gathered, around.now)
        for one in planned:
            self._remember(one, around.now)
        for other in waiting:
            template = other.kept.cases.get(other.case)
            if template is not None and other.around.current is not None:
                ready.append(fill(template, other.row, other.around.current, other.turn))
            else:
                planned += self._decide(conn, [other.gathered()], around.now)
        return planned, ready

    def _remember(self, planned: Planned, now: datetime) -> None:
        """Keep what is written of a row for others of its case."""
        if planned.gathered.known is None:
            return
        kept, turn, case = planned.gathered.known
        if case not in kept.cases and len(kept.cases) < CASES_MAX:
            template = template_for(planned, turn, now, self._decided_by)
            if template is not None:
                kept.cases[case] = template

    def _decide(self, conn: Connection, found: Sequence[Gathered], now: datetime) -> list[Planned]:
        boot = booted_at(now)
        planned = []
        for gathered in found:
            own, fault = self._limits_of(gathered.row)
            if fault is not None:
                gathered = failed(gathered.row, gathered.around, fault, hangs_from=gathered.hangs_from)
            facts = self._facts(conn, gathered, own, now, boot)
            decision = decide(gathered.inspection, facts, now, own, jitter=self._jitter(), evidence=gathered.evidence)
            planned.append(Planned(gathered, facts, decision, own))
        return planned

    def plans(self, conn: Connection, planned: Sequence[Planned]) -> dict[Key, ResumePlan | None]:
        """Return the resume plan of each, None where none goes with it; the texts of all are read by one statement.

        Raises:
            InvalidInput: a plan cannot be made.
        """
        wanted = {key for one in planned for key in texts_wanted(one.gathered, one.decision)}
        payloads = read_payloads(conn, sorted(wanted))
        return {one.key: make_plan(one.gathered, one.decision, one.limits, payloads) for one in planned}

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
                may_judge = self._may_judge(current)
        return submission_facts(
            gathered.row,
            gathered.around,
            limits,
            owner_dead=dead,
            may_judge_lease=may_judge,
            response_may_grow=gathered.may_grow,
            inspection_error=gathered.error,
        )

    def _may_judge(self, current: AttemptRow) -> bool:
        return may_judge_lease(connected_s=self._connected_for_s(), beat_s=current.beat_s)


def _identity(row: AttemptRow) -> ProcessIdentity:
    return ProcessIdentity(
        machine_id=row.machine_id,
        boot_id=row.boot_id,
        pid_namespace=row.pid_namespace,
        pid=row.pid,
        process_start=row.process_start,
    )


# --- preview ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """What the next pass would do with one submission, if it were due at ``now``. ``reconcile_at``: when it is due."""

    inspection: Inspection
    facts: SubmissionFacts
    decision: Decision
    plan: ResumePlan | None
    now: datetime
    reconcile_at: datetime | None
    # The calls of the inspection's ``dispatch``, with their ids.
    open_calls: tuple[OpenCall, ...] = ()


def preview(
    engine: Engine,
    session_id: str,
    submission_id: str,
    *,
    limits: Limits = DEFAULT_LIMITS,
    judge: Judge | None = None,
) -> Preview | None:
    """Return what the next pass would do with a submission; None where it is settled or there is none. Writes nothing.

    Without jitter, so that the same record gives the same answer. Without a *judge*, an ended lease is judged as a
    daemon would that has been up for long.
    """
    decider = Decider(limits, judge or Judge(connected_for_s=lambda: float("inf")), lock=False, jitter=lambda: 0.0)
    with read(engine) as conn:
        rows = lock_rows(conn, [(session_id, submission_id)], lock=False)
        if not rows:
            return None
        around = decider.surroundings(conn, rows)
        planned = decider.decide(conn, rows, around)
        plans = decider.plans(conn, planned)
    one = planned[0]
    return Preview(
        one.gathered.inspection,
        one.facts,
        one.decision,
        plans[one.key],
        around.now,
        rows[0].reconcile_at,
        one.gathered.evidence.open_calls,
    )
