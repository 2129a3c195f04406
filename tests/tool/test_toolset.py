"""Toolsets: tools whose list may change, in a toolkit and in the rounds of replies."""

import copy
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrt import Agent, Toolkit
from agentrt.errors import ToolConfigError, UsageError
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import ToolCallBlock
from agentrt.middleware import MiddlewareBase
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionMode, PermissionRule
from agentrt.state import AgentState
from agentrt.tool import FunctionTool, ToolBase, ToolGroup, Toolset


async def count() -> int:
    return 1


def tool(name: str, description: str = "Does it.", fingerprint: str | None = None) -> ToolBase:
    made = FunctionTool(count, name=name, description=description)
    made.fingerprint = fingerprint
    return made


class Shelf(Toolset):
    """A toolset of a fixed list, which the test may change."""

    def __init__(self, name: str = "shelf", tools: Sequence[ToolBase] = ()) -> None:
        self.name = name
        self.log: list[str] = []
        self.stock = list(tools) or [tool(f"{name}_count")]

    async def open(self) -> None:
        self.log.append("open")

    async def close(self) -> None:
        self.log.append("close")

    async def list_tools(self) -> Sequence[ToolBase]:
        return list(self.stock)

    def replace(self, *tools: ToolBase) -> None:
        self.stock, self.changed = list(tools), True


def calling(*names: str) -> list[Any]:
    """Return what a model answers that calls each tool once, one in a round."""
    calls = [ChatResponse([ToolCallBlock(f"c{number}", name, "{}")]) for number, name in enumerate(names)]
    return [*calls, "done"]


def names_offered(model: ScriptedChatModel) -> list[list[str]]:
    return [[schema["function"]["name"] for schema in call.tools or []] for call in model.calls]


async def test_agent_opens_its_toolsets_and_offers_their_tools() -> None:
    shelf = Shelf()
    model = ScriptedChatModel(calling("shelf_count"))
    agent = Agent("a", "Help.", model, tools=[count, shelf])
    async with agent, agent, agent.with_state(AgentState()):
        assert shelf.log == ["open"]
        message = await agent.reply("Count")
    assert shelf.log == ["open", "close"]
    assert names_offered(model) == [["count", "shelf_count"]] * 2
    assert message.get_text_content() == "done"


async def test_what_is_not_open_raises_with_the_remedy() -> None:
    shelf = Shelf()
    toolkit = Toolkit(tools=[shelf])
    agent = Agent("a", "Help.", ScriptedChatModel(["Hi"]), toolkit)
    with pytest.raises(UsageError, match="'shelf' is not open: write `async with agent:`"):
        await agent.reply("Count")
    with pytest.raises(UsageError, match="not open"):
        await shelf.tools()
    with pytest.raises(UsageError, match="not open"):
        toolkit.prepare(ToolCallBlock("1", "shelf_count", "{}"))
    assert not agent.state.context
    async with agent:
        await agent.reply("Count")
    with pytest.raises(UsageError, match="not open"):
        await agent.reply("Again")


async def test_change_of_the_list_counts_from_the_next_round() -> None:
    shelf = Shelf(tools=[tool("first"), tool("second")])

    def change(messages: object, tools: object) -> ChatResponse:
        shelf.replace(tool("second"), tool("third"))  # while the model answers
        return ChatResponse([ToolCallBlock("c1", "first", "{}")])

    model = ScriptedChatModel([change, "done"])
    async with Agent("a", "Help.", model, tools=[shelf]) as agent:
        await agent.reply("Go")
        results = agent.state.context[-1].get_content_blocks("tool_result")
    assert [result.state for result in results] == ["success"]  # the call of a tool that is gone by now
    assert names_offered(model) == [["first", "second"], ["second", "third"]]


async def test_tools_of_a_group_are_offered_while_it_is_active() -> None:
    shelf = Shelf()
    toolkit = Toolkit(groups=[ToolGroup("g", "Counting.", tools=[shelf])])
    async with toolkit:
        assert toolkit.names() == ["reset_equipped_tools"]
        assert toolkit.names(["g"]) == ["reset_equipped_tools", "shelf_count"]
        assert toolkit.snapshot().names(["g"]) == toolkit.names(["g"])
        assert toolkit.groups == {"g": ["shelf_count"]}
        shelf.replace(tool("other"))
        assert toolkit.snapshot().names(["g"]) == ["reset_equipped_tools", "shelf_count"]
        await toolkit.refresh()
        assert toolkit.names(["g"]) == ["reset_equipped_tools", "other"]


def local_tool() -> list[Any]:
    return [FunctionTool(count, name="x")]


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        (lambda: [*local_tool(), Shelf("s", [tool("x")])], "'s' has a tool 'x', which is the name of .*test_toolset"),
        (lambda: [Shelf("r", [tool("x")]), Shelf("s", [tool("x")])], "'s' .* 'x', .* one of the toolset 'r' as well"),
        (lambda: [Shelf("s", [tool("x"), tool("x")])], "'s' .* 'x', .* another of its tools as well"),
    ],
)
async def test_name_that_another_tool_has_is_refused(tools: Callable[[], list[Any]], says: str) -> None:
    given = tools()
    with pytest.raises(ToolConfigError, match=says):
        async with Toolkit(given):
            pass
    shelves = [one for one in given if isinstance(one, Shelf)]
    assert all(shelf.log == ["open", "close"] for shelf in shelves)


class Lends(MiddlewareBase):
    def list_tools(self) -> list[ToolBase]:
        return [FunctionTool(count, name="x")]


async def test_name_that_clashes_later_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf("s", [tool("y")])
    model = ScriptedChatModel(["one", "two"])
    async with Agent("a", "Help.", model, tools=[shelf], middlewares=[Lends()]) as agent:
        await agent.reply("Go")
        shelf.replace(tool("x"), tool("z"))
        await agent.reply("Go")
    assert names_offered(model) == [["y", "x"], ["z", "x"]]
    assert "the toolset 's' has a tool 'x', which is the name of a tool of the agent's middlewares" in caplog.text


async def test_two_toolsets_of_one_name_and_nameless_ones_are_refused() -> None:
    with pytest.raises(ToolConfigError, match="two toolsets of the toolkit are called 'shelf'"):
        Toolkit([Shelf(), Shelf()])
    agent = Agent("a", "Help.", ScriptedChatModel([]), Toolkit([Shelf()]), tools=[Shelf()])
    with pytest.raises(ToolConfigError, match="two toolsets"):
        async with agent:
            pass
    with pytest.raises(ToolConfigError, match="Shelf has no name"):
        Toolkit([Shelf("")])


async def test_toolset_that_does_not_open_leaves_nothing_open() -> None:
    class Broken(Shelf):
        async def open(self) -> None:
            raise OSError("no such server")

    shelf, broken = Shelf(), Broken("broken")
    agent = Agent("a", "Help.", ScriptedChatModel([]), tools=[shelf, broken])
    with pytest.raises(OSError, match="no such server"):
        async with agent:
            pass
    assert (shelf.is_open, broken.is_open, shelf.log) == (False, False, ["open", "close"])


async def test_toolsets_of_sub_agents_are_opened_with_the_supervisor() -> None:
    shelf = Shelf()
    child = Agent("child", "Help.", ScriptedChatModel(calling("shelf_count")), tools=[shelf])
    model = ScriptedChatModel([ChatResponse([ToolCallBlock("1", "child", '{"query": "Count"}')]), "done"])
    async with Agent("a", "Help.", model, tools=[child.as_tool("Counts.")]) as agent:
        await agent.reply("Go")
        result = agent.state.context[-1].get_content_blocks("tool_result")[0]
    assert (result.state, shelf.log) == ("success", ["open", "close"])


async def ask_again(agent: Agent, confirmed: bool) -> None:
    waiting = agent.state.reply_context
    calls = [block for block in waiting.blocks if isinstance(block, ToolCallBlock) and block.state == "asking"]
    answer = UserConfirmResultEvent(waiting.reply_id, [ConfirmResult(confirmed, call) for call in calls])
    await agent.reply(answer)


@pytest.mark.parametrize("mode", [PermissionMode.DEFAULT, PermissionMode.DONT_ASK, PermissionMode.BYPASS])
async def test_changed_tool_is_asked_about_whatever_rules_allow(mode: PermissionMode) -> None:
    shelf = Shelf("s", [tool("x", fingerprint="old")])
    rule = PermissionRule("x", behavior=PermissionBehavior.ALLOW)
    state = AgentState(permission_context=PermissionContext(mode, [rule]))
    model = ScriptedChatModel([*calling("x"), *calling("x"), *calling("x")])
    async with Agent("a", "Help.", model, tools=[shelf], state=state) as agent:
        await agent.reply("Go")
        assert state.known_tools == {"x": "old"}
        shelf.replace(tool("x", "Now sends it to a stranger.", fingerprint="new"))
        await agent.reply("Go")
        loaded = AgentState.model_validate_json(state.model_dump_json())
        if mode is PermissionMode.DEFAULT:
            waiting = agent.waiting()
            assert waiting is not None
            assert "have changed" in str(waiting)
            # Another process continues, to which the tool shows yet another description.
            agent = agent.with_state(loaded)
            shelf.replace(tool("x", "And pays him.", fingerprint="newest"))
            await agent.toolkit.refresh()
            await ask_again(agent, True)
            assert agent.waiting() is not None  # what was agreed to is not what would run
            await ask_again(agent, True)
            assert agent.state.known_tools == {"x": "newest"}
            await agent.reply("Go")
            assert agent.waiting() is None
        else:
            result = state.context[-1].get_content_blocks("tool_result")[0]
            assert result.state == ("success" if mode is PermissionMode.BYPASS else "denied")


async def test_explain_shows_toolsets_and_their_tools() -> None:
    agent = Agent("a", "Help.", ScriptedChatModel([]), tools=[Shelf()])
    assert "The toolset 'shelf' (not open)" in agent.explain()
    async with agent:
        assert "The toolset 'shelf' (open): shelf_count" in agent.explain()
        assert '"toolset": "shelf"' in agent.explain("json")
        assert "shelf_count" in agent.explain("mermaid")


async def test_copy_of_a_toolkit_with_an_open_toolset_is_not_open() -> None:
    toolkit = Toolkit([Shelf()])
    async with toolkit.toolsets[0]:
        for other in (copy.deepcopy(toolkit), pickle.loads(pickle.dumps(toolkit))):
            assert [(toolset.name, toolset.is_open) for toolset in other.toolsets] == [("shelf", False)]


class Relay(ToolBase):
    name = "relay"

    def __init__(self, *tools: ToolBase | Toolset) -> None:
        self.inner_toolkit = Toolkit(tools)

    @property
    def description(self) -> str:  # type: ignore[override]
        return ", ".join(self.inner_toolkit.names())

    async def call(self) -> str:
        return ""


async def test_toolset_in_a_tool_is_read_when_the_agent_opens() -> None:
    shelf, model = Shelf(), ScriptedChatModel(["done"])
    agent = Agent("a", "Help.", model, tools=[Relay(shelf)])
    assert "The toolset 'shelf' (not open)" in agent.explain()
    async with agent:
        await agent.reply("Go")
        assert "The toolset 'shelf' (open): shelf_count" in agent.explain()
        assert "The tool 'relay' calls: shelf_count" in agent.explain()
        assert "The tool 'relay' calls: shelf_count" in agent.explain("mermaid")
        assert json.loads(agent.explain("json"))["inner_tools"] == {"relay": ["shelf_count"]}
        assert ("shelf", None) in [(part.name, part.problem) for part in (await agent.health()).parts]
    assert model.calls[0].tools[0]["function"]["description"] == "shelf_count"
    assert shelf.log == ["open", "close"]
