"""How the lines of a Claude Code transcript become entries: links, messages of several lines, turns.

Takes lines that were looked at (claude_lines.py), parents first. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from reconciler.core import model as m
from reconciler.importers.base import ImportedEntry, ImportedSubmission
from reconciler.importers.claude_lines import Form, Node

_INPUTS: Final = frozenset({Form.PROMPT, Form.COMMAND, Form.SIGNAL})


@dataclass(slots=True)
class _Draft:
    """An entry that is being put together from its lines."""

    entry_id: str
    parent_id: str | None
    nodes: list[Node]
    turn: str | None
    kind: str = m.KIND_MESSAGE
    role: str | None = None
    tool_call_id: str | None = None
    # A turn-over note stands below it.
    turn_over: bool = False


class Linker:
    """Turns lines, parents first, into entries."""

    def __init__(self, nodes: list[Node], by_uuid: dict[str, Node]) -> None:
        self._nodes = nodes
        self._by_uuid = by_uuid
        self.drafts: dict[str, _Draft] = {}
        # Line to the entry that its children hang from; None where they become roots.
        self._alias: dict[str, str | None] = {}
        # (message id, turn, sidechain) to the message's entry: one id in two turns is a copy, not a continuation.
        self._messages: dict[tuple[str, str | None, bool], _Draft] = {}
        # Entry to the nearest assistant entry at or above it in its turn.
        self._spoken: dict[str, _Draft | None] = {}
        self.submissions: dict[str, ImportedSubmission] = {}
        # Parent that isn't in the file to the first line that names it.
        self.missing: dict[str, int] = {}
        self._newest = max((n.line for n in nodes if not n.is_sidechain and n.type in ("user", "assistant")), default=0)

    def link(self) -> None:
        for node in self._nodes:
            self._link(node)

    def _link(self, node: Node) -> None:
        parent = self._parent_of(node)
        above = self.drafts.get(parent) if parent is not None else None
        turn = above.turn if above is not None else None
        if above is None and parent is not None and parent not in self._by_uuid:
            self.missing.setdefault(parent, node.line)
            turn = f"before:{parent}"
        spoken = self._spoken.get(parent) if parent is not None else None
        if node.form is Form.PROGRESS:
            self._alias[node.uuid] = parent
            return
        if node.form is Form.ASSISTANT:
            self._cut(node, turn)
            self._assistant(node, parent, turn)
            return
        if node.form is Form.RESULT:
            if turn is not None and turn.startswith("before:") and node.prompt_id is not None:
                # The prompt isn't in the file, and its id still is.
                turn = node.prompt_id
            self._cut(node, turn)
            self._results(node, parent, turn, spoken)
            return
        draft = _Draft(node.uuid, parent, [node], turn)
        if node.form in _INPUTS:
            draft.role = m.ROLE_SIGNAL if node.form is Form.SIGNAL else m.ROLE_USER
            if not node.is_sidechain:
                draft.turn = node.prompt_id or node.uuid
                kind = "signal" if node.form is Form.SIGNAL else "prompt"
                self.submissions.setdefault(draft.turn, ImportedSubmission(draft.turn, node.uuid, kind))
            spoken = None
        elif node.form is Form.STEER:
            draft.role = m.ROLE_USER
            if draft.turn is None and not node.is_sidechain:
                draft.turn = node.prompt_id or node.uuid
                self.submissions.setdefault(draft.turn, ImportedSubmission(draft.turn, node.uuid))
            spoken = None
        elif node.form is Form.NOTICE:
            draft.role, node.is_synthetic = m.ROLE_USER, True
        elif node.form is Form.COMPACTION:
            draft.kind = m.KIND_COMPACTION
        else:
            draft.kind = m.KIND_CUSTOM
            if node.form is Form.TURN_END and spoken is not None:
                spoken.turn_over = True
        self._add(draft, node, spoken)

    def _cut(self, node: Node, turn: str | None) -> None:
        """List a turn whose prompt the file lost: what came of it is here."""
        if turn is not None and not node.is_sidechain and turn not in self.submissions:
            self.submissions[turn] = ImportedSubmission(turn, None, "cut")

    def _parent_of(self, node: Node) -> str | None:
        raw = node.parent
        if raw is None or raw not in self._by_uuid:
            return raw
        # In a cycle a parent may not have its place yet: it keeps its own id, so that the cycle stays to be seen.
        return self._alias.get(raw, raw)

    def _add(self, draft: _Draft, node: Node, spoken: _Draft | None) -> None:
        self.drafts[draft.entry_id] = draft
        self._alias[node.uuid] = draft.entry_id
        self._spoken[draft.entry_id] = spoken

    def _assistant(self, node: Node, parent: str | None, turn: str | None) -> None:
        key = (node.message_id, turn, node.is_sidechain) if node.message_id is not None else None
        message = self._messages.get(key) if key is not None else None
        if message is not None:
            message.nodes.append(node)
            self._alias[node.uuid] = message.entry_id
            return
        draft = _Draft(node.uuid, parent, [node], turn, role=m.ROLE_ASSISTANT)
        if key is not None:
            self._messages[key] = draft
        self._add(draft, node, draft)

    def _results(self, node: Node, parent: str | None, turn: str | None, spoken: _Draft | None) -> None:
        # One entry answers one call: further results of a line hang from the one before.
        for number, call in enumerate(node.results):
            entry_id = node.uuid if number == 0 else f"{node.uuid}:{number}"
            draft = _Draft(entry_id, parent, [node], turn, role=m.ROLE_TOOL_RESULT, tool_call_id=call)
            self._add(draft, node, spoken)
            parent = entry_id

    # --- what came of it -------------------------------------------------------------------------------------------

    def turn_at(self, leaf: str | None) -> str | None:
        """Return the submission that the active position belongs to."""
        draft = self.drafts.get(leaf) if leaf is not None else None
        return draft.turn if draft is not None else None

    def leaf_of(self, node: Node) -> str | None:
        """Return the entry of the leaf line.

        Lines of a message may hang from the results of its first calls. Once they are one entry, the last of these
        results is what stands at the end.
        """
        leaf = self._alias.get(node.uuid, node.uuid)
        message = self.drafts.get(leaf) if leaf is not None else None
        if message is None or message.role != m.ROLE_ASSISTANT or len(message.nodes) == 1:
            return leaf
        parents = {draft.parent_id for draft in self.drafts.values()}
        results = [
            draft
            for draft in self.drafts.values()
            if draft.parent_id == leaf and draft.role == m.ROLE_TOOL_RESULT and draft.entry_id not in parents
        ]
        return max(results, key=lambda draft: draft.nodes[0].line).entry_id if results else leaf

    def may_grow(self, leaf: str | None) -> bool:
        """Return whether the last line is a response without a sign of its end."""
        draft = self.drafts.get(leaf) if leaf is not None else None
        return (
            draft is not None
            and draft.role == m.ROLE_ASSISTANT
            and not draft.turn_over
            and draft.nodes[-1].line == self._newest
            and all(node.stop is None for node in draft.nodes)
        )

    def taken_entries(self) -> Iterator[ImportedEntry]:
        """Yield the entries, and let go of what they were made of: to be asked once, at the end."""
        self._nodes.clear()
        self._spoken.clear()
        self._messages.clear()
        self._alias.clear()
        for entry_id in list(self.drafts):
            draft = self.drafts.pop(entry_id)
            yield _message(draft) if draft.role == m.ROLE_ASSISTANT else _other(draft)


def _message(draft: _Draft) -> ImportedEntry:
    nodes = draft.nodes
    calls: dict[str, None] = {}
    for node in nodes:
        calls.update(dict.fromkeys(node.calls))
    contents = {node.content for node in nodes}
    content = next(
        (kind for kind in (m.CONTENT_TEXT, m.CONTENT_REASONING) if kind in contents),
        m.CONTENT_NONE,
    )
    first = nodes[0]
    entry = m.SessionEntry(
        draft.entry_id,
        draft.parent_id,
        role=m.ROLE_ASSISTANT,
        submission_id=draft.turn,
        stop_reason=_stop_reason(draft, bool(calls)),
        tool_call_ids=tuple(calls),
        content=content,
        is_synthetic=any(node.is_synthetic for node in nodes),
        is_sidechain=first.is_sidechain,
        error_retryable=first.error_retryable,
        stopped_by=next((node.stopped_by for node in nodes if node.stopped_by), None),
    )
    return ImportedEntry(entry, tuple(node.line for node in nodes), _write_ahead(nodes), first.written_at)


def _stop_reason(draft: _Draft, has_calls: bool) -> str | None:
    """Return how the message ended. Programs up to 2.1.96 leave the reason out of most lines, so None says little.

    What the record shows instead: a note that the turn is over (the model had nothing more to say), or calls (a message
    of this program that holds calls ended for them). A line of 2.1.98 or later is written when its message has ended.
    """
    stops = [node.stop for node in draft.nodes if node.stop is not None]
    if stops:
        return stops[-1]
    if has_calls:
        return None if draft.turn_over else m.STOP_TOOL_USE
    if draft.turn_over:
        return m.STOP_STOP
    return m.STOP_ABORTED if draft.nodes[-1].held_until_ended else None


def _other(draft: _Draft) -> ImportedEntry:
    node = draft.nodes[0]
    entry = m.SessionEntry(
        draft.entry_id,
        draft.parent_id,
        kind=draft.kind,
        role=draft.role,
        submission_id=draft.turn,
        tool_call_id=draft.tool_call_id,
        content=m.CONTENT_TEXT if draft.kind == m.KIND_MESSAGE else m.CONTENT_NONE,
        is_synthetic=node.is_synthetic,
        is_sidechain=node.is_sidechain,
        stopped_by=node.stopped_by,
    )
    return ImportedEntry(entry, (node.line,), node.write_ahead, node.written_at)


def _write_ahead(nodes: list[Node]) -> bool | None:
    # A message of these programs is never known to be; False where one line proves that it wasn't.
    return False if any(node.write_ahead is False for node in nodes) else None
