"""`inspect`: the state of every prompt in session files, without any database.

Reads files through the importers and asks the classifier. Writes nothing. The payload is the contract's JSON of
``inspect``; further keys are additive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from reconciler.core.classifier import inspect_session
from reconciler.core.model import KIND_MESSAGE, ROLE_SIGNAL, ROLE_USER, Inspection, SessionEntry
from reconciler.errors import ReconcilerError
from reconciler.importers.base import ImportedSession, ImportedSubmission, ImportResult, NullSink, PayloadSink, Source
from reconciler.importers.detect import AUTO, Detection, detect, importer_for
from reconciler.importers.files import SessionFile, opened, session_files


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a long work on a file is: bytes while it is ``reading``, entries while it is ``storing``."""

    file: str
    done: int
    total: int
    phase: str = "reading"


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
    if format != AUTO:
        importer_for(format)
    names = session_files(paths)
    files: list[dict[str, Any]] = []
    for name in names:
        try:
            with opened(name, stdin) as file:
                result, detection = read_file(file, format=format, progress=progress)
        except ReconcilerError as error:
            if len(names) == 1:
                raise
            files.append(unreadable_payload(name, error))
            continue
        files.extend(file_payloads(name, result, detection, all_prompts=all_prompts))
    return {"files": files}


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
    name: str, result: ImportResult, detection: Detection, *, all_prompts: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the payload of a file, one for each session in it, and one where there is none."""
    problems = [{"line": problem.line, "code": problem.code, "message": problem.message} for problem in result.problems]
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
            "submissions": submission_payloads(session, all_prompts=all_prompts),
        }
    if not result.sessions:
        problems.append({"line": None, "code": "no_session", "message": "the file holds no session"})
        yield {**common, "session_id": None, "entry_count": 0, "problems": problems, **counts, "submissions": []}


def unreadable_payload(name: str, error: ReconcilerError) -> dict[str, Any]:
    """Return the payload of a file that could not be read."""
    problem = {"line": None, "code": error.code, "message": error.message}
    return {
        "file": name,
        "format": None,
        "session_id": None,
        "entry_count": 0,
        "problems": [problem],
        "submissions": [],
    }


def submission_payloads(session: ImportedSession, *, all_prompts: bool) -> list[dict[str, Any]]:
    """Return the verdict on each prompt of a session, or on the pending ones only."""
    entries = [imported.entry for imported in session.entries]
    by_id = {imported.entry.id: imported for imported in reversed(session.entries)}
    write_ahead = {entry_id: imported.write_ahead for entry_id, imported in by_id.items()}
    return [
        _payload(session, submission, _inspect(session, entries, submission, write_ahead))
        for submission in session.submissions
        if all_prompts or submission.is_pending
    ]


def _inspect(
    session: ImportedSession,
    entries: list[SessionEntry],
    submission: ImportedSubmission,
    write_ahead: Mapping[str, bool | None],
) -> Inspection:
    return inspect_session(
        entries,
        session.leaf_entry_id,
        submission.submission_id,
        write_ahead=turn_write_ahead(entries, session.leaf_entry_id, submission.submission_id, write_ahead),
        leaf_known_empty=session.leaf_known_empty,
    )


def turn_write_ahead(
    entries: Iterable[SessionEntry], leaf: str | None, submission_id: str, write_ahead: Mapping[str, bool | None]
) -> bool:
    """Return R12: whether all entries of the active path from the input on are known to be write-ahead."""
    by_id = {entry.id: entry for entry in entries}
    seen: set[str] = set()
    at = by_id.get(leaf) if leaf is not None else None
    while at is not None and at.id not in seen:
        seen.add(at.id)
        if write_ahead.get(at.id) is not True:
            return False
        is_input = at.kind == KIND_MESSAGE and at.role in (ROLE_USER, ROLE_SIGNAL)
        if is_input and at.submission_id == submission_id and not at.is_synthetic and not at.is_sidechain:
            return True
        at = by_id.get(at.parent_id) if at.parent_id is not None else None
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
