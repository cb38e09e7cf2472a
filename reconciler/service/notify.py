"""systemd's notification protocol, sd_notify(3): readiness, status, the watchdog. A no-op where nobody listens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class Notify:
    """Tells the service manager how things stand. A manager that can't be told is no reason to stop."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract address; anything but these two is not spoken here.
        self._address = "\0" + address[1:] if address.startswith("@") else address if address.startswith("/") else ""
        self.watchdog_s = self._watchdog(environ)

    @staticmethod
    def _watchdog(environ: Mapping[str, str]) -> float | None:
        if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None
        text = environ.get("WATCHDOG_USEC", "")
        return int(text) / 1_000_000 if text.isascii() and text.isdigit() and int(text) > 0 else None

    def send(self, **state: str | int) -> bool:
        """Send *state*; return whether it was taken."""
        if not self._address:
            return False
        message = "\n".join(f"{name}={str(value).replace(chr(10), ' ')}" for name, value in state.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(1.0)
            sender.sendto(message.encode(), self._address)
            return True
        return False

    def ready(self, status: str) -> None:
        """The service does its work from now on."""
        self.send(READY=1, STATUS=status)

    def waiting(self, status: str, *, extend_s: float) -> None:
        """The start takes longer, and goes on."""
        self.send(STATUS=status, EXTEND_TIMEOUT_USEC=round(extend_s * 1_000_000))

    def status(self, status: str) -> None:
        """Show one line in ``systemctl status``."""
        self.send(STATUS=status)

    def progress(self) -> None:
        """Feed the watchdog."""
        if self.watchdog_s is not None:
            self.send(WATCHDOG=1)

    def reloading(self) -> None:
        """The configuration is being read anew; ``ready`` ends it."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1_000)

    def stopping(self, status: str) -> None:
        """The service winds up."""
        self.send(STOPPING=1, STATUS=status)
