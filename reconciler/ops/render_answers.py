"""One renderer per question and act: a payload in, lines for people out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from reconciler.ops import housekeeping, operations, refine, schedule, watch
from reconciler.ops.render import Column, Payload, Style, ago, pairs, plain, span, table, when
from reconciler.ops.render_record import explain, show, tail

Renderer = Callable[[Payload, Style], list[str]]
Item = Mapping[str, Any]


# --- status ----------------------------------------------------------------------------------------------------------


def _status(payload: Payload, style: Style) -> list[str]:
    counts = payload["submissions"]
    if counts is None:
        return [*_schema(payload, style), "nothing else can be told of it before its schema is the one needed"]
    now = payload["now"]
    lines = [style.bold(plain(payload["database"])), ""]
    lines += pairs(
        [
            ("queued", counts["queued"]),
            ("running", counts["running"]),
            ("waiting", counts["waiting"]),
            ("settled", counts["settled"]),
        ],
        style,
    )
    lines.append("")
    needs = [
        ("held", payload["held"], f"in {payload['quarantined_sessions']} sessions; they need a person"),
        ("overdue", payload["overdue"], "claimable for too long"),
        ("blocked", payload["blocked"], "no runner has had what they need"),
        ("lease ended", payload["lease_ended"], "their runner went silent"),
        ("due", payload["due"], "the next pass looks at them"),
        ("claimable", payload["claimable"], "a runner may have them now"),
        ("mirrored", payload["mirrored"], "of sessions that another program owns"),
        ("unacknowledged", payload["unacknowledged"], "settled while nobody listened"),
        ("silent instances", payload["silent_instances"], "no sign of life, no good-bye"),
        ("missed slots", payload["missed_slots"], "due and not finished"),
    ]
    shown = [need for need in needs if need[1]]
    if shown:
        width = max(len(name) for name, _, _ in shown)
        digits = max(len(str(count)) for _, count, _ in shown)
        lines += [
            f"{name.ljust(width)}  {style.bold(str(count).rjust(digits))}  {style.dim(what)}"
            for name, count, what in shown
        ]
    else:
        lines.append("nothing waits for anybody")
    lines.append("")
    last = payload["last_pass"]
    lines += pairs(
        [
            ("oldest pending", ago(payload["oldest_pending_at"], now)),
            ("oldest due", ago(payload["oldest_due_at"], now)),
            ("daemons, runners", f"{payload['instances']['daemon']}, {payload['instances']['runner']}"),
            ("daemon's last beat", ago(payload["daemon_beat_at"], now)),
            (
                "last pass with work",
                "none yet"
                if last is None
                else f"{ago(last['finished_at'], now)}, {last['scanned']} rows in {span(last['took_s'])}",
            ),
            ("schema", payload["schema"]["found"]),
        ],
        style,
    )
    return lines


# --- list ------------------------------------------------------------------------------------------------------------


def _state(row: Item) -> str:
    if row["unreadable"]:
        return "damaged"
    if row["held_at"] is not None:
        return "held"
    if row["outcome"]:
        return str(row["outcome"])
    if row["overdue"]:
        return "overdue"
    return "blocked" if row["blocked"] else str(row["status"])


def _reason(row: Item) -> object:
    if row["held_reason"]:
        return row["held_reason"]
    return row["reason"] if row["action"] in (None, "settle") else f"{row['action']}: {row['reason']}"


_LIST_COLUMNS: Final = (
    Column("SESSION", lambda row: row["session_id"], shrinks=True, least=12),
    Column("SUBMISSION", lambda row: row["submission_id"], shrinks=True, least=12),
    Column("STATE", _state, coloured=True),
    Column("REASON", _reason, shrinks=True),
    Column("ADMITTED", lambda row: when(row["admitted_at"])),
    Column("SETTLED", lambda row: when(row["settled_at"])),
    Column("TRIES", lambda row: row["claims"] or None, right=True),
    Column("OWNER", lambda row: row["owner"], shrinks=True),
)


def _list(payload: Payload, style: Style) -> list[str]:
    rows = payload["submissions"]
    if not rows:
        return ["no submissions"]
    lines = table(rows, _LIST_COLUMNS, style)
    lines += [
        f"{style.paint('damaged:', 31)} {plain(row['session_id'])}/{plain(row['submission_id'])}:"
        f" {plain(row['unreadable'])}; see `reconciler fsck`"
        for row in rows
        if row["unreadable"]
    ]
    if payload["next_page"]:
        lines += ["", style.dim(f"more: --page {payload['next_page']}")]
    return lines


# --- files -----------------------------------------------------------------------------------------------------------

_PROBLEMS_SHOWN: Final = 20
_NO_FILES: Final = (
    "no session files there: a folder is searched for .jsonl files, SQLite databases and exported sessions"
)

_VERDICT_COLUMNS: Final = (
    Column("FILE", lambda row: row["file"].rpartition("/")[2], shrinks=True, least=36),
    Column("SUBMISSION", lambda row: row["submission_id"], shrinks=True, least=9),
    Column("STATE", lambda row: row["state"], coloured=True),
    Column("DETAIL", lambda row: row["detail"]),
    Column("DECIDED BY", lambda row: row["deciding_entry_id"], shrinks=True, least=9),
    Column("OPEN", lambda row: len(row["unresolved_tool_calls"]) or None, right=True),
    Column("NOTE", lambda row: row["integrity"] or (row["stopped_by"] and f"stopped by {row['stopped_by']}")),
)


def _verdicts(payload: Payload) -> list[dict[str, Any]]:
    return [{**submission, "file": file["file"]} for file in payload["files"] for submission in file["submissions"]]


def _inspect(payload: Payload, style: Style) -> list[str]:
    if not payload["files"]:
        return [_NO_FILES]
    lines = table(_verdicts(payload), _VERDICT_COLUMNS, style)
    for file in payload["files"]:
        if file["submissions"] or file["format"] is None:
            # What could not be read is named among the problems.
            continue
        empty = "no session in it" if file["session_id"] is None else "no prompt that waits for an outcome"
        lines.append(f"{plain(file['file'])}: {empty}")
    return [*lines, *_problems(payload, style)]


def _problems(payload: Payload, style: Style) -> list[str]:
    lines: list[str] = []
    for file in payload["files"]:
        shown = file["problems"][:_PROBLEMS_SHOWN]
        for problem in shown:
            place = plain(file["file"]) if problem["line"] is None else f"{plain(file['file'])}:{problem['line']}"
            if file["format"] is None:
                # Its message names the file already.
                lines.append(f"{style.paint('not read:', 31)} {plain(problem['message'])} ({problem['code']})")
                if problem.get("hint"):
                    lines.append(style.dim(f"  way out: {plain(problem['hint'])}"))
                continue
            lines.append(f"{style.paint('problem:', 33)} {place}: {plain(problem['message'])} ({problem['code']})")
        count = max(file.get("problem_count", 0), len(file["problems"]))
        if count > len(shown):
            lines.append(style.dim(f"  … {count - len(shown)} more problems in {plain(file['file'])}"))
    return lines


def _import(payload: Payload, style: Style) -> list[str]:
    counts = payload["imported"]
    verdicts = _verdicts(payload)
    states = Counter(str(verdict["state"]) for verdict in verdicts)
    lines = table([verdict for verdict in verdicts if verdict["integrity"]], _VERDICT_COLUMNS, style)
    lines += _problems(payload, style)
    if lines:
        lines.append("")
    verb = "would import" if payload["dry_run"] else "imported"
    done = f"{counts['sessions']} sessions, {counts['entries']} entries, {counts['submissions']} submissions"
    lines.append(style.bold(f"{verb} {done}") + f" from {counts['files']} files")
    if not payload["files"]:
        lines.append(_NO_FILES)
    if counts["files_unchanged"]:
        whys = Counter(file["imported"]["unchanged"] for file in payload["files"] if "imported" in file)
        why = ", ".join(f"{text} {whys[word]}" for word, text in _UNCHANGED.items() if whys[word])
        lines.append(f"nothing new in {counts['files_unchanged']} files: {why}")
    if states:
        lines.append("their prompts: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    if counts["owned"]:
        lines.append(f"sessions that {'would be' if payload['dry_run'] else 'are'} native now: {len(counts['owned'])}")
    if counts["late_evidence"]:
        lines.append(f"evidence came after the outcome of: {plain(', '.join(counts['late_evidence'][:20]))}")
    if payload["failed"]:
        lines.append(style.paint(f"{payload['failed']} files could not be imported", 31))
    return lines


# Why a file gave nothing new.
_UNCHANGED: Final = {"same": "unchanged", "older_copy": "older copies", "owned": "native here already"}


# --- work ------------------------------------------------------------------------------------------------------------


def _once(payload: Payload, style: Style) -> list[str]:
    settled = payload["settled"]
    parts = [
        *((f"settled {outcome}", settled[outcome]) for outcome in ("completed", "failed", "aborted")),
        ("requeued", payload["requeued"]),
        ("held", payload["held"]),
        ("adopted", payload["adopted"]),
        ("advised", payload.get("advised", 0)),
        ("left alone", payload["left_alone"]),
        ("conflicts", payload["conflicts"]),
        ("locked", payload["locked"]),
        ("set aside", payload["set_aside"]),
        ("not judged yet", payload["unjudged"]),
    ]
    did = [f"{name} {style.bold(str(count))}" for name, count in parts if count]
    head = "a pass would scan" if payload["dry_run"] else "scanned"
    lines = [f"{head} {payload['scanned']}" + (f": {', '.join(did)}" if did else ": nothing to do")]
    if payload["pass_id"] and not payload["dry_run"] and did:
        lines.append(style.dim(f"pass {plain(payload['pass_id'])}"))
    for row in payload["set_aside_rows"]:
        name = f"{plain(row['session_id'])}/{plain(row['submission_id'])}"
        lines.append(f"{style.paint('set aside:', 31)} {name}: {plain(row['error'])}; see `reconciler fsck`")
    return lines


def _submit(payload: Payload, style: Style) -> list[str]:
    name = f"{plain(payload['session_id'])}/{plain(payload['submission_id'])}"
    if payload["dry_run"]:
        return [f"would admit {style.bold(name)}" if payload["created"] else f"{style.bold(name)} was admitted already"]
    if payload["created"]:
        return [f"admitted {style.bold(name)}"]
    return [f"{style.bold(name)} was admitted already; it is {payload['status']}"]


def _act(payload: Payload, style: Style) -> list[str]:
    return [
        f"{style.bold(payload['result'] + ':')} {plain(payload['message'])}",
        *operations.bulk_lines(payload, style),
    ]


# --- database and configuration --------------------------------------------------------------------------------------


def _schema(payload: Payload, style: Style) -> list[str]:
    return pairs(
        [
            ("database", payload["database"]),
            ("schema found", payload["schema"]["found"] or "none"),
            ("schema needed", payload["schema"]["needed"]),
        ],
        style,
    )


def _db_check(payload: Payload, style: Style) -> list[str]:
    lines = _schema(payload, style)
    if payload["schema"]["found"] != payload["schema"]["needed"]:
        return [*lines, "the schema is not the one that is needed: see `reconciler db upgrade`"]
    if not payload["differences"]:
        return [*lines, "tables, indexes and views are as they should be"]
    return [*lines, *(f"differs: {plain(difference)}" for difference in payload["differences"])]


def _db_upgrade(payload: Payload, style: Style) -> list[str]:
    steps = payload["applied"]
    if not steps:
        return [*_schema(payload, style), "nothing to do"]
    return [*_schema(payload, style), f"{'would apply' if payload['dry_run'] else 'applied'}: {', '.join(steps)}"]


def _config(payload: Payload, style: Style) -> list[str]:
    lines = pairs([("configuration file", payload["config_file"] or "none")], style)
    lines.append("")
    lines += table(
        payload["settings"],
        (
            Column("SETTING", lambda row: row["name"]),
            Column("VALUE", lambda row: row["value"], shrinks=True),
            Column("FROM", lambda row: row["source"], shrinks=True),
        ),
        style,
    )
    if payload["contexts"]:
        lines.append("")
        lines += table(
            payload["contexts"],
            (
                Column("CONTEXT", lambda row: row["name"] + (" *" if row["current"] else "")),
                Column("URL", lambda row: row["url"] or f"in {row['url_env']}", shrinks=True),
                Column("PRODUCTION", lambda row: "yes" if row["production"] else None),
            ),
            style,
        )
    return lines


RENDERERS: Final[Mapping[str, Renderer]] = MappingProxyType(
    {
        "status": _status,
        "list": _list,
        "show": show,
        "explain": explain,
        "tail": tail,
        "inspect": _inspect,
        "import": _import,
        "once": _once,
        "submit": _submit,
        **refine.RENDERERS,
        **schedule.RENDERERS,
        **housekeeping.RENDERERS,
        **watch.RENDERERS,
        "db current": _schema,
        "db check": _db_check,
        "db upgrade": _db_upgrade,
        "config show": _config,
        **dict.fromkeys(("abort", "retry", "settle", "release", "resolve", "move-leaf"), _act),
    }
)
