"""Content by path: every source on every path, with a canary in each cell.

One layer of `on_content` replaces the canary. No request and no saved state holds it, and its replacement is there.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from agentrt import Agent, MiddlewareBase, UserMsg
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    HintBlockEvent,
    RequireExternalExecutionEvent,
    UserConfirmResultEvent,
)
from agentrt.message import TextBlock, ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.serving.mcp.server import Caller, make_server
from agentrt.serving.owners.owner import Owner
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import IncomingContent, PermissionBehavior
from tests.loop.helpers import call, elsewhere
from tests.loop.test_round_tools import Elsewhere
from tests.runner.conftest import work
from tests.serving.conftest import serve
from tests.serving.test_a2a import ask, serve_sdk

CANARY, BIRD = "canary", "sparrow"


class Look(MiddlewareBase):
    """Puts a sparrow in the place of the canary, and notes where each came from."""

    inherited = True

    def __init__(self) -> None:
        self.sources: list[str] = []

    async def on_content(self, agent, content):
        if CANARY not in content.text:
            return content
        self.sources.append(content.source)
        return content.with_text(content.text.replace(CANARY, BIRD))


class Store(InMemoryStateStore):
    """Keeps whatever was saved at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    async def save(self, state, **options):
        self.saved.append(state.model_dump_json())
        await super().save(state, **options)


async def fly() -> str:
    return f"a {CANARY} flies"


async def drip():
    yield f"a {CANARY[:3]}"
    yield f"{CANARY[3:]} drips"


async def tell_much() -> str:
    """Tell so much that two of it fill the context."""
    return "word " * 700


async def wait() -> str:
    return "waited"


async def hint(context: ToolContext) -> str:
    context.emit(HintBlockEvent("", context.new_id(), f"a {CANARY} sings", "hint"))
    return "hinted"


class Deny(MiddlewareBase):
    inherited = True

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        decision = await next_handler()
        if input_kwargs["tool"].name != "denied":
            return decision
        return replace(decision, behavior=PermissionBehavior.DENY, message=f"no {CANARY}")


class Continue(MiddlewareBase):
    inherited = True

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        scratch = agent.run.scratch(self)  # of this process alone: what is asked for before a park is lost
        if "asked" not in scratch:
            scratch["asked"] = True
            agent.run.continue_with(f"a {CANARY} sings")
        async for item in next_handler():
            yield item


class Find(MiddlewareBase):
    inherited = True

    def __init__(self, source: Any) -> None:
        self.source = source

    async def on_model_call(self, agent, input_kwargs, next_handler):
        found = await agent.run.receive(IncomingContent(self.source, [TextBlock(f"a {CANARY}")], name="birds"))
        return await next_handler(messages=[UserMsg("runtime", found.text), *input_kwargs["messages"]])


@dataclass
class Source:
    """How content of a source enters a conversation."""

    name: str
    turns: list[Any] = field(default_factory=list)
    layers: tuple[MiddlewareBase, ...] = ()
    text: str = "go"
    ends: int = 1  # answers in words

    def agent(self, *layers: MiddlewareBase, is_gated: bool = False, name: str = "assistant", **options: Any) -> Agent:
        gate = [[call("0", "wait")]] if is_gated else []
        script = [*gate, *self.turns, *["done"] * self.ends]
        tools = [
            *(fly, drip, hint, tell_much, FunctionTool(fly, name="denied"), Elsewhere()),
            *(FunctionTool(wait, ask=True), FunctionTool(wait, name="asked", ask=True)),
        ]
        model = ScriptedChatModel(script)
        if self.name == "summary":
            model.context_size = 2_000
        # The one that looks stands outside, as a policy of the whole agent would.
        return Agent(name, "", model, tools=tools, middlewares=[*layers, *self.layers], **options)

    async def before(self, agent: Agent) -> None:
        if self.name == "observed":
            await agent.observe(UserMsg("bob", f"a {CANARY}"))

    @staticmethod
    def answer(question: Any) -> Any:
        if isinstance(question, RequireExternalExecutionEvent):
            results = [ToolResultBlock(one.id, one.name, f"a {CANARY} came") for one in question.tool_calls]
            return ExternalExecutionResultEvent(question.reply_id, results)
        said = [None if one.name == "wait" else f"not the {CANARY}" for one in question.tool_calls]
        results = [
            ConfirmResult(words is None, one, feedback=words)
            for one, words in zip(question.tool_calls, said, strict=True)
        ]
        return UserConfirmResultEvent(question.reply_id, results)


SOURCES = [
    Source("input", text=f"a {CANARY}"),
    Source("observed"),
    Source("tool_result", [[call("1", "fly")]]),
    Source("tool_result", [[call("1", "drip")]]),
    Source("not_run", [[call("1", "denied")]], layers=(Deny(),)),
    Source("external", [[call("1", "elsewhere")]]),
    Source("feedback", [[call("1", "asked")]]),
    Source("hint", [[call("1", "hint")]]),
    Source("hint", layers=(Continue(),), ends=2),
    Source("summary", [[call("1", "tell_much")], [call("2", "tell_much")], f"a {CANARY} was talked about"]),
    Source("passage", layers=(Find("passage"),)),
    Source("memory", layers=(Find("memory"),)),
]


@dataclass
class Seen:
    """What the model was sent, and what was saved."""

    agent: Agent
    saved: list[str]


async def converse(
    source: Source, take: Callable[[Agent, Any], Awaitable[None]], move: Any = None, **options: Any
) -> Seen:
    store = Store()
    agent = source.agent(*options.pop("layers"), state_store=store, **options)
    await source.before(agent)
    await take(agent, source.text)
    while agent.waiting() is not None:
        agent = agent if move is None else elsewhere(agent)
        await take(agent, source.answer(agent.waiting()))
    return Seen(agent, store.saved)


async def take_whole(agent: Agent, inputs: Any) -> None:
    await agent.reply(inputs)


async def take_stream(agent: Agent, inputs: Any) -> None:
    async with agent.reply_stream(inputs) as events:
        assert CANARY not in "".join([event.to_json() async for event in events])


async def reply(source: Source, look: Look) -> Seen:
    return await converse(source, take_whole, layers=[look])


async def stream(source: Source, look: Look) -> Seen:
    return await converse(source, take_stream, layers=[look])


async def resumed_here(source: Source, look: Look) -> Seen:
    return await converse(source, take_whole, lambda agent: agent, layers=[look], is_gated=True)


async def resumed_elsewhere(source: Source, look: Look) -> Seen:
    return await converse(source, take_stream, elsewhere, layers=[look], is_gated=True)


async def sub_agent(source: Source, look: Look) -> Seen:
    child, store = source.agent(name="child"), Store()
    tool = child.as_tool("Helps.", prompt=lambda task: source.text)  # what its own model wrote is that model's
    model = ScriptedChatModel([[call("boss", "child", query="go")], "done"])
    boss = Agent("boss", "", model, tools=[tool], middlewares=[look], state_store=store)
    await boss.reply("go")
    while boss.waiting() is not None:
        await boss.reply(source.answer(boss.waiting()))
    return Seen(child, store.saved)


async def runner(source: Source, look: Look) -> Seen:
    store, agent = Store(), source.agent(look)
    async with work(Runner(agent, store)) as worker:
        handle = await worker.submit("s", source.text)
        events = [event async for event in handle.events()]
        while events[-1].type.startswith("REQUIRE_"):
            await worker.answer("s", source.answer(events[-1]))
            events = [event async for event in handle.events(after=events[-1].seq)]
        await handle.result()
    return Seen(agent, store.saved)


async def http(source: Source, look: Look) -> Seen:
    store, agent = Store(), source.agent(look)
    replies = "/api/sessions/s/replies"
    async with serve(agent, store=store) as client:
        streamed = {"Accept": "text/event-stream"}
        told = (await client.post(replies, json={"input": source.text}, headers=streamed)).text
        while (state := await store.load("s")) is not None and state.reply_context is not None:
            question = agent.with_state(state).waiting()
            body = {"answer": json.loads(source.answer(question).to_json())}
            told += (await client.post(replies, json=body, headers=streamed)).text
        session = (await client.get("/api/sessions/s")).text
    assert CANARY not in told + session
    return Seen(agent, store.saved)


async def a2a(source: Source, look: Look) -> Seen:
    store, agent = Store(), source.agent(look)
    async with serve_sdk(agent, store=store) as client:
        task = await ask(client, source.text)
        if source.name in ("external", "feedback"):
            task = await ask(client, f"no, not the {CANARY}" if source.name == "feedback" else f"a {CANARY}", task)
        assert CANARY not in str(task)
    return Seen(agent, store.saved)


async def mcp(source: Source, look: Look) -> Seen:
    store, agent = Store(), source.agent(look)

    async def fill_in(_: Any, params: Any) -> ElicitResult:
        is_feedback = source.name == "feedback"
        form: Any = {"approve": False, "feedback": f"a {CANARY}"} if is_feedback else {"result": f"a {CANARY}"}
        return ElicitResult(action="accept", content=form)

    async with AsyncExitStack() as stack:
        worker = Runner(agent, store)
        await stack.enter_async_context(work(worker))
        server = make_server(Caller(Owner(None), {agent.name: worker}))
        client = await stack.enter_async_context(Client(server, mode="auto", elicitation_callback=fill_in))
        result = await client.call_tool("ask", {"message": source.text})
    assert CANARY not in repr(result)
    return Seen(agent, store.saved)


PATHS = [reply, stream, resumed_here, resumed_elsewhere, sub_agent, a2a, mcp, runner, http]
EDGES = {a2a, mcp, runner, http}


def cells():
    for number, source in enumerate(SOURCES):
        for path in PATHS:
            if source.name != "observed" or path not in {*EDGES, sub_agent}:  # where nothing is observed
                yield pytest.param(source, path, id=f"{source.name}{number}-{path.__name__}")


@pytest.mark.parametrize(("source", "path"), list(cells()))
async def test_content_is_seen_before_any_request_and_any_save(source, path):
    look = Look()
    seen = await path(source, look)
    requests = [message.to_json() for made in seen.agent.model.calls for message in made.messages]
    assert source.name in look.sources
    assert CANARY not in "".join([*requests, *seen.saved])
    assert BIRD in "".join([*requests, *seen.saved])
    assert len(seen.saved) > 0
