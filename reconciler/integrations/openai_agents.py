"""A durable session for the OpenAI Agents SDK: its runs survive being killed.

    with DurableSession("customer-42", "sqlite:////var/lib/shop/agent.sqlite3") as session:
        result = await session.run(agent, "Refund order 17", submission_id="refund-17")

Each run is a submission with a lease. The model's calls are on record before their tools start, and each result before
the model is asked again. Run the same lines again after a crash: a finished run gives its recorded answer, an
unfinished one goes on from its record, and calls that were interrupted are told to the model, never repeated. A daemon
(`reconciler run`), or one pass (`reconciler once`), decides about what crashed.

Needs the extra ``openai-agents``. Knows nothing of tables.
"""

# ruff: noqa: E402 - the version is asked before the SDK is imported
from __future__ import annotations

from reconciler.integrations.agents_version import require_sdk

SDK_VERSION = require_sdk()

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from agents import Agent, RunConfig, RunContextWrapper, RunHooks, SessionSettings, TResponseInputItem

from reconciler.core.model import SessionEntry
from reconciler.core.states import Outcome
from reconciler.errors import AttemptLost, InvalidInput, NotFound, ReconcilerError
from reconciler.integrations.agents_errors import (
    AgentUnknown,
    ApprovalUnsupported,
    ForeignSubmission,
    NotWriteAhead,
    ResultNotStorable,
    RunAborted,
    RunFailed,
    SdkUnsupported,
    SessionBusy,
    ToolUnsupported,
)
from reconciler.integrations.agents_items import (
    OP_ADD,
    OP_CLEAR,
    OP_POP,
    OP_RUN,
    Answer,
    Item,
    Operation,
    history,
    operation,
    recorded_answer,
    user_message,
)
from reconciler.integrations.agents_turn import DurableResult, RunOptions, Turn, to_its_end, typed_output
from reconciler.service.attempt import Attempt, PathItem
from reconciler.service.runner import Runner, Submission

__all__ = [
    "AgentUnknown",
    "ApprovalUnsupported",
    "DurableResult",
    "DurableSession",
    "DurableStream",
    "ForeignSubmission",
    "NotWriteAhead",
    "ResultNotStorable",
    "RunAborted",
    "RunFailed",
    "SdkUnsupported",
    "SessionBusy",
    "ToolUnsupported",
]

T = TypeVar("T")

_WAIT_MAX_S: Final = 86_400.0
_FIRST_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0

# The sessions whose run the calling code is a part of: waiting for one of them would be waiting for oneself.
_inside: ContextVar[frozenset[int]] = ContextVar("reconciler_inside", default=frozenset())


class DurableSession:
    """One conversation on record. A context manager; for one event loop at a time.

    *database* is a URL, or a `reconciler.Runner` that several sessions share (it stays open). ``wait_s`` is how long a
    call waits for others' work on the session, and for a decision about what crashed. ``session_settings.limit`` bounds
    the history that a run sends to the model. *settings* go to the Runner (``lease_s``, ``limits``, ...).

    It has the methods of the SDK's ``Session`` protocol, for looking at the history and for changing it between runs.
    The SDK's own ``Runner.run(..., session=...)`` refuses it (`NotWriteAhead`): a session alone hears of calls after
    their tools ran.

    Raises:
        InvalidInput: an argument is not sound.
        SchemaMismatch: the database has another schema, or none.
    """

    def __init__(
        self,
        session_id: str,
        database: str | Runner,
        *,
        wait_s: float = 60.0,
        session_settings: SessionSettings | None = None,
        **settings: Any,
    ) -> None:
        if not 0 <= wait_s <= _WAIT_MAX_S:
            raise InvalidInput(f"cannot wait {wait_s} s for a session: 0 to {_WAIT_MAX_S:.0f}")
        if isinstance(database, Runner) and settings:
            raise InvalidInput(f"cannot set {', '.join(sorted(settings))}: the Runner that was given has its own")
        self.session_id = session_id
        self.session_settings = session_settings
        self._wait_s = wait_s
        self._owns_runner = not isinstance(database, Runner)
        self._runner = database if isinstance(database, Runner) else Runner(database, **settings)
        # One thread: writes land in the order in which they were asked for, and tools that fill the event loop's own
        # threads keep none of them waiting.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reconciler-session")
        self._turn = asyncio.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Give back what is still held, and close the Runner if it is ours. May be called twice."""
        self._pool.shutdown(wait=True)
        if self._owns_runner:
            self._runner.close()

    # --- runs --------------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: Agent[Any],
        input: str | Sequence[TResponseInputItem],  # noqa: A002 - the SDK's word
        *,
        submission_id: str | None = None,
        context: Any = None,
        max_turns: int = 10,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        error_handlers: Any = None,
        deadline_s: float | None = None,
    ) -> DurableResult:
        """Run *agent* on *input*, once for each *submission_id*; return its answer, or the recorded one.

        Without a *submission_id* one is made up; what crashes is then finished first by the session's next run.
        Unfinished runs before this one are worked off first, in order, with this *agent*. ``max_turns`` counts from the
        beginning or from the resumption. An exception of the SDK ends the submission as failed, and is raised; of the
        model's provider it leaves it to be tried again by a call with the same id.

        Raises:
            SessionBusy: others worked on the session, or nobody decided about what crashed, for all of ``wait_s``. The
                submission stays admitted.
            RunFailed: the submission is settled failed. RunAborted: aborted.
            Conflict: the id was used before with other input or another agent.
            InvalidInput: *input* can't be stored, or an id is not valid.
        """
        options = self._options(context, max_turns, hooks, run_config, error_handlers)
        asked = Operation(OP_RUN, _items(input), agent.name)
        async with self._working(asked, submission_id, deadline_s) as work:
            async for attempt in work.attempts():
                turn = Turn(attempt, agent, options, self._call)
                if attempt.submission_id != work.submission_id:
                    await work.earlier(turn.run)
                    continue
                try:
                    return await turn.run()
                except AttemptLost:
                    # Others decided, or will: what they decided is looked at next.
                    continue
            return await self._recorded(work, agent)

    def run_streamed(
        self,
        agent: Agent[Any],
        input: str | Sequence[TResponseInputItem],  # noqa: A002 - the SDK's word
        *,
        submission_id: str | None = None,
        context: Any = None,
        max_turns: int = 10,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        error_handlers: Any = None,
        deadline_s: float | None = None,
    ) -> DurableStream:
        """Run as `run` does, and give the SDK's events while it runs. Nothing happens before they are iterated.

        An event may be seen before what it tells is durable; a tool never starts before. Closing the iteration early
        gives the run back, to go on with a later call.
        """
        options = self._options(context, max_turns, hooks, run_config, error_handlers)
        asked = Operation(OP_RUN, _items(input), agent.name)
        found: list[DurableResult] = []

        async def events() -> AsyncIterator[Any]:
            async with self._working(asked, submission_id, deadline_s) as work:
                async for attempt in work.attempts():
                    turn = Turn(attempt, agent, options, self._call)
                    if attempt.submission_id != work.submission_id:
                        await work.earlier(turn.run)
                        continue
                    stream = turn.stream(found)
                    try:
                        async for event in stream:
                            yield event
                    except AttemptLost:
                        continue
                    finally:
                        await stream.aclose()
                    return
                found.append(await self._recorded(work, agent))

        return DurableStream(events(), found)

    def _options(
        self,
        context: Any,
        max_turns: int,
        hooks: RunHooks[Any] | None,
        run_config: RunConfig | None,
        error_handlers: Any,
    ) -> RunOptions:
        settings = self.session_settings
        if run_config is not None and run_config.session_settings is not None:
            settings = (
                run_config.session_settings if settings is None else settings.resolve(run_config.session_settings)
            )
        return RunOptions(
            context=context,
            max_turns=max_turns,
            hooks=hooks,
            run_config=run_config,
            error_handlers=error_handlers,
            history_limit=None if settings is None else settings.limit,
        )

    async def _recorded(self, work: _Work, agent: Agent[Any]) -> DurableResult:
        name = f'submission "{self.session_id}/{work.submission_id}"'
        admitted = work.admitted
        reason = {"outcome": str(admitted.outcome), "reason": admitted.outcome_reason}
        if admitted.outcome is Outcome.FAILED:
            raise RunFailed(f"{name} is settled failed ({admitted.outcome_reason})", detail=reason)
        if admitted.outcome is Outcome.ABORTED:
            raise RunAborted(f"{name} is settled aborted ({admitted.outcome_reason})", detail=reason)
        path = await self._path()
        answer: Answer | None = recorded_answer(path, work.submission_id)
        if answer is None:
            raise NotFound(f"{name} is settled completed, and the session's record holds no answer of it (any more)")
        return DurableResult(work.submission_id, typed_output(answer, agent), recorded=True)

    # --- the SDK's Session protocol ----------------------------------------------------------------------------------

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the conversation, oldest first; with *limit* the last so many items of it.

        What a run in progress has recorded so far is part of it. A run's interrupted calls have their markers.
        """
        self._refuse_sdk(wrapper)
        items: list[Any] = history(await self._path())
        if limit is None:
            return items
        return items[-limit:] if limit > 0 else []

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Add *items* at the end, all of them or none.

        Raises:
            SessionBusy: a run of the session is unfinished; nothing was added.
            InvalidInput: an item can't be stored.
        """
        self._refuse_sdk(wrapper)
        if items:
            await self._change(Operation(OP_ADD, _items(items)))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Take the last item out of the conversation and return it, None where there is none.

        The record keeps it, below a note that it was taken out: nothing that was recorded is lost.

        Raises:
            SessionBusy: a run of the session is unfinished; nothing was taken out.
        """
        self._refuse_sdk(wrapper)
        if not await self.get_items():
            return None
        before = await self._change(Operation(OP_POP))
        popped: list[Any] = before[-1:]
        return popped[0] if popped else None

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Begin anew: what stands before is no part of the conversation any more. The record keeps it (see `prune`).

        Raises:
            SessionBusy: a run of the session is unfinished; nothing was cleared.
        """
        self._refuse_sdk(wrapper)
        if await self.get_items():
            await self._change(Operation(OP_CLEAR))

    @staticmethod
    def _refuse_sdk(wrapper: RunContextWrapper[Any] | None) -> None:
        # The SDK's runner, and nobody else, hands over its context.
        if wrapper is not None:
            raise NotWriteAhead

    async def _change(self, asked: Operation) -> list[Item]:
        """Carry an operation out as a submission of its own; return the conversation before it."""
        async with self._working(asked, f"{asked.op}:{uuid4().hex}", None) as work:
            try:
                async for attempt in work.attempts():
                    if attempt.submission_id != work.submission_id:
                        # A run that crashed: it needs its agent, which we have not.
                        await self._call(attempt.release)
                        raise SessionBusy(
                            f'could not change session "{self.session_id}": submission "{attempt.submission_id}" before'
                            " it is unfinished",
                            hint="finish it first: call run() with its id, or with the next prompt",
                        )
                    with suppress(AttemptLost):
                        return await to_its_end(self._carry_out(attempt))
            except (SessionBusy, asyncio.CancelledError):
                # It must not be carried out behind the back of whoever was told that it was not.
                done = await self._call(lambda: self._runner.request_abort(self.session_id, work.submission_id))
                if done.outcome is not Outcome.COMPLETED:
                    raise
            path = await self._path()
        own = f"submission-input:{work.submission_id}"
        at = next((number for number, one in enumerate(path) if _id(one) == own), None)
        if at is None:
            raise SessionBusy(f'could not change session "{self.session_id}": the change was aborted')
        return history(path[:at])

    async def _carry_out(self, attempt: Attempt) -> list[Item]:
        try:
            path = await self._call(attempt.begin)
            await self._call(lambda: attempt.settle("completed"))
        except ReconcilerError:
            # Left to its lease: beats must not keep alive what nobody works on.
            attempt.abandon()
            raise
        own = f"submission-input:{attempt.submission_id}"
        at = next(number for number, one in enumerate(path.items) if _id(one) == own)
        return history(path.items[:at])

    # --- inside ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _working(
        self, asked: Operation, submission_id: str | None, deadline_s: float | None
    ) -> AsyncIterator[_Work]:
        if id(self) in _inside.get():
            raise SessionBusy(
                f'could not work on session "{self.session_id}": the call comes from within its own run',
                hint="use a session of its own for what a tool runs",
            )
        end = time.monotonic() + self._wait_s
        try:
            await asyncio.wait_for(self._turn.acquire(), self._wait_s)
        except TimeoutError:
            raise SessionBusy(f'could not work on session "{self.session_id}" for {self._wait_s:g} s') from None
        token = _inside.set(_inside.get() | {id(self)})
        try:
            work = _Work(self, asked, submission_id or uuid4().hex, deadline_s, end)
            await work.admit()
            yield work
        finally:
            with suppress(ValueError):
                # Another context may close a stream.
                _inside.reset(token)
            self._turn.release()

    async def _path(self) -> Sequence[PathItem]:
        try:
            path = await self._call(lambda: self._runner.path(self.session_id))
        except NotFound:
            return ()
        return path.items

    async def _call(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Run a blocking call in the session's own thread, to its end, whoever is cancelled meanwhile.

        *undo* takes back, in the same thread, what a call did whose caller was cancelled.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, work)
        cancelled = await _done(future)
        if cancelled is None:
            return future.result()
        if future.exception() is None and undo is not None:
            result = future.result()
            await _done(loop.run_in_executor(self._pool, lambda: undo(result)))
        raise cancelled


async def _done(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def _give_back(claimed: Sequence[Attempt]) -> None:
    for attempt in claimed:
        with suppress(ReconcilerError):
            attempt.release("cancelled")
        attempt.abandon()


class _Work:
    """One submission, until it has an outcome."""

    def __init__(
        self, session: DurableSession, asked: Operation, submission_id: str, deadline_s: float | None, end: float
    ) -> None:
        self._session = session
        self._asked = asked
        self.submission_id = submission_id
        self._deadline_s = deadline_s
        self._end = end
        self._earlier_error: BaseException | None = None
        self._is_known = False
        self.admitted: Submission

    async def admit(self) -> Submission:
        """Submit, or look what became of it: the same id and content gives the first answer.

        Raises:
            NotFound: it was admitted before, and is not there any more.
        """
        session = self._session
        kind = "prompt" if self._asked.op == OP_RUN else "signal"
        self.admitted = await session._call(
            lambda: session._runner.submit(
                session.session_id,
                self.submission_id,
                self._asked.payload(),
                deadline_s=self._deadline_s,
                kind=kind,
            )
        )
        if self._is_known and self.admitted.created:
            # Looking has admitted it anew: nobody asked for that.
            await session._call(lambda: session._runner.request_abort(session.session_id, self.submission_id))
            raise NotFound(
                f'submission "{session.session_id}/{self.submission_id}" is gone: its session was deleted',
                hint="call again to run it anew, in a session without its history",
            )
        self._is_known = True
        return self.admitted

    async def attempts(self) -> AsyncIterator[Attempt]:
        """Claim in the session, this submission or one before it, until this one has its outcome.

        Changes of the conversation that others left are carried out on the way.

        Raises:
            SessionBusy: there was nothing to claim and no outcome until the end.
        """
        session, pause = self._session, _FIRST_PAUSE_S
        while self.admitted.outcome is None:
            claimed = await session._call(lambda: session._runner.claim(session_id=session.session_id), _give_back)
            for attempt in claimed:
                pause = _FIRST_PAUSE_S
                if attempt.submission_id != self.submission_id and await self._is_carried_out(attempt):
                    continue
                yield attempt
            if (await self.admit()).outcome is not None:
                return
            if not claimed:
                if time.monotonic() >= self._end:
                    raise SessionBusy(
                        f'could not work on submission "{session.session_id}/{self.submission_id}" for'
                        f" {session._wait_s:g} s: it is {self.admitted.status}, and another process works on the"
                        " session, or nobody has decided about what crashed"
                    ) from self._earlier_error
                await asyncio.sleep(min(pause, max(0.0, self._end - time.monotonic())))
                pause = min(_PAUSE_MAX_S, pause * 2)

    async def _is_carried_out(self, attempt: Attempt) -> bool:
        try:
            asked = operation(attempt.payload, f'submission "{attempt.session_id}/{attempt.submission_id}"')
        except ForeignSubmission:
            await self._session._call(lambda: attempt.release("capability_missing"))
            raise
        if asked.op == OP_RUN:
            return False
        with suppress(AttemptLost):
            await to_its_end(self._session._carry_out(attempt))
        return True

    async def earlier(self, run: Callable[[], Any]) -> None:
        """Finish a run that stands before this one. How it ends is its own affair, and on record."""
        try:
            await run()
        except (AgentUnknown, ForeignSubmission):
            raise
        except ReconcilerError as error:
            self._earlier_error = error
        except Exception as error:  # noqa: BLE001 - whatever ended it, its caller is not this one
            self._earlier_error = error


class DurableStream:
    """A streamed run: iterate `stream_events`, then look at `result`."""

    def __init__(self, events: AsyncIterator[Any], found: list[DurableResult]) -> None:
        self._events = events
        self._found = found

    def stream_events(self) -> AsyncIterator[Any]:
        """Return the SDK's events, once. Of a finished run there are none: its answer is in `result`."""
        return self._events

    @property
    def result(self) -> DurableResult:
        """What it came to.

        Raises:
            InvalidInput: the events were not iterated to their end.
        """
        if not self._found:
            raise InvalidInput("the run has no result yet", hint="iterate stream_events() to its end first")
        return self._found[-1]

    @property
    def final_output(self) -> Any:
        """The answer; as `result` otherwise."""
        return self.result.final_output


def _id(item: PathItem) -> str | None:
    return item.entry.id if isinstance(item.entry, SessionEntry) else None


def _items(given: object) -> tuple[Item, ...]:
    if isinstance(given, str):
        return (user_message(given),)
    if not isinstance(given, Sequence):
        raise InvalidInput(f"cannot take {type(given).__name__} as input: a text, or a list of items")
    found = []
    for item in given:
        plain = item.model_dump(exclude_unset=True) if hasattr(item, "model_dump") else item
        if not isinstance(plain, dict):
            raise InvalidInput(f"cannot take {type(item).__name__} as an item: the SDK's items are objects")
        found.append(plain)
    return tuple(found)
