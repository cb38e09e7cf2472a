"""A refine subject's scores and budget as a picture: one line for a terminal, or an SVG. Pure, without a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_BARS: Final = "▁▂▃▄▅▆▇█"
_SCORED: Final = ("accepted", "rejected")

Item = Mapping[str, Any]


def sparkline(values: Sequence[float], columns: int) -> str:
    """Return *values* as bars in at most *columns* columns, lowest to highest; of several in a column the last counts.

    Values that are all the same are bars of half height.
    """
    if not values or columns < 1:
        return ""
    count = min(len(values), columns)
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    low, high = min(shown), max(shown)
    return "".join(_BARS[round(_share(value, low, high) * (len(_BARS) - 1))] for value in shown)


def _share(value: float, low: float, high: float) -> float:
    """Return where *value* stands between *low* (0) and *high* (1)."""
    # Halved first: the distance of two finite scores may be beyond the largest double.
    distance = high / 2 - low / 2
    return (value / 2 - low / 2) / distance if distance > 0 else 0.5


# --- SVG -----------------------------------------------------------------------------------------------------------

_WIDTH: Final = 880
_LEFT, _RIGHT = 72, 24
_SCORE_TOP, _SCORE_BOTTOM = 48, 300
_BUDGET_TOP, _BUDGET_BOTTOM = 336, 416
_HEIGHT: Final = 456

_STYLE: Final = (
    "text{font:12px sans-serif;fill:#333}.title{font-size:15px;font-weight:bold}.dim{fill:#777}"
    ".best{fill:none;stroke:#1f6f43;stroke-width:2}.accepted{fill:#1f6f43}.rejected{fill:none;stroke:#b3261e;"
    "stroke-width:1.5}.epoch{stroke:#bbb;stroke-dasharray:4 3}.axis{stroke:#999}.budget{fill:#7d8fb3}"
)


def svg(subject: str, epochs: Sequence[Item], steps: Sequence[Item]) -> str:
    """Return the scored steps of *epochs* (payload rows, oldest first) as an SVG document.

    Above: each score (filled where it was accepted) and the best so far. Below: how much of the epoch's budget was used
    after each step. Dashed lines part epochs.
    """
    scored = [step for step in steps if step["verdict"] in _SCORED]
    by_number = {epoch["epoch"]: epoch for epoch in epochs}
    scores = [step["score"] for step in scored] + [epoch["baseline_score"] for epoch in epochs]
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)

    def x(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place + 0.5) / max(1, len(scored))

    def y(score: float) -> float:
        return _SCORE_BOTTOM - (_SCORE_BOTTOM - _SCORE_TOP) * _share(score, low, high)

    body = [
        f'<text class="title" x="{_LEFT}" y="26">{_xml(subject)}</text>',
        f'<line class="axis" x1="{_LEFT}" y1="{_SCORE_BOTTOM}" x2="{_WIDTH - _RIGHT}" y2="{_SCORE_BOTTOM}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="{_BUDGET_BOTTOM}" x2="{_WIDTH - _RIGHT}" y2="{_BUDGET_BOTTOM}"/>',
        *(
            f'<text class="dim" x="{_LEFT - 8}" y="{y(score) + 4:.1f}" text-anchor="end">{score:.4g}</text>'
            for score in dict.fromkeys((low, high))
        ),
        f'<text class="dim" x="{_LEFT}" y="{_BUDGET_TOP - 8}">budget used</text>',
        *_epoch_lines(scored, x),
        *(_budget_bar(place, step, by_number, x, len(scored)) for place, step in enumerate(scored)),
        _best_line(scored, by_number, x, y),
        *(_dot(place, step, x, y) for place, step in enumerate(scored)),
    ]
    if not scored:
        body.append(f'<text class="dim" x="{_LEFT + 16}" y="{(_SCORE_TOP + _SCORE_BOTTOM) / 2}">no scored step</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{_xml(subject)}</title><style>{_STYLE}</style>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>{"".join(body)}</svg>\n'
    )


_To = Callable[[float], float]


def _epoch_lines(scored: Sequence[Item], x: _To) -> list[str]:
    return [
        f'<line class="epoch" x1="{x(place - 0.5):.1f}" y1="{_SCORE_TOP}" x2="{x(place - 0.5):.1f}"'
        f' y2="{_BUDGET_BOTTOM}"/><text class="dim" x="{x(place - 0.5) + 4:.1f}" y="{_SCORE_TOP - 4}">'
        f"epoch {step['epoch']}</text>"
        for place, step in enumerate(scored)
        if place == 0 or scored[place - 1]["epoch"] != step["epoch"]
    ]


def _best_line(scored: Sequence[Item], by_number: Mapping[int, Item], x: _To, y: _To) -> str:
    points: list[str] = []
    best: float | None = None
    for place, step in enumerate(scored):
        if place == 0 or scored[place - 1]["epoch"] != step["epoch"]:
            epoch = by_number.get(step["epoch"])
            best = step["best_score"] if epoch is None else epoch["baseline_score"]
        before = best if best is not None else step["best_score"]
        points += [f"{x(place - 0.5):.1f},{y(before):.1f}", f"{x(place):.1f},{y(before):.1f}"]
        best = step["best_score"]
        points += [f"{x(place):.1f},{y(best):.1f}", f"{x(place + 0.5):.1f},{y(best):.1f}"]
    return f'<polyline class="best" points="{" ".join(points)}"/>' if points else ""


def _budget_bar(place: int, step: Item, by_number: Mapping[int, Item], x: _To, count: int) -> str:
    epoch = by_number.get(step["epoch"])
    most = max(1, step["used"] if epoch is None else epoch["max"])
    height = (_BUDGET_BOTTOM - _BUDGET_TOP) * step["used"] / most
    width = 0.7 * (_WIDTH - _LEFT - _RIGHT) / count
    return (
        f'<rect class="budget" x="{x(place) - width / 2:.1f}" y="{_BUDGET_BOTTOM - height:.1f}"'
        f' width="{width:.1f}" height="{height:.1f}"><title>{step["used"]} of {most}</title></rect>'
    )


def _dot(place: int, step: Item, x: _To, y: _To) -> str:
    label = f"{step['edit_id']}: {step['score']:.6g}, {step['verdict']}"
    return (
        f'<circle class="{step["verdict"]}" cx="{x(place):.1f}" cy="{y(step["score"]):.1f}" r="4">'
        f"<title>{_xml(label)}</title></circle>"
    )


def _xml(text: str) -> str:
    """Return *text* as XML takes it: escaped, and without the characters that XML has not."""
    # Every cold start meets this file, and few draw: the module carries the names of all HTML's entities.
    from html import escape

    return escape("".join(character if _in_xml(ord(character)) else "\ufffd" for character in text))


def _in_xml(code: int) -> bool:
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
