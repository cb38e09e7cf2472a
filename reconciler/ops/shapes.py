"""JSON schemas of the payloads, put together from a few words. Additive only: a field never changes its meaning."""

from __future__ import annotations

from typing import Any, Final

Shape = dict[str, Any]

TEXT: Final[Shape] = {"type": "string"}
WHOLE: Final[Shape] = {"type": "integer"}
COUNT: Final[Shape] = {"type": "integer", "minimum": 0}
NUMBER: Final[Shape] = {"type": "number"}
FLAG: Final[Shape] = {"type": "boolean"}
INSTANT: Final[Shape] = {"type": "string", "format": "date-time"}
ANY: Final[Shape] = {}


def maybe(shape: Shape) -> Shape:
    """Return *shape*, or null."""
    kind = shape.get("type")
    if kind is None:
        return shape
    kinds = [*kind, "null"] if isinstance(kind, list) else [kind, "null"]
    whole = {**shape, "type": kinds}
    if "enum" in shape:
        whole["enum"] = [*shape["enum"], None]
    return whole


def words(*values: str) -> Shape:
    """Return a text that is one of *values*."""
    return {"type": "string", "enum": list(values)}


def listing(item: Shape) -> Shape:
    """Return a list of *item*."""
    return {"type": "array", "items": item}


def shape(optional: tuple[str, ...] = (), /, **fields: Shape) -> Shape:
    """Return an object with *fields*, all there but the *optional* ones, and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def with_optional(base: Shape, /, **fields: Shape) -> Shape:
    """Return the object *base* with further fields that may be there."""
    return {**base, "properties": {**base["properties"], **fields}}
