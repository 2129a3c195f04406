"""The circuit breaker refuses calls of a model that keeps failing."""

from math import inf, nan
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import CircuitOpen, MiddlewareConfigError, RateLimited, Rejected, Timeout, Transient
from agentrt.middleware import CircuitBreakerMiddleware, ModelFallbackMiddleware, RetryMiddleware
from agentrt.model import ScriptedChatModel
from tests.middleware.fake_time import Clock, Least


class Scene:
    """A breaker, and agents that use it; each asks in a conversation of its own."""

    def __init__(self, *responses: Any, **options: Any) -> None:
        self.clock = Clock()
        self.layer = CircuitBreakerMiddleware(**{"failure_threshold": 2, "clock": self.clock, **options})
        self.model = ScriptedChatModel(responses)
        self.agent = Agent("tester", model=self.model, middlewares=[self.layer])

    async def ask(self) -> str | None:
        """Return the answer, or the name of the error."""
        try:
            answer = await self.agent.with_state(AgentState()).reply("go")
        except Exception as error:  # noqa: BLE001  # its name is what is compared
            return type(error).__name__
        return answer.get_text_content()

    async def ask_times(self, times: int) -> list[str | None]:
        return [await self.ask() for _ in range(times)]


@pytest.mark.parametrize("failure", [Transient("503"), Timeout("slow"), ["half ", Transient("cut")]])
async def test_the_circuit_opens_after_repeated_failures(failure: Any) -> None:
    scene = Scene(failure, failure, "back", "again")
    kind = type(failure if isinstance(failure, Exception) else failure[-1]).__name__
    assert await scene.ask_times(4) == [kind, kind, "CircuitOpen", "CircuitOpen"]
    scene.clock.now += 29.9
    assert await scene.ask() == "CircuitOpen"
    scene.clock.now += 0.2
    assert await scene.ask_times(2) == ["back", "again"]
    assert len(scene.model.calls) == 4


async def test_circuit_open_is_transient_and_has_a_retry_after() -> None:
    scene = Scene(*[Transient("503")] * 2, recovery_seconds=40)
    await scene.ask_times(2)
    scene.clock.now += 15
    with pytest.raises(CircuitOpen, match=r"'scripted' was not called.* 2 times.* 25\.0 s") as raised:
        await scene.agent.reply("go")
    assert raised.value.retry_after == 25
    assert isinstance(raised.value, Transient)


async def test_an_answer_resets_the_count_of_failures() -> None:
    scene = Scene(Transient("1"), "hello", Transient("2"), ["hel", "lo"], Transient("3"), "hello")
    assert "CircuitOpen" not in await scene.ask_times(6)


async def test_a_probe_that_fails_opens_the_circuit_again() -> None:
    scene = Scene(*[Transient("503")] * 3, "back")
    await scene.ask_times(2)
    scene.clock.now += 31
    assert await scene.ask_times(2) == ["Transient", "CircuitOpen"]
    scene.clock.now += 31
    assert await scene.ask() == "back"


async def test_a_longer_retry_after_keeps_the_circuit_open() -> None:
    failure = RateLimited(retry_after=100)
    scene = Scene(failure, failure, "back", trip_on=RateLimited)
    await scene.ask_times(2)
    scene.clock.now += 99
    assert await scene.ask() == "CircuitOpen"
    scene.clock.now += 2
    assert await scene.ask() == "back"


@pytest.mark.parametrize("error", [Rejected("401"), RateLimited(), ValueError("a bug")])
async def test_errors_outside_trip_on_do_not_count(error: Exception) -> None:
    scene = Scene(*[error] * 5, "hello")
    assert await scene.ask_times(6) == [type(error).__name__] * 5 + ["hello"]


@pytest.mark.parametrize("probes", [1, 2])
async def test_half_open_probes_limits_the_calls_let_through_at_a_time(probes: int) -> None:
    gate = anyio.Event()

    async def slow(messages: Any, tools: Any) -> str:
        await gate.wait()
        return "back"

    scene = Scene(Transient("1"), Transient("2"), slow, slow, "hello", half_open_probes=probes)
    await scene.ask_times(2)
    scene.clock.now += 31
    found: list[str | None] = []

    async def ask() -> None:
        found.append(await scene.ask())

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert found == ["CircuitOpen"] * (4 - probes)
        gate.set()
    assert found[-probes:] == ["back"] * probes


async def never(messages: Any, tools: Any) -> str:
    await anyio.sleep_forever()
    return ""


async def test_a_cancelled_or_abandoned_probe_makes_room_for_another() -> None:
    scene = Scene(Transient("1"), Transient("2"), never, ["half ", "of ", "it"], "back")
    await scene.ask_times(2)
    scene.clock.now += 31
    with anyio.move_on_after(0.01):
        await scene.ask()
    async with scene.agent.with_state(AgentState()).reply_stream("go") as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert await scene.ask() == "back"


async def test_a_hanging_probe_makes_room_for_another_after_a_while() -> None:
    scene = Scene(Transient("1"), Transient("2"), never, "back", "hello")
    await scene.ask_times(2)
    scene.clock.now += 31
    async with anyio.create_task_group() as group:
        group.start_soon(scene.ask)
        await anyio.wait_all_tasks_blocked()
        scene.clock.now += 29
        assert await scene.ask() == "CircuitOpen"
        scene.clock.now += 1
        assert await scene.ask_times(2) == ["back", "hello"]
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("retry_after", "seconds"), [(1e9, 86_400), (inf, 86_400), ("soon", 30), (nan, 30), (-5, 30)])
async def test_only_a_numeric_retry_after_counts_and_a_day_at_most(retry_after: Any, seconds: float) -> None:
    failure = RateLimited(retry_after=retry_after)
    scene = Scene(failure, failure, "back", trip_on=RateLimited)
    assert await scene.ask_times(2) == ["RateLimited"] * 2
    scene.clock.now += seconds - 1
    assert await scene.ask() == "CircuitOpen"
    scene.clock.now += 1
    assert await scene.ask() == "back"


async def test_a_call_from_an_earlier_era_does_not_count() -> None:
    gate = anyio.Event()

    async def late(messages: Any, tools: Any) -> Any:
        await gate.wait()
        return "late"

    scene = Scene(late, Transient("1"), Transient("2"))
    async with anyio.create_task_group() as group:
        group.start_soon(scene.ask)
        await anyio.wait_all_tasks_blocked()
        await scene.ask_times(2)
        gate.set()
    assert await scene.ask() == "CircuitOpen"


async def test_models_have_a_circuit_each_and_agents_share_it() -> None:
    scene = Scene(Transient("1"))
    same = Agent("b", model=ScriptedChatModel([Transient("2"), "hello"]), middlewares=[scene.layer])
    other = Agent("c", model=ScriptedChatModel(["hello"], model="other"), middlewares=[scene.layer])
    await scene.ask()
    with pytest.raises(Transient, match="2"):
        await same.reply("go")
    with pytest.raises(CircuitOpen):
        await same.reply("go")
    assert (await other.reply("go")).get_text_content() == "hello"


async def test_a_fallback_takes_over_an_open_circuit_without_a_retry() -> None:
    clock = Clock()
    second = ScriptedChatModel(["second"] * 3, model="second")
    layers = [
        ModelFallbackMiddleware(second),
        RetryMiddleware(1, random=Least()),
        CircuitBreakerMiddleware(2, clock=clock),
    ]
    first = ScriptedChatModel([Transient("1"), Transient("2")])
    agent = Agent("tester", model=first, middlewares=layers)
    for _ in range(3):
        assert (await agent.with_state(AgentState()).reply("go")).get_text_content() == "second"
    assert len(first.calls) == 2


async def test_opening_and_closing_the_circuit_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(Transient("secret"), Transient("secret"), "back")
    await scene.ask_times(2)
    scene.clock.now += 31
    await scene.ask()
    messages = [record.getMessage() for record in caplog.records if record.name == "agentrt"]
    assert messages == [
        "model 'scripted' has failed 2 times: no calls for 30 s",
        "model 'scripted' answers again: calls are let through",
    ]


@pytest.mark.parametrize("option", ["failure_threshold", "recovery_seconds", "half_open_probes", "trip_on"])
def test_invalid_options_are_refused(option: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=option):
        CircuitBreakerMiddleware(**{option: 0})
