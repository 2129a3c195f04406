"""A stream whose layers all pass everything on needs no chain: its caller may call the core itself."""

import functools
from typing import Any

import pytest

from agentrt.errors import ChainError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import CORES, STREAMS, VALUES, Guard, Log, compile_with, enter, read_texts


class Aside(MiddlewareBase):
    """Returns the stream of the next layer itself, called with the values that a test wants, or fails before that."""

    def __init__(self, error: Exception | None = None, **changes: Any) -> None:
        self.error, self.changes = error, changes
        self.next_handler: Any = None

    def _step_aside(hook: Any) -> Any:
        @functools.wraps(hook)
        def entry(self: "Aside", agent: Log, input_kwargs: Any, next_handler: Any) -> Any:
            agent.append("aside")
            if self.error is not None:
                raise self.error
            self.next_handler = next_handler
            return next_handler(**self.changes)

        return entry

    @_step_aside
    async def _hook(self, agent, input_kwargs, next_handler):
        yield

    on_reply = on_reasoning = on_acting = _hook


@pytest.mark.parametrize("hook", STREAMS)
async def test_layers_that_return_the_inner_stream_pass_on_to_the_core(hook: str) -> None:
    agent = Log()
    stream = enter(compile_with(Aside(), Aside()), hook, agent)
    assert stream.passes_on_to(CORES[hook])
    assert agent == ["aside", "aside"]


@pytest.mark.parametrize("hook", STREAMS)
@pytest.mark.parametrize("place", [0, 1])
async def test_one_layer_that_sees_the_items_is_enough_for_a_chain(hook: str, place: int) -> None:
    layers = [Aside(), Aside()]
    layers[place:place] = [Guard("one")]
    agent = Log()
    stream = enter(compile_with(*layers), hook, agent)
    assert not stream.passes_on_to(CORES[hook])
    assert await read_texts(stream) == ["a", "b", "c"]
    assert agent.count("aside") == 2


async def test_a_layer_that_passes_on_another_value_changes_the_reply() -> None:
    stream = enter(compile_with(Aside(inputs=[])), "on_reply", Log())
    assert not stream.passes_on_to(CORES["on_reply"])
    assert await read_texts(stream) == ["a", "b", "c"]


async def test_a_chain_around_another_core_does_not_pass_on() -> None:
    agent = Log()
    assert not enter(compile_with(Aside()), "on_reply", agent).passes_on_to(CORES["on_reasoning"])
    assert agent == []


async def test_a_layer_that_fails_is_named_where_the_stream_is_read() -> None:
    error = LookupError("no")
    stream = enter(compile_with(Aside(error)), "on_reply", Log())
    assert not stream.passes_on_to(CORES["on_reply"])
    with pytest.raises(LookupError) as caught:
        await read_texts(stream)
    assert caught.value is error
    assert "raised by Aside in on_reply" in error.__notes__[0]


@pytest.mark.parametrize("hook", STREAMS)
async def test_a_chain_that_was_passed_by_is_over(hook: str) -> None:
    layer, agent = Aside(), Log()
    stream = enter(compile_with(layer), hook, agent)
    assert stream.passes_on_to(CORES[hook])
    with pytest.raises(ChainError, match="ended"):
        layer.next_handler(**VALUES[hook])
    assert await read_texts(stream) == []
    assert agent == ["aside"]
