"""A read-only guardian beside an agent: follows its files and databases, and says which turn is stuck, which lost its
answer.

A round looks at what is there, reads what changed since the last one, and judges everything it knows again by the time
that has passed. Nothing is ever written: no source, no database of ours. What it knows it keeps in memory, within
bounds. Knows nothing of terminals; whoever calls it decides when the next round is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from reconciler.core.model import DEFAULT_LIMITS, Detail, SubmissionInspection
from reconciler.errors import InvalidInput, LimitExceeded, ReconcilerError, SourceUnreadable, UnknownFormat
from reconciler.importers.base import ImportResult, NullSink
from reconciler.importers.detect import AUTO, Detection, check_format
from reconciler.importers.files import STDIN, is_url, opened, session_files
from reconciler.service.foreign import ForeignDatabase, is_database, opened_database
from reconciler.service.inspect_files import file_payloads, leads_out, read_file

# What a folder's files were last written to before this is not looked at, unless it was already.
RECENT_S: Final = 7 * 86400.0
# Files that are read in one round; the rest waits for the next ones.
READS_MAX: Final = 2_000
# Sessions that are known at once.
SESSIONS_MAX: Final = 200_000
# Changes that one round tells; the rest is told by the next ones.
CHANGES_MAX: Final = 1_000


class Standing(StrEnum):
    """How a prompt stands, as a guardian sees it."""

    # Its program is, or may still be, at it.
    WORKING = "working"
    ANSWERED = "answered"
    # Nothing has come for a while, and what came last is the prompt or a call: somebody has to look or to resume.
    STUCK = "stuck"
    # Nothing has come for a while, and the model still owes its answer.
    LOST_ANSWER = "lost_answer"
    # For a person's or another's answer, on purpose.
    WAITING = "waiting"
    # A person stopped it.
    STOPPED = "stopped"
    # Accepted, and not begun.
    QUEUED = "queued"
    # The record is damaged: nobody can say.
    DAMAGED = "damaged"
    # The source, or the session, can't be read.
    UNREADABLE = "unreadable"


# What is worth telling a person about.
ALERTS: Final = frozenset({Standing.STUCK, Standing.LOST_ANSWER, Standing.DAMAGED, Standing.UNREADABLE})
_OWED: Final = frozenset(
    {Detail.TOOL_RESULTS_READY, Detail.RESPONSE_CUT, Detail.RESPONSE_ABORTED, Detail.PROVIDER_ERROR}
)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is watched. ``quiet_s``: how long nothing has to come before a turn counts as left, in seconds."""

    sources: tuple[str, ...]
    format: str = AUTO
    quiet_s: float = DEFAULT_LIMITS.quiet_s
    recent_s: float = RECENT_S


@dataclass(slots=True)
class _Prompt:
    """A prompt that is watched: the last verdict on it, and since when nothing has changed."""

    verdict: dict[str, Any]
    session_id: str
    format: str
    waits_for: str | None
    changed_at: float
    fingerprint: tuple[Any, ...]
    told: Standing | None = None


@dataclass(slots=True)
class _Source:
    """A file or a database: what it was when it was read."""

    name: str
    mark: object = None
    prompts: dict[tuple[str, str], _Prompt] = field(default_factory=dict)
    error: ReconcilerError | None = None
    told_error: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A prompt that stands otherwise than it was told last; ``was`` is None the first time."""

    source: str
    format: str | None
    session_id: str | None
    submission_id: str | None
    standing: Standing
    was: Standing | None
    verdict: dict[str, Any]
    waits_for: str | None
    quiet_s: float
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """What one look saw. ``read`` are the sources that were read, ``behind`` how many still have to be."""

    sources: int
    read: tuple[str, ...]
    behind: int
    standings: dict[str, int]
    changes: tuple[Change, ...]


class Watcher:
    """Follows sources, round by round."""

    def __init__(self, options: WatchOptions, *, clock: Callable[[], float] = time.time) -> None:
        check_format(options.format)
        if STDIN in options.sources:
            raise InvalidInput("cannot watch standard input: it can be read only once", hint="inspect it instead")
        self._options = options
        self._clock = clock
        self._sources: dict[str, _Source] = {}

    def round(self, *, whole: bool = False) -> Round:
        """Look once. With *whole* everything is read and told in this look, however much it is.

        Raises:
            LimitExceeded: there is more than anybody can watch.
        """
        now = self._clock()
        refused: list[str] = []
        found = self._candidates(now, refused)
        self._forget(found, refused)
        changed = [
            (name, mark)
            for name, mark in found.items()
            if name not in self._sources or self._sources[name].mark != mark
        ]
        for name in refused:
            known = self._sources.setdefault(name, _Source(name))
            known.error = leads_out(name)
        reading = changed if whole else changed[:READS_MAX]
        for name, mark in reading:
            self._read(name, mark, now)
        if sum(len(source.prompts) for source in self._sources.values()) > SESSIONS_MAX:
            raise LimitExceeded(
                f"cannot watch more than {SESSIONS_MAX} sessions at once",
                hint="name fewer sources, or a shorter --since",
            )
        counts: dict[str, int] = {}
        changes: list[Change] = []
        for change, tell in self._standings(now):
            counts[change.standing.value] = counts.get(change.standing.value, 0) + 1
            if change.standing != change.was and (whole or len(changes) < CHANGES_MAX):
                changes.append(change)
                tell()
        return Round(
            len(found) + len(refused),
            tuple(name for name, _ in reading),
            len(changed) - len(reading),
            counts,
            tuple(changes),
        )

    # --- what is there ---------------------------------------------------------------------------------------------

    def _candidates(self, now: float, refused: list[str]) -> dict[str, object]:
        """Return the sources and a mark of each that changes when it is written to; the newest first."""
        found: dict[str, object] = {}
        files: list[tuple[float, str, object]] = []
        for source in self._options.sources:
            # os.path's answers no where the system refuses the name; Path's raises what nobody catches.
            if is_url(source) or not os.path.isdir(source):  # noqa: PTH112
                # What is behind a URL shows no sign of change: it is read in each round.
                found[source] = object() if is_url(source) else _mark(source)
                continue
            for name in session_files([source], refused, newer_than=now - self._options.recent_s):
                mark = _mark(name)
                files.append((_written_at(mark), name, mark))
        files.sort(reverse=True)
        for _, name, mark in files:
            found.setdefault(name, mark)
        return found

    def _forget(self, found: dict[str, object], refused: Sequence[str]) -> None:
        """Forget what is gone, or has not been written to for long and was told."""
        for name in [name for name in self._sources if name not in found and name not in refused]:
            del self._sources[name]

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read(self, name: str, mark: object, now: float) -> None:
        known = self._sources.setdefault(name, _Source(name))
        before, known.prompts, known.error, known.mark = known.prompts, {}, None, mark
        try:
            if is_database(name, self._options.format):
                with opened_database(name, self._options.format) as database:
                    self._read_database(known, database, before, now)
                return
            with opened(name) as file:
                result, detection = read_file(file, format=self._options.format)
        except ReconcilerError as error:
            if isinstance(error, UnknownFormat) and name not in self._options.sources:
                # It only stands in a folder that is watched.
                return
            known.error = error
            known.prompts = before
            if isinstance(error, SourceUnreadable):
                # It may be readable the next time, without having been written to.
                known.mark = None
            return
        self._take(known, name, result, detection, before, _written_at(mark), now)

    def _read_database(
        self, known: _Source, database: ForeignDatabase, before: dict[tuple[str, str], _Prompt], now: float
    ) -> None:
        file_at = _written_at(known.mark) or now
        for session in database.sessions():
            try:
                result = session.read(NullSink())
            except ReconcilerError as error:
                known.error = error
                continue
            written = [
                made.written_at.timestamp() for one in result.sessions for made in one.entries if made.written_at
            ]
            # Other sessions keep the database busy; a clock that is ahead makes nothing older than it is.
            at = min(max(written, default=file_at), file_at)
            self._take(known, session.name, result, session.detection, before, at, now, is_shared=True)

    def _take(
        self,
        known: _Source,
        name: str,
        result: ImportResult,
        detection: Detection,
        before: dict[tuple[str, str], _Prompt],
        at: float,
        now: float,
        *,
        is_shared: bool = False,
    ) -> None:
        seen = {session_id: old for (session_id, _), old in before.items()}
        for payload, session in zip(file_payloads(name, result, detection), result.sessions, strict=False):
            fingerprint = (result.bytes_read, len(session.entries), session.leaf_entry_id)
            changed_at = at
            if is_shared and (last := seen.get(session.session_id)) is not None:
                # That the database was written to says nothing of this session.
                changed_at = last.changed_at if last.fingerprint == fingerprint else now
            for verdict in payload["submissions"]:
                key = (session.session_id, verdict["submission_id"])
                old = before.get(key)
                known.prompts[key] = _Prompt(
                    verdict,
                    session.session_id,
                    result.format,
                    session.waits_for,
                    changed_at,
                    fingerprint,
                    old.told if old is not None else None,
                )

    # --- judging ---------------------------------------------------------------------------------------------------

    def _standings(self, now: float) -> Iterator[tuple[Change, Callable[[], None]]]:
        for source in self._sources.values():
            if source.error is not None:
                yield self._error_change(source)
            for prompt in source.prompts.values():
                quiet_s = max(0.0, now - prompt.changed_at)
                standing = standing_of(prompt.verdict, prompt.waits_for, is_quiet=quiet_s >= self._options.quiet_s)
                change = Change(
                    source.name,
                    prompt.format,
                    prompt.session_id,
                    prompt.verdict["submission_id"],
                    standing,
                    prompt.told,
                    prompt.verdict,
                    prompt.waits_for,
                    quiet_s,
                )
                yield change, _teller(prompt, standing)

    def _error_change(self, source: _Source) -> tuple[Change, Callable[[], None]]:
        error = source.error
        text = error.message if error is not None else ""
        was = Standing.UNREADABLE if source.told_error == text else None

        def tell() -> None:
            source.told_error = text

        change = Change(source.name, None, None, None, Standing.UNREADABLE, was, {}, None, 0.0, text)
        return change, tell


def standing_of(verdict: dict[str, Any], waits_for: str | None, *, is_quiet: bool) -> Standing:
    """Return how a prompt stands; the rows of the classifier's table decide, and time only says whether to speak."""
    if verdict["integrity"] is not None:
        return Standing.DAMAGED
    state, detail = SubmissionInspection(verdict["state"]), Detail(verdict["detail"])
    if state is SubmissionInspection.COMPLETED:
        return Standing.ANSWERED
    if state is SubmissionInspection.ABSENT:
        return Standing.QUEUED
    if verdict["stopped_by"] is not None:
        return Standing.STOPPED
    if waits_for is not None:
        return Standing.WAITING
    if not is_quiet:
        return Standing.WORKING
    return Standing.LOST_ANSWER if detail in _OWED else Standing.STUCK


def _teller(prompt: _Prompt, standing: Standing) -> Callable[[], None]:
    def tell() -> None:
        prompt.told = standing

    return tell


def _mark(name: str) -> object:
    """Return what changes when a file, or a log beside it, is written to; None where there is none."""
    marks: list[tuple[int, ...] | None] = []
    for path in (name, f"{name}-wal", f"{name}-journal"):
        try:
            status = os.stat(path)  # noqa: PTH116  (a million of them: no object for each)
        except (OSError, ValueError):
            marks.append(None)
        else:
            marks.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(marks)


def _written_at(mark: object) -> float:
    times = [one[2] / 1e9 for one in mark if one is not None] if isinstance(mark, tuple) else []
    return max(times, default=0.0)
