"""Law 2: a hook that no middleware overrides has no chain, and the class decides what is overridden."""

from typing import Any

import pytest

from agentrt._runtime.chain.spec import HookSpec
from agentrt.hooks import HOOKS, MiddlewareBase
from tests.chain.helpers import CORES, Log, compile_with, enter, entry_of, read_texts

NAMES = [spec.name for spec in HOOKS if spec.shape != "observer"]


class Reply(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        agent.append("layer")
        async for item in next_handler():
            yield item


async def stream(self, agent, input_kwargs, next_handler):
    async for item in next_handler():
        yield item


async def call(self, agent, input_kwargs, next_handler):
    return await next_handler()


def transformer(spec: HookSpec) -> Any:
    namespace: dict[str, Any] = {}
    exec(f"async def change(self, {', '.join(spec.parameters)}):\n    return {spec.keys[1]}", namespace)
    return namespace["change"]


def layer_on(spec: HookSpec) -> MiddlewareBase:
    """Return a layer that overrides this hook, and passes everything on."""
    hook = transformer(spec) if spec.shape == "transformer" else {"stream": stream, "call": call}[spec.shape]
    return type("Passing", (MiddlewareBase,), {spec.name: hook})()


ONE_EACH = {spec.name: layer_on(spec) for spec in HOOKS if spec.shape != "observer"}


def is_core(middleware: MiddlewareBase, hook: str) -> bool:
    return entry_of(compile_with(middleware), hook) is CORES[hook]


@pytest.mark.parametrize("hook", NAMES)
def test_without_middlewares_every_entry_is_its_core(hook: str) -> None:
    assert entry_of(compile_with(), hook) is CORES[hook]


@pytest.mark.parametrize("hook", NAMES)
def test_layer_on_one_hook_leaves_other_entries_their_cores(hook: str) -> None:
    chains = compile_with(ONE_EACH[hook])
    assert [name for name in NAMES if entry_of(chains, name) is not CORES[name]] == [hook]


@pytest.mark.parametrize("hook", NAMES)
def test_a_middleware_that_overrides_nothing_costs_nothing(hook: str) -> None:
    class ToolsOnly(MiddlewareBase):
        def list_tools(self):
            return [len]

    assert is_core(ToolsOnly(), hook)


async def test_a_hook_from_a_mixin_counts() -> None:
    class Mixin:
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            agent.append("mixin")
            async for item in next_handler():
                yield item

    class Mixed(Mixin, MiddlewareBase):
        pass

    agent = Log()
    await read_texts(enter(compile_with(Mixed()), "on_reasoning", agent))
    assert agent[0] == "mixin"


def test_an_inherited_hook_counts() -> None:
    class Child(Reply):
        pass

    assert not is_core(Child(), "on_reply")


def test_mixin_listed_after_the_base_class_is_hidden_by_it() -> None:
    class Mixin:
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield

    class Hidden(MiddlewareBase, Mixin):
        pass

    assert is_core(Hidden(), "on_reply")


def test_subclass_undoes_an_override_with_the_function_of_base() -> None:
    class Off(Reply):
        on_reply = MiddlewareBase.on_reply

    assert is_core(Off(), "on_reply")


async def test_overrides_are_determined_once_when_chains_are_built() -> None:
    class Late(MiddlewareBase):
        pass

    chains = compile_with(Late())
    Late.on_reply = Reply.on_reply
    agent = Log()
    await read_texts(enter(chains, "on_reply", agent))
    assert "layer" not in agent
