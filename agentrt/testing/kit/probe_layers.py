"""Layers that the kit puts around a middleware, and inside it."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import anyio
import anyio.lowlevel

from agentrt.agent import Agent
from agentrt.event import (
    AgentEvent,
    CustomEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.hooks import (
    ActingValues,
    CheckPermissionValues,
    MiddlewareBase,
    ModelCallValues,
    NextActing,
    NextCheckPermission,
    NextModelCall,
    NextObserve,
    NextPrint,
    NextReasoning,
    NextReply,
    ObserveValues,
    PrintValues,
    ReasoningValues,
    ReplyValues,
)
from agentrt.message import AssistantMsg, Msg, ToolResultState
from agentrt.model import ModelResult
from agentrt.types import ChatResponse, PermissionDecision, ToolChunk, ToolResponse

_ProbedT = TypeVar("_ProbedT")


class _ProbeLayer(MiddlewareBase):
    """Does one thing in each hook: `pass_items` gets the inner stream, `pass_result` makes the inner call."""

    def pass_items(self, hook: str, stream: AsyncIterator[_ProbedT]) -> AsyncGenerator[_ProbedT, None]:
        raise NotImplementedError

    async def pass_result(self, hook: str, call: Callable[[], Awaitable[_ProbedT]]) -> _ProbedT:
        return await call()

    # Each hook is written out: the runtime reads the class, and finds the hook of an error by its code.

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async with aclosing(self.pass_items("on_reply", next_handler(**input_kwargs))) as items:
            async for item in items:
                yield item

    async def on_reasoning(
        self, agent: Agent, input_kwargs: ReasoningValues, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async with aclosing(self.pass_items("on_reasoning", next_handler(**input_kwargs))) as items:
            async for item in items:
                yield item

    async def on_acting(
        self, agent: Agent, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        async with aclosing(self.pass_items("on_acting", next_handler(**input_kwargs))) as items:
            async for item in items:
                yield item

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        result = await self.pass_result("on_model_call", lambda: next_handler(**input_kwargs))
        return result if isinstance(result, ChatResponse) else self.pass_items("on_model_call", aiter(result))

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        return await self.pass_result("on_check_permission", lambda: next_handler(**input_kwargs))


class OutcomeProbe(_ProbeLayer):
    """Records in `outcomes` how each inner hook ends once it is armed: with an error, or `None` for success.

    With `core`, the probe on the inner side of the middleware, a success counts only if a cancellation came
    out of that hook there: results already on their way may still arrive.
    """

    def __init__(self, core: "OutcomeProbe | None" = None) -> None:
        self.outcomes: list[tuple[str, BaseException | None]] = []
        self._is_armed = False  # only from the fault on
        self._core = core

    def arm(self) -> None:
        self._is_armed = True
        if self._core is not None:
            self._core.arm()

    def was_cancelled_in(self, hook: str) -> bool:
        cancelled = anyio.get_cancelled_exc_class()
        return any(name == hook and isinstance(error, cancelled) for name, error in self.outcomes)

    async def pass_items(self, hook: str, stream: AsyncIterator[_ProbedT]) -> AsyncGenerator[_ProbedT, None]:
        try:
            async for item in stream:
                self._note(hook, None)
                yield item
        except BaseException as error:  # a cancellation is an outcome too
            self._note(hook, error)
            raise
        self._note(hook, None)

    async def pass_result(self, hook: str, call: Callable[[], Awaitable[_ProbedT]]) -> _ProbedT:
        try:
            result = await call()
        except BaseException as error:
            self._note(hook, error)
            raise
        self._note(hook, None)
        return result

    def _note(self, hook: str, error: BaseException | None) -> None:
        if self._is_armed and (error is not None or self._core is None or self._core.was_cancelled_in(hook)):
            self.outcomes.append((hook, error))


class ObserveAndPrintProbe(OutcomeProbe):
    """Records observing and printing too; a separate class, since an agent prints only if a layer has the hook."""

    async def on_observe(self, agent: Agent, input_kwargs: ObserveValues, next_handler: NextObserve) -> None:
        await self.pass_result("on_observe", lambda: next_handler(**input_kwargs))

    async def on_print(self, agent: Agent, input_kwargs: PrintValues, next_handler: NextPrint) -> None:
        await self.pass_result("on_print", lambda: next_handler(**input_kwargs))


class DelayLayer(_ProbeLayer):
    """Holds each item back until the next one comes, or the stream ends."""

    async def pass_items(self, hook: str, stream: AsyncIterator[_ProbedT]) -> AsyncGenerator[_ProbedT, None]:
        delayed: list[_ProbedT] = []  # at most one item; a list, since any value may be an item
        async for item in stream:
            if delayed:
                yield delayed.pop()
            await anyio.lowlevel.checkpoint()
            delayed.append(item)
        if delayed:
            yield delayed.pop()


class FaultLayer(_ProbeLayer):
    """Raises an error in one hook, once: before the inner call, or after its first item."""

    def __init__(self, hook: str, error: Exception, *, is_midway: bool) -> None:
        self._hook = hook
        self._error: Exception | None = error
        self._is_midway = is_midway

    async def pass_items(self, hook: str, stream: AsyncIterator[_ProbedT]) -> AsyncGenerator[_ProbedT, None]:
        if hook != "on_model_call":  # there `pass_result` has already failed
            self._fail(hook, is_midway=False)
        async for item in stream:
            yield item
            self._fail(hook, is_midway=True)

    async def pass_result(self, hook: str, call: Callable[[], Awaitable[_ProbedT]]) -> _ProbedT:
        self._fail(hook, is_midway=False)
        result = await call()
        if not hasattr(result, "__anext__"):  # a stream fails after its first item
            self._fail(hook, is_midway=True)
        return result

    def _fail(self, hook: str, *, is_midway: bool) -> None:
        error = self._error
        if error is not None and hook == self._hook and is_midway == self._is_midway:
            self._error = None  # once: a retry of the middleware must succeed
            raise error


class AnswerLayer(MiddlewareBase):
    """Answers every message itself, and passes on the answers to questions."""

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        if agent.state.reply_context is None:  # otherwise the reply resumes, and its end is still to come
            yield AssistantMsg("layer", "A layer answers this.")
            return
        async for item in next_handler():
            yield item


class ResumeAgainLayer(MiddlewareBase):
    """Leaves a resumed reply at its first event of one class, and calls `next_handler` again."""

    def __init__(self, event_class: type[AgentEvent]) -> None:
        self._event_class = event_class

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        if isinstance(input_kwargs["inputs"], AgentEvent):
            async for item in next_handler():
                if isinstance(item, self._event_class):
                    break
                yield item
            else:
                return
        async for item in next_handler():
            yield item


class RewriteLayer(MiddlewareBase):
    """Replaces the last message, unless the reply waits for an answer."""

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler():
            is_answer = isinstance(item, Msg) and agent.state.reply_context is None
            yield AssistantMsg("layer", "A layer has rewritten this.") if is_answer else item


class ForeignEventsLayer(MiddlewareBase):
    """Sends events of another reply where those of a sub-agent come: while a tool runs.

    `sent` has the events sent so far.
    """

    reply_id = "another-reply"

    def __init__(self) -> None:
        self.sent: list[AgentEvent] = []

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler():
            yield item
            # Once: a question of the middleware has a result too.
            if isinstance(item, ToolResultStartEvent) and not self.sent:
                for event in self._events():
                    self.sent.append(event)
                    yield event

    def _events(self) -> list[AgentEvent]:
        reply_id, call_id = self.reply_id, "add"  # an id that a call of the reply may have
        events: list[AgentEvent] = [
            ReplyStartEvent(reply_id, "another-session", "another"),
            ModelCallStartEvent(reply_id, "another-model"),
            TextBlockStartEvent(reply_id, "another-block"),
            TextBlockDeltaEvent(reply_id, "another-block", "Another answer."),
            ModelCallRetryEvent("another failure", block_ids=["another-block"], reply_id=reply_id),
            TextBlockStartEvent(reply_id, "third-block"),
            TextBlockDeltaEvent(reply_id, "third-block", "A third answer."),
            TextBlockEndEvent(reply_id, "third-block"),
            ToolCallStartEvent(reply_id, call_id, "another_tool"),
            ToolCallEndEvent(reply_id, call_id, tool_call_name="another_tool"),
            ModelCallEndEvent(reply_id, 1_000_003, 1_000_003),
            ToolResultStartEvent(reply_id, call_id, "another_tool"),
            ToolResultTextDeltaEvent(reply_id, call_id, "another result"),
            ToolResultEndEvent(reply_id, call_id, ToolResultState.ERROR),
            CustomEvent("another_event", reply_id=reply_id),
            ReplyEndEvent(reply_id, "another-session"),
        ]
        for seq, event in enumerate(events, 1):
            event.seq = seq  # they come from another stream
        return events
