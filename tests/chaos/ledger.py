"""Append-only ledgers of JSON lines, outside the database: what was promised, and what was done to the world.

One write per line: a process that is killed leaves whole lines, at most the last one missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Ledger:
    """A ledger that is written to. Safe to use from several threads and processes."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._durable = durable

    def __del__(self) -> None:
        os.close(self._file)

    def write(self, **line: Any) -> None:
        """Append a line; with *durable* it is on the disk when this comes back."""
        os.write(self._file, (json.dumps(line) + "\n").encode())
        if self._durable:
            os.fsync(self._file)


def lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of every ledger in *folder* whose name begins with *name*."""
    for path in sorted(folder.glob(f"{name}*.jsonl")):
        with path.open() as stream:
            for text in stream:
                if text.endswith("\n"):
                    yield json.loads(text)
