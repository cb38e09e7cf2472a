"""The gate's rows: what the database refuses by itself, which locks are taken, and which plans the hot reads have."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.core.refine import EditBudget, GateAnswer, RefineVerdict
from reconciler.errors import DatabaseUnavailable, EpochOpen, StoreConflict, StoreFault
from reconciler.store import refine as store
from reconciler.store import refine_gate
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.engine import begin, read, run_transaction
from reconciler.store.refine_gate import KeyedCandidate
from reconciler.store.schema import audit, refine_epochs, refine_steps, rejected_edits


def opened(
    engine: Engine, subject: str = "s", *, baseline: float = 0.5, most: int = 4, bound: int | None = None
) -> None:
    with begin(engine) as conn:
        store.open_epoch(conn, subject, baseline_score=baseline, budget=EditBudget(most, 0), buffer_max=bound)


def step(conn: Connection, edit_id: str, score: float, key: str | None = None) -> GateAnswer:
    candidate = KeyedCandidate(edit_id, score, key or f"made:{edit_id} {score}", asked=key is not None)
    (answer,) = refine_gate.gate(conn, "s", [candidate], epoch=None)
    return answer


# --- what the database refuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"used": 5},
        {"used": -1},
        {"best_score": 0.25},
        {"budget_floor": 5},
        {"steps": -1},
        {"rejected_count": -1},
        {"buffer_max": 0, "rejected_count": 1},
    ],
    ids=str,
)
def test_an_epoch_outside_its_budget_cannot_be_stored(engine: Engine, change: dict[str, Any]) -> None:
    opened(engine)
    with pytest.raises(StoreFault), begin(engine) as conn:
        conn.execute(sa.update(refine_epochs).values(**change))


def test_a_second_open_epoch_and_a_second_use_of_a_key_cannot_be_stored(engine: Engine) -> None:
    opened(engine)
    with begin(engine) as conn:
        step(conn, "e", 0.25, "k")
    with read(engine) as conn:
        epoch = dict(conn.execute(sa.select(refine_epochs)).one()._mapping)
        row = dict(conn.execute(sa.select(refine_steps)).one()._mapping)
    for table, twice in ((refine_epochs, epoch | {"epoch": 2}), (refine_steps, row | {"number": 2})):
        with pytest.raises(StoreFault), begin(engine) as conn:
            conn.execute(sa.insert(table).values(twice))


def test_a_negative_drop_cannot_be_stored(engine: Engine) -> None:
    with pytest.raises(StoreFault), begin(engine) as conn:
        now = db_now(conn)
        conn.execute(
            sa.insert(rejected_edits).values(
                subject="s", edit_id="e", worst_drop=-0.5, count=1, first_at=now, last_at=now
            )
        )


# --- guards --------------------------------------------------------------------------------------------------------


def test_a_row_that_changed_under_the_lock_refuses_the_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(engine)
    real = refine_gate._lock

    def stale(*given: Any) -> Any:
        found, facts = real(*given)
        assert found is not None
        found.steps += 1
        return found, facts

    monkeypatch.setattr(refine_gate, "_lock", stale)
    with pytest.raises(StoreConflict, match="changed under the lock"), begin(engine) as conn:
        step(conn, "e", 0.25)
    with read(engine) as conn:
        assert [] == conn.execute(sa.select(refine_steps)).all()


def test_epochs_that_turn_over_without_end_are_given_up_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(engine)
    monkeypatch.setattr(refine_gate, "LOCK_ROUNDS_MAX", 0)
    with begin(engine) as conn:
        for call in (
            lambda: step(conn, "e", 0.25),
            lambda: store.close_epoch(conn, "s", epoch=None),
            lambda: store.open_epoch(conn, "s", baseline_score=None, budget=EditBudget(), buffer_max=None),
        ):
            with pytest.raises(StoreConflict, match="faster than that"):
                call()


def test_an_act_of_forgiving_done_twice_gives_its_first_answer(engine: Engine) -> None:
    opened(engine)
    with begin(engine) as conn:
        step(conn, "e", 0.25)

    def forgive(conn: Connection) -> store.Forgiven:
        return store.forgive(conn, "s", ["e", "x"], audit_id="a1", operator="o", reason=None)

    first = run_transaction(engine, forgive)
    assert (("e",), ("x",)) == (first.edit_ids, first.not_rejected)
    assert first == run_transaction(engine, forgive)
    with read(engine) as conn:
        assert 1 == conn.execute(sa.select(sa.func.count()).select_from(audit)).scalar_one()


def test_trimming_drops_the_mildest_and_nothing_where_there_is_nothing(engine: Engine) -> None:
    def trim(conn: Connection, keep: int, at_most: int = 10) -> int:
        return store.trim(conn, "s", keep=keep, at_most=at_most, audit_id=f"a{keep}{at_most}", operator="o")

    with begin(engine) as conn:
        assert 0 == trim(conn, 0)
    opened(engine)
    with begin(engine) as conn:
        for name, score in (("a", 0.4), ("b", 0.1), ("c", 0.3)):
            step(conn, name, score)
        assert [0, 1] == [trim(conn, 3), trim(conn, 0, 1)]
        assert ["b", "c"] == [edit.edit_id for edit in store.rejections(conn, "s", after="", limit=9)]


# --- locks ---------------------------------------------------------------------------------------------------------


def test_a_step_waits_for_the_step_before_it_and_sees_what_it_did(engine: Engine, second_engine: Engine) -> None:
    opened(engine, most=9)
    answers: list[GateAnswer] = []
    started = threading.Event()

    def second() -> None:
        started.set()
        answers.append(run_transaction(second_engine, lambda conn: step(conn, "e", 0.9)))

    thread = threading.Thread(target=second, daemon=True)
    with begin(engine) as conn:
        step(conn, "e", 0.25)
        thread.start()
        assert started.wait(10)
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(30)
    assert [RefineVerdict.SKIPPED_REJECTED] == [answer.verdict for answer in answers]


def test_a_step_that_waited_while_the_epoch_was_closed_lands_in_the_next(engine: Engine, second_engine: Engine) -> None:
    opened(engine)
    answers: list[GateAnswer] = []
    thread = threading.Thread(
        target=lambda: answers.append(run_transaction(second_engine, lambda conn: step(conn, "e", 0.9))), daemon=True
    )
    with begin(engine) as conn:
        store.close_epoch(conn, "s", epoch=None)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        store.open_epoch(conn, "s", baseline_score=None, budget=EditBudget(4, 0), buffer_max=None)
    thread.join(30)
    assert [(2, RefineVerdict.ACCEPTED)] == [(answer.epoch, answer.verdict) for answer in answers]


def test_closing_that_waited_for_a_turnover_closes_the_newest(engine: Engine, second_engine: Engine) -> None:
    opened(engine)
    closed: list[int] = []
    thread = threading.Thread(
        target=lambda: closed.append(
            run_transaction(second_engine, lambda conn: store.close_epoch(conn, "s", epoch=None))[0].epoch
        ),
        daemon=True,
    )
    with begin(engine) as conn:
        store.close_epoch(conn, "s", epoch=None)
        thread.start()
        thread.join(0.3)
        store.open_epoch(conn, "s", baseline_score=None, budget=EditBudget(4, 0), buffer_max=None)
    thread.join(30)
    assert [2] == closed


def test_of_two_first_epochs_the_one_that_waited_is_told_of_the_other(engine: Engine, second_engine: Engine) -> None:
    errors: list[BaseException] = []

    def second() -> None:
        try:
            opened(second_engine)
        except EpochOpen as error:
            errors.append(error)

    thread = threading.Thread(target=second, daemon=True)
    with begin(engine) as conn:
        store.open_epoch(conn, "s", baseline_score=0.5, budget=EditBudget(), buffer_max=None)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(30)
    assert [EpochOpen] == [type(error) for error in errors]


def test_steps_of_other_subjects_do_not_wait_on_postgresql(postgresql_url: str, engine_factory: Any) -> None:
    engine, second_engine = engine_factory(postgresql_url), engine_factory(postgresql_url, lock_timeout_s=0.2)
    opened(engine)
    opened(engine, "other")
    with begin(engine) as conn:
        step(conn, "e", 0.25)
        with begin(second_engine) as other:
            (answer,) = refine_gate.gate(other, "other", [KeyedCandidate("e", 0.9, "k", asked=True)], epoch=None)
            assert RefineVerdict.ACCEPTED is answer.verdict
        with pytest.raises(DatabaseUnavailable), begin(second_engine) as same:
            step(same, "f", 0.25)


# --- plans ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Enough rows of many subjects that a plan without an index shows."""
    opened(engine, bound=None)
    with begin(engine) as conn:
        now = db_now(conn)
        conn.execute(
            sa.insert(rejected_edits),
            [
                {
                    "subject": f"s{number % 20}" if number % 2 else "s",
                    "edit_id": f"edit {number}",
                    "worst_drop": number / 4000,
                    "count": 1,
                    "first_at": now,
                    "last_at": now,
                }
                for number in range(4000)
            ],
        )
        conn.execute(
            sa.insert(refine_steps),
            [
                {
                    "subject": "s",
                    "epoch": 1,
                    "number": number + 1,
                    "step_key": f"key {number}",
                    "edit_id": f"edit {number}",
                    "candidate_score": 0.1,
                    "verdict": "skipped_rejected",
                    "best_score": 0.5,
                    "used": 0,
                    "stepped_at": now,
                }
                for number in range(2000)
            ],
        )
        conn.execute(
            sa.insert(refine_epochs),
            [
                {
                    "subject": f"t{number}",
                    "epoch": 1,
                    "baseline_score": 0.5,
                    "best_score": 0.5,
                    "budget_max": 4,
                    "budget_floor": 0,
                    "opened_at": now,
                }
                for number in range(1000)
            ],
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("ANALYZE")
    return engine


def plan(conn: Connection, statement: Any, parameters: dict[str, Any]) -> str:
    compiled = statement.compile(conn.engine, compile_kwargs={"render_postcompile": True})
    values = {name: parameters.get(name, value) for name, value in compiled.params.items()}
    if is_postgresql(conn):
        rows = conn.exec_driver_sql(f"EXPLAIN {compiled}", values).scalars()
        return "\n".join(str(row) for row in rows)
    ordered = tuple(values[name] for name in compiled.positiontup)
    return "\n".join(row[3] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", ordered))


def test_every_read_of_a_step_goes_by_an_index(filled: Engine) -> None:
    asked = {"p_subject": "s", "p_edit_id": "edit 7", "p_step_key": "key 7", "p_epoch": 1, "p_count": 1}
    # A locking read is not allowed in a transaction that only reads.
    with begin(filled) as conn:
        statements = {
            "open": refine_gate.OPEN,
            "named": refine_gate.NAMED,
            "newest": refine_gate.NEWEST,
            "facts": refine_gate.FACTS,
            "mildest": refine_gate.MILDEST,
            "rejection": store._REJECTION,
        }
        plans = {name: plan(conn, statement, asked) for name, statement in statements.items()}
    for name, text in plans.items():
        assert "Seq Scan" not in text, name
        scans = [line for line in text.splitlines() if line.startswith("SCAN") and "one" not in line]
        assert [] == [line for line in scans if "CONSTANT ROW" not in line], name
        assert "TEMP B-TREE" not in text, name
        assert "Sort" not in text, name
    assert "ix_rejected_edits_mildest" in plans["mildest"]


def test_a_look_up_in_a_large_buffer_reads_no_more_than_one_in_a_small_one(
    postgresql_url: str, engine_factory: Any
) -> None:
    engine = engine_factory(postgresql_url)
    touched: dict[int, int] = {}
    with begin(engine) as conn:
        for size in (1_000, 50_000):
            conn.exec_driver_sql(
                "INSERT INTO rejected_edits (subject, edit_id, worst_drop, count, first_at, last_at)"
                f" SELECT '{size}', 'edit ' || n, 0.5, 1, now(), now() FROM generate_series(1, {size}) n"
            )
        conn.exec_driver_sql("ANALYZE rejected_edits")
        for size in (1_000, 50_000):
            text = "\n".join(
                str(row)
                for row in conn.exec_driver_sql(
                    "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT 1 FROM rejected_edits"
                    f" WHERE subject = '{size}' AND edit_id = 'edit 500' AND forgiven_at IS NULL"
                ).scalars()
            )
            assert "Index" in text
            touched[size] = sum(int(word[4:]) for word in text.split() if word.startswith("hit="))
    # The tree may be one level deeper.
    assert touched[50_000] <= touched[1_000] + 1
