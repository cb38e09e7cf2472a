"""Codex rollouts, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.importers.base import ImportResult
from tests.support.session_files import read, session_of
from tests.support.verdicts import chain, dispatch, inspected, verdict

THREAD = "01a22c93-9acb-7e73-b359-7a0b228ebd2e"
NAME = f"rollout-2026-11-30T13-10-00-{THREAD}"


class Rollout:
    """Lines of a rollout, of the paginated or of the older history."""

    def __init__(self, *, version: str = "0.171.0", ordinals: bool = True) -> None:
        self.lines: list[object] = []
        self.ordinals = ordinals
        self.version = version
        self.meta()

    def add(self, kind: str, payload: dict[str, Any]) -> Rollout:
        line: dict[str, Any] = {"timestamp": "2026-11-30T13:10:00.686Z", "type": kind, "payload": payload}
        if self.ordinals:
            line["ordinal"] = len(self.lines)
        self.lines.append(line)
        return self

    def meta(self, thread: str = THREAD, **more: Any) -> Rollout:
        return self.add("session_meta", {"id": thread, "cli_version": self.version, **more})

    def event(self, kind: str, **payload: Any) -> Rollout:
        return self.add("event_msg", {"type": kind, **payload})

    def item(self, kind: str, **payload: Any) -> Rollout:
        return self.add("response_item", {"type": kind, **payload})

    def begin(self, turn: str) -> Rollout:
        return self.event("task_started", turn_id=turn)

    def user(self, text: str, turn: str | None = None, *, confirmed: bool = True) -> Rollout:
        """A person's prompt: the item, and the event that says it again."""
        more: dict[str, Any] = {}
        if turn is not None:
            origin = [{"provenance": {"type": "user"}}]
            more = {"internal_chat_message_metadata_passthrough": {"turn_id": turn, "content_item_metadata": origin}}
        self.item("message", role="user", content=[{"type": "input_text", "text": text}], **more)
        if confirmed and turn is not None:
            said = {"type": "UserMessage", "id": "x", "content": [{"type": "text", "text": text}]}
            self.event("item_completed", turn_id=turn, item=said)
        elif confirmed:
            self.event("user_message", message=text)
        return self

    def context(self, text: str = "<environment_context>\n</environment_context>") -> Rollout:
        return self.item("message", role="user", content=[{"type": "input_text", "text": text}])

    def says(self, text: str, phase: str | None = "final_answer") -> Rollout:
        self.event("agent_message", message=text)
        return self.item("message", role="assistant", phase=phase, content=[{"type": "output_text", "text": text}])

    def call(self, call: str) -> Rollout:
        return self.item("function_call", name="exec_command", arguments="{}", call_id=call)

    def output(self, call: str) -> Rollout:
        return self.item("function_call_output", call_id=call, output="ok")

    def ran(self, call: str) -> Rollout:
        return self.event("item_completed", item={"type": "CommandExecution", "id": call, "exit_code": 0})

    def over(self, last: str | None = "done", **more: Any) -> Rollout:
        return self.event("task_complete", last_agent_message=last, **more)

    def read(self) -> ImportResult:
        return read("codex", self.lines, stem=NAME)


def test_a_turn_is_a_submission_and_its_two_records_are_one_entry_each() -> None:
    rollout = Rollout().begin("t1").context().user("do it", "t1").says("looking", "commentary").call("c1").ran("c1")
    result = rollout.output("c1").says("done").over().read()
    session = session_of(result)
    assert (THREAD, "codex", "0.171.0") == (session.session_id, result.format, result.format_version)
    assert ("completed", "response_finished") == verdict(session, "t1")
    roles = [imported.entry.role or imported.entry.kind for imported in session.entries]
    assert ["user", "user", "assistant", "assistant", "tool_started", "tool_result", "assistant"] == roles
    assert [True, False] == [imported.entry.is_synthetic for imported in session.entries[:2]]
    assert {True} == {imported.write_ahead for imported in session.entries}
    assert (0, {}) == (result.problem_count, dict(result.unknown))


def test_commentary_is_no_answer() -> None:
    session = session_of(Rollout().begin("t1").user("do it", "t1").says("looking", "commentary").read())
    assert ("continuable", "response_cut") == verdict(session)


def test_a_text_without_a_phase_is_an_answer_that_may_still_grow() -> None:
    session = session_of(Rollout(version="0.60.0").begin("t1").user("do it", "t1").says("done", None).read())
    assert ("completed", "response_finished", True) == (*verdict(session), session.response_may_grow)


def test_the_end_of_the_task_ends_a_text_without_a_phase() -> None:
    session = session_of(Rollout().begin("t1").user("do it", "t1").says("done", None).over().read())
    assert ("stop", False) == (session.entries[-1].entry.stop_reason, session.response_may_grow)


def test_an_open_call_that_ended_is_known_to_have_started() -> None:
    rollout = Rollout().begin("t1").user("do it", "t1").call("c1").call("c2").call("c3").ran("c3").ran("c1")
    session = session_of(rollout.output("c1").read())
    assert ("continuable", "tool_batch_partial") == verdict(session)
    assert {"c2": "unknown", "c3": "started"} == dispatch(session)


def test_a_failed_task_keeps_its_state_and_its_error() -> None:
    error = {"message": '{"error": {"type": "invalid_request_error"}}', "codex_error_info": "other"}
    rollout = Rollout().begin("t1").user("do it", "t1").call("c1").output("c1").over(None, error=error)
    session = session_of(rollout.read())
    assert ("continuable", "tool_results_ready") == verdict(session)
    last = session.entries[-1].entry
    assert ("error", "none", False) == (last.stop_reason, last.content, last.error_retryable)


def test_a_task_that_is_over_without_any_answer_failed() -> None:
    session = session_of(Rollout(version="0.60.0").begin("t1").user("do it", "t1").over(None).read())
    assert "error" == session.entries[-1].entry.stop_reason
    assert ("uncertain", "input_only") == verdict(session)


def test_an_interruption_is_the_persons_and_another_reason_is_not() -> None:
    for reason, by in (("interrupted", "user"), ("replaced", None)):
        rollout = Rollout().begin("t1").user("do it", "t1").call("c1").output("c1")
        rollout.context("<turn_aborted>\nThe user interrupted.").event("turn_aborted", turn_id="t1", reason=reason)
        assert by == inspected(session_of(rollout.read())).stopped_by


def test_a_text_sent_into_a_running_turn_belongs_to_it() -> None:
    rollout = Rollout().begin("t1").user("do it", "t1").call("c1").output("c1").user("no, that", "t1")
    session = session_of(rollout.says("done").read())
    assert ["t1"] == [submission.submission_id for submission in session.submissions]
    assert ("completed", "response_finished") == verdict(session, "t1")


def test_a_crashed_turn_stays_open_and_the_next_one_moves_on() -> None:
    rollout = Rollout().begin("t1").user("do it", "t1").call("c1").meta().begin("t2").user("again", "t2").says("done")
    session = session_of(rollout.read())
    assert ("completed", "moved_on") == verdict(session, "t1")
    assert ("completed", "response_finished") == verdict(session, "t2")


def test_roll_backs_take_the_newest_prompts_off_the_path() -> None:
    rollout = Rollout().begin("t1").user("one", "t1").says("1").begin("t2").user("two", "t2").says("2")
    rollout.begin("t3").user("three", "t3").says("3").event("thread_rolled_back", num_turns=2)
    session = session_of(rollout.read())
    assert ("completed", "response_finished") == verdict(session)
    kept = {imported.entry.submission_id for imported in session.entries if imported.entry.id in chain(session)}
    assert {"t1"} == kept
    again = rollout.begin("t4").user("four", "t4").says("4")
    assert ("completed", "response_finished") == verdict(session_of(again.read()), "t4")
    # Its answer stands on a branch that was left.
    assert ("completed", "answered_off_path") == verdict(session_of(again.read()), "t2")


def test_rolling_back_more_than_there_is_goes_to_the_beginning_and_is_said() -> None:
    result = Rollout().begin("t1").user("one", "t1").says("1").event("thread_rolled_back", num_turns=5).read()
    assert ["rolled_back_too_far"] == [problem.code for problem in result.problems]
    assert None is next(
        i.entry.parent_id for i in session_of(result).entries if i.entry.id == session_of(result).leaf_entry_id
    )


def test_older_files_name_no_provenance_and_their_context_is_known_by_its_beginning() -> None:
    rollout = Rollout(version="0.140.0", ordinals=False)
    rollout.begin("t1").context("# AGENTS.md instructions for /srv\n").add("turn_context", {"turn_id": "t1"})
    session = session_of(rollout.user("do it").call("c1").read())
    assert ["t1"] == [submission.submission_id for submission in session.submissions]
    assert ("continuable", "tool_calls_unresolved") == verdict(session)
    assert {None} == {imported.write_ahead for imported in session.entries}
    assert all(imported.entry.id.startswith("line:") for imported in session.entries)


@pytest.mark.parametrize("first", ["item", "event"])
def test_an_event_without_its_item_is_the_prompt_and_the_item_that_follows_says_it_again(first: str) -> None:
    rollout = Rollout().begin("t1")
    if first == "event":
        rollout.event("user_message", message="do it").user("do it", "t1", confirmed=False)
    else:
        rollout.user("do it", "t1", confirmed=False).event("user_message", message="do it")
    session = session_of(rollout.says("done").read())
    assert 1 == sum(imported.entry.role == "user" for imported in session.entries)
    assert ("completed", "response_finished") == verdict(session)


def test_the_first_rollouts_are_flat_and_each_prompt_begins_a_turn() -> None:
    lines: list[object] = [
        {"id": THREAD, "timestamp": "2025-05-01T00:00:00Z", "instructions": None, "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "1"}]},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]},
        {"type": "local_shell_call", "call_id": "c1", "status": "completed", "action": {}},
    ]
    result = read("codex", lines, stem=NAME)
    session = session_of(result)
    assert (THREAD, "flat") == (session.session_id, result.format_version)
    assert ("completed", "moved_on") == verdict(session, "line:3")
    assert ("continuable", "tool_calls_unresolved") == verdict(session, "line:6")


def test_a_sub_agents_thread_has_signals_for_prompts() -> None:
    rollout = Rollout()
    rollout.lines.clear()
    rollout.meta(source={"subagent": "review"}).begin("t1").user("look", "t1").says("ok")
    (submission,) = session_of(rollout.read()).submissions
    assert "signal" == submission.kind


def test_a_fork_is_named_by_its_file() -> None:
    result = Rollout().meta("22222222-9acb-7e73-b359-7a0b228ebd2e").begin("t1").user("x", "t1").read()
    assert THREAD == session_of(result).session_id
    assert ["several_session_ids"] == [problem.code for problem in result.problems]


def test_what_nobody_knows_is_kept_and_counted() -> None:
    rollout = Rollout().begin("t1").user("x", "t1").item("hologram_call", shape="cat").event("gravity_changed", g=3)
    result = rollout.add("dream", {"of": "sheep"}).says("done").read()
    assert {"response_item:hologram_call": 1, "event_msg:gravity_changed": 1, "dream": 1} == dict(result.unknown)
    assert ("completed", "response_finished") == verdict(session_of(result))


def test_a_growing_file_only_adds() -> None:
    rollout = Rollout().begin("t1").user("do it", "t1").call("c1").output("c1").says("done").over()
    lines = rollout.lines
    whole = {i.entry.id: i.entry for i in session_of(rollout.read()).entries}
    for end in range(4, len(lines)):
        part = session_of(read("codex", lines[:end], stem=NAME))
        assert all(whole[i.entry.id] == i.entry for i in part.entries)


def test_a_lost_line_leaves_the_next_call_in_doubt() -> None:
    rollout = Rollout().begin("t1").user("do it", "t1")
    rollout.lines.append(b"{oops}\n")
    session = session_of(rollout.read())
    assert None is session.entries[-1].write_ahead
