"""A small JSON-schema check: the words that `reconciler.ops.shapes` uses, no more, so that a stray field is a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_KNOWN = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "minimum",
    "maximum",
    "format",
    "minLength",
    "maxLength",
    "maxItems",
    "description",
    "default",
}


def faults(value: Any, schema: Mapping[str, Any], where: str = "$") -> list[str]:
    """Return what in *value* is not as *schema* says."""
    unknown = set(schema) - _KNOWN
    if unknown:
        return [f"{where}: the schema has unknown words {sorted(unknown)}"]
    found: list[str] = []
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is(value, kind) for kind in kinds):
            return [f"{where}: {value!r:.80} is no {' or '.join(kinds)}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r:.80} is not one of {schema['enum']}")
    if "minimum" in schema and isinstance(value, int | float) and value < schema["minimum"]:
        found.append(f"{where}: {value} is below {schema['minimum']}")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, inner in value.items():
            if name in properties:
                found += faults(inner, properties[name], f"{where}.{name}")
            elif isinstance(extra := schema.get("additionalProperties", True), Mapping):
                found += faults(inner, extra, f"{where}.{name}")
            elif not extra:
                found.append(f"{where}: {name} is not declared")
    if isinstance(value, list) and "items" in schema:
        for place, item in enumerate(value):
            found += faults(item, schema["items"], f"{where}[{place}]")
    return found


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])
