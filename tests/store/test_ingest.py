"""The transactions of an import: each guarded, each by itself harmless."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.core.model import SessionEntry
from reconciler.errors import SourceOwned, StoreConflict
from reconciler.store import ingest, ingest_reads, schema
from reconciler.store.engine import begin, read, run_transaction
from reconciler.store.ingest import ChangedRow, Finish, NewRow, Piece, SourceState
from reconciler.store.ingest_reads import StoredEntry, columns_of
from reconciler.store.ingest_submissions import NewSubmission

QUIET = datetime(2026, 11, 1, tzinfo=UTC)
SOURCE = SourceState("src", "pi", "3", "/x.jsonl", 10, 1, "digest", QUIET, "[]")


def new(seq: int, entry_id: str, parent: str | None = None, **more: Any) -> NewRow:
    columns = columns_of(SessionEntry(entry_id, parent, role="user", **more), True)
    return NewRow(seq, columns, f'"{entry_id}"', None)


def finish(leaf: str | None, *, submissions: Sequence[str] = (), **more: Any) -> Finish:
    values: dict[str, Any] = {"leaf_known_empty": False, "leaf_moved": False, "touched": {}, "withdrawn": ()}
    return Finish(
        leaf, submissions=[NewSubmission(name, "prompt", "digest") for name in submissions], **{**values, **more}
    )


def store(engine: Engine, piece: Piece, ending: Finish) -> ingest.Finished:
    return run_transaction(engine, partial(ingest.finish_import, piece=piece, source=SOURCE, finish=ending))


def one(engine: Engine, table: sa.Table) -> Any:
    with read(engine) as conn:
        return conn.execute(sa.select(table)).one()


@pytest.fixture
def imported(engine: Engine) -> int:
    """Store a session of one entry with its submission; give its version."""
    piece = Piece("s", None, added=[new(1, "u1", submission_id="u1")])
    return store(engine, piece, finish("u1", submissions=["u1"])).version


def test_a_piece_is_written_to_the_session_that_was_compared_only(engine: Engine, imported: int) -> None:
    for version in (None, imported - 1, imported + 1):
        with pytest.raises(StoreConflict, match="changed in between"):
            store(engine, Piece("s", version, added=[new(2, "a1", "u1")]), finish("a1"))
    assert ("u1", imported) == (one(engine, schema.sessions).leaf_entry_id, one(engine, schema.sessions).version)
    assert imported + 2 == store(engine, Piece("s", imported, added=[new(2, "a1", "u1")]), finish("a1")).version


def test_nothing_is_written_to_a_native_session(engine: Engine, imported: int) -> None:
    version, due = run_transaction(
        engine, partial(ingest.own_session, session_id="s", source_ids=["src"], version=imported)
    )
    assert (imported + 1, ["u1"]) == (version, due)
    calls: list[Callable[[Connection], object]] = [
        partial(ingest.begin_import, source=SOURCE, session_id="s", version=version),
        partial(ingest.write_piece, piece=Piece("s", version, added=[new(2, "a1", "u1")])),
        partial(ingest.finish_import, piece=Piece("s", version), source=SOURCE, finish=finish(None)),
        partial(ingest.own_session, session_id="s", source_ids=["src"], version=version),
    ]
    for call in calls:
        with pytest.raises(SourceOwned, match="is native here"):
            run_transaction(engine, call)
    assert one(engine, schema.sources).owned_at is not None


def test_an_import_under_way_puts_its_due_rows_off_and_leaves_their_revision(engine: Engine, imported: int) -> None:
    before = one(engine, schema.submissions)
    run_transaction(engine, partial(ingest.begin_import, source=SOURCE, session_id="s", version=imported))
    after = one(engine, schema.submissions)
    put_off = after.reconcile_at - before.reconcile_at
    assert (True, before.revision) == (
        timedelta(0) <= put_off - timedelta(seconds=ingest.IMPORT_WAIT_S) < timedelta(seconds=60),
        after.revision,
    )
    assert one(engine, schema.sources).importing_since is not None
    # What was read of the source before stays as it was.
    assert ("digest", 10) == (one(engine, schema.sources).content_digest, one(engine, schema.sources).bytes_read)


def test_what_a_source_rewrote_is_kept_in_order(engine: Engine, imported: int) -> None:
    version = imported
    for text in ("second", "third"):
        with read(engine) as conn:
            stored = ingest_reads.stored_entries(conn, "s", ["u1"])["u1"]
        row = ChangedRow(stored, stored.seq, stored.columns, f'"{text}"')
        version = store(engine, Piece("s", version, changed=[row]), finish("u1")).version
    with read(engine) as conn:
        kept = conn.execute(sa.select(schema.superseded_payloads).order_by("number")).all()
        assert {"u1": '"third"'} == ingest_reads.stored_payloads(conn, "s", ["u1"])
    assert [(1, '"u1"'), (2, '"second"')] == [(row.number, row.payload) for row in kept]
    assert "u1" == json.loads(kept[0].columns)["id"]


def test_another_place_alone_is_nothing_that_was_rewritten(engine: Engine, imported: int) -> None:
    with read(engine) as conn:
        stored = ingest_reads.stored_entries(conn, "s", ["u1"])["u1"]
    store(engine, Piece("s", imported, changed=[ChangedRow(stored, 7, stored.columns, None)]), finish("u1"))
    with read(engine) as conn:
        assert StoredEntry(7, stored.columns) == ingest_reads.stored_entries(conn, "s", ["u1"])["u1"]
        assert 0 == conn.execute(sa.select(sa.func.count()).select_from(schema.superseded_payloads)).scalar_one()
    assert 7 == one(engine, schema.sessions).last_seq


def test_a_held_row_stays_with_the_person_it_needs(engine: Engine, imported: int) -> None:
    with begin(engine) as conn:
        conn.execute(sa.update(schema.submissions).values(held_at=QUIET, held_reason="x", reconcile_at=None))
    store(engine, Piece("s", imported, added=[new(2, "a1", "u1")]), finish("a1", touched={"u1": ["a1"]}))
    assert one(engine, schema.submissions).reconcile_at is None


def test_an_import_that_changes_nothing_but_the_source_wakes_nobody(engine: Engine, imported: int) -> None:
    with begin(engine) as conn:
        conn.execute(sa.update(schema.submissions).values(reconcile_at=None))
    store(engine, Piece("s", imported), finish("u1"))
    assert (None, 1) == (one(engine, schema.submissions).reconcile_at, one(engine, schema.submissions).revision)


def test_every_column_of_an_entry_comes_back_as_it_went_in(engine: Engine) -> None:
    entry = SessionEntry(
        "e1",
        None,
        kind="message",
        role="assistant",
        submission_id="u\u00e9",
        stop_reason="error",
        tool_call_ids=("c1", "\u4e2d", 'q"'),
        tool_call_id="c9",
        content="reasoning",
        is_synthetic=True,
        is_sidechain=True,
        ends_turn=True,
        error_retryable=False,
        stopped_by="user",
        starts_logged=True,
    )
    for number, write_ahead in enumerate((True, False, None)):
        columns = columns_of(entry, write_ahead)
        written = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        store(engine, Piece(f"s{number}", None, added=[NewRow(1, columns, '"\\ud800"', written)]), finish("e1"))
        with read(engine) as conn:
            assert StoredEntry(1, columns) == ingest_reads.stored_entries(conn, f"s{number}", ["e1"])["e1"]
            created = sa.select(schema.entries.c.created_at).where(schema.entries.c.session_id == f"s{number}")
            assert written == conn.execute(created).scalar_one()
