"""Questions about the whole: how things stand, and with which settings."""

from __future__ import annotations

from typing import Any

from reconciler.ops.asking import Asked, Reply
from reconciler.ops.values import instant
from reconciler.store import queries
from reconciler.store.engine import require_schema, schema_state


def status(asked: Asked) -> Reply:
    """Answer `status`. Where the database has another schema, nothing else can be told of it.

    Raises:
        SchemaMismatch: it holds no version of ours, or there is no such file.
    """
    state = schema_state(asked.desk.engine)
    if not state.matches and state.found is not None:
        unknown = dict.fromkeys(asked.entry.payload["properties"])
        found = {"found": state.found, "needed": state.needed}
        return Reply({**unknown, "schema": found, "database": asked.desk.database_name})
    require_schema(asked.desk.engine, for_writing=False)
    with asked.reading() as conn:
        counts = queries.count_all(conn, overdue_s=asked.desk.limits.overdue_s)
    last = counts.last_pass
    return Reply(
        {
            "schema": {"found": state.found, "needed": state.needed},
            "database": asked.desk.database_name,
            "now": instant(counts.now),
            "submissions": {
                word: counts.by_status.get(word, 0) for word in ("queued", "running", "waiting", "settled")
            },
            "held": counts.held,
            "quarantined_sessions": counts.quarantined_sessions,
            "due": counts.due,
            "claimable": counts.claimable,
            "overdue": counts.overdue,
            "blocked": counts.blocked,
            "mirrored": counts.mirrored,
            "lease_ended": counts.lease_ended,
            "unacknowledged": counts.unacknowledged,
            "oldest_pending_at": instant(counts.oldest_pending_at),
            "oldest_due_at": instant(counts.oldest_due_at),
            "instances": {word: counts.instances.get(word, 0) for word in ("daemon", "runner")},
            "daemon_beat_at": instant(counts.daemon_beat_at),
            "silent_instances": counts.silent_instances,
            "missed_slots": counts.missed_slots,
            "last_pass": None
            if last is None
            else {
                "pass_id": last["id"],
                "finished_at": instant(last["finished_at"]),
                "took_s": round((last["finished_at"] - last["started_at"]).total_seconds(), 6),
                "scanned": last["scanned"],
            },
        }
    )


def config_show(asked: Asked) -> Reply:
    """Answer `config show` with what the composition root prepared."""
    configuration: dict[str, Any] = dict(asked.desk.configuration)
    return Reply(configuration)
