"""Where the two databases differ: locking, upsert, the clock, literals, and what their errors mean.

The only reader of ``dialect.name`` beside the column types. Knows nothing of tables, sessions or policy.
"""

from __future__ import annotations

import json
import re
import resource
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from reconciler.core.unreadable import UnreadableInstant
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
    UnsupportedOnDialect,
)
from reconciler.store.sending import execute_sqlite, send
from reconciler.store.types import UtcDateTime

Clock = Callable[[], datetime]

# The execution option under which an engine carries its clock.
CLOCK_OPTION: Final = "reconciler_clock"


class _HasDialect(Protocol):
    @property
    def dialect(self) -> Dialect: ...


def is_postgresql(bind: _HasDialect) -> bool:
    """Return whether *bind* (an engine, a connection, an inspector) speaks to PostgreSQL."""
    return bind.dialect.name == "postgresql"


def is_sqlite(bind: _HasDialect) -> bool:
    """Return whether *bind* speaks to SQLite."""
    return bind.dialect.name == "sqlite"


def dialect_word(bind: _HasDialect) -> str:
    """Return the name of the database as errors and answers spell it: ``postgresql`` or ``sqlite``."""
    return bind.dialect.name


def require_postgresql(bind: _HasDialect, feature: str) -> None:
    """Refuse what only PostgreSQL can do.

    Raises:
        UnsupportedOnDialect: *bind* is another database.
    """
    if not is_postgresql(bind):
        raise UnsupportedOnDialect(f"{feature} is not possible on {dialect_word(bind)}", hint="use PostgreSQL for it")


# --- the database's clock --------------------------------------------------------------------------------------------


def system_clock() -> datetime:
    """Return the host's wall clock: the database's clock on SQLite, where database and program share a host."""
    return datetime.now(UTC)


def clock_of(bind: Connection | Engine) -> Clock:
    """Return the clock that the engine was made with. On PostgreSQL nothing may be decided by it (I17)."""
    clock: Clock = bind.get_execution_options().get(CLOCK_OPTION, system_clock)
    return clock


def _host_now(bind: Connection | Engine) -> datetime:
    now = clock_of(bind)()
    if now.tzinfo is None:
        raise InvalidInput("the clock gave a time without a time zone")
    return now.astimezone(UTC)


def db_now(conn: Connection) -> datetime:
    """Return this moment by the database's clock, aware and in UTC.

    On PostgreSQL the moment of the call (``clock_timestamp()``), not the start of the transaction: a lock may have
    been waited for in between (I6). One round trip there, none on SQLite.
    """
    if is_postgresql(conn):
        now: datetime = conn.execute(_CLOCK_TIMESTAMP).scalar_one()
        return now
    # Differs on SQLite because its own clock has milliseconds only and cannot be moved by tests.
    return _host_now(conn)


def now_expr(conn: Connection) -> sa.ColumnElement[datetime]:
    """Return an SQL expression for this moment by the database's clock.

    PostgreSQL evaluates it anew for every row; on SQLite it is a bound value taken at this call, so make the statement
    after the transaction has begun.
    """
    if is_postgresql(conn):
        return sa.func.clock_timestamp(type_=UtcDateTime())
    return sa.bindparam(None, _host_now(conn), type_=UtcDateTime(), unique=True)


def now_plus(conn: Connection, seconds: float) -> sa.ColumnElement[datetime]:
    """Return an SQL expression for the moment *seconds* (may be negative) from now by the database's clock."""
    if is_postgresql(conn):
        interval = sa.bindparam(None, timedelta(seconds=seconds), type_=sa.Interval(), unique=True)
        return sa.type_coerce(sa.func.clock_timestamp() + interval, UtcDateTime())
    return sa.bindparam(None, _host_now(conn) + timedelta(seconds=seconds), type_=UtcDateTime(), unique=True)


_CLOCK_TIMESTAMP: Final = sa.select(sa.func.clock_timestamp(type_=UtcDateTime()))


# --- statements ------------------------------------------------------------------------------------------------------

_LITERAL: Final = re.compile(r"[A-Za-z0-9_]+\Z")


def literal_text(value: str) -> sa.ColumnElement[str]:
    """Return *value* (a status, a kind) written into the statement instead of bound.

    A partial index is used under a generic plan only where the planner sees the value: bound, the same query was
    measured 700 times slower.

    Raises:
        InvalidInput: *value* is more than letters, digits and underscores.
    """
    text = str(value)
    if not _LITERAL.match(text):
        raise InvalidInput(f'cannot write "{text}" into a statement: letters, digits and "_" only')
    return sa.literal_column(f"'{text}'", sa.Text())


def for_update(
    statement: sa.Select[Any],
    *,
    skip_locked: bool = False,
    nowait: bool = False,
    key_share: bool = False,
    of: Iterable[sa.FromClause] | None = None,
) -> sa.Select[Any]:
    """Return *statement* as a locking read; name sessions first (I15).

    Differs on SQLite because there the immediate transaction is the lock: the compiler leaves the clause out, and
    nothing is ever skipped.
    """
    return statement.with_for_update(
        skip_locked=skip_locked, nowait=nowait, key_share=key_share, of=None if of is None else list(of)
    )


if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

    DialectInsert = postgresql.Insert | sqlite.Insert


def insert(conn: Connection, table: sa.Table) -> DialectInsert:
    """Return an insert with the ``on_conflict_…`` methods, which both databases spell alike.

    Its result's ``rowcount`` says how many rows were written (for one set of values; not for a list of them).
    """
    # Imported where it is needed: loading both is a tenth of a cold start.
    statement: DialectInsert
    if is_postgresql(conn):
        from sqlalchemy.dialects.postgresql import insert as insert_on_postgresql

        statement = insert_on_postgresql(table)
    else:
        from sqlalchemy.dialects.sqlite import insert as insert_on_sqlite

        statement = insert_on_sqlite(table)
    # An insert's count is thrown away by default on PostgreSQL.
    return statement.execution_options(preserve_rowcount=True)


def insert_ignore(conn: Connection, table: sa.Table, *, key: Collection[str] | None = None) -> DialectInsert:
    """Return an insert that leaves rows alone which conflict on *key* (column names; any unique index where None)."""
    return insert(conn, table).on_conflict_do_nothing(index_elements=None if key is None else list(key))


def upsert(conn: Connection, table: sa.Table, *, key: Collection[str], update: Collection[str]) -> DialectInsert:
    """Return an insert that overwrites the columns *update* of the row that conflicts on *key*."""
    statement = insert(conn, table)
    return statement.on_conflict_do_update(
        index_elements=list(key), set_={name: statement.excluded[name] for name in update}
    )


def in_list(conn: Connection, column: sa.ColumnElement[Any], values: Collection[str | int]) -> sa.ColumnElement[bool]:
    """Return ``column IN values`` with one bound parameter, however many values there are.

    One statement text for every batch size keeps prepared statements few, and no limit on the number of bound
    variables is met.
    """
    whole = all(isinstance(value, int) for value in values) and bool(values)
    if is_postgresql(conn):
        item: sa.types.TypeEngine[Any] = sa.BigInteger() if whole else sa.Text()
        return column == sa.any_(sa.bindparam(None, list(values), type_=sa.ARRAY(item), unique=True))
    # Differs on SQLite because it has no arrays: the list travels as JSON text.
    listed = sa.func.json_each(sa.bindparam(None, json.dumps(list(values)), type_=sa.Text(), unique=True)).table_valued(
        "value"
    )
    return column.in_(sa.select(listed.c.value))


class Doubtful(list[tuple[Any, ...]]):
    """Rows among which are instants that can't be read: each is an `UnreadableInstant`."""


def fetch_tuples(conn: Connection, statement: str, parameters: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
    """Return all rows of a statement of the driver's own kind, as the driver gives them: for reads of many rows.

    Where PostgreSQL holds an instant that Python has none for (infinity, a year beyond 9999), `Doubtful` rows.
    """
    if is_sqlite(conn):
        return list(execute_sqlite(conn, statement, parameters).fetchall())
    try:
        (rows,) = send(conn, (statement, parameters))
    except sa_exc.DBAPIError as error:
        if type(error.orig).__name__ != "DataError" or getattr(error.orig, "sqlstate", None):
            raise
        # The driver's refusal, not the server's: the transaction stands.
        with tolerant_loaders(conn):
            return Doubtful(send(conn, (statement, parameters))[0])
    return rows


@contextmanager
def tolerant_loaders(conn: Connection) -> Iterator[None]:
    """Within this block a PostgreSQL connection gives an `UnreadableInstant` where Python has no such instant.

    Not always: a loader written in Python takes longer for every value.
    """
    from psycopg import DataError
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    driver: Any = conn.connection.driver_connection
    adapters = driver.adapters
    kept = [(kind, adapters.get_loader(_TIMESTAMPTZ, kind)) for kind in (Format.TEXT, Format.BINARY)]

    def tolerant(inner: type[Any], kind: Format) -> type[Loader]:
        class Tolerant(Loader):
            format = kind

            def __init__(self, oid: int, context: Any = None) -> None:
                super().__init__(oid, context)
                self._inner = inner(oid, context)

            def load(self, data: Any) -> Any:
                try:
                    return self._inner.load(data)
                except DataError as error:
                    return UnreadableInstant.of(_instant_in(str(error)))

        return Tolerant

    for kind, inner in kept:
        adapters.register_loader(_TIMESTAMPTZ, tolerant(inner, kind))
    try:
        yield
    finally:
        for _, inner in kept:
            adapters.register_loader(_TIMESTAMPTZ, inner)


_TIMESTAMPTZ: Final = 1184


def _instant_in(refusal: str) -> str:
    """Return the instant that the driver's refusal names, as PostgreSQL takes it again."""
    if "before year 1" in refusal or "too small" in refusal:
        return "-infinity"
    return "infinity"


class sound_instant(FunctionElement[bool]):  # noqa: N801 - used like a function of SQL
    """Whether a column holds an instant that can be read; a null one does not."""

    type = sa.Boolean()
    inherit_cache = True
    name = "sound_instant"


# The first that can tell whether a text is JSON.
_POSTGRESQL_IS_JSON: Final = 16


def valid_json(conn: Connection, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool] | None:
    """Return whether a text is JSON, as an expression; None where the database can't tell."""
    if not is_postgresql(conn):
        return sa.func.json_valid(column) == 1
    version: Any = conn.dialect.server_version_info
    return (
        column.op("IS JSON", is_comparison=True)(sa.text("")) if version and version[0] >= _POSTGRESQL_IS_JSON else None
    )


@compiles(sound_instant, "sqlite")
def _sound_on_sqlite(element: sound_instant, compiler: Any, **options: Any) -> str:
    text = compiler.process(element.clauses, **options)
    digits = "[0-9]"
    pattern = "-".join((digits * 4, digits * 2, digits * 2)) + "T" + ":".join([digits * 2] * 3) + f".{digits * 6}Z"
    return f"({text} GLOB '{pattern}' AND datetime({text}) IS NOT NULL)"


@compiles(sound_instant, "postgresql")
def _sound_on_postgresql(element: sound_instant, compiler: Any, **options: Any) -> str:
    text = compiler.process(element.clauses, **options)
    return f"({text} >= '0001-01-01 00:00:00+00' AND {text} < '10000-01-01 00:00:00+00')"


def array_literal(values: Sequence[object]) -> str:
    """Return PostgreSQL's text form of a one-dimensional array of texts, numbers, truth values, instants and nulls.

    The driver's own way looks for special characters in every element by a pattern; with forty arrays a batch that was
    a quarter of the whole pass. Of the columns of a batch most hold one value over and over.
    """
    first = values[0] if values else None
    if len(values) > 1 and values.count(first) == len(values):
        return "{" + ",".join([_element(first)] * len(values)) + "}"
    if isinstance(first, str) and None not in values:
        # All at once, with the one character between them that the database doesn't take in a text.
        joined = "\0".join(values)  # type: ignore[arg-type]
        if joined.count("\0") == len(values) - 1:
            escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
            return '{"' + escaped.replace("\0", '","') + '"}'
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        if "\\" in value or '"' in value:
            value = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{value}"'
    # Numbers and truth values need no quotes; an instant has a blank in it.
    return f'"{value}"' if isinstance(value, datetime) else str(value)


# --- errors ----------------------------------------------------------------------------------------------------------


class ErrorKind(StrEnum):
    """What a database error means for the caller."""

    # Another transaction is in the way; the whole transaction may be tried again.
    LOCKED = "locked"
    LOCK_TIMEOUT = "lock_timeout"
    SERIALIZATION = "serialization"
    DEADLOCK = "deadlock"
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


RETRYABLE: Final = frozenset({ErrorKind.LOCKED, ErrorKind.LOCK_TIMEOUT, ErrorKind.SERIALIZATION, ErrorKind.DEADLOCK})


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
        case ErrorKind.SERIALIZATION | ErrorKind.DEADLOCK:
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
