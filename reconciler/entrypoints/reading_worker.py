"""The process that reads files ahead of an import: ``python -m reconciler.entrypoints.reading_worker FOLDER``.

Wishes come as lines of JSON on standard input; what was read is left in the folder, and told by its number on standard
output: ``1 read``, or ``1 refused`` for what the import has to look at itself. What the import has begun to read itself
is passed over. Ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from reconciler.entrypoints.process import prepare_process
from reconciler.importers.files import opened
from reconciler.service.file_reading import Wish, read_wished
from reconciler.service.read_ahead import claims, leave, spool_path
from reconciler.service.spool import Spool


def main() -> int:
    """Read until there is nothing more to be read."""
    # A person's Ctrl-C goes to the whole group: who imports ends this one with its pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_process()
    folder = Path(sys.argv[1])
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        number, name = asked["number"], os.fsdecode(bytes.fromhex(asked["name"]))
        if not claims(folder, number):
            continue
        told = "read"
        try:
            with opened(name) as file, Spool(spool_path(folder, number)) as spool:
                leave(folder, number, read_wished(file, Wish(**asked["wish"]), spool), spool)
        except Exception:  # noqa: BLE001  (who imports reads it too, and says what is wrong)
            told = "refused"
        try:
            os.write(1, f"{number} {told}\n".encode())
        except OSError:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
