"""One pass over rows in every state that a crash may leave, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from reconciler.service.reconcile import Judge, PassReport, reconcile_once
from tests.support.scenes import Scene, result, said, turn


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


def run_pass(engine: Engine, **options: object) -> PassReport:
    judge = options.pop("judge", Judge(connected_for_s=lambda: 3600.0))
    return reconcile_once(engine, judge=judge, jitter=lambda: 0.0, **options)  # type: ignore[arg-type]


def test_a_finished_answer_is_settled_completed_and_becomes_the_leaf(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1")))
    attempt = scene.running()
    report = run_pass(scene.engine)
    row = scene.row()
    assert {"completed": 1, "failed": 0, "aborted": 0} == report.settled
    assert ("settled", "completed", "a1", "submission-settled:A") == (
        row.status,
        row.outcome,
        row.answer_entry_id,
        row.settlement_entry_id,
    )
    assert scene.session_row().leaf_entry_id == "submission-settled:A"
    assert scene.entry_rows()[-1].parent_id == "a1"
    assert scene.attempt_row(attempt).end_kind == "crashed"


def test_an_unresolved_call_is_requeued_with_a_plan_and_nothing_is_appended(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1", "tool_use", "t1", "t2"), result("r1", "t1")))
    scene.running()
    report = run_pass(scene.engine)
    row = scene.row()
    assert report.requeued == 1
    assert ("queued", "resume") == (row.status, row.decision_reason)
    assert '"mode":"repair_tools"' in row.plan
    assert len(scene.entry_rows()) == 3
