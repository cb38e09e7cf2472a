"""A state machine over each real store: two runners, two daemons, an operator, and time, in any order.

Every rule is one act of one of them, through the API that they use. After every step the independent checker judges the
database; at the end everything is worked off, and every submission has its one outcome.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from reconciler.core.model import NewEntry
from reconciler.core.states import Directive, ResumeMode
from reconciler.errors import ReconcilerError
from reconciler.service.attempt import Attempt
from reconciler.service.reconcile import Judge, reconcile_once
from reconciler.service.runner import Runner, _Floor
from tests.proof import crash, driver, hands
from tests.proof.hands import Hands
from tests.proof.places import Place
from tests.proof.random_runs import LIMITS
from tests.support.checker import check, report
from tests.support.databases import PostgreSQLDatabases

EXAMPLES = {"sqlite": 60, "postgresql": 10}
STEPS = 30

_SESSION = st.sampled_from(["s", "t"])
_SUBMISSION = st.sampled_from(["a", "b"])
_RUNNER = st.sampled_from([0, 1])


class Machine(RuleBasedStateMachine):
    """The machine; ``place`` is set by the test."""

    place: Place
    folder: Path
    empty: Any

    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        hands.set_clock(0.0)
        hands.let_go()
        self.place.restore(self.empty)
        self.hands = Hands(self.place.url, self.folder)
        self.hands.limits = LIMITS
        # They live in this process, so that no death is proven: only leases end.
        self.runners = [self._runner(number) for number in (0, 1)]
        self.told: dict[str, str] = {}
        self.executed: list[str] = []
        self.count = 0

    def _runner(self, number: int) -> Runner:
        return Runner(
            self.place.url,
            owner=f"runner-{number}",
            lease_s=60.0,
            beat_s=5.0,
            limits=LIMITS,
            beat_by_itself=False,
            notify=False,
            reconnect_s=0.0,
        )

    def _try(self, act: Any) -> Any:
        # A typed refusal is an answer.
        try:
            return act()
        except ReconcilerError as error:
            return error

    def _id(self) -> str:
        self.count += 1
        return f"e{self.count}"

    # --- runners

    @initialize(target=attempts)
    def work_is_there(self) -> Any:
        """Begin with two turns under way, and one that waits behind the first."""
        for session, submission in (("s", "a"), ("s", "b"), ("t", "a")):
            self.runners[0].submit(session, submission, {"text": submission})
        claimed = [*self.runners[0].claim(1), *self.runners[1].claim(1)]
        for attempt in claimed:
            attempt.begin()
        return multiple(*claimed)

    @rule(session=_SESSION, submission=_SUBMISSION, deadline=st.sampled_from([None, None, 500.0]))
    def submit(self, session: str, submission: str, deadline: float | None) -> None:
        """Admit."""
        self._try(lambda: self.runners[0].submit(session, submission, {"text": submission}, deadline_s=deadline))

    @rule(target=attempts, runner=_RUNNER, limit=st.sampled_from([1, 2]), begins=st.sampled_from([True, True, False]))
    def claim(self, runner: int, limit: int, begins: bool) -> Any:
        """Claim, and mostly begin at once."""
        claimed = self.runners[runner].claim(limit)
        for attempt in claimed if begins else ():
            self._try(attempt.begin)
        return multiple(*claimed)

    @rule(target=attempts, session=_SESSION, submission=_SUBMISSION)
    def submit_and_begin(self, session: str, submission: str) -> Any:
        """Admit and begin what may begin, so that there is something to act on."""
        self._try(lambda: self.runners[0].submit(session, submission, {"text": submission}))
        claimed = self.runners[0].claim(1)
        for attempt in claimed:
            self._try(attempt.begin)
        return multiple(*claimed)

    @rule(attempt=attempts)
    def crash(self, attempt: Attempt) -> None:
        """Its owner is gone for all that anybody can tell: the lease ends, and a daemon that may judge it decides."""
        self.time_passes(61.0)
        self._pass()

    @rule(attempt=attempts)
    def begin(self, attempt: Attempt) -> None:
        """Begin; also of attempts that are lost."""
        self._try(attempt.begin)

    @rule(attempt=attempts, calls=st.sampled_from([1, 2]), logged=st.booleans())
    def ask_for_tools(self, attempt: Attempt, calls: int, logged: bool) -> None:
        """Append a response with calls."""
        ids = tuple(self._id() for _ in range(calls))
        self._try(
            lambda: attempt.append(
                [
                    NewEntry(
                        "assistant",
                        {"text": "see"},
                        id=self._id(),
                        stop_reason="tool_use",
                        tool_call_ids=ids,
                        starts_logged=logged,
                    )
                ]
            )
        )

    @rule(attempt=attempts)
    def run_tools(self, attempt: Attempt) -> None:
        """Start and answer what is open on the path, as the runner's duties have it."""
        stored = self._try(lambda: attempt.path(valid=False))
        if isinstance(stored, ReconcilerError):
            return
        entries = [item.entry for item in stored]
        answered = {entry.tool_call_id for entry in entries if getattr(entry, "role", None) == "tool_result"}
        for entry in entries:
            for call in getattr(entry, "tool_call_ids", ()):
                mine = getattr(entry, "attempt_id", None) == attempt.attempt_id
                approved = attempt.resume.mode is ResumeMode.APPROVED
                if call in answered or not (mine or approved):
                    continue
                if isinstance(self._try(lambda call=call: attempt.start(call)), ReconcilerError):
                    return
                self.executed.append(call)
                result = NewEntry("tool_result", {"ok": True}, id=self._id(), tool_call_id=call)
                if isinstance(self._try(lambda result=result: attempt.append([result])), ReconcilerError):
                    return

    @rule(attempt=attempts, stop=st.sampled_from(["stop", "stop", "error", "aborted", "length"]))
    def answer(self, attempt: Attempt, stop: str) -> None:
        """Append a response without calls."""
        self._try(lambda: attempt.append([NewEntry("assistant", {"text": "done"}, id=self._id(), stop_reason=stop)]))

    @rule(attempt=attempts, outcome=st.sampled_from(["completed", "completed", "failed", "aborted"]))
    def settle(self, attempt: Attempt, outcome: str) -> None:
        """Settle."""
        found = self._try(lambda: attempt.settle(outcome))
        if not isinstance(found, ReconcilerError):
            self._tell(f"{attempt.session_id}/{attempt.submission_id}", found.outcome.value)

    def _tell(self, name: str, outcome: str) -> None:
        assert self.told.setdefault(name, outcome) == outcome, f"{name} was told {self.told[name]}, now {outcome}"

    @rule(attempt=attempts, how=st.sampled_from(["fail", "release", "park", "park for calls", "rejected"]))
    def give_up(self, attempt: Attempt, how: str) -> None:
        """End an attempt without an outcome."""
        match how:
            case "fail":
                self._try(lambda: attempt.fail("overloaded"))
            case "rejected":
                self._try(lambda: attempt.fail("no such model", retryable=False))
            case "release":
                self._try(lambda: attempt.release("a deploy"))
            case "park":
                self._try(lambda: attempt.park(until_s=300.0))
            case _:
                stored = [item.entry for item in attempt.path(valid=False)]
                calls = [call for entry in stored for call in getattr(entry, "tool_call_ids", ())]
                self._try(lambda: attempt.park(pending_calls=calls[-1:]))

    @rule(attempt=attempts)
    def beat(self, attempt: Attempt) -> None:
        """Beat; what is lost hears so, and stays lost."""
        was_lost = attempt.lost.is_final
        told = self._try(attempt.heartbeat)
        assert not was_lost or told is Directive.LOST

    @rule(runner=_RUNNER)
    def restart(self, runner: int) -> None:
        """A runner's process dies: another one comes in its place, and knows nothing."""
        self.runners[runner] = self._runner(runner)

    # --- daemons, operators, time

    @rule(limit=st.sampled_from([None, None, 1]), judges=st.booleans())
    def reconcile(self, limit: int | None, judges: bool) -> None:
        """A pass, by a daemon that may judge leases or by one that has just come."""
        self._pass(limit=limit, connected_s=1e9 if judges else 0.0)

    def _pass(self, *, limit: int | None = None, connected_s: float = 1e9) -> Any:
        return reconcile_once(
            self.hands.engine,
            limits=LIMITS,
            judge=Judge(connected_for_s=lambda: connected_s),
            decided_by="daemon",
            limit=limit,
            jitter=lambda: 0.0,
        )

    @rule(session=_SESSION, submission=_SUBMISSION)
    def abort(self, session: str, submission: str) -> None:
        """Ask for an abort."""
        self._try(lambda: self.runners[1].request_abort(session, submission))

    @rule(session=_SESSION, submission=_SUBMISSION)
    def unpark(self, session: str, submission: str) -> None:
        """Answer a park, also before it."""
        self._try(lambda: self.runners[1].unpark(session, submission))

    @rule(
        verb=st.sampled_from(["retry", "release", "settle", "settle fenced", "move-leaf", "again", "prune"]),
        session=_SESSION,
        submission=_SUBMISSION,
        outcome=st.sampled_from(["completed", "failed", "aborted"]),
    )
    def operate(self, verb: str, session: str, submission: str, outcome: str) -> None:
        """Do something by hand; refusals are answers."""
        name = f"{session}/{submission}"
        match verb:
            case "retry" | "release":
                self.hands.ask(verb, submission=name, reason="x")
            case "settle" | "settle fenced":
                found = self.hands.ask("settle", submission=name, outcome=outcome, fence=verb != "settle", reason="x")
                if found.error is None:
                    self._tell(name, found.payload["outcome"])
            case "move-leaf":
                self.hands.ask("move-leaf", session=session, entry=f"submission-input:{submission}", reason="x")
            case "again":
                self.hands.ask("submit", again=name, reason="x")
            case _:
                self.hands.ask("prune", keep_completed_days=0.01, keep_failed_days=0.01, reason="x")

    @rule(seconds=st.sampled_from([1.0, 20.0, 61.0, 400.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        """Let time pass."""
        self._connections_down()
        self.place.advance(seconds)

    def _connections_down(self) -> None:
        for runner in self.runners:
            # On PostgreSQL time passes by moving every instant back, below where a runner's search begins.
            runner._floor = _Floor()
            runner._engine.dispose()
            runner._beat_engine.dispose()
        self.hands.engine.dispose()

    # --- judging

    @invariant()
    def every_promise_is_kept(self) -> None:
        """The checker, after every step."""
        violations = check(self.place.url, limits=LIMITS)
        assert not violations, report(violations)

    @invariant()
    def no_tool_ran_twice(self) -> None:
        """What recovery may never do."""
        assert len(self.executed) == len(set(self.executed))

    def teardown(self) -> None:
        """Work everything off in peace, and look once more."""
        try:
            self._peace()
        finally:
            for runner in self.runners:
                runner.close(release=False)
            self._connections_down()

    def _peace(self) -> None:
        peaceful = self._runner(0)
        self.runners.append(peaceful)
        left: list[Any] = []
        for _ in range(40):
            self._connections_down()
            self.place.advance(5000.0)
            for _ in range(10):
                if not self._pass().written:
                    break
            rows = self.place.rows()["submissions"]
            left = [row for row in rows if row["status"] != "settled"]
            if not left:
                break
            for row in left:
                if row["held_at"] is not None:
                    self.hands.ask("release", submission=f"{row['session_id']}/{row['id']}", reason="peace")
            for attempt in peaceful.claim(5):
                self._try(lambda attempt=attempt: self._one_turn(attempt))
        assert not left, [(row["session_id"], row["id"], row["status"], row["held_reason"]) for row in left]
        assert not self._pass().written
        violations = check(self.place.url, limits=LIMITS, quiescent=True)
        assert not violations, report(violations)
        outcomes = {f"{row['session_id']}/{row['id']}": row["outcome"] for row in self.place.rows()["submissions"]}
        for name, outcome in self.told.items():
            # Pruned ones are remembered elsewhere.
            assert outcomes.get(name, outcome) == outcome

    def _one_turn(self, attempt: Attempt) -> None:
        attempt.begin()
        attempt.append([NewEntry("assistant", {"text": "done"}, id=self._id(), stop_reason="stop")])
        attempt.settle("completed")


def _run(place: Place, folder: Path, examples: int, *, shrinks: bool = True) -> None:
    driver.install()
    crash.warm(place, folder)
    machine = type("OneMachine", (Machine,), {"place": place, "folder": folder, "empty": crash._warm_state(place)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            phases=[Phase.generate, *([Phase.shrink] if shrinks else [])],
        ),
    )


def test_any_order_of_acts_keeps_every_promise_on_sqlite() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=crash.memory_folder())))
        _run(stack.enter_context(crash.sqlite_place(folder)), folder, EXAMPLES["sqlite"])


@pytest.mark.postgresql
def test_any_order_of_acts_keeps_every_promise_on_postgresql(_postgresql_databases: PostgreSQLDatabases) -> None:
    databases = PostgreSQLDatabases(_postgresql_databases.address, f"machine_{_postgresql_databases.worker}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=crash.memory_folder())))
        _run(stack.enter_context(crash.postgresql_place(databases.empty())), folder, EXAMPLES["postgresql"])
    databases.drop_clones()


def test_a_store_that_lets_late_writers_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control.
    monkeypatch.setattr("reconciler.store.entries.fence_error", lambda held, act: None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=crash.memory_folder())))
        place = stack.enter_context(crash.sqlite_place(folder))
        with pytest.raises(AssertionError, match="I6"):
            _run(place, folder, 60, shrinks=False)
