"""The one door: every question and every act of every transport passes through `ask`.

What holds for all of them is done here and nowhere else: checking of names and parameters, limits, the schema check,
timing, audit, typed errors as payloads, redaction, follow-up hints. Readers know nothing of it, transports repeat none.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

from reconciler.core.hints import with_followup_hints
from reconciler.errors import DatabaseInvalid, InvalidInput, ReconcilerError, RowUnreadable
from reconciler.ops.asking import Answer, Asked, Desk, Reply
from reconciler.ops.entry import Database, Entry
from reconciler.ops.exits import EXIT_USAGE, exit_of_answer, exit_of_error
from reconciler.ops.registry import entry_of

# Longest list of names that an error repeats.
_NAMES_SHOWN_MAX: Final = 20


def ask(name: str, params: Mapping[str, Any] | None, desk: Desk) -> Answer:
    """Ask the question, or have the act done, that the registry knows as *name*.

    Never raises a typed error: it comes as the payload ``{"error": {code, message, detail, hint}}`` with its exit code.
    """
    started = time.monotonic()
    try:
        entry = entry_of(name)
        asked = Asked(entry, _checked(entry, params or {}), desk, frozenset(params or {}), datetime.now(UTC))
        reply = _answer(asked)
    except ReconcilerError as error:
        if isinstance(error, DatabaseInvalid) and error.detail is None:
            # Without the database's own word it is about a value.
            error = _unreadable(params or {}, error.message)
        payload = redact({"error": error.as_dict()})
        return Answer(name, payload, exit_of_error(error), time.monotonic() - started)
    except (ValueError, KeyError, TypeError) as error:
        # A stored value that something else wrote: whoever asks is looking at just such a row, and needs words.
        unreadable = _unreadable(params or {}, f"{type(error).__name__}: {error}")
        payload = redact({"error": unreadable.as_dict()})
        return Answer(name, payload, exit_of_error(unreadable), time.monotonic() - started)
    payload = redact(reply.payload)
    if desk.hints:
        payload = with_followup_hints(name, payload)
    return Answer(name, payload, exit_of_answer(name, asked.params, payload), time.monotonic() - started)


_NAMING: Final = ("session", "submission", "again", "operation", "job", "subject")


def _unreadable(params: Mapping[str, Any], reason: str) -> RowUnreadable:
    """Return the error about what was asked for, by its name where the call gave one."""
    names = [params[name] for name in _NAMING if params.get(name)]
    of = f' of "{"/".join(map(str, names))}"' if names else ""
    return RowUnreadable(f"cannot read what is stored{of}: {reason}")


def usage_error(message: str, hint: str | None = None) -> Answer:
    """Return the answer to a call that could not be understood."""
    error = InvalidInput(message, hint=hint)
    return Answer("", redact({"error": error.as_dict()}), EXIT_USAGE, 0.0)


# --- before --------------------------------------------------------------------------------------------------------


def _checked(entry: Entry, params: Mapping[str, Any]) -> dict[str, Any]:
    known = {parameter.name for parameter in entry.parameters}
    for given in params:
        if given not in known:
            near = difflib.get_close_matches(str(given), known, n=1)
            names = ", ".join(sorted(known)[:_NAMES_SHOWN_MAX])
            raise InvalidInput(
                f'"{entry.name}" has no parameter "{given!s:.60}"',
                hint=f'did you mean "{near[0]}"?' if near else f"it has: {names}" if names else "it has none",
            )
    now = datetime.now(UTC)
    checked: dict[str, Any] = {}
    for parameter in entry.parameters:
        value = params.get(parameter.name)
        if parameter.name not in params or (value is None and not parameter.required):
            if parameter.required:
                raise InvalidInput(f'"{entry.name}" needs {parameter.name}', hint=parameter.help)
            value = parameter.default
            if value is None:
                checked[parameter.name] = [] if parameter.many else None
                continue
        checked[parameter.name] = parameter.check(value, now)
    return checked


def _answer(asked: Asked) -> Reply:
    entry, desk = asked.entry, asked.desk
    if entry.needs_reason and desk.production and not asked.params.get("reason") and entry.changes(asked.params):
        raise InvalidInput(
            f"cannot {entry.name} on {desk.database_name}: it is a production database, and no reason was given",
            hint="say why with --reason TEXT: it stands in the audit",
        )
    if entry.database is Database.CREATE and asked.dry_run and desk.may_create():
        return _planned(asked)
    _open(asked)
    return _read(asked)


def _read(asked: Asked) -> Reply:
    reply = _reader(asked.entry)(asked)
    if not isinstance(reply, Reply):
        raise TypeError(f"the reader of {asked.entry.name!r} returned {type(reply).__name__}")
    return reply


def _planned(asked: Asked) -> Reply:
    """Plan what would make the database and then be done in it: against an empty one, without a file."""
    from reconciler.ops.database import plan_without

    desk = plan_without(asked.desk)
    try:
        return _read(replace(asked, desk=desk))
    finally:
        desk.close()


def _open(asked: Asked) -> None:
    """Have the database checked, or made where there is none and the verb may do that."""
    entry, desk = asked.entry, asked.desk
    match entry.database:
        case Database.NONE | Database.ANY:
            return
        case Database.CREATE if desk.may_create():
            from reconciler.ops.database import create

            create(desk)
        case Database.READ | Database.WRITE | Database.CREATE:
            from reconciler.store.engine import require_schema

            writes = entry.database is not Database.READ and entry.changes(asked.params)
            require_schema(desk.engine, for_writing=writes)


def _reader(entry: Entry) -> Any:
    module, _, function = entry.reader.partition(":")
    return getattr(import_module(module), function)


# --- after ---------------------------------------------------------------------------------------------------------


_SECRET: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]*):(?P<secret>[^\s\"]+)@")
_SECRET_PARAMETER: Final = re.compile(r"(?P<name>[?&](?:password|sslpassword|passfile)=)[^&\s]+")
_MASK: Final = "***"


def redact(value: Any) -> Any:
    """Return *value* without passwords in the URLs of its texts; what has none comes back as it is."""
    if isinstance(value, str):
        if "://" not in value:
            return value
        return _SECRET_PARAMETER.sub(rf"\g<name>{_MASK}", _SECRET.sub(rf"\g<scheme>:{_MASK}@", value))
    if isinstance(value, Mapping):
        return {key: redact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return value
