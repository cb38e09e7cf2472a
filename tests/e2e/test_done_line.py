"""One stuck submission among very many: found by filters, explained, its fix tried without doing it, done, and proven.

By the command line alone, as a newcomer has it. `RECONCILER_TEST_ROWS` sets how many submissions there are.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.canonical import canonical_json
from reconciler.entrypoints.cli import main
from reconciler.store.engine import begin
from reconciler.store.schema import decisions, entries, entry_payloads, metadata, sessions, submissions
from tests.support.checker import check, report
from tests.support.scenes import Scene, said, turn

ROWS = int(os.environ.get("RECONCILER_TEST_ROWS", "20000"))
_PIECE = 2_000


def _load(engine: Engine, count: int) -> None:
    """Put *count* settled sessions and, for every fiftieth of them, one that waits for a runner since a moment."""
    scene = Scene(engine)
    now = scene.now()
    for start in range(0, count, _PIECE):
        numbers = range(start, min(start + _PIECE, count))
        with begin(engine) as conn:
            _settled(conn, [number for number in numbers if number % 50], now)
            _waiting(conn, [number for number in numbers if not number % 50], now)


def _settled(conn: sa.Connection, numbers: list[int], now: Any) -> None:
    ids = [f"bulk-{number:06}" for number in numbers]
    parts = (("in", None, "user"), ("out", "in", "assistant"), ("submission-settled:p", "out", None))
    payload = canonical_json({"outcome": "completed", "reason": "settled_by_runner", "recovered": False})
    conn.execute(
        sessions.insert(),
        [
            {
                "id": one,
                "origin": "native",
                "version": 3,
                "last_seq": 3,
                "last_ticket": 1,
                "leaf_entry_id": "submission-settled:p",
                "created_at": now,
                "updated_at": now,
            }
            for one in ids
        ],
    )
    conn.execute(
        entries.insert(),
        [
            {
                "session_id": one,
                "seq": seq,
                "id": entry_id,
                "parent_id": parent,
                "kind": "message" if role else "submission_settled",
                "role": role,
                "stop_reason": "stop" if role == "assistant" else None,
                "submission_id": "p",
                "created_at": now,
            }
            for one in ids
            for seq, (entry_id, parent, role) in enumerate(parts, 1)
        ],
    )
    conn.execute(
        entry_payloads.insert(),
        [
            {"session_id": one, "entry_id": entry_id, "payload": payload if role is None else '{"text":"x"}'}
            for one in ids
            for entry_id, _, role in parts
        ],
    )
    conn.execute(
        submissions.insert(),
        [
            {
                "session_id": one,
                "id": "p",
                "status": "settled",
                "ticket": 1,
                "content_digest": "d",
                "admitted_at": now - timedelta(hours=1),
                "decision_count": 1,
                "outcome": "completed",
                "outcome_reason": "settled_by_runner",
                "settlement_entry_id": "submission-settled:p",
                "answer_entry_id": "out",
                "recovered": False,
                "settled_at": now,
            }
            for one in ids
        ],
    )
    conn.execute(
        decisions.insert(),
        [
            {
                "session_id": one,
                "submission_id": "p",
                "number": 1,
                "decided_at": now,
                "action": "settle",
                "reason": "settled_by_runner",
                "outcome": "completed",
                "session_version": 3,
                "revision": 1,
            }
            for one in ids
        ],
    )


def _waiting(conn: sa.Connection, numbers: list[int], now: Any) -> None:
    ids = [f"bulk-{number:06}" for number in numbers]
    conn.execute(
        sessions.insert(),
        [{"id": one, "origin": "native", "last_ticket": 1, "created_at": now, "updated_at": now} for one in ids],
    )
    later = now + timedelta(hours=1)
    conn.execute(
        submissions.insert(),
        [
            {
                "session_id": one,
                "id": "p",
                "status": "queued",
                "ticket": 1,
                "content_digest": "d",
                "admitted_at": now,
                "not_before": later,
                "decision_count": 1,
                "decision_action": "requeue",
                "decision_reason": "admitted",
                "decision_revision": 0,
                "decision_version": 0,
            }
            for one in ids
        ],
    )
    conn.execute(
        decisions.insert(),
        [
            {
                "session_id": one,
                "submission_id": "p",
                "number": 1,
                "decided_at": now,
                "action": "admit",
                "reason": "admitted",
                "session_version": 0,
                "revision": 0,
            }
            for one in ids
        ],
    )


def _dump(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
        }


@pytest.mark.slow
def test_a_stuck_submission_among_many_is_found_explained_fixed_and_proven_fixed(
    engine: Engine, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*args: str) -> tuple[int, dict[str, Any]]:
        code = main([*args, "--json", "--database", database_url])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, found

    _load(engine, ROWS)
    scene = Scene(engine)
    scene.session(
        "order-4711",
        turn("refund", said("calls", "tool_use", "call-1"), said("late")),
        payloads={"in": {"text": "refund it"}, "calls": 1, "late": {"text": "done"}},
        leaf="lost",
    )
    hold = {"decision_action": "hold", "decision_reason": "integrity_hold", "decision_revision": 0}
    scene.submission(
        "order-4711",
        "refund",
        held_at=scene.now() - timedelta(hours=3),
        held_reason="integrity_hold",
        reconcile_at=None,
        **hold,
    )

    # Something is wrong, and the answer says where to look.
    _, status = run("status")
    assert (1, 1) == (status["held"], status["quarantined_sessions"])
    assert ["list"] == [hint["tool"] for hint in status["followUp"]]
    # Found: alone among all of them.
    _, stuck = run("list", "--status", "stuck")
    assert [("order-4711", "refund", "integrity_hold")] == [
        (row["session_id"], row["submission_id"], row["held_reason"]) for row in stuck["submissions"]
    ]
    _, held = run("list", "--status", "held", "--since", "1d")
    assert 1 == len(held["submissions"])
    # Explained: what it is held for, and that a person has to decide.
    code, why = run("explain", "refund")
    assert 3 == code
    assert ("integrity_hold", "hold") == (why["inspection"]["detail"], why["next"]["action"])
    assert "missing_leaf" == why["inspection"]["integrity"]
    # A release alone is refused, with the way out in the refusal.
    code, refused = run("release", "refund", "--reason", "looked at it")
    assert (3, True) == (code, "--repair-leaf" in refused["error"]["hint"])
    # Tried: nothing is written.
    before = _dump(engine)
    _, tried = run("release", "refund", "--repair-leaf", "late", "--reason", "looked at it", "--dry-run")
    assert ("would", before) == (tried["result"], _dump(engine))
    # Done.
    _, done = run("release", "refund", "--repair-leaf", "late", "--reason", "looked at it")
    assert "done" == done["result"]
    _, passed = run("once")
    assert 1 == passed["settled"]["completed"]
    # Proven: it has its outcome, nothing is stuck, nothing is broken, and the log says who did what and why.
    _, after = run("explain", "refund")
    assert ("settled", "completed") == (after["status"], after["outcome"])
    assert "looked at it" in [decision["note"] for decision in after["decisions"]]
    assert [] == run("list", "--status", "stuck")[1]["submissions"]
    assert 0 == run("status")[1]["held"]
    code, checked = run("fsck")
    assert (0, [], ROWS + 1) == (code, checked["findings"], checked["checked"]["submissions"])
    assert "" == report(check(database_url))
