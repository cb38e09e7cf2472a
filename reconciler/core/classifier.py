"""The classifier: how far a submission got, by its durable entries alone (contract 3.1).

The public questions about a path (``inspect_submission``) and about a session (``inspect_session``), and the ones that
a pass asks of a stored session without reading all of it. All of them are one implementation, linear in the entries
given and total on every input: ``terms`` names entries, ``pairing`` joins calls and results, ``turn`` holds the table,
``session`` what a bare path can't show.

A pass, for one submission:

1. Looks the canonical settlement entry up (R9). Found: ``inspect_walk(LeafWalk(leaf, id), settlement=entry)``.
2. Feeds a ``LeafWalk`` with pieces from the leaf upwards until ``input_met`` or ``wanted`` is None; ``end()`` where the
   session has no entry of the wanted id. Between two pieces a long walk may be folded (``fold``), so that it doesn't
   hold the whole turn; where it isn't ``is_sure`` in the end it is made anew unfolded, and so it is before
   ``CALLS_ABOVE`` is read.
3. Calls ``inspect_walk``, then ``facts_wanted``: what else could change the answer. Mostly nothing does.

   - ``CALLS_ABOVE``: feed further pieces while ``walk.wanted`` and ``walk.calls_lacking``.
   - ``BRANCH_RESULTS``: the tool results off the path that name an open call (R7), with the entries between them and
     the path, where there are any.
   - ``INPUT_ELSEWHERE``: the canonical inputs off the path (R6), all that hangs below them, and what lies between them
     and the path. Without any the submission is absent.

4. Calls ``inspect_walk`` once more, with ``off_path`` if a branch was asked for.

``inspect_session`` does the same with everything at hand; R8 is only there, since native appends move the leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from reconciler.core.model import (
    CONTENT_TEXT,
    STOP_ERROR,
    Detail,
    Inspection,
    OpenCall,
    SessionEntry,
    SubmissionInspection,
    TurnEvidence,
)
from reconciler.core.pairing import open_calls, pair_path, pair_tree, splice_results
from reconciler.core.session import Damage, LeafWalk, leaf_of_attempt, verdict_in_damage, verdict_off_path
from reconciler.core.terms import (
    is_assistant,
    is_canonical_input,
    is_finished,
    is_foreign_input,
    is_response,
    is_settlement,
    stop_reason,
    submission_input_entry_id,
    submission_settlement_entry_id,
    tool_marker_entry_id,
)
from reconciler.core.turn import Verdict, conclude, read_turn

__all__ = [
    "Damage",
    "FactsWanted",
    "LeafWalk",
    "active_path",
    "classify_submission_state",
    "facts_wanted",
    "find_submission_input_index",
    "has_submission_settled_entry",
    "inspect_session",
    "inspect_submission",
    "inspect_walk",
    "leaf_of_attempt",
    "open_calls",
    "splice_results",
    "submission_input_entry_id",
    "submission_settlement_entry_id",
    "tool_marker_entry_id",
    "turn_evidence",
]


# --- a bare path ---------------------------------------------------------------------------------------------------


def find_submission_input_index(path: Sequence[SessionEntry], submission_id: str) -> int:
    """Return the index of the last canonical input that carries the id, else -1."""
    for index in range(len(path) - 1, -1, -1):
        if is_canonical_input(path[index], submission_id):
            return index
    return -1


def has_submission_settled_entry(path: Iterable[SessionEntry], submission_id: str) -> bool:
    """Tell whether a canonical settlement entry for the id is among the entries."""
    return _first_settlement(path, submission_id) is not None


def _first_settlement(entries: Iterable[SessionEntry], submission_id: str) -> SessionEntry | None:
    return next((entry for entry in entries if is_settlement(entry, submission_id)), None)


def classify_submission_state(path: Sequence[SessionEntry], submission_id: str) -> SubmissionInspection:
    """Return the state alone. Total: no path raises."""
    return inspect_submission(path, submission_id).state


def inspect_submission(
    path: Sequence[SessionEntry], submission_id: str, *, write_ahead: bool | None = None
) -> Inspection:
    """Inspect a path, from root to leaf: the table with R1 to R5 and R11 to R13.

    Args:
        path: the active path, or its part from the input on.
        submission_id: whose turn is asked about.
        write_ahead: True only if every entry from the input on has a write-ahead writer: a call is durable before its
            tool runs (R12).
    """
    pairing = pair_path(path)
    turn = read_turn(pairing, submission_id)
    settlement = _first_settlement(path, submission_id)
    verdict = turn.verdict() if settlement is None else _settled(settlement)
    return conclude(pairing, turn, verdict, write_ahead=write_ahead)


def _settled(settlement: SessionEntry) -> Verdict:
    return Verdict(Detail.SETTLED_ENTRY, deciding_entry_id=settlement.id)


# --- a session -----------------------------------------------------------------------------------------------------


def inspect_session(
    entries: Iterable[SessionEntry],
    leaf_entry_id: str | None,
    submission_id: str,
    current_attempt_id: str | None = None,
    *,
    write_ahead: bool | None = None,
    leaf_known_empty: bool = False,
) -> Inspection:
    """Inspect a submission by all entries of its session, in any order: the table with R1 to R13.

    Args:
        entries: of those with one id the first counts, the others are listed as problems.
        leaf_entry_id: the session's leaf.
        submission_id: whose turn is asked about.
        current_attempt_id: of a mirrored session whose leaf may lag behind (R8).
        write_ahead: as for ``inspect_submission``.
        leaf_known_empty: the source says that the active path is empty, so that no leaf is not a missing one.
    """
    given = list(entries)
    walk = _walk_all(given, leaf_entry_id, submission_id, leaf_known_empty)
    settlement = _first_settlement(walk.entries, submission_id)
    if settlement is None and walk.damage is None:
        leaf = leaf_of_attempt(walk.entries, leaf_entry_id, current_attempt_id)
        if leaf != leaf_entry_id:
            walk = _walk_all(given, leaf, submission_id, leaf_known_empty)
    return inspect_walk(walk, submission_id, settlement=settlement, write_ahead=write_ahead)


def _walk_all(
    entries: Sequence[SessionEntry], leaf_entry_id: str | None, submission_id: str | None, leaf_known_empty: bool
) -> LeafWalk:
    walk = LeafWalk(leaf_entry_id, submission_id, has_entries=bool(entries), leaf_known_empty=leaf_known_empty)
    walk.feed(entries)
    walk.end()
    return walk


def inspect_walk(
    walk: LeafWalk,
    submission_id: str,
    *,
    settlement: SessionEntry | None = None,
    off_path: Iterable[SessionEntry] | None = None,
    write_ahead: bool | None = None,
) -> Inspection:
    """Inspect a submission by what a walk from the leaf has met.

    Args:
        walk: made for this submission.
        submission_id: whose turn is asked about.
        settlement: the canonical settlement entry, if there is one anywhere in the session (R9).
        off_path: entries of branches; without it those that the walk was fed and did not meet.
        write_ahead: as for ``inspect_submission``.
    """
    pairing = pair_tree(walk.path, walk.off_path if off_path is None else off_path)
    turn = read_turn(pairing, submission_id)
    if settlement is not None:
        verdict = _settled(settlement)
    elif walk.damage is not None:
        verdict = verdict_in_damage(walk.damage, walk.path, submission_id)
    elif walk.input_met:
        verdict = turn.verdict()
    else:
        verdict = verdict_off_path(pairing, submission_id)
    return conclude(pairing, turn, verdict, write_ahead=write_ahead, problems=walk.problems)


class FactsWanted(StrEnum):
    """What a part of a session can't answer. See the module's text for what to read."""

    CALLS_ABOVE = "calls_above"
    BRANCH_RESULTS = "branch_results"
    INPUT_ELSEWHERE = "input_elsewhere"


_UNFINISHED = frozenset({SubmissionInspection.CONTINUABLE, SubmissionInspection.UNCERTAIN})


def facts_wanted(walk: LeafWalk, inspection: Inspection) -> frozenset[FactsWanted]:
    """Return what else has to be read before *inspection*, made from *walk*, may be acted on; mostly nothing."""
    if inspection.detail is Detail.SETTLED_ENTRY or walk.damage is not None:
        return frozenset()
    if not walk.input_met:
        return frozenset({FactsWanted.INPUT_ELSEWHERE})
    wanted = set()
    if inspection.detail is Detail.ORPHAN_RESULT and walk.calls_lacking and walk.wanted is not None:
        wanted.add(FactsWanted.CALLS_ABOVE)
    if inspection.dispatch and inspection.state in _UNFINISHED:
        wanted.add(FactsWanted.BRANCH_RESULTS)
    return frozenset(wanted)


def active_path(entries: Iterable[SessionEntry], leaf_entry_id: str | None) -> tuple[SessionEntry, ...]:
    """Return the path from root to leaf as far as the links go, with results of branches behind their calls (R7).

    For reading and for a provider. It is not what is inspected: a result put between two messages of one response would
    look as if it stood there (R4).
    """
    walk = _walk_all(list(entries), leaf_entry_id, None, leaf_known_empty=True)
    return splice_results(walk.path, walk.off_path)


# --- evidence ------------------------------------------------------------------------------------------------------


def turn_evidence(
    path: Sequence[SessionEntry],
    inspection_or_input_index: Inspection | int,
    *,
    attempt_id: str | None = None,
) -> TurnEvidence:
    """Gather what the policy and the planner need beside the state.

    With an inspection the open calls are the ones that it saw in the entries given to it, so that results of branches
    count; with an index they are those of *path*. The responses are those of the turn: after the input and before the
    first input of somebody else.

    Args:
        path: the path that was inspected.
        inspection_or_input_index: its inspection, or the index of the input (-1: there is none).
        attempt_id: whose last message is asked about for the error; None: the turn's. A runtime's message counts here
            where it is the record of an error.
    """
    calls = open_calls(path)
    if isinstance(inspection_or_input_index, Inspection):
        seen = inspection_or_input_index.dispatch
        calls = tuple(call for call in calls if (call.entry_id, call.position) in seen)
        index = _index_of(path, inspection_or_input_index.input_entry_id)
    else:
        index = inspection_or_input_index
    turn = _turn_after(path, index)
    response = next((entry for entry in reversed(turn) if is_response(entry)), None)
    error = next(
        (
            entry
            for entry in reversed(turn)
            if is_assistant(entry)
            and (attempt_id is None or entry.attempt_id == attempt_id)
            and (not entry.is_synthetic or stop_reason(entry) == STOP_ERROR)
        ),
        None,
    )
    if error is not None and stop_reason(error) != STOP_ERROR:
        error = None
    return _evidence(calls, response, error)


def _evidence(calls: tuple[OpenCall, ...], response: SessionEntry | None, error: SessionEntry | None) -> TurnEvidence:
    return TurnEvidence(
        open_calls=calls,
        last_response_entry_id=None if response is None else response.id,
        last_response_has_text=response is not None and response.content == CONTENT_TEXT,
        last_response_finished=response is not None and is_finished(response),
        error_entry_id=None if error is None else error.id,
        error_retryable=None if error is None else error.error_retryable,
        call_in_flight=calls[-1] if calls else None,
    )


def _index_of(path: Sequence[SessionEntry], entry_id: str | None) -> int:
    if entry_id is None:
        return -1
    return next((index for index in range(len(path) - 1, -1, -1) if path[index].id == entry_id), -1)


def _turn_after(path: Sequence[SessionEntry], index: int) -> Sequence[SessionEntry]:
    """Return the entries after the input up to the first foreign one."""
    if not 0 <= index < len(path):
        return ()
    submission_id = path[index].submission_id or ""
    later = range(index + 1, len(path))
    end = next((node for node in later if is_foreign_input(path[node], submission_id)), len(path))
    return path[index + 1 : end]
