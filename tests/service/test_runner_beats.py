"""Beats, and how an attempt tells that it is lost: early, never late, and not because the database went away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from reconciler.core.model import DEFAULT_LIMITS
from reconciler.core.states import Directive, Outcome
from reconciler.errors import DatabaseUnavailable, RunnerClosed
from reconciler.service import beats as beats_module
from reconciler.service import runner as runner_module
from reconciler.service.beats import TRUST_MARGIN, Beater, Lost, trusted_until
from reconciler.store.engine import run_transaction
from reconciler.store.schema import attempts, submissions
from reconciler.testing.bench import Bench, answer


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    bench = Bench(database_url)
    yield bench
    bench.close()


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


# --- the trust deadline ----------------------------------------------------------------------------------------------


def test_an_attempt_is_trusted_for_less_than_its_lease_counted_from_before_it_was_asked_for() -> None:
    assert trusted_until(100.0, 15.0) == 100.0 + 15.0 * (1 - TRUST_MARGIN)


def test_it_is_lost_at_its_trust_deadline_and_found_again_by_a_beat() -> None:
    clock = Hand()
    lost = Lost(clock.at + 10, clock=clock)
    assert not lost.is_set()
    clock.at += 10
    assert lost.is_set()
    assert not lost.is_final
    lost.trust(clock.at + 10)
    assert not lost.is_set()


def test_a_holder_that_was_told_to_stop_is_beaten_for_no_longer_until_it_asks_again(bench: Bench) -> None:
    clock = Hand()
    runner = bench.runner(process_clock=clock, lease_s=15.0)
    attempt, unaware = bench.claimed(runner), bench.claimed(runner, "t", "b")
    runner._beater.keep([attempt._kept, unaware._kept])
    clock.at += 15.0
    assert attempt.lost.is_set()
    lease = {one.attempt_id: bench.attempt_row(one).lease_expires_at for one in (attempt, unaware)}
    time.sleep(0.01)
    assert {unaware.attempt_id} == set(runner._beater.beat_once())
    after = {one.attempt_id: bench.attempt_row(one).lease_expires_at for one in (attempt, unaware)}
    assert lease[attempt.attempt_id] == after[attempt.attempt_id]
    assert lease[unaware.attempt_id] < after[unaware.attempt_id]
    assert attempt.lost.is_set()
    assert not unaware.lost.is_set()
    assert Directive.CONTINUE is attempt.heartbeat()
    assert not attempt.lost.is_set()
    assert {attempt.attempt_id, unaware.attempt_id} == set(runner._beater.beat_once())


def test_a_beat_under_way_does_not_take_back_that_a_holder_was_told_to_stop() -> None:
    clock = Hand()
    lost = Lost(clock.at + 10, clock=clock)
    clock.at += 10
    assert lost.is_set()
    lost.trust(clock.at + 10, asked_by_holder=False)
    assert lost.is_set()


def test_a_beat_that_was_sent_earlier_takes_no_trust_back() -> None:
    clock = Hand()
    lost = Lost(clock.at + 10, clock=clock)
    lost.trust(clock.at + 5)
    clock.at += 7
    assert not lost.is_set()


def test_what_the_database_said_is_final() -> None:
    lost = Lost(Hand().at + 10, clock=Hand())
    lost.set(Outcome.FAILED)
    lost.trust(1e12)
    lost.set(None)
    assert lost.is_set()
    assert lost.is_final
    assert Outcome.FAILED is lost.outcome


def test_who_waits_for_the_loss_is_woken_by_it() -> None:
    lost = Lost(time.monotonic() + 60, clock=time.monotonic)
    assert not lost.wait(0.05)
    threading.Timer(0.05, lost.set).start()
    started = time.monotonic()
    assert lost.wait(20)
    assert time.monotonic() - started < 10


def test_who_waits_for_the_loss_is_woken_by_the_trust_deadline() -> None:
    assert Lost(time.monotonic() + 0.1, clock=time.monotonic).wait(20)


def test_a_claim_is_trusted_from_before_it_was_sent(bench: Bench) -> None:
    clock = Hand()
    runner = bench.runner(process_clock=clock, lease_s=15.0)
    attempt = bench.claimed(runner)
    clock.at += 15.0 * (1 - TRUST_MARGIN) - 0.001
    assert not attempt.lost.is_set()
    clock.at += 0.001
    assert attempt.lost.is_set()
    assert Directive.CONTINUE is attempt.heartbeat()
    assert not attempt.lost.is_set()


# --- the thread ------------------------------------------------------------------------------------------------------


def test_the_thread_keeps_a_lease_alive_under_a_busy_tool(bench: Bench) -> None:
    # Long against any stall of a loaded machine: an attempt that was once seen lost is beaten for no longer.
    runner = bench.runner(beat_by_itself=True, lease_s=6.0, beat_s=0.2)
    attempt = bench.begun(runner)
    stop = threading.Event()

    def busy() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    leases = {bench.attempt_row(attempt).lease_expires_at}
    lost = 0
    end = time.monotonic() + 30
    while len(leases) < 4 and time.monotonic() < end:
        sum(range(10_000))
        lost += attempt.lost.is_set()
        leases.add(bench.attempt_row(attempt).lease_expires_at)
    stop.set()
    for thread in threads:
        thread.join()
    assert 0 == lost
    assert 4 <= len(leases)
    row = bench.attempt_row(attempt)
    assert row.beat_at > row.claimed_at
    assert row.lease_expires_at == max(row.lease_expires_at, *leases)


def test_the_thread_tells_of_an_abort_and_of_a_loss(bench: Bench) -> None:
    runner = bench.runner(beat_by_itself=True, lease_s=2.0, beat_s=0.1)
    attempt = bench.begun(runner)
    runner.request_abort("s", "a")
    _until(lambda: attempt.directive is Directive.ABORT)
    bench.change(attempts, attempts.c.attempt_id == attempt.attempt_id, lease_expires_at=attempts.c.claimed_at)
    bench.runner(owner="other")
    with mock.patch.object(runner._beater, "_beating"):
        # No beat gets through meanwhile.
        with runner._beater._guard:
            bench.crash(attempt)
    _until(lambda: attempt.lost.is_final)
    assert Outcome.ABORTED is attempt.lost.outcome


def test_an_ended_attempt_is_beaten_for_no_longer(bench: Bench) -> None:
    runner = bench.runner(beat_by_itself=True)
    attempt = bench.begun(runner)
    assert [attempt.attempt_id] == [kept.ref.attempt_id for kept in runner._beater.kept()]
    attempt.append([answer()])
    attempt.settle("completed")
    assert [] == runner._beater.kept()
    assert not attempt.lost.is_set()


def test_a_beat_that_fails_is_tried_again_soon_and_the_thread_lives(bench: Bench) -> None:
    runner = bench.runner(beat_by_itself=True, lease_s=4.0, beat_s=0.5)
    failures = 0

    def failing(*arguments: Any, **settings: Any) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise DatabaseUnavailable("away")
        return run_transaction(*arguments, **settings)

    with mock.patch.object(beats_module, "run_transaction", failing):
        attempt = bench.begun(runner)
        before = bench.attempt_row(attempt).beat_at
        _until(lambda: bench.attempt_row(attempt).beat_at > before)
    assert 3 == failures
    _until(lambda: runner._beater.last_error is None)


def test_stopping_the_beat_takes_no_time(bench: Bench) -> None:
    runner = bench.runner(beat_by_itself=True)
    bench.begun(runner)
    started = time.monotonic()
    runner.close(release=False)
    assert time.monotonic() - started < 3


def test_beating_for_nothing_asks_nothing(bench: Bench) -> None:
    beater = Beater(bench.engine, DEFAULT_LIMITS, beat_s=5)
    assert {} == beater.beat_once()


def _until(reached: Any, patience_s: float = 20.0) -> None:
    end = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


# --- outages ---------------------------------------------------------------------------------------------------------


def test_an_outage_longer_than_the_lease_fences_nobody(bench: Bench) -> None:
    """After it the daemon may not judge for two beats, and the write beats first."""
    from reconciler.service.reconcile import Judge, reconcile_once

    runner = bench.runner(reconnect_s=30)
    attempt = bench.begun(runner)
    failures = 0

    def away(*arguments: Any, **settings: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise DatabaseUnavailable("could not reach it", detail={"kind": "unreachable"})
        if failures == 4:
            # It is back; every lease has ended, and the daemon looks before the runner does.
            bench.change(attempts, attempts.c.attempt_id == attempt.attempt_id, lease_expires_at=attempts.c.claimed_at)
            with bench.engine.begin() as conn:
                bench._due(conn, "s", "a")
            # Only the attempt's own beat is on record: nobody wrote since the lease ended.
            bench.change(attempts, attempts.c.attempt_id == attempt.attempt_id, beat_at=attempts.c.claimed_at)
            told = reconcile_once(bench.engine, judge=Judge(connected_for_s=lambda: 0.0, instance_id="daemon"))
            assert (1, 0) == (told.unjudged, told.requeued)
        return run_transaction(*arguments, **settings)

    with mock.patch.object(runner_module, "run_transaction", away):
        attempt.append([answer(id="x")])
    assert failures > 4
    assert "running" == bench.row().status
    assert Outcome.COMPLETED is attempt.settle("completed").outcome


def test_a_call_gives_up_after_its_patience_and_says_so(bench: Bench) -> None:
    runner = bench.runner(reconnect_s=0.3)
    attempt = bench.begun(runner)

    def away(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailable("could not reach it", detail={"kind": "unreachable"})

    started = time.monotonic()
    with mock.patch.object(runner_module, "run_transaction", away), pytest.raises(DatabaseUnavailable):
        attempt.append([answer()])
    assert time.monotonic() - started < 5
    attempt.append([answer()])


def test_wrong_credentials_are_not_waited_out(bench: Bench) -> None:
    runner = bench.runner(reconnect_s=30)

    def refused(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailable("could not connect", detail={"kind": "refused"})

    started = time.monotonic()
    with mock.patch.object(runner_module, "run_transaction", refused), pytest.raises(DatabaseUnavailable):
        runner.claim()
    assert time.monotonic() - started < 5


def test_connections_that_the_server_ends_are_made_again(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    runner = bench.runner()
    attempt = bench.begun(runner)
    for number in range(3):
        with bench.engine.connect() as conn:
            conn.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        attempt.append([answer(str(number), id=f"x{number}")])
    assert Directive.CONTINUE is attempt.heartbeat()
    assert Outcome.COMPLETED is attempt.settle("completed").outcome
    bench.close()


def test_a_connection_ended_between_commit_and_answer_doubles_nothing(postgresql_url: str) -> None:
    import psycopg
    from sqlalchemy.dialects.postgresql import psycopg as dialect_module

    bench = Bench(postgresql_url)
    runner = bench.runner()
    attempt = bench.begun(runner)
    real: Any = dialect_module.PGDialect_psycopg.do_commit
    lost = 0

    def commits_and_dies(self: Any, dbapi_connection: Any) -> None:
        nonlocal lost
        real(self, dbapi_connection)
        if lost == 0:
            lost += 1
            with psycopg.connect(postgresql_url, autocommit=True) as other:
                dead = dbapi_connection.driver_connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [dead])
            # The answer never comes.
            dbapi_connection.cursor().execute("SELECT 1")

    with mock.patch.object(dialect_module.PGDialect_psycopg, "do_commit", commits_and_dies):
        ids = attempt.append([answer(id=None)])
    assert 1 == lost
    assert ids == [item.entry.id for item in attempt.path()][1:]  # type: ignore[union-attr]
    bench.close()


def test_a_closed_runner_says_so_and_opens_no_connection(bench: Bench) -> None:
    runner = bench.runner()
    attempt = bench.begun(runner)
    runner.close()
    runner.close()
    assert [] == runner.claim()
    for use in (
        lambda: attempt.append([answer()]),
        attempt.path,
        attempt.heartbeat,
        lambda: runner.submit("s", "b", {}),
        runner.unacknowledged,
    ):
        with pytest.raises(RunnerClosed):
            use()
    assert 0 == runner._engine.pool.checkedin() == runner._beat_engine.pool.checkedin()  # type: ignore[attr-defined]


# --- wake-ups --------------------------------------------------------------------------------------------------------


def test_a_waiting_claim_is_woken_by_a_submission(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    waiting = bench.runner(owner="waits", notify=True, poll_s=60.0)
    submitting = bench.runner(owner="submits", notify=True)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(waiting.claim(wait_s=30)))
    thread.start()
    listener = waiting._listener
    assert listener is not None
    _until(lambda: listener._conn is not None)
    time.sleep(0.5)
    started = time.monotonic()
    submitting.submit("s", "a", {})
    thread.join(30)
    assert 1 == len(got)
    # Polling alone comes after 12 s and more by now.
    assert time.monotonic() - started < 10
    bench.close()


def test_a_waiting_claim_finds_work_without_any_hint(bench: Bench) -> None:
    waiting = bench.runner(owner="waits", notify=False, poll_s=0.1)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(waiting.claim(wait_s=30)))
    thread.start()
    bench.submitted(bench.runner(owner="submits", notify=False))
    thread.join(30)
    assert 1 == len(got)


# --- where a search begins -------------------------------------------------------------------------------------------


def test_a_row_that_became_visible_late_is_found_by_a_search_from_the_beginning(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    clock = Hand()
    runner = bench.runner(process_clock=clock)
    bench.claimed(runner, "first", "a")
    # As if its transaction had taken an hour: it is older than what was claimed before.
    bench.submitted(runner, "late", "b")
    hour_ago = bench.now() - timedelta(hours=1)
    bench.change(submissions, submissions.c.id == "b", not_before=hour_ago)
    assert [] == runner.claim()
    clock.at += 1.0
    assert ["b"] == [attempt.submission_id for attempt in runner.claim()]
    # And while there is other work, after a while at the latest.
    bench.submitted(runner, "later", "c")
    bench.change(submissions, submissions.c.id == "c", not_before=hour_ago - timedelta(hours=1))
    for number in range(2):
        bench.submitted(runner, f"more-{number}", f"m{number}")
    assert ["m0"] == [attempt.submission_id for attempt in runner.claim()]
    clock.at += 10.0
    assert ["c"] == [attempt.submission_id for attempt in runner.claim()]
    bench.close()


def test_a_search_steps_over_what_was_claimed_long_ago(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    clock = Hand()
    runner = bench.runner(process_clock=clock)
    bench.claimed(runner, "first", "a")
    seen: list[Any] = []

    def watch(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "ORDER BY q.not_before" in statement:
            seen.append(parameters["floor"])

    sa.event.listen(runner._engine, "before_cursor_execute", watch)
    for name in "bcd":
        bench.claimed(runner, name, name)
    clock.at += 10.0
    bench.claimed(runner, "e", "e")
    assert 4 == len(seen)
    admitted = bench.row("first", "a").admitted_at
    assert all(floor is not None and floor >= admitted - timedelta(seconds=5) for floor in seen[:3])
    assert seen[3] is None
    bench.close()


def _searches(runner: Any, at_search: Callable[[], None] = lambda: None) -> list[Any]:
    """Return a list that gets the floor of each search from now on; *at_search* is called before each."""
    seen: list[Any] = []

    def watch(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "ORDER BY c.not_before" in statement:
            at_search()
            seen.append(parameters["floor"])

    sa.event.listen(runner._engine, "before_cursor_execute", watch)
    return seen


def test_a_search_that_met_nothing_is_not_repeated_over_the_same_time(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    runner = bench.runner(process_clock=Hand())
    bench.claimed(runner, "first", "a")
    runner._floor.take(bench.now() - timedelta(hours=1), is_claim=True)
    seen = _searches(runner)
    began = bench.now()
    assert [] == runner.claim()
    assert [] == runner.claim()
    assert seen[0] < began - timedelta(minutes=59)
    assert seen[1] >= began - timedelta(seconds=5)
    bench.close()


def test_the_longer_a_search_from_the_beginning_takes_the_rarer_it_is_but_half_a_minute_is_the_most(
    postgresql_url: str,
) -> None:
    bench = Bench(postgresql_url)
    clock = Hand()
    runner = bench.runner(process_clock=clock)
    takes_s = 0.0

    def passes() -> None:
        clock.at += takes_s

    seen = _searches(runner, passes)

    def wholes(last: float) -> list[float]:
        """Claim work about once a second; return when, up to *last*, a claim searched from the beginning."""
        found, start = [], clock.at
        while (at := clock.at - start) <= last:
            bench.submitted(runner, f"at {clock.at}", "a")
            del seen[:]
            (attempt,) = runner.claim()
            attempt.settle("aborted")
            if seen == [None]:
                found.append(at)
            clock.at += 1.0
        clock.at += 100.0
        return found

    assert [0.0, 10.0, 20.0] == wholes(20.0)
    # With a second between two claims: twenty times as long as it took.
    takes_s = 1.0
    assert [0.0, 20.0, 40.0] == wholes(40.0)
    takes_s = 2.0
    assert [0.0, 30.0, 60.0] == wholes(60.0)
    bench.close()


def test_a_claim_in_one_session_does_not_stand_for_the_search_from_the_beginning(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    clock = Hand()
    runner = bench.runner(process_clock=clock)
    bench.claimed(runner, "first", "a")
    seen = _searches(runner)
    clock.at += 10.0
    assert [] == runner.claim(session_id="first")
    bench.claimed(runner, "second", "b")
    assert [None] == seen
    bench.close()


def test_a_row_that_waits_since_before_all_time_stops_no_claim(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    runner = bench.runner(process_clock=Hand())
    bench.submitted(runner, "s", "a")
    bench.change(submissions, submissions.c.id == "a", not_before=sa.text("'-infinity'"))
    assert ["a"] == [attempt.submission_id for attempt in runner.claim()]
    assert [] == runner.claim()
    bench.submitted(runner, "t", "b")
    assert ["b"] == [attempt.submission_id for attempt in runner.claim()]
    bench.close()
