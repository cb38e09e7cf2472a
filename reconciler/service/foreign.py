"""Databases of other programs as sources: opened read-only, their sessions one by one.

A session of a database is what a file is elsewhere: it is read by itself, from one snapshot, and what is wrong with it
keeps no other one back. Writes nothing to any source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from reconciler.errors import LimitExceeded, SourceUnreadable
from reconciler.importers.base import ImportResult, PayloadSink
from reconciler.importers.detect import AUTO, DATABASE_IMPORTERS, Detection, detect_database
from reconciler.importers.files import is_sqlite, is_url
from reconciler.importers.foreign_database import DatabaseImporter, Rows, SessionKey, opened_sqlite

# Of one database; each is a key of a few words in memory.
SESSIONS_MAX: Final = 1_000_000

T = TypeVar("T")


class Database(Rows, Protocol):
    """An opened database."""

    def snapshot(self, work: Callable[[], T]) -> T:
        """Run *work* on one state of the database."""
        ...

    def age_s(self) -> float:
        """Return how long ago it was last written to, in seconds; 0 where nobody knows."""
        ...

    def place(self) -> str:
        """Return what it is stored under as a source: without a password, the same for the same database."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignSession:
    """One session of a database, not read yet."""

    database: Database
    importer: DatabaseImporter
    detection: Detection
    key: SessionKey

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"{self.database.name}#{self.key.label}"

    @property
    def locator(self) -> str:
        """Return what it is stored under as a source."""
        return f"{self.database.place()}#{self.key.label}"

    def age_s(self) -> float:
        """Return how long ago the database was last written to: no session of it is known to be quieter."""
        return self.database.age_s()

    def read(self, sink: PayloadSink) -> ImportResult:
        """Read it.

        Raises:
            SourceUnreadable, LimitExceeded: the database can't be read.
            SourceVersionUnknown: the session is kept in a way that isn't known.
        """

        def work() -> ImportResult:
            sink.restart()
            return self.importer.read(self.database, self.key, sink)

        return self.database.snapshot(work)


@dataclass(frozen=True, slots=True)
class ForeignDatabase:
    """A database of another program, with whoever can read it."""

    name: str
    database: Database
    readers: tuple[tuple[DatabaseImporter, Detection], ...]

    def sessions(self) -> list[ForeignSession]:
        """Return the sessions of all its formats, as they stand now.

        Raises:
            SourceUnreadable, LimitExceeded, SourceVersionUnknown: it can't be read.
        """
        found: list[ForeignSession] = []
        for importer, detection in self.readers:
            keys = self.database.snapshot(lambda importer=importer: self._keys(importer))  # type: ignore[misc]
            found += [ForeignSession(self.database, importer, detection, key) for key in keys]
        return found

    def _keys(self, importer: DatabaseImporter) -> list[SessionKey]:
        keys: list[SessionKey] = []
        for key in importer.sessions(self.database):
            keys.append(key)
            if len(keys) > SESSIONS_MAX:
                raise LimitExceeded(f'cannot take "{self.name}": it holds more than {SESSIONS_MAX} sessions')
        return keys


def is_database(name: str, format_name: str = AUTO) -> bool:
    """Return whether *name* is read as a database."""
    return is_url(name) or is_sqlite(name) or format_name in DATABASE_IMPORTERS


@contextmanager
def opened_database(name: str, format_name: str = AUTO) -> Iterator[ForeignDatabase]:
    """Open a database of another program, read-only: an SQLite file or a ``postgresql://`` URL.

    Raises:
        SourceUnreadable, LimitExceeded: it can't be read.
        UnknownFormat: its tables are of no known format.
    """
    if is_url(name):
        from reconciler.service.foreign_postgresql import opened_postgresql

        with opened_postgresql(name) as rows:
            yield _recognised(rows, format_name)
        return
    if not is_sqlite(name):
        raise SourceUnreadable(
            f'cannot read "{name}" as "{format_name}": it is no SQLite database',
            hint="name the database's file, or a postgresql:// URL",
        )
    with opened_sqlite(name) as file:
        yield _recognised(file, format_name)


def _recognised(database: Database, format_name: str) -> ForeignDatabase:
    tables = database.snapshot(database.tables)
    return ForeignDatabase(database.name, database, tuple(detect_database(tables, database.name, format_name)))
