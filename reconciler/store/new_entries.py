"""What a runner may append: the checks of one call, before anything is asked of the database.

Knows nothing of tables, parents or fences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from reconciler.core.canonical import canonical_json
from reconciler.core.checks import items_of, shown
from reconciler.core.model import (
    CONTENT_NONE,
    CONTENT_REASONING,
    CONTENT_TEXT,
    ENTRY_KINDS,
    ID_BYTES_MAX,
    KIND_MESSAGE,
    KIND_SUBMISSION_SETTLED,
    KIND_TOOL_STARTED,
    KIND_UNREADABLE,
    RESERVED_ID_PREFIXES,
    ROLE_ASSISTANT,
    ROLE_SIGNAL,
    ROLE_TOOL_RESULT,
    ROLES,
    STOP_REASONS,
    STOP_TOOL_USE,
    Limits,
    NewEntry,
)
from reconciler.errors import InvalidInput, LimitExceeded, ReservedId
from reconciler.store.fence import AttemptRef

_APPENDABLE_KINDS: Final = ENTRY_KINDS - {KIND_SUBMISSION_SETTLED, KIND_UNREADABLE}
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SWITCHES: Final = ("is_synthetic", "is_sidechain", "ends_turn", "starts_logged")
# Of one message.
_CALLS_MAX: Final = 1_000
_CONTENTS: Final = frozenset({CONTENT_TEXT, CONTENT_REASONING, CONTENT_NONE})


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """A checked entry with its payload as canonical JSON (None: it stands in the store already)."""

    id: str
    payload: str | None
    kind: str = KIND_MESSAGE
    role: str | None = None
    stop_reason: str | None = None
    tool_call_ids: str | None = None
    tool_call_id: str | None = None
    content: str = CONTENT_TEXT
    is_synthetic: bool = False
    is_sidechain: bool = False
    ends_turn: bool = False
    error_retryable: bool | None = None
    stopped_by: str | None = None
    starts_logged: bool = False

    @property
    def is_progress(self) -> bool:
        """Whether it is a sign of life of the attempt: what the model or a tool said, not what the runtime wrote."""
        if self.kind != KIND_MESSAGE or self.is_sidechain or self.is_synthetic:
            return False
        if self.role == ROLE_TOOL_RESULT:
            return True
        is_bare = self.content == CONTENT_NONE and self.tool_call_ids is None
        return self.role == ROLE_ASSISTANT and (not is_bare or self.stop_reason in _ENDED)


_ENDED: Final = frozenset({"stop", "length", "tool_use"})


def require_id(value: object, what: str) -> str:
    """Return *value*, an id of a caller.

    Raises:
        InvalidInput: it is no text of 1 to 512 bytes of UTF-8 without control characters.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"cannot use {shown(value)} as {what}: an id is a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"cannot use {shown(value)} as {what}: it is no UTF-8") from None
    if not 1 <= size <= ID_BYTES_MAX:
        raise InvalidInput(f"cannot use an id of {size} bytes as {what}: 1 to {ID_BYTES_MAX} are allowed")
    if _CONTROL.search(value):
        raise InvalidInput(f"cannot use {shown(value)} as {what}: it has control characters")
    return value


def prepare(
    new: Iterable[NewEntry], *, ref: AttemptRef, limits: Limits, make_id: Callable[[], str]
) -> tuple[PreparedEntry, ...]:
    """Check *new* and give ids to those without one. Done once per call, before its first try.

    Raises:
        InvalidInput: a field is outside what the contract allows; ReservedId, LimitExceeded are such.
    """
    prepared: list[PreparedEntry] = []
    size = 0
    for entry in items_of(new, "entries", limits.append_entries_max):
        checked = _prepare_one(entry, ref, limits, make_id)
        size += len(checked.payload or "")
        if size > limits.append_bytes_max:
            raise LimitExceeded(
                f"cannot append more than {limits.append_bytes_max} bytes of payload at once",
                hint="append the entries in pieces",
            )
        prepared.append(checked)
    ids = [entry.id for entry in prepared]
    if len(set(ids)) != len(ids):
        twice = next(entry_id for entry_id in ids if ids.count(entry_id) > 1)
        raise InvalidInput(f'cannot append two entries with the id "{twice}"')
    return tuple(prepared)


def _prepare_one(entry: object, ref: AttemptRef, limits: Limits, make_id: Callable[[], str]) -> PreparedEntry:
    if not isinstance(entry, NewEntry):
        raise InvalidInput(f"cannot append {shown(entry)}: entries are of the type NewEntry")
    entry_id = make_id() if entry.id is None else require_id(entry.id, "an entry's id")
    what = f'entry "{entry_id}"'
    if entry_id.startswith(RESERVED_ID_PREFIXES):
        raise ReservedId(f"cannot append {what}: ids that start so are the system's own", hint="choose another id")
    for name in _SWITCHES:
        if not isinstance(getattr(entry, name), bool):
            raise InvalidInput(f"cannot append {what}: {name} is True or False, not {shown(getattr(entry, name))}")
    if entry.kind == KIND_SUBMISSION_SETTLED:
        raise ReservedId(f"cannot append {what}: a settlement is written by settle() alone", hint="call settle()")
    if not _is_one_of(entry.kind, _APPENDABLE_KINDS):
        raise InvalidInput(
            f"cannot append {what}: unknown kind {shown(entry.kind)}",
            hint=f"one of {', '.join(sorted(_APPENDABLE_KINDS))}",
        )
    for name, given, own in (
        ("submission_id", entry.submission_id, ref.submission_id),
        ("attempt_id", entry.attempt_id, ref.attempt_id),
    ):
        if given is not None and given != own:
            raise InvalidInput(f"cannot append {what} to {ref.name}: its {name} is {shown(given)}", hint="leave it out")
    calls = tuple(
        require_id(call, f"one of the tool_call_ids of {what}")
        for call in items_of(entry.tool_call_ids, f"tool_call_ids of {what}", _CALLS_MAX)
    )
    _check_message(entry, calls, what)
    if not _is_one_of(entry.content, _CONTENTS):
        raise InvalidInput(
            f"cannot append {what}: unknown content {shown(entry.content)}",
            hint=f"one of {', '.join(sorted(_CONTENTS))}",
        )
    payload = canonical_json(entry.payload)
    if len(payload) > limits.payload_bytes_max:
        raise LimitExceeded(
            f"cannot append {what}: its payload has {len(payload)} bytes, {limits.payload_bytes_max} are allowed",
            hint="store the data elsewhere and append a reference to it",
        )
    return PreparedEntry(
        id=entry_id,
        payload=payload,
        kind=entry.kind,
        role=entry.role,
        stop_reason=entry.stop_reason,
        tool_call_ids=canonical_json(calls) if calls else None,
        tool_call_id=entry.tool_call_id,
        content=entry.content,
        # A signal that is none is an input; what a runner makes of its own accord is not.
        is_synthetic=entry.is_synthetic or entry.role == ROLE_SIGNAL,
        is_sidechain=entry.is_sidechain,
        ends_turn=entry.ends_turn,
        error_retryable=entry.error_retryable,
        stopped_by=entry.stopped_by,
        starts_logged=entry.starts_logged,
    )


def _is_one_of(value: object, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def _check_message(entry: NewEntry, calls: tuple[str, ...], what: str) -> None:
    if not _is_one_of(entry.role, ROLES) and (entry.kind == KIND_MESSAGE or entry.role is not None):
        raise InvalidInput(
            f"cannot append {what}: a message has a role, not {shown(entry.role)}",
            hint=f"one of {', '.join(sorted(ROLES))}",
        )
    is_answer = entry.kind == KIND_MESSAGE and entry.role == ROLE_ASSISTANT
    if is_answer and not _is_one_of(entry.stop_reason, STOP_REASONS):
        raise InvalidInput(
            f"cannot append {what}: an assistant message needs a stop reason, not {shown(entry.stop_reason)}",
            hint=f"one of {', '.join(sorted(STOP_REASONS))}; a response stored before its end is aborted",
        )
    if entry.stop_reason is not None and not is_answer:
        raise InvalidInput(f"cannot append {what}: only an assistant message has a stop reason")
    if calls and not is_answer:
        raise InvalidInput(f"cannot append {what}: only an assistant message makes tool calls")
    if is_answer and entry.stop_reason == STOP_TOOL_USE and not calls and not entry.is_sidechain:
        raise InvalidInput(
            f"cannot append {what}: it ended with tool_use and names no calls, so that recovery could not know them",
            hint="name them in tool_call_ids, before any of the tools starts; a response without calls after which the"
            " model is to be asked on is aborted",
        )
    names_call = entry.role == ROLE_TOOL_RESULT or entry.kind == KIND_TOOL_STARTED
    if names_call:
        require_id(entry.tool_call_id, f"the tool call id of {what}")
    elif entry.tool_call_id is not None:
        raise InvalidInput(f"cannot append {what}: only a tool's start or result names a call")
    if entry.stopped_by not in (None, "user"):
        raise InvalidInput(f'cannot append {what}: stopped_by is "user" or nothing, not {shown(entry.stopped_by)}')
    if entry.error_retryable is not None and not isinstance(entry.error_retryable, bool):
        raise InvalidInput(f"cannot append {what}: error_retryable is True, False or nothing")
