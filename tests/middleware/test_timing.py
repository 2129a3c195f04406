"""Timing measures model calls and tools."""

import logging
from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.middleware import Timing, TimingMiddleware
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import agent_of, call, items_of
from tests.middleware.fake_time import Clock


class Spend:
    def __init__(self) -> None:
        self.clock = Clock()

    def answering(self, response: Any, seconds: float) -> Any:
        async def answer(messages: Any, tools: Any) -> Any:
            self.clock.now += seconds
            return response

        return answer


def seen(timings: list[Timing]) -> list[tuple[str, str, float, str]]:
    return [(timing.kind, timing.name, timing.seconds, timing.ended) for timing in timings]


@pytest.mark.parametrize("stream", [True, False])
async def test_each_model_call_and_each_tool_is_measured(stream: bool) -> None:
    spend, timings = Spend(), list[Timing]()

    async def work() -> str:
        spend.clock.now += 5
        return "done"

    async def fail() -> str:
        spend.clock.now += 7
        raise ValueError("x")

    script = [spend.answering([call("1", "work"), call("2", "fail")], 2), spend.answering("done", 3)]
    model = ScriptedChatModel(script, stream=stream)
    agent = agent_of([], work, fail, middlewares=[TimingMiddleware(timings.append, clock=spend.clock)])
    agent.model = model
    await agent.reply("go")
    tools = [timing for timing in seen(timings) if timing[0] == "tool_call"]
    assert {timing[1]: timing[3] for timing in tools} == {"work": "ok", "fail": "error"}
    models = [timing for timing in seen(timings) if timing[0] == "model_call"]
    assert models == [("model_call", "scripted", 2, "ok"), ("model_call", "scripted", 3, "ok")]
    assert [timing.first is not None for timing in timings if timing.kind == "model_call"] == [stream, stream]
    assert {(timing.agent_name, timing.reply_id) for timing in timings} == {("tester", agent.state.context[-1].id)}


@pytest.mark.parametrize("failure", [Transient("503"), ["half ", Transient("cut")]])
async def test_a_call_that_fails_is_measured_to_its_end(failure: Any) -> None:
    timings = list[Timing]()
    with pytest.raises(Transient):
        await agent_of([failure], middlewares=[TimingMiddleware(timings.append)]).reply("go")
    assert [timing.ended for timing in timings] == ["error"]


async def test_a_stream_that_is_left_is_measured_and_marked() -> None:
    timings = list[Timing]()
    agent = agent_of(["one two three"], middlewares=[TimingMiddleware(timings.append)])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert [timing.ended for timing in timings] == ["cut"]


async def test_without_on_timing_the_timing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentrt")
    spend = Spend()
    layer = TimingMiddleware(clock=spend.clock)
    await Agent("a", model=ScriptedChatModel([spend.answering("x", 1.5)]), middlewares=[layer]).reply("go")
    assert "model_call 'scripted' of 'a' took 1.500 s (ok)" in caplog.messages


async def test_nothing_is_measured_while_nobody_would_hear_of_it(caplog: pytest.LogCaptureFixture) -> None:
    readings: list[int] = []

    def clock() -> float:
        readings.append(1)
        return 0.0

    async def work() -> str:
        return "done"

    agent = agent_of([[call("1", "work")], "a", "b"], work, middlewares=[TimingMiddleware(clock=clock)])
    with caplog.at_level(logging.WARNING, "agentrt"):
        await agent.reply("go")
        assert readings == []
    with caplog.at_level(logging.INFO, "agentrt"):
        await agent.reply("go")
    assert readings


async def test_a_failing_on_timing_breaks_no_reply_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(timing: Timing) -> None:
        raise ValueError("secret")

    agent = agent_of(["one", "two"], middlewares=[TimingMiddleware(broken)])
    await items_of(agent)
    await items_of(agent)
    assert caplog.messages == ["on_timing failed: ValueError; later failures are not logged"]


def test_a_value_that_is_not_callable_is_refused() -> None:
    with pytest.raises(MiddlewareConfigError, match="on_timing"):
        TimingMiddleware("print")  # type: ignore[arg-type]  # on purpose
