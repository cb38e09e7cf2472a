"""`schedule list|pause|resume|run`, through the one door."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.jobs import Admits, Job
from reconciler.core.slots import CatchUp, parse_cron
from reconciler.ops.asking import Answer, Desk
from reconciler.ops.dispatch import ask
from reconciler.ops.render import Style
from reconciler.ops.render_answers import RENDERERS
from reconciler.store import slots as ledger
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, read
from reconciler.store.schema import audit, metadata, schedule_slots, submissions

JOBS = {
    "report": Job(
        "report",
        parse_cron("* * * * *"),
        UTC,
        catch_up=CatchUp.NONE,
        admits=Admits("reports", {"text": "write it"}),
    ),
    "sweep": Job("sweep", parse_cron("17 * * * *"), UTC),
}


@pytest.fixture
def call(engine: Engine) -> Callable[..., Answer]:
    """Give a way to ask on a desk with two jobs."""
    desk = Desk(make_engine=lambda **_: engine, name_database=lambda: "the test's", operator="ada", jobs=JOBS)

    def asked(name: str, **params: Any) -> Answer:
        answer = ask(f"schedule {name}", params, desk)
        if answer.error is None:
            # Every answer can be shown to a person.
            assert RENDERERS[f"schedule {name}"](answer.payload, Style(width=100))
        return answer

    return asked


Call = Callable[..., Answer]


def looked_back(engine: Engine, minutes: float, name: str = "report") -> None:
    with begin(engine) as conn:
        ledger.lock_job(conn, name, wait=True)
        ledger.set_looked_until(conn, name, db_now(conn) - timedelta(minutes=minutes))


def dump(engine: Engine) -> dict[str, Any]:
    with read(engine) as conn:
        return {table.name: conn.execute(sa.select(table)).all() for table in metadata.sorted_tables}


def test_list_shows_jobs_that_nobody_has_looked_at_yet_and_writes_nothing(call: Call, engine: Engine) -> None:
    before = dump(engine)
    answer = call("list")
    assert 0 == answer.exit_code
    assert ["report", "sweep"] == [job["job"] for job in answer.payload["jobs"]]
    assert [True, False] == [job["admits"] for job in answer.payload["jobs"]]
    assert all(job["next_at"] and job["missed"] == 0 for job in answer.payload["jobs"])
    assert before == dump(engine)


def test_list_counts_what_was_missed_and_leads_to_once(call: Call, engine: Engine) -> None:
    looked_back(engine, 10)
    answer = call("list", job="report")
    assert answer.payload["jobs"][0]["missed"] in (8, 9)
    assert "once" == answer.payload["followUp"][0]["tool"]


def test_list_shows_slots_of_a_job_that_is_configured_no_more(call: Call, engine: Engine) -> None:
    looked_back(engine, 10, "older")
    (older,) = [job for job in call("list").payload["jobs"] if job["job"] == "older"]
    assert (False, None) == (older["configured"], older["cron"])


def test_an_unknown_job_is_refused_by_every_verb(call: Call) -> None:
    for verb in ("pause", "resume", "run"):
        assert "invalid_input" == call(verb, job="repor").error["code"]  # type: ignore[index]
    assert "invalid_input" == call("list", job="repor").error["code"]  # type: ignore[index]


def test_pause_and_resume_say_what_they_did_and_are_audited(call: Call, engine: Engine) -> None:
    looked_back(engine, 5)
    assert "would" == call("pause", job="report", dry_run=True).payload["result"]
    assert "done" == call("pause", job="report", reason="wrong prompt").payload["result"]
    assert "already" == call("pause", job="report").payload["result"]
    paused = call("list", job="report").payload["jobs"][0]
    assert ("ada", None) == (paused["paused_by"], paused["next_at"])
    assert "done" == call("resume", job="report").payload["result"]
    assert "already" == call("resume", job="report").payload["result"]
    with read(engine) as conn:
        acts = [(row.verb, row.operator, row.reason) for row in conn.execute(sa.select(audit).order_by(audit.c.at))]
        reasons = set(conn.execute(sa.select(schedule_slots.c.reason)).scalars())
    assert [("schedule pause", "ada", "wrong prompt"), ("schedule resume", "ada", None)] == acts
    # Slots of the pause are recorded though no daemon was there.
    assert {"paused"} == reasons


def test_run_admits_one_now_and_a_dry_run_does_not(call: Call, engine: Engine) -> None:
    before = dump(engine)
    planned = call("run", job="report", dry_run=True)
    assert "would" == planned.payload["result"]
    assert before == dump(engine)
    done = call("run", job="report")
    assert ("done", "reports") == (done.payload["result"], done.payload["session_id"])
    with read(engine) as conn:
        assert [done.payload["submission_id"]] == list(conn.execute(sa.select(submissions.c.id)).scalars())
        assert 1 == conn.execute(sa.select(sa.func.count()).select_from(audit)).scalar_one()


def test_run_of_the_systems_own_work_gives_what_it_found(call: Call) -> None:
    done = call("run", job="sweep")
    assert {"checked": 0, "problems": 0, "complete": True} == done.payload["found"]


def test_a_slot_that_is_done_is_not_run_again(call: Call) -> None:
    done = call("run", job="report")
    slot_at = done.payload["slot_at"]
    for dry_run in (True, False):
        refused = call("run", job="report", at=slot_at, dry_run=dry_run)
        assert refused.error is not None
        assert refused.error["code"] in ("conflict", "invalid_input")


def test_once_keeps_the_schedule_where_no_daemon_runs(call: Call, engine: Engine) -> None:
    looked_back(engine, 3)
    looked_back(engine, 90, "sweep")
    desk = Desk(make_engine=lambda **_: engine, name_database=lambda: "the test's", jobs=JOBS)
    planned = ask("once", {"no_wait": True, "dry_run": True}, desk)
    assert planned.payload["slots"] >= 3
    done = ask("once", {"no_wait": True}, desk)
    assert done.payload["slots"] >= planned.payload["slots"]
    with read(engine) as conn:
        statuses = set(conn.execute(sa.select(schedule_slots.c.status)).scalars())
    assert "taken" not in statuses
    assert {"done"} <= statuses
