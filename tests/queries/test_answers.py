"""The operators' questions, answered rightly on both databases, from what stands in docs/queries.md."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.store.engine import read
from tests.queries import scene
from tests.queries.scene import DAY, Near, T
from tests.support.questions import PUBLIC, QUESTIONS, plain

PARAMETERS = {"session": "dead", "submission": "b1", "subject": "skill"}

ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "What is stuck, and since when?": [
        ("held", "quar", "c1", T(-7200), Near(7200), "integrity_hold", None),
        ("blocked", "block", "f1", T(-200), Near(200), None, None),
        ("lease_ended", "dead", "b1", T(-120), Near(120), None, "r2"),
        ("claimable", "ready", "e1", T(-90), Near(90), None, None),
        ("due", "due", "d1", T(-30), Near(30), None, None),
    ],
    "How much is stuck, by cause?": [
        ("blocked", 1, T(-200), Near(200)),
        ("claimable", 1, T(-90), Near(90)),
        ("due", 1, T(-30), Near(30)),
        ("held", 1, T(-7200), Near(7200)),
        ("lease_ended", 1, T(-120), Near(120)),
    ],
    "What needs a person, and what waits behind it?": [
        ("quar", "c1", "integrity_hold", "integrity_hold", T(-7200), 1),
    ],
    "What has been pending the longest?": [
        ("quar", "c1", "queued", 1, T(-9000), "hold", "integrity_hold", 1),
        ("quar", "c2", "queued", 0, T(-8000), "admit", "admitted", 0),
        ("dead", "b1", "running", 1, T(-6000), "requeue", "resume", 4),
        ("mirror", "m1", "queued", 1, T(-4000), "advise", "resume", 0),
        ("park", "g1", "waiting", 1, T(-3000), "admit", "admitted", 1),
        ("block", "f1", "queued", 1, T(-1000), "requeue", "capability_missing", 2),
        ("back", "h1", "queued", 1, T(-700), "requeue", "provider_retry", 3),
        ("line", "a1", "running", 1, T(-600), "admit", "admitted", 2),
        ("line", "a2", "queued", 0, T(-500), "admit", "admitted", 0),
        ("ready", "e1", "queued", 1, T(-90), "admit", "admitted", 0),
        ("stop", "i1", "running", 1, T(-60), "admit", "admitted", 1),
        ("due", "d1", "queued", 1, T(-40), None, None, 0),
    ],
    "How much is pending, by status?": [
        ("queued", 8, 1, T(-9000)),
        ("running", 3, 0, T(-6000)),
        ("waiting", 1, 0, T(-3000)),
    ],
    "Who holds what, until when?": [
        ("r1", "line", "a1", 2, T(-50), T(-2), T(-20), T(300)),
        ("r1", "stop", "i1", 1, T(-55), T(-2), None, T(200)),
        ("r2", "dead", "b1", 4, T(-200), T(-135), None, T(-120)),
    ],
    "Which sessions crash-loop?": [("dead", "b1", 3, 4, 4, "crashed", None)],
    "Which sessions were given up for crashing, this week?": [("old", "s3", "crash_loop", T(-10_800), 6, 6)],
    "What waits out a backoff, and until when?": [
        ("back", "h1", "provider_retry", T(120), 2, 0),
        ("block", "f1", "capability_missing", T(600), 0, 0),
    ],
    "What waits for a runner with the right capability?": [("block", "f1", 2, T(600), T(-1000))],
    "What is parked, for what, and until when?": [("park", "g1", "approval", T(DAY))],
    "Which deadlines end within the hour?": [("line", "a1", "running", T(1200), "r1")],
    "Which sessions have the longest queues?": [("line", 2, T(-600)), ("quar", 2, T(-9000))],
    "Which aborts were asked for and are not done yet?": [("stop", "i1", "running", T(-5), "r1", T(200))],
    "What is advised for imported sessions?": [
        ("mirror", "m1", "advise", "resume", "tool_results_ready", T(-4000)),
    ],
    "Why did work fail since yesterday?": [("crash_loop", None, 1, T(-10_800))],
    "What took the longest since yesterday?": [
        ("old", "s3", 10_000, 6, "failed", 1),
        ("old", "s2", 300, 1, "completed", 1),
        ("old", "s5", 100, 1, "completed", 1),
        ("old", "s1", 60, 1, "completed", 0),
    ],
    "What did the last outage cost?": [
        # Begun again from its last result, 700 s before its crash was found.
        ("p1", T(-4000), 1, 1, 1, 0, 0, 0, 700),
        ("p0", T(-10_800), 1, 1, 0, 0, 1, 0, 0),
        ("p-old", T(-2 * DAY), 1, 1, 0, 0, 1, 0, 0),
    ],
    "Whose attempts crashed since yesterday?": [("r2", 1, 1, T(-4000)), ("r3", 1, 1, T(-10_800))],
    "What has been decided in the last hour?": [
        (T(-300), "back", "h1", "requeue", "provider_retry", "provider_error", None, "continue", "daemon-1"),
    ],
    "What happened to one submission?": [
        (1, T(-6000), "admit", "admitted", None, None, None, None, None, None, None),
        (
            2,
            T(-4000),
            "requeue",
            "resume",
            "continuable",
            "tool_results_ready",
            None,
            "at-b0",
            "crashed",
            "continue",
            None,
        ),
    ],
    "How did each try of one submission go?": [
        (3, "r2", T(-5000), T(-4999), T(-4700), T(-4000), "crashed", None, 0),
        (4, "r2", T(-200), T(-199), None, None, None, None, 0),
    ],
    "Which recovered outcomes has their submitter not taken note of?": [
        ("old", "s2", "completed", "completed", T(-7200)),
    ],
    "Which outcomes met evidence that came too late, this week?": [
        ("old", "s6", "aborted", "abort_requested", T(-6 * DAY)),
    ],
    "What completed without a recorded answer since yesterday?": [("old", "s5", "completed", "moved_on", T(-14_400))],
    "What did the passes do since yesterday, and how long did they take?": [
        ("p1", T(-4000), 1.5, 3, 0, 1, 0, 0, 2, 0),
        ("p0", T(-10_800), 1, 2, 1, 0, 1, 0, 0, 0),
    ],
    "Who is alive, in which version, and who fell silent?": [
        ("runner", "r2", "box", 7, "1.0", T(-9000), Near(5000), 1),
        ("daemon", "daemon-1", "box", 7, "1.0", T(-9000), Near(1), 0),
        ("runner", "r1", "box", 7, "1.0", T(-9000), Near(2), 0),
    ],
    "Which schedule slots were late, skipped or failed since yesterday?": [
        ("sweep", T(-600), "failed", None, 5, 1, "the disk is full"),
        ("sweep", T(-900), "done", None, 400, 2, None),
        ("nightly", T(-7200), "skipped", "too_old", 3600, 0, None),
    ],
    "Which open refine epochs are running out of budget?": [
        ("skill", 2, 0.75, 3, 4, 1, 1, T(-900)),
        ("other", 1, 0.75, 1, 4, 3, 0, T(-900)),
    ],
    "Which edits keep being re-proposed?": [("skill", "e-1", 2, T(-600)), ("other", "e-9", 1, T(-400))],
    "Which edits of a subject are refused, and how bad were they?": [
        ("e-1", 0.5, 2, T(-5000), T(-800)),
        ("e-2", 0.25, 1, T(-5000), T(-800)),
    ],
    "Who did what by hand this week, and why?": [
        (T(-5), "tess", "abort", "stop", "i1", None, "no longer needed"),
    ],
}


def _hours(now: datetime) -> list[tuple[Any, ...]]:
    # completed, failed, aborted, recovered, took: of each settlement since yesterday. Some may share an hour.
    found = [(-14_400, (1, 0, 0, 1), 100), (-10_800, (0, 1, 0, 1), 10_000), (-7200, (1, 0, 0, 1), 300)]
    found.append((-3600, (1, 0, 0, 0), 60))
    hours = [(now + timedelta(seconds=at)).strftime("%Y-%m-%dT%H") for at, _, _ in found]
    assert len(set(hours)) == len(hours)
    return [(hour, *counts, took) for hour, (_, counts, took) in zip(hours, found, strict=True)]


def _days(now: datetime) -> list[tuple[Any, ...]]:
    counts: dict[str, list[int]] = {}
    for at, recovered in ((-6 * DAY, 1), (-2 * DAY, 1), (-14_400, 1), (-10_800, 1), (-7200, 1), (-3600, 0)):
        day = counts.setdefault((now + timedelta(seconds=at)).strftime("%Y-%m-%d"), [0, 0])
        day[0] += 1
        day[1] += recovered
    return [(day, count, some, plain(round(100 * some / count, 1))) for day, (count, some) in sorted(counts.items())]


COMPUTED = {
    "What were the outcomes, hour by hour, since yesterday?": _hours,
    "How much of each day's work had to be recovered, this week?": _days,
}


@pytest.fixture
def now(engine: Engine) -> datetime:
    """Put the scene and give its moment."""
    return scene.make(engine)


def test_every_question_of_the_page_has_a_known_answer() -> None:
    assert list(QUESTIONS) == [title for title in QUESTIONS if title in ANSWERS or title in COMPUTED]
    assert set(QUESTIONS) == {*ANSWERS, *COMPUTED}
    assert len(QUESTIONS) >= 20


def test_the_questions_are_answered_rightly(engine: Engine, now: datetime) -> None:
    wrong = {}
    with read(engine) as conn:
        for title, question in QUESTIONS.items():
            given = {name: PARAMETERS[name] for name in question.parameters}
            found = [tuple(plain(value) for value in row) for row in conn.execute(question.statement(), given)]
            known = COMPUTED[title](now) if title in COMPUTED else ANSWERS[title]
            expected = [
                tuple(plain(scene.instant(value, now)) if not isinstance(value, Near) else value for value in row)
                for row in known
            ]
            if expected != found:
                wrong[title] = {"expected": expected, "found": found}
    assert {} == wrong


@pytest.mark.parametrize("title", QUESTIONS)
def test_a_question_reads_the_public_views_alone_and_is_bounded(title: str) -> None:
    question = QUESTIONS[title]
    assert question.tables
    assert question.tables <= PUBLIC
    # A limit, or groups that cannot be many: causes, statuses, reasons, hours and days of a window.
    assert "LIMIT" in question.sql or "GROUP BY" in question.sql
    assert "ORDER BY" in question.sql
    assert set(question.parameters) <= set(PARAMETERS)
    assert not question.sql.rstrip().endswith(";")


def test_every_view_that_the_page_links_to_is_one_that_it_can_show(engine: Engine) -> None:
    used = {view for question in QUESTIONS.values() for view in question.tables}
    assert set() == PUBLIC - used
    with engine.connect() as conn:
        row = conn.execute(sa.text("SELECT * FROM v_clock")).mappings().one()
    ordered = [row[name] for name in ("month_ago", "week_ago", "day_ago", "hour_ago", "now", "hour_ahead", "day_ahead")]
    assert sorted(ordered) == ordered
