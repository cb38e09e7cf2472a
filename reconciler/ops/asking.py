"""What a reader gets and what it gives back: the values that pass between dispatch, readers and transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from reconciler.core.jobs import Job
from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.ops.entry import Entry

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine


class Progress(Protocol):
    """Hears how far a long act is. ``total`` is None where it isn't known."""

    def __call__(self, done: int, total: int | None, what: str, /) -> None: ...


def no_progress(_done: int, _total: int | None, _what: str, /) -> None:
    """Hear and say nothing."""


@dataclass(slots=True)
class Desk:
    """Where a question is asked: the database, who asks, and what they may see. Made by the composition root.

    One desk serves many questions; its engine is made with the first one that needs it.
    """

    make_engine: Callable[..., Engine]
    # How texts name the database: without its password.
    name_database: Callable[[], str]
    # Whether it is an SQLite file that isn't there yet, which a verb that admits work may make.
    may_create: Callable[[], bool] = lambda: False
    limits: Limits = DEFAULT_LIMITS
    operator: str = "unknown"
    # An act on it needs a reason.
    production: bool = False
    # False for transports that never hand out what was said in a session.
    show_texts: bool = True
    hints: bool = True
    progress: Progress = no_progress
    # The configured jobs and the system's own, by name.
    jobs: Mapping[str, Job] = field(default_factory=dict)
    # Settings of the system's own scheduled work.
    work_settings: Mapping[str, Any] = field(default_factory=dict)
    # Of the composition root: rows for `config show`, secrets masked already.
    configuration: Mapping[str, Any] = field(default_factory=dict)
    # What a question that is asked again and again keeps between its rounds.
    kept: dict[str, Any] = field(default_factory=dict)
    _engine: Engine | None = None

    @property
    def database_name(self) -> str:
        """How texts name the database."""
        return self.name_database()

    @property
    def engine(self) -> Engine:
        """The engine on the database."""
        if self._engine is None:
            self._engine = self.make_engine()
        return self._engine

    def close(self) -> None:
        """Give the connections back."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question or an act with its checked parameters, on its way to the reader."""

    entry: Entry
    params: Mapping[str, Any]
    desk: Desk
    # The names of the parameters that were given, defaults left out.
    given: frozenset[str]
    # The host's instant of asking, for lengths of time that count back from it.
    now: datetime
    # Called with an act's answer inside its transaction: for what has to land with it or not at all.
    beside: Callable[[Connection, Reply], None] | None = None

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be written."""
        return bool(self.params.get("dry_run", False))

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database and cannot write; what it can't read it passes over."""
        from reconciler.store.lenient import read_leniently

        with read_leniently(self.desk.engine) as conn:
            yield conn


@dataclass(frozen=True, slots=True)
class Reply:
    """A reader's answer. What it means for the exit code stands in `exits`."""

    payload: dict[str, Any]
    # For the audit of an act: what it was done to.
    session_id: str | None = None
    submission_id: str | None = None
    # False where an act found everything done already: nothing to audit.
    changed: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What dispatch gives to a transport: a payload for programs, and what to do with it."""

    name: str
    payload: Mapping[str, Any]
    exit_code: int
    took_s: float

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error, None where it went well."""
        error = self.payload.get("error")
        return error if isinstance(error, Mapping) else None
