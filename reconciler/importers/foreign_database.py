"""Databases of other programs: read, and nothing else.

An SQLite file may be in use. Its program is never kept waiting and nothing is ever written, not even shared memory:

- with a write-ahead log and the log's index beside it, it is read through that index opened read-only; the other
  program writes on, and each session is read from one snapshot;
- with neither a log nor a journal it is read as immutable, and read again if it changed meanwhile;
- what a crash left half-done (a log without its index, a journal to be rolled back) is copied aside, and the copy is
  read.

Whatever stands in it is data: views and virtual tables are not tables here, nothing is unpickled, and the time, the
size of a value and the size of a copy have limits. Databases behind a URL come in as `Rows` from elsewhere. Knows
nothing of formats.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from reconciler.errors import LimitExceeded, SourceUnreadable, SourceVersionUnknown
from reconciler.importers.base import ImportResult, PayloadSink, Problems, payload_text
from reconciler.importers.reading import Decoded, decode_line, id_fault, replacement_id

# One value of a row may be this large.
VALUE_BYTES_MAX: Final = 256 * 1024 * 1024
# One session may take this long to read, in seconds.
READ_S_MAX: Final = 600.0
# What a crash left half-done is copied up to this size.
COPY_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024
# A file that changes while it is read is read again so often.
TRIES: Final = 5
_TRY_WAIT_S: Final = 0.05
_FETCH_ROWS: Final = 500
_STEPS: Final = 100_000

T = TypeVar("T")


class Rows(Protocol):
    """Tables that are read within one snapshot. SQL has ``?`` for its parameters; texts may come as bytes."""

    name: str
    dialect: str

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables and their columns, in the order of their names."""
        ...

    def read(self, sql: str, *params: Any) -> Iterator[tuple[Any, ...]]:
        """Run a query and yield its rows."""
        ...


@dataclass(frozen=True, slots=True)
class SessionKey:
    """One session of a database: what its importer finds it by, and how it is called in messages and locators."""

    parts: tuple[str, ...]
    label: str


class DatabaseImporter(Protocol):
    """Reads one format out of a database, one session at a time."""

    format: str

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away, in words; None where the tables are another program's."""
        ...

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the sessions.

        Raises:
            SourceVersionUnknown: the tables are of a version that isn't known, or half of two.
        """
        ...

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one session. Never raises for what stands in its rows."""
        ...


# --- reading rows ----------------------------------------------------------------------------------------------------


class RowReading:
    """The part of reading rows that the formats share; what `Reading` is for lines."""

    def __init__(self, sink: PayloadSink) -> None:
        self.problems = Problems()
        self.unknown: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._sink = sink
        self._keeps = sink.wants_payloads
        self._hash = hashlib.sha256()
        self.bytes_read = 0
        self.rows_read = 0
        self._line = 0

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all that was kept or noted, in hex."""
        return self._hash.hexdigest()

    def json(self, raw: object, place: str) -> dict[str, Any] | None:
        """Return the JSON object of a column, None where it holds none; what is wrong with it is noted."""
        self.rows_read += 1
        if raw is None:
            self.problems.add(None, "value_missing", "there is no value", place)
            return None
        if isinstance(raw, dict):
            return raw
        data = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogatepass")
        self.bytes_read += len(data)
        decoded: Decoded = decode_line(data)
        for code, message in decoded.remarks:
            self.problems.add(None, code, message, place)
        if decoded.refused:
            return None
        if not isinstance(decoded.value, dict):
            self.problems.add(None, "not_an_object", "the value is JSON, but no object", place)
            return None
        return decoded.value

    def keep(self, value: object) -> int:
        """Hand a payload to the sink; return the number that stands for it."""
        self._line += 1
        if self._keeps:
            text = payload_text(value)
            self._hash.update(text.encode("ascii"))
            self._hash.update(b"\n")
            self._sink.payload(self._line, text)
        return self._line

    def note(self, value: object) -> None:
        """Let something count for the digest that is no payload (a pointer, a mark)."""
        if self._keeps:
            self._hash.update(payload_text(value).encode("ascii") + b"\n")

    def problem(self, place: str, code: str, message: str) -> None:
        """Note a problem of a row."""
        self.problems.add(None, code, message, place)

    def clean_id(self, raw: object, place: str, what: str) -> str | None:
        """Return *raw* as an id, or what stands for it where it can't be one; None where it is no text."""
        raw = as_str(raw)
        if raw is None:
            return None
        fault = id_fault(raw)
        if fault is None:
            return raw
        self.problems.add(None, "id_replaced", f"the {what} is no valid id ({fault}); a digest stands for it", place)
        return replacement_id(raw)

    def result(self, format_name: str, version: str | None, sessions: tuple[Any, ...]) -> ImportResult:
        """Return what was read."""
        return ImportResult(
            format_name,
            version,
            sessions,
            self.problems.listed(),
            self.problems.count,
            dict(self.unknown),
            dict(self.skipped),
            self.bytes_read,
            self.rows_read,
            self.digest,
        )


def as_str(raw: object) -> str | None:
    """Return a column's text, whichever way the driver gives it; None where it is none."""
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "surrogateescape")
    if isinstance(raw, bytearray | memoryview):
        return bytes(raw).decode("utf-8", "surrogateescape")
    return raw if isinstance(raw, str) else None


def as_bytes(raw: object) -> bytes | None:
    """Return a column's bytes; None where it holds none."""
    if isinstance(raw, str):
        return raw.encode("utf-8", "surrogatepass")
    return bytes(raw) if isinstance(raw, bytes | bytearray | memoryview) else None


def bound(params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return parameters as SQLite takes them: an id that is no UTF-8 is the bytes that it was."""
    return tuple(_encoded(value) if isinstance(value, str) else value for value in params)


def _encoded(text: str) -> str | bytes:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text


def ident(name: str) -> str:
    """Return a table's or a column's name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


# --- SQLite ----------------------------------------------------------------------------------------------------------


class SourceChanged(Exception):
    """The file changed while it was read: what was read may belong to no moment."""


class SqliteRows:
    """An SQLite file of another program."""

    dialect = "sqlite"

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = Path(path).resolve()
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._conn: sqlite3.Connection | None = None
        self._mark: object = None
        self._is_shared = False
        self._until = 0.0

    def close(self) -> None:
        """Let go of the file, and of the copy where there is one."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def place(self) -> str:
        """Return the file's full path."""
        return str(self._path)

    def age_s(self) -> float:
        """Return how long ago the database or its log was last written to, in seconds."""
        times = [status.st_mtime for name in self._files() if (status := _status(name)) is not None]
        return max(0.0, time.time() - max(times, default=0.0))

    def mark(self) -> object:
        """Return what changes whenever somebody writes to the database."""
        found = [_status(name) for name in self._files()]
        return tuple(None if s is None else (s.st_ino, s.st_size, s.st_mtime_ns) for s in found)

    def snapshot(self, work: Callable[[], T]) -> T:
        """Run *work* on one state of the database, again where the file changed under it.

        Raises:
            SourceUnreadable: it can't be read, is damaged, is no database, or changes too often.
            LimitExceeded: a value, a copy or the time it takes is beyond its limit.
        """
        for attempt in range(TRIES):
            if attempt:
                time.sleep(_TRY_WAIT_S * attempt)
            try:
                self._begin()
                try:
                    found = work()
                finally:
                    self._end()
                if self._is_shared or self._copy is not None or self.mark() == self._mark:
                    return found
            except sqlite3.Error as error:
                changed = not self._is_shared and self.mark() != self._mark
                self.close()
                if not changed:
                    raise _refused(self.name, error) from error
            except SourceChanged:
                pass
            self.close()
        raise SourceUnreadable(
            f'could not read "{self.name}": it changed each of the {TRIES} times it was read',
            hint="try again when its program is less busy",
        )

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Return the tables and their columns; views and virtual tables are none."""
        names = [
            name
            for name, sql in ((as_str(row[0]), as_str(row[1])) for row in self.read(_TABLES))
            if name is not None and sql is not None and not sql.lstrip()[:20].upper().startswith("CREATE VIRTUAL")
        ]
        return {
            name: tuple(as_str(row[1]) or "" for row in self.read(f"PRAGMA table_info({ident(name)})"))
            for name in names
        }

    def read(self, sql: str, *params: Any) -> Iterator[tuple[Any, ...]]:
        """Run a query and yield its rows; texts come as bytes."""
        if self._conn is None:
            raise SourceUnreadable(f'could not read "{self.name}": it is closed')
        cursor = self._conn.execute(sql, bound(params))
        try:
            while rows := cursor.fetchmany(_FETCH_ROWS):
                yield from rows
        finally:
            cursor.close()

    # --- opening ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        conn = self._conn if self._conn is not None else self._open()
        self._until = time.monotonic() + READ_S_MAX
        conn.execute("BEGIN")
        # The snapshot is taken by the first read.
        conn.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def _end(self) -> None:
        if self._conn is not None and self._conn.in_transaction:
            self._conn.execute("ROLLBACK")

    def _open(self) -> sqlite3.Connection:
        self._mark = self.mark()
        log = _size(self._beside("-wal"))
        index = self._beside("-shm")
        self._is_shared = bool(log) and index.exists() and not index.is_symlink()
        if self._is_shared:
            uri = f"{_uri(self._path)}?mode=ro&readonly_shm=1"
        elif log or _size(self._beside("-journal")):
            # The copy may be mended: it is nobody's.
            uri = f"{_uri(self._copied())}?mode=rw"
        else:
            uri = f"{_uri(self._path)}?mode=ro&immutable=1"
        self._until = time.monotonic() + READ_S_MAX
        conn = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        self._conn = conn
        conn.text_factory = bytes
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
        conn.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
            conn.execute(f"PRAGMA {pragma}")
        conn.set_progress_handler(self._is_late, _STEPS)
        return conn

    def _is_late(self) -> bool:
        return time.monotonic() > self._until

    def _files(self) -> tuple[Path, ...]:
        return (self._path, self._beside("-wal"), self._beside("-journal"))

    def _beside(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)

    def _copied(self) -> Path:
        """Copy the database with what belongs to it; a state that nobody wrote meanwhile."""
        before = self.mark()
        files = [file for file in self._files() if file == self._path or _size(file)]
        if (size := sum(_size(file) for file in files)) > COPY_BYTES_MAX:
            raise LimitExceeded(
                f'cannot read "{self.name}": a crash left it half-written, and {size} bytes are too many to copy aside',
                hint="open it once with the program that wrote it, so that it is mended",
            )
        self._copy = tempfile.TemporaryDirectory(prefix="reconciler-")
        to = Path(self._copy.name) / "copy"
        try:
            for file in files:
                shutil.copyfile(file, to.with_name(to.name + file.name.removeprefix(self._path.name)))
        except OSError as error:
            if self.mark() != before:
                raise SourceChanged from error
            raise SourceUnreadable(f'could not read "{self.name}": {error.strerror or error}') from error
        if self.mark() != before:
            raise SourceChanged
        return to


_TABLES: Final = (
    "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
)


@contextmanager
def opened_sqlite(path: str) -> Iterator[SqliteRows]:
    """Open an SQLite file of another program, read-only."""
    rows = SqliteRows(path)
    try:
        yield rows
    finally:
        rows.close()


def _uri(path: Path) -> str:
    return "file:" + quote(os.fsencode(path))


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _size(file: Path) -> int:
    status = _status(file)
    return status.st_size if status is not None else 0


def _refused(name: str, error: sqlite3.Error) -> Exception:
    text = str(error)
    if "not a database" in text or "malformed" in text or "encrypted" in text:
        return SourceUnreadable(
            f'cannot read "{name}": {text}', hint="check it with its own program, or read a copy from before"
        )
    if "too big" in text:
        return LimitExceeded(f'cannot read "{name}": a value has more than {VALUE_BYTES_MAX} bytes')
    if "interrupted" in text:
        return LimitExceeded(f'could not read "{name}": it took longer than {READ_S_MAX:.0f} s')
    return SourceUnreadable(f'could not read "{name}": {text}', hint="check the path and its permissions")


def mismatch(name: str, program: str, found: str, needed: str) -> SourceVersionUnknown:
    """Return the error for tables of a version that isn't known."""
    return SourceVersionUnknown(
        f'cannot import "{name}": its {program} tables are of another version: found {found}, needed {needed}',
        detail={"found": found, "needed": needed},
        hint=f"let a supported version of {program} migrate its tables; docs/stores.md names the versions",
    )
