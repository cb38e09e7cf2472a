"""Pairing of calls and results, over paths and over trees (R2, R7)."""

from __future__ import annotations

from random import Random

from reconciler.core.classifier import open_calls, splice_results
from reconciler.core.model import CallDispatch, OpenCall
from reconciler.core.pairing import pair_path, pair_tree
from tests.core import oracle
from tests.core.strategies import assistant, at, busy_path, busy_session, linear, other, result, user


def test_pairs_are_the_ones_of_the_contract() -> None:
    for seed in range(1000):
        path = busy_path(Random(seed))
        pairing = pair_path(path)
        expected = oracle.closing(path)
        assert expected == {call: closers[0] for call, closers in pairing.closers.items()}, seed
        assert {at: call for call, at in expected.items()} == pairing.call_of


def test_every_result_of_a_tree_pairs_as_on_its_own_path() -> None:
    for seed in range(1000):
        entries, leaf = busy_session(Random(seed))
        path = oracle.chain(entries, leaf)
        pairing = pair_tree(path, entries)
        for node, entry in enumerate(pairing.nodes):
            own = oracle.chain(entries, entry.id)
            call = next((call for call, place in oracle.closing(own).items() if place == len(own) - 1), None)
            found = pairing.call_of.get(node)
            assert (None if call is None else (own[call[0]].id, call[1])) == (
                None if found is None else (pairing.nodes[found[0]].id, found[1])
            ), seed
            if entry.role == "tool_result" and entry.kind == "message" and not entry.is_sidechain:
                called = {i for e in own if e.role == "assistant" and not e.is_sidechain for i in e.tool_call_ids}
                fillers = {i for e in own if e.is_synthetic for i in e.tool_call_ids}
                if entry.tool_call_id not in fillers:
                    assert (entry.tool_call_id not in called) == (node in pairing.orphans), seed


def test_a_path_without_branches_is_paired_as_a_path() -> None:
    path = linear(user(), assistant("a", None, "t1"))
    assert pair_path(path) == pair_tree(path, path)


def test_entries_of_a_cycle_pair_with_nothing() -> None:
    path = linear(assistant("a", None, "t1"))
    pairing = pair_tree(path, [at(result("x", "t1"), "y"), at(result("y", "t1"), "x")])
    assert ({}, {}) == (pairing.closers, pairing.call_of)


def test_of_off_path_entries_with_one_id_the_first_counts() -> None:
    path = linear(assistant("a", None, "t1"))
    pairing = pair_tree(path, [at(other("x"), "a"), at(result("x", "t1"), "a"), at(result("a", "t1"), "a")])
    assert (["a", "x"], {}) == ([entry.id for entry in pairing.nodes], pairing.closers)


def test_one_id_twice_in_a_message_takes_two_results() -> None:
    path = linear(assistant("a", None, "t1", "t1"), result("r", "t1"))
    assert (OpenCall("a", 0, "t1", CallDispatch.UNKNOWN),) == open_calls(path)
    assert () == open_calls([*path, result("s", "t1")])


def test_open_calls_of_a_path_come_in_call_order_with_their_dispatch() -> None:
    path = linear(
        assistant("a", None, "t2", "t1"),
        assistant("f", None, "t4", is_synthetic=True),
        assistant("b", None, "t3", starts_logged=True),
        result("r", "t2"),
        other("s", "tool_started", tool_call_id="t1"),
    )
    assert (
        OpenCall("a", 1, "t1", CallDispatch.STARTED),
        OpenCall("b", 0, "t3", CallDispatch.NOT_STARTED),
    ) == open_calls(path)


def test_a_path_takes_results_of_branches_only_for_calls_that_it_leaves_open() -> None:
    path = linear(assistant("a", None, "t1", "t2"), result("r1", "t1"))
    off_path = [at(result("x1", "t1"), "a"), at(result("x2", "t2"), "a"), at(result("y2", "t2"), "a")]
    assert ["a", "x2", "r1"] == [entry.id for entry in splice_results(path, off_path)]
    assert tuple(path) == splice_results(path, [])
