"""pi session files (JSONL, versions 1 to 3), and their look-alikes that keep the same lines.

Sources: session-manager and agent-loop of the pi coding agent (0.73.1 and 1.6.0), and files that crashed runs of both
left behind. One line is one entry; ids are unique inside a file only. The writer appends a message with calls before
it runs them, so its files are write-ahead. The active position is the last entry line, unless a `leaf` line says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.importers.base import (
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    Reading,
    Source,
    as_text,
    instant,
    parents_first,
)
from reconciler.importers.pi_messages import message_entry

FORMAT: Final = "pi"

_KINDS: Final = {
    "compaction": m.KIND_COMPACTION,
    "branch_summary": m.KIND_BRANCH_SUMMARY,
    "label": m.KIND_LABEL,
    "model_change": m.KIND_MODEL_CHANGE,
    "session_info": m.KIND_SESSION_INFO,
}
# Known, and no part of the conversation.
_CUSTOM: Final = frozenset(
    {"thinking_level_change", "active_tools_change", "custom", "custom_message", "usage", "context_edit", "leaf"}
)


@dataclass(slots=True)
class _Node:
    """A line that is an entry, before it is linked."""

    line: int
    entry: m.SessionEntry
    written_at: datetime | None
    write_ahead: bool | None = True
    # Injected by an extension; whether it began a turn shows only in what follows.
    injected: bool = False


class PiImporter:
    """Reads pi session files."""

    format = FORMAT

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        return PiFile(source).read()


class PiFile:
    """One stream of pi entries. ``active`` is where it stands, where that is kept elsewhere; (None,) is before all."""

    def __init__(self, source: Source, active: tuple[str | None] | None = None) -> None:
        self._active = active
        self._source = source
        self._reading = Reading(source)
        self._problems = self._reading.problems
        self._nodes: dict[str, _Node] = {}
        self._header: dict[str, Any] | None = None
        self._version = 3
        self._leaf: str | None = None
        self._linear_last: str | None = None
        self._cyclic: set[int] = set()

    def read(self) -> ImportResult:
        reading = self._reading
        last: _Node | None = None
        for line, value, raw in reading.objects():
            if value is None:
                if last is not None:
                    # Whatever was lost here may have been a message with calls.
                    last.write_ahead = None
                if self._version == 1 and self._header is not None:
                    last = self._unreadable(line, raw)
                continue
            if value.get("type") == "session":
                self._take_header(line, value)
                continue
            last = self._take(line, value) or last
        if reading.torn and last is not None:
            last.write_ahead = None
        sessions = () if self._header is None and not self._nodes else (self._session(),)
        return ImportResult(
            FORMAT,
            str(self._version),
            sessions,
            self._problems.listed(),
            self._problems.count,
            dict(reading.unknown),
            dict(reading.skipped),
            reading.reader.bytes_read,
            reading.reader.lines_read,
            reading.reader.digest,
            reading.reader.prefix_digest,
        )

    def _take_header(self, line: int, value: dict[str, Any]) -> None:
        if self._header is not None:
            self._problems.add(line, "header_repeated", "the session header stands here again; the first one counts")
            return
        self._header = value
        version = value.get("version", 1)
        self._version = version if isinstance(version, int) and not isinstance(version, bool) else 1
        if self._version > 3:
            self._problems.add(line, "unknown_version", f"version {self._version} is newer than 3; read as version 3")

    def _unreadable(self, line: int, raw: bytes) -> _Node:
        """Keep the place of a lost line: version 1 has no links, so the next line would hang from the wrong one."""
        node = _Node(
            line,
            m.SessionEntry(f"line:{line}", self._linear_last, kind=m.KIND_UNREADABLE, content=m.CONTENT_NONE),
            None,
            None,
        )
        self._reading.keep(line, {"raw": raw.decode("utf-8", "surrogateescape")})
        return self._add(node)

    def _take(self, line: int, value: dict[str, Any]) -> _Node | None:
        reading = self._reading
        if "id" not in value and self._version == 1:
            entry_id, parent_id = f"line:{line}", self._linear_last
        else:
            found = reading.clean_id(value.get("id"), line, "id")
            if found is None:
                self._problems.add(line, "id_missing", "the line has no id; it is kept by itself, off every path")
                node = self._node(line, value, f"line:{line}", None)
                self._nodes[node.entry.id] = node
                reading.keep(line, value)
                return None
            entry_id, parent_id = found, reading.link(value.get("parentId"))
        if entry_id in self._nodes:
            self._problems.add(line, "duplicate_id", f'the id "{entry_id}" stands on an earlier line, which counts')
            return None
        node = self._node(line, value, entry_id, parent_id)
        reading.keep(line, value)
        self._add(node)
        if value.get("type") == "leaf":
            self._leaf = reading.link(value.get("targetId"))
        return node

    def _add(self, node: _Node) -> _Node:
        self._nodes[node.entry.id] = node
        self._leaf = self._linear_last = node.entry.id
        return node

    def _node(self, line: int, value: dict[str, Any], entry_id: str, parent_id: str | None) -> _Node:
        kind = as_text(value.get("type"))
        at = instant(value.get("timestamp"))
        if kind == "message" and isinstance(value.get("message"), dict):
            return _Node(line, message_entry(self._reading, line, value["message"], entry_id, parent_id), at)
        known = _KINDS.get(kind or "", m.KIND_CUSTOM)
        if known == m.KIND_CUSTOM and kind not in _CUSTOM:
            self._reading.unknown[str(kind)[:100]] += 1
        entry = m.SessionEntry(entry_id, parent_id, kind=known, content=m.CONTENT_NONE)
        return _Node(line, entry, at, injected=kind == "custom_message")

    # --- linking ---------------------------------------------------------------------------------------------------

    def _session(self) -> ImportedSession:
        if self._active is not None:
            self._leaf = self._reading.link(self._active[0])
        nodes = list(self._nodes.values())
        order, cycle = parents_first([n.entry.id for n in nodes], [n.entry.parent_id for n in nodes])
        self._cyclic = {nodes[index].line for index in cycle}
        for index in cycle:
            self._problems.add(nodes[index].line, "parent_cycle", "the entry hangs from a cycle of parents")
        ordered = [nodes[index] for index in (*order, *cycle)]
        for node in ordered:
            parent = node.entry.parent_id
            if parent is not None and parent not in self._nodes:
                self._problems.add(node.line, "missing_parent", f'the parent "{parent}" is not in the file')
        submissions = self._stamp(ordered)
        leaf = self._leaf
        if leaf is not None and leaf not in self._nodes:
            self._problems.add(None, "missing_leaf", f'the active position "{leaf}" is not in the file')
        pending = self._pending(leaf, submissions)
        last = self._nodes.get(leaf) if leaf is not None else None
        return ImportedSession(
            self._session_id(),
            tuple(ImportedEntry(n.entry, (n.line,), n.write_ahead, n.written_at) for n in ordered),
            leaf,
            leaf is None,
            tuple(
                replace(submission, is_pending=submission.submission_id == pending)
                for submission in submissions.values()
            ),
            response_may_grow=(
                last is not None and last.entry.role == m.ROLE_ASSISTANT and last.entry.stop_reason is None
            ),
        )

    def _session_id(self) -> str:
        header = self._header or {}
        found = self._reading.clean_id(header.get("id"), 1, "session id") or self._source.stem
        if found is None:
            self._problems.add(None, "session_id_missing", "the file has no header with an id; its content names it")
            return f"pi:{self._reading.reader.digest[:32]}"
        if not header:
            self._problems.add(None, "header_missing", "the file has no session header; its name stands for the id")
        return self._reading.clean_id(found, 1, "session id") or found

    def _stamp(self, ordered: list[_Node]) -> dict[str, ImportedSubmission]:
        """Give every entry the submission it belongs to: its nearest input above. Parents come first in *ordered*.

        The writer has no submission ids: the id of the first user entry stands for the turn. User entries without an
        assistant message between them are one turn's, steered or queued. An injected message is a turn's beginning
        where the turn above was answered and the model went on directly from it.
        """
        submissions: dict[str, ImportedSubmission] = {}
        starts = self._injected_starts(ordered)
        # Per entry: the turn's submission, and whether nothing was said since its last input.
        turns: dict[str, tuple[str | None, bool]] = {}
        for node in ordered:
            entry = node.entry
            turn, fresh = turns.get(entry.parent_id, (None, False)) if entry.parent_id is not None else (None, False)
            if entry.parent_id is not None and entry.parent_id not in self._nodes:
                turn = f"before:{entry.parent_id}"
            role = entry.role if entry.kind == m.KIND_MESSAGE else None
            if node.injected and entry.id in starts:
                entry = replace(entry, kind=m.KIND_MESSAGE, role=m.ROLE_SIGNAL, content=m.CONTENT_TEXT)
                turn, fresh = entry.id, True
                submissions[turn] = ImportedSubmission(turn, entry.id, "signal")
            elif role == m.ROLE_USER:
                if not fresh or turn is None:
                    turn = entry.id
                    submissions[turn] = ImportedSubmission(turn, entry.id)
                fresh = True
            elif role in (m.ROLE_ASSISTANT, m.ROLE_TOOL_RESULT):
                fresh = fresh and role != m.ROLE_ASSISTANT
                if turn is not None and turn not in submissions:
                    # The file lost the prompt of this turn: what came of it is here.
                    submissions[turn] = ImportedSubmission(turn, None, "cut")
            turns[entry.id] = (turn, fresh)
            node.entry = replace(entry, submission_id=turn) if turn is not None else entry
        return submissions

    def _injected_starts(self, ordered: list[_Node]) -> set[str]:
        if not any(node.injected for node in ordered):
            return set()
        # Per entry: the nearest conversation entry at or above it (a person's, the model's, a tool's, an injected one).
        nearest: dict[str, _Node] = {}
        above: dict[str, _Node | None] = {}
        starts: set[str] = set()
        for node in ordered:
            entry = node.entry
            parent = nearest.get(entry.parent_id) if entry.parent_id is not None else None
            speaks = node.injected or (entry.kind == m.KIND_MESSAGE and entry.role != m.ROLE_SYSTEM)
            if speaks:
                nearest[entry.id] = node
            elif parent is not None:
                nearest[entry.id] = parent
            if node.injected:
                # Several in a row are one beginning: the first of them.
                first = above.get(parent.entry.id) if parent is not None and parent.injected else parent
                above[entry.id] = first
            if entry.role == m.ROLE_ASSISTANT and parent is not None and parent.injected:
                answered = above.get(parent.entry.id)
                if answered is not None and _is_answer(answered.entry):
                    starts.add(parent.entry.id)
        return starts

    def _pending(self, leaf: str | None, submissions: dict[str, ImportedSubmission]) -> str | None:
        """Return the submission of the last input of the active path."""
        if leaf is None:
            return None
        node = self._nodes.get(leaf)
        if node is None or (node.entry.submission_id is None and node.line in self._cyclic):
            # Nobody can say where the session stands: the newest prompt is the one to ask about.
            return next(reversed(submissions), None)
        turn = node.entry.submission_id
        return turn if turn in submissions else None


def _is_answer(entry: m.SessionEntry) -> bool:
    return (
        entry.role == m.ROLE_ASSISTANT and not entry.tool_call_ids and entry.stop_reason in (m.STOP_STOP, m.STOP_LENGTH)
    )
