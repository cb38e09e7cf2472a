"""Questions that answer with rows: submissions page by page, decisions as they are made."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any, Final

from reconciler.core.canonical import canonical_json
from reconciler.core.states import DecisionAction
from reconciler.core.unreadable import UnreadableInstant
from reconciler.errors import InvalidInput
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import parse_instant
from reconciler.ops.parameters import PAGE_ROWS_MAX
from reconciler.ops.values import from_token, instant, known_word, to_token, unreadable_in
from reconciler.store.listing import TAIL_OVERLAP_S, Filters, Place, Which, decisions_since, submissions_page
from reconciler.store.queries import Row

# --- list ------------------------------------------------------------------------------------------------------------


def list_submissions(asked: Asked) -> Reply:
    """Answer `list`."""
    filters = _filters(asked)
    made_with = _fingerprint(asked)
    after = None if asked["page"] is None else _place(asked["page"], made_with, asked.now)
    with asked.reading() as conn:
        page = submissions_page(conn, filters, limit=asked["limit"], after=after)
    late = page.now - timedelta(seconds=filters.overdue_s)
    return Reply(
        {
            "submissions": [_listed(row, late) for row in page.rows],
            "next_page": None if page.next is None else _page_token(page.next, made_with),
        }
    )


def _filters(asked: Asked) -> Filters:
    which = asked["status"]
    if which is None:
        which = "settled" if asked["outcome"] else "all" if asked["session"] else "unsettled"
    if asked["outcome"] and which not in ("settled", "all"):
        raise InvalidInput(
            f'nothing can have an outcome and be "{which}"', hint="leave --status out, or name settled or all"
        )
    sort = asked["sort"] or ("newest" if which == "settled" else "oldest")
    return Filters(
        which=Which(which),
        session_id=asked["session"],
        outcome=asked["outcome"],
        reason=asked["reason"],
        origin=asked["origin"],
        owner=asked["owner"],
        since=asked["since"],
        until=asked["until"],
        oldest_first=sort == "oldest",
        overdue_s=asked.desk.limits.overdue_s,
    )


_NOT_A_FILTER: Final = frozenset({"limit", "page", "since", "until"})


def _fingerprint(asked: Asked) -> str:
    # "2h" names another instant each time it is asked: lengths of time are no part of it.
    wanted = {name: value for name, value in asked.params.items() if name not in _NOT_A_FILTER}
    return hashlib.sha256(canonical_json(wanted).encode()).hexdigest()[:12]


def _page_token(place: Place, made_with: str) -> str:
    return to_token(
        {
            "f": made_with,
            "s": place.settled,
            **({"raw": place.at.text} if isinstance(place.at, UnreadableInstant) else {"at": instant(place.at)}),
            "session": place.session_id,
            "submission": place.submission_id,
        }
    )


def _place(token: str, made_with: str, now: datetime) -> Place:
    found = from_token(token, "page")
    if found.get("f") != made_with:
        raise InvalidInput(
            "the page belongs to other filters or another order", hint="repeat them, or leave --page out"
        )
    session, submission, settled = found.get("session"), found.get("submission"), found.get("s")
    if not isinstance(session, str) or not isinstance(submission, str) or not isinstance(settled, bool):
        raise InvalidInput("cannot read the page given", hint="give the next_page of an earlier answer")
    raw = found.get("raw")
    at = UnreadableInstant.of(raw) if isinstance(raw, str) else parse_instant("page", found.get("at"), now)
    return Place(settled, at, session, submission)


def _listed(row: Row, late: datetime) -> dict[str, Any]:
    settled = "settled_at" in row
    claimable_from = row.get("claimable_from")
    return {
        "session_id": row["session_id"],
        "submission_id": row["submission_id"],
        "origin": known_word("origin", row["origin"]),
        "status": "settled" if settled else known_word("status", row["status"]),
        "outcome": known_word("outcome", row.get("outcome")),
        "reason": row["reason"] if settled else row["decision_reason"],
        "detail": row["detail"] if settled else row["decision_detail"],
        "action": DecisionAction.SETTLE.value if settled else row["decision_action"],
        "held_at": instant(row.get("held_at")),
        "held_reason": row.get("held_reason"),
        "blocked": bool(row.get("is_blocked", False)),
        "overdue": claimable_from is not None and claimable_from <= late,
        "is_head": bool(row.get("is_head", False)),
        "admitted_at": instant(row["admitted_at"]),
        "settled_at": instant(row.get("settled_at")),
        "recovered": row.get("recovered"),
        "claimable_from": instant(claimable_from),
        "reconcile_at": instant(row.get("reconcile_at")),
        "deadline_at": instant(row.get("deadline_at")),
        "abort_requested_at": instant(row.get("abort_requested_at")),
        "parked_until": instant(row.get("parked_until")),
        "owner": row.get("owner"),
        "lease_expires_at": instant(row.get("lease_expires_at")),
        "claims": row["claims"],
        "attempts_spent": row["attempts_spent"],
        "crashes_in_row": row["crashes_in_row"],
        "provider_errors": row["provider_errors"],
        "unreadable": unreadable_in(row),
    }


# --- tail ------------------------------------------------------------------------------------------------------------

# Decisions of the overlap that a position remembers as shown.
_SEEN_MAX: Final = 2000


def tail(asked: Asked) -> Reply:
    """Answer `tail`: decisions not shown before, and the position to go on from."""
    since, seen = asked["since"], frozenset[str]()
    if asked["position"] is not None:
        since, seen = _position(asked["position"], asked.now)
    overlap = timedelta(seconds=TAIL_OVERLAP_S)
    with asked.reading() as conn:
        # What was shown stands in the overlap: room for it beside what is new.
        limit = min(asked["limit"] + len(seen), PAGE_ROWS_MAX + _SEEN_MAX)
        rows, now = decisions_since(conn, since=since, session_id=asked["session"], limit=limit)
    fresh = [row for row in rows if _mark(row) not in seen][: asked["limit"]]
    if rows:
        # Up to the last row shown; where all were shown, up to now, less what may still become visible.
        reached = fresh[-1]["decided_at"] if fresh else rows[-1]["decided_at"]
    else:
        reached = now if since is None else since
    start = reached - overlap if since is None else max(since, reached - overlap)
    shown = {_mark(row) for row in fresh} | seen
    kept = [row for row in rows if row["decided_at"] >= start and _mark(row) in shown]
    if len(kept) > _SEEN_MAX:
        # More than a position can carry came within the overlap: the window shrinks, what was shown stays shown.
        kept = kept[-_SEEN_MAX:]
        start = kept[0]["decided_at"]
    return Reply(
        {
            "decisions": [_decided(row) for row in fresh],
            "position": to_token({"at": instant(start), "seen": [_mark(row) for row in kept]}),
        }
    )


def _position(token: str, now: datetime) -> tuple[datetime, frozenset[str]]:
    found = from_token(token, "position")
    seen = found.get("seen")
    if not isinstance(seen, list) or len(seen) > _SEEN_MAX:
        raise InvalidInput("cannot read the position given", hint="give the position of an earlier answer")
    return parse_instant("position", found.get("at"), now), frozenset(str(mark) for mark in seen)


def _mark(row: Row) -> str:
    key = canonical_json([row["session_id"], row["submission_id"], row["number"]])
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _decided(row: Row) -> dict[str, Any]:
    return {
        "session_id": row["session_id"],
        "submission_id": row["submission_id"],
        "number": row["number"],
        "decided_at": instant(row["decided_at"]),
        "decided_by": row["decided_by"],
        "action": row["action"],
        "advice": row["advice"],
        "reason": row["reason"],
        "state": row["state"],
        "detail": row["detail"],
        "outcome": row["outcome"],
        "attempt_end": row["attempt_end"],
        "mode": row["plan_mode"],
        "note": row["note"],
    }
