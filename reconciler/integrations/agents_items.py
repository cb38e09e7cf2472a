"""Between the record and the SDK's items: what an entry holds, and what a path says.

A submission's payload is an operation on the conversation: ``run`` (a prompt for an agent), ``add``, ``pop``,
``clear``. The record is append-only, so taking back is an operation too, and the history is what all of them leave.
Pure; knows nothing of the SDK's classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reconciler.core.model import (
    CONTENT_NONE,
    CONTENT_REASONING,
    CONTENT_TEXT,
    KIND_MESSAGE,
    ROLE_ASSISTANT,
    ROLE_SIGNAL,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    STOP_STOP,
    SessionEntry,
    SyntheticResult,
)
from reconciler.integrations.agents_errors import ForeignSubmission
from reconciler.service.runner import PathItem

# The form of payloads, which a later version may change.
FORMAT: Final = 1
_MARK: Final = "openai_agents"

OP_RUN: Final = "run"
OP_ADD: Final = "add"
OP_POP: Final = "pop"
OP_CLEAR: Final = "clear"
_OPS: Final = frozenset({OP_RUN, OP_ADD, OP_POP, OP_CLEAR})

Item = dict[str, Any]

REMOVED_TEXT: Final = "the result was removed from the history"

# Local calls that are answered by the program, but not by a function tool.
_UNSUPPORTED_CALLS: Final = frozenset(
    {"computer_call", "local_shell_call", "apply_patch_call", "custom_tool_call", "mcp_approval_request"}
)


@dataclass(frozen=True, slots=True)
class Operation:
    """What a submission asks for. ``agent`` is the name of the agent that a run begins with, where it was given."""

    op: str
    items: tuple[Item, ...] = ()
    agent: str | None = None

    def payload(self) -> dict[str, Any]:
        """Return it as a submission's payload."""
        found: dict[str, Any] = {_MARK: FORMAT, "op": self.op}
        if self.op in (OP_RUN, OP_ADD):
            found["items"] = list(self.items)
        if self.agent is not None:
            found["agent"] = self.agent
        return found


def operation(payload: object, what: str) -> Operation:
    """Read a submission's payload. A bare text, or an object with a ``text``, is a prompt (an operator's).

    Raises:
        ForeignSubmission: it is none of these.
    """
    if isinstance(payload, str):
        return Operation(OP_RUN, (user_message(payload),))
    if isinstance(payload, Mapping):
        if payload.get(_MARK) == FORMAT and payload.get("op") in _OPS:
            return Operation(payload["op"], tuple(payload.get("items", ())), payload.get("agent"))
        if _MARK not in payload and isinstance(payload.get("text"), str):
            return Operation(OP_RUN, (user_message(payload["text"]),))
    raise ForeignSubmission(f"cannot work on {what}: its payload is none that this integration wrote")


def user_message(text: str) -> Item:
    """Return a user's message as the SDK writes one."""
    return {"role": "user", "content": text}


# --- what entries hold -----------------------------------------------------------------------------------------------


def response_payload(items: Sequence[Item], agent: str) -> dict[str, Any]:
    """Return the payload of a response."""
    return {_MARK: FORMAT, "items": list(items), "agent": agent}


def result_payload(item: Item, handed_to: str | None = None) -> dict[str, Any]:
    """Return the payload of a call's result; *handed_to* is the agent that goes on, where the call was a handoff."""
    found: dict[str, Any] = {_MARK: FORMAT, "items": [item]}
    if handed_to is not None:
        found["agent"] = handed_to
    return found


def output_item(call_id: str, text: str) -> Item:
    """Return the result of a function call as an item."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def function_calls(items: Iterable[Item]) -> dict[str, str]:
    """Return the function calls among *items*, in order: call id to name."""
    return {item["call_id"]: str(item.get("name")) for item in items if item.get("type") == "function_call"}


def unsupported_call(items: Sequence[Item]) -> str | None:
    """Return the type of a local call that no function tool answers, None where there is none."""
    answered = {item.get("call_id") for item in items if item.get("type") == "shell_call_output"}
    for item in items:
        kind = item.get("type")
        # A shell of the provider's answers within the same response.
        if kind in _UNSUPPORTED_CALLS or (kind == "shell_call" and item.get("call_id") not in answered):
            return str(kind)
    return None


def text_of(items: Iterable[Item]) -> str:
    """Return the text of the last message among *items*, "" where there is none."""
    found = ""
    for item in items:
        if item.get("type", "message") != "message":
            continue
        content = item.get("content")
        if isinstance(content, str):
            found = content
        elif isinstance(content, list):
            found = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return found


def content_of(items: Sequence[Item]) -> str:
    """Return the most that a response carries of the model's own words."""
    if text_of(items):
        return CONTENT_TEXT
    return CONTENT_REASONING if any(item.get("type") == "reasoning" for item in items) else CONTENT_NONE


# --- what a path says ------------------------------------------------------------------------------------------------


def history(path: Iterable[PathItem]) -> list[Item]:
    """Return the conversation: what all operations of the path leave, oldest first.

    Raises:
        ForeignSubmission: another kind of runner wrote an entry of it.
    """
    items: list[Item] = []
    for found in path:
        entry = found.entry
        if isinstance(entry, SyntheticResult):
            items.append(output_item(entry.tool_call_id, entry.text))
        elif entry.kind == KIND_MESSAGE and not entry.is_sidechain:
            _apply(items, entry, found.payload)
    return items


def _apply(items: list[Item], entry: SessionEntry, payload: Any) -> None:
    if entry.role == ROLE_TOOL_RESULT and entry.is_synthetic and isinstance(payload, Mapping) and _MARK not in payload:
        # A marker of recovery.
        items.append(output_item(str(entry.tool_call_id), str(payload.get("text", ""))))
    elif entry.role in (ROLE_ASSISTANT, ROLE_TOOL_RESULT):
        if not isinstance(payload, Mapping) or payload.get(_MARK) != FORMAT:
            raise ForeignSubmission(f'cannot read entry "{entry.id}": another kind of runner wrote it')
        items.extend(payload["items"])
    elif entry.role in (ROLE_USER, ROLE_SIGNAL):
        asked = operation(payload, f'entry "{entry.id}"')
        if asked.op == OP_CLEAR:
            items.clear()
        elif asked.op == OP_POP:
            del items[-1:]
        else:
            items.extend(asked.items)


def turn_of(path: Sequence[PathItem], submission_id: str) -> int:
    """Return where the submission's own entries begin on *path*: the index of its input, else the length."""
    for index in range(len(path) - 1, -1, -1):
        entry = path[index].entry
        if (
            isinstance(entry, SessionEntry)
            and entry.submission_id == submission_id
            and entry.role in (ROLE_USER, ROLE_SIGNAL)
        ):
            return index
    return len(path)


def current_agent(turn: Iterable[PathItem]) -> str | None:
    """Return the name of the agent whose turn it is, None where none has spoken yet."""
    name = None
    for found in turn:
        role = found.entry.role if isinstance(found.entry, SessionEntry) else None
        if role in (ROLE_ASSISTANT, ROLE_TOOL_RESULT) and isinstance(found.payload, Mapping):
            name = found.payload.get("agent", name)
    return name


def callable_items(items: Sequence[Item]) -> list[Item]:
    """Return *items* as a provider takes them: each call answered once, no answer without a call.

    What recovery leaves is so already; items that were popped or added by hand need not be.
    """
    answered: dict[str, int] = {}
    for item in items:
        if item.get("type") == "function_call_output":
            answered[str(item.get("call_id"))] = answered.get(str(item.get("call_id")), 0) + 1
    found: list[Item] = []
    open_calls: dict[str, int] = {}
    for item in items:
        call_id = str(item.get("call_id"))
        if item.get("type") == "function_call_output":
            if not open_calls.get(call_id):
                continue
            open_calls[call_id] -= 1
            answered[call_id] -= 1
        found.append(item)
        if item.get("type") == "function_call":
            if answered.get(call_id, 0) > open_calls.get(call_id, 0):
                open_calls[call_id] = open_calls.get(call_id, 0) + 1
            else:
                found.append(output_item(call_id, REMOVED_TEXT))
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer: its text, or the value that was recorded as such, and who gave it."""

    text: str
    agent: str | None = None


def recorded_answer(path: Sequence[PathItem], submission_id: str) -> Answer | None:
    """Return the answer that the record holds for a submission, None where it holds none."""
    turn = [
        found
        for found in path
        if isinstance(found.entry, SessionEntry)
        and found.entry.submission_id == submission_id
        and found.entry.kind == KIND_MESSAGE
        and isinstance(found.payload, Mapping)
    ]
    agent = current_agent(turn)
    for index in range(len(turn) - 1, -1, -1):
        entry, payload = turn[index].entry, turn[index].payload
        assert isinstance(entry, SessionEntry)  # noqa: S101 - chosen above
        if entry.role != ROLE_ASSISTANT:
            continue
        if not entry.tool_call_ids and entry.stop_reason == STOP_STOP:
            text = payload.get("final_output")
            return Answer(text_of(payload.get("items", ())) if text is None else str(text), agent)
        for later in turn[index + 1 :]:
            if isinstance(later.entry, SessionEntry) and later.entry.ends_turn:
                output = later.payload["items"][0].get("output")
                return Answer(output if isinstance(output, str) else text_of([{"content": output}]), agent)
        return None
    return None
