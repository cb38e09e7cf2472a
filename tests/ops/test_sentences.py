"""What people read of dry runs and of how things stand: each said once, and true."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.core.jobs import Admits, Job
from reconciler.core.slots import parse_cron
from reconciler.ops import operations as module
from reconciler.ops.registry import REGISTRY
from reconciler.ops.render import Style, to_text
from reconciler.service.instances import this_instance
from reconciler.service.liveness import this_process
from reconciler.store.engine import begin
from reconciler.store.instances import beat_instance, stop_instance
from tests.ops.conftest import SESSIONS, Front
from tests.ops.test_acts import ANSWERED, DAMAGED, TOOLS, TOOLS_SESSION, UNCERTAIN

# Every verb with a dry run, called so that it has something to do.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("db upgrade", {}),
    ("submit", {"session": "native", "submission": "new", "payload": 1}),
    ("submit", {"again": ANSWERED}),
    ("import", {"files": [str(SESSIONS)]}),
    ("once", {}),
    ("abort", {"submission": TOOLS}),
    ("abort", {"status": "queued"}),
    ("retry", {"status": "held"}),
    ("settle", {"submission": UNCERTAIN, "outcome": "failed"}),
    ("settle", {"status": "queued", "outcome": "aborted"}),
    ("release", {"submission": DAMAGED, "repair_leaf": "317d2424-aecf-4783-995a-4417ba0fafb0"}),
    ("resolve", {"session": TOOLS_SESSION, "call": "call_2_0", "as": "happened"}),
    ("move-leaf", {"session": TOOLS_SESSION, "entry": TOOLS}),
    ("fsck", {"repair": True}),
    ("prune", {}),
    ("prune forget", {"submission": ANSWERED}),
    ("export", {"session": TOOLS_SESSION, "repaired": True}),
    ("refine open", {"subject": "skill", "baseline": 0.5}),
    ("refine gate", {"subject": "open", "edit_id": "e", "score": 0.7}),
    ("refine close", {"subject": "open"}),
    ("refine forgive", {"subject": "open", "edit_ids": ["bad"]}),
    ("schedule pause", {"job": "nightly"}),
    ("schedule resume", {"job": "paused"}),
    ("schedule run", {"job": "nightly"}),
    ("operations resume", {"operation": "OPEN"}),
    ("operations cancel", {"operation": "OPEN"}),
]


def test_every_verb_with_a_dry_run_is_read_below() -> None:
    assert {name for name, entry in REGISTRY.items() if entry.parameter("dry_run")} == {name for name, _ in CALLS}


@pytest.fixture
def busy(crashed: Front, monkeypatch: pytest.MonkeyPatch) -> Front:
    """Give a desk where every act has something to do."""
    crashed.ask("once")
    crashed.get("refine open", subject="open", baseline=0.5)
    crashed.ask("refine gate", subject="open", edit_id="bad", score=0.1)
    crashed.desk.jobs = {
        name: Job(name, parse_cron("0 3 * * *"), UTC, admits=Admits(name, "go")) for name in ("nightly", "paused")
    }
    crashed.get("schedule pause", job="paused")
    return crashed


def _text(front: Front, name: str, params: dict[str, Any]) -> str:
    answer = front.ask(name, **params)
    assert answer.error is None, answer.error
    return to_text(answer, Style())


@pytest.mark.parametrize(("name", "params"), CALLS, ids=[f"{name}-{place}" for place, (name, _) in enumerate(CALLS)])
def test_a_dry_run_says_would_once_and_in_words(
    busy: Front, monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any]
) -> None:
    if name == "prune forget":
        assert busy.get("prune", keep_completed_days=1e-9, keep_unacknowledged_days=1e-9)["total"]
    if "operation" in params:
        with monkeypatch.context() as patched:
            patched.setattr("reconciler.ops.operations._work_off", lambda asked, found: module._operation(asked, found))

            busy.ask("abort", status="queued", reason="x")
        (found,) = busy.get("operations list", status="open")["operations"]
        params = {"operation": found["operation_id"]}
    text = _text(busy, name, {**params, "dry_run": True})
    assert text.strip()
    for line in text.splitlines():
        assert len(re.findall(r"\bwould\b", line)) <= 1, line
        assert "None" not in line


def _beat(engine: Engine, *, name: str, kind: str = "daemon") -> None:
    with begin(engine) as conn:
        beat_instance(conn, replace(this_instance(kind, beat_s=10.0, here=this_process(), owner=name), id=name))


def test_an_idle_daemon_does_not_look_stalled(crashed: Front, engine: Engine) -> None:
    assert "daemon's last beat" not in _text(crashed, "status", {})
    assert "last pass with work  none yet" in _text(crashed, "status", {})
    crashed.ask("once")
    _beat(engine, name="d1")
    _beat(engine, name="r1", kind="runner")
    status = crashed.get("status")
    assert status["daemon_beat_at"] is not None
    text = _text(crashed, "status", {})
    assert re.search(r"daemon's last beat +\d+m?s ago", text)
    assert re.search(r"last pass with work +\S+ ago, 12 rows in", text)
    with begin(engine) as conn:
        stop_instance(conn, "d1")
    assert None is crashed.get("status")["daemon_beat_at"]
