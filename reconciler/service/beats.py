"""The beat: a thread that renews the leases of all attempts of a process, and tells each when it is lost.

It has a database connection of its own, so that nothing a tool does with others can keep it waiting, and one statement
renews everything. Knows nothing of what the attempts are for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy.engine import Engine

from reconciler.core.model import Limits
from reconciler.core.states import Directive, Outcome
from reconciler.errors import ReconcilerError
from reconciler.store.beats import Beat, beat
from reconciler.store.engine import JITTER, run_transaction
from reconciler.store.fence import AttemptRef
from reconciler.store.instances import Instance, beat_instance, stop_instance

# A holder stops early, never late: this part of the lease is not used.
TRUST_MARGIN: Final = 0.1
# Longest single sleep of a wait, so that a stepped or suspended host is noticed.
_NAP_S: Final = 0.5


def process_clock() -> float:
    """Return seconds on a clock that no step of the wall clock moves and that runs on while the host is suspended."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


class Lost:
    """Tells whether an attempt may still be relied on; to be looked at like a ``threading.Event``.

    Set for good once the database said so. Set for the time being while the lease can't be known to be live: the trust
    deadline is counted from before the beat was sent, so it comes before the lease's own end. A beat that gets through
    clears that again, unless the holder has seen it: who was told to stop has stopped, so the thread beats for it no
    longer, its lease runs out and somebody else goes on. Only a holder that asks again itself, by a beat or another
    verb, takes it up again.
    """

    def __init__(self, trusted_until: float, *, clock: Callable[[], float] = process_clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._trusted_until = trusted_until
        self._final = False
        self._seen = False
        self.outcome: Outcome | None = None

    def is_set(self) -> bool:
        """Return whether to stop. Whoever was told so is not beaten for again."""
        with self._changed:
            if not self._final and self._clock() >= self._trusted_until:
                self._seen = True
            return self._final or self._seen

    @property
    def was_seen(self) -> bool:
        """Whether the holder was told to stop, and has not asked again."""
        return self._final or self._seen

    @property
    def is_final(self) -> bool:
        """Whether the database said so: another attempt owns the submission, or it is settled."""
        return self._final

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, at most *timeout_s* seconds (None: as long as it takes); return whether it is."""
        end = None if timeout_s is None else self._clock() + timeout_s
        with self._changed:
            # The condition's lock may be taken again by its holder.
            while not self.is_set():
                left = min(_NAP_S, max(0.0, self._trusted_until - self._clock()) + 0.001)
                if end is not None:
                    left = min(left, end - self._clock())
                    if left <= 0:
                        return False
                self._changed.wait(left)
            return True

    def trust(self, until: float, *, asked_by_holder: bool = True) -> None:
        """A beat landed: rely on the attempt until *until* by the process clock."""
        with self._changed:
            if asked_by_holder:
                self._seen = False
            if not self._seen:
                self._trusted_until = max(self._trusted_until, until)

    def set(self, outcome: Outcome | None = None) -> None:
        """The database said that it is lost."""
        with self._changed:
            self._final = True
            self.outcome = self.outcome or outcome
            self._changed.notify_all()


@dataclass(slots=True)
class Kept:
    """An attempt whose lease is kept: what beats do with it."""

    ref: AttemptRef
    lease_s: float
    beat_s: float
    lost: Lost
    directive: Directive = Directive.CONTINUE

    def take(self, told: Beat, sent_at: float, *, asked_by_holder: bool = True) -> None:
        """Take note of what a beat that was sent at *sent_at* was told."""
        self.directive = told.directive
        if told.directive is Directive.LOST:
            self.lost.set(told.outcome)
        elif told.renewed:
            self.lost.trust(trusted_until(sent_at, self.lease_s), asked_by_holder=asked_by_holder)


def trusted_until(sent_at: float, lease_s: float) -> float:
    """Return until when a lease may be relied on that was asked for at *sent_at*."""
    return sent_at + lease_s * (1.0 - TRUST_MARGIN)


class Beater:
    """Beats for a changing set of attempts, until it is stopped."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        *,
        beat_s: float,
        clock: Callable[[], float] = process_clock,
        presence: Instance | None = None,
    ) -> None:
        self._presence = presence
        self._engine = engine
        self._limits = limits
        self._beat_s = beat_s
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        self._guard = threading.Lock()
        # One beat at a time: a beat by hand and the thread's don't wait for each other's rows.
        self._beating = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        # What the last beat of the thread met, None where it landed.
        self.last_error: ReconcilerError | None = None

    def keep(self, kept: Iterable[Kept]) -> None:
        """Beat for these from now on."""
        with self._guard:
            for one in kept:
                self._kept[one.ref.attempt_id] = one

    def start(self) -> None:
        """Beat from a thread, from now on."""
        with self._guard:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="reconciler-beat", daemon=True)
                self._thread.start()

    def drop(self, attempt_id: str) -> None:
        """Beat for this one no longer."""
        with self._guard:
            self._kept.pop(attempt_id, None)

    def kept(self) -> list[Kept]:
        """Return the attempts that are beaten for."""
        with self._guard:
            return list(self._kept.values())

    def stop(self) -> None:
        """End the thread; leases run out by themselves."""
        with self._guard:
            self._stopping = True
            thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5 + self._beat_s)

    def beat_once(self, kept: Iterable[Kept] | None = None) -> Mapping[str, Beat]:
        """Beat now, for *kept* or for all; return what each attempt was told.

        Raises:
            DatabaseUnavailable: it did not get through; nothing is known of the leases.
        """
        by_itself = kept is None
        asked = [one for one in self.kept() if not one.lost.was_seen] if kept is None else list(kept)
        if not asked:
            return {}
        with self._beating:
            sent_at = self._clock()
            refs = [one.ref for one in asked]
            told = run_transaction(
                self._engine, lambda conn: beat(conn, refs, limits=self._limits), attempts=2, idempotent=True
            )
        answers = {}
        for one, answer in zip(asked, told, strict=True):
            one.take(answer, sent_at, asked_by_holder=not by_itself)
            answers[one.ref.attempt_id] = answer
            if answer.directive is Directive.LOST:
                self.drop(one.ref.attempt_id)
        return answers

    def _run(self) -> None:
        failures = 0
        next_at, present_at = self._clock() + self._beat_s, self._clock()
        while not self._stopping:
            try:
                if self._clock() >= next_at:
                    self.beat_once()
                    next_at = self._clock() + self._beat_s * JITTER.uniform(0.9, 1.0)
                if self._presence is not None and self._clock() >= present_at:
                    self._show(self._presence)
                    present_at = self._clock() + self._presence.beat_s * JITTER.uniform(0.8, 0.9)
                self.last_error, failures = None, 0
            except ReconcilerError as error:
                # Whatever it is: the attempts hear of it by their trust deadline, and the next beat may land.
                self.last_error = error
                failures += 1
                pause = min(self._beat_s, 0.2 * 2.0 ** min(failures, 10)) * JITTER.uniform(0.7, 1.0)
                next_at = self._clock() + pause
            # Naps are short, so that a clock that ran on while the host slept is looked at soon.
            if self._wake.wait(max(0.0, min(self._beat_s, next_at - self._clock()))):
                return

    def _show(self, presence: Instance) -> None:
        run_transaction(self._engine, lambda conn: beat_instance(conn, presence), attempts=1, idempotent=True)

    def say_goodbye(self) -> None:
        """Write that this process has ended well, if it was ever shown.

        Raises:
            ReconcilerError: it could not be written.
        """
        presence = self._presence
        if presence is not None:
            run_transaction(self._engine, lambda conn: stop_instance(conn, presence.id), attempts=1)
