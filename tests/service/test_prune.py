"""Pruning: what goes, what never does, what is remembered, and that a crash or a race leaves nothing half done."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import NewEntry, SessionEntry
from reconciler.errors import AttemptLost, Conflict, NotFound
from reconciler.service.attempt import PathItem
from reconciler.service.prune import PrunePolicy, prune_once
from reconciler.service.reconcile import reconcile_once
from reconciler.service.runner import Runner
from reconciler.store import prune as store
from reconciler.store.engine import begin
from reconciler.store.schema import (
    attempts,
    audit,
    decisions,
    entries,
    entry_payloads,
    instances,
    metadata,
    operation_items,
    operations,
    passes,
    schedule_slots,
    sessions,
    settled_ids,
    submissions,
)
from tests.support.checker import check, report
from tests.support.scenes import Scene, said, turn

ALL = PrunePolicy(**{field.name: 10.0 for field in dataclasses.fields(PrunePolicy) if field.name != "payloads"})


def _count(engine: Engine, table: sa.Table) -> int:
    with engine.connect() as conn:
        return int(conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def _dump(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
        }


def _age(engine: Engine, days: float, *, session_id: str | None = None) -> None:
    """Move everything that happened in a session into the past."""
    back = timedelta(days=days)
    with begin(engine) as conn:
        for table, key, names in (
            (submissions, submissions.c.session_id, ("settled_at", "admitted_at")),
            (sessions, sessions.c.id, ("updated_at",)),
            (decisions, decisions.c.session_id, ("decided_at",)),
            (attempts, attempts.c.session_id, ("claimed_at", "begun_at", "progress_at", "ended_at")),
            (entries, entries.c.session_id, ("created_at",)),
        ):
            rows = conn.execute(
                sa.select(*table.primary_key.columns, *(table.c[name] for name in names)).where(
                    key == session_id if session_id else sa.true()
                )
            ).all()
            for row in rows:
                where = [column == row._mapping[column.name] for column in table.primary_key.columns]
                moved = {name: None if (at := row._mapping[name]) is None else at - back for name in names}
                conn.execute(sa.update(table).where(*where).values(**moved))


def _work(runner: Runner, session_id: str, submission_id: str, outcome: str = "completed", turns: int = 1) -> str:
    runner.submit(session_id, submission_id, {"text": "go"})
    (attempt,) = runner.claim()
    attempt.begin()
    for _ in range(turns):
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload={"text": "done"})])
    if outcome != "completed":
        attempt.append([NewEntry(role="user", payload="more")])
    attempt.settle(outcome)
    return attempt.attempt_id


def test_a_settled_submission_is_remembered_and_never_runs_again(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        first = runner.submit("s", "a", {"text": "go"})
        lost = _work(runner, "s", "a")
        _age(engine, 20)
        assert {"completed": 1, "entries": 3} == _gone(prune_once(engine, ALL))
        again = runner.submit("s", "a", {"text": "go"})
        assert (False, "completed", first.ticket) == (again.created, again.outcome, again.ticket)
        with pytest.raises(Conflict):
            runner.submit("s", "a", {"text": "something else"})
        assert [] == runner.claim()
        later = runner.submit("s", "b", {"text": "next"})
        # Tickets never restart.
        assert first.ticket < later.ticket
        (attempt,) = runner.claim()
        assert lost != attempt.attempt_id
        assert ["b"] == _submissions(attempt.begin())
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="x")])
        attempt.settle("completed")
    assert "" == report(check(database_url, quiescent=True))


def _submissions(path: Iterable[PathItem]) -> list[str | None]:
    return [item.entry.submission_id for item in path if isinstance(item.entry, SessionEntry)]


def _gone(found: Any) -> dict[str, int]:
    return {name: count for name, count in found.removed.items() if count}


def test_each_outcome_has_its_own_time(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        _work(runner, "c", "c")
        _work(runner, "f", "f", "failed")
        _work(runner, "x", "x", "aborted")
    _age(engine, 20)
    policy = PrunePolicy(completed=30, failed=10, aborted=0, unacknowledged=0, entries=0)
    assert {"failed": 1} == _gone(prune_once(engine, policy))
    with engine.connect() as conn:
        assert {"c", "x"} == set(conn.execute(sa.select(submissions.c.id)).scalars())
        assert ["f"] == list(conn.execute(sa.select(settled_ids.c.submission_id)).scalars())


def test_nothing_that_is_pending_loses_anything(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        _work(runner, "s", "old")
        runner.submit("s", "pending", {"text": "later"})
        _age(engine, 400)
        before = _count(engine, entries)
        # The old submission's row goes; all that was said stays, since the pending one will be asked with it.
        assert {"completed": 1} == _gone(prune_once(engine, dataclasses.replace(ALL, payloads=10)))
        assert before == _count(engine, entries)
        (attempt,) = runner.claim()
        texts = _submissions(attempt.begin())
        assert "old" in texts
        assert "pending" in texts
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="x")])
        attempt.settle("completed")
    assert "" == report(check(database_url, quiescent=True))


def test_a_late_writer_of_a_pruned_submission_hears_its_outcome(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        runner.submit("s", "a", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="x")])
        attempt.settle("completed")
        _age(engine, 20)
        prune_once(engine, ALL)
        with pytest.raises(AttemptLost) as caught:
            attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="late")])
        assert "completed" == caught.value.outcome


def test_outcomes_that_nobody_has_taken_note_of_stay_longer(engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("s", turn("A", said("answer")))
    scene.submission("s", "A")
    reconcile_once(engine)
    assert scene.row("s", "A").recovered
    _age(engine, 20)
    assert {} == _gone(prune_once(engine, dataclasses.replace(ALL, unacknowledged=30)))
    assert 1 == _gone(prune_once(engine, dataclasses.replace(ALL, unacknowledged=15)))["completed"]


def test_a_dry_run_counts_what_the_run_removes_and_writes_nothing(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        for number in range(7):
            _work(runner, f"s{number}", "a", turns=number + 1)
        runner.submit("never", "begun", {"text": "x"})
    scene = Scene(engine)
    now = scene.now()
    _put_old_rows(engine, now - timedelta(days=30))
    _age(engine, 20)
    before = _dump(engine)
    tried = prune_once(engine, ALL, dry_run=True)
    assert before == _dump(engine)
    done = prune_once(engine, ALL)
    assert _gone(tried) == _gone(done)
    expected = {"passes": 1, "slots": 1, "instances": 1, "operations": 1, "audit": 1, "completed": 7}
    assert expected.items() <= _gone(done).items()
    # The newest slot of each job, what is taken, open operations and what is alive stay.
    assert (2, 1) == (_count(engine, schedule_slots), _count(engine, operations))
    with engine.connect() as conn:
        alive = set(conn.execute(sa.select(instances.c.id)).scalars())
    assert ("new" in alive, "gone" in alive) == (True, False)
    assert {} == _gone(prune_once(engine, ALL))


def _put_old_rows(engine: Engine, old: Any) -> None:
    counts = {
        column.name: 0 for column in passes.c if column.name not in ("id", "instance_id", "started_at", "finished_at")
    }
    with begin(engine) as conn:
        conn.execute(passes.insert().values(id="p", started_at=old, finished_at=old, **counts))
        for job, at, status in (("j", old, "done"), ("j", old + timedelta(hours=1), "done"), ("k", old, "taken")):
            finished = None if status == "taken" else at
            conn.execute(
                schedule_slots.insert().values(job=job, slot_at=at, status=status, taken_at=at, finished_at=finished)
            )
        for name, beat in (("gone", old), ("new", old + timedelta(days=30))):
            conn.execute(
                instances.insert().values(
                    id=name, kind="daemon", owner="o", program_version="1", started_at=old, beat_at=beat, beat_s=5.0
                )
            )
        for name, status in (("over", "done"), ("open", "open")):
            conn.execute(
                operations.insert().values(
                    id=name, verb="abort", parameters="{}", status=status, created_at=old, finished_at=None, total=1
                )
            )
            conn.execute(operation_items.insert().values(operation_id=name, number=1, session_id="s", status="pending"))
        conn.execute(audit.insert().values(id="a", at=old, operator="o", verb="abort", parameters="{}"))


def test_an_instance_that_holds_an_attempt_stays(engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("s", turn("A"))
    scene.running("s", "A", attempt={"instance_id": "gone"})
    _put_old_rows(engine, scene.now() - timedelta(days=30))
    assert 0 == prune_once(engine, ALL).removed["instances"]


def test_a_pass_that_decided_about_something_pending_stays(engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("s", turn("A", said("cut", "tool_use")))
    scene.submission("s", "A")
    reconcile_once(engine)
    assert "queued" == scene.row("s", "A").status
    with begin(engine) as conn:
        old = scene.now() - timedelta(days=30)
        conn.execute(sa.update(passes).values(started_at=old, finished_at=old))
    assert 0 == prune_once(engine, ALL).removed["passes"]


@pytest.mark.parametrize("stop_after", range(6))
def test_a_run_that_is_stopped_anywhere_leaves_sound_sessions(
    engine: Engine, database_url: str, stop_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.service.prune._PIECE_FIRST", 2)
    monkeypatch.setattr("reconciler.service.prune._PIECE_MOST", 2)
    with Runner(database_url, owner="r") as runner:
        for number in range(3):
            _work(runner, f"s{number}", "a", turns=4)
        _age(engine, 20)
        left = [stop_after]

        def go_on() -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1

        with pytest.raises(KeyboardInterrupt):
            prune_once(engine, ALL, go_on=go_on)
        assert "" == report(check(database_url, quiescent=True))
        # Whatever is left of a session, work in it goes on.
        runner.submit("s0", "next", {"text": "x"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="x")])
        attempt.settle("completed")
        prune_once(engine, ALL)
    assert "" == report(check(database_url, quiescent=True))
    with engine.connect() as conn:
        left_over = set(conn.execute(sa.select(entries.c.session_id)).scalars())
    assert {"s0"} == left_over


def test_a_leaf_on_a_branch_moves_up_its_own_path(engine: Engine) -> None:
    scene = Scene(engine)
    given = [
        *turn("A", said("one"), said("two")),
        SessionEntry("branch", "one", role="assistant", stop_reason="stop"),
    ]
    scene.session("s", given, leaf="two")
    _age(engine, 20)
    cutoffs = ALL.cutoffs(scene.now())
    seen = []
    for _ in range(4):
        with begin(engine) as conn:
            store.prune_entries(conn, "s", cutoffs, limit=1)
        seen.append(scene.session_row("s").leaf_entry_id)
    assert ["two", "one", "in", None] == seen


def test_payloads_may_go_by_themselves_and_the_record_is_still_judged(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        _work(runner, "s", "a")
        _work(runner, "t", "a")
        runner.submit("t", "pending", {"text": "x"})
    _age(engine, 20)
    policy = PrunePolicy(
        completed=0, failed=0, aborted=0, unacknowledged=0, entries=0, payloads=10, passes=0, slots=0, instances=0
    )
    tried = prune_once(engine, policy, dry_run=True)
    assert {"payloads": 2} == _gone(prune_once(engine, policy)) == _gone(tried)
    with engine.connect() as conn:
        found = {
            row.session_id: row.payload
            for row in conn.execute(sa.select(entry_payloads).where(entry_payloads.c.entry_id == "submission-input:a"))
        }
    assert ({"pruned": True}, {"text": "go"}) == (json.loads(found["s"]), json.loads(found["t"]))
    assert "" == report(check(database_url, quiescent=True))


def test_decisions_may_go_before_their_submission_but_for_those_that_explain_its_outcome(engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("s", turn("A", said("cut", "tool_use")))
    scene.submission("s", "A", decision_count=0)
    reconcile_once(engine)
    with begin(engine) as conn:
        conn.execute(
            sa.update(submissions).values(reconcile_at=scene.now(), abort_requested_at=scene.now(), not_before=None)
        )
    reconcile_once(engine)
    assert ["requeue", "settle"] == [row.action for row in scene.decision_rows("s", "A")]
    _age(engine, 20)
    policy = PrunePolicy(completed=0, failed=0, aborted=0, entries=0, decisions=10)
    assert {"decisions": 1} == _gone(prune_once(engine, policy))
    assert ["settle"] == [row.action for row in scene.decision_rows("s", "A")]


def test_a_bound_ends_the_run_and_says_that_there_is_more(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        for number in range(3):
            _work(runner, f"s{number}", "a")
    _age(engine, 20)
    found = prune_once(engine, ALL, rows_max=2)
    assert not found.complete
    assert prune_once(engine, ALL).complete


def test_what_was_forgotten_by_name_may_be_admitted_again(engine: Engine, database_url: str) -> None:
    with Runner(database_url, owner="r") as runner:
        first = runner.submit("s", "a", {"text": "go"})
        with begin(engine) as conn, pytest.raises(Conflict):
            store.forget(conn, "s", "a")
        _work(runner, "s", "a")
        _age(engine, 20)
        prune_once(engine, ALL)
        with begin(engine) as conn:
            assert "completed" == store.forget(conn, "s", "a").outcome
        with begin(engine) as conn, pytest.raises(NotFound):
            store.forget(conn, "s", "a")
        again = runner.submit("s", "a", {"text": "go"})
        assert again.created
        assert again.ticket > first.ticket


@pytest.mark.parametrize(
    ("piece_s", "sizes"),
    [(0.0, [100, 50, 25, 12, 6, 3, 1, 1]), (1e9, [100, 200])],
    ids=["each-took-too-long", "each-was-short"],
)
def test_a_piece_is_as_large_as_the_last_one_allows(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, piece_s: float, sizes: list[int]
) -> None:
    scene = Scene(engine)
    now = scene.now()
    with begin(engine) as conn:
        ids = [f"s{number:05}" for number in range(198)]
        conn.execute(
            sessions.insert(),
            [{"id": one, "origin": "native", "last_ticket": 1, "created_at": now, "updated_at": now} for one in ids],
        )
        conn.execute(
            submissions.insert(),
            [
                {
                    "session_id": one,
                    "id": "a",
                    "status": "settled",
                    "ticket": 1,
                    "content_digest": "d",
                    "admitted_at": now,
                    "outcome": "completed",
                    "settled_at": now,
                }
                for one in ids
            ],
        )
    _age_all(engine, now - timedelta(days=20))
    asked: list[int] = []
    real = store.prune_submissions

    def watched(conn: Any, cutoffs: Any, *, limit: int, after: Any) -> Any:
        asked.append(limit)
        return real(conn, cutoffs, limit=limit, after=after)

    monkeypatch.setattr(store, "prune_submissions", watched)
    monkeypatch.setattr("reconciler.service.prune.PIECE_S", piece_s)
    found = prune_once(engine, ALL)
    assert 198 == found.removed["completed"]
    assert sizes == asked[: len(sizes)]
    assert found.longest_s > 0


def _age_all(engine: Engine, at: Any) -> None:
    with begin(engine) as conn:
        conn.execute(sa.update(submissions).values(settled_at=at))
        conn.execute(sa.update(sessions).values(updated_at=at))
