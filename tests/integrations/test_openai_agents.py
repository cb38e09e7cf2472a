"""The durable session with the real SDK and a scripted model, on both databases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import sqlalchemy as sa
from agents import (
    Agent,
    GuardrailFunctionOutput,
    LocalShellTool,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Session,
    SessionSettings,
    Tool,
    function_tool,
    input_guardrail,
    output_guardrail,
    set_tracing_disabled,
)
from agents import (
    Runner as SdkRunner,
)
from agents.exceptions import InputGuardrailTripwireTriggered, MaxTurnsExceeded
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction
from pydantic import BaseModel
from sqlalchemy.engine import Engine

from reconciler import Attempt, Conflict, DatabaseUnavailable, InvalidInput, Limits, NotFound, Runner
from reconciler.integrations import agents_turn, agents_version
from reconciler.integrations.openai_agents import (
    AgentUnknown,
    ApprovalUnsupported,
    DurableSession,
    ForeignSubmission,
    NotWriteAhead,
    ResultNotStorable,
    RunAborted,
    RunFailed,
    SdkUnsupported,
    SessionBusy,
    ToolUnsupported,
)
from reconciler.service.reconcile import reconcile_once
from reconciler.store.engine import begin, read
from reconciler.store.schema import attempts, entries, submissions
from reconciler.store.schema import metadata as tables
from tests.support.checker import check, report

# No pause between tries.
SOON = Limits(backoff_base_s=1e-6, provider_backoff_base_s=1e-6, capability_backoff_s=1e-6)


class Place:
    """A database, and what is on record in it."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine

    def open(self, session_id: str = "s", **settings: Any) -> DurableSession:
        """Return a session with a Runner of its own, which beats often."""
        given: dict[str, Any] = {"wait_s": 10.0, "limits": SOON, "notify": False, "lease_s": 5.0, "beat_s": 0.2}
        return DurableSession(session_id, self.url, **{**given, **settings})

    def decide(self, limits: Limits = SOON) -> None:
        """Let a pass decide."""
        reconcile_once(self.engine, limits=limits)

    def row(self, submission_id: str, session_id: str = "s") -> Any:
        """Return a submission's row."""
        with read(self.engine) as conn:
            return conn.execute(
                sa.select(submissions).where(submissions.c.session_id == session_id, submissions.c.id == submission_id)
            ).one()

    def outcome(self, submission_id: str, session_id: str = "s") -> str | None:
        """Return a submission's outcome."""
        found: str | None = self.row(submission_id, session_id).outcome
        return found

    def kinds(self, session_id: str = "s") -> list[str]:
        """Return what stands on record, in order: a role, or another kind."""
        with read(self.engine) as conn:
            rows = conn.execute(sa.select(entries).where(entries.c.session_id == session_id).order_by(entries.c.seq))
            return [row.role or row.kind for row in rows]


@pytest.fixture(autouse=True)
def _untraced() -> None:
    set_tracing_disabled(True)


@pytest.fixture
def place(database_url: str, engine: Engine) -> Iterator[Place]:
    """Give a place, and judge what the test left in it."""
    yield Place(database_url, engine)
    found = check(database_url)
    assert not found, report(found)


def play(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine, for a minute at most."""

    async def limited() -> Any:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(limited())


def calc(*script: Any, tools: tuple[Tool, ...] = (), **more: Any) -> Agent[Any]:
    """Return an agent whose model says *script*."""
    return Agent(name="calc", model=ScriptedModel(list(script)), tools=list(tools), **more)


async def answer(session: DurableSession, agent: Agent[Any], streamed: bool) -> Any:
    """Run one submission, one way or the other."""
    if not streamed:
        return (await session.run(agent, "?", submission_id="one")).final_output
    stream = session.run_streamed(agent, "?", submission_id="one")
    async for _ in stream.stream_events():
        pass
    return stream.final_output


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


USER = {"role": "user", "content": "größer als 😀?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "3"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "…"}]}
SAID = {"role": "assistant", "content": "3"}


# --- the protocol ----------------------------------------------------------------------------------------------------


def test_a_durable_session_is_a_session_of_the_sdk(place: Place) -> None:
    with place.open() as session:
        assert isinstance(session, Session)


def test_items_come_back_as_they_were_added_and_in_order(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            assert await session.get_items() == []
            await session.add_items([USER])  # type: ignore[list-item]
            await session.add_items([REASONING, CALL, OUTPUT, SAID])  # type: ignore[list-item]
            await session.add_items([])
            assert await session.get_items() == [USER, REASONING, CALL, OUTPUT, SAID]
        async with place.open() as again:
            assert await again.get_items() == [USER, REASONING, CALL, OUTPUT, SAID]

    play(story())


def test_a_limit_gives_the_last_items_in_order(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            items: list[Any] = [{"role": "user", "content": str(number)} for number in range(5)]
            await session.add_items(items)
            assert await session.get_items(2) == items[-2:]
            assert await session.get_items(99) == items
            assert await session.get_items(0) == []

    play(story())


def test_popped_items_leave_the_conversation_and_stay_on_record(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            assert await session.pop_item() is None
            await session.add_items([USER, SAID])  # type: ignore[list-item]
            assert await session.pop_item() == SAID
            assert await session.get_items() == [USER]
            assert await session.pop_item() == USER
            assert await session.pop_item() is None
            await session.add_items([SAID])  # type: ignore[list-item]
            assert await session.get_items() == [SAID]

    play(story())
    assert place.kinds().count("signal") == 4


def test_a_cleared_session_begins_anew_and_keeps_its_record(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            await session.run(calc([assistant_message("hello")]), "hi", submission_id="one")
            await session.clear_session()
            assert await session.get_items() == []
            await session.clear_session()
            second = calc([assistant_message("who?")])
            await session.run(second, "remember me?", submission_id="two")
            assert isinstance(second.model, ScriptedModel)
            assert [{"role": "user", "content": "remember me?"}] == second.model.calls[0].input
            # What ran before it is known all the same.
            assert (await session.run(calc(), "hi", submission_id="one")).final_output == "hello"

    play(story())


def test_sessions_know_nothing_of_each_other(place: Place) -> None:
    async def story() -> None:
        async with place.open("a") as a, place.open("b") as b:
            await a.add_items([USER])  # type: ignore[list-item]
            await b.add_items([SAID])  # type: ignore[list-item]
            await a.clear_session()
            assert await b.get_items() == [SAID]

    play(story())


def test_additions_at_once_lose_nothing_and_mix_nothing(place: Place) -> None:
    async def story() -> None:
        async with place.open() as one, place.open() as other:
            pairs: list[list[Any]] = [
                [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": f"{n}"}] for n in range(8)
            ]
            await asyncio.gather(*((one, other)[n % 2].add_items(pair) for n, pair in enumerate(pairs)))
            found: list[Any] = await one.get_items()
            texts = [item["content"] for item in found]
            assert texts[::2] == texts[1::2]
            assert sorted(texts[::2]) == [str(n) for n in range(8)]

    play(story())


def test_sessions_can_share_a_runner(place: Place) -> None:
    async def story() -> None:
        with Runner(place.url, limits=SOON, notify=False) as runner:
            one, other = DurableSession("a", runner), DurableSession("b", runner)
            answers = await asyncio.gather(
                one.run(calc([assistant_message("1")]), "?"), other.run(calc([assistant_message("2")]), "?")
            )
            assert ["1", "2"] == [answer.final_output for answer in answers]
            one.close()
            other.close()

    play(story())


@pytest.mark.parametrize("item", [{"role": "user", "content": object()}, {"role": "user", 1: "x"}, "no item", 7])
def test_items_that_json_cannot_hold_are_refused_and_nothing_is_added(place: Place, item: Any) -> None:
    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(InvalidInput):
                await session.add_items([USER, item])  # type: ignore[list-item]
            assert await session.get_items() == []

    play(story())


def test_the_sdks_own_runner_is_refused_before_the_model_is_asked(place: Place) -> None:
    async def story() -> None:
        agent = calc([assistant_message("hello")])
        async with place.open() as session:
            with pytest.raises(NotWriteAhead):
                await SdkRunner.run(agent, "hi", session=session)
            assert await session.get_items() == []
        assert isinstance(agent.model, ScriptedModel)
        assert [] == list(agent.model.calls)

    play(story())


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_finished_run_gives_its_recorded_answer_and_does_not_run_again(place: Place) -> None:
    async def story() -> None:
        agent = calc([function_call("add", {"a": 1, "b": 2}, call_id="c1")], [assistant_message("3")], tools=(add,))
        async with place.open() as session:
            first = await session.run(agent, "1 + 2?", submission_id="sum")
            assert ("3", False) == (first.final_output, first.recorded)
            assert first.run is not None
        async with place.open() as again:
            # A model without a script: asking it would raise.
            second = await again.run(calc(), "1 + 2?", submission_id="sum")
            assert ("3", True, None) == (second.final_output, second.recorded, second.run)

    play(story())
    assert place.kinds() == ["user", "assistant", "tool_started", "tool_result", "assistant", "submission_settled"]


def test_the_same_id_with_other_input_is_a_conflict(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            await session.run(calc([assistant_message("3")]), "1 + 2?", submission_id="sum")
            with pytest.raises(Conflict):
                await session.run(calc(), "2 + 2?", submission_id="sum")

    play(story())


@pytest.mark.parametrize("streamed", [False, True])
def test_calls_and_starts_are_on_record_before_any_tool_runs(place: Place, streamed: bool) -> None:
    seen: dict[str, list[str]] = {}

    @function_tool
    async def look(name: str) -> str:
        seen[name] = place.kinds()
        await asyncio.sleep(0.05)
        return name

    async def story() -> None:
        calls = [function_call("look", {"name": name}, call_id=name) for name in ("a", "b", "c")]
        agent = calc(calls, [assistant_message("seen")], tools=(look,))
        async with place.open() as session:
            if streamed:
                stream = session.run_streamed(agent, "look", submission_id="one")
                kinds = [event.type async for event in stream.stream_events()]
                assert "raw_response_event" in kinds
                assert stream.final_output == "seen"
            else:
                assert (await session.run(agent, "look", submission_id="one")).final_output == "seen"

    play(story())
    assert {"a", "b", "c"} == set(seen)
    for kinds in seen.values():
        assert kinds[:3] == ["user", "assistant", "tool_started"]
    assert place.outcome("one") == "completed"


def test_the_next_run_is_sent_the_whole_conversation_or_its_last_items(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            await session.run(calc([assistant_message("one")]), "1", submission_id="1")
            second = calc([assistant_message("two")])
            await session.run(second, "2", submission_id="2")
            third = calc([assistant_message("three")])
            config = RunConfig(session_settings=SessionSettings(limit=1))
            await session.run(third, "3", submission_id="3", run_config=config)
        texts = [[_text(item) for item in agent.model.calls[0].input] for agent in (second, third)]  # type: ignore[union-attr]
        assert [["1", "one", "2"], ["two", "3"]] == texts

    play(story())


def _text(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else str(content[0]["text"])


def test_reasoning_stays_before_the_call_that_it_belongs_to(place: Place) -> None:
    async def story() -> None:
        thought = ResponseReasoningItem(id="rs_1", type="reasoning", summary=[])
        call = function_call("add", {"a": 1, "b": 2}, call_id="c1")
        agent = calc([thought, call], [assistant_message("3")], tools=(add,))
        async with place.open() as session:
            await session.run(agent, "1 + 2?")
            items: list[Any] = await session.get_items()
        types = [item.get("type", "message") for item in items]
        assert ["message", "reasoning", "function_call", "function_call_output", "message"] == types

    play(story())


def test_a_handoff_is_on_record_and_the_second_agent_answers(place: Place) -> None:
    async def story() -> None:
        second = Agent(name="second", model=ScriptedModel([[assistant_message("mine")]]))
        first = Agent(
            name="first",
            model=ScriptedModel([[function_call("transfer_to_second", {}, call_id="h")]]),
            handoffs=[second],
        )
        async with place.open() as session:
            assert (await session.run(first, "?", submission_id="one")).final_output == "mine"
            items: list[Any] = await session.get_items()
            assert [item["output"] for item in items if "output" in item] == [json.dumps({"assistant": "second"})]
            assert (await session.run(first, "?", submission_id="one")).final_output == "mine"

    play(story())
    assert place.kinds().count("tool_result") == 1


def test_after_a_handoff_a_run_goes_on_with_the_agent_that_took_over(place: Place) -> None:
    async def story() -> None:
        second_model = ScriptedModel([ConnectionError("gone"), [assistant_message("mine")]])
        second = Agent(name="second", model=second_model)
        first_model = ScriptedModel([[function_call("transfer_to_second", {}, call_id="h")]])
        first = Agent(name="first", model=first_model, handoffs=[second])
        async with place.open() as session:
            with pytest.raises(ConnectionError):
                await session.run(first, "?", submission_id="one")
            place.decide()
            assert (await session.run(first, "?", submission_id="one")).final_output == "mine"
        assert (1, 2) == (len(first_model.calls), len(second_model.calls))

    play(story())


def test_a_result_is_on_record_as_soon_as_its_tool_is_done(place: Place) -> None:
    async def story() -> None:
        @function_tool
        async def wait() -> str:
            for _ in range(200):
                if "tool_result" in place.kinds():
                    return "seen"
                await asyncio.sleep(0.05)
            return "not seen"

        calls = [
            function_call("add", {"a": 1, "b": 2}, call_id="c1"),
            function_call("wait", {}, call_id="c2"),
        ]
        agent = calc(calls, [assistant_message("ok")], tools=(add, wait))
        async with place.open() as session:
            await session.run(agent, "?")
            items: list[Any] = await session.get_items()
        assert {"c1": "3", "c2": "seen"} == {item["call_id"]: item["output"] for item in items if "output" in item}

    play(story())


def test_a_run_that_goes_on_runs_no_tool_again_whose_result_is_on_record(place: Place) -> None:
    ran: list[int] = []

    @function_tool
    def once() -> str:
        ran.append(1)
        return "done"

    async def story() -> None:
        call = [function_call("once", {}, call_id="c1")]
        async with place.open() as session:
            with pytest.raises(ConnectionError):
                await session.run(calc(call, ConnectionError("gone"), tools=(once,)), "?", submission_id="one")
            place.decide()
            second = calc([assistant_message("ok")], tools=(once,))
            await session.run(second, "?", submission_id="one")
            assert isinstance(second.model, ScriptedModel)
            assert second.model.calls[0].input[-1]["output"] == "done"

    play(story())
    assert [1] == ran


def test_what_was_popped_in_the_middle_of_a_call_is_made_whole_for_the_model(place: Place) -> None:
    async def story() -> None:
        agent = calc([assistant_message("ok")])
        async with place.open() as session:
            stray = {"type": "function_call_output", "call_id": "c0", "output": "stray"}
            await session.add_items([stray, USER, CALL, OUTPUT])  # type: ignore[list-item]
            assert await session.pop_item() == OUTPUT
            await session.run(agent, "and now?")
        assert isinstance(agent.model, ScriptedModel)
        given = agent.model.calls[0].input
        assert [USER, CALL] == given[:2]
        assert ("c1", "the result was removed from the history") == (given[2]["call_id"], given[2]["output"])
        assert len(given) == 4

    play(story())


class Sum(BaseModel):
    """An answer with a type."""

    total: int


def test_a_typed_answer_is_recorded_with_its_type(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            agent = calc([assistant_message('{"total": 3}')], output_type=Sum)
            assert (await session.run(agent, "1 + 2?", submission_id="sum")).final_output == Sum(total=3)
            agent = calc(output_type=Sum)
            assert (await session.run(agent, "1 + 2?", submission_id="sum")).final_output == Sum(total=3)

    play(story())


def test_a_tool_that_ends_the_run_gives_the_recorded_answer_too(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            call = function_call("add", {"a": 1, "b": 2}, call_id="c1")
            agent = calc([call], tools=(add,), tool_use_behavior="stop_on_first_tool")
            first = await session.run(agent, "1 + 2?", submission_id="sum")
            second = await session.run(calc(), "1 + 2?", submission_id="sum")
            assert str(first.final_output) == "3" == second.final_output

    play(story())


def test_the_users_own_hooks_are_called(place: Place) -> None:
    heard: list[str] = []

    class Hooks(RunHooks[Any]):
        async def on_llm_end(self, *_: Any) -> None:
            heard.append("llm")

        async def on_tool_start(self, *_: Any) -> None:
            heard.append("start")

        async def on_tool_end(self, *_: Any) -> None:
            heard.append("end")

        async def on_agent_end(self, *_: Any) -> None:
            heard.append("agent")

    async def story() -> None:
        agent = calc([function_call("add", {"a": 1, "b": 2}, call_id="c1")], [assistant_message("3")], tools=(add,))
        async with place.open() as session:
            await session.run(agent, "1 + 2?", hooks=Hooks())

    play(story())
    assert ["llm", "start", "end", "llm", "agent"] == heard


def test_a_prompt_that_an_operator_submitted_is_worked_off_first(place: Place) -> None:
    async def story() -> None:
        with Runner(place.url, limits=SOON, notify=False) as runner:
            runner.submit("s", "theirs", "a bare text")
        async with place.open() as session:
            agent = calc([assistant_message("first")], [assistant_message("second")])
            assert (await session.run(agent, "mine", submission_id="mine")).final_output == "second"

    play(story())
    assert place.outcome("theirs") == "completed"


# --- how a run ends --------------------------------------------------------------------------------------------------


def test_a_run_that_was_cancelled_is_given_back_and_goes_on_later(place: Place) -> None:
    reached = asyncio.Event()

    @function_tool
    async def wait() -> str:
        reached.set()
        await asyncio.sleep(60)
        return "never"

    async def story() -> None:
        async with place.open() as session:
            first = calc([function_call("wait", {}, call_id="c1")], tools=(wait,))
            task = asyncio.create_task(session.run(first, "wait", submission_id="one"))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            place.decide()
            second = calc([assistant_message("enough")])
            assert (await session.run(second, "wait", submission_id="one")).final_output == "enough"
            assert isinstance(second.model, ScriptedModel)
            told = second.model.calls[0].input[-1]
            assert told["call_id"] == "c1"
            assert "outcome unknown" in told["output"]

    play(story())


def test_a_stream_that_is_closed_early_is_given_back_and_goes_on_later(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            first = calc([function_call("add", {"a": 1, "b": 2}, call_id="c1")], [assistant_message("3")], tools=(add,))
            stream = session.run_streamed(first, "1 + 2?", submission_id="sum")
            events: Any = stream.stream_events()
            await anext(events)
            await events.aclose()
            with pytest.raises(InvalidInput):
                _ = stream.result
            place.decide()
            second = calc([assistant_message("3")])
            again = session.run_streamed(second, "1 + 2?", submission_id="sum")
            assert [event async for event in again.stream_events()]
            assert ("3", False) == (again.final_output, again.result.recorded)
            third = session.run_streamed(calc(), "1 + 2?", submission_id="sum")
            assert [] == [event async for event in third.stream_events()]
            assert ("3", True) == (third.final_output, third.result.recorded)

    play(story())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_provider_that_fails_leaves_the_run_to_be_tried_again(place: Place, streamed: bool) -> None:
    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(ConnectionError):
                await answer(session, calc(ConnectionError("gone")), streamed)
            assert place.row("one").status == "queued"
            place.decide()
            assert await answer(session, calc([assistant_message("here")]), streamed) == "here"

    play(story())


def test_a_request_that_the_provider_rejects_is_settled_failed(place: Place) -> None:
    async def story() -> None:
        response = httpx2.Response(400, request=httpx2.Request("POST", "https://provider.invalid"))
        async with place.open() as session:
            with pytest.raises(openai.BadRequestError):
                rejected = openai.BadRequestError("too long", response=response, body=None)
                await session.run(calc(rejected), "?", submission_id="one")
            place.decide()
            with pytest.raises(RunFailed, match="provider_rejected"):
                await session.run(calc(), "?", submission_id="one")

    play(story())


def test_a_model_that_calls_a_tool_that_is_not_there_is_asked_again_and_told_so(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(Exception, match="nowhere"):
                await session.run(calc([function_call("nowhere", {}, call_id="c1")]), "?", submission_id="one")
            place.decide()
            second = calc([assistant_message("sorry")])
            assert (await session.run(second, "?", submission_id="one")).final_output == "sorry"
            assert isinstance(second.model, ScriptedModel)
            assert "never started" in second.model.calls[0].input[-1]["output"]

    play(story())


def test_a_run_with_too_many_turns_is_settled_failed(place: Place) -> None:
    async def story() -> None:
        calls = [[function_call("add", {"a": 1, "b": n}, call_id=f"c{n}")] for n in range(5)]
        async with place.open() as session:
            with pytest.raises(MaxTurnsExceeded):
                await session.run(calc(*calls, tools=(add,)), "?", submission_id="one", max_turns=2)
            with pytest.raises(RunFailed):
                await session.run(calc(), "?", submission_id="one")

    play(story())
    assert place.outcome("one") == "failed"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_a_guardrail_refused_is_not_on_record(place: Place, streamed: bool) -> None:
    @output_guardrail
    async def no_secrets(*_: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    async def story() -> None:
        agent = calc([assistant_message("the secret")], output_guardrails=[no_secrets])
        async with place.open() as session:
            with pytest.raises(OutputGuardrailTripwireTriggered):
                if streamed:
                    async for _ in session.run_streamed(agent, "?", submission_id="one").stream_events():
                        pass
                else:
                    await session.run(agent, "?", submission_id="one")
            assert "secret" not in json.dumps(await session.get_items())
            with pytest.raises(RunFailed):
                await session.run(calc(), "?", submission_id="one")

    play(story())
    assert place.outcome("one") == "failed"


def test_a_prompt_that_a_guardrail_refused_is_settled_failed(place: Place) -> None:
    @input_guardrail
    async def no(_: RunContextWrapper[Any], agent: Agent[Any], given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=given, tripwire_triggered=True)

    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(InputGuardrailTripwireTriggered):
                agent = calc([assistant_message("x")], input_guardrails=[no])
                await session.run(agent, "?", submission_id="one")

    play(story())
    assert place.outcome("one") == "failed"


def test_an_abort_ends_a_run_whose_tool_never_returns(place: Place) -> None:
    @function_tool
    async def hang() -> str:
        with Runner(place.url, notify=False) as operator:
            operator.request_abort("s", "one", "enough")
        await asyncio.sleep(3600)
        return "never"

    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(RunAborted):
                agent = calc([function_call("hang", {}, call_id="c1")], tools=(hang,))
                await session.run(agent, "?", submission_id="one")
            items: list[Any] = await session.get_items()
            assert "outcome unknown" in items[-1]["output"]

    play(story())
    assert place.outcome("one") == "aborted"


def test_an_abort_between_response_and_tool_starts_no_tool(place: Place) -> None:
    ran: list[int] = []

    @function_tool
    async def effect() -> str:
        ran.append(1)
        return "done"

    class Aborting(RunHooks[Any]):
        async def on_tool_start(self, *_: Any) -> None:
            with Runner(place.url, notify=False) as operator:
                operator.request_abort("s", "one")

    async def story() -> None:
        async with place.open(beat_s=2.0) as session:
            with pytest.raises(RunAborted):
                agent = calc([function_call("effect", {}, call_id="c1")], tools=(effect,))
                await session.run(agent, "?", submission_id="one", hooks=Aborting())

    play(story())
    assert [] == ran
    assert place.outcome("one") == "aborted"


def test_a_deadline_ends_a_run_whose_tool_never_returns(place: Place) -> None:
    @function_tool
    async def hang() -> str:
        await asyncio.sleep(3600)
        return "never"

    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(RunFailed):
                agent = calc([function_call("hang", {}, call_id="c1")], tools=(hang,))
                await session.run(agent, "?", submission_id="one", deadline_s=1.0)

    play(story())
    assert place.outcome("one") == "failed"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_run_that_stalls_is_fenced_off_and_goes_on_without_its_tool(
    place: Place, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(stall_s=0.5, grace_s=0.2, lease_s=0.4, beat_s=0.1, backoff_base_s=1e-6)
    monkeypatch.setattr(agents_turn, "CANCEL_S", 0.3)
    ignored = []

    async def story() -> None:
        over = asyncio.Event()

        @function_tool
        async def hang() -> str:
            # Ignores being cancelled, however often.
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    ignored.append(1)
            return "too late"

        async def passes() -> None:
            while place.outcome("one") is None:
                await asyncio.sleep(0.3)
                await asyncio.to_thread(place.decide, limits)

        async with place.open(limits=limits, lease_s=0.4, beat_s=0.1) as session:
            agent = calc([function_call("hang", {}, call_id="c1")], [assistant_message("gave up")], tools=(hang,))
            run = asyncio.create_task(answer(session, agent, streamed))
            while not place.kinds() or "tool_started" not in place.kinds():
                await asyncio.sleep(0.05)
            decider = asyncio.create_task(passes())
            assert await run == "gave up"
            await decider
            over.set()
            items: list[Any] = await session.get_items()
            assert "outcome unknown" in items[-2]["output"]

    play(story())
    assert ignored
    assert place.row("one").crashes_in_row == 0
    assert place.row("one").claims == 2


def test_a_database_that_stays_away_gives_the_run_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with place.open() as session:
            append = Attempt.append

            def away(attempt: Attempt, given: Any, **more: Any) -> list[str]:
                raise DatabaseUnavailable("gone")

            monkeypatch.setattr(Attempt, "append", away)
            with pytest.raises(DatabaseUnavailable):
                await session.run(calc([assistant_message("?")]), "?", submission_id="one")
            monkeypatch.setattr(Attempt, "append", append)
            # The program goes on, and its beats keep nothing alive that nobody works on.
            assert place.row("one").status == "queued"
            place.decide()
            assert await answer(session, calc([assistant_message("back")]), False) == "back"

    play(story())


def test_a_lease_that_can_not_be_known_to_live_stops_the_run_and_gives_it_back(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:

            @function_tool
            async def wait() -> str:
                (attempt,) = session._runner._attempts.values()
                attempt.lost.is_set = lambda: True  # type: ignore[method-assign]
                await asyncio.sleep(60)
                return "never"

            async def passes() -> None:
                while place.outcome("one") is None:
                    await asyncio.sleep(0.2)
                    await asyncio.to_thread(place.decide)

            agent = calc([function_call("wait", {}, call_id="c1")], [assistant_message("again")], tools=(wait,))
            run = asyncio.create_task(answer(session, agent, False))
            while not place.kinds():
                await asyncio.sleep(0.05)
            decider = asyncio.create_task(passes())
            assert await run == "again"
            await decider

    play(story())
    assert place.row("one").claims == 2


@pytest.mark.parametrize("point", range(1, 8))
def test_cancelled_at_any_step_it_keeps_nothing_alive(place: Place, point: int) -> None:
    async def story() -> None:
        async with place.open() as session:
            calls = iter(range(1, 100))
            call, task = session._call, asyncio.current_task()

            async def counted(work: Any, undo: Any = None) -> Any:
                if next(calls) == point:
                    # While it runs in its thread.
                    asyncio.get_running_loop().call_soon(running.cancel)
                return await call(work, undo)

            session._call = counted  # type: ignore[method-assign]
            script = [[function_call("add", {"a": 1, "b": 2}, call_id="c1")], [assistant_message("3")]]
            running = asyncio.create_task(answer(session, calc(*script, tools=(add,)), False))
            assert task is not running
            await asyncio.wait({running})
            assert running.cancelled()
            session._call = call  # type: ignore[method-assign]
            assert {} == session._runner._attempts
            assert [] == session._runner._beater.kept()
            with read(place.engine) as conn:
                found = conn.execute(sa.select(submissions.c.status)).scalars().all()
            assert "running" not in found
            place.decide()
            assert await answer(session, calc(*script[-1:]), False) == "3"

    play(story())


# --- bad input -------------------------------------------------------------------------------------------------------


def test_of_two_processes_on_one_session_the_second_waits_and_gets_the_answer(place: Place) -> None:
    async def story() -> None:
        reached = asyncio.Event()

        @function_tool
        async def slow() -> str:
            reached.set()
            await asyncio.sleep(0.5)
            return "done"

        async with place.open() as one, place.open() as other:
            agent = calc([function_call("slow", {}, call_id="c1")], [assistant_message("once")], tools=(slow,))
            first = asyncio.create_task(one.run(agent, "?", submission_id="same"))
            await reached.wait()
            second = await other.run(calc(), "?", submission_id="same")
            assert ("once", True) == (second.final_output, second.recorded)
            assert (await first).final_output == "once"

    play(story())


def test_who_will_not_wait_is_told_that_the_session_is_busy(place: Place) -> None:
    async def story() -> None:
        reached, over = asyncio.Event(), asyncio.Event()

        @function_tool
        async def slow() -> str:
            reached.set()
            await over.wait()
            return "done"

        async with place.open() as one, place.open(wait_s=0.2) as other:
            agent = calc([function_call("slow", {}, call_id="c1")], [assistant_message("once")], tools=(slow,))
            first = asyncio.create_task(one.run(agent, "?", submission_id="first"))
            await reached.wait()
            with pytest.raises(SessionBusy):
                await other.run(calc(), "?", submission_id="second")
            with pytest.raises(SessionBusy):
                await other.add_items([USER])  # type: ignore[list-item]
            over.set()
            await first
            place.decide()
            # The run stays admitted, the addition was withdrawn.
            answer = await other.run(calc([assistant_message("twice")]), "?", submission_id="second")
            assert answer.final_output == "twice"
            assert USER not in await other.get_items()

    play(story())


def test_a_tool_that_runs_its_own_session_is_refused(place: Place) -> None:
    told: list[str] = []

    async def story() -> None:
        async with place.open() as session:

            @function_tool
            async def again() -> str:
                with pytest.raises(SessionBusy) as caught:
                    await session.run(calc(), "?")
                told.append(caught.value.code)
                return "refused"

            agent = calc([function_call("again", {}, call_id="c1")], [assistant_message("ok")], tools=(again,))
            await session.run(agent, "?")

    play(story())
    assert ["session_busy"] == told


@pytest.mark.parametrize("beat_s", [0.1, 2.0])
def test_a_session_that_is_deleted_in_the_middle_ends_the_run(place: Place, beat_s: float) -> None:
    ran: list[str] = []

    def delete() -> None:
        with begin(place.engine) as conn:
            for table in reversed(tables.sorted_tables):
                column = table.c.get("session_id") if table.name != "sessions" else table.c.id
                if column is not None:
                    conn.execute(sa.delete(table).where(column == "s"))

    @function_tool
    async def vanish() -> str:
        ran.append("vanish")
        await asyncio.to_thread(delete)
        # With short beats it is a beat that notices, with long ones the next write.
        await asyncio.sleep(0.5)
        return "gone"

    @function_tool
    async def after() -> str:
        ran.append("after")
        return "no"

    async def story() -> None:
        async with place.open(beat_s=beat_s) as session:
            script = [[function_call(name, {}, call_id=name)] for name in ("vanish", "after")]
            agent = calc(*script, tools=(vanish, after))
            with pytest.raises(NotFound):
                await session.run(agent, "?", submission_id="one")

    play(story())
    assert ["vanish"] == ran
    place.decide()
    with read(place.engine) as conn:
        left = conn.execute(sa.select(submissions.c.outcome)).scalars().all()
        assert conn.execute(sa.select(sa.func.count()).select_from(attempts)).scalar_one() == 0
    assert left in ([], ["aborted"])


class Unspeakable:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def test_a_result_that_has_no_text_ends_the_run_and_the_record_says_that_the_tool_ran(place: Place) -> None:
    @function_tool
    def odd() -> Any:
        return Unspeakable()

    async def story() -> None:
        async with place.open() as session:
            agent = calc([function_call("odd", {}, call_id="c1")], tools=(odd,))
            with pytest.raises(Exception) as caught:
                await session.run(agent, "?", submission_id="one")
            assert str(caught.value)
            items: list[Any] = await session.get_items()
            assert items[-1]["call_id"] == "c1"

    play(story())
    assert place.outcome("one") == "failed"


def test_a_result_that_is_too_large_ends_the_run_and_the_record_says_that_the_tool_ran(place: Place) -> None:
    @function_tool
    def much() -> str:
        return "x" * 20_000

    async def story() -> None:
        limits = Limits(payload_bytes_max=10_000)
        async with place.open(limits=limits) as session:
            agent = calc([function_call("much", {}, call_id="c1")], tools=(much,))
            with pytest.raises(ResultNotStorable):
                await session.run(agent, "?", submission_id="one")
            items: list[Any] = await session.get_items()
            assert "the tool ran" in items[-1]["output"]

    play(story())
    assert place.outcome("one") == "failed"


def test_results_of_any_shape_are_stored_as_the_model_is_sent_them(place: Place) -> None:
    @function_tool
    def shape() -> Any:
        return {"n": float("nan"), "text": "\ud800 \0 ünï"}

    async def story() -> None:
        agent = calc([function_call("shape", {}, call_id="c1")], [assistant_message("ok")], tools=(shape,))
        async with place.open() as session:
            await session.run(agent, "?")
            items: list[Any] = await session.get_items()
        assert isinstance(agent.model, ScriptedModel)
        assert agent.model.calls[1].input[-1]["output"] == items[2]["output"]

    play(story())


def test_a_local_tool_that_is_no_function_is_refused_before_it_runs(place: Place) -> None:
    async def story() -> None:
        action = LocalShellCallAction(type="exec", command=["true"], env={})
        call = LocalShellCall(id="x", call_id="c1", type="local_shell_call", status="completed", action=action)
        ran: list[int] = []

        def execute(_: Any) -> str:
            ran.append(1)
            return ""

        agent = calc([call], tools=(LocalShellTool(executor=execute),))
        async with place.open() as session:
            with pytest.raises(ToolUnsupported):
                await session.run(agent, "?", submission_id="one")
        assert [] == ran

    play(story())
    assert place.outcome("one") == "failed"


def test_a_tool_that_waits_for_approval_is_refused(place: Place) -> None:
    ran: list[int] = []

    @function_tool(needs_approval=True)
    def danger() -> str:
        ran.append(1)
        return "done"

    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(ApprovalUnsupported):
                await session.run(
                    calc([function_call("danger", {}, call_id="c1")], tools=(danger,)), "?", submission_id="one"
                )

    play(story())
    assert [] == ran
    assert place.outcome("one") == "failed"


def test_work_of_another_kind_is_left_to_who_can_do_it(place: Place) -> None:
    async def story() -> None:
        with Runner(place.url, limits=SOON, notify=False) as runner:
            runner.submit("s", "theirs", {"steps": 3})
        async with place.open() as session:
            with pytest.raises(ForeignSubmission, match="theirs"):
                await session.run(calc(), "?", submission_id="mine")

    play(story())
    assert place.row("theirs").status == "queued"


def test_a_run_that_another_agent_began_is_left_to_it(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(ConnectionError):
                await session.run(calc(ConnectionError("gone")), "?", submission_id="theirs")
            place.decide()
            other = Agent(name="other", model=ScriptedModel([]))
            with pytest.raises(AgentUnknown, match="calc"):
                await session.run(other, "?", submission_id="mine")

    play(story())


def test_changes_wait_for_an_unfinished_run(place: Place) -> None:
    async def story() -> None:
        async with place.open() as session:
            with pytest.raises(ConnectionError):
                await session.run(calc(ConnectionError("gone")), "?", submission_id="one")
            place.decide()
            with pytest.raises(SessionBusy, match="one"):
                await session.pop_item()

    play(story())


@pytest.mark.parametrize("settings", [{"wait_s": -1.0}, {"wait_s": float("nan")}, {"lease_s": 0.0}])
def test_settings_that_are_not_sound_are_refused(place: Place, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        place.open(**settings)


def test_a_runner_that_is_shared_takes_no_settings(place: Place) -> None:
    with Runner(place.url, notify=False) as runner:
        with pytest.raises(InvalidInput, match="lease_s"):
            DurableSession("s", runner, lease_s=5.0)


@pytest.mark.parametrize("found", ["0.23.9", "0.25.0", "1.0.0", "odd"])
def test_another_version_of_the_sdk_is_refused_with_the_range(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(SdkUnsupported, match=r">=0\.24,<0\.25") as caught:
        agents_version.require_sdk()
    assert caught.value.detail == {"found": found, "tested": ">=0.24,<0.25"}


def test_a_missing_sdk_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(SdkUnsupported) as caught:
        agents_version.require_sdk()
    assert "openai-agents" in str(caught.value.hint)


def test_the_tested_range_is_the_one_that_the_package_asks_for() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["openai-agents"]
    assert [f"openai-agents{agents_version.RANGE}"] == extra


def test_model_settings_reach_the_model(place: Place) -> None:
    async def story() -> None:
        agent = calc([assistant_message("ok")], model_settings=ModelSettings(temperature=0.5))
        async with place.open() as session:
            await session.run(agent, "?")
        assert isinstance(agent.model, ScriptedModel)
        assert agent.model.calls[0].model_settings.temperature == 0.5

    play(story())
