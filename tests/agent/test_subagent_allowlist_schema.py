"""A sub-agent has the tools that its allowlist names, and its supervisor does not have them."""

from typing import Any

import pytest

from agentrt import Agent, Msg, Toolkit
from agentrt.agent import SubAgentBase
from agentrt.errors import ConfigError
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext, PermissionRule
from agentrt.tool import FunctionTool, ToolGroup
from agentrt.types import PermissionBehavior, PermissionMode
from tests.agent.subagents import Echo, register, run_tool, search_web, spec_of
from tests.loop.helpers import call


async def fetch(url: str) -> str:
    return url


async def post(url: str) -> str:
    return url


class Listing(SubAgentBase):
    tools = (fetch,)

    async def reply(self, msg: Msg) -> Msg:
        return Msg(self.name, " ".join(self.toolkit.names()), "assistant")


def host_toolkit() -> Toolkit:
    web = ToolGroup("web", "The web.", active=True, tools=[FunctionTool(search_web, is_read_only=True), post])
    return Toolkit([FunctionTool(fetch, name="fetch_quickly")], groups=[web])


async def tools_of(*allowlist: str, host: Any = None) -> list[str]:
    toolkit = Toolkit()
    name = await register(toolkit, Listing, spec_of(tools_allowlist=[*allowlist]), host=host)
    return (await run_tool(toolkit, name, query="x")).text.split()


async def test_subagent_allowlist_schema() -> None:
    """The sub-agent sees what the allowlist names, the supervisor's model the sub-agent."""
    toolkit = Toolkit()
    spec = spec_of("search", tools_allowlist=["search_web", "fetch"])
    name = await register(toolkit, Listing, spec, host=Toolkit([search_web, post]))
    model = ScriptedChatModel([[call("1", name, query="x")], "done"])
    boss = Agent("boss", model=model, toolkit=toolkit)
    await boss.reply("go")
    [result] = boss.state.context[-1].get_content_blocks("tool_result")
    assert result.text == "search_web fetch"
    [offered] = [{schema["function"]["name"] for schema in one.tools} for one in model.calls[:1]]
    assert offered == {"agent_search"}


async def test_nothing_is_allowed_by_default() -> None:
    toolkit = Toolkit()
    name = await register(toolkit, Listing, host=host_toolkit())
    assert (await run_tool(toolkit, name, query="x")).text == ""


async def test_group_gives_its_tools_without_the_meta_tool() -> None:
    assert await tools_of("web", host=host_toolkit()) == ["search_web", "post"]
    assert await tools_of("fetch", "fetch_quickly", host=host_toolkit()) == ["fetch", "fetch_quickly"]


async def test_group_follows_update_tool_groups_of_the_host() -> None:
    host, toolkit = host_toolkit(), Toolkit()
    name = await register(toolkit, Listing, spec_of(tools_allowlist=["web"]), host=host)
    host.update_tool_groups(["web"], False)
    assert (await run_tool(toolkit, name, query="x")).text == ""
    host.update_tool_groups(["web"], True)
    host.register_tool_function(fetch, group_name="web")
    assert (await run_tool(toolkit, name, query="x")).text == "search_web post fetch"


async def test_choice_of_groups_by_the_hosts_model_does_not_matter() -> None:
    host = host_toolkit()
    name = await register(host, Listing, spec_of(tools_allowlist=["web"]), host=host)
    calls = [[call("1", "reset_equipped_tools", web=False)], [call("2", name, query="x")], "done"]
    boss = Agent("boss", model=ScriptedChatModel(calls), toolkit=host)
    await boss.reply("go")
    assert boss.state.active_groups == []
    results = boss.state.context[-1].get_content_blocks("tool_result")
    assert results[-1].text == "search_web post"


async def test_tools_that_delegate_must_be_named_themselves() -> None:
    host = host_toolkit()
    host.create_tool_group("team", "The others.", active=True)
    function_name = await register(host, Echo, spec_of("other"))
    tool = host.get(function_name)
    host.register_tool_function(tool.with_name("inner"), group_name="team")
    assert await tools_of("team", host=host) == []
    assert await tools_of("inner", host=host) == ["inner"]


async def test_agent_as_a_tool_must_be_named_itself_too() -> None:
    host = host_toolkit()
    other = Agent("other", model=ScriptedChatModel([])).as_tool("Does the rest.")
    host.create_tool_group("team", "The others.", active=True)
    host.register_tool_function(other, group_name="team")
    assert await tools_of("team", host=host) == []
    assert await tools_of("other", host=host) == ["other"]


async def test_unknown_name_is_told_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"'search_wed'.*did you mean 'search_web'\?"):
        await tools_of("search_wed", host=host_toolkit())
    with pytest.raises(ConfigError, match="'reset_equipped_tools'"):
        await tools_of("reset_equipped_tools", host=host_toolkit())


@pytest.mark.parametrize("behavior", [PermissionBehavior.DENY, PermissionBehavior.ASK])
async def test_rules_of_the_supervisor_take_tools_away(behavior: PermissionBehavior) -> None:
    boss = Agent("boss", model=ScriptedChatModel([]), toolkit=host_toolkit())
    boss.state.permission_context = PermissionContext(rules=[PermissionRule("po*", None, behavior)])
    assert await tools_of("web", "fetch", host=boss) == ["search_web", "fetch"]


async def test_exploring_supervisor_shares_only_what_reads() -> None:
    boss = Agent("boss", model=ScriptedChatModel([]), toolkit=host_toolkit())
    boss.state.permission_context = PermissionContext(mode=PermissionMode.EXPLORE)
    assert await tools_of("web", "fetch", host=boss) == ["search_web"]


async def test_tool_that_asks_is_not_run_without_asking() -> None:
    class Using(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            result = await self.call_tool("post", url="u")
            return Msg(self.name, f"{result.state}: {result.text}", "assistant")

    toolkit = Toolkit()
    host = Toolkit([FunctionTool(post, ask=True)])
    name = await register(toolkit, Using, spec_of(tools_allowlist=["post"]), host=host)
    assert (await run_tool(toolkit, name, query="x")).text.startswith("denied: post was not run")


async def test_what_a_sub_agent_does_to_its_toolkit_stays_there() -> None:
    class Greedy(Listing):
        async def reply(self, msg: Msg) -> Msg:
            self.toolkit.register_tool_function(post)
            return await super().reply(msg)

    host, toolkit = Toolkit([search_web]), Toolkit()
    name = await register(toolkit, Greedy, spec_of(tools_allowlist=["search_web"]), host=host)
    for _ in range(2):
        assert (await run_tool(toolkit, name, query="x")).text == "search_web post"
    assert host.names() == ["search_web"]
