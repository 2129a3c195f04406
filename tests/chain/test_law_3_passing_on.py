"""Law 3: what a layer leaves out keeps the value that reached it; its changes are seen further in only."""

from typing import Any

import pytest

from agentrt import AgentBase
from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.spec import HookSpec
from agentrt.errors import ChainContractError, ChainError
from agentrt.hooks import MiddlewareBase
from agentrt.message import AssistantMsg
from agentrt.types import ToolChoice
from tests.chain.helpers import STREAMS, Log, compile_with, enter, read_texts


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


async def values_at_core(hook: str, *middlewares: Base, **values: Any) -> Any:
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


def test_shapes_under_test_are_those_that_pass_values_on() -> None:
    assert {spec.shape for spec in TABLE} == {"stream", "call"}


async def test_next_handler_without_arguments_keeps_every_value(hook: str) -> None:
    assert await values_at_core(hook, Layer(lambda values, go: go())) == {"a": 1, "b": 2}


async def test_passing_all_of_input_kwargs_keeps_every_value(hook: str) -> None:
    assert await values_at_core(hook, Layer(lambda values, go: go(**values))) == {"a": 1, "b": 2}


async def test_one_override_leaves_the_other_values_alone(hook: str) -> None:
    assert await values_at_core(hook, Layer(lambda values, go: go(b=20))) == {"a": 1, "b": 20}


async def test_override_may_come_with_all_of_input_kwargs(hook: str) -> None:
    assert await values_at_core(hook, Layer(lambda values, go: go(**{**values, "a": 10}))) == {"a": 10, "b": 2}


async def test_none_is_a_value_like_any_other(hook: str) -> None:
    assert await values_at_core(hook, Layer(lambda values, go: go(a=None))) == {"a": None, "b": 2}


async def test_an_inner_override_keeps_what_an_outer_layer_changed(hook: str) -> None:
    outer, inner = Layer(lambda values, go: go(a=10)), Layer(lambda values, go: go(b=20))
    assert await values_at_core(hook, outer, inner) == {"a": 10, "b": 20}


async def test_override_of_the_innermost_layer_wins(hook: str) -> None:
    assert await values_at_core(hook, Layer(lambda _, go: go(a=10)), Layer(lambda _, go: go(a=11))) == {"a": 11, "b": 2}


async def test_in_place_change_is_passed_on_without_arguments(hook: str) -> None:
    assert await values_at_core(hook, set_in_place("a", 10)) == {"a": 10, "b": 2}


async def test_an_in_place_change_and_an_override_come_together(hook: str) -> None:
    def pass_on(input_kwargs, next_handler):
        input_kwargs["a"] = 10
        return next_handler(b=20)

    assert await values_at_core(hook, Layer(pass_on)) == {"a": 10, "b": 20}


async def test_in_place_change_is_seen_by_inner_layers_only(hook: str) -> None:
    outer, inner = Spy(), Spy()
    given = {"a": 1, "b": 2}
    await values_at_core(hook, outer, set_in_place("a", 10), inner, **given)
    assert (outer.seen, inner.seen) == ([{"a": 1, "b": 2}], [{"a": 10, "b": 2}])
    assert given == {"a": 1, "b": 2}


async def test_every_layer_has_a_dict_of_its_own(hook: str) -> None:
    spies = [Spy(), Spy(), Spy()]
    await values_at_core(hook, *spies)
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
    assert await values_at_core(hook, Twice(), inner) == {"a": 1, "b": 2}
    assert inner.seen == [{"a": 10, "b": 2}, {"a": 1, "b": 2}]


async def test_in_place_change_of_an_inner_layer_ends_with_its_call(hook: str) -> None:
    assert await values_at_core(hook, Twice(), set_in_place("b", 20), last := Spy()) == {"a": 1, "b": 20}
    assert last.seen == [{"a": 10, "b": 20}, {"a": 1, "b": 20}]
    assert last.seen[0] is not last.seen[1]


async def test_the_values_are_shared_not_copied(hook: str) -> None:
    value = ["a list"]
    assert (await values_at_core(hook, Layer(lambda _, go: go()), a=value, b=2))["a"] is value


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

    assert await values_at_core(hook, Change()) == {"a": 10, "b": 2}


# Wrong keys


class Misspelt(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler(tool_choise=None):
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(message=[])


async def test_unknown_key_error_names_layer_hook_and_allowed_keys() -> None:
    with pytest.raises(ChainError) as stream:
        await read_texts(enter(compile_with(Misspelt()), "on_reasoning", Log()))
    assert str(stream.value) == (
        "Misspelt.on_reasoning passed the unknown key 'tool_choise' to next_handler() (did you mean 'tool_choice'?): "
        "on_reasoning passes on tool_choice"
    )
    with pytest.raises(ChainError) as call:
        await enter(compile_with(Misspelt()), "on_model_call", Log())
    assert str(call.value) == (
        "Misspelt.on_model_call passed the unknown key 'message' to next_handler() (did you mean 'messages'?): "
        "on_model_call passes on messages, tools, tool_choice, current_model"
    )


async def test_a_key_under_another_name_is_refused() -> None:
    class Rename(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            input_kwargs["message"] = input_kwargs.pop("messages")
            return await next_handler(**input_kwargs)

    with pytest.raises(ChainError, match=r"Rename\.on_model_call passed the unknown key 'message'"):
        await enter(compile_with(Rename()), "on_model_call", Log())


async def test_key_unlike_any_other_gets_no_suggestion(hook: str) -> None:
    with pytest.raises(ChainError, match=rf"^Layer.{hook} passed the unknown key 'zzz' to next_handler\(\): "):
        await values_at_core(hook, Layer(lambda _, go: go(zzz=1)))


async def test_a_key_that_was_removed_is_named(hook: str) -> None:
    def pass_on(input_kwargs, next_handler):
        del input_kwargs["a"]
        return next_handler()

    with pytest.raises(ChainError) as caught:
        await values_at_core(hook, Layer(pass_on))
    assert str(caught.value) == f"Layer.{hook} removed the key 'a' from its input_kwargs: {hook} passes on a, b"


async def test_a_key_that_was_removed_may_be_given_as_an_override(hook: str) -> None:
    def pass_on(input_kwargs, next_handler):
        return next_handler(a=input_kwargs.pop("a") + 1)

    assert await values_at_core(hook, Layer(pass_on)) == {"a": 2, "b": 2}


async def test_unknown_key_put_into_input_kwargs_is_refused(hook: str) -> None:
    with pytest.raises(ChainError, match="unknown key 'zzz'"):
        await values_at_core(hook, set_in_place("zzz", 1))


async def test_error_names_the_right_one_of_two_of_the_same_class() -> None:
    class Keyed(Misspelt):
        def __init__(self, key: str, wrong: bool) -> None:
            self.key, self.wrong = key, wrong

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler(**({"zzz": 1} if self.wrong else {}))

    with pytest.raises(ChainError, match=r"^Keyed \('second'\)\.on_model_call passed"):
        await enter(compile_with(Keyed("first", False), Keyed("second", True)), "on_model_call", Log())


async def test_wrong_key_opens_no_stream() -> None:
    agent = Log()
    with pytest.raises(ChainError):
        await read_texts(enter(compile_with(Misspelt()), "on_reasoning", agent))
    assert agent == []


# Wrong calls


async def test_positional_dict_error_names_layer_hook_and_remedy(hook: str) -> None:
    with pytest.raises(ChainError) as caught:
        await values_at_core(hook, Layer(lambda values, go: go(values)))
    text = str(caught.value)
    assert text.startswith(f"Layer.{hook} called next_handler() with the positional value {{'a': 1, 'b': 2}}: ")
    assert "next_handler(**input_kwargs)" in text


class Misuse(MiddlewareBase):
    """Uses `next_handler` of a stream hook in a way that a test wants."""

    def __init__(self, use: Any) -> None:
        self.use = use

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in self.use(next_handler):
            yield item


async def iterate(next_handler: Any) -> Any:
    async for item in next_handler:
        yield item


async def await_handler(next_handler: Any) -> Any:
    yield await next_handler


async def loop_over(next_handler: Any) -> Any:
    for item in next_handler:
        yield item


@pytest.mark.parametrize("use", [iterate, await_handler, loop_over])
async def test_uncalled_next_handler_error_names_layer_and_remedy(use: Any) -> None:
    with pytest.raises(ChainError) as caught:
        await read_texts(enter(compile_with(Misuse(use)), "on_reasoning", Log()))
    assert str(caught.value) == (
        "Misuse.on_reasoning did not call next_handler: write "
        "`async for item in next_handler(**input_kwargs): yield item`"
    )


class AwaitsAStream(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        yield await next_handler(**input_kwargs)


class LoopsOverAStream(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        for item in next_handler(**input_kwargs):
            yield item


class AwaitsNoCall(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler


class IteratesOverNoCall(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return [item async for item in next_handler]


class IteratesOverACall(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        call = next_handler(**input_kwargs)
        try:
            return [item async for item in call]
        finally:
            call.close()


async def notes_of_error(layer: MiddlewareBase, hook: str) -> list[str]:
    """Return the notes of the `TypeError` that Python has raised in the layer."""
    with pytest.raises(TypeError) as caught:
        entered = enter(compile_with(layer), hook, Log())
        await (entered if hook == "on_model_call" else read_texts(entered))
    return list(caught.value.__notes__)


@pytest.mark.parametrize("layer", [AwaitsAStream, LoopsOverAStream], ids=lambda layer: layer.__name__)
async def test_awaited_stream_error_names_layer_hook_and_remedy(layer: Any) -> None:
    [note] = await notes_of_error(layer(), "on_reasoning")
    assert note.startswith(f"agentrt: raised by {layer.__name__} in on_reasoning (")
    assert note.endswith("write `async for item in next_handler(**input_kwargs): yield item`")


@pytest.mark.parametrize(
    "layer", [AwaitsNoCall, IteratesOverNoCall, IteratesOverACall], ids=lambda layer: layer.__name__
)
async def test_iterated_call_error_names_layer_hook_and_remedy(layer: Any) -> None:
    [note] = await notes_of_error(layer(), "on_model_call")
    assert note.startswith(f"agentrt: raised by {layer.__name__} in on_model_call (")
    assert note.endswith("write `return await next_handler(**input_kwargs)`")


async def test_other_type_error_gets_no_remedy() -> None:
    class Adds(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return "1" + 1

    [note] = await notes_of_error(Adds(), "on_model_call")
    assert note.endswith(")")


async def test_returned_next_handler_is_an_error_with_remedy() -> None:
    class Returns(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return next_handler

    with pytest.raises(
        ChainContractError, match=r"^Returns\.on_model_call returned next_handler itself: write `return"
    ):
        await enter(compile_with(Returns()), "on_model_call", Log())


async def test_yielded_stream_error_says_how_to_pass_it_on() -> None:
    class Yields(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield next_handler(**input_kwargs)

    with pytest.raises(ChainContractError, match="its layers are Yields: a stream is passed on item by item, with"):
        await read_texts(enter(compile_with(Yields()), "on_reasoning", Log()))


# Wrong values


class Passes(MiddlewareBase):
    """Passes values on: as overrides, among all values, or by changing those that came."""

    def __init__(self, how: str, **values: Any) -> None:
        self.how, self.values = how, values

    def _override(self, input_kwargs: dict[str, Any]) -> dict[str, Any]:
        if self.how == "override":
            return self.values
        if self.how == "in place":
            input_kwargs.update(self.values)
        return {**input_kwargs, **self.values}

    async def _stream(self, agent, input_kwargs, next_handler):
        async for item in next_handler(**self._override(input_kwargs)):
            yield item

    async def _call(self, agent, input_kwargs, next_handler):
        return await next_handler(**self._override(input_kwargs))

    on_reply = on_reasoning = on_acting = _stream
    on_model_call = on_check_permission = on_observe = on_print = on_compress_context = _call


async def pass_through(layer: MiddlewareBase, hook: str, *inner: MiddlewareBase) -> Any:
    entered = enter(compile_with(layer, *inner), hook, Log())
    return await (read_texts(entered) if hook in STREAMS else entered)


@pytest.mark.parametrize("how", ["override", "all", "in place"])
@pytest.mark.parametrize(
    ("hook", "key", "value", "wanted"),
    [
        ("on_reply", "inputs", 1, "str or Msg or list or "),
        ("on_reasoning", "tool_choice", 1, "ToolChoice or None"),
        ("on_model_call", "messages", "hi", "list"),
        ("on_model_call", "messages", None, "list"),
        ("on_model_call", "tool_choice", ["none"], "ToolChoice or None"),
        ("on_model_call", "current_model", "openai:x", "ChatModelBase"),
        ("on_acting", "tool_call", {"name": "add"}, "ToolCallBlock"),
        ("on_check_permission", "tool_input", "{}", "dict"),
        ("on_compress_context", "instructions", 1, "str or None"),
        ("on_observe", "msg", 1, "str or Msg or list or None"),
        ("on_print", "last", "yes", "bool"),
    ],
)
async def test_wrong_type_error_names_layer_hook_key_and_type(
    how: str, hook: str, key: str, value: Any, wanted: str
) -> None:
    with pytest.raises(ChainError) as caught:
        await pass_through(Passes(how, **{key: value}), hook)
    text = str(caught.value)
    assert text.startswith(f"Passes.{hook} passed {key}={value!r} to next_handler(), of type {type(value).__name__}: ")
    assert f"{key} must be {wanted}" in text


async def test_tools_that_are_not_a_list_name_layer_hook_and_key() -> None:
    with pytest.raises(ChainError) as caught:
        await pass_through(Passes("override", tools={"name": "add"}), "on_model_call")
    assert str(caught.value) == (
        "Passes.on_model_call passed tools={'name': 'add'} to next_handler(), of type dict: "
        "tools must be a list of JSON schemas and ToolBase instances, not {'name': 'add'}"
    )


async def test_wrong_type_is_refused_before_an_inner_layer_sees_it() -> None:
    seen: list[Any] = []

    class Sees(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            seen.append(input_kwargs)
            return await next_handler()

    with pytest.raises(ChainError):
        await pass_through(Passes("override", messages="hi"), "on_model_call", Sees())
    assert seen == []


async def test_wrong_type_is_refused_after_right_ones_have_passed() -> None:
    layer = Passes("override")
    chains = compile_with(layer)
    for values in ({}, {"messages": []}, {"tool_choice": ToolChoice("none")}):
        layer.values = values
        await enter(chains, "on_model_call", Log())
    layer.values = {"messages": "hi"}
    with pytest.raises(ChainError):
        await enter(chains, "on_model_call", Log())


async def test_wrong_value_given_at_entry_is_not_blamed_on_a_layer() -> None:
    seen = []

    async def observe(agent: Log, msg: Any) -> None:
        seen.append(msg)

    await enter(compile_with(Passes("all"), on_observe=observe), "on_observe", Log(), msg=1)
    assert seen == [1]


@pytest.mark.parametrize("how", ["override", "all", "in place"])
@pytest.mark.parametrize("hook", ["on_reasoning", "on_model_call"])
async def test_str_mode_becomes_a_tool_choice_for_inner_layers(hook: str, how: str) -> None:
    seen: list[Any] = []

    class Sees(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            seen.append(input_kwargs["tool_choice"])
            async for item in next_handler():
                yield item

        async def on_model_call(self, agent, input_kwargs, next_handler):
            seen.append(input_kwargs["tool_choice"])
            return await next_handler()

    await pass_through(Passes(how, tool_choice="none"), hook, Sees())
    assert seen == [ToolChoice("none")]


async def test_values_of_a_custom_table_may_have_any_type() -> None:
    class Echo(AgentBase):
        async def reply(self, inputs, tool_choice=None):
            return AssistantMsg(self.name, f"{inputs} {tool_choice}")

    class Change(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(inputs=1, tool_choice=2):
                yield item

    answer = await Echo(middlewares=[Change()]).reply("hi")
    assert answer.get_text_content() == "1 2"
