"""One connection of a daemon's own: whether the database answers on it, without a pool that would hide a reconnect.

Knows nothing of time: how long it has been up is counted by who holds it.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Engine

from reconciler.errors import DatabaseUnavailable
from reconciler.store.database_errors import translate_error
from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import name_of, require_same_file, sqlite_path
from reconciler.store.sqlite_file import Identity, identity_of


class Link:
    """A held connection. Used by one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._path = None if is_postgresql(engine) else sqlite_path(engine.url)
        self._conn: Any = None
        self._file: Identity | None = None

    def ping(self) -> bool:
        """Ask the database for an answer; return whether the connection had to be made for it.

        Raises:
            ReconcilerError: it did not answer, typed; the connection is closed.
        """
        made = self._conn is None
        try:
            if self._conn is None:
                self._conn = self._connect()
            self._conn.execute("SELECT 1").fetchone()
            self._require_same_file()
        except Exception as error:
            self.close()
            if isinstance(error, sa_exc.SQLAlchemyError | sqlite3.Error) or hasattr(error, "sqlstate"):
                raise translate_error(error, name_of(self._engine)) from error
            raise
        return made

    def close(self) -> None:
        """Close the connection; the next ping makes another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(Exception):  # a connection that is broken already
                conn.close()

    def _connect(self) -> Any:
        pooled = self._engine.raw_connection()
        conn: Any = pooled.driver_connection
        # Out of the pool for good: what is held here is nobody else's.
        pooled.detach()
        if self._path is None:
            conn.autocommit = True
        else:
            self._file = identity_of(self._path)
        return conn

    def _require_same_file(self) -> None:
        # SQLite: a file that was replaced below us (a backup put back) would go on being used, unlinked.
        if self._path is not None and identity_of(self._path) != self._file:
            self.close()
            # What is there now may not be usable; then that is what has to be said.
            require_same_file(self._engine)
            raise DatabaseUnavailable(
                f"could not use {name_of(self._engine)}: it was replaced",
                detail={"kind": "connection_lost"},
                hint="nothing is to be done: connections to the new file are made",
            )
