"""The clock: calls functions at intervals. APScheduler 3 with its jobs in memory, and a guard by the monotonic clock.

APScheduler goes by the wall clock: set back by an hour, it would call nobody for an hour. The guard, asked from the
pass loop, finds a function that is late by the monotonic clock and has it called at once, whatever the reason. That the
clock was stepped is said only where it was: where it moved by another length than a clock that nobody can step. What is
due is never decided here: the ledger and the rows' own columns are the truth, so a call too many finds nothing to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from reconciler.log import emit, quiet_libraries
from reconciler.service.beats import process_clock

# Late by less than this is nobody's fault.
_SLACK_S: Final = 1.0
# A wall clock that is slewed, or read a little later than the other one, is no stepped one.
STEP_S: Final = 1.0
# Both clocks are read between two readings of one of them; a look that took longer than this says nothing.
_LOOK_S: Final = 0.25
_LOOKS: Final = 5


@dataclass(slots=True)
class _Called:
    interval_s: float
    function: Callable[[], None]
    jitter: float
    # By the monotonic clock; None before the first call.
    began_at: float
    running: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)


class StepWatch:
    """Tells whether the wall clock was stepped since the last look.

    *steady* is a clock that nobody steps and that runs on while the host is suspended: how busy the machine is, and how
    long ago the last look was, changes nothing.
    """

    def __init__(self, *, wall: Callable[[], float] = time.time, steady: Callable[[], float] = process_clock) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead_s = self._measure()

    def look(self) -> float | None:
        """Return by how many seconds the wall clock was set forward (negative: back), None where it was not."""
        ahead_s, before_s = self._measure(), self._ahead_s
        if ahead_s is None:
            return None
        self._ahead_s = ahead_s
        return ahead_s - before_s if before_s is not None and abs(ahead_s - before_s) > STEP_S else None

    def _measure(self) -> float | None:
        """Return how far the wall clock is ahead of the other one; None where this thread never ran for long enough."""
        for _ in range(_LOOKS):
            before, wall, after = self._steady(), self._wall(), self._steady()
            if after - before <= _LOOK_S:
                return wall - (before + after) / 2
        return None


class Clock:
    """Calls functions at intervals, each in a thread of a small pool, never the same twice at once."""

    def __init__(
        self,
        *,
        threads: int = 3,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = process_clock,
    ) -> None:
        self._monotonic = monotonic
        self._step = StepWatch(wall=wall, steady=steady)
        self._called: dict[str, _Called] = {}
        # Its own words ("maximum number of running instances reached") belong to no event and would stand in the JSON
        # stream as bare lines.
        quiet_libraries()
        self._scheduler: Any = BackgroundScheduler(
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(threads)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def every(self, name: str, interval_s: float, function: Callable[[], None], *, jitter: float = 0.0) -> None:
        """Call *function* now and then every *interval_s*, give or take the share *jitter*; again under the same name
        replaces the interval."""
        if name in self._called:
            called = self._called[name]
            called.interval_s, called.jitter = interval_s, jitter
            self._scheduler.reschedule_job(name, trigger=self._trigger(interval_s, jitter))
            return
        called = self._called[name] = _Called(interval_s, function, jitter, self._monotonic())
        self._scheduler.add_job(
            self._call,
            self._trigger(interval_s, jitter),
            args=[called],
            id=name,
            name=name,
            next_run_time=datetime.now(UTC),
        )

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self, *, wait: bool = True) -> None:
        """Call nobody any more; with *wait*, come back when those who were called are done."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=wait)

    def now(self, name: str) -> None:
        """Have *name* called at once, unless it is being called."""
        self._scheduler.modify_job(name, next_run_time=datetime.now(UTC))

    def names(self) -> list[str]:
        """Return who is called."""
        return list(self._called)

    def check(self) -> list[str]:
        """Have everybody called who is late by the monotonic clock and return their names; say if it was stepped."""
        stepped_s = self._step.look()
        if stepped_s is not None:
            emit("clock.stepped", stepped_s=round(stepped_s, 3))
        late = []
        for name, called in list(self._called.items()):
            with called.guard:
                since = self._monotonic() - called.began_at
                is_late = not called.running and since > called.interval_s * (1 + called.jitter) + _SLACK_S
                if is_late:
                    # Once per interval, however often it is checked.
                    called.began_at = self._monotonic()
            if is_late:
                self.now(name)
                late.append(name)
        return late

    @staticmethod
    def _trigger(interval_s: float, jitter: float) -> Any:
        return IntervalTrigger(
            seconds=max(interval_s, 0.001), jitter=interval_s * jitter if jitter else None, timezone=UTC
        )

    def _call(self, called: _Called) -> None:
        with called.guard:
            called.running, called.began_at = True, self._monotonic()
        try:
            called.function()
        finally:
            with called.guard:
                called.running = False
