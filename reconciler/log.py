"""Events: what is logged, under which name, at which level and with which fields; and how it is written.

`EVENTS` is the whole list; an event that isn't in it, or a field that it doesn't name, is a fault of the program, which
the tests find. Nothing is written until `configure` was called: a library stays silent. structlog is loaded by then.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")
# Of sd-daemon(3): journald takes the number in front of a line as its priority.
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}


@dataclass(frozen=True, slots=True)
class Event:
    """An event's level, the fields it may have (units are part of their names), and what it tells."""

    level: str
    fields: tuple[str, ...]
    meaning: str


EVENTS: Final[Mapping[str, Event]] = MappingProxyType(
    {
        "daemon.started": Event(
            "info", ("version", "instance_id", "owner", "pid", "database", "jobs"), "The daemon runs its first round."
        ),
        "daemon.ready": Event("info", ("waited_s",), "The database answered and has the schema that is needed."),
        "daemon.stopping": Event("info", ("signal",), "No new pass begins; the one at hand ends at its next batch."),
        "daemon.hurried": Event(
            "warning", ("why",), "The stop was cut short; what was being written is rolled back by the database."
        ),
        "daemon.stopped": Event("info", ("passes", "uptime_s"), "The daemon is done."),
        "daemon.failed": Event("error", ("error", "code", "hint"), "The daemon cannot go on and ends."),
        "config.reloaded": Event(
            "info", ("changed", "needs_restart"), "SIGHUP: what changed is in force, what needs a restart is named."
        ),
        "config.refused": Event(
            "error", ("error", "hint"), "SIGHUP: the configuration is not valid; the old one stays in force."
        ),
        "database.lost": Event(
            "warning", ("error", "code", "hint"), "The database does not answer. Said once per outage."
        ),
        "database.restored": Event("info", ("outage_s", "tries"), "The database answers again."),
        "clock.stepped": Event(
            "warning",
            ("stepped_s",),
            "The host's wall clock was set forward by so much, or (negative) back. Who is late is called at once.",
        ),
        "pass.finished": Event(
            "info",
            (
                "pass_id",
                "took_s",
                "batches",
                "scanned",
                "completed",
                "failed",
                "aborted",
                "requeued",
                "held",
                "advised",
                "adopted",
                "left_alone",
                "conflicts",
                "locked",
                "set_aside",
                "unjudged",
                "more",
            ),
            "A pass that did something; one that found nothing to do is not logged.",
        ),
        "row.set_aside": Event(
            "warning",
            ("session_id", "submission_id", "error"),
            "A pass could not decide about this row, or not write it: it was held, or is looked at again later.",
        ),
        "pass.failed": Event("error", ("error", "failures"), "A pass ended by an error that is no outage."),
        "runner.died": Event(
            "info", ("pid", "attempts"), "A runner on this host is gone; what it held is looked at now."
        ),
        "slot.fired": Event(
            "info", ("job", "slot_at", "late_s", "session_id", "submission_id"), "A slot admitted its submission."
        ),
        "slot.skipped": Event("info", ("job", "count", "reason", "first_at", "last_at"), "Slots that did not fire."),
        "slot.failed": Event("error", ("job", "slot_at", "error"), "A slot could not do what it is for."),
        "slot.taken_over": Event(
            "warning", ("job", "slot_at", "from_instance_id"), "An unfinished slot's lease had ended."
        ),
        "slot.finished": Event("info", ("job", "slot_at", "took_s", "result"), "A slot's work is done."),
        "slots.failed": Event("error", ("error",), "The schedule could not be looked at; the next look tries again."),
        "sweep.problem_found": Event(
            "error", ("session_id", "submission_id", "problem"), "Settled work that contradicts its record."
        ),
        "beat.failed": Event("error", ("error",), "The daemon's own sign of life could not be written."),
        "health.failed": Event("error", ("error",), "The health port cannot be opened."),
        "decision.made": Event(
            "debug",
            ("session_id", "submission_id", "action", "reason", "detail", "outcome", "landed"),
            "One decision of a pass.",
        ),
    }
)

Sink = Callable[[str, str, dict[str, Any]], None]
_sink: Sink | None = None
_least = 1


def emit(event: str, **fields: Any) -> None:
    """Write an event; does nothing until `configure` was called. Never raises for the output's sake."""
    if _sink is None:
        return
    _sink(EVENTS[event].level, event, fields)


def configure(*, level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Write events to *stream* (standard error): JSON lines, or text where it is a terminal or *style* says so."""
    global _sink, _least
    target = stream or sys.stderr
    as_text = style == "text" or (style == "auto" and target.isatty())
    _sink, _least = _structlog_sink(level, as_text, target), LEVELS.index(level)


def quiet_libraries() -> None:
    """Keep libraries from writing bare lines to the error stream where nobody has configured logging.

    They warn of what is raised too (a connection that went away in a pipeline, or in the pool). A program that
    configures logging still gets them.
    """
    for name in _LIBRARIES:
        logging.getLogger(name).addHandler(_NOWHERE)


_LIBRARIES: Final = ("psycopg", "sqlalchemy", "apscheduler")
_NOWHERE: Final = logging.NullHandler()


def wants_debug() -> bool:
    """Return whether debug events are written: they may cost something to make."""
    return _sink is not None and _least == 0


@contextmanager
def captured() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Give the list that events go to meanwhile, as (event, fields): for tests of programs that use this one."""
    global _sink
    before, found = _sink, list[tuple[str, dict[str, Any]]]()

    def take(_level: str, event: str, fields: dict[str, Any]) -> None:
        unknown = set(fields) - set(EVENTS[event].fields)
        if unknown:
            raise ValueError(f"event {event} has no fields {sorted(unknown)}")
        found.append((event, fields))

    _sink = take
    try:
        yield found
    finally:
        _sink = before


class Repeats:
    """Lets an event of one kind through once in *every_s*, by the monotonic clock."""

    def __init__(self, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._next: dict[str, float] = {}
        self._guard = threading.Lock()

    def lets(self, key: str) -> bool:
        """Return whether an event with *key* may be written now."""
        now = self._clock()
        with self._guard:
            if now < self._next.get(key, now):
                return False
            if len(self._next) > 1_000:
                self._next.clear()
            self._next[key] = now + self._every_s
            return True


def _structlog_sink(level: str, as_text: bool, target: TextIO) -> Sink:
    import structlog

    processors: list[Any] = [structlog.processors.add_log_level]
    if as_text:
        processors += [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=target.isatty(), pad_event_to=20),
        ]
    else:
        processors += [
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            _event_first,
            structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=True, default=str),
            *([_with_priority] if _is_journal(target) else []),
        ]
    logger: Any = structlog.wrap_logger(
        structlog.WriteLogger(target), processors=processors, wrapper_class=structlog.BoundLogger
    )
    least = LEVELS.index(level)

    def write(event_level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(event_level) < least:
            return
        # A full disk or a closed pipe behind standard error must not stop the work.
        with suppress(OSError, ValueError):
            getattr(logger, event_level)(event, **fields)

    return write


def _event_first(_logger: object, _method: str, line: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = {name: line.pop(name) for name in ("at", "level", "event") if name in line}
    return first | line


def _with_priority(_logger: object, method: str, line: str) -> str:
    return f"<{_PRIORITIES.get(method, 6)}>{line}"


def _is_journal(target: TextIO) -> bool:
    # systemd.exec(5): the device and inode of the stream that goes to the journal.
    named = os.environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(target.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return named == f"{found.st_dev}:{found.st_ino}"
