"""Observers are told of every call of a layer, whatever ends it, and change nothing for the chain."""

import logging
from typing import Any

import anyio
import pytest

from agentrt._runtime.chain import layer_record
from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.layer_record import OBSERVED_LAYERS, LayerRecord
from agentrt.hooks import HOOKS, MiddlewareBase
from tests.chain.helpers import (
    CORES,
    Guard,
    Log,
    compile_with,
    enter,
    entry_of,
    event,
    read_texts,
    response,
    stream_model,
)

STREAMS = ["on_reply", "on_reasoning", "on_acting"]


class Recorder(MiddlewareBase):
    def __init__(self) -> None:
        self.records: list[LayerRecord] = []

    def on_layer(self, agent, record):
        self.records.append(record)

    def ends(self) -> dict[str | None, LayerRecord]:
        """Return the last end of each layer, after a look at what was told."""
        begun: dict[int, LayerRecord] = {}
        ended: dict[str | None, LayerRecord] = {}
        for record in self.records:
            if record.kind == "begin":
                assert record.parent is None or record.parent in begun
                begun[record.call_id] = record
            else:
                assert begun.pop(record.call_id).values is record.values
                ended[record.layer] = record
        assert not begun
        return ended

    def outcomes(self) -> dict[str | None, str | None]:
        return {layer: record.outcome for layer, record in self.ends().items()}


class Layer(Guard):
    """A guard whose key is its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.key = name


def compile_observed(*middlewares: Any, **cores: Any) -> Any:
    return compile_chains(MiddlewareBase, HOOKS, {**CORES, "on_layer": OBSERVED_LAYERS, **cores}, middlewares)


def test_hooks_without_layers_keep_their_cores():
    chains = compile_observed(Layer("a"), Recorder())
    assert entry_of(chains, "on_observe") is CORES["on_observe"]
    assert compile_observed(Layer("a")).on_layer is None


@pytest.mark.parametrize("hook", [*STREAMS, "on_model_call"])
async def test_layers_are_told_nested_and_no_item_changes(hook: str):
    recorder = Recorder()
    cores = {"on_model_call": stream_model}
    plain, observed = Log(), Log()
    stream = enter(compile_with(Layer("a"), Layer("b"), **cores), hook, plain)
    expected = await read_texts(await stream if hook == "on_model_call" else stream)
    stream = enter(compile_observed(Layer("a"), Layer("b"), recorder, **cores), hook, observed)
    assert await read_texts(await stream if hook == "on_model_call" else stream) == expected
    assert observed == plain
    assert recorder.outcomes() == dict.fromkeys(("a", "b", None), "returned")
    begun = [(record.layer, record.place) for record in recorder.records if record.kind == "begin"]
    assert begun == [("a", 0), ("b", 1), (None, 2)]
    assert len(recorder.records) == 6  # and none for an item
    assert all(record.result is not None for record in recorder.ends().values())


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
    recorder = Recorder()
    with pytest.raises(ValueError, match="no") as raised:
        await read_texts(enter(compile_observed(Layer("a"), Fails("b"), recorder), "on_reply", Log()))
    assert "Fails ('b') in on_reply" in raised.value.__notes__[0]
    assert recorder.outcomes() == {"a": "raised", "b": "raised", None: "closed"}

    recorder = Recorder()
    await read_texts(enter(compile_observed(Answers("a"), Layer("b"), recorder), "on_reply", Log()))
    assert recorder.outcomes() == {"a": "returned"}

    recorder = Recorder()
    stream = enter(compile_observed(Layer("a"), Layer("b"), recorder), "on_reply", Log())
    assert await anext(aiter(stream))
    await stream.aclose()
    assert recorder.outcomes() == dict.fromkeys(("a", "b", None), "closed")

    async def hang(agent, tool_choice):
        scope.cancel()
        await anyio.sleep_forever()
        yield

    recorder = Recorder()
    with anyio.CancelScope() as scope:
        await read_texts(enter(compile_observed(Layer("a"), recorder, on_reasoning=hang), "on_reasoning", Log()))
    assert recorder.outcomes() == {"a": "cancelled", None: "cancelled"}


class Twice(MiddlewareBase):
    """Asks the model twice, and returns the second answer."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await next_handler()
        return await next_handler()


async def test_repeated_call_is_one_of_its_own_within_its_parent():
    recorder = Recorder()
    await enter(compile_observed(Twice(), Layer("b"), recorder), "on_model_call", Log())
    assert recorder.outcomes() == {"Twice": "returned", "b": "returned", None: "returned"}
    first, *others = [record for record in recorder.records if record.kind == "begin"]
    inner = [record for record in others if record.layer == "b"]
    assert len({record.call_id for record in inner}) == 2
    assert {record.parent for record in inner} == {first.call_id}


class Replaces(MiddlewareBase):
    """Passes on another list of messages, and changes its own dict in place."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        input_kwargs["tool_choice"] = None
        input_kwargs["messages"] = ["new"]
        return await next_handler()


async def test_values_are_those_that_reached_each_layer():
    recorder = Recorder()
    await enter(compile_observed(Layer("a"), Replaces(), Layer("b"), recorder), "on_model_call", Log())
    values = {record.layer: record.values for record in recorder.records}
    assert values["a"]["messages"] is values["Replaces"]["messages"]
    assert values["b"]["messages"] == ["new"] != values["Replaces"]["messages"]
    assert values["b"]["messages"] is values[None]["messages"]
    results = {layer: record.result for layer, record in recorder.ends().items()}
    assert len(set(map(id, results.values()))) == 1


class Broken(MiddlewareBase):
    def on_layer(self, agent, record):
        raise ValueError("secret")


async def test_observer_that_fails_is_logged_once_and_hides_nothing(caplog: pytest.LogCaptureFixture):
    recorder = Recorder()
    chains = compile_observed(Layer("a"), Broken(), recorder)
    with caplog.at_level(logging.ERROR, "agentrt"):
        assert await read_texts(enter(chains, "on_reply", Log())) == ["a", "b", "c"]
        assert await enter(chains, "on_system_prompt", Log()) == "prompt"
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == ["Broken failed in on_layer"]
    assert "secret" not in caplog.text
    assert recorder.outcomes() == {"a": "returned", None: "returned"}


class Clock:
    """Time that only layers and cores spend."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    async def reason(self, agent, tool_choice):
        for name in "abc":
            self.now += 100
            yield event(name)

    async def stream_model(self, agent, messages, tools, tool_choice, current_model):
        async def pieces():
            for name in "abc":
                self.now += 100
                yield response(name, is_last=name == "c")

        return pieces()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(layer_record, "perf_counter_ns", clock)
    return clock


def times_of(recorder: Recorder) -> dict[str | None, tuple[int, int]]:
    return {layer: (record.own_ns, record.total_ns) for layer, record in recorder.ends().items()}


async def test_own_time_is_without_an_inner_stream_that_is_still_open(clock: Clock):
    class Stops(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                clock.now += 7
                yield item
                raise ValueError("no")

    recorder = Recorder()
    with pytest.raises(ValueError, match="no"):
        await read_texts(enter(compile_observed(Stops(), recorder, on_reasoning=clock.reason), "on_reasoning", Log()))
    assert times_of(recorder) == {"Stops": (7, 107), None: (100, 100)}


async def test_layer_that_reads_part_of_a_stream_counts_the_part_once(clock: Clock):
    class Peeks(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            stream = await next_handler()
            await anext(aiter(stream))
            clock.now += 7
            return stream

    recorder = Recorder()
    chains = compile_observed(Layer("a"), Peeks(), recorder, on_model_call=clock.stream_model)
    assert await read_texts(await enter(chains, "on_model_call", Log())) == ["b", "c"]
    assert times_of(recorder) == {"a": (0, 307), "Peeks": (7, 307), None: (300, 300)}


async def test_own_time_is_never_negative(clock: Clock):
    class Keeps(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            self.kept = await next_handler()
            return self.answer()

        async def answer(self):
            clock.now += 7
            yield response("x")

    recorder, keeps = Recorder(), Keeps()
    chains = compile_observed(keeps, recorder, on_model_call=clock.stream_model)
    stream = await enter(chains, "on_model_call", Log())
    assert await read_texts(keeps.kept) == ["a", "b", "c"]  # as a background task does, while the layer waits
    assert await read_texts(stream) == ["x"]
    assert times_of(recorder) == {"Keeps": (0, 7), None: (300, 300)}
