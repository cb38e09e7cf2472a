"""Export killed before every step of writing its file: the file is there whole or not at all, whatever stood there.

The steps are found by tracing: each line of the functions that write, each a death of a real process. The database is
only read, which is asserted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from reconciler.core.model import NewEntry
from reconciler.service import export as exporting
from reconciler.service.export import export_session
from reconciler.service.runner import Runner
from tests.proof.forking import Ended, in_child
from tests.proof.places import PostgreSQLPlace, SQLitePlace, opened

# The functions that write; what they call is the system's.
WRITES = {exporting.write_file.__code__, exporting._put.__code__}


def traced(act: Callable[[], Any], kill_at: int | None) -> tuple[int, Any]:
    """Run *act*, and die before step *kill_at* of the writing functions; return how many there were, and its answer."""
    steps = 0

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if event in ("line", "return"):
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return local

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        return local if event == "call" and frame.f_code in WRITES else None

    sys.settrace(calls)
    try:
        answer = act()
    finally:
        sys.settrace(None)
    return steps, answer


@pytest.fixture
def text(database_url: str, engine: Engine) -> str:
    """Give the text of a session's file."""
    with Runner(database_url, notify=False, beat_by_itself=False) as runner:
        runner.submit("s", "a", {"text": "go"})
        (attempt,) = runner.claim(1)
        attempt.begin()
        attempt.append([NewEntry("assistant", {"text": "done"}, stop_reason="stop")])
        attempt.settle("completed")
    return export_session(engine, "s").text


@pytest.mark.parametrize("case", ["new", "over another, by force", "beside another, refused", "already there"])
def test_killed_at_any_step_the_file_is_whole_or_not_there(case: str, text: str, tmp_path: Path) -> None:
    force = case == "over another, by force"
    before = {"new": None, "already there": text}.get(case, "somebody else's\n")

    def attempt(folder: Path, kill_at: int | None) -> Ended:
        folder.mkdir()
        target = folder / "session.jsonl"
        if before is not None:
            target.write_text(before)

        def act() -> str:
            try:
                return str(exporting.write_file(target, text, force=force))
            except Exception as error:
                return type(error).__name__

        return in_child(lambda: traced(act, kill_at))

    steps, answer = attempt(tmp_path / "whole", None).value
    assert {"new": "True", "over another, by force": "True", "beside another, refused": "Conflict"}.get(
        case, "False"
    ) == answer
    assert steps > 3
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        assert attempt(folder, step).killed
        target = folder / "session.jsonl"
        left = target.read_text() if target.exists() else None
        allowed = {before} if case == "beside another, refused" else {before, text}
        assert left in allowed, f"step {step} left {left!r}"
        # What is left beside it is hidden, for its owner alone, and in nobody's way.
        beside = [path for path in folder.iterdir() if path != target]
        assert len(beside) <= 1
        assert all(path.name.startswith(".session.jsonl.") and path.stat().st_mode & 0o077 == 0 for path in beside)
        if case != "beside another, refused":
            exporting.write_file(target, text, force=force)
            assert text == target.read_text()
        # The link and the hidden name are one file until the hidden name is taken away.
        assert target.read_text() in (text, before)


def test_an_export_writes_nothing_into_the_database(text: str, database_url: str, engine: Engine) -> None:
    engine.dispose()
    place = SQLitePlace(Path(database_url.removeprefix("sqlite:///")))
    with opened(place if database_url.startswith("sqlite") else PostgreSQLPlace(database_url)) as there:
        before = there.rows()
        assert text == export_session(engine, "s").text
        assert before == there.rows()
        engine.dispose()
