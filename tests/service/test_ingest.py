"""`import` into both databases: what is new only, visible with the last piece, the same after any crash."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import (
    SourceConflict,
    SourceNotQuiet,
    SourceOwned,
    SourceUnreadable,
    StoreConflict,
    UnknownFormat,
)
from reconciler.service import first_write, inspect_files, session_import
from reconciler.service.ingest import IngestOptions, import_paths
from reconciler.service.reconcile import reconcile_once
from reconciler.service.spool import Spool
from reconciler.store import ingest as store_ingest
from reconciler.store import schema
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, read, run_transaction
from tests.support.checker import check, report
from tests.support.session_files import CLAUDE_SESSION, PI_SESSION, Claude, Pi, as_bytes, write

TIMES = {
    "created_at",
    "updated_at",
    "admitted_at",
    "reconcile_at",
    "decided_at",
    "superseded_at",
    "first_import_at",
} | {
    "last_import_at",
    "quiet_since",
    "leaf_moved_at",
    "abort_requested_at",
}


def dump(engine: Engine, *, times: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables, without what a clock wrote unless asked for."""
    found = {}
    with read(engine) as conn:
        for table in schema.metadata.sorted_tables:
            rows = [dict(row._mapping) for row in conn.execute(sa.select(table))]
            kept = [{k: v for k, v in row.items() if times or k not in TIMES} for row in rows]
            found[table.name] = sorted(kept, key=repr)
    return {name: rows for name, rows in found.items() if rows}


def rows(engine: Engine, table: sa.Table, *order: str) -> list[Any]:
    with read(engine) as conn:
        return list(conn.execute(sa.select(table).order_by(*order)))


def run(engine: Engine, path: Path | str, **options: Any) -> dict[str, Any]:
    return import_paths(engine, [str(path)], IngestOptions(**options))


def counts(payload: dict[str, Any]) -> tuple[int, int, int]:
    done = payload["imported"]
    return done["sessions"], done["entries"], done["submissions"]


def old(path: Path, seconds: float = 1000) -> Path:
    """Make a file look as if it had been written some time ago."""
    stamp = path.stat().st_mtime - seconds
    os.utime(path, (stamp, stamp))
    return path


def sound(engine: Engine) -> None:
    """The independent checker finds nothing wrong, and seq grows along every path."""
    url = engine.url.render_as_string(hide_password=False)
    violations = check(url)
    assert not violations, report(violations)
    entries = rows(engine, schema.entries)
    place = {(row.session_id, row.id): row.seq for row in entries}
    for row in entries:
        above = place.get((row.session_id, row.parent_id))
        assert above is None or above < row.seq


@pytest.fixture
def pi(tmp_path: Path) -> Path:
    lines = Pi().user("u1").assistant("a1").user("u2").assistant("a2", calls=["c1"], stop="toolUse").lines
    return write(tmp_path / "pi.jsonl", lines)


# --- the first import ------------------------------------------------------------------------------------------------


def test_an_import_stores_a_mirrored_session_with_its_pending_prompt(engine: Engine, pi: Path) -> None:
    payload = run(engine, pi)
    assert (1, 4, 1) == counts(payload)
    (session,) = rows(engine, schema.sessions)
    assert (PI_SESSION, "mirrored", "a2", 4, 5) == (
        session.id,
        session.origin,
        session.leaf_entry_id,
        session.last_seq,
        session.version,
    )
    assert [("u1", None, "user", "u1"), ("a1", "u1", "assistant", "u1"), ("u2", "a1", "user", "u2")] == [
        (row.id, row.parent_id, row.role, row.submission_id) for row in rows(engine, schema.entries, "seq")[:3]
    ]
    assert all(row.write_ahead is True for row in rows(engine, schema.entries))
    (submission,) = rows(engine, schema.submissions)
    # Due, and not claimable: an import is no standing decision.
    assert ("u2", "queued", None, None) == (
        submission.id,
        submission.status,
        submission.not_before,
        submission.decision_action,
    )
    assert submission.reconcile_at is not None
    assert ["import"] == [row.action for row in rows(engine, schema.decisions)]
    sound(engine)


def test_the_payload_of_import_is_that_of_inspect_and_the_counts(engine: Engine, pi: Path) -> None:
    payload = run(engine, pi)
    (file,) = payload["files"]
    assert ["tool_calls_unresolved"] == [s["detail"] for s in file["submissions"]]
    assert {"sessions": 1, "entries": 4, "submissions": 1} == {
        key: payload["imported"][key] for key in ("sessions", "entries", "submissions")
    }


def test_payloads_are_the_lines_themselves_as_canonical_json(engine: Engine, tmp_path: Path) -> None:
    claude = Claude().user("u1", "caf\u00e9 \ud800 \x00").thinking("a1", "m1").call("a2", "m1", "c1")
    run(engine, write(tmp_path / "x.jsonl", claude.lines))
    payloads = {row.entry_id: row.payload for row in rows(engine, schema.entry_payloads)}
    assert {"u1", "a1"} == set(payloads)
    assert claude.lines[0] == json.loads(payloads["u1"])
    assert claude.lines[1:] == json.loads(payloads["a1"])
    assert payloads["u1"].isascii()
    assert json.dumps(json.loads(payloads["u1"]), sort_keys=True, separators=(",", ":")) == payloads["u1"]


def test_all_prompts_gives_every_prompt_a_row_in_order(engine: Engine, pi: Path) -> None:
    assert (1, 4, 2) == counts(run(engine, pi, all_prompts=True))
    assert ["u1", "u2"] == [row.id for row in rows(engine, schema.submissions, "ticket")]
    sound(engine)


def test_a_prompt_that_was_never_applied_keeps_its_payload(engine: Engine, tmp_path: Path) -> None:
    claude = Claude().user("u1").text("a1", "m1")
    claude.outside("queue-operation", operation="enqueue", timestamp="t", content="later")
    assert (1, 2, 2) == counts(run(engine, write(tmp_path / "x.jsonl", claude.lines)))
    queued = rows(engine, schema.submissions, "ticket")[-1].id
    assert '{"content":"later"}' == next(
        row.payload for row in rows(engine, schema.entry_payloads) if row.entry_id == f"submission-input:{queued}"
    )


def test_a_pass_works_off_what_was_imported(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "done.jsonl", Pi(session_id="s1").user("u1").assistant("a1").lines)
    write(tmp_path / "open.jsonl", Pi(session_id="s2").user("u1").assistant("a1", calls=["c"], stop="toolUse").lines)
    for name in ("done", "open"):
        old(tmp_path / f"{name}.jsonl")
    import_paths(engine, [str(tmp_path)])
    reconcile_once(engine)
    assert [("s1", "settled", "completed"), ("s2", "queued", None)] == [
        (row.session_id, row.status, row.outcome) for row in rows(engine, schema.submissions, "session_id")
    ]
    assert "advise" == rows(engine, schema.submissions, "session_id")[1].decision_action
    before = dump(engine, times=True)
    assert (0, 0, 0) == counts(import_paths(engine, [str(tmp_path)]))
    reconcile_once(engine)
    assert before == dump(engine, times=True)
    sound(engine)


# --- again -----------------------------------------------------------------------------------------------------------


def test_the_same_file_twice_writes_nothing(engine: Engine, pi: Path) -> None:
    run(engine, pi)
    before = dump(engine, times=True)
    payload = run(engine, pi)
    assert ((0, 0, 0), "same") == (counts(payload), payload["files"][0]["imported"]["unchanged"])
    assert before == dump(engine, times=True)


def test_all_prompts_afterwards_adds_the_rows_alone(engine: Engine, pi: Path) -> None:
    run(engine, pi)
    entries = dump(engine)["entries"]
    assert (1, 0, 1) == counts(run(engine, pi, all_prompts=True))
    assert entries == dump(engine)["entries"]
    assert (0, 0, 0) == counts(run(engine, pi, all_prompts=True))


def test_a_file_that_has_grown_adds_what_is_new(engine: Engine, pi: Path) -> None:
    run(engine, pi)
    before = rows(engine, schema.entries, "seq")
    with pi.open("ab") as file:
        file.write(as_bytes(Pi().result("r1", "c1", parent="a2").assistant("a3").user("u3").lines[1:]))
    assert (1, 3, 1) == counts(run(engine, pi))
    assert before == rows(engine, schema.entries, "seq")[:4]
    (session,) = rows(engine, schema.sessions)
    assert ("u3", 9, 0) == (session.leaf_entry_id, session.version, session.leaf_moved_version)
    assert ["u2", "u3"] == [row.id for row in rows(engine, schema.submissions, "ticket")]
    assert "superseded_payloads" not in dump(engine)
    sound(engine)


def test_a_torn_line_comes_with_the_import_after_it_was_finished(engine: Engine, pi: Path) -> None:
    line = as_bytes(Pi().result("r1", "c1", parent="a2").lines[1:])
    with pi.open("ab") as file:
        file.write(line[:40])
    assert ["torn_line"] == [problem["code"] for problem in run(engine, pi)["files"][0]["problems"]]
    with pi.open("ab") as file:
        file.write(line[40:])
    assert (1, 1, 0) == counts(run(engine, pi))
    # What stood before the torn line is known to be write-ahead again.
    assert [True] * 5 == [row.write_ahead for row in rows(engine, schema.entries)]
    sound(engine)


def test_a_message_that_got_further_lines_is_rewritten_and_the_old_one_kept(engine: Engine, tmp_path: Path) -> None:
    claude = Claude().user("u1").call("a1", "m1", "c1")
    path = write(tmp_path / "x.jsonl", claude.lines)
    run(engine, path)
    old_payload = next(row.payload for row in rows(engine, schema.entry_payloads) if row.entry_id == "a1")
    write(path, claude.result("r1", "c1").call("a2", "m1", "c2").lines)
    done = run(engine, path)["imported"]
    assert (1, 1) == (done["entries"], done["entries_rewritten"])
    assert '["c1","c2"]' == next(row.tool_call_ids for row in rows(engine, schema.entries) if row.id == "a1")
    (kept,) = rows(engine, schema.superseded_payloads)
    assert ("a1", 1, old_payload, '["c1"]') == (
        kept.entry_id,
        kept.number,
        kept.payload,
        json.loads(kept.columns)["tool_call_ids"],
    )
    sound(engine)


def test_a_payload_that_was_rewritten_in_place_is_superseded(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", Pi().user("u1", "one").assistant("a1").lines)
    run(engine, path)
    version = rows(engine, schema.sessions)[0].version
    write(path, Pi().user("u1", "two").assistant("a1").lines)
    assert 1 == run(engine, path)["imported"]["entries_rewritten"]
    assert version < rows(engine, schema.sessions)[0].version
    assert "one" in rows(engine, schema.superseded_payloads)[0].payload


def test_entries_that_the_source_dropped_go_and_are_kept_aside(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", Pi(version=None).user("x").assistant("x", calls=["c"], stop="toolUse").lines)
    run(engine, path)
    # The program writes version 3 in place: every id is another one.
    write(path, Pi().user("u1").assistant("a1", calls=["c"], stop="toolUse").lines)
    done = run(engine, path)["imported"]
    assert (2, 2, 1) == (done["entries"], done["entries_removed"], done["submissions"])
    assert ["u1", "a1"] == [row.id for row in rows(engine, schema.entries, "seq")]
    assert {"line:2", "line:3"} == {row.entry_id for row in rows(engine, schema.superseded_payloads)}
    gone, new = rows(engine, schema.submissions, "ticket")
    assert ("line:2", True, "u1", False) == (
        gone.id,
        gone.abort_requested_at is not None,
        new.id,
        new.abort_requested_at is not None,
    )
    old(path)
    reconcile_once(engine)
    assert ["aborted", None] == [row.outcome for row in rows(engine, schema.submissions, "ticket")]
    sound(engine)


def test_places_grow_along_paths_also_where_a_parent_comes_late(engine: Engine, tmp_path: Path) -> None:
    lines = Pi().user("u1").assistant("a1", calls=["c"], stop="toolUse").result("r1", "c").lines
    path = write(tmp_path / "x.jsonl", [lines[0], lines[1], lines[3]])
    run(engine, path)
    write(path, [lines[0], lines[1], lines[3], lines[2]])
    run(engine, path)
    assert ["u1", "a1", "r1"] == [row.id for row in rows(engine, schema.entries, "seq")]
    sound(engine)


def test_a_leaf_that_the_source_moved_is_told_from_an_append(engine: Engine, tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1").user("u2").assistant("a2")
    path = write(tmp_path / "x.jsonl", pi.lines)
    run(engine, path)
    write(path, pi.add("l1", "leaf", targetId="a1").lines)
    run(engine, path)
    (session,) = rows(engine, schema.sessions)
    assert ("a1", True, session.version) == (
        session.leaf_entry_id,
        session.leaf_moved_at is not None,
        session.leaf_moved_version,
    )


def test_a_prompt_that_was_delivered_from_the_queue_is_pending_no_longer(engine: Engine, tmp_path: Path) -> None:
    claude = Claude().user("u1").text("a1", "m1")
    claude.outside("queue-operation", operation="enqueue", timestamp="t", content="later")
    path = old(write(tmp_path / "x.jsonl", claude.lines))
    run(engine, path)
    claude.outside("queue-operation", operation="dequeue").user("u2", "later").text("a2", "m2")
    run(engine, old(write(path, claude.lines)))
    reconcile_once(engine)
    assert [("u1", "completed"), ("u2", "completed")] == [
        (row.id, row.outcome) for row in rows(engine, schema.submissions, "ticket") if not row.id.startswith("queued:")
    ]
    (queued,) = [row for row in rows(engine, schema.submissions) if row.id.startswith("queued:")]
    assert ("aborted", True) == (
        queued.outcome,
        queued.abort_reason.startswith("its source holds the prompt no longer"),
    )
    sound(engine)


# --- settled and pruned ----------------------------------------------------------------------------------------------


def test_evidence_after_a_settlement_is_noted_and_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1")
    path = old(write(tmp_path / "x.jsonl", pi.lines))
    run(engine, path)
    reconcile_once(engine)
    pi.message("x1", {"role": "toolResult", "toolCallId": "c9", "content": []}).assistant("a2", calls=["c9"])
    payload = run(engine, old(write(path, pi.lines)))
    assert ["u1"] == payload["imported"]["late_evidence"]
    reconcile_once(engine)
    (row,) = rows(engine, schema.submissions)
    assert ("settled", "completed", ["x1", "a2"]) == (
        row.status,
        row.outcome,
        json.loads(row.late_evidence)["entry_ids"],
    )
    sound(engine)


def test_what_a_program_notes_after_a_settlement_is_no_evidence(engine: Engine, tmp_path: Path) -> None:
    claude = Claude().user("u1").text("a1", "m1")
    path = old(write(tmp_path / "x.jsonl", claude.lines))
    run(engine, path)
    reconcile_once(engine)
    claude.add("t1", "system", subtype="turn_duration")
    assert [] == run(engine, write(path, claude.lines))["imported"]["late_evidence"]


def test_a_settlement_entry_of_ours_outlives_a_rewritten_source(engine: Engine, tmp_path: Path) -> None:
    path = old(write(tmp_path / "x.jsonl", Pi(version=None).user("x").assistant("x").lines))
    run(engine, path)
    reconcile_once(engine)
    run(engine, write(path, Pi().user("u1").assistant("a1").lines))
    settlement = next(row for row in rows(engine, schema.entries) if row.kind == "submission_settled")
    assert ("line:2", "a1") == (settlement.submission_id, settlement.parent_id)
    assert ["settled", "queued"] == [row.status for row in rows(engine, schema.submissions, "ticket")]
    sound(engine)


def test_a_pruned_submission_is_not_admitted_again(engine: Engine, pi: Path) -> None:
    with begin(engine) as conn:
        conn.execute(
            sa.insert(schema.settled_ids),
            {
                "session_id": PI_SESSION,
                "submission_id": "u2",
                "outcome": "completed",
                "content_digest": "x",
                "ticket": 1,
                "claims": 0,
                "settled_at": _now(conn),
                "pruned_at": _now(conn),
            },
        )
    assert (1, 4, 0) == counts(run(engine, pi))
    assert (0, 0, 0) == counts(run(engine, pi))


def _now(conn: Connection) -> Any:
    return db_now(conn)


# --- two sources -----------------------------------------------------------------------------------------------------


def test_two_files_that_claim_one_session_with_other_content_are_a_conflict(engine: Engine, tmp_path: Path) -> None:
    run(engine, write(tmp_path / "one.jsonl", Pi().user("u1", "this").assistant("a1").lines))
    before = dump(engine, times=True)
    with pytest.raises(SourceConflict, match="another file holds session"):
        run(engine, write(tmp_path / "two.jsonl", Pi().user("u1", "that").assistant("a1").lines))
    with pytest.raises(SourceConflict):
        run(engine, write(tmp_path / "two.jsonl", Pi().user("u1", "this").assistant("b1").lines))
    assert before == dump(engine, times=True)


def test_a_copy_and_an_older_copy_change_nothing(engine: Engine, tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1")
    older = write(tmp_path / "older.jsonl", pi.lines)
    run(engine, write(tmp_path / "one.jsonl", pi.user("u2").lines))
    before = dump(engine, times=True)
    copy = run(engine, write(tmp_path / "copy.jsonl", pi.lines))
    assert ["same", "older_copy"] == [
        payload["files"][0]["imported"]["unchanged"] for payload in (copy, run(engine, older))
    ]
    assert before == dump(engine, times=True)
    with pytest.raises(SourceConflict, match="knows more"):
        run(engine, old(older), own=True)


def test_a_file_that_moved_and_grew_goes_on(engine: Engine, tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1")
    run(engine, write(tmp_path / "here.jsonl", pi.lines))
    (tmp_path / "here.jsonl").unlink()
    assert (1, 1, 1) == counts(run(engine, write(tmp_path / "there.jsonl", pi.user("u2").lines)))
    assert [str(tmp_path / "there.jsonl")] == [
        row.locator for row in rows(engine, schema.sources) if row.id == rows(engine, schema.sessions)[0].source_id
    ]
    sound(engine)


def test_one_conflict_among_many_files_stops_nothing(engine: Engine, tmp_path: Path) -> None:
    run(engine, write(tmp_path / "a.jsonl", Pi().user("u1", "this").lines))
    write(tmp_path / "b.jsonl", Pi().user("u1", "that").lines)
    write(tmp_path / "c.jsonl", Pi(session_id="other").user("u1").lines)
    payload = import_paths(engine, [str(tmp_path)])
    assert ([[], ["source_conflict"], []], 1, (1, 1, 1)) == (
        [[problem["code"] for problem in file["problems"]] for file in payload["files"]],
        payload["failed"],
        counts(payload),
    )


def test_a_pipe_is_a_source_of_its_content(engine: Engine, pi: Path) -> None:
    data = pi.read_bytes()
    assert (1, 4, 1) == counts(import_paths(engine, ["-"], stdin=BytesIO(data)))
    assert (0, 0, 0) == counts(import_paths(engine, ["-"], stdin=BytesIO(data)))
    grown = data + as_bytes(Pi().result("r1", "c1", parent="a2").lines[1:])
    assert (1, 1, 0) == counts(import_paths(engine, ["-"], stdin=BytesIO(grown)))


# --- owning ----------------------------------------------------------------------------------------------------------


def test_owning_needs_a_quiet_source(engine: Engine, pi: Path) -> None:
    with pytest.raises(SourceNotQuiet, match="less than 120 s"):
        run(engine, pi, own=True)
    assert {} == dump(engine)
    assert [PI_SESSION] == run(engine, pi, own=True, force=True)["imported"]["owned"]


def test_owning_makes_the_session_native_and_its_rows_due(engine: Engine, pi: Path) -> None:
    run(engine, old(pi))
    reconcile_once(engine)
    before = (rows(engine, schema.sessions)[0].version, rows(engine, schema.submissions)[0].revision)
    assert rows(engine, schema.submissions)[0].reconcile_at is None
    run(engine, pi, own=True)
    (session,) = rows(engine, schema.sessions)
    (row,) = rows(engine, schema.submissions)
    assert ("native", before[0] + 1, before[1] + 1, True, None) == (
        session.origin,
        session.version,
        row.revision,
        row.reconcile_at is not None,
        row.not_before,
    )
    report_of_pass = reconcile_once(engine)
    assert 1 == report_of_pass.requeued
    assert rows(engine, schema.submissions)[0].not_before is not None
    sound(engine)


def test_a_session_in_two_files_of_one_call_is_owned_as_the_longer_one_has_it(engine: Engine, tmp_path: Path) -> None:
    # Found by a folder with a backup in it: the shorter file came first by name, and answered work was queued again.
    whole = Pi().user("u1").assistant("a1").lines
    write(tmp_path / "a-backup.jsonl", whole[:-1])
    write(tmp_path / "session.jsonl", whole)
    for dry_run in (True, False):
        payload = run(engine, tmp_path, own=True, force=True, dry_run=dry_run)
        assert (0, [PI_SESSION]) == (payload["failed"], payload["imported"]["owned"])
    assert {True} == {row.owned_at is not None for row in rows(engine, schema.sources)}
    reconcile_once(engine)
    (row,) = rows(engine, schema.submissions)
    assert "completed" == row.outcome


def test_a_session_that_two_files_of_one_call_contradict_is_not_owned(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", Pi().user("u1").assistant("a1").lines)
    write(tmp_path / "b.jsonl", Pi().user("u1").assistant("a2").lines)
    payload = run(engine, tmp_path, own=True, force=True)
    assert (2, []) == (payload["failed"], payload["imported"]["owned"])
    assert ["mirrored"] == [row.origin for row in rows(engine, schema.sessions)]


def test_an_owned_source_is_never_imported_again_and_to_ask_for_it_twice_is_no_error(
    engine: Engine, tmp_path: Path, pi: Path
) -> None:
    first = run(engine, pi, own=True, force=True)
    assert [PI_SESSION] == first["imported"]["owned"]
    before = dump(engine, times=True)
    copy = write(tmp_path / "copy.jsonl", [pi.read_bytes()])
    # Not forced: what is owned already has no quiet to wait for.
    for path, options in ((pi, {"own": True}), (pi, {}), (pi, {"all_prompts": True}), (copy, {}), (tmp_path, {})):
        payload = run(engine, path, **options)
        assert {"owned"} == {file["imported"]["unchanged"] for file in payload["files"]}
        assert (0, []) == (payload["failed"], payload["imported"]["owned"])
        assert (0, 0, 0) == counts(payload)
    assert before == dump(engine, times=True)


def test_a_file_that_its_program_goes_on_writing_after_it_was_owned_is_a_conflict(
    engine: Engine, tmp_path: Path, pi: Path
) -> None:
    run(engine, pi, own=True, force=True)
    before = dump(engine, times=True)
    grown = [pi.read_bytes(), Pi().user("late", parent="a2").lines[-1]]
    copy = write(tmp_path / "copy.jsonl", grown)
    write(pi, grown)
    for own in (True, False):
        with pytest.raises(SourceOwned, match=r"is native here since .*, and it has changed since then") as told:
            run(engine, pi, own=own, force=True)
        assert "stop the program" in str(told.value.hint)
    with pytest.raises(SourceOwned, match=r"is native here, and the file says what its record does not \(1 entries"):
        run(engine, copy)
    assert before == dump(engine, times=True)


def _shapes(tmp_path: Path) -> dict[str, Path]:
    """Folders in which files share sessions, in every way that was met."""
    whole = Pi().user("u1").assistant("a1").user("u2").lines
    other = Pi().user("u1").assistant("a2").lines
    shapes: dict[str, dict[str, list[object]]] = {
        "a copy": {"a": whole, "b": whole},
        "a backup before": {"a": whole[:-1], "b": whole},
        "a backup behind": {"a": whole, "b": whole[:-1]},
        "a contradiction": {"a": Pi().user("u1").assistant("a1").lines, "b": other},
        "two sessions": {"a": whole, "b": Claude().user("x").lines},
        "one that cannot be read": {"a": whole, "b": [b"no session"]},
    }
    found = {}
    for name, files in shapes.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        for file, lines in files.items():
            write(folder / f"{file}.jsonl", lines)
        found[name] = folder
    return found


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        "a copy",
        "a backup before",
        "a backup behind",
        "a contradiction",
        "two sessions",
        "one that cannot be read",
    ],
)
def test_a_dry_run_counts_what_the_import_does(engine: Engine, tmp_path: Path, shape: str, own: bool) -> None:
    folder = _shapes(tmp_path)[shape]
    for _ in range(2):
        # The second round: against what is stored.
        tried = run(engine, folder, own=own, force=True, dry_run=True)
        done = run(engine, folder, own=own, force=True)
        assert {**done, "dry_run": True} == tried
    assert len({row.id for row in rows(engine, schema.sessions)}) == (2 if shape == "two sessions" else 1)


def test_sessions_are_counted_once_however_many_files_hold_them(engine: Engine, tmp_path: Path) -> None:
    payload = run(engine, _shapes(tmp_path)["a backup before"])
    assert (1, 2, 0) == tuple(payload["imported"][name] for name in ("sessions", "files", "files_unchanged"))
    again = run(engine, tmp_path / "a-backup-before")
    assert (0, 0, 2) == tuple(again["imported"][name] for name in ("sessions", "files", "files_unchanged"))


def test_payloads_are_given_in_any_order_beside_what_comes_in() -> None:
    choice = random.Random(1)
    texts = {line: json.dumps("x" * choice.choice((1, 50, 3_000, 300_000))) for line in range(1, 200)}
    with Spool() as spool:
        for line, text in texts.items():
            spool.payload(line, text)
            asked = choice.sample(range(1, line + 1), min(line, 3))
            assert [texts[at] for at in asked] == [spool.text((at,)) for at in asked]
        assert [texts[at] for at in sorted(texts)] == [spool.text((at,)) for at in sorted(texts)]
        assert f"[{texts[7]},{texts[3]}]" == spool.text((7, 3))
        assert [len(texts[at]) for at in texts] == [spool.size((at,)) for at in texts]
        spool.restart()
        spool.payload(1, '"another"')
        assert '"another"' == spool.text((1,))


def test_a_path_that_cannot_be_stored_is_told(engine: Engine, tmp_path: Path) -> None:
    path = write(tmp_path / "\udcff.jsonl", Pi().user("u1").lines)
    with pytest.raises(SourceUnreadable, match="its path is no UTF-8") as told:
        run(engine, path)
    assert "-" in str(told.value.hint)
    assert {} == dump(engine)


def test_a_folder_for_temporary_files_without_room_is_told(engine: Engine, pi: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Spool() as spool:
        spool.payload(1, '"a payload"')
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            with pytest.raises(SourceUnreadable, match="could not keep aside what was read, in") as told:
                spool.text([1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TMPDIR" in str(told.value.hint)


def test_a_dry_run_tells_of_evidence_that_comes_too_late(engine: Engine, tmp_path: Path) -> None:
    session = Pi().user("u1").assistant("a1")
    path = write(tmp_path / "x.jsonl", session.lines)
    run(engine, path)
    reconcile_once(engine)
    write(path, session.assistant("a2").lines)
    tried = run(engine, path, dry_run=True)
    assert ["u1"] == tried["imported"]["late_evidence"]
    assert {**run(engine, path), "dry_run": True} == tried


def test_a_dry_run_counts_and_writes_nothing(engine: Engine, pi: Path) -> None:
    payload = run(engine, pi, dry_run=True, own=True, force=True)
    assert ((1, 4, 1), [PI_SESSION], True) == (counts(payload), payload["imported"]["owned"], payload["dry_run"])
    assert {} == dump(engine)


# --- pieces and crashes ----------------------------------------------------------------------------------------------


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_import, "PIECE_ENTRIES", 2)


class Crash(BaseException):
    """The process is gone."""


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], list[int]]]:
    """Give a switch: let the process die instead of beginning transaction *n* of an import (None: never)."""
    real = run_transaction

    def limit(most: int | None) -> list[int]:
        begun: list[int] = []

        def counted(engine: Engine, work: Callable[[Connection], Any]) -> Any:
            if most is not None and len(begun) >= most:
                raise Crash
            begun.append(1)
            return real(engine, work)

        monkeypatch.setattr(first_write, "run_transaction", counted)
        return begun

    yield limit
    monkeypatch.setattr(first_write, "run_transaction", real)


def _story(path: Path, step: int) -> Path:
    """Write a transcript as it stood at a moment: it grows, messages get further lines, and a branch is left."""
    claude = Claude().user("u1").call("a1", "m1", "c1").call("a2", "m1", "c2").result("r1", "c1", parent="a1")
    if step >= 1:
        claude.result("r2", "c2", parent="a2").call("a3", "m1", "c3", parent="r2").text("b1", "m2").user("u2")
        claude.thinking("d1", "m3").text("d2", "m3").user("u3", parent="b1")
    return write(path, claude.lines)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("step", [0, 1])
def test_a_crash_between_any_two_transactions_is_mended_by_importing_again(
    database_factory: Callable[[], str],
    engine_factory: Callable[..., Engine],
    transactions: Callable[[int | None], list[int]],
    tmp_path: Path,
    step: int,
) -> None:
    path = tmp_path / "x.jsonl"

    def begun(engine: Engine, most: int | None) -> int:
        seen = transactions(most)
        run(engine, path, all_prompts=True)
        return len(seen)

    def at_start() -> Engine:
        engine = engine_factory(database_factory())
        transactions(None)
        if step == 1:
            run(engine, _story(path, 0), all_prompts=True)
        _story(path, step)
        return engine

    engine = at_start()
    whole = begun(engine, None)
    expected = dump(engine)
    sound(engine)
    assert whole >= 3
    for most in range(whole):
        engine = at_start()
        with pytest.raises(Crash):
            begun(engine, most)
        half = dump(engine)
        if step == 0:
            # Nothing of it is visible: no prompt is due, and nothing hangs from the leaf.
            assert "submissions" not in half
            assert [None] * bool(most) == [row["leaf_entry_id"] for row in half.get("sessions", [])]
        else:
            # What was there before is not looked at while it is half of what it will be.
            assert all(row["leaf_entry_id"] == "r1" for row in half["sessions"])
        begun(engine, None)
        assert _comparable(expected) == _comparable(dump(engine))
        sound(engine)


def _comparable(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Leave out what counts writes, and the places that gaps are left between."""
    dropped = {"version", "session_version", "revision", "last_seq", "seq", "leaf_moved_version"}
    return {
        name: sorted(({k: v for k, v in row.items() if k not in dropped} for row in rows), key=repr)
        for name, rows in found.items()
        if name != "superseded_payloads"
    }


@pytest.mark.usefixtures("pieces")
def test_rows_are_put_off_while_an_import_is_under_way(
    engine: Engine, transactions: Callable[[int | None], list[int]], tmp_path: Path
) -> None:
    path = old(_story(tmp_path / "x.jsonl", 0))
    run(engine, path)
    _story(path, 1)
    transactions(3)
    with pytest.raises(Crash):
        run(engine, path)
    assert 0 == reconcile_once(engine).scanned
    transactions(None)
    run(engine, old(path))
    assert 2 == reconcile_once(engine).scanned


@pytest.mark.usefixtures("pieces")
def test_another_importer_in_between_is_noticed_and_the_comparison_made_again(
    engine: Engine, second_engine: Engine, transactions: Callable[[int | None], list[int]], tmp_path: Path
) -> None:
    path = _story(tmp_path / "x.jsonl", 1)
    transactions(2)
    with pytest.raises(Crash):
        run(second_engine, path, all_prompts=True)
    real = store_ingest.write_piece
    met: list[int] = []

    def late(conn: Connection, piece: Any) -> int:
        if not met:
            met.append(1)
            raise StoreConflict
        return real(conn, piece)

    transactions(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_ingest, "write_piece", late)
        run(engine, path, all_prompts=True)
    found = dump(engine)
    assert (1, 3) == (len(met), len(found["submissions"]))
    sound(engine)


def test_a_session_that_changed_since_it_was_compared_is_not_written(
    engine: Engine, second_engine: Engine, pi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine, pi)
    with pi.open("ab") as file:
        file.write(as_bytes(Pi().result("r1", "c1", parent="a2").lines[1:]))
    real = session_import.SessionImport._compare
    raced: list[int] = []

    def compare(self: Any) -> Any:
        found = real(self)
        if not raced:
            raced.append(1)
            monkeypatch.setattr(session_import.SessionImport, "_compare", real)
            run(second_engine, pi)
        return found

    monkeypatch.setattr(session_import.SessionImport, "_compare", compare)
    assert (0, 0, 0) == counts(run(engine, pi))
    assert 5 == len(rows(engine, schema.entries))
    sound(engine)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x00\x01", b"not json\n"])
def test_what_is_no_session_file_is_refused_and_writes_nothing(engine: Engine, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(UnknownFormat):
        run(engine, path)
    assert {} == dump(engine)


def test_bad_lines_are_listed_and_the_rest_is_stored(engine: Engine, tmp_path: Path) -> None:
    deep = b'{"type":"custom","id":"d","parentId":"u1","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    pi = Pi().user("u1", "nul \x00 and half \ud83d").raw(deep).raw(b'{"type":"label","id":"l1","x":"\xff\xfe"}\n')
    pi.assistant("x" * 10_000, parent="u1").user("u1", parent="u1").add("n1", "usage", total=2**200, cost=1e308 * 10)
    pi.raw(b"\x00\x00\x00\n").add("n2", "usage", parent="gone")
    payload = run(engine, write(tmp_path / "x.jsonl", pi.lines))
    assert [
        (3, "too_deep"),
        (4, "invalid_utf8"),
        (5, "id_replaced"),
        (6, "duplicate_id"),
        (7, "not_a_number"),
        (8, "not_json"),
        (9, "missing_parent"),
    ] == [(problem["line"], problem["code"]) for problem in payload["files"][0]["problems"]]
    stored = {row.entry_id: json.loads(row.payload) for row in rows(engine, schema.entry_payloads)}
    assert (5, 2**200) == (len(stored), stored["n1"]["total"])
    assert "nul \x00 and half \ud83d" == stored["u1"]["message"]["content"][0]["text"]
    assert "\udcff\udcfe" == stored["l1"]["x"]
    sound(engine)


def test_a_cycle_of_parents_is_stored_as_it_is_and_held_for_a_person(engine: Engine, tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c"], parent="a2").assistant("a2", calls=["d"], parent="a1")
    run(engine, old(write(tmp_path / "x.jsonl", pi.lines)))
    reconcile_once(engine)
    assert ["integrity_hold"] == [row.held_reason for row in rows(engine, schema.submissions)]


def test_a_session_whose_leaf_is_not_there_is_held_for_a_person(engine: Engine, tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1").add("l1", "leaf", targetId="gone")
    run(engine, old(write(tmp_path / "x.jsonl", pi.lines)))
    reconcile_once(engine)
    assert ["integrity_hold"] == [row.held_reason for row in rows(engine, schema.submissions)]


def test_a_second_settlement_entry_of_a_source_is_kept_as_custom(
    engine: Engine, pi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No importer makes settlement entries yet; what one would make is put in here.
    real = inspect_files.read_file

    def read_file(*args: Any, **more: Any) -> Any:
        result, detection = real(*args, **more)
        (session,) = result.sessions
        entries = tuple(
            replace(item, entry=replace(item.entry, kind="submission_settled", role=None, submission_id="u1"))
            if item.entry.role == "assistant"
            else item
            for item in session.entries
        )
        return replace(result, sessions=(replace(session, entries=entries),)), detection

    monkeypatch.setattr("reconciler.service.file_reading.read_file", read_file)
    run(engine, pi)
    assert {"a1": "submission_settled", "a2": "custom"} == {
        row.id: row.kind for row in rows(engine, schema.entries) if row.id in ("a1", "a2")
    }
    before = dump(engine, times=True)
    assert (0, 0, 0) == counts(run(engine, pi, all_prompts=False))
    assert before == dump(engine, times=True)


def test_sub_agents_in_files_of_their_own_are_sessions_beside_their_parents(engine: Engine, tmp_path: Path) -> None:
    write(tmp_path / "main.jsonl", Claude().user("u1").text("a1", "m1").lines)
    side = Claude().user("s1", isSidechain=True, agentId="7").text("s2", "m2", isSidechain=True, agentId="7")
    write(tmp_path / "agent-7.jsonl", side.lines)
    payload = import_paths(engine, [str(tmp_path)])
    assert ((2, 4, 1), 0) == (counts(payload), payload["failed"])
    assert {CLAUDE_SESSION, f"{CLAUDE_SESSION}:agent-7"} == {row.id for row in rows(engine, schema.sessions)}
    sound(engine)


_KILLED = """
import sys
from reconciler.service import first_write, inspect_files, session_import
from reconciler.store.engine import make_engine
session_import.PIECE_ENTRIES = 7
print("ready", flush=True)
ingest.import_paths(make_engine(sys.argv[1]), [sys.argv[2]], ingest.IngestOptions())
"""


@pytest.mark.slow
def test_an_import_that_is_killed_at_any_moment_ends_like_one_that_was_not(
    engine: Engine,
    database_url: str,
    database_factory: Callable[[], str],
    engine_factory: Callable[..., Engine],
    tmp_path: Path,
) -> None:
    pi = Pi()
    for number in range(100):
        pi.user(f"u{number}").assistant(f"a{number}", calls=["c"], stop="toolUse").result(f"r{number}", "c")
    path = write(tmp_path / "x.jsonl", pi.lines)
    whole = engine_factory(database_factory())
    run(whole, path)
    killed = 0
    for delay_ms in (5, 40, 80, 130):
        child = subprocess.Popen(
            [sys.executable, "-c", _KILLED, database_url, str(path)], stdout=subprocess.PIPE, cwd=Path.cwd()
        )
        assert child.stdout is not None
        assert b"ready\n" == child.stdout.readline()
        time.sleep(delay_ms / 1000)
        child.kill()
        killed += child.wait() == -signal.SIGKILL
        child.stdout.close()
    assert killed > 0
    run(engine, path)
    assert _comparable(dump(whole)) == _comparable(dump(engine))
    sound(engine)


def test_two_importers_of_one_folder_store_it_once(engine: Engine, second_engine: Engine, tmp_path: Path) -> None:
    for number in range(8):
        pi = Pi(session_id=f"s{number}")
        for turn in range(5):
            pi.user(f"u{turn}").assistant(f"a{turn}")
        write(tmp_path / f"{number}.jsonl", pi.lines)
    with ThreadPoolExecutor(2) as pool:
        payloads = list(pool.map(lambda one: import_paths(one, [str(tmp_path)]), (engine, second_engine)))
    assert [0, 0] == [payload["failed"] for payload in payloads]
    assert (80, 8) == (len(rows(engine, schema.entries)), len(rows(engine, schema.submissions)))
    assert 80 == sum(payload["imported"]["entries"] for payload in payloads)
    sound(engine)
