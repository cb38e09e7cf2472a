"""A runner process: claims, works, keeps ledgers of what its tools did and of what it was told is stored.

``python -m tests.chaos.worker SETUP NAME``. A turn is: input, one response with two calls, two results, an answer, a
settlement. One call in twenty is slow, one turn in a hundred fails at the "provider", one in a thousand kills the
process. The "model" reads nothing but the path that `begin` gives: it answers once every call has its result.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from reconciler.core.classifier import submission_settlement_entry_id
from reconciler.core.model import NewEntry
from reconciler.errors import AttemptLost, ReconcilerError
from reconciler.service.attempt import Attempt, TurnPath
from reconciler.service.runner import Runner
from reconciler.store.engine import begin, make_engine
from reconciler.store.schema import entries
from tests.chaos.ledger import Ledger

STEP_S = 0.001
SLOW_S = 0.2


def chance(attempt: Attempt, what: str, one_in: int) -> bool:
    """Return the same throw of the dice for the same attempt."""
    text = f"{attempt.session_id}/{attempt.submission_id}/{attempt.number}/{what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % one_in == 0


class Worker:
    """One process of runners."""

    def __init__(self, setup: dict[str, Any], name: str) -> None:
        folder = Path(setup["folder"])
        self.setup = setup
        self.effects = Ledger(folder / f"effects-{name}.jsonl")
        self.stored = Ledger(folder / f"stored-{name}.jsonl")
        self.settled = Ledger(folder / f"settled-{name}.jsonl")
        self.runner = Runner(
            setup["url"],
            owner=name,
            lease_s=setup["lease_s"],
            beat_s=setup["beat_s"],
            poll_s=0.1,
            reconnect_s=120,
        )
        self.engine = make_engine(setup["url"])
        self.stopping = threading.Event()

    def run(self) -> None:
        """Work until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        threads = [threading.Thread(target=self.loop, daemon=True) for _ in range(int(self.setup["threads"]))]
        for thread in threads:
            thread.start()
        while not self.stopping.wait(0.1):
            pass
        for thread in threads:
            thread.join(10)
        self.runner.close()

    def loop(self) -> None:
        while not self.stopping.is_set():
            try:
                claimed = self.runner.claim(1, wait_s=0.5)
            except ReconcilerError:
                time.sleep(0.05)
                continue
            for attempt in claimed:
                try:
                    self.turn(attempt)
                except AttemptLost:
                    # Another one owns it; or its lease could not be known to be live for a while.
                    self.give_back(attempt)
                except ReconcilerError as error:
                    print(f"{attempt!r}: {error.code}: {error.message}", file=sys.stderr, flush=True)
                    self.give_back(attempt)

    def give_back(self, attempt: Attempt) -> None:
        """Give an attempt back that nobody works on any more: kept, it would be beaten for as long as this lives."""
        while not attempt.lost.is_final:
            try:
                attempt.release("could not go on")
            except AttemptLost:
                return
            except ReconcilerError:
                time.sleep(0.05)
            else:
                return

    # --- one turn ----------------------------------------------------------------------------------------------------

    def turn(self, attempt: Attempt) -> None:
        path = attempt.begin()
        if chance(attempt, "dies", 1000):
            os.kill(os.getpid(), signal.SIGKILL)
        # A control has few minutes to meet what its fault is about.
        if chance(attempt, "fails", 10 if self.setup.get("mutant") == "forgets_submissions" else 100):
            attempt.fail("the provider is overloaded", retryable=True)
            return
        calls = self.calls_of(attempt, path)
        if not calls:
            calls = [f"{attempt.submission_id}:{attempt.number}:{place}" for place in (1, 2)]
            time.sleep(STEP_S)
            self.append(
                attempt,
                NewEntry(
                    role="assistant",
                    stop_reason="tool_use",
                    tool_call_ids=tuple(calls),
                    starts_logged=True,
                    payload={"calls": calls},
                ),
            )
            for call in calls:
                self.tool(attempt, call)
        elif self.setup.get("mutant") == "tool_again":
            # A runner that runs the tools of the attempt before once more: what must never happen.
            for call in calls:
                self.effects.write(at=time.time(), call=call, attempt=attempt.attempt_id)
        if attempt.lost.is_set():
            raise AttemptLost("its lease can't be known to be live")
        time.sleep(STEP_S)
        self.append(attempt, NewEntry(role="assistant", stop_reason="stop", payload={"text": "done"}))
        settled = attempt.settle("completed")
        if self.setup.get("mutant") == "settlement_without_entry" and chance(attempt, "loses", 20):
            self.lose_settlement(attempt)
        self.settled.write(
            at=time.time(),
            session=attempt.session_id,
            submission=attempt.submission_id,
            attempt=attempt.attempt_id,
            outcome=str(settled.outcome),
        )

    def calls_of(self, attempt: Attempt, path: TurnPath) -> list[str]:
        """Return the calls that the turn has made so far: all of them have a result, begin() saw to that."""
        found: list[str] = []
        for item in path:
            entry = item.entry
            if getattr(entry, "role", None) == "user":
                found = []
            found += getattr(entry, "tool_call_ids", ())
        return found

    def tool(self, attempt: Attempt, call: str) -> None:
        if attempt.lost.is_set():
            raise AttemptLost("its lease can't be known to be live")
        attempt.start(call)
        # The world is changed here, once the start is durable.
        self.effects.write(at=time.time(), call=call, attempt=attempt.attempt_id)
        if self.setup.get("mutant") == "tool_again" and chance(attempt, f"again {call}", 50):
            self.effects.write(at=time.time(), call=call, attempt=attempt.attempt_id)
        time.sleep(SLOW_S * self.setup["scale"] if chance(attempt, call, 20) else STEP_S)
        self.append(
            attempt, NewEntry(role="tool_result", tool_call_id=call, payload={"result": "ok", "pad": "y" * 200})
        )

    def lose_settlement(self, attempt: Attempt) -> None:
        """Take the settlement's entry away: the row alone says that it is settled, which must never be."""
        rows = {"session_id": attempt.session_id, "id": submission_settlement_entry_id(attempt.submission_id)}
        with begin(self.engine) as conn:
            conn.execute(sa.delete(entries).filter_by(**rows))

    def append(self, attempt: Attempt, entry: NewEntry) -> None:
        ids = attempt.append([entry])
        self.stored.write(session=attempt.session_id, ids=ids, attempt=attempt.attempt_id)


def main() -> int:
    """Work until told to stop."""
    setup = json.loads(Path(sys.argv[1]).read_text())
    Worker(setup, sys.argv[2]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
