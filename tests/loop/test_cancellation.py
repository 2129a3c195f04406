"""The caller's own cancellation, in every form that asyncio has, stops the tools and leaves."""

import asyncio
import threading
from contextlib import suppress

import anyio
import pytest

from agentrt import Agent
from agentrt._runtime.concurrency.event_loop import checkpoint
from agentrt.message import ToolResultState
from agentrt.middleware import GuardrailMiddleware
from agentrt.tool import ToolContext
from tests.loop.helpers import agent_of, call, short

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])

SHAPES = ["one tool", "one tool with a context", "three tools side by side"]


class Waiting:
    """Tools that never end by themselves."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.stopped = 0

    async def wait(self) -> str:
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped += 1
        return "never"

    async def wait_in_context(self, context: ToolContext) -> str:
        return await self.wait()


def waiting_agent(shape: str) -> tuple[Agent, Waiting]:
    tools = Waiting()
    tool = tools.wait_in_context if shape == "one tool with a context" else tools.wait
    count = 3 if shape == "three tools side by side" else 1
    calls = [call(str(number), tool.__name__) for number in range(count)]
    return agent_of([calls, "next"], tool), tools


async def assert_it_is_over(agent: Agent, tools: Waiting) -> None:
    message = agent.state.context[-1]
    results = [result.state for result in message.get_content_blocks("tool_result")]
    assert results == [ToolResultState.INTERRUPTED] * tools.stopped
    assert agent.state.last_reply.finished_reason == "interrupted"
    assert (await agent.reply("and now?")).get_text_content() == "next"


@pytest.mark.parametrize("shape", SHAPES)
async def test_asyncio_timeout_raises_its_timeout(shape):
    agent, tools = waiting_agent(shape)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await agent.reply("go")
    await assert_it_is_over(agent, tools)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_cancelled_task_is_cancelled(shape):
    agent, tools = waiting_agent(shape)
    task = asyncio.create_task(agent.reply("go"))
    await tools.running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    await assert_it_is_over(agent, tools)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_timeout_around_one_step_of_the_stream_stops_the_reply(shape):
    agent, tools = waiting_agent(shape)
    events = agent.reply_stream("go")
    with pytest.raises(TimeoutError):
        while True:
            await asyncio.wait_for(anext(events), 0.05)
    await assert_it_is_over(agent, tools)


async def test_a_plain_function_in_a_thread_does_not_block_the_loop():
    ticked = threading.Event()
    threads: list[int] = []

    def block() -> str:
        threads.append(threading.get_ident())
        return "the loop ticked" if ticked.wait(30) else "the loop stood still"

    async def tick() -> None:
        while not threads:
            await anyio.lowlevel.checkpoint()
        ticked.set()

    agent = agent_of([[call("1", "block")], "done"], block)
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "the loop ticked"
    assert threads != [threading.get_ident()]


async def read(agent: Agent, names: list[str]) -> None:
    async with agent.reply_stream("go") as events:
        async for event in events:
            names.append(short(event))


@pytest.mark.parametrize("where", ["a model", "a tool"])
async def test_a_task_of_asyncio_is_cancelled_whoever_swallows_that(where):
    names, running = [], asyncio.Event()

    async def model(messages, tools):
        running.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "still here"

    async def stubborn() -> str:
        return await model([], [])

    agent = agent_of([model if where == "a model" else [call("1", "stubborn")], "next"], stubborn)
    task = asyncio.create_task(read(agent, names))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "RE(completed)" not in names
    assert (await agent.reply("and now?")).get_text_content() == "next"


async def wait_for_turns(turns: int) -> None:
    for _ in range(turns):
        await checkpoint()


async def judge(text, agent):
    await wait_for_turns(3)


async def interrupt_and_cancel(agent: Agent, turn: int, is_interrupted_first: bool) -> bool:
    """Interrupt a reply and cancel its scope in that turn of the event loop; says whether it was over before."""
    scope = anyio.CancelScope()

    async def stop() -> None:
        await wait_for_turns(turn)
        for step in (agent.interrupt, scope.cancel) if is_interrupted_first else (scope.cancel, agent.interrupt):
            step()

    task = asyncio.create_task(stop())
    with scope:
        async with agent.reply_stream("go") as events:
            async for _ in events:
                await checkpoint()
    is_over = not task.done()
    await task
    return is_over


@pytest.mark.parametrize("middlewares", [[], [GuardrailMiddleware(output=[judge], window=20)]], ids=["none", "window"])
@pytest.mark.parametrize("is_interrupted_first", [True, False])
async def test_a_scope_takes_its_cancellation_beside_an_interrupt(middlewares, is_interrupted_first):
    turn = 1
    # A cancellation that leaves the scope ends the test as cancelled.
    while not await interrupt_and_cancel(agent_of(["word " * 30], middlewares=middlewares), turn, is_interrupted_first):
        turn += 1
    assert turn > 10
