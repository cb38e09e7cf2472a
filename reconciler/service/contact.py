"""Contact with the database: since when it has been unbroken, and one message per outage.

Being allowed to judge an ended lease hangs on this (contract, section 4): only who has been connected for two beats of
an attempt knows that its owner could have beaten. Counted by a clock that no step of the wall clock moves.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final

from reconciler.errors import (
    DatabaseFull,
    DatabaseInvalid,
    DatabaseReadOnly,
    DatabaseUnavailable,
    ReconcilerError,
)
from reconciler.log import emit
from reconciler.metrics import Metrics
from reconciler.service.beats import process_clock
from reconciler.store.link import Link

# What is waited out: the database, its disk or its role may come back to what they were.
OUTAGES: Final = (DatabaseUnavailable, DatabaseReadOnly, DatabaseFull, DatabaseInvalid)
_FIRST_PAUSE_S: Final = 0.2


class Contact:
    """Whether the database answers. ``gap_s`` is how long silence may last before it counts as a break."""

    def __init__(
        self,
        link: Link,
        *,
        gap_s: float,
        reconnect_max_s: float,
        metrics: Metrics,
        clock: Callable[[], float] = process_clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._clock = clock
        self._jitter = jitter
        self._guard = threading.Lock()
        self._since: float | None = None
        self._heard_at: float | None = None
        self._lost_at: float | None = None
        self._tries = 0
        self.gap_s = gap_s
        self.reconnect_max_s = reconnect_max_s
        self.last_error: ReconcilerError | None = None

    def ping(self) -> None:
        """Ask the database for an answer on the held connection.

        Raises:
            ReconcilerError: it gave none.
        """
        try:
            made = self._link.ping()
        except ReconcilerError:
            with self._guard:
                self._since = None
            raise
        self.heard(anew=made)

    def heard(self, *, anew: bool = False) -> None:
        """The database answered; *anew* says that the connection was made for it."""
        now = self._clock()
        with self._guard:
            is_unbroken = self._heard_at is not None and now - self._heard_at <= self.gap_s
            if anew or not is_unbroken or self._since is None:
                # Nobody knows what was in between: a database that was away, a host that slept.
                self._since = now
            self._heard_at = now
        self._metrics.set("reconciler_database_up", 1)

    def connected_for_s(self) -> float:
        """Return for how long the contact has been unbroken, in seconds; 0 while there is none."""
        now = self._clock()
        with self._guard:
            if self._since is None or self._heard_at is None or now - self._heard_at > self.gap_s:
                return 0.0
            return now - self._since

    @property
    def is_up(self) -> bool:
        """Whether the database answered last time it was asked."""
        with self._guard:
            return self._lost_at is None and self._since is not None

    def lost(self, error: ReconcilerError) -> float:
        """Take note of a failure, say so once per outage, and return the seconds to wait before the next try."""
        with self._guard:
            self._since = None
            self._tries += 1
            tries, first = self._tries, self._lost_at is None
            if first:
                self._lost_at = self._clock()
            self.last_error = error
        self._metrics.set("reconciler_database_up", 0)
        if first:
            self._metrics.count("reconciler_database_outages_total")
            emit("database.lost", error=error.message, code=error.code, hint=error.hint)
        pause = min(self.reconnect_max_s, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16))
        # Jitter: after an outage daemons come back one by one.
        return pause * (0.5 + 0.5 * self._jitter())

    def restored(self) -> bool:
        """Take note of work that got through; return whether an outage ended with it."""
        with self._guard:
            if self._lost_at is None:
                return False
            outage_s, tries = self._clock() - self._lost_at, self._tries
            self._lost_at, self._tries, self.last_error = None, 0, None
        emit("database.restored", outage_s=round(outage_s, 3), tries=tries)
        return True

    def close(self) -> None:
        """Give the connection back."""
        self._link.close()
