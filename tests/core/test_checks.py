"""What callers pass wrongly is refused with a typed error that names the argument, shown short."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

import pytest

from reconciler.core.checks import TEXT_BYTES_MAX, items_of, require_number, require_text, require_whole, shown
from reconciler.core.unreadable import UnreadableInstant
from reconciler.errors import InvalidInput, LimitExceeded


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text of it")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (7, "7"),
        (2**256 - 1, str(2**256 - 1)),
        (2**256, "an integer of 257 bits"),
        (0.5, "0.5"),
        ("a\x1b[31m", "'a\\x1b[31m'"),
        ("x" * 80, f"'{'x' * 80}'"),
        ("x" * 81, f"'{'x' * 80}'… (81 characters)"),
        (_Unprintable(), "a value of type _Unprintable"),
    ],
)
def test_a_value_is_shown_short_and_printable(value: object, text: str) -> None:
    assert text == shown(value)


def test_a_text_is_given_back() -> None:
    assert "reason" == require_text("reason", "a reason")
    assert "x" * TEXT_BYTES_MAX == require_text("x" * TEXT_BYTES_MAX, "a reason")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (7, "cannot use 7 as a reason: it is a text"),
        ("", "cannot use an empty text as a reason"),
        ("\ud800", "it is no UTF-8"),
        ("a\0b", "it has a NUL character"),
    ],
)
def test_what_is_no_text_is_refused(value: object, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        require_text(value, "a reason")
    assert said in str(refused.value)


def test_a_text_is_bounded_in_bytes() -> None:
    with pytest.raises(LimitExceeded, match=f"a text of {TEXT_BYTES_MAX + 2} bytes"):
        require_text("ü" * (TEXT_BYTES_MAX // 2 + 1), "a reason")


@pytest.mark.parametrize("value", [1, 1.0, 10, 2.5])
def test_a_number_comes_back_as_a_float(value: float) -> None:
    found = require_number(value, "lease_s", 1, 10)
    assert float(value) == found
    assert isinstance(found, float)


@pytest.mark.parametrize("value", ["1", None, True, 0.5, 10.5, float("nan"), float("inf"), 10**400, -(10**400)])
def test_what_is_no_number_within_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="as lease_s: a number from 1 to 10"):
        require_number(value, "lease_s", 1, 10)


def test_the_least_itself_may_be_excluded() -> None:
    assert 0.1 == require_number(0.1, "deadline_s", 0, 10, above=True)
    with pytest.raises(InvalidInput, match="above 0 and at most 10"):
        require_number(0, "deadline_s", 0, 10, above=True)


def test_a_number_may_have_no_upper_bound_but_is_finite() -> None:
    assert 1e300 == require_number(1e300, "x", 0, float("inf"))
    with pytest.raises(InvalidInput):
        require_number(float("inf"), "x", 0, float("inf"))


@pytest.mark.parametrize("value", ["1", None, True, 1.0, 0, 11])
def test_what_is_no_whole_number_within_is_refused(value: object) -> None:
    assert 1 == require_whole(1, "limit", 1, 10)
    assert 10 == require_whole(10, "limit", 1, 10)
    with pytest.raises(InvalidInput, match="as limit: a whole number from 1 to 10"):
        require_whole(value, "limit", 1, 10)


def test_items_are_taken_from_any_collection_up_to_a_bound() -> None:
    assert [1, 2] == list(items_of([1, 2], "entries", 2))
    assert [1, 2] == list(items_of((number for number in (1, 2)), "entries", 2))
    assert [] == list(items_of((), "entries", 0))
    with pytest.raises(LimitExceeded, match="more than 2 entries in one call"):
        list(items_of(count(), "entries", 2))


@pytest.mark.parametrize("value", ["ab", b"ab", bytearray(b"ab"), {"a": 1}, 7, None])
def test_what_items_cannot_be_taken_from_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="as entries: it is a list"):
        list(items_of(value, "entries", 2))


def test_an_instant_that_cannot_be_read_is_the_end_of_time_with_its_text() -> None:
    found = UnreadableInstant.of("yesterday")
    assert datetime.max.replace(tzinfo=UTC) == found
    assert "yesterday" == found.text
