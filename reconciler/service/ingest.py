"""`import`: session files into the store, whole or not at all as far as anybody can see.

Reads a file through its importer (payloads go to a temporary file, not to memory), compares what came out with what is
stored, and writes the difference in short transactions; see ``store.ingest`` for what each promises. A file that says
nothing new writes nothing. A crash at any point is mended by importing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, Final

from sqlalchemy.engine import Engine

from reconciler.core.checks import shown
from reconciler.errors import (
    ReconcilerError,
    SourceConflict,
    SourceNotQuiet,
    SourceOwned,
    SourceUnreadable,
    StoreFault,
)
from reconciler.importers.detect import AUTO, Detection, check_format, detect
from reconciler.importers.files import STDIN, SessionFile, opened, regular_size, session_files
from reconciler.service.file_reading import ReadRequest, read_requested, stream_digest
from reconciler.service.first_write import FirstWrite
from reconciler.service.foreign import ForeignSession, is_database, opened_database
from reconciler.service.inspect_files import (
    ProgressCallback,
    empty_payload,
    file_payloads,
    is_bystander,
    leads_out,
    unreadable_payload,
)
from reconciler.service.read_ahead import FILE_BYTES_MIN, ReadAhead, jobs_for
from reconciler.service.session_import import (
    OWNED_HINT,
    Imported,
    IngestOptions,
    Owning,
    Place,
    SessionImport,
    Shared,
    own_session,
)
from reconciler.service.spool import Spool
from reconciler.store import ingest_reads as stored
from reconciler.store.engine import read

# Bounds of one transaction: well below a second on a slow disk. A single larger payload goes by itself.
__all__ = ["DEFAULT_OPTIONS", "Imported", "IngestOptions", "import_paths"]

DEFAULT_OPTIONS: Final = IngestOptions()


def import_paths(
    engine: Engine,
    paths: Iterable[str],
    options: IngestOptions = DEFAULT_OPTIONS,
    *,
    progress: ProgressCallback | None = None,
    stdin: BinaryIO | None = None,
    first: FirstWrite | None = None,
) -> dict[str, Any]:
    """Import files, folders and ``-``, and return the payload of ``import``. *first* hears of what is written first.

    A file that can't be imported stands in the payload with its error as a problem, and the others are imported; where
    it is the only one, the error is raised.

    Raises:
        ReconcilerError: the only file can't be imported: unreadable, of no known format, native here, contradicting the
            store (SourceConflict), not quiet (``own`` without ``force``). Or the database failed.
    """
    check_format(options.format)
    named = list(paths)
    refused: list[str] = []
    names = session_files(named, refused)
    total = Imported()
    files: list[dict[str, Any]] = []
    failed = len(refused)
    # A session may stand in several files, the whole one last: it is made native once all of them are in.
    owning: list[Owning] = []
    shared = Shared(first=first or FirstWrite())
    contradicted: set[str] = set()
    with _ahead(engine, names, options) as ahead:
        for name in names:
            try:
                if is_database(name, options.format):
                    listed, failures = _import_database(engine, name, options, progress, total, owning, shared)
                    failed += failures
                else:
                    with opened(name, stdin) as file:
                        listed = _import_file(engine, file, options, progress, total, owning, shared, ahead)
            except ReconcilerError as error:
                ahead.passed(name)
                if is_bystander(name, named, error):
                    continue
                if (len(names) == 1 and not refused) or isinstance(error, StoreFault):
                    raise
                failed += 1
                files.append(unreadable_payload(name, error))
                if isinstance(error, SourceConflict) and isinstance(error.detail, Mapping):
                    contradicted.add(error.detail["session_id"])
                continue
            files.extend(listed)
    for name, reason in _own(engine, owning, contradicted, total, shared.first, dry_run=options.dry_run):
        if len(names) == 1 and not refused and len(owning) == 1:
            raise reason
        failed += 1
        files.append(unreadable_payload(name, reason))
    files.extend(unreadable_payload(name, leads_out(name)) for name in refused)
    return {"files": files, "imported": total.payload(), "failed": failed, "dry_run": options.dry_run}


def _own(
    engine: Engine,
    owning: Sequence[Owning],
    contradicted: set[str],
    total: Imported,
    first: FirstWrite,
    *,
    dry_run: bool,
) -> Iterator[tuple[str, ReconcilerError]]:
    """Make the sessions native; yield the file's name and the reason where one can't be."""
    by_session: dict[str, list[Owning]] = {}
    for one in owning:
        by_session.setdefault(one.session_id, []).append(one)
    for session_id, files in by_session.items():
        try:
            if session_id in contradicted:
                raise SourceConflict(
                    f'cannot own "{files[0].name}": another file of this call holds session "{session_id}" with other'
                    " content",
                    hint="own the file that is the session's record alone",
                )
            own_session(engine, files, first, dry_run=dry_run)
            total.owned.append(session_id)
        except StoreFault:
            raise
        except ReconcilerError as error:
            yield files[0].name, error


def _import_database(
    engine: Engine,
    name: str,
    options: IngestOptions,
    progress: ProgressCallback | None,
    total: Imported,
    owning: list[Owning],
    shared: Shared,
) -> tuple[list[dict[str, Any]], int]:
    """Import the sessions of a database of another program, each by itself; return payloads and how many failed."""
    listed: list[dict[str, Any]] = []
    failed = 0
    with opened_database(name, options.format) as database:
        sessions = database.sessions()
        for session in sessions:
            try:
                listed += _import_session(engine, session, options, progress, total, owning, shared)
            except ReconcilerError as error:
                if len(sessions) == 1 or isinstance(error, StoreFault):
                    raise
                failed += 1
                listed.append(unreadable_payload(session.name, error))
        if not sessions:
            listed.append(empty_payload(database))
    return listed, failed


def _import_session(
    engine: Engine,
    session: ForeignSession,
    options: IngestOptions,
    progress: ProgressCallback | None,
    total: Imported,
    owning: list[Owning],
    shared: Shared,
) -> list[dict[str, Any]]:
    """Import one session of a database: rows may have been rewritten in place, so it is read whole and compared.

    Raises:
        SourceOwned, SourceNotQuiet, SourceConflict: it can't be imported.
    """
    detection = session.detection
    with read(engine) as conn:
        source = stored.source_row(conn, session.locator, detection.format)
    is_owned = source is not None and source.owned_at is not None
    if not is_owned:
        _may_import(session, options)
    with Spool() as spool:
        result = session.read(spool)
        same = source is not None and not source.is_importing and source.content_digest == result.digest
        if is_owned and not same:
            raise _owned_and_changed(session, source)
        why = "owned" if is_owned else "same" if same and not options.all_prompts else None
        done: list[Imported] = []
        for found in result.sessions:
            work = SessionImport(
                engine, session, session.locator, source, result, found, spool, options, progress, shared
            )
            imported = work.run() if why is None else Imported.nothing(why)
            if options.own and imported.unchanged != "owned":
                owning.append(work.claims(imported))
            total.add(imported)
            done.append(imported)
    name = session.database.name
    return list(_with_counts(file_payloads(name, result, detection, all_prompts=options.all_prompts), done))


def _owned_and_changed(place: Place, source: stored.SourceRow | None) -> SourceOwned:
    since = None if source is None else source.owned_at
    return SourceOwned(
        f'cannot import "{place.name}": its session is native here since {since:%Y-%m-%d %H:%M} UTC, and it has changed'
        " since then",
        hint=OWNED_HINT,
    )


def _may_import(place: Place, options: IngestOptions) -> None:
    if options.own and not options.force and place.age_s() < options.quiet_s:
        raise SourceNotQuiet(
            f'cannot own "{place.name}": it was written to {place.age_s():.0f} s ago, less than {options.quiet_s:.0f} s'
        )


def _with_counts(payloads: Iterable[dict[str, Any]], done: list[Imported]) -> Iterator[dict[str, Any]]:
    for payload, imported in zip(payloads, [*done, None], strict=False):
        if imported is not None:
            payload["imported"] = {**imported.payload(), "unchanged": imported.unchanged}
        yield payload


def _ahead(engine: Engine, names: Sequence[str], options: IngestOptions) -> ReadAhead:
    """Begin to read files in other processes, where there is enough to be read."""
    sizes = {name: size for name in names if (size := regular_size(name) or 0) >= FILE_BYTES_MIN}

    def request(name: str) -> ReadRequest | None:
        if is_database(name, options.format):
            return None
        try:
            with opened(name) as file:
                return _read_request(engine, file, options)[0]
        except ReconcilerError:
            # Whoever imports it meets the same.
            return None

    return ReadAhead(list(sizes), request, jobs_for(list(sizes.values()), options.jobs))


def _read_request(
    engine: Engine, file: SessionFile, options: IngestOptions
) -> tuple[ReadRequest, str, stored.SourceRow | None]:
    """Return how a file is to be read, its locator, and what is known of it as a source.

    Raises:
        UnknownFormat: it is in none.
        SourceUnreadable: its path can't be stored.
    """
    detection = detect(file.stream, file.name) if options.format == AUTO else Detection(options.format, "as named")
    locator = file.locator
    if locator == STDIN:
        # A pipe has no name: its content is its place.
        locator = f"-:{stream_digest(file.stream)}"
    if not _is_storable(locator):
        raise SourceUnreadable(
            f"cannot import {shown(file.name)}: its path is no UTF-8, and a source is known by its path",
            hint="give it another name, or import it through a pipe: `reconciler import - < FILE`",
        )
    with read(engine) as conn:
        source = stored.source_row(conn, locator, detection.format)
    digest = source.content_digest if source is not None and not source.is_importing else None
    request = ReadRequest(
        detection.format,
        detection.reason,
        prefix_bytes=source.bytes_read if source is not None else None,
        digest=digest,
        is_owned=source is not None and source.owned_at is not None,
        all_prompts=options.all_prompts,
        state=file.state(),
    )
    return request, locator, source


def _is_storable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _import_file(
    engine: Engine,
    file: SessionFile,
    options: IngestOptions,
    progress: ProgressCallback | None,
    total: Imported,
    owning: list[Owning],
    shared: Shared,
    ahead: ReadAhead,
) -> list[dict[str, Any]]:
    request, locator, source = _read_request(engine, file, options)
    if not request.is_owned:
        _may_import(file, options)
    with ExitStack() as stack:
        taken = ahead.taken(file.name, request)
        spool = stack.enter_context(Spool() if taken is None else taken[1])
        found = read_requested(file, request, spool, progress) if taken is None else taken[0]
        result = found.result
        why = "owned" if request.is_owned else "same" if found.is_same and not options.all_prompts else None
        if request.is_owned and not found.is_same and source is not None and source.content_digest != result.digest:
            # A last line that was cut off is in the file's digest, and no part of what was read.
            raise _owned_and_changed(file, source)
        done: list[Imported] = []
        for session in result.sessions:
            work = SessionImport(engine, file, locator, source, result, session, spool, options, progress, shared)
            imported = work.run() if why is None else Imported.nothing(why)
            if options.own and imported.unchanged != "owned":
                owning.append(work.claims(imported))
            total.add(imported)
            done.append(imported)
    payloads = file_payloads(file.name, result, request.detection, all_prompts=options.all_prompts, progress=progress)
    return list(_with_counts(payloads, done))
