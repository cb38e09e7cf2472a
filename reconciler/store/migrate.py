"""Moving a database to the schema this program needs: a separate act, never done by a program that works (I16).

Finds the migrations in the installed wheel or in the checkout. Imports Alembic only when asked to act, because a start
of the daemon needs none of this.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import Conflict, InvalidInput, SchemaMismatch
from reconciler.store.database_errors import translate_error
from reconciler.store.engine import (
    DEFAULT_SCHEMA,
    DEFAULT_SETTINGS,
    SCHEMA_NEEDED,
    SCHEMA_REVISIONS,
    VERSION_TABLE,
    EngineSettings,
    SchemaState,
    make_engine,
    name_of,
    read,
    schema_of,
    schema_state,
    sqlite_path,
)

if TYPE_CHECKING:
    from alembic.config import Config

_DIALECT_URLS: Final = {"sqlite": "sqlite:///x", "postgresql": "postgresql+psycopg://"}


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What an upgrade or a downgrade did, or would do: the version before and after, and the revisions in order."""

    before: str | None
    after: str | None
    applied: tuple[str, ...]


def migrations_dir() -> Path:
    """Return the folder of the migrations: inside the installed package, else beside it in a checkout.

    Raises:
        SchemaMismatch: the installation is incomplete.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaMismatch(
        f'cannot find the migrations: neither in "{package}" nor beside it', hint="install the package again"
    )


def alembic_config(connection: Engine | Connection | None = None, *, schema: str = DEFAULT_SCHEMA) -> Config:
    """Return Alembic's configuration for *connection*, for whoever needs more of Alembic than this file does."""
    from alembic.config import Config

    config = Config(stdout=io.StringIO(), output_buffer=io.StringIO())
    # "%" starts an interpolation there.
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    return config


def upgrade(
    database: str | Engine,
    *,
    settings: EngineSettings = DEFAULT_SETTINGS,
    dry_run: bool = False,
    beside: Callable[[Connection], None] | None = None,
) -> SchemaChange:
    """Bring the database to the needed schema, in one transaction; an SQLite file is made where there is none.

    *database* is a URL or an engine (which must have been made with ``create=True`` to make a file). Another program's
    tables and unknown versions are left alone. Two upgrades at once: the second waits and finds nothing to do. *beside*
    is called in the transaction, once the tables are the new ones.

    Raises:
        SchemaMismatch: the database is another program's, or of an unknown version.
        ReconcilerError: what the database said; nothing was changed.
    """
    engine, own = _engine(database, settings)
    try:
        before = schema_state(engine)
        _require_ours(before, engine)
        steps = _steps(before.found)
        if steps and not dry_run:
            _run(engine, "upgrade", "head", after=beside)
        return SchemaChange(before.found, SCHEMA_NEEDED, steps)
    finally:
        if own:
            engine.dispose()


def downgrade(database: Engine, target: str, *, lose: bool = False) -> SchemaChange:
    """Take the database back to the revision *target* (``base`` for none of ours), in one transaction.

    Refused where that would lose what is stored, unless *lose* says that it may.

    Raises:
        InvalidInput: *target* is no revision.
        SchemaMismatch: as `upgrade`.
        Conflict: something would be lost; nothing was changed.
    """
    if target != "base" and target not in SCHEMA_REVISIONS:
        raise InvalidInput(f'cannot downgrade to "{target}": the revisions are base, {", ".join(SCHEMA_REVISIONS)}')
    before = schema_state(database)
    _require_ours(before, database)
    keep = 0 if target == "base" else SCHEMA_REVISIONS.index(target) + 1
    position = 0 if before.found is None else SCHEMA_REVISIONS.index(before.found) + 1
    steps = tuple(reversed(SCHEMA_REVISIONS[keep:position]))
    if steps:
        _run(database, "downgrade", target, check=None if lose else lambda conn: _require_no_loss(conn, steps))
    return SchemaChange(before.found, None if target == "base" else target, steps)


def _require_no_loss(conn: Connection, steps: tuple[str, ...]) -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(alembic_config(conn))
    lost: list[str] = []
    for step in steps:
        lost += script.get_revision(step).module.would_lose(conn)
    if lost:
        raise Conflict(
            f"cannot downgrade {name_of(conn)} by {', '.join(steps)}: what stands in {', '.join(lost)} would be lost",
            detail={"would_lose": lost},
            hint="restore the backup from before the upgrade, or go on with the newer program",
        )


def current(database: str | Engine, *, settings: EngineSettings = DEFAULT_SETTINGS) -> SchemaState:
    """Return which schema the database has and which is needed; writes nothing."""
    if isinstance(database, Engine):
        return schema_state(database)
    path = sqlite_path(database)
    if path is not None and not path.exists():
        return SchemaState(None)
    engine = make_engine(database, settings=settings)
    try:
        return schema_state(engine)
    finally:
        engine.dispose()


def differences(engine: Engine) -> list[str]:
    """Return how the database's tables, columns, indexes and views differ from the models, as texts; writes nothing.

    For a person who wonders whether somebody changed the schema by hand. CHECKs and conditions of partial indexes are
    not compared here: the databases rewrite their texts.
    """
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from reconciler.store import schema, views

    with read(engine) as conn:
        options: dict[str, Any] = {"compare_type": True, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection=conn, opts=options)
        found = [_describe(difference) for difference in compare_metadata(context, schema.with_postgresql_options())]
        there = set(sa.inspect(conn).get_view_names())
    needed = set(views.VIEWS)
    found += [f"view {name} is missing" for name in sorted(needed - there)]
    return found


def offline_sql(dialect: str, *, schema: str = DEFAULT_SCHEMA, revisions: str = "head") -> str:
    """Return the statements of an upgrade for *dialect* (``sqlite`` or ``postgresql``) without a database.

    *revisions* is ``head`` (from empty) or ``FROM:TO``.

    Raises:
        InvalidInput: another dialect.
    """
    from alembic import command

    if dialect not in _DIALECT_URLS:
        raise InvalidInput(f'cannot write statements for "{dialect}"', hint="sqlite or postgresql")
    config = alembic_config(schema=schema)
    config.attributes["url"] = _DIALECT_URLS[dialect]
    command.upgrade(config, revisions, sql=True)
    buffer = config.output_buffer
    return buffer.getvalue() if isinstance(buffer, io.StringIO) else ""


def _engine(database: str | Engine, settings: EngineSettings) -> tuple[Engine, bool]:
    if isinstance(database, Engine):
        return database, False
    from dataclasses import replace

    return make_engine(database, settings=replace(settings, create=True)), True


def _run(
    engine: Engine,
    act: str,
    target: str,
    *,
    check: Callable[[Connection], None] | None = None,
    after: Callable[[Connection], None] | None = None,
) -> None:
    from alembic import command

    config = alembic_config(engine, schema=schema_of(engine) or DEFAULT_SCHEMA)
    # Called once nobody else can write any more, in the transaction that changes the schema.
    config.attributes["check"] = check
    config.attributes["after"] = after
    try:
        getattr(command, act)(config, target)
    except (sa.exc.SQLAlchemyError, OSError) as error:
        raise translate_error(error, name_of(engine)) from error


def _steps(found: str | None) -> tuple[str, ...]:
    return SCHEMA_REVISIONS if found is None else SCHEMA_REVISIONS[SCHEMA_REVISIONS.index(found) + 1 :]


def _require_ours(state: SchemaState, engine: Engine) -> None:
    detail = {"found": state.found, "needed": state.needed}
    if state.found is None and not state.empty:
        raise SchemaMismatch(
            f"cannot make the tables in {name_of(engine)}: it holds another program's tables",
            detail=detail,
            hint="name a database (on PostgreSQL: a schema) of its own",
        )
    if state.found is not None and state.found not in SCHEMA_REVISIONS:
        raise SchemaMismatch(
            f"cannot change the schema of {name_of(engine)}: found {state.found}, which this program does not know;"
            f" it knows {', '.join(SCHEMA_REVISIONS)}",
            detail=detail,
            hint="install the version of this program that made it",
        )


def _describe(difference: Any) -> str:
    # A change of a column comes as a list of tuples, any other as one tuple: ("add_table", Table(...)).
    if isinstance(difference, list):
        return "; ".join(_describe(part) for part in difference)
    kind, *subjects = difference
    named = [str(getattr(subject, "name", subject)) for subject in subjects if subject is not None]
    return f"{kind}: {' '.join(named)}"
