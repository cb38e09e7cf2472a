"""What lands with the first thing that a long act writes: the note of who did it and why.

An act of many transactions has no single one for its audit row. Written before it would note what may never happen,
written after it a death in between would lose it; so it goes with the first transaction that changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection, Engine

from reconciler.store.engine import run_transaction

T = TypeVar("T")


class FirstWrite:
    """Calls *beside* in the first of an act's transactions that changes anything. Used by one thread."""

    def __init__(self, beside: Callable[[Connection], None] | None = None) -> None:
        self._beside = beside
        # Whether something was written, and *beside* with it.
        self.landed = False

    def run(
        self,
        engine: Engine,
        work: Callable[[Connection], T],
        *,
        changed: Callable[[T], object] = lambda _found: True,
    ) -> T:
        """Run *work* in a transaction of its own and return its result; *changed* tells whether it wrote anything.

        Raises:
            ReconcilerError: as `run_transaction`.
        """
        wrote = self.landed

        def together(conn: Connection) -> T:
            nonlocal wrote
            found = work(conn)
            wrote = self.landed or bool(changed(found))
            if wrote and not self.landed and self._beside is not None:
                self._beside(conn)
            return found

        found = run_transaction(engine, together)
        # Only now: a transaction that is tried again writes it again.
        self.landed = wrote
        return found
