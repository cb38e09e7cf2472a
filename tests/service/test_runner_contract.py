"""The runner's contract on SQLite and PostgreSQL; the independent checker judges the database after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reconciler.testing import Bench, RunnerContract
from tests.support.checker import check, report


class TestRunner(RunnerContract):
    """The suite over the databases of ``database_url``."""

    @pytest.fixture
    def bench(self, database_url: str) -> Iterator[Bench]:
        """Give a bench, and judge what the test left behind."""
        bench = Bench(database_url)
        yield bench
        bench.close()
        found = [] if bench.damaged else check(database_url)
        assert not found, report(found)
