"""Flue: its SQL tables, conversation streams and submissions.

Sources: the runtime 2.1 (conversation records and their reducer, the submission store). A stream is a sequence of
batches of records, for one or several conversations; folding the records gives the entries. Submissions have rows of
their own, and their outcome is written in two steps: into the row, then as a record of the stream. An outcome in either
of them is final. Deltas of a response are kept, so that a response that was cut off still shows what was said. A call
is durable before it runs, and so is what came of it, before the batch is committed; nothing says that a call was begun.
"""

from __future__ import annotations

import json
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
    linked,
    payload_text,
)
from reconciler.importers.foreign_database import RowReading, Rows, SessionKey, as_str, mismatch
from reconciler.importers.reading import decode_line

FORMAT: Final = "flue"

_FORMAT_VERSION: Final = "1"
_STREAMS: Final = "flue_conversation_streams"
_BATCHES: Final = "flue_conversation_stream_batches"
_CHUNKS: Final = "flue_conversation_stream_batch_chunks"
_ROWS: Final = "flue_agent_submissions"
_SESSION_PREFIX: Final = "agent-session:"
_STOP: Final = {
    "stop": m.STOP_STOP,
    "length": m.STOP_LENGTH,
    "toolUse": m.STOP_TOOL_USE,
    "error": m.STOP_ERROR,
    "aborted": m.STOP_ABORTED,
}
_OUTCOMES: Final = frozenset({"completed", "failed", "aborted"})
_SKIPPED: Final = frozenset(
    {"child_session_retained", "state_write", "agent_start_run", "agent_finish_cycle", "message_data_write"}
    | {"message_metadata", "resource_snapshot", "assistant_text_started", "assistant_text_completed"}
    | {"assistant_reasoning_started", "assistant_reasoning_completed"}
)
_ROW_COLUMNS: Final = (
    "submission_id",
    "session_key",
    "status",
    "payload",
    "error",
    "abort_requested_at",
    "settlement_record",
)
_UNSETTLED: Final = frozenset({"queued", "running", "joining", "joined"})


@dataclass(slots=True)
class _Node:
    entry: m.SessionEntry
    lines: tuple[int, ...]
    written_at: datetime | None


@dataclass(slots=True)
class _Response:
    """A response whose records are still coming."""

    message_id: str
    submission_id: str | None
    lines: list[int]
    at: datetime | None
    calls: list[str] = field(default_factory=list)
    has_text: bool = False
    has_reasoning: bool = False


@dataclass(slots=True)
class _Conversation:
    conversation_id: str
    # Of the session that it is: harness and session by name.
    names: tuple[str | None, str | None] = (None, None)
    is_root: bool = True
    nodes: dict[str, _Node] = field(default_factory=dict)
    leaf: str | None = None
    open: dict[str, _Response] = field(default_factory=dict)
    inputs: dict[str, ImportedSubmission] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    turn: str | None = None


class FlueImporter:
    """Reads Flue's tables."""

    format = FORMAT

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away."""
        return (
            f'the tables "{_STREAMS}" and "{_BATCHES}" are Flue\'s' if {_STREAMS, _BATCHES} <= tables.keys() else None
        )

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the streams; each may hold several conversations."""
        tables = rows.tables()
        found = None
        if "flue_meta" in tables:
            for key, value in rows.read("SELECT key, value FROM flue_meta"):
                if as_str(key) in ("format_version", "schema_version"):
                    found = as_str(value)
        if found != _FORMAT_VERSION:
            raise mismatch(
                rows.name, "Flue", f"format_version {found or 'nowhere'}", f"format_version {_FORMAT_VERSION}"
            )
        lacking = {"path", "seq", "data"} - set(tables[_BATCHES])
        if lacking:
            raise mismatch(
                rows.name, "Flue", f'"{_BATCHES}" without {", ".join(sorted(lacking))}', "all of its columns"
            )
        for (raw,) in rows.read(f"SELECT path FROM {_STREAMS} ORDER BY path"):  # noqa: S608
            path = as_str(raw)
            if path:
                yield SessionKey((path,), path)

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one stream."""
        (path,) = key.parts
        reading = RowReading(sink)
        stream = _Stream(rows, reading, path)
        stream.read()
        return reading.result(FORMAT, _FORMAT_VERSION, tuple(stream.sessions()))


class _Stream:
    def __init__(self, rows: Rows, reading: RowReading, path: str) -> None:
        self._rows = rows
        self._reading = reading
        self._path = path
        self._tables = rows.tables()
        self._conversations: dict[str, _Conversation] = {}
        self._seen: set[str] = set()

    # --- records ---------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Fold the records of the stream."""
        column = "data::text" if self._rows.dialect == "postgresql" else "data"
        query = f"SELECT seq, {column} FROM {_BATCHES} WHERE path = ? ORDER BY seq"  # noqa: S608
        for seq, raw in self._rows.read(query, self._path):
            place = f"{_BATCHES}/{self._path}/{seq}"
            for record in self._batch(seq, raw, place):
                self._take(record, place)

    def _batch(self, seq: Any, raw: object, place: str) -> list[dict[str, Any]]:
        data = (as_str(raw) or "").encode("utf-8", "surrogateescape")
        if data.startswith(b"{"):
            # A large batch is in chunks.
            chunks = [
                (as_str(part) or "").encode("utf-8", "surrogateescape")
                for (part,) in self._rows.read(
                    f"SELECT data FROM {_CHUNKS} WHERE path = ? AND seq = ? ORDER BY chunk_index",  # noqa: S608
                    self._path,
                    seq,
                )
            ]
            wanted = decode_line(data).value
            if not isinstance(wanted, dict) or wanted.get("$flueChunkCount") != len(chunks):
                self._lost(place, f"the batch is in {len(chunks)} chunks, and they are not all of it")
                return []
            data = b"".join(chunks)
        self._reading.rows_read += 1
        self._reading.bytes_read += len(data)
        decoded = decode_line(data)
        for code, message in decoded.remarks:
            self._reading.problem(place, code, message)
        if not isinstance(decoded.value, list):
            self._lost(place, "the batch is no array of records")
            return []
        return [record for record in decoded.value if isinstance(record, dict)]

    def _lost(self, place: str, message: str) -> None:
        """Keep the place of records that can't be read, in every conversation of the stream."""
        self._reading.problem(place, "batch_unreadable", message)
        for conversation in self._conversations.values():
            line = self._reading.keep({"unreadable": place})
            entry = m.SessionEntry(f"unreadable:{place}", kind=m.KIND_UNREADABLE, content=m.CONTENT_NONE)
            self._add(conversation, entry, (line,), None, conversation.turn)

    def _take(self, record: dict[str, Any], place: str) -> None:
        kind = as_text(record.get("type")) or ""
        record_id = as_text(record.get("id"))
        if record_id is not None:
            if record_id in self._seen:
                # Appended again after the answer got lost.
                self._reading.skipped["repeated record"] += 1
                return
            self._seen.add(record_id)
        conversation_id = self._reading.clean_id(record.get("conversationId"), place, "conversation id")
        if conversation_id is None:
            self._reading.unknown[f"{kind[:80]} without a conversation"] += 1
            return
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            conversation = self._conversations[conversation_id] = _Conversation(conversation_id)
            conversation.names = (as_text(record.get("harness")), as_text(record.get("session")))
        if kind in _SKIPPED:
            self._reading.skipped[kind] += 1
            return
        at = instant(record.get("timestamp"))
        submission = self._reading.clean_id(record.get("submissionId"), place, "submission id")
        match kind:
            case "conversation_created":
                conversation.is_root = record.get("kind") in ("root", None)
                self._reading.skipped[kind] += 1
            case "user_message" | "signal":
                self._input(conversation, record, submission, at, place, is_signal=kind == "signal")
            case "assistant_message_started":
                message_id = self._reading.clean_id(record.get("messageId"), place, "message id")
                if message_id is not None:
                    line = self._reading.keep(record)
                    conversation.open[message_id] = _Response(message_id, submission, [line], at)
            case "assistant_text_delta" | "assistant_reasoning_delta" | "assistant_tool_call":
                self._piece(conversation, record, kind, place)
            case "assistant_message_completed":
                self._completed(conversation, record, place)
            case "tool_outcome":
                self._outcome(conversation, record, submission, at, place)
            case "tool_results_committed":
                # What it commits stands here already, each with its outcome.
                self._reading.skipped[kind] += 1
            case "tool_step_settled":
                self._step(conversation, record, submission, at, place)
            case "compaction":
                entry_id = self._reading.clean_id(record.get("entryId"), place, "entry id") or f"compaction:{place}"
                entry = m.SessionEntry(entry_id, kind=m.KIND_COMPACTION, content=m.CONTENT_NONE)
                self._add(conversation, entry, (self._reading.keep(record),), at, conversation.turn)
            case "submission_settled":
                self._settled(conversation, record, submission, record_id, at, place)
            case _:
                self._reading.unknown[kind[:100]] += 1
                entry = m.SessionEntry(
                    f"record:{record_id or len(conversation.nodes)}", kind=m.KIND_CUSTOM, content=m.CONTENT_NONE
                )
                self._add(conversation, entry, (self._reading.keep(record),), at, conversation.turn)

    def _add(
        self,
        conversation: _Conversation,
        entry: m.SessionEntry,
        lines: tuple[int, ...],
        at: datetime | None,
        submission: str | None,
    ) -> None:
        """Append an entry: the stream itself is linear."""
        if entry.id in conversation.nodes:
            self._reading.problem(
                entry.id, "duplicate_id", f'the entry "{entry.id}" stands here twice; the first counts'
            )
            return
        made = linked(entry, entry.id, conversation.leaf, submission)
        conversation.nodes[entry.id] = _Node(made, lines, at)
        conversation.leaf = entry.id

    def _input(
        self,
        conversation: _Conversation,
        record: dict[str, Any],
        submission: str | None,
        at: datetime | None,
        place: str,
        *,
        is_signal: bool,
    ) -> None:
        message_id = self._reading.clean_id(record.get("messageId"), place, "message id")
        if message_id is None:
            self._reading.problem(place, "id_missing", "the message has no id; it is left out")
            return
        self._cut_off(conversation)
        # Signals of the runtime itself (a response was interrupted, and goes on) are no input.
        is_input = not is_signal or "_input_" in (as_text(record.get("id")) or "")
        turn = submission if submission is not None else (message_id if is_input else conversation.turn)
        entry = m.SessionEntry(message_id, role=m.ROLE_SIGNAL if is_signal else m.ROLE_USER, is_synthetic=not is_input)
        self._add(conversation, entry, (self._reading.keep(record),), at, turn)
        if is_input and turn is not None:
            conversation.turn = turn
            kind = "signal" if is_signal or not conversation.is_root else "prompt"
            conversation.inputs.setdefault(turn, ImportedSubmission(turn, message_id, kind))

    def _piece(self, conversation: _Conversation, record: dict[str, Any], kind: str, place: str) -> None:
        response = conversation.open.get(self._reading.clean_id(record.get("messageId"), place, "message id") or "")
        if response is None:
            self._reading.problem(place, "response_missing", f"a {kind} belongs to no response that was started")
            return
        response.lines.append(self._reading.keep(record))
        if kind == "assistant_tool_call":
            call = self._reading.clean_id(record.get("toolCallId"), place, "call id")
            response.calls.append(call if call is not None else f"{response.message_id}:{len(response.calls)}")
            return
        has_words = any(str(record.get(key) or "").strip() for key in ("delta", "text"))
        if kind == "assistant_text_delta":
            response.has_text = response.has_text or has_words
        else:
            response.has_reasoning = response.has_reasoning or has_words

    def _completed(self, conversation: _Conversation, record: dict[str, Any], place: str) -> None:
        response = conversation.open.pop(
            self._reading.clean_id(record.get("messageId"), place, "message id") or "", None
        )
        if response is None:
            self._reading.problem(place, "response_missing", "a response ends that was not started")
            return
        raw = record.get("stopReason")
        stop = _STOP.get(raw) if isinstance(raw, str) else None
        if stop is None:
            stop = m.STOP_TOOL_USE if response.calls else None
            self._reading.problem(place, "unknown_stop_reason", f'the stop reason "{str(raw)[:100]}" is not known')
        response.lines.append(self._reading.keep(record))
        self._respond(conversation, response, stop)

    def _respond(self, conversation: _Conversation, response: _Response, stop: str | None) -> None:
        entry = m.SessionEntry(
            response.message_id,
            role=m.ROLE_ASSISTANT,
            stop_reason=stop,
            tool_call_ids=tuple(response.calls),
            content=m.CONTENT_TEXT
            if response.has_text
            else m.CONTENT_REASONING
            if response.has_reasoning
            else m.CONTENT_NONE,
            # Calls run when their message is complete: those of one that isn't were never begun.
            starts_logged=stop in (m.STOP_ERROR, m.STOP_ABORTED) and bool(response.calls),
        )
        submission = response.submission_id if response.submission_id is not None else conversation.turn
        if submission is not None and submission not in conversation.inputs:
            conversation.inputs[submission] = ImportedSubmission(submission, None, "cut")
        self._add(conversation, entry, tuple(response.lines), response.at, submission)

    def _cut_off(self, conversation: _Conversation) -> None:
        """Close what was never completed: the next thing was said without it."""
        for response in list(conversation.open.values()):
            self._respond(conversation, response, m.STOP_ABORTED)
        conversation.open.clear()

    def _outcome(
        self,
        conversation: _Conversation,
        record: dict[str, Any],
        submission: str | None,
        at: datetime | None,
        place: str,
    ) -> None:
        call = self._reading.clean_id(record.get("toolCallId"), place, "call id")
        message = as_text(record.get("assistantMessageId")) or ""
        entry = m.SessionEntry(
            f"result:{message}:{call}",
            role=m.ROLE_TOOL_RESULT,
            tool_call_id=call,
            ends_turn=record.get("terminate") is True,
        )
        above = conversation.nodes.get(message)
        turn = submission or (above.entry.submission_id if above is not None else conversation.turn)
        self._add(conversation, entry, (self._reading.keep(record),), at, turn)

    def _step(
        self,
        conversation: _Conversation,
        record: dict[str, Any],
        submission: str | None,
        at: datetime | None,
        place: str,
    ) -> None:
        """Take a step of a tool: whatever became of the tool, it was begun."""
        call = self._reading.clean_id(record.get("toolCallId"), place, "call id")
        entry = m.SessionEntry(
            f"step:{as_text(record.get('id')) or len(conversation.nodes)}",
            kind=m.KIND_TOOL_STARTED,
            tool_call_id=call,
            content=m.CONTENT_NONE,
        )
        self._add(conversation, entry, (self._reading.keep(record),), at, submission or conversation.turn)

    def _settled(
        self,
        conversation: _Conversation,
        record: dict[str, Any],
        submission: str | None,
        record_id: str | None,
        at: datetime | None,
        place: str,
    ) -> None:
        outcome = as_text(record.get("outcome"))
        if submission is None or outcome not in _OUTCOMES:
            self._reading.problem(place, "unknown_outcome", f'a settlement with the outcome "{str(outcome)[:60]}"')
            return
        self._cut_off(conversation)
        conversation.settled.add(submission)
        entry = m.SessionEntry(
            f"settled:{record_id or submission}", kind=m.KIND_SUBMISSION_SETTLED, content=m.CONTENT_NONE
        )
        self._add(conversation, entry, (self._reading.keep(record),), at, submission)

    # --- rows ------------------------------------------------------------------------------------------------------

    def sessions(self) -> Iterator[ImportedSession]:
        """Yield the conversations of the stream, each with the submissions that are its own."""
        rows = list(self._submission_rows())
        for conversation in self._conversations.values():
            self._cut_off(conversation)
            queued: list[ImportedSubmission] = []
            for row in rows:
                if row["names"] == conversation.names:
                    queued += self._row(conversation, row)
            yield self._session(conversation, queued)

    def _submission_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of this stream's submissions, in the order of their admission."""
        if not {"submission_id", "session_key", "status"} <= set(self._tables.get(_ROWS, ())):
            return
        names = [name for name in _ROW_COLUMNS if name in self._tables[_ROWS]]
        columns = [f"{name}::text" for name in names] if self._rows.dialect == "postgresql" else names
        query = f"SELECT {', '.join(columns)} FROM {_ROWS} ORDER BY sequence"  # noqa: S608
        for values in self._rows.read(query):
            row: dict[str, Any] = dict(zip(names, values, strict=True))
            path, session = _session_of(as_str(row["session_key"]))
            if path == self._path:
                row["names"] = session
                yield row

    def _row(self, conversation: _Conversation, row: dict[str, Any]) -> Iterator[ImportedSubmission]:
        raw = as_str(row["submission_id"])
        place = f"{_ROWS}/{raw}"
        submission = self._reading.clean_id(raw, place, "submission id")
        status = as_str(row["status"])
        if submission is None:
            return
        self._reading.note([submission, status])
        if status in _UNSETTLED:
            if submission not in conversation.inputs:
                payload = self._reading.json(row.get("payload"), place) or {}
                yield ImportedSubmission(submission, None, "queued", is_pending=True, payload=payload_text(payload))
            return
        if status not in ("settled", "terminalizing"):
            self._reading.problem(place, "unknown_state", f'the status "{str(status)[:60]}" is not known')
            return
        if submission in conversation.settled or submission not in conversation.inputs:
            return
        # The outcome stands in the row, and not in the stream yet, or never.
        outcome = self._row_outcome(row, place)
        entry = m.SessionEntry(f"settled-row:{submission}", kind=m.KIND_SUBMISSION_SETTLED, content=m.CONTENT_NONE)
        line = self._reading.keep({"outcome": outcome, "status": status, "error": as_str(row.get("error"))})
        leaf = conversation.leaf
        self._add(conversation, entry, (line,), None, submission)
        # It is no part of the stream: what the stream says next doesn't hang from it.
        conversation.leaf = leaf

    def _row_outcome(self, row: dict[str, Any], place: str) -> str:
        record = row.get("settlement_record")
        if record is not None:
            found = self._reading.json(record, place)
            if found is not None and as_text(found.get("outcome")) in _OUTCOMES:
                return str(found["outcome"])
        if row.get("error") is None:
            return "completed"
        return "aborted" if row.get("abort_requested_at") is not None else "failed"

    def _session(self, conversation: _Conversation, queued: list[ImportedSubmission]) -> ImportedSession:
        at = conversation.leaf
        pending: str | None = None
        while at is not None and pending is None:
            entry = conversation.nodes[at].entry
            if entry.submission_id in conversation.inputs:
                pending = entry.submission_id
            at = entry.parent_id
        submissions = [replace(s, is_pending=s.submission_id == pending) for s in conversation.inputs.values()]
        return ImportedSession(
            conversation.conversation_id,
            tuple(ImportedEntry(n.entry, n.lines, True, n.written_at) for n in conversation.nodes.values()),
            conversation.leaf,
            conversation.leaf is None,
            (*submissions, *queued),
        )


def _session_of(key: str | None) -> tuple[str | None, tuple[str | None, str | None]]:
    """Return the stream that a session's key belongs to, and the names of its harness and session."""
    if key is None or not key.startswith(_SESSION_PREFIX):
        return None, (None, None)
    try:
        parts = json.loads(key.removeprefix(_SESSION_PREFIX))
    except (ValueError, RecursionError):
        return None, (None, None)
    if not isinstance(parts, list) or len(parts) != 4 or not all(isinstance(part, str) for part in parts):
        return None, (None, None)
    return f"agents/{parts[0]}/{parts[1]}", (parts[2], parts[3])
