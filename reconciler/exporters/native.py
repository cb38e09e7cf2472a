"""Our own lines: every column and the payload of each entry, for archives and for other programs. One object a line."""

from __future__ import annotations

import dataclasses

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
    }
    found = Exported([Line(dumped(header))])
    for stored in session.entries:
        columns = {**dataclasses.asdict(stored.entry), "tool_call_ids": list(stored.entry.tool_call_ids)}
        # The payload as it is stored: no float and no key is written again.
        head = dumped({"type": "entry", "at": iso(stored.at), "entry": columns})
        found.lines.append(Line(f'{head[:-1]},"payload":{stored.text}}}', stored.entry.id))
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
