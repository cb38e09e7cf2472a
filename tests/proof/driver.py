"""Watches the database drivers: every statement and every commit of a process, and a real SIGKILL at one of them.

The points are found where the drivers are called, below SQLAlchemy and everything of ours: a new statement is a new
point by itself, also one that is sent around the library. Knows nothing of what the statements are for.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from reconciler.store import rounds

_TEXT_MAX = 20_000


@dataclass
class Watch:
    """What a process did so far; it dies at point number *kill_at* (from 1 on)."""

    kill_at: int | None = None
    points: list[str] = field(default_factory=list)
    listen: Callable[[str], None] | None = None

    def reach(self, moment: str, what: str) -> None:
        """Note a point; die at it where it is the one."""
        self.points.append(f"{moment} {' '.join(what.split())[:_TEXT_MAX]}")
        if len(self.points) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.listen is not None:
            self.listen(self.points[-1])


_watch: Watch | None = None


def watch(watching: Watch | None) -> None:
    """Watch this process from now on (None: no longer)."""
    global _watch
    _watch = watching


def _around(what: Any, act: Callable[[], Any]) -> Any:
    watching = _watch
    if watching is None:
        return act()
    text = what.decode(errors="replace") if isinstance(what, bytes) else str(what)
    watching.reach("before", text)
    answer = act()
    watching.reach("after", text)
    return answer


# A negative control: statements of a transaction land one by one. What watches for torn writes must see them.
WITHOUT_TRANSACTIONS = False


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *more: Any) -> Any:
        # A savepoint outside a transaction begins one.
        if WITHOUT_TRANSACTIONS and _watch is not None and sql.startswith(("BEGIN", "SAVEPOINT", "RELEASE")):
            return sqlite3.Cursor.execute(self, "SELECT 1")
        return _around(sql, lambda: sqlite3.Cursor.execute(self, sql, *more))

    def executemany(self, sql: str, *more: Any) -> Any:
        return _around(sql, lambda: sqlite3.Cursor.executemany(self, sql, *more))

    def executescript(self, sql: str) -> Any:
        return _around(sql, lambda: sqlite3.Cursor.executescript(self, sql))


class _Connection(sqlite3.Connection):
    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _Cursor)

    def execute(self, sql: str, *more: Any) -> Any:
        return self.cursor().execute(sql, *more)

    def executemany(self, sql: str, *more: Any) -> Any:
        return self.cursor().executemany(sql, *more)

    def executescript(self, sql: str) -> Any:
        return self.cursor().executescript(sql)

    def commit(self) -> None:
        # In no transaction there is nothing to commit, and the driver sends nothing.
        if self.in_transaction:
            _around("COMMIT", super().commit)

    def rollback(self) -> None:
        if self.in_transaction:
            _around("ROLLBACK", super().rollback)


def install() -> None:
    """Put the watch around both drivers, for good; until `watch` is called nothing else changes."""
    if getattr(sqlite3.connect, "_watched", False):
        return
    connect = sqlite3.connect

    def watched_connect(*args: Any, **settings: Any) -> Any:
        settings.setdefault("factory", _Connection)
        return connect(*args, **settings)

    watched_connect._watched = True  # type: ignore[attr-defined]
    sqlite3.connect = watched_connect

    for name in ("execute", "executemany"):
        original = getattr(psycopg.Cursor, name)

        def watched(self: Any, query: Any, *args: Any, _original: Any = original, **settings: Any) -> Any:
            return _around(query, lambda: _original(self, query, *args, **settings))

        setattr(psycopg.Cursor, name, watched)
    exchange = rounds.exchange

    def one_by_one(connection: Any, prepared: Any, statements: Any) -> Any:
        # What travels together comes to the same as what is sent in its order: with a death between any two.
        if _watch is None:
            return exchange(connection, prepared, statements)
        return [_around(one[0], partial(exchange, connection, prepared, [one]))[0] for one in statements]

    setattr(rounds, "exchange", one_by_one)  # noqa: B010
    for name in ("commit", "rollback"):
        original = getattr(psycopg.Connection, name)

        def ended(self: Any, _original: Any = original, _name: str = name.upper()) -> Any:
            if self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                return _original(self)
            return _around(_name, lambda: _original(self))

        setattr(psycopg.Connection, name, ended)
