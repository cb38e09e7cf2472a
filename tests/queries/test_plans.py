"""The operators' questions at scale: each reads what its answer needs, by an index, and no more."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import read
from tests.support import million
from tests.support.questions import QUESTIONS, Question

pytestmark = pytest.mark.slow

# Tables that grow without end: none of them is read from one end to the other.
LARGE: Final = frozenset(
    {
        "attempts",
        "audit",
        "decisions",
        "entries",
        "passes",
        "refine_epochs",
        "refine_steps",
        "rejected_edits",
        "schedule_slots",
        "sessions",
        "submissions",
    }
)
# Indexes that hold only what is unsettled, unacknowledged, open or otherwise soon gone: reading one whole is bounded.
SHORT_LIVED: Final = frozenset(
    {
        "ix_submissions_due",
        "ix_submissions_claimable",
        "ix_submissions_unsettled",
        "uq_submissions_live",
        "ix_submissions_held",
        "ix_submissions_unacknowledged",
        "uq_refine_epochs_open",
    }
)
PARAMETERS: Final = {
    "session": million.session_id(17),
    "submission": million.submission_id(173),
    "subject": "subject-000050",
}
# Beside each row of what a question is about, rows of the tables joined to it.
JOINED: Final = 4
# Virtual machine steps of SQLite for each of these rows: columns, conditions, sorting, grouping.
STEPS_PER_ROW: Final = 40
FEW: Final = 300


def rows_needed(question: Question) -> int:
    """Return how many rows the answer is made of, in the shared database."""
    rows, sql = million.ROWS, question.sql
    day = rows // million.DAYS
    if question.parameters:
        return FEW
    if question.tables & {"v_pending", "v_stuck", "v_quarantine"}:
        return million.pending_of() + FEW
    if "v_refine" in question.tables:
        return rows // 50 // 50 * 6 + FEW
    for window, days in (("hour_ago", 1 / 24), ("day_ago", 1), ("week_ago", 7)):
        if f"c.{window}" in sql:
            return int(day * days) + FEW
    return FEW


def parameters_of(question: Question) -> dict[str, str]:
    return {name: PARAMETERS[name] for name in question.parameters}


@pytest.mark.parametrize("title", QUESTIONS)
def test_a_question_reads_no_more_than_its_answer_needs(million_engine: Engine, title: str) -> None:
    question = QUESTIONS[title]
    most = rows_needed(question) * JOINED
    assert most < million.ROWS * 0.75, "a bound that a full scan would keep to says nothing"
    with read(million_engine) as conn:
        if is_postgresql(conn):
            plan = explained(conn, question)
            assert [] == [node for node in nodes(plan) if is_full_scan(node)], json.dumps(plan, indent=1)
            assert rows_read(plan) <= most, json.dumps(plan, indent=1)
        else:
            lines = query_plan(conn, question)
            assert [] == [line for line in lines if reads_a_large_table_whole(line)], "\n".join(lines)
            assert steps_taken(conn, question) <= most * STEPS_PER_ROW, "\n".join(lines)


def test_every_question_that_can_find_something_at_scale_does(million_engine: Engine) -> None:
    # A plan over nothing proves nothing.
    silent = []
    with read(million_engine) as conn:
        for question in QUESTIONS.values():
            if not conn.execute(question.statement(), parameters_of(question)).first():
                silent.append(question.title)
    assert {
        "Which deadlines end within the hour?",
        "Which aborts were asked for and are not done yet?",
        "What is advised for imported sessions?",
        "Which sessions have the longest queues?",
    } == set(silent)


# --- PostgreSQL --------


def explained(conn: Connection, question: Question) -> dict[str, Any]:
    found = conn.execute(
        sa.text(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {question.sql}"), parameters_of(question)
    ).scalar_one()
    plan: dict[str, Any] = found[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", ()) for node in nodes(inner))]


def is_full_scan(node: dict[str, Any]) -> bool:
    if node.get("Relation Name") not in LARGE or node["Actual Loops"] == 0:
        return False
    if node["Node Type"] == "Seq Scan":
        return True
    is_bounded = "Index Cond" in node or "Recheck Cond" in node or node.get("Index Name") in SHORT_LIVED
    return "Index" in node["Node Type"] and not is_bounded


def rows_read(plan: dict[str, Any]) -> int:
    total = 0
    for node in nodes(plan):
        if "Relation Name" in node:
            dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            total += (node["Actual Rows"] + dropped) * node["Actual Loops"]
    return int(total)


# --- SQLite --------

_SCAN = re.compile(r"SCAN (?P<alias>\w+)(?: USING (?:COVERING )?INDEX (?P<index>\w+))?")
# The aliases that the views give their tables.
_ALIASES: Final = {
    "s": "submissions",
    "b": "submissions",
    "w": "submissions",
    "e": "sessions",
    "a": "attempts",
    "l": "attempts",
    "d": "decisions",
    "p": "passes",
    "r": "refine",
    "t": "schedule_slots",
    "u": "audit",
}


def query_plan(conn: Connection, question: Question) -> list[str]:
    found = conn.execute(sa.text(f"EXPLAIN QUERY PLAN {question.sql}"), parameters_of(question))
    return [str(row[3]) for row in found]


def reads_a_large_table_whole(line: str) -> bool:
    scan = _SCAN.match(line)
    return scan is not None and scan["alias"] in _ALIASES and scan["index"] not in SHORT_LIVED


def steps_taken(conn: Connection, question: Question) -> int:
    """Return how many steps of SQLite's virtual machine the question took, to the thousand."""
    driver = conn.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    driver.set_progress_handler(tick, 1_000)
    try:
        conn.execute(question.statement(), parameters_of(question)).all()
    finally:
        driver.set_progress_handler(None, 0)
    return ticks * 1_000


def test_a_full_scan_would_be_noticed(million_engine: Engine) -> None:
    whole = Question("all", "", "SELECT count(*) FROM v_settlements WHERE took_s > 1000000")
    with read(million_engine) as conn:
        if is_postgresql(conn):
            plan = explained(conn, whole)
            assert [node for node in nodes(plan) if is_full_scan(node)]
            assert rows_read(plan) > million.ROWS * 0.75
        else:
            assert [line for line in query_plan(conn, whole) if reads_a_large_table_whole(line)]
            # Five steps a row at the least.
            assert steps_taken(conn, whole) > million.ROWS * 5
