"""procrastinate: the recipe of its manual, ``get_stalled_jobs`` and ``retry_job`` one by one; and its queue end to end.

Run as ``python procrastinate_peer.py URL COUNT [cycle]``; prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


async def main(url: str, count: int) -> dict[str, Any]:
    """Make *count* jobs whose worker is gone, put them back, and return the rate."""
    import procrastinate  # type: ignore[import-not-found, unused-ignore]
    import psycopg

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="work")  # type: ignore[untyped-decorator, unused-ignore]
    async def work(text: str) -> None:
        return None

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await work.batch_defer_async(*({"text": "x" * 1000} for _ in range(count)))
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour')")
            conn.execute(
                "UPDATE procrastinate_jobs SET status = 'doing',"
                " worker_id = (SELECT max(id) FROM procrastinate_workers)"
            )
            conn.execute("ANALYZE")
            conn.execute("CHECKPOINT")
        begin = time.perf_counter()
        jobs = list(await app.job_manager.get_stalled_jobs())
        for job in jobs:
            await app.job_manager.retry_job(job)
        seconds = time.perf_counter() - begin
    if len(jobs) != count:
        raise SystemExit(f"{len(jobs)} of {count} were found")
    return {"per_second": count / seconds}


async def cycle(url: str, count: int) -> dict[str, Any]:
    """Defer, fetch and finish *count* jobs one after the other, and return the rate."""
    import procrastinate
    from procrastinate.jobs import Status  # type: ignore[import-not-found, unused-ignore]

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=1))

    @app.task(name="work")  # type: ignore[untyped-decorator, unused-ignore]
    async def work() -> None:
        return None

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        begin = time.perf_counter()
        for _ in range(count):
            await work.defer_async()
            job = await app.job_manager.fetch_job(None, None)
            await app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=False)
        seconds = time.perf_counter() - begin
    return {"per_second": count / seconds}


if __name__ == "__main__":
    measure = cycle if sys.argv[3:] == ["cycle"] else main
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
