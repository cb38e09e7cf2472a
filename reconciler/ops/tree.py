"""`show`: a session's entries as a tree, its active path marked, texts cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.engine import Connection

from reconciler.core.model import OpenCall, SessionEntry
from reconciler.core.pairing import describe_open_calls, open_refs, pair_tree
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.graph import draw
from reconciler.ops.naming import no_such_session
from reconciler.ops.values import instant, known_word, text_of_stored, texts, unreadable_in
from reconciler.store import queries
from reconciler.store.queries import Row

_SUBMISSIONS_MAX: Final = 200
# A payload is read up to here to find its text; JSON escapes may take six characters for one.
_ESCAPED: Final = 8
_PAYLOAD_CHARS_MIN: Final = 65536


def show(asked: Asked) -> Reply:
    """Answer `show`."""
    session_id = asked["session"]
    with asked.reading() as conn:
        session = queries.session_row(conn, session_id)
        if session is None:
            raise no_such_session(conn, session_id)
        count = queries.count_entries(conn, session_id)
        rows = queries.newest_entries(conn, session_id, limit=asked["entries"])
        path, damage = _active_path(conn, session, rows, asked["entries"])
        shown = {row["seq"]: row for row in [*rows, *path]}
        ordered = [shown[seq] for seq in sorted(shown, reverse=True)]
        chars = asked["text_chars"] if asked.desk.show_texts else 0
        said = _texts(conn, session_id, [row["id"] for row in ordered], chars)
        submissions = queries.session_submissions(conn, session_id, limit=_SUBMISSIONS_MAX)
    active = {row["id"] for row in path}
    graph = draw([(row["id"], row["parent_id"]) for row in ordered], active)
    leaf = session["leaf_entry_id"]
    payload = {
        "session_id": session_id,
        "origin": known_word("origin", session["origin"]),
        "version": session["version"],
        "leaf_entry_id": leaf,
        "created_at": instant(session["created_at"]),
        "updated_at": instant(session["updated_at"]),
        "source": _source(session),
        "entry_count": count,
        "left_out": max(0, count - len(ordered)),
        "damage": damage,
        "unreadable": _unreadable(session, submissions, ordered),
        "submissions": [_submission(row) for row in submissions],
        "open_calls": [
            {
                "entry_id": call.entry_id,
                "position": call.position,
                "call_id": call.call_id,
                "dispatch": call.dispatch.value,
            }
            for call in _open_calls(path, ordered)
        ],
        "entries": [
            _node(row, line, said.get(row["id"], (None, False)), on_path=row["id"] in active, is_leaf=row["id"] == leaf)
            for row, line in zip(ordered, graph, strict=True)
        ],
    }
    return Reply(payload)


def _unreadable(session: Row, submissions: Sequence[Row], entries: Sequence[Row]) -> list[str]:
    rows: list[tuple[str, Row, tuple[str, ...]]] = [("its row", session, ())]
    rows += [(f'submission "{row["id"]}"', row, ()) for row in submissions]
    rows += [(f'entry "{row["id"]}"', row, ("tool_call_ids",)) for row in entries]
    return [f"{name}: {fault}" for name, row, columns in rows if (fault := unreadable_in(row, json_columns=columns))]


def _texts_of(row: Row) -> list[str]:
    try:
        return texts(row["tool_call_ids"])
    except ValueError:
        return []


def _active_path(conn: Connection, session: Row, rows: Sequence[Row], limit: int) -> tuple[list[Row], str | None]:
    """Return the active path from the leaf on as far as it is shown, and what is wrong with it."""
    leaf = session["leaf_entry_id"]
    if leaf is None:
        empty = not rows or session["leaf_known_empty"]
        return [], None if empty else "the session has entries and no leaf"
    by_id = {row["id"]: row for row in rows}
    if leaf not in by_id:
        # An older entry: it stands below nothing that is newer, so its whole path is older too.
        walked, missing = queries.walk_up(conn, session["id"], leaf, limit=limit)
        what = "leaf" if not walked else "parent"
        return list(walked), None if missing is None else f'the {what} "{missing}" is missing'
    path: list[Row] = []
    seen: set[str] = set()
    wanted: str | None = leaf
    while wanted is not None:
        if wanted in seen:
            return path, f'the entries form a cycle at "{wanted}"'
        row = by_id.get(wanted)
        if row is None:
            missing_ids = queries.missing_entries(conn, session["id"], [wanted])
            return path, f'the parent "{wanted}" is missing' if missing_ids else None
        seen.add(wanted)
        path.append(row)
        wanted = row["parent_id"]
    return path, None


def _texts(conn: Connection, session_id: str, entry_ids: Sequence[str], chars: int) -> dict[str, tuple[str, bool]]:
    """Return what people would read of the entries' payloads, and whether it is only the beginning."""
    if chars == 0:
        return {}
    most = max(_PAYLOAD_CHARS_MIN, chars * _ESCAPED)
    found: dict[str, tuple[str, bool]] = {}
    for entry_id, stored in queries.payload_texts(conn, session_id, entry_ids, chars_max=most + 1).items():
        text = text_of_stored(stored, chars)
        if text:
            found[entry_id] = (text[:chars], len(text) > chars or len(stored) > most)
    return found


def _open_calls(path: Sequence[Row], shown: Sequence[Row]) -> tuple[OpenCall, ...]:
    """Return the calls of the path without a result, on it or on a branch beside it (R7)."""
    on_path = {row["id"] for row in path}
    beside = [_entry(row) for row in reversed(shown) if row["id"] not in on_path]
    pairing = pair_tree([_entry(row) for row in reversed(path)], beside)
    return describe_open_calls(pairing, open_refs(pairing))


def _entry(row: Row) -> SessionEntry:
    return SessionEntry(
        id=row["id"],
        parent_id=row["parent_id"],
        kind=row["kind"],
        role=row["role"],
        submission_id=row["submission_id"],
        attempt_id=row["attempt_id"],
        stop_reason=row["stop_reason"],
        tool_call_ids=tuple(_texts_of(row)),
        tool_call_id=row["tool_call_id"],
        content=row["content"],
        is_synthetic=row["is_synthetic"],
        is_sidechain=row["is_sidechain"],
        ends_turn=row["ends_turn"],
        starts_logged=row["starts_logged"],
    )


def _node(row: Row, line: str, said: tuple[str | None, bool], *, on_path: bool, is_leaf: bool) -> dict[str, Any]:
    return {
        "graph": line,
        "entry_id": row["id"],
        "parent_id": row["parent_id"],
        "seq": row["seq"],
        "kind": row["kind"],
        "role": row["role"],
        "submission_id": row["submission_id"],
        "attempt_id": row["attempt_id"],
        "stop_reason": row["stop_reason"],
        "tool_call_ids": _texts_of(row),
        "tool_call_id": row["tool_call_id"],
        "is_synthetic": row["is_synthetic"],
        "is_sidechain": row["is_sidechain"],
        "on_active_path": on_path,
        "is_leaf": is_leaf,
        "created_at": instant(row["created_at"]),
        "text": said[0],
        "text_cut": said[1],
    }


def _submission(row: Row) -> dict[str, Any]:
    return {
        "submission_id": row["id"],
        "status": known_word("status", row["status"]),
        "outcome": known_word("outcome", row["outcome"]),
        "reason": row["outcome_reason"] or row["decision_reason"],
        "held_reason": row["held_reason"],
        "admitted_at": instant(row["admitted_at"]),
        "settled_at": instant(row["settled_at"]),
    }


def _source(session: Row) -> dict[str, Any] | None:
    if session["source_locator"] is None:
        return None
    return {
        "source_id": session["source_id"],
        "format": session["source_format"],
        "locator": session["source_locator"],
        "quiet_since": instant(session["quiet_since"]),
        "owned_at": instant(session["owned_at"]),
    }
