"""Slot computation: cron lines, daylight saving both ways, and what becomes of missed slots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.slots import (
    CatchUp,
    SkipReason,
    SlotPlan,
    next_slot,
    parse_cron,
    plan_slots,
    slot_instant,
    slot_submission_id,
    slots_after,
    slots_before,
)
from reconciler.errors import InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
APIA = ZoneInfo("Pacific/Apia")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def after(line: str, zone: ZoneInfo | None, start: str, count: int) -> list[datetime]:
    return list(islice(slots_after(parse_cron(line), zone or UTC, at(start)), count))


# --- cron lines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "start", "expected"),
    [
        ("* * * * *", "2026-05-01T10:00:30", ["2026-05-01T10:01", "2026-05-01T10:02"]),
        ("*/15 * * * *", "2026-05-01T10:00", ["2026-05-01T10:15", "2026-05-01T10:30"]),
        ("5/20 * * * *", "2026-05-01T10:00", ["2026-05-01T10:05", "2026-05-01T10:25", "2026-05-01T10:45"]),
        ("0 2 * * *", "2026-05-01T02:00", ["2026-05-02T02:00"]),
        ("0 2 * * mon-fri", "2026-05-01T03:00", ["2026-05-04T02:00"]),
        ("0 0 * * 7", "2026-05-01T00:00", ["2026-05-03T00:00"]),
        ("0 0 29 2 *", "2026-05-01T00:00", ["2028-02-29T00:00"]),
        ("0 12 1 jan,jul *", "2026-05-01T00:00", ["2026-07-01T12:00", "2027-01-01T12:00"]),
        ("@hourly", "2026-05-01T10:00", ["2026-05-01T11:00"]),
        ("@weekly", "2026-05-01T10:00", ["2026-05-03T00:00"]),
        # Both day fields given: either counts, as in cron(8).
        ("0 0 13 * fri", "2026-05-01T00:00", ["2026-05-08T00:00", "2026-05-13T00:00", "2026-05-15T00:00"]),
        # A step from a star is still a star: both must match.
        ("0 0 */2 * mon", "2026-05-01T00:00", ["2026-05-11T00:00", "2026-05-25T00:00"]),
    ],
)
def test_a_cron_line_gives_these_slots(line: str, start: str, expected: list[str]) -> None:
    assert [at(text) for text in expected] == after(line, None, start, len(expected))


@pytest.mark.parametrize(
    "line",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
        *("5-1 * * * *", "*/0 * * * *", "a * * * *", "* * * foo *", "1,, * * * *", "-1 * * * *", "@often"),
        *("0 0 31 2 *", "0 0 31 apr,jun *", "٣ * * * *", "* * * * *" * 60),
    ],
)
def test_a_line_that_is_none_is_refused_with_its_way_out(line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_cron(line)
    assert refused.value.hint is not None


def test_the_leap_day_on_a_monday_is_found() -> None:
    # 2044-02-29 is the next one after 2016.
    found = next(
        slot for slot in slots_after(parse_cron("0 0 29 2 *"), UTC, at("2026-01-01T00:00")) if slot.weekday() == 0
    )
    assert at("2044-02-29T00:00") == found


# --- daylight saving -------------------------------------------------------------------------------------------------


def test_a_local_time_that_does_not_exist_fires_at_the_end_of_the_gap() -> None:
    # 2026-03-29 02:00 becomes 03:00 in Berlin.
    assert [
        at("2026-03-28T01:30"),
        at("2026-03-29T01:00"),
        at("2026-03-30T00:30"),
    ] == after("30 2 * * *", BERLIN, "2026-03-28T00:00", 3)


def test_a_local_time_that_occurs_twice_fires_at_its_first() -> None:
    # 2026-10-25 03:00 becomes 02:00 in Berlin.
    assert [
        at("2026-10-24T00:30"),
        at("2026-10-25T00:30"),
        at("2026-10-26T01:30"),
    ] == after("30 2 * * *", BERLIN, "2026-10-24T00:00", 3)


def test_many_local_times_of_one_gap_are_one_slot() -> None:
    assert [
        at("2026-03-29T00:45"),
        at("2026-03-29T01:00"),
        at("2026-03-29T01:15"),
    ] == after("*/15 * * * *", BERLIN, "2026-03-29T00:30", 3)


def test_the_second_round_of_a_repeated_hour_has_no_slots() -> None:
    assert [
        at("2026-11-01T05:30"),
        at("2026-11-01T05:45"),
        # 01:45 EDT; then 02:00 EST, an hour and a quarter later.
        at("2026-11-01T07:00"),
    ] == after("*/15 * * * *", NEW_YORK, "2026-11-01T05:15", 3)


def test_a_day_that_a_zone_left_out_fires_at_its_end() -> None:
    # Samoa had no 2011-12-30.
    assert [
        at("2011-12-29T22:00"),
        at("2011-12-30T10:00"),
        at("2011-12-30T22:00"),
    ] == after("0 12 * * *", APIA, "2011-12-29T21:00", 3)


def test_a_gap_of_half_an_hour_is_found_to_the_second() -> None:
    # Lord Howe moves by 30 minutes: 2026-10-04 02:00 becomes 02:30.
    assert at("2026-10-03T15:30") == slot_instant(datetime.fromisoformat("2026-10-04T02:10"), LORD_HOWE)


ZONES = [UTC, BERLIN, NEW_YORK, APIA, LORD_HOWE, ZoneInfo("Africa/Casablanca"), ZoneInfo("Asia/Kathmandu")]
LINES = ["*/17 * * * *", "30 2 * * *", "0 0 * * *", "15 1,2,3 * * sun", "59 23 29 2 *", "0 0 1 * *", "0 0 13 * fri"]


@settings(max_examples=60, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    line=st.sampled_from(LINES),
    start=st.datetimes(datetime.fromisoformat("2009-01-01"), datetime.fromisoformat("2040-01-01")),
    hours=st.integers(1, 24 * 40),
)
def test_slots_forward_and_backward_are_the_same_and_rise(
    zone: ZoneInfo, line: str, start: datetime, hours: int
) -> None:
    cron = parse_cron(line)
    begin, end = start.replace(tzinfo=UTC), start.replace(tzinfo=UTC) + timedelta(hours=hours)
    forward = []
    for slot in slots_after(cron, zone, begin):
        if slot > end:
            break
        forward.append(slot)
    backward = list(slots_before(cron, zone, end, after=begin))
    assert forward == backward[::-1]
    assert sorted(set(forward)) == forward
    # Cutting a stretch anywhere neither loses nor repeats a slot.
    middle = begin + (end - begin) / 2
    pieces = [*slots_before(cron, zone, end, after=middle), *slots_before(cron, zone, middle, after=begin)]
    assert backward == pieces


# --- catching up -----------------------------------------------------------------------------------------------------

HOURLY = parse_cron("0 * * * *")


def plan(looked: str, now: str, catch_up: CatchUp, **more: object) -> SlotPlan:
    return plan_slots(HOURLY, UTC, looked_until=at(looked), now=at(now), catch_up=catch_up, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_slot_on_time_fires_under_every_policy(catch_up: CatchUp) -> None:
    found = plan("2026-05-01T09:00", "2026-05-01T10:00:05", catch_up)
    assert SlotPlan((at("2026-05-01T10:00"),), (), at("2026-05-01T10:00")) == found


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_between_slots_there_is_nothing_to_do_and_nothing_to_write(catch_up: CatchUp) -> None:
    found = plan("2026-05-01T10:00", "2026-05-01T10:59:59", catch_up)
    assert found.is_empty
    assert at("2026-05-01T10:00") == found.looked_until


def test_none_skips_what_was_missed() -> None:
    found = plan("2026-05-01T06:00", "2026-05-01T09:30", CatchUp.NONE)
    assert () == found.fire
    assert [(at(f"2026-05-01T0{hour}:00"), SkipReason.MISSED) for hour in (7, 8, 9)] == [
        (slot.slot_at, slot.reason) for slot in found.skip
    ]


def test_latest_fires_the_newest_missed_one_however_old() -> None:
    found = plan("2026-05-01T06:00", "2026-05-01T09:30", CatchUp.LATEST)
    assert (at("2026-05-01T09:00"),) == found.fire
    assert [at("2026-05-01T07:00"), at("2026-05-01T08:00")] == [slot.slot_at for slot in found.skip]


def test_latest_leaves_the_catching_up_to_a_slot_that_fires_anyway() -> None:
    found = plan("2026-05-01T06:00", "2026-05-01T09:00:10", CatchUp.LATEST)
    assert (at("2026-05-01T09:00"),) == found.fire
    assert 2 == len(found.skip)


def test_all_fires_what_lies_in_the_window_oldest_first() -> None:
    found = plan("2026-05-01T00:00", "2026-05-01T09:30", CatchUp.ALL, window_s=2.75 * 3600)
    assert (at("2026-05-01T07:00"), at("2026-05-01T08:00"), at("2026-05-01T09:00")) == found.fire
    assert {SkipReason.OUTSIDE_WINDOW} == {slot.reason for slot in found.skip}
    assert 6 == len(found.skip)


def test_a_paused_job_fires_nothing_and_its_slots_are_recorded() -> None:
    found = plan("2026-05-01T06:00", "2026-05-01T09:00:01", CatchUp.ALL, paused=True)
    assert () == found.fire
    assert [SkipReason.PAUSED] * 3 == [slot.reason for slot in found.skip]


def test_a_year_of_missed_minutes_is_bounded_and_says_so() -> None:
    found = plan_slots(
        parse_cron("* * * * *"),
        UTC,
        looked_until=at("2025-05-01T00:00"),
        now=at("2026-05-01T00:05"),
        catch_up=CatchUp.ALL,
        window_s=600,
    )
    assert 1_001 == len(found.fire) + len(found.skip)
    assert SkipReason.MANY_MISSED == found.skip[0].reason
    assert at("2026-05-01T00:05") == found.looked_until
    assert 11 == len(found.fire)


def test_a_clock_set_back_finds_nothing_and_goes_on_from_where_it_stands() -> None:
    found = plan("2026-05-01T10:00", "2026-05-01T09:00:10", CatchUp.ALL)
    assert SlotPlan((), (), at("2026-05-01T09:00:10")) == found


def test_slots_are_named_by_their_utc_instant() -> None:
    assert "schedule:report:2026-05-01T00:30:00Z" == slot_submission_id(
        "report", datetime(2026, 5, 1, 2, 30, tzinfo=BERLIN)
    )


def test_the_next_slot_is_the_first_behind_the_instant() -> None:
    assert at("2026-05-01T11:00") == next_slot(HOURLY, UTC, at("2026-05-01T10:00"))
