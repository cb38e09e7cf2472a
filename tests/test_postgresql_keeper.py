"""The PostgreSQL of the tests: it is found or taken from a wheel, dies with its owner, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import postgresql
from tests.support.postgresql import Address, NoPostgreSQL, Server, find_binaries

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.skipif(
        os.environ.get(postgresql.SKIP_VARIABLE, "") not in ("", "0"), reason=f"{postgresql.SKIP_VARIABLE} is set"
    ),
]

# Heard even where the tests were started deaf to interrupts, as whatever runs in the background is.
OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.support.postgresql import Server
server = Server()
print(server.folder, server.keeper.pid, server.address.pid, flush=True)
time.sleep(600)
"""


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def start_owner() -> tuple[subprocess.Popen[str], Path, int, int]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder, keeper, server = owner.stdout.readline().split()
    return owner, Path(folder), int(keeper), int(server)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda value: value.name)
def test_the_server_ends_with_its_owner_and_leaves_nothing(end: signal.Signals) -> None:
    owner, folder, keeper, server = start_owner()
    assert is_alive(server)
    owner.send_signal(end)
    try:
        owner.communicate(timeout=20)
    finally:
        owner.kill()
    assert wait_until(lambda: not is_alive(server) and not is_alive(keeper) and not folder.exists())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the server on Linux alone")
def test_the_server_ends_with_its_keeper_and_the_next_one_removes_the_folder() -> None:
    owner, folder, keeper, server = start_owner()
    os.kill(keeper, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(server))
    assert folder.exists()
    with Server():
        assert not folder.exists()
    owner.kill()
    owner.communicate(timeout=20)


def test_a_server_answers_over_the_loopback_and_asks_for_its_password() -> None:
    import psycopg

    with Server() as server:
        assert [(1,)] == server.address.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.address.url("postgres", password="wrong"), connect_timeout=5)
        folder = server.folder
    assert not folder.exists()


def test_the_server_does_not_run_as_root(postgresql_server: Address) -> None:
    status = Path(f"/proc/{postgresql_server.pid}/status")
    if not status.exists():
        pytest.skip("reads /proc")
    uids = next(line for line in status.read_text().splitlines() if line.startswith("Uid:"))
    assert "0" not in uids.split()[1:]


def test_binaries_that_the_server_s_user_cannot_reach_are_copied(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the server runs as this user, who can reach them")
    binaries = find_binaries()
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    # Debian's installation finds its parts by absolute paths: links to the real ones are enough.
    site = hidden / "site" / "somewhere"
    site.mkdir(parents=True)
    (site / "installation").mkdir()
    for part in binaries.parent.iterdir():
        if part.name == "bin":
            (site / "installation" / "bin").mkdir()
            for program in part.iterdir():
                (site / "installation" / "bin" / program.name).symlink_to(program)
        else:
            (site / "installation" / part.name).symlink_to(part)
    with Server(site / "installation" / "bin") as server:
        assert [(1,)] == server.address.execute("SELECT 1")


def test_a_named_folder_without_a_server_is_an_error_not_a_second_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(postgresql.BIN_VARIABLE, str(tmp_path))
    with pytest.raises(NoPostgreSQL, match=str(tmp_path)):
        find_binaries()


def test_a_machine_without_postgresql_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgresql.BIN_VARIABLE, raising=False)
    monkeypatch.setattr(postgresql, "_candidates", list)
    with pytest.raises(NoPostgreSQL, match=postgresql.SKIP_VARIABLE):
        find_binaries()


def test_binaries_that_do_not_start_are_told(tmp_path: Path) -> None:
    binaries = tmp_path / "installation" / "bin"
    binaries.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (binaries / name).write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
        (binaries / name).chmod(0o755)
    with pytest.raises(NoPostgreSQL, match="exited with 3: broken"):
        Server(binaries)


def test_without_a_server_tests_fail_unless_told_to_skip(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(postgresql_url): pass\n")
    environment = {**os.environ, postgresql.BIN_VARIABLE: str(tmp_path)}
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-p", "no:xdist"),
        *(f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"), str(tmp_path / "test_it.py")),
    ]

    def run(**changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, env={**environment, **changes}, capture_output=True, text=True, timeout=120, check=False
        )

    failed = run()
    assert (1, True) == (failed.returncode, "no PostgreSQL to test with" in failed.stdout), failed.stdout
    skipped = run(**{postgresql.SKIP_VARIABLE: "1"})
    assert (0, True) == (skipped.returncode, f"{postgresql.SKIP_VARIABLE} is set" in skipped.stdout), skipped.stdout
