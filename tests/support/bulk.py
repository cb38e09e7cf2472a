"""Many rows at once: submissions whose leases have ended, and settled ones: what an outage and years of work leave."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.canonical import content_digest
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.engine import begin
from reconciler.store.schema import attempts, decisions, entries, entry_payloads, sessions, submissions

_CHUNK = 2_000


def expired_leases(
    engine: Engine, count: int, *, beat_s: float = 0.2, prefix: str = "storm", ago_s: float = 60
) -> None:
    """Put *count* sessions, each with a running submission whose lease has ended; every second one has its answer.

    Their runners were on another boot of an unknown machine: nothing proves them dead but their leases.
    """
    for start in range(0, count, _CHUNK):
        numbers = range(start, min(start + _CHUNK, count))
        with begin(engine) as conn:
            now = db_now(conn)
            lease = now - timedelta(seconds=ago_s)
            claimed = lease - timedelta(seconds=30)
            rows: dict[sa.Table, list[dict[str, Any]]] = {
                table: [] for table in (sessions, entries, entry_payloads, submissions, attempts, decisions)
            }
            for number in numbers:
                session_id, fence = f"{prefix}-{number:07d}", f"{prefix}-at-{number}"
                answered = number % 2 == 1
                path = ["submission-input:A", "answer"] if answered else ["submission-input:A"]
                rows[sessions].append(
                    {
                        "id": session_id,
                        "origin": "native",
                        "version": len(path),
                        "last_seq": len(path),
                        "last_ticket": 1,
                        "leaf_entry_id": path[-1],
                        "created_at": claimed,
                        "updated_at": claimed,
                    }
                )
                for seq, entry_id in enumerate(path, start=1):
                    is_answer = entry_id == "answer"
                    rows[entries].append(
                        {
                            "session_id": session_id,
                            "seq": seq,
                            "id": entry_id,
                            "parent_id": path[0] if is_answer else None,
                            "kind": "message",
                            "role": "assistant" if is_answer else "user",
                            "submission_id": "A",
                            "attempt_id": fence if is_answer else None,
                            "stop_reason": "stop" if is_answer else None,
                            "write_ahead": True,
                            "created_at": claimed,
                        }
                    )
                    rows[entry_payloads].append(
                        {"session_id": session_id, "entry_id": entry_id, "payload": '{"text":"some words"}'}
                    )
                rows[submissions].append(
                    {
                        "session_id": session_id,
                        "id": "A",
                        "status": "running",
                        "revision": 1,
                        "ticket": 1,
                        "content_digest": content_digest({"payload": number}),
                        "admitted_at": claimed,
                        "reconcile_at": lease + timedelta(microseconds=number),
                        "current_attempt_id": fence,
                        "last_attempt_id": None,
                        "claims": 1,
                        "attempts_spent": 1,
                        "attempts_begun": 1,
                        "decision_count": 1,
                        "decision_action": "requeue",
                        "decision_reason": "admitted",
                        "decision_revision": 0,
                        "decision_version": 0,
                    }
                )
                rows[decisions].append(
                    {
                        "session_id": session_id,
                        "submission_id": "A",
                        "number": 1,
                        "decided_at": claimed,
                        "action": "admit",
                        "reason": "admitted",
                        "session_version": 0,
                        "revision": 0,
                    }
                )
                rows[attempts].append(
                    {
                        "session_id": session_id,
                        "attempt_id": fence,
                        "submission_id": "A",
                        "number": 1,
                        "owner": "lost",
                        "boot_id": "another",
                        "claimed_at": claimed,
                        "lease_s": 15.0,
                        "beat_s": beat_s,
                        "beat_at": lease - timedelta(seconds=15),
                        "lease_expires_at": lease,
                        "begun_at": claimed,
                        "progress_at": claimed if answered else None,
                    }
                )
            for table, found in rows.items():
                conn.execute(table.insert(), found)
    _analyze(engine)


def settled(engine: Engine, count: int, *, prefix: str = "old", per_session: int = 10) -> None:
    """Put *count* settled submissions with their settlement entries, a day old."""
    for start in range(0, count, _CHUNK):
        numbers = range(start, min(start + _CHUNK, count))
        with begin(engine) as conn:
            now = db_now(conn) - timedelta(days=1)
            made: dict[str, int] = {}
            rows: dict[sa.Table, list[dict[str, Any]]] = {
                table: [] for table in (sessions, entries, entry_payloads, submissions)
            }
            for number in numbers:
                session_id, place = f"{prefix}-{number // per_session:08d}", number % per_session + 1
                made[session_id] = place
                entry_id = f"submission-settled:{place}"
                rows[entries].append(
                    {
                        "session_id": session_id,
                        "seq": place,
                        "id": entry_id,
                        "parent_id": f"submission-settled:{place - 1}" if place > 1 else None,
                        "kind": "submission_settled",
                        "submission_id": str(place),
                        "created_at": now,
                    }
                )
                rows[entry_payloads].append(
                    {"session_id": session_id, "entry_id": entry_id, "payload": '{"outcome":"completed"}'}
                )
                rows[submissions].append(
                    {
                        "session_id": session_id,
                        "id": str(place),
                        "status": "settled",
                        "ticket": place,
                        "content_digest": "x",
                        "admitted_at": now,
                        "outcome": "completed",
                        "outcome_reason": "completed",
                        "settlement_entry_id": entry_id,
                        "recovered": False,
                        "settled_at": now,
                    }
                )
            for session_id, place in made.items():
                rows[sessions].append(
                    {
                        "id": session_id,
                        "origin": "native",
                        "version": place,
                        "last_seq": place,
                        "last_ticket": place,
                        "leaf_entry_id": f"submission-settled:{place}",
                        "created_at": now,
                        "updated_at": now,
                    }
                )
            for table, found in rows.items():
                conn.execute(table.insert(), found)
    _analyze(engine)


def _analyze(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        if is_postgresql(engine):
            conn.exec_driver_sql("ANALYZE")
