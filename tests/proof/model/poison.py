"""A row whose write always fails among sound ones (I10).

On the real pass over a real SQLite file; the mutant has all due rows in one transaction that fails as a whole.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from sqlalchemy.exc import IntegrityError

from reconciler.core.model import Limits
from reconciler.service import reconcile as reconcile_module
from reconciler.service.reconcile import Judge, reconcile_once
from reconciler.store.engine import make_engine
from reconciler.store.settlements import apply_decisions
from tests.support.scenes import Scene, said, turn

SOUND = ("a", "b", "c", "d", "e")


def left_undecided(url: str, *, one_transaction: bool) -> set[str]:
    """Return the sound sessions that a pass left undecided because of the bad ones."""
    engine = make_engine(url)
    scene = Scene(engine)
    for name in ("unwritable", *SOUND):
        scene.session(name, turn("A", said("x")))
        scene.running(name, "A")

    def failing(conn: Any, writes: Any, **more: Any) -> Any:
        if any(write.session_id == "unwritable" for write in writes):
            raise IntegrityError("a write that always fails", {}, Exception("poison"))
        return apply_decisions(conn, writes, **more)

    with mock.patch.object(reconcile_module, "apply_decisions", failing):
        if one_transaction:
            with mock.patch.object(reconcile_module._Pass, "_halve", return_value=[]):
                _run(engine)
        else:
            _run(engine)
    undecided = {name for name in SOUND if scene.row(name, "A").status != "settled"}
    engine.dispose()
    return undecided


def _run(engine: Any) -> None:
    for _ in range(2):
        reconcile_once(engine, limits=Limits(), judge=Judge(connected_for_s=lambda: 1e9), jitter=lambda: 0.0)
