"""What the classifier says of imported sessions, in few words, for tests of importers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reconciler.core.classifier import inspect_session
from reconciler.core.model import CallDispatch, Inspection
from reconciler.importers.base import ImportedSession


def inspected(session: ImportedSession, submission_id: str | None = None) -> Inspection:
    """Inspect a submission of a session, its pending one where none is named."""
    if submission_id is None:
        submission_id = pending(session)
    return inspect_session(
        [imported.entry for imported in session.entries],
        session.leaf_entry_id,
        submission_id,
        leaf_known_empty=session.leaf_known_empty,
    )


def pending(session: ImportedSession) -> str:
    """Return the only pending submission that was applied."""
    (found,) = [s.submission_id for s in session.submissions if s.is_pending and s.kind != "queued"]
    return found


def verdict(session: ImportedSession, submission_id: str | None = None) -> tuple[str, str]:
    """Return state and detail."""
    found = inspected(session, submission_id)
    return found.state.value, found.detail.value


def dispatch(session: ImportedSession) -> Mapping[str, str]:
    """Return what is known of the start of each open call, by the call's id."""
    found = inspected(session)
    by_id = {imported.entry.id: imported.entry for imported in session.entries}
    return {by_id[entry].tool_call_ids[at]: CallDispatch(value).value for (entry, at), value in found.dispatch.items()}


def chain(session: ImportedSession) -> list[str]:
    """Return the ids of the active path, root first."""
    by_id: dict[str, Any] = {imported.entry.id: imported.entry for imported in session.entries}
    found: list[str] = []
    at = session.leaf_entry_id
    while at is not None and at in by_id:
        found.append(at)
        at = by_id[at].parent_id
    return found[::-1]
