"""A reply whose events nobody reads is the same reply: what is returned and what is saved do not differ.

`await agent.reply(...)` goes another way than a stream that is read, since carrying each event would cost as much as
all the rest. Random conversations go both ways here, and so do those that are cancelled somewhere.
"""

import functools
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sniffio import current_async_library

from agentrt import Agent, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt.agent import ReActConfig
from agentrt.errors import ContextOverflow, Transient
from agentrt.event import ConfirmResult, CustomEvent, HintBlockEvent, UserConfirmResultEvent
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, OpenQuestion, ToolContext
from agentrt.types import PermissionContext, PermissionRule, ToolChunk, ToolResponse

pytestmark = pytest.mark.time_limit(600)  # hundreds of replies: a busy machine takes a minute

CHANGING = {"created_at", "asked_at", "worked", "revision"}  # from one run to the next
FAULTS = [None, None, None, "raise", "overflow", "interrupt"]


@dataclass
class Turn:
    """One answer of the model; the fault comes before its piece `place`."""

    content: list[ContentBlock]
    is_streamed: bool
    has_last: bool
    usage: ChatUsage | None
    reason: str | None
    waits: bool
    fault: str | None
    place: int


class PlayedModel(ChatModelBase):
    def __init__(self, turns: list[Turn]) -> None:
        super().__init__(model="played")
        self.turns = iter(turns)
        self.agent: Agent | None = None

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        turn = next(self.turns, None)
        if turn is None:
            return ChatResponse([TextBlock("That is all.")])
        if turn.is_streamed:
            return self.pieces(turn)
        await self.meet_fault(turn, turn.place)
        return ChatResponse(list(turn.content), True, turn.usage, turn.reason)

    async def pieces(self, turn: Turn) -> AsyncGenerator[ChatResponse, None]:
        for place, block in enumerate(turn.content):
            await self.meet_fault(turn, place)
            yield ChatResponse([block], False)
        await self.meet_fault(turn, len(turn.content))
        if turn.has_last:
            yield ChatResponse(list(turn.content), True, turn.usage, turn.reason)

    async def meet_fault(self, turn: Turn, place: int) -> None:
        # On trio it is left to chance whether a task that waits, or the one that cancels it, runs first.
        if turn.waits and (turn.fault != "interrupt" or current_async_library() == "asyncio"):
            await anyio.lowlevel.checkpoint()
        if place != turn.place:
            return
        if turn.fault == "raise":
            raise Transient("the line was cut")
        if turn.fault == "overflow":
            raise ContextOverflow("too long")
        if turn.fault == "interrupt":
            assert self.agent is not None
            self.agent.interrupt()


async def add(n: int) -> int:
    """Add one."""
    return n + 1


async def fail(n: int) -> int:
    """Fail."""
    raise ValueError("no")


async def hint(n: int, context: ToolContext) -> str:
    """Tell something on the way."""
    context.emit(HintBlockEvent("", f"hint-{n}", "on the way", "tool"))
    await anyio.lowlevel.checkpoint()
    return "told"


async def ask(n: int) -> str:
    """Do what must be allowed first."""
    return "done"


async def tell(n: int) -> ToolResponse:
    """Give more than a text, and the answer to the user if `n` is 1."""
    answer = {"response_msg": Msg("tool", "That is it.", "assistant", id="told", created_at=1)} if n == 1 else {}
    return ToolResponse([TextBlock("one", id="same"), TextBlock("two", id="same")], metadata={"n": n, **answer})


async def draw(n: int) -> DataBlock:
    """Give a picture."""
    return DataBlock(Base64Source("AAEC", "image/png"), id="picture")


async def stream(n: int) -> AsyncGenerator[str, None]:
    """Give pieces."""
    yield "a"
    await anyio.lowlevel.checkpoint()
    yield "b"


async def release(n: int, context: ToolContext) -> ToolResponse | str:
    """Ask something in the middle of its work, unless `n` is not 1; keep something in any case."""
    context.kept["entries"] = context.kept.get("entries", 0) + 1
    if n == 1 and "sure" not in context.answers:
        return ToolResponse(waits=[OpenQuestion(ToolCallBlock("sure", "release", "{}"))])
    return f"entered {context.kept['entries']} times"


def step_aside(hook: Any) -> Any:
    """Have the hook return the next layer's stream itself."""

    @functools.wraps(hook)
    def entry(self: Any, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return next_handler(**input_kwargs)

    return entry


class Aside(MiddlewareBase):
    """Is a layer around each reply that does not see it."""

    @step_aside
    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        yield


class Passing(MiddlewareBase):
    """Passes tool calls on, and changes what comes back."""

    kept = ToolResponse([TextBlock("kept", id="kept")])

    def __init__(self, change: str) -> None:
        self.change = change

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        if self.change == "keep":
            yield self.kept
            return
        async for item in next_handler(**input_kwargs):
            if self.change != "lose" or not isinstance(item, ToolResponse):
                yield item
        if self.change == "add":
            yield ToolChunk([TextBlock("late", id="late")])


class Emitting(MiddlewareBase):
    """Emits an event before each request, which changes no message.

    One that does takes its place at once where nobody reads, and after a failed request else. For the same reason it
    does not say that it emits: a request in a task of its own is interrupted at another place.
    """

    emits = False

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        agent.run.emit(CustomEvent("request", agent.run.new_id()))
        return await next_handler(**input_kwargs)


TEXTS = st.sampled_from(["", "Hello", "Hello \U0001f600", "a\ud800b", "x" * 5_000])
TOOLS = [add, fail, hint, ask, tell, draw, stream]
NAMES = st.sampled_from([*(tool.__name__ for tool in TOOLS), "stop", "release", "none", ""])
INPUTS = st.sampled_from(['{"n": 1}', '{"n": 2}', "{}", "", '{"n": "\u00e9"}'])
BLOCKS = st.one_of(
    st.builds(TextBlock, TEXTS, id=st.just("t")),
    st.builds(ThinkingBlock, TEXTS, id=st.just("h")),
    st.builds(ToolCallBlock, st.sampled_from(["", "1", "2"]), NAMES, INPUTS),
    st.just(ProviderBlock("somewhere", "{}", id="p")),
)
USAGES = st.sampled_from([None, ChatUsage(3, 4), ChatUsage(0, 0, estimated=True), ChatUsage(500_000, 9)])
TURNS = st.builds(
    Turn,
    st.lists(BLOCKS, max_size=3),
    st.booleans(),
    st.booleans(),
    USAGES,
    st.sampled_from([None, "stop", "length", "pause"]),
    st.booleans(),
    st.sampled_from(FAULTS),
    st.integers(0, 3),
)


@dataclass
class Setting:
    """What a conversation runs with."""

    turns: list[Turn]
    max_output: int
    max_iters: int
    emits: bool
    steps_aside: bool
    is_stored: bool
    change: str | None
    max_tool_calls: int


SETTINGS = st.builds(
    Setting,
    st.lists(TURNS, max_size=4),
    st.sampled_from([5, 100, 100_000]),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, None, "pass", "keep", "add", "lose"]),
    st.sampled_from([1, 100]),
)


def comparable(value: Any) -> Any:
    """Return JSON without times, and without the ids that are random: not those of replies and their blocks."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in CHANGING}
    if isinstance(value, str):
        return "random" if re.fullmatch("[0-9a-f]{24}", value) else value
    return [comparable(item) for item in value] if isinstance(value, list) else value


async def converse(setting: Setting, is_seen: bool) -> list[Any]:
    """Return what came of each reply, and what the state, the store and the caller have after it."""
    model = PlayedModel([replace(turn) for turn in setting.turns])

    # Without a `ToolContext`, with which it would run in a task of its own where somebody reads.
    async def stop(n: int) -> str:
        """Ask the reply to stop, and end all the same."""
        agent.interrupt()
        return "stopping"

    store = InMemoryStateStore() if setting.is_stored else None
    rules = [PermissionRule("ask", "ask")]
    agent = Agent(
        "tester",
        "You are tested.",
        model,
        tools=[
            *(FunctionTool(function) for function in TOOLS),
            FunctionTool(stop, is_concurrency_safe=False),
            FunctionTool(release, is_resumable=True),
        ],
        middlewares=[
            *([Aside()] if setting.steps_aside and not is_seen else []),
            *([Emitting()] if setting.emits else []),
            *([Passing(setting.change)] if setting.change else []),
        ],
        state=AgentState(session_id="s", permission_context=PermissionContext(rules=rules)),
        state_store=store,
        react_config=ReActConfig(
            max_output=setting.max_output, max_iters=setting.max_iters, max_tool_calls=setting.max_tool_calls
        ),
    )
    model.agent = agent
    record: list[Any] = []
    inputs: Any = UserMsg("user", "go", id="question")
    for number in range(4):
        reply_id = f"r{number}" if not isinstance(inputs, UserConfirmResultEvent) else None
        try:
            if is_seen:
                message = await agent.reply_stream(inputs, reply_id=reply_id, yield_final_msg=True).drain()
            else:
                message = await agent.reply(inputs, reply_id=reply_id)
            assert isinstance(message, Msg)
            record.append(comparable(json.loads(message.to_json())))
        except Exception as error:  # noqa: BLE001  # whatever it is, it must be the same both ways
            record.append((type(error), str(error)))
        record.append(comparable(json.loads(agent.state.model_dump_json())))
        if store is not None:
            record.append(comparable(json.loads((await store.load("s")).model_dump_json())))
        question = agent.waiting()
        inputs = UserMsg("user", f"and {number}", id=f"question-{number}")
        if question is not None:
            answers = [ConfirmResult(number % 2 == 0, block) for block in question.tool_calls]
            inputs = UserConfirmResultEvent(question.reply_id, answers)
    return record


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(setting=SETTINGS)
@settings(max_examples=40, deadline=None)
def test_a_reply_that_nobody_reads_is_the_same_reply(backend, setting):
    seen = anyio.run(converse, setting, True, backend=backend)
    unseen = anyio.run(converse, setting, False, backend=backend)
    assert unseen == seen


@pytest.mark.anyio
async def test_a_layer_that_steps_aside_does_not_read_the_reply():
    class Giving(MiddlewareBase):
        @staticmethod
        def give_deps(hook: Any) -> Any:
            @functools.wraps(hook)
            def entry(self: Any, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
                agent.run.deps = "given by the layer"
                agent.run.emit(HintBlockEvent("", "hint", "said before the reply", "layer"))
                return next_handler(**input_kwargs)

            return entry

        @give_deps
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
            yield

    async def look(context: ToolContext) -> str:
        """Tell what the tool has."""
        return f"{context.deps}, seen: {context.run.is_seen}"

    turns = [Turn([ToolCallBlock("1", "look", "{}")], False, True, None, None, False, None, 9)]
    agent = Agent("tester", model=PlayedModel(turns), tools=[look], middlewares=[Giving()])
    await agent.reply("go", deps="given by the caller")
    hint, _, result, answer = agent.state.context[-1].content
    assert hint.hint == "said before the reply"
    assert result.output[0].text == "given by the layer, seen: False"
    assert answer.text == "That is all."


@pytest.mark.anyio
async def test_a_layer_that_fails_before_it_steps_aside_ends_the_reply():
    class Failing(MiddlewareBase):
        @staticmethod
        def fail(hook: Any) -> Any:
            @functools.wraps(hook)
            def entry(self: Any, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
                raise LookupError("no")

            return entry

        @fail
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
            yield

    agent = Agent("tester", model=PlayedModel([]), middlewares=[Failing()])
    with pytest.raises(LookupError) as caught:
        await agent.reply("go")
    assert "raised by Failing in on_reply" in caught.value.__notes__[0]
    assert agent.state.last_reply is not None
    assert agent.state.last_reply.finished_reason == "error"
    assert agent.waiting() is None
