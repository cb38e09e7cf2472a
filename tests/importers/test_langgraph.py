"""LangGraph's checkpoints: snapshots into messages, and values that are data whatever they hold."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgpack
import pytest

from reconciler.importers.base import ImportedSession
from reconciler.importers.langgraph_values import Decoder, NotDecoded, Opaque, plain
from tests.support.foreign_stores import Langgraph, lc, lc_calls, packed_object, read_database, session_of
from tests.support.verdicts import chain, verdict

HUMAN = lc("human", "do it", "h1")
DOING = lc("ai", "doing", "a1", tool_calls=lc_calls("c1", "c2"))
DONE = lc("ai", "done", "a9")


def result(call: str, message_id: str | None = None) -> msgpack.ExtType:
    return lc("tool", "ok", message_id or f"r_{call}", tool_call_id=call)


@pytest.fixture
def store(tmp_path: Path) -> Langgraph:
    return Langgraph(tmp_path / "graph.db")


def look(store: Langgraph) -> ImportedSession:
    return session_of(store.name, "langgraph")


def begun(store: Langgraph) -> Langgraph:
    store.checkpoint(source="input", given=[lc("human", "do it")])
    store.checkpoint([HUMAN], following=["model"])
    return store


def test_snapshots_with_the_same_beginning_share_it(store: Langgraph) -> None:
    begun(store).checkpoint([HUMAN, DOING], following=["tools"])
    store.checkpoint([HUMAN, DOING, result("c1"), result("c2")], following=["model"])
    store.checkpoint([HUMAN, DOING, result("c1"), result("c2"), DONE])
    session = look(store)
    assert ["h1", "a1", "r_c1", "r_c2", "a9"] == chain(session)
    assert 5 == len(session.entries)
    assert ("completed", "response_finished") == verdict(session, "input:cp-0001")
    assert {None} == {imported.write_ahead for imported in session.entries}


def test_an_input_that_was_not_applied_is_the_prompt_under_the_same_submission(store: Langgraph) -> None:
    store.checkpoint(source="input", given=[lc("human", "do it")])
    before = look(store)
    assert (["input:cp-0001"], ("uncertain", "input_only")) == (chain(before), verdict(before))
    after = look(store) if store.checkpoint([HUMAN], following=["model"]) else before
    assert ["input:cp-0001"] == [submission.submission_id for submission in after.submissions]
    assert (["h1"], ("uncertain", "input_only")) == (chain(after), verdict(after))


def test_results_that_are_written_and_not_committed_count(store: Langgraph) -> None:
    begun(store).checkpoint([HUMAN, DOING], following=["tools"])
    store.write("task-2", 0, "messages", [lc("tool", "ok", None, tool_call_id="c2")])
    session = look(store)
    assert "write:task-2:0:0" == session.leaf_entry_id
    assert ("continuable", "tool_batch_partial") == verdict(session)


def test_an_error_of_a_node_is_bare(store: Langgraph) -> None:
    begun(store).write("task-1", -1, "__error__", packed_object("builtins", "RuntimeError", "503"))
    session = look(store)
    assert ("uncertain", "input_only", "error") == (*verdict(session), session.entries[-1].entry.stop_reason)


def test_an_interrupt_waits_until_it_is_answered(store: Langgraph) -> None:
    begun(store).checkpoint([HUMAN, DOING], following=["tools"])
    store.write("task-1", -3, "__interrupt__", "approve?")
    assert "an answer to the interrupt of a node" == look(store).waits_for
    assert None is look(store.write("task-1", -4, "__resume__", "yes")).waits_for


def test_last_words_are_an_answer_only_where_no_node_follows(store: Langgraph) -> None:
    begun(store).checkpoint([HUMAN, DONE], following=["critic"])
    assert ("continuable", "response_cut") == verdict(look(store))
    store.checkpoint([HUMAN, DONE])
    assert ("completed", "response_finished") == verdict(look(store))


def test_a_graph_that_ends_behind_its_tools_is_over(store: Langgraph) -> None:
    begun(store).checkpoint([HUMAN, DOING, result("c1"), result("c2")])
    assert ("completed", "turn_ended_by_tool") == verdict(look(store))


def test_a_fork_is_a_branch_and_the_newest_checkpoint_counts(store: Langgraph) -> None:
    store.checkpoint([HUMAN, DONE])
    old = store.checkpoint(source="input", given=[lc("human", "two")])
    store.checkpoint([HUMAN, DONE, lc("human", "two", "h2"), lc("ai", "2", "a2")])
    other = store.checkpoint(source="fork", parent="cp-0001", given=[lc("human", "other")])
    store.checkpoint([HUMAN, DONE, lc("human", "other", "h3")], parent=other, following=["model"])
    session = look(store)
    assert ["h1", "a9", "h3"] == chain(session)
    assert ("completed", "answered_off_path") == verdict(session, f"input:{old}")
    assert ("uncertain", "input_only") == verdict(session, f"input:{other}")


def test_a_message_that_was_changed_is_another_entry_on_another_branch(store: Langgraph) -> None:
    begun(store).checkpoint([HUMAN, DOING], following=["tools"])
    changed = lc("ai", "doing", "a1", tool_calls=lc_calls("c1"))
    edited = store.checkpoint([HUMAN, changed], source="update", following=["tools"])
    session = look(store)
    assert ["h1", f"a1@{edited}"] == chain(session)
    assert {"h1", "a1", f"a1@{edited}"} == {imported.entry.id for imported in session.entries}


def test_a_graph_without_messages_has_inputs_and_an_end(store: Langgraph) -> None:
    store.checkpoint(source="input", __start__={"n": 1})
    store.checkpoint(n=1, following=["a"])
    assert ("uncertain", "input_only") == verdict(look(store))
    store.checkpoint(n=2)
    assert ("completed", "empty_response") == verdict(look(store))


def test_plain_dictionaries_are_messages_too(store: Langgraph) -> None:
    store.checkpoint([{"role": "user", "content": "hi", "id": "h"}, {"role": "assistant", "content": "yo", "id": "a"}])
    assert ("completed", "response_finished") == verdict(look(store))


def test_a_checkpoint_of_the_json_serializer_is_read(store: Langgraph) -> None:
    raw = (
        b'{"v": 4, "channel_values": {"messages": [{"lc": 2, "type": "constructor", "id": ["langchain_core",'
        b' "messages", "human", "HumanMessage"], "kwargs": {"content": "hi", "id": "h", "type": "human"}}]}}'
    )
    store.checkpoint(kind="json", raw=raw)
    assert ["h"] == chain(look(store))


@pytest.mark.parametrize("kind", ["pickle", "msgpack+aes", "msgpack"])
def test_a_newest_checkpoint_that_cannot_be_decoded_is_damage_and_not_absence(store: Langgraph, kind: str) -> None:
    begun(store).checkpoint(kind=kind, raw=pickle.dumps({"v": 4}) if kind == "pickle" else b"\xc1")
    (found,) = read_database(store.name, "langgraph")
    assert ["checkpoint_unreadable"] == [problem.code for problem in found.problems]
    assert ("uncertain", "integrity_hold") == verdict(found.sessions[0], "input:cp-0001")


# --- values ----------------------------------------------------------------------------------------------------------


class Trap:
    """Must never be made."""

    def __init__(self, *_: object, **__: object) -> None:
        pytest.fail("an object was constructed")


def test_nothing_but_messages_is_recognised_and_nothing_is_constructed() -> None:
    for code in range(6):
        value = packed_object(__name__, "Trap", {"x": 1}, code)
        assert Opaque(f"{__name__}.Trap") == Decoder().typed("msgpack", msgpack.packb(value))
    for module, name in (("langchain_core.messages.human", "Popen"), ("os", "HumanMessage"), ("subprocess", "run")):
        found = Decoder().typed("msgpack", msgpack.packb(packed_object(module, name, {"content": "x"})))
        assert isinstance(found, Opaque)
    assert isinstance(Decoder().typed("msgpack", msgpack.packb(msgpack.ExtType(6, b"numpy"))), Opaque)


def test_nesting_is_bounded() -> None:
    value: object = "x"
    for _ in range(100):
        value = packed_object("m", "C", {"inner": value})
    with pytest.raises(NotDecoded):
        Decoder().typed("msgpack", msgpack.packb(value))
    with pytest.raises(NotDecoded):
        Decoder().typed("msgpack", b"\x91" * 5000 + b"\x00")
    with pytest.raises(NotDecoded):
        Decoder().typed("json", b"[" * 5000 + b"]" * 5000)


@pytest.mark.parametrize(
    "data", [b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xffx", b"\xc1", b"", b"\x81", b"\xc9\xff\xff\xff\xff\x05"]
)
def test_sizes_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(NotDecoded):
        Decoder().typed("msgpack", data)


def test_whatever_is_decoded_can_be_kept_as_json() -> None:
    value = {1: b"\x00", "t": (1, 2), "o": Opaque("x"), "n": float("inf")}
    assert {"1": {"$bytes": "AA=="}, "t": [1, 2], "o": {"$opaque": "x"}, "n": float("inf")} == plain(value)
