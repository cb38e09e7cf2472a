"""What pytest-alembic's own tests take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_alembic import Config
from sqlalchemy.engine import Engine

from reconciler.store import migrate


@pytest.fixture
def alembic_config() -> Config:
    """Give the configuration of the migrations in this checkout."""
    return Config(config_options={"script_location": str(migrate.migrations_dir())})


@pytest.fixture
def alembic_engine(empty_database_url: str, engine_factory: Callable[..., Engine]) -> Engine:
    """Give an engine on a database without tables, of either kind."""
    return engine_factory(empty_database_url, create=True)
