"""Claims on PostgreSQL while somebody holds an old snapshot: what is dead to all others stays in tables and indexes.

Counts what statements read, by the server's own count; times nothing.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg import sql

from reconciler.testing.bench import Bench
from tests.bench.databases import Database
from tests.support.databases import PostgreSQLDatabases

# Submissions whose versions are dead to all but the holder of the snapshot, and how many buffers a statement may read:
# they read up to 30, while 20,000 dead entries of an index fill some 100 pages.
_DEAD = 20_000
_READ_MAX = 60


def _leave_dead(conn: Any) -> None:
    """Let many submissions have come, been claimed and been settled, some minutes ago, as the indexes keep it."""
    conn.execute(
        "INSERT INTO sessions (id, origin, created_at, updated_at)"
        f" SELECT 'd-' || n, 'native', now(), now() FROM generate_series(1, {_DEAD}) n"
    )
    conn.execute(
        "INSERT INTO submissions (session_id, id, status, ticket, content_digest, admitted_at, not_before)"
        " SELECT 'd-' || n, 'a', 'queued', 1, 'x', now(), now() - interval '10 min' + n * interval '1 ms'"
        f" FROM generate_series(1, {_DEAD}) n"
    )
    conn.execute(
        "UPDATE submissions SET status = 'running', current_attempt_id = 'x', not_before = NULL, reconcile_at = now()"
    )
    conn.execute(
        "UPDATE submissions SET status = 'settled', current_attempt_id = NULL, reconcile_at = NULL,"
        " outcome = 'completed', settled_at = now()"
    )


@pytest.mark.parametrize("is_analysed", [False, True])
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_beside_an_old_snapshot_no_statement_of_a_claim_reads_what_is_dead(
    plan: str, is_analysed: bool, postgresql_databases: PostgreSQLDatabases
) -> None:
    # A database of its own: the statistics of the tables are part of the test.
    url = postgresql_databases.clone()
    database = Database("postgresql", url)
    holder, hand = database.driver(), database.driver()
    bench = Bench(url)
    runner = bench.runner(process_clock=lambda: 1_000.0)
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM submissions")
    _leave_dead(hand)
    bench.claimed(runner, "first", "a").settle("aborted")
    if is_analysed:
        # All is settled: by these statistics the partial indexes are empty.
        hand.execute("ANALYZE")
    read: dict[str, int] = {}
    is_inside = False

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        nonlocal is_inside
        if is_inside or statement.split(maxsplit=1)[0] not in ("SELECT", "WITH") or not parameters:
            return
        is_inside = True
        try:
            driver = conn.connection.driver_connection
            names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
            text = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", statement)
            values = sql.SQL(", ").join(sql.Literal(parameters[name]) for name in names)
            driver.execute("SAVEPOINT before")
            driver.execute(f"SET LOCAL plan_cache_mode = {plan}")
            driver.execute(f"PREPARE asked AS {text}")
            found = driver.execute(
                sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked ({})").format(values), prepare=False
            ).fetchone()[0][0]["Plan"]
            driver.execute("ROLLBACK TO before")
            driver.execute("DEALLOCATE asked")
            number = found["Shared Hit Blocks"] + found["Shared Read Blocks"]
            read[statement] = max(number, read.get(statement, 0))
        finally:
            is_inside = False

    for name in ("second", "third"):
        bench.submitted(runner, name, "a")
    sa.event.listen(runner._engine, "before_cursor_execute", explain)
    # More than there is, so that it is asked as well how many wait; in one session; and where nothing is left.
    assert 1 == len(runner.claim(session_id="third"))
    assert 1 == len(runner.claim(limit=3))
    assert [] == runner.claim()
    sa.event.remove(runner._engine, "before_cursor_execute", explain)
    held = holder.execute("SELECT count(*) FROM submissions").fetchone()
    bench.close()
    holder.close()
    hand.close()
    assert (0,) == held
    texts = "".join(read)
    assert all(part in texts for part in ("FOR UPDATE", "UPDATE submissions", "count(*)", "s.session_id = %(session)s"))
    assert {} == {statement: number for statement, number in read.items() if number > _READ_MAX}
