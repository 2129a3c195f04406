"""Retries call a model again that fails with an error that may pass."""

from collections.abc import AsyncGenerator
from itertools import repeat
from math import inf, nan
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.agent import ContextConfig
from agentrt.errors import (
    AgentRTError,
    CircuitOpen,
    Malformed,
    MalformedCall,
    MiddlewareConfigError,
    ModelError,
    RateLimited,
    RateLimitTimeout,
    Refused,
    Rejected,
    Timeout,
    Transient,
)
from agentrt.event import ModelCallRetryEvent
from agentrt.message import TextBlock
from agentrt.middleware import (
    CircuitBreakerMiddleware,
    MiddlewareBase,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
)
from agentrt.model import ChatModelBase, ChatResponse, ScriptedChatModel
from agentrt_middleware.validation import Backoff
from tests.loop.helpers import add, agent_of, call, items_of
from tests.middleware.fake_time import Clock, Least, Most, in_jumping_time, rebuilt, retries, text_of

CANARY = "sk-canary-0123456789"


def at_once(**options: Any) -> RetryMiddleware:
    return RetryMiddleware(random=Least(), **options)


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        ([Transient("503"), "the answer"], ["Transient"]),
        ([MalformedCall("tool_use_failed"), "the answer"], ["MalformedCall"]),
        ([RateLimited(), Timeout("slow"), "the answer"], ["RateLimited", "Timeout"]),
        ([[Transient("cut before the first piece")], "the answer"], ["Transient"]),
        ([["half an ", Transient("cut")], "the answer"], ["Transient"]),
        ([["half ", Timeout("idle")], ["an ", "ans", Transient("cut")], ["the ", "answer"]], ["Timeout", "Transient"]),
        (
            [Transient("503"), ["half ", Transient("cut")], RateLimited(), "the answer"],
            ["Transient"] * 2 + ["RateLimited"],
        ),
    ],
)
async def test_a_failed_attempt_is_repeated_and_no_text_is_shown_twice(
    script: list[Any], reasons: list[str], stream: bool | None
) -> None:
    model = ScriptedChatModel(script, stream=stream)
    agent = Agent("tester", model=model, middlewares=[at_once()])
    items = await items_of(agent)
    assert [(reason, attempt) for reason, attempt, _ in retries(items)] == list(zip(reasons, range(1, 9), strict=False))
    assert len(model.calls) == len(script)
    assert text_of(agent) == "the answer"
    assert rebuilt(items).get_text_content() == "the answer"


async def test_a_withdrawn_tool_call_is_named_and_does_not_run() -> None:
    runs: list[int] = []

    def note(number: int) -> str:
        runs.append(number)
        return "noted"

    first = [TextBlock("I will "), call("1", "note", number=1), Transient("cut")]
    agent = agent_of([first, [call("1", "note", number=2)], "done"], note, middlewares=[at_once()])
    items = await items_of(agent)
    announced = next(item for item in items if isinstance(item, ModelCallRetryEvent))
    assert len(announced.block_ids) == 2
    assert runs == [2]
    assert rebuilt(items).content == agent.state.context[-1].content


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize(
    "error", [Rejected("quota"), Refused("no"), Malformed("what"), ValueError("x"), ModelError("?")]
)
async def test_a_permanent_error_is_raised_at_once_unchanged(error: Exception, in_stream: bool) -> None:
    agent = agent_of([["half ", error] if in_stream else error], middlewares=[at_once()])
    with pytest.raises(type(error)) as raised:
        await agent.reply("go")
    assert raised.value is error
    assert not any("RetryMiddleware" in note for note in notes(error))


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError("slow")])
async def test_an_os_error_of_a_custom_model_is_retried(error: Exception) -> None:
    assert (await agent_of([error, "fine"], middlewares=[at_once()]).reply("go")).get_text_content() == "fine"


@pytest.mark.parametrize("in_stream", [False, True])
async def test_the_last_error_is_unchanged_with_a_note_of_the_attempts(in_stream: bool) -> None:
    errors = [Transient(str(number)) for number in range(3)]
    script = [["half ", error] for error in errors] if in_stream else errors
    agent = agent_of(script, middlewares=[at_once(max_retries=2)])
    with pytest.raises(Transient) as raised:
        await agent.reply("go")
    assert raised.value is errors[-1]
    assert notes(raised.value) == ["agentrt: RetryMiddleware gave up after 3 attempts: max_retries=2"]
    assert notes(errors[0]) == []


async def test_an_error_after_the_last_piece_is_not_retried() -> None:
    class LateFailure(ChatModelBase):
        calls = 0

        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            self.calls += 1
            return self._stream()

        async def _stream(self) -> AsyncGenerator[ChatResponse, None]:
            yield ChatResponse([TextBlock("whole")])
            raise Transient("the connection broke at its end")

    model = LateFailure(model="late")
    with pytest.raises(Transient):
        await Agent("tester", model=model, middlewares=[at_once()]).reply("go")
    assert model.calls == 1


@in_jumping_time
async def test_a_retry_after_is_waited_for_and_announced_in_advance() -> None:
    seen: list[tuple[float, str]] = []
    start = anyio.current_time()
    agent = agent_of([RateLimited(retry_after=7.5), "hello"], middlewares=[at_once()])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.type in ("MODEL_CALL_RETRY", "TEXT_BLOCK_START"):
                seen.append((round(anyio.current_time() - start, 3), event.type))
                assert getattr(event, "wait_seconds", 7.5) == 7.5

    assert seen == [(0, "MODEL_CALL_RETRY"), (7.5, "TEXT_BLOCK_START")]


@in_jumping_time
async def test_waits_double_up_to_the_limit() -> None:
    layer = RetryMiddleware(5, initial_delay=1, max_delay=5, random=Most())
    items = await items_of(agent_of([*[Transient("503")] * 5, "hello"], middlewares=[layer]))
    assert [wait for _, _, wait in retries(items)] == [1, 2, 4, 5, 5]


@given(st.floats(0, 100), st.floats(0, 1_000), st.integers(1, 5_000), st.none() | st.floats(0, 1e6), st.integers())
def test_a_wait_stays_between_retry_after_and_its_limit(
    initial_delay: float, max_delay: float, failures: int, retry_after: float | None, seed: int
) -> None:
    wait = Backoff("Test", initial_delay, max_delay, Random(seed)).wait_after(failures, retry_after)
    assert (retry_after or 0) <= wait <= ((retry_after + initial_delay) if retry_after else max_delay)


async def test_a_wait_longer_than_max_wait_is_not_started() -> None:
    error = RateLimited(retry_after=3_600)
    with pytest.raises(RateLimited) as raised:
        await agent_of([error], middlewares=[at_once(max_wait=60)]).reply("go")
    assert raised.value is error
    assert "max_wait=60" in notes(error)[0]


@in_jumping_time
async def test_max_wait_counts_all_waits_of_a_call() -> None:
    model = ScriptedChatModel([RateLimited(retry_after=4)] * 4)
    agent = Agent("tester", model=model, middlewares=[at_once(max_wait=10)])
    start = anyio.current_time()
    with pytest.raises(RateLimited):
        await agent.reply("go")

    assert anyio.current_time() - start == pytest.approx(8)
    assert len(model.calls) == 3


async def test_the_budget_bounds_all_users_retries_and_recovers() -> None:
    clock = Clock()
    layer = at_once(budget=0.5, clock=clock)
    models = [ScriptedChatModel(repeat(Transient("down"))) for _ in range(2)]
    agents = [Agent("tester", model=model, middlewares=[layer]) for model in models]

    async def ask(times: int) -> int:
        before = sum(len(model.calls) for model in models)
        for number in range(times):
            with pytest.raises(Transient):
                await agents[number % 2].with_state(AgentState()).reply("go")
        return sum(len(model.calls) for model in models) - before - times

    assert await ask(4) == 11  # ten to begin with, and half of the further calls
    assert await ask(40) == 20
    clock.now += 6
    assert await ask(1) in (1, 2)
    clock.now += 3_600
    assert await ask(20) <= 10 + 10


@pytest.mark.parametrize("error", [CircuitOpen("held back"), RateLimitTimeout("would wait too long")])
async def test_our_own_refusals_are_retried_only_if_named(error: ModelError) -> None:
    with pytest.raises(type(error)):
        await agent_of([error, "hello"], middlewares=[at_once()]).reply("go")
    with pytest.raises(type(error)):
        await agent_of([error, "hello"], middlewares=[at_once(retry_on=ModelError)]).reply("go")
    answer = await agent_of([error, "hello"], middlewares=[at_once(retry_on=(Transient, type(error)))]).reply("go")
    assert answer.get_text_content() == "hello"


async def test_a_function_may_say_what_is_retried() -> None:
    layer = at_once(retry_on=lambda error: "again" in str(error))
    agent = agent_of([ValueError("try again"), ValueError("stop")], middlewares=[layer])
    with pytest.raises(ValueError, match="stop") as raised:
        await agent.reply("go")
    assert "after 2 attempts: ValueError is not retried" in notes(raised.value)[0]


@in_jumping_time
@pytest.mark.parametrize("in_stream", [False, True])
async def test_a_cancellation_ends_the_wait_and_leaves(in_stream: bool) -> None:
    error = RateLimited(retry_after=60)
    agent = agent_of([["half ", error] if in_stream else error, "hello"], middlewares=[at_once()])
    with anyio.move_on_after(5) as scope:
        await agent.reply("go")
    assert scope.cancelled_caught
    answer = await agent.reply("once more")
    assert answer.get_text_content() == "hello"


class Watched(ChatModelBase):
    """A model whose streams say when they are opened and closed; the first breaks."""

    def __init__(self) -> None:
        super().__init__(model="watched")
        self.log: list[str] = []
        self.attempts = 0

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        self.attempts += 1
        return self._stream(self.attempts)

    async def _stream(self, attempt: int) -> AsyncGenerator[ChatResponse, None]:
        self.log.append(f"open {attempt}")
        try:
            yield ChatResponse([TextBlock(f"text {attempt} ")], False)
            if attempt == 1:
                raise Transient("cut")
            yield ChatResponse([TextBlock("more ")], False)
            yield ChatResponse([TextBlock(f"text {attempt} more ")])
        finally:
            self.log.append(f"close {attempt}")


async def test_a_broken_stream_is_closed_before_the_next_attempt() -> None:
    class Outer(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            stream = await next_handler()

            async def passed_on() -> AsyncGenerator[Any, None]:
                model.log.append("layer opens")
                try:
                    async for piece in stream:
                        yield piece
                finally:
                    model.log.append("layer closes")

            return passed_on()

    model = Watched()
    await Agent("tester", model=model, middlewares=[at_once(), Outer()]).reply("go")
    once = ["layer opens", "open 1", "close 1", "layer closes"]
    assert model.log == once + [line.replace("1", "2") for line in once]


class Handmade:
    """A stream that is not a generator, and so is not closed by failing."""

    def __init__(self, attempt: int, log: list[str]) -> None:
        self._attempt = attempt
        self._log = log

    def __aiter__(self) -> "Handmade":
        return self

    async def __anext__(self) -> ChatResponse:
        if self._attempt == 1:
            raise Transient("cut")
        return ChatResponse([TextBlock("whole")])

    async def aclose(self) -> None:
        self._log.append(f"close {self._attempt}")


async def test_a_custom_stream_is_closed_before_the_next_attempt() -> None:
    log: list[str] = []

    class Handmaking(ChatModelBase):
        attempts = 0

        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            self.attempts += 1
            log.append(f"open {self.attempts}")
            return Handmade(self.attempts, log)

    agent = Agent("tester", model=Handmaking(model="handmade"), middlewares=[at_once()])
    with pytest.raises(AgentRTError):  # it continues after its last piece, and is stopped there
        await agent.reply("go")
    assert log.index("close 1") < log.index("open 2")
    assert "close 2" in log


async def test_a_broken_stream_is_closed_before_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Handmaking(ChatModelBase):
        attempts = 0

        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            self.attempts += 1
            return Handmade(1, log) if self.attempts == 1 else ChatResponse([TextBlock("whole")])

    async def wait(seconds: float) -> None:
        log.append("wait")

    monkeypatch.setattr("agentrt_middleware.attempts.anyio.sleep", wait)
    await Agent("tester", model=Handmaking(model="handmade"), middlewares=[at_once()]).reply("go")
    assert log[:2] == ["close 1", "wait"]


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_leaving_early_closes_whichever_attempt_is_open(after: int) -> None:
    model = Watched()
    agent = Agent("tester", model=model, middlewares=[at_once()])
    deltas = 0
    async with agent.reply_stream("go") as events:
        async for event in events:
            deltas += event.type == "TEXT_BLOCK_DELTA"
            if deltas == after:
                break
    opened = [line for line in model.log if line.startswith("open")]
    assert len(model.log) == 2 * len(opened)


async def test_concurrent_replies_have_attempt_counts_of_their_own() -> None:
    layer = at_once(max_retries=2)
    scripts = [[Transient("a"), "one"], ["two"], [["x ", Transient("b")], Transient("c"), "three"]]
    agents = [agent_of(script, middlewares=[layer]) for script in scripts]
    found: dict[int, list[Any]] = {}

    async def ask(number: int) -> None:
        found[number] = await items_of(agents[number])

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(ask, number)
    assert [text_of(agent) for agent in agents] == ["one", "two", "three"]
    assert [[attempt for _, attempt, _ in retries(found[number])] for number in range(3)] == [[1], [], [1, 2]]


async def test_a_providers_words_reach_no_event_and_no_note() -> None:
    errors = [Transient(CANARY), Transient(CANARY)]
    agent = agent_of(errors, middlewares=[at_once(max_retries=1)])
    events: list[str] = []
    with pytest.raises(Transient):
        async with agent.reply_stream("go") as stream:
            async for event in stream:
                events.append(event.to_json())
    assert events
    assert CANARY not in "".join(events) + "".join(notes(errors[1]))


async def test_tools_run_after_a_retried_round() -> None:
    script = [Transient("1"), [call("1", "add", a=1, b=2)], [" ", Transient("2")], "It is 3."]
    items = await items_of(agent_of(script, add, middlewares=[at_once()]))
    assert items[-1].get_text_content() == "It is 3."
    assert [attempt for _, attempt, _ in retries(items)] == [1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.5}, "whole number"),
        ({"initial_delay": -1}, "initial_delay"),
        ({"max_delay": "long"}, "max_delay"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"budget": -0.1}, "budget"),
        ({"retry_on": ()}, "retry_on"),
        ({"retry_on": "Transient"}, "retry_on"),
        ({"retry_on": [Transient, KeyboardInterrupt]}, "retry_on"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=words):
        RetryMiddleware(**options)


@pytest.mark.parametrize("inner", [CircuitBreakerMiddleware(), RateLimitMiddleware(), TimeoutMiddleware(total=1)])
def test_a_layer_that_counts_attempts_must_stand_inside(inner: MiddlewareBase) -> None:
    retry, model = RetryMiddleware(), ScriptedChatModel(["hello"])
    Agent("tester", model=model, middlewares=[retry, inner])
    with pytest.raises(AgentRTError, match=f"RetryMiddleware.*{type(inner).__name__}|{type(inner).__name__}.*Retry"):
        Agent("tester", model=model, middlewares=[inner, retry])


def test_a_fallback_must_stand_outside() -> None:
    fallback, retry = ModelFallbackMiddleware(ScriptedChatModel([])), RetryMiddleware()
    with pytest.raises(MiddlewareConfigError, match=r"put RetryMiddleware after ModelFallback|put ModelFallback"):
        Agent("tester", model=ScriptedChatModel([]), middlewares=[retry, fallback])


async def test_the_runtimes_own_calls_are_retried_too() -> None:
    script = ["one", "two", Transient("503"), ["half ", Transient("cut")], "They counted."]
    agent = agent_of(script, middlewares=[at_once()], context_config=ContextConfig(reserve_ratio=0.0))
    await agent.reply("go")
    await agent.reply("go on")
    await agent.compress_context()
    assert agent.state.summary == "They counted."


@pytest.mark.parametrize("retry_after", ["soon", nan, -1, True, [3]])
async def test_a_retry_after_that_is_not_a_number_changes_nothing(retry_after: Any) -> None:
    error = RateLimited(retry_after=retry_after)
    agent = agent_of([error, error], middlewares=[RetryMiddleware(1, initial_delay=0)])
    with pytest.raises(RateLimited) as caught:
        await agent.reply("go")
    assert caught.value is error


@in_jumping_time
@pytest.mark.parametrize("retry_after", [1e9, inf])
async def test_a_retry_after_of_more_than_a_day_counts_as_a_day(retry_after: float) -> None:
    layer = RetryMiddleware(initial_delay=0, max_wait=None)
    items = await items_of(agent_of([RateLimited(retry_after=retry_after), "hello"], middlewares=[layer]))
    assert retries(items) == [("RateLimited", 1, 86_400)]
