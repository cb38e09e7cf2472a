"""What the database's libraries log goes where the program's logging goes, and never to the error stream by itself."""

from __future__ import annotations

import subprocess
import sys

_LOSES_ITS_SERVER = """
import sys
import psycopg
from reconciler import Runner
from reconciler.errors import ReconcilerError
from reconciler.store.engine import make_engine, run_transaction

if len(sys.argv) > 2:
    import logging
    logging.basicConfig(level="WARNING", format="logged by %(name)s")

runner = Runner(sys.argv[1], notify=False)

def work(conn):
    pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    with make_engine(sys.argv[1]).connect() as other:
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 10000)")
    with conn.connection.driver_connection.pipeline() as pipeline:
        for number in (1, 2):
            conn.connection.driver_connection.execute(f"SELECT {number}")

try:
    run_transaction(runner._engine, work, attempts=1)
except (psycopg.Error, ReconcilerError):
    print("lost")
runner.close()
"""


def _run(url: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _LOSES_ITS_SERVER, url, *more], capture_output=True, text=True, timeout=900, check=False
    )


def test_a_connection_lost_among_several_statements_writes_nothing_to_the_error_stream(postgresql_url: str) -> None:
    found = _run(postgresql_url)
    assert ("lost\n", "") == (found.stdout, found.stderr)


def test_a_program_that_configures_logging_hears_of_it(postgresql_url: str) -> None:
    found = _run(postgresql_url, "with logging")
    assert "lost\n" == found.stdout
    assert "logged by psycopg" in found.stderr
