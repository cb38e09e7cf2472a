"""A folded walk is classified as the whole one is: every session that others are tested with, in pieces of any size."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core import folding
from reconciler.core.classifier import (
    LeafWalk,
    inspect_walk,
    turn_evidence,
)
from reconciler.core.folding import STARTS_KEPT_MAX
from reconciler.core.model import KIND_MESSAGE, KIND_UNREADABLE, CallDispatch, Detail, SessionEntry
from reconciler.core.session import Damage
from tests.core.folded import pieces, same, unique, walk_through
from tests.core.strategies import (
    ATTEMPT,
    OTHER,
    SUBMISSION,
    assistant,
    at,
    busy_entry,
    busy_path,
    busy_session,
    linear,
    other,
    paths,
    result,
    trees,
    user,
    wild_paths,
    wild_sessions,
)

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "recovery_cases.json"
ATTEMPTS = (None, ATTEMPT, "a2", "")


sizes = st.integers(1, 6)
attempts = st.sampled_from(ATTEMPTS)


# --- random sessions -------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(paths, sizes, sizes, attempts)
def test_an_odd_path_is_classified_folded_as_whole(
    path: list[SessionEntry], first: int, size: int, attempt: str | None
) -> None:
    leaf = path[-1].id if path else None
    assert same(path, leaf, first, size, attempt) is not None


@settings(max_examples=150, deadline=None)
@given(wild_paths, sizes, sizes, attempts)
def test_any_chain_is_classified_folded_as_whole(
    path: list[SessionEntry], first: int, size: int, attempt: str | None
) -> None:
    chain = linear(*unique(path))
    same(chain, chain[-1].id if chain else None, first, size, attempt)


@settings(max_examples=250, deadline=None)
@given(trees(), sizes, sizes, attempts)
def test_an_odd_session_with_branches_is_classified_folded_as_whole(
    tree: tuple[list[SessionEntry], str], first: int, size: int, attempt: str | None
) -> None:
    same(*tree, first, size, attempt)


@settings(max_examples=250, deadline=None)
@given(wild_sessions(), sizes, sizes, attempts)
def test_a_damaged_session_is_classified_folded_as_whole_or_said_to_be_in_doubt(
    session_and_leaf: tuple[list[SessionEntry], str | None], first: int, size: int, attempt: str | None
) -> None:
    entries, leaf = session_and_leaf
    same(unique(entries), leaf, first, size, attempt)


def test_busy_turns_are_classified_folded_as_whole() -> None:
    met = set()
    for seed in range(3000):
        dice = Random(seed)
        entries, leaf = (busy_path(dice), "") if seed % 2 else busy_session(dice)
        walk = same(entries, leaf or entries[-1].id, dice.randint(1, 4), dice.randint(1, 4), dice.choice(ATTEMPTS))
        if walk is not None:
            met.add(inspect_walk(walk, SUBMISSION).detail)
    needing_more = {Detail.SETTLED_ENTRY, Detail.INTEGRITY_HOLD, Detail.ANSWERED_IN_DAMAGE}
    assert set(Detail) - needing_more == met


def _long_session(dice: Random) -> tuple[list[SessionEntry], str]:
    """A turn of up to 150 entries, in which ids of calls repeat as often as they like, with branches or without."""
    entries = [user("e0", OTHER), at(user("e1"), "e0")]
    branching = dice.choice((0.0, 0.02, 0.15))
    ids = [f"t{number}" for number in range(dice.choice((2, 10, 400)))]
    quiet = dice.random() < 0.5
    waiting: list[str] = []
    for number in range(2, dice.randint(10, 150)):
        parent = dice.randrange(max(0, number - 8), number) if dice.random() < branching else number - 1
        if waiting and dice.random() < 0.8:
            call = waiting.pop(dice.randrange(len(waiting)))
            entry = other("", "tool_started", tool_call_id=call) if dice.random() < 0.3 else result("", call)
            if entry.kind != KIND_MESSAGE:
                waiting.append(call)
        elif dice.random() < 0.7:
            calls = dice.choices(ids, k=dice.choice((1, 1, 2, 3)))
            waiting += [call for call in calls if dice.random() < 0.97]
            entry = assistant("", dice.choice((None, "tool_use")), *calls, starts_logged=dice.random() < 0.5)
        else:
            entry = busy_entry(dice)
            if quiet and entry.role in ("user", "signal"):
                entry = assistant("", "error", content="none")
        attempt = dice.choice((None, ATTEMPT, "a2"))
        entries.append(replace(entry, id=f"e{number}", parent_id=f"e{parent}", attempt_id=attempt))
    return entries, f"e{len(entries) - 1 if dice.random() < 0.8 else dice.randrange(len(entries))}"


@pytest.mark.parametrize("starts_kept", [3, STARTS_KEPT_MAX])
def test_long_turns_are_classified_folded_as_whole(starts_kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "STARTS_KEPT_MAX", starts_kept)
    sure, doubted, left, read = 0, 0, 0, 0
    for seed in range(900):
        dice = Random(f"{starts_kept}-{seed}")
        entries, leaf = _long_session(dice)
        walk = same(entries, leaf, dice.randint(1, 10), dice.randint(1, 30), dice.choice(ATTEMPTS))
        if walk is None:
            doubted += 1
        else:
            sure += 1
            left += len(walk.path)
            read += len(entries)
    # The test is about folding: most walks are folded, and much is let go.
    assert doubted < sure / 4, (doubted, sure)
    assert left < read / 2, (left, read)


# --- incidents -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not CASES.exists(), reason=f"the shared cases are not beside the checkout: no {CASES.name}")
def test_the_incidents_are_classified_folded_as_whole() -> None:
    sure = 0
    for case in json.loads(CASES.read_text(encoding="utf-8")):
        entries = unique(
            SessionEntry(**{**entry, "tool_call_ids": tuple(entry.get("tool_call_ids", ()))})
            for entry in case["entries"]
        )
        for first in (1, 2, 3, 5):
            for size in (1, 2, 4):
                for attempt in {None, case["current_attempt_id"]}:
                    walk = same(entries, case["leaf_entry_id"], first, size, attempt, case["submission_id"])
                    sure += walk is not None
    assert sure > 0


# --- starts ----------------------------------------------------------------------------------------------------------


def _started(number: int) -> list[SessionEntry]:
    call = f"t{number}"
    return [
        assistant(f"a{number}", "tool_use", call, starts_logged=True),
        other(f"s{number}", "tool_started", tool_call_id=call),
        result(f"r{number}", call),
    ]


def _open_above(steps: int) -> list[SessionEntry]:
    """A turn whose first call has no result, and whose second has its id, a start and a result, and so on."""
    above = assistant("open", "tool_use", "t0", starts_logged=True)
    return linear(user(), above, *(entry for number in range(steps) for entry in _started(number)))


def test_a_start_that_may_be_an_open_calls_own_is_not_forgotten() -> None:
    entries = _open_above(STARTS_KEPT_MAX)
    walk = same(entries, entries[-1].id, 4, 16, None)
    assert walk is not None
    assert {("open", 0): CallDispatch.STARTED} == dict(inspect_walk(walk, SUBMISSION).dispatch)


def test_where_a_start_was_forgotten_that_may_be_an_open_calls_own_the_walk_says_that_it_is_not_sure() -> None:
    entries = _open_above(STARTS_KEPT_MAX + 1)
    walk = walk_through(entries, entries[-1].id, pieces(entries, entries[-1].id, 4, 16), fold=True)
    assert not walk.is_sure
    # Another id has no start below it.
    entries = linear(user(), assistant("open", "tool_use", "other"), *entries[2:])
    walk = walk_through(entries, entries[-1].id, pieces(entries, entries[-1].id, 4, 16), fold=True)
    assert walk.is_sure
    assert {("open", 0): CallDispatch.UNKNOWN} == dict(inspect_walk(walk, SUBMISSION).dispatch)


# --- flat ------------------------------------------------------------------------------------------------------------


def _tail(entries_of: Callable[[int], list[SessionEntry]], steps: int) -> list[SessionEntry]:
    return linear(user(), *(entry for number in range(steps) for entry in entries_of(number)))


def _steps(number: int) -> list[SessionEntry]:
    return [
        assistant(f"a{number}", "tool_use", f"t{number}", f"u{number}"),
        result(f"r{number}", f"t{number}"),
        result(f"s{number}", f"u{number}"),
    ]


def _steps_of_one_id(number: int) -> list[SessionEntry]:
    return [assistant(f"a{number}", None, "call_0"), result(f"r{number}", "call_0")]


def _started_of_one_id(number: int) -> list[SessionEntry]:
    return [
        replace(entry, tool_call_id=entry.tool_call_id and "t", tool_call_ids=entry.tool_call_ids and ("t",))
        for entry in _started(number)
    ]


def _texts(number: int) -> list[SessionEntry]:
    return [assistant(f"a{number}", "stop"), other(f"l{number}", "label"), assistant(f"b{number}", "error")]


def _prompts(number: int) -> list[SessionEntry]:
    return [user(f"u{number}", OTHER), *_steps(number), assistant(f"z{number}", "stop")]


def _steering(number: int) -> list[SessionEntry]:
    return [assistant(f"a{number}", "aborted", stopped_by="user"), user(f"u{number}", None, is_synthetic=True)]


@pytest.mark.parametrize(
    "entries_of", [_steps, _started, _started_of_one_id, _steps_of_one_id, _texts, _prompts, _steering]
)
def test_what_is_held_of_an_ordinary_tail_does_not_grow_with_it(
    entries_of: Callable[[int], list[SessionEntry]],
) -> None:
    held = []
    for steps in (600, 3000):
        entries = _tail(entries_of, steps)
        walk = walk_through(entries, entries[-1].id, pieces(entries, entries[-1].id, 32, 100), fold=True)
        assert walk.is_sure
        assert walk.input_met
        held.append(len(list(walk.entries)))
    assert held[0] == held[1]
    # The kept starts, and the piece with the input.
    assert held[1] <= (STARTS_KEPT_MAX + 10 if entries_of is _started else 10)


def test_open_calls_and_results_without_a_call_are_held_however_many_there_are() -> None:
    entries = _tail(lambda number: [assistant(f"a{number}", "tool_use", f"t{number}"), result(f"r{number}", "x")], 300)
    walk = same(entries, entries[-1].id, 32, 100, None)
    assert walk is not None
    assert entries == list(walk.path)


# --- the walk --------------------------------------------------------------------------------------------------------


def test_a_walk_with_nothing_below_its_input_is_not_folded() -> None:
    entries = linear(user(), assistant("a", "stop"))
    for submission_id in (SUBMISSION, None):
        walk = LeafWalk("a", submission_id)
        walk.feed(entries)
        assert [] == walk.fold(None)
        assert (False, True) == (walk.is_folded, walk.is_sure)
        assert entries == list(walk.path)


def test_what_is_let_go_is_said_and_is_no_entry_off_the_path() -> None:
    entries = linear(user(), *_steps(0), *_steps(1), *_steps(2), assistant("a", "stop"))
    walk = LeafWalk("a", SUBMISSION)
    begun = [walk.has_begun]
    assert [] == walk.feed(entries[-6:])
    assert [False, True] == [*begun, walk.has_begun]
    gone = [*walk.fold(None), *walk.feed(entries[:-6])]
    assert walk.is_folded
    assert {entry.id for entry in entries} == {*gone, *(entry.id for entry in walk.path)}
    assert len(entries) == len(gone) + len(walk.path)
    assert () == walk.off_path
    # The last step is the trailing batch, and the one before it ends it.
    assert {"r0", "a0", "s0"} == set(gone)


@pytest.mark.parametrize("parent", ["r1", "nowhere"])
def test_a_walk_that_may_have_let_go_what_a_branch_hangs_from_is_not_sure(parent: str) -> None:
    entries = linear(user(), *_steps(0), *_steps(1), *_steps(2), *_steps(3), assistant("a", "stop"))
    walk = LeafWalk("a", SUBMISSION)
    walk.feed(entries[-4:])
    walk.fold(None)
    walk.feed(entries[4:-4])
    walk.feed([*entries[1:4], at(result("late", "t2"), parent)])
    walk.feed(entries[:1])
    assert walk.input_met
    assert not walk.is_sure


def test_a_folded_walk_whose_parent_is_missing_is_not_sure() -> None:
    entries = linear(*_steps(0), *_steps(1), assistant("a", "stop"), below="nowhere")
    walk = LeafWalk("a", SUBMISSION)
    walk.feed(entries[-2:])
    walk.fold(None)
    walk.feed(entries[:-2])
    assert (None, "nowhere", False) == (walk.damage, walk.wanted, walk.is_sure)
    walk.end()
    assert (Damage.MISSING_PARENT, False) == (walk.damage, walk.is_sure)
    assert 'entry "a0" hangs from "nowhere", which is not in the session' in walk.problems


@pytest.mark.parametrize("hook", [False, True])
def test_a_pair_that_a_branch_leaves_the_path_between_is_kept(hook: bool) -> None:
    # The branch's result takes the nearest call that is open where it hangs from: not the one above.
    entries = linear(user(), assistant("open", "tool_use", "t"), *_steps_of_one_id(1), *_steps(2))
    entries = [replace(entry, tool_call_ids=("t",)) if entry.id == "a1" else entry for entry in entries]
    entries = [replace(entry, tool_call_id="t") if entry.id == "r1" else entry for entry in entries]
    entries += [at(result("beside", "t"), "a1" if hook else "r1")]
    walk = same(entries, "s2", 1, 2, None)
    assert walk is not None
    inspection = inspect_walk(walk, SUBMISSION, off_path=entries[-1:])
    assert ({("open", 0)} if hook else set()) == set(inspection.dispatch)


@pytest.mark.parametrize(
    ("turn", "detail", "stopped_by"),
    [
        # A failure that says nothing, below a message without a stop reason whose results are there.
        (
            [assistant("a", None, "t"), result("r", "t"), assistant("f", "error", content="none")],
            Detail.TOOL_RESULTS_READY,
            None,
        ),
        ([assistant("a", None, "t"), result("r", "t")], Detail.TOOL_BATCH_RESOLVED, None),
        # A person stopped the turn, and that stands on an entry that says nothing else.
        ([assistant("a", "stop"), other("c", stopped_by="user")], Detail.RESPONSE_FINISHED, "user"),
        # The result of an earlier call came after it.
        (
            [assistant("a", "stop", "t"), assistant("b", "aborted", stopped_by="user"), result("r", "t")],
            Detail.RESPONSE_ABORTED,
            None,
        ),
        # The same, and the call is of no batch that is held.
        (
            [
                assistant("a", "tool_use", "t"),
                *_steps_of_one_id(1),
                *_steps(2),
                assistant("b", "aborted", stopped_by="user"),
                result("r", "t"),
            ],
            Detail.RESPONSE_ABORTED,
            None,
        ),
        # Of two results of one id the first is the trailing batch's, the second the one of a call above.
        (
            [
                assistant("a", "tool_use", "t"),
                *_steps_of_one_id(1),
                assistant("b", "tool_use", "t"),
                result("r", "t", ends_turn=True),
                result("q", "t"),
            ],
            Detail.TURN_ENDED_BY_TOOL,
            None,
        ),
        # The answer that was stopped is not the last message.
        (
            [assistant("a", "stop"), assistant("b", "aborted", stopped_by="user")],
            Detail.RESPONSE_ABORTED,
            "user",
        ),
    ],
)
def test_what_stands_after_the_last_answer_counts_folded_too(
    turn: list[SessionEntry], detail: Detail, stopped_by: str | None
) -> None:
    silent = assistant("n", None, content="none")
    for later in ([], [silent], [other("o1"), silent, user("s", None, is_synthetic=True)]):
        entries = linear(user(), *turn, *later)
        for size in (1, 2, 3):
            walk = same(entries, entries[-1].id, 1, size, "none such")
            assert walk is not None
            inspection = inspect_walk(walk, SUBMISSION)
            assert (detail, stopped_by) == (inspection.detail, inspection.stopped_by)


@pytest.mark.parametrize(
    ("later", "error"),
    [
        ([], "e"),
        # A runtime's own message counts where it is the record of an error.
        ([assistant("s", "stop", attempt_id=ATTEMPT, is_synthetic=True)], "e"),
        ([assistant("s", "error", attempt_id=ATTEMPT, is_synthetic=True)], "s"),
        ([assistant("s", "aborted", content="none", attempt_id=ATTEMPT)], None),
        ([assistant("s", "error", attempt_id=ATTEMPT, is_sidechain=True)], "e"),
    ],
)
def test_the_error_of_the_attempt_asked_about_is_found_folded_too(later: list[SessionEntry], error: str | None) -> None:
    failed = assistant("e", "error", attempt_id=ATTEMPT, error_retryable=False)
    for after in (
        [],
        [
            assistant("b", "stop"),
            assistant("n", "tool_use", "t9", attempt_id="a2"),
            assistant("m", None, attempt_id="a2"),
        ],
    ):
        entries = linear(user(), failed, *later, *after, other("o1"), other("o2"))
        for size in (1, 2, 3):
            walk = same(entries, "o2", 1, size, ATTEMPT)
            assert walk is not None
            inspection = inspect_walk(walk, SUBMISSION)
            assert error == turn_evidence(walk.path, inspection, attempt_id=ATTEMPT).error_entry_id


def test_without_an_attempt_asked_about_the_turns_own_error_is_found_folded_too() -> None:
    recorded = assistant("s", "error", attempt_id="a2", is_synthetic=True)
    # Another message behind it, for which it would not be kept.
    filler = assistant("f", "stop", attempt_id="a2", is_synthetic=True)
    entries = linear(user(), assistant("e", "stop", attempt_id=ATTEMPT), recorded, filler, other("o1"), other("o2"))
    for size in (1, 2, 3):
        walk = same(entries, "o2", 1, size, None)
        assert walk is not None
        assert "s" == turn_evidence(walk.path, inspect_walk(walk, SUBMISSION)).error_entry_id


def test_the_last_answer_above_which_the_path_is_torn_counts_folded_too() -> None:
    torn = other("x", KIND_UNREADABLE)
    answers = [assistant("a", "stop", submission_id=SUBMISSION), assistant("b", "error", submission_id=SUBMISSION)]
    for answer, detail in zip(answers, (Detail.ANSWERED_IN_DAMAGE, Detail.INTEGRITY_HOLD), strict=True):
        entries = linear(user(), torn, *_steps(1), user("u", OTHER), answer, other("o1"), other("o2"))
        walk = same(entries, "o2", 1, 1, None)
        assert walk is not None
        assert detail == inspect_walk(walk, SUBMISSION).detail


def test_inputs_of_others_are_told_apart_by_where_a_branch_with_the_input_leaves() -> None:
    # The path goes on without the input: below what it hangs from, somebody else went on.
    others = linear(*(user(f"u{number}", OTHER) for number in range(6)))
    for place in range(6):
        entries = [*others[: place + 1], at(user(), f"u{place}"), *others[place + 1 :], at(other("leaf"), "u5")]
        for size in (1, 2, 3):
            walk = same(entries, "leaf", 1, size, None)
            assert walk is not None
            inspection = inspect_walk(walk, SUBMISSION)
            if place < 5:
                assert (Detail.ABANDONED_BRANCH, f"u{place + 1}") == (inspection.detail, inspection.deciding_entry_id)
            else:
                assert Detail.LEAF_MOVED == inspection.detail
