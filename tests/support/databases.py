"""Fresh, migrated databases for tests, on SQLite files and on a real PostgreSQL, made as cheaply as each can."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from reconciler.store import migrate
from reconciler.store.engine import DEFAULT_SCHEMA
from tests.support.postgresql import Address

# One round trip: end whoever still holds a lock from the last test, then empty what isn't empty. Deleting is an order
# of magnitude cheaper than truncating for the few rows a test writes; without triggers the order of tables is free.
_CLEAN = f"""
DO $$
DECLARE
    name text;
    filled boolean;
BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend';
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{DEFAULT_SCHEMA}' AND tablename <> 'alembic_version'
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM {DEFAULT_SCHEMA}.%I)', name) INTO filled;
        IF filled THEN
            EXECUTE format('DELETE FROM {DEFAULT_SCHEMA}.%I', name);
        END IF;
    END LOOP;
END $$
"""

# What the schema is at the moment: a test may change it, and the next one must not find that.
_SCHEMA = f"""
SELECT md5(string_agg(part, ';' ORDER BY part)) FROM (
    SELECT concat_ws(' ', class.relname, class.relkind, class.reloptions) AS part
        FROM pg_class AS class WHERE class.relnamespace = '{DEFAULT_SCHEMA}'::regnamespace AND class.relkind <> 'i'
    UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class AS class ON class.oid = indexrelid
        WHERE class.relnamespace = '{DEFAULT_SCHEMA}'::regnamespace
    UNION ALL SELECT concat_ws(' ', attrelid::regclass, attname, atttypid, attnotnull, atthasdef)
        FROM pg_attribute JOIN pg_class AS class ON class.oid = attrelid
        WHERE class.relnamespace = '{DEFAULT_SCHEMA}'::regnamespace AND attnum > 0
    UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, contype, convalidated)
        FROM pg_constraint WHERE connamespace = '{DEFAULT_SCHEMA}'::regnamespace
    UNION ALL SELECT concat_ws(' ', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT version_num FROM {DEFAULT_SCHEMA}.alembic_version
) AS parts
"""


@dataclass
class PostgreSQLDatabases:
    """The databases of one worker on one server: a migrated template, a working copy, and clones on demand."""

    address: Address
    worker: str
    _working: str | None = None
    _schema: object = None
    _template: str | None = None
    _dirty: bool = False
    _count: int = 0
    _clones: list[str] = field(default_factory=list)

    def working(self) -> str:
        """Return the URL of the worker's own database, migrated and empty."""
        if self._working is not None and self._dirty and not self._cleaned(self._working):
            self.address.execute(f"DROP DATABASE {self._working} WITH (FORCE)")
            self._working = None
        if self._working is None:
            self._working = self._create(f"working_{self.worker}", self.template())
            self._schema = self.address.execute(_SCHEMA, database=self._working)
        self._dirty = True
        return self.address.url(self._working)

    def _cleaned(self, name: str) -> bool:
        """Empty the tables; return whether the schema is still what it was."""
        try:
            return self.address.execute(_CLEAN, _SCHEMA, database=name) == self._schema
        except psycopg.Error:
            # A test took a table or the whole schema away.
            return False

    def clone(self) -> str:
        """Return the URL of another migrated and empty database, for a test that changes its schema or needs two."""
        return self.address.url(self._next(self.template()))

    def empty(self) -> str:
        """Return the URL of a database without any table of ours."""
        return self.address.url(self._next("template0"))

    def template(self) -> str:
        """Return the name of the migrated template."""
        if self._template is None:
            name = self._create(f"template_{self.worker}", "template0")
            migrate.upgrade(self.address.url(name))
            self._template = name
        return self._template

    def drop_clones(self) -> None:
        """Drop what `clone` and `empty` made."""
        if self._clones:
            self.address.execute(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in self._clones))
            self._clones.clear()

    def _next(self, template: str) -> str:
        self._count += 1
        name = self._create(f"clone_{self.worker}_{self._count}", template)
        self._clones.append(name)
        return name

    def _create(self, name: str, template: str) -> str:
        # wal_log copies within the write-ahead log: no checkpoint is forced, which a small database is cheaper with.
        self.address.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name


@dataclass
class SQLiteFiles:
    """Copies of one migrated file."""

    folder: Path
    _template: Path | None = None

    def copy_to(self, target: Path) -> str:
        """Make *target* a migrated and empty database; return its URL."""
        if self._template is None:
            template = self.folder / "template.sqlite3"
            migrate.upgrade(f"sqlite:///{template}")
            self._template = template
        shutil.copyfile(self._template, target)
        target.chmod(0o600)
        return f"sqlite:///{target}"
