"""Whatever stands in a file: an importer answers, and the classifier has a verdict for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.classifier import inspect_session
from reconciler.importers.base import ImportResult
from tests.support.session_files import Claude, Pi, read

PI = (
    Pi()
    .add("m0", "model_change")
    .user("u1")
    .assistant("a1", calls=["c1", "c2"], stop="toolUse")
    .result("r1", "c1")
    .add("k1", "compaction")
    .assistant("a2", None, stop="error", error="400 no")
    .add("x1", "custom_message", content="x")
    .assistant("a3")
    .add("l1", "leaf", targetId="a1")
    .user("u2")
).lines
CLAUDE = (
    Claude()
    .outside("queue-operation", operation="enqueue", timestamp="t", content="later")
    .user("u1", promptId="p1")
    .thinking("a1", "m1")
    .call("a2", "m1", "c1")
    .result("r1", "c1", "c9")
    .call("a3", "m1", "c2")
    .add("p1", "progress")
    .result("r2", "c2", parent="a3")
    .add("k1", "system", parent=None, subtype="compact_boundary", logicalParentUuid="r2")
    .user("k2", "s", isCompactSummary=True)
    .add("q1", "attachment", attachment={"type": "queued_command", "prompt": "and this"})
    .text("b1", "m2", None)
    .add("t1", "system", subtype="turn_duration")
    .user("u2", "<command-name>/x</command-name>")
    .user("o1", "<local-command-stdout>")
).lines

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 2**70),
        st.text(max_size=5),
        st.sampled_from(
            ["u1", "a1", "a2", "r1", "k1", "p1", "m1", "c1", "user", "assistant", "toolUse", "", "x" * 600]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=4,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every part of a JSON value."""
    found = [path]
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


def put(value: Any, path: tuple[Any, ...], new: object) -> Any:
    """Return a copy of *value* with *new* at *path*."""
    if not path:
        return new
    copy = json.loads(json.dumps(value))
    at = copy
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = new
    return copy


def check(result: ImportResult) -> None:
    """Every promise of a result that holds whatever was read."""
    for session in result.sessions:
        ids = [item.entry.id for item in session.entries]
        assert len(ids) == len(set(ids))
        place = {entry_id: at for at, entry_id in enumerate(ids)}
        cyclic = any(problem.code == "parent_cycle" for problem in result.problems)
        for at, item in enumerate(session.entries):
            parent = item.entry.parent_id
            assert cyclic or parent is None or place.get(parent, -1) < at
            assert item.lines
        assert len({s.submission_id for s in session.submissions}) == len(session.submissions)
        assert {s.input_entry_id for s in session.submissions} - {None} <= set(ids)
        for submission in session.submissions:
            inspect_session(
                [item.entry for item in session.entries],
                session.leaf_entry_id,
                submission.submission_id,
                leaf_known_empty=session.leaf_known_empty,
            )


@pytest.mark.parametrize(("format_name", "lines"), [("pi", PI), ("claude-code", CLAUDE)])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_part_of_a_file_may_be_anything(format_name: str, lines: list[Any], data: st.DataObject) -> None:
    changed = list(lines)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        path = data.draw(st.sampled_from(places(changed[at])))
        changed[at] = put(changed[at], path, data.draw(VALUES))
    check(read(format_name, changed))


@pytest.mark.parametrize(("format_name", "lines"), [("pi", PI), ("claude-code", CLAUDE)])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_lines_may_be_in_any_order_missing_or_doubled(format_name: str, lines: list[Any], data: st.DataObject) -> None:
    check(read(format_name, data.draw(st.lists(st.sampled_from(lines), max_size=25))))


@pytest.mark.parametrize(("format_name", "lines"), [("pi", PI), ("claude-code", CLAUDE)])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_file_may_end_anywhere_and_hold_any_bytes(format_name: str, lines: list[Any], data: st.DataObject) -> None:
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    at = data.draw(st.integers(0, len(cut)))
    check(read(format_name, [cut[:at], data.draw(st.binary(max_size=30)), cut[at:]]))
