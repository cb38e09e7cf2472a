"""`import`: session files into the store, whole or not at all as far as anybody can see.

Reads a file through its importer (payloads go to a temporary file, not to memory), compares what came out with what is
stored, and writes the difference in short transactions; see ``store.ingest`` for what each promises. A file that says
nothing new writes nothing. A crash at any point is mended by importing again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, BinaryIO, Final

from sqlalchemy.engine import Engine

from reconciler.errors import ReconcilerError, SourceNotQuiet, SourceOwned, StoreFault
from reconciler.importers.base import NullSink, PayloadSink
from reconciler.importers.detect import AUTO, Detection, detect, importer_for
from reconciler.importers.files import STDIN, SessionFile, opened, session_files
from reconciler.service.inspect_files import (
    ProgressCallback,
    file_payloads,
    read_file,
    unreadable_payload,
)
from reconciler.service.session_import import Imported, IngestOptions, SessionImport
from reconciler.service.spool import Spool
from reconciler.store import ingest_reads as stored
from reconciler.store.engine import read

# Bounds of one transaction: well below a second on a slow disk. A single larger payload goes by itself.
__all__ = ["DEFAULT_OPTIONS", "Imported", "IngestOptions", "import_paths"]

DEFAULT_OPTIONS: Final = IngestOptions()

_READ_BYTES: Final = 1024 * 1024


def import_paths(
    engine: Engine,
    paths: Iterable[str],
    options: IngestOptions = DEFAULT_OPTIONS,
    *,
    progress: ProgressCallback | None = None,
    stdin: BinaryIO | None = None,
) -> dict[str, Any]:
    """Import files, folders and ``-``, and return the payload of ``import``.

    A file that can't be imported stands in the payload with its error as a problem, and the others are imported; where
    it is the only one, the error is raised.

    Raises:
        ReconcilerError: the only file can't be imported: unreadable, of no known format, native here, contradicting the
            store (SourceConflict), not quiet (``own`` without ``force``). Or the database failed.
    """
    if options.format != AUTO:
        importer_for(options.format)
    names = session_files(paths)
    total = Imported()
    files: list[dict[str, Any]] = []
    failed = 0
    for name in names:
        try:
            with opened(name, stdin) as file:
                listed = _import_file(engine, file, options, progress, total)
        except ReconcilerError as error:
            if len(names) == 1 or isinstance(error, StoreFault):
                raise
            failed += 1
            files.append(unreadable_payload(name, error))
            continue
        files.extend(listed)
    return {"files": files, "imported": total.payload(), "failed": failed, "dry_run": options.dry_run}


def _import_file(
    engine: Engine, file: SessionFile, options: IngestOptions, progress: ProgressCallback | None, total: Imported
) -> list[dict[str, Any]]:
    detection = detect(file.stream, file.name) if options.format == AUTO else Detection(options.format, "as named")
    locator = file.locator
    if locator == STDIN:
        # A pipe has no name: its content is its place.
        locator = f"-:{_digest(file.stream)}"
    with read(engine) as conn:
        source = stored.source_row(conn, locator, detection.format)
    if source is not None and source.owned_at is not None:
        raise SourceOwned(
            f'cannot import "{file.name}": its session is native here since {source.owned_at:%Y-%m-%d %H:%M} UTC',
            hint="its runners write the session now; the file is no longer its record",
        )
    if options.own and not options.force and file.age_s() < options.quiet_s:
        raise SourceNotQuiet(
            f'cannot own "{file.name}": it was written to {file.age_s():.0f} s ago, less than {options.quiet_s:.0f} s'
        )
    same = source is not None and not source.is_importing and source.content_digest == _digest(file.stream)
    with Spool() as spool:
        # An unchanged file is read for its verdicts alone; where a row may be wanted, its payload is too.
        sink: PayloadSink = NullSink() if same and not options.all_prompts else spool
        result, detection = read_file(
            file,
            format=detection.format,
            sink=sink,
            progress=progress,
            prefix_bytes=source.bytes_read if source is not None else None,
            reason=detection.reason,
        )
        done: list[Imported] = []
        for session in result.sessions:
            work = SessionImport(engine, file, locator, source, result, session, spool, options, progress)
            imported = Imported(unchanged="same") if sink is not spool else work.run()
            if options.own:
                work.own(imported)
            total.add(imported)
            done.append(imported)
    listed = list(file_payloads(file.name, result, detection, all_prompts=options.all_prompts, progress=progress))
    for payload, imported in zip(listed, done, strict=False):
        payload["imported"] = {**imported.payload(), "unchanged": imported.unchanged}
    return listed


def _digest(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    stream.seek(0)
    while data := stream.read(_READ_BYTES):
        digest.update(data)
    stream.seek(0)
    return digest.hexdigest()
