"""LayerTimes: each layer's own time, exactly, by a clock that the layers move."""

import pickle
from itertools import pairwise
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt._runtime.chain import layer_record
from agentrt.errors import ConfigError, UnknownKeywordError
from agentrt.message import ToolCallBlock
from agentrt.middleware import LayerTimes
from agentrt.model import ScriptedChatModel

READER = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Delay(MiddlewareBase):
    """Takes so long before, after each item, and at the end."""

    def __init__(self, key: str, clock: Clock, before: int, item: int, after: int) -> None:
        self.key, self.clock, self.delays = key, clock, (before, item, after)

    def own_time(self, items: int) -> int:
        before, item, after = self.delays
        return before + items * item + after

    async def on_reply(self, agent, input_kwargs, next_handler):
        before, item_delay, after = self.delays
        self.clock.now += before
        async for item in next_handler():
            self.clock.now += item_delay
            yield item
        self.clock.now += after

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in self.on_reply(agent, input_kwargs, next_handler):
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.clock.now += self.delays[0]
        result = await next_handler()
        self.clock.now += self.delays[2]
        return self._relay(result) if hasattr(result, "__aiter__") else result

    async def _relay(self, stream: Any):
        async for chunk in stream:
            self.clock.now += self.delays[1]
            yield chunk

    async def on_system_prompt(self, agent, current_prompt):
        self.clock.now += self.delays[0]
        return current_prompt


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(layer_record, "perf_counter_ns", clock)
    return clock


def make_agent(clock: Clock, stream: bool) -> tuple[Agent, LayerTimes, list[Delay]]:
    layers = [Delay("a", clock, 3, 5, 7), Delay("b", clock, 11, 13, 17), Delay("c", clock, 19, 23, 29)]
    times = LayerTimes()
    model = ScriptedChatModel(["one two three four"] * 3, stream=stream)
    return Agent("assistant", "", model, middlewares=[*layers, times]), times, layers


@pytest.mark.parametrize("stream", [False, True])
async def test_own_time_of_a_layer_is_exact_with_a_slow_reader(clock: Clock, stream: bool):
    agent, times, layers = make_agent(clock, stream)
    items = 0
    async for _ in agent.reply_stream("Hi", reply_id="r1", yield_final_msg=True):
        items += 1
        clock.now += READER
    found = {(time.hook, time.layer): time for time in times.of("r1")}
    for layer in layers:
        before, item, after = layer.delays
        for hook in ("on_reply", "on_reasoning"):
            time = found[hook, layer.key]
            # The number of items is the same for all layers of a hook.
            count, rest = divmod(time.own_ns - before - after, item)
            assert rest == 0
            assert count == (items if hook == "on_reply" else count)
            assert (time.calls, time.active, time.outcome) == (1, 0, "returned")
        model_time = found["on_model_call", layer.key].own_ns - before - after
        assert model_time % item == 0
        assert (model_time > 0) is stream
        assert found["on_system_prompt", layer.key].own_ns == before * found["on_system_prompt", layer.key].calls
    outermost = found["on_reply", "a"]
    assert outermost.total_ns == clock.now - items * READER
    for hook in ("on_reply", "on_reasoning", "on_model_call"):
        chain = [time for time in times.of("r1") if time.hook == hook]
        assert [time.layer for time in chain] == ["a", "b", "c", None]
        assert sum(time.own_ns for time in chain) == chain[0].total_ns
        assert all(outer.total_ns - inner.total_ns == outer.own_ns for outer, inner in pairwise(chain))


async def test_times_are_read_while_a_reply_runs_and_after_it_was_left(clock: Clock):
    agent, times, _ = make_agent(clock, stream=True)
    async with agent.reply_stream("Hi", reply_id="r1") as events:
        await anext(aiter(events))
        clock.now += READER
        [core] = [time for time in times.of("r1") if (time.hook, time.layer) == ("on_reply", None)]
        assert (core.active, core.outcome) == (1, None)
        assert all(time.total_ns < READER for time in times.of("r1"))
    assert {time.outcome for time in times.of("r1")} == {"closed"}
    assert times.of("other") == []
    assert times.of("r1", "other-session") == []


async def test_times_of_the_newest_replies_are_kept():
    times = LayerTimes(max_replies=2)
    agent = Agent("assistant", "", ScriptedChatModel(["one"] * 3), middlewares=[Delay("a", Clock(), 0, 0, 0), times])
    for reply_id in ("r1", "r2", "r3"):
        await agent.reply("Hi", reply_id=reply_id)
    assert times.replies() == ["r2", "r3"]
    assert pickle.loads(pickle.dumps(LayerTimes(max_replies=2))).max_replies == 2


async def test_layers_of_a_sub_agent_are_timed_as_well():
    times = LayerTimes()
    child = Agent("child", "", ScriptedChatModel(["done"]), middlewares=[Delay("inner", Clock(), 0, 0, 0)])
    call = ToolCallBlock("1", "child", '{"query": "go"}')
    boss = Agent(
        "boss", "", ScriptedChatModel([[call], "done"]), tools=[child.as_tool("Does it.")], middlewares=[times]
    )
    await boss.reply("Hi")
    assert "inner" in {time.layer for reply_id in times.replies() for time in times.of(reply_id)}


def test_a_probe_is_refused_with_what_to_write():
    with pytest.raises(UnknownKeywordError, match=r"probe.*middlewares=\[LayerTimes\(\)\]"):
        Agent("assistant", "", ScriptedChatModel([]), probe=LayerTimes())  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="max_replies"):
        LayerTimes(max_replies=0)
