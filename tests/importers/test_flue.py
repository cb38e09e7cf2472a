"""Flue's streams and submissions, record by record. The tables are written from the runtime's source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.errors import SourceVersionUnknown
from reconciler.importers.base import ImportedSession
from tests.support.foreign_stores import Flue, read_database, session_of
from tests.support.verdicts import chain, dispatch, verdict


@pytest.fixture
def store(tmp_path: Path) -> Flue:
    return Flue(tmp_path / "flue.db")


def look(store: Flue) -> ImportedSession:
    return session_of(store.name, "flue")


def test_a_turn_from_its_records(store: Flue) -> None:
    store.submission("s1", "running").user("s1").response("a1", "s1", "c1", stop="toolUse").outcome("a1", "c1")
    store.batch({"type": "tool_results_committed", "assistantMessageId": "a1", "parentId": "a1", "outcomeIds": ["x"]})
    store.response("a2", "s1")
    session = look(store)
    assert "conv_1" == session.session_id
    assert ["m_s1", "a1", "result:a1:c1", "a2"] == chain(session)
    assert ("completed", "response_finished") == verdict(session, "s1")
    assert {True} == {imported.write_ahead for imported in session.entries}


def test_what_was_finished_and_not_committed_is_finished(store: Flue) -> None:
    store.user("s1").response("a1", "s1", "c1", "c2", stop="toolUse").outcome("a1", "c2")
    assert ("continuable", "tool_batch_partial") == verdict(look(store))


def test_a_step_of_a_tool_proves_that_it_began(store: Flue) -> None:
    store.user("s1").response("a1", "s1", "c1", "c2", stop="toolUse")
    store.batch({"type": "tool_step_settled", "toolCallId": "c1", "toolName": "f", "stepName": "one", "value": 1})
    assert {"c1": "started", "c2": "unknown"} == dispatch(look(store))


def test_a_response_that_was_cut_off_keeps_its_words_and_its_calls_never_ran(store: Flue) -> None:
    store.user("s1").response("a1", "s1", stop=None)
    assert ("continuable", "response_aborted") == verdict(look(store))
    other = Flue(Path(store.name).with_name("other.db")).user("s1").response("a1", "s1", "c1", stop=None)
    assert {"c1": "not_started"} == dispatch(look(other))


def test_signals_of_the_runtime_are_no_input_and_dispatched_ones_are(store: Flue) -> None:
    store.batch(
        {
            "type": "signal",
            "id": "record_dispatch_input_s1",
            "messageId": "m1",
            "submissionId": "s1",
            "signalType": "webhook",
            "content": "x",
        }
    )
    store.response("a1", "s1", stop=None)
    store.batch({"type": "signal", "messageId": "i1", "submissionId": "s1", "signalType": "stream_interrupted"})
    session = look(store)
    assert [("s1", "signal")] == [(s.submission_id, s.kind) for s in session.submissions]
    assert [False, True] == [i.entry.is_synthetic for i in session.entries if i.entry.role == "signal"]
    assert ("continuable", "response_aborted") == verdict(session)


@pytest.mark.parametrize("outcome", ["completed", "failed", "aborted"])
def test_a_settlement_of_the_stream_wins(store: Flue, outcome: str) -> None:
    store.user("s1").batch({"type": "submission_settled", "submissionId": "s1", "outcome": outcome})
    assert ("completed", "settled_entry") == verdict(look(store))


@pytest.mark.parametrize(
    ("status", "more"),
    [
        ("settled", {}),
        ("settled", {"error": "x", "abort_requested_at": 5}),
        ("terminalizing", {"settlement_record": json.dumps({"type": "submission_settled", "outcome": "failed"})}),
    ],
)
def test_an_outcome_that_stands_in_the_row_alone_wins_too(store: Flue, status: str, more: dict[str, object]) -> None:
    session = look(store.submission("s1", status, **more).user("s1"))
    assert ("completed", "settled_entry", "m_s1") == (*verdict(session), session.leaf_entry_id)


def test_an_admitted_submission_without_an_input_is_queued(store: Flue) -> None:
    store.submission("s1", "settled").user("s1").response("a1", "s1").submission("s2", "queued")
    session = look(store)
    assert [("s1", "prompt", True), ("s2", "queued", True)] == [
        (s.submission_id, s.kind, s.is_pending) for s in session.submissions
    ]
    assert ("absent", "input_missing") == verdict(session, "s2")


def test_a_joined_delivery_is_the_one_to_ask_about(store: Flue) -> None:
    store.submission("s1", "running").submission("s2", "joined").user("s1").response("a1", "s1", "c1", stop="toolUse")
    session = look(store.outcome("a1", "c1").user("s2"))
    assert ("completed", "moved_on") == verdict(session, "s1")
    assert ("uncertain", "input_only") == verdict(session, "s2")


def test_a_large_batch_is_put_together(store: Flue) -> None:
    store.user("s1").batch(
        {"type": "assistant_message_started", "messageId": "a1", "parentId": "m_s1", "modelInfo": {}},
        {"type": "assistant_text_delta", "messageId": "a1", "blockId": "b", "sequence": 0, "delta": "é" * 500},
        {"type": "assistant_message_completed", "messageId": "a1", "stopReason": "stop", "usage": {}},
        chunks=3,
    )
    assert ("completed", "response_finished") == verdict(look(store))


def test_a_batch_with_a_lost_chunk_is_damage(store: Flue) -> None:
    store.user("s1").batch({"type": "state_write"}, chunks=3)
    store.run("DELETE FROM flue_conversation_stream_batch_chunks WHERE chunk_index = 1")
    (result,) = read_database(store.name, "flue")
    assert ["batch_unreadable"] == [problem.code for problem in result.problems]
    assert ("uncertain", "integrity_hold") == verdict(result.sessions[0], "s1")


def test_several_conversations_share_a_stream(store: Flue) -> None:
    store.user("s1").batch(
        {"type": "conversation_created", "kind": "task", "conversationId": "conv_2", "session": "child"},
        {"type": "user_message", "messageId": "m2", "conversationId": "conv_2", "session": "child", "content": []},
    )
    (result,) = read_database(store.name, "flue")
    assert ["conv_1", "conv_2"] == [session.session_id for session in result.sessions]
    assert "signal" == result.sessions[1].submissions[0].kind


def test_a_repeated_record_counts_once(store: Flue) -> None:
    store.user("s1").user("s1")
    assert ["m_s1"] == [imported.entry.id for imported in look(store).entries]


@pytest.mark.parametrize("version", [None, "2"])
def test_a_version_that_is_not_known_is_refused(tmp_path: Path, version: str | None) -> None:
    with pytest.raises(SourceVersionUnknown, match="needed format_version 1"):
        look(Flue(tmp_path / "flue.db", version=version))


def test_unknown_records_are_kept_and_counted(store: Flue) -> None:
    (result,) = read_database(store.user("s1").batch({"type": "hologram"}).name, "flue")
    assert {"hologram": 1} == dict(result.unknown)
