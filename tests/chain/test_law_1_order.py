"""Law 1: the first middleware listed is outermost; items are seen by the innermost first; transformers run in order."""

from types import MappingProxyType
from typing import Any

import pytest

from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.spec import HookSpec
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.types import ChatResponse
from tests.chain.helpers import CORES, STREAMS, Log, compile_with, enter, read_texts, response, stream_model, text_of


class Tell(MiddlewareBase):
    """Writes down all that it sees, in every hook."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def _tell(self, agent, input_kwargs, next_handler):
        agent.append(f"{self.name} before")
        async for item in next_handler(**input_kwargs):
            agent.append(f"{self.name} sees {text_of(item)}")
            yield item
        agent.append(f"{self.name} after")

    on_reply = on_reasoning = on_acting = _tell

    async def on_model_call(self, agent, input_kwargs, next_handler):
        agent.append(f"{self.name} before")
        result = await next_handler(**input_kwargs)
        agent.append(f"{self.name} after")
        return result if isinstance(result, ChatResponse) else self._relay(agent, result)

    async def _relay(self, agent, stream):
        async for item in stream:
            agent.append(f"{self.name} sees {text_of(item)}")
            yield item

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} {self.name}"


@pytest.mark.parametrize("hook", STREAMS)
async def test_before_code_runs_inwards_items_and_after_code_outwards(hook: str, agent: Log) -> None:
    chains = compile_with(Tell("1"), Tell("2"), Tell("3"))
    async for item in enter(chains, hook, agent):
        agent.append(f"consumer gets {text_of(item)}")
    seen = [f"{who} {x}" for x in "abc" for who in ("3 sees", "2 sees", "1 sees", "consumer gets")]
    assert agent == [
        *("1 before", "2 before", "3 before", "core opens"),
        *seen,
        *("core closes", "3 after", "2 after", "1 after"),
    ]


async def test_a_call_runs_inwards_and_its_result_outwards(agent: Log) -> None:
    result = await enter(compile_with(Tell("1"), Tell("2")), "on_model_call", agent)
    assert agent == ["1 before", "2 before", "core", "2 after", "1 after"]
    assert text_of(result) == "answer"


async def test_responses_of_a_stream_reach_the_innermost_layer_first(agent: Log) -> None:
    stream = await enter(compile_with(Tell("1"), Tell("2"), on_model_call=stream_model), "on_model_call", agent)
    assert agent == ["1 before", "2 before", "2 after", "1 after"]
    agent.clear()
    assert await read_texts(stream) == ["a", "b", "c"]
    assert agent == ["core opens", *(f"{number} sees {x}" for x in "abc" for number in "21"), "core closes"]


async def test_transformers_run_from_left_to_right() -> None:
    assert await enter(compile_with(Tell("1"), Tell("2"), Tell("3")), "on_system_prompt", Log()) == "prompt 1 2 3"


async def test_the_core_of_a_transformer_runs_before_every_layer() -> None:
    async def prompt(agent: Log, current_prompt: str) -> str:
        return current_prompt.upper()

    chains = compile_with(Tell("one"), on_system_prompt=prompt)
    assert await enter(chains, "on_system_prompt", Log(), current_prompt="core") == "CORE one"


async def test_layer_that_overrides_one_hook_is_in_no_other_chain(agent: Log) -> None:
    class Middle(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            agent.append("middle")
            async for item in next_handler():
                yield item

    chains = compile_with(Tell("1"), Middle(), Tell("2"))
    await read_texts(enter(chains, "on_reasoning", agent))
    assert agent[:4] == ["1 before", "middle", "2 before", "core opens"]
    agent.clear()
    await read_texts(enter(chains, "on_acting", agent))
    assert agent[:3] == ["1 before", "2 before", "core opens"]


class WithPrint(MiddlewareBase):
    """A base with one hook more, as a later version of the runtime would have it."""

    def on_print(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return next_handler(**input_kwargs)


ON_PRINT = HookSpec("on_print", "call", ("msg", "last"), (), None, "showing one message")


async def test_hook_is_added_by_one_line_in_the_table(agent: Log) -> None:
    class Upper(WithPrint):
        async def on_print(self, agent, input_kwargs, next_handler):
            await next_handler(msg=input_kwargs["msg"].upper())

    async def show(agent: Log, msg: str, last: bool) -> None:
        agent.append(f"{msg} {last}")

    chains = compile_chains(WithPrint, (*HOOKS, ON_PRINT), {**CORES, "on_print": show}, [Upper()])
    await chains.on_print(agent, msg="hello", last=True)
    assert agent == ["HELLO True"]
    assert await read_texts(chains.on_reasoning(agent, tool_choice=None)) == ["a", "b", "c"]


async def test_another_table_has_only_its_own_hooks() -> None:
    class Base:
        """Not even `MiddlewareBase` is needed, only its class attributes."""

        key = position = None
        rewrites = ()
        wraps = wrapped_by = requires = ()
        limits = MappingProxyType({})

        def on_line(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return next_handler(**input_kwargs)

    class Twice(Base):
        async def on_line(self, agent, input_kwargs, next_handler):
            async for line in next_handler():
                yield line
                yield line

    async def lines(agent: Log, path: str) -> Any:
        yield path

    table = (HookSpec("on_line", "stream", ("path",), (str,), None, "one line"),)
    chains = compile_chains(Base, table, {"on_line": lines}, [Twice(), Twice()])
    assert [line async for line in chains.on_line(Log(), path="x")] == ["x"] * 4


async def test_hook_without_a_core_has_no_entry_and_says_so() -> None:
    chains = compile_chains(MiddlewareBase, HOOKS, {"on_reasoning": CORES["on_reasoning"]}, [])
    with pytest.raises(AttributeError, match="'Chains' object has no attribute 'on_reply'"):
        _ = chains.on_reply


async def test_one_compiled_chain_serves_entries_that_overlap() -> None:
    chains = compile_with(Tell("1"))
    first, second = Log(), Log()
    one, other = enter(chains, "on_reasoning", first), enter(chains, "on_reasoning", second)
    assert text_of(await anext(one)) == "a"
    assert text_of(await anext(other)) == "a"
    await one.aclose()
    assert first == ["1 before", "core opens", "1 sees a", "core closes"]
    assert await read_texts(other) == ["b", "c"]


async def test_a_call_may_be_answered_with_another_value_at_each_layer() -> None:
    class Add(Tell):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return response(f"{text_of(await next_handler())} {self.name}")

    assert text_of(await enter(compile_with(Add("1"), Add("2")), "on_model_call", Log())) == "answer 2 1"
