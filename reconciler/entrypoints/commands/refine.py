"""What `refine` needs beside the registry: candidates from a file or standard input, and a picture of the history."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from reconciler.core.model import DEFAULT_LIMITS
from reconciler.entrypoints.commands import terminal
from reconciler.entrypoints.commands.verbs import Call, ask_once, make_command
from reconciler.errors import InvalidInput, LimitExceeded, SourceUnreadable
from reconciler.ops.refine_plot import svg
from reconciler.ops.registry import entry_of

# A picture with more steps than pixels shows nothing more.
_PICTURE_PAGES_MAX: Final = 20
_PICTURE_PAGE: Final = 1_000


def gate() -> click.Command:
    """Return `refine gate`: one edit, or a file of JSON lines."""
    command = make_command(entry_of("refine gate"), prepare=_read_candidates)
    # A negative score is no option; an unknown option is still refused, as an argument too many.
    command.context_settings["ignore_unknown_options"] = True
    return command


def _read_candidates(given: dict[str, Any]) -> dict[str, Any]:
    name = given["candidates"]
    return given if name is None else {**given, "candidates": _json_lines(name)}


def _json_lines(name: str) -> list[Any]:
    most = DEFAULT_LIMITS.payload_bytes_max
    try:
        if name == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(name).open("rb") as stream:
                data = stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceUnreadable(
            f'could not read the candidates "{name}": {reason}',
            hint="name a file of JSON lines, or - for standard input",
        ) from error
    if len(data) > most:
        raise LimitExceeded(f'the candidates in "{name}" are larger than {most} bytes', hint="gate them in pieces")
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                found.append(json.loads(line.decode("utf-8")))
            except (ValueError, RecursionError) as error:
                raise InvalidInput(
                    f'cannot read line {number} of "{name}" as JSON: {_json_fault(error)}',
                    hint='one object a line: {"edit_id": TEXT, "score": NUMBER}',
                ) from None
    return found


def _json_fault(error: Exception) -> str:
    # Without the place inside the line: people see the line.
    return error.msg[0].lower() + error.msg[1:] if isinstance(error, json.JSONDecodeError) else str(error)


def history() -> click.Command:
    """Return `refine history`, which draws too."""
    return make_command(
        entry_of("refine history"),
        prepare=lambda given: {name: value for name, value in given.items() if name != "svg"},
        run=_history,
        extra=[
            click.Option(["--svg", "svg"], metavar="FILE", help="Draw scores and budget as SVG; - for standard output.")
        ],
    )


def _history(call: Call) -> int:
    target = call.given.get("svg")
    if target is None:
        return ask_once(call)
    epochs: dict[int, Mapping[str, Any]] = {}
    steps: list[Mapping[str, Any]] = []
    params = {**call.params, "limit": _PICTURE_PAGE, "rejected": False}
    for _ in range(_PICTURE_PAGES_MAX):
        answer = call.ask(params)
        if answer.error is not None:
            terminal.show(answer, as_json=call.globals.as_json)
            return answer.exit_code
        epochs |= {epoch["epoch"]: epoch for epoch in answer.payload["epochs"]}
        steps += answer.payload["steps"]
        params["page"] = answer.payload["next_page"]
        if params["page"] is None:
            break
    else:
        terminal.write_err(f"drawn are the first {len(steps)} steps; name an --epoch, or a --page to start from")
    picture = svg(call.params["subject"], [epochs[number] for number in sorted(epochs)], steps)
    if target == "-":
        terminal.write_out(picture.rstrip("\n"))
        return 0
    try:
        Path(target).write_text(picture, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f'could not write the picture "{target}": {reason}', hint="name another file") from error
    terminal.write_err(f"wrote {target}")
    return 0


SPECIAL: Final[Mapping[str, Callable[[], click.Command]]] = MappingProxyType(
    {"refine gate": gate, "refine history": history}
)
