"""The verbs that need more than the registry says: a payload that is typed or read, decisions that are followed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from reconciler.core.model import DEFAULT_LIMITS
from reconciler.entrypoints.commands import refine, terminal, watch
from reconciler.entrypoints.commands.following import Following
from reconciler.entrypoints.commands.verbs import Call, ask_once, make_command
from reconciler.errors import InvalidInput, LimitExceeded, SourceUnreadable
from reconciler.ops.registry import entry_of

FOLLOW_EVERY_S: Final = 1.0


def submit() -> click.Command:
    """Return `submit`: the payload is JSON text, a file, or standard input."""
    return make_command(entry_of("submit"), prepare=_read_payload)


def _read_payload(given: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    # What was not typed is not given: null is a payload.
    typed = params.pop("payload")
    params = {name: value for name, value in params.items() if value is not None}
    return params if typed is None else {**params, "payload": read_payload(typed)}


def read_payload(typed: str) -> Any:
    """Return the JSON value that *typed* names: ``-`` standard input, ``@FILE`` or FILE a file, else the text itself.

    Raises:
        InvalidInput: it is no JSON, and names no file.
        SourceUnreadable: the file cannot be read.
        LimitExceeded: it is too large.
    """
    if typed == "-":
        return _parsed(_bounded(sys.stdin.buffer.read(DEFAULT_LIMITS.payload_bytes_max + 1)), "standard input")
    if typed.startswith("@"):
        return _from_file(Path(typed[1:]))
    try:
        return json.loads(typed)
    except (ValueError, RecursionError) as error:
        path = Path(typed)
        try:
            is_file = path.is_file()
        except (OSError, ValueError):
            is_file = False
        if is_file:
            return _from_file(path)
        raise InvalidInput(
            f"cannot read the payload as JSON: {error}",
            hint="""quote a text as JSON ('"like this"'), or name a file with @FILE, or - for standard input""",
        ) from None


def _from_file(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            data = stream.read(DEFAULT_LIMITS.payload_bytes_max + 1)
    except OSError as error:
        raise SourceUnreadable(
            f'could not read the payload "{path}": {error.strerror or error}',
            hint="name a file of JSON, or give the payload itself as JSON, or - for standard input",
        ) from error
    return _parsed(_bounded(data), f'"{path}"')


def _bounded(data: bytes) -> bytes:
    if len(data) > DEFAULT_LIMITS.payload_bytes_max:
        raise LimitExceeded(f"the payload is larger than {DEFAULT_LIMITS.payload_bytes_max} bytes")
    return data


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"cannot read the payload from {where} as JSON: {error}", hint='a text is "quoted", an object {"text": …}'
        ) from None


def tail() -> click.Command:
    """Return `tail`: it follows until it is interrupted."""
    return make_command(
        entry_of("tail"),
        run=_follow,
        prepare=lambda given: {name: value for name, value in given.items() if name != "no_follow"},
        extra=[click.Option(["--no-follow", "no_follow"], is_flag=True, help="Stop after what there is.")],
    )


def _follow(call: Call) -> int:
    if call.given.get("no_follow"):
        return ask_once(call)
    params = dict(call.params)
    with Following() as following:
        while True:
            answer = call.ask(params)
            if answer.error is not None or answer.payload["decisions"]:
                terminal.show(answer, as_json=call.globals.as_json)
            if answer.error is not None:
                return answer.exit_code
            params["position"] = answer.payload["position"]
            is_more = len(answer.payload["decisions"]) >= (params.get("limit") or 1)
            following.rest(0.0 if is_more else FOLLOW_EVERY_S)


SPECIAL: Final[Mapping[str, Callable[[], click.Command]]] = {
    "submit": submit,
    "tail": tail,
    **refine.SPECIAL,
    **watch.SPECIAL,
}
