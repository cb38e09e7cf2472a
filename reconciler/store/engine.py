"""The way into the database: engines, transactions, retry, and the check that the schema is the one we know.

Knows nothing of sessions or policy, reads no configuration, never migrates (that is ``migrate.py``, a separate act).
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import URL, Connection, Engine, RootTransaction
from sqlalchemy.pool import QueuePool

from reconciler.core.checks import shown
from reconciler.errors import (
    ConfigurationInvalid,
    DatabaseReadOnly,
    DatabaseUnavailable,
    SchemaMismatch,
    UnsupportedOnDialect,
)
from reconciler.store.database_errors import RETRYABLE, ErrorKind, classify_error, translate_error
from reconciler.store.dialect import CLOCK_OPTION, Clock, is_postgresql, is_sqlite, system_clock
from reconciler.store.sending import (
    Query,
    doubt_prepared,
    doubt_prepared_at_reset,
    execute_sqlite,
    forget_ahead,
    send_ahead,
)
from reconciler.store.sqlite_file import SqliteFile, file_at

T = TypeVar("T")

# Every schema this program knows, oldest first; it needs the last one. Kept here so that the check of each start does
# not import the migration tool. A test compares it with the migrations.
SCHEMA_REVISIONS: Final = ("0001",)
SCHEMA_NEEDED: Final = SCHEMA_REVISIONS[-1]
VERSION_TABLE: Final = "alembic_version"

DEFAULT_SCHEMA: Final = "reconciler"
TRANSACTION_ATTEMPTS: Final = 5
# The jitter of every pause. Not the shared generator: who seeds that, to repeat a run, must find nothing drawn from it.
JITTER: Final = random.SystemRandom()

_READ_OPTION: Final = "reconciler_read"
_NAME_OPTION: Final = "reconciler_database"
_SCHEMA_OPTION: Final = "reconciler_schema"
_PATH_OPTION: Final = "reconciler_path"
_READ_ONLY_OPTION: Final = "reconciler_read_only"
_FILE_OPTION: Final = "reconciler_file"
_REQUIRED_OPTION: Final = "reconciler_required"

# PostgreSQL cuts longer identifiers off; "pg_" is reserved.
_IDENTIFIER: Final = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_$]{0,62}\Z")
_SECRET_QUERY_KEYS: Final = frozenset({"password", "sslpassword", "passfile", "sslkey", "service", "options"})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine is made. Times in seconds."""

    # PostgreSQL: the schema that holds the tables.
    schema: str = DEFAULT_SCHEMA
    application_name: str = "reconciler"
    # SQLite: how long a transaction waits for the write lock before it counts as locked.
    busy_timeout_s: float = 5.0
    # PostgreSQL: bounds of one statement, of one wait for a lock, and of a pause inside a transaction.
    statement_timeout_s: float = 60.0
    lock_timeout_s: float = 10.0
    idle_in_transaction_timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    # Connections kept, connections more at a peak, and how long to wait for a free one.
    pool_size: int = 5
    pool_overflow: int = 10
    pool_timeout_s: float = 30.0
    # PostgreSQL: ask a pooled connection whether it is alive before it is used. Who repeats a whole transaction anyway
    # saves a round trip each time.
    pool_pre_ping: bool = True
    # None switches server-side prepared statements off (for a connection pooler that cannot keep them).
    prepare_threshold: int | None = 5
    # PostgreSQL: every statement reads rows by their keys. Its plan is made once for a connection, perhaps while the
    # tables are empty, and kept until the statistics change: then a plan that reads whole tables must not be it.
    by_keys: bool = False
    # SQLite: make the file (mode 0600) where there is none. Only `db upgrade` and its like do that.
    create: bool = False
    # Refuse every write, by the database's own means.
    read_only: bool = False
    # SQLite's clock; PostgreSQL has its own (I17).
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        schema: object = self.schema
        if not isinstance(schema, str) or not _IDENTIFIER.match(schema):
            raise ConfigurationInvalid(
                f"cannot use {shown(schema)} as the name of a schema",
                hint='letters, digits, "_" and "$", at most 63, not starting with a digit or "pg_"',
            )
        for name in ("busy_timeout_s", "statement_timeout_s", "lock_timeout_s", "connect_timeout_s", "pool_timeout_s"):
            if not 0 < getattr(self, name) <= 86400:
                value = getattr(self, name)
                raise ConfigurationInvalid(f"cannot use {name} = {value}: it must be above 0, at most a day")
        if self.pool_size < 1 or self.pool_overflow < 0:
            raise ConfigurationInvalid("cannot make a pool without connections: pool_size is at least 1")


DEFAULT_SETTINGS: Final = EngineSettings()


# --- naming a database -----------------------------------------------------------------------------------------------


def parse_url(database_url: str) -> URL:
    """Return the URL of a database that this program can use.

    ``sqlite:///relative.sqlite3``, ``sqlite:////absolute.sqlite3``, ``postgresql://…`` and ``postgres://…``.

    Raises:
        ConfigurationInvalid: it names no durable SQLite file and no PostgreSQL database.
    """
    ways = "use sqlite:///PATH or postgresql://USER@HOST/DATABASE"
    if not isinstance(database_url, str):
        raise ConfigurationInvalid(f"cannot use {shown(database_url)} as a database URL: it is a text", hint=ways)
    if "://" not in database_url:
        raise ConfigurationInvalid(f"cannot read {shown(database_url)} as a database URL: it has no scheme", hint=ways)
    scheme, _, rest = database_url.partition("://")
    if scheme in {"postgres", "postgresql"}:
        scheme = "postgresql+psycopg"
    if any(ord(character) < 32 for character in rest):
        raise ConfigurationInvalid("cannot use the database URL: it has control characters", hint=ways)
    try:
        url = sa.make_url(f"{scheme}://{rest}")
    except (sa_exc.ArgumentError, ValueError):
        # The text may hold a password: it is not repeated.
        raise ConfigurationInvalid(f'cannot read the database URL that starts with "{scheme}://"', hint=ways) from None
    if url.drivername in {"sqlite", "sqlite+pysqlite"}:
        return _parse_sqlite(url)
    if url.drivername == "postgresql+psycopg":
        return url
    raise ConfigurationInvalid(
        f'cannot use a database of kind "{scheme}"', hint=f"{ways}; other databases and drivers are not supported"
    )


def _parse_sqlite(url: URL) -> URL:
    if url.host:
        raise ConfigurationInvalid(
            f'cannot use the SQLite host "{url.host}": SQLite is a file',
            hint="three slashes for a relative path (sqlite:///x.sqlite3), four for an absolute one",
        )
    path = url.database
    if not path or path == ":memory:":
        raise ConfigurationInvalid(
            "cannot use an SQLite database in memory: nothing would be durable", hint="name a file: sqlite:///PATH"
        )
    if path.startswith("file:") or url.query:
        raise ConfigurationInvalid(
            "cannot use parameters in an SQLite URL", hint="name the file alone: sqlite:///PATH; settings do the rest"
        )
    # A daemon may change its folder: the file must stay the same one.
    return URL.create("sqlite+pysqlite", database=str(Path(path).absolute()))


def database_name(database_url: str | URL) -> str:
    """Return how messages name the database: without password, and without parameters that may hold one."""
    url = database_url if isinstance(database_url, URL) else parse_url(database_url)
    if url.drivername.startswith("sqlite"):
        return f'the SQLite file "{url.database}"'
    shown = URL.create("postgresql", url.username, None, url.host, url.port, url.database)
    query = {key: value for key, value in url.query.items() if key not in _SECRET_QUERY_KEYS}
    return f'the PostgreSQL database "{shown.update_query_dict(query).render_as_string()}"'


def sqlite_path(database_url: str | URL) -> Path | None:
    """Return the file of an SQLite URL, None for PostgreSQL."""
    url = database_url if isinstance(database_url, URL) else parse_url(database_url)
    return Path(str(url.database)) if url.drivername.startswith("sqlite") else None


def make_private_folder(path: Path) -> None:
    """Make the folder *path* for the user alone (mode 0700), its parents too; one that exists is left as it is.

    Raises:
        ConfigurationInvalid: there is something else at this path, or it may not be made.
    """
    try:
        for folder in [*reversed(path.parents), path]:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is no folder")
    except OSError as error:
        raise ConfigurationInvalid(
            f'cannot make the data folder "{path}": {error.strerror or error}', hint="name a database with --database"
        ) from error


# --- engines ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Required:
    """Whether every transaction of an engine that writes asks for the schema first (see `keep_requiring_schema`)."""

    always: bool = False


def make_engine(
    database_url: str,
    *,
    settings: EngineSettings = DEFAULT_SETTINGS,
) -> Engine:
    """Return an engine for *database_url*; nothing is connected yet.

    Raises:
        ConfigurationInvalid: the URL or the settings cannot be used, or the PostgreSQL driver is not installed.
    """
    url = parse_url(database_url)
    options = {
        CLOCK_OPTION: settings.clock,
        _NAME_OPTION: database_name(url),
        _SCHEMA_OPTION: settings.schema,
        _READ_ONLY_OPTION: settings.read_only,
        _REQUIRED_OPTION: _Required(),
    }
    if url.drivername.startswith("sqlite"):
        return _sqlite_engine(url, settings, options)
    return _postgresql_engine(url, settings, options)


def name_of(bind: Engine | Connection) -> str:
    """Return how messages name the database behind *bind*."""
    return str(bind.get_execution_options().get(_NAME_OPTION, "the database"))


def schema_of(bind: Engine | Connection) -> str | None:
    """Return the schema that holds the tables; None on SQLite, which has none."""
    if is_sqlite(bind):
        return None
    return str(bind.get_execution_options().get(_SCHEMA_OPTION, DEFAULT_SCHEMA))


def file_of(bind: Engine | Connection) -> Path | None:
    """Return the SQLite file behind *bind*; None on PostgreSQL."""
    path: Path | None = bind.get_execution_options().get(_PATH_OPTION)
    return path


def _sqlite_engine(url: URL, settings: EngineSettings, options: dict[str, Any]) -> Engine:
    path = Path(str(url.database))
    file = file_at(path)

    def connect() -> sqlite3.Connection:
        return _sqlite_connect(file, settings)

    engine = sa.create_engine(
        url,
        creator=connect,
        poolclass=QueuePool,
        pool_size=settings.pool_size,
        max_overflow=settings.pool_overflow,
        pool_timeout=settings.pool_timeout_s,
        execution_options={**options, _PATH_OPTION: path, _FILE_OPTION: file},
    )
    file.add(engine)
    sa.event.listen(engine, "begin", _sqlite_begin)
    sa.event.listen(engine, "connect", lambda _conn, record: record.info.update({_FILE_OPTION: file.identity}))
    sa.event.listen(engine, "checkin", lambda _conn, record: _drop_if_replaced(file, record))
    return engine


def require_same_file(engine: Engine) -> None:
    """Close what leads to an SQLite file that was removed or replaced: all of this process's pooled connections to it.

    Raises:
        DatabaseUnavailable: there is no file now, it is empty, or the log of the one before is still there.
    """
    file: SqliteFile | None = engine.get_execution_options().get(_FILE_OPTION)
    if file is not None:
        file.require_same()


def _drop_if_replaced(file: SqliteFile, record: Any) -> None:
    """Close a connection that comes back to the pool, where its file is another one by now."""
    if not file.is_at_path(record.info.get(_FILE_OPTION)):
        record.invalidate()


def _sqlite_connect(file: SqliteFile, settings: EngineSettings) -> sqlite3.Connection:
    path = file.path
    file.before_opening()
    if not path.exists():
        if not settings.create or settings.read_only:
            raise _no_file(path)
        # The exact mode, whatever the umask: SQLite gives -wal and -shm the mode of the main file.
        with suppress(FileExistsError):
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                raise
            except OSError as error:
                raise ConfigurationInvalid(
                    f'cannot make the SQLite file "{path}": {error.strerror or error}',
                    hint="make its folder, or name another file with --database",
                ) from error
    file.opening()
    # Without a mode SQLite would make a missing file, with the umask's mode.
    mode = "ro" if settings.read_only else "rw"
    conn = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=settings.busy_timeout_s,
        # Transactions are begun by _sqlite_begin alone.
        isolation_level=None,
        # The pool hands a connection to one thread at a time.
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        _sqlite_prepare(conn, path, settings)
    except BaseException:
        conn.close()
        raise
    file.opened()
    return conn


def scratch_engine(database: str) -> Engine:
    """Return an engine on an empty SQLite database in memory, which is gone with it: what a dry run plans against where
    there is no database yet. No file is made. Errors name it as *database*.
    """
    uri = f"file:reconciler-{uuid.uuid4().hex}?mode=memory&cache=shared"

    def connect() -> sqlite3.Connection:
        conn = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        conn.execute("PRAGMA foreign_keys=ON")
        conn.execute("PRAGMA trusted_schema=OFF")
        return conn

    options = {
        CLOCK_OPTION: system_clock,
        _NAME_OPTION: database,
        _READ_ONLY_OPTION: False,
        _REQUIRED_OPTION: _Required(),
    }
    # The database lives as long as one connection does: the pool keeps them.
    engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool, execution_options=options)
    sa.event.listen(engine, "begin", _sqlite_begin)
    return engine


def _sqlite_prepare(conn: sqlite3.Connection, path: Path, settings: EngineSettings) -> None:
    conn.execute("PRAGMA foreign_keys=ON")
    # A schema from elsewhere may not call functions with side effects.
    conn.execute("PRAGMA trusted_schema=OFF")
    if settings.read_only:
        conn.execute("PRAGMA query_only=ON")
        return
    # Each commit is on the disk before it is answered, power cuts included.
    conn.execute("PRAGMA synchronous=FULL")
    mode = _sqlite_use_wal(conn, settings.busy_timeout_s)
    if mode != "wal":
        if mode == "delete" and not os.access(path, os.W_OK):
            return  # read-only: the first write says so, reads go on
        raise UnsupportedOnDialect(
            f'cannot use write-ahead logging for the SQLite file "{path}": its journal mode stays "{mode}"',
            hint="put the file on a local disk: network file systems cannot share it safely",
        )
    # After a large import the log file shrinks again.
    conn.execute("PRAGMA journal_size_limit=67108864")


def _sqlite_use_wal(conn: sqlite3.Connection, timeout_s: float) -> str:
    # Of several processes that open a new file at once, all but one may be told "locked" without having waited.
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return str(conn.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            kind = classify_error(error).kind
            if kind is ErrorKind.READ_ONLY:
                return str(conn.execute("PRAGMA journal_mode").fetchone()[0])
            if kind is not ErrorKind.LOCKED or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def _sqlite_begin(conn: Connection) -> None:
    # Immediate: the write lock is taken before the first read, so that what was read still holds when it is written,
    # and no transaction fails half-way for a lock that it cannot get any more.
    reading = conn.get_execution_options().get(_READ_OPTION, False)
    execute_sqlite(conn, "BEGIN" if reading else "BEGIN IMMEDIATE")


def _postgresql_engine(url: URL, settings: EngineSettings, options: dict[str, Any]) -> Engine:
    connect_args: dict[str, Any] = {
        "application_name": settings.application_name,
        "connect_timeout": max(1, round(settings.connect_timeout_s)),
        # A network that went away is noticed, also while waiting for an answer.
        "keepalives": 1,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30000,
        "client_encoding": "utf8",
    }
    # What the URL says goes first.
    connect_args = {key: value for key, value in connect_args.items() if key not in url.query}
    server = {
        # Our schema alone: a table of another program's is never met by accident. Quoted: case stays.
        "search_path": f'"{settings.schema}"',
        "statement_timeout": _milliseconds(settings.statement_timeout_s),
        "lock_timeout": _milliseconds(settings.lock_timeout_s),
        "idle_in_transaction_session_timeout": _milliseconds(settings.idle_in_transaction_timeout_s),
        # An answer to a caller means that it is durable, whatever the server's default is.
        "synchronous_commit": "on",
        "default_transaction_isolation": "read\\ committed",
        "TimeZone": "UTC",
        # Compiling a view over 100,000 pending rows took six times as long as reading it; nothing of ours runs so long.
        "jit": "off",
    }
    if settings.by_keys:
        server |= {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
    if settings.read_only:
        server["default_transaction_read_only"] = "on"
        # Beside the server's default, because a connection that comes back to the pool is set to "read write".
        options = {**options, "postgresql_readonly": True}
    given = url.query.get("options", "")
    extra = given if isinstance(given, str) else " ".join(given)
    connect_args["options"] = " ".join([*(f"-c {key}={value}" for key, value in server.items()), extra]).strip()
    connect_args["prepare_threshold"] = settings.prepare_threshold
    try:
        engine = sa.create_engine(
            url.difference_update_query(["options"]),
            connect_args=connect_args,
            # A server that was restarted in between costs a round trip, not an error.
            pool_pre_ping=settings.pool_pre_ping,
            pool_size=settings.pool_size,
            max_overflow=settings.pool_overflow,
            pool_timeout=settings.pool_timeout_s,
            execution_options=options,
        )
    except ModuleNotFoundError as error:
        raise ConfigurationInvalid(
            f"cannot use {options[_NAME_OPTION]}: the driver psycopg is not installed",
            hint="install the extra: session-reconciler[postgres]",
        ) from error
    sa.event.listen(engine, "rollback", doubt_prepared)
    sa.event.listen(engine, "reset", lambda driver, record, _state: doubt_prepared_at_reset(driver, record))
    ping = engine.dialect.do_ping
    engine.dialect.do_ping = lambda dbapi_connection: _UNPINGED.get() or ping(dbapi_connection)  # type: ignore[method-assign]
    return engine


# A transaction whose first statement finds out whether the connection is still there needs no round trip before it.
_UNPINGED: Final[ContextVar[bool]] = ContextVar("unpinged", default=False)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


# --- transactions ----------------------------------------------------------------------------------------------------


@contextmanager
def _writing(engine: Engine, ahead: Sequence[Query] = ()) -> Iterator[Connection]:
    require_same_file(engine)
    required = engine.get_execution_options()[_REQUIRED_OPTION].always
    if required and is_postgresql(engine):
        with _postgresql_writing(engine, ahead) as conn:
            yield conn
        return
    with engine.connect() as conn, conn.begin():
        if required:
            _require_needed([str(version) for (version,) in execute_sqlite(conn, _READ_VERSION)], conn)
        yield conn


@contextmanager
def _postgresql_writing(engine: Engine, ahead: Sequence[Query]) -> Iterator[Connection]:
    # Differs on PostgreSQL because each statement is a round trip: BEGIN goes with the question for the version, and
    # with what the work is known to ask first.
    conn, transaction, versions = _postgresql_begun(engine, ahead)
    with conn:
        try:
            with transaction:
                _require_needed(versions, conn)
                yield conn
        finally:
            if not conn.invalidated:
                forget_ahead(conn)


def _postgresql_begun(engine: Engine, ahead: Sequence[Query]) -> tuple[Connection, RootTransaction, list[str]]:
    fresh = False
    while True:
        unpinged = _UNPINGED.set(True)
        try:
            conn = engine.connect()
        finally:
            _UNPINGED.reset(unpinged)
        try:
            transaction = conn.begin()
            (versions,) = send_ahead(conn, (_READ_VERSION, {}), ahead=ahead)
        except sa_exc.DBAPIError as error:
            conn.close()
            if error.connection_invalidated and not fresh:
                # It was closed while it lay in the pool, as after a restart of the server. Nothing was done yet; the
                # others of the pool are as old, so they all go.
                engine.dispose()
                fresh = True
            elif not error.connection_invalidated and ahead and _may_go_without(error):
                ahead = ()
            else:
                raise
        except BaseException:
            conn.close()
            raise
        else:
            return conn, transaction, [str(version) for (version,) in versions]


def _may_go_without(error: sa_exc.DBAPIError) -> bool:
    """Tell whether what went ahead is to be sent where it belongs, for its error to be met there."""
    state = getattr(error.orig, "sqlstate", None)
    # In another schema the version is what is wrong; and a value that the driver refuses fails its reader alone.
    return state is None or state.startswith(_UNDEFINED)


@contextmanager
def begin(engine: Engine) -> Iterator[Connection]:
    """Give a connection inside one write transaction: committed at the end of the block, rolled back by an exception.

    Raises:
        ReconcilerError: what the database said, typed (see `translate_error`); nothing was written, except that after
            a connection lost while committing (DatabaseUnavailable) it isn't known.
    """
    try:
        with _writing(engine) as conn:
            yield conn
    except (sa_exc.SQLAlchemyError, sqlite3.Error, UnicodeEncodeError) as error:
        raise translate_error(error, name_of(engine)) from error


@contextmanager
def read(engine: Engine) -> Iterator[Connection]:
    """Give a connection that sees one consistent state of the database and cannot write.

    Raises:
        ReconcilerError: what the database said, typed.
    """
    try:
        require_same_file(engine)
        with engine.connect() as conn:
            if is_postgresql(conn):
                reading = conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with reading.begin():
                    yield reading
                return
            reading = conn.execution_options(**{_READ_OPTION: True})
            driver = reading.connection.driver_connection
            if not isinstance(driver, sqlite3.Connection):
                raise UnsupportedOnDialect(f"cannot read from {name_of(engine)}: it is no SQLite connection")
            driver.execute("PRAGMA query_only=ON")
            try:
                with reading.begin():
                    yield reading
            finally:
                if not engine.get_execution_options()[_READ_ONLY_OPTION]:
                    # An interrupt in the middle has closed it, and must not be hidden by another error.
                    with suppress(sqlite3.ProgrammingError):
                        driver.execute("PRAGMA query_only=OFF")
    except (sa_exc.SQLAlchemyError, sqlite3.Error, UnicodeEncodeError) as error:
        raise translate_error(error, name_of(engine)) from error


def run_transaction(
    engine: Engine,
    work: Callable[[Connection], T],
    *,
    attempts: int = TRANSACTION_ATTEMPTS,
    idempotent: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    ahead: Sequence[Query] = (),
) -> T:
    """Run *work* in one write transaction and return its result; the whole of it again where another was in the way.

    *ahead* is what *work* sends first (`sending.send`), exactly: PostgreSQL gets it together with the transaction's
    beginning, in one round trip.

    *work* may run several times: it changes nothing but the database. Locks, serialization failures and deadlocks are
    retried up to *attempts* tries, with backoff and jitter. A lost connection is retried once, and only where the
    caller says that the work is *idempotent*: a COMMIT may have happened.

    Raises:
        ReconcilerError: as `begin`; what *work* raises itself goes through untouched.
    """
    if attempts < 1:
        raise ValueError("attempts is at least 1")
    reconnects = 1 if idempotent else 0
    tried = 0
    while True:
        tried += 1
        try:
            with _writing(engine, ahead) as conn:
                return work(conn)
        except (sa_exc.SQLAlchemyError, sqlite3.Error, UnicodeEncodeError) as error:
            kind = classify_error(error).kind
            again = kind in RETRYABLE and tried < attempts
            if kind is ErrorKind.CONNECTION_LOST and reconnects > 0:
                reconnects -= 1
                again = True
            if not again:
                raise translate_error(error, name_of(engine)) from error
        # 10 ms, doubled, at most 1 s; the jitter keeps two that met from meeting again.
        sleep(min(1.0, 0.01 * 2.0 ** (tried - 1)) * JITTER.uniform(0.5, 1.5))


# --- the schema check (I16) ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Which schema a database has. ``found`` is None where it holds no version of ours."""

    found: str | None
    needed: str = SCHEMA_NEEDED
    # Where found is None: whether there are other tables.
    empty: bool = True

    @property
    def matches(self) -> bool:
        """Whether this program can use it."""
        return self.found == self.needed


def schema_state(engine: Engine) -> SchemaState:
    """Read which schema the database has; writes nothing, makes no file.

    Raises:
        DatabaseUnavailable: it could not be reached, or stayed locked.
        DatabaseInvalid: the file is not a database.
    """
    path = engine.get_execution_options().get(_PATH_OPTION)
    if path is not None and not path.exists():
        return SchemaState(None)
    with read(engine) as conn:
        return _schema_state(conn)


def _schema_state(conn: Connection) -> SchemaState:
    tables = set(conn.execute(_TABLE_NAMES[is_postgresql(conn)], _schema_parameters(conn)).scalars())
    if VERSION_TABLE not in tables:
        return SchemaState(None, empty=not tables)
    version = sa.column("version_num", sa.Text())
    found = sorted(conn.execute(sa.select(version).select_from(sa.table(VERSION_TABLE))).scalars())
    if not found:
        return SchemaState(None, empty=not tables - {VERSION_TABLE})
    # More than one is another program's branch, or damage: shown whole, matches nothing.
    return SchemaState(", ".join(found), empty=False)


def _schema_parameters(conn: Connection) -> Mapping[str, str]:
    schema = schema_of(conn)
    return {} if schema is None else {"schema": schema}


_TABLE_NAMES: Final = {
    True: sa.text(
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = :schema AND c.relkind IN ('r', 'p')"
    ),
    False: sa.text("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"),
}


def require_schema(engine: Engine, *, for_writing: bool = True) -> None:
    """Refuse a database whose schema isn't the one this program needs, before anything is written (I16).

    Raises:
        SchemaMismatch: another version, no version, no file; found, needed and the way out are in the message.
        DatabaseInvalid: the file is not a database.
        DatabaseReadOnly: *for_writing*, and it cannot be written to.
        DatabaseUnavailable: it could not be reached, or stayed locked.
    """
    path = engine.get_execution_options().get(_PATH_OPTION)
    if path is not None:
        require_same_file(engine)
        if not path.exists():
            raise _no_file(path)
    state = schema_state(engine)
    if not state.matches:
        raise _mismatch(state, name_of(engine))
    if for_writing:
        _require_writable(engine)
    keep_requiring_schema(engine)


def keep_requiring_schema(engine: Engine) -> None:
    """Refuse every later transaction that writes by *engine* once the schema is another one. `require_schema` calls it.

    It may be upgraded below a program that runs for months. The version is read inside the transaction, and an upgrade
    waits for the transactions that have read it: nothing of an older program lands in a newer schema (I16).
    """
    engine.get_execution_options()[_REQUIRED_OPTION].always = True


_READ_VERSION: Final = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608
# The class of statements that a schema can't take: what they name isn't there.
_UNDEFINED: Final = "42"


def _require_needed(versions: Sequence[str], conn: Connection) -> None:
    if list(versions) != [SCHEMA_NEEDED]:
        raise _mismatch(SchemaState(", ".join(sorted(versions)) or None, empty=False), name_of(conn))


def _require_writable(engine: Engine) -> None:
    if is_sqlite(engine):
        # Takes the write lock and changes nothing. The statement is needed: on a read-only file BEGIN IMMEDIATE alone
        # quietly begins a reading transaction.
        with begin(engine) as conn:
            conn.exec_driver_sql(f"DELETE FROM {VERSION_TABLE} WHERE 1 = 0")  # noqa: S608
        return
    with begin(engine) as conn:
        read_only = conn.execute(sa.text("SELECT current_setting('transaction_read_only') = 'on'")).scalar_one()
    if read_only:
        raise DatabaseReadOnly(
            f"cannot write to {name_of(engine)}: its transactions are read-only (a standby, or a read-only role)",
            hint="connect to the primary, or with a role that may write",
        )


def _no_file(path: Path) -> SchemaMismatch:
    return SchemaMismatch(
        f'cannot use the SQLite file "{path}": there is no such file; schema {SCHEMA_NEEDED} is needed',
        detail={"found": None, "needed": SCHEMA_NEEDED},
        hint="make it with `reconciler db upgrade`, or name another one with --database",
    )


def _mismatch(state: SchemaState, name: str) -> SchemaMismatch:
    detail = {"found": state.found, "needed": state.needed}
    if state.found is None and state.empty:
        return SchemaMismatch(
            f"cannot use {name}: it is empty; schema {state.needed} is needed",
            detail=detail,
            hint="make the tables with `reconciler db upgrade`",
        )
    if state.found is None:
        return SchemaMismatch(
            f"cannot use {name}: its tables are another program's; schema {state.needed} is needed",
            detail=detail,
            hint="name a database of its own with --database",
        )
    if state.found in SCHEMA_REVISIONS:
        return SchemaMismatch(
            f"cannot use {name}: found schema {state.found}, needed {state.needed}",
            detail=detail,
            hint="stop every program that uses it, make a backup, then run `reconciler db upgrade`;"
            " or use the program's version that it was made with",
        )
    return SchemaMismatch(
        f"cannot use {name}: found schema {state.found}, which this program does not know; needed {state.needed}",
        detail=detail,
        hint="it was made by a newer version, or by another program: install the version that made it,"
        " or name another database with --database",
    )


def wait_until_reachable(engine: Engine, *, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the database answers, at most *timeout_s* seconds.

    Raises:
        DatabaseUnavailable: it did not.
    """
    deadline = time.monotonic() + timeout_s
    delay = 0.1
    while True:
        try:
            with read(engine) as conn:
                conn.execute(sa.select(sa.literal(1)))
        except DatabaseUnavailable:
            if time.monotonic() + delay >= deadline:
                raise
            sleep(delay)
            delay = min(5.0, delay * 2)
        else:
            return
