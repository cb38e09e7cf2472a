"""pi session files, version 3.

The active position of such a file is its last line, so the leaf's line goes last. Lines that pi wrote go back as they
were read; the header is made anew (an import keeps none), without a folder where none is given: pi takes its own then.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.exporters.base import (
    FORMAT_PI,
    Exported,
    Line,
    StoredEntry,
    StoredSession,
    calls_of,
    closings,
    digest_of,
    dumped,
    is_ours,
    iso,
    kept_ancestor,
    milliseconds,
    names_of_calls,
    parents_of,
    said,
)

_STOP: Final = {
    m.STOP_STOP: "stop",
    m.STOP_LENGTH: "length",
    m.STOP_TOOL_USE: "toolUse",
    m.STOP_ERROR: "error",
    m.STOP_ABORTED: "aborted",
}
_COST: Final = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
_USAGE: Final = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0, "cost": _COST}
# Of ours, and nothing that pi knows: its conversation goes on without them.
_LEFT_OUT: Final = {
    m.KIND_SUBMISSION_SETTLED: "an outcome: the format has no place for it",
    m.KIND_TOOL_STARTED: "a tool's start: the format has no place for it",
    m.KIND_UNREADABLE: "a line that could not be read",
}


def export(session: StoredSession, *, repaired: bool, cwd: str | None = None) -> Exported:
    """Return the session as a pi session file."""
    return _File(session, cwd).export(repaired=repaired)


class _File:
    def __init__(self, session: StoredSession, cwd: str | None) -> None:
        self._session = session
        self._parents = parents_of(session)
        self._cwd = cwd
        self._names = names_of_calls(session)
        self._dropped = {
            stored.entry.id: _LEFT_OUT[stored.entry.kind]
            for stored in session.entries
            if stored.entry.kind in _LEFT_OUT
        }
        # An id of the file for each entry; pi's own stay.
        self._ids: dict[str, str] = {}
        taken = {stored.entry.id for stored in session.entries if self._is_raw(stored)}
        for stored in session.entries:
            entry_id = stored.entry.id
            self._ids[entry_id] = entry_id if self._is_raw(stored) else self._new_id(entry_id, taken)

    def _new_id(self, entry_id: str, taken: set[str]) -> str:
        digits = digest_of(self._session.session_id, entry_id)
        # Eight digits, as pi's own; more where these are taken.
        found = next(digits[:length] for length in range(8, 65) if digits[:length] not in taken or length == 64)
        taken.add(found)
        return found

    def _is_raw(self, stored: StoredEntry) -> bool:
        return (
            self._session.source_format == FORMAT_PI
            and not is_ours(stored)
            and isinstance(stored.payload, dict)
            and isinstance(stored.payload.get("type"), str)
        )

    def export(self, *, repaired: bool) -> Exported:
        found = Exported(left_out=list(self._dropped.items()))
        kept = [stored for stored in self._session.entries if stored.entry.id not in self._dropped]
        leaf = kept_ancestor(self._parents, self._session.leaf_entry_id, self._dropped)
        by_id = {stored.entry.id: stored for stored in kept}
        beside: dict[str, list[Line]] = {}
        behind: list[Line] = []
        tip = None if leaf is None else self._ids.get(leaf)
        for closing in closings(self._session) if repaired else ():
            call, message = closing.call, by_id[closing.call.entry_id]
            line_id = self._new_id(f"closing:{call.entry_id}:{call.position}", set(self._ids.values()))
            parent = tip if closing.on_path else self._ids[call.entry_id]
            # No clock: the marker carries the time of the last thing that is on record.
            at = by_id[leaf].at if leaf is not None else message.at
            name = self._names.get((call.entry_id, call.call_id), "unknown")
            value = self._result(line_id, parent, at, call.call_id, name, closing.text, is_error=True)
            line = Line(dumped(value), call.entry_id, True, call.call_id)
            if closing.on_path:
                behind.append(line)
                tip = line_id
            else:
                beside.setdefault(call.entry_id, []).append(line)
        found.lines.append(Line(dumped(self._header(kept))))
        for stored in kept:
            if stored.entry.id != leaf:
                found.lines.append(Line(self._line(stored), stored.entry.id))
                found.lines += beside.get(stored.entry.id, ())
        if leaf is not None and leaf in by_id:
            # What is beside the path must not be last: the last line is where pi goes on.
            found.lines += beside.get(leaf, ())
            found.lines.append(Line(self._line(by_id[leaf]), leaf))
        found.lines += behind
        found.leaf_id = tip
        return found

    def _header(self, kept: list[StoredEntry]) -> dict[str, Any]:
        header: dict[str, Any] = {"type": "session", "version": 3, "id": self._session.session_id}
        first = kept[0] if kept else None
        if first is not None:
            stamp = first.payload.get("timestamp") if self._is_raw(first) else None
            header["timestamp"] = stamp if isinstance(stamp, str) else iso(first.at)
        if self._cwd is not None:
            header["cwd"] = self._cwd
        return header

    def _parent(self, entry: m.SessionEntry) -> str | None:
        parent = kept_ancestor(self._parents, entry.parent_id, self._dropped)
        return None if parent is None else self._ids.get(parent, parent)

    def _line(self, stored: StoredEntry) -> str:
        if self._is_raw(stored):
            if "id" in stored.payload:
                return stored.text
            # Version 1 had no links: its order was the chain.
            return dumped({**stored.payload, "id": stored.entry.id, "parentId": self._parent(stored.entry)})
        return dumped(self._made(stored))

    def _made(self, stored: StoredEntry) -> dict[str, Any]:
        entry = stored.entry
        line_id, parent = self._ids[entry.id], self._parent(entry)
        head = {"id": line_id, "parentId": parent, "timestamp": iso(stored.at)}
        if entry.kind != m.KIND_MESSAGE or entry.is_sidechain or entry.role is None:
            return {"type": "custom", **head, "customType": f"reconciler:{entry.kind}", "data": stored.payload}
        if entry.role == m.ROLE_TOOL_RESULT:
            call_id = entry.tool_call_id or "unknown"
            name = next((name for (_, call), name in self._names.items() if call == call_id), "unknown")
            is_error = entry.id.startswith(m.MARKER_ID_PREFIX)
            return self._result(line_id, parent, stored.at, call_id, name, said(stored.payload), is_error=is_error)
        message: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": said(stored.payload)}]}
        if entry.role == m.ROLE_SYSTEM:
            message = {"role": "system", "content": [{"type": "text", "text": said(stored.payload)}]}
        elif entry.role == m.ROLE_SIGNAL:
            return {
                "type": "custom_message",
                **head,
                "customType": "reconciler:signal",
                "content": said(stored.payload),
                "display": True,
            }
        elif entry.role == m.ROLE_ASSISTANT:
            message = self._assistant(stored)
        return {"type": "message", **head, "message": {**message, "timestamp": milliseconds(stored.at)}}

    def _assistant(self, stored: StoredEntry) -> dict[str, Any]:
        entry = stored.entry
        text = said(stored.payload) if entry.content == m.CONTENT_TEXT else ""
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += [
            {
                "type": "toolCall",
                "id": call.call_id,
                "name": call.name,
                "arguments": call.arguments if isinstance(call.arguments, dict) else {},
            }
            for call in calls_of(stored)
        ]
        found: dict[str, Any] = {
            "role": "assistant",
            "content": content,
            "api": "unknown",
            "provider": "unknown",
            "model": "unknown",
            "usage": _USAGE,
        }
        if entry.stop_reason is not None:
            found["stopReason"] = _STOP.get(entry.stop_reason, "stop")
        return found

    def _result(
        self, line_id: str, parent: str | None, at: datetime, call_id: str, name: str, text: str, *, is_error: bool
    ) -> dict[str, Any]:
        return {
            "type": "message",
            "id": line_id,
            "parentId": parent,
            "timestamp": iso(at),
            "message": {
                "role": "toolResult",
                "toolCallId": call_id,
                "toolName": name,
                "content": [{"type": "text", "text": text}],
                "isError": is_error,
                "timestamp": milliseconds(at),
            },
        }
