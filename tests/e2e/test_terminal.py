"""The ends of a terminal: progress that moves and goes away, widths, colours, streams that cannot show everything."""

from __future__ import annotations

import io
import sys

import pytest

from reconciler.entrypoints.commands import terminal
from reconciler.ops.render import WIDTH_PIPED


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("reconciler.entrypoints.commands.terminal.time.monotonic", lambda: now[0])
    return now


def test_progress_moves_on_one_line_and_goes_away(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    line = terminal.ProgressLine()
    line(1, 100, "reading")
    assert "" == stream.getvalue()
    clock[0] += 1
    line(50, 100, "reading")
    line(51, 100, "reading")
    assert "\rreading: 50 of 100 50%" == stream.getvalue()
    line.done()
    assert stream.getvalue().endswith("\r")


def test_progress_in_a_file_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    line = terminal.ProgressLine()
    for _ in range(300):
        clock[0] += 0.1
        line(1, None, "looked at")
    assert 2 <= stream.getvalue().count("\n") <= 3
    assert "\r" not in stream.getvalue()


def test_quiet_progress_says_nothing(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    line = terminal.ProgressLine(quiet=True)
    clock[0] += 60
    line(1, 2, "x")
    assert "" == stream.getvalue()


def test_a_pipe_gets_whole_lines_unless_columns_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert WIDTH_PIPED == terminal.style_of(io.StringIO()).width
    monkeypatch.setenv("COLUMNS", "72")
    assert (72, False) == (terminal.style_of(io.StringIO()).width, terminal.style_of(io.StringIO()).colour)


@pytest.mark.parametrize(
    ("variables", "colour"), [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colour: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert colour is terminal.style_of(_Terminal()).colour


def test_a_terminal_of_an_old_encoding_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.write_out("東京 …")
    assert b"\\u6771\\u4eac \\u2026\n" == raw.getvalue()
