"""Walks through every state of a configuration, breadth first, so that what is broken is shown by a shortest history.

python -m tests.proof.model.explore                       # the small configurations
python -m tests.proof.model.explore --full --states 3000000
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from reconciler.core.states import SubmissionStatus
from tests.proof.model.checks import at_rest, broken_in, drained
from tests.proof.model.configurations import CONFIGURATIONS, FULL
from tests.proof.model.machine import Configuration, Model, Row, State


@dataclass
class Explored:
    """What came of one exploration."""

    name: str
    states: int = 0
    steps: int = 0
    ends: int = 0
    complete: bool = False
    seconds: float = 0.0
    # Each broken check with its shortest history.
    broken: dict[str, list[str]] = field(default_factory=dict)


def explore(
    configuration: Configuration,
    *,
    mutant: str | None = None,
    states_max: int = 10_000_000,
    seconds: float = 1e9,
    stop_at: Iterable[str] = (),
    drain_every: int = 1,
) -> Explored:
    """Explore *configuration*, at most *states_max* states; stop when each check of *stop_at* is broken (if any).

    Every *drain_every*-th database that can be at rest is worked off to its end.
    """
    model = Model(configuration, mutant)
    found = Explored(configuration.name)
    started = time.monotonic()
    wanted = set(stop_at)
    initial = model.initial()
    came_from: dict[State, tuple[State, str] | None] = {initial: None}
    ends: dict[State, tuple[object, bool]] = {}
    queue = deque([initial])

    def report(check: str, state: State, last: str | None = None) -> None:
        if check not in found.broken:
            found.broken[check] = [*_history(came_from, state), *([last] if last else [])]

    def end_of(state: State) -> object:
        rested = at_rest(state)
        if rested not in ends:
            end, is_end = drained(model, rested)
            ends[rested] = (tuple(row.outcome for row in end.rows), is_end)
            if not is_end:
                report("Liveness", state)
        return ends[rested][0]

    while queue:
        if (
            len(came_from) > states_max
            or time.monotonic() - started > seconds
            or (wanted and wanted <= set(found.broken))
        ):
            break
        state = queue.popleft()
        found.states += 1
        for check in broken_in(model, state):
            report(check, state)
        drains = found.states % drain_every == 0
        if drains:
            end_of(state)
        for step in model.steps(state):
            found.steps += 1
            for check in step.broken:
                report(check, state, step.label)
            if any(_changes_an_outcome(*pair) for pair in zip(state.rows, step.state.rows, strict=True)):
                report("SettledForEver", state, step.label)
            is_write = step.label.startswith("daemon") and " writes " in step.label and not configuration.deadline
            # A crash before the write and a pass from the start come to the same end as the write.
            if drains and is_write and end_of(state) != end_of(step.state):
                report("RecoveryConfluence", state, step.label)
            if step.state not in came_from:
                came_from[step.state] = (state, step.label)
                queue.append(step.state)
    else:
        found.complete = True
    found.ends = len(ends)
    found.seconds = time.monotonic() - started
    return found


def _changes_an_outcome(before: Row, after: Row) -> bool:
    if before.status is not SubmissionStatus.SETTLED or after.status is None:
        return False
    return after.status is not before.status or after.outcome is not before.outcome


def _history(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps: list[str] = []
    at: State | None = state
    while at is not None:
        before = came_from[at]
        if before is None:
            break
        at, label = before
        steps.append(label)
    return steps[::-1]


def main() -> int:
    """Run from a shell; 1 where something is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the full constants")
    parser.add_argument("--only", default="", help="configurations whose name holds this text")
    parser.add_argument("--states", type=int, default=1_000_000, help="of each configuration at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each configuration at most")
    parser.add_argument("--drain-every", type=int, default=None)
    parser.add_argument("--mutant")
    parser.add_argument("--json", type=Path, help="write what was found there")
    given = parser.parse_args()
    results = []
    for name, configuration in (FULL if given.full else CONFIGURATIONS).items():
        if given.only not in name:
            continue
        found = explore(
            configuration,
            mutant=given.mutant,
            states_max=given.states,
            seconds=given.seconds,
            drain_every=given.drain_every or (8 if given.full else 1),
        )
        results.append(found)
        print(
            f"{name}: {found.states} states, {found.steps} steps, {found.ends} ends,"
            f" {'complete' if found.complete else 'stopped at its bound'}, {found.seconds:.1f} s"
            + (f", BROKEN: {', '.join(found.broken)}" if found.broken else ""),
            flush=True,
        )
        for check, history in found.broken.items():
            print(f"  {check}:", *(f"    {step}" for step in history), sep="\n")
    if given.json:
        given.json.write_text(json.dumps([found.__dict__ for found in results], indent=1))
    return 1 if any(found.broken for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
