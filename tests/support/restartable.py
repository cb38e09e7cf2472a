"""A PostgreSQL server that tests may stop, kill and start again on the same port and data; ends with its process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import keep_postgresql as keeper
from tests.support.postgresql import Address, find_binaries

_PASSWORD = "restartable"
START_TIMEOUT_S = 60.0


class RestartableServer:
    """A cluster of its own. ``settings`` are PostgreSQL's, beside those that make tests quick."""

    def __init__(self, *, settings: dict[str, object] | None = None, durable: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="reconciler-restartable-", dir=keeper._base_folder()))
        self._user = keeper._unprivileged_user()
        self._binaries = find_binaries()
        self._settings: dict[str, object] = {
            "listen_addresses": "127.0.0.1",
            "max_connections": 100,
            "shared_buffers": "64MB",
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            "wal_level": "minimal",
            "max_wal_senders": 0,
            "log_min_messages": "warning",
            "timezone": "<+0545>-05:45",
            **(settings or {}),
        }
        self.port = keeper._free_port()
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._initdb()
            self.start()
        except BaseException:
            self.close()
            raise

    def _initdb(self) -> None:
        folder = self._folder
        if self._user is not None:
            folder.chmod(0o711)
            if not keeper._reachable(self._binaries):
                self._binaries = keeper._copy_installation(self._binaries, folder / "installation")
        self._data, self._sockets = folder / "data", folder / "sockets"
        password = folder / "password"
        password.write_text(_PASSWORD)
        for made in (self._data, self._sockets):
            made.mkdir(mode=0o700)
        if self._user is not None:
            for path in (self._data, self._sockets, password):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        keeper._run(
            [
                self._binaries / "initdb",
                *("--no-sync", "--encoding=UTF8", "--locale=C", "--username=postgres", "--auth=password"),
                *(f"--pwfile={password}", f"--pgdata={self._data}"),
            ],
            self._user,
            folder,
        )

    @property
    def address(self) -> Address:
        """How to reach it."""
        assert self._server is not None
        return Address(self.port, _PASSWORD, str(self._sockets), self._server.pid)

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._server is not None and self._server.poll() is None

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        settings = {**self._settings, "port": self.port, "unix_socket_directories": self._sockets}
        arguments: list[Any] = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        log = self._folder / "log"
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env=keeper._environment(),
                preexec_fn=keeper._drop_to(self._user),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if (self._data / "postmaster.pid").read_text().rstrip().endswith("ready"):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT fast (clients are cut off), SIGQUIT immediate (as after a crash)."""
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(10)

    def close(self) -> None:
        """Stop it and remove everything."""
        if self.is_running:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
