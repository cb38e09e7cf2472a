"""`fsck`: the registry's entry, its reader, and its renderer. Data, but for the reader, which loads the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reconciler.core.canonical import canonical_json
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Audit, Database, Entry, Example, Kind, Parameter
from reconciler.ops.render import Payload, Style, plain
from reconciler.ops.shapes import COUNT, FLAG, TEXT, listing, maybe, shape, words

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from reconciler.service.fsck import Finding

FSCK: Final = shape(
    database=TEXT,
    checked=shape(sessions=COUNT, submissions=COUNT),
    # At most a thousand of them, counted all.
    findings=listing(
        shape(
            check=TEXT,
            # Of the contract; "schema" for what the tables alone promise.
            invariant=TEXT,
            session_id=TEXT,
            submission_id=maybe(TEXT),
            found=TEXT,
            # repaired; repairable: --repair would do it; person: somebody has to decide.
            state=words("repaired", "repairable", "person"),
            repair=maybe(TEXT),
            # What can be done, or why the repair is safe.
            way_out=TEXT,
        )
    ),
    found=COUNT,
    repaired=COUNT,
    left=COUNT,
    # Where to go on with --after; null: all was looked at.
    after=maybe(TEXT),
    # Which invariants rows can show, and which only a running system does.
    shown=listing(TEXT),
    not_shown=listing(TEXT),
    dry_run=FLAG,
)

ENTRIES: Final = (
    Entry(
        "fsck",
        "Check every invariant that the database can show, and repair what is provably safe",
        "reconciler.ops.fsck:check",
        FSCK,
        parameters=(
            Parameter("repair", Kind.BOOLEAN, "repair what is provably safe", default=False),
            Parameter("after", Kind.ID, "go on behind this session: the `after` of an earlier answer"),
            Parameter("limit", Kind.INTEGER, "how many sessions at most", minimum=1, maximum=1_000_000_000),
            Parameter("reason", Kind.TEXT, "why, for the audit; needed on a production database"),
            Parameter("dry_run", Kind.BOOLEAN, "with --repair: say what it would do, and do nothing", default=False),
        ),
        details=(
            "Reads the whole database in pages of sessions, beside whatever is going on. A repair makes good what lags"
            " behind the record (a row behind its settlement, a counter behind what it counted, a row that nothing"
            " would ever look at); nothing of a record is changed. What is not repaired says why. Exit code 3"
            " where something is left."
        ),
        examples=(
            Example("reconciler fsck", "check everything"),
            Example("reconciler fsck --repair --dry-run", "what a repair would do"),
            Example("reconciler fsck --repair --reason 'after the restore'", "repair it"),
            Example("reconciler fsck --limit 100000 --json", "a part; `after` leads on"),
        ),
        acts=True,
        acts_with="repair",
        database=Database.WRITE,
        dry_run=True,
        audit=Audit.INSIDE,
        needs_reason=True,
        long=True,
    ),
)


def check(asked: Asked) -> Reply:
    """Answer `fsck`, or carry it out."""
    from reconciler.ops.audit import audit_row
    from reconciler.service.fsck import NOT_SHOWN, SHOWN, fsck
    from reconciler.store.audit import write_audit

    def on_repair(conn: Connection, finding: Finding) -> None:
        row = audit_row(asked, finding.session_id, finding.submission_id)
        write_audit(conn, replace(row, result=canonical_json({"repaired": finding.check, "found": finding.found})))

    report = fsck(
        asked.desk.engine,
        repair=asked["repair"],
        dry_run=asked.dry_run,
        after=asked["after"],
        limit=asked["limit"],
        limits=asked.desk.limits,
        operator=f"{asked.desk.operator} (fsck)",
        on_repair=on_repair,
        progress=lambda done, total: asked.desk.progress(done, total, "sessions checked"),
    )
    return Reply(
        {
            "database": asked.desk.database_name,
            "checked": {"sessions": report.sessions, "submissions": report.submissions},
            "findings": [
                {
                    "check": finding.check,
                    "invariant": finding.invariant,
                    "session_id": finding.session_id,
                    "submission_id": finding.submission_id,
                    "found": finding.found,
                    "state": finding.mending.value,
                    "repair": None if finding.repair is None else finding.repair.value,
                    "way_out": finding.way_out,
                }
                for finding in report.findings
            ],
            "found": report.count,
            "repaired": report.repaired,
            "left": report.left,
            "after": report.after,
            "shown": list(SHOWN),
            "not_shown": list(NOT_SHOWN),
            "dry_run": asked.dry_run,
        },
        changed=report.repaired > 0,
    )


def _render(payload: Payload, style: Style) -> list[str]:
    lines = []
    for finding in payload["findings"]:
        name = plain(finding["session_id"])
        if finding["submission_id"]:
            name += f"/{plain(finding['submission_id'])}"
        lines.append(f"{style.bold(finding['invariant'])} {name}: {plain(finding['found'])}")
        lines.append(style.dim(f"    {_STATES[finding['state']]}: {plain(finding['way_out'])}"))
    listed = len(payload["findings"])
    if payload["found"] > listed:
        lines.append(f"… and {payload['found'] - listed} more")
    if lines:
        lines.append("")
    checked = payload["checked"]
    lines.append(
        f"checked {checked['sessions']} sessions with {checked['submissions']} submissions:"
        f" found {style.bold(str(payload['found']))}, repaired {payload['repaired']}, left {payload['left']}"
    )
    if payload["after"] is not None:
        lines.append(f"there is more: go on with --after {plain(payload['after'])}")
    return lines


_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {"repaired": "repaired", "repairable": "--repair would do it", "person": "needs a person"}
)

RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType({"fsck": _render})
