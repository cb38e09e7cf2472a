"""A value that other hands have made unreadable is one row's problem: the row is named, the others go on (I10)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.ops.render import Style, to_text
from reconciler.service.reconcile import reconcile_once
from reconciler.service.runner import Runner
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.schema import submissions
from tests.ops.conftest import Front

# A submission that waits for a runner, and another one in a session of its own.
BAD, SOUND = "never-begun", "sound"


@pytest.fixture
def scene(crashed: Front) -> Front:
    crashed.ask("once")
    crashed.get("submit", session="other", submission=SOUND, payload=1)
    return crashed


def spoil(engine: Engine, table: str, column: str, text: str, where: str) -> None:
    """Write what no program of ours writes."""
    with engine.begin() as conn:
        if not is_postgresql(engine):
            conn.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        changed = conn.execute(sa.text(f"UPDATE {table} SET {column} = :text WHERE {where}"), {"text": text})
        assert changed.rowcount >= 1


INSTANTS = ["admitted_at", "reconcile_at", "deadline_at", "held_at"]


def texts(engine: Engine) -> list[str]:
    """Return texts that are no instants here, some before and some behind all that are."""
    return ["infinity", "-infinity"] if is_postgresql(engine) else ["2026-05-01 00:00:00", "0bad"]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("column", INSTANTS)
def test_an_instant_that_cannot_be_read_is_one_rows_problem(
    scene: Front, engine: Engine, database_url: str, column: str, number: int
) -> None:
    text = texts(engine)[number]
    if column == "held_at":
        with engine.begin() as conn:
            held = {"held_at": db_now(conn), "held_reason": "held_by_operator", "not_before": None}
            conn.execute(sa.update(submissions).where(submissions.c.id == BAD).values(held))
    spoil(engine, "submissions", column, text, f"id = '{BAD}'")

    listed = scene.ask("list", limit=1_000)
    assert listed.error is None, listed.error
    rows = {row["submission_id"]: row for row in listed.payload["submissions"]}
    assert None is rows[SOUND]["unreadable"]
    assert f'{column} holds "{text}"' in rows[BAD]["unreadable"]
    assert (None, 3) == (rows[BAD][column], listed.exit_code)
    assert "damaged" in to_text(listed, Style())
    # Page by page it is met once, and hides nothing.
    pages, page = [], None
    for _ in range(50):
        answer = scene.ask("list", limit=1, page=page)
        assert answer.error is None, answer.error
        pages += [row["submission_id"] for row in answer.payload["submissions"]]
        page = answer.payload["next_page"]
        if page is None:
            break
    assert sorted(rows) == sorted(pages)

    for name, params in (
        ("status", {}),
        ("show", {"session": "native"}),
        ("show", {"session": "other"}),
        ("explain", {"submission": SOUND}),
        ("doctor", {}),
        ("tail", {}),
        ("prune", {"dry_run": True}),
        ("operations list", {}),
        ("abort", {"status": "queued", "dry_run": True}),
    ):
        answer = scene.ask(name, **params)
        assert answer.error is None, (name, answer.error)

    found = scene.ask("fsck")
    assert found.error is None, found.error
    (finding,) = [one for one in found.payload["findings"] if one["check"] == "unreadable" and column in one["found"]]
    assert ("native", BAD, "I10", "person") == tuple(
        finding[name] for name in ("session_id", "submission_id", "invariant", "state")
    )
    assert text in finding["found"]
    assert None is scene.ask("fsck", repair=True, reason="x").error

    # The others are claimed, and decided about.
    with Runner(database_url) as runner:
        claimed = {attempt.submission_id for attempt in runner.claim(100)}
    assert SOUND in claimed
    assert None is scene.ask("once", no_wait=True).error


@pytest.mark.parametrize(
    ("table", "column", "text", "where"),
    [
        ("submissions", "status", "weird", f"id = '{BAD}'"),
        ("submissions", "limits", "{bad", f"id = '{BAD}'"),
        ("submissions", "plan", "{bad", f"id = '{BAD}'"),
        ("submissions", "pending_calls", "{bad", f"id = '{BAD}'"),
        ("submissions", "entity_hints", "{bad", f"id = '{BAD}'"),
        ("sessions", "origin", "weird", "id = 'native'"),
        ("sessions", "created_at", "garbage", "id = 'native'"),
        ("entries", "tool_call_ids", "{bad", "session_id = '029fd991-a72e-79ad-841b-f438b64bab7c'"),
        ("entries", "created_at", "garbage", "session_id = '029fd991-a72e-79ad-841b-f438b64bab7c'"),
    ],
)
@pytest.mark.sqlite
def test_a_word_or_json_that_cannot_be_read_is_one_rows_problem(
    scene: Front, engine: Engine, database_url: str, table: str, column: str, text: str, where: str
) -> None:
    if is_postgresql(engine):
        pytest.skip("its CHECKs can't be switched off, and what it holds is told by the test above")
    spoil(engine, table, column, text, where)
    for name, params in (
        ("list", {}),
        ("list", {"status": "all"}),
        ("status", {}),
        ("show", {"session": "other"}),
        ("explain", {"submission": SOUND}),
        ("doctor", {}),
        ("once", {"dry_run": True}),
        ("once", {"no_wait": True}),
        ("prune", {"dry_run": True}),
        ("abort", {"status": "queued", "dry_run": True}),
    ):
        answer = scene.ask(name, **params)
        assert answer.error is None, (name, answer.error)
    for params in ({}, {"repair": True, "reason": "x"}):
        answer = scene.ask("fsck", **params)
        assert answer.error is None, answer.error
        assert any(
            one["check"] == "unreadable" and f"column {column} of its row in {table}" in one["found"]
            for one in answer.payload["findings"]
        )
    with Runner(database_url) as runner:
        assert SOUND in {attempt.submission_id for attempt in runner.claim(100)}


@pytest.mark.parametrize("text", ["{bad", "[]", '{"unknown": 1}', "null"])
def test_limits_that_cannot_be_read_are_held_and_not_claimed(
    scene: Front, engine: Engine, database_url: str, text: str
) -> None:
    spoil(engine, "submissions", "limits", text, f"id = '{BAD}'")
    with Runner(database_url) as runner:
        claimed = {attempt.submission_id for attempt in runner.claim(100)}
        assert (True, False) == (SOUND in claimed, BAD in claimed)
        # Left to a pass, which holds it: it is not offered again.
        assert [] == [one for one in runner.claim(100) if one.submission_id == BAD]
    report = reconcile_once(engine)
    assert 1 == report.held
    explained = scene.ask("explain", submission=BAD)
    assert (None, 3) == (explained.error, explained.exit_code)
    (shown,) = explained.payload["unreadable"]
    assert shown.startswith(f'limits holds "{text}"')
    with engine.connect() as conn:
        stored = conn.execute(sa.select(submissions).where(submissions.c.id == BAD)).one()
    assert ("queued", "inspection_error", True) == (stored.status, stored.held_reason, stored.held_at is not None)


def test_a_row_that_is_set_aside_is_named(scene: Front, engine: Engine) -> None:
    if is_postgresql(engine):
        pytest.skip("its CHECKs can't be switched off")
    spoil(engine, "submissions", "status", "weird", f"id = '{BAD}'")
    spoil(engine, "submissions", "reconcile_at", "2026-01-01T00:00:00.000000Z", f"id = '{BAD}'")
    answer = scene.ask("once", no_wait=True)
    assert (None, 3) == (answer.error, answer.exit_code)
    (row,) = answer.payload["set_aside_rows"]
    assert ("native", BAD) == (row["session_id"], row["submission_id"])
    assert "weird" in row["error"]
    assert f"set aside: native/{BAD}" in to_text(answer, Style())
    # Looked at again later, not at once: it keeps nobody waiting.
    assert 0 == scene.get("once", no_wait=True)["scanned"]


def test_an_act_on_a_row_that_cannot_be_read_names_it(scene: Front, engine: Engine) -> None:
    if is_postgresql(engine):
        pytest.skip("an infinite instant is no fault of an act")
    spoil(engine, "submissions", "held_at", "garbage", f"id = '{BAD}'")
    error = scene.refused("retry", submission=f"native/{BAD}")
    assert "row_unreadable" == error["code"]
    assert f'"native/{BAD}"' in error["message"]
    assert "garbage" in error["message"]
    assert "fsck" in error["hint"]


def test_what_holds_no_instant_is_never_pruned(scene: Front, engine: Engine) -> None:
    scene.get("settle", submission=SOUND, outcome="aborted", reason="x")
    spoil(engine, "submissions", "settled_at", texts(engine)[1], f"id = '{SOUND}'")
    scene.get("prune", keep_aborted_days=1e-9, keep_unacknowledged_days=1e-9)
    with engine.connect() as conn:
        assert SOUND in set(conn.execute(sa.select(submissions.c.id)).scalars())
