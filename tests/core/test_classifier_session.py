"""What only a whole session shows (contract 3.1: R6 to R10), and the same asked piece by piece, as a pass does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from reconciler.core.classifier import (
    Damage,
    FactsWanted,
    LeafWalk,
    active_path,
    facts_wanted,
    inspect_session,
    inspect_submission,
    inspect_walk,
    turn_evidence,
)
from reconciler.core.model import Detail, Inspection, SessionEntry, SubmissionInspection
from reconciler.core.session import PROBLEMS_MAX
from tests.core.strategies import (
    ATTEMPT,
    OTHER,
    SUBMISSION,
    assistant,
    at,
    busy_session,
    linear,
    other,
    result,
    settled,
    user,
)

IN = user("in")


def _inspect(entries: Iterable[SessionEntry], leaf: str | None, **asked: object) -> Inspection:
    return inspect_session(list(entries), leaf, SUBMISSION, **asked)  # type: ignore[arg-type]


# --- R9 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", [None, "in", "nowhere", "set"])
@pytest.mark.parametrize("leaf", [None, "a", "in", "nowhere", "set"])
def test_a_settlement_anywhere_wins_over_everything(parent: str | None, leaf: str | None) -> None:
    entries = [*linear(IN, assistant("a", "tool_use", "t1")), at(settled(), parent)]
    inspection = _inspect(entries, leaf)
    assert (Detail.SETTLED_ENTRY, "set", None) == (
        inspection.detail,
        inspection.deciding_entry_id,
        inspection.integrity,
    )
    assert inspection.unresolved_tool_calls == ()


# --- R10 -------------------------------------------------------------------------------------------------------------

BROKEN: list[tuple[str, list[SessionEntry], str | None, Damage]] = [
    ("no leaf", linear(IN), None, Damage.MISSING_LEAF),
    ("a leaf that isn't there", linear(IN), "nowhere", Damage.MISSING_LEAF),
    ("a leaf and no entries", [], "nowhere", Damage.MISSING_LEAF),
    ("a missing parent", [*linear(IN), at(assistant("a", "tool_use"), "nowhere")], "a", Damage.MISSING_PARENT),
    ("a cycle", [*linear(IN), at(other("x"), "y"), at(other("y"), "x")], "x", Damage.CYCLE),
    ("an entry that is its own parent", [*linear(IN), at(other("x"), "x")], "x", Damage.CYCLE),
    ("an unreadable entry", linear(IN, other("u", "unreadable"), other("x")), "x", Damage.UNREADABLE_ENTRY),
    ("an unreadable leaf", linear(IN, other("u", "unreadable")), "u", Damage.UNREADABLE_ENTRY),
]


@pytest.mark.parametrize(("entries", "leaf", "damage"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_damage_below_the_input_holds(entries: list[SessionEntry], leaf: str | None, damage: Damage) -> None:
    inspection = _inspect(entries, leaf)
    assert (SubmissionInspection.UNCERTAIN, Detail.INTEGRITY_HOLD) == (inspection.state, inspection.detail)
    assert damage.value == inspection.integrity
    assert inspection.deciding_entry_id is None
    assert len(inspection.problems) == 1
    assert inspection.unlogged_calls_possible
    assert turn_evidence(entries, inspection).last_response_entry_id is None


def test_no_leaf_is_none_where_the_source_says_so_or_there_are_no_entries() -> None:
    assert _inspect([], None).detail == Detail.INPUT_MISSING
    assert _inspect(linear(IN), None, leaf_known_empty=True).detail == Detail.LEAF_MOVED
    assert _inspect(linear(user("x", OTHER)), None, leaf_known_empty=True).detail == Detail.INPUT_MISSING


@pytest.mark.parametrize("damage_above", ["missing parent", "cycle", "unreadable"])
def test_damage_above_the_input_is_only_listed(damage_above: str) -> None:
    above = {
        "missing parent": [],
        "cycle": [at(other("x"), "y"), at(other("y"), "x")],
        "unreadable": [at(other("x", "unreadable"), None)],
    }[damage_above]
    inspection = _inspect([*above, *linear(IN, assistant("a", "tool_use", "t1"), below="x")], "a")
    assert (Detail.TOOL_CALLS_UNRESOLVED, None) == (inspection.detail, inspection.integrity)
    assert (0 if damage_above == "unreadable" else 1) == len(inspection.problems)


ANSWER = assistant("a", "stop", submission_id=SUBMISSION)


@pytest.mark.parametrize(
    ("below", "answered"),
    [
        ([ANSWER], True),
        ([replace(ANSWER, stop_reason="length")], True),
        ([ANSWER, other("x"), user("y", OTHER)], True),
        ([ANSWER, assistant("b", "error", content="none")], True),
        ([replace(ANSWER, submission_id=None)], False),
        ([replace(ANSWER, submission_id=OTHER)], False),
        ([replace(ANSWER, stop_reason=None)], False),
        ([replace(ANSWER, tool_call_ids=("t1",))], False),
        ([replace(ANSWER, is_synthetic=True)], False),
        ([replace(ANSWER, is_sidechain=True)], False),
        ([ANSWER, assistant("b", "error")], False),
        ([ANSWER, assistant("b", "stop", submission_id=OTHER)], False),
    ],
)
@pytest.mark.parametrize("damage", ["missing parent", "unreadable"])
def test_a_stamped_and_closed_answer_is_taken_even_in_a_damaged_session(
    below: list[SessionEntry], answered: bool, damage: str
) -> None:
    top = [] if damage == "missing parent" else linear(IN, other("u", "unreadable"))
    inspection = _inspect([*top, *linear(*below, below="u")], below[-1].id)
    if answered:
        assert (Detail.ANSWERED_IN_DAMAGE, "a", None) == (
            inspection.detail,
            inspection.deciding_entry_id,
            inspection.integrity,
        )
    else:
        assert inspection.detail == Detail.INTEGRITY_HOLD


def test_an_answer_above_the_damage_was_not_reached() -> None:
    inspection = _inspect(linear(IN, ANSWER, other("u", "unreadable"), other("x")), "x")
    assert inspection.detail == Detail.INTEGRITY_HOLD


def test_of_entries_with_one_id_the_first_counts() -> None:
    entries = [*linear(IN, assistant("a", "stop")), at(assistant("a", "tool_use", "t1"), "in")]
    inspection = _inspect(entries, "a")
    assert inspection.detail == Detail.RESPONSE_FINISHED
    assert inspection.problems == ('entry "a" occurs more than once: the first counts',)


def test_problems_are_listed_up_to_a_limit_and_counted_beyond() -> None:
    entries = [*linear(IN), *[IN] * (PROBLEMS_MAX + 7)]
    problems = _inspect(entries, "in").problems
    assert PROBLEMS_MAX + 1 == len(problems)
    assert problems[-1] == "and 7 more"


# --- R8 --------------------------------------------------------------------------------------------------------------


def _late(*below: SessionEntry) -> Inspection:
    entries = [*linear(IN), *linear(*(replace(entry, attempt_id=ATTEMPT) for entry in below), below="in")]
    return inspect_session(entries, "in", SUBMISSION, ATTEMPT)


def test_a_leaf_that_lags_behind_is_followed_to_the_attempts_last_entry() -> None:
    assert _late(assistant("a", "tool_use", "t1"), result("r", "t1")).detail == Detail.TOOL_RESULTS_READY


def test_a_late_leaf_is_followed_over_no_fork_sidechain_settlement_or_other_attempt() -> None:
    first = at(assistant("a", "stop", attempt_id=ATTEMPT), "in")
    for more, detail in (
        ([], Detail.RESPONSE_FINISHED),
        ([at(assistant("b", "stop", attempt_id=ATTEMPT), "in")], Detail.INPUT_ONLY),
        ([at(assistant("b", "stop", attempt_id="a2"), "in")], Detail.RESPONSE_FINISHED),
        ([at(assistant("b", "stop", attempt_id=ATTEMPT, is_sidechain=True), "in")], Detail.RESPONSE_FINISHED),
        ([at(settled(submission_id=OTHER, attempt_id=ATTEMPT), "in")], Detail.RESPONSE_FINISHED),
    ):
        assert detail == inspect_session([*linear(IN), first, *more], "in", SUBMISSION, ATTEMPT).detail
    assert inspect_session([*linear(IN), first], "in", SUBMISSION, "a9").detail == Detail.INPUT_ONLY
    assert inspect_session([*linear(IN), first], "in", SUBMISSION).detail == Detail.INPUT_ONLY


def test_a_late_leaf_goes_round_no_cycle() -> None:
    entries = [at(user("in", attempt_id=ATTEMPT), None), at(other("x", attempt_id=ATTEMPT), "y")]
    entries.append(at(other("y", attempt_id=ATTEMPT), "x"))
    inspection = inspect_session(entries, "x", SUBMISSION, ATTEMPT)
    assert inspection.integrity == Damage.CYCLE.value
    assert inspect_session(entries, "in", SUBMISSION, ATTEMPT).detail == Detail.INPUT_ONLY


def test_a_late_leaf_goes_round_no_cycle_above_the_input() -> None:
    entries = [at(user("in", attempt_id=ATTEMPT), "a"), at(assistant("a", "stop", attempt_id=ATTEMPT), "in")]
    inspection = inspect_session(entries, "in", SUBMISSION, ATTEMPT)
    assert (Detail.RESPONSE_FINISHED, None) == (inspection.detail, inspection.integrity)


def test_damage_above_a_late_leaf_holds_even_if_the_input_is_below_it() -> None:
    entries = linear(other("x"), user("in", attempt_id=ATTEMPT), below="nowhere")
    assert inspect_session(entries, "x", SUBMISSION, ATTEMPT).integrity == Damage.MISSING_PARENT.value


def test_an_unreadable_entry_of_the_attempt_holds() -> None:
    assert _late(other("u", "unreadable")).integrity == Damage.UNREADABLE_ENTRY.value


# --- R7 --------------------------------------------------------------------------------------------------------------

SPLIT = linear(IN, assistant("a", None, "t1"), assistant("b", None, "t2"), assistant("c", "tool_use", "t3"))


def test_results_on_sibling_branches_close_their_calls() -> None:
    entries = [*SPLIT, at(result("r1", "t1"), "a"), at(result("r2", "t2"), "b"), at(result("r3", "t3"), "c")]
    inspection = _inspect(entries, "r3")
    assert (Detail.TOOL_RESULTS_READY, {}) == (inspection.detail, dict(inspection.dispatch))


def test_a_result_beside_the_path_parts_no_response() -> None:
    inspection = _inspect([*SPLIT, at(result("r2", "t2"), "b")], "c")
    assert (Detail.TOOL_BATCH_PARTIAL, ("t1", "t3")) == (inspection.detail, inspection.unresolved_tool_calls)


def test_a_result_deeper_in_a_branch_closes_its_call_too() -> None:
    entries = [*SPLIT, *linear(other("p"), result("r3", "t3"), below="c")]
    assert _inspect(entries, "c").unresolved_tool_calls == ("t1", "t2")


@pytest.mark.parametrize(
    "branch",
    [
        linear(assistant("z", "tool_use", "t3"), result("r", "t3"), below="c"),
        [at(result("r", "t3"), "b")],
        [at(result("r", "t3", is_sidechain=True), "c")],
        [at(result("r", "t3"), "nowhere")],
        [at(result("r", "t3"), "r")],
        [at(result("r", "t3"), None)],
        [at(other("r", tool_call_id="t3"), "c")],
    ],
    ids=["the branch's own call", "above the call", "sidechain", "no parent", "own parent", "a root", "no result"],
)
def test_a_result_that_pairs_with_no_call_of_the_path_closes_none(branch: list[SessionEntry]) -> None:
    assert _inspect([*SPLIT, *branch], "c").unresolved_tool_calls == ("t1", "t2", "t3")


def test_a_result_on_a_branch_ends_the_turn_only_if_all_of_its_kind_do() -> None:
    entries = [*linear(IN, assistant("a", "tool_use", "t1")), at(result("r", "t1", ends_turn=True), "a")]
    assert _inspect(entries, "a").detail == Detail.TURN_ENDED_BY_TOOL
    two = [*entries, at(result("s", "t1"), "a")]
    assert _inspect(two, "a").detail == Detail.TOOL_RESULTS_READY
    assert _inspect(two[::-1], "a").detail == Detail.TOOL_RESULTS_READY
    # On a path, its own result counts.
    assert _inspect(two, "r").detail == Detail.TURN_ENDED_BY_TOOL
    assert _inspect(two, "s").detail == Detail.TOOL_RESULTS_READY


CALL = assistant("a", "tool_use", "t1")
FILLER = assistant("x", None, "t9", is_synthetic=True)


@pytest.mark.parametrize(
    "calls",
    [
        [assistant("x", "error", "t9"), CALL],
        [FILLER, CALL],
        [assistant("o", "error", "t9"), result("q", "t9"), CALL, FILLER],
    ],
    ids=["an older call", "a filler before", "a filler after"],
)
def test_results_of_calls_outside_the_batch_say_nothing_about_its_end(calls: list[SessionEntry]) -> None:
    path = linear(IN, *calls, result("r", "t1", ends_turn=True), result("r9", "t9", ends_turn=True))
    inspection = _inspect([*path, at(result("s9", "t9"), "x")], "r9")
    assert inspection.detail == Detail.TURN_ENDED_BY_TOOL


def test_evidence_leaves_out_calls_that_results_of_branches_close() -> None:
    inspection = _inspect([*SPLIT, at(result("r2", "t2"), "b")], "c")
    assert ["t1", "t3"] == [call.call_id for call in turn_evidence(SPLIT, inspection).open_calls]


def test_the_path_has_results_of_branches_behind_their_calls() -> None:
    entries = [
        *linear(IN, assistant("a", None, "t1", "t2"), assistant("b", "tool_use", "t3"), result("r3", "t3")),
        at(result("r2", "t2"), "a"),
        at(result("r1", "t1"), "a"),
        at(result("again", "t1"), "a"),
        at(result("also", "t3"), "b"),
    ]
    assert ["in", "a", "r1", "r2", "b", "r3"] == [entry.id for entry in active_path(entries, "r3")]


def test_the_path_of_a_damaged_session_is_what_is_left_of_it() -> None:
    assert active_path(linear(IN), None) == ()
    assert active_path(linear(IN), "nowhere") == ()
    entries = linear(other("u", "unreadable"), IN, other("x"), below="nowhere")
    assert ["u", "in", "x"] == [entry.id for entry in active_path(entries, "x")]
    assert ["y", "x"] == [entry.id for entry in active_path([at(other("x"), "y"), at(other("y"), "x")], "x")]


# --- R6 --------------------------------------------------------------------------------------------------------------


def _moved(*branch: SessionEntry, path: tuple[SessionEntry, ...] = ()) -> Inspection:
    """A session whose leaf stands beside the branch of the input."""
    entries = [*linear(user("x", OTHER), assistant("y", "stop")), *linear(IN, *branch, below="y")]
    beside = linear(*path, below="y")
    return _inspect([*entries, *beside], beside[-1].id if beside else "y")


def test_an_input_that_was_answered_off_the_path_is_completed() -> None:
    inspection = _moved(assistant("a", "stop"), path=(other("info", "session_info"),))
    assert (SubmissionInspection.COMPLETED, Detail.ANSWERED_OFF_PATH) == (inspection.state, inspection.detail)
    assert ("in", "a") == (inspection.input_entry_id, inspection.deciding_entry_id)


def test_a_branch_is_cut_before_the_first_foreign_input() -> None:
    assert _moved(assistant("a", "stop"), user("z", OTHER), assistant("b", "error")).deciding_entry_id == "a"
    assert _moved(user("z", OTHER), assistant("b", "stop")).detail == Detail.LEAF_MOVED


def test_any_branch_below_any_input_may_hold_the_answer() -> None:
    entries = [
        *linear(user("x", OTHER)),
        at(user("in1"), "x"),
        at(user("in2"), "x"),
        at(assistant("a", "error"), "in2"),
        at(assistant("b", "stop"), "in2"),
    ]
    inspection = _inspect(entries, "x")
    assert (Detail.ANSWERED_OFF_PATH, "in2", "b") == (
        inspection.detail,
        inspection.input_entry_id,
        inspection.deciding_entry_id,
    )


def test_steering_on_a_branch_asks_again() -> None:
    assert _moved(assistant("a", "stop"), user("steer")).detail == Detail.LEAF_MOVED
    assert _moved(assistant("a", "stop"), user("steer"), assistant("b", "stop")).deciding_entry_id == "b"
    # The same where the input comes back below somebody else's turn.
    again = _moved(assistant("a", "error"), user("z", OTHER), user("again"), assistant("b", "stop"))
    assert ("again", "b") == (again.input_entry_id, again.deciding_entry_id)


def test_a_branch_counts_results_of_its_own_branches() -> None:
    entries = [
        *linear(user("x", OTHER)),
        *linear(IN, assistant("a", None, "t1"), assistant("b", None, "t2"), result("r2", "t2"), below="x"),
    ]
    assert _inspect(entries, "x").detail == Detail.LEAF_MOVED
    inspection = _inspect([*entries, at(result("r1", "t1"), "a")], "x")
    assert (Detail.ANSWERED_OFF_PATH, "b") == (inspection.detail, inspection.deciding_entry_id)


def test_an_input_that_the_conversation_went_around_is_abandoned() -> None:
    inspection = _moved(assistant("a", "tool_use", "t1"), path=(user("z", OTHER),))
    assert (SubmissionInspection.COMPLETED, Detail.ABANDONED_BRANCH) == (inspection.state, inspection.detail)
    assert ("in", "z") == (inspection.input_entry_id, inspection.deciding_entry_id)


def test_a_leaf_that_only_moved_waits() -> None:
    inspection = _moved(assistant("a", "tool_use", "t1"), path=(other("info", "session_info"),))
    assert (SubmissionInspection.UNCERTAIN, Detail.LEAF_MOVED) == (inspection.state, inspection.detail)
    assert ("in", "in", ()) == (
        inspection.input_entry_id,
        inspection.deciding_entry_id,
        inspection.unresolved_tool_calls,
    )
    assert inspection.unlogged_calls_possible


def test_a_foreign_input_that_an_input_came_after_abandons_nothing() -> None:
    entries = linear(user("in1"), user("z", OTHER), assistant("a", "stop"))
    # in1 is on the path: no R6 at all.
    assert _inspect(entries, "a").detail == Detail.MOVED_ON
    beside = [
        *linear(user("r", OTHER)),
        at(user("in1"), "r"),
        at(user("z", OTHER), "r"),
        at(user("in2"), "z"),
    ]
    assert _inspect(beside, "z").detail == Detail.LEAF_MOVED


def test_an_input_in_a_cycle_off_the_path_is_never_requeued() -> None:
    entries = [*linear(user("x", OTHER)), at(IN, "a"), at(assistant("a", "stop"), "in")]
    # Nothing ends in a cycle, so nothing there is an answer; the path's foreign input is no ancestor.
    assert _inspect(entries, "x").detail == Detail.ABANDONED_BRANCH


# --- the same, piece by piece ----------------------------------------------------------------------------------------


def _by_pass(entries: list[SessionEntry], leaf: str, piece: int) -> tuple[Inspection, int]:
    """Inspect as the module's text tells a pass to; return the inspection and how many entries were read upwards."""
    settlement = next((e for e in entries if e.kind == "submission_settled" and e.submission_id == SUBMISSION), None)
    if settlement is not None:
        return inspect_walk(LeafWalk(leaf, SUBMISSION), SUBMISSION, settlement=settlement), 0
    place = {entry.id: number for number, entry in enumerate(entries)}
    read = 0

    def feed(walk: LeafWalk) -> None:
        nonlocal read
        assert walk.wanted is not None
        top = place[walk.wanted] + 1
        # Pieces in descending order, off-path entries among them, as a store reads them.
        walk.feed(reversed(entries[max(0, top - piece) : top]))
        read += min(piece, top)

    walk = LeafWalk(leaf, SUBMISSION)
    while walk.wanted is not None and not walk.input_met:
        feed(walk)
    inspection = inspect_walk(walk, SUBMISSION, off_path=())
    wanted = facts_wanted(walk, inspection)
    while FactsWanted.CALLS_ABOVE in wanted and walk.wanted is not None and walk.calls_lacking:
        feed(walk)
    if wanted:
        on_path = {entry.id for entry in walk.path}
        inspection = inspect_walk(walk, SUBMISSION, off_path=[e for e in entries if e.id not in on_path])
    return inspection, read


@pytest.mark.parametrize("piece", [1, 3, 50])
def test_a_pass_that_reads_pieces_answers_as_the_whole_session_does(piece: int) -> None:
    for seed in range(1500):
        entries, leaf = busy_session(Random(seed))
        whole = inspect_session(entries, leaf, SUBMISSION)
        by_pass, _ = _by_pass(entries, leaf, piece)
        for name in (
            "state",
            "detail",
            "deciding_entry_id",
            "unresolved_tool_calls",
            "stopped_by",
            "unlogged_calls_possible",
            "integrity",
        ):
            assert getattr(whole, name) == getattr(by_pass, name), (seed, name)


def test_a_pass_reads_no_further_than_the_input() -> None:
    history = linear(*(other(f"h{number}") for number in range(10_000)))
    entries = [*history, *linear(IN, assistant("a", "tool_use", "t1"), below=history[-1].id)]
    inspection, read = _by_pass(entries, "a", 32)
    assert (Detail.TOOL_CALLS_UNRESOLVED, 32) == (inspection.detail, read)


def test_a_pass_reads_on_upwards_only_to_the_call_of_an_orphan_result() -> None:
    history = linear(*(other(f"h{number}") for number in range(1000)), assistant("a", "tool_use", "t1"))
    entries = [*history, *linear(IN, result("r", "t1"), below="a")]
    inspection, read = _by_pass(entries, "r", 2)
    assert (Detail.INPUT_ONLY, 4) == (inspection.detail, read)
    inspection, read = _by_pass([*history, *linear(IN, result("r", "t2"), below="a")], "r", 50)
    assert inspection.detail == Detail.ORPHAN_RESULT
    assert read >= len(history)
    # A result that names no call can't find one.
    inspection, read = _by_pass([*history, *linear(IN, result("r", None), below="a")], "r", 2)
    assert (Detail.ORPHAN_RESULT, 2) == (inspection.detail, read)


def test_a_sound_and_finished_turn_wants_nothing_more() -> None:
    for entries, expected in (
        (linear(IN, assistant("a", "stop")), set()),
        (linear(IN, assistant("a", "tool_use", "t1"), assistant("b", "stop")), set()),
        (linear(IN, assistant("b", "tool_use", "t1")), {FactsWanted.BRANCH_RESULTS}),
        (linear(user("x", OTHER)), {FactsWanted.INPUT_ELSEWHERE}),
        ([at(other("x"), "nowhere")], set()),
    ):
        walk = LeafWalk(entries[-1].id, SUBMISSION)
        walk.feed(entries)
        walk.end()
        assert expected == facts_wanted(walk, inspect_walk(walk, SUBMISSION))
    settlement = settled()
    walk = LeafWalk("x", SUBMISSION)
    assert not facts_wanted(walk, inspect_walk(walk, SUBMISSION, settlement=settlement))


def test_the_call_of_a_result_is_not_looked_for_where_the_answer_does_not_ask_for_it() -> None:
    path = linear(other("above"), IN, result("r", "t1"), assistant("a", "stop"))
    walk = LeafWalk("a", SUBMISSION)
    walk.feed(path[1:])
    assert walk.calls_lacking
    assert "above" == walk.wanted
    assert not facts_wanted(walk, inspect_walk(walk, SUBMISSION))


@pytest.mark.parametrize(("call_id", "expected"), [("t1", {FactsWanted.CALLS_ABOVE}), (None, set())])
def test_an_orphan_result_wants_the_calls_above_if_it_names_one(
    call_id: str | None, expected: set[FactsWanted]
) -> None:
    walk = LeafWalk("r", SUBMISSION)
    walk.feed(linear(IN, result("r", call_id), below="above"))
    assert expected == facts_wanted(walk, inspect_walk(walk, SUBMISSION))
    walk.end()
    assert not facts_wanted(walk, inspect_walk(walk, SUBMISSION))


def test_a_linear_session_is_inspected_as_its_path() -> None:
    entries = linear(user("x", OTHER), assistant("z", None, "t9"), IN, assistant("a", "tool_use", "t1"))
    assert inspect_submission(entries, SUBMISSION) == _inspect(entries, "a")
