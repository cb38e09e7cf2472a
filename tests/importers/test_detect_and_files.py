"""Which file, and in which format."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import pytest

from reconciler.errors import SourceUnreadable, UnknownFormat
from reconciler.importers.detect import detect, importer_for
from reconciler.importers.files import opened, session_files
from tests.support.session_files import Claude, Pi, as_bytes, write


def found(data: bytes) -> tuple[str, str]:
    detection = detect(BytesIO(data), "x.jsonl")
    return detection.format, detection.reason


def refused(data: bytes) -> str:
    with pytest.raises(UnknownFormat) as caught:
        detect(BytesIO(data), "x.jsonl")
    return caught.value.message


def test_a_pi_file_is_known_by_its_header() -> None:
    assert ("pi", 'line 1 is a session header ("type": "session")') == found(as_bytes(Pi().user("u1").lines))


def test_a_pi_file_that_lost_its_header_is_known_by_its_entries() -> None:
    assert ("pi", 'line 2 is a "message" entry with id and parentId') == found(
        b"torn\n" + as_bytes(Pi().user("u1").lines[1:])
    )


def test_a_transcript_is_known_by_its_lines() -> None:
    data = as_bytes(Claude().outside("summary", summary="x").user("u1").lines)
    assert ("claude-code", 'line 2 is a "user" line with uuid and parentUuid') == found(data)


def test_a_transcript_may_hold_a_queued_prompt_and_nothing_else() -> None:
    assert "claude-code" == found(as_bytes(Claude().outside("queue-operation", operation="enqueue").lines))[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"SQLite format 3\0rest", "it is an SQLite database, and a database is read in its place"),
        (b"\x00\x01\x02\xff" * 100, "none of its first lines is JSON"),
        (b"hello\nworld\n", "none of its first lines is JSON"),
        (b'{"a":1}\n', "none of its first lines is JSON of a known session format"),
        (b'{"type":"session_start","id":"x"}\n', "a Factory Droid session"),
        (b'{"sessionId":"x","messages":[]}\n', "a Gemini CLI session"),
        (b'{"type":"user","uuid":"x","parentUuid":null,"message":{"parts":[]}}\n', "a Qwen Code session"),
        (b"[" * 100_000, "none of its first lines is JSON"),
    ],
)
def test_what_is_in_no_supported_format_is_refused_by_name(data: bytes, says: str) -> None:
    assert says in refused(data)


def test_a_format_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UnknownFormat) as caught:
        importer_for("cobol")
    assert "pi, claude-code" in str(caught.value.hint)


def test_the_stream_is_set_back_to_its_beginning() -> None:
    stream = BytesIO(as_bytes(Pi().lines))
    detect(stream, "x")
    assert 0 == stream.tell()


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_folder_means_the_session_files_below_it_in_order_each_once(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.jsonl", "a/y.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "b.jsonl")
    expected = [str(tmp_path / name) for name in ("b.jsonl", "a/y.jsonl", "a/z.jsonl")]
    assert expected == session_files([str(tmp_path / "b.jsonl"), str(tmp_path), str(tmp_path / "a")])


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real.jsonl", Pi().lines)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    with opened(str(tmp_path / "link.jsonl")) as file:
        assert (str(tmp_path / "real.jsonl"), "link") == (file.locator, file.stem)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device", "nul"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    name = str(path)
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            name = "/dev/zero"
        case "nul":
            name = "a\0b"
    with pytest.raises(SourceUnreadable, match=r"could not read|cannot read"), opened(name):
        pass


def test_a_pipe_is_copied_aside_so_that_it_can_be_looked_at_twice() -> None:
    data = as_bytes(Pi().user("u1").lines)
    with opened("-", BytesIO(data)) as file:
        assert (data, None, len(data), 0.0) == (file.stream.read(), file.stem, file.size, file.age_s())
        file.stream.seek(0)
        assert data == file.stream.read()


def test_a_files_age_is_the_time_since_it_was_written(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", Pi().lines)
    status = path.stat()
    os.utime(path, (status.st_atime, status.st_mtime - 500))
    with opened(str(path)) as file:
        assert 499 < file.age_s() < 560
