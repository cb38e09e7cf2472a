"""Claude Code transcripts (JSONL): many lines, one conversation.

Sources: the official SDK's reader (0.3.332) for what the active position is; transcripts of program versions 2.1.4 to
2.1.332 and crash runs for the rest. What is done here, in this order:

- the last line with a uuid counts; lines without one are no part of the DAG;
- a compaction boundary, which the program writes as a root, hangs from the entry before it;
- the lines of one model message become one entry under the first line's id, so that its calls stand together; results
  hang from it, parallel ones side by side;
- progress lines are real parents: they go only after their children have been hung one higher;
- prompts become submissions, and what hangs below one is stamped with it.

What was kept or moved for the model's context (preserved messages of a compaction) stays where it was said: the path is
the conversation, not the compacted view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
    parents_first,
    payload_text,
)
from reconciler.importers.claude_lines import OUTSIDE, Form, Node, first_text, is_notification, make_node
from reconciler.importers.claude_links import Linker

FORMAT: Final = "claude-code"


class ClaudeCodeImporter:
    """Reads Claude Code transcripts."""

    format = FORMAT

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        return _File(source).read()


@dataclass(slots=True)
class _Queued:
    """A prompt that was accepted while the program was busy."""

    submission_id: str
    payload: str
    by_person: bool


@dataclass(slots=True)
class _Queue:
    waiting: list[_Queued] = field(default_factory=list)

    def take(self, line: int, value: dict[str, Any]) -> None:
        """Follow one queue operation."""
        operation = value.get("operation")
        content = value.get("content")
        if operation == "enqueue" and content is not None:
            text = payload_text({"content": content})
            key = f"{value.get('timestamp')}\0{text}\0{sum(1 for item in self.waiting if item.payload == text)}"
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
            person = not is_notification(first_text(content))
            self.waiting.append(_Queued(f"queued:{digest[:32]}", text, person))
        elif operation in ("dequeue", "remove") and self.waiting:
            named = payload_text({"content": content}) if content is not None else None
            at = next((i for i, item in enumerate(self.waiting) if item.payload == named), 0)
            self.waiting.pop(at)
        elif operation == "popAll":
            # Taken back by the person.
            self.waiting.clear()


class _File:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._reading = Reading(source)
        self._problems = self._reading.problems
        self._nodes: dict[str, Node] = {}
        self._session_ids: dict[str, int] = {}
        self._agent_id: str | None = None
        self._queue = _Queue()
        self._versions: set[str] = set()
        # Lines without a uuid of a kind that isn't known: kept, off every path.
        self._loose: list[ImportedEntry] = []
        self._loose_ids: set[str] = set()
        self._last_user: Node | None = None
        self._session_id_before: str | None = None
        self._prompt_ids: dict[str, str] = {}

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> ImportResult:
        reading = self._reading
        last: Node | None = None
        for line, value, raw in reading.objects():
            if value is None:
                if last is not None:
                    # Whatever was lost here may have been a message with calls.
                    last.write_ahead = None
                continue
            last = self._take(line, value, raw) or last
        if reading.torn and last is not None:
            last.write_ahead = None
        sessions = (self._session(),) if self._nodes or self._loose or self._queue.waiting else ()
        return ImportResult(
            FORMAT,
            max(self._versions, key=_version_key, default=None),
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

    def _take(self, line: int, value: dict[str, Any], raw: bytes) -> Node | None:
        reading = self._reading
        session_id = value.get("sessionId")
        if isinstance(session_id, str) and session_id != self._session_id_before:
            self._session_id_before = session_id
            # In the order of their last line: a resumed session may copy the lines of the one before.
            self._session_ids.pop(session_id, None)
            self._session_ids[session_id] = line
        version = value.get("version")
        if isinstance(version, str) and version not in self._versions:
            self._versions.add(version[:50])
        if "uuid" not in value:
            self._take_outside(line, value, raw)
            return None
        uuid = reading.clean_id(value.get("uuid"), line, "uuid")
        if uuid is None:
            self._problems.add(line, "id_missing", "the line's uuid is no text; the line is kept off every path")
            self._keep_loose(line, value, raw)
            return None
        parent = value.get("parentUuid")
        above = self._nodes.get(parent) if isinstance(parent, str) else None
        # One text for one id: a file has as many links as lines.
        parent = above.uuid if above is not None else reading.link(parent)
        node = make_node(reading, line, value, uuid, parent, hash(raw))
        if node.prompt_id is not None:
            node.prompt_id = self._prompt_ids.setdefault(node.prompt_id, node.prompt_id)
        agent_id = value.get("agentId")
        if node.is_sidechain and isinstance(agent_id, str):
            self._agent_id = agent_id
        earlier = self._nodes.pop(uuid, None)
        if earlier is not None and earlier.digest != node.digest:
            self._problems.add(
                line, "duplicate_id", f'the uuid "{uuid}" stands on line {earlier.line} too; the last line counts'
            )
        self._nodes[uuid] = node
        reading.keep(line, value)
        self._settle_command(node)
        return node

    def _settle_command(self, node: Node) -> None:
        """See whether the program answered a slash command by itself: then it was no prompt."""
        if node.form is Form.LOCAL_OUTPUT:
            above = self._nodes.get(node.parent) if node.parent is not None else None
            for command in (above, self._last_user):
                if command is not None and command.form is Form.COMMAND:
                    command.form = Form.LOCAL
        elif node.type == "user":
            self._last_user = node

    def _take_outside(self, line: int, value: dict[str, Any], raw: bytes) -> None:
        kind = as_text(value.get("type"))
        if kind == "queue-operation":
            self._queue.take(line, value)
        if kind in OUTSIDE:
            self._reading.skipped[str(kind)] += 1
            return
        self._reading.unknown[str(kind)[:100]] += 1
        self._keep_loose(line, value, raw)

    def _keep_loose(self, line: int, value: dict[str, Any], raw: bytes) -> None:
        # By content, so that a file that was rewritten around it keeps it.
        entry_id = f"line:{hashlib.sha256(raw).hexdigest()[:32]}"
        if entry_id in self._loose_ids:
            return
        self._loose_ids.add(entry_id)
        self._reading.keep(line, value)
        entry = m.SessionEntry(entry_id, kind=m.KIND_CUSTOM, content=m.CONTENT_NONE)
        self._loose.append(ImportedEntry(entry, (line,), None))

    # --- linking ---------------------------------------------------------------------------------------------------

    def _session(self) -> ImportedSession:
        self._hang_boundaries()
        nodes = list(self._nodes.values())
        order, cycle = parents_first([n.uuid for n in nodes], [n.parent for n in nodes])
        for index in cycle:
            self._problems.add(nodes[index].line, "parent_cycle", "the line hangs from a cycle of parents")
        drafts = Linker([nodes[at] for at in (*order, *cycle)], self._nodes)
        drafts.link()
        for missing, line in drafts.missing.items():
            self._problems.add(line, "missing_parent", f'the parent "{missing}" is not in the file')
        leaf_node = self._leaf()
        leaf = drafts.leaf_of(leaf_node) if leaf_node is not None else None
        session_id = self._session_id()
        submissions = tuple(self._submissions(drafts, leaf))
        may_grow = drafts.may_grow(leaf)
        known_empty = leaf is None and not any(n.type in ("user", "assistant") and not n.is_sidechain for n in nodes)
        # From here on the lines are let go as their entries are made: a large file is not held twice.
        nodes.clear()
        self._nodes.clear()
        entries = tuple(_ordered([*drafts.taken_entries(), *self._loose]))
        return ImportedSession(session_id, entries, leaf, known_empty, submissions, response_may_grow=may_grow)

    def _session_id(self) -> str:
        stem = self._source.stem
        ids = list(self._session_ids)
        if len(ids) > 1:
            self._problems.add(
                None, "several_session_ids", f"the file holds lines of {len(ids)} session ids: it was resumed or forked"
            )
        if stem is not None and stem in self._session_ids:
            raw = stem
        elif ids:
            raw = ids[-1]
        elif stem is not None:
            raw = stem
        else:
            return f"claude-code:{self._reading.reader.digest[:32]}"
        found = self._reading.clean_id(raw, 1, "session id") or raw
        if self._agent_id is not None and all(node.is_sidechain for node in self._nodes.values()):
            # A sub-agent's own file carries its parent's session id on every line.
            return self._reading.clean_id(f"{found}:agent-{self._agent_id}", 1, "session id") or found
        return found

    def _hang_boundaries(self) -> None:
        """Hang each compaction boundary from the entry before it."""
        before: Node | None = None
        for node in self._nodes.values():
            if node.is_boundary and node.parent is None:
                wanted = node.logical_parent
                if wanted is None and before is not None:
                    wanted = before.uuid
                if wanted is not None and self._is_above(node.uuid, wanted):
                    # The entry before it was written again behind it; what counts is the place before the boundary.
                    wanted = before.uuid if before is not None and not self._is_above(node.uuid, before.uuid) else None
                # Where nothing is known of what came before, something did: a compaction is never the beginning.
                node.parent = wanted if wanted is not None else f"before:{node.uuid}"
            if not node.is_sidechain and node.form is not Form.PROGRESS:
                before = node

    def _is_above(self, upper: str, lower: str) -> bool:
        """Return whether *upper* is *lower*, or on the way up from it."""
        seen: set[str] = set()
        at: str | None = lower
        while at is not None and at not in seen:
            if at == upper:
                return True
            seen.add(at)
            node = self._nodes.get(at)
            at = node.parent if node is not None else None
        return False

    def _leaf(self) -> Node | None:
        """Return the line that is the active position, as the official reader finds it.

        Save for one thing: a person's text that was delivered into the turn counts as what it is, a user message.
        """

        def counts(node: Node) -> bool:
            return not node.is_sidechain and not node.off_leaf and node.form is not Form.PROGRESS

        parents = {node.parent for node in self._nodes.values() if counts(node)}
        # A uuid that stands again goes to the end: they are in the order of their lines.
        for node in reversed(self._nodes.values()):
            if not counts(node) or node.uuid in parents:
                continue
            seen: set[str] = set()
            at: Node | None = node
            while at is not None and at.uuid not in seen:
                if (at.type in ("user", "assistant") or at.form is Form.STEER) and not at.is_sidechain:
                    return at
                seen.add(at.uuid)
                at = self._nodes.get(at.parent) if at.parent is not None else None
        return None

    def _submissions(self, drafts: Linker, leaf: str | None) -> Iterator[ImportedSubmission]:
        pending = drafts.turn_at(leaf)
        if pending is None and drafts.submissions and leaf is None:
            pending = next(reversed(drafts.submissions))
        for submission in drafts.submissions.values():
            yield replace(submission, is_pending=submission.submission_id == pending)
        for queued in self._queue.waiting:
            if queued.by_person:
                yield ImportedSubmission(queued.submission_id, None, "queued", is_pending=True, payload=queued.payload)


def _ordered(entries: list[ImportedEntry]) -> Iterator[ImportedEntry]:
    """Yield parents first: merging lines can hang an entry from one that comes later in the file."""
    order, cycle = parents_first([e.entry.id for e in entries], [e.entry.parent_id for e in entries])
    for index in (*order, *cycle):
        yield entries[index]


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isascii() and part.isdigit() else -1 for part in version.split(".")[:4])
