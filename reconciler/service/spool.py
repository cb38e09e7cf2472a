"""Payloads of a file that is being read, kept in a temporary file until their entries are known.

Importers hand payloads over line by line; which entry a line belongs to shows only at the end of the file.
"""

from __future__ import annotations

import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Sequence


class Spool:
    """Keeps the payloads of a file in a temporary file until their entries are known."""

    wants_payloads = True

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._lines = array("Q")
        self._ends = array("Q")
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def payload(self, line: int, text: str) -> None:
        """Keep the canonical JSON of a line; lines come in rising order."""
        self._end += self._file.write(text.encode("ascii"))
        self._lines.append(line)
        self._ends.append(self._end)

    def restart(self) -> None:
        """Forget what was kept."""
        self._file.seek(0)
        self._file.truncate()
        self._lines = array("Q")
        self._ends = array("Q")
        self._end = 0

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
        self._file.seek(start)
        return self._file.read(end - start).decode("ascii")

    def _place(self, line: int) -> tuple[int, int]:
        at = bisect_left(self._lines, line)
        if at == len(self._lines) or self._lines[at] != line:
            raise KeyError(line)
        return (self._ends[at - 1] if at else 0), self._ends[at]
