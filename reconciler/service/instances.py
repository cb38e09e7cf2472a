"""This process among the instances, and the watch over runners of its host.

A runner that is killed says nothing, and its lease may have minutes left. Where its death can be proven (same boot,
same pid namespace, no such process; or this machine was booted anew since), what it held is made due at once; the pass
then proves it anew and decides. Every pass looks so first: a daemon's, that of `once`, and a dry run, which only asks
what would be made due.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final
from uuid import uuid4

from sqlalchemy.engine import Engine

from reconciler import __version__
from reconciler.log import emit
from reconciler.metrics import Metrics
from reconciler.service.liveness import ProcessIdentity, ProcessLookup, booted_at, process_start, proven_dead
from reconciler.store.dialect import db_now
from reconciler.store.engine import read, run_transaction
from reconciler.store.instances import (
    Holder,
    Instance,
    beat_instance,
    forget_instances,
    held_ahead,
    holders_here,
    make_due,
)
from reconciler.store.instances import stop_instance as _stop

# At most this share of the time is spent looking, however many attempts are held.
_SHARE: Final = 0.05
_FORGET_EVERY_S: Final = 3600.0
# What one dead runner held is made due in pieces; what is left over is found by the next look.
_PIECE_ROWS: Final = 1_000
_PIECES_MAX: Final = 100


def this_instance(
    kind: str, *, beat_s: float, here: ProcessIdentity, owner: str = "", instance_id: str | None = None
) -> Instance:
    """Return the row of this process; its id is new with each call."""
    host = _host()
    return Instance(
        id=instance_id or uuid4().hex,
        kind=kind,
        owner=owner or host or "unknown",
        program_version=__version__,
        host=host,
        machine_id=here.machine_id,
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        pid=os.getpid(),
        process_start=here.process_start,
        beat_s=beat_s,
    )


def _host() -> str | None:
    try:
        return socket.gethostname()[:200] or None
    except OSError:
        return None


class Presence:
    """Gives signs of life, and a good-bye."""

    def __init__(self, engine: Engine, instance: Instance, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self.instance = instance
        self._monotonic = monotonic
        self._forget_at = 0.0
        self.announced = False

    def beat(self) -> None:
        """Give a sign of life; now and then remove instances that are long gone.

        Raises:
            ReconcilerError: it could not be written.
        """
        run_transaction(self._engine, lambda conn: beat_instance(conn, self.instance), idempotent=True)
        self.announced = True
        if self._monotonic() >= self._forget_at:
            run_transaction(self._engine, forget_instances, idempotent=True)
            self._forget_at = self._monotonic() + _FORGET_EVERY_S

    def stop(self) -> None:
        """Say good-bye, where somebody was greeted.

        Raises:
            ReconcilerError: it could not be written; the instance shows as silent then.
        """
        if self.announced:
            run_transaction(self._engine, lambda conn: _stop(conn, self.instance.id), idempotent=True)


class RunnerWatch:
    """Finds runners of this host that died. Used by one thread."""

    def __init__(
        self,
        engine: Engine,
        here: ProcessIdentity,
        *,
        metrics: Metrics | None = None,
        look_up: ProcessLookup = process_start,
        booted: Callable[[datetime], datetime | None] = booted_at,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._here = here
        self._metrics = metrics
        self._look_up = look_up
        self._booted = booted
        self._monotonic = monotonic
        self._next_at = 0.0

    def look(self) -> int:
        """Make due what dead runners of this host hold; return how many submissions that were.

        Raises:
            ReconcilerError: the database could not go on.
        """
        started = self._monotonic()
        if started < self._next_at:
            return 0
        made_due = 0
        for holder in self._dead():
            found = self._make_due(holder)
            if found:
                made_due += found
                if self._metrics is not None:
                    self._metrics.count("reconciler_runners_died_total")
                emit("runner.died", pid=holder.pid, attempts=found)
        self._next_at = self._monotonic() + (self._monotonic() - started) / _SHARE
        return made_due

    def would_make_due(self) -> list[tuple[str, str]]:
        """Return the submissions that `look` would make due now, as session and submission. Writes nothing.

        Raises:
            ReconcilerError: the database could not go on.
        """
        most, dead = _PIECE_ROWS * _PIECES_MAX, list(self._dead())
        if not dead:
            return []
        with read(self._engine) as conn:
            return [key for holder in dead for key in held_ahead(conn, holder, limit=most)]

    def _dead(self) -> Iterator[Holder]:
        here = self._here
        if here.boot_id is None:
            return
        with read(self._engine) as conn:
            now = db_now(conn)
            holders = holders_here(
                conn, machine_id=here.machine_id, boot_id=here.boot_id, pid_namespace=here.pid_namespace
            )
        boot = self._booted(now)
        yield from (holder for holder in holders if self._is_dead(holder, boot))

    def _make_due(self, holder: Holder) -> int:
        total = 0
        for _ in range(_PIECES_MAX):
            found = run_transaction(
                self._engine, lambda conn: make_due(conn, holder, limit=_PIECE_ROWS), idempotent=True
            )
            total += found
            if found < _PIECE_ROWS:
                break
        return total

    def _is_dead(self, holder: Holder, boot: datetime | None) -> bool:
        recorded = ProcessIdentity(
            machine_id=holder.machine_id,
            boot_id=holder.boot_id,
            pid_namespace=holder.pid_namespace,
            pid=holder.pid,
            process_start=holder.process_start,
        )
        return proven_dead(recorded, holder.beat_at, self._here, booted_at=boot, look_up=self._look_up)
