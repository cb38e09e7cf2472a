"""What lets the tables be spread over servers by session: no join across sessions, no uniqueness across sessions.

An engine that distributes by session id (or several databases under one configuration) can do every statement of the
hot path in one place, because each names its session, and can hold every unique index, because each begins with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import UniqueConstraint, event
from sqlalchemy.engine import Engine

from reconciler.core.model import NewEntry
from reconciler.service.deciding import Judge
from reconciler.service.reconcile import reconcile_once
from reconciler.service.runner import Runner
from reconciler.store.schema import metadata
from tests.bench import data
from tests.bench.databases import Database

BY_SESSION = sorted(table.name for table in metadata.tables.values() if "session_id" in table.primary_key.columns)
# Small, or no part of a session's life: copied to every server, or kept on one.
BESIDE = {
    "alembic_version",
    "audit",
    "instances",
    "operation_items",
    "operations",
    "passes",
    "refine_epochs",
    "refine_steps",
    "rejected_edits",
    "schedule_jobs",
    "schedule_slots",
    "sources",
}


def test_every_table_that_grows_with_sessions_is_known_to() -> None:
    assert {*BY_SESSION, "sessions"} | BESIDE - {"alembic_version"} == set(metadata.tables)


@pytest.mark.parametrize("name", BY_SESSION)
def test_every_unique_index_of_a_session_table_begins_with_the_session(name: str) -> None:
    table = metadata.tables[name]
    unique = [[column.name for column in table.primary_key.columns]]
    unique += [[column.name for column in index.columns] for index in table.indexes if index.unique]
    unique += [
        [column.name for column in constraint.columns]
        for constraint in table.constraints
        if isinstance(constraint, UniqueConstraint)
    ]
    assert {"session_id"} == {columns[0] for columns in unique}
    assert not table.foreign_keys


_TABLE = re.compile(r"\b(?:FROM|JOIN|UPDATE|,)\s+(?:\w+\.)?(sessions|" + "|".join(BY_SESSION) + r")(?:\s+AS)?\s+(\w+)")


def _loose(statement: str) -> list[str]:
    """Return the tables of a session that a statement joins without naming the session.

    Each query inside it is looked at by itself.
    """
    loose: list[str] = []
    while inner := _INNER.search(statement):
        loose += _loose_here(inner[1])
        statement = statement[: inner.start()] + " ~ " + statement[inner.end() :]
    return loose + _loose_here(statement)


# The innermost parentheses.
_INNER = re.compile(r"\(([^()]*)\)")


def _loose_here(statement: str) -> list[str]:
    aliases = {
        alias: table
        for table, alias in _TABLE.findall(statement)
        if alias.upper() not in ("WHERE", "SET", "ORDER", "ON")
    }
    if len(aliases) < 2:
        return []
    tied = set()
    for alias, table in aliases.items():
        column = "id" if table == "sessions" else "session_id"
        if re.search(rf"\b{alias}\.{column}\s*=\s|=\s*{alias}\.{column}\b", statement):
            tied.add(alias)
    return [f"{aliases[alias]} {alias}" for alias in aliases if alias not in tied]


def test_the_check_finds_a_join_across_sessions() -> None:
    assert ["attempts a"] == _loose(
        "SELECT 1 FROM submissions s JOIN attempts a ON a.attempt_id = s.current_attempt_id WHERE s.session_id = %s"
    )


def test_no_statement_of_the_hot_path_joins_across_sessions(
    database_kind: str, database_url: str, engine_factory: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        texts.append(" ".join(statement.split()))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        database = Database(database_kind, database_url)
        for ends in (data.FINISHED, data.UNRESOLVED, data.ABORTED):
            data.add_due(database, 3, prefix=ends, ends=ends, tail=3, payload_bytes=20)
        with Runner(database_url, notify=False, beat_by_itself=False) as runner:
            runner.submit("a", "one", {"text": "hello"})
            for attempt in runner.claim(limit=2):
                attempt.begin()
                attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
                runner.heartbeat([attempt])
                attempt.settle("completed")
        reconcile_once(engine_factory(database_url), judge=Judge(connected_for_s=lambda: 1e9))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(texts) > 20
    assert [] == [(loose, text[:300]) for text in texts if (loose := _loose(text))]
