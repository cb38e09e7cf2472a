"""What the two databases do alike through `dialect` and `types`: time, locking reads, upserts, lists."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import (
    InvalidInput,
    ReconcilerError,
    UnsupportedOnDialect,
)
from reconciler.store import dialect
from reconciler.store.dialect import db_now, is_postgresql, now_expr, now_plus
from reconciler.store.engine import begin, read
from reconciler.store.schema import audit, sessions
from reconciler.store.types import IdText, UtcDateTime, utc_from_text, utc_text

MakeEngine = Callable[..., Engine]
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
# A day from the ends: any zone's time is still within the years.
EARLY, LATE = datetime.min + timedelta(days=1), datetime.max - timedelta(days=1)  # noqa: DTZ901
LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=UTC)


def row(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "at": LONG_AGO,
        "operator": "tester",
        "verb": "note",
        "parameters": "{}",
        "reason": None,
        **changes,
    }


def add(conn: Connection, *names: str, **changes: Any) -> None:
    conn.execute(sa.insert(audit), [row(name, **changes) for name in names])


# --- time ------------------------------------------------------------------------------------------------------------


@given(st.datetimes(timezones=st.timezones() | st.just(UTC), min_value=EARLY, max_value=LATE))
def test_time_text_keeps_the_instant(value: datetime) -> None:
    assert value.astimezone(UTC) == utc_from_text(utc_text(value))


@given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=2))
def test_time_texts_sort_as_the_instants_do(values: list[datetime]) -> None:
    assert [utc_text(value) for value in sorted(values)] == sorted(utc_text(value) for value in values)


def test_time_text_has_a_fixed_width() -> None:
    assert "0001-01-01T00:00:00.000000Z" == utc_text(datetime.min.replace(tzinfo=UTC))
    assert "2026-07-01T10:00:00.000000Z" == utc_text(datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2))))


@pytest.mark.parametrize("value", [NAIVE, datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))])
def test_a_time_without_a_zone_or_outside_the_years_is_refused(value: datetime) -> None:
    with pytest.raises(InvalidInput):
        utc_text(value)


@pytest.mark.parametrize(
    "value", [datetime.min.replace(tzinfo=UTC), LONG_AGO, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]
)
def test_an_instant_comes_back_exactly_and_in_utc(engine: Engine, value: datetime) -> None:
    abroad = timezone(timedelta(hours=5, minutes=45))
    with begin(engine) as conn:
        add(conn, "utc", at=value)
        if value.year not in (1, 9999):
            add(conn, "abroad", at=value.astimezone(abroad))
    with read(engine) as conn:
        stored = conn.execute(sa.select(audit.c.at)).scalars().all()
        assert {value} == set(stored)
        assert {timedelta(0)} == {instant.utcoffset() for instant in stored}
        assert (
            len(stored)
            == conn.execute(sa.select(sa.func.count()).select_from(audit).where(audit.c.at == value)).scalar()
        )


def test_a_naive_time_is_refused_before_it_reaches_the_database(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="no time zone"), begin(engine) as conn:
        add(conn, "naive", at=NAIVE)


def test_a_column_that_holds_no_time_is_told(sqlite_url: str, engine_factory: MakeEngine) -> None:
    with (
        pytest.raises(ReconcilerError, match='cannot read the time "yesterday"'),
        begin(engine_factory(sqlite_url)) as conn,
    ):
        conn.exec_driver_sql(
            "INSERT INTO audit(id, at, operator, verb, parameters) VALUES ('a','yesterday','b','c','{}')"
        )
        conn.execute(sa.select(audit.c.at)).all()


def test_on_sqlite_tests_move_the_clock(sqlite_url: str, engine_factory: MakeEngine) -> None:
    moments = iter([LONG_AGO, LONG_AGO + timedelta(hours=1), LONG_AGO + timedelta(hours=2)])
    with begin(engine_factory(sqlite_url, clock=lambda: next(moments))) as conn:
        assert LONG_AGO == db_now(conn)
        assert LONG_AGO + timedelta(hours=1) == conn.execute(sa.select(now_expr(conn))).scalar()
        assert LONG_AGO + timedelta(hours=1) == conn.execute(sa.select(now_plus(conn, -3600))).scalar()


def test_on_postgresql_no_clock_of_ours_decides(postgresql_url: str, engine_factory: MakeEngine) -> None:
    def clock() -> datetime:
        raise AssertionError("asked")

    with begin(engine_factory(postgresql_url, clock=clock)) as conn:
        before = db_now(conn)
        inside = conn.execute(sa.select(now_expr(conn))).scalar_one()
        later = conn.execute(sa.select(now_plus(conn, 3600))).scalar_one()
    assert before < inside < later
    assert timedelta(seconds=3599) < later - before < timedelta(seconds=3660)


def test_the_clock_goes_on_inside_a_transaction(engine: Engine) -> None:
    with begin(engine) as conn:
        first = db_now(conn)
        second = db_now(conn)
        conn.execute(sa.insert(audit).values(row("a", at=now_expr(conn))))
        third = conn.execute(sa.select(audit.c.at)).scalar_one()
    assert first < second < third


def test_an_instant_in_the_past_and_future_compares_in_sql(engine: Engine) -> None:
    with begin(engine) as conn:
        now = db_now(conn)
        add(conn, "past", at=now - timedelta(seconds=30))
        add(conn, "future", at=now + timedelta(seconds=30))
        assert ["past"] == conn.execute(sa.select(audit.c.id).where(audit.c.at < now_expr(conn))).scalars().all()
        soon = conn.execute(sa.select(audit.c.id).where(audit.c.at < now_plus(conn, 60)).order_by(audit.c.id))
        assert ["future", "past"] == soon.scalars().all()


# --- statements ------------------------------------------------------------------------------------------------------


def test_ids_compare_by_code_point_on_both_databases(engine: Engine) -> None:
    names = ["Z", "a", "ä", "z", "Ä", "~", "_", "\U0001f600", "￿", "aa", "a b"]
    with begin(engine) as conn:
        add(conn, *names)
        stored = conn.execute(sa.select(audit.c.id).order_by(audit.c.id)).scalars().all()
    assert sorted(names) == stored


def test_id_columns_carry_their_collation_on_postgresql(postgresql_url: str, engine_factory: MakeEngine) -> None:
    with read(engine_factory(postgresql_url)) as conn:
        loose = conn.exec_driver_sql(
            "SELECT table_name || '.' || column_name FROM information_schema.columns"
            " WHERE table_schema = 'reconciler' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"
            " AND table_name NOT LIKE 'v\\_%%' AND (column_name = 'id' OR column_name ~ '_id$')"
        )
        # Ids of tool calls are a provider's, compared for equality alone; pids and the like come from the kernel.
        assert {"entries.tool_call_id", "attempts.machine_id", "attempts.boot_id", "instances.machine_id"} >= set(
            loose.scalars()
        ) - {"instances.boot_id"}


def test_a_status_is_written_into_the_statement(engine: Engine) -> None:
    statement = sa.select(sessions.c.id).where(sessions.c.origin == dialect.literal_text("native"))
    assert "origin = 'native'" in str(statement.compile(engine))
    for text in ("it's", "", "a b", "a;"):
        with pytest.raises(InvalidInput):
            dialect.literal_text(text)


def test_a_locking_read_skips_or_waits_on_postgresql_and_is_plain_on_sqlite(
    engine: Engine, second_engine: Engine
) -> None:
    with begin(engine) as conn:
        add(conn, "a", "b")
    one = sa.select(audit.c.id).where(audit.c.id == "a")
    every = dialect.for_update(sa.select(audit.c.id).order_by(audit.c.id), skip_locked=True, of=[audit])
    with begin(engine) as conn:
        assert ["a"] == conn.execute(dialect.for_update(one)).scalars().all()
        if not is_postgresql(engine):
            assert ["a", "b"] == conn.execute(every).scalars().all()
            return
        with begin(second_engine) as other:
            assert ["b"] == other.execute(every).scalars().all()
        with pytest.raises(ReconcilerError, match="could not lock"), begin(second_engine) as other:
            other.execute(dialect.for_update(one, nowait=True))


def test_a_row_that_is_there_already_is_left_alone_or_overwritten(engine: Engine) -> None:
    with begin(engine) as conn:
        add(conn, "a", reason="first")
        for key in (["id"], None):
            done = conn.execute(dialect.insert_ignore(conn, audit, key=key).values(row("a", reason="second")))
            assert 0 == done.rowcount
        assert "first" == conn.execute(sa.select(audit.c.reason)).scalar()
        conn.execute(dialect.upsert(conn, audit, key=["id"], update=["reason"]), [row("a", reason="third", verb="x")])
        assert ("third", "note") == tuple(conn.execute(sa.select(audit.c.reason, audit.c.verb)).one())


@pytest.mark.parametrize("count", [0, 1, 3, 40_000])
def test_a_list_is_one_parameter_however_long(engine: Engine, count: int) -> None:
    with begin(engine) as conn:
        add(conn, "1", "2", "ü")
        wanted = [str(number) for number in range(1, count + 1)] + ["ü"] * bool(count)
        statement = sa.select(audit.c.id).where(dialect.in_list(conn, audit.c.id, wanted)).order_by(audit.c.id)
        assert 1 == len(statement.compile(engine).params)
        expected = {0: [], 1: ["1", "ü"]}.get(count, ["1", "2", "ü"])
        assert expected == conn.execute(statement).scalars().all()


def test_a_list_of_whole_numbers_meets_whole_numbers(engine: Engine) -> None:
    with begin(engine) as conn:
        number = sa.literal(2**40, sa.BigInteger())
        assert conn.execute(sa.select(dialect.in_list(conn, number, [1, 2**40]))).scalar()
        assert not conn.execute(sa.select(dialect.in_list(conn, number, [1]))).scalar()


def test_what_only_postgresql_can_do_is_refused_by_name(sqlite_url: str, engine_factory: MakeEngine) -> None:
    with pytest.raises(UnsupportedOnDialect, match="listening is not possible on sqlite"):
        dialect.require_postgresql(engine_factory(sqlite_url), "listening")


def test_the_column_types_mean_what_each_database_has() -> None:
    from sqlalchemy.dialects import postgresql, sqlite

    types: dict[str, sa.types.TypeEngine[Any]] = {"time": UtcDateTime(), "id": IdText}
    found = {
        name: (type_.compile(sqlite.dialect()), type_.compile(postgresql.dialect()))  # type: ignore[no-untyped-call]
        for name, type_ in types.items()
    }
    assert {"time": ("TEXT", "TIMESTAMP WITH TIME ZONE"), "id": ("TEXT", 'TEXT COLLATE "C"')} == found
