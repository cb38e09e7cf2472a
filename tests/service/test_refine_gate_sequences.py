"""The durable gate is the pure gate on every sequence: in one process, or over crashes and restarts anywhere."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from sqlalchemy.engine import Engine

from reconciler.core.refine import (
    EditBudget,
    EditCandidate,
    GateAnswer,
    RefineVerdict,
    RejectedEditBuffer,
    run_refine_gate,
)
from reconciler.errors import EpochClosed, EpochOpen, NotFound
from reconciler.service.refine import RefineGate
from tests.support.checker import check
from tests.support.crashing import Crash, crash_at

SUBJECTS = (f"subject {number}" for number in itertools.count())
COSTS = (RefineVerdict.ACCEPTED, RefineVerdict.REJECTED)

scores = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(allow_nan=False, allow_infinity=False)
candidates = st.lists(st.builds(EditCandidate, st.sampled_from("abcd"), scores), max_size=8)
budgets = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: EditBudget(max(pair), min(pair)))
crashes = st.none() | st.integers(1, 8)

quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@quick
@given(scores, candidates, budgets)
def test_a_sequence_ends_as_the_pure_gate_says(
    engine: Engine, baseline: float, sequence: list[EditCandidate], budget: EditBudget
) -> None:
    gate, subject = RefineGate.over(engine), next(SUBJECTS)
    gate.open(subject, baseline_score=baseline, budget=budget)
    for candidate in sequence:
        gate.gate(subject, candidate.edit_id, candidate.score)
    assert run_refine_gate(baseline, sequence, budget) == gate.outcome(subject)


@quick
@given(scores, candidates, budgets)
def test_a_sequence_in_one_call_ends_as_the_pure_gate_says(
    engine: Engine, baseline: float, sequence: list[EditCandidate], budget: EditBudget
) -> None:
    gate, subject = RefineGate.over(engine), next(SUBJECTS)
    gate.open(subject, baseline_score=baseline, budget=budget)
    gate.gate_many(subject, sequence)
    assert run_refine_gate(baseline, sequence, budget) == gate.outcome(subject)


@quick
@given(scores, st.lists(st.tuples(candidates, budgets), min_size=1, max_size=3))
def test_epochs_in_a_row_are_pure_runs_that_hand_on_best_score_and_memory(
    engine: Engine, baseline: float, epochs: list[tuple[list[EditCandidate], EditBudget]]
) -> None:
    gate, subject = RefineGate.over(engine), next(SUBJECTS)
    best, known = baseline, RejectedEditBuffer()
    for number, (sequence, budget) in enumerate(epochs):
        gate.open(subject, baseline_score=None if number else baseline, budget=budget)
        gate.gate_many(subject, sequence)
        outcome = run_refine_gate(best, sequence, budget, rejected=known)
        assert outcome == gate.outcome(subject)
        best, known = outcome.best_score, outcome.rejected
        gate.close(subject)


@quick
@given(
    scores,
    st.lists(st.tuples(st.builds(EditCandidate, st.sampled_from("abcd"), scores), crashes, st.booleans())),
    budgets,
)
def test_with_step_keys_crashes_and_lost_answers_at_any_statement_change_nothing(
    engine: Engine, baseline: float, sequence: list[tuple[EditCandidate, int | None, bool]], budget: EditBudget
) -> None:
    subject = next(SUBJECTS)
    RefineGate.over(engine).open(subject, baseline_score=baseline, budget=budget)
    for number, (candidate, crash, answer_lost) in enumerate(sequence[:8]):
        key = f"step {number}"
        if crash is not None:
            with suppress(Crash), crash_at(engine, crash):
                RefineGate.over(engine).gate(subject, candidate.edit_id, candidate.score, step_key=key)
        elif answer_lost:
            RefineGate.over(engine).gate(subject, candidate.edit_id, candidate.score, step_key=key)
        RefineGate.over(engine).gate(subject, candidate.edit_id, candidate.score, step_key=key)
    pure = run_refine_gate(baseline, [candidate for candidate, _, _ in sequence[:8]], budget)
    assert pure == RefineGate.over(engine).outcome(subject)


@quick
@given(scores, candidates, budgets, st.lists(crashes, min_size=8, max_size=8))
def test_without_keys_a_restarted_loop_reads_from_the_record_how_far_it_got(
    engine: Engine, baseline: float, sequence: list[EditCandidate], budget: EditBudget, when: list[int | None]
) -> None:
    """What was scored is in the history, what wasn't cost nothing: a loop that counts scored steps goes on rightly."""
    subject = next(SUBJECTS)
    RefineGate.over(engine).open(subject, baseline_score=baseline, budget=budget)
    for candidate, crash in zip(sequence, when, strict=False):
        used = RefineGate.over(engine).status(subject).used
        with suppress(Crash), crash_at(engine, crash or 100):
            RefineGate.over(engine).gate(subject, candidate.edit_id, candidate.score)
            continue
        if RefineGate.over(engine).status(subject).used == used:
            RefineGate.over(engine).gate(subject, candidate.edit_id, candidate.score)
    assert run_refine_gate(baseline, sequence, budget) == RefineGate.over(engine).outcome(subject)


@pytest.mark.parametrize("act", ["open", "gate", "gate_many", "close", "forgive", "bound"])
def test_a_crash_at_each_statement_leaves_all_or_nothing_and_the_act_can_be_done_again(
    engine: Engine, database_url: str, act: str
) -> None:
    def prepared() -> str:
        subject = next(SUBJECTS)
        gate = RefineGate.over(engine)
        gate.open(subject, baseline_score=0.5, budget=EditBudget(9, 0))
        gate.gate(subject, "known", 0.25)
        gate.gate(subject, "mild", 0.4)
        if act in ("open", "bound"):
            gate.close(subject)
        return subject

    acts: dict[str, Callable[[RefineGate, str], object]] = {
        "open": lambda gate, subject: gate.open(subject),
        "gate": lambda gate, subject: gate.gate(subject, "e", 0.3, step_key="k"),
        "gate_many": lambda gate, subject: gate.gate_many(
            subject, [EditCandidate("e", 0.3), EditCandidate("f", 0.9)], step_keys=["k", "l"]
        ),
        "close": lambda gate, subject: gate.close(subject),
        "forgive": lambda gate, subject: gate.forgive(subject, ["known"]),
        "bound": lambda gate, subject: gate.open(subject, buffer_max=1),
    }

    def state(subject: str) -> Any:
        gate = RefineGate.over(engine)
        status = gate.status(subject)
        return (
            (status.epoch, status.is_open, status.used, status.best_score, status.rejected_count, status.buffer_max),
            [(step.number, step.edit_id, step.verdict) for step in gate.history(subject)],
            [(edit.edit_id, edit.worst_drop, edit.count) for edit in gate.rejected(subject)],
        )

    done = prepared()
    acts[act](RefineGate.over(engine), done)
    for statement in range(1, 40):
        subject = prepared()
        before = state(subject)
        try:
            with crash_at(engine, statement):
                acts[act](RefineGate.over(engine), subject)
        except Crash:
            if act != "bound":
                assert before == state(subject)
            acts[act](RefineGate.over(engine), subject)
            assert state(done) == state(subject)
            assert [] == check(database_url)
        else:
            assert statement > 3
            return
    pytest.fail("the act sent more than 40 statements")


# --- processes that are killed -------------------------------------------------------------------------------------

LOOP = """
import sys
from reconciler import RefineGate
url, subject, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with RefineGate(url) as gate:
    print("up", flush=True)
    for number in range(count):
        score = (number * 37 % 101) / 101
        gate.gate(subject, f"edit {number % 40}", score, step_key=f"step {number}")
        print(number, flush=True)
"""


@pytest.mark.slow
def test_a_loop_that_is_killed_again_and_again_ends_like_the_uninterrupted_run(
    engine: Engine, database_url: str
) -> None:
    subject, count = next(SUBJECTS), 60
    gate = RefineGate.over(engine)
    gate.open(subject, baseline_score=0.2, budget=EditBudget(45, 0))
    finished = False
    for kill_after in (3, 11, 20, 33, 47, 10_000):
        child = subprocess.Popen(
            [sys.executable, "-c", LOOP, database_url, subject, str(count)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == str(kill_after):
                child.send_signal(signal.SIGKILL)
                break
        child.stdout.close()
        finished = child.wait(60) == 0
    assert finished
    sequence = [EditCandidate(f"edit {number % 40}", (number * 37 % 101) / 101) for number in range(count)]
    assert run_refine_gate(0.2, sequence, EditBudget(45, 0)) == gate.outcome(subject)


# --- two writers ---------------------------------------------------------------------------------------------------


class TwoWriters(RuleBasedStateMachine):
    """Two gates on one subject, either of which may crash at any statement, against a model of plain values."""

    engines: tuple[Engine, Engine]
    keys = Bundle("keys")

    @initialize(baseline=st.sampled_from([0.25, 0.5]))
    def start(self, baseline: float) -> None:
        self.subject = next(SUBJECTS)
        self.gates = [RefineGate.over(engine) for engine in self.engines]
        self.baseline = baseline
        self.best = baseline
        self.used = 0
        self.budget: EditBudget | None = None
        self.epoch = 0
        self.rejected: dict[str, float] = {}
        self.past: dict[str, float] = {}
        self.number = itertools.count()

    def crash(self, writer: int, when: int | None, act: Callable[[RefineGate], Any]) -> Any:
        """Do *act*, dying at statement *when* the first time; a repeat must find nothing half-done."""
        if when is not None:
            with suppress(Crash), crash_at(self.engines[writer], when):
                return act(self.gates[writer])
            self.gates[writer] = RefineGate.over(self.engines[writer])
        return act(self.gates[writer])

    writers = st.integers(0, 1)

    @rule(writer=writers, when=crashes, most=st.integers(0, 3))
    def open(self, writer: int, when: int | None, most: int) -> None:
        budget = EditBudget(most, 0)
        baseline = None if self.epoch else self.baseline
        try:
            opened = self.crash(
                writer, when, lambda gate: gate.open(self.subject, baseline_score=baseline, budget=budget)
            )
        except EpochOpen:
            assert self.budget is not None
            return
        assert self.budget is None
        self.budget, self.used, self.epoch = budget, 0, self.epoch + 1
        assert (self.epoch, self.best) == (opened.epoch, opened.best_score)

    @rule(writer=writers, when=crashes)
    def close(self, writer: int, when: int | None) -> None:
        try:
            closed = self.crash(writer, when, lambda gate: gate.close(self.subject))
        except NotFound:
            assert self.epoch == 0
            return
        assert (self.epoch, self.budget is None) == (closed.epoch.epoch, closed.already_closed)
        self.budget = None

    @rule(
        target=keys,
        writer=writers,
        when=crashes,
        edit_id=st.sampled_from("abc"),
        score=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    )
    def step(self, writer: int, when: int | None, edit_id: str, score: float) -> GateAnswer | None:
        key = f"key {next(self.number)}"
        try:
            answer: GateAnswer = self.crash(
                writer, when, lambda gate: gate.gate(self.subject, edit_id, score, step_key=key)
            )
        except (EpochClosed, NotFound):
            assert self.budget is None
            return None
        assert self.budget is not None
        known = RejectedEditBuffer(self.rejected.items())
        left = EditBudget(self.budget.max - self.used, 0)
        pure = run_refine_gate(self.best, [EditCandidate(edit_id, score)], left, rejected=known)
        assert len(pure.steps) == (answer.verdict in COSTS)
        self.used += len(pure.steps)
        self.best = pure.best_score
        if answer.verdict is RefineVerdict.REJECTED:
            self.past[edit_id] = max(self.past.get(edit_id, 0.0), pure.rejected.drop_for(edit_id))
            self.rejected[edit_id] = self.past[edit_id]
        assert (self.best, self.used) == (answer.best_score, answer.used)
        return answer

    @rule(first=consumes(keys), writer=writers, when=crashes)
    def repeat(self, first: GateAnswer | None, writer: int, when: int | None) -> None:
        if first is not None:
            again = self.crash(
                writer,
                when,
                lambda gate: gate.gate(self.subject, first.edit_id, first.score, step_key=first.step_key),
            )
            assert (first.verdict, first.best_score, first.used) == (again.verdict, again.best_score, again.used)
            assert again.repeated

    @rule(writer=writers, when=crashes, edit_id=st.sampled_from("abc"))
    def forgive(self, writer: int, when: int | None, edit_id: str) -> None:
        try:
            done = self.crash(writer, when, lambda gate: gate.forgive(self.subject, [edit_id]))
        except NotFound:
            assert self.epoch == 0
            return
        assert (edit_id in self.rejected) == (done.edit_ids == (edit_id,))
        self.rejected.pop(edit_id, None)

    @invariant()
    def the_database_agrees_with_the_model(self) -> None:
        if not self.epoch:
            return
        status = self.gates[0].status(self.subject)
        assert (self.epoch, self.budget is not None, self.best, self.used) == (
            status.epoch,
            status.is_open,
            status.best_score,
            status.used,
        )
        assert 0 <= status.used <= status.budget.max
        assert self.rejected == {edit.edit_id: edit.worst_drop for edit in self.gates[1].rejected(self.subject)}
        assert len(self.rejected) == status.rejected_count


def test_two_writers_that_crash_agree_with_the_model(engine: Engine, second_engine: Engine, database_url: str) -> None:
    class Writers(TwoWriters):
        engines = (engine, second_engine)

    machine = Writers.TestCase
    machine.settings = settings(
        max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine("runTest").debug()
    assert [] == check(database_url)
