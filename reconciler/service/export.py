"""A session out of the store and back into a file: read, put into the format's lines, read again to prove it.

What was made is read by the importer of its format before anybody gets it: the active position must be the one that
is stored, and a repaired file must have no open call. What differs is told, not hidden.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import Engine

from reconciler.core.pairing import open_refs, pair_tree
from reconciler.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from reconciler.exporters import claude_code, native, pi
from reconciler.exporters.base import (
    FORMAT_CLAUDE,
    FORMAT_JSONL,
    FORMAT_PI,
    Exported,
    StoredEntry,
    StoredSession,
    StoredSubmission,
    active_path,
    digest_of,
)
from reconciler.importers.base import Importer, Source
from reconciler.importers.claude_code import ClaudeCodeImporter
from reconciler.importers.pi import PiImporter
from reconciler.store import export as store
from reconciler.store.engine import read

# A file is held whole while it is made and proven.
EXPORT_BYTES_MAX: Final = 512 * 1024 * 1024
# As they are named on a command line.
FORMATS: Final = {"pi": FORMAT_PI, "claude": FORMAT_CLAUDE, "jsonl": FORMAT_JSONL}
_ENDING: Final = ".jsonl"
_NAME_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class AddedLine:
    """A line that the repair added: where it stands (from 1), and which call it closes."""

    line: int
    entry_id: str
    tool_call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ExportReport:
    """A session as a file's text. ``problems`` are what reading it again has shown."""

    session_id: str
    format: str
    text: str
    line_count: int
    added: tuple[AddedLine, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = field(default=())


def export_session(
    engine: Engine, session_id: str, *, format_name: str | None = None, repaired: bool = False, cwd: str | None = None
) -> ExportReport:
    """Return a session in the format *format_name* (of `FORMATS`; None: its source's, or jsonl).

    Raises:
        NotFound: there is no such session.
        InvalidInput: there is no such format.
        LimitExceeded: the session is larger than `EXPORT_BYTES_MAX`.
    """
    session = _read(engine, session_id)
    chosen = _format(session, format_name)
    match chosen:
        case "pi":
            exported = pi.export(session, repaired=repaired, cwd=cwd)
        case "claude":
            exported = claude_code.export(session, repaired=repaired, cwd=cwd)
        case _:
            exported = native.export(session, repaired=repaired)
    text = "".join(f"{line.text}\n" for line in exported.lines)
    return ExportReport(
        session_id=session_id,
        format=chosen,
        text=text,
        line_count=len(exported.lines),
        added=tuple(
            AddedLine(number, line.entry_id or "", line.tool_call_id or "", line.text)
            for number, line in enumerate(exported.lines, 1)
            if line.added
        ),
        left_out=tuple(exported.left_out),
        problems=tuple(_problems(session, exported, chosen, text, repaired=repaired)),
    )


def _read(engine: Engine, session_id: str) -> StoredSession:
    found: list[StoredEntry] = []
    size = 0
    # One state of the database: a runner may be writing.
    with read(engine) as conn:
        head = store.session_head(conn, session_id)
        if head is None:
            raise NotFound(f'there is no session "{session_id}"')
        for one in store.entries_of(conn, session_id):
            text = "null" if one.payload is None else one.payload
            size += len(text)
            if size > EXPORT_BYTES_MAX:
                raise _too_large(session_id)
            found.append(StoredEntry(one.entry, json.loads(text), text, one.at, one.write_ahead))
        submissions = []
        for row in store.submissions_of(conn, session_id):
            size += len(row.input_text or "")
            if size > EXPORT_BYTES_MAX:
                raise _too_large(session_id)
            submissions.append(StoredSubmission(row.submission_id, row.kind, row.status, row.outcome, row.input_text))
    return StoredSession(
        session_id, head.origin, head.leaf_entry_id, found, head.source_format, head.leaf_known_empty, submissions
    )


def _too_large(session_id: str) -> LimitExceeded:
    return LimitExceeded(
        f'cannot export session "{session_id}": it is larger than {EXPORT_BYTES_MAX} bytes',
        hint="copy its rows with the database's own tools",
    )


def _format(session: StoredSession, name: str | None) -> str:
    if name is None:
        return next((short for short, whole in FORMATS.items() if whole == session.source_format), "jsonl")
    if name not in FORMATS:
        raise InvalidInput(f'there is no format "{name}" to export to', hint=f"one of: {', '.join(FORMATS)}")
    return name


# --- proving it ------------------------------------------------------------------------------------------------------

_IMPORTERS: Final[dict[str, type[Any]]] = {"pi": PiImporter, "claude": ClaudeCodeImporter}


def _problems(session: StoredSession, exported: Exported, chosen: str, text: str, *, repaired: bool) -> list[str]:
    if session.entries and session.leaf_entry_id is not None and not active_path(session):
        return [f'its active position "{session.leaf_entry_id}" is not among its entries: the path is torn']
    if chosen not in _IMPORTERS or not session.entries:
        return []
    importer: Importer = _IMPORTERS[chosen]()
    result = importer.read(Source(io.BytesIO(text.encode("utf-8", "surrogatepass")), stem=session.session_id))
    if len(result.sessions) != 1:
        return [f"read again, the file holds {len(result.sessions)} sessions"]
    again = result.sessions[0]
    found = []
    if exported.leaf_id is not None and again.leaf_entry_id != exported.leaf_id:
        found.append(
            f'read again, the active position is "{again.leaf_entry_id}", and should be "{exported.leaf_id}":'
            " the program would go on from there"
        )
    if repaired:
        entries = [StoredEntry(one.entry, None, "", _NEVER) for one in again.entries]
        copy = StoredSession(again.session_id, "mirrored", again.leaf_entry_id, entries)
        path = active_path(copy)
        on_path = {entry.id for entry in path}
        pairing = pair_tree(path, (one.entry for one in entries if one.entry.id not in on_path))
        if left := len(open_refs(pairing)):
            found.append(f"read again, {left} calls are still open")
    return found


_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)

# --- writing it ------------------------------------------------------------------------------------------------------

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def file_name(session_id: str) -> str:
    """Return a file name for a session: its id where that is one, else what is left of it and a digest.

    Nothing of an id can lead into another folder, or hide the file.
    """
    safe = _UNSAFE.sub("_", session_id).strip("._-")[:_NAME_MAX]
    if safe != session_id:
        safe = f"{safe or 'session'}-{digest_of(session_id)[:12]}"
    return safe + _ENDING


def target_of(output: str, session_id: str) -> Path:
    """Return the file that *output* means: itself, or a file of the session's name in the folder that it names."""
    path = Path(output).expanduser()
    try:
        return path / file_name(session_id) if path.is_dir() else path
    except (OSError, ValueError) as error:
        raise InvalidInput(f'cannot use "{output}" as a file: {error}', hint="name another one") from error


def write_file(target: Path, text: str, *, force: bool) -> bool:
    """Write *text* to *target*, for its owner alone, whole or not at all; False where it holds just that already.

    Raises:
        Conflict: something else is there, and *force* is not given.
        InvalidInput: it cannot be written.
    """
    data = text.encode("utf-8", "surrogatepass")
    try:
        if target.is_file() and not target.is_symlink() and target.read_bytes() == data:
            return False
        if not force and os.path.lexists(target):
            raise Conflict(f'cannot write "{target}": it is there already', hint="name another file, or say --force")
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            _put(beside, target, force=force)
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f'cannot write "{target}": {reason}', hint="name a file in a folder that is yours"
        ) from error
    return True


def _put(beside: Path, target: Path, *, force: bool) -> None:
    if force:
        beside.replace(target)
        return
    try:
        # Fails where something has come to be there: nothing is overwritten, whoever was faster.
        target.hardlink_to(beside)
    except FileExistsError:
        raise Conflict(f'cannot write "{target}": it is there already', hint="say --force") from None
