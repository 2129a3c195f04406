"""The answer to one call: its time limits, what is read of it, and its closing."""

import asyncio
import math
from itertools import chain, repeat
from typing import Any

import anyio
import httpx2
import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.errors import Malformed, ModelError, Timeout, Transient, UsageError
from agentrt.model import Timeouts
from tests.middleware.fake_time import in_jumping_time
from tests.model.wire_openai import (
    DONE,
    HANG,
    HELLO,
    PINGS,
    SHORT,
    Answer,
    answer_of,
    completion,
    delta,
    endless_line,
    events,
    failure_of,
    model_of,
    says,
    stream_of,
)


@pytest.mark.parametrize("how", [httpx2.RemoteProtocolError("peer closed connection"), httpx2.ReadError("reset"), None])
async def test_a_cut_stream_says_how_much_came(how: Exception | None) -> None:
    begun = [events(delta(content="Hel"), delta(content="lo")), b'data: {"choi']
    failure = await failure_of(Answer(begun if how is None else [*begun, how]))

    assert type(failure) is Transient
    assert "was cut after 2 pieces with 5 characters" in str(failure)
    assert failure.__cause__ is failure.__context__ is None  # which could hold a secret
    assert (type(how).__name__ if how else "ended before the answer did") in str(failure)


async def test_pieces_before_a_failure_in_the_same_chunk_are_seen() -> None:
    model, _ = model_of(Answer([events(delta(content="Hel"), delta(content="lo"), {"error": {"code": 500}})]))
    seen = []

    with pytest.raises(Transient):
        async for piece in await model(HELLO):
            seen.append(piece.content[0].text)
    await model.aclose()
    assert seen == ["Hel", "lo"]


@pytest.mark.parametrize("end", [[], [HANG], [httpx2.ReadError("reset")], [DONE, HANG]])
@in_jumping_time
async def test_a_complete_answer_is_whole_whatever_follows(end: list[Any]) -> None:
    model, server = model_of(Answer([events(delta(content="Hello"), delta("stop")), *end]))
    assert (await answer_of(model))[-1].is_last
    assert not server.open


@pytest.mark.parametrize(
    "chunks", [[HANG], [events(delta(content="Hel")), HANG], [events(delta(content="Hel")), PINGS]]
)
async def test_a_stream_times_out_when_nothing_but_pings_comes(chunks: list[Any]) -> None:
    failure = await failure_of(Answer(chunks), timeouts=Timeouts(idle=SHORT))

    assert type(failure) is Timeout
    assert f"{SHORT:g} s (idle): to wait longer, give timeouts=Timeouts(idle=...)" in str(failure)


def endless() -> Any:
    while True:
        yield events(delta(content="and "))


@pytest.mark.parametrize(
    ("answer", "stream"), [(HANG, False), (lambda _: Answer(endless()), True), (HANG, True), (Answer([HANG]), False)]
)
async def test_an_answer_that_takes_too_long_is_given_up(answer: Any, stream: bool) -> None:
    failure = await failure_of(answer, stream=stream, timeouts=Timeouts(total=SHORT))

    assert type(failure) is Timeout
    assert f"{SHORT:g} s (total): to wait longer, give timeouts=Timeouts(total=...)" in str(failure)


@in_jumping_time
async def test_a_slow_reader_of_a_stream_takes_nothing_from_the_limits() -> None:
    model, _ = model_of(Answer([*(events(delta(content="a")) for _ in range(3)), events(delta("stop")), DONE]))
    model.timeouts = Timeouts(idle=2, total=2)
    pieces = 0
    async for _ in await model(HELLO):
        pieces += 1
        await anyio.sleep(1)
    await model.aclose()
    assert pieces == 4


@pytest.mark.parametrize("chunks", [[HANG], [events(delta(content="Hel")), HANG]])
async def test_the_callers_own_time_limit_passes_through(chunks: list[Any]) -> None:
    model, server = model_of(Answer(chunks))

    with pytest.raises(TimeoutError) as caught, anyio.fail_after(SHORT):
        await answer_of(model)
    assert not isinstance(caught.value, ModelError)
    assert not server.open


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_time_limit_passes_through() -> None:
    model, server = model_of(Answer([events(delta(content="Hel")), HANG]))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT):
            await answer_of(model)
    assert not server.open


@pytest.mark.parametrize("answer", [HANG, Answer([HANG]), Answer([events(delta(content="Hel")), HANG])])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_leaves_nothing_open(answer: Any, stream: bool) -> None:
    model, server = model_of(answer, stream=stream)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Agent("tester", model=model).reply, "go")
        await server.hanging.wait()
        tasks.cancel_scope.cancel()
    assert not server.open
    await model.aclose()


@pytest.mark.parametrize("read", [0, 1])
async def test_a_closed_stream_releases_its_connection_even_if_unread(read: int) -> None:
    model, server = model_of(stream_of(*(delta(content="word ") for _ in range(9))))
    stream: Any = await model(HELLO)
    for _ in range(read):
        await anext(stream)
    assert server.open

    await stream.aclose()

    assert not server.open
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
    await model.aclose()


async def test_a_stream_is_closed_even_by_a_task_that_is_cancelled() -> None:
    model, server = model_of(stream_of(*(delta(content="word ") for _ in range(9))))
    stream: Any = await model(HELLO)
    await anext(stream)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()
    assert not server.open
    await model.aclose()


async def test_leaving_a_reply_in_the_middle_releases_the_connection() -> None:
    model, server = model_of(stream_of(*(delta(content="word ") for _ in range(9)), delta("stop")))

    async with Agent("tester", model=model).reply_stream("go") as reply:
        async for event in reply:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert not server.open
    await model.aclose()


async def test_a_stream_is_what_the_loop_takes_for_one() -> None:
    model, server = model_of(says("ok"))

    assert model.stream
    assert (await Agent("tester", model=model).reply("go")).get_text_content() == "ok"
    assert not server.open
    await model.aclose()


class Relay(MiddlewareBase):
    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        async def relay(stream: Any) -> Any:
            async for piece in stream:
                yield piece

        return relay(await next_handler())


async def test_a_layer_is_not_blamed_for_the_stream_that_it_passes_on() -> None:
    model, server = model_of(Answer([events(delta(content="Hel")), httpx2.ReadError("reset")]))

    with pytest.raises(Transient) as caught:
        await Agent("tester", model=model, middlewares=[Relay()]).reply("go")
    assert not getattr(caught.value, "__notes__", [])
    assert not server.open
    await model.aclose()


async def test_a_further_attempt_closes_the_stream_of_the_one_before() -> None:
    class Twice(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            await next_handler()
            return await next_handler()

    model, server = model_of(says("Hello"))
    msg = await Agent("tester", model=model, middlewares=[Twice()]).reply("go")
    await model.aclose()

    assert (msg.get_text_content(), len(server.requests)) == ("Hello", 2)
    assert not server.open


async def test_a_stream_in_use_refuses_to_be_read_or_closed_elsewhere() -> None:
    model, server = model_of(Answer([events(delta(content="Hel")), HANG]))
    stream: Any = await model(HELLO)
    await anext(stream)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, stream)
        await server.hanging.wait()
        for use in (stream.aclose, stream.__anext__):
            with pytest.raises(UsageError, match="another task"):
                await use()
        tasks.cancel_scope.cancel()
    assert not server.open
    await stream.aclose()
    await model.aclose()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunks", [endless_line, endless, lambda: chain([b"{"], endless_line())])
async def test_an_answer_without_end_is_given_up(chunks: Any, stream: bool) -> None:
    failure = await failure_of(lambda _: Answer(chunks()), stream=stream, max_bytes=200_000)

    assert type(failure) is Malformed
    assert "more than 200,000 bytes: to take more, give max_bytes=..." in str(failure)


async def test_an_answer_of_the_size_allowed_is_taken() -> None:
    played = completion(content="ok")
    size = sum(map(len, played.chunks))

    assert (await answer_of(model_of(played, stream=False, max_bytes=size)[0]))[-1].is_last
    assert type(await failure_of(played, stream=False, max_bytes=size - 1)) is Malformed


async def test_without_limits_the_answer_comes_as_well() -> None:
    model, _ = model_of(says("ok"), timeouts=Timeouts(float("inf"), float("inf"), float("inf")))

    assert (await answer_of(model))[-1].is_last


async def test_a_server_that_floods_pings_is_held_to_the_total() -> None:
    flood = b": ping\n\n" * 100_000
    with anyio.fail_after(30):
        failure = await failure_of(
            lambda _: Answer(repeat(flood)), timeouts=Timeouts(idle=math.inf, total=0.3), max_bytes=500_000_000
        )

    assert type(failure) is Timeout
    assert "(total)" in str(failure)
