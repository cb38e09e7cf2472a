"""Somebody who may only read: gets every answer, sees no payload, writes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.errors import DatabaseReadOnly, ReconcilerError
from reconciler.store import migrate
from reconciler.store.engine import begin, make_engine, read, run_transaction
from reconciler.store.schema import metadata, submissions
from tests.queries import scene
from tests.support.questions import PUBLIC, QUESTIONS
from tests.support.restartable import RestartableServer

ROLES = Path(__file__).parents[2] / "deploy/postgresql/roles.sql"
PARAMETERS = {"session": "dead", "submission": "b1", "subject": "skill"}


@pytest.fixture(scope="module")
def roles() -> Iterator[Callable[[str], str]]:
    """Give the address of a database with the scene, by role. Roles are a server's: it has one of its own."""
    import psycopg

    with RestartableServer() as server:
        server.address.execute("CREATE DATABASE work")
        url = server.address.url("work")
        migrate.upgrade(url)
        engine = make_engine(url)
        scene.make(engine)
        engine.dispose()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(ROLES.read_bytes())
            for role in ("reader", "runtime"):
                conn.execute(f"ALTER ROLE reconciler_{role} PASSWORD 'pass'".encode())
        yield lambda role: server.address.url("work", user=f"reconciler_{role}", password="pass")


@pytest.mark.postgresql
def test_the_reader_role_is_answered_every_question(
    roles: Callable[[str], str], engine_factory: Callable[..., Engine]
) -> None:
    with read(engine_factory(roles("reader"))) as conn:
        for question in QUESTIONS.values():
            given = {name: PARAMETERS[name] for name in question.parameters}
            assert conn.execute(question.statement(), given).all(), question.title


@pytest.mark.postgresql
def test_the_reader_role_sees_the_views_and_no_table(
    roles: Callable[[str], str], engine_factory: Callable[..., Engine]
) -> None:
    engine = engine_factory(roles("reader"))
    for table in metadata.sorted_tables:
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), engine.connect() as conn:
            conn.execute(sa.text(f"SELECT 1 FROM {table.name} LIMIT 1"))
    with engine.connect() as conn:
        seen = conn.execute(
            sa.text(
                "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace('reconciler')"
                " AND c.relkind IN ('r', 'p', 'v', 'm') AND has_table_privilege(c.oid, 'SELECT')"
            )
        ).scalars()
        assert PUBLIC == set(seen)
        writable = conn.execute(
            sa.text(
                "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace('reconciler')"
                " AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')"
            )
        ).scalars()
        assert [] == list(writable)


@pytest.mark.postgresql
@pytest.mark.parametrize("role", ["reader", "runtime"])
def test_neither_role_can_change_the_schema(
    roles: Callable[[str], str], engine_factory: Callable[..., Engine], role: str
) -> None:
    engine = engine_factory(roles(role))
    for statement in (
        "ALTER TABLE submissions ADD COLUMN mine text",
        "DROP VIEW v_pending",
        "CREATE TABLE reconciler.mine (a int)",
        "CREATE OR REPLACE VIEW v_clock AS SELECT payload FROM entry_payloads",
    ):
        with pytest.raises(sa.exc.DBAPIError), engine.begin() as conn:
            conn.execute(sa.text("SET LOCAL default_transaction_read_only = off"))
            conn.execute(sa.text(statement))
    # PostgreSQL only warns where a role hands on what it may not.
    with engine.begin() as conn:
        if role == "runtime":
            conn.execute(sa.text("GRANT SELECT ON entry_payloads TO reconciler_reader"))
        query = "SELECT has_table_privilege('reconciler_reader', 'entry_payloads', 'SELECT')"
        assert conn.execute(sa.text(query)).scalar_one() is False


def test_a_question_that_tries_to_write_is_refused_by_the_database(
    engine: Engine, database_url: str, engine_factory: Callable[..., Engine]
) -> None:
    scene.make(engine)
    statement = sa.update(submissions).values(crashes_in_row=99)
    with pytest.raises(ReconcilerError), read(engine) as conn:
        conn.execute(statement)
    only = engine_factory(database_url, read_only=True)
    with pytest.raises(DatabaseReadOnly):
        run_transaction(only, lambda conn: conn.execute(statement))
    for question in QUESTIONS.values():
        with read(only) as conn:
            given = {name: PARAMETERS[name] for name in question.parameters}
            assert conn.execute(question.statement(), given).all(), question.title
    with begin(engine) as conn:
        assert 99 not in conn.execute(sa.select(submissions.c.crashes_in_row)).scalars().all()


def test_sqlites_own_tool_opened_for_reading_answers_and_cannot_write(
    sqlite_url: str, engine_factory: Callable[..., Engine]
) -> None:
    moment: datetime = scene.make(engine_factory(sqlite_url))
    assert moment.tzinfo is not None
    conn = sqlite3.connect(f"file:{sqlite_url.removeprefix('sqlite:///')}?mode=ro", uri=True)
    try:
        for question in QUESTIONS.values():
            assert conn.execute(question.sql, PARAMETERS).fetchall(), question.title
        for statement in ("DELETE FROM submissions", "DROP VIEW v_pending", "UPDATE sessions SET version = 9"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                conn.execute(statement)
    finally:
        conn.close()
