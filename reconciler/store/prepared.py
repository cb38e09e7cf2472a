"""Statements of the expression language, compiled once for each database and handed to its driver: for the calls that
run all the time.

SQLAlchemy looks a statement's compiled form up anew at each use, and makes a context and a result around it: several
times what a small statement costs SQLite. Values and rows are converted by the columns' types, as it does. Inside the
caller's transaction. Knows no tables.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection, Dialect

from reconciler.store.dialect import is_postgresql, is_sqlite
from reconciler.store.sending import execute_sqlite, send
from reconciler.store.types import Listed

Values = Mapping[str, Any]
_NO_VALUES: Final[Values] = {}


def is_among(conn: Connection, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    """Return ``column IN values``, where the values come as the list *name*."""
    values = sa.bindparam(name, type_=Listed())
    if is_postgresql(conn):
        return column == sa.any_(values)
    return column.in_(sa.select(sa.func.json_each(values).table_valued("value").c.value))


def insertion(table: sa.Table, names: Sequence[str], *, ignore: bool = False) -> sa.TextClause:
    """Return an insert of the columns *names*, whose values come under these names; *ignore* leaves what is there."""
    values = ", ".join(f":{name}" for name in names)
    text = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})"  # noqa: S608 - the schema's own names
    text += " ON CONFLICT DO NOTHING" if ignore else ""
    return sa.text(text).bindparams(*(sa.bindparam(name, type_=table.c[name].type) for name in names))


class Prepared:
    """One statement, or one for each database: then *statement* makes it, given a connection to it.

    Rows are named tuples; those of a text without columns are plain ones, unconverted.
    """

    def __init__(self, statement: sa.Executable | Callable[[Connection], sa.Executable]) -> None:
        self._statement = statement
        # Of SQLite, and of PostgreSQL.
        self._made: dict[bool, _Compiled] = {}

    def rows(self, conn: Connection, values: Values = _NO_VALUES) -> list[Any]:
        """Run it and return all its rows.

        Raises:
            DBAPIError (of SQLAlchemy): as its own execution would.
        """
        made = self._compiled(conn)
        if not made.is_sqlite:
            return rows_of(conn, (self, values))[0]
        return made.converted(execute_sqlite(conn, made.text, made.bound(values)).fetchall())

    def one_or_none(self, conn: Connection, values: Values = _NO_VALUES) -> Any:
        """Run it and return its only row, None where it has none."""
        found = self.rows(conn, values)
        if len(found) > 1:
            raise sa_exc.MultipleResultsFound(f"{len(found)} rows where one at most was expected")
        return found[0] if found else None

    def run(self, conn: Connection, several: Sequence[Values]) -> int:
        """Run a write for each of *several* and return how many rows it touched in all."""
        made = self._compiled(conn)
        if not made.is_sqlite:
            options = {"preserve_rowcount": True}
            return conn.execute(made.statement, list(several), execution_options=options).rowcount
        return int(execute_sqlite(conn, made.text, *map(made.bound, several)).rowcount)

    def _compiled(self, conn: Connection) -> _Compiled:
        kind = is_sqlite(conn)
        made = self._made.get(kind)
        if made is None:
            statement = self._statement(conn) if callable(self._statement) else self._statement
            made = self._made[kind] = _Compiled(statement, conn)
        return made


def rows_of(conn: Connection, *asked: tuple[Prepared, Values]) -> list[list[Any]]:
    """Run statements in order and return the rows of each; on PostgreSQL they travel in one round trip."""
    if is_sqlite(conn):
        return [prepared.rows(conn, values) for prepared, values in asked]
    made = [(prepared._compiled(conn), values) for prepared, values in asked]
    found = send(conn, *((one.text, one.named(values)) for one, values in made))
    return [one.converted(rows) for (one, _), rows in zip(made, found, strict=True)]


class _Compiled:
    """A statement's text, and what converts its values and rows."""

    def __init__(self, statement: Any, conn: Connection) -> None:
        dialect = conn.dialect
        self.statement = statement
        self.is_sqlite = is_sqlite(conn)
        made: Any = statement.compile(dialect=dialect)
        self.text = str(made)
        bounds = {name: bound for bound, name in made.bind_names.items()}
        self._constants = {name: made.params[name] for name, bound in bounds.items() if not bound.required}
        processors = {name: one.type.dialect_impl(dialect).bind_processor(dialect) for name, one in bounds.items()}
        self._names = tuple(made.positiontup) if self.is_sqlite else tuple(bounds)
        self._binders = [
            (place, processors[name]) for place, name in enumerate(self._names) if processors[name] is not None
        ]
        columns: list[Any] = list(getattr(statement, "selected_columns", None) or ())
        self._row: Any = tuple
        if columns:
            row_type: Any = namedtuple("Row", [column.key for column in columns])  # type: ignore[misc]
            self._row = row_type._make
        converters = [_converter(column.type, dialect) for column in columns]
        self._converters = [(place, one) for place, one in enumerate(converters) if one is not None]

    def converted(self, found: Sequence[Any]) -> list[Any]:
        """Return rows as the driver gave them, converted and named."""
        if not self._converters:
            return [self._row(row) for row in found]
        rows = []
        for one in found:
            row = list(one)
            for place, convert in self._converters:
                row[place] = convert(row[place])
            rows.append(self._row(row))
        return rows

    def bound(self, values: Values) -> tuple[Any, ...]:
        """Return the values in the order in which the text names them."""
        given = {**self._constants, **values} if self._constants else values
        found = [given[name] for name in self._names]
        for place, convert in self._binders:
            found[place] = convert(found[place])
        return tuple(found)

    def named(self, values: Values) -> dict[str, Any]:
        """Return the values by name."""
        return dict(zip(self._names, self.bound(values), strict=True))


def _converter(kind: Any, dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(kind, sa.Float):
        # A float from both drivers; SQLAlchemy would ask for the column's number in the server.
        return None
    found: Callable[[Any], Any] | None = kind.dialect_impl(dialect).result_processor(dialect, None)
    return found
