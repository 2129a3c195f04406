"""Every hook on every path: the table of law 10.

A cell says how often a hook fires on that path.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Toolkit, UserMsg
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, ReplyClosedEvent, UserConfirmResultEvent
from agentrt.hooks import HOOKS
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.middleware import Question
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import Handoffs
from agentrt.tool import FunctionTool, ToolBase
from tests.loop.helpers import add, call, confirmation_of


class Counting(MiddlewareBase):
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

    async def on_tools(self, agent, current_tools):
        self.fired["on_tools"] += 1
        return current_tools

    async def on_content(self, agent, content):
        self.fired["on_content"] += 1
        return content

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

    async def on_observe(self, agent, input_kwargs, next_handler):
        self.fired["on_observe"] += 1
        await next_handler()

    async def on_print(self, agent, input_kwargs, next_handler):
        self.fired["on_print"] += 1
        await next_handler()

    def on_event(self, agent, event):
        self.fired["on_event"] += isinstance(event, ReplyClosedEvent)  # once for each way through a reply

    def on_wire(self, agent, record):
        self.fired["on_wire"] += record.kind == "end"

    def on_layer(self, agent, record):
        self.fired["on_layer"] += record.kind == "end" and record.layer == "Counting"


def two_rounds(layer: Counting, *calls: object, tools: tuple = (add,), kind: type[Agent] = Agent) -> Agent:
    model = ScriptedChatModel([list(calls) or [call("1", "add", a=1, b=2)], "done"])
    return kind("tester", "You are tested.", model, Toolkit(tools=list(tools)), [layer])


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
        return "one"

    await two_rounds(layer, call("1", "one"), call("2", "one"), tools=(one,)).reply("go")


async def concurrent_tools(layer: Counting) -> None:
    await two_rounds(layer, *(call(str(n), "add", a=n, b=n) for n in range(3))).reply("go")


async def agent_in_a_function(layer: Counting) -> None:
    inner = two_rounds(layer)

    async def delegate(task: str) -> str:
        return (await inner.reply(task)).get_text_content() or ""

    outer = ScriptedChatModel([[call("1", "delegate", task="add")], "done"])
    await Agent("outer", "", outer, Toolkit(tools=[delegate])).reply("go")


def supervisor_of(inner: Agent) -> Agent:
    model = ScriptedChatModel([[call("1", inner.name, query="add")], "done"])
    return Agent("boss", "", model, Toolkit(tools=[inner.as_tool("Adds.")]))


async def sub_agent(layer: Counting) -> None:
    await supervisor_of(two_rounds(layer)).reply("go")


async def sub_agent_resumed(layer: Counting) -> None:
    boss = supervisor_of(two_rounds(layer, tools=(FunctionTool(add, ask=True),)))
    await boss.reply("go")
    await boss.reply(confirmation_of(boss))


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


class Asking(MiddlewareBase):
    """Asks the user before its reply's first model call."""

    def __init__(self) -> None:
        self.ask = Question("go_on")

    def list_tools(self):
        return [self.ask]

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        scratch = agent.state_of(self)
        if self.ask.answer(agent) is None and "asked" not in scratch:
            scratch["asked"] = True
            yield self.ask.message(agent, "Shall I go on?")
            return
        async for item in next_handler():
            yield item


async def layer_asks(layer: Counting) -> None:
    agent = two_rounds(layer)
    agent = agent.with_middlewares([layer, Asking()])
    await agent.reply("go")
    reply_id, waiting = parked(agent)
    await agent.reply(UserConfirmResultEvent(reply_id, [ConfirmResult(True, waiting)]))


class Elsewhere(ToolBase):
    name = "add"
    is_external_tool = True
    input_schema: ClassVar = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


async def resume_after_external_execution(layer: Counting) -> None:
    agent = two_rounds(layer, tools=(Elsewhere(),))
    await agent.reply("go")
    reply_id, waiting = parked(agent)
    result = ToolResultBlock(waiting.id, waiting.name, "3")
    await agent.reply(ExternalExecutionResultEvent(reply_id, [result]))


def team_of(layer: Counting, tool: object) -> Handoffs:
    """Return a team whose first agent has one round, in which it transfers, and whose second has two."""
    transfers = Agent("first", "", ScriptedChatModel([[call("0", "transfer_to_tester")]]), middlewares=[layer])
    return Handoffs([transfers, two_rounds(layer, tools=(tool,))])


async def handoff(layer: Counting) -> None:
    await team_of(layer, add).reply("go")


async def handoff_resumed(layer: Counting) -> None:
    team = team_of(layer, FunctionTool(add, ask=True))
    await team.reply("go")
    reply_id, waiting = parked(team.active)
    await team.reply(UserConfirmResultEvent(reply_id, [ConfirmResult(True, waiting)]))


async def observe(layer: Counting) -> None:
    await two_rounds(layer).observe(UserMsg("user", "psst"))


class Polite(Agent):
    async def reply(self, inputs=None, structured_schema=None):
        answer = await super().reply(inputs, structured_schema)
        return UserMsg(answer.name, f"{answer.get_text_content()}, thank you")


async def overridden_reply(layer: Counting) -> None:
    answer = await two_rounds(layer, kind=Polite).reply("go")
    assert answer.content == "done, thank you"


async def overridden_reply_streamed(layer: Counting) -> None:
    async with two_rounds(layer, kind=Polite).reply_stream("go", yield_final_msg=True) as events:
        *_, answer = [event async for event in events]
    assert answer.content == "done, thank you"


class Echo(AgentBase):
    async def reply(self, msg):
        return msg

    async def observe(self, msg):
        self.heard = msg


def echo(layer: Counting) -> Echo:
    agent = Echo(name="echo", middlewares=[layer])
    agent.disable_console_output()
    return agent


async def custom_agent(layer: Counting) -> None:
    await echo(layer)(UserMsg("user", "go"))


async def custom_agent_replying(layer: Counting) -> None:
    await echo(layer).reply(UserMsg("user", "go"))


async def custom_agent_observing(layer: Counting) -> None:
    await echo(layer).observe(UserMsg("user", "psst"))


async def custom_agent_printing(layer: Counting) -> None:
    await echo(layer).print(UserMsg("user", "look"))


TWO_ROUNDS = {"on_reply": 1, "on_reasoning": 2, "on_system_prompt": 2, "on_model_call": 2, "on_compress_context": 0}
TWO_ROUNDS |= {"on_observe": 0, "on_tools": 2}
# What is printed: each call, each result, the answer (one word), and the message as a whole.
ONE_TOOL = TWO_ROUNDS | {"on_check_permission": 1, "on_acting": 1, "on_print": 4, "on_content": 2}
# Three rounds and two calls, in two replies. The second one's input is what the first one left.
HANDOFF = dict.fromkeys(TWO_ROUNDS, 3) | {"on_reply": 2, "on_compress_context": 0, "on_observe": 0}
HANDOFF |= {"on_check_permission": 2, "on_acting": 2, "on_print": 7, "on_content": 3}
# An assembly for each request, and one when the reply resumes.
RESUMED = {"on_reply": 2, "on_tools": 3}
CUSTOM_AGENT = {spec.name: 0 for spec in HOOKS} | {"on_reply": 1}  # it has no model and no tools of the runtime's

ROWS: dict[Callable[[Counting], Awaitable[None]], dict[str, int]] = {
    reply: ONE_TOOL,
    call_agent: ONE_TOOL,
    stream: ONE_TOOL,
    other_state: ONE_TOOL,
    sequential_tools: TWO_ROUNDS | {"on_check_permission": 2, "on_acting": 2, "on_print": 6, "on_content": 3},
    concurrent_tools: TWO_ROUNDS | {"on_check_permission": 3, "on_acting": 3, "on_print": 8, "on_content": 4},
    agent_in_a_function: ONE_TOOL,
    sub_agent: ONE_TOOL | {"on_print": 0},  # nothing that it says is printed
    sub_agent_resumed: ONE_TOOL | RESUMED | {"on_check_permission": 2, "on_print": 0},
    resume_after_confirmation: ONE_TOOL | RESUMED | {"on_check_permission": 2, "on_print": 5},
    resume_after_external_execution: ONE_TOOL | RESUMED | {"on_acting": 0, "on_print": 5},
    # The round that asks enters no model. Its question is decided on before and after the answer.
    layer_asks: ONE_TOOL | RESUMED | {"on_reasoning": 3, "on_check_permission": 3, "on_print": 7},
    handoff: HANDOFF,
    handoff_resumed: HANDOFF | {"on_reply": 3, "on_tools": 4, "on_check_permission": 3, "on_print": 8},
    observe: dict.fromkeys(ONE_TOOL, 0) | {"on_observe": 1, "on_content": 1},
    overridden_reply: ONE_TOOL | {"on_print": 5},  # what it makes of the answer is printed too
    overridden_reply_streamed: ONE_TOOL | {"on_print": 5},
    custom_agent: CUSTOM_AGENT,
    custom_agent_replying: CUSTOM_AGENT,
    custom_agent_observing: CUSTOM_AGENT | {"on_reply": 0, "on_observe": 1},
    custom_agent_printing: CUSTOM_AGENT | {"on_reply": 0, "on_print": 1},
}
# No layer and no path keeps anything from the observers.
PATHS = {
    path: row | {"on_event": row["on_reply"], "on_wire": row.get("on_model_call", 0), "on_layer": sum(row.values())}
    for path, row in ROWS.items()
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_each_hook_fires_on_the_path(path):
    layer = Counting()
    await path(layer)
    assert {hook: layer.fired[hook] for hook in PATHS[path]} == PATHS[path]


def test_run_sync_takes_the_same_path():
    layer = Counting()
    two_rounds(layer).run_sync("go")
    assert layer.fired == {hook: times for hook, times in PATHS[reply].items() if times}


def test_no_hook_is_missing_from_the_table():
    hooks = {spec.name for spec in HOOKS}
    assert [path for path, row in PATHS.items() if set(row) != hooks] == []


async def test_a_call_that_is_never_entered_fires_no_acting_hook():
    """`on_acting` wraps running a permitted call and only that, and `explain()` says so."""
    layer = Counting()
    agent = two_rounds(layer, call("1", "nope"), call("2", "add", a="x", b=1))
    await agent.reply("go")
    assert layer.fired["on_acting"] == 0
    assert "never for a call that is not run here: an unknown tool, invalid arguments" in agent.explain()
