"""A scripted model and a tool whose effects can be counted, for agents of the real SDK.

The model remembers nothing: what it says follows from the items that it is sent, as with a real one. It is told of
interrupted calls and does what a careful model does: it looks whether the step was done before it does it again. The
tool's effect is a line in a file outside the database, on the disk before the tool returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from agents import Agent, FunctionTool, Model, ModelResponse, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

Point = Callable[[str], None]


def nowhere(_: str) -> None:
    """Let a point pass."""


class Ledger:
    """The effects: one line per execution, synced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: str, call: str) -> None:
        """Do the effect."""
        data = json.dumps({"step": step, "call": call, "at": time.time(), "pid": os.getpid()}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, data.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def lines(self) -> list[dict[str, Any]]:
        """Return the executions so far."""
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def has(self, step: str) -> bool:
        """Tell whether a step's effect is there."""
        return any(line["step"] == step for line in self.lines())


def tools(ledger: Ledger, point: Point = nowhere) -> list[FunctionTool]:
    """Return the tools: one with an effect, one that looks."""

    @function_tool
    async def do_step(ctx: ToolContext[Any], step: str) -> str:
        """Do a step."""
        point("tool begins")
        await asyncio.sleep(0)
        ledger.write(step, ctx.tool_call_id)
        point("tool has had its effect")
        return f"done {step}"

    @function_tool
    def check_step(step: str) -> str:
        """Look whether a step was done."""
        return f"done {step}" if ledger.has(step) else f"not done {step}"

    return [do_step, check_step]


class StepModel(Model):
    """Does the steps that the last prompt names (``steps: a b c``), two at a time, then says so."""

    def __init__(self, point: Point = nowhere, seen: list[list[Any]] | None = None) -> None:
        self._point = point
        self.seen = seen if seen is not None else []

    def decide(self, items: list[Any]) -> list[Any]:
        """Return the response to *items*."""
        prompt = max(n for n, item in enumerate(items) if item.get("role") == "user")
        steps = re.findall(r"\S+", str(items[prompt]["content"]).split("steps:", 1)[-1])
        state = dict(_states(items[prompt:]))
        wanted = []
        for step in steps:
            known = state.get(step, "todo")
            if known == "unknown":
                wanted.append(("check_step", step))
            elif known == "todo":
                wanted.append(("do_step", step))
        if not wanted:
            return [assistant_message(f"all done: {' '.join(steps)}")]
        return [
            assistant_message("let me see"),
            *(function_call(name, {"step": step}, call_id=f"call-{uuid4().hex[:12]}") for name, step in wanted[:2]),
        ]

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        """Answer."""
        self._point("model is asked")
        return await self._script(given, named).get_response(*given, **named)

    async def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        """Answer in pieces."""
        self._point("model is asked")
        async for event in self._script(given, named).stream_response(*given, **named):
            self._point("model says something")
            yield event

    def _script(self, given: tuple[Any, ...], named: dict[str, Any]) -> ScriptedModel:
        items = list(named["input"] if "input" in named else given[1])
        self.seen.append(items)
        return ScriptedModel([self.decide(items)])


def _states(items: list[Any]) -> Iterator[tuple[str, str]]:
    steps = {}
    for item in items:
        if item.get("type") == "function_call" and item["name"] in ("do_step", "check_step"):
            steps[item["call_id"]] = json.loads(item["arguments"])["step"]
        if item.get("type") == "function_call_output" and item["call_id"] in steps:
            output = str(item["output"])
            if output.startswith("done"):
                yield steps[item["call_id"]], "done"
            elif output.startswith("not done"):
                yield steps[item["call_id"]], "todo"
            elif "unknown" in output:
                yield steps[item["call_id"]], "unknown"
            # "Never started" says nothing of the step: what was known before (that a look is needed) still holds.


class FrontModel(StepModel):
    """Hands each prompt over to the worker."""

    def decide(self, items: list[Any]) -> list[Any]:
        """Return the handoff. Whoever handed over is not asked again, whatever crashed since."""
        prompt = max(n for n, item in enumerate(items) if item.get("role") == "user")
        if any('"assistant"' in str(item.get("output")) for item in items[prompt:]):
            raise AssertionError("the agent that handed over was asked again")
        return [function_call("transfer_to_worker", {}, call_id=f"call-{uuid4().hex[:12]}")]


def agents(ledger: Ledger, point: Point = nowhere, seen: list[list[Any]] | None = None) -> Agent[Any]:
    """Return the front agent, which hands over to the one that has the tools."""
    worker = Agent(name="worker", model=StepModel(point, seen), tools=list(tools(ledger, point)))
    return Agent(name="front", model=FrontModel(point, seen), handoffs=[worker])
