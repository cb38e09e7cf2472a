"""What a question or an act is, as data: its name, parameters, payload, reader and rules of use.

Everything that a transport needs to offer it (help, types, limits, JSON schemas) is made from these values; they know
nothing of databases or transports. A reader is named by text ("module:function") so that asking for help loads none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from reconciler.core.checks import TEXT_BYTES_MAX
from reconciler.core.model import ID_BYTES_MAX
from reconciler.errors import InvalidInput, LimitExceeded

# Of what an answer gives to be handed back: it may carry ids, and marks of what was shown.
TOKEN_BYTES_MAX: Final = 65536
LIST_ITEMS_MAX: Final = 10_000

Schema = Mapping[str, Any]


class Kind(StrEnum):
    """The type of a parameter."""

    # An id of a session, submission, entry or subject: 1 to 512 bytes, no control characters.
    ID = "id"
    TEXT = "text"
    INTEGER = "integer"
    # Finite.
    NUMBER = "number"
    BOOLEAN = "boolean"
    # RFC 3339 with a zone, a date (its first instant, UTC), or "30m", "2h", "7d": that long ago.
    INSTANT = "instant"
    # Any JSON value.
    JSON = "json"


class Database(StrEnum):
    """What an entry needs of the database."""

    # None at all.
    NONE = "none"
    # The schema that this program knows, read only.
    READ = "read"
    # The same, to write.
    WRITE = "write"
    # The same; a database that does not exist yet is made (set-up, not migration).
    CREATE = "create"
    # Whatever schema it has: the verbs that look at it and upgrade it.
    ANY = "any"


class Audit(StrEnum):
    """Who writes the audit row of an act."""

    # A question, or an act that records itself (a pass has its decisions).
    NONE = "none"
    # The act itself, in its own transaction.
    INSIDE = "inside"
    # The act, which takes many transactions, in the first one that changes anything.
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. ``positional`` is how a command line takes it; ``many`` makes it a list."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    required: bool = False
    positional: bool = False
    many: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    # Of a text, in UTF-8.
    bytes_max: int = TEXT_BYTES_MAX

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its value."""
        match self.kind:
            case Kind.INTEGER | Kind.NUMBER | Kind.BOOLEAN:
                one: dict[str, Any] = {"type": self.kind.value}
            case Kind.JSON:
                one = {}
            case _:
                one = {"type": "string"}
        if self.kind is Kind.ID:
            one |= {"minLength": 1, "maxLength": ID_BYTES_MAX}
        if self.choices:
            one["enum"] = list(self.choices)
        if self.minimum is not None:
            one["minimum"] = self.minimum
        if self.maximum is not None:
            one["maximum"] = self.maximum
        whole = {"type": "array", "items": one, "maxItems": LIST_ITEMS_MAX} if self.many else one
        whole["description"] = self.help
        if self.default is not None:
            whole["default"] = self.default
        return whole

    def check(self, value: Any, now: datetime) -> Any:
        """Return *value* as the reader takes it; *now* is what a length of time counts back from.

        Raises:
            InvalidInput: another type, out of range, not among the choices.
            LimitExceeded: larger than its limit.
        """
        if not self.many:
            return self._check_one(value, now)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise InvalidInput(f"{self.name} must be a list", hint=self.help)
        if len(items) > LIST_ITEMS_MAX:
            raise LimitExceeded(f"{self.name} has {len(items)} items, more than {LIST_ITEMS_MAX}")
        return [self._check_one(item, now) for item in items]

    def _check_one(self, value: Any, now: datetime) -> Any:
        match self.kind:
            case Kind.BOOLEAN:
                if not isinstance(value, bool):
                    raise InvalidInput(f"{self.name} must be true or false", hint=self.help)
                return value
            case Kind.INTEGER | Kind.NUMBER:
                return self._check_number(value)
            case Kind.JSON:
                return value
            case Kind.INSTANT:
                return parse_instant(self.name, value, now)
            case Kind.ID | Kind.TEXT:
                return self._check_text(value)

    def _check_number(self, value: Any) -> int | float:
        whole = self.kind is Kind.INTEGER
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise InvalidInput(f"{self.name} must be a {'whole number' if whole else 'number'}", hint=self.help)
        if not math.isfinite(value):
            raise InvalidInput(f"{self.name} cannot be {value}: it is a finite number", hint=self.help)
        least, most = self.minimum, self.maximum
        if (least is not None and value < least) or (most is not None and value > most):
            bounds = " and ".join(
                text
                for text in (
                    None if least is None else f"at least {_plain(least)}",
                    None if most is None else f"at most {_plain(most)}",
                )
                if text
            )
            raise InvalidInput(f"{self.name} cannot be {value}: it is {bounds}", hint=self.help)
        return value

    def _check_text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidInput(f"{self.name} must be a text", hint=self.help)
        try:
            size = len(value.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidInput(f"{self.name} cannot be written as UTF-8: it has lone surrogates") from None
        if self.kind is Kind.ID:
            # SESSION/SUBMISSION is two ids and a slash; ids derived from others are longer.
            most = 2 * ID_BYTES_MAX + 64
            if not value or size > most:
                raise InvalidInput(f"{self.name} must have 1 to {most} bytes, not {size}", hint=self.help)
            if any(ord(character) < 32 or ord(character) == 127 for character in value):
                raise InvalidInput(f"{self.name} has control characters: {value!r:.100}", hint=self.help)
        elif size > self.bytes_max:
            raise LimitExceeded(f"{self.name} has {size} bytes, more than {self.bytes_max}", hint=self.help)
        elif "\x00" in value:
            raise InvalidInput(f"{self.name} has a NUL character", hint=self.help)
        if self.choices and value not in self.choices:
            raise InvalidInput(f'{self.name} cannot be "{value:.60}"', hint=f"one of: {', '.join(self.choices)}")
        return value


def _plain(number: float) -> str:
    """Return a bound as people write it: whole where it is, never with an exponent."""
    return str(int(number)) if number == int(number) else f"{number:g}"


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_instant(name: str, value: Any, now: datetime) -> datetime:
    """Return the aware UTC instant that *value* names.

    Raises:
        InvalidInput: it names none.
    """
    hint = "an instant with its zone (2026-05-01T12:00:00Z), a date, or a length of time ago (30m, 2h, 7d)"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"{name} has no time zone", hint=hint)
        return value.astimezone(UTC)
    if not isinstance(value, str) or not value or len(value) > 64:
        raise InvalidInput(f"{name} must be an instant", hint=hint)
    if value[-1] in _UNITS and value[:-1].isascii() and value[:-1].replace(".", "", 1).isdigit():
        seconds = float(value[:-1]) * _UNITS[value[-1]]
        if seconds > 1e10:
            raise InvalidInput(f'{name} cannot be "{value}": that is too long ago', hint=hint)
        try:
            return datetime.fromtimestamp(now.timestamp() - seconds, UTC)
        except (ValueError, OverflowError, OSError):
            raise InvalidInput(f'{name} cannot be "{value}": that is too long ago', hint=hint) from None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(f'{name} cannot be "{value}"', hint=hint) from None
    if found.tzinfo is None:
        if len(value) > 10:
            raise InvalidInput(f'{name} cannot be "{value}": it has no time zone', hint=hint)
        return found.replace(tzinfo=UTC)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f'{name} cannot be "{value}": out of range', hint=hint) from None


@dataclass(frozen=True, slots=True)
class Example:
    """A command line as a person types it, and what it is for."""

    command: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A question or an act."""

    # As people type it: one word or two ("db upgrade").
    name: str
    summary: str
    # "module:function"; the function takes an Asked and returns a Reply.
    reader: str
    payload: Schema
    parameters: tuple[Parameter, ...] = ()
    details: str = ""
    examples: tuple[Example, ...] = ()
    # It changes something.
    acts: bool = False
    # The flag without which it only looks; None where it always acts.
    acts_with: str | None = None
    database: Database = Database.READ
    # An act that plans without doing; the plan is made by the code that does it.
    dry_run: bool = False
    audit: Audit = Audit.NONE
    # Refused without --reason on a production database.
    needs_reason: bool = False
    # May run long: transports show progress.
    long: bool = False

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter *name*, None where there is none."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)

    def changes(self, params: Mapping[str, Any]) -> bool:
        """Return whether a call with *params* changes anything."""
        if not self.acts or params.get("dry_run"):
            return False
        return self.acts_with is None or bool(params.get(self.acts_with))

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON schema of its parameters."""
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    def payload_fields(self) -> frozenset[str]:
        """Return the names of all fields that its payload may have, with dots into objects and lists of objects."""
        return frozenset(_fields(self.payload, ""))


def _fields(schema: Schema, prefix: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path
        yield from _fields(inner.get("items", inner), f"{path}.")
