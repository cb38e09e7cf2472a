"""Statements in the drivers' words mean the same on both databases."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.engine import Engine

from reconciler.store.driver_sql import DriverSql
from reconciler.store.engine import begin, read

SESSION = DriverSql(
    "INSERT INTO sessions (id, origin, created_at, updated_at) VALUES (:id, 'native', :now, :now)"
    " ON CONFLICT (id) DO NOTHING"
)
NOW = datetime(2026, 5, 1, 3, 0, tzinfo=UTC)


def test_it_says_how_many_rows_it_touched(engine: Engine) -> None:
    with begin(engine) as conn:
        assert [1, 0] == [SESSION.run(conn, id="a", now=NOW), SESSION.run(conn, id="a", now=NOW)]


def test_a_list_is_one_parameter_and_a_percent_sign_is_a_percent_sign(engine: Engine) -> None:
    ids = ["a", "b%", "c'\"", "d\\"]
    with begin(engine) as conn:
        SESSION.run_many(conn, [{"id": name, "now": NOW} for name in ids])
        SESSION.run_many(conn, [])
    with read(engine) as conn:
        wanted = DriverSql("SELECT id FROM sessions WHERE id IN :ids AND id LIKE '%%' ORDER BY id")
        assert [("b%",), ("d\\",)] == list(wanted.rows(conn, ids=["b%", "d\\", "none"]))
        assert [] == list(wanted.rows(conn, ids=[]))


def test_a_locking_read_reads(engine: Engine) -> None:
    with begin(engine) as conn:
        SESSION.run(conn, id="a", now=NOW)
        assert [("a",)] == list(DriverSql("SELECT id FROM sessions WHERE id = :id", locking=True).rows(conn, id="a"))
