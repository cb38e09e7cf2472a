"""The databases that are measured on: a PostgreSQL server that keeps what it is told, and files of SQLite.

Knows nothing of what is put into them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine

from reconciler.store import migrate
from reconciler.store.engine import make_engine, sqlite_path
from tests.support.postgresql import Address, Server

# As an ordinary small server has them; durability is the point, so fsync and full pages stay on.
SERVER_SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "maintenance_work_mem": "256MB",
    "autovacuum_naptime": "1min",
    "deadlock_timeout": "1s",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class Database:
    """One migrated database."""

    kind: str
    url: str
    address: Address | None = None

    def engine(self) -> Engine:
        """Return an engine as the program makes it."""
        return make_engine(self.url)

    def driver(self) -> Any:
        """Return a connection of the driver alone, in autocommit mode, set as the program sets its own."""
        if self.kind == "sqlite":
            path = sqlite_path(self.url)
            assert path is not None
            conn = sqlite3.connect(path, isolation_level=None, cached_statements=256)
            conn.execute("PRAGMA foreign_keys=ON")
            conn.execute("PRAGMA synchronous=FULL")
            conn.execute("PRAGMA journal_mode=WAL")
            return conn
        import psycopg

        return psycopg.connect(
            self.url, autocommit=True, options="-c search_path=reconciler -c synchronous_commit=on -c jit=off"
        )

    def settle_down(self) -> None:
        """Let what was loaded reach the disk and the planner's statistics, so that no measure pays for it."""
        conn = self.driver()
        if self.kind == "sqlite":
            conn.execute("PRAGMA analysis_limit=1000")
            conn.execute("ANALYZE")
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        else:
            conn.execute("ANALYZE")
            conn.execute("CHECKPOINT")
        conn.close()


class Databases:
    """Makes databases of both kinds; the server and the files end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Server | None = None
        self._made = 0

    @property
    def server(self) -> Server:
        """The PostgreSQL server, started when it is first asked for."""
        if self._server is None:
            self._server = Server(settings=SERVER_SETTINGS)
        return self._server

    def make(self, kind: str) -> Database:
        """Return a migrated, empty database of *kind*: ``postgresql`` or ``sqlite``."""
        self._made += 1
        if kind == "sqlite":
            url = f"sqlite:///{self._folder / f'bench-{self._made}.sqlite3'}"
            migrate.upgrade(url)
            return Database(kind, url)
        address = self.server.address
        name = f"bench_{self._made}"
        address.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        migrate.upgrade(address.url(name))
        return Database(kind, address.url(name), address)

    def plain(self, name: str) -> str:
        """Return the URL of an empty PostgreSQL database, for a program that makes its own tables."""
        address = self.server.address
        address.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name} TEMPLATE template0")
        return address.url(name)

    def drop(self, database: Database) -> None:
        """Remove a database: they are large."""
        if database.kind == "sqlite":
            path = sqlite_path(database.url)
            assert path is not None
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
        elif database.address is not None:
            name = database.url.rpartition("/")[2]
            database.address.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.stop()
            self._server = None


@contextmanager
def databases(folder: Path) -> Iterator[Databases]:
    """Give a maker of databases below *folder*."""
    made = Databases(folder)
    try:
        yield made
    finally:
        made.stop()
