"""Session tables of the OpenAI Agents SDK, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reconciler.errors import SourceUnreadable
from reconciler.importers.base import ImportedSession
from tests.support.foreign_stores import USER, OpenaiAgents, call_item, output_item, read_database, said, session_of
from tests.support.verdicts import chain, verdict


@pytest.fixture
def store(tmp_path: Path) -> OpenaiAgents:
    return OpenaiAgents(tmp_path / "agents.db")


def look(store: OpenaiAgents) -> ImportedSession:
    return session_of(store.name, "openai-agents")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([USER], ("uncertain", "input_only")),
        ([USER, said("hello")], ("completed", "response_finished")),
        ([USER, said("doing"), call_item("c1"), output_item("c1")], ("continuable", "tool_results_ready")),
        ([USER, call_item("c1"), call_item("c2"), output_item("c1")], ("continuable", "tool_batch_partial")),
        ([USER, call_item("c1"), output_item("c1"), said("done")], ("completed", "response_finished")),
        ([USER, {"type": "reasoning", "summary": []}], ("continuable", "response_cut")),
        ([USER, {"type": "web_search_call", "status": "completed"}], ("continuable", "response_cut")),
        ([USER, {"role": "assistant", "content": "easy"}], ("completed", "response_finished")),
        (
            [USER, {"type": "shell_call", "call_id": "s"}, {"type": "shell_call_output", "call_id": "s"}],
            ("continuable", "tool_results_ready"),
        ),
    ],
)
def test_what_the_last_rows_prove(store: OpenaiAgents, items: list[Any], expected: tuple[str, str]) -> None:
    assert expected == verdict(look(store.add(*items)))


def test_nothing_of_it_is_write_ahead(store: OpenaiAgents) -> None:
    session = look(store.add(USER, said("hello")))
    assert {False} == {imported.write_ahead for imported in session.entries}
    assert ("chat", "message:2") == (session.session_id, session.leaf_entry_id)


def test_prompts_in_a_row_are_one_turn_and_a_later_one_moves_on(store: OpenaiAgents) -> None:
    session = look(store.add({"role": "developer", "content": "be kind"}, USER, USER, call_item("c"), USER))
    assert ["message:2", "message:5"] == [submission.submission_id for submission in session.submissions]
    assert ("completed", "moved_on") == verdict(session, "message:2")


def test_several_sessions_and_tables_of_any_name(tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "x.db", sessions="my_sessions", messages="my_messages")
    store.add(USER, session="a").add(USER, session="b")
    assert ["a", "b"] == [result.sessions[0].session_id for result in read_database(store.name, "openai-agents")]


def test_alchemys_rows_are_in_the_order_of_their_time(tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "x.db", alchemy=True)
    store.add(said("done"), at="2026-11-30 13:00:09").add(USER, at="2026-11-30 13:00:01")
    assert ["message:2", "message:1"] == chain(look(store))


def test_branches_share_what_they_have_in_common(store: OpenaiAgents) -> None:
    store.add(USER, said("1"), {"role": "user", "content": "two"}, said("2"), {"role": "user", "content": "two again"})
    store.run(
        "CREATE TABLE message_structure (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, message_id INTEGER,"
        " branch_id TEXT, message_type TEXT, sequence_number INTEGER)"
    )
    places = [(1, "main"), (2, "main"), (3, "main"), (4, "main"), (1, "b"), (2, "b"), (5, "b")]
    for number, (message, branch) in enumerate(places):
        store.run(
            "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, sequence_number)"
            " VALUES ('chat', ?, ?, 'x', ?)",
            message,
            branch,
            number,
        )
    session = look(store)
    assert ["message:1", "message:2", "message:5"] == chain(session)
    assert ("uncertain", "input_only") == verdict(session)
    assert ("completed", "answered_off_path") == verdict(session, "message:3")


def test_an_encrypted_session_is_refused(store: OpenaiAgents) -> None:
    with pytest.raises(SourceUnreadable, match="encrypted"):
        look(store.add({"__enc__": 1, "v": 1, "kid": "k", "payload": "x"}))


def test_a_damaged_row_is_named_and_its_place_kept(store: OpenaiAgents) -> None:
    (result,) = read_database(store.add(USER, "{oops", call_item("c")).name, "openai-agents")
    assert [("agent_messages/2", "not_json")] == [(problem.place, problem.code) for problem in result.problems]
    assert ("uncertain", "integrity_hold") == verdict(result.sessions[0], "message:1")


def test_unknown_items_are_kept_and_counted(store: OpenaiAgents) -> None:
    (result,) = read_database(store.add(USER, {"type": "hologram"}, said("done")).name, "openai-agents")
    assert {"hologram": 1} == dict(result.unknown)
    assert ("completed", "response_finished") == verdict(result.sessions[0])
