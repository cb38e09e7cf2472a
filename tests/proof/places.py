"""Databases that can be put back as they were, byte by byte or row by row, and read without a word of ours.

An SQLite file with its write-ahead log, and a PostgreSQL database. Only raw drivers; the tables are read from the
database's own catalogue.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.rows import tuple_row

from tests.proof import hands

SCHEMA = "reconciler"
Rows = dict[str, list[dict[str, Any]]]


class Place(Protocol):
    """A database."""

    kind: str

    @property
    def url(self) -> str:
        """The address."""

    def save(self) -> Any:
        """Return all of it, to be put back."""

    def restore(self, saved: Any) -> None:
        """Put it back as it was."""

    def clear(self) -> None:
        """Leave no table of ours."""

    def quiet(self) -> None:
        """Wait until nobody else is connected: what a dead process left is rolled back."""

    def rows(self) -> Rows:
        """Return every row of every table, by name, in the order of the keys."""

    def rows_by(self, conn: Any) -> Rows:
        """Return the same by a driver's connection that isn't the place's own."""

    def advance(self, seconds: float) -> None:
        """Let time pass by the database's clock."""

    def close(self) -> None:
        """Let go of it."""


@dataclass
class SQLitePlace:
    """A file. Its write-ahead log is part of what is saved: a death leaves one behind."""

    path: Path
    kind: str = "sqlite"
    _layout: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address."""
        return f"sqlite:///{self.path}"

    def _files(self) -> tuple[Path, Path, Path]:
        return self.path, Path(f"{self.path}-wal"), Path(f"{self.path}-shm")

    def save(self) -> tuple[bytes | None, bytes | None]:
        """Return file and log as they are."""
        main, log, _ = self._files()
        return tuple(path.read_bytes() if path.exists() else None for path in (main, log))  # type: ignore[return-value]

    def restore(self, saved: tuple[bytes | None, bytes | None]) -> None:
        """Write file and log; the index of the log is made anew by whoever opens it."""
        hands.forget_file(self.path)
        for path, content in zip(self._files(), (*saved, None), strict=True):
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)

    def clear(self) -> None:
        """Remove the file."""
        self._layout.clear()
        hands.forget_file(self.path)
        for path in self._files():
            path.unlink(missing_ok=True)

    def quiet(self) -> None:
        """Nothing to wait for: the kernel drops a dead process's locks before its death can be seen."""

    def rows(self) -> Rows:
        """Return every row; looking changes nothing but the log's index."""
        if not self.path.exists():
            return {}
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=30)) as conn:
            return self.rows_by(conn)

    def rows_by(self, conn: sqlite3.Connection) -> Rows:
        """Return every row, as one snapshot by *conn*."""
        conn.execute("BEGIN")
        if not self._layout:
            for (table,) in conn.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
                " ORDER BY name"
            ).fetchall():
                info = conn.execute(f'PRAGMA table_info("{table}")').fetchall()
                names = [column[1] for column in info]
                self._layout[table] = (names, [c[1] for c in sorted(info, key=lambda c: c[5]) if c[5]] or names)
        found: Rows = {}
        for table, (names, keys) in self._layout.items():
            order = ", ".join(f'"{key}"' for key in keys)
            found[table] = [
                dict(zip(names, row, strict=True)) for row in conn.execute(f'SELECT * FROM "{table}" ORDER BY {order}')
            ]
        conn.execute("COMMIT")
        return found

    def advance(self, seconds: float) -> None:
        """Step the clock that the engines have."""
        hands.pass_time(seconds)

    def close(self) -> None:
        """Remove the file."""
        self.clear()


class PostgreSQLPlace:
    """A database of its own on a server; saved and put back by COPY over one connection that stays open."""

    kind = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self._conn = psycopg.connect(url, autocommit=True, row_factory=tuple_row)
        self._conn.execute(f"SET search_path TO {SCHEMA}")
        self._conn.execute("SET session_replication_role = replica")
        self._known: dict[str, tuple[list[str], list[str]]] | None = None

    @property
    def url(self) -> str:
        """The address."""
        return self._url

    def _tables(self) -> dict[str, tuple[list[str], list[str]]]:
        """Return each table's columns, and its key."""
        if self._known:
            return self._known
        found: dict[str, tuple[list[str], list[str]]] = {}
        columns = self._conn.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_attribute a ON a.attrelid = c.oid WHERE n.nspname = %s AND c.relkind = 'r' AND a.attnum > 0"
            " AND NOT a.attisdropped ORDER BY c.relname, a.attnum",
            (SCHEMA,),
        ).fetchall()
        for table, column in columns:
            found.setdefault(table, ([], []))[0].append(column)
        keys = self._conn.execute(
            "SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(num, pos)"
            " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.num"
            " WHERE n.nspname = %s AND i.indisprimary ORDER BY c.relname, k.pos",
            (SCHEMA,),
        ).fetchall()
        for table, column in keys:
            found[table][1].append(column)
        self._known = found or None
        return found

    def save(self) -> dict[str, bytes]:
        """Return the rows of the tables that have any, as COPY gives them; None where there is no table."""
        saved: dict[str, bytes] = {}
        for table in self._tables():
            with self._conn.cursor() as cursor, cursor.copy(f'COPY "{table}" TO STDOUT (FORMAT binary)') as copy:
                data = b"".join(bytes(piece) for piece in copy)
            if len(data) > 21:  # header and trailer alone
                saved[table] = data
        return saved

    def restore(self, saved: dict[str, bytes]) -> None:
        """Put the rows back."""
        self.quiet()
        tables = [table for table in self._tables() if table != "alembic_version"]
        with self._conn.transaction(), self._conn.cursor() as cursor:
            for table in tables:
                cursor.execute(f'DELETE FROM "{table}"')
            for table, data in saved.items():
                if table != "alembic_version":
                    with cursor.copy(f'COPY "{table}" FROM STDIN (FORMAT binary)') as copy:
                        copy.write(data)

    def clear(self) -> None:
        """Drop the schema."""
        self.quiet()
        self._known = None
        self._conn.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")

    def quiet(self) -> None:
        """Wait until the server has seen that its clients are dead."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            others = self._conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            ).fetchone()
            if others == (0,):
                return
            time.sleep(0.001)
        raise TimeoutError("a dead client's connection stayed open")

    def rows(self) -> Rows:
        """Return every row, as one snapshot."""
        return self.rows_by(self._conn)

    def rows_by(self, conn: psycopg.Connection[Any]) -> Rows:
        """Return every row, as one snapshot by *conn*."""
        found: Rows = {}
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for table, (columns, keys) in self._tables().items():
                order = ", ".join(f'"{key}"' for key in keys or columns)
                found[table] = [
                    dict(zip(columns, row, strict=True))
                    for row in conn.execute(f'SELECT * FROM "{table}" ORDER BY {order}')
                ]
        return found

    def advance(self, seconds: float) -> None:
        """Move every instant on record back: the server's clock is nobody's to step."""
        if not seconds:
            return
        self.quiet()
        with self._conn.transaction():
            for table, columns in self._instants().items():
                moved = ", ".join(f'"{column}" = "{column}" - make_interval(secs => {seconds})' for column in columns)
                self._conn.execute(f'UPDATE "{table}" SET {moved}')

    def _instants(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for table, column in self._conn.execute(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t"
            " USING (table_schema, table_name) WHERE c.table_schema = %s AND t.table_type = 'BASE TABLE'"
            " AND c.data_type = 'timestamp with time zone'",
            (SCHEMA,),
        ).fetchall():
            found.setdefault(table, []).append(column)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Place]:
    """Give a place and let go of it after the block."""
    try:
        yield place
    finally:
        place.close()
