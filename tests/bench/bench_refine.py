"""How fast the durable gate is, as ratios within one run: against raw driver statements, and over buffer sizes.

    python -m tests.bench.bench_refine [--seconds 2] [--rounds 5] [--buffer 1000000] [--database sqlite|postgresql]

Prints one JSON object. ``gate_ratio`` is our rate over that of the raw statements that keep the same promises (lock,
first answer of a known key, memory, step, budget; one durable commit each), with 1 process, and with 8 over 8 subjects.
``look_up_ratio`` is the time of a look-up in a large buffer over one in a small one. Rounds of both sides alternate, so
that a noisy neighbour hits both; the median of the rounds counts. Absolute rates are printed for orientation only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from reconciler.core.refine import EditBudget
from reconciler.service.refine import RefineGate
from reconciler.store import migrate
from tests.support.postgresql import Server

Step = Callable[[str, str, float], None]
BUDGET = EditBudget(2**31 - 1, 0)

_OPEN = (
    "SELECT epoch, best_score, budget_max, used, steps, rejected_count, buffer_max, evicted FROM refine_epochs"
    " WHERE subject = {p} AND closed_at IS NULL"
)
_FACTS = (
    "SELECT EXISTS (SELECT 1 FROM rejected_edits WHERE subject = {p} AND edit_id = {p} AND forgiven_at IS NULL),"
    " (SELECT verdict FROM refine_steps WHERE subject = {p} AND step_key = {p}){now}"
)
_INSERT = (
    "INSERT INTO refine_steps (subject, epoch, number, step_key, edit_id, candidate_score, verdict, best_score, used,"
    " stepped_at) VALUES ({p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p})"
)
_REMEMBER = (
    "INSERT INTO rejected_edits (subject, edit_id, worst_drop, count, first_at, last_at) VALUES ({p}, {p}, {p}, 1, {p},"
    " {p}) ON CONFLICT (subject, edit_id) DO UPDATE SET count = rejected_edits.count + 1, last_at = excluded.last_at,"
    " forgiven_at = NULL, worst_drop = CASE WHEN excluded.worst_drop > rejected_edits.worst_drop"
    " THEN excluded.worst_drop ELSE rejected_edits.worst_drop END"
)
_UPDATE = (
    "UPDATE refine_epochs SET best_score = {p}, used = {p}, steps = {p}, rejected_count = {p} WHERE subject = {p}"
    " AND epoch = {p} AND steps = {p} AND closed_at IS NULL"
)


# --- the two sides -------------------------------------------------------------------------------------------------


@contextmanager
def ours(url: str) -> Iterator[Step]:
    """Give one step through the gate."""
    with RefineGate(url) as gate:

        def step(subject: str, edit_id: str, score: float) -> None:
            gate.gate(subject, edit_id, score)

        yield step


@contextmanager
def raw(url: str) -> Iterator[Step]:
    """Give the same step as statements of the driver."""
    if url.startswith("sqlite"):
        with raw_sqlite(url) as step:
            yield step
    else:
        with raw_postgresql(url) as step:
            yield step


def judged(row: Any, facts: Any, score: float) -> tuple[str, float, int]:
    """Return verdict, best score and budget used, as the gate does."""
    _, best, most, used, *_ = row
    if used >= most:
        return "budget_exhausted", best, used
    if facts[0]:
        return "skipped_rejected", best, used
    return ("accepted", score, used + 1) if score > best else ("rejected", best, used + 1)


@contextmanager
def raw_sqlite(url: str) -> Iterator[Step]:
    """Give the step on SQLite, with the settings that make a commit durable."""
    path = str(make_url(url).database)
    conn = sqlite3.connect(path, timeout=30, isolation_level=None)
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("PRAGMA foreign_keys=ON")
    find, facts_of, insert, remember, update = (
        text.format(p="?", now="") for text in (_OPEN, _FACTS, _INSERT, _REMEMBER, _UPDATE)
    )

    def step(subject: str, edit_id: str, score: float) -> None:
        key = f"made:{uuid.uuid4().hex}"
        conn.execute("BEGIN IMMEDIATE")
        row = conn.execute(find, (subject,)).fetchone()
        facts = conn.execute(facts_of, (subject, edit_id, subject, key)).fetchone()
        verdict, best, used = judged(row, facts, score)
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        number, rejected = row[4] + 1, row[5]
        if verdict == "rejected":
            conn.execute(remember, (subject, edit_id, best - score, now, now))
            rejected += 1
        conn.execute(insert, (subject, row[0], number, key, edit_id, score, verdict, best, used, now))
        conn.execute(update, (best, used, number, rejected, subject, row[0], row[4]))
        conn.execute("COMMIT")

    try:
        yield step
    finally:
        conn.close()


@contextmanager
def raw_postgresql(url: str) -> Iterator[Step]:
    """Give the step on PostgreSQL."""
    import psycopg

    find, facts_of, insert, remember, update = (
        text.format(p="%s", now=", clock_timestamp()").encode() for text in (_OPEN, _FACTS, _INSERT, _REMEMBER, _UPDATE)
    )
    find += b" FOR UPDATE"
    with psycopg.connect(url, options="-c search_path=reconciler") as conn:

        def step(subject: str, edit_id: str, score: float) -> None:
            key = f"made:{uuid.uuid4().hex}"
            with conn.transaction():
                row: Any = conn.execute(find, (subject,)).fetchone()
                facts: Any = conn.execute(facts_of, (subject, edit_id, subject, key)).fetchone()
                verdict, best, used = judged(row, facts, score)
                now, number, rejected = facts[2], row[4] + 1, row[5]
                if verdict == "rejected":
                    conn.execute(remember, (subject, edit_id, best - score, now, now))
                    rejected += 1
                conn.execute(insert, (subject, row[0], number, key, edit_id, score, verdict, best, used, now))
                conn.execute(update, (best, used, number, rejected, subject, row[0], row[4]))

        yield step


SIDES = {"ours": ours, "raw": raw}


# --- measuring -----------------------------------------------------------------------------------------------------


def work(url: str, side: str, subject: str, seconds: float, barrier: Any, results: Any) -> None:
    """Step for *seconds* behind the barrier and hand back the rate, in steps per second."""
    with SIDES[side](url) as step:
        for number in range(20):
            step(subject, f"warm {uuid.uuid4().hex}", number / 1e9)
        barrier.wait(60)
        start = time.perf_counter()
        done = 0
        while time.perf_counter() - start < seconds:
            step(subject, f"edit {uuid.uuid4().hex}", 0.25)
            done += 1
        results.put(done / (time.perf_counter() - start))


def rate(url: str, side: str, processes: int, seconds: float) -> float:
    """Return the steps per second of *processes*, each with a subject of its own."""
    subjects = [f"{side} {uuid.uuid4().hex}" for _ in range(processes)]
    with RefineGate(url) as gate:
        for subject in subjects:
            gate.open(subject, baseline_score=0.5, budget=BUDGET)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    children = [
        context.Process(target=work, args=(url, side, subject, seconds, barrier, results)) for subject in subjects
    ]
    for child in children:
        child.start()
    rates = [results.get(timeout=120) for _ in children]
    for child in children:
        child.join(30)
    return float(sum(rates))


def gate_ratio(url: str, processes: int, seconds: float, rounds: int) -> dict[str, float]:
    """Return our rate over the raw one, and both."""
    rates: dict[str, list[float]] = {"ours": [], "raw": []}
    for number in range(rounds):
        for side in ("ours", "raw") if number % 2 == 0 else ("raw", "ours"):
            rates[side].append(rate(url, side, processes, seconds))
    mine, theirs = statistics.median(rates["ours"]), statistics.median(rates["raw"])
    ratios = [a / b for a, b in zip(rates["ours"], rates["raw"], strict=True)]
    return {"gate_ratio": round(statistics.median(ratios), 3), "ours_per_s": round(mine), "raw_per_s": round(theirs)}


def fill(url: str, subject: str, size: int) -> None:
    """Make *size* rejections of *subject*."""
    with RefineGate(url) as gate:
        gate.open(subject, baseline_score=0.5, budget=BUDGET)
    columns = "INSERT INTO rejected_edits (subject, edit_id, worst_drop, count, first_at, last_at)"
    if url.startswith("sqlite"):
        now = "2026-01-01T00:00:00.000000Z"
        conn = sqlite3.connect(str(make_url(url).database))
        with conn:
            conn.execute("UPDATE refine_epochs SET rejected_count = ? WHERE subject = ?", (size, subject))
            conn.executemany(
                f"{columns} VALUES (?, ?, 0.5, 1, ?, ?)",
                ((subject, f"edit {number}", now, now) for number in range(size)),
            )
        conn.close()
        return
    import psycopg

    with psycopg.connect(url, options="-c search_path=reconciler") as server:
        server.execute("UPDATE refine_epochs SET rejected_count = %s WHERE subject = %s", (size, subject))
        server.execute(
            f"{columns} SELECT %s, 'edit ' || n, 0.5, 1, now(), now() FROM generate_series(0, %s) n".encode(),
            (subject, size - 1),
        )
    with psycopg.connect(url, options="-c search_path=reconciler", autocommit=True) as server:
        server.execute("VACUUM ANALYZE rejected_edits")


def look_up_ratio(url: str, large: int, rounds: int) -> dict[str, float]:
    """Return the time of a look-up in a buffer of *large* edits over one in a buffer of 1000, hits and misses alike."""
    sizes = {"small": 1_000, "large": large}
    for name, size in sizes.items():
        fill(url, name, size)
    times: dict[str, list[float]] = {name: [] for name in sizes}
    with RefineGate(url) as gate:
        for number in range(rounds * 2):
            for name in sizes if number % 2 == 0 else reversed(sizes):
                start = time.perf_counter()
                for place in range(500):
                    # Spread over the whole buffer; every fifth is unknown.
                    known = place * 7919 % sizes[name]
                    gate.rejection(name, f"edit {known}" if place % 5 else f"none {known}")
                times[name].append((time.perf_counter() - start) / 500)
    ratios = [a / b for a, b in zip(times["large"], times["small"], strict=True)]
    return {
        "look_up_ratio": round(statistics.median(ratios), 3),
        "small_us": round(statistics.median(times["small"]) * 1e6),
        "large_us": round(statistics.median(times["large"]) * 1e6),
        "large": large,
    }


def measure(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one database."""
    return {
        "processes_1": gate_ratio(url, 1, given.seconds, given.rounds),
        "processes_8": gate_ratio(url, 8, given.seconds, given.rounds),
        "look_up": look_up_ratio(url, given.buffer, given.rounds),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Ratios of the durable refine gate.")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--buffer", type=int, default=1_000_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    kinds = given.database or ["sqlite", "postgresql"]
    if "sqlite" in kinds:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
            migrate.upgrade(url)
            found["sqlite"] = measure(url, given)
    if "postgresql" in kinds:
        with Server() as server:
            url = server.address.url("postgres")
            migrate.upgrade(url)
            found["postgresql"] = measure(url, given)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
