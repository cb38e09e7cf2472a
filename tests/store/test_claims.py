"""What is claimable is asked twice: by the pure rule, and by SQL over rows. A test holds the two together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.due import decision_stands, is_claimable
from reconciler.core.model import DecisionOnRecord, Detail, SubmissionFacts
from reconciler.core.states import DecisionAction, Reason, SessionOrigin, SubmissionStatus
from reconciler.store.claims import ClaimCall, Holder, claim
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin
from reconciler.store.schema import attempts, sessions, submissions

HOUR = timedelta(hours=1)


def test_sql_claims_exactly_what_the_rule_calls_claimable(engine: Engine) -> None:
    with begin(engine) as conn:
        now = db_now(conn)
        expected: set[str] = set()
        axes = itertools.product(
            ("native", "mirrored"),
            ("queued", "waiting", "settled"),
            (None, -HOUR, HOUR),  # not_before
            (None, -HOUR, HOUR),  # deadline
            (False, True),  # abort
            (False, True),  # held
            (0, 1),  # how far the revision is past the decision's
            (
                ("requeue", "admitted", None),
                ("requeue", "resume", "tool_calls_unresolved"),
                ("requeue", "first_try", "input_missing"),
                ("hold", "integrity_hold", None),
            ),
            (0, 9),  # leaf_moved_version; the decision saw version 5
            (False, True),  # another one before it
        )
        session_rows: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for number, case in enumerate(axes):
            origin, status, start, deadline, abort, held, past, decision, leaf_moved, behind = case
            claimable_columns = status == "queued" and not held and not abort
            if start is not None and not claimable_columns:
                continue  # a CHECK forbids it
            if (held and status == "settled") or (abort and status == "settled"):
                continue
            session_id = f"s{number:05}"
            action, reason, detail = decision
            session_rows.append(
                {
                    "id": session_id,
                    "origin": origin,
                    "version": 10,
                    "leaf_moved_version": leaf_moved,
                    "created_at": now,
                    "updated_at": now,
                }
            )
            common = {"session_id": session_id, "content_digest": "x", "admitted_at": now, "revision": 3}
            if behind:
                # Unsettled, claimable by nobody.
                rows.append({**_BLANK, **common, "id": "before", "status": "queued", "ticket": 1})
            row: dict[str, Any] = {
                **_BLANK,
                **common,
                "id": "it",
                "ticket": 2,
                "status": status,
                "not_before": None if start is None else now + start,
                "deadline_at": None if deadline is None else now + deadline,
                "abort_requested_at": now if abort else None,
                "held_at": now if held else None,
                "held_reason": "x" if held else None,
                "parked_until": now + HOUR if status == "waiting" else None,
                "outcome": "failed" if status == "settled" else None,
                "settled_at": now if status == "settled" else None,
                "decision_action": action,
                "decision_reason": reason,
                "decision_detail": detail,
                "decision_revision": 3 - past,
                "decision_version": 5,
            }
            rows.append(row)
            facts = SubmissionFacts(
                session_id=session_id,
                submission_id="it",
                status=SubmissionStatus(status),
                origin=SessionOrigin(origin),
                decision_stands=decision_stands(
                    DecisionOnRecord(
                        DecisionAction(action),
                        Reason(reason),
                        revision=3 - past,
                        session_version=5,
                        detail=None if detail is None else Detail(detail),
                    ),
                    revision=3,
                    origin=SessionOrigin(origin),
                    leaf_moved_version=leaf_moved,
                ),
                abort_requested_at=row["abort_requested_at"],
                deadline_at=row["deadline_at"],
                held_at=row["held_at"],
            )
            # A hold sets no not_before, so that a claimable row always has a decision to requeue behind it.
            claims = is_claimable(facts, now, not_before=row["not_before"], is_head=not behind)
            if claims and action == "requeue":
                expected.add(session_id)
        conn.execute(sa.insert(sessions), session_rows)
        conn.execute(sa.insert(submissions), rows)
    assert len(session_rows) > 1_000
    # Two deadlines; five pairs of a decision and a leaf that leaves it standing.
    assert 10 == len(expected)
    found: set[str] = set()
    for number in range(10_000):
        call = ClaimCall(
            claim_key=f"k{number}",
            attempt_ids=tuple(f"a{number}-{item}" for item in range(50)),
            holder=Holder("me"),
            lease_s=15,
            beat_s=5,
            grace_s=60,
        )
        with begin(engine) as conn:
            result = claim(conn, call, repeated=False)
        if not result.claimed:
            break
        found |= {claimed.ref.session_id for claimed in result.claimed}
    assert expected == found


_BLANK: dict[str, Any] = dict.fromkeys(
    (
        "not_before",
        "deadline_at",
        "abort_requested_at",
        "held_at",
        "held_reason",
        "parked_until",
        "outcome",
        "settled_at",
        "decision_action",
        "decision_reason",
        "decision_detail",
        "decision_revision",
        "decision_version",
    )
)


def test_a_claim_reads_no_further_than_its_window_and_the_plan_uses_the_partial_indexes(
    database_factory: Callable[[], str], engine_factory: Callable[..., Engine]
) -> None:
    # A database of its own: what earlier tests left in the tables' pages changes the planner's mind.
    engine = engine_factory(database_factory())
    with begin(engine) as conn:
        now = db_now(conn)
        conn.execute(
            sa.insert(sessions),
            [{"id": f"s{n:04}", "origin": "native", "created_at": now, "updated_at": now} for n in range(2_000)],
        )
        settled = {"status": "settled", "outcome": "completed", "settled_at": now}
        queued = {
            "status": "queued",
            "not_before": now - HOUR,
            "decision_action": "requeue",
            "decision_reason": "admitted",
            "decision_revision": 0,
            "decision_version": 0,
        }
        rows = []
        for n in range(2_000):
            for ticket in range(1, 4):
                last = ticket == 3 and n % 100 == 0
                rows.append(
                    {
                        **dict.fromkeys({*settled, *queued}),
                        "session_id": f"s{n:04}",
                        "id": f"a{ticket}",
                        "ticket": ticket,
                        "content_digest": "x",
                        "admitted_at": now,
                        **(queued if last else settled),
                    }
                )
        conn.execute(sa.insert(submissions), rows)
        if engine.dialect.name == "postgresql":
            conn.execute(sa.text("ANALYZE submissions"))
    seen: list[str] = []

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "ORDER BY q.not_before" in statement and not statement.startswith("EXPLAIN"):
            word = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
            cursor.execute(f"{word} {statement}", parameters)
            seen.append("\n".join(str(row) for row in cursor.fetchall()))
            cursor.execute(statement, parameters)

    sa.event.listen(engine, "before_cursor_execute", explain)
    call = ClaimCall("k", ("a",), Holder("me"), 15, 5, 60)
    with begin(engine) as conn:
        assert 1 == len(claim(conn, call, repeated=False).claimed)
    sa.event.remove(engine, "before_cursor_execute", explain)
    (plan,) = seen
    assert "ix_submissions_claimable" in plan, plan
    assert "ix_submissions_unsettled" in plan, plan
    assert "Seq Scan on submissions" not in plan, plan
    assert 1 == len(_rows(engine))


def _rows(engine: Engine) -> list[Any]:
    with begin(engine) as conn:
        return list(conn.execute(sa.select(attempts)))
