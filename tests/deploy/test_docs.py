"""The daemon's page lists every metric; events and metrics are declared once, and all of them happen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reconciler.log import EVENTS, LEVELS, captured, emit
from reconciler.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/daemon.md").read_text()
SOURCES = [path.read_text() for path in (ROOT / "reconciler").rglob("*.py") if path.name != "log.py"]


def test_the_page_lists_every_metric() -> None:
    for name, metric in METRICS.items():
        row = f"| `{name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |"
        assert row in PAGE, f"write this row: {row}"


def test_every_event_that_is_emitted_is_declared_and_every_declared_one_is_emitted() -> None:
    emitted = {name for text in SOURCES for name in re.findall(r'emit\(\s*"([a-z_.]+)"', text)}
    assert emitted <= set(EVENTS)
    assert set(EVENTS) <= emitted


def test_every_metric_is_counted_somewhere() -> None:
    text = "".join(SOURCES)
    # More than once: in the list, and where it is counted.
    assert set() == {name for name in METRICS if text.count(f'"{name}"') < 2}


def test_names_and_levels_are_those_of_the_house() -> None:
    for name, event in EVENTS.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name)
        assert event.level in LEVELS
        assert event.meaning.endswith(".")


def test_an_event_with_a_field_that_it_does_not_have_is_a_fault() -> None:
    with captured(), pytest.raises(ValueError, match="no fields"):
        emit("daemon.ready", colour="red")
