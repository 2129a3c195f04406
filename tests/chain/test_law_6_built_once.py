"""Law 6: chains are compiled once and frozen, hold nothing of a conversation, and know each middleware's key."""

import contextlib
import gc
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from agentrt.errors import ChainError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import Guard, Log, compile_with, enter, event, read_texts


class Store(MiddlewareBase):
    """A middleware that never calls `super().__init__()`."""

    def __init__(self, key: str | None = None) -> None:
        if key is not None:
            self.key = key


class Other(MiddlewareBase):
    pass


def test_middleware_is_keyed_by_its_class() -> None:
    store, other = Store(), Other()
    chains = compile_with(store, other)
    assert (chains.key_of(store), chains.key_of(other)) == ("Store", "Other")


def test_explicit_key_takes_precedence_over_the_class() -> None:
    store = Store("mine")
    assert compile_with(store).key_of(store) == "mine"


def test_a_key_may_be_set_for_a_whole_class() -> None:
    class Named(MiddlewareBase):
        key = "named"

    named = Named()
    assert compile_with(named).key_of(named) == "named"


def test_middlewares_of_one_class_are_numbered_in_list_order() -> None:
    stores = [Store(), Store(), Store()]
    chains = compile_with(*stores)
    assert [chains.name_of(each) for each in stores] == ["Store", "Store#2", "Store#3"]


def test_only_those_without_a_key_are_numbered() -> None:
    stores = [Store(), Store("mine"), Store()]
    chains = compile_with(*stores)
    assert [chains.name_of(each) for each in stores] == ["Store", "mine", "Store#2"]


def test_a_class_name_that_is_taken_as_a_key_is_numbered() -> None:
    keyed, plain = Other(), Store()
    keyed.key = "Store"
    chains = compile_with(plain, keyed)
    assert [chains.name_of(plain), chains.name_of(keyed)] == ["Store#2", "Store"]


def test_no_two_middlewares_share_a_key() -> None:
    stores = [Store(), Store(), Store("Store#2")]
    chains = compile_with(*stores)
    assert len({chains.name_of(each) for each in stores}) == 3


def test_two_of_one_class_without_keys_warn_when_they_store_data() -> None:
    first, second = Store(), Store()
    chains = compile_with(first, second)
    with pytest.warns(UserWarning, match="set `key` on each") as caught:
        assert chains.key_of(second) == "Store#2"
    assert str(caught[0].message) == (
        "two Store middlewares store data under keys that depend on their order: set `key` on each"
    )
    with pytest.warns(UserWarning, match="set `key` on each"):
        assert chains.key_of(first) == "Store"


def test_two_of_one_class_do_not_warn_before_they_store_data() -> None:
    with warnings.catch_warnings(record=True) as caught:
        chains = compile_with(first := Store(), Store())
        chains.name_of(first)
    assert caught == []


def test_one_explicit_key_is_enough_to_tell_two_apart() -> None:
    first, second = Store(), Store("second")
    chains = compile_with(first, second)
    assert (chains.key_of(first), chains.key_of(second)) == ("Store", "second")


def test_middleware_of_another_agent_has_no_key() -> None:
    with pytest.raises(ChainError, match="Store is not among this agent's middlewares"):
        compile_with(Store()).key_of(Store())


def test_chains_are_frozen() -> None:
    chains = compile_with(Guard("1"))
    with pytest.raises(AttributeError, match="frozen"):
        chains.on_reply = None


def test_the_list_may_change_after_it_was_compiled() -> None:
    middlewares = [Guard("1")]
    chains = compile_with(*middlewares)
    middlewares.append(Guard("2"))
    assert len(chains.middlewares) == len(chains.layers["on_reply"]) == 1


async def test_chains_keep_no_agent_alive() -> None:
    chains = compile_with(Guard("1"), Guard("2"))
    agent = Log()
    stream = enter(chains, "on_reasoning", agent)
    await anext(stream)
    await stream.aclose()
    await read_texts(enter(chains, "on_reasoning", agent))
    await enter(chains, "on_model_call", agent)
    gone = weakref.ref(agent)
    del agent, stream
    gc.collect()
    assert gone() is None


async def fail(agent: Log, tool_choice: Any) -> Any:
    yield event("a")
    raise LookupError


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_finished_stream_keeps_no_agent_alive(no_garbage_collection: None) -> None:
    agent = Log()
    gone = weakref.ref(agent)
    await read_texts(enter(compile_with(Guard("1")), "on_reasoning", agent))
    del agent
    assert gone() is None


async def test_failed_stream_keeps_no_agent_alive(no_garbage_collection: None) -> None:
    async def attempt() -> weakref.ref[Log]:
        agent = Log()
        with contextlib.suppress(LookupError):
            await read_texts(enter(compile_with(Guard("1"), on_reasoning=fail), "on_reasoning", agent))
        return weakref.ref(agent)

    assert (await attempt())() is None


async def test_one_middleware_may_serve_several_agents() -> None:
    guard = Guard("shared")
    agents = [Log(), Log()]
    for agent, chains in zip(agents, [compile_with(guard), compile_with(Guard("1"), guard)], strict=True):
        await read_texts(enter(chains, "on_reasoning", agent))
    assert agents[0] == ["shared opens", "core opens", "core closes", "shared closes"]
    assert agents[1] == ["1 opens", *agents[0], "1 closes"]
