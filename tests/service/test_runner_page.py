"""The page for runners in other languages: each statement is run, by a runner that knows nothing but the page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from reconciler.core.canonical import canonical_json, content_digest
from reconciler.core.states import Directive
from reconciler.core.subturn import MARKER_TEXT_NOT_STARTED, MARKER_TEXT_UNKNOWN
from reconciler.errors import AttemptLost, SchemaMismatch
from reconciler.service.liveness import this_process
from reconciler.service.runner import Runner
from reconciler.testing.bench import Bench, answer, asks
from tests.support.checker import check, report

PAGE = Path(__file__).parents[2] / "docs" / "runners.md"


def statements() -> dict[str, str]:
    """Return the page's statements by name."""
    found: dict[str, str] = {}
    for block in re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S):
        name = re.match(r"-- ([a-z.0-9]+)", block)
        assert name is not None, block
        assert name[1] not in found, name[1]
        found[name[1]] = block
    return found


class Lost(Exception):
    """The fence said no."""


class PageRunner:
    """A runner made of the page's statements."""

    def __init__(self, url: str) -> None:
        import psycopg
        from psycopg.rows import dict_row

        self.conn = psycopg.connect(url, options="-c search_path=reconciler", row_factory=dict_row)
        self.statements = statements()
        self.used: set[str] = set()
        self.keys: dict[str, Any] = {"owner": "page"}

    def run(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run one statement."""
        self.used.add(name)
        # A cast that the page writes is no parameter.
        text = re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", self.statements[name].replace("%", "%%"))
        cursor = self.conn.execute(text.encode(), {**self.keys, **parameters})
        return cursor.fetchall() if cursor.description else []

    def submit(self, session: str, submission: str, payload: object) -> dict[str, Any] | None:
        keys = {"session": session, "submission": submission}
        content = {
            "payload": payload,
            "entity_hints": [],
            "fact_count": 0,
            "deadline_s": None,
            "limits": {},
            "kind": "prompt",
        }
        keys["digest"] = content_digest(content)
        with self.conn.transaction():
            self.run("submit.1", **keys)
            ((session_row,),) = [self.run("submit.2", **keys)]
            assert "native" == session_row["origin"]
            if known := self.run("submit.3", **keys):
                assert known[0]["content_digest"] == keys["digest"]
                return known[0]
            for step in (4, 5, 6, 7):
                self.run(f"submit.{step}", **keys, payload=canonical_json(payload))
        return None

    def claim(self) -> dict[str, Any] | None:
        keys = {"claim_key": uuid4().hex, "attempt": uuid4().hex}
        with self.conn.transaction():
            assert [] == self.run("claim.0", **keys)
            found = self.run("claim.1")
            if not found:
                return None
            keys |= {"session": found[0]["session_id"], "submission": found[0]["id"]}
            (claimed,) = self.run("claim.2", **keys)
        with self.conn.transaction():
            assert 1 == len(self.run("claim.0", **keys))
        self.keys |= keys
        return claimed

    def beat(self) -> dict[str, Any]:
        with self.conn.transaction():
            (told,) = self.run("beat")
        return told

    def fence(self) -> dict[str, Any]:
        (row,) = self.run("fence.1")
        (asked,) = self.run("fence.2")
        if not (asked["is_current"] and asked["is_live"]):
            raise Lost(asked)
        return {**row, **asked}

    def begin(self, *, redispatches: int = 0, sub_turns: int = 0) -> None:
        with self.conn.transaction():
            if self.fence()["begun_at"] is not None:
                return
            path = self.run("path")
            self.close_calls(path)
            if f"submission-input:{self.keys['submission']}" not in [entry["id"] for entry in path]:
                self.run("begin.1")
                self.run("begin.2", entry=f"submission-input:{self.keys['submission']}")
            for step in (3, 4):
                self.run(f"begin.{step}", redispatches=redispatches, sub_turns=sub_turns)

    def close_calls(self, path: list[dict[str, Any]]) -> None:
        calls: list[tuple[str, int, str, bool]] = []
        started: set[str] = set()
        for entry in path:
            for position, call in enumerate(json.loads(entry["tool_call_ids"] or "[]")):
                calls.append((entry["id"], position, call, entry["starts_logged"]))
            if entry["role"] == "tool_result":
                last = [item for item in calls if item[2] == entry["tool_call_id"]]
                if last:
                    calls.remove(last[-1])
            if entry["kind"] == "tool_started":
                started.add(entry["tool_call_id"])
        for entry_id, position, call, logged in calls:
            text = MARKER_TEXT_NOT_STARTED if logged and call not in started else MARKER_TEXT_UNKNOWN
            marker = f"tool-marker:{len(entry_id)}:{entry_id}:{position}"
            self.write(marker, "tool_result", {"text": text}, tool_call_id=call, is_progress=False)
            self.conn.execute("UPDATE entries SET is_synthetic = true WHERE id = %s", [marker])

    def write(self, entry: str, role: str, payload: object, **more: Any) -> None:
        given = {
            "entry": entry,
            "role": role,
            "payload": canonical_json(payload),
            "stop_reason": None,
            "tool_call_ids": None,
            "tool_call_id": None,
            "starts_logged": False,
            "is_progress": True,
            **more,
        }
        for step in (1, 2, 3, 4):
            self.run(f"append.{step}", **given)

    def append(self, entry: str, role: str, payload: object, **more: Any) -> None:
        with self.conn.transaction():
            assert self.fence()["begun_at"] is not None
            self.write(entry, role, payload, **more)

    def start(self, message: str, call: str) -> None:
        entry = f"tool-started:{len(message)}:{message}:0"
        with self.conn.transaction():
            self.fence()
            self.run("start.1", entry=entry, tool_call_id=call)
            self.run("append.3", entry=entry)

    def settle(self, outcome: str, answer_id: str | None, error: str | None = None) -> None:
        payload = {
            "answer_entry_id": answer_id,
            "attempt_id": self.keys["attempt"],
            "detail": None,
            "error": error,
            "evidence": [],
            "outcome": outcome,
            "reason": "settled_by_runner",
            "recovered": False,
        }
        with self.conn.transaction():
            self.fence()
            for step in (1, 2, 3, 4, 5, 6):
                self.run(
                    f"settle.{step}", payload=canonical_json(payload), outcome=outcome, answer=answer_id, error=error
                )

    def end(self, end: str, act: str, **more: Any) -> None:
        given = {
            "end": end,
            "act": act,
            "logged": f"attempt_{end}",
            "given_back": int(end != "failed"),
            "is_release": int(end == "released"),
            "is_park": int(end == "parked"),
            "provider_error": int(end == "failed"),
            "reason": None,
            "error": None,
            "retryable": None,
            **more,
        }
        with self.conn.transaction():
            self.fence()
            for step in (1, 2, 3):
                self.run(f"end.{step}", **given)

    def abort(self, session: str, submission: str) -> bool:
        keys = {"session": session, "submission": submission, "reason": "enough"}
        with self.conn.transaction():
            (row,) = self.run("abort.1", **keys)
            if row["status"] == "settled" or row["abort_requested_at"] is not None:
                return False
            self.run("abort.2", **keys)
            self.run("abort.3", **keys)
        return True


@pytest.fixture
def bench(postgresql_url: str) -> Iterator[Bench]:
    bench = Bench(postgresql_url)
    yield bench
    bench.close()
    found = check(postgresql_url)
    assert not found, report(found)


@pytest.fixture
def page(bench: Bench) -> Iterator[PageRunner]:
    runner = PageRunner(bench.url)
    yield runner
    runner.conn.close()


def _turn(page: PageRunner, name: str) -> None:
    page.append(
        f"{name}-m",
        "assistant",
        {"text": "let me see"},
        stop_reason="tool_use",
        tool_call_ids=json.dumps([f"{name}-c"]),
        starts_logged=True,
    )
    page.start(f"{name}-m", f"{name}-c")
    page.append(f"{name}-r", "tool_result", {"ok": True}, tool_call_id=f"{name}-c")
    page.append(f"{name}-x", "assistant", {"text": "done"}, stop_reason="stop")


def test_a_turn_by_the_page_is_a_turn(bench: Bench, page: PageRunner) -> None:
    assert page.submit("s", "a", {"text": "hello"}) is None
    assert page.submit("s", "a", {"text": "hello"}) is not None
    # Both ways of submitting know each other's content.
    assert not bench.runner().submit("s", "a", {"text": "hello"}).created
    claimed = page.claim()
    assert claimed is not None
    assert (1, None, {"text": "hello"}) == (claimed["number"], claimed["plan"], json.loads(claimed["payload"]))
    assert page.claim() is None
    page.begin()
    page.begin()
    assert page.beat()["abort_requested_at"] is None
    _turn(page, "one")
    page.settle("completed", "one-x")
    row = bench.row()
    assert ("settled", "completed", "one-x") == (row.status, row.outcome, row.answer_entry_id)
    assert 0 == bench.reconcile().scanned


def test_a_turn_that_the_page_left_is_resumed_by_the_api_and_the_other_way_round(
    bench: Bench, page: PageRunner
) -> None:
    runner = bench.runner()
    page.submit("s", "a", {"text": "hello"})
    page.claim()
    page.begin()
    page.append(
        "m",
        "assistant",
        {"text": "let me see"},
        stop_reason="tool_use",
        tool_call_ids='["c","d"]',
        starts_logged=True,
    )
    page.start("m", "c")
    _crash(bench, page)
    with pytest.raises(Lost):
        page.append("late", "assistant", {}, stop_reason="stop")
    (attempt,) = runner.claim()
    path = attempt.begin()
    assert ["started", "not_started"] == [
        item.payload["dispatch"] for item in path if getattr(item.entry, "role", None) == "tool_result"
    ]
    attempt.append([asks("e", id="m2")])
    bench.crash(attempt)
    claimed = page.claim()
    assert claimed is not None
    assert "repair_tools" == json.loads(claimed["plan"])["mode"]
    page.begin()
    with pytest.raises(AttemptLost):
        attempt.append([answer()])
    _turn(page, "again")
    page.settle("completed", "again-x")
    assert "completed" == bench.row().outcome


def _crash(bench: Bench, page: PageRunner) -> None:
    from datetime import timedelta

    from reconciler.store.schema import attempts, submissions

    past = bench.now() - timedelta(seconds=1)
    bench.change(attempts, attempts.c.attempt_id == page.keys["attempt"], lease_expires_at=past)
    bench.change(submissions, submissions.c.id == page.keys["submission"], reconcile_at=past)
    bench.reconcile()


def test_every_end_by_the_page_is_decided_on_like_the_apis(bench: Bench, page: PageRunner) -> None:
    page.submit("s", "a", {"text": "hello"})
    for end, act, more in (
        ("failed", "fail", {"error": '"overloaded"', "retryable": True}),
        ("released", "release", {"reason": "deploy"}),
        ("parked", "park", {"reason": "approval"}),
    ):
        claimed = page.claim()
        assert claimed is not None, end
        page.begin(redispatches=0)
        page.end(end, act, **more)
        if end == "parked":
            assert "waiting" == bench.row().status
            bench.runner().unpark("s", "a")
        bench.reconcile()
    row = bench.row()
    assert (1, 1, 1, 1) == (row.provider_errors, row.releases, row.parks, row.attempts_spent)
    assert page.claim() is not None
    page.begin()
    page.settle("failed", None, '"enough"')


def test_an_abort_by_the_page_reaches_runners_and_daemons(bench: Bench, page: PageRunner) -> None:
    runner = bench.runner()
    attempt = bench.begun(runner, "s", "a")
    assert page.abort("s", "a")
    assert not page.abort("s", "a")
    assert Directive.ABORT is attempt.heartbeat()
    page.submit("t", "b", {})
    assert page.abort("t", "b")
    bench.reconcile()
    assert "aborted" == bench.row("t", "b").outcome
    bench.runner().submit("u", "c", {})
    page.claim()
    bench.runner().request_abort("u", "c")
    assert page.beat()["abort_requested_at"] is not None


def test_every_statement_of_the_page_is_run_by_these_tests(bench: Bench, page: PageRunner) -> None:
    test_a_turn_by_the_page_is_a_turn(bench, page)
    page.submit("v", "z", {})
    page.claim()
    page.begin()
    page.end("released", "release")
    page.abort("v", "z")
    assert set(page.statements) == page.used


# --- the first program -----------------------------------------------------------------------------------------------


def block(mark: str) -> str:
    """Return the text of the page behind a mark."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert found is not None, mark
    return found[1]


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, timeout=900, check=False)


def test_the_first_program_does_what_the_page_says_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text(block("runner.py: run by the tests"), encoding="utf-8")
    first = run_in(tmp_path, sys.executable, "runner.py")
    # Without its tables it says what is to be done.
    assert "reconciler db upgrade" in first.stderr
    made = run_in(tmp_path, "sh", "-ec", block("once: run by the tests"))
    assert 0 == made.returncode, made.stderr
    for expected in (block("runner.py prints"), ""):
        found = run_in(tmp_path, sys.executable, "runner.py")
        assert (expected, "") == (found.stdout, found.stderr)


def test_the_first_program_runs_on_either_database_and_leaves_a_sound_record(database_url: str, tmp_path: Path) -> None:
    program = block("runner.py: run by the tests").replace("sqlite:///agents.sqlite3", database_url)
    assert database_url in program
    (tmp_path / "runner.py").write_text(program, encoding="utf-8")
    found = run_in(tmp_path, sys.executable, "runner.py")
    assert (block("runner.py prints"), "") == (found.stdout, found.stderr)
    faults = check(database_url)
    assert not faults, report(faults)


def test_a_database_without_tables_says_in_python_what_is_to_be_done(empty_database_url: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        Runner(empty_database_url)
    assert "make" in str(caught.value)
    assert "`reconciler db upgrade`" in str(caught.value)


@pytest.mark.skipif(this_process().pid_namespace is None, reason="/proc cannot be read here: no death can be proven")
def test_the_first_program_killed_in_its_tool_goes_on_after_a_pass(database_url: str, tmp_path: Path) -> None:
    program = block("runner.py: run by the tests").replace("sqlite:///agents.sqlite3", database_url)
    dies = program.replace("def run_tool(call):\n", "def run_tool(call):\n    import os; os.kill(os.getpid(), 9)\n")
    assert dies != program
    (tmp_path / "dies.py").write_text(dies, encoding="utf-8")
    assert -signal.SIGKILL == run_in(tmp_path, sys.executable, "dies.py").returncode
    passed = run_in(tmp_path, "reconciler", "--database", database_url, "--json", "once", "--no-wait")
    assert 1 == json.loads(passed.stdout)["requeued"], passed.stderr
    # Its first claim may come before the backoff is over.
    patient = program.replace("wait_s=1)", "wait_s=60)")
    patient = patient.replace(
        "            work_safely(attempt)\n", "            work_safely(attempt)\n            raise SystemExit\n"
    )
    (tmp_path / "runner.py").write_text(patient, encoding="utf-8")
    found = run_in(tmp_path, sys.executable, "runner.py")
    assert (block("runner.py prints"), "") == (found.stdout, found.stderr)
    faults = check(database_url)
    assert not faults, report(faults)
