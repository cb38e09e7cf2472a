"""The daemon: passes, the schedule, signs of life, and what it takes to keep them going through every outage.

One thread runs the passes; the clock calls the rest. Each part can fail without the others. Knows nothing of signals,
files and ports: it is told to stop, to hurry, to use other settings.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy.engine import Engine

from reconciler import __version__
from reconciler.core.jobs import Job, jobs_by_name
from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.errors import ReconcilerError, SchemaMismatch
from reconciler.log import Repeats, emit, wants_debug
from reconciler.metrics import Metrics
from reconciler.service.beats import process_clock
from reconciler.service.contact import OUTAGES, Contact
from reconciler.service.deciding import Judge
from reconciler.service.instances import Presence, RunnerWatch, this_instance
from reconciler.service.liveness import this_process
from reconciler.service.notify import Notify
from reconciler.service.reconcile import reconcile_once
from reconciler.service.report import Decided, PassReport
from reconciler.service.schedule import Schedule, Work
from reconciler.service.scheduler import Clock
from reconciler.service.settings import DaemonSettings, system_jobs, work_settings
from reconciler.service.wakeup import Listener, Notifier
from reconciler.store.engine import keep_requiring_schema, name_of, read, require_schema
from reconciler.store.link import Link
from reconciler.store.queries import Counts, count_all

# However many wake-ups come, passes are no closer together than this.
_WAKE_SPACING_S: Final = 0.2
# Longer than this without a round of the pass loop means that it is stuck.
_STUCK_S: Final = 120.0
# The link's statements are trivial: what takes longer is no answer.
LINK_TIMEOUT_S: Final = 5.0
# After this many passes in a row that failed for no outage, the failure is no passing one.
_FAILURES_MAX: Final = 20
_BACKLOG_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything a reload may bring."""

    settings: DaemonSettings = field(default_factory=DaemonSettings)
    limits: Limits = DEFAULT_LIMITS
    # Configured ones; the system's own are added.
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the daemon lives, and whether it does its work; each with the reasons why not."""

    alive: bool
    ready: bool
    reasons: tuple[str, ...]
    facts: Mapping[str, Any]


class Daemon:
    """A daemon on one database. `run` comes back when it was stopped, or cannot go on.

    *link_engine* serves the one held connection (see `store.link`); *engine* everything else. *work* is what the
    system's own jobs do, by name.
    """

    def __init__(
        self,
        engine: Engine,
        link_engine: Engine,
        configuration: Configuration,
        *,
        work: Mapping[str, Work] | None = None,
        notify: Notify | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = process_clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        settings = configuration.settings
        # The clock's threads write too, from before the first round on.
        keep_requiring_schema(engine)
        self.metrics = metrics or Metrics()
        self._engine = engine
        self._link_engine = link_engine
        self._configuration = configuration
        self._work = dict(work or {})
        self._notify = notify or Notify({})
        self._clock = clock
        self._jitter = jitter
        self._here = this_process()
        self._presence = Presence(
            engine, this_instance("daemon", beat_s=settings.beat_s, here=self._here, owner=settings.owner)
        )
        self._watch = RunnerWatch(engine, self._here, metrics=self.metrics)
        self._contact = Contact(
            Link(link_engine),
            gap_s=_gap_s(configuration),
            reconnect_max_s=settings.reconnect_max_s,
            metrics=self.metrics,
            clock=clock,
            jitter=jitter,
        )
        self._notifier = Notifier(engine) if settings.notify else None
        self._listener = Listener(engine) if settings.notify else None
        self._schedule = Schedule(
            engine,
            self._all_jobs(configuration),
            instance_id=self.instance_id,
            limits=configuration.limits,
            work=self._work,
            work_settings=work_settings(settings),
            metrics=self.metrics,
            admitted=self._hint,
        )
        self._ticks = Clock()
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._hurried = threading.Event()
        self._done = threading.Event()
        self._is_ready = False
        self._schema_checked = False
        self._failures = 0
        self._passes = 0
        self._round_at = time.monotonic()
        self._last_pass: tuple[datetime, PassReport] | None = None
        self._fatal: ReconcilerError | None = None
        self._repeats = Repeats(60.0)

    @property
    def instance_id(self) -> str:
        """The id of this run among the instances."""
        return self._presence.instance.id

    def _all_jobs(self, configuration: Configuration) -> dict[str, Job]:
        own = system_jobs(configuration.settings, tuple(self._work))
        return dict(jobs_by_name(own, configuration.jobs))

    # --- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop`; come back when everything has ended, or a hurry has cut it short.

        Raises:
            ReconcilerError: it cannot go on (another schema); nothing is left half-written.
        """
        started = time.monotonic()
        emit(
            "daemon.started",
            version=__version__,
            instance_id=self.instance_id,
            owner=self._presence.instance.owner,
            pid=self._presence.instance.pid or 0,
            database=name_of(self._engine),
            jobs=sorted(self._all_jobs(self._configuration)),
        )
        self.metrics.set("reconciler_build_info", 1, version=__version__, id=self.instance_id)
        listening = self._start_listening()
        try:
            self._set_clock()
            self._ticks.start()
            self._loop(started)
        finally:
            self._stopping.set()
            self._wind_up(listening)
            self._done.set()
        if self._fatal is not None:
            raise self._fatal
        emit("daemon.stopped", passes=self._passes, uptime_s=round(time.monotonic() - started, 1))

    def stop(self, reason: str = "") -> None:
        """Begin no new pass; the one at hand ends at its next batch, work under a lease is given back."""
        if not self._stopping.is_set():
            emit("daemon.stopping", signal=reason)
            self._notify.stopping("winding up: the pass at hand ends at its next batch")
        self._stopping.set()
        self._wanted.set()
        if self._listener is not None:
            self._listener.stop()

    def hurry(self) -> None:
        """Wait for nobody any more; what isn't committed is rolled back."""
        self._hurried.set()
        self.stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until `run` has ended, at most *timeout_s*; return whether it has."""
        return self._done.wait(timeout_s)

    def reload(self, configuration: Configuration) -> None:
        """Use another configuration from the next round on; what a reload can't change stays as it is.

        Raises:
            ReconcilerError: it isn't valid; the one in force stays.
        """
        jobs = self._all_jobs(configuration)
        settings = configuration.settings
        self._schedule.reload(jobs, configuration.limits, work_settings(settings))
        self._configuration = configuration
        self._contact.gap_s = _gap_s(configuration)
        self._contact.reconnect_max_s = settings.reconnect_max_s
        self._presence.instance = replace(self._presence.instance, beat_s=settings.beat_s)
        self._set_clock()
        self._wanted.set()

    def _set_clock(self) -> None:
        settings = self._configuration.settings
        self._ticks.every("pass", settings.pass_interval_s, self._want, jitter=settings.jitter)
        self._ticks.every("schedule", settings.schedule_interval_s, self._look_at_schedule, jitter=settings.jitter)
        self._ticks.every("beat", settings.beat_s, self._beat)
        if self.metrics.enabled:
            self._ticks.every("backlog", _BACKLOG_EVERY_S, self._count_backlog, jitter=settings.jitter)

    def _wind_up(self, listening: threading.Thread | None) -> None:
        hurried = self._hurried.is_set()
        patience_s = 0.0 if hurried else self._configuration.settings.stop_s / 3
        ended = self._schedule.stop(wait_s=patience_s)
        self._ticks.stop(wait=not hurried and ended)
        if self._listener is not None:
            self._listener.stop()
        if listening is not None:
            listening.join(timeout=0.0 if hurried else 2.0)
            if not listening.is_alive() and self._listener is not None:
                self._listener.close()
        if self._notifier is not None:
            self._notifier.stop()
        if not hurried and self._contact.is_up and self._fatal is None:
            try:
                self._presence.stop()
            except ReconcilerError as error:
                emit("beat.failed", error=error.message)
        self._contact.close()

    # --- passes ------------------------------------------------------------------------------------------------------

    def _want(self) -> None:
        self._wanted.set()

    def _loop(self, started: float) -> None:
        while not self._stopping.is_set() and self._fatal is None:
            begun = time.monotonic()
            pause_s = self._round(started)
            self._round_at = time.monotonic()
            if pause_s is not None:
                # An outage, or a failure: ticks and wake-ups don't shorten the pause.
                self._stopping.wait(pause_s)
                continue
            self._ticks.check()
            self._rest(begun)

    def _rest(self, begun: float) -> None:
        """Wait for a tick or a wake-up. The clock's tick may never come (it was set back): the wait has an end."""
        end = begun + self._configuration.settings.pass_interval_s * (1 + self._configuration.settings.jitter) + 0.5
        if self._last_pass is not None and (report := self._last_pass[1]).unjudged:
            # Leases that may not be judged yet: when they may, without waiting for the next tick.
            end = min(end, time.monotonic() + report.judge_after_s + 0.05)
        feed_s = self._notify.watchdog_s / 2 if self._notify.watchdog_s is not None else 60.0
        while not self._stopping.is_set():
            left = end - time.monotonic()
            if left <= 0 or self._wanted.wait(min(left, feed_s)):
                break
            self._notify.progress()
            self._round_at = time.monotonic()
        spacing = begun + _WAKE_SPACING_S - time.monotonic()
        if spacing > 0:
            self._stopping.wait(spacing)
        self._wanted.clear()

    def _round(self, started: float) -> float | None:
        """Run one pass; return the pause before the next try where it did not get through, else None."""
        try:
            self._contact.ping()
            # Every round, so that an idle daemon ends too; what a pass writes is guarded in its own transactions.
            require_schema(self._engine, for_writing=not self._schema_checked)
            self._schema_checked = True
            report = self._pass()
        except SchemaMismatch as error:
            return self._mismatch(error)
        except OUTAGES as error:
            return self._lost(error)
        except Exception as error:  # noqa: BLE001 - a fault in one pass must not end the daemon (I10)
            return self._failed(error)
        self._failures = 0
        self._contact.restored()
        self._notify.progress()
        if not self._is_ready:
            self._is_ready = True
            emit("daemon.ready", waited_s=round(time.monotonic() - started, 3))
            self._notify.ready(self._status_line())
            for name in self._ticks.names():
                if name != "pass":
                    self._ticks.now(name)
        if report.more and not self._stopping.is_set():
            self._wanted.set()
        return None

    def _mismatch(self, error: SchemaMismatch) -> float | None:
        """End, unless the database is only away: a file that is being put back has no tables at first."""
        try:
            require_schema(self._engine, for_writing=False)
        except SchemaMismatch as again:
            error = again
        except OUTAGES as outage:
            return self._lost(outage)
        # Somebody upgraded it below us, or it is another database: not ours to write to (I16).
        self._fatal = error
        return None

    def _lost(self, error: ReconcilerError) -> float:
        pause_s = self._contact.lost(error)
        # What comes back may be another database than the one that went.
        self._schema_checked = False
        self._notify_waiting(error)
        self._notify.progress()
        self.metrics.count("reconciler_passes_total", result="failed")
        return pause_s

    def _pass(self) -> PassReport:
        configuration = self._configuration
        settings, limits = configuration.settings, configuration.limits
        if settings.watch_runners:
            self._watch.look()
        started = time.monotonic()

        def progress(_report: PassReport) -> None:
            self._contact.heard()
            self._round_at = time.monotonic()
            self._notify.progress()

        report = reconcile_once(
            self._engine,
            limits=limits,
            limit=settings.pass_rows_max,
            judge=Judge(here=self._here, connected_for_s=self._contact.connected_for_s, instance_id=self.instance_id),
            decided_by=self.instance_id,
            jitter=self._jitter,
            progress=progress,
            on_decision=_say if wants_debug() else None,
            stop=self._stopping.is_set,
        )
        took_s = time.monotonic() - started
        self._passes += 1
        self._last_pass = (datetime.now(UTC), report)
        self._count_pass(report, took_s)
        for row in report.set_aside_rows:
            emit("row.set_aside", session_id=row.session_id, submission_id=row.submission_id, error=row.error)
        did_something = report.written or report.conflicts or report.set_aside or report.more
        if did_something:
            emit("pass.finished", **_canonical_line(report, took_s))
            self._notify.status(self._status_line())
        if report.requeued:
            self._hint()
        return report

    def _count_pass(self, report: PassReport, took_s: float) -> None:
        metrics = self.metrics
        if not metrics.enabled:
            return
        metrics.count("reconciler_passes_total", result="worked" if report.written else "empty")
        metrics.observe("reconciler_pass_seconds", took_s)
        metrics.set("reconciler_pass_last_success_timestamp_seconds", time.time())
        metrics.count("reconciler_rows_scanned_total", report.scanned)
        metrics.count("reconciler_conflicts_total", report.conflicts)
        metrics.count("reconciler_set_aside_total", report.set_aside)
        for action, count in {
            **report.settled,
            "requeued": report.requeued,
            "held": report.held,
            "advised": report.advised,
            "adopted": report.adopted,
        }.items():
            metrics.count("reconciler_decisions_total", count, action=action)

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        self.metrics.count("reconciler_passes_total", result="failed")
        text = error.message if isinstance(error, ReconcilerError) else f"{type(error).__name__}: {error}"
        if self._repeats.lets(text[:200]):
            emit("pass.failed", error=text[:1000], failures=self._failures)
        if self._failures >= _FAILURES_MAX:
            self._fatal = (
                error
                if isinstance(error, ReconcilerError)
                else ReconcilerError(f"{self._failures} passes in a row failed: {text[:500]}")
            )
        # The watchdog is not fed: this is no progress.
        settings = self._configuration.settings
        return min(settings.reconnect_max_s, 0.2 * 2.0 ** min(self._failures, 10)) * (0.5 + 0.5 * self._jitter())

    def _notify_waiting(self, error: ReconcilerError) -> None:
        if self._is_ready:
            self._notify.status(f"waiting for the database: {error.message}")
        else:
            self._notify.waiting(f"waiting for the database: {error.message}", extend_s=60.0)

    # --- what the clock calls ----------------------------------------------------------------------------------------

    def _look_at_schedule(self) -> None:
        if not self._is_ready or self._stopping.is_set() or not self._contact.is_up:
            return
        try:
            self._schedule.look()
        except OUTAGES:
            # The pass loop meets it too, and says so.
            self._wanted.set()
        except Exception as error:  # noqa: BLE001 - the next look tries again; passes go on
            if self._repeats.lets("schedule"):
                emit("slots.failed", error=_text(error))

    def _beat(self) -> None:
        # Before the schema was seen nothing is written, not even that this daemon is there.
        if self._stopping.is_set() or not self._schema_checked:
            return
        try:
            self._presence.beat()
        except OUTAGES:
            self._wanted.set()
        except Exception as error:  # noqa: BLE001 - the next beat tries again
            if self._repeats.lets("beat"):
                emit("beat.failed", error=_text(error))

    def _count_backlog(self) -> None:
        if not self._is_ready or self._stopping.is_set() or not self._contact.is_up:
            return
        try:
            with read(self._engine) as conn:
                counts = count_all(conn, overdue_s=self._configuration.limits.overdue_s)
        except Exception as error:  # noqa: BLE001 - numbers for a dashboard; they are old until the next count
            if self._repeats.lets("backlog"):
                emit("slots.failed", error=_text(error))
            return
        self._show(counts)

    def _show(self, counts: Counts) -> None:
        metrics = self.metrics
        for status in ("queued", "running", "waiting"):
            metrics.set("reconciler_submissions", counts.by_status.get(status, 0), status=status)
        oldest = counts.oldest_due_at
        metrics.set(
            "reconciler_oldest_due_seconds",
            0.0 if oldest is None else max(0.0, (counts.now - oldest).total_seconds()),
        )
        for name, value in (
            ("reconciler_due", counts.due),
            ("reconciler_overdue", counts.overdue),
            ("reconciler_blocked", counts.blocked),
            ("reconciler_held", counts.held),
            ("reconciler_quarantined_sessions", counts.quarantined_sessions),
            ("reconciler_silent_instances", counts.silent_instances),
        ):
            metrics.set(name, value)

    # --- wake-ups ----------------------------------------------------------------------------------------------------

    def _hint(self) -> None:
        if self._notifier is not None:
            self._notifier.hint()

    def _start_listening(self) -> threading.Thread | None:
        if self._listener is None:
            return None
        thread = threading.Thread(target=self._listen, args=(self._listener,), name="reconciler-listen", daemon=True)
        thread.start()
        return thread

    def _listen(self, listener: Listener) -> None:
        while not self._stopping.is_set():
            if listener.wait(5.0):
                self._wanted.set()

    # --- telling how it is -------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Return whether the daemon lives and does its work."""
        now = time.monotonic()
        settings = self._configuration.settings
        quiet_s = now - self._round_at
        stuck = quiet_s > max(_STUCK_S, 3 * settings.pass_interval_s)
        reasons = []
        if stuck:
            reasons.append(f"the pass loop has made no progress for {quiet_s:.0f} s")
        alive = not stuck
        if self._stopping.is_set():
            reasons.append("it is stopping")
        if not self._contact.is_up:
            error = self._contact.last_error
            reasons.append("the database does not answer" + ("" if error is None else f": {error.message}"))
        if self._failures:
            reasons.append(f"the last {self._failures} passes failed")
        if not self._is_ready and not reasons:
            reasons.append("it has not reached the database yet")
        facts: dict[str, Any] = {
            "version": __version__,
            "instance_id": self.instance_id,
            "passes": self._passes,
            "connected_for_s": round(self._contact.connected_for_s(), 3),
            "last_pass_at": None if self._last_pass is None else self._last_pass[0].isoformat(timespec="milliseconds"),
        }
        return Health(alive, ready=alive and self._is_ready and not reasons, reasons=tuple(reasons), facts=facts)

    def _status_line(self) -> str:
        if self._last_pass is None:
            return "no pass yet"
        at, report = self._last_pass
        settled = sum(report.settled.values())
        return (
            f"last pass {at:%H:%M:%SZ}: {report.scanned} looked at, {settled} settled, {report.requeued} requeued,"
            f" {report.held} held; {self._passes} passes"
        )


def _gap_s(configuration: Configuration) -> float:
    # Silence that a pause between two passes explains is no break.
    return configuration.settings.pass_interval_s * (1 + configuration.settings.jitter) + configuration.limits.beat_s


def _text(error: Exception) -> str:
    return (error.message if isinstance(error, ReconcilerError) else f"{type(error).__name__}: {error}")[:1000]


def _say(decided: Decided) -> None:
    decision = decided.decision
    emit(
        "decision.made",
        session_id=decided.session_id,
        submission_id=decided.submission_id,
        action=decision.action.value,
        reason=decision.reason.value,
        detail=decided.inspection.detail.value,
        outcome=None if decision.outcome is None else decision.outcome.value,
        landed=decided.landed,
    )


def _canonical_line(report: PassReport, took_s: float) -> dict[str, Any]:
    return {
        "pass_id": report.pass_id,
        "took_s": round(took_s, 4),
        "batches": report.batches,
        "scanned": report.scanned,
        **report.settled,
        "requeued": report.requeued,
        "held": report.held,
        "advised": report.advised,
        "adopted": report.adopted,
        "left_alone": report.left_alone,
        "conflicts": report.conflicts,
        "locked": report.locked,
        "set_aside": report.set_aside,
        "unjudged": report.unjudged,
        "more": report.more,
    }
