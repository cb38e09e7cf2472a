"""PostgreSQL databases of other programs: one read-only snapshot per session, streamed, bounded in time.

Every transaction is READ ONLY and REPEATABLE READ: it locks no row and writes nothing, and the server refuses it where
it would. Knows nothing of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from reconciler.errors import SourceUnreadable
from reconciler.importers.foreign_database import READ_S_MAX, VALUE_BYTES_MAX

_CONNECT_S: Final = 10
_BUFFER_ROWS: Final = 500
_COLUMNS: Final = """
SELECT c.relname, a.attname
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(c.oid)
  AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
ORDER BY c.relname, a.attnum
"""

T = TypeVar("T")


class PostgresqlRows:
    """A PostgreSQL database of another program."""

    dialect = "postgresql"

    def __init__(self, url: URL) -> None:
        self.name = url.set(drivername="postgresql").render_as_string(hide_password=True)
        bare = URL.create("postgresql", url.username, None, url.host, url.port, url.database)
        self._place = bare.render_as_string()
        options = (
            f"-c default_transaction_read_only=on -c statement_timeout={int(READ_S_MAX * 1000)}"
            f" -c lock_timeout=5000 -c idle_in_transaction_session_timeout={int(READ_S_MAX * 1000)}"
        )
        self._engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            isolation_level="REPEATABLE READ",
            connect_args={
                "connect_timeout": _CONNECT_S,
                "options": options,
                "application_name": "reconciler-import",
                "prepare_threshold": None,
            },
        )
        self._conn: Connection | None = None

    def place(self) -> str:
        """Return the URL without the password."""
        return self._place

    def age_s(self) -> float:
        """Return 0: nobody knows when a session was written to last."""
        return 0.0

    def close(self) -> None:
        """Close what is open."""
        self._engine.dispose()

    def snapshot(self, work: Callable[[], T]) -> T:
        """Run *work* on one state of the database.

        Raises:
            SourceUnreadable: it can't be reached or read.
        """
        try:
            with self._engine.connect() as conn:
                self._conn = conn
                conn.exec_driver_sql("SET TRANSACTION READ ONLY")
                try:
                    return work()
                finally:
                    self._conn = None
                    conn.rollback()
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()
            raise SourceUnreadable(
                f'could not read "{self.name}": {reason[0] if reason else error}',
                hint="check the URL, the server, and that its user may read the tables",
            ) from error

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables that need no schema in front of their names, and their columns."""
        found: dict[str, tuple[str, ...]] = {}
        for table, column in self.read(_COLUMNS):
            found[table] = (*found.get(table, ()), column)
        return found

    def read(self, sql: str, *params: Any) -> Iterator[tuple[Any, ...]]:
        """Run a query and yield its rows."""
        if self._conn is None:
            raise SourceUnreadable(f'could not read "{self.name}": it is closed')
        # A percent sign is the driver's own mark.
        text = sql.replace("%", "%%").replace("?", "%s") if params else sql
        options = {"stream_results": True, "max_row_buffer": _BUFFER_ROWS}
        result = self._conn.execution_options(**options).exec_driver_sql(text, params or None)
        try:
            for row in result:
                for value in row:
                    if isinstance(value, str | bytes) and len(value) > VALUE_BYTES_MAX:
                        raise SourceUnreadable(f'cannot read "{self.name}": a value has {len(value)} bytes')
                yield tuple(row)
        finally:
            result.close()


@contextmanager
def opened_postgresql(name: str) -> Iterator[PostgresqlRows]:
    """Open a PostgreSQL database of another program, read-only.

    Raises:
        SourceUnreadable: the URL is none, or names another kind of database.
    """
    try:
        url = make_url(name.replace("postgres:", "postgresql:", 1) if name.startswith("postgres:") else name)
    except ArgumentError as error:
        raise SourceUnreadable("cannot read the URL of the database", hint="postgresql://USER@HOST/DATABASE") from error
    rows = PostgresqlRows(url)
    try:
        yield rows
    finally:
        rows.close()
