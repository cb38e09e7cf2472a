"""Files read in processes of their own, a few ahead of the import that writes them one after the other.

Reading a file takes about as long as writing it, and an interpreter does both on one processor. What is read here is
what the import would have read itself, in the order in which it will ask; where it can't be had (nobody has begun it,
the file is refused, a process died), the import reads the file itself and finds what is wrong with it. So nothing here
decides or fails.

A process is this program's own (`entrypoints.reading_worker`), not a copy of whoever calls: it gets requests as lines
of JSON, and leaves what it read in a private folder. It ends with the pipe, and where nobody is left to do it, it
removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Final, cast

from reconciler.core.model import SessionEntry
from reconciler.importers.base import ImportedEntry, ImportedSession, ImportResult
from reconciler.service.file_reading import FileRead, ReadRequest
from reconciler.service.spool import Spool

# Begun by themselves: one process writes what all of them read.
JOBS_MAX: Final = 4
# Below, starting a process takes longer than it saves.
BYTES_MIN: Final = 16 * 1024 * 1024
# A smaller file is read before another process could be asked.
FILE_BYTES_MIN: Final = 256 * 1024
# Read and not asked for yet, for each process: what it holds on the disk is bounded with it.
_AHEAD: Final = 2
# The longest wait for one file; then it is read here.
_WAIT_S: Final = 3600.0
_END_S: Final = 5.0
_PIECE: Final = 65536


def jobs_for(sizes: Sequence[int], jobs: int | None) -> int:
    """Return how many processes read ahead for files of *sizes* bytes: *jobs* at most; None: as many as pay.

    One processor is left to who writes.
    """
    if len(sizes) < 2 or not sys.executable:
        return 0
    if jobs is None:
        jobs = min(len(os.sched_getaffinity(0)) - 1, JOBS_MAX) if sum(sizes) >= BYTES_MIN else 0
    return min(jobs, len(sizes))


class ReadAhead:
    """Reads *names* in *jobs* processes; *request* says how, or None for what the import reads itself."""

    def __init__(self, names: Sequence[str], request: Callable[[str], ReadRequest | None], jobs: int) -> None:
        self._names = deque(names)
        self._request = request
        self._asked: dict[str, _Asked] = {}
        self._number = 0
        self._workers: list[_Worker] = []
        self._stack = contextlib.ExitStack()
        # Where no folder or no process can be had, all is read by who asks.
        with contextlib.suppress(OSError):
            for _ in range(jobs):
                if not self._workers:
                    made = tempfile.TemporaryDirectory(prefix="reconciler-import-", ignore_cleanup_errors=True)
                    self._folder = Path(self._stack.enter_context(made))
                worker = _Worker(self._folder)
                self._stack.callback(worker.end)
                self._workers.append(worker)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def taken(self, name: str, request: ReadRequest) -> tuple[FileRead, Spool] | None:
        """Return what *name* holds, read as *request* says; None where it was not read, or otherwise."""
        self._ask()
        asked = self._asked.pop(name, None)
        # What nobody has begun is read here sooner than it would be there.
        if asked is None or is_first(self._folder, asked.number):
            return None
        is_read = asked.worker.wait_for(asked.number)
        self._ask()
        if is_read and asked.request == request:
            return _read_back(self._folder, asked.number)
        _discard(self._folder, asked.number)
        return None

    def passed(self, name: str) -> None:
        """Let go of a file that the import doesn't ask for."""
        asked = self._asked.pop(name, None)
        if asked is not None and not is_first(self._folder, asked.number):
            asked.worker.wait_for(asked.number)
            _discard(self._folder, asked.number)

    def _ask(self) -> None:
        """Keep every process busy."""
        for worker in self._workers:
            while worker.is_alive and self._names and sum(a.worker is worker for a in self._asked.values()) < _AHEAD:
                name = self._names.popleft()
                request = self._request(name)
                if request is None:
                    continue
                self._number += 1
                if worker.ask(self._number, name, request):
                    self._asked[name] = _Asked(self._number, worker, request)


class _Worker:
    """One process that reads."""

    def __init__(self, folder: Path) -> None:
        # Not from the folder at hand (-P): whoever may write there would choose what is run.
        command = [sys.executable, "-P", "-m", "reconciler.entrypoints.reading_worker", str(folder)]
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._told = cast("IO[bytes]", self._process.stdout)
        self._poll = select.poll()
        self._poll.register(self._told, select.POLLIN)
        self._done: dict[int, bool] = {}
        self._rest = b""
        self.is_alive = True

    def ask(self, number: int, name: str, request: ReadRequest) -> bool:
        """Have it read a file; False where it is gone."""
        line = json.dumps({"number": number, "name": os.fsencode(name).hex(), "request": asdict(request)}) + "\n"
        try:
            self._requests.write(line.encode("ascii"))
        except OSError:
            self.is_alive = False
        return self.is_alive

    def wait_for(self, number: int) -> bool:
        """Wait until the file is read; False where it won't be."""
        until = time.monotonic() + _WAIT_S
        while number not in self._done and self.is_alive:
            left = until - time.monotonic()
            # Not select(): it takes no descriptor from 1024 on.
            if left <= 0 or not self._poll.poll(left * 1000):
                self.is_alive = False
                break
            data = os.read(self._told.fileno(), _PIECE)
            self.is_alive = bool(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                told, _, how = line.partition(b" ")
                if told.isdigit():
                    self._done[int(told)] = how == b"read"
        return self._done.pop(number, False)

    def end(self) -> None:
        """End it, whatever it is at."""
        for pipe in (self._requests, self._told):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_S)


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    worker: _Worker
    request: ReadRequest


# --- what goes from one process to the other -------------------------------------------------------------------------

_RESULT: Final = ".read"
_SPOOL: Final = ".spool"
_ENTRY: Final = attrgetter(*(item.name for item in fields(SessionEntry)))
_BESIDE: Final = attrgetter("lines", "write_ahead", "written_at")
_WHOLE: Final = attrgetter(*(item.name for item in fields(ImportedSession)))
_FOUND: Final = attrgetter(*(item.name for item in fields(ImportResult)))


def is_first(folder: Path, number: int) -> bool:
    """Return whether the caller is the first who takes a file: then it is the caller's to be read."""
    try:
        os.close(os.open(folder / f"{number}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def spool_path(folder: Path, number: int) -> Path:
    """Return where the payloads of a file are."""
    return folder / f"{number}{_SPOOL}"


def leave(folder: Path, number: int, read: FileRead, spool: Spool) -> None:
    """Leave what was read of a file for the other process. Entries as plain tuples: many, and written in no time."""
    sessions = []
    for session in read.result.sessions:
        name, entries, *rest = _WHOLE(session)
        bare = [_ENTRY(imported.entry) for imported in entries]
        sessions.append((name, bare, [_BESIDE(imported) for imported in entries], rest))
    format_name, version, _, *more = _FOUND(read.result)
    told = (format_name, version, sessions, more, read.is_same)
    (folder / f"{number}{_RESULT}").write_bytes(pickle.dumps((told, spool.places()), pickle.HIGHEST_PROTOCOL))


def _read_back(folder: Path, number: int) -> tuple[FileRead, Spool]:
    left = folder / f"{number}{_RESULT}"
    told, places = pickle.loads(left.read_bytes())  # noqa: S301  (a process of ours wrote it, into a folder of ours)
    left.unlink()
    format_name, version, found, more, is_same = told
    sessions = tuple(ImportedSession(name, tuple(_entries(bare, beside)), *rest) for name, bare, beside, rest in found)
    result = ImportResult(format_name, version, sessions, *more)
    path = spool_path(folder, number)
    spool = Spool(path, places)
    # It is open: nobody else needs its name.
    path.unlink()
    return FileRead(result, is_same), spool


def _discard(folder: Path, number: int) -> None:
    for path in (folder / f"{number}{_RESULT}", spool_path(folder, number)):
        path.unlink(missing_ok=True)


def _entries(bare: list[tuple[Any, ...]], beside: list[tuple[Any, ...]]) -> Iterator[ImportedEntry]:
    for entry, (lines, write_ahead, written_at) in zip(bare, beside, strict=True):
        yield ImportedEntry(SessionEntry(*entry), lines, write_ahead, written_at)
