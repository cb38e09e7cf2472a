"""Bulk acts: what a filter selects is frozen, each member is acted on once, and a crash anywhere is gone on from."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.errors import DatabaseUnavailable
from reconciler.ops import operations as module
from reconciler.ops.asking import Desk
from reconciler.service.fsck import fsck
from reconciler.store import operations as store
from reconciler.store.engine import begin
from reconciler.store.schema import audit, decisions, metadata, operation_items, submissions
from tests.ops.conftest import Front
from tests.support.scenes import Scene, said, turn


def _dump(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
        }


def _retries(engine: Engine) -> list[int]:
    with engine.connect() as conn:
        query = sa.select(submissions.c.attempts_granted).order_by(submissions.c.session_id)
        return list(conn.execute(query).scalars())


@pytest.fixture
def scene(engine: Engine) -> Scene:
    """Give six sessions with one submission each, queued with a long backoff, the last of them held."""
    found = Scene(engine)
    later = found.now() + timedelta(hours=1)
    for number in range(6):
        found.session(f"s{number}", turn("A", said("half", "tool_use")))
        held: dict[str, Any] = {"held_at": found.now(), "held_reason": "write_failed"} if number == 5 else {}
        found.submission(
            f"s{number}",
            "A",
            not_before=None if held else later,
            reconcile_at=None,
            decision_action="hold" if held else "requeue",
            decision_reason="write_failed" if held else "provider_retry",
            decision_revision=0,
            decision_version=2,
            decision_count=0,
            **held,
        )
    return found


def test_a_filter_is_previewed_and_then_carried_out_by_the_same_code(
    front: Front, engine: Engine, scene: Scene
) -> None:
    before = _dump(engine)
    tried = front.get("retry", status="queued", reason="the provider is back", dry_run=True)
    assert before == _dump(engine)
    assert ("would", 6, 6) == (tried["result"], tried["operation"]["total"], len(tried["operation"]["items"]))
    assert ["would"] * 5 + ["refused"] == [item["status"] for item in tried["operation"]["items"]]
    answer = front.ask("retry", status="queued", reason="the provider is back")
    done = answer.payload
    # The held one needs a person.
    assert 3 == answer.exit_code
    assert ("done", 5, 0, 1, 0) == (
        done["result"],
        *(done["operation"][name] for name in ("done", "already", "refused", "pending")),
    )
    assert [1, 1, 1, 1, 1, 0] == _retries(engine)
    assert [("s5", "conflict")] == [(item["session_id"], item["code"]) for item in done["operation"]["items"]]
    shown = front.get("operations show", operation=done["operation"]["operation_id"])
    assert ("done", {"status": "queued"}, "the provider is back", "tess") == (
        shown["status"],
        shown["filter"],
        shown["reason"],
        shown["operator"],
    )
    with engine.connect() as conn:
        audits = conn.execute(sa.select(audit.c.session_id, audit.c.reason, audit.c.parameters)).all()
    assert {None, "s0", "s1", "s2", "s3", "s4"} == {row.session_id for row in audits}
    assert {"the provider is back"} == {row.reason for row in audits}
    assert {shown["operation_id"]} == {json.loads(row.parameters)["operation"] for row in audits}


def test_what_is_done_already_is_success(front: Front, scene: Scene) -> None:
    assert "done" == front.get("abort", session="s1", reason="x")["result"]
    again = front.ask("abort", session="s1", reason="x")
    assert (0, "already", 1) == (
        again.exit_code,
        again.payload["result"],
        again.payload["operation"]["already"],
    )


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"status": "held"}, ["s5"]),
        ({"with_reason": "write_failed"}, ["s5"]),
        ({"session": "s2"}, ["s2"]),
        ({"until": "2000-01-01"}, []),
        ({"owner": "nobody"}, []),
        ({"origin": "mirrored"}, []),
        ({"since": "1h", "status": "queued", "session": "s3"}, ["s3"]),
    ],
)
def test_filters_select_what_the_list_shows(
    front: Front, scene: Scene, params: dict[str, Any], expected: list[str]
) -> None:
    tried = front.get("abort", **params, dry_run=True)
    assert expected == [item["session_id"] for item in tried["operation"]["items"]]
    asked = {"reason" if name == "with_reason" else name: value for name, value in params.items()}
    listed = front.get("list", **({"status": "unsettled"} | asked))
    assert expected == [row["session_id"] for row in listed["submissions"]]


def test_an_empty_filter_is_refused(front: Front, engine: Engine, scene: Scene) -> None:
    before = _dump(engine)
    for verb in ("abort", "retry", "release"):
        assert "nothing_selected" == front.refused(verb)["code"]
    assert "nothing_selected" == front.refused("settle", outcome="failed")["code"]
    assert "invalid_input" == front.refused("abort", submission="A", status="held")["code"]
    assert "invalid_input" == front.refused("abort", status="unsettled")["code"]
    assert "invalid_input" == front.refused("settle", submission="s1/A")["code"]
    assert "invalid_input" == front.refused("release", status="held", repair_leaf="x")["code"]
    assert before == _dump(engine)


def test_settle_takes_its_outcome_alone_beside_a_filter(front: Front, scene: Scene) -> None:
    # As a command line gives it: one word.
    done = front.get("settle", submission="failed", status="held", reason="lost")
    assert ("done", 1) == (done["result"], done["operation"]["done"])
    assert ("settled", "failed") == (scene.row("s5", "A").status, scene.row("s5", "A").outcome)


def test_a_filter_that_selects_nothing_does_nothing(front: Front, engine: Engine, scene: Scene) -> None:
    before = _dump(engine)
    answer = front.ask("abort", owner="nobody")
    assert (0, "already", 0) == (
        answer.exit_code,
        answer.payload["result"],
        answer.payload["operation"]["total"],
    )
    assert before == _dump(engine)


def _crash_at(monkeypatch: pytest.MonkeyPatch, name: str, place: int, error: Exception) -> None:
    calls = iter(range(1000))
    real: Callable[..., Any] = getattr(store, name)

    def failing(*given: Any, **more: Any) -> Any:
        if next(calls) == place:
            raise error
        return real(*given, **more)

    monkeypatch.setattr(store, name, failing)


@pytest.mark.parametrize("place", range(6))
def test_a_crash_at_any_item_is_gone_on_from_and_nothing_is_done_twice(
    front: Front, engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, "finish_item", place, DatabaseUnavailable("gone"))
        answer = front.ask("retry", status="queued", reason="x")
        assert 75 == answer.exit_code
    # What was acted on was noted; the act that could not be noted was taken back.
    assert [1] * place + [0] * (6 - place) == _retries(engine)
    (found,) = front.get("operations list", status="open")["operations"]
    assert (place, 6 - place) == (found["done"], found["pending"])
    operation_id = found["operation_id"]
    before = _dump(engine)
    assert "would" == front.get("operations resume", operation=operation_id, dry_run=True)["result"]
    assert before == _dump(engine)
    done = front.ask("operations resume", operation=operation_id)
    assert ("done", 5, 1) == (done.payload["status"], done.payload["done"], done.payload["refused"])
    assert [1, 1, 1, 1, 1, 0] == _retries(engine)
    assert "already" == front.get("operations resume", operation=operation_id)["result"]
    assert [] == [one for one in fsck(engine).findings if one.invariant == "operations"]


def test_a_crash_while_members_are_frozen_leaves_nothing_that_runs(
    front: Front, engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    with monkeypatch.context() as patched:
        _crash_at(patched, "add_members", 2, DatabaseUnavailable("gone"))
        assert 75 == front.ask("retry", status="queued", reason="x").exit_code
    assert [0] * 6 == _retries(engine)
    (found,) = front.get("operations list")["operations"]
    assert "preparing" == found["status"]
    assert "conflict" == front.refused("operations resume", operation=found["operation_id"])["code"]
    assert "cancelled" == front.get("operations cancel", operation=found["operation_id"])["status"]


def test_membership_is_frozen_when_the_act_is_given(
    front: Front, engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, "finish_item", 0, DatabaseUnavailable("gone"))
        front.ask("abort", status="queued", reason="x")
    scene.session("late", turn("A"))
    scene.submission("late", "A")
    (found,) = front.get("operations list")["operations"]
    done = front.get("operations resume", operation=found["operation_id"])
    assert (6, 6) == (done["total"], done["done"])
    assert scene.row("late", "A").abort_requested_at is None


def test_a_cancelled_operation_leaves_the_rest_alone(
    front: Front, engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, "finish_item", 2, DatabaseUnavailable("gone"))
        front.ask("retry", status="queued", reason="x")
    (found,) = front.get("operations list")["operations"]
    operation_id = found["operation_id"]
    assert "would" == front.get("operations cancel", operation=operation_id, dry_run=True)["result"]
    assert "done" == front.get("operations cancel", operation=operation_id, reason="wrong")["result"]
    assert "already" == front.get("operations cancel", operation=operation_id)["result"]
    assert "conflict" == front.refused("operations resume", operation=operation_id)["code"]
    assert [1, 1, 0, 0, 0, 0] == _retries(engine)


def test_an_operation_that_is_cancelled_meanwhile_stops_and_takes_its_act_back(
    front: Front, engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outside(asked: Any, operation_id: str, item: Any) -> bool:
        if item.number == 4:
            with begin(engine) as conn:
                store.cancel(conn, operation_id)
        return done(asked, operation_id, item)

    done = module._do
    monkeypatch.setattr(module, "_do", outside)
    answer = front.ask("retry", status="queued", reason="x")
    assert (3, "cancelled", 3) == (
        answer.exit_code,
        answer.payload["operation"]["status"],
        answer.payload["operation"]["done"],
    )
    assert [1, 1, 1, 0, 0, 0] == _retries(engine)


def test_two_who_resume_share_the_items(
    front: Front, engine: Engine, second_engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, "finish_item", 0, DatabaseUnavailable("gone"))
        front.ask("retry", status="queued", reason="x")
    (found,) = front.get("operations list")["operations"]
    other = Front(Desk(make_engine=lambda **_: second_engine, name_database=lambda: "the same", operator="otto"))
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(lambda one: one.ask("operations resume", operation=found["operation_id"]), [front, other])
        )
    assert {"done"} == {answer.payload["status"] for answer in answers}
    assert [1, 1, 1, 1, 1, 0] == _retries(engine)
    with engine.connect() as conn:
        granted = conn.execute(sa.select(sa.func.count()).where(decisions.c.action == "retry")).scalar_one()
        assert 0 == conn.execute(sa.select(sa.func.count()).where(operation_items.c.status == "pending")).scalar_one()
    assert 5 == granted


def test_items_are_shown_page_by_page_and_an_unknown_operation_is_answered_with_the_nearest(
    front: Front, scene: Scene
) -> None:
    done = front.ask("retry", status="queued", reason="x").payload
    operation_id = done["operation"]["operation_id"]
    first = front.get("operations show", operation=operation_id, limit=4)
    rest = front.get("operations show", operation=operation_id, after=4)
    assert list(range(1, 7)) == [item["number"] for item in (*first["items"], *rest["items"])]
    assert [6] == [
        item["number"] for item in front.get("operations show", operation=operation_id, items="refused")["items"]
    ]
    refused = front.refused("operations show", operation=operation_id[:-2])
    assert ("not_found", f'did you mean "{operation_id}"?') == (refused["code"], refused["hint"])
