"""Codex rollouts (JSONL): flat ones of the first versions, event and item pairs, and paginated history.

Sources: see codex_lines.py. There are no ids and no links: the order of the lines is the chain, each line one entry, so
that a growing file only adds. The one thing that goes back is `thread_rolled_back`, which takes the newest prompts with
all that came of them off the path. A turn's id is the submission's; a text that a person sends into a running turn
belongs to it. A message called commentary is no answer, and `task_complete` is no success.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.importers.base import (
    NO_MODEL_ERROR_RETRY,
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    Reading,
    Source,
    as_text,
    instant,
    linked,
)
from reconciler.importers.codex_lines import (
    CLIENT_CALLS,
    EVENTS_SKIPPED,
    HOSTED,
    ITEMS_SKIPPED,
    LINES_SKIPPED,
    RESULTS,
    is_input,
    message_content,
    started_call,
    text_of,
    turn_of,
    user_event,
    version_of,
)

FORMAT: Final = "codex"

# From here on crash runs showed that a call's line is on the disk before its tool runs.
_WRITE_AHEAD_SINCE: Final = (0, 171)
_THREAD_IN_NAME: Final = re.compile(r"rollout-.*-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\Z")
_STATUS: Final = re.compile(r"\bstatus(?: code)?:? (\d{3})\b")


@dataclass(slots=True)
class _Node:
    line: int
    entry: m.SessionEntry
    written_at: datetime | None
    write_ahead: bool | None


class CodexImporter:
    """Reads Codex rollouts."""

    format = FORMAT

    def read(self, source: Source) -> ImportResult:
        """Read the whole stream. Never raises for what stands in it."""
        return _File(source).read()


class _File:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._reading = Reading(source)
        self._problems = self._reading.problems
        self._nodes: list[_Node] = []
        self._ids: set[str] = set()
        self._thread_ids: dict[str, int] = {}
        self._is_agent = False
        self._version: tuple[int, ...] | None = None
        self._versions: dict[str, None] = {}
        self._flat = False
        # The active position, and what a roll-back goes back to: per prompt alive, what it hangs from.
        self._leaf: str | None = None
        self._alive: list[tuple[str, str | None]] = []
        self._turn: str | None = None
        # The turn as the program named it, kept apart from the submission (a file may have neither).
        self._named_turn: str | None = None
        # Prompts since the model last spoke that no event confirmed yet, and events that had no item yet: texts.
        self._unconfirmed: list[str] = []
        self._early: list[str] = []
        # Whether the model said anything that may be an answer since the turn's input.
        self._spoke = False
        self._submissions: dict[str, ImportedSubmission] = {}
        self._open: set[str] = set()

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> ImportResult:
        reading = self._reading
        for line, value, _ in reading.objects():
            if value is None:
                # Whatever was lost here may have been a call.
                self._doubt()
                continue
            self._take(line, value)
        if reading.torn:
            self._doubt()
        sessions = (self._session(),) if self._nodes or self._thread_ids else ()
        return ImportResult(
            FORMAT,
            next(reversed(self._versions), "flat" if self._flat else None),
            sessions,
            self._problems.listed(),
            self._problems.count,
            dict(reading.unknown),
            dict(reading.skipped),
            reading.reader.bytes_read,
            reading.reader.lines_read,
            reading.reader.digest,
            reading.reader.prefix_digest,
        )

    def _doubt(self) -> None:
        if self._nodes:
            self._nodes[-1].write_ahead = None

    def _take(self, line: int, value: dict[str, Any]) -> None:
        kind = as_text(value.get("type"))
        payload = value.get("payload")
        if not isinstance(payload, dict):
            self._take_flat(line, value, kind)
            return
        if kind == "session_meta":
            self._take_meta(line, payload)
            return
        if kind == "turn_context":
            self._turn_named(turn_of(payload))
        if kind in LINES_SKIPPED:
            self._reading.skipped[kind] += 1
        elif kind == "response_item":
            self._item(line, value, payload)
        elif kind == "event_msg":
            self._event(line, value, payload)
        elif kind == "compacted":
            self._add(line, value, m.SessionEntry("", kind=m.KIND_COMPACTION, content=m.CONTENT_NONE))
        else:
            self._unknown(line, value, str(kind))

    def _take_flat(self, line: int, value: dict[str, Any], kind: str | None) -> None:
        """Take a line of the first versions: the item stands bare, the first line is the header."""
        if kind is None and "record_type" in value:
            self._reading.skipped["state"] += 1
        elif kind is None and not self._nodes and "id" in value and "timestamp" in value:
            self._flat = True
            self._take_meta(line, value)
        elif kind is not None:
            self._flat = True
            self._item(line, value, value)
        else:
            self._unknown(line, value, str(kind))

    def _take_meta(self, line: int, payload: dict[str, Any]) -> None:
        """Take the header; it stands here again after each time the session was taken up."""
        thread = self._reading.clean_id(payload.get("id"), line, "thread id")
        if thread is not None:
            self._thread_ids.setdefault(thread, line)
        version = payload.get("cli_version")
        self._version = version_of(version)
        if isinstance(version, str):
            self._versions.pop(version[:50], None)
            self._versions[version[:50]] = None
        origin = payload.get("source")
        if isinstance(origin, dict) and "subagent" in origin:
            self._is_agent = True
        self._reading.skipped["session_meta"] += 1

    def _unknown(self, line: int, value: dict[str, Any], kind: str) -> None:
        self._reading.unknown[kind[:100]] += 1
        self._add(line, value, m.SessionEntry("", kind=m.KIND_CUSTOM, content=m.CONTENT_NONE))

    # --- entries ---------------------------------------------------------------------------------------------------

    def _add(self, line: int, value: dict[str, Any], entry: m.SessionEntry) -> str:
        ordinal = value.get("ordinal")
        entry_id = (
            f"ordinal:{ordinal}" if isinstance(ordinal, int) and not isinstance(ordinal, bool) else f"line:{line}"
        )
        if entry_id in self._ids:
            entry_id = f"line:{line}"
        self._ids.add(entry_id)
        self._reading.keep(line, value)
        made = linked(entry, entry_id, self._leaf, self._turn)
        write_ahead = True if self._version is not None and self._version >= _WRITE_AHEAD_SINCE else None
        self._nodes.append(_Node(line, made, instant(value.get("timestamp")), write_ahead))
        self._leaf = entry_id
        if (
            self._turn is not None
            and self._turn not in self._submissions
            and made.role in (m.ROLE_ASSISTANT, m.ROLE_TOOL_RESULT)
        ):
            # The file lost the prompt of this turn: what came of it is here.
            self._submissions[self._turn] = ImportedSubmission(self._turn, None, "cut")
        return entry_id

    def _turn_named(self, raw: str | None) -> None:
        """Note the turn that the program is in."""
        if raw is None or raw == self._named_turn:
            return
        self._named_turn = raw
        self._turn = self._reading.link(raw)
        self._spoke = False
        self._open.clear()

    def _item(self, line: int, value: dict[str, Any], payload: dict[str, Any]) -> None:
        kind = as_text(payload.get("type"))
        if kind == "message":
            self._message(line, value, payload)
            return
        if kind in RESULTS:
            call = self._reading.clean_id(payload.get("call_id"), line, "call id")
            if call is None and kind == "tool_search_output":
                # The provider searched: nothing was waited for.
                self._reading.skipped[kind] += 1
                return
            self._open.discard(call or "")
            self._add(line, value, m.SessionEntry("", role=m.ROLE_TOOL_RESULT, tool_call_id=call))
            return
        if kind == "reasoning":
            self._said(line, value, m.CONTENT_REASONING, None)
        elif kind in CLIENT_CALLS or (kind == "tool_search_call" and payload.get("execution") == "client"):
            call = self._reading.clean_id(payload.get("call_id") or payload.get("id"), line, "call id")
            if call is None:
                call = f"line:{line}"
                self._problems.add(line, "id_missing", "the call has no id; its line stands for it")
            self._open.add(call)
            entry = m.SessionEntry(
                "",
                role=m.ROLE_ASSISTANT,
                stop_reason=m.STOP_TOOL_USE,
                tool_call_ids=(call,),
                content=m.CONTENT_NONE,
                is_synthetic=False,
            )
            self._add(line, value, entry)
            self._model_spoke()
        elif kind in HOSTED:
            # The provider's own tools run inside the response: it goes on.
            self._said(line, value, m.CONTENT_NONE, m.STOP_TOOL_USE)
        elif kind in ("compaction", "compaction_summary", "context_compaction"):
            self._add(line, value, m.SessionEntry("", kind=m.KIND_COMPACTION, content=m.CONTENT_NONE))
        elif kind == "ghost_snapshot":
            self._reading.skipped[kind] += 1
        else:
            self._unknown(line, value, f"response_item:{kind}")

    def _message(self, line: int, value: dict[str, Any], payload: dict[str, Any]) -> None:
        role = as_text(payload.get("role"))
        if role == "assistant":
            phase = as_text(payload.get("phase"))
            stop = {"final_answer": m.STOP_STOP, "commentary": m.STOP_TOOL_USE}.get(phase or "")
            if phase is not None and stop is None:
                self._problems.add(line, "unknown_phase", f'the phase "{phase[:100]}" is not known')
            self._said(line, value, message_content(payload), stop)
            if stop != m.STOP_TOOL_USE:
                self._spoke = True
        elif role == "user" and is_input(payload):
            text = text_of(payload.get("content"))
            if _take_out(self._early, text):
                # The event stood first; it is the entry.
                self._reading.skipped["user_message"] += 1
                return
            self._input(line, value, turn_of(payload))
            self._unconfirmed.append(text)
        elif role == "user":
            if turn_of(payload) is not None:
                self._turn_named(turn_of(payload))
            self._add(line, value, m.SessionEntry("", role=m.ROLE_USER, is_synthetic=True))
        elif role in ("developer", "system"):
            self._add(line, value, m.SessionEntry("", role=m.ROLE_SYSTEM))
        else:
            self._unknown(line, value, f"message:{role}")

    def _said(self, line: int, value: dict[str, Any], content: str, stop: str | None) -> None:
        self._add(line, value, m.SessionEntry("", role=m.ROLE_ASSISTANT, stop_reason=stop, content=content))
        self._model_spoke()

    def _model_spoke(self) -> None:
        self._unconfirmed.clear()
        self._early.clear()

    def _input(self, line: int, value: dict[str, Any], turn: str | None) -> None:
        if turn is not None:
            self._turn_named(turn)
        above = self._leaf
        if self._named_turn is None:
            # The first versions have no turns: each prompt begins one.
            self._turn = None
        role = m.ROLE_SIGNAL if self._is_agent else m.ROLE_USER
        entry_id = self._add(line, value, m.SessionEntry("", role=role))
        self._alive.append((entry_id, above))
        self._spoke = False
        self._open.clear()
        submission = self._turn
        if submission is None:
            submission = self._turn = entry_id
            self._nodes[-1].entry = replace(self._nodes[-1].entry, submission_id=submission)
        known = self._submissions.get(submission)
        if known is None or known.input_entry_id is None:
            kind = "signal" if self._is_agent else "prompt"
            self._submissions[submission] = ImportedSubmission(submission, entry_id, kind)

    # --- events ----------------------------------------------------------------------------------------------------

    def _event(self, line: int, value: dict[str, Any], payload: dict[str, Any]) -> None:
        kind = as_text(payload.get("type"))
        text = user_event(kind, payload)
        if text is not None:
            self._user_event(line, value, payload, text)
            return
        call = started_call(kind, payload)
        if call is not None:
            call = self._reading.link(call) or call
            if call in self._open:
                # No output so far, and may be none ever: what is left is the proof that it ran.
                self._add(
                    line,
                    value,
                    m.SessionEntry("", kind=m.KIND_TOOL_STARTED, tool_call_id=call, content=m.CONTENT_NONE),
                )
            else:
                self._reading.skipped[str(kind)] += 1
            return
        match kind:
            case "task_started" | "turn_started":
                self._turn_named(turn_of(payload))
                self._reading.skipped["task_started"] += 1
            case "task_complete" | "turn_complete":
                self._turn_over(line, value, payload)
            case "turn_aborted":
                by_person = payload.get("reason") in (None, "interrupted")
                self._end(line, value, m.STOP_ABORTED, stopped_by="user" if by_person else None)
            case "error" | "stream_error":
                if kind == "error":
                    self._end(line, value, m.STOP_ERROR, retryable=_retryable(payload))
                else:
                    self._reading.skipped["stream_error"] += 1
            case "thread_rolled_back":
                self._roll_back(line, value, payload)
            case "item_completed":
                item = payload.get("item")
                inner = as_text(item.get("type")) if isinstance(item, dict) else None
                if inner in ITEMS_SKIPPED or inner is None:
                    self._reading.skipped[f"item_completed:{inner}"] += 1
                else:
                    # An end of something whose result is here, or of a kind that nobody knows.
                    self._reading.unknown[f"item_completed:{inner[:80]}"] += 1
            case _ if kind in EVENTS_SKIPPED or kind is None:
                self._reading.skipped[str(kind)] += 1
            case _:
                self._unknown(line, value, f"event_msg:{kind}")

    def _user_event(self, line: int, value: dict[str, Any], payload: dict[str, Any], text: str) -> None:
        if _take_out(self._unconfirmed, text):
            self._reading.skipped["user_message"] += 1
            return
        if self._unconfirmed:
            # Images and mentions make the two records of one prompt differ.
            self._unconfirmed.pop(0)
            self._reading.skipped["user_message"] += 1
            return
        self._input(line, value, turn_of(payload))
        self._early.append(text)

    def _turn_over(self, line: int, value: dict[str, Any], payload: dict[str, Any]) -> None:
        if payload.get("error"):
            self._end(line, value, m.STOP_ERROR, retryable=_retryable(payload))
            return
        last = self._nodes[-1] if self._nodes else None
        answer = self._last_words()
        if as_text(payload.get("last_agent_message")) and answer is not None:
            # Older versions have no phases: that the turn is over shows only here.
            answer.entry = replace(answer.entry, stop_reason=m.STOP_STOP)
        elif (
            payload.get("last_agent_message") is None
            and not self._spoke
            and last is not None
            and last.entry.submission_id in self._submissions
            and self._submissions[last.entry.submission_id or ""].input_entry_id is not None
        ):
            # A turn that is over without an answer failed, or was ended by a tool; its error isn't in the file.
            self._end(line, value, m.STOP_ERROR, retryable=None)
            return
        self._reading.skipped["task_complete"] += 1

    def _last_words(self) -> _Node | None:
        """Return the turn's last message, where nothing of the model follows it."""
        for node in reversed(self._nodes[-64:]):
            if node.entry.role == m.ROLE_ASSISTANT and node.entry.kind == m.KIND_MESSAGE:
                return node if node.entry.content == m.CONTENT_TEXT and not node.entry.tool_call_ids else None
            if node.entry.role in (m.ROLE_TOOL_RESULT, m.ROLE_SIGNAL):
                return None
        return None

    def _end(
        self,
        line: int,
        value: dict[str, Any],
        stop: str,
        *,
        retryable: bool | None = None,
        stopped_by: str | None = None,
    ) -> None:
        """Note how a turn ended that has no answer: nothing of it is the model's."""
        entry = m.SessionEntry(
            "",
            role=m.ROLE_ASSISTANT,
            stop_reason=stop,
            content=m.CONTENT_NONE,
            error_retryable=retryable,
            stopped_by=stopped_by,
        )
        self._add(line, value, entry)

    def _roll_back(self, line: int, value: dict[str, Any], payload: dict[str, Any]) -> None:
        number = payload.get("num_turns")
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            self._unknown(line, value, "event_msg:thread_rolled_back")
            return
        gone = self._alive[-number:]
        if len(gone) < number:
            self._problems.add(line, "rolled_back_too_far", f"{number} prompts are taken back, {len(gone)} are alive")
        if gone:
            del self._alive[-len(gone) :]
            self._leaf = gone[0][1]
        self._turn = self._named_turn = None
        self._open.clear()
        self._model_spoke()
        self._turn = self._turn_at(self._leaf)
        # The line itself marks the place: it hangs from where the session went back to.
        self._add(line, value, m.SessionEntry("", kind=m.KIND_CUSTOM, content=m.CONTENT_NONE))

    def _turn_at(self, entry_id: str | None) -> str | None:
        return next((n.entry.submission_id for n in reversed(self._nodes) if n.entry.id == entry_id), None)

    # --- the session -----------------------------------------------------------------------------------------------

    def _session(self) -> ImportedSession:
        pending = self._pending()
        last = next(
            (n.entry for n in reversed(self._nodes) if n.entry.role is not None and n.entry.kind == m.KIND_MESSAGE),
            None,
        )
        return ImportedSession(
            self._session_id(),
            tuple(ImportedEntry(n.entry, (n.line,), n.write_ahead, n.written_at) for n in self._nodes),
            self._leaf,
            self._leaf is None,
            tuple(replace(s, is_pending=s.submission_id == pending) for s in self._submissions.values()),
            response_may_grow=last is not None and last.role == m.ROLE_ASSISTANT and last.stop_reason is None,
        )

    def _pending(self) -> str | None:
        """Return the submission that the active position belongs to."""
        turn = self._nodes[-1].entry.submission_id if self._nodes else None
        if turn in self._submissions:
            return turn
        alive = self._alive[-1][0] if self._alive else None
        for node in reversed(self._nodes):
            if node.entry.id == alive:
                return node.entry.submission_id
        return None

    def _session_id(self) -> str:
        stem = self._source.stem
        named = _THREAD_IN_NAME.search(stem) if stem is not None else None
        ids = list(self._thread_ids)
        if len(ids) > 1:
            self._problems.add(
                None, "several_session_ids", f"the file holds headers of {len(ids)} threads: it was forked from another"
            )
        if named is not None and (named[1] in self._thread_ids or not ids):
            return named[1]
        if ids:
            return ids[0]
        self._problems.add(None, "header_missing", "the file has no header with an id; its name stands for the id")
        if stem is None:
            return f"codex:{self._reading.reader.digest[:32]}"
        return self._reading.clean_id(stem, 1, "session id") or stem


def _take_out(texts: list[str], text: str) -> bool:
    wanted = text.strip()
    for index, found in enumerate(texts):
        if found.strip() == wanted:
            del texts[index]
            return True
    return False


def _retryable(payload: dict[str, Any]) -> bool | None:
    """Return False where the error says that the same request can't ever succeed."""
    error = payload.get("error")
    info = error if isinstance(error, dict) else payload
    code = info.get("codex_error_info")
    if isinstance(code, dict):
        for inner in code.values():
            status = inner.get("http_status_code") if isinstance(inner, dict) else None
            if isinstance(status, int) and status in NO_MODEL_ERROR_RETRY:
                return False
    if code in ("bad_request", "unauthorized", "context_window_exceeded", "usage_limit_exceeded", "sandbox_error"):
        return False if code in ("bad_request", "unauthorized") else None
    text = as_text(info.get("message")) or ""
    if "invalid_request_error" in text:
        return False
    status_in_text = _STATUS.search(text[:200])
    return False if status_in_text is not None and int(status_in_text[1]) in NO_MODEL_ERROR_RETRY else None
