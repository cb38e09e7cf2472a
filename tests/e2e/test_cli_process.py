"""The command line as a process: pipes that break, signals, what a cold start loads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.entrypoints.commands.following import Following

ROOT = Path(__file__).parents[2]
# No matter of how fast the machine is: only of whether it ever comes.
_LONG_S = 300


def _environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECONCILER_")}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}


def _python(tmp_path: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=_environment(tmp_path), capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.parametrize(
    ("args", "absent"),
    [
        (["--help"], ["sqlalchemy", "structlog", "alembic", "apscheduler", "psycopg", "prometheus_client"]),
        (["list", "--help"], ["sqlalchemy", "structlog", "alembic", "apscheduler", "psycopg"]),
        (["inspect", str(ROOT / "examples/sessions/pi-answered.jsonl")], ["sqlalchemy", "structlog", "alembic"]),
        (["status"], ["structlog", "alembic", "apscheduler", "psycopg", "prometheus_client", "mcp", "pydantic"]),
    ],
    ids=["help", "verb-help", "inspect", "status"],
)
def test_a_cold_start_loads_only_what_it_uses(tmp_path: Path, args: list[str], absent: list[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "reconciler", "db", "upgrade"],
        env={**_environment(tmp_path), "RECONCILER_DATABASE_URL": f"sqlite:///{tmp_path}/x.sqlite3"},
        check=True,
        capture_output=True,
        timeout=60,
    )
    code = (
        "import sys, os\n"
        f"os.environ['RECONCILER_DATABASE_URL'] = 'sqlite:///{tmp_path}/x.sqlite3'\n"
        "from reconciler.entrypoints.cli import main\n"
        f"code = main({args!r})\n"
        f"loaded = sorted(name for name in {absent!r} if name in sys.modules)\n"
        "print('LOADED', code, *loaded)\n"
    )
    assert "LOADED 0" == _python(tmp_path, code).splitlines()[-1]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "reconciler", "config", "show"],
        env=_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (0, b"") == (process.returncode, err)


def test_tail_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    submit = [sys.executable, "-m", "reconciler", "submit", "s"]
    subprocess.run([*submit, "one", "1"], env=environment, check=True, capture_output=True, timeout=_LONG_S)
    process = subprocess.Popen(
        [sys.executable, "-m", "reconciler", "tail"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "s/one" in process.stdout.readline()
        subprocess.run([*submit, "two", "1"], env=environment, check=True, capture_output=True, timeout=_LONG_S)
        assert "s/two" in process.stdout.readline()
        # Wherever it is by now: an interrupt is heard when the question at hand is answered.
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_LONG_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert (130, "") == (process.returncode, err.strip())


@pytest.fixture
def _heard() -> Iterator[None]:
    """Have interrupts heard: whoever starts the tests in the background starts them deaf."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_an_interrupt_is_heard_at_rest_and_a_second_one_at_once() -> None:
    with Following() as following:
        # In the middle of a question: noted, and nothing is torn.
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            following.rest(_LONG_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


@pytest.mark.usefixtures("_heard")
def test_an_interrupt_ends_a_rest() -> None:
    with Following() as following:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            following.rest(_LONG_S)


def test_a_pseudo_terminal_gets_colours_unless_they_are_not_wanted(tmp_path: Path) -> None:
    import pty

    def shown(**extra: str) -> bytes:
        pid, descriptor = pty.fork()
        if pid == 0:
            environment = {**_environment(tmp_path), "TERM": "xterm", "PAGER": "cat", **extra}
            os.execve(sys.executable, [sys.executable, "-m", "reconciler", "status"], environment)
        found = b""
        while True:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:
                break
            if not piece:
                break
            found += piece
        os.waitpid(pid, 0)
        os.close(descriptor)
        return found

    coloured = shown()
    assert b"\x1b[1;31merror:\x1b[0m" in coloured
    assert b"\x1b[" not in shown(NO_COLOR="1")
    assert b"\x1b[" not in shown(TERM="dumb")
