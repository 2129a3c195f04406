"""The rate limiter in jumping time: both event loops skip every wait."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count, pairwise, repeat
from math import inf, nan
from threading import Event, Thread
from time import monotonic
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState, Toolkit
from agentrt.errors import MiddlewareConfigError, RateLimited, RateLimitTimeout, Transient
from agentrt.event import CustomEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import MiddlewareBase, RateLimitMiddleware, RedisLimitStore, RetryMiddleware
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, OpenAIChatModel, ScriptedChatModel
from agentrt.testing import InMemoryStateStore, ToolLog, check_every_suspension
from agentrt_middleware.clock import loop_time
from agentrt_middleware.rate_limit import middleware as rate_limit
from agentrt_middleware.rate_limit.call_tokens import AnswerLengths, CallTokens
from agentrt_middleware.rate_limit.distributed import SharedLimiter
from agentrt_middleware.rate_limit.queue import Limiter
from agentrt_middleware.rate_limit.usage_window import RateLimits
from tests.loop.helpers import add
from tests.middleware.fake_time import Clock, in_jumping_time, on_both_loops, play

BACKENDS = ["asyncio", "trio"]
names = (f"key-{number}" for number in count())


class Starts:
    """Makes models that record the times of their calls, since it was made itself."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._origin = anyio.current_time()

    def now(self) -> float:
        return round(anyio.current_time() - self._origin, 3)

    def model(self, *responses: Any, seconds: float = 0.0, name: str = "scripted") -> ScriptedChatModel:
        async def answer(response: Any, messages: Any, tools: Any) -> Any:
            self.times.append(self.now())
            await anyio.sleep(seconds)
            return response

        script = responses or repeat("Hello there.")
        return ScriptedChatModel((partial(answer, response) for response in script), model=name)


def used(input_tokens: int, output_tokens: int) -> ChatResponse:
    return ChatResponse([TextBlock("Hello.")], usage=ChatUsage(input_tokens, output_tokens))


async def let_others_run() -> None:
    for _ in range(40):  # anyio's own way to wait for them takes time, and time is measured here
        await anyio.lowlevel.checkpoint()


async def at_once(*calls: Callable[[], Awaitable[Any]]) -> None:
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)
            await let_others_run()


def replies(agent: Agent, number: int) -> list[Callable[[], Awaitable[Any]]]:
    return [partial(agent.with_state(AgentState()).reply, "go") for _ in range(number)]


async def events_of(agent: Agent, starts: Starts, found: list[Any]) -> None:
    async with agent.with_state(AgentState()).reply_stream("go") as stream:
        async for event in stream:
            if isinstance(event, CustomEvent):
                found.append((starts.now(), event.name, event.value))


@in_jumping_time
@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_twenty_calls_at_once_start_one_interval_apart(seconds: float) -> None:
    starts = Starts()
    agent = Agent("a", model=starts.model(seconds=seconds), middlewares=[RateLimitMiddleware(min_interval=0.2)])
    await at_once(*replies(agent, 20))
    assert starts.times == [round(0.2 * number, 3) for number in range(20)]


@in_jumping_time
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"min_interval": 0}, [0, 0, 0, 0]),
        ({"requests_per_minute": 2}, [0, 0, 30, 60]),
        ({"requests_per_minute": 0.5}, [0, 120, 240, 360]),
        ({"requests_per_minute": 2, "min_interval": 40}, [0, 40, 80, 120]),
        ({"max_concurrency": 2}, [0, 0, 5, 5]),
    ],
)
async def test_calls_start_as_soon_as_the_limits_allow(options: dict[str, Any], expected: list[float]) -> None:
    starts = Starts()
    agent = Agent("a", model=starts.model(seconds=5), middlewares=[RateLimitMiddleware(**options)])
    await at_once(*replies(agent, 4))
    assert starts.times == expected


@in_jumping_time
@pytest.mark.parametrize("jump", [-1e6, 1e6])
async def test_the_wall_clock_does_not_matter(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, wall = Starts(), time.time

    def set_the_clock(messages: Any, tools: Any) -> str:
        starts.times.append(starts.now())
        monkeypatch.setattr(time, "time", lambda: wall() + jump * len(starts.times))
        return "Hello."

    layer = RateLimitMiddleware(requests_per_minute=2, min_interval=1)
    agent = Agent("a", model=ScriptedChatModel(repeat(set_the_clock)), middlewares=[layer])
    await at_once(*replies(agent, 4))
    assert starts.times == [0, 1, 30, 60]


@in_jumping_time
async def test_a_wait_is_announced_in_advance_with_its_length() -> None:
    starts, found = Starts(), list[Any]()
    agent = Agent("a", model=starts.model(), middlewares=[RateLimitMiddleware(min_interval=0.5)])
    await at_once(*[partial(events_of, agent, starts, found) for _ in range(3)])
    assert [(time, name, value["reason"], value["ahead"]) for time, name, value in found] == [
        (0, "rate_limit_wait", "min_interval", 0),
        (0, "rate_limit_wait", "min_interval", 1),
    ]
    assert [round(value["wait_seconds"], 3) for _, _, value in found] == [0.5, 1.0]


@in_jumping_time
async def test_only_middlewares_with_the_same_key_share_limits() -> None:
    shared, alone = Starts(), Starts()
    key = next(names)
    calls = []
    for starts, name in ((shared, key), (shared, key), (alone, next(names))):
        layer = RateLimitMiddleware(min_interval=1, key=name)
        calls += replies(Agent("a", model=starts.model(), middlewares=[layer]), 2)
    await at_once(*calls)
    assert shared.times == [0, 1, 2, 3]
    assert alone.times == [0, 1]


@in_jumping_time
async def test_without_a_key_each_model_has_a_limit_of_its_own() -> None:
    starts = {name: Starts() for name in ("first", "second")}
    layer = RateLimitMiddleware(min_interval=1)
    agents = [Agent("a", model=start.model(name=name), middlewares=[layer]) for name, start in starts.items()]
    await at_once(*[call for agent in agents for call in replies(agent, 2)])
    assert [start.times for start in starts.values()] == [[0, 1], [0, 1]]


def test_the_newest_middleware_sets_the_limits_of_a_key(caplog: pytest.LogCaptureFixture) -> None:
    key = next(names)
    RateLimitMiddleware(requests_per_minute=10, key=key)
    RateLimitMiddleware(requests_per_minute=10, key=key)
    assert not caplog.records
    RateLimitMiddleware(requests_per_minute=20, key=key)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert rate_limit._limiters[key, None].limits.requests_per_minute == 20


class NoStore:
    """A model that must not be called."""

    lease_seconds = 90.0

    async def take(self, *question: Any) -> None:
        raise AssertionError(question)

    renew = end = block = take


def test_the_newest_middleware_sets_the_store_error_policy(caplog: pytest.LogCaptureFixture) -> None:
    key, store = next(names), NoStore()
    for policy in ("local", "closed", "closed"):
        layer = RateLimitMiddleware(max_concurrency=1, key=key, store=store, on_store_error=policy)  # type: ignore[arg-type]
    limiter = layer._limiter_for(ScriptedChatModel([]))
    assert isinstance(limiter, SharedLimiter)
    assert limiter.policy == "closed"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_models_of_one_account_share_a_limit_without_its_api_key() -> None:
    pytest.importorskip("openai")
    first, second, other = (OpenAIChatModel("gpt", api_key=key) for key in ("sk-canary-1", "sk-canary-1", "sk-other-2"))
    layers = [RateLimitMiddleware(min_interval=3), RateLimitMiddleware(min_interval=3)]
    limiter = layers[0]._limiter_for(first)
    assert layers[1]._limiter_for(second) is limiter
    assert layers[0]._limiter_for(other) is not limiter
    assert RateLimitMiddleware(min_interval=4)._limiter_for(first) is not limiter
    assert "canary" not in repr(rate_limit._limiters)


@in_jumping_time
@pytest.mark.parametrize("broken_stream", [False, True])
async def test_a_retry_after_holds_all_calls(broken_stream: bool) -> None:
    starts, found = Starts(), list[Any]()
    error = RateLimited(retry_after=7)
    refused: Any = ["Hel", error] if broken_stream else error
    model = starts.model(refused, "Hello.", "Hello.", "Hello.", seconds=1)
    layer = RateLimitMiddleware(min_interval=0.4, max_concurrency=2)
    agent = Agent("a", model=model, middlewares=[layer])

    async def first() -> None:
        with pytest.raises(RateLimited):
            await agent.with_state(AgentState()).reply("go")

    await at_once(first, *[partial(events_of, agent, starts, found) for _ in range(3)])
    assert starts.times == [0, 0.4, 8, 8.4]
    assert [value["reason"] for time, _, value in found if time == 1] == ["retry_after"] * 2


@in_jumping_time
async def test_a_wrong_estimate_is_refunded_or_becomes_a_debt() -> None:
    starts = Starts()
    limiter = Limiter(RateLimits(tokens_per_minute=60_000))
    started = []
    for actual in (61_000, 100, 0, 62_000, 0):
        lease = await limiter.acquire(1_000)
        started.append(starts.now())
        await lease.settle(actual)
        await lease.settle(50_000)  # only the first time counts

    # Tokens come back at 1000 a second, and each call needs room for 1000.
    assert started == [0, 2, 2.1, 2.1, 64.1]


@in_jumping_time
async def test_a_call_counts_with_the_tokens_that_it_took() -> None:
    starts = Starts()
    model = starts.model(used(1_100, 100), used(0, 1), used(0, 1))
    agent = Agent("a", model=model, middlewares=[RateLimitMiddleware(tokens_per_minute=600)])
    for call in replies(agent, 3):
        await call()

    # 1200 were used of 600. The next call, which is expected to take 100 and a few, waits until these fit; it takes a
    # single one, so that they fit again.
    assert starts.times[0] == 0
    assert 70 < starts.times[1] < 72
    assert starts.times[2] - starts.times[1] < 1


@pytest.mark.parametrize("reserve", [False, True])
def test_first_calls_stay_within_the_limit_if_they_reserve(reserve: bool) -> None:
    async def main() -> int:
        starts = Starts()
        model = starts.model(*[used(10, 2_500)] * 60, seconds=1.0)
        model.settings = {"max_tokens": 2_500}
        layer = RateLimitMiddleware(tokens_per_minute=10_000, reserve=reserve)
        with anyio.move_on_after(59):
            await at_once(*replies(Agent("a", model=model, middlewares=[layer]), 60))
        return 2_510 * len(starts.times)

    used_tokens = play("asyncio", main)
    assert (used_tokens <= 20_000) is reserve


async def test_reserving_for_a_model_of_unknown_length_is_refused() -> None:
    layer = RateLimitMiddleware(tokens_per_minute=10_000, reserve=True)
    with pytest.raises(MiddlewareConfigError, match="needs the longest answer of 'scripted': give the model max_tok"):
        await Agent("a", model=ScriptedChatModel(["never"]), middlewares=[layer]).reply("go")


@in_jumping_time
async def test_without_reported_usage_the_estimate_stays() -> None:
    starts = Starts()
    model = starts.model(*[ChatResponse([TextBlock("Hello.")])] * 3)
    agent = Agent("a", model=model, middlewares=[RateLimitMiddleware(tokens_per_minute=600)])
    for call in replies(agent, 3):
        await call()

    assert starts.times[:2] == [0, 0]
    assert 10 < starts.times[2] < 60


class Words(ChatModelBase):
    """Streams one word after the other, each as long as a token, and waits before the last."""

    def __init__(self, *pieces: Any, stream: bool = True, settings: Any = None, name: str = "words") -> None:
        super().__init__(model=name, stream=stream)
        self._pieces = pieces
        if settings is not None:
            self.settings = settings

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        return self._words() if self.stream else self._pieces[0]

    async def _words(self) -> AsyncGenerator[ChatResponse, None]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                await anyio.sleep_forever()
            yield piece


WORD = ChatResponse([TextBlock("word")], is_last=False)
BEGIN = ChatResponse([], is_last=False, usage=ChatUsage(50, 1))
ASKED = 2  # tokens of "go" and the system prompt, by their length


def level_of(layer: RateLimitMiddleware) -> float:
    (limiter,) = layer._own.values()
    assert limiter.usage.active == 0
    return limiter.usage._tokens.level


async def ask_and_leave_after(agent: Agent, deltas: int) -> None:
    async with agent.with_state(AgentState()).reply_stream("go") as stream:
        async for event in stream:
            deltas -= event.type == "TEXT_BLOCK_DELTA"
            if not deltas:
                return


@in_jumping_time
@pytest.mark.parametrize(
    ("pieces", "how", "taken"),
    [
        ([WORD] * 5 + [None], "left", 4 + ASKED),
        ([WORD] * 4 + [None], "cancelled", 4 + ASKED),
        ([WORD] * 4 + [Transient("cut")], "broken off", 4 + ASKED),
        ([BEGIN, *[WORD] * 5, None], "left", 54),
        ([Transient("cut")], "broken off", ASKED),
    ],
)
async def test_an_unfinished_stream_counts_with_what_was_seen_of_it(pieces: list[Any], how: str, taken: float) -> None:
    layer = RateLimitMiddleware(tokens_per_minute=60_000)
    agent = Agent("a", model=Words(*pieces), middlewares=[layer])
    with anyio.move_on_after(0.01 if how == "cancelled" else inf):
        if how == "broken off":
            with pytest.raises(Transient):
                await agent.reply("go")
        else:
            await ask_and_leave_after(agent, 4 if how == "left" else 99)
    assert level_of(layer) == pytest.approx(taken, abs=1.1)
    seen = 4 if len(pieces) > 1 else 256
    assert layer._tokens_of(Words(), ASKED).expected == pytest.approx(seen + ASKED, abs=1.1)


@in_jumping_time
async def test_each_model_has_an_estimate_capped_by_its_max_tokens() -> None:
    def expected(layer: RateLimitMiddleware, **options: Any) -> float:
        return layer._tokens_of(Words(**options), ASKED).expected - ASKED

    layer = RateLimitMiddleware(tokens_per_minute=60_000)
    assert expected(layer) == pytest.approx(256, abs=1)
    assert expected(layer, settings={"max_tokens": 30}) == pytest.approx(30, abs=1)
    assert expected(layer, settings={"max_completion_tokens": 20}) == pytest.approx(20, abs=1)
    await Agent("a", model=Words(used(10, 4_000), stream=False), middlewares=[layer]).reply("go")
    assert expected(layer) == pytest.approx(4_000, abs=1)
    assert expected(layer, name="other") == pytest.approx(256, abs=1)


@in_jumping_time
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (ChatUsage(-50, -10), 0),
        (ChatUsage(10, -10), 10),
        (ChatUsage(10**300, 5), 60 * 1_440),
        (ChatUsage(10, 60 * 1_440), 60 * 1_440),
        (ChatUsage(10, inf), 60 * 1_440),  # type: ignore[arg-type]
        (ChatUsage(-(10**400), 5), 5),
        (ChatUsage(nan, 10), 256 + ASKED),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_an_impossible_usage_is_capped_logged_and_not_learned(
    usage: ChatUsage, counted: float, caplog: pytest.LogCaptureFixture
) -> None:
    layer = RateLimitMiddleware(tokens_per_minute=60)
    response = ChatResponse([TextBlock("Hello.")], usage=usage)
    await Agent("a", model=Words(response, stream=False), middlewares=[layer]).reply("go")
    assert level_of(layer) == pytest.approx(counted, abs=1)
    assert layer._tokens_of(Words(), ASKED).expected == pytest.approx(256 + ASKED, abs=1.1)
    assert "is impossible" in caplog.text


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens"), [(10**400, 0.5), (0.5, 10**400), (10**400, -0.5)], ids=["in", "out", "less"]
)
def test_a_usage_too_large_to_be_added_is_capped(input_tokens: Any, output_tokens: Any) -> None:
    tokens = CallTokens(Words(), ASKED, AnswerLengths())
    tokens.see(ChatResponse([TextBlock("Hello.")], usage=ChatUsage(input_tokens, output_tokens)))
    assert tokens.count(1_000.0) == 1_000


def test_a_replayed_answer_uses_no_tokens_and_teaches_nothing() -> None:
    lengths = AnswerLengths()
    tokens = CallTokens(Words(), ASKED, lengths)
    tokens.see(ChatResponse([TextBlock("Hello.")], usage=ChatUsage(50, 5, replayed=True)))
    assert (tokens.count(1_000.0), lengths.expected) == (0, 256)


@in_jumping_time
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "odd",
    [{"content": None}, {"content": [TextBlock(None)]}, {"usage": {"input_tokens": 1}}],  # type: ignore[arg-type]
    ids=["no blocks", "no text", "a dict"],
)
async def test_an_answer_that_cannot_be_counted_gives_its_place_back(odd: Any, stream: bool) -> None:
    response = ChatResponse([TextBlock("Hello.")])
    for field, value in odd.items():
        setattr(response, field, value)
    layer = RateLimitMiddleware(tokens_per_minute=60_000, max_concurrency=1)
    with suppress(Exception):  # the limiter does not judge the answer
        await Agent("a", model=Words(response, stream=stream), middlewares=[layer]).reply("go")
    (limiter,) = layer._own.values()
    assert limiter.usage.active == 0


@in_jumping_time
async def test_an_oversized_request_starts_when_idle_and_is_drained() -> None:
    starts, limiter, started = Starts(), Limiter(RateLimits(tokens_per_minute=60)), []
    for tokens in (1, 180, 1):
        await limiter.acquire(tokens)
        started.append(starts.now())

    assert started == [0, 1, 122]


class TakeOne(MiddlewareBase):
    """Answers by itself, and reads only a part of the model's stream."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        stream = await next_handler()
        for _ in range(self.pieces):
            await anext(stream)
        await anyio.sleep(3)
        return ChatResponse([TextBlock("Mine.")])


@in_jumping_time
@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_stream_holds_its_place_until_it_is_closed_read_or_not(pieces: int) -> None:
    starts = Starts()
    layer = RateLimitMiddleware(max_concurrency=1)
    agent = Agent("a", model=starts.model(), middlewares=[TakeOne(pieces), layer])
    await at_once(*replies(agent, 3))
    assert starts.times == [0, 3, 6]


@in_jumping_time
async def test_a_place_is_given_back_however_the_call_ends() -> None:
    starts = Starts()
    model = starts.model(ValueError("no"), ["Hel", ValueError("no")], "Hello there.", "Hello there.", seconds=1)
    layer = RateLimitMiddleware(max_concurrency=1, max_wait=0)
    agent = Agent("a", model=model, middlewares=[layer])
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await agent.with_state(AgentState()).reply("go")
    with anyio.move_on_after(0.5):
        await agent.with_state(AgentState()).reply("go")
    async with agent.with_state(AgentState()).reply_stream("go") as stream:
        async for event in stream:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    (limiter,) = layer._own.values()
    assert limiter.usage.active == 0


@in_jumping_time
async def test_a_wait_that_is_known_to_be_too_long_is_refused_at_once() -> None:
    starts = Starts()
    layer = RateLimitMiddleware(requests_per_minute=1, max_wait=59)
    agent = Agent("a", model=starts.model(), middlewares=[layer])
    await agent.reply("go")
    with pytest.raises(RateLimitTimeout, match=r"requests_per_minute.*60 s.*max_wait=59") as caught:
        await agent.reply("go")
    assert caught.value.retry_after == pytest.approx(60)
    assert starts.now() == 0


@in_jumping_time
async def test_the_place_in_the_queue_counts_for_how_long_the_wait_is() -> None:
    starts, limiter = Starts(), Limiter(RateLimits(min_interval=1))
    ended: list[Any] = []

    async def call() -> None:
        try:
            await limiter.acquire(max_wait=2)
            ended.append(starts.now())
        except RateLimitTimeout as error:
            ended.append((starts.now(), error.retry_after))

    await at_once(*[call] * 5)
    assert ended == [0, (0, pytest.approx(3)), (0, pytest.approx(3)), 1, 2]


@in_jumping_time
async def test_a_waiter_that_moved_up_is_not_refused_for_past_waiters() -> None:
    starts, limiter = Starts(), Limiter(RateLimits(min_interval=1))
    await limiter.acquire()
    with anyio.CancelScope() as gone:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(limiter.acquire)
            await let_others_run()
            gone.cancel()
    await at_once(partial(limiter.acquire, max_wait=6), partial(limiter.block, 1.5))
    assert starts.now() == 1.5


@in_jumping_time
async def test_a_wait_of_unknown_length_is_given_up_after_max_wait() -> None:
    starts, limiter = Starts(), Limiter(RateLimits(max_concurrency=1))
    await limiter.acquire()
    with pytest.raises(RateLimitTimeout, match="max_concurrency"):
        await limiter.acquire(max_wait=4)
    assert starts.now() == 4


@in_jumping_time
async def test_a_too_long_retry_after_refuses_waiters_at_once() -> None:
    starts, limiter = Starts(), Limiter(RateLimits(min_interval=5))
    failed: list[Any] = []
    await limiter.acquire()

    async def call() -> None:
        with pytest.raises(RateLimitTimeout):
            await limiter.acquire(max_wait=30)
        failed.append(starts.now())

    async def block() -> None:
        await anyio.sleep(2)
        await limiter.block(100)

    await at_once(call, call, block)
    assert failed == [2, 2]


@pytest.mark.parametrize("seconds", [-5.0, 0.0, float("nan")])
async def test_a_retry_after_that_is_not_a_time_holds_no_call(seconds: float) -> None:
    await refused_with(seconds)(max_wait=0)


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
async def test_a_retry_after_holds_the_calls_for_a_day_at_most(seconds: float) -> None:
    with pytest.raises(RateLimitTimeout) as caught:
        await refused_with(seconds)(max_wait=0)
    assert caught.value.retry_after == pytest.approx(86_400, abs=60)


def refused_with(seconds: float) -> Callable[..., Awaitable[Any]]:
    """Return `acquire` of the limiter of a model that has refused a call with this Retry-After."""

    async def ask(**options: Any) -> None:
        layer = RateLimitMiddleware(min_interval=0)
        agent = Agent("a", model=ScriptedChatModel([RateLimited(retry_after=seconds)]), middlewares=[layer])
        with pytest.raises(RateLimited):
            await agent.reply("go")
        (limiter,) = layer._own.values()
        await limiter.acquire(**options)

    return ask


@in_jumping_time
async def test_waiters_use_a_raised_limit_at_once() -> None:
    starts, key = Starts(), next(names)
    RateLimitMiddleware(max_concurrency=1, key=key)
    limiter = rate_limit._limiters[key, None]

    async def widen() -> None:
        RateLimitMiddleware(max_concurrency=3, key=key)

    with anyio.fail_after(60):
        await at_once(*[limiter.acquire] * 3, widen)

    assert starts.now() == 0


@in_jumping_time
async def test_a_waiter_cancelled_right_after_waking_wakes_the_next() -> None:
    limiter, started = Limiter(RateLimits(max_concurrency=1)), list[str]()
    lease = await limiter.acquire()

    async def call(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            lease = await limiter.acquire()
            started.append(name)
            await lease.settle()

    first, second = anyio.CancelScope(), anyio.CancelScope()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for name, scope in (("first", first), ("second", second)):
                group.start_soon(call, name, scope)
                await let_others_run()
            await lease.settle()
            first.cancel()

    # A cancellation may come too late for one that was woken; then it has its turn.
    assert started in (["second"], ["first", "second"])


CALLS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0]),  # seconds after the last arrival
        st.integers(0, 150),  # estimated tokens
        st.integers(0, 300),  # actual tokens
        st.sampled_from([0.0, 0.0, 0.05, 1.0]),  # how long it takes
        st.sampled_from([None, None, None, 0.0, 0.3, 1.5]),  # when it is cancelled
    ),
    min_size=1,
    max_size=25,
)
LIMITS = st.builds(
    RateLimits,
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([None, 3, 120]),
    st.sampled_from([None, 100, 6_000]),
    st.sampled_from([None, 1, 3]),
)


@on_both_loops
@settings(max_examples=60)
@given(calls=CALLS, limits=LIMITS)
def test_cancellations_break_no_limit_and_starve_no_waiter(backend: str, calls: list[Any], limits: RateLimits) -> None:
    started: list[tuple[float, int]] = []
    cancelled: set[int] = set()
    running, most = 0, 0

    async def call(limiter: Limiter, number: int, estimate: int, actual: int, seconds: float, patience: Any) -> None:
        nonlocal running, most
        with anyio.CancelScope() as scope:
            if patience is not None:
                scope.deadline = anyio.current_time() + patience
            lease = await limiter.acquire(estimate)
            started.append((anyio.current_time(), number))
            running += 1
            most = max(most, running)
            try:
                await anyio.sleep(seconds)
            finally:
                running -= 1
                await lease.settle(actual)
        if scope.cancelled_caught:
            cancelled.add(number)

    async def main() -> Limiter:
        limiter = Limiter(limits)
        async with anyio.create_task_group() as group:
            for number, (pause, *values) in enumerate(calls):
                await anyio.sleep(pause)
                group.start_soon(call, limiter, number, *values)
                await let_others_run()
        return limiter

    limiter = play(backend, main)
    order = [number for _, number in started]
    assert order == sorted(order)
    assert set(range(len(calls))) - cancelled <= set(order)
    assert limiter.usage.active == 0
    assert not limiter._queue
    times = [time for time, _ in started]
    assert all(later - earlier >= limits.min_interval - 1e-5 for earlier, later in pairwise(times))
    assert limits.max_concurrency is None or most <= limits.max_concurrency
    if limits.requests_per_minute is not None:
        rate = limits.requests_per_minute / 60
        for first, start in enumerate(times):
            for last, end in enumerate(times[first:], first):
                assert last - first + 1 <= max(1, limits.requests_per_minute) + rate * (end - start) + 1e-3


@on_both_loops
@settings(max_examples=60)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.0, 0.1, 1.0, 40.0]),  # seconds after the last arrival
            st.integers(0, 150),  # estimated tokens
            st.sampled_from([0.0, 0.1, 1.0]),  # the share of them that it takes
            st.sampled_from([0.0, 0.1, 3.0, 70.0]),  # how long it takes
            st.sampled_from([None, None, 0.0, 0.3, 30.0]),  # when it is cancelled
        ),
        min_size=2,
        max_size=25,
    ),
    tokens=st.sampled_from([60, 100, 6_000]),
)
@example(calls=[(0.0, 60, 0.0, 70.0, None), (60.0, 60, 1.0, 3.0, None), (20.0, 60, 1.0, 0.0, None)], tokens=60)
def test_no_window_uses_more_tokens_than_drained_in_it(backend: str, calls: list[Any], tokens: int) -> None:
    started: list[tuple[float, float]] = []

    async def call(limiter: Limiter, estimate: int, share: float, seconds: float, patience: float | None) -> None:
        with anyio.move_on_after(inf if patience is None else patience):
            lease = await limiter.acquire(estimate)
            started.append((anyio.current_time(), share * estimate))
            try:
                await anyio.sleep(seconds)
            finally:
                await lease.settle(share * estimate)

    async def main() -> None:
        limiter = Limiter(RateLimits(0.0, None, tokens, None))
        async with anyio.create_task_group() as group:
            for pause, *values in calls:
                await anyio.sleep(pause)
                group.start_soon(call, limiter, *values)

    play(backend, main)
    # One that is larger than a minute's worth starts when nothing is in use, and later calls wait for it.
    most = max(tokens, *(estimate for _, estimate, *_ in calls))
    for first, (start, _) in enumerate(started):
        taken = 0.0
        for end, actual in started[first:]:
            taken += actual
            assert taken <= most + tokens / 60 * (end - start) + 1e-3


@in_jumping_time
async def test_a_cancelled_head_makes_way_for_the_next() -> None:
    starts, limiter = Starts(), Limiter(RateLimits(min_interval=1))
    await limiter.acquire()
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(limiter.acquire)
            await let_others_run()
            async with anyio.create_task_group() as inner:
                inner.start_soon(limiter.acquire)
                await let_others_run()
                scope.cancel()
    assert starts.now() == 1
    await limiter.acquire()
    assert starts.now() == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"min_interval": -1}, "min_interval=...) must be a number of at least 0, not -1"),
        ({"requests_per_minute": 0}, "requests_per_minute=...) must be a number above 0, not 0"),
        ({"tokens_per_minute": "many"}, "tokens_per_minute=...) must be a number above 0, not 'many'"),
        ({"max_concurrency": 0.5}, "max_concurrency=...) must be a whole number of at least 1, not 0.5"),
        ({"max_wait": float("nan")}, "max_wait=...) must be a number of at least 0, not nan"),
        ({"max_wait": -1}, "max_wait=...) must be a number of at least 0, not -1"),
        ({"max_concurrency": 0}, "max_concurrency=...) must be a whole number of at least 1, not 0"),
        ({"reserve": True}, "reserve=True) is for a limit of tokens, and there is none: give tokens_per_minute"),
        ({"max_concurrency": True}, "max_concurrency=...) must be a whole number of at least 1, not True"),
        ({"min_interval": float("inf")}, "min_interval=...) must be at most 1e+12, not inf: leave it out for no limit"),
        ({"requests_per_minute": float("nan")}, "requests_per_minute=...) must be a number above 0, not nan"),
        ({"requests_per_minute": float("inf")}, "requests_per_minute=...) must be at most 1e+12, not inf"),
        ({"tokens_per_minute": 10**400}, "tokens_per_minute=...) must be at most 1e+12, not 1000"),
        (
            {"store": "redis://:hidden@localhost"},
            "must be a RedisLimitStore, or have its lease_seconds, take, renew, end and block",
        ),
        ({"store": RedisLimitStore}, "and block, not the class RedisLimitStore: make an instance"),
        ({"key": ["orders"]}, "key=...) must be a str that is not empty, not ['orders']"),
        ({"on_store_error": "maybe"}, '"local", "open" or "closed", not \'maybe\''),
    ],
)
def test_an_invalid_limit_is_refused_at_construction(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=re.escape(problem)) as caught:
        RateLimitMiddleware(**options)
    assert "hidden" not in str(caught.value)


def test_each_attempt_of_an_outer_retry_counts() -> None:
    limit, retry, model = RateLimitMiddleware(), RetryMiddleware(), ScriptedChatModel([])
    Agent("a", model=model, middlewares=[retry, limit])
    with pytest.raises(MiddlewareConfigError, match="put RetryMiddleware before RateLimitMiddleware"):
        Agent("a", model=model, middlewares=[limit, retry])


def test_idle_limiters_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MAX_KEPT", 3)
    monkeypatch.setattr(rate_limit, "_limiters", {})

    async def main() -> None:
        busy = RateLimitMiddleware(min_interval=1, key="busy")
        await Agent("a", model=ScriptedChatModel(["Hello."]), middlewares=[busy]).reply("go")
        for number in range(9):
            RateLimitMiddleware(min_interval=1, key=f"idle-{number}")

    play("asyncio", main)
    assert ("busy", None) in rate_limit._limiters
    assert len(rate_limit._limiters) <= 4


def test_a_thread_may_add_a_limiter_while_idle_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MAX_KEPT", 3)
    monkeypatch.setattr(rate_limit, "_limiters", {})
    added = iter(range(3))

    def clock() -> float:  # as another thread might at this point
        for number in added:
            rate_limit._limiters[f"added-{number}", None] = Limiter(RateLimits())
        return monotonic()

    for number in range(4):
        RateLimitMiddleware(min_interval=1, key=f"idle-{number}", clock=clock)
    assert {f"added-{number}" for number in range(3)} <= {name for name, _ in rate_limit._limiters}  # type: ignore[str-unpack, misc]  # keys are any


@pytest.mark.slow
@on_both_loops
def test_a_conversation_survives_cancelling_and_leaving_anywhere(backend: str) -> None:
    layers = []

    def make_agent(log: ToolLog) -> Agent:
        layers.append(RateLimitMiddleware(max_concurrency=1, requests_per_minute=1e6, tokens_per_minute=1e6))
        script = [[ToolCallBlock("1", "add", '{"a": 1, "b": 2}')], "It is 3."]
        return Agent(
            "calculator",
            model=ScriptedChatModel(script),
            toolkit=Toolkit(tools=[log.watch(add)]),
            state_store=InMemoryStateStore(),
            middlewares=[layers[-1]],
        )

    anyio.run(partial(check_every_suspension, make_agent, ["What is 1 + 2?"], at_least=10), backend=backend)
    limiters = [limiter for layer in layers for limiter in layer._own.values()]
    assert len(limiters) > 10
    assert not any(limiter.usage.active for limiter in limiters)


@on_both_loops
def test_threads_with_loops_of_their_own_share_one_queue(backend: str) -> None:
    limiter, running, most = Limiter(RateLimits(max_concurrency=1)), 0, 0

    async def call() -> None:
        nonlocal running, most
        for _ in range(20):
            lease = await limiter.acquire()
            running += 1
            most = max(most, running)
            await anyio.lowlevel.checkpoint()
            running -= 1
            await lease.settle()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(call)

    threads = [Thread(target=partial(anyio.run, main, backend=name)) for name in (backend, *BACKENDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert (limiter.usage.active, len(limiter._queue)) == (0, 0)


@on_both_loops
@pytest.mark.parametrize("blocked", BACKENDS)
def test_a_blocked_event_loop_at_the_head_stops_no_other(backend: str, blocked: str) -> None:
    limiter = Limiter(RateLimits(max_concurrency=1))
    is_waiting, is_over = Event(), Event()
    order: list[str] = []

    async def call(name: str) -> None:
        lease = await limiter.acquire()
        order.append(name)
        await lease.settle()

    async def be_blocked() -> None:
        async with anyio.create_task_group() as group:
            for name in ("first", "second"):
                group.start_soon(call, name)
                await let_others_run()
            is_waiting.set()
            assert is_over.wait(30), "the other loop did not get its turn"

    async def others() -> None:
        lease = await limiter.acquire()
        thread = Thread(target=partial(anyio.run, be_blocked, backend=blocked))
        thread.start()
        try:
            is_waiting.wait(30)
            with anyio.fail_after(20):
                await lease.settle()
                await call("other")
        finally:
            is_over.set()
            thread.join()

    anyio.run(others, backend=backend)
    assert order == ["other", "first", "second"]
    assert limiter.is_idle()


def test_no_event_loop_is_ahead_of_what_runs_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    current_time, delays = anyio.current_time, iter([0.01])

    def read_slowly() -> float:
        now = current_time()
        time.sleep(next(delays, 0))  # the thread is held up once, before it reads the other clock
        return now

    async def ahead() -> float:
        loop_time()
        return loop_time() - monotonic()

    monkeypatch.setattr(anyio, "current_time", read_slowly)
    assert anyio.run(ahead, backend="trio") <= 0


@in_jumping_time
async def test_a_clock_other_than_the_event_loops_is_polled() -> None:
    clock = Clock()
    limiter = Limiter(RateLimits(min_interval=3_600), clock)
    await limiter.acquire()
    started = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(limiter.acquire)
        await anyio.sleep(5)
        clock.now += 3_600

    assert anyio.current_time() - started < 6


async def test_two_clocks_for_one_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_limiters", {})
    clock, key = Clock(), next(names)
    layers = [RateLimitMiddleware(min_interval=1, key=key, clock=clock) for _ in range(2)]
    agents = [Agent("a", model=ScriptedChatModel(["Hello."]), middlewares=[layer]) for layer in layers]
    await agents[0].reply("go")
    with pytest.raises(MiddlewareConfigError, match="already has another clock"):
        RateLimitMiddleware(min_interval=1, key=key)
    clock.now += 1
    RateLimitMiddleware(min_interval=1, key=key)  # nothing is in use any more, so nothing is lost
    with pytest.raises(MiddlewareConfigError, match="already has another clock"):
        await agents[1].reply("go")


async def test_two_clocks_for_the_limit_of_one_account_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_limiters", {})
    for clock in (Clock(), Clock()):
        model = ScriptedChatModel(["Hello."])
        model.account = "one"
        agent = Agent("a", model=model, middlewares=[RateLimitMiddleware(min_interval=1, clock=clock)])
        if not rate_limit._limiters:
            await agent.reply("go")
    with pytest.raises(MiddlewareConfigError, match="already has another clock"):
        await agent.reply("go")


def test_a_limiter_outlives_its_event_loops() -> None:
    limiter = Limiter(RateLimits(min_interval=0.05))

    async def main() -> tuple[float, float]:
        await limiter.acquire()
        first = monotonic()
        await limiter.acquire()
        return first, monotonic()

    times = [pair for backend in ("asyncio", "trio", "asyncio") for pair in anyio.run(main, backend=backend)]
    assert all(later - earlier >= 0.045 for earlier, later in pairwise(times))


def test_a_waiter_of_a_closed_loop_blocks_no_one() -> None:
    limiter = Limiter(RateLimits(max_concurrency=1))

    async def leave_a_waiter() -> Any:
        lease = await limiter.acquire()
        waiting = limiter.acquire()
        asyncio.get_running_loop().create_task(waiting)  # nothing may keep it alive
        await asyncio.sleep(0)
        return lease

    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(leave_a_waiter())
    (task,) = asyncio.all_tasks(loop)
    loop.close()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(limiter.acquire)
            await let_others_run()
            await lease.settle()

    anyio.run(main)
    task._log_destroy_pending = False  # private; it is meant to be lost
    task.get_coro().close()


async def leave_a_waiter(limiter: Limiter) -> tuple[Any, "asyncio.Task[Any]"]:
    lease = await limiter.acquire()
    task = asyncio.get_running_loop().create_task(limiter.acquire())
    await asyncio.sleep(0)
    return lease, task


def test_a_waiter_of_a_stopped_loop_blocks_no_one_and_resumes() -> None:
    limiter = Limiter(RateLimits(max_concurrency=1))
    loop = asyncio.new_event_loop()
    lease, waiting = loop.run_until_complete(leave_a_waiter(limiter))

    async def main() -> None:
        async def call() -> None:
            await (await limiter.acquire()).settle()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await let_others_run()
                await lease.settle()

    anyio.run(main)
    later = loop.run_until_complete(asyncio.wait_for(waiting, 10))
    loop.run_until_complete(later.settle())
    loop.close()
    assert limiter.is_idle()


def test_a_call_lost_with_its_loop_gives_its_place_back() -> None:
    limiter = Limiter(RateLimits(max_concurrency=1))

    async def call() -> None:
        lease = await limiter.acquire()
        try:
            await asyncio.sleep(60)
        finally:
            await lease.settle()

    async def begin() -> "list[asyncio.Task[None]]":
        tasks = [asyncio.get_running_loop().create_task(call()) for _ in range(2)]
        await asyncio.sleep(0)
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(begin())
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # private; it is meant to be lost
        task.get_coro().close()  # as the garbage collector does
    assert (limiter.usage.active, len(limiter._queue)) == (0, 0)


def test_a_waiter_closed_by_the_garbage_collector_blocks_no_one() -> None:
    lost: list[Any] = []

    def clock() -> float:
        while lost:
            lost.pop().close()
        return monotonic()

    limiter = Limiter(RateLimits(max_concurrency=1), clock)

    async def main() -> None:
        lease = await limiter.acquire()
        waiting = limiter.acquire()
        waiting.send(None)
        lost.append(waiting)
        await lease.settle()
        await (await limiter.acquire()).settle()

    thread = Thread(target=partial(anyio.run, main), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert (limiter.usage.active, len(limiter._queue)) == (0, 0)


def test_a_call_sees_an_end_by_the_garbage_collector_at_once() -> None:
    lost: list[Any] = []

    def clock() -> float:
        while lost:
            lost.pop().close()
        return monotonic()

    limiter = Limiter(RateLimits(max_concurrency=1), clock)

    async def main() -> None:
        async def hold() -> None:
            lease = await limiter.acquire()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await lease.settle()

        holder = hold()
        holder.send(None)
        waiter = limiter.acquire()
        waiter.send(None)
        lost.extend([waiter, holder])  # the one that holds the place ends first
        with anyio.fail_after(10):
            await limiter.acquire()

    anyio.run(main)
