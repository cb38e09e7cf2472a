"""pgqueuer: jobs of a worker without heartbeat are picked again, run to nothing and logged, until the queue is empty.

Run as ``python pgqueuer_peer.py URL COUNT BATCH``; prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from typing import Any


async def main(url: str, count: int, batch: int) -> dict[str, Any]:
    """Make *count* jobs whose worker is gone, drain them, and return the rate."""
    import psycopg
    from pgqueuer import QueueManager  # type: ignore[import-not-found, unused-ignore]
    from pgqueuer.db import PsycopgDriver  # type: ignore[import-not-found, unused-ignore]
    from pgqueuer.queries import Queries  # type: ignore[import-not-found, unused-ignore]
    from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found, unused-ignore]

    conn = await psycopg.AsyncConnection.connect(url, autocommit=True)
    driver = PsycopgDriver(conn)
    manager = QueueManager(Queries(driver))

    @manager.entrypoint("work")  # type: ignore[untyped-decorator, unused-ignore]
    async def work(job: Any) -> None:
        return None

    await manager.queries.install()
    await manager.queries.enqueue(["work"] * count, [b"x" * 1000] * count, [0] * count)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        await other.execute(
            "UPDATE pgqueuer SET status = 'picked', heartbeat = now() - interval '1 hour',"
            " queue_manager_id = gen_random_uuid()"
        )
        await other.execute("ANALYZE")
        await other.execute("CHECKPOINT")
    begin = time.perf_counter()
    await manager.run(batch_size=batch, mode=QueueExecutionMode.drain, heartbeat_timeout=timedelta(seconds=30))
    seconds = time.perf_counter() - begin
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        left = await (await other.execute("SELECT count(*) FROM pgqueuer")).fetchone()
    if left is None or left[0]:
        raise SystemExit(f"{left} are left of {count}")
    return {"per_second": count / seconds}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
