"""Statements straight to the PostgreSQL driver, several in one round trip: for the few calls that run all the time.

Inside the caller's transaction, each statement with a snapshot of its own, in the order given, as if sent one by one.
An engine that is listened to (tests that stop or crash between statements) gets them one by one, so that every
statement is seen. Knows nothing of what is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection

Query = tuple[str, Mapping[str, Any]]


def send(conn: Connection, *queries: Query) -> list[Sequence[Any]]:
    """Send *queries* (text with ``%(name)s``, parameters) and return the rows of each, as plain tuples.

    Raises:
        DBAPIError (of SQLAlchemy): as its own execution would; a lost connection is invalidated.
    """
    if conn.engine._has_events:
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
        raise sa_exc.DBAPIError("sent to the driver", None, error, connection_invalidated=is_lost) from error


def _rows(result: Any) -> Sequence[Any]:
    return [tuple(row) for row in result] if result.returns_rows else ()


def _fetched(cursor: Any) -> Sequence[Any]:
    # Not by its description: an object would be made for each column.
    result = cursor.pgresult
    return cursor.fetchall() if result is not None and result.nfields else ()
