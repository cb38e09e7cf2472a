"""Whatever stands in another program's file or rows: its importer answers, and every entry has its payload."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.errors import OperatorFault
from reconciler.importers.base import ImportResult, Source
from reconciler.importers.detect import DATABASE_IMPORTERS, importer_for
from reconciler.importers.foreign_database import as_str, bound, ident
from tests.importers.test_codex import Rollout
from tests.importers.test_fuzz import VALUES, check, places, put
from tests.importers.test_opencode import exported
from tests.importers.test_pi_harness import Harness, value
from tests.support.foreign_stores import (
    USER,
    Flue,
    GoogleAdk,
    Langgraph,
    OpenaiAgents,
    Opencode,
    PiSqlite,
    Store,
    adk_call,
    adk_result,
    adk_text,
    call_item,
    lc,
    lc_calls,
    output_item,
    said,
)
from tests.support.session_files import as_bytes


def _native(entry_id: str, parent: str | None, **columns: Any) -> dict[str, Any]:
    entry = {"id": entry_id, "parent_id": parent, "kind": "message", "content": "text", **columns}
    return {"type": "entry", "at": "2026-05-01T03:00:00.000Z", "write_ahead": True, "entry": entry, "payload": {}}


CODEX = (
    Rollout()
    .begin("t1")
    .context()
    .user("do it", "t1")
    .says("looking", "commentary")
    .call("c1")
    .call("c2")
    .ran("c2")
    .output("c1")
    .event("thread_rolled_back", num_turns=1)
    .begin("t2")
    .user("again", "t2")
    .over(None, error={"message": "400", "codex_error_info": {"x": {"http_status_code": 400}}})
    .event("turn_aborted", turn_id="t2", reason="interrupted")
).lines
HARNESS = (
    Harness()
    .run("op1", "u1")
    .answer("a1", "u1", "c1", "c2", stop="toolUse")
    .ready("r2", "c2")
    .tools("op1", "a1", "effect_pending", "outcome_ready")
    .commit({"kind": "list", "op": "append", "namespace": "pi.pending.assistant_frame", "key": "op1:a2", "value": {}})
    .commit(value("pi.result", "op1", {"kind": "run", "status": "completed", "tipId": "a1"}))
).lines
NATIVE = [
    {"type": "session", "format": 1, "id": "s", "origin": "native", "leaf_entry_id": "tool-marker:1:a:0"},
    _native("submission-input:one", None, role="user", submission_id="one"),
    _native("a", "submission-input:one", role="assistant", stop_reason="tool_use", tool_call_ids=["c"]),
    _native("tool-marker:1:a:0", "a", role="tool_result", tool_call_id="c"),
    _native("submission-settled:one", "tool-marker:1:a:0", kind="submission_settled", submission_id="one"),
    {"type": "submission", "submission_id": "one", "kind": "prompt", "status": "settled"},
    {"type": "submission", "submission_id": "two", "kind": "signal", "status": "queued", "payload": {"text": "x"}},
    {"type": "closing", "tool_call_id": "c"},
]
LINES = [("codex", CODEX), ("pi-harness", HARNESS), ("opencode-export", [exported()]), ("jsonl", NATIVE)]


class Payloads:
    """A sink that holds an importer to its promises: lines rise, each is handed over once."""

    wants_payloads = True

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.last = 0

    def payload(self, line: int, text: str) -> None:
        assert line > self.last
        json.loads(text)
        self.last = line
        self.lines.add(line)

    def restart(self) -> None:
        self.__init__()  # type: ignore[misc]


def check_all(result: ImportResult, sink: Payloads) -> None:
    check(result)
    for session in result.sessions:
        assert {line for item in session.entries for line in item.lines} <= sink.lines


def read_lines(format_name: str, lines: list[Any]) -> None:
    sink = Payloads()
    check_all(importer_for(format_name).read(Source(BytesIO(as_bytes(lines)), "file", sink)), sink)


@pytest.mark.parametrize(("format_name", "lines"), LINES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_part_of_a_line_may_be_anything(format_name: str, lines: list[Any], data: st.DataObject) -> None:
    changed = list(lines)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = put(changed[at], data.draw(st.sampled_from(places(changed[at]))), data.draw(VALUES))
    read_lines(format_name, changed)


@pytest.mark.parametrize(("format_name", "lines"), LINES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_lines_may_be_in_any_order_missing_or_cut(format_name: str, lines: list[Any], data: st.DataObject) -> None:
    read_lines(format_name, data.draw(st.lists(st.sampled_from(lines), max_size=20)))
    whole = as_bytes(lines)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    at = data.draw(st.integers(0, len(cut)))
    read_lines(format_name, [cut[:at] + data.draw(st.binary(max_size=20)) + cut[at:]])


# --- rows ------------------------------------------------------------------------------------------------------------


class Memory:
    """A database in memory, read as a file's is."""

    name = "memory"
    dialect = "sqlite"

    def __init__(self, image: bytes) -> None:
        self.conn = sqlite3.connect(":memory:", isolation_level=None)
        self.conn.deserialize(image)
        self.conn.text_factory = bytes

    def tables(self) -> dict[str, tuple[str, ...]]:
        names = [as_str(row[0]) or "" for row in self.read("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: tuple(as_str(row[1]) or "" for row in self.read(f"PRAGMA table_info({ident(name)})"))
            for name in names
            if not name.startswith("sqlite_")
        }

    def read(self, sql: str, *params: Any) -> Iterator[tuple[Any, ...]]:
        yield from self.conn.execute(sql, bound(params))


def opencode(path: Path) -> Store:
    store = Opencode(path).user("msg_1").assistant("msg_2", "msg_1", "tool-calls", "working")
    return store.tool("prt_a", "msg_2", "c1", "completed").assistant("msg_3", "msg_1", None, "half").user("msg_4")


def openai_agents(path: Path) -> Store:
    return OpenaiAgents(path).add(USER, said("x"), call_item("c1"), output_item("c1"), {"type": "reasoning"}, USER)


def google_adk(path: Path) -> Store:
    store = GoogleAdk(path).session().event("e1", "i1", "user", adk_text("hi"))
    store.event("e2", "i1", "root", adk_call("c1"), branch="a.b").event("e3", "i1", "root", adk_result("c1"))
    return store.event("e4", "i2", "user", actions={"rewind_before_invocation_id": "i1"})


def langgraph(path: Path) -> Store:
    store = Langgraph(path)
    store.checkpoint(source="input", given=[lc("human", "do it")])
    store.checkpoint([lc("human", "do it", "h"), lc("ai", "x", "a", tool_calls=lc_calls("c"))], following=["tools"])
    return store.write("t", 0, "messages", [lc("tool", "ok", None, tool_call_id="c")]).write("t", -1, "__error__", "x")


def flue(path: Path) -> Store:
    store = Flue(path).submission("s1", "running").user("s1").response("a1", "s1", "c1", stop="toolUse")
    store.outcome("a1", "c1").response("a2", "s1", stop=None).submission("s2", "queued")
    return store.batch({"type": "submission_settled", "submissionId": "s1", "outcome": "failed"}, chunks=2)


def pi_sqlite(path: Path) -> Store:
    store = PiSqlite(path).entry("u1", None, {"role": "user", "content": "do it"})
    return store.entry("a1", "u1", {"role": "assistant", "content": [{"type": "toolCall", "id": "c"}]})


MAKERS = {
    "opencode": opencode,
    "openai-agents": openai_agents,
    "google-adk": google_adk,
    "langgraph": langgraph,
    "flue": flue,
    "pi-sqlite": pi_sqlite,
}


@lru_cache
def image(make: Callable[[Path], Store]) -> bytes:
    with TemporaryDirectory() as folder:
        make(Path(folder) / "x.db").close()
        return (Path(folder) / "x.db").read_bytes()


@pytest.mark.parametrize("format_name", sorted(MAKERS))
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_column_of_any_row_may_hold_anything(format_name: str, data: st.DataObject) -> None:
    memory = Memory(image(MAKERS[format_name]))
    importer = DATABASE_IMPORTERS[format_name]()
    tables = memory.tables()
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from(sorted(name for name, columns in tables.items() if columns)))
        column = data.draw(st.sampled_from(tables[table]))
        found = list(memory.read(f"SELECT rowid, {ident(column)} FROM {ident(table)}"))
        if not found:
            continue
        row, before = data.draw(st.sampled_from(found))
        after: object
        try:
            whole = json.loads(as_str(before) or "")
        except ValueError:
            after = data.draw(st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=5), st.binary(max_size=9)))
        else:
            after = json.dumps(put(whole, data.draw(st.sampled_from(places(whole))), data.draw(VALUES)))
        try:
            memory.conn.execute(f"UPDATE {ident(table)} SET {ident(column)} = ? WHERE rowid = ?", (after, row))
        except (sqlite3.Error, UnicodeEncodeError):
            # The tables themselves refuse that.
            continue
    try:
        for key in importer.sessions(memory):
            sink = Payloads()
            check_all(importer.read(memory, key, sink), sink)
    except OperatorFault:
        # Refused as a whole, by name.
        pass
    finally:
        memory.conn.close()
