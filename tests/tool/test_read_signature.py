"""A function is read each time, and pydantic asked once for the same types."""

import functools
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from agentrt.tool import FunctionTool
from agentrt.tool.signature.reader import read_signature


def make_search() -> Any:
    def search(query: str, limit: int = 5, *, exact: bool = False) -> str:
        """Search.

        Args:
            query: What to look for.
        """
        return query

    return search


def other(query: int, limit: str = "x", *, exact: str = "") -> str:
    """Search for a number."""
    return str(query)


def set_code(function: Any) -> None:
    function.__code__ = other.__code__.replace(co_varnames=("limit", "query", "exact"))


def set_keyword_default(function: Any) -> None:
    function.__kwdefaults__["exact"] = 0  # which is equal to False


def remove_keyword_defaults(function: Any) -> None:
    function.__kwdefaults__ = None


def set_hint(function: Any) -> None:
    function.__annotations__["limit"] = float


def set_hint_to_text(function: Any) -> None:
    function.__annotations__["query"] = "int"


def wrap(function: Any) -> None:
    function.__wrapped__ = other


CHANGES: dict[str, Callable[[Any], object]] = {
    "code": set_code,
    "docstring": lambda function: setattr(function, "__doc__", "Args:\n    query: A word."),
    "no docstring": lambda function: setattr(function, "__doc__", None),
    "defaults": lambda function: setattr(function, "__defaults__", (5.0,)),
    "no defaults": lambda function: setattr(function, "__defaults__", None),
    "keyword default": set_keyword_default,
    "no keyword defaults": remove_keyword_defaults,
    "hint": set_hint,
    "hint as text": set_hint_to_text,
    "wrapped": wrap,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_function_is_read_anew(change: str) -> None:
    kept, fresh = make_search(), make_search()
    read_signature(kept)
    for function in (kept, fresh):
        CHANGES[change](function)
    schema = read_signature(kept).schema
    assert schema == read_signature(fresh).schema
    assert repr(schema) == repr(read_signature(fresh).schema)
    assert repr(schema) != repr(read_signature(make_search()).schema)


@pytest.mark.parametrize("hint", ["types.Word", "list['Word']", "(lambda: Word)()"])
def test_a_text_that_may_mean_something_else_is_read_each_time(hint: str) -> None:
    types = SimpleNamespace(Word=str)
    places: dict[str, Any] = {"types": types, "Word": str}
    exec(f"def search(query: {hint!r}):\n    'Search.'", places)
    function = places["search"]
    read_signature(function)
    types.Word = places["Word"] = int
    assert "integer" in repr(read_signature(function).schema)


def test_same_types_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(query: str, limit: Annotated[int, Field(description="Most.")] = 5) -> None:
        """Describe."""

    first = read_signature(describe)
    monkeypatch.setattr("agentrt.tool.signature.pydantic_types.TypeAdapter", None)
    describe.__defaults__ = (7,)
    second = read_signature(describe)
    assert second.schema["properties"]["limit"] == {"default": 7, "description": "Most.", "type": "integer"}
    assert first.schema["properties"]["limit"]["default"] == 5


def test_types_that_cannot_be_hashed_are_compiled() -> None:
    def describe(query: Annotated[str, ["a note"]]) -> None:
        """Describe."""

    assert read_signature(describe).schema["properties"] == {"query": {"type": "string"}}


def test_order_of_choices_is_that_of_the_hint() -> None:
    def choose(unit: Literal["m", "km"]) -> None:
        """Choose a unit."""

    assert read_signature(choose).schema["properties"]["unit"]["enum"] == ["m", "km"]
    choose.__annotations__["unit"] = Literal["km", "m"]
    assert read_signature(choose).schema["properties"]["unit"]["enum"] == ["km", "m"]


def test_a_default_that_was_edited_is_read_anew() -> None:
    places: list[str] = []

    def search(query: str, places: list[str] = places) -> None:
        """Search."""

    read_signature(search)
    places.append("Rome")
    assert read_signature(search).schema["properties"]["places"]["default"] == ["Rome"]


def test_schemas_are_each_tools_own() -> None:
    function = make_search()
    for _ in range(3):
        tool = FunctionTool(function)
        assert tool.input_schema["properties"]["limit"] == {"default": 5, "type": "integer"}
        tool.input_schema["properties"]["limit"]["default"] = 7
        tool.input_schema["required"].append("limit")
        tool._plan.defaults["limit"] = 9  # type: ignore[union-attr]
    assert read_signature(function).defaults == {"limit": 5, "exact": False}
    assert read_signature(function).schema["required"] == ["query"]


def test_partials_and_presets_have_their_own_schemas() -> None:
    function = make_search()
    read_signature(function)
    assert "query" not in FunctionTool(functools.partial(function, query="x")).input_schema["properties"]
    assert "limit" not in FunctionTool(function, preset_kwargs={"limit": 1}).input_schema["properties"]
    assert list(read_signature(function).schema["properties"]) == ["query", "limit", "exact"]


def test_a_function_that_was_read_can_be_freed() -> None:
    function = make_search()
    FunctionTool(function)
    freed = weakref.ref(function)
    del function
    gc.collect()
    assert freed() is None
