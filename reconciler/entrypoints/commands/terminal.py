"""The two ends of a terminal: answers on standard output, words on standard error.

Knows how wide a terminal is, whether colours are wanted, and what to do when the reader of a pipe has gone. Knows
nothing of what is shown.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TextIO

import click

from reconciler.ops.asking import Answer
from reconciler.ops.render import WIDTH_PIPED, Style, error_lines, hint_lines, to_json, to_text

# Longest text without a pager, in lines, where the terminal does not say its height.
_HEIGHT: Final = 24
_PROGRESS_AFTER_S: Final = 0.7
_PROGRESS_EVERY_S: Final = 0.1
# Where standard error is a file or a pipe: a line now and then, not a moving one.
_PROGRESS_LINES_EVERY_S: Final = 10.0


class NotShown(Exception):
    """An answer could not be written to standard output."""


def style_of(stream: TextIO) -> Style:
    """Return how text is set on *stream*: fitted and coloured on a terminal, plain and uncut elsewhere."""
    if not _is_terminal(stream):
        # Uncut, so that nothing is lost to a pipe; COLUMNS, which shells do not export by themselves, asks for less.
        columns = os.environ.get("COLUMNS", "")
        return Style(int(columns) if columns.isdecimal() and 0 < len(columns) < 6 else WIDTH_PIPED, colour=False)
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(shutil.get_terminal_size((100, _HEIGHT)).columns, colour=colour)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def show(answer: Answer, *, as_json: bool, page: bool = False) -> None:
    """Write an answer: the payload or its text on standard output, error and hints on standard error."""
    if as_json:
        write_out(to_json(answer.payload))
        return
    text = to_text(answer, style_of(sys.stdout))
    if text:
        if page and _is_terminal(sys.stdout) and text.count("\n") >= shutil.get_terminal_size((100, _HEIGHT)).lines:
            click.echo_via_pager(text + "\n")
        else:
            write_out(text)
    style = style_of(sys.stderr)
    for line in [*error_lines(answer, style), *hint_lines(answer, style)]:
        write_err(line)


def write_out(text: str) -> None:
    """Write a line to standard output; a reader that has gone is no error."""
    _write(sys.stdout, text)


def write_err(text: str) -> None:
    """Write a line to standard error."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
        stream.flush()
    except BrokenPipeError:
        forget_pipe(stream)
    except OSError as error:
        forget_pipe(stream)
        if stream is sys.stdout:
            raise NotShown(error.strerror or str(error)) from error
    except UnicodeEncodeError:
        # A terminal of an old encoding: what it cannot show is escaped.
        encoded = (text + "\n").encode(stream.encoding or "ascii", "backslashreplace")
        stream.write(encoded.decode(stream.encoding or "ascii"))
        stream.flush()


def forget_pipe(stream: TextIO) -> None:
    """Point *stream* nowhere, so that the interpreter's last flush doesn't complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@dataclass(slots=True)
class ProgressLine:
    """Progress of long work on standard error: a moving line on a terminal, a line now and then elsewhere."""

    quiet: bool = False
    _started: float = field(default_factory=lambda: time.monotonic())
    _shown: float = 0.0
    _width: int = 0

    def __call__(self, done: int, total: int | None, what: str, /) -> None:
        """Show how far it is."""
        now = time.monotonic()
        moving = _is_terminal(sys.stderr)
        every = _PROGRESS_EVERY_S if moving else _PROGRESS_LINES_EVERY_S
        first = _PROGRESS_AFTER_S if moving else _PROGRESS_LINES_EVERY_S
        if self.quiet or now - self._started < first or now - self._shown < every:
            return
        self._shown = now
        share = f" {100 * done // total}%" if total else ""
        text = f"{what}: {done}{f' of {total}' if total is not None else ''}{share}"
        if not moving:
            write_err(text)
            return
        text = text[: max(20, shutil.get_terminal_size((100, _HEIGHT)).columns - 1)]
        with suppress(OSError, ValueError):
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
        self._width = len(text)

    def done(self) -> None:
        """Take the moving line away."""
        if self._width:
            with suppress(OSError, ValueError):
                sys.stderr.write("\r" + " " * self._width + "\r")
                sys.stderr.flush()
            self._width = 0
