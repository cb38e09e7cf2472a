"""JSON by a faster library, with exactly the results of the standard one; where that isn't certain, there is none.

The standard library's decoder and `core.canonical` say what a line means and how it is stored. What is answered here is
the same value and the same text, byte for byte; whatever the faster library takes otherwise, or not at all, is refused,
and the caller asks the slower one. Tests compare both over generated and over real lines. Knows nothing of lines or
formats.

The faster encoder writes UTF-8. Turning that into escapes, by whatever the standard library has, took as long as its
own encoder, so that only what is all ASCII is written here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

# Outside of it the libraries write floats differently (1e16 and 1e+16).
_POSITIONAL_MIN: Final = 1e-4
_POSITIONAL_MAX: Final = 1e16


class OddFloat(float):
    """A float that the libraries write differently. Equal to its value; the faster encoder takes no subclass."""

    __slots__ = ()


class NoFastAnswer(Exception):
    """The faster library refuses the value, or may take it otherwise than the standard one."""


def parsed_float(text: str) -> float:
    """Return a JSON number's value, marked where the faster encoder must not write it."""
    value = float(text)
    size = abs(value)
    return value if _POSITIONAL_MIN <= size < _POSITIONAL_MAX or size == 0.0 else OddFloat(value)


def _refuse(value: object) -> Any:
    raise NoFastAnswer(type(value).__name__)


# Numbers of any length are exact in both; of equal keys the last one counts in both, at the first one's place.
_decode: Final = msgspec.json.Decoder(float_hook=parsed_float).decode
_encode: Final = msgspec.json.Encoder(order="sorted", enc_hook=_refuse).encode
# UnicodeDecodeError is a ValueError, integers beyond 64 bits are an OverflowError.
_REFUSALS: Final = (msgspec.MsgspecError, NoFastAnswer, ValueError, TypeError, OverflowError, RecursionError)


def decoded(data: bytes) -> Any:
    """Return the value of UTF-8 JSON.

    Raises:
        NoFastAnswer: it may be no JSON, or JSON that the standard decoder takes in its own way.
    """
    try:
        return _decode(data)
    except _REFUSALS as error:
        raise NoFastAnswer(str(error)) from None


def canonical_ascii(value: object) -> str:
    """Return the canonical JSON of a value whose floats all came through `parsed_float`.

    Raises:
        NoFastAnswer: the libraries may write it differently, or it holds something beyond ASCII.
    """
    try:
        data = _encode(value)
    except _REFUSALS as error:
        raise NoFastAnswer(str(error)) from None
    if b"\x7f" in data:
        data = data.replace(b"\x7f", b"\\u007f")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise NoFastAnswer("it holds something beyond ASCII") from None
