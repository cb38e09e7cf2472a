"""The model's states and steps: the guarded writes as atomic steps, everything between them as steps of its own.

What is decided is the product's own core (``decide``, ``inspect_session``, ``is_claimable``, ``decision_stands``,
``directive``, ``counters_after``, the transition table); the writes are the store's, in a few lines each. A *mutant* is
a switch that breaks one of them in the way that its name says. Knows nothing of what is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from reconciler.core import policy
from reconciler.core.classifier import active_path, inspect_session, open_calls, turn_evidence
from reconciler.core.due import decision_stands, directive, is_claimable
from reconciler.core.model import (
    DEFAULT_LIMITS,
    AttemptFacts,
    Counters,
    Decision,
    DecisionOnRecord,
    Detail,
    Inspection,
    Limits,
    SessionEntry,
    SubmissionFacts,
    SubmissionInspection,
)
from reconciler.core.policy import counters_after, decide, event_of
from reconciler.core.states import (
    AttemptEnd,
    DecisionAction,
    Directive,
    Outcome,
    Reason,
    ResumeMode,
    SessionOrigin,
    SubmissionEvent,
    SubmissionStatus,
    next_status,
)
from reconciler.core.terms import submission_input_entry_id, submission_settlement_entry_id, tool_marker_entry_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AHEAD, PAST, LONG_PAST = NOW + timedelta(days=1), NOW - timedelta(seconds=1), NOW - timedelta(days=1)

Status = SubmissionStatus


@dataclass(frozen=True)
class Configuration:
    """The constants of one exploration. ``sessions``: of each submission; ``acts``: which actions there are."""

    name: str
    sessions: tuple[int, ...] = (0,)
    runners: int = 1
    daemons: int = 1
    limits: Limits = DEFAULT_LIMITS
    acts: frozenset[str] = frozenset()
    # How many acts operators and the environment have in all.
    meddling: int = 1
    mirrored: bool = False
    deadline: bool = False


class Attempt(NamedTuple):
    """One attempt; ``over``: its lease has ended."""

    id: int
    begun: bool = False
    progress: bool = False
    over: bool = False
    end: AttemptEnd | None = None
    retryable: bool | None = None
    counted: bool = False


class Row(NamedTuple):
    """A submission's row. ``abort`` and ``late``: 0 no, 1 within the grace, 2 past it; ``park``: 1 ahead, 2 expired."""

    status: Status | None = None
    ticket: int = 0
    rev: int = 0
    cur: Attempt | None = None
    last: Attempt | None = None
    last_begun_end: AttemptEnd | None = None
    spent: int = 0
    begun_n: int = 0
    claims: int = 0
    granted: int = 0
    crashes: int = 0
    errors: int = 0
    redispatches: int = 0
    releases: int = 0
    parks: int = 0
    abort: int = 0
    late: int = 0
    park: int = 0
    unparked: bool = False
    pending: bool = False
    held: str | None = None
    released: str | None = None
    retried: bool = False
    decision: DecisionOnRecord | None = None
    ready: bool = False
    mode: ResumeMode | None = None
    outcome: Outcome | None = None


class Session(NamedTuple):
    """A session: its entries as numbers of the intern table, in order."""

    entries: tuple[int, ...] = ()
    leaf: str | None = None
    version: int = 0
    moved: int = 0


class State(NamedTuple):
    """Everything. The last ones are ghosts: they are nowhere in the product, and only checks read them."""

    rows: tuple[Row, ...]
    sessions: tuple[Session, ...]
    runners: tuple[tuple[Any, ...] | None, ...]
    daemons: tuple[tuple[Any, ...] | None, ...]
    attempt_id: int = 0
    meddled: int = 0
    pruned: frozenset[int] = frozenset()
    settlements: tuple[int, ...] = ()
    told: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    written_by: frozenset[tuple[int, int]] = frozenset()


class Step(NamedTuple):
    """A step: what it is, where it leads, and what it breaks, by the name of the check."""

    label: str
    state: State
    broken: tuple[str, ...] = ()


# --- entries, interned -----------------------------------------------------------------------------------------------

_ENTRIES: list[SessionEntry] = []
_NUMBER: dict[SessionEntry, int] = {}


def number_of(entry: SessionEntry) -> int:
    """Return the entry's number."""
    if entry not in _NUMBER:
        _NUMBER[entry] = len(_ENTRIES)
        _ENTRIES.append(entry)
    return _NUMBER[entry]


def entries_of(session: Session) -> list[SessionEntry]:
    """Return the entries."""
    return [_ENTRIES[number] for number in session.entries]


@lru_cache(maxsize=400_000)
def inspection_of(entries: tuple[int, ...], leaf: str | None, name: str, attempt: str | None) -> tuple[Any, Any]:
    """Return what the real classifier says, and the turn's evidence."""
    given = [_ENTRIES[number] for number in entries]
    found = inspect_session(given, leaf, name, write_ahead=True)
    return found, turn_evidence(active_path(given, leaf), found, attempt_id=attempt)


class Model:
    """The steps of one configuration."""

    def __init__(self, configuration: Configuration, mutant: str | None = None) -> None:
        self.c = configuration
        self.mutant = mutant
        self.limits = configuration.limits
        self.names = tuple(f"q{number}" for number in range(len(configuration.sessions)))
        origin = SessionOrigin.MIRRORED if configuration.mirrored else SessionOrigin.NATIVE
        self.origin = origin
        self._decided: dict[Any, Decision] = {}

    def initial(self) -> State:
        """Return the empty database."""
        count = len(self.names)
        return State(
            rows=(Row(),) * count,
            sessions=(Session(),) * (max(self.c.sessions) + 1),
            runners=(None,) * self.c.runners,
            daemons=(None,) * self.c.daemons,
            settlements=(0,) * count,
            told=(0,) * count,
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def session(self, state: State, sub: int) -> Session:
        """Return the submission's session."""
        return state.sessions[self.c.sessions[sub]]

    def inspect(self, state: State, sub: int) -> tuple[Inspection, Any]:
        """Inspect a submission."""
        session, row = self.session(state, sub), state.rows[sub]
        attempt = row.cur or row.last
        return inspection_of(
            session.entries, session.leaf, self.names[sub], None if attempt is None else f"f{attempt.id}"
        )

    def facts(self, state: State, sub: int) -> SubmissionFacts:
        """Return the row as the real policy sees it."""
        row, session = state.rows[sub], self.session(state, sub)
        assert row.status is not None
        settlement = any(_ENTRIES[n].kind == "submission_settled" and _ENTRIES[n].submission_id == self.names[sub]
                         for n in session.entries)  # fmt: skip
        return SubmissionFacts(
            session_id="s",
            submission_id=self.names[sub],
            status=row.status,
            origin=self.origin,
            revision=row.rev,
            session_version=session.version,
            decision_stands=self._stands(row, session),
            settlement_outcome=(row.outcome or Outcome.COMPLETED) if settlement else None,
            abort_requested_at=(None, PAST, LONG_PAST)[row.abort],
            deadline_at=(AHEAD, PAST, LONG_PAST)[row.late] if self.c.deadline else None,
            held_at=None if row.held is None else PAST,
            held_reason=row.held,
            hold_released=row.released is not None,
            hold_released_reason=row.released,
            retried=row.retried,
            parked_until=(None, AHEAD, PAST)[row.park],
            unparked=row.unparked,
            pending_calls=("c",) if row.pending else (),
            leaf_moved_at=LONG_PAST if session.moved else None,
            current_attempt=self._attempt(row.cur),
            last_attempt=self._attempt(row.last),
            last_begun_end=row.last_begun_end,
            attempts_spent=row.spent,
            attempts_begun=row.begun_n,
            attempts_granted=row.granted,
            crashes_in_row=row.crashes,
            provider_errors=row.errors,
            redispatches=row.redispatches,
            releases=row.releases,
        )

    def _stands(self, row: Row, session: Session) -> bool:
        return decision_stands(row.decision, revision=row.rev, origin=self.origin, leaf_moved_version=session.moved)

    @staticmethod
    def _attempt(attempt: Attempt | None) -> AttemptFacts | None:
        if attempt is None:
            return None
        return AttemptFacts(
            attempt_id=f"f{attempt.id}",
            number=attempt.id,
            claimed_at=NOW - timedelta(seconds=10),
            lease_expires_at=PAST if attempt.over else AHEAD,
            begun=attempt.begun,
            made_progress=attempt.progress,
            last_progress_at=PAST if attempt.progress else None,
            end=attempt.end,
            retryable=attempt.retryable,
            provider_error_counted=attempt.counted,
        )

    def decision(self, state: State, sub: int) -> Decision:
        """Ask the real policy."""
        key = (state.rows[sub], self.session(state, sub), sub)
        if key not in self._decided:
            inspection, evidence = self.inspect(state, sub)
            facts = self.facts(state, sub)
            if self.mutant == "adopt_after_budget" and facts.attempts_spent >= self.limits.attempts_max:
                facts = replace(facts, settlement_outcome=None)
                inspection = replace(inspection, state=SubmissionInspection.UNCERTAIN, detail=Detail.INPUT_ONLY)
            if self.mutant == "completed_after_budget" and facts.attempts_spent >= self.limits.attempts_max:
                inspection = replace(inspection, state=SubmissionInspection.UNCERTAIN, detail=Detail.INPUT_ONLY)
            self._decided[key] = decide(inspection, facts, NOW, self.limits, evidence=evidence)
        return self._decided[key]

    def is_due(self, state: State, sub: int) -> bool:
        """Tell whether a pass would look at the row: whatever gate 2 or a standing decision doesn't wait for."""
        row = state.rows[sub]
        if row.status in (None, Status.SETTLED):
            return False
        decision = self.decision(state, sub)
        return decision.is_written

    def claimable(self, state: State, sub: int) -> bool:
        """Ask the real rule."""
        row = state.rows[sub]
        if row.status is None or not row.ready:
            return False
        return is_claimable(self.facts(state, sub), NOW, not_before=PAST, is_head=self.is_head(state, sub))

    def is_head(self, state: State, sub: int) -> bool:
        """Tell whether nothing unsettled is before it."""
        row = state.rows[sub]
        for other, found in enumerate(state.rows):
            if other == sub or found.status in (None, Status.SETTLED):
                continue
            if self.c.sessions[other] != self.c.sessions[sub]:
                continue
            if found.ticket < row.ticket:
                if self.mutant == "scan_by_sequence" and found.last is None and found.cur is None:
                    continue
                return False
        return True

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, state: State, sub: int, **changes: Any) -> State:
        """Write the row; its revision rises."""
        row = state.rows[sub]
        row = row._replace(rev=row.rev + 1, **changes)
        return state._replace(rows=(*state.rows[:sub], row, *state.rows[sub + 1 :]))

    def touch(self, state: State, sub: int, **changes: Any) -> State:
        """Write what raises no revision: leases, and time."""
        row = state.rows[sub]._replace(**changes)
        return state._replace(rows=(*state.rows[:sub], row, *state.rows[sub + 1 :]))

    def add(self, state: State, sub: int, *added: SessionEntry, leaf: bool = True) -> State:
        """Append entries, each below the one before."""
        place = self.c.sessions[sub]
        session = state.sessions[place]
        parent = session.leaf
        numbers = list(session.entries)
        for entry in added:
            numbers.append(number_of(replace(entry, parent_id=parent)))
            parent = entry.id
        session = Session(tuple(numbers), parent if leaf else session.leaf, session.version + len(added), session.moved)
        return state._replace(sessions=(*state.sessions[:place], session, *state.sessions[place + 1 :]))

    def ended(
        self, row: Row, end: AttemptEnd, *, retryable: bool | None = None, counted: bool = False
    ) -> dict[str, Any]:
        """Return the changes that end the current attempt."""
        cur = row.cur
        assert cur is not None
        last = cur._replace(end=end, retryable=retryable, counted=cur.counted or counted, over=True)
        return {
            "cur": None,
            "last": last,
            "last_begun_end": end if cur.begun else row.last_begun_end,
        }

    def fenced(self, state: State, sub: int, attempt_id: int, *, ask: str = "") -> bool:
        """Tell whether an attempt may write."""
        row = state.rows[sub]
        if self.mutant == f"{ask}_without_fence":
            return row.status is not Status.SETTLED or ask == "append"
        return row.cur is not None and row.cur.id == attempt_id and not row.cur.over

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step]:
        """Yield every step."""
        yield from self._submits(state)
        for place in range(self.c.runners):
            yield from self._runner(state, place)
        for place in range(self.c.daemons):
            yield from self._daemon(state, place)
        yield from self._environment(state)
        yield from self._operators(state)

    def _submits(self, state: State) -> Iterator[Step]:
        for sub, row in enumerate(state.rows):
            if row.status is None and (sub not in state.pruned or self.mutant == "prune_forgets"):
                if self.c.mirrored:
                    continue
                # Symmetric: the first of a session comes first.
                mine = [other for other in range(sub) if self.c.sessions[other] == self.c.sessions[sub]]
                if any(state.rows[other].status is None and other not in state.pruned for other in mine):
                    continue
                ticket = 1 + max((found.ticket for found in state.rows), default=0)
                version = self.session(state, sub).version
                new = state._replace(
                    rows=(
                        *state.rows[:sub],
                        Row(
                            status=Status.QUEUED,
                            ticket=ticket,
                            ready=True,
                            mode=ResumeMode.FRESH,
                            decision=DecisionOnRecord(DecisionAction.REQUEUE, Reason.ADMITTED, 0, version),
                        ),
                        *state.rows[sub + 1 :],
                    )
                )
                broken = ("SettledForEver",) if sub in state.pruned else ()
                yield Step(f"submit {sub}", new, broken)

    # --- runners

    def _with_runner(self, state: State, place: int, local: tuple[Any, ...] | None) -> State:
        return state._replace(runners=(*state.runners[:place], local, *state.runners[place + 1 :]))

    def _runner(self, state: State, place: int) -> Iterator[Step]:
        local = state.runners[place]
        if local is None:
            for sub in range(len(state.rows)):
                if self.claimable(state, sub):
                    yield Step(f"runner {place} finds {sub}", self._with_runner(state, place, ("found", sub, 0)))
            return
        yield Step(f"runner {place} dies", self._with_runner(state, place, None))
        if local[0] == "found":
            yield from self._claim(state, place, local[1], local[2])
            return
        _, sub, attempt_id, phase, unsure = local
        if unsure:
            yield from self._again(state, place, sub, attempt_id, phase, unsure)
            return
        row = state.rows[sub]
        is_current = row.cur is not None and row.cur.id == attempt_id
        if is_current and row.cur is not None and row.cur.over:
            yield from self._beat(state, place, sub, attempt_id)
            if self.mutant not in ("append_without_fence", "settle_without_fence"):
                return
        elif self.mutant == "beat_renews_any" and not is_current:
            yield from self._beat(state, place, sub, attempt_id)
        yield from self._turn(state, place, sub, attempt_id, phase)

    def _claim(self, state: State, place: int, sub: int, key: int) -> Iterator[Step]:
        row = state.rows[sub]
        if key:
            # The answer got lost: the attempt is looked up by the key of the call.
            mine = row.cur if row.cur is not None and row.cur.id == key else None
            yield Step(
                f"runner {place} asks again what it claimed",
                self._with_runner(state, place, None if mine is None else ("hold", sub, key, "claimed", "")),
            )
            return
        if row.status is None:
            yield Step(f"runner {place} finds {sub} gone", self._with_runner(state, place, None))
            return
        may = self.claimable(state, sub)
        if self.mutant == "claim_without_recheck":
            taken = row.status is Status.QUEUED
        elif self.mutant == "claim_by_id_only":
            taken = row.status is not Status.SETTLED
        else:
            taken = may
        if not taken:
            yield Step(f"runner {place} is refused {sub}", self._with_runner(state, place, None))
            return
        attempt_id = row.claims + 1 if self.mutant == "retry_resets_fence" else state.attempt_id + 1
        broken = []
        if not may:
            broken.append("NoClaimFromStaleCandidate")
        if (sub, attempt_id) in state.written_by or any(
            found is not None and found.id == attempt_id for other in state.rows for found in (other.cur, other.last)
        ):
            broken.append("FenceMonotone")
        first = row.last is None and row.cur is None
        if first and any(
            self.c.sessions[other] == self.c.sessions[sub]
            and found.status not in (None, Status.SETTLED)
            and found.ticket < row.ticket
            for other, found in enumerate(state.rows)
        ):
            broken.append("HeadOfLine")
        new = self.put(
            state,
            sub,
            status=Status.RUNNING
            if row.status is not Status.QUEUED
            else next_status(row.status, SubmissionEvent.CLAIM),
            cur=Attempt(attempt_id),
            spent=row.spent + 1,
            claims=row.claims + 1,
            ready=False,
            park=0,
            held=None,
        )
        new = new._replace(attempt_id=max(attempt_id, state.attempt_id))
        new = new._replace(written_by=new.written_by | {(sub, attempt_id)}) if first else new
        yield Step(
            f"runner {place} claims {sub}",
            self._with_runner(new, place, ("hold", sub, attempt_id, "claimed", "")),
            tuple(broken),
        )
        if "lost_answers" in self.c.acts:
            yield Step(
                f"runner {place} claims {sub}, the answer lost",
                self._with_runner(new, place, ("found", sub, attempt_id)),
                tuple(broken),
            )

    def _beat(self, state: State, place: int, sub: int, attempt_id: int) -> Iterator[Step]:
        row = state.rows[sub]
        if row.cur is None:
            return
        broken = () if row.cur.id == attempt_id else ("LeaseOfTheCurrentOnly",)
        if row.cur.over or broken:
            yield Step(f"runner {place} beats", self.touch(state, sub, cur=row.cur._replace(over=False)), broken)

    def _lost(self, state: State, place: int, what: str) -> Step:
        return Step(f"runner {place} hears that it is lost: {what}", self._with_runner(state, place, None))

    def _turn(self, state: State, place: int, sub: int, attempt_id: int, phase: str) -> Iterator[Step]:
        name = self.names[sub]

        def entry(what: str, **more: Any) -> SessionEntry:
            return SessionEntry(f"{name}.{attempt_id}.{what}", submission_id=name, attempt_id=f"f{attempt_id}", **more)

        match phase:
            case "claimed":
                yield from self._begin(state, place, sub, attempt_id)
                yield from self._give_up(state, place, sub, attempt_id, AttemptEnd.RELEASED)
            case "begun":
                answer = entry("answer", role="assistant", stop_reason="stop")
                yield from self._append(state, place, sub, attempt_id, answer, "answered")
                if "tools" in self.c.acts:
                    call = entry(
                        "call", role="assistant", stop_reason="tool_use", tool_call_ids=("c",), starts_logged=True
                    )
                    yield from self._append(state, place, sub, attempt_id, call, "called")
                if "errors" in self.c.acts:
                    error = entry("error", role="assistant", stop_reason="error", content="none")
                    yield from self._append(state, place, sub, attempt_id, error, "failing")
                    yield from self._give_up(state, place, sub, attempt_id, AttemptEnd.FAILED)
                if "releases" in self.c.acts:
                    yield from self._give_up(state, place, sub, attempt_id, AttemptEnd.RELEASED)
            case "called":
                start = entry("start", kind="tool_started", tool_call_id="c")
                yield from self._start(state, place, sub, attempt_id, start)
                if "parks" in self.c.acts:
                    yield from self._give_up(state, place, sub, attempt_id, AttemptEnd.PARKED)
            case "started":
                result = entry("result", role="tool_result", tool_call_id="c")
                yield from self._append(state, place, sub, attempt_id, result, "resulted")
            case "resulted":
                answer = entry("answer", role="assistant", stop_reason="stop")
                yield from self._append(state, place, sub, attempt_id, answer, "answered")
            case "answered":
                yield from self._settle(state, place, sub, attempt_id, Outcome.COMPLETED)
        if phase in ("begun", "called") and "aborts" in self.c.acts:
            row = state.rows[sub]
            attempt = self._attempt(row.cur)
            if attempt is not None and row.cur is not None and row.cur.id == attempt_id:
                facts = self.facts(state, sub)
                told = directive(
                    attempt,
                    is_current=True,
                    abort_requested_at=facts.abort_requested_at,
                    deadline_at=facts.deadline_at,
                    now=NOW,
                    limits=self.limits,
                )
                if told is Directive.ABORT:
                    yield from self._settle(state, place, sub, attempt_id, Outcome.ABORTED)

    def _begin(self, state: State, place: int, sub: int, attempt_id: int) -> Iterator[Step]:
        if not self.fenced(state, sub, attempt_id):
            yield self._lost(state, place, "begin")
            return
        row, session = state.rows[sub], self.session(state, sub)
        assert row.cur is not None
        inspection, _ = self.inspect(state, sub)
        if inspection.detail is Detail.INTEGRITY_HOLD:
            record = DecisionOnRecord(
                DecisionAction.HOLD, Reason.INTEGRITY_HOLD, row.rev + 1, session.version, inspection.detail
            )
            new = self.put(
                state,
                sub,
                status=next_status(Status.RUNNING, SubmissionEvent.HOLD),
                held=Reason.INTEGRITY_HOLD.value,
                decision=record,
                **self.ended(row, AttemptEnd.HELD),
            )
            yield Step(f"runner {place} meets damage", self._with_runner(new, place, None))
            return
        if inspection.state is SubmissionInspection.COMPLETED or inspection.detail is Detail.LEAF_MOVED:
            new = self._released(state, sub, AttemptEnd.RELEASED)
            yield Step(f"runner {place} finds nothing to do", self._with_runner(new, place, None))
            return
        path = active_path(entries_of(session), session.leaf)
        waiting = row.mode is ResumeMode.APPROVED and row.pending
        added = [
            SessionEntry(
                tool_marker_entry_id(call.entry_id, call.position),
                role="tool_result",
                tool_call_id=call.call_id,
                submission_id=self.names[sub],
                attempt_id=f"f{attempt_id}",
                is_synthetic=True,
            )
            for call in open_calls(path)
            if not waiting
        ]
        if inspection.state is SubmissionInspection.ABSENT:
            added.append(
                SessionEntry(
                    submission_input_entry_id(self.names[sub]),
                    role="user",
                    submission_id=self.names[sub],
                    attempt_id=f"f{attempt_id}",
                )
            )
        new = self.add(state, sub, *added) if added else state
        spends = row.mode is ResumeMode.REDISPATCH and (
            row.decision is None or row.decision.reason is not Reason.PROVIDER_RETRY
        )
        new = self.put(
            new,
            sub,
            cur=row.cur._replace(begun=True),
            begun_n=row.begun_n + 1,
            redispatches=row.redispatches + int(spends),
            pending=False,
        )
        phase = "started" if waiting else "begun"
        yield Step(f"runner {place} begins", self._with_runner(new, place, ("hold", sub, attempt_id, phase, "")))

    def _append(
        self, state: State, place: int, sub: int, attempt_id: int, entry: SessionEntry, phase: str
    ) -> Iterator[Step]:
        if not self.fenced(state, sub, attempt_id, ask="append"):
            yield self._lost(state, place, f"append {entry.id}")
            return
        row = state.rows[sub]
        broken = [] if row.cur is not None and row.cur.id == attempt_id and not row.cur.over else ["FencedWrites"]
        broken += self._work_after_an_answer(state, sub, entry)
        new = self.add(state, sub, entry)
        if row.cur is not None and row.cur.id == attempt_id and entry.stop_reason != "error":
            new = self.touch(new, sub, cur=row.cur._replace(progress=True))
        held = ("hold", sub, attempt_id, phase, "")
        yield Step(f"runner {place} appends {entry.id}", self._with_runner(new, place, held), tuple(broken))
        if "lost_answers" in self.c.acts and phase == "answered":
            unsure = ("hold", sub, attempt_id, phase, f"append {entry.id}")
            yield Step(
                f"runner {place} appends {entry.id}, the answer lost",
                self._with_runner(new, place, unsure),
                tuple(broken),
            )

    def _work_after_an_answer(self, state: State, sub: int, entry: SessionEntry) -> list[str]:
        session = self.session(state, sub)
        # A person who moves the leaf to before an answer asks for another one.
        others = [
            found
            for found in active_path(entries_of(session), session.leaf)
            if found.submission_id == self.names[sub]
            and found.stop_reason == "stop"
            and found.attempt_id != entry.attempt_id
        ]
        return ["CompletedNeverRequeued"] if others else []

    def _start(self, state: State, place: int, sub: int, attempt_id: int, entry: SessionEntry) -> Iterator[Step]:
        if not self.fenced(state, sub, attempt_id):
            yield self._lost(state, place, "start")
            return
        row = state.rows[sub]
        if row.abort and self.mutant != "start_ignores_abort":
            # Told so; what it does then is its settling.
            return
        new = self._with_runner(self.add(state, sub, entry), place, ("hold", sub, attempt_id, "started", ""))
        yield Step(f"runner {place} starts a tool", new, ("TerminateBeforeStale",) if row.abort else ())

    def _settle(self, state: State, place: int, sub: int, attempt_id: int, outcome: Outcome) -> Iterator[Step]:
        row = state.rows[sub]
        if not self.fenced(state, sub, attempt_id, ask="settle"):
            if self.mutant == "loser_told_success":
                yield Step(
                    f"runner {place} is told that it settled", self._with_runner(self._tell(state, sub), place, None)
                )
                return
            yield self._lost(state, place, "settle")
            return
        inspection, _ = self.inspect(state, sub)
        if inspection.state is SubmissionInspection.COMPLETED and outcome is not Outcome.COMPLETED:
            return
        broken = () if row.cur is not None and row.cur.id == attempt_id and not row.cur.over else ("FencedWrites",)
        new, more = self.settled(state, sub, outcome)
        told = self._tell(new, sub)
        yield Step(f"runner {place} settles {outcome}", self._with_runner(told, place, None), (*broken, *more))
        if "lost_answers" in self.c.acts:
            unsure = ("hold", sub, attempt_id, "answered", f"settle {outcome}")
            yield Step(
                f"runner {place} settles {outcome}, the answer lost", self._with_runner(new, place, unsure),
                (*broken, *more),
            )  # fmt: skip

    def _tell(self, state: State, sub: int) -> State:
        told = list(state.told)
        told[sub] += 1
        return state._replace(told=tuple(told))

    def _again(self, state: State, place: int, sub: int, attempt_id: int, phase: str, unsure: str) -> Iterator[Step]:
        """Call again what landed: it is recognised, before the fence."""
        if self.mutant == "fence_before_repeat" and not self.fenced(state, sub, attempt_id):
            yield Step(
                f"runner {place} is refused its own {unsure}",
                self._with_runner(state, place, None),
                ("RepeatsGetTheFirstAnswer",),
            )
            return
        verb, what = unsure.split(" ", 1)
        if verb == "append":
            assert any(entry.id == what for entry in entries_of(self.session(state, sub)))
            new = self._with_runner(state, place, ("hold", sub, attempt_id, phase, ""))
        else:
            new = self._with_runner(self._tell(state, sub), place, None)
        yield Step(f"runner {place} calls {unsure} again", new)

    def _give_up(self, state: State, place: int, sub: int, attempt_id: int, end: AttemptEnd) -> Iterator[Step]:
        row = state.rows[sub]
        if not self.fenced(state, sub, attempt_id):
            if self.mutant == "release_by_old_attempt" and end is AttemptEnd.RELEASED and row.status not in (
                None, Status.SETTLED,
            ):  # fmt: skip
                new = self.put(state, sub, spent=max(0, row.spent - 1))
                yield Step(f"runner {place} gives back what it lost", self._with_runner(new, place, None))
            yield self._lost(state, place, end.value)
            return
        new = self._released(state, sub, end)
        yield Step(f"runner {place} ends it: {end}", self._with_runner(new, place, None))

    def _released(self, state: State, sub: int, end: AttemptEnd) -> State:
        row = state.rows[sub]
        attempt = self._attempt(row.cur)
        assert attempt is not None
        counters = counters_after(Counters(row.crashes, row.errors), attempt, end, self.limits)
        gives_back = (end is AttemptEnd.RELEASED and row.releases < self.limits.releases_max) or (
            end is AttemptEnd.PARKED and row.parks < self.limits.parks_max
        )
        event = {
            AttemptEnd.FAILED: SubmissionEvent.FAIL,
            AttemptEnd.RELEASED: SubmissionEvent.RELEASE,
            AttemptEnd.PARKED: SubmissionEvent.PARK,
        }[end]
        assert row.status is not None
        status = next_status(row.status, event)
        park = 0
        if end is AttemptEnd.PARKED:
            if row.unparked:
                status = next_status(status, SubmissionEvent.UNPARK)
            elif self.mutant != "park_without_end":
                park = 1
        return self.put(
            state,
            sub,
            status=status,
            spent=max(0, row.spent - int(gives_back)),
            releases=row.releases + int(gives_back and end is AttemptEnd.RELEASED),
            parks=row.parks + int(gives_back and end is AttemptEnd.PARKED),
            crashes=counters.crashes_in_row,
            errors=counters.provider_errors,
            park=park,
            pending=end is AttemptEnd.PARKED,
            ready=False,
            **self.ended(
                row,
                end,
                retryable=True if end is AttemptEnd.FAILED else None,
                counted=end is AttemptEnd.FAILED,
            ),
        )

    # --- outcomes

    def settled(
        self, state: State, sub: int, outcome: Outcome, *, by_hand: bool = False
    ) -> tuple[State, tuple[str, ...]]:
        """Write an outcome, as one step; return what it broke."""
        row, session = state.rows[sub], self.session(state, sub)
        inspection, _ = self.inspect(state, sub)
        broken = []
        if row.status is Status.SETTLED:
            broken.append("AtMostOneSettlement")
        if inspection.state is SubmissionInspection.COMPLETED and outcome is not Outcome.COMPLETED and not by_hand:
            broken.append("AnswersAreKept")
        entry_id = submission_settlement_entry_id(self.names[sub])
        if self.mutant == "settlement_id_by_time":
            entry_id += f"@{session.version}"
        new = state
        has_entry = any(entry.id == entry_id for entry in entries_of(session))
        if not has_entry and self.mutant != "row_without_entry":
            leaf = inspection.integrity is None and (
                inspection.detail not in (Detail.LEAF_MOVED, Detail.INPUT_MISSING) or not session.entries
            )
            new = self.add(
                new,
                sub,
                SessionEntry(entry_id, kind="submission_settled", submission_id=self.names[sub], content="none"),
                leaf=leaf and not self.c.mirrored,
            )
        if self.mutant == "entry_without_row" and row.cur is None:
            return new, tuple(broken)
        changes: dict[str, Any] = {
            "status": Status.SETTLED,
            "outcome": outcome,
            "ready": False,
            "park": 0,
            "held": None,
        }
        if row.cur is not None:
            changes |= self.ended(row, AttemptEnd.SETTLED)
        new = self.put(new, sub, **changes)
        counts = list(new.settlements)
        counts[sub] += 1
        return new._replace(settlements=tuple(counts)), tuple(broken)

    # --- daemons

    def _with_daemon(self, state: State, place: int, local: tuple[Any, ...] | None) -> State:
        return state._replace(daemons=(*state.daemons[:place], local, *state.daemons[place + 1 :]))

    def _daemon(self, state: State, place: int) -> Iterator[Step]:
        local = state.daemons[place]
        if local is None:
            for sub in range(len(state.rows)):
                if self.is_due(state, sub):
                    yield Step(f"daemon {place} scans {sub}", self._with_daemon(state, place, ("seen", sub)))
            return
        yield Step(f"daemon {place} dies", self._with_daemon(state, place, None))
        sub = local[1]
        row = state.rows[sub]
        if local[0] == "seen":
            if row.status in (None, Status.SETTLED):
                yield Step(f"daemon {place} finds {sub} done", self._with_daemon(state, place, None))
                return
            decision = self.decision(state, sub)
            if not decision.is_written:
                yield Step(f"daemon {place} leaves {sub} alone", self._with_daemon(state, place, None))
                return
            version = self.session(state, sub).version
            seen = ("decided", sub, version, row.rev, row.cur, decision, (row.late, row.abort, row.park))
            yield Step(f"daemon {place} decides {sub}: {decision.action}", self._with_daemon(state, place, seen))
            return
        _, _, version, rev, cur, decision, times = local
        idle = self._with_daemon(state, place, None)
        if row.status is None:
            yield Step(f"daemon {place} finds {sub} gone", idle)
            return
        session = self.session(state, sub)
        lands = (
            row.status is not Status.SETTLED
            and (row.rev == rev or self.mutant == "write_without_revision")
            and (session.version == version or self.mutant == "write_without_version")
            and (row.cur is None) == (cur is None)
            and (row.cur is None or cur is None or row.cur.id == cur.id)
            # Gate 2 is asked again behind the locks, by the clock of that moment.
            and (
                row.cur is None
                or row.cur.over == cur.over
                or decision.action is DecisionAction.ADOPT
                or self.mutant == "write_without_lease"
            )
        )
        if self.mutant == "abort_read_before_lock" and row.cur is not None and cur is not None:
            lands = lands or (row.status is Status.RUNNING and row.cur.id == cur.id and session.version == version)
        if not lands:
            yield Step(f"daemon {place} meets a conflict on {sub}", idle)
            return
        new, broken = self.written(state, sub, decision)
        if times != (row.late, row.abort, row.park):
            # Time passed between the clock and the commit: the row is due again at that instant.
            broken = tuple(check for check in broken if check != "NoDecisionFromStaleInspection")
        yield Step(f"daemon {place} writes {sub}: {decision.action}", self._with_daemon(new, place, None), broken)

    def written(self, state: State, sub: int, decision: Decision) -> tuple[State, tuple[str, ...]]:
        """Carry a decision out, as one step; return what it broke."""
        row, session = state.rows[sub], self.session(state, sub)
        broken: list[str] = []
        if row.status is not Status.SETTLED:
            afresh = self.decision(state, sub)
            if (afresh.action, afresh.outcome, afresh.reason) != (decision.action, decision.outcome, decision.reason):
                broken.append("NoDecisionFromStaleInspection")
        inspection, _ = self.inspect(state, sub)
        if inspection.detail is Detail.SETTLED_ENTRY and decision.action is not DecisionAction.ADOPT:
            broken.append("AdoptBeatsAll")
        if decision.action in (DecisionAction.SETTLE, DecisionAction.ADOPT):
            assert decision.outcome is not None
            new, more = self.settled(state, sub, decision.outcome)
            # An adoption says whose outcome it is, not that it made it.
            told = self._tell(new, sub) if decision.action is DecisionAction.SETTLE else new
            return told, (*broken, *more)
        if inspection.state is SubmissionInspection.COMPLETED and decision.action is DecisionAction.REQUEUE:
            broken.append("CompletedNeverRequeued")
        changes: dict[str, Any] = {}
        if row.cur is not None and self.mutant != "requeue_keeps_attempt":
            changes |= self.ended(row, decision.attempt_end or AttemptEnd.CRASHED)
        event = event_of(decision)
        if row.cur is not None and self.mutant == "requeue_keeps_attempt":
            pass
        if event is not None:
            assert row.status is not None
            changes["status"] = next_status(row.status, event)
        if decision.counters is not None:
            changes |= {"crashes": decision.counters.crashes_in_row, "errors": decision.counters.provider_errors}
        if decision.provider_error_attempt_id is not None:
            last = changes.get("last", row.last)
            changes["last"] = None if last is None else last._replace(counted=True)
        requeues = decision.action is DecisionAction.REQUEUE
        if self.mutant == "crash_gives_back" and row.cur is not None:
            changes["spent"] = row.spent - 1
        return (
            self.put(
                state,
                sub,
                ready=requeues,
                mode=decision.mode if requeues else row.mode,
                held=decision.reason.value if decision.holds else (
                    row.held if decision.action is DecisionAction.WAIT else None
                ),
                released=None,
                retried=False,
                # An answered park is used up.
                unparked=row.unparked and not (
                    row.cur is None and row.last is not None and row.last.end is AttemptEnd.PARKED
                ),
                park=0 if requeues else row.park,
                decision=DecisionOnRecord(
                    decision.action, decision.reason, row.rev + 1, session.version, inspection.detail
                ),
                **changes,
            ),
            tuple(broken),
        )  # fmt: skip

    # --- the environment and people

    def _environment(self, state: State) -> Iterator[Step]:
        for sub, row in enumerate(state.rows):
            if row.status in (None, Status.SETTLED):
                continue
            if row.cur is not None and not row.cur.over:
                yield Step(f"the lease on {sub} ends", self.touch(state, sub, cur=row.cur._replace(over=True)))
            if row.abort == 1:
                yield Step(f"the grace of the abort of {sub} ends", self.touch(state, sub, abort=2))
            if self.c.deadline and row.late < 2:
                yield Step(f"the deadline of {sub} passes", self.touch(state, sub, late=row.late + 1))
            if row.park == 1:
                yield Step(f"the park of {sub} expires", self.touch(state, sub, park=2))

    def _operators(self, state: State) -> Iterator[Step]:
        acts = self.c.acts
        for sub, row in enumerate(state.rows):
            if row.status is Status.SETTLED and "prune" in acts:
                gone = state._replace(
                    rows=(*state.rows[:sub], Row(), *state.rows[sub + 1 :]), pruned=state.pruned | {sub}
                )
                yield Step(f"prune {sub}", gone)
            if row.status is Status.WAITING and "parks" in acts and not row.unparked:
                new = self.put(
                    state, sub, status=next_status(row.status, SubmissionEvent.UNPARK), unparked=True, park=0
                )
                yield Step(f"unpark {sub}", new)
        if state.meddled >= self.c.meddling:
            return
        meddled = state._replace(meddled=state.meddled + 1)
        for sub, row in enumerate(state.rows):
            if row.status in (None, Status.SETTLED):
                continue
            if "aborts" in acts and not row.abort:
                yield Step(f"abort {sub}", self.put(meddled, sub, abort=1, ready=False))
            if row.status is Status.RUNNING and "parks" in acts and not row.unparked:
                yield Step(f"unpark {sub} before its park", self.put(meddled, sub, unparked=True))
            if "retries" in acts and row.status is Status.QUEUED and row.held is None and not row.abort:
                changes: dict[str, Any] = {"granted": row.granted + 1, "ready": False, "retried": True}
                if self.mutant == "retry_resets_fence":
                    changes["claims"] = 0
                yield Step(f"retry {sub}", self.put(meddled, sub, decision=None, **changes))
            if "settles" in acts:
                inspection, _ = self.inspect(state, sub)
                is_answered = inspection.state is SubmissionInspection.COMPLETED
                has_entry = inspection.detail is Detail.SETTLED_ENTRY
                if not is_answered and not has_entry:
                    new, broken = self.settled(meddled, sub, Outcome.FAILED, by_hand=True)
                    yield Step(f"settle {sub} by hand", self._tell(new, sub), broken)
            if "damage" in acts and self.session(state, sub).entries and self.session(state, sub).leaf != "gone":
                place = self.c.sessions[sub]
                session = self.session(state, sub)
                broken_leaf = session._replace(leaf="gone", version=session.version + 1)
                yield Step(
                    f"the session of {sub} is damaged",
                    meddled._replace(sessions=(*state.sessions[:place], broken_leaf, *state.sessions[place + 1 :])),
                )
            if "restores" in acts and row.outcome is None:
                inspection, _ = self.inspect(state, sub)
                if inspection.detail is not Detail.SETTLED_ENTRY and self.session(state, sub).entries:
                    entry = SessionEntry(
                        submission_settlement_entry_id(self.names[sub]),
                        kind="submission_settled",
                        submission_id=self.names[sub],
                        content="none",
                    )
                    yield Step(f"an older ledger is restored beside the settlement of {sub}",
                               self.add(meddled, sub, entry))  # fmt: skip
            if "moves" in acts and row.cur is None and self.session(state, sub).entries:
                place = self.c.sessions[sub]
                session = self.session(state, sub)
                first = _ENTRIES[session.entries[0]].id
                if session.leaf not in (first, "gone"):
                    moved = Session(session.entries, first, session.version + 1, session.version + 1)
                    new = meddled._replace(sessions=(*state.sessions[:place], moved, *state.sessions[place + 1 :]))
                    # What waits there, head or not, is due with nothing standing.
                    for other, found in enumerate(state.rows):
                        if self.c.sessions[other] == place and found.status is Status.QUEUED and found.held is None:
                            stands = found.decision is not None and (
                                found.decision.reason is Reason.ADMITTED
                                or found.decision.detail is Detail.INPUT_MISSING
                            )
                            if not stands:
                                new = self.put(new, other, ready=False)
                    yield Step(f"the leaf below {sub} is moved", new)
        if "releases_holds" in acts:
            for sub, row in enumerate(state.rows):
                if row.held is None:
                    continue
                session = self.session(state, sub)
                new = meddled
                if session.leaf == "gone":
                    place = self.c.sessions[sub]
                    mended = session._replace(
                        leaf=_ENTRIES[session.entries[-1]].id, version=session.version + 1, moved=session.version + 1
                    )
                    new = new._replace(sessions=(*state.sessions[:place], mended, *state.sessions[place + 1 :]))
                yield Step(f"release the hold of {sub}", self.put(new, sub, held=None, released=row.held))


__all__ = ["Attempt", "Configuration", "Model", "Row", "Session", "State", "Step", "policy"]
