"""Canonical JSON: one text for one value, on every database."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.canonical import JSON_DEPTH_MAX, canonical_json, content_digest, text_digest
from reconciler.errors import InvalidInput

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


@given(values)
def test_what_is_written_reads_back_as_the_same_value(value: Any) -> None:
    assert value == json.loads(canonical_json(value))


@given(values)
def test_the_text_is_printable_ascii(value: Any) -> None:
    text = canonical_json(value)
    assert text.isascii()
    assert text.isprintable()


@given(st.dictionaries(st.text(), st.integers()), st.randoms())
def test_the_order_of_keys_changes_nothing(value: dict[str, int], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(value) == canonical_json(dict(items))


def test_the_text_of_a_value_never_changes() -> None:
    value = {"b": [1, 1.5, True, None], "a": 'é\x00\ud800 "\\/', "": {}}
    expected = '{"":{},"a":"\\u00e9\\u0000\\ud800 \\"\\\\/","b":[1,1.5,true,null]}'
    assert expected == canonical_json(value)


def test_nul_and_lone_surrogates_survive_as_escapes() -> None:
    text = "before\x00after\udfff"
    written = canonical_json(text)
    assert "\x00" not in written
    assert text == json.loads(written)


def test_the_digest_is_the_one_of_the_text() -> None:
    assert "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" == content_digest({})
    assert text_digest(canonical_json({"a": 1})) == content_digest({"a": 1})


def test_numbers_of_different_types_have_different_texts() -> None:
    assert canonical_json(1) != canonical_json(1.0)
    assert canonical_json(1) != canonical_json(True)


def test_integers_beyond_64_bits_are_kept_exactly() -> None:
    assert 2**200 + 1 == json.loads(canonical_json(2**200 + 1))


def test_tuples_are_lists_and_text_enums_are_text() -> None:
    class Word(StrEnum):
        ONE = "one"

    assert '{"one":["one"]}' == canonical_json({Word.ONE: (Word.ONE,)})


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [-math.inf],
        {1: "a"},
        {None: "a"},
        {True: "a"},
        {"deep": [{2.5: "a"}]},
        {"mixed": 1, 2: 1},
        b"bytes",
        {"a set": {1}},
        object(),
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_has_not_is_invalid_input(value: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot write the value as JSON"):
        canonical_json(value)


def test_a_value_that_holds_itself_is_invalid_input() -> None:
    ring: list[Any] = []
    ring += [ring, ring, {"again": ring}]
    with pytest.raises(InvalidInput, match="cannot write the value as JSON"):
        canonical_json(ring)


def test_the_deepest_value_that_is_taken_reads_back() -> None:
    value = nested(JSON_DEPTH_MAX)
    assert value == json.loads(canonical_json(value))


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 100_000])
def test_deeper_values_are_invalid_input(depth: int) -> None:
    with pytest.raises(InvalidInput, match="nested deeper"):
        canonical_json(nested(depth))
