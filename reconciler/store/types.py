"""Column types that mean the same on both databases.

Knows nothing of tables, connections or clocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from reconciler.core.unreadable import UnreadableInstant
from reconciler.errors import DatabaseInvalid, InvalidInput

# Canonical JSON (core/canonical.py): text on both databases, never jsonb, so that what comes back is what went in.
JsonText: Final = sa.Text

# Ids compare by code point: PostgreSQL needs the "C" collation for that, SQLite's BINARY compares UTF-8 bytes already.
IdText: Final[TypeEngine[str]] = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def utc_text(value: datetime) -> str:
    """Return *value* as fixed-width UTC text, so that comparing texts compares instants.

    Raises:
        InvalidInput: *value* is naive, or its UTC instant is outside the years 1 to 9999.
    """
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(f"cannot store the time {value.isoformat()}: it has no time zone", hint="give an aware time")
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"cannot store the time {value.isoformat()}: not in the years 1 to 9999") from None
    return instant.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


_LENIENT: Final[ContextVar[bool]] = ContextVar("reconciler_lenient", default=False)


@contextmanager
def lenient() -> Iterator[None]:
    """Within this block columns give an `UnreadableInstant` where they hold no instant."""
    token = _LENIENT.set(True)
    try:
        yield
    finally:
        _LENIENT.reset(token)


def utc_from_text(text: str) -> datetime:
    """Return the aware UTC instant of a text that `utc_text` wrote.

    Raises:
        DatabaseInvalid: the column holds something else.
    """
    try:
        value = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise DatabaseInvalid(f'cannot read the time "{text}": expected YYYY-MM-DDTHH:MM:SS.ffffffZ') from None
    if value.tzinfo is None:
        raise DatabaseInvalid(f'cannot read the time "{text}": it has no time zone')
    return value.astimezone(UTC)


def is_utc_text(text: str) -> bool:
    """Return whether a stored text is an instant."""
    try:
        utc_from_text(text)
    except DatabaseInvalid:
        return False
    return True


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC instant: ``timestamptz`` on PostgreSQL, ``YYYY-MM-DDTHH:MM:SS.ffffffZ`` text on SQLite.

    Naive times are refused on both (InvalidInput): they would mean another instant on each machine.
    """

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type that the database stores."""
        # Differs on SQLite because it has no time type: text of fixed width sorts as instants do.
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.TEXT())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return what the driver takes."""
        if value is None:
            return None
        if isinstance(value, UnreadableInstant):
            # Compared with as it is stored: a page goes on behind a row whatever it holds.
            return value.text
        text = utc_text(value)
        return value.astimezone(UTC) if dialect.name == "postgresql" else text

    def process_literal_param(self, value: datetime | None, dialect: Dialect) -> str:
        """Return the value as an SQL literal."""
        return "NULL" if value is None else f"'{utc_text(value)}'"

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the stored instant, aware and in UTC."""
        if value is None:
            return None
        if isinstance(value, datetime):
            return value if isinstance(value, UnreadableInstant) else value.astimezone(UTC)
        if not _LENIENT.get():
            return utc_from_text(value)
        try:
            return utc_from_text(value)
        except DatabaseInvalid:
            return UnreadableInstant.of(str(value))


# STRICT tables on SQLite know INTEGER, TEXT, REAL and BLOB only; its INTEGER holds 64 bits.
BigInt: Final[TypeEngine[int]] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real: Final[TypeEngine[float]] = sa.Double().with_variant(sa.REAL(), "sqlite")


class Flag(TypeDecorator[bool]):
    """A boolean: ``boolean`` on PostgreSQL, ``INTEGER`` 0 or 1 on SQLite, whose STRICT tables have no boolean."""

    impl = sa.Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type that the database stores."""
        return dialect.type_descriptor(sa.Boolean() if dialect.name == "postgresql" else sa.Integer())

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> Any:
        """Return what the driver takes."""
        if value is None:
            return None
        return bool(value) if dialect.name == "postgresql" else int(bool(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:
        """Return the stored truth value."""
        return None if value is None else bool(value)


class Listed(TypeDecorator[Any]):
    """A list of texts as one parameter: an array on PostgreSQL, JSON text on SQLite, which has no arrays."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the parameter."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.ARRAY(sa.Text()))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return what the driver takes."""
        return list(value) if dialect.name == "postgresql" else json.dumps(list(value))
