"""Daemons, runners and notify sockets as tests need them: real processes, their logs read as they come."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WAIT_S = 20.0


def wait_for(what: str, found: Callable[[], Any], *, timeout_s: float = WAIT_S, every_s: float = 0.02) -> Any:
    """Return the first true value of *found*; fail, naming *what*, where none came in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"{what}: not within {timeout_s} s")


def program(*arguments: str) -> list[str]:
    """Return the command line of the program under test."""
    return [sys.executable, "-m", "reconciler", *arguments]


def clean_environment(**more: str) -> dict[str, str]:
    """Return an environment without settings of ours, and with no home whose configuration could be read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RECONCILER_", "NOTIFY_"))}
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"):
        kept.pop(name, None)
    return {**kept, "XDG_CONFIG_HOME": "/nonexistent", "HOME": "/nonexistent", **more}


class DaemonProcess:
    """A daemon as a process of its own. Settings are those of ``[daemon]``, limits those of ``[limits]``."""

    def __init__(
        self,
        url: str,
        *arguments: str,
        settings: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: list[str] | None = None,
        module: list[str] | None = None,
    ) -> None:
        quick = {"pass_interval_s": 0.2, "schedule_interval_s": 0.2, "beat_s": 0.5, "sweep": "", "prune": ""}
        variables = {
            "RECONCILER_DATABASE_URL": url,
            **{
                f"RECONCILER_DAEMON_{name.upper()}": str(value) for name, value in {**quick, **(settings or {})}.items()
            },
            **{f"RECONCILER_LIMITS_{name.upper()}": str(value) for name, value in (limits or {}).items()},
            **(environment or {}),
        }
        self.lines: list[dict[str, Any]] = []
        self.other: list[str] = []
        self.process = subprocess.Popen(
            # *module* stands in for the program: a module, and what goes before its arguments.
            [*(prefix or []), sys.executable, "-m", *(module or ["reconciler"]), "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=clean_environment(**variables),
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.other.append(line.rstrip())

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what was logged under *name* so far."""
        return [line for line in list(self.lines) if line.get("event") == name]

    def wait_for(self, name: str, *, count: int = 1, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Return the *count*-th event *name*, waiting for it."""

        def found() -> dict[str, Any] | None:
            events = self.events(name)
            if len(events) >= count:
                return events[count - 1]
            if self.process.poll() is not None:
                self._reader.join(2)
                events = self.events(name)
                if len(events) >= count:
                    return events[count - 1]
                raise AssertionError(f"the daemon ended with {self.process.returncode} before {name}: {self.said()}")
            return None

        return wait_for(f"event {name} (of {self.said()[-1500:]})", found, timeout_s=timeout_s)  # type: ignore[no-any-return]

    def said(self) -> str:
        """Return everything that was logged."""
        return "\n".join([*(json.dumps(line) for line in self.lines), *self.other])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(2)
        return code

    def stop(self) -> int:
        """Stop it with SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.end()

    def memory_mb(self, field: str = "VmRSS") -> float:
        """Return its memory now, or with VmHWM the most that it had."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"no {field}")

    def cpu_s(self) -> float:
        """Return the processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(2)
        if self.process.stderr is not None:
            self.process.stderr.close()


class NotifySocket:
    """A service manager's socket, of the test's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.1)
        self.messages: list[dict[str, str]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stopping:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return
            self.messages.append(dict(line.split("=", 1) for line in data.decode().splitlines()))

    def with_key(self, key: str) -> list[dict[str, str]]:
        """Return the messages so far that say *key*."""
        return [message for message in list(self.messages) if key in message]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping = True
        self._thread.join(2)
        self._socket.close()
