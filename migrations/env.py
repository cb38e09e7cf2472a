"""Alembic's environment: runs the migrations on an Engine or a Connection that is passed, or writes them as SQL.

``reconciler db upgrade`` comes through `reconciler.store.migrate`. For Alembic's own command line (developers), the
database is named by RECONCILER_DATABASE_URL.
"""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa
from alembic import context
from sqlalchemy.engine import Connection, Engine

from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import DEFAULT_SCHEMA, VERSION_TABLE, EngineSettings, make_engine, schema_of
from reconciler.store.schema import with_postgresql_options

# "reco", "ncil": two upgrades at once would make the same tables.
_UPGRADE_LOCK = (0x7265636F, 0x6E63696C)

config = context.config
schema = str(config.attributes.get("schema", DEFAULT_SCHEMA))


def _options() -> dict[str, Any]:
    return {
        "target_metadata": with_postgresql_options(),
        "version_table": VERSION_TABLE,
        "compare_type": True,
        # All or nothing, on SQLite too: the engine begins its transactions itself there.
        "transactional_ddl": True,
        "transaction_per_migration": False,
    }


def _migrate(conn: Connection) -> None:
    context.configure(connection=conn, **_options())
    with context.begin_transaction():
        if is_postgresql(conn):
            _prepare_postgresql(conn, schema_of(conn) or schema)
        check = config.attributes.get("check")
        if check is not None:
            check(conn)
        context.run_migrations()
        after = config.attributes.get("after")
        if after is not None:
            after(conn)


def _prepare_postgresql(conn: Connection, name: str) -> None:
    quoted = conn.dialect.identifier_preparer.quote_identifier(name)
    conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK[0]}, {_UPGRADE_LOCK[1]})")
    # Large tables take longer than one of our statements may; a lock that cannot be had still ends the upgrade.
    conn.exec_driver_sql("SET LOCAL statement_timeout = 0")
    # Whatever connection was passed: tables and version table belong into our schema.
    there = conn.execute(sa.text("SELECT to_regnamespace(:name)"), {"name": quoted}).scalar()
    if there is None:
        conn.exec_driver_sql(f"CREATE SCHEMA {quoted}")
    conn.exec_driver_sql(f"SET LOCAL search_path = {quoted}")
    # Programs at work read the version inside each transaction that writes: those that have read it end first, later
    # ones wait and find the new one. SQLite's one write lock does the same.
    if conn.execute(sa.text("SELECT to_regclass(:name)"), {"name": f"{quoted}.{VERSION_TABLE}"}).scalar() is not None:
        conn.exec_driver_sql(f"LOCK TABLE {VERSION_TABLE} IN ACCESS EXCLUSIVE MODE")


def _run_offline() -> None:
    url = config.attributes.get("url") or os.environ.get("RECONCILER_DATABASE_URL", "postgresql+psycopg://")
    context.configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"}, **_options())
    with context.begin_transaction():
        if context.get_context().dialect.name == "postgresql":
            context.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            context.execute(f'SET LOCAL search_path = "{schema}"')
        context.run_migrations()


def _run_online() -> None:
    bind = config.attributes.get("connection")
    if isinstance(bind, Connection):
        _migrate(bind)
        return
    own = None
    if not isinstance(bind, Engine):
        url = os.environ.get("RECONCILER_DATABASE_URL")
        if url is None:
            raise SystemExit("name the database with RECONCILER_DATABASE_URL, or use `reconciler db upgrade`")
        bind = own = make_engine(url, settings=EngineSettings(create=True, schema=schema))
    try:
        with bind.connect() as conn:
            _migrate(conn)
    finally:
        if own is not None:
            own.dispose()


if context.is_offline_mode():
    _run_offline()
else:
    _run_online()
