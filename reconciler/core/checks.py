"""Checks of what callers pass: a typed error that names the argument, whatever was passed in its place.

Knows nothing of who calls. Values are shown short: a message never carries a megabyte, or characters that no terminal
can print.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Final

from reconciler.errors import InvalidInput, LimitExceeded

# A reason or a note that people read: the same bound for every face.
TEXT_BYTES_MAX: Final = 4096
_SHOWN_CHARACTERS_MAX: Final = 80
_SHOWN_BITS_MAX: Final = 256


def shown(value: object) -> str:
    """Return a short printable text of *value*, for a message."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        # Thousands of digits have no ``repr``.
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        text = ascii(value[:_SHOWN_CHARACTERS_MAX])
        return text if len(value) <= _SHOWN_CHARACTERS_MAX else f"{text}… ({len(value)} characters)"
    if value is None or isinstance(value, int | float):
        return repr(value)
    # Its own repr may be of any size, or raise.
    return f"a value of type {type(value).__name__}"


def require_text(value: object, what: str) -> str:
    """Return *value*, a text that people read.

    Raises:
        InvalidInput: no text, empty, longer than `TEXT_BYTES_MAX` in UTF-8, no UTF-8, or with a NUL; LimitExceeded is
            such.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"cannot use {shown(value)} as {what}: it is a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"cannot use {shown(value)} as {what}: it is no UTF-8") from None
    if not size:
        raise InvalidInput(f"cannot use an empty text as {what}", hint="leave it out")
    if size > TEXT_BYTES_MAX:
        raise LimitExceeded(
            f"cannot use a text of {size} bytes as {what}: at most {TEXT_BYTES_MAX} are kept", hint="shorten it"
        )
    if "\0" in value:
        raise InvalidInput(f"cannot use {shown(value)} as {what}: it has a NUL character")
    return value


def require_number(value: object, what: str, least: float, most: float, *, above: bool = False) -> float:
    """Return *value*, a finite number from *least* (with *above*: above it) to *most*, as a float.

    Raises:
        InvalidInput: it is none.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared before it is made a float: an integer may be too large for one.
    inside = is_number and (least < value if above else least <= value) and value <= most  # type: ignore[operator]
    if not inside or not isfinite(value):  # type: ignore[arg-type]
        limits = f"above {least:g} and at most {most:g}" if above else f"from {least:g} to {most:g}"
        raise InvalidInput(f"cannot use {shown(value)} as {what}: a number {limits}")
    return float(value)  # type: ignore[arg-type]


def require_whole(value: object, what: str, least: int, most: int) -> int:
    """Return *value*, a whole number from *least* to *most*.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"cannot use {shown(value)} as {what}: a whole number from {least} to {most}")
    return value


def items_of(value: object, what: str, most: int) -> Iterator[object]:
    """Yield the items of *value*, at most *most*, whatever kind of collection or generator it is.

    Raises:
        InvalidInput: it is nothing to take items from: no iterable, or a text, bytes or a mapping.
        LimitExceeded: it has more.
    """
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(f"cannot use {shown(value)} as {what}: it is a list")
    items = iter(value)
    yield from islice(items, most)
    if next(items, _END) is not _END:
        raise LimitExceeded(f"cannot take more than {most} {what} in one call", hint="give them in pieces")


_END: Final = object()
