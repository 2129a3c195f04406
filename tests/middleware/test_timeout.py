"""Timeouts limit how long a model may take."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import MiddlewareConfigError, Timeout
from agentrt.message import TextBlock
from agentrt.middleware import MiddlewareBase, RateLimitMiddleware, RetryMiddleware, TimeoutMiddleware
from agentrt.model import ChatModelBase, ChatResponse, ScriptedChatModel
from tests.middleware.fake_time import Least, in_jumping_time, on_both_loops, play


class Slow(ChatModelBase):
    """Waits for so long before the call returns, and before each piece."""

    def __init__(self, before: float, pieces: Sequence[float], *, stream: bool = True) -> None:
        super().__init__(model="slow", stream=stream)
        self.before = before
        self.pieces = pieces
        self.closed = 0

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        await anyio.sleep(self.before)
        return self._pieces() if self.stream else ChatResponse([TextBlock("whole")])

    async def _pieces(self) -> AsyncGenerator[ChatResponse, None]:
        try:
            for seconds in self.pieces:
                await anyio.sleep(seconds)
                yield ChatResponse([TextBlock("x")], False)
            yield ChatResponse([TextBlock("x" * len(self.pieces))])
        finally:
            self.closed += 1


async def outcome(model: ChatModelBase, **limits: float) -> tuple[str, float]:
    agent = Agent("tester", model=model, middlewares=[TimeoutMiddleware(**limits)])
    start = anyio.current_time()
    try:
        answer = (await agent.reply("go")).get_text_content() or ""
    except Timeout as error:
        answer = str(error)
    return answer, round(anyio.current_time() - start, 3)


@on_both_loops
@pytest.mark.parametrize(
    ("model", "limits", "expected", "after"),
    [
        (Slow(3, [1, 1]), {"first_chunk": 5, "between_chunks": 2, "total": 6}, "xx", 5),
        (Slow(9, [1]), {"first_chunk": 5}, "did not begin to answer for 5 s (TimeoutMiddleware(first_chunk=5))", 5),
        (Slow(3, [9]), {"first_chunk": 5}, "first_chunk=5", 5),
        (Slow(3, [1, 9]), {"first_chunk": 5}, "xx", 13),
        (Slow(3, [1, 9]), {"between_chunks": 2}, "said nothing more for 2 s (TimeoutMiddleware(between_chunks=2))", 6),
        (Slow(9, [1, 1]), {"between_chunks": 2}, "xx", 11),
        (Slow(3, [1, 1, 1, 1]), {"between_chunks": 2, "total": 5.5}, "total=5.5", 5.5),
        (Slow(9, [], stream=False), {"first_chunk": 5, "between_chunks": 2}, "whole", 9),
        (Slow(9, [], stream=False), {"total": 5}, "kept us waiting for more than 5 s (TimeoutMiddleware(total=5))", 5),
    ],
)
def test_each_limit_ends_its_wait_and_says_which_it_was(
    model: Slow, limits: dict[str, float], expected: str, after: float, backend: str
) -> None:
    model.closed = 0
    answer, seconds = play(backend, lambda: outcome(model, **limits))
    assert expected in answer
    assert seconds == after
    assert model.closed == (1 if model.stream and after >= model.before and seconds > model.before else 0)


@in_jumping_time
async def test_a_slow_reader_takes_nothing_from_any_limit() -> None:
    limits = TimeoutMiddleware(first_chunk=2, between_chunks=2, total=5)
    agent = Agent("tester", model=Slow(1, [0.5, 1, 1]), middlewares=[limits])
    deltas = 0
    async with agent.reply_stream("go") as events:
        async for event in events:
            await anyio.sleep(100)
            deltas += event.type == "TEXT_BLOCK_DELTA"

    assert deltas == 3


@in_jumping_time
@pytest.mark.parametrize("model", [Slow(60, []), Slow(0, [60]), Slow(0, [1, 60])])
async def test_the_callers_own_deadline_passes_as_it_is(model: Slow) -> None:
    agent = Agent("tester", model=model, middlewares=[TimeoutMiddleware(first_chunk=50, between_chunks=50, total=50)])
    with pytest.raises(TimeoutError):
        with anyio.fail_after(5):
            await agent.reply("go")


@in_jumping_time
async def test_a_retry_repeats_an_attempt_that_timed_out() -> None:
    async def stuck(messages: Any, tools: Any) -> str:
        await anyio.sleep(100)
        return "late"

    start = anyio.current_time()
    layers = [RetryMiddleware(random=Least()), TimeoutMiddleware(total=3)]
    answer = await Agent("tester", model=ScriptedChatModel([stuck, "hello"]), middlewares=layers).reply("go")
    answer, seconds = answer.get_text_content(), anyio.current_time() - start
    assert answer == "hello"
    assert seconds == pytest.approx(3)


@in_jumping_time
async def test_a_stream_that_timed_out_is_closed_before_the_error() -> None:
    log: list[str] = []

    class Endless:
        def __aiter__(self) -> "Endless":
            return self

        async def __anext__(self) -> ChatResponse:
            await anyio.sleep_forever()
            raise AssertionError

        async def aclose(self) -> None:
            log.append("closed")

    class Hears(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            stream = await next_handler()

            async def passed_on() -> AsyncGenerator[ChatResponse, None]:
                try:
                    async for piece in stream:
                        yield piece
                except Timeout:
                    log.append("heard")
                    raise

            return passed_on()

    class Stuck(ChatModelBase):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            return Endless()

    agent = Agent("tester", model=Stuck(model="stuck"), middlewares=[Hears(), TimeoutMiddleware(first_chunk=1)])
    with pytest.raises(Timeout):
        await agent.reply("go")

    assert log[:2] == ["closed", "heard"]


async def test_leaving_early_closes_the_stream() -> None:
    model = Slow(0, [0, 0, 0])
    agent = Agent("tester", model=model, middlewares=[TimeoutMiddleware(total=5)])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert model.closed == 1


def test_a_wait_for_our_own_rate_limit_is_not_the_models_fault() -> None:
    layers = [RateLimitMiddleware(), TimeoutMiddleware(total=1)]
    Agent("tester", model=Slow(0, []), middlewares=layers)
    with pytest.raises(MiddlewareConfigError, match="RateLimitMiddleware must wrap TimeoutMiddleware"):
        Agent("tester", model=Slow(0, []), middlewares=layers[::-1])


@pytest.mark.parametrize("limits", [{}, {"total": 0}, {"first_chunk": -1}, {"between_chunks": "2"}, {"total": True}])
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(MiddlewareConfigError, match="TimeoutMiddleware"):
        TimeoutMiddleware(**limits)
