"""JSON that fits a type of a provider's SDK: what its API may send, as far as the SDK knows."""

import datetime
import enum
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

Draw = Callable[[st.SearchStrategy[Any]], Any]

_MAX_DEPTH = 5
_PLAIN: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, bytes: "c2ln", object: {}, Any: {}, None: None}
_TIMES = (datetime.datetime, datetime.date)


def union_members(alias: Any) -> list[Any]:
    """Return the classes of an SDK's union, which may be annotated and hold others."""
    alias = alias.__value__ if isinstance(alias, TypeAliasType) else alias
    if get_origin(alias) is Annotated:
        return union_members(get_args(alias)[0])
    if get_origin(alias) in (Union, types.UnionType):
        return [member for arg in get_args(alias) for member in union_members(arg)]
    return [alias]


def name_of_type(cls: type[pydantic.BaseModel]) -> str:
    """Return the value of the field `type` of a class."""
    return str(get_args(cls.model_fields["type"].annotation)[0])


def example_of(draw: Draw, hint: Any, depth: int = 0) -> Any:
    """Return JSON for the type; fields that may be missing are there or not."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return example_of(draw, args[0], depth)
    if origin is Literal:
        return draw(st.sampled_from(args))
    if origin in (Union, types.UnionType):
        optional = type(None) in args
        kinds = [arg for arg in args if arg is not type(None)]
        if optional and (depth >= _MAX_DEPTH or draw(st.booleans())):
            return None
        return example_of(draw, draw(st.sampled_from(kinds)), depth)
    if origin is list:
        length = 0 if depth >= _MAX_DEPTH else draw(st.integers(0, 2))
        return [example_of(draw, args[0], depth + 1) for _ in range(length)]
    if origin is dict or hint is dict:
        return {}
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return _example_of_model(draw, hint, depth)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return draw(st.sampled_from([member.value for member in hint] or ["X"]))
    return "2026-01-01T00:00:00Z" if hint in _TIMES else _PLAIN.get(hint, {})


def _example_of_model(draw: Draw, cls: type[pydantic.BaseModel], depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        if field.is_required() or (depth < _MAX_DEPTH and draw(st.booleans())):
            values[field.alias or name] = example_of(draw, field.annotation, depth + 1)
    return values
