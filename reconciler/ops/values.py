"""How stored values stand in payloads: instants, JSON texts, tokens, texts cut to size. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from reconciler.core.states import Outcome, SessionOrigin, SubmissionStatus
from reconciler.core.unreadable import UnreadableInstant
from reconciler.errors import InvalidInput


def instant(value: datetime | None) -> str | None:
    """Return an instant as RFC 3339 text in UTC, microseconds and Z."""
    if value is None or isinstance(value, UnreadableInstant):
        return None
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# Words that a column holds one of; another one is no program's of ours.
_WORDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "status": frozenset(SubmissionStatus),
        "origin": frozenset(SessionOrigin),
        "outcome": frozenset(Outcome),
    }
)


def known_word(column: str, value: Any) -> str | None:
    """Return a stored word where the column has such a one, else None."""
    return value if value in _WORDS[column] else None


def unreadable_in(row: Mapping[Any, Any], *, json_columns: Iterable[str] = ()) -> str | None:
    """Return what of a stored row can't be read, in words; None where all can."""
    found = [f'{name} holds "{value.text:.60}"' for name, value in row.items() if isinstance(value, UnreadableInstant)]
    for name, words in _WORDS.items():
        value = row.get(name)
        if value is not None and value not in words:
            found.append(f'{name} holds "{value!s:.60}"')
    for name in json_columns:
        try:
            json.loads(row[name] or "null")
        except ValueError:
            found.append(f'{name} holds "{row[name]!s:.60}"')
    return ", ".join(found) or None


def texts(stored: str | None) -> list[str]:
    """Return a stored JSON array of texts."""
    if not stored:
        return []
    found = json.loads(stored)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def parsed(stored: str | None) -> Any:
    """Return a stored JSON value; None where there is none."""
    return None if stored is None else json.loads(stored)


def to_token(value: Mapping[str, Any]) -> str:
    """Return *value* as one word that a person can copy and a URL can carry."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def from_token(token: str, name: str) -> dict[str, Any]:
    """Return what `to_token` packed.

    Raises:
        InvalidInput: it is no such word.
    """
    try:
        found = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
        if not isinstance(found, dict):
            raise TypeError("no object")
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise InvalidInput(f"cannot read the {name} given", hint=f"give the {name} of an earlier answer") from None
    return found


def text_of_stored(stored: str, chars: int) -> str:
    """Return what people would read of a payload (JSON text, perhaps cut off), a little more than *chars* at most.

    Texts that stand under the usual names are gathered in order, whatever program wrote them; "" where there are none.
    """
    try:
        found = json.loads(stored)
    except (ValueError, RecursionError):
        # Cut inside, or nested too deep: the texts that are whole before that.
        return " ".join(json.loads(text) for text in _WHOLE_TEXT.findall(stored))[: chars + 1]
    pieces: list[str] = []
    length = 0
    for piece in _texts_in(found, depth=0):
        pieces.append(piece)
        length += len(piece)
        if length > chars:
            break
    return " ".join(pieces)[: chars + 1]


_WHOLE_TEXT: Final = re.compile(r'"(?:text|thinking|content)":("(?:[^"\\]|\\.)*")')

# Where the formats known here keep what was said; anything else is structure.
_TEXT_KEYS: Final = ("text", "thinking", "errorMessage", "error", "summary", "prompt")
_INNER_KEYS: Final = ("message", "content", "payload", "result", "data", "parts")
_CALL_KEYS: Final = ("name", "toolName")
_DEPTH_MAX: Final = 6


def _texts_in(value: Any, *, depth: int) -> Iterable[str]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item, depth=depth + 1)
    elif isinstance(value, dict):
        for key in _TEXT_KEYS:
            found = value.get(key)
            if isinstance(found, str) and found.strip():
                yield found
        for key in _CALL_KEYS:
            if isinstance(value.get(key), str) and any(name in value for name in ("input", "arguments", "args")):
                arguments = next(value[name] for name in ("input", "arguments", "args") if name in value)
                yield f"{value[key]}({arguments if isinstance(arguments, str) else json.dumps(arguments)})"
                break
        for key in _INNER_KEYS:
            if key in value:
                yield from _texts_in(value[key], depth=depth + 1)
