"""Which format a file is in, and why.

Looks at the first lines only. Every session format has look-alikes (forks of the programs, other programs with the same
field names), so that a format is named by what only it writes; what is known and not supported is named in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from reconciler.errors import UnknownFormat
from reconciler.importers import claude_code, pi
from reconciler.importers.base import Importer, as_text
from reconciler.importers.claude_code import ClaudeCodeImporter
from reconciler.importers.pi import PiImporter
from reconciler.importers.reading import LineReader, decode_line

IMPORTERS: Final[dict[str, Callable[[], Importer]]] = {
    pi.FORMAT: PiImporter,
    claude_code.FORMAT: ClaudeCodeImporter,
}
AUTO: Final = "auto"
# Looked at before the answer is "unknown".
SNIFF_LINES_MAX: Final = 200
SNIFF_BYTES_MAX: Final = 4 * 1024 * 1024

_SQLITE: Final = b"SQLite format 3\0"
_PI_TYPES: Final = frozenset(
    {"message", "model_change", "thinking_level_change", "compaction", "branch_summary", "custom", "custom_message"}
    | {"label", "session_info", "usage", "context_edit", "leaf", "active_tools_change"}
)
_CLAUDE_DAG: Final = frozenset({"user", "assistant", "system", "attachment", "progress"})
_CLAUDE_HINTS: Final = frozenset({"summary", "file-history-snapshot", "queue-operation", "last-prompt", "ai-title"})


@dataclass(frozen=True, slots=True)
class Detection:
    """The format, and the line that gave it away, in words."""

    format: str
    reason: str


def importer_for(name: str) -> Importer:
    """Return the importer of a format.

    Raises:
        UnknownFormat: there is none of that name.
    """
    try:
        return IMPORTERS[name]()
    except KeyError:
        raise UnknownFormat(f'there is no session format "{name}"', hint=_named()) from None


def detect(stream: BinaryIO, name: str) -> Detection:
    """Return the format of a seekable stream, which is set back to its beginning.

    *name* is how messages call the stream.

    Raises:
        UnknownFormat: the first lines are in no supported format; the message says what they look like.
    """
    stream.seek(0)
    head = stream.read(len(_SQLITE))
    stream.seek(0)
    try:
        if not head:
            raise UnknownFormat(f'cannot tell the format of "{name}": it is empty')
        if head == _SQLITE:
            raise UnknownFormat(f'cannot import "{name}": it is an SQLite database, not a session file', hint=_named())
        found = _judge(_sample(stream))
    finally:
        stream.seek(0)
    if isinstance(found, Detection):
        return found
    raise UnknownFormat(f'cannot tell the format of "{name}": {found}', hint=_named())


def _named() -> str:
    return f"name the format with --format ({', '.join(IMPORTERS)})"


def _sample(stream: BinaryIO) -> Iterable[tuple[int, dict[str, Any]]]:
    reader = LineReader(stream, line_bytes_max=SNIFF_BYTES_MAX)
    for number, data, _ in reader.lines():
        if data is not None and data.strip():
            decoded = decode_line(data)
            if isinstance(decoded.value, dict):
                yield number, decoded.value
        if number >= SNIFF_LINES_MAX or reader.bytes_read >= SNIFF_BYTES_MAX:
            return


def _judge(lines: Iterable[tuple[int, dict[str, Any]]]) -> Detection | str:
    hint: Detection | None = None
    seen = 0
    for number, value in lines:
        seen += 1
        kind = as_text(value.get("type"))
        if (foreign := _foreign(value, kind)) is not None:
            return f"line {number} looks like {foreign}, which is not supported"
        if kind == "session" and ("id" in value or "timestamp" in value):
            return Detection(pi.FORMAT, f'line {number} is a session header ("type": "session")')
        if kind in _CLAUDE_DAG and "uuid" in value and "parentUuid" in value:
            return Detection(claude_code.FORMAT, f'line {number} is a "{kind}" line with uuid and parentUuid')
        if kind in _PI_TYPES and "id" in value and "parentId" in value:
            return Detection(pi.FORMAT, f'line {number} is a "{kind}" entry with id and parentId')
        if hint is None and kind in _CLAUDE_HINTS:
            # A title or a queued prompt may stand before the first line of the conversation, or be all there is.
            hint = Detection(claude_code.FORMAT, f'line {number} is a "{kind}" line')
    if hint is not None:
        return hint
    return "none of its first lines is JSON of a known session format" if seen else "none of its first lines is JSON"


def _foreign(value: dict[str, Any], kind: str | None) -> str | None:
    """Return the name of the format that only looks like one of ours."""
    if value.get("kind") == "header" and value.get("v") == 4:
        return "a pi harness session of version 4"
    if kind == "session_start":
        return "a Factory Droid session"
    if kind in ("session_meta", "response_item", "event_msg", "turn_context") and "payload" in value:
        return "a Codex rollout"
    if "uuid" in value and "parentUuid" in value:
        message = value.get("message")
        if value.get("subtype") == "ui_telemetry" or (isinstance(message, dict) and "parts" in message):
            return "a Qwen Code session"
    if "messages" in value and "sessionId" in value:
        return "a Gemini CLI session"
    return None
