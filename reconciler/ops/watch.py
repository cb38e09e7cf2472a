"""`watch`: one look at other programs' sessions; asked again on the same desk, it tells what has changed since.

The entry is data; the reader loads the service when it is asked. It reads sources alone, and writes nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reconciler.core.model import Detail, SubmissionInspection
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Database, Entry, Example, Kind, Parameter
from reconciler.ops.parameters import FORMAT
from reconciler.ops.render import Payload, Style, plain
from reconciler.ops.shapes import COUNT, FLAG, NUMBER, TEXT, Shape, listing, maybe, shape, words

if TYPE_CHECKING:
    from reconciler.service.watch import Change, Watcher

STANDINGS: Final = (
    "working",
    "answered",
    "stuck",
    "lost_answer",
    "waiting",
    "stopped",
    "queued",
    "damaged",
    "unreadable",
)
# Told by default; the rest only where it was another of these before, or with --all.
_TOLD: Final = frozenset({"stuck", "lost_answer", "waiting", "stopped", "damaged", "unreadable", "queued"})
_COUNTED: Final[Shape] = {"type": "object", "additionalProperties": COUNT}

WATCH: Final = shape(
    # Files and databases, and those of them that were read for this answer or still have to be.
    sources=COUNT,
    read=listing(TEXT),
    behind=COUNT,
    standings=_COUNTED,
    changes=listing(
        shape(
            source=TEXT,
            format=maybe(TEXT),
            session_id=maybe(TEXT),
            submission_id=maybe(TEXT),
            standing=words(*STANDINGS),
            was=maybe(words(*STANDINGS)),
            state=maybe(words(*SubmissionInspection)),
            detail=maybe(words(*Detail)),
            unresolved_tool_calls=listing(TEXT),
            stopped_by=maybe(TEXT),
            unlogged_calls_possible=FLAG,
            # How long nothing has come of it, in seconds.
            quiet_s=NUMBER,
            message=TEXT,
        )
    ),
)

ENTRIES: Final = (
    Entry(
        "watch",
        "Watch other programs' sessions: which are stuck, which lost their answer",
        "reconciler.ops.watch:watch",
        WATCH,
        parameters=(
            Parameter(
                "sources",
                Kind.TEXT,
                "session files, folders, SQLite databases, postgresql:// URLs",
                required=True,
                positional=True,
                many=True,
            ),
            FORMAT,
            Parameter(
                "quiet",
                Kind.NUMBER,
                "how long nothing has to come before a turn counts as left, in seconds (default: limits.quiet_s)",
                minimum=0,
                maximum=7 * 86400,
            ),
            Parameter("since", Kind.INSTANT, "of a folder, only files written to since (default: 7 days ago)"),
            Parameter(
                "whole",
                Kind.BOOLEAN,
                "read and tell everything in one look, not the newest sources first and the rest in later ones",
                default=False,
            ),
            Parameter("all", Kind.BOOLEAN, "tell of what is answered or being worked on too", default=False),
        ),
        database=Database.NONE,
        details=(
            "Reads the sources and writes nothing: no source, and no database. On a command line it follows until it is"
            " interrupted, and tells what changes; --once looks once, at everything. A turn that nothing came of for a"
            " while is stuck (the prompt or a call came last) or lost its answer (the model owes it). --import imports"
            " what changed, after each look."
        ),
        examples=(
            Example("reconciler watch ~/.codex/sessions", "follow a folder"),
            Example("reconciler watch opencode.db --once --json", "look once, for programs"),
            Example("reconciler watch postgresql://reader@host/agents --quiet 600", "a database, patiently"),
        ),
        long=True,
    ),
)


def watch(asked: Asked) -> Reply:
    """Look once. On one desk the looks at the same sources belong together: later ones tell what changed."""
    found = _watcher(asked).round(whole=bool(asked["whole"]))
    shown = [
        _change(change)
        for change in found.changes
        if asked["all"] or change.standing.value in _TOLD or (change.was is not None and change.was.value in _TOLD)
    ]
    payload = {
        "sources": found.sources,
        "read": list(found.read),
        "behind": found.behind,
        "standings": found.standings,
        "changes": shown,
    }
    return Reply(payload)


def _watcher(asked: Asked) -> Watcher:
    from reconciler.service.watch import RECENT_S, Watcher, WatchOptions

    options = WatchOptions(
        tuple(asked["sources"]),
        quiet_s=asked.desk.limits.quiet_s if asked["quiet"] is None else float(asked["quiet"]),
        recent_s=RECENT_S if asked["since"] is None else max(0.0, (asked.now - asked["since"]).total_seconds()),
        **({} if asked["format"] is None else {"format": asked["format"]}),
    )
    # The same question goes on where it was; how far back it looks moves with the clock.
    key = f"watch {options.sources} {options.format} {options.quiet_s}"
    found: Watcher | None = asked.desk.kept.get(key)
    if found is None:
        found = asked.desk.kept[key] = Watcher(options)
    return found


def _change(change: Change) -> dict[str, Any]:
    verdict = change.verdict
    return {
        "source": change.source,
        "format": change.format,
        "session_id": change.session_id,
        "submission_id": change.submission_id,
        "standing": change.standing.value,
        "was": None if change.was is None else change.was.value,
        "state": verdict.get("state"),
        "detail": verdict.get("detail"),
        "unresolved_tool_calls": verdict.get("unresolved_tool_calls", []),
        "stopped_by": verdict.get("stopped_by"),
        "unlogged_calls_possible": verdict.get("unlogged_calls_possible", False),
        "quiet_s": round(change.quiet_s, 1),
        "message": change.message or _sentence(change),
    }


def _sentence(change: Change) -> str:
    calls = change.verdict.get("unresolved_tool_calls", [])
    match change.standing.value:
        case "stuck" if calls:
            named = ", ".join(calls[:5]) + (", …" if len(calls) > 5 else "")
            return f"left inside {len(calls)} tool call{'' if len(calls) == 1 else 's'} ({named}): may have happened"
        case "stuck":
            return "left after its prompt: nothing shows that the model answered"
        case "lost_answer":
            return "left before its answer: the model still owes it"
        case "waiting":
            return f"waits for {change.waits_for}"
        case "stopped":
            return "stopped by a person: nobody asked for more"
        case "queued":
            return "accepted, and not begun"
        case "damaged":
            return f"the record is damaged: {change.verdict.get('integrity')}"
        case "answered":
            return "answered"
        case _:
            return "being worked on"


_PAINT: Final = {
    "stuck": 31,
    "lost_answer": 31,
    "damaged": 31,
    "unreadable": 31,
    "waiting": 33,
    "stopped": 33,
    "answered": 32,
}


def _render(payload: Payload, style: Style) -> list[str]:
    lines = []
    for change in payload["changes"]:
        name = style.paint(f"{change['standing']:<11}", _PAINT.get(change["standing"], 0))
        where = plain("/".join(part for part in (change["session_id"], change["submission_id"]) if part))
        quiet = f", quiet for {_span(change['quiet_s'])}" if change["standing"] in ("stuck", "lost_answer") else ""
        more = "; other tools may have run" if change["unlogged_calls_possible"] and quiet else ""
        lines.append(f"{name} {where or plain(change['source'])}: {plain(change['message'])}{quiet}{more}")
        if where:
            lines.append(style.dim(f"            {plain(change['source'])}"))
    if payload["behind"]:
        lines.append(style.dim(f"{payload['behind']} sources are still to be read"))
    return lines


def _span(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType({"watch": _render})
