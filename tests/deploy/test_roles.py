"""The PostgreSQL roles, applied to a real server: each may do its work and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import Engine

from reconciler.errors import ReconcilerError
from reconciler.service.reconcile import reconcile_once
from reconciler.service.runner import Runner
from reconciler.store import migrate
from reconciler.store.engine import EngineSettings
from reconciler.store.schema import metadata
from reconciler.store.views import VIEWS
from tests.support.daemons import DaemonProcess
from tests.support.restartable import RestartableServer

pytestmark = pytest.mark.postgresql

ROLES = Path(__file__).parents[2] / "deploy/postgresql/roles.sql"
PASSWORD = "secret-of-the-test"


class Roles:
    """A server with the roles on a database, and a connection as each of them."""

    def __init__(self, server: RestartableServer) -> None:
        self.address = server.address
        self.address.execute("CREATE DATABASE work")

    def apply(self) -> None:
        """Run the file, as psql would: all of it in one go, by the superuser."""
        with psycopg.connect(self.address.url("work"), autocommit=True) as conn:
            conn.execute(ROLES.read_bytes())
            for role in ("migrator", "runtime", "reader"):
                conn.execute(f"ALTER ROLE reconciler_{role} PASSWORD '{PASSWORD}'".encode())

    def url(self, role: str) -> str:
        """Return the address as *role*."""
        return self.address.url("work", user=f"reconciler_{role}", password=PASSWORD)

    def connect(self, role: str) -> psycopg.Connection:
        """Return a connection as *role*, with the schema in reach."""
        return psycopg.connect(self.url(role), autocommit=True, options="-c search_path=reconciler")


@pytest.fixture(scope="module")
def roles() -> Roles:  # type: ignore[misc]
    with RestartableServer() as server:
        found = Roles(server)
        found.apply()
        migrate.upgrade(found.url("migrator"))
        found.apply()
        yield found


def refused(conn: psycopg.Connection, statement: str) -> None:
    with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)):
        conn.execute(statement.encode())


def test_everything_is_the_owners_and_the_owner_cannot_log_in(roles: Roles) -> None:
    rows = roles.address.execute(
        "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'reconciler' UNION"
        " SELECT DISTINCT viewowner FROM pg_views WHERE schemaname = 'reconciler' UNION"
        " SELECT rolname FROM pg_roles WHERE rolname = 'reconciler_owner' AND NOT rolcanlogin",
        database="work",
    )
    assert [("reconciler_owner",)] == rows


def test_the_runtime_role_does_all_of_the_work(roles: Roles, engine_factory: Callable[..., Engine]) -> None:
    url = roles.url("runtime")
    with Runner(url, notify=True) as runner:
        runner.submit("s", "A", {"text": "go"})
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.settle("failed", error="none")
        runner.submit("s", "B", {"text": "go"})
    assert 0 == reconcile_once(engine_factory(url)).scanned
    with DaemonProcess(url, limits={"lease_s": 1.0, "beat_s": 0.2}) as daemon:
        daemon.wait_for("daemon.ready")
        assert 0 == daemon.stop()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (a int)",
        "ALTER TABLE submissions ADD COLUMN extra text",
        "DROP TABLE audit",
        "DROP VIEW v_pending",
        "CREATE OR REPLACE VIEW v_pending AS SELECT 1",
        "TRUNCATE submissions",
        "ALTER TABLE submissions OWNER TO reconciler_runtime",
        "SET ROLE reconciler_owner",
        "UPDATE alembic_version SET version_num = '9999'",
        "CREATE SCHEMA another",
    ],
)
def test_the_runtime_role_cannot_change_the_schema(roles: Roles, statement: str) -> None:
    with roles.connect("runtime") as conn:
        refused(conn, statement)


def test_the_runtime_role_cannot_upgrade(roles: Roles) -> None:
    # `db upgrade` with nothing to do is no change; one that has to make something is refused.
    with pytest.raises(ReconcilerError):
        migrate.upgrade(roles.url("runtime"), settings=EngineSettings(schema="other"))


def test_the_reader_reads_every_view_and_no_table(roles: Roles) -> None:
    with roles.connect("reader") as conn:
        for view in VIEWS:
            conn.execute(f"SELECT * FROM {view} LIMIT 1".encode())
        for table in metadata.tables:
            refused(conn, f"SELECT * FROM {table} LIMIT 1")
        refused(conn, "SELECT payload FROM entry_payloads")
        refused(conn, "SELECT payload FROM superseded_payloads")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM v_passes",
        "CREATE TABLE mine (a int)",
        "CREATE TEMP TABLE mine (a int)",
        "SET ROLE reconciler_owner",
    ],
)
def test_the_reader_writes_nothing(roles: Roles, statement: str) -> None:
    with roles.connect("reader") as conn:
        refused(conn, statement)
        # Not even after taking the read-only default off.
        conn.execute(b"SET default_transaction_read_only = off")
        refused(conn, statement)


def test_the_migrator_makes_things_as_the_owner_and_the_runtime_reaches_them(roles: Roles) -> None:
    with roles.connect("migrator") as conn:
        conn.execute(b"CREATE TABLE later (a int)")
    with roles.connect("runtime") as conn:
        conn.execute(b"INSERT INTO later VALUES (1)")
    with roles.connect("migrator") as conn:
        conn.execute(b"DROP TABLE later")


def test_it_may_be_applied_again_and_takes_over_what_a_superuser_made(roles: Roles) -> None:
    roles.address.execute("CREATE TABLE reconciler.stray (a int)", database="work")
    roles.apply()
    rows = roles.address.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'stray'", database="work")
    assert [("reconciler_owner",)] == rows
    roles.address.execute("DROP TABLE reconciler.stray", database="work")
