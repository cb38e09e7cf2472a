"""Two ways in which rows are written on PostgreSQL, held together: the quick one, and the one that is the rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.errors import DatabaseUnavailable, InvalidInput
from reconciler.store.admission import NewSubmission, admit, prepare
from reconciler.store.engine import begin, read, run_transaction
from reconciler.store.quick_admission import NotUsual, admit_new
from reconciler.store.schema import decisions, entry_payloads, sessions, settled_ids, submissions
from reconciler.store.sending import Query, send

TABLES = (sessions, submissions, entry_payloads, decisions)

CASES = (
    NewSubmission("s", "plain", {"text": "hello"}),
    NewSubmission("s", "full", [1, None], entity_hints=["a/b", "ß"], fact_count=3, deadline_s=60.5, kind="signal"),
    NewSubmission("s", "limited", "x", limits={"attempts_max": 30, "grace_s": 5}),
)


def _rows(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return all rows, with instants as distances from the submission's admission."""
    with read(engine) as conn:
        return {
            table.name: [
                {
                    name: "an instant" if name.endswith("_at") and value is not None else value
                    for name, value in row._mapping.items()
                    if name != "not_before"
                }
                for row in conn.execute(sa.select(table).order_by(*table.primary_key.columns))
            ]
            for table in TABLES
        }


def test_quick_admission_writes_what_admission_writes(
    postgresql_url: str, postgresql_databases: Any, engine_factory: Callable[..., Engine]
) -> None:
    quick, slow = engine_factory(postgresql_url), engine_factory(postgresql_databases.clone())
    for case in CASES:
        prepared = prepare(case)
        with begin(quick) as conn:
            mine = admit_new(conn, prepared)
        with begin(slow) as conn:
            (rule,) = admit(conn, [prepared])
        assert (rule.ticket, rule.created, rule.status) == (mine.ticket, mine.created, mine.status)
        assert (rule.deadline_at is None) == (mine.deadline_at is None)
        if mine.deadline_at is not None and mine.admitted_at is not None:
            assert 60.5 == (mine.deadline_at - mine.admitted_at).total_seconds()
    assert _rows(slow) == _rows(quick)


@pytest.mark.parametrize("known", ["submitted", "pruned", "mirrored"])
def test_quick_admission_judges_nothing_that_is_not_the_usual_case(
    postgresql_url: str, engine_factory: Callable[..., Engine], known: str
) -> None:
    engine = engine_factory(postgresql_url)
    prepared = prepare(CASES[0])
    with begin(engine) as conn:
        (admitted,) = admit(conn, [prepared])
    assert admitted.created
    with begin(engine) as conn:
        if known == "pruned":
            conn.execute(
                sa.insert(settled_ids).values(
                    session_id="s",
                    submission_id="plain",
                    outcome="completed",
                    content_digest=prepared.digest,
                    ticket=1,
                    claims=1,
                    settled_at=admitted.admitted_at,
                    pruned_at=admitted.admitted_at,
                )
            )
            conn.execute(sa.delete(submissions))
        elif known == "mirrored":
            conn.execute(sa.update(sessions).values(origin="mirrored"))
    before = _rows(engine)
    asked = dataclasses.replace(prepared, submission_id="other") if known == "mirrored" else prepared
    with pytest.raises(NotUsual), begin(engine) as conn:
        admit_new(conn, asked)
    assert before == _rows(engine)


def test_statements_sent_together_are_one_transaction_and_each_sees_what_came_before(
    postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    engine = engine_factory(postgresql_url)
    statement = (
        "INSERT INTO settled_ids (session_id, submission_id, outcome, content_digest, ticket, claims, settled_at,"
    )
    statement += " pruned_at) VALUES (%(s)s, 'u', 'completed', 'x', 1, 1, now(), now())"
    count = "SELECT count(*) FROM settled_ids"
    with begin(engine) as conn:
        found = send(conn, (statement, {"s": "a"}), (count, {}), (statement, {"s": "b"}), (count, {}))
    assert [[], [(1,)], [], [(2,)]] == found
    with pytest.raises(Exception, match="undone"), begin(engine) as conn:
        send(conn, (statement, {"s": "c"}))
        raise RuntimeError("undone")
    # One that fails takes all of them with it, and says what it was.
    with pytest.raises(InvalidInput), begin(engine) as conn:
        send(conn, (statement, {"s": "d"}), (statement, {"s": "nul \0"}))
    with begin(engine) as conn:
        assert [(2,)] == send(conn, (count, {}))[0]


def test_a_connection_that_went_away_is_made_again_for_what_may_be_repeated(
    postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    engine = engine_factory(postgresql_url, pool_pre_ping=False)
    killer = engine_factory(postgresql_url)
    count: Query = ("SELECT count(*) FROM settled_ids", {})

    def end_them() -> None:
        with killer.connect() as conn:
            conn.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )

    assert [[(0,)]] == run_transaction(engine, lambda conn: send(conn, count), idempotent=True)
    end_them()
    with pytest.raises(DatabaseUnavailable):
        run_transaction(engine, lambda conn: send(conn, count))
    run_transaction(engine, lambda conn: send(conn, count))
    end_them()
    assert [[(0,)]] == run_transaction(engine, lambda conn: send(conn, count), idempotent=True)
    end_them()
    assert [[(0,)], [(0,)]] == run_transaction(engine, lambda conn: send(conn, count, count), idempotent=True)
