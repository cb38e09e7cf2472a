"""The contract of the runner's side, as tests: one suite for every backend.

Grouped by what is promised. Every write method of `Attempt` is found by looking at the class, so that a new one that
forgets the fence, or the repeat, fails here before anybody has thought of a test for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from reconciler.core.model import Limits, NewEntry, SessionEntry
from reconciler.core.states import Directive, Outcome, ResumeMode, SubmissionStatus
from reconciler.core.subturn import ResumePlan, plan_sub_turn_loop
from reconciler.errors import (
    AttemptLost,
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotBegun,
    NotFound,
    ReservedId,
    SessionDamaged,
    SessionMirrored,
)
from reconciler.service.attempt import Attempt, TurnPath
from reconciler.service.runner import Runner
from reconciler.store.schema import attempts, decisions, entries, sessions, submissions
from reconciler.testing.bench import QUICK_LIMITS, Bench, answer, asks, result

# --- the verbs of an attempt -----------------------------------------------------------------------------------------

# What writes nothing, or (the beat) is no write in the sense of the fence.
READS = frozenset({"path", "heartbeat", "abandon"})
WRITES: dict[str, Callable[[Attempt], Any]] = {
    "begin": lambda attempt: attempt.begin(),
    "append": lambda attempt: attempt.append([answer("late", id="late")]),
    "start": lambda attempt: attempt.start("call"),
    "report_sub_turn": lambda attempt: attempt.report_sub_turn(3),
    "settle": lambda attempt: attempt.settle("failed", error="late"),
    "fail": lambda attempt: attempt.fail("late"),
    "release": lambda attempt: attempt.release("late"),
    "park": lambda attempt: attempt.park("late"),
}
ENDS = ("settle", "fail", "release", "park")


def public_verbs(subject: type) -> frozenset[str]:
    """Return the public methods of a class."""
    return frozenset(name for name, _ in inspect.getmembers(subject, inspect.isfunction) if not name.startswith("_"))


def _with_sub_turn(attempt: Attempt) -> Attempt:
    """Give the attempt a plan with a second retrieval, so that its report is refused by the fence and nothing else."""
    sub_turn = plan_sub_turn_loop(
        phase="mid-turn", partial_response="the quarterly revenue figures of project/alpha are still missing here"
    )
    attempt.resume = ResumePlan(ResumeMode.CONTINUE_PARTIAL, sub_turn=sub_turn)
    return attempt


def _ids(path: TurnPath) -> list[str]:
    """Return the ids of the stored entries of a path."""
    return [item.entry.id for item in path if isinstance(item.entry, SessionEntry)]


def _replaced(bench: Bench, attempt: Attempt) -> None:
    bench.crash(attempt)
    (later,) = bench.runner(owner="successor").claim()
    later.begin()


def _queued(bench: Bench, attempt: Attempt) -> None:
    bench.crash(attempt)


def _settled(bench: Bench, attempt: Attempt) -> None:
    bench.runner().request_abort(attempt.session_id, attempt.submission_id)
    bench.crash(attempt)


def _stopped(bench: Bench, attempt: Attempt) -> None:
    bench.crash(attempt)
    (later,) = bench.runner(owner="successor").claim()
    later.begin()
    later.park("elsewhere")


FENCED: dict[str, Callable[[Bench, Attempt], None]] = {
    "another attempt runs": _replaced,
    "it waits in the queue": _queued,
    "a pass settled it": _settled,
    "another attempt parked it": _stopped,
}


class RunnerContract:
    """The suite. Give it a ``database_url`` fixture; see the package's text."""

    @pytest.fixture
    def bench(self, database_url: str) -> Iterator[Bench]:
        """Give a bench on the database under test."""
        bench = Bench(database_url)
        yield bench
        bench.close()

    @pytest.fixture
    def runner(self, bench: Bench) -> Runner:
        """Give a runner on it."""
        return bench.runner()

    # --- admission ---------------------------------------------------------------------------------------------------

    def test_a_submission_is_admitted_once_however_often_it_is_submitted(self, bench: Bench, runner: Runner) -> None:
        first = runner.submit("s", "a", {"x": 1, "y": 2})
        again = runner.submit("s", "a", {"y": 2, "x": 1})
        assert (True, False) == (first.created, again.created)
        assert first.ticket == again.ticket
        assert 1 == len(bench.rows(submissions))

    def test_the_same_id_with_other_content_is_a_conflict(self, bench: Bench, runner: Runner) -> None:
        runner.submit("s", "a", {"x": 1})
        before = bench.everything()
        with pytest.raises(Conflict):
            runner.submit("s", "a", {"x": 2})
        with pytest.raises(Conflict):
            runner.submit("s", "a", {"x": 1}, entity_hints=["project/x"])
        assert before == bench.everything()

    def test_the_same_submission_id_in_another_session_is_another_submission(self, runner: Runner) -> None:
        assert runner.submit("s", "a", 1).created
        assert runner.submit("t", "a", 2).created

    def test_a_settled_submission_answers_with_its_outcome(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer()])
        attempt.settle("completed")
        again = runner.submit("s", "a", {"text": "please do a"})
        assert (False, Outcome.COMPLETED) == (again.created, again.outcome)

    def test_a_mirrored_session_takes_no_submission_and_gives_none(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        bench.change(sessions, sessions.c.id == "s", origin="mirrored")
        assert [] == runner.claim()
        with pytest.raises(SessionMirrored):
            runner.submit("s", "b", {})

    @pytest.mark.parametrize("bad", ["", "x" * 513, "new\nline", "\x00", "\x7f", 7, None, "\ud800"])
    def test_an_id_that_is_none_is_refused(self, runner: Runner, bad: Any) -> None:
        with pytest.raises(InvalidInput):
            runner.submit("s", bad, {})
        with pytest.raises(InvalidInput):
            runner.submit(bad, "a", {})

    def test_an_id_of_512_bytes_in_any_script_is_taken(self, bench: Bench, runner: Runner) -> None:
        long = "ж" * 256
        attempt = bench.begun(runner, long, long)
        attempt.append([answer()])
        assert Outcome.COMPLETED is attempt.settle("completed").outcome

    @pytest.mark.parametrize("payload", [{1, 2}, object(), float("nan"), float("inf"), b"bytes"])
    def test_a_payload_that_is_no_json_is_refused(self, bench: Bench, runner: Runner, payload: Any) -> None:
        before = bench.everything()
        with pytest.raises(InvalidInput):
            runner.submit("s", "a", payload)
        assert before == bench.everything()

    def test_a_payload_beyond_the_limit_is_refused(self, bench: Bench) -> None:
        small = bench.runner(limits=Limits(payload_bytes_max=100))
        with pytest.raises(LimitExceeded):
            small.submit("s", "a", "x" * 200)

    @pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), 1e12, "soon", True])
    def test_a_deadline_out_of_range_is_refused(self, runner: Runner, deadline_s: Any) -> None:
        with pytest.raises(InvalidInput):
            runner.submit("s", "a", {}, deadline_s=deadline_s)

    def test_every_text_comes_back_as_it_went_in(self, bench: Bench, runner: Runner) -> None:
        payload = {"text": "ß 漢 \u0000 😀 \ud800 \u2028", "n": 10**30, "f": 0.1}
        runner.submit("s", "a", payload)
        (attempt,) = runner.claim()
        assert payload == attempt.payload
        assert payload == attempt.begin().items[0].payload

    # --- claims ------------------------------------------------------------------------------------------------------

    def test_a_session_runs_one_submission_at_a_time_in_the_order_of_admission(
        self, bench: Bench, runner: Runner
    ) -> None:
        for name in ("a", "b", "c"):
            bench.submitted(runner, "s", name)
        ran = []
        while attempts_now := runner.claim(10):
            (attempt,) = attempts_now
            assert [] == runner.claim(10)
            ran.append(attempt.submission_id)
            attempt.begin()
            attempt.append([answer()])
            attempt.settle("completed")
        assert ["a", "b", "c"] == ran

    def test_one_call_claims_from_several_sessions_oldest_first(self, bench: Bench, runner: Runner) -> None:
        for name in ("s3", "s1", "s2"):
            bench.submitted(runner, name)
        assert ["s3", "s1"] == [attempt.session_id for attempt in runner.claim(2)]
        assert ["s2"] == [attempt.session_id for attempt in runner.claim(2)]

    def test_nothing_is_claimed_twice(self, bench: Bench, runner: Runner) -> None:
        bench.claimed(runner)
        assert [] == bench.runner(owner="other").claim()

    def test_a_claim_spends_an_attempt_and_counts_on(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.claimed(runner)
        row = bench.row()
        assert ("running", 1, 1, attempt.attempt_id) == (
            row.status,
            row.claims,
            row.attempts_spent,
            row.current_attempt_id,
        )
        assert 1 == attempt.number

    def test_a_claim_waits_for_backoff_abort_hold_and_deadline(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        now = bench.now()
        mine = submissions.c.id == "a"
        bench.change(submissions, mine, not_before=now + timedelta(hours=1))
        assert [] == runner.claim()
        bench.change(submissions, mine, not_before=now - timedelta(hours=1), deadline_at=now - timedelta(seconds=1))
        assert [] == runner.claim()
        bench.change(submissions, mine, deadline_at=None, not_before=None, held_at=now, held_reason="x")
        assert [] == runner.claim()
        bench.change(submissions, mine, held_at=None, held_reason=None, abort_requested_at=now)
        assert [] == runner.claim()
        bench.change(submissions, mine, abort_requested_at=None, not_before=now - timedelta(hours=1))
        assert 1 == len(runner.claim())

    def test_a_decision_that_does_not_stand_makes_nothing_claimable(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        bench.change(submissions, submissions.c.id == "a", revision=submissions.c.revision + 1)
        assert [] == runner.claim()

    def test_a_leaf_moved_by_hand_ends_the_standing_of_a_resume_plan(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c")])
        bench.crash(attempt)
        bench.change(sessions, sessions.c.id == "s", version=sessions.c.version + 1)
        bench.change(sessions, sessions.c.id == "s", leaf_moved_version=sessions.c.version)
        assert [] == runner.claim()

    def test_what_is_held_blocks_its_session_and_no_other(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.claimed(runner)
        bench.submitted(runner, "s", "b")
        bench.submitted(runner, "t", "c")
        bench.damage("s")
        bench.change(sessions, sessions.c.id == "s", last_seq=1)
        with pytest.raises(SessionDamaged):
            attempt.begin()
        assert ["c"] == [other.submission_id for other in runner.claim(10)]

    def test_a_deep_backlog_in_one_session_starves_no_other(
        self, bench: Bench, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("reconciler.store.claims.CANDIDATES_MAX", 5)
        for number in range(12):
            bench.submitted(runner, "deep", f"d{number:02}")
        bench.submitted(runner, "late", "z")
        assert ["d00"] == [attempt.submission_id for attempt in runner.claim()]
        assert ["z"] == [attempt.submission_id for attempt in runner.claim()]
        assert [] == runner.claim()

    def test_the_search_over_sessions_goes_on_where_it_stopped(
        self, bench: Bench, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("reconciler.store.claims.CANDIDATES_MAX", 2)
        monkeypatch.setattr("reconciler.store.claims.SESSIONS_MAX", 3)
        for session in range(8):
            for number in range(2):
                bench.submitted(runner, f"s{session}", f"{number}")
        claimed: list[str] = []
        for _ in range(20):
            claimed += [attempt.session_id for attempt in runner.claim(2)]
        assert [f"s{session}" for session in range(8)] == sorted(claimed)

    @pytest.mark.parametrize("limit", [0, -1, 1_001, True, 1.5, None])
    def test_a_claim_of_an_impossible_number_is_refused(self, runner: Runner, limit: Any) -> None:
        with pytest.raises(InvalidInput):
            runner.claim(limit)

    def test_a_claim_that_waits_gives_up_in_time(self, runner: Runner) -> None:
        assert [] == runner.claim(wait_s=0.2)

    @pytest.mark.parametrize(
        "settings",
        [
            {"lease_s": 0},
            {"lease_s": 366 * 86400},
            {"lease_s": -1},
            {"lease_s": float("nan")},
            {"beat_s": 0},
            {"lease_s": 1, "beat_s": 0.9},
        ],
    )
    def test_a_lease_that_makes_no_sense_is_refused(self, bench: Bench, settings: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            bench.runner(**settings)

    # --- beginning ---------------------------------------------------------------------------------------------------

    def test_beginning_writes_the_input_once_and_returns_the_path(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.claimed(runner)
        first, again = attempt.begin(), attempt.begin()
        assert first == again
        assert ["submission-input:a"] == _ids(first)
        assert {"text": "please do a"} == first.items[0].payload
        assert (1, "running") == (bench.row().attempts_begun, bench.row().status)

    def test_beginning_again_after_a_crash_writes_no_second_input(self, bench: Bench, runner: Runner) -> None:
        bench.crash(bench.begun(runner))
        (later,) = runner.claim()
        assert ResumeMode.REDISPATCH is later.resume.mode
        assert 1 == len(later.begin())
        assert 1 == bench.row().redispatches

    def test_a_redispatch_is_spent_at_the_beginning_and_once(self, bench: Bench, runner: Runner) -> None:
        bench.crash(bench.begun(runner))
        (later,) = runner.claim()
        assert 0 == bench.row().redispatches
        later.begin()
        later.begin()
        assert 1 == bench.row().redispatches
        bench.crash(later)
        assert ("failed", "uncertain_exhausted") == (bench.row().outcome, bench.row().outcome_reason)

    def test_open_calls_are_closed_with_markers_that_say_what_is_known(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("one", "two", "three", id="m")])
        attempt.start("two")
        attempt.append([result("three")])
        bench.crash(attempt)
        (later,) = runner.claim()
        assert ResumeMode.REPAIR_TOOLS is later.resume.mode
        path = later.begin()
        texts = {
            item.entry.tool_call_id: item.payload for item in path if getattr(item.entry, "role", None) == "tool_result"
        }
        assert "not_started" == texts["one"]["dispatch"]
        assert "started" == texts["two"]["dispatch"]
        assert {"ok": True} == texts["three"]
        assert () == path.added
        markers = [row["id"] for row in bench.rows(entries) if row["id"].startswith("tool-marker:")]
        assert ["tool-marker:1:m:0", "tool-marker:1:m:1"] == sorted(markers)

    def test_open_calls_of_earlier_turns_are_closed_too(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("old", id="m"), answer("never mind")])
        attempt.settle("completed")
        later = bench.claimed(runner, "s", "b")
        path = later.begin()
        assert () == path.added
        assert "tool-marker:1:m:0" in _ids(path)
        assert "submission-input:b" == _ids(path)[-1]

    def test_a_damaged_session_is_held_and_says_so_again(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer()])
        attempt.settle("completed")
        later = bench.claimed(runner, "s", "b")
        bench.damage("s")
        with pytest.raises(SessionDamaged):
            later.begin()
        with pytest.raises(SessionDamaged):
            later.begin()
        row = bench.row("s", "b")
        assert ("queued", "integrity_hold") == (row.status, row.held_reason)
        assert "held" == bench.attempt_row(later).end_kind
        assert [] == runner.claim()
        with pytest.raises(AttemptLost):
            later.append([answer()])

    def test_a_turn_that_is_finished_already_is_not_begun_again(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="m")])
        bench.crash(attempt)
        (later,) = runner.claim()
        # Somebody else's tool wrote the answer in between.
        bench.change(entries, entries.c.id == "m", tool_call_ids=None, stop_reason="stop")
        with pytest.raises(AttemptLost):
            later.begin()
        assert "released" == bench.attempt_row(later).end_kind
        bench.reconcile()
        assert "completed" == bench.row().outcome

    def test_a_session_too_long_for_its_lock_is_read_before(
        self, bench: Bench, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks(f"c{number}") for number in range(20)] + [answer()])
        attempt.settle("completed")
        monkeypatch.setattr("reconciler.service.turns.READ_UNDER_LOCK_MAX", 3)
        later = bench.claimed(runner, "s", "b")
        assert later.begin() == later.path()

    # --- appending ---------------------------------------------------------------------------------------------------

    def test_nothing_is_appended_before_the_turn_has_begun(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.claimed(runner)
        before = bench.everything()
        for write in (
            lambda: attempt.append([answer()]),
            lambda: attempt.start("c"),
            lambda: attempt.settle("completed"),
            lambda: _with_sub_turn(attempt).report_sub_turn(1),
        ):
            with pytest.raises(NotBegun):
                write()
        assert before == bench.everything()

    def test_entries_hang_one_below_the_other_and_the_last_is_the_leaf(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        ids = attempt.append([asks("c", id="one"), result("c", id="two"), answer(id="three")])
        assert ["one", "two", "three"] == ids
        rows = {row["id"]: row for row in bench.rows(entries)}
        assert ["submission-input:a", "one", "two"] == [rows[entry]["parent_id"] for entry in ids]
        assert [2, 3, 4] == [rows[entry]["seq"] for entry in ids]
        assert {("a", attempt.attempt_id, True)} == {
            (rows[entry]["submission_id"], rows[entry]["attempt_id"], rows[entry]["write_ahead"]) for entry in ids
        }
        (session,) = bench.rows(sessions)
        assert ("three", 4, 4) == (session["leaf_entry_id"], session["last_seq"], session["version"])

    def test_a_batch_is_appended_whole_or_not_at_all(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer(id="there")])
        before = bench.everything()
        with pytest.raises(Conflict):
            attempt.append([asks("c", id="new"), answer("other", id="there")])
        assert before == bench.everything()

    def test_an_exact_repeat_gives_the_first_answer(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        batch = [asks("c", id="one"), result("c", id="two")]
        first = attempt.append(batch)
        before = bench.everything()
        assert first == attempt.append(batch)
        assert before == bench.everything()

    def test_a_repeat_is_recognised_before_the_fence(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        first = attempt.append([asks("c", id="one")])
        bench.crash(attempt)
        assert first == attempt.append([asks("c", id="one")])

    @pytest.mark.parametrize(
        "other",
        [
            NewEntry("assistant", {"text": "else"}, id="one", stop_reason="stop"),
            NewEntry("assistant", {"text": "done"}, id="one", stop_reason="length"),
            NewEntry("assistant", {"text": "done"}, id="one", stop_reason="stop", is_sidechain=True),
            NewEntry("user", {"text": "done"}, id="one"),
            NewEntry(None, {"text": "done"}, id="one", kind="custom"),
        ],
    )
    def test_an_id_used_before_with_other_content_is_a_conflict(
        self, bench: Bench, runner: Runner, other: NewEntry
    ) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer(id="one")])
        before = bench.everything()
        with pytest.raises(Conflict):
            attempt.append([other])
        assert before == bench.everything()

    def test_an_id_of_another_attempt_is_a_conflict_though_the_content_is_equal(
        self, bench: Bench, runner: Runner
    ) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="one")])
        bench.crash(attempt)
        (later,) = runner.claim()
        later.begin()
        with pytest.raises(Conflict):
            later.append([asks("c", id="one")])

    def test_part_of_a_batch_is_no_repeat(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="one")])
        with pytest.raises(Conflict):
            attempt.append([asks("c", id="one"), result("c", id="two")])

    @pytest.mark.parametrize("entry_id", ["submission-settled:a", "submission-input:z", "tool-marker:1:m:0"])
    def test_reserved_ids_are_refused(self, bench: Bench, runner: Runner, entry_id: str) -> None:
        attempt = bench.begun(runner)
        with pytest.raises(ReservedId):
            attempt.append([answer(id=entry_id)])

    @pytest.mark.parametrize(
        "entry",
        [
            NewEntry(None, {}, kind="submission_settled"),
            NewEntry(None, {}, kind="unreadable"),
            NewEntry(None, {}, kind="nonsense"),
            NewEntry("assistant", {}),
            NewEntry("assistant", {}, stop_reason="weird"),
            NewEntry("user", {}, stop_reason="stop"),
            NewEntry("user", {}, tool_call_ids=("c",)),
            NewEntry("user", {}, tool_call_id="c"),
            NewEntry("tool_result", {}),
            NewEntry("nobody", {}),
            NewEntry(None, {}),
            NewEntry("assistant", {}, stop_reason="stop", content="song"),
            NewEntry("assistant", {}, stop_reason="stop", submission_id="other"),
            NewEntry("assistant", {}, stop_reason="stop", attempt_id="other"),
            NewEntry("assistant", {}, stop_reason="stop", stopped_by="cat"),
            NewEntry("assistant", object(), stop_reason="stop"),
            NewEntry("assistant", {}, stop_reason="stop", id=""),
            "not an entry",
        ],
        ids=range(18),
    )
    def test_an_entry_outside_the_contract_is_refused(self, bench: Bench, runner: Runner, entry: Any) -> None:
        attempt = bench.begun(runner)
        before = bench.everything()
        with pytest.raises(InvalidInput):
            attempt.append([answer(), entry])
        assert before == bench.everything()

    def test_two_entries_of_one_id_in_one_call_are_refused(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        with pytest.raises(InvalidInput):
            attempt.append([answer(id="x"), answer(id="x")])

    def test_more_than_the_limits_allow_is_refused(self, bench: Bench) -> None:
        small = bench.runner(limits=Limits(append_entries_max=2, payload_bytes_max=1_000, append_bytes_max=1_500))
        attempt = bench.begun(small)
        before = bench.everything()
        with pytest.raises(LimitExceeded):
            attempt.append([answer(), answer(), answer()])
        with pytest.raises(LimitExceeded):
            attempt.append([answer("x" * 2_000)])
        with pytest.raises(LimitExceeded):
            attempt.append([answer("x" * 800), answer("x" * 800)])
        assert before == bench.everything()

    def test_fifty_megabytes_are_refused_and_thirty_are_taken(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        with pytest.raises(LimitExceeded):
            attempt.append([answer("x" * 50_000_000)])
        attempt.append([answer("x" * 30_000_000, id="big")])
        assert 30_000_000 == len(attempt.path().items[-1].payload["text"])

    def test_a_runners_signal_is_no_input(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([NewEntry("signal", {"text": "note to self"}, id="n")])
        (row,) = [row for row in bench.rows(entries) if row["id"] == "n"]
        assert row["is_synthetic"]

    def test_an_entry_may_hang_at_or_below_the_input(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="m")])
        attempt.append([result("c", id="r1")])
        attempt.append([answer("first", id="x1")], at="m")
        attempt.append([answer("second", id="x2")], at="submission-input:a")
        path = _ids(attempt.path(valid=False))
        assert ["submission-input:a", "x2"] == path

    def test_an_entry_hangs_nowhere_else(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer(id="earlier")])
        attempt.settle("completed")
        other = bench.begun(runner, "t", "b")
        other.append([answer(id="elsewhere")])
        other.settle("completed")
        later = bench.begun(runner, "s", "c")
        later.append([asks("c", id="m"), result("c", id="r")])
        later.append([answer("again", id="branch")], at="m")
        before = bench.everything()
        for place in ("earlier", "elsewhere", "nowhere", "submission-input:a", "r"):
            with pytest.raises(InvalidInput):
                later.append([answer()], at=place)
        assert before == bench.everything()

    def test_a_repeat_at_another_place_is_a_conflict(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="m"), result("c", id="r")])
        attempt.append([answer(id="x")], at="m")
        assert ["x"] == attempt.append([answer(id="x")], at="m")
        with pytest.raises(Conflict):
            attempt.append([answer(id="x")], at="submission-input:a")

    def test_progress_is_what_the_model_or_a_tool_said(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        for entry in (
            NewEntry(None, {}, kind="custom"),
            NewEntry("user", {}, is_synthetic=True),
            NewEntry("assistant", {}, stop_reason="stop", is_synthetic=True),
            NewEntry("assistant", {}, stop_reason="stop", is_sidechain=True),
            NewEntry("assistant", {}, stop_reason="error", content="none"),
        ):
            attempt.append([entry])
            assert bench.attempt_row(attempt).progress_at is None
        attempt.append([asks("c")])
        assert bench.attempt_row(attempt).progress_at is not None

    # --- starts ------------------------------------------------------------------------------------------------------

    def test_a_start_is_on_record_before_the_tool_runs_and_once(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", "d", id="m")])
        assert attempt.start("c") == attempt.start("c")
        starts = [row for row in bench.rows(entries) if row["kind"] == "tool_started"]
        assert [("c", attempt.attempt_id)] == [(row["tool_call_id"], row["attempt_id"]) for row in starts]

    def test_a_call_that_nobody_made_is_not_started(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c")])
        with pytest.raises(InvalidInput):
            attempt.start("zzz")

    def test_a_call_that_is_answered_is_not_started_again(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c")])
        attempt.start("c")
        attempt.append([result("c")])
        with pytest.raises(Conflict):
            attempt.start("c")

    def test_a_call_id_that_comes_back_is_another_call(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="m1")])
        first = attempt.start("c")
        attempt.append([result("c"), asks("c", id="m2")])
        assert first != attempt.start("c")

    def test_no_tool_starts_behind_an_abort(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c")])
        runner.request_abort("s", "a")
        with pytest.raises(Conflict):
            attempt.start("c")
        attempt.append([NewEntry("tool_result", {"text": "not run"}, tool_call_id="c")])

    def test_a_call_closed_by_a_marker_is_not_started(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c")])
        bench.crash(attempt)
        (later,) = runner.claim()
        later.begin()
        with pytest.raises(Conflict):
            later.start("c")

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def test_a_settlement_is_entry_row_attempt_and_log_at_once(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer(id="x")])
        settled = attempt.settle("completed")
        row = bench.row()
        assert ("settled", "completed", "x", "submission-settled:a", False) == (
            row.status,
            row.outcome,
            row.answer_entry_id,
            row.settlement_entry_id,
            row.recovered,
        )
        assert ("x", "settled_by_runner") == (settled.answer_entry_id, settled.reason)
        assert "settled" == bench.attempt_row(attempt).end_kind
        (entry,) = [entry for entry in bench.rows(entries) if entry["kind"] == "submission_settled"]
        assert ("a", "x") == (entry["submission_id"], entry["parent_id"])
        (session,) = bench.rows(sessions)
        assert ("submission-settled:a", 3) == (session["leaf_entry_id"], session["version"])
        assert "settle" == bench.rows(decisions, "number")[-1]["action"]

    @pytest.mark.parametrize("outcome", ["failed", "aborted"])
    def test_a_finished_answer_is_no_failure(self, bench: Bench, runner: Runner, outcome: str) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer()])
        before = bench.everything()
        with pytest.raises(Conflict):
            attempt.settle(outcome)
        assert before == bench.everything()
        attempt.settle("completed")

    @pytest.mark.parametrize("outcome", ["failed", "aborted", "completed"])
    def test_a_settlement_closes_what_it_leaves_open(self, bench: Bench, runner: Runner, outcome: str) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", "d", id="m"), result("c")])
        attempt.settle(outcome, error={"why": "enough"})
        rows = {row["id"]: row for row in bench.rows(entries)}
        assert "tool-marker:1:m:1" in rows
        assert "tool-marker:1:m:1" == rows["submission-settled:a"]["parent_id"]

    def test_a_submission_can_be_aborted_before_it_has_begun_and_the_next_one_runs(
        self, bench: Bench, runner: Runner
    ) -> None:
        attempt = bench.claimed(runner)
        bench.submitted(runner, "s", "b")
        attempt.settle("aborted")
        (later,) = runner.claim()
        assert "submission-input:b" == _ids(later.begin())[-1]

    def test_an_unknown_outcome_is_refused(self, bench: Bench, runner: Runner) -> None:
        with pytest.raises(InvalidInput):
            bench.begun(runner).settle("done")

    def test_a_second_settlement_with_another_outcome_is_a_conflict(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.settle("failed", error="x")
        with pytest.raises(Conflict):
            attempt.settle("aborted")
        with pytest.raises(Conflict):
            attempt.settle("failed", error="y")
        assert "failed" == bench.row().outcome

    def test_an_exception_is_a_fine_error(self, bench: Bench, runner: Runner) -> None:
        settled = bench.begun(runner).settle("failed", error=ValueError("bad"))
        assert '{"message":"bad","type":"ValueError"}' == settled.error

    def test_a_failed_attempt_counts_one_provider_error_and_no_crash(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        assert SubmissionStatus.QUEUED is attempt.fail("overloaded")
        bench.reconcile()
        row = bench.row()
        assert (1, 0, 1) == (row.provider_errors, row.crashes_in_row, row.attempts_spent)
        (later,) = runner.claim()
        assert ResumeMode.REDISPATCH is later.resume.mode
        later.begin()
        assert 0 == bench.row().redispatches

    def test_an_error_that_no_retry_helps_fails_the_submission(self, bench: Bench, runner: Runner) -> None:
        bench.begun(runner).fail("bad request", retryable=False)
        bench.reconcile()
        assert ("failed", "provider_rejected") == (bench.row().outcome, bench.row().outcome_reason)

    def test_provider_errors_are_bounded(self, bench: Bench) -> None:
        limits = Limits(provider_errors_max=3, crashes_in_row_max=2, attempts_max=9, provider_backoff_base_s=1e-6)
        runner = bench.runner(limits=limits)
        bench.begun(runner).fail("overloaded")
        for _ in range(2):
            bench.reconcile(limits, jitter=lambda: 1.0)
            bench.change(submissions, submissions.c.status == "queued", not_before=submissions.c.admitted_at)
            (attempt,) = runner.claim()
            attempt.fail("overloaded")
        bench.reconcile(limits)
        assert ("failed", "provider_errors_exhausted", 3) == (
            bench.row().outcome,
            bench.row().outcome_reason,
            bench.row().provider_errors,
        )

    def test_a_crash_spends_the_attempt_and_counts_until_there_is_progress(self, bench: Bench, runner: Runner) -> None:
        bench.crash(bench.begun(runner))
        assert (1, 1) == (bench.row().crashes_in_row, bench.row().attempts_spent)
        (later,) = runner.claim()
        later.begin()
        later.append([asks("c")])
        bench.crash(later)
        assert (0, 2) == (bench.row().crashes_in_row, bench.row().attempts_spent)

    def test_a_deploy_costs_no_attempt(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        for number in range(1, 4):
            (attempt,) = runner.claim()
            attempt.begin()
            assert SubmissionStatus.QUEUED is attempt.release("deploy")
            bench.reconcile()
            row = bench.row()
            assert (0, number, number) == (row.attempts_spent, row.releases, row.claims)
        (attempt,) = runner.claim()
        assert ResumeMode.FRESH is attempt.resume.mode

    def test_releases_are_given_back_so_often_and_no_more(self, bench: Bench) -> None:
        limits = Limits(releases_max=2, backoff_base_s=1e-6, backoff_max_s=1e-6, capability_backoff_s=1e-6)
        runner = bench.runner(limits=limits)
        bench.submitted(runner)
        for _ in range(4):
            (attempt,) = runner.claim(wait_s=1)
            attempt.release()
            bench.reconcile(limits)
        assert (2, 2) == (bench.row().releases, bench.row().attempts_spent)

    def test_a_capability_that_no_runner_has_ends_in_a_hold(self, bench: Bench) -> None:
        limits = Limits(releases_max=2, backoff_base_s=1e-6, backoff_max_s=1e-6, capability_backoff_s=1e-6)
        runner = bench.runner(limits=limits)
        bench.submitted(runner)
        for _ in range(2):
            (attempt,) = runner.claim(wait_s=1)
            attempt.release("capability_missing")
            bench.reconcile(limits)
        assert ("queued", "releases_exhausted") == (bench.row().status, bench.row().held_reason)

    def test_leaving_the_runner_gives_back_what_it_holds(self, bench: Bench, runner: Runner) -> None:
        with bench.runner(owner="short") as short:
            attempt = bench.claimed(short)
        row = bench.row()
        assert ("queued", 0) == (row.status, row.attempts_spent)
        assert "released" == bench.attempt_row(attempt).end_kind

    # --- parks -------------------------------------------------------------------------------------------------------

    def test_a_park_keeps_the_sessions_place_and_has_an_end(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        bench.submitted(runner, "s", "b")
        assert SubmissionStatus.WAITING is attempt.park("approval")
        row = bench.row()
        assert ("waiting", 0, row.parked_until) == (row.status, row.attempts_spent, row.reconcile_at)
        assert timedelta(days=7) == row.parked_until - row.parked_at
        assert [] == runner.claim(10)
        bench.reconcile()
        assert "waiting" == bench.row().status

    def test_an_answer_makes_it_due_and_approved_calls_are_run(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", "d", id="m")])
        attempt.start("d")
        attempt.append([result("d")])
        attempt.park("approval", pending_calls=["c"])
        assert runner.unpark("s", "a").made
        assert not runner.unpark("s", "a").made
        bench.reconcile()
        (later,) = runner.claim()
        assert ResumeMode.APPROVED is later.resume.mode
        later.begin()
        later.start("c")
        later.append([result("c"), answer()])
        later.settle("completed")
        assert 0 == len([row for row in bench.rows(entries) if row["id"].startswith("tool-marker:")])

    def test_approval_is_used_up_by_the_beginning(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", id="m")])
        attempt.park(pending_calls=["c"])
        runner.unpark("s", "a")
        bench.reconcile()
        (later,) = runner.claim()
        later.begin()
        assert bench.row().pending_calls is None
        bench.crash(later)
        (third,) = runner.claim()
        assert ResumeMode.REPAIR_TOOLS is third.resume.mode
        third.begin()
        assert ["tool-marker:1:m:0"] == [
            row["id"] for row in bench.rows(entries) if row["id"].startswith("tool-marker:")
        ]

    def test_an_answer_before_the_park_is_remembered_and_used_once(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        assert runner.unpark("s", "a").made
        assert SubmissionStatus.QUEUED is attempt.park("callback")
        bench.reconcile()
        (later,) = runner.claim()
        later.begin()
        assert SubmissionStatus.WAITING is later.park("callback")

    def test_a_remembered_answer_survives_a_crash(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        runner.unpark("s", "a")
        bench.crash(attempt)
        (later,) = runner.claim()
        later.begin()
        assert SubmissionStatus.QUEUED is later.park("callback")

    def test_an_answer_to_a_queued_submission_leaves_it_on_its_way(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        assert runner.unpark("s", "a").made
        bench.reconcile()
        (attempt,) = runner.claim()
        attempt.begin()
        assert SubmissionStatus.QUEUED is attempt.park()

    def test_a_park_that_nobody_answers_fails(self, bench: Bench, runner: Runner) -> None:
        bench.begun(runner).park(until_s=3600)
        past = bench.now() - timedelta(seconds=1)
        bench.change(submissions, submissions.c.id == "a", parked_until=past, reconcile_at=past)
        bench.reconcile()
        assert ("failed", "park_expired") == (bench.row().outcome, bench.row().outcome_reason)

    def test_only_calls_that_are_open_and_not_started_wait_for_approval(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("open", "started", "answered")])
        attempt.start("started")
        attempt.append([result("answered")])
        before = bench.everything()
        for call in ("started", "answered", "unknown"):
            with pytest.raises(InvalidInput):
                attempt.park(pending_calls=[call])
        assert before == bench.everything()
        attempt.park(pending_calls=["open"])

    @pytest.mark.parametrize("until_s", [0, -1, float("nan"), float("inf"), 1e12, True, "soon"])
    def test_a_park_without_a_sensible_end_is_refused(self, bench: Bench, runner: Runner, until_s: Any) -> None:
        with pytest.raises(InvalidInput):
            bench.begun(runner).park(until_s=until_s)

    def test_parks_are_given_back_so_often_and_no_more(self, bench: Bench) -> None:
        limits = Limits(parks_max=1)
        runner = bench.runner(limits=limits)
        bench.submitted(runner)
        for _ in range(2):
            (attempt,) = runner.claim()
            attempt.begin()
            runner.unpark("s", "a")
            attempt.park()
            bench.reconcile(limits)
        assert (1, 1) == (bench.row().parks, bench.row().attempts_spent)

    # --- aborts ------------------------------------------------------------------------------------------------------

    def test_the_first_abort_counts_and_changes_no_status(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        assert runner.request_abort("s", "a", "first").made
        stamp = bench.row().abort_requested_at
        assert not runner.request_abort("s", "a", "second").made
        row = bench.row()
        assert (stamp, "first", "running") == (row.abort_requested_at, row.abort_reason, row.status)
        assert Directive.ABORT is attempt.heartbeat()
        assert Directive.ABORT is attempt.directive

    def test_a_queued_submission_is_aborted_by_the_next_pass(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        bench.submitted(runner, "s", "b")
        runner.request_abort("s", "a")
        assert [] == runner.claim()
        bench.reconcile()
        assert ("aborted", "abort_requested") == (bench.row().outcome, bench.row().outcome_reason)
        (later,) = runner.claim()
        later.begin()

    def test_an_abort_reaches_work_whose_owner_is_gone(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        bench.change(attempts, attempts.c.attempt_id == attempt.attempt_id, lease_expires_at=attempts.c.claimed_at)
        bench.change(submissions, submissions.c.id == "a", reconcile_at=bench.row().reconcile_at + timedelta(days=1))
        runner.request_abort("s", "a")
        bench.reconcile()
        assert "aborted" == bench.row().outcome

    def test_an_abort_survives_recovery(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        runner.request_abort("s", "a")
        bench.crash(attempt)
        assert "aborted" == bench.row().outcome

    def test_an_abort_reaches_what_is_parked(self, bench: Bench, runner: Runner) -> None:
        bench.begun(runner).park()
        runner.request_abort("s", "a")
        bench.reconcile()
        assert "aborted" == bench.row().outcome

    def test_an_abort_loses_against_an_answer_on_record(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        attempt.append([answer()])
        runner.request_abort("s", "a")
        bench.crash(attempt)
        assert "completed" == bench.row().outcome

    def test_an_abort_of_a_settled_submission_answers_with_its_outcome(self, bench: Bench, runner: Runner) -> None:
        bench.begun(runner).settle("failed")
        before = bench.everything()
        requested = runner.request_abort("s", "a")
        assert (False, Outcome.FAILED) == (requested.made, requested.outcome)
        assert before == bench.everything()

    def test_unknown_ids_are_named(self, runner: Runner) -> None:
        for act in (runner.request_abort, runner.unpark, runner.acknowledge):
            with pytest.raises(NotFound, match="s/nobody"):
                act("s", "nobody")

    # --- beats -------------------------------------------------------------------------------------------------------

    def test_a_beat_renews_many_leases_in_one_call(self, bench: Bench, runner: Runner) -> None:
        for name in "abc":
            bench.submitted(runner, name, name)
        held = runner.claim(3)
        before = {attempt.attempt_id: bench.attempt_row(attempt).lease_expires_at for attempt in held}
        assert {attempt.attempt_id: Directive.CONTINUE for attempt in held} == runner.heartbeat(held)
        for attempt in held:
            assert bench.attempt_row(attempt).lease_expires_at > before[attempt.attempt_id]

    def test_a_beat_revives_an_ended_lease_while_the_attempt_is_current(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        bench.expire(attempt)
        assert Directive.CONTINUE is attempt.heartbeat()
        bench.reconcile()
        assert "running" == bench.row().status
        attempt.append([answer()])

    def test_a_write_behind_an_ended_lease_beats_first(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        bench.expire(attempt)
        attempt.append([answer()])
        bench.expire(attempt)
        assert Outcome.COMPLETED is attempt.settle("completed").outcome

    def test_a_beat_tells_which_attempts_are_lost(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner, "s", "a")
        bench.submitted(runner, "t", "b")
        lost, kept = runner.claim(2)
        bench.crash(lost)
        assert {lost.attempt_id: Directive.LOST, kept.attempt_id: Directive.CONTINUE} == runner.heartbeat([lost, kept])
        assert lost.lost.is_set()
        assert not kept.lost.is_set()

    def test_a_lost_attempt_stays_lost(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        bench.crash(attempt)
        assert Directive.LOST is attempt.heartbeat()
        (later,) = runner.claim()
        assert Directive.LOST is attempt.heartbeat()
        assert Directive.CONTINUE is later.heartbeat()

    def test_a_beat_writes_the_lease_and_nothing_else(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        before = bench.everything()
        attempt.heartbeat()
        after = bench.everything()
        beaten = {"beat_at", "lease_expires_at"}
        changed = {
            name
            for old, new in zip(before.pop("attempts"), after.pop("attempts"), strict=True)
            for name in old
            if old[name] != new[name]
        }
        assert beaten == changed
        assert before == after

    def test_a_deadline_and_a_stall_are_told(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner, deadline_s=1000)
        mine = submissions.c.id == "a"
        bench.change(submissions, mine, deadline_at=bench.row().admitted_at)
        assert Directive.DEADLINE is attempt.heartbeat()
        bench.change(submissions, mine, deadline_at=None)
        bench.change(
            attempts,
            attempts.c.attempt_id == attempt.attempt_id,
            claimed_at=bench.row().admitted_at - timedelta(hours=3),
        )
        assert Directive.STALLED is attempt.heartbeat()

    def test_an_abandoned_attempt_is_left_to_its_lease(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        before = bench.everything()
        attempt.abandon()
        attempt.abandon()
        assert before == bench.everything()
        # Nothing beats for it any more, and closing the runner does not give it back.
        assert [] == runner._beater.kept()
        runner.close()
        assert SubmissionStatus.RUNNING == bench.row().status
        bench.crash(attempt)
        assert (SubmissionStatus.QUEUED, 1) == (bench.row().status, bench.row().crashes_in_row)

    # --- the fence ---------------------------------------------------------------------------------------------------

    def test_no_write_method_is_forgotten(self) -> None:
        assert public_verbs(Attempt) - READS == frozenset(WRITES)

    @pytest.mark.parametrize("verb", sorted(WRITES))
    @pytest.mark.parametrize("how", sorted(FENCED))
    def test_an_old_fence_writes_nothing(self, bench: Bench, runner: Runner, verb: str, how: str) -> None:
        attempt = bench.claimed(runner) if verb == "begin" else bench.begun(runner)
        if verb == "start":
            attempt.append([asks("call")])
        _with_sub_turn(attempt)
        FENCED[how](bench, attempt)
        before = bench.everything()
        with pytest.raises(AttemptLost) as refused:
            WRITES[verb](attempt)
        assert bench.row().outcome == refused.value.outcome
        assert before == bench.everything()
        assert attempt.lost.is_set()

    @pytest.mark.parametrize("verb", sorted(set(WRITES) - {"begin"}))
    @pytest.mark.parametrize("end", ENDS)
    def test_nothing_is_written_behind_an_attempts_own_end(
        self, bench: Bench, runner: Runner, verb: str, end: str
    ) -> None:
        attempt = bench.begun(runner)
        _with_sub_turn(attempt)
        WRITES[end](attempt)
        before = bench.everything()
        if verb == end:
            WRITES[verb](attempt)
        else:
            with pytest.raises(AttemptLost):
                WRITES[verb](attempt)
        assert before == bench.everything()

    @pytest.mark.parametrize("verb", sorted(WRITES))
    def test_an_owners_name_is_no_fence(self, bench: Bench, verb: str) -> None:
        mine = bench.runner(owner="same")
        attempt = bench.claimed(mine) if verb == "begin" else bench.begun(mine)
        if verb == "start":
            attempt.append([asks("call")])
        _with_sub_turn(attempt)
        bench.crash(attempt)
        bench.runner(owner="same").claim()
        with pytest.raises(AttemptLost):
            WRITES[verb](attempt)

    def test_attempt_ids_and_numbers_never_restart(self, bench: Bench, runner: Runner) -> None:
        bench.submitted(runner)
        seen = []
        for end in ("release", "fail", "crash"):
            (attempt,) = runner.claim(wait_s=1)
            seen.append((attempt.number, attempt.attempt_id))
            attempt.begin()
            if end == "crash":
                bench.crash(attempt)
            else:
                WRITES[end](attempt)
                bench.reconcile()
        assert [1, 2, 3] == [number for number, _ in seen]
        assert 3 == len({attempt_id for _, attempt_id in seen})

    # --- lost answers ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("verb", sorted(WRITES))
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_lost_answer_changes_nothing(self, bench: Bench, runner: Runner, verb: str, times: int) -> None:
        calls = dict(WRITES)
        calls["append"] = lambda attempt: attempt.append([answer("made id")])
        calls["report_sub_turn"] = lambda attempt: attempt.report_sub_turn(3)
        if verb == "report_sub_turn":
            attempt = self._with_real_sub_turn(bench, runner)
        else:
            attempt = bench.claimed(runner) if verb == "begin" else bench.begun(runner)
        if verb == "start":
            attempt.append([asks("call")])
        before = bench.row()
        with bench.lost_answer(times) as lost:
            first = calls[verb](attempt)
        assert times == lost()
        after = bench.everything()
        if verb not in ("append",):
            assert first == calls[verb](attempt)
            assert after == bench.everything()
        assert 1 >= bench.row().attempts_begun - before.attempts_begun
        assert 1 >= bench.row().decision_count - before.decision_count

    def _with_real_sub_turn(self, bench: Bench, runner: Runner) -> Attempt:
        attempt = bench.begun(runner)
        attempt.append(
            [
                NewEntry(
                    "assistant",
                    {"text": "the quarterly revenue figures of project/alpha are still missing here"},
                    stop_reason="aborted",
                )
            ]
        )
        bench.crash(attempt)
        (later,) = runner.claim()
        assert later.resume.sub_turn is not None
        later.begin()
        return later

    def test_a_lost_answer_of_a_claim_leaves_nothing_unclaimed(self, bench: Bench, runner: Runner) -> None:
        for name in "abc":
            bench.submitted(runner, name, name)
        with bench.lost_answer():
            claimed = runner.claim(2)
        assert ["a", "b"] == [attempt.session_id for attempt in claimed]
        assert ["c"] == [attempt.session_id for attempt in runner.claim(2)]
        assert {"text": "please do a"} == claimed[0].payload

    def test_lost_answers_of_requests_say_who_made_them(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        with bench.lost_answer():
            assert runner.unpark("s", "a").made
        with bench.lost_answer():
            assert runner.request_abort("s", "a").made
        assert not runner.request_abort("s", "a").made
        assert attempt.attempt_id == bench.row().current_attempt_id

    def test_a_lost_answer_of_a_submission_admits_it_once(self, bench: Bench, runner: Runner) -> None:
        with bench.lost_answer():
            runner.submit("s", "a", {})
        assert 1 == len(bench.rows(submissions))

    # --- sub-turns ----------------------------------------------------------------------------------------------------

    def test_a_second_retrieval_is_paid_at_the_beginning_and_reported_once(self, bench: Bench, runner: Runner) -> None:
        attempt = self._with_real_sub_turn(bench, runner)
        assert 1 == bench.row().sub_turns_spent
        assert "attempted_added" == attempt.report_sub_turn(4).outcome
        assert 4 == attempt.report_sub_turn(4).added_fact_count
        with pytest.raises(Conflict):
            attempt.report_sub_turn(5)
        assert 4 == bench.row().sub_turn_facts

    def test_a_crash_loop_buys_no_second_retrieval(self, bench: Bench, runner: Runner) -> None:
        bench.crash(self._with_real_sub_turn(bench, runner))
        (third,) = runner.claim()
        assert third.resume.sub_turn is not None
        assert "budget_exhausted" == third.resume.sub_turn.outcome
        third.begin()
        assert 1 == bench.row().sub_turns_spent
        with pytest.raises(Conflict):
            third.report_sub_turn(1)

    @pytest.mark.parametrize("count", [-1, True, 1.5, None])
    def test_a_count_of_facts_that_is_none_is_refused(self, bench: Bench, runner: Runner, count: Any) -> None:
        with pytest.raises(InvalidInput):
            self._with_real_sub_turn(bench, runner).report_sub_turn(count)

    # --- paths -------------------------------------------------------------------------------------------------------

    def test_a_valid_path_answers_every_call_once_and_the_raw_one_is_as_stored(
        self, bench: Bench, runner: Runner
    ) -> None:
        attempt = bench.begun(runner)
        attempt.append([asks("c", "d", id="m"), result("d", id="rd"), result("d", id="again"), result("zzz", id="z")])
        valid, raw = attempt.path(), attempt.path(valid=False)
        assert ["submission-input:a", "m", "rd", "again", "z"] == _ids(raw)
        assert ["c"] == [added.tool_call_id for added in valid.added]
        assert {"again", "z"} == set(valid.left_out)
        assert valid == attempt.path()

    # --- outcomes nobody heard ---------------------------------------------------------------------------------------

    def test_outcomes_decided_in_absence_are_listed_until_noted(self, bench: Bench, runner: Runner) -> None:
        for name in "ab":
            attempt = bench.begun(runner, name, name)
            attempt.append([answer()])
            bench.crash(attempt)
        own = bench.begun(runner, "c", "c")
        own.settle("failed")
        assert ["a", "b"] == [settled.submission_id for settled in runner.unacknowledged()]
        assert ["a"] == [settled.submission_id for settled in runner.unacknowledged(1)]
        assert runner.acknowledge("a", "a")
        assert not runner.acknowledge("a", "a")
        assert ["b"] == [settled.submission_id for settled in runner.unacknowledged()]

    def test_listing_writes_nothing(self, bench: Bench, runner: Runner) -> None:
        attempt = bench.begun(runner)
        before = bench.everything()
        runner.unacknowledged()
        attempt.path()
        attempt.path(valid=False)
        runner.claim()
        assert before == bench.everything()


__all__ = ["ENDS", "FENCED", "QUICK_LIMITS", "READS", "WRITES", "RunnerContract", "public_verbs"]
