"""Large stores of other programs, made up for measuring: one session each, of turns with calls and long results."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from tests.importers.test_pi_harness import Harness, message, tool_result, value
from tests.support.foreign_stores import Flue, GoogleAdk, Langgraph, OpenaiAgents, Opencode, lc, tool_part

Prose = Callable[[random.Random, int], str]

# Table and column of what a program's rows hold: what decoding the same bytes means.
COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "opencode": ("SELECT data FROM message UNION ALL SELECT data FROM part", json.loads),
    "openai-agents": ("SELECT message_data FROM agent_messages", json.loads),
    "google-adk": ("SELECT event_data FROM events", json.loads),
    "langgraph": ("SELECT checkpoint FROM checkpoints", lambda data: msgpack.unpackb(data, strict_map_key=False)),
    "flue": ("SELECT data FROM flue_conversation_stream_batches", json.loads),
}


def turns(choice: random.Random, prose: Prose, target: int) -> Iterator[tuple[int, str, list[tuple[str, str]], str]]:
    """Yield (number, prompt, (call, result) pairs, answer) until about *target* bytes were given."""
    size = number = 0
    while size < target:
        number += 1
        calls = [(prose(choice, 120), prose(choice, choice.choice([300, 9000]))) for _ in range(choice.randint(2, 12))]
        prompt, answer = prose(choice, 300), prose(choice, 900)
        size += len(prompt) + len(answer) + sum(len(call) + len(result) + 900 for call, result in calls)
        yield number, prompt, calls, answer


def codex(path: Path, prose: Prose, target: int) -> None:
    """Write a paginated rollout."""
    choice = random.Random(7)
    ordinal = 0
    with path.open("w", encoding="utf-8") as file:

        def line(kind: str, payload: dict[str, Any]) -> None:
            nonlocal ordinal
            whole = {"timestamp": "2026-11-28T09:00:01.000Z", "ordinal": ordinal, "type": kind, "payload": payload}
            file.write(json.dumps(whole, ensure_ascii=False) + "\n")
            ordinal += 1

        line("session_meta", {"id": "01a22c93-9acb-7e73-b359-7a0b228ebd2e", "cli_version": "0.171.0"})
        for number, prompt, calls, answer in turns(choice, prose, target):
            turn = f"turn-{number}"
            line("event_msg", {"type": "task_started", "turn_id": turn})
            line(
                "response_item",
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]},
            )
            line("event_msg", {"type": "user_message", "message": prompt})
            for at, (command, result) in enumerate(calls):
                call = f"call_{number}_{at}"
                arguments = json.dumps({"cmd": command})
                line(
                    "response_item", {"type": "function_call", "name": "exec", "arguments": arguments, "call_id": call}
                )
                item = {"type": "CommandExecution", "id": call, "aggregated_output": result[:900]}
                line("event_msg", {"type": "item_completed", "turn_id": turn, "item": item})
                line("response_item", {"type": "function_call_output", "call_id": call, "output": result})
            content = [{"type": "output_text", "text": answer}]
            said = {"type": "message", "role": "assistant", "phase": "final_answer", "content": content}
            line("response_item", said)
            line("event_msg", {"type": "task_complete", "turn_id": turn, "last_agent_message": answer})


def pi_harness(path: Path, prose: Prose, target: int) -> None:
    """Write a harness file of version 4."""
    choice = random.Random(7)
    harness = Harness()
    parent: str | None = None
    with path.open("w", encoding="utf-8") as file:
        for number, prompt, calls, answer in turns(choice, prose, target):
            harness.commit(
                message(f"u{number}", parent, {"role": "user", "content": prompt}),
                value("pi.op.meta", f"op{number}", {"intent": {"kind": "run", "promptEntryIds": [f"u{number}"]}}),
            )
            parent = f"u{number}"
            for at, (command, result) in enumerate(calls):
                call = f"c{number}_{at}"
                block = {"type": "toolCall", "id": call, "name": "bash", "arguments": {"command": command}}
                said = {"role": "assistant", "content": [block], "stopReason": "toolUse"}
                harness.commit(message(f"a{number}_{at}", parent, said))
                body = {**tool_result(call), "content": [{"type": "text", "text": result}]}
                harness.commit(message(f"r{number}_{at}", f"a{number}_{at}", body))
                parent = f"r{number}_{at}"
            said = {"role": "assistant", "content": [{"type": "text", "text": answer}], "stopReason": "stop"}
            harness.commit(message(f"a{number}", parent, said), value("pi.branch.tip", "main", f"a{number}"))
            parent = f"a{number}"
            for line in harness.lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            harness.lines.clear()


def opencode(path: Path, prose: Prose, target: int) -> None:
    """Write a database of opencode."""
    store = Opencode(path)
    store.run("CREATE INDEX part_message_id_id_idx ON part (message_id, id)")
    store.run("BEGIN")
    for number, prompt, calls, answer in turns(random.Random(7), prose, target):
        user = f"msg_{number:06d}_0"
        store.user(user, prompt)
        for at, (command, result) in enumerate(calls):
            message_id = f"msg_{number:06d}_1{at:02d}"
            store.assistant(message_id, user, "tool-calls")
            part = tool_part(f"c{number}_{at}", "completed", output=result)
            part["state"]["input"] = {"command": command}
            store.part(f"prt_{number:06d}_{at:02d}", message_id, part)
        store.assistant(f"msg_{number:06d}_2", user, "stop", answer)
    store.run("COMMIT")
    store.close()


def openai_agents(path: Path, prose: Prose, target: int) -> None:
    """Write a database of the Agents SDK."""
    store = OpenaiAgents(path)
    store.run("CREATE INDEX i ON agent_messages (session_id, id)")
    store.run("BEGIN")
    for number, prompt, calls, answer in turns(random.Random(7), prose, target):
        store.add({"role": "user", "content": prompt})
        for at, (command, result) in enumerate(calls):
            call = {"call_id": f"c{number}_{at}"}
            store.add({"type": "function_call", "name": "f", "arguments": json.dumps({"x": command}), **call})
            store.add({"type": "function_call_output", "output": result, **call})
        content = [{"type": "output_text", "text": answer}]
        store.add({"type": "message", "role": "assistant", "content": content})
    store.run("COMMIT")
    store.close()


def google_adk(path: Path, prose: Prose, target: int) -> None:
    """Write a database of ADK."""
    store = GoogleAdk(path).session()
    store.run("BEGIN")
    for number, prompt, calls, answer in turns(random.Random(7), prose, target):
        turn = f"i{number}"
        store.event(f"u{number}", turn, "user", {"text": prompt})
        for at, (command, result) in enumerate(calls):
            call = {"id": f"c{number}_{at}", "name": "f"}
            store.event(f"a{number}_{at}", turn, "root", {"function_call": {**call, "args": {"x": command}}})
            store.event(f"r{number}_{at}", turn, "root", {"function_response": {**call, "response": {"r": result}}})
        store.event(f"a{number}", turn, "root", {"text": answer})
    store.run("COMMIT")
    store.close()


def flue(path: Path, prose: Prose, target: int) -> None:
    """Write a database of Flue."""
    store = Flue(path)
    store.run("BEGIN")
    for number, prompt, calls, answer in turns(random.Random(7), prose, target):
        turn = f"s{number}"
        store.user(turn).batch({"type": "message_metadata", "text": prompt})
        for at, (command, result) in enumerate(calls):
            message_id = f"a{number}_{at}"
            store.response(message_id, turn, f"c{number}_{at}", stop="toolUse", text=command)
            store.outcome(message_id, f"c{number}_{at}", content=[{"type": "text", "text": result}])
        store.response(f"a{number}", turn, text=answer)
        store.batch({"type": "submission_settled", "submissionId": turn, "outcome": "completed"})
    store.run("COMMIT")
    store.close()


def langgraph(path: Path, prose: Prose, target: int) -> None:
    """Write checkpoints: every snapshot holds all messages, so that a few turns make a large database."""
    store = Langgraph(path)
    store.run("BEGIN")
    messages: list[Any] = []
    written = 0
    for number, prompt, calls, answer in turns(random.Random(7), prose, target):
        store.checkpoint(messages, source="input", given=[lc("human", prompt)])
        messages.append(lc("human", prompt, f"h{number}"))
        for at, (command, result) in enumerate(calls):
            call = {"name": "f", "args": {"x": command}, "id": f"c{number}_{at}", "type": "tool_call"}
            messages.append(lc("ai", "", f"a{number}_{at}", tool_calls=[call]))
            store.checkpoint(messages, following=["tools"])
            messages.append(lc("tool", result, f"r{number}_{at}", tool_call_id=f"c{number}_{at}"))
            store.checkpoint(messages, following=["model"])
            written += 2 * sum(len(one.data) for one in messages)
        messages.append(lc("ai", answer, f"a{number}"))
        store.checkpoint(messages)
        if written >= target:
            break
    store.run("COMMIT")
    store.close()


MAKERS: dict[str, Callable[[Path, Prose, int], None]] = {
    "codex": codex,
    "pi-harness": pi_harness,
    "opencode": opencode,
    "openai-agents": openai_agents,
    "google-adk": google_adk,
    "langgraph": langgraph,
    "flue": flue,
}


def values(path: Path, format_name: str) -> Iterator[Any]:
    """Yield what decoding each value of a database gives."""
    query, decode = COLUMNS[format_name]
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for (data,) in conn.execute(query):
        yield decode(data)
    conn.close()
