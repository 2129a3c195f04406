"""A request begins like the one before it, or its record says which part has moved."""

from itertools import count

import pytest

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt._runtime.model_interface.prefix import moved_parts
from agentrt.errors import MiddlewareConfigError
from agentrt.message import (
    AssistantMsg,
    DataBlock,
    HintBlock,
    SystemMsg,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.middleware import UsageMiddleware
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import add, call

NUMBERS = count()
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}


class Watch(MiddlewareBase):
    def __init__(self):
        self.moved = []

    def on_wire(self, agent, record):
        if record.kind == "request":
            self.moved.append((record.purpose, record.model.model, record.moved))


class Clock(MiddlewareBase):
    rewrites = ("system",)

    def __init__(self):
        self._times = count()

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} It is {next(self._times)} o'clock."


class Request(MiddlewareBase):
    """Passes on what a function makes of the messages or the tools."""

    def __init__(self, **makers):
        self._makers = makers

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(**{key: make(input_kwargs[key]) for key, make in self._makers.items()})


def agent_of(*layers, replies=2):
    script = [[call("1", "add", a=1, b=2)], "Three."] * replies
    return Agent("tester", "Be brief.", ScriptedChatModel(script), Toolkit(tools=[add]), middlewares=layers)


def drop_oldest(messages):
    return [messages[0], *messages[2:]] if len(messages) > 4 else messages


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (Request(), None),
        (Request(messages=lambda messages: [*messages, UserMsg("runtime", [HintBlock(f"{len(messages)}")])]), None),
        (Clock(), "system"),
        (Request(tools=lambda tools: [{**tool, "n": next(NUMBERS)} for tool in tools]), "tools"),
        (Request(messages=drop_oldest), "history"),
    ],
)
async def test_a_record_says_what_has_moved(layer, part):
    watch = Watch()
    agent = agent_of(layer, watch)
    for _ in range(2):
        await agent.reply("go")

    assert watch.moved[0] == (None, "scripted", None)
    assert watch.moved[-1] == (None, "scripted", part)


async def test_each_purpose_and_each_model_has_its_own_prefix():
    class Ask(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            other = ScriptedChatModel(["yes", "no"], model="other")
            await agent.run.ask_model([UserMsg("a", "Is it?")], purpose="judge", model=other)
            await agent.run.ask_model([UserMsg("a", "It is?")], purpose="doubt", model=other)
            async for item in next_handler():
                yield item

    watch = Watch()
    await agent_of(Ask(), watch).reply("go")

    own, judge, doubt = (None, "scripted", None), ("judge", "other", None), ("doubt", "other", None)
    assert watch.moved == [judge, doubt, own] * 2


async def test_usage_counts_moved_prefixes():
    usage = UsageMiddleware()
    agent = agent_of(Clock(), usage)
    for _ in range(2):
        await agent.reply("go")

    reports = usage.of_reply(agent), usage.of_conversation(agent), usage.total()
    assert [report.moved_prefixes for report in reports] == [2, 3, 3]
    assert usage.total().calls == 4
    assert usage.total().models["scripted"].moved_prefixes == 3


def result(text, **changes):
    return ToolResultBlock(**{"id": "1", "name": "add", "output": [TextBlock(text)], **changes})


SYSTEM, QUESTION = SystemMsg("system", "Be brief."), UserMsg("ann", "go")


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ([QUESTION], [UserMsg("ann", [TextBlock("go")])], []),
        ([QUESTION], [AssistantMsg("ann", "go")], ["history"]),
        ([QUESTION], [], ["history"]),
        ([SYSTEM, QUESTION], [SystemMsg("system", "Be brief."), UserMsg("ann", "go")], []),
        ([SYSTEM, QUESTION], [SystemMsg("system", "Be long."), UserMsg("ann", "stop")], ["system", "history"]),
        ([QUESTION], [SYSTEM, QUESTION], ["system"]),
        ([SYSTEM, QUESTION], [SYSTEM, SYSTEM, QUESTION], ["system"]),
        ([AssistantMsg("a", [result("x")])], [AssistantMsg("a", [result("x"), TextBlock("more")])], []),
        ([AssistantMsg("a", [result("x")])], [AssistantMsg("a", [result("x", output="x")])], []),
        ([AssistantMsg("a", [result("x")])], [AssistantMsg("a", [result("y")])], ["history"]),
        ([AssistantMsg("a", [result("x")])], [AssistantMsg("a", [result("x", output=[])])], ["history"]),
        ([AssistantMsg("a", [call("1", "add", a=1)])], [AssistantMsg("a", [call("1", "add", a=1)])], []),
        ([AssistantMsg("a", [call("1", "add", a=1)])], [AssistantMsg("a", [call("1", "add", a=2)])], ["history"]),
        ([QUESTION, UserMsg("runtime", [HintBlock("h")])], [QUESTION, AssistantMsg("a", "ok")], []),
        ([UserMsg("runtime", [HintBlock("h")]), QUESTION], [QUESTION], ["history"]),
        ([UserMsg("u", [DataBlock(URLSource("http://a/b.png", "image/png"))])], [QUESTION], ["history"]),
    ],
)
def test_requests_are_compared_by_what_is_sent(old, new, parts):
    assert moved_parts(([], old), ([], new)) == parts


def test_the_state_of_a_call_is_not_sent():
    old, new = (AssistantMsg("a", [ToolCallBlock("1", "add", "{}", state)]) for state in ("pending", "finished"))
    assert moved_parts(([ADD], [old]), ([{**ADD}], [new])) == []
    assert moved_parts(([ADD], [old]), ([], [new])) == ["tools"]


@pytest.mark.parametrize("rewrites", ["tools", ("prompt",), (7,), None])
def test_a_wrong_part_is_refused(rewrites):
    class Wrong(MiddlewareBase):
        pass

    Wrong.rewrites = rewrites
    with pytest.raises(MiddlewareConfigError, match=r"Wrong\.rewrites must be a tuple of some of .* not "):
        agent_of(Wrong())


def test_explain_shows_what_layers_rewrite():
    agent = agent_of(Clock())
    assert "What these rewrite, no provider can read from its cache: Clock (system)" in agent.explain()
    assert '"rewrites": [\n        "system"\n      ]' in agent.explain("json")
