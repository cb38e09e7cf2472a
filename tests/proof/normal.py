"""What two histories must have in common: rows and answers without times, and without the ids of passes and processes.

Times become a mark of whether there was one, so that "held" and "not held" still differ. Knows nothing of what rows
mean beyond that.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from reconciler.ops.entry import Audit
from reconciler.ops.registry import REGISTRY
from tests.proof.places import Rows

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00|\+00)?\Z")
# Of processes and passes: which one did it is no part of what was done.
_DROPPED = {
    "decisions": ("pass_id",),
    "attempts": ("pid", "process_start", "boot_id", "machine_id", "pid_namespace"),
    # How often it was taken: more often where an instance died over it.
    "schedule_slots": ("takes",),
}
# What passes did is counted once however many there were; what they only looked at depends on how many there were.
_PASS_SUMS = ("settled_completed", "settled_failed", "settled_aborted", "requeued", "held", "adopted", "advised")
_NOTED_FIRST = {name for name, entry in REGISTRY.items() if entry.audit is Audit.FIRST}
_VERSIONS = ("session_version", "decision_version")
_NOT_COMPARED = ("instances",)


def normal_rows(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """Return *rows* as they are compared."""
    found: dict[str, list[dict[str, Any]]] = {}
    mirrored = {row["id"] for row in rows.get("sessions", []) if row["origin"] == "mirrored"}
    for table, those in rows.items():
        if table in _NOT_COMPARED:
            continue
        if table == "passes":
            found[table] = [{name: sum(row[name] for row in those) for name in _PASS_SUMS}]
            continue
        dropped = _DROPPED.get(table, ())
        found[table] = [
            {
                name: _normal(value)
                for name, value in row.items()
                # In a mirrored session a batch decides on several at one version: what it was depends on the batches.
                if name not in dropped and not (name in _VERSIONS and row["session_id"] in mirrored)
            }
            for row in those
        ]
        if table == "audit":
            # An act of many transactions is noted with the first one: called again after a death it is noted again.
            # What it came to is added at its end.
            once: dict[str, dict[str, Any]] = {}
            for number, row in enumerate(found[table]):
                is_first = row["verb"] in _NOTED_FIRST
                kept = {k: v for k, v in row.items() if k not in ("id", "result", "session_id")} if is_first else row
                once.setdefault(repr(kept) if is_first else str(number), kept)
            found[table] = list(once.values())
        if table in ("audit", "schedule_slots"):
            found[table].sort(key=repr)
    return found


def _normal(value: Any) -> Any:
    if isinstance(value, datetime) or (isinstance(value, str) and _INSTANT.match(value)):
        return "<instant>"
    return value


def same_rows(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs, a few of each table."""
    for table in sorted({*wanted, *found}):
        mine, theirs = wanted.get(table, []), found.get(table, [])
        if mine == theirs:
            continue
        if len(mine) != len(theirs):
            yield f"{table} has {len(theirs)} rows, not {len(mine)}"
        for one, other in list(zip(mine, theirs, strict=False)):
            if one != other:
                differing = {
                    name: (one.get(name), other.get(name))
                    for name in {*one, *other}
                    if one.get(name) != other.get(name)
                }
                yield f"{table}: (wanted, found) {differing}"
                break


def normal_answer(answer: Any) -> Any:
    """Return an answer as it is compared and carried to another process: plain values, no instants."""
    if isinstance(answer, enum.Enum):
        return answer.value
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        # ``repeated`` is how an answer says that it is the first one again.
        names = [item.name for item in dataclasses.fields(answer) if item.name != "repeated"]
        return {name: normal_answer(getattr(answer, name)) for name in names}
    if isinstance(answer, Mapping):
        return {str(name): normal_answer(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple | set | frozenset):
        return [normal_answer(item) for item in answer]
    if answer is None or isinstance(answer, bool | int | float):
        return answer
    return _normal(answer) if isinstance(answer, str | datetime) else repr(answer)
