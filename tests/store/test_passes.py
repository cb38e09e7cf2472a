"""What a pass reads of rows: in order, within bounds, by the partial index, and nobody waits for anybody."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.store.around import read_around
from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import begin, read
from reconciler.store.passes import Cursor, count_due, lock_rows, scan_due
from tests.support.scenes import Scene, chain, said, turn


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


def queued(scene: Scene, count: int) -> None:
    now = scene.now()
    for number in range(count):
        scene.session(f"s{number}", turn("A", said("a1")))
        # Two of each due at the same instant.
        scene.submission(f"s{number}", reconcile_at=now - timedelta(seconds=60 - number // 2))


def test_the_scan_goes_on_where_it_stopped_oldest_first(scene: Scene) -> None:
    queued(scene, 7)
    found: list[str] = []
    cursor = None
    with begin(scene.engine) as conn:
        while rows := scan_due(conn, cutoff=scene_now(scene), limit=3, after=cursor):
            found += [row.session_id for row in rows]
            assert rows[-1].reconcile_at is not None
            cursor = Cursor(rows[-1].reconcile_at, *rows[-1].key)
    assert [f"s{number}" for number in range(7)] == found


def scene_now(scene: Scene) -> Any:
    return scene.now() + timedelta(seconds=5)


def test_what_is_settled_or_due_later_is_not_found(scene: Scene) -> None:
    scene.session()
    scene.submission("s", "later", reconcile_at=scene.now() + timedelta(hours=1))
    scene.submission("s", "never", reconcile_at=None)
    now = scene.now()
    scene.submission("s", "settled", status="settled", outcome="completed", settled_at=now, reconcile_at=None)
    with begin(scene.engine) as conn:
        assert [] == scan_due(conn, cutoff=scene_now(scene), limit=10)
        assert 0 == count_due(conn, cutoff=scene_now(scene), at_most=10)
        assert ["later"] == [
            row.submission_id for row in lock_rows(conn, [("s", "later"), ("s", "settled"), ("x", "y")])
        ]


def test_a_scan_passes_over_what_another_one_holds_and_waits_for_nobody(scene: Scene, second_engine: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite the transaction is the lock")
    queued(scene, 4)
    cutoff = scene_now(scene)
    with begin(scene.engine) as one, begin(second_engine) as two:
        first = scan_due(one, cutoff=cutoff, limit=2)
        second = scan_due(two, cutoff=cutoff, limit=10)
        assert [["s0", "s1"], ["s2", "s3"]] == [[row.session_id for row in rows] for rows in (first, second)]
        # A dry run looks at all of them.
        with read(second_engine) as dry:
            assert 4 == len(scan_due(dry, cutoff=cutoff, limit=10, lock=False))


def test_a_skipped_session_leaves_its_submission_free(scene: Scene, second_engine: Engine, third: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite the transaction is the lock")
    queued(scene, 1)
    with begin(second_engine) as holder:
        holder.exec_driver_sql("SELECT 1 FROM sessions WHERE id = 's0' FOR UPDATE")
        with begin(scene.engine) as conn:
            assert [] == scan_due(conn, cutoff=scene_now(scene), limit=10)
            with begin(third) as other:
                free = other.exec_driver_sql("SELECT 1 FROM submissions FOR UPDATE SKIP LOCKED").all()
            assert 1 == len(free)


@pytest.fixture
def third(database_url: str, engine_factory: Any) -> Engine:
    made: Engine = engine_factory(database_url)
    return made


def test_the_clock_is_read_after_the_locks_were_waited_for(scene: Scene, second_engine: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite nothing is waited for inside a transaction")
    scene.session(given=turn("A"))
    scene.running(attempt_id="at-1", lease_s=0.2)
    renewed = threading.Event()
    release = threading.Event()

    def beat() -> None:
        with begin(second_engine) as conn:
            conn.exec_driver_sql("UPDATE attempts SET lease_expires_at = clock_timestamp() + interval '1 hour'")
            renewed.set()
            release.wait(30)

    thread = threading.Thread(target=beat)
    thread.start()
    assert renewed.wait(30)
    threading.Timer(0.5, release.set).start()
    with begin(scene.engine) as conn:
        rows = lock_rows(conn, [("s", "A")])
        found = read_around(conn, rows)
    thread.join(30)
    current = found.around["s", "A"].current
    assert current is not None
    # It waited for the beat, sees what the beat wrote, and its clock is of that moment.
    assert current.lease_expires_at > found.now + timedelta(minutes=59)


def test_a_locked_attempt_cannot_be_renewed_while_it_is_decided_about(scene: Scene, second_engine: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite one transaction at a time writes")
    scene.session(given=turn("A"))
    scene.running()
    with begin(scene.engine) as conn:
        read_around(conn, lock_rows(conn, [("s", "A")]))
        with begin(second_engine) as other:
            found = other.exec_driver_sql("SELECT 1 FROM attempts FOR UPDATE SKIP LOCKED").all()
        assert [] == found


def test_the_surroundings_name_attempts_inputs_and_the_last_begun_end(scene: Scene) -> None:
    now = scene.now()
    scene.session(given=[*turn("A", said("a1")), *chain(*turn("A", prefix="second-"), below="a1")])
    scene.running(attempt_id="now", last_attempt_id="before")
    scene.attempt("s", "A", "first", number=0, ended_at=now, end_kind="released")
    scene.attempt("s", "A", "before", number=-1, ended_at=now, end_kind="crashed", begun_at=None)
    with begin(scene.engine) as conn:
        begun = read_around(conn, lock_rows(conn, [("s", "A")])).around["s", "A"]
        conn.exec_driver_sql("UPDATE attempts SET begun_at = NULL WHERE attempt_id = 'now'")
        found = read_around(conn, lock_rows(conn, [("s", "A")])).around["s", "A"]
    assert found.current is not None
    assert found.last is not None
    assert ("now", "before", "released", "second-in", 3, 3) == (
        found.current.attempt_id,
        found.last.attempt_id,
        found.last_begun_end,
        found.input_entry_id,
        found.input_seq,
        found.leaf_seq,
    )
    # While the current one has begun nobody asks how an earlier one ended.
    assert begun.last_begun_end is None


def plan_of(engine: Engine, statement: str, parameters: Any) -> str:
    with begin(engine) as conn:
        if is_postgresql(engine):
            conn.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
            # The tables are nearly empty: what matters is that the other ways are possible, not that they pay here.
            for way in ("seqscan", "bitmapscan", "sort"):
                conn.exec_driver_sql(f"SET LOCAL enable_{way} = off")
            return "\n".join(row[0] for row in conn.exec_driver_sql("EXPLAIN " + statement, parameters))
        return "\n".join(row[3] for row in conn.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters))


def test_the_scan_uses_the_partial_index_and_sorts_nothing(scene: Scene) -> None:
    from reconciler.store import passes

    queued(scene, 3)
    now = scene.now()
    if is_postgresql(scene.engine):
        values = {"cutoff": now, "at": now, "session": "", "submission": "", "limit": 5}
        plan = plan_of(scene.engine, passes._PG_SCAN, values)
    else:
        plan = plan_of(
            scene.engine, passes._SQLITE_SCAN, {"cutoff": "2", "at": "1", "session": "", "submission": "", "limit": 5}
        )
    assert "ix_submissions_due" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


def test_a_path_is_read_by_the_primary_key_alone(scene: Scene) -> None:
    from reconciler.store import paths

    scene.session(given=turn("A", *(said(f"a{number}", "error") for number in range(50))))
    if is_postgresql(scene.engine):
        with begin(scene.engine) as conn:
            conn.exec_driver_sql("ANALYZE entries")
        values = {"n": [0], "sessions": ["s"], "lower": [1], "upper": [9]}
        plan = plan_of(scene.engine, paths._PG_PIECES, values)
        assert "pk_entries" in plan
    else:
        plan = plan_of(scene.engine, paths._SQLITE_PIECES, {"keys": '[[0,"s",1,9]]'})
        assert "PRIMARY KEY (session_id=? AND seq>? AND seq<?)" in plan
