"""`inspect`: the state of every prompt in session files, without any database.

Reads files through the importers and asks the classifier. Writes nothing. The payload is the contract's JSON of
``inspect``; further keys are additive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from reconciler.core.classifier import inspect_session
from reconciler.core.model import Inspection
from reconciler.core.terms import is_canonical_input
from reconciler.errors import ReconcilerError, SourceUnreadable, UnknownFormat
from reconciler.importers.base import (
    ImportedEntry,
    ImportedSession,
    ImportedSubmission,
    ImportResult,
    NullSink,
    PayloadSink,
    Source,
)
from reconciler.importers.detect import AUTO, Detection, check_format, detect, importer_for
from reconciler.importers.files import SessionFile, opened, session_files
from reconciler.service.foreign import ForeignDatabase, is_database, opened_database


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a long work on a file is: bytes ``reading``, prompts ``inspecting``, entries ``storing``."""

    file: str
    done: int
    total: int
    phase: str = "reading"

    @property
    def unit(self) -> str:
        """Return what is counted."""
        return {"reading": "bytes", "inspecting": "prompts"}.get(self.phase, "entries")


ProgressCallback = Callable[[FileProgress], None]


def inspect_paths(
    paths: Iterable[str],
    *,
    format: str = AUTO,  # noqa: A002  (the option's name)
    all_prompts: bool = False,
    progress: ProgressCallback | None = None,
    stdin: BinaryIO | None = None,
) -> dict[str, Any]:
    """Return the payload of ``inspect`` for files, folders and ``-``.

    A file that can't be read stands in the payload with its error as a problem, and the others are read; where it is
    the only one, the error is raised.

    Raises:
        ReconcilerError: the only file can't be read, or its format isn't known.
    """
    check_format(format)
    named = list(paths)
    refused: list[str] = []
    names = session_files(named, refused)
    files: list[dict[str, Any]] = []
    for name in names:
        try:
            if is_database(name, format):
                files.extend(_inspect_database(name, format, all_prompts=all_prompts, progress=progress))
                continue
            with opened(name, stdin) as file:
                result, detection = read_file(file, format=format, progress=progress)
        except ReconcilerError as error:
            if is_bystander(name, named, error):
                continue
            if len(names) == 1 and not refused:
                raise
            files.append(unreadable_payload(name, error))
            continue
        files.extend(file_payloads(name, result, detection, all_prompts=all_prompts, progress=progress))
    files.extend(unreadable_payload(name, leads_out(name)) for name in refused)
    return {"files": files}


def _inspect_database(
    name: str,
    format_name: str,
    *,
    all_prompts: bool,
    progress: ProgressCallback | None,
) -> Iterator[dict[str, Any]]:
    """Yield the payloads of the sessions of a database; one that can't be read keeps no other one back."""
    with opened_database(name, format_name) as database:
        sessions = database.sessions()
        for session in sessions:
            try:
                result = session.read(NullSink())
            except ReconcilerError as error:
                if len(sessions) == 1:
                    raise
                yield unreadable_payload(session.name, error)
                continue
            yield from file_payloads(
                database.name, result, session.detection, all_prompts=all_prompts, progress=progress
            )
        if not sessions:
            yield empty_payload(database)


def is_bystander(name: str, named: Sequence[str], error: ReconcilerError) -> bool:
    """Return whether a file only stands in a folder that was named: a database that holds no sessions."""
    return isinstance(error, UnknownFormat) and name not in named and is_database(name)


def empty_payload(database: ForeignDatabase) -> dict[str, Any]:
    """Return the payload of a database without sessions."""
    _, detection = database.readers[0]
    return {
        "file": database.name,
        "format": detection.format,
        "format_version": None,
        "format_reason": detection.reason,
        "session_id": None,
        "entry_count": 0,
        "problems": [{"line": None, "code": "no_session", "message": "the database holds no session"}],
        "problem_count": 1,
        "unknown": {},
        "skipped": {},
        "submissions": [],
    }


def leads_out(name: str) -> SourceUnreadable:
    """Return the error for a link that leads out of the folder it stands in."""
    return SourceUnreadable(
        f'cannot read "{name}": it is a link out of its folder', hint="name the file itself, if it is meant"
    )


def read_file(
    file: SessionFile,
    *,
    format: str = AUTO,  # noqa: A002
    sink: PayloadSink | None = None,
    progress: ProgressCallback | None = None,
    prefix_bytes: int | None = None,
    reason: str = "named by the caller",
) -> tuple[ImportResult, Detection]:
    """Read an opened file with the importer of its format, and say how the format was decided.

    Raises:
        UnknownFormat: *format* names none, or is ``auto`` and the file is in none.
    """
    detection = detect(file.stream, file.name) if format == AUTO else Detection(format, reason)
    importer = importer_for(detection.format)
    file.stream.seek(0)

    def report(done: int) -> None:
        if progress is not None:
            progress(FileProgress(file.name, done, file.size))

    source = Source(
        file.stream,
        file.stem,
        sink if sink is not None else NullSink(),
        report if progress is not None else None,
        prefix_bytes=prefix_bytes,
    )
    return importer.read(source), detection


def file_payloads(
    name: str,
    result: ImportResult,
    detection: Detection,
    *,
    all_prompts: bool = False,
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the payload of a file, one for each session in it, and one where there is none."""
    problems = [problem.payload() for problem in result.problems]
    common = {
        "file": name,
        "format": result.format,
        "format_version": result.format_version,
        "format_reason": detection.reason,
    }
    counts = {"problem_count": result.problem_count, "unknown": dict(result.unknown), "skipped": dict(result.skipped)}
    for session in result.sessions:
        yield {
            **common,
            "session_id": session.session_id,
            "entry_count": len(session.entries),
            "problems": problems,
            **counts,
            **({} if session.waits_for is None else {"waits_for": session.waits_for}),
            "submissions": list(_verdicts(name, session, all_prompts=all_prompts, progress=progress)),
        }
    if not result.sessions:
        problems.append({"line": None, "code": "no_session", "message": "the file holds no session"})
        yield {**common, "session_id": None, "entry_count": 0, "problems": problems, **counts, "submissions": []}


def unreadable_payload(name: str, error: ReconcilerError) -> dict[str, Any]:
    """Return the payload of a file that could not be read."""
    problem = {"line": None, "code": error.code, "message": error.message, "hint": error.hint}
    return {
        "file": name,
        "format": None,
        "session_id": None,
        "entry_count": 0,
        "problems": [problem],
        "submissions": [],
    }


def _verdicts(
    name: str, session: ImportedSession, *, all_prompts: bool, progress: ProgressCallback | None
) -> Iterator[dict[str, Any]]:
    """Yield the verdict on each prompt of a session, or on the pending ones only."""
    by_id = {imported.entry.id: imported for imported in session.entries}
    entries = [imported.entry for imported in session.entries]
    wanted = [submission for submission in session.submissions if all_prompts or submission.is_pending]
    for number, submission in enumerate(wanted, 1):
        found = inspect_session(
            entries,
            session.leaf_entry_id,
            submission.submission_id,
            write_ahead=_is_write_ahead(by_id, session.leaf_entry_id, submission.submission_id),
            leaf_known_empty=session.leaf_known_empty,
        )
        yield _payload(session, submission, found)
        if progress is not None:
            progress(FileProgress(name, number, len(wanted), "inspecting"))


def _is_write_ahead(by_id: Mapping[str, ImportedEntry], leaf: str | None, submission_id: str) -> bool:
    """Return R12: whether all entries of the active path from the input on are known to be write-ahead."""
    seen: set[str] = set()
    at = by_id.get(leaf) if leaf is not None else None
    while at is not None and at.write_ahead is True and at.entry.id not in seen:
        seen.add(at.entry.id)
        if is_canonical_input(at.entry, submission_id):
            return True
        at = by_id.get(at.entry.parent_id) if at.entry.parent_id is not None else None
    return False


def _payload(session: ImportedSession, submission: ImportedSubmission, found: Inspection) -> dict[str, Any]:
    return {
        "submission_id": submission.submission_id,
        "session_id": session.session_id,
        "state": found.state.value,
        "detail": found.detail.value,
        "unresolved_tool_calls": list(found.unresolved_tool_calls),
        "interior_open_calls": list(found.interior_open_calls),
        "input_entry_id": found.input_entry_id,
        "deciding_entry_id": found.deciding_entry_id,
        "leaf_entry_id": session.leaf_entry_id,
        "stopped_by": found.stopped_by,
        "unlogged_calls_possible": found.unlogged_calls_possible,
        "integrity": found.integrity,
    }
