"""A row that takes the decision of another one of its case gets what the policy would have said of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits
from reconciler.core.policy import BackoffKind, decide
from reconciler.core.states import DecisionAction
from reconciler.service.cases import Case, Template, case_of, template_of
from reconciler.service.deciding import Judge, Planned, template_for
from reconciler.service.gather import Gathered
from reconciler.service.reconcile import reconcile_once
from reconciler.service.resume import make_plan
from reconciler.store.around import AttemptRow, Surroundings
from reconciler.store.facts import submission_facts
from reconciler.store.passes import DueRow
from reconciler.store.paths import Shape, ShapedTurn
from reconciler.store.schema import metadata
from reconciler.store.settlement_rows import DecisionRow
from reconciler.store.settlements import decision_row
from tests.bench import data
from tests.bench.databases import Database
from tests.service.test_shapes import classified, request_of, shaped, turn_rows
from tests.support.scenes import Scene

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMITS = Limits()


def attempt_row(rng: random.Random, attempt_id: str, *, ended: bool) -> AttemptRow:
    """Return an attempt; few of its values differ, so that cases come again, and its instants always do."""
    before = NOW - timedelta(days=rng.random())
    return AttemptRow(
        attempt_id=attempt_id,
        claimed_at=before - timedelta(days=rng.random()),
        beat_at=before,
        lease_expires_at=before if ended or rng.random() < 0.9 else NOW + timedelta(minutes=1),
        begun_at=before if rng.random() < 0.7 else None,
        progress_at=before if rng.random() < 0.5 else None,
        ended_at=before if ended else None,
        machine_id=None,
        boot_id=rng.choice([None, "b1", "b2"]),
        pid_namespace=None,
        pid=None,
        process_start=None,
        number=rng.choice([1, 2]),
        beat_s=rng.choice([5.0, 5.0, 60.0]),
        end_kind=rng.choice(["crashed", "released", "failed", "stalled"]) if ended else None,
        end_reason=None,
        retryable=rng.choice([None, False]) if ended else None,
        provider_error_counted=rng.random() < 0.2,
    )


def row_of(rng: random.Random, name: str, leaf: str, last_seq: int) -> tuple[DueRow, Surroundings]:
    """Return a running row with what stands around it; ids and instants are its own."""

    def rarely(value: Any) -> Any:
        return value if rng.random() < 0.03 else None

    revision = rng.randint(1, 9)
    version = rng.randint(5, 9)
    last = f"{name}-before" if rng.random() < 0.4 else None
    row = DueRow(
        session_id=f"{name}-session",
        submission_id="mine",
        revision=revision,
        reconcile_at=NOW - timedelta(seconds=rng.random()),
        current_attempt_id=f"{name}-at",
        last_attempt_id=last,
        decision_count=rng.randint(1, 9),
        decision_revision=rng.choice([revision, revision - 1, None]),
        decision_version=rng.choice([version, version - 3, None]),
        x_version=version,
        x_leaf_entry_id=leaf,
        x_last_seq=last_seq,
        x_leaf_moved_version=rng.choice([0, 4]),
        x_source_id=None,
        sub_turns_spent=0,
        sub_turn_facts=0,
        fact_count=rng.randint(0, 5),
        entity_hints=None,
        deadline_at=rarely(NOW - timedelta(seconds=1)),
        abort_requested_at=rarely(NOW - timedelta(seconds=1)),
        held_at=None,
        parked_until=None,
        unparked_at=rarely(NOW),
        x_leaf_moved_at=rarely(NOW - timedelta(seconds=1)),
        status="running",
        held_reason=None,
        hold_released_reason=None,
        pending_calls=None,
        attempts_spent=rng.choice([1, 2, 20]),
        attempts_begun=rng.choice([0, 1]),
        attempts_granted=rng.choice([0, 0, 1]),
        crashes_in_row=rng.choice([0, 4, 5]),
        provider_errors=rng.choice([0, 7, 8]),
        redispatches=rng.choice([0, 1]),
        redispatches_granted=0,
        releases=0,
        limits=None,
        decision_action=rng.choice(["requeue", "admit", "retry"]),
        decision_reason="admitted",
        decision_detail=None,
        x_origin="native",
        x_leaf_known_empty=False,
    )
    around = Surroundings(
        current=attempt_row(rng, f"{name}-at", ended=False),
        last=None if last is None else attempt_row(rng, last, ended=True),
        last_begun_end=rng.choice([None, "released"]),
        input_entry_id=f"{name}-in",
        input_seq=10,
        leaf_seq=last_seq,
    )
    return row, around


def may_judge(attempt: AttemptRow) -> bool:
    return attempt.beat_s < 60


def scene_of(seed: int, name: str) -> tuple[Gathered, ShapedTurn]:
    """Return a turn and a row that has it; equal seeds give rows of one case, with other ids and instants."""
    rows = turn_rows(random.Random(seed % 40), name)
    request = request_of(rows, name)
    answer, _ = classified(rows, request)
    # The case by the seed, ids and instants by the name.
    row, around = row_of(random.Random(seed), name, rows[-1][2], rows[-1][1])
    other = random.Random(name)
    shift = timedelta(seconds=other.random())
    assert around.current is not None
    current = around.current._replace(
        claimed_at=around.current.claimed_at - shift,
        lease_expires_at=around.current.lease_expires_at - shift,
        beat_at=around.current.beat_at - shift,
    )
    row = row._replace(decision_count=other.randint(1, 9), fact_count=other.randint(0, 9))
    gathered = Gathered(
        row, around._replace(current=current), answer.inspection, answer.evidence, row.x_leaf_entry_id, True
    )
    return gathered, shaped(rows, request)


def decided(gathered: Gathered, *, jitter: float = 0.5) -> tuple[Planned, DecisionRow | None]:
    """Return what the policy says of a row, and what is written of it by the ordinary way."""
    current = gathered.around.current
    assert current is not None
    facts = submission_facts(gathered.row, gathered.around, LIMITS, may_judge_lease=may_judge(current))
    decision = decide(gathered.inspection, facts, NOW, LIMITS, jitter=jitter, evidence=gathered.evidence)
    planned = Planned(gathered, facts, decision, LIMITS)
    if not decision.is_written:
        return planned, None
    return planned, decision_row(planned.write(make_plan(gathered, decision, LIMITS, {}), "me"))


def test_a_row_of_a_known_case_gets_what_the_policy_says_of_it() -> None:
    known: dict[tuple[Shape, Case], Template] = {}
    outcomes: set[str | None] = set()
    requeued: dict[str, set[object]] = {}
    taken = 0
    for seed in range(6_000):
        # Each twice, and between these many that differ in a single value.
        gathered, shape = scene_of(seed // 2, f"n{seed}")
        case = case_of(gathered.row, gathered.around, NOW, may_judge)
        # The row that the template was made from drew another jitter.
        jitter = random.Random(seed).random()
        planned, expected = decided(gathered, jitter=jitter)
        if case is None:
            continue
        template = known.get((shape.shape, case))
        if template is not None:
            assert gathered.around.current is not None
            assert expected == template.fill(gathered.row, gathered.around.current, shape, NOW, partial(float, jitter))
            outcomes.add(template.kind.outcome_reason)
            if not template.kind.settles:
                requeued.setdefault(template.kind.reason, set()).add(template.delay and template.delay[0])
            taken += 1
        elif expected is not None:
            made = template_for(planned, shape, NOW, "me")
            if made is not None:
                known[shape.shape, case] = made
    assert taken > 500
    assert {"completed", "attempts_exhausted", "uncertain_exhausted"} <= outcomes
    assert {"resume", "redispatch"} <= requeued.keys()
    assert {None, BackoffKind.CRASH} <= requeued["resume"]


def settled_scene(name: str) -> tuple[Gathered, ShapedTurn]:
    """Return a row that has a case, and is settled."""
    for seed in range(400):
        gathered, shape = scene_of(seed, name)
        if case_of(gathered.row, gathered.around, NOW, may_judge) is not None:
            planned, _ = decided(gathered)
            if planned.decision.action is DecisionAction.SETTLE and template_of(planned.write(None, "me"), shape):
                return gathered, shape
    raise AssertionError("none of 400 is settled")


@pytest.mark.parametrize(
    "change",
    [
        {"deadline_at": NOW + timedelta(hours=1)},
        {"abort_requested_at": NOW},
        {"x_leaf_moved_at": NOW},
        {"unparked_at": NOW},
        {"x_origin": "mirrored"},
    ],
)
def test_a_row_out_of_the_ordinary_has_no_case(change: dict[str, Any]) -> None:
    gathered, _ = settled_scene("n")
    assert case_of(gathered.row._replace(**change), gathered.around, NOW, may_judge) is None


def test_a_lease_that_lasts_or_may_not_be_judged_has_no_case() -> None:
    gathered, _ = settled_scene("n")
    row, around = gathered.row, gathered.around
    assert around.current is not None
    for current in (
        None,
        around.current._replace(lease_expires_at=NOW + timedelta(microseconds=1)),
        around.current._replace(beat_s=60.0),
    ):
        assert case_of(row, around._replace(current=current), NOW, may_judge) is None


def test_ids_that_look_like_something_else_are_filled_in_as_they_are() -> None:
    for name in ('a"b', "a\\b", "%s", "é", "\ue0000\ue001", "{0}", "it's"):
        gathered, shape = settled_scene(name)
        planned, expected = decided(gathered)
        template = template_of(planned.write(None, "me"), shape)
        assert template is not None
        assert gathered.around.current is not None
        assert expected == template.fill(gathered.row, gathered.around.current, shape, NOW, lambda: 0.5)


@pytest.mark.parametrize(
    ("ends", "counted"), [(data.FINISHED, "completed"), (data.UNRESOLVED, "requeued"), (data.ABORTED, "requeued")]
)
def test_a_pass_that_hears_of_each_writes_what_one_that_does_not_writes(
    engine: Engine, database_kind: str, database_url: str, ends: str, counted: str
) -> None:
    # The first way decides each by itself, the second by cases; both over the same work.
    scene = Scene(engine)
    heard: list[Any] = []
    dumps = []
    for prefix, hear in (("a", heard.append), ("b", None)):
        data.add_due(Database(database_kind, database_url), 60, prefix=prefix, ends=ends, payload_bytes=20)
        report = reconcile_once(
            engine, judge=Judge(connected_for_s=lambda: 1e9), decided_by="me", jitter=lambda: 0.0, on_decision=hear
        )
        assert 60 == {"requeued": report.requeued, **report.settled}[counted]
        dumps.append(rows_of(scene, f"{prefix}-"))
    assert 60 == len(heard)
    assert dumps[0] == dumps[1]


def rows_of(scene: Scene, prefix: str) -> list[dict[str, Any]]:
    """Return all that is stored of the sessions of a prefix, but when it was and by which pass."""
    found = []
    for name, rows in scene.dump().items():
        columns = metadata.tables[name].c.keys()
        for values in rows:
            row = dict(zip(columns, values, strict=True))
            if str(row["id"] if name == "sessions" else row.get("session_id")).startswith(prefix):
                kept = {
                    key: value
                    for key, value in row.items()
                    if not key.endswith(("_at", "not_before")) and key != "pass_id"
                }
                found.append({k: v.replace(prefix, "x-") if isinstance(v, str) else v for k, v in kept.items()})
    return found
