"""What every exporter gets and gives: a session's entries with their payloads, and lines.

A session that came from a format goes back to it by its own lines, as they were read; only what other programs (ours)
added is put into the format's words. Nothing that is written depends on a clock or on the database: the same history
gives the same bytes.

A *repaired* export closes the calls that were interrupted, by results that are added. Nothing real is changed by it. A
result goes to the end of the path where the agent owes the next message there; to an earlier call, or to one whose
message the agent itself leaves out, it goes beside the path, below its message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from reconciler.core import model as m
from reconciler.core.canonical import canonical_json
from reconciler.core.pairing import describe_open_calls, open_refs, pair_tree
from reconciler.core.subturn import marker_text
from reconciler.core.terms import is_assistant

FORMAT_JSONL: Final = "jsonl"
FORMAT_PI: Final = "pi"
FORMAT_CLAUDE: Final = "claude-code"
_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored: ``text`` is its payload's canonical JSON, ``payload`` the same parsed."""

    entry: m.SessionEntry
    payload: Any
    text: str
    at: datetime
    # R12; None where it isn't known.
    write_ahead: bool | None = None


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A submission's row. ``input_text`` is its input's canonical JSON where that is kept, apart from any entry."""

    submission_id: str
    kind: str
    status: str
    outcome: str | None
    input_text: str | None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session with all its entries, parents first. ``source_format`` is None for a native one."""

    session_id: str
    origin: str
    leaf_entry_id: str | None
    entries: Sequence[StoredEntry]
    source_format: str | None = None
    leaf_known_empty: bool = False
    # In the order of admission.
    submissions: Sequence[StoredSubmission] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file. ``added``: the repair put it there, to close the call ``tool_call_id``."""

    text: str
    entry_id: str | None = None
    added: bool = False
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """An open call of the path and the result that closes it. ``on_path``: at the end of it, else beside it."""

    call: m.OpenCall
    text: str
    on_path: bool


@dataclass(slots=True)
class Exported:
    """A file's lines, and the entries that it cannot hold, each with the reason."""

    lines: list[Line] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    # Where the program will go on, by the file's own id; None where nothing is known of it.
    leaf_id: str | None = None


def dumped(value: object) -> str:
    """Return a line's JSON."""
    return canonical_json(value)


# --- the path and its open calls -------------------------------------------------------------------------------------


def active_path(session: StoredSession) -> list[m.SessionEntry]:
    """Return the entries from the root, or from where the path is torn, to the leaf."""
    by_id: dict[str, m.SessionEntry] = {}
    for stored in session.entries:
        by_id.setdefault(stored.entry.id, stored.entry)
    path: list[m.SessionEntry] = []
    at = session.leaf_entry_id
    seen: set[str] = set()
    while at is not None and at in by_id and at not in seen:
        seen.add(at)
        path.append(by_id[at])
        at = by_id[at].parent_id
    return path[::-1]


def closings(session: StoredSession) -> list[Closing]:
    """Return the calls of the path without a result, in call order, each with what is said in its stead."""
    path = active_path(session)
    on_path = {entry.id for entry in path}
    pairing = pair_tree(path, (stored.entry for stored in session.entries if stored.entry.id not in on_path))
    owed = _owed(path)
    return [
        Closing(call, marker_text(call.dispatch), call.entry_id in owed)
        for call in describe_open_calls(pairing, open_refs(pairing))
    ]


def _owed(path: Sequence[m.SessionEntry]) -> set[str]:
    """Return the messages whose calls are answered at the end of the path: nobody has spoken since them."""
    owed: set[str] = set()
    for entry in reversed(path):
        if entry.kind != m.KIND_MESSAGE or entry.is_sidechain or entry.role in (m.ROLE_TOOL_RESULT, m.ROLE_SYSTEM):
            continue
        if not is_assistant(entry) or entry.is_synthetic:
            break
        if entry.stop_reason in (m.STOP_ERROR, m.STOP_ABORTED):
            # Agents leave such a message out of what they send: a result without it would be refused.
            break
        owed.add(entry.id)
        if entry.stop_reason in (m.STOP_STOP, m.STOP_LENGTH):
            break
    return owed


def parents_of(session: StoredSession) -> dict[str, str | None]:
    """Return each entry's parent."""
    return {stored.entry.id: stored.entry.parent_id for stored in session.entries}


def kept_ancestor(parents: Mapping[str, str | None], entry_id: str | None, left_out: Mapping[str, str]) -> str | None:
    """Return the nearest entry at or above *entry_id* that the file has."""
    for _ in range(len(left_out) + 1):
        if entry_id is None or entry_id not in left_out:
            return entry_id
        entry_id = parents[entry_id]
    return None


# --- what entries of ours say ----------------------------------------------------------------------------------------


def is_ours(stored: StoredEntry) -> bool:
    """Return whether a runner or a daemon of ours wrote the entry, in whatever session."""
    entry = stored.entry
    return entry.attempt_id is not None or entry.id.startswith(m.RESERVED_ID_PREFIXES)


def said(payload: Any) -> str:
    """Return what a payload says, as one text; its JSON where it has no text."""
    found = "\n".join(_texts(payload, 0))
    return found if found or payload in (None, "", [], {}) else canonical_json(payload)


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict):
        for key in ("text", "content", "message", "prompt", "parts", "payload", "error", "errorMessage"):
            if key in value:
                yield from _texts(value[key], depth + 1)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a message of ours: a name and arguments where the payload has them."""

    call_id: str
    name: str = "unknown"
    arguments: Any = None


def calls_of(stored: StoredEntry) -> list[Call]:
    """Return the calls of a message, in call order."""
    known = {call.call_id: call for call in _calls_in(stored.payload, 0)}
    return [known.get(call_id, Call(call_id)) for call_id in stored.entry.tool_call_ids]


def _calls_in(value: Any, depth: int) -> Iterator[Call]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, list):
        for item in value:
            yield from _calls_in(item, depth + 1)
    elif isinstance(value, dict):
        # The words of the providers: blocks (tool_use, toolCall), and functions with their arguments.
        inner_function = value.get("function")
        function: dict[str, Any] = inner_function if isinstance(inner_function, dict) else value
        call_id = value.get("id") or value.get("call_id") or value.get("tool_call_id")
        if isinstance(call_id, str) and isinstance(function.get("name"), str):
            names = ("input", "arguments", "args")
            yield Call(call_id, function["name"], next((function[name] for name in names if name in function), None))
        for inner in value.values():
            if isinstance(inner, dict | list):
                yield from _calls_in(inner, depth + 1)


def names_of_calls(session: StoredSession) -> dict[tuple[str, str], str]:
    """Return the tools' names by (entry id, call id), as far as payloads tell them."""
    return {
        (stored.entry.id, call.call_id): call.name
        for stored in session.entries
        if stored.entry.tool_call_ids
        for call in calls_of(stored)
    }


def digest_of(*parts: str) -> str:
    """Return hex digits that stand for *parts*: ids that are made here are the same each time."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def iso(at: datetime) -> str:
    """Return an instant as the formats write it: milliseconds and Z."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def milliseconds(at: datetime) -> int:
    """Return an instant as milliseconds since 1970."""
    return round(at.timestamp() * 1000)
