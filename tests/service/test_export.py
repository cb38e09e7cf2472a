"""Exports: a session goes back to its own program as it was, or repaired; nothing real changes, no path is escaped."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from reconciler.core.model import NewEntry
from reconciler.errors import Conflict, InvalidInput, NotFound
from reconciler.importers.base import ImportResult, Source
from reconciler.importers.claude_code import ClaudeCodeImporter
from reconciler.importers.pi import PiImporter
from reconciler.ops.asking import Desk
from reconciler.service.export import ExportReport, export_session, file_name, target_of, write_file
from reconciler.service.inspect_files import inspect_paths
from reconciler.service.runner import Runner
from reconciler.store.dialect import is_sqlite
from reconciler.store.engine import begin
from reconciler.store.schema import entries, metadata, sessions, submissions
from tests.ops.conftest import SESSIONS, Front

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
EXAMPLES = sorted(SESSIONS.glob("*.jsonl"))
PI_TOOLS = "029fd991-a72e-79ad-841b-f438b64bab7c"
CLAUDE_TOOLS = "d0674fdb-b444-764b-855a-309b2e7d7b37"


def _import(engine: Engine, *files: Path, own: bool = False) -> list[str]:
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "it"))
    front.get("import", files=[str(file) for file in files], own=own, force=own)
    with engine.connect() as conn:
        return list(conn.execute(sa.select(sessions.c.id).order_by(sessions.c.id)).scalars())


def _read(report: ExportReport) -> ImportResult:
    importer: Any = PiImporter() if report.format == "pi" else ClaudeCodeImporter()
    result: ImportResult = importer.read(Source(io.BytesIO(report.text.encode()), stem=report.session_id))
    return result


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def _files(path: Path, *, all_prompts: bool = True) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = inspect_paths([str(path)], all_prompts=all_prompts)["files"]
    return found


def _verdicts(path: Path, *, all_prompts: bool = True) -> list[tuple[Any, ...]]:
    return [
        (one["submission_id"], one["state"], one["detail"], one["unresolved_tool_calls"])
        for file in _files(path, all_prompts=all_prompts)
        for one in file["submissions"]
        # A prompt that was never applied stands on a line that is no part of the conversation.
        if not one["submission_id"].startswith("queued:")
    ]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Give an SQLite database with the sample sessions, mirrored."""
    from reconciler.store.engine import EngineSettings, make_engine
    from reconciler.store.migrate import upgrade

    url = f"sqlite:///{tmp_path_factory.mktemp('export') / 'x.sqlite3'}"
    engine = make_engine(url, settings=EngineSettings(create=True))
    upgrade(engine)
    _import(engine, SESSIONS)
    return engine


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_session_goes_back_as_it_was_read(imported: Engine, path: Path, tmp_path: Path) -> None:
    session = _files(path)[0]["session_id"]
    report = export_session(imported, session)
    assert () == report.problems
    assert () == report.added
    # Every line that belongs to the conversation is there, as it was read.
    written = _lines(report.text)
    raw = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            raw.append(json.loads(line))
        except ValueError:
            continue
    kept = [line for line in raw if line.get("type") != "session" and ("uuid" in line or "id" in line)]
    assert _sorted(kept) == _sorted([line for line in written if line.get("type") != "session"])
    file = tmp_path / path.name
    file.write_text(report.text, encoding="utf-8")
    assert _verdicts(path) == _verdicts(file)


def _sorted(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(line, sort_keys=True) for line in lines)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_repaired_session_has_no_open_call_and_nothing_real_changed(imported: Engine, path: Path) -> None:
    session = _files(path)[0]["session_id"]
    plain, repaired = export_session(imported, session), export_session(imported, session, repaired=True)
    assert () == repaired.problems
    added = {one.text for one in repaired.added}
    assert plain.text.splitlines() == [line for line in repaired.text.splitlines() if line not in added]
    for one in repaired.added:
        assert one.text == repaired.text.splitlines()[one.line - 1]
    assert repaired == export_session(imported, session, repaired=True)


def test_each_interrupted_call_is_closed_by_a_result_that_says_so(imported: Engine, tmp_path: Path) -> None:
    for session, calls in ((PI_TOOLS, ["call_2_0", "call_2_1", "call_2_2"]), (CLAUDE_TOOLS, ["toolu_02b"])):
        report = export_session(imported, session, repaired=True)
        assert calls == [one.tool_call_id for one in report.added]
        assert all("outcome unknown" in one.text for one in report.added)
        file = tmp_path / f"{session}.jsonl"
        file.write_text(report.text, encoding="utf-8")
        last = _verdicts(file)[-1]
        assert ("continuable", "tool_results_ready", []) == last[1:]


def _pi(*lines: dict[str, Any]) -> str:
    head = {"type": "session", "version": 3, "id": "made", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/x"}
    found = [head]
    parent = None
    for number, line in enumerate(lines, 1):
        entry_id = line.pop("id", f"e{number}")
        found.append(
            {
                "type": "message",
                "id": entry_id,
                "parentId": line.pop("parentId", parent),
                "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
                "message": line,
            }
        )
        parent = entry_id
    return "".join(json.dumps(line) + "\n" for line in found)


def _user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def _calls(*ids: str, stop: str = "toolUse", **more: Any) -> dict[str, Any]:
    content = [{"type": "toolCall", "id": one, "name": "bash", "arguments": {}} for one in ids]
    return {"role": "assistant", "content": content, "stopReason": stop, **more}


def _answer(text: str = "ok", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop", **more}


def _result(call: str, **more: Any) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": call, "toolName": "bash", "content": [], **more}


@pytest.mark.parametrize(
    ("lines", "closed", "leaf"),
    [
        # In the middle: a later prompt came; the result stands beside the path.
        ([_user("a"), _calls("x"), _user("b"), _answer()], ["x"], "e4"),
        # Some are answered.
        ([_user("a"), _calls("x", "y", "z"), _result("y")], ["x", "z"], None),
        # Ended by an error: pi leaves the message out, and a result without it would be refused.
        ([_user("a"), _calls("x", stop="error")], ["x"], "e2"),
        ([_user("a"), _calls("x", stop="aborted"), _user("b"), _calls("y")], ["x", "y"], None),
        # On a branch that is not the active one: nobody goes on there.
        ([_user("a"), _calls("x", id="left"), _answer(parentId="e1")], [], "e3"),
        # The same id again.
        ([_user("a"), _calls("x"), _result("x"), _calls("x")], ["x"], None),
    ],
)
def test_calls_are_closed_where_the_program_takes_it(
    sqlite_url: str,
    engine_factory: Callable[..., Engine],
    tmp_path: Path,
    lines: list[dict[str, Any]],
    closed: list[str],
    leaf: str | None,
) -> None:
    engine = engine_factory(sqlite_url)
    file = tmp_path / "made.jsonl"
    file.write_text(_pi(*[dict(line) for line in lines]), encoding="utf-8")
    _import(engine, file)
    report = export_session(engine, "made", repaired=True)
    assert () == report.problems
    assert closed == [one.tool_call_id for one in report.added]
    last = json.loads(report.text.splitlines()[-1])
    if leaf is not None:
        assert leaf == last["id"]
    else:
        assert report.added[-1].text == report.text.splitlines()[-1]


def test_the_leaf_goes_last_though_a_branch_is_newer(
    sqlite_url: str, engine_factory: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    file = tmp_path / "made.jsonl"
    file.write_text(_pi(_user("a"), _answer("one"), _answer("two", parentId="e1")), encoding="utf-8")
    _import(engine, file, own=True)
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "it"))
    front.get("move-leaf", session="made", entry="e2", reason="x")
    report = export_session(engine, "made")
    assert ((), "e2") == (report.problems, json.loads(report.text.splitlines()[-1])["id"])


# --- sessions of ours ------------------------------------------------------------------------------------------------


@pytest.fixture
def native(engine: Engine, database_url: str) -> Engine:
    """Give a session that runners of ours wrote: one turn done, one crashed in its tools."""
    with Runner(database_url, owner="r") as runner:
        runner.submit("native", "one", {"text": "first"})
        (attempt,) = runner.claim()
        attempt.begin()
        call = {"content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}}]}
        attempt.append([NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("c1",), payload=call)])
        attempt.start("c1")
        attempt.append([NewEntry(role="tool_result", tool_call_id="c1", payload={"text": "a file"})])
        attempt.append([NewEntry(role="assistant", stop_reason="stop", payload={"text": "there is a file"})])
        attempt.settle("completed")
        runner.submit("native", "two", "second")
        (attempt,) = runner.claim()
        attempt.begin()
        attempt.append([NewEntry(role="assistant", stop_reason="tool_use", tool_call_ids=("c2",), payload=[])])
        attempt.start("c2")
    return engine


@pytest.mark.parametrize("format_name", ["pi", "claude"])
def test_a_session_of_ours_is_put_into_a_programs_words(native: Engine, format_name: str) -> None:
    report = export_session(native, "native", format_name=format_name, repaired=True)
    assert () == report.problems
    assert ["c2"] == [one.tool_call_id for one in report.added]
    # Settlements and starts have no place there, and nobody misses them.
    assert {"outcome", "start"} == {"outcome" if "outcome" in why else "start" for _, why in report.left_out}
    again = _read(report).sessions[0]
    roles = [one.entry.role for one in again.entries]
    assert ["user", "assistant", "tool_result", "assistant", "user", "assistant", "tool_result"] == roles
    assert '"ls"' in report.text
    assert "there is a file" in report.text
    assert 2 == len(again.submissions)


def test_jsonl_keeps_everything(native: Engine) -> None:
    report = export_session(native, "native", repaired=True)
    header, *rest = _lines(report.text)
    with native.connect() as conn:
        count = conn.execute(sa.select(sa.func.count()).select_from(entries)).scalar_one()
    assert ("jsonl", "native", "session") == (report.format, header["id"], header["type"])
    assert count == len([line for line in rest if line["type"] == "entry"])
    assert ["c2"] == [line["tool_call_id"] for line in rest if line["type"] == "closing"]
    assert {"text": "first"} == rest[0]["payload"]


# --- and back again --------------------------------------------------------------------------------------------------

_VERDICT = ("state", "detail", "unresolved_tool_calls", "interior_open_calls", "input_entry_id", "deciding_entry_id")
_MORE = ("leaf_entry_id", "stopped_by", "unlogged_calls_possible", "integrity")


def _whole_verdicts(path: Path) -> dict[str, dict[str, Any]]:
    return {
        one["submission_id"]: {name: one[name] for name in (*_VERDICT, *_MORE)}
        for file in _files(path)
        for one in file["submissions"]
    }


def _empty(engine_factory: Any, like: Engine, sqlite_url: str, postgresql_url: str) -> Engine:
    """Give an empty database of the other kind."""
    found: Engine = engine_factory(postgresql_url if is_sqlite(like) else sqlite_url)
    return found


def test_a_session_of_ours_comes_back_into_an_empty_database_with_its_verdicts(
    native: Engine, database_url: str, sqlite_url: str, postgresql_url: str, engine_factory: Any, tmp_path: Path
) -> None:
    with Runner(database_url, owner="r") as runner:
        runner.submit("native", "three", {"text": "not begun"})
    report = export_session(native, "native", repaired=True)
    file = tmp_path / "native.jsonl"
    assert write_file(file, report.text, force=False)
    assert "closing" in report.text
    other = _empty(engine_factory, native, sqlite_url, postgresql_url)
    assert ["native"] == _import(other, file)
    for submission in ("two", "three"):
        found = [_explained(engine, submission)["inspection"] for engine in (native, other)]
        assert {name: found[0][name] for name in found[0] if name != "evidence"} == {
            name: found[1][name] for name in found[0] if name != "evidence"
        }
    assert ("absent", "continuable") == (
        _explained(other, "three")["inspection"]["state"],
        _explained(other, "two")["inspection"]["state"],
    )
    assert "completed" == _whole_verdicts(file)["one"]["state"]
    # Nothing of the record is lost on the way, but for who tried: a copy has no runner.
    again = export_session(other, "native", format_name="jsonl")
    assert _record(export_session(native, "native").text) == _record(again.text)
    # The same file twice changes nothing.
    front = Front(Desk(make_engine=lambda **_: other, name_database=lambda: "it"))
    assert 0 == front.get("import", files=[str(file)])["imported"]["entries"]


def _explained(engine: Engine, submission: str) -> dict[str, Any]:
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "it"))
    return front.get("explain", submission=submission, session="native")


def _record(text: str) -> list[dict[str, Any]]:
    lines = [line for line in _lines(text) if line["type"] == "entry"]
    for line in lines:
        line["entry"].pop("attempt_id")
    return lines


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_our_lines_of_any_session_give_its_verdicts(imported: Engine, path: Path, tmp_path: Path) -> None:
    session = _files(path)[0]["session_id"]
    for repaired in (False, True):
        file = tmp_path / "copy.jsonl"
        report = export_session(imported, session, format_name="jsonl", repaired=repaired)
        write_file(file, report.text, force=True)
        (read,) = _files(file)
        assert ("jsonl", session) == (read["format"], read["session_id"])
        assert "export of ours" in read["format_reason"]
        assert _whole_verdicts(path) == _whole_verdicts(file)


def test_an_outcome_comes_back_as_an_outcome_and_a_pass_adopts_it(
    native: Engine, sqlite_url: str, postgresql_url: str, engine_factory: Any, tmp_path: Path
) -> None:
    file = tmp_path / "native.jsonl"
    write_file(file, export_session(native, "native").text, force=False)
    other = _empty(engine_factory, native, sqlite_url, postgresql_url)
    front = Front(Desk(make_engine=lambda **_: other, name_database=lambda: "it"))
    front.get("import", files=[str(file)], all_prompts=True)
    assert 1 == front.get("once")["adopted"]
    assert ("settled", "completed") == (_explained(other, "one")["status"], _explained(other, "one")["outcome"])


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"kind": "submission_settled", "submission_id": None}, "outcome_of_nothing"),
        ({"stop_reason": "x\x00"}, "unknown_stop_reason"),
        ({"id": "tool-marker:\ud800"}, "id_replaced"),
        ({"parent_id": "submission-input:gone"}, "missing_parent"),
        ({"id": 7}, "id_missing"),
    ],
)
def test_our_lines_are_not_trusted_to_be_ours(
    native: Engine, sqlite_url: str, postgresql_url: str, engine_factory: Any, tmp_path: Path, changed: Any, code: str
) -> None:
    header, *lines = _lines(export_session(native, "native").text)
    entry = lines[3]["entry"] | changed | {"role": "x\x00", "content": "\x00", "stopped_by": "\x00", "kind": "\x00"}
    lines[3]["entry"] = entry | changed
    file = tmp_path / "native.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *lines)), encoding="utf-8")
    (read,) = _files(file)
    assert code in [problem["code"] for problem in read["problems"]]
    assert ["native"] == _import(_empty(engine_factory, native, sqlite_url, postgresql_url), file)


def test_both_databases_give_the_same_bytes(
    native: Engine, sqlite_url: str, postgresql_url: str, engine_factory: Any
) -> None:
    # The same history: the rows of one database put into the other.
    _import(native, SESSIONS, own=True)
    other = engine_factory(postgresql_url if is_sqlite(native) else sqlite_url)
    with native.connect() as source, begin(other) as conn:
        for table in metadata.sorted_tables:
            if rows := [dict(row) for row in source.execute(sa.select(table)).mappings()]:
                conn.execute(sa.insert(table), rows)
    with other.connect() as conn:
        names = list(conn.execute(sa.select(sessions.c.id).order_by(sessions.c.id)).scalars())
    assert 12 == len(names)
    for name in names:
        for format_name in ("pi", "claude", "jsonl"):
            first, second = (
                export_session(one, name, format_name=format_name, repaired=True) for one in (native, other)
            )
            assert first.text.encode() == second.text.encode()
            assert first == second


# --- the corpus ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "format_name"), [("pi", "pi"), ("claude", "claude")])
def test_real_sessions_come_back_with_the_same_verdict_and_repaired_ones_without_open_calls(
    sqlite_url: str, engine_factory: Any, tmp_path: Path, folder: str, format_name: str
) -> None:
    if not CORPUS.is_dir():
        pytest.skip("../shared/corpus is not there: real sessions are not exported")
    files = [file for file in sorted((CORPUS / folder).rglob("*.jsonl")) if file.stat().st_size < 400_000][:40]
    if not files:
        pytest.skip(f"../shared/corpus has no folder {folder}: real sessions are not exported")
    engine = engine_factory(sqlite_url)
    told: list[str] = []
    for file in files:
        session = _files(file)[0]["session_id"]
        if session is None:
            continue
        with begin(engine) as conn:
            for table in metadata.sorted_tables:
                conn.execute(sa.delete(table))
        _import(engine, file)
        report = export_session(engine, session, format_name=format_name)
        copy = tmp_path / f"{session.replace('/', '_')}.jsonl"
        copy.write_text(report.text, encoding="utf-8")
        before, after = _verdicts(file, all_prompts=False), _verdicts(copy, all_prompts=False)
        if before != after or report.problems:
            told.append(f"{file.name}: {before} -> {after} {report.problems}")
        repaired = export_session(engine, session, format_name=format_name, repaired=True)
        told += [f"{file.name} repaired: {text}" for text in repaired.problems]
    assert [] == told


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "..", ".hidden", "a/b", "a\\b", "x" * 500, "späte", "-f"])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    found = target_of(str(tmp_path), name)
    assert tmp_path == found.parent
    assert found.resolve().parent == tmp_path.resolve()
    assert not found.name.startswith((".", "-"))
    assert len(found.name) < 130
    assert file_name(name) != file_name(name + "x")
    assert write_file(found, "x\n", force=False)


def test_a_file_is_its_owners_alone_and_never_overwritten_unasked(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    os.umask(os.umask(0))
    assert write_file(target, "one\n", force=False)
    assert 0o600 == stat.S_IMODE(target.stat().st_mode)
    # The same again is no error.
    assert not write_file(target, "one\n", force=False)
    with pytest.raises(Conflict):
        write_file(target, "two\n", force=False)
    assert "one\n" == target.read_text()
    assert write_file(target, "two\n", force=True)
    assert ["out.jsonl"] == [file.name for file in tmp_path.iterdir()]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep")
    link = tmp_path / "link"
    link.symlink_to(secret)
    with pytest.raises(Conflict):
        write_file(link, "x\n", force=False)
    assert write_file(link, "x\n", force=True)
    assert ("keep", False) == (secret.read_text(), link.is_symlink())


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_file(tmp_path / "no" / "folder", "x", force=False)
    with pytest.raises(InvalidInput):
        write_file(Path("\0"), "x", force=False)


# --- the verb --------------------------------------------------------------------------------------------------------


def test_the_verb_shows_or_writes_and_a_dry_run_writes_nothing(
    sqlite_url: str, engine_factory: Any, tmp_path: Path
) -> None:
    engine = engine_factory(sqlite_url)
    _import(engine, SESSIONS)
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "it"))
    out = tmp_path / "out.jsonl"
    tried = front.get("export", session=PI_TOOLS, repaired=True, output=str(out), dry_run=True)
    assert ("would", 3, None, False) == (tried["result"], tried["added_count"], tried["text"], out.exists())
    done = front.get("export", session=PI_TOOLS, repaired=True, output=str(out))
    assert ("written", str(out)) == (done["result"], done["file"])
    assert "already" == front.get("export", session=PI_TOOLS, repaired=True, output=str(out))["result"]
    assert "conflict" == front.refused("export", session=PI_TOOLS, output=str(out))["code"]
    shown = front.get("export", session=PI_TOOLS, repaired=True)
    assert ("shown", out.read_text(encoding="utf-8")) == (shown["result"], shown["text"])
    refused = front.refused("export", session=PI_TOOLS[:-2])
    assert ("not_found", f'did you mean "{PI_TOOLS}"?') == (refused["code"], refused["hint"])
    front.desk.show_texts = False
    assert "invalid_input" == front.refused("export", session=PI_TOOLS)["code"]


def test_a_torn_path_is_told(engine: Engine) -> None:
    _import(engine, SESSIONS)
    with begin(engine) as conn:
        conn.execute(sa.update(sessions).where(sessions.c.id == PI_TOOLS).values(leaf_entry_id="gone"))
        conn.execute(sa.delete(submissions))
    front = Front(Desk(make_engine=lambda **_: engine, name_database=lambda: "it"))
    answer = front.ask("export", session=PI_TOOLS)
    assert 3 == answer.exit_code
    assert "torn" in answer.payload["problems"][0]


def test_an_unknown_session_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFound):
        export_session(engine, "nowhere")


# --- the program itself ----------------------------------------------------------------------------------------------

_LOAD = """
import { SessionManager } from "%s/dist/index.js";
const manager = SessionManager.open(process.argv[2]);
const context = manager.buildSessionContext();
const open = new Set();
for (const message of context.messages) {
  if (message.role === "assistant")
    for (const block of message.content) if (block.type === "toolCall") open.add(block.id);
  if (message.role === "toolResult") open.delete(block_id(message));
}
function block_id(message) { return message.toolCallId; }
console.log(JSON.stringify({
  id: manager.getSessionId(), leaf: manager.getLeafId(), open: [...open],
  roles: context.messages.map((message) => message.role),
}));
"""


def test_pi_opens_a_repaired_session_and_finds_no_open_call(imported: Engine, tmp_path: Path) -> None:
    package, node = os.environ.get("RECONCILER_TEST_PI_PACKAGE"), shutil.which("node")
    if not package or node is None:
        pytest.skip(
            "RECONCILER_TEST_PI_PACKAGE names no folder of an installed pi, or node is missing: not loaded by pi"
        )
    script = tmp_path / "load.mjs"
    script.write_text(_LOAD % Path(package).resolve(), encoding="utf-8")
    report = export_session(imported, PI_TOOLS, repaired=True, cwd=str(tmp_path))
    file = tmp_path / "session.jsonl"
    assert write_file(file, report.text, force=False)
    env = {**os.environ, "HOME": str(tmp_path)}
    run = subprocess.run(
        [node, str(script), str(file)], capture_output=True, text=True, timeout=60, env=env, check=True
    )
    found = json.loads(run.stdout.splitlines()[-1])
    assert (PI_TOOLS, [], ["user", "assistant", "toolResult", "toolResult", "toolResult"]) == (
        found["id"],
        found["open"],
        found["roles"],
    )
    assert json.loads(report.text.splitlines()[-1])["id"] == found["leaf"]
    # It is as good as a file of its own: pi has nothing to mend in it.
    assert report.text == file.read_text(encoding="utf-8")


_LOAD_CLAUDE = """
import { getSessionMessages } from "%s/sdk.mjs";
const found = {};
for (const session of process.argv.slice(3)) {
  const messages = await getSessionMessages(session, { dir: process.argv[2] });
  const calls = [], results = [];
  for (const message of messages) {
    const content = message.message.content;
    for (const block of Array.isArray(content) ? content : []) {
      if (block.type === "tool_use") calls.push(block.id);
      if (block.type === "tool_result") results.push(block.tool_use_id);
    }
  }
  found[session] = { calls, results, uuids: messages.map((message) => message.uuid) };
}
console.log(JSON.stringify(found));
"""


def test_claude_codes_own_reader_opens_repaired_sessions_and_finds_no_open_call(
    imported: Engine, tmp_path: Path
) -> None:
    package, node = os.environ.get("RECONCILER_TEST_CLAUDE_PACKAGE"), shutil.which("node")
    if not package or node is None:
        pytest.skip(
            "RECONCILER_TEST_CLAUDE_PACKAGE names no folder of an installed @anthropic-ai/claude-agent-sdk, or node is"
            " missing: not loaded by Claude's own reader"
        )
    script = tmp_path / "load.mjs"
    script.write_text(_LOAD_CLAUDE % Path(package).resolve(), encoding="utf-8")
    folder = tmp_path / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(tmp_path))
    folder.mkdir(parents=True)
    reports = {}
    for path in EXAMPLES:
        if path.name.startswith("claude-"):
            session = _files(path)[0]["session_id"]
            reports[session] = export_session(imported, session, repaired=True, cwd=str(tmp_path))
            write_file(folder / f"{session}.jsonl", reports[session].text, force=False)
    env = {**os.environ, "HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path)}
    run = subprocess.run(
        [node, str(script), str(tmp_path), *reports], capture_output=True, text=True, timeout=60, env=env, check=True
    )
    found = json.loads(run.stdout.splitlines()[-1])
    assert sorted(reports) == sorted(found)
    for session, report in reports.items():
        # A result whose call the file lost stays as it is.
        assert [] == sorted({*found[session]["calls"]} - {*found[session]["results"]}), session
        added = [json.loads(one.text)["uuid"] for one in report.added]
        assert added == [uuid for uuid in found[session]["uuids"] if uuid in added]
        assert report.text == (folder / f"{session}.jsonl").read_text(encoding="utf-8")
    assert ["toolu_02b"] == [one.tool_call_id for one in reports[CLAUDE_TOOLS].added]
