"""What a database's error means: of which kind it is, and the typed error that a person is told.

Both databases, through SQLAlchemy or the driver. Knows nothing of what was asked of the database.
"""

from __future__ import annotations

import re
import resource
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from reconciler.errors import (
    DatabaseFull,
    DatabaseInvalid,
    DatabaseIoError,
    DatabaseReadOnly,
    DatabaseUnavailable,
    InvalidInput,
    ReconcilerError,
    SchemaMismatch,
    StoreConflict,
    StoreFault,
)


class ErrorKind(StrEnum):
    """What a database error means for the caller."""

    # Another transaction is in the way; the whole transaction may be tried again.
    LOCKED = "locked"
    LOCK_TIMEOUT = "lock_timeout"
    SERIALIZATION = "serialization"
    DEADLOCK = "deadlock"
    # A prepared statement is gone from the connection; it is prepared anew.
    UNPREPARED = "unprepared"
    # The connection is gone in the middle: what a COMMIT did is not known.
    CONNECTION_LOST = "connection_lost"
    # No connection could be made: nothing was done.
    UNREACHABLE = "unreachable"
    # Credentials, database name or certificates are refused: trying again will not help.
    REFUSED = "refused"
    TIMEOUT = "timeout"
    READ_ONLY = "read_only"
    # No room: on the disk, in a quota, or below a limit on the size of files.
    FULL = "full"
    # The operating system failed to read or write, and SQLite doesn't say why.
    IO = "io"
    INVALID = "invalid"
    SCHEMA = "schema"
    PERMISSION = "permission"
    UNIQUE = "unique"
    FOREIGN_KEY = "foreign_key"
    CHECK = "check"
    NOT_NULL = "not_null"
    # NUL characters, lone surrogates, numbers too large: the value cannot be stored.
    VALUE = "value"
    OTHER = "other"


RETRYABLE: Final = frozenset(
    {ErrorKind.LOCKED, ErrorKind.LOCK_TIMEOUT, ErrorKind.SERIALIZATION, ErrorKind.DEADLOCK, ErrorKind.UNPREPARED}
)


@dataclass(frozen=True, slots=True)
class StoreError:
    """A database error, taken apart."""

    kind: ErrorKind
    text: str
    # Of the constraint or index, where the database names it (SQLite names CHECKs and expression indexes only).
    constraint: str | None = None
    table: str | None = None
    # Of a unique or not-null violation.
    columns: tuple[str, ...] = ()


_SQLITE_PRIMARY: Final = {
    sqlite3.SQLITE_BUSY: ErrorKind.LOCKED,
    sqlite3.SQLITE_LOCKED: ErrorKind.LOCKED,
    sqlite3.SQLITE_READONLY: ErrorKind.READ_ONLY,
    sqlite3.SQLITE_FULL: ErrorKind.FULL,
    sqlite3.SQLITE_NOTADB: ErrorKind.INVALID,
    sqlite3.SQLITE_CORRUPT: ErrorKind.INVALID,
    sqlite3.SQLITE_CANTOPEN: ErrorKind.UNREACHABLE,
    sqlite3.SQLITE_IOERR: ErrorKind.IO,
    sqlite3.SQLITE_PROTOCOL: ErrorKind.LOCKED,
    sqlite3.SQLITE_PERM: ErrorKind.PERMISSION,
    sqlite3.SQLITE_TOOBIG: ErrorKind.VALUE,
    sqlite3.SQLITE_INTERRUPT: ErrorKind.TIMEOUT,
}
# A file grows. What the system said is not handed on, but for a full disk (SQLITE_FULL): a quota, a limit on the size
# of files and a broken disk look alike.
_SQLITE_GROWS: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
    }
)
_SQLITE_CONSTRAINT: Final = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: ErrorKind.UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: ErrorKind.UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_ROWID: ErrorKind.UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: ErrorKind.FOREIGN_KEY,
    sqlite3.SQLITE_CONSTRAINT_CHECK: ErrorKind.CHECK,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: ErrorKind.NOT_NULL,
}
# By SQLSTATE: the five characters, or the class (first two).
_POSTGRESQL: Final = {
    "40001": ErrorKind.SERIALIZATION,
    "40P01": ErrorKind.DEADLOCK,
    "40": ErrorKind.SERIALIZATION,
    "26000": ErrorKind.UNPREPARED,
    "55P03": ErrorKind.LOCK_TIMEOUT,
    "55006": ErrorKind.LOCKED,
    "57014": ErrorKind.TIMEOUT,
    "25P03": ErrorKind.CONNECTION_LOST,  # idle in transaction for too long: the server closed the connection
    "57P01": ErrorKind.CONNECTION_LOST,
    "57P02": ErrorKind.CONNECTION_LOST,
    "57P03": ErrorKind.UNREACHABLE,
    "57P04": ErrorKind.CONNECTION_LOST,
    "57P05": ErrorKind.CONNECTION_LOST,
    "08": ErrorKind.CONNECTION_LOST,
    "53300": ErrorKind.UNREACHABLE,  # too many connections
    "53100": ErrorKind.FULL,
    "53": ErrorKind.UNREACHABLE,
    "28": ErrorKind.REFUSED,
    "3D000": ErrorKind.REFUSED,
    "25006": ErrorKind.READ_ONLY,
    "3F000": ErrorKind.SCHEMA,
    "42P01": ErrorKind.SCHEMA,
    "42703": ErrorKind.SCHEMA,
    "42501": ErrorKind.PERMISSION,
    "23505": ErrorKind.UNIQUE,
    "23503": ErrorKind.FOREIGN_KEY,
    "23514": ErrorKind.CHECK,
    "23502": ErrorKind.NOT_NULL,
    "22": ErrorKind.VALUE,
    "54": ErrorKind.VALUE,
    "58": ErrorKind.IO,
    "XX001": ErrorKind.INVALID,
    "XX002": ErrorKind.INVALID,
}
_SQLITE_SCHEMA: Final = re.compile(r"no such (table|column|view|index)|has no column named")
_PG_REFUSED: Final = re.compile(
    r'authentication failed|no password supplied|database ".*" does not exist|role ".*" does not exist|no pg_hba\.conf'
    r"|could not translate host name|certificate|invalid connection option"
)
# Under 58030 where the server knows no better code for what the system said.
_NO_ROOM: Final = re.compile(r"No space left on device|quota exceeded|File too large", re.IGNORECASE)
_PG_KEY: Final = re.compile(r"Key \((.*?)\)=")


def classify_error(error: BaseException) -> StoreError:
    """Return what *error* (of SQLAlchemy, of a driver, of Python) means. Total: what isn't known is ``other``."""
    original = error
    disconnected = False
    if isinstance(error, sa_exc.DBAPIError):
        disconnected = error.connection_invalidated
        original = error.orig if error.orig is not None else error
    elif isinstance(error, sa_exc.StatementError) and error.orig is not None:
        original = error.orig
    text = _one_line(original)
    if isinstance(original, InvalidInput):
        return StoreError(ErrorKind.VALUE, original.message)  # of a column type, while the values were bound
    if isinstance(original, sa_exc.TimeoutError):
        return StoreError(ErrorKind.UNREACHABLE, "every connection of the pool is in use")
    if isinstance(original, UnicodeEncodeError | OverflowError):
        return StoreError(ErrorKind.VALUE, text)
    if isinstance(original, sqlite3.Error):
        return _classify_sqlite(original, text)
    if hasattr(original, "sqlstate"):  # psycopg.Error; the driver is optional, so its class may not be there
        return _classify_postgresql(original, text, disconnected=disconnected)
    return StoreError(ErrorKind.OTHER, text)


def _classify_sqlite(error: sqlite3.Error, text: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Raised by the driver itself: a closed connection, a value it cannot bind.
        value = isinstance(error, sqlite3.DataError | sqlite3.InterfaceError) or "binding parameter" in text
        return StoreError(ErrorKind.VALUE if value else ErrorKind.OTHER, text)
    if code in _SQLITE_CONSTRAINT:
        subject = text.partition(": ")[2]
        kind = _SQLITE_CONSTRAINT[code]
        if kind is ErrorKind.CHECK:
            return StoreError(kind, text, constraint=subject or None)
        if index := re.fullmatch(r"index '(.*)'", subject):
            return StoreError(kind, text, constraint=index[1])
        pairs = [part.strip().rpartition(".") for part in subject.split(",")] if subject else []
        return StoreError(
            kind, text, table=pairs[0][0] or None if pairs else None, columns=tuple(column for _, _, column in pairs)
        )
    if code == sqlite3.SQLITE_ERROR and _SQLITE_SCHEMA.search(text):
        return StoreError(ErrorKind.SCHEMA, text)
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return StoreError(ErrorKind.CONNECTION_LOST, "its file was replaced or removed")
    if code in _SQLITE_GROWS:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            return StoreError(ErrorKind.FULL, f"{text}: no file of this process may be larger than {limit} bytes")
    # The low byte is the primary code, the rest says more.
    return StoreError(_SQLITE_PRIMARY.get(code & 0xFF, ErrorKind.OTHER), text)


def _classify_postgresql(error: Any, text: str, *, disconnected: bool) -> StoreError:
    state: str | None = error.sqlstate
    if state is None:
        # No answer of the server: raised by the driver.
        if "NUL" in text or "surrogates" in text or type(error).__name__ == "DataError":
            return StoreError(ErrorKind.VALUE, text)
        if disconnected:
            return StoreError(ErrorKind.CONNECTION_LOST, text)
        if type(error).__name__ in {"OperationalError", "ConnectionTimeout", "InterfaceError"}:
            # The server's own words at connect carry no SQLSTATE in libpq.
            return StoreError(ErrorKind.REFUSED if _PG_REFUSED.search(text) else ErrorKind.UNREACHABLE, text)
        return StoreError(ErrorKind.OTHER, text)
    kind = _POSTGRESQL.get(state) or _POSTGRESQL.get(state[:2], ErrorKind.OTHER)
    if kind is ErrorKind.IO and _NO_ROOM.search(text):
        kind = ErrorKind.FULL
    diag = error.diag
    columns: tuple[str, ...] = ()
    if kind is ErrorKind.UNIQUE and (key := _PG_KEY.match(diag.message_detail or "")):
        columns = tuple(part.strip().strip('"') for part in key[1].split(","))
    elif kind is ErrorKind.NOT_NULL and diag.column_name:
        columns = (diag.column_name,)
    return StoreError(kind, text, constraint=diag.constraint_name, table=diag.table_name, columns=columns)


def is_unique_violation(error: BaseException, *, of: sa.Table | None = None, columns: Iterable[str] = ()) -> bool:
    """Return whether *error* says that a unique index of table *of*, over exactly *columns*, was violated.

    Give no columns to ask about any index of the table, and no table to ask about any at all.
    """
    found = classify_error(error)
    if found.kind is not ErrorKind.UNIQUE:
        return False
    asked = set(columns)
    return (of is None or found.table == of.name) and (not asked or set(found.columns) == asked)


def translate_error(error: BaseException, database: str = "the database") -> ReconcilerError:
    """Return the typed error for *error*; one that is typed already comes back as it is.

    *database* is how the message names it; it must hold no password.
    """
    if isinstance(error, ReconcilerError):
        return error
    if isinstance(error, sa_exc.StatementError) and isinstance(error.orig, ReconcilerError):
        return error.orig
    found = classify_error(error)
    detail = {"kind": found.kind.value, "reason": found.text}
    match found.kind:
        case ErrorKind.LOCKED | ErrorKind.LOCK_TIMEOUT:
            return DatabaseUnavailable(
                f"could not lock {database}: another process holds it: {found.text}",
                detail=detail,
                hint="try again; if it stays so, look for a program that keeps a transaction open",
            )
        case ErrorKind.SERIALIZATION | ErrorKind.DEADLOCK | ErrorKind.UNPREPARED:
            return StoreConflict(f"could not write to {database}: {found.text}", detail=detail, hint="try again")
        case ErrorKind.CONNECTION_LOST:
            return DatabaseUnavailable(
                f"could not finish on {database}: the connection was lost: {found.text}",
                detail=detail,
                hint="try again: a repeated call gives the first answer",
            )
        case ErrorKind.UNREACHABLE:
            return DatabaseUnavailable(
                f"could not reach {database}: {found.text}",
                detail=detail,
                # SQLite doesn't say of which file, or why.
                hint="look at its path and who may use it: also who only reads needs to write in its folder, where"
                " SQLite keeps the log (-wal) and its index (-shm)"
                if "unable to open database file" in found.text
                else "try again",
            )
        case ErrorKind.REFUSED:
            return DatabaseUnavailable(
                f"could not connect to {database}: {found.text}",
                detail=detail,
                hint="check host, database name, user and password",
            )
        case ErrorKind.TIMEOUT:
            return DatabaseUnavailable(
                f"could not finish on {database} in time: {found.text}", detail=detail, hint="try again, or with less"
            )
        case ErrorKind.READ_ONLY:
            return DatabaseReadOnly(
                f"cannot write to {database}: it is read-only: {found.text}",
                detail=detail,
                hint="check the permissions of the file and its folder, or whether the server is a standby",
            )
        case ErrorKind.FULL:
            return DatabaseFull(
                f"could not write to {database}: there is no room for it: {found.text}; nothing was written",
                detail=detail,
                hint="make room on its disk, or raise the quota (`quota`) or the limit on the size of files"
                " (`ulimit -f`, LimitFSIZE= of a service), and try again; `reconciler prune` makes room inside it",
            )
        case ErrorKind.IO:
            return DatabaseIoError(
                f"could not read or write {database}: {found.text}; nothing was written",
                detail=detail,
                hint="look at its disk: quota (`quota`), errors in the kernel's log (`dmesg`), a mount that is gone;"
                " then try again, and let `reconciler doctor` look at the file",
            )
        case ErrorKind.INVALID:
            return DatabaseInvalid(
                f"cannot use {database}: {found.text}",
                detail=detail,
                hint="name another file, or restore this one from a backup",
            )
        case ErrorKind.SCHEMA:
            return SchemaMismatch(
                f"cannot use {database}: its tables are not the ones this program knows: {found.text}",
                detail=detail,
                hint="see `reconciler db check`",
            )
        case ErrorKind.PERMISSION:
            return StoreFault(
                f"cannot use {database}: {found.text}", detail=detail, hint="grant the role what deploy/ lists for it"
            )
        case ErrorKind.VALUE:
            return InvalidInput(f"cannot store the value: {found.text}", detail=detail)
        case ErrorKind.UNIQUE | ErrorKind.FOREIGN_KEY | ErrorKind.CHECK | ErrorKind.NOT_NULL:
            return StoreFault(f"cannot write to {database}: {found.text}", detail=detail)
        case ErrorKind.OTHER:
            return StoreFault(f"could not use {database}: {found.text}", detail=detail)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines)[:500] or type(error).__name__
