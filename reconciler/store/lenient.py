"""Reading what other hands have written: a value that can't be read is one row's matter, and the rest is read.

Who decides by a value must not go on without it: there it is an error. Who only shows rows reads leniently: what can't
be read comes as an `UnreadableInstant`, which can be told and passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection, Engine

from reconciler.store.dialect import is_postgresql, tolerant_loaders
from reconciler.store.engine import read
from reconciler.store.types import lenient


@contextmanager
def read_leniently(engine: Engine) -> Iterator[Connection]:
    """Give a connection as `read` does, on which instants that can't be read are no errors.

    Raises:
        ReconcilerError: what the database said, typed.
    """
    with lenient(), read(engine) as conn:
        if not is_postgresql(conn):
            yield conn
            return
        with tolerant_loaders(conn):
            yield conn
