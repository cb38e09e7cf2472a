"""The one door: names and parameters are checked, errors come as payloads, secrets stay inside, hints stand here."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from reconciler.errors import InvalidInput, LimitExceeded
from reconciler.ops.asking import Desk
from reconciler.ops.dispatch import ask, redact
from reconciler.ops.entry import Kind, Parameter, parse_instant
from reconciler.ops.registry import REGISTRY
from reconciler.ops.values import from_token, text_of_stored, to_token
from reconciler.store.schema import decisions
from tests.ops.conftest import Front

PACKAGE = Path(__file__).parents[2] / "reconciler"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_unknown_names_and_parameters_are_refused_with_the_nearest(front: Front) -> None:
    answer = ask("staus", {}, front.desk)
    assert (1, 'did you mean "status"?') == (answer.exit_code, answer.payload["error"]["hint"])
    assert 'did you mean "limit"?' == front.refused("list", limti=3)["hint"]
    assert "needs session" in front.refused("show")["message"]


def test_no_typed_error_leaves_but_as_a_payload(front: Front) -> None:
    for name in REGISTRY:
        answer = ask(name, {"no such parameter": 1}, front.desk)
        assert ("invalid_input", 1) == (answer.payload["error"]["code"], answer.exit_code)


def test_every_answer_says_how_long_it_took(front: Front) -> None:
    assert 0 < front.ask("status").took_s < 60


def test_hints_can_be_silenced(crashed: Front) -> None:
    crashed.ask("once")
    assert "followUp" in crashed.ask("status").payload
    crashed.desk.hints = False
    assert "followUp" not in crashed.ask("status").payload


def test_the_same_state_gives_the_same_bytes(crashed: Front) -> None:
    crashed.ask("once")
    first, second = (crashed.ask("list", status="all").payload for _ in range(2))
    assert repr(first) == repr(second)


def test_only_dispatch_looks_into_the_table_of_hints() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "reconciler.core.hints"
        for name in node.names
        if "hints" in name.name.lower() or "rule" in name.name.lower()
    }
    # The package itself only hands the names on.
    assert {"ops/dispatch.py"} == users - {"__init__.py"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:s/e:c@ret@db/x", "postgresql://me:***@db/x"),
        (
            "postgresql://db/x?user=me&password=secret&sslmode=require",
            "postgresql://db/x?user=me&password=***&sslmode=require",
        ),
        ("https://example.com/a?b=c", "https://example.com/a?b=c"),
        ("no url: at all @", "no url: at all @"),
    ],
)
def test_passwords_in_urls_are_masked_wherever_they_stand(text: str, shown: str) -> None:
    assert {"a": [shown, {"b": shown}], "n": 1} == redact({"a": [text, {"b": text}], "n": 1})


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        (Parameter("x", Kind.INTEGER, "h", minimum=1), 0),
        (Parameter("x", Kind.INTEGER, "h"), 1.5),
        (Parameter("x", Kind.INTEGER, "h"), True),
        (Parameter("x", Kind.INTEGER, "h"), "1"),
        (Parameter("x", Kind.NUMBER, "h"), float("nan")),
        (Parameter("x", Kind.NUMBER, "h"), float("inf")),
        (Parameter("x", Kind.NUMBER, "h", maximum=2), 2.5),
        (Parameter("x", Kind.BOOLEAN, "h"), "yes"),
        (Parameter("x", Kind.TEXT, "h", choices=("a", "b")), "c"),
        (Parameter("x", Kind.TEXT, "h"), "\x00"),
        (Parameter("x", Kind.TEXT, "h"), 7),
        (Parameter("x", Kind.ID, "h"), ""),
        (Parameter("x", Kind.ID, "h"), "a\x1fb"),
        (Parameter("x", Kind.ID, "h"), "\ud800"),
        (Parameter("x", Kind.ID, "h", many=True), {"a": 1}),
        (Parameter("x", Kind.INSTANT, "h"), "yesterday"),
        (Parameter("x", Kind.INSTANT, "h"), "2026-05-01T12:00:00"),
        (Parameter("x", Kind.INSTANT, "h"), "9" * 20 + "d"),
        (Parameter("x", Kind.INSTANT, "h"), "0001-01-01T00:00:00+23:59"),
    ],
)
def test_a_value_outside_its_type_or_range_is_refused(parameter: Parameter, value: Any) -> None:
    with pytest.raises(InvalidInput):
        parameter.check(value, NOW)


def test_texts_and_lists_have_their_limits() -> None:
    with pytest.raises(LimitExceeded):
        Parameter("x", Kind.TEXT, "h").check("x" * 5000, NOW)
    with pytest.raises(LimitExceeded):
        Parameter("x", Kind.TEXT, "h", many=True).check(["x"] * 10_001, NOW)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2h", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("1.5d", datetime(2026, 4, 30, tzinfo=UTC)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T14:00:00+02:00", datetime(2026, 5, 1, 12, tzinfo=UTC)),
        ("2026-05-01T12:00:00.5Z", datetime(2026, 5, 1, 12, 0, 0, 500000, tzinfo=UTC)),
    ],
)
def test_instants_are_named_in_several_ways(text: str, instant: datetime) -> None:
    assert instant == parse_instant("since", text, NOW)


@given(st.text(max_size=70))
def test_any_text_is_an_instant_or_is_refused(text: str) -> None:
    with suppress(InvalidInput):
        assert parse_instant("since", text, NOW).tzinfo is UTC


@given(st.text(max_size=200))
def test_any_text_is_a_token_or_is_refused(text: str) -> None:
    with suppress(InvalidInput):
        assert isinstance(from_token(text, "page"), dict)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_a_token_carries_what_it_was_made_of(value: dict[str, Any]) -> None:
    assert value == from_token(to_token(value), "page")


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ('"plain"', "plain"),
        ('{"text":"a"}', "a"),
        (
            '{"message":{"content":[{"text":"a","type":"text"},{"input":{"x":1},"name":"run","type":"tool_use"}]}}',
            'a run({"x": 1})',
        ),
        ('{"nothing":1}', ""),
        ("[" * 5000, ""),
        ('{"content":[{"text":"whole"},{"text":"cut of', "whole"),
    ],
)
def test_what_was_said_is_found_in_whatever_a_program_wrote(stored: str, text: str) -> None:
    assert text == text_of_stored(stored, 100)


# --- transports ------------------------------------------------------------------------------------------------------


def test_readers_are_reached_through_dispatch_alone() -> None:
    readers = {entry.reader.partition(":")[0] for entry in REGISTRY.values()}
    for path in (PACKAGE / "entrypoints").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in readers, path
            elif isinstance(node, ast.Import):
                assert not {name.name for name in node.names} & readers, path


def test_a_desk_gives_its_connections_back(engine: Any, desk: Desk) -> None:
    made: list[int] = []

    def make(**_: Any) -> Any:
        made.append(1)
        return engine

    kept: Callable[..., Any] = make
    other = Desk(make_engine=kept, name_database=lambda: "x")
    ask("status", {}, other)
    ask("status", {}, other)
    assert 1 == len(made)
    other.close()
    ask("status", {}, other)
    assert 2 == len(made)


def test_a_stored_value_that_cannot_be_read_comes_as_an_error_in_words(crashed: Front, engine: Engine) -> None:
    crashed.ask("once")
    with engine.begin() as conn:
        conn.execute(sa.update(decisions).values(evidence="{"))
    error = crashed.refused("explain", submission="never-begun")
    assert "row_unreadable" == error["code"]
    assert "fsck" in error["hint"]
