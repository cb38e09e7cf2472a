"""Messages as all of pi's stores keep them: roles, content blocks, stop reasons.

Sources: as pi.py. Knows nothing of files, lines or tables.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final, Protocol, TypeVar

from reconciler.core import model as m
from reconciler.importers.base import NO_MODEL_ERROR_RETRY, as_text

_STOP: Final = {
    "stop": m.STOP_STOP,
    "length": m.STOP_LENGTH,
    "toolUse": m.STOP_TOOL_USE,
    "error": m.STOP_ERROR,
    "aborted": m.STOP_ABORTED,
    # Handed to somebody who answers later: the turn goes on.
    "deferred": m.STOP_TOOL_USE,
}
_MESSAGE_KINDS: Final = {"branchSummary": m.KIND_BRANCH_SUMMARY, "compactionSummary": m.KIND_COMPACTION}
# The person's own shell commands, and what extensions put into the context: neither asks the model for anything.
_CUSTOM_ROLES: Final = frozenset({"bashExecution", "custom", "hookMessage"})
# The interactive program writes these texts when its user breaks off; an abort from outside (a signal, another program)
# leaves the provider's own words, which prove no person.
_STOPPED_BY_USER: Final = re.compile(r"Operation aborted\Z|Aborted after \d+ retry attempts?\Z")
_STATUS: Final = re.compile(r"\s*(\d{3})\b")

Where = TypeVar("Where", contravariant=True)


class Notes(Protocol[Where]):
    """Where a reader notes what is odd; a place is a line, or a row."""

    unknown: Counter[str]

    def problem(self, where: Where, code: str, message: str, /) -> None:
        """Note a problem."""
        ...

    def clean_id(self, raw: object, where: Where, what: str, /) -> str | None:
        """Return *raw* as an id."""
        ...


def message_entry(
    notes: Notes[Where], where: Where, message: dict[str, Any], entry_id: str, parent_id: str | None
) -> m.SessionEntry:
    """Return the entry that a message is."""
    role = as_text(message.get("role"))
    if role == "assistant":
        return _assistant(notes, where, message, entry_id, parent_id)
    if role == "toolResult":
        call = notes.clean_id(message.get("toolCallId"), where, "call id")
        return m.SessionEntry(entry_id, parent_id, role=m.ROLE_TOOL_RESULT, tool_call_id=call)
    if role == "user":
        return m.SessionEntry(entry_id, parent_id, role=m.ROLE_USER)
    if role == "system":
        return m.SessionEntry(entry_id, parent_id, role=m.ROLE_SYSTEM)
    kind = _MESSAGE_KINDS.get(role or "", m.KIND_CUSTOM)
    if kind == m.KIND_CUSTOM and role not in _CUSTOM_ROLES:
        notes.unknown[f"message:{str(role)[:100]}"] += 1
    return m.SessionEntry(entry_id, parent_id, kind=kind, content=m.CONTENT_NONE)


def _assistant(
    notes: Notes[Where], where: Where, message: dict[str, Any], entry_id: str, parent_id: str | None
) -> m.SessionEntry:
    calls: list[str] = []
    has_text = has_reasoning = False
    blocks = message.get("content")
    if isinstance(blocks, str):
        has_text = bool(blocks.strip())
        blocks = ()
    for block in blocks if isinstance(blocks, list) else ():
        if not isinstance(block, dict):
            continue
        match block.get("type"):
            case "text":
                has_text = has_text or bool(str(block.get("text") or "").strip())
            case "thinking":
                has_reasoning = True
            case "toolCall":
                call = notes.clean_id(block.get("id"), where, "call id")
                calls.append(call if call is not None else f"{entry_id}:{len(calls)}")
    raw_stop = message.get("stopReason")
    stop = _STOP.get(raw_stop) if isinstance(raw_stop, str) else None
    if stop is None and raw_stop is not None:
        stop = m.STOP_TOOL_USE if calls else None
        notes.problem(where, "unknown_stop_reason", f'the stop reason "{str(raw_stop)[:100]}" is not known')
    text = message.get("errorMessage")
    text = text if isinstance(text, str) else ""
    broken = stop in (m.STOP_ERROR, m.STOP_ABORTED)
    return m.SessionEntry(
        entry_id,
        parent_id,
        role=m.ROLE_ASSISTANT,
        stop_reason=stop,
        tool_call_ids=tuple(calls),
        content=m.CONTENT_TEXT if has_text else m.CONTENT_REASONING if has_reasoning else m.CONTENT_NONE,
        error_retryable=_retryable(text) if stop == m.STOP_ERROR else None,
        stopped_by="user" if stop == m.STOP_ABORTED and _STOPPED_BY_USER.match(text) else None,
        # The agent loop returns before it runs any call of a message that ended so: none was started.
        starts_logged=broken and bool(calls),
    )


def _retryable(error: str) -> bool | None:
    """Return False where the provider's status says that the same request can't ever succeed."""
    status = _STATUS.match(error)
    return False if status is not None and int(status[1]) in NO_MODEL_ERROR_RETRY else None
