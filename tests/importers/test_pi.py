"""pi session files, line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.core.classifier import inspect_session
from reconciler.core.model import Inspection, SessionEntry
from reconciler.importers.base import ImportedSession
from tests.support.session_files import PI_SESSION, Pi, read, session_of


def imported(pi: Pi, *, stem: str | None = "file") -> ImportedSession:
    return session_of(read("pi", pi.lines, stem=stem))


def entry(session: ImportedSession, entry_id: str) -> SessionEntry:
    return next(item.entry for item in session.entries if item.entry.id == entry_id)


def verdict(session: ImportedSession, submission_id: str | None = None) -> Inspection:
    asked = submission_id or next(s.submission_id for s in session.submissions if s.is_pending)
    return inspect_session(
        [item.entry for item in session.entries],
        session.leaf_entry_id,
        asked,
        leaf_known_empty=session.leaf_known_empty,
    )


def codes(pi: Pi) -> list[str]:
    return [problem.code for problem in read("pi", pi.lines).problems]


def test_a_turn_is_stamped_with_the_id_of_its_prompt() -> None:
    session = imported(
        Pi().add("m0", "model_change").user("u1").assistant("a1", calls=["c1"], stop="toolUse").result("r1", "c1")
    )
    assert PI_SESSION == session.session_id
    assert [None, "u1", "u1", "u1"] == [item.entry.submission_id for item in session.entries]
    assert [("u1", "u1", True)] == [(s.submission_id, s.input_entry_id, s.is_pending) for s in session.submissions]
    assert "r1" == session.leaf_entry_id
    assert all(item.write_ahead is True for item in session.entries)


def test_user_entries_without_an_answer_between_them_are_one_turn() -> None:
    pi = Pi().user("u1").user("u2").assistant("a1")
    session = imported(pi)
    assert (["u1"], "u1") == ([s.submission_id for s in session.submissions], entry(session, "u2").submission_id)
    assert ("u2", "response_finished") == (verdict(session).input_entry_id, verdict(session).detail)
    assert ["u1", "u3"] == [s.submission_id for s in imported(pi.user("u3")).submissions]


def test_a_prompt_after_an_error_is_a_turn_of_its_own() -> None:
    session = imported(Pi().user("u1").assistant("a1", None, stop="error", error="503 busy").user("u2"))
    assert ["u1", "u2"] == [s.submission_id for s in session.submissions]


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ('400 {"type":"error"}', False),
        ("401 invalid key", False),
        ("429 slow down", None),
        ("529 overloaded", None),
        ("Connection error.", None),
        ("4000 tokens too many", None),
    ],
)
def test_an_error_says_that_a_retry_cannot_help_only_where_its_status_proves_it(
    error: str, retryable: bool | None
) -> None:
    found = entry(imported(Pi().user("u1").assistant("a1", None, stop="error", error=error)), "a1")
    assert ("error", "none", retryable) == (found.stop_reason, found.content, found.error_retryable)


@pytest.mark.parametrize(
    ("error", "stopped_by"),
    [
        ("Operation aborted", "user"),
        ("Aborted after 1 retry attempt", "user"),
        ("Aborted after 3 retry attempts", "user"),
        ("This operation was aborted", None),
        ("Request was aborted", None),
        (None, None),
    ],
)
def test_only_the_programs_own_words_prove_that_a_person_stopped_the_turn(
    error: str | None, stopped_by: str | None
) -> None:
    session = imported(Pi().user("u1").assistant("a1", "half", stop="aborted", error=error))
    assert (stopped_by, "response_aborted") == (entry(session, "a1").stopped_by, verdict(session).detail)


def test_calls_of_a_message_that_broke_off_were_never_started() -> None:
    session = imported(Pi().user("u1").assistant("a1", calls=["c1"], stop="error", error="503"))
    assert {("a1", 0): "not_started"} == verdict(session).dispatch


def test_a_leaf_line_moves_the_active_position_and_is_never_on_the_path() -> None:
    pi = Pi().user("u1").assistant("a1").user("u2", parent="a1").assistant("a2")
    session = imported(pi.add("l1", "leaf", targetId="a1"))
    assert ("a1", "u1") == (session.leaf_entry_id, next(s.submission_id for s in session.submissions if s.is_pending))


def test_a_leaf_line_without_a_target_means_before_the_first_entry() -> None:
    session = imported(Pi().user("u1").assistant("a1").add("l1", "leaf", targetId=None))
    assert (None, True, []) == (
        session.leaf_entry_id,
        session.leaf_known_empty,
        [s for s in session.submissions if s.is_pending],
    )


def test_a_leaf_that_is_not_there_is_damage() -> None:
    pi = Pi().user("u1").assistant("a1").add("l1", "leaf", targetId="gone")
    session = imported(pi)
    assert ["missing_leaf"] == codes(pi)
    assert ("integrity_hold", "missing_leaf") == (verdict(session).detail, verdict(session).integrity)


def test_an_abandoned_branch_is_off_the_path() -> None:
    session = imported(Pi().user("u1").assistant("a1").user("u2").assistant("a2").user("u3", parent="a1"))
    assert "u3" == session.leaf_entry_id
    assert ("uncertain", "input_only") == (verdict(session).state, verdict(session).detail)
    assert "answered_off_path" == verdict(session, "u2").detail


def test_several_roots_are_legal() -> None:
    session = imported(Pi().user("u1").assistant("a1").user("u2", parent=None).assistant("a2", calls=["c"]))
    assert ("continuable", ("c",)) == (verdict(session).state, verdict(session).unresolved_tool_calls)


def test_version_1_is_a_line() -> None:
    pi = Pi(version=None)
    pi.user("x").assistant("x", calls=["c1"], stop="toolUse").result("x", "c1")
    session = imported(pi)
    assert [None, "line:2", "line:3"] == [item.entry.parent_id for item in session.entries]
    assert "tool_results_ready" == verdict(session).detail


def test_a_lost_line_of_version_1_holds_the_turn_for_a_person() -> None:
    pi = Pi(version=None)
    pi.user("x").raw(b"{torn\n").result("x", "c1")
    assert ("integrity_hold", "unreadable_entry") == (verdict(imported(pi)).detail, verdict(imported(pi)).integrity)
    assert ["not_json"] == codes(pi)


def test_a_torn_last_line_is_left_for_the_next_import() -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse")
    whole = read("pi", pi.lines)
    torn = read("pi", [*pi.lines, b'{"type":"message","id":"r1","parentId":"a1","mess'])
    assert (["torn_line"], whole.bytes_read, whole.digest) == (
        [problem.code for problem in torn.problems],
        torn.bytes_read,
        torn.digest,
    )
    # The line may have been a message with calls: what was written last is no longer known to be write-ahead.
    assert [True, None] == [item.write_ahead for item in session_of(torn).entries]


def test_a_torn_line_in_the_middle_changes_no_link() -> None:
    pi = Pi().user("u1").assistant("a1").raw(b'{"type":"message","id":"x"\n').user("u2")
    session = imported(pi)
    assert ("a1", ["not_json"]) == (entry(session, "u2").parent_id, codes(pi))
    assert {"u1": True, "a1": None, "u2": True} == {i.entry.id: i.write_ahead for i in session.entries}


def test_a_last_line_without_line_feed_counts_where_it_is_whole() -> None:
    pi = Pi().user("u1").raw(b'{"type":"label","id":"l1","parentId":"u1","targetId":"u1","label":"x"}')
    assert ("l1", []) == (imported(pi).leaf_entry_id, codes(pi))


def test_a_header_that_stands_twice_is_noted_once() -> None:
    pi = Pi().user("u1")
    pi.lines.insert(1, pi.lines[0])
    assert (PI_SESSION, ["header_repeated"]) == (imported(pi).session_id, codes(pi))


def test_a_file_without_header_is_named_by_its_file() -> None:
    pi = Pi().user("u1")
    del pi.lines[0]
    assert ("file", ["header_missing"]) == (imported(pi).session_id, codes(pi))
    assert imported(pi, stem=None).session_id.startswith("pi:")


def test_the_first_of_two_entries_with_one_id_counts() -> None:
    pi = Pi().user("u1").assistant("a1").assistant("a1", "other", parent="u1")
    assert (["duplicate_id"], 2) == (codes(pi), len(imported(pi).entries))


def test_a_cycle_of_parents_is_damage_not_a_loop() -> None:
    pi = Pi().user("u1", parent="a1").assistant("a1", calls=["c"], parent="u2").user("u2", parent="u1")
    pi.assistant("a2", calls=["d"], parent="u2")
    session = imported(pi)
    assert ["parent_cycle"] * 4 == codes(pi)
    assert "a2" == session.leaf_entry_id
    looped = imported(Pi().assistant("a1", calls=["c"], parent="a2").assistant("a2", parent="a1", calls=["d"]))
    assert [] == [s for s in looped.submissions if s.is_pending]


def test_a_missing_parent_between_leaf_and_prompt_is_damage() -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse").result("r1", "c1", parent="lost")
    session = imported(pi)
    (pending,) = [s for s in session.submissions if s.is_pending]
    assert (["missing_parent"], "before:lost", "cut") == (codes(pi), pending.submission_id, pending.kind)
    assert ("integrity_hold", "missing_parent") == (verdict(session).detail, verdict(session).integrity)


def test_an_answer_below_a_missing_parent_still_counts() -> None:
    session = imported(Pi().assistant("a1", parent="lost"))
    assert "answered_in_damage" == verdict(session).detail


def test_what_starts_no_turn_is_no_prompt() -> None:
    bash: dict[str, object] = {"role": "bashExecution", "command": "ls", "output": "x"}
    pi = Pi().user("u1").assistant("a1").message("b1", bash).add("cm", "custom_message", content="note", customType="x")
    session = imported(pi)
    assert (["u1"], "response_finished") == ([s.submission_id for s in session.submissions], verdict(session).detail)
    assert {"custom"} == {entry(session, "b1").kind, entry(session, "cm").kind}


def test_an_injected_message_that_the_model_answers_is_a_turn_of_its_own() -> None:
    pi = Pi().user("u1").assistant("a1").add("cm", "custom_message", content="a child finished", customType="x")
    session = imported(pi.assistant("a2", calls=["c1"], stop="toolUse"))
    assert [("u1", "prompt", False), ("cm", "signal", True)] == [
        (s.submission_id, s.kind, s.is_pending) for s in session.submissions
    ]
    assert ("moved_on", "tool_calls_unresolved") == (verdict(session, "u1").detail, verdict(session).detail)


def test_an_injected_message_inside_a_turn_changes_nothing() -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse").result("r1", "c1")
    session = imported(pi.add("cm", "custom_message", content="hint", customType="x").assistant("a2"))
    assert (["u1"], "response_finished") == ([s.submission_id for s in session.submissions], verdict(session).detail)


def test_a_compaction_lies_on_the_path() -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse")
    pi.add("k", "compaction", summary="s", firstKeptEntryId="k", tokensBefore=1).result("r1", "c1")
    assert "tool_results_ready" == verdict(imported(pi)).detail


def test_unknown_kinds_and_roles_are_kept_and_counted() -> None:
    pi = Pi().user("u1").add("x1", "hologram").message("x2", {"role": "oracle", "content": "?"})
    result = read("pi", pi.lines)
    assert {"hologram": 1, "message:oracle": 1} == result.unknown
    assert ["message", "custom", "custom"] == [item.entry.kind for item in session_of(result).entries]


@pytest.mark.parametrize(
    ("raw", "stop"), [("deferred", "tool_use"), ("length", "length"), ("somethingNew", None), (None, None)]
)
def test_stop_reasons_are_mapped(raw: str | None, stop: str | None) -> None:
    assert stop == entry(imported(Pi().user("u1").assistant("a1", stop=raw)), "a1").stop_reason


def test_an_unknown_stop_reason_on_calls_reads_as_tool_use() -> None:
    assert "tool_use" == entry(imported(Pi().user("u1").assistant("a1", calls=["c"], stop="new")), "a1").stop_reason


def test_long_ids_are_replaced_with_their_links() -> None:
    long = "x" * 10_000
    pi = Pi().user(long).assistant("a1", calls=[long], stop="toolUse").result("r1", long)
    session = imported(pi)
    first, call, answer = (item.entry for item in session.entries)
    assert first.id == call.parent_id
    assert call.tool_call_ids == (answer.tool_call_id,)
    assert (len(first.id) < 100, "tool_results_ready") == (True, verdict(session).detail)
    assert {"id_replaced"} == set(codes(pi))


def test_reserved_ids_of_a_source_are_replaced() -> None:
    session = imported(Pi().user("submission-settled:u1").assistant("a1"))
    assert all(not item.entry.id.startswith("submission-settled:") for item in session.entries)


@pytest.mark.parametrize(
    "line",
    [
        {"type": "message", "id": "x", "parentId": "u1", "message": "text"},
        {"type": "message", "id": "x", "parentId": "u1", "message": {"role": "assistant", "content": [1, None, {}]}},
        {"type": "message", "id": "x", "parentId": 7, "message": {"role": ["a"]}},
        {"type": ["message"], "id": "x", "parentId": "u1"},
        {"type": "message", "id": 5, "parentId": "u1"},
        {"id": "x"},
        [],
        "text",
        3,
        None,
    ],
)
def test_lines_of_the_wrong_shape_never_raise(line: Any) -> None:
    assert 1 <= len(imported(Pi().user("u1").raw(json.dumps(line).encode() + b"\n")).entries) <= 2
