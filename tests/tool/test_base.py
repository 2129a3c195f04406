"""A tool as a class."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrt.errors import ToolConfigError, ToolError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionDecision, decide
from agentrt.tool import FunctionTool, ToolBase, ToolContext, Toolkit, ToolResponse
from agentrt.tool.base import MAX_OUTPUT, tool_location


async def said(tool: ToolBase, text: str) -> str:
    *_, last = [item async for item in Toolkit([tool]).call_tool_function(ToolCallBlock("1", tool.name, text))]
    assert isinstance(last, ToolResponse)
    (block,) = last.content
    assert isinstance(block, TextBlock)
    return block.text


class Search(ToolBase):
    """Search the store.

    More.
    """

    name = "search"

    def __init__(self, prefix: str) -> None:  # and no super().__init__()
        self.prefix = prefix

    async def call(self, query: str, limit: int = 3, context: ToolContext | None = None) -> str:
        """Search.

        Args:
            query: What to look for.
        """
        return f"{self.prefix} {query} {limit} {context is not None}"


async def test_schema_and_description_come_from_the_class() -> None:
    tool = Search("found")
    assert tool.description == "Search the store.\n\nMore."
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "default": 3},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert await said(tool, '{"query": "x"}') == "found x 3 True"
    assert "argument 'limit' should be a valid integer, not '3'" in await said(tool, '{"query": "x", "limit": "3"}')


def test_defaults_are_finite_and_careful() -> None:
    tool = Search("")
    assert (tool.timeout, tool.max_output, tool.ask, tool.raise_tool_errors) == (300.0, MAX_OUTPUT, False, False)
    assert (tool.is_concurrency_safe, tool.is_read_only, tool.is_external_tool) == (True, False, False)


async def test_a_schema_written_in_the_class_is_what_is_checked() -> None:
    class Free(ToolBase):
        name = "free"
        description = "Free."
        input_schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}  # noqa: RUF012

        async def call(self, **arguments: Any) -> dict[str, Any]:
            return arguments

    tool = Free()
    assert await said(tool, '{"a": 1, "b": [2]}') == '{"a":1,"b":[2]}'
    assert await said(tool, '{"a": 3}') == (
        "free was not run: argument 'a' should be one of 1, 2, not 3. It takes: a (one of 1, 2)."
    )


async def test_a_schema_may_belong_to_the_instance() -> None:
    class Remote(ToolBase):
        def __init__(self, name: str, schema: dict[str, Any]) -> None:
            self.name, self.input_schema = name, schema

        async def call(self, **arguments: Any) -> Any:
            return arguments

    tool = Remote("far", {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert await said(tool, '{"a": 1}') == '{"a":1}'
    assert "should be of type integer" in await said(tool, '{"a": "1"}')
    assert tool.description == ""


async def test_call_may_stream_or_block() -> None:
    class Stream(ToolBase):
        name = "stream"

        async def call(self, n: int) -> AsyncIterator[str]:
            for number in range(n):
                yield str(number)

    class Block(ToolBase):
        name = "block"

        def call(self, n: int) -> int:
            return n

    assert Stream().is_streaming
    assert not Block().is_streaming
    assert await said(Stream(), '{"n": 3}') == "012"
    assert await said(Block(), '{"n": 3}') == "3"


async def test_an_external_tool_needs_a_schema_and_no_call() -> None:
    class Elsewhere(ToolBase):
        name = "elsewhere"
        is_external_tool = True
        input_schema = {"type": "object", "properties": {}}  # noqa: RUF012

    assert await said(Elsewhere(), "{}") == (
        "elsewhere was not run: it runs outside this program, and only an agent's reply can wait for that."
    )


def test_missing_attributes_are_named_with_the_remedy() -> None:
    class Nameless(ToolBase):
        async def call(self) -> None: ...

    class Empty(ToolBase):
        name = "empty"

    class Unhinted(ToolBase):
        name = "unhinted"

        async def call(self, query) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ToolConfigError) as caught:
        Toolkit([Nameless()])
    assert str(caught.value) == f"Nameless has no name: write `name = ...` in the class ({tool_location(Nameless())})"
    with pytest.raises(ToolConfigError) as caught:
        Toolkit([Empty()])
    assert str(caught.value) == ("Empty has neither `call` nor `input_schema`: define `async def call` with type hints")
    with pytest.raises(ToolConfigError, match=r"Unhinted.call\(\) cannot be a tool: its parameter 'query' has no type"):
        Toolkit([Unhinted()])
    with pytest.raises(AttributeError, match="'Empty' object has no attribute 'nothing'"):
        _ = Empty().nothing


async def test_tool_under_another_name_is_an_independent_copy() -> None:
    tool = Search("one")
    other = tool.with_name("other")
    other.prefix = "two"
    assert (tool.name, other.name) == ("search", "other")
    assert await said(tool, '{"query": "x"}') == "one x 3 True"
    assert await said(other, '{"query": "x"}') == "two x 3 True"


async def test_a_tool_allows_its_calls_unless_it_asks() -> None:
    tool, context = Search(""), PermissionContext()
    assert tool.is_trusted
    assert (await decide(tool, {"query": "x"}, context)).behavior is PermissionBehavior.ALLOW
    tool.ask = True
    decision = await decide(tool, {"query": "x"}, context)
    assert not tool.is_trusted
    assert (decision.behavior, decision.message) == (PermissionBehavior.ASK, "search asks before each call")


async def test_tool_may_override_its_permission_check() -> None:
    class Careful(Search):
        def check_permissions(self, tool_input: dict[str, Any], context: PermissionContext) -> PermissionDecision:
            return PermissionDecision(PermissionBehavior.DENY if "secret" in tool_input else PermissionBehavior.ALLOW)

    class Patient(Search):
        async def check_permissions(self, tool_input: dict[str, Any], context: PermissionContext) -> PermissionDecision:
            return PermissionDecision(PermissionBehavior.DENY)

    assert not Careful("").is_trusted
    assert (await decide(Careful(""), {"secret": 1}, PermissionContext())).behavior is PermissionBehavior.DENY
    assert (await decide(Careful(""), {}, PermissionContext())).behavior is PermissionBehavior.ALLOW
    assert (await decide(Patient(""), {}, PermissionContext())).behavior is PermissionBehavior.DENY


class Fetch(ToolBase):
    name = "fetch"
    input_schema = {"type": "object", "properties": {"url": {"type": "string"}}}  # noqa: RUF012


@pytest.mark.parametrize(
    ("tool", "tool_input", "subject"),
    [
        (Fetch(), {"url": "http://a/?b=*"}, "http://a/?b=*"),
        (Fetch(), {"url": ""}, ""),
        (Fetch(), {}, "{}"),
        (Fetch(), {"url": ["a"]}, '{"url":["a"]}'),
        (Search(""), {"query": "x"}, '{"query":"x"}'),
        (Search(""), {"query": "\u5317", "limit": 2}, '{"limit":2,"query":"\u5317"}'),
    ],
)
def test_subject_is_the_only_string_or_else_all_arguments(
    tool: ToolBase, tool_input: dict[str, Any], subject: str
) -> None:
    assert tool.permission_subject(tool_input) == subject


def test_further_argument_beside_the_only_one_is_refused() -> None:
    with pytest.raises(ToolError, match="fetch takes one argument, but was given more"):
        Fetch().permission_subject({"url": "http://a", "x": 1})


def test_tool_under_another_name_asks_as_the_first_one_does() -> None:
    tool = FunctionTool(lambda: None, name="one", ask=True, json_schema={"type": "object"})
    assert tool.with_name("two").ask
    assert not tool.with_name("two").is_trusted
