"""What a database says of its own tables, indexes, constraints and views, as texts that can be compared."""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from reconciler.store.dialect import is_postgresql
from reconciler.store.engine import VERSION_TABLE, schema_of

_POSTGRESQL = {
    "column": """
        SELECT c.relname || '.' || a.attname,
               concat(format_type(a.atttypid, a.atttypmod), ' collate ', co.collname,
                      CASE WHEN a.attnotnull THEN ' not null' END,
                      ' default ', pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated)
        FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'v')
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        LEFT JOIN pg_collation co ON co.oid = a.attcollation
        WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = to_regnamespace(:schema)""",
    "table": """
        SELECT relname, concat_ws(' ', relkind, relpersistence, array_to_string(reloptions, ','))
        FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'S') AND relnamespace = to_regnamespace(:schema)""",
    "constraint": """
        SELECT c.relname || '.' || o.conname, pg_get_constraintdef(o.oid)
        FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
        WHERE o.connamespace = to_regnamespace(:schema)""",
    "index": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = :name",
    "view": "SELECT viewname, definition FROM pg_views WHERE schemaname = :name",
}


def catalog(conn: Connection) -> dict[str, str]:
    """Return everything in our schema but Alembic's table: name -> definition, as the database keeps it."""
    found: dict[str, str] = {}
    if is_postgresql(conn):
        schema = schema_of(conn)
        for kind, query in _POSTGRESQL.items():
            rows = conn.execute(sa.text(query), {"schema": f'"{schema}"', "name": schema})
            found |= {f"{kind} {name}": definition for name, definition in rows}
    else:
        query = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
        for name, definition in conn.exec_driver_sql(query):
            found[name] = _sorted_parts(definition)
    return {name: definition for name, definition in found.items() if VERSION_TABLE not in name}


def _sorted_parts(definition: str) -> str:
    # SQLite keeps the text of the statement: blanks, and the order in which constraints were named, mean nothing.
    text = re.sub(r"\s+", " ", definition).strip()
    if not text.startswith("CREATE TABLE"):
        return text
    head, _, body = definition.partition("(")
    inside, _, tail = body.rpartition(")")
    parts = sorted(re.sub(r"\s+", " ", part).strip() for part in re.split(r",\s*\n", inside))
    return f"{head.strip()} ({' | '.join(parts)}) {tail.strip()}"
