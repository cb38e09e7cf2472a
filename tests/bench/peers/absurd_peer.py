"""absurd: tasks whose claim ran out are claimed again, which sweeps and hands out in one statement.

Run as ``python absurd_peer.py URL COUNT``; prints JSON. Claims 100 at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 100


def main(url: str, count: int) -> dict[str, Any]:
    """Make *count* tasks whose worker is gone, claim them again, and return the rate."""
    import psycopg
    from absurd_sdk import Absurd  # type: ignore[import-not-found, unused-ignore]

    control = Path(sys.executable).with_name("absurdctl")
    subprocess.run([control, "init", "--database", url], check=True, capture_output=True)
    client = Absurd(url, queue_name="bench", default_max_attempts=5)
    client.create_queue()
    # The client refuses tasks that it does not know.
    client.register_task("work")(lambda params, context: None)
    for _ in range(count):
        client.spawn("work", {"text": "x" * 1000}, retry_strategy={"kind": "none"})
    claimed = 0
    while batch := client.claim_tasks(batch_size=BATCH, claim_timeout=1, worker_id="gone"):
        claimed += len(batch)
        if claimed >= count:
            break
    time.sleep(1.5)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("ANALYZE")
        conn.execute("CHECKPOINT")
    begin = time.perf_counter()
    again = calls = 0
    # A call may sweep and hand nothing out.
    while again < count and calls < 10 * count:
        calls += 1
        again += len(client.claim_tasks(batch_size=BATCH, claim_timeout=600, worker_id="other"))
    seconds = time.perf_counter() - begin
    client.close()
    if again < count:
        raise SystemExit(f"{again} of {count} were claimed again")
    return {"per_second": again / seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
