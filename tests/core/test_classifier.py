"""The table, row by row, and the rules that a bare path shows (contract 3.1: R1 to R5, R11 to R13)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from reconciler.core.classifier import (
    classify_submission_state,
    find_submission_input_index,
    has_submission_settled_entry,
    inspect_submission,
    submission_input_entry_id,
    submission_settlement_entry_id,
    tool_marker_entry_id,
    turn_evidence,
)
from reconciler.core.model import CallDispatch, Detail, SessionEntry, SubmissionInspection, TurnEvidence
from tests.core.strategies import OTHER, SUBMISSION, assistant, linear, other, result, settled, user

IN = user("in")

# name, entries after the input (or the whole path, where it names its own), detail, deciding entry, unresolved calls
ROWS: list[tuple[str, Sequence[SessionEntry], Detail, str | None, tuple[str, ...]]] = [
    ("a settlement", [IN, settled()], Detail.SETTLED_ENTRY, "set", ()),
    ("a settlement without any input", [settled()], Detail.SETTLED_ENTRY, "set", ()),
    ("a settlement before later entries", [IN, settled(), assistant("a", "error")], Detail.SETTLED_ENTRY, "set", ()),
    ("a settlement flagged as sidechain", [IN, settled(is_sidechain=True)], Detail.SETTLED_ENTRY, "set", ()),
    ("another's settlement", [IN, settled(submission_id=OTHER)], Detail.INPUT_ONLY, "in", ()),
    ("nothing", [], Detail.INPUT_MISSING, None, ()),
    ("another's turn", [user("x", OTHER), assistant("a", "stop")], Detail.INPUT_MISSING, None, ()),
    ("a synthetic input", [user("x", is_synthetic=True)], Detail.INPUT_MISSING, None, ()),
    ("a sidechain's input", [user("x", is_sidechain=True)], Detail.INPUT_MISSING, None, ()),
    ("an assistant with the id", [assistant("a", "stop", submission_id=SUBMISSION)], Detail.INPUT_MISSING, None, ()),
    ("an input of another kind", [other("x", role="user", submission_id=SUBMISSION)], Detail.INPUT_MISSING, None, ()),
    ("a foreign input", [IN, assistant("a", "error"), user("x", OTHER)], Detail.MOVED_ON, "x", ()),
    ("a person without an id", [IN, user("x", None)], Detail.MOVED_ON, "x", ()),
    ("two foreign inputs: the first", [IN, user("x", None), user("y", OTHER)], Detail.MOVED_ON, "x", ()),
    ("another's signal", [IN, user("x", OTHER, role="signal")], Detail.MOVED_ON, "x", ()),
    ("a signal without an id", [IN, user("x", None, role="signal")], Detail.INPUT_ONLY, "in", ()),
    ("a signal as the input", [user("x", role="signal")], Detail.INPUT_ONLY, "x", ()),
    ("a result of a lost call", [IN, result("r", "t1")], Detail.ORPHAN_RESULT, "r", ()),
    ("a result that names no call", [IN, result("r", None)], Detail.ORPHAN_RESULT, "r", ()),
    ("two results of lost calls: the first", [IN, result("r", "t1"), result("s", "t2")], Detail.ORPHAN_RESULT, "r", ()),
    ("a result of a call before", [assistant("a", None, "t1"), IN, result("r", "t1")], Detail.INPUT_ONLY, "in", ()),
    (
        "a second result of a call before",
        [assistant("a", None, "t1"), result("q", "t1"), IN, result("r", "t1")],
        Detail.INPUT_ONLY,
        "in",
        (),
    ),
    (
        "a result before its call",
        [IN, result("r", "t1"), assistant("a", None, "t1", is_synthetic=True)],
        Detail.ORPHAN_RESULT,
        "r",
        (),
    ),
    ("the input", [IN], Detail.INPUT_ONLY, "in", ()),
    ("a bare error", [IN, assistant("a", "error", content="none")], Detail.INPUT_ONLY, "in", ()),
    ("a bare message without an end", [IN, assistant("a", content="none")], Detail.INPUT_ONLY, "in", ()),
    ("a bare message with an odd end", [IN, assistant("a", "refused", content="none")], Detail.INPUT_ONLY, "in", ()),
    ("an empty answer", [IN, assistant("a", "stop", content="none")], Detail.EMPTY_RESPONSE, "a", ()),
    ("an answer cut by length, empty", [IN, assistant("a", "length", content="none")], Detail.EMPTY_RESPONSE, "a", ()),
    ("an answer", [IN, assistant("a", "stop")], Detail.RESPONSE_FINISHED, "a", ()),
    ("an answer cut by length", [IN, assistant("a", "length")], Detail.RESPONSE_FINISHED, "a", ()),
    ("an answer of reasoning", [IN, assistant("a", "stop", content="reasoning")], Detail.RESPONSE_FINISHED, "a", ()),
    ("text without an end", [IN, assistant("a")], Detail.RESPONSE_FINISHED, "a", ()),
    ("text with an odd end", [IN, assistant("a", "refused")], Detail.RESPONSE_FINISHED, "a", ()),
    (
        "an answer beside an open call",
        [IN, assistant("a", "tool_use", "t1"), assistant("b", "stop")],
        Detail.RESPONSE_FINISHED,
        "b",
        (),
    ),
    ("an open call", [IN, assistant("a", "tool_use", "t1")], Detail.TOOL_CALLS_UNRESOLVED, "a", ("t1",)),
    (
        "an open call in an answer that stopped",
        [IN, assistant("a", "stop", "t1")],
        Detail.TOOL_CALLS_UNRESOLVED,
        "a",
        ("t1",),
    ),
    (
        "an open call under a failed message with text",
        [IN, assistant("a", "tool_use", "t1"), assistant("b", "error")],
        Detail.TOOL_CALLS_UNRESOLVED,
        "b",
        ("t1",),
    ),
    (
        "a call answered in part",
        [IN, assistant("a", "tool_use", "t1", "t2", "t3"), result("r", "t2")],
        Detail.TOOL_BATCH_PARTIAL,
        "a",
        ("t1", "t3"),
    ),
    (
        "a result that ends the turn",
        [IN, assistant("a", "tool_use", "t1"), result("r", "t1", ends_turn=True)],
        Detail.TURN_ENDED_BY_TOOL,
        "a",
        (),
    ),
    (
        "two results of which one ends the turn",
        [IN, assistant("a", "tool_use", "t1", "t2"), result("r", "t1", ends_turn=True), result("s", "t2")],
        Detail.TOOL_RESULTS_READY,
        "a",
        (),
    ),
    (
        "a further result that ends the turn",
        [IN, assistant("a", "tool_use", "t1"), result("r", "t1"), result("s", "t1", ends_turn=True)],
        Detail.TOOL_RESULTS_READY,
        "a",
        (),
    ),
    (
        "results of a message without an end",
        [IN, assistant("a", None, "t1"), result("r", "t1")],
        Detail.TOOL_BATCH_RESOLVED,
        "a",
        (),
    ),
    (
        "the same, and a bare error after",
        [IN, assistant("a", None, "t1"), result("r", "t1"), assistant("b", "error", content="none")],
        Detail.TOOL_RESULTS_READY,
        "a",
        (),
    ),
    (
        "the same, and a bare abort after",
        [IN, assistant("a", None, "t1"), result("r", "t1"), assistant("b", "aborted", content="none")],
        Detail.TOOL_RESULTS_READY,
        "a",
        (),
    ),
    (
        "a bare error before the message without an end",
        [IN, assistant("b", "error", content="none"), assistant("a", None, "t1"), result("r", "t1")],
        Detail.TOOL_BATCH_RESOLVED,
        "a",
        (),
    ),
    (
        "results of a message with an odd end",
        [IN, assistant("a", "pause_turn", "t1"), result("r", "t1")],
        Detail.TOOL_RESULTS_READY,
        "a",
        (),
    ),
    (
        "results of a failed message",
        [IN, assistant("a", "error", "t1"), result("r", "t1")],
        Detail.TOOL_RESULTS_READY,
        "a",
        (),
    ),
    ("a failed message with text", [IN, assistant("a", "error")], Detail.PROVIDER_ERROR, "a", ()),
    ("an aborted message with text", [IN, assistant("a", "aborted")], Detail.RESPONSE_ABORTED, "a", ()),
    ("calls that were never written", [IN, assistant("a", "tool_use")], Detail.RESPONSE_CUT, "a", ()),
    ("bare, calls never written", [IN, assistant("a", "tool_use", content="none")], Detail.RESPONSE_CUT, "a", ()),
    ("reasoning without an end", [IN, assistant("a", content="reasoning")], Detail.RESPONSE_CUT, "a", ()),
]


@pytest.mark.parametrize(
    ("path", "detail", "deciding", "unresolved"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_each_row_of_the_table_is_recognised(
    path: Sequence[SessionEntry], detail: Detail, deciding: str | None, unresolved: tuple[str, ...]
) -> None:
    inspection = inspect_submission(linear(*path), SUBMISSION)
    assert (detail, deciding, unresolved) == (
        inspection.detail,
        inspection.deciding_entry_id,
        inspection.unresolved_tool_calls,
    )
    assert inspection.state == classify_submission_state(linear(*path), SUBMISSION)
    assert inspection.integrity is None
    assert inspection.problems == ()


def test_every_row_of_a_bare_path_is_in_the_list_above() -> None:
    of_sessions = {
        Detail.ANSWERED_OFF_PATH,
        Detail.ABANDONED_BRANCH,
        Detail.LEAF_MOVED,
        Detail.ANSWERED_IN_DAMAGE,
        Detail.INTEGRITY_HOLD,
    }
    assert set(Detail) - of_sessions == {row[2] for row in ROWS}


# --- ids and helpers -------------------------------------------------------------------------------------------------


def test_derived_ids_are_the_ones_of_the_contract() -> None:
    assert submission_settlement_entry_id("S:1") == "submission-settled:S:1"
    assert submission_input_entry_id("S:1") == "submission-input:S:1"
    assert tool_marker_entry_id("a:é", 2) == "tool-marker:3:a:é:2"


def test_marker_ids_of_entries_with_colons_never_meet() -> None:
    assert tool_marker_entry_id("a:1", 2) != tool_marker_entry_id("a", 12)
    assert len({tool_marker_entry_id(entry, place) for entry in ("a", "a:1", "a:1:1") for place in (1, 11)}) == 6


def test_the_last_input_is_found() -> None:
    path = linear(user("x"), user("y"), user("z", OTHER), user("s", is_synthetic=True))
    assert find_submission_input_index(path, SUBMISSION) == 1
    assert find_submission_input_index(path, "S9") == -1
    assert find_submission_input_index([], SUBMISSION) == -1


def test_a_settlement_is_found_by_kind_and_submission() -> None:
    assert has_submission_settled_entry([user(), settled()], SUBMISSION)
    assert not has_submission_settled_entry([user(), settled(submission_id=OTHER)], SUBMISSION)
    assert not has_submission_settled_entry([user("submission-settled:S1")], SUBMISSION)


# --- R2: pairing -----------------------------------------------------------------------------------------------------


def test_an_id_used_again_in_a_later_turn_is_open_again() -> None:
    path = linear(
        user("i0", OTHER),
        assistant("a", "tool_use", "call_0"),
        result("r", "call_0"),
        assistant("b", "stop"),
        IN,
        assistant("c", "tool_use", "call_0"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert inspection.unresolved_tool_calls == ("call_0",)
    assert inspection.interior_open_calls == ()


def test_a_result_closes_the_latest_open_call_of_its_id_and_leaves_an_older_one_open() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "call_0"),
        assistant("x", "error", content="none"),
        assistant("b", "tool_use", "call_0"),
        result("r", "call_0"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert inspection.detail == Detail.TOOL_RESULTS_READY
    assert inspection.interior_open_calls == ("call_0",)
    assert list(inspection.dispatch) == [("a", 0)]


def test_a_second_result_closes_the_older_call_of_the_same_id() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "call_0"),
        assistant("b", "tool_use", "call_0"),
        result("r", "call_0"),
        result("s", "call_0"),
    )
    assert inspect_submission(path, SUBMISSION).dispatch == {}


def test_results_may_come_out_of_order_twice_or_for_nothing() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1", "t2"),
        result("r2", "t2"),
        result("r9", "t9"),
        result("again", "t2"),
        result("r1", "t1"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert (inspection.detail, dict(inspection.dispatch)) == (Detail.TOOL_RESULTS_READY, {})


def test_a_repair_marker_is_a_result() -> None:
    marker = result(tool_marker_entry_id("a", 0), "t1", is_synthetic=True)
    inspection = inspect_submission(linear(IN, assistant("a", "tool_use", "t1"), marker), SUBMISSION)
    assert inspection.detail == Detail.TOOL_RESULTS_READY


def test_a_sidechains_result_closes_nothing_and_its_calls_are_none() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1"),
        assistant("s", "tool_use", "t1", is_sidechain=True),
        result("r", "t1", is_sidechain=True),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert inspection.unresolved_tool_calls == ("t1",)
    assert list(inspection.dispatch) == [("a", 0)]


def test_a_fillers_call_takes_no_result_from_a_models_call() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1"),
        assistant("f", "tool_use", "t1", is_synthetic=True),
        result("r", "t1"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert (inspection.detail, dict(inspection.dispatch)) == (Detail.TOOL_RESULTS_READY, {})


# --- R3: a repeated input --------------------------------------------------------------------------------------------


def test_a_retried_input_is_no_foreign_one() -> None:
    inspection = inspect_submission(linear(user("x"), user("y")), SUBMISSION)
    assert (inspection.detail, inspection.input_entry_id) == (Detail.INPUT_ONLY, "y")


def test_a_person_who_steers_after_an_answer_asks_for_another_one() -> None:
    inspection = inspect_submission(linear(IN, assistant("a", "stop"), user("steer")), SUBMISSION)
    assert (inspection.detail, inspection.input_entry_id) == (Detail.INPUT_ONLY, "steer")


def test_behind_a_settlement_the_input_is_named_where_there_is_one() -> None:
    assert "in" == inspect_submission(linear(IN, settled()), SUBMISSION).input_entry_id
    assert inspect_submission(linear(settled()), SUBMISSION).input_entry_id is None


def test_what_came_before_the_last_input_is_past() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1"),
        user("x", OTHER),
        user("steer"),
        assistant("b", "tool_use", "t2"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert inspection.detail == Detail.TOOL_CALLS_UNRESOLVED
    assert inspection.unresolved_tool_calls == ("t2",)
    assert inspection.interior_open_calls == ("t1",)


# --- R4: the trailing batch ------------------------------------------------------------------------------------------


def test_one_response_stored_in_several_messages_is_one_batch() -> None:
    path = linear(IN, assistant("a", None, "t1"), assistant("b"), assistant("c", "tool_use", "t2"), result("r", "t2"))
    inspection = inspect_submission(path, SUBMISSION)
    assert (inspection.detail, inspection.unresolved_tool_calls) == (Detail.TOOL_BATCH_PARTIAL, ("t1",))


@pytest.mark.parametrize("stop", ["stop", "length", "error", "aborted"])
def test_a_message_that_ended_is_not_part_of_the_response_after_it(stop: str) -> None:
    path = linear(IN, assistant("a", stop, "t1"), assistant("b", "tool_use", "t2"))
    inspection = inspect_submission(path, SUBMISSION)
    assert (("t2",), ("t1",)) == (inspection.unresolved_tool_calls, inspection.interior_open_calls)


@pytest.mark.parametrize("stop", ["error", "aborted", "stop", "length"])
@pytest.mark.parametrize("content", ["text", "none"])
def test_a_message_that_ended_between_two_others_parts_them(stop: str, content: str) -> None:
    path = linear(
        IN, assistant("a", "tool_use", "t1"), assistant("x", stop, content=content), assistant("b", None, "t2")
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert (("t2",), ("t1",)) == (inspection.unresolved_tool_calls, inspection.interior_open_calls)


def test_a_result_between_two_messages_parts_them() -> None:
    path = linear(IN, assistant("a", None, "t1", "t2"), result("r", "t1"), assistant("b", "tool_use", "t3"))
    inspection = inspect_submission(path, SUBMISSION)
    assert inspection.detail == Detail.TOOL_CALLS_UNRESOLVED
    assert (("t3",), ("t2",)) == (inspection.unresolved_tool_calls, inspection.interior_open_calls)


def test_what_changes_nothing_parts_no_response() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1"),
        result("s", "t1", is_sidechain=True),
        other("c", "compaction"),
        user("m", SUBMISSION, is_synthetic=True),
        assistant("f", "stop", is_synthetic=True),
        assistant("e", None, content="none"),
        assistant("b", "tool_use", "t2"),
    )
    assert inspect_submission(path, SUBMISSION).unresolved_tool_calls == ("t1", "t2")


def test_the_batch_does_not_reach_past_the_input() -> None:
    path = linear(assistant("a", None, "t1"), IN, assistant("b", None, "t2"))
    inspection = inspect_submission(path, SUBMISSION)
    assert (("t2",), ("t1",)) == (inspection.unresolved_tool_calls, inspection.interior_open_calls)


def test_open_calls_further_inside_change_no_state() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1", "t2"),
        result("r", "t1"),
        assistant("b", "tool_use", "t3"),
        result("s", "t3"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert (Detail.TOOL_RESULTS_READY, (), ("t2",)) == (
        inspection.detail,
        inspection.unresolved_tool_calls,
        inspection.interior_open_calls,
    )


def test_a_completed_turn_lists_its_open_calls_as_interior_ones() -> None:
    path = linear(IN, assistant("a", "tool_use", "t1"), assistant("b", "stop"))
    inspection = inspect_submission(path, SUBMISSION)
    assert ((), ("t1",)) == (inspection.unresolved_tool_calls, inspection.interior_open_calls)


# --- R11: stopped by a person ----------------------------------------------------------------------------------------


def test_a_turn_that_a_person_stopped_keeps_its_state_and_says_so() -> None:
    inspection = inspect_submission(linear(IN, assistant("a", "aborted", stopped_by="user")), SUBMISSION)
    assert (Detail.RESPONSE_ABORTED, "user") == (inspection.detail, inspection.stopped_by)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([], "user"),
        ([other("x"), assistant("b", "error", content="none")], "user"),
        ([user("m", SUBMISSION, is_synthetic=True)], "user"),
        ([assistant("b", "aborted")], None),
        ([result("r", "t1")], None),
        ([result("r", "t1"), assistant("c", "aborted", stopped_by="user")], "user"),
        ([user("steer")], None),
        ([user("x", OTHER), assistant("b", "stop")], "user"),
        ([user("x", OTHER), assistant("b", "aborted", stopped_by="user")], "user"),
    ],
)
def test_the_stop_stands_unless_the_turn_went_on(after: list[SessionEntry], expected: str | None) -> None:
    path = linear(IN, assistant("a", "tool_use", "t1"), other("stop", stopped_by="user"), *after)
    assert expected == inspect_submission(path, SUBMISSION).stopped_by


def test_a_stop_of_a_sidechain_of_a_machine_or_of_another_turn_is_none() -> None:
    for path in (
        linear(IN, other("x", stopped_by="user", is_sidechain=True)),
        linear(IN, other("x", stopped_by="crash")),
        linear(other("x", stopped_by="user"), IN),
        linear(user("y", OTHER), other("x", stopped_by="user")),
        linear(other("x", stopped_by="user")),
        linear(user("in", stopped_by="user")),
        linear(IN, user("y", OTHER), other("x", stopped_by="user")),
    ):
        assert inspect_submission(path, SUBMISSION).stopped_by is None


# --- R12: unlogged calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ([], SubmissionInspection.ABSENT),
        ([IN], SubmissionInspection.UNCERTAIN),
        ([IN, assistant("a", "error")], SubmissionInspection.CONTINUABLE),
        ([IN, assistant("a", "stop")], SubmissionInspection.COMPLETED),
    ],
)
def test_only_a_write_ahead_writer_lets_an_open_answer_be_sure_of_its_calls(
    path: list[SessionEntry], state: SubmissionInspection
) -> None:
    open_answer = state in (SubmissionInspection.UNCERTAIN, SubmissionInspection.CONTINUABLE)
    for write_ahead, expected in ((None, open_answer), (False, open_answer), (True, False)):
        inspection = inspect_submission(path, SUBMISSION, write_ahead=write_ahead)
        assert (state, expected) == (inspection.state, inspection.unlogged_calls_possible)


# --- R13: dispatch ---------------------------------------------------------------------------------------------------


def test_dispatch_tells_what_the_record_shows_of_each_start() -> None:
    path = linear(
        IN,
        other("early", "tool_started", tool_call_id="t2"),
        assistant("a", "tool_use", "t1", "t2", starts_logged=True),
        other("side", "tool_started", tool_call_id="t2", is_sidechain=True),
        other("late", "tool_started", tool_call_id="t1"),
        assistant("x", "error", "t9"),
        assistant("b", "tool_use", "t3", "t4"),
        other("too", "tool_started", tool_call_id="t4"),
    )
    inspection = inspect_submission(path, SUBMISSION)
    assert {
        ("a", 0): CallDispatch.STARTED,
        ("a", 1): CallDispatch.NOT_STARTED,
        ("x", 0): CallDispatch.UNKNOWN,
        ("b", 0): CallDispatch.UNKNOWN,
        ("b", 1): CallDispatch.STARTED,
    } == inspection.dispatch
    assert (("t3", "t4"), ("t1", "t2", "t9")) == (inspection.unresolved_tool_calls, inspection.interior_open_calls)


def test_a_start_that_names_a_repeated_id_marks_all_its_open_calls() -> None:
    path = linear(
        IN,
        assistant("a", "tool_use", "t1", "t1", starts_logged=True),
        other("s", "tool_started", tool_call_id="t1"),
    )
    assert {CallDispatch.STARTED} == set(inspect_submission(path, SUBMISSION).dispatch.values())


# --- evidence --------------------------------------------------------------------------------------------------------


def test_evidence_of_a_turn_without_anything_is_empty() -> None:
    assert TurnEvidence() == turn_evidence([], -1)
    assert TurnEvidence() == turn_evidence(linear(IN), 0)
    assert TurnEvidence() == turn_evidence(linear(IN), 7)
    assert TurnEvidence() == turn_evidence(linear(IN), inspect_submission([], SUBMISSION))


def test_evidence_names_open_calls_the_last_response_and_the_call_in_flight() -> None:
    path = linear(
        assistant("z", "error"),
        IN,
        assistant("a", "tool_use", "t1"),
        assistant("x", "error", content="none"),
        assistant("b", "tool_use", "t2", "t3", content="text"),
        assistant("f", "stop", is_synthetic=True),
        assistant("s", "stop", is_sidechain=True),
    )
    for asked in (1, inspect_submission(path, SUBMISSION)):
        evidence = turn_evidence(path, asked)
        assert ["t1", "t2", "t3"] == [call.call_id for call in evidence.open_calls]
        assert evidence.call_in_flight == evidence.open_calls[-1]
        assert ("b", True, False) == (
            evidence.last_response_entry_id,
            evidence.last_response_has_text,
            evidence.last_response_finished,
        )
        # The turn's last message is no error.
        assert evidence.error_entry_id is None


def test_a_bare_message_is_the_last_response_without_text() -> None:
    path = linear(IN, assistant("a", "tool_use"), assistant("b", "aborted", content="none"))
    evidence = turn_evidence(path, 0)
    assert ("b", False, False) == (
        evidence.last_response_entry_id,
        evidence.last_response_has_text,
        evidence.last_response_finished,
    )


@pytest.mark.parametrize(
    ("last", "attempt", "expected"),
    [
        (assistant("e", "error", content="none", attempt_id="a1", error_retryable=False), None, ("e", False)),
        (assistant("e", "error", attempt_id="a1"), "a1", ("e", None)),
        (assistant("e", "error", attempt_id="a1"), "a2", (None, None)),
        (assistant("e", "error", is_synthetic=True, error_retryable=True), None, ("e", True)),
        (assistant("e", "error", is_sidechain=True), None, (None, None)),
        (assistant("e", "stop", attempt_id="a1"), "a1", (None, None)),
    ],
)
def test_the_error_asked_about_is_the_last_message_of_its_attempt(
    last: SessionEntry, attempt: str | None, expected: tuple[str | None, bool | None]
) -> None:
    path = linear(IN, assistant("a", "tool_use"), last, assistant("f", "stop", is_synthetic=True))
    evidence = turn_evidence(path, 0, attempt_id=attempt)
    assert expected == (evidence.error_entry_id, evidence.error_retryable)


def test_an_error_before_a_later_message_of_the_attempt_is_over() -> None:
    path = linear(IN, assistant("e", "error", attempt_id="a1"), assistant("a", "tool_use", attempt_id="a1"))
    assert turn_evidence(path, 0, attempt_id="a1").error_entry_id is None


def test_evidence_stops_at_another_persons_input() -> None:
    path = linear(IN, assistant("a", "error"), user("x", OTHER), assistant("b", "stop"))
    assert turn_evidence(path, 0).last_response_entry_id == "a"


def test_the_evidence_is_of_what_is_behind_the_input_alone() -> None:
    path = linear(assistant("z", "error"), user("x", OTHER), IN, assistant("a", "error"))
    for asked in (inspect_submission(path, SUBMISSION), 2):
        evidence = turn_evidence(path, asked)
        assert ("a", "a") == (evidence.last_response_entry_id, evidence.error_entry_id)
    for nowhere in (-1, len(path), len(path) + 1):
        assert turn_evidence(path, nowhere).last_response_entry_id is None
