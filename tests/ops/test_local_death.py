"""A runner of this host was killed: what `explain` says, what a dry run says and what `once` does is one thing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.service.liveness import this_process
from reconciler.store.schema import submissions
from tests.ops.conftest import Front

# Its lease is ten minutes: nothing but the proof of its death can make the work due in time.
_RUNNER = """
import sys, time
from reconciler import NewEntry, Runner

runner = Runner(sys.argv[1], owner="killed", lease_s=600, beat_s=200)
runner.submit("chat", "work", {"text": "go"})
(attempt,) = runner.claim()
attempt.begin()
attempt.append([NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("call",), payload="I look")])
print("working", flush=True)
time.sleep(600)
"""

_IS_PROVABLE = this_process().pid_namespace is not None and this_process().boot_id is not None


@pytest.fixture
def killed(front: Front, database_url: str) -> Front:
    """Give the desk after a runner was killed in the middle of its turn."""
    process = subprocess.Popen([sys.executable, "-c", _RUNNER, database_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "working\n" == process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return front


@pytest.mark.skipif(not _IS_PROVABLE, reason="/proc cannot be read here: no death can be proven")
def test_work_of_a_killed_local_runner_is_taken_over_at_once_as_explain_says(killed: Front, engine: Engine) -> None:
    said = killed.get("explain", submission="work")
    assert ("running", "requeue") == (said["status"], said["next"]["action"])
    with engine.connect() as conn:
        before = conn.execute(sa.select(submissions)).one()
        assert before.reconcile_at > before.admitted_at
    tried = killed.get("once", dry_run=True, no_wait=True)
    with engine.connect() as conn:
        assert before == conn.execute(sa.select(submissions)).one()
    done = killed.get("once", no_wait=True)
    counted = {"scanned": 1, "requeued": 1, "left_alone": 0, "held": 0, "conflicts": 0, "unjudged": 0, "more": False}
    for answer in (tried, done):
        assert counted == {name: answer[name] for name in counted}
    after = killed.get("explain", submission="work")
    assert ("queued", "crashed") == (after["status"], after["attempts"][-1]["end"])
    assert 0 == killed.get("once", no_wait=True)["scanned"]


@pytest.mark.skipif(not _IS_PROVABLE, reason="/proc cannot be read here: no death can be proven")
def test_a_dry_run_keeps_to_its_limit_for_what_a_dead_runner_held_too(killed: Front) -> None:
    killed.get("submit", session="other", submission="fresh", payload=1)
    killed.get("abort", submission="fresh")
    both = killed.get("once", dry_run=True, no_wait=True)
    assert (2, False) == (both["scanned"], both["more"])
    one = killed.get("once", dry_run=True, no_wait=True, limit=1)
    assert (1, True) == (one["scanned"], one["more"])
