"""The workloads W1 to W5, each for the floor and for agentrt, with the same script, tool and layers on both sides.

A workload is called once per iteration and then answers one message in a conversation whose history is emptied first,
so that none grows. It raises `WrongRunError` when the run did not give the text, or the number of deltas, that the
script says. The scripts are played round and round, so a call too many or too few shows in the text. `check()` looks at
the last conversation more closely, outside the timed section.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt.event import TextBlockDeltaEvent
from agentrt.message import TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.types import JSONSchema, ToolChoice
from agentrt_middleware.rate_limit.queue import Limiter
from agentrt_middleware.rate_limit.usage_window import Limits
from benchmarks import floor

__all__ = [
    "CALLS",
    "DELTAS",
    "ROUNDS",
    "AgentChat",
    "AgentNew",
    "AgentQueue",
    "AgentStream",
    "FloorChat",
    "FloorNew",
    "FloorQueue",
    "FloorStream",
    "PassOnAll",
    "Workload",
    "WrongRunError",
    "bare_steps",
]

ROUNDS = 10
DELTAS = 2_000
CALLS = 400
CALLERS = 4

SYSTEM_PROMPT = "You are a helpful assistant."
QUESTION = "What is three and four?"
ANSWER = "Seven."
ARGUMENTS = '{"a": 3, "b": 4}'
SUM = "7"
PIECE = "word "


class Workload(Protocol):
    """One iteration when called; `check` looks closely at what the last one left."""

    async def __call__(self) -> None: ...

    def check(self) -> None: ...


class WrongRunError(AssertionError):
    """A run did something else than its script says, so its time means nothing."""


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def expect(actual: object, expected: object) -> None:
    """Raise `WrongRunError` unless the two are equal."""
    if actual != expected:
        raise WrongRunError(f"the run gave {actual!r:.200}, but its script says {expected!r:.200}")


async def bare_steps(count: int) -> None:
    """Take `count` steps of the plainest `async for`: the unit in which the floor can be judged on any machine."""
    async for _ in _numbers(count):
        pass


async def _numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


class FloorModel:
    """Plays prebuilt answers round and round, or streams prebuilt chunks."""

    def __init__(self, answers: Sequence[floor.Chunk] = (), chunks: Sequence[floor.Chunk] = ()) -> None:
        self._answers = cycle(answers)
        self._chunks = chunks

    async def __call__(
        self, messages: list[floor.Message], tools: list[dict[str, Any]]
    ) -> floor.Chunk | AsyncIterator[floor.Chunk]:
        return self._pieces() if self._chunks else next(self._answers)

    async def _pieces(self) -> AsyncIterator[floor.Chunk]:
        for chunk in self._chunks:
            yield chunk


async def _pass_call(values: floor.Values, next_handler: Callable[..., Awaitable[Any]]) -> Any:
    return await next_handler(**values)


async def _pass_stream(values: floor.Values, next_handler: Callable[..., AsyncIterator[Any]]) -> AsyncIterator[Any]:
    async for item in next_handler(**values):
        yield item


class FloorChat:
    """W1 to W3 on the floor: a reply in `rounds` rounds of one tool call each, then words; not streamed."""

    def __init__(self, rounds: int = ROUNDS, layers: int = 0) -> None:
        rounds_of_calls = [floor.Chunk("", [floor.ToolCall(f"call-{n}", "add", ARGUMENTS)]) for n in range(rounds)]
        tools = [floor.Tool("add", add, {"a": int, "b": int})] if rounds else []
        self._rounds = rounds
        self._history = [floor.Message("system", SYSTEM_PROMPT)]
        self._loop = floor.Loop(
            FloorModel([*rounds_of_calls, floor.Chunk(ANSWER)]),
            tools,
            around_call=[_pass_call] * layers,
            around_tool=[_pass_stream] * layers,
        )

    async def __call__(self) -> None:
        del self._history[1:]
        answer = await self._loop.reply(self._history, QUESTION)
        if answer.content != ANSWER:
            expect(answer.content, ANSWER)

    def check(self) -> None:
        expect(
            [message.role for message in self._history],
            ["system", "user", *["assistant", "tool"] * self._rounds, "assistant"],
        )
        results = [(message.tool_call_id, message.content) for message in self._history if message.role == "tool"]
        expect(results, [(f"call-{n}", SUM) for n in range(self._rounds)])


class FloorNew:
    """A new conversation on the floor."""

    def __init__(self) -> None:
        self._history: list[floor.Message] = []

    async def __call__(self) -> None:
        self._history = [floor.Message("system", SYSTEM_PROMPT)]

    def check(self) -> None:
        expect(len(self._history), 1)


class FloorStream:
    """W4 on the floor: one answer in `deltas` deltas, each seen by every layer."""

    def __init__(self, deltas: int = DELTAS, layers: int = 0) -> None:
        self._text = PIECE * deltas
        self._deltas = deltas
        model = FloorModel(chunks=[floor.Chunk(PIECE) for _ in range(deltas)])
        self._loop = floor.Loop(model, around_stream=[_pass_stream] * layers)
        self._history = [floor.Message("system", SYSTEM_PROMPT)]

    async def __call__(self) -> None:
        del self._history[1:]
        count = 0
        item: floor.Chunk | floor.Message | None = None
        async for item in self._loop.stream(self._history, QUESTION):
            if type(item) is floor.Chunk:
                count += 1
        expect(count, self._deltas)
        expect(item.content if isinstance(item, floor.Message) else item, self._text)

    def check(self) -> None:
        expect([message.role for message in self._history], ["system", "user", "assistant"])


class CannedChatModel(ChatModelBase):
    """Plays prebuilt responses round and round, or streams prebuilt chunks."""

    def __init__(self, responses: Sequence[ChatResponse] = (), chunks: Sequence[ChatResponse] = ()) -> None:
        super().__init__(model="canned", stream=bool(chunks))
        self._responses = cycle(responses)
        self._chunks = chunks

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        return self._pieces() if self._chunks else next(self._responses)

    async def _pieces(self) -> AsyncGenerator[ChatResponse, None]:
        for chunk in self._chunks:
            yield chunk


class PassOnCalls(MiddlewareBase):
    """Sees each model call and each tool call, and passes them on."""

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return await next_handler(**input_kwargs)

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler(**input_kwargs):
            yield item


class PassOnAll(PassOnCalls):
    """Sees each reply as well: what a tracing layer stands around, and nothing done about it."""

    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler(**input_kwargs):
            yield item


class PassOnStream(MiddlewareBase):
    """Sees each event of a round, and passes it on."""

    async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler(**input_kwargs):
            yield item


class AgentChat:
    """W1 to W3 on agentrt: a reply in `rounds` rounds of one tool call each, then words; not streamed.

    In `layers` layers that pass calls on, and in those of `within`.
    """

    def __init__(self, rounds: int = ROUNDS, layers: int = 0, within: Sequence[MiddlewareBase] = ()) -> None:
        rounds_of_calls = [ChatResponse([ToolCallBlock(f"call-{n}", "add", ARGUMENTS)]) for n in range(rounds)]
        self._rounds = rounds
        self._agent = Agent(
            name="assistant",
            system_prompt=SYSTEM_PROMPT,
            model=CannedChatModel([*rounds_of_calls, ChatResponse([TextBlock(ANSWER)])]),
            toolkit=Toolkit(tools=[add] if rounds else []),
            middlewares=[*within, *(PassOnCalls() for _ in range(layers))],
        )
        self._state = self._agent.state

    async def __call__(self) -> None:
        self._state.context.clear()
        answer = await self._agent.reply(UserMsg("user", QUESTION))
        # Read straight from the last block: looking for it costs as much as a round of the floor.
        if answer.content[-1].text != ANSWER:  # type: ignore[union-attr]  # any other block is an error as well
            expect(answer.get_text_content(), ANSWER)

    def check(self) -> None:
        context = self._state.context
        expect(context[0].get_text_content(), QUESTION)
        blocks = [block for msg in context[1:] for block in msg.get_content_blocks()]
        expect([block.type for block in blocks], [*["tool_call", "tool_result"] * self._rounds, "text"])
        results = [(block.id, _text(block)) for block in blocks if isinstance(block, ToolResultBlock)]
        expect(results, [(f"call-{n}", SUM) for n in range(self._rounds)])


def _text(result: ToolResultBlock) -> str:
    if isinstance(result.output, str):
        return result.output
    return "".join(part.text for part in result.output if isinstance(part, TextBlock))


class AgentNew:
    """A new conversation on agentrt, over the chains of an agent that is there."""

    def __init__(self) -> None:
        self._agent = Agent(name="assistant", system_prompt=SYSTEM_PROMPT, model=CannedChatModel())
        self._state = AgentState()

    async def __call__(self) -> None:
        self._state = state = AgentState()
        self._agent.with_state(state)

    def check(self) -> None:
        expect(list(self._state.context), [])


class AgentStream:
    """W4 on agentrt: one answer in `deltas` deltas, each seen by every layer, through `on_reasoning`."""

    def __init__(self, deltas: int = DELTAS, layers: int = 0) -> None:
        self._text = PIECE * deltas
        self._deltas = deltas
        chunks = [ChatResponse([TextBlock(PIECE, id="text")], is_last=False) for _ in range(deltas)]
        whole = ChatResponse([TextBlock(self._text, id="text")])
        self._agent = Agent(
            name="assistant",
            system_prompt=SYSTEM_PROMPT,
            model=CannedChatModel(chunks=[*chunks, whole]),
            middlewares=[PassOnStream() for _ in range(layers)],
        )
        self._state = self._agent.state

    async def __call__(self) -> None:
        self._state.context.clear()
        count = 0
        item: object = None
        stream = self._agent.reply_stream(UserMsg("user", QUESTION), yield_final_msg=True)
        async with stream as items:
            async for item in items:
                if type(item) is TextBlockDeltaEvent:
                    count += 1
        expect(count, self._deltas)
        expect(item.get_text_content() if isinstance(item, Msg) else item, self._text)

    def check(self) -> None:
        expect([msg.role for msg in self._state.context], ["user", "assistant"])


class FloorQueue:
    """W5 on the floor: calls that go through one place, each waiting in its queue."""

    def __init__(self, calls: int = CALLS) -> None:
        self._calls_of_caller = range(calls // CALLERS)
        self._expected_order = [caller for _ in self._calls_of_caller for caller in range(CALLERS)]
        self._order: list[int] = []

    async def __call__(self) -> None:
        self._order.clear()
        place = anyio.Semaphore(1, fast_acquire=True)
        async with anyio.create_task_group() as callers, place:
            for caller in range(CALLERS):
                callers.start_soon(self._calls, caller, place)
                await anyio.lowlevel.checkpoint()
        expect(len(self._order), len(self._expected_order))

    async def _calls(self, caller: int, place: anyio.Semaphore) -> None:
        for _ in self._calls_of_caller:
            await place.acquire()
            self._order.append(caller)
            place.release()

    def check(self) -> None:
        expect(self._order, self._expected_order)


class AgentQueue:
    """W5 on agentrt: the same through a rate limiter, where every second call is refunded and the others owe tokens."""

    def __init__(self, calls: int = CALLS) -> None:
        self._calls_of_caller = range(calls // CALLERS)
        self._expected_order = [caller for _ in self._calls_of_caller for caller in range(CALLERS)]
        self._order: list[int] = []
        self._limits = Limits(requests_per_minute=1e9, tokens_per_minute=1e9, max_concurrency=1)
        self._limiter = Limiter(self._limits)

    async def __call__(self) -> None:
        self._order.clear()
        self._limiter = Limiter(self._limits)
        async with anyio.create_task_group() as callers:
            lease = await self._limiter.acquire(100)
            for caller in range(CALLERS):
                callers.start_soon(self._calls, caller)
                await anyio.lowlevel.checkpoint()
            await lease.settle()
        expect(len(self._order), len(self._expected_order))

    async def _calls(self, caller: int) -> None:
        for number in self._calls_of_caller:
            lease = await self._limiter.acquire(100)
            self._order.append(caller)
            await lease.settle(1_000 if number % 2 else 10)

    def check(self) -> None:
        expect(self._order, self._expected_order)
        expect(self._limiter.usage.active, 0)
