"""What databases refuse, told as what it is: by both of them, and by their drivers' errors made up."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection, Engine

from reconciler.errors import (
    DatabaseFull,
    DatabaseIoError,
    DatabaseReadOnly,
    DatabaseUnavailable,
    InvalidInput,
    ReconcilerError,
    StoreFault,
)
from reconciler.store.database_errors import ErrorKind, classify_error, is_unique_violation, translate_error
from reconciler.store.engine import begin, read
from reconciler.store.schema import audit, sessions
from tests.store.test_dialect import LONG_AGO, MakeEngine, add


def failure(engine: Engine, work: Callable[[Connection], Any]) -> BaseException:
    with pytest.raises((sa.exc.SQLAlchemyError, UnicodeEncodeError, OverflowError)) as caught:
        with engine.begin() as conn:
            work(conn)
    return caught.value


def test_a_unique_violation_names_table_and_columns(engine: Engine) -> None:
    error = failure(engine, lambda conn: add(conn, "a", "a"))
    assert is_unique_violation(error)
    assert is_unique_violation(error, of=audit)
    assert is_unique_violation(error, of=audit, columns=["id"])
    assert not is_unique_violation(error, of=audit, columns=["id", "at"])
    assert not is_unique_violation(error, of=sessions)
    assert not is_unique_violation(failure(engine, lambda conn: add(conn, "b", verb=None)))


def test_a_violated_check_names_the_check(engine: Engine) -> None:
    def work(conn: Connection) -> None:
        conn.execute(sa.insert(sessions).values(id="s", origin="alien", created_at=LONG_AGO, updated_at=LONG_AGO))

    found = classify_error(failure(engine, work))
    assert (ErrorKind.CHECK, "ck_sessions_origin") == (found.kind, found.constraint)


def test_a_missing_value_names_its_column(engine: Engine) -> None:
    found = classify_error(failure(engine, lambda conn: add(conn, "a", verb=None)))
    assert (ErrorKind.NOT_NULL, "audit", ("verb",)) == (found.kind, found.table, found.columns)


def test_a_missing_table_or_column_is_another_schema(engine: Engine) -> None:
    for statement in ("SELECT * FROM no_such_table", "SELECT no_such_column FROM audit"):
        found = classify_error(failure(engine, lambda conn, text=statement: conn.exec_driver_sql(text)))  # type: ignore[misc]
        assert ErrorKind.SCHEMA == found.kind
    with pytest.raises(ReconcilerError) as caught, begin(engine) as conn:
        conn.exec_driver_sql("SELECT * FROM no_such_table")
    assert "schema_mismatch" == caught.value.code


@pytest.mark.parametrize("text", ["a lone surrogate \ud800", "half a pair \udc00\ud800"])
def test_text_that_is_no_unicode_is_invalid_input_on_both_databases(engine: Engine, text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot store the value"), begin(engine) as conn:
        add(conn, "a", reason=text)


def test_nul_in_text_is_invalid_input_on_postgresql(postgresql_url: str, engine_factory: MakeEngine) -> None:
    with pytest.raises(InvalidInput, match="NUL"), begin(engine_factory(postgresql_url)) as conn:
        add(conn, "a", reason="before\x00after")


def test_a_number_beyond_64_bits_is_invalid_input(engine: Engine) -> None:
    def work(conn: Connection) -> None:
        conn.execute(
            sa.insert(sessions).values(id="s", origin="native", version=2**63, created_at=LONG_AGO, updated_at=LONG_AGO)
        )

    assert ErrorKind.VALUE == classify_error(failure(engine, work)).kind


def test_a_statement_that_takes_too_long_is_ended_and_typed(postgresql_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(postgresql_url, statement_timeout_s=0.05)
    with pytest.raises(ReconcilerError, match="in time") as caught, begin(engine) as conn:
        conn.exec_driver_sql("SELECT pg_sleep(5)")
    assert "database_unavailable" == caught.value.code


def test_a_role_without_rights_is_told_where_the_grants_are(postgresql_url: str, engine_factory: MakeEngine) -> None:
    with pytest.raises(StoreFault, match="permission denied") as caught, begin(engine_factory(postgresql_url)) as conn:
        conn.exec_driver_sql("CREATE ROLE bystander")
        conn.exec_driver_sql("GRANT USAGE ON SCHEMA reconciler TO bystander")
        conn.exec_driver_sql("SET ROLE bystander")
        conn.execute(sa.select(audit)).all()
    assert "deploy/" in str(caught.value.hint)


@pytest.mark.parametrize("size", [0, 100_000, 300_000])
def test_a_limit_on_the_size_of_files_is_told_as_what_it_is(
    sqlite_url: str, engine_factory: MakeEngine, size: int
) -> None:
    engine = engine_factory(sqlite_url)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        with pytest.raises(DatabaseFull) as caught, begin(engine) as conn:
            for number in range(100):
                add(conn, f"n{number}", parameters=f'"{"x" * 5000}"')
    assert f"no file of this process may be larger than {size} bytes" in caught.value.message
    assert "ulimit -f" in str(caught.value.hint)
    with read(engine) as conn:
        assert [] == list(conn.execute(sa.select(audit.c.id)))


def test_a_full_file_is_told_as_what_it_is(sqlite_url: str, engine_factory: MakeEngine) -> None:
    engine = engine_factory(sqlite_url)
    with pytest.raises(DatabaseFull, match="there is no room for it") as caught, begin(engine) as conn:
        conn.exec_driver_sql("PRAGMA max_page_count = 1")
        for number in range(100):
            add(conn, f"n{number}", parameters=f'"{"x" * 5000}"')
    assert "make room" in str(caught.value.hint)


class _FromServer(Exception):
    """What psycopg raises, as far as it is looked at."""

    diag = SimpleNamespace(message_detail=None, column_name=None, constraint_name=None, table_name=None)

    def __init__(self, sqlstate: str, text: str) -> None:
        self.sqlstate = sqlstate
        super().__init__(text)


@pytest.mark.parametrize(
    ("sqlstate", "text", "kind"),
    [
        ("53100", 'could not extend file "base/1/2": No space left on device', DatabaseFull),
        ("58030", 'could not write to file "pg_wal/x": No space left on device', DatabaseFull),
        ("58030", 'could not extend file "base/1/2": Disk quota exceeded', DatabaseFull),
        ("58030", 'could not read block 7 in file "base/1/2": Input/output error', DatabaseIoError),
        ("53300", "sorry, too many clients already", DatabaseUnavailable),
    ],
)
def test_the_servers_disk_is_told_as_what_it_is(sqlstate: str, text: str, kind: type[ReconcilerError]) -> None:
    error = translate_error(sa_exc.OperationalError("INSERT", {}, _FromServer(sqlstate, text)))
    assert kind is type(error)
    assert text in error.message


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DatabaseFull),
        (sqlite3.SQLITE_IOERR, DatabaseIoError),
        (sqlite3.SQLITE_IOERR_READ, DatabaseIoError),
        (sqlite3.SQLITE_IOERR_WRITE, DatabaseIoError),
        (sqlite3.SQLITE_CANTOPEN, DatabaseUnavailable),
        (sqlite3.SQLITE_READONLY, DatabaseReadOnly),
        (sqlite3.SQLITE_READONLY_DBMOVED, DatabaseUnavailable),
    ],
)
def test_what_sqlite_says_of_the_disk_is_told_as_what_it_is(code: int, kind: type[ReconcilerError]) -> None:
    failure = sqlite3.OperationalError("it says so")
    failure.sqlite_errorcode = code
    error = translate_error(failure)
    assert kind is type(error)
    assert error.hint


def test_a_file_that_cannot_be_opened_says_what_a_reader_needs(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path).execute("SELECT 1")
    error = translate_error(caught.value)
    assert isinstance(error, DatabaseUnavailable)
    assert "-shm" in str(error.hint)


@pytest.mark.parametrize("error", [ValueError("odd"), sa.exc.InvalidRequestError("odd"), KeyboardInterrupt()])
def test_every_error_has_a_kind(error: BaseException) -> None:
    assert ErrorKind.OTHER == classify_error(error).kind
    assert isinstance(translate_error(error), StoreFault)


def test_a_typed_error_stays_the_same_object() -> None:
    error = InvalidInput("mine")
    assert error is translate_error(error)
