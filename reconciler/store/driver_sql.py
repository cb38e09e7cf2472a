"""Statements in the drivers' own words: for work that is made of many small ones.

A statement of SQLAlchemy's expression language is made, and its compiled form looked up, anew at each use; that takes
several times longer than the database does. Here the text stands ready, one for both databases. Knows no tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy.engine import Connection

from reconciler.store.dialect import is_postgresql
from reconciler.store.types import utc_text

_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_LIST: Final = re.compile(r"IN :([a-z_]+)")


class DriverSql:
    """A statement, from a text with ``:name`` parameters; ``IN :name`` takes a list of texts as one of them.

    *locking* makes it a locking read where the database has such (on SQLite the immediate transaction is the lock).
    """

    def __init__(self, text: str, *, locking: bool = False) -> None:
        self._sqlite = _LIST.sub(r"IN (SELECT value FROM json_each(:\1))", text)
        doubled = _LIST.sub(r"= ANY(CAST(:\1 AS text[]))", text.replace("%", "%%"))
        self._postgresql = _PARAMETER.sub(r"%(\1)s", doubled) + (" FOR UPDATE" if locking else "")

    def rows(self, conn: Connection, **values: Any) -> Sequence[tuple[Any, ...]]:
        """Run it and return its rows as the driver gives them: on SQLite instants are texts, and flags are numbers."""
        result = conn.exec_driver_sql(*self._bound(conn, values))
        try:
            return [tuple(row) for row in result]
        finally:
            result.close()

    def run(self, conn: Connection, **values: Any) -> int:
        """Run it and return how many rows it touched."""
        return conn.exec_driver_sql(*self._bound(conn, values)).rowcount

    def run_many(self, conn: Connection, several: Sequence[dict[str, Any]]) -> None:
        """Run it for each set of values; nothing where there is none."""
        if several:
            text = self._postgresql if is_postgresql(conn) else self._sqlite
            conn.exec_driver_sql(text, [self._bound(conn, values)[1] for values in several])

    def _bound(self, conn: Connection, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if is_postgresql(conn):
            return self._postgresql, values
        return self._sqlite, {name: _sqlite_value(value) for name, value in values.items()}


def _sqlite_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    return json.dumps(value) if isinstance(value, list) else value
