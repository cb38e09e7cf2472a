"""The durable gate, call by call, on both databases."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

import reconciler
from reconciler.core.refine import EditBudget, EditCandidate, RefineStep, RefineVerdict, RejectedEditBuffer
from reconciler.errors import (
    ConfigurationInvalid,
    Conflict,
    DatabaseUnavailable,
    EpochClosed,
    EpochOpen,
    InvalidInput,
    LimitExceeded,
    NotFound,
    ReservedId,
    SchemaMismatch,
)
from reconciler.service import refine as service
from reconciler.service.refine import RefineGate
from reconciler.store.engine import run_transaction
from reconciler.store.schema import audit, metadata
from tests.support.checker import check

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "refine_gate.json"


@pytest.fixture
def gate(engine: Engine) -> RefineGate:
    return RefineGate.over(engine, operator="tester")


@pytest.fixture(autouse=True)
def _the_invariants_hold_after_each_test(request: pytest.FixtureRequest) -> Iterator[None]:
    url = request.getfixturevalue("database_url") if "database_url" in request.fixturenames else None
    yield
    if url is not None:
        assert [] == check(url)


def everything(engine: Engine) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with engine.connect() as conn:
        return {
            table.name: [tuple(row) for row in conn.execute(sa.select(table).order_by(*table.primary_key.columns))]
            for table in metadata.sorted_tables
        }


# --- the vectors ---------------------------------------------------------------------------------------------------


def test_every_vector_passes_through_the_durable_gate(gate: RefineGate) -> None:
    if not CASES.exists():
        pytest.skip(f"the shared cases are not there: {CASES.name}")
    for number, vector in enumerate(json.loads(CASES.read_text(encoding="utf-8"))["vectors"]):
        subject = f"vector {number}"
        gate.open(subject, baseline_score=vector["baseline_score"], budget=EditBudget(**vector["budget"]))
        for candidate in vector["candidates"]:
            gate.gate(subject, candidate["edit_id"], candidate["score"])
        outcome = gate.outcome(subject)
        expect = vector["expect"]
        assert expect["best_score"] == outcome.best_score
        assert [RefineStep(**step) for step in expect["steps"]] == list(outcome.steps)
        assert expect["rejected"] == dict(outcome.rejected.items())


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_each_verdict_tells_best_score_budget_and_whether_to_stop(gate: RefineGate) -> None:
    gate.open("s", baseline_score=0.5, budget=EditBudget(3, 2))
    answers = [
        gate.gate("s", "worse", 0.25),
        gate.gate("s", "worse", 0.9),
        gate.gate("s", "better", 0.75),
        gate.gate("s", "tie", 0.75),
        gate.gate("s", "late", 1.0),
    ]
    assert [
        (RefineVerdict.REJECTED, 0.5, 1, 2, False),
        (RefineVerdict.SKIPPED_REJECTED, 0.5, 1, 2, False),
        (RefineVerdict.ACCEPTED, 0.75, 2, 1, True),
        (RefineVerdict.REJECTED, 0.75, 3, 0, True),
        (RefineVerdict.BUDGET_EXHAUSTED, 0.75, 3, 0, True),
    ] == [
        (answer.verdict, answer.best_score, answer.used, answer.edits_left, answer.may_stop_early) for answer in answers
    ]
    assert [False, False, True, False, False] == [answer.accepted for answer in answers]
    assert RejectedEditBuffer([("worse", 0.25), ("tie", 0.0)]) == gate.outcome("s").rejected


def test_a_rejection_is_remembered_in_the_next_epoch_with_drop_count_and_times(gate: RefineGate) -> None:
    gate.open("s", baseline_score=0.5, budget=EditBudget(2, 0))
    gate.gate("s", "e", 0.25)
    gate.close("s")
    gate.open("s")
    assert RefineVerdict.SKIPPED_REJECTED is gate.gate("s", "e", 0.75).verdict
    edit = gate.rejection("s", "e")
    assert edit is not None
    assert (0.25, 1, None) == (edit.worst_drop, edit.count, edit.forgiven_at)
    assert edit.first_at == edit.last_at
    assert (edit,) == gate.rejected("s")
    assert None is gate.rejection("s", "other")


def test_subjects_share_neither_budget_nor_memory_nor_keys(gate: RefineGate) -> None:
    for subject in ("a", "b"):
        gate.open(subject, baseline_score=0.5, budget=EditBudget(1, 0))
        assert RefineVerdict.REJECTED is gate.gate(subject, "e", 0.25, step_key="k").verdict
    assert ["a", "b"] == [epoch.subject for epoch in gate.subjects()]
    assert ["b"] == [epoch.subject for epoch in gate.subjects(after="a", limit=1)]


def test_scores_at_the_edge_of_a_double_come_back_as_they_were(gate: RefineGate) -> None:
    largest = 1.7976931348623157e308
    gate.open("s", baseline_score=-largest, budget=EditBudget(4, 0))
    for edit_id, score in (("tiny", 5e-324), ("up", largest), ("down", -largest), ("third", 0.1 + 0.2)):
        gate.gate("s", edit_id, score)
    assert [5e-324, largest, -largest, 0.1 + 0.2] == [step.candidate_score for step in gate.history("s")]
    assert {"down": largest, "third": largest - (0.1 + 0.2)} == dict(gate.outcome("s").rejected.items())


# --- step keys -----------------------------------------------------------------------------------------------------


def test_a_repeated_key_gives_the_first_answer_and_spends_nothing(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5, budget=EditBudget(2, 1))
    first = {
        "reject": gate.gate("s", "bad", 0.25, step_key="reject"),
        "skip": gate.gate("s", "bad", 0.9, step_key="skip"),
        "accept": gate.gate("s", "good", 0.75, step_key="accept"),
        "late": gate.gate("s", "late", 0.9, step_key="late"),
    }
    gate.close("s")
    gate.open("s", budget=EditBudget(9, 0))
    gate.forgive("s", ["bad"])
    before = everything(engine)
    for answer in first.values():
        again = gate.gate("s", answer.edit_id, answer.score, step_key=answer.step_key)
        assert again.repeated
        assert (answer.verdict, 1, answer.best_score, answer.used, answer.budget, answer.number) == (
            again.verdict,
            again.epoch,
            again.best_score,
            again.used,
            again.budget,
            again.number,
        )
        # Also where it names the epoch that is closed, or where no epoch is open.
        assert again == gate.gate("s", answer.edit_id, answer.score, step_key=answer.step_key, epoch=1)
    assert before == everything(engine)
    gate.close("s")
    assert gate.gate("s", "good", 0.75, step_key="accept").repeated


def test_a_key_with_another_edit_or_score_is_a_conflict(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5)
    gate.gate("s", "e", 0.25, step_key="k")
    before = everything(engine)
    for edit_id, score in (("other", 0.25), ("e", 0.26)):
        with pytest.raises(Conflict, match='step key "k"'):
            gate.gate("s", edit_id, score, step_key="k")
    assert before == everything(engine)


def test_keys_of_the_gate_itself_are_reserved_and_not_shown(gate: RefineGate) -> None:
    gate.open("s", baseline_score=0.5)
    gate.gate("s", "a", 0.25)
    gate.gate("s", "b", 0.25, step_key="mine")
    assert [None, "mine"] == [step.step_key for step in gate.history("s")]
    with pytest.raises(ReservedId):
        gate.gate("s", "c", 0.25, step_key="made:up")


def test_a_lost_answer_is_asked_for_again_by_the_gate_itself(
    gate: RefineGate, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection dies after COMMIT: without a key of its own the retry would reject its own accepted edit."""
    gate.open("s", baseline_score=0.5)
    real = run_transaction
    calls: list[bool] = []

    def twice(engine: Engine, work: Any, **options: Any) -> Any:
        calls.append(options["idempotent"])
        real(engine, work, **options)
        return real(engine, work, **options)

    monkeypatch.setattr(service, "run_transaction", twice)
    answer = gate.gate("s", "e", 0.75)
    assert ([True], RefineVerdict.ACCEPTED, 1, True) == (calls, answer.verdict, answer.used, answer.repeated)
    assert None is answer.step_key
    forgiven_before = gate.gate("s", "f", 0.25)
    assert forgiven_before.used == 2
    assert ("f",) == gate.forgive("s", ["f"]).edit_ids


def test_what_costs_nothing_and_has_no_key_leaves_no_row(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5, budget=EditBudget(1, 0))
    gate.gate("s", "e", 0.25)
    before = everything(engine)
    assert RefineVerdict.BUDGET_EXHAUSTED is gate.gate("s", "e", 0.25).verdict
    assert before == everything(engine)
    gate.close("s")
    gate.open("s")
    before = everything(engine)
    answer = gate.gate("s", "e", 0.25)
    assert (RefineVerdict.SKIPPED_REJECTED, None) == (answer.verdict, answer.number)
    assert before == everything(engine)


# --- sequences -----------------------------------------------------------------------------------------------------


def test_a_sequence_is_gated_in_order_in_one_transaction(gate: RefineGate) -> None:
    gate.open("s", baseline_score=0.5, budget=EditBudget(2, 0))
    candidates = [EditCandidate("a", 0.25), EditCandidate("a", 0.9), EditCandidate("b", 0.75), EditCandidate("c", 1)]
    answers = gate.gate_many("s", candidates, step_keys=["1", None, "3", None])
    assert ["rejected", "skipped_rejected", "accepted", "budget_exhausted"] == [a.verdict.value for a in answers]
    assert ["1", None, "3", None] == [answer.step_key for answer in answers]
    assert 2 == gate.status("s").used


def test_a_sequence_with_a_fault_anywhere_records_nothing(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5)
    before = everything(engine)
    good = EditCandidate("a", 0.25)
    faults: list[tuple[type[Exception], Callable[[], object]]] = [
        (InvalidInput, lambda: gate.gate_many("s", [good, EditCandidate("", 0.5)])),
        (InvalidInput, lambda: gate.gate_many("s", [good, ("b", 0.5)])),  # type: ignore[list-item]
        (InvalidInput, lambda: gate.gate_many("s", [good], step_keys=["k", "l"])),
        (Conflict, lambda: gate.gate_many("s", [good, EditCandidate("b", 0.25)], step_keys=["k", "k"])),
        (LimitExceeded, lambda: gate.gate_many("s", [good] * 1001)),
    ]
    for kind, call in faults:
        with pytest.raises(kind):
            call()
        assert before == everything(engine)


def test_an_empty_sequence_is_nothing_to_do_but_its_subject_must_be_there(gate: RefineGate) -> None:
    with pytest.raises(NotFound):
        gate.gate_many("s", [])
    gate.open("s", baseline_score=0.5)
    assert () == gate.gate_many("s", [])


# --- epochs --------------------------------------------------------------------------------------------------------


def test_a_first_epoch_needs_a_baseline_and_the_next_begins_at_the_best_so_far(gate: RefineGate) -> None:
    with pytest.raises(InvalidInput, match="baseline"):
        gate.open("s")
    first = gate.open("s", baseline_score=0.5)
    assert (1, 0.5, 0.5, 0, True) == (first.epoch, first.baseline_score, first.best_score, first.used, first.is_open)
    gate.gate("s", "e", 0.75)
    gate.close("s")
    assert (2, 0.75) == (gate.open("s").epoch, gate.status("s").baseline_score)
    gate.close("s")
    # A baseline that was measured anew is taken, but it isn't the best so far of later epochs.
    assert 0.25 == gate.open("s", baseline_score=0.25).best_score
    gate.close("s")
    assert 0.75 == gate.open("s").baseline_score
    assert [1, 2, 3, 4] == [epoch.epoch for epoch in gate.epochs("s")]
    assert [3] == [epoch.epoch for epoch in gate.epochs("s", after=2, limit=1)]


def test_a_second_open_epoch_is_refused_and_names_the_first(gate: RefineGate) -> None:
    gate.open("s", baseline_score=0.5)
    with pytest.raises(EpochOpen, match='"s"') as caught:
        gate.open("s", baseline_score=0.5)
    assert {"subject": "s", "epoch": 1} == caught.value.detail


def test_a_closed_epoch_takes_no_step_and_closing_again_changes_nothing(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5)
    gate.gate("s", "e", 0.75)
    closed = gate.close("s")
    assert (False, 1, False) == (closed.already_closed, closed.epoch.epoch, closed.epoch.is_open)
    before = everything(engine)
    assert (True, closed.epoch) == (gate.close("s").already_closed, gate.close("s").epoch)
    with pytest.raises(EpochClosed, match="no open epoch"):
        gate.gate("s", "f", 0.9)
    assert before == everything(engine)
    gate.open("s")
    with pytest.raises(EpochClosed, match="closed its epoch 1"):
        gate.gate("s", "f", 0.9, epoch=1)
    assert (True, 1) == (gate.close("s", epoch=1).already_closed, gate.gate("s", "f", 0.9, epoch=2).used)


def test_an_unknown_subject_or_epoch_is_not_found(gate: RefineGate) -> None:
    calls: list[Callable[[], object]] = [
        lambda: gate.gate("s", "e", 0.5),
        lambda: gate.gate("s", "e", 0.5, epoch=7),
        lambda: gate.close("s"),
        lambda: gate.close("s", epoch=7),
        lambda: gate.status("s", epoch=7),
        lambda: gate.history("s"),
        lambda: gate.epochs("s"),
        lambda: gate.rejected("s"),
        lambda: gate.forgive("s", ["e"]),
        lambda: gate.outcome("s"),
    ]
    for call in calls:
        with pytest.raises(NotFound, match='"s"'):
            call()
    gate.open("s", baseline_score=0.5)
    for call in calls[1:2] + calls[3:5]:
        with pytest.raises(NotFound, match="no epoch 7"):
            call()


def test_history_pages_through_steps_of_all_epochs_or_of_one(gate: RefineGate) -> None:
    for _ in range(2):
        gate.open("s", baseline_score=0.5, budget=EditBudget(3, 0))
        for number in range(3):
            gate.gate("s", f"e{number}", 0.75, step_key=None)
        gate.close("s")
    whole = gate.history("s")
    assert [(1, 1), (1, 2), (1, 3)] == [(step.epoch, step.number) for step in gate.history("s", epoch=1)]
    assert whole[2:4] == gate.history("s", after=(1, 2), limit=2)
    assert () == gate.history("s", after=(whole[-1].epoch, whole[-1].number))
    assert whole[0].stepped_at.utcoffset() is not None


def test_an_epoch_reads_back_as_the_pure_outcome_page_by_page(
    gate: RefineGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PAGE_MAX", 2)
    gate.open("s", baseline_score=0.5, budget=EditBudget(5, 0))
    for number in range(5):
        gate.gate("s", f"e{number}", 0.25)
    outcome = gate.outcome("s", epoch=1)
    assert (5, 5) == (len(outcome.steps), outcome.rejected.size)


# --- retention -----------------------------------------------------------------------------------------------------


def test_a_bounded_buffer_keeps_the_worst_drops_and_counts_what_it_drops(gate: RefineGate) -> None:
    gate.open("s", baseline_score=1.0, budget=EditBudget(9, 0), buffer_max=2)
    evicted = [
        gate.gate("s", name, score).evicted_edit_id for name, score in zip("abcd", (0.5, 0.2, 0.9, 0.1), strict=True)
    ]
    assert [None, None, "c", "a"] == evicted
    assert {"b": 0.8, "d": 0.9} == dict(gate.outcome("s").rejected.items())
    status = gate.status("s")
    assert (2, 2, 2) == (status.rejected_count, status.buffer_max, status.evicted)
    assert [None, None, "c", "a"] == [step.evicted_edit_id for step in gate.history("s")]
    # What was dropped may be tried again: it costs again.
    assert RefineVerdict.REJECTED is gate.gate("s", "a", 0.5).verdict


def test_of_equal_drops_the_one_rejected_longest_ago_gives_way(gate: RefineGate) -> None:
    gate.open("s", baseline_score=1.0, budget=EditBudget(9, 0), buffer_max=2)
    assert [None, None, "z"] == [gate.gate("s", name, 0.5).evicted_edit_id for name in "zab"]


def test_a_new_bound_cuts_the_buffer_in_recorded_pieces_and_holds_until_lifted(
    gate: RefineGate, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_TRIM_PIECE", 2)
    gate.open("s", baseline_score=1.0, budget=EditBudget(9, 0))
    for number in range(6):
        gate.gate("s", f"e{number}", number / 10)
    gate.close("s")
    before = everything(engine)
    assert 1 == gate.open("s", buffer_max=1, dry_run=True).rejected_count
    assert before == everything(engine)
    opened = gate.open("s", buffer_max=1)
    assert (1, 1, 0) == (opened.rejected_count, opened.buffer_max, opened.evicted)
    assert ["e0"] == [edit.edit_id for edit in gate.rejected("s")]
    assert 5 == gate.status("s", epoch=1).evicted
    with engine.connect() as conn:
        rows = conn.execute(sa.select(audit.c.verb, audit.c.operator, audit.c.subject, audit.c.result)).all()
    assert {("refine evict", "tester", "s")} == {tuple(row)[:3] for row in rows}
    assert [["e1"], ["e2", "e3"], ["e4", "e5"]] == sorted(json.loads(row.result)["edit_ids"] for row in rows)
    gate.close("s")
    assert 1 == gate.open("s").buffer_max
    gate.close("s")
    assert None is gate.open("s", buffer_max=0).buffer_max


def test_a_forgiven_edit_may_be_tried_again_and_its_past_is_kept(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5, budget=EditBudget(9, 0))
    gate.gate("s", "e", 0.25)
    gate.gate("s", "f", 0.25)
    before = everything(engine)
    assert ("e",) == gate.forgive("s", ["e"], dry_run=True).edit_ids
    assert before == everything(engine)
    done = gate.forgive("s", ["e", "unknown", "e"], reason="measured anew")
    assert (("e",), ("unknown",)) == (done.edit_ids, done.not_rejected)
    assert 1 == gate.status("s").rejected_count
    assert ["f"] == [edit.edit_id for edit in gate.rejected("s")]
    assert ["e", "f"] == [edit.edit_id for edit in gate.rejected("s", with_forgiven=True)]
    with engine.connect() as conn:
        row = conn.execute(sa.select(audit)).one()
    assert ("tester", "refine forgive", "s", "measured anew") == (row.operator, row.verb, row.subject, row.reason)
    assert {"edit_ids": ["e", "unknown"]} == json.loads(row.parameters)
    assert {"edit_ids": ["e"]} == json.loads(row.result)
    assert () == gate.forgive("s", ["e"]).edit_ids
    # Rejected again: the worst drop of both times, counted twice.
    assert RefineVerdict.REJECTED is gate.gate("s", "e", 0.4).verdict
    edit = gate.rejection("s", "e")
    assert edit is not None
    assert (0.25, 2, None) == (edit.worst_drop, edit.count, edit.forgiven_at)
    assert edit.first_at < edit.last_at
    gate.forgive("s", ["e"])
    assert RefineVerdict.ACCEPTED is gate.gate("s", "e", 0.9).verdict


# --- dry runs ------------------------------------------------------------------------------------------------------


def test_a_dry_run_answers_like_the_real_one_and_writes_nothing(gate: RefineGate, engine: Engine) -> None:
    before = everything(engine)
    assert 1 == gate.open("s", baseline_score=0.5, dry_run=True).epoch
    assert before == everything(engine)
    gate.open("s", baseline_score=0.5)
    before = everything(engine)
    planned = gate.gate("s", "e", 0.25, step_key="k", dry_run=True)
    assert not gate.close("s", dry_run=True).already_closed
    assert before == everything(engine)
    assert planned == gate.gate("s", "e", 0.25, step_key="k")


# --- bad input -----------------------------------------------------------------------------------------------------

BAD_IDS = ["", "x" * 513, "é" * 257, "a\x00b", "line\nbreak", "\x7f", "\x85", "\ud800", 7, None, b"bytes"]
GOOD_IDS = ["x", "x" * 512, "é" * 256, "日本語 🎉", "made", "a/b:c#d'\"%s", "\u202eright to left", " "]


@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
def test_an_id_outside_the_rule_is_refused_and_spends_nothing(gate: RefineGate, engine: Engine, bad: Any) -> None:
    gate.open("s", baseline_score=0.5)
    before = everything(engine)
    calls: list[Callable[[], object]] = [
        lambda: gate.open(bad, baseline_score=0.5),
        lambda: gate.gate(bad, "e", 0.25),
        lambda: gate.gate("s", bad, 0.25),
        lambda: gate.close(bad),
        lambda: gate.forgive("s", [bad]),
    ]
    if bad is not None:
        calls.append(lambda: gate.gate("s", "e", 0.25, step_key=bad))
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert before == everything(engine)


@pytest.mark.parametrize("good", GOOD_IDS, ids=ascii)
def test_an_id_within_the_rule_goes_in_and_comes_back(gate: RefineGate, good: str) -> None:
    gate.open(good, baseline_score=0.5)
    answer = gate.gate(good, good, 0.25, step_key=good)
    assert (good, good, good) == (answer.subject, answer.edit_id, answer.step_key)
    assert answer.number == gate.gate(good, good, 0.25, step_key=good).number
    assert [good] == [step.step_key for step in gate.history(good)]
    assert (good,) == gate.forgive(good, [good]).edit_ids


@pytest.mark.parametrize(
    "score", [math.nan, math.inf, -math.inf, True, None, "0.5", 10**400], ids=lambda value: str(value)[:9]
)
def test_a_score_that_is_no_finite_number_is_refused_and_spends_nothing(
    gate: RefineGate, engine: Engine, score: Any
) -> None:
    gate.open("s", baseline_score=0.5)
    before = everything(engine)
    with pytest.raises(InvalidInput):
        gate.gate("s", "e", score)
    if score is not None:
        with pytest.raises(InvalidInput):
            gate.open("other", baseline_score=score)
    assert before == everything(engine)


def test_other_values_outside_the_rules_are_refused_and_spend_nothing(gate: RefineGate, engine: Engine) -> None:
    gate.open("s", baseline_score=0.5)
    before = everything(engine)
    calls: list[Callable[[], object]] = [
        lambda: gate.open("t", baseline_score=0.5, budget=EditBudget(1, 2)),
        lambda: gate.open("t", baseline_score=0.5, budget=(4, 2)),  # type: ignore[arg-type]
        lambda: gate.open("t", baseline_score=0.5, budget=EditBudget(2**31, 0)),
        lambda: gate.open("t", baseline_score=0.5, buffer_max=-1),
        lambda: gate.open("t", baseline_score=0.5, buffer_max=2**31),
        lambda: gate.open("t", baseline_score=0.5, buffer_max=True),
        lambda: gate.gate("s", "e", 0.25, epoch=0),
        lambda: gate.gate("s", "e", 0.25, epoch=2**63),
        lambda: gate.gate("s", "e", 0.25, epoch=1.0),  # type: ignore[arg-type]
        lambda: gate.forgive("s", []),
        lambda: gate.forgive("s", "e"),
        lambda: gate.forgive("s", ["e"] * 1001),
        lambda: gate.history("s", limit=0),
        lambda: gate.history("s", limit=10_001),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert before == everything(engine)


# --- the way in ----------------------------------------------------------------------------------------------------


def test_the_gate_is_a_public_name_and_goes_on_after_a_restart(database_url: str) -> None:
    with reconciler.RefineGate(database_url) as first:
        first.open("s", baseline_score=0.5, budget=EditBudget(2, 0))
        first.gate("s", "e", 0.25)
    with reconciler.RefineGate(database_url) as second:
        assert (1, 1, True) == (second.status("s").epoch, second.status("s").used, second.status("s").is_open)
        assert RefineVerdict.SKIPPED_REJECTED is second.gate("s", "e", 0.75).verdict


def test_an_sqlite_file_that_is_not_there_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite3"
    with RefineGate(f"sqlite:///{path}") as gate:
        assert 1 == gate.open("s", baseline_score=0.5).epoch
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_a_database_of_another_schema_is_refused(empty_database_url: str, tmp_path: Path) -> None:
    if empty_database_url.startswith("sqlite"):
        (tmp_path / "empty.sqlite3").touch()
    with pytest.raises(SchemaMismatch, match="needed"):
        RefineGate(empty_database_url)


def test_a_database_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable):
        RefineGate("postgresql://nobody@127.0.0.1:1/nowhere")


def test_an_operator_needs_a_name(engine: Engine) -> None:
    with pytest.raises(ConfigurationInvalid):
        RefineGate.over(engine, operator="")
