"""Schedule slots: at which instants a job is due, and what becomes of those that were missed. Pure.

A slot is (job, UTC instant), computed from the job's cron line in the job's zone: a local time that occurs twice fires
at its first, one that doesn't exist fires at the end of the gap (contract, section 4). Zones and `now` are arguments;
knows nothing of clocks, databases or what a job does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Final, assert_never

from reconciler.errors import InvalidInput

# A slot that is no older than this is on time, not missed: the time a daemon may take to come to it.
ON_TIME_S: Final = 60.0
# How many slots one look considers; older ones are summed up in one skipped slot.
LOOK_SLOTS_MAX: Final = 1_000
# How far the next slot is searched for: a leap day on a given weekday comes back within 40 years.
_DAYS_AHEAD_MAX: Final = 41 * 366
_EXPRESSION_MAX: Final = 200

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SHORTHANDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class CatchUp(StrEnum):
    """What a job does about slots that nobody fired in time."""

    # They are skipped.
    NONE = "none"
    # The newest of them fires, unless a slot that is on time fires anyway; the others are skipped.
    LATEST = "latest"
    # Those within the window fire, oldest first; older ones are skipped.
    ALL = "all"


class SkipReason(StrEnum):
    """Why a slot did not fire."""

    # The policy is ``none``, or ``latest`` and a newer one fired.
    MISSED = "missed"
    # ``all``, and it is older than the window.
    OUTSIDE_WINDOW = "outside_window"
    PAUSED = "paused"
    # Stands for this slot and all between it and the next recorded one: too many to record each.
    MANY_MISSED = "many_missed"


# --- cron lines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron line. As in cron(8), a day must match either day field where both are given."""

    expression: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    # 0 is Sunday.
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def matches_day(self, day: date) -> bool:
        """Return whether the job has slots on *day*."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday


def parse_cron(expression: str) -> Cron:
    """Return the cron line *expression*: minute, hour, day, month, weekday, or a word like ``@daily``.

    Fields take ``*``, numbers, names (``jan``, ``mon``), ranges, lists and steps.

    Raises:
        InvalidInput: it cannot be read, or no day ever matches it.
    """
    hint = 'five fields: minute hour day month weekday ("30 2 * * mon-fri"), or @hourly, @daily, @weekly, @monthly'
    if len(expression) > _EXPRESSION_MAX:
        raise InvalidInput("a cron line is a text of at most 200 characters", hint=hint)
    fields = _SHORTHANDS.get(expression.strip().lower(), expression).split()
    if len(fields) != 5:
        raise InvalidInput(f'cannot read the cron line "{expression}": it has {len(fields)} fields, not 5', hint=hint)
    try:
        minutes = _field(fields[0], 0, 59)
        hours = _field(fields[1], 0, 23)
        days = _field(fields[2], 1, 31)
        months = _field(fields[3], 1, 12, _MONTHS, first_name=1)
        weekdays = frozenset(number % 7 for number in _field(fields[4], 0, 7, _WEEKDAYS, first_name=0))
    except ValueError as error:
        raise InvalidInput(f'cannot read the cron line "{expression}": {error}', hint=hint) from None
    cron = Cron(
        expression=expression,
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=weekdays,
        any_day=fields[2].startswith("*"),
        any_weekday=fields[4].startswith("*"),
    )
    longest = max(31 if month in (1, 3, 5, 7, 8, 10, 12) else 29 if month == 2 else 30 for month in months)
    if min(days) > longest and (cron.any_weekday or cron.any_day):
        raise InvalidInput(f'the cron line "{expression}" names a day that never comes', hint=hint)
    return cron


def _field(text: str, low: int, high: int, names: tuple[str, ...] = (), *, first_name: int = 0) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, 1, high) if slash else 1
        if span == "*":
            first, last = low, high
        else:
            first_text, dash, last_text = span.partition("-")
            first = _value(first_text, low, high, names, first_name)
            # "5/15" means from 5 on, every 15.
            last = _value(last_text, low, high, names, first_name) if dash else high if slash else first
        if first > last:
            raise ValueError(f'the range "{span}" ends before it begins')
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _value(text: str, low: int, high: int, names: tuple[str, ...], first_name: int) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + first_name
    return _number(text, low, high)


def _number(text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f'"{text}" is no number from {low} to {high}')
    return int(text)


# --- slots -----------------------------------------------------------------------------------------------------------


def slot_instant(local: datetime, zone: tzinfo) -> datetime:
    """Return the UTC instant at which the naive local time *local* fires in *zone*."""
    earlier = local.replace(tzinfo=zone, fold=0)
    instant = earlier.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    # In a gap: read with the offset after it, the time lies before the change, with the one before it, behind.
    low = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    high = instant
    after = high.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        if middle.astimezone(zone).utcoffset() == after:
            high = middle
        else:
            low = middle
    return high


def slots_after(cron: Cron, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Yield the slots behind *after*, oldest first, without end but for the search's bound."""
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    last = after
    for number in range(_DAYS_AHEAD_MAX):
        try:
            day = local.date() + timedelta(days=number)
        except OverflowError:
            return
        if not cron.matches_day(day):
            continue
        for hour in cron.hours:
            for minute in cron.minutes:
                wanted = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a local time of the zone
                if number == 0 and wanted < local - timedelta(minutes=1):
                    continue
                instant = slot_instant(wanted, zone)
                # Several local times of a gap are one slot, and the second of two is none.
                if instant > last:
                    last = instant
                    yield instant


def slots_before(cron: Cron, zone: tzinfo, until: datetime, *, after: datetime) -> Iterator[datetime]:
    """Yield the slots behind *after* up to and including *until*, newest first."""
    # A day more than the local dates: a gap may carry a time over midnight, in a few zones over a whole day.
    day = until.astimezone(zone).date() + timedelta(days=1)
    first = after.astimezone(zone).date() - timedelta(days=2)
    last: datetime | None = None
    while day >= first:
        if cron.matches_day(day):
            for hour in reversed(cron.hours):
                for minute in reversed(cron.minutes):
                    wanted = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a local time
                    instant = slot_instant(wanted, zone)
                    if after < instant <= until and (last is None or instant < last):
                        last = instant
                        yield instant
        day -= timedelta(days=1)


def next_slot(cron: Cron, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first slot behind *after*; None where none comes within 41 years."""
    return next(slots_after(cron, zone, after), None)


# --- what is due -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SkippedSlot:
    """A slot that does not fire, and why."""

    slot_at: datetime
    reason: SkipReason


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What to do about the slots since the last look. ``looked_until`` is from where the next look goes on."""

    fire: tuple[datetime, ...]
    skip: tuple[SkippedSlot, ...]
    looked_until: datetime

    @property
    def is_empty(self) -> bool:
        """Whether no slot came since the last look."""
        return not self.fire and not self.skip


def plan_slots(
    cron: Cron,
    zone: tzinfo,
    *,
    looked_until: datetime,
    now: datetime,
    catch_up: CatchUp = CatchUp.LATEST,
    window_s: float = 86400.0,
    paused: bool = False,
    slots_max: int = LOOK_SLOTS_MAX,
) -> SlotPlan:
    """Return which slots in (*looked_until*, *now*] fire and which are skipped; *now* is the database's clock.

    *window_s* bounds the policy ``all``. A clock that was set back finds nothing and goes on from where it stands; what
    it comes by again has fired, which the ledger knows by its key.
    """
    if now <= looked_until:
        return SlotPlan((), (), now)
    newest_first: list[datetime] = []
    beyond: datetime | None = None
    for slot in slots_before(cron, zone, now, after=looked_until):
        if len(newest_first) == slots_max:
            beyond = slot
            break
        newest_first.append(slot)
    slots = list(reversed(newest_first))
    if not slots:
        return SlotPlan((), (), looked_until)
    skip = [] if beyond is None else [SkippedSlot(beyond, SkipReason.MANY_MISSED)]
    if paused:
        skip += [SkippedSlot(slot, SkipReason.PAUSED) for slot in slots]
        return SlotPlan((), tuple(skip), slots[-1])
    on_time = [slot for slot in slots if (now - slot).total_seconds() <= ON_TIME_S]
    missed = slots[: len(slots) - len(on_time)]
    fire: list[datetime] = []
    match catch_up:
        case CatchUp.NONE:
            skip += [SkippedSlot(slot, SkipReason.MISSED) for slot in missed]
        case CatchUp.LATEST:
            fire = missed[-1:] if not on_time else []
            skip += [SkippedSlot(slot, SkipReason.MISSED) for slot in missed if slot not in fire]
        case CatchUp.ALL:
            fire = [slot for slot in missed if (now - slot).total_seconds() <= window_s]
            outside = missed[: len(missed) - len(fire)]
            skip += [SkippedSlot(slot, SkipReason.OUTSIDE_WINDOW) for slot in outside]
        case _:  # pragma: no cover
            assert_never(catch_up)
    return SlotPlan((*fire, *on_time), tuple(skip), slots[-1])


def slot_name(slot_at: datetime) -> str:
    """Return the INSTANT of ``schedule:JOB:INSTANT``: RFC 3339 in UTC, microseconds only where there are any."""
    text = slot_at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="auto")
    return f"{text}Z"


def slot_submission_id(job: str, slot_at: datetime) -> str:
    """Return the id of the submission that a slot admits."""
    return f"schedule:{job}:{slot_name(slot_at)}"
