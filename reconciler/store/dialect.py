"""Where the two databases differ: locking, upsert, the clock and literals. What their errors mean is `database_errors`.

The only reader of ``dialect.name`` beside the column types. Knows nothing of tables, sessions or policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from reconciler.core.unreadable import UnreadableInstant
from reconciler.errors import (
    InvalidInput,
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


def fetch_tuples(conn: Connection, statement: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
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
