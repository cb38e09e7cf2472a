"""Text for people: nothing that is stored can command a terminal, and tables fit the width there is."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.ops.asking import Answer
from reconciler.ops.graph import draw
from reconciler.ops.render import (
    Column,
    Style,
    ago,
    error_lines,
    fit,
    hint_lines,
    plain,
    span,
    table,
    to_json,
    to_text,
    width_of,
)

# What a terminal obeys: C0 and C1 controls, and characters that reorder or hide text.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_plain_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = plain(text)
    assert None is _OBEYED.search(shown)
    assert shown == plain(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202eevil", "\\u{202e}evil"),
        ("\x9b31m", "\\x9b31m"),
        ("Grüße 東京", "Grüße 東京"),
        ("\ud800", "\\u{d800}"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_instead(text: str, shown: str) -> None:
    assert shown == plain(text)


@given(st.text(), st.integers(min_value=1, max_value=40))
def test_a_fitted_text_is_never_wider_than_its_room(text: str, columns: int) -> None:
    assert width_of(fit(plain(text), columns)) <= columns


def test_wide_characters_count_twice_and_combining_ones_not_at_all() -> None:
    assert 4 == width_of("東京")
    assert 1 == width_of("e\u0301")
    assert "東…" == fit("東京", 3)


_COLUMNS = (
    Column("NAME", lambda row: row["name"], shrinks=True),
    Column("STATE", lambda row: row["state"], coloured=True),
    Column("EMPTY", lambda row: None),
)


def test_a_table_fits_its_width_and_leaves_empty_columns_out() -> None:
    rows = [{"name": "x" * 200, "state": "failed"}, {"name": "short", "state": "completed"}]
    lines = table(rows, _COLUMNS, Style(width=50))
    assert all(width_of(line) <= 50 for line in lines)
    assert "EMPTY" not in lines[0]
    assert lines[1].endswith("…  failed")


def test_colours_come_only_where_they_are_wanted() -> None:
    rows = [{"name": "a", "state": "failed"}]
    assert "\x1b" not in "".join(table(rows, _COLUMNS, Style(80, colour=False)))
    assert "\x1b[31mfailed\x1b[0m" in table(rows, _COLUMNS, Style(80, colour=True))[1]


def test_json_is_one_line_of_ascii() -> None:
    text = to_json({"text": "\x1b[31m\u202e東京\ud800\n"})
    assert text.isascii()
    assert text.isprintable()
    assert {"text": "\x1b[31m\u202e東京\ud800\n"} == json.loads(text)


def test_errors_name_what_can_be_done() -> None:
    error = {"code": "not_found", "message": "there is no \x1b[31m", "detail": None, "hint": "look"}
    lines = error_lines(Answer("x", {"error": error}, 1, 0.0), Style())
    assert ["error: there is no \\x1b[31m (not_found)", "way out: look"] == lines
    assert "" == to_text(Answer("x", {"error": error}, 1, 0.0), Style())


def test_hints_are_receipts_with_the_value_that_fired_them() -> None:
    hint = {"tool": "list", "trigger": {"field": "held", "value": 2}, "message": "2 held"}
    lines = hint_lines(Answer("status", {"followUp": [hint]}, 0, 0.0), Style())
    assert ["hint: 2 held [held = 2] -> reconciler list"] == lines


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (59, "59s"), (60, "1m"), (61, "1m1s"), (3700, "1h1m"), (90000, "1d1h")]
)
def test_lengths_of_time_have_two_units(seconds: float, text: str) -> None:
    assert text == span(seconds)


def test_instants_are_told_from_now() -> None:
    now = "2026-05-01T12:00:00.000000Z"
    assert "2h ago" == ago("2026-05-01T10:00:00.000000Z", now)
    assert "in 1m" == ago("2026-05-01T12:01:00.000000Z", now)


# --- the graph -------------------------------------------------------------------------------------------------------


def test_a_straight_path_is_one_column() -> None:
    assert ["*", "*", "*"] == draw([("c", "b"), ("b", "a"), ("a", None)], {"a", "b", "c"})


def test_a_branch_has_its_own_column_until_it_joins() -> None:
    nodes = [("d", "c"), ("x", "b"), ("c", "b"), ("b", "a"), ("a", None)]
    assert ["*  ", "| o", "* |", "* /", "*"] == [line.ljust(len(line)) for line in _padded(draw(nodes, set("abcd")))]


def _padded(lines: list[str]) -> list[str]:
    return ["*  " if line == "*" and place == 0 else line for place, line in enumerate(lines)]


@given(st.lists(st.integers(min_value=0, max_value=30), min_size=1, max_size=30))
def test_every_entry_is_marked_once_and_no_line_grows_without_bound(parents: list[int]) -> None:
    # Entry n hangs from an earlier one, or is a root.
    nodes = [(str(n), None if n == 0 or parent >= n else str(parent)) for n, parent in enumerate(parents)][::-1]
    by_id = dict(nodes)
    active: set[str] = set()
    at: str | None = nodes[0][0]
    while at is not None and at not in active:
        active.add(at)
        at = by_id[at]
    lines = draw(nodes, active)
    assert len(nodes) == len(lines)
    for (entry_id, _), line in zip(nodes, lines, strict=True):
        assert 1 == line.count("*") + line.count("o")
        assert ("*" in line) == (entry_id in active)
        assert len(line) <= 2 * 12
