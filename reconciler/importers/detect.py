"""Which format a file is in, and why.

Looks at the first lines only. Every session format has look-alikes (forks of the programs, other programs with the same
field names), so that a format is named by what only it writes; what is known and not supported is named in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from reconciler.errors import UnknownFormat
from reconciler.importers import (
    claude_code,
    codex,
    flue,
    google_adk,
    langgraph,
    native,
    openai_agents,
    opencode,
    pi,
    pi_harness,
)
from reconciler.importers.base import Importer, as_text
from reconciler.importers.claude_code import ClaudeCodeImporter
from reconciler.importers.codex import CodexImporter
from reconciler.importers.flue import FlueImporter
from reconciler.importers.foreign_database import DatabaseImporter
from reconciler.importers.google_adk import GoogleAdkImporter
from reconciler.importers.langgraph import LanggraphImporter
from reconciler.importers.native import NativeImporter
from reconciler.importers.openai_agents import OpenaiAgentsImporter
from reconciler.importers.opencode import OpencodeExportImporter, OpencodeImporter
from reconciler.importers.pi import PiImporter
from reconciler.importers.pi_harness import PiHarnessImporter, PiSqliteImporter
from reconciler.importers.reading import LineReader, decode_line

IMPORTERS: Final[dict[str, Callable[[], Importer]]] = {
    pi.FORMAT: PiImporter,
    claude_code.FORMAT: ClaudeCodeImporter,
    codex.FORMAT: CodexImporter,
    opencode.EXPORT_FORMAT: OpencodeExportImporter,
    pi_harness.FORMAT: PiHarnessImporter,
    native.FORMAT: NativeImporter,
}
# In databases: one of them may hold sessions of several.
DATABASE_IMPORTERS: Final[dict[str, Callable[[], DatabaseImporter]]] = {
    opencode.FORMAT: OpencodeImporter,
    openai_agents.FORMAT: OpenaiAgentsImporter,
    google_adk.FORMAT: GoogleAdkImporter,
    langgraph.FORMAT: LanggraphImporter,
    flue.FORMAT: FlueImporter,
    pi_harness.SQLITE_FORMAT: PiSqliteImporter,
}
AUTO: Final = "auto"
# Looked at before the answer is "unknown".
SNIFF_LINES_MAX: Final = 200
SNIFF_BYTES_MAX: Final = 4 * 1024 * 1024

_HEAD_BYTES: Final = 65536
_EXPORT: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"info"\s*:\s*\{')
_EXPORT_ID: Final = re.compile(rb'"id"\s*:\s*"ses_')
_SQLITE: Final = b"SQLite format 3\0"
_PI_TYPES: Final = frozenset(
    {"message", "model_change", "thinking_level_change", "compaction", "branch_summary", "custom", "custom_message"}
    | {"label", "session_info", "usage", "context_edit", "leaf", "active_tools_change"}
)
_CODEX_TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
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
        if name in DATABASE_IMPORTERS:
            raise UnknownFormat(
                f'cannot read a file as "{name}": sessions of that format are rows of a database',
                hint="name the database itself: an SQLite file, or a postgresql:// URL",
            ) from None
        raise UnknownFormat(f'there is no session format "{name}"', hint=_named()) from None


def check_format(name: str) -> None:
    """See that a format exists.

    Raises:
        UnknownFormat: there is none of that name.
    """
    if name != AUTO and name not in DATABASE_IMPORTERS:
        importer_for(name)


def detect_database(
    tables: dict[str, tuple[str, ...]], name: str, format_name: str = AUTO
) -> list[tuple[DatabaseImporter, Detection]]:
    """Return who can read a database with these tables, and what gave each format away.

    Raises:
        UnknownFormat: nobody can; the message says which tables there are.
    """
    wanted = DATABASE_IMPORTERS if format_name == AUTO else {format_name: DATABASE_IMPORTERS.get(format_name)}
    found: list[tuple[DatabaseImporter, Detection]] = []
    for made in wanted.values():
        if made is None:
            raise UnknownFormat(
                f'cannot read "{name}" as "{format_name}": it is a database, and that format is of files',
                hint=f"name the format with --format ({', '.join(DATABASE_IMPORTERS)})",
            )
        importer = made()
        reason = importer.recognise(tables)
        if reason is not None:
            found.append((importer, Detection(importer.format, reason)))
    if not found:
        shown = ", ".join(sorted(tables)[:12]) or "none"
        as_what = "of a known session format" if format_name == AUTO else f'of the format "{format_name}"'
        raise UnknownFormat(f'cannot import "{name}": its tables are not {as_what} (tables: {shown})', hint=_named())
    return found


def detect(stream: BinaryIO, name: str) -> Detection:
    """Return the format of a seekable stream, which is set back to its beginning.

    *name* is how messages call the stream.

    Raises:
        UnknownFormat: the first lines are in no supported format; the message says what they look like.
    """
    stream.seek(0)
    begin = stream.read(_HEAD_BYTES)
    head = begin[: len(_SQLITE)]
    stream.seek(0)
    try:
        if not head:
            raise UnknownFormat(f'cannot tell the format of "{name}": it is empty')
        if head == _SQLITE:
            raise UnknownFormat(
                f'cannot import "{name}": it is an SQLite database, and a database is read in its place, from no pipe',
                hint="name the database's file",
            )
        if _EXPORT.match(begin) is not None and _EXPORT_ID.search(begin) is not None:
            return Detection(
                opencode.EXPORT_FORMAT, "it is one JSON value that begins with the info of a session ses_…"
            )
        found = _judge(_sample(stream))
    finally:
        stream.seek(0)
    if isinstance(found, Detection):
        return found
    raise UnknownFormat(f'cannot tell the format of "{name}": {found}', hint=_named())


def _named() -> str:
    return f"name the format with --format ({', '.join((*IMPORTERS, *DATABASE_IMPORTERS))})"


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
        if kind == "session" and {"format", "origin", "leaf_entry_id"} <= value.keys():
            return Detection(native.FORMAT, f"line {number} is the header of an export of ours")
        if kind == "session" and ("id" in value or "timestamp" in value):
            return Detection(pi.FORMAT, f'line {number} is a session header ("type": "session")')
        if value.get("kind") == "header" and "storageVersion" in value:
            return Detection(pi_harness.FORMAT, f"line {number} is a header of pi's harness (version {value.get('v')})")
        if kind in _CLAUDE_DAG and "uuid" in value and "parentUuid" in value:
            return Detection(claude_code.FORMAT, f'line {number} is a "{kind}" line with uuid and parentUuid')
        if kind in _PI_TYPES and "id" in value and "parentId" in value:
            return Detection(pi.FORMAT, f'line {number} is a "{kind}" entry with id and parentId')
        if kind in _CODEX_TYPES and isinstance(value.get("payload"), dict):
            return Detection(codex.FORMAT, f'line {number} is a "{kind}" record with a payload')
        if "record_type" in value and kind is None:
            return Detection(codex.FORMAT, f'line {number} is a record of type "{str(value["record_type"])[:40]}"')
        if number == 1 and kind is None and {"id", "timestamp", "instructions"} <= value.keys():
            return Detection(
                codex.FORMAT, "line 1 is a header with id, timestamp and instructions, as first rollouts had"
            )
        if hint is None and kind in _CLAUDE_HINTS:
            # A title or a queued prompt may stand before the first line of the conversation, or be all there is.
            hint = Detection(claude_code.FORMAT, f'line {number} is a "{kind}" line')
    if hint is not None:
        return hint
    return "none of its first lines is JSON of a known session format" if seen else "none of its first lines is JSON"


def _foreign(value: dict[str, Any], kind: str | None) -> str | None:
    """Return the name of the format that only looks like one of ours."""
    if kind == "session_start":
        return "a Factory Droid session"
    if "uuid" in value and "parentUuid" in value:
        message = value.get("message")
        if value.get("subtype") == "ui_telemetry" or (isinstance(message, dict) and "parts" in message):
            return "a Qwen Code session"
    if "messages" in value and "sessionId" in value:
        return "a Gemini CLI session"
    return None
