"""Session files on the disk: which ones a path means, and how to open one without being surprised.

Only regular files are opened (a FIFO would block, a device would never end); a pipe given as ``-`` is copied aside
first, so that its format can be looked at. Knows nothing of formats.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from reconciler.errors import LimitExceeded, SourceUnreadable

STDIN: Final = "-"
FILES_MAX: Final = 100_000
_SUFFIX: Final = ".jsonl"
# What a folder is taken to mean besides, where the first bytes agree: databases, and exports of one JSON value.
_DATABASES: Final = (".db", ".sqlite", ".sqlite3", ".db3")
_EXPORT: Final = ".json"
_ENDINGS: Final = (_SUFFIX, *_DATABASES, _EXPORT)
_EXPORT_HEAD: Final = re.compile(rb'\s*\{\s*"info"\s*:')
_SQLITE_HEAD: Final = b"SQLite format 3\0"
_HEAD_BYTES: Final = 256
# A database behind a URL.
URL_SCHEMES: Final = ("postgresql:", "postgres:", "postgresql+psycopg:")
# A pipe smaller than this is kept in memory, a larger one on the disk.
_SPOOL_BYTES: Final = 8 * 1024 * 1024
# Read in pieces of this size: most lines are longer than the usual buffer.
_BUFFER_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class SessionFile:
    """An opened session file. ``stem`` is its name without the ending, None for a pipe."""

    name: str
    locator: str
    stem: str | None
    stream: BinaryIO
    size: int

    def state(self) -> str:
        """Return what differs once the file is replaced or written to; nothing of a pipe, which was copied aside."""
        if self.stem is None:
            return ""
        status = os.fstat(self.stream.fileno())
        return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"

    def age_s(self) -> float:
        """Return how long ago the file was last written to, in seconds; 0 for a pipe, whose writer isn't known."""
        if self.stem is None:
            return 0.0
        return max(0.0, time.time() - os.fstat(self.stream.fileno()).st_mtime)


def is_url(name: str) -> bool:
    """Return whether *name* means a database behind a URL, not a file."""
    return name.startswith(URL_SCHEMES)


def session_files(
    paths: Iterable[str], refused: list[str] | None = None, *, newer_than: float | None = None
) -> list[str]:
    """Return the names of the files that *paths* mean, in order, each once: a folder means all session files below it.

    Those are the `.jsonl` files, SQLite databases, and exported sessions. Links to files inside the folder are
    followed, links to folders are not (they may lead in circles), and links out of the folder aren't either: whoever
    may write into it would choose what is read. Those are appended to *refused*. With *newer_than* (a time as `time()`
    gives it) only those files of a folder are meant that were written to since.

    Raises:
        LimitExceeded: a folder holds more files than anybody means.
    """
    found: dict[str, str] = {}
    for path in paths:
        # os.path's answers no where the system refuses the name; Path's raises what nobody catches.
        if path == STDIN or is_url(path) or not os.path.isdir(path):  # noqa: PTH112
            found.setdefault(path if path == STDIN or is_url(path) else os.path.realpath(path), path)
            continue
        top = os.path.realpath(path)
        for name in _below(path, newer_than):
            place = os.path.realpath(name)
            if os.path.commonpath((top, place)) != top:
                if refused is not None:
                    refused.append(name)
                continue
            found.setdefault(place, name)
            if len(found) > FILES_MAX:
                raise LimitExceeded(
                    f'cannot take more than {FILES_MAX} files at once, and "{path}" holds more',
                    hint="name the folders below it one by one",
                )
    return list(found.values())


def _below(folder: str, newer_than: float | None) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(root, name)  # noqa: PTH118  (a million of them: no object for each)
            if newer_than is not None and name.endswith(_ENDINGS) and not _is_newer(path, newer_than):
                continue
            if (
                name.endswith(_SUFFIX)
                or (name.endswith(_DATABASES) and head(path, len(_SQLITE_HEAD)) == _SQLITE_HEAD)
                or (name.endswith(_EXPORT) and _EXPORT_HEAD.match(head(path, _HEAD_BYTES)) is not None)
            ):
                yield path


def _is_newer(path: str, than: float) -> bool:
    """Return whether a file, or the log of a database, was written to since."""
    for name in (path, f"{path}-wal"):
        try:
            if os.stat(name).st_mtime >= than:  # noqa: PTH116
                return True
        except OSError:
            continue
    return False


def is_sqlite(path: str) -> bool:
    """Return whether a regular file begins as an SQLite database does."""
    return path != STDIN and head(path, len(_SQLITE_HEAD)) == _SQLITE_HEAD


def regular_size(path: str) -> int | None:
    """Return the bytes of a regular file; None of anything else."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def head(path: str, size: int) -> bytes:
    """Return the first bytes of a regular file; none of anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        try:
            return (stream.read(size) or b"") if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        except OSError:
            return b""


@contextmanager
def opened(name: str, stdin: BinaryIO | None = None) -> Iterator[SessionFile]:
    """Open a session file for reading; ``-`` is *stdin*, the process's own where none is given.

    Raises:
        SourceUnreadable: it isn't there, isn't a regular file, or may not be read.
    """
    if name == STDIN:
        given = stdin if stdin is not None else sys.stdin.buffer
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as copy:
            try:
                shutil.copyfileobj(given, copy)
            except OSError as error:
                raise SourceUnreadable(f"could not read standard input: {error.strerror}") from error
            size = copy.tell()
            copy.seek(0)
            yield SessionFile(STDIN, STDIN, None, copy, size)  # type: ignore[arg-type]
        return
    try:
        # Without waiting: opening a FIFO that nobody writes would block for ever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceUnreadable(
            f'could not read "{name}": {reason}', hint="check the path and its permissions"
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise SourceUnreadable(f'cannot read "{name}": it is {kind}', hint="name a session file, or - for a pipe")
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb", buffering=_BUFFER_BYTES) as stream:
        path = Path(name)
        yield SessionFile(name, str(path.resolve()), path.stem, stream, status.st_size)
