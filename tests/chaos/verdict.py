"""The verdict over a cell: line by line, from the ledgers, the database and independent checkers. All must hold."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.bootstrap import open_desk
from reconciler.config import Flags, load
from reconciler.ops.dispatch import ask
from reconciler.store.engine import read
from reconciler.store.schema import attempts, decisions, entries, submissions
from tests.chaos.ledger import lines
from tests.support.checker import check
from tests.support.daemons import clean_environment, program

ALLOWED_SHARE = 0.90
EXPLAINED = 40


@dataclass(frozen=True)
class Line:
    """One line of the verdict."""

    name: str
    good: bool
    found: str


@dataclass(frozen=True)
class Sample:
    """How far things were at a moment (monotonic seconds)."""

    at: float
    settled: int
    pending: int


def judge(url: str, engine: Engine, folder: Path) -> list[Line]:
    """Return the lines about what is in the database at the end, when all has come to rest."""
    with read(engine) as conn:
        row = submissions.c
        found = {
            (r.session_id, r.id): r
            for r in conn.execute(
                sa.select(row.session_id, row.id, row.status, row.outcome, row.ticket, row.settled_at)
            )
        }
        stored = {
            (r.session_id, r.id): r
            for r in conn.execute(
                sa.select(
                    entries.c.session_id,
                    entries.c.id,
                    entries.c.attempt_id,
                    entries.c.kind,
                    entries.c.role,
                    entries.c.tool_call_id,
                    entries.c.submission_id,
                )
            )
        }
        tries = conn.execute(
            sa.select(
                attempts.c.session_id,
                attempts.c.submission_id,
                sa.func.min(attempts.c.claimed_at).label("claimed_at"),
            ).group_by(attempts.c.session_id, attempts.c.submission_id)
        ).all()
        unexplained = conn.execute(
            sa.select(sa.func.count())
            .select_from(decisions)
            .where(sa.or_(decisions.c.reason == "", decisions.c.gate < 0))
        ).scalar_one()
    return [
        _acknowledged(folder, found, stored),
        _entries(folder, stored),
        _effects(folder, stored),
        _fsck(url),
        _order(found, tries),
        _explained(url, found, unexplained),
    ]


def _acknowledged(folder: Path, found: dict[tuple[str, str], Any], stored: dict[tuple[str, str], Any]) -> Line:
    promised = {(line["session"], line["submission"]) for line in lines(folder, "acknowledged")}
    told = {(line["session"], line["submission"]): line["outcome"] for line in lines(folder, "settled")}
    missing = [key for key in promised if key not in found]
    unsettled = [key for key in promised if key in found and found[key].status != "settled"]
    entries_of = Counter((s.session_id, s.submission_id) for s in stored.values() if s.kind == "submission_settled")
    twice = [key for key in found if entries_of[key] > 1]
    without = [key for key in found if found[key].status == "settled" and entries_of[key] == 0]
    other = [key for key, outcome in told.items() if key in found and found[key].outcome != outcome]
    good = bool(promised) and not (missing or unsettled or twice or without or other)
    return Line(
        "acknowledged = settled, each once",
        good,
        f"{len(promised)} acknowledged, {len(found)} in the database: {len(missing)} missing,"
        f" {len(unsettled)} unsettled, {len(twice)} settled twice, {len(without)} without entry,"
        f" {len(other)} with another outcome than was told",
    )


def _entries(folder: Path, stored: dict[tuple[str, str], Any]) -> Line:
    wanted = [
        (line["session"], entry_id, line["attempt"]) for line in lines(folder, "stored") for entry_id in line["ids"]
    ]
    lost = [one for one in wanted if one[:2] not in stored]
    changed = [one for one in wanted if one[:2] in stored and stored[one[:2]].attempt_id != one[2]]
    return Line(
        "no entry lost, none twice",
        bool(wanted) and not lost and not changed and len({one[:2] for one in wanted}) == len(wanted),
        f"{len(wanted)} appends were told to be stored: {len(lost)} missing, {len(changed)} under another attempt",
    )


def _effects(folder: Path, stored: dict[tuple[str, str], Any]) -> Line:
    ran = Counter(line["call"] for line in lines(folder, "effects"))
    answered = {s.tool_call_id for s in stored.values() if s.role == "tool_result"}
    twice = [call for call, count in ran.items() if count > 1]
    open_ = [call for call in ran if call not in answered]
    return Line(
        "side effects: none twice, each answered",
        bool(ran) and not twice and not open_,
        f"{sum(ran.values())} tool calls ran: {len(twice)} twice, {len(open_)} without result or marker",
    )


def _fsck(url: str) -> Line:
    found = check(url, quiescent=True)
    done = subprocess.run(
        program("--database", url, "fsck", "--json"),
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=300,
        check=False,
    )
    said = done.stdout.strip().splitlines()
    problems = json.loads(said[-1]) if said else {}
    return Line(
        "fsck clean",
        not found and done.returncode == 0,
        f"independent checker: {len(found)} violations {[str(one) for one in found[:3]]};"
        f" fsck: exit {done.returncode}{'' if done.returncode == 0 else ' ' + json.dumps(problems)[:300]}",
    )


def _order(found: dict[tuple[str, str], Any], tries: Any) -> Line:
    first = {(t.session_id, t.submission_id): t.claimed_at for t in tries}
    by_session: dict[str, list[Any]] = {}
    for row in found.values():
        by_session.setdefault(row.session_id, []).append(row)
    broken = pairs = 0
    for rows in by_session.values():
        rows.sort(key=lambda row: row.ticket)
        for before, after in pairwise(rows):
            claimed = first.get((after.session_id, after.id))
            if claimed is not None:
                pairs += 1
                broken += before.settled_at is None or claimed < before.settled_at
    return Line(
        "FIFO in each session",
        broken == 0 and pairs > 0,
        f"{pairs} pairs in {len(by_session)} sessions, {broken} broken",
    )


def _explained(url: str, found: dict[tuple[str, str], Any], unexplained: int) -> Line:
    desk = open_desk(load(Flags(database=url), {"HOME": "/nonexistent"}))
    faults = []
    keys = sorted(found)
    step = max(1, len(keys) // EXPLAINED)
    try:
        for session_id, submission_id in keys[::step]:
            answer = ask("explain", {"submission": submission_id, "session": session_id, "decisions": 1000}, desk)
            listed = answer.payload.get("decisions", [])
            if answer.error is not None or not listed or not all(one.get("reason") for one in listed):
                faults.append(f"{session_id}/{submission_id}")
    finally:
        desk.close()
    return Line(
        "every decision explained",
        not faults and not unexplained,
        f"{len(keys[::step])} submissions asked about, {len(faults)} without an answer, {unexplained} without a reason",
    )


# --- rates -----------------------------------------------------------------------------------------------------------


def rates(samples: list[Sample], window_s: float) -> list[tuple[float, float]]:
    """Return (moment, settlements per second over the window before it)."""
    found = []
    start = 0
    for place, sample in enumerate(samples):
        while samples[start].at < sample.at - window_s:
            start += 1
        if place > start and sample.at - samples[start].at > window_s * 0.6:
            gained = sample.settled - samples[start].settled
            found.append((sample.at, gained / (sample.at - samples[start].at)))
    return found


def recovery(
    samples: list[Sample], clean: tuple[float, float], stress_end: float, end: float, *, scale: float, rate: float
) -> list[Line]:
    """Return the lines about the way back: the rate, and the backlog."""
    window_s = max(1.0, 5 * scale)
    series = rates(samples, window_s)
    base = sorted(value for at, value in series if clean[0] + window_s <= at <= clean[1])
    if not base:
        return [Line("rate back", False, "no baseline was measured")]
    median = base[len(base) // 2]
    back = next((at for at, value in series if stress_end <= at <= end and value >= ALLOWED_SHARE * median), None)
    pending_before = [sample.pending for sample in samples if clean[0] <= sample.at <= clean[1]]
    pending_end = [sample.pending for sample in samples if end - 2 * scale - 0.5 <= sample.at <= end]
    most = max(pending_before) + rate * max(1.0, 2 * scale)
    left = min(pending_end) if pending_end else -1
    return [
        Line(
            "rate back",
            back is not None,
            f"baseline {median:.1f}/s; {ALLOWED_SHARE:.0%} of it"
            + (" never again" if back is None else f" again {max(0.0, back - stress_end):.1f} s after the stress"),
        ),
        Line(
            "backlog back",
            0 <= left <= most,
            f"{max(pending_before)} waiting at most before, {left} at the end, {most:.0f} allowed",
        ),
    ]


def found_again(engine: Engine, kills: list[tuple[float, str]]) -> str:
    """Return the time from a kill to the next claim of what the killed runner held, in words."""
    if not kills:
        return ""
    with read(engine) as conn:
        row = attempts.c
        rows = conn.execute(
            sa.select(row.session_id, row.submission_id, row.number, row.owner, row.claimed_at, row.end_kind).order_by(
                row.session_id, row.submission_id, row.number
            )
        ).all()
    took = []
    for killed_at, owner in kills:
        instant = datetime.fromtimestamp(killed_at, UTC)
        for before, after in pairwise(rows):
            same = (before.session_id, before.submission_id) == (after.session_id, after.submission_id)
            if same and before.owner == owner and before.end_kind not in ("settled", "released", "failed"):
                waited = (after.claimed_at - instant).total_seconds()
                if waited > 0:
                    took.append(waited)
    if not took:
        return "nothing was held at the kills"
    took.sort()
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    return f"from kill to next claim: p50 {p50:.2f} s, p99 {p99:.2f} s (n {len(took)})"
