"""Groups of tools that middlewares bring, and calls of one answer that run one after the other."""

import json
from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.agent import ReActConfig
from agentrt.errors import ConfigError, ToolConfigError
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolGroup, Toolkit
from tests.loop.helpers import add, agent_of, call


def tool(name: str) -> FunctionTool:
    return FunctionTool(add, name=name)


class Bringing(MiddlewareBase):
    def __init__(self, *tools: Any) -> None:
        self.tools = list(tools)

    def list_tools(self) -> list[Any]:
        return self.tools


def plan(active: bool = False, **options: Any) -> ToolGroup:
    return ToolGroup("plan", "Tools for a plan.", active, [tool("plan_it")], **options)


def web(active: bool = False) -> ToolGroup:
    return ToolGroup("web", "The web.", active, [tool("search")])


def agent_with(*brought: Any, toolkit: Any = None, answers: Any = ("done",), **options: Any) -> Agent:
    model = ScriptedChatModel(list(answers))
    return Agent("a", model=model, toolkit=toolkit, middlewares=[Bringing(*brought)], **options)


def offered(agent: Agent, index: int = -1) -> list[str]:
    return [schema["function"]["name"] for schema in agent.model.calls[index].tools]


META = "reset_equipped_tools"


@pytest.mark.parametrize(
    ("toolkit", "active", "expected"),
    [
        (None, False, [META]),
        (None, True, [META, "plan_it"]),
        ([add], True, ["add", META, "plan_it"]),
        (Toolkit([add], [web()]), True, ["add", META, "plan_it"]),
        (Toolkit([add], [web(True)]), False, ["add", "search", META]),
        (Toolkit([add], [web(True)]), True, ["add", "search", META, "plan_it"]),
    ],
)
async def test_groups_of_a_middleware_are_offered_when_active(toolkit: Any, active: bool, expected: list[str]):
    agent = agent_with(plan(active), toolkit=toolkit)
    await agent.reply("go")
    assert offered(agent) == expected


async def test_a_model_switches_groups_of_both_kinds():
    toolkit = Toolkit([add], [web(True)])
    answers = [
        [call("1", "plan_it", a=1, b=2)],
        [call("2", META, plan=True, web=False)],
        [call("3", "plan_it", a=1, b=2)],
        "done",
    ]
    agent = agent_with(plan(notes="One at a time."), toolkit=toolkit, answers=answers)
    await agent.reply("go")
    first, second, third = agent.state.context[-1].get_content_blocks("tool_result")
    assert "its group 'plan' is not active" in first.text
    assert "plan: One at a time." in second.text
    assert third.text == "3"
    assert offered(agent) == ["add", META, "plan_it"]
    assert agent.state.active_groups == ["plan"]
    assert toolkit.active_groups == ["web"]  # the toolkit's own setting, with which new conversations begin
    parameters = agent.model.calls[0].tools[-1]["function"]["parameters"]["properties"]
    assert list(parameters) == ["web", "plan"]


def test_the_setting_of_all_groups_is_one():
    toolkit = Toolkit([add], [web()])
    extended = agent_with(plan(True), toolkit=toolkit).toolkit
    assert extended.active_groups == ["plan"]
    extended.update_tool_groups(["web"], active=True)
    assert (extended.active_groups, toolkit.active_groups) == (["web", "plan"], ["web"])
    extended.update_tool_groups("plan", active=False)
    assert (extended.active_groups, toolkit.active_groups) == (["web"], ["web"])
    extended.reset_equipped_tools(plan=True)
    assert (extended.active_groups, toolkit.active_groups) == (["plan"], [])
    assert extended.groups == {"web": ["search"], "plan": ["plan_it"]}
    saved = extended.state_dict()
    extended.update_tool_groups(["web", "plan"], active=True)
    extended.load_state_dict(json.loads(json.dumps(saved)))
    assert (extended.active_groups, toolkit.active_groups) == (["plan"], [])
    with pytest.raises(ToolConfigError, match="no group 'other': the groups are 'basic', 'web', 'plan'"):
        extended.update_tool_groups(["other"], active=True)
    with pytest.raises(ToolConfigError, match="no group 'other'"):
        extended.load_state_dict({"active_groups": ["other"]})


async def test_a_group_that_comes_later_can_be_switched_as_well():
    toolkit = Toolkit([add])
    agent = agent_with(
        plan(), toolkit=toolkit, answers=[[call("1", META, late=True)], [call("2", "x", a=1, b=1)], "done"]
    )
    toolkit.create_tool_group("late", "Late tools.")
    toolkit.register_tool_function(tool("x"), group_name="late")
    agent.toolkit.register_tool_function(tool("y"), group_name="plan")
    await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("tool_result")[-1].text == "2"
    assert offered(agent) == ["add", "x", META]
    assert agent.toolkit.groups == {"late": ["x"], "plan": ["plan_it", "y"]}


@pytest.mark.parametrize(
    ("brought", "says"),
    [
        ([plan(), plan()], "already has a group 'plan'"),
        ([ToolGroup("web", "Other.", tools=[tool("other")])], "already has a group 'web'"),
        ([ToolGroup("basic", "Other.")], "already has a group 'basic'"),
        ([ToolGroup("plan", "Other.", tools=[tool("add")])], "two tools are called 'add'"),
        ([ToolGroup("plan", "Other.", tools=[tool("search")])], "two tools are called 'search'"),
        ([tool("plan_it"), plan()], "two tools are called 'plan_it'"),
        ([ToolGroup(["plan"], "Other.")], "cannot be the name of a group"),  # type: ignore[arg-type]
        ([ToolGroup("plan", [tool("x")])], "description=... of the group 'plan' must be a str"),  # type: ignore[arg-type]
    ],
)
def test_groups_that_do_not_fit_are_refused(brought: list[Any], says: str):
    with pytest.raises(ToolConfigError, match=says):
        agent_with(*brought, toolkit=Toolkit([add], [web()]))


def test_groups_leave_with_their_middleware_and_are_explained():
    agent = agent_with(tool("one"), plan(), toolkit=[add])
    assert "Tools of Bringing: one, plan_it (group 'plan')" in agent.explain()
    assert agent.with_middlewares([]).toolkit.groups == {}
    assert agent.with_middlewares([Bringing(web(True))]).toolkit.names() == ["add", META, "search"]


async def test_structured_output_works_beside_groups():
    from agentrt.state.state import WRAPPER
    from agentrt.types import STRUCTURED_OUTPUT

    answers = [[call("1", "plan_it", a=1, b=2)], [call("2", STRUCTURED_OUTPUT, **{WRAPPER: 3})]]
    agent = agent_with(plan(True), answers=answers)
    assert (await agent.reply("go", structured_schema=int)).structured_output == 3


# One call at a time


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_calls_run_one_after_the_other_where_that_is_asked_for(parallel: bool, streams: bool):
    log: list[str] = []

    async def work(who: str) -> str:
        log.append(f"{who} begins")
        await anyio.lowlevel.checkpoint()
        log.append(f"{who} ends")
        return who

    config = ReActConfig(parallel_tool_calls=parallel)
    blocks = [call(str(number), "work", who=name) for number, name in enumerate("abc")]
    agent = agent_of([blocks, "done"], FunctionTool(work), react_config=config)
    if streams:
        async with agent.reply_stream("go") as events:
            async for _ in events:
                pass
    else:
        await agent.reply("go")
    one_by_one = [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert (log == one_by_one) is not parallel
    assert [block.text for block in agent.state.context[-1].get_content_blocks("tool_result")] == list("abc")


@pytest.mark.parametrize("value", [None, 1, "no"])
def test_a_wrong_setting_of_parallel_calls_is_refused(value: Any):
    with pytest.raises(ConfigError, match="must be True or False, not"):
        ReActConfig(parallel_tool_calls=value)
