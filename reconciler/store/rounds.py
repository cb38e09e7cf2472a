"""One round trip to PostgreSQL, by the driver's own wrapper of libpq: several statements there, all their rows back.

A statement by the driver's cursors costs the program about as much as it costs the server; here it costs a third.
Values and rows are converted by the driver's adapters, as its cursors do. The transaction is the caller's. Knows
nothing of what is sent.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

# Text of the server's kind (``$1``), and its values.
Statement = tuple[bytes, Sequence[Any]]
# What a statement is known by: its text, and the types of its values.
_Key = tuple[bytes, tuple[int, ...]]

# Prepared statements that a connection keeps, and how many it counts the uses of.
PREPARED_MAX: Final = 200


class PreparedNames:
    """Which statements a connection has prepared. One for each connection, as long as it lasts."""

    def __init__(self) -> None:
        self._uses: OrderedDict[_Key, int] = OrderedDict()
        self._names: OrderedDict[_Key, bytes] = OrderedDict()
        self._made = 0
        # Names that are not needed any more.
        self._evicted: list[bytes] = []
        self.is_doubtful = False

    def doubt(self) -> None:
        """Take note that not all may be there: the driver takes them away at a rollback, or preparing one failed."""
        self.is_doubtful = bool(self._names or self._evicted)

    def keep(self, names: Collection[bytes]) -> None:
        """Forget all but *names*, which are all that are there; those that nobody knows are not needed."""
        self._names = OrderedDict((key, name) for key, name in self._names.items() if name in names)
        self._evicted = sorted(set(names).difference(self._names.values()))
        self.is_doubtful = False

    def name_of(self, key: _Key, threshold: int | None) -> tuple[bytes | None, bool]:
        """Return the name of a statement that is to be run prepared, and whether it must be prepared first."""
        if threshold is None:
            return None, False
        name = self._names.get(key)
        if name is not None:
            self._names.move_to_end(key)
            return name, False
        uses = self._uses.get(key, 0)
        if uses < threshold:
            self._uses[key] = uses + 1
            self._uses.move_to_end(key)
            if len(self._uses) > PREPARED_MAX:
                self._uses.popitem(last=False)
            return None, False
        self._made += 1
        # Never a name twice: whatever was done with it, it may be there still.
        name = self._names[key] = b"reconciler_%d" % self._made
        if len(self._names) > PREPARED_MAX:
            self._evicted.append(self._names.popitem(last=False)[1])
        return name, True

    def evicted(self) -> list[bytes]:
        """Return the names that are not needed any more, once."""
        evicted, self._evicted = self._evicted, []
        return evicted


def exchange(driver: Any, prepared: PreparedNames, statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
    """Send *statements* to the server in one round trip and return the rows of each.

    A statement that fails takes the rest with it. *driver* is a connection of psycopg that waits for nothing.

    Raises:
        Error (of psycopg): as its cursors raise it.
    """
    from psycopg.adapt import PyFormat, Transformer

    if prepared.is_doubtful:
        # The driver throws all away at a rollback, if it has any of its own; it doesn't say whether it did.
        prepared.keep(_names_there(driver))
    transformer = Transformer(driver)
    # Whole before anything is sent: a value that can't be converted leaves the connection as it was.
    dumped: list[tuple[bytes, Any, tuple[int, ...], Any]] = []
    for text, values in statements:
        if values:
            given = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
            dumped.append((text, given, transformer.types or (), transformer.formats))
        else:
            dumped.append((text, None, (), None))
    connection, threshold = driver.pgconn, driver.prepare_threshold
    connection.enter_pipeline_mode()
    # Of each result in turn: whether its rows are a statement's.
    wanted: list[bool] = []
    for evicted in prepared.evicted():
        connection.send_query_params(b"DEALLOCATE " + evicted, None)
        # By itself: a transaction's kind can't be chosen any more behind a statement.
        connection.pipeline_sync()
        wanted += [False, False]
    for text, given, types, formats in dumped:
        name, is_new = prepared.name_of((text, types), threshold)
        if name is None:
            connection.send_query_params(text, given, param_types=types or None, param_formats=formats)
        else:
            if is_new:
                connection.send_prepare(name, text, param_types=types or None)
                wanted.append(False)
            connection.send_query_prepared(name, given, param_formats=formats)
        wanted.append(True)
    connection.pipeline_sync()
    wanted.append(False)
    try:
        results = _results(connection, len(wanted))
    except BaseException:
        prepared.doubt()
        raise
    connection.exit_pipeline_mode()
    return [_rows(transformer, result) for result, is_wanted in zip(results, wanted, strict=True) if is_wanted]


def _names_there(driver: Any) -> set[bytes]:
    asked = b"SELECT name FROM pg_prepared_statements WHERE name LIKE 'reconciler%'"
    (rows,) = exchange(driver, PreparedNames(), [(asked, ())])
    return {str(name).encode() for (name,) in rows}


def is_under_way(driver: Any) -> bool:
    """Tell whether an exchange was begun and not ended: the connection is of no use any more."""
    from psycopg.pq import PipelineStatus

    return bool(driver.pgconn.pipeline_status != PipelineStatus.OFF)


def is_in_transaction(driver: Any) -> bool:
    """Tell whether the connection is in a transaction."""
    from psycopg.pq import TransactionStatus

    return bool(driver.pgconn.transaction_status != TransactionStatus.IDLE)


def begin_text(driver: Any) -> bytes:
    """Return the statement that begins a transaction of the kind that the connection was set to."""
    words = ["BEGIN"]
    if driver.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    return " ".join(words).encode()


def _results(connection: Any, number: int) -> list[Any]:
    """Wait for *number* results and return them, those of the syncs too; an error's is raised when all are there."""
    from psycopg import Error, OperationalError
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    _flush(connection)
    results: list[Any] = []
    failed: Any = None
    is_gap = False
    while len(results) < number:
        try:
            while connection.is_busy():
                _wait(connection, select.POLLIN)
                connection.consume_input()
        except Error:
            if failed is None:
                raise
            # What the server said before it closed the connection says more.
            break
        result = connection.get_result()
        if result is None:
            # There is one such gap behind each statement's result. A second one in a row: nothing more will come.
            if is_gap:
                break
            is_gap = True
            continue
        is_gap = False
        if result.status == ExecStatus.FATAL_ERROR and failed is None:
            failed = result
        results.append(result)
    if failed is not None:
        with suppress(Exception):
            # Where the server has closed the connection there is no mode to leave.
            connection.exit_pipeline_mode()
        raise error_from_result(failed)
    if len(results) < number:
        raise OperationalError("the connection was closed before every statement had its answer")
    return results


def _flush(connection: Any) -> None:
    while connection.flush():
        # A server that is sending answers takes nothing in until somebody reads them.
        if _wait(connection, select.POLLIN | select.POLLOUT) & select.POLLIN:
            connection.consume_input()


def _wait(connection: Any, events: int) -> int:
    # As long as it takes: the server ends a statement that takes too long, and the network a connection that is dead.
    poll = select.poll()
    poll.register(connection.socket, events)
    ((_, found),) = poll.poll()
    return found


def _rows(transformer: Any, result: Any) -> list[tuple[Any, ...]]:
    if not result.nfields:
        return []
    transformer.set_pgresult(result)
    rows: list[tuple[Any, ...]] = transformer.load_rows(0, result.ntuples, tuple)
    return rows
