"""The faster JSON library says what the standard one says, byte for byte: values, remarks, stored payloads, digests."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reconciler.importers import base, reading
from reconciler.importers.base import NullSink, Source, decoded_text, payload_text
from reconciler.importers.detect import IMPORTERS
from reconciler.importers.fast_json import NoFastAnswer, canonical_ascii, decoded
from reconciler.importers.reading import decode_line

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
SESSIONS = Path(__file__).parents[2] / "examples" / "sessions"

NUMBERS = [
    "0", "-0", "-0.0", "0.0", "1e5", "1E5", "1.5e-7", "0.0001", "0.00009999999999999999", "9999999999999998.0", "1e16",
    "123456789.125", "5e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "1.7976931348623159e308", "-1e400",
    "18446744073709551615", "18446744073709551616", "-9223372036854775809", "9" * 40, "9" * 5000, "0.1", "100.0",
    "01", "1.", ".5", "+1", "-", "1e", "0x1", "NaN", "Infinity", "-Infinity",
]  # fmt: skip
TEXTS = [
    r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\ud83dx"', '"\x7f"', '"\x1f"', '"é"', '"—│✓"', '"😀"',
    r'"\u00e9\u2014"', r'"\\x41\\u0041"', r'"\/"', r'"\x"', r'"\u12G4"', '"\u2028\u2029\x85"', '"\ud7ff"', '"',
]  # fmt: skip
WHOLE = [
    "", " ", "nul", "truefalse", "[1 2]", "[1,]", '{"a":1,"b":2,"a":3}', '{"b":1,"a":{"d":1,"c":2}}', "\ufeff1", "1 2",
    '{"a":1}x', "\x0c1", "\xa01", " [ ] ", '{"":0}', '{"a" :\t1\r}', "[" * 256 + "]" * 256, "[" * 257 + "]" * 257,
    "[" * 5000 + "]" * 5000, '{"a":' * 300 + "1" + "}" * 300,
]  # fmt: skip

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["L", "S", "Cc", "Cs", "Co"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def _agree(data: bytes) -> None:
    """See that both give one answer. Values by `repr`: it tells types, the order of keys, and -0.0 from 0.0."""
    found, wanted = decode_line(data), reading._decode_slowly(data)
    assert (repr(wanted.value), wanted.refused, wanted.remarks) == (repr(found.value), found.refused, found.remarks)
    if not wanted.refused:
        assert payload_text(wanted.value) == decoded_text(found.value)


@pytest.mark.parametrize("text", [*NUMBERS, *TEXTS, *WHOLE], ids=lambda text: repr(text)[:30])
def test_what_is_known_to_differ_between_libraries_comes_out_the_same(text: str) -> None:
    for made in (text, f'{{"a":[{text}]}}', f"[{text},{text}]"):
        _agree(made.encode("utf-8", "surrogatepass"))


@given(value=values, ensure_ascii=st.booleans(), indent=st.none() | st.integers(0, 2), sort_keys=st.booleans())
def test_any_value_comes_out_the_same(value: object, ensure_ascii: bool, indent: int | None, sort_keys: bool) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
    _agree(text.encode("utf-8", "surrogatepass"))


@given(value=values, at=st.integers(min_value=0), junk=st.binary(max_size=3), length=st.integers(0, 3))
@example(value="caf\xe9", at=4, junk=b"\xed\xa0\x80", length=0)
def test_damaged_lines_come_out_the_same(value: object, at: int, junk: bytes, length: int) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    at %= len(data) + 1
    _agree(data[:at] + junk + data[at + length :])


@given(st.binary(max_size=60))
def test_any_bytes_come_out_the_same(data: bytes) -> None:
    _agree(data)


def test_floats_are_written_the_same_or_left_to_the_standard_library() -> None:
    choice = random.Random(5)
    written = 0
    for _ in range(30_000):
        number = choice.choice(
            [
                struct.unpack("d", choice.randbytes(8))[0],
                choice.random() * 10.0 ** choice.randint(-8, 18),
                round(choice.random() * 10.0 ** choice.randint(0, 16), choice.randint(0, 6)),
                float(choice.randint(0, 10 ** choice.randint(1, 17))),
            ]
        )
        text = json.dumps(number)
        if "N" in text or "I" in text:
            continue
        try:
            assert json.dumps(json.loads(text)) == canonical_ascii(decoded(text.encode()))
            written += 1
        except NoFastAnswer:
            assert "e" in text
    assert written > 10_000


def test_the_faster_library_answers_what_lines_usually_are() -> None:
    line = b'{"type":"user","message":{"content":[{"text":"a \\"b\\"\\n"}]},"n":1,"cost":0.0123,"ok":true,"none":null}'
    assert payload_text(json.loads(line)) == canonical_ascii(decoded(line))


def _real_files() -> list[Path]:
    return [*sorted(SESSIONS.glob("*.jsonl")), *sorted(CORPUS.rglob("*.jsonl"))]


def test_every_line_of_real_sessions_comes_out_the_same() -> None:
    count = 0
    for path in _real_files():
        for line in path.read_bytes().split(b"\n"):
            _agree(line)
            count += 1
    assert count > 50


class _Digest(NullSink):
    """Digests the payloads of a file."""

    wants_payloads = True

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def payload(self, line: int, text: str) -> None:
        """Take a line."""
        self.hash.update(f"{line}\0{text}\n".encode("ascii"))


def _imports(path: Path) -> Iterator[tuple[str, object]]:
    data = path.read_bytes()
    for name, importer in IMPORTERS.items():
        sink = _Digest()
        yield name, (importer().read(Source(io.BytesIO(data), path.stem, sink)), sink.hash.hexdigest())


def test_real_sessions_are_imported_the_same_without_the_faster_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object) -> object:
        raise NoFastAnswer("switched off")

    # The examples, and of the corpus a part.
    paths = _real_files()[: len(list(SESSIONS.glob("*.jsonl")))] + _real_files()[11::9]
    fast = {path: dict(_imports(path)) for path in paths}
    monkeypatch.setattr(reading, "decoded", refuses)
    monkeypatch.setattr(base, "canonical_ascii", refuses)
    for path in paths:
        assert fast[path] == dict(_imports(path)), path
