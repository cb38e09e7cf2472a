"""Start a program from a small process and say what it took: a child's memory begins with its parent's."""

from __future__ import annotations

import json
import os
import sys
import time

began = time.perf_counter()
pid = os.posix_spawn(
    sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
)
_, status, used = os.wait4(pid, 0)
seconds = time.perf_counter() - began
print(
    json.dumps(
        {
            "exit": os.waitstatus_to_exitcode(status),
            "seconds": seconds,
            "cpu": used.ru_utime + used.ru_stime,
            "mb": used.ru_maxrss / 1024,
        }
    )
)
