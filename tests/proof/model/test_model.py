"""The exhaustive model, its mutants, and that the folder, the table and what runs are one and the same."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proof.model import checks, locks, machine
from tests.proof.model.configurations import CONFIGURATIONS, FULL
from tests.proof.model.explore import explore
from tests.proof.model.poison import left_undecided

TABLE = Path(__file__).with_name("mutants.table")
# What is no exploration of the machine, and has a test of its own below.
APART = {"poison": "PoisonDoesNotStarve", "locks": "NoDeadlock"}
CHECKS = checks.STEP_CHECKS | checks.STATE_CHECKS | checks.END_CHECKS


@dataclass(frozen=True)
class Mutant:
    """A line of the table."""

    name: str
    configuration: str
    check: str


def _table() -> list[Mutant]:
    lines = [line for line in TABLE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [Mutant(*(part.strip() for part in line.split(";;"))) for line in lines]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nothing_is_broken_in_any_state(name: str) -> None:
    found = explore(CONFIGURATIONS[name], drain_every=5)
    assert {} == found.broken
    assert found.complete
    # A model in which nothing happens breaks nothing.
    assert found.states > 300


@pytest.mark.parametrize("mutant", [mutant for mutant in _table() if mutant.configuration in CONFIGURATIONS], ids=str)
def test_each_mutant_is_caught_by_its_check(mutant: Mutant) -> None:
    found = explore(
        CONFIGURATIONS[mutant.configuration],
        mutant=mutant.name,
        stop_at=[mutant.check],
        states_max=50_000,
        drain_every=10**9,
    )
    assert mutant.check in found.broken
    assert found.broken[mutant.check], "a check that fails in the first state proves nothing"


def test_the_table_names_every_mutant_and_every_configuration_that_there_is() -> None:
    table = _table()
    source = inspect.getsource(machine)
    named = set(re.findall(r'self\.mutant [!=]= "(\w+)"', source)) | set(
        re.findall(r'"(\w+)"', " ".join(re.findall(r"self\.mutant not in \(([^)]*)\)", source)))
    )
    asked = {f"{ask}_without_fence" for ask in re.findall(r'ask="(\w+)"\)', source)}
    apart = {"batch_in_one_transaction", "lock_order_reversed"}
    assert named | asked | apart == {mutant.name for mutant in table}
    assert len(table) == len({mutant.name for mutant in table})
    assert {mutant.configuration for mutant in table} <= set(CONFIGURATIONS) | set(APART)
    assert {mutant.check for mutant in table} <= CHECKS | set(APART.values())
    assert {f"full: {name}" for name in CONFIGURATIONS} | {"full: everything"} == set(FULL)
    # Every file of the folder is a part that one of these tests runs.
    assert {path.name for path in TABLE.parent.iterdir() if path.suffix in (".py", ".table")} == {
        "__init__.py",
        "checks.py",
        "configurations.py",
        "explore.py",
        "locks.py",
        "machine.py",
        "mutants.table",
        "poison.py",
        "test_model.py",
    }


def test_every_check_is_one_that_some_step_or_state_can_break() -> None:
    yielded = set(re.findall(r'"([A-Z][A-Za-z]+)"', inspect.getsource(machine) + inspect.getsource(checks)))
    from tests.proof.model import explore as module

    yielded |= set(re.findall(r'report\("([A-Z][A-Za-z]+)"', inspect.getsource(module)))
    assert CHECKS <= yielded


def test_a_row_that_cannot_be_written_keeps_no_other_waiting(sqlite_url: str) -> None:
    assert set() == left_undecided(sqlite_url, one_transaction=False)


def test_a_rescue_in_one_transaction_starves(sqlite_url: str) -> None:
    assert left_undecided(sqlite_url, one_transaction=True)


def test_an_order_of_locks_against_the_ranks_can_deadlock() -> None:
    ranked = [("sessions", "submissions", "attempts"), ("submissions", "attempts"), ("attempts",)]
    assert [] == locks.deadlocks(ranked)
    backwards = ("attempts", "submissions", "sessions")
    assert (backwards, ranked[0]) in locks.deadlocks([*ranked, backwards])


def test_locks_are_read_off_statements() -> None:
    assert ["sessions", "submissions"] == locks.locks_of(
        "SELECT 1 FROM sessions JOIN submissions ON true WHERE x FOR UPDATE OF sessions, submissions"
    )
    assert ["attempts"] == locks.locks_of("UPDATE attempts SET beat_at = now()")
    assert ["sessions?"] == locks.locks_of("SELECT 1 FROM c JOIN sessions x ON true FOR UPDATE OF x SKIP LOCKED")
    points = ["before UPDATE attempts SET a = 1", "before UPDATE sessions SET a = 1", "before COMMIT"]
    assert [("attempts", "sessions")] == list(locks.orders(points))
