"""What operators do: each act once, audited with its reason, tried without doing it, refused with what can be done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits, NewEntry
from reconciler.ops.asking import Desk
from reconciler.service.runner import Runner
from reconciler.store.schema import attempts, audit, decisions, entries, metadata, sessions, submissions
from tests.ops.conftest import Front

TOOLS = "6fb18002"
TOOLS_SESSION = "029fd991-a72e-79ad-841b-f438b64bab7c"
DAMAGED = "e781b1bd-eaab-4954-9feb-dc0e61f7f897"
DAMAGED_SESSION = "5b1647f8-9685-7f4a-86c5-0affa5b73748"
UNCERTAIN = "267f7475"
# Its writer does not make calls durable before it runs them.
UNLOGGED = "5f8fb4f3-911f-49d3-9916-8a03ff134bab"
ANSWERED = "b64b06e5"


def _audits(engine: Engine) -> list[tuple[str, str, str | None]]:
    with engine.connect() as conn:
        return [
            tuple(row)
            for row in conn.execute(sa.select(audit.c.verb, audit.c.operator, audit.c.reason).order_by(audit.c.at))
        ]


def _row(engine: Engine, submission_id: str) -> Any:
    with engine.connect() as conn:
        return conn.execute(sa.select(submissions).where(submissions.c.id == submission_id)).one()


def _dump(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
        }


@pytest.fixture
def live(front: Front, database_url: str) -> Iterator[Front]:
    """Give the desk with one submission that a runner works on."""
    with Runner(database_url, owner="runner-1") as runner:
        runner.submit("busy", "work", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append(
            [NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("call",), payload="thinking")]
        )
        yield front


ACTS: list[tuple[str, dict[str, Any]]] = [
    ("abort", {"submission": TOOLS}),
    ("settle", {"submission": UNCERTAIN, "outcome": "failed"}),
    ("settle", {"submission": UNCERTAIN, "outcome": "completed"}),
    ("move-leaf", {"session": TOOLS_SESSION, "entry": TOOLS}),
    ("resolve", {"session": TOOLS_SESSION, "call": "call_2_1", "as": "happened"}),
    ("release", {"submission": DAMAGED, "repair_leaf": "317d2424-aecf-4783-995a-4417ba0fafb0"}),
    ("submit", {"again": ANSWERED}),
]


@pytest.mark.parametrize(("verb", "params"), ACTS, ids=[f"{verb}-{place}" for place, (verb, _) in enumerate(ACTS)])
def test_a_dry_run_says_what_the_act_does_and_writes_nothing(
    crashed: Front, engine: Engine, verb: str, params: dict[str, Any]
) -> None:
    crashed.ask("once")
    before = _dump(engine)
    tried = crashed.get(verb, **params, reason="because", dry_run=True)
    assert before == _dump(engine)
    audits = len(_audits(engine))
    done = crashed.get(verb, **params, reason="because")
    assert [(verb, "tess", "because")] == _audits(engine)[audits:] or verb == "submit"
    assert audits + 1 == len(_audits(engine))
    assert {**done, "result": "would", "dry_run": True} == tried or verb == "submit"


def test_an_abort_is_carried_out_by_the_next_pass_and_twice_is_success(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    assert "done" == crashed.get("abort", submission=TOOLS, reason="wrong")["result"]
    assert "already" == crashed.get("abort", submission=TOOLS)["result"]
    crashed.ask("once")
    explained = crashed.get("explain", submission=TOOLS)
    assert ("aborted", "abort_requested") == (explained["outcome"], explained["outcome_reason"])
    assert "already" == crashed.get("abort", submission=TOOLS)["result"]
    assert 1 == sum(verb == "abort" for verb, _, _ in _audits(engine))


def test_an_abort_never_makes_finished_work_unfinished(crashed: Front) -> None:
    crashed.get("abort", submission=ANSWERED)
    crashed.ask("once")
    assert "completed" == crashed.get("explain", submission=ANSWERED)["outcome"]


# --- retry -----------------------------------------------------------------------------------------------------------


def _push_back(engine: Engine, submission_id: str) -> None:
    with engine.begin() as conn:
        found = conn.execute(sa.select(submissions.c.not_before).where(submissions.c.id == submission_id)).scalar_one()
        conn.execute(
            sa.update(submissions)
            .where(submissions.c.id == submission_id)
            .values(not_before=found + timedelta(hours=1))
        )


def test_a_retry_ends_the_backoff_and_grants_an_attempt_once(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    _push_back(engine, TOOLS)
    assert "done" == crashed.get("retry", submission=TOOLS, reason="the provider is back")["result"]
    assert "already" == crashed.get("retry", submission=TOOLS)["result"]
    assert 1 == _row(engine, TOOLS).attempts_granted
    crashed.ask("once")
    assert "already" == crashed.get("retry", submission=TOOLS)["result"]
    row = _row(engine, TOOLS)
    assert (1, "queued", "resume") == (row.attempts_granted, row.status, row.decision_reason)
    assert TOOLS in [item["submission_id"] for item in crashed.get("list")["submissions"] if item["claimable_from"]]


def test_what_is_settled_is_never_retried_and_the_refusal_names_the_way(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    error = crashed.refused("retry", submission=ANSWERED)
    session = _row(engine, ANSWERED).session_id
    assert ("already_settled", f"submit its payload anew: reconciler submit --again {session}/{ANSWERED}") == (
        error["code"],
        error["hint"],
    )
    again = crashed.get("submit", again=f"{session}/{ANSWERED}")
    assert (f"{ANSWERED}~2", True) == (again["submission_id"], again["created"])
    repeated = crashed.get("submit", again=ANSWERED)
    assert (f"{ANSWERED}~2", False) == (repeated["submission_id"], repeated["created"])
    explained = crashed.get("explain", submission=f"{ANSWERED}~2")
    assert f"again: {session}/{ANSWERED}" == explained["decisions"][0]["note"]
    crashed.get("settle", submission=f"{ANSWERED}~2", outcome="aborted")
    assert f"{ANSWERED}~3" == crashed.get("submit", again=f"{ANSWERED}~2")["submission_id"]


def test_what_waits_for_a_person_or_has_an_abort_is_not_retried(crashed: Front) -> None:
    crashed.ask("once")
    assert "reconciler explain" in crashed.refused("retry", submission=DAMAGED)["hint"]
    crashed.get("abort", submission=TOOLS)
    assert "conflict" == crashed.refused("retry", submission=TOOLS)["code"]


# --- settle ----------------------------------------------------------------------------------------------------------


def test_an_outcome_by_hand_is_written_once_and_never_changes(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    done = crashed.get("settle", submission=UNCERTAIN, outcome="failed", reason="lost")
    assert ("done", "failed") == (done["result"], done["outcome"])
    assert "already" == crashed.get("settle", submission=UNCERTAIN, outcome="failed")["result"]
    assert "already_settled" == crashed.refused("settle", submission=UNCERTAIN, outcome="aborted")["code"]
    explained = crashed.get("explain", submission=UNCERTAIN)
    assert ("settled_by_operator", "tess", "lost") == (
        explained["outcome_reason"],
        explained["decisions"][-1]["decided_by"],
        explained["decisions"][-1]["note"],
    )
    with engine.connect() as conn:
        found = conn.execute(
            sa.select(entries.c.id).where(entries.c.submission_id == UNCERTAIN, entries.c.kind == "submission_settled")
        ).scalars()
        assert [f"submission-settled:{UNCERTAIN}"] == list(found)


def test_finished_work_cannot_be_called_failed(crashed: Front) -> None:
    error = crashed.refused("settle", submission=ANSWERED, outcome="failed")
    assert ("conflict", True) == (error["code"], "response_finished" in error["message"])
    assert "completed" == crashed.get("settle", submission=ANSWERED, outcome="completed")["outcome"]


def test_unresolved_calls_are_closed_by_markers_when_settled_by_hand(crashed: Front, engine: Engine) -> None:
    crashed.get("settle", submission=TOOLS, outcome="aborted")
    with engine.connect() as conn:
        found = conn.execute(
            sa.select(entries.c.tool_call_id)
            .where(entries.c.session_id == TOOLS_SESSION, entries.c.id.startswith("tool-marker:"))
            .order_by(entries.c.seq)
        ).scalars()
        assert ["call_2_0", "call_2_1", "call_2_2"] == list(found)
        leaf = conn.execute(sa.select(sessions.c.leaf_entry_id).where(sessions.c.id == TOOLS_SESSION)).scalar_one()
    assert f"submission-settled:{TOOLS}" == leaf


def test_a_live_lease_is_respected_unless_it_is_fenced_off(live: Front, engine: Engine) -> None:
    error = live.refused("settle", submission="work", outcome="failed")
    assert ("conflict", True) == (error["code"], "--fence" in error["hint"])
    assert "done" == live.get("settle", submission="work", outcome="failed", fence=True)["result"]
    with engine.connect() as conn:
        ended = conn.execute(sa.select(attempts.c.end_kind).where(attempts.c.submission_id == "work")).scalar_one()
    assert "settled" == ended


def test_a_runner_keeps_its_session_to_itself_while_it_lives(live: Front) -> None:
    assert "already" == live.get("retry", submission="work")["result"]
    error = live.refused("move-leaf", session="busy", entry="submission-input:work")
    assert ("conflict", True) == (error["code"], "runner-1" in error["message"])
    assert "conflict" == live.refused("resolve", session="busy", call="call", **{"as": "happened"})["code"]
    abort = live.get("abort", submission="work")
    assert ("done", "running") == (abort["result"], abort["status"])


# --- release ---------------------------------------------------------------------------------------------------------


def test_a_hold_stays_while_its_damage_is_there(crashed: Front) -> None:
    crashed.ask("once")
    error = crashed.refused("release", submission=DAMAGED)
    assert "session_damaged" == error["code"]
    for way in ("settle", "abort", "--repair-leaf"):
        assert way in error["hint"]
    assert 1 == crashed.get("status")["held"]


def test_a_leaf_on_a_sound_path_mends_the_record(crashed: Front) -> None:
    crashed.ask("once")
    sound = "6b01fd02-7fc8-4457-9116-c5e4efe7eca5"
    done = crashed.get("release", submission=DAMAGED, repair_leaf=sound, reason="from the backup")
    assert ("done", True) == (done["result"], sound in done["message"])
    crashed.ask("once")
    explained = crashed.get("explain", submission=DAMAGED)
    assert (None, "requeue") == (explained["held_at"], explained["decisions"][-1]["action"])
    assert "already" == crashed.get("release", submission=DAMAGED)["result"]
    assert 0 == crashed.get("status")["held"]


def test_a_leaf_that_mends_nothing_changes_nothing(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    before = _dump(engine)
    error = crashed.refused("release", submission=DAMAGED, repair_leaf="41775b86-a4a3-4667-920c-1cb06ec8d6a7")
    assert "session_damaged" == error["code"]
    assert "not_found" == crashed.refused("release", submission=DAMAGED, repair_leaf="no such entry")["code"]
    assert before == _dump(engine)


def test_what_is_not_held_needs_no_release(crashed: Front) -> None:
    assert "already" == crashed.get("release", submission=TOOLS)["result"]


def test_releasing_a_hold_for_unlogged_calls_buys_one_redispatch(crashed: Front, engine: Engine) -> None:
    crashed.desk.limits = Limits(hold_unlogged=True)
    crashed.ask("once")
    held = _row(engine, UNLOGGED)
    assert "unlogged_calls_possible" == held.held_reason
    crashed.get("release", submission=UNLOGGED, reason="checked: nothing ran")
    assert 1 == _row(engine, UNLOGGED).redispatches_granted
    crashed.ask("once")
    row = _row(engine, UNLOGGED)
    assert (None, "redispatch") == (row.held_at, row.decision_reason)


# --- leaf, calls -----------------------------------------------------------------------------------------------------


def test_a_moved_leaf_has_what_waits_decided_anew(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    done = crashed.get("move-leaf", session=TOOLS_SESSION, entry=TOOLS, reason="drop the cut answer")
    assert "done" == done["result"]
    assert "already" == crashed.get("move-leaf", session=TOOLS_SESSION, entry=TOOLS)["result"]
    assert None is _row(engine, TOOLS).not_before
    crashed.ask("once")
    explained = crashed.get("explain", submission=TOOLS)
    assert ["import", "requeue", "move_leaf", "requeue"] == [row["action"] for row in explained["decisions"]]
    assert "input_only" == explained["inspection"]["detail"]


def test_a_leaf_must_be_an_entry_of_a_native_session(crashed: Front) -> None:
    assert "not_found" == crashed.refused("move-leaf", session=TOOLS_SESSION, entry="nowhere")["code"]
    assert "not_found" == crashed.refused("move-leaf", session="no-such-session", entry="x")["code"]


def test_a_finding_becomes_the_calls_result(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    for call in ("call_2_0", "cd85aeef[1]", "call_2_2"):
        done = crashed.get("resolve", session=TOOLS_SESSION, call=call, **{"as": "not-happened"})
        assert "done" == done["result"]
    crashed.ask("once")
    explained = crashed.get("explain", submission=TOOLS)
    assert ("tool_results_ready", "continue") == (explained["inspection"]["detail"], explained["plan"]["mode"])
    with engine.connect() as conn:
        notes = conn.execute(
            sa.select(decisions.c.reason, decisions.c.note)
            .where(decisions.c.submission_id == TOOLS, decisions.c.action == "resolve")
            .order_by(decisions.c.number)
        ).all()
    assert [("not_happened", "call_2_0: not-happened")] == [tuple(row) for row in notes][:1]
    assert (
        "not_found" == crashed.refused("resolve", session=TOOLS_SESSION, call="call_2_0", **{"as": "happened"})["code"]
    )


@pytest.mark.parametrize("finding", ["diverged", "unreadable"])
def test_a_finding_that_explains_nothing_leaves_it_held(crashed: Front, engine: Engine, finding: str) -> None:
    crashed.ask("once")
    crashed.get("resolve", session=TOOLS_SESSION, call="call_2_0", **{"as": finding})
    row = _row(engine, TOOLS)
    assert ("unknown_effect", True) == (row.held_reason, row.held_at is not None)
    crashed.ask("once")
    assert 2 == crashed.get("status")["held"]
    crashed.get("release", submission=TOOLS, reason="repaired by hand")
    crashed.ask("once")
    assert None is _row(engine, TOOLS).held_at


@pytest.fixture
def never_started(front: Front, database_url: str) -> Front:
    """Give the desk after a runner that logs starts gave back a turn with one started call and one that was not."""
    with Runner(database_url, owner="runner-1") as runner:
        runner.submit("chat", "work", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        said = NewEntry(
            role="assistant",
            stop_reason="tool_use",
            tool_call_ids=("ran", "never"),
            payload="thinking",
            starts_logged=True,
        )
        attempt.append([said])
        attempt.start("ran")
    return front


@pytest.mark.parametrize("finding", ["happened", "diverged", "unreadable"])
def test_a_call_that_never_started_has_no_effect_to_find_out(
    never_started: Front, engine: Engine, finding: str
) -> None:
    before = _dump(engine)
    error = never_started.refused("resolve", session="chat", call="never", **{"as": finding})
    assert "conflict" == error["code"]
    assert f'call "never" of session "chat" as {finding}' in error["message"]
    assert "never started" in error["message"]
    assert ("not-happened" in error["hint"], "abort chat/work" in error["hint"]) == (True, True)
    assert "not_started" == error["detail"]["dispatch"]
    assert before == _dump(engine)


def test_a_call_that_never_started_is_resolved_as_such_and_the_started_one_as_found(never_started: Front) -> None:
    explained = never_started.ask("explain", submission="work")
    calls = explained.payload["inspection"]["dispatch"]
    assert [("ran", "started"), ("never", "not_started")] == [(one["call_id"], one["dispatch"]) for one in calls]
    hints = [hint for hint in explained.payload["followUp"] if hint["tool"] == "resolve"]
    assert [["ran"]] == [hint["trigger"]["value"] for hint in hints]
    assert "done" == never_started.get("resolve", session="chat", call="never", **{"as": "not-happened"})["result"]
    assert "done" == never_started.get("resolve", session="chat", call="ran", **{"as": "happened"})["result"]
    after = never_started.get("explain", submission="work")
    assert ([], "tool_results_ready") == (after["inspection"]["dispatch"], after["inspection"]["detail"])


# --- production, mirrored --------------------------------------------------------------------------------------------


def test_a_production_database_asks_for_the_reason(crashed: Front) -> None:
    crashed.desk.production = True
    assert "no reason was given" in crashed.refused("abort", submission=TOOLS)["message"]
    crashed.get("abort", submission=TOOLS, dry_run=True)
    crashed.get("abort", submission=TOOLS, reason="asked by the customer")


def test_a_mirrored_session_belongs_to_its_program(crashed: Front, engine: Engine) -> None:
    with engine.begin() as conn:
        conn.execute(sa.update(sessions).where(sessions.c.id == TOOLS_SESSION).values(origin="mirrored"))
    assert "session_mirrored" == crashed.refused("retry", submission=TOOLS)["code"]
    assert "session_mirrored" == crashed.refused("move-leaf", session=TOOLS_SESSION, entry=TOOLS)["code"]
    assert "session_mirrored" == crashed.refused("submit", session=TOOLS_SESSION, submission="x", payload=1)["code"]
    assert "done" == crashed.get("abort", submission=TOOLS)["result"]
    crashed.ask("once")
    assert "aborted" == crashed.get("explain", submission=TOOLS)["outcome"]


# --- submit ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_admitted_once(front: Front, engine: Engine) -> None:
    first = front.get("submit", session="s", submission="p", payload={"text": "hi"})
    again = front.get("submit", session="s", submission="p", payload={"text": "hi"})
    assert (True, False) == (first["created"], again["created"])
    assert "conflict" == front.refused("submit", session="s", submission="p", payload={"text": "other"})["code"]
    assert [("submit", "tess", None)] == _audits(engine)
    with engine.connect() as conn:
        stored = conn.execute(sa.select(audit.c.parameters)).scalar_one()
    assert "payload" not in json.loads(stored)


def test_null_is_a_payload_and_a_missing_one_is_refused(front: Front) -> None:
    assert front.get("submit", session="s", submission="p", payload=None)["created"]
    assert "needs a payload" in front.refused("submit", session="s", submission="q")["message"]
    assert "invalid_input" == front.refused("submit", again="p", session="s")["code"]
    assert "no outcome yet" in front.refused("submit", again="p")["message"]


def test_two_operators_at_once_settle_once(
    crashed: Front, database_url: str, engine_factory: Callable[..., Engine]
) -> None:

    crashed.ask("once")
    fronts = []
    for name in ("ann", "bob"):
        other = engine_factory(database_url)
        fronts.append(
            Front(Desk(make_engine=lambda other=other, **_: other, name_database=lambda: "test", operator=name))
        )
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda front: front.get("settle", submission=UNCERTAIN, outcome="failed")["result"], fronts)
        )
    assert ["already", "done"] == sorted(found)
