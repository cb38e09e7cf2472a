"""A small but real runner: a scripted model, tools whose effects can be counted, and the loop between them.

The model is asked with the path that `begin` and `path` give, and nothing else: what it says next follows from what is
on record, as with a real one. The tool writes a line into a ledger file and syncs it, so that a tool that ran twice is
seen. Nothing here remembers anything over a crash; that is the session's work.

Run it beside the daemon:

    python examples/runner/agent.py sqlite:///demo.sqlite3 ledger.jsonl --submit 3
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reconciler import Attempt, AttemptLost, Conflict, Directive, NewEntry, Runner, SessionDamaged, SessionEntry
from reconciler.service.attempt import TurnPath

# --- the tool --------------------------------------------------------------------------------------------------------


class Ledger:
    """Where the tool's effects can be counted: one line per execution, on the disk before it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: dict[str, Any]) -> None:
        """Do the effect."""
        data = json.dumps({**line, "at": time.time(), "pid": os.getpid()}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, data.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def lines(self) -> list[dict[str, Any]]:
        """Return the executions so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def has(self, step: str) -> bool:
        """Tell whether a step's effect is there: what the model does before it does something again."""
        return any(line["step"] == step for line in self.lines())


# --- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Response:
    """What the model says: calls for tools, or an answer."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()  # (call id, step)


class ScriptedModel:
    """Asks for one or two steps at a time until all are done, then answers."""

    def respond(self, path: TurnPath, submission_id: str, steps: int, attempt: int) -> Response:
        """Return the next response to a path."""
        done = set(self._done(path, submission_id))
        todo = [f"{submission_id}/step-{number}" for number in range(steps)]
        todo = [step for step in todo if step not in done]
        if not todo:
            return Response(f"all {steps} steps are done")
        batch = todo[: 1 + len(todo) % 2]
        # A provider makes a new id for every call.
        return Response("let me do it", tuple((f"call-{attempt}-{len(path)}-{step}", step) for step in batch))

    def _done(self, path: TurnPath, submission_id: str) -> Iterable[str]:
        for item in path:
            is_result = isinstance(item.entry, SessionEntry) and item.entry.role == "tool_result"
            # A marker says that the outcome of a call isn't known, or that it never ran: its step is looked at again.
            if is_result and isinstance(item.payload, dict) and "step" in item.payload:
                yield str(item.payload["step"])


# --- the loop --------------------------------------------------------------------------------------------------------


def run_attempt(attempt: Attempt, ledger: Ledger, model: ScriptedModel) -> None:
    """Work on one attempt until it has an outcome, or until it is lost."""
    path = attempt.begin()
    steps = int(attempt.payload["steps"])
    while not attempt.lost.is_set():
        if attempt.directive in (Directive.ABORT, Directive.DEADLINE):
            attempt.settle("aborted" if attempt.directive is Directive.ABORT else "failed")
            return
        response = model.respond(path, attempt.submission_id, steps, attempt.number)
        if not response.calls:
            attempt.append([NewEntry("assistant", {"text": response.text}, stop_reason="stop")])
            attempt.settle("completed")
            return
        # With its calls, before any tool starts.
        attempt.append(
            [
                NewEntry(
                    "assistant",
                    {"text": response.text, "calls": [list(call) for call in response.calls]},
                    stop_reason="tool_use",
                    tool_call_ids=tuple(call for call, _ in response.calls),
                    starts_logged=True,
                )
            ]
        )
        for call, step in response.calls:
            if attempt.lost.is_set():
                return
            attempt.start(call)
            # Whether an earlier try of this step got so far is asked of the world, not of the record.
            known = ledger.has(step)
            if not known:
                ledger.write({"step": step, "call": call, "submission": attempt.submission_id})
            attempt.append([NewEntry("tool_result", {"step": step, "known": known}, tool_call_id=call)])
        path = attempt.path()


def work(
    database_url: str,
    ledger: Ledger,
    *,
    idle_s: float = 1.0,
    on_claim: Callable[[Attempt], None] = lambda attempt: None,
    **settings: Any,
) -> int:
    """Claim and work until nothing came for *idle_s* seconds; return how many attempts were worked on."""
    worked = 0
    model = ScriptedModel()
    with Runner(database_url, **settings) as runner:
        while attempts := runner.claim(wait_s=idle_s):
            for attempt in attempts:
                worked += 1
                on_claim(attempt)
                try:
                    run_attempt(attempt, ledger, model)
                except (AttemptLost, SessionDamaged) as error:
                    # Somebody else decides now: nothing of ours may be done about it.
                    print(f"{attempt}: {error}", file=sys.stderr)
                except Conflict as error:
                    # An abort came before a tool could start, or the record says otherwise: a pass decides. Given back,
                    # for beats would keep alive what nobody works on.
                    print(f"{attempt}: {error}", file=sys.stderr)
                    with suppress(AttemptLost):
                        attempt.release("conflict")
    return worked


def main() -> None:
    """Run from a shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", help="sqlite:///PATH or postgresql://..., with the tables in it")
    parser.add_argument("ledger", type=Path, help="the file that the tool writes to")
    parser.add_argument("--submit", type=int, default=0, metavar="N", help="submit N pieces of work first")
    parser.add_argument("--idle", type=float, default=5.0, metavar="S", help="end after so many idle seconds")
    given = parser.parse_args()
    if given.submit:
        with Runner(given.database) as runner:
            for number in range(given.submit):
                runner.submit(f"demo-{number % 2}", f"demo-{os.getpid()}-{number}", {"steps": 3})
    print(work(given.database, Ledger(given.ledger), idle_s=given.idle), "attempts")


if __name__ == "__main__":
    main()
