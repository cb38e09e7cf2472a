"""The classifier's terms, one predicate each (contract 3.1, "Terms"), and the ids that are derived from others.

Every predicate looks at one entry and is total: unknown kinds, roles, contents and stop reasons are simply none of the
known ones. This file knows nothing of paths, sessions or tables.
"""

from __future__ import annotations

from typing import Final

from reconciler.core.model import (
    CONTENT_NONE,
    CONTENT_TEXT,
    INPUT_ID_PREFIX,
    KIND_MESSAGE,
    KIND_SUBMISSION_SETTLED,
    KIND_TOOL_STARTED,
    MARKER_ID_PREFIX,
    ROLE_ASSISTANT,
    ROLE_SIGNAL,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    SETTLEMENT_ID_PREFIX,
    STOP_ABORTED,
    STOP_ERROR,
    STOP_LENGTH,
    STOP_REASONS,
    STOP_STOP,
    STOP_TOOL_USE,
    SessionEntry,
)

STOPPED_BY_USER: Final = "user"

_FINISHED: Final = frozenset({STOP_STOP, STOP_LENGTH})
FAILED_STOPS: Final = frozenset({STOP_ERROR, STOP_ABORTED})
# R4: a message that ended so is the end of its response.
RESPONSE_ENDS: Final = _FINISHED | FAILED_STOPS


def submission_settlement_entry_id(submission_id: str) -> str:
    """Return the id of the canonical settlement entry that this system writes for a submission."""
    return SETTLEMENT_ID_PREFIX + submission_id


def submission_input_entry_id(submission_id: str) -> str:
    """Return the id of the canonical input that ``begin`` writes in native sessions."""
    return INPUT_ID_PREFIX + submission_id


def tool_marker_entry_id(entry_id: str, position: int) -> str:
    """Return the id of the marker that closes the call at *position* of the message *entry_id*.

    The length (in characters) keeps it unambiguous: entry ids may hold colons.
    """
    return f"{MARKER_ID_PREFIX}{len(entry_id)}:{entry_id}:{position}"


def stop_reason(entry: SessionEntry) -> str | None:
    """Return how the message ended: an unknown reason reads as ``tool_use`` beside calls, else as None."""
    stop = entry.stop_reason
    if stop is None or stop in STOP_REASONS:
        return stop
    return STOP_TOOL_USE if entry.tool_call_ids else None


def is_settlement(entry: SessionEntry, submission_id: str) -> bool:
    """Tell a canonical settlement entry. It is no message, so a sidechain flag takes nothing from it (I1, I2)."""
    return entry.kind == KIND_SUBMISSION_SETTLED and entry.submission_id == submission_id


def is_canonical_input(entry: SessionEntry, submission_id: str) -> bool:
    """Tell a canonical input of the submission."""
    return (
        entry.kind == KIND_MESSAGE
        and entry.role in (ROLE_USER, ROLE_SIGNAL)
        and entry.submission_id == submission_id
        and not entry.is_synthetic
        and not entry.is_sidechain
    )


def is_foreign_input(entry: SessionEntry, submission_id: str) -> bool:
    """Tell an input that isn't this submission's: a person's message, or a signal that carries another id."""
    if entry.kind != KIND_MESSAGE or entry.is_synthetic or entry.is_sidechain or entry.submission_id == submission_id:
        return False
    return entry.role == ROLE_USER or (entry.role == ROLE_SIGNAL and entry.submission_id is not None)


def is_tool_result(entry: SessionEntry) -> bool:
    """Tell a tool result; a repair marker is one."""
    return entry.kind == KIND_MESSAGE and entry.role == ROLE_TOOL_RESULT and not entry.is_sidechain


def is_tool_start(entry: SessionEntry) -> bool:
    """Tell the record of a tool's start (R13)."""
    return entry.kind == KIND_TOOL_STARTED and not entry.is_sidechain


def is_assistant(entry: SessionEntry) -> bool:
    """Tell an assistant message, a runtime's filler included."""
    return entry.kind == KIND_MESSAGE and entry.role == ROLE_ASSISTANT and not entry.is_sidechain


def is_response(entry: SessionEntry) -> bool:
    """Tell an assistant message that a model wrote, bare or not."""
    return is_assistant(entry) and not entry.is_synthetic


def is_bare(entry: SessionEntry) -> bool:
    """Tell whether an assistant message carries nothing."""
    return entry.content == CONTENT_NONE and not entry.tool_call_ids


def is_real_response(entry: SessionEntry) -> bool:
    """Tell a real assistant message: a response that is not bare, or that its writer closed in good order."""
    return is_response(entry) and (not is_bare(entry) or stop_reason(entry) in (STOP_STOP, STOP_LENGTH, STOP_TOOL_USE))


def is_finished(entry: SessionEntry) -> bool:
    """Tell whether a response is a finished answer: no calls, and closed, or with text and no word of its end."""
    if entry.tool_call_ids:
        return False
    stop = stop_reason(entry)
    return stop in _FINISHED or (stop is None and entry.content == CONTENT_TEXT)


def is_closed_answer(entry: SessionEntry) -> bool:
    """Tell a finished answer whose end is on record (R10 trusts no other in a damaged session)."""
    return not entry.tool_call_ids and stop_reason(entry) in _FINISHED
