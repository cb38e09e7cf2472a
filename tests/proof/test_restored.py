"""An older copy of the ledger restored beside newer entries: passes come to what the entries prove, and nothing that is
finished runs again. The independent checker judges the end.

The copy is taken and put back by raw SQL, as an operator would do it from a dump. What the copy doesn't know of is
admitted again by its caller, who has the id.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import Limits, NewEntry
from reconciler.errors import Conflict, ReconcilerError
from reconciler.service.attempt import Attempt
from reconciler.service.reconcile import Judge, reconcile_once
from reconciler.service.runner import Runner
from reconciler.store.engine import begin, read
from reconciler.store.schema import metadata
from tests.support.checker import check

LIMITS = Limits(
    backoff_base_s=1e-6,
    backoff_max_s=1e-6,
    provider_backoff_base_s=1e-6,
    provider_backoff_max_s=1e-6,
    capability_backoff_s=1e-6,
    backoff_jitter=0.0,
)
LEDGER = ("submissions", "attempts", "decisions", "settled_ids")
RECORD = ("sessions", "entries", "entry_payloads", "superseded_payloads")
ALL_BUT_ENTRIES = tuple(table.name for table in metadata.sorted_tables if table.name not in RECORD)
ROUNDS_MAX = 30
Rows = dict[str, tuple[list[str], list[Sequence[Any]]]]


@contextlib.contextmanager
def by_hand(url: str) -> Iterator[Any]:
    """Give a raw connection that looks at no reference, as a restore does."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as conn, conn:
            yield conn
    else:
        with psycopg.connect(url) as postgresql:
            postgresql.execute("SET search_path TO reconciler")
            postgresql.execute("SET session_replication_role = replica")
            yield postgresql


def copy_of(url: str, tables: Sequence[str]) -> Rows:
    """Return all rows of these tables."""
    found: Rows = {}
    with by_hand(url) as conn:
        for table in tables:
            cursor = conn.execute(f"SELECT * FROM {table}")
            found[table] = ([column[0] for column in cursor.description], cursor.fetchall())
    return found


def restore(url: str, copy: Rows) -> None:
    """Put them in the place of what is there."""
    mark = "?" if url.startswith("sqlite") else "%s"
    with by_hand(url) as conn:
        for table, (columns, rows) in copy.items():
            conn.execute(f"DELETE FROM {table}")
            names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join(mark for _ in columns)
            for row in rows:
                conn.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row))


class Scene:
    """Sessions that each went on in another way after the copy was taken."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self.runner = Runner(url, lease_s=3600, beat_s=5, limits=LIMITS, beat_by_itself=False, notify=False)
        # What may be run after the restore; everything else is finished by its entries.
        self.unfinished: set[tuple[str, str]] = set()
        self.outcomes: dict[tuple[str, str], str] = {}
        self.executed: list[str] = []

    def begun(self, session_id: str, submission_id: str = "a") -> Attempt:
        self.runner.submit(session_id, submission_id, {"text": "go"})
        return self.claimed(session_id, submission_id)

    def claimed(self, session_id: str, submission_id: str = "a") -> Attempt:
        for _ in range(ROUNDS_MAX):
            wanted = None
            for attempt in self.runner.claim(10):
                if (attempt.session_id, attempt.submission_id) == (session_id, submission_id):
                    wanted = attempt
                else:
                    attempt.release("not this one")
            if wanted is not None:
                wanted.begin()
                return wanted
            self.reconcile()
        with read(self.engine) as conn:
            found = conn.execute(sa.text("SELECT * FROM submissions WHERE status <> 'settled'")).mappings().all()
        raise AssertionError(f"{session_id}/{submission_id} cannot be claimed: {[dict(row) for row in found]}")

    def reconcile(self) -> Any:
        return reconcile_once(
            self.engine,
            limits=LIMITS,
            judge=Judge(connected_for_s=lambda: 1e9),
            decided_by="daemon",
            jitter=lambda: 0.0,
        )

    def calls(self, attempt: Attempt, *calls: str) -> None:
        attempt.append(
            [NewEntry("assistant", {"t": 1}, stop_reason="tool_use", tool_call_ids=calls, starts_logged=True)]
        )

    def tool(self, attempt: Attempt, call: str) -> None:
        attempt.start(call)
        self.executed.append(call)
        attempt.append([NewEntry("tool_result", {"ok": True}, tool_call_id=call)])

    def answer(self, attempt: Attempt) -> None:
        attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])

    def lose_runners(self) -> None:
        """Have every lease ended: the runners of the copy's time are gone."""
        with begin(self.engine) as conn:
            conn.execute(
                sa.text("UPDATE attempts SET lease_expires_at = claimed_at, pid = 1073741824, process_start = '1'")
            )
            conn.execute(sa.text("UPDATE submissions SET reconcile_at = admitted_at WHERE status = 'running'"))

    def settled(self, session_id: str, submission_id: str, outcome: str) -> None:
        self.outcomes[session_id, submission_id] = outcome


def _before(scene: Scene) -> dict[str, Attempt]:
    """What the copy holds."""
    held = {name: scene.begun(name) for name in ("tools", "crashed", "parked", "failed", "two")}
    scene.calls(held["tools"], "tools-1", "tools-2")
    scene.tool(held["tools"], "tools-1")
    scene.calls(held["parked"], "parked-1")
    held["parked"].park("may I?", pending_calls=["parked-1"])
    held["failed"].settle("failed", error={"message": "gave up"})
    scene.settled("failed", "a", "failed")
    scene.runner.submit("two", "b", {"text": "next"})
    for name in ("queued", "aborted", "middle"):
        scene.runner.submit(name, "a", {"text": "go"})
    return held


def _after(scene: Scene, held: dict[str, Attempt]) -> None:
    """What became of it, and what came after it."""
    # Finished by its runner.
    scene.tool(held["tools"], "tools-2")
    scene.answer(held["tools"])
    held["tools"].settle("completed")
    scene.settled("tools", "a", "completed")
    # The first of two finished.
    two = held["two"]
    scene.answer(two)
    two.settle("completed")
    scene.settled("two", "a", "completed")
    # Running then; crashed since, and a second attempt is in the middle of it.
    scene.lose_runners()
    scene.reconcile()
    crashed = scene.claimed("crashed")
    scene.calls(crashed, "crashed-1")
    scene.tool(crashed, "crashed-1")
    scene.unfinished.add(("crashed", "a"))
    # The second of the two is begun.
    second = scene.claimed("two", "b")
    scene.calls(second, "two-1")
    scene.tool(second, "two-1")
    scene.unfinished.add(("two", "b"))
    # Unparked, its call run, answered; its runner dies before it settles.
    scene.runner.unpark("parked", "a")
    parked = scene.claimed("parked")
    scene.tool(parked, "parked-1")
    scene.answer(parked)
    scene.settled("parked", "a", "completed")
    # Queued then; run and settled since.
    queued = scene.claimed("queued")
    scene.calls(queued, "queued-1")
    scene.tool(queued, "queued-1")
    scene.answer(queued)
    queued.settle("completed")
    scene.settled("queued", "a", "completed")
    # Queued then; aborted since, by a pass.
    scene.runner.request_abort("aborted", "a", "not needed")
    scene.reconcile()
    scene.settled("aborted", "a", "aborted")
    # Queued then; now in the middle of a turn, one call run and one not.
    middle = scene.claimed("middle")
    scene.calls(middle, "middle-1", "middle-2")
    scene.tool(middle, "middle-1")
    scene.unfinished.add(("middle", "a"))
    # Accepted since: the copy knows nothing of these.
    new = scene.begun("new")
    scene.calls(new, "new-1")
    scene.tool(new, "new-1")
    scene.answer(new)
    new.settle("completed")
    scene.settled("new", "a", "completed")
    failed = scene.begun("failed", "b")
    scene.answer(failed)
    failed.settle("completed")
    scene.settled("failed", "b", "completed")


def _work_off(scene: Scene) -> list[tuple[str, str]]:
    """Reconcile and run what is handed out, until nothing is left; return what was run."""
    ran: list[tuple[str, str]] = []
    for _ in range(ROUNDS_MAX):
        scene.reconcile()
        for attempt in scene.runner.claim(10):
            try:
                attempt.begin()
            except ReconcilerError:
                continue
            ran.append((attempt.session_id, attempt.submission_id))
            scene.answer(attempt)
            attempt.settle("completed")
        with read(scene.engine) as conn:
            if not conn.execute(sa.text("SELECT count(*) FROM submissions WHERE status <> 'settled'")).scalar():
                break
    scene.reconcile()
    return ran


@pytest.mark.parametrize("tables", [LEDGER, ALL_BUT_ENTRIES], ids=["the ledger", "all but entries"])
def test_an_older_ledger_beside_newer_entries_comes_to_what_the_entries_prove(
    tables: tuple[str, ...], database_url: str, engine_factory: Callable[..., Engine]
) -> None:
    scene = Scene(database_url, engine_factory(database_url))
    held = _before(scene)
    copy = copy_of(database_url, tables)
    _after(scene, held)
    restore(database_url, copy)
    scene.lose_runners()

    # Who approved asks again, and so do callers whose submission the copy doesn't know: they have its id.
    scene.runner.unpark("parked", "a")
    for session_id, submission_id in (("new", "a"), ("failed", "b")):
        with pytest.raises(Conflict, match="other content"):
            scene.runner.submit(session_id, submission_id, {"text": "something else"})
        scene.runner.submit(session_id, submission_id, {"text": "go"})
    ran = _work_off(scene)

    with read(scene.engine) as conn:
        rows = conn.execute(sa.text("SELECT session_id, id, status, outcome FROM submissions")).all()
        entries = conn.execute(
            sa.text("SELECT session_id, submission_id FROM entries WHERE kind = 'submission_settled'")
        ).all()
    assert sorted(scene.unfinished) == sorted(ran)
    expected = {**scene.outcomes, **dict.fromkeys(scene.unfinished, "completed")}
    assert expected == {(row[0], row[1]): row[3] for row in rows}
    assert {"settled"} == {row[2] for row in rows}
    assert sorted(expected) == sorted((row[0], row[1]) for row in entries)
    # What the restore itself has lost: entries name attempts that the copy doesn't know.
    found = [str(one) for one in check(database_url, quiescent=True)]
    assert [] == [one for one in found if not one.endswith("written by an attempt that is not there")]
    # A pass with nothing new writes nothing.
    assert 0 == scene.reconcile().written
    scene.runner.close()
