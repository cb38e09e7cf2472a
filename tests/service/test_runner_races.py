"""Races, forced with second connections and no sleeps: each has exactly two histories, and both are asserted.

The first actor is stopped behind its locks; the second starts and comes as far as it can (it waits for a lock, or is
done); then the first goes on. Every race runs in both orders, on both databases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.states import Directive, SubmissionStatus
from reconciler.errors import AttemptLost
from reconciler.service.attempt import Attempt
from reconciler.service.runner import Runner
from reconciler.store.engine import make_engine
from reconciler.store.schema import attempts, decisions, entries, submissions
from reconciler.testing.bench import QUICK_LIMITS, Bench, answer, asks
from tests.support.checker import check, report

PATIENCE_S = 20.0


@dataclass
class Actor:
    """Who acts, on which engine, and what came of it."""

    engine: Engine
    act: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None
    thread: threading.Thread | None = None
    # Set when it asks for SQLite's write lock.
    began: threading.Event = field(default_factory=threading.Event)
    # Behind which of its locking statements it is stopped (PostgreSQL; SQLite has one lock).
    locks: int = 1

    def start(self) -> None:
        """Act in a thread of its own."""

        def run() -> None:
            try:
                self.result = self.act()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has finished."""
        return self.thread is not None and not self.thread.is_alive()

    def join(self) -> None:
        """Wait for it."""
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert self.is_done, "the actor never finished"


@contextmanager
def stopped_behind_its_locks(actor: Actor) -> Iterator[threading.Event]:
    """Stop the actor's first transaction behind its first locking statement; the event that is yielded lets it go."""
    go, holding = threading.Event(), threading.Event()
    seen = 0
    is_postgresql = actor.engine.dialect.name == "postgresql"

    def after(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        locking = "FOR UPDATE" in statement or statement.startswith("INSERT INTO sessions")
        locks = locking if is_postgresql else not statement.startswith("BEGIN")
        writing = is_postgresql or not conn.get_execution_options().get("reconciler_read", False)
        nonlocal seen
        seen += locks and writing
        if locks and writing and not holding.is_set() and seen >= (actor.locks if is_postgresql else 1):
            holding.set()
            assert go.wait(PATIENCE_S)

    sa.event.listen(actor.engine, "after_cursor_execute", after)
    try:
        actor.start()
        end = time.monotonic() + PATIENCE_S
        while not holding.wait(0.005):
            assert time.monotonic() < end, "the first actor never took a lock"
            assert not actor.is_done, f"the first actor was done without a lock: {actor.error!r} {actor.result!r}"
        yield go
    finally:
        go.set()
        sa.event.remove(actor.engine, "after_cursor_execute", after)


def _come_as_far_as_it_can(actor: Actor, watch: Engine) -> None:
    """Wait until the second actor waits for a lock, or is done."""
    end = time.monotonic() + PATIENCE_S
    if actor.engine.dialect.name == "postgresql":
        with watch.connect() as conn:
            while not actor.is_done:
                waiting = conn.execute(
                    sa.text(
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                        " AND wait_event_type = 'Lock'"
                    )
                ).scalar_one()
                conn.rollback()
                if waiting:
                    return
                assert time.monotonic() < end
                time.sleep(0.002)
        return
    # The write lock is taken: from its BEGIN on it waits, whenever that comes.
    while not actor.is_done and not actor.began.wait(0.002):
        assert time.monotonic() < end


def race(first: Actor, second: Actor, watch: Engine) -> None:
    """Let *first* take its locks, *second* come as far as it can, and both finish."""

    def began(*arguments: Any) -> None:
        if arguments[2].startswith("BEGIN IMMEDIATE"):
            second.began.set()

    sa.event.listen(second.engine, "before_cursor_execute", began)
    try:
        with stopped_behind_its_locks(first) as go:
            second.start()
            _come_as_far_as_it_can(second, watch)
            go.set()
            first.join()
            second.join()
    finally:
        sa.event.remove(second.engine, "before_cursor_execute", began)


# --- the catalogue ---------------------------------------------------------------------------------------------------


class Field:
    """One submission, two runners and a daemon with an engine of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.runner = bench.runner(owner="one")
        self.other = bench.runner(owner="two")
        self.daemon = make_engine(bench.url)
        self.second_daemon = make_engine(bench.url)

    def close(self) -> None:
        self.daemon.dispose()
        self.second_daemon.dispose()

    def by(self, runner: Runner, act: Callable[[], Any]) -> Actor:
        return Actor(runner._engine, act)

    def one(self, act: Callable[[], Any]) -> Actor:
        return self.by(self.runner, act)

    def two(self, act: Callable[[], Any]) -> Actor:
        return self.by(self.other, act)

    def a_pass(self, engine: Engine | None = None) -> Actor:
        from reconciler.service.reconcile import Judge, reconcile_once

        used = engine or self.daemon
        return Actor(
            used,
            lambda: reconcile_once(used, limits=QUICK_LIMITS, judge=Judge(connected_for_s=lambda: 1e9)),
        )

    def answered(self) -> Attempt:
        attempt = self.bench.begun(self.runner)
        attempt.append([answer(id="x")])
        return attempt


@pytest.fixture
def place(database_url: str) -> Iterator[Field]:
    """Give the field of a race; the independent checker judges what is left."""
    bench = Bench(database_url)
    field = Field(bench)
    yield field
    field.close()
    bench.close()
    found = check(database_url)
    assert not found, report(found)


Judge = Callable[[Field, bool, Actor, Actor], None]


@dataclass(frozen=True)
class Race:
    """Two acts on one scene, and what each of the two orders leads to."""

    scene: Callable[[Field], tuple[Actor, Actor]]
    # (field, whether the first of the pair came first, first of the pair, second of the pair)
    judge: Judge


def _row(place: Field) -> Any:
    return place.bench.row()


def _lost(actor: Actor) -> AttemptLost:
    assert isinstance(actor.error, AttemptLost), (actor.error, actor.result)
    return actor.error


def _fine(actor: Actor) -> Any:
    assert actor.error is None, actor.error
    return actor.result


def _settlements(place: Field) -> int:
    return sum(row["kind"] == "submission_settled" for row in place.bench.rows(entries))


# settle / the end of the lease, seen by a daemon


def _settle_and_lease_end(place: Field) -> tuple[Actor, Actor]:
    attempt = place.answered()
    place.bench.expire(attempt)
    # Renewed, so that the settlement passes its fence; the daemon is told of it as due all the same.
    attempt.heartbeat()
    return place.one(lambda: attempt.settle("completed")), place.a_pass()


def _judge_settle_and_lease_end(place: Field, settled_first: bool, settle: Actor, daemon: Actor) -> None:
    # The lease lives, so the daemon waits either way.
    _fine(settle)
    _fine(daemon)
    assert ("completed", False) == (_row(place).outcome, _row(place).recovered)
    assert 1 == _settlements(place)


# settle / requeue by a daemon: the lease is over, nobody beats


def _settle_and_requeue(place: Field) -> tuple[Actor, Actor]:
    attempt = place.bench.begun(place.runner)
    attempt.append([asks("c", id="m")])
    place.bench.expire(attempt)
    return place.one(lambda: _without_a_beat(attempt, lambda: attempt.settle("failed"))), place.a_pass()


def _without_a_beat(attempt: Attempt, act: Callable[[], Any]) -> Any:
    # As a runner whose process was stopped between its beat and its write.
    runner = attempt._runner
    revive = runner._beat_first
    runner._beat_first = lambda attempt: None  # type: ignore[method-assign]
    try:
        return act()
    finally:
        runner._beat_first = revive  # type: ignore[method-assign]


def _judge_settle_and_requeue(place: Field, settled_first: bool, settle: Actor, daemon: Actor) -> None:
    # The lease ended before the fence was asked: the settlement is refused in both orders.
    _lost(settle)
    _fine(daemon)
    place.a_pass().act()
    assert ("queued", None) == (_row(place).status, _row(place).outcome)
    assert 0 == _settlements(place)


# settle / rescue of an attempt that beats on and gets nowhere


def _stalled(place: Field) -> Attempt:
    attempt = place.bench.begun(place.runner)
    long_ago = place.bench.now() - timedelta(seconds=QUICK_LIMITS.stall_s + QUICK_LIMITS.grace_s + 1)
    place.bench.change(attempts, attempts.c.attempt_id == attempt.attempt_id, claimed_at=long_ago)
    place.bench.change(submissions, submissions.c.id == "a", reconcile_at=long_ago)
    return attempt


def _settle_and_rescue(place: Field) -> tuple[Actor, Actor]:
    attempt = _stalled(place)
    return place.one(lambda: attempt.settle("failed")), place.a_pass()


def _judge_settle_and_rescue(place: Field, settled_first: bool, settle: Actor, daemon: Actor) -> None:
    _fine(daemon)
    if settled_first:
        _fine(settle)
        assert ("failed", False) == (_row(place).outcome, _row(place).recovered)
    else:
        _lost(settle)
        assert "queued" == _row(place).status


# settle / abort


def _settle_and_abort(place: Field) -> tuple[Actor, Actor]:
    attempt = place.answered()
    return (
        place.one(lambda: attempt.settle("completed")),
        place.two(lambda: place.other.request_abort("s", "a")),
    )


def _judge_settle_and_abort(place: Field, settled_first: bool, settle: Actor, abort: Actor) -> None:
    assert "completed" == _fine(settle).outcome
    requested = _fine(abort)
    assert (not settled_first) == requested.made
    assert ("completed" if settled_first else None) == requested.outcome
    assert settled_first == (_row(place).abort_requested_at is None)


# settle / deadline


def _settle_and_deadline(place: Field) -> tuple[Actor, Actor]:
    attempt = place.bench.begun(place.runner, deadline_s=1000)
    attempt.append([asks("c")])
    past = place.bench.now() - timedelta(seconds=QUICK_LIMITS.grace_s + 1)
    place.bench.change(submissions, submissions.c.id == "a", deadline_at=past, reconcile_at=past)
    return place.one(lambda: attempt.settle("aborted")), place.a_pass()


def _judge_settle_and_deadline(place: Field, settled_first: bool, settle: Actor, daemon: Actor) -> None:
    _fine(daemon)
    if settled_first:
        assert "aborted" == _fine(settle).outcome
        assert "aborted" == _row(place).outcome
    else:
        assert "failed" == _lost(settle).outcome
        assert "deadline_exceeded" == _row(place).outcome_reason
    assert 1 == _settlements(place)


# append / requeue


def _append_and_requeue(place: Field) -> tuple[Actor, Actor]:
    attempt = _stalled(place)
    return place.one(lambda: attempt.append([answer(id="x")])), place.a_pass()


def _judge_append_and_requeue(place: Field, appended_first: bool, append: Actor, daemon: Actor) -> None:
    _fine(daemon)
    if appended_first:
        # Progress: it is stalled no longer.
        assert ["x"] == _fine(append)
        assert "running" == _row(place).status
    else:
        _lost(append)
        assert "x" not in [row["id"] for row in place.bench.rows(entries)]
        assert "queued" == _row(place).status


# append / a settlement by the daemon


def _append_and_settle(place: Field) -> tuple[Actor, Actor]:
    attempt = place.bench.begun(place.runner)
    place.runner.request_abort("s", "a")
    past = place.bench.now() - timedelta(seconds=QUICK_LIMITS.grace_s + 1)
    place.bench.change(submissions, submissions.c.id == "a", abort_requested_at=past, reconcile_at=past)
    return place.one(lambda: attempt.append([answer(id="x")])), place.a_pass()


def _judge_append_and_settle(place: Field, appended_first: bool, append: Actor, daemon: Actor) -> None:
    _fine(daemon)
    if appended_first:
        _fine(append)
        place.a_pass().act()
        # The answer was on record before the daemon looked.
        assert "completed" == _row(place).outcome
    else:
        assert "aborted" == _lost(append).outcome
        assert "x" not in [row["id"] for row in place.bench.rows(entries)]


# claim / claim


def _claim_and_claim(place: Field) -> tuple[Actor, Actor]:
    place.bench.submitted(place.runner)
    return place.one(place.runner.claim), place.two(place.other.claim)


def _judge_claim_and_claim(place: Field, first: bool, one: Actor, two: Actor) -> None:
    assert [1, 0] if first else [0, 1] == [len(_fine(one)), len(_fine(two))]
    assert 1 == len(place.bench.rows(attempts))


# claim / abort


def _claim_and_abort(place: Field) -> tuple[Actor, Actor]:
    place.bench.submitted(place.runner)
    return place.one(place.runner.claim), place.two(lambda: place.other.request_abort("s", "a"))


def _judge_claim_and_abort(place: Field, claimed_first: bool, claim: Actor, abort: Actor) -> None:
    assert _fine(abort).made
    if claimed_first:
        (attempt,) = _fine(claim)
        assert Directive.ABORT is attempt.heartbeat()
        attempt.settle("aborted")
    else:
        assert [] == _fine(claim)
        place.a_pass().act()
    assert "aborted" == _row(place).outcome


# claim / admission


def _claim_and_admission(place: Field) -> tuple[Actor, Actor]:
    place.bench.submitted(place.runner, "s", "a")
    return place.one(lambda: place.runner.claim(10)), place.two(lambda: place.other.submit("s", "b", {}))


def _judge_claim_and_admission(place: Field, claimed_first: bool, claim: Actor, submit: Actor) -> None:
    assert _fine(submit).created
    claimed = _fine(claim)
    # While the admission holds the session the claim passes it over; it never gets the later one.
    assert (["a"] if claimed_first or place.daemon.dialect.name == "sqlite" else []) == [
        attempt.submission_id for attempt in claimed
    ]
    if not claimed:
        claimed = place.runner.claim(10)
        assert ["a"] == [attempt.submission_id for attempt in claimed]
    assert [] == place.runner.claim(10)


# release / rescue


def _release_and_rescue(place: Field) -> tuple[Actor, Actor]:
    attempt = _stalled(place)
    return place.one(lambda: attempt.release("deploy")), place.a_pass()


def _judge_release_and_rescue(place: Field, released_first: bool, release: Actor, daemon: Actor) -> None:
    _fine(daemon)
    if released_first:
        assert SubmissionStatus.QUEUED is _fine(release)
        assert (0, 1, 0) == (_row(place).attempts_spent, _row(place).releases, _row(place).crashes_in_row)
    else:
        _lost(release)
        assert (1, 0, 1) == (_row(place).attempts_spent, _row(place).releases, _row(place).crashes_in_row)


# park / abort


def _park_and_abort(place: Field) -> tuple[Actor, Actor]:
    attempt = place.bench.begun(place.runner)
    return place.one(lambda: attempt.park("approval")), place.two(lambda: place.other.request_abort("s", "a"))


def _judge_park_and_abort(place: Field, parked_first: bool, park: Actor, abort: Actor) -> None:
    assert SubmissionStatus.WAITING is _fine(park)
    assert _fine(abort).made
    place.a_pass().act()
    assert "aborted" == _row(place).outcome


# unpark / the end of the wait


def _unpark_and_deadline(place: Field) -> tuple[Actor, Actor]:
    place.bench.begun(place.runner).park("approval")
    past = place.bench.now() - timedelta(seconds=1)
    place.bench.change(submissions, submissions.c.id == "a", parked_until=past, reconcile_at=past)
    return place.one(lambda: place.runner.unpark("s", "a")), place.a_pass()


def _judge_unpark_and_deadline(place: Field, unparked_first: bool, unpark: Actor, daemon: Actor) -> None:
    _fine(daemon)
    assert unparked_first == _fine(unpark).made
    if unparked_first:
        place.a_pass().act()
        assert ("queued", None) == (_row(place).status, _row(place).outcome)
        assert 1 == len(place.runner.claim())
    else:
        assert "failed" == _fine(unpark).outcome
        assert "park_expired" == _row(place).outcome_reason


# submit / submit of one id


def _submit_and_submit(place: Field) -> tuple[Actor, Actor]:
    place.runner.submit("s", "earlier", {})
    return (
        place.one(lambda: place.runner.submit("s", "a", {"x": 1})),
        place.two(lambda: place.other.submit("s", "a", {"x": 1})),
    )


def _judge_submit_and_submit(place: Field, first: bool, one: Actor, two: Actor) -> None:
    assert [first, not first] == [_fine(one).created, _fine(two).created]
    assert 2 == _fine(one).ticket == _fine(two).ticket


# abort / abort


def _abort_and_abort(place: Field) -> tuple[Actor, Actor]:
    place.bench.begun(place.runner)
    return (
        place.one(lambda: place.runner.request_abort("s", "a", "one")),
        place.two(lambda: place.other.request_abort("s", "a", "two")),
    )


def _judge_abort_and_abort(place: Field, first: bool, one: Actor, two: Actor) -> None:
    assert [first, not first] == [_fine(one).made, _fine(two).made]
    assert ("one" if first else "two") == _row(place).abort_reason


# two daemons


def _two_daemons(place: Field) -> tuple[Actor, Actor]:
    attempt = place.answered()
    place.bench.expire(attempt)
    return place.a_pass(), place.a_pass(place.second_daemon)


def _judge_two_daemons(place: Field, first: bool, one: Actor, two: Actor) -> None:
    settled = [_fine(one).settled["completed"], _fine(two).settled["completed"]]
    assert ([1, 0] if first else [0, 1]) == settled
    assert 1 == _settlements(place)
    assert 1 == sum(row["action"] == "settle" for row in place.bench.rows(decisions))


# clean shutdown / settle


def _shutdown_and_settle(place: Field) -> tuple[Actor, Actor]:
    attempt = place.answered()
    twin = Attempt(place.other, attempt._claimed, attempt.lost)
    return place.one(place.runner.close), place.two(lambda: twin.settle("completed"))


def _judge_shutdown_and_settle(place: Field, closed_first: bool, close: Actor, settle: Actor) -> None:
    _fine(close)
    if closed_first:
        _lost(settle)
        assert "queued" == _row(place).status
        place.a_pass().act()
    else:
        _fine(settle)
    assert "completed" == _row(place).outcome
    assert 1 == _settlements(place)


RACES: dict[str, Race] = {
    "settle and the end of the lease": Race(_settle_and_lease_end, _judge_settle_and_lease_end),
    "settle and requeue": Race(_settle_and_requeue, _judge_settle_and_requeue),
    "settle and rescue": Race(_settle_and_rescue, _judge_settle_and_rescue),
    "settle and abort": Race(_settle_and_abort, _judge_settle_and_abort),
    "settle and deadline": Race(_settle_and_deadline, _judge_settle_and_deadline),
    "append and requeue": Race(_append_and_requeue, _judge_append_and_requeue),
    "append and settlement": Race(_append_and_settle, _judge_append_and_settle),
    "claim and claim": Race(_claim_and_claim, _judge_claim_and_claim),
    "claim and abort": Race(_claim_and_abort, _judge_claim_and_abort),
    "claim and admission": Race(_claim_and_admission, _judge_claim_and_admission),
    "release and rescue": Race(_release_and_rescue, _judge_release_and_rescue),
    "park and abort": Race(_park_and_abort, _judge_park_and_abort),
    "unpark and the end of the wait": Race(_unpark_and_deadline, _judge_unpark_and_deadline),
    "submit and submit": Race(_submit_and_submit, _judge_submit_and_submit),
    "abort and abort": Race(_abort_and_abort, _judge_abort_and_abort),
    "two daemons": Race(_two_daemons, _judge_two_daemons),
    "shutdown and settle": Race(_shutdown_and_settle, _judge_shutdown_and_settle),
}


@pytest.mark.parametrize("order", ["as named", "the other way round"])
@pytest.mark.parametrize("name", sorted(RACES))
def test_a_race_has_one_of_two_histories(place: Field, name: str, order: str) -> None:
    found = RACES[name]
    one, two = found.scene(place)
    in_order = order == "as named"
    race(*((one, two) if in_order else (two, one)), place.bench.engine)
    found.judge(place, in_order, one, two)


# --- the beat --------------------------------------------------------------------------------------------------------


def test_a_beat_before_a_rescue_keeps_the_attempt(place: Field) -> None:
    attempt = place.bench.begun(place.runner)
    place.bench.expire(attempt)
    beat = Actor(place.runner._beat_engine, attempt.heartbeat)
    beat.start()
    beat.join()
    daemon = place.a_pass()
    daemon.start()
    daemon.join()
    assert 0 == _fine(daemon).requeued
    assert "running" == _row(place).status


def test_a_beat_does_not_wait_for_a_rescue_and_renews_nothing_that_it_took(place: Field) -> None:
    attempt = place.bench.begun(place.runner)
    place.bench.expire(attempt)
    daemon = place.a_pass()
    # First the rows, then the attempts.
    daemon.locks = 2
    beat = Actor(place.runner._beat_engine, attempt.heartbeat)
    race(daemon, beat, place.bench.engine)
    assert 1 == _fine(daemon).requeued
    _fine(beat)
    assert Directive.LOST is attempt.heartbeat()
    assert attempt.lost.is_set()
    with pytest.raises(AttemptLost):
        attempt.append([answer()])


def test_a_beat_waits_for_no_row_lock(postgresql_url: str) -> None:
    bench = Bench(postgresql_url)
    runner = bench.runner()
    bench.submitted(runner, "s", "a")
    bench.submitted(runner, "t", "b")
    locked, free = runner.claim(2)
    with bench.engine.begin() as conn:
        conn.execute(sa.select(attempts).where(attempts.c.attempt_id == locked.attempt_id).with_for_update())
        before = free.lost._trusted_until, locked.lost._trusted_until
        started = time.monotonic()
        told = runner.heartbeat([locked, free])
        assert time.monotonic() - started < 2
        # What was locked is not renewed this time, and not lost either.
        assert {Directive.CONTINUE} == set(told.values())
        assert free.lost._trusted_until > before[0]
        assert locked.lost._trusted_until == before[1]
    bench.close()


def test_commits_that_reorder_make_no_two_live_submissions(postgresql_url: str) -> None:
    """Numbers handed out before a commit do not follow commits; tickets are taken under the session's lock."""
    bench = Bench(postgresql_url)
    runner, other = bench.runner(owner="one"), bench.runner(owner="two")
    runner.submit("s", "first", {})
    one = Actor(runner._engine, lambda: runner.submit("s", "x", {}))
    two = Actor(other._engine, lambda: other.submit("s", "y", {}))
    race(one, two, bench.engine)
    assert [2, 3] == [_fine(one).ticket, _fine(two).ticket]
    assert ["first"] == [attempt.submission_id for attempt in runner.claim(10)]
    assert [] == other.claim(10)
    bench.close()
