"""`watch` on a command line: it follows until it is interrupted, at a pace that leaves the machine to others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from reconciler.entrypoints.commands import terminal
from reconciler.entrypoints.commands.following import Following
from reconciler.entrypoints.commands.verbs import Call, confirm_target, make_command
from reconciler.ops.registry import entry_of

EVERY_S: Final = 5.0
_EVERY_LEAST_S: Final = 0.2
# A look that takes long is followed by a longer rest: at most a fifth of the time is spent looking.
_REST_PER_LOOK: Final = 4.0
_OWN: Final = ("once", "every", "import_changed")


def watch() -> click.Command:
    """Return `watch`."""
    return make_command(
        entry_of("watch"),
        run=_follow,
        prepare=_prepare,
        extra=[
            click.Option(["--once", "once"], is_flag=True, help="Look once, at everything, and stop."),
            click.Option(
                ["--every", "every"],
                type=click.FloatRange(min=_EVERY_LEAST_S),
                default=EVERY_S,
                help=f"Seconds between two looks. [default: {EVERY_S:g}]",
            ),
            click.Option(
                ["--import", "import_changed"],
                is_flag=True,
                help="After each look, import what changed into the database.",
            ),
        ],
    )


def _prepare(given: dict[str, Any]) -> dict[str, Any]:
    typed = {name: value for name, value in given.items() if name not in _OWN and value is not None}
    if given.get("once"):
        # No later look would come to the rest.
        typed["whole"] = True
    return {name: list(value) if isinstance(value, tuple) else value for name, value in typed.items()}


def _follow(call: Call) -> int:
    importing = _importer(call) if call.given.get("import_changed") else None
    try:
        if call.given.get("once"):
            return _look(call, importing)[0]
        with Following() as following:
            while True:
                began = time.monotonic()
                code, is_over, behind = _look(call, importing)
                if is_over:
                    return code
                took = time.monotonic() - began
                every = call.given.get("every") or EVERY_S
                following.rest(0.0 if behind else max(every, took * _REST_PER_LOOK))
    finally:
        if importing is not None:
            importing.close()


def _look(call: Call, importing: Call | None) -> tuple[int, bool, int]:
    """Look once; return the exit code, whether nothing can follow, and how many sources are still to be looked at."""
    answer = call.ask(call.params)
    if answer.error is not None or answer.payload["changes"] or call.given.get("once"):
        terminal.show(answer, as_json=call.globals.as_json)
    if answer.error is not None:
        return answer.exit_code, True, 0
    failed = 0
    if importing is not None and answer.payload["read"]:
        failed = _import(importing, answer.payload["read"])
    return answer.exit_code or failed, False, answer.payload["behind"]


def _importer(call: Call) -> Call:
    """Return the call of `import` that goes with it, on a desk of its own."""
    made = Call(entry_of("import"), call.globals, {})
    confirm_target(made)
    return made


def _import(importing: Call, names: list[str]) -> int:
    answer = importing.ask({"files": names})
    if answer.error is not None:
        terminal.show(answer, as_json=importing.globals.as_json)
    return answer.exit_code


SPECIAL: Final[Mapping[str, Callable[[], click.Command]]] = {"watch": watch}
