"""The nine cells: names, phases and durations of the public benchmark, so that tables can stand side by side."""

from __future__ import annotations

from tests.chaos import stress
from tests.chaos.run import Phases, Plan

_EFFECTS = ("tool_again", "side effects: none twice, each answered")
_FSCK = ("settlement_without_entry", "fsck clean")

CELLS = (
    Plan(1, "postgres_restart", Phases(30, 60, 60, 60), stress.postgres_restart, stress.disk_full),
    Plan(2, "backend_kill", Phases(30, 60, 60, 60), stress.backend_kill, stress.stopped_holders),
    Plan(3, "pool_exhaustion", Phases(30, 60, 60, 60), stress.pool_exhaustion, stress.many_readers),
    Plan(
        4,
        "crash_recovery",
        Phases(30, 60, 60, 120),
        stress.crash_recovery,
        stress.crash_recovery,
        replicas=2,
        control=_EFFECTS,
    ),
    Plan(
        5,
        "repeated_kills",
        Phases(30, 60, 120, 60),
        stress.repeated_kills,
        stress.repeated_kills,
        replicas=2,
        control=_FSCK,
    ),
    Plan(6, "idle_in_tx", Phases(30, 60, 240, 180), stress.idle_in_transaction, stress.long_reader),
    Plan(7, "sustained_high_load", Phases(30, 60, 240, 120), stress.high_load, stress.high_load),
    Plan(8, "active_readers", Phases(30, 60, 240, 120), stress.active_readers, stress.view_readers),
    Plan(9, "event_burst", Phases(30, 60, 300, 240), stress.high_load, stress.high_load, threads=16),
)
