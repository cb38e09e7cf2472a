"""Google ADK: the tables of `DatabaseSessionService` (schema versions 0 and 1) and `SqliteSessionService`.

Sources: ADK 2.13 and crash runs of it. A row is an event; a session is a line of them by time, and a rewind takes off
the line all that came since an invocation. An event with calls is committed before they run; the results of a parallel
batch come in one event, after the last of them. Version 0 keeps what an event did (`actions`) pickled: that column is
never read, so that rewinds of such a session can't be seen. The column of times is local and repeats when clocks go
back; the event's own time stamp is taken where it has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from reconciler.core import model as m
from reconciler.importers.base import (
    NO_MODEL_ERROR_RETRY,
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    PayloadSink,
    as_text,
)
from reconciler.importers.foreign_database import RowReading, Rows, SessionKey, as_str, mismatch
from reconciler.importers.reading import too_deep

FORMAT: Final = "google-adk"

_KEYS: Final = frozenset({"id", "app_name", "user_id", "session_id", "invocation_id", "timestamp"})
# Of version 0, without `actions`: it is pickled, and nothing here unpickles.
_V0_TEXTS: Final = ("author", "branch", "error_code", "error_message")
_V0_FLAGS: Final = ("partial", "turn_complete", "interrupted")
_V0_JSON: Final = ("content", "long_running_tool_ids_json", "custom_metadata", "usage_metadata")
_FINISH: Final = {
    "STOP": m.STOP_STOP,
    "MAX_TOKENS": m.STOP_LENGTH,
    # The provider refused to go on: that is its answer.
    "SAFETY": m.STOP_STOP,
    "RECITATION": m.STOP_STOP,
    "BLOCKLIST": m.STOP_STOP,
    "PROHIBITED_CONTENT": m.STOP_STOP,
    "SPII": m.STOP_STOP,
}
_CONFIRMATIONS: Final = frozenset({"adk_request_confirmation", "adk_request_credential", "adk_request_input"})


@dataclass(slots=True)
class _Event:
    """An event, before it is linked."""

    event_id: str
    invocation_id: str | None
    at: float
    line: int
    place: str
    author: str | None = None
    kind: str = m.KIND_CUSTOM
    role: str | None = None
    stop: str | None = None
    content: str = m.CONTENT_NONE
    calls: tuple[str, ...] = ()
    results: tuple[str | None, ...] = ()
    waiting: tuple[str, ...] = ()
    ends_turn: bool = False
    error_retryable: bool | None = None
    stopped_by: str | None = None
    branch: str | None = None
    rewind_before: str | None = None
    entry_ids: list[str] = field(default_factory=list)
    is_sidechain: bool = False


class GoogleAdkImporter:
    """Reads session tables of Google ADK."""

    format = FORMAT

    def recognise(self, tables: dict[str, tuple[str, ...]]) -> str | None:
        """Return what gives the format away."""
        events, sessions = set(tables.get("events", ())), set(tables.get("sessions", ()))
        if events >= _KEYS and {"app_name", "user_id", "id", "state"} <= sessions:
            return 'the tables "sessions" and "events" have app_name, user_id and invocation_id, as ADK makes them'
        return None

    def sessions(self, rows: Rows) -> Iterator[SessionKey]:
        """Yield the sessions by application, user and id."""
        _version(rows)
        for row in rows.read("SELECT app_name, user_id, id FROM sessions ORDER BY app_name, user_id, id"):
            parts = tuple(as_str(part) or "" for part in row)
            # Ids are unique within an application and a user only.
            yield SessionKey(parts, "/".join(_quoted(part) for part in parts))

    def read(self, rows: Rows, key: SessionKey, sink: PayloadSink) -> ImportResult:
        """Read one session."""
        version = _version(rows)
        reading = RowReading(sink)
        events = list(_v1(rows, key, reading) if version == "1" else _v0(rows, key, reading))
        # By time, then as they were inserted; a sort keeps the latter.
        events.sort(key=lambda event: event.at)
        session_id = reading.clean_id(key.label, "sessions", "session id") or key.label
        return reading.result(FORMAT, version, (_Line(reading, events).session(session_id),))


def _quoted(part: str) -> str:
    """Return a part of a session's id, in which no slash can be taken for another part's beginning."""
    return quote(part.encode("utf-8", "surrogateescape"), safe=" :@+,=~!$&'()*")


def _version(rows: Rows) -> str:
    """Return the schema's version.

    Raises:
        SourceVersionUnknown: it is none of 0 and 1, or half of each.
    """
    tables = rows.tables()
    events = set(tables.get("events", ()))
    found: str | None = None
    if {"key", "value"} <= set(tables.get("adk_internal_metadata", ())):
        key = '"key"'
        for (raw,) in rows.read(f"SELECT value FROM adk_internal_metadata WHERE {key} = 'schema_version'"):  # noqa: S608
            found = as_str(raw)
    if found not in (None, "0", "1"):
        raise mismatch(rows.name, "ADK", f"schema_version {found}", "0 or 1")
    has = "event_data" in events, {"content", "author"} <= events
    match has, found:
        case (True, False), _:
            return "1"
        case (False, True), (None | "0"):
            return "0"
        case (True, True), _:
            raise mismatch(rows.name, "ADK", "columns of version 0 and of version 1 in one table", "either of them")
        case _:
            raise mismatch(rows.name, "ADK", '"events" with neither event_data nor content', "schema version 0 or 1")


def _v1(rows: Rows, key: SessionKey, reading: RowReading) -> Iterator[_Event]:
    postgresql = rows.dialect == "postgresql"
    data, stamp, order = (
        ("event_data::text", "extract(epoch FROM timestamp)::float8", "timestamp, id")
        if postgresql
        else ("event_data", "timestamp", "timestamp, rowid")
    )
    query = (
        f"SELECT id, invocation_id, {stamp}, {data} FROM events"  # noqa: S608
        f" WHERE app_name = ? AND user_id = ? AND session_id = ? ORDER BY {order}"
    )
    for raw_id, invocation, timestamp, raw in rows.read(query, *key.parts):
        event_id = as_str(raw_id) or ""
        place = f"events/{event_id}"
        yield _event(reading, event_id, as_str(invocation), timestamp, reading.json(raw, place), as_str(raw), place)


def _v0(rows: Rows, key: SessionKey, reading: RowReading) -> Iterator[_Event]:
    there = set(rows.tables()["events"])
    postgresql = rows.dialect == "postgresql"
    names = [name for name in (*_V0_TEXTS, *_V0_FLAGS, *_V0_JSON) if name in there]
    columns = [f"{name}::text" if postgresql and name in _V0_JSON else name for name in names]
    stamp, order = (
        ("extract(epoch FROM timestamp)::float8", "timestamp, id") if postgresql else ("timestamp", "timestamp, rowid")
    )
    query = (
        f"SELECT id, invocation_id, {stamp}, {', '.join(columns)} FROM events"  # noqa: S608
        f" WHERE app_name = ? AND user_id = ? AND session_id = ? ORDER BY {order}"
    )
    for raw_id, invocation, timestamp, *values in rows.read(query, *key.parts):
        event_id = as_str(raw_id) or ""
        place = f"events/{event_id}"
        value: dict[str, Any] = {"id": event_id, "invocation_id": as_str(invocation)}
        for name, raw in zip(names, values, strict=True):
            if raw is None:
                continue
            if name in _V0_FLAGS:
                value[name] = bool(raw)
            elif name == "long_running_tool_ids_json":
                value["long_running_tool_ids"] = _ids(as_str(raw))
            elif name in _V0_JSON:
                # `null` is how the column keeps nothing.
                value[name] = None if as_str(raw) == "null" else reading.json(raw, f"{place}/{name}")
            else:
                value[name] = as_str(raw)
        yield _event(reading, event_id, as_str(invocation), timestamp, value, None, place)


def _ids(raw: str | None) -> list[str]:
    try:
        found = json.loads(raw or "[]")
    except (ValueError, RecursionError):
        return []
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _event(
    reading: RowReading,
    raw_id: str,
    invocation: str | None,
    timestamp: object,
    value: dict[str, Any] | None,
    raw: str | None,
    place: str,
) -> _Event:
    event_id = reading.clean_id(raw_id, place, "id") or f"event:{reading.rows_read}"
    invocation_id = reading.clean_id(invocation, place, "invocation id")
    if value is None or too_deep(value):
        line = reading.keep({"raw": raw})
        return _Event(event_id, invocation_id, _seconds(timestamp), line, place, kind=m.KIND_UNREADABLE)
    line = reading.keep(value)
    own = value.get("timestamp")
    at = float(own) if isinstance(own, int | float) and not isinstance(own, bool) else _seconds(timestamp)
    event = _Event(event_id, invocation_id, at, line, place, author=as_text(value.get("author")))
    _fill(reading, event, value)
    return event


def _seconds(raw: object) -> float:
    """Return a time of the column, which is in UTC as far as anybody knows; only its order counts."""
    if isinstance(raw, int | float):
        return float(raw)
    try:
        found = datetime.fromisoformat(as_str(raw) or "")
    except ValueError:
        return 0.0
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _fill(reading: RowReading, event: _Event, value: dict[str, Any]) -> None:
    """Say what an event is."""
    actions = value.get("actions")
    actions = actions if isinstance(actions, dict) else {}
    event.branch = as_text(value.get("branch")) or None
    event.rewind_before = as_text(actions.get("rewind_before_invocation_id"))
    if value.get("partial") is True:
        # A piece of a response that comes whole later.
        return
    if actions.get("compaction"):
        event.kind = m.KIND_COMPACTION
        return
    content = value.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    calls: list[str] = []
    results: list[str | None] = []
    names: list[str] = []
    has_text = has_reasoning = False
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        call = part.get("function_call") or part.get("functionCall")
        answer = part.get("function_response") or part.get("functionResponse")
        if isinstance(call, dict):
            found = reading.clean_id(call.get("id"), event.place, "call id")
            calls.append(found if found is not None else f"{event.event_id}:{len(calls)}")
            names.append(str(call.get("name")))
        elif isinstance(answer, dict):
            results.append(reading.clean_id(answer.get("id"), event.place, "call id"))
        elif part.get("thought") is True:
            has_reasoning = True
        else:
            has_text = has_text or bool(str(part.get("text") or "").strip()) or not part.keys() <= {"text"}
    failed = as_text(value.get("error_code"))
    if results:
        event.kind, event.role = m.KIND_MESSAGE, m.ROLE_TOOL_RESULT
        event.results = tuple(results)
        event.ends_turn = actions.get("skip_summarization") is True
        return
    if event.author == "user":
        if content is not None:
            event.kind, event.role, event.content = m.KIND_MESSAGE, m.ROLE_USER, m.CONTENT_TEXT
        return
    if content is None and failed is None and value.get("interrupted") is not True:
        # State was changed, control was handed over: nothing was said.
        return
    event.kind, event.role = m.KIND_MESSAGE, m.ROLE_ASSISTANT
    event.calls = tuple(calls)
    event.content = m.CONTENT_TEXT if has_text else m.CONTENT_REASONING if has_reasoning else m.CONTENT_NONE
    waiting = value.get("long_running_tool_ids")
    asked = [call for call, name in zip(calls, names, strict=True) if name in _CONFIRMATIONS]
    event.waiting = tuple(call for call in calls if (isinstance(waiting, list) and call in waiting) or call in asked)
    if value.get("interrupted") is True:
        # Somebody spoke into a live answer.
        event.stop, event.stopped_by = m.STOP_ABORTED, "user"
    elif calls:
        event.stop = m.STOP_TOOL_USE
    elif failed is not None and failed not in _FINISH:
        event.stop, event.error_retryable = m.STOP_ERROR, _retryable(failed)
    else:
        finish = as_text(value.get("finish_reason")) or failed
        event.stop = _FINISH.get(finish) if finish is not None else None


def _retryable(code: str) -> bool | None:
    return False if code.isascii() and code.isdigit() and int(code[:6]) in NO_MODEL_ERROR_RETRY else None


# --- linking ---------------------------------------------------------------------------------------------------------


class _Line:
    """Links events, in order, into a session."""

    def __init__(self, reading: RowReading, events: list[_Event]) -> None:
        self._reading = reading
        self._events = events
        self._ids: set[str] = set()

    def session(self, session_id: str) -> ImportedSession:
        """Return the session."""
        self._set_finished_branches_aside()
        entries: list[ImportedEntry] = []
        submissions: dict[str, ImportedSubmission] = {}
        # Invocation to the submission it belongs to, and to what stood before its first event.
        turns: dict[str, str] = {}
        before: dict[str, str | None] = {}
        leaf: str | None = None
        turn: str | None = None
        turn_of: dict[str, str | None] = {}
        waits: dict[str, None] = {}
        for event in self._events:
            if event.rewind_before is not None:
                wanted = self._reading.clean_id(event.rewind_before, event.place, "invocation id") or ""
                if wanted in before:
                    leaf = before[wanted]
                    turn = turn_of.get(leaf) if leaf is not None else None
                else:
                    self._reading.problems.add(
                        None, "rewound_too_far", f'the invocation "{wanted[:100]}" is not here', event.place
                    )
            invocation = event.invocation_id
            if invocation is not None:
                before.setdefault(invocation, leaf)
                if event.role == m.ROLE_USER:
                    turn = turns.setdefault(invocation, invocation)
                    submissions.setdefault(turn, ImportedSubmission(turn, event.event_id))
                    waits.clear()
                elif event.author == "user" and turn is not None:
                    # A person's answer to a call goes on with the turn that made it, under an id of its own.
                    turns.setdefault(invocation, turn)
                elif invocation in turns:
                    turn = turns[invocation]
                elif event.role is not None:
                    # The session lost the prompt of this turn: what came of it is here.
                    turn = turns[invocation] = invocation
                    submissions.setdefault(turn, ImportedSubmission(turn, None, "cut"))
            for made in self._entries(event, leaf, turn):
                entries.append(made)
                leaf = made.entry.id
                turn_of[leaf] = turn
            for call in event.results:
                waits.pop(call or "", None)
            waits.update(dict.fromkeys(event.waiting))
        pending = turn_of.get(leaf) if leaf is not None else None
        return ImportedSession(
            session_id,
            tuple(entries),
            leaf,
            leaf is None,
            tuple(replace(s, is_pending=s.submission_id == pending) for s in submissions.values()),
            waits_for=f"an answer to the call {', '.join(list(waits)[:10])}" if waits else None,
        )

    def _entries(self, event: _Event, leaf: str | None, turn: str | None) -> Iterator[ImportedEntry]:
        common = m.SessionEntry(
            self._free(event.event_id),
            leaf,
            kind=event.kind,
            role=event.role,
            submission_id=turn,
            stop_reason=event.stop,
            tool_call_ids=event.calls,
            content=event.content,
            is_sidechain=event.is_sidechain,
            error_retryable=event.error_retryable,
            stopped_by=event.stopped_by,
        )
        written = datetime.fromtimestamp(event.at, UTC) if 0 < event.at < 253402300800 else None
        if event.role != m.ROLE_TOOL_RESULT:
            yield ImportedEntry(common, (event.line,), None if event.kind == m.KIND_UNREADABLE else True, written)
            return
        above = leaf
        for number, call in enumerate(event.results):
            entry_id = common.id if number == 0 else self._free(f"{event.event_id}:{number}")
            entry = replace(
                common,
                id=entry_id,
                parent_id=above,
                tool_call_id=call,
                ends_turn=event.ends_turn,
                content=m.CONTENT_TEXT,
            )
            yield ImportedEntry(entry, (event.line,), True, written)
            above = entry_id

    def _free(self, entry_id: str) -> str:
        if entry_id in self._ids:
            entry_id = f"{entry_id}:again:{len(self._ids)}"
        self._ids.add(entry_id)
        return entry_id

    def _set_finished_branches_aside(self) -> None:
        """Let an agent that is done not answer for one beside it that isn't.

        Agents that run in parallel write into one line, each under its own branch. While one of an invocation's
        branches is open, those that are finished are a sub-agent's side work.
        """
        last: dict[tuple[str | None, str], _Event] = {}
        for event in self._events:
            if event.branch is not None and event.role is not None:
                last[(event.invocation_id, event.branch)] = event
        done = {place for place, event in last.items() if _is_final(event)}
        open_in = {invocation for invocation, branch in last if (invocation, branch) not in done}
        for event in self._events:
            place = (event.invocation_id, event.branch or "")
            if event.branch is not None and place in done and event.invocation_id in open_in:
                event.is_sidechain = True


def _is_final(event: _Event) -> bool:
    answered = event.role == m.ROLE_ASSISTANT and not event.calls and event.stop in (None, m.STOP_STOP, m.STOP_LENGTH)
    return answered or event.ends_turn
