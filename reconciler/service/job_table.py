"""A job as a configuration writes it, and the job that it means. Reads zone data; knows nothing of files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from reconciler.core.canonical import canonical_json
from reconciler.core.jobs import Admits, Job, check_job
from reconciler.core.slots import CatchUp, parse_cron
from reconciler.errors import InvalidInput
from reconciler.service.settings import SYSTEM_JOBS

JOB_KEYS: Final = (
    "cron",
    "zone",
    "catch_up",
    "catch_up_window_s",
    "session",
    "payload",
    "entity_hints",
    "deadline_s",
)
JOBS_MAX: Final = 1_000


def job_from_table(name: str, table: Mapping[str, Any]) -> Job:
    """Return the job *name* that *table* describes.

    Raises:
        InvalidInput: a key is unknown, of the wrong type or out of range; the message names job and key.
    """
    what = f'job "{name}"'
    if name in SYSTEM_JOBS:
        raise InvalidInput(
            f'{what}: the name is taken by the system\'s own job, whose time is set by "daemon.{name}"',
            hint="give it another name",
        )
    for key in table:
        if key not in JOB_KEYS:
            near = difflib.get_close_matches(key, JOB_KEYS, n=1, cutoff=0.6)
            raise InvalidInput(
                f'{what}: unknown key "{key}"',
                hint=f'did you mean "{near[0]}"?' if near else f"known: {', '.join(JOB_KEYS)}",
            )
    if "payload" not in table:
        raise InvalidInput(f"{what}: it has no payload", hint='what its slots admit: payload = "…", or a table')
    try:
        cron = parse_cron(_text(what, "cron", table.get("cron")))
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error.message}", hint=error.hint) from None
    zone_name = _text(what, "zone", table.get("zone", "UTC"))
    word = _text(what, "catch_up", table.get("catch_up", CatchUp.LATEST.value))
    if word not in set(CatchUp):
        raise InvalidInput(f'{what}: catch_up cannot be "{word}"', hint=f"one of: {', '.join(CatchUp)}")
    hints = table.get("entity_hints", [])
    if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
        raise InvalidInput(f"{what}: entity_hints is no list of texts", hint='["type/id", …]')
    deadline_s = table.get("deadline_s")
    try:
        canonical_json(table["payload"])
    except (InvalidInput, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{what}: its payload is no JSON value: {error}", hint="texts, numbers, truth values, lists and tables"
        ) from None
    return check_job(
        Job(
            name=name,
            cron=cron,
            zone=zone_of(zone_name, what),
            zone_name=zone_name,
            catch_up=CatchUp(word),
            window_s=_seconds(what, "catch_up_window_s", table.get("catch_up_window_s", 86400.0)),
            admits=Admits(
                session=_text(what, "session", table.get("session", "schedule:{job}")),
                payload=table["payload"],
                entity_hints=tuple(hints),
                deadline_s=None if deadline_s is None else _seconds(what, "deadline_s", deadline_s),
            ),
        )
    )


def zone_of(name: str, what: str) -> tzinfo:
    """Return the time zone *name*.

    Raises:
        InvalidInput: this machine knows none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f'{what}: this machine knows no time zone "{name}"',
            hint='a name like "Europe/Berlin"; where the machine has no zone data, install the package tzdata',
        ) from None


def _text(what: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{what}: {key} is no text", hint=f'write {key} = "…"')
    return value


def _seconds(what: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 366 * 86400:
        raise InvalidInput(f"{what}: {key} is no number of seconds", hint="above 0 and at most 366 days")
    return float(value)
