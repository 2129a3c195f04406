"""A probe is told of every layer of a chain, whatever ends its call, and changes nothing for the chain."""

import logging
from typing import Any

import anyio
import pytest

from agentrt.chain import compile_chains
from agentrt.hooks import HOOKS, MiddlewareBase
from tests.chain.helpers import CORES, Guard, Log, compile_with, enter, entry_of, read_texts, stream_model

STREAMS = ["on_reply", "on_reasoning", "on_acting"]


class Recorder:
    """Writes down what it is told: the hook's layer, and "+" or the outcome."""

    def __init__(self) -> None:
        self.told: list[tuple[str | None, str]] = []

    def enter(self, call: Any) -> None:
        self.told.append((call.layer, "+"))

    def leave(self, call: Any, outcome: str) -> None:
        self.told.append((call.layer, outcome))

    def outcomes(self) -> dict[str | None, str]:
        """Return the last outcome of each layer, after a look at what was told."""
        depth = 0
        last: dict[str | None, str] = {}
        for layer, what in self.told:
            depth += 1 if what == "+" else -1
            assert depth >= 0
            if what != "+":
                last[layer] = what
        assert depth == 0
        return last


class Layer(Guard):
    """A guard whose key is its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.key = name


def compile_probed(probe: Any, *middlewares: Any, **cores: Any) -> Any:
    return compile_chains(MiddlewareBase, HOOKS, {**CORES, **cores}, middlewares, probe=probe)


def test_probe_leaves_hooks_without_layers_their_cores():
    chains = compile_probed(Recorder(), Layer("a"))
    assert entry_of(chains, "on_observe") is CORES["on_observe"]


@pytest.mark.parametrize("hook", [*STREAMS, "on_model_call"])
async def test_probe_sees_layers_nested_and_changes_no_item(hook: str):
    probe = Recorder()
    cores = {"on_model_call": stream_model}
    plain, probed = Log(), Log()
    stream = enter(compile_with(Layer("a"), Layer("b"), **cores), hook, plain)
    expected = await read_texts(await stream if hook == "on_model_call" else stream)
    stream = enter(compile_probed(probe, Layer("a"), Layer("b"), **cores), hook, probed)
    assert await read_texts(await stream if hook == "on_model_call" else stream) == expected
    assert probed == plain
    assert probe.outcomes() == dict.fromkeys(("a", "b", None), "returned")
    item = [("a", "+"), ("b", "+"), (None, "+"), (None, "paused"), ("b", "paused"), ("a", "paused")]
    told = probe.told
    assert any(told[start : start + 6] == item for start in range(len(told)))


class Fails(Layer):
    async def _guard(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
            raise ValueError("no")

    on_reply = on_reasoning = on_acting = _guard


class Answers(Layer):
    """Short-circuits with what the core would give."""

    async def _guard(self, agent, input_kwargs, next_handler):
        async for item in CORES["on_reply"](agent, None, None):
            yield item

    on_reply = _guard


async def test_every_end_of_a_call_is_told():
    probe = Recorder()
    with pytest.raises(ValueError, match="no") as raised:
        await read_texts(enter(compile_probed(probe, Layer("a"), Fails("b")), "on_reply", Log()))
    assert "Fails ('b') in on_reply" in raised.value.__notes__[0]
    assert probe.outcomes() == {"a": "raised", "b": "raised", None: "closed"}

    probe = Recorder()
    await read_texts(enter(compile_probed(probe, Answers("a"), Layer("b")), "on_reply", Log()))
    assert probe.outcomes() == {"a": "returned"}

    probe = Recorder()
    stream = enter(compile_probed(probe, Layer("a"), Layer("b")), "on_reply", Log())
    assert await anext(aiter(stream))
    await stream.aclose()
    assert probe.outcomes() == dict.fromkeys(("a", "b", None), "closed")

    async def hang(agent, tool_choice):
        await anyio.sleep_forever()
        yield

    probe = Recorder()
    with anyio.move_on_after(0.01):
        await read_texts(enter(compile_probed(probe, Layer("a"), on_reasoning=hang), "on_reasoning", Log()))
    assert probe.outcomes() == {"a": "cancelled", None: "cancelled"}


class Twice(MiddlewareBase):
    """Asks the model twice, and returns the second answer."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await next_handler()
        return await next_handler()


async def test_repeated_call_is_one_of_its_own_within_the_caller():
    calls: list[Any] = []

    class Callers(Recorder):
        def enter(self, call: Any) -> None:
            super().enter(call)
            calls.append(call)

    probe = Callers()
    await enter(compile_probed(probe, Twice(), Layer("b")), "on_model_call", Log())
    assert probe.outcomes() == {"Twice": "returned", "b": "returned", None: "returned"}
    first, *_ = calls
    inner = [call for call in calls if call.layer == "b"]
    assert len({id(call) for call in inner}) == 2
    assert {call.caller for call in inner} == {first}


async def test_probe_that_fails_is_logged_once_and_changes_nothing(caplog: pytest.LogCaptureFixture):
    class Broken:
        def enter(self, call: Any) -> None:
            raise ValueError("secret")

        leave = enter

    def leave(call: Any, outcome: str) -> None:
        raise KeyError("secret")

    broken = Broken()
    broken.leave = leave  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR, "agentrt"):
        assert await read_texts(enter(compile_probed(broken, Layer("a")), "on_reply", Log())) == ["a", "b", "c"]
        assert await enter(compile_probed(broken, Layer("a")), "on_system_prompt", Log()) == "prompt"
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == len(set(logged)) * 2 == 4  # the two points of the chain: the layer's, and the core's
    assert "secret" not in caplog.text
