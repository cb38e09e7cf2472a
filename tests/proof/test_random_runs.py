"""Random histories with random deaths, the part that fits into every test run (more: ``make crash-runs``)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.proof import crash, driver
from tests.proof.random_runs import run
from tests.support.databases import PostgreSQLDatabases

KILLS = {"sqlite": 120, "postgresql": 40}


def test_random_deaths_on_sqlite_lose_and_double_nothing() -> None:
    with tempfile.TemporaryDirectory(dir=crash.memory_folder()) as name, crash.sqlite_place(Path(name)) as place:
        driver.install()
        crash.warm(place, Path(name))
        totals = run(place, Path(name), runs=KILLS["sqlite"], seconds=60, seed=9_000)
    assert [] == totals.faults
    assert totals.kills > KILLS["sqlite"] / 3


def test_random_deaths_on_postgresql_lose_and_double_nothing(_postgresql_databases: PostgreSQLDatabases) -> None:
    databases = PostgreSQLDatabases(_postgresql_databases.address, f"runs_{_postgresql_databases.worker}")
    with tempfile.TemporaryDirectory(dir=crash.memory_folder()) as name:
        with crash.postgresql_place(databases.empty()) as place:
            driver.install()
            crash.warm(place, Path(name))
            totals = run(place, Path(name), runs=KILLS["postgresql"], seconds=60, seed=9_500)
    databases.drop_clones()
    assert [] == totals.faults
    assert totals.kills > KILLS["postgresql"] / 3


def test_random_runs_find_writes_that_land_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir=crash.memory_folder()) as name, crash.sqlite_place(Path(name)) as place:
        driver.install()
        crash.warm(place, Path(name))
        monkeypatch.setattr(driver, "WITHOUT_TRANSACTIONS", True)
        totals = run(place, Path(name), runs=60, seconds=60, seed=9_000)
    assert totals.faults
