"""Who is alive: signs of life, good-byes, and runners of this host that died."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.log import captured
from reconciler.metrics import Metrics
from reconciler.service.instances import Presence, RunnerWatch, this_instance
from reconciler.service.liveness import ProcessFound, ProcessIdentity, this_process
from reconciler.store.engine import begin, read
from reconciler.store.instances import forget_instances
from reconciler.store.schema import attempts, instances
from reconciler.store.views import v_instances
from tests.support.scenes import Scene, turn

HERE = ProcessIdentity(machine_id="m", boot_id="b", pid_namespace="n", pid=1, process_start="10")


def rows(engine: Engine) -> list[Any]:
    with read(engine) as conn:
        return list(conn.execute(sa.select(v_instances)).all())


def test_signs_of_life_keep_one_row_and_a_good_bye_ends_it(engine: Engine) -> None:
    presence = Presence(engine, this_instance("daemon", beat_s=5.0, here=this_process(), owner="me"))
    presence.stop()
    assert [] == rows(engine), "nobody was greeted: there is nothing to say good-bye to"
    presence.beat()
    presence.beat()
    (row,) = rows(engine)
    assert ("daemon", "me", False, None) == (row.kind, row.owner, bool(row.is_silent), row.stopped_at)
    assert row.pid is not None
    presence.stop()
    assert rows(engine)[0].stopped_at is not None


def test_one_that_missed_three_beats_shows_as_silent(engine: Engine) -> None:
    presence = Presence(engine, this_instance("daemon", beat_s=5.0, here=this_process()))
    presence.beat()
    with begin(engine) as conn:
        beat_at = conn.execute(sa.select(instances.c.beat_at)).scalar_one()
        conn.execute(sa.update(instances).values(beat_at=beat_at - timedelta(seconds=16)))
    assert bool(rows(engine)[0].is_silent)


def test_what_is_long_gone_is_forgotten_and_a_pruned_row_comes_back(engine: Engine) -> None:
    presence = Presence(engine, this_instance("daemon", beat_s=5.0, here=this_process()))
    presence.beat()
    with begin(engine) as conn:
        assert 0 == forget_instances(conn)
        assert 1 == forget_instances(conn, keep_s=-1.0)
    presence.beat()
    assert 1 == len(rows(engine))


def _held(engine: Engine, *, lease_s: float = 600.0, **identity: Any) -> Scene:
    scene = Scene(engine)
    scene.session("s", turn("A"))
    scene.running("s", "A", lease_s=lease_s, attempt={"boot_id": "b", "pid_namespace": "n"} | identity)
    with begin(engine) as conn:
        conn.execute(sa.text("UPDATE submissions SET reconcile_at = :at"), {"at": _text(engine, scene)})
    return scene


def _text(engine: Engine, scene: Scene) -> Any:
    at = scene.now() + timedelta(seconds=600)
    return at if engine.dialect.name == "postgresql" else at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize(
    ("found", "identity", "expected"),
    [
        (ProcessFound.MISSING, {"pid": 7, "process_start": "3"}, 1),
        # Another process has its number by now.
        ("4", {"pid": 7, "process_start": "3"}, 1),
        ("3", {"pid": 7, "process_start": "3"}, 0),
        (ProcessFound.UNREADABLE, {"pid": 7, "process_start": "3"}, 0),
        ("4", {"pid": 7, "process_start": None}, 0),
        (ProcessFound.MISSING, {"pid": None, "process_start": None}, 0),
        (ProcessFound.MISSING, {"pid": 7, "process_start": "3", "pid_namespace": "other"}, 0),
        (ProcessFound.MISSING, {"pid": 7, "process_start": "3", "boot_id": "other"}, 0),
    ],
)
def test_only_a_proven_death_makes_work_due(
    engine: Engine, found: Any, identity: dict[str, Any], expected: int
) -> None:
    scene = _held(engine, **identity)
    before = scene.row()
    watch = RunnerWatch(engine, HERE, metrics=Metrics(), look_up=lambda _pid: found)
    with captured() as events:
        assert expected == watch.look()
    after = scene.row()
    assert (expected == 1) == (after.reconcile_at < before.reconcile_at)
    # A push and nothing else.
    assert before.revision == after.revision
    assert ["runner.died"] * expected == [name for name, _ in events]


@pytest.mark.parametrize(
    ("identity", "booted_after_beat_s", "expected"),
    [
        ({}, 1.0, 1),
        # What process it was need not be known: none of them is left.
        ({"pid": None, "pid_namespace": None}, 1.0, 1),
        # It has beaten since this boot: what it says of its boot can't be right.
        ({}, -1.0, 0),
        ({"machine_id": "another"}, 1.0, 0),
        ({"machine_id": None}, 1.0, 0),
    ],
)
def test_what_a_machine_held_before_it_was_booted_anew_is_due(
    engine: Engine, identity: dict[str, Any], booted_after_beat_s: float, expected: int
) -> None:
    recorded: dict[str, Any] = {"machine_id": "m", "boot_id": "before", "pid": 7, "process_start": "3"}
    scene = _held(engine, **recorded | identity)
    with read(engine) as conn:
        beat_at = conn.execute(sa.select(attempts.c.beat_at)).scalar_one()
    boot = beat_at + timedelta(seconds=booted_after_beat_s)
    watch = RunnerWatch(engine, HERE, look_up=lambda _pid: "3", booted=lambda _now: boot)
    assert expected == len(watch.would_make_due())
    assert expected == watch.look()
    assert (expected == 1) == (scene.row().reconcile_at <= scene.now())


def test_asking_what_would_be_due_writes_nothing(engine: Engine) -> None:
    scene = _held(engine, pid=7, process_start="3")
    before = scene.row()
    watch = RunnerWatch(engine, HERE, look_up=lambda _pid: ProcessFound.MISSING)
    assert [("s", "A")] == watch.would_make_due() == watch.would_make_due()
    assert before == scene.row()


def test_a_second_look_has_nothing_more_to_do(engine: Engine) -> None:
    _held(engine, pid=7, process_start="3")
    watch = RunnerWatch(engine, HERE, metrics=Metrics(), look_up=lambda _pid: ProcessFound.MISSING)
    assert 1 == watch.look()
    watch._next_at = 0.0
    assert 0 == watch.look()


def test_looking_takes_a_bounded_share_of_the_time(engine: Engine) -> None:
    now = [100.0]

    def monotonic() -> float:
        now[0] += 1.0  # every look takes two seconds
        return now[0]

    watch = RunnerWatch(engine, HERE, metrics=Metrics(), monotonic=monotonic)
    watch.look()
    assert watch._next_at - now[0] >= 15
