"""The check of a whole database: every invariant that rows can show, page by page, with what may be repaired safely.

Each page of sessions is read in one state of the database, so that work going on beside it shows no false breach, and
memory holds one page, however large the database is. Repairs come after their page, each in a transaction of its own
that asks again. What isn't repaired says why.

It is the product's own check. The tests judge by another one, which shares nothing with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sqlalchemy.engine import Connection, Engine

from reconciler.core.model import DEFAULT_LIMITS, Decision, Limits, SubmissionInspection
from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, Reason, SessionOrigin, SubmissionStatus
from reconciler.errors import DatabaseInvalid, DatabaseUnavailable, ReconcilerError
from reconciler.service.gather import gather
from reconciler.service.resume import make_settlement
from reconciler.store import fsck as store
from reconciler.store.around import read_around
from reconciler.store.engine import read, run_transaction
from reconciler.store.facts import decision_on_record, limits_for, read_settlement, settlement_outcome, stands
from reconciler.store.fsck import CHECKS, GLOBAL_CHECKS, Breach, Check, Repair, SessionRange
from reconciler.store.lenient import read_leniently
from reconciler.store.operations import close_if_done
from reconciler.store.passes import lock_rows
from reconciler.store.settlements import DecisionWrite, Landed, apply_decisions

SESSIONS_PER_PAGE: Final = 200
# Findings that an answer lists; further ones are counted.
FINDINGS_MAX: Final = 1_000
_INSPECTED: Final = 200
_FOUND_PER_PAGE: Final = 10_000

# What only a running system shows, or a test: nothing of it can be read from rows at rest.
NOT_SHOWN: Final = ("I10", "I12", "I13", "I15", "I17", "I18", "I20")
SHOWN: Final = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I11", "I14", "I16", "I19")


class Mending(StrEnum):
    """What became of a finding."""

    # Repaired now.
    REPAIRED = "repaired"
    # A repair would do it.
    REPAIRABLE = "repairable"
    # It was gone when it was to be repaired.
    GONE = "gone"
    # A person has to decide.
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise: which invariant, of what, what was found, and what can be done about it."""

    check: str
    invariant: str
    session_id: str
    submission_id: str | None
    found: str
    way_out: str
    mending: Mending
    repair: Repair | None = None


@dataclass(slots=True)
class FsckReport:
    """What was looked at and found. ``after`` is where a further check goes on; None where all was looked at."""

    findings: list[Finding] = field(default_factory=list)
    # All of them, those beyond `FINDINGS_MAX` too.
    count: int = 0
    repaired: int = 0
    sessions: int = 0
    submissions: int = 0
    after: str | None = None
    dry_run: bool = False

    @property
    def left(self) -> int:
        """Findings that are still there."""
        return self.count - self.repaired


def fsck(
    engine: Engine,
    *,
    repair: bool = False,
    dry_run: bool = False,
    after: str | None = None,
    limit: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    operator: str = "fsck",
    on_repair: Callable[[Connection, Finding], None] = lambda _conn, _finding: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> FsckReport:
    """Check the sessions behind *after* (all without it), at most *limit* of them, and with the last one the rest.

    With *repair* what is provably safe is repaired; *on_repair* is called in the transaction of each (for the audit).
    A *dry_run* says what would be, by the same code.

    Raises:
        DatabaseUnavailable: it went away; the detail has ``after`` to go on from.
    """
    run = _Run(engine, repair, dry_run, limits, operator, on_repair)
    place = after or ""
    with read(engine) as conn:
        total = store.count_sessions(conn, after=place)
    if limit is not None:
        total = min(total, limit)
    try:
        while True:
            size = SESSIONS_PER_PAGE if limit is None else min(SESSIONS_PER_PAGE, limit - run.report.sessions)
            of = run.page(place, size)
            progress(run.report.sessions, max(total, run.report.sessions))
            if of.until is None:
                run.rest()
                return run.report
            place = of.until
            if limit is not None and run.report.sessions >= limit:
                run.report.after = place
                return run.report
    except DatabaseUnavailable as error:
        if place:
            raise DatabaseUnavailable(
                f"{error.message}; sessions up to {place!r} were checked",
                detail={"after": place, "checked": run.report.sessions, "findings": run.report.count},
                hint=f"go on from there: reconciler fsck --after {place}",
            ) from error
        raise


class _Run:
    def __init__(
        self,
        engine: Engine,
        repair: bool,
        dry_run: bool,
        limits: Limits,
        operator: str,
        on_repair: Callable[[Connection, Finding], None],
    ) -> None:
        self._engine = engine
        self._repair = repair
        self._dry_run = dry_run
        self._limits = limits
        self._operator = operator
        self._on_repair = on_repair
        self.report = FsckReport(dry_run=dry_run)

    def page(self, after: str, size: int) -> SessionRange:
        found: list[Finding] = []
        with read_leniently(self._engine) as conn:
            of, count = store.session_page(conn, after=after, limit=size)
            found += [_of_unreadable(one) for one in store.unreadable(conn, of)]
            for check in CHECKS:
                found += [_of_breach(breach) for breach in store.run_check(conn, check, of)]
            found += self._queued_again(conn, of)
            for finding in _judge_rows(store.submission_rows(conn, of), self._limits, self._counted):
                if len(found) < _FOUND_PER_PAGE:
                    found.append(finding)
                else:
                    # Counted, so that nobody takes the page for mended; the next check lists them.
                    self.report.count += 1
        self.report.sessions += count
        self._take(found)
        return of

    def rest(self) -> None:
        """Check what belongs to no session."""
        with read_leniently(self._engine) as conn:
            found = [_of_unreadable(one) for one in store.unreadable(conn, None)]
            found += [_of_breach(breach) for check in GLOBAL_CHECKS for breach in store.run_check(conn, check, None)]
            found += list(_judge_steps(store.step_rows(conn)))
        self._take(found)

    def _counted(self) -> None:
        self.report.submissions += 1

    def _queued_again(self, conn: Connection, of: SessionRange) -> list[Finding]:
        """I7: nothing that its record shows finished may wait to be run."""
        found: list[Finding] = []
        after = ("", "")
        while len(found) < store.FINDINGS_PER_PAGE:
            keys = store.unsettled_keys(conn, of, after=after, limit=_INSPECTED)
            if not keys:
                break
            after = keys[-1]
            found += self._finished(conn, keys)
        return found

    def _finished(self, conn: Connection, keys: Sequence[tuple[str, str]]) -> list[Finding]:
        try:
            rows = [row for row in lock_rows(conn, keys, lock=False) if _may_run_again(row)]
            around = read_around(conn, rows, lock=False)
            return [
                Finding(
                    "queued_though_finished",
                    "I7",
                    one.row.session_id,
                    one.row.submission_id,
                    f"it waits for another attempt, and its record shows finished work ({one.inspection.detail.value})",
                    "settle it completed by hand, after a look: `reconciler settle SUBMISSION completed`",
                    Mending.PERSON,
                )
                for one in gather(conn, rows, around.around, self._limits)
                if one.error is None
                and one.around.settlement_entry_id is None
                and one.inspection.state is SubmissionInspection.COMPLETED
            ]
        except (ValueError, KeyError, TypeError, DatabaseInvalid) as error:
            # A value that something else wrote. The others are looked at one by one.
            if len(keys) > 1:
                return [finding for key in keys for finding in self._finished(conn, [key])]
            ((session_id, submission_id),) = keys
            text = f"its rows hold a value that can't be read: {type(error).__name__}: {error}"
            return [_unreadable(session_id, submission_id, text)]

    # --- repairing ---------------------------------------------------------------------------------------------------

    def _take(self, found: list[Finding]) -> None:
        for finding in found:
            if self._repair and finding.repair is not None:
                finding = self._repaired(finding)
            if finding.mending is Mending.GONE:
                continue
            self.report.count += 1
            self.report.repaired += finding.mending is Mending.REPAIRED
            if len(self.report.findings) < FINDINGS_MAX:
                self.report.findings.append(finding)

    def _repaired(self, finding: Finding) -> Finding:
        if self._dry_run:
            return finding
        try:
            done = run_transaction(self._engine, lambda conn: self._mend(conn, finding))
        except DatabaseUnavailable:
            raise
        except (ReconcilerError, ValueError, KeyError, TypeError) as error:
            # One bad row never stops the check.
            reason = error.message if isinstance(error, ReconcilerError) else f"{type(error).__name__}: {error}"
            return _with(finding, Mending.PERSON, f"it could not be repaired: {reason}")
        return _with(finding, Mending.REPAIRED if done else Mending.GONE)

    def _mend(self, conn: Connection, finding: Finding) -> bool:
        if finding.repair is Repair.ADOPT:
            done = self._adopt(conn, finding.session_id, finding.submission_id or "")
        elif finding.repair is Repair.CLOSE_OPERATION:
            done = close_if_done(conn, finding.session_id)
        else:
            assert finding.repair is not None  # noqa: S101 - asked by the caller
            done = store.repair(conn, finding.repair, finding.session_id, finding.submission_id)
        if done:
            self._on_repair(conn, finding)
        return done

    def _adopt(self, conn: Connection, session_id: str, submission_id: str) -> bool:
        rows = lock_rows(conn, [(session_id, submission_id)])
        if not rows:
            return False
        around = read_around(conn, rows)
        one = gather(conn, rows, around.around, self._limits)[0]
        if one.around.settlement_entry_id is None:
            return False
        row = one.row
        decision = Decision(
            DecisionAction.ADOPT,
            Reason.SETTLEMENT_FOUND,
            gate=1,
            outcome=settlement_outcome(one.around.settlement_payload) or Outcome.COMPLETED,
            attempt_end=None if row.current_attempt_id is None else AttemptEnd.SETTLED,
            evidence=(one.around.settlement_entry_id,),
        )
        write = DecisionWrite(
            session_id=session_id,
            submission_id=submission_id,
            status=SubmissionStatus(row.status),
            session_version=row.x_version,
            revision=row.revision,
            decision=decision,
            attempt_id=row.current_attempt_id,
            settlement=make_settlement(one, decision),
            inspection=None if one.error is not None else one.inspection,
            decided_by=self._operator,
            note="fsck",
        )
        return isinstance(apply_decisions(conn, [write], now=around.now)[0], Landed)


def _unreadable(session_id: str, submission_id: str | None, found: str) -> Finding:
    way_out = "mend the value with SQL, or restore the row from a backup"
    return Finding("unreadable", "I10", session_id, submission_id, found, way_out, Mending.PERSON)


def _of_unreadable(one: store.Unreadable) -> Finding:
    found = f'the column {one.column} of its row in {one.table} holds "{one.value}", which can\'t be read'
    return _unreadable(one.session_id, one.submission_id, found)


def _of_breach(breach: Breach) -> Finding:
    check = breach.check
    return Finding(
        check.name,
        check.invariant,
        breach.session_id,
        breach.submission_id,
        check.found.format(value=breach.value),
        check.way_out,
        Mending.PERSON if check.repair is None else Mending.REPAIRABLE,
        check.repair,
    )


def _with(finding: Finding, mending: Mending, way_out: str | None = None) -> Finding:
    return Finding(
        finding.check,
        finding.invariant,
        finding.session_id,
        finding.submission_id,
        finding.found,
        way_out or finding.way_out,
        mending,
        finding.repair,
    )


def _may_run_again(row: Any) -> bool:
    if row.status != SubmissionStatus.QUEUED or row.x_origin != SessionOrigin.NATIVE or row.held_at is not None:
        return False
    decision = decision_on_record(row)
    return decision is not None and decision.action is DecisionAction.REQUEUE and stands(row)


# --- rows one at a time ----------------------------------------------------------------------------------------------

_BEHIND: Final = Check(
    "row_behind",
    "I1",
    "",
    "its record holds its settlement, and the row is {value}",
    "the record decides: the row is made to agree with it",
    Repair.ADOPT,
)
_NO_ENTRY: Final = Check(
    "settled_without_entry",
    "I1",
    "",
    "it is settled {value}, and its record holds no settlement entry",
    "the row alone says so: it stays settled (I4); restore the entry from a backup if there is one",
)
_OTHER_ENTRY: Final = Check(
    "names_other_entry",
    "I1",
    "",
    'its row names another settlement entry than its record holds: "{value}"',
    "the entry decides; which of the two was changed by hand is for a person to say",
)
_OTHER_OUTCOME: Final = Check(
    "outcomes_differ",
    "I1",
    "",
    "its row and its settlement entry name different outcomes: {value}",
    "the entry decides, and whoever asked may have heard the row: tell them, then correct the row by hand",
)
_OVERSPENT: Final = Check(
    "overspent",
    "I8",
    "",
    "more was spent than allowed: {value}",
    "the settings were lowered since, or a budget was overspent: a retry grants one more attempt, an abort ends it",
)
_BAD_LIMITS: Final = Check(
    "limits_unreadable",
    "I8",
    "",
    "its own limits do not fit the settings: {value}",
    "mend the settings, or settle it by hand: `reconciler settle SUBMISSION OUTCOME`",
)
_WAITS_FOR_EVER: Final = Check(
    "waits_for_ever",
    "I9",
    "",
    "it is {value}, and nothing will move it on",
    "the next pass looks at it and decides by its record",
    Repair.DUE_NOW,
)
_ABORT_FOR_EVER: Final = Check(
    "abort_for_ever",
    "I9",
    "",
    "its abort was asked for, and it is never due",
    "the next pass settles it",
    Repair.DUE_NOW,
)


def _judge_rows(rows: Iterator[Any], limits: Limits, counted: Callable[[], None]) -> Iterator[Finding]:
    waiting_in: str | None = None
    for row in rows:
        counted()
        if row.status == SubmissionStatus.SETTLED:
            yield from _judge_settled(row)
        else:
            if row.entry_id is not None:
                yield _found(row, _BEHIND, row.status)
            else:
                yield from _judge_waiting(row, behind_another=waiting_in == row.session_id)
            waiting_in = row.session_id
            # Of what is settled the bounds of that time are not known: the settings may be others now.
            yield from _judge_counters(row, limits)


def _judge_settled(row: Any) -> Iterator[Finding]:
    if row.entry_id is None:
        yield _found(row, _NO_ENTRY, row.outcome)
        return
    if row.settlement_entry_id != row.entry_id:
        yield _found(row, _OTHER_ENTRY, row.entry_id)
    recorded = read_settlement(row.entry_payload).get("outcome")
    if recorded in set(Outcome) and recorded != row.outcome:
        yield _found(row, _OTHER_OUTCOME, f"{row.outcome}, {recorded}")


def _judge_waiting(row: Any, *, behind_another: bool) -> Iterator[Finding]:
    if row.abort_requested_at is not None and row.reconcile_at is None:
        yield _found(row, _ABORT_FOR_EVER, None)
        return
    advised = row.origin == SessionOrigin.MIRRORED and row.decision_action == DecisionAction.ADVISE.value
    moves = row.reconcile_at is not None or row.not_before is not None or row.held_at is not None
    if not moves and not advised and not behind_another and row.status != SubmissionStatus.RUNNING:
        yield _found(row, _WAITS_FOR_EVER, row.status)


def _judge_counters(row: Any, limits: Limits) -> Iterator[Finding]:
    try:
        own = limits_for(limits, row.limits)
    except (ReconcilerError, TypeError, ValueError, json.JSONDecodeError) as error:
        yield _found(row, _BAD_LIMITS, error)
        return
    bounds = {
        "attempts_spent": own.attempts_max + row.attempts_granted,
        "provider_errors": own.provider_errors_max + row.attempts_granted,
        "redispatches": own.redispatches_max + row.redispatches_granted,
        "releases": own.releases_max + row.attempts_granted,
        "sub_turns_spent": own.sub_turn_budget,
    }
    over = [f"{name} {getattr(row, name)} of {most}" for name, most in bounds.items() if getattr(row, name) > most]
    if over:
        yield _found(row, _OVERSPENT, ", ".join(over))


def _found(row: Any, check: Check, value: object) -> Finding:
    return _of_breach(Breach(check, row.session_id, row.id, value))


# --- the refine gate -------------------------------------------------------------------------------------------------

_STEP_WRONG: Final = Check(
    "step_misjudged",
    "I14",
    "",
    "{value}",
    "what was judged cannot be judged again; open a new epoch from a score that you trust",
)


def _judge_steps(rows: Iterator[Any]) -> Iterator[Finding]:
    key: tuple[str, int] | None = None
    best, used, last = 0.0, 0, None
    for row in rows:
        if (row.subject, row.epoch) != key:
            yield from _judge_epoch(last, best, used)
            key, best, used = (row.subject, row.epoch), row.baseline_score, 0
        last = row
        if row.number is None:
            continue
        used += 1
        if (row.candidate_score > best) != (row.verdict == "accepted"):
            text = f"step {row.number} of epoch {row.epoch} was {row.verdict} against a best score of {best:g}"
            yield _of_breach(Breach(_STEP_WRONG, row.subject, None, text))
        best = max(best, row.candidate_score)
    yield from _judge_epoch(last, best, used)


def _judge_epoch(row: Any, best: float, used: int) -> Iterator[Finding]:
    if row is None:
        return
    if row.epoch_used != used:
        text = f"epoch {row.epoch} has used {row.epoch_used}, and {used} steps of it were judged"
        yield _of_breach(Breach(_STEP_WRONG, row.subject, None, text))
    if row.epoch_best != best:
        text = f"epoch {row.epoch} has the best score {row.epoch_best:g}, its steps give {best:g}"
        yield _of_breach(Breach(_STEP_WRONG, row.subject, None, text))
