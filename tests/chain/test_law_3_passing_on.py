"""Law 3: what a layer leaves out keeps the value that reached it; its changes are seen further in only."""

from typing import Any

import pytest

from agentrt.chain import HookSpec, compile_chains
from agentrt.errors import ChainError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import Log, compiled, enter, texts


class Base(MiddlewareBase):
    def on_items(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return next_handler(**input_kwargs)

    def on_ask(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return next_handler(**input_kwargs)


TABLE = (
    HookSpec("on_items", "stream", ("a", "b"), (dict,), None, "a stream that tells with what values it was opened"),
    HookSpec("on_ask", "call", ("a", "b"), (), dict, "a call that returns the values that it was made with"),
)


async def items(agent: Log, **values: Any) -> Any:
    yield values


async def ask(agent: Log, **values: Any) -> dict[str, Any]:
    return values


class Layer(Base):
    """Calls `next_handler` in the way that a test wants."""

    def __init__(self, pass_on: Any) -> None:
        self.pass_on = pass_on

    async def on_items(self, agent, input_kwargs, next_handler):
        async for item in self.pass_on(input_kwargs, next_handler):
            yield item

    async def on_ask(self, agent, input_kwargs, next_handler):
        return await self.pass_on(input_kwargs, next_handler)


class Spy(Base):
    """Keeps what reached it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def on_items(self, agent, input_kwargs, next_handler):
        self.seen.append(input_kwargs)
        async for item in next_handler():
            yield item

    async def on_ask(self, agent, input_kwargs, next_handler):
        self.seen.append(input_kwargs)
        return await next_handler()


@pytest.fixture(params=["on_items", "on_ask"])
def hook(request: pytest.FixtureRequest) -> str:
    """Both shapes that pass values on keep the same law."""
    return str(request.param)


async def reached(hook: str, *middlewares: Base, **values: Any) -> Any:
    """Return the values that the core was entered with."""
    chains = compile_chains(Base, TABLE, {"on_items": items, "on_ask": ask}, middlewares)
    values = values or {"a": 1, "b": 2}
    if hook == "on_ask":
        return await chains.on_ask(Log(), **values)
    [item] = [item async for item in chains.on_items(Log(), **values)]
    return item


def set_in_place(key: str, value: Any) -> Layer:
    def pass_on(input_kwargs, next_handler):
        input_kwargs[key] = value
        return next_handler()

    return Layer(pass_on)


def test_the_shapes_under_test_are_those_that_pass_values_on() -> None:
    assert {spec.shape for spec in TABLE} == {"stream", "call"}


async def test_a_bare_next_handler_keeps_every_value(hook: str) -> None:
    assert await reached(hook, Layer(lambda values, go: go())) == {"a": 1, "b": 2}


async def test_passing_all_of_input_kwargs_keeps_every_value(hook: str) -> None:
    assert await reached(hook, Layer(lambda values, go: go(**values))) == {"a": 1, "b": 2}


async def test_one_override_leaves_the_other_values_alone(hook: str) -> None:
    assert await reached(hook, Layer(lambda values, go: go(b=20))) == {"a": 1, "b": 20}


async def test_an_override_may_stand_beside_the_values_that_came_in(hook: str) -> None:
    assert await reached(hook, Layer(lambda values, go: go(**{**values, "a": 10}))) == {"a": 10, "b": 2}


async def test_none_is_a_value_like_any_other(hook: str) -> None:
    assert await reached(hook, Layer(lambda values, go: go(a=None))) == {"a": None, "b": 2}


async def test_an_inner_override_keeps_what_an_outer_layer_changed(hook: str) -> None:
    outer, inner = Layer(lambda values, go: go(a=10)), Layer(lambda values, go: go(b=20))
    assert await reached(hook, outer, inner) == {"a": 10, "b": 20}


async def test_the_layer_nearest_the_core_has_the_last_word(hook: str) -> None:
    assert await reached(hook, Layer(lambda _, go: go(a=10)), Layer(lambda _, go: go(a=11))) == {"a": 11, "b": 2}


async def test_an_in_place_change_is_passed_on_by_a_bare_next_handler(hook: str) -> None:
    assert await reached(hook, set_in_place("a", 10)) == {"a": 10, "b": 2}


async def test_an_in_place_change_and_an_override_come_together(hook: str) -> None:
    def pass_on(input_kwargs, next_handler):
        input_kwargs["a"] = 10
        return next_handler(b=20)

    assert await reached(hook, Layer(pass_on)) == {"a": 10, "b": 20}


async def test_an_in_place_change_is_seen_by_inner_layers_and_by_nobody_else(hook: str) -> None:
    outer, inner = Spy(), Spy()
    given = {"a": 1, "b": 2}
    await reached(hook, outer, set_in_place("a", 10), inner, **given)
    assert (outer.seen, inner.seen) == ([{"a": 1, "b": 2}], [{"a": 10, "b": 2}])
    assert given == {"a": 1, "b": 2}


async def test_every_layer_has_a_dict_of_its_own(hook: str) -> None:
    spies = [Spy(), Spy(), Spy()]
    await reached(hook, *spies)
    assert len({id(spy.seen[0]) for spy in spies}) == 3


class Twice(Base):
    """Calls twice, with an override the first time only."""

    async def on_items(self, agent, input_kwargs, next_handler):
        async for _ in next_handler(a=10):
            pass
        async for item in next_handler():
            yield item

    async def on_ask(self, agent, input_kwargs, next_handler):
        await next_handler(a=10)
        return await next_handler()


async def test_an_override_holds_for_that_one_call(hook: str) -> None:
    inner = Spy()
    assert await reached(hook, Twice(), inner) == {"a": 1, "b": 2}
    assert inner.seen == [{"a": 10, "b": 2}, {"a": 1, "b": 2}]


async def test_what_an_inner_layer_changes_in_place_is_gone_at_the_next_call(hook: str) -> None:
    assert await reached(hook, Twice(), set_in_place("b", 20), last := Spy()) == {"a": 1, "b": 20}
    assert last.seen == [{"a": 10, "b": 20}, {"a": 1, "b": 20}]
    assert last.seen[0] is not last.seen[1]


async def test_the_values_are_shared_not_copied(hook: str) -> None:
    value = ["a list"]
    assert (await reached(hook, Layer(lambda _, go: go()), a=value, b=2))["a"] is value


async def test_an_in_place_change_between_two_calls_reaches_the_second(hook: str) -> None:
    class Change(Base):
        async def on_items(self, agent, input_kwargs, next_handler):
            async for _ in next_handler():
                input_kwargs["a"] = 10
            async for item in next_handler():
                yield item

        async def on_ask(self, agent, input_kwargs, next_handler):
            await next_handler()
            input_kwargs["a"] = 10
            return await next_handler()

    assert await reached(hook, Change()) == {"a": 10, "b": 2}


# Wrong keys


class Misspelt(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler(tool_choise=None):
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(message=[])


async def test_an_unknown_key_is_named_with_its_middleware_its_hook_and_the_allowed_keys() -> None:
    with pytest.raises(ChainError) as stream:
        await texts(enter(compiled(Misspelt()), "on_reasoning", Log()))
    assert str(stream.value) == (
        "Misspelt.on_reasoning passed the unknown key 'tool_choise' to next_handler() (did you mean 'tool_choice'?): "
        "on_reasoning passes on tool_choice"
    )
    with pytest.raises(ChainError) as call:
        await enter(compiled(Misspelt()), "on_model_call", Log())
    assert str(call.value) == (
        "Misspelt.on_model_call passed the unknown key 'message' to next_handler() (did you mean 'messages'?): "
        "on_model_call passes on messages, tools, tool_choice, current_model"
    )


async def test_a_key_like_no_other_gets_no_suggestion(hook: str) -> None:
    with pytest.raises(ChainError, match=rf"^Layer.{hook} passed the unknown key 'zzz' to next_handler\(\): "):
        await reached(hook, Layer(lambda _, go: go(zzz=1)))


async def test_a_key_that_was_removed_is_named(hook: str) -> None:
    def pass_on(input_kwargs, next_handler):
        del input_kwargs["a"]
        return next_handler()

    with pytest.raises(ChainError) as caught:
        await reached(hook, Layer(pass_on))
    assert str(caught.value) == f"Layer.{hook} removed the key 'a' from its input_kwargs: {hook} passes on a, b"


async def test_a_key_that_was_removed_may_be_given_as_an_override(hook: str) -> None:
    def pass_on(input_kwargs, next_handler):
        return next_handler(a=input_kwargs.pop("a") + 1)

    assert await reached(hook, Layer(pass_on)) == {"a": 2, "b": 2}


async def test_a_key_that_was_put_into_input_kwargs_is_unknown_too(hook: str) -> None:
    with pytest.raises(ChainError, match="unknown key 'zzz'"):
        await reached(hook, set_in_place("zzz", 1))


async def test_of_two_middlewares_of_one_class_the_error_names_the_right_one() -> None:
    class Keyed(Misspelt):
        def __init__(self, key: str, wrong: bool) -> None:
            self.key, self.wrong = key, wrong

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler(**({"zzz": 1} if self.wrong else {}))

    with pytest.raises(ChainError, match=r"^Keyed \('second'\)\.on_model_call passed"):
        await enter(compiled(Keyed("first", False), Keyed("second", True)), "on_model_call", Log())


async def test_positional_values_are_refused(hook: str) -> None:
    with pytest.raises(TypeError, match="positional"):
        await reached(hook, Layer(lambda _, go: go(1)))


async def test_a_wrong_key_opens_nothing() -> None:
    agent = Log()
    with pytest.raises(ChainError):
        await texts(enter(compiled(Misspelt()), "on_reasoning", agent))
    assert agent == []
