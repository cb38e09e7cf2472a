"""A process that dies between two statements, without a process: the engine raises at the statement it was told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine


class Crash(BaseException):
    """The process is gone. No handler of ours may catch it: it is no Exception."""


@contextmanager
def crash_at(engine: Engine, statement: int) -> Iterator[None]:
    """Raise `Crash` in place of the statement with this number (from 1 on), COMMIT counted as one.

    Each transaction's uncommitted work is rolled back, as the database does for a dead client. Nothing happens where
    the block sends fewer statements.
    """
    left = statement

    def count(*_: Any, **__: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash(f"at statement {statement}")

    sa.event.listen(engine, "before_cursor_execute", count)
    sa.event.listen(engine, "commit", count)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)
        sa.event.remove(engine, "commit", count)
