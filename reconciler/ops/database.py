"""The database itself: which schema it has, whether it is whole, and bringing it to the schema that is needed."""

from __future__ import annotations

from dataclasses import replace

from reconciler.ops.asking import Asked, Desk, Reply


def create(desk: Desk) -> None:
    """Make an SQLite file with the needed schema where there is none: set-up, not migration (I16).

    An existing database is left as it is, whatever its schema.
    """
    from reconciler.store.engine import require_schema
    from reconciler.store.migrate import upgrade

    engine = desk.make_engine(create=True)
    try:
        upgrade(engine)
    finally:
        engine.dispose()
    require_schema(desk.engine)


def plan_without(desk: Desk) -> Desk:
    """Return a desk for a dry run where there is no database yet: on an empty one in memory, made as the real one would
    be. Close it.
    """
    from reconciler.store.engine import scratch_engine
    from reconciler.store.migrate import upgrade

    engine = scratch_engine(desk.database_name)
    upgrade(engine)
    return replace(desk, make_engine=lambda **_: engine, may_create=lambda: False, kept={}, _engine=engine)


def current(asked: Asked) -> Reply:
    """Answer `db current`."""
    from reconciler.store.engine import schema_state

    state = schema_state(asked.desk.engine)
    return Reply(
        {"database": asked.desk.database_name, "schema": {"found": state.found, "needed": state.needed}},
    )


def check(asked: Asked) -> Reply:
    """Answer `db check`."""
    from reconciler.store.engine import schema_state
    from reconciler.store.migrate import differences

    state = schema_state(asked.desk.engine)
    found = differences(asked.desk.engine) if state.matches else []
    payload = {
        "database": asked.desk.database_name,
        "schema": {"found": state.found, "needed": state.needed},
        "differences": found,
    }
    return Reply(payload)


def upgrade_schema(asked: Asked) -> Reply:
    """Carry out `db upgrade`."""
    from reconciler.ops.audit import audit_row
    from reconciler.store.audit import write_audit
    from reconciler.store.migrate import upgrade

    engine = asked.desk.make_engine(create=not asked.dry_run)
    try:
        change = upgrade(
            engine, dry_run=asked.dry_run, beside=lambda conn: write_audit(conn, audit_row(asked, None, None))
        )
    finally:
        engine.dispose()
    found = change.before if asked.dry_run else change.after
    return Reply(
        {
            "database": asked.desk.database_name,
            "schema": {"found": found, "needed": change.after or ""},
            "applied": list(change.applied),
            "dry_run": asked.dry_run,
        },
        changed=bool(change.applied),
    )
