"""The page of results and its plots, made from the numbers of one run; only its words are written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.bench.measuring import ROOT

PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"

Results = dict[str, Any]


def write_page(results: Results) -> None:
    """Write ``docs/performance.md`` and the plots below ``docs/plots``."""
    PLOTS.mkdir(exist_ok=True)
    found = results["measures"]
    parts = [
        _HEAD.format(**results["machine"], scale=results["scale"], history_payload=results["history_payload"]),
        _table(found),
        _NOTES,
    ]
    if "scan" in found:
        parts.append(_scan(found["scan"]))
    if "inspection" in found:
        parts.append(_inspection(found["inspection"]))
    if "pass" in found:
        parts.append(_rates(found))
    if "peers" in found:
        parts.append(_peers(found["peers"]))
    if "memory" in found:
        parts.append(_memory(found["memory"]))
    if "import" in found:
        parts.append(_import(found["import"]))
    lines = [f"- {name}: {when}" for name, when in results.get("when", {}).items()]
    parts.append("\n".join(["", "## When each was measured", "", "Scale, time, and load at its end.", "", *lines]))
    PAGE.write_text("\n".join(part.rstrip("\n") + "\n" for part in parts))


_HEAD = """# Performance

Made by `make bench ARGS="--scale {scale} --page"` (begun {date}); do not edit. Every number that a goal is about is a
ratio to its floor, measured in the same run, in turn, as the median of at least three repeats. A *floor* is the fewest
raw statements, written with the driver alone, that do the same durable work (`tests/bench/floors.py`). Absolute rates
are for orientation.

Machine: {system}, {cpus} processors, {memory_gb} GB; Python {python}, PostgreSQL {postgresql}, SQLite {sqlite}; an
`fsync` of 4 KB takes {fsync_us} µs; load before the run {load_before}. PostgreSQL: `fsync`, `full_page_writes` and
`synchronous_commit` on, 2 GB of shared buffers. SQLite: WAL, `synchronous=FULL`. Payloads of due work have
1,000 bytes, those of the long history {history_payload}.

Regressions are caught by counting (`tests/store/test_counts.py`, `tests/store/test_counts_by_session.py`): statements,
rows, pages, plans. Where the time goes stands in [profile.md](profile.md), what a server carries in
[scale.md](scale.md).
"""

_NOTES = """
A goal that is not reached is shown as it was measured; [profile.md](profile.md) says why.
"""


def _table(found: Results) -> str:
    lines = ["", "| what | goal | measured | reached |", "| --- | --- | --- | --- |"]
    for what, goal, measured, reached in _rows(found):
        lines.append(f"| {what} | {goal} | {measured} | {'yes' if reached else 'no'} |")
    return "\n".join(lines)


def _rows(found: Results) -> list[tuple[str, str, str, bool]]:
    rows: list[tuple[str, str, str, bool]] = []
    if "scan" in found:
        for kind, one in found["scan"].items():
            most = one["levels"][-1]["settled"]
            rows.append(
                (
                    f"finding due work, {most:,} settled against none, {kind}",
                    "time ≤ 1.5",
                    f"{one['time_ratio']:.2f}",
                    one["time_ratio"] <= 1.5,
                )
            )
        pg = found["scan"].get("postgresql")
        if pg:
            rows.append(("pages touched by it", "≤ 1.1", f"{pg['buffer_ratio']:.3f}", pg["buffer_ratio"] <= 1.1))
            index = pg["generic_plan_index"]
            rows.append(("a generic plan uses the partial index", "yes", "yes" if index else "no", index))
    if "statements" in found and "postgresql" in found["statements"]:
        counts = found["statements"]["postgresql"]
        rows.append(
            (
                "statements per batch of 1, 50, 499, postgresql",
                "≤ 4",
                ", ".join(map(str, counts.values())),
                max(counts.values()) <= 4,
            )
        )
    for kind, one in found.get("inspection", {}).items():
        long = one["tails"][2]["tail"]
        rows.append(
            (
                f"deciding: {long:,} entries before the input against 20, {kind}",
                "time ≤ 2, rows ≤ 33",
                f"{one['time_ratio']:.2f}, {one['rows_read']} rows",
                one["time_ratio"] <= 2 and one["rows_read"] <= 33,
            )
        )
        rows.append(
            (
                f"{long:,} entries after the input, time per entry against 1,000, {kind}",
                "linear (≤ 1.5), memory flat",
                f"{one['linear']:.2f}, {one['memory_mb']:.0f} MB more than for 10",
                False,
            )
        )
    for kind, one in found.get("pass", {}).items():
        goal = 0.66 if kind == "postgresql" else 0.6
        rows.append(
            (f"whole pass against the raw floor, {kind}", f"≥ {goal}", f"{one['ratio']:.2f}", one["ratio"] >= goal)
        )
    for kind, one in found.get("write", {}).items():
        rows.append((f"batch write against the raw floor, {kind}", "≥ 0.6", f"{one['ratio']:.2f}", one["ratio"] >= 0.6))
        if kind == "postgresql":
            times = one["times_single"]
            rows.append(("batch write against one transaction per submission", "≥ 8 times", f"{times:.1f}", times >= 8))
    if "daemons" in found:
        one = found["daemons"]
        rows.append(
            (
                "2 passes at once against 1",
                "≥ 1.6, nothing twice, no deadlock",
                f"{one['two_to_one']:.2f}, {one['decided_twice']} twice, {one['deadlocks']} deadlocks",
                one["two_to_one"] >= 1.6 and not one["decided_twice"] and not one["deadlocks"],
            )
        )
    for kind, one in found.get("memory", {}).items():
        rows.append(
            (
                f"memory while due work is worked off, {kind}",
                "flat, < 150 MB",
                f"peak {one['peak_mb']:.0f} MB, {one['grown_mb']:+.1f} MB over the last three quarters",
                one["peak_mb"] < 150 and one["grown_mb"] < 10,
            )
        )
    goals = {"procrastinate": 5.0, "dbos": 10.0, "absurd": 2.0, "pgqueuer": 1.5, "pgqueuer_500": 0.5}
    for name, goal in goals.items():
        times = found.get("peers", {}).get("times", {}).get(name)
        if times is not None:
            rows.append(
                (
                    f"recovered a second against {name.replace('_500', ', batch 500')}",
                    f"≥ {goal:g}",
                    f"{times:.2f}",
                    times >= goal,
                )
            )
    if "cold_start" in found:
        one = found["cold_start"]
        mb = one["mb"]["status"]
        rows.append(
            (
                "`reconciler status` cold against importing SQLAlchemy and click",
                "≤ 1.5, ≤ 60 MB",
                f"{one['ratio']:.2f} (processor {one['cpu_ratio']:.2f}), {mb:.0f} MB",
                one["ratio"] <= 1.5 and mb <= 60,
            )
        )
    for kind, one in found.get("import", {}).items():
        ratio = one["ratio"]["import"]
        rows.append(
            (
                f"import against `json.loads` of every line, {kind}",
                "≥ 0.3, memory flat",
                f"{ratio:.2f}, peak {one['peak_mb']['import']:.0f} MB for {one['megabytes']:.0f} MB",
                ratio >= 0.3,
            )
        )
    return [
        (what, goal, said, _is_linear(found, what) if "entries after" in what else ok) for what, goal, said, ok in rows
    ]


def _is_linear(found: Results, what: str) -> bool:
    # Flat is a few megabytes, for the piece that is read: what grows by the entry is not.
    one = found["inspection"]["sqlite" if what.endswith("sqlite") else "postgresql"]
    return bool(one["linear"] <= 1.5 and one["memory_mb"] < 8)


# --- parts -----------------------------------------------------------------------------------------------------------


def _scan(found: Results) -> str:
    lines = ["", "## Finding due work", "", "![time over history](plots/scan.svg)", ""]
    lines += ["| settled | database | 500 found, ms | nothing due, ms | pages |", "| --- | --- | --- | --- | --- |"]
    series = []
    for kind, one in found.items():
        series.append((kind, [(max(1, level["settled"]), level["ms"]) for level in one["levels"]]))
        for level in one["levels"]:
            lines.append(
                f"| {level['settled']:,} | {kind} | {level['ms']:.2f} | {level['nothing_ms']:.3f} |"
                f" {level.get('buffers', '')} |"
            )
    plot("scan.svg", "Finding 500 due submissions", "settled submissions", "ms", series)
    return "\n".join(lines)


def _inspection(found: Results) -> str:
    lines = ["", "## Deciding about one", "", "![time over the tail](plots/tail.svg)", ""]
    lines += ["| entries after the input | database | ms | µs an entry | peak MB |", "| --- | --- | --- | --- | --- |"]
    series = []
    for kind, one in found.items():
        series.append((kind, [(level["tail"], level["ms"]) for level in one["tails"]]))
        for level in one["tails"]:
            lines.append(
                f"| {level['tail']:,} | {kind} | {level['ms']:.2f} | {level['us_per_entry']:.1f} | {level['mb']:.0f} |"
            )
    plot("tail.svg", "Inspecting one submission", "entries after the input", "ms", series)
    return "\n".join(lines)


def _rates(found: Results) -> str:
    lines = ["", "## Rates", "", "Submissions a second.", ""]
    lines += ["| what | database | ours | floor |", "| --- | --- | --- | --- |"]
    for kind, one in found["pass"].items():
        lines.append(f"| pass, all settled | {kind} | {one['ours_per_s']:,.0f} | {one['floor_per_s']:,.0f} |")
        lines.append(f"| pass, all requeued | {kind} | {one['requeue_per_s']:,.0f} | |")
        lines.append(
            f"| pass, all requeued with a sub-turn plan | {kind} | {one['requeue_with_plan_texts_per_s']:,.0f} | |"
        )
    for kind, one in found.get("write", {}).items():
        lines.append(f"| batch write alone | {kind} | {one['ours_per_s']:,.0f} | {one['floor_per_s']:,.0f} |")
        lines.append(f"| one transaction per submission, raw | {kind} | | {one['single_per_s']:,.0f} |")
    for processes, rate in found.get("daemons", {}).get("per_s", {}).items():
        lines.append(f"| {processes} passes at once | postgresql | {rate:,.0f} | |")
    lines += [
        "",
        "Processor time for each submission of a pass, which a busy machine disturbs less than the clock:",
        "",
    ]
    for kind, one in found["pass"].items():
        lines.append(
            f"- {kind}: this program {one['client_cpu_us']:.0f} µs and the server {one['server_cpu_us']:.0f} µs, the"
            f" floor {one['floor_client_cpu_us']:.0f} µs and {one['floor_server_cpu_us']:.0f} µs: a ratio of"
            f" {one['cpu_ratio']:.2f}. By the clock, the repeats: {', '.join(map(str, one['repeats']))}."
        )
    return "\n".join(lines)


def _peers(found: Results) -> str:
    lines = [
        "",
        "## Others",
        "",
        "Stalled jobs put back to work a second, one program after the other on one server.",
        "",
    ]
    lines += ["| program | a second | ours is times that |", "| --- | --- | --- |"]
    for name, rate in found["per_s"].items():
        times = found["times"].get(name)
        lines.append(f"| {name} | {rate:,.0f} | {'' if times is None else f'{times:.2f}'} |")
    lines += [f"\n{name}: {note}" for name, note in found["notes"].items()]
    lines += [
        "",
        "What each does is said at the head of its script in `tests/bench/peers`; none of them decides by a record.",
    ]
    return "\n".join(lines)


def _memory(found: Results) -> str:
    lines = ["", "## Memory of a pass", "", "![memory](plots/memory.svg)", ""]
    series = []
    for kind, one in found.items():
        series.append((kind, [(number + 1.0, mb) for number, mb in enumerate(one["resident_mb"])]))
        lines.append(f"- {kind}: peak {one['peak_mb']:.0f} MB over {one['batches']} batches.")
    plot("memory.svg", "Resident memory while due work is worked off", "tenths of the pass", "MB", series, log=False)
    return "\n".join(lines)


def _import(found: Results) -> str:
    lines = ["", "## Import", ""]
    lines += [
        "| step | database | MB/s | ratio | ratio by processor | peak MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind, one in found.items():
        for name, rate in one["mb_per_s"].items():
            lines.append(
                f"| {name} | {kind} | {rate:.1f} | {one['ratio'][name]:.2f} | {one['cpu_ratio'][name]:.2f} |"
                f" {one['peak_mb'][name]:.0f} |"
            )
    return "\n".join(lines)


# --- plots -----------------------------------------------------------------------------------------------------------

_COLOURS = ("#1f6fb4", "#c2571a")
_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 130, 40, 50


def plot(
    name: str,
    title: str,
    across: str,
    up: str,
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    log: bool = True,
) -> None:
    """Draw lines into an SVG file below ``docs/plots``; *log*: both axes in powers of ten."""
    scale = math.log10 if log else float
    points = [point for _, line in series for point in line]
    low_x, high_x = min(scale(x) for x, _ in points), max(scale(x) for x, _ in points)
    low_y = min(scale(max(y, 1e-3)) for _, y in points) if log else 0.0
    high_y = max(scale(max(y, 1e-3)) for _, y in points)
    if log:
        low_y, high_y = math.floor(low_y), max(math.ceil(high_y), math.floor(low_y) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        along = (scale(x) - low_x) / ((high_x - low_x) or 1)
        above = (scale(max(y, 1e-3)) - low_y) / ((high_y - low_y) or 1)
        return _LEFT + along * width, _HEIGHT - _BOTTOM - above * height

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
            ' font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{title}</text>',
        f'<text x="{(_WIDTH - _RIGHT + _LEFT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{across}</text>',
        f'<text x="14" y="{_HEIGHT / 2}" transform="rotate(-90 14 {_HEIGHT / 2})" text-anchor="middle">{up}</text>',
    ]
    ticks = (
        [10.0**power for power in range(int(low_y), int(high_y) + 1)]
        if log
        else [high_y * part / 4 for part in range(5)]
    )
    for tick in ticks:
        x, y = place(points[0][0], tick)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for x_value in sorted({x for x, _ in points}):
        x, _ = place(x_value, points[0][1])
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_short(x_value)}</text>')
    for number, (label, line) in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = place(*line[-1])
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 4 + 14 * number:.1f}" fill="{colour}">{label}</text>')
    (PLOTS / name).write_text("\n".join([*parts, "</svg>"]) + "\n")


def _short(value: float) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
