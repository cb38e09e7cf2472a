"""Admission: once by id and content, in order, whatever commits first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.due import is_claimable
from reconciler.core.model import Limits
from reconciler.core.states import Outcome, SubmissionStatus
from reconciler.errors import Conflict, InvalidInput, LimitExceeded, SessionMirrored
from reconciler.store.admission import NewSubmission, admit, prepare, submit
from reconciler.store.around import read_around
from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import begin, read
from reconciler.store.facts import submission_facts
from reconciler.store.passes import lock_rows
from reconciler.store.schema import sessions, settled_ids, submissions
from tests.support.scenes import Scene


@pytest.fixture
def scene(engine: Engine) -> Scene:
    return Scene(engine)


def new(submission_id: str = "A", session_id: str = "s", **more: Any) -> NewSubmission:
    return NewSubmission(
        **{"session_id": session_id, "submission_id": submission_id, "payload": {"text": "hi"}, **more}
    )


def test_an_admitted_submission_is_claimable_at_once_and_due_at_its_deadline(scene: Scene) -> None:
    answer = submit(scene.engine, [new(deadline_s=60, entity_hints=["a/b"], fact_count=3)])[0]
    row, decision = scene.row(), scene.decision_rows()[0]
    assert ("queued", 1, True) == (answer.status, answer.ticket, answer.created)
    assert answer.admitted_at is not None
    assert answer.admitted_at + timedelta(seconds=60) == row.deadline_at == row.reconcile_at
    assert (row.admitted_at, 3, '["a/b"]') == (row.not_before, row.fact_count, row.entity_hints)
    assert (1, "admit", "admitted") == (decision.number, decision.action, decision.reason)
    assert {"text": "hi"} == scene.payload("submission-input:A")
    assert [] == scene.entry_rows()
    with read(scene.engine) as conn:
        rows = lock_rows(conn, [("s", "A")], lock=False)
        around = read_around(conn, rows, lock=False)
        facts = submission_facts(rows[0], around.around["s", "A"], Limits())
    assert is_claimable(facts, around.now, not_before=row.not_before, is_head=True)


def test_without_a_deadline_it_is_not_due_by_itself(scene: Scene) -> None:
    submit(scene.engine, [new()])
    assert scene.row().reconcile_at is None


def test_the_same_again_writes_nothing_and_gets_the_first_answer(scene: Scene) -> None:
    first = submit(scene.engine, [new(deadline_s=60)])[0]
    before = scene.dump()
    again = submit(scene.engine, [new(deadline_s=60)])[0]
    assert before == scene.dump()
    assert (first.ticket, first.admitted_at, first.deadline_at) == (again.ticket, again.admitted_at, again.deadline_at)
    assert (True, False) == (first.created, again.created)


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"text": "ho"}},
        {"entity_hints": ["x/y"]},
        {"fact_count": 1},
        {"deadline_s": 61},
        {"limits": {"attempts_max": 30}},
    ],
)
def test_the_same_id_with_other_content_is_a_conflict(scene: Scene, other: dict[str, Any]) -> None:
    submit(scene.engine, [new(deadline_s=60)])
    before = scene.dump()
    with pytest.raises(Conflict, match="other content"):
        submit(scene.engine, [new(**{"deadline_s": 60, **other})])
    assert before == scene.dump()


def test_payloads_that_are_equal_as_json_are_the_same_content(scene: Scene) -> None:
    submit(scene.engine, [new(payload={"a": 1, "b": [2]})])
    assert not submit(scene.engine, [new(payload={"b": [2], "a": 1})])[0].created


def test_a_repeated_call_after_the_outcome_gets_the_outcome(scene: Scene) -> None:
    submit(scene.engine, [new()])
    with begin(scene.engine) as conn:
        conn.execute(
            sa.update(submissions).values(
                status="settled",
                outcome="failed",
                outcome_reason="attempts_exhausted",
                settled_at=submissions.c.admitted_at,
                not_before=None,
            )
        )
    again = submit(scene.engine, [new()])[0]
    assert (SubmissionStatus.SETTLED, Outcome.FAILED, "attempts_exhausted") == (
        again.status,
        again.outcome,
        again.outcome_reason,
    )


def remember(scene: Scene, digest: str) -> None:
    now = scene.now()
    with begin(scene.engine) as conn:
        conn.execute(
            settled_ids.insert().values(
                session_id="s",
                submission_id="A",
                outcome="completed",
                content_digest=digest,
                ticket=7,
                claims=2,
                settled_at=now,
                pruned_at=now,
            )
        )


def test_a_pruned_submission_is_never_admitted_again(scene: Scene) -> None:
    remember(scene, prepare(new()).digest)
    before = scene.dump()
    again = submit(scene.engine, [new()])[0]
    assert (SubmissionStatus.SETTLED, Outcome.COMPLETED, 7, False) == (
        again.status,
        again.outcome,
        again.ticket,
        again.created,
    )
    assert before == scene.dump()
    with pytest.raises(Conflict):
        submit(scene.engine, [new(payload="other")])


def test_a_mirrored_session_takes_no_submission(scene: Scene) -> None:
    scene.session(origin="mirrored")
    before = scene.dump()
    with pytest.raises(SessionMirrored):
        submit(scene.engine, [new()])
    assert before == scene.dump()


def test_several_in_one_call_are_admitted_in_order_and_all_or_none(scene: Scene) -> None:
    given = [new("B", "t"), new("A"), new("B"), new("A", "t"), new("A")]
    answers = submit(scene.engine, given)
    assert [("t", "B", 1), ("s", "A", 1), ("s", "B", 2), ("t", "A", 2), ("s", "A", 1)] == [
        (answer.session_id, answer.submission_id, answer.ticket) for answer in answers
    ]
    before = scene.dump()
    with pytest.raises(Conflict):
        submit(scene.engine, [new("C"), new("A", payload="other")])
    with pytest.raises(Conflict, match="twice"):
        submit(scene.engine, [new("C"), new("C", payload="other")])
    assert before == scene.dump()


@pytest.mark.parametrize(
    "bad",
    [
        {"session_id": ""},
        {"submission_id": "x" * 513},
        {"submission_id": "a\nb"},
        {"submission_id": "\ud800"},
        {"payload": float("nan")},
        {"payload": {1: 2}},
        {"entity_hints": "a/b"},
        {"entity_hints": [1]},
        {"fact_count": -1},
        {"fact_count": True},
        {"fact_count": 2**31},
        {"deadline_s": 0},
        {"deadline_s": float("inf")},
        {"deadline_s": 1e12},
        {"limits": {"scan_batch_max": 3}},
        {"limits": {"attempts_max": 1}},
        {"limits": {"attempts_max": "many"}},
        {"kind": "else"},
    ],
)
def test_what_is_not_valid_is_refused_before_anything_is_written(scene: Scene, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        submit(scene.engine, [new(**bad)])
    assert [] == scene.dump()["sessions"]


def test_a_payload_beyond_the_limit_is_refused(scene: Scene) -> None:
    with pytest.raises(LimitExceeded):
        submit(scene.engine, [new(payload="x" * 100)], limits=Limits(payload_bytes_max=50))


def test_text_that_databases_refuse_travels_in_payloads(scene: Scene) -> None:
    submit(scene.engine, [new(payload="a\x00b\ud800")])
    assert "a\x00b\ud800" == scene.payload("submission-input:A")


def test_the_order_of_tickets_is_the_order_of_commits(scene: Scene, second_engine: Engine) -> None:
    if not is_postgresql(scene.engine):
        pytest.skip("on SQLite one transaction at a time writes")
    submit(scene.engine, [new("first")])
    second: list[int] = []

    def later() -> None:
        second.append(submit(second_engine, [new("late")])[0].ticket)

    thread = threading.Thread(target=later)
    with begin(scene.engine) as conn:
        early = admit(conn, [prepare(new("early"))])[0].ticket
        thread.start()
        time.sleep(0.3)
        # It waits for the session's lock, and has no number yet.
        assert [] == second
    thread.join(30)
    assert (2, [3]) == (early, second)


def test_a_number_given_out_in_a_transaction_that_failed_is_given_out_again(scene: Scene) -> None:
    submit(scene.engine, [new("first")])
    with pytest.raises(RuntimeError), begin(scene.engine) as conn:
        admit(conn, [prepare(new("lost"))])
        raise RuntimeError
    assert 2 == submit(scene.engine, [new("next")])[0].ticket


def test_the_same_submission_admitted_by_many_at_once_is_there_once(
    scene: Scene, database_url: str, engine_factory: Callable[..., Engine]
) -> None:
    engines = [engine_factory(database_url) for _ in range(4)]
    meet = threading.Barrier(4, timeout=30)
    answers: list[Any] = []

    def call(engine: Engine) -> None:
        meet.wait()
        answers.append(submit(engine, [new(f"B{number}") for number in range(5)]))

    threads = [threading.Thread(target=call, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 4 == len(answers)
    assert [[1, 2, 3, 4, 5]] * 4 == [[one.ticket for one in each] for each in answers]
    assert [1] * 5 == [sum(each[number].created for each in answers) for number in range(5)]
    with read(scene.engine) as conn:
        assert 5 == conn.execute(sa.select(sessions.c.last_ticket)).scalar_one()
