"""`inspect` over files, folders and pipes."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from reconciler.errors import SourceUnreadable, UnknownFormat
from reconciler.service.inspect_files import FileProgress, inspect_paths
from tests.support.session_files import CLAUDE_SESSION, PI_SESSION, Claude, Pi, as_bytes, write


def test_the_payload_has_the_promised_shape(tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1").user("u2").assistant("a2", calls=["c1", "c2"], stop="toolUse")
    path = write(tmp_path / "x.jsonl", pi.result("r1", "c2").raw(b"oops\n").lines)
    (file,) = inspect_paths([str(path)])["files"]
    (submission,) = file.pop("submissions")
    assert {
        "submission_id": "u2",
        "session_id": PI_SESSION,
        "state": "continuable",
        "detail": "tool_batch_partial",
        "unresolved_tool_calls": ["c1"],
        "interior_open_calls": [],
        "input_entry_id": "u2",
        "deciding_entry_id": "a2",
        "leaf_entry_id": "r1",
        "stopped_by": None,
        "unlogged_calls_possible": True,
        "integrity": None,
    } == submission
    (problem,) = file["problems"]
    assert {"line": 7, "code": "not_json"} == {"line": problem["line"], "code": problem["code"]}
    assert {"file": str(path), "format": "pi", "session_id": PI_SESSION, "entry_count": 5} == {
        key: file[key] for key in ("file", "format", "session_id", "entry_count")
    }


def test_all_prompts_gives_every_prompt_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", Pi().user("u1").assistant("a1").user("u2").lines)
    (file,) = inspect_paths([str(path)], all_prompts=True)["files"]
    assert [("u1", "moved_on"), ("u2", "input_only")] == [
        (s["submission_id"], s["detail"]) for s in file["submissions"]
    ]


def test_write_ahead_counts_from_the_input_on(tmp_path: Path) -> None:
    pi = Pi().user("u1").assistant("a1").raw(b"oops\n").user("u2").assistant("a2", calls=["c"], stop="toolUse")
    (file,) = inspect_paths([str(write(tmp_path / "x.jsonl", pi.lines))])["files"]
    assert [False] == [s["unlogged_calls_possible"] for s in file["submissions"]]


def test_a_pipe_is_inspected_like_a_file() -> None:
    data = as_bytes(Claude().user("u1").lines)
    (file,) = inspect_paths(["-"], stdin=BytesIO(data))["files"]
    assert ("-", "claude-code", CLAUDE_SESSION) == (file["file"], file["format"], file["session_id"])


def test_one_bad_file_among_others_is_a_problem_and_the_others_are_read(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", Pi().user("u1").lines)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"\x00\x01")
    files = inspect_paths([str(bad), str(tmp_path / "gone.jsonl"), str(good)])["files"]
    assert [["unknown_format"], ["source_unreadable"], []] == [
        [problem["code"] for problem in file["problems"]] for file in files
    ]
    assert [0, 0, 1] == [len(file["submissions"]) for file in files]


@pytest.mark.parametrize(("content", "error"), [(b"", UnknownFormat), (b"hi", UnknownFormat), (None, SourceUnreadable)])
def test_the_only_file_raises_its_error(content: bytes | None, error: type[Exception], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error):
        inspect_paths([str(path)])


def test_an_empty_folder_has_no_files(tmp_path: Path) -> None:
    assert {"files": []} == inspect_paths([str(tmp_path)])


def test_a_named_format_is_taken_at_its_word(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [])
    (file,) = inspect_paths([str(path)], format="pi")["files"]
    assert (None, ["no_session"]) == (file["session_id"], [problem["code"] for problem in file["problems"]])
    with pytest.raises(UnknownFormat):
        inspect_paths([], format="cobol")


def test_long_reads_report_how_far_they_are(tmp_path: Path) -> None:
    pi = Pi()
    for number in range(30):
        pi.user(f"u{number}", "x" * 500_000)
    path = write(tmp_path / "x.jsonl", pi.lines)
    seen: list[FileProgress] = []
    inspect_paths([str(path)], progress=seen.append)
    done = [progress.done for progress in seen if progress.phase == "reading"]
    assert sorted(done) == done
    assert (path.stat().st_size, True) == (done[-1], len(done) > 2)
    assert [(1, 1)] == [(progress.done, progress.total) for progress in seen if progress.phase == "inspecting"]
