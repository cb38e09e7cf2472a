"""Session files of other programs: `inspect` without a database, `import` into one."""

from __future__ import annotations

from collections.abc import Callable

from reconciler.ops.asking import Asked, Reply
from reconciler.service.inspect_files import FileProgress, inspect_paths


def inspect(asked: Asked) -> Reply:
    """Answer `inspect`."""
    payload = inspect_paths(
        asked["files"],
        all_prompts=asked["all_prompts"],
        progress=_progress(asked),
        **({} if asked["format"] is None else {"format": asked["format"]}),
    )
    return Reply(payload)


def import_files(asked: Asked) -> Reply:
    """Carry out `import`."""
    from reconciler.ops.audit import Noted
    from reconciler.service.first_write import FirstWrite
    from reconciler.service.ingest import IngestOptions, import_paths

    options = IngestOptions(
        all_prompts=asked["all_prompts"],
        own=asked["own"],
        force=asked["force"],
        dry_run=asked.dry_run,
        quiet_s=asked.desk.limits.quiet_s,
        jobs=asked["jobs"],
        **({} if asked["format"] is None else {"format": asked["format"]}),
    )
    noted = Noted(asked)
    first = FirstWrite(noted.write)
    payload = import_paths(asked.desk.engine, asked["files"], options, progress=_progress(asked), first=first)
    sessions = {file["session_id"] for file in payload["files"]}
    session_id = sessions.pop() if len(sessions) == 1 else None
    if first.landed:
        noted.outcome({**payload["imported"], "failed": payload["failed"]}, session_id=session_id)
    return Reply(payload, session_id=session_id, changed=first.landed)


def _progress(asked: Asked) -> Callable[[FileProgress], None]:
    def report(progress: FileProgress) -> None:
        unit = "bytes" if progress.phase == "reading" else "entries"
        asked.desk.progress(progress.done, progress.total or None, f"{progress.phase} {progress.file}, {unit}")

    return report
