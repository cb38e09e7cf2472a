"""No act without its audit row: wherever an act of many transactions dies, what it wrote has its note beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.ops.asking import Desk
from reconciler.service.first_write import FirstWrite
from reconciler.store import operations as store_operations
from reconciler.store.engine import read, run_transaction
from reconciler.store.migrate import upgrade
from reconciler.store.schema import audit, metadata
from tests.ops.conftest import Front
from tests.ops.test_housekeeping import old
from tests.ops.test_operations import scene
from tests.support.session_files import Pi, write

__all__ = ["old", "scene"]


class Killed(BaseException):
    """The process dies here: whatever isn't committed is gone."""


def _notes(engine: Engine) -> list[Any]:
    with read(engine) as conn:
        return list(conn.execute(sa.select(audit.c.verb, audit.c.reason, audit.c.result).order_by(audit.c.at)))


def _acted(engine: Engine) -> dict[str, list[str]]:
    """Return all rows but the audit's."""
    with read(engine) as conn:
        return {
            table.name: sorted(repr(tuple(row)) for row in conn.execute(sa.select(table)))
            for table in metadata.sorted_tables
            if table is not audit
        }


def _dies_after(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """Let the process die right after so many of the act's transactions."""
    left = commits

    def killing(engine: Engine, work: Any, **options: Any) -> Any:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        return run_transaction(engine, work, **options)

    monkeypatch.setattr("reconciler.service.first_write.run_transaction", killing)


@pytest.mark.parametrize("commits", range(5))
def test_an_import_that_dies_has_left_its_note(
    front: Front, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr("reconciler.service.session_import.PIECE_ENTRIES", 1)
    path = write(tmp_path / "x.jsonl", Pi().user("u1").assistant("a1").user("u2").lines)
    before = _acted(engine)
    with monkeypatch.context() as patched:
        _dies_after(patched, commits)
        with pytest.raises(Killed):
            front.ask("import", files=[str(path)], own=True, force=True, reason="dead host")
    assert (before != _acted(engine)) == ([("import", "dead host", None)] == _notes(engine))
    front.get("import", files=[str(path)], own=True, force=True, reason="again")
    last = _notes(engine)[-1]
    assert ("again", 1) == (last.reason, len(json.loads(last.result)["owned"]))


@pytest.mark.parametrize("commits", range(4))
def test_a_prune_that_dies_has_left_its_note(
    front: Front, engine: Engine, old: Any, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr("reconciler.service.prune._PIECE_FIRST", 1)
    monkeypatch.setattr("reconciler.service.prune._PIECE_MOST", 1)
    before = _acted(engine)
    with monkeypatch.context() as patched:
        _dies_after(patched, commits)
        with pytest.raises(Killed):
            front.ask("prune", reason="room")
    assert (before != _acted(engine)) == ([("prune", "room", None)] == _notes(engine))
    left = front.get("prune", reason="again")["total"]
    notes = _notes(engine)
    assert (left > 0) == any(note.reason == "again" for note in notes)
    if left:
        assert {"removed": {"completed": left}} == json.loads(notes[-1].result)


def test_an_operation_is_resumed_and_cancelled_with_a_note_first(
    front: Front, engine: Engine, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> bool:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(store_operations, "finish_item", dies)
        with pytest.raises(Killed):
            front.ask("retry", status="queued", reason="x")
        (found,) = front.get("operations list")["operations"]
        with pytest.raises(Killed):
            front.ask("operations resume", operation=found["operation_id"])
    assert ["retry", "operations resume"] == [note.verb for note in _notes(engine)]

    before = _acted(engine)
    with monkeypatch.context() as patched:
        patched.setattr("reconciler.store.audit.write_audit", dies)
        with pytest.raises(Killed):
            front.ask("operations cancel", operation=found["operation_id"], reason="wrong")
    assert before == _acted(engine)
    front.get("operations cancel", operation=found["operation_id"], reason="wrong")
    assert ("operations cancel", "wrong", None) == _notes(engine)[-1]


def test_a_schema_is_made_with_its_note_or_not_at_all(
    empty_database_url: str, engine_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_factory(empty_database_url, create=True)

    def dies(*_: Any, **__: Any) -> None:
        raise Killed

    desk = Desk(make_engine=lambda **_: engine, name_database=lambda: "the database", operator="tess")
    with monkeypatch.context() as patched:
        patched.setattr("reconciler.store.audit.write_audit", dies)
        with pytest.raises(Killed):
            Front(desk).ask("db upgrade")
    assert None is Front(desk).get("db current")["schema"]["found"]
    Front(desk).get("db upgrade")
    assert [("db upgrade", None, None)] == _notes(engine)
    assert () == upgrade(engine).applied


def test_what_goes_with_the_first_write_goes_once_and_not_with_what_changes_nothing(engine: Engine) -> None:
    calls: list[str] = []

    def beside(_conn: Connection) -> None:
        calls.append("noted")

    first = FirstWrite(beside)
    for changed in (False, False, True, True, False):

        def work(_conn: Connection, changed: bool = changed) -> bool:
            return changed

        assert changed is first.run(engine, work, changed=bool)
        assert calls == (["noted"] if first.landed else [])
    assert first.landed


def test_a_transaction_that_fails_takes_its_note_with_it(engine: Engine) -> None:
    calls: list[str] = []
    first = FirstWrite(lambda _conn: calls.append("noted"))

    def fails(_conn: Connection) -> bool:
        raise Killed

    with pytest.raises(Killed):
        first.run(engine, fails)
    assert ([], False) == (calls, first.landed)
