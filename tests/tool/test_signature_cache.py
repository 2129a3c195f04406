"""What was read from a function holds for further agents, and only as long as the function is the same."""

import functools
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from agentrt.tool import FunctionTool
from agentrt.tool.signature import read_signature


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


def written_as_text(places: dict[str, Any]) -> Any:
    source = """
from __future__ import annotations

def search(query: Word, kind: Literal["a", "b"] = "a", limit: Annotated[int | None, Field(description="Most.")] = 5):
    'Search.'
"""
    exec(source, places)
    return places["search"]


def read_once(function: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is read of a function that was read before, if it is not read anew."""
    first = read_signature(function)
    with monkeypatch.context() as patch:
        patch.setattr("agentrt.tool.signature.reader.signature_of", None)
        assert read_signature(function) == first
    return first


def test_hints_written_as_text_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"Word": str, "Literal": Literal, "Annotated": Annotated, "Field": Field}
    function = written_as_text(places)
    properties = read_once(function, monkeypatch).schema["properties"]
    assert properties["query"] == {"type": "string"}
    assert properties["limit"]["description"] == "Most."
    places["Word"] = int
    assert read_signature(function).schema["properties"]["query"] == {"type": "integer"}


@pytest.mark.parametrize("hint", ["types.Word", "list['Word']", "(lambda: Word)()"])
def test_a_text_that_may_mean_something_else_is_read_each_time(hint: str) -> None:
    types = SimpleNamespace(Word=str)
    places: dict[str, Any] = {"types": types, "Word": str}
    exec(f"def search(query: {hint!r}):\n    'Search.'", places)
    function = places["search"]
    read_signature(function)
    types.Word = places["Word"] = int
    assert "integer" in repr(read_signature(function).schema)


def test_fields_that_only_describe_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(query: Annotated[str, Field(description="A word.")], limit: int = Field(description="Most.")) -> str:
        """Search."""
        return query

    properties = read_once(search, monkeypatch).schema["properties"]
    assert [part["description"] for part in properties.values()] == ["A word.", "Most."]


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


def test_what_is_kept_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    function = make_search()
    first = read_signature(function)
    monkeypatch.setattr("agentrt.tool.signature.reader.signature_of", None)
    assert read_signature(function) == first


def test_a_function_that_was_read_can_be_freed() -> None:
    function = make_search()
    FunctionTool(function)
    freed = weakref.ref(function)
    del function
    gc.collect()
    assert freed() is None
