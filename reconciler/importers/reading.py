"""Lines and JSON out of a file that may be anything.

Lines end at LF only (session texts hold U+2028, U+0085 and the like inside JSON strings) and are bounded; JSON is taken
as far as it can be kept, and what was wrong with it is said. Knows nothing of session formats or of databases.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from reconciler.core.model import ID_BYTES_MAX, RESERVED_ID_PREFIXES
from reconciler.importers.fast_json import NoFastAnswer, decoded, parsed_float

# One line may be this long; a longer one is skipped without being kept in memory.
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
# Deeper JSON is refused: it can't be written back, and no session has it. Far below the interpreter's own limit, so
# that the answer doesn't depend on who calls.
JSON_DEPTH_MAX: Final = 256
_NO_OPENING: Final = bytes(set(range(256)) - set(b"[{"))
_SKIP_BYTES: Final = 1024 * 1024
_PROGRESS_BYTES: Final = 4 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
# int() refuses longer ones (a guard against quadratic time), so they are kept as text.
_INT_DIGITS_MAX: Final = 4300

Progress = Callable[[int], None]


class LineReader:
    """The lines of a binary stream, with what a later import needs to tell growth from rewriting.

    After the iteration: ``bytes_read`` and ``lines_read`` count what was taken (a torn last line, see `untake`, is
    not), ``digest`` is over exactly these bytes, and ``prefix_digest`` over the first ``prefix_bytes`` (None where the
    stream was shorter). Without *digests* nothing is hashed, and both are of no bytes.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        digests: bool = True,
        line_bytes_max: int = LINE_BYTES_MAX,
        progress: Progress | None = None,
        prefix_bytes: int | None = None,
    ) -> None:
        self._stream = stream
        self._line_bytes_max = line_bytes_max
        self._progress = progress
        self._prefix_bytes = prefix_bytes
        self._digests = digests
        self._hash = hashlib.sha256()
        self._before_last = self._hash
        self._last_length = 0
        self.bytes_read = 0
        self.lines_read = 0
        self.prefix_digest: str | None = self._hash.hexdigest() if prefix_bytes == 0 else None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the bytes taken, in hex."""
        return self._hash.hexdigest()

    def lines(self) -> Iterator[tuple[int, bytes | None, bool]]:
        """Yield (number from 1, bytes without LF, whether the LF was there); None for a line that is too long."""
        reported = 0
        readline = self._stream.readline
        limit = self._line_bytes_max + 1
        while data := readline(limit):
            self.lines_read += 1
            number = self.lines_read
            # Only the last line can lack its LF, so only there may the digest have to go back by one line.
            ended = data.endswith(b"\n")
            if not ended:
                self._before_last = self._hash.copy()
            self._last_length = len(data)
            self._take(data)
            if ended:
                body: bytes | None = data[:-1]
            elif len(data) < limit:
                body = data
            else:
                body, ended = None, self._skip_rest()
            if number == 1 and body is not None and body.startswith(_BOM):
                body = body[len(_BOM) :]
            yield number, body, ended
            if self._progress is not None and self.bytes_read - reported >= _PROGRESS_BYTES:
                reported = self.bytes_read
                self._progress(reported)
        if self._progress is not None:
            self._progress(self.bytes_read)

    def untake(self) -> None:
        """Give the last line back: it was torn, and whoever writes the file may still be at it."""
        self._hash = self._before_last.copy()
        self.bytes_read -= self._last_length
        self.lines_read -= 1

    def _skip_rest(self) -> bool:
        while data := self._stream.readline(_SKIP_BYTES):
            self._last_length += len(data)
            self._take(data)
            if data.endswith(b"\n"):
                return True
        return False

    def _take(self, data: bytes) -> None:
        before = self.bytes_read
        self.bytes_read = before + len(data)
        if not self._digests:
            return
        want = self._prefix_bytes
        if want is not None and before < want <= self.bytes_read:
            self._hash.update(data[: want - before])
            self.prefix_digest = self._hash.hexdigest()
            self._hash.update(data[want - before :])
        else:
            self._hash.update(data)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A line's JSON, and what had to be said about it as (code, message). ``refused``: there is no value."""

    value: Any
    refused: bool = False
    remarks: tuple[tuple[str, str], ...] = ()


def decode_plain(data: bytes) -> Any:
    """Return the JSON value of a line about which nothing has to be said: what nearly every line is.

    Raises:
        NoFastAnswer: ask `decode_line`.
    """
    value = decoded(data)
    # What is left are the brackets that open: faster than counting each kind.
    if len(data) > JSON_DEPTH_MAX and len(data.translate(None, _NO_OPENING)) > JSON_DEPTH_MAX and too_deep(value):
        raise NoFastAnswer("it is nested too deep")
    return value


def decode_line(data: bytes) -> Decoded:
    """Return the JSON value of a line, kept as far as it can be. Never raises."""
    try:
        return Decoded(decode_plain(data))
    except NoFastAnswer:
        return _decode_slowly(data)


def _decode_slowly(data: bytes) -> Decoded:
    """Return the same by the standard library, which says what is wrong with a line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # The bytes survive as lone surrogates, which canonical JSON escapes.
        return _decode_leniently(
            data.decode("utf-8", "surrogateescape"),
            (("invalid_utf8", f"byte {error.start + 1} is no UTF-8; it is kept as an escape"),),
        )
    return _decode_leniently(text, ())


def _decode_leniently(text: str, remarks: tuple[tuple[str, str], ...]) -> Decoded:
    """Decode, saying what is wrong; slow, and rarely needed."""
    found = list(remarks)

    def parse_int(digits: str) -> int | str:
        if len(digits) > _INT_DIGITS_MAX:
            found.append(("number_too_long", f"a number of {len(digits)} digits is kept as text"))
            return digits
        return int(digits)

    def parse_constant(name: str) -> str:
        found.append(("not_a_number", f"{name} is no JSON number; it is kept as text"))
        return name

    for strict in (True, False):
        try:
            value = json.loads(
                text, strict=strict, parse_float=parsed_float, parse_int=parse_int, parse_constant=parse_constant
            )
        except RecursionError:
            return Decoded(None, True, ((*remarks, _TOO_DEEP)))
        except json.JSONDecodeError as error:
            if strict and error.msg.startswith("Invalid control character"):
                found = [*remarks, ("control_character", "a control character stands unescaped in a text; it is kept")]
                continue
            return Decoded(None, True, (*remarks, ("not_json", f"{error.msg} at character {error.pos + 1}")))
        except ValueError as error:
            return Decoded(None, True, (*remarks, ("not_json", str(error))))
        if too_deep(value):
            return Decoded(None, True, (*remarks, _TOO_DEEP))
        return Decoded(value, False, tuple(found))
    raise AssertionError("unreachable: the second, lenient pass always answers")


_TOO_DEEP: Final = ("too_deep", f"JSON is nested deeper than {JSON_DEPTH_MAX} levels")


def too_deep(value: object, limit: int = JSON_DEPTH_MAX) -> bool:
    """Return whether *value* nests deeper than *limit*; level by level, so that no stack grows."""
    level: list[object] = [value]
    for _ in range(limit):
        following: list[object] = []
        for item in level:
            if type(item) is dict:
                following.extend(item.values())
            elif type(item) is list:
                following.extend(item)
        if not following:
            return False
        level = following
    return any(type(item) in (dict, list) for item in level)


# --- ids -------------------------------------------------------------------------------------------------------------

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# What nearly every id is; no reserved prefix can match it.
is_plain_id: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z").match


def id_fault(text: str) -> str | None:
    """Return why *text* can't be an id of ours (contract, section 2; reserved prefixes: I2), or None."""
    if is_plain_id(text):
        return None
    fault = _text_fault(text, ID_BYTES_MAX)
    if fault is None and text.startswith(RESERVED_ID_PREFIXES):
        return "its prefix is reserved"
    return fault


def is_derived_id(text: str) -> bool:
    """Return whether *text* can be an id that we derived from another one."""
    return text.startswith(RESERVED_ID_PREFIXES) and _text_fault(text, 2 * ID_BYTES_MAX) is None


def _text_fault(text: str, bytes_max: int) -> str | None:
    if not text:
        return "it is empty"
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "it holds a lone surrogate"
    if length > bytes_max:
        return f"it has {length} bytes, more than {bytes_max}"
    if _CONTROL.search(text):
        return "it holds a control character"
    return None


def replacement_id(text: str) -> str:
    """Return the id that stands for one that can't be kept: the same for the same text, so that links hold."""
    return "id-sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
