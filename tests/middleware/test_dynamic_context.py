"""Dynamic context adds an up-to-date section to the system prompt."""

from collections.abc import Iterator
from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent
from agentrt.errors import ChainContractError, MiddlewareConfigError
from agentrt.middleware import DynamicContextMiddleware
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import add, call


async def prompts(*layers: DynamicContextMiddleware, prompt: str = "Be brief.") -> list[Any]:
    from agentrt import Toolkit

    model = ScriptedChatModel([[call("1", "add", a=1, b=2)], "3"])
    agent = Agent("tester", prompt, model, Toolkit(tools=[add]), list(layers))
    await agent.reply("go")
    return [call.messages[0].content if call.messages[0].role == "system" else None for call in model.calls]


def counting() -> Any:
    numbers: Iterator[int] = iter(range(1, 9))
    return lambda: f"Turn {next(numbers)}"


async def later() -> str:
    await anyio.lowlevel.checkpoint()
    return "It rains."


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (DynamicContextMiddleware("It rains."), ["Be brief.\n\n## Current Context\nIt rains."] * 2),
        (DynamicContextMiddleware(later), ["Be brief.\n\n## Current Context\nIt rains."] * 2),
        (DynamicContextMiddleware(later, title="Weather"), ["Be brief.\n\n## Weather\nIt rains."] * 2),
        (DynamicContextMiddleware(later, title=None), ["Be brief.\n\nIt rains."] * 2),
        (DynamicContextMiddleware(""), ["Be brief."] * 2),
        (DynamicContextMiddleware(lambda: None), ["Be brief."] * 2),
    ],
)
async def test_the_section_is_added_to_the_prompt(layer: DynamicContextMiddleware, expected: list[str]) -> None:
    assert await prompts(layer) == expected


async def test_provider_is_called_for_every_model_call() -> None:
    layer = DynamicContextMiddleware(counting())
    assert [prompt[-6:] for prompt in await prompts(layer)] == ["Turn 1", "Turn 2"]


async def test_sections_are_added_in_list_order() -> None:
    layers = [DynamicContextMiddleware(name, title=None) for name in ("first", "second")]
    assert (await prompts(*layers))[0] == "Be brief.\n\nfirst\n\nsecond"


async def test_an_empty_prompt_becomes_the_section_alone() -> None:
    assert await prompts(DynamicContextMiddleware("x"), prompt="") == ["## Current Context\nx"] * 2


async def test_a_provider_that_returns_another_type_is_named() -> None:
    with pytest.raises(ChainContractError, match=r"DynamicContextMiddleware must return a str or None.* int"):
        await prompts(DynamicContextMiddleware(lambda: 7))  # type: ignore[arg-type, return-value]  # on purpose


def test_a_provider_that_is_neither_str_nor_function_is_refused() -> None:
    with pytest.raises(MiddlewareConfigError, match="takes a str or a function"):
        DynamicContextMiddleware(7)  # type: ignore[arg-type]  # on purpose
