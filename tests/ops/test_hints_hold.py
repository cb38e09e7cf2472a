"""Hints never offer what would be refused: each that is offered is taken up, dry, and accepted.

Over scenes of every kind: crashed sessions before and after passes, mirrored ones, damaged ones, settled, held, parked
and running ones, an empty database, epochs that are spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.hints import FOLLOWUP_HINT_RULES
from reconciler.core.model import Limits, NewEntry
from reconciler.ops.asking import Answer, Desk
from reconciler.ops.registry import REGISTRY
from reconciler.service.runner import Runner
from reconciler.store.engine import begin
from reconciler.store.schema import submissions
from tests.ops.conftest import SESSIONS, Front
from tests.ops.test_acts import DAMAGED, TOOLS, TOOLS_SESSION, UNCERTAIN

Params = dict[str, Any]


def _ids(payload: Any) -> list[tuple[str, str]]:
    return [(row["session_id"], row["submission_id"]) for row in payload["submissions"]]


def taken_up(hint: Any, answer: Answer, params: Params) -> Iterator[Params]:
    """Yield the calls that a person makes who follows *hint*, which stood beside *answer* to a call with *params*."""
    payload: Any = answer.payload
    name = f"{payload.get('session_id')}/{payload.get('submission_id')}"
    match hint["tool"]:
        case "release" | "retry":
            yield {"submission": name}
        case "settle":
            yield {"submission": name, "outcome": "failed"}
        case "submit":
            yield {"again": name}
        case "resolve":
            session = payload["session_id"]
            calls = payload["open_calls"] if "open_calls" in payload else payload["inspection"]["dispatch"]
            open_ = [call for call in calls if call["dispatch"] != "not_started"]
            for call in open_:
                yield {"session": session, "call": f"{call['entry_id']}[{call['position']}]", "as": "happened"}
        case "explain":
            rows = payload["submissions"]
            for row in rows:
                yield {"submission": row["submission_id"], "session": row.get("session_id", payload.get("session_id"))}
        case "show":
            yield {"session": payload["session_id"]}
        case "import":
            yield {"files": [file["file"] for file in payload["files"] if file["format"]]}
        case "inspect":
            yield {"files": [file["file"] for file in payload["files"] if file["format"]]}
        case "refine close":
            subjects = payload.get("subjects") or [{"subject": payload.get("subject"), "open": True, "used": 1}]
            for one in subjects:
                if one["open"]:
                    yield {"subject": one["subject"]}
        case "refine history":
            yield {"subject": payload["subject"]}
        case "list" if hint["trigger"]["field"] == "next_page":
            yield {**params, "page": payload["next_page"]}
        case "list" | "once" | "status" | "doctor" | "schedule list" | "db upgrade":
            yield {}
        case tool:
            raise AssertionError(f"nobody knows how to follow a hint to {tool}")


def follow(front: Front, name: str, params: Params) -> list[tuple[str, str]]:
    """Ask, take up every hint that is offered, and return where they led."""
    answer = front.ask(name, **params)
    led = []
    for hint in answer.payload.get("followUp", ()):
        tool = hint["tool"]
        for call in taken_up(hint, answer, params):
            dry = {"dry_run": True} if REGISTRY[tool].parameter("dry_run") else {}
            more = {"no_wait": True} if tool == "once" else {}
            tried = front.ask(tool, **call, **dry, **more)
            assert tried.error is None, (name, params, hint, call, tried.error)
            led.append((name, tool))
    return led


def ask_everything(front: Front) -> set[tuple[str, str]]:
    """Ask every question about everything that there is, and follow all hints."""
    led: list[tuple[str, str]] = []
    for name in ("status", "once", "refine status", "schedule list", "operations list"):
        led += follow(front, name, {"dry_run": True} if name == "once" else {})
    for params in ({}, {"status": "all"}, {"status": "held"}, {"status": "all", "limit": 1}):
        led += follow(front, "list", params)
    found = _ids(front.get("list", status="all", limit=1_000))
    for session_id, submission_id in found:
        led += follow(front, "explain", {"session": session_id, "submission": submission_id})
    for session_id in sorted({session_id for session_id, _ in found}):
        led += follow(front, "show", {"session": session_id})
    return set(led)


# --- scenes ----------------------------------------------------------------------------------------------------------


def crashed_(front: Front, url: str) -> None:
    """As the host left them."""


def decided(front: Front, url: str) -> None:
    front.ask("once", no_wait=True)


def aborted(front: Front, url: str) -> None:
    front.ask("once", no_wait=True)
    front.get("abort", submission=TOOLS)
    front.get("abort", submission=DAMAGED)


def held_by_hand(front: Front, url: str) -> None:
    front.ask("once", no_wait=True)
    front.ask("resolve", session=TOOLS_SESSION, call="call_2_0", **{"as": "diverged"})


def mended(front: Front, url: str) -> None:
    front.ask("once", no_wait=True)
    front.get("release", submission=DAMAGED, repair_leaf="317d2424-aecf-4783-995a-4417ba0fafb0")


def spent(front: Front, url: str) -> None:
    """Budgets that ran out, by decisions: settled, and about to be."""
    front.ask("once", no_wait=True)
    _spend(front, settle=(UNCERTAIN,))


def _spend(front: Front, *, settle: tuple[str, ...]) -> None:
    front.desk.limits = Limits(attempts_max=9)
    with begin(front.desk.engine) as conn:
        conn.execute(
            sa.update(submissions)
            .where(submissions.c.status != "settled")
            .values(attempts_spent=9, attempts_begun=9, revision=submissions.c.revision + 1, not_before=None)
        )
        now = sa.select(sa.func.max(submissions.c.admitted_at)).scalar_subquery()
        chosen = submissions.c.id.in_(settle)
        conn.execute(sa.update(submissions).where(chosen).values(reconcile_at=now))
    front.ask("once", no_wait=True)


def mirrored(front: Front, url: str) -> None:
    """The sample sessions, owned by their program; some of their outcomes are settled, one by hand."""
    with begin(front.desk.engine) as conn:
        conn.execute(sa.text("UPDATE sessions SET origin = 'mirrored' WHERE source_id IS NOT NULL"))
    front.ask("once", no_wait=True)
    front.get("settle", submission=UNCERTAIN, outcome="failed")


def mirrored_and_spent(front: Front, url: str) -> None:
    spent(front, url)
    with begin(front.desk.engine) as conn:
        conn.execute(sa.text("UPDATE sessions SET origin = 'mirrored' WHERE source_id IS NOT NULL"))


def at_work(front: Front, url: str) -> None:
    """One runs with an open call, one waits behind it, one is parked with a call that was started."""
    front.ask("once", no_wait=True)
    # Without a thread of its own, which would go on in the tests that come after.
    runner = Runner(url, owner="r", beat_by_itself=False, lease_s=600.0, beat_s=120.0)
    runner.submit("busy", "work", {"text": "go"})
    runner.submit("busy", "next", {"text": "go"})
    runner.submit("parked", "asks", {"text": "go"})
    for attempt in runner.claim(50):
        attempt.begin()
        if attempt.submission_id not in ("work", "asks"):
            continue
        attempt.append(
            [NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("c1",), starts_logged=True, payload="x")]
        )
        attempt.start("c1")
        if attempt.submission_id == "asks":
            attempt.park("approval")
    # Not closed: that gives all back.


def refined(front: Front, url: str) -> None:
    for subject in ("floor", "spent"):
        front.get("refine open", subject=subject, baseline=0.5)
    for number in range(2):
        follow(front, "refine gate", {"subject": "floor", "edit_id": f"e{number}", "score": 0.1})
    follow(front, "refine gate", {"subject": "floor", "edit_id": "e0", "score": 0.9})
    for number in range(5):
        follow(front, "refine gate", {"subject": "spent", "edit_id": f"e{number}", "score": 0.1})


SCENES: list[Callable[[Front, str], None]] = [
    crashed_,
    decided,
    aborted,
    held_by_hand,
    mended,
    spent,
    mirrored,
    mirrored_and_spent,
    at_work,
    refined,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.strip("_"))
def test_every_hint_that_is_offered_can_be_taken_up(
    crashed: Front, database_url: str, scene: Callable[[Front, str], None]
) -> None:
    scene(crashed, database_url)
    ask_everything(crashed)


@pytest.mark.sqlite
def test_hints_beside_session_files_can_be_taken_up(front: Front, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no session\n")
    for files in ([str(SESSIONS)], [str(SESSIONS), str(bad), str(tmp_path / "missing.jsonl")]):
        assert follow(front, "inspect", {"files": files})
        assert follow(front, "import", {"files": files, "own": True, "force": True})


def test_hints_of_the_doctor_can_be_taken_up(crashed: Front, empty_database_url: str, engine_factory: Any) -> None:
    follow(crashed, "doctor", {})
    engine = engine_factory(empty_database_url)
    empty = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "an empty one", operator="tess"))
    assert [("doctor", "db upgrade")] == follow(empty, "doctor", {})


def test_most_rules_are_taken_up_by_these_scenes(crashed: Front, database_url: str) -> None:
    # Guards the test above against a scene that says nothing.
    decided(crashed, database_url)
    led = ask_everything(crashed)
    assert {("explain", "settle"), ("explain", "resolve"), ("show", "resolve"), ("list", "explain")} <= led
    spent(crashed, database_url)
    led |= ask_everything(crashed)
    assert ("explain", "submit") in led
    assert led <= {(rule.for_tool, rule.tool) for rule in FOLLOWUP_HINT_RULES}


def test_a_refused_act_names_no_command_that_would_be_refused_too(crashed: Front, engine: Engine) -> None:
    crashed.ask("once", no_wait=True)
    assert "submit --again" in crashed.refused("retry", submission="b64b06e5")["hint"]
    with begin(engine) as conn:
        conn.execute(sa.text("UPDATE sessions SET origin = 'mirrored' WHERE source_id IS NOT NULL"))
    hint = crashed.refused("retry", submission="b64b06e5")["hint"]
    assert ("submit --again" in hint, "import --own" in hint) == (False, True)
    assert "reconciler explain" in crashed.refused("submit", again=DAMAGED)["hint"]
