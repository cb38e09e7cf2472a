"""How fast the runner's side is, as ratios within one run: against raw driver statements, and over history.

    python -m tests.bench.bench_runner [--seconds 3] [--rounds 3] [--settled 2000000] [--idle 60] [--database sqlite]

Prints one JSON object. ``cycle_ratio`` is our rate of submit, claim, begin, three appends, settle over that of the same
cycle in the fewest raw driver statements that keep the same promises (ticket and fence under the session's lock, one
durable commit each, the record read before it is settled), with 1 process and with 8. ``history_ratio`` is the p99 of a
claim with many settled rows over that with none, ``idle_ratio`` the one with an idle transaction held open over that
without. ``peer_ratio`` is the rate of a submission's way from submit to settled over procrastinate's from defer to
finished, and DBOS's from enqueue to result, each in an environment of its own. Rounds of both sides alternate, the median
counts; rates are for orientation.
"""

# ruff: noqa: E501 - statements are easier to compare as they stand
from __future__ import annotations

import argparse
import json
import multiprocessing
import sqlite3
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from reconciler.core.model import NewEntry
from reconciler.service.runner import Runner
from tests.bench.databases import Database, Databases, databases
from tests.bench.measures import peer_environment
from tests.bench.measuring import ROOT

Cycle = Callable[[int], None]
LEASE_S = 15.0

# --- our side --------------------------------------------------------------------------------------------------------


@contextmanager
def ours(url: str, prefix: str) -> Iterator[Cycle]:
    """Give one cycle through the API."""
    with Runner(url, notify=False) as runner:

        def cycle(number: int) -> None:
            runner.submit(f"{prefix}-{number}", "a", {"text": "hello"})
            claimed = runner.claim()
            while not claimed:
                claimed = runner.claim()
            (attempt,) = claimed
            attempt.begin()
            attempt.append(
                [NewEntry("assistant", {"text": "let me see"}, stop_reason="tool_use", tool_call_ids=("c",))]
            )
            attempt.append([NewEntry("tool_result", {"ok": True}, tool_call_id="c")])
            attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
            attempt.settle("completed")

        yield cycle


# --- the raw side, PostgreSQL ----------------------------------------------------------------------------------------

_PG_SUBMIT = """
WITH x AS (INSERT INTO sessions (id, origin, last_ticket, created_at, updated_at)
    VALUES (%(s)s, 'native', 1, clock_timestamp(), clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET last_ticket = sessions.last_ticket + 1, updated_at = clock_timestamp()
    RETURNING id, version, last_ticket),
n AS (INSERT INTO submissions (session_id, id, status, ticket, content_digest, admitted_at, not_before, decision_count,
    decision_action, decision_reason, decision_revision, decision_version)
  SELECT id, %(u)s, 'queued', last_ticket, 'digest', clock_timestamp(), clock_timestamp(), 1, 'requeue', 'admitted', 0,
    version FROM x RETURNING session_id),
p AS (INSERT INTO entry_payloads (session_id, entry_id, payload)
  SELECT session_id, 'submission-input:' || %(u)s, %(payload)s FROM n)
INSERT INTO decisions (session_id, submission_id, number, decided_at, action, reason, session_version, revision)
SELECT id, %(u)s, 1, clock_timestamp(), 'admit', 'admitted', version, 0 FROM x
"""
_PG_FIND = """
WITH c AS (SELECT q.session_id, q.id, q.not_before, q.ticket FROM submissions q WHERE q.status = 'queued'
  AND q.not_before IS NOT NULL AND q.not_before <= now() ORDER BY q.not_before, q.session_id, q.ticket LIMIT 257)
SELECT s.session_id, s.id FROM c JOIN sessions x ON x.id = c.session_id
JOIN submissions s ON s.session_id = c.session_id AND s.id = c.id
WHERE s.status = 'queued' AND x.origin = 'native' AND s.held_at IS NULL AND s.abort_requested_at IS NULL
  AND s.ticket = (SELECT h.ticket FROM submissions h WHERE h.session_id = s.session_id AND h.status <> 'settled'
    ORDER BY h.ticket LIMIT 1)
ORDER BY c.not_before, c.session_id, c.ticket LIMIT 1 FOR UPDATE OF x, s SKIP LOCKED
"""
_PG_TAKE = """
WITH u AS (UPDATE submissions s SET status = 'running', revision = s.revision + 1, claims = s.claims + 1,
    attempts_spent = s.attempts_spent + 1, current_attempt_id = %(a)s, not_before = NULL,
    reconcile_at = clock_timestamp() + interval '15 seconds'
  FROM sessions x WHERE s.session_id = %(s)s AND s.id = %(u)s AND x.id = s.session_id AND s.status = 'queued'
    AND s.not_before <= clock_timestamp() AND s.held_at IS NULL AND s.abort_requested_at IS NULL
    AND s.decision_revision = s.revision
    AND s.ticket = (SELECT h.ticket FROM submissions h WHERE h.session_id = s.session_id AND h.status <> 'settled'
      ORDER BY h.ticket LIMIT 1)
  RETURNING s.session_id, s.id, s.claims),
a AS (INSERT INTO attempts (session_id, attempt_id, submission_id, number, owner, claim_key, claimed_at, lease_s, beat_s,
    beat_at, lease_expires_at)
  SELECT session_id, %(a)s, id, claims, 'raw', %(k)s, clock_timestamp(), 15, 5, clock_timestamp(),
    clock_timestamp() + interval '15 seconds' FROM u)
SELECT u.claims, p.payload FROM u LEFT JOIN entry_payloads p
  ON p.session_id = u.session_id AND p.entry_id = 'submission-input:' || u.id
"""
_PG_LOCK = """
SELECT x.version, x.leaf_entry_id, x.last_seq, s.revision, s.decision_count FROM sessions x
JOIN submissions s ON s.session_id = x.id WHERE x.id = %(s)s AND s.id = %(u)s FOR UPDATE OF x, s
"""
# The fence and the path in one statement behind the locks.
_PG_PATH = """
SELECT a.lease_expires_at > clock_timestamp() AND s.current_attempt_id = a.attempt_id, e.id, e.role, e.tool_call_ids,
  e.tool_call_id, e.stop_reason
FROM attempts a JOIN submissions s ON s.session_id = a.session_id AND s.id = a.submission_id
LEFT JOIN LATERAL (SELECT * FROM entries e WHERE e.session_id = a.session_id ORDER BY e.seq DESC LIMIT 32) e ON true
WHERE a.session_id = %(s)s AND a.attempt_id = %(a)s
"""
_PG_BEGIN = """
WITH e AS (INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, attempt_id, write_ahead,
    created_at)
  VALUES (%(s)s, %(seq)s, %(e)s, %(leaf)s, 'message', 'user', %(u)s, %(a)s, true, clock_timestamp())),
x AS (UPDATE sessions SET version = version + 1, last_seq = %(seq)s, leaf_entry_id = %(e)s,
  updated_at = clock_timestamp() WHERE id = %(s)s),
n AS (UPDATE submissions SET revision = revision + 1, attempts_begun = attempts_begun + 1
  WHERE session_id = %(s)s AND id = %(u)s)
UPDATE attempts SET begun_at = clock_timestamp() WHERE session_id = %(s)s AND attempt_id = %(a)s
"""
# Fence and write in one: no row where the fence says no.
_PG_APPEND = """
WITH f AS (SELECT 1 FROM attempts a JOIN submissions s ON s.session_id = a.session_id AND s.id = a.submission_id
  WHERE a.session_id = %(s)s AND a.attempt_id = %(a)s AND s.current_attempt_id = a.attempt_id
    AND a.lease_expires_at > clock_timestamp() AND a.begun_at IS NOT NULL),
e AS (INSERT INTO entries (session_id, seq, id, parent_id, kind, role, submission_id, attempt_id, stop_reason,
    tool_call_ids, tool_call_id, write_ahead, created_at)
  SELECT %(s)s, %(seq)s, %(e)s, %(leaf)s, 'message', %(role)s, %(u)s, %(a)s, %(stop)s, %(calls)s, %(call)s, true,
    clock_timestamp() FROM f RETURNING 1),
p AS (INSERT INTO entry_payloads (session_id, entry_id, payload) SELECT %(s)s, %(e)s, %(payload)s FROM f),
x AS (UPDATE sessions SET version = version + 1, last_seq = %(seq)s, leaf_entry_id = %(e)s,
  updated_at = clock_timestamp() FROM f WHERE id = %(s)s),
g AS (UPDATE attempts SET progress_at = clock_timestamp() FROM f WHERE session_id = %(s)s AND attempt_id = %(a)s)
SELECT count(*) FROM e
"""
_PG_SETTLE = """
WITH e AS (INSERT INTO entries (session_id, seq, id, parent_id, kind, submission_id, content, is_synthetic, write_ahead,
    created_at)
  VALUES (%(s)s, %(seq)s, %(e)s, %(leaf)s, 'submission_settled', %(u)s, 'none', true, true, clock_timestamp())),
p AS (INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (%(s)s, %(e)s, %(payload)s)),
x AS (UPDATE sessions SET version = version + 1, last_seq = %(seq)s, leaf_entry_id = %(e)s,
  updated_at = clock_timestamp() WHERE id = %(s)s),
n AS (UPDATE submissions SET status = 'settled', revision = revision + 1, reconcile_at = NULL,
  last_attempt_id = current_attempt_id, current_attempt_id = NULL, decision_count = decision_count + 1,
  decision_action = 'settle', decision_reason = 'settled_by_runner', decision_revision = revision + 1,
  outcome = 'completed', outcome_reason = 'settled_by_runner', answer_entry_id = %(answer)s, settlement_entry_id = %(e)s,
  recovered = false, settled_at = clock_timestamp() WHERE session_id = %(s)s AND id = %(u)s),
a AS (UPDATE attempts SET ended_at = clock_timestamp(), end_kind = 'settled', end_digest = 'digest'
  WHERE session_id = %(s)s AND attempt_id = %(a)s)
INSERT INTO decisions (session_id, submission_id, number, decided_at, action, reason, outcome, attempt_id, attempt_end,
  session_version, revision)
VALUES (%(s)s, %(u)s, %(n)s, clock_timestamp(), 'settle', 'settled_by_runner', 'completed', %(a)s, 'settled', %(v)s, %(r)s)
"""


@contextmanager
def raw_postgresql(url: str, prefix: str) -> Iterator[Cycle]:
    """Give the same cycle as statements of the driver."""
    import psycopg

    with psycopg.connect(url, options="-c search_path=reconciler", autocommit=True) as conn:

        def cycle(number: int) -> None:
            payload = json.dumps({"text": "hello"})
            conn.execute(_PG_SUBMIT.encode(), {"s": f"{prefix}-{number}", "u": "a", "payload": payload})
            keys: dict[str, Any] = {"a": uuid.uuid4().hex, "k": uuid.uuid4().hex}
            found: Any = None
            while found is None:
                with conn.transaction():
                    found = conn.execute(_PG_FIND.encode()).fetchone()
                    if found is not None:
                        keys |= {"s": found[0], "u": found[1]}
                        found = conn.execute(_PG_TAKE.encode(), keys).fetchone()
            with conn.transaction():
                row: Any = conn.execute(_PG_LOCK.encode(), keys).fetchone()
                path = conn.execute(_PG_PATH.encode(), keys).fetchall()
                assert path[0][0]
                entry = f"submission-input:{keys['u']}"
                conn.execute(_PG_BEGIN.encode(), {**keys, "seq": row[2] + 1, "e": entry, "leaf": row[1]})
            for role, stop, calls, call in (
                ("assistant", "tool_use", '["c"]', None),
                ("tool_result", None, None, "c"),
                ("assistant", "stop", None, None),
            ):
                entry = uuid.uuid4().hex
                with conn.transaction():
                    row = conn.execute(_PG_LOCK.encode(), keys).fetchone()
                    written: Any = conn.execute(
                        _PG_APPEND.encode(),
                        {
                            **keys,
                            "seq": row[2] + 1,
                            "e": entry,
                            "leaf": row[1],
                            "role": role,
                            "stop": stop,
                            "calls": calls,
                            "call": call,
                            "payload": json.dumps({"text": "done"}),
                        },
                    ).fetchone()
                    assert written[0] == 1
            with conn.transaction():
                row = conn.execute(_PG_LOCK.encode(), keys).fetchone()
                path = conn.execute(_PG_PATH.encode(), keys).fetchall()
                assert path[0][0]
                conn.execute(
                    _PG_SETTLE.encode(),
                    {
                        **keys,
                        "seq": row[2] + 1,
                        "e": f"submission-settled:{keys['u']}",
                        "leaf": row[1],
                        "answer": entry,
                        "payload": json.dumps({"outcome": "completed", "answer_entry_id": entry}),
                        "n": row[4] + 1,
                        "v": row[0],
                        "r": row[3] + 1,
                    },
                )

        yield cycle


# --- the raw side, SQLite --------------------------------------------------------------------------------------------


@contextmanager
def raw_sqlite(url: str, prefix: str) -> Iterator[Cycle]:
    """Give the same cycle on SQLite, with the settings that make a commit durable."""
    conn = sqlite3.connect(str(make_url(url).database), timeout=30, isolation_level=None, cached_statements=256)
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("PRAGMA foreign_keys=ON")

    def stamp(seconds: float = 0.0) -> str:
        moment = datetime.now(UTC) + timedelta(seconds=seconds)
        return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"

    @contextmanager
    def transaction() -> Iterator[None]:
        conn.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            conn.execute("ROLLBACK")
            raise
        conn.execute("COMMIT")

    def submit(session: str) -> None:
        now = stamp()
        with transaction():
            conn.execute(
                "INSERT INTO sessions (id, origin, last_ticket, created_at, updated_at) VALUES (?, 'native', 1, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET last_ticket = last_ticket + 1",
                (session, now, now),
            )
            conn.execute(
                "INSERT INTO submissions (session_id, id, status, ticket, content_digest, admitted_at, not_before,"
                " decision_count, decision_action, decision_reason, decision_revision, decision_version)"
                " SELECT id, 'a', 'queued', last_ticket, 'digest', ?, ?, 1, 'requeue', 'admitted', 0, version"
                " FROM sessions WHERE id = ?",
                (now, now, session),
            )
            conn.execute(
                "INSERT INTO entry_payloads (session_id, entry_id, payload) VALUES (?, 'submission-input:a', ?)",
                (session, json.dumps({"text": "hello"})),
            )
            conn.execute(
                "INSERT INTO decisions (session_id, submission_id, number, decided_at, action, reason, session_version,"
                " revision) VALUES (?, 'a', 1, ?, 'admit', 'admitted', 0, 0)",
                (session, now),
            )

    def claim() -> tuple[str, str, str] | None:
        now, attempt = stamp(), uuid.uuid4().hex
        with transaction():
            found = conn.execute(
                "SELECT s.session_id, s.id, s.claims, p.payload FROM (SELECT q.session_id, q.id, q.not_before, q.ticket"
                " FROM submissions q WHERE q.status = 'queued' AND q.not_before IS NOT NULL AND q.not_before <= ?"
                " ORDER BY q.not_before, q.session_id, q.ticket LIMIT 257) c JOIN sessions x ON x.id = c.session_id"
                " JOIN submissions s ON s.session_id = c.session_id AND s.id = c.id LEFT JOIN entry_payloads p"
                " ON p.session_id = s.session_id AND p.entry_id = 'submission-input:' || s.id"
                " WHERE x.origin = 'native' AND s.held_at IS NULL AND s.abort_requested_at IS NULL"
                " AND s.decision_revision = s.revision AND s.ticket = (SELECT h.ticket FROM submissions h"
                " WHERE h.session_id = s.session_id AND h.status <> 'settled' ORDER BY h.ticket LIMIT 1)"
                " ORDER BY c.not_before, c.session_id, c.ticket LIMIT 1",
                (now,),
            ).fetchone()
            if found is None:
                return None
            session, submission, claims, _ = found
            conn.execute(
                "UPDATE submissions SET status = 'running', revision = revision + 1, claims = claims + 1,"
                " attempts_spent = attempts_spent + 1, current_attempt_id = ?, not_before = NULL, reconcile_at = ?"
                " WHERE session_id = ? AND id = ?",
                (attempt, stamp(LEASE_S), session, submission),
            )
            conn.execute(
                "INSERT INTO attempts (session_id, attempt_id, submission_id, number, owner, claim_key, claimed_at,"
                " lease_s, beat_s, beat_at, lease_expires_at) VALUES (?, ?, ?, ?, 'raw', ?, ?, 15, 5, ?, ?)",
                (session, attempt, submission, claims + 1, uuid.uuid4().hex, now, now, stamp(LEASE_S)),
            )
        return session, submission, attempt

    def fence(session: str, submission: str, attempt: str) -> Any:
        row = conn.execute(
            "SELECT x.version, x.leaf_entry_id, x.last_seq, s.revision, s.decision_count, a.lease_expires_at"
            " FROM sessions x JOIN submissions s ON s.session_id = x.id JOIN attempts a ON a.session_id = x.id"
            " WHERE x.id = ? AND s.id = ? AND a.attempt_id = ? AND s.current_attempt_id = a.attempt_id",
            (session, submission, attempt),
        ).fetchone()
        assert row is not None
        assert row[5] > stamp()
        return row

    def path(session: str) -> Any:
        return conn.execute(
            "SELECT id, role, tool_call_ids, tool_call_id, stop_reason FROM entries WHERE session_id = ?"
            " ORDER BY seq DESC LIMIT 32",
            (session,),
        ).fetchall()

    def write(session: str, row: Any, entry: str, payload: str | None, **columns: Any) -> None:
        columns |= {"session_id": session, "seq": row[2] + 1, "id": entry, "parent_id": row[1], "created_at": stamp()}
        conn.execute(
            f"INSERT INTO entries ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
            tuple(columns.values()),
        )
        if payload is not None:
            conn.execute("INSERT INTO entry_payloads VALUES (?, ?, ?)", (session, entry, payload))
        conn.execute(
            "UPDATE sessions SET version = version + 1, last_seq = ?, leaf_entry_id = ?, updated_at = ? WHERE id = ?",
            (row[2] + 1, entry, columns["created_at"], session),
        )

    def cycle(number: int) -> None:
        submit(f"{prefix}-{number}")
        claimed = claim()
        while claimed is None:
            claimed = claim()
        session, submission, attempt = claimed
        stamped = {"submission_id": submission, "attempt_id": attempt, "write_ahead": 1, "kind": "message"}
        with transaction():
            row = fence(*claimed)
            path(session)
            write(session, row, f"submission-input:{submission}", None, role="user", **stamped)
            conn.execute(
                "UPDATE submissions SET revision = revision + 1, attempts_begun = attempts_begun + 1"
                " WHERE session_id = ? AND id = ?",
                (session, submission),
            )
            conn.execute(
                "UPDATE attempts SET begun_at = ? WHERE session_id = ? AND attempt_id = ?", (stamp(), session, attempt)
            )
        entry = ""
        for columns in (
            {"role": "assistant", "stop_reason": "tool_use", "tool_call_ids": '["c"]'},
            {"role": "tool_result", "tool_call_id": "c"},
            {"role": "assistant", "stop_reason": "stop"},
        ):
            entry = uuid.uuid4().hex
            with transaction():
                row = fence(*claimed)
                write(session, row, entry, json.dumps({"text": "done"}), **columns, **stamped)
                conn.execute(
                    "UPDATE attempts SET progress_at = ? WHERE session_id = ? AND attempt_id = ?",
                    (stamp(), session, attempt),
                )
        with transaction():
            row = fence(*claimed)
            path(session)
            settlement = f"submission-settled:{submission}"
            write(
                session,
                row,
                settlement,
                json.dumps({"outcome": "completed", "answer_entry_id": entry}),
                kind="submission_settled",
                submission_id=submission,
                content="none",
                is_synthetic=1,
                write_ahead=1,
            )
            conn.execute(
                "UPDATE submissions SET status = 'settled', revision = revision + 1, reconcile_at = NULL,"
                " last_attempt_id = current_attempt_id, current_attempt_id = NULL, decision_count = decision_count + 1,"
                " decision_action = 'settle', decision_reason = 'settled_by_runner', decision_revision = revision + 1,"
                " outcome = 'completed', outcome_reason = 'settled_by_runner', answer_entry_id = ?,"
                " settlement_entry_id = ?, recovered = 0, settled_at = ? WHERE session_id = ? AND id = ?",
                (entry, settlement, stamp(), session, submission),
            )
            conn.execute(
                "UPDATE attempts SET ended_at = ?, end_kind = 'settled' WHERE session_id = ? AND attempt_id = ?",
                (stamp(), session, attempt),
            )
            conn.execute(
                "INSERT INTO decisions (session_id, submission_id, number, decided_at, action, reason, outcome,"
                " attempt_id, session_version, revision) VALUES (?, ?, ?, ?, 'settle', 'settled_by_runner',"
                " 'completed', ?, ?, ?)",
                (session, submission, row[4] + 1, stamp(), attempt, row[0], row[3] + 1),
            )

    try:
        yield cycle
    finally:
        conn.close()


def raw(url: str, prefix: str) -> Any:
    """Return the raw side of a database."""
    return raw_sqlite(url, prefix) if url.startswith("sqlite") else raw_postgresql(url, prefix)


SIDES: dict[str, Callable[[str, str], Any]] = {"ours": ours, "raw": raw}


# --- the cycle -------------------------------------------------------------------------------------------------------


def work(url: str, side: str, seconds: float, barrier: Any, results: Any) -> None:
    """Go round for *seconds* behind the barrier, and hand back the cycles per second."""
    with SIDES[side](url, f"{side}-{uuid.uuid4().hex}") as cycle:
        for number in range(10):
            cycle(number)
        barrier.wait(120)
        start = time.perf_counter()
        done = 10
        while time.perf_counter() - start < seconds:
            cycle(done)
            done += 1
        results.put((done - 10) / (time.perf_counter() - start))


def rate(url: str, side: str, processes: int, seconds: float) -> float:
    """Return the cycles per second of *processes*."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    children = [context.Process(target=work, args=(url, side, seconds, barrier, results)) for _ in range(processes)]
    for child in children:
        child.start()
    rates = [results.get(timeout=300) for _ in children]
    for child in children:
        child.join(60)
    return float(sum(rates))


def cycle_ratio(database: Database, processes: int, given: argparse.Namespace) -> dict[str, float]:
    """Return our rate over the raw one, and both."""
    rates: dict[str, list[float]] = {"ours": [], "raw": []}
    for number in range(given.rounds):
        for side in ("ours", "raw") if number % 2 == 0 else ("raw", "ours"):
            rates[side].append(rate(database.url, side, processes, given.seconds))
    ratios = [mine / floor for mine, floor in zip(rates["ours"], rates["raw"], strict=True)]
    return {
        "cycle_ratio": round(statistics.median(ratios), 3),
        "ours_per_s": round(statistics.median(rates["ours"]), 1),
        "raw_per_s": round(statistics.median(rates["raw"]), 1),
    }


# --- claims over history, and beside an idle transaction -------------------------------------------------------------


def claim_p99_ms(database: Database, claims: int = 1_000) -> float:
    """Return the p99 of *claims* claims, each with a submission waiting for it; what was claimed is settled."""
    times = []
    with Runner(database.url, notify=False, beat_by_itself=False) as runner:
        for number in range(claims + 50):
            runner.submit(f"p-{uuid.uuid4().hex}", "a", {})
            start = time.perf_counter()
            claimed = runner.claim()
            if number >= 50:
                times.append(time.perf_counter() - start)
            claimed[0].settle("aborted")
    return statistics.quantiles(times, n=100)[98] * 1000


def fill_settled(database: Database, rows: int) -> None:
    """Put *rows* settled submissions, 20 to a session."""
    conn = database.driver()
    if database.kind == "sqlite":
        now = "2026-01-01T00:00:00.000000Z"
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany(
            "INSERT INTO sessions (id, origin, created_at, updated_at) VALUES (?, 'native', ?, ?)",
            ((f"h-{number}", now, now) for number in range(rows // 20)),
        )
        conn.executemany(
            "INSERT INTO submissions (session_id, id, status, ticket, content_digest, admitted_at, outcome, settled_at)"
            " VALUES (?, ?, 'settled', ?, 'x', ?, 'completed', ?)",
            ((f"h-{number // 20}", f"u-{number}", number % 20, now, now) for number in range(rows)),
        )
        conn.execute("COMMIT")
    else:
        conn.execute(
            "INSERT INTO sessions (id, origin, created_at, updated_at)"
            " SELECT 'h-' || n, 'native', now(), now() FROM generate_series(0, %s) n",
            (rows // 20,),
        )
        conn.execute(
            "INSERT INTO submissions (session_id, id, status, ticket, content_digest, admitted_at, outcome, settled_at)"
            " SELECT 'h-' || n / 20, 'u-' || n, 'settled', n %% 20, 'x', now(), 'completed', now()"
            " FROM generate_series(0, %s) n",
            (rows - 1,),
        )
    conn.close()
    database.settle_down()


def history_ratio(made: Databases, kind: str, given: argparse.Namespace) -> dict[str, float]:
    """Return the p99 of claims with many settled rows over that with none."""
    empty, full = made.make(kind), made.make(kind)
    fill_settled(full, given.settled)
    times: dict[str, list[float]] = {"empty": [], "full": []}
    for _ in range(given.rounds):
        times["empty"].append(claim_p99_ms(empty))
        times["full"].append(claim_p99_ms(full))
    made.drop(full)
    ratios = [b / a for a, b in zip(times["empty"], times["full"], strict=True)]
    return {
        "history_ratio": round(statistics.median(ratios), 3),
        "empty_p99_ms": round(statistics.median(times["empty"]), 2),
        "full_p99_ms": round(statistics.median(times["full"]), 2),
        "settled": given.settled,
    }


def idle_ratio(made: Databases, kind: str, given: argparse.Namespace) -> dict[str, float]:
    """Return the p99 of claims beside a transaction that is held open for *idle* seconds over that without one."""
    database = made.make(kind)
    before = claim_p99_ms(database)
    holder = database.driver()
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if kind == "postgresql" else "BEGIN")
    holder.execute("SELECT count(*) FROM submissions").fetchone()
    worst: list[float] = []
    end = time.monotonic() + given.idle
    while time.monotonic() < end or not worst:
        worst.append(claim_p99_ms(database))
    with suppress(Exception):
        holder.execute("ROLLBACK")
    holder.close()
    return {
        "idle_ratio": round(worst[-1] / before, 3),
        "before_p99_ms": round(before, 2),
        "last_p99_ms": round(worst[-1], 2),
        "held_s": given.idle,
    }


# --- a peer ----------------------------------------------------------------------------------------------------------


# Jobs given to each: what takes some seconds.
PEER_JOBS = {"procrastinate": 500, "dbos": 200}


def peer_ratio(made: Databases, given: argparse.Namespace) -> dict[str, Any]:
    """Return the rate of submit, claim, settle over that of a peer's way from its queue to finished, side by side.

    Three durable writes each. Ours and procrastinate's go one after the other; DBOS gets all at once, for its threads.
    """
    database = made.make("postgresql")
    rates: dict[str, list[float]] = {"ours": [], **{name: [] for name in PEER_JOBS}}
    for _ in range(given.rounds):
        rates["ours"].append(_submitted_claimed_settled(database, 500))
        for name, jobs in PEER_JOBS.items():
            script = ROOT / "tests" / "bench" / "peers" / f"{name}_peer.py"
            arguments = [str(peer_environment(name)), str(script), made.plain("peer"), str(jobs), "cycle"]
            done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=600)
            rates[name].append(json.loads(done.stdout.splitlines()[-1])["per_second"])
    middle = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "peer_ratio": {name: round(middle["ours"] / middle[name], 2) for name in PEER_JOBS},
        "per_s": {name: round(rate, 1) for name, rate in middle.items()},
    }


def _submitted_claimed_settled(database: Database, jobs: int) -> float:
    with Runner(database.url, notify=False) as runner:
        start = time.perf_counter()
        for _ in range(jobs):
            runner.submit(uuid.uuid4().hex, "a", {})
            (attempt,) = runner.claim()
            attempt.settle("aborted")
        return jobs / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settled", type=int, default=2_000_000)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    parser.add_argument("--only", choices=("cycle", "history", "idle", "peer"), action="append")
    given = parser.parse_args()
    only = given.only or ["cycle", "history", "idle", "peer"]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, databases(Path(folder)) as made:
        for kind in given.database or ["sqlite", "postgresql"]:
            one: dict[str, Any] = {}
            if "cycle" in only:
                for processes in (1, 8) if kind == "postgresql" else (1,):
                    database = made.make(kind)
                    one[f"processes_{processes}"] = cycle_ratio(database, processes, given)
                    made.drop(database)
            if "history" in only:
                one["history"] = history_ratio(made, kind, given)
            if "idle" in only and kind == "postgresql":
                one["idle"] = idle_ratio(made, kind, given)
            if "peer" in only and kind == "postgresql":
                one["peer"] = peer_ratio(made, given)
            found[kind] = one
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
