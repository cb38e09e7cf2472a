"""docs/stores.md, made from the code: ``python -m tests.support.stores_page`` writes it again."""

from __future__ import annotations

import textwrap
from pathlib import Path

from reconciler.importers.detect import DATABASE_IMPORTERS
from reconciler.importers.formats import FORMATS, StoreFormat

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stores.md"

_HEAD = """\
# Stores: whose sessions can be read, and what each store can prove

Made from `reconciler/importers/formats.py` by `python -m tests.support.stores_page`; a test fails when they differ.

```sh
reconciler inspect SOURCE   # explained verdicts, without any database
reconciler import SOURCE    # the same, kept
reconciler watch SOURCE     # the same, again whenever something changes
```

"""

_SOURCE = """\
A source is a file, a folder, an SQLite database, or a `postgresql://` URL. The format is found by what only its program
writes, and the answer says what gave it away (`format_reason`); `--format NAME` decides it by hand. A folder means the
`.jsonl` files below it, SQLite databases of a known format, and exports; links that lead out of it are refused by name.
Where there is much to import, files are read ahead by processes of their own while one process writes (`--jobs`): the
result is the same, in the same order.

A database in use is never locked and never written to: an SQLite file is read beside its program through the
write-ahead log, or as it stands and again if it changed; what a crash left half-done is copied aside and read there. On
PostgreSQL every read is a read-only snapshot. Each session of a database is imported by itself, and rows that were
rewritten in place are replaced, the old ones kept. Nothing is unpickled, constructed or evaluated.

**Write-ahead** (R12): whether a call is durable before its tool runs. Where it isn't, or isn't known, every uncertain
or continuable verdict says `unlogged_calls_possible`: another tool may have run without a trace. **Stopped by a
person** (R11): what in the store proves it; such a turn is safe to resume, and nobody asked for that.
"""

_BACK = """\
`reconciler export` writes a session back, and `--repaired` closes its interrupted calls ([operations.md](operations.md)
says how). It writes pi's files, Claude Code's transcripts, and lines of its own (`jsonl`); a session of any other store
goes out as `jsonl`, since a database of another program is never written to. Whether the programs take what is written
was tried with them, in environments of their own:
"""
_TRIED = {
    "Claude Code 2.1.332": """
        resumed `examples/sessions/claude-killed-in-parallel-tools.jsonl`, in a network namespace without a network,
        against a scripted model on the loopback: what it sent held each call with its result, the added one in our
        words. Without the repair it left the open call out, so that the model would never have heard of it
    """,
    "Claude's Agent SDK 0.3.332 (its reader of sessions)": """
        the six examples, and repaired exports of the 41 transcripts at hand: no call without a result, and in the
        examples each added line on the path; a test does those again where `RECONCILER_TEST_CLAUDE_PACKAGE` names the
        package's folder
    """,
    "pi coding agent 0.74.2 (its session manager)": """
        opened, the leaf and the calls as they should be, and nothing mended in the file; a test does it again where
        `RECONCILER_TEST_PI_PACKAGE` names the package's folder
    """,
    "this program": """
        `jsonl` into an empty database: the same verdicts, on SQLite and on PostgreSQL; the same lines again
    """,
    "Codex, opencode, OpenAI Agents SDK, Google ADK, LangGraph, Flue": """
        nothing is written in their formats, so there was nothing to open
    """,
}


def stores_page() -> str:
    """Return the page."""
    lines = [_HEAD.rstrip("\n"), ""]
    for text in _SOURCE.split("\n\n"):
        lines += [*_paragraph(text), ""]
    lines += ["| format | program | read from | write-ahead |", "| --- | --- | --- | --- |"]
    for found in FORMATS.values():
        kind = "database" if found.format in DATABASE_IMPORTERS else "file"
        known = found.write_ahead.partition(":")[0]
        lines.append(f"| [`{found.format}`](#{found.format}) | {found.program} | {kind} | {known} |")
    for found in FORMATS.values():
        lines += ["", *_section(found)]
    lines += ["", "## Opened again by the programs themselves", "", *_paragraph(_BACK), ""]
    for program, text in _TRIED.items():
        lines += _item(f"{program}: {' '.join(text.split())}.")
    return "\n".join(lines) + "\n"


def _section(found: StoreFormat) -> list[str]:
    lines = [f"## {found.format}", "", *_paragraph(f"{found.program}: {found.where}."), ""]
    for name, text in (
        ("A submission is", found.submission),
        ("Write-ahead", found.write_ahead),
        ("Stopped by a person", found.stopped_by),
        ("Known from", found.evidence),
    ):
        lines += _item(f"{name}: {text}.")
    lines += ["", "It can prove:", ""]
    for text in found.proves:
        lines += _item(f"{text}.")
    lines += ["", "It cannot prove:", ""]
    for text in found.cannot:
        lines += _item(f"{text}.")
    return lines


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width=118, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        text, 118, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    PAGE.write_text(stores_page(), encoding="utf-8")
