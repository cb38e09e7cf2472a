"""JSON schemas of every question and act, made from the registry: docs/schemas, written by `tests.support.pages`.

What is published is open: an answer may get further fields, and readers ignore what they don't know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from reconciler.core.hints import MAX_FOLLOWUP_HINTS
from reconciler.ops.entry import Entry
from reconciler.ops.registry import REGISTRY

FOLDER: Final = "docs/schemas"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Final[Mapping[str, Any]] = {"type": "string"}

HINT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "tool": _TEXT,
        "trigger": {"type": "object", "properties": {"field": _TEXT, "value": {}}, "required": ["field", "value"]},
        "message": _TEXT,
    },
    "required": ["tool", "trigger", "message"],
}
ERROR: Final[Mapping[str, Any]] = {
    "$schema": _DIALECT,
    "title": "An error, of any verb",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {**_TEXT, "description": "stable: match on it"},
                "message": {**_TEXT, "description": "the thing and the reason; its words may change"},
                "detail": {"description": "values behind it, or null"},
                "hint": {"type": ["string", "null"], "description": "the way out"},
            },
            "required": ["code", "message", "detail", "hint"],
        }
    },
    "required": ["error"],
}


def schema_of(entry: Entry) -> dict[str, Any]:
    """Return the schema of an entry's answer; its parameters stand under ``$defs``."""
    answer = opened(entry.payload)
    answer["properties"] = {
        **answer.get("properties", {}),
        "followUp": {"type": "array", "maxItems": MAX_FOLLOWUP_HINTS, "items": HINT},
    }
    return {
        "$schema": _DIALECT,
        "title": f"reconciler {entry.name} --json",
        "description": f"{entry.summary}.",
        **answer,
        "$defs": {"parameters": entry.input_schema()},
    }


def opened(schema: Any) -> Any:
    """Return *schema* without what forbids further fields."""
    if isinstance(schema, Mapping):
        return {
            key: opened(value)
            for key, value in schema.items()
            if not (key == "additionalProperties" and value is False)
        }
    return [opened(value) for value in schema] if isinstance(schema, list) else schema


def files() -> dict[str, str]:
    """Return every file of the folder: its path from the root of the checkout, and its text."""
    found = {"error": ERROR} | {entry.name.replace(" ", "-"): schema_of(entry) for entry in REGISTRY.values()}
    return {f"{FOLDER}/{name}.json": json.dumps(schema, indent=2) + "\n" for name, schema in sorted(found.items())}


def write(root: Path) -> None:
    """Write the folder, and take away what is no longer made."""
    made = files()
    (root / FOLDER).mkdir(exist_ok=True)
    for path in (root / FOLDER).glob("*.json"):
        if f"{FOLDER}/{path.name}" not in made:
            path.unlink()
    for name, text in made.items():
        (root / name).write_text(text, encoding="utf-8")
