"""What only a stored session shows: the walk from the leaf, damage, branches (contract 3.1, R6 to R10).

A session is read from its leaf upwards, by stored parent links and nothing else, until the input is met. ``LeafWalk``
is that walk, fed with whatever was read: all entries at once, or piece by piece. This file knows nothing of databases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from enum import StrEnum
from typing import Final

from reconciler.core.folding import FoldedTail
from reconciler.core.model import (
    KIND_SUBMISSION_SETTLED,
    KIND_UNREADABLE,
    Detail,
    SessionEntry,
    SubmissionInspection,
)
from reconciler.core.pairing import Pairing
from reconciler.core.terms import (
    is_canonical_input,
    is_closed_answer,
    is_foreign_input,
    is_real_response,
    is_response,
    is_tool_result,
)
from reconciler.core.turn import Turn, Verdict

# A damaged file may break the same rule at every line: so many are named, the rest is counted.
PROBLEMS_MAX: Final = 100


class Damage(StrEnum):
    """What ended the walk before it met the input (R10): the ``integrity`` of an inspection."""

    MISSING_LEAF = "missing_leaf"
    MISSING_PARENT = "missing_parent"
    CYCLE = "cycle"
    UNREADABLE_ENTRY = "unreadable_entry"


class LeafWalk:
    """The walk from a session's leaf upwards.

    Feed it entries of the session, in any order and in pieces of any size, while ``wanted`` names an entry; call
    ``end`` when there is no more to feed. It may be left alone once ``input_met``. Entries that are not on the path are
    kept as ``off_path``. Without a submission the walk only collects the path: it has no input to meet, and nothing is
    damage.

    The input met is the last one (R3), since the walk comes from the leaf.

    A long walk may be folded (``fold``): entries below the input that can change no answer are let go.
    """

    __slots__ = (
        "_below",
        "_folded",
        "_hanging",
        "_known",
        "_lacking_calls",
        "_may_hang",
        "_on_path",
        "_problems",
        "_submission_id",
        "_upward",
        "damage",
        "input_met",
        "wanted",
    )

    def __init__(
        self,
        leaf_entry_id: str | None,
        submission_id: str | None,
        *,
        has_entries: bool = True,
        leaf_known_empty: bool = False,
    ) -> None:
        """Begin at the leaf.

        Args:
            leaf_entry_id: the session's leaf.
            submission_id: whose input ends the walk.
            has_entries: whether the session has any; no leaf is then a missing one.
            leaf_known_empty: the source itself says that the active path is empty (rewound to before the first entry).
        """
        self._submission_id = submission_id
        self._known: dict[str, SessionEntry] = {}
        self._on_path: set[str] = set()
        self._upward: list[SessionEntry] = []
        self._problems: list[str] = []
        self._lacking_calls: set[str] = set()
        # The last entry walked.
        self._below: SessionEntry | None = None
        self._folded: FoldedTail | None = None
        self._may_hang: Set[str] = frozenset()
        # Of a folded walk: how many entries that are not on the path, or not yet, hang from an entry.
        self._hanging: dict[str | None, int] = {}
        # The entry that comes next; None where the walk is over.
        self.wanted = leaf_entry_id
        self.input_met = submission_id is None
        self.damage: Damage | None = None
        if leaf_entry_id is None and has_entries and not leaf_known_empty:
            self._break(Damage.MISSING_LEAF, "the session has entries but no leaf")

    def feed(self, entries: Iterable[SessionEntry]) -> list[str]:
        """Take entries and walk as far up as they allow. Of entries with one id the first counts.

        Returns:
            The ids of what a folded walk let go: entries on the path, below the input.
        """
        for entry in entries:
            if entry.id in self._known:
                self._problems.append(f'entry "{entry.id}" occurs more than once: the first counts')
            else:
                self._known[entry.id] = entry
                if self._folded is not None:
                    self._hanging[entry.parent_id] = self._hanging.get(entry.parent_id, 0) + 1
        gone: list[str] = []
        while self.wanted is not None and self.wanted in self._known:
            self._step(self._known[self.wanted], gone)
        return gone

    def fold(self, asked_attempt_id: str | None, may_hang: Set[str] = frozenset()) -> list[str]:
        """Fold what was walked so far, and the rest of the walk as it comes.

        Only what is below the input: where that was met, or there is none, nothing changes. The ids must all be
        different. Give it parents after their children from here on; ``is_sure`` tells whether that and the rest held.

        Args:
            asked_attempt_id: the attempt that ``turn_evidence`` will be asked about.
            may_hang: the parents of entries that may be given as ``off_path`` beside the walk's own.

        Returns:
            The ids of what is let go.
        """
        if self.input_met or self._submission_id is None:
            return []
        self._folded = FoldedTail(self._submission_id, asked_attempt_id)
        self._may_hang = may_hang
        for entry in self.off_path:
            self._hanging[entry.parent_id] = self._hanging.get(entry.parent_id, 0) + 1
        walked, self._upward = self._upward, []
        gone: list[str] = []
        for entry in walked:
            self._fold_in(self._folded, entry, gone)
        return gone

    def _fold_in(self, folded: FoldedTail, entry: SessionEntry, gone: list[str]) -> None:
        is_hook = entry.id in self._hanging or entry.id in self._may_hang
        for left in folded.take(entry, is_hook=is_hook):
            del self._known[left.id]
            self._on_path.discard(left.id)
            gone.append(left.id)

    @property
    def is_folded(self) -> bool:
        """Whether entries may have been let go."""
        return self._folded is not None

    @property
    def has_begun(self) -> bool:
        """Whether an entry was walked."""
        return self._below is not None

    @property
    def is_sure(self) -> bool:
        """Tell whether the answer is the one of the whole walk; else walk again unfolded. Ask when the walk is over.

        A folded walk can't vouch for an entry off the path whose parent it doesn't hold (it may have let it go), for a
        path that is torn (what it misses may be an entry let go: a cycle), and where it let go of the start of what may
        be a call still open.
        """
        if self._folded is None:
            return True
        is_torn = self.damage is Damage.MISSING_PARENT or (self.wanted is not None and not self.input_met)
        if is_torn or self._folded.is_unsure:
            return False
        return all(parent is None or parent in self._known for parent in self._hanging)

    def end(self) -> None:
        """Say that the session has no entry but those fed: what is still wanted is missing."""
        if self.wanted is None:
            return
        if self._below is None:
            self._break(Damage.MISSING_LEAF, f'the leaf "{self.wanted}" is not in the session')
        else:
            below = self._below.id
            self._break(
                Damage.MISSING_PARENT, f'entry "{below}" hangs from "{self.wanted}", which is not in the session'
            )

    def _step(self, entry: SessionEntry, gone: list[str]) -> None:
        if entry.id in self._on_path:
            self._break(Damage.CYCLE, f'entry "{entry.id}" is its own ancestor')
            return
        if self._folded is not None:
            self._count_down(entry.parent_id)
        if entry.kind == KIND_UNREADABLE and not self.input_met:
            self._break(Damage.UNREADABLE_ENTRY, f'entry "{entry.id}" on the active path cannot be read')
            return
        self._on_path.add(entry.id)
        self._below = entry
        self.wanted = entry.parent_id
        if is_response(entry):
            self._lacking_calls.difference_update(entry.tool_call_ids)
        if self.input_met or self._submission_id is None:
            self._upward.append(entry)
            return
        if is_canonical_input(entry, self._submission_id):
            self.input_met = True
        elif is_tool_result(entry) and entry.tool_call_id is not None:
            self._lacking_calls.add(entry.tool_call_id)
        if self._folded is None or self.input_met:
            self._upward.append(entry)
        else:
            self._fold_in(self._folded, entry, gone)

    def _count_down(self, parent_id: str | None) -> None:
        left = self._hanging[parent_id] - 1
        if left:
            self._hanging[parent_id] = left
        else:
            del self._hanging[parent_id]

    def _break(self, damage: Damage, problem: str) -> None:
        # Above the input the answer is safe, and the problem is only listed.
        self.wanted = None
        if self.input_met:
            self._problems.append(f"above the part that was needed: {problem}")
        else:
            self.damage = damage
            self._problems.append(problem)

    @property
    def calls_lacking(self) -> bool:
        """Tell whether a result below the input answers a call that the walk has not met so far."""
        return bool(self._lacking_calls)

    @property
    def path(self) -> tuple[SessionEntry, ...]:
        """The entries walked, from the root (or as far up as the walk came) to the leaf; without those let go."""
        upward = self._upward if self._folded is None else [*self._folded.kept, *self._upward]
        return tuple(reversed(upward))

    @property
    def off_path(self) -> tuple[SessionEntry, ...]:
        """The entries fed that the walk did not meet, in the order fed."""
        return tuple(entry for key, entry in self._known.items() if key not in self._on_path)

    @property
    def entries(self) -> Iterable[SessionEntry]:
        """All entries fed, the first of each id; without those let go."""
        return self._known.values()

    @property
    def problems(self) -> tuple[str, ...]:
        """What was found wrong, at most ``PROBLEMS_MAX`` and a count of the rest."""
        listed = tuple(self._problems[:PROBLEMS_MAX])
        further = len(self._problems) - len(listed)
        return (*listed, f"and {further} more") if further else listed


def leaf_of_attempt(
    entries: Iterable[SessionEntry], leaf_entry_id: str | None, current_attempt_id: str | None
) -> str | None:
    """Return the leaf that the current attempt's entries lead to (R8): a source may move its leaf late."""
    if leaf_entry_id is None or current_attempt_id is None:
        return leaf_entry_id
    stamped: dict[str, list[str]] = {}
    for entry in entries:
        if (
            entry.attempt_id == current_attempt_id
            and entry.parent_id is not None
            and entry.kind != KIND_SUBMISSION_SETTLED
            and not entry.is_sidechain
        ):
            stamped.setdefault(entry.parent_id, []).append(entry.id)
    leaf = leaf_entry_id
    passed = {leaf}
    while len(below := stamped.get(leaf, [])) == 1 and below[0] not in passed:
        leaf = below[0]
        passed.add(leaf)
    return leaf


def verdict_in_damage(damage: Damage, path: Sequence[SessionEntry], submission_id: str) -> Verdict:
    """Judge by the part of a broken walk that was reached (R10)."""
    last = next((entry for entry in reversed(path) if is_real_response(entry)), None)
    if last is not None and last.submission_id == submission_id and is_closed_answer(last):
        return Verdict(Detail.ANSWERED_IN_DAMAGE, deciding_entry_id=last.id)
    return Verdict(Detail.INTEGRITY_HOLD, integrity=damage.value)


def verdict_off_path(pairing: Pairing, submission_id: str) -> Verdict:
    """Judge a submission whose input is on no part of the active path (R6): by its own branches, else by the path.

    Where no input is off the path either, the answer is ``input_missing``.
    """
    nodes = pairing.nodes
    inputs = [node for node in range(pairing.length, len(nodes)) if is_canonical_input(nodes[node], submission_id)]
    if not inputs:
        return Verdict(Detail.INPUT_MISSING)
    answered = _answered_branch(pairing, inputs, submission_id)
    if answered is not None:
        return Verdict(Detail.ANSWERED_OFF_PATH, answered.input_entry_id, answered.deciding_entry_id)
    input_id = nodes[inputs[-1]].id
    # With several inputs, one that came after the foreign input shows that the person came back to it.
    ancestors = _ancestors(pairing, inputs)
    for node in range(pairing.length):
        if node not in ancestors and is_foreign_input(nodes[node], submission_id):
            return Verdict(Detail.ABANDONED_BRANCH, input_id, nodes[node].id)
    return Verdict(Detail.LEAF_MOVED, input_id, input_id)


def _answered_branch(pairing: Pairing, inputs: Sequence[int], submission_id: str) -> Verdict | None:
    """Find a branch below one of the inputs that is completed, each entry being read once."""
    read: set[int] = set()
    for start in inputs:
        stack = [(start, Turn(pairing, submission_id))]
        while stack:
            node, turn = stack.pop()
            if node in read:
                # An input below another one, or a cycle.
                continue
            read.add(node)
            turn.feed(node)
            below = pairing.children[node]
            inner = [child for child in below if not is_foreign_input(pairing.nodes[child], submission_id)]
            if not below or len(inner) < len(below):
                # The branch ends here, or is cut here.
                verdict = turn.verdict()
                if verdict.state is SubmissionInspection.COMPLETED:
                    return verdict
            # A turn is fed on by one child only; the others go on from copies.
            stack.extend((child, turn.copy()) for child in reversed(inner[1:]))
            stack.extend((child, turn) for child in inner[:1])
    return None


def _ancestors(pairing: Pairing, inputs: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for node in inputs:
        parent = pairing.parents[node]
        while parent >= 0 and parent not in found:
            found.add(parent)
            parent = pairing.parents[parent]
    return found
