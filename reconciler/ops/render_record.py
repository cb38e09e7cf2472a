"""What a record and its decisions look like to people: a tree, an explanation, decisions as they come. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from reconciler.ops.render import Column, Payload, Style, fit, pairs, plain, table, when

Item = Mapping[str, Any]

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


def show(payload: Payload, style: Style) -> list[str]:
    """Return a session as a tree, its active path marked."""
    source = payload["source"]
    lines = [style.bold(f"session {plain(payload['session_id'])}")]
    lines += pairs(
        [
            ("origin", payload["origin"]),
            ("source", None if source is None else f"{source['locator']} ({source['format']})"),
            ("owned since", None if source is None else when(source["owned_at"])),
            ("entries", payload["entry_count"]),
            ("version", payload["version"]),
            ("leaf", payload["leaf_entry_id"]),
            ("damage", payload["damage"]),
            *(("unreadable", text) for text in payload["unreadable"]),
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


def explain(payload: Payload, style: Style) -> list[str]:
    """Return what the record proves, what was decided, and what comes next."""
    name = f"{plain(payload['session_id'])}/{plain(payload['submission_id'])}"
    lines = [style.bold(name)]
    held = payload["held_reason"]
    lines += pairs(
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
            *(("unreadable", text) for text in payload["unreadable"]),
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


def _indented(values: Sequence[tuple[str, object]], style: Style) -> list[str]:
    return [f"  {line}" for line in pairs(values, style)]


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


def tail(payload: Payload, style: Style) -> list[str]:
    """Return decisions, one a line."""
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
