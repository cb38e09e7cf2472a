"""The published JSON schemas: as the registry makes them, sound, and what real answers look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.ops.asking import Desk
from reconciler.ops.dispatch import ask
from reconciler.ops.registry import REGISTRY
from tests.queries import scene
from tests.support import json_schemas

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the extra session-reconciler[mcp]")

ROOT = Path(__file__).resolve().parents[2]


def test_the_published_schemas_are_as_the_registry_makes_them() -> None:
    made = json_schemas.files()
    written = {
        f"{json_schemas.FOLDER}/{path.name}": path.read_text(encoding="utf-8")
        for path in (ROOT / json_schemas.FOLDER).glob("*.json")
    }
    assert set(made) == set(written), "write them again: python -m tests.support.pages"
    stale = [name for name, text in made.items() if text != written[name]]
    assert [] == stale, "write them again: python -m tests.support.pages"


def _validator(name: str) -> Any:
    schema = json.loads((ROOT / json_schemas.FOLDER / f"{name.replace(' ', '-')}.json").read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    kind.check_schema(schema.get("$defs", {}).get("parameters", {}))
    return kind(schema)


@pytest.mark.parametrize("name", ["error", *REGISTRY])
def test_every_schema_is_a_sound_one_and_open_to_further_fields(name: str) -> None:
    schema = dict(_validator(name).schema)
    schema.pop("$defs", None)
    assert '"additionalProperties": false' not in json.dumps(schema)


def test_real_answers_and_errors_are_as_the_schemas_say(engine: Engine) -> None:
    scene.make(engine)
    desk = Desk(make_engine=lambda **_: engine, name_database=lambda: "the test database", operator="tess")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("status", {}),
        ("list", {"status": "all"}),
        ("show", {"session": "line"}),
        ("tail", {}),
        ("refine status", {}),
        ("refine history", {"subject": "skill"}),
        ("schedule list", {}),
        ("db check", {}),
        ("abort", {"submission": "e1", "dry_run": True}),
    ]
    for name, params in asked:
        payload = json.loads(json.dumps(ask(name, params, desk).payload))
        assert "error" not in payload, payload
        _validator(name).validate(payload)
        _validator(name).validate({**payload, "a field of a later version": 1})
    for name, params in (("explain", {"submission": "none"}), ("list", {"limit": 0}), ("nothing", {})):
        _validator("error").validate(json.loads(json.dumps(ask(name, params, desk).payload)))
