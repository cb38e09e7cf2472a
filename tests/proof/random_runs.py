"""Random histories of runners, daemons and operators whose processes are killed at random points, one after another.

A life is one process: a runner that works, a daemon's pass, an operator's act; sometimes two at once. Most lives end by
SIGKILL at a random statement or commit. Between lives time may pass. After each life the independent checker judges the
database as it was left; at the end everything is worked off in peace, and then what callers were told and what the
tools did (both kept in ledgers outside the database) is held against the record. A run is a life that was killed.

    python -m tests.proof.random_runs --kind sqlite --runs 10000 --add-to results.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from reconciler.core.model import NewEntry, SessionEntry
from reconciler.core.states import Directive, ResumeMode
from reconciler.errors import ReconcilerError
from reconciler.service.attempt import Attempt
from tests.proof import crash, driver, hands
from tests.proof.forking import Child, ChildFailed, start
from tests.proof.hands import Hands, seeded
from tests.proof.places import Place
from tests.support.checker import check, report

LIVES = 24
SESSIONS = ("s", "t")
# Low enough that kills exhaust them.
LIMITS = replace(
    hands.LIMITS,
    attempts_max=8,
    crashes_in_row_max=3,
    provider_errors_max=3,
    releases_max=3,
    parks_max=2,
    grace_s=30.0,
    stall_s=600.0,
    leaf_moved_s=300.0,
    park_s=3600.0,
)
# Seconds that pass between two lives.
PAUSES = (0, 0, 0, 0, 1, 45, 700, 4000, 10_000)
PEACE_ROUNDS_MAX = 60


@dataclass
class Totals:
    """What came of the runs."""

    runs: int = 0
    kills: int = 0
    at_once: int = 0
    histories: int = 0
    submissions: int = 0
    tool_executions: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Add up."""
        for name in ("runs", "kills", "at_once", "histories", "submissions", "tool_executions", "acknowledged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds += other.seconds
        self.outcomes = dict(Counter(self.outcomes) + Counter(other.outcomes))
        self.faults += other.faults


# --- the lives -------------------------------------------------------------------------------------------------------


class Life:
    """What one process does. *say* writes a line to the ledger at once: what is said there was told to a caller."""

    def __init__(self, mine: Hands, rng: random.Random, ledger: Path, peaceful: bool) -> None:
        self.hands = mine
        self.rng = rng
        self.peaceful = peaceful
        self._file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, what: str, **more: Any) -> None:
        """Write a line that a kill can't take back."""
        os.write(self._file, json.dumps({"what": what, **more}).encode() + b"\n")

    def _try(self, act: Callable[[], Any]) -> Any:
        # A refusal is an answer; only what isn't typed is a fault.
        try:
            return act()
        except ReconcilerError as error:
            return error

    # --- runners

    def work(self) -> None:
        """Claim, and work on what was claimed."""
        runner, rng = self.hands.runner, self.rng
        if not self.peaceful and rng.random() < 0.5:
            self.submit()
        for attempt in runner.claim(2 if self.peaceful else rng.choice((1, 1, 2))):
            self.say("claimed", attempt=attempt.attempt_id, number=attempt.number, submission=self._name(attempt))
            refused = self._try(lambda attempt=attempt: self._turn(attempt))  # type: ignore[misc]
            if isinstance(refused, ReconcilerError):
                continue

    def _name(self, attempt: Attempt) -> str:
        return f"{attempt.session_id}/{attempt.submission_id}"

    def _turn(self, attempt: Attempt) -> None:
        rng = self.rng
        if not self.peaceful and rng.random() < 0.05:
            attempt.release("not for me")
            return
        path = attempt.begin()
        ids = [item.entry.id for item in path if hasattr(item.entry, "id")]
        assert len(ids) == len(set(ids)), "the path names an entry twice"
        if attempt.resume.mode is ResumeMode.APPROVED:
            self._run_approved(attempt)
        if attempt.resume.sub_turn is not None and attempt.resume.sub_turn.attempted:
            attempt.report_sub_turn(rng.randrange(3))
        for step in range(1 if self.peaceful else rng.randrange(1, 4)):
            if not self._step(attempt, step):
                return
        if not self.peaceful and rng.random() < 0.1:
            return
        self._append(attempt, [NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
        if rng.random() < 0.8 or self.peaceful:
            settled = attempt.settle("completed")
            self.say("settled", submission=self._name(attempt), outcome=settled.outcome.value)

    def _append(self, attempt: Attempt, new: list[NewEntry]) -> list[str]:
        ids = attempt.append(new)
        self.say("appended", ids=ids, session=attempt.session_id)
        return ids

    def _step(self, attempt: Attempt, step: int) -> bool:
        rng = self.rng
        if attempt.heartbeat() in (Directive.ABORT, Directive.DEADLINE) and rng.random() < 0.5:
            settled = attempt.settle("aborted")
            self.say("settled", submission=self._name(attempt), outcome=settled.outcome.value)
            return False
        roll = 1.0 if self.peaceful else rng.random()
        if roll < 0.06:
            attempt.fail("overloaded", retryable=rng.random() < 0.8)
            return False
        if roll < 0.10:
            attempt.release(rng.choice(("a deploy", "capability_missing")))
            return False
        if roll < 0.14:
            self._append(attempt, [NewEntry("assistant", {"text": "x"}, stop_reason="error", content="none")])
            return False
        if roll < 0.18:
            text = "The exporter of invoice/77 touches the scheduler tables, so I shall first"
            self._append(attempt, [NewEntry("assistant", {"text": text}, stop_reason="aborted")])
            return False
        calls = [f"{attempt.attempt_id[:8]}-{step}-{number}" for number in range(rng.randrange(1, 3))]
        logged = rng.random() < 0.7
        asks = NewEntry(
            "assistant", {"text": "see"}, stop_reason="tool_use", tool_call_ids=tuple(calls), starts_logged=logged
        )
        self._append(attempt, [asks])
        if roll < 0.26:
            status = attempt.park("may I?", pending_calls=calls, until_s=rng.choice((30.0, 3600.0)))
            self.say("parked", submission=self._name(attempt), status=status.value)
            return False
        for call in calls:
            self._tool(attempt, call, logged=logged)
        return True

    def _tool(self, attempt: Attempt, call: str, *, logged: bool) -> None:
        if logged:
            attempt.start(call)
        self.say("executed", call=call)
        self._append(attempt, [NewEntry("tool_result", {"ok": True}, tool_call_id=call)])

    def _run_approved(self, attempt: Attempt) -> None:
        stored = [item.entry for item in attempt.path(valid=False) if isinstance(item.entry, SessionEntry)]
        answered = {entry.tool_call_id for entry in stored if entry.role == "tool_result"}
        for entry in stored:
            for call in entry.tool_call_ids:
                if call not in answered and entry.submission_id == attempt.submission_id:
                    self._tool(attempt, call, logged=entry.starts_logged)

    def submit(self) -> None:
        """Admit a submission with a limit or a deadline of its own, now and then."""
        rng = self.rng
        session_id, submission_id = rng.choice(SESSIONS), f"a{rng.randrange(3)}"
        more: dict[str, Any] = {}
        if rng.random() < 0.15:
            more["deadline_s"] = rng.choice((5.0, 1000.0))
        found = self._try(lambda: self.hands.runner.submit(session_id, submission_id, {"text": submission_id}, **more))
        if not isinstance(found, ReconcilerError):
            self.say("admitted", submission=f"{session_id}/{submission_id}")

    # --- daemons and operators

    def reconcile(self) -> None:
        """Run passes until nothing is left."""
        for _ in range(self.rng.choice((1, 1, 2))):
            self.hands.reconcile(LIMITS, limit=None if self.peaceful else self.rng.choice((None, None, 1)))

    def operate(self) -> None:
        """Do one or two things by hand, among them what is refused."""
        for _ in range(self.rng.randrange(1, 3)):
            self._one_act()

    def _one_act(self) -> None:
        rng, mine = self.rng, self.hands
        name = f"{rng.choice(SESSIONS)}/a{rng.randrange(3)}"
        session_id, submission_id = name.split("/")
        match rng.randrange(11):
            case 0:
                made = self._try(lambda: mine.runner.request_abort(session_id, submission_id, "by hand"))
                if not isinstance(made, ReconcilerError):
                    self.say("abort", submission=name)
            case 1 | 2:
                self._try(lambda: mine.runner.unpark(session_id, submission_id))
            case 3:
                mine.ask("retry", submission=name, reason="x")
            case 4:
                outcome = rng.choice(("failed", "aborted", "completed"))
                answer = mine.ask("settle", submission=name, outcome=outcome, fence=rng.random() < 0.3, reason="x")
                if answer.error is None:
                    self.say("settled", submission=name, outcome=answer.payload["outcome"])
            case 5 | 6:
                mine.ask("release", submission=name, reason="x")
            case 7:
                mine.ask("move-leaf", session=session_id, entry=f"submission-input:{submission_id}", reason="x")
            case 8:
                mine.ask("submit", again=name, reason="x")
            case 9:
                self.submit()
            case 10:
                self._try(lambda: mine.runner.acknowledge(session_id, submission_id))


# --- a history -------------------------------------------------------------------------------------------------------


class History:
    """One database, from empty to peace."""

    def __init__(self, place: Place, folder: Path, seed: int, totals: Totals) -> None:
        self.place = place
        self.folder = folder
        self.seed = seed
        self.rng = random.Random(seed)
        self.totals = totals
        self.ledger = folder / "ledger.jsonl"
        self._number = 0

    def run(self) -> None:
        """Live, die, and come to peace."""
        self.ledger.unlink(missing_ok=True)
        hands.set_clock(0.0)
        try:
            for _ in range(LIVES):
                self._live()
            self._peace()
            self._compare()
        except (ChildFailed, TimeoutError) as error:
            self._fault(str(error))
        self.totals.histories += 1

    def _live(self) -> None:
        self.place.advance(float(self.rng.choice(PAUSES)))
        kinds = ["work", "work", "work", "reconcile", "reconcile", "operate"]
        together = self.rng.random() < 0.25
        children = [self._start(self.rng.choice(kinds)) for _ in range(2 if together else 1)]
        for child in children:
            ended = child.end()
            self.totals.runs += 1
            self.totals.kills += ended.killed
        self.totals.at_once += together
        self.place.quiet()
        self._check(f"after life {self._number}")

    def _start(self, kind: str, *, peaceful: bool = False) -> Child:
        self._number += 1
        # Most die; where, nobody knows before: some do all they had to.
        mean = self.rng.choice((5, 15, 40))
        kill_at = None if peaceful or self.rng.random() < 0.1 else 1 + int(self.rng.expovariate(1 / mean))
        return start(partial(self._child, kind, self._number, kill_at, peaceful))

    def _child(self, kind: str, number: int, kill_at: int | None, peaceful: bool) -> None:
        mine = Hands(self.place.url, self.folder)
        mine.limits, mine.lease_s = LIMITS, 60.0
        life = Life(mine, random.Random(f"{self.seed}/{number}"), self.ledger, peaceful)
        if kind != "reconcile":
            mine.connect()
        with seeded(f"{self.seed}/{number}"):
            driver.watch(driver.Watch(kill_at))
            getattr(life, kind)()
            driver.watch(None)

    def _check(self, where: str, *, quiescent: bool = False) -> None:
        violations = check(self.place.url, limits=LIMITS, quiescent=quiescent)
        if violations:
            self._fault(f"{where}: {report(violations)}")

    def _fault(self, what: str) -> None:
        self.totals.faults.append(f"{self.place.kind}, history {self.seed}: {what}")

    def _peace(self) -> None:
        """Work everything off: nothing dies any more, people answer what waits for them."""
        open_rows: list[dict[str, Any]] = []
        for _ in range(PEACE_ROUNDS_MAX):
            self._start("reconcile", peaceful=True).end()
            self._start("work", peaceful=True).end()
            open_rows = [row for row in self.place.rows()["submissions"] if row["status"] != "settled"]
            if not open_rows:
                break
            for row in open_rows:
                name = f"{row['session_id']}/{row['id']}"
                if row["held_at"] is not None:
                    self._operator("release", submission=name, reason="peace")
            # What waits for an instant gets it.
            self.place.advance(5000.0)
        else:
            left = [(row["session_id"], row["id"], row["status"], row["held_reason"]) for row in open_rows]
            self._fault(f"no peace after {PEACE_ROUNDS_MAX} rounds: {left}")
        self._start("reconcile", peaceful=True).end()
        before = self.place.rows()
        self._start("reconcile", peaceful=True).end()
        self.place.quiet()
        if before != self.place.rows():
            self._fault("a pass with nothing new wrote")
        self._check("in peace", quiescent=True)

    def _operator(self, verb: str, **params: Any) -> None:
        start(lambda: Hands(self.place.url, self.folder).ask(verb, **params).exit_code).end()

    def _compare(self) -> None:
        """Hold what was told, and what the tools did, against the record."""
        rows = self.place.rows()
        totals = self.totals
        outcome_of = {f"{row['session_id']}/{row['id']}": row["outcome"] for row in rows["submissions"]}
        totals.submissions += len(outcome_of)
        totals.outcomes = dict(Counter(totals.outcomes) + Counter(str(outcome) for outcome in outcome_of.values()))
        entry_ids = {(row["session_id"], row["id"]) for row in rows["entries"]}
        executed: Counter[str] = Counter()
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        numbers: dict[str, list[int]] = {}
        for text in lines:
            line = json.loads(text)
            totals.acknowledged += 1
            match line["what"]:
                case "admitted" | "abort":
                    if line["submission"] not in outcome_of:
                        self._fault(f"{line} was answered, and the submission is gone")
                case "settled":
                    if outcome_of.get(line["submission"]) != line["outcome"]:
                        self._fault(f"{line} was answered, the record says {outcome_of.get(line['submission'])}")
                case "appended":
                    for entry_id in line["ids"]:
                        if (line["session"], entry_id) not in entry_ids:
                            self._fault(f"entry {entry_id} was answered, and is not in the record")
                case "executed":
                    executed[line["call"]] += 1
                    totals.tool_executions += 1
                case "claimed":
                    numbers.setdefault(line["submission"], []).append(line["number"])
        for call, count in executed.items():
            if count > 1:
                self._fault(f"call {call} was executed {count} times")
        for name, claimed in numbers.items():
            if len(set(claimed)) != len(claimed):
                self._fault(f"{name}: an attempt number was handed out twice: {claimed}")


# --- running ---------------------------------------------------------------------------------------------------------


def run(place: Place, folder: Path, *, runs: int, seconds: float, seed: int) -> Totals:
    """Live histories until *runs* lives were killed, or *seconds* are over."""
    totals, started = Totals(), time.monotonic()
    empty = crash._warm_state(place)
    number = 0
    while totals.kills < runs and time.monotonic() - started < seconds and len(totals.faults) < 20:
        place.restore(empty)
        History(place, folder, seed + number, totals).run()
        number += 1
    totals.seconds = time.monotonic() - started
    return totals


def main() -> int:
    """Run from a shell; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--runs", type=int, default=1000, help="lives that end by SIGKILL")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first history; the next ones follow")
    parser.add_argument("--add-to", type=Path, help="a JSON file to which the totals are added")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**40) if given.seed is None else given.seed
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=crash.memory_folder())))
        place: Place
        driver.install()
        if given.kind == "sqlite":
            place = stack.enter_context(crash.sqlite_place(folder))
        else:
            from tests.support.postgresql import Server

            address = stack.enter_context(Server()).address
            address.execute("CREATE DATABASE proof TEMPLATE template0")
            place = stack.enter_context(crash.postgresql_place(address.url("proof")))
        crash.warm(place, folder)
        totals = run(place, folder, runs=given.runs, seconds=given.seconds, seed=seed)
    print(
        f"seed {seed}: {totals.runs} runs, {totals.kills} killed, {totals.histories} histories,"
        f" {totals.submissions} submissions {totals.outcomes}, {len(totals.faults)} faults, {totals.seconds:.0f} s"
    )
    for fault in totals.faults[:20]:
        print(fault[:2000])
    if given.add_to is not None:
        _add_to(given.add_to, given.kind, totals)
    return 1 if totals.faults else 0


def _add_to(path: Path, kind: str, totals: Totals) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    sums = Totals(**stored.get(kind, {}))
    sums.add(totals)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**stored, kind: asdict(sums)}, indent=1) + "\n")
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
