"""A contract suite for whoever wants to test a backend: subclass `RunnerContract` and give it a ``database_url``.

    class TestMyDatabase(RunnerContract):
        @pytest.fixture
        def database_url(self) -> str:
            return "postgresql://..."   # migrated and empty, for each test anew

Needs pytest. Knows nothing of how the database was made.
"""

from __future__ import annotations

import pytest

# Before the import: else a failed assertion says nothing but that it failed.
pytest.register_assert_rewrite("reconciler.testing.runner_contract")

from reconciler.testing.bench import Bench  # noqa: E402
from reconciler.testing.runner_contract import RunnerContract  # noqa: E402

__all__ = ["Bench", "RunnerContract"]
