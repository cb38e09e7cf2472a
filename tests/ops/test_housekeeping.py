"""The verbs of keeping house through the one door: what they say, what they leave in the audit, what they refuse."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.entrypoints.cli import main
from reconciler.ops.asking import Desk
from reconciler.store.engine import begin
from reconciler.store.schema import audit, metadata, sessions, settled_ids, submissions
from tests.ops.conftest import Front
from tests.support.scenes import Scene


def _dump(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
        }


def _audits(engine: Engine) -> list[tuple[str, str | None, str | None]]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.select(audit.c.verb, audit.c.session_id, audit.c.reason))]


@pytest.fixture
def old(engine: Engine) -> Scene:
    """Give two sessions that were settled long ago, one by one."""
    scene = Scene(engine)
    long_ago = scene.now() - timedelta(days=400)
    for name in ("a", "b"):
        scene.session(name)
        scene.submission(name, "p", status="settled", outcome="completed", settled_at=long_ago, reconcile_at=None)
    return scene


def test_prune_counts_first_and_then_removes_and_is_audited(front: Front, engine: Engine, old: Scene) -> None:
    before = _dump(engine)
    tried = front.get("prune", dry_run=True)
    assert (2, before) == (tried["total"], _dump(engine))
    done = front.get("prune", reason="room")
    rows = {row["kind"]: row["rows"] for row in done["kinds"]}
    assert (2, 2, True) == (rows["completed"], done["total"], done["complete"])
    assert [("prune", None, "room")] == _audits(engine)
    # Nothing is left to do: nothing is audited.
    assert 0 == front.get("prune")["total"]
    assert 1 == len(_audits(engine))


def test_how_long_things_are_kept_comes_from_the_settings_and_may_be_given(front: Front, old: Scene) -> None:
    front.desk.work_settings = {"keep_completed_days": 500.0}
    assert 0 == front.get("prune", dry_run=True)["total"]
    assert 2 == front.get("prune", dry_run=True, keep_completed_days=399)["total"]
    assert 0 == front.get("prune", dry_run=True, keep_completed_days=0)["total"]
    assert "invalid_input" == front.refused("prune", keep_completed_days=-1)["code"]


def test_a_limit_ends_a_prune_and_it_says_so(front: Front, old: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reconciler.service.prune._PIECE_FIRST", 1)
    assert not front.get("prune", limit=1)["complete"]
    assert front.get("prune")["complete"]


def test_forgetting_names_its_submission_and_is_audited(front: Front, engine: Engine, old: Scene) -> None:
    assert "conflict" == front.refused("prune forget", submission="a/p")["code"]
    front.get("prune")
    before = _dump(engine)
    assert "would" == front.get("prune forget", submission="a/p", dry_run=True)["result"]
    assert before == _dump(engine)
    # More than one has the bare id.
    assert "ambiguous_id" == front.refused("prune forget", submission="p")["code"]
    done = front.get("prune forget", submission="a/p", reason="again")
    assert ("done", "completed") == (done["result"], done["outcome"])
    assert ("prune forget", "a", "again") in _audits(engine)
    with engine.connect() as conn:
        assert ["b"] == list(conn.execute(sa.select(settled_ids.c.session_id)).scalars())
    assert "not_found" == front.refused("prune forget", submission="a/p")["code"]


def test_explain_still_knows_the_outcome_of_what_was_pruned(front: Front, old: Scene) -> None:
    front.get("prune")
    found = front.get("explain", submission="a/p")
    assert ("settled", "completed") == (found["status"], found["outcome"])
    assert found["pruned_at"] is not None


def test_fsck_repairs_with_an_audit_row_for_each_and_leaves_the_rest_to_a_person(front: Front, engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("a")
    scene.submission("a", "p", reconcile_at=None)
    scene.session("b", leaf="lost")
    with begin(engine) as conn:
        conn.execute(sa.update(sessions).where(sessions.c.id == "a").values(last_ticket=0))
    answer = front.ask("fsck")
    assert 3 == answer.exit_code
    assert ["ticket_behind", "leaf_lost", "waits_for_ever"] == sorted(
        (one["check"] for one in answer.payload["findings"]), key=["ticket_behind", "leaf_lost", "waits_for_ever"].index
    )
    before = _dump(engine)
    tried = front.ask("fsck", repair=True, dry_run=True)
    assert (3, before) == (tried.exit_code, _dump(engine))
    done = front.ask("fsck", repair=True, reason="after the restore")
    assert (3, 2, 1) == (done.exit_code, done.payload["repaired"], done.payload["left"])
    assert [("fsck", "a", "after the restore")] * 2 == _audits(engine)
    with engine.connect() as conn:
        results = [json.loads(text)["repaired"] for text in conn.execute(sa.select(audit.c.result)).scalars()]
    assert {"ticket_behind", "waits_for_ever"} == set(results)
    (left,) = front.ask("fsck").payload["findings"]
    assert ("leaf_lost", "person") == (left["check"], left["state"])


def test_fsck_only_looks_on_a_production_database_and_needs_a_reason_to_repair(front: Front, desk: Desk) -> None:
    desk.production = True
    assert front.ask("fsck").error is None
    assert front.ask("fsck", repair=True, dry_run=True).error is None
    assert "invalid_input" == front.refused("fsck", repair=True)["code"]


def test_fsck_tells_where_it_goes_on(front: Front, engine: Engine) -> None:
    scene = Scene(engine)
    for name in ("a", "b", "c"):
        scene.session(name)
    first = front.get("fsck", limit=2)
    assert ("b", 2) == (first["after"], first["checked"]["sessions"])
    rest = front.get("fsck", after="b")
    assert (None, 1) == (rest["after"], rest["checked"]["sessions"])
    assert {"I1", "I10"} <= set(first["shown"]) | set(first["not_shown"])
    assert not set(first["shown"]) & set(first["not_shown"])
    assert {f"I{number}" for number in range(1, 21)} == set(first["shown"]) | set(first["not_shown"])


def _call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_line_has_prune_and_prune_forget(
    engine: Engine, database_url: str, old: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--database", database_url)
    code, out, _ = _call(capsys, "prune", "--dry-run", *at)
    assert (0, True) == (code, "would remove 2 rows" in out)
    assert 0 == _call(capsys, *at, "prune")[0]
    code, out, _ = _call(capsys, "prune", "forget", "a/p", "--dry-run", *at)
    assert (0, True) == (code, "would: forgot" in out)
    assert 2 == _call(capsys, "prune", "--dry-run", "forget", "a/p", *at)[0]
    code, out, _ = _call(capsys, "fsck", *at)
    assert (0, True) == (code, "checked 2 sessions with 0 submissions" in out)


def test_the_command_line_takes_a_filter_for_an_id(
    engine: Engine, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(engine)
    for name in ("a", "b"):
        scene.session(name)
        scene.submission(name, "p", held_at=scene.now(), held_reason="write_failed", reconcile_at=None)
    at = ("--database", database_url)
    assert 1 == _call(capsys, "settle", "failed", *at)[0]
    code, out, _ = _call(capsys, "settle", "failed", "--status", "held", "--dry-run", *at)
    assert (0, True, True) == (code, "would: settle of 2 submissions" in out, "a/p" in out)
    code, out, _ = _call(capsys, "settle", "failed", "--status", "held", "--reason", "lost", *at)
    assert (0, True) == (code, "done 2" in out)
    with engine.connect() as conn:
        assert {"failed"} == set(conn.execute(sa.select(submissions.c.outcome)).scalars())
    code, out, _ = _call(capsys, "operations", "list", *at)
    assert (0, True) == (code, "settle" in out)


def test_hostile_texts_in_filters_are_refused_or_find_nothing(front: Front, old: Scene) -> None:
    for text in ("'; DROP TABLE submissions; --", "%", "\U0001f600", "a" * 400):
        found: Any = front.get("abort", owner=text, dry_run=True)
        assert 0 == found["operation"]["total"]
    assert 0 == front.get("abort", owner="\x1b[31m", dry_run=True)["operation"]["total"]
    assert front.refused("abort", owner="a" * 10_000, dry_run=True)["code"] in ("invalid_input", "limit_exceeded")
    # PostgreSQL's texts cannot hold it, SQLite's can.
    answer = front.ask("abort", owner="\x00", dry_run=True)
    assert answer.payload["error"]["code"] == "invalid_input" if answer.error else answer.exit_code == 0
