"""What one line of a Codex rollout says.

Sources: rollouts of program versions 0.140 and 0.171 (crash runs of the latter), and the protocol's own names. A
rollout keeps two records of the same thing: `response_item` is what the model sees, `event_msg` what the screen showed.
The first is taken; of the second only what the first doesn't say. This file knows nothing of how lines hang together
(codex.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from reconciler.core import model as m
from reconciler.importers.base import as_text

# What runs on the person's machine; everything else that is called a call is done by the provider.
CLIENT_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
RESULTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
# Done by the provider: part of a response, with no result to wait for.
HOSTED: Final = frozenset({"web_search_call", "image_generation_call", "tool_search_call", "file_search_call"})
# Events that are no part of the conversation, or say again what a response item says.
EVENTS_SKIPPED: Final = frozenset(
    {"agent_message", "agent_reasoning", "agent_reasoning_raw_content", "token_count", "context_compacted"}
    | {"thread_settings_applied", "web_search_end", "agent_reasoning_section_break", "entered_review_mode"}
    | {"exited_review_mode", "thread_name_updated", "turn_diff", "plan_update", "image_generation_end", "warning"}
    | {"view_image_tool_call", "item_started", "sub_agent_activity"}
)
# Events that prove that a call was started: they name it.
ENDS: Final = frozenset(
    {"exec_command_begin", "exec_command_end", "patch_apply_begin", "patch_apply_end", "mcp_tool_call_begin"}
    | {"mcp_tool_call_end", "dynamic_tool_call_request", "dynamic_tool_call_response"}
)
# Items of the newer history that stand for the same.
ITEM_ENDS: Final = frozenset({"CommandExecution", "FileChange", "McpToolCall", "DynamicToolCall"})
ITEMS_SKIPPED: Final = frozenset(
    {"AgentMessage", "Reasoning", "Plan", "WebSearch", "ImageView", "ImageGeneration", "ContextCompaction"}
    | {"HookPrompt", "EnteredReviewMode", "ExitedReviewMode"}
)
LINES_SKIPPED: Final = frozenset({"turn_context", "world_state", "token_usage_record", "state", "session_state"})

# How the program begins the texts that it puts into the user's role by itself.
_CONTEXT: Final = (
    "<environment_context>",
    "# AGENTS.md instructions",
    "<user_instructions>",
    "<turn_aborted>",
    "<skill>",
    "<subagent_notification>",
    "<user_shell_command>",
    "<permissions instructions>",
    "<hook_prompt",
    "<collaboration_mode>",
    "<INSTRUCTIONS>",
    "<apps_instructions>",
    "<plugins_instructions>",
    "<model_switch>",
    "<goal_context>",
)


def turn_of(payload: dict[str, Any]) -> str | None:
    """Return the turn that a line names itself, None where it leaves it to its surroundings."""
    inner = payload.get("internal_chat_message_metadata_passthrough")
    if isinstance(inner, dict) and (turn := as_text(inner.get("turn_id"))):
        return turn
    return as_text(payload.get("turn_id")) or None


def text_of(content: object) -> str:
    """Return all text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(text for block in _blocks(content) if isinstance(text := block.get("text"), str))


def is_input(payload: dict[str, Any]) -> bool:
    """Return whether a message in the user's role is a person's, or what the program put there.

    Newer versions say so; in older ones the beginning of the text is all there is.
    """
    inner = payload.get("internal_chat_message_metadata_passthrough")
    metadata = inner.get("content_item_metadata") if isinstance(inner, dict) else None
    origins = {
        origin.get("type")
        for item in _blocks(metadata)
        if isinstance(origin := item.get("provenance"), dict) and isinstance(origin.get("type"), str)
    }
    if origins:
        return "user" in origins
    return not text_of(payload.get("content")).lstrip().startswith(_CONTEXT)


def message_content(payload: dict[str, Any]) -> str:
    """Return how much an assistant's message carries: text, or nothing."""
    return m.CONTENT_TEXT if text_of(payload.get("content")).strip() else m.CONTENT_NONE


def started_call(kind: str | None, payload: dict[str, Any]) -> str | None:
    """Return the call that an event proves to have been started; None where it proves none."""
    if kind in ENDS:
        return as_text(payload.get("call_id")) or as_text(payload.get("callId"))
    if kind == "item_completed":
        item = payload.get("item")
        if isinstance(item, dict) and as_text(item.get("type")) in ITEM_ENDS:
            return as_text(item.get("id"))
    return None


def user_event(kind: str | None, payload: dict[str, Any]) -> str | None:
    """Return the text of an event that says what a person wrote; None where it is another event."""
    if kind == "user_message":
        return as_text(payload.get("message")) or ""
    if kind == "item_completed":
        item = payload.get("item")
        if isinstance(item, dict) and item.get("type") == "UserMessage":
            return text_of(item.get("content"))
    return None


def version_of(raw: object) -> tuple[int, ...] | None:
    """Return a program version as numbers, None where it is none."""
    parts = raw.split("-")[0].split(".") if isinstance(raw, str) else []
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def _blocks(content: object) -> Iterable[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else ()
