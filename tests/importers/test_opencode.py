"""opencode's database, row by row, and its exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.errors import SourceVersionUnknown
from reconciler.importers.base import ImportedSession
from tests.support.foreign_stores import Opencode, read_database, session_of, tool_part
from tests.support.session_files import read
from tests.support.verdicts import chain, dispatch, inspected, pending, verdict


@pytest.fixture
def store(tmp_path: Path) -> Opencode:
    return Opencode(tmp_path / "opencode.db")


def look(store: Opencode) -> ImportedSession:
    return session_of(store.name, "opencode")


def test_a_step_with_a_tool_and_an_answer(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "tool-calls", "working")
    store.tool("prt_9", "msg_2", "c1", "completed", output="ok").assistant("msg_3", "msg_1", "stop", "done")
    session = look(store)
    assert ["msg_1", "msg_2", "prt_9:started", "prt_9:result", "msg_3"] == chain(session)
    assert ("completed", "response_finished") == verdict(session)
    assert {"msg_1"} == {imported.entry.submission_id for imported in session.entries}
    assert {True} == {imported.write_ahead for imported in session.entries}


def test_the_empty_row_before_the_model_speaks_is_nothing(store: Opencode) -> None:
    assert ("uncertain", "input_only") == verdict(look(store.user("msg_1").assistant("msg_2", "msg_1")))


def test_an_open_row_with_words_was_cut_off_and_is_no_answer(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", None, "half of")
    assert ("continuable", "response_aborted") == verdict(look(store))


def test_tools_of_one_open_row_are_told_apart_by_their_state(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", None, "working").tool("prt_a", "msg_2", "c1", "completed")
    store.tool("prt_b", "msg_2", "c2", "running").tool("prt_c", "msg_2", "c3", "pending")
    session = look(store)
    assert ("continuable", "tool_batch_partial") == verdict(session)
    # The SDK starts a tool without waiting until its part says so: pending proves nothing.
    assert {"c2": "started", "c3": "unknown"} == dispatch(session)


def test_all_tools_done_in_an_open_row_still_lack_the_answer(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1").tool("prt_a", "msg_2", "c1", "completed")
    assert ("continuable", "tool_results_ready") == verdict(look(store))


def test_an_interruption_is_the_persons(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", None, "half of", error={"name": "MessageAbortedError", "data": {}})
    found = inspected(look(store))
    assert ("response_aborted", "user") == (found.detail.value, found.stopped_by)


def test_a_rejection_stops_the_turn_only_where_there_is_a_person(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "tool-calls")
    store.tool("prt_a", "msg_2", "c1", "error", error="The user rejected permission to use this specific tool call.")
    assert "user" == inspected(look(store)).stopped_by
    store.run("""UPDATE session SET permission = '[{"permission":"question","pattern":"*","action":"deny"}]'""")
    assert None is inspected(look(store)).stopped_by


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"name": "APIError", "data": {"statusCode": 400, "isRetryable": False}}, False),
        ({"name": "APIError", "data": {"statusCode": 529, "isRetryable": True}}, None),
        ({"name": "ProviderAuthError", "data": {}}, False),
    ],
)
def test_an_error_says_whether_a_retry_can_help(store: Opencode, error: dict[str, Any], retryable: bool | None) -> None:
    entry = look(store.user("msg_1").assistant("msg_2", "msg_1", error=error)).entries[-1].entry
    assert ("error", retryable) == (entry.stop_reason, entry.error_retryable)


def test_a_prompt_sent_while_busy_is_a_submission_of_its_own(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "tool-calls").tool("prt_a", "msg_2", "c1", "completed")
    store.user("msg_3").assistant("msg_4", "msg_3", "stop", "done")
    session = look(store)
    assert ("completed", "moved_on") == verdict(session, "msg_1")
    assert ("completed", "response_finished") == verdict(session, "msg_3")


def test_a_revert_moves_the_active_position_back(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "stop", "done").user("msg_3").assistant(
        "msg_4", "msg_3", "stop", "x"
    )
    store.run("UPDATE session SET revert = ?", json.dumps({"messageID": "msg_3"}))
    session = look(store)
    assert ("msg_2", "msg_1") == (session.leaf_entry_id, pending(session))
    store.run("UPDATE session SET revert = ?", json.dumps({"messageID": "msg_1"}))
    session = look(store)
    assert (None, True) == (session.leaf_entry_id, session.leaf_known_empty)


def test_a_revert_may_cut_inside_a_message(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "tool-calls").tool("prt_a", "msg_2", "c1", "completed")
    store.tool("prt_b", "msg_2", "c2", "completed")
    store.run("UPDATE session SET revert = ?", json.dumps({"messageID": "msg_2", "partID": "prt_b"}))
    assert "prt_a:result" == look(store).leaf_entry_id


def test_a_compaction_in_the_middle_of_a_turn_answers_nothing(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "tool-calls").tool("prt_a", "msg_2", "c1", "completed")
    store.message("msg_3", {"role": "user"}).part("prt_d", "msg_3", {"type": "compaction", "auto": True})
    store.assistant("msg_4", "msg_3", "stop", "summary of it", summary=True)
    store.message("msg_5", {"role": "user"}).part(
        "prt_e", "msg_5", {"type": "text", "text": "go on", "synthetic": True}
    )
    assert ("continuable", "tool_results_ready") == verdict(look(store), "msg_1")
    store.assistant("msg_6", "msg_5", "stop", "done")
    session = look(store)
    assert ["msg_1"] == [submission.submission_id for submission in session.submissions]
    assert ("completed", "response_finished") == verdict(session, "msg_1")


def test_older_messages_hold_several_steps(store: Opencode) -> None:
    store.user("msg_1").message("msg_2", {"role": "assistant", "parentID": "msg_1", "time": {"completed": 1}})
    store.part("prt_a", "msg_2", {"type": "step-start"}).tool("prt_b", "msg_2", "c1", "completed")
    store.part("prt_c", "msg_2", {"type": "step-finish"}).part("prt_d", "msg_2", {"type": "step-start"})
    store.part("prt_e", "msg_2", {"type": "text", "text": "done"}).part("prt_f", "msg_2", {"type": "step-finish"})
    session = look(store)
    assert ["msg_1", "msg_2", "prt_b:started", "prt_b:result", "msg_2:1"] == chain(session)
    assert ("completed", "response_finished") == verdict(session)


def test_a_child_session_has_signals_for_prompts(store: Opencode) -> None:
    store.run("UPDATE session SET parent_id = 'ses_0'")
    (submission,) = look(store.user("msg_1")).submissions
    assert "signal" == submission.kind


def test_a_prompt_that_was_accepted_and_not_applied_is_queued(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "stop", "done")
    store.run("INSERT INTO session_input VALUES ('inp_1', 'ses_1', '{\"text\": \"next\"}', 'queue', 1, NULL, 5)")
    store.run("INSERT INTO session_input VALUES ('inp_0', 'ses_1', '{\"text\": \"last\"}', 'queue', 0, 3, 5)")
    session = look(store)
    assert [("msg_1", "prompt", True), ("inp_1", "queued", True)] == [
        (s.submission_id, s.kind, s.is_pending) for s in session.submissions
    ]
    assert ("absent", "input_missing") == verdict(session, "inp_1")


def test_older_versions_are_not_known_to_be_write_ahead(tmp_path: Path) -> None:
    store = Opencode(tmp_path / "old.db", version="1.2.0").user("msg_1")
    assert {None} == {imported.write_ahead for imported in look(store).entries}


def test_damaged_rows_are_named_by_their_place(store: Opencode) -> None:
    store.user("msg_1").assistant("msg_2", "msg_1", "stop", "done").part("prt_x", "msg_2", "{oops").message("msg_3", {})
    store.run("UPDATE message SET data = '[]' WHERE id = 'msg_3'")
    (result,) = read_database(store.name, "opencode")
    assert [("part/prt_x", "not_json"), ("message/msg_3", "not_an_object")] == [
        (problem.place, problem.code) for problem in result.problems
    ]
    (session,) = result.sessions
    assert ("uncertain", "integrity_hold") == verdict(session, "msg_1")


def test_messages_in_the_tables_of_a_newer_version_are_refused_and_not_taken_for_none(store: Opencode) -> None:
    store.run("INSERT INTO session_message VALUES ('sm_1', 'ses_1', 'user', 1, '{}')")
    with pytest.raises(SourceVersionUnknown) as caught:
        look(store)
    assert "opencode export" in str(caught.value.hint)


def test_a_half_migrated_database_is_refused(tmp_path: Path) -> None:
    store = Opencode(tmp_path / "half.db")
    store.run("ALTER TABLE message RENAME COLUMN data TO content")
    with pytest.raises(SourceVersionUnknown, match='"message" without data'):
        look(store)


# --- exports ---------------------------------------------------------------------------------------------------------


def exported() -> dict[str, Any]:
    prompt = {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1_796_044_290_000}}
    answer = {**prompt, "id": "msg_2", "role": "assistant", "parentID": "msg_1", "finish": "tool-calls"}
    part = {"id": "prt_a", "messageID": "msg_1", "sessionID": "ses_1", "type": "text", "text": "do it"}
    tool = {"id": "prt_b", "messageID": "msg_2", "sessionID": "ses_1", **tool_part("c1", "running")}
    messages = [{"info": prompt, "parts": [part]}, {"info": answer, "parts": [tool]}]
    return {"info": {"id": "ses_1", "version": "1.18.33", "title": "x"}, "messages": messages}


@pytest.mark.parametrize("indent", [None, 2])
def test_an_export_reads_as_its_database_does(store: Opencode, indent: int | None) -> None:
    store.message("msg_1", {"role": "user", "time": {"created": 1_796_044_290_000}})
    store.part("prt_a", "msg_1", {"type": "text", "text": "do it"})
    store.message("msg_2", {"role": "assistant", "parentID": "msg_1", "finish": "tool-calls"})
    store.tool("prt_b", "msg_2", "c1", "running")
    result = read("opencode-export", [json.dumps(exported(), indent=indent).encode()])
    (session,) = result.sessions
    assert (0, "ses_1", "1.18.33") == (result.problem_count, session.session_id, result.format_version)
    assert [i.entry for i in look(store).entries] == [i.entry for i in session.entries]


def test_the_info_may_come_last(store: Opencode) -> None:
    value = exported()
    result = read("opencode-export", [json.dumps({"messages": value["messages"], "info": value["info"]}).encode()])
    assert 3 == len(result.sessions[0].entries)


def test_a_torn_export_is_taken_up_to_the_fault() -> None:
    text = json.dumps(exported()).encode()
    result = read("opencode-export", [text[: text.index(b'"prt_b"')]])
    (session,) = result.sessions
    assert ["torn_line"] == [problem.code for problem in result.problems]
    assert (["msg_1"], None) == ([i.entry.id for i in session.entries], session.entries[-1].write_ahead)


@pytest.mark.parametrize(
    "text", [b"{", b'{"info": 3}', b'{"info": {}, "messages": 7}', b"[" * 5000, b'{"info": ' + b"[" * 5000]
)
def test_whatever_stands_in_an_export_it_never_raises(text: bytes) -> None:
    result = read("opencode-export", [text])
    assert result.problem_count >= 1 or result.sessions
