"""The producer, a process that nobody kills: submits at a rate, and keeps a ledger of what was acknowledged.

``python -m tests.chaos.producer SETUP``: SETUP is a JSON file. The rate is read from a control file, ten times a
second; "stop" there ends it. A submission whose answer got lost is sent again under the same id until it is answered.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from reconciler.errors import ReconcilerError
from reconciler.service.runner import Runner
from tests.chaos.ledger import Ledger

THREADS = 3


class _Pace:
    """Hands out what is due by the rate. What was missed while nobody could send is not made up for."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._guard = threading.Lock()
        self._number = 0
        self._next_at = time.monotonic()
        self._read_at = 0.0
        self._rate = 0.0
        self.stopped = False

    def wait(self) -> int | None:
        """Wait for the next submission's time and return its number; None at the end."""
        while True:
            with self._guard:
                now = time.monotonic()
                if now >= self._read_at:
                    text = self._control.read_text().strip()
                    self.stopped = text == "stop"
                    self._rate = 0.0 if self.stopped else float(text or 0)
                    self._read_at = now + 0.1
                if self.stopped:
                    return None
                if self._rate > 0:
                    self._next_at = max(self._next_at, now - 0.5)
                    if now >= self._next_at:
                        self._next_at += 1.0 / self._rate
                        self._number += 1
                        return self._number
            time.sleep(0.002)


def main() -> int:
    """Produce until told to stop."""
    setup = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(setup["folder"])
    pace = _Pace(Path(setup["control"]))
    offered = Ledger(folder / "offered.jsonl")
    acknowledged = Ledger(folder / "acknowledged.jsonl", durable=True)
    sessions = int(setup["sessions"])
    ack_first = setup.get("mutant") == "ack_before_admission"
    with Runner(setup["url"], notify=True, reconnect_s=120, lease_s=setup["lease_s"], beat_s=setup["beat_s"]) as runner:

        def produce() -> None:
            while (number := pace.wait()) is not None:
                session_id, submission_id = f"s{number % sessions:03d}", f"q{number:06d}"
                offered.write(at=time.time(), submission=submission_id)
                if ack_first:
                    acknowledged.write(at=time.time(), session=session_id, submission=submission_id)
                    if number % 50 == 0:
                        continue
                while True:
                    try:
                        runner.submit(session_id, submission_id, {"text": f"work {number}", "pad": "x" * 200})
                    except ReconcilerError:
                        # Away, locked, or its disk is full: the same again.
                        time.sleep(0.05)
                    else:
                        break
                if not ack_first:
                    acknowledged.write(at=time.time(), session=session_id, submission=submission_id)

        threads = [threading.Thread(target=produce) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
