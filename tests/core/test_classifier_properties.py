"""What holds of every path and session: total, R1, R5, R9, and linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.classifier import (
    active_path,
    classify_submission_state,
    find_submission_input_index,
    has_submission_settled_entry,
    inspect_session,
    inspect_submission,
    open_calls,
    turn_evidence,
)
from reconciler.core.model import (
    STATE_OF_DETAIL,
    CallKey,
    Detail,
    Inspection,
    SessionEntry,
    SubmissionInspection,
)
from reconciler.core.validpath import valid_path
from tests.core.strategies import (
    ATTEMPT,
    SUBMISSION,
    assistant,
    at,
    busy_path,
    busy_session,
    linear,
    other,
    paths,
    result,
    settled,
    transparent_entries,
    trees,
    user,
    wild_paths,
    wild_sessions,
)


def _is_sound(inspection: Inspection) -> None:
    assert STATE_OF_DETAIL[inspection.detail] is inspection.state
    assert (inspection.detail is Detail.INTEGRITY_HOLD) == (inspection.integrity is not None)
    if inspection.state is not SubmissionInspection.CONTINUABLE:
        assert inspection.unresolved_tool_calls == ()


# --- total -----------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(wild_paths, st.one_of(st.just(SUBMISSION), st.text(max_size=2)))
def test_no_path_raises(path: list[SessionEntry], submission_id: str) -> None:
    inspection = inspect_submission(path, submission_id)
    _is_sound(inspection)
    assert inspection.state is classify_submission_state(path, submission_id)
    assert (inspection.detail is Detail.SETTLED_ENTRY) == has_submission_settled_entry(path, submission_id)
    index = find_submission_input_index(path, submission_id)
    assert (None if index < 0 else path[index].id) == inspection.input_entry_id
    turn_evidence(path, inspection)
    turn_evidence(path, index, attempt_id=ATTEMPT)
    open_calls(path)


@settings(max_examples=500, deadline=None)
@given(wild_sessions(), st.one_of(st.none(), st.just(ATTEMPT)), st.booleans())
def test_no_session_raises(
    session_and_leaf: tuple[list[SessionEntry], str | None], attempt: str | None, known_empty: bool
) -> None:
    entries, leaf = session_and_leaf
    inspection = inspect_session(entries, leaf, SUBMISSION, attempt, leaf_known_empty=known_empty)
    _is_sound(inspection)
    path = active_path(entries, leaf)
    turn_evidence(path, inspection)
    valid_path(path)
    ids = {entry.id for entry in entries}
    assert {inspection.input_entry_id, inspection.deciding_entry_id} - {None} <= ids


# --- R1 --------------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(paths, transparent_entries, st.integers(0, 11))
def test_an_entry_that_no_rule_names_changes_nothing(path: list[SessionEntry], entry: SessionEntry, place: int) -> None:
    place = min(place, len(path))
    longer = [*path[:place], replace(entry, id="added"), *path[place:]]
    assert inspect_submission(path, SUBMISSION) == inspect_submission(longer, SUBMISSION)


def test_an_entry_that_no_rule_names_changes_nothing_in_a_busy_turn() -> None:
    added = (
        other("added", "compaction", tool_call_id="t1"),
        other("added", "tool_started", tool_call_id="t1", is_sidechain=True),
        other("added", "branch_summary", role="assistant", stop_reason="stop", tool_call_ids=("t1",)),
        other("added", "unheard of", role="user", submission_id=SUBMISSION),
        assistant("added", "stop", is_sidechain=True),
        assistant("added", "tool_use", "t1", is_sidechain=True, stopped_by="user"),
        result("added", "t1", is_sidechain=True),
        user("added", is_sidechain=True),
        user("added", None, is_synthetic=True),
        user("added", SUBMISSION, is_synthetic=True, role="signal"),
        user("added", None, role="signal"),
        assistant("added", "stop", is_synthetic=True),
        assistant("added", "error", "t1", "call_0", is_synthetic=True),
        assistant("added", None, content="none"),
        assistant("added", "refused", content="none"),
        other("added", "message", role="system"),
        settled("added", "S9"),
    )
    for seed in range(400):
        dice = Random(seed)
        path = busy_path(dice)
        before = inspect_submission(path, SUBMISSION)
        for entry in added:
            place = dice.randint(0, len(path))
            after = inspect_submission([*path[:place], entry, *path[place:]], SUBMISSION)
            assert before == after, (seed, entry, place)


# --- R5, R9 ----------------------------------------------------------------------------------------------------------


def _renamed(entry: SessionEntry, names: dict[str, str]) -> SessionEntry:
    parent = entry.parent_id
    return replace(entry, id=names[entry.id], parent_id=parent and names.get(parent, parent))


@settings(max_examples=150, deadline=None)
@given(trees(), st.randoms(use_true_random=False))
def test_other_ids_change_no_answer(tree: tuple[list[SessionEntry], str], dice: Random) -> None:
    entries, leaf = tree
    fresh = [f"{dice.randrange(10**6):06}-{number}" for number in range(len(entries))]
    dice.shuffle(fresh)
    names = dict(zip((entry.id for entry in entries), fresh, strict=True))
    before = inspect_session(entries, leaf, SUBMISSION)
    after = inspect_session([_renamed(entry, names) for entry in entries], names[leaf], SUBMISSION)

    def renamed(key: CallKey) -> CallKey:
        return names[key[0]], key[1]

    assert (
        replace(
            before,
            input_entry_id=before.input_entry_id and names[before.input_entry_id],
            deciding_entry_id=before.deciding_entry_id and names[before.deciding_entry_id],
            dispatch={renamed(key): value for key, value in before.dispatch.items()},
        )
        == after
    )


def test_the_order_in_which_entries_are_given_changes_no_answer() -> None:
    for seed in range(1000):
        dice = Random(seed)
        entries, leaf = busy_session(dice)
        before = inspect_session(entries, leaf, SUBMISSION)
        dice.shuffle(entries)
        after = inspect_session(entries, leaf, SUBMISSION)
        # Where several branches hold an answer, any of them may be named.
        named = {"input_entry_id": None, "deciding_entry_id": None}
        assert replace(before, **named) == replace(after, **named), seed  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(wild_sessions(), st.one_of(st.none(), st.sampled_from(("e0", "e3", "set", "nowhere"))), st.integers(0, 10))
def test_a_settlement_anywhere_wins(
    session_and_leaf: tuple[list[SessionEntry], str | None], parent: str | None, place: int
) -> None:
    entries, leaf = session_and_leaf
    longer = [*entries[:place], at(settled("set"), parent), *entries[place:]]
    assert inspect_session(longer, leaf, SUBMISSION, ATTEMPT).detail is Detail.SETTLED_ENTRY
    assert inspect_submission(longer, SUBMISSION).detail is Detail.SETTLED_ENTRY


@settings(max_examples=150, deadline=None)
@given(paths)
def test_a_linear_session_is_inspected_as_its_path(path: list[SessionEntry]) -> None:
    leaf = path[-1].id if path else None
    assert inspect_submission(path, SUBMISSION) == inspect_session(path, leaf, SUBMISSION)


# --- linear ----------------------------------------------------------------------------------------------------------

SIZES = (400, 1600)


class _Counting:
    """Counts how often the product looks into an entry: every step of the classifier does, whatever its loop."""

    reads = 0


class _CountedEntry(SessionEntry):
    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        _Counting.reads += 1
        return super().__getattribute__(name)


def _counted(entries: Sequence[SessionEntry]) -> list[SessionEntry]:
    return [
        _CountedEntry(**{name: getattr(entry, name) for name in SessionEntry.__dataclass_fields__}) for entry in entries
    ]


def _chain(size: int) -> tuple[list[SessionEntry], str]:
    """A turn of many calls with one id, all of them open."""
    entries = linear(user("in"), *(assistant(f"a{number}", "tool_use", "t1") for number in range(size)))
    return entries, entries[-1].id


def _alternating(size: int) -> tuple[list[SessionEntry], str]:
    turns = [
        entry
        for number in range(size // 2)
        for entry in (assistant(f"a{number}", "tool_use", "t1"), result(f"r{number}", "t1"))
    ]
    entries = linear(user("in"), *turns)
    return entries, entries[-1].id


def _wide_message(size: int) -> tuple[list[SessionEntry], str]:
    """One message with many calls, and their results on as many branches."""
    calls = [f"t{number}" for number in range(size // 2)]
    entries = linear(user("in"), assistant("a", "tool_use", *calls))
    return [*entries, *(at(result(f"r{call}", call), "a") for call in calls)], "a"


def _one_call_answered_often(size: int) -> tuple[list[SessionEntry], str]:
    """The leaf beside an input below which one call has many results, each on a branch of its own."""
    entries = [
        *linear(user("x", "S9"), other("leaf")),
        *linear(user("in"), assistant("a", "tool_use", "t1"), below="x"),
    ]
    return [*entries, *(at(result(f"r{number}", "t1"), "a") for number in range(size))], "leaf"


def _comb(size: int) -> tuple[list[SessionEntry], str]:
    """The leaf beside an input with a long branch that forks at every entry."""
    spine = linear(user("in"), *(assistant(f"a{number}", "tool_use", "t1") for number in range(size // 2)), below="x")
    teeth = [at(other(f"o{entry.id}"), entry.id) for entry in spine]
    return [*linear(user("x", "S9"), other("leaf")), *spine, *teeth], "leaf"


def _many_inputs(size: int) -> tuple[list[SessionEntry], str]:
    """The leaf beside a branch on which the input stands again and again."""
    inputs = linear(*(user(f"in{number}") for number in range(size)), below="x")
    return [*linear(user("x", "S9"), other("leaf")), *inputs], "leaf"


SHAPES = (_chain, _alternating, _wide_message, _one_call_answered_often, _comb, _many_inputs)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_steps_grow_no_faster_than_the_entries(shape: object) -> None:
    def steps(size: int) -> int:
        entries, leaf = shape(size)  # type: ignore[operator]
        counted = _counted(entries)
        _Counting.reads = 0
        inspection = inspect_session(counted, leaf, SUBMISSION, ATTEMPT)
        path = active_path(counted, leaf)
        valid_path(path)
        turn_evidence(path, inspection)
        inspect_submission(path, SUBMISSION)
        return _Counting.reads

    small, large = (steps(size) for size in SIZES)
    assert large <= small * (SIZES[1] / SIZES[0]) * 1.1


@pytest.mark.parametrize(("shape", "size"), [(_chain, 100_000), *((shape, 10_000) for shape in SHAPES[1:])])
def test_long_paths_need_no_recursion(shape: object, size: int) -> None:
    entries, leaf = shape(size)  # type: ignore[operator]
    _is_sound(inspect_session(entries, leaf, SUBMISSION))
    valid_path(active_path(entries, leaf))
