"""The SQLite file below a program's connections: whether what stands at the path is still what they were made to.

Knows nothing of transactions or of what the file holds.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy.engine import Engine

from reconciler.errors import DatabaseUnavailable

# A file's device and inode.
Identity = tuple[int, int]


def identity_of(path: Path) -> Identity | None:
    """Return what stands at *path*; None where nothing does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(slots=True, weakref_slot=True, eq=False)
class SqliteFile:
    """The file that this process's connections to one path were made to, all engines together.

    A file may be removed or replaced below them. What is written to it then goes with it, unseen; and its log stays at
    the path, where SQLite would take it for the new file's.
    """

    path: Path
    # None before the first connection.
    identity: Identity | None = None
    log: Identity | None = None
    engines: weakref.WeakSet[Engine] = field(default_factory=weakref.WeakSet)

    def add(self, engine: Engine) -> None:
        """Have *engine*'s connections closed with the others."""
        with _GUARD:
            self.engines.add(engine)

    def before_opening(self) -> None:
        """Ask before a connection is made whether the path may be opened.

        Raises:
            DatabaseUnavailable: as `require_same`; or what is there is empty.
        """
        if self.identity is not None:
            self.require_same()
            # An inode is used again where nobody holds it: the same one may be another file.
            self._require_filled()

    def opening(self) -> None:
        """Note what is opened now. Called before it is: one that is replaced in between is taken for another."""
        self.identity = identity_of(self.path)

    def opened(self) -> None:
        """Note the log that the connection has."""
        self.log = identity_of(self._log_path)

    def is_at_path(self, identity: Identity | None) -> bool:
        """Tell whether a connection made to *identity* leads to what stands at the path."""
        return identity == self.identity == identity_of(self.path)

    def require_same(self) -> None:
        """Close what leads to a file that was removed or replaced: all of this process's pooled connections to it.

        Raises:
            DatabaseUnavailable: there is no file now, it is empty, or the log of the one before is still there.
        """
        if self.identity is None:
            return
        found = identity_of(self.path)
        if found == self.identity:
            self.log = identity_of(self._log_path) or self.log
            return
        with _GUARD:
            engines = list(self.engines)
        for engine in engines:
            engine.dispose()
        if found is None:
            raise DatabaseUnavailable(
                f'could not use the SQLite file "{self.path}": it is gone; it was there before',
                detail={"kind": "connection_lost"},
                hint="put it back: it is used again as soon as it is there",
            )
        if self.log is not None and self.log == identity_of(self._log_path):
            raise DatabaseUnavailable(
                f'could not use the SQLite file "{self.path}": it was replaced, and the log of the one before is still'
                " there",
                detail={"kind": "connection_lost"},
                hint="SQLite would write that log into the new file: stop what has the old file open (`fuser`), move"
                f' "{self._log_path}" and "{self.path}-shm" away, to where the old file is; then the new one is used',
            )
        self._require_filled()
        self.forget()

    def forget(self) -> None:
        """Take whatever comes to be at the path as it is."""
        self.identity, self.log = None, None

    @property
    def _log_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def _require_filled(self) -> None:
        # Nothing is opened that somebody is about to fill: SQLite would write to it.
        with suppress(OSError):
            if self.path.stat().st_size == 0:
                raise DatabaseUnavailable(
                    f'could not use the SQLite file "{self.path}": it is empty, and was not before',
                    detail={"kind": "connection_lost"},
                    hint="put it back whole (`mv`, not `cp`): it is used as soon as it is there",
                )


_GUARD: Final = threading.Lock()
_FILES: Final[weakref.WeakValueDictionary[Path, SqliteFile]] = weakref.WeakValueDictionary()


def file_at(path: Path) -> SqliteFile:
    """Return the one of *path*, which all engines of this process share."""
    with _GUARD:
        return _FILES.setdefault(path, SqliteFile(path))
