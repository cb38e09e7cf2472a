"""Databases as other programs make them, row by row, for tests: the tables as their programs' own sources have them.

On SQLite files, and on PostgreSQL where a program keeps its sessions there too. Nothing here is copied from anybody's
data.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import psycopg

from reconciler.importers.base import ImportedSession, ImportResult, NullSink, PayloadSink
from reconciler.importers.detect import DATABASE_IMPORTERS
from reconciler.importers.foreign_database import opened_sqlite


class Store:
    """A database that is being filled; on SQLite a file, on PostgreSQL whatever the URL names."""

    def __init__(self, where: Path | str) -> None:
        self.name = str(where)
        self.is_postgresql = self.name.startswith("postgresql")
        self._pg = psycopg.connect(self.name.replace("+psycopg", ""), autocommit=True) if self.is_postgresql else None
        self._lite = None if self.is_postgresql else sqlite3.connect(self.name, isolation_level=None)
        if self._lite is not None:
            self._lite.execute("PRAGMA synchronous=OFF")

    def run(self, sql: str, *params: Any) -> None:
        """Run a statement; parameters are written as ``?``."""
        if self._pg is not None:
            self._pg.execute(sql.replace("?", "%s"), params)
        elif self._lite is not None:
            self._lite.execute(sql, params)

    def close(self) -> None:
        """Close it: nothing is left beside the file."""
        for conn in (self._pg, self._lite):
            if conn is not None:
                conn.close()


def read_database(path: Path | str, format_name: str, sink: PayloadSink | None = None) -> list[ImportResult]:
    """Read all sessions of an SQLite file with the importer of a format."""
    importer = DATABASE_IMPORTERS[format_name]()
    with opened_sqlite(str(path)) as rows:
        keys = rows.snapshot(lambda: list(importer.sessions(rows)))
        return [
            rows.snapshot(lambda key=key: importer.read(rows, key, sink if sink is not None else NullSink()))  # type: ignore[misc]
            for key in keys
        ]


def session_of(path: Path | str, format_name: str) -> ImportedSession:
    """Read the only session of an SQLite file."""
    (result,) = read_database(path, format_name)
    (session,) = result.sessions
    return session


# --- opencode --------------------------------------------------------------------------------------------------------


class Opencode(Store):
    """opencode's tables of 1.18, as far as sessions need them."""

    SESSION = "ses_1"

    def __init__(self, where: Path | str, *, version: str = "1.18.33", tables: bool = True) -> None:
        super().__init__(where)
        self.at = 1_796_044_290_000
        if tables:
            self.run(
                "CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text, directory text"
                " NOT NULL, version text NOT NULL, revert text, permission text, time_created integer NOT NULL)"
            )
            self.run(
                "CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL,"
                " time_updated integer NOT NULL, data text NOT NULL)"
            )
            self.run(
                "CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL,"
                " time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL)"
            )
            self.run(
                "CREATE TABLE session_message (id text PRIMARY KEY, session_id text, type text, seq integer, data text)"
            )
            self.run(
                "CREATE TABLE session_input (id text PRIMARY KEY, session_id text, prompt text, delivery text,"
                " admitted_seq integer, promoted_seq integer, time_created integer)"
            )
            self.session(version=version)

    def session(self, session_id: str = SESSION, *, version: str = "1.18.33", parent: str | None = None) -> Opencode:
        """Add a session."""
        self.run(
            "INSERT INTO session VALUES (?, 'global', ?, '/srv/shop', ?, NULL, NULL, ?)",
            session_id,
            parent,
            version,
            self.at,
        )
        return self

    def message(self, message_id: str, data: dict[str, Any], session_id: str = SESSION) -> Opencode:
        """Add a message."""
        self.at += 10
        self.run(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?)", message_id, session_id, self.at, self.at, json.dumps(data)
        )
        return self

    def part(self, part_id: str, message_id: str, data: object, session_id: str = SESSION) -> Opencode:
        """Add a part; what is text already stands as it is."""
        text = data if isinstance(data, str) else json.dumps(data)
        self.at += 1
        self.run("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", part_id, message_id, session_id, self.at, self.at, text)
        return self

    def change(self, part_id: str, data: dict[str, Any]) -> Opencode:
        """Rewrite a part in place."""
        self.run("UPDATE part SET data = ? WHERE id = ?", json.dumps(data), part_id)
        return self

    def user(self, message_id: str, text: str = "do it", **more: Any) -> Opencode:
        """Add a prompt."""
        self.message(message_id, {"role": "user", "time": {"created": self.at}}, **more)
        return self.part(f"prt_{message_id}", message_id, {"type": "text", "text": text}, **more)

    def assistant(
        self, message_id: str, answers: str, finish: str | None = None, text: str | None = None, **info: Any
    ) -> Opencode:
        """Add a response: open, where it has no finish."""
        times = {"created": self.at, **({"completed": self.at} if finish is not None else {})}
        data: dict[str, Any] = {"role": "assistant", "parentID": answers, "time": times, **info}
        if finish is not None:
            data["finish"] = finish
        self.message(message_id, data)
        if text is not None:
            self.part(f"prt_{message_id}_0", message_id, {"type": "text", "text": text})
        return self

    def tool(self, part_id: str, message_id: str, call: str, status: str, **state: Any) -> Opencode:
        """Add a tool part."""
        return self.part(part_id, message_id, tool_part(call, status, **state))


def tool_part(call: str, status: str, **state: Any) -> dict[str, Any]:
    """Return a tool part's data."""
    began = {"time": {"start": 1_796_044_290_500}} if status != "pending" else {}
    return {
        "type": "tool",
        "tool": "bash",
        "callID": call,
        "state": {"status": status, "input": {"command": "ls"}, **began, **state},
    }


# --- OpenAI Agents SDK -----------------------------------------------------------------------------------------------


class OpenaiAgents(Store):
    """The tables of a session of the Agents SDK."""

    def __init__(
        self,
        where: Path | str,
        *,
        sessions: str = "agent_sessions",
        messages: str = "agent_messages",
        alchemy: bool = False,
    ) -> None:
        super().__init__(where)
        self.sessions, self.messages = sessions, messages
        key = "INTEGER PRIMARY KEY" if alchemy else "INTEGER PRIMARY KEY AUTOINCREMENT"
        if self.is_postgresql:
            key = "SERIAL PRIMARY KEY"
        self.run(
            f"CREATE TABLE {sessions} (session_id TEXT PRIMARY KEY, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
            " updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
        )
        self.run(
            f"CREATE TABLE {messages} (id {key}, session_id TEXT NOT NULL, message_data TEXT NOT NULL,"
            " created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
        )

    def add(self, *items: object, session: str = "chat", at: str = "2026-11-30 13:00:00") -> OpenaiAgents:
        """Add items; what is text already stands as it is."""
        self.run(f"INSERT INTO {self.sessions} (session_id) VALUES (?) ON CONFLICT DO NOTHING", session)
        for item in items:
            text = item if isinstance(item, str) else json.dumps(item)
            self.run(
                f"INSERT INTO {self.messages} (session_id, message_data, created_at) VALUES (?, ?, ?)",
                session,
                text,
                at,
            )
        return self


USER: dict[str, Any] = {"role": "user", "content": "do it"}


def said(text: str) -> dict[str, Any]:
    """Return an assistant's message as an item."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call_item(call: str) -> dict[str, Any]:
    """Return a call as an item."""
    return {"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"}


def output_item(call: str) -> dict[str, Any]:
    """Return a call's result as an item."""
    return {"type": "function_call_output", "call_id": call, "output": "ok"}


# --- Google ADK ------------------------------------------------------------------------------------------------------


class GoogleAdk(Store):
    """ADK's tables, of schema version 1 or 0."""

    def __init__(self, where: Path | str, *, version: str | None = "1") -> None:
        super().__init__(where)
        self.version = version
        self.at = 1_796_043_600.0
        stamp, data = ("TIMESTAMP", "JSONB") if self.is_postgresql else ("DATETIME", "TEXT")
        if version is not None and version != "0":
            self.run('CREATE TABLE adk_internal_metadata ("key" VARCHAR(128) PRIMARY KEY, value VARCHAR(256) NOT NULL)')
            self.run("INSERT INTO adk_internal_metadata VALUES ('schema_version', ?)", version)
        self.run(
            "CREATE TABLE sessions (app_name VARCHAR(128), user_id VARCHAR(128), id VARCHAR(128), state TEXT NOT NULL,"
            f" create_time {stamp}, update_time {stamp}, PRIMARY KEY (app_name, user_id, id))"
        )
        more = f"event_data {data}"
        if version == "0":
            more = (
                "author VARCHAR(256), actions BLOB, long_running_tool_ids_json TEXT, branch VARCHAR(256), content TEXT,"
                " partial BOOLEAN, turn_complete BOOLEAN, error_code VARCHAR(256), error_message TEXT,"
                " interrupted BOOLEAN"
            )
        self.run(
            "CREATE TABLE events (id VARCHAR(128), app_name VARCHAR(128), user_id VARCHAR(128),"
            f" session_id VARCHAR(128), invocation_id VARCHAR(256), timestamp {stamp} NOT NULL, {more},"
            " PRIMARY KEY (id, app_name, user_id, session_id))"
        )

    def session(self, session_id: str = "s1", *, app: str = "shop", user: str = "ann") -> GoogleAdk:
        """Add a session."""
        self.run(
            "INSERT INTO sessions VALUES (?, ?, ?, '{}', '2026-11-30 13:00:00', '2026-11-30 13:00:00')",
            app,
            user,
            session_id,
        )
        return self

    def event(self, event_id: str, invocation: str, author: str, *parts: dict[str, Any], **more: Any) -> GoogleAdk:
        """Add an event of version 1 to the session s1."""
        self.at += 1
        role = "user" if author == "user" or any("function_response" in part for part in parts) else "model"
        value: dict[str, Any] = {"id": event_id, "invocation_id": invocation, "author": author, "timestamp": self.at}
        if parts:
            value["content"] = {"role": role, "parts": list(parts)}
        self.run(
            "INSERT INTO events VALUES (?, 'shop', 'ann', 's1', ?, '2026-11-30 13:00:00', ?)",
            event_id,
            invocation,
            json.dumps({**value, **more}),
        )
        return self

    def old_event(
        self, event_id: str, invocation: str, author: str, *parts: dict[str, Any], actions: bytes = b"", **more: Any
    ) -> GoogleAdk:
        """Add an event of version 0 to the session s1; ``actions`` is what was pickled."""
        self.at += 1
        content = json.dumps({"role": "model", "parts": list(parts)}) if parts else None
        self.run(
            "INSERT INTO events (id, app_name, user_id, session_id, invocation_id, timestamp, author, actions, content,"
            " error_code, long_running_tool_ids_json) VALUES (?, 'shop', 'ann', 's1', ?, ?, ?, ?, ?, ?, ?)",
            event_id,
            invocation,
            f"2026-11-30 13:00:{int(self.at) % 60:02d}",
            author,
            actions,
            content,
            more.get("error_code"),
            more.get("long_running"),
        )
        return self


def adk_text(text: str) -> dict[str, Any]:
    """Return a text part."""
    return {"text": text}


def adk_call(call: str, name: str = "f") -> dict[str, Any]:
    """Return a part with a call."""
    return {"function_call": {"id": call, "name": name, "args": {}}}


def adk_result(call: str) -> dict[str, Any]:
    """Return a part with a result."""
    return {"function_response": {"id": call, "name": "f", "response": {"r": 1}}}


# --- LangGraph -------------------------------------------------------------------------------------------------------


def lc(kind: str, content: object, message_id: str | None = None, **more: Any) -> msgpack.ExtType:
    """Return a message as LangGraph's serializer writes it."""
    name = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage", "system": "SystemMessage"}[kind]
    fields = {"content": content, "type": kind, "id": message_id, **more}
    return packed_object(f"langchain_core.messages.{kind}", name, fields)


def packed_object(module: str, name: str, fields: object, code: int = 5) -> msgpack.ExtType:
    """Return an object of any class, as the serializer writes it."""
    return msgpack.ExtType(code, msgpack.packb([module, name, fields, "model_validate_json"]))


def lc_calls(*calls: str) -> list[dict[str, Any]]:
    """Return the tool calls of a message."""
    return [{"name": "f", "args": {}, "id": call, "type": "tool_call"} for call in calls]


class Langgraph(Store):
    """The tables of SqliteSaver, or of PostgresSaver."""

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self.number = 0
        key = "thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT ''"
        if self.is_postgresql:
            self.run(
                f"CREATE TABLE checkpoints ({key}, checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT,"
                " checkpoint JSONB NOT NULL, metadata JSONB NOT NULL DEFAULT '{}')"
            )
            self.run(
                f"CREATE TABLE checkpoint_blobs ({key}, channel TEXT NOT NULL, version TEXT NOT NULL,"
                " type TEXT NOT NULL, blob BYTEA)"
            )
            self.run(
                f"CREATE TABLE checkpoint_writes ({key}, checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL,"
                " idx INTEGER NOT NULL, channel TEXT NOT NULL, type TEXT, blob BYTEA NOT NULL, task_path TEXT)"
            )
        else:
            self.run(
                f"CREATE TABLE checkpoints ({key}, checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT,"
                " checkpoint BLOB, metadata BLOB)"
            )
            self.run(
                f"CREATE TABLE writes ({key}, checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, task_path TEXT,"
                " idx INTEGER NOT NULL, channel TEXT NOT NULL, type TEXT, value BLOB)"
            )

    def checkpoint(
        self,
        messages: Sequence[Any] | None = None,
        *,
        source: str = "loop",
        parent: str | None = "",
        given: Sequence[Any] | None = None,
        following: Iterable[str] = (),
        thread: str = "t1",
        kind: str = "msgpack",
        raw: bytes | None = None,
        **values: Any,
    ) -> str:
        """Add a snapshot behind the last one, and return its id."""
        last = f"cp-{self.number:04d}" if self.number else None
        self.number += 1
        checkpoint_id = f"cp-{self.number:04d}"
        above = last if parent == "" else parent
        channels: dict[str, Any] = {**values, **{f"branch:to:{node}": None for node in following}}
        blobs: dict[str, Any] = {}
        if messages is not None:
            blobs["messages"] = list(messages)
        if given is not None:
            blobs["__start__"] = {"messages": list(given)}
        versions = dict.fromkeys((*channels, *blobs), f"{self.number:08d}")
        value: dict[str, Any] = {"v": 4, "id": checkpoint_id, "ts": "2026-11-30T13:00:00+00:00"}
        value |= {"channel_versions": versions, "versions_seen": {}}
        meta = json.dumps({"source": source, "step": self.number, "parents": {}})
        if self.is_postgresql:
            for channel, blob in blobs.items():
                self.run(
                    "INSERT INTO checkpoint_blobs VALUES (?, '', ?, ?, 'msgpack', ?)",
                    thread,
                    channel,
                    versions[channel],
                    msgpack.packb(blob),
                )
            self.run(
                "INSERT INTO checkpoints VALUES (?, '', ?, ?, NULL, ?, ?)",
                thread,
                checkpoint_id,
                above,
                json.dumps({**value, "channel_values": channels}),
                meta,
            )
            return checkpoint_id
        data = raw if raw is not None else msgpack.packb({**value, "channel_values": {**channels, **blobs}})
        self.run(
            "INSERT INTO checkpoints VALUES (?, '', ?, ?, ?, ?, ?)",
            thread,
            checkpoint_id,
            above,
            kind,
            data,
            meta.encode(),
        )
        return checkpoint_id

    def write(self, task: str, index: int, channel: str, value: Any, *, thread: str = "t1") -> Langgraph:
        """Add what a task of the last checkpoint wrote."""
        checkpoint_id = f"cp-{self.number:04d}"
        if self.is_postgresql:
            self.run(
                "INSERT INTO checkpoint_writes VALUES (?, '', ?, ?, ?, ?, 'msgpack', ?, '')",
                thread,
                checkpoint_id,
                task,
                index,
                channel,
                msgpack.packb(value),
            )
        else:
            self.run(
                "INSERT INTO writes VALUES (?, '', ?, ?, '', ?, ?, 'msgpack', ?)",
                thread,
                checkpoint_id,
                task,
                index,
                channel,
                msgpack.packb(value),
            )
        return self


# --- Flue ------------------------------------------------------------------------------------------------------------


class Flue(Store):
    """Flue's tables of format version 1, with one stream."""

    PATH = "agents/shop/one"
    KEY = 'agent-session:["shop","one","default","default"]'

    def __init__(self, where: Path | str, *, version: str | None = "1") -> None:
        super().__init__(where)
        self.seq = 0
        self.records = 0
        self.run("CREATE TABLE flue_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        if version is not None:
            self.run("INSERT INTO flue_meta VALUES ('format_version', ?)", version)
        self.run(
            "CREATE TABLE flue_conversation_streams (path TEXT PRIMARY KEY, identity_json TEXT NOT NULL,"
            " next_offset INTEGER NOT NULL DEFAULT 0, incarnation TEXT NOT NULL)"
        )
        self.run(
            "CREATE TABLE flue_conversation_stream_batches (path TEXT NOT NULL, seq INTEGER NOT NULL,"
            " producer_id TEXT NOT NULL, data TEXT NOT NULL, submission_id TEXT, attempt_id TEXT,"
            " PRIMARY KEY (path, seq))"
        )
        self.run(
            "CREATE TABLE flue_conversation_stream_batch_chunks (path TEXT NOT NULL, seq INTEGER NOT NULL,"
            " chunk_index INTEGER NOT NULL, chunk_count INTEGER NOT NULL, data TEXT NOT NULL)"
        )
        sequence = "SERIAL PRIMARY KEY" if self.is_postgresql else "INTEGER PRIMARY KEY AUTOINCREMENT"
        self.run(
            f"CREATE TABLE flue_agent_submissions (sequence {sequence}, submission_id TEXT NOT NULL UNIQUE,"
            " session_key TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL, status TEXT NOT NULL,"
            " abort_requested_at BIGINT, error TEXT, settlement_record TEXT)"
        )
        self.run("INSERT INTO flue_conversation_streams VALUES (?, '{}', 0, 'x')", self.PATH)
        self.batch({"type": "conversation_created", "kind": "root"})

    def record(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a whole record."""
        self.records += 1
        return {
            "v": 1,
            "id": f"record_{self.records}",
            "conversationId": "conv_1",
            "harness": "default",
            "session": "default",
            "timestamp": "2026-11-30T13:00:00.000Z",
            **fields,
        }

    def batch(self, *records: dict[str, Any], chunks: int = 0) -> Flue:
        """Append records as one batch, in *chunks* where it is large."""
        self.seq += 1
        text = json.dumps([self.record(fields) for fields in records])
        stored = text
        if chunks:
            stored = json.dumps({"$flueChunkCount": chunks})
            size = len(text) // chunks + 1
            for number in range(chunks):
                self.run(
                    "INSERT INTO flue_conversation_stream_batch_chunks VALUES (?, ?, ?, ?, ?)",
                    self.PATH,
                    self.seq,
                    number,
                    chunks,
                    text[number * size : (number + 1) * size],
                )
        self.run(
            "INSERT INTO flue_conversation_stream_batches VALUES (?, ?, 'p', ?, NULL, NULL)",
            self.PATH,
            self.seq,
            stored,
        )
        return self

    def submission(self, submission_id: str, status: str, **more: Any) -> Flue:
        """Add a submission's row."""
        self.run(
            "INSERT INTO flue_agent_submissions (submission_id, session_key, kind, payload, status, abort_requested_at,"
            " error, settlement_record) VALUES (?, ?, 'direct', '{\"body\": \"do it\"}', ?, ?, ?, ?)",
            submission_id,
            self.KEY,
            status,
            more.get("abort_requested_at"),
            more.get("error"),
            more.get("settlement_record"),
        )
        return self

    def user(self, submission_id: str) -> Flue:
        """Append a submission's input."""
        return self.batch(
            {
                "type": "user_message",
                "id": f"record_direct_input_{submission_id}",
                "messageId": f"m_{submission_id}",
                "parentId": None,
                "submissionId": submission_id,
                "content": [{"type": "text", "text": "do it"}],
            }
        )

    def response(
        self, message_id: str, submission_id: str, *calls: str, stop: str | None = "stop", text: str = "working"
    ) -> Flue:
        """Append a response, whole or (without a stop) cut off."""
        records: list[dict[str, Any]] = [
            {
                "type": "assistant_message_started",
                "messageId": message_id,
                "parentId": None,
                "modelInfo": {},
                "submissionId": submission_id,
            },
            {"type": "assistant_text_delta", "messageId": message_id, "blockId": "b", "sequence": 0, "delta": text},
        ]
        records += [
            {"type": "assistant_tool_call", "messageId": message_id, "toolCallId": call, "name": "f", "arguments": {}}
            for call in calls
        ]
        if stop is not None:
            records.append(
                {"type": "assistant_message_completed", "messageId": message_id, "stopReason": stop, "usage": {}}
            )
        return self.batch(*records)

    def outcome(self, message_id: str, call: str, **more: Any) -> Flue:
        """Append what came of a call."""
        return self.batch(
            {
                "type": "tool_outcome",
                "assistantMessageId": message_id,
                "toolCallId": call,
                "toolName": "f",
                "isError": False,
                "content": [],
                **more,
            }
        )


# --- pi, SQLite ------------------------------------------------------------------------------------------------------


class PiSqlite(Store):
    """The tables of pi's SQLite backend."""

    def __init__(self, where: Path | str, *, active: str | None = None) -> None:
        super().__init__(where)
        self.seq = 0
        self.run(
            "CREATE TABLE sessions (id TEXT PRIMARY KEY, created_at TEXT, cwd TEXT, parent_session_id TEXT,"
            " metadata TEXT, active_leaf_id TEXT)"
        )
        self.run(
            "CREATE TABLE session_entries (session_id TEXT, id TEXT, entry_seq INTEGER, parent_id TEXT, type TEXT,"
            " timestamp TEXT, payload TEXT, PRIMARY KEY (session_id, id))"
        )
        self.run("INSERT INTO sessions VALUES ('pi-1', '2026-11-30', '/srv/shop', NULL, NULL, ?)", active)

    def entry(self, entry_id: str, parent: str | None, message: dict[str, Any]) -> PiSqlite:
        """Add a message entry and make it the active leaf."""
        self.seq += 1
        self.run(
            "INSERT INTO session_entries VALUES ('pi-1', ?, ?, ?, 'message', '2026-11-30T13:00:00.000Z', ?)",
            entry_id,
            self.seq,
            parent,
            json.dumps({"message": message}),
        )
        self.run("UPDATE sessions SET active_leaf_id = ?", entry_id)
        return self
