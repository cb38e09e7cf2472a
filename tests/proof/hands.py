"""What scripted operations are done with, in a process of their own: runners, passes, a desk, a gate.

Engines are made once, in the process that forks: a child gets them warm and without connections. Ids come from a seed,
so that a repeated call has the ids of the first one, as the API keeps them over its tries. Knows nothing of crashes.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from sqlalchemy.engine import Connection, Engine

from reconciler.core.model import Limits
from reconciler.ops import audit as audit_module
from reconciler.ops.asking import Answer, Desk
from reconciler.ops.dispatch import ask
from reconciler.service import refine as refine_module
from reconciler.service import runner as runner_module
from reconciler.service import session_import
from reconciler.service.attempt import Attempt
from reconciler.service.beats import process_clock
from reconciler.service.reconcile import Judge, PassReport, reconcile_once
from reconciler.service.refine import RefineGate
from reconciler.service.runner import Runner
from reconciler.store import engine as engine_module
from reconciler.store.claims import ClaimCall, Claimed, claim
from reconciler.store.engine import EngineSettings, make_engine
from reconciler.store.sqlite_file import file_at

T = TypeVar("T")

# No pause between tries; small batches, so that a pass has commits between which it can die.
LIMITS = Limits(
    backoff_base_s=1e-6,
    backoff_max_s=1e-6,
    provider_backoff_base_s=1e-6,
    provider_backoff_max_s=1e-6,
    capability_backoff_s=1e-6,
    backoff_jitter=0.0,
    scan_batch_max=4,
)
# Longer than any run of the proofs: what ends an attempt here is the death of its process.
LEASE_S = 3600.0

_URANDOM = os.urandom
# A person's act of many transactions is another one each time it is called: its audit id comes from no seed. With that
# of the first call the second would fail at its audit row, and nothing behind that row would be looked at.
_OWN_IDS = SimpleNamespace(uuid4=lambda: uuid.UUID(bytes=_URANDOM(16), version=4))
_offset_s = 0.0


def set_clock(offset_s: float) -> None:
    """Let the host's clock, which is the database's on SQLite, be ahead by so much in this process and its children."""
    global _offset_s
    _offset_s = offset_s


def clock() -> datetime:
    """Return the host's time as it is told here."""
    return datetime.now(UTC) + timedelta(seconds=_offset_s)


def pass_time(seconds: float) -> None:
    """Let time pass on the host's clock."""
    set_clock(_offset_s + seconds)


_engines: dict[tuple[str, EngineSettings], Engine] = {}


def _shared_engine(url: str, *, settings: EngineSettings = engine_module.DEFAULT_SETTINGS) -> Engine:
    plain = replace(settings, application_name="proof", clock=clock)
    if (url, plain) not in _engines:
        _engines[url, plain] = make_engine(url, settings=plain)
    return _engines[url, plain]


def let_go() -> None:
    """Close every connection of this process; the engines stay warm."""
    for engine in _engines.values():
        engine.dispose()


def forget_file(path: Path) -> None:
    """Let what comes to be at *path* be another database: a program would take it for its own that was replaced."""
    file_at(path).forget()


def forget() -> None:
    """Drop every engine: their databases are gone."""
    let_go()
    _engines.clear()


@contextmanager
def seeded(seed: str) -> Iterator[None]:
    """Make every id and every random number of the block come from *seed*."""
    state = sha256(seed.encode()).digest()
    count = 0

    def urandom(size: int) -> bytes:
        nonlocal count
        pieces = b""
        while len(pieces) < size:
            count += 1
            pieces += sha256(state + count.to_bytes(8, "big")).digest()
        return pieces[:size]

    before = random.getstate()
    random.seed(seed)
    try:
        with mock.patch.object(os, "urandom", urandom):
            yield
    finally:
        random.setstate(before)


class _RepeatingRunner(Runner):
    """A runner whose every call was tried before, its answer lost."""

    def _write(self, work: Any, **settings: Any) -> Any:
        return super()._write(lambda conn, _: work(conn, True), **settings)


@dataclass
class Hands:
    """One process's hands on the database at *url*. *repeated*: every call was made before, by a process that died."""

    url: str
    folder: Path
    repeated: bool = False

    def __post_init__(self) -> None:
        """Have every part use the warm engines, and import in small pieces."""
        for module in (runner_module, refine_module):
            module.make_engine = _shared_engine  # type: ignore[attr-defined]
        session_import.PIECE_ENTRIES = 3  # type: ignore[misc]
        self._runner: Runner | None = None
        self.limits = LIMITS
        self.lease_s = LEASE_S

    @property
    def engine(self) -> Engine:
        """The engine."""
        return _shared_engine(self.url)

    def connect(self) -> None:
        """Open what the operation will use, so that its points are its own."""
        _ = self.runner
        with self.engine.connect() as conn:
            conn.rollback()

    @property
    def runner(self) -> Runner:
        """A runner that neither beats by itself nor listens."""
        if self._runner is None:
            kind = _RepeatingRunner if self.repeated else Runner
            self._runner = kind(
                self.url,
                owner="runner",
                lease_s=self.lease_s,
                beat_s=5.0,
                limits=self.limits,
                beat_by_itself=False,
                notify=False,
                reconnect_s=0.0,
            )
        return self._runner

    def attempt(self, claimed: Claimed) -> Attempt:
        """Return an attempt that was claimed elsewhere."""
        return self.runner._attempt(claimed, process_clock())

    def claim(self, limit: int = 1) -> list[Claimed]:
        """Claim as the runner does, and return what can be carried to another process."""
        asked: list[ClaimCall] = []

        def noting(conn: Connection, call: ClaimCall, *, repeated: bool) -> Any:
            asked.append(call)
            return claim(conn, call, repeated=repeated)

        with mock.patch.object(runner_module, "claim", noting):
            return [attempt._claimed for attempt in self.runner.claim(limit)]

    def begun(self, session_id: str, submission_id: str, payload: object = None, **more: Any) -> Claimed:
        """Submit, claim and begin."""
        self.runner.submit(session_id, submission_id, payload or {"text": f"do {submission_id}"}, **more)
        (claimed,) = self.claim()
        assert claimed.ref.submission_id == submission_id
        self.attempt(claimed).begin()
        return claimed

    def reconcile(self, limits: Limits = LIMITS, **settings: Any) -> PassReport:
        """Run a pass by a daemon that has watched for long. Each pass is another one: its id comes from no seed."""
        with mock.patch.object(os, "urandom", _URANDOM):
            return reconcile_once(
                self.engine,
                limits=limits,
                judge=Judge(connected_for_s=lambda: 1e9),
                decided_by="daemon",
                jitter=lambda: 0.0,
                **settings,
            )

    def ask(self, name: str, **params: Any) -> Answer:
        """Ask at an operator's desk."""
        desk = Desk(
            make_engine=lambda **_: self.engine,
            name_database=lambda: "the database",
            operator="tess",
            limits=self.limits,
        )
        with mock.patch.object(audit_module, "uuid", _OWN_IDS):
            return ask(name, params, desk)

    def gate(self) -> RefineGate:
        """Return a refine gate."""
        return RefineGate.over(self.engine)
