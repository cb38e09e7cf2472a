"""The public views, on both databases: the columns that are promised, no payloads, and the same words as the claim."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.service.runner import Runner
from reconciler.store import views
from reconciler.store.dialect import db_now
from reconciler.store.schema import attempts, sessions, submissions
from tests.ops.conftest import Front


def _all(engine: Engine, view: sa.TableClause) -> list[dict[str, Any]]:
    with engine.connect() as conn:
        return [dict(row) for row in conn.execute(sa.select(view)).mappings()]


@pytest.mark.parametrize("name", list(views.PUBLIC_VIEWS))
def test_a_view_has_the_columns_that_are_promised_in_their_order(engine: Engine, name: str) -> None:
    promised = [column.name for column in views.PUBLIC_VIEWS[name].columns]
    with engine.connect() as conn:
        found = list(conn.execute(sa.text(f"SELECT * FROM {name}")).keys())
    assert promised == found
    assert all(column.meaning for column in views.PUBLIC_VIEWS[name].columns)


def test_no_view_shows_what_was_said(crashed: Front, engine: Engine) -> None:
    crashed.get("submit", session="secret", submission="prompt", payload={"text": "the secret word is xyzzy"})
    crashed.ask("once")
    for view in views.PUBLIC_VIEWS:
        assert "xyzzy" not in repr(_all(engine, getattr(views, view)))
    for name, by_dialect in views.VIEWS.items():
        for text in by_dialect.values():
            assert "entry_payloads" not in text, name
            assert ".error " not in text or name == "v_schedule", name


def test_what_the_view_calls_claimable_is_what_a_claim_hands_out(
    crashed: Front, engine: Engine, database_url: str
) -> None:
    crashed.get("submit", session="native", submission="behind", payload=1)
    crashed.ask("once")
    crashed.get("abort", submission="0617cd91")
    with engine.connect() as conn:
        now = db_now(conn)
    shown = {
        (row["session_id"], row["submission_id"])
        for row in _all(engine, views.v_pending)
        if row["claimable_from"] is not None and row["claimable_from"] <= now
    }
    with Runner(database_url, owner="r", beat_by_itself=False) as runner:
        claimed = {(attempt.session_id, attempt.submission_id) for attempt in runner.claim(limit=100)}
    assert shown == claimed
    assert ("native", "never-begun") in claimed
    assert ("native", "behind") not in claimed


def test_what_is_stuck_says_why_and_since_when(crashed: Front, engine: Engine, database_url: str) -> None:
    crashed.ask("once")
    with Runner(database_url, owner="gone", lease_s=15, beat_by_itself=False) as runner:
        (attempt,) = runner.claim()
        with engine.begin() as conn:
            late = db_now(conn) - timedelta(seconds=5)
            conn.execute(
                sa.update(attempts).where(attempts.c.attempt_id == attempt.attempt_id).values(lease_expires_at=late)
            )
        found = {row["submission_id"]: row for row in _all(engine, views.v_stuck)}
        ended = crashed.get("status")["lease_ended"]
    assert "lease_ended" == found[attempt.submission_id]["why"]
    assert "gone" == found[attempt.submission_id]["owner"]
    assert "held" == found["e781b1bd-eaab-4954-9feb-dc0e61f7f897"]["why"]
    assert {"held", "lease_ended", "claimable"} == {row["why"] for row in found.values()}
    assert 1 == ended


def test_a_mirrored_session_with_its_advice_is_not_stuck(crashed: Front, engine: Engine) -> None:
    with engine.begin() as conn:
        conn.execute(sa.update(sessions).values(origin="mirrored"))
    assert [] == [row for row in _all(engine, views.v_pending) if row["claimable_from"] is not None]


def test_a_row_past_its_deadline_or_moved_under_is_not_claimable(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    with engine.begin() as conn:
        now = db_now(conn)
        conn.execute(
            sa.update(submissions)
            .where(submissions.c.id == "never-begun")
            .values(deadline_at=now - timedelta(seconds=1))
        )
        conn.execute(
            sa.update(sessions)
            .where(sessions.c.id == "029fd991-a72e-79ad-841b-f438b64bab7c")
            .values(leaf_moved_version=1000)
        )
    claimable = {row["submission_id"] for row in _all(engine, views.v_pending) if row["claimable_from"] is not None}
    assert not {"never-begun", "6fb18002"} & claimable
    assert "0617cd91" in claimable


def test_the_mode_of_a_plan_is_a_column(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    modes = {row["submission_id"]: row["plan_mode"] for row in _all(engine, views.v_decisions) if row["plan_mode"]}
    assert "repair_tools" == modes["6fb18002"]
    assert {"repair_tools", "redispatch", "fresh", "continue"} >= set(modes.values())
