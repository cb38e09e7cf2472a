"""Lines and JSON out of files that may hold anything."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model import SessionEntry
from reconciler.importers import reading
from reconciler.importers.base import linked, parents_first, payload_text
from reconciler.importers.reading import LineReader, decode_line, id_fault, replacement_id, too_deep


def lines(data: bytes, line_bytes_max: int = reading.LINE_BYTES_MAX) -> list[tuple[int, bytes | None, bool]]:
    return list(LineReader(BytesIO(data), line_bytes_max=line_bytes_max).lines())


def test_lines_end_at_line_feed_only() -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce\rf"
    assert [(1, text.encode(), True), (2, b"g", False)] == lines(f"{text}\ng".encode())


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert [(1, b"{}", True)] == lines(b"\xef\xbb\xbf{}\n")


def test_a_line_beyond_the_limit_is_skipped_and_the_next_one_is_read() -> None:
    data = b"x" * 5_000_000 + b"\nnext\n" + b"y" * 11
    assert [(1, None, True), (2, b"next", True), (3, None, False)] == lines(data, line_bytes_max=10)


def test_a_line_of_exactly_the_limit_is_read() -> None:
    assert [(1, b"x" * 10, True), (2, b"y" * 10, False)] == lines(b"x" * 10 + b"\n" + b"y" * 10, line_bytes_max=10)


@given(st.binary(max_size=200), st.integers(0, 220))
def test_digests_are_over_the_bytes_that_were_read(data: bytes, prefix: int) -> None:
    reader = LineReader(BytesIO(data), prefix_bytes=prefix)
    assert (
        data == b"\n".join(body or b"" for _, body, _ in reader.lines()) + b"\n" * data.endswith(b"\n")
        or data[:3] == b"\xef\xbb\xbf"
    )
    assert hashlib.sha256(data).hexdigest() == reader.digest
    expected = hashlib.sha256(data[:prefix]).hexdigest() if prefix <= len(data) else None
    assert expected == reader.prefix_digest


def test_a_torn_line_is_given_back() -> None:
    reader = LineReader(BytesIO(b"one\ntwo\nthr"))
    list(reader.lines())
    reader.untake()
    assert (8, 2, hashlib.sha256(b"one\ntwo\n").hexdigest()) == (reader.bytes_read, reader.lines_read, reader.digest)


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")])
def test_json_nested_too_deep_is_refused_not_raised(depth: int, pair: tuple[str, str]) -> None:
    data = pair[0] * depth + "1" + pair[1] * depth
    found = decode_line(data.encode())
    assert (True, ["too_deep"]) == (found.refused, [code for code, _ in found.remarks])


def test_json_of_the_greatest_depth_is_kept_and_one_more_is_not() -> None:
    limit = reading.JSON_DEPTH_MAX
    assert not decode_line(b"[" * limit + b"]" * limit).refused
    assert decode_line(b"[" * (limit + 1) + b"]" * (limit + 1)).refused
    assert not too_deep([[]], 2)
    assert too_deep([[[]]], 2)


def test_brackets_inside_texts_are_not_taken_for_depth() -> None:
    value = {"text": "[{" * 10_000}
    assert value == decode_line(json.dumps(value).encode()).value


def test_numbers_beyond_64_bits_are_kept() -> None:
    text = f'{{"n":{2**200}}}'
    assert {"n": 2**200} == decode_line(text.encode()).value
    assert text == payload_text({"n": 2**200})


def test_numbers_of_thousands_of_digits_are_kept_as_text_and_noted() -> None:
    digits = "9" * 5_000
    found = decode_line(f'{{"n":{digits}}}'.encode())
    assert ({"n": digits}, ["number_too_long"]) == (found.value, [code for code, _ in found.remarks])


def test_not_a_number_is_kept_as_text_and_noted() -> None:
    found = decode_line(b'{"a":NaN,"b":-Infinity}')
    assert {"a": "NaN", "b": "-Infinity"} == found.value
    assert ["not_a_number", "not_a_number"] == [code for code, _ in found.remarks]


def test_a_float_that_overflows_is_kept_in_the_payload_as_text() -> None:
    assert '{"a":["inf",1.5]}' == payload_text(decode_line(b'{"a":[1e999,1.5]}').value)


def test_invalid_utf8_is_kept_as_escapes_and_noted() -> None:
    found = decode_line(b'{"a":"caf\xe9"}')
    assert ({"a": "caf\udce9"}, ["invalid_utf8"]) == (found.value, [code for code, _ in found.remarks])
    assert r'{"a":"caf\udce9"}' == payload_text(found.value)


def test_lone_surrogates_and_nul_are_kept_as_escapes() -> None:
    found = decode_line(rb'{"a":"\ud800 \u0000"}')
    assert (r'{"a":"\ud800 \u0000"}', ()) == (payload_text(found.value), found.remarks)


def test_raw_control_characters_in_texts_are_kept_and_noted() -> None:
    found = decode_line(b'{"a":"x\x00\ty"}')
    assert ({"a": "x\x00\ty"}, ["control_character"]) == (found.value, [code for code, _ in found.remarks])


@given(st.binary(max_size=300))
def test_decoding_never_raises(data: bytes) -> None:
    found = decode_line(data)
    if found.refused:
        assert (None, True) == (found.value, len(found.remarks) > 0)
    else:
        json.loads(payload_text(found.value))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("abc", None),
        ("x" * 512, None),
        ("\u00e9" * 256, None),
        ("x" * 513, "it has 513 bytes, more than 512"),
        ("\u00e9" * 257, "it has 514 bytes, more than 512"),
        ("", "it is empty"),
        ("a\x00b", "it holds a control character"),
        ("a\nb", "it holds a control character"),
        ("a\u0085b", "it holds a control character"),
        ("\ud800", "it holds a lone surrogate"),
        ("submission-settled:x", "its prefix is reserved"),
        ("submission-input:x", "its prefix is reserved"),
        ("tool-marker:1:a:0", "its prefix is reserved"),
    ],
)
def test_what_cannot_be_an_id_is_told(text: str, fault: str | None) -> None:
    assert fault == id_fault(text)
    assert id_fault(replacement_id(text)) is None


def test_replacements_are_the_same_for_the_same_text_only() -> None:
    assert replacement_id("x" * 600) == replacement_id("x" * 600)
    assert replacement_id("x" * 600) != replacement_id("x" * 601)


@given(st.lists(st.tuples(st.integers(0, 20), st.one_of(st.none(), st.integers(0, 20))), unique_by=lambda i: i[0]))
def test_parents_come_before_children_save_in_cycles(links: list[tuple[int, int | None]]) -> None:
    ids = [str(a) for a, _ in links]
    parents = [None if b is None else str(b) for _, b in links]
    order, cycle = parents_first(ids, parents)
    assert sorted((*order, *cycle)) == list(range(len(ids)))
    place = {ids[at]: number for number, at in enumerate(order)}
    for number, at in enumerate(order):
        parent = parents[at]
        assert parent is None or parent not in ids or place[parent] < number
    for at in cycle:
        assert parents[at] in {ids[other] for other in cycle}


def test_the_order_of_the_file_stays_where_links_allow_it() -> None:
    assert ([1, 0, 2], []) == parents_first(["b", "a", "c"], ["a", None, "a"])


def test_an_entry_in_its_place_keeps_everything_else() -> None:
    given: dict[str, object] = {
        field.name: f"{field.name}!" for field in fields(SessionEntry) if field.name not in ("id", "parent_id")
    }
    entry = SessionEntry(id="a", parent_id="b", **given)  # type: ignore[arg-type]
    assert replace(entry, id="x", parent_id="y", submission_id="z") == linked(entry, "x", "y", "z")
