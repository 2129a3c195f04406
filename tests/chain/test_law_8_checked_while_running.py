"""Law 8: what a hook must not produce is noticed where the chain ends, and reported with the hook and its layers."""

from typing import Any

import pytest

from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.spec import HookSpec
from agentrt.errors import ChainContractError, MissingTerminalError
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.types import ToolChunk
from tests.chain.helpers import CORES, STREAMS, Guard, Log, compile_with, enter, event, message, read_texts


class Yields(MiddlewareBase):
    """Yields what a test wants instead of what the core yields."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    async def _yield(self, agent, input_kwargs, next_handler):
        for item in self.items:
            yield item

    on_reply = on_reasoning = on_acting = _yield


class Returns(MiddlewareBase):
    """Returns what a test wants instead of what the core returns."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return self.result

    async def on_system_prompt(self, agent, current_prompt):
        return self.result


# Items


@pytest.mark.parametrize("hook", STREAMS)
async def test_wrong_item_error_names_the_hook_and_its_layers(hook: str) -> None:
    with pytest.raises(ChainContractError) as caught:
        await read_texts(enter(compile_with(Guard("1"), Yields("a text")), hook, Log()))
    text = str(caught.value)
    assert text.startswith(f"{hook} passes on ")
    assert text.endswith("but 'a text' came out of it; its layers are Guard > Yields")


async def test_wrong_item_error_names_the_types_that_may_flow() -> None:
    with pytest.raises(ChainContractError, match=r"^on_reply passes on AgentEvent or Msg, but None came"):
        await read_texts(enter(compile_with(Yields(None)), "on_reply", Log()))
    with pytest.raises(ChainContractError, match=r"^on_acting passes on ToolChunk or ToolResponse, but 1 came"):
        await read_texts(enter(compile_with(Yields(1)), "on_acting", Log()))


async def test_a_wrong_item_does_not_reach_the_consumer() -> None:
    stream = enter(compile_with(Yields(event("a"), "text", event("b"))), "on_reasoning", Log())
    assert (await anext(stream)).name == "a"
    with pytest.raises(ChainContractError):
        await anext(stream)


async def test_long_item_is_cut_in_the_error() -> None:
    with pytest.raises(ChainContractError) as caught:
        await read_texts(enter(compile_with(Yields("x" * 100_000)), "on_reasoning", Log()))
    assert len(str(caught.value)) < 500


async def test_layers_may_exchange_other_items_among_themselves() -> None:
    class Translate(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield event(item.upper())

    assert await read_texts(enter(compile_with(Translate(), Yields("a", "b")), "on_reasoning", Log())) == ["A", "B"]


async def test_subclass_of_an_item_type_may_flow() -> None:
    class Child(ToolChunk):
        pass

    stream = enter(compile_with(Yields(Child())), "on_acting", Log())
    assert isinstance(await anext(stream), Child)
    await stream.aclose()


async def test_keys_tell_middlewares_of_one_class_apart_in_errors() -> None:
    with pytest.raises(ChainContractError, match=r"its layers are Guard > Guard \('Guard#2'\) > Yields$"):
        await read_texts(enter(compile_with(Guard("1"), Guard("2"), Yields(0)), "on_reasoning", Log()))


# The last item


async def test_reply_without_its_message_is_an_error() -> None:
    with pytest.raises(MissingTerminalError) as caught:
        await read_texts(enter(compile_with(Guard("1"), Yields(event("a"))), "on_reply", Log()))
    text = str(caught.value)
    assert text.startswith("on_reply must end with one Msg, but its last item was CustomEvent(")
    assert "its layers are Guard > Yields: one of them did not pass on what next_handler() gave" in text


async def test_empty_acting_stream_is_an_error() -> None:
    with pytest.raises(MissingTerminalError, match=r"^on_acting must end with one ToolResponse, but nothing came; "):
        await read_texts(enter(compile_with(Yields()), "on_acting", Log()))


async def test_message_that_is_not_the_last_item_is_not_the_terminal() -> None:
    with pytest.raises(MissingTerminalError):
        await read_texts(enter(compile_with(Yields(message("a"), event("b"))), "on_reply", Log()))


async def test_items_before_a_missing_terminal_are_delivered() -> None:
    stream = enter(compile_with(Yields(event("a"), event("b"))), "on_reply", Log())
    assert [(await anext(stream)).name, (await anext(stream)).name] == ["a", "b"]
    with pytest.raises(MissingTerminalError):
        await anext(stream)


async def test_hook_without_a_terminal_may_end_with_anything() -> None:
    assert await read_texts(enter(compile_with(Yields()), "on_reasoning", Log())) == []
    assert await read_texts(enter(compile_with(Yields(message("a"))), "on_reasoning", Log())) == ["a"]


async def test_consumer_that_leaves_early_gets_no_missing_terminal() -> None:
    stream = enter(compile_with(Guard("1")), "on_reply", Log())
    await anext(stream)
    await stream.aclose()


# Results of calls


@pytest.mark.parametrize("result", [None, "text", 1, ["list"], (each for each in "sync")])
async def test_wrong_result_error_names_the_layer_that_returned_it(result: Any) -> None:
    with pytest.raises(ChainContractError) as caught:
        await enter(compile_with(Guard("1"), Returns(result)), "on_model_call", Log())
    assert str(caught.value) == (
        f"on_model_call must return ChatResponse or an async iterator of ChatResponse, but Returns returned {result!r}"
    )


async def test_wrong_result_of_the_core_is_blamed_on_the_core() -> None:
    async def call_model(agent: Log, **values: Any) -> Any:
        return "text"

    with pytest.raises(ChainContractError) as caught:
        await enter(compile_with(Guard("1"), on_model_call=call_model), "on_model_call", Log())
    assert str(caught.value).endswith(", but its core returned 'text'")


async def test_a_wrong_result_can_be_caught_by_the_layer_that_gets_it() -> None:
    class Catch(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            try:
                return await next_handler()
            except ChainContractError:
                agent.append("caught")
                raise

    agent = Log()
    with pytest.raises(ChainContractError):
        await enter(compile_with(Catch(), Returns(1)), "on_model_call", agent)
    assert agent == ["caught"]


async def test_wrong_result_error_names_the_right_one_of_one_class() -> None:
    class Maybe(MiddlewareBase):
        def __init__(self, key: str) -> None:
            self.key = key

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return "text" if self.key == "second" else await next_handler()

    with pytest.raises(ChainContractError) as caught:
        await enter(compile_with(Maybe("first"), Maybe("second")), "on_model_call", Log())
    assert str(caught.value).endswith(", but Maybe ('second') returned 'text'")


async def test_wrong_result_is_not_blamed_on_the_layer_that_gets_it() -> None:
    with pytest.raises(ChainContractError) as caught:
        await enter(compile_with(Guard("1"), Returns("text")), "on_model_call", Log())
    assert not any("Guard" in note for note in getattr(caught.value, "__notes__", []))


async def test_a_hook_that_returns_nothing_must_return_none() -> None:
    class Base(MiddlewareBase):
        def on_notice(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return next_handler(**input_kwargs)

    class Notice(Base):
        def __init__(self, result: Any) -> None:
            self.result = result

        async def on_notice(self, agent, input_kwargs, next_handler):
            return self.result

    async def notice(agent: Log, msg: str) -> None: ...

    spec = HookSpec("on_notice", "call", ("msg",), (), None, "taking something in")
    good = compile_chains(Base, [spec], {"on_notice": notice}, [Notice(None)])
    assert await good.on_notice(Log(), msg="x") is None
    bad = compile_chains(Base, [spec], {"on_notice": notice}, [Notice(1)])
    with pytest.raises(ChainContractError, match=r"^on_notice must return None, but Notice returned 1$"):
        await bad.on_notice(Log(), msg="x")


# Prompts


@pytest.mark.parametrize("value", [None, 1, b"bytes"])
async def test_prompt_that_is_not_a_str_names_its_layer(value: Any) -> None:
    with pytest.raises(ChainContractError) as caught:
        await enter(compile_with(Returns(value)), "on_system_prompt", Log())
    assert str(caught.value) == (
        f"on_system_prompt must return str, but Returns returned {value!r}: end it with `return current_prompt`"
    )


async def test_layer_never_sees_a_prompt_that_is_not_a_str() -> None:
    class Never(MiddlewareBase):
        async def on_system_prompt(self, agent, current_prompt):
            agent.append(current_prompt)
            return "text"

    agent = Log()
    with pytest.raises(ChainContractError):
        await enter(compile_with(Returns(None), Never()), "on_system_prompt", agent)
    assert agent == ["core"]


async def test_without_layers_nothing_is_checked() -> None:
    async def call_model(agent: Log, **values: Any) -> Any:
        return "text"

    chains = compile_chains(MiddlewareBase, HOOKS, {**CORES, "on_model_call": call_model}, [])
    assert await enter(chains, "on_model_call", Log()) == "text"
