"""Schemas of plain types are those that pydantic makes, whatever the signature and the arguments."""

import inspect
import json
from keyword import iskeyword
from typing import Annotated, Any, Dict, List, Literal, Optional, Union  # noqa: UP035  # people write them, too

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from agentrt.tool import FunctionTool
from agentrt.tool.arguments import ArgumentsError, Parse, Validator, parser_by_types
from agentrt.tool.signature.plain_types import compile_plain_types
from agentrt.tool.signature.pydantic_types import compile_types

scalars = st.sampled_from([str, int, float, bool, Any, None, list, dict, List, Dict])  # noqa: UP006
literals = st.lists(st.text(max_size=3), min_size=1, max_size=3).map(lambda values: Literal[tuple(values)])
plain = st.recursive(
    scalars | literals,
    lambda inner: st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: List[hint]),  # noqa: UP006
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: Dict[Any, hint]),  # noqa: UP006
        inner.map(lambda hint: Optional[hint]),  # noqa: UP045
        inner.map(lambda hint: Union[None, hint]),  # noqa: UP007
    ),
    max_leaves=4,
)
descriptions = st.text(max_size=5)
described = st.one_of(
    plain,
    st.tuples(plain, descriptions).map(lambda pair: Annotated[pair[0], Field(description=pair[1])]),
    st.tuples(plain, descriptions).map(lambda pair: Annotated[pair[0], "a note", Field(description=pair[1])]),
    plain.map(lambda hint: Annotated[hint, "a note"]),
)
defaults = st.one_of(st.just(inspect.Parameter.empty), st.none() | st.integers() | st.text(max_size=3), st.builds(list))
fields = st.builds(lambda text: Field(description=text), descriptions)
words = st.from_regex(r"[a-z_]{1,3}", fullmatch=True).filter(lambda word: not iskeyword(word))
names = words | st.sampled_from(["self", "copy", "arguments", "größe"])
signatures = st.dictionaries(names, st.tuples(described, defaults) | st.tuples(plain, fields), max_size=4)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["1", "1.0", "true", "null", 1.0, 0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def parameters_of(signature: dict[str, tuple[Any, Any]]) -> tuple[dict[str, Any], dict[str, inspect.Parameter]]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return (
        {name: type(None) if hint is None else hint for name, (hint, _) in signature.items()},
        {name: inspect.Parameter(name, kind, default=default) for name, (_, default) in signature.items()},
    )


def outcome(validator: Validator, text: str) -> object:
    try:
        value = validator.validate_json(text, strict=True)
    except ValidationError as error:
        return error.errors()
    return list(value.items()), [type(part) for part in value.values()]


def parse_outcome(parse: Parse, text: str) -> str:
    try:
        return repr(parse(text))
    except ArgumentsError as error:
        return str(error)


def some_function() -> None:
    """Stands for the function whose parameters are made up."""


@pytest.mark.slow
@given(signature=signatures, takes_more=st.booleans(), data=st.data())
@example(signature={}, takes_more=False, data=None)
def test_plain_types_are_compiled_as_pydantic_does(
    signature: dict[str, tuple[Any, Any]], takes_more: bool, data: st.DataObject | None
) -> None:
    hints, parameters = parameters_of(signature)
    compiled = compile_plain_types(hints, parameters, takes_more=takes_more)
    assert compiled is not None
    ours, our_schema = compiled
    theirs, their_schema = compile_types(some_function, hints, parameters, takes_more=takes_more)
    assert json.dumps(our_schema) == json.dumps(their_schema)  # as text, so that the order of the keys counts
    given_names = st.sampled_from([*signature, "other"])
    for _ in range(4 if data else 0):
        arguments = data.draw(st.dictionaries(given_names, values, max_size=5)) if data else {}
        text = json.dumps(arguments)
        assert repr(outcome(ours, text)) == repr(outcome(theirs, text))
        assert parse_outcome(parser_by_types(ours), text) == parse_outcome(parser_by_types(theirs), text)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("hint", "default"),
    [
        (Annotated[int, Field(ge=1)], None),
        (Annotated[int, Field(alias="other")], None),
        (Annotated[int, Field(description="one"), Field(description="two")], None),
        (Annotated[int, Field(title="A title", description="one")], None),
        (Annotated[int, Field(json_schema_extra={"a": 1})], None),
        (Annotated[int, 1], None),
        (Annotated[int, Field()], None),
        (int, Field(3)),
        (int, Field(ge=1)),
        (Literal["a", 1], None),
        (Literal[None], None),
        (int | str, None),
        (int | str | None, None),
        (dict[int, str], None),
        (list[bytes], None),
        (tuple[int, ...], None),
        (set[int], None),
        (Text, None),
        (list[Annotated[int, Field(ge=1)]], None),
        (object, None),
    ],
)
def test_other_types_are_left_to_pydantic(hint: object, default: object) -> None:
    hints, parameters = parameters_of({"x": (hint, default)})
    assert compile_plain_types(hints, parameters, takes_more=False) is None


def test_what_is_added_to_one_schema_is_not_in_another() -> None:
    def f(a: str, b: str, c: list[str], d: str | None = None) -> None:
        """F.

        Args:
            b: The second.
        """

    def g(a: str) -> None: ...

    first, second = FunctionTool(f), FunctionTool(g)
    first.input_schema["properties"]["c"]["items"]["maxLength"] = 5
    first.input_schema["properties"]["d"]["anyOf"][0]["maxLength"] = 5
    assert "description" not in first.input_schema["properties"]["a"]
    assert second.input_schema["properties"] == {"a": {"type": "string"}}
    assert FunctionTool(f).input_schema["properties"]["c"] == {"items": {"type": "string"}, "type": "array"}
