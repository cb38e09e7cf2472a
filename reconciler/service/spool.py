"""Payloads of a file that is being read, kept in a temporary file until their entries are known.

Importers hand payloads over line by line; which entry a line belongs to shows only at the end of the file.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from reconciler.errors import SourceUnreadable

# Written in pieces of this size: most payloads are far smaller.
_BUFFER_BYTES: Final = 256 * 1024
# Entries are mostly asked for in the order of their lines, so one reading serves many.
_AHEAD_BYTES: Final = 256 * 1024
# Which lines are kept, and where each ends.
Places = tuple["array[int]", "array[int]"]


class Spool:
    """Keeps the payloads of a file in a temporary file until their entries are known.

    *path* names that file, else it has no name. With *places* it is the file that another process filled, which had
    these `places`.
    """

    wants_payloads = True

    def __init__(self, path: Path | None = None, places: Places | None = None) -> None:
        self._file: BinaryIO
        if path is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed by __exit__)
        else:
            self._file = path.open("xb+" if places is None else "rb", buffering=0)
        self._lines, self._ends = places or (array("Q"), array("Q"))
        self._end = self._ends[-1] if self._ends else 0
        self._waiting: list[str] = []
        self._waiting_bytes = 0
        # What was read last, and where it begins in the file.
        self._read = b""
        self._read_at = 0

    def places(self) -> Places:
        """Return what another process needs beside the file, once all is in it."""
        self._flush()
        return self._lines, self._ends

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def payload(self, line: int, text: str) -> None:
        """Keep the canonical JSON of a line; lines come in rising order."""
        # Canonical JSON is ASCII: as many bytes as letters.
        self._end += len(text)
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()
        self._lines.append(line)
        self._ends.append(self._end)

    def restart(self) -> None:
        """Forget what was kept."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._file.seek(0)
        self._file.truncate()
        self._lines = array("Q")
        self._ends = array("Q")
        self._end = 0
        self._read = b""
        self._read_at = 0

    def text(self, lines: Sequence[int]) -> str:
        """Return the payload of an entry that was made of *lines*: an array where there are several."""
        if len(lines) == 1:
            return self._line(lines[0])
        return f"[{','.join(self._line(line) for line in lines)}]"

    def size(self, lines: Sequence[int]) -> int:
        """Return how many bytes `text` gives, about."""
        return sum(end - start for start, end in map(self._place, lines))

    def _line(self, line: int) -> str:
        start, end = self._place(line)
        if self._waiting:
            self._flush()
        # By its place: entries need not be in the order of their lines.
        at = start - self._read_at
        if at < 0 or end - self._read_at > len(self._read):
            size = end - start
            if size >= _AHEAD_BYTES:
                return os.pread(self._file.fileno(), size, start).decode("ascii")
            self._read = os.pread(self._file.fileno(), _AHEAD_BYTES, start)
            self._read_at, at = start, 0
        return self._read[at : at + end - start].decode("ascii")

    def _flush(self) -> None:
        rest = memoryview("".join(self._waiting).encode("ascii"))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise SourceUnreadable(
                f'could not keep aside what was read, in "{tempfile.gettempdir()}": {error.strerror or error}',
                hint="make room there, or name another folder for temporary files in TMPDIR",
            ) from error
        self._waiting.clear()
        self._waiting_bytes = 0

    def _place(self, line: int) -> tuple[int, int]:
        at = bisect_left(self._lines, line)
        if at == len(self._lines) or self._lines[at] != line:
            raise KeyError(line)
        return (self._ends[at - 1] if at else 0), self._ends[at]
