"""One attempt driven through the SDK: begin, run under the lease, and the one end that follows from how it came out.

Watches the lease meanwhile: what the attempt's holder is told (lost, aborted, past its deadline, stalled) cancels the
run. Knows nothing of claims, of other submissions, or of how long anybody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import openai
from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    Handoff,
    ModelBehaviorError,
    RunConfig,
    RunHooks,
)
from agents import (
    Runner as SdkRunner,
)
from agents.exceptions import (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents.result import RunResultBase, RunResultStreaming

from reconciler.core.states import Directive
from reconciler.errors import AttemptLost, Conflict, DatabaseUnavailable, InvalidInput, ReconcilerError
from reconciler.integrations.agents_errors import AgentUnknown, ApprovalUnsupported, RunAborted, RunFailed
from reconciler.integrations.agents_items import (
    OP_RUN,
    Answer,
    Item,
    callable_items,
    current_agent,
    history,
    operation,
    turn_of,
)
from reconciler.integrations.agents_recorder import Recorder
from reconciler.service.attempt import Attempt, TurnPath

T = TypeVar("T")

_END: Final = object()

# How often a run looks at what its attempt is told.
WATCH_S: Final = 0.2
# How long a cancelled run may take to come back; what doesn't is left behind, and can write nothing more.
CANCEL_S: Final = 5.0

_AGENTS_MAX: Final = 1_000

_VERDICTS: Final = (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
# The provider says that the request itself is wrong: it stays so.
_REJECTED: Final = frozenset({400, 404, 413, 422})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is given besides agent and input; the SDK's own meanings."""

    context: Any = None
    max_turns: int = 10
    hooks: RunHooks[Any] | None = None
    run_config: RunConfig | None = None
    error_handlers: Any = None
    history_limit: int | None = None


@dataclass(frozen=True, slots=True)
class DurableResult:
    """What a submission came to.

    ``recorded``: the answer was read from the record, nothing ran. ``run`` is the SDK's own result, None where
    ``recorded``; of a run that was resumed it tells what ran since.
    """

    submission_id: str
    final_output: Any
    recorded: bool
    run: RunResultBase | None = None


Caller = Callable[[Callable[[], Any]], Awaitable[Any]]


class Turn:
    """One attempt of a run."""

    def __init__(self, attempt: Attempt, agent: Agent[Any], options: RunOptions, call: Caller) -> None:
        self.attempt = attempt
        self._start_agent = agent
        self._options = options
        self._call = call
        self._recorder = Recorder(attempt, call, options.hooks, options.run_config)
        # Why the run was told to stop, None while it goes on.
        self._stop: Directive | None = None
        # The attempt has its end.
        self._ended = False
        # What it is given back with, where it is.
        self._reason = "cancelled"

    async def run(self) -> DurableResult:
        """Begin, run, and write the outcome.

        Raises:
            AttemptLost: others decide about the submission now.
            Everything else is the run's own end, and is on record where it is one.
        """
        try:
            agent, items = await self._begin()
            task = asyncio.create_task(SdkRunner.run(agent, items, **self._arguments()))  # type: ignore[arg-type]
            watch = asyncio.create_task(self._watch(task.cancel))
            try:
                await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await to_its_end(self._leave(task, task.cancel))
                raise
            finally:
                watch.cancel()
            if (error := _error_of(task)) is not None:
                raise await to_its_end(self._failed(error)) from None
            return await to_its_end(self._finished(task.result()))
        finally:
            await to_its_end(self.let_go())

    async def stream(self, found: list[DurableResult]) -> AsyncGenerator[Any, None]:
        """Begin, run, yield the SDK's events, and write the outcome into *found* when they are through.

        Raises:
            As `run`.
        """
        try:
            agent, items = await self._begin()
            result = SdkRunner.run_streamed(agent, items, **self._arguments())  # type: ignore[arg-type]
            watch = asyncio.create_task(self._watch(result.cancel))
            error: BaseException | None = None
            try:
                async for event in _until(watch, result.stream_events()):
                    yield event
                error = result.run_loop_exception
                if error is None and not self._is_done(result):
                    error = asyncio.CancelledError()
            except (GeneratorExit, asyncio.CancelledError):
                # Nobody listens any more. A run that is done all the same keeps its answer.
                if self._stop is None and self._is_done(result):
                    await to_its_end(self._finished(result))
                else:
                    await to_its_end(self._leave(result.run_loop_task, result.cancel))
                raise
            except Exception as raised:  # noqa: BLE001 - whatever it is, it ends the submission
                error = raised
            finally:
                watch.cancel()
            if error is not None:
                raise await to_its_end(self._failed(error)) from None
            found.append(await to_its_end(self._finished(result)))
        finally:
            await to_its_end(self.let_go())

    async def let_go(self) -> None:
        """Give back what is still held: an attempt that nobody works on must not be kept alive by its beats."""
        if self._ended:
            return
        self._ended = True
        if self._stop is not Directive.STALLED:
            with suppress(ReconcilerError):
                await self._call(lambda: self.attempt.release(self._reason))
        # Where even that did not get through, the lease runs out; of a stalled one a pass is to count a crash.
        self.attempt.abandon()

    # --- the beginning -----------------------------------------------------------------------------------------------

    async def _begin(self) -> tuple[Agent[Any], list[Item]]:
        attempt = self.attempt
        path: TurnPath = await self._call(attempt.begin)
        self._reason = "capability_missing"
        asked = operation(attempt.payload, f'submission "{attempt.session_id}/{attempt.submission_id}"')
        assert asked.op == OP_RUN  # noqa: S101 - the session carries out the others itself
        at = turn_of(path.items, attempt.submission_id)
        before = history(path.items[:at])
        name = current_agent(path.items[at:]) or asked.agent
        agent = self._start_agent if name is None else find_agent(self._start_agent, name)
        if agent is None:
            raise AgentUnknown(
                f'cannot resume submission "{attempt.session_id}/{attempt.submission_id}": agent "{name}" is neither'
                f' "{self._start_agent.name}" nor one that it hands off to'
            )
        self._recorder.agent = agent.name
        if (limit := self._options.history_limit) is not None:
            before = before[-limit:] if limit > 0 else []
        items = callable_items([*before, *history(path.items[at:])])
        self._reason = "cancelled"
        return agent, items

    def _arguments(self) -> dict[str, Any]:
        given = self._options
        arguments: dict[str, Any] = {
            "context": given.context,
            "max_turns": given.max_turns,
            "hooks": self._recorder,
            "run_config": given.run_config,
        }
        if given.error_handlers is not None:
            arguments["error_handlers"] = given.error_handlers
        return arguments

    # --- meanwhile ---------------------------------------------------------------------------------------------------

    async def _watch(self, cancel: Callable[[], Any]) -> None:
        attempt = self.attempt
        while True:
            await asyncio.sleep(WATCH_S)
            told = attempt.directive
            if attempt.lost.is_set():
                told = Directive.LOST
            if told is not Directive.CONTINUE:
                self._stop = told
                # First: a tool that ignores the cancellation starts nothing further.
                self._recorder.closed = True
                cancel()
                # Its end is the end of the patience with a run that doesn't come back.
                await asyncio.sleep(CANCEL_S)
                return

    async def _leave(self, task: asyncio.Task[Any] | None, cancel: Callable[[], Any]) -> None:
        """The caller was cancelled: end the run. The attempt is given back then, which costs it nothing."""
        self._recorder.closed = True
        cancel()
        if task is not None:
            await asyncio.wait({task}, timeout=CANCEL_S)

    @staticmethod
    def _is_done(result: RunResultStreaming) -> bool:
        task = result.run_loop_task
        return (
            task is not None
            and task.done()
            and not task.cancelled()
            and task.exception() is None
            and (result.final_output is not None or bool(result.interruptions))
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _finished(self, result: RunResultBase) -> DurableResult:
        if getattr(result, "interruptions", None):
            error = ApprovalUnsupported()
            await self._settle("failed", error)
            raise error
        try:
            await self._recorder.finish(result.final_output)
        except InvalidInput as error:
            await self._settle("failed", error)
            raise
        await self._settle("completed")
        return DurableResult(self.attempt.submission_id, result.final_output, recorded=False, run=result)

    async def _failed(self, error: BaseException) -> BaseException:
        """Write what the run's failure means; return what its caller is told."""
        attempt = self.attempt
        fault = self._recorder.fault if not self._recorder.closed else None
        stop = self._stop
        if isinstance(fault, Conflict):
            # start() refuses where an abort was requested, before any beat has told so.
            stop = await self._call(attempt.heartbeat)
        if stop is Directive.ABORT:
            await self._settle("aborted")
            return RunAborted(f"{self._name} was aborted")
        if stop is Directive.DEADLINE:
            late = RunFailed(f"{self._name} ran past its deadline")
            await self._settle("failed", late)
            return late
        if stop in (Directive.LOST, Directive.STALLED) or isinstance(fault, AttemptLost):
            self._reason = "lease_lost"
            return AttemptLost(f"{self._name}: its attempt is lost ({stop or 'its lease ended'})")
        if isinstance(fault, DatabaseUnavailable):
            self._reason = "database_unavailable"
            return fault
        if isinstance(error, asyncio.CancelledError) and fault is None:
            return error
        cause = fault or error
        if fault is None and self._is_providers(error):
            rejected = isinstance(error, openai.APIStatusError) and error.status_code in _REJECTED
            await self._call(lambda: attempt.fail(_told(error), retryable=not rejected))
            self._ended = True
            return error
        await self._settle("failed", cause)
        return cause

    def _is_providers(self, error: BaseException) -> bool:
        if isinstance(error, _VERDICTS):
            return False
        # What the model says wrongly is asked again, like an answer that did not come.
        return self._recorder.in_model or isinstance(error, ModelBehaviorError)

    async def _settle(self, outcome: str, error: BaseException | None = None) -> None:
        told = None if error is None else _told(error)
        try:
            await self._call(lambda: self.attempt.settle(outcome, error=told))
        except Conflict:
            # The record shows a finished turn, and the record decides.
            await self._call(lambda: self.attempt.settle("completed"))
        self._ended = True

    @property
    def _name(self) -> str:
        return f'submission "{self.attempt.session_id}/{self.attempt.submission_id}"'


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    if not task.done():
        # It ignores being cancelled, and is left behind. What it says in the end interests nobody.
        task.add_done_callback(lambda one: None if one.cancelled() else one.exception())
        return asyncio.CancelledError()
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def _until(watch: asyncio.Task[None], events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield *events* until they or *watch* end."""

    async def following() -> Any:
        return await anext(events, _END)

    while True:
        task = asyncio.create_task(following())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or (event := task.result()) is _END:
            return
        yield event


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end, whoever is cancelled meanwhile; the cancellation is raised then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (task.cancelled() or task.exception() is None):
        raise cancelled
    return task.result()


def _told(error: BaseException) -> Mapping[str, str]:
    return {"type": type(error).__name__, "message": str(error)[:2_000]}


# --- agents ----------------------------------------------------------------------------------------------------------


def find_agent(start: Agent[Any], name: str) -> Agent[Any] | None:
    """Return the agent of that name among *start* and all that it hands off to, directly or not."""
    seen: list[Agent[Any]] = []
    waiting: list[Any] = [start]
    while waiting and len(seen) < _AGENTS_MAX:
        agent = waiting.pop(0)
        if isinstance(agent, Handoff):
            # The SDK keeps the target of handoff() weakly; one that is made on demand has none.
            agent = agent._agent_ref() if agent._agent_ref is not None else None
        if not isinstance(agent, Agent) or any(agent is one for one in seen):
            continue
        if agent.name == name:
            return agent
        seen.append(agent)
        waiting.extend(agent.handoffs)
    return None


def typed_output(answer: Answer, start: Agent[Any]) -> Any:
    """Return a recorded answer in the type that its agent promises.

    Raises:
        ModelBehaviorError: the text is not of that type (any more).
    """
    agent = start if answer.agent is None else find_agent(start, answer.agent)
    kind = None if agent is None else agent.output_type
    if kind is None or kind is str:
        return answer.text
    schema = kind if isinstance(kind, AgentOutputSchemaBase) else AgentOutputSchema(kind)
    return answer.text if schema.is_plain_text() else schema.validate_json(answer.text)
