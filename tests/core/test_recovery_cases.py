"""Incidents from public reports, as small sessions: the states they must be given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.classifier import inspect_session
from reconciler.core.model import SessionEntry

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "recovery_cases.json"


def _cases() -> list[Any]:
    if not CASES.exists():
        missing = pytest.mark.skip(reason=f"the shared cases are not beside the checkout: no {CASES.name}")
        return [pytest.param(None, id="recovery_cases", marks=missing)]
    return [pytest.param(case, id=case["id"]) for case in json.loads(CASES.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("case", _cases())
def test_an_incident_gets_the_state_it_should_have_had(case: dict[str, Any]) -> None:
    entries = [
        SessionEntry(**{**entry, "tool_call_ids": tuple(entry.get("tool_call_ids", ()))}) for entry in case["entries"]
    ]
    inspection = inspect_session(entries, case["leaf_entry_id"], case["submission_id"], case["current_attempt_id"])
    expected = case["expect"]
    assert expected["state"] == inspection.state.value
    assert expected["unresolved_tool_calls"] == list(inspection.unresolved_tool_calls)
    assert expected["integrity"] == (inspection.integrity is not None)
