"""The measures, one function each; what a function returns goes into the results as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection, Engine

from reconciler.core.model import DEFAULT_LIMITS
from reconciler.service.deciding import Decider
from reconciler.service.reconcile import reconcile_once
from reconciler.store import migrate, passes
from reconciler.store.dialect import db_now
from reconciler.store.engine import begin, read
from reconciler.store.passes import scan_due
from reconciler.store.settlements import apply_decisions
from tests.bench import data, floors
from tests.bench.databases import Database
from tests.bench.measuring import ROOT, Bench, Result, child, judging, median, server_cpu_s, timed

BATCH = DEFAULT_LIMITS.scan_batch_max

# --- finding due work ------------------------------------------------------------------------------------------------

_FOUND = 500


def scan(bench: Bench) -> Result:
    """Finding 500 due submissions, over the history that they stand in, and beside it in turn where there is none."""
    result: Result = {}
    for kind in bench.kinds:
        with bench.database(kind) as empty, bench.database(kind) as database:
            for one in (empty, database):
                data.add_due(one, 2_000, prefix="due", tail=4)
            empty.settle_down()
            levels: list[Result] = []
            have = 0
            for history in bench.scale.histories:
                data.add_history(database, history, have=have, payload_bytes=bench.history_payload)
                have = history
                database.settle_down()
                levels.append({"settled": history, **_find(database, empty, bench.scale.repeats)})
            first, last = levels[0], levels[-1]
            result[kind] = {"levels": levels, "time_ratio": last["ratio"]}
            if kind == "postgresql":
                result[kind]["buffer_ratio"] = last["buffers"] / first["buffers"]
                result[kind]["generic_plan_index"] = last["generic_index"]
    return result


def _find(database: Database, empty: Database, repeats: int) -> Result:
    engine, other = database.engine(), empty.engine()
    times, beside, nothing = [], [], []
    with engine.connect() as conn, conn.begin(), other.connect() as conn_empty, conn_empty.begin():
        cutoff = db_now(conn)
        early = datetime(2020, 1, 1, tzinfo=UTC)
        for _ in range(max(repeats, 3) * 11):
            # In turn, so that what else the machine does is in both.
            times.append(timed(lambda: scan_due(conn, cutoff=cutoff, limit=_FOUND, lock=False))[0])
            beside.append(timed(lambda: scan_due(conn_empty, cutoff=cutoff, limit=_FOUND, lock=False))[0])
            nothing.append(timed(lambda: scan_due(conn, cutoff=early, limit=_FOUND, lock=False))[0])
        ratio = median([one / none for one, none in zip(times, beside, strict=True)])
        found: Result = {"ms": median(times) * 1e3, "nothing_ms": median(nothing) * 1e3, "ratio": ratio}
        conn.rollback()
        conn_empty.rollback()
    engine.dispose()
    other.dispose()
    if database.kind == "postgresql":
        plan = explain_scan(database, cutoff)
        found["buffers"] = plan["buffers"]
        found["generic_index"] = plan["generic_index"]
    return found


def explain_scan(database: Database, cutoff: datetime) -> Result:
    """Return the buffers that the scan touches, and the index of a generic plan."""
    values = {"cutoff": cutoff, "at": datetime(1, 1, 1, tzinfo=UTC), "session": "", "submission": "", "limit": _FOUND}
    conn = database.driver()
    shown = conn.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + passes._PG_SCAN, values).fetchone()[0]
    top = shown[0]["Plan"]
    conn.execute("SET plan_cache_mode = force_generic_plan")
    text = passes._PG_SCAN % {"cutoff": "$1", "at": "$2", "session": "$3", "submission": "$4", "limit": "$5"}
    conn.execute(f"PREPARE scan (timestamptz, timestamptz, text, text, bigint) AS {text}")
    lines = conn.execute("EXPLAIN EXECUTE scan (clock_timestamp(), '0001-01-01', '', '', 500)").fetchall()
    conn.close()
    plan = "\n".join(line[0] for line in lines)
    return {
        "buffers": top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        "generic_index": "ix_submissions_due" in plan and "Sort" not in plan,
    }


# --- deciding about one ----------------------------------------------------------------------------------------------


# Of each kind that are inspected, seven times each.
_SESSIONS = 5


def inspection(bench: Bench) -> Result:
    """Inspecting one submission: over the history before its input, and over the distance from leaf to input."""
    result: Result = {}
    long = bench.scale.long
    for kind in bench.kinds:
        with bench.database(kind) as database:
            data.add_due(database, _SESSIONS, prefix="near", tail=4, before=20)
            data.add_due(database, _SESSIONS, prefix="far", tail=4, before=long)
            for tail in (10, 1_000, long):
                data.add_due(database, 3, prefix=f"tail{tail}", tail=tail)
            database.settle_down()
            # In turn, as often each, and without what is paid for once (statements are prepared at the sixth time).
            near: list[float] = []
            far: list[float] = []
            rows_read = 0
            for _ in range(bench.scale.repeats):
                for prefix, times in (("near", near), ("far", far)):
                    one = child("inspect", database.url, prefix, str(_SESSIONS))
                    times.append(median(one["seconds"][2 * _SESSIONS :]))
                    rows_read = max(rows_read, one["rows"])
            tails = []
            for tail in (10, 1_000, long):
                found = child("inspect", database.url, f"tail{tail}", "3")
                seconds = median(found["seconds"])
                tails.append(
                    {"tail": tail, "ms": seconds * 1e3, "us_per_entry": seconds / tail * 1e6, "mb": found["peak_mb"]}
                )
            near_s, far_s = median(near), median(far)
            result[kind] = {
                "near_ms": near_s * 1e3,
                "far_ms": far_s * 1e3,
                "time_ratio": far_s / near_s,
                "rows_read": rows_read,
                "tails": tails,
                "linear": tails[2]["us_per_entry"] / tails[1]["us_per_entry"],
                "memory_mb": tails[2]["mb"] - tails[0]["mb"],
            }
    return result


# --- the pass --------------------------------------------------------------------------------------------------------


def whole_pass(bench: Bench) -> Result:
    """A pass over finished turns against the raw floor; rates of requeues beside it."""
    result: Result = {}
    count = bench.scale.due
    for kind in bench.kinds:
        with bench.database(kind) as database:
            data.add_history(database, bench.scale.histories[2])
            ours, raw, cpu, raw_cpu, server, raw_server = [], [], [], [], [], []
            for number in range(bench.scale.repeats):
                data.add_due(database, count, prefix=f"ours{number}")
                database.settle_down()
                seconds, used, served = _pass(database, count)
                ours.append(count / seconds)
                server.append(served / count * 1e6)
                cpu.append(used / count * 1e6)
                data.add_due(database, count, prefix=f"floor{number}")
                database.settle_down()
                seconds, used, served = _floor_pass(database, count)
                raw.append(count / seconds)
                raw_server.append(served / count * 1e6)
                raw_cpu.append(used / count * 1e6)
            rates: dict[str, float] = {}
            for ends in (data.UNRESOLVED, data.ABORTED):
                data.add_due(database, count // 4, prefix=ends, ends=ends)
                database.settle_down()
                rates[ends] = count // 4 / _pass(database, count // 4)[0]
            result[kind] = {
                "ours_per_s": median(ours),
                "floor_per_s": median(raw),
                "ratio": median(ours) / median(raw),
                "repeats": [round(one / floor, 3) for one, floor in zip(ours, raw, strict=True)],
                "client_cpu_us": median(cpu),
                "floor_client_cpu_us": median(raw_cpu),
                "server_cpu_us": median(server),
                "floor_server_cpu_us": median(raw_server),
                "cpu_ratio": (median(raw_cpu) + median(raw_server)) / (median(cpu) + median(server)),
                "requeue_per_s": rates[data.UNRESOLVED],
                "requeue_with_plan_texts_per_s": rates[data.ABORTED],
            }
    return result


def _pass(database: Database, count: int) -> tuple[float, float, float]:
    """Run a pass; return its seconds by the clock, on this processor, and on the server's."""
    engine = database.engine()
    with read(engine) as conn:
        db_now(conn)
    done: list[int] = []

    def work() -> None:
        report = reconcile_once(engine, judge=judging())
        done.append(sum(report.settled.values()) + report.requeued)

    before = server_cpu_s(database)
    wall, cpu = timed(work)
    found = wall, cpu, server_cpu_s(database) - before
    engine.dispose()
    if done != [count]:
        raise RuntimeError(f"a pass decided {done[0]} of {count}")
    return found


def _floor_pass(database: Database, count: int) -> tuple[float, float, float]:
    conn = database.driver()
    done: list[int] = []
    if database.kind == "postgresql":
        floors.pg_prepare(conn)
    run = floors.pg_pass if database.kind == "postgresql" else floors.sqlite_pass
    before = server_cpu_s(database)
    wall, cpu = timed(lambda: done.append(run(conn)))
    found = wall, cpu, server_cpu_s(database) - before
    conn.close()
    if done != [count]:
        raise RuntimeError(f"the floor decided {done[0]} of {count}")
    return found


def stages(bench: Bench) -> Result:
    """Where the time of a pass goes: each part by the clock, in microseconds for each submission."""
    from tests.bench import stages as timing

    result: Result = {}
    for kind in bench.kinds:
        with bench.database(kind) as database:
            data.add_history(database, bench.scale.histories[1])
            count = bench.scale.due // 2
            found: dict[str, float] = {}
            for number in range(2):
                data.add_due(database, count, prefix=f"due{number}")
                database.settle_down()
                found = timing.measure(partial(_pass, database, count))
            result[kind] = {name: round(seconds / count * 1e6, 1) for name, seconds in found.items()}
    return result


# --- the batch write -------------------------------------------------------------------------------------------------


def batch_write(bench: Bench) -> Result:
    """Writing decisions that are made already: batches of ours, of the floor, and one transaction for each."""
    result: Result = {}
    batches = max(3, bench.scale.due // BATCH // 2)
    for kind in bench.kinds:
        with bench.database(kind) as database:
            data.add_history(database, bench.scale.histories[1])
            rates: dict[str, list[float]] = {"ours": [], "floor": [], "single": []}
            for number in range(bench.scale.repeats):
                for name, write in (("ours", _write_ours), ("floor", _write_floor), ("single", _write_single)):
                    data.add_due(database, batches * BATCH, prefix=f"{name}{number}")
                    database.settle_down()
                    seconds, written = write(database, batches)
                    rates[name].append(written / seconds)
                    _clear(database)
            ours = median(rates["ours"])
            result[kind] = {
                "ours_per_s": ours,
                "floor_per_s": median(rates["floor"]),
                "single_per_s": median(rates["single"]),
                "ratio": ours / median(rates["floor"]),
                "times_single": ours / median(rates["single"]),
            }
    return result


def _clear(database: Database) -> None:
    """Work off what a measure left."""
    engine = database.engine()
    reconcile_once(engine, judge=judging())
    engine.dispose()


def _write_ours(database: Database, batches: int) -> tuple[float, int]:
    engine = database.engine()
    decider = Decider(DEFAULT_LIMITS, judging(), lock=True)
    seconds = 0.0
    written = 0
    for _ in range(batches):
        with engine.connect() as conn:
            transaction = conn.begin()
            rows = scan_due(conn, cutoff=db_now(conn), limit=BATCH)
            around = decider.surroundings(conn, rows)
            planned = decider.decide(conn, rows, around)
            plans = decider.plans(conn, planned)
            writes = [one.write(plans[one.key], "bench") for one in planned]
            began = time.perf_counter()
            written += len(apply_decisions(conn, writes, now=around.now, pass_id="the-pass"))
            transaction.commit()
            seconds += time.perf_counter() - began
    engine.dispose()
    return seconds, written


def _write_floor(database: Database, batches: int) -> tuple[float, int]:
    conn = database.driver()
    seconds = 0.0
    written = 0
    if database.kind == "postgresql":
        floors.pg_prepare(conn)
    for _ in range(batches):
        now: Any
        if database.kind == "postgresql":
            conn.execute("BEGIN")
            now = conn.execute("SELECT clock_timestamp()").fetchone()[0]
            writes = floors.pg_decide(conn, floors.pg_find(conn, now))
            write: Callable[[Any, Sequence[floors.Write], Any], None] = floors.pg_write
        else:
            conn.execute("BEGIN IMMEDIATE")
            now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
            writes = floors.sqlite_decide(conn, floors.sqlite_find(conn, now))
            write = floors.sqlite_write
        began = time.perf_counter()
        write(conn, writes, now)
        conn.execute("COMMIT")
        seconds += time.perf_counter() - began
        written += len(writes)
    conn.close()
    return seconds, written


def _write_single(database: Database, batches: int) -> tuple[float, int]:
    conn = database.driver()
    seconds = 0.0
    written = 0
    for _ in range(max(1, batches // 5)):
        now: Any
        if database.kind == "postgresql":
            now = conn.execute("SELECT clock_timestamp()").fetchone()[0]
            with conn.transaction():
                writes = floors.pg_decide(conn, floors.pg_find(conn, now))
            began = time.perf_counter()
            for one in writes:
                floors.pg_write_one(conn, one, now)
        else:
            now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
            writes = floors.sqlite_decide(conn, floors.sqlite_find(conn, now))
            began = time.perf_counter()
            for one in writes:
                conn.execute("BEGIN IMMEDIATE")
                floors.sqlite_write(conn, [one], now)
                conn.execute("COMMIT")
        seconds += time.perf_counter() - began
        written += len(writes)
    conn.close()
    return seconds, written


# --- statements ------------------------------------------------------------------------------------------------------


@contextmanager
def counted(engine: Engine) -> Any:
    """Give a list of the texts of all statements that the engine runs meanwhile."""
    from sqlalchemy import event

    texts: list[str] = []

    def listen(conn: Connection, cursor: Any, statement: str, *_: Any) -> None:
        texts.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", listen)
    try:
        yield texts
    finally:
        event.remove(engine, "before_cursor_execute", listen)


def statements(bench: Bench) -> Result:
    """Statements of one batch, by its size."""
    result: Result = {}
    for kind in bench.kinds:
        with bench.database(kind) as database:
            counts: dict[str, int] = {}
            for size in (1, 50, 499):
                data.add_due(database, size, prefix=f"batch{size}", tail=4)
                engine = database.engine()
                with begin(engine) as conn:
                    db_now(conn)
                with counted(engine) as texts:
                    reconcile_once(engine, judge=judging())
                counts[str(size)] = len([text for text in texts if is_of_the_batch(text)])
                engine.dispose()
            result[kind] = counts
    return result


def is_of_the_batch(text: str) -> bool:
    """Tell whether a statement belongs to a batch: not BEGIN, not the pass's own row, not the look for due work."""
    return not text.startswith(("BEGIN", "INSERT INTO passes", "SELECT count(*)", "SELECT clock_timestamp"))


# --- several daemons -------------------------------------------------------------------------------------------------


def daemons(bench: Bench) -> Result:
    """One, two and four passes at once over the same due work, each in a process of its own."""
    with bench.database("postgresql") as database:
        data.add_history(database, bench.scale.histories[1])
        count = bench.scale.due
        rates: dict[int, list[float]] = {1: [], 2: [], 4: []}
        conflicts = 0
        before = _deadlocks(database)
        for number in range(bench.scale.repeats):
            for processes in rates:
                data.add_due(database, count, prefix=f"d{processes}-{number}")
                database.settle_down()
                found = _at_once(database, processes)
                if sum(one["done"] for one in found) != count:
                    raise RuntimeError(f"{processes} passes decided {[one['done'] for one in found]} of {count}")
                conflicts += sum(one["conflicts"] for one in found)
                seconds = max(one["end"] for one in found) - min(one["begin"] for one in found)
                rates[processes].append(count / seconds)
        conn = database.driver()
        twice = conn.execute(
            "SELECT count(*) FROM (SELECT 1 FROM decisions WHERE session_id LIKE 'd%-%' AND number > 1"
            " GROUP BY session_id, submission_id HAVING count(*) > 1) t"
        ).fetchone()[0]
        conn.close()
        one = median(rates[1])
        return {
            "per_s": {str(processes): median(found) for processes, found in rates.items()},
            "two_to_one": median(rates[2]) / one,
            "four_to_one": median(rates[4]) / one,
            "decided_twice": twice,
            "conflicts": conflicts,
            "deadlocks": _deadlocks(database) - before,
        }


def _deadlocks(database: Database) -> int:
    conn = database.driver()
    found = int(conn.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()[0])
    conn.close()
    return found


def _at_once(database: Database, processes: int) -> list[Result]:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", "pass", database.url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for one in running:
        assert one.stdout is not None
        one.stdout.readline()
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    return [json.loads(one.communicate(timeout=600)[0].splitlines()[-1]) for one in running]


# --- memory ----------------------------------------------------------------------------------------------------------


def memory(bench: Bench) -> Result:
    """The memory of a pass while very much due work is worked off."""
    result: Result = {}
    for kind in bench.kinds:
        with bench.database(kind) as database:
            data.add_due(database, bench.scale.storm, prefix="storm", payload_bytes=100)
            database.settle_down()
            found = child("storm", database.url)
            seen = found["resident_mb"]
            result[kind] = {**found, "grown_mb": round(seen[-1] - seen[len(seen) // 4], 1)}
    return result


# --- others ----------------------------------------------------------------------------------------------------------

PEERS = {
    "procrastinate": ["procrastinate==3.10.0", "psycopg[binary]==3.3.9"],
    "pgqueuer": ["pgqueuer[psycopg]==1.6.0", "psycopg[binary]==3.3.9"],
    "dbos": ["dbos==3.4.0", "psycopg[binary]==3.3.9"],
    "absurd": ["absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9"],
}
PEERS_FOLDER = ROOT / ".bench"


def peer_environment(name: str) -> Path:
    """Return the interpreter of a peer's own environment, made where it isn't there yet."""
    folder = PEERS_FOLDER / name
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join(PEERS[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PEERS[name]], check=True)
        stamp.write_text(wanted)
    return python


def peers(bench: Bench) -> Result:
    """Submissions recovered a second, against the nearest thing that others do, on the same server in turn."""
    counts = dict(zip(PEERS, bench.scale.peers, strict=True))
    runs = [
        ("procrastinate", "procrastinate", []),
        ("pgqueuer", "pgqueuer", ["10"]),
        ("pgqueuer_500", "pgqueuer", ["500"]),
        ("dbos", "dbos", []),
        ("absurd", "absurd", []),
    ]
    rates: dict[str, list[float]] = {"ours": []}
    notes: dict[str, str] = {}
    with bench.database("postgresql") as database:
        for number in range(bench.scale.repeats):
            count = bench.scale.due // 2
            data.add_due(database, count, prefix=f"ours{number}")
            database.settle_down()
            rates["ours"].append(count / _pass(database, count)[0])
            for label, name, more in runs:
                if label in notes:
                    continue
                try:
                    python = peer_environment(name)
                    url = bench.databases.plain("peer")
                    script = ROOT / "tests" / "bench" / "peers" / f"{name}_peer.py"
                    done = subprocess.run(
                        [python, script, url, str(counts[name]), *more],
                        capture_output=True,
                        text=True,
                        check=True,
                        timeout=600,
                    )
                    rates.setdefault(label, []).append(json.loads(done.stdout.splitlines()[-1])["per_second"])
                except (subprocess.SubprocessError, OSError, ValueError) as error:
                    said = getattr(error, "stderr", None) or str(error)
                    notes[label] = f"not measured: {str(said).strip().splitlines()[-1][:200]}"
    ours = median(rates["ours"])
    return {
        "per_s": {name: median(found) for name, found in rates.items()},
        "times": {name: ours / median(found) for name, found in rates.items() if name != "ours"},
        "notes": notes,
    }


# --- cold starts -----------------------------------------------------------------------------------------------------


def cold_start(bench: Bench) -> Result:
    """`reconciler status` from nothing, against an interpreter that imports SQLAlchemy and click."""
    url = f"sqlite:///{bench.folder / 'status.sqlite3'}"
    migrate.upgrade(url)
    # The compiled modules are part of an installation.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["RECONCILER_DATABASE_URL"] = url
    ways = {
        "status": [sys.executable, "-m", "reconciler", "status"],
        "bare": [sys.executable, "-c", "import sqlalchemy, click"],
        "python": [sys.executable, "-c", ""],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    peak: dict[str, float] = {}
    for number in range(16):
        for name, command in ways.items():
            launched = [sys.executable, "-S", "-E", str(Path(__file__).with_name("launcher.py")), *command]
            done = subprocess.run(launched, cwd=ROOT, env=environment, check=True, capture_output=True)
            found = json.loads(done.stdout)
            if found["exit"] != 0:
                raise RuntimeError(f"{name} exited with {found['exit']}")
            if number:
                times[name].append(found["seconds"])
                cpu[name].append(found["cpu"])
                peak[name] = found["mb"]
    return {
        "ms": {name: median(taken) * 1e3 for name, taken in times.items()},
        "cpu_ms": {name: median(taken) * 1e3 for name, taken in cpu.items()},
        "mb": peak,
        "ratio": median(times["status"]) / median(times["bare"]),
        "cpu_ratio": median(cpu["status"]) / median(cpu["bare"]),
    }


# --- import ----------------------------------------------------------------------------------------------------------


def importing(bench: Bench) -> Result:
    """Inspecting and importing a session file, against parsing each of its lines."""
    script = [sys.executable, "-m", "tests.bench.bench_import"]
    path = bench.folder / "session.jsonl"
    result: Result = {}
    for kind in bench.kinds:
        if not path.exists():
            megabytes = str(bench.scale.megabytes)
            subprocess.run(
                [*script, "--megabytes", megabytes, "--generate", str(path)], cwd=ROOT, check=True, capture_output=True
            )
        size = path.stat().st_size / 1e6
        seconds: dict[str, list[float]] = {}
        cpu: dict[str, list[float]] = {}
        peak: dict[str, float] = {}
        for _ in range(bench.scale.repeats):
            with bench.database(kind) as database:
                for name in ("json.loads", "loads and dumps", "inspect", "import", "import again"):
                    done = subprocess.run(
                        [*script, "--one", name, str(path), "--database", database.url],
                        cwd=ROOT,
                        check=True,
                        capture_output=True,
                    )
                    one, used, mb = json.loads(done.stdout)
                    seconds.setdefault(name, []).append(one)
                    cpu.setdefault(name, []).append(used)
                    peak[name] = mb
        floor = median(seconds["json.loads"])
        result[kind] = {
            "megabytes": size,
            "mb_per_s": {name: size / median(found) for name, found in seconds.items()},
            "ratio": {name: floor / median(found) for name, found in seconds.items()},
            "cpu_ratio": {name: median(cpu["json.loads"]) / median(found) for name, found in cpu.items()},
            "peak_mb": peak,
        }
    return result


MEASURES: dict[str, Callable[[Bench], Result]] = {
    "statements": statements,
    "scan": scan,
    "inspection": inspection,
    "pass": whole_pass,
    "stages": stages,
    "write": batch_write,
    "daemons": daemons,
    "memory": memory,
    "peers": peers,
    "cold_start": cold_start,
    "import": importing,
}
