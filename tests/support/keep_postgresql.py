"""The keeper of a PostgreSQL server for tests: it owns the server and its folder, and both end with their owner.

Run as ``python keep_postgresql.py`` with a pipe from the owner as standard input, whose first line is the request,
JSON. (No argument, because it holds a password, and every user can read a process's arguments.)
The keeper makes the cluster, starts the server, prints one JSON line with what there is to know, and waits. When the
pipe ends (the owner ended, however it ended, SIGKILL included) or the server does, it stops the server at once and
removes the folder. Where the keeper itself is killed, the kernel ends the server (PR_SET_PDEATHSIG), and the next
keeper removes the folder, whose lock is free then.

Standard library alone, and no import of the project: it runs in whatever interpreter the tests use, as root or not.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

PREFIX = "reconciler-postgresql-"
LOCK = "keeper.lock"
START_TIMEOUT_S = 60.0
# A unix socket's path has at most 107 bytes.
SOCKET_PATH_MAX = 107
_PR_SET_PDEATHSIG = 1


class CannotStart(Exception):
    """No server can be had; the text says why."""


class _Stop(Exception):
    """The keeper was asked to stop."""


def main() -> int:
    """Keep a server until the owner's pipe ends; return the exit status."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's ^C ends the tests, and they end us
    base = _base_folder()
    _remove_abandoned(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        # The folder is ours while this descriptor holds the lock.
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _keep(folder, Path(request["bin"]), request["password"], request.get("settings", {}))
        except (CannotStart, OSError) as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 1
        except _Stop:
            pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _keep(folder: Path, binaries: Path, password: str, settings: dict[str, str]) -> None:
    user = _unprivileged_user()
    if user is not None:
        folder.chmod(0o711)
        if not _reachable(binaries):
            binaries = _copy_installation(binaries, folder / "installation")
    data, sockets = folder / "data", folder / "sockets"
    for made in (data, sockets):
        made.mkdir(mode=0o700)
        if user is not None:
            os.chown(made, user.pw_uid, user.pw_gid)
    password_file = data.parent / "password"
    password_file.write_text(password)
    if user is not None:
        os.chown(password_file, user.pw_uid, user.pw_gid)
    _run(
        [
            binaries / "initdb",
            *("--no-sync", "--encoding=UTF8", "--locale=C", "--username=postgres", "--auth=password"),
            *(f"--pwfile={password_file}", f"--pgdata={data}"),
        ],
        user,
        folder,
    )
    password_file.unlink()
    server, port = _start(binaries, folder, data, sockets, user, settings)
    try:
        answer = {"port": port, "sockets": str(sockets), "folder": str(folder), "pid": server.pid, "bin": str(binaries)}
        print(json.dumps(answer), flush=True)
        while server.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], 1.0)
            if readable and not os.read(sys.stdin.fileno(), 1024):
                return
    finally:
        # Immediate: there is nothing in it to keep.
        server.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        if server.poll() is None:
            server.kill()
            server.wait(10)


def _start(
    binaries: Path,
    folder: Path,
    data: Path,
    sockets: Path,
    user: pwd.struct_passwd | None,
    changed: dict[str, str],
) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / "log"
    for _ in range(5):
        port = _free_port()
        settings: dict[str, Any] = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": sockets,
            "max_connections": 200,
            "shared_buffers": "64MB",
            # Nothing in it outlives the tests.
            "fsync": "off",
            "full_page_writes": "off",
            "wal_level": "minimal",
            "max_wal_senders": 0,
            "autovacuum_naptime": "5s",
            # Far from UTC, so that a time without a zone shows itself.
            "timezone": "<+0545>-05:45",
            "log_min_messages": "warning",
            "deadlock_timeout": "100ms",
        }
        settings |= changed
        arguments = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with log.open("ab") as output:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=_environment(),
                preexec_fn=_drop_to(user),
            )
        # The last line of this file says "ready" once connections are taken.
        status = data / "postmaster.pid"
        deadline = time.monotonic() + START_TIMEOUT_S
        while server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if status.read_text().rstrip().endswith("ready"):
                    return server, port
            time.sleep(0.01)
        if server.poll() is None:
            server.kill()
            server.wait(10)
            raise CannotStart(f"the server was not ready after {START_TIMEOUT_S:.0f} s")
        if "in use" not in log.read_text(errors="replace"):
            break
    raise CannotStart(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _run(command: list[Any], user: pwd.struct_passwd | None, folder: Path) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env=_environment(),
        preexec_fn=_drop_to(user),
        timeout=START_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise CannotStart(f"{command[0]} exited with {done.returncode}: {said[-2000:]}")


def _drop_to(user: pwd.struct_passwd | None) -> Any:
    keeper = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def before_exec() -> None:
        if user is not None:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        if libc is not None:
            # After the change of user, which would clear it.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
            if os.getppid() != keeper:
                os._exit(1)

    return before_exec


def _unprivileged_user() -> pwd.struct_passwd | None:
    # The server refuses to run as root.
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise CannotStart("this is root, the server must not be, and there is neither a user postgres nor nobody")


def _base_folder() -> Path:
    base = Path(tempfile.gettempdir())
    long = len(str(base)) + len(PREFIX) + len("12345678/sockets/.s.PGSQL.12345.lock") > SOCKET_PATH_MAX
    if long or (os.geteuid() == 0 and not _reachable(base)):
        return Path("/tmp")
    return base


def _reachable(path: Path) -> bool:
    """Return whether everybody may walk to *path*."""
    real = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents))


def _copy_installation(binaries: Path, target: Path) -> Path:
    # bin, lib and share find each other by their relative places; a wheel keeps repaired libraries further up.
    prefix = binaries.resolve().parent
    site = prefix.parent.parent
    inside = prefix.relative_to(site)
    shutil.copytree(prefix, target / inside)
    for libraries in site.glob("*pgserver*.libs"):
        shutil.copytree(libraries, target / libraries.name)
    for folder, _, files in os.walk(target):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    return target / inside / "bin"


def _remove_abandoned(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    raise _Stop


if __name__ == "__main__":
    sys.exit(main())
