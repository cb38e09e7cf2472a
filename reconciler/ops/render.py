"""Answers as text: JSON for programs, tables for people. Pure: a payload, a width and a style in, text out.

Whatever came from outside (ids, reasons, texts of sessions) goes through `plain`, so that no stored text can move a
terminal's cursor, change its title or recolour a line.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from reconciler.ops.asking import Answer

WIDTH_MIN: Final = 40
# Wider lines are hard to read; a pipe gets lines as long as they need to be.
WIDTH_PIPED: Final = 10_000

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Style:
    """How text is set: its width in columns, and whether colours may be used."""

    width: int = WIDTH_PIPED
    colour: bool = False

    def paint(self, text: str, *codes: int) -> str:
        """Return *text* in a colour, where colours may be used."""
        if not self.colour or not codes or not text:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"

    def bold(self, text: str) -> str:
        """Return *text* in bold."""
        return self.paint(text, 1)

    def dim(self, text: str) -> str:
        """Return *text* in a faint colour."""
        return self.paint(text, 2)


_GOOD, _BAD, _WARN, _LIVE = 32, 31, 33, 36
_COLOURS: Final = {
    "completed": _GOOD,
    "failed": _BAD,
    "aborted": _WARN,
    "held": _BAD,
    "damaged": _BAD,
    "hold": _BAD,
    "uncertain": _WARN,
    "continuable": _WARN,
    "running": _LIVE,
    "settle": _GOOD,
    "requeue": _LIVE,
    "overdue": _BAD,
    "blocked": _WARN,
}


def to_json(payload: Payload) -> str:
    """Return one line of JSON in ASCII: what a terminal would obey is escaped in it."""
    return json.dumps(payload, ensure_ascii=True, separators=(", ", ": "))


# --- text from outside -----------------------------------------------------------------------------------------------

_SHOWN: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def plain(text: object, *, keep_lines: bool = False) -> str:
    """Return *text* with everything a terminal would obey made visible: control, format and bidirectional characters.

    Lone surrogates, which no terminal can be sent, are shown as escapes too.
    """
    source = str(text)
    if source.isascii() and source.isprintable():
        return source
    return "".join(_visible(character, keep_lines) for character in source)


def _visible(character: str, keep_lines: bool) -> str:
    if character == "\n" and keep_lines:
        return character
    category = unicodedata.category(character)
    # Cc control, Cf format (bidirectional overrides, zero width), Cs surrogate, Co private, Cn unassigned, Zl, Zp.
    if category in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        code = ord(character)
        return _SHOWN.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{{{code:x}}}")
    return character


def width_of(text: str) -> int:
    """Return how many columns *text* takes on a terminal; it must be plain."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def fit(text: str, columns: int) -> str:
    """Return *text* in at most *columns* columns, an ellipsis at the end where something was cut off."""
    if width_of(text) <= columns:
        return text
    kept, used = [], 0
    for character in text:
        used += _columns(character)
        if used > columns - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. What doesn't fit is cut in the columns that may shrink, the widest first."""

    title: str
    cell: Callable[[Mapping[str, Any]], object]
    shrinks: bool = False
    # Down to so many columns.
    least: int = 8
    coloured: bool = False
    right: bool = False


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], style: Style) -> list[str]:
    """Return the lines of a table that fits the style's width; columns without any value are left out."""
    cells = [["" if (value := column.cell(row)) is None else plain(value) for column in columns] for row in rows]
    used = [place for place in range(len(columns)) if any(line[place] for line in cells)]
    columns = [columns[place] for place in used]
    cells = [[line[place] for place in used] for line in cells]
    if not columns:
        return []
    widths = [
        max([width_of(column.title), *(width_of(line[place]) for line in cells)])
        for place, column in enumerate(columns)
    ]
    _shrink(widths, columns, max(style.width, WIDTH_MIN))
    lines = [style.bold(_row([column.title for column in columns], columns, widths))]
    for line in cells:
        shown = _row(line, columns, widths, style)
        lines.append(shown)
    return lines


def _shrink(widths: list[int], columns: Sequence[Column], most: int) -> None:
    over = sum(widths) + 2 * (len(widths) - 1) - most
    while over > 0:
        able = [place for place, column in enumerate(columns) if column.shrinks and widths[place] > column.least]
        if not able:
            return
        # The one that has most to give, a share at a time, so that equal columns shrink together.
        widest = max(able, key=lambda place: widths[place] - columns[place].least)
        step = min(over, widths[widest] - columns[widest].least, max(1, over // len(able)))
        widths[widest] -= step
        over -= step


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], style: Style | None = None) -> str:
    shown = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = fit(cell, width)
        space = " " * (width - width_of(text))
        if style is not None and column.coloured and text in _COLOURS:
            text = style.paint(text, _COLOURS[text])
        shown.append(space + text if column.right else text + space)
    return "  ".join(shown).rstrip()


def pairs(values: Sequence[tuple[str, object]], style: Style) -> list[str]:
    """Return names and values, one a line; what has no value is left out."""
    shown = [(name, plain(value)) for name, value in values if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"{style.dim(name.ljust(width))}  {value}" for name, value in shown]


# --- time ------------------------------------------------------------------------------------------------------------


def when(value: str | None) -> str | None:
    """Return an instant of a payload to the second: ``2026-05-01 12:00:00Z``."""
    return None if value is None else f"{value[:10]} {value[11:19]}Z"


def ago(value: str | None, now: str | None) -> str | None:
    """Return how long before *now* an instant was, or after it ("in 5m")."""
    if value is None or now is None:
        return when(value)
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(value)) / timedelta(seconds=1)
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


# --- answers ---------------------------------------------------------------------------------------------------------


def to_text(answer: Answer, style: Style) -> str:
    """Return what a person reads on standard output; "" where there is nothing to say there."""
    from reconciler.ops.render_answers import RENDERERS

    if answer.error is not None:
        return ""
    renderer = RENDERERS.get(answer.name)
    lines = _fields(answer.payload) if renderer is None else renderer(answer.payload, style)
    return "\n".join(lines)


def _fields(payload: Payload) -> list[str]:
    # For whatever has no renderer of its own: every field by its name.
    return [
        f"{key}: {plain(value if isinstance(value, str) else json.dumps(value))}"
        for key, value in payload.items()
        if key != "followUp"
    ]


def error_lines(answer: Answer, style: Style) -> list[str]:
    """Return what a person reads on standard error where it went wrong."""
    error = answer.error
    if error is None:
        return []
    lines = [f"{style.paint('error:', 1, _BAD)} {plain(error['message'])} ({error['code']})"]
    detail = error.get("detail")
    if isinstance(detail, Mapping) and isinstance(hits := detail.get("hits"), list):
        lines += [f"  {plain(hit['session_id'])}/{plain(hit['submission_id'])}" for hit in hits]
    if isinstance(detail, Mapping) and isinstance(faults := detail.get("faults"), list):
        lines += [f"  {plain(fault['message'])}: {plain(fault['hint'])}" for fault in faults[1:]]
    if error.get("hint"):
        lines.append(f"{style.paint('way out:', 1)} {plain(error['hint'])}")
    return lines


def hint_lines(answer: Answer, style: Style) -> list[str]:
    """Return the follow-up hints, each with the value that fired it."""
    hints: Iterable[Mapping[str, Any]] = answer.payload.get("followUp", ())
    return [
        f"{style.paint('hint:', 1, _WARN)} {plain(hint['message'])}"
        f" [{plain(hint['trigger']['field'])} = {_trigger(hint['trigger']['value'])}]"
        f" -> reconciler {plain(hint['tool'])}"
        for hint in hints
    ]


def _trigger(value: object) -> str:
    return fit(plain(value if isinstance(value, str) else json.dumps(value)), 60)
