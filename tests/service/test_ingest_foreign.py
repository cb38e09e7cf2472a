"""Importing sessions out of other programs' databases, into both of ours: repeats, growth, rows rewritten in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine, make_url

from reconciler.errors import SourceNotQuiet, SourceOwned, SourceUnreadable
from reconciler.service.ingest import IngestOptions, import_paths
from reconciler.service.inspect_files import inspect_paths
from reconciler.store import schema
from tests.support.databases import PostgreSQLDatabases
from tests.support.foreign_stores import (
    USER,
    Flue,
    GoogleAdk,
    Langgraph,
    OpenaiAgents,
    Opencode,
    PiSqlite,
    Store,
    adk_call,
    adk_result,
    adk_text,
    call_item,
    lc,
    lc_calls,
    output_item,
    said,
    tool_part,
)


def rows(engine: Engine, table: sa.Table) -> list[Any]:
    with engine.connect() as conn:
        return list(conn.execute(sa.select(table)))


def counts(payload: dict[str, Any]) -> tuple[int, int, int, int]:
    found = payload["imported"]
    return found["entries"], found["entries_rewritten"], found["entries_removed"], found["submissions"]


# Each format: a store that a crash left inside a turn, and the same store after its program went on.
def opencode(where: Path) -> tuple[Store, Callable[[], object]]:
    store = Opencode(where).user("msg_1").assistant("msg_2", "msg_1", None, "working")
    store.tool("prt_a", "msg_2", "c1", "running")
    return store, lambda: store.change("prt_a", tool_part("c1", "completed", output="ok"))


def openai_agents(where: Path | str) -> tuple[Store, Callable[[], object]]:
    store = OpenaiAgents(where).add(USER, call_item("c1"))
    return store, lambda: store.add(output_item("c1"))


def google_adk(where: Path | str) -> tuple[Store, Callable[[], object]]:
    store = (
        GoogleAdk(where).session().event("e1", "i1", "user", adk_text("hi")).event("e2", "i1", "root", adk_call("c1"))
    )
    return store, lambda: store.event("e3", "i1", "root", adk_result("c1"))


def langgraph(where: Path | str) -> tuple[Store, Callable[[], object]]:
    store = Langgraph(where)
    human, doing = lc("human", "do it", "h1"), lc("ai", "doing", "a1", tool_calls=lc_calls("c1"))
    store.checkpoint(source="input", given=[lc("human", "do it")])
    store.checkpoint([human, doing], following=["tools"])
    result = lc("tool", "ok", "r1", tool_call_id="c1")
    return store, lambda: store.checkpoint([human, doing, result], following=["model"])


def flue(where: Path | str) -> tuple[Store, Callable[[], object]]:
    store = Flue(where).submission("s1", "running").user("s1").response("a1", "s1", "c1", stop="toolUse")
    return store, lambda: store.outcome("a1", "c1")


def pi_sqlite(where: Path) -> tuple[Store, Callable[[], object]]:
    store = PiSqlite(where).entry("u1", None, {"role": "user", "content": "do it"})
    call = [{"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}]
    store.entry("a1", "u1", {"role": "assistant", "content": call, "stopReason": "toolUse"})
    return store, lambda: store.entry("r1", "a1", {"role": "toolResult", "toolCallId": "c1", "content": []})


ALL = [opencode, openai_agents, google_adk, langgraph, flue, pi_sqlite]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_database_is_imported_once_and_grows(
    make: Callable[[Path], tuple[Store, Callable[[], object]]], engine: Engine, tmp_path: Path
) -> None:
    store, go_on = make(tmp_path / "store.db")
    first = import_paths(engine, [store.name])
    (file,) = first["files"]
    (submission,) = file["submissions"]
    assert ("continuable", "tool_calls_unresolved") == (submission["state"], submission["detail"])
    assert counts(first)[0] == file["entry_count"] == len(rows(engine, schema.entries))
    assert 1 == counts(first)[3]
    again = import_paths(engine, [store.name])
    assert ((0, 0, 0, 0), "same") == (counts(again), again["files"][0]["imported"]["unchanged"])
    before = {row.entry_id: row.payload for row in rows(engine, schema.entry_payloads)}
    go_on()
    grown = import_paths(engine, [store.name])
    (submission,) = grown["files"][0]["submissions"]
    assert ("continuable", "tool_results_ready") == (submission["state"], submission["detail"])
    assert (1, 0) == (counts(grown)[0], counts(grown)[2])
    # What was rewritten in place is replaced, and what stood there is kept.
    assert counts(grown)[1] == len(rows(engine, schema.superseded_payloads))
    kept = {row.entry_id: row.payload for row in rows(engine, schema.entry_payloads)}
    assert before.keys() < kept.keys()
    assert ((0, 0, 0, 0), "same") == (
        counts(again := import_paths(engine, [store.name])),
        again["files"][0]["imported"]["unchanged"],
    )
    store.close()


def test_a_tool_that_runs_is_replaced_by_what_became_of_it(engine: Engine, tmp_path: Path) -> None:
    store, go_on = opencode(tmp_path / "store.db")
    import_paths(engine, [store.name])
    go_on()
    import_paths(engine, [store.name])
    (old,) = rows(engine, schema.superseded_payloads)
    assert "prt_a:started" == old.entry_id
    assert '"status":"running"' in old.payload
    new = {row.entry_id: row.payload for row in rows(engine, schema.entry_payloads)}
    assert '"output":"ok"' in new["prt_a:result"]
    store.close()


def test_rows_that_are_taken_back_are_removed_and_kept_aside(engine: Engine, tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "store.db").add(USER, call_item("c1"), output_item("c1"))
    import_paths(engine, [store.name])
    store.run("DELETE FROM agent_messages WHERE id = 3")
    assert 1 == counts(import_paths(engine, [store.name]))[2]
    assert ["message:3"] == [row.entry_id for row in rows(engine, schema.superseded_payloads)]
    store.close()


def test_each_session_is_a_source_of_its_own(engine: Engine, tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "store.db").add(USER, session="a").add(USER, session="b")
    import_paths(engine, [store.name])
    assert [f"{store.name}#a", f"{store.name}#b"] == sorted(row.locator for row in rows(engine, schema.sources))
    store.add(said("hello"), session="b")
    payload = import_paths(engine, [store.name])
    assert ["same", None] == [file["imported"]["unchanged"] for file in payload["files"]]
    store.close()


def test_a_session_can_be_owned_when_its_database_is_quiet(engine: Engine, tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "store.db").add(USER, session="a")
    with pytest.raises(SourceNotQuiet):
        import_paths(engine, [store.name], IngestOptions(own=True))
    owned = import_paths(engine, [store.name], IngestOptions(own=True, force=True))
    assert ["a"] == owned["imported"]["owned"]
    again = import_paths(engine, [store.name], IngestOptions(own=True))
    assert (0, ["owned"]) == (again["failed"], [file["imported"]["unchanged"] for file in again["files"]])
    store.add(said("hello"), session="a")
    with pytest.raises(SourceOwned, match="has changed since then"):
        import_paths(engine, [store.name])
    store.close()


def test_a_dry_run_writes_nothing(engine: Engine, tmp_path: Path) -> None:
    store, _ = opencode(tmp_path / "store.db")
    assert 4 == counts(import_paths(engine, [store.name], IngestOptions(dry_run=True)))[0] + 1
    assert [] == rows(engine, schema.sessions)
    store.close()


def test_a_settlement_of_the_source_is_an_outcome(engine: Engine, tmp_path: Path) -> None:
    store = Flue(tmp_path / "store.db").user("s1")
    store.batch({"type": "submission_settled", "submissionId": "s1", "outcome": "failed"})
    import_paths(engine, [store.name])
    (entry,) = [row for row in rows(engine, schema.entries) if row.kind == "submission_settled"]
    payload = next(row.payload for row in rows(engine, schema.entry_payloads) if row.entry_id == entry.id)
    assert ("s1", "failed") == (entry.submission_id, json.loads(payload)["outcome"])
    store.close()


def test_the_same_session_in_an_export_adds_nothing(engine: Engine, tmp_path: Path) -> None:
    store = Opencode(tmp_path / "store.db").user("msg_1").assistant("msg_2", "msg_1", "stop", "done")
    import_paths(engine, [store.name])
    messages = [
        {"info": {"id": "msg_1", "role": "user"}, "parts": []},
        {"info": {"id": "msg_2", "role": "assistant", "parentID": "msg_1", "finish": "stop"}, "parts": []},
    ]
    export = tmp_path / "export.json"
    export.write_text(json.dumps({"info": {"id": "ses_1", "version": "1.18.33"}, "messages": messages}))
    payload = import_paths(engine, [str(tmp_path)])
    # The payloads differ, so that it is another record of the same session: named, and nothing is overwritten.
    assert 1 == payload["failed"]
    assert "source_conflict" in {problem["code"] for file in payload["files"] for problem in file["problems"]}
    store.close()


# --- PostgreSQL as a source ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [openai_agents, google_adk, langgraph, flue], ids=lambda make: make.__name__)
def test_a_database_behind_a_url_reads_as_a_file_does(
    make: Callable[[Path | str], tuple[Store, Callable[[], object]]],
    postgresql_databases: PostgreSQLDatabases,
    tmp_path: Path,
) -> None:
    url = postgresql_databases.empty().replace("postgresql+psycopg", "postgresql")
    behind, go_on = make(url)
    file, go_on_too = make(tmp_path / "store.db")
    with closing(behind), closing(file):
        for step in (None, (go_on, go_on_too)):
            for one in step or ():
                one()
            answers = []
            for name in (url, file.name):
                (found,) = inspect_paths([name])["files"]
                del found["file"], found["format_reason"]
                answers.append(found)
            assert answers[0] == answers[1]


def test_a_url_is_imported_without_its_password_and_nothing_is_written_there(
    sqlite_url: str, engine_factory: Callable[..., Engine], postgresql_databases: PostgreSQLDatabases
) -> None:
    sqlite_engine = engine_factory(sqlite_url)
    url = postgresql_databases.empty().replace("postgresql+psycopg", "postgresql")
    store, go_on = openai_agents(url)
    with closing(store):
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("BEGIN")
            conn.execute("LOCK TABLE agent_messages IN ROW EXCLUSIVE MODE")
            first = import_paths(sqlite_engine, [url])
            conn.execute("COMMIT")
        assert 2 == counts(first)[0]
        go_on()
        assert 1 == counts(import_paths(sqlite_engine, [url]))[0]
        (source,) = rows(sqlite_engine, schema.sources)
        assert source.locator.endswith("#chat")
        assert "***" not in source.locator
        assert make_url(url).password not in source.locator


@pytest.mark.parametrize(
    "url", ["postgresql://nobody:secret@127.0.0.1:1/none", "postgres://127.0.0.1:1/none", "postgresql:"]
)
def test_a_url_that_leads_nowhere_is_a_typed_error_without_the_password(url: str) -> None:
    with pytest.raises(SourceUnreadable) as caught:
        inspect_paths([url])
    assert "secret" not in caught.value.message
