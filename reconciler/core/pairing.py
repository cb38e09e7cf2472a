"""Calls and results: which result closes which call (R2), over one path or over a path with its branches (R7).

Entries are named here by their place in a list (a *node*), never by id: on a bare path ids may occur twice. A call is
named by the node of its message and its position in it.

A result closes the latest open call of its id on **its own** path. Pairing is therefore no matter of the leaf: over a
tree, every result has one call or none, and a call is open on the active path only where no result of the session
closes it, which is R2 and R7 in one.

This file knows nothing of submissions, inputs or states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reconciler.core.model import CallDispatch, OpenCall, SessionEntry
from reconciler.core.terms import is_assistant, is_response, is_tool_result, is_tool_start

# (node of the message, position of the call in it)
CallRef = tuple[int, int]


@dataclass(slots=True)
class Pairing:
    """Entries with their pairs. The first ``length`` nodes are the path from root to leaf; the others are branches."""

    nodes: Sequence[SessionEntry]
    length: int
    # Both are empty where there is nothing but the path. Its nodes hang from the one before; -1: from nothing given.
    parents: Sequence[int] = ()
    children: Sequence[Sequence[int]] = ()
    # How far a node is from its root; it tells on one path which of two nodes comes first.
    depths: Sequence[int] = ()
    # The call that a result closes. Results that close nothing are missing here.
    call_of: dict[int, CallRef] = field(default_factory=dict)
    # The results that close a call, those on the path before others. An open call is missing here.
    closers: dict[CallRef, list[int]] = field(default_factory=dict)
    # Calls that some result closes without ending the turn.
    going_on: set[CallRef] = field(default_factory=set)
    # Results whose call is nowhere before them on their own path, open or not.
    orphans: set[int] = field(default_factory=set)

    @property
    def path(self) -> Sequence[SessionEntry]:
        """The path from root to leaf, without branches."""
        return self.nodes[: self.length]


class _Scanner:
    """Pairs while a tree is walked depth first; ``leave`` takes back what ``enter`` did, in constant time per call."""

    __slots__ = ("_filler_open", "_open", "_pairing", "_seen")

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._open: dict[str, list[CallRef]] = {}
        # A runtime's filler must change nothing (R1): a result goes to one of its calls only where no other is open.
        self._filler_open: dict[str, list[CallRef]] = {}
        self._seen: dict[str, int] = {}

    def enter(self, node: int) -> None:
        entry = self._pairing.nodes[node]
        if entry.tool_call_ids and is_assistant(entry):
            self._enter_calls(node, entry)
        elif is_tool_result(entry):
            self._enter_result(node, entry)

    def _enter_calls(self, node: int, entry: SessionEntry) -> None:
        open_calls = self._filler_open if entry.is_synthetic else self._open
        for position, call_id in enumerate(entry.tool_call_ids):
            open_calls.setdefault(call_id, []).append((node, position))
            if not entry.is_synthetic:
                self._seen[call_id] = self._seen.get(call_id, 0) + 1

    def _enter_result(self, node: int, entry: SessionEntry) -> None:
        call_id = entry.tool_call_id
        if call_id is None or not self._seen.get(call_id):
            self._pairing.orphans.add(node)
        if call_id is None:
            return
        waiting = self._open.get(call_id) or self._filler_open.get(call_id)
        if waiting:
            call = waiting.pop()
            self._pairing.call_of[node] = call
            self._pairing.closers.setdefault(call, []).append(node)
            if not entry.ends_turn:
                self._pairing.going_on.add(call)

    def leave(self, node: int) -> None:
        entry = self._pairing.nodes[node]
        if entry.tool_call_ids and is_assistant(entry):
            open_calls = self._filler_open if entry.is_synthetic else self._open
            for call_id in entry.tool_call_ids:
                # All results below are taken back, so the calls of this message lie on top again.
                open_calls[call_id].pop()
                if not entry.is_synthetic:
                    self._seen[call_id] -= 1
        elif node in self._pairing.call_of:
            call = self._pairing.call_of[node]
            message = self._pairing.nodes[call[0]]
            open_calls = self._filler_open if message.is_synthetic else self._open
            open_calls[message.tool_call_ids[call[1]]].append(call)


def pair_path(path: Sequence[SessionEntry]) -> Pairing:
    """Pair the calls and results of one path."""
    pairing = Pairing(path, len(path), depths=range(len(path)))
    scanner = _Scanner(pairing)
    for node in range(len(path)):
        scanner.enter(node)
    return pairing


def pair_tree(path: Sequence[SessionEntry], off_path: Iterable[SessionEntry]) -> Pairing:
    """Pair a path together with entries that are not on it, in any order.

    Of entries with one id the first counts. An off-path entry whose parent wasn't given is a root of its own. Entries
    of a cycle have no path from a root: they pair with nothing.
    """
    nodes = list(path)
    node_of = {entry.id: node for node, entry in reversed(list(enumerate(nodes)))}
    for entry in off_path:
        if entry.id not in node_of:
            node_of[entry.id] = len(nodes)
            nodes.append(entry)
    if len(nodes) == len(path):
        return pair_path(path)
    length = len(path)
    parents = list(range(-1, length - 1))
    for entry in nodes[length:]:
        parents.append(-1 if entry.parent_id is None else node_of.get(entry.parent_id, -1))
    children: list[list[int]] = [[] for _ in nodes]
    roots: list[int] = []
    for node, parent in enumerate(parents):
        # The path's nodes come first, so that its results come first among the closers too.
        (children[parent] if parent >= 0 else roots).append(node)
    pairing = Pairing(nodes, length, parents, children, [0] * len(nodes))
    _scan(pairing, roots)
    return pairing


def _scan(pairing: Pairing, roots: Sequence[int]) -> None:
    scanner = _Scanner(pairing)
    depths = list(pairing.depths)
    # A node on its way in is itself, on its way out its complement: no recursion, a path may be 100,000 long.
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node < 0:
            scanner.leave(~node)
            continue
        parent = pairing.parents[node]
        depths[node] = depths[parent] + 1 if parent >= 0 else 0
        scanner.enter(node)
        stack.append(~node)
        stack.extend(reversed(pairing.children[node]))
    pairing.depths = depths


def open_refs(pairing: Pairing) -> list[CallRef]:
    """Return the open calls of the path in call order. Calls of a runtime's filler are none (R1)."""
    closers = pairing.closers
    return [
        (node, position)
        for node, entry in enumerate(pairing.path)
        if entry.tool_call_ids and is_response(entry)
        for position in range(len(entry.tool_call_ids))
        if (node, position) not in closers
    ]


def describe_open_calls(pairing: Pairing, refs: Sequence[CallRef]) -> tuple[OpenCall, ...]:
    """Return the calls with what the path shows of their start (R13).

    A start names every call of its id before it: where an id repeats it can't be told which one was meant, and "outcome
    unknown" is the harmless mistake of the two.
    """
    if not refs:
        return ()
    last_start: dict[str, int] = {}
    for node, entry in enumerate(pairing.path):
        if entry.tool_call_id is not None and is_tool_start(entry):
            last_start[entry.tool_call_id] = node
    return tuple(_described(pairing.nodes[node], position, last_start, node) for node, position in refs)


def _described(entry: SessionEntry, position: int, last_start: dict[str, int], node: int) -> OpenCall:
    call_id = entry.tool_call_ids[position]
    if last_start.get(call_id, -1) > node:
        dispatch = CallDispatch.STARTED
    else:
        dispatch = CallDispatch.NOT_STARTED if entry.starts_logged else CallDispatch.UNKNOWN
    return OpenCall(entry.id, position, call_id, dispatch)


def open_calls(path: Sequence[SessionEntry]) -> tuple[OpenCall, ...]:
    """Return all open calls of a whole path in call order, with their dispatch: what ``begin`` closes with markers."""
    pairing = pair_path(path)
    return describe_open_calls(pairing, open_refs(pairing))


def splice_results(path: Sequence[SessionEntry], off_path: Iterable[SessionEntry]) -> tuple[SessionEntry, ...]:
    """Return the path with each result of a branch (R7) put directly behind its call.

    Only calls that the path itself leaves open take one, and each takes one: the first in the order given. What comes
    back pairs as it stands.
    """
    pairing = pair_tree(path, off_path)
    spliced: list[SessionEntry] = []
    for node, entry in enumerate(path):
        spliced.append(entry)
        for position in range(len(entry.tool_call_ids) if is_assistant(entry) else 0):
            closers = pairing.closers.get((node, position), ())
            if closers and all(closer >= pairing.length for closer in closers):
                spliced.append(pairing.nodes[closers[0]])
    return tuple(spliced)
