"""The workloads on agentrt. Each has its twin in `floors.py`, with the same script, tools and layers."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any

from pydantic_core import to_json

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt.event import TextBlockDeltaEvent
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.state import StateStore
from agentrt.tool import FunctionTool, ToolBase
from agentrt.types import JSONSchema, ToolChoice
from benchmarks.workloads.script import (
    ANSWER,
    ARGUMENTS,
    DELTAS,
    PIECE,
    QUESTION,
    ROUNDS,
    SUM,
    SYSTEM_PROMPT,
    Workload,
    add,
    expect,
    explain,
    make_functions,
)

__all__ = [
    "AgentChat",
    "AgentConstruct",
    "AgentDelegation",
    "AgentHeld",
    "AgentNew",
    "AgentStream",
    "CannedChatModel",
    "PassOnAll",
    "PassOnCalls",
    "PassOnStream",
    "SecondAgent",
    "await_answer",
    "read_answer",
]


class CannedChatModel(ChatModelBase):
    """Plays prebuilt responses round and round, or streams prebuilt chunks."""

    _completes_streams = True  # as those of the models that ship

    def __init__(self, responses: Sequence[ChatResponse] = (), chunks: Sequence[ChatResponse] = ()) -> None:
        # As large as those of today: what is held must never be summarised.
        super().__init__(model="canned", stream=bool(chunks), context_size=200_000)
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


class AgentChat(Workload):
    """A reply in `rounds` rounds of `calls` tool calls each, then words; awaited, or read event by event.

    In `layers` layers that pass calls on, and in those of `within`. The model does not stream.
    """

    def __init__(
        self,
        rounds: int = ROUNDS,
        layers: int = 0,
        within: Sequence[MiddlewareBase] = (),
        *,
        calls: int = 1,
        tool: Callable[..., Awaitable[str]] = add,
        store: StateStore | None = None,
        reads: bool = False,
    ) -> None:
        self._rounds, self._calls, self._answer = rounds, calls, read_answer if reads else await_answer
        self._agent = Agent(
            name="assistant",
            system_prompt=SYSTEM_PROMPT,
            model=CannedChatModel(responses(rounds, calls)),
            toolkit=Toolkit(tools=[FunctionTool(tool, name="add")] if rounds else []),
            middlewares=[*within, *(PassOnCalls() for _ in range(layers))],
            state_store=store,
        )
        self._state = self._agent.state

    async def __call__(self) -> None:
        self._state.context.clear()
        await self._ask()

    async def _ask(self) -> None:
        answer = await self._answer(self._agent)
        # Read straight from the last block: looking for it costs as much as a round of the floor.
        if answer.content[-1].text != ANSWER:  # type: ignore[union-attr]  # any other block is an error as well
            expect(answer.get_text_content(), ANSWER)

    def check(self) -> None:
        self._check_reply(self._state.context[:])

    def _check_reply(self, messages: Sequence[Msg]) -> None:
        calls = self._calls
        expect(messages[0].get_text_content(), QUESTION)
        blocks = [block for msg in messages[1:] for block in msg.get_content_blocks()]
        kinds = [*[*["tool_call"] * calls, *["tool_result"] * calls] * self._rounds, "text"]
        expect([block.type for block in blocks], kinds)
        results = [(block.id, _text(block)) for block in blocks if isinstance(block, ToolResultBlock)]
        expect(results, [(f"call-{number}", SUM) for number in range(self._rounds * calls)])


async def await_answer(agent: Agent) -> Msg:
    """Return the answer to the question, as a program that shows nothing before it."""
    return await agent.reply(UserMsg("user", QUESTION))


async def read_answer(agent: Agent) -> Msg:
    """Return the answer to the question, as a program that shows what happens."""
    stream = agent.reply_stream(UserMsg("user", QUESTION))
    async with stream as events:
        async for _ in events:
            pass
    return stream.message


def responses(rounds: int, calls: int = 1) -> list[ChatResponse]:
    """Return what the model says in a reply of `rounds` rounds with `calls` tool calls each."""
    numbers = [range(number * calls, (number + 1) * calls) for number in range(rounds)]
    rounds_of_calls = [
        ChatResponse([ToolCallBlock(f"call-{number}", "add", ARGUMENTS) for number in group]) for group in numbers
    ]
    return [*rounds_of_calls, ChatResponse([TextBlock(ANSWER)])]


def held_messages(count: int) -> list[Msg]:
    """Return the messages of a conversation so far."""
    messages: list[Msg] = []
    for number in range(count // 2):
        messages += [
            UserMsg("user", f"{number}: {QUESTION}"),
            AssistantMsg("assistant", f"{number}: {ANSWER}"),
        ]
    return messages


class AgentHeld(AgentChat):
    """A reply in a conversation that holds messages already: taken back after each reply, or growing."""

    max_iterations = 32

    def __init__(self, held: int, *, takes_back: bool, rounds: int = 0, store: StateStore | None = None) -> None:
        super().__init__(rounds, store=store)
        self._held, self._takes_back = held, takes_back
        self._state.context += held_messages(held)

    async def prepare(self) -> None:
        if not self._takes_back:
            # The reply after the history was cut is another workload, and is not measured here.
            await self._take_back_and_ask()

    async def __call__(self) -> None:
        if self._takes_back:
            await self._take_back_and_ask()
        else:
            await self._ask()

    async def _take_back_and_ask(self) -> None:
        del self._state.context[self._held :]
        await self._ask()

    def check(self) -> None:
        expect(len(self._state.context) >= self._held + 2, True)
        self._check_reply(self._state.context[-2:])


class AgentDelegation(AgentChat):
    """A reply in one round with one call: of an agent that answers at once, or of an async function."""

    def __init__(self, *, asks_agent: bool) -> None:
        super().__init__(0)
        tool: ToolBase = FunctionTool(explain)
        if asks_agent:
            child = Agent(name="explain", system_prompt=SYSTEM_PROMPT, model=CannedChatModel(responses(0)))
            tool = child.as_tool("Explain something.")
        call = ToolCallBlock("call-0", "explain", to_json({"query": QUESTION}).decode())
        self._agent = Agent(
            name="assistant",
            system_prompt=SYSTEM_PROMPT,
            model=CannedChatModel([ChatResponse([call]), *responses(0)]),
            toolkit=Toolkit(tools=[tool]),
        )
        self._state = self._agent.state

    def check(self) -> None:
        _, answer = self._state.context
        results = [_text(block) for block in answer.get_content_blocks() if isinstance(block, ToolResultBlock)]
        expect(results, [ANSWER])


def _text(result: ToolResultBlock) -> str:
    if isinstance(result.output, str):
        return result.output
    return "".join(part.text for part in result.output if isinstance(part, TextBlock))


class AgentNew(Workload):
    """A new conversation on agentrt, over the chains of an agent that is there."""

    def __init__(self) -> None:
        self._agent = Agent(name="assistant", system_prompt=SYSTEM_PROMPT, model=CannedChatModel())
        self._state = AgentState()

    async def __call__(self) -> None:
        self._state = state = AgentState()
        self._agent.with_state(state)

    def check(self) -> None:
        expect(list(self._state.context), [])


class AgentStream(Workload):
    """One answer in `deltas` deltas, each seen by every layer, through `on_reasoning`."""

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


# A class for each, since a program has many layers of different kinds rather than ten of one.
LAYER_KINDS = [type(f"PassOnCalls{number}", (PassOnCalls,), {}) for number in range(10)]


class AgentConstruct(Workload):
    """An agent with ten new tools and ten layers."""

    def __init__(self) -> None:
        self._agent: Agent | None = None

    async def __call__(self) -> None:
        self._build(make_functions())

    def _build(self, tools: Sequence[Any]) -> None:
        self._agent = make_agent(tools)
        # Asked for here, so that nothing is gained by putting them off until the first reply.
        expect(len(self._agent.toolkit.get_json_schemas()), len(tools))


class SecondAgent(AgentConstruct):
    """A further agent over functions, or tools made of them, that an agent has already, with ten layers of its own."""

    def __init__(self, make_tool: Callable[[Any], Any] = FunctionTool) -> None:
        super().__init__()
        self._tools = [make_tool(function) for function in make_functions()]
        self._build(self._tools)

    async def __call__(self) -> None:
        self._build(self._tools)


def make_agent(tools: Sequence[Any]) -> Agent:
    """Return an agent with these tools and ten layers."""
    return Agent(
        name="assistant",
        system_prompt=SYSTEM_PROMPT,
        model=CannedChatModel(),
        toolkit=Toolkit(tools=tools),
        middlewares=[layer() for layer in LAYER_KINDS],
    )
