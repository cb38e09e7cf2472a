"""What a pass does not do: write twice, stop for one bad row, leave half of anything, or do another one's work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits, SessionEntry
from reconciler.errors import DatabaseUnavailable
from reconciler.service.deciding import Judge
from reconciler.service.reconcile import PassReport, reconcile_once
from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import begin
from reconciler.store.schema import decisions, passes, submissions
from tests.support.checker import check
from tests.support.scenes import Scene, chain, result, said, turn

PATIENT = Judge(connected_for_s=lambda: 3600.0)


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


def run_pass(scene: Scene, **options: Any) -> PassReport:
    return reconcile_once(scene.engine, **{"judge": PATIENT, "jitter": lambda: 0.0, **options})


def fill(scene: Scene) -> int:
    """Put one session in each usual state; return how many submissions are due."""
    scene.session("answered", turn("A", said("a1")))
    scene.session("calling", turn("A", said("a1", "tool_use", "t1", "t2"), result("r1", "t1")))
    scene.session("partial", turn("A", said("a1", "aborted")), payloads={"a1": "some text " * 10, "in": "a question"})
    scene.session("silent", turn("A"))
    scene.session("damaged", [SessionEntry("a1", "gone", role="assistant")])
    scene.session("absent")
    scene.session("aborted", turn("A", said("a1", "tool_use", "t1")))
    scene.session("mirrored", turn("A", said("a1")), origin="mirrored")
    scene.session("advised", turn("A", said("a1", "tool_use", "t1")), origin="mirrored")
    scene.session("alive", turn("A"))
    for name in ("answered", "calling", "partial", "silent", "damaged"):
        scene.running(name)
    scene.running("absent", attempt={"begun_at": None}, attempts_begun=0)
    scene.running("aborted", abort_requested_at=scene.now() - timedelta(hours=1))
    scene.submission("mirrored")
    scene.submission("advised")
    scene.running("alive", lease_s=600)
    return 10


# --- again, dry, empty -----------------------------------------------------------------------------------------------


def test_a_second_pass_with_nothing_new_writes_nothing(scene: Scene) -> None:
    due = fill(scene)
    assert due == run_pass(scene).scanned
    before = scene.dump()
    assert 0 == run_pass(scene).scanned
    assert before == scene.dump()


def test_a_dry_run_decides_the_same_and_writes_nothing(scene: Scene) -> None:
    fill(scene)
    before = scene.dump()
    planned: list[tuple[str, str]] = []
    dry = run_pass(scene, dry_run=True, on_decision=lambda one: planned.append((one.session_id, one.decision.action)))
    assert before == scene.dump()
    done: list[tuple[str, str]] = []
    real = run_pass(scene, on_decision=lambda one: done.append((one.session_id, one.decision.action)))
    assert sorted(planned) == sorted(done)
    same = ("scanned", "settled", "requeued", "held", "advised", "left_alone", "adopted")
    assert {name: getattr(dry, name) for name in same} == {name: getattr(real, name) for name in same}


def test_a_pass_that_finds_nothing_leaves_no_row(scene: Scene) -> None:
    scene.session(given=turn("A"))
    scene.running(lease_s=600)
    assert 1 == run_pass(scene).left_alone
    assert [] == scene.dump()["passes"]


def test_the_row_of_a_pass_counts_what_it_did(scene: Scene) -> None:
    fill(scene)
    report = run_pass(scene, limits=Limits(scan_batch_max=3))
    with begin(scene.engine) as conn:
        row = conn.execute(sa.select(passes)).one()
        numbers = conn.execute(sa.select(sa.func.count()).where(decisions.c.pass_id == row.id)).scalar_one()
    assert (report.pass_id, 10, 2, 0, 1, 4) == (
        row.id,
        row.scanned,
        row.settled_completed,
        row.settled_failed,
        row.settled_aborted,
        report.requeued,
    )
    assert report.written == numbers


# --- many at once ----------------------------------------------------------------------------------------------------


def test_two_passes_at_once_never_do_the_same_work(scene: Scene, second_engine: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite one transaction at a time writes")
    for number in range(60):
        scene.session(f"s{number:03}", turn("A", said("a1")))
        scene.submission(f"s{number:03}")
    meet = threading.Barrier(2, timeout=30)
    reports: list[PassReport] = []

    def work(engine: Engine) -> None:
        first = True

        def wait(*_: Any) -> None:
            nonlocal first
            if first:
                first = False
                meet.wait()

        # Both hold their first batch at the same moment.
        event.listen(engine, "after_cursor_execute", lambda *given: wait() if "SKIP LOCKED" in given[2] else None)
        reports.append(reconcile_once(engine, judge=PATIENT, limits=Limits(scan_batch_max=10)))

    threads = [threading.Thread(target=work, args=(engine,)) for engine in (scene.engine, second_engine)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 60 == sum(report.settled["completed"] for report in reports)
    assert all(report.settled["completed"] >= 10 for report in reports)
    assert 0 == sum(report.conflicts for report in reports)
    assert 60 == len(scene.dump()["decisions"])


def test_a_row_that_somebody_holds_is_passed_over_and_counted(scene: Scene, second_engine: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite one transaction at a time writes")
    for name in ("held", "free"):
        scene.session(name, turn("A", said("a1")))
        scene.submission(name)
    with begin(second_engine) as conn:
        conn.execute(sa.text("SELECT 1 FROM sessions WHERE id = 'held' FOR UPDATE"))
        report = run_pass(scene)
    assert (1, 1) == (report.settled["completed"], report.locked)
    assert "queued" == scene.row("held").status
    assert 1 == run_pass(scene).settled["completed"]


def test_several_due_submissions_of_one_session_are_all_decided_in_one_pass(scene: Scene) -> None:
    past = scene.now() - timedelta(seconds=1)
    scene.session(given=turn("A", said("a1")))
    scene.submission("s", "A")
    scene.submission("s", "B", deadline_at=past)
    scene.submission("s", "C", deadline_at=past)
    report = run_pass(scene)
    assert {"completed": 1, "failed": 2, "aborted": 0} == report.settled
    assert (3, 5, 5) == (report.scanned, scene.session_row().version, scene.session_row().last_seq)
    assert "submission-settled:A" == scene.session_row().leaf_entry_id


# --- bad rows --------------------------------------------------------------------------------------------------------


def poison(scene: Scene, session_id: str) -> None:
    """Put a submission whose settlement can't be written: its entry's id is taken."""
    given = turn("A", said("a1"))
    stray = SessionEntry("submission-settled:A", "in", kind="custom")
    scene.session(session_id, [*given, stray], leaf="a1")
    scene.submission(session_id)


def test_a_row_that_cannot_be_written_is_held_and_the_others_go_on(scene: Scene) -> None:
    for number in range(9):
        scene.session(f"s{number}", turn("A", said("a1")))
        scene.submission(f"s{number}")
    poison(scene, "s4x")
    report = run_pass(scene)
    assert (9, 1, 1) == (report.settled["completed"], report.set_aside, report.held)
    row = scene.row("s4x")
    assert ("queued", "write_failed", None) == (row.status, row.held_reason, row.reconcile_at)
    assert "UNIQUE" in (scene.decision_rows("s4x")[-1].note or "").upper()
    assert 0 == run_pass(scene).scanned


def test_a_row_that_cannot_even_be_held_is_looked_at_later_and_starves_nobody(scene: Scene) -> None:
    scene.session("s", turn("A", said("a1")))
    # The number of its next decision is taken.
    scene.submission(decision_count=6)
    _take_number(scene)
    scene.session("t", turn("A", said("a1")))
    scene.submission("t")
    report = run_pass(scene)
    assert (1, 1, 0) == (report.settled["completed"], report.set_aside, report.held)
    assert scene.row().reconcile_at > scene.now() + timedelta(seconds=200)
    assert 0 == run_pass(scene).scanned


def _take_number(scene: Scene) -> None:
    now = scene.now()
    with begin(scene.engine) as conn:
        conn.execute(
            decisions.insert().values(
                session_id="s",
                submission_id="A",
                number=7,
                decided_at=now,
                action="hold",
                reason="held_by_operator",
                session_version=0,
                revision=0,
            )
        )


def test_row_after_row_that_fails_is_no_matter_of_single_rows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from reconciler.service import deciding

    def broken(*given: Any, **more: Any) -> Any:
        raise ZeroDivisionError("a fault of the program")

    for number in range(30):
        scene.session(f"s{number:02}", turn("A", said("a1")))
        scene.submission(f"s{number:02}")
    monkeypatch.setattr(deciding, "decide", broken)
    with pytest.raises(ZeroDivisionError):
        run_pass(scene)
    # Those that were set aside don't stand in the way of the others for ever.
    held = [name for name in (f"s{number:02}" for number in range(30)) if scene.row(name).held_reason]
    assert 20 == len(held)
    monkeypatch.undo()
    assert 10 == run_pass(scene).settled["completed"]


def test_an_inspection_that_raises_holds_its_row_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from reconciler.core.classifier import inspect_walk as real
    from reconciler.service import gather

    def inspect(walk: Any, submission_id: str, **more: Any) -> Any:
        if submission_id == "BAD":
            raise ValueError("a record like no other")
        return real(walk, submission_id, **more)

    monkeypatch.setattr(gather, "inspect_walk", inspect)
    scene.session("bad", turn("BAD", said("a1")))
    scene.session("good", turn("A", said("a1")))
    scene.submission("bad", "BAD")
    scene.submission("good")
    report = run_pass(scene)
    assert (1, 1) == (report.settled["completed"], report.held)
    assert "inspection_error" == scene.row("bad", "BAD").held_reason
    assert "a record like no other" in scene.decision_rows("bad", "BAD")[-1].note


def test_limits_that_fit_the_settings_no_more_hold_their_row_alone(scene: Scene) -> None:
    scene.session("bad", turn("A", said("a1")))
    scene.submission("bad", limits='{"attempts_max":1}')
    scene.session("good", turn("A", said("a1")))
    scene.submission("good")
    report = run_pass(scene)
    assert (1, 1) == (report.settled["completed"], report.held)
    assert "attempts_max" in scene.decision_rows("bad")[-1].note


def test_an_instant_that_somebody_wrote_by_hand_holds_its_row_alone(scene: Scene) -> None:
    if is_postgresql(scene.engine):
        pytest.skip("PostgreSQL takes no such instant")
    for name in ("deadline", "attempt", "good"):
        scene.session(name, turn("A", said("a1")))
    scene.submission("deadline")
    scene.running("attempt")
    scene.submission("good")
    with begin(scene.engine) as conn:
        conn.exec_driver_sql("UPDATE submissions SET deadline_at = '2030-01-01 10:00' WHERE session_id = 'deadline'")
        conn.exec_driver_sql("UPDATE attempts SET claimed_at = 'yesterday'")
    report = run_pass(scene)
    assert (1, 1, 1) == (report.settled["completed"], report.held, report.set_aside)
    with begin(scene.engine) as conn:
        held = conn.exec_driver_sql("SELECT held_reason FROM submissions WHERE session_id = 'deadline'").scalar_one()
    assert "inspection_error" == held
    assert 0 == run_pass(scene).scanned


# --- crashes ---------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def crash_before(engine: Engine, number: int) -> Iterator[Callable[[], int]]:
    """Crash before the *number*-th statement that writes; give the count of those seen."""
    seen = 0

    def watch(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        nonlocal seen
        if not statement.lstrip().upper().startswith(("SELECT", "SHOW", "BEGIN")):
            seen += 1
            if seen == number:
                raise Crash

    event.listen(engine, "before_cursor_execute", watch)
    try:
        yield lambda: seen
    finally:
        event.remove(engine, "before_cursor_execute", watch)


TIMES = {
    "admitted_at",
    "abort_requested_at",
    "decided_at",
    "created_at",
    "updated_at",
    "settled_at",
    "ended_at",
    "held_at",
    "not_before",
}


def without_times(scene: Scene) -> dict[str, Any]:
    dump: dict[str, Any] = {}
    for table in (submissions, decisions):
        with begin(scene.engine) as conn:
            rows = conn.execute(sa.select(table).order_by(*table.primary_key)).mappings().all()
        dump[table.name] = [
            {name: value for name, value in row.items() if name not in TIMES | {"pass_id", "reconcile_at", "limits"}}
            for row in rows
        ]
    dump["entries"] = [row[:17] for row in scene.dump()["entries"]]
    return dump


def test_a_crash_before_any_statement_leaves_nothing_half_written_and_a_rerun_ends_alike(
    database_factory: Callable[[], str], engine_factory: Callable[..., Engine]
) -> None:
    def fresh() -> Scene:
        made = Scene(engine_factory(database_factory()))
        fill(made)
        return made

    whole = fresh()
    with crash_before(whole.engine, 0) as count:
        run_pass(whole, limits=Limits(scan_batch_max=6))
    statements = count()
    expected = without_times(whole)
    assert statements >= 4
    scene = fresh()
    for number in range(1, statements + 1):
        # The first crashes before anything; later ones meet what the earlier passes committed.
        with suppress(Crash), crash_before(scene.engine, number):
            run_pass(scene, limits=Limits(scan_batch_max=6))
        half_written(scene)
    run_pass(scene, limits=Limits(scan_batch_max=6))
    assert expected == without_times(scene)


def half_written(scene: Scene) -> None:
    """Assert that every decision is there as a whole or not at all."""
    with begin(scene.engine) as conn:
        rows = conn.execute(sa.select(submissions)).all()
    for row in rows:
        written = scene.decision_rows(row.session_id, row.id)
        assert row.decision_count == len(written)
        entries = [entry.id for entry in scene.entry_rows(row.session_id)]
        assert (row.status == "settled") == (f"submission-settled:{row.id}" in entries)
    assert len(scene.dump()["passes"]) <= len(scene.dump()["decisions"])


def test_a_database_that_goes_away_in_the_middle_is_a_typed_error_and_nothing_is_written(
    engine: Engine, second_engine: Engine
) -> None:
    scene = Scene(second_engine)
    scene.session(given=turn("A", said("a1")))
    scene.submission()
    before = scene.dump()

    def cut(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "WITH w AS" in statement or statement.startswith("UPDATE submissions"):
            if is_postgresql(engine):
                with begin(second_engine) as other:
                    other.exec_driver_sql(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                        " AND datname = current_database() AND backend_type = 'client backend'"
                        " AND state = 'idle in transaction'"
                    )
            else:
                import sqlite3

                failure = sqlite3.OperationalError("disk I/O error")
                failure.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise failure

    event.listen(engine, "before_cursor_execute", cut)
    with pytest.raises(DatabaseUnavailable):
        reconcile_once(engine, judge=PATIENT)
    assert before == scene.dump()


# --- how many statements ---------------------------------------------------------------------------------------------


def count_statements(engine: Engine, act: Callable[[], Any]) -> list[str]:
    texts: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        texts.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    act()
    event.remove(engine, "before_cursor_execute", note)
    return [text for text in texts if not text.startswith("BEGIN")]


def test_a_batch_takes_the_same_few_statements_whatever_its_size(
    database_factory: Callable[[], str], engine_factory: Callable[..., Engine]
) -> None:
    counts = []
    for size in (3, 40):
        scene = Scene(engine_factory(database_factory()))
        for number in range(size):
            scene.session(f"a{number}", turn("A", said("a1")))
            scene.session(f"b{number}", turn("A", said("a1", "tool_use", "t1", content="none")))
            scene.session(f"c{number}", turn("A"))
            scene.running(f"a{number}")
            scene.running(f"b{number}", abort_requested_at=scene.now() - timedelta(hours=1))
            scene.running(f"c{number}", lease_s=600)
        texts = count_statements(scene.engine, lambda scene=scene: run_pass(scene))  # type: ignore[misc]
        counts.append(len(texts))
        if is_postgresql(scene.engine):
            batch = [text for text in texts if "count(" not in text and "clock_timestamp() AS" not in text]
            # The scan, the surroundings, the paths, the writes; the pass's own row is not counted.
            assert 4 == len([text for text in batch if not text.startswith("INSERT INTO passes")]), batch
    assert counts[0] == counts[1]


def test_the_texts_of_all_plans_take_one_statement(scene: Scene) -> None:
    for number in range(5):
        scene.session(f"s{number}", turn("A", said("a1", "aborted")), payloads={"a1": "partial", "in": "question"})
        scene.running(f"s{number}")
    texts = count_statements(scene.engine, lambda: run_pass(scene))
    assert 1 == sum("SELECT p.session_id" in text for text in texts)


def test_a_tail_of_many_steps_after_many_branches_is_decided(scene: Scene) -> None:
    given = turn("A")
    for number in range(40):
        given += chain(said(f"a{number}", "tool_use", "t"), result(f"r{number}", "t"), below=given[-1].id)
        given.append(said(f"x{number}", "error", parent_id="in"))
    scene.session(given=given, leaf="r39")
    scene.running()
    run_pass(scene, limits=Limits(path_piece_entries=4))
    assert ("queued", "tool_results_ready") == (scene.row().status, scene.row().decision_detail)


def test_long_tails_are_decided_in_transactions_of_their_own(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from reconciler.service import batches

    monkeypatch.setattr(batches, "BATCH_ENTRIES_MAX", 30)
    for name in ("a", "b", "c"):
        steps = [step for n in range(40) for step in (said(f"a{n}", "tool_use", "t"), result(f"r{n}", "t"))]
        scene.session(f"long-{name}", turn("A", *steps))
        scene.running(f"long-{name}")
        scene.session(f"short-{name}", turn("A", said("a1")))
        scene.running(f"short-{name}")
    report = run_pass(scene)
    assert (6, 3, 3, 0) == (report.scanned, report.requeued, report.settled["completed"], report.conflicts)
    assert "tool_results_ready" == scene.row("long-b").decision_detail
    before = scene.dump()
    assert 0 == run_pass(scene).scanned
    assert before == scene.dump()


def test_the_independent_checker_finds_nothing_after_a_pass(scene: Scene, database_url: str) -> None:
    fill(scene)
    run_pass(scene)
    found = [str(violation) for violation in check(database_url)]
    # The scenes are rows without a past: they have entries without payloads, and no admission.
    assert [] == [text for text in found if not text.startswith("lost")]
