"""Questions and acts over other programs' databases, through the one door."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine, make_url

from reconciler.store.schema import audit
from tests.ops.conftest import Front
from tests.support.databases import PostgreSQLDatabases
from tests.support.foreign_stores import USER, GoogleAdk, OpenaiAgents, adk_call, adk_text, call_item


def test_inspect_and_import_answer_as_they_promise(front: Front, tmp_path: Path) -> None:
    store = GoogleAdk(tmp_path / "adk.db").session().event("e1", "i1", "user", adk_text("hi"))
    store.event("e2", "i1", "root", adk_call("L1"), long_running_tool_ids=["L1"]).event("e3", "i1", "root")
    store.run("UPDATE events SET event_data = '{oops' WHERE id = 'e3'")
    with closing(store):
        (file,) = front.get("inspect", files=[store.name])["files"]
        assert ("google-adk", "an answer to the call L1") == (file["format"], file["waits_for"])
        assert "events/e3" == file["problems"][0]["place"]
        assert 3 == front.get("import", files=[store.name])["imported"]["entries"]


def test_watch_answers_as_it_promises_and_goes_on_where_it_was(front: Front, tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "agents.db").add(USER, call_item("c1"))
    old = time.time() - 4000
    os.utime(tmp_path / "agents.db", (old, old))
    with closing(store):
        first = front.get("watch", sources=[store.name])
        (change,) = first["changes"]
        assert ("stuck", ["c1"], {"stuck": 1}) == (
            change["standing"],
            change["unresolved_tool_calls"],
            first["standings"],
        )
        again = front.get("watch", sources=[store.name])
        assert ([], [], {"stuck": 1}) == (again["changes"], again["read"], again["standings"])
        assert "invalid_input" == front.refused("watch", sources=["-"])["code"]


def test_the_password_of_a_source_stands_nowhere(
    front: Front, engine: Engine, postgresql_databases: PostgreSQLDatabases
) -> None:
    url = postgresql_databases.empty().replace("postgresql+psycopg", "postgresql")
    password = make_url(url).password
    assert password
    with closing(OpenaiAgents(url).add(USER)):
        answers: list[Any] = [front.get("inspect", files=[url]), front.get("watch", sources=[url])]
        answers.append(front.get("import", files=[url]))
    with engine.connect() as conn:
        answers += [tuple(row) for row in conn.execute(sa.select(audit))]
        answers += (
            [tuple(row) for row in conn.execute(sa.text("SELECT locator FROM sources"))]
            if engine.name == "sqlite"
            else []
        )
    assert 1 == sum("import" in str(answer) for answer in answers if isinstance(answer, tuple))
    assert [] == [answer for answer in answers if password in str(answer)]


@pytest.mark.parametrize("verb", ["inspect", "watch"])
def test_an_unreadable_database_is_named_with_the_reason(front: Front, tmp_path: Path, verb: str) -> None:
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    if verb == "inspect":
        error = front.refused("inspect", files=[str(tmp_path / "x.db")])
        assert ("source_unreadable", True) == (error["code"], str(tmp_path / "x.db") in error["message"])
        return
    (change,) = front.get("watch", sources=[str(tmp_path / "x.db")])["changes"]
    assert ("unreadable", True) == (change["standing"], "cannot read" in change["message"])
