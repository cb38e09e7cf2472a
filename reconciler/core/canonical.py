"""Canonical JSON: one text for one value, so that digests and stored payloads compare.

ASCII escapes (NUL and lone surrogates stay storable on every database), sorted keys, no blanks, no NaN. Knows
nothing of what the values mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from reconciler.errors import InvalidInput

# Deeper text could be written but, on some stacks, not be read back: the interpreter's limit is near.
JSON_DEPTH_MAX: Final = 500

_ENCODER: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
_CONTAINERS: Final = (dict, list, tuple)


def _prepared() -> Callable[[object], str]:
    """Return an encoder of values that can't hold themselves, made once: `encode` makes its inner one at each call."""
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:  # pragma: no cover - an interpreter without the compiled encoder
        return _ENCODER.encode
    inner = make(None, _ENCODER.default, json.encoder.encode_basestring_ascii, None, ":", ",", True, False, False)
    return lambda value: "".join(inner(value, 0))


_encode: Final = _prepared()


def canonical_json(value: object) -> str:
    """Return *value* as canonical JSON: None, booleans, numbers, text, lists (tuples too) and dicts with text keys.

    Equal values of equal types give the same text; 1 and 1.0 are different texts.

    Raises:
        InvalidInput: *value* holds something that JSON hasn't (NaN, infinities, objects, keys that are no text), holds
            itself, nests deeper than `JSON_DEPTH_MAX`, or has an integer of thousands of digits.
    """
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"cannot write the value as JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    # After the encoder, which has found that the value does not hold itself.
    _check_shape(value)
    return text


def canonical_json_parsed(value: object) -> str:
    """Return *value*, which a JSON parser made and whose depth is known to be bounded, as canonical JSON.

    The same text as `canonical_json`, without looking at each part again: what a parser made has text keys.

    Raises:
        InvalidInput: *value* holds a float that JSON hasn't.
    """
    try:
        return _encode(value)
    except ValueError as error:
        raise InvalidInput(f"cannot write the value as JSON: {error}") from None


def content_digest(value: object) -> str:
    """Return the SHA-256 of *value* as canonical JSON, in hex.

    Raises:
        InvalidInput: as `canonical_json`.
    """
    return text_digest(canonical_json(value))


def text_digest(canonical: str) -> str:
    """Return the SHA-256 of a text that is canonical JSON already, in hex."""
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _check_shape(value: object) -> None:
    # Level by level instead of by recursion. The encoder writes keys that are numbers, booleans or None as text: two
    # values would then have one text, and what is read back would be another value.
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(JSON_DEPTH_MAX):
        if not level:
            return
        below: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                for key in container:
                    if not isinstance(key, str):
                        raise InvalidInput(
                            f"cannot write the value as JSON: the key {key!r} is no text", hint="make its keys text"
                        )
            items = container.values() if isinstance(container, dict) else container
            below += [item for item in items if isinstance(item, _CONTAINERS)]
        level = below
    if level:
        raise _too_deep()


def _too_deep() -> InvalidInput:
    return InvalidInput(f"cannot write the value as JSON: it is nested deeper than {JSON_DEPTH_MAX} levels")
