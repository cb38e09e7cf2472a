"""One session file read for an import: in the importing process, or ahead of it in another one.

What is known of the file before it is read is a `ReadRequest`; `read_requested` carries it out the same way wherever it
runs. Knows nothing of processes (``read_ahead``) and writes nothing to the store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import BinaryIO

from reconciler.importers.base import ImportResult, NullSink, PayloadSink
from reconciler.importers.detect import Detection
from reconciler.importers.files import SessionFile
from reconciler.service.inspect_files import ProgressCallback, read_file
from reconciler.service.spool import Spool


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """How a file is to be read, and of which state of it that was said.

    ``prefix_bytes`` and ``digest`` are how far and to what it was read when it was imported last; None where it wasn't.
    The digest is None too where that import was not finished: then nothing is known to be the same. ``state`` is
    `SessionFile.state`: a file that was written to since is asked for anew.
    """

    format: str
    reason: str
    prefix_bytes: int | None
    digest: str | None
    is_owned: bool
    all_prompts: bool
    state: str

    @property
    def detection(self) -> Detection:
        """Return the format, and how it was decided."""
        return Detection(self.format, self.reason)


@dataclass(frozen=True, slots=True)
class FileRead:
    """What a file held. ``is_same``: its bytes are those that were imported last."""

    result: ImportResult
    is_same: bool


def read_requested(
    file: SessionFile, request: ReadRequest, spool: Spool, progress: ProgressCallback | None = None
) -> FileRead:
    """Read an opened file; its payloads go to *spool* where the import will ask for them.

    Raises:
        UnknownFormat: the request names no format.
    """
    is_same = request.digest is not None and request.digest == stream_digest(file.stream)
    # An unchanged file is read for its verdicts alone; where a row may be wanted, its payload is too.
    for_verdicts = is_same and (request.is_owned or not request.all_prompts)
    sink: PayloadSink = NullSink() if for_verdicts else spool
    result, _ = read_file(file, format=request.format, sink=sink, progress=progress, prefix_bytes=request.prefix_bytes)
    return FileRead(result, is_same)


def stream_digest(stream: BinaryIO) -> str:
    """Return the SHA-256 of a whole stream, in hex, and go back to its beginning."""
    stream.seek(0)
    digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto
    stream.seek(0)
    return digest
