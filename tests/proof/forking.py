"""A fork server: work done in a forked child of a warm process, with its answer or the signal that ended it.

A child costs milliseconds, so that thousands of deaths are cheap; each is a process of its own that dies by SIGKILL,
and its death is waited for. Knows nothing of databases.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 60.0


class ChildFailed(Exception):
    """The child raised, hung, or died in another way than it should have."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: by SIGKILL (``killed``), or with a value."""

    killed: bool
    value: Any = None


@dataclass
class Child:
    """A child at work."""

    pid: int
    pipe: int
    timeout_s: float

    def end(self) -> Ended:
        """Wait for its end.

        Raises:
            ChildFailed: it raised, took too long, or died by anything but its own SIGKILL.
        """
        pieces: list[bytes] = []
        until = time.monotonic() + self.timeout_s
        hung = False
        while True:
            readable, _, _ = select.select([self.pipe], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                hung = True
                os.kill(self.pid, signal.SIGKILL)
                break
            piece = os.read(self.pipe, 1 << 16)
            if not piece:
                break
            pieces.append(piece)
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        if hung:
            raise ChildFailed(f"the child hung for {self.timeout_s:.0f} s")
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGKILL:
                return Ended(killed=True)
            raise ChildFailed(f"the child died by signal {os.WTERMSIG(status)}")
        went_well, value = pickle.loads(b"".join(pieces)) if pieces else (False, "the child said nothing")
        if not went_well:
            raise ChildFailed(f"in the child:\n{value}")
        return Ended(killed=False, value=value)


def start(work: Callable[[], Any], *, timeout_s: float = TIMEOUT_S) -> Child:
    """Fork a child that does *work*."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; these children are made before any thread is.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(theirs)
        return Child(pid, ours, timeout_s)
    # Nothing of the parent may run on here: no test framework, no exit handler, no open connection.
    try:
        gc.disable()
        os.close(ours)
        try:
            answer = (True, work())
        except BaseException:
            answer = (False, traceback.format_exc())
        data = pickle.dumps(answer)
        sent = 0
        while sent < len(data):
            sent += os.write(theirs, data[sent:])
    finally:
        os._exit(0)


def in_child(work: Callable[[], Any], *, timeout_s: float = TIMEOUT_S) -> Ended:
    """Do *work* in a child and wait for its end."""
    return start(work, timeout_s=timeout_s).end()


def value_of(work: Callable[[], Any], *, timeout_s: float = TIMEOUT_S) -> Any:
    """Do *work* in a child and return what it returns."""
    ended = in_child(work, timeout_s=timeout_s)
    if ended.killed:
        raise ChildFailed("the child was killed")
    return ended.value
