"""Migrations: an upgrade from empty makes what the models say, on both databases, from anywhere, all or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from pytest_alembic.tests import (  # noqa: F401
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy.engine import Engine

from reconciler.errors import InvalidInput, SchemaMismatch
from reconciler.store import engine as store
from reconciler.store import migrate, views
from reconciler.store.dialect import dialect_word, is_postgresql
from reconciler.store.engine import begin, read, require_schema
from reconciler.store.schema import metadata, with_postgresql_options
from tests.support.catalog import catalog
from tests.support.databases import PostgreSQLDatabases

ROOT = Path(__file__).resolve().parents[2]
MakeEngine = Callable[..., Engine]


@pytest.fixture
def empty_engine(empty_database_url: str, engine_factory: MakeEngine) -> Engine:
    return engine_factory(empty_database_url, create=True)


def found(engine: Engine) -> dict[str, str]:
    with read(engine) as conn:
        return catalog(conn)


def test_an_upgrade_from_empty_makes_exactly_what_the_models_say(empty_engine: Engine) -> None:
    migrate.upgrade(empty_engine)
    migrated = found(empty_engine)
    migrate.downgrade(empty_engine, "base")
    with begin(empty_engine) as conn:
        with_postgresql_options().create_all(conn)
        for statement in views.create_statements(dialect_word(conn)):
            conn.exec_driver_sql(statement.replace("%", "%%") if is_postgresql(conn) else statement)
    modelled = found(empty_engine)
    assert modelled == migrated
    assert set(views.VIEWS) == {name.removeprefix("view ") for name in migrated if name.startswith("view ")}
    assert [] == migrate.differences(empty_engine)


def test_up_down_and_up_again_ends_where_it_was_and_down_leaves_nothing(empty_engine: Engine) -> None:
    up = migrate.upgrade(empty_engine)
    first = found(empty_engine)
    down = migrate.downgrade(empty_engine, "base")
    assert {} == found(empty_engine)
    again = migrate.upgrade(empty_engine)
    assert first == found(empty_engine)
    assert migrate.SchemaChange(None, store.SCHEMA_NEEDED, store.SCHEMA_REVISIONS) == up == again
    assert migrate.SchemaChange(store.SCHEMA_NEEDED, None, store.SCHEMA_REVISIONS[::-1]) == down


def test_an_upgrade_of_what_is_current_does_nothing(engine: Engine) -> None:
    before = found(engine)
    change = migrate.upgrade(engine)
    assert migrate.SchemaChange(store.SCHEMA_NEEDED, store.SCHEMA_NEEDED, ()) == change
    assert before == found(engine)


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(empty_engine: Engine) -> None:
    change = migrate.upgrade(empty_engine, dry_run=True)
    assert migrate.SchemaChange(None, store.SCHEMA_NEEDED, store.SCHEMA_REVISIONS) == change
    assert store.SchemaState(None) == migrate.current(empty_engine)
    path = empty_engine.get_execution_options().get("reconciler_path")
    assert path is None or not path.exists()


def test_asking_for_the_version_makes_no_file(tmp_path: Path) -> None:
    assert store.SchemaState(None) == migrate.current(f"sqlite:///{tmp_path / 'typo.sqlite3'}")
    assert [] == list(tmp_path.iterdir())


def test_a_url_is_enough(empty_database_url: str, engine_factory: MakeEngine) -> None:
    assert store.SCHEMA_NEEDED == migrate.upgrade(empty_database_url).after
    assert migrate.current(empty_database_url).matches
    require_schema(engine_factory(empty_database_url))


def test_the_version_table_stands_in_our_schema_alone(postgresql_url: str, engine_factory: MakeEngine) -> None:
    with read(engine_factory(postgresql_url)) as conn:
        query = "SELECT schemaname FROM pg_tables WHERE tablename = 'alembic_version'"
        assert ["reconciler"] == list(conn.exec_driver_sql(query).scalars())


def test_alembic_takes_a_connection_and_its_transaction(empty_engine: Engine) -> None:
    with empty_engine.connect() as conn:
        transaction = conn.begin()
        command.upgrade(migrate.alembic_config(conn), "head")
        transaction.rollback()
    assert {} == found(empty_engine)
    with begin(empty_engine) as conn:
        command.upgrade(migrate.alembic_config(conn), "head")
    require_schema(empty_engine)


def test_a_connection_that_knows_nothing_of_us_still_gets_the_tables_into_our_schema(
    empty_database_url: str, engine_factory: MakeEngine
) -> None:
    if empty_database_url.startswith("sqlite"):
        plain = sa.create_engine(empty_database_url)
    else:
        plain = sa.create_engine(empty_database_url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        command.upgrade(migrate.alembic_config(plain), "head")
    finally:
        plain.dispose()
    require_schema(engine_factory(empty_database_url))


def test_an_upgrade_that_fails_leaves_nothing_behind(empty_engine: Engine) -> None:
    class PowerCut(Exception):
        pass

    def cut(conn: object, cursor: object, statement: str, *rest: object) -> None:
        if "CREATE VIEW" in statement:
            raise PowerCut

    sa.event.listen(empty_engine, "before_cursor_execute", cut)
    with pytest.raises(PowerCut):
        migrate.upgrade(empty_engine)
    sa.event.remove(empty_engine, "before_cursor_execute", cut)
    assert {} == found(empty_engine)
    assert store.SchemaState(None) == migrate.current(empty_engine)
    migrate.upgrade(empty_engine)
    require_schema(empty_engine)


def test_of_two_upgrades_at_once_one_waits_and_finds_nothing_to_do(
    empty_database_url: str, engine_factory: MakeEngine
) -> None:
    # Alembic keeps its context in module globals: two of them need two processes.
    script = (
        "import sys; from reconciler.store import migrate; from reconciler.store.engine import EngineSettings;"
        "migrate.upgrade(sys.argv[1], settings=EngineSettings(busy_timeout_s=20))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, empty_database_url], cwd=ROOT, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[1].decode() for process in processes]
    assert ["", ""] == said
    assert [0, 0] == [process.returncode for process in processes]
    require_schema(engine_factory(empty_database_url))


@pytest.mark.parametrize("act", ["upgrade", "downgrade"])
def test_a_schema_that_is_not_known_is_left_alone(
    act: str, database_factory: Callable[[], str], engine_factory: MakeEngine
) -> None:
    engine = engine_factory(database_factory())
    with begin(engine) as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    before = found(engine)
    with pytest.raises(SchemaMismatch, match="found 9999, which this program does not know"):
        migrate.upgrade(engine) if act == "upgrade" else migrate.downgrade(engine, "base")
    assert before == found(engine)


def test_a_downgrade_needs_a_revision_that_exists(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="the revisions are base, 0001"):
        migrate.downgrade(engine, "0815")


def test_what_somebody_changed_by_hand_is_listed(
    database_factory: Callable[[], str], engine_factory: MakeEngine
) -> None:
    engine = engine_factory(database_factory())
    with begin(engine) as conn:
        conn.exec_driver_sql("DROP VIEW v_pending")
        conn.exec_driver_sql("DROP INDEX ix_audit_at")
        conn.exec_driver_sql("CREATE TABLE added (id integer)")
        conn.exec_driver_sql("ALTER TABLE sessions ADD COLUMN extra text")
    listed = migrate.differences(engine)
    for subject in ("view v_pending is missing", "ix_audit_at", "added", "extra"):
        assert any(subject in difference for difference in listed), (subject, listed)
    assert 4 == len(listed)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_statements_can_be_written_without_a_database(dialect: str) -> None:
    sql = migrate.offline_sql(dialect, schema="work")
    for table in metadata.tables:
        assert f"CREATE TABLE {table} " in sql
    for view in views.VIEWS:
        assert f"CREATE VIEW {view} " in sql
    assert ('SET LOCAL search_path = "work"' in sql) == (dialect == "postgresql")
    assert "%%" not in sql


def test_the_written_statements_make_the_same_database(
    empty_database_url: str, engine_factory: MakeEngine, database_url: str
) -> None:
    engine = engine_factory(empty_database_url, create=True)
    sql = migrate.offline_sql(dialect_word(engine))
    if is_postgresql(engine):
        import psycopg

        with psycopg.connect(empty_database_url, autocommit=True) as conn:
            conn.execute(sql.encode())
    else:
        with engine.connect() as sqlite:
            driver = sqlite.connection.driver_connection
            assert driver is not None
            driver.executescript(sql)
    require_schema(engine)
    assert found(engine_factory(database_url)) == found(engine)


def test_another_database_has_no_statements() -> None:
    with pytest.raises(InvalidInput, match="mysql"):
        migrate.offline_sql("mysql")


def test_alembics_own_check_finds_nothing_to_add(engine: Engine) -> None:
    command.check(migrate.alembic_config(engine))


def test_the_program_knows_every_migration_in_order() -> None:
    script = ScriptDirectory.from_config(migrate.alembic_config())
    revisions = [revision.revision for revision in script.walk_revisions()]
    assert list(store.SCHEMA_REVISIONS) == revisions[::-1]


def names_of(table: sa.Table) -> list[str | None]:
    constraints = [None if item.name is None else str(item.name) for item in table.constraints]
    return [table.name, *constraints, *(index.name for index in table.indexes)]


def test_every_constraint_and_index_has_a_name_that_postgresql_keeps_whole() -> None:
    names = [(table.name, name) for table in metadata.tables.values() for name in names_of(table)]
    assert [] == [found for found in names if not found[1]]
    assert [] == [name for _, name in names if name and len(name.encode()) > 63]


# --- from an installed wheel ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_installed_wheel_upgrades_a_database_from_an_unrelated_folder(
    tmp_path: Path, postgresql_databases: PostgreSQLDatabases
) -> None:
    if not (ROOT / "README.md").exists():
        pytest.skip("no README.md in this checkout: the wheel names it")
    built = tmp_path / "dist"
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    built.mkdir()
    subprocess.run([sys.executable, "-c", build, str(built)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = built.glob("*.whl")

    # What it needs is in this environment; the package itself must come from the wheel.
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python3*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", f"--target={site}", str(wheel)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    here = next(path for path in sys.path if path.endswith("site-packages"))
    copied = tmp_path / "needed"
    copied.mkdir()
    for item in Path(here).iterdir():
        if not item.name.startswith(("reconciler", "_reconciler", "session_reconciler", "_session", "_editable")):
            (copied / item.name).symlink_to(item)
    (site / "needed.pth").write_text(f"{copied}\n")

    script = (
        "import sys, reconciler; from reconciler.store import migrate\n"
        "for url in sys.argv[1:]: print(migrate.upgrade(url).after, migrate.current(url).matches)\n"
        "print(migrate.migrations_dir()); print(reconciler.__file__)"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [
            environment / "bin" / "python",
            "-c",
            script,
            f"sqlite:///{elsewhere}/x.sqlite3",
            postgresql_databases.empty(),
        ],
        cwd=elsewhere,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "" == done.stderr
    package = site / "reconciler"
    needed = store.SCHEMA_NEEDED
    assert [f"{needed} True", f"{needed} True", f"{package / '_migrations'}", f"{package / '__init__.py'}"] == (
        done.stdout.splitlines()
    )
    shipped = {path.relative_to(package / "_migrations").as_posix() for path in (package / "_migrations").rglob("*.py")}
    assert {"env.py", "versions/0001_baseline.py"} == shipped
    assert (package / "py.typed").exists()
