"""Statements straight to the drivers, on PostgreSQL several in one round trip: for the calls that run all the time.

Inside the caller's transaction, each statement with a snapshot of its own, in the order given, as if sent one by one.
An engine that is listened to (tests that stop or crash between statements) gets them one by one, so that every
statement is seen. Knows nothing of what is sent.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection

Query = tuple[str, Mapping[str, Any]]


def is_listened_to(conn: Connection) -> bool:
    """Tell whether somebody listens to the statements of this connection's engine."""
    return bool(conn.dispatch.before_cursor_execute or conn.dispatch.after_cursor_execute)


def send(conn: Connection, *queries: Query) -> list[Sequence[Any]]:
    """Send *queries* (text with ``%(name)s``, parameters) and return the rows of each, as plain tuples.

    Raises:
        DBAPIError (of SQLAlchemy): as its own execution would; a lost connection is invalidated.
    """
    if is_listened_to(conn):
        return [_rows(conn.exec_driver_sql(text, dict(parameters))) for text, parameters in queries]
    import psycopg

    driver: Any = conn.connection.driver_connection
    try:
        if len(queries) == 1:
            ((text, parameters),) = queries
            cursor = driver.execute(text, parameters)
            return [_fetched(cursor)]
        cursors = []
        with driver.pipeline():
            for text, parameters in queries:
                cursor = driver.cursor()
                cursor.execute(text, parameters)
                cursors.append(cursor)
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


def _rows(result: Any) -> Sequence[Any]:
    return [tuple(row) for row in result] if result.returns_rows else ()


def _fetched(cursor: Any) -> Sequence[Any]:
    # Not by its description: an object would be made for each column.
    result = cursor.pgresult
    return cursor.fetchall() if result is not None and result.nfields else ()
