"""What is measured on: a history of settled work, and work that is due, by bulk load, the same on both databases.

History is made by the database itself from a series of numbers; due work is made here row by row, since it differs from
row to row. Knows nothing of what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.bench.databases import Database

Row = tuple[Any, ...]

PAYLOAD_BYTES: Final = 1_000
# Rows of history that one statement makes.
_PIECE: Final = 200_000
PER_SESSION: Final = 10

# How the turn of a due submission ends.
FINISHED: Final = "finished"
UNRESOLVED: Final = "unresolved"
ABORTED: Final = "aborted"


def payload(size: int = PAYLOAD_BYTES) -> str:
    """Return a payload of about *size* bytes, canonical JSON."""
    return json.dumps({"text": "x" * max(0, size - 11)}, separators=(",", ":"))


# --- history ---------------------------------------------------------------------------------------------------------

# {n} is the number of the submission, from 0; {id} and {at} make an id and an instant of it.
_HISTORY: Final = (
    (
        "INSERT INTO sessions (id, origin, version, leaf_entry_id, last_seq, last_ticket, created_at, updated_at)"
        " SELECT {session}, 'native', 20, 'submission-settled:' || {last}, 20, 10, {at}, {at} FROM {series}"
        " WHERE n % 10 = 0"
    ),
    (
        "INSERT INTO submissions (session_id, id, status, revision, ticket, content_digest, admitted_at,"
        " last_attempt_id,"
        " claims, attempts_spent, attempts_begun, decision_count, decision_action, decision_reason, decision_revision,"
        " decision_version, outcome, outcome_reason, outcome_detail, answer_entry_id, settlement_entry_id, recovered,"
        " settled_at, acknowledged_at)"
        " SELECT {session}, {id}, 'settled', 2, n % 10 + 1, 'digest', {at}, 'at-' || {id}, 1, 1, 1, 2, 'settle',"
        " 'completed', 2, 20, 'completed', 'completed', 'response_finished', 'submission-input:' || {id},"
        " 'submission-settled:' || {id}, {false}, {at}, {at} FROM {series}"
    ),
    (
        "INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, write_ahead, created_at)"
        " SELECT {session}, 2 * (n % 10) + 1, 'submission-input:' || {id},"
        " CASE WHEN n % 10 > 0 THEN 'submission-settled:' || {before} END, 'message', 'user', {id}, {true}, {at}"
        " FROM {series}"
    ),
    (
        "INSERT INTO entries (session_id, seq, id, parent_id, kind, submission_id, content, is_synthetic, write_ahead,"
        " created_at)"
        " SELECT {session}, 2 * (n % 10) + 2, 'submission-settled:' || {id}, 'submission-input:' || {id},"
        " 'submission_settled', {id}, 'none', {true}, {true}, {at} FROM {series}"
    ),
    (
        "INSERT INTO entry_payloads (session_id, entry_id, payload)"
        " SELECT {session}, 'submission-input:' || {id}, {payload} FROM {series}"
    ),
    (
        "INSERT INTO entry_payloads (session_id, entry_id, payload)"
        " SELECT {session}, 'submission-settled:' || {id}, {payload} FROM {series}"
    ),
)
_FORMS: Final = {
    "postgresql": {
        "session": "'old-' || lpad((n / 10)::text, 8, '0')",
        "id": "lpad(n::text, 9, '0')",
        "last": "lpad((n + 9)::text, 9, '0')",
        "before": "lpad((n - 1)::text, 9, '0')",
        "at": "timestamptz '2026-01-01 00:00:00+00' + n * interval '1 second'",
        "series": "generate_series({first}::bigint, {last}::bigint) AS s(n)",
        "true": "true",
        "false": "false",
    },
    "sqlite": {
        "session": "printf('old-%08d', n / 10)",
        "id": "printf('%09d', n)",
        "last": "printf('%09d', n + 9)",
        "before": "printf('%09d', n - 1)",
        "at": "strftime('%Y-%m-%dT%H:%M:%S.000000Z', 1767225600 + n, 'unixepoch')",
        "series": "(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last})"
        " SELECT n FROM s)",
        "true": "1",
        "false": "0",
    },
}


def add_history(database: Database, upto: int, *, have: int = 0, payload_bytes: int = PAYLOAD_BYTES) -> None:
    """Put settled submissions until there are *upto*, each with two entries and their payloads."""
    conn = database.driver()
    forms = _FORMS[database.kind]
    if database.kind == "sqlite":
        conn.execute("PRAGMA synchronous=OFF")
        conn.execute("PRAGMA cache_size=-400000")
    else:
        conn.execute("SET synchronous_commit = off")
    for first in range(have, upto, _PIECE):
        last = min(first + _PIECE, upto) - 1
        series = forms["series"].format(first=first, last=last)
        words = {**forms, "series": series, "payload": f"'{payload(payload_bytes)}'"}
        for statement in _HISTORY:
            conn.execute(statement.format(**words))
    if database.kind == "sqlite":
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()


# --- due work --------------------------------------------------------------------------------------------------------

_SESSIONS: Final = (
    "id", "origin", "version", "leaf_entry_id", "last_seq", "last_ticket", "created_at", "updated_at",
)  # fmt: skip
_ENTRIES: Final = (
    "session_id", "seq", "id", "parent_id", "kind", "role", "submission_id", "attempt_id", "stop_reason",
    "tool_call_ids", "tool_call_id", "content", "starts_logged", "write_ahead", "created_at",
)  # fmt: skip
_PAYLOADS: Final = ("session_id", "entry_id", "payload")
_SUBMISSIONS: Final = (
    "session_id", "id", "status", "revision", "ticket", "content_digest", "admitted_at", "reconcile_at",
    "current_attempt_id", "claims", "attempts_spent", "attempts_begun", "decision_count", "decision_action",
    "decision_reason", "decision_revision", "decision_version",
)  # fmt: skip
_ATTEMPTS: Final = (
    "session_id", "attempt_id", "submission_id", "number", "owner", "boot_id", "claimed_at", "lease_s", "beat_s",
    "beat_at", "lease_expires_at", "begun_at", "progress_at",
)  # fmt: skip
_DECISIONS: Final = (
    "session_id", "submission_id", "number", "decided_at", "action", "reason", "session_version", "revision",
)  # fmt: skip

SUBMISSION: Final = "the-submission"


def add_due(
    database: Database,
    count: int,
    *,
    prefix: str,
    ends: str = FINISHED,
    tail: int | None = None,
    before: int = 0,
    payload_bytes: int = PAYLOAD_BYTES,
    lease_ended: bool = True,
) -> None:
    """Put *count* sessions with a running submission each.

    The turn has *tail* entries after the input (None: 1 to 9, by the session's number), and *before* entries stand
    before the input. The leases ended a minute ago, or last an hour longer.
    """
    conn = database.driver()
    now = datetime.now(UTC)
    lease = now + timedelta(seconds=-60 if lease_ended else 3600)
    due = now - timedelta(seconds=60) if lease_ended else lease
    made = _Due(prefix, ends, tail, before, payload(payload_bytes), lease, due)
    step = max(1, min(2_000, 200_000 // (before + (tail or 9) + 1)))
    for first in range(0, count, step):
        made.clear()
        for number in range(first, min(first + step, count)):
            made.add(number)
        _load(database, conn, made)
    conn.close()


def _load(database: Database, conn: Any, made: _Due) -> None:
    tables: Sequence[tuple[str, Sequence[str], Iterable[Row]]] = (
        ("sessions", _SESSIONS, made.sessions),
        ("entries", _ENTRIES, made.entries),
        ("entry_payloads", _PAYLOADS, made.payloads),
        ("submissions", _SUBMISSIONS, made.submissions),
        ("attempts", _ATTEMPTS, made.attempts),
        ("decisions", _DECISIONS, made.decisions),
    )
    if database.kind == "sqlite":
        conn.execute("BEGIN IMMEDIATE")
        for table, columns, rows in tables:
            marks = ", ".join("?" * len(columns))
            conn.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
        conn.execute("COMMIT")
        return
    with conn.transaction(), conn.cursor() as cursor:
        for table, columns, rows in tables:
            with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
                copy.write("".join(_lines(rows)))


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield "\t".join("\\N" if value is None else str(value).replace("\\", "\\\\") for value in row) + "\n"


class _Due:
    """Rows of due work, as texts and numbers that both databases take."""

    def __init__(
        self, prefix: str, ends: str, tail: int | None, before: int, text: str, lease: datetime, due: datetime
    ) -> None:
        self._prefix = prefix
        self._ends = ends
        self._tail = tail
        self._before = before
        self._payload = text
        self._lease = _text(lease)
        self._due = due
        self._beat = _text(lease - timedelta(seconds=15))
        self._claimed = _text(min(lease, due) - timedelta(minutes=5))
        self.clear()

    def clear(self) -> None:
        self.sessions: list[Row] = []
        self.entries: list[Row] = []
        self.payloads: list[Row] = []
        self.submissions: list[Row] = []
        self.attempts: list[Row] = []
        self.decisions: list[Row] = []

    def add(self, number: int) -> None:
        session_id, fence = f"{self._prefix}-{number:07d}", f"{self._prefix}-at-{number:07d}"
        at = self._claimed
        tail = number % 9 + 1 if self._tail is None else self._tail
        seq, parent = 0, None
        turn = _turn(tail, self._ends)
        earlier = (
            ("message", "user" if place % 2 == 0 else "assistant", None, None, None) for place in range(self._before)
        )
        for place, (kind, role, stop, calls, call) in enumerate(
            (*earlier, ("message", "user", None, None, None), *turn)
        ):
            is_input, is_before = place == self._before, place < self._before
            seq += 1
            entry_id = f"submission-input:{SUBMISSION}" if is_input else f"e-{seq:06d}"
            if is_before and role == "assistant":
                stop = "stop"
            self.entries.append(
                (
                    session_id, seq, entry_id, parent, kind, role, "earlier" if is_before else SUBMISSION,
                    None if is_before or is_input else fence, stop, calls, call, "none" if calls else "text", 1, 1, at,
                )
            )  # fmt: skip
            if not is_before:
                self.payloads.append((session_id, entry_id, self._payload))
            parent = entry_id
        self.sessions.append((session_id, "native", seq, parent, seq, 1, at, at))
        due = _text(self._due + timedelta(microseconds=number))
        self.submissions.append(
            (session_id, SUBMISSION, "running", 1, 1, "digest", at, due, fence, 1, 1, 1, 1, "requeue", "admitted", 0, 0)
        )
        self.attempts.append(
            (session_id, fence, SUBMISSION, 1, "lost", "another", at, 15.0, 0.2, self._beat, self._lease, at, at)
        )
        self.decisions.append((session_id, SUBMISSION, 1, at, "admit", "admitted", 0, 0))


def _turn(tail: int, ends: str) -> Iterator[tuple[str, str | None, str | None, str | None, str | None]]:
    """Yield kind, role, stop reason, calls and call of the entries after the input."""
    rest = tail - 1
    if rest % 2:
        yield "custom", None, None, None, None
    for step in range(rest // 2):
        yield "message", "assistant", "tool_use", f'["call-{step}"]', None
        yield "message", "tool_result", None, None, f"call-{step}"
    if tail == 0:
        return
    if ends == UNRESOLVED:
        yield "message", "assistant", "tool_use", '["call-last"]', None
    else:
        yield "message", "assistant", "stop" if ends == FINISHED else "aborted", None, None


def _text(instant: datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
