"""`export`: the registry's entry, its reader, and its renderer. Data, but for the reader, which loads the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from reconciler.errors import InvalidInput
from reconciler.ops.asking import Asked, Reply
from reconciler.ops.entry import Entry, Example, Kind, Parameter
from reconciler.ops.render import Payload, Style, plain
from reconciler.ops.shapes import COUNT, FLAG, TEXT, listing, maybe, shape, words

# Lines that an answer lists beside the counts.
_LISTED_MAX: Final = 1_000

EXPORT: Final = shape(
    session_id=TEXT,
    format=words("pi", "claude", "jsonl"),
    repaired=FLAG,
    # shown: the text is in the answer; already: the file holds just that.
    result=words("shown", "written", "already", "would"),
    file=maybe(TEXT),
    # Null where it went into a file, and in a dry run.
    text=maybe(TEXT),
    line_count=COUNT,
    # Of the repair: where each line stands, and which call it closes.
    added=listing(shape(line=COUNT, entry_id=TEXT, tool_call_id=TEXT, text=TEXT)),
    added_count=COUNT,
    # What the format has no place for.
    left_out=listing(shape(entry_id=TEXT, why=TEXT)),
    left_out_count=COUNT,
    # What reading the file again has shown.
    problems=listing(TEXT),
    dry_run=FLAG,
)

ENTRIES: Final = (
    Entry(
        "export",
        "Write a session back into a file of its program, as it is or repaired",
        "reconciler.ops.export:export",
        EXPORT,
        parameters=(
            Parameter("session", Kind.ID, "the session", required=True, positional=True),
            Parameter(
                "format",
                Kind.TEXT,
                "the file's format (default: the one that it came from, else jsonl)",
                choices=("pi", "claude", "jsonl"),
            ),
            Parameter("repaired", Kind.BOOLEAN, "close interrupted calls by results that are added", default=False),
            Parameter("output", Kind.TEXT, "the file, or a folder for a file of the session's name; - shows it"),
            Parameter("cwd", Kind.TEXT, "the folder that the file names as the session's, where lines are made anew"),
            Parameter("force", Kind.BOOLEAN, "overwrite the file", default=False),
            Parameter("dry_run", Kind.BOOLEAN, "show the lines that a repair adds, and write nothing", default=False),
        ),
        details=(
            "Lines that came from a file of the same format go back as they were read. What is repaired is told line by"
            " line; nothing real is changed. The file is read again before it is given out: exit code 3 where it does"
            " not show what is stored. It is made for its owner alone, and never overwrites another one."
        ),
        examples=(
            Example("reconciler export SESSION", "to standard output"),
            Example("reconciler export SESSION --repaired --dry-run", "which lines a repair would add"),
            Example(
                "reconciler export SESSION --repaired --output session.jsonl", "a file that its program opens again"
            ),
        ),
    ),
)


def export(asked: Asked) -> Reply:
    """Answer `export`."""
    from reconciler.errors import NotFound
    from reconciler.ops.naming import no_such_session
    from reconciler.service.export import export_session, target_of, write_file

    if not asked.desk.show_texts:
        raise InvalidInput("cannot export here: what was said in sessions is not shown", hint="use the command line")
    try:
        report = export_session(
            asked.desk.engine,
            asked["session"],
            format_name=asked["format"],
            repaired=asked["repaired"],
            cwd=asked["cwd"],
        )
    except NotFound:
        with asked.reading() as conn:
            raise no_such_session(conn, asked["session"]) from None
    output = None if asked["output"] in (None, "-") else asked["output"]
    target = None if output is None else target_of(output, asked["session"])
    result = "shown"
    if asked.dry_run:
        result = "would"
    elif target is not None:
        result = "written" if write_file(target, report.text, force=asked["force"]) else "already"
    return Reply(
        {
            "session_id": report.session_id,
            "format": report.format,
            "repaired": asked["repaired"],
            "result": result,
            "file": None if target is None else str(target),
            "text": report.text if result == "shown" else None,
            "line_count": report.line_count,
            "added": [
                {"line": one.line, "entry_id": one.entry_id, "tool_call_id": one.tool_call_id, "text": one.text}
                for one in report.added[:_LISTED_MAX]
            ],
            "added_count": len(report.added),
            "left_out": [{"entry_id": entry_id, "why": why} for entry_id, why in report.left_out[:_LISTED_MAX]],
            "left_out_count": len(report.left_out),
            "problems": list(report.problems),
            "dry_run": asked.dry_run,
        },
    )


def _render(payload: Payload, style: Style) -> list[str]:
    if payload["text"] is not None:
        # The file itself: its JSON is ASCII, so that nothing in it can command a terminal.
        return list(str(payload["text"]).splitlines())
    lines = []
    name = plain(payload["file"] or "standard output")
    words_ = {"written": "wrote", "already": "it is there already:", "would": "would write"}
    lines.append(f"{words_[payload['result']]} {style.bold(name)}: {payload['line_count']} lines, {payload['format']}")
    for one in payload["added"]:
        lines.append(
            f"  + line {one['line']} closes {plain(one['tool_call_id'])}: {style.dim(plain(one['text'])[:200])}"
        )
    if payload["left_out_count"]:
        lines.append(style.dim(f"  {payload['left_out_count']} entries have no place in the format"))
    lines += [f"{style.bold('differs:')} {plain(text)}" for text in payload["problems"]]
    return lines


RENDERERS: Final[Mapping[str, Callable[[Payload, Style], list[str]]]] = MappingProxyType({"export": _render})
