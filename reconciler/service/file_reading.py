"""One session file read for an import: in the importing process, or ahead of it in another one.

What is known of the file before it is read is a `Wish`; `read_wished` fulfils it the same way wherever it runs.
Knows nothing of processes (``read_ahead``) and writes nothing to the store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import BinaryIO, Final

from reconciler.importers.base import ImportResult, NullSink, PayloadSink
from reconciler.importers.detect import Detection
from reconciler.importers.files import SessionFile
from reconciler.service.inspect_files import ProgressCallback, read_file
from reconciler.service.spool import Spool

_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Wish:
    """How a file is to be read.

    ``prefix_bytes`` and ``digest`` are how far and to what it was read when it was imported last; None where it wasn't,
    or where that import was not finished (then nothing is known to be the same).
    """

    format: str
    reason: str
    prefix_bytes: int | None
    digest: str | None
    is_owned: bool
    all_prompts: bool


@dataclass(frozen=True, slots=True)
class FileRead:
    """What a file held. ``is_same``: its bytes are those that were imported last."""

    result: ImportResult
    detection: Detection
    is_same: bool


def read_wished(file: SessionFile, wish: Wish, spool: Spool, progress: ProgressCallback | None = None) -> FileRead:
    """Read an opened file; its payloads go to *spool* where the import will ask for them.

    Raises:
        UnknownFormat: the wish names no format.
    """
    is_same = wish.digest is not None and wish.digest == stream_digest(file.stream)
    # An unchanged file is read for its verdicts alone; where a row may be wanted, its payload is too.
    for_verdicts = is_same and (wish.is_owned or not wish.all_prompts)
    sink: PayloadSink = NullSink() if for_verdicts else spool
    result, detection = read_file(
        file,
        format=wish.format,
        sink=sink,
        progress=progress,
        prefix_bytes=wish.prefix_bytes,
        reason=wish.reason,
    )
    return FileRead(result, detection, is_same)


def stream_digest(stream: BinaryIO) -> str:
    """Return the SHA-256 of a whole stream, in hex, and go back to its beginning."""
    digest = hashlib.sha256()
    stream.seek(0)
    while data := stream.read(_READ_BYTES):
        digest.update(data)
    stream.seek(0)
    return digest.hexdigest()
