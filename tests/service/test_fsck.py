"""The check of a whole database: each breach planted is found by its invariant, repaired only where that is safe."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.core.model import Limits, NewEntry, SessionEntry
from reconciler.errors import DatabaseUnavailable
from reconciler.ops.asking import Desk
from reconciler.ops.dispatch import ask
from reconciler.service import fsck as module
from reconciler.service.fsck import FsckReport, fsck
from reconciler.service.reconcile import reconcile_once
from reconciler.service.refine import RefineGate
from reconciler.service.runner import Runner
from reconciler.store.engine import begin
from reconciler.store.fsck import CHECKS, GLOBAL_CHECKS, Check
from reconciler.store.lenient import read_leniently
from reconciler.store.schema import (
    attempts,
    decisions,
    entries,
    entry_payloads,
    metadata,
    operation_items,
    operations,
    refine_epochs,
    rejected_edits,
    sessions,
    settled_ids,
    submissions,
)
from tests.support.checker import check, report
from tests.support.scenes import Scene, said, turn


@pytest.fixture
def lively(engine: Engine, database_url: str) -> Engine:
    """Give a sound database with a bit of everything: s/done settled, s/next queued, t/half queued again, r running."""
    with Runner(database_url, owner="r") as runner:
        runner.submit("s", "done", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="x")])
        attempt.settle("completed")
        runner.submit("t", "half", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("c",), payload="x")])
        attempt.fail("overloaded")
        runner.submit("s", "next", {"text": "go"})
        reconcile_once(engine)
    scene = Scene(engine)
    scene.session("r", turn("running"), payloads={"in": "go"})
    scene.running("r", "running", lease_s=3600, reconcile_at=scene.now() + timedelta(hours=1))
    with RefineGate(database_url) as gate:
        gate.open("skill", baseline_score=0.5)
        gate.gate("skill", "e1", 0.6)
        gate.gate("skill", "e2", 0.1)
    return engine


def _found(found: FsckReport) -> list[tuple[str, str, str | None]]:
    return [(one.check, one.session_id, one.submission_id) for one in found.findings]


def _dump(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
        }


def test_a_sound_database_has_no_findings_and_a_check_writes_nothing(lively: Engine, database_url: str) -> None:
    assert "" == report(check(database_url))
    before = _dump(lively)
    found = fsck(lively)
    assert [] == found.findings
    assert (3, 4, None) == (found.sessions, found.submissions, found.after)
    assert [] == fsck(lively, repair=True).findings
    assert before == _dump(lively)


def test_what_hung_from_anothers_settlement_is_sound_after_the_leaf_was_moved_above_it(
    engine: Engine, database_url: str
) -> None:
    with Runner(database_url, owner="r") as runner:
        runner.submit("s", "first", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload="x")])
        attempt.settle("completed")
        runner.submit("s", "second", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("c",), payload="x")])
        attempt.fail("overloaded")
    desk = Desk(make_engine=lambda **_: engine, name_database=lambda: "here", operator="tess", limits=Limits())
    moved = ask("move-leaf", {"session": "s", "entry": "submission-input:first", "reason": "x"}, desk)
    assert moved.error is None
    reconcile_once(engine, limits=Limits(leaf_moved_s=0.0))
    with engine.connect() as conn:
        found = conn.execute(sa.select(submissions.c.outcome_reason).where(submissions.c.id == "second")).scalar_one()
    assert "leaf_moved" == found
    assert "" == report(check(database_url, quiescent=True))
    assert [] == fsck(engine).findings


# --- planted ---------------------------------------------------------------------------------------------------------

Plant = Callable[[Connection], None]


def _set(table: sa.Table, *where: sa.ColumnElement[bool], **values: Any) -> Plant:
    return lambda conn: _one(conn, sa.update(table).where(*where).values(**values))


def _drop(table: sa.Table, *where: sa.ColumnElement[bool]) -> Plant:
    return lambda conn: _one(conn, sa.delete(table).where(*where))


def _put(table: sa.Table, **values: Any) -> Plant:
    def put(conn: Connection) -> None:
        conn.execute(sa.insert(table).values(**values))

    return put


def _one(conn: Connection, statement: Any) -> None:
    assert conn.execute(statement).rowcount >= 1


def _all(*plants: Plant) -> Plant:
    def plant(conn: Connection) -> None:
        for one in plants:
            one(conn)

    return plant


_NOW = sa.select(sa.func.max(submissions.c.admitted_at)).scalar_subquery()
DONE = (submissions.c.session_id == "s", submissions.c.id == "done")
NEXT = (submissions.c.session_id == "s", submissions.c.id == "next")
HALF = (submissions.c.session_id == "t", submissions.c.id == "half")
RUNNING = (submissions.c.session_id == "r", submissions.c.id == "running")
SETTLEMENT = entries.c.id == "submission-settled:done"
S, T, R = sessions.c.id == "s", sessions.c.id == "t", sessions.c.id == "r"


def _attempt_of(conn: Connection, submission_id: str) -> str:
    query = sa.select(attempts.c.attempt_id).where(attempts.c.submission_id == submission_id)
    return str(conn.execute(query).scalar_one())


def _answered_twice(conn: Connection) -> None:
    # In t: an answer of the first attempt, and one of a second attempt behind it.
    first = _attempt_of(conn, "half")
    now = conn.execute(sa.select(attempts.c.claimed_at).where(attempts.c.attempt_id == first)).scalar_one()
    leaf, last = conn.execute(sa.select(sessions.c.leaf_entry_id, sessions.c.last_seq).where(T)).one()
    conn.execute(
        entries.insert(),
        [
            {
                "session_id": "t",
                "seq": last + number,
                "id": f"answer-{number}",
                "parent_id": parent,
                "kind": "message",
                "role": "assistant",
                "stop_reason": "stop",
                "submission_id": "half",
                "attempt_id": attempt_id,
                "created_at": now,
            }
            for number, parent, attempt_id in ((1, leaf, first), (2, "answer-1", "another"))
        ],
    )
    conn.execute(
        entry_payloads.insert(),
        [{"session_id": "t", "entry_id": f"answer-{number}", "payload": "1"} for number in (1, 2)],
    )
    conn.execute(sa.update(sessions).where(T).values(last_seq=last + 2, version=99, leaf_entry_id="answer-2"))


def _written_by_another(conn: Connection) -> None:
    _one(
        conn,
        sa.update(entries)
        .where(entries.c.session_id == "s", entries.c.role == "assistant")
        .values(submission_id="next"),
    )


def _written_late(conn: Connection) -> None:
    _one(
        conn,
        sa.update(entries)
        .where(entries.c.session_id == "s", entries.c.role == "assistant")
        .values(created_at=conn.execute(sa.select(_NOW)).scalar_one() + timedelta(hours=1)),
    )


def _out_of_order(conn: Connection) -> None:
    # next was claimed before done was settled.
    settled = conn.execute(sa.select(submissions.c.settled_at).where(*DONE)).scalar_one()
    early = settled - timedelta(seconds=5)
    conn.execute(
        attempts.insert().values(
            session_id="s",
            attempt_id="early",
            submission_id="next",
            number=1,
            owner="o",
            claimed_at=early,
            lease_s=1,
            beat_s=1,
            beat_at=early,
            lease_expires_at=early,
            ended_at=early,
            end_kind="released",
        )
    )
    conn.execute(sa.update(submissions).where(*NEXT).values(claims=1))


def _finish_half(conn: Connection) -> None:
    leaf, last = conn.execute(sa.select(sessions.c.leaf_entry_id, sessions.c.last_seq).where(T)).one()
    now = conn.execute(sa.select(_NOW)).scalar_one()
    conn.execute(
        entries.insert(),
        [
            {
                "session_id": "t",
                "seq": last + number,
                "id": name,
                "parent_id": parent,
                "kind": "message",
                "role": role,
                "stop_reason": stop,
                "tool_call_id": call,
                "submission_id": "half",
                "created_at": now,
            }
            for number, name, parent, role, stop, call in (
                (1, "res", leaf, "tool_result", None, "c"),
                (2, "ans", "res", "assistant", "stop", None),
            )
        ],
    )
    conn.execute(
        entry_payloads.insert(), [{"session_id": "t", "entry_id": name, "payload": "1"} for name in ("res", "ans")]
    )
    conn.execute(sa.update(sessions).where(T).values(last_seq=last + 2, version=99, leaf_entry_id="ans"))


def _settle_next(conn: Connection) -> None:
    # Its entry came, and the row did not.
    leaf, last, version = conn.execute(
        sa.select(sessions.c.leaf_entry_id, sessions.c.last_seq, sessions.c.version).where(S)
    ).one()
    entry_id = "submission-settled:next"
    conn.execute(
        entries.insert().values(
            session_id="s",
            seq=last + 1,
            id=entry_id,
            parent_id=leaf,
            kind="submission_settled",
            submission_id="next",
            created_at=conn.execute(sa.select(_NOW)).scalar_one(),
        )
    )
    conn.execute(
        entry_payloads.insert().values(
            session_id="s", entry_id=entry_id, payload='{"outcome":"aborted","recovered":true}'
        )
    )
    conn.execute(sa.update(sessions).where(S).values(last_seq=last + 1, version=version + 1))


def _operation(status: str, item: str) -> Plant:
    return _all(
        _put(operations, id="op", verb="abort", parameters="{}", status=status, created_at=_NOW, total=1),
        _put(operation_items, operation_id="op", number=1, session_id="s", status=item),
    )


# name of the check, what is broken, whether a repair makes it good
PLANTED: list[tuple[str, Plant, bool]] = [
    ("session_lost", _drop(sessions, R), False),
    ("submission_lost_session", _drop(sessions, R), False),
    ("attempt_lost_submission", _drop(submissions, *RUNNING), False),
    ("version_behind", _set(sessions, S, version=1), False),
    ("leaf_lost", _set(sessions, S, leaf_entry_id="nowhere"), False),
    ("leaf_lost", _set(sessions, S, leaf_entry_id=None), False),
    ("seq_behind", _set(sessions, S, last_seq=0), True),
    ("ticket_behind", _set(sessions, S, last_ticket=0), True),
    ("seq_falls", _set(entries, entries.c.id == "submission-input:done", seq=1000), False),
    ("payload_lost", _drop(entry_payloads, entry_payloads.c.entry_id == "submission-input:done"), False),
    (
        "admitted_after_settled",
        _put(
            settled_ids,
            session_id="s",
            submission_id="next",
            outcome="failed",
            content_digest="d",
            ticket=1,
            claims=0,
            settled_at=_NOW,
            pruned_at=_NOW,
        ),
        False,
    ),
    ("claimed_after_settled", _set(submissions, *DONE, settled_at=submissions.c.admitted_at), False),
    ("running_without_attempt", _set(submissions, *RUNNING, current_attempt_id="nobody"), False),
    (
        "attempt_without_running",
        _set(attempts, attempts.c.submission_id == "done", ended_at=None, end_kind=None),
        False,
    ),
    ("ran_out_of_order", _out_of_order, False),
    ("written_by_other", _written_by_another, False),
    ("written_late", _written_late, False),
    ("worked_on_after_answer", _answered_twice, False),
    ("claims_behind", _set(submissions, *HALF, claims=0), True),
    ("decisions_behind", _set(submissions, *HALF, decision_count=1), True),
    ("decisions_lost", _drop(decisions, decisions.c.submission_id == "next"), False),
    ("settled_without_decision", _set(decisions, decisions.c.outcome.is_not(None), outcome="failed"), False),
    ("answer_lost", _set(submissions, *DONE, answer_entry_id="nowhere"), False),
    ("row_behind", _settle_next, True),
    ("settled_without_entry", _drop(entries, SETTLEMENT), False),
    ("names_other_entry", _set(submissions, *DONE, settlement_entry_id="other"), False),
    (
        "outcomes_differ",
        _set(entry_payloads, entry_payloads.c.entry_id == "submission-settled:done", payload='{"outcome":"failed"}'),
        False,
    ),
    ("overspent", _set(submissions, *HALF, redispatches=9), False),
    ("limits_unreadable", _set(submissions, *HALF, limits='{"attempts_max": 0}'), False),
    ("waits_for_ever", _set(submissions, *HALF, not_before=None, reconcile_at=None), True),
    (
        "abort_for_ever",
        _set(submissions, *HALF, not_before=None, reconcile_at=None, abort_requested_at=_NOW),
        True,
    ),
    ("queued_though_finished", _finish_half, False),
    ("rejections_miscounted", _drop(rejected_edits, rejected_edits.c.edit_id == "e2"), False),
    ("step_misjudged", _set(refine_epochs, refine_epochs.c.subject == "skill", best_score=0.9), False),
    ("step_misjudged", _set(refine_epochs, refine_epochs.c.subject == "skill", used=1), False),
    ("operation_unfinished", _operation("open", "done"), True),
    ("operation_items_lost", _operation("done", "pending"), False),
]
# What the schema forbids: the check stands for databases whose index or CHECK was taken away.
FORBIDDEN = {"settled_twice", "two_live", "epochs_open", "epoch_overspent"}


@pytest.mark.parametrize(
    ("name", "plant", "repairable"), PLANTED, ids=[f"{name}-{place}" for place, (name, _, _) in enumerate(PLANTED)]
)
def test_each_breach_is_found_and_repaired_only_where_that_is_safe(
    lively: Engine, database_url: str, name: str, plant: Plant, repairable: bool
) -> None:
    with begin(lively) as conn:
        plant(conn)
    before = _dump(lively)
    found = fsck(lively)
    assert name in [one.check for one in found.findings]
    assert all(one.way_out for one in found.findings)
    assert before == _dump(lively)
    tried = fsck(lively, repair=True, dry_run=True)
    assert before == _dump(lively)
    assert _found(found) == _found(tried)
    mended = fsck(lively, repair=True)
    state = "repaired" if repairable else "person"
    assert {state} == {one.mending.value for one in mended.findings if one.check == name}
    assert (name not in [one.check for one in fsck(lively).findings]) == repairable
    if repairable:
        assert "" == report(check(database_url))
        # Whatever was repaired, a pass goes on from it.
        reconcile_once(lively)
        assert "" == report(check(database_url))


def test_every_check_has_its_breach_planted() -> None:
    names = {one.name for one in (*CHECKS, *GLOBAL_CHECKS)} | {
        value.name for value in vars(module).values() if isinstance(value, Check)
    }
    assert names | {"queued_though_finished"} == {name for name, _, _ in PLANTED} | FORBIDDEN


def test_what_indexes_forbid_is_found_where_they_were_taken_away(sqlite_url: str, engine_factory: Any) -> None:
    engine = engine_factory(sqlite_url)
    scene = Scene(engine)
    scene.session("s", turn("A", said("answer")))
    with begin(engine) as conn:
        for name in ("uq_entries_settlement", "uq_submissions_live", "uq_refine_epochs_open"):
            conn.execute(sa.text(f"DROP INDEX {name}"))
        for number in (1, 2):
            conn.execute(
                entries.insert().values(
                    session_id="s",
                    seq=10 + number,
                    id=f"x{number}",
                    kind="submission_settled",
                    submission_id="A",
                    created_at=sa.select(sessions.c.created_at).scalar_subquery(),
                )
            )
            conn.execute(
                refine_epochs.insert().values(
                    subject="skill",
                    epoch=number,
                    baseline_score=0.0,
                    best_score=0.0,
                    budget_max=1,
                    budget_floor=0,
                    opened_at=sa.select(sessions.c.created_at).scalar_subquery(),
                )
            )
    scene.session("t")
    scene.submission("t", "A", status="waiting", parked_until=scene.now())
    scene.submission("t", "B", status="waiting", parked_until=scene.now())
    assert {"settled_twice", "two_live", "epochs_open"} <= {one.check for one in fsck(engine).findings}


def test_a_row_behind_its_entry_is_adopted_with_what_the_entry_says(engine: Engine, database_url: str) -> None:
    scene = Scene(engine)
    entry = SessionEntry("submission-settled:A", "answer", kind="submission_settled", submission_id="A", content="none")
    given = [*turn("A", said("answer")), entry]
    payload = {"outcome": "failed", "reason": "crash_loop", "answer_entry_id": None, "recovered": True}
    scene.session("s", given, payloads={entry.id: payload, "in": 1, "answer": 2})
    # A decision stands, so that no pass would ever look at it.
    scene.submission(
        "s",
        "A",
        reconcile_at=None,
        not_before=scene.now(),
        decision_action="requeue",
        decision_reason="resume",
        decision_revision=0,
        decision_version=3,
    )
    assert [("row_behind", "s", "A")] == _found(fsck(engine, repair=True))
    row = scene.row("s", "A")
    assert ("settled", "failed", "crash_loop") == (row.status, row.outcome, row.outcome_reason)
    assert ["adopt"] == [one.action for one in scene.decision_rows("s", "A")]
    assert [] == fsck(engine).findings


def test_a_check_goes_on_where_it_was_left(lively: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_PAGE", 1)
    with begin(lively) as conn:
        _set(sessions, leaf_entry_id="nowhere")(conn)
    first = fsck(lively, limit=2)
    assert ["r", "s"] == [one.session_id for one in first.findings]
    assert ("s", 2) == (first.after, first.sessions)
    second = fsck(lively, after=first.after)
    assert (["t"], None) == ([one.session_id for one in second.findings], second.after)
    whole = fsck(lively)
    assert _found(whole) == _found(first) + _found(second)


def test_a_database_that_goes_away_says_where_to_go_on(lively: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_PAGE", 1)
    calls = iter(range(100))

    def failing(*given: Any, **more: Any) -> Any:
        # Each page is one call.
        if next(calls) == 2:
            raise DatabaseUnavailable("could not reach it")
        return read_leniently(*given, **more)

    monkeypatch.setattr(module, "read_leniently", failing)
    with pytest.raises(DatabaseUnavailable) as caught:
        fsck(lively)
    assert {"after": "s", "checked": 2, "findings": 0} == caught.value.detail
    assert "--after s" in (caught.value.hint or "")


def test_findings_are_listed_up_to_a_bound_and_counted_all(lively: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FINDINGS_MAX", 2)
    monkeypatch.setattr(module, "_FOUND_PER_PAGE", 2)
    with begin(lively) as conn:
        _set(submissions, submissions.c.status != "settled", redispatches=9)(conn)
    found = fsck(lively)
    assert (2, 3, 3) == (len(found.findings), found.count, found.left)


def test_a_damaged_session_of_another_program_is_no_breach(engine: Engine) -> None:
    scene = Scene(engine)
    scene.session("m", turn("A", said("x")), origin="mirrored", leaf="gone")
    with begin(engine) as conn:
        conn.execute(
            entry_payloads.insert(),
            [{"session_id": "m", "entry_id": name, "payload": json.dumps(1)} for name in ("in", "x")],
        )
    assert [] == fsck(engine).findings


def test_a_row_that_cannot_be_read_is_a_finding_and_the_others_are_checked(lively: Engine) -> None:
    with begin(lively) as conn:
        conn.execute(sa.update(entries).where(entries.c.tool_call_ids.is_not(None)).values(tool_call_ids="not json"))
    assert ("unreadable", "t", "half") in _found(fsck(lively))
