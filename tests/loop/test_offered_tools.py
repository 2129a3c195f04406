"""What layers of on_model_call may do to the tools of a request, and what the loop makes of it."""

from typing import Any, ClassVar

import pytest

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.agent import ReActAgent
from agentrt.errors import ChainError
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase, ToolChoice
from tests.loop.helpers import Elsewhere, add, agent_of, call, multiply, offered, results

SCHEMA = {"type": "function", "function": {"name": "unheard_of", "description": "", "parameters": {}}}


class Pass(MiddlewareBase):
    """Passes on what a function makes of the tools."""

    inherited = False

    def __init__(self, **values: Any) -> None:
        self.values = values

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(**{key: make(input_kwargs) for key, make in self.values.items()})


def adds(*tools: Any) -> Pass:
    return Pass(tools=lambda values: [*values["tools"], *tools])


def chooses(**choice: Any) -> Pass:
    return Pass(tool_choice=lambda values: ToolChoice(**choice))


async def test_choice_made_in_on_model_call_narrows_the_offered_tools():
    agent = agent_of(["hi"], add, multiply, middlewares=[chooses(tools=["multiply"])])
    await agent.reply("go")
    assert offered(agent) == [["multiply"]]


async def test_a_tuple_of_tools_is_taken_like_a_list():
    layer = Pass(tools=lambda values: (*values["tools"], FunctionTool(multiply)))
    agent = agent_of(["hi"], add, middlewares=[layer])
    await agent.reply("go")
    assert offered(agent) == [["add", "multiply"]]


async def test_a_choice_narrows_what_reached_the_core():
    class ChoosesAdd(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler(tool_choice=ToolChoice(tools=["add"])):
                yield item

    layers = [ChoosesAdd(), adds(FunctionTool(multiply)), chooses(tools=["multiply", "unheard_of"])]
    agent = agent_of(["hi"], add, middlewares=layers)
    await agent.reply("go")
    assert offered(agent) == [["multiply"]]


class Alternating(MiddlewareBase):
    """Allows one tool in a round, and the other in the next; an inner layer has the last word about the mode."""

    def __init__(self):
        self.moved = []

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler(tool_choice=ToolChoice(tools=[["add"], ["multiply"]][len(self.moved) // 2 % 2])):
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(tool_choice=ToolChoice("required"))

    def on_wire(self, agent, record):
        self.moved.append(record.moved)


@pytest.mark.parametrize("supported", [True, False])
async def test_a_model_that_can_be_held_to_some_tools_gets_all(supported):
    class Model(ScriptedChatModel):
        supports_allowed_tools = supported

    layer, model = Alternating(), Model([[call(str(number), "add", a=2, b=3)] for number in range(3)] + ["5"])
    agent = Agent("a", model=model, tools=[add, multiply], middlewares=[layer])
    await agent.reply("go")
    both = ["add", "multiply"]
    assert offered(agent) == ([both] * 4 if supported else [["add"], ["multiply"]] * 2)
    assert [made.tool_choice.tools for made in model.calls] == (
        [["add"], ["multiply"]] * 2 if supported else [None] * 4
    )
    assert {made.tool_choice.mode for made in model.calls} == {"required"}
    # The requests after the first, each seen at its start and its end.
    assert {*layer.moved[2:]} == ({None} if supported else {"tools"})


async def test_a_round_without_allowed_tools_offers_none():
    class Model(ScriptedChatModel):
        supports_allowed_tools = True

    agent = Agent("a", model=Model(["hi"]), tools=[add], middlewares=[chooses(tools=[])])
    await agent.reply("go")
    assert offered(agent) == [[]]


async def test_a_tool_that_a_layer_adds_can_be_called_in_that_round():
    agent = agent_of([[call("1", "multiply", a=2, b=3)], "6"], add, middlewares=[adds(FunctionTool(multiply))])
    answer = await agent.reply("go")
    assert offered(agent) == [["add", "multiply"], ["add", "multiply"]]
    assert (results(agent), answer.get_text_content()) == (["6"], "6")


async def test_added_tool_can_be_called_in_no_other_round():
    class AddsOnce(MiddlewareBase):
        has_added = False

        async def on_model_call(self, agent, input_kwargs, next_handler):
            if self.has_added:
                return await next_handler()
            self.has_added = True
            return await next_handler(tools=[*input_kwargs["tools"], FunctionTool(multiply)])

    calls = [[call(str(number), "multiply", a=2, b=3)] for number in (1, 2)]
    agent = agent_of([*calls, "6"], add, middlewares=[AddsOnce()])
    await agent.reply("go")
    assert results(agent)[0] == "6"
    assert results(agent)[1].startswith("The tool 'multiply' does not exist")
    assert agent.toolkit.names() == ["add"]


async def test_calls_of_added_tools_run_beside_those_of_the_agents_own():
    calls = [call("1", "multiply", a=2, b=3), call("2", "add", a=2, b=3)]
    agent = agent_of([calls, "done"], add, middlewares=[adds(FunctionTool(multiply))])
    await agent.reply("go")
    assert results(agent) == ["6", "5"]


async def test_inner_layers_see_and_may_replace_an_added_schema():
    seen: list[Any] = []

    def shorten(values):
        seen.extend(values["tools"])
        return [{**tool, "function": {**tool["function"], "description": "short"}} for tool in values["tools"]]

    layers = [adds(FunctionTool(multiply)), Pass(tools=shorten)]
    agent = agent_of([[call("1", "multiply", a=2, b=3)], "6"], add, middlewares=layers)
    await agent.reply("go")
    assert all(isinstance(tool, dict) for tool in seen)
    assert agent.model.calls[0].tools[1]["function"]["description"] == "short"
    assert results(agent) == ["6"]


async def test_added_tool_replaces_the_agents_own_in_that_round():
    async def other(a: int, b: int) -> str:
        return "other"

    layer = Pass(tools=lambda values: [FunctionTool(other, name="add")])
    agent = agent_of([[call("1", "add", a=2, b=3)], "done"], add, middlewares=[layer])
    await agent.reply("go")
    assert results(agent) == ["other"]


async def test_added_tool_that_asks_is_refused_naming_its_layer():
    layer = adds(FunctionTool(multiply, ask=True))
    agent = agent_of([[call("1", "multiply", a=2, b=3)], "sorry"], add, middlewares=[layer])
    await agent.reply("go")
    [text] = results(agent)
    assert "it would have to wait for an answer, and Pass added it to one request only" in text
    assert text.endswith("add it in on_tools.")


async def test_added_tool_of_an_outside_program_is_refused_at_once():
    agent = agent_of([[call("1", "elsewhere")], "sorry"], add, middlewares=[adds(Elsewhere())])
    await agent.reply("go")
    assert "add it in on_tools" in results(agent)[0]


async def test_added_agent_that_asks_is_refused_at_once():
    inner = agent_of([[call("1", "add", a=1, b=2)], "3"], FunctionTool(add, ask=True))
    layer = adds(inner.as_tool("Adds.", name="adder"))
    agent = agent_of([[call("1", "adder", query="1 + 2")], "sorry"], middlewares=[layer])
    await agent.reply("go")
    assert "add it in on_tools" in results(agent)[0]


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (
            SCHEMA,
            "the schema 'unheard_of' is of a tool that this agent cannot run in this round: put a ToolBase in its",
        ),
        (add, "a tool must be a ToolBase, or a JSON schema"),
        ({"name": "add"}, "a tool must be a ToolBase, or a JSON schema"),
        (FunctionTool(add), "two tools are called 'add'"),
    ],
)
async def test_tool_that_cannot_be_offered_is_refused_naming_its_layer(tool, words):
    agent = agent_of(["never"], add, middlewares=[adds(tool)])
    with pytest.raises(ChainError) as caught:
        await agent.reply("go")
    assert str(caught.value).startswith("Pass.on_model_call passed tools=[")
    assert f" to next_handler(), of type list: {words}" in str(caught.value)
    assert agent.model.calls == []


async def test_no_tools_at_all_may_be_none():
    agent = agent_of(["hi"], add, middlewares=[Pass(tools=lambda values: None)])
    await agent.reply("go")
    assert offered(agent) == [[]]


async def test_layers_may_add_tools_to_a_request_for_a_summary():
    class External(ToolBase):
        name = "external"
        description = "Runs elsewhere."
        input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}
        is_external_tool = True

    model = ScriptedChatModel(["one", "two", "a summary"])
    agent = Agent("tester", "", model, middlewares=[adds(External(), FunctionTool(multiply))])
    await agent.reply("a" * 2_000)
    await agent.reply("b" * 2_000)
    await agent.compress_context()
    assert offered(agent)[-1] == ["external", "multiply"]


class Counter:
    def count(self, word: str) -> int:
        return len(word)


class Brings(MiddlewareBase):
    def list_tools(self):
        return [FunctionTool(add, name="brought")]


@pytest.mark.parametrize("cls", [Agent, ReActAgent])
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"tools": [add, FunctionTool(multiply), Counter().count]}, ["add", "multiply", "count"]),
        ({"tools": (add,)}, ["add"]),
        ({"toolkit": [add]}, ["add"]),
        ({"toolkit": [add], "tools": [multiply]}, ["add", "multiply"]),
        ({"toolkit": Toolkit([add]), "tools": [multiply]}, ["add", "multiply"]),
        ({"toolkit": Toolkit([add]), "tools": []}, ["add"]),
        ({}, []),
    ],
)
async def test_an_agent_takes_tools_in_lists_and_toolkits(cls, given, names):
    toolkit = given.get("toolkit")
    before = toolkit.names() if isinstance(toolkit, Toolkit) else None
    calls = [call(name, name, **({"word": "four"} if name == "count" else {"a": 2, "b": 2})) for name in names]
    model = ScriptedChatModel([[*calls] or "no tools", "done"])
    agent = cls("tester", "", model, middlewares=[Brings()], **given)
    await agent.reply("go")
    assert offered(agent)[0] == [*names, "brought"]
    assert results(agent) == ["4"] * len(names)
    assert before is None or toolkit.names() == before


async def test_a_tool_registered_later_joins_those_of_a_list():
    agent = Agent("tester", model=ScriptedChatModel(["one", "two"]), tools=[add])
    await agent.reply("go")
    agent.toolkit.register_tool_function(multiply)
    await agent.reply("go")
    assert offered(agent) == [["add"], ["add", "multiply"]]
