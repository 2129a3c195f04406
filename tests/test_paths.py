"""Every hook on every path: the table of law 10.

A cell says how often a hook fires on that path. The paths in `NOT_BUILT` are strict expected failures, each for the one
reason that it is not there yet: building it turns its cells on.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Toolkit
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.hooks import HOOKS
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase
from tests.agent.helpers import add, call


class Counting(MiddlewareBase):
    """Counts how often each hook fires."""

    def __init__(self) -> None:
        self.fired: Counter[str] = Counter()

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.fired["on_reply"] += 1
        async for item in next_handler():
            yield item

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        self.fired["on_reasoning"] += 1
        async for item in next_handler():
            yield item

    async def on_system_prompt(self, agent, current_prompt):
        self.fired["on_system_prompt"] += 1
        return current_prompt

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.fired["on_model_call"] += 1
        return await next_handler()

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        self.fired["on_check_permission"] += 1
        return await next_handler()

    async def on_compress_context(self, agent, input_kwargs, next_handler):
        self.fired["on_compress_context"] += 1
        await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.fired["on_acting"] += 1
        async for item in next_handler():
            yield item


def two_rounds(layer: Counting, *calls: object, tools: tuple = (add,)) -> Agent:
    model = ScriptedChatModel([list(calls) or [call("1", "add", a=1, b=2)], "done"])
    return Agent("tester", "You are tested.", model, Toolkit(tools=list(tools)), [layer])


async def reply(layer: Counting) -> None:
    await two_rounds(layer).reply("go")


async def call_agent(layer: Counting) -> None:
    await two_rounds(layer)("go")


async def stream(layer: Counting) -> None:
    async with two_rounds(layer).reply_stream("go") as events:
        async for _ in events:
            pass


async def other_state(layer: Counting) -> None:
    await two_rounds(layer).with_state(AgentState()).reply("go")


async def sequential_tools(layer: Counting) -> None:
    def one() -> str:
        """Say one."""
        return "one"

    await two_rounds(layer, call("1", "one"), call("2", "one"), tools=(one,)).reply("go")


async def concurrent_tools(layer: Counting) -> None:
    await two_rounds(layer, *(call(str(n), "add", a=n, b=n) for n in range(3))).reply("go")


async def sub_agent(layer: Counting) -> None:
    inner = two_rounds(layer)

    async def delegate(task: str) -> str:
        """Hand a task to another agent."""
        return (await inner.reply(task)).get_text_content() or ""

    outer = ScriptedChatModel([[call("1", "delegate", task="add")], "done"])
    await Agent("outer", "", outer, Toolkit(tools=[delegate])).reply("go")


def parked(agent: Agent) -> tuple[str, ToolCallBlock]:
    """Return the reply that waits, and the call that it waits for."""
    context = agent.state.reply_context
    assert context is not None, "the reply does not wait"
    [waiting] = context.message.get_content_blocks("tool_call")
    return context.reply_id, waiting


async def resume_after_confirmation(layer: Counting) -> None:
    agent = two_rounds(layer, tools=(FunctionTool(add, ask=True),))
    await agent.reply("go")
    reply_id, waiting = parked(agent)
    await agent.reply(UserConfirmResultEvent(reply_id, [ConfirmResult(True, waiting)]))


class Elsewhere(ToolBase):
    """Add two numbers, somewhere else."""

    name = "add"
    is_external_tool = True
    input_schema: ClassVar = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


async def resume_after_external_execution(layer: Counting) -> None:
    agent = two_rounds(layer, tools=(Elsewhere(),))
    await agent.reply("go")
    reply_id, waiting = parked(agent)
    result = ToolResultBlock(waiting.id, waiting.name, "3")
    await agent.reply(ExternalExecutionResultEvent(reply_id, [result]))


async def custom_agent(layer: Counting) -> None:
    from agentrt import AgentBase

    class Echo(AgentBase):
        async def reply(self, msg):
            return msg

    await Echo(name="echo", middlewares=[layer])("go")


TWO_ROUNDS = {"on_reply": 1, "on_reasoning": 2, "on_system_prompt": 2, "on_model_call": 2, "on_compress_context": 0}
ONE_TOOL = TWO_ROUNDS | {"on_check_permission": 1, "on_acting": 1}
CUSTOM_AGENT = {spec.name: 0 for spec in HOOKS} | {"on_reply": 1}  # it has no model and no tools of the runtime's

PATHS: dict[Callable[[Counting], Awaitable[None]], dict[str, int]] = {
    reply: ONE_TOOL,
    call_agent: ONE_TOOL,
    stream: ONE_TOOL,
    other_state: ONE_TOOL,
    sequential_tools: TWO_ROUNDS | {"on_check_permission": 2, "on_acting": 2},
    concurrent_tools: TWO_ROUNDS | {"on_check_permission": 3, "on_acting": 3},
    sub_agent: ONE_TOOL,
    resume_after_confirmation: ONE_TOOL | {"on_reply": 2, "on_check_permission": 2},
    resume_after_external_execution: ONE_TOOL | {"on_reply": 2, "on_acting": 0},
    custom_agent: CUSTOM_AGENT,
}
NOT_BUILT: dict[Callable[[Counting], Awaitable[None]], type[Exception]] = {
    custom_agent: ImportError,
}


def cells():
    for path, row in PATHS.items():
        for hook in (spec.name for spec in HOOKS):
            fails = NOT_BUILT.get(path)
            marks = [pytest.mark.xfail(reason="this path is not built yet", raises=fails, strict=True)] if fails else []
            yield pytest.param(path, hook, row[hook], marks=marks, id=f"{path.__name__}-{hook}")


@pytest.mark.parametrize(("path", "hook", "wanted"), list(cells()))
async def test_the_hook_fires_on_the_path(path, hook, wanted):
    layer = Counting()
    await path(layer)
    assert layer.fired[hook] == wanted


def test_run_sync_takes_the_same_path():
    layer = Counting()
    two_rounds(layer).run_sync("go")
    assert layer.fired == {hook: times for hook, times in ONE_TOOL.items() if times}


def test_no_hook_is_missing_from_the_table():
    assert {spec.name for spec in HOOKS} == set(ONE_TOOL)


async def test_a_call_that_is_never_entered_fires_no_acting_hook():
    """`on_acting` wraps running a permitted call and only that, and `explain()` says so."""
    layer = Counting()
    agent = two_rounds(layer, call("1", "nope"), call("2", "add", a="x", b=1))
    await agent.reply("go")
    assert layer.fired["on_acting"] == 0
    assert "never for a call that is not run here: an unknown tool, invalid arguments" in agent.explain()
