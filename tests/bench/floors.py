"""The floors: the fewest raw statements, with the driver alone, that do the same durable work as the program does.

Each settles submissions whose turn is finished. The same rows are written into the same tables with the same values; no
value is checked, no case but this one is known, nothing is retried, and texts are put together as cheaply as can be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

BATCH: Final = 500

# session, submission, revision, attempt, version, leaf, last_seq; then what the classifier found
Due = tuple[str, str, int, str, int, str, int]
# What is written of one: session, submission, attempt, version, revision, last_seq, leaf, payload, inspection, evidence
Write = tuple[str, str, str, int, int, int, str, str, str, str]


def write_of(due: Due, answer: str, input_id: str) -> Write:
    """Return what is written of a finished turn."""
    session_id, submission_id, revision, attempt_id, version, leaf, last_seq = due
    payload = (
        f'{{"answer_entry_id":"{answer}","attempt_id":"{attempt_id}","detail":"response_finished","error":null,'
        f'"evidence":["{answer}"],"outcome":"completed","reason":"completed","recovered":true}}'
    )
    inspection = f'{{"deciding_entry_id":"{answer}","input_entry_id":"{input_id}"}}'
    evidence = f'["{answer}"]'
    return session_id, submission_id, attempt_id, version, revision, last_seq, leaf, payload, inspection, evidence


def _answer(path: Sequence[Sequence[Any]]) -> tuple[str, str]:
    """Return the last message of a path, leaf first, and the input below which it stands."""
    answer = ""
    for _, entry_id, role, stop, submission_id in path:
        if role == "user" and submission_id is not None:
            return answer, entry_id
        if not answer and role == "assistant":
            if stop != "stop":
                raise AssertionError("the floor knows finished turns only")
            answer = entry_id
    raise AssertionError("there is no input")


# --- PostgreSQL ------------------------------------------------------------------------------------------------------

_PG_DUE: Final = """
SELECT s.session_id, s.id, s.revision, s.current_attempt_id, x.version, x.leaf_entry_id, x.last_seq
FROM submissions s JOIN sessions x ON x.id = s.session_id
JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id
WHERE s.status <> 'settled' AND s.reconcile_at <= %s AND a.lease_expires_at <= %s
ORDER BY s.reconcile_at, s.session_id, s.id LIMIT %s FOR UPDATE OF x, s, a SKIP LOCKED
"""
_PG_PATHS: Final = """
SELECT k.n, e.id, e.role, e.stop_reason, e.submission_id
FROM unnest(%s::int[], %s::text[], %s::bigint[]) AS k(n, session_id, last_seq)
CROSS JOIN LATERAL (SELECT * FROM entries e WHERE e.session_id = k.session_id AND e.seq <= k.last_seq
  ORDER BY e.seq DESC LIMIT 32) e
"""
_PG_TABLE: Final = """
CREATE TEMP TABLE w (session_id text COLLATE "C", submission_id text COLLATE "C", attempt_id text COLLATE "C",
  version bigint, revision bigint, last_seq bigint, leaf text COLLATE "C", payload text, inspection text, evidence text)
ON COMMIT DELETE ROWS
"""
_PG_COPY: Final = "COPY w FROM STDIN"
_PG_WRITE: Final = """
WITH ses AS (
  UPDATE sessions x SET version = x.version + 1, last_seq = x.last_seq + 1,
    leaf_entry_id = 'submission-settled:' || w.submission_id, updated_at = %(now)s
  FROM w WHERE x.id = w.session_id AND x.version = w.version
  RETURNING w.*
),
sub AS (
  UPDATE submissions s SET status = 'settled', revision = s.revision + 1, reconcile_at = NULL, not_before = NULL,
    last_attempt_id = s.current_attempt_id, current_attempt_id = NULL, decision_count = s.decision_count + 1,
    decision_action = 'settle', decision_reason = 'completed', decision_revision = s.revision + 1,
    decision_version = w.version, outcome = 'completed', outcome_reason = 'completed',
    outcome_detail = 'response_finished', answer_entry_id = w.leaf,
    settlement_entry_id = 'submission-settled:' || w.submission_id, recovered = true, settled_at = %(now)s
  FROM ses w WHERE s.session_id = w.session_id AND s.id = w.submission_id AND s.revision = w.revision
),
ent AS (
  INSERT INTO entries (session_id, seq, id, parent_id, kind, submission_id, content, is_synthetic, write_ahead,
    created_at)
  SELECT session_id, last_seq + 1, 'submission-settled:' || submission_id, leaf, 'submission_settled', submission_id,
    'none', true, true, %(now)s FROM ses
),
pay AS (
  INSERT INTO entry_payloads SELECT session_id, 'submission-settled:' || submission_id, payload FROM ses
),
att AS (
  UPDATE attempts a SET ended_at = %(now)s, end_kind = 'crashed' FROM ses w
  WHERE a.session_id = w.session_id AND a.attempt_id = w.attempt_id
)
INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, action, reason, gate, state, detail,
  outcome, attempt_id, attempt_end, evidence, inspection, session_version, revision)
SELECT session_id, submission_id, 2, %(now)s, 'the-pass', 'settle', 'completed', 3, 'completed', 'response_finished',
  'completed', attempt_id, 'crashed', evidence, inspection, version, revision + 1 FROM ses
"""
_PG_ONE: Final = (
    (
        "UPDATE sessions SET version = version + 1, last_seq = last_seq + 1,"
        " leaf_entry_id = 'submission-settled:' || %(submission)s, updated_at = %(now)s"
        " WHERE id = %(session)s AND version = %(version)s"
    ),
    (
        "UPDATE submissions SET status = 'settled', revision = revision + 1, reconcile_at = NULL, not_before = NULL,"
        " last_attempt_id = current_attempt_id, current_attempt_id = NULL, decision_count = decision_count + 1,"
        " decision_action = 'settle', decision_reason = 'completed', decision_revision = revision + 1,"
        " decision_version = %(version)s, outcome = 'completed', outcome_reason = 'completed',"
        " outcome_detail = 'response_finished', answer_entry_id = %(leaf)s,"
        " settlement_entry_id = 'submission-settled:' || %(submission)s, recovered = true, settled_at = %(now)s"
        " WHERE session_id = %(session)s AND id = %(submission)s AND revision = %(revision)s"
    ),
    (
        "INSERT INTO entries (session_id, seq, id, parent_id, kind, submission_id, content, is_synthetic, write_ahead,"
        " created_at) VALUES (%(session)s, %(last_seq)s + 1, 'submission-settled:' || %(submission)s, %(leaf)s,"
        " 'submission_settled', %(submission)s, 'none', true, true, %(now)s)"
    ),
    "INSERT INTO entry_payloads VALUES (%(session)s, 'submission-settled:' || %(submission)s, %(payload)s)",
    (
        "UPDATE attempts SET ended_at = %(now)s, end_kind = 'crashed'"
        " WHERE session_id = %(session)s AND attempt_id = %(attempt)s"
    ),
    (
        "INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, action, reason, gate, state,"
        " detail, outcome, attempt_id, attempt_end, evidence, inspection, session_version, revision)"
        " VALUES (%(session)s, %(submission)s, 2, %(now)s, 'the-pass', 'settle', 'completed', 3, 'completed',"
        " 'response_finished', 'completed', %(attempt)s, 'crashed', %(evidence)s, %(inspection)s,"
        " %(version)s, %(revision)s + 1)"
    ),
)
_NAMES: Final = (
    "session",
    "submission",
    "attempt",
    "version",
    "revision",
    "last_seq",
    "leaf",
    "payload",
    "inspection",
    "evidence",
)


def pg_prepare(conn: Any) -> None:
    """Make the temporary table, once for a connection, and have the tables gone through by their indexes.

    While the tables are small the planner would rather read them whole, and sort all that is due for each batch: a
    floor that is not the least work would flatter what is measured by it.
    """
    conn.execute(_PG_TABLE)
    for way in ("hashjoin", "mergejoin", "sort", "seqscan", "bitmapscan"):
        conn.execute(f"SET enable_{way} = off")


def pg_find(conn: Any, now: datetime, limit: int = BATCH) -> list[Due]:
    """Lock and return due submissions; inside a transaction."""
    found: list[Due] = conn.execute(_PG_DUE, (now, now, limit)).fetchall()
    return found


def pg_decide(conn: Any, due: Sequence[Due]) -> list[Write]:
    """Read the paths and return what is to be written."""
    rows = conn.execute(_PG_PATHS, (list(range(len(due))), [d[0] for d in due], [d[6] for d in due])).fetchall()
    paths: list[list[Any]] = [[] for _ in due]
    for row in rows:
        paths[row[0]].append(row)
    return [write_of(one, *_answer(path)) for one, path in zip(due, paths, strict=True)]


def pg_write(conn: Any, writes: Sequence[Write], now: datetime) -> None:
    """Write a batch: COPY, and one statement."""
    with conn.cursor() as cursor:
        with cursor.copy(_PG_COPY) as copy:
            copy.write("".join(["\t".join(map(str, row)) + "\n" for row in writes]))
        cursor.execute(_PG_WRITE, {"now": now})


def pg_write_one(conn: Any, write: Write, now: datetime) -> None:
    """Write one submission in a transaction of its own, statement by statement."""
    values = dict(zip(_NAMES, write, strict=True)) | {"now": now}
    with conn.transaction():
        for statement in _PG_ONE:
            conn.execute(statement, values, prepare=True)


def pg_pass(conn: Any, batch: int = BATCH) -> int:
    """Work off everything that is due; return how much it was."""
    total = 0
    while True:
        with conn.transaction():
            now = conn.execute("SELECT clock_timestamp()").fetchone()[0]
            due = pg_find(conn, now, batch)
            if due:
                pg_write(conn, pg_decide(conn, due), now)
        total += len(due)
        if len(due) < batch:
            return total


# --- SQLite ----------------------------------------------------------------------------------------------------------

_SQLITE_DUE: Final = """
SELECT s.session_id, s.id, s.revision, s.current_attempt_id, x.version, x.leaf_entry_id, x.last_seq
FROM submissions s CROSS JOIN sessions x ON x.id = s.session_id
CROSS JOIN attempts a ON a.session_id = s.session_id AND a.attempt_id = s.current_attempt_id
WHERE s.status <> 'settled' AND s.reconcile_at <= ? AND a.lease_expires_at <= ?
ORDER BY s.reconcile_at, s.session_id, s.id LIMIT ?
"""
_SQLITE_PATH: Final = (
    "SELECT 0, id, role, stop_reason, submission_id FROM entries WHERE session_id = ? AND seq <= ?"
    " ORDER BY seq DESC LIMIT 32"
)
# Each statement with the places of its parameters in `Write`; 10 is the instant.
_SQLITE_WRITE: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (
    (
        (
            "UPDATE sessions SET version = version + 1, last_seq = last_seq + 1, leaf_entry_id = 'submission-"
            "settled:' || ?, updated_at = ? WHERE id = ? AND version = ?"
        ),
        (1, 10, 0, 3),
    ),
    (
        (
            "UPDATE submissions SET status = 'settled', revision = revision + 1, reconcile_at = NULL, not_before "
            "= NULL, last_attempt_id = current_attempt_id, current_attempt_id = NULL, decision_count = "
            "decision_count + 1, decision_action = 'settle', decision_reason = 'completed', decision_revision = "
            "revision + 1, decision_version = ?, outcome = 'completed', outcome_reason = 'completed', "
            "outcome_detail = 'response_finished', answer_entry_id = ?, settlement_entry_id = 'submission-"
            "settled:' || ?, recovered = 1, settled_at = ? WHERE session_id = ? AND id = ? AND revision = ?"
        ),
        (3, 6, 1, 10, 0, 1, 4),
    ),
    (
        (
            "INSERT INTO entries (session_id, seq, id, parent_id, kind, submission_id, content, is_synthetic, "
            "write_ahead, created_at) VALUES (?, ? + 1, 'submission-settled:' || ?, ?, 'submission_settled', ?, "
            "'none', 1, 1, ?)"
        ),
        (0, 5, 1, 6, 1, 10),
    ),
    (
        ("INSERT INTO entry_payloads VALUES (?, 'submission-settled:' || ?, ?)"),
        (0, 1, 7),
    ),
    (
        ("UPDATE attempts SET ended_at = ?, end_kind = 'crashed' WHERE session_id = ? AND attempt_id = ?"),
        (10, 0, 2),
    ),
    (
        (
            "INSERT INTO decisions (session_id, submission_id, number, decided_at, pass_id, action, reason, gate,"
            " state, detail, outcome, attempt_id, attempt_end, evidence, inspection, session_version, revision) "
            "VALUES (?, ?, 2, ?, 'the-pass', 'settle', 'completed', 3, 'completed', 'response_finished', "
            "'completed', ?, 'crashed', ?, ?, ?, ? + 1)"
        ),
        (0, 1, 10, 2, 9, 8, 3, 4),
    ),
)


def sqlite_find(conn: Any, now: str, limit: int = BATCH) -> list[Due]:
    """Return due submissions; inside an immediate transaction, which is the lock."""
    found: list[Due] = conn.execute(_SQLITE_DUE, (now, now, limit)).fetchall()
    return found


def sqlite_decide(conn: Any, due: Sequence[Due]) -> list[Write]:
    """Read the paths and return what is to be written."""
    return [write_of(one, *_answer(conn.execute(_SQLITE_PATH, (one[0], one[6])).fetchall())) for one in due]


def sqlite_write(conn: Any, writes: Sequence[Write], now: str) -> None:
    """Write a batch: executemany of each statement."""
    for statement, places in _SQLITE_WRITE:
        rows = zip(
            *([now] * len(writes) if place == 10 else [row[place] for row in writes] for place in places), strict=True
        )
        conn.executemany(statement, rows)


def sqlite_pass(conn: Any, batch: int = BATCH) -> int:
    """Work off everything that is due; return how much it was."""
    total = 0
    while True:
        conn.execute("BEGIN IMMEDIATE")
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        due = sqlite_find(conn, now, batch)
        if due:
            sqlite_write(conn, sqlite_decide(conn, due), now)
        conn.execute("COMMIT")
        total += len(due)
        if len(due) < batch:
            return total


# --- import ----------------------------------------------------------------------------------------------------------


def parse_lines(path: Any) -> int:
    """Parse each line and keep nothing; return how many there were."""
    lines = 0
    with path.open("rb") as file:
        for line in file:
            json.loads(line)
            lines += 1
    return lines
