"""One renderer per question and act: a payload in, lines for people out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from reconciler.ops import refine, schedule
from reconciler.ops.render import Column, Payload, Style, ago, fit, plain, span, table, when

Renderer = Callable[[Payload, Style], list[str]]
Item = Mapping[str, Any]


def _pairs(pairs: Sequence[tuple[str, object]], style: Style) -> list[str]:
    shown = [(name, plain(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"{style.dim(name.ljust(width))}  {value}" for name, value in shown]


# --- status ----------------------------------------------------------------------------------------------------------


def _status(payload: Payload, style: Style) -> list[str]:
    counts = payload["submissions"]
    now = payload["now"]
    lines = [style.bold(plain(payload["database"])), ""]
    lines += _pairs(
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
    lines += _pairs(
        [
            ("oldest pending", ago(payload["oldest_pending_at"], now)),
            ("oldest due", ago(payload["oldest_due_at"], now)),
            ("daemons, runners", f"{payload['instances']['daemon']}, {payload['instances']['runner']}"),
            (
                "last pass",
                "none that did anything"
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
    if payload["next_page"]:
        lines += ["", style.dim(f"more: --page {payload['next_page']}")]
    return lines


# --- show ------------------------------------------------------------------------------------------------------------


def _what(entry: Item) -> str:
    if entry["kind"] != "message":
        return str(entry["kind"])
    words = [str(entry["role"] or "message")]
    if entry["stop_reason"]:
        words.append(f"({entry['stop_reason']})")
    if entry["tool_call_ids"]:
        count = len(entry["tool_call_ids"])
        words.append(f"{count} call{'s' if count != 1 else ''}")
    if entry["is_sidechain"]:
        words.append("sidechain")
    if entry["is_synthetic"]:
        words.append("synthetic")
    return " ".join(words)


def _show(payload: Payload, style: Style) -> list[str]:
    source = payload["source"]
    lines = [style.bold(f"session {plain(payload['session_id'])}")]
    lines += _pairs(
        [
            ("origin", payload["origin"]),
            ("source", None if source is None else f"{source['locator']} ({source['format']})"),
            ("owned since", None if source is None else when(source["owned_at"])),
            ("entries", payload["entry_count"]),
            ("version", payload["version"]),
            ("leaf", payload["leaf_entry_id"]),
            ("damage", payload["damage"]),
        ],
        style,
    )
    if payload["submissions"]:
        lines.append("")
        lines += table(
            payload["submissions"],
            (
                Column("SUBMISSION", lambda row: row["submission_id"], shrinks=True),
                Column(
                    "STATE",
                    lambda row: "held" if row["held_reason"] else row["outcome"] or row["status"],
                    coloured=True,
                ),
                Column("REASON", lambda row: row["held_reason"] or row["reason"], shrinks=True),
                Column("ADMITTED", lambda row: when(row["admitted_at"])),
                Column("SETTLED", lambda row: when(row["settled_at"])),
            ),
            style,
        )
    lines.append("")
    width = max((len(entry["graph"]) for entry in payload["entries"]), default=0)
    lines += [_entry_line(entry, width, style) for entry in payload["entries"]]
    if payload["left_out"]:
        lines.append(style.dim(f"… {payload['left_out']} older entries (--entries N shows more)"))
    if payload["open_calls"]:
        lines += ["", "calls without a result:"]
        lines += [
            f"  {plain(call['call_id'])}  {plain(call['entry_id'])}[{call['position']}]  {call['dispatch']}"
            for call in payload["open_calls"]
        ]
    return lines


def _entry_line(entry: Item, width: int, style: Style) -> str:
    graph = entry["graph"].ljust(width)
    name = plain(entry["entry_id"])
    leaf = style.paint(" <- leaf", 1, 36) if entry["is_leaf"] else ""
    head = f"{graph} {name}{leaf} {style.dim(plain(_what(entry)))}"
    plain_head = f"{graph} {name}{' <- leaf' if entry['is_leaf'] else ''} {plain(_what(entry))}"
    if entry["text"] is None:
        return head
    text = plain(" ".join(entry["text"].split()))
    if entry["text_cut"]:
        text += "…"
    left = max(style.width - len(plain_head) - 2, 16)
    return f"{head}  {fit(text, left)}"


# --- explain ---------------------------------------------------------------------------------------------------------


def _explain(payload: Payload, style: Style) -> list[str]:
    name = f"{plain(payload['session_id'])}/{plain(payload['submission_id'])}"
    lines = [style.bold(name)]
    held = payload["held_reason"]
    lines += _pairs(
        [
            ("status", payload["status"] if held is None else f"{payload['status']}, held: {held}"),
            ("origin", payload["origin"]),
            ("outcome", payload["outcome"]),
            ("because", payload["outcome_reason"]),
            ("detail", payload["outcome_detail"]),
            ("written by", None if payload["recovered"] is None else _writer(payload)),
            ("answer", payload["answer_entry_id"]),
            ("admitted", when(payload["admitted_at"])),
            ("settled", when(payload["settled_at"])),
            ("pruned", when(payload["pruned_at"])),
            ("late evidence", payload["late_evidence"]),
        ],
        style,
    )
    lines += _inspection_lines(payload["inspection"], style)
    lines += _next_lines(payload["next"], style)
    lines += _plan_lines(payload["plan"], style)
    lines += _guard_lines(payload, style)
    lines += _history_lines(payload, style)
    return lines


def _writer(payload: Item) -> str:
    return "a daemon (recovered)" if payload["recovered"] else "its runner"


def _inspection_lines(inspection: Item | None, style: Style) -> list[str]:
    if inspection is None:
        return []
    calls = [f"{call['entry_id']}[{call['position']}] {call['dispatch']}" for call in inspection["dispatch"]]
    return [
        "",
        f"{style.bold('the record shows')} {inspection['state']} ({inspection['detail']})",
        f"  {inspection['rule']}",
        *_indented(
            [
                ("input", inspection["input_entry_id"]),
                ("decided by", inspection["deciding_entry_id"]),
                ("leaf", inspection["leaf_entry_id"]),
                ("open calls", ", ".join(inspection["unresolved_tool_calls"])),
                ("open calls before", ", ".join(inspection["interior_open_calls"])),
                ("of their start", ", ".join(calls)),
                ("stopped by", inspection["stopped_by"]),
                (
                    "unlogged calls",
                    "possible: its writer does not log calls first" if inspection["unlogged_calls_possible"] else None,
                ),
                ("damage", inspection["integrity"]),
                *(("problem", problem) for problem in inspection["problems"][:10]),
            ],
            style,
        ),
    ]


def _indented(pairs: Sequence[tuple[str, object]], style: Style) -> list[str]:
    return [f"  {line}" for line in _pairs(pairs, style)]


def _next_lines(following: Item, style: Style) -> list[str]:
    action = following["action"] if following["advice"] is None else f"{following['action']} {following['advice']}"
    outcome = f" {following['outcome']}" if following["outcome"] else ""
    reason = f" ({following['reason']})" if following["reason"] else ""
    return [
        "",
        f"{style.bold('next')} {action}{outcome}{reason}",
        f"  {plain(following['rule'])}",
        *_indented(
            [
                ("gate", following["gate"]),
                ("due", when(following["due_at"])),
                ("not before", when(following["not_before"])),
                ("note", following["detail"]),
            ],
            style,
        ),
    ]


def _plan_lines(plan: Item | None, style: Style) -> list[str]:
    if plan is None:
        return []
    sub_turn = plan["sub_turn"]
    return [
        "",
        f"{style.bold('resume plan')} {plan['mode']}",
        *_indented(
            [
                *(
                    ("close call", f"{call['call_id']} of {call['entry_id']}[{call['position']}]: {call['dispatch']}")
                    for call in plan["calls_to_close"][:20]
                ),
                ("partial answer", plan["partial_entry_id"]),
                ("sub-turn", None if sub_turn is None else f"{sub_turn['outcome']} ({sub_turn['reason']})"),
            ],
            style,
        ),
    ]


def _guard_lines(payload: Item, style: Style) -> list[str]:
    guards, budgets = payload["guards"], payload["budgets"]
    if guards is None or budgets is None:
        return []
    spent = ", ".join(f"{name.replace('_', ' ')} {use['spent']}/{use['max']}" for name, use in budgets.items())
    return [
        "",
        style.bold("guards"),
        *_indented(
            [
                ("session version", guards["session_version"]),
                ("revision", guards["revision"]),
                ("attempt", guards["attempt_id"]),
                ("owner", guards["owner"]),
                ("lease until", when(guards["lease_expires_at"])),
                ("budgets", spent),
            ],
            style,
        ),
    ]


def _did(row: Item) -> str:
    words = [str(row["action"])]
    words += [str(row[key]) for key in ("advice", "outcome") if row[key]]
    if row["mode"]:
        words.append(f"[{row['mode']}]")
    return " ".join(words)


_DECISION_COLUMNS: Final = (
    Column("#", lambda row: row["number"], right=True),
    Column("AT", lambda row: when(row["decided_at"])),
    Column("DECISION", _did),
    Column("REASON", lambda row: row["reason"]),
    Column("STATE", lambda row: row["state"] and f"{row['state']}/{row['detail']}", shrinks=True),
    Column("ATTEMPT", lambda row: row["attempt_end"]),
    Column("BY", lambda row: row["decided_by"], shrinks=True),
    Column("EVIDENCE", lambda row: ", ".join(row.get("evidence", ())) or None, shrinks=True),
    Column("NOTE", lambda row: row["note"], shrinks=True),
)


def _history_lines(payload: Item, style: Style) -> list[str]:
    lines: list[str] = []
    if payload["decisions"]:
        lines += ["", style.bold("decisions")]
        left_out = payload["decision_count"] - len(payload["decisions"])
        if left_out > 0:
            lines.append(style.dim(f"  … {left_out} older ones (--decisions N shows more)"))
        lines += [f"  {line}" for line in table(payload["decisions"], _DECISION_COLUMNS, _narrower(style))]
    if payload["attempts"]:
        lines += ["", style.bold("attempts")]
        columns = (
            Column("#", lambda row: row["number"], right=True),
            Column("OWNER", lambda row: row["owner"], shrinks=True),
            Column("CLAIMED", lambda row: when(row["claimed_at"])),
            Column("BEGUN", lambda row: when(row["begun_at"])),
            Column("PROGRESS", lambda row: when(row["progress_at"])),
            Column("ENDED", lambda row: when(row["ended_at"])),
            Column("HOW", lambda row: row["end"]),
            Column("WHY", lambda row: row["end_reason"], shrinks=True),
        )
        lines += [f"  {line}" for line in table(payload["attempts"], columns, _narrower(style))]
    return lines


def _narrower(style: Style) -> Style:
    return Style(width=style.width - 2, colour=style.colour)


# --- tail ------------------------------------------------------------------------------------------------------------


def _tail(payload: Payload, style: Style) -> list[str]:
    # Lines, not a table: the next ones come later.
    return [
        "  ".join(
            part
            for part in (
                style.dim(when(row["decided_at"]) or ""),
                plain(f"{row['session_id']}/{row['submission_id']}"),
                style.bold(plain(_did(row))),
                plain(row["reason"]),
                plain(f"{row['state']}/{row['detail']}") if row["state"] else "",
                plain(f"attempt {row['attempt_end']}") if row["attempt_end"] else "",
                plain(row["note"] or ""),
            )
            if part
        )
        for row in payload["decisions"]
    ]


# --- files -----------------------------------------------------------------------------------------------------------

_PROBLEMS_SHOWN: Final = 20

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
    lines = table(_verdicts(payload), _VERDICT_COLUMNS, style)
    lines += [
        f"{plain(file['file'])}: no prompt that waits for an outcome"
        for file in payload["files"]
        if not file["submissions"]
    ]
    return [*lines, *_problems(payload, style)]


def _problems(payload: Payload, style: Style) -> list[str]:
    lines: list[str] = []
    for file in payload["files"]:
        shown = file["problems"][:_PROBLEMS_SHOWN]
        for problem in shown:
            place = plain(file["file"]) if problem["line"] is None else f"{plain(file['file'])}:{problem['line']}"
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
    lines.append(style.bold(f"{verb} {done}"))
    if states:
        lines.append("their prompts: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    if counts["owned"]:
        lines.append(f"sessions that {'would be' if payload['dry_run'] else 'are'} native now: {len(counts['owned'])}")
    if counts["late_evidence"]:
        lines.append(f"evidence came after the outcome of: {plain(', '.join(counts['late_evidence'][:20]))}")
    if payload["failed"]:
        lines.append(style.paint(f"{payload['failed']} files could not be imported", 31))
    return lines


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
    return lines


def _submit(payload: Payload, style: Style) -> list[str]:
    name = f"{plain(payload['session_id'])}/{plain(payload['submission_id'])}"
    if payload["dry_run"]:
        return [f"would admit {style.bold(name)}" if payload["created"] else f"{style.bold(name)} was admitted already"]
    if payload["created"]:
        return [f"admitted {style.bold(name)}"]
    return [f"{style.bold(name)} was admitted already; it is {payload['status']}"]


def _act(payload: Payload, style: Style) -> list[str]:
    return [f"{style.bold(payload['result'] + ':')} {plain(payload['message'])}"]


# --- database and configuration --------------------------------------------------------------------------------------


def _schema(payload: Payload, style: Style) -> list[str]:
    return _pairs(
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
    lines = _pairs([("configuration file", payload["config_file"] or "none")], style)
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
        "show": _show,
        "explain": _explain,
        "tail": _tail,
        "inspect": _inspect,
        "import": _import,
        "once": _once,
        "submit": _submit,
        **refine.RENDERERS,
        **schedule.RENDERERS,
        "db current": _schema,
        "db check": _db_check,
        "db upgrade": _db_upgrade,
        "config show": _config,
        **dict.fromkeys(("abort", "retry", "settle", "release", "resolve", "move-leaf"), _act),
    }
)
