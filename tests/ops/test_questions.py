"""What operators ask, on both databases: every answer keeps its schema, writes nothing, and names what it means."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.states import Reason
from reconciler.ops.asking import Desk
from reconciler.store.schema import audit, metadata, submissions
from tests.ops.conftest import SESSIONS, Front

TOOLS = "6fb18002"
DAMAGED = "e781b1bd-eaab-4954-9feb-dc0e61f7f897"
UNCERTAIN = "267f7475"


def _dump(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    with engine.connect() as conn:
        return {
            table.name: sorted((tuple(row) for row in conn.execute(sa.select(table))), key=repr)
            for table in metadata.sorted_tables
        }


def test_an_empty_database_has_nothing_to_tell(front: Front) -> None:
    status = front.get("status")
    assert {"queued": 0, "running": 0, "waiting": 0, "settled": 0} == status["submissions"]
    assert {"submissions": [], "next_page": None} == front.get("list")
    assert [] == front.get("tail")["decisions"]


def test_status_counts_what_waits_and_what_is_done(crashed: Front) -> None:
    before = crashed.get("status")
    assert {"queued": 13, "running": 0, "waiting": 0, "settled": 0} == before["submissions"]
    assert 12 == before["due"]
    assert 1 == before["claimable"]
    crashed.ask("once")
    after = crashed.get("status")
    assert {"queued": 9, "running": 0, "waiting": 0, "settled": 4} == after["submissions"]
    assert (1, 1, 0) == (after["held"], after["quarantined_sessions"], after["due"])
    assert 12 == after["last_pass"]["scanned"]
    assert None is after["daemon_beat_at"]


def test_a_pass_answers_with_the_counts_of_the_contract_and_a_second_one_does_nothing(crashed: Front) -> None:
    dry = crashed.ask("once", dry_run=True)
    first = crashed.ask("once")
    second = crashed.ask("once")
    assert {"completed": 3, "failed": 0, "aborted": 1} == first.payload["settled"]
    assert (7, 1, 3) == (first.payload["requeued"], first.payload["held"], first.exit_code)
    assert dry.payload["settled"] == first.payload["settled"]
    assert (0, 0) == (second.payload["scanned"], second.exit_code)


def test_questions_and_dry_runs_write_nothing(crashed: Front, engine: Engine) -> None:
    before = _dump(engine)
    crashed.ask("status")
    crashed.ask("list", status="all")
    crashed.ask("explain", submission=TOOLS)
    crashed.ask("show", session="native")
    crashed.ask("tail")
    crashed.ask("once", dry_run=True)
    crashed.ask("abort", submission=TOOLS, dry_run=True)
    crashed.ask("settle", submission=UNCERTAIN, outcome="failed", dry_run=True)
    crashed.ask("submit", session="native", submission="second", payload=1, dry_run=True)
    crashed.ask("import", files=[str(SESSIONS)], dry_run=True)
    assert before == _dump(engine)


# --- list ------------------------------------------------------------------------------------------------------------


def _names(payload: dict[str, object]) -> list[str]:
    rows = payload["submissions"]
    assert isinstance(rows, list)
    return [row["submission_id"] for row in rows]


def test_pages_give_every_row_once_in_one_order(crashed: Front) -> None:
    crashed.ask("once")
    for status, sort in (("unsettled", "oldest"), ("settled", "newest"), ("all", "oldest"), ("all", "newest")):
        whole = _names(crashed.get("list", status=status, sort=sort, limit=1000))
        paged: list[str] = []
        page = None
        for _ in range(20):
            answer = crashed.get("list", status=status, sort=sort, limit=3, **({"page": page} if page else {}))
            paged += _names(answer)
            page = answer["next_page"]
            if page is None:
                break
        assert whole == paged
        assert len(set(whole)) == len(whole)


def test_a_page_belongs_to_the_filters_it_was_made_with(crashed: Front) -> None:
    page = crashed.get("list", limit=2)["next_page"]
    assert "other filters" in crashed.refused("list", limit=2, page=page, origin="native")["message"]
    assert "invalid_input" == crashed.refused("list", page="AAAA")["code"]
    assert "limit_exceeded" == crashed.refused("list", page="x" * 100_000)["code"]


def test_filters_find_what_they_name(crashed: Front) -> None:
    crashed.ask("once")
    assert [DAMAGED] == _names(crashed.get("list", status="held"))
    assert [DAMAGED] == _names(crashed.get("list", reason=Reason.INTEGRITY_HOLD.value))
    assert ["never-begun"] == _names(crashed.get("list", session="native"))
    assert 1 == len(_names(crashed.get("list", outcome="aborted")))
    assert [] == _names(crashed.get("list", status="all", since="2099-01-01"))
    assert 13 == len(_names(crashed.get("list", status="all", since="1h")))
    assert [] == _names(crashed.get("list", origin="mirrored"))
    assert [] == _names(crashed.get("list", owner="nobody"))


def test_what_is_stuck_is_found_among_many(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    assert [] == _names(crashed.get("list", status="overdue"))
    with engine.begin() as conn:
        long_ago = sa.text("'2020-01-01T00:00:00.000000Z'")
        at = long_ago if engine.dialect.name == "sqlite" else sa.text("timestamptz '2020-01-01'")
        conn.execute(sa.update(submissions).where(submissions.c.id == "never-begun").values(not_before=at))
    assert ["never-begun"] == _names(crashed.get("list", status="overdue"))
    assert ["never-begun"] == _names(crashed.get("list", status="stuck"))
    answer = crashed.ask("status")
    assert 1 == answer.payload["overdue"]
    triggers = [hint["trigger"] for hint in answer.payload["followUp"]]
    assert {"field": "overdue", "value": 1} in triggers


def test_hostile_texts_in_filters_find_nothing_and_break_nothing(crashed: Front) -> None:
    for text in ("' OR 1=1 --", "%", "\\", "a/b/c/d", "\u202e", "💥" * 10, "x" * 512, ";DROP TABLE submissions"):
        assert [] == _names(crashed.get("list", session=text))
        assert "not_found" == crashed.refused("explain", submission=text)["code"]
        assert "not_found" == crashed.refused("show", session=text)["code"]
    for text in ("", "\x00", "a\nb", "\x1b[31m", "x" * 5000, "\ud800"):
        assert "invalid_input" == crashed.refused("explain", submission=text)["code"]


# --- explain ---------------------------------------------------------------------------------------------------------


def test_explain_tells_past_and_future(crashed: Front) -> None:
    before = crashed.get("explain", submission=TOOLS)
    assert ("requeue", "resume", 10) == tuple(before["next"][name] for name in ("action", "reason", "gate"))
    assert "repair_tools" == before["plan"]["mode"]
    assert ["call_2_0", "call_2_1", "call_2_2"] == before["inspection"]["unresolved_tool_calls"]
    crashed.ask("once")
    after = crashed.get("explain", submission=TOOLS)
    assert ("wait", "decision_stands") == (after["next"]["action"], after["next"]["reason"])
    assert ["import", "requeue"] == [decision["action"] for decision in after["decisions"]]
    assert ["cd85aeef", TOOLS] == after["decisions"][-1]["evidence"]
    assert "repair_tools" == after["plan"]["mode"]
    assert before["inspection"] == after["inspection"]


def test_explain_of_what_is_settled_shows_what_decided(crashed: Front) -> None:
    crashed.ask("once")
    done = crashed.get("explain", submission="b64b06e5")
    assert ("settled", "completed", "completed") == (done["status"], done["outcome"], done["outcome_reason"])
    assert ("none", "1bc764d1") == (done["next"]["action"], done["inspection"]["deciding_entry_id"])


def test_explain_of_what_is_held_needs_a_person(crashed: Front) -> None:
    crashed.ask("once")
    answer = crashed.ask("explain", submission=DAMAGED)
    following = answer.payload["next"]
    assert (3, "hold", "integrity_hold") == (answer.exit_code, following["action"], following["reason"])
    # Its record is damaged: a release would be refused.
    assert {"settle"} == {hint["tool"] for hint in answer.payload["followUp"]}
    assert "missing_parent" == answer.payload["inspection"]["integrity"]


def test_a_near_miss_is_answered_with_the_nearest(crashed: Front) -> None:
    error = crashed.refused("explain", submission="6fb1800")
    assert f"029fd991-a72e-79ad-841b-f438b64bab7c/{TOOLS}" in error["hint"]
    assert 'did you mean "native"?' == crashed.refused("show", session="natve")["hint"]


def test_a_name_is_split_at_every_slash_and_must_mean_one(front: Front) -> None:
    for session, submission in (("a/b", "c"), ("a", "b/c"), ("x", "same"), ("y", "same"), ("z", "a/b/c")):
        front.get("submit", session=session, submission=submission, payload=0)
    error = front.refused("explain", submission="a/b/c")
    assert "ambiguous_id" == error["code"]
    assert 3 == len(error["detail"]["hits"])
    assert "c" == front.get("explain", submission="c", session="a/b")["submission_id"]
    assert "z" == front.get("explain", submission="a/b/c", session="z")["session_id"]
    assert "x" == front.get("explain", submission="x/same")["session_id"]
    assert "ambiguous_id" == front.refused("explain", submission="same")["code"]


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_draws_branches_and_marks_the_active_path(crashed: Front) -> None:
    shown = crashed.get("show", session="d0674fdb-b444-764b-855a-309b2e7d7b37")
    assert ["*", "| o", "* /", "*"] == [entry["graph"] for entry in shown["entries"]]
    assert ["toolu_02b"] == [call["call_id"] for call in shown["open_calls"]]
    assert "Restart the three staging workers." == shown["entries"][-1]["text"]


def test_show_of_a_damaged_session_needs_a_person(crashed: Front) -> None:
    answer = crashed.ask("show", session="5b1647f8-9685-7f4a-86c5-0affa5b73748")
    assert 3 == answer.exit_code
    assert "is missing" in answer.payload["damage"]


def test_texts_are_cut_or_kept_inside(crashed: Front) -> None:
    cut = crashed.get("show", session="029fd991-a72e-79ad-841b-f438b64bab7c", text_chars=10)
    assert ("I start wi", True) == (cut["entries"][0]["text"], cut["entries"][0]["text_cut"])
    crashed.desk.show_texts = False
    kept = crashed.get("show", session="029fd991-a72e-79ad-841b-f438b64bab7c")
    assert [None, None, None] == [entry["text"] for entry in kept["entries"]]


def test_only_the_newest_entries_are_shown(crashed: Front) -> None:
    shown = crashed.get("show", session="029fd991-a72e-79ad-841b-f438b64bab7c", entries=1)
    assert (1, 3, 2, None) == (len(shown["entries"]), shown["entry_count"], shown["left_out"], shown["damage"])


# --- tail ------------------------------------------------------------------------------------------------------------


def test_tail_shows_every_decision_once(crashed: Front) -> None:
    first = crashed.get("tail", limit=1000)
    assert 13 == len(first["decisions"])
    assert [] == crashed.get("tail", position=first["position"])["decisions"]
    crashed.ask("once")
    seen: list[tuple[str, int]] = []
    position = first["position"]
    for _ in range(10):
        answer = crashed.get("tail", position=position, limit=5)
        position = answer["position"]
        seen += [(row["submission_id"], row["number"]) for row in answer["decisions"]]
    assert 12 == len(seen)
    assert len(set(seen)) == len(seen)


def test_tail_of_a_session_shows_only_its_decisions(crashed: Front) -> None:
    rows = crashed.get("tail", session="native")["decisions"]
    assert [("never-begun", "admit")] == [(row["submission_id"], row["action"]) for row in rows]


# --- database, configuration -----------------------------------------------------------------------------------------


def test_the_schema_is_shown_and_compared(front: Front) -> None:
    current = front.get("db current")["schema"]
    assert current["found"] == current["needed"]
    answer = front.ask("db check")
    assert ([], 0) == (answer.payload["differences"], answer.exit_code)
    assert [] == front.get("db upgrade", dry_run=True)["applied"]


def test_a_table_changed_by_hand_is_noticed(
    database_factory: Callable[[], str], engine_factory: Callable[..., Engine]
) -> None:
    # A database of its own: the shared one is used by other tests.
    engine = engine_factory(database_factory())
    with engine.begin() as conn:
        conn.execute(sa.text("DROP VIEW v_passes"))
    answer = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "test")).ask("db check")
    assert 1 == answer.exit_code
    assert ["view v_passes is missing"] == answer.payload["differences"]


def test_a_schema_that_is_behind_is_told_with_the_way_out(
    database_factory: Callable[[], str], engine_factory: Callable[..., Engine]
) -> None:
    engine = engine_factory(database_factory())
    with engine.begin() as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "test"))
    answer = front.ask("status")
    assert (1, "0000", None) == (answer.exit_code, answer.payload["schema"]["found"], answer.payload["submissions"])
    assert ["db upgrade"] == [hint["tool"] for hint in answer.payload["followUp"]]
    assert "schema_mismatch" == front.refused("list")["code"]


def test_an_upgrade_is_audited_once(empty_database_url: str, engine_factory: Callable[..., Engine]) -> None:
    engine = engine_factory(empty_database_url, create=True)
    front = Front(
        Desk(
            make_engine=lambda **_: engine_factory(empty_database_url, create=True),
            name_database=lambda: "test",
            operator="ann",
        )
    )
    planned = front.get("db upgrade", dry_run=True)
    done = front.get("db upgrade")
    assert (planned["applied"], None, done["schema"]["needed"]) == (
        done["applied"],
        planned["schema"]["found"],
        done["schema"]["found"],
    )
    assert [] == front.get("db upgrade")["applied"]
    with engine.connect() as conn:
        assert [("db upgrade", "ann")] == [
            tuple(row) for row in conn.execute(sa.select(audit.c.verb, audit.c.operator))
        ]
