"""Claude Code transcripts.

Lines that the program wrote go back as they were read. One message is several lines there, and a line may hang from a
result of an earlier one: lines stand so that each parent comes first. The newest tip of the main conversation is where
the program goes on, so what belongs to the leaf goes last. A link to a line that an import doesn't keep (progress) is
led to the nearest line above it that is there; nothing else of a line is changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.exporters.base import (
    FORMAT_CLAUDE,
    Exported,
    Line,
    StoredEntry,
    StoredSession,
    calls_of,
    closings,
    dumped,
    is_ours,
    iso,
    kept_ancestor,
    parents_of,
    said,
)

_STOP: Final = {
    m.STOP_STOP: "end_turn",
    m.STOP_LENGTH: "max_tokens",
    m.STOP_TOOL_USE: "tool_use",
    m.STOP_ERROR: "stop_sequence",
}
_LEFT_OUT: Final = {
    m.KIND_SUBMISSION_SETTLED: "an outcome: the format has no place for it",
    m.KIND_TOOL_STARTED: "a tool's start: the format has no place for it",
    m.KIND_UNREADABLE: "a line that could not be read",
    m.KIND_CUSTOM: "an entry of another program",
    m.KIND_LABEL: "a label: the format has no place for it",
    m.KIND_MODEL_CHANGE: "a change of model: the format has no place for it",
    m.KIND_SESSION_INFO: "a note on the session: the format has no place for it",
    m.KIND_COMPACTION: "a compaction of another program",
    m.KIND_BRANCH_SUMMARY: "a summary of another program",
}
# Of every line that is made here: the names that lines of one file share.
_SHARED: Final = ("cwd", "version", "gitBranch", "userType")
_NAMESPACE: Final = uuid.UUID("9b1f4b52-6f0c-5b0e-9d0a-6a1f0e7c2d11")


def export(session: StoredSession, *, repaired: bool, cwd: str | None = None) -> Exported:
    """Return the session as a transcript."""
    return _File(session, cwd).export(repaired=repaired)


class _File:
    def __init__(self, session: StoredSession, cwd: str | None) -> None:
        self._session = session
        self._parents = parents_of(session)
        # uuid -> line, in the order of the record; and the uuids of each entry, in order.
        self._lines: dict[str, dict[str, Any]] = {}
        self._uuids: dict[str, list[str]] = {}
        self._loose: list[tuple[str, dict[str, Any]]] = []
        self._raw_uuids = {
            line["uuid"]
            for stored in session.entries
            if self._is_raw(stored)
            for line in _dicts(stored.payload)
            if isinstance(line.get("uuid"), str)
        }
        self._dropped = {
            stored.entry.id: _LEFT_OUT[stored.entry.kind]
            for stored in session.entries
            if not self._is_raw(stored) and stored.entry.kind in _LEFT_OUT
        }
        self._shared: dict[str, Any] = {"cwd": cwd} if cwd is not None else {}
        self._session_id = session.session_id

    def _is_raw(self, stored: StoredEntry) -> bool:
        return (
            self._session.source_format == FORMAT_CLAUDE
            and not is_ours(stored)
            and isinstance(stored.payload, dict | list)
        )

    def export(self, *, repaired: bool) -> Exported:
        found = Exported(left_out=list(self._dropped.items()))
        owner: dict[str, str] = {}
        for stored in self._session.entries:
            if stored.entry.id in self._dropped:
                continue
            for line in self._of(stored):
                line_id = line.get("uuid")
                if isinstance(line_id, str):
                    self._lines[line_id] = line
                    self._uuids.setdefault(stored.entry.id, []).append(line_id)
                    owner[line_id] = stored.entry.id
                else:
                    self._loose.append((stored.entry.id, line))
        leaf = kept_ancestor(self._parents, self._session.leaf_entry_id, self._dropped)
        added = self._closings(leaf) if repaired else []
        for entry_id, line in self._loose:
            found.lines.append(Line(dumped(line), entry_id))
        beside = {line["uuid"]: call for call, line, on_path in added if not on_path}
        for _, line, on_path in added:
            if not on_path:
                self._lines[line["uuid"]] = line
                owner[line["uuid"]] = str(line["sourceToolAssistantUUID"])
        for line_id in self._order(leaf):
            text = dumped(self._lines[line_id])
            call = beside.get(line_id)
            entry_id = owner[line_id] if call is None else call[0]
            found.lines.append(Line(text, entry_id, call is not None, None if call is None else call[1]))
        for call, line, on_path in added:
            if on_path:
                found.lines.append(Line(dumped(line), call[0], True, call[1]))
                found.leaf_id = line["uuid"]
        if found.leaf_id is None and leaf is not None and leaf in self._uuids:
            # The lines of one message are one entry, under the first one's id.
            found.leaf_id = self._uuids[leaf][0]
        return found

    # --- lines -------------------------------------------------------------------------------------------------------

    def _of(self, stored: StoredEntry) -> Iterable[dict[str, Any]]:
        if not self._is_raw(stored):
            yield self._made(stored)
            return
        for place, line in enumerate(_dicts(stored.payload)):
            for name in _SHARED:
                if name in line:
                    self._shared[name] = line[name]
            if isinstance(line.get("sessionId"), str):
                self._session_id = line["sessionId"]
            parent = line.get("parentUuid")
            if isinstance(parent, str) and parent not in self._raw_uuids:
                there = self._last_uuid(stored.entry.parent_id if place == 0 else stored.entry.id)
                if there is not None:
                    line = {**line, "parentUuid": there}
            yield line

    def _last_uuid(self, entry_id: str | None) -> str | None:
        kept = kept_ancestor(self._parents, entry_id, self._dropped)
        found = self._uuids.get(kept) if kept is not None else None
        return found[-1] if found else None

    def _head(self, line_id: str, parent: str | None, kind: str, at: datetime) -> dict[str, Any]:
        return {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            **self._shared,
            "sessionId": self._session_id,
            "type": kind,
            "uuid": line_id,
            "timestamp": iso(at),
        }

    def _new_uuid(self, name: str) -> str:
        return str(uuid.uuid5(_NAMESPACE, f"{self._session.session_id}\0{name}"))

    def _made(self, stored: StoredEntry) -> dict[str, Any]:
        entry = stored.entry
        kind = "assistant" if entry.role == m.ROLE_ASSISTANT else "user"
        line = self._head(self._new_uuid(entry.id), self._last_uuid(entry.parent_id), kind, stored.at)
        line["isSidechain"] = entry.is_sidechain
        if entry.role == m.ROLE_ASSISTANT:
            line["message"] = self._assistant(stored)
            if entry.stop_reason == m.STOP_ABORTED:
                line["isAbortedMidStream"] = True
            if entry.stop_reason == m.STOP_ERROR:
                line["isApiErrorMessage"] = True
        elif entry.role == m.ROLE_TOOL_RESULT:
            is_error = entry.id.startswith(m.MARKER_ID_PREFIX)
            line["message"] = _result(entry.tool_call_id or "unknown", said(stored.payload), is_error=is_error)
        else:
            line["message"] = {"role": "user", "content": said(stored.payload)}
            if entry.role != m.ROLE_USER or entry.is_synthetic:
                line["isMeta"] = True
        return line

    def _assistant(self, stored: StoredEntry) -> dict[str, Any]:
        entry = stored.entry
        text = said(stored.payload) if entry.content == m.CONTENT_TEXT else ""
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += [
            {
                "type": "tool_use",
                "id": call.call_id,
                "name": call.name,
                "input": call.arguments if isinstance(call.arguments, dict) else {},
            }
            for call in calls_of(stored)
        ]
        return {
            "id": f"msg_{self._new_uuid(entry.id).replace('-', '')}",
            "type": "message",
            "role": "assistant",
            "model": "unknown",
            "content": content,
            "stop_reason": None if entry.stop_reason is None else _STOP.get(entry.stop_reason),
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    # --- repairing ---------------------------------------------------------------------------------------------------

    def _closings(self, leaf: str | None) -> list[tuple[tuple[str, str], dict[str, Any], bool]]:
        """Return ((entry, call), line, whether it stands at the end of the path) for each call that is closed."""
        by_id = {stored.entry.id: stored for stored in self._session.entries}
        tip = self._last_uuid(leaf)
        found = []
        for closing in closings(self._session):
            call = closing.call
            asked_by = self._line_of_call(call.entry_id, call.call_id)
            at = by_id[leaf].at if leaf is not None else by_id[call.entry_id].at
            line_id = self._new_uuid(f"closing:{call.entry_id}:{call.position}")
            line = self._head(line_id, tip if closing.on_path else asked_by, "user", at)
            line["message"] = _result(call.call_id, closing.text, is_error=True)
            line["sourceToolAssistantUUID"] = asked_by
            found.append(((call.entry_id, call.call_id), line, closing.on_path))
            if closing.on_path:
                tip = line_id
        return found

    def _line_of_call(self, entry_id: str, call_id: str) -> str:
        uuids = self._uuids[entry_id]
        for line_id in uuids:
            message = self._lines[line_id].get("message")
            content = message.get("content") if isinstance(message, dict) else None
            if any(block.get("id") == call_id for block in _dicts(content)):
                return line_id
        return uuids[-1]

    # --- order -------------------------------------------------------------------------------------------------------

    def _order(self, leaf: str | None) -> list[str]:
        """Return the uuids with parents first; what belongs to the leaf, and hangs from it, comes last."""
        children: dict[str, list[str]] = {}
        for line_id, line in self._lines.items():
            parent = line.get("parentUuid")
            if isinstance(parent, str):
                children.setdefault(parent, []).append(line_id)
        last: set[str] = set()
        waiting = list(self._uuids.get(leaf, ())) if leaf is not None else []
        while waiting:
            line_id = waiting.pop()
            if line_id not in last:
                last.add(line_id)
                waiting += children.get(line_id, ())
        first = [line_id for line_id in self._lines if line_id not in last]
        rest = [line_id for line_id in self._lines if line_id in last]
        return [*_parents_first(first, self._lines), *_parents_first(rest, self._lines)]


def _parents_first(ids: list[str], lines: dict[str, dict[str, Any]]) -> list[str]:
    wanted = set(ids)
    done: set[str] = set()
    order: list[str] = []
    for start in ids:
        # Up to the first line that stands already, then down again; a cycle ends where it began.
        chain: list[str] = []
        at: Any = start
        seen: set[str] = set()
        while isinstance(at, str) and at in wanted and at not in done and at not in seen:
            seen.add(at)
            chain.append(at)
            at = lines[at].get("parentUuid")
        for line_id in reversed(chain):
            done.add(line_id)
            order.append(line_id)
    return order


def _result(call_id: str, text: str, *, is_error: bool) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    if is_error:
        block["is_error"] = True
    return {"role": "user", "content": [block]}


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value]
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
