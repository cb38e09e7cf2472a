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
from typing import Any, Final, NamedTuple

from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection

from reconciler.store import rounds

Query = tuple[str, Mapping[str, Any]]
# Those of each query, as plain tuples.
Rows = list[list[tuple[Any, ...]]]


def is_listened_to(conn: Connection) -> bool:
    """Tell whether somebody listens to the statements of this connection's engine."""
    listeners = conn.dispatch
    return bool(listeners.before_cursor_execute or listeners.after_cursor_execute)


def send(conn: Connection, *queries: Query, last: bool = False) -> Rows:
    """Send *queries* (text with ``%(name)s``, parameters) and return the rows of each, as plain tuples.

    What went ahead with the transaction's beginning is not sent again, if it is asked for in its order. *last*: nothing
    follows, whatever the answers are, so COMMIT goes with them; not for work that must not be done twice where the
    connection is lost meanwhile.

    Raises:
        DBAPIError (of SQLAlchemy): as its own execution would; a lost connection is invalidated.
    """
    if is_listened_to(conn):
        return [_rows(conn.exec_driver_sql(text, dict(parameters))) for text, parameters in queries]
    ahead: _Ahead | None = conn.info.pop(_AHEAD, None)
    if ahead is not None and ahead.queries[: len(queries)] == queries:
        rest = _Ahead(ahead.queries[len(queries) :], ahead.rows[len(queries) :])
        if rest.queries:
            conn.info[_AHEAD] = rest
        return ahead.rows[: len(queries)]
    return _sent(conn, (*queries, _COMMIT) if last else queries)[: len(queries)]


def send_ahead(conn: Connection, *queries: Query, ahead: Sequence[Query]) -> Rows:
    """Send *queries* and then *ahead* in one round trip; return the rows of the first, and keep those of the second.

    `send` gives them out to who asks the same, in this order, before anything else. For the transaction's beginning
    alone, which no listener sees; of an engine that is listened to *ahead* is left to `send`.

    Raises:
        DBAPIError (of SQLAlchemy): as its own execution would.
    """
    if not ahead or is_listened_to(conn):
        return _sent(conn, queries)
    rows = _sent(conn, (*queries, *ahead))
    conn.info[_AHEAD] = _Ahead(tuple(ahead), rows[len(queries) :])
    return rows[: len(queries)]


def forget_ahead(conn: Connection) -> None:
    """Forget what went ahead and was not asked for."""
    conn.info.pop(_AHEAD, None)


class _Ahead(NamedTuple):
    queries: tuple[Query, ...]
    rows: Rows


_AHEAD: Final = "reconciler_ahead"
_COMMIT: Final[Query] = ("COMMIT", {})


def doubt_prepared(conn: Connection) -> None:
    """Take note that the driver rolls back: it may take all prepared statements from the connection."""
    if not conn.invalidated:
        _doubt(conn.info)


def doubt_prepared_at_reset(driver: Any, record: Any) -> None:
    """Take note of a connection that comes back to the pool in the middle of a transaction, which is rolled back."""
    if rounds.is_in_transaction(driver):
        _doubt(record.info)


def _doubt(info: Mapping[str, Any]) -> None:
    known = info.get(_PREPARED)
    if known is not None:
        known.doubt()


_PREPARED: Final = "reconciler_prepared"


def _sent(conn: Connection, queries: Sequence[Query]) -> Rows:
    import psycopg

    driver: Any = conn.connection.driver_connection
    statements = []
    for text, parameters in queries:
        numbered, names = _numbered(text)
        statements.append((numbered, [parameters[name] for name in names]))
    try:
        known = conn.info.get(_PREPARED)
        if known is None:
            known = conn.info[_PREPARED] = rounds.PreparedNames()
        if not driver.autocommit and not rounds.is_in_transaction(driver):
            # The driver's cursors begin it by themselves, too.
            return rounds.exchange(driver, known, [(rounds.begin_text(driver), ()), *statements])[1:]
        return rounds.exchange(driver, known, statements)
    except psycopg.Error as error:
        is_lost = bool(driver.closed) or rounds.is_under_way(driver)
        if is_lost:
            conn.invalidate(error)
        raise sa_exc.DBAPIError.instance(
            "sent to the driver", None, error, psycopg.Error, connection_invalidated=is_lost, dialect=conn.dialect
        ) from error
    except BaseException:
        if rounds.is_under_way(driver):
            # Interrupted in the middle: answers will come that nobody waits for.
            conn.invalidate()
        raise


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


@lru_cache(maxsize=512)
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement as the server takes it, and the names of its parameters in the order of their numbers."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[0] == "%%" else f"${names.setdefault(found[1], len(names) + 1)}"

    return _PLACE.sub(number, text).encode(), tuple(names)


_PLACE: Final = re.compile(r"%%|%\((\w+)\)s")


def _rows(result: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in result] if result.returns_rows else []
