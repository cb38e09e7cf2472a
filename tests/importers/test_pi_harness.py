"""pi's harness files of version 4, write by write, and its SQLite backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reconciler.importers.base import ImportResult
from tests.support.foreign_stores import PiSqlite, read_database
from tests.support.foreign_stores import session_of as session_of_database
from tests.support.session_files import read, session_of
from tests.support.verdicts import chain, dispatch, verdict


class Harness:
    """Transactions of a session."""

    def __init__(self) -> None:
        self.lines: list[object] = [
            {"v": 4, "kind": "header", "id": "pi-4", "storageVersion": 1, "createdAt": 1, "cwd": "/srv"}
        ]
        self.seq = 0

    def commit(self, *writes: dict[str, Any]) -> Harness:
        made = []
        for write in writes:
            self.seq += 1
            made.append({**write, "seq": self.seq})
        self.lines.append(made if len(made) > 1 else made[0])
        return self

    def run(self, operation: str, prompt: str, parent: str | None = None) -> Harness:
        """A prompt is placed, and its operation begins."""
        meta = {"operationId": operation, "intent": {"kind": "run", "promptEntryIds": [prompt]}}
        return self.commit(
            message(prompt, parent, {"role": "user", "content": "do it"}),
            value("pi.branch.tip", "main", prompt),
            value("pi.op.meta", operation, meta),
            value("pi.lane.state", "main", {"currentOperationId": operation, "lastOperationId": None, "inbox": []}),
            value("pi.op.state", operation, {"at": "starting"}),
        )

    def answer(self, entry_id: str, parent: str, *calls: str, stop: str = "stop") -> Harness:
        content: list[dict[str, Any]] = [{"type": "text", "text": "working"}]
        content += [{"type": "toolCall", "id": call, "name": "bash", "arguments": {}} for call in calls]
        said = {"role": "assistant", "content": content, "stopReason": stop}
        return self.commit(message(entry_id, parent, said), value("pi.branch.tip", "main", entry_id))

    def tools(self, operation: str, message_id: str, *statuses: str) -> Harness:
        """Say what the calls of a message are at; the first stands behind a text."""
        calls = [
            {"sourceIndex": at + 1, "resultEntryId": f"r{at + 1}", "status": status}
            for at, status in enumerate(statuses)
        ]
        state = {"at": "tools", "batch": {"assistantEntryId": message_id, "calls": calls}}
        return self.commit(value("pi.op.state", operation, state))

    def ready(self, result_id: str, call: str) -> Harness:
        return self.commit(value("pi.pending.entry", result_id, {"type": "message", "payload": tool_result(call)}))

    def read(self) -> ImportResult:
        return read("pi-harness", self.lines)


def message(entry_id: str, parent: str | None, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    entry = {"kind": "entry", "id": entry_id, "parentId": parent, "timestamp": 1_796_044_290_000, "type": "message"}
    return {**entry, "message": body, **more}


def value(namespace: str, key: str, content: object) -> dict[str, Any]:
    return {"kind": "value", "op": "set", "namespace": namespace, "key": key, "value": content}


def tool_result(call: str) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": call, "content": [], "isError": False}


def test_an_operation_is_a_submission_and_its_result_settles_it() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1")
    harness.commit(value("pi.result", "op1", {"kind": "run", "status": "completed", "tipId": "a1"}))
    session = session_of(harness.read())
    assert ("pi-4", ["u1", "a1"]) == (session.session_id, chain(session))
    assert ("completed", "settled_entry") == verdict(session, "op1")
    assert {True} == {imported.write_ahead for imported in session.entries}


@pytest.mark.parametrize(("status", "settles"), [("failed", True), ("aborted", True), ("declined", True), ("?", False)])
def test_every_known_result_settles(status: str, settles: bool) -> None:
    harness = Harness().run("op1", "u1")
    result = harness.commit(value("pi.result", "op1", {"kind": "run", "status": status, "tipId": "u1"})).read()
    assert (("completed", "settled_entry") if settles else ("uncertain", "input_only")) == verdict(session_of(result))
    assert settles == (result.problem_count == 0)


def test_calls_are_told_apart_by_what_they_are_at() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1", "c1", "c2", "c3", stop="toolUse")
    harness.ready("r2", "c2").tools("op1", "a1", "effect_pending", "outcome_ready", "planned")
    session = session_of(harness.read())
    assert ("continuable", "tool_batch_partial") == verdict(session)
    assert {"c1": "started", "c3": "not_started"} == dispatch(session)


def test_a_ready_result_keeps_its_id_when_it_is_placed() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1", "c1", stop="toolUse").ready("r1", "c1")
    harness.tools("op1", "a1", "outcome_ready")
    assert "r1" == session_of(harness.read()).leaf_entry_id
    harness.commit(message("r1", "a1", tool_result("c1")), value("pi.branch.tip", "main", "r1"))
    session = session_of(harness.tools("op1", "a1", "completed").read())
    assert ["u1", "a1", "r1"] == chain(session)
    assert ("continuable", "tool_results_ready") == verdict(session)


def test_words_of_a_response_that_is_no_entry_yet_are_kept() -> None:
    harness = Harness().run("op1", "u1")
    frame = {"kind": "list", "op": "append", "namespace": "pi.pending.assistant_frame", "key": "op1:a1"}
    harness.commit({**frame, "value": {"type": "text_delta", "delta": "half of"}})
    harness.commit(value("pi.op.state", "op1", {"at": "assistant.effect_pending", "responseEntryId": "a1"}))
    assert ("continuable", "response_aborted") == verdict(session_of(harness.read()))
    harness.commit({**frame, "op": "delete"}).answer("a1", "u1")
    assert ["u1", "a1"] == chain(session_of(harness.read()))


def test_a_steering_text_belongs_to_the_operation_and_a_later_prompt_to_its_own() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1", "c1", stop="toolUse")
    harness.commit(message("r1", "a1", tool_result("c1")), message("u2", "r1", {"role": "user", "content": "no, that"}))
    harness.answer("a2", "u2")
    assert ["op1"] == [submission.submission_id for submission in session_of(harness.read()).submissions]
    harness.commit(value("pi.result", "op1", {"kind": "run", "status": "completed", "tipId": "a2"}))
    harness.run("op2", "u3", "a2")
    session = session_of(harness.read())
    assert ["op1", "op2"] == [submission.submission_id for submission in session.submissions]
    assert ("uncertain", "input_only") == verdict(session)


def test_what_was_accepted_and_is_not_placed_is_queued() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1")
    payload = {"type": "message", "payload": {"role": "user", "content": "next"}}
    session = session_of(harness.commit(value("pi.pending.entry", "u2", payload)).read())
    assert [("op1", "prompt"), ("u2", "queued")] == [(s.submission_id, s.kind) for s in session.submissions]


def test_the_tip_is_where_the_session_stands() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1").run("op2", "u2", "a1")
    session = session_of(harness.commit(value("pi.branch.tip", "main", "a1")).read())
    assert ("a1", "op1") == (session.leaf_entry_id, next(s.submission_id for s in session.submissions if s.is_pending))
    emptied = session_of(harness.commit(value("pi.branch.tip", "main", None)).read())
    assert (None, True) == (emptied.leaf_entry_id, emptied.leaf_known_empty)


def test_a_deferred_answer_is_waited_for() -> None:
    harness = Harness().run("op1", "u1").commit(value("pi.op.state", "op1", {"at": "deferred.suspended"}))
    assert "an answer that was deferred" == session_of(harness.read()).waits_for


def test_a_result_that_ends_the_loop() -> None:
    harness = Harness().run("op1", "u1").answer("a1", "u1", "c1", stop="toolUse")
    harness.commit(message("r1", "a1", tool_result("c1"), terminate=True), value("pi.branch.tip", "main", "r1"))
    assert ("completed", "turn_ended_by_tool") == verdict(session_of(harness.read()))


def test_a_transaction_without_its_end_never_was() -> None:
    harness = Harness().run("op1", "u1")
    whole = read("pi-harness", harness.lines)
    torn = read("pi-harness", [*harness.lines, b'{"kind":"entry","id":"a1","parentId":"u1","type":"message","seq":9}'])
    assert whole.sessions == torn.sessions
    assert (["torn_line"], whole.bytes_read) == ([problem.code for problem in torn.problems], torn.bytes_read)


def test_another_storage_version_is_said() -> None:
    result = read("pi-harness", [{"v": 4, "kind": "header", "id": "x", "storageVersion": 9}])
    assert ["unknown_version"] == [problem.code for problem in result.problems]


@pytest.mark.parametrize(
    "line", [7, [[]], [1, {"kind": "entry"}], {"kind": "entry", "id": 5}, {"kind": "value"}, b"\xff\n"]
)
def test_whatever_stands_in_a_line_it_never_raises(line: object) -> None:
    read("pi-harness", [*Harness().run("op1", "u1").lines, line])


def test_the_sqlite_backend_reads_as_the_older_lines_do(tmp_path: Path) -> None:
    store = PiSqlite(tmp_path / "pi.db").entry("u1", None, {"role": "user", "content": "do it"})
    calls = [{"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}]
    store.entry("a1", "u1", {"role": "assistant", "content": calls, "stopReason": "toolUse"})
    session = session_of_database(store.name, "pi-sqlite")
    assert ("pi-1", ["u1", "a1"]) == (session.session_id, chain(session))
    assert ("continuable", "tool_calls_unresolved") == verdict(session)
    store.run("UPDATE sessions SET active_leaf_id = 'u1'")
    assert ("uncertain", "input_only") == verdict(session_of_database(store.name, "pi-sqlite"))
    (result,) = read_database(store.name, "pi-sqlite")
    assert ("pi-sqlite", 0) == (result.format, result.problem_count)
