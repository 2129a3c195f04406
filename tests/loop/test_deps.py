"""Dependencies of one reply: given by the caller, found by tools and hooks, and kept nowhere."""

import functools
import logging
from dataclasses import dataclass
from threading import Lock
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt.agent import ReActAgent
from agentrt.errors import UsageError
from agentrt.middleware import LoggingMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import SequentialPipeline, fanout_pipeline
from agentrt.state import FileStateStore
from agentrt.tool import FunctionTool, ToolBase, ToolContext
from tests.loop.helpers import agent_of, call, confirmation_of, saved_state


@dataclass
class Deps:
    """What no copy, no JSON and no log takes: it holds a lock and a password."""

    user: str
    lock: Any = None
    password: str = "hunter2-hunter2"

    def __post_init__(self) -> None:
        self.lock = Lock()

    def __reduce__(self) -> Any:
        raise TypeError("dependencies are not copied")


class Seen(MiddlewareBase):
    """Notes the dependencies in every hook, and what flows through on_reply."""

    def __init__(self) -> None:
        self.deps: dict[str, Any] = {}
        self.values: dict[str, Any] = {}

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.deps["on_reply"] = agent.run.deps
        self.values = dict(input_kwargs)
        async for item in next_handler():
            yield item

    async def on_system_prompt(self, agent, current_prompt):
        self.deps["on_system_prompt"] = agent.run.deps
        return current_prompt

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.deps["on_model_call"] = agent.run.deps
        return await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.deps["on_acting"] = agent.run.deps
        async for item in next_handler():
            yield item


async def whoami(context: ToolContext[Deps]) -> str:
    return context.deps.user


def whoami_in_a_thread(context: ToolContext[Deps]) -> str:
    return context.deps.user


def asking(*tools: Any, answers: int = 1, **options: Any) -> Agent:
    """Return an agent that calls its first tool in each of its replies."""
    tools = tools or (whoami,)
    name = tools[0].name if isinstance(tools[0], ToolBase) else tools[0].__name__
    return agent_of([[call("1", name)], "done"] * answers, *tools, **options)


def result_of(agent: Agent) -> str:
    """Return the text of the last tool result of the conversation."""
    results = [block for message in agent.state.context for block in message.get_content_blocks("tool_result")]
    (block,) = results[-1].output
    return block.text


@pytest.mark.parametrize("tool", [whoami, whoami_in_a_thread])
async def test_tools_get_the_deps_of_their_reply(tool: Any) -> None:
    agent = asking(tool, answers=4)
    await agent.reply("go", deps=Deps("ann"))
    assert result_of(agent) == "ann"
    await agent("go", deps=Deps("bob"))
    assert result_of(agent) == "bob"
    await agent.reply_stream("go", deps=Deps("eve")).drain()
    assert result_of(agent) == "eve"
    await agent.reply("go")
    assert "AttributeError" in result_of(agent)  # none were given, and those of the last reply are gone


def test_run_sync_takes_deps() -> None:
    agent = asking()
    agent.run_sync("go", deps=Deps("ann"))
    assert result_of(agent) == "ann"


async def test_every_hook_sees_the_deps_and_no_values_hold_them() -> None:
    seen, deps = Seen(), Deps("ann")
    agent = asking(middlewares=[seen])
    agent.register_instance_hook("pre_reply", "copying", lambda agent, kwargs: None)
    await agent.reply("go", deps=deps)
    assert set(seen.deps) == {"on_reply", "on_system_prompt", "on_model_call", "on_acting"}
    assert all(found is deps for found in seen.deps.values())
    assert list(seen.values) == ["inputs", "structured_schema"]


async def test_hooks_of_a_compression_see_its_deps() -> None:
    seen, deps = Seen(), Deps("ann")
    agent = agent_of(["hello", "hello again", "a summary"], middlewares=[seen])
    await agent.reply("a long question " * 5_000)
    await agent.reply("go on")
    assert seen.deps["on_model_call"] is None
    await agent.compress_context(deps=deps)
    assert seen.deps["on_model_call"] is deps


async def test_deps_are_in_nothing_that_is_kept_or_shown(tmp_path: Any, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    store = FileStateStore(tmp_path)
    agent = asking(FunctionTool(whoami, ask=True), middlewares=[LoggingMiddleware(content=True)], state_store=store)
    deps = Deps("ann")
    events = await parked(agent, deps)
    events += await items_of_answer(agent, deps)
    texts = [event.to_json() for event in events]
    texts += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [caplog.text, repr(agent), repr(events)]
    assert any("REPLY_END" in text for text in texts)
    assert not any("hunter2" in text or "Deps" in text for text in texts)


async def parked(agent: Agent, deps: Any) -> list[Any]:
    return [item async for item in agent.reply_stream("go", deps=deps)]


async def items_of_answer(agent: Agent, deps: Any) -> list[Any]:
    return [item async for item in agent.reply_stream(confirmation_of(agent), deps=deps)]


async def test_resumed_reply_has_the_deps_of_the_answer() -> None:
    agent = asking(FunctionTool(whoami, ask=True))
    await parked(agent, Deps("ann"))
    state = saved_state(agent)
    await items_of_answer(agent, Deps("bob"))
    assert result_of(agent) == "bob"
    later = agent_of(["done"], FunctionTool(whoami, ask=True)).with_state(state)  # as in another process
    await items_of_answer(later, None)
    assert "AttributeError" in result_of(later)


async def test_concurrent_conversations_have_their_own_deps() -> None:
    arrived, both = [], anyio.Event()

    async def meet(context: ToolContext[Deps]) -> str:
        arrived.append(context)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        assert context.agent.run.deps is context.deps
        return context.deps.user

    first = agent_of([[call("1", "meet")], [call("1", "meet")], "done", "done"], meet)
    second = first.with_state(AgentState())
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(first.reply, "go", deps=Deps("ann")))
        group.start_soon(functools.partial(second.reply, "go", deps=Deps("bob")))
    assert (result_of(first), result_of(second)) == ("ann", "bob")


async def test_an_agent_asked_by_a_tool_has_only_what_it_is_given() -> None:
    inner = asking(answers=2)

    async def delegate(context: ToolContext[Deps]) -> str:
        await inner.reply("go")
        without = result_of(inner)
        await inner.reply("go", deps=context.deps)
        return f"{'AttributeError' in without} {result_of(inner)}"

    outer = asking(delegate)
    await outer.reply("go", deps=Deps("ann"))
    assert result_of(outer) == "True ann"


async def test_layer_of_on_reply_sets_the_deps_of_the_rest() -> None:
    class Default(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            agent.run.deps = agent.run.deps or Deps("nobody")
            async for item in next_handler():
                yield item

    agent = asking(middlewares=[Default()])
    await agent.reply("go")
    assert result_of(agent) == "nobody"


# Classes with a reply of their own


class Plain(Agent):
    async def reply(self, inputs=None, structured_schema=None):
        assert self.run.deps.user == "ann"
        return await super().reply(inputs, structured_schema)


class Passing(Agent):
    async def reply(self, *args, **kwargs):
        assert set(kwargs) <= {"deps"}
        return await super().reply(*args, **kwargs)


class Declaring(Agent):
    async def reply(self, inputs=None, structured_schema=None, *, reply_id=None, deps=None):
        assert deps is self.run.deps
        return await super().reply(inputs, structured_schema, reply_id=reply_id, deps=deps)


class Providing(Agent):
    async def reply(self, inputs=None, structured_schema=None):
        return await super().reply(inputs, structured_schema, deps=Deps("provided"))


class Second(Agent):
    async def reply(self, inputs=None, deps=None):
        assert deps is self.run.deps
        return await super().reply(inputs)


@pytest.mark.parametrize("kind", [Plain, Passing, Declaring, Providing, Second, ReActAgent])
async def test_overridden_reply_of_an_agent_has_its_deps(kind: Any) -> None:
    agent = kind("tester", "", ScriptedChatModel([[call("1", "whoami")], "done"] * 3), toolkit=Toolkit([whoami]))
    agent.disable_console_output()
    expected = "provided" if kind is Providing else "ann"
    await agent.reply("go", deps=Deps("ann"))
    assert result_of(agent) == expected
    await agent("go", deps=Deps("ann"))
    assert result_of(agent) == expected
    await agent.reply_stream("go", deps=Deps("ann")).drain()
    assert result_of(agent) == expected


class Noting(AgentBase):
    """A custom agent; notes its deps, and what reaches it as a parameter."""

    noted: Any = None

    async def reply(self, msg=None):
        self.noted = self.run.deps
        return Msg(self.name, "ok", "assistant")


class NotingParameter(Noting):
    async def reply(self, msg=None, deps="a default"):
        self.noted = self.run.deps, deps
        return Msg(self.name, "ok", "assistant")


class NotingKeywords(Noting):
    async def reply(self, msg=None, **kwargs):
        self.noted = self.run.deps, kwargs
        return Msg(self.name, "ok", "assistant")


@pytest.mark.parametrize("kind", [Noting, NotingParameter, NotingKeywords])
async def test_custom_agent_has_its_deps_outside_the_chain(kind: type[Noting]) -> None:
    seen, deps = Seen(), Deps("ann")
    agent = kind(middlewares=[seen])
    agent.register_instance_hook("pre_reply", "copying", lambda agent, kwargs: None)
    await agent(UserMsg("user", "go"), deps=deps)
    given = {Noting: deps, NotingParameter: (deps, deps), NotingKeywords: (deps, {"deps": deps})}
    assert agent.noted == given[kind]
    assert seen.deps["on_reply"] is deps
    assert "deps" not in seen.values
    await agent(UserMsg("user", "go"))
    without = {Noting: None, NotingParameter: ("a default",) * 2, NotingKeywords: (None, {})}
    assert agent.noted == without[kind]


async def test_interrupted_custom_agent_needs_no_deps_parameter() -> None:
    class Slow(AgentBase):
        async def reply(self, msg=None):
            self.interrupt()
            await anyio.sleep_forever()

        async def handle_interrupt(self, msg=None):
            return Msg(self.name, "stopped", "assistant")

    answer = await Slow()(UserMsg("user", "go"), deps=Deps("ann"))
    assert answer.get_text_content() == "stopped"


async def test_pipelines_pass_deps_on() -> None:
    first, second = Noting(), Noting()
    deps = Deps("ann")
    await SequentialPipeline([first, second])(UserMsg("user", "go"), deps=deps)
    assert (first.noted, second.noted) == (deps, deps)
    deps = Deps("bob")
    await fanout_pipeline([first, second], UserMsg("user", "go"), deps=deps)
    assert (first.noted, second.noted) == (deps, deps)


async def test_run_has_no_deps_between_replies() -> None:
    agent = asking()
    await agent.reply("go", deps=Deps("ann"))
    with pytest.raises(UsageError, match="no reply in progress"):
        _ = agent.run.deps
