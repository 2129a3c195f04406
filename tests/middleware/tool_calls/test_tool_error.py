"""Tool errors: the model reads the words that the author of the program wrote."""

from collections.abc import Callable
from typing import Any

import pytest

from agentrt.errors import MiddlewareConfigError
from agentrt.event import ToolResultEndEvent
from agentrt.middleware import ToolErrorMiddleware
from agentrt.testing import check_middleware
from tests.loop.helpers import agent_of, call, items_of


async def search(query: str) -> str:
    if query == "bad":
        raise ConnectionError("no route to 10.0.0.7")
    return "found"


async def result_of(layer: ToolErrorMiddleware, query: str = "bad") -> tuple[str, str]:
    agent = agent_of([[call("1", "search", query=query)], "done"], search, middlewares=[layer])
    (end,) = [item for item in await items_of(agent) if isinstance(item, ToolResultEndEvent)]
    (block,) = agent.state.context[-1].get_content_blocks("tool_result")
    return end.state, block.text


@pytest.mark.parametrize("on", ["search", ["other", "sea*"], ("*",)])
async def test_a_failed_tool_gives_our_text(on: Any) -> None:
    assert await result_of(ToolErrorMiddleware(on, "Search is down.")) == ("error", "Search is down.")
    told = ToolErrorMiddleware(on, lambda call, text: f"{call.name}: {text.partition(':')[0]}")
    assert (await result_of(told))[1].startswith("search: ")


async def test_other_results_stay_as_they_are() -> None:
    assert await result_of(ToolErrorMiddleware("*", "down"), "good") == ("success", "found")
    state, text = await result_of(ToolErrorMiddleware("other", "down"))
    assert (state, "no route" in text) == ("error", True)


async def sleep_on(call: Any, text: str) -> str:
    return text


@pytest.mark.parametrize("text", [lambda call, text: 1 / 0, lambda call, text: None, lambda call, text: 7])
async def test_a_function_that_fails_leaves_the_text(text: Any) -> None:
    assert "no route" in (await result_of(ToolErrorMiddleware("*", text)))[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToolErrorMiddleware("", "x"), "must be a list of names of tools, or of patterns such as 'get_\\*'"),
        (lambda: ToolErrorMiddleware([1], "x"), "must be a list of names"),  # type: ignore[list-item]
        (lambda: ToolErrorMiddleware(None, "x"), "must be a list of names"),  # type: ignore[arg-type]
        (lambda: ToolErrorMiddleware("*", ""), "must be a str for the model, or a function"),
        (lambda: ToolErrorMiddleware([], "x"), "must be a list of names"),
        (lambda: ToolErrorMiddleware("*", lambda call: "x"), r"which must be a function \(call, text\)"),  # type: ignore[arg-type,misc]
        (lambda: ToolErrorMiddleware("*", sleep_on), "must be a plain function, not sleep_on"),  # type: ignore[arg-type]
        (lambda: ToolErrorMiddleware("*", 7), "must be a str for the model, or a function"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        make()


@pytest.mark.slow
async def test_a_function_that_writes_the_text_keeps_the_contract() -> None:
    await check_middleware(
        lambda: ToolErrorMiddleware("*", lambda call, text: text.upper()), faults=["cancel"], every=3
    )
