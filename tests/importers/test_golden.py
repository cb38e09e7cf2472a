"""What `inspect` says of the sample sessions, word for word.

The answers stand in ``golden/``. After a change that is meant, run with RECONCILER_UPDATE_GOLDEN=1 and read the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from reconciler.service.inspect_files import inspect_paths

SESSIONS = Path(__file__).resolve().parents[2] / "examples" / "sessions"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name for path in SESSIONS.glob("*.jsonl"))


def answer(name: str) -> dict[str, Any]:
    payload = inspect_paths([str(SESSIONS / name)], all_prompts=True)
    for file in payload["files"]:
        file["file"] = Path(file["file"]).name
    return payload


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_session_is_inspected_as_it_was(name: str) -> None:
    golden = GOLDEN / f"{name}.json"
    found = json.dumps(answer(name), indent=2, sort_keys=True) + "\n"
    if os.environ.get("RECONCILER_UPDATE_GOLDEN") == "1":
        golden.write_text(found, encoding="utf-8")
    assert golden.read_text(encoding="utf-8") == found


def test_every_golden_answer_belongs_to_a_sample() -> None:
    assert {f"{name}.json" for name in NAMES} == {path.name for path in GOLDEN.iterdir()}


def test_the_samples_show_all_four_states_damage_and_a_stop_by_a_person() -> None:
    submissions = [s for name in NAMES for file in answer(name)["files"] for s in file["submissions"]]
    assert {"absent", "completed", "continuable", "uncertain"} == {s["state"] for s in submissions}
    assert {None, "missing_parent"} == {s["integrity"] for s in submissions}
    assert {None, "user"} == {s["stopped_by"] for s in submissions}
    assert {"torn_line", "missing_parent"} == {
        problem["code"] for name in NAMES for file in answer(name)["files"] for problem in file["problems"]
    }
