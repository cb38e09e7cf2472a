"""Reading in pieces shows the same as reading everything: random sessions, damaged ones, and the incidents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine

from reconciler.core.classifier import LeafWalk, inspect_session
from reconciler.core.model import Inspection, Limits, SessionEntry
from reconciler.service.gather import Gathered, gather
from reconciler.service.reconcile import reconcile_once
from reconciler.store import paths
from reconciler.store.around import read_around
from reconciler.store.engine import begin, read
from reconciler.store.passes import lock_rows
from reconciler.store.schema import entries
from tests.support.scenes import Scene, chain, result, said, turn

CASES = Path(__file__).parents[3] / "shared" / "cases" / "recovery_cases.json"


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


def gathered(engine: Engine, keys: list[tuple[str, str]], **limits: Any) -> dict[tuple[str, str], Gathered]:
    with read(engine) as conn:
        rows = lock_rows(conn, keys, lock=False)
        around = read_around(conn, rows, lock=False)
        return {one.row.key: one for one in gather(conn, rows, around.around, Limits(**limits))}


def essence(inspection: Inspection) -> dict[str, Any]:
    # Problems above the input are found only by those who read there.
    found = {name: getattr(inspection, name) for name in Inspection.__slots__ if name != "problems"}
    # Calls above the input are past; a pass gives the path from the input on (R2).
    return {name: value for name, value in found.items() if name not in ("interior_open_calls", "dispatch")}


# --- random sessions -------------------------------------------------------------------------------------------------

STOPS = (None, "stop", "length", "tool_use", "error", "aborted")


def random_entry(rng: random.Random, name: str, parents: list[str | None], ids: list[str]) -> SessionEntry:
    kind = rng.choices(
        ["user", "assistant", "result", "signal", "other", "started", "settled", "unreadable"],
        [10, 40, 35, 3, 5, 4, 1, 1],
    )[0]
    parent = rng.choices([parents[-1], rng.choice(parents)], [85, 15])[0]
    common: dict[str, Any] = {
        "id": name,
        "parent_id": parent,
        "is_sidechain": rng.random() < 0.05,
        "is_synthetic": rng.random() < 0.08,
        "attempt_id": rng.choice([None, "x1", "x2"]),
    }
    submission = rng.choice(["A", "A", "B", None])
    if kind == "user":
        return SessionEntry(**common, role="user", submission_id=submission)
    if kind == "signal":
        return SessionEntry(**common, role="signal", submission_id=submission)
    if kind == "assistant":
        calls = tuple(rng.choice(ids) for _ in range(rng.choice([0, 0, 1, 1, 2])))
        return SessionEntry(
            **common,
            role="assistant",
            submission_id=submission,
            stop_reason=rng.choice(STOPS),
            tool_call_ids=calls,
            content=rng.choice(["text", "text", "reasoning", "none"]),
            starts_logged=rng.random() < 0.3,
        )
    if kind == "result":
        return SessionEntry(**common, role="tool_result", tool_call_id=rng.choice(ids), ends_turn=rng.random() < 0.1)
    if kind == "started":
        return SessionEntry(**common, kind="tool_started", tool_call_id=rng.choice(ids))
    if kind == "settled":
        return SessionEntry(**common, kind="submission_settled", submission_id="B")
    return SessionEntry(**common, kind="unreadable" if kind == "unreadable" and rng.random() < 0.3 else "custom")


def random_session(rng: random.Random) -> tuple[list[SessionEntry], str | None]:
    ids = [f"t{number}" for number in range(4)]
    found: list[SessionEntry] = []
    parents: list[str | None] = [None]
    for number in range(rng.randint(0, 24)):
        entry = random_entry(rng, f"e{number}", parents, ids)
        if entry.kind == "submission_settled" and any(other.kind == entry.kind for other in found):
            continue
        found.append(entry)
        parents.append(entry.id)
    if found and rng.random() < 0.1:
        # Damage: a parent that is nowhere, or one that comes later.
        place = rng.randrange(len(found))
        broken = rng.choice(["nowhere", found[-1].id])
        values = {name: getattr(found[place], name) for name in SessionEntry.__slots__} | {"parent_id": broken}
        found[place] = SessionEntry(**values)
    leaf = rng.choices(
        [found[-1].id if found else None, rng.choice(found).id if found else None, "gone", None], [75, 18, 2, 5]
    )[0]
    return found, leaf


@pytest.mark.parametrize("piece", [2, 32])
def test_what_is_read_in_pieces_shows_what_the_whole_session_shows(scene: Scene, piece: int) -> None:
    rng = random.Random(f"gather-{piece}")
    expected: dict[tuple[str, str], Inspection] = {}
    for number in range(300):
        given, leaf = random_session(rng)
        session_id = f"s{number}"
        scene.session(session_id, given, leaf=leaf, write_ahead=rng.choice([True, True, False]))
        scene.submission(session_id)
        expected[session_id, "A"] = inspect_session(given, leaf, "A")
    found = gathered(scene.engine, list(expected), path_piece_entries=piece)
    assert expected.keys() == found.keys()
    details = set()
    for key, inspection in expected.items():
        assert found[key].error is None, key
        seen = essence(found[key].inspection)
        wanted = essence(inspection)
        # Whether the writer is write-ahead is stored with the entries, and not told to the reference.
        seen.pop("unlogged_calls_possible"), wanted.pop("unlogged_calls_possible")
        assert wanted == seen, key
        details.add(inspection.detail)
    assert len(details) >= 15, f"the sessions are too alike: {sorted(details)}"


def random_tail(rng: random.Random) -> list[SessionEntry]:
    """A turn of up to 80 entries whose calls mostly have results, with a branch here and there."""
    found = [SessionEntry("in", role="user", submission_id="A")]
    waiting: list[str] = []
    ids = [f"t{number}" for number in range(rng.choice([3, 60]))]
    for number in range(rng.randint(10, 80)):
        parents: list[str | None] = [entry.id for entry in found[-6:]]
        entry = random_entry(rng, f"e{number}", parents, ids)
        values = {name: getattr(entry, name) for name in SessionEntry.__slots__}
        if rng.random() < 0.9:
            values["parent_id"] = found[-1].id
        if waiting and rng.random() < 0.6:
            values |= {"kind": "message", "role": "tool_result", "tool_call_id": waiting.pop(), "tool_call_ids": ()}
        elif entry.kind in ("unreadable", "submission_settled") or (
            entry.submission_id == "A" and entry.role == "user"
        ):
            values |= {"kind": "custom"}
        found.append(SessionEntry(**values))
        if values["role"] == "assistant" and values["kind"] == "message":
            waiting += entry.tool_call_ids
    return found


def put_tails(scene: Scene, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Put sessions with long and with odd tails; some of their entries have a write-ahead writer."""
    for number in range(count):
        session_id = f"s{number}"
        given, leaf = random_session(rng) if number % 3 == 0 else (random_tail(rng), "last")
        if given and rng.random() < 0.2:
            leaf = rng.choice(given[len(given) // 2 :]).id
        origin = rng.choice(["native", "native", "mirrored"])
        scene.session(session_id, given, leaf=leaf, origin=origin, write_ahead=rng.choice([True, None]))
        if origin == "native" and rng.random() < 0.5:
            scene.running(session_id, attempt_id=rng.choice(["x1", "x2"]))
        else:
            scene.submission(session_id)
    with begin(scene.engine) as conn:
        odd = sa.func.length(entries.c.id) + entries.c.seq
        some = sa.and_(odd % 7 == 0, entries.c.session_id.like("%5"))
        conn.execute(entries.update().where(some).values(write_ahead=sa.false()))
    return [(f"s{number}", "A") for number in range(count)]


def all_but_the_effort(one: Gathered) -> list[Any]:
    return [one.inspection, one.evidence, one.hangs_from, one.on_path, one.may_grow, one.error]


@pytest.mark.parametrize(("first", "further"), [(1, 3), (2, 4096), (5, 8)])
def test_a_folded_walk_gathers_what_a_whole_one_does(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, first: int, further: int
) -> None:
    keys = put_tails(scene, random.Random(f"fold-{first}-{further}"), 150)
    again: list[str] = []
    read_unfolded = paths._read_unfolded

    def note(conn: Any, read: paths.PathRead, entries_max: int) -> None:
        again.append(read.request.session_id)
        read_unfolded(conn, read, entries_max)

    monkeypatch.setattr(paths, "_read_unfolded", note)
    monkeypatch.setattr(paths, "_FURTHER_PIECE_MAX", further)
    folded = gathered(scene.engine, keys, path_piece_entries=first)
    # Some can't vouch for their answer, and most can.
    assert 0 < len(set(again)) < len(keys) / 4
    monkeypatch.setattr(LeafWalk, "fold", lambda walk, *_: [])
    whole = gathered(scene.engine, keys, path_piece_entries=first)
    for key in keys:
        assert all_but_the_effort(whole[key]) == all_but_the_effort(folded[key]), key
        if key[0] not in again:
            assert whole[key].rows_read == folded[key].rows_read
    assert {True, False} == {one.inspection.unlogged_calls_possible for one in folded.values()}
    assert len({one.inspection.detail for one in folded.values()}) >= 12


def test_results_newer_than_the_leaf_find_the_calls_that_were_open_where_they_hang_from(scene: Scene) -> None:
    # A call above has the id of one that the path closes further down.
    steps = [step for number in range(60) for step in (said(f"a{number}", "tool_use", "t"), result(f"r{number}", "t"))]
    given = turn("A", said("open", "tool_use", "t"), *steps)
    for name, parent, expected in (("beside", "a30", ("open",)), ("behind", "r30", ())):
        scene.session(name, [*given, result("late", "t", parent_id=parent)], leaf="r59")
        scene.submission(name)
        one = gathered(scene.engine, [(name, "A")], path_piece_entries=4)[name, "A"]
        assert expected == tuple(call.entry_id for call in one.evidence.open_calls)


# --- the incidents ---------------------------------------------------------------------------------------------------


def load_cases() -> list[dict[str, Any]]:
    if not CASES.is_file():
        return []
    found: list[dict[str, Any]] = json.loads(CASES.read_text())
    return found


def in_order(given: list[SessionEntry]) -> list[SessionEntry]:
    """Return parents before their children, as far as there is no cycle: an importer stores them so."""
    waiting, found, known = list(given), [], set()
    ids = {entry.id for entry in given}
    while waiting:
        ready = [entry for entry in waiting if entry.parent_id in known or entry.parent_id not in ids]
        for entry in ready or waiting[:1]:
            waiting.remove(entry)
            found.append(entry)
            known.add(entry.id)
    return found


def case_entries(case: dict[str, Any]) -> list[SessionEntry]:
    return [
        SessionEntry(**{**entry, "tool_call_ids": tuple(entry.get("tool_call_ids", ()))}) for entry in case["entries"]
    ]


@pytest.mark.skipif(not CASES.is_file(), reason="the incidents (../shared/cases) are not beside this checkout")
def test_the_incidents_are_inspected_as_they_must_be(scene: Scene) -> None:
    cases = load_cases()
    for case in cases:
        scene.session(case["id"], in_order(case_entries(case)), leaf=case["leaf_entry_id"], origin="mirrored")
        if case["current_attempt_id"] is None:
            scene.submission(case["id"], case["submission_id"])
        else:
            scene.running(case["id"], case["submission_id"], attempt_id=case["current_attempt_id"])
    found = gathered(scene.engine, [(case["id"], case["submission_id"]) for case in cases])
    for case in cases:
        inspection = found[case["id"], case["submission_id"]].inspection
        seen = {
            "state": inspection.state.value,
            "unresolved_tool_calls": list(inspection.unresolved_tool_calls),
            "integrity": inspection.integrity is not None,
        }
        assert case["expect"] == seen, case["id"]


# --- how much is read ------------------------------------------------------------------------------------------------


class Statements:
    """Counts the statements of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.texts: list[str] = []
        event.listen(engine, "before_cursor_execute", self._note)
        self._engine = engine

    def _note(self, conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        self.texts.append(statement)

    def count(self, word: str) -> int:
        return sum(word in text for text in self.texts)


def old_session(history: int) -> list[SessionEntry]:
    past = chain(*(said(f"h{number}") for number in range(history)))
    return [
        *past,
        *chain(SessionEntry("in", role="user", submission_id="A"), said("a1", "tool_use", "t1"), below=past[-1].id),
    ]


@pytest.mark.parametrize("history", [20, 2000])
def test_a_short_tail_reads_no_more_than_33_rows_whatever_the_history(scene: Scene, history: int) -> None:
    scene.session(given=old_session(history))
    scene.submission()
    one = gathered(scene.engine, [("s", "A")])["s", "A"]
    assert one.inspection.detail == "tool_calls_unresolved"
    assert one.rows_read == 2


def test_a_tail_is_read_in_pieces_and_each_entry_once(scene: Scene) -> None:
    steps = [step for number in range(600) for step in (said(f"a{number}", "tool_use", "t"), result(f"r{number}", "t"))]
    scene.session(given=turn("A", *steps))
    scene.submission()
    statements = Statements(scene.engine)
    one = gathered(scene.engine, [("s", "A")])["s", "A"]
    assert one.inspection.detail == "tool_results_ready"
    assert one.rows_read == 1201
    assert statements.count("BETWEEN") == 2


def test_a_batch_needs_one_path_statement_whatever_its_size(scene: Scene) -> None:
    for number in range(40):
        scene.session(f"s{number}", turn("A", said("a1", "tool_use", "t1")))
        scene.submission(f"s{number}")
    statements = Statements(scene.engine)
    gathered(scene.engine, [(f"s{number}", "A") for number in range(40)])
    assert statements.count("FROM entries e") + statements.count("JOIN entries e") == 1


def test_a_path_beyond_the_limit_is_an_error_of_that_row_alone(scene: Scene) -> None:
    scene.session("long", turn("A", *(said(f"a{number}", "error") for number in range(80))))
    scene.session("short", turn("A", said("a1")))
    scene.submission("long")
    scene.submission("short")
    found = gathered(scene.engine, [("long", "A"), ("short", "A")], path_entries_max=50)
    assert "path_entries_max" in (found["long", "A"].error or "")
    assert found["short", "A"].error is None


def test_a_parallel_result_that_came_after_the_leaf_closes_its_call(scene: Scene) -> None:
    given = turn("A", said("a1", "tool_use", "t1", "t2"), result("r1", "t1"), result("r2", "t2", parent_id="a1"))
    scene.session(given=given, leaf="r1")
    scene.submission()
    assert gathered(scene.engine, [("s", "A")])["s", "A"].inspection.detail == "tool_results_ready"


def test_a_writer_that_is_not_write_ahead_leaves_room_for_unlogged_calls(scene: Scene) -> None:
    scene.session("sure", turn("A", said("a1", "tool_use", "t1")), write_ahead=True)
    scene.session("unsure", turn("A", said("a1", "tool_use", "t1")), write_ahead=None)
    scene.submission("sure")
    scene.submission("unsure")
    found = gathered(scene.engine, [("sure", "A"), ("unsure", "A")])
    assert [False, True] == [found[name, "A"].inspection.unlogged_calls_possible for name in ("sure", "unsure")]


@pytest.mark.skipif(not CASES.is_file(), reason="the incidents (../shared/cases) are not beside this checkout")
@pytest.mark.parametrize("origin", ["native", "mirrored"])
def test_a_pass_over_the_incidents_does_what_their_state_asks_for(scene: Scene, origin: str) -> None:
    # R8 is about mirrored sessions only: without it a native session shows what its leaf shows.
    cases = [case for case in load_cases() if case["current_attempt_id"] is None]
    for case in cases:
        scene.session(case["id"], in_order(case_entries(case)), leaf=case["leaf_entry_id"], origin=origin)
        scene.submission(case["id"], case["submission_id"])
    report = reconcile_once(scene.engine, jitter=lambda: 0.0)
    assert (len(cases), 0, 0) == (report.scanned, report.set_aside, report.conflicts)
    for case in cases:
        row = scene.row(case["id"], case["submission_id"])
        if case["expect"]["state"] == "completed":
            assert ("settled", "completed") == (row.status, row.outcome), case["id"]
        elif case["expect"]["integrity"]:
            assert row.held_reason == "integrity_hold", case["id"]
        else:
            assert row.outcome != "completed", case["id"]
            assert row.held_at is None, case["id"]
            assert row.status == "settled" or row.plan is not None, case["id"]
    before = scene.dump()
    assert reconcile_once(scene.engine).scanned == 0
    assert before == scene.dump()
