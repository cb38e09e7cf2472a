"""The slot ledger on both databases: fired once, skipped and recorded, taken over, one with what it admits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.jobs import Admits, Job
from reconciler.core.model import DEFAULT_LIMITS
from reconciler.core.slots import CatchUp, parse_cron, slot_name
from reconciler.errors import Conflict, DatabaseUnavailable, InvalidInput
from reconciler.log import captured
from reconciler.metrics import Metrics
from reconciler.service import schedule as under_test
from reconciler.service.schedule import Schedule, SlotLost, Task
from reconciler.service.sweep import sweep
from reconciler.store import slots as ledger
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, read
from reconciler.store.schema import entries, schedule_jobs, schedule_slots, submissions
from tests.support.daemons import wait_for


def job(name: str = "report", *, catch_up: CatchUp = CatchUp.LATEST, **more: Any) -> Job:
    """Return a job whose slots are the full minutes."""
    admits = more.pop("admits", Admits("reports", {"text": "write it"}))
    return Job(name, parse_cron(more.pop("cron", "* * * * *")), UTC, catch_up=catch_up, admits=admits, **more)


def schedule(engine: Engine, *jobs: Job, instance_id: str = "one", **more: Any) -> Schedule:
    return Schedule(engine, {one.name: one for one in jobs}, instance_id=instance_id, **more)


def looked_back(engine: Engine, name: str, minutes: float) -> datetime:
    """Make the job's last look *minutes* old; return that instant."""
    with begin(engine) as conn:
        ledger.lock_job(conn, name, wait=True)
        instant = db_now(conn) - timedelta(minutes=minutes)
        ledger.set_looked_until(conn, name, instant)
    return instant


def slots_of(engine: Engine, name: str = "report") -> list[ledger.SlotRow]:
    with read(engine) as conn:
        return ledger.last_slots(conn, name, limit=5_000)[::-1]


def admitted(engine: Engine) -> list[tuple[str, str]]:
    row = submissions.c
    with read(engine) as conn:
        found = conn.execute(sa.select(row.session_id, row.id).order_by(row.ticket)).all()
    return [(session_id, submission_id) for session_id, submission_id in found]


# --- firing ----------------------------------------------------------------------------------------------------------


def test_a_job_seen_for_the_first_time_has_no_past(engine: Engine) -> None:
    assert 0 == schedule(engine, job()).look()
    assert [] == slots_of(engine)
    with read(engine) as conn:
        assert ledger.job_states(conn, ["report"])["report"].looked_until is not None


def test_a_slot_and_what_it_admits_are_written_together(engine: Engine) -> None:
    looked_back(engine, "report", 1.5)
    with captured() as events:
        assert schedule(engine, job()).look() >= 1
    (*_, newest) = slots_of(engine)
    assert "done" == newest.status
    assert ("reports", f"schedule:report:{slot_name(newest.slot_at)}") == (newest.session_id, newest.submission_id)
    assert (newest.session_id, newest.submission_id) in admitted(engine)
    assert "slot.fired" in [name for name, _ in events]


def test_a_second_look_with_nothing_new_writes_nothing(engine: Engine) -> None:
    looked_back(engine, "report", 1.5)
    one = schedule(engine, job(cron="0 0 29 2 *"))
    one.look()
    with read(engine) as conn:
        before = conn.execute(sa.select(schedule_jobs)).all(), conn.execute(sa.select(schedule_slots)).all()
    assert 0 == one.look()
    with read(engine) as conn:
        assert before == (conn.execute(sa.select(schedule_jobs)).all(), conn.execute(sa.select(schedule_slots)).all())


def test_eight_instances_fire_each_slot_once(
    database_url: str, engine_factory: Callable[..., Engine], engine: Engine
) -> None:
    looked_back(engine, "report", 20)
    engines = [engine_factory(database_url, busy_timeout_s=30.0) for _ in range(8)]
    start = threading.Barrier(8)
    failed: list[BaseException] = []

    def look(number: int) -> None:
        one = schedule(engines[number], job(catch_up=CatchUp.ALL), instance_id=f"i{number}")
        start.wait()
        try:
            for _ in range(3):
                one.look()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == failed
    rows = slots_of(engine)
    assert len(rows) in (20, 21)
    assert {"done"} == {row.status for row in rows}
    assert {1} == {row.takes for row in rows}
    assert sorted(str(row.submission_id) for row in rows) == sorted(pair[1] for pair in admitted(engine))


def test_a_slot_that_cannot_admit_fails_alone(engine: Engine) -> None:
    with begin(engine) as conn:
        now = db_now(conn)
        conn.execute(
            sa.text("INSERT INTO sessions (id, origin, created_at, updated_at) VALUES ('theirs', 'mirrored', :a, :a)"),
            {"a": now if engine.dialect.name == "postgresql" else now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
        )
    looked_back(engine, "bad", 1.5)
    looked_back(engine, "report", 1.5)
    with captured() as events:
        schedule(engine, job("bad", admits=Admits("theirs", "x")), job()).look()
    assert {"failed"} == {row.status for row in slots_of(engine, "bad") if row.status != "skipped"}
    assert "session_mirrored" in str(slots_of(engine, "bad")[-1].error)
    assert "done" == slots_of(engine)[-1].status
    assert "slot.failed" in [name for name, _ in events]


def test_a_crash_between_slot_and_admission_leaves_neither(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_back(engine, "report", 1.5)

    def dies(*_: object) -> None:
        raise DatabaseUnavailable("the connection was lost")

    monkeypatch.setattr(under_test, "admit", dies)
    with pytest.raises(DatabaseUnavailable):
        schedule(engine, job()).look()
    assert [] == slots_of(engine)
    monkeypatch.undo()
    schedule(engine, job()).look()
    assert "done" == slots_of(engine)[-1].status


def test_skipped_slots_are_recorded_with_their_reason(engine: Engine) -> None:
    looked_back(engine, "report", 10)
    with captured() as events:
        schedule(engine, job(catch_up=CatchUp.NONE)).look()
    rows = slots_of(engine)
    missed = [row for row in rows if row.status == "skipped"]
    assert {"missed"} == {row.reason for row in missed}
    assert len(missed) in (8, 9)
    ((_, said),) = [pair for pair in events if pair[0] == "slot.skipped"]
    assert len(missed) == said["count"]


def minute_of(engine: Engine) -> int:
    """Return the number of the minute on the database's clock."""
    with read(engine) as conn:
        return int(db_now(conn).timestamp() // 60)


def test_a_year_of_missed_minutes_is_recorded_within_bounds(engine: Engine) -> None:
    looked_back(engine, "report", 366 * 24 * 60)
    began = minute_of(engine)
    schedule(engine, job(catch_up=CatchUp.NONE)).look()
    rows = slots_of(engine)
    # A look is several transactions: a minute that begins in between has a slot of its own.
    assert len(rows) - (minute_of(engine) - began) in (1_000, 1_001)
    assert "many_missed" == rows[0].reason
    assert schedule(engine, job(catch_up=CatchUp.NONE)).look() <= 1


def test_a_paused_job_skips_its_slots_and_a_clock_set_back_fires_nothing_twice(engine: Engine) -> None:
    looked_back(engine, "report", 3)
    with begin(engine) as conn:
        ledger.lock_job(conn, "report", wait=True)
        ledger.set_paused(conn, "report", paused_at=db_now(conn), paused_by="a person")
    one = schedule(engine, job(catch_up=CatchUp.ALL))
    one.look()
    assert {("skipped", "paused")} == {(row.status, row.reason) for row in slots_of(engine)}
    before = slots_of(engine)
    with begin(engine) as conn:
        ledger.lock_job(conn, "report", wait=True)
        ledger.set_paused(conn, "report", paused_at=None, paused_by=None)
        # The clock was an hour ahead, and is set back: slots that it comes by again have rows.
        ledger.set_looked_until(conn, "report", db_now(conn) + timedelta(hours=1))
    one.look()
    with read(engine) as conn:
        assert ledger.job_states(conn, ["report"])["report"].looked_until <= db_now(conn)  # type: ignore[operator]
    looked_back(engine, "report", 3)
    one.look()
    assert before == slots_of(engine)[: len(before)]


def test_which_slots_are_due_is_asked_of_the_databases_clock(
    database_kind: str, database_url: str, engine_factory: Callable[..., Engine]
) -> None:
    ahead = engine_factory(database_url, clock=lambda: datetime.now(UTC) + timedelta(hours=5))
    looked_back(engine_factory(database_url), "report", 1.5)
    schedule(ahead, job(catch_up=CatchUp.NONE)).look()
    found = len(slots_of(ahead))
    # On SQLite the host's clock is the database's.
    assert found <= 2 if database_kind == "postgresql" else found >= 300


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_a_job_is_run_by_hand_and_a_skipped_slot_too(engine: Engine) -> None:
    looked_back(engine, "report", 4)
    one = schedule(engine, job(catch_up=CatchUp.NONE))
    one.look()
    skipped = next(row for row in slots_of(engine) if row.status == "skipped")
    fired, found = one.run_now("report")
    assert found is None
    assert fired.error is None
    again, _ = one.run_now("report", slot_at=skipped.slot_at)
    assert f"schedule:report:{slot_name(skipped.slot_at)}" == again.submission_id
    with pytest.raises(Conflict):
        one.run_now("report", slot_at=skipped.slot_at)
    with pytest.raises(InvalidInput):
        one.run_now("report", slot_at=skipped.slot_at + timedelta(seconds=7))
    with pytest.raises(InvalidInput):
        one.run_now("unknown")


# --- work under a lease ----------------------------------------------------------------------------------------------


def own(engine: Engine, work: Callable[[Task], Mapping[str, Any]], instance_id: str = "one") -> Schedule:
    return schedule(engine, job("sweep", admits=None), instance_id=instance_id, work={"sweep": work})


def test_work_is_done_once_and_its_slot_keeps_what_it_found(engine: Engine) -> None:
    looked_back(engine, "sweep", 3)
    calls: list[datetime] = []

    def work(task: Task) -> dict[str, int]:
        calls.append(task.slot_at)
        return {"checked": 7}

    assert own(engine, work).look_and_wait() >= 1
    done = [row for row in slots_of(engine, "sweep") if row.status == "done"]
    assert ['{"checked":7}'] == [row.result for row in done]
    assert 1 == len(calls)
    assert 0 == own(engine, work, "two").look_and_wait()


def test_work_whose_instance_died_is_taken_over_when_its_lease_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_back(engine, "sweep", 1.5)
    with begin(engine) as conn:
        now = db_now(conn)
        assert ledger.begin_slot(conn, "sweep", now, instance_id="dead", now=now, lease_s=-1.0)
        ledger.set_looked_until(conn, "sweep", now)
    seen: list[str | None] = []

    def work(task: Task) -> dict[str, int]:
        seen.append(task.instance_id)
        return {}

    with captured() as events:
        own(engine, work, "heir").look_and_wait()
    (row,) = slots_of(engine, "sweep")
    assert ("done", "heir", 2) == (row.status, row.instance_id, row.takes)
    assert ["heir"] == seen
    assert "slot.taken_over" in [name for name, _ in events]


def test_a_slot_that_was_taken_over_is_not_finished_by_the_late_one(engine: Engine) -> None:
    looked_back(engine, "sweep", 1.5)

    def slow(task: Task) -> dict[str, int]:
        with begin(task.engine) as conn:
            conn.execute(sa.update(schedule_slots).values(instance_id="heir"))
        return {"by": 1}

    own(engine, slow, "late").look_and_wait()
    (row,) = [row for row in slots_of(engine, "sweep") if row.status != "skipped"]
    assert ("taken", "heir", None) == (row.status, row.instance_id, row.result)


def test_work_that_fails_says_so_and_the_next_slot_is_tried(engine: Engine) -> None:
    looked_back(engine, "sweep", 1.5)

    def broken(task: Task) -> dict[str, int]:
        raise RuntimeError("no such thing")

    with captured() as events:
        own(engine, broken).look_and_wait()
    row = slots_of(engine, "sweep")[-1]
    assert ("failed", "RuntimeError: no such thing") == (row.status, row.error)
    assert "slot.failed" in [name for name, _ in events]


def test_stopping_gives_work_back_at_once(engine: Engine) -> None:
    looked_back(engine, "sweep", 1.5)
    going = threading.Event()

    def endless(task: Task) -> dict[str, int]:
        while True:
            going.set()
            task.go_on()
            threading.Event().wait(0.01)

    one = own(engine, endless)
    one.look()
    assert going.wait(10)
    assert one.stop(wait_s=10)
    with read(engine) as conn:
        assert 1 == len(ledger.expired_slots(conn, ["sweep"]))
    own(engine, lambda task: {}, "heir").look_and_wait()
    assert "heir" == slots_of(engine, "sweep")[-1].instance_id


def test_work_may_finish_its_slot_in_its_own_last_transaction(engine: Engine) -> None:
    looked_back(engine, "sweep", 1.5)

    def work(task: Task) -> dict[str, int]:
        with begin(task.engine) as conn:
            task.finish(conn, {"pruned": 3})
        return {"pruned": 3}

    own(engine, work).look_and_wait()
    assert ("done", '{"pruned":3}') == (slots_of(engine, "sweep")[-1].status, slots_of(engine, "sweep")[-1].result)
    late = Task(
        engine,
        "sweep",
        slots_of(engine, "sweep")[-1].slot_at,
        "one",
        DEFAULT_LIMITS,
        None,
        lambda: False,
        Metrics(),
    )
    with pytest.raises(SlotLost), begin(engine) as conn:
        late.finish(conn, {})


# --- the sweep -------------------------------------------------------------------------------------------------------


def _settled(engine: Engine, count: int) -> None:
    from reconciler.service.runner import Runner

    with Runner(engine.url.render_as_string(hide_password=False), notify=False) as runner:
        for number in range(count):
            runner.submit(f"s{number}", "A", {"text": "hello"})
        for attempt in runner.claim(count):
            attempt.begin()
            attempt.settle("failed", error="none")


def test_the_sweep_reports_what_contradicts_its_record_and_repairs_nothing(engine: Engine) -> None:
    _settled(engine, 5)
    looked_back(engine, "sweep", 1.5)
    with begin(engine) as conn:
        conn.execute(sa.update(submissions).where(submissions.c.session_id == "s1").values(outcome="completed"))
        conn.execute(sa.update(submissions).where(submissions.c.session_id == "s2").values(answer_entry_id="nowhere"))
        conn.execute(sa.delete(entries).where(entries.c.session_id == "s3", entries.c.kind == "submission_settled"))

    def look(task: Task) -> Mapping[str, Any]:
        task.slot_at += timedelta(minutes=2)
        found = sweep(task)
        task.slot_at -= timedelta(minutes=2)
        return found

    with captured() as events:
        own(engine, look).look_and_wait()
    assert '{"checked":5,"complete":true,"problems":3}' == slots_of(engine, "sweep")[-1].result
    problems = {fields["session_id"]: fields["problem"] for name, fields in events if name == "sweep.problem_found"}
    assert {"s1", "s2", "s3"} == set(problems)
    assert 'its row says "completed", its settlement entry "failed"' == problems["s1"]
    with read(engine) as conn:
        outcome = conn.execute(sa.select(submissions.c.outcome).where(submissions.c.session_id == "s1")).scalar_one()
    assert "completed" == outcome


def test_a_job_without_work_and_without_admission_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput):
        schedule(engine, job("prune", admits=None))


def test_a_look_while_work_goes_on_leaves_the_next_slot_to_the_next_look(engine: Engine) -> None:
    looked_back(engine, "sweep", 1.5)
    release = threading.Event()

    def work(task: Task) -> dict[str, int]:
        release.wait(10)
        return {}

    one = own(engine, work)
    one.look()
    looked_back(engine, "sweep", 1.5)
    assert 0 == one.look()
    release.set()
    wait_for("the work's end", lambda: not one._is_working())
