"""Breaks sound session files in every way that a crash, a disk, or a second writer may, and holds what comes of it.

For each broken file: ``inspect`` and ``import`` answer or refuse in typed words; a pass decides and a second one writes
nothing; nothing is written into what is damaged; nothing that its record shows answered is queued again; and ``fsck``
and the independent checker find the database sound. Once as mirrored sessions, once taken over.

    python -m tests.chaos.damage --cases 5000 --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from reconciler.core.classifier import inspect_session
from reconciler.core.model import SessionEntry
from reconciler.errors import ReconcilerError
from reconciler.service.fsck import fsck
from reconciler.service.ingest import IngestOptions, import_paths
from reconciler.service.inspect_files import inspect_paths
from reconciler.service.reconcile import Judge, reconcile_once
from reconciler.store import schema
from reconciler.store.engine import make_engine, read
from reconciler.store.migrate import upgrade
from tests.support.checker import check, report

# No answer may take longer, however broken the file is.
ANSWER_S = 20.0
FILE_BYTES_MAX = 200_000

Lines = list[bytes]
Damage = Callable[[Lines, random.Random, Sequence[Lines]], Lines]


# --- the damages -----------------------------------------------------------------------------------------------------


def drop(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Lose some lines."""
    gone = {rng.randrange(len(lines)) for _ in range(rng.randrange(1, 4))}
    return [line for number, line in enumerate(lines) if number not in gone]


def duplicate(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Write some lines twice."""
    at = rng.randrange(len(lines))
    return lines[: at + 1] + lines[max(0, at - rng.randrange(3)) : at + 1] + lines[at + 1 :]


def reorder(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Write lines in another order."""
    changed = list(lines)
    for _round in range(rng.randrange(1, 4)):
        one, other = rng.randrange(len(changed)), rng.randrange(len(changed))
        changed[one], changed[other] = changed[other], changed[one]
    return changed


_PARENTS = ("parentId", "parentUuid", "logicalParentUuid", "parent_id")
_IDS = ("id", "uuid")


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ids(lines: Lines) -> list[str]:
    return [
        str(found[name]) for line in lines if (found := _parsed(line)) is not None for name in _IDS if name in found
    ]


def reparent(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Let a line hang from another one, from itself, or from one that isn't there."""
    changed = list(lines)
    for _round in range(rng.randrange(1, 3)):
        at = rng.randrange(len(changed))
        found = _parsed(changed[at])
        for name in _PARENTS:
            if found is not None and name in found:
                found[name] = rng.choice([*_ids(lines), "no-such-entry", None])
                changed[at] = json.dumps(found).encode()
    return changed


def truncate(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """End anywhere."""
    whole = b"\n".join(lines)
    return whole[: rng.randrange(len(whole))].split(b"\n")


def flip(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Flip bits."""
    whole = bytearray(b"\n".join(lines))
    for _round in range(rng.choice((1, 1, 4, 40))):
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return bytes(whole).split(b"\n")


def split(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Tear a write apart: its halves are lines of their own, or the second one is lost."""
    at = rng.randrange(len(lines))
    middle = rng.randrange(len(lines[at]) + 1)
    halves = [lines[at][:middle], lines[at][middle:]]
    return [*lines[:at], *(halves if rng.random() < 0.5 else halves[:1]), *lines[at + 1 :]]


def interleave(lines: Lines, rng: random.Random, others: Sequence[Lines]) -> Lines:
    """Two writers write into one file."""
    other = list(rng.choice(others))
    mixed: Lines = []
    mine = list(lines)
    while mine or other:
        source = mine if mine and (not other or rng.random() < 0.6) else other
        mixed.append(source.pop(0))
    return mixed


def rewind(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Go on from an earlier entry."""
    ids = _ids(lines)
    changed = list(lines)
    for number in range(rng.randrange(1, 3)):
        found = _parsed(rng.choice(lines))
        if found is None or not ids:
            continue
        for name in _IDS:
            if name in found:
                found[name] = f"rewound-{number}"
        for name in _PARENTS:
            if name in found:
                found[name] = rng.choice(ids)
        changed.append(json.dumps(found).encode())
    return changed


def fork(lines: Lines, rng: random.Random, _: Sequence[Lines]) -> Lines:
    """Write the end once more with other ids, hanging from the same place."""
    at = rng.randrange(len(lines))
    renamed: dict[str, str] = {}
    tail: Lines = []
    for line in lines[at:]:
        found = _parsed(line)
        if found is None:
            continue
        for name in _IDS:
            if name in found:
                renamed[str(found[name])] = found[name] = f"fork-{found[name]}"
        for name in _PARENTS:
            if found.get(name) in renamed:
                found[name] = renamed[found[name]]
        tail.append(json.dumps(found).encode())
    return [*lines, *tail]


DAMAGES: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (drop, duplicate, reorder, reparent, truncate, flip, split, interleave, rewind, fork)
}


# --- holding what comes of it ----------------------------------------------------------------------------------------


@dataclass
class Totals:
    """What came of the cases."""

    cases: int = 0
    imported: int = 0
    refused: int = 0
    submissions: int = 0
    damages: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Trial:
    """Runs broken files through everything, on an SQLite file that is made anew for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "damage.sqlite3"
        self.url = f"sqlite:///{self.path}"
        upgrade(self.url)
        with contextlib.closing(sqlite3.connect(self.path)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._empty = self.path.read_bytes()
        self.engine = make_engine(self.url)
        self.totals = Totals()

    def one(self, name: str, content: bytes, *, own: bool) -> None:
        """Hold one broken file."""
        self.engine.dispose()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self.path.write_bytes(self._empty)
        broken = self.folder / f"broken{Path(name).suffix}"
        broken.write_bytes(content)
        started = time.monotonic()
        self.totals.cases += 1
        try:
            self._hold(broken, own=own)
        except ReconcilerError as error:
            # A typed refusal of the only file: nothing was written.
            self.totals.refused += 1
            if self._rows(schema.entries):
                self.totals.faults.append(f"{name}: refused ({error.code}) after it wrote")
        except Exception as error:
            self.totals.faults.append(f"{name}: {type(error).__name__}: {error}")
        if time.monotonic() - started > ANSWER_S:
            self.totals.faults.append(f"{name}: took {time.monotonic() - started:.0f} s")

    def _hold(self, broken: Path, *, own: bool) -> None:
        shown = inspect_paths([str(broken)], all_prompts=True)
        for file in shown["files"]:
            for submission in file["submissions"]:
                self.totals.states[submission["detail"]] += 1
        options = IngestOptions(all_prompts=True, own=own, force=True)
        import_paths(self.engine, [str(broken)], options)
        self.totals.imported += 1
        before = self._rows(schema.entries)
        self._judge("imported")
        verdicts = self._verdicts()
        first = self._pass()
        middle = self._everything()
        second = self._pass()
        if second.written or middle != self._everything():
            self._fault("a second pass wrote")
        after = self._rows(schema.entries)
        if first.set_aside:
            self._fault("a row was set aside")
        self._judge("decided", quiescent=True)
        self._compare(verdicts, before, after)
        found = fsck(self.engine)
        if [finding for finding in found.findings if finding.invariant != "damage"] and not own:
            listed = [f"{one.invariant} {one.check}: {one.found}" for one in found.findings[:3]]
            if not self._is_damage(found.findings):
                self._fault(f"fsck: {listed}")
        if not own:
            again = import_paths(self.engine, [str(broken)], IngestOptions(all_prompts=True))
            if self._rows(schema.entries) != after:
                self._fault(f"the same file again changed entries: {again['imported']}")

    def _is_damage(self, findings: Sequence[Any]) -> bool:
        # What a source's file lacks, fsck shows as what it is: parents that are not there.
        return all("parent" in one.check or "leaf" in one.check for one in findings)

    def _verdicts(self) -> dict[tuple[str, str], Any]:
        sessions = {row["id"]: row for row in self._rows(schema.sessions)}
        entries: dict[str, list[SessionEntry]] = {}
        for row in self._rows(schema.entries):
            entries.setdefault(row["session_id"], []).append(_entry(row))
        found = {}
        for row in self._rows(schema.submissions):
            session = sessions[row["session_id"]]
            found[row["session_id"], row["id"]] = inspect_session(
                entries.get(row["session_id"], []),
                session["leaf_entry_id"],
                row["id"],
                leaf_known_empty=session["leaf_known_empty"],
            )
        self.totals.submissions += len(found)
        return found

    def _compare(self, verdicts: dict[tuple[str, str], Any], before: list[Any], after: list[Any]) -> None:
        kept = {(row["session_id"], row["id"]) for row in after}
        for row in before:
            if (row["session_id"], row["id"]) not in kept:
                self._fault(f"a pass removed entry {row['id']}")
        settled_before = {
            (row["session_id"], row["submission_id"]) for row in before if row["kind"] == "submission_settled"
        }
        for row in self._rows(schema.submissions):
            verdict = verdicts[row["session_id"], row["id"]]
            key = (row["session_id"], row["id"])
            if verdict.state == "completed" and row["decision_action"] == "requeue":
                self._fault(f"{row['id']} was answered ({verdict.detail}) and is queued again")
            written = {
                (one["session_id"], one["submission_id"])
                for one in after
                if one["kind"] == "submission_settled"
            } - settled_before  # fmt: skip
            if verdict.detail == "integrity_hold" and key in written:
                self._fault(f"{row['id']}: something was written into a damaged session")
            # What may still be written to is waited for, until an instant.
            waits = row["reconcile_at"] is not None and not row["decision_action"]
            if (
                verdict.detail == "integrity_hold"
                and row["held_at"] is None
                and row["status"] != "settled"
                and not waits
            ):
                self._fault(f"{row['id']}: damaged, and nobody is told")

    def _judge(self, when: str, *, quiescent: bool = False) -> None:
        damaged = [row["id"] for row in self._rows(schema.sessions)]
        violations = check(self.url, quiescent=quiescent, damaged=damaged)
        if violations:
            self._fault(f"{when}: {report(violations)}")

    def _pass(self) -> Any:
        return reconcile_once(self.engine, judge=Judge(connected_for_s=lambda: 1e9), jitter=lambda: 0.0)

    def _rows(self, table: sa.Table) -> list[Any]:
        with read(self.engine) as conn:
            return [dict(row._mapping) for row in conn.execute(sa.select(table).order_by(*table.primary_key))]

    def _everything(self) -> dict[str, list[Any]]:
        return {table.name: self._rows(table) for table in schema.metadata.sorted_tables}

    def _fault(self, what: str) -> None:
        raise AssertionError(what)


def _entry(row: Any) -> SessionEntry:
    values = {name: row[name] for name in SessionEntry.__slots__ if name in row}
    values["tool_call_ids"] = tuple(json.loads(row["tool_call_ids"])) if row["tool_call_ids"] else ()
    return SessionEntry(**values)


def run(files: Sequence[Path], *, cases: int, seed: int, folder: Path, seconds: float = 1e9) -> Totals:
    """Break *files* in turn, *cases* times."""
    trial = Trial(folder)
    sources = [path.read_bytes().split(b"\n") for path in files]
    started = time.monotonic()
    for case in range(cases):
        if time.monotonic() - started > seconds or len(trial.totals.faults) >= 20:
            break
        rng = random.Random(f"{seed}/{case}")
        at = rng.randrange(len(files))
        lines = [line for line in sources[at] if line]
        names = [rng.choice(list(DAMAGES)) for _ in range(rng.choice((1, 1, 2, 3)))]
        for name in names:
            if lines:
                lines = [line for line in DAMAGES[name](lines, rng, sources) if line] or [b"{}"]
            trial.totals.damages[name] += 1
        own = rng.random() < 0.5
        label = f"case {seed}/{case}: {files[at].name}, {' + '.join(names)}{', owned' if own else ''}"
        trial.one(label + files[at].suffix, b"\n".join(lines) + (b"\n" if rng.random() < 0.8 else b""), own=own)
    trial.engine.dispose()
    return trial.totals


def corpus_files() -> list[Path]:
    """Return the line-based files of the corpus beside the checkout, and our own samples."""
    root = Path(__file__).resolve().parents[2]
    found = sorted((root / "examples" / "sessions").glob("*.jsonl"))
    found += sorted((root.parent / "shared" / "corpus").rglob("*.jsonl"))
    return [path for path in found if path.stat().st_size <= FILE_BYTES_MAX]


def main() -> int:
    """Run from a shell; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        totals = run(corpus_files(), cases=given.cases, seed=given.seed, folder=Path(name), seconds=given.seconds)
    print(
        f"{totals.cases} cases, {totals.imported} imported, {totals.refused} refused, {totals.submissions} submissions,"
        f" {len(totals.faults)} faults\n{dict(totals.damages)}\n{dict(totals.states)}"
    )
    for fault in totals.faults:
        print(fault[:1500])
    return 1 if totals.faults else 0


if __name__ == "__main__":
    sys.exit(main())
