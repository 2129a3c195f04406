"""Hints that `from __future__ import annotations` leaves as text are looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import BaseModel, Field

from agentrt.errors import ToolConfigError
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, Toolkit, ToolResponse

if TYPE_CHECKING:
    from decimal import Decimal

    from agentrt.tool import ToolContext


class Place(BaseModel):
    name: str
    inside: Place | None = None


async def find(place: Place, depth: Annotated[int, Field(ge=1)] = 1, context: ToolContext | None = None) -> str:
    assert context is not None
    return f"{place.inside and place.inside.name} {depth}"


async def test_lazy_hints_make_the_same_tool() -> None:
    schema = FunctionTool(find).input_schema
    assert list(schema["properties"]) == ["place", "depth"]
    text = '{"place": {"name": "a", "inside": {"name": "b"}}}'
    (response,) = [item async for item in Toolkit([find]).call_tool_function(ToolCallBlock("1", "find", text))]
    assert isinstance(response, ToolResponse)
    assert response.content[0].text == "b 1"  # type: ignore[union-attr]


def test_hint_under_type_checking_only_is_refused_by_name() -> None:
    async def pay(amount: Decimal) -> None: ...

    with pytest.raises(ToolConfigError, match=r"the type hint 'Decimal' of its parameter 'amount' cannot be looked up"):
        FunctionTool(pay)


def test_the_return_hint_is_never_looked_up() -> None:
    async def price() -> Decimal: ...  # type: ignore[empty-body]

    assert FunctionTool(price).input_schema["properties"] == {}
