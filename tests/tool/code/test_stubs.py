"""Tools as functions of a program: how the model reads them, and what a program gets from them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentrt.errors import ToolError
from agentrt.tool import CodeCall, CodeTool, FunctionTool, ToolBase, ToolContext, ToolResponse
from agentrt.tool.code.stubs import CodeFunction, StubWriter, describe_functions


class Line(BaseModel):
    text: str
    price: float = 0


@dataclass
class Invoice:
    id: str
    lines: list[Line]


async def list_invoices(month: Annotated[str, Field(description="such as 2026-11")], limit: int = 10) -> list[Invoice]:
    r"""List the invoices of a month.

    A path such as C:\new keeps its backslash.
    """
    return []


async def pay(context: ToolContext, ids: list[str], kind: Literal["bank", "card"] | None = None) -> str:
    """Pay invoices."""
    return ""


def function_of(function: Any) -> CodeFunction:
    [described] = describe_functions([FunctionTool(function)])[0].values()
    return described


def test_stub_has_types_defaults_and_words_of_each_tool() -> None:
    assert (
        describe_functions([FunctionTool(list_invoices), FunctionTool(pay)])[1]
        == '''\
class Invoice(TypedDict):
    id: str
    lines: list[Line]

class Line(TypedDict):
    text: str
    price: NotRequired[float]

async def list_invoices(month: str, limit: int = 10) -> list[Invoice]:
    """List the invoices of a month.

    A path such as C:\\\\new keeps its backslash.
    month: such as 2026-11"""

async def pay(ids: list[str], kind: Literal['bank', 'card'] | None = None) -> str:
    """Pay invoices."""'''
    )


def test_two_types_of_one_name_get_two_names() -> None:
    def of(schema: dict[str, Any], name: str) -> ToolBase:
        parameters = {"type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}}, "$defs": {"Item": schema}}
        return FunctionTool(pay, name=name, json_schema={**parameters, "required": ["item"]})

    first = {"type": "object", "properties": {"a": {"type": "string"}}}
    second = {"type": "object", "properties": {"b": {"type": "integer"}}}
    stubs = describe_functions([of(first, "one"), of(second, "two"), of(first, "three")])[1]
    assert "async def one(item: Item)" in stubs
    assert "async def two(item: Item2)" in stubs
    assert "async def three(item: Item)" in stubs


def test_schema_that_uses_itself_ends() -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Tree"}},
        "$defs": {"Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}},
    }
    stubs = describe_functions([FunctionTool(pay, json_schema=schema)])[1]
    assert "class Tree(TypedDict):\n    left: NotRequired[Tree]" in stubs


@pytest.mark.parametrize(
    "definition",
    [
        {"$ref": "#/$defs/Loop"},
        {"type": "array", "items": {"$ref": "#/$defs/Loop"}},
        {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]},
    ],
)
def test_schema_that_is_nothing_but_itself_ends(definition: dict[str, Any]) -> None:
    tool = FunctionTool(pay)
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Loop"}}, "$defs": {"Loop": definition}}
    tool.input_schema = schema
    assert "Any" in StubWriter().declare(tool, schema, ["x"], None)


def test_arguments_whose_names_python_lacks_are_passed_by_dict() -> None:
    schema = {"type": "object", "properties": {"user-id": {"type": "string"}, "n": {"type": "integer"}}}
    functions, stubs = describe_functions([FunctionTool(pay, json_schema=schema)])
    assert 'async def pay(n: int = ..., **{"user-id"}) -> str:' in stubs
    assert functions["pay"].arguments_of(CodeCall("pay", (), {"user-id": "7"})) == {"user-id": "7"}


def test_positional_arguments_are_those_of_the_stub() -> None:
    function = function_of(list_invoices)
    assert function.arguments_of(CodeCall("f", ("2026-11", 3), {})) == {"month": "2026-11", "limit": 3}
    assert function.arguments_of(CodeCall("f", ("2026-11",), {"limit": 3})) == {"month": "2026-11", "limit": 3}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (CodeCall("f", ("a", 1, 2), {}), r"too many positional arguments for list_invoices\(month, limit\): 3"),
        (CodeCall("f", ("a",), {"month": "b"}), r"list_invoices\(\) got its argument 'month' twice"),
        (CodeCall("f", (float("nan"),), {}), "a number that is not finite"),
        (CodeCall("f", ("x" * 1_000_000,), {}), "have 1,000,012 bytes, and at most 1,000,000 are allowed"),
    ],
)
def test_arguments_that_cannot_be_named_are_refused(call: CodeCall, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        function_of(list_invoices).arguments_of(call)


def returns(hint: Any) -> CodeFunction:
    async def tool() -> Any:
        """Return something."""

    tool.__annotations__["return"] = hint
    return function_of(tool)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (str, "12", "12"),
        (int, "12", 12),
        (str | int, "12", 12),
        (str | None, "12", "12"),
        (str | None, "null", None),
        (Literal["1", "2"], "1", "1"),
        (date, '"2026-03-01"', "2026-03-01"),
        (list[int], "[1,2]", [1, 2]),
        (
            list[int],
            "[1,2 [cut: of 10 characters the first 4 are kept]",
            "[1,2 [cut: of 10 characters the first 4 are kept]",
        ),
        (dict, '{"a":1}', {"a": 1}),
        (Any, "12", 12),
        (Any, "[" * 100_000, "[" * 100_000),
        (ToolResponse, "12", "12"),
        (AsyncIterator[int], "12", "12"),
        (object(), "[1]", [1]),
        ("NotThere", "12", "12"),
    ],
)
def test_result_is_read_as_json_where_the_tool_returns_no_text(hint: Any, text: str, value: object) -> None:
    assert returns(hint).value_of(text) == value


def test_tool_without_a_return_type_returns_its_text() -> None:
    async def tool():  # type: ignore[no-untyped-def]
        """Return something."""

    assert function_of(tool).value_of("12") == "12"


def test_description_of_the_tool_has_the_stubs() -> None:
    tool = CodeTool([list_invoices, pay])
    assert "async def pay(ids: list[str]" in tool.description
    assert tool.description.startswith("Run a Python program")
    assert CodeTool([pay], description="Do it.").description.startswith("Do it.\n\nasync def pay(")
    assert tool.function_schema is tool.function_schema
