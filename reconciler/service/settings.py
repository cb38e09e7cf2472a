"""What a daemon runs with, beside the limits. Values only: reading them from files is the configuration's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Final

from reconciler.core.jobs import Job, check_job
from reconciler.core.slots import CatchUp, parse_cron
from reconciler.errors import ConfigurationInvalid, InvalidInput

SWEEP: Final = "sweep"
PRUNE: Final = "prune"
# Names that no configured job may have.
SYSTEM_JOBS: Final = (SWEEP, PRUNE)


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """How a daemon works. Times in seconds."""

    # A pass is run this often, at the start, and when a wake-up says that there is work.
    pass_interval_s: float = 2.0
    # At most so many rows in one pass; where more are due the next one follows at once.
    pass_rows_max: int = 20_000
    # How often the schedule is looked at, and how often the daemon gives a sign of life.
    schedule_interval_s: float = 5.0
    beat_s: float = 10.0
    # Share of an interval by which its ticks vary, so that daemons don't move in step.
    jitter: float = 0.1
    # PostgreSQL: listen for wake-ups, and send them.
    notify: bool = True
    # Look after runners of this host: what a dead one holds is looked at without waiting for its lease.
    watch_runners: bool = True
    # The longest pause between two tries to reach the database.
    reconnect_max_s: float = 5.0
    # A stop that takes longer is cut short; the database rolls back what was being written.
    stop_s: float = 30.0
    # Loopback port for /healthz, /readyz and /metrics; 0 for none.
    health_port: int = 0
    # When settled work is verified, and when old work is pruned: cron lines in UTC; empty for never.
    sweep: str = "17 * * * *"
    sweep_rows_max: int = 100_000
    prune: str = "47 3 * * *"
    # How many days things are kept once they are over; 0 keeps them for ever. Submissions by their outcome, with their
    # attempts and decisions; their ids and outcomes are remembered for ever.
    keep_completed_days: float = 30.0
    keep_failed_days: float = 90.0
    keep_aborted_days: float = 90.0
    # Outcomes that were decided while nobody listened, and that nobody has taken note of.
    keep_unacknowledged_days: float = 180.0
    # What was said in sessions of which every submission is gone; and, apart, the texts of settled sessions.
    keep_entries_days: float = 180.0
    keep_payloads_days: float = 0.0
    # Decisions of settled submissions; 0: as long as the submission.
    keep_decisions_days: float = 0.0
    keep_passes_days: float = 14.0
    keep_slots_days: float = 90.0
    keep_instances_days: float = 14.0
    keep_operations_days: float = 90.0
    keep_audit_days: float = 400.0
    # Its name among the instances; the host's name where empty.
    owner: str = ""


DEFAULT_DAEMON: Final = DaemonSettings()

# Name, the least and the most.
_RANGES: Final = (
    ("pass_interval_s", 0.05, 3600.0),
    ("pass_rows_max", 1, 1_000_000),
    ("schedule_interval_s", 0.05, 3600.0),
    ("beat_s", 0.05, 3600.0),
    ("jitter", 0.0, 0.5),
    ("reconnect_max_s", 0.05, 300.0),
    ("stop_s", 0.1, 3600.0),
    ("health_port", 0, 65535),
    ("sweep_rows_max", 1, 100_000_000),
)
_DAYS_MAX: Final = 36_600.0
# What a reload can't change.
NEEDS_RESTART: Final = frozenset({"health_port", "notify", "owner"})


def daemon_faults(settings: DaemonSettings) -> list[tuple[str, str]]:
    """Return what is wrong with the settings, each with the way out."""
    faults = []
    for name, least, most in _RANGES:
        value = getattr(settings, name)
        if not least <= value <= most:
            faults.append((f"daemon.{name} is out of range: {value}", f"between {least:g} and {most:g}"))
    for name, value in retention(settings).items():
        if not (value == 0 or 0.04 <= value <= _DAYS_MAX):
            way = f"between 0.04 (an hour) and {_DAYS_MAX:g} days, or 0 to keep them for ever"
            faults.append((f"daemon.{name} is out of range: {value}", way))
    if 0 < settings.keep_audit_days < max(settings.keep_completed_days, settings.keep_failed_days):
        faults.append(
            (
                f"daemon.keep_audit_days is {settings.keep_audit_days:g}, shorter than settled work is kept",
                "what people did must not be forgotten before what they did it to: raise it",
            )
        )
    for name in SYSTEM_JOBS:
        line = getattr(settings, name)
        if line:
            try:
                parse_cron(line)
            except InvalidInput as error:
                faults.append((f"daemon.{name}: {error.message}", error.hint or ""))
    if len(settings.owner.encode()) > 200 or any(ord(character) < 32 for character in settings.owner):
        faults.append(("cannot use daemon.owner", "at most 200 bytes without control characters"))
    return faults


def retention(settings: DaemonSettings) -> dict[str, float]:
    """Return how many days each kind of thing is kept, by the name of its setting; 0 for ever."""
    return {name: getattr(settings, name) for name in DaemonSettings.__slots__ if name.startswith("keep_")}


def work_settings(settings: DaemonSettings) -> dict[str, float]:
    """Return what the system's own work is done with."""
    return {"sweep_rows_max": settings.sweep_rows_max, **retention(settings)}


def system_jobs(settings: DaemonSettings, available: tuple[str, ...]) -> tuple[Job, ...]:
    """Return the jobs of the system's own work, of those whose work is *available* and that have a cron line.

    Raises:
        ConfigurationInvalid: a cron line cannot be read.
    """
    jobs = []
    for name in SYSTEM_JOBS:
        line = getattr(settings, name)
        if name in available and line:
            try:
                jobs.append(check_job(Job(name, parse_cron(line), UTC, catch_up=CatchUp.LATEST)))
            except InvalidInput as error:
                raise ConfigurationInvalid(f"daemon.{name}: {error.message}", hint=error.hint) from None
    return tuple(jobs)
