"""A ContextVar that is set where a reply is read reaches all that works for the reply, in threads too."""

from contextvars import ContextVar
from typing import ClassVar

import anyio
import pytest

from agentrt import MiddlewareBase
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase
from tests.loop.helpers import agent_of, confirmation_of, items_of

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
            return self.note("coroutine")

        def function() -> str:
            self.note("function")
            tenant.set("changed in the thread")
            return self.note("function")

        async def async_generator():
            yield self.note("async_generator")
            yield self.note("async_generator")

        def generator():
            yield self.note("generator")
            yield self.note("generator")

        class Method(ToolBase):
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
    await agent.reply("go")
    tenant.set("Bob")
    await agent.reply(confirmation_of(agent))
    assert tools.seen["function"] == ["Bob", "changed in the thread"]


class Setters:
    """Tools of each kind, each of which notes what it sees, and then sets its own name."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}
        self.all_began = anyio.Event()

    def note_and_set(self, name: str) -> None:
        self.seen.setdefault(name, []).append(tenant.get())
        tenant.set(name)

    async def wait(self, name: str) -> str:
        """Set before and after a wait for the last call, and see its own value after it."""
        self.note_and_set(name)
        await self.all_began.wait()
        self.note_and_set(name)
        return name

    async def go(self, name: str) -> str:
        self.note_and_set(name)
        self.note_and_set(name)
        return name

    def block(self, name: str) -> str:
        self.note_and_set(name)
        self.note_and_set(name)
        return name

    async def stream(self, name: str):
        self.note_and_set(name)
        yield name
        self.note_and_set(name)
        yield name

    async def last(self, name: str) -> str:
        """Let those that wait go on."""
        self.all_began.set()
        return await self.go(name)


class Setting(MiddlewareBase):
    """A layer that sets as well, around each call."""

    async def on_acting(self, agent, input_kwargs, next_handler):
        assert tenant.get() == "Bob"
        tenant.set("Bob")
        async for item in next_handler():
            yield item
        tenant.set("the layer's")


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("kinds", ["wait go block stream", "go wait stream block", "stream go go wait wait go"])
async def test_calls_side_by_side_see_nothing_of_each_other(kinds, layers, streamed):
    tools, names = Setters(), [f"{kind} {n}" for n, kind in enumerate([*kinds.split(), "last"])]
    functions = [FunctionTool(getattr(tools, kind), is_concurrency_safe=True) for kind in {*kinds.split(), "last"}]
    calls = [ToolCallBlock(str(n), name.split()[0], f'{{"name": "{name}"}}') for n, name in enumerate(names)]
    agent = agent_of([calls, "done"], *functions, middlewares=[Setting()][:layers])
    tenant.set("Bob")
    await (items_of(agent) if streamed else agent.reply("go"))
    assert tools.seen == {name: ["Bob", name] for name in names}
    assert tenant.get() == "Bob"
