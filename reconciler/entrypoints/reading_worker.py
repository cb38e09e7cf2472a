"""The process that reads files ahead of an import: ``python -m reconciler.entrypoints.reading_worker FOLDER``.

Requests come as lines of JSON on standard input; what was read is left in the folder, and told by its number on
standard output: ``1 read``, or ``1 refused`` for what the import has to look at itself. What the import has begun to
read itself is passed over. Ends with its input, and takes the folder along: who imports may have been killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from reconciler.entrypoints.process import prepare_process
from reconciler.importers.files import opened
from reconciler.service.file_reading import ReadRequest, read_requested
from reconciler.service.read_ahead import is_first, leave, spool_path
from reconciler.service.spool import Spool


def main() -> int:
    """Read until there is nothing more to be read, or nobody who wants it."""
    # A person's Ctrl-C goes to the whole group: who imports ends this one with its pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_process()
    folder = Path(sys.argv[1])
    with suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            number = asked["number"]
            if is_first(folder, number):
                how = _read(folder, number, os.fsdecode(bytes.fromhex(asked["name"])), ReadRequest(**asked["request"]))
                os.write(1, f"{number} {how}\n".encode())
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _read(folder: Path, number: int, name: str, request: ReadRequest) -> str:
    try:
        with opened(name) as file, Spool(spool_path(folder, number)) as spool:
            leave(folder, number, read_requested(file, request, spool), spool)
    except Exception:  # noqa: BLE001  (who imports reads it too, and says what is wrong)
        return "refused"
    return "read"


if __name__ == "__main__":
    sys.exit(main())
