"""LangGraph checkpoints: the tables of `SqliteSaver` and `PostgresSaver`.

Sources: langgraph 1.2 with checkpoint 4.3, and crash runs of it. A checkpoint is a snapshot of the state, its messages
in a list; lists with the same beginning share the entries of it, so that the tree of checkpoints becomes a tree of
messages. The newest checkpoint is where a thread stands. What its tasks wrote before it was followed by another (their
results, an error, an interrupt) stands beside it. By default checkpoints are written behind the work, and nothing in
the store tells whether they were: it isn't known to be write-ahead. Values are decoded as data alone
(langgraph_values.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.importers.base import (
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    PayloadSink,
    as_text,
    instant,
)
from reconciler.importers.foreign_database import RowReading, Rows, SessionKey, as_bytes, as_str
from reconciler.importers.langgraph_values import Decoder, Message, NotDecoded, Opaque, messages_of, plain

FORMAT: Final = "langgraph"

_CHECKPOINTS: Final = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint"})
_WRITES: Final = {
    "writes": frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"}),
    "checkpoint_writes": frozenset(
        {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "blob"}
    ),
}
# Versions of the checkpoint's own format whose next nodes can be told.
_BRANCHES_SINCE: Final = 4
_NEXT: Final = "branch:to:"
_TASKS: Final = "__pregel_tasks"
_STOP: Final = {
    "stop": m.STOP_STOP,
    "end_turn": m.STOP_STOP,
    "stop_sequence": m.STOP_STOP,
    "STOP": m.STOP_STOP,
    "completed": m.STOP_STOP,
    "content_filter": m.STOP_STOP,
    "refusal": m.STOP_STOP,
    "length": m.STOP_LENGTH,
    "max_tokens": m.STOP_LENGTH,
    "MAX_TOKENS": m.STOP_LENGTH,
}


@dataclass(slots=True)
class _Checkpoint:
    """A snapshot: where its messages end, and what comes next."""

    checkpoint_id: str
    parent_id: str | None
    source: str | None
    # The entry that its list of messages ends with.
    end: str | None
    # The nodes that are to run; None where that can't be told.
    following: tuple[str, ...] | None
    has_messages: bool
    at: datetime | None
    # What was given to it and isn't applied yet.
    given: list[Message | Opaque] | None = None
    has_given: bool = False


@dataclass(slots=True)
class _Pending:
    """What tasks of the newest checkpoint wrote."""

    messages: list[tuple[str, Message]] = field(default_factory=list)
    errors: list[tuple[str, Any]] = field(default_factory=list)
    interrupts: int = 0
    resumed: bool = False


class LanggraphImporter:
    """Reads LangGraph's checkpoints."""

    format = FORMAT

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away."""
        if set(tables.get("checkpoints", ())) >= _CHECKPOINTS:
            for name, columns in _WRITES.items():
                if columns <= set(tables.get(name, ())):
                    return f'the tables "checkpoints" and "{name}" have thread_id and checkpoint_ns: LangGraph\'s'
        return None

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the threads."""
        for (raw,) in rows.read(
            "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"
        ):
            thread = as_str(raw)
            if thread is not None:
                yield SessionKey((thread,), thread)

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one thread."""
        (thread,) = key.parts
        reading = RowReading(sink)
        work = _Thread(rows, reading, thread)
        work.read()
        session_id = reading.clean_id(thread, "checkpoints", "thread id") or thread
        session = work.session(session_id)
        version = str(work.version) if work.version is not None else None
        return reading.result(FORMAT, version, (session,))


class _Thread:
    def __init__(self, rows: Rows, reading: RowReading, thread: str) -> None:
        self._rows = rows
        self._reading = reading
        self._thread = thread
        self._decoder = Decoder()
        self._entries: dict[str, ImportedEntry] = {}
        # (entry above, message id, digest) to the entry: lists with the same beginning share it.
        self._known: dict[tuple[str | None, str, str], str] = {}
        self._submissions: dict[str, ImportedSubmission] = {}
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._newest: _Checkpoint | None = None
        self._channel: str | None = None
        # Of one blob of the messages' channel: its version and where its list ends.
        self._blob: tuple[str, str | None] | None = None
        self.version: int | None = None
        self._waits: str | None = None
        self._is_unreadable = False

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the checkpoints of the thread, oldest first."""
        kind, data, meta = ("type", "checkpoint", "metadata")
        if self._rows.dialect == "postgresql":
            kind, data, meta = "type", "checkpoint::text", "metadata::text"
        query = (
            f"SELECT checkpoint_id, parent_checkpoint_id, {kind}, {data}, {meta} FROM checkpoints"  # noqa: S608
            " WHERE thread_id = ? AND checkpoint_ns = '' ORDER BY checkpoint_id"
        )
        # All ids sort by time: uuids of version 6.
        for raw_id, raw_parent, raw_kind, raw, raw_meta in self._rows.read(query, self._thread):
            self._take(as_str(raw_id) or "", as_str(raw_parent), as_str(raw_kind), raw, raw_meta)
        below = "SELECT count(*) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns <> ''"
        ((subgraphs,),) = self._rows.read(below, self._thread)
        if subgraphs:
            self._reading.skipped["subgraph checkpoints"] += subgraphs

    def _take(self, checkpoint_id: str, parent_id: str | None, kind: str | None, raw: object, raw_meta: object) -> None:
        place = f"checkpoints/{checkpoint_id}"
        data = as_bytes(raw)
        self._reading.rows_read += 1
        self._reading.bytes_read += len(data or b"")
        try:
            value = self._decoder.typed("json" if self._rows.dialect == "postgresql" else kind, data)
            if not isinstance(value, dict):
                raise NotDecoded("the checkpoint is no object")
        except NotDecoded as error:
            self._unreadable(checkpoint_id, parent_id, str(error), place)
            return
        version = value.get("v")
        self.version = version if isinstance(version, int) else self.version
        if isinstance(version, int) and version > _BRANCHES_SINCE:
            self._reading.problems.add(None, "unknown_version", f"version {version} is newer than 4; read as 4", place)
        meta = self._metadata(raw_meta, place)
        at = instant(value.get("ts"))
        values = value.get("channel_values")
        values = dict(values) if isinstance(values, dict) else {}
        versions = value.get("channel_versions")
        versions = versions if isinstance(versions, dict) else {}
        if self._rows.dialect == "postgresql":
            self._add_blob(values, versions, "__start__", place)
        found = self._messages(values, versions, place)
        given = values.get("__start__")
        parent = self._checkpoints.get(parent_id) if parent_id is not None else None
        checkpoint = _Checkpoint(
            checkpoint_id,
            parent_id,
            as_text(meta.get("source")),
            None,
            _following(values, self.version),
            found is not None,
            at,
            given=_given(given),
            has_given=given is not None,
        )
        if isinstance(found, str):
            # The same blob as before.
            checkpoint.end = found or None
        elif found is not None:
            checkpoint.end = self._walk(found, checkpoint, parent)
            self._remember_blob(versions, checkpoint.end)
        elif parent is not None:
            checkpoint.end = self._state(checkpoint, parent, values)
        elif not checkpoint.has_given:
            checkpoint.end = self._state(checkpoint, None, values)
        self._checkpoints[checkpoint_id] = checkpoint
        self._newest = checkpoint
        self._is_unreadable = False

    def _unreadable(self, checkpoint_id: str, parent_id: str | None, reason: str, place: str) -> None:
        self._reading.problems.add(None, "checkpoint_unreadable", reason, place)
        parent = self._checkpoints.get(parent_id) if parent_id is not None else None
        above = parent.end if parent is not None else None
        line = self._reading.keep({"checkpoint_id": checkpoint_id, "unreadable": reason})
        entry_id = f"checkpoint:{checkpoint_id}"
        entry = m.SessionEntry(
            entry_id,
            above,
            kind=m.KIND_UNREADABLE,
            content=m.CONTENT_NONE,
            submission_id=self._turn_at(above),
        )
        self._entries[entry_id] = ImportedEntry(entry, (line,), None)
        checkpoint = _Checkpoint(checkpoint_id, parent_id, None, entry_id, None, True, None)
        self._checkpoints[checkpoint_id] = checkpoint
        self._newest = checkpoint
        self._blob = None
        self._is_unreadable = True

    def _metadata(self, raw: object, place: str) -> dict[str, Any]:
        data = as_bytes(raw)
        if data is None:
            return {}
        try:
            # The first versions kept it as msgpack, later ones as JSON.
            found = self._decoder.typed("json" if data[:1] == b"{" else "msgpack", data)
        except NotDecoded as error:
            self._reading.problems.add(None, "metadata_unreadable", str(error), place)
            return {}
        return found if isinstance(found, dict) else {}

    def _add_blob(self, values: dict[str, Any], versions: dict[str, Any], channel: str, place: str) -> None:
        """Add the value of a channel that PostgreSQL keeps apart."""
        version = versions.get(channel)
        if channel in values or version is None:
            return
        query = (
            "SELECT type, blob FROM checkpoint_blobs"
            " WHERE thread_id = ? AND checkpoint_ns = '' AND channel = ? AND version = ?"
        )
        for raw_kind, raw in self._rows.read(query, self._thread, channel, str(version)):
            kind = as_str(raw_kind)
            if kind == "empty":
                return
            try:
                values[channel] = self._decoder.typed(kind, as_bytes(raw))
            except NotDecoded as error:
                self._reading.problems.add(None, "value_unreadable", f'channel "{channel}": {error}', place)
                values[channel] = Opaque(str(error))

    def _messages(
        self, values: dict[str, Any], versions: dict[str, Any], place: str
    ) -> list[Message | Opaque] | str | None:
        """Return the messages of a snapshot; where they end, if they are those of the one before; None: it has none."""
        if self._rows.dialect == "postgresql":
            if self._channel is None:
                self._channel = "messages" if "messages" in versions else None
            if self._channel is not None:
                version = versions.get(self._channel)
                if self._blob is not None and version is not None and self._blob[0] == str(version):
                    return self._blob[1] or ""
                self._add_blob(values, versions, self._channel, place)
        names = (
            [self._channel] if self._channel is not None else ["messages", *sorted(k for k in values if k[:2] != "__")]
        )
        for name in names:
            if name not in values:
                continue
            value = values[name]
            if isinstance(value, Opaque):
                self._reading.problems.add(
                    None, "value_unreadable", f'the channel "{name}" holds {value.what}, which is not decoded', place
                )
                return None
            if not isinstance(value, list):
                continue
            found = messages_of(value)
            if found or (found is not None and name == "messages"):
                self._channel = name
                return found
        return None

    def _remember_blob(self, versions: dict[str, Any], end: str | None) -> None:
        version = versions.get(self._channel) if self._channel is not None else None
        self._blob = (str(version), end) if version is not None and self._rows.dialect == "postgresql" else None

    # --- entries ---------------------------------------------------------------------------------------------------

    def _walk(self, found: list[Message | Opaque], checkpoint: _Checkpoint, parent: _Checkpoint | None) -> str | None:
        """Follow a list of messages from its beginning, and add what is new of it."""
        above: str | None = None
        fresh: str | None = None
        for number, message in enumerate(found):
            if isinstance(message, Opaque):
                identity, digest = f"opaque:{number}", message.what
            else:
                raw = as_text(message.fields.get("id"))
                identity, digest = raw or f"message:{number}", message.digest
            key = (above, identity, digest)
            known = self._known.get(key)
            if known is None:
                if isinstance(message, Message) and message.kind == "human" and fresh is None:
                    fresh = self._begin(parent, identity)
                known = self._add(message, identity, above, checkpoint, fresh)
                self._known[key] = known
            above = known
        return above

    def _begin(self, parent: _Checkpoint | None, identity: str) -> str:
        """Return the submission of prompts that are new in a checkpoint: its input's, which is there before them."""
        if parent is not None and (parent.source == "input" or parent.has_given):
            return f"input:{parent.checkpoint_id}"
        return self._reading.clean_id(identity, "messages", "id") or identity

    def _add(
        self,
        message: Message | Opaque,
        identity: str,
        above: str | None,
        checkpoint: _Checkpoint,
        fresh: str | None,
    ) -> str:
        place = f"checkpoints/{checkpoint.checkpoint_id}/{identity}"
        entry_id = self._reading.clean_id(identity, place, "id") or identity
        if entry_id in self._entries:
            # The same message behind another beginning, or changed: another entry.
            entry_id = f"{entry_id}@{checkpoint.checkpoint_id}"
            number = 1
            while entry_id in self._entries:
                number += 1
                entry_id = f"{identity}@{checkpoint.checkpoint_id}:{number}"
        line = self._reading.keep(plain(message))
        turn = self._turn_at(above)
        if isinstance(message, Message) and message.kind == "human":
            # Prompts that came together are one turn's; those of an older snapshot keep theirs.
            turn = fresh if fresh is not None else turn
            if turn is None:
                turn = entry_id
            self._submissions.setdefault(turn, ImportedSubmission(turn, entry_id))
        entry = replace(self._entry(message, entry_id, place), parent_id=above, submission_id=turn)
        self._entries[entry_id] = ImportedEntry(entry, (line,), None, checkpoint.at)
        return entry_id

    def _entry(self, message: Message | Opaque, entry_id: str, place: str) -> m.SessionEntry:
        if isinstance(message, Opaque):
            self._reading.unknown[message.what[:100]] += 1
            return m.SessionEntry(entry_id, kind=m.KIND_CUSTOM, content=m.CONTENT_NONE)
        fields = message.fields
        match message.kind:
            case "human":
                return m.SessionEntry(entry_id, role=m.ROLE_USER)
            case "system":
                return m.SessionEntry(entry_id, role=m.ROLE_SYSTEM)
            case "tool":
                call = self._reading.clean_id(fields.get("tool_call_id"), place, "call id")
                return m.SessionEntry(entry_id, role=m.ROLE_TOOL_RESULT, tool_call_id=call)
            case "ai":
                return self._response(fields, entry_id, place)
            case kind:
                self._reading.unknown[f"message:{kind}"] += 1
                return m.SessionEntry(entry_id, kind=m.KIND_CUSTOM, content=m.CONTENT_NONE)

    def _response(self, fields: dict[str, Any], entry_id: str, place: str) -> m.SessionEntry:
        calls: list[str] = []
        raw = fields.get("tool_calls")
        for call in raw if isinstance(raw, list) else ():
            found = self._reading.clean_id(call.get("id"), place, "call id") if isinstance(call, dict) else None
            calls.append(found if found is not None else f"{entry_id}:{len(calls)}")
        meta = fields.get("response_metadata")
        meta = meta if isinstance(meta, dict) else {}
        finish = next(
            (f for name in ("finish_reason", "stop_reason", "status") if (f := as_text(meta.get(name)))), None
        )
        stop = m.STOP_TOOL_USE if calls else _STOP.get(finish) if finish is not None else None
        return m.SessionEntry(
            entry_id,
            role=m.ROLE_ASSISTANT,
            stop_reason=stop,
            tool_call_ids=tuple(calls),
            content=_content(fields.get("content")),
        )

    def _state(self, checkpoint: _Checkpoint, parent: _Checkpoint | None, values: dict[str, Any]) -> str | None:
        """Add a snapshot that has no messages, of a graph that keeps another state."""
        above = parent.end if parent is not None else None
        if parent is not None and parent.has_given:
            above = self._input(parent)
        if checkpoint.has_given and parent is not None and not parent.has_given:
            # An input that isn't applied yet: what it holds comes later.
            return above
        entry_id = f"checkpoint:{checkpoint.checkpoint_id}"
        line = self._reading.keep(plain(values))
        entry = m.SessionEntry(
            entry_id, above, kind=m.KIND_CUSTOM, content=m.CONTENT_NONE, submission_id=self._turn_at(above)
        )
        self._entries[entry_id] = ImportedEntry(entry, (line,), None, checkpoint.at)
        return entry_id

    def _input(self, checkpoint: _Checkpoint) -> str:
        """Add what was given to a checkpoint, as the prompt that it is."""
        entry_id = f"input:{checkpoint.checkpoint_id}"
        if entry_id not in self._entries:
            line = self._reading.keep(plain(checkpoint.given) if checkpoint.given is not None else {"input": True})
            entry = m.SessionEntry(entry_id, checkpoint.end, role=m.ROLE_USER, submission_id=entry_id)
            self._entries[entry_id] = ImportedEntry(entry, (line,), None, checkpoint.at)
            self._submissions.setdefault(entry_id, ImportedSubmission(entry_id, entry_id))
        return entry_id

    def _turn_at(self, entry_id: str | None) -> str | None:
        return self._entries[entry_id].entry.submission_id if entry_id is not None else None

    # --- where the thread stands -----------------------------------------------------------------------------------

    def session(self, session_id: str) -> ImportedSession:
        """Return the session, standing at its newest checkpoint and what its tasks wrote."""
        leaf = self._newest.end if self._newest is not None else None
        if self._newest is not None and not self._is_unreadable:
            leaf = self._stand(self._newest)
        pending = self._turn_at(leaf)
        return ImportedSession(
            session_id,
            tuple(self._entries.values()),
            leaf,
            leaf is None,
            tuple(replace(s, is_pending=s.submission_id == pending) for s in self._submissions.values()),
            waits_for=self._waits,
        )

    def _stand(self, newest: _Checkpoint) -> str | None:
        leaf = newest.end
        if newest.has_given:
            # Accepted, and not applied: the first step is missing.
            leaf = self._input(newest)
        pending = self._pending(newest)
        if newest.has_given:
            # These are the input itself, on its way into the state.
            pending.messages = [(where, message) for where, message in pending.messages if message.kind != "human"]
        for where, message in pending.messages:
            leaf = self._add_pending(where, message, leaf, newest)
        for where, value in pending.errors:
            leaf = self._add_error(where, value, leaf, newest)
        if pending.interrupts and not pending.resumed:
            self._waits = "an answer to the interrupt of a node"
        self._judge_end(newest, leaf, pending)
        return leaf

    def _pending(self, newest: _Checkpoint) -> _Pending:
        tables = self._rows.tables()
        table = next((name for name, columns in _WRITES.items() if columns <= set(tables.get(name, ()))), None)
        found = _Pending()
        if table is None:
            return found
        value_column = "value" if table == "writes" else "blob"
        query = (
            f"SELECT task_id, idx, channel, type, {value_column} FROM {table}"  # noqa: S608
            " WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ? ORDER BY task_id, idx"
        )
        for raw_task, idx, raw_channel, raw_kind, raw in self._rows.read(query, self._thread, newest.checkpoint_id):
            channel = as_str(raw_channel)
            where = f"{as_str(raw_task)}:{idx}"
            place = f"{table}/{newest.checkpoint_id}/{where}"
            if channel == "__interrupt__":
                found.interrupts += 1
            elif channel == "__resume__":
                found.resumed = True
            elif channel == "__error__" or channel == (self._channel or "messages"):
                try:
                    value = self._decoder.typed(as_str(raw_kind), as_bytes(raw))
                except NotDecoded as error:
                    self._reading.problems.add(None, "value_unreadable", str(error), place)
                    value = Opaque(str(error))
                if channel == "__error__":
                    found.errors.append((where, value))
                    continue
                for number, message in enumerate(messages_of(value) or ()):
                    if isinstance(message, Message) and message.kind != "remove":
                        found.messages.append((f"{where}:{number}", message))
            self._reading.note([where, channel])
        return found

    def _add_pending(self, where: str, message: Message, leaf: str | None, newest: _Checkpoint) -> str:
        entry_id = f"write:{where}"
        line = self._reading.keep(plain(message))
        entry = replace(
            self._entry(message, entry_id, f"writes/{where}"), parent_id=leaf, submission_id=self._turn_at(leaf)
        )
        if entry.role == m.ROLE_USER:
            entry = replace(entry, is_synthetic=True)
        self._entries[entry_id] = ImportedEntry(entry, (line,), None, newest.at)
        return entry_id

    def _add_error(self, where: str, value: Any, leaf: str | None, newest: _Checkpoint) -> str:
        entry_id = f"error:{where}"
        line = self._reading.keep({"error": plain(value)})
        entry = m.SessionEntry(
            entry_id,
            leaf,
            role=m.ROLE_ASSISTANT,
            stop_reason=m.STOP_ERROR,
            content=m.CONTENT_NONE,
            submission_id=self._turn_at(leaf),
        )
        self._entries[entry_id] = ImportedEntry(entry, (line,), None, newest.at)
        return entry_id

    def _judge_end(self, newest: _Checkpoint, leaf: str | None, pending: _Pending) -> None:
        """Let the graph itself say whether its last words are an answer: it knows whether a node follows."""
        if leaf is None or newest.following is None or pending.errors or newest.has_given:
            return
        at = self._entries[leaf]
        entry = at.entry
        over = not newest.following and not pending.messages
        if entry.role == m.ROLE_ASSISTANT and not entry.tool_call_ids:
            stop = entry.stop_reason if over and entry.stop_reason == m.STOP_LENGTH else None
            stop = stop or (m.STOP_STOP if over else m.STOP_TOOL_USE)
            self._entries[leaf] = replace(at, entry=replace(entry, stop_reason=stop))
        elif entry.role == m.ROLE_TOOL_RESULT and over:
            # The graph ended behind its tools: each result of this batch ended it.
            while leaf is not None and (at := self._entries[leaf]).entry.role == m.ROLE_TOOL_RESULT:
                self._entries[leaf] = replace(at, entry=replace(at.entry, ends_turn=True))
                leaf = at.entry.parent_id
        elif entry.kind == m.KIND_CUSTOM and over and not newest.has_messages:
            # A graph without messages has an end all the same.
            self._entries[leaf] = replace(
                at,
                entry=replace(entry, kind=m.KIND_MESSAGE, role=m.ROLE_ASSISTANT, stop_reason=m.STOP_STOP),
            )


def _following(values: dict[str, Any], version: int | None) -> tuple[str, ...] | None:
    """Return the nodes that are to run next; None where the checkpoint's format doesn't tell."""
    if version is None or version < _BRANCHES_SINCE:
        return None
    found = [name.removeprefix(_NEXT) for name in values if name.startswith(_NEXT)]
    if values.get("__start__") is not None:
        found.append("__start__")
    if values.get(_TASKS):
        found.append(_TASKS)
    return tuple(found)


def _given(value: Any) -> list[Message | Opaque] | None:
    """Return the messages of an input."""
    if isinstance(value, dict):
        for item in value.values():
            found = messages_of(item) if isinstance(item, list | Message) else None
            if found:
                return found
    return None


def _content(value: Any) -> str:
    if isinstance(value, str):
        return m.CONTENT_TEXT if value.strip() else m.CONTENT_NONE
    found = m.CONTENT_NONE
    for block in value if isinstance(value, list) else ():
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if not isinstance(block, dict):
            continue
        if block.get("type") in ("reasoning", "thinking", "redacted_thinking", "reasoning_content"):
            found = m.CONTENT_REASONING if found == m.CONTENT_NONE else found
        elif str(block.get("text") or block.get("refusal") or "").strip():
            return m.CONTENT_TEXT
    return found
