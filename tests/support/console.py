"""Commands in documents, run for real: ``python -m tests.support.console README.md`` writes their output again.

A ``console`` block holds lines that begin with ``$ `` and what they print. The commands of a document run in order, in
one temporary home, from the root of the checkout. What differs from run to run (instants, ids of passes, lengths of
time, paths of the temporary home) is shown as one and the same stand-in, in the document and in a test's comparison.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reconciler.entrypoints.cli import main

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 118

_BLOCK = re.compile(r"(?P<open>^```console\n)(?P<body>.*?)(?P<close>^```$)", re.MULTILINE | re.DOTALL)
_STAND_INS = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "2026-05-01 03:12:44Z"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"), "2026-05-01T03:12:44.120000Z"),
    (re.compile(r"\bpass [0-9a-f]{8}-[0-9a-f-]{27}\b"), "pass 6d1b7c1e-5f7b-4d0c-9d3e-0a8c2f4b9e11"),
    (re.compile(r'"pass_id": "[0-9a-f-]{36}"'), '"pass_id": "6d1b7c1e-5f7b-4d0c-9d3e-0a8c2f4b9e11"'),
    (re.compile(r"\b\d+(ms|s) ago\b"), "1s ago"),
    (re.compile(r"\bin \d+(ms|s)\b"), "in 21ms"),
    (re.compile(r"\bquiet for \d+ (s|min|h|d|days?)\b"), "quiet for 4 h"),
    (re.compile(r"\btess \(once\)"), "tess (once)"),
)


@dataclass(frozen=True)
class Told:
    """A command of a document, and what the document says that it prints."""

    command: str
    output: str


def stand_ins(text: str, home: str) -> str:
    """Return *text* with what differs from run to run replaced."""
    for pattern, shown in _STAND_INS:
        text = pattern.sub(shown, text)
    return text.replace(home, "/home/tess").replace(str(ROOT), "/home/tess/session-reconciler")


@contextlib.contextmanager
def temporary_home() -> Iterator[str]:
    """Be at home in an empty folder, with the embedded default database, at the root of the checkout."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="home-") as home, contextlib.chdir(ROOT):
        try:
            for name in [name for name in os.environ if name.startswith(("RECONCILER_", "XDG_"))]:
                del os.environ[name]
            os.environ |= {"HOME": home, "COLUMNS": str(COLUMNS), "RECONCILER_OPERATOR": "tess"}
            yield home
        finally:
            os.environ.clear()
            os.environ.update(before)


def run(command: str, home: str) -> str:
    """Run a command line of ours and return what it prints, words after data.

    Raises:
        ValueError: it is another program's command, or it could not be understood.
    """
    words = shlex.split(command)
    if words[0] != "reconciler":
        raise ValueError(f"only commands of reconciler are run: {command}")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words[1:])
    if code == 2:
        raise ValueError(f"{command}: {err.getvalue()}")
    return stand_ins(out.getvalue() + err.getvalue(), home)


def told(text: str) -> list[Told]:
    """Return the commands of a document with the output that it shows."""
    found: list[Told] = []
    for block in _BLOCK.finditer(text):
        command: str | None = None
        output: list[str] = []
        for line in block["body"].splitlines():
            if line.startswith("$ "):
                if command is not None:
                    found.append(Told(command, "\n".join(output)))
                command, output = line[2:], []
            else:
                output.append(line)
        if command is not None:
            found.append(Told(command, "\n".join(output)))
    return found


def rewritten(text: str) -> str:
    """Return a document with the output of its commands as it is now."""
    with temporary_home() as home:

        def again(block: re.Match[str]) -> str:
            pieces = [f"$ {one.command}\n{run(one.command, home)}".rstrip() for one in told(block[0])]
            return f"{block['open']}{(chr(10) * 2).join(pieces)}\n{block['close']}"

        return _BLOCK.sub(again, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = ROOT / name
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
