"""Claude Code transcripts, line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.core.classifier import inspect_session
from reconciler.core.model import Inspection, SessionEntry
from reconciler.importers.base import ImportedSession
from tests.support.session_files import CLAUDE_SESSION, Claude, read, session_of


def imported(claude: Claude, *, stem: str | None = "file") -> ImportedSession:
    return session_of(read("claude-code", claude.lines, stem=stem))


def entry(session: ImportedSession, entry_id: str) -> SessionEntry:
    return next(item.entry for item in session.entries if item.entry.id == entry_id)


def pending(session: ImportedSession) -> str | None:
    return next((s.submission_id for s in session.submissions if s.is_pending), None)


def verdict(session: ImportedSession, submission_id: str | None = None) -> Inspection:
    asked = submission_id or pending(session)
    assert asked is not None
    return inspect_session(
        [item.entry for item in session.entries],
        session.leaf_entry_id,
        asked,
        leaf_known_empty=session.leaf_known_empty,
    )


def codes(claude: Claude) -> list[str]:
    return [problem.code for problem in read("claude-code", claude.lines).problems]


# --- one message from several lines ----------------------------------------------------------------------------------


def test_the_lines_of_one_message_become_one_entry() -> None:
    claude = Claude().user("u1").thinking("a1", "m1").text("a2", "m1", "tool_use").call("a3", "m1", "c1")
    session = imported(claude.result("r1", "c1").text("b1", "m2"))
    assert ["u1", "a1", "r1", "b1"] == [item.entry.id for item in session.entries]
    message = entry(session, "a1")
    assert (("c1",), "text", "tool_use") == (message.tool_call_ids, message.content, message.stop_reason)
    assert (2, 3, 4) == next(item.lines for item in session.entries if item.entry.id == "a1")
    assert "a1" == entry(session, "r1").parent_id


def test_a_block_that_hangs_from_a_result_of_the_same_message_joins_it() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1").call("a2", "m1", "c2").call("a3", "m1", "c3")
    session = imported(claude.result("r3", "c3"))
    assert (("c1", "c2", "c3"), "u1") == (entry(session, "a1").tool_call_ids, entry(session, "a1").parent_id)
    assert ("a1", "a1", "r3") == (
        entry(session, "r1").parent_id,
        entry(session, "r3").parent_id,
        session.leaf_entry_id,
    )
    found = verdict(session)
    assert ("tool_batch_partial", ("c2",)) == (found.detail, found.unresolved_tool_calls)


def test_results_stand_at_the_end_where_the_last_line_is_a_block_of_their_message() -> None:
    session = imported(Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1").call("a2", "m1", "c2"))
    found = verdict(session)
    assert ("r1", "tool_batch_partial", ("c2",)) == (session.leaf_entry_id, found.detail, found.unresolved_tool_calls)


def test_parallel_results_on_sibling_lines_are_seen() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").call("a2", "m1", "c2")
    claude.result("r2", "c2", parent="a2").result("r1", "c1", parent="a1").text("b1", "m2", parent="r1")
    assert "response_finished" == verdict(imported(claude)).detail
    cut = imported(Claude().user("u1").call("a1", "m1", "c1").call("a2", "m1", "c2").result("r1", "c1", parent="a1"))
    assert ("c2",) == verdict(cut).unresolved_tool_calls


def test_one_message_id_in_two_turns_is_two_messages() -> None:
    claude = Claude().user("u1").text("a1", "m1").user("u2").text("a2", "m1")
    assert 4 == len(imported(claude).entries)


def test_several_results_in_one_line_are_an_entry_each() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").call("a2", "m1", "c2").result("r", "c1", "c2").text("b1", "m2")
    session = imported(claude)
    assert ["u1", "a1", "r", "r:1", "b1"] == [item.entry.id for item in session.entries]
    assert ("r", "r:1") == (entry(session, "r:1").parent_id, entry(session, "b1").parent_id)
    assert "response_finished" == verdict(session).detail


def test_progress_lines_are_parents_but_no_entries() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").add("p1", "progress").add("p2", "progress").result("r1", "c1")
    session = imported(claude.add("p3", "progress", parent="r1"))
    assert ["u1", "a1", "r1"] == [item.entry.id for item in session.entries]
    assert ("a1", "r1") == (entry(session, "r1").parent_id, session.leaf_entry_id)


# --- stop reasons by version -----------------------------------------------------------------------------------------


def test_an_old_text_without_a_stop_reason_is_an_answer() -> None:
    session = imported(Claude(version="2.1.40").user("u1").text("a1", "m1", None))
    assert (None, "response_finished", True) == (
        entry(session, "a1").stop_reason,
        verdict(session).detail,
        session.response_may_grow,
    )


def test_a_new_text_without_a_stop_reason_never_ended() -> None:
    session = imported(Claude(version="2.1.332").user("u1").text("a1", "m1", None))
    assert ("aborted", "response_aborted") == (entry(session, "a1").stop_reason, verdict(session).detail)


def test_the_stop_reason_of_a_message_is_that_of_its_last_line_that_has_one() -> None:
    session = imported(Claude(version="2.1.70").user("u1").thinking("a1", "m1", None).text("a2", "m1", "end_turn"))
    assert "stop" == entry(session, "a1").stop_reason


def test_old_calls_ended_for_their_calls() -> None:
    session = imported(Claude(version="2.1.40").user("u1").call("a1", "m1", "c1", None).result("r1", "c1"))
    assert "tool_results_ready" == verdict(session).detail


def test_a_note_that_the_turn_is_over_below_results_ends_it() -> None:
    claude = Claude(version="2.1.40").user("u1").call("a1", "m1", "c1", None).result("r1", "c1")
    session = imported(claude.add("s1", "system", subtype="turn_duration"))
    assert ("tool_batch_resolved", "r1") == (verdict(session).detail, session.leaf_entry_id)


def test_a_note_that_the_turn_is_over_ends_a_message_of_reasoning_alone() -> None:
    claude = Claude(version="2.1.40").user("u1").thinking("a1", "m1", None)
    assert "response_cut" == verdict(imported(claude)).detail
    assert "response_finished" == verdict(imported(claude.add("s", "system", subtype="stop_hook_summary"))).detail


def test_a_call_that_was_announced_and_never_written_is_a_cut_response() -> None:
    session = imported(Claude().user("u1").text("a1", "m1", "tool_use"))
    assert "response_cut" == verdict(session).detail


@pytest.mark.parametrize(
    ("raw", "stop"),
    [("max_tokens", "length"), ("refusal", "stop"), ("pause_turn", "tool_use"), ("stop_sequence", "stop"), ("x", None)],
)
def test_stop_reasons_are_mapped(raw: str, stop: str | None) -> None:
    session = imported(Claude(version="2.1.40").user("u1").text("a1", "m1", raw))
    assert stop == entry(session, "a1").stop_reason


@pytest.mark.parametrize(("version", "write_ahead"), [("2.1.52", None), ("2.1.59", False), ("2.1.332", False)])
def test_no_version_is_known_to_be_write_ahead(version: str, write_ahead: bool | None) -> None:
    session = imported(Claude(version=version).user("u1").call("a1", "m1", "c1"))
    assert [write_ahead] * 2 == [item.write_ahead for item in session.entries]


# --- what a user line is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fields", "kind", "is_synthetic"),
    [
        ("<local-command-stdout>bye</local-command-stdout>", {}, "custom", False),
        ("<bash-stdout>x</bash-stdout>", {}, "custom", False),
        ("<bash-input>ls</bash-input>", {}, "custom", False),
        ("<local-command-caveat>Caveat</local-command-caveat>", {"isMeta": True}, "message", True),
        ("Continue from where you left off.", {"isMeta": True}, "message", True),
        ([{"type": "text", "text": "summary"}], {"isCompactSummary": True}, "compaction", False),
        ("[Request interrupted by user]", {}, "message", True),
        ("[This turn ended before it finished.]", {}, "message", True),
    ],
)
def test_what_a_program_writes_in_user_lines_is_no_prompt(
    content: object, fields: dict[str, Any], kind: str, is_synthetic: bool
) -> None:
    session = imported(Claude().user("u1").text("a1", "m1").user("x1", content, **fields))
    assert (kind, is_synthetic) == (entry(session, "x1").kind, entry(session, "x1").is_synthetic)
    assert (["u1"], "response_finished") == ([s.submission_id for s in session.submissions], verdict(session).detail)


def test_an_interruption_by_the_person_is_a_fact_beside_the_state() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1")
    found = verdict(imported(claude.user("i1", "[Request interrupted by user for tool use]")))
    assert ("continuable", "tool_results_ready", "user") == (found.state, found.detail, found.stopped_by)


def test_an_interruption_by_the_program_proves_no_person() -> None:
    claude = Claude().user("u1").user("i1", "[Request interrupted: the session ended before this agent finished]")
    assert verdict(imported(claude)).stopped_by is None


def test_a_slash_command_is_a_prompt_unless_the_program_answers_it_itself() -> None:
    command = "<command-name>/review</command-name>"
    prompt = imported(Claude().user("u1", command).user("e1", "Review the code", isMeta=True).text("a1", "m1"))
    assert (["u1"], "response_finished") == ([s.submission_id for s in prompt.submissions], verdict(prompt).detail)
    local = Claude().user("u1", "<command-name>/exit</command-name>")
    local.user("o1", "<local-command-stdout>Bye!</local-command-stdout>")
    assert () == imported(local).submissions


def test_a_task_notification_starts_a_turn_of_its_own() -> None:
    claude = Claude().user("u1").text("a1", "m1").user("n1", "<task-notification>done</task-notification>")
    session = imported(claude.call("a2", "m2", "c1"))
    assert [("u1", "prompt"), ("n1", "signal")] == [(s.submission_id, s.kind) for s in session.submissions]
    assert ("moved_on", "tool_calls_unresolved") == (verdict(session, "u1").detail, verdict(session).detail)


def test_the_prompt_id_is_the_submission_id() -> None:
    session = imported(Claude().user("u1", promptId="p1").call("a1", "m1", "c1").result("r1", "c1", promptId="p1"))
    assert ("p1", ["p1"] * 3) == (pending(session), [item.entry.submission_id for item in session.entries])


def test_a_text_delivered_into_the_running_turn_belongs_to_it() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1")
    claude.add(
        "s1", "attachment", attachment={"type": "queued_command", "prompt": "also this", "commandMode": "prompt"}
    )
    session = imported(claude)
    found = verdict(session)
    assert ("u1", "s1", "input_only") == (pending(session), found.input_entry_id, found.detail)
    assert "response_finished" == verdict(imported(claude.text("a2", "m2"))).detail


def test_a_queued_prompt_that_was_never_delivered_is_absent() -> None:
    claude = Claude().user("u1").text("a1", "m1")
    claude.outside("queue-operation", operation="enqueue", timestamp="t1", content="later")
    session = imported(claude)
    queued = session.submissions[-1]
    assert ("queued", None, '{"content":"later"}', True) == (
        queued.kind,
        queued.input_entry_id,
        queued.payload,
        queued.is_pending,
    )
    assert ("absent", "input_missing") == (
        verdict(session, queued.submission_id).state,
        verdict(session, queued.submission_id).detail,
    )


@pytest.mark.parametrize("operation", ["dequeue", "remove", "popAll"])
def test_a_queued_prompt_that_was_delivered_or_taken_back_is_no_submission(operation: str) -> None:
    claude = Claude().user("u1").outside("queue-operation", operation="enqueue", timestamp="t1", content="later")
    assert ["u1"] == [
        s.submission_id for s in imported(claude.outside("queue-operation", operation=operation)).submissions
    ]


def test_a_queued_notice_of_the_program_is_no_prompt() -> None:
    claude = Claude().user("u1")
    claude.outside("queue-operation", operation="enqueue", timestamp="t", content='{"task_id":"b1","status":"done"}')
    assert ["u1"] == [s.submission_id for s in imported(claude).submissions]


# --- errors and filler -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "retryable"),
    [
        ({"apiErrorStatus": 400}, False),
        ({"apiErrorStatus": 529}, None),
        ({"error": "authentication_failed"}, False),
        ({"error": "rate_limit"}, None),
        ({}, None),
    ],
)
def test_an_api_error_line_is_an_error_without_words_of_the_model(
    fields: dict[str, Any], retryable: bool | None
) -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1")
    claude.text("e1", "m2", "stop_sequence", "API Error", model="<synthetic>", isApiErrorMessage=True, **fields)
    session = imported(claude)
    found = entry(session, "e1")
    assert ("error", "none", retryable, False) == (
        found.stop_reason,
        found.content,
        found.error_retryable,
        found.is_synthetic,
    )
    assert "tool_results_ready" == verdict(session).detail


def test_the_filler_of_a_resumed_session_is_no_answer() -> None:
    claude = Claude().user("u1").user("f1", "Continue from where you left off.", isMeta=True)
    claude.text("f2", "m1", "stop_sequence", "No response requested.", model="<synthetic>")
    assert ("uncertain", "input_only") == (verdict(imported(claude)).state, verdict(imported(claude)).detail)


# --- compaction, branches, sidechains --------------------------------------------------------------------------------


def compacted(**boundary: object) -> Claude:
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1")
    claude.add("k1", "system", parent=None, subtype="compact_boundary", **boundary)
    return claude.user("k2", "summary", isCompactSummary=True).call("a2", "m2", "c2")


def test_a_compaction_boundary_hangs_from_the_entry_before_it() -> None:
    session = imported(compacted(logicalParentUuid="r1"))
    assert ("r1", "u1") == (entry(session, "k1").parent_id, entry(session, "a2").submission_id)
    assert ("tool_calls_unresolved", ("c2",)) == (verdict(session).detail, verdict(session).unresolved_tool_calls)


def test_a_boundary_without_the_link_hangs_from_the_line_before_it() -> None:
    assert "r1" == entry(imported(compacted()), "k1").parent_id


def test_a_boundary_whose_entry_is_not_in_the_file_has_a_missing_parent() -> None:
    session = imported(compacted(logicalParentUuid="lost"))
    found = verdict(session)
    assert ("before:lost", "integrity_hold", "missing_parent") == (pending(session), found.detail, found.integrity)


def test_a_boundary_at_the_head_of_a_file_is_no_beginning() -> None:
    claude = Claude().add("k1", "system", parent=None, subtype="compact_boundary")
    session = imported(claude.user("k2", "summary", isCompactSummary=True).text("a1", "m1"))
    assert ("answered_in_damage", ["missing_parent"]) == (verdict(session).detail, codes(claude))


def test_a_line_written_again_behind_the_boundary_makes_no_cycle() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").result("r1", "c1")
    claude.add("k1", "system", parent=None, subtype="compact_boundary", logicalParentUuid="r1")
    claude.user("k2", "summary", isCompactSummary=True).result("r1", "c1", parent="k2").text("a2", "m2")
    session = imported(claude)
    assert [] == [code for code in codes(claude) if code == "parent_cycle"]
    assert ("u1", "response_finished") == (pending(session), verdict(session).detail)


def test_the_last_line_with_a_uuid_counts() -> None:
    claude = Claude().user("u1").text("a1", "m1", text="first").text("a1", "m1", text="second", parent="u1")
    session = imported(claude)
    assert (["duplicate_id"], (3,)) == (codes(claude), session.entries[-1].lines)


def test_a_line_that_is_merely_repeated_is_no_problem() -> None:
    claude = Claude().user("u1").text("a1", "m1")
    claude.lines.append(claude.lines[-1])
    assert ([], 2) == (codes(claude), len(imported(claude).entries))


def test_a_rewind_leaves_the_other_branch_off_the_path() -> None:
    claude = Claude().user("u1").text("a1", "m1").user("u2").text("a2", "m2").user("u3", parent="a1")
    session = imported(claude)
    assert ("u3", "input_only") == (pending(session), verdict(session).detail)
    assert ["u1", "u2", "u3"] == [s.submission_id for s in session.submissions]


def test_a_sub_agents_lines_are_sidechain_and_decide_nothing() -> None:
    claude = Claude().user("u1").call("a1", "m1", "task")
    claude.user("s1", "look", parent=None, isSidechain=True).text("s2", "ms", isSidechain=True)
    session = imported(claude)
    assert ("a1", "tool_calls_unresolved") == (session.leaf_entry_id, verdict(session).detail)
    assert {"s1", "s2"} == {item.entry.id for item in session.entries if item.entry.is_sidechain}


def test_a_sub_agents_own_file_is_a_session_beside_its_parents() -> None:
    claude = Claude().user("s1", isSidechain=True, agentId="77").text("s2", "m1", isSidechain=True, agentId="77")
    session = imported(claude, stem="agent-77")
    assert (f"{CLAUDE_SESSION}:agent-77", None, True, ()) == (
        session.session_id,
        session.leaf_entry_id,
        session.leaf_known_empty,
        session.submissions,
    )


def test_a_resumed_file_takes_the_id_of_its_name_or_of_its_last_line() -> None:
    claude = Claude(session_id="old").user("u1").text("a1", "m1")
    claude.session_id = "new"
    claude.user("u2")
    assert ("new", "old") == (imported(claude).session_id, imported(claude, stem="old").session_id)
    assert ["several_session_ids"] == codes(claude)


def test_a_cut_head_leaves_the_prompt_above_reachable() -> None:
    claude = Claude().add("s1", "system", parent="lost", subtype="stop_hook_summary").user("u1").text("a1", "m1")
    assert ("response_finished", ["missing_parent"]) == (verdict(imported(claude)).detail, codes(claude))


def test_a_turn_that_lost_its_prompt_is_named_by_the_prompt_id_of_its_results() -> None:
    claude = Claude().call("a1", "m1", "c1", parent="lost").result("r1", "c1", promptId="p1").text("a2", "m2")
    session = imported(claude)
    assert ("p1", "answered_in_damage") == (pending(session), verdict(session).detail)


def test_lost_lines_inside_the_turn_hold_it_for_a_person() -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1").raw(b'{"uuid":"r1","parentUuid":"a1", oops}\n')
    session = imported(claude.text("a2", "m2", "tool_use", parent="r1"))
    assert ("integrity_hold", ["missing_parent", "not_json"]) == (verdict(session).detail, sorted(codes(claude)))


def test_unknown_kinds_are_kept_and_counted() -> None:
    claude = Claude().user("u1").add("x1", "hologram").text("a1", "m1").outside("aura", colour="red")
    result = read("claude-code", claude.lines)
    assert {"hologram": 1, "aura": 1} == result.unknown
    assert ["message", "custom", "message", "custom"] == [item.entry.kind for item in session_of(result).entries]
    assert "response_finished" == verdict(session_of(result)).detail


def test_lines_outside_the_dag_are_counted_and_left_out() -> None:
    claude = Claude().outside("summary", summary="other", leafUuid="z").user("u1").outside("file-history-snapshot")
    result = read("claude-code", claude.lines)
    assert ({"summary": 1, "file-history-snapshot": 1}, 1) == (result.skipped, len(session_of(result).entries))


def test_a_cycle_of_parents_is_damage_not_a_loop() -> None:
    claude = Claude().user("u1", parent="a2").call("a1", "m1", "c1").call("a2", "m2", "c2")
    session = imported(claude)
    assert ["parent_cycle"] * 3 == codes(claude)
    assert (None, False) == (session.leaf_entry_id, session.leaf_known_empty)
    assert ("integrity_hold", "missing_leaf") == (verdict(session).detail, verdict(session).integrity)


@pytest.mark.parametrize("value", [None, 1, [], {}, "x", [["a"]], {"type": []}, True])
@pytest.mark.parametrize(
    "key", ["type", "uuid", "parentUuid", "message", "version", "sessionId", "promptId", "attachment", "timestamp"]
)
def test_lines_of_the_wrong_shape_never_raise(key: str, value: object) -> None:
    for kind in ("user", "assistant", "system", "attachment", "queue-operation"):
        claude = Claude().user("u1").add("x1", kind, message={"content": "hi"})
        line = claude.lines[-1]
        assert isinstance(line, dict)
        line[key] = value
        assert 1 <= len(imported(claude.raw(json.dumps(value).encode() + b"\n")).entries) <= 3
