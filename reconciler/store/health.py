"""What a database says about its own health: clock, size, transactions, indexes, dead rows, files. Reads only.

Knows nothing of what is good or bad about any of it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import UnsupportedOnDialect
from reconciler.store.dialect import db_now, is_postgresql
from reconciler.store.engine import file_of, read, schema_of
from reconciler.store.schema import metadata, operation_items, operations


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """A PostgreSQL server's. Ages in seconds, sizes in bytes."""

    version: str
    now: datetime
    database_bytes: int
    # Of this database, beside our own: the oldest first.
    transactions: Sequence[tuple[int, str, str, float]]  # pid, user, state, age
    waiting_for_locks: int
    invalid_indexes: Sequence[str]
    # table, live rows, dead rows, last vacuum
    dead_rows: Sequence[tuple[str, int, int, datetime | None]]
    # Of the transaction ids left before a wraparound, those used, between 0 and 1.
    wraparound: float
    is_superuser: bool
    in_recovery: bool
    synchronous_commit: str
    full_page_writes: str
    fsync: str


@dataclass(frozen=True, slots=True)
class FileHealth:
    """An SQLite file's. Sizes in bytes."""

    version: str
    path: Path
    size: int
    wal_size: int
    journal_mode: str
    page_size: int
    page_count: int
    free_pages: int
    mode: int
    folder_mode: int
    is_ours: bool
    may_write: bool
    disk_free: int
    disk_total: int
    # "ok", or the first fault of SQLite's own quick check.
    integrity: str


_ACTIVITY = sa.text(
    "SELECT pid, COALESCE(usename, ''), COALESCE(state, ''),"
    " EXTRACT(EPOCH FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity"
    " WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' ORDER BY xact_start LIMIT 20"
)
_INVALID = sa.text(
    "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND NOT i.indisvalid ORDER BY 1 LIMIT 20"
)
_DEAD = sa.text(
    "SELECT relname, n_live_tup, n_dead_tup, GREATEST(last_vacuum, last_autovacuum) FROM pg_stat_user_tables"
    " WHERE schemaname = :schema ORDER BY n_dead_tup DESC LIMIT 20"
)
_SERVER = sa.text(
    "SELECT version(), pg_database_size(current_database()),"
    " (SELECT count(*) FROM pg_locks WHERE NOT granted),"
    " (SELECT age(datfrozenxid)::float8 / 2000000000 FROM pg_database WHERE datname = current_database()),"
    " (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), pg_is_in_recovery(),"
    " current_setting('synchronous_commit'), current_setting('full_page_writes'), current_setting('fsync')"
)


def server_health(conn: Connection) -> ServerHealth:
    """Read a PostgreSQL server's health."""
    schema = {"schema": schema_of(conn)}
    one = conn.execute(_SERVER).one()
    return ServerHealth(
        version=str(one[0]).split(" on ")[0],
        now=db_now(conn),
        database_bytes=int(one[1]),
        transactions=[(row[0], row[1], row[2], float(row[3])) for row in conn.execute(_ACTIVITY)],
        waiting_for_locks=int(one[2]),
        invalid_indexes=list(conn.execute(_INVALID, schema).scalars()),
        dead_rows=[(row[0], int(row[1]), int(row[2]), row[3]) for row in conn.execute(_DEAD, schema)],
        wraparound=float(one[3]),
        is_superuser=bool(one[4]),
        in_recovery=bool(one[5]),
        synchronous_commit=str(one[6]),
        full_page_writes=str(one[7]),
        fsync=str(one[8]),
    )


def file_health(conn: Connection, *, quick_check: bool) -> FileHealth:
    """Read an SQLite file's health; *quick_check* reads all of it."""
    path = file_of(conn)
    if path is None:
        raise UnsupportedOnDialect("only an SQLite database is a file")

    def pragma(name: str) -> Any:
        return conn.exec_driver_sql(f"PRAGMA {name}").scalar_one()

    found = path.stat()
    wal = path.with_name(path.name + "-wal")
    disk = shutil.disk_usage(path.parent)
    return FileHealth(
        version=str(conn.exec_driver_sql("SELECT sqlite_version()").scalar_one()),
        path=path,
        size=found.st_size,
        wal_size=wal.stat().st_size if wal.exists() else 0,
        journal_mode=str(pragma("journal_mode")),
        page_size=int(pragma("page_size")),
        page_count=int(pragma("page_count")),
        free_pages=int(pragma("freelist_count")),
        mode=stat.S_IMODE(found.st_mode),
        folder_mode=stat.S_IMODE(path.parent.stat().st_mode),
        is_ours=found.st_uid == os.geteuid(),
        may_write=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK),
        disk_free=disk.free,
        disk_total=disk.total,
        integrity=str(conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()) if quick_check else "ok",
    )


def missing_indexes(engine: Engine) -> list[str]:
    """Return the names of indexes that the models have and the database hasn't, each with its table."""
    with read(engine) as conn:
        inspector = sa.inspect(conn)
        schema = schema_of(conn) if is_postgresql(conn) else None
        found: list[str] = []
        for table in metadata.sorted_tables:
            there = {index["name"] for index in inspector.get_indexes(table.name, schema=schema)}
            found += [f"{index.name} of {table.name}" for index in table.indexes if index.name not in there]
    return sorted(found)


def open_operations(conn: Connection) -> list[tuple[str, str, int]]:
    """Return bulk acts that are not finished: id, verb, pending items; the oldest first, at most 20."""
    pending = (
        sa.select(sa.func.count())
        .where(
            operation_items.c.operation_id == operations.c.id,
            operation_items.c.status == sa.literal_column("'pending'"),
        )
        .scalar_subquery()
    )
    query = (
        sa.select(operations.c.id, operations.c.verb, pending)
        .where(operations.c.status == "open")
        .order_by(operations.c.created_at)
        .limit(20)
    )
    return [(row[0], row[1], int(row[2])) for row in conn.execute(query)]
