"""Whether the process behind an attempt is certainly dead, and how long to wait before its lease may be judged.

The comparison is pure; reading /proc is apart from it. Knows nothing of databases. A proof needs no wait; anything that
cannot be read proves nothing, and then only the lease counts (contract, section 4).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_READ_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Where a process runs and which one it is. None where it could not be read."""

    machine_id: str | None = None
    boot_id: str | None = None
    # The inode of the namespace that the pid belongs to.
    pid_namespace: str | None = None
    pid: int | None = None
    # Clock ticks since boot at which it started: tells two processes apart that had the same pid.
    process_start: str | None = None


NOWHERE: Final = ProcessIdentity()


class ProcessFound(StrEnum):
    """What looking for a pid showed, where it showed no start time."""

    MISSING = "missing"
    UNREADABLE = "unreadable"


# The start time of a pid of this namespace, or what stands in its place.
ProcessLookup = Callable[[int], "str | ProcessFound"]


def proven_dead(
    recorded: ProcessIdentity,
    beat_at: datetime,
    here: ProcessIdentity,
    *,
    booted_at: datetime | None,
    look_up: ProcessLookup,
) -> bool:
    """Tell whether the process *recorded*, whose last beat was at *beat_at*, is certainly dead.

    *here* is the process that asks; *booted_at* is its machine's boot by the same clock as *beat_at* (the database's).
    Two proofs: the same machine has been booted anew and no beat came since; or the boot and the pid namespace are the
    same, and there is no such process or it started at another time.
    """
    if recorded.boot_id is None or here.boot_id is None:
        return False
    if recorded.boot_id != here.boot_id:
        same_machine = recorded.machine_id is not None and recorded.machine_id == here.machine_id
        return same_machine and booted_at is not None and beat_at < booted_at
    if recorded.pid is None or recorded.pid_namespace is None or recorded.pid_namespace != here.pid_namespace:
        return False
    found = look_up(recorded.pid)
    if found is ProcessFound.MISSING:
        return True
    if found is ProcessFound.UNREADABLE or recorded.process_start is None:
        return False
    return found != recorded.process_start


def judge_wait_s(beat_s: float, *, connected_for_s: float) -> float:
    """Return the seconds until this process may judge an attempt that beats every *beat_s*; 0 where it may already.

    Its own connection must have been up for two beats (*connected_for_s*, measured monotonically); see
    `reconciler.core.due.may_judge_lease`.
    """
    return max(0.0, 2 * beat_s - connected_for_s)


# --- reading /proc ---------------------------------------------------------------------------------------------------


def this_process() -> ProcessIdentity:
    """Return the identity of this process; what cannot be read (no /proc, a sandbox) is None.

    Read afresh after a fork: the child is another process.
    """
    return _identity_of(os.getpid())


@lru_cache(maxsize=4)
def _identity_of(pid: int) -> ProcessIdentity:
    start = process_start(pid)
    return ProcessIdentity(
        machine_id=_first_readable(_MACHINE_ID_FILES),
        boot_id=_read(_PROC / "sys/kernel/random/boot_id"),
        pid_namespace=_read_link(_PROC / "self/ns/pid"),
        pid=pid,
        process_start=start if not isinstance(start, ProcessFound) else None,
    )


def process_start(pid: int) -> str | ProcessFound:
    """Return when the process *pid* of this namespace started, in clock ticks since boot.

    Whether it exists is asked with signal 0, which no mount option of /proc hides; a zombie exists.
    """
    if pid <= 0:
        return ProcessFound.UNREADABLE
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ProcessFound.MISSING
    except PermissionError:
        pass  # it exists and is another user's
    except (OSError, OverflowError):
        return ProcessFound.UNREADABLE
    stat = _read(_PROC / str(pid) / "stat")
    if stat is None:
        return ProcessFound.UNREADABLE
    # The second field is the program's name in parentheses, and may hold blanks and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    # Field 22 of the line (proc(5)); the first one behind the name is field 3.
    return fields[19] if len(fields) > 19 and fields[19].isdigit() else ProcessFound.UNREADABLE


def booted_at(now: datetime) -> datetime | None:
    """Return when this machine was booted by the clock that says *now*; None where it cannot be read.

    From the time since boot, which no step of the wall clock moves.
    """
    try:
        return now - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
    except (AttributeError, OSError, OverflowError):
        return None


def _first_readable(paths: tuple[Path, ...]) -> str | None:
    for path in paths:
        if (text := _read(path)) and text != "uninitialized":
            return text
    return None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_READ_BYTES_MAX).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def _read_link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
