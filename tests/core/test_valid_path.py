"""The path as a model provider takes it (R14)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings

from reconciler.core.classifier import tool_marker_entry_id
from reconciler.core.model import ROLE_TOOL_RESULT, CallDispatch, SessionEntry, SyntheticResult, ValidPath
from reconciler.core.validpath import valid_path
from tests.core.strategies import assistant, busy_path, linear, other, result, user, wild_paths


def _ids(found: ValidPath) -> list[str]:
    return [f"+{item.tool_call_id}" if isinstance(item, SyntheticResult) else item.id for item in found.items]


def _as_entries(found: ValidPath) -> list[SessionEntry]:
    """What a runner would store: each made-up result as the marker that ``begin`` writes."""
    return [
        result(tool_marker_entry_id(item.entry_id, item.position), item.tool_call_id, is_synthetic=True)
        if isinstance(item, SyntheticResult)
        else item
        for item in found.items
    ]


def _check(path: Sequence[SessionEntry]) -> None:
    found = valid_path(path)
    assert found == valid_path(path)
    # Every call is answered exactly once, in call order, directly behind its message; and nothing else is a result.
    items = _as_entries(found)
    place = 0
    while place < len(items):
        entry = items[place]
        assert entry.role != "tool_result" or entry.kind != "message", "a result without its call"
        calls = entry.tool_call_ids if entry.kind == "message" and entry.role == "assistant" else ()
        behind = items[place + 1 : place + 1 + len(calls)]
        assert list(calls) == [answer.tool_call_id for answer in behind]
        assert all(answer.role == "tool_result" and answer.kind == "message" for answer in behind)
        place += 1 + len(calls)
    # A valid path comes back as it is.
    assert ValidPath(tuple(items)) == valid_path(items)
    # Nothing is lost or listed wrongly, and what is no result keeps its order.
    assert tuple(item for item in found.items if isinstance(item, SyntheticResult)) == found.added
    kept = [item for item in found.items if isinstance(item, SessionEntry)]
    assert len(path) == len(kept) + len(found.left_out)

    def main(entries: Sequence[SessionEntry]) -> list[SessionEntry]:
        return [e for e in entries if e.kind != "message" or (e.role != "tool_result" and not e.is_sidechain)]

    assert main(path) == main(kept)


def test_busy_paths_become_valid_without_losing_a_call() -> None:
    for seed in range(1500):
        _check(busy_path(Random(seed)))


@settings(max_examples=200, deadline=None)
@given(wild_paths)
def test_any_path_becomes_valid_without_losing_a_call(path: list[SessionEntry]) -> None:
    _check(path)


def test_a_sound_path_stays_as_it_is() -> None:
    path = linear(user(), assistant("a", "tool_use", "t1"), result("r", "t1"), assistant("b", "stop"))
    assert ValidPath(tuple(path)) == valid_path(path)
    assert ValidPath(()) == valid_path([])


def test_results_move_behind_their_message_in_call_order() -> None:
    path = linear(
        user(),
        assistant("a", None, "t1"),
        assistant("b", "tool_use", "t2", "t3"),
        other("c", "compaction"),
        result("r3", "t3"),
        result("r1", "t1"),
        result("r2", "t2"),
    )
    found = valid_path(path)
    assert ["in", "a", "r1", "b", "r2", "r3", "c"] == _ids(found)
    assert ((), ()) == (found.added, found.left_out)


def test_open_calls_get_a_result_that_says_what_is_known() -> None:
    path = linear(
        assistant("a", "tool_use", "t1", "t2", starts_logged=True),
        other("s", "tool_started", tool_call_id="t2"),
        user(),
        assistant("b", "error", "t3"),
    )
    found = valid_path(path)
    assert ["a", "+t1", "+t2", "s", "in", "b", "+t3"] == _ids(found)
    unknown = "outcome unknown: it may have happened or may still be running; check before doing it again"
    assert (
        SyntheticResult("t1", "a", 0, CallDispatch.NOT_STARTED, "never started: call it again if it is still needed"),
        SyntheticResult("t2", "a", 1, CallDispatch.STARTED, unknown),
        SyntheticResult("t3", "b", 0, CallDispatch.UNKNOWN, unknown),
    ) == found.added


def test_the_first_result_stands_and_what_answers_nothing_is_left_out_and_listed() -> None:
    path = linear(
        result("early", "t1"),
        assistant("a", "tool_use", "t1"),
        result("first", "t1"),
        result("second", "t1"),
        result("none", None),
    )
    found = valid_path(path)
    assert ["a", "first"] == _ids(found)
    assert ("early", "second", "none") == found.left_out


def test_a_late_result_goes_to_the_call_that_it_closes_and_not_to_an_older_one() -> None:
    path = linear(
        assistant("a", "tool_use", "call_0"),
        user(),
        assistant("b", "tool_use", "call_0"),
        result("r", "call_0"),
    )
    assert ["a", "+call_0", "in", "b", "r"] == _ids(valid_path(path))


def test_a_sub_agents_messages_are_not_the_models() -> None:
    path = linear(
        user(),
        assistant("a", "tool_use", "t1"),
        user("s1", is_sidechain=True),
        assistant("s2", "tool_use", "t1", is_sidechain=True),
        result("s3", "t1", is_sidechain=True),
        other("s4", is_sidechain=True),
        result("r", "t1"),
    )
    found = valid_path(path)
    assert ["in", "a", "r", "s4"] == _ids(found)
    assert ("s1", "s2", "s3") == found.left_out


def test_a_fillers_call_is_answered_too() -> None:
    path = linear(
        assistant("a", "tool_use", "t1"), assistant("f", "tool_use", "t1", is_synthetic=True), result("r", "t1")
    )
    assert ["a", "r", "f", "+t1"] == _ids(valid_path(path))


def test_one_id_twice_in_a_message_is_answered_twice() -> None:
    path = linear(assistant("a", "tool_use", "t1", "t1"), result("r", "t1"), result("s", "t1"), result("x", "t1"))
    found = valid_path(path)
    assert (["a", "r", "s"], ("x",)) == (_ids(found), found.left_out)
    assert ["a", "+t1", "r"] == _ids(valid_path(path[:2]))


def test_a_made_up_result_is_one_to_the_provider() -> None:
    made = SyntheticResult("call", "entry", 0, CallDispatch.UNKNOWN, "unknown")
    assert ROLE_TOOL_RESULT == made.role
