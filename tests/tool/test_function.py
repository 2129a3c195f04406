"""A typed function is a tool: what a model is told of it, what it takes, and what cannot be one."""

import functools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, Field
from typing_extensions import TypedDict

from agentrt.errors import ToolConfigError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.tool import FunctionTool, ToolContext, Toolkit, ToolResponse
from agentrt.tool.call import PreparedCall
from agentrt.tool.signature.callables import source_location


async def get_weather(city: str, days: int = 3) -> str:
    """Get the weather.

    Args:
        city: The city's name.
    """
    return f"{city} {days}"


async def run(tool: Any, text: str) -> ToolResponse:
    tool = tool if isinstance(tool, FunctionTool) else FunctionTool(tool)
    items = [item async for item in Toolkit([tool]).call_tool_function(ToolCallBlock("1", tool.name, text))]
    last = items[-1]
    assert isinstance(last, ToolResponse)
    return last


async def said(tool: Any, text: str = "{}") -> str:
    (block,) = (await run(tool, text)).content
    assert isinstance(block, TextBlock)
    return block.text


def error_of(make: Callable[[], object]) -> str:
    with pytest.raises(ToolConfigError) as caught:
        make()
    return str(caught.value)


def test_schema_holds_hints_defaults_and_the_docstring() -> None:
    tool = FunctionTool(get_weather)
    assert (tool.name, tool.description) == ("get_weather", "Get the weather.")
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city's name."},
            "days": {"type": "integer", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_description_beside_the_hint_wins_over_the_docstring() -> None:
    async def f(city: Annotated[str, Field(description="Where.", min_length=2)], days: int = Field(2, ge=1)) -> None:
        """F.

        Args:
            city: Not this.
            days: How many.
        """

    assert FunctionTool(f).input_schema["properties"] == {
        "city": {"type": "string", "description": "Where.", "minLength": 2},
        "days": {"type": "integer", "minimum": 1, "default": 2, "description": "How many."},
    }


async def test_a_default_written_as_a_field_reaches_the_function() -> None:
    async def f(days: int = Field(2, ge=1)) -> int:
        return days

    assert await said(f) == "2"
    assert "should be greater than or equal to 1" in await said(f, '{"days": 0}')


async def test_a_default_that_is_left_out_is_the_functions_own() -> None:
    default: list[Any] = [object()]

    async def f(values: list[int] = default) -> str:
        return str(values is default)

    assert FunctionTool(f).input_schema["properties"]["values"] == {"type": "array", "items": {"type": "integer"}}
    assert await said(f) == "True"


async def test_default_that_is_infinite_is_not_in_the_schema() -> None:
    async def f(most: float = math.inf, least: list[float] = [-math.inf], near: float = math.nan) -> str:  # noqa: B006
        return f"{most} {least} {near}"

    assert all("default" not in each for each in FunctionTool(f).input_schema["properties"].values())
    assert await said(f) == "inf [-inf] nan"


async def test_parameter_with_an_alias_is_explained_like_any_other() -> None:
    async def f(
        first: Annotated[str, Field(alias="second")] = "a",
        second: Annotated[str, Field(validation_alias=AliasChoices("first", "1st"))] = "b",
    ) -> str:
        """F.

        Args:
            first: The first.
            second: The second.
        """
        return f"{first}{second}"

    assert FunctionTool(f).input_schema["properties"] == {
        "second": {"type": "string", "default": "a", "description": "The first."},
        "first": {"type": "string", "default": "b", "description": "The second."},
    }
    assert await said(f, '{"second": "x", "1st": "y"}') == "xy"
    call = Toolkit([f]).prepare(ToolCallBlock("1", "f", '{"second": "x", "1st": "y"}'))
    assert isinstance(call, PreparedCall)
    assert call.effective_input() == {"second": "x", "first": "y"}


def test_two_parameters_of_one_alias_are_refused() -> None:
    async def f(a: Annotated[str, Field(alias="c")], b: Annotated[str, Field(alias="c")]) -> None: ...

    assert "two of its parameters have the same alias" in error_of(lambda: FunctionTool(f))


async def test_parameters_may_be_called_anything() -> None:
    async def f(json: str, copy: str, _hidden: int, schema: str, model_config: int) -> str:
        return f"{json}{copy}{_hidden}{schema}{model_config}"

    text = '{"json": "a", "copy": "b", "_hidden": 1, "schema": "c", "model_config": 2}'
    assert await said(f, text) == "ab1c2"


class Colour(Enum):
    RED = "red"


class Address(BaseModel):
    street: str
    number: int


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    deep: bool


async def everything(
    colour: Colour,
    address: Address,
    point: Point,
    options: Options,
    level: Literal["low", "high"],
    when: date,
    pair: tuple[int, str],
    unique: set[int],
    maybe: int | None,
    ratio: float,
    table: dict[str, list[int]],
    path: Path,
) -> str:
    return repr((colour, address, point, options, level, when, pair, unique, maybe, ratio, table, path))


EVERYTHING = """{"colour": "red", "address": {"street": "a", "number": 1}, "point": {"x": 1}, "options": {"deep": true},
 "level": "low", "when": "2020-01-02", "pair": [1, "a"], "unique": [1, 2], "maybe": null, "ratio": 1,
 "table": {"a": [1]}, "path": "/tmp"}"""


async def test_values_arrive_with_the_types_of_the_hints() -> None:
    assert await said(everything, EVERYTHING) == repr(
        (
            Colour.RED,
            Address(street="a", number=1),
            Point(1),
            {"deep": True},
            "low",
            date(2020, 1, 2),
            (1, "a"),
            {1, 2},
            None,
            1.0,
            {"a": [1]},
            Path("/tmp"),
        )
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"red"', '"blue"'),
        ('"number": 1', '"number": "1"'),
        ('{"x": 1}', '{"x": 1, "z": 2}'),
        ('"deep": true', '"deep": "yes"'),
        ('"deep": true', '"deep": 1'),
        ('"low"', '"lower"'),
        ('"2020-01-02"', "20200102"),
        ('[1, "a"]', "[1]"),
        ('"maybe": null', '"maybe": "1"'),
        ('"maybe": null', '"maybe": 1.0'),
        ('"ratio": 1', '"ratio": "1"'),
        ('"ratio": 1', '"ratio": 1e999'),
        ('{"a": [1]}', '{"a": [true]}'),
    ],
)
async def test_values_of_another_type_are_refused_and_never_converted(old: str, new: str) -> None:
    assert old in EVERYTHING
    assert (await said(everything, EVERYTHING.replace(old, new))).startswith("everything was not run: argument")


async def test_partials_hide_what_they_bind() -> None:
    async def add(a: int, b: int, c: int = 0) -> int:
        """Add."""
        return a + b + c

    tool = FunctionTool(functools.partial(functools.partial(add, 1), c=2))
    assert (tool.name, tool.description, list(tool.input_schema["properties"])) == ("add", "Add.", ["b"])
    assert await said(tool, '{"b": 10}') == "13"
    assert "'c' is unknown" in await said(tool, '{"b": 10, "c": 5}')


async def test_bound_methods_and_callable_objects_are_tools() -> None:
    class Store:
        """Search the store."""

        async def search(self, query: str) -> str:
            return f"found {query}"

        async def __call__(self, query: str) -> str:
            return f"called {query}"

    store = Store()
    assert await said(FunctionTool(store.search), '{"query": "x"}') == "found x"
    called = FunctionTool(store)
    assert (called.name, called.description) == ("Store", "Search the store.")
    assert await said(called, '{"query": "x"}') == "called x"


async def test_decorated_functions_keep_their_signature_and_their_kind() -> None:
    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @plain
    async def wait(n: int) -> int:
        return n + 1

    @plain
    async def stream(n: int) -> AsyncIterator[str]:
        yield str(n)

    assert await said(wait, '{"n": 1}') == "2"
    assert FunctionTool(stream).is_streaming
    assert await said(stream, '{"n": 1}') == "1"


async def test_a_cached_function_is_a_tool() -> None:
    @functools.lru_cache
    def square(n: int) -> int:
        """Square."""
        return n * n

    assert await said(square, '{"n": 3}') == "9"


async def test_preset_arguments_are_hidden_and_passed() -> None:
    async def send(to: str, key: str, log: object = None) -> str:
        return f"{to} {key}"

    tool = FunctionTool(send, preset_kwargs={"key": "secret", "log": object()})
    assert tool.input_schema["required"] == list(tool.input_schema["properties"]) == ["to"]
    assert await said(tool, '{"to": "a"}') == "a secret"
    assert "'key' is unknown" in await said(tool, '{"to": "a", "key": "mine"}')
    assert await tool.call(to="b") == "b secret"


async def test_given_schema_is_shown_and_checked_and_hints_convert() -> None:
    async def paint(colour: Colour, key: str, times: Any = 1) -> str:
        return f"{colour!r} {key} {times}"

    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string"}, "key": {"type": "string"}, "times": {"maximum": 3}},
        "required": ["colour", "key"],
    }
    tool = FunctionTool(paint, json_schema=schema, preset_kwargs={"key": "k"})
    assert tool.input_schema == {
        "type": "object",
        "properties": {"colour": {"type": "string"}, "times": {"maximum": 3}},
        "required": ["colour"],
    }
    assert await said(tool, '{"colour": "red"}') == f"{Colour.RED!r} k 1"
    assert "argument 'times' should be at most 3, not 4" in await said(tool, '{"colour": "red", "times": 4}')
    assert "argument 'colour' should be 'red', not 'blue'" in await said(tool, '{"colour": "blue"}')


WHOLE = {
    "name": "colours",
    "description": "Paint it.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


@pytest.mark.parametrize("schema", [{"type": "function", "function": WHOLE}, {"type": "function", **WHOLE}])
async def test_whole_function_schema_brings_name_and_description(schema: dict[str, Any]) -> None:
    async def f(a):  # type: ignore[no-untyped-def]
        """Do."""
        return a

    tool = FunctionTool(f, json_schema=schema)
    assert (tool.name, tool.description, tool.input_schema) == tuple(WHOLE.values())
    assert await said(tool, '{"a": 1}') == "1"
    assert "argument 'a' should be of type integer" in await said(tool, '{"a": "1"}')
    named = FunctionTool(f, json_schema=schema, name="mine", description="Mine.")
    assert (named.name, named.description) == ("mine", "Mine.")
    kit = Toolkit()
    kit.register_tool_function(f, json_schema=schema, func_name="again")
    kit.register_tool_function(f, json_schema=schema)
    assert [each["function"] for each in kit.get_json_schemas()] == [{**WHOLE, "name": "again"}, WHOLE]


@pytest.mark.parametrize("schema", [{"type": "function"}, {"type": "function", "function": "f"}])
def test_a_schema_in_that_form_without_parameters_is_refused(schema: dict[str, Any]) -> None:
    assert 'a json_schema of type "function" must be ' in error_of(
        lambda: FunctionTool(get_weather, json_schema=schema)
    )


async def test_a_schema_given_by_hand_makes_up_for_missing_hints() -> None:
    async def f(a, *, b: "Nowhere" = 0, **rest):  # type: ignore[no-untyped-def, name-defined]  # noqa: F821
        return [a, b, rest]

    tool = FunctionTool(f, json_schema={"type": "object", "properties": {"a": {}}}, preset_kwargs={"key": "k"})
    assert await said(tool, '{"a": 1, "b": 2}') == '[1,2,{"key":"k"}]'
    assert "argument 'key' is unknown" in await said(tool, '{"a": 1, "key": "mine"}')
    assert "missing 1 required positional argument: 'a'" in await said(tool, '{"b": 2}')


async def test_args_and_kwargs_beside_others_are_not_in_the_schema() -> None:
    async def f(city: str, *args: str, **options: int) -> list[Any]:
        """Find a city.

        Args:
            city: Its name.
            **options: More.
        """
        return [city, args, options]

    tool = FunctionTool(f)
    assert tool.input_schema == {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Its name."}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert await said(tool, '{"city": "Oslo"}') == '["Oslo",[],{}]'
    assert "'more' is unknown" in await said(tool, '{"city": "Oslo", "more": 1}')
    preset = FunctionTool(f, preset_kwargs={"key": 7})
    assert list(preset.input_schema["properties"]) == ["city"]
    assert await said(preset, '{"city": "Oslo"}') == '["Oslo",[],{"key":7}]'


async def test_given_schema_may_name_arguments_for_kwargs() -> None:
    async def f(colour: Colour, **more: Any) -> str:
        return f"{colour!r} {more}"

    schema = {"type": "object", "properties": {"colour": {}, "size": {"type": "integer"}}}
    assert await said(FunctionTool(f, json_schema=schema), '{"colour": "red", "size": 3}') == (
        f"{Colour.RED!r} {{'size': 3}}"
    )


async def test_the_context_is_hidden_and_given() -> None:
    async def f(a: int, context: ToolContext) -> str:
        return f"{a} {context.tool_call.id}"

    async def g(context: ToolContext | None = None, a: int = 1) -> str:
        return f"{a} {context is not None}"

    async def h(context: Annotated[ToolContext, "mine"]) -> str:
        return context.tool_call.name

    assert list(FunctionTool(f).input_schema["properties"]) == ["a"]
    assert await said(f, '{"a": 1}') == "1 1"
    assert await said(g) == "1 True"
    assert await said(h) == "h"
    assert "'context' is unknown" in await said(f, '{"a": 1, "context": null}')


async def test_plain_functions_run_in_another_thread() -> None:
    def where(context: ToolContext) -> bool:
        return threading.get_ident() == here

    here = threading.get_ident()
    assert await said(where) == "false"


async def test_awaitable_that_a_plain_function_returns_is_awaited() -> None:
    def f() -> Any:
        return get_weather("Rome")

    assert await said(f) == "Rome 3"


def test_async_functions_are_concurrency_safe_and_plain_ones_not() -> None:
    def plain() -> None: ...

    async def stream() -> AsyncIterator[str]:
        yield ""

    def steps() -> Iterator[str]:
        yield ""

    assert FunctionTool(get_weather).is_concurrency_safe
    assert FunctionTool(stream).is_concurrency_safe
    assert not FunctionTool(plain).is_concurrency_safe
    assert not FunctionTool(steps).is_concurrency_safe
    assert FunctionTool(plain, is_concurrency_safe=True).is_concurrency_safe
    assert not FunctionTool(get_weather, is_concurrency_safe=False).is_concurrency_safe


def test_options_are_attributes() -> None:
    tool = FunctionTool(
        get_weather, name="w", description="d", ask=True, timeout=None, is_read_only=True, raise_tool_errors=True
    )
    assert (tool.name, tool.description, tool.ask, tool.timeout) == ("w", "d", True, None)
    assert (tool.is_read_only, tool.raise_tool_errors, tool.is_external_tool) == (True, True, False)
    assert repr(tool) == f"<FunctionTool w ({source_location(get_weather)})>"


def test_missing_hint_is_refused_with_the_remedy() -> None:
    async def get_weather(city) -> str:  # type: ignore[no-untyped-def]
        return ""

    assert error_of(lambda: FunctionTool(get_weather)) == (
        "get_weather() cannot be a tool: its parameter 'city' has no type hint, so a model cannot be told what to "
        f"pass; write e.g. `city: str` ({source_location(get_weather)})"
    )
    assert source_location(get_weather).startswith(__file__)


def test_unusable_signatures_are_refused_with_the_remedy() -> None:
    async def positional(a: int, /) -> None: ...
    async def star(*values: int) -> None: ...
    async def connection(db: threading.Thread) -> None: ...
    async def callback(then: Callable[[], int]) -> None: ...
    async def late(value: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    async def bare(*values) -> None: ...  # type: ignore[no-untyped-def]
    async def wrong(value: 5) -> None: ...  # type: ignore[valid-type]
    async def broken(value: "list[") -> None: ...  # type: ignore[valid-type]  # noqa: F722
    async def contexts(one: ToolContext, two: ToolContext) -> None: ...

    def said(function: Any) -> str:
        text = error_of(lambda: FunctionTool(function))
        start, end = f"{function.__name__}() cannot be a tool: ", f" ({source_location(function)})"
        assert text.startswith(start)
        assert text.endswith(end)
        return text.removeprefix(start).removesuffix(end)

    assert said(positional) == "its parameter 'a' is positional-only, but a model gives names; remove the `/`"
    assert said(star) == "a model cannot be told what to pass as *values; take a list instead"
    assert said(connection) == (
        "its parameter 'db' is of type Thread, which JSON cannot hold; give the value yourself with "
        "preset_kwargs={'db': ...}, or take a type that JSON can hold"
    )
    assert "its parameter 'then' is of type " in said(callback)
    assert said(late) == (
        "the type hint 'Nowhere' of its parameter 'value' cannot be looked up (name 'Nowhere' is not defined); "
        "define that name at the top of the module, outside `if TYPE_CHECKING:`"
    )
    assert said(bare) == said(star)
    assert said(wrong).startswith("its parameter 'value' is of type 5, which JSON cannot hold; ")
    assert said(broken).startswith("the type hint 'list[' of its parameter 'value' is not a type (")
    assert said(contexts) == "its parameters one, two all take the ToolContext; keep one of them"


def test_object_that_is_not_a_function_is_refused_with_remedy() -> None:
    class Search:
        async def find(self, query: str) -> None: ...

    assert error_of(lambda: FunctionTool("search")) == (  # type: ignore[arg-type]
        "'search' cannot be a tool: pass a function with type hints, or a ToolBase"
    )
    assert error_of(lambda: FunctionTool(Search)) == (
        "the class Search cannot be a tool: pass a function, or an instance, Search(...)"
    )
    assert "a method without its object; pass a method of an instance" in error_of(lambda: FunctionTool(Search.find))
    nameless = lambda: 1  # noqa: E731
    assert error_of(lambda: FunctionTool(nameless)) == (
        "a lambda has no name by which a model could call it: write a function with `def`, or give name=... "
        f"({source_location(nameless)})"
    )
    assert FunctionTool(nameless, name="one").name == "one"
    assert "cannot tell its parameters" in error_of(lambda: FunctionTool(min))


@pytest.mark.parametrize("name", ["", "get weather", "wetter_für", "x" * 65, "a.b", "a\n"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    assert error_of(lambda: FunctionTool(get_weather, name=name)) == (
        f"{name!r} cannot be the name of a tool: use 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, as providers require"
    )


def test_invalid_options_are_refused() -> None:
    assert error_of(lambda: FunctionTool(get_weather, timeout=0)) == (
        "the timeout of get_weather must be more than 0 seconds, or None for no limit, not 0"
    )
    assert error_of(lambda: FunctionTool(get_weather, max_output=0)) == (
        "max_output of get_weather must be more than 0 characters, not 0"
    )
    assert "preset_kwargs names 'cty', but its parameters are city, days" in error_of(
        lambda: FunctionTool(get_weather, preset_kwargs={"cty": "Rome"})
    )
    assert "preset_kwargs names 'cty'" in error_of(
        lambda: FunctionTool(get_weather, preset_kwargs={"cty": "Rome"}, json_schema={"type": "object"})
    )
    assert "must be a JSON schema of an object" in error_of(
        lambda: FunctionTool(get_weather, json_schema={"type": "string"})
    )


async def test_a_permission_rule_sees_what_the_model_sees() -> None:
    tool = FunctionTool(get_weather, preset_kwargs={"days": 9})
    assert tool.is_trusted
    assert not FunctionTool(get_weather, ask=True).is_trusted
    assert tool.permission_subject({"city": "Oslo"}) == "Oslo"
    assert FunctionTool(get_weather).permission_subject({"city": "Oslo"}) == '{"city":"Oslo"}'
