"""Wrappers around the hooks of a reply: what they return in place of a generator is read like one."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

from agentrt import MiddlewareBase
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import agent_of, order_of

HOOKS = pytest.mark.parametrize("hook", ["on_reply", "on_reasoning"])


class Step:
    """An awaitable that is not an iterator."""

    def __init__(self, step: Awaitable[Any]) -> None:
        self._step = step

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._step.__await__()


class Steps:
    """A stream that is not a generator."""

    def __init__(self, stream: AsyncIterator[Any]) -> None:
        self._stream = stream

    def __aiter__(self) -> "Steps":
        return self

    def __anext__(self) -> Step:
        return Step(anext(self._stream))


async def pass_on(self: MiddlewareBase, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncIterator[Any]:
    async for item in next_handler():
        yield item


def layer_with(hook: str, *wrappers: Callable[..., Any]) -> MiddlewareBase:
    functions = [functools.wraps(pass_on)(wrapper) for wrapper in wrappers] or [pass_on]
    return type("Wrapped", (MiddlewareBase,), {hook: functions[0]})()


@HOOKS
async def test_a_wrapper_may_return_any_stream(hook: str) -> None:
    layer = layer_with(hook, lambda *values: Steps(pass_on(*values)))
    plain = layer_with(hook)
    assert await order_of(agent_of(["hello"], middlewares=[layer])) == await order_of(
        agent_of(["hello"], middlewares=[plain])
    )
    assert (await agent_of(["hello"], middlewares=[layer]).reply("go")).get_text_content() == "hello"


@HOOKS
async def test_an_error_of_a_wrapper_names_its_layer(hook: str) -> None:
    def fail(*values: object) -> AsyncIterator[object]:
        raise LookupError("lost")

    with pytest.raises(LookupError) as caught:
        await agent_of(["hello"], middlewares=[layer_with(hook, fail)]).reply("go")
    assert caught.value.__notes__[0].startswith(f"agentrt: raised by Wrapped in {hook} (")


async def test_a_function_of_two_hooks_is_not_blamed_for_the_model() -> None:
    class Both(MiddlewareBase):
        on_reply = on_reasoning = pass_on

    agent = agent_of([], middlewares=[Both()])
    agent.model = ScriptedChatModel([LookupError("lost")])
    with pytest.raises(LookupError) as caught:
        await agent.reply("go")
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "Both" in note]
