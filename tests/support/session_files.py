"""Session files made up line by line, for tests of importers and imports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from reconciler.importers.base import ImportedSession, ImportResult, Source
from reconciler.importers.detect import importer_for

PI_SESSION = "11111111-2222-7333-8444-555555555555"
CLAUDE_SESSION = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
VERSION = "2.1.332"


def as_bytes(lines: Iterable[object]) -> bytes:
    """Return the lines of a file; what is bytes already stands as it is."""
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def write(path: Path, lines: Iterable[object]) -> Path:
    """Write a session file."""
    path.write_bytes(as_bytes(lines))
    return path


def read(format_name: str, lines: Iterable[object], *, stem: str | None = "file") -> ImportResult:
    """Read made-up lines with the importer of a format."""
    return importer_for(format_name).read(Source(BytesIO(as_bytes(lines)), stem))


def session_of(result: ImportResult) -> ImportedSession:
    """Return the only session of a result."""
    (session,) = result.sessions
    return session


class Pi:
    """Lines of a pi file; each entry hangs from the one before unless told otherwise."""

    def __init__(self, *, version: int | None = 3, session_id: str = PI_SESSION) -> None:
        header: dict[str, Any] = {"type": "session", "id": session_id, "timestamp": "2026-11-28T09:00:00.000Z"}
        if version is not None:
            header["version"] = version
        self.version = version
        self.lines: list[object] = [header]
        self.last: str | None = None

    def add(self, entry_id: str, kind: str, *, parent: str | None = "", **fields: object) -> Pi:
        """Add an entry of any type."""
        line: dict[str, object] = {"type": kind, "timestamp": "2026-11-28T09:00:01.000Z", **fields}
        if self.version is not None:
            line |= {"id": entry_id, "parentId": self.last if parent == "" else parent}
        self.lines.append(line)
        self.last = entry_id
        return self

    def message(self, entry_id: str, message: dict[str, object], *, parent: str | None = "") -> Pi:
        """Add a message entry."""
        return self.add(entry_id, "message", parent=parent, message=message)

    def user(self, entry_id: str, text: str = "do it", *, parent: str | None = "") -> Pi:
        """Add a person's prompt."""
        return self.message(entry_id, {"role": "user", "content": [{"type": "text", "text": text}]}, parent=parent)

    def assistant(
        self,
        entry_id: str,
        text: str | None = "working",
        *,
        calls: Iterable[str] = (),
        stop: str | None = "stop",
        error: str | None = None,
        parent: str | None = "",
    ) -> Pi:
        """Add a response."""
        content: list[dict[str, object]] = [{"type": "text", "text": text}] if text is not None else []
        content += [{"type": "toolCall", "id": call, "name": "bash", "arguments": {}} for call in calls]
        message: dict[str, object] = {"role": "assistant", "content": content}
        if stop is not None:
            message["stopReason"] = stop
        if error is not None:
            message["errorMessage"] = error
        return self.message(entry_id, message, parent=parent)

    def result(self, entry_id: str, call: str, *, parent: str | None = "") -> Pi:
        """Add a tool's result."""
        content = [{"type": "text", "text": "done"}]
        return self.message(entry_id, {"role": "toolResult", "toolCallId": call, "content": content}, parent=parent)

    def raw(self, line: bytes) -> Pi:
        """Add bytes as they are."""
        self.lines.append(line)
        return self


class Claude:
    """Lines of a Claude Code transcript; each hangs from the one before unless told otherwise."""

    def __init__(self, *, version: str = VERSION, session_id: str = CLAUDE_SESSION) -> None:
        self.version = version
        self.session_id = session_id
        self.lines: list[object] = []
        self.last: str | None = None

    def add(self, uuid: str, kind: str, *, parent: str | None = "", **fields: object) -> Claude:
        """Add a line of the DAG."""
        self.lines.append(
            {
                "type": kind,
                "uuid": uuid,
                "parentUuid": self.last if parent == "" else parent,
                "isSidechain": False,
                "sessionId": self.session_id,
                "version": self.version,
                "timestamp": "2026-11-28T09:00:01.000Z",
                **fields,
            }
        )
        self.last = uuid
        return self

    def outside(self, kind: str, **fields: object) -> Claude:
        """Add a line that is no part of the DAG."""
        self.lines.append({"type": kind, "sessionId": self.session_id, **fields})
        return self

    def user(self, uuid: str, content: object = "do it", *, parent: str | None = "", **fields: object) -> Claude:
        """Add a user line."""
        return self.add(uuid, "user", parent=parent, message={"role": "user", "content": content}, **fields)

    def result(self, uuid: str, *calls: str, parent: str | None = "", **fields: object) -> Claude:
        """Add a user line with tool results."""
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": "done"} for call in calls]
        return self.user(uuid, blocks, parent=parent, **fields)

    def assistant(
        self,
        uuid: str,
        message_id: str,
        block: dict[str, object],
        stop: str | None,
        *,
        parent: str | None = "",
        model: str = "example",
        **fields: object,
    ) -> Claude:
        """Add one block of a response."""
        message = {"id": message_id, "role": "assistant", "model": model, "content": [block], "stop_reason": stop}
        return self.add(uuid, "assistant", parent=parent, message=message, **fields)

    def text(self, uuid: str, message_id: str, stop: str | None = "end_turn", text: str = "ok", **more: Any) -> Claude:
        """Add a text block."""
        return self.assistant(uuid, message_id, {"type": "text", "text": text}, stop, **more)

    def call(self, uuid: str, message_id: str, call: str, stop: str | None = "tool_use", **more: Any) -> Claude:
        """Add a call."""
        block: dict[str, object] = {"type": "tool_use", "id": call, "name": "Bash", "input": {}}
        return self.assistant(uuid, message_id, block, stop, **more)

    def thinking(self, uuid: str, message_id: str, stop: str | None = "tool_use", **more: Any) -> Claude:
        """Add a block of reasoning."""
        return self.assistant(uuid, message_id, {"type": "thinking", "thinking": "hm"}, stop, **more)

    def raw(self, line: bytes) -> Claude:
        """Add bytes as they are."""
        self.lines.append(line)
        return self
