"""`doctor`: the registry's entry, its reader, and its renderer. Data, but for the reader, which loads the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Database, Entry, Example
from reconciler.ops.payloads import SCHEMA_STATE
from reconciler.ops.render import Payload, Style, plain
from reconciler.ops.shapes import FLAG, TEXT, listing, maybe, shape, words

DOCTOR: Final = shape(
    database=TEXT,
    reachable=FLAG,
    # Null where it could not be read, or is one that `db upgrade` knows no way from.
    schema=maybe(SCHEMA_STATE),
    # The worst of the checks.
    status=words("ok", "warning", "error"),
    checks=listing(shape(name=TEXT, status=words("ok", "warning", "error"), message=TEXT, hint=maybe(TEXT))),
)

ENTRIES: Final = (
    Entry(
        "doctor",
        "Examine the installation: what is wrong, how bad it is, and what can be done",
        "reconciler.ops.doctor:doctor",
        DOCTOR,
        database=Database.ANY,
        details=(
            "Looks at the database (schema, tables, indexes, clock, open transactions, dead rows, disk, permissions),"
            " at what waits for somebody, and at settings that do not go together. Exit code 1 where something is"
            " broken, 3 where somebody should look, 75 where the database cannot be reached. Writes nothing."
        ),
        examples=(
            Example("reconciler doctor", "everything, with its way out"),
            Example("reconciler doctor --json", "the same for programs"),
        ),
        long=True,
    ),
)


def doctor(asked: Asked) -> Reply:
    """Answer `doctor`."""
    from reconciler.service.doctor import Severity, examine

    settings = {row["name"]: row["value"] for row in asked.desk.configuration.get("settings", ())}
    found = examine(asked.desk.engine, limits=asked.desk.limits, settings=settings)
    statuses = {finding.status for finding in found.findings}
    worst = next(word for word in (Severity.ERROR, Severity.WARNING, Severity.OK) if word in {*statuses, Severity.OK})
    return Reply(
        {
            "database": asked.desk.database_name,
            "reachable": found.reachable,
            "schema": None if found.schema is None else {"found": found.schema.found, "needed": found.schema.needed},
            "status": worst.value,
            "checks": [
                {
                    "name": finding.name,
                    "status": finding.status.value,
                    "message": finding.message,
                    "hint": finding.hint,
                }
                for finding in found.findings
            ],
        }
    )


_COLOURS: Final = {"ok": 32, "warning": 33, "error": 31}


def _render(payload: Payload, style: Style) -> list[str]:
    lines = [style.bold(plain(payload["database"])), ""]
    width = max(len(check["name"]) for check in payload["checks"])
    for check in payload["checks"]:
        status = style.paint(check["status"].ljust(7), _COLOURS[check["status"]])
        lines.append(f"{status}  {check['name'].ljust(width)}  {plain(check['message'])}")
        if check["hint"]:
            lines.append(f"{' ' * (width + 11)}{style.dim('way out: ' + plain(check['hint']))}")
    return lines


RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType({"doctor": _render})
