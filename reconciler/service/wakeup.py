"""Wake-ups: a hint, sent outside every transaction, that there may be work. Polling finds the work without them too.

On PostgreSQL by NOTIFY, from a thread that sends at most one hint for whatever came meanwhile; elsewhere nothing is
sent and a wait is a sleep. Knows nothing of what the work is.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Engine

from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import schema_of

# After a hint that could not be sent or heard, so long passes before the next try.
_PAUSE_S: Final = 1.0
_PIECE_S: Final = 0.5


def channel_of(engine: Engine) -> str:
    """Return the channel of the database's schema: two schemas of one database don't wake each other."""
    return f"reconciler_work_{schema_of(engine)}"[:63]


class Notifier:
    """Sends hints from a thread of its own, so that nobody who settles or submits waits for one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._enabled = is_postgresql(engine)

    def hint(self) -> None:
        """Ask for a hint; returns at once."""
        if not self._enabled:
            return
        with self._guard:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="reconciler-notify", daemon=True)
                self._thread.start()
        self._asked.set()

    def stop(self) -> None:
        """End the thread."""
        with self._guard:
            self._stopping.set()
            thread, self._thread = self._thread, None
        self._asked.set()
        if thread is not None:
            thread.join(timeout=5)

    def _run(self) -> None:
        statement = sa.text("SELECT pg_notify(:channel, '')")
        channel = {"channel": channel_of(self._engine)}
        while True:
            self._asked.wait()
            if self._stopping.is_set():
                return
            self._asked.clear()
            if self._stopping.is_set():
                # It was asked for in between, and that was cleared.
                return
            try:
                with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
                    conn.execute(statement, channel)
            except sa_exc.SQLAlchemyError:
                # A hint is never owed: whoever waits polls.
                time.sleep(_PAUSE_S)


class Listener:
    """Waits for a hint, on a connection of its own. Used by one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listens = is_postgresql(engine)
        self._conn: Any = None
        self._retry_at = 0.0
        self._stopped = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a hint, at most *timeout_s*; return whether one came. Hints sent while nobody waited may be lost."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and not self._stopped.is_set():
            conn = self._connection()
            if conn is None:
                self._stopped.wait(min(left, _PAUSE_S))
                continue
            try:
                for _ in conn.notifies(timeout=min(left, _PIECE_S), stop_after=1):
                    return True
            except Exception:  # noqa: BLE001 - a driver's error of whatever kind means: poll, and listen anew later
                self._close()
        return False

    def stop(self) -> None:
        """Stop waiting; a wait that is under way ends soon."""
        self._stopped.set()

    def close(self) -> None:
        """Give the connection back."""
        self._stopped.set()
        self._close()

    def _connection(self) -> Any:
        if not self._listens or time.monotonic() < self._retry_at:
            return None
        if self._conn is None:
            try:
                # Taken out of the pool for good: what listens is nobody else's.
                pooled = self._engine.raw_connection()
                # Asked for before: a detached connection no longer names its driver's.
                self._conn = pooled.driver_connection
                pooled.detach()
                self._conn.autocommit = True
                self._conn.execute(f'LISTEN "{channel_of(self._engine)}"')
            except Exception:  # noqa: BLE001 - as above
                self._close()
                return None
        return self._conn

    def _close(self) -> None:
        conn, self._conn = self._conn, None
        self._retry_at = time.monotonic() + _PAUSE_S
        if conn is not None:
            conn.close()
