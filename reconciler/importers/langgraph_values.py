"""Values of LangGraph checkpoints, decoded as data.

Source: the serializer of langgraph-checkpoint 4.3. It writes objects as msgpack extensions that name a class and its
arguments. Nothing is ever constructed here: the classes of an allow-list become dictionaries, everything else becomes a
mark that says what was there. Pickled and encrypted values are refused. Depth and size are bounded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from reconciler.importers.foreign_database import VALUE_BYTES_MAX
from reconciler.importers.reading import JSON_DEPTH_MAX, too_deep

# Module and class: what a checkpoint's messages are made of.
_PREFIX: Final = "langchain_core.messages."
_CLASSES: Final = {
    "HumanMessage": "human",
    "HumanMessageChunk": "human",
    "AIMessage": "ai",
    "AIMessageChunk": "ai",
    "ToolMessage": "tool",
    "ToolMessageChunk": "tool",
    "FunctionMessage": "tool",
    "SystemMessage": "system",
    "SystemMessageChunk": "system",
    "ChatMessage": "chat",
    "RemoveMessage": "remove",
}
_ROLES: Final = {
    "user": "human",
    "human": "human",
    "assistant": "ai",
    "ai": "ai",
    "tool": "tool",
    "system": "system",
    "developer": "system",
}
# The extensions whose payload is (module, class, arguments, ...).
_OBJECTS: Final = frozenset({0, 1, 2, 3, 4, 5})
_NESTING_MAX: Final = 32


class NotDecoded(ValueError):
    """The value can't be decoded as data; the text says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message, as data. ``kind`` is human, ai, tool, system, chat or remove; ``digest`` is over all of it."""

    kind: str
    fields: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that is no plain value and no message: what it was, in words."""

    what: str


class Decoder:
    """Decodes the values of one session; a message that stands in every snapshot is decoded once."""

    def __init__(self) -> None:
        self._seen: dict[bytes, Message | Opaque] = {}
        self._depth = 0

    def typed(self, kind: str | None, data: bytes | None) -> Any:
        """Return the value of a column with its type.

        Raises:
            NotDecoded: it is pickled, encrypted, damaged, too deep or too large.
        """
        if kind in (None, "null", "empty") or data is None:
            return None
        if len(data) > VALUE_BYTES_MAX:
            raise NotDecoded(f"the value has {len(data)} bytes")
        if kind == "msgpack":
            return self._msgpack(data)
        if kind == "json":
            return self._json(data)
        if kind in ("bytes", "bytearray"):
            return data
        if kind == "pickle":
            raise NotDecoded("the value is pickled, and nothing here unpickles")
        raise NotDecoded(f'the value is of the type "{str(kind)[:60]}"')

    def json_value(self, value: Any) -> Any:
        """Return a JSON value with the messages in it recognised."""
        if isinstance(value, list):
            return [self.json_value(item) for item in value]
        if isinstance(value, dict):
            path = value.get("id")
            if value.get("lc") in (1, 2) and isinstance(path, list) and path and isinstance(path[-1], str):
                fields = value.get("kwargs")
                kind = _CLASSES.get(path[-1]) if path[:1] in (["langchain_core"], ["langchain"]) else None
                if kind is None or not isinstance(fields, dict):
                    return Opaque(".".join(str(part) for part in path)[:200])
                return _message(kind, fields)
            return {key: self.json_value(item) for key, item in value.items()}
        return value

    def _json(self, data: bytes) -> Any:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise NotDecoded(f"the value is no JSON: {error}"[:200]) from None
        if too_deep(value):
            raise NotDecoded(f"the value is nested deeper than {JSON_DEPTH_MAX} levels")
        return self.json_value(value)

    def _msgpack(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(
                data, ext_hook=self._extension, strict_map_key=False, raw=False, unicode_errors="surrogateescape"
            )
        except NotDecoded:
            raise
        except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException) as error:
            raise NotDecoded(f"the value is no msgpack: {type(error).__name__} {error}"[:200]) from None

    def _extension(self, code: int, data: bytes) -> Any:
        if code not in _OBJECTS:
            return Opaque(f"extension {code} of {len(data)} bytes")
        key = hashlib.sha256(data).digest()
        known = self._seen.get(key)
        if known is None:
            if self._depth >= _NESTING_MAX:
                raise NotDecoded(f"objects are nested deeper than {_NESTING_MAX} levels")
            self._depth += 1
            try:
                known = self._object(self._msgpack(data))
            finally:
                self._depth -= 1
            self._seen[key] = known
        return known

    def _object(self, value: Any) -> Message | Opaque:
        if not isinstance(value, list) or len(value) < 2:
            return Opaque("an object without a class")
        module, name = value[0], value[1]
        fields = value[2] if len(value) > 2 else None
        if (
            isinstance(module, str)
            and module.startswith(_PREFIX)
            and isinstance(name, str)
            and isinstance(fields, dict)
        ):
            kind = _CLASSES.get(name)
            if kind is not None:
                return _message(kind, fields)
        return Opaque(f"{str(module)[:100]}.{str(name)[:100]}")


def messages_of(value: Any) -> list[Message | Opaque] | None:
    """Return the messages of a channel's value; None where it is no list of messages."""
    items = value if isinstance(value, list) else [value]
    found: list[Message | Opaque] = []
    for item in items:
        if isinstance(item, Message | Opaque):
            found.append(item)
        elif isinstance(item, dict) and isinstance(role := item.get("role", item.get("type")), str):
            kind = _ROLES.get(role)
            if kind is None:
                return None
            found.append(_message(kind, item))
        elif isinstance(item, str):
            # A bare text is what a caller may give for a person's message.
            found.append(_message("human", {"content": item}))
        elif isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and item[0] in _ROLES:
            found.append(_message(_ROLES[item[0]], {"content": item[1]}))
        else:
            return None
    if not found or not any(isinstance(item, Message) for item in found):
        return None if found else []
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON can hold it; what it can't hold is named."""
    if depth > JSON_DEPTH_MAX // 2:
        return {"$opaque": "nested too deep"}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Message):
        return {"$message": value.kind, **plain(value.fields, depth + 1)}
    if isinstance(value, Opaque):
        return {"$opaque": value.what}
    return {"$opaque": type(value).__name__}


def _message(kind: str, fields: dict[str, Any]) -> Message:
    if kind == "chat":
        kind = _ROLES.get(str(fields.get("role")), "chat")
    whole = json.dumps(plain(fields), sort_keys=True, default=repr).encode("utf-8", "surrogatepass")
    return Message(kind, fields, hashlib.sha256(whole).hexdigest())
