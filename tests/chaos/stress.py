"""The stresses, each with the proof that it happened: a cell whose stress was void has failed.

A stress runs in the harness's process, for the seconds it is given, and returns what it did in words. It raises `Void`
where it can't show that it took place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.run import Cell


class Void(Exception):
    """The stress did not take place as the cell promises."""


Stress = Callable[[Any, float], str]


def nothing(_cell: Cell, seconds: float) -> str:
    """Let the time pass."""
    time.sleep(seconds)
    return "none"


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def postgres_restart(cell: Cell, seconds: float) -> str:
    """Down for the first half of the phase, up for the second."""
    assert cell.server is not None
    down_from = time.monotonic()
    cell.server.stop(signal.SIGQUIT)
    refused = 0
    while time.monotonic() - down_from < seconds / 2:
        with contextlib.suppress(Exception):
            cell.sql("SELECT 1")
            raise Void("the server answered while it should have been down")
        refused += 1
        time.sleep(0.1)
    cell.server.start()
    down_s = time.monotonic() - down_from
    if down_s < seconds / 2 * 0.83 or refused < 3:
        raise Void(f"the server was down for {down_s:.1f} s only")
    time.sleep(max(0.0, seconds - down_s))
    return f"down for {down_s:.1f} s, {refused} connections refused"


def backend_kill(cell: Cell, seconds: float) -> str:
    """Every half second (its tenth) all backends that are at work are terminated."""
    every = 0.5 * cell.scale
    end = time.monotonic() + seconds
    sample_s = 5.0 * cell.scale
    samples: list[int] = []
    sample_end = time.monotonic() + sample_s
    count = total = 0
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            rows = cell.sql(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                " AND state IN ('active', 'idle in transaction')"
            )
            count += rows[0][0]
        if time.monotonic() >= sample_end:
            samples.append(count)
            total += count
            count, sample_end = 0, time.monotonic() + sample_s
        time.sleep(every)
    if not samples or min(samples) == 0:
        raise Void(f"backends terminated per sample: {samples}")
    return f"{total} backends terminated, at least {min(samples)} in each sample"


def connections_held(scale: float) -> int:
    """Return how many connections `pool_exhaustion` holds."""
    return 300 if scale == 1 else 60


def pool_exhaustion(cell: Cell, seconds: float) -> str:
    """All connections but a few are taken and held."""
    import psycopg

    asked = connections_held(cell.scale)
    held: list[Any] = []
    try:
        for _ in range(asked):
            held.append(psycopg.connect(cell.url, autocommit=True, connect_timeout=10))
        time.sleep(seconds)
        alive = sum(1 for conn in held if conn.execute("SELECT 1").fetchone() == (1,))
    except Exception as error:
        raise Void(f"{len(held)} of {asked} connections held: {error}") from error
    finally:
        for conn in held:
            conn.close()
    if alive != asked:
        raise Void(f"{alive} of {asked} connections were held to the end")
    return f"{alive} connections held"


def idle_in_transaction(cell: Cell, seconds: float) -> str:
    """One transaction is held that keeps what is dead from being cleaned up."""
    import psycopg

    with psycopg.connect(cell.url) as conn:
        conn.execute("SELECT txid_current()")
        first = _xmin_age(cell)
        time.sleep(seconds)
        last = _xmin_age(cell)
        conn.rollback()
    if last <= first:
        raise Void(f"the oldest transaction's age did not grow: {first} to {last}")
    return f"the oldest transaction's age grew from {first} to {last}"


def active_readers(cell: Cell, seconds: float) -> str:
    """Four readers count the largest table again and again, each in one transaction that does not end."""
    import psycopg

    readers = []
    for _ in range(4):
        conn = psycopg.connect(cell.url)
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        readers.append(conn)
    reads = 0
    try:
        first = None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for conn in readers:
                conn.execute("SELECT count(*) FROM reconciler.entries")
                reads += 1
            first = first if first is not None else _xmin_age(cell)
            time.sleep(0.1)
        last = _xmin_age(cell)
    finally:
        for conn in readers:
            conn.close()
    if first is None or last <= first:
        raise Void(f"the readers' snapshot did not age: {first} to {last}")
    return f"{reads} reads; their snapshot's age grew from {first} to {last}"


def _xmin_age(cell: Cell) -> int:
    rows = cell.sql(
        "SELECT coalesce(max(age(backend_xmin)), 0) FROM pg_stat_activity WHERE datname = current_database()"
    )
    return int(rows[0][0])


# --- both databases --------------------------------------------------------------------------------------------------


def crash_recovery(cell: Cell, seconds: float) -> str:
    """Runner and daemon 0 are killed; they stay away for the phase, and are started again after it."""
    killed = cell.kill_replica(0)
    time.sleep(seconds)
    if not all(cell.is_gone(pid) for pid in killed):
        raise Void("what was killed is still there")
    cell.start_replica(0)
    return f"processes {killed} killed, and away for {seconds:.1f} s"


def repeated_kills(cell: Cell, seconds: float) -> str:
    """Runner and daemon 0 are killed every 20 s (2 s) and started again after one (a tenth)."""
    every = 20 * cell.scale
    count = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end - every / 2:
        killed = cell.kill_replica(0)
        time.sleep(1 * cell.scale)
        if not all(cell.is_gone(pid) for pid in killed):
            raise Void("what was killed is still there")
        cell.start_replica(0)
        count += 1
        time.sleep(max(0.0, every - cell.scale))
    if count < 3:
        raise Void(f"{count} kills only")
    return f"{count} times killed and started again"


def high_load(cell: Cell, seconds: float) -> str:
    """Half as much again is offered; measured at the producer."""
    before = cell.offered_rate()
    cell.set_rate(cell.rate * 1.5)
    time.sleep(min(1.0, seconds / 10))
    begun, offered = time.monotonic(), cell.offered()
    time.sleep(max(0.1, seconds - (time.monotonic() - begun) - min(1.0, seconds / 10)))
    rate = (cell.offered() - offered) / (time.monotonic() - begun)
    cell.set_rate(cell.rate)
    if rate < 1.45 * before:
        raise Void(f"offered {rate:.1f}/s, {rate / before:.2f} times {before:.1f}/s")
    return f"offered {rate:.1f}/s, {rate / before:.2f} times {before:.1f}/s"


# --- SQLite ----------------------------------------------------------------------------------------------------------


def disk_full(cell: Cell, seconds: float) -> str:
    """The disk is full for the first half of the phase; where none can be mounted, the file is locked for good."""
    if cell.mounted is None:
        return _locked_away(cell, seconds / 2) + _rest(seconds / 2)
    ballast = cell.mounted / "ballast"
    begun = time.monotonic()
    refused = 0
    with ballast.open("wb", buffering=0) as stream:
        while time.monotonic() - begun < seconds / 2:
            try:
                while True:
                    stream.write(b"\0" * 65536)
            except OSError:
                refused += 1
            # What the log gives back is taken too.
            time.sleep(0.02)
    ballast.unlink()
    full_s = time.monotonic() - begun
    if refused < 5:
        raise Void("the disk was never full")
    return f"the disk was full for {full_s:.1f} s" + _rest(seconds - full_s)


def _locked_away(cell: Cell, seconds: float) -> str:
    conn = sqlite3.connect(cell.file, timeout=10, isolation_level=None)
    try:
        conn.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        conn.execute("ROLLBACK")
    finally:
        conn.close()
    return f"no disk could be mounted: the write lock was held for {seconds:.1f} s"


def _rest(seconds: float) -> str:
    time.sleep(max(0.0, seconds))
    return ""


def stopped_holders(cell: Cell, seconds: float) -> str:
    """Every 6 s (0.6 s) whoever holds the write lock is stopped for 3 s (0.3 s)."""
    every, stopped_s = 6 * cell.scale, 3 * cell.scale
    holders = count = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end - stopped_s:
        begun = time.monotonic()
        pid = None
        while pid is None and time.monotonic() - begun < every / 2:
            pid = _write_lock_holder(cell.file)
        if pid is not None and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                holders += int(_write_lock_holder(cell.file) == pid)
                time.sleep(stopped_s)
                os.kill(pid, signal.SIGCONT)
                count += 1
        time.sleep(max(0.0, every - (time.monotonic() - begun)))
    if count == 0 or holders == 0:
        raise Void(f"{count} processes stopped, {holders} with the lock in hand")
    return f"{count} processes stopped, {holders} of them with the write lock in hand"


def _write_lock_holder(file: Path) -> int | None:
    # Byte 120 of the shared-memory file is the lock of whoever writes to the log (SQLite's walformat, WAL_WRITE_LOCK).
    try:
        inode = file.with_name(file.name + "-shm").stat().st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    for line in locks.splitlines():
        fields = line.split()
        is_ours = len(fields) >= 8 and fields[3] == "WRITE" and fields[5].endswith(f":{inode}")
        if is_ours and int(fields[6]) <= 120 and (fields[7] == "EOF" or int(fields[7]) >= 120):
            return int(fields[4])
    return None


READERS = """
import os, sqlite3, sys, time
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        conn = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
        conn.execute("BEGIN")
        conn.execute("SELECT count(*) FROM submissions").fetchone()
        os.write(1, b"x")
        time.sleep(float(sys.argv[3]))
        os._exit(0)
time.sleep(float(sys.argv[3]) + 1)
"""


def many_readers(cell: Cell, seconds: float) -> str:
    """Sixty processes hold a reading transaction."""
    asked = 60
    reading = subprocess.Popen(
        [sys.executable, "-c", READERS, str(cell.file), str(asked), str(seconds)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert reading.stdout is not None
    begun = time.monotonic()
    try:
        held = 0
        while held < asked and time.monotonic() - begun < 10:
            held += len(os.read(reading.stdout.fileno(), 100))
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(reading.pid, signal.SIGKILL)
        reading.wait()
        reading.stdout.close()
    if held < asked:
        raise Void(f"{held} of {asked} readers held a transaction")
    return f"{held} processes held a reading transaction"


def long_reader(cell: Cell, seconds: float) -> str:
    """One reading transaction is held: the log can't be reset, and grows."""
    wal = cell.file.with_name(cell.file.name + "-wal")
    conn = sqlite3.connect(cell.file, timeout=30, isolation_level=None)
    try:
        conn.execute("BEGIN")
        conn.execute("SELECT count(*) FROM submissions").fetchone()
        first = wal.stat().st_size
        time.sleep(seconds)
        last = wal.stat().st_size
        conn.execute("ROLLBACK")
    finally:
        conn.close()
    if last <= first:
        raise Void(f"the log did not grow: {first} to {last} bytes")
    # A bound: a submission takes a dozen transactions, each of at most a dozen pages of 4 KiB.
    most = 12 * 12 * 4120 * max(1, round(cell.rate * seconds)) + first
    if last > most:
        raise Void(f"the log grew to {last} bytes, more than the bound of {most}")
    return f"the log grew from {first // 1024} to {last // 1024} KiB, within its bound"


VIEW_READERS = """
import sqlite3, sys, time
conn = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
end = time.monotonic() + float(sys.argv[2])
views = ("v_pending", "v_settlements", "v_attempts", "v_decisions")
while time.monotonic() < end:
    for view in views:
        conn.execute(f"SELECT count(*) FROM {view}").fetchone()
        print("x", end="", flush=True)
    time.sleep(0.1)
"""


def view_readers(cell: Cell, seconds: float) -> str:
    """Four processes read the views in a loop."""
    readers = [
        subprocess.Popen([sys.executable, "-c", VIEW_READERS, str(cell.file), str(seconds)], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    counts = [len(reader.communicate(timeout=seconds + 60)[0]) for reader in readers]
    if min(counts) == 0:
        raise Void(f"reads: {counts}")
    return f"{sum(counts)} reads of views"
