"""What SQLite's planner makes of the statements of the hot path where millions of rows are settled and analysed.

The statistics are made up (SQLite plans by them alone), so that no test has to fill the tables.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url

from reconciler.core.model import NewEntry
from reconciler.service.reconcile import Judge, reconcile_once
from reconciler.service.runner import Runner
from reconciler.store import claims
from tests.bench import data
from tests.bench.databases import Database

# As ANALYZE (of a part, as is usual) leaves them behind two million settled submissions: nothing about the partial
# indexes of what is due.
_STATISTICS = (
    ("submissions", "ix_submissions_settled", "1935360 1001 20 1"),
    ("submissions", "sqlite_autoindex_submissions_2", "2096325 20 1"),
    ("submissions", "sqlite_autoindex_submissions_1", "2564520 20 1"),
    ("entries", "sqlite_autoindex_entries_1", "20000000 200 1"),
    ("entries", "sqlite_autoindex_entries_2", "20000000 200 1"),
    ("entry_payloads", "sqlite_autoindex_entry_payloads_1", "20000000 200 1"),
    ("attempts", "sqlite_autoindex_attempts_1", "2000000 20 1"),
    ("decisions", "sqlite_autoindex_decisions_1", "2000000 20 1"),
)
_LARGE = "sessions|submissions|entries|entry_payloads|attempts|decisions"
# Names that the statements give to tables; a scan names the alias.
_ALIAS = re.compile(rf"\b({_LARGE})(?: AS)? (?!WHERE|SET|ON|JOIN|LEFT|ORDER|VALUES)(\w+)")


def analysed(url: str, some_sessions: int) -> sqlite3.Connection:
    """Return a connection to the database which believes that it holds millions of rows."""
    conn = sqlite3.connect(str(make_url(url).database))
    conn.execute("ANALYZE")
    conn.execute("DELETE FROM sqlite_stat1")
    known = (*_STATISTICS, ("sessions", "sessions", f"{some_sessions} 1"))
    conn.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", known)
    conn.execute("ANALYZE sqlite_schema")
    conn.commit()
    return conn


def reads_all(conn: sqlite3.Connection, statement: str, parameters: Any) -> list[str]:
    """Return the lines of a statement's plan that go through a whole table, or read one into a filter."""
    large = {*_LARGE.split("|"), *(alias for _, alias in _ALIAS.findall(statement))}
    lines = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    scans = (re.match(r"SCAN (\w+)$", line) for line in lines)
    return [
        *(line for line in lines if "BLOOM FILTER" in line),
        *(scan[0] for scan in scans if scan is not None and scan[1] in large),
    ]


# As estimated among two million submissions, and as of a time when there were few.
@pytest.mark.sqlite
@pytest.mark.parametrize("some_sessions", [41_492, 50])
def test_no_statement_of_the_hot_path_reads_a_whole_table_or_makes_a_filter_of_one(
    some_sessions: int, sqlite_url: str, engine_factory: Callable[..., Engine]
) -> None:
    seen: dict[str, Any] = {}

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if statement.split(maxsplit=1)[0] in ("SELECT", "WITH", "UPDATE", "DELETE"):
            seen.setdefault(statement, parameters[0] if isinstance(parameters, list) else parameters)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        database = Database("sqlite", sqlite_url)
        for ends in (data.FINISHED, data.UNRESOLVED, data.ABORTED):
            data.add_due(database, 3, prefix=ends, ends=ends, tail=3, payload_bytes=20)
        with Runner(sqlite_url, notify=False, beat_by_itself=False) as runner:
            runner.submit("a", "one", {"text": "hello"})
            runner.submit("a", "two", {"text": "hello"})
            runner.request_abort("a", "two")
            for attempt in runner.claim(limit=2):
                attempt.begin()
                attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
                runner.heartbeat([attempt])
                attempt.settle("completed")
        reconcile_once(engine_factory(sqlite_url), judge=Judge(connected_for_s=lambda: 1e9))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(seen) > 20
    conn = analysed(sqlite_url, some_sessions)
    found = {statement: plan for statement, values in seen.items() if (plan := reads_all(conn, statement, values))}
    conn.close()
    assert {} == found


@pytest.mark.sqlite
def test_the_check_finds_a_filter_and_a_scan(sqlite_url: str) -> None:
    conn = analysed(sqlite_url, 41_492)
    # The same search with a limit that the planner can't see.
    values = {"now": "2026-01-01T00:00:00.000000Z", "depth": 100, "wanted": 1}
    assert any("BLOOM FILTER" in line for line in reads_all(conn, claims._OLDEST_SQLITE, values))
    assert ["SCAN s"] == reads_all(conn, "SELECT 1 FROM sessions s WHERE s.origin = 'native'", ())
    conn.close()
