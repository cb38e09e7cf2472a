"""Jobs: what their slots admit, and what is refused before anything is scheduled by it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reconciler.core.jobs import WINDOW_MAX_S, Admits, Job, check_job, jobs_by_name
from reconciler.core.slots import SlotPlan, parse_cron, slots_after
from reconciler.errors import InvalidInput

NIGHTLY = Job("nightly", parse_cron("0 3 * * *"), UTC, admits=Admits("runs-{job}", {"text": "go"}))
AT = datetime(2026, 5, 1, 3, tzinfo=UTC)


def test_a_slot_admits_into_the_session_that_its_job_names() -> None:
    assert "runs-nightly" == Admits("runs-{job}", None).session_id("nightly", AT)
    assert "at-2026-05-01T03:00:00Z" == Admits("at-{instant}", None).session_id("nightly", AT)


def test_a_slots_submission_is_named_by_job_and_instant() -> None:
    assert "schedule:nightly:2026-05-01T03:00:00Z" == NIGHTLY.submission_id(AT)


def test_a_job_plans_by_its_own_cron_line_zone_and_window() -> None:
    assert AT == NIGHTLY.next_slot(AT - timedelta(hours=1))
    assert SlotPlan((AT,), (), AT) == NIGHTLY.plan(looked_until=AT - timedelta(hours=1), now=AT)


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 101, "a/b", "a\n"])
def test_a_name_that_could_not_stand_in_an_id_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="name of a job"):
        check_job(replace(NIGHTLY, name=name))


@pytest.mark.parametrize("window_s", [0.0, -1.0, WINDOW_MAX_S + 1, float("nan")])
def test_a_window_that_is_none_is_refused(window_s: float) -> None:
    with pytest.raises(InvalidInput, match="catch-up window"):
        check_job(replace(NIGHTLY, window_s=window_s))


@pytest.mark.parametrize("session", ["", "a\tb", "x" * 513, "{instant}" * 20])
def test_a_session_that_could_not_be_an_id_is_refused(session: str) -> None:
    with pytest.raises(InvalidInput, match="id of its session"):
        check_job(replace(NIGHTLY, admits=Admits(session, None)))


def test_work_of_the_systems_own_admits_nothing_and_is_sound() -> None:
    sweep = replace(NIGHTLY, name="sweep", admits=None)
    assert sweep == check_job(sweep)
    assert {"nightly": NIGHTLY, "sweep": sweep} == dict(jobs_by_name((NIGHTLY,), (sweep,)))


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two jobs"):
        jobs_by_name((NIGHTLY,), (replace(NIGHTLY, admits=None),))


def test_the_search_for_slots_ends_by_itself() -> None:
    leap_days = list(slots_after(parse_cron("0 0 29 2 *"), UTC, AT))
    assert datetime(2028, 2, 29, tzinfo=UTC) == leap_days[0]
    assert sorted(set(leap_days)) == leap_days


def test_the_end_of_the_calendar_ends_the_search() -> None:
    last: Any = datetime(9999, 12, 31, 12, tzinfo=UTC)
    assert [] == list(slots_after(parse_cron("0 3 * * *"), UTC, last))
