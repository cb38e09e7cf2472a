"""What a scheduled job is: when it is due and what its slots admit. Pure; zones are given.

Knows nothing of where jobs are configured, and nothing of the system's own work (sweeping, pruning), which runs on the
same slots without admitting anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, Final

from reconciler.core.slots import CatchUp, Cron, SlotPlan, next_slot, plan_slots, slot_name, slot_submission_id
from reconciler.errors import InvalidInput

JOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
WINDOW_MAX_S: Final = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Admits:
    """What a slot admits. ``session`` may hold ``{job}`` and ``{instant}``; ``payload`` is any JSON value."""

    session: str
    payload: Any
    entity_hints: tuple[str, ...] = ()
    deadline_s: float | None = None

    def session_id(self, job: str, slot_at: datetime) -> str:
        """Return the session that the slot's submission goes to."""
        return self.session.replace("{job}", job).replace("{instant}", slot_name(slot_at))


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its schedule. ``admits`` is None for work of the system's own."""

    name: str
    cron: Cron
    zone: tzinfo
    zone_name: str = "UTC"
    catch_up: CatchUp = CatchUp.LATEST
    window_s: float = 86400.0
    admits: Admits | None = None

    def plan(self, *, looked_until: datetime, now: datetime, paused: bool = False) -> SlotPlan:
        """Return what to do about the slots since *looked_until*; see `plan_slots`."""
        return plan_slots(
            self.cron,
            self.zone,
            looked_until=looked_until,
            now=now,
            catch_up=self.catch_up,
            window_s=self.window_s,
            paused=paused,
        )

    def next_slot(self, after: datetime) -> datetime | None:
        """Return the first slot behind *after*."""
        return next_slot(self.cron, self.zone, after)

    def submission_id(self, slot_at: datetime) -> str:
        """Return the id of the submission that a slot admits."""
        return slot_submission_id(self.name, slot_at)


def check_job(job: Job) -> Job:
    """Return *job* as it is, once its values are known to be sound.

    Raises:
        InvalidInput: the name, the window, or what its slots admit is not valid.
    """
    if not JOB_NAME.match(job.name):
        raise InvalidInput(
            f"cannot use {job.name!r:.120} as the name of a job", hint='letters, digits, ".", "_" and "-", at most 100'
        )
    if not 0 < job.window_s <= WINDOW_MAX_S:
        raise InvalidInput(
            f'job "{job.name}": its catch-up window is {job.window_s:g} s', hint="above 0 and at most 366 days"
        )
    admits = job.admits
    if admits is not None:
        # As long as it gets: ids end at 512 bytes.
        longest = admits.session.replace("{job}", job.name).replace("{instant}", "9999-12-31T23:59:59.999999Z")
        if not 1 <= len(longest.encode()) <= 512 or any(ord(character) < 32 for character in longest):
            raise InvalidInput(
                f'job "{job.name}": cannot use {admits.session!r:.120} as the id of its session',
                hint="1 to 512 bytes without control characters",
            )
    return job


def jobs_by_name(*groups: tuple[Job, ...]) -> Mapping[str, Job]:
    """Return jobs by name, in their order.

    Raises:
        InvalidInput: two have the same name.
    """
    found: dict[str, Job] = {}
    for job in (job for group in groups for job in group):
        if job.name in found:
            raise InvalidInput(f'two jobs have the name "{job.name}"', hint="give one of them another name")
        found[job.name] = check_job(job)
    return found
