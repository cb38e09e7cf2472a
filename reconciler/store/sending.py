"""Statements straight to the drivers, on PostgreSQL several in one round trip: for the calls that run all the time.

Inside the caller's transaction, each statement with a snapshot of its own, in the order given, as if sent one by one.
An engine that is listened to (tests that stop or crash between statements) gets them one by one, so that every
statement is seen. Knows nothing of what is sent.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection

Query = tuple[str, Mapping[str, Any]]


def is_listened_to(conn: Connection) -> bool:
    """Tell whether somebody listens to the statements of this connection's engine."""
    listeners = conn.dispatch
    return bool(listeners.before_cursor_execute or listeners.after_cursor_execute)


def send(conn: Connection, *queries: Query) -> list[Sequence[Any]]:
    """Send *queries* (text with ``%(name)s``, parameters) and return the rows of each, as plain tuples.

    Raises:
        DBAPIError (of SQLAlchemy): as its own execution would; a lost connection is invalidated.
    """
    if is_listened_to(conn):
        return [_rows(conn.exec_driver_sql(text, dict(parameters))) for text, parameters in queries]
    import psycopg

    driver: Any = conn.connection.driver_connection
    cursors = []
    try:
        if len(queries) == 1:
            cursors.append(_sent(driver, *queries[0]))
        else:
            with driver.pipeline():
                for text, parameters in queries:
                    cursors.append(_sent(driver, text, parameters))
        return [_fetched(cursor) for cursor in cursors]
    except psycopg.Error as error:
        is_lost = bool(driver.closed)
        if is_lost:
            conn.invalidate(error)
        raise sa_exc.DBAPIError.instance(
            "sent to the driver", None, error, psycopg.Error, connection_invalidated=is_lost, dialect=conn.dialect
        ) from error


def execute_sqlite(conn: Connection, text: str, *several: Sequence[Any] | Mapping[str, Any]) -> Any:
    """Run a statement once, or once for each of *several* sets of values; return what its rows and count are read from.

    Raises:
        DBAPIError (of SQLAlchemy): as its own execution would.
    """
    values: Any = several[0] if len(several) == 1 else list(several)
    if is_listened_to(conn):
        return conn.exec_driver_sql(text, values or None, execution_options={"preserve_rowcount": True})
    driver: Any = conn.connection.driver_connection
    try:
        return driver.executemany(text, values) if len(several) > 1 else driver.execute(text, values)
    except sqlite3.Error as error:
        raise sa_exc.DBAPIError.instance(text, None, error, sqlite3.Error, dialect=conn.dialect) from error


def _sent(driver: Any, text: str, parameters: Mapping[str, Any]) -> Any:
    import psycopg

    numbered, names = _numbered(text)
    return psycopg.RawCursor(driver).execute(numbered, [parameters[name] for name in names])


@lru_cache(maxsize=512)
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement as the server takes it, and the names of its parameters in the order of their numbers.

    The driver does the same at each execution of a statement of some length.
    """
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[0] == "%%" else f"${names.setdefault(found[1], len(names) + 1)}"

    return _PLACE.sub(number, text), tuple(names)


_PLACE: Final = re.compile(r"%%|%\((\w+)\)s")


def _rows(result: Any) -> Sequence[Any]:
    return [tuple(row) for row in result] if result.returns_rows else ()


def _fetched(cursor: Any) -> Sequence[Any]:
    # Not by its description: an object would be made for each column.
    result = cursor.pgresult
    return cursor.fetchall() if result is not None and result.nfields else ()
