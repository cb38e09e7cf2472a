"""The crash injector: every operation killed before and after every statement and every commit, then recovered.

For each point: a child does the operation on a prepared database and dies there by SIGKILL; the database is looked at
before anything heals it; a fresh process repeats the call with the same ids and runs two passes, the second of which
must write nothing; and what stands there at the end must be what the uninterrupted operation and the same passes leave,
up to times. Then, from every database that a death left, the recovery itself is killed at every point.

    python -m tests.proof.crash                    # everything, on both databases
    python -m tests.proof.crash --only "settle" --kind sqlite
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from reconciler.store.migrate import upgrade
from tests.proof import driver, hands
from tests.proof.forking import ChildFailed, in_child, value_of
from tests.proof.hands import Hands, seeded
from tests.proof.normal import normal_answer, normal_rows, same_rows
from tests.proof.operations import DAMAGED, OPERATIONS, Operation
from tests.proof.places import Place, PostgreSQLPlace, SQLitePlace
from tests.support.checker import check, report

# A statement more at every run would never end.
POINTS_MAX = 2_000


@dataclass
class Found:
    """What came of it."""

    operations: int = 0
    points: int = 0
    deaths: int = 0
    # Databases that differ, as deaths left them; and deaths of the recovery.
    crashed_states: int = 0
    recovery_deaths: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    per_operation: dict[str, int] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Add up."""
        for name in ("operations", "points", "deaths", "crashed_states", "recovery_deaths", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.per_operation |= other.per_operation


class Injector:
    """Kills operations on one place."""

    def __init__(self, place: Place, folder: Path) -> None:
        driver.install()
        self.place = place
        self.folder = folder
        self.found = Found()
        self._operation: Operation | None = None
        self._empty: Any = None

    # --- parts of a run, each in a child -----------------------------------------------------------------------------

    def _hands(self, *, repeated: bool = False) -> Hands:
        return Hands(self.place.url, self.folder, repeated)

    def _prepare(self, operation: Operation) -> Any:
        with seeded(f"prepare {operation.name}"):
            return operation.prepare(self._hands())

    def _act(self, operation: Operation, state: Any, kill_at: int | None, *, repeated: bool = False) -> Any:
        mine = self._hands(repeated=repeated)
        if not operation.empty:
            mine.connect()
        watching = driver.Watch(kill_at)
        with seeded(f"act {operation.name}"):
            driver.watch(watching)
            try:
                answer = operation.act(mine, state)
            finally:
                driver.watch(None)
        return normal_answer(answer), watching.points

    def _recover(self, operation: Operation, state: Any, kill_at: int | None, *, repeats: bool) -> Any:
        """Repeat the call where *repeats*, then run two passes; return the answer, the points, the second's fault."""
        mine = self._hands(repeated=True)
        if not operation.empty:
            mine.connect()
        watching = driver.Watch(kill_at)
        answer = None
        if repeats:
            with seeded(f"act {operation.name}"):
                driver.watch(watching)
                answer = operation.act(mine, state)
                driver.watch(None)
        driver.watch(watching)
        mine.reconcile()
        driver.watch(None)
        before = self._rows_here(mine)
        done = mine.reconcile()
        wrote = None
        if done.written:
            wrote = f"a second pass wrote: {done.as_json()}"
        elif before != self._rows_here(mine):
            wrote = "a second pass changed rows"
        return normal_answer(answer), watching.points, wrote

    def _rows_here(self, mine: Hands) -> Any:
        # In a child: the place's own connection is its parent's.
        connection = mine.engine.raw_connection()
        try:
            return self.place.rows_by(connection.driver_connection)
        finally:
            connection.close()

    # --- driving -----------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, *, at_most: int = POINTS_MAX, recovery_at_most: int = POINTS_MAX) -> Found:
        """Kill *operation* at every point, or at *at_most* of them; its recovery likewise."""
        started = time.monotonic()
        found = self.found = Found(operations=1)
        self._operation = operation
        try:
            self._run(operation, at_most, recovery_at_most)
        except (ChildFailed, TimeoutError) as error:
            found.faults.append(f"{self.place.kind}, {operation.name}: {error}")
        found.seconds = time.monotonic() - started
        return found

    def points_of(self, operation: Operation) -> list[str]:
        """Return the points of *operation* and of the passes that follow, killing nothing."""
        self.place.restore(self._migrated())
        state = value_of(partial(self._prepare, operation))
        _, points = value_of(partial(self._act, operation, state, None))
        _, later, _ = value_of(partial(self._recover, operation, state, None, repeats=False))
        return [*points, *later]

    def _run(self, operation: Operation, at_most: int, recovery_at_most: int) -> None:
        found, place = self.found, self.place
        if operation.empty:
            place.clear()
            state = None
        else:
            place.restore(self._migrated())
            state = value_of(partial(self._prepare, operation))
            self._check("as prepared")
        prepared = place.save() if not operation.empty else None
        # Uninterrupted, counting; and once more, whether the same points come.
        first_answer, points = value_of(partial(self._act, operation, state, None))
        found.points = len(points)
        found.per_operation[f"{place.kind}: {operation.name}"] = len(points)
        self._check("uninterrupted")
        done = self._digest()
        _, _, wrote = value_of(partial(self._recover, operation, state, None, repeats=False))
        self._after_recovery("uninterrupted", wrote, None)
        wanted = place.rows()
        if not points or len(points) > POINTS_MAX:
            self._fault("discovery", f"{len(points)} points")
            return
        crashed: dict[str, tuple[str, Any]] = {}
        for number in _some(points, at_most):
            self._restore(prepared)
            where = f"killed {points[number - 1][:120]} (point {number} of {len(points)})"
            if not in_child(partial(self._act, operation, state, number)).killed:
                self._fault(where, "the process did not die: other points than before")
                continue
            found.deaths += 1
            place.quiet()
            self._check(f"{where}, as it died")
            digest = self._digest()
            crashed.setdefault(digest, (where, place.save()))
            answer, _, wrote = value_of(partial(self._recover, operation, state, None, repeats=operation.repeats))
            if operation.repeats and operation.same_answer and answer != first_answer:
                self._fault(where, f"the repeat was told {answer}, the first call {first_answer}")
            self._after_recovery(where, wrote, wanted if operation.repeats else None)
        crashed.setdefault(done, ("after the operation, its answer lost", None))
        found.crashed_states = len(crashed)
        each = max(1, recovery_at_most // len(crashed))
        for where, saved in list(crashed.values())[:recovery_at_most]:
            self._kill_recovery(operation, state, where, saved, prepared, wanted, each)

    def _kill_recovery(
        self,
        operation: Operation,
        state: Any,
        where: str,
        saved: Any,
        prepared: Any,
        wanted: Any,
        at_most: int,
    ) -> None:
        place = self.place

        def back() -> None:
            if saved is not None and not operation.empty:
                place.restore(saved)
                return
            self._restore(prepared)
            if saved is None:
                value_of(partial(self._act, operation, state, None))

        if operation.empty and saved is not None:
            # A death in the middle of a migration left nothing: it is the empty database again.
            return
        back()
        _, points, _ = value_of(partial(self._recover, operation, state, None, repeats=operation.repeats))
        # Without the caller there is no repeat: the passes alone must come to a sound end.
        back()
        _, _, wrote = value_of(partial(self._recover, operation, state, None, repeats=False))
        self._after_recovery(f"{where}, nobody repeats it", wrote, None)
        for number in _some(points, at_most):
            back()
            again = f"{where}; recovery killed {points[number - 1][:120]} (point {number} of {len(points)})"
            if not in_child(partial(self._recover, operation, state, number, repeats=operation.repeats)).killed:
                self._fault(again, "the recovery did not die: other points than before")
                continue
            self.found.recovery_deaths += 1
            place.quiet()
            self._check(f"{again}, as it died")
            _, _, wrote = value_of(partial(self._recover, operation, state, None, repeats=operation.repeats))
            self._after_recovery(again, wrote, wanted if operation.repeats else None)

    # --- judging -----------------------------------------------------------------------------------------------------

    def _after_recovery(self, where: str, wrote: str | None, wanted: Any) -> None:
        self.place.quiet()
        if wrote:
            self._fault(where, wrote)
        self._check(where, quiescent=True)
        if wanted is not None:
            for difference in same_rows(normal_rows(wanted), normal_rows(self.place.rows())):
                self._fault(where, f"another end than uninterrupted: {difference}")

    def _check(self, where: str, *, quiescent: bool = False) -> None:
        if not self.place.rows():
            return
        violations = check(self.place.url, quiescent=quiescent, limits=hands.LIMITS, damaged=DAMAGED)
        if violations:
            self._fault(where, report(violations))

    def _fault(self, where: str, what: str) -> None:
        name = self._operation.name if self._operation else ""
        self.found.faults.append(f"{self.place.kind}, {name}, {where}: {what}")

    def _digest(self) -> str:
        return sha256(repr(normal_rows(self.place.rows())).encode()).hexdigest()

    def _migrated(self) -> Any:
        if self._empty is None:
            self.place.clear()
            value_of(lambda: upgrade(self.place.url).after)
            self._empty = self.place.save()
        elif not self.place.rows():
            self.place.clear()
            value_of(lambda: upgrade(self.place.url).after)
        return self._empty

    def _restore(self, saved: Any) -> None:
        if saved is None:
            self.place.clear()
        else:
            self.place.restore(saved)


def _some(points: list[str], at_most: int) -> list[int]:
    """Return the numbers of all points, or of *at_most*: around commits first, others from all over the rest."""
    numbers = list(range(1, len(points) + 1))
    if len(numbers) <= at_most:
        return numbers
    # What has the longest history stands last: the last commits are the ones behind which everything is durable.
    commits = [number for number in numbers if points[number - 1].endswith(" COMMIT")][::-1]
    chosen = commits[: (at_most + 1) // 2]
    rest = [number for number in numbers if number not in chosen]
    left = at_most - len(chosen)
    # Other ones in each operation, the same in every run.
    offset = int(sha256("".join(points).encode()).hexdigest(), 16) % max(1, len(rest) // max(1, left))
    return sorted({*chosen, *rest[offset :: max(1, len(rest) // max(1, left))][:left]})


# --- warm-up and the places ------------------------------------------------------------------------------------------


def warm(place: Place, folder: Path) -> None:
    """Do what children will do once in this process, so that they find their statements compiled."""
    mine = Hands(place.url, folder)
    for operation in OPERATIONS:
        if operation.empty:
            continue
        with seeded(f"warm {operation.name}"):
            try:
                place.restore(_warm_state(place))
                state = operation.prepare(mine)
                mine._runner = None
                operation.act(mine, state)
                mine._runner = None
                mine.reconcile()
            finally:
                hands.let_go()
    gc.collect()
    gc.freeze()


_warm_states: dict[str, Any] = {}


def _warm_state(place: Place) -> Any:
    if place.url not in _warm_states:
        place.clear()
        upgrade(place.url)
        hands.let_go()
        _warm_states[place.url] = place.save()
    return _warm_states[place.url]


@contextmanager
def sqlite_place(folder: Path) -> Iterator[SQLitePlace]:
    """Give an SQLite place in *folder*."""
    place = SQLitePlace(folder / "proof.sqlite3")
    try:
        yield place
    finally:
        hands.forget()
        place.close()


@contextmanager
def postgresql_place(url: str) -> Iterator[PostgreSQLPlace]:
    """Give a PostgreSQL place over the database at *url*, which is the place's own."""
    place = PostgreSQLPlace(url)
    try:
        yield place
    finally:
        hands.forget()
        place.close()


def memory_folder() -> str | None:
    """Return a folder in memory where there is one: what is proven is what a killed process leaves, not a disk."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() else None


def main() -> int:
    """Run from a shell; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--only", default="", help="operations whose name holds this text")
    parser.add_argument("--at-most", type=int, default=POINTS_MAX, help="points of each operation (default: all)")
    parser.add_argument("--recovery-at-most", type=int, default=POINTS_MAX, help="points of its recovery")
    parser.add_argument("--json", type=Path, help="write what was found there")
    given = parser.parse_args()
    totals: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = Path(name)
        if given.kind in ("sqlite", "both"):
            with sqlite_place(folder) as place:
                totals["sqlite"] = _all(place, folder, given)
        if given.kind in ("postgresql", "both"):
            from tests.support.postgresql import Server

            with Server() as server:
                server.address.execute("CREATE DATABASE proof TEMPLATE template0")
                with postgresql_place(server.address.url("proof")) as place:
                    totals["postgresql"] = _all(place, folder, given)
    faults = [fault for found in totals.values() for fault in found.faults]
    for kind, found in totals.items():
        print(
            f"{kind}: {found.operations} operations, {found.points} points, {found.deaths} deaths,"
            f" {found.crashed_states} databases as deaths left them, {found.recovery_deaths} deaths of the recovery,"
            f" {len(found.faults)} faults, {found.seconds:.0f} s"
        )
    if given.json:
        given.json.write_text(json.dumps({kind: found.__dict__ for kind, found in totals.items()}, indent=1))
    for fault in faults[:50]:
        print(fault)
    return 1 if faults else 0


def _all(place: Place, folder: Path, given: argparse.Namespace) -> Found:
    driver.install()
    warm(place, folder)
    injector, total = Injector(place, folder), Found()
    for operation in OPERATIONS:
        if given.only in operation.name:
            found = injector.run(operation, at_most=given.at_most, recovery_at_most=given.recovery_at_most)
            total.add(found)
            print(
                f"  {place.kind}, {operation.name}: {found.points} points, {found.deaths} + {found.recovery_deaths}"
                f" deaths, {len(found.faults)} faults, {found.seconds:.1f} s",
                file=sys.stderr,
            )
    return total


if __name__ == "__main__":
    sys.exit(main())
