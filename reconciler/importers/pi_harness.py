"""pi's newer stores: the harness's JSONL of version 4, and the SQLite backend of the versions before it.

Sources: pi-agent-core 0.87 (session/types, session/values, session/jsonl), and its tables of 0.85. In version 4 a line
is one transaction: a write, or an array of them. Entries form the tree; everything else is values by namespace and key:
where a branch ends, what an operation is at, how it ended, and what was accepted and isn't placed yet. The result of a
call that is ready waits there too, since results are placed in call order. A line without its end is a transaction that
never was.
"""

from __future__ import annotations

import json
import tempfile
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
    Reading,
    Source,
    as_text,
    instant,
    linked,
    parents_first,
    payload_text,
)
from reconciler.importers.foreign_database import RowReading, Rows, SessionKey, as_str
from reconciler.importers.pi import PiFile
from reconciler.importers.pi_messages import message_entry

FORMAT: Final = "pi-harness"
SQLITE_FORMAT: Final = "pi-sqlite"

_STORAGE_VERSION: Final = 1
_KEPT: Final = frozenset({"pi.branch.tip", "pi.lane.state", "pi.op.meta", "pi.op.state", "pi.result"})
_PENDING: Final = "pi.pending.entry"
_FRAMES: Final = "pi.pending.assistant_frame"
_MAIN: Final = "main"
_KINDS: Final = {"compaction": m.KIND_COMPACTION, "branch_summary": m.KIND_BRANCH_SUMMARY}
# How an operation ended: the outcomes that are ours.
_OUTCOMES: Final = {"completed": "completed", "failed": "failed", "aborted": "aborted", "declined": "aborted"}
_FRAMES_MAX: Final = 100_000
_ROWS_MEMORY: Final = 8 * 1024 * 1024


@dataclass(slots=True)
class _Node:
    entry: m.SessionEntry
    key: int
    line: int
    seq: int
    written_at: datetime | None
    # Position in the message's content to the call that stands there.
    calls_at: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Frames:
    """What was kept of a response that is not an entry yet."""

    lines: list[int] = field(default_factory=list)
    has_text: bool = False


class PiHarnessImporter:
    """Reads the harness's JSONL of version 4."""

    format = FORMAT

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        return _File(source).read()


class _File:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._reading = Reading(source)
        self._problems = self._reading.problems
        self._sink = source.sink
        self._header: dict[str, Any] = {}
        self._nodes: dict[str, _Node] = {}
        self._values: dict[tuple[str, str], Any] = {}
        self._pending: dict[str, tuple[int, dict[str, Any]]] = {}
        self._frames: dict[str, _Frames] = {}
        # Of prompts: the operation they began; of operations: how they ended, and when.
        self._operation_of: dict[str, str] = {}
        self._ended: dict[str, tuple[int, int, dict[str, Any]]] = {}
        self._newest_tip: tuple[str | None] | None = None
        self._submissions: dict[str, ImportedSubmission] = {}
        self._key = 0
        self._line = 0

    def read(self) -> ImportResult:
        reading = self._reading
        for line, value, _ in reading.values():
            self._line = line
            if not reading.ended and self._header:
                # Its writer drops a transaction without its end, and so do we.
                self._problems.add(line, "torn_line", "the last transaction was cut off while it was written")
                reading.reader.untake()
                break
            writes = value if isinstance(value, list) else [value]
            if value is not None and not all(isinstance(write, dict) for write in writes):
                self._problems.add(line, "not_an_object", "the transaction holds something that is no write")
            for write in writes:
                if isinstance(write, dict):
                    self._write(line, write)
        sessions = (self._session(),) if self._header or self._nodes else ()
        return ImportResult(
            FORMAT,
            "4",
            sessions,
            self._problems.listed(),
            self._problems.count,
            dict(reading.unknown),
            dict(reading.skipped),
            reading.reader.bytes_read,
            reading.reader.lines_read,
            reading.reader.digest,
            # A line may be several payloads: what an earlier import kept can't be told by line.
            None,
        )

    # --- writes ----------------------------------------------------------------------------------------------------

    def _keep(self, value: object) -> int:
        self._key += 1
        if self._sink.wants_payloads:
            self._sink.payload(self._key, payload_text(value))
        return self._key

    def _write(self, line: int, write: dict[str, Any]) -> None:
        match write.get("kind"):
            case "header":
                self._take_header(line, write)
            case "entry":
                inner = write.get("entry")
                self._entry(line, {**inner, "seq": write.get("seq")} if isinstance(inner, dict) else write)
            case "value":
                self._value(line, write)
            case "list":
                self._list(write)
            case "usage":
                self._reading.skipped["usage"] += 1
            case kind:
                self._reading.unknown[str(kind)[:100]] += 1

    def _take_header(self, line: int, write: dict[str, Any]) -> None:
        if self._header:
            self._problems.add(line, "header_repeated", "the session header stands here again; the first one counts")
            return
        self._header = write
        found = (write.get("v"), write.get("storageVersion"))
        if found != (4, _STORAGE_VERSION):
            self._problems.add(
                line, "unknown_version", f"format {found[0]}, storage {found[1]}: read as 4 and {_STORAGE_VERSION}"
            )

    def _entry(self, line: int, write: dict[str, Any]) -> None:
        entry_id = self._reading.clean_id(write.get("id"), line, "id")
        if entry_id is None:
            self._problems.add(line, "id_missing", "the entry has no id; it is left out")
            self._reading.unknown["entry without an id"] += 1
            return
        if entry_id in self._nodes:
            self._problems.add(line, "duplicate_id", f'the id "{entry_id}" stands on an earlier line, which counts')
            return
        entry, calls_at = self._made(line, write, entry_id, self._reading.link(write.get("parentId")))
        seq = write.get("seq")
        self._nodes[entry_id] = _Node(
            entry,
            self._keep({key: item for key, item in write.items() if key != "kind"}),
            line,
            seq if isinstance(seq, int) and not isinstance(seq, bool) else len(self._nodes),
            instant(write.get("timestamp")),
            calls_at,
        )

    def _made(
        self, line: int, write: dict[str, Any], entry_id: str, parent_id: str | None
    ) -> tuple[m.SessionEntry, dict[int, str]]:
        kind = as_text(write.get("type"))
        message = write.get("message")
        if kind != "message" or not isinstance(message, dict):
            known = _KINDS.get(kind or "", m.KIND_CUSTOM)
            if known == m.KIND_CUSTOM and kind != "custom":
                self._reading.unknown[str(kind)[:100]] += 1
            return m.SessionEntry(entry_id, parent_id, kind=known, content=m.CONTENT_NONE), {}
        entry = message_entry(self._reading, line, message, entry_id, parent_id)
        if entry.role == m.ROLE_TOOL_RESULT and write.get("terminate") is True:
            entry = replace(entry, ends_turn=True)
        blocks = message.get("content")
        places = [
            at
            for at, block in enumerate(blocks if isinstance(blocks, list) else ())
            if isinstance(block, dict) and block.get("type") == "toolCall"
        ]
        return entry, dict(zip(places, entry.tool_call_ids, strict=False))

    def _value(self, line: int, write: dict[str, Any]) -> None:
        namespace, key = as_text(write.get("namespace")) or "", as_text(write.get("key")) or ""
        value = write.get("value")
        is_set = write.get("op") == "set"
        if namespace == _PENDING:
            self._pending.pop(key, None)
            if is_set and isinstance(value, dict):
                self._pending[key] = (line, value)
            return
        if namespace not in _KEPT:
            self._reading.skipped[namespace[:100]] += 1
            return
        if not is_set:
            self._values.pop((namespace, key), None)
            return
        self._values[namespace, key] = value
        if namespace == "pi.branch.tip":
            self._newest_tip = (as_text(value),)
        elif namespace == "pi.op.meta" and isinstance(value, dict):
            intent = value.get("intent")
            prompts = intent.get("promptEntryIds") if isinstance(intent, dict) else None
            for prompt in prompts if isinstance(prompts, list) else ():
                if isinstance(prompt, str) and (operation := self._reading.link(key)):
                    self._operation_of[self._reading.link(prompt) or prompt] = operation
        elif namespace == "pi.result" and isinstance(value, dict):
            seq = write.get("seq")
            self._ended[key] = (line, seq if isinstance(seq, int) else 0, value)

    def _list(self, write: dict[str, Any]) -> None:
        namespace, key = as_text(write.get("namespace")) or "", as_text(write.get("key")) or ""
        if namespace != _FRAMES:
            self._reading.skipped[namespace[:100]] += 1
            return
        if write.get("op") == "delete":
            self._frames.pop(key, None)
            return
        frames = self._frames.setdefault(key, _Frames())
        value = write.get("value")
        if len(frames.lines) < _FRAMES_MAX:
            frames.lines.append(self._keep(value))
        frames.has_text = frames.has_text or _frame_has_text(value)

    # --- the session -----------------------------------------------------------------------------------------------

    def _session(self) -> ImportedSession:
        ids = list(self._nodes)
        order, cycle = parents_first(ids, [node.entry.parent_id for node in self._nodes.values()])
        for at in cycle:
            self._problems.add(self._nodes[ids[at]].line, "parent_cycle", "the entry hangs from a cycle of parents")
        ordered = [self._nodes[ids[at]] for at in (*order, *cycle)]
        for node in ordered:
            parent = node.entry.parent_id
            if parent is not None and parent not in self._nodes:
                self._problems.add(node.line, "missing_parent", f'the parent "{parent}" is not in the file')
        turns = self._stamp(ordered)
        entries = [ImportedEntry(n.entry, (n.key,), True, n.written_at) for n in ordered]
        tip = self._tip()
        known_empty = tip == (None,)
        leaf = tip[0] if tip is not None else (ids[-1] if ids else None)
        if leaf is not None and leaf not in self._nodes:
            self._problems.add(None, "missing_leaf", f'the active position "{leaf}" is not in the file')
        turn = turns.get(leaf) if leaf is not None else None
        pending, waits = list(self._in_flight(leaf, turn)), self._waits()
        self._mark_logged(entries)
        for made in pending:
            entries.append(made)
            leaf = made.entry.id
        entries += self._settlements(leaf)
        submissions = [replace(s, is_pending=s.submission_id == turn) for s in self._submissions.values()]
        submissions += self._queued()
        return ImportedSession(
            self._session_id(), tuple(entries), leaf, known_empty, tuple(submissions), waits_for=waits
        )

    def _tip(self) -> tuple[str | None] | None:
        main = ("pi.branch.tip", _MAIN)
        if main in self._values:
            return (self._reading.link(self._values[main]),)
        return (self._reading.link(self._newest_tip[0]),) if self._newest_tip is not None else None

    def _stamp(self, ordered: list[_Node]) -> dict[str, str | None]:
        """Give every entry its submission: the operation that its prompt began, else the prompt itself."""
        turns: dict[str, str | None] = {}
        fresh: dict[str, bool] = {}
        for node in ordered:
            entry = node.entry
            above = entry.parent_id
            turn = turns.get(above) if above is not None else None
            is_fresh = fresh.get(above, False) if above is not None else False
            if entry.kind == m.KIND_MESSAGE and entry.role == m.ROLE_USER:
                operation = self._operation_of.get(entry.id)
                if operation is not None:
                    turn = operation
                elif turn is None or not (is_fresh or self._was_running(turn, node.seq)):
                    # Before there were operations; what comes into a running one is a person's steering.
                    turn = entry.id
                self._submissions.setdefault(turn, ImportedSubmission(turn, entry.id))
                is_fresh = True
            elif entry.kind == m.KIND_MESSAGE and entry.role in (m.ROLE_ASSISTANT, m.ROLE_TOOL_RESULT):
                is_fresh = False
                if turn is None and above is not None and above not in self._nodes:
                    turn = f"before:{above}"
                    self._submissions.setdefault(turn, ImportedSubmission(turn, None, "cut"))
            turns[entry.id], fresh[entry.id] = turn, is_fresh
            node.entry = linked(entry, entry.id, entry.parent_id, turn)
        return turns

    def _was_running(self, turn: str, seq: int) -> bool:
        if turn not in self._operation_of.values():
            return False
        ended = self._ended.get(turn)
        return ended is None or ended[1] > seq

    def _state(self) -> tuple[str, dict[str, Any]] | None:
        """Return the operation that the main lane is at, and its state."""
        lane = self._values.get(("pi.lane.state", _MAIN))
        if lane is None:
            lane = next((v for (namespace, _), v in self._values.items() if namespace == "pi.lane.state"), None)
        operation = as_text(lane.get("currentOperationId")) if isinstance(lane, dict) else None
        state = self._values.get(("pi.op.state", operation or ""))
        return (operation, state) if operation is not None and isinstance(state, dict) else None

    def _waits(self) -> str | None:
        found = self._state()
        at = as_text(found[1].get("at")) if found is not None else None
        return "an answer that was deferred" if at is not None and at.startswith("deferred.") else None

    def _in_flight(self, leaf: str | None, turn: str | None) -> Iterator[ImportedEntry]:
        """Yield what the operation in progress shows beyond the tree: calls started, results ready, words said."""
        found = self._state()
        if found is None:
            return
        operation, state = found
        if state.get("at") == "tools":
            for made in self._calls(state, operation, leaf, turn):
                yield made
                leaf = made.entry.id
        elif state.get("at") == "assistant.effect_pending":
            response = as_text(state.get("responseEntryId")) or ""
            frames = self._frames.get(f"{operation}:{response}")
            if frames is not None and frames.lines and response not in self._nodes:
                entry = m.SessionEntry(
                    f"partial:{response}",
                    leaf,
                    role=m.ROLE_ASSISTANT,
                    submission_id=turn,
                    stop_reason=m.STOP_ABORTED,
                    content=m.CONTENT_TEXT if frames.has_text else m.CONTENT_NONE,
                )
                yield ImportedEntry(entry, tuple(frames.lines), True)

    def _calls(
        self, state: dict[str, Any], operation: str, leaf: str | None, turn: str | None
    ) -> Iterator[ImportedEntry]:
        batch = state.get("batch")
        calls = batch.get("calls") if isinstance(batch, dict) else None
        message_id = self._reading.link(batch.get("assistantEntryId")) if isinstance(batch, dict) else None
        message = self._nodes.get(message_id) if message_id is not None else None
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, dict) or message is None:
                continue
            at = call.get("sourceIndex")
            call_id = message.calls_at.get(at) if isinstance(at, int) else None
            result_id = self._reading.link(call.get("resultEntryId"))
            if call_id is None or call.get("status") == "planned" or result_id in self._nodes:
                continue
            started = m.SessionEntry(
                f"started:{operation}:{message_id}:{call.get('sourceIndex')}",
                leaf,
                kind=m.KIND_TOOL_STARTED,
                submission_id=turn,
                tool_call_id=call_id,
                content=m.CONTENT_NONE,
            )
            yield ImportedEntry(started, (self._keep(call),), True)
            leaf = started.id
            waiting = self._pending.get(result_id or "")
            payload = waiting[1].get("payload") if waiting is not None else None
            if result_id is not None and waiting is not None and isinstance(payload, dict):
                entry = replace(
                    message_entry(self._reading, waiting[0], payload, result_id, leaf),
                    submission_id=turn,
                    ends_turn=call.get("terminate") is True,
                )
                yield ImportedEntry(entry, (self._keep(waiting[1]),), True)
                leaf = result_id

    def _mark_logged(self, entries: list[ImportedEntry]) -> None:
        """Say of the batch in progress that its starts are kept: a call without one did not start."""
        found = self._state()
        batch = found[1].get("batch") if found is not None and found[1].get("at") == "tools" else None
        message_id = self._reading.link(batch.get("assistantEntryId")) if isinstance(batch, dict) else None
        for at, made in enumerate(entries):
            if made.entry.id == message_id:
                entries[at] = replace(made, entry=replace(made.entry, starts_logged=True))

    def _settlements(self, leaf: str | None) -> Iterator[ImportedEntry]:
        """Yield the outcomes that the store keeps: each ends its operation for good."""
        prompts = set(self._operation_of.values())
        for raw, (line, _, record) in self._ended.items():
            operation = self._reading.link(raw)
            outcome = _OUTCOMES.get(as_text(record.get("status")) or "")
            if operation not in prompts or record.get("kind") not in ("run", None):
                continue
            if outcome is None:
                self._problems.add(
                    line, "unknown_outcome", f'the status "{str(record.get("status"))[:60]}" is not known'
                )
                continue
            tip = self._reading.link(record.get("tipId"))
            entry = m.SessionEntry(
                f"result:{operation}",
                tip if tip in self._nodes else leaf,
                kind=m.KIND_SUBMISSION_SETTLED,
                submission_id=operation,
                content=m.CONTENT_NONE,
            )
            yield ImportedEntry(entry, (self._keep({"outcome": outcome, "record": record}),), True)

    def _queued(self) -> Iterator[ImportedSubmission]:
        """Yield the prompts that were accepted and are not placed yet."""
        for key, (_, value) in self._pending.items():
            payload = value.get("payload")
            entry_id = self._reading.link(key)
            if isinstance(payload, dict) and payload.get("role") == "user" and entry_id not in (None, *self._nodes):
                submission = self._operation_of.get(entry_id or "", entry_id or "")
                if submission not in self._submissions:
                    yield ImportedSubmission(submission, None, "queued", is_pending=True, payload=payload_text(payload))

    def _session_id(self) -> str:
        found = self._reading.clean_id(self._header.get("id"), 1, "session id")
        if found is not None:
            return found
        self._problems.add(None, "header_missing", "the file has no header with an id; its name stands for the id")
        stem = self._source.stem
        if stem is None:
            return f"pi:{self._reading.reader.digest[:32]}"
        return self._reading.clean_id(stem, 1, "session id") or stem


def _frame_has_text(value: object) -> bool:
    """Return whether a frame carries words of the model."""
    if not isinstance(value, dict):
        return False
    kind = as_text(value.get("type")) or ""
    return kind.startswith("text") and any(str(value.get(key) or "").strip() for key in ("delta", "text", "content"))


# --- SQLite ----------------------------------------------------------------------------------------------------------


class PiSqliteImporter:
    """Reads the SQLite backend: entries as in the JSONL of version 3, the active leaf in the session's row."""

    format = SQLITE_FORMAT

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away."""
        entries = set(tables.get("session_entries", ()))
        if {"session_id", "id", "entry_seq", "parent_id", "payload"} <= entries and "active_leaf_id" in tables.get(
            "sessions", ()
        ):
            return 'the tables "sessions" (with active_leaf_id) and "session_entries" are pi\'s SQLite backend'
        return None

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the sessions."""
        for (raw,) in rows.read("SELECT id FROM sessions ORDER BY created_at, id"):
            session_id = as_str(raw)
            if session_id:
                yield SessionKey((session_id,), session_id)

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one session: its rows as lines of the older format, which they are."""
        (session_id,) = key.parts
        notes = RowReading(sink)
        leaf = next(iter(rows.read("SELECT active_leaf_id FROM sessions WHERE id = ?", session_id)), (None,))
        active = as_str(leaf[0])
        with tempfile.SpooledTemporaryFile(max_size=_ROWS_MEMORY) as lines:
            header = {"type": "session", "version": 3, "id": session_id, "active": active}
            lines.write(json.dumps(header).encode() + b"\n")
            ordered = (
                "SELECT id, parent_id, type, timestamp, payload FROM session_entries WHERE session_id = ?"
                " ORDER BY entry_seq"
            )
            for raw_id, parent, kind, stamp, raw in rows.read(ordered, session_id):
                value = notes.json(raw, f"session_entries/{as_str(raw_id)}") or {"raw": as_str(raw)}
                if "message" not in value and "role" in value:
                    value = {"message": value}
                line = {
                    **value,
                    "type": as_str(kind) or value.get("type"),
                    "id": as_str(raw_id),
                    "parentId": as_str(parent),
                    "timestamp": as_str(stamp) if isinstance(stamp, bytes) else stamp,
                }
                lines.write(json.dumps(line).encode() + b"\n")
            lines.seek(0)
            result = PiFile(Source(lines, session_id, sink), active=(active,)).read()  # type: ignore[arg-type]
        problems = (*notes.problems.listed(), *result.problems)
        return replace(
            result,
            format=SQLITE_FORMAT,
            format_version=None,
            problems=problems,
            problem_count=result.problem_count + notes.problems.count,
            prefix_digest=None,
        )
