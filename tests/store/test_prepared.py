"""Statements that go to the driver as they were compiled once give what SQLAlchemy's own execution gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Engine

from reconciler.store.engine import begin, read
from reconciler.store.prepared import Prepared, insertion, is_among
from reconciler.store.schema import entry_payloads, sessions
from reconciler.store.sending import is_listened_to

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
INSERT = Prepared(insertion(sessions, ("id", "origin", "created_at", "updated_at")))
INSERT_NEW = Prepared(insertion(sessions, ("id", "origin", "created_at", "updated_at"), ignore=True))
SELECT = sa.select(sessions.c.id, sessions.c.updated_at, sessions.c.leaf_known_empty, sessions.c.leaf_moved_at)
AMONG = Prepared(lambda conn: SELECT.where(is_among(conn, sessions.c.id, "ids")).order_by(sessions.c.id))
ONE = Prepared(SELECT.where(sessions.c.id == sa.bindparam("wanted")))
TOUCH = Prepared(
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("p_id"))
    .values(updated_at=sa.bindparam("p_now"), version=sessions.c.version + 2)
)
AWKWARD = ["", "a'b", 'c"d', "e,f", "{g}", "\\h", "NULL", "ü𝄞"]


def values(name: str) -> dict[str, Any]:
    return {"id": name, "origin": "native", "created_at": NOW, "updated_at": NOW}


def test_rows_are_converted_and_named_as_sqlalchemy_does(engine: Engine) -> None:
    with begin(engine) as conn:
        assert 2 == INSERT.run(conn, [values("a"), values("b")])
    with read(engine) as conn:
        own = [tuple(row) for row in conn.execute(SELECT.order_by(sessions.c.id))]
        rows = AMONG.rows(conn, {"ids": ["b", "a", "none"]})
        assert own == [tuple(row) for row in rows]
        assert ["a", "b"] == [row.id for row in rows]
        assert NOW == rows[0].updated_at
        assert UTC is rows[0].updated_at.tzinfo
        assert rows[0].leaf_moved_at is None
        assert "a" == ONE.one_or_none(conn, {"wanted": "a"}).id
        assert ONE.one_or_none(conn, {"wanted": "none"}) is None


def test_lists_hold_any_text_and_may_be_empty(engine: Engine) -> None:
    with begin(engine) as conn:
        INSERT.run(conn, [values(name) for name in AWKWARD if name])
    with read(engine) as conn:
        assert sorted(name for name in AWKWARD if name) == sorted(row.id for row in AMONG.rows(conn, {"ids": AWKWARD}))
        assert [] == AMONG.rows(conn, {"ids": []})


def test_a_write_counts_the_rows_that_it_touched(engine: Engine) -> None:
    with begin(engine) as conn:
        assert 1 == INSERT.run(conn, [values("a")])
        assert 1 == INSERT_NEW.run(conn, [values("a"), values("b")])
        assert 0 == INSERT_NEW.run(conn, [values("b")])
        assert 1 == TOUCH.run(conn, [{"p_id": "a", "p_now": NOW}])
        assert 2 == TOUCH.run(conn, [{"p_id": name, "p_now": NOW} for name in ("a", "none", "b")])
    with read(engine) as conn:
        assert [4, 2] == list(conn.execute(sa.select(sessions.c.version).order_by(sessions.c.id)).scalars())


def test_a_refusal_of_the_database_is_sqlalchemys_error_of_its_kind(engine: Engine) -> None:
    with pytest.raises(sa_exc.IntegrityError), engine.begin() as conn:
        INSERT.run(conn, [values("a")])
        INSERT.run(conn, [values("a")])
    with pytest.raises(sa_exc.IntegrityError), engine.begin() as conn:
        orphan = {"session_id": "none", "entry_id": "e", "payload": None}
        Prepared(insertion(entry_payloads, tuple(orphan))).run(conn, [orphan])
    with pytest.raises(sa_exc.DBAPIError), engine.connect() as conn:
        Prepared(sa.text("SELECT no_such_column FROM sessions")).rows(conn)


def test_a_value_that_is_missing_is_no_null(engine: Engine) -> None:
    with engine.connect() as conn, pytest.raises(KeyError, match="wanted"):
        ONE.rows(conn, {"want": "a"})


def test_more_rows_than_one_are_not_one(engine: Engine) -> None:
    with begin(engine) as conn:
        INSERT.run(conn, [values("a"), values("b")])
        with pytest.raises(sa_exc.MultipleResultsFound):
            Prepared(SELECT).one_or_none(conn)


def test_who_listens_to_statements_sees_them_and_the_answers_are_the_same(engine: Engine) -> None:
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement.split(maxsplit=1)[0])

    def acts() -> list[Any]:
        with engine.begin() as conn:
            counts = [INSERT_NEW.run(conn, [values("a")]), TOUCH.run(conn, [{"p_id": "a", "p_now": NOW}] * 2)]
            return [*counts, *AMONG.rows(conn, {"ids": ["a"]}), is_listened_to(conn)]

    event.listen(engine, "before_cursor_execute", note)
    heard = acts()
    event.remove(engine, "before_cursor_execute", note)
    assert {"INSERT", "UPDATE", "SELECT"} <= set(seen)
    assert [1, 2] == heard[:2]
    assert heard[-1] is True
    quiet = acts()
    assert [0, 2] == quiet[:2]
    assert quiet[-1] is False
    assert heard[2] == quiet[2]
