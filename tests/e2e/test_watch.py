"""`reconciler watch` as people call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.entrypoints.cli import main
from tests.support.foreign_stores import USER, OpenaiAgents
from tests.support.session_files import Pi, write


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    path = write(tmp_path / "x.jsonl", Pi().user("u1").assistant("a1", calls=["c1"], stop="toolUse").lines)
    old = time.time() - 4000
    os.utime(path, (old, old))
    return path


def test_one_look_in_words(crashed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["watch", str(crashed.parent), "--once"])
    out = capsys.readouterr().out
    assert "stuck" in out
    assert "left inside 1 tool call (c1): may have happened, quiet for 1 h" in out


def test_one_look_for_programs(crashed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["watch", str(crashed), "--once", "--json"])
    payload = json.loads(capsys.readouterr().out)
    (change,) = payload["changes"]
    assert ("stuck", None, "tool_calls_unresolved", ["c1"]) == (
        change["standing"],
        change["was"],
        change["detail"],
        change["unresolved_tool_calls"],
    )


def test_one_look_is_at_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.service.watch.READS_MAX", 1)
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", Pi(session_id=str(number)).user("u").lines)
    assert 0 == main(["watch", str(tmp_path), "--once", "--quiet", "0", "--json"])
    payload = json.loads(capsys.readouterr().out)
    assert (3, 0, {"stuck": 3}) == (len(payload["read"]), payload["behind"], payload["standings"])


def test_damage_needs_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pi = Pi().user("u1").assistant("a1", calls=["c"], stop="toolUse", parent="gone")
    write(tmp_path / "x.jsonl", pi.lines)
    assert 3 == main(["watch", str(tmp_path), "--once"])
    assert "the record is damaged" in capsys.readouterr().out


def test_it_imports_only_where_that_is_asked_for(
    crashed: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main(["watch", str(crashed), "--once", "--database", sqlite_url])
    assert 0 == main(["list", "--database", sqlite_url, "--json"])
    assert '"submissions": []' in capsys.readouterr().out
    assert 0 == main(["watch", str(crashed), "--once", "--import", "--database", sqlite_url])
    assert 0 == main(["list", "--database", sqlite_url, "--json"])
    assert '"submission_id": "u1"' in capsys.readouterr().out


@pytest.mark.slow
def test_it_follows_a_database_in_use_until_it_is_interrupted(tmp_path: Path) -> None:
    store = OpenaiAgents(tmp_path / "agents.db")
    store.run("PRAGMA journal_mode=WAL")
    store.add(USER, session="first")
    command = [sys.executable, "-m", "reconciler", "watch", store.name, "--every", "0.2", "--quiet", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert ["first"] == [change["session_id"] for change in json.loads(process.stdout.readline())["changes"]]
        store.add(USER, session="second")
        assert ["second"] == [change["session_id"] for change in json.loads(process.stdout.readline())["changes"]]
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(timeout=300)
    store.close()
