"""opencode: its SQLite database (1.2 and newer) and `opencode export`.

Sources: the program's tables and message types; crash runs of 1.18.33. A message is a row and so is each of its parts,
and both are rewritten in place while the model speaks and its tools run: whoever reads again replaces what changed. A
session is linear, by time and id; an assistant message names the prompt it answers. A tool's part goes from pending
(its arguments come in) to running; what was rejected or done stands there as its result. An assistant's message is
there, empty, before the model is asked: without a finish it is open, whatever it holds.

A part that says "pending" does not prove that its tool has not started. The program's loop over the model's events
writes "running" when it comes to the event of the whole call (packages/opencode/src/session/processor.ts, "tool-call"),
but the tool is started by the SDK that makes those events, as the call passes through it, without waiting for the loop
(vercel/ai packages/ai/src/generate-text/run-tools-transformation.ts: the execution is not awaited), and nothing in the
tools waits for the row (prompt.ts, ``execute``). So starts are not logged: what is running has started, what is pending
is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.errors import SourceVersionUnknown
from reconciler.importers.base import (
    NO_MODEL_ERROR_RETRY,
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    PayloadSink,
    Source,
    as_text,
    instant,
    linked,
    payload_text,
)
from reconciler.importers.codex_lines import version_of
from reconciler.importers.foreign_database import RowReading, Rows, SessionKey, as_str, mismatch
from reconciler.importers.reading import JSON_DEPTH_MAX, LINE_BYTES_MAX, LineReader, too_deep

FORMAT: Final = "opencode"
EXPORT_FORMAT: Final = "opencode-export"

# From here on crash runs showed that a part says "running" before its tool does.
_WRITE_AHEAD_SINCE: Final = (1, 18)
_STOP: Final = {
    "stop": m.STOP_STOP,
    "length": m.STOP_LENGTH,
    "content-filter": m.STOP_STOP,
    "other": m.STOP_STOP,
    "tool-calls": m.STOP_TOOL_USE,
    # The program asks the model again.
    "unknown": m.STOP_TOOL_USE,
    "error": m.STOP_ERROR,
}
_REJECTED: Final = "The user rejected permission to use this specific tool call."
_NO_RETRY: Final = frozenset({"ProviderAuthError", "ProviderModelNotFoundError", "ContextOverflowError"})
_PART_KINDS: Final = frozenset(
    {"text", "reasoning", "file", "tool", "step-start", "step-finish", "snapshot", "patch", "agent", "subtask", "retry"}
    | {"compaction"}
)
_NEEDED: Final = {
    "session": {"id", "project_id", "version"},
    "message": {"id", "session_id", "time_created", "data"},
    "part": {"id", "message_id", "data"},
}


@dataclass(slots=True)
class _Node:
    """An entry, with the part it ends with: a revert may cut inside a message."""

    entry: m.SessionEntry
    lines: tuple[int, ...]
    written_at: datetime | None
    message_id: str
    part_id: str | None = None
    write_ahead: bool | None = True


@dataclass(slots=True)
class _Part:
    part_id: str
    data: dict[str, Any]


@dataclass(slots=True)
class _Step:
    """One request to the model: its parts, and the payloads they became."""

    has_text: bool = False
    has_reasoning: bool = False
    tools: list[_Part] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    finish: str | None = None


class OpencodeImporter:
    """Reads opencode's database."""

    format = FORMAT

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away."""
        if _NEEDED.keys() <= tables.keys() and {"project_id", "directory"} <= set(tables["session"]):
            return 'the tables "session" (with project_id and directory), "message" and "part" are opencode\'s'
        return None

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the sessions, oldest first."""
        tables = rows.tables()
        for table, needed in _NEEDED.items():
            lacking = needed - set(tables.get(table, ()))
            if lacking:
                raise mismatch(
                    rows.name,
                    "opencode",
                    f'"{table}" without {", ".join(sorted(lacking))}',
                    "the tables of 1.2 or newer",
                )
        for (raw,) in rows.read("SELECT id FROM session ORDER BY time_created, id"):
            session_id = as_str(raw)
            if session_id:
                yield SessionKey((session_id,), session_id)

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one session."""
        (session_id,) = key.parts
        reading = RowReading(sink)
        tables = rows.tables()
        info = _session_info(rows, tables, session_id, reading)
        build = _Build(reading, info)
        ordered = "SELECT id, time_created, data FROM message WHERE session_id = ? ORDER BY time_created, id"
        for raw_id, created, data in rows.read(ordered, session_id):
            message_id = as_str(raw_id) or ""
            build.message(message_id, created, data, _parts(rows, message_id))
        newer = 0
        if "session_message" in tables:
            ((newer,),) = rows.read("SELECT count(*) FROM session_message WHERE session_id = ?", session_id)
        if newer and not build.nodes:
            raise SourceVersionUnknown(
                f'cannot import "{rows.name}#{session_id}": its messages are in the table "session_message" of a newer'
                " opencode; needed: the tables message and part",
                detail={"found": "session_message", "needed": "message, part"},
                hint="export it with `opencode export`, and import the export",
            )
        if newer:
            reading.unknown["session_message"] += newer
            reading.problems.add(
                None,
                "newer_tables",
                f"{newer} rows are in the table of a newer opencode, and left out",
                "session_message",
            )
        queued = list(_queued(rows, tables, session_id, reading))
        version = as_text(info.get("version"))
        return reading.result(FORMAT, version, (build.session(session_id, queued),))


class OpencodeExportImporter:
    """Reads what `opencode export` wrote: one JSON value."""

    format = EXPORT_FORMAT

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        reader = LineReader(
            source.stream,
            line_bytes_max=LINE_BYTES_MAX,
            progress=source.progress,
            prefix_bytes=source.prefix_bytes,
        )
        chunks: list[bytes] = []
        size = 0
        too_long = False
        for _, data, _ended in reader.lines():
            size += len(data or b"") + 1
            too_long = too_long or data is None or size > LINE_BYTES_MAX
            if not too_long and data is not None:
                chunks.append(data)
        reading = RowReading(source.sink)
        build: _Build | None = None
        if too_long:
            reading.problems.add(1, "line_too_long", f"the export is larger than {LINE_BYTES_MAX} bytes; it is skipped")
        else:
            text = b"\n".join(chunks).decode("utf-8", "surrogateescape")
            chunks.clear()
            build = _export(text, reading)
        sessions: tuple[ImportedSession, ...] = ()
        if build is not None:
            session_id = reading.clean_id(build.info.get("id"), "info", "session id") or source.stem
            if session_id is None:
                session_id = f"opencode:{reader.digest[:32]}"
            sessions = (build.session(session_id, []),)
        return ImportResult(
            EXPORT_FORMAT,
            as_text(build.info.get("version")) if build is not None else None,
            sessions,
            reading.problems.listed(),
            reading.problems.count,
            dict(reading.unknown),
            dict(reading.skipped),
            reader.bytes_read,
            reader.lines_read,
            reader.digest,
            # Lines of this file are no payloads: what an earlier import kept can't be told by their number.
            None,
        )


# --- reading ---------------------------------------------------------------------------------------------------------


def _session_info(
    rows: Rows, tables: dict[str, tuple[str, ...]], session_id: str, reading: RowReading
) -> dict[str, Any]:
    columns = [name for name in ("id", "parent_id", "version", "revert", "permission") if name in tables["session"]]
    found = next(iter(rows.read(f"SELECT {', '.join(columns)} FROM session WHERE id = ?", session_id)), None)  # noqa: S608
    row = dict(zip(columns, found or (), strict=False))
    info: dict[str, Any] = {
        "id": session_id,
        "parentID": as_str(row.get("parent_id")),
        "version": as_str(row.get("version")),
    }
    if row.get("revert") is not None:
        info["revert"] = reading.json(row["revert"], f"session/{session_id}")
    try:
        info["permission"] = json.loads(as_str(row.get("permission")) or "null")
    except (ValueError, RecursionError):
        reading.problems.add(None, "not_json", "the permissions are no JSON", f"session/{session_id}")
    return info


def _parts(rows: Rows, message_id: str) -> Iterator[tuple[str, object]]:
    for raw_id, data in rows.read("SELECT id, data FROM part WHERE message_id = ? ORDER BY id", message_id):
        yield as_str(raw_id) or "", data


def _queued(
    rows: Rows, tables: dict[str, tuple[str, ...]], session_id: str, reading: RowReading
) -> Iterator[ImportedSubmission]:
    """Yield the prompts that were accepted and not applied yet."""
    if not {"id", "session_id", "prompt", "admitted_seq", "promoted_seq"} <= set(tables.get("session_input", ())):
        return
    waiting = (
        "SELECT id, prompt FROM session_input WHERE session_id = ? AND promoted_seq IS NULL ORDER BY admitted_seq, id"
    )
    for raw_id, prompt in rows.read(waiting, session_id):
        place = f"session_input/{as_str(raw_id)}"
        submission_id = reading.clean_id(raw_id, place, "id")
        value = reading.json(prompt, place) or {"prompt": as_str(prompt)}
        reading.note([submission_id, value])
        if submission_id is not None:
            yield ImportedSubmission(submission_id, None, "queued", is_pending=True, payload=payload_text(value))


def _export(text: str, reading: RowReading) -> _Build | None:
    """Read the one value of an export, message by message; what follows a fault is lost."""
    cursor = _Cursor(text)
    info: dict[str, Any] | None = None
    try:
        for key in cursor.names():
            if key == "info":
                found = cursor.value()
                info = found if isinstance(found, dict) else {}
                break
            cursor.value()
    except (ValueError, RecursionError) as error:
        reading.problems.add(1, "not_json", str(error)[:200])
    if info is None:
        reading.problems.add(None, "header_missing", "the export has no info about its session")
        return None
    build = _Build(reading, info)
    cursor = _Cursor(text)
    try:
        for key in cursor.names():
            if key != "messages":
                cursor.value()
                continue
            for value in cursor.items():
                _export_message(value, build, reading)
    except (ValueError, RecursionError) as error:
        reading.problems.add(text.count("\n", 0, cursor.at) + 1, "torn_line", f"the export was cut off: {error}"[:200])
        build.doubt()
    return build


def _export_message(value: object, build: _Build, reading: RowReading) -> None:
    inner = value.get("info") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(inner, dict) or too_deep(value):
        reading.problems.add(
            None, "not_an_object", f"a message is no object with info, or deeper than {JSON_DEPTH_MAX}"
        )
        build.doubt()
        return
    times = inner.get("time")
    created = times.get("created") if isinstance(times, dict) else None
    parts = value.get("parts")
    build.message(
        as_text(inner.get("id")) or "",
        created,
        {key: item for key, item in inner.items() if key not in ("id", "sessionID")},
        (
            (
                as_text(part.get("id")) or "",
                {k: v for k, v in part.items() if k not in ("id", "sessionID", "messageID")},
            )
            for part in (parts if isinstance(parts, list) else ())
            if isinstance(part, dict)
        ),
    )


class _Cursor:
    """Walks over the text of one JSON object without building all of it."""

    _DECODER: Final = json.JSONDecoder(strict=False)

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._space()

    def _space(self) -> None:
        text, at = self._text, self.at
        while at < len(text) and text[at] in " \t\r\n\ufeff":
            at += 1
        self.at = at

    def _expect(self, wanted: str) -> str:
        found = self._text[self.at : self.at + 1]
        if not found or found not in wanted:
            raise ValueError(f'expected "{wanted}" at character {self.at + 1}')
        self.at += 1
        self._space()
        return found

    def value(self) -> object:
        """Return the value that stands here."""
        found, self.at = self._DECODER.raw_decode(self._text, self.at)
        self._space()
        return found

    def names(self) -> Iterator[str]:
        """Yield the keys of an object; the value is taken by the caller in between."""
        self._expect("{")
        while self._text[self.at : self.at + 1] != "}":
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"expected a key at character {self.at + 1}")
            self._expect(":")
            yield key
            if self._text[self.at : self.at + 1] != "}":
                self._expect(",")

    def items(self) -> Iterator[object]:
        """Yield the items of an array."""
        self._expect("[")
        while self._text[self.at : self.at + 1] != "]":
            yield self.value()
            if self._text[self.at : self.at + 1] != "]":
                self._expect(",")
        self._expect("]")


# --- building --------------------------------------------------------------------------------------------------------


class _Build:
    """Turns messages, in order, into entries."""

    def __init__(self, reading: RowReading, info: dict[str, Any]) -> None:
        self._reading = reading
        self.info = info
        self.nodes: list[_Node] = []
        self._ids: set[str] = set()
        self._submissions: dict[str, ImportedSubmission] = {}
        # Message of a user to the submission it belongs to.
        self._turns: dict[str, str | None] = {}
        self._turn: str | None = None
        self._is_child = bool(as_text(info.get("parentID")))
        # A session without a person denies itself the tools that ask one.
        rules = info.get("permission")
        self._has_person = not any(
            isinstance(rule, dict) and rule.get("permission") == "question" and rule.get("action") == "deny"
            for rule in (rules if isinstance(rules, list) else ())
        )
        version = version_of(info.get("version"))
        self._write_ahead = True if version is not None and version >= _WRITE_AHEAD_SINCE else None
        reading.note([info.get("revert"), info.get("parentID"), self._has_person])

    def doubt(self) -> None:
        """Note that something was lost after the last entry: it may have been a call."""
        if self.nodes:
            self.nodes[-1].write_ahead = None

    def message(self, raw_id: str, created: object, data: object, parts: Iterable[tuple[str, object]]) -> None:
        """Take a message with its parts."""
        place = f"message/{raw_id}"
        message_id = self._reading.clean_id(raw_id, place, "id") or f"row:{len(self.nodes)}"
        if message_id in self._ids:
            self._reading.problems.add(None, "duplicate_id", f'the message "{message_id}" stands here twice', place)
            return
        info = self._reading.json(data, place)
        at = instant(created)
        if info is None:
            line = self._reading.keep({"id": message_id, "raw": as_str(data)})
            entry = m.SessionEntry(message_id, kind=m.KIND_UNREADABLE, content=m.CONTENT_NONE)
            self._add(entry, (line,), at, message_id, None, write_ahead=None)
            return
        own = self._reading.keep({"id": message_id, **info})
        kept, lost = self._take_parts(parts)
        if info.get("role") == "user":
            self._user(message_id, info, own, kept, at)
        elif info.get("role") == "assistant":
            self._assistant(message_id, info, own, kept, at)
        else:
            self._reading.unknown[f"message:{str(info.get('role'))[:100]}"] += 1
            entry = m.SessionEntry(message_id, kind=m.KIND_CUSTOM, content=m.CONTENT_NONE)
            self._add(entry, (own, *(self._keep(part) for part in kept)), at, message_id, None)
        if lost:
            self.doubt()

    def _take_parts(self, parts: Iterable[tuple[str, object]]) -> tuple[list[_Part], bool]:
        kept: list[_Part] = []
        lost = False
        for raw_id, data in parts:
            value = self._reading.json(data, f"part/{raw_id}")
            if value is None:
                lost = True
                continue
            kept.append(_Part(self._reading.clean_id(raw_id, f"part/{raw_id}", "id") or f"part:{len(kept)}", value))
        return kept, lost

    def _keep(self, part: _Part) -> int:
        kind = as_text(part.data.get("type"))
        if kind not in _PART_KINDS:
            self._reading.unknown[f"part:{str(kind)[:100]}"] += 1
        return self._reading.keep({"id": part.part_id, **part.data})

    def _add(
        self,
        entry: m.SessionEntry,
        lines: tuple[int, ...],
        at: datetime | None,
        message_id: str,
        part_id: str | None,
        *,
        write_ahead: bool | None = True,
    ) -> None:
        if entry.id in self._ids:
            entry = replace(entry, id=f"{entry.id}:{len(self.nodes)}")
        self._ids.add(entry.id)
        above = self.nodes[-1].entry.id if self.nodes else None
        made = linked(entry, entry.id, above, entry.submission_id or self._turn)
        known = self._write_ahead if write_ahead else None
        self.nodes.append(_Node(made, lines, at, message_id, part_id, known))

    def _user(self, message_id: str, info: dict[str, Any], own: int, parts: list[_Part], at: datetime | None) -> None:
        lines = (own, *(self._keep(part) for part in parts))
        texts = [part.data for part in parts if part.data.get("type") == "text"]
        by_person = any(part.get("synthetic") is not True for part in texts)
        if any(part.data.get("type") == "compaction" for part in parts) and not by_person:
            self._turns[message_id] = self._turn
            entry = m.SessionEntry(message_id, kind=m.KIND_COMPACTION, content=m.CONTENT_NONE)
            self._add(entry, lines, at, message_id, None)
            return
        if texts and not by_person and not any(p.data.get("type") in ("file", "subtask", "agent") for p in parts):
            # The program itself goes on, after a compaction for one.
            self._turns[message_id] = self._turn
            self._add(m.SessionEntry(message_id, role=m.ROLE_USER, is_synthetic=True), lines, at, message_id, None)
            return
        self._turn = self._turns[message_id] = message_id
        kind, role = ("signal", m.ROLE_SIGNAL) if self._is_child else ("prompt", m.ROLE_USER)
        self._submissions[message_id] = ImportedSubmission(message_id, message_id, kind)
        self._add(m.SessionEntry(message_id, role=role), lines, at, message_id, None)

    def _assistant(
        self, message_id: str, info: dict[str, Any], own: int, parts: list[_Part], at: datetime | None
    ) -> None:
        answers = as_text(info.get("parentID"))
        turn = self._turns.get(answers, self._turn) if answers is not None else self._turn
        if turn is None and answers is not None:
            # The prompt is not here: what came of it is.
            turn = self._reading.clean_id(answers, f"message/{message_id}", "parent id")
            if turn is not None:
                self._turns[answers] = turn
                self._submissions.setdefault(turn, ImportedSubmission(turn, None, "cut"))
        if info.get("summary") is True:
            lines = (own, *(self._keep(part) for part in parts))
            entry = m.SessionEntry(message_id, kind=m.KIND_COMPACTION, submission_id=turn, content=m.CONTENT_NONE)
            self._add(entry, lines, at, message_id, None)
            return
        steps = self._steps(parts)
        steps[0].lines.insert(0, own)
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            entry_id = message_id if number == 0 else f"{message_id}:{number}"
            self._step(entry_id, message_id, info, step, turn, at, is_last=last)

    def _steps(self, parts: list[_Part]) -> list[_Step]:
        """Split a message at its steps: older versions kept a whole turn in one."""
        steps = [_Step()]
        begun = False
        for part in parts:
            kind = part.data.get("type")
            if kind == "step-start":
                if begun:
                    steps.append(_Step())
                begun = True
            step = steps[-1]
            if kind == "text":
                step.has_text = step.has_text or bool(str(part.data.get("text") or "").strip())
            elif kind == "reasoning":
                step.has_reasoning = True
            elif kind == "step-finish":
                step.finish = as_text(part.data.get("reason"))
            elif kind == "tool":
                step.tools.append(part)
                # The call as it was made; what became of it stands in entries of its own.
                state = part.data.get("state")
                given = state.get("input") if isinstance(state, dict) else None
                call = {key: part.data.get(key) for key in ("type", "tool", "callID")}
                step.lines.append(self._reading.keep({"id": part.part_id, **call, "input": given}))
                continue
            step.lines.append(self._keep(part))
        return steps

    def _step(
        self,
        entry_id: str,
        message_id: str,
        info: dict[str, Any],
        step: _Step,
        turn: str | None,
        at: datetime | None,
        *,
        is_last: bool,
    ) -> None:
        calls = [
            self._reading.clean_id(part.data.get("callID"), f"part/{part.part_id}", "call id") or part.part_id
            for part in step.tools
        ]
        content = m.CONTENT_TEXT if step.has_text else m.CONTENT_REASONING if step.has_reasoning else m.CONTENT_NONE
        error = info.get("error") if is_last else None
        stop, retryable, stopped_by = self._stop(info, step, error, has_calls=bool(calls), is_last=is_last)
        entry = m.SessionEntry(
            entry_id,
            role=m.ROLE_ASSISTANT,
            submission_id=turn,
            stop_reason=stop,
            tool_call_ids=tuple(calls),
            content=content,
            error_retryable=retryable,
            stopped_by=stopped_by,
        )
        self._add(entry, tuple(step.lines), at, message_id, None)
        for part, call in zip(step.tools, calls, strict=True):
            self._tool(part, call, message_id, turn)

    def _stop(
        self, info: dict[str, Any], step: _Step, error: object, *, has_calls: bool, is_last: bool
    ) -> tuple[str | None, bool | None, str | None]:
        if isinstance(error, dict):
            if error.get("name") == "MessageAbortedError":
                return m.STOP_ABORTED, None, "user" if self._has_person else None
            return m.STOP_ERROR, _retryable(error), None
        finish = (as_text(info.get("finish")) if is_last else None) or step.finish
        if finish is not None:
            known = _STOP.get(finish)
            if known is None:
                self._reading.problems.add(None, "unknown_stop_reason", f'the finish "{finish[:100]}" is not known')
            return known or (m.STOP_TOOL_USE if has_calls else None), None, None
        if has_calls or not is_last:
            return m.STOP_TOOL_USE, None, None
        times = info.get("time")
        if isinstance(times, dict) and times.get("completed") is not None:
            # Older versions kept no finish.
            return (m.STOP_STOP if step.has_text else None), None, None
        # Open: whatever it holds is not all that was to come.
        return m.STOP_ABORTED, None, None

    def _tool(self, part: _Part, call: str, message_id: str, turn: str | None) -> None:
        state = part.data.get("state")
        state = state if isinstance(state, dict) else {}
        status = state.get("status")
        times = state.get("time")
        began = times.get("start") if isinstance(times, dict) else None
        if status == "running" or began is not None:
            whole = {"id": part.part_id, **part.data}
            brief = {"id": part.part_id, "callID": part.data.get("callID"), "start": began}
            entry = m.SessionEntry(
                f"{part.part_id}:started",
                kind=m.KIND_TOOL_STARTED,
                submission_id=turn,
                tool_call_id=call,
                content=m.CONTENT_NONE,
            )
            line = self._reading.keep(whole if status == "running" else brief)
            self._add(entry, (line,), instant(began), message_id, part.part_id)
        if status in ("completed", "error"):
            rejected = status == "error" and state.get("error") == _REJECTED
            entry = m.SessionEntry(
                f"{part.part_id}:result",
                role=m.ROLE_TOOL_RESULT,
                submission_id=turn,
                tool_call_id=call,
                stopped_by="user" if rejected and self._has_person else None,
            )
            line = self._reading.keep({"id": part.part_id, **part.data})
            ended = times.get("end") if isinstance(times, dict) else None
            self._add(entry, (line,), instant(ended), message_id, part.part_id)
        elif status not in ("pending", "running"):
            self._reading.problems.add(
                None, "unknown_state", f'the state "{str(status)[:100]}" is not known', f"part/{part.part_id}"
            )

    # --- the session -----------------------------------------------------------------------------------------------

    def session(self, session_id: str, queued: list[ImportedSubmission]) -> ImportedSession:
        """Return the session."""
        leaf = self._leaf()
        known_empty = leaf is None
        pending = None
        by_id = {node.entry.id: node.entry for node in self.nodes}
        at = by_id.get(leaf) if leaf is not None else None
        while at is not None and pending is None:
            if at.submission_id in self._submissions:
                pending = at.submission_id
            at = by_id.get(at.parent_id) if at.parent_id is not None else None
        # A queued prompt comes after whatever is being worked on.
        submissions = [replace(s, is_pending=s.submission_id == pending) for s in self._submissions.values()]
        taken = set(self._submissions)
        submissions += [submission for submission in queued if submission.submission_id not in taken]
        entries = tuple(ImportedEntry(n.entry, n.lines, n.write_ahead, n.written_at) for n in self.nodes)
        return ImportedSession(session_id, entries, leaf, known_empty, tuple(submissions))

    def _leaf(self) -> str | None:
        """Return the active position: the last entry, or where the person went back to."""
        if not self.nodes:
            return None
        revert = self.info.get("revert")
        message_id = as_text(revert.get("messageID")) if isinstance(revert, dict) else None
        if not isinstance(revert, dict) or message_id is None:
            return self.nodes[-1].entry.id
        part_id = as_text(revert.get("partID"))
        at = next((number for number, node in enumerate(self.nodes) if node.message_id == message_id), None)
        if at is None:
            self._reading.problems.add(None, "missing_leaf", f'the message "{message_id}" of the revert is not here')
            return self.nodes[-1].entry.id
        if part_id is not None:
            # The message itself stays, with what stands in it before the part.
            at += 1
            while at < len(self.nodes) and self.nodes[at].message_id == message_id:
                if (self.nodes[at].part_id or "") >= part_id:
                    break
                at += 1
        return self.nodes[at - 1].entry.id if at > 0 else None


def _retryable(error: dict[str, Any]) -> bool | None:
    """Return False where the error says that the same request can't ever succeed."""
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    if as_text(error.get("name")) in _NO_RETRY or data.get("isRetryable") is False:
        return False
    status = data.get("statusCode")
    return False if isinstance(status, int) and status in NO_MODEL_ERROR_RETRY else None
