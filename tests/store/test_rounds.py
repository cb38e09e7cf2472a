"""What goes to PostgreSQL in one round trip: together, in order, converted as the driver's cursors do it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import DatabaseUnavailable, InvalidInput, ReconcilerError, SchemaMismatch, StoreConflict
from reconciler.store import rounds
from reconciler.store.engine import EngineSettings, begin, make_engine, read, require_schema, run_transaction
from reconciler.store.sending import Query, send

MakeEngine = Callable[..., Engine]
ONE: Query = ("SELECT 1", {})
INSERT = (
    "INSERT INTO settled_ids (session_id, submission_id, outcome, content_digest, ticket, claims, settled_at,"
    " pruned_at) VALUES (%(s)s, 'u', 'completed', 'x', 1, 1, now(), now())"
)
STORED: Query = ("SELECT session_id FROM settled_ids ORDER BY session_id", {})


@pytest.fixture
def engine(postgresql_url: str, engine_factory: MakeEngine) -> Engine:
    made = engine_factory(postgresql_url)
    require_schema(made)
    return made


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The statements of each round trip."""
    seen: list[list[str]] = []
    exchange = rounds.exchange

    def noted(driver: Any, prepared: Any, statements: Sequence[rounds.Statement]) -> Any:
        seen.append([text.decode() for text, _ in statements])
        return exchange(driver, prepared, statements)

    monkeypatch.setattr(rounds, "exchange", noted)
    return seen


def insertion(name: str) -> Query:
    return INSERT, {"s": name}


def stored(engine: Engine) -> list[str]:
    with read(engine) as conn:
        return [name for (name,) in send(conn, STORED)[0]]


def prepared_on(conn: Connection) -> list[str]:
    return [
        str(name)
        for (name,) in conn.exec_driver_sql("SELECT name FROM pg_prepared_statements ORDER BY prepare_time, name")
        if str(name).startswith("reconciler_")
    ]


# --- values and rows -------------------------------------------------------------------------------------------------


def test_values_and_rows_are_converted_as_the_drivers_cursors_do(engine: Engine) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    values = {"t": "ü𝄞 'x' \\", "i": 2**40, "f": 0.1, "b": True, "m": moment, "n": None, "l": ["a", None, 'b"']}
    text = (
        "SELECT %(t)s::text, %(i)s::bigint, %(f)s::float8, %(b)s::boolean, %(m)s::timestamptz, %(n)s::text,"
        " %(l)s::text[], 100 %% 7"
    )
    with read(engine) as conn:
        own = [tuple(row) for row in conn.exec_driver_sql(text, values)]
        assert [own] == send(conn, (text, values))
        assert [(values["t"], 2**40, 0.1, True, moment, None, ["a", None, 'b"'], 2)] == own


@pytest.mark.parametrize("value", ["nul \0", "\ud800", object()])
def test_a_value_that_cannot_be_sent_leaves_the_transaction_as_it_was(engine: Engine, value: object) -> None:
    with begin(engine) as conn:
        send(conn, insertion("a"))
        with pytest.raises(Exception, match=r"NUL|surrogates|adapt"):
            send(conn, insertion("b"), (INSERT, {"s": value}))
        assert [[("a",)]] == send(conn, STORED)
    assert ["a"] == stored(engine)


def test_more_than_the_network_holds_goes_both_ways_at_once(engine: Engine) -> None:
    large = "x" * 30_000_000
    echo: Query = ("SELECT %(large)s::text", {"large": large})
    with read(engine) as conn:
        assert [[(large,)], [(large,)], [(1,)]] == send(conn, echo, echo, ONE)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_one_that_fails_takes_the_rest_and_the_connection_lives_on(engine: Engine) -> None:
    with pytest.raises(ReconcilerError, match="division by zero"), begin(engine) as conn:
        driver = conn.connection.driver_connection
        send(conn, insertion("a"), ("SELECT 1 / 0", {}), insertion("b"))
    assert [] == stored(engine)
    with begin(engine) as conn:
        assert driver is conn.connection.driver_connection
        send(conn, insertion("c"))
    assert ["c"] == stored(engine)


def test_a_connection_that_is_ended_in_the_middle_says_so(engine: Engine, engine_factory: MakeEngine) -> None:
    killer = engine_factory(str(engine.url.render_as_string(hide_password=False)))
    with pytest.raises(DatabaseUnavailable, match="connection was lost"), begin(engine) as conn:
        pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with begin(killer) as other:
            other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")
        send(conn, insertion("a"), ONE)
    assert [] == stored(engine)


@pytest.fixture
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("way", [begin, read])
def test_an_interrupt_in_the_middle_is_not_hidden_and_costs_the_connection(engine: Engine, way: Any) -> None:
    with pytest.raises(KeyboardInterrupt), way(engine) as conn:
        driver = conn.connection.driver_connection
        send(conn, ("SELECT pg_sleep(30)", {}), ONE)
    assert driver.closed
    assert [] == stored(engine)


# --- prepared statements ---------------------------------------------------------------------------------------------


def test_a_statement_is_prepared_once_it_was_used_some_times(engine: Engine) -> None:
    for _ in range(8):
        with begin(engine) as conn:
            # A type more is another statement.
            assert [[("1",)], [("x",)]] == send(
                conn, ("SELECT %(v)s::text", {"v": 1}), ("SELECT %(v)s::text", {"v": "x"})
            )
    with begin(engine) as conn:
        texts = [text for (text,) in conn.exec_driver_sql("SELECT statement FROM pg_prepared_statements")]
    assert 2 == texts.count("SELECT $1::text")


def test_prepared_statements_survive_rollbacks_and_do_not_pile_up(engine: Engine) -> None:
    for number in range(12):
        for _ in range(7):
            with begin(engine) as conn:
                # Prepared by the driver's cursors too, which throw all of them away at a rollback.
                conn.exec_driver_sql("SELECT 2")
                assert [[(1,)]] == send(conn, ONE)
        with pytest.raises(ZeroDivisionError), begin(engine) as conn:
            send(conn, insertion(str(number)))
            raise ZeroDivisionError
        with read(engine) as conn:
            assert [[("repeatable read",)]] == send(conn, ("SELECT current_setting('transaction_isolation')", {}))
    with begin(engine) as conn:
        send(conn, ONE)
        assert 6 >= len(prepared_on(conn))
    assert [] == stored(engine)


def test_prepared_statements_survive_a_program_that_stops_at_its_commit(engine: Engine) -> None:
    def stop(_conn: Connection) -> None:
        raise KeyboardInterrupt

    for _ in range(4):
        for _ in range(7):
            with begin(engine) as conn:
                conn.exec_driver_sql("SELECT 2")
                assert [[(1,)]] == send(conn, ONE)
        event.listen(engine, "commit", stop)
        with pytest.raises(KeyboardInterrupt), begin(engine) as conn:
            send(conn, insertion("a"))
        event.remove(engine, "commit", stop)
    assert [] == stored(engine)


def test_prepared_statements_that_other_hands_take_away_cost_a_try_no_error(engine: Engine) -> None:
    tries: list[int] = []

    def work(conn: Connection) -> list[Any]:
        tries.append(1)
        if len(tries) == 8:
            conn.exec_driver_sql("DEALLOCATE ALL")
        return send(conn, ONE)

    for _ in range(12):
        assert [[(1,)]] == run_transaction(engine, work, sleep=lambda seconds: None)
    assert 13 == len(tries)


def test_prepared_statements_of_the_drivers_cursors_are_left_alone(engine: Engine) -> None:
    for _ in range(7):
        with begin(engine) as conn:
            send(conn, ONE)
    with pytest.raises(ZeroDivisionError), begin(engine) as conn:
        raise ZeroDivisionError
    for _ in range(7):
        with read(engine) as conn:
            assert 3 == conn.exec_driver_sql("SELECT 3").scalar()
    with begin(engine) as conn:
        send(conn, ONE)
    with read(engine) as conn:
        assert 3 == conn.exec_driver_sql("SELECT 3").scalar()


def test_few_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PREPARED_MAX", 4)
    for number in [1, 2, 3, 4, 5, 6, 7, 8, 1]:
        for _ in range(7):
            with begin(engine) as conn:
                assert [[(number,)]] == send(conn, (f"SELECT {number}", {}))
    with begin(engine) as conn:
        send(conn, ONE)
        assert 5 >= len(prepared_on(conn))


def test_none_is_prepared_where_that_is_switched_off(postgresql_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(postgresql_url, prepare_threshold=None)
    require_schema(engine)
    for _ in range(12):
        with begin(engine) as conn:
            assert [[(1,)]] == send(conn, ONE)
            assert [] == prepared_on(conn)


def test_a_failure_while_it_is_prepared_leaves_nothing_that_is_named_and_not_there(engine: Engine) -> None:
    wrong: Query = ("SELECT no_such_column", {})
    for _ in range(8):
        with pytest.raises(ReconcilerError, match="no_such_column"), begin(engine) as conn:
            send(conn, ONE, wrong)
    with begin(engine) as conn:
        assert [[(1,)]] == send(conn, ONE)


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_read_begins_in_the_same_round_trip_and_is_of_its_kind(engine: Engine, trips: list[list[str]]) -> None:
    asked: Query = ("SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')", {})
    with read(engine) as conn:
        assert [[("repeatable read", "on")]] == send(conn, asked)
        send(conn, ONE)
    assert [["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", asked[0]], ["SELECT 1"]] == trips
    with begin(engine) as conn:
        assert [[("read committed", "off")]] == send(conn, asked)


VERSION = "SELECT version_num FROM alembic_version"
# As a connection begins that has read before.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


def test_what_goes_ahead_is_sent_once_and_with_the_beginning(engine: Engine, trips: list[list[str]]) -> None:
    two: Query = ("SELECT 2", {})

    def work(conn: Connection) -> list[Any]:
        return [send(conn, ONE), send(conn, two), send(conn, two)]

    assert [[[(1,)]], [[(2,)]], [[(2,)]]] == run_transaction(engine, work, ahead=(ONE, two))
    assert [[BEGIN, VERSION, "SELECT 1", "SELECT 2"], ["SELECT 2"]] == trips
    trips.clear()
    # Something else is asked first: nothing of it is taken for an answer, neither now nor in the next transaction.
    assert [[(3,)]] == run_transaction(engine, lambda conn: send(conn, ("SELECT 3", {})), ahead=(ONE,))
    run_transaction(engine, lambda conn: None, ahead=(ONE,))
    run_transaction(engine, lambda conn: send(conn, ONE))
    assert [[BEGIN, VERSION, "SELECT 1"], ["SELECT 3"], [BEGIN, VERSION, "SELECT 1"]] == trips[:3]
    assert [[BEGIN, VERSION], ["SELECT 1"]] == trips[3:]


def test_what_goes_ahead_is_a_part_of_the_transaction(engine: Engine) -> None:
    def work(conn: Connection) -> None:
        send(conn, insertion("a"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_transaction(engine, work, ahead=(insertion("a"),))
    assert [] == stored(engine)
    run_transaction(engine, lambda conn: send(conn, insertion("a")), ahead=(insertion("a"),))
    assert ["a"] == stored(engine)


def test_the_last_statement_takes_the_commit_along(engine: Engine, trips: list[list[str]]) -> None:
    run_transaction(engine, lambda conn: send(conn, insertion("a"), last=True))
    assert [[BEGIN, VERSION], [INSERT.replace("%(s)s", "$1"), "COMMIT"]] == trips
    assert ["a"] == stored(engine)
    # It failed: COMMIT is not carried out.
    with pytest.raises(ReconcilerError):
        run_transaction(engine, lambda conn: send(conn, insertion("b"), insertion("a"), last=True))
    assert ["a"] == stored(engine)


def test_an_error_of_what_goes_ahead_is_the_transactions(engine: Engine) -> None:
    tries: list[int] = []
    conflict: Query = ("DO $$ BEGIN RAISE serialization_failure; END $$", {})

    def work(conn: Connection) -> None:
        tries.append(1)
        send(conn, conflict)

    with pytest.raises(StoreConflict):
        run_transaction(engine, work, attempts=2, sleep=lambda seconds: None, ahead=(conflict,))
    assert [] == tries
    # One that the driver refuses fails where it is asked, and there alone.
    nul: Query = ("SELECT %(v)s::text", {"v": "\0"})
    with pytest.raises(InvalidInput):
        run_transaction(engine, lambda conn: send(conn, nul), ahead=(nul,))
    far: Query = ("SELECT 'infinity'::timestamptz", {})
    assert [[(1,)]] == run_transaction(engine, lambda conn: send(conn, ONE), ahead=(ONE, far))


def test_below_another_schema_it_is_the_version_that_is_named(engine: Engine) -> None:
    with begin(engine) as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        conn.exec_driver_sql("ALTER TABLE settled_ids RENAME COLUMN ticket TO number")
    called: list[Any] = []
    with pytest.raises(SchemaMismatch, match="9999"):
        run_transaction(engine, called.append, ahead=(insertion("a"),))
    with pytest.raises(SchemaMismatch, match="9999"):
        run_transaction(engine, called.append, ahead=(ONE,))
    assert [] == called
    with read(engine) as conn:
        assert [[]] == send(conn, STORED)


def test_a_pool_whose_connections_are_gone_costs_no_error_with_something_ahead(
    engine: Engine, engine_factory: MakeEngine
) -> None:
    killer = engine_factory(str(engine.url.render_as_string(hide_password=False)))
    with begin(engine) as first, begin(engine) as second:
        pids = [conn.exec_driver_sql("SELECT pg_backend_pid()").scalar() for conn in (first, second)]
    with begin(killer) as conn:
        for pid in pids:
            conn.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")
    run_transaction(engine, lambda conn: send(conn, insertion("a")), ahead=(insertion("a"),))
    assert ["a"] == stored(engine)


def test_threads_share_an_engine(engine: Engine) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(30):
                query: Query = ("SELECT %(n)s::bigint, %(t)s::bigint", {"n": number, "t": turn})
                found = run_transaction(engine, lambda conn, query=query: send(conn, query), ahead=(query,))  # type: ignore[misc]
                assert [[(number, turn)]] == found
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == failed


def test_a_plan_by_keys_reads_no_table_whole(postgresql_url: str) -> None:
    engine = make_engine(postgresql_url, settings=EngineSettings(by_keys=True))
    try:
        require_schema(engine)
        with begin(engine) as conn:
            assert ("force_generic_plan", "off") == tuple(
                conn.exec_driver_sql(f"SHOW {name}").scalar() for name in ("plan_cache_mode", "enable_seqscan")
            )
            plan = conn.exec_driver_sql("EXPLAIN SELECT * FROM attempts WHERE session_id = 's' AND attempt_id = 'a'")
            assert not [line for (line,) in plan if "Seq Scan" in line]
    finally:
        engine.dispose()
