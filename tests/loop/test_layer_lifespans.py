"""Lifespans of layers: who uses an agent enters them, and each reply is a user too."""

import logging
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt._runtime.concurrency.lifespan import _log_reply
from agentrt.errors import ConfigError, MiddlewareConfigError
from agentrt.model import ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, Toolset
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of


class Connected(MiddlewareBase):
    """Has a connection while it is used, and needs it in its hooks."""

    inherited = True

    def __init__(self, log: list[str], name: str = "a", fails: bool = False) -> None:
        self.log = log
        self.name = name
        self.fails = fails
        self.is_connected = False

    @asynccontextmanager
    async def lifespan(self):
        if self.fails:
            raise ValueError("no connection")
        async with anyio.create_task_group() as group:
            self.group = group
            self.is_connected = True
            self.log.append(f"+{self.name}")
            try:
                yield
            finally:
                self.is_connected = False
                self.log.append(f"-{self.name}")

    async def on_model_call(self, agent, input_kwargs, next_handler):
        assert self.is_connected
        return await next_handler()

    async def on_observe(self, agent, input_kwargs, next_handler):
        assert self.is_connected
        await next_handler()

    async def health(self):
        return None if self.is_connected else "no connection"


def layers_of(log: list[str], names: str = "ab", **options: Any) -> list[MiddlewareBase]:
    return [Connected(log, name, **options) for name in names]


async def test_an_agent_enters_its_layers_and_leaves_inner_first() -> None:
    log: list[str] = []
    agent = agent_of(["1", "2"], middlewares=layers_of(log))
    async with agent:
        await agent.reply("go")
        async with agent.with_state(AgentState()) as other:
            await other.reply("go")
        assert log == ["+a", "+b"]
    assert log == ["+a", "+b", "-b", "-a"]


async def test_two_agents_that_share_a_layer_leave_it_with_the_last() -> None:
    log: list[str] = []
    (layer,) = layers_of(log, "a")
    first, second = agent_of(["1"], middlewares=[layer]), agent_of(["2"], middlewares=[layer])
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    await second.reply("go")
    assert log == ["+a"]
    await second.__aexit__(None, None, None)
    assert log == ["+a", "-a"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_opens_what_nobody_has_opened(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    _log_reply.cache_clear()
    log: list[str] = []
    agent = agent_of(["1", "2"], middlewares=layers_of(log, "a"))
    for _ in range(2):
        await (items_of(agent) if stream else agent.reply("go"))
    assert log == ["+a", "-a"] * 2
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "each reply opens and closes the lifespan of Connected" in record.getMessage()


async def test_a_reply_that_parks_leaves_its_layers_until_it_resumes() -> None:
    log: list[str] = []
    agent = agent_of(
        [[call("1", "add", a=1, b=2)], "done"], FunctionTool(add, ask=True), middlewares=layers_of(log, "a")
    )
    await agent.reply("go")
    assert log == ["+a", "-a"]
    await agent.reply(confirmation_of(agent))
    assert log == ["+a", "-a"] * 2


async def test_observing_and_compressing_use_the_layers() -> None:
    log: list[str] = []
    agent = agent_of([], middlewares=layers_of(log, "a"))
    await agent.observe(UserMsg("user", "hello"))
    await agent.compress_context()
    assert log == ["+a", "-a"] * 2


async def test_a_custom_agent_enters_its_layers_in_each_reply() -> None:
    class Echo(AgentBase):
        async def reply(self, msg: Msg) -> Msg:
            return msg

        async def observe(self, msg: Msg) -> None:
            pass

    log: list[str] = []
    await Echo(middlewares=layers_of(log)).reply(UserMsg("user", "go"))
    assert log == ["+a", "+b", "-b", "-a"]


async def test_a_sub_agent_is_opened_with_its_supervisor() -> None:
    log: list[str] = []
    inner = agent_of(["inner"], middlewares=layers_of(log, "b"))
    inner.name = "inner"
    outer = Agent(
        "outer",
        model=ScriptedChatModel([[call("1", "ask", query="go")], "done"]),
        tools=[inner.as_tool("Does it.", name="ask")],
        middlewares=layers_of(log, "a"),
    )
    async with outer:
        assert log == ["+a", "+b"]
        await outer.reply("go")
        assert log == ["+a", "+b"]
    assert log == ["+a", "+b", "-b", "-a"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_layer_that_cannot_be_entered_fails_the_reply_alone(stream: bool) -> None:
    log: list[str] = []
    agent = agent_of(["done"], middlewares=[*layers_of(log, "a"), *layers_of(log, "b", fails=True)])
    with pytest.raises(ValueError, match="no connection") as caught:
        await (items_of(agent) if stream else agent.reply("go"))
    assert caught.value.__notes__[0] == "agentrt: raised by the lifespan of Connected#2"
    assert log == ["+a", "-a"]
    agent.middlewares[1].fails = False
    assert (await agent.reply("go")).get_text_content() == "done"


@pytest.mark.parametrize("how", ["cancel", "interrupt", "leave"])
async def test_layers_are_left_however_a_reply_ends(how: str) -> None:
    log: list[str] = []

    async def hang(_: Any, __: Any) -> str:
        await anyio.sleep_forever()
        return ""

    agent = agent_of([hang], middlewares=layers_of(log))
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            if how == "interrupt":
                agent.interrupt()
            else:
                group.cancel_scope.cancel()

        group.start_soon(stop)
        if how == "leave":
            async with agent.reply_stream("go") as stream:
                await anext(aiter(stream))
            group.cancel_scope.cancel()
        else:
            await agent.reply("go")
    assert log == ["+a", "+b", "-b", "-a"]


async def test_a_lifespan_that_has_failed_fails_the_next_reply() -> None:
    async def fail() -> None:
        raise KeyError("broken")

    log: list[str] = []
    agent = agent_of(["1", "2"], middlewares=layers_of(log, "a"))
    async with agent:
        agent.middlewares[0].group.start_soon(fail)
        while (await agent.health()).is_ok:
            await anyio.lowlevel.checkpoint()
        assert [part.problem for part in (await agent.health()).parts] == ["its lifespan: ExceptionGroup"]
        with pytest.raises(ExceptionGroup):
            await agent.reply("go")
    async with agent:
        assert (await agent.health()).is_ok
        await agent.reply("go")


def test_a_lifespan_that_is_no_context_manager_is_refused() -> None:
    class Wrong(MiddlewareBase):
        async def lifespan(self):  # type: ignore[override]
            yield

    with pytest.raises(MiddlewareConfigError, match="write @asynccontextmanager above it"):
        agent_of([], middlewares=[Wrong()])


async def test_an_agent_without_lifespans_looks_at_an_empty_tuple() -> None:
    assert agent_of([], middlewares=[MiddlewareBase()]).chains.lifespans == ()


# Health


class Says(MiddlewareBase):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def health(self):
        if self.answer == "hangs":
            await anyio.sleep_forever()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class NotOpen(Toolset):
    name = "files"

    async def list_tools(self):
        return []


async def test_health_has_a_problem_for_each_part_that_is_not_well() -> None:
    layers = [Says(None), Says("no connection"), Says(ValueError("a secret")), Says("hangs"), MiddlewareBase()]
    agent = agent_of([], NotOpen(), middlewares=layers)
    health = await agent.health(timeout=0.02)
    assert not health.is_ok
    assert [(part.name, part.kind, part.problem) for part in health.parts] == [
        ("Says", "layer", None),
        ("Says#2", "layer", "no connection"),
        ("Says#3", "layer", "ValueError"),
        ("Says#4", "layer", "TimeoutError"),
        ("files", "toolset", "not open"),
    ]
    assert agent.model.calls == []


async def test_layers_of_sub_agents_are_asked_once_each() -> None:
    shared, own = Connected([], "shared"), Connected([], "own")
    child = Agent("writer", "", ScriptedChatModel(["done"]), middlewares=[own])
    agent = agent_of([], child.as_tool("Writes."), middlewares=[shared])
    parts = (await agent.health()).parts
    assert [(part.name, part.problem) for part in parts] == [
        ("Connected", "no connection"),
        ("writer/Connected", "no connection"),
    ]
    async with agent:
        assert (await agent.health()).is_ok


async def test_an_answer_that_comes_too_late_is_a_problem() -> None:
    class Slow(MiddlewareBase):
        async def health(self):
            with anyio.CancelScope(shield=True):  # as a thread has that cannot be stopped
                await anyio.sleep(0.02)

    health = await agent_of([], middlewares=[Slow()]).health(timeout=0.01)
    assert [part.problem for part in health.parts] == ["TimeoutError"]


async def test_an_agent_whose_parts_are_well_is_well() -> None:
    agent = agent_of([], NotOpen(), middlewares=[*layers_of([]), Says(None)])
    async with agent:
        assert (await agent.health()).is_ok
    assert not (await agent.health()).is_ok


async def test_a_store_is_asked_for_its_health_if_it_has_one() -> None:
    class Store(InMemoryStateStore):
        async def health(self) -> str:
            return "full"

    parts = (await agent_of([], state_store=Store()).health()).parts
    assert [(part.name, part.kind, part.problem) for part in parts] == [("Store", "store", "full")]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "5", True])
async def test_a_wrong_time_limit_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"health\(timeout=...\) must be a finite number of seconds above 0"):
        await agent_of([]).health(seconds)
