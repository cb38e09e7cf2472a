"""Kill the example's runner at random, again and again, let a pass decide in between, and count what came of it.

    python -m examples.runner.crash_runs --kills 500

Every kill is a SIGKILL at a random moment of a process that works; its death is proven by the pass, so nothing waits
for a lease. When the kills are done, the rest is worked off in peace, and then the record and the ledger of the tool's
effects are compared: one outcome for each submission, no tool after its result, no effect twice, order kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from examples.runner.agent import Ledger, work
from reconciler import Attempt, Limits, Runner
from reconciler.errors import DatabaseUnavailable
from reconciler.metrics import Metrics
from reconciler.service.instances import RunnerWatch
from reconciler.service.liveness import this_process
from reconciler.service.reconcile import reconcile_once
from reconciler.store.engine import make_engine, read
from reconciler.store.schema import attempts, entries, submissions

# So patient that kills alone make no submission fail, and no pause between tries: what is tested is the record.
LIMITS = Limits(
    attempts_max=100_000,
    crashes_in_row_max=50_000,
    provider_errors_max=50_000,
    redispatches_max=50_000,
    backoff_base_s=1e-6,
    backoff_max_s=1e-6,
    capability_backoff_s=1e-6,
)
# The last submission of each batch has the limits that everybody has: it may fail, and must fail once.
USUAL: dict[str, Any] = {
    "attempts_max": 20,
    "crashes_in_row_max": 5,
    "provider_errors_max": 8,
    "redispatches_max": 1,
}
SESSIONS = 6
PER_SESSION = 2
STEPS = 3
# Longer lives meet no further moments: a submission is worked off in less.
LIFE_S = 0.12


@dataclass
class Findings:
    """What the crash runs came to."""

    kills: int = 0
    # Kills of a process that held an attempt.
    hits: int = 0
    submissions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    executions: int = 0
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        outcomes = ", ".join(f"{number} {name}" for name, number in sorted(self.outcomes.items()))
        lines = [
            (
                f"{self.kills} kills ({self.hits} hit an attempt), {self.submissions} submissions ({outcomes}),"
                f" {self.attempts} attempts, {self.executions} tool executions, {self.seconds:.1f} s"
            ),
            *self.faults[:50],
            "no fault" if not self.faults else f"{len(self.faults)} faults",
        ]
        return "\n".join(lines)


# --- processes -------------------------------------------------------------------------------------------------------


def _work(database_url: str, ledger: Path, ready: int) -> None:
    said = False

    def say(_: Attempt) -> None:
        nonlocal said
        if not said:
            said = True
            with suppress(BrokenPipeError):  # nobody waits for it
                os.write(ready, b"1")

    work(database_url, Ledger(ledger), idle_s=0.05, on_claim=say, limits=LIMITS, poll_s=0.01, notify=False)


class ForkServer:
    """A process that has imported everything and has no connection: it forks runners, and reaps them when asked."""

    def __init__(self, database_url: str, ledger: Path) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _serve(theirs, database_url, ledger)
            os._exit(0)
        theirs.close()
        self._file = ours.makefile("rw", encoding="utf-8")
        ours.close()

    def start(self, *, wait_for_claim: bool) -> int:
        """Start a runner; return its pid, once it has its first attempt or found nothing to do."""
        return int(self._ask("start", wait=wait_for_claim)["pid"])

    def is_alive(self, pid: int) -> bool:
        """Tell whether the runner is still there; reaps it where not."""
        return bool(self._ask("alive", pid=pid)["alive"])

    def reap(self, pid: int) -> None:
        """Wait for a runner's end."""
        self._ask("reap", pid=pid)

    def stop(self) -> None:
        """End the server."""
        self._file.close()
        os.waitpid(self.pid, 0)

    def _ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        self._file.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._file.flush()
        answer: dict[str, Any] = json.loads(self._file.readline())
        return answer


def _serve(conn: socket.socket, database_url: str, ledger: Path) -> None:
    reaped: set[int] = set()
    with conn.makefile("rw", encoding="utf-8") as file:
        for line in file:
            asked = json.loads(line)
            answer: dict[str, Any] = {}
            if asked["verb"] == "start":
                answer["pid"] = _fork(conn, database_url, ledger, wait=asked["wait"])
            else:
                pid = asked["pid"]
                if pid not in reaped and os.waitpid(pid, os.WNOHANG if asked["verb"] == "alive" else 0)[0] == pid:
                    reaped.add(pid)
                answer["alive"] = pid not in reaped
            file.write(json.dumps(answer) + "\n")
            file.flush()


def _fork(conn: socket.socket, database_url: str, ledger: Path, *, wait: bool) -> int:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            conn.close()
            os.close(read_end)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _work(database_url, ledger, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    if wait:
        # A byte at its first attempt, or the end of file where it ended without one.
        select.select([read_end], [], [], 60)
    os.close(read_end)
    return pid


# --- the driver ------------------------------------------------------------------------------------------------------


class CrashRuns:
    """Two runners at a time, kills, passes."""

    def __init__(self, database_url: str, ledger: Path, seed: int, at_once: int = 2) -> None:
        self.url = database_url
        self.ledger = Ledger(ledger)
        self.random = random.Random(seed)
        self.at_once = at_once
        # Before there is any connection that a fork could share.
        self.processes = ForkServer(database_url, ledger)
        self.engine = make_engine(database_url)
        self.found = Findings()
        self._batch = 0
        # How long a kill waits at most; it follows the lives that the machine allows.
        self._life_s = 0.1

    def run(self, kills: int) -> Findings:
        """Kill so many processes; work the rest off; compare."""
        started = time.monotonic()
        running: list[tuple[int, float]] = []
        try:
            with Runner(self.url, limits=LIMITS, notify=False) as submitter:
                while self.found.kills < kills:
                    if self._pending() <= SESSIONS:
                        self._submit(submitter)
                    while len(running) < self.at_once:
                        # Mostly the kill counts from the first attempt on, sometimes from the beginning.
                        pid = self.processes.start(wait_for_claim=self.random.random() < 0.9)
                        running.append((pid, time.monotonic()))
                    self._kill(*running.pop(self.random.randrange(len(running))))
                    self._decide()
        except BaseException:
            for pid, _ in running:
                os.kill(pid, signal.SIGKILL)
            raise
        for pid, _ in running:
            self.processes.reap(pid)
        end = time.monotonic() + 300
        while self._pending() and time.monotonic() < end:
            self._decide()
            self.processes.reap(self.processes.start(wait_for_claim=False))
        self.processes.stop()
        self.found.seconds = time.monotonic() - started
        self._compare()
        self.engine.dispose()
        return self.found

    def _submit(self, runner: Runner) -> None:
        self._batch += 1
        for number in range(SESSIONS * PER_SESSION):
            own = USUAL if number == SESSIONS * PER_SESSION - 1 else {}
            session = f"session-{self._batch}-{number % SESSIONS}"
            runner.submit(session, f"b{self._batch}-{number}", {"steps": STEPS}, **own)

    def _kill(self, pid: int, born: float) -> None:
        moment = self.random.uniform(0.0, self._life_s)
        time.sleep(max(0.0, born + moment - time.monotonic()))
        if self.processes.is_alive(pid):
            os.kill(pid, signal.SIGSTOP)
            try:
                self.found.hits += self._holds(pid)
            finally:
                # A stopped process outlives everything but this.
                os.kill(pid, signal.SIGKILL)
                self.processes.reap(pid)
            self.found.kills += 1
            self._life_s = min(LIFE_S, self._life_s * 1.02)
        else:
            # It was done before its moment came: kill the next ones earlier.
            self._life_s = max(0.02, self._life_s * 0.9)

    def _decide(self) -> None:
        # As the daemon does: who died on this host is noticed at once, and what it held is decided on.
        watch = RunnerWatch(self.engine, this_process(), metrics=Metrics(), monotonic=lambda: 0.0)
        watch.look()
        reconcile_once(self.engine, limits=LIMITS)

    def _holds(self, pid: int) -> bool:
        try:
            with read(self.engine) as conn:
                statement = sa.select(sa.func.count()).where(attempts.c.pid == pid, attempts.c.ended_at.is_(None))
                return bool(conn.execute(statement).scalar_one())
        except DatabaseUnavailable:
            # Stopped while it opened or recovered the SQLite file: what it holds then is the lock that readers need.
            return True

    def _pending(self) -> int:
        with read(self.engine) as conn:
            statement = sa.select(sa.func.count()).select_from(submissions).where(sa.text("status <> 'settled'"))
            return int(conn.execute(statement).scalar_one())

    # --- comparing ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        found = self.found
        with read(self.engine) as conn:
            rows = conn.execute(sa.select(submissions)).all()
            stored = conn.execute(
                sa.select(
                    entries.c.kind,
                    entries.c.role,
                    entries.c.submission_id,
                    entries.c.tool_call_id,
                    entries.c.created_at,
                )
            ).all()
            found.attempts = int(conn.execute(sa.select(sa.func.count()).select_from(attempts)).scalar_one())
            firsts = conn.execute(
                sa.select(
                    attempts.c.session_id, attempts.c.submission_id, sa.func.min(attempts.c.claimed_at).label("at")
                ).group_by(attempts.c.session_id, attempts.c.submission_id)
            ).all()
        found.submissions = len(rows)
        settled = Counter(row.submission_id for row in stored if row.kind == "submission_settled")
        for row in rows:
            found.outcomes[row.outcome or row.status] += 1
            if row.status != "settled":
                found.faults.append(f"{row.id} has no outcome: {row.status}, {row.held_reason}")
            if settled[row.id] != 1:
                found.faults.append(f"{row.id} has {settled[row.id]} settlement entries")
        self._compare_executions(rows, stored)
        self._compare_order(rows, {(row.session_id, row.submission_id): row.at for row in firsts})

    def _compare_executions(self, rows: Any, stored: Any) -> None:
        recorded = {row.tool_call_id: row.created_at.timestamp() for row in stored if row.role == "tool_result"}
        lines = self.ledger.lines()
        self.found.executions = len(lines)
        for name in ("call", "step"):
            for value, number in Counter(line[name] for line in lines).items():
                if number > 1:
                    self.found.faults.append(f"{name} {value} was executed {number} times")
        for line in lines:
            result = recorded.get(line["call"])
            if result is None:
                self.found.faults.append(f"call {line['call']} was executed and is not on record")
            elif line["at"] > result:
                self.found.faults.append(f"call {line['call']} was executed after its result was recorded")
        done = {line["step"] for line in lines}
        for row in rows:
            missing = [step for step in range(STEPS) if f"{row.id}/step-{step}" not in done]
            if row.outcome == "completed" and missing:
                self.found.faults.append(f"{row.id} completed without the steps {missing}")

    def _compare_order(self, rows: Any, first_claim: dict[tuple[str, str], Any]) -> None:
        by_session: dict[str, list[Any]] = {}
        for row in sorted(rows, key=lambda row: row.ticket):
            by_session.setdefault(row.session_id, []).append(row)
        for mine in by_session.values():
            for earlier, later in pairwise(mine):
                claimed = first_claim.get((later.session_id, later.id))
                if claimed is not None and (earlier.settled_at is None or claimed < earlier.settled_at):
                    self.found.faults.append(f"{later.id} ran before {earlier.id} was settled")


def main() -> int:
    """Run from a shell; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", nargs="?", help="a database with the tables in it (default: a new SQLite file)")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="the moments of the kills (the rest is the machine's)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory() as folder:
        url = given.database
        if url is None:
            from reconciler.store.migrate import upgrade

            url = f"sqlite:///{folder}/crash.sqlite3"
            upgrade(url)
        found = CrashRuns(url, Path(folder) / "ledger.jsonl", seed).run(given.kills)
    if given.json:
        print(json.dumps({**found.__dict__, "outcomes": dict(found.outcomes), "seed": seed}))
    else:
        print(f"seed {seed}\n{found}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
