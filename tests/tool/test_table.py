"""Tables: the tools of one moment, which a toolkit makes anew when something has changed, and only then."""

import copy
import json
import pickle
from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import ToolConfigError
from agentrt.message import ToolCallBlock
from agentrt.middleware import MiddlewareBase
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase, ToolGroup, Toolkit, ToolResponse, ToolTable
from agentrt.tool.call import PreparedCall


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tool(name: str = "add", **options: Any) -> FunctionTool:
    return FunctionTool(add, name=name, **options)


def call(name: str) -> ToolCallBlock:
    return ToolCallBlock("1", name, json.dumps({"a": 1, "b": 2}))


def text_of(result: Any) -> str:
    assert isinstance(result, ToolResponse)
    return result.content[0].text  # type: ignore[union-attr]


def grouped() -> Toolkit:
    return Toolkit([tool()], [ToolGroup("more", "More.", tools=[tool("sub")])])


# A table by itself


def test_table_finds_offers_and_prepares_its_tools() -> None:
    plus, minus = tool("plus"), tool("minus")
    table = ToolTable([plus, minus])
    assert (table.names(), table.get("minus"), table.get("times")) == (["plus", "minus"], minus, None)
    assert [schema["function"]["name"] for schema in table.schemas()] == ["plus", "minus"]
    prepared = table.prepare(call("plus"))
    assert isinstance(prepared, PreparedCall)
    assert (prepared.tool, prepared.arguments) == (plus, {"a": 1, "b": 2})
    assert text_of(table.prepare(call("plos"))) == (
        "The tool 'plos' does not exist. Did you mean plus? The tools are: plus, minus."
    )


def test_table_refuses_namesakes_and_what_is_not_a_tool() -> None:
    with pytest.raises(ToolConfigError, match="two tools are called 'add'"):
        ToolTable([tool(), tool()])
    with pytest.raises(ToolConfigError, match=r"takes ToolBase instances, not .*: write FunctionTool\(function\)"):
        ToolTable([add])  # type: ignore[list-item]
    wrong = tool()
    wrong.timeout = -1
    with pytest.raises(ToolConfigError, match="timeout of add must be more than 0"):
        ToolTable([wrong])


def test_tables_share_the_schema_of_a_tool() -> None:
    plus = tool("plus")
    [schema] = ToolTable([plus]).schemas()
    assert ToolTable([plus, tool()]).schemas()[0] is schema
    plus.description = "Adds."
    [later] = ToolTable([plus]).schemas()
    assert (later["function"]["description"], schema["function"]["description"]) == ("Adds.", "Add two numbers.")
    assert plus.with_name("sum").name in str(ToolTable([plus.with_name("sum")]).schemas())


def test_table_of_groups_offers_those_that_are_active() -> None:
    toolkit = grouped()
    table = toolkit.table
    assert table.names() == ["add", "reset_equipped_tools", "sub"]
    assert (table.group_of("sub"), table.group_of("add"), table.group_of("x")) == ("more", "basic", None)
    assert len(table.schemas()) == 2
    assert len(table.schemas(["more"])) == 3
    assert "its group 'more' is not active" in text_of(table.prepare(call("sub")))
    assert isinstance(table.prepare(call("sub"), ["more"]), PreparedCall)
    toolkit.update_tool_groups(["more"], active=True)
    assert isinstance(toolkit.table.prepare(call("sub")), PreparedCall)
    assert len(table.schemas()) == 2  # it is of another moment


# The table of a toolkit


@pytest.mark.parametrize(
    "change",
    [
        lambda toolkit: toolkit.register_tool_function(tool("new")),
        lambda toolkit: toolkit.register_tool_function(tool(), namesake="override"),
        lambda toolkit: toolkit.remove_tool_function("add"),
        lambda toolkit: toolkit.create_tool_group("late", "Late."),
        lambda toolkit: toolkit.update_tool_groups(["more"], active=True),
    ],
    ids=["register", "override", "remove", "group", "setting"],
)
def test_table_is_the_same_until_something_changes(change: Any) -> None:
    toolkit = grouped()
    extended = toolkit.with_tools([tool("extra")])
    bound = extended.bound_by(lambda one: one)
    kits = [toolkit, extended, bound]
    before = [kit.table for kit in kits]
    names = [table.names() for table in before]
    toolkit.update_tool_groups(["more"], active=False)  # which it is
    toolkit.register_tool_function(tool(), namesake="skip")
    assert all(kit.table is table for kit, table in zip(kits, before, strict=True))
    change(toolkit)
    assert not any(kit.table is table for kit, table in zip(kits, before, strict=True))
    assert [table.names() for table in before] == names


def test_change_of_one_extension_leaves_the_tables_of_others() -> None:
    toolkit = Toolkit([tool()])
    one = toolkit.with_tools([ToolGroup("one", "One.")])
    two = toolkit.with_tools([tool("two")])
    tables = toolkit.table, two.table
    one.register_tool_function(tool("new"), group_name="one")
    assert one.table.names() == ["add", "reset_equipped_tools", "new"]
    assert (toolkit.table, two.table) == tables


def test_toolkit_with_a_table_has_just_its_tools() -> None:
    toolkit = Toolkit([tool()])
    other = toolkit.with_table(ToolTable([tool("plus")]))
    assert (other.names(), toolkit.names()) == (["plus"], ["add"])
    assert other.with_tools([tool("extra")]).names() == ["plus", "extra"]
    other.register_tool_function(tool("late"))
    assert (other.names(), toolkit.names()) == (["plus"], ["add", "late"])


def test_extension_is_of_the_class_of_its_toolkit() -> None:
    class Quiet(Toolkit):
        def prepare(self, tool_call: Any, active_groups: Any = None) -> Any:
            return ToolResponse([])

    extended = Quiet([tool()]).with_tools([tool("extra")])
    assert extended.prepare(call("extra")).content == []
    assert extended.without_tools([]) is extended


def test_group_name_of_an_extension_is_not_given_away_again() -> None:
    extended = Toolkit().with_tools([ToolGroup("more", "More.")])
    with pytest.raises(ToolConfigError, match="already has a group 'more'"):
        extended.create_tool_group("more", "Again.")


def test_refused_group_leaves_the_tool_that_has_its_name() -> None:
    toolkit = Toolkit([tool("reset_equipped_tools")])
    with pytest.raises(ToolConfigError, match="is the tool that switches groups"):
        toolkit.create_tool_group("more", "More.")
    assert (toolkit.names(), toolkit.groups) == (["reset_equipped_tools"], {})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_tables_and_toolkits_over_them_can_be_copied(copied: Any) -> None:
    toolkit = grouped().with_tools([ToolGroup("own", "Own.", active=True, tools=[tool("mine")])])
    assert toolkit.schema_characters() > 0
    other = copied(toolkit.with_table(toolkit.table))
    assert other.get_json_schemas() == toolkit.get_json_schemas()
    assert other.schema_characters() == toolkit.schema_characters()
    assert copied(ToolTable([tool()])).schemas() == ToolTable([tool()]).schemas()


async def test_tool_of_a_layer_hides_its_namesake_for_a_round() -> None:
    class Times(ToolBase):
        """Multiply."""

        name = "add"

        async def call(self, a: int, b: int) -> int:
            return a * b

    class Adding(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return await next_handler(tools=[Times()])

    answers = [ChatResponse([call("add")]), "done"]
    agent = Agent("a", model=ScriptedChatModel(answers), tools=[tool()], middlewares=[Adding()])
    await agent.reply("go")
    assert [block.text for block in agent.state.context[-1].get_content_blocks("tool_result")] == ["2"]
    assert agent.toolkit.table.get("add") is not None
    assert agent.toolkit.get_json_schemas()[0]["function"]["description"] == "Add two numbers."
