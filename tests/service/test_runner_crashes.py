"""The runner dies: at every statement of every verb, and by SIGKILL at random moments of a real process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.runner.crash_runs import CrashRuns
from reconciler.core.model import NewEntry
from reconciler.service.attempt import Attempt
from reconciler.service.runner import Runner
from reconciler.store.schema import entries
from reconciler.testing.bench import Bench, answer, asks, result
from tests.support.checker import check, report
from tests.support.crashing import Crash, crash_at

# A verb sends fewer statements than this; a test fails where it is not so.
STATEMENTS_MAX = 40


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    bench = Bench(database_url)
    yield bench
    bench.close()
    found = check(database_url)
    assert not found, report(found)


def _begun(bench: Bench, runner: Runner, number: int) -> Attempt:
    return bench.begun(runner, f"s{number}", "a")


def _asked(bench: Bench, runner: Runner, number: int) -> Attempt:
    attempt = _begun(bench, runner, number)
    attempt.append([asks("c", id="m")])
    return attempt


def _resumed(bench: Bench, runner: Runner, number: int) -> Attempt:
    bench.crash(_asked(bench, runner, number))
    (attempt,) = runner.claim(wait_s=1)
    return attempt


Verb = tuple[Callable[[Bench, Runner, int], Attempt], Callable[[Attempt], Any]]

VERBS: dict[str, Verb] = {
    "begin": (lambda bench, runner, number: bench.claimed(runner, f"s{number}", "a"), lambda attempt: attempt.begin()),
    "begin with markers": (_resumed, lambda attempt: attempt.begin()),
    "append": (_begun, lambda attempt: attempt.append([asks("c", id="x"), result("c", id="y"), answer(id="z")])),
    "start": (_asked, lambda attempt: attempt.start("c")),
    "settle": (_asked, lambda attempt: attempt.settle("failed", error="enough")),
    "fail": (_begun, lambda attempt: attempt.fail("overloaded")),
    "release": (_begun, lambda attempt: attempt.release("deploy")),
    "park": (_asked, lambda attempt: attempt.park("approval", pending_calls=["c"])),
}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_crash_at_any_statement_leaves_all_or_nothing_and_a_repeat_ends_the_same(bench: Bench, verb: str) -> None:
    scene, act = VERBS[verb]
    runner = bench.runner()

    def shape(session_id: str) -> Any:
        # All that stands of a session, without what is made anew each time.
        volatile = {"id", "session_id", "attempt_id", "current_attempt_id", "last_attempt_id", "claim_key", "pass_id"}
        volatile |= {"not_before", "lease_expires_at", "end_digest", "parked_until"}
        return {
            name: sorted(
                repr(
                    {
                        key: "an instant" if key.endswith("_at") and value is not None else value
                        for key, value in row.items()
                        if key not in volatile
                    }
                )
                for row in rows
                if row.get("session_id", row.get("id")) == session_id
            )
            for name, rows in bench.everything().items()
            if name not in ("passes", "entry_payloads")
        }

    undisturbed = scene(bench, runner, 0)
    act(undisturbed)
    wanted = shape("s0")
    for number in range(1, STATEMENTS_MAX + 1):
        attempt = scene(bench, runner, number)
        before = bench.everything()
        try:
            with crash_at(runner._engine, number):
                act(attempt)
        except Crash:
            after = bench.everything()
            assert before == after or wanted == shape(f"s{number}"), f"half of {verb} at statement {number}"
            act(attempt)
            assert wanted == shape(f"s{number}"), f"{verb}, crashed at statement {number} and repeated"
        else:
            assert wanted == shape(f"s{number}")
            assert number > 3, "the crash never came"
            return
    pytest.fail(f"{verb} sends more than {STATEMENTS_MAX} statements")


@pytest.mark.parametrize("call", ["submit", "claim"])
def test_a_crash_at_any_statement_of_a_call_without_an_attempt_leaves_all_or_nothing(bench: Bench, call: str) -> None:
    runner = bench.runner()
    for number in range(1, STATEMENTS_MAX + 1):
        name = f"s{number}"
        if call == "claim":
            bench.submitted(runner, name)
        before = bench.everything()
        try:
            with crash_at(runner._engine, number):
                bench.submitted(runner, name) if call == "submit" else runner.claim()
        except Crash:
            assert before == bench.everything()
            if call == "submit":
                bench.submitted(runner, name)
        else:
            assert number > 3, "the crash never came"
            return
        if call == "claim":
            (attempt,) = runner.claim()
            assert name == attempt.session_id
    pytest.fail(f"{call} sends more than {STATEMENTS_MAX} statements")


def test_every_prefix_of_a_resumed_turn_that_crashes_and_resumes_ends_like_the_undisturbed_one(bench: Bench) -> None:
    """I18: a crash behind each step of a turn, a pass, and the turn again, whatever was done already."""
    runner = bench.runner()

    def steps(attempt: Attempt) -> Iterator[None]:
        path = attempt.begin()
        yield
        results = [item for item in path if getattr(item.entry, "role", None) == "tool_result"]
        if not any(item.payload == {"ok": True} for item in results):
            call = f"c{attempt.number}"
            attempt.append([asks(call)])
            yield
            attempt.start(call)
            yield
            attempt.append([result(call)])
            yield
        attempt.append([answer()])
        yield
        attempt.settle("completed")
        yield

    for crash_behind in range(1, 6):
        session = f"s{crash_behind}"
        attempt = bench.claimed(runner, session, "a")
        for _, _ in zip(range(crash_behind), steps(attempt), strict=False):
            pass
        bench.crash(attempt)
        for later in runner.claim(wait_s=0):
            for _ in steps(later):
                pass
        row = bench.row(session, "a")
        assert ("settled", "completed") == (row.status, row.outcome), f"crash behind step {crash_behind}"
        answered = [
            entry
            for entry in bench.rows(entries)
            if entry["session_id"] == session and entry["role"] == "assistant" and entry["stop_reason"] == "stop"
        ]
        assert 1 == len(answered)


def test_what_a_killed_attempt_had_appended_stays(bench: Bench) -> None:
    runner = bench.runner()
    attempt = bench.begun(runner)
    attempt.append([NewEntry("assistant", {"text": "half an ans"}, id="half", stop_reason="aborted")])
    bench.crash(attempt)
    (later,) = runner.claim()
    assert "half" == later.resume.partial_entry_id
    assert "half" in [item.entry.id for item in later.begin()]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 350), ("postgresql", 150)])
def test_random_kills_of_the_example_leave_one_outcome_each(
    kind: str, kills: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """500 in the suite; ``make crash-runs`` runs 10,000."""
    url: str = request.getfixturevalue(f"{kind}_url")
    found = CrashRuns(url, tmp_path / "ledger.jsonl", seed=20260101).run(kills)
    assert [] == found.faults
    assert kills == found.kills
    # Most of them must have met a process at work, or nothing was tested.
    assert found.hits > kills // 3
    assert found.attempts > found.submissions
    violations = check(url, quiescent=True)
    # Its limits are the driver's: the counters may be above the usual ones.
    violations = [violation for violation in violations if violation.invariant != "I8"]
    assert not violations, report(violations)
