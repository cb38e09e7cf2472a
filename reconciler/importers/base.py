"""What every importer gives back: core values, problems by line, and payloads handed to a sink as they are read.

An importer reads one stream from front to back and never sees a database. Payloads are not kept: they go to a
`PayloadSink` line by line, and each entry names the lines it was made of. What stays in memory is slim, whatever the
size of the file.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, Protocol

from reconciler.core.canonical import canonical_json_parsed
from reconciler.core.model import SessionEntry
from reconciler.errors import InvalidInput
from reconciler.importers.fast_json import NoFastAnswer, canonical_ascii
from reconciler.importers.reading import (
    LINE_BYTES_MAX,
    LineReader,
    Progress,
    decode_line,
    decode_plain,
    id_fault,
    is_plain_id,
    replacement_id,
)

# Problems kept with their text; further ones are only counted.
PROBLEMS_MAX: Final = 1000

NO_MODEL_ERROR_RETRY: Final = frozenset({400, 401, 403, 404, 405, 413, 414, 422})


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the source that could not be taken as it stands.

    ``line`` is from 1; None where no line is meant. ``place`` is where it stands in a database: table and row.
    """

    line: int | None
    code: str
    message: str
    place: str | None = None

    def payload(self) -> dict[str, Any]:
        """Return it as the JSON answers have it."""
        found: dict[str, Any] = {"line": self.line, "code": self.code, "message": self.message}
        return found if self.place is None else {**found, "place": self.place}


class Problems:
    """Problems in the order in which they were met, the first `PROBLEMS_MAX` of them with their text."""

    def __init__(self, limit: int = PROBLEMS_MAX) -> None:
        self._limit = limit
        self._kept: list[Problem] = []
        self.count = 0

    def add(self, line: int | None, code: str, message: str, place: str | None = None) -> None:
        """Note a problem."""
        self.count += 1
        if len(self._kept) < self._limit:
            self._kept.append(Problem(line, code, message, place))

    def listed(self) -> tuple[Problem, ...]:
        """Return the kept problems by line, and one more that says how many there were beyond them."""
        kept = sorted(self._kept, key=lambda problem: (problem.line is None, problem.line or 0))
        if self.count > len(kept):
            kept.append(Problem(None, "more_problems", f"{self.count - len(kept)} further problems are not listed"))
        return tuple(kept)


class PayloadSink(Protocol):
    """Takes the payloads of a file while it is read."""

    def payload(self, line: int, text: str) -> None:
        """Take the canonical JSON of a line. Lines come in rising order, each at most once."""
        ...

    @property
    def wants_payloads(self) -> bool:
        """Return False where payloads are thrown away, so that nobody makes them."""
        ...

    def restart(self) -> None:
        """Forget what was taken: the source changed while it was read, and is read again."""
        ...


class NullSink:
    """Throws payloads away: for looking at a file without keeping it."""

    wants_payloads = False

    def payload(self, line: int, text: str) -> None:
        """Do nothing."""

    def restart(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class ImportedEntry:
    """An entry and what the file says beside it.

    ``lines`` are the lines it was made of: its payload is their JSON, an array of them where there are several.
    ``write_ahead`` is R12: None where it isn't known. ``written_at`` is the source's own time stamp, which decides
    nothing.
    """

    entry: SessionEntry
    lines: tuple[int, ...]
    write_ahead: bool | None
    written_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ImportedSubmission:
    """A prompt that the file holds.

    ``input_entry_id`` is its first canonical input; None for one that was accepted and never applied (then ``payload``
    is its canonical JSON), and for one whose prompt the file lost. ``kind``: ``prompt``, ``signal`` (machine-made),
    ``queued`` (never applied) or ``cut`` (lost). ``is_pending`` marks the last one of the active path, and what still
    waits behind it.
    """

    submission_id: str
    input_entry_id: str | None
    kind: str = "prompt"
    is_pending: bool = False
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """One session, ready to be inspected or stored.

    ``entries`` are sorted so that a parent comes before its children (save in a cycle). ``submissions`` are in the
    order of admission. ``leaf_known_empty``: the source says that the active position is before the first entry.
    ``response_may_grow``: the last response keeps no sign of its end, so its writer may still be at it. ``waits_for``
    says what the turn deliberately waits for, where the source records that: it isn't crashed.
    """

    session_id: str
    entries: tuple[ImportedEntry, ...]
    leaf_entry_id: str | None
    leaf_known_empty: bool
    submissions: tuple[ImportedSubmission, ...]
    response_may_grow: bool = False
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What a file held. ``unknown`` and ``skipped`` count by kind: kept raw, and left out as no part of the DAG."""

    format: str
    format_version: str | None
    sessions: tuple[ImportedSession, ...]
    problems: tuple[Problem, ...]
    problem_count: int
    unknown: Mapping[str, int]
    skipped: Mapping[str, int]
    bytes_read: int
    lines_read: int
    digest: str
    # Of the first bytes that an earlier import had read; None where it wasn't asked for or the file is shorter now.
    prefix_digest: str | None = None


class Importer(Protocol):
    """Reads one format."""

    format: str

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        ...


@dataclass(slots=True)
class Source:
    """What is read, and where its parts go. ``stem`` is the file's name without its ending, None for a pipe."""

    stream: BinaryIO
    stem: str | None = None
    sink: PayloadSink = field(default_factory=NullSink)
    progress: Progress | None = None
    line_bytes_max: int = LINE_BYTES_MAX
    prefix_bytes: int | None = None


class Reading:
    """The part of reading that the formats share: lines in, objects out, everything odd noted."""

    def __init__(self, source: Source) -> None:
        self.problems = Problems()
        self.unknown: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._sink = source.sink
        self._keeps = source.sink.wants_payloads
        self.reader = LineReader(
            source.stream,
            # Nobody asks for the digest of what isn't kept, save where it has to name the session.
            digests=self._keeps or source.stem is None,
            line_bytes_max=source.line_bytes_max,
            progress=source.progress,
            prefix_bytes=source.prefix_bytes,
        )
        # Whether the last line was torn off in the middle; and whether it had its LF.
        self.torn = False
        self.ended = True
        # Whether the line at hand is worth trying the faster encoder on.
        self._is_ascii = False

    def objects(self) -> Iterable[tuple[int, dict[str, Any] | None, bytes]]:
        """Yield (line, object, raw bytes) for each line that isn't blank; the object is None where there is none.

        A last line without LF that is no JSON is torn: it is given back to the file, and noted.
        """
        for number, value, data in self.values():
            if value is None or isinstance(value, dict):
                yield number, value, data
                continue
            self.problems.add(number, "not_an_object", "the line is JSON, but no object")
            yield number, None, data

    def values(self) -> Iterable[tuple[int, Any, bytes]]:
        """Yield (line, value, raw bytes) as `objects` does, whatever the value is; None stands for no value."""
        for number, data, ended in self.reader.lines():
            self.ended = ended
            if data is None:
                self.problems.add(
                    number, "line_too_long", "the line is longer than the limit; it is skipped, the rest is read"
                )
                yield number, None, b""
                continue
            if not data or data.isspace():
                continue
            self._is_ascii = data.isascii()
            try:
                value = decode_plain(data)
            except NoFastAnswer:
                pass
            else:
                if value is None:
                    self.problems.add(number, "not_an_object", "the line is JSON, but no object")
                yield number, value, data
                continue
            decoded = decode_line(data)
            for code, message in decoded.remarks:
                if not (decoded.refused and not ended):
                    self.problems.add(number, code, message)
            if decoded.refused:
                if not ended:
                    self.torn = True
                    self.problems.add(number, "torn_line", "the last line was cut off while it was written")
                    self.reader.untake()
                else:
                    yield number, None, data
                continue
            if decoded.value is None:
                self.problems.add(number, "not_an_object", "the line is JSON, but no object")
            yield number, decoded.value, data

    def keep(self, line: int, value: object) -> None:
        """Hand the payload of *line* to the sink: a value that was read here, or is put together from such."""
        if self._keeps:
            self._sink.payload(line, decoded_text(value) if self._is_ascii else payload_text(value))

    def problem(self, line: int, code: str, message: str) -> None:
        """Note a problem of a line."""
        self.problems.add(line, code, message)

    def clean_id(self, raw: object, line: int, what: str) -> str | None:
        """Return *raw* as an id, or what stands for it where it can't be one; None where it is no text."""
        if not isinstance(raw, str):
            return None
        if is_plain_id(raw) or (fault := id_fault(raw)) is None:
            return raw
        self.problems.add(line, "id_replaced", f"the {what} is no valid id ({fault}); a digest stands for it")
        return replacement_id(raw)

    def link(self, raw: object) -> str | None:
        """Return the id that a link names, replaced by the same rule as the id itself; None where it names none."""
        if not isinstance(raw, str):
            return None
        return raw if is_plain_id(raw) or id_fault(raw) is None else replacement_id(raw)


def payload_text(value: object) -> str:
    """Return the canonical JSON of a payload; floats that JSON can't hold are kept as text."""
    try:
        return canonical_json_parsed(value)
    except InvalidInput:
        return canonical_json_parsed(_finite(value))


def decoded_text(value: object) -> str:
    """Return what `payload_text` does, of a value that `decode_line` gave or that is put together from such."""
    try:
        return canonical_ascii(value)
    except NoFastAnswer:
        return payload_text(value)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def parents_first(ids: Sequence[str], parents: Sequence[str | None]) -> tuple[list[int], list[int]]:
    """Return (order, rest): positions with each parent before its children, else as given; and those in cycles.

    What hangs from a cycle counts as in it. A parent that isn't among *ids* asks for nothing.
    """
    place = {entry_id: index for index, entry_id in enumerate(ids)}
    if all(parent is None or place.get(parent, -1) < index for index, parent in enumerate(parents)):
        return list(range(len(ids))), []
    children: dict[int, list[int]] = {}
    ready: list[int] = []
    for index, parent in enumerate(parents):
        above = None if parent is None else place.get(parent)
        if above is None:
            ready.append(index)
        else:
            children.setdefault(above, []).append(index)
    order: list[int] = []
    heapq.heapify(ready)
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for child in children.get(index, ()):
            heapq.heappush(ready, child)
    done = set(order)
    return order, [index for index in range(len(ids)) if index not in done]


def linked(entry: SessionEntry, entry_id: str, parent_id: str | None, submission_id: str | None) -> SessionEntry:
    """Return an entry in its place. What `replace` does in twice the time, and every entry passes here."""
    return SessionEntry(
        entry_id,
        parent_id,
        entry.kind,
        entry.role,
        submission_id,
        entry.attempt_id,
        entry.stop_reason,
        entry.tool_call_ids,
        entry.tool_call_id,
        entry.content,
        entry.is_synthetic,
        entry.is_sidechain,
        entry.ends_turn,
        entry.error_retryable,
        entry.stopped_by,
        entry.starts_logged,
    )


def as_text(value: object) -> str | None:
    """Return *value* where it is text: nothing in a file is trusted to have the type it should have."""
    return value if isinstance(value, str) else None


def instant(raw: object) -> datetime | None:
    """Return a source's time stamp (ISO text, or milliseconds) as an aware UTC instant; None where it is none."""
    try:
        if isinstance(raw, str):
            value = datetime.fromisoformat(raw)
            if value.tzinfo is UTC:
                return value
            return value.astimezone(UTC) if value.tzinfo is not None else None
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return datetime.fromtimestamp(raw / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None
