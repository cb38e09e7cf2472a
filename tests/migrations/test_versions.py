"""Programs of different heads at one database, side by side: what can't work together is refused before it writes.

The present program is the one under test, in this process and as a daemon; the older and the next one are made up (see
`other_heads`). Both databases.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import NewEntry
from reconciler.errors import Conflict, DatabaseUnavailable, ReconcilerError, SchemaMismatch
from reconciler.service.runner import Runner
from reconciler.store import engine as store
from reconciler.store import migrate
from reconciler.store.engine import begin, read
from tests.migrations.other_heads import REVISIONS, changed_since_noted, digest
from tests.support.catalog import catalog
from tests.support.checker import check
from tests.support.daemons import DaemonProcess, clean_environment, wait_for

MakeEngine = Callable[..., Engine]
PROGRAM = "tests.migrations.other_heads"
EXIT_UNAVAILABLE = 75


@pytest.fixture
def database_url(database_factory: Callable[[], str]) -> str:
    """Give a database of its own: its schema is changed."""
    return database_factory()


def run(program: str, url: str, *arguments: str, timeout_s: float = 120.0) -> tuple[int, dict[str, Any], str]:
    """Run a verb by a program of another head; return its exit code, its answer and what it said beside."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, program, *arguments],
        env=clean_environment(RECONCILER_DATABASE_URL=url),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return done.returncode, answer, done.stdout + done.stderr


def upgrade(program: str, url: str) -> None:
    code, answer, said = run(program, url, "db", "upgrade", "--json")
    for _ in range(20):
        if code != EXIT_UNAVAILABLE:
            break
        # SQLite hands its write lock to whoever asks in the right moment: among busy writers it is asked for again.
        code, answer, said = run(program, url, "db", "upgrade", "--json")
    assert (0, REVISIONS[program][-1]) == (code, answer.get("schema", {}).get("found")), said


def contents(engine: Engine) -> dict[str, str]:
    """Return every table, whatever schema it is of, as a digest of its rows."""
    with read(engine) as conn:
        names = sorted(sa.inspect(conn).get_table_names())
        return {name: digest(conn.execute(sa.text(f'SELECT * FROM "{name}"')).all()) for name in names}


# --- the made-up chain is a chain ------------------------------------------------------------------------------------


def test_the_made_up_head_is_the_real_one_and_its_neighbours_differ(
    empty_database_url: str, engine_factory: MakeEngine, database_url: str
) -> None:
    def found(url: str) -> dict[str, str]:
        with read(engine_factory(url)) as conn:
            return catalog(conn)

    real = found(database_url)
    upgrade("older", empty_database_url)
    assert real != found(empty_database_url)
    upgrade("present", empty_database_url)
    assert real == found(empty_database_url)
    upgrade("next", empty_database_url)
    assert {"table made_up_notes", "index ix_submissions_made_up"} <= set(found(empty_database_url)) - set(real)


# --- refused before the first write ----------------------------------------------------------------------------------

_VERBS = (
    ("submit", "s", "x", '{"text": "x"}', "--json"),
    ("once", "--json"),
    ("abort", "s/a", "--reason", "test", "--json"),
    ("refine", "open", "skill", "--baseline", "0.5", "--json"),
    ("prune", "--reason", "test", "--json"),
    ("explain", "s/a", "--json"),
)


@pytest.mark.parametrize(
    ("program", "schema"),
    [("older", "present"), ("present", "older"), ("present", "next"), ("next", "present"), ("older", "next")],
)
def test_a_program_of_another_head_is_refused_before_its_first_write(
    program: str, schema: str, empty_database_url: str, engine_factory: MakeEngine
) -> None:
    url = empty_database_url
    upgrade(schema, url)
    engine = engine_factory(url)
    before = contents(engine)
    found, needed = REVISIONS[schema][-1], REVISIONS[program][-1]
    verbs = [*_VERBS, *([] if found in REVISIONS[program] else [("db", "upgrade", "--json")])]
    _, _, said = run(program, url, "each", json.dumps(verbs))
    for verb, line in zip(verbs, said.splitlines(), strict=True):
        code, printed = json.loads(line)
        answer = json.loads(printed)
        assert (1, "schema_mismatch") == (code, answer.get("error", {}).get("code")), (verb, said)
        assert {"found": found, "needed": needed} == answer["error"]["detail"]
        # The way out: an upgrade where the program knows the way, else another program.
        assert ("db upgrade" in answer["error"]["hint"]) == (found in REVISIONS[program]), answer["error"]["hint"]
    with DaemonProcess(url, module=[PROGRAM, program]) as daemon:
        assert 1 == daemon.end(60), daemon.said()
        assert f"found schema {found}" in daemon.said()
        assert f"needed {needed}" in daemon.said()
    assert before == contents(engine)


@pytest.mark.parametrize("schema", ["older", "next"])
def test_the_real_program_refuses_what_it_does_not_know(
    schema: str, empty_database_url: str, engine_factory: MakeEngine
) -> None:
    upgrade(schema, empty_database_url)
    engine = engine_factory(empty_database_url)
    before = contents(engine)
    for act in (
        lambda: Runner(empty_database_url),
        lambda: store.require_schema(engine, for_writing=False),
        lambda: migrate.upgrade(empty_database_url),
        lambda: migrate.downgrade(engine, "base"),
    ):
        with pytest.raises(SchemaMismatch, match=REVISIONS[schema][-1]):
            act()
    assert before == contents(engine)


# --- a schema that is upgraded below programs at work ----------------------------------------------------------------


class AtWork:
    """A runner of the present program whose threads submit, append and beat until they are refused."""

    def __init__(self, url: str) -> None:
        self.runner = Runner(url, owner="at work", lease_s=120.0, beat_s=1.0, notify=False, reconnect_s=20)
        self.accepted: list[str] = []
        self.stored: list[str] = []
        self.calls: set[str] = set()
        self.refusals: list[ReconcilerError] = []
        self.runner.submit("held", "a", {"text": "go"})
        (self.attempt,) = self.runner.claim(1)
        self.attempt.begin()
        self._threads = [threading.Thread(target=self._until_refused, args=(act,)) for act in self._acts()]
        for thread in self._threads:
            thread.start()

    def _acts(self) -> Iterator[Callable[[], None]]:
        def submit() -> None:
            name = f"q{len(self.accepted):04d}"
            self.runner.submit("many", name, {"text": "go"})
            self.accepted.append(name)
            # All of it is worked off afterwards: as many as are needed to be always at it.
            time.sleep(0.02)

        def append() -> None:
            call = f"c{len(self.calls)}"
            ask = NewEntry("assistant", {"t": 1}, stop_reason="tool_use", tool_call_ids=(call,), starts_logged=True)
            self.stored.extend(self.attempt.append([ask]))
            self.attempt.start(call)
            self.calls.add(call)
            self.stored.extend(self.attempt.append([NewEntry("tool_result", {"ok": 1}, tool_call_id=call)]))

        def beat() -> None:
            self.attempt.heartbeat()

        yield submit
        yield append
        yield beat

    def _until_refused(self, act: Callable[[], None]) -> None:
        for _ in range(100_000):
            try:
                act()
            except DatabaseUnavailable:
                # A beat doesn't wait for as long as an upgrade may take on a busy machine.
                continue
            except ReconcilerError as error:
                self.refusals.append(error)
                return

    def wait_until_refused(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)


def _upgraded_below(url: str) -> tuple[AtWork, DaemonProcess]:
    """Have a runner and a daemon at work, upgrade the schema below them, and wait until they have met it."""
    work = AtWork(url)
    # It has leases and requeues to write about all the time.
    daemon = DaemonProcess(url, settings={"pass_interval_s": 0.1, "beat_s": 0.2, "schedule_interval_s": 0.2})
    daemon.wait_for("daemon.ready", timeout_s=60)
    wait_for("work under way", lambda: len(work.accepted) > 3 and len(work.stored) > 3, timeout_s=120)
    upgrade("next", url)
    work.wait_until_refused()
    return work, daemon


def test_an_upgrade_below_programs_at_work_ends_them_before_their_next_write(
    database_url: str, engine_factory: MakeEngine
) -> None:
    work, daemon = _upgraded_below(database_url)
    with daemon:
        assert 1 == daemon.end(60), daemon.said()
        assert "found schema 0002" in daemon.said()
    assert ["schema_mismatch"] * 3 == [error.code for error in work.refusals]
    for refused in (
        lambda: work.runner.claim(1),
        lambda: work.runner.request_abort("held", "a"),
        lambda: work.attempt.settle("completed"),
        lambda: work.attempt.release(),
    ):
        with pytest.raises(SchemaMismatch, match="found schema 0002, which this program does not know; needed 0001"):
            refused()
    work.runner.close()
    engine = engine_factory(database_url)
    with read(engine) as conn:
        assert [] == changed_since_noted(conn)

    # Their leases end, and the next program takes over what they left: nothing accepted is lost, nothing stored is
    # gone or run again.
    with begin(engine) as conn:
        conn.execute(sa.text("UPDATE attempts SET lease_expires_at = claimed_at WHERE ended_at IS NULL"))
        conn.execute(sa.text("UPDATE submissions SET reconcile_at = admitted_at WHERE status = 'running'"))
    limits = {"lease_s": 2, "beat_s": 0.5, "grace_s": 1}
    with DaemonProcess(database_url, module=[PROGRAM, "next"], limits=limits) as new:
        new.wait_for("daemon.ready", timeout_s=60)
        code, _, said = run("next", database_url, "work-off", timeout_s=600)
        assert 0 == code, said
        assert 0 == new.stop(), new.said()
    with read(engine) as conn:
        rows = conn.execute(sa.text("SELECT session_id, id, status, outcome FROM submissions")).all()
        entries = set(conn.execute(sa.text("SELECT id FROM entries")).scalars())
        results = list(conn.execute(sa.text("SELECT tool_call_id FROM entries WHERE role = 'tool_result'")).scalars())
    assert {("held", "a"), *(("many", name) for name in work.accepted)} <= {(row[0], row[1]) for row in rows}
    assert {("settled", "completed")} == {(row[2], row[3]) for row in rows}
    assert set(work.stored) <= entries
    assert len(results) == len(set(results))
    assert [] == check(database_url, quiescent=True)


def test_a_program_that_would_not_look_is_found_out(
    database_url: str, engine_factory: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The negative control: what is written by an older program after the upgrade must show.
    monkeypatch.setattr(store, "_require_needed", lambda versions, conn: None)
    with Runner(database_url, notify=False, beat_by_itself=False) as runner:
        runner.submit("s", "a", {"text": "go"})
        upgrade("next", database_url)
        runner.submit("s", "b", {"text": "go"})
    with read(engine_factory(database_url)) as conn:
        assert {"sessions", "submissions"} <= set(changed_since_noted(conn))


def test_an_upgrade_waits_for_whoever_is_writing_and_later_writers_find_the_new_schema(
    database_url: str, engine_factory: MakeEngine
) -> None:
    engine = engine_factory(database_url)
    second = engine_factory(database_url, busy_timeout_s=30.0, lock_timeout_s=30.0)
    store.require_schema(engine)
    store.require_schema(second)
    upgrading = threading.Thread(target=upgrade, args=("next", database_url))
    with begin(engine) as conn:
        upgrading.start()
        if engine.dialect.name == "postgresql":
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            wait_for("the upgrade waits", lambda: conn.execute(sa.text(waits)).scalar(), timeout_s=50)
        conn.execute(sa.text("INSERT INTO settled_ids SELECT * FROM settled_ids WHERE 1 = 0"))
    with pytest.raises(SchemaMismatch):
        for _ in range(10_000):
            with begin(second) as conn:
                conn.execute(sa.text("UPDATE sessions SET version = version WHERE 1 = 0"))
    upgrading.join(60)
    assert store.SchemaState("0002", empty=False) == store.schema_state(engine)


# --- downgrades ------------------------------------------------------------------------------------------------------


def test_a_downgrade_is_refused_where_it_would_lose_something(database_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(database_url)
    with Runner(database_url, notify=False, beat_by_itself=False) as runner:
        runner.submit("s", "a", {"text": "go"})
    before = contents(engine)
    with pytest.raises(Conflict, match=r"submissions.* would be lost") as caught:
        migrate.downgrade(engine, "base")
    assert "backup" in (caught.value.hint or "")
    assert before == contents(engine)
    assert migrate.downgrade(engine, "base", lose=True).after is None


def test_every_migration_says_what_its_downgrade_would_lose() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(migrate.alembic_config())
    assert [] == [one.revision for one in script.walk_revisions() if not hasattr(one.module, "would_lose")]
