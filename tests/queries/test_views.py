"""The public views as a promise: their columns and types on each database, and nothing in them of what was said."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.core.canonical import canonical_json
from reconciler.errors import ReconcilerError
from reconciler.store import schema as s
from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import begin, read
from reconciler.store.views import PUBLIC_VIEWS, VIEWS, VIEWS_VERSION
from tests.queries import scene

GOLDEN: Final = Path(__file__).parent / "golden"
WORD: Final = "xyzzy"

# Columns that hold what was said, or words made from it. What a view may know of one stands beside it.
SAID: Final = {
    "entry_payloads": {"payload"},
    "superseded_payloads": {"payload", "columns"},
    "submissions": {"error", "plan", "entity_hints", "limits", "late_evidence", "pending_calls", "content_digest"},
    "attempts": {"error", "plan", "end_digest", "claim_key"},
    "decisions": {"plan", "inspection"},
    "operations": {"parameters", "filter"},
    "operation_items": {"result"},
    "audit": {"parameters", "result"},
    "sources": {"problems", "content_digest"},
}
ALLOWED: Final = {
    ("v_settlements", "has_late_evidence"): "(s.late_evidence IS NOT NULL)",
    ("v_decisions", "plan_mode"): "JSON_TEXT(d.plan, mode)",
}


def _columns(conn: Connection) -> list[str]:
    if is_postgresql(conn):
        query = (
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a"
            " JOIN pg_class c ON c.oid = a.attrelid WHERE c.relkind = 'v' AND a.attnum > 0"
            " AND c.relnamespace = to_regnamespace('reconciler') ORDER BY c.relname COLLATE \"C\", a.attnum"
        )
        return [".".join(row[:2]) + f" {row[2]}" for row in conn.execute(sa.text(query))]
    found = []
    for name in sorted(PUBLIC_VIEWS):
        found += [f"{name}.{row[1]} {row[2]}".rstrip() for row in conn.exec_driver_sql(f"PRAGMA table_info({name})")]
    return found


def test_the_columns_are_the_ones_that_were_promised(engine: Engine) -> None:
    with read(engine) as conn:
        found = [f"version {VIEWS_VERSION}", *_columns(conn)]
        path = GOLDEN / f"views-{'postgresql' if is_postgresql(conn) else 'sqlite'}.txt"
    if os.environ.get("RECONCILER_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(found) + "\n", encoding="utf-8")
    promised = path.read_text(encoding="utf-8").splitlines()
    assert promised == found, (
        "operators and dashboards rely on these: within a version columns are only added, at the end of their view."
        " Where that is meant, run with RECONCILER_UPDATE_GOLDEN=1 and read the diff"
    )


def test_no_columns_are_made_from_what_was_said() -> None:
    aliases = {"s": "submissions", "b": "submissions", "w": "submissions", "e": "sessions", "a": "attempts"}
    aliases |= {"l": "attempts", "d": "decisions", "u": "audit"}
    for view in PUBLIC_VIEWS.values():
        texts = {column.name: column.sql for column in view.columns} | {"": view.source}
        for name, text in texts.items():
            if (view.name, name) in ALLOWED:
                assert ALLOWED[view.name, name] == text
                continue
            for alias, column in re.findall(r"\b([a-z])\.([a-z_]+)", text):
                assert column not in SAID.get(aliases.get(alias, ""), set()), f"{view.name}.{name}: {text}"
        tables = set(re.findall(r"(?:FROM|JOIN) ([a-z_]+)", " ".join(texts.values())))
        assert not tables & {"entry_payloads", "superseded_payloads", "operations", "operation_items", "sources"}


def test_every_column_that_may_hold_what_was_said_is_listed() -> None:
    # A new JSON text of the schema has to be thought of.
    harmless = {
        ("entries", "tool_call_ids"),  # ids
        ("decisions", "evidence"),  # ids of entries
        ("schedule_slots", "result"),  # counts of the system's own work
    }
    texts = {
        (table.name, column.name)
        for table in s.metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, sa.Text) and column.name in {"payload", "result", "parameters", "plan", "columns"}
    }
    texts |= {("decisions", "evidence"), ("entries", "tool_call_ids")}
    listed = {(table, column) for table, columns in SAID.items() for column in columns}
    assert set() == texts - listed - harmless
    for table, column in listed | harmless:
        assert column in s.metadata.tables[table].columns


@pytest.fixture
def now(engine: Engine) -> datetime:
    """Put the scene, with a word in every column that holds what was said."""
    moment = scene.make(engine)
    said = canonical_json({"mode": "continue", "text": WORD, WORD: [WORD]})
    with begin(engine) as conn:
        conn.execute(sa.insert(s.entry_payloads).values(session_id="line", entry_id="e", payload=said))
        conn.execute(
            sa.insert(s.superseded_payloads).values(
                session_id="line", entry_id="e", number=1, superseded_at=moment, columns=said, payload=said
            )
        )
        for table in (s.submissions, s.attempts, s.decisions, s.audit):
            conn.execute(sa.update(table).values(dict.fromkeys(SAID[table.name] - {"claim_key"}, said)))
    return moment


def test_a_word_that_was_said_comes_through_no_view(engine: Engine, now: datetime) -> None:
    del now
    with read(engine) as conn:
        for view in PUBLIC_VIEWS:
            rows: list[dict[str, Any]] = [
                dict(row) for row in conn.execute(sa.text(f"SELECT * FROM {view}")).mappings()
            ]
            assert rows, f"{view} shows nothing: this test would prove nothing"
            assert WORD not in repr(rows), view
        modes = set(conn.execute(sa.text("SELECT plan_mode FROM v_decisions")).scalars())
    assert {"continue"} == modes


def test_no_view_can_be_written_through_by_accident(engine: Engine, now: datetime) -> None:
    del now
    for view in PUBLIC_VIEWS:
        with pytest.raises(ReconcilerError), read(engine) as conn:
            conn.execute(sa.text(f"DELETE FROM {view}"))


def test_views_are_written_once_and_both_databases_get_the_same_columns() -> None:
    for name, by_dialect in VIEWS.items():
        for text in by_dialect.values():
            assert not re.search(r"\b(NOW\(\)|AT\(|SECONDS\(|HOUR\(|DAY\(|JSON_TEXT\()", text), name
