"""The tools of an agent, and the groups that they come in."""

import copy
import json
import pickle
from typing import Any

import pytest

from agentrt.errors import ToolConfigError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolGroup, Toolkit, ToolResponse
from agentrt.tool.call import PreparedCall, respond
from agentrt.tool.signature.callables import source_location as place


async def get_weather(city: str) -> str:
    """Get the weather."""
    return f"sunny in {city}"


async def search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


async def read(path: str) -> str:
    """Read a file."""
    return f"read {path}"


def grouped() -> Toolkit:
    web = ToolGroup("web", "The web.", tools=[search], notes="Quote your sources.")
    files = ToolGroup("files", "Files.", active=True, tools=[read])
    return Toolkit([get_weather], [web, files])


def call(name: str, **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock("1", name, json.dumps(arguments))


def text_of(result: Any) -> str:
    assert isinstance(result, ToolResponse)
    (block,) = result.content
    assert isinstance(block, TextBlock)
    return block.text


async def run(kit: Toolkit, name: str, **arguments: Any) -> str:
    *_, last = [item async for item in kit.call_tool_function(call(name, **arguments))]
    return text_of(last)


def error_of(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ToolConfigError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


# Tools


@pytest.fixture
def kit() -> Toolkit:
    return grouped()


def test_schemas_have_the_form_that_providers_know() -> None:
    assert Toolkit([get_weather]).get_json_schemas() == [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Get the weather.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
    ]


def test_schemas_are_made_once_and_anew_after_a_change(kit: Toolkit) -> None:
    first, chosen = kit.get_json_schemas(), kit.get_json_schemas(["web"])
    assert kit.get_json_schemas() is first
    assert kit.get_json_schemas(["web"]) is chosen
    kit.update_tool_groups(["web"], True)
    assert kit.get_json_schemas() is not first
    assert kit.names() == ["get_weather", "search", "reset_equipped_tools", "read"]
    kit.register_tool_function(search, func_name="search_2")
    assert kit.names(["web"])[-1] == "search_2"


def test_cached_schemas_of_group_choices_are_bounded(kit: Toolkit) -> None:
    for number in range(1_000):
        kit.get_json_schemas([f"gone_{number}"])
    assert len(kit.table._schemas) <= 64


async def test_functions_and_finished_tools_are_registered_alike() -> None:
    kit = Toolkit()
    kit.register_tool_function(get_weather, func_name="weather", func_description="W.", preset_kwargs={"city": "Rome"})
    tool = FunctionTool(search)
    kit.register_tool_function(tool)
    kit.register_tool_function(read, json_schema={"type": "object", "properties": {"path": {"const": "/"}}})
    assert kit.get("search") is tool
    assert kit.get("nothing") is None
    assert kit.get_json_schemas()[0]["function"]["description"] == "W."
    assert await run(kit, "weather") == "sunny in Rome"
    assert "argument 'path' should be \"/\", not '/etc'" in await run(kit, "read", path="/etc")


def test_options_for_a_finished_tool_are_refused() -> None:
    assert error_of(Toolkit().register_tool_function, FunctionTool(search), func_name="other") == (
        "search is a finished tool: give its name, description, preset_kwargs and json_schema where you make it"
    )


def test_two_tools_of_one_name_are_refused_with_both_places() -> None:
    async def search(other: str) -> None: ...

    kit = Toolkit([FunctionTool(read, name="search")])
    assert error_of(kit.register_tool_function, search) == (
        f"two tools are called 'search': {place(read)} and {place(search)}; rename one with "
        "FunctionTool(function, name=...) or agent.as_tool(..., name=...), or register it with func_name=..., or with "
        'namesake="override", "skip" or "rename"'
    )


async def test_a_namesake_may_override_or_be_skipped_or_renamed() -> None:
    class Read(ToolBase):
        """Read."""

        name = "search"

        async def call(self) -> str:
            return "class"

    kit = Toolkit([search])
    kit.register_tool_function(read, func_name="search", namesake="skip")
    assert kit.names() == ["search"]
    assert await run(kit, "search", query="x") == "found x"
    kit.register_tool_function(read, func_name="search", namesake="rename")
    kit.register_tool_function(Read(), namesake="rename")
    assert kit.names() == ["search", "search_2", "search_3"]
    assert (await run(kit, "search_2", path="x"), await run(kit, "search_3")) == ("read x", "class")
    kit.register_tool_function(read, func_name="search", namesake="override")
    assert await run(kit, "search", path="x") == "read x"


def test_extended_toolkit_has_tools_that_its_base_has_not(kit: Toolkit) -> None:
    assert kit.with_tools([]) is kit
    more = kit.with_tools([FunctionTool(search, name="extra")])
    assert kit.names() == ["get_weather", "reset_equipped_tools", "read"]
    assert more.names() == ["get_weather", "reset_equipped_tools", "read", "extra"]
    assert (kit.get("extra"), more.get("extra") is not None) == (None, True)
    assert "two tools are called 'get_weather'" in error_of(kit.with_tools, [get_weather])


async def test_tool_registered_later_is_in_the_extended_toolkit_too(kit: Toolkit) -> None:
    more = kit.with_tools([FunctionTool(search, name="extra")])
    most = more.with_tools([FunctionTool(search, name="another")])
    more.names(), most.names()
    kit.register_tool_function(read, func_name="late")
    kit.create_tool_group("late_group", "Come later.", active=True)
    kit.register_tool_function(read, func_name="later", group_name="late_group")
    offered = ["get_weather", "read", "late", "reset_equipped_tools", "later"]
    assert (kit.names(), more.names()) == (offered, [*offered, "extra"])
    assert most.names() == [*offered, "extra", "another"]
    assert await run(most, "late", path="x") == "read x"
    assert "The tools are: get_weather" in text_of(more.prepare(call("unheard_of")))
    assert "extra" in text_of(more.prepare(call("unheard_of")))


def test_tool_registered_in_extended_toolkit_enters_its_base(kit: Toolkit) -> None:
    more = kit.with_tools([FunctionTool(search, name="extra")])
    more.register_tool_function(read, func_name="late")
    assert kit.get("late") is more.get("late") is not None
    more.create_tool_group("more", "More tools.")
    more.update_tool_groups(["more"], True)
    assert kit.active_groups == more.active_groups == ["files", "more"]
    more.reset_equipped_tools(web=True)
    assert kit.active_groups == more.active_groups == ["web"]


def test_later_base_tool_named_like_a_further_one_is_refused() -> None:
    kit = Toolkit([get_weather])
    more = kit.with_tools([FunctionTool(search, name="extra")])
    kit.register_tool_function(read, func_name="extra")
    assert kit.names() == ["get_weather", "extra"]
    assert "two tools are called 'extra'" in error_of(more.names)


def test_extended_toolkit_subclass_keeps_its_overrides() -> None:
    class Hides(Toolkit):
        def get_json_schemas(self, active_groups=None):
            return [each for each in super().get_json_schemas(active_groups) if each["function"]["name"] != "read"]

    assert Hides([get_weather, read]).with_tools([search]).names() == ["get_weather", "search"]


# Preparing


def test_unknown_tool_gets_the_nearest_name_and_all_names() -> None:
    kit = Toolkit([get_weather, search])
    result = kit.prepare(call("get_wether", city="Rome"))
    assert (
        text_of(result)
        == "The tool 'get_wether' does not exist. Did you mean get_weather? The tools are: get_weather, search."
    )
    assert isinstance(result, ToolResponse)
    assert result.state == "error"
    assert text_of(Toolkit().prepare(call("x"))) == "The tool 'x' does not exist. The tools are: none."
    assert len(text_of(kit.prepare(call("x" * 100_000)))) < 200


def test_tool_in_inactive_group_gets_how_to_activate_it(kit: Toolkit) -> None:
    assert text_of(kit.prepare(call("search", query="x"))) == (
        "search was not run: its group 'web' is not active. Call reset_equipped_tools with 'web' set to true first, "
        "together with the groups that you want to keep."
    )
    assert isinstance(kit.prepare(call("search", query="x"), ["web"]), PreparedCall)
    assert isinstance(kit.prepare(call("read", path="x")), PreparedCall)
    assert "its group 'files' is not active" in text_of(kit.prepare(call("read", path="x"), []))
    assert isinstance(kit.prepare(call("get_weather", city="x"), []), PreparedCall)


async def test_call_that_cannot_be_prepared_yields_only_its_result() -> None:
    items = [item async for item in Toolkit([search]).call_tool_function(call("search"))]
    assert [text_of(item) for item in items] == [
        "search was not run: argument 'query' is missing. It takes: query (string)."
    ]


# Groups


def test_the_meta_tool_is_offered_when_there_are_groups() -> None:
    kit = Toolkit([get_weather])
    assert kit.names() == ["get_weather"]
    kit.create_tool_group("web", "The web.")
    assert kit.names() == ["get_weather", "reset_equipped_tools"]
    kit.create_tool_group("files", "Files.")
    schema = kit.get_json_schemas()[-1]["function"]["parameters"]
    assert schema == {
        "type": "object",
        "properties": {
            "web": {"type": "boolean", "description": "The web.", "default": False},
            "files": {"type": "boolean", "description": "Files.", "default": False},
        },
        "additionalProperties": False,
    }


async def test_meta_tool_sets_all_groups_and_returns_their_notes(kit: Toolkit) -> None:
    assert await run(kit, "reset_equipped_tools", web=True) == (
        "Active now, besides the tools that are always offered: web.\n\nweb: Quote your sources."
    )
    assert kit.active_groups == ["web"]
    assert "get_weather" in kit.names()
    assert await run(kit, "reset_equipped_tools", web=False, files=True) == (
        "Active now, besides the tools that are always offered: files."
    )
    assert await run(kit, "reset_equipped_tools") == (
        "Active now: only the tools that are always offered (group 'basic')."
    )
    assert kit.active_groups == []


async def test_a_wrong_choice_of_groups_changes_nothing(kit: Toolkit) -> None:
    assert "argument 'wb' is unknown" in await run(kit, "reset_equipped_tools", web=True, wb=True)
    assert "argument 'web' should be of type boolean, not 'yes'" in await run(kit, "reset_equipped_tools", web="yes")
    assert kit.active_groups == ["files"]


async def test_meta_tool_in_a_conversation_leaves_shared_toolkit_alone(kit: Toolkit) -> None:
    chosen: list[list[str]] = []
    tool_call = call("reset_equipped_tools", web=True)
    prepared = kit.prepare(tool_call, ["files"])
    assert isinstance(prepared, PreparedCall)
    context = ToolContext(tool_call, object(), object(), on_active_groups=chosen.append)  # type: ignore[arg-type]
    assert (await respond(prepared, context)).state == "success"
    assert (chosen, kit.active_groups) == ([["web"]], ["files"])


async def test_a_conversation_that_cannot_choose_groups_says_so(kit: Toolkit) -> None:
    prepared = kit.prepare(call("reset_equipped_tools", web=True))
    assert isinstance(prepared, PreparedCall)
    response = await respond(prepared, ToolContext(prepared.tool_call, object(), object()))  # type: ignore[arg-type]
    assert (response.state, kit.active_groups) == ("error", ["files"])


def test_programs_can_choose_groups_too(kit: Toolkit) -> None:
    assert "Active now" in text_of(kit.reset_equipped_tools(web=True))
    assert kit.active_groups == ["web"]
    kit.update_tool_groups("files", True)
    assert kit.active_groups == ["web", "files"]
    kit.update_tool_groups(["web", "files", "basic"], False)
    assert kit.active_groups == []
    assert "get_weather" in kit.names()
    kit.register_tool_function(kit.reset_equipped_tools)
    assert kit.names() == ["get_weather", "reset_equipped_tools"]


def test_groups_that_do_not_exist_are_refused_by_name(kit: Toolkit) -> None:
    unknown = "the toolkit has no group 'wb': the groups are 'basic', 'web', 'files'"
    assert error_of(kit.update_tool_groups, ["web", "wb"], True) == unknown
    assert error_of(kit.reset_equipped_tools, wb=True) == unknown
    assert error_of(kit.register_tool_function, get_weather, group_name="wb", func_name="x") == (
        "the toolkit has no group 'wb': create it with create_tool_group, or take one of 'basic', 'web', 'files'"
    )
    assert kit.active_groups == ["files"]


def test_a_saved_choice_of_a_group_that_is_gone_is_harmless() -> None:
    assert grouped().names(["gone"]) == ["get_weather", "reset_equipped_tools"]


def test_group_names_are_checked(kit: Toolkit) -> None:
    assert error_of(kit.create_tool_group, "web", "Again.") == (
        "the toolkit already has a group 'web': choose another name"
    )
    assert error_of(kit.create_tool_group, "basic", "Again.") == (
        "the toolkit already has a group 'basic': choose another name"
    )
    assert "cannot be the name of a group" in error_of(kit.create_tool_group, "the web", "")


@pytest.mark.parametrize(
    "fields",
    [
        {"description": None},
        {"description": [get_weather]},
        {"active": "no"},
        {"active": 1},
        {"tools": get_weather},
        {"tools": "get_weather"},
        {"tools": None},
        {"notes": ["read me"]},
    ],
    ids=lambda fields: str(next(iter(fields.items())))[:25],
)
def test_a_group_with_a_field_of_a_wrong_type_is_refused(fields: dict[str, Any], kit: Toolkit) -> None:
    [name] = fields
    group = ToolGroup(**({"name": "late", "description": "Late tools."} | fields))
    assert f"{name}=... of the group 'late' must be" in error_of(Toolkit, [], [group])
    if name != "tools":
        options = {"description": "Late tools."} | fields
        assert f"{name}=... of the group 'late' must be" in error_of(kit.create_tool_group, "late", **options)
    assert "late" not in kit.groups
    assert kit.get_json_schemas()


def test_tool_named_like_the_meta_tool_is_refused_with_groups() -> None:
    mine = FunctionTool(search, name="reset_equipped_tools")
    assert "two tools are called 'reset_equipped_tools'" in error_of(grouped().register_tool_function, mine)
    kit = Toolkit([mine])
    assert error_of(kit.create_tool_group, "web", "The web.") == (
        f"'reset_equipped_tools' is the tool that switches groups, but {place(search)} has that name: rename it"
    )


# Its state


def test_toolkit_state_holds_the_groups_of_its_own_setting(kit: Toolkit) -> None:
    assert kit.state_dict() == {"active_groups": ["files"]}
    kit.state_dict()["active_groups"].append("web")
    assert kit.active_groups == ["files"]


def test_a_toolkit_loads_which_groups_are_active(kit: Toolkit) -> None:
    kit.load_state_dict({"active_groups": ["web"]})
    assert kit.active_groups == ["web"]
    assert kit.names() == ["get_weather", "search", "reset_equipped_tools"]
    kit.load_state_dict({"active_groups": []})
    assert kit.active_groups == []


@pytest.mark.parametrize(
    ("state", "error", "told"),
    [
        ({}, KeyError, "must have 'active_groups'"),
        (
            {"active_groups": ["web"], "tools": []},
            ValueError,
            "the state has 'tools', which this toolkit does not have",
        ),
        ({"active_groups": ["web", "wb"]}, ToolConfigError, "no group 'wb': the groups are 'basic', 'web', 'files'"),
        ({"active_groups": "web"}, TypeError, "must be a list of the names of groups"),
        ({"active_groups": [["web"]]}, TypeError, "must be a list of the names of groups"),
        (["web"], TypeError, "must be a dict.* not a list"),
    ],
)
def test_state_of_another_toolkit_is_refused_and_changes_nothing(state: Any, error: type[Exception], told: str) -> None:
    kit = grouped()
    with pytest.raises(error, match=told):
        kit.load_state_dict(state)
    assert kit.active_groups == ["files"]


def test_without_strict_what_does_not_fit_is_ignored(kit: Toolkit) -> None:
    kit.load_state_dict({"tools": []}, strict=False)
    assert kit.active_groups == ["files"]
    kit.load_state_dict({"active_groups": ["web", "wb"], "tools": []}, strict=False)
    assert kit.active_groups == ["web"]


def test_state_registered_by_a_toolkit_subclass_is_saved_too() -> None:
    class Counting(Toolkit):
        def __init__(self) -> None:
            super().__init__(groups=[ToolGroup("web", "The web.")])
            self.calls = 0
            self.register_state("calls")

    kit = Counting()
    assert kit.state_dict() == {"calls": 0, "active_groups": []}
    kit.load_state_dict({"calls": 3, "active_groups": ["web"]})
    assert (kit.calls, kit.active_groups) == (3, ["web"])
    with pytest.raises(KeyError, match=r"Counting\.calls"):
        kit.load_state_dict({"active_groups": []})
    assert kit.active_groups == ["web"]


def test_extended_toolkit_has_the_state_of_its_base(kit: Toolkit) -> None:
    more = kit.with_tools([FunctionTool(search, name="extra")])
    more.load_state_dict({"active_groups": ["web"]})
    assert kit.state_dict() == more.state_dict() == {"active_groups": ["web"]}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda kit: pickle.loads(pickle.dumps(kit))], ids=["copy", "pickle"])
def test_copy_of_extended_toolkit_is_complete_and_independent(copied, kit: Toolkit) -> None:
    other = copied(kit.with_tools([FunctionTool(search, name="extra")]))
    other.register_tool_function(read, func_name="late")
    assert other.names() == ["get_weather", "reset_equipped_tools", "read", "late", "extra"]
    assert kit.get("late") is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda kit: pickle.loads(pickle.dumps(kit))], ids=["copy", "pickle"])
async def test_copy_shares_tools_and_groups_but_not_the_setting(copied, kit: Toolkit) -> None:
    kit.register_tool_function(get_weather, func_name="here", preset_kwargs={"city": "Oslo"})
    other = copied(kit)
    assert other.get_json_schemas() == kit.get_json_schemas()
    assert await run(other, "here") == "sunny in Oslo"
    await run(other, "reset_equipped_tools", web=True, files=False)
    assert (other.active_groups, kit.active_groups) == (["web"], ["files"])
