"""The cost of a pass in things that can be counted: statements, rows, buffers, plans. No clocks here.

What a machine measures is in docs/performance.md; what is asserted here holds on any machine.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine

from reconciler.core.model import DEFAULT_LIMITS, Limits
from reconciler.service.deciding import Judge
from reconciler.service.gather import Gathered, gather
from reconciler.service.reconcile import PassReport, reconcile_once
from reconciler.store import paths
from reconciler.store.around import read_around
from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import begin, read
from reconciler.store.passes import lock_rows
from reconciler.store.schema import entries
from tests.bench import data
from tests.bench.databases import Database
from tests.bench.measures import explain_scan

PIECE = DEFAULT_LIMITS.path_piece_entries


@pytest.fixture
def database(database_kind: str, database_url: str) -> Database:
    return Database(database_kind, database_url)


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    texts: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        texts.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", note)
    yield texts
    event.remove(engine, "before_cursor_execute", note)


def work_off(engine: Engine) -> PassReport:
    return reconcile_once(engine, judge=Judge(connected_for_s=lambda: 1e9))


def of_the_batch(texts: list[str]) -> list[str]:
    # BEGIN, the look for due work before the pass and after it, the clock, and the pass's own row are not counted.
    return [
        text
        for text in texts
        if not text.startswith(("BEGIN", "INSERT INTO passes", "SELECT count(*)", "SELECT clock_timestamp"))
    ]


# --- statements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ends", "more"), [(data.FINISHED, 0), (data.UNRESOLVED, 0), (data.ABORTED, 1)])
def test_a_batch_takes_four_statements_on_postgresql_whatever_its_size(
    database: Database, engine: Engine, ends: str, more: int
) -> None:
    counts = []
    for size in (1, 20, 300):
        data.add_due(database, size, prefix=f"{ends}{size}", ends=ends, tail=4, payload_bytes=50)
        with counted(engine) as texts:
            report = work_off(engine)
        assert size == sum(report.settled.values()) + report.requeued
        counts.append(len(of_the_batch(texts)))
    # Finding, the surroundings, the paths, the write; and the texts of sub-turn plans, where there are any.
    expected = 4 + more if is_postgresql(engine) else counts[0]
    assert [expected] * 3 == counts


def test_a_long_tail_is_read_in_pieces_of_bounded_size(database: Database, engine: Engine) -> None:
    data.add_due(database, 1, prefix="long", tail=10_000, payload_bytes=20)
    with counted(engine) as texts:
        found = inspected(engine, "long-0000000")
    pieces = [text for text in texts if "e.seq BETWEEN" in text]
    assert ("response_finished", 10_001) == (found.inspection.detail, found.rows_read)
    # The first piece, then as few as hold the rest.
    assert 1 + -(-(10_001 - PIECE) // 4_096) == len(pieces)


@pytest.mark.parametrize("write_ahead", [True, False])
def test_the_memory_that_a_long_tail_takes_does_not_grow_with_it(
    database: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch, write_ahead: bool
) -> None:
    # So that the shorter tail has several pieces too.
    monkeypatch.setattr(paths, "_FURTHER_PIECE_MAX", 500)
    sizes = (2_000, 20_000)
    for size in sizes:
        data.add_due(database, 1, prefix=f"t{size}", ends=data.ABORTED, tail=size, payload_bytes=20)
    if not write_ahead:
        with begin(engine) as conn:
            conn.execute(entries.update().values(write_ahead=sa.null()))
    # What is made once is made before.
    inspected(engine, f"t{sizes[0]}-0000000")
    peaks = []
    for size in sizes:
        tracemalloc.start()
        try:
            found = inspected(engine, f"t{size}-0000000")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert (size + 1, not write_ahead) == (found.rows_read, found.inspection.unlogged_calls_possible)
    assert peaks[1] < 1.3 * peaks[0]


# --- rows ------------------------------------------------------------------------------------------------------------


def inspected(engine: Engine, session_id: str, limits: Limits = DEFAULT_LIMITS) -> Gathered:
    with read(engine) as conn:
        rows = lock_rows(conn, [(session_id, data.SUBMISSION)], lock=False)
        around = read_around(conn, rows, lock=False)
        (found,) = gather(conn, rows, around.around, limits)
    return found


@pytest.mark.parametrize("before", [0, 20, 5_000])
def test_what_stands_before_the_input_is_not_read(database: Database, engine: Engine, before: int) -> None:
    data.add_due(database, 1, prefix="s", tail=4, before=before, payload_bytes=20)
    found = inspected(engine, "s-0000000")
    assert (5, "response_finished") == (found.rows_read, found.inspection.detail)


def test_no_more_than_a_piece_is_read_of_a_session_without_the_input_where_it_is_said_to_be(
    database: Database, engine: Engine
) -> None:
    data.add_due(database, 1, prefix="s", tail=30, before=1_000, payload_bytes=20)
    assert 33 >= inspected(engine, "s-0000000").rows_read


# --- finding due work ------------------------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_finding_due_work_touches_no_more_pages_however_much_is_settled(
    postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    database = Database("postgresql", postgresql_url)
    cutoff = datetime(2100, 1, 1, tzinfo=UTC)
    data.add_due(database, 300, prefix="due", tail=1, payload_bytes=20)
    # Of a table of a few pages all pages are read, whatever the index.
    data.add_history(database, 5_000, payload_bytes=20)
    database.settle_down()
    before = explain_scan(database, cutoff)
    data.add_history(database, 30_000, have=5_000, payload_bytes=20)
    database.settle_down()
    after = explain_scan(database, cutoff)
    assert after["buffers"] <= 1.1 * before["buffers"]
    # Under a generic plan too, which sees no values: the status stands as a literal, the order is the index's own.
    assert after["generic_index"]


@pytest.mark.postgresql
def test_every_read_of_a_batch_goes_by_an_index_once_tables_are_large(
    postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    database = Database("postgresql", postgresql_url)
    data.add_history(database, 30_000, payload_bytes=20)
    data.add_due(database, 400, prefix="due", tail=4, payload_bytes=20)
    data.add_due(database, 3_000, prefix="live", tail=1, payload_bytes=20, lease_ended=False)
    database.settle_down()
    engine = engine_factory(postgresql_url)
    plans: list[str] = []

    def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if "unnest(" in statement or "FOR UPDATE" in statement:
            with cursor.connection.cursor() as other:
                other.execute(f"EXPLAIN {statement}", parameters)
                plans.append("\n".join(line[0] for line in other.fetchall()))

    event.listen(engine, "before_cursor_execute", explain)
    assert 400 == work_off(engine).settled["completed"]
    assert len(plans) >= 4
    for plan in plans:
        for table in ("submissions", "entries", "entry_payloads", "decisions"):
            assert f"Seq Scan on {table} " not in plan, plan
