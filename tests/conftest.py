"""Fixtures for every test: databases of both kinds.

``database_url`` and ``engine`` run a test on an SQLite file and on PostgreSQL; ``sqlite_url`` and ``postgresql_url``
on one of them. Each test gets a migrated and empty database. No PostgreSQL means that the tests fail, unless
RECONCILER_TEST_WITHOUT_POSTGRESQL=1 says to skip them.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.store.engine import DEFAULT_SETTINGS, EngineSettings, make_engine
from tests.support import postgresql
from tests.support.databases import PostgreSQLDatabases, SQLiteFiles

BOTH = (
    pytest.param("sqlite", marks=pytest.mark.sqlite),
    pytest.param("postgresql", marks=pytest.mark.postgresql),
)


class _SharedServer:
    """With xdist: one server for all workers, owned by the controller, which outlives them."""

    def __init__(self) -> None:
        self.server: postgresql.Server | None = None
        self.reason: str | None = None

    def start(self) -> None:
        if self.server is None and self.reason is None:
            try:
                self.server = postgresql.Server()
            except postgresql.NoPostgreSQL as error:
                self.reason = str(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if not _skips_postgresql():
            self.start()
        node.workerinput["postgresql"] = dataclasses.asdict(self.server.address) if self.server else None
        node.workerinput["postgresql_reason"] = self.reason

    def pytest_unconfigure(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None


def _skips_postgresql() -> bool:
    return os.environ.get(postgresql.SKIP_VARIABLE, "") not in ("", "0")


def pytest_configure(config: pytest.Config) -> None:
    """Own the server where this process hands out work to others."""
    if config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SharedServer(), "shared-postgresql")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs PostgreSQL, whatever way it asks for it."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "postgresql_databases" in names and "database_url" not in names and "empty_database_url" not in names:
            item.add_marker(pytest.mark.postgresql)


@pytest.fixture(autouse=True)
def _nobody_beats_on() -> Iterator[None]:
    """Find a runner that was left open: its thread would write into the database of the tests that come after."""
    before = {thread.ident for thread in threading.enumerate()}
    yield
    left = [one for one in threading.enumerate() if one.name == "reconciler-beat" and one.ident not in before]
    for thread in left:
        thread.join(5)
    assert [] == [thread.name for thread in left if thread.is_alive()], "a Runner was not closed"


@pytest.fixture(scope="session")
def postgresql_server(request: pytest.FixtureRequest) -> Iterator[postgresql.Address]:
    """Give the address of a running PostgreSQL server, the same for all tests of a run."""
    if _skips_postgresql():
        pytest.skip(f"{postgresql.SKIP_VARIABLE} is set: not tested on PostgreSQL")
    handed: dict[str, Any] = getattr(request.config, "workerinput", {})
    if handed.get("postgresql"):
        yield postgresql.Address(**handed["postgresql"])
        return
    if handed.get("postgresql_reason"):
        pytest.fail(f"no PostgreSQL to test with: {handed['postgresql_reason']}", pytrace=False)
    try:
        server = postgresql.Server()
    except postgresql.NoPostgreSQL as error:
        pytest.fail(f"no PostgreSQL to test with: {error}", pytrace=False)
    with server:
        yield server.address


@pytest.fixture(scope="session")
def _postgresql_databases(postgresql_server: postgresql.Address, request: pytest.FixtureRequest) -> PostgreSQLDatabases:
    worker: str = getattr(request.config, "workerinput", {}).get("workerid", "main")
    return PostgreSQLDatabases(postgresql_server, worker)


@pytest.fixture
def postgresql_databases(_postgresql_databases: PostgreSQLDatabases) -> Iterator[PostgreSQLDatabases]:
    """Give the maker of PostgreSQL databases; what a test makes with it is dropped after it."""
    yield _postgresql_databases
    _postgresql_databases.drop_clones()


@pytest.fixture(scope="session")
def _sqlite_files(tmp_path_factory: pytest.TempPathFactory) -> SQLiteFiles:
    return SQLiteFiles(tmp_path_factory.mktemp("sqlite-template"))


@pytest.fixture
def sqlite_url(_sqlite_files: SQLiteFiles, tmp_path: Path) -> str:
    """Give the URL of a migrated, empty SQLite file."""
    return _sqlite_files.copy_to(tmp_path / "reconciler.sqlite3")


@pytest.fixture
def postgresql_url(postgresql_databases: PostgreSQLDatabases) -> str:
    """Give the URL of a migrated, empty PostgreSQL database."""
    return postgresql_databases.working()


@pytest.fixture(params=BOTH)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Run the test twice: ``sqlite`` and ``postgresql``."""
    kind: str = request.param
    return kind


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest) -> str:
    """Give the URL of a migrated, empty database of either kind."""
    url: str = request.getfixturevalue(f"{database_kind}_url")
    return url


@pytest.fixture
def empty_database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a database without tables (SQLite: of a file that isn't there yet)."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    databases: PostgreSQLDatabases = request.getfixturevalue("postgresql_databases")
    return databases.empty()


@pytest.fixture
def database_factory(
    database_kind: str, request: pytest.FixtureRequest, tmp_path: Path, _sqlite_files: SQLiteFiles
) -> Callable[[], str]:
    """Give a maker of further migrated, empty databases of the same kind; each call returns another URL."""
    if database_kind == "postgresql":
        databases: PostgreSQLDatabases = request.getfixturevalue("postgresql_databases")
        return databases.clone
    made = iter(range(1000))
    return lambda: _sqlite_files.copy_to(tmp_path / f"further-{next(made)}.sqlite3")


@pytest.fixture
def engine_factory() -> Iterator[Callable[..., Engine]]:
    """Give a maker of engines, ``(url, **settings)``, that are disposed of after the test.

    Two engines on one URL are two holders with connections of their own.
    """
    with ExitStack() as stack:

        def make(url: str, settings: EngineSettings = DEFAULT_SETTINGS, **changes: Any) -> Engine:
            engine = make_engine(url, settings=dataclasses.replace(settings, **changes))
            stack.callback(engine.dispose)
            return engine

        yield make


@pytest.fixture
def engine(database_url: str, engine_factory: Callable[..., Engine]) -> Engine:
    """Give an engine on a migrated, empty database of either kind."""
    return engine_factory(database_url)


@pytest.fixture
def second_engine(database_url: str, engine_factory: Callable[..., Engine]) -> Engine:
    """Give another holder of the same database, for races and lock order."""
    return engine_factory(database_url)
