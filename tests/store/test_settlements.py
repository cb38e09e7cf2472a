"""Guarded writes: each lands as a whole or not at all, and only where the row is the one that was inspected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Engine

from reconciler.core.model import Counters, Decision, SessionEntry
from reconciler.core.states import AttemptEnd, DecisionAction, Outcome, Reason, ResumeMode, SubmissionStatus
from reconciler.core.subturn import ResumePlan
from reconciler.errors import InvalidInput, StoreFault
from reconciler.store.dialect import array_literal
from reconciler.store.engine import begin
from reconciler.store.passes import lock_rows
from reconciler.store.settlements import (
    DecisionWrite,
    Landed,
    Push,
    Refused,
    RefusedReason,
    Settlement,
    apply_decisions,
)
from tests.support.scenes import Scene, chain, said, turn


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


COMPLETED = Decision(DecisionAction.SETTLE, Reason.COMPLETED, 3, outcome=Outcome.COMPLETED)
ANSWER = Settlement(
    Outcome.COMPLETED, "completed", "response_finished", answer_entry_id="a1", parent_entry_id="a1", becomes_leaf=True
)


def settling(scene: Scene, **changed: Any) -> DecisionWrite:
    """Return the write that settles A of s, running with the attempt at-1, as it stands now."""
    row = scene.row()
    write = DecisionWrite(
        session_id="s",
        submission_id="A",
        status=SubmissionStatus(row.status),
        session_version=scene.session_row().version,
        revision=row.revision,
        decision=COMPLETED,
        attempt_id=row.current_attempt_id,
        lease_expires_at=scene.attempt_row(row.current_attempt_id).lease_expires_at if row.current_attempt_id else None,
        settlement=ANSWER,
    )
    return replace(write, **changed)


def apply(scene: Scene, *writes: DecisionWrite, pushes: tuple[Push, ...] = ()) -> list[Landed | Refused]:
    now = scene.now()
    with begin(scene.engine) as conn:
        lock_rows(conn, [(write.session_id, write.submission_id) for write in writes])
        return apply_decisions(conn, writes, now=now, pushes=pushes)


def running(scene: Scene) -> None:
    scene.session(given=turn("A", said("a1")))
    scene.running(attempt_id="at-1")


def test_a_write_that_lands_says_so_and_is_whole(scene: Scene) -> None:
    running(scene)
    assert [Landed("s", "A", "submission-settled:A")] == apply(scene, settling(scene))
    row = scene.row()
    assert ("settled", 1, 1, 1, 2) == (
        row.status,
        row.revision,
        row.decision_revision,
        row.decision_count,
        row.decision_version,
    )
    assert (1, 2) == (scene.decision_rows()[0].number, scene.decision_rows()[0].session_version)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"session_version": 1}, RefusedReason.VERSION),
        ({"revision": 5}, RefusedReason.REVISION),
        ({"attempt_id": "at-0"}, RefusedReason.ATTEMPT),
        ({"attempt_id": None}, RefusedReason.ATTEMPT),
        ({"submission_id": "B"}, RefusedReason.MISSING),
        ({"session_id": "t"}, RefusedReason.MISSING),
    ],
)
def test_a_row_that_is_not_the_one_inspected_is_refused_and_nothing_is_written(
    scene: Scene, changed: dict[str, Any], reason: RefusedReason
) -> None:
    running(scene)
    before = scene.dump()
    write = settling(scene, **changed)
    assert [Refused(write.session_id, write.submission_id, reason)] == apply(scene, write)
    assert before == scene.dump()


def test_a_renewed_lease_refuses_what_was_decided_on_the_old_one(scene: Scene) -> None:
    running(scene)
    old = scene.attempt_row("at-1").lease_expires_at - timedelta(seconds=15)
    before = scene.dump()
    assert [Refused("s", "A", RefusedReason.LEASE)] == apply(scene, settling(scene, lease_expires_at=old))
    assert before == scene.dump()
    # Adoption and a forced settlement ask for no lease.
    assert isinstance(apply(scene, settling(scene, lease_expires_at=None))[0], Landed)


def test_a_settled_submission_is_refused(scene: Scene) -> None:
    running(scene)
    write = settling(scene)
    apply(scene, write)
    before = scene.dump()
    assert [Refused("s", "A", RefusedReason.SETTLED)] == apply(scene, write)
    assert before == scene.dump()


def test_of_a_batch_each_lands_or_is_refused_by_itself(scene: Scene) -> None:
    writes = []
    for number in range(6):
        scene.session(f"s{number}", turn("A", said("a1")))
        scene.submission(f"s{number}")
        write = DecisionWrite(
            session_id=f"s{number}",
            submission_id="A",
            status=SubmissionStatus.QUEUED,
            session_version=2,
            revision=number % 2,
            decision=COMPLETED,
            settlement=ANSWER,
        )
        writes.append(write)
    results = apply(scene, *writes)
    assert [Landed, Refused] * 3 == [type(result) for result in results]
    assert [f"s{number}" for number in range(6)] == [result.session_id for result in results]
    assert ["settled", "queued"] * 3 == [scene.row(f"s{number}").status for number in range(6)]
    assert [3, 2] * 3 == [scene.session_row(f"s{number}").version for number in range(6)]
    assert 3 == len(scene.dump()["decisions"])


def test_a_row_that_cannot_be_stored_takes_the_whole_call_with_it(scene: Scene) -> None:
    running(scene)
    scene.session("t", [*turn("A", said("a1")), SessionEntry("submission-settled:A", "in", kind="custom")], leaf="a1")
    scene.submission("t")
    other = replace(settling(scene), session_id="t", session_version=3, attempt_id=None, lease_expires_at=None)
    before = scene.dump()
    with pytest.raises((StoreFault, sa_exc.IntegrityError)):
        apply(scene, settling(scene), other)
    assert before == scene.dump()


def test_a_hold_keeps_its_first_instant_and_a_park_stays_a_park(scene: Scene) -> None:
    now = scene.now()
    scene.session(given=turn("A"))
    scene.submission(status="waiting", parked_at=now, parked_until=now + timedelta(days=1), park_reason="approval")
    hold = Decision(DecisionAction.HOLD, Reason.INTEGRITY_HOLD, 6, detail="missing_parent")
    apply(scene, settling(scene, decision=hold, settlement=None))
    first = scene.row()
    assert ("waiting", "integrity_hold", "approval") == (first.status, first.held_reason, first.park_reason)
    apply(scene, settling(scene, decision=hold, settlement=None))
    assert (first.held_at, first.revision + 1) == (scene.row().held_at, scene.row().revision)


def test_a_requeue_carries_plan_backoff_and_counters(scene: Scene) -> None:
    running(scene)
    later = scene.now() + timedelta(seconds=30)
    decision = Decision(
        DecisionAction.REQUEUE,
        Reason.RESUME,
        10,
        attempt_end=AttemptEnd.STALLED,
        counters=Counters(crashes_in_row=2, provider_errors=3),
        not_before=later,
        provider_error_attempt_id="at-1",
    )
    plan = ResumePlan(ResumeMode.CONTINUE)
    apply(scene, settling(scene, decision=decision, settlement=None, plan=plan))
    row, attempt = scene.row(), scene.attempt_row("at-1")
    assert ("queued", later, 2, 3, plan.to_json()) == (
        row.status,
        row.not_before,
        row.crashes_in_row,
        row.provider_errors,
        row.plan,
    )
    assert ("stalled", True) == (attempt.end_kind, attempt.provider_error_counted)
    assert "stalled" == scene.decision_rows()[0].attempt_end


def test_several_settlements_of_one_mirrored_session_get_a_seq_each(scene: Scene) -> None:
    scene.session(given=chain(*(said(f"a{number}") for number in range(3))), origin="mirrored")
    for name in ("A", "B", "C"):
        scene.submission("s", name)
    beside = replace(ANSWER, parent_entry_id="a2", becomes_leaf=False)
    writes = [
        replace(settling(scene), submission_id=name, attempt_id=None, lease_expires_at=None, settlement=beside)
        for name in ("A", "B", "C")
    ]
    results = apply(scene, writes[0], replace(writes[1], revision=4), writes[2])
    assert [Landed, Refused, Landed] == [type(result) for result in results]
    assert [4, 6] == [row.seq for row in scene.entry_rows()[3:]]
    assert (5, 6, "a2") == (
        scene.session_row().version,
        scene.session_row().last_seq,
        scene.session_row().leaf_entry_id,
    )


def test_a_push_changes_nothing_but_the_due_time(scene: Scene) -> None:
    running(scene)
    later = scene.now() + timedelta(minutes=5)
    before = scene.row()._asdict()
    apply(scene, pushes=(Push("s", "A", 0, later),))
    assert before | {"reconcile_at": later} == scene.row()._asdict()
    apply(scene, pushes=(Push("s", "A", 9, later + timedelta(minutes=5)),))
    assert later == scene.row().reconcile_at


def test_what_makes_no_sense_is_refused_before_any_statement(scene: Scene) -> None:
    running(scene)
    write = settling(scene)
    wait = Decision(DecisionAction.WAIT, Reason.LEASE_LIVE, 2)
    for bad in ([write, write], [replace(write, settlement=None)], [replace(write, decision=wait, settlement=None)]):
        with pytest.raises(InvalidInput):
            apply(scene, *bad)


AWKWARD = [
    "",
    "NULL",
    "null",
    '"',
    "\\",
    "a,b",
    "{}",
    "{a}",
    " a ",
    "\t",
    "é",
    'a"b\\c',
    "%s",
    "%(x)s",
    "it's",
    "🦉",
    None,
]


def test_texts_travel_in_arrays_as_they_are(postgresql_url: str, engine_factory: Callable[..., Engine]) -> None:
    with begin(engine_factory(postgresql_url)) as conn:
        found = (
            conn.exec_driver_sql("SELECT unnest(CAST(%(a)s AS text[]))", {"a": array_literal(AWKWARD)}).scalars().all()
        )
        assert AWKWARD == found
        instant = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
        for type_, values in (
            ("bigint", [1, None, -(2**62)]),
            ("boolean", [True, False, None]),
            ("timestamptz", [instant]),
        ):
            parameters = {"a": array_literal(values)}
            read = conn.exec_driver_sql(f"SELECT unnest(CAST(%(a)s AS {type_}[]))", parameters).scalars().all()
            assert values == read


@pytest.mark.parametrize("name", ['it\'s "quoted"', "back\\slash", "{brace},comma", "%(x)s"])
def test_awkward_ids_are_settled_like_others(scene: Scene, name: str) -> None:
    scene.session(name, turn(name, said("a1")))
    scene.submission(name, name)
    write = DecisionWrite(
        session_id=name,
        submission_id=name,
        status=SubmissionStatus.QUEUED,
        session_version=2,
        revision=0,
        decision=COMPLETED,
        settlement=ANSWER,
        note=name,
    )
    assert [Landed(name, name, f"submission-settled:{name}")] == apply(scene, write)
    assert f"submission-settled:{name}" == scene.session_row(name).leaf_entry_id
    assert name == scene.decision_rows(name, name)[0].note
