"""Pruning: takes away what is over and old, in pieces so short that nobody waits for them.

One run goes over every kind of thing once. Each piece is one transaction; its size follows how long the last one took,
so that none holds SQLite's write lock for long. Where a run ends early (it was asked to stop, or its bound is reached)
the next one goes on: nothing is half removed in between.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.engine import Connection, Engine

from reconciler.core.states import Outcome
from reconciler.service.first_write import FirstWrite
from reconciler.service.schedule import Task
from reconciler.store import prune as store
from reconciler.store.dialect import db_now
from reconciler.store.engine import read
from reconciler.store.prune import Cutoffs

ROWS_MAX_DEFAULT: Final = 10_000_000
# A piece is halved where it took longer than this, and doubled where it took less than a quarter of it.
PIECE_S: Final = 0.4
_PIECE_FIRST: Final = 100
_PIECE_LEAST: Final = 1
_PIECE_MOST: Final = 2_000
# Between two pieces others get the write lock.
_PAUSE_S: Final = 0.005
# Sessions that are looked up at a time.
_SESSIONS: Final = 500
# What looking into one costs, counted in rows.
_SESSION_COST: Final = 4

KINDS: Final = (*(outcome.value for outcome in Outcome), "entries", "payloads", *store.SIMPLE)


@dataclass(frozen=True, slots=True)
class PrunePolicy:
    """How many days things are kept once they are over; 0 keeps them for ever.

    ``completed``, ``failed`` and ``aborted`` count from the settlement, and take attempts and decisions along;
    ``entries`` and ``payloads`` from the session's last change.
    """

    completed: float = 30.0
    failed: float = 90.0
    aborted: float = 90.0
    unacknowledged: float = 180.0
    entries: float = 180.0
    payloads: float = 0.0
    decisions: float = 0.0
    passes: float = 14.0
    slots: float = 90.0
    instances: float = 14.0
    operations: float = 90.0
    audit: float = 400.0

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> PrunePolicy:
        """Return the policy of settings named ``keep_…_days``; those that are missing have their defaults."""
        found = {
            item.name: float(settings[name])
            for item in dataclasses.fields(cls)
            if (name := f"keep_{item.name}_days") in settings
        }
        return cls(**found)

    def cutoffs(self, now: datetime) -> Cutoffs:
        """Return the instants before which things go, at *now* by the database's clock."""
        return Cutoffs(
            **{
                item.name: now - timedelta(days=days)
                for item in dataclasses.fields(self)
                if (days := getattr(self, item.name)) > 0
            }
        )


@dataclass(slots=True)
class PruneReport:
    """What went, by kind (of `KINDS`); in a dry run what would go. ``longest_s`` is the longest transaction."""

    dry_run: bool = False
    removed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    # False where a bound ended the run: there is more.
    complete: bool = True
    longest_s: float = 0.0

    @property
    def total(self) -> int:
        """Rows of all kinds."""
        return sum(self.removed.values())


def prune_once(
    engine: Engine,
    policy: PrunePolicy,
    *,
    dry_run: bool = False,
    rows_max: int = ROWS_MAX_DEFAULT,
    go_on: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda _rows: None,
    first: FirstWrite | None = None,
) -> PruneReport:
    """Remove what *policy* doesn't keep, at most *rows_max* rows; a dry run counts by the same conditions.

    *go_on* is called between two transactions: what it raises ends the run, and what went stays gone. *first* hears of
    what is removed first.

    Raises:
        DatabaseUnavailable: it went away; the next run goes on.
    """
    with read(engine) as conn:
        cutoffs = policy.cutoffs(db_now(conn))
        if dry_run:
            return PruneReport(dry_run=True, removed=store.count(conn, cutoffs))
    run = _Run(engine, cutoffs, rows_max, go_on, progress, first or FirstWrite())
    run.submissions()
    run.entries()
    run.payloads()
    for name in store.SIMPLE:
        run.simple(name)
    return run.report


def prune_work(task: Task) -> Mapping[str, Any]:
    """Carry out the daemon's pruning job; return what the slot keeps."""
    report = prune_once(task.engine, PrunePolicy.of_settings(task.settings), go_on=task.go_on)
    return {"removed": {name: count for name, count in report.removed.items() if count}, "complete": report.complete}


class _Run:
    def __init__(
        self,
        engine: Engine,
        cutoffs: Cutoffs,
        rows_max: int,
        go_on: Callable[[], None],
        progress: Callable[[int], None],
        first: FirstWrite,
    ) -> None:
        self._first = first
        self._engine = engine
        self._cutoffs = cutoffs
        self._rows_max = rows_max
        self._go_on = go_on
        self._progress = progress
        self._limit = _PIECE_FIRST
        self.report = PruneReport()

    def submissions(self) -> None:
        after: store.SettledPlace | None = None
        while self._may_go_on():
            gone, after = self._piece(
                lambda conn, limit, after=after: store.prune_submissions(  # type: ignore[misc]
                    conn, self._cutoffs, limit=limit, after=after
                )
            )
            for name, count in gone.items():
                self._removed(name, count)
            if after is None:
                return

    def entries(self) -> None:
        self._limit, after = _PIECE_FIRST, ""
        while self._may_go_on():
            with read(self._engine) as conn:
                found = store.finished_sessions(conn, self._cutoffs, after=after, limit=_SESSIONS)
            left = found
            while left and self._may_go_on():
                count, left = self._piece(
                    lambda conn, limit, left=left: self._entries_of(conn, left, limit)  # type: ignore[misc]
                )
                self._removed("entries", count)
            if len(found) < _SESSIONS:
                return
            after = found[-1]

    def _entries_of(self, conn: Connection, session_ids: list[str], limit: int) -> tuple[int, list[str]]:
        """Remove entries of as many sessions as fit into one piece; return how many, and the sessions that are left."""
        removed = 0
        for place, session_id in enumerate(session_ids):
            count, more = store.prune_entries(conn, session_id, self._cutoffs, limit=max(1, limit - removed))
            removed += count
            if more:
                return removed, session_ids[place:]
            if removed + _SESSION_COST * (place + 1) >= limit:
                return removed, session_ids[place + 1 :]
        return removed, []

    def payloads(self) -> None:
        self._limit = _PIECE_FIRST
        after: tuple[str, str] | None = ("", "")
        while after is not None and self._may_go_on():
            count, after = self._piece(
                lambda conn, limit, after=after: store.prune_payloads(  # type: ignore[misc]
                    conn, self._cutoffs, limit=limit, after=after
                )
            )
            self._removed("payloads", count)

    def simple(self, name: str) -> None:
        self._limit, more = _PIECE_FIRST, True
        while more and self._may_go_on():
            count, more = self._piece(lambda conn, limit: store.prune_simple(conn, name, self._cutoffs, limit=limit))
            self._removed(name, count)

    def _piece(self, work: Callable[[Connection, int], Any]) -> Any:
        limit = self._limit

        def timed(conn: Connection) -> tuple[Any, float]:
            # From here on the write lock is held.
            started = time.monotonic()
            return work(conn, limit), started

        found, started = self._first.run(self._engine, timed, changed=lambda told: _removed_rows(told[0][0]))
        took = time.monotonic() - started
        self.report.longest_s = max(self.report.longest_s, took)
        if took > PIECE_S:
            self._limit = max(_PIECE_LEAST, limit // 2)
        elif took < PIECE_S / 4:
            self._limit = min(_PIECE_MOST, limit * 2)
        time.sleep(_PAUSE_S)
        return found

    def _removed(self, name: str, count: int) -> None:
        self.report.removed[name] += count
        self._progress(self.report.total)

    def _may_go_on(self) -> bool:
        if self.report.total >= self._rows_max:
            self.report.complete = False
            return False
        self._go_on()
        return True


def _removed_rows(count: int | Mapping[str, int]) -> int:
    return sum(count.values()) if isinstance(count, Mapping) else count
