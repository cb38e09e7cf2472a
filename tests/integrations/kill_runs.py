"""Kill an agent of the real SDK again and again, let a pass decide, resume it, and compare record and effects.

    python -m tests.integrations.kill_runs --runs 1000 --database sqlite
    python -m tests.integrations.kill_runs --walk --database postgresql

A run is one kill (SIGKILL): at a random point (statement, commit, model call, tool boundary), or at a random moment.
``--walk`` kills at every point that an undisturbed run passes, one after the other. In the end the rest is worked off
in peace, and then: one outcome for each submission, each recorded call's effect at most once, no effect without its
call on record before it, each step's effect exactly once.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from reconciler import Limits
from reconciler.metrics import Metrics
from reconciler.service.instances import RunnerWatch
from reconciler.service.liveness import this_process
from reconciler.service.reconcile import reconcile_once
from reconciler.store.engine import make_engine, read
from reconciler.store.schema import entries, submissions
from tests.integrations.killing import Death, Life, Processes
from tests.support.checker import check, report

# So patient that kills alone make no submission fail, and no pause between tries: what is tested is the record.
LIMITS = Limits(
    attempts_max=100_000,
    crashes_in_row_max=50_000,
    provider_errors_max=50_000,
    redispatches_max=50_000,
    backoff_base_s=1e-6,
    backoff_max_s=1e-6,
    provider_backoff_base_s=1e-6,
    provider_backoff_max_s=1e-6,
    capability_backoff_s=1e-6,
)
STEPS = 3


@dataclass
class Findings:
    """What the kills came to."""

    kills: int = 0
    lives: int = 0
    submissions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    markers: int = 0
    points: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{number} {name}" for name, number in sorted(self.outcomes.items()))
        return "\n".join(
            [
                (
                    f"{self.kills} kills, {self.lives} lives, {self.submissions} submissions ({outcomes}),"
                    f" {self.effects} effects, {self.markers} markers, {self.points} points in an undisturbed run,"
                    f" {self.seconds:.1f} s"
                ),
                *self.faults[:50],
                "no fault" if not self.faults else f"{len(self.faults)} faults",
            ]
        )


class KillRuns:
    """The driver: lives, passes, comparison."""

    def __init__(self, url: str, ledger: Path, processes: Processes, *, seed: int = 0) -> None:
        self.url = url
        self.ledger = ledger
        self.processes = processes
        self.random = random.Random(seed)
        self.engine = make_engine(url)
        self.found = Findings()
        self._number = 0

    def close(self) -> None:
        """Close the driver's own connections."""
        self.engine.dispose()

    def life(self, work: dict[str, str], session: str, **death: object) -> Death:
        """Let a process work, and a pass decide about what it left."""
        life = Life(self.url, str(self.ledger), session, work, **death)  # type: ignore[arg-type]
        # A daemon goes on looking: what a killed client had sent may be committed a moment after its death.
        found = self.processes.live(life, self.decide)
        self.found.lives += 1
        self.found.kills += found.killed
        if found.error is not None:
            self.found.faults.append(f"{session}: {found.error}")
        self.decide()
        return found

    def decide(self) -> None:
        """Decide as the daemon does: who died on this host is noticed at once."""
        RunnerWatch(self.engine, this_process(), metrics=Metrics(), monotonic=lambda: 0.0).look()
        reconcile_once(self.engine, limits=LIMITS)

    def new_work(self, runs: int = 1) -> tuple[str, dict[str, str]]:
        """Return a session and prompts for it."""
        self._number += 1
        name = f"session-{self._number}"
        work = {}
        for number in range(runs):
            steps = " ".join(f"{name}/{number}/{step}" for step in range(STEPS))
            work[f"{name}-run-{number}"] = f"steps: {steps}"
        return name, work

    def finish(self, session: str, work: dict[str, str], *, streamed: bool = False) -> None:
        """Work off in peace, and look at the answers."""
        end = self.life(work, session, streamed=streamed)
        expected = {name: f"all done: {prompt.split(': ', 1)[1]}" for name, prompt in work.items()}
        if end.answers != expected:
            self.found.faults.append(f"{session}: answered {end.answers}")

    def undisturbed(self, *, streamed: bool = False) -> list[str]:
        """Return the points that a run passes which nobody disturbs."""
        session, work = self.new_work()
        points = self.life(work, session, streamed=streamed).points
        self.found.points = len(points)
        return points

    def walk(self, *, streamed: bool = False, every: int = 1, first: int = 1) -> None:
        """Kill at each point (or at each *every*-th from *first* on), and finish."""
        points = len(self.undisturbed(streamed=streamed))
        for point in range(first, points + 1, every):
            session, work = self.new_work()
            if not self.life(work, session, kill_at=point, streamed=streamed).killed:
                # What a run does is not always the same to the statement (a beat, a slow claim).
                continue
            self.finish(session, work, streamed=streamed)

    def run(self, kills: int) -> None:
        """Kill at random, several times in a submission's life or not at all."""
        points = len(self.undisturbed())
        seconds = 0.3
        while self.found.kills < kills:
            session, work = self.new_work(runs=self.random.choice((1, 1, 2)))
            streamed = self.random.random() < 0.3
            for _ in range(self.random.choice((1, 1, 2, 3, 5))):
                if self.random.random() < 0.7:
                    death = self.life(work, session, streamed=streamed, kill_at=self.random.randint(1, points))
                else:
                    moment = self.random.uniform(0.0, seconds)
                    death = self.life(work, session, streamed=streamed, kill_after_s=moment)
                if not death.killed:
                    seconds = death.seconds
                    break
            self.finish(session, work, streamed=streamed)

    def compare(self) -> Findings:
        """Compare the record with the effects."""
        found = self.found
        with read(self.engine) as conn:
            rows = conn.execute(sa.select(submissions)).all()
            stored = conn.execute(sa.select(entries).where(entries.c.kind != "submission_settled")).all()
            settled = Counter(
                conn.execute(sa.select(entries.c.submission_id).where(entries.c.kind == "submission_settled")).scalars()
            )
        found.submissions = len(rows)
        for row in rows:
            found.outcomes[row.outcome or row.status] += 1
            if row.outcome != "completed" or settled[row.id] != 1:
                found.faults.append(f"{row.id}: {row.status} {row.outcome}, {settled[row.id]} settlements")
        called = {call: row.created_at.timestamp() for row in stored for call in json.loads(row.tool_call_ids or "[]")}
        begun = {row.tool_call_id: row.created_at.timestamp() for row in stored if row.kind == "tool_started"}
        results = Counter(row.tool_call_id for row in stored if row.role == "tool_result")
        found.markers = sum(row.role == "tool_result" and row.is_synthetic for row in stored)
        if set(results) != set(called) or set(results.values()) - {1}:
            found.faults.append("a call has no result, or more than one")
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []
        found.effects = len(lines)
        for name in ("call", "step"):
            for value, number in Counter(line[name] for line in lines).items():
                if number > 1:
                    found.faults.append(f"{name} {value} had its effect {number} times")
        for line in lines:
            for what, instants in (("call", called), ("start", begun)):
                if line["call"] not in instants or instants[line["call"]] > line["at"]:
                    found.faults.append(f"the effect of {line['call']} came before its {what} was on record")
        expected = {f"{row.session_id}/{row.id.rsplit('-', 1)[1]}/{step}" for row in rows for step in range(STEPS)}
        if missing := expected - {line["step"] for line in lines}:
            found.faults.append(f"{len(missing)} steps were never done: {sorted(missing)[:5]}")
        if judged := check(self.url, limits=LIMITS):
            found.faults.append(report(judged))
        return found


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """Give the URL of a migrated database: *kind* is ``sqlite``, ``postgresql``, or the URL of an empty one."""
    from reconciler.store.migrate import upgrade
    from tests.support.databases import PostgreSQLDatabases
    from tests.support.postgresql import Server

    if kind == "postgresql":
        with Server() as server:
            yield PostgreSQLDatabases(server.address, "kills").working()
        return
    url = f"sqlite:///{folder / 'kills.sqlite3'}" if kind == "sqlite" else kind
    upgrade(url)
    yield url


def main() -> int:
    """Run from a shell; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="how many kills")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or the URL of an empty database")
    parser.add_argument("--walk", action="store_true", help="kill at every point once, plain and streamed")
    parser.add_argument("--seed", type=int, default=None, help="the points of the kills (the rest is the machine's)")
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory() as name, database(given.database, Path(name)) as url:
        processes = Processes()
        runs = KillRuns(url, Path(name) / "ledger.jsonl", processes, seed=seed)
        started = time.monotonic()
        try:
            if given.walk:
                runs.walk()
                runs.walk(streamed=True)
            else:
                runs.run(given.runs)
        finally:
            processes.stop()
        runs.found.seconds = time.monotonic() - started
        found = runs.compare()
        runs.close()
    print(f"seed {seed}\n{found}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
