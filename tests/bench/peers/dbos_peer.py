"""DBOS: its own recovery of pending workflows, which puts each back into the queue; and its queue, from end to end.

Run as ``python dbos_peer.py URL COUNT [cycle]``; prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(url: str, count: int) -> dict[str, Any]:
    """Make *count* workflows whose executor is gone, recover them, and return the rate."""
    import psycopg
    from dbos import DBOS  # type: ignore[import-not-found, unused-ignore]

    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})

    @DBOS.workflow()  # type: ignore[untyped-decorator, unused-ignore]
    def work(text: str) -> str:
        return text

    DBOS.launch()
    for handle in [DBOS.start_workflow(work, "x" * 1000) for _ in range(count)]:
        handle.get_result()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("UPDATE dbos.workflow_status SET status = 'PENDING', output = NULL")
        conn.execute("ANALYZE")
        conn.execute("CHECKPOINT")
    begin = time.perf_counter()
    recovered = DBOS._recover_pending_workflows()
    seconds = time.perf_counter() - begin
    DBOS.destroy()
    if len(recovered) != count:
        raise SystemExit(f"{len(recovered)} of {count} were recovered")
    return {"per_second": count / seconds}


def cycle(url: str, count: int) -> dict[str, Any]:
    """Enqueue *count* workflows, let the queue's threads run them, wait for all, and return the rate."""
    from dbos import DBOS  # type: ignore[import-not-found, unused-ignore]

    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})

    @DBOS.workflow()  # type: ignore[untyped-decorator, unused-ignore]
    def work(text: str) -> str:
        return text

    DBOS.launch()
    queue = DBOS.register_queue("bench", polling_interval_sec=0.05)
    queue.enqueue(work, "warm").get_result()
    begin = time.perf_counter()
    for handle in [queue.enqueue(work, "x") for _ in range(count)]:
        handle.get_result()
    seconds = time.perf_counter() - begin
    DBOS.destroy()
    return {"per_second": count / seconds}


if __name__ == "__main__":
    measure = cycle if sys.argv[3:] == ["cycle"] else main
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
