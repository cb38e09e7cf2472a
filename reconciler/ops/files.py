"""Session files of other programs: `inspect` without a database, `import` into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reconciler.ops.asking import EXIT_ERROR, EXIT_NEEDS_PERSON, Asked, Reply
from reconciler.service.inspect_files import FileProgress, inspect_paths


def inspect(asked: Asked) -> Reply:
    """Answer `inspect`. Exit code 3 where a record is damaged."""
    payload = inspect_paths(
        asked["files"],
        all_prompts=asked["all_prompts"],
        progress=_progress(asked),
        **({} if asked["format"] is None else {"format": asked["format"]}),
    )
    return Reply(payload, exit_code(payload))


def import_files(asked: Asked) -> Reply:
    """Carry out `import`. Exit code 3 where a record is damaged, 1 where a file could not be imported."""
    from reconciler.service.ingest import IngestOptions, import_paths

    options = IngestOptions(
        all_prompts=asked["all_prompts"],
        own=asked["own"],
        force=asked["force"],
        dry_run=asked.dry_run,
        quiet_s=asked.desk.limits.quiet_s,
        **({} if asked["format"] is None else {"format": asked["format"]}),
    )
    payload = import_paths(asked.desk.engine, asked["files"], options, progress=_progress(asked))
    imported = payload["imported"]
    changed = bool(imported["entries"] or imported["submissions"] or imported["entries_removed"] or imported["owned"])
    sessions = {file["session_id"] for file in payload["files"]}
    return Reply(
        payload,
        EXIT_ERROR if payload["failed"] else exit_code(payload),
        session_id=sessions.pop() if len(sessions) == 1 else None,
        changed=changed,
    )


def exit_code(payload: dict[str, Any]) -> int:
    """Return 3 where a record is damaged: a person has to look at it."""
    damaged = any(submission["integrity"] for file in payload["files"] for submission in file["submissions"])
    return EXIT_NEEDS_PERSON if damaged else 0


def _progress(asked: Asked) -> Callable[[FileProgress], None]:
    def report(progress: FileProgress) -> None:
        unit = "bytes" if progress.phase == "reading" else "entries"
        asked.desk.progress(progress.done, progress.total or None, f"{progress.phase} {progress.file}, {unit}")

    return report
