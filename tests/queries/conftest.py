"""The shared database of a million submissions, once per run for all who ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from reconciler.store.engine import EngineSettings, make_engine
from tests.support import million


@pytest.fixture(scope="session")
def _million_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # With xdist each worker has a folder of its own inside the run's.
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session", params=["sqlite", "sqlite-analyzed", "postgresql"])
def million_url(request: pytest.FixtureRequest, _million_folder: Path) -> str:
    """Give the URL of the large database, of either kind; only for reading."""
    if request.param.startswith("sqlite"):
        return million.sqlite_url(_million_folder, analyzed=request.param.endswith("analyzed"))
    return million.postgresql_url(request.getfixturevalue("postgresql_server"), _million_folder)


@pytest.fixture(scope="session")
def million_engine(million_url: str) -> Iterator[Engine]:
    """Give an engine on the large database."""
    engine = make_engine(million_url, settings=EngineSettings(application_name="plans", read_only=True))
    yield engine
    engine.dispose()
