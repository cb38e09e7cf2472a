"""The guardian: what it tells, when, and that it touches nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.errors import InvalidInput, LimitExceeded, UnknownFormat
from reconciler.service import watch
from reconciler.service.watch import Round, Watcher, WatchOptions
from tests.support.foreign_stores import USER, GoogleAdk, OpenaiAgents, Opencode, adk_call, adk_text, said, tool_part
from tests.support.session_files import Claude, Pi, write

NOW = 1_800_000_000.0


@dataclass
class Clock:
    """A clock that is set by hand."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def aged(path: Path, clock: Clock, seconds: float) -> Path:
    os.utime(path, (clock.now - seconds, clock.now - seconds))
    return path


def told(found: Round) -> list[tuple[str | None, str]]:
    return [(change.submission_id, change.standing.value) for change in found.changes]


def watcher(clock: Clock, *sources: Path | str, **more: Any) -> Watcher:
    return Watcher(WatchOptions(tuple(str(source) for source in sources), **more), clock=clock)


def test_a_turn_is_worked_on_until_nothing_came_for_a_while(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "x.jsonl", Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse").lines)
    aged(path, clock, 0)
    watching = watcher(clock, path)
    assert [("u1", "working")] == told(watching.round())
    assert [] == told(watching.round())
    clock.now += 121
    assert [("u1", "stuck")] == told(watching.round())
    assert [] == told(watching.round())


def test_what_comes_after_all_is_told_with_what_it_was_before(tmp_path: Path, clock: Clock) -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse").result("r1", "c1")
    path = aged(write(tmp_path / "x.jsonl", pi.lines), clock, 500)
    watching = watcher(clock, path)
    assert [("u1", "lost_answer")] == told(watching.round())
    aged(write(path, pi.assistant("a2").lines), clock, 0)
    (change,) = watching.round().changes
    assert ("answered", "lost_answer") == (change.standing.value, change.was)


@pytest.mark.parametrize(
    ("lines", "standing"),
    [
        (Pi().user("u1").lines, "stuck"),
        (Pi().user("u1").assistant("a1").lines, "answered"),
        (Pi().user("u1").assistant("a1", calls=["c"], stop="toolUse").result("r", "c").lines, "lost_answer"),
        (Pi().user("u1").assistant("a1", "half", stop="error", error="529 overloaded").lines, "lost_answer"),
        (Pi().user("u1").assistant("a1", stop="aborted", error="Operation aborted").lines, "stopped"),
        (Pi().user("u1").assistant("a1", calls=["c"], stop="toolUse", parent="gone").lines, "damaged"),
        (Claude().outside("queue-operation", operation="enqueue", content="next", timestamp="t").lines, "queued"),
    ],
)
def test_how_a_prompt_stands(tmp_path: Path, clock: Clock, lines: list[object], standing: str) -> None:
    path = aged(write(tmp_path / "x.jsonl", lines), clock, 500)
    assert [standing] == [name for _, name in told(watcher(clock, path).round())]


def test_what_waits_on_purpose_is_not_stuck(tmp_path: Path, clock: Clock) -> None:
    store = GoogleAdk(tmp_path / "adk.db").session().event("e1", "i1", "user", adk_text("hi"))
    store.event("e2", "i1", "root", adk_call("L1"), long_running_tool_ids=["L1"]).close()
    aged(tmp_path / "adk.db", clock, 500)
    assert [("i1", "waiting")] == told(watcher(clock, tmp_path / "adk.db").round())


def test_each_session_of_a_busy_database_is_quiet_by_itself(tmp_path: Path, clock: Clock) -> None:
    def at() -> str:
        return datetime.fromtimestamp(clock.now, UTC).strftime("%Y-%m-%d %H:%M:%S")

    store = OpenaiAgents(tmp_path / "agents.db").add(USER, session="left", at=at()).add(USER, session="busy", at=at())
    path = aged(tmp_path / "agents.db", clock, 0)
    watching = watcher(clock, path)
    watching.round()
    for step in range(3):
        clock.now += 61
        store.add(said("more"), USER, session="busy", at=at())
        aged(path, clock, 0)
        found = told(watching.round())
        assert ([("message:1", "stuck")] if step == 1 else []) == [one for one in found if one[1] == "stuck"]
    store.close()


def test_a_row_that_is_rewritten_in_place_is_a_sign_of_life(tmp_path: Path, clock: Clock) -> None:
    store = Opencode(tmp_path / "opencode.db").user("msg_1").assistant("msg_2", "msg_1")
    store.tool("prt_a", "msg_2", "c1", "running")
    path = tmp_path / "opencode.db"
    clock.now = path.stat().st_mtime
    watching = watcher(clock, path)
    watching.round()
    clock.now += 100
    store.change("prt_a", tool_part("c1", "running", metadata={"output": "still at it"}))
    watching.round()
    clock.now += 100
    assert [] == [change for change in watching.round().changes if change.standing is watch.Standing.STUCK]
    store.close()


def test_nothing_is_written_anywhere(tmp_path: Path, clock: Clock) -> None:
    OpenaiAgents(tmp_path / "agents.db").add(USER).close()
    write(tmp_path / "x.jsonl", Pi().user("u1").lines)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    watching = watcher(clock, tmp_path, recent_s=1e10)
    watching.round()
    watching.round()
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}


def test_only_what_changed_is_read_again(tmp_path: Path, clock: Clock) -> None:
    for name in ("a", "b"):
        aged(write(tmp_path / f"{name}.jsonl", Pi(session_id=name).user("u1").lines), clock, 500)
    watching = watcher(clock, tmp_path)
    assert 2 == len(watching.round().read)
    assert () == watching.round().read
    aged(write(tmp_path / "a.jsonl", Pi(session_id="a").user("u1").assistant("a1").lines), clock, 400)
    assert (str(tmp_path / "a.jsonl"),) == watching.round().read


def test_of_a_folder_only_what_is_recent_is_looked_at(tmp_path: Path, clock: Clock) -> None:
    aged(write(tmp_path / "old.jsonl", Pi(session_id="old").user("u1").lines), clock, 8 * 86400)
    new = aged(write(tmp_path / "new.jsonl", Pi(session_id="new").user("u2").lines), clock, 500)
    found = watcher(clock, tmp_path).round()
    assert ((str(new),), [("u2", "stuck")]) == (found.read, told(found))
    # What is named is meant, however old.
    assert [("u1", "stuck")] == told(watcher(clock, tmp_path / "old.jsonl").round())


def test_many_files_are_read_a_piece_at_a_time_the_newest_first(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "READS_MAX", 2)
    for number in range(5):
        aged(write(tmp_path / f"{number}.jsonl", Pi(session_id=str(number)).user("u").lines), clock, 500 - number)
    watching = watcher(clock, tmp_path)
    rounds = [watching.round() for _ in range(4)]
    assert [3, 1, 0, 0] == [found.behind for found in rounds]
    assert [["4", "3"], ["2", "1"], ["0"], []] == [[Path(name).stem for name in found.read] for found in rounds]


def test_a_single_look_sees_and_tells_everything(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "READS_MAX", 2)
    monkeypatch.setattr(watch, "CHANGES_MAX", 1)
    for number in range(5):
        aged(write(tmp_path / f"{number}.jsonl", Pi(session_id=str(number)).user("u").lines), clock, 1000)
    found = watcher(clock, tmp_path).round(whole=True)
    assert (5, 5, 0, {"stuck": 5}) == (len(found.read), len(found.changes), found.behind, found.standings)


def test_more_sessions_than_anybody_can_watch_is_an_error(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SESSIONS_MAX", 1)
    for number in range(2):
        aged(write(tmp_path / f"{number}.jsonl", Pi(session_id=str(number)).user("u").lines), clock, 500)
    with pytest.raises(LimitExceeded, match="more than 1 sessions"):
        watcher(clock, tmp_path).round()


def test_links_out_of_the_folder_are_named_once_and_not_followed(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "in").mkdir()
    secret = aged(write(tmp_path / "secret.jsonl", Pi().user("u1").lines), clock, 500)
    (tmp_path / "in" / "link.jsonl").symlink_to(secret)
    watching = watcher(clock, tmp_path / "in")
    (change,) = watching.round().changes
    assert ("unreadable", None) == (change.standing.value, change.session_id)
    assert "it is a link out of its folder" in str(change.message)
    assert [] == told(watching.round())


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(tmp_path: Path, clock: Clock) -> None:
    good = aged(write(tmp_path / "good.jsonl", Pi().user("u1").lines), clock, 500)
    watching = watcher(clock, good, tmp_path / "gone.jsonl")
    assert {("u1", "stuck"), (None, "unreadable")} == set(told(watching.round()))
    assert [] == told(watching.round())
    aged(write(tmp_path / "gone.jsonl", Pi(session_id="new").user("u2").lines), clock, 500)
    assert [("u2", "stuck")] == told(watching.round())


def test_a_file_that_goes_away_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    path = aged(write(tmp_path / "x.jsonl", Pi().user("u1").lines), clock, 500)
    watching = watcher(clock, tmp_path)
    assert {"stuck": 1} == watching.round().standings
    path.unlink()
    assert {} == watching.round().standings


def test_what_cannot_be_watched_is_refused() -> None:
    with pytest.raises(InvalidInput, match="standard input"):
        Watcher(WatchOptions(("-",)))
    with pytest.raises(UnknownFormat):
        Watcher(WatchOptions(("x",), format="cobol"))
