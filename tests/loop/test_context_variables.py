"""A ContextVar that is set where a reply is read reaches all that works for the reply, in threads too."""

from contextvars import ContextVar
from typing import ClassVar

import pytest

from agentrt import MiddlewareBase
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase
from tests.loop.helpers import agent_of, items_of

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Tools:
    """One tool of each kind, which note what they see."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}

    def note(self, name: str) -> str:
        self.seen.setdefault(name, []).append(tenant.get())
        return "noted"

    def all(self) -> list[object]:
        async def coroutine() -> str:
            """Run in the event loop."""
            return self.note("coroutine")

        def function() -> str:
            """Run in a thread."""
            self.note("function")
            tenant.set("changed in the thread")
            return self.note("function")

        async def async_generator():
            """Stream in the event loop."""
            yield self.note("async_generator")
            yield self.note("async_generator")

        def generator():
            """Stream in a thread."""
            yield self.note("generator")
            yield self.note("generator")

        class Method(ToolBase):
            """A class."""

            name = "method"
            input_schema: ClassVar = {"type": "object", "properties": {}}

            async def call(method) -> str:
                return self.note("method")

        return [coroutine, function, async_generator, generator, Method()]


NAMES = ["coroutine", "function", "async_generator", "generator", "method"]
CALLS = [ToolCallBlock(name, name, "{}") for name in NAMES]


class Watch(MiddlewareBase):
    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.seen.add(tenant.get())
        async for item in next_handler():
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.seen.add(tenant.get())
        return await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.seen.add(tenant.get())
        async for item in next_handler():
            yield item


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("rounds", [[CALLS], [[call] for call in CALLS]], ids=["side by side", "one by one"])
async def test_it_reaches_tools_of_every_kind_and_layers(rounds, layers, streamed):
    tools, watch = Tools(), Watch()
    agent = agent_of([*rounds, "done"], *tools.all(), middlewares=[watch][:layers])
    tenant.set("Bob")
    await (items_of(agent) if streamed else agent.reply("go"))
    assert {name: set(seen) - {"changed in the thread"} for name, seen in tools.seen.items()} == {
        name: {"Bob"} for name in NAMES
    }
    assert tools.seen["function"] == ["Bob", "changed in the thread"]
    assert watch.seen == ({"Bob"} if layers else set())
    assert tenant.get() == "Bob"


async def test_a_confirmed_call_sees_the_value_of_the_answer():
    tools = Tools()
    _, function, *_ = tools.all()
    agent = agent_of([[ToolCallBlock("1", "function", "{}")], "done"], FunctionTool(function, ask=True))
    tenant.set("Ann")
    question = await agent.reply("go")
    [asked] = question.get_content_blocks("tool_call")
    tenant.set("Bob")
    await agent.reply(UserConfirmResultEvent(question.id, [ConfirmResult(True, asked)]))
    assert tools.seen["function"] == ["Bob", "changed in the thread"]
