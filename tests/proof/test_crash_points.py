"""Every operation killed at points that are discovered, and recovered: the part that fits into every run of the tests.

All points of all operations: ``make crash-points``.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.ops.registry import REGISTRY
from reconciler.service.attempt import Attempt
from reconciler.service.refine import RefineGate
from reconciler.service.runner import Runner
from tests.proof import crash, driver
from tests.proof.forking import in_child
from tests.proof.model import locks
from tests.proof.operations import NOT_SCRIPTED, OPERATIONS, Operation
from tests.support.databases import PostgreSQLDatabases

# Deaths of an operation and of its recovery: PostgreSQL costs more, and shares all code above the statements.
DEATHS = {"sqlite": (4, 2), "postgresql": (2, 1)}


@pytest.fixture(scope="session")
def _sqlite_injector() -> Iterator[crash.Injector]:
    with tempfile.TemporaryDirectory(dir=crash.memory_folder()) as name:
        with crash.sqlite_place(Path(name)) as place:
            driver.install()
            crash.warm(place, Path(name))
            yield crash.Injector(place, Path(name))


@pytest.fixture(scope="session")
def _postgresql_injector(_postgresql_databases: PostgreSQLDatabases) -> Iterator[crash.Injector]:
    databases = PostgreSQLDatabases(_postgresql_databases.address, f"proof_{_postgresql_databases.worker}")
    url = databases.empty()
    with tempfile.TemporaryDirectory(dir=crash.memory_folder()) as name:
        with crash.postgresql_place(url) as place:
            driver.install()
            crash.warm(place, Path(name))
            yield crash.Injector(place, Path(name))
    databases.drop_clones()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_killed_at_any_point_it_recovers_to_the_same_end(
    operation: Operation, database_kind: str, request: pytest.FixtureRequest
) -> None:
    injector: crash.Injector = request.getfixturevalue(f"_{database_kind}_injector")
    deaths, recoveries = DEATHS[database_kind]
    found = injector.run(operation, at_most=deaths, recovery_at_most=recoveries)
    assert [] == found.faults
    # Each death was a process's that was seen to die by SIGKILL.
    assert min(deaths, found.points) <= found.deaths
    assert found.recovery_deaths > 0 or operation.empty


def test_every_verb_that_writes_is_killed() -> None:
    verbs = {
        f"{owner.__name__}.{name}"
        for owner in (Runner, Attempt, RefineGate)
        for name, member in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }
    acts = {name for name, entry in REGISTRY.items() if entry.acts}
    covered = {verb for operation in OPERATIONS for verb in operation.covers}
    assert set() == (verbs | acts) - covered - set(NOT_SCRIPTED)
    assert set() == covered - verbs - acts - {"reconcile_once", "schedule look"}


def test_a_point_is_a_death_by_sigkill_before_and_after_each_statement(sqlite_url: str) -> None:
    import sqlite3

    driver.install()
    path = sqlite_url.removeprefix("sqlite:///")

    def two_statements(kill_at: int | None) -> list[str]:
        watching = driver.Watch(kill_at)
        connection = sqlite3.connect(path, isolation_level=None)
        driver.watch(watching)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        return watching.points

    points = in_child(lambda: two_statements(None)).value
    assert [
        "before BEGIN IMMEDIATE",
        "after BEGIN IMMEDIATE",
        "before CREATE TABLE t (x)",
        "after CREATE TABLE t (x)",
        "before COMMIT",
        "after COMMIT",
    ] == points
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE t")
    for number, is_there in ((5, False), (6, True)):
        assert in_child(lambda: two_statements(number)).killed  # noqa: B023
        with sqlite3.connect(path) as connection:
            found = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 't'").fetchone()
        assert (int(is_there),) == found


def test_writes_that_land_one_by_one_are_found(
    _sqlite_injector: crash.Injector, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The negative control: a proof that can't fail proves nothing.
    monkeypatch.setattr(driver, "WITHOUT_TRANSACTIONS", True)
    found = {
        operation.name: bool(_sqlite_injector.run(operation, at_most=1000, recovery_at_most=1).faults)
        for operation in OPERATIONS
        if operation.name in ("submit, a new session", "append three", "settle completed", "fail")
    }
    assert {"submit, a new session": True, "append three": True, "settle completed": True, "fail": True} == found


def test_the_locks_of_every_transaction_are_taken_in_an_order_that_cannot_deadlock(
    _postgresql_injector: crash.Injector,
) -> None:
    found = {
        order
        for operation in OPERATIONS
        if not operation.empty
        for order in locks.orders(_postgresql_injector.points_of(operation))
    }
    assert ("sessions", "submissions", "attempts") in found
    assert [] == locks.deadlocks(sorted(found))
