"""Our own lines, one object each: every column and the payload of each entry, and the submissions.

For archives, for other programs, and for another database: importers/native.py reads them again. What is added to the
format is added in keys and line types of its own.
"""

from __future__ import annotations

import dataclasses

from reconciler.core.terms import is_canonical_input
from reconciler.exporters.base import Exported, Line, StoredSession, closings, dumped, iso


def export(session: StoredSession, *, repaired: bool) -> Exported:
    """Return the session's lines: a header, then each entry in the order of the record."""
    header = {
        "type": "session",
        "format": 1,
        "id": session.session_id,
        "origin": session.origin,
        "leaf_entry_id": session.leaf_entry_id,
        "source_format": session.source_format,
        "leaf_known_empty": session.leaf_known_empty,
    }
    found = Exported([Line(dumped(header))])
    for stored in session.entries:
        columns = {**dataclasses.asdict(stored.entry), "tool_call_ids": list(stored.entry.tool_call_ids)}
        # The payload as it is stored: no float and no key is written again.
        head = dumped({"type": "entry", "at": iso(stored.at), "entry": columns, "write_ahead": stored.write_ahead})
        found.lines.append(Line(f'{head[:-1]},"payload":{stored.text}}}', stored.entry.id))
    applied = {
        stored.entry.submission_id
        for stored in session.entries
        if stored.entry.submission_id is not None and is_canonical_input(stored.entry, stored.entry.submission_id)
    }
    for one in session.submissions:
        row = {"type": "submission", "submission_id": one.submission_id, "kind": one.kind, "status": one.status}
        head = dumped({**row, "outcome": one.outcome})
        if one.submission_id not in applied and one.input_text is not None:
            # Accepted, and never begun: nothing else holds what was asked for.
            head = f'{head[:-1]},"payload":{one.input_text}}}'
        found.lines.append(Line(head))
    for closing in closings(session) if repaired else ():
        marker = {
            "type": "closing",
            "entry_id": closing.call.entry_id,
            "position": closing.call.position,
            "tool_call_id": closing.call.call_id,
            "dispatch": closing.call.dispatch.value,
            "text": closing.text,
        }
        found.lines.append(Line(dumped(marker), closing.call.entry_id, True, closing.call.call_id))
    return found
