"""OpenAI Agents SDK: the tables of `SQLiteSession`, `AdvancedSQLiteSession` and `SQLAlchemySession`.

Sources: the SDK's 0.24 and crash runs of it. A row is one input item of the Responses API; rows are linear, or a tree
where branches are kept. The prompt is written when a run begins, and everything else of a model turn at once, after its
tools have run: nothing here is write-ahead. There is no id of a run, no stop reason, no error and no interruption: what
isn't in the rows can't be proven. The newest rows may be taken back, so that a history can shrink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.errors import SourceUnreadable
from reconciler.importers.base import (
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    PayloadSink,
    as_text,
    linked,
)
from reconciler.importers.foreign_database import RowReading, Rows, SessionKey, as_str, ident

FORMAT: Final = "openai-agents"

_MESSAGES: Final = frozenset({"id", "session_id", "message_data", "created_at"})
_SESSIONS: Final = frozenset({"session_id", "created_at", "updated_at"})
# The agent's own process runs these, and writes what came of them.
CLIENT_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"}
)
RESULTS: Final = frozenset(f"{call}_output" for call in CLIENT_CALLS)
# The provider runs these inside a response.
HOSTED: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
    | {"mcp_list_tools", "mcp_approval_request", "tool_search_call", "tool_search_output"}
)


@dataclass(slots=True)
class _Node:
    entry: m.SessionEntry
    line: int
    written_at: datetime | None


class OpenaiAgentsImporter:
    """Reads session tables of the OpenAI Agents SDK."""

    format = FORMAT

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away: the names of the tables are the application's choice."""
        pairs = _pairs(tables)
        if not pairs:
            return None
        messages = pairs[0][1]
        return f'the table "{messages}" has a session_id and message_data, as the Agents SDK makes it'

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the sessions of every pair of tables, also those whose own row was never written."""
        pairs = _pairs(rows.tables())
        for sessions, messages in pairs:
            union = (
                f"SELECT session_id FROM {ident(sessions)} UNION SELECT session_id FROM {ident(messages)}"  # noqa: S608
                " ORDER BY 1"
            )
            for (raw,) in rows.read(union):
                session_id = as_str(raw)
                if session_id is not None:
                    label = session_id if len(pairs) == 1 else f"{messages}/{session_id}"
                    yield SessionKey((sessions, messages, session_id), label)

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one session."""
        _, messages, session_id = key.parts
        reading = RowReading(sink)
        tables = rows.tables()
        table = _Table(rows, reading, messages, session_id)
        table.read(_order(rows, messages))
        branches: list[tuple[int, str, int]] = []
        if {"session_id", "message_id", "branch_id", "sequence_number"} <= set(tables.get("message_structure", ())):
            branches = list(_branches(rows, session_id))
            reading.note(branches)
        found = table.session(reading.clean_id(session_id, messages, "session id") or session_id, branches)
        return reading.result(FORMAT, None, (found,))


def _pairs(tables: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return the pairs of tables: each messages table with the sessions table whose name is most like it."""
    sessions = [name for name, columns in tables.items() if set(columns) == _SESSIONS]
    found: list[tuple[str, str]] = []
    for name, columns in tables.items():
        if set(columns) == _MESSAGES and sessions:
            found.append((max(sessions, key=lambda other: _common(other, name)), name))
    return found


def _common(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _order(rows: Rows, messages: str) -> str:
    """Return how the writer itself orders the rows: by id where ids only rise, else by time first."""
    if rows.dialect == "sqlite":
        for (sql,) in rows.read("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", messages):
            if "AUTOINCREMENT" in (as_str(sql) or "").upper():
                return "id"
    return "created_at, id"


def _branches(rows: Rows, session_id: str) -> Iterator[tuple[int, str, int]]:
    """Yield (place, branch, message) in the order of each branch."""
    ordered = (
        "SELECT id, branch_id, message_id FROM message_structure WHERE session_id = ? ORDER BY sequence_number, id"
    )
    for place, branch, message in rows.read(ordered, session_id):
        if isinstance(place, int) and isinstance(message, int):
            yield place, as_str(branch) or "", message


class _Table:
    def __init__(self, rows: Rows, reading: RowReading, messages: str, session_id: str) -> None:
        self._rows = rows
        self._reading = reading
        self._messages = messages
        self._session_id = session_id
        self._nodes: dict[str, _Node] = {}

    def read(self, order: str) -> None:
        """Read the rows."""
        table = ident(self._messages)
        query = f"SELECT id, message_data, created_at FROM {table} WHERE session_id = ? ORDER BY {order}"  # noqa: S608
        for row_id, data, created in self._rows.read(query, self._session_id):
            place = f"{self._messages}/{row_id}"
            value = self._reading.json(data, place)
            entry_id = f"message:{row_id}"
            if value is None:
                line = self._reading.keep({"raw": as_str(data)})
                entry = m.SessionEntry(entry_id, kind=m.KIND_UNREADABLE, content=m.CONTENT_NONE)
            elif "__enc__" in value and "payload" in value:
                raise SourceUnreadable(
                    f'cannot read "{self._rows.name}#{self._session_id}": its messages are encrypted',
                    hint="import the session from a store that is not wrapped in EncryptedSession",
                )
            else:
                line = self._reading.keep(value)
                entry = self._item(entry_id, value, place)
            self._nodes[entry_id] = _Node(entry, line, _utc(created))

    def _item(self, entry_id: str, value: dict[str, Any], place: str) -> m.SessionEntry:
        kind = as_text(value.get("type"))
        role = as_text(value.get("role"))
        if kind in (None, "message") and role is not None:
            if role == "user":
                return m.SessionEntry(entry_id, role=m.ROLE_USER)
            if role == "assistant":
                content = m.CONTENT_TEXT if _has_text(value.get("content")) else m.CONTENT_NONE
                return m.SessionEntry(entry_id, role=m.ROLE_ASSISTANT, content=content)
            if role in ("system", "developer"):
                return m.SessionEntry(entry_id, role=m.ROLE_SYSTEM)
        if kind in CLIENT_CALLS:
            call = self._reading.clean_id(value.get("call_id") or value.get("id"), place, "call id")
            return m.SessionEntry(
                entry_id,
                role=m.ROLE_ASSISTANT,
                stop_reason=m.STOP_TOOL_USE,
                tool_call_ids=(call if call is not None else f"{entry_id}:0",),
                content=m.CONTENT_NONE,
            )
        if kind in RESULTS:
            call = self._reading.clean_id(value.get("call_id"), place, "call id")
            return m.SessionEntry(entry_id, role=m.ROLE_TOOL_RESULT, tool_call_id=call)
        if kind == "reasoning":
            return m.SessionEntry(entry_id, role=m.ROLE_ASSISTANT, content=m.CONTENT_REASONING)
        if kind in HOSTED:
            return m.SessionEntry(entry_id, role=m.ROLE_ASSISTANT, stop_reason=m.STOP_TOOL_USE, content=m.CONTENT_NONE)
        if kind in ("compaction", "compaction_summary"):
            return m.SessionEntry(entry_id, kind=m.KIND_COMPACTION, content=m.CONTENT_NONE)
        if kind not in ("item_reference", "mcp_approval_response"):
            self._reading.unknown[str(kind or role)[:100]] += 1
        return m.SessionEntry(entry_id, kind=m.KIND_CUSTOM, content=m.CONTENT_NONE)

    # --- linking ---------------------------------------------------------------------------------------------------

    def session(self, session_id: str, branches: list[tuple[int, str, int]]) -> ImportedSession:
        """Link the rows and return the session."""
        parents = self._parents(branches)
        leaf = self._leaf(branches)
        submissions: dict[str, ImportedSubmission] = {}
        # Per entry: its submission, and whether nothing but prompts was said since its input.
        turns: dict[str, tuple[str | None, bool]] = {}
        entries: list[ImportedEntry] = []
        for entry_id, node in self._nodes.items():
            parent = parents.get(entry_id)
            turn, fresh = turns.get(parent, (None, False)) if parent is not None else (None, False)
            entry = node.entry
            if entry.kind == m.KIND_MESSAGE and entry.role == m.ROLE_USER:
                if not fresh or turn is None:
                    # Several prompts in a row are one run's: there is nothing that tells runs apart.
                    turn = entry_id
                    submissions[turn] = ImportedSubmission(turn, entry_id)
                fresh = True
            elif entry.kind == m.KIND_MESSAGE and entry.role in (m.ROLE_ASSISTANT, m.ROLE_TOOL_RESULT):
                fresh = False
            turns[entry_id] = (turn, fresh)
            made = linked(entry, entry_id, parent, turn)
            entries.append(ImportedEntry(made, (node.line,), False, node.written_at))
        pending = turns.get(leaf, (None, False))[0] if leaf is not None else None
        return ImportedSession(
            session_id,
            tuple(entries),
            leaf,
            leaf is None,
            tuple(replace(s, is_pending=s.submission_id == pending) for s in submissions.values()),
        )

    def _parents(self, branches: list[tuple[int, str, int]]) -> dict[str, str | None]:
        ids = list(self._nodes)
        if not branches:
            return dict(zip(ids, [None, *ids], strict=False))
        parents: dict[str, str | None] = {}
        last: dict[str, str] = {}
        for _, branch, message in branches:
            entry_id = f"message:{message}"
            if entry_id in self._nodes:
                # A branch shares the messages of the one it came from: the first place is the message's own.
                parents.setdefault(entry_id, last.get(branch))
                last[branch] = entry_id
        lost = [entry_id for entry_id in ids if entry_id not in parents]
        for entry_id in lost:
            self._reading.problems.add(
                None,
                "no_branch",
                "the message is in no branch; it is kept off every path",
                f"{self._messages}/{entry_id[8:]}",
            )
        return parents

    def _leaf(self, branches: list[tuple[int, str, int]]) -> str | None:
        """Return the end of the branch that was added to last; which one is in use is kept nowhere."""
        here = [(place, branch, f"message:{message}") for place, branch, message in branches]
        here = [item for item in here if item[2] in self._nodes]
        if not here:
            return next(reversed(self._nodes), None)
        newest = max(here)[1]
        return next(entry_id for _, branch, entry_id in reversed(here) if branch == newest)


def _has_text(content: object) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and str(part.get("text") or part.get("refusal") or "").strip():
            return True
    return False


def _utc(raw: object) -> datetime | None:
    """Return a time stamp of the database, which keeps UTC without saying so."""
    if isinstance(raw, datetime):
        return raw.astimezone(UTC) if raw.tzinfo is not None else raw.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(as_str(raw) or "")
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
