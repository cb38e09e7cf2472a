"""`prune` and `prune forget`: the registry's entries, their readers, and their renderers.

The entries are data; readers load the service when they are asked. How long things are kept stands in the
configuration, and each time may be given for one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from reconciler.core.states import Outcome
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Audit, Database, Entry, Example, Kind, Parameter
from reconciler.ops.render import Column, Payload, Style, plain, table
from reconciler.ops.shapes import COUNT, FLAG, INSTANT, NUMBER, TEXT, listing, maybe, shape, words
from reconciler.ops.values import instant
from reconciler.service.settings import DEFAULT_DAEMON, retention

_DAYS_MAX: Final = 36_600

PRUNE: Final = shape(
    dry_run=FLAG,
    total=COUNT,
    kinds=listing(shape(kind=TEXT, keep_days=maybe(NUMBER), rows=COUNT)),
    # False: a bound ended the run, there is more.
    complete=FLAG,
    # The longest transaction; 0 in a dry run.
    longest_s=NUMBER,
)
FORGET: Final = shape(
    session_id=TEXT,
    submission_id=TEXT,
    result=words("done", "would"),
    outcome=words(*Outcome),
    settled_at=INSTANT,
    message=TEXT,
    dry_run=FLAG,
)

_WHAT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "completed": "submissions that were completed",
        "failed": "submissions that failed",
        "aborted": "submissions that were aborted",
        "unacknowledged": "outcomes that nobody has taken note of",
        "entries": "what was said in sessions without a submission left",
        "payloads": "the texts of settled sessions",
        "decisions": "decisions about settled submissions",
        "passes": "passes",
        "slots": "schedule slots",
        "instances": "processes that are gone",
        "operations": "bulk acts that are over",
        "audit": "the audit",
    }
)


def _keep(name: str) -> Parameter:
    kind = name.removeprefix("keep_").removesuffix("_days")
    return Parameter(
        name,
        Kind.NUMBER,
        f"how many days to keep {_WHAT[kind]}; 0 for ever (default: daemon.{name} of the configuration)",
        minimum=0,
        maximum=_DAYS_MAX,
    )


ENTRIES: Final = (
    Entry(
        "prune",
        "Remove what is over and old, in short pieces",
        "reconciler.ops.prune:prune",
        PRUNE,
        parameters=(
            *(_keep(name) for name in retention(DEFAULT_DAEMON)),
            Parameter("limit", Kind.INTEGER, "how many rows at most", minimum=1, maximum=1_000_000_000),
            Parameter("reason", Kind.TEXT, "why, for the audit"),
            Parameter("dry_run", Kind.BOOLEAN, "count what would go, and remove nothing", default=False),
        ),
        details=(
            "A submission goes with its attempts and decisions once it is settled for long enough; its id, outcome and"
            " content digest are remembered, so that it is never run again. What was said in a session goes only when"
            " every submission of it is gone. What something pending refers to is never touched."
        ),
        examples=(
            Example("reconciler prune --dry-run", "how much would go"),
            Example("reconciler prune", "remove it"),
            Example("reconciler prune --keep-completed-days 7 --dry-run", "with another time for completed work"),
        ),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.FIRST,
        long=True,
    ),
    Entry(
        "prune forget",
        "Forget that a pruned submission was settled: its id may be admitted again",
        "reconciler.ops.prune:forget",
        FORGET,
        parameters=(
            Parameter("submission", Kind.ID, "the submission, as SESSION/SUBMISSION", required=True, positional=True),
            Parameter("session", Kind.ID, "the session, where the submission's id alone is given"),
            Parameter("reason", Kind.TEXT, "why, for the audit; needed on a production database"),
            Parameter("dry_run", Kind.BOOLEAN, "say what would be done, and do nothing", default=False),
        ),
        details="Whoever submits the id again has its work done again. The audit keeps what was forgotten.",
        examples=(Example("reconciler prune forget SESSION/SUBMISSION --reason 'to be done anew'", "forget it"),),
        acts=True,
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.INSIDE,
        needs_reason=True,
    ),
)


def prune(asked: Asked) -> Reply:
    """Carry out `prune`."""
    from reconciler.ops.audit import Noted
    from reconciler.service.first_write import FirstWrite
    from reconciler.service.prune import KINDS, ROWS_MAX_DEFAULT, PrunePolicy, prune_once

    given = {name: value for name, value in asked.params.items() if name.startswith("keep_") and value is not None}
    policy = PrunePolicy.of_settings({**asked.desk.work_settings, **given})
    noted = Noted(asked)
    first = FirstWrite(noted.write)
    report = prune_once(
        asked.desk.engine,
        policy,
        dry_run=asked.dry_run,
        rows_max=asked["limit"] or ROWS_MAX_DEFAULT,
        progress=lambda rows: asked.desk.progress(rows, None, "rows removed"),
        first=first,
    )
    if first.landed:
        noted.outcome({"removed": {kind: count for kind, count in report.removed.items() if count}})
    return Reply(
        {
            "dry_run": asked.dry_run,
            "total": report.total,
            "kinds": [
                {"kind": kind, "keep_days": getattr(policy, kind) or None, "rows": report.removed[kind]}
                for kind in KINDS
            ],
            "complete": report.complete,
            "longest_s": round(report.longest_s, 6),
        },
        changed=report.total > 0,
    )


def forget(asked: Asked) -> Reply:
    """Carry out `prune forget`."""
    from sqlalchemy.engine import Connection

    from reconciler.ops.acting import audit, named, perform
    from reconciler.store import prune as store

    def work(conn: Connection) -> Reply:
        session_id, submission_id = named(conn, asked)
        gone = store.forget(conn, session_id, submission_id)
        audit(conn, asked, session_id, submission_id)
        return Reply(
            {
                "session_id": session_id,
                "submission_id": submission_id,
                "result": "would" if asked.dry_run else "done",
                "outcome": gone.outcome,
                "settled_at": instant(gone.settled_at),
                "message": f'forgot that "{session_id}/{submission_id}" was settled {gone.outcome}: submitted again, it'
                " is run again",
                "dry_run": asked.dry_run,
            },
            session_id=session_id,
            submission_id=submission_id,
        )

    return perform(asked, work)


# --- renderers -------------------------------------------------------------------------------------------------------


def _prune(payload: Payload, style: Style) -> list[str]:
    verb = "would remove" if payload["dry_run"] else "removed"
    lines = [f"{verb} {style.bold(str(payload['total']))} rows"]
    lines += table(
        [row for row in payload["kinds"] if row["rows"]],
        (
            Column("KIND", lambda row: row["kind"]),
            Column("ROWS", lambda row: row["rows"], right=True),
            Column("KEPT FOR", lambda row: f"{row['keep_days']:g} days" if row["keep_days"] else "ever"),
            Column("WHAT", lambda row: _WHAT[row["kind"]], shrinks=True),
        ),
        style,
    )
    if not payload["complete"]:
        lines.append("there is more: call it again")
    return lines


def _forget(payload: Payload, style: Style) -> list[str]:
    return [f"{style.bold(payload['result'] + ':')} {plain(payload['message'])}"]


RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType(
    {"prune": _prune, "prune forget": _forget}
)
