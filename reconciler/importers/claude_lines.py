"""What one line of a Claude Code transcript is.

Sources: transcripts of program versions 2.1.4 to 2.1.332, the official SDK's reader (0.3.332), and files that crashed
runs left behind. A ``user`` line is a prompt only where nothing else fits: results, notices, command output and
summaries stand in user lines too. This file knows nothing of how lines hang together (see claude_code.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final

from reconciler.core import model as m
from reconciler.importers.base import NO_MODEL_ERROR_RETRY, Reading, as_text, instant

STOP: Final = {
    "end_turn": m.STOP_STOP,
    "stop_sequence": m.STOP_STOP,
    "refusal": m.STOP_STOP,
    "max_tokens": m.STOP_LENGTH,
    "model_context_window_exceeded": m.STOP_LENGTH,
    "tool_use": m.STOP_TOOL_USE,
    "pause_turn": m.STOP_TOOL_USE,
}

# Lines without a uuid: no part of the DAG. What they say is a hint (a leaf, a title) or an aside.
OUTSIDE: Final = frozenset(
    {
        "summary", "file-history-snapshot", "queue-operation", "last-prompt", "ai-title", "custom-title", "agent-name",
        "mode", "permission-mode", "pr-link", "bridge-session", "worktree-state", "relocated", "content-replacement",
        "tag", "progress", "agent-setting", "attribution-snapshot",
    }
)  # fmt: skip

INTERRUPTED_BY_USER: Final = "[Request interrupted by user"
_INTERRUPTED: Final = (
    INTERRUPTED_BY_USER,
    "[Request interrupted: the session ended",
    "[This turn ended before it finished",
    "[Agent call interrupted:",
)
_LOCAL_OUTPUT: Final = ("<local-command-stdout>", "<local-command-stderr>", "<bash-stdout>", "<bash-stderr>")
_NOTIFICATION: Final = "<task-notification>"
_SYNTHETIC_MODEL: Final = "<synthetic>"
_REJECTED_ERRORS: Final = frozenset(
    {"authentication_failed", "invalid_request", "billing_error", "oauth_org_not_allowed"}
)


class Form(Enum):
    """What a line is, once looked at."""

    PROMPT = auto()
    # A slash command: a prompt, unless the program answers it by itself (its output follows).
    COMMAND = auto()
    # Machine-made, and it starts a turn.
    SIGNAL = auto()
    # A person's text delivered into the running turn.
    STEER = auto()
    RESULT = auto()
    # A user line that the program wrote: caveats, skill bodies, notices.
    NOTICE = auto()
    # The person's own shell command or local command, and its output: no turn.
    LOCAL = auto()
    LOCAL_OUTPUT = auto()
    COMPACTION = auto()
    ASSISTANT = auto()
    # A real parent that is no entry.
    PROGRESS = auto()
    # The program's note that a turn is over.
    TURN_END = auto()
    OTHER = auto()


@dataclass(slots=True)
class Node:
    """A line of the DAG, slim."""

    line: int
    uuid: str
    parent: str | None
    form: Form
    # user, assistant, system, attachment ...
    type: str
    is_sidechain: bool
    digest: int
    written_at: datetime | None = None
    # A compaction boundary's entry before it.
    logical_parent: str | None = None
    is_boundary: bool = False
    # No candidate for the active position: another teammate's, or a copy of a briefing.
    off_leaf: bool = False
    prompt_id: str | None = None
    message_id: str | None = None
    stop: str | None = None
    calls: tuple[str, ...] = ()
    results: tuple[str | None, ...] = ()
    content: str = m.CONTENT_TEXT
    is_synthetic: bool = False
    stopped_by: str | None = None
    error_retryable: bool | None = None
    write_ahead: bool | None = None
    # Since 2.1.98 a message's lines are written when it has ended: no stop reason means that it never did.
    held_until_ended: bool = False


def make_node(reading: Reading, line: int, value: dict[str, Any], uuid: str, parent: str | None, digest: int) -> Node:
    """Return what a line with a uuid is. Nothing in *value* is trusted to have the right type."""
    kind = as_text(value.get("type")) or ""
    node = Node(
        line,
        uuid,
        parent,
        Form.OTHER,
        kind,
        value.get("isSidechain") is True,
        digest,
        instant(value.get("timestamp")),
        off_leaf=bool(value.get("teamName")),
        prompt_id=reading.link(value.get("promptId")) if value.get("promptId") else None,
    )
    version = _version(as_text(value.get("version")))
    # From 2.1.59 on tools start while their message still streams, and its lines are written when it has ended. Before
    # that each block was written at once, which looks write-ahead; whether it was is not known.
    node.write_ahead = False if version is not None and version >= (2, 1, 59) else None
    node.held_until_ended = version is not None and version >= (2, 1, 98)
    message = value.get("message")
    message = message if isinstance(message, dict) else {}
    if kind == "user":
        _user(reading, node, value, message)
    elif kind == "assistant":
        _assistant(reading, node, value, message)
    elif kind == "progress":
        node.form = Form.PROGRESS
    elif kind == "system":
        _system(node, value, reading)
    elif kind == "attachment":
        _attachment(node, value)
    else:
        reading.unknown[kind[:100] or "none"] += 1
    return node


def _user(reading: Reading, node: Node, value: dict[str, Any], message: dict[str, Any]) -> None:
    blocks = message.get("content")
    results = tuple(
        reading.clean_id(block.get("tool_use_id"), node.line, "call id")
        for block in _dicts(blocks)
        if block.get("type") == "tool_result"
    )
    text = first_text(blocks)
    if text.startswith(INTERRUPTED_BY_USER):
        node.stopped_by = "user"
    if results:
        node.form, node.results = Form.RESULT, results
    elif value.get("isCompactSummary") is True:
        node.form = Form.COMPACTION
    elif text.startswith(_INTERRUPTED):
        node.form = Form.NOTICE
    elif text.startswith(_LOCAL_OUTPUT):
        node.form = Form.LOCAL_OUTPUT
    elif value.get("isMeta") is True:
        node.form = Form.NOTICE
    elif text.startswith("<bash-input>"):
        node.form = Form.LOCAL
    elif text.startswith(_NOTIFICATION) or _is_machine_made(value):
        node.form = Form.SIGNAL
    elif text.startswith(("<command-name>", "<command-message>")):
        node.form = Form.COMMAND
    else:
        node.form = Form.PROMPT


def _is_machine_made(value: dict[str, Any]) -> bool:
    origin = value.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return value.get("promptSource") == "system" or (isinstance(kind, str) and kind != "human")


def _assistant(reading: Reading, node: Node, value: dict[str, Any], message: dict[str, Any]) -> None:
    node.form = Form.ASSISTANT
    node.message_id = as_text(message.get("id"))
    if value.get("isApiErrorMessage") is True:
        # The text is the program's own words about the provider's error.
        node.stop, node.content = m.STOP_ERROR, m.CONTENT_NONE
        node.message_id = None
        status = value.get("apiErrorStatus")
        refused = isinstance(status, int) and status in NO_MODEL_ERROR_RETRY
        if refused or as_text(value.get("error")) in _REJECTED_ERRORS:
            node.error_retryable = False
        return
    node.is_synthetic = message.get("model") == _SYNTHETIC_MODEL
    calls: list[str] = []
    has_text = has_reasoning = False
    blocks = message.get("content")
    if isinstance(blocks, str):
        has_text = bool(blocks.strip())
    for block in _dicts(blocks):
        kind = block.get("type")
        if kind == "text":
            has_text = has_text or bool(str(block.get("text") or "").strip())
        elif kind in ("thinking", "redacted_thinking"):
            has_reasoning = True
        elif kind == "tool_use":
            call = reading.clean_id(block.get("id"), node.line, "call id")
            calls.append(call if call is not None else f"{node.uuid}:{len(calls)}")
    node.calls = tuple(calls)
    node.content = m.CONTENT_TEXT if has_text else m.CONTENT_REASONING if has_reasoning else m.CONTENT_NONE
    raw_stop = message.get("stop_reason")
    if value.get("isAbortedMidStream") is True:
        node.stop = m.STOP_ABORTED
    elif isinstance(raw_stop, str):
        node.stop = STOP.get(raw_stop)
        if node.stop is None:
            node.stop = m.STOP_TOOL_USE if calls else None
            reading.problems.add(node.line, "unknown_stop_reason", f'the stop reason "{raw_stop[:100]}" is not known')


def _system(node: Node, value: dict[str, Any], reading: Reading) -> None:
    subtype = value.get("subtype")
    if subtype == "compact_boundary":
        node.form, node.is_boundary = Form.COMPACTION, True
        node.logical_parent = reading.link(value.get("logicalParentUuid"))
    elif subtype in ("turn_duration", "stop_hook_summary"):
        node.form = Form.TURN_END
    elif subtype == "local_command" and (as_text(value.get("content")) or "").lstrip().startswith(_LOCAL_OUTPUT):
        node.form = Form.LOCAL_OUTPUT


def _attachment(node: Node, value: dict[str, Any]) -> None:
    attachment = value.get("attachment")
    attachment = attachment if isinstance(attachment, dict) else {}
    kind = attachment.get("type")
    if kind == "fork_briefing":
        node.off_leaf = True
    if kind == "queued_command":
        text = first_text(attachment.get("prompt"))
        person = attachment.get("commandMode", "prompt") == "prompt" and not is_notification(text)
        node.form = Form.STEER if person else Form.NOTICE


def is_notification(text: str) -> bool:
    """Return whether a queued text is the program's own notice about a background task, not a person's."""
    return text.startswith((_NOTIFICATION, '{"task_id"'))


def first_text(content: object) -> str:
    """Return the first text of a message's content, without leading white space; empty where there is none."""
    if isinstance(content, str):
        return content.lstrip()
    for block in _dicts(content):
        if block.get("type") == "text":
            return str(block.get("text") or "").lstrip()
    return ""


def _dicts(content: object) -> Iterable[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else ()


@lru_cache(maxsize=1024)
def _version(raw: str | None) -> tuple[int, int, int] | None:
    parts = raw.split("-")[0].split(".") if raw is not None else ()
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return int(parts[0]), int(parts[1]), int(parts[2])
