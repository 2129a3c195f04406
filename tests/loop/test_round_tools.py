"""The tools of a round as layers of on_tools leave them, in every process that has a part in the reply."""

import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt._runtime.loop.tool_calls.round_tools import current_tools
from agentrt.errors import ChainContractError
from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolGroup, Toolkit
from tests.loop.helpers import Elsewhere, add, agent_of, call, confirmation_of, elsewhere, multiply, offered, results


class Killed(BaseException):
    """The process has died."""


class Tools(MiddlewareBase):
    """Has a function make the tools, and counts how often it is asked."""

    def __init__(self, make):
        self.make = make
        self.asked = 0

    async def on_tools(self, agent, current_tools):
        self.asked += 1
        return self.make(current_tools)


def adds(*tools):
    return Tools(lambda current: [*current, *tools])


def test_without_layers_the_entry_is_the_core():
    assert agent_of(["hi"], add).chains.on_tools is current_tools


async def test_layers_add_remove_and_order_tools_from_left_to_right():
    layers = [adds(FunctionTool(multiply)), Tools(lambda current: current[::-1])]
    agent = agent_of([[call("1", "multiply", a=2, b=3)], "6"], add, middlewares=layers)
    await agent.reply("go")
    assert (offered(agent), results(agent)) == ([["multiply", "add"]] * 2, ["6"])


async def test_a_tool_that_is_left_out_cannot_be_called():
    agent = agent_of([[call("1", "add", a=2, b=3)], "no"], add, middlewares=[Tools(lambda current: [])])
    await agent.reply("go")
    assert results(agent) == ["The tool 'add' does not exist. The tools are: none."]


async def test_same_tools_keep_the_very_schemas_of_the_round_before():
    tool = FunctionTool(multiply)
    agent = agent_of([[call("1", "add", a=2, b=3)], "5"], add, middlewares=[adds(tool)])
    await agent.reply("go")
    first, second = (made.tools for made in agent.model.calls)
    assert all(one is other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("structured_schema", [None, {"type": "object", "properties": {}}])
@pytest.mark.parametrize("move", [elsewhere, lambda agent: agent])
async def test_added_tool_that_asks_runs_where_the_yes_comes(structured_schema, move):
    answer = [call("2", "GenerateStructuredOutput")] if structured_schema else "6"
    layer = adds(FunctionTool(multiply, ask=True))
    agent = agent_of([[call("1", "multiply", a=2, b=3)], answer, "6"], add, middlewares=[layer])
    await agent.reply("go", structured_schema)
    agent = move(agent)
    await agent.reply(confirmation_of(agent))
    assert results(agent)[0] == "6"


async def test_added_external_tool_takes_its_result_in_another_process():
    agent = agent_of([[call("1", "elsewhere")], "done"], add, middlewares=[adds(Elsewhere())])
    question = await agent.reply("go")
    other = elsewhere(agent)
    [block] = question.get_content_blocks("tool_call")
    await other.reply(ExternalExecutionResultEvent(question.id, [ToolResultBlock(block.id, block.name, "x" * 300)]))
    assert results(other) == ["x" * 300]


async def test_added_tool_takes_an_edited_input_in_another_process():
    layer = adds(FunctionTool(multiply, ask=True))
    agent = agent_of([[call("1", "multiply", a=2, b=3)], "8"], add, middlewares=[layer])
    agent.state.permission_context = PermissionContext(allow_edited_input=True)
    await agent.reply("go")
    other = elsewhere(agent)
    answer = confirmation_of(agent)
    answer.confirm_results[0].tool_call.input = '{"a": 4}'
    await other.reply(answer)
    assert results(other) == ["8"]


@pytest.mark.parametrize("kill", range(20))
async def test_added_idempotent_tool_runs_again_after_any_kill(kill):
    """A process that dies at its k-th save leaves a reply that another one ends, with the tool's result."""
    store, saved = InMemoryStateStore(), []

    class Dying(InMemoryStateStore):
        async def save(self, state):
            if len(saved) == kill:
                raise Killed
            saved.append(state.model_dump_json())

    async def count(number: int) -> int:
        return number + 1

    tool = FunctionTool(count)
    tool.is_idempotent = True
    script = [*([call(str(n), "count", number=n)] for n in range(9)), "done"]
    agent = agent_of(script, middlewares=[adds(tool)], state_store=Dying())
    try:
        await agent.reply("go", reply_id="r")
    except Killed:
        pass
    else:
        pytest.fail("a process was to die at each of the twenty saves")
    if not saved:
        return
    state = AgentState.model_validate_json(saved[-1])
    done = len(
        [
            block
            for m in [*state.context, *([state.reply_context.message] if state.reply_context else [])]
            for block in m.get_content_blocks("tool_call")
        ]
    )
    rest = agent_of(script[done:], middlewares=[adds(tool)], state_store=store, state=state)
    await rest.reply("go", reply_id="r")
    assert results(rest) == [str(n + 1) for n in range(9)]


async def test_tools_are_assembled_per_request_and_on_resume():
    layer = adds(FunctionTool(multiply, ask=True))
    agent = agent_of([[call("1", "multiply", a=2)], "4"], middlewares=[layer])
    await agent.reply("go")
    assert layer.asked == 1
    await agent.reply(confirmation_of(agent))
    assert layer.asked == 3


async def test_hidden_tools_and_the_form_of_an_answer_are_left_out():
    seen = []
    layer = Tools(lambda current: seen.append([tool.name for tool in current]) or [])
    agent = agent_of([[call("1", "GenerateStructuredOutput")]], add, middlewares=[layer])
    answer = await agent.reply("go", {"type": "object", "properties": {}})
    assert seen == [["add"]]
    assert answer.structured_output == {}


async def test_a_group_that_is_switched_on_reaches_the_layers():
    seen = []
    layer = Tools(lambda current: seen.append([tool.name for tool in current]) or current)
    toolkit = Toolkit(groups=[ToolGroup("more", "More tools.", tools=[multiply])])
    script = [[call("1", "reset_equipped_tools", more=True)], [call("2", "multiply", a=4)], "8"]
    agent = Agent("tester", "", ScriptedChatModel(script), toolkit, [layer])
    await agent.reply("go")
    assert seen[0] == ["reset_equipped_tools"]
    assert seen[1] == ["reset_equipped_tools", "multiply"]
    assert results(agent)[1] == "8"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (add, "which is not a ToolBase: write FunctionTool(function)"),
        (FunctionTool(add), "two tools called 'add'"),
    ],
)
async def test_what_cannot_be_offered_is_refused_naming_the_layers(given, words):
    agent = agent_of(["hi"], FunctionTool(add), middlewares=[adds(given)])
    with pytest.raises(ChainContractError, match="on_tools gave") as caught:
        await agent.reply("go")
    assert words in str(caught.value)
    assert str(caught.value).endswith("its layers are Tools")
