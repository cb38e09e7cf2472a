"""The SDK's run hooks, as a recorder: calls are durable before a tool starts, results before the model is asked again.

The SDK awaits ``on_llm_end`` after it has read the response and before it starts any tool, streamed or not, and
``on_tool_start`` in each tool's own task right before the tool (0.24: ``get_single_step_result_from_response`` and
``_execute_single_tool_body``). A response without calls is kept back until the run came through: output guardrails and
handlers come after it and may refuse it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agents import (
    Agent,
    AgentHookContext,
    Handoff,
    ItemHelpers,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Tool,
    TResponseInputItem,
    UserError,
)

from reconciler.core.model import CONTENT_NONE, CONTENT_REASONING, NewEntry
from reconciler.errors import AttemptLost, InvalidInput
from reconciler.integrations.agents_errors import ResultNotStorable, ToolUnsupported
from reconciler.integrations.agents_items import (
    Item,
    content_of,
    function_calls,
    output_item,
    response_payload,
    result_payload,
    unsupported_call,
)
from reconciler.service.attempt import Attempt

T = TypeVar("T")
# Runs a blocking call of the Runner API off the event loop, one after the other, and to its end.
Caller = Callable[[Callable[[], T]], Awaitable[T]]

_IGNORED_HANDOFF = "Multiple handoffs detected, ignoring this one."


class Recorder(RunHooks[Any]):
    """Records one attempt. ``fault`` is the first thing that could not be recorded: the run is over then.

    The user's own hooks are called too: before a tool starts before ours, everywhere else after ours.
    """

    def __init__(
        self, attempt: Attempt, call: Caller[Any], hooks: RunHooks[Any] | None, run_config: RunConfig | None
    ) -> None:
        self._attempt = attempt
        self._call = call
        self._hooks: RunHooks[Any] = hooks if hooks is not None else RunHooks()
        self._guarded = bool(run_config is not None and run_config.output_guardrails)
        self.fault: BaseException | None = None
        # Nothing may be started any more.
        self.closed = False
        # The model was asked and has not answered: what is raised now comes from its provider.
        self.in_model = False
        # A response without calls, and who gave it.
        self.held: tuple[list[Item], str] | None = None
        # Calls of the last response without a recorded result: id to name.
        self.open: dict[str, str] = {}
        self._batch: frozenset[str] = frozenset()
        self.agent: str | None = None

    # --- the model ---------------------------------------------------------------------------------------------------

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        """Append what the last step left, before the model is asked again."""
        self._check()
        if self.held is not None:
            # It was not the end: the SDK asks on.
            (items, name), self.held = self.held, None
            await self._append(_unfinished(items, name))
        for item in input_items:
            found: Any = item
            if found.get("type") == "function_call_output" and found.get("call_id") in self.open:
                # Answered without running: refused by a guardrail, or no such tool.
                await self._result(str(found["call_id"]), dict(found))
        self.in_model = True
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Append the response with its calls: no tool has started yet."""
        self._check()
        self.in_model = False
        items: list[Item] = [dict(item) for item in response.to_input_items()]
        self.agent = agent.name
        if (kind := unsupported_call(items)) is not None:
            self.fault = ToolUnsupported(f'cannot run a "{kind}" of agent "{agent.name}" durably')
            raise self.fault
        calls = function_calls(items)
        if not calls:
            self.held = (items, agent.name)
        else:
            await self._append(_response(items, agent.name, "tool_use", tuple(calls)))
            self.open = calls
            self._batch = frozenset(calls.values())
        await self._hooks.on_llm_end(context, agent, response)

    # --- tools -------------------------------------------------------------------------------------------------------

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        """Make the start durable: the tool runs when this returns, and doesn't when it raises."""
        await self._hooks.on_tool_start(context, agent, tool)
        self._check()
        call_id = getattr(context, "tool_call_id", None)
        if not isinstance(call_id, str):
            self.fault = ToolUnsupported(f'cannot start tool "{tool.name}" durably: it is no function tool')
            raise self.fault
        await self._write(lambda: self._attempt.start(call_id))

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        """Append the result."""
        self._check()
        call: Any = getattr(context, "tool_call", None)
        call_id: str = call.call_id
        try:
            await self._result(call_id, _output(call, tool, result), ends_turn=self._ends_turn(agent))
        except InvalidInput as error:
            # It has run, and the record must say so: a call without a result would look as if nobody knew.
            told = f"the tool ran, but its result cannot be stored: {error.message}"
            self.fault = None
            await self._result(call_id, output_item(call_id, told))
            self.fault = ResultNotStorable(
                f'cannot store the result of call "{call_id}" of tool "{tool.name}": {error.message}'
            )
            raise self.fault from error
        await self._hooks.on_tool_end(context, agent, tool, result)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        """Append the results of the handoff calls: the first one counts, as the SDK has it."""
        self._check()
        messages: dict[str, str] = {}
        for one in from_agent.handoffs:
            if isinstance(one, Handoff):
                messages[one.tool_name] = one.get_transfer_message(to_agent)
            else:
                messages[Handoff.default_tool_name(one)] = json.dumps({"assistant": to_agent.name})
        taken = False
        for call_id, name in list(self.open.items()):
            if name in messages:
                text = _IGNORED_HANDOFF if taken else messages[name]
                await self._result(call_id, output_item(call_id, text), handed_to=to_agent.name)
                taken = True
        self.agent = to_agent.name
        await self._hooks.on_handoff(context, from_agent, to_agent)

    # --- the user's own ----------------------------------------------------------------------------------------------

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Any) -> None:
        """Pass on."""
        await self._hooks.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Any, output: Any) -> None:
        """Pass on."""
        await self._hooks.on_agent_end(context, agent, output)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def finish(self, final_output: object) -> None:
        """Append the answer: the response that was kept back, or the value that a tool or a handler gave instead."""
        if self.held is not None:
            items, name = self.held
            await self._append(_response(items, name, "stop"))
            return
        payload = {**response_payload([], self.agent or ""), "final_output": str(final_output)}
        entry = NewEntry("assistant", payload, stop_reason="stop", content=CONTENT_NONE)
        await self._append(entry)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault
        if self.closed or self._attempt.lost.is_set():
            self.fault = AttemptLost(f"{self._attempt!r} is over: nothing further is recorded, and nothing started")
            raise self.fault

    async def _write(self, work: Callable[[], Any]) -> None:
        try:
            await self._call(work)
        except Exception as error:
            self.fault = self.fault or error
            raise

    async def _append(self, entry: NewEntry) -> None:
        await self._write(lambda: self._attempt.append([entry]))

    async def _result(self, call_id: str, item: Item, *, ends_turn: bool = False, handed_to: str | None = None) -> None:
        payload = result_payload(item, handed_to)
        await self._append(NewEntry("tool_result", payload, tool_call_id=call_id, ends_turn=ends_turn))
        self.open.pop(call_id, None)

    def _ends_turn(self, agent: Agent[Any]) -> bool:
        """Tell whether this batch surely ends the run: where guardrails or handoffs have a say, it doesn't."""
        if self._guarded or agent.output_guardrails or agent.handoffs:
            return False
        behavior: Any = agent.tool_use_behavior
        if isinstance(behavior, dict):
            return not self._batch.isdisjoint(behavior.get("stop_at_tool_names", ()))
        return bool(behavior == "stop_on_first_tool")


def _response(items: list[Item], agent: str, stop_reason: str, calls: tuple[str, ...] = ()) -> NewEntry:
    return NewEntry(
        "assistant",
        response_payload(items, agent),
        stop_reason=stop_reason,
        tool_call_ids=calls,
        content=content_of(items),
        starts_logged=bool(calls),
    )


def _unfinished(items: list[Item], agent: str) -> NewEntry:
    """Return a response without calls after which the model is asked on.

    It is no answer. What it holds beside words (a hosted tool's run) is the model's all the same: it is never bare.
    """
    content = content_of(items)
    return NewEntry(
        "assistant",
        response_payload(items, agent),
        stop_reason="aborted",
        content=CONTENT_REASONING if content == CONTENT_NONE else content,
    )


def _output(call: Any, tool: Tool, result: object) -> Item:
    """Return the result's item, as the SDK writes it for the model."""
    try:
        item = ItemHelpers.tool_call_output_item(
            call,
            result,
            output_json_schema=getattr(tool, "output_json_schema", None),
            output_type_adapter=getattr(tool, "_output_type_adapter", None),
        )
    except UserError:
        # The text of a failure, which no schema holds for.
        item = ItemHelpers.tool_call_output_item(call, result)
    except Exception as error:
        raise InvalidInput(f"its text can't be had: {type(error).__name__}: {error}") from error
    return dict(item)
