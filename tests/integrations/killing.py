"""Processes that run an agent and are killed: forked from one that has imported everything and has no connection.

    python -m tests.integrations.killing        (speaks JSON lines; used by `Processes`)

A child counts its points (each statement on the Runner's connection, each commit, each step of model and tools) and
kills itself with SIGKILL at the one that it was told. Or its parent kills it after a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHILD_MAX_S = 120.0


@dataclass
class Life:
    """What a child is to do, and when it dies."""

    url: str
    ledger: str
    session: str
    # Submission id to prompt, in order.
    work: dict[str, str]
    kill_at: int | None = None
    kill_after_s: float | None = None
    streamed: bool = False
    wait_s: float = 20.0


@dataclass
class Death:
    """How it ended. ``points`` and ``answers`` are known of a child that came to its end."""

    killed: bool
    points: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0


class Processes:
    """The forking process, and what it answers."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.killing"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(self, life: Life, meanwhile: Callable[[], None] | None = None) -> Death:
        """Let a child live, until its end or its death; *meanwhile* is called twice a second."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(life.__dict__) + "\n")
        self._server.stdin.flush()
        end = time.monotonic() + CHILD_MAX_S + 30
        while not select.select([self._server.stdout], [], [], 0.5)[0] and time.monotonic() < end:
            if meanwhile is not None:
                meanwhile()
        return Death(**json.loads(self._server.stdout.readline()))

    def stop(self) -> None:
        """End the forking process."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=30)
        self._server.stdout.close()


# --- in the forking process ------------------------------------------------------------------------------------------


def _serve() -> None:
    # Everything that a child needs, so that a life costs no imports.
    for name in ("reconciler.integrations.openai_agents", "tests.integrations.scripted", "psycopg"):
        import_module(name)
    import_module("agents").set_tracing_disabled(True)
    _warm()
    for line in sys.stdin:
        print(json.dumps(_live(Life(**json.loads(line))).__dict__), flush=True)


def _warm() -> None:
    """Run the agent once without any session, so that children find made what the SDK makes at first use."""
    from agents import Runner

    from tests.integrations.scripted import Ledger, agents

    with tempfile.TemporaryDirectory() as folder:
        agent = agents(Ledger(Path(folder) / "ledger.jsonl"))
        asyncio.run(Runner.run(agent, "steps: a b c"))


def _live(life: Life) -> Death:
    read_end, write_end = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            told = _child(life)
            os.write(write_end, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    limit = started + (CHILD_MAX_S if life.kill_after_s is None else life.kill_after_s)
    killed = False
    with os.fdopen(read_end, "rb") as told_end:
        reader: list[bytes] = []
        thread = threading.Thread(target=lambda: reader.append(told_end.read()), daemon=True)
        thread.start()
        while os.waitpid(pid, os.WNOHANG)[0] != pid:
            if time.monotonic() >= limit and not killed:
                killed = True
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        thread.join(10)
    text = reader[0] if reader else b""
    found = Death(killed=not text, seconds=time.monotonic() - started)
    if text:
        found = Death(**{**json.loads(text), "killed": False, "seconds": time.monotonic() - started})
    elif life.kill_at is None and life.kill_after_s is None:
        found.error = "did not come to its end"
    return found


# --- in a child ------------------------------------------------------------------------------------------------------


class Counter:
    """Counts points; at one of them the process is gone."""

    def __init__(self, kill_at: int | None) -> None:
        self.names: list[str] = []
        self._kill_at = kill_at
        self._guard = threading.Lock()

    def point(self, name: str) -> None:
        """Pass a point, or don't."""
        with self._guard:
            self.names.append(name)
            if len(self.names) == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def _child(life: Life) -> dict[str, Any]:
    import sqlalchemy as sa

    from reconciler.integrations.openai_agents import DurableSession
    from tests.integrations.kill_runs import LIMITS
    from tests.integrations.scripted import Ledger, agents

    counter = Counter(life.kill_at)
    agent = agents(Ledger(Path(life.ledger)), counter.point)
    answers: dict[str, str] = {}
    error = None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    async def work(session: DurableSession) -> None:
        for submission_id, prompt in life.work.items():
            if life.streamed:
                stream = session.run_streamed(agent, prompt, submission_id=submission_id)
                async for _ in stream.stream_events():
                    pass
                answers[submission_id] = stream.final_output
            else:
                result = await session.run(agent, prompt, submission_id=submission_id)
                answers[submission_id] = result.final_output

    try:
        with DurableSession(life.session, life.url, wait_s=life.wait_s, limits=LIMITS, notify=False) as session:
            engine = session._runner._engine
            sa.event.listen(engine, "before_cursor_execute", lambda *a: counter.point(f"statement {a[2][:40]}"))
            sa.event.listen(engine, "commit", lambda *a: counter.point("commit"))
            asyncio.run(work(session))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {"points": counter.names, "answers": answers, "error": error}


if __name__ == "__main__":
    _serve()
