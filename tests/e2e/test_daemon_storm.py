"""After an outage all leases have ended at once: worked off in bounded batches, in flat memory, by several daemons."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.store.engine import read
from reconciler.store.schema import submissions
from tests.support.bulk import expired_leases
from tests.support.checker import check
from tests.support.daemons import DaemonProcess, wait_for

pytestmark = pytest.mark.slow

STORM = 20_000
MEMORY_CAP_MB = 300
QUICK = {"lease_s": 1.0, "beat_s": 0.2}


def _left(engine: Engine) -> int:
    with read(engine) as conn:
        count: int = conn.execute(
            sa.select(sa.func.count()).select_from(submissions).where(sa.text("status = 'running'"))
        ).scalar_one()
    return count


def test_a_storm_is_worked_off_in_flat_memory(database_url: str, engine: Engine) -> None:
    expired_leases(engine, STORM)
    with DaemonProcess(database_url, limits=QUICK, settings={"pass_rows_max": 5_000}) as daemon:
        daemon.wait_for("daemon.ready")
        quiet_mb = daemon.memory_mb()
        wait_for("the end of the storm", lambda: _left(engine) == 0, timeout_s=300, every_s=0.2)
        peak_mb = daemon.memory_mb("VmHWM")
        assert 0 == daemon.stop()
    assert peak_mb < MEMORY_CAP_MB, f"{peak_mb:.0f} MB at the peak, {quiet_mb:.0f} MB before"
    passes = daemon.events("pass.finished")
    # The cap holds: what is over is left to the next pass, which follows at once.
    assert max(line["scanned"] for line in passes) <= 5_000
    assert STORM == sum(line["completed"] + line["requeued"] for line in passes)
    assert STORM / 2 == sum(line["completed"] for line in passes)


@pytest.mark.postgresql
def test_two_daemons_share_a_storm_and_decide_each_row_once(
    postgresql_url: str, engine_factory: Callable[..., Engine]
) -> None:
    engine = engine_factory(postgresql_url)
    expired_leases(engine, 4_000)
    with (
        DaemonProcess(postgresql_url, limits=QUICK) as one,
        DaemonProcess(postgresql_url, limits=QUICK) as two,
    ):
        wait_for("the end of the storm", lambda: _left(engine) == 0, timeout_s=120, every_s=0.2)
        for daemon in (one, two):
            daemon.wait_for("daemon.ready")
            assert 0 == daemon.stop()
    done = [sum(line["completed"] + line["requeued"] for line in d.events("pass.finished")) for d in (one, two)]
    assert 4_000 == sum(done)
    with read(engine) as conn:
        most = conn.execute(sa.select(sa.func.max(submissions.c.decision_count))).scalar_one()
    assert 2 == most
    assert [] == check(postgresql_url)
