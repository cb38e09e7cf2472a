"""Two walks of one session, folded and whole, and all that a pass asks of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reconciler.core.classifier import LeafWalk, facts_wanted, inspect_walk, turn_evidence
from reconciler.core.model import KIND_MESSAGE, SessionEntry
from tests.core.strategies import SUBMISSION


def pieces(entries: Sequence[SessionEntry], leaf: str | None, first: int, size: int) -> list[list[SessionEntry]]:
    """Cut what is not newer than the leaf as a store does: from the leaf upwards, in descending pieces."""
    below = next((place for place, entry in enumerate(entries) if entry.id == leaf), -1)
    found = []
    top = below + 1
    step = first
    while top > 0:
        found.append(list(entries[max(0, top - step) : top]))
        top -= step
        step = size
    return found


def walk_through(
    entries: Sequence[SessionEntry],
    leaf: str | None,
    cut: Sequence[Sequence[SessionEntry]],
    *,
    fold: bool,
    attempt: str | None = None,
    submission_id: str = SUBMISSION,
) -> LeafWalk:
    """Walk as the store does: what needs a second piece is folded before it comes."""
    walk = LeafWalk(leaf, submission_id, has_entries=bool(entries))
    read = {entry.id for piece in cut for entry in piece}
    newer = frozenset(entry.parent_id for entry in entries if entry.id not in read and entry.parent_id is not None)
    for number, piece in enumerate(cut):
        if walk.wanted is None or walk.input_met:
            break
        if number == 1 and fold:
            walk.fold(attempt, newer)
        walk.feed(piece)
    return walk


def _may_grow_by(path: Sequence[SessionEntry]) -> SessionEntry | None:
    return next((entry for entry in reversed(path) if entry.kind == KIND_MESSAGE and not entry.is_sidechain), None)


def _answers(walk: LeafWalk, beside: Sequence[SessionEntry], attempt: str | None, submission_id: str) -> list[Any]:
    """All that a pass asks of a walk."""
    found: list[Any] = [walk.input_met, walk.damage, walk.wanted, walk.problems, walk.calls_lacking, walk.off_path]
    for off_path in (None, (*walk.off_path, *beside)):
        inspection = inspect_walk(walk, submission_id, off_path=off_path)
        wanted = facts_wanted(walk, inspection)
        found += [inspection, list(inspection.dispatch.items()), wanted]
        found.append(turn_evidence(walk.path, inspection, attempt_id=attempt))
    found.append(_may_grow_by(walk.path))
    return found


def same(
    entries: Sequence[SessionEntry],
    leaf: str | None,
    first: int,
    size: int,
    attempt: str | None,
    submission_id: str = SUBMISSION,
) -> LeafWalk | None:
    """Compare both walks; return the folded one, None where it says itself that it can't vouch for its answer."""
    cut = pieces(entries, leaf, first, size)
    folded = walk_through(entries, leaf, cut, fold=True, attempt=attempt, submission_id=submission_id)
    if not folded.is_sure:
        return None
    whole = walk_through(entries, leaf, cut, fold=False, submission_id=submission_id)
    read = {entry.id for piece in cut for entry in piece}
    beside = [entry for entry in entries if entry.id not in read]
    assert _answers(whole, beside, attempt, submission_id) == _answers(folded, beside, attempt, submission_id)
    held = {entry.id for entry in folded.path}
    # What is left is a part of the path, in its order.
    assert [entry for entry in whole.path if entry.id in held] == list(folded.path)
    return folded


def unique(entries: Iterable[SessionEntry]) -> list[SessionEntry]:
    """Return the first entry of each id: a store holds no other."""
    return list({entry.id: entry for entry in reversed(list(entries))}.values())[::-1]
