"""The classifier against a second, slow reading of the contract (``oracle``)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings

from reconciler.core.classifier import active_path, inspect_session, inspect_submission
from reconciler.core.model import STATE_OF_DETAIL, Detail, SessionEntry
from tests.core import oracle
from tests.core.strategies import SUBMISSION, busy_path, busy_session, paths, trees

# Rows that need damage, or a settlement, which the dice don't write.
NOT_THROWN = {Detail.INTEGRITY_HOLD, Detail.ANSWERED_IN_DAMAGE, Detail.SETTLED_ENTRY}
OF_SESSIONS = {Detail.ANSWERED_OFF_PATH, Detail.ABANDONED_BRANCH, Detail.LEAF_MOVED, Detail.INPUT_MISSING}


def _check_path(path: list[SessionEntry]) -> Detail:
    detail, unresolved = oracle.table(path, SUBMISSION)
    inspection = inspect_submission(path, SUBMISSION)
    assert (detail, STATE_OF_DETAIL[detail]) == (inspection.detail, inspection.state)
    assert [path[i].tool_call_ids[p] for i, p in unresolved] == list(inspection.unresolved_tool_calls)
    open_calls = oracle.open_calls(path, set(oracle.closing(path)))
    assert [(path[i].id, p) for i, p in open_calls] == list(inspection.dispatch)
    interior = [path[i].tool_call_ids[p] for i, p in open_calls if (i, p) not in unresolved]
    assert interior == list(inspection.interior_open_calls)
    return detail


def _check_session(entries: list[SessionEntry], leaf: str) -> Detail:
    detail, unresolved = oracle.session(entries, leaf, SUBMISSION)
    inspection = inspect_session(entries, leaf, SUBMISSION)
    assert (detail, STATE_OF_DETAIL[detail]) == (inspection.detail, inspection.state)
    path = oracle.chain(entries, leaf)
    assert [path[i].tool_call_ids[p] for i, p in unresolved] == list(inspection.unresolved_tool_calls)
    closed = {*oracle.closing(path), *oracle.closed_by_branches(entries, path)}
    assert [(path[i].id, p) for i, p in oracle.open_calls(path, closed)] == list(inspection.dispatch)
    return detail


def test_busy_paths_are_classified_as_the_contract_reads() -> None:
    met = {_check_path(busy_path(Random(seed))) for seed in range(6000)}
    assert set(Detail) - NOT_THROWN - OF_SESSIONS == met


def test_busy_sessions_are_classified_as_the_contract_reads() -> None:
    met = {_check_session(*busy_session(Random(seed))) for seed in range(6000)}
    assert set(Detail) - NOT_THROWN == met


@settings(max_examples=150, deadline=None)
@given(paths)
def test_odd_paths_are_classified_as_the_contract_reads(path: list[SessionEntry]) -> None:
    _check_path(path)


@settings(max_examples=150, deadline=None)
@given(trees())
def test_odd_sessions_are_classified_as_the_contract_reads(tree: tuple[list[SessionEntry], str]) -> None:
    _check_session(*tree)


def test_the_path_with_spliced_results_leaves_the_same_calls_open() -> None:
    for seed in range(1500):
        entries, leaf = busy_session(Random(seed))
        whole = inspect_session(entries, leaf, SUBMISSION)
        spliced = inspect_submission(active_path(entries, leaf), SUBMISSION)
        assert whole.dispatch.keys() == spliced.dispatch.keys(), seed
