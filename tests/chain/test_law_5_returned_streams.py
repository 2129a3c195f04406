"""Law 5, for calls: a stream that a call returned has an owner, who closes it and everything that was opened for it."""

from typing import Any

import anyio
import pytest

from agentrt.errors import ChainError
from agentrt.hooks import MiddlewareBase
from agentrt.types import ChatResponse
from tests.chain.helpers import Guard, Log, compile_with, enter, read_texts, response, stream_model, text_of

CLOSED = ["core closes", "2 closes", "1 closes"]


class Source:
    """A stream of responses that, unlike a generator, records its closing even if it was never started."""

    def __init__(self, agent: Log, name: str, error: Exception | None = None) -> None:
        self.agent, self.name, self.error = agent, name, error
        self.left = [response("c"), response("b", is_last=False), response("a", is_last=False)]

    def __aiter__(self) -> "Source":
        return self

    async def __anext__(self) -> ChatResponse:
        if self.error is not None and len(self.left) == 2:
            raise self.error
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()

    async def aclose(self) -> None:
        self.agent.append(f"{self.name} closes")


class Wrapped(Source):
    """A stream that a layer put around another one."""

    def __init__(self, agent: Log, name: str, inner: Any) -> None:
        super().__init__(agent, name)
        self.inner = inner

    async def __anext__(self) -> ChatResponse:
        return await anext(self.inner)


class Wrap(MiddlewareBase):
    def __init__(self, name: str) -> None:
        self.name = name

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return Wrapped(agent, self.name, await next_handler())


async def source(agent: Log, **values: Any) -> Any:
    return Source(agent, "core")


# The consumer leaves


async def test_closing_a_stream_that_never_started_closes_wrappers(agent: Log) -> None:
    stream = await enter(compile_with(Wrap("1"), Wrap("2"), on_model_call=source), "on_model_call", agent)
    await stream.aclose()
    assert agent == CLOSED


async def test_closing_a_returned_stream_twice_closes_once(agent: Log) -> None:
    stream = await enter(compile_with(Wrap("1"), on_model_call=source), "on_model_call", agent)
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    assert agent == ["core closes", "1 closes"]


async def test_stream_that_layers_only_pass_on_is_closed_once(agent: Log) -> None:
    class Through(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler()

    stream = await enter(compile_with(Through(), Through(), on_model_call=source), "on_model_call", agent)
    await stream.aclose()
    assert agent == ["core closes"]


async def test_returned_stream_is_closed_in_the_task_that_closes() -> None:
    tasks: list[int] = []

    class Where(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return self.relay(await next_handler())

        async def relay(self, stream):
            try:
                async for item in stream:
                    yield item
            finally:
                tasks.append(anyio.get_current_task().id)

    stream = await enter(compile_with(Where(), on_model_call=stream_model), "on_model_call", Log())

    async def read_one() -> None:
        await anext(stream)

    async with anyio.create_task_group() as group:
        group.start_soon(read_one)
    await stream.aclose()
    assert tasks == [anyio.get_current_task().id]


# Something fails


async def test_error_in_mid_stream_closes_everything(agent: Log) -> None:
    async def broken(agent: Log, **values: Any) -> Any:
        return Source(agent, "core", ConnectionError("cut"))

    stream = await enter(compile_with(Wrap("1"), Wrap("2"), on_model_call=broken), "on_model_call", agent)
    with pytest.raises(ConnectionError, match="cut"):
        await read_texts(stream)
    assert agent == CLOSED


async def test_layer_that_raises_after_getting_a_stream_closes_it(agent: Log) -> None:
    class Raise(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await next_handler()
            raise LookupError

    with pytest.raises(LookupError):
        await enter(compile_with(Wrap("1"), Raise(), Wrap("2"), on_model_call=source), "on_model_call", agent)
    assert agent == ["core closes", "2 closes"]


class Wait(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        await next_handler()
        agent.scope.cancel()
        await anyio.sleep_forever()


async def test_layer_cancelled_after_getting_a_stream_leaves_none_open(agent: Log) -> None:
    with anyio.CancelScope() as agent.scope:
        await enter(compile_with(Wait(), Wrap("2"), on_model_call=source), "on_model_call", agent)
    assert agent.scope.cancelled_caught
    assert agent == ["core closes", "2 closes"]


class BadCleanUp(Wrapped):
    async def aclose(self) -> None:
        await super().aclose()
        raise ValueError("clean-up")


class WrapBadly(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return BadCleanUp(agent, "bad", await next_handler())


async def test_failing_clean_up_is_raised_after_the_others_are_closed(agent: Log) -> None:
    stream = await enter(compile_with(Wrap("1"), WrapBadly(), on_model_call=source), "on_model_call", agent)
    await anext(stream)
    with pytest.raises(ValueError, match="clean-up"):
        await stream.aclose()
    assert agent == ["core closes", "bad closes", "1 closes"]


async def test_failing_clean_up_does_not_hide_an_earlier_error(caplog: pytest.LogCaptureFixture, agent: Log) -> None:
    async def broken(agent: Log, **values: Any) -> Any:
        return Source(agent, "core", ConnectionError("cut"))

    stream = await enter(compile_with(Wrap("1"), WrapBadly(), on_model_call=broken), "on_model_call", agent)
    with pytest.raises(ConnectionError, match="cut"):
        await read_texts(stream)
    assert agent == ["core closes", "bad closes", "1 closes"]
    [record] = caplog.records
    assert "clean-up failed while 'ConnectionError' was being raised" in record.getMessage()


async def test_failing_clean_up_does_not_hide_a_cancellation(caplog: pytest.LogCaptureFixture, agent: Log) -> None:
    with anyio.CancelScope() as agent.scope:
        await enter(compile_with(Wait(), WrapBadly(), on_model_call=source), "on_model_call", agent)
    assert agent.scope.cancelled_caught
    assert agent == ["core closes", "bad closes"]
    assert len(caplog.records) == 1


# A layer reads it itself


async def test_layer_may_drain_a_stream_and_return_a_plain_response(agent: Log) -> None:
    class Join(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return response("".join(await read_texts(await next_handler())))

    result = await enter(compile_with(Join(), Guard("2"), on_model_call=stream_model), "on_model_call", agent)
    assert text_of(result) == "abc"
    assert agent == ["2 opens", "core opens", "core closes", "2 closes"]


async def test_layer_that_reads_only_the_beginning_leaves_none_open(agent: Log) -> None:
    class First(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            stream = await next_handler()
            return response(text_of(await anext(stream)))

    result = await enter(compile_with(First(), Guard("2"), on_model_call=stream_model), "on_model_call", agent)
    assert text_of(result) == "a"
    assert agent == ["2 opens", "core opens", "core closes", "2 closes"]


async def test_layer_that_answers_without_reading_leaves_none_open(agent: Log) -> None:
    class Ignore(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await next_handler()
            return response("own")

    chains = compile_with(Ignore(), Wrap("2"), on_model_call=source)
    assert text_of(await enter(chains, "on_model_call", agent)) == "own"
    assert agent == ["core closes", "2 closes"]


# Earlier attempts


class Attempts:
    """A core whose first stream breaks after one piece."""

    def __init__(self) -> None:
        self.count = 0

    async def call(self, agent: Log, **values: Any) -> Any:
        self.count += 1
        return Source(agent, f"core {self.count}", ConnectionError("cut") if self.count == 1 else None)


class Retry(MiddlewareBase):
    """Reads one piece before it trusts a stream, and asks again when that fails."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        stream = await next_handler()
        try:
            [item async for item in stream]
        except ConnectionError:
            return await next_handler()
        raise AssertionError


async def test_stream_of_an_earlier_attempt_closes_before_the_next(agent: Log) -> None:
    chains = compile_with(Wrap("1"), Retry(), Wrap("2"), on_model_call=Attempts().call)
    stream = await enter(chains, "on_model_call", agent)
    assert agent == ["core 1 closes", "2 closes"]
    await stream.aclose()
    assert agent == ["core 1 closes", "2 closes", "core 2 closes", "2 closes", "1 closes"]


async def test_stream_of_an_attempt_closes_when_a_response_replaces_it(agent: Log) -> None:
    class FallBack(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            try:
                return response("".join(await read_texts(await next_handler())))
            except ConnectionError:
                return response("".join(await read_texts(await next_handler())))

    chains = compile_with(FallBack(), on_model_call=Attempts().call)
    assert text_of(await enter(chains, "on_model_call", agent)) == "abc"
    assert agent == ["core 1 closes", "core 2 closes"]


async def test_stream_of_an_attempt_closes_when_the_last_one_fails(agent: Log) -> None:
    class FailTwice(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await next_handler()
            await next_handler()
            raise LookupError

    with pytest.raises(LookupError):
        await enter(compile_with(FailTwice(), on_model_call=Attempts().call), "on_model_call", agent)
    assert agent == ["core 1 closes", "core 2 closes"]


# What a clean-up opens


class AsksAgain(MiddlewareBase):
    """Calls the model once more while its stream is being closed, and leaves what comes open."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        async def relay(stream):
            try:
                async for item in stream:
                    yield item
            finally:
                agent.append("asks again")
                await anext(await next_handler())

        return relay(await next_handler())


async def test_stream_opened_in_a_clean_up_closes_before_outer_ones(agent: Log) -> None:
    stream = await enter(
        compile_with(Guard("1"), AsksAgain(), Guard("2"), on_model_call=stream_model), "on_model_call", agent
    )
    await anext(stream)
    del agent[:]
    await stream.aclose()
    again = ["asks again", "2 opens", "core opens", "core closes", "2 closes"]
    assert agent == ["core closes", "2 closes", *again, "1 closes"]


async def test_ended_chain_refuses_calls() -> None:
    kept = []

    class Keep(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            kept.append(next_handler)
            return await next_handler()

    await read_texts(await enter(compile_with(Keep(), on_model_call=stream_model), "on_model_call", agent := Log()))
    with pytest.raises(ChainError, match=r"^Keep\.on_model_call called next_handler\(\) after its chain had ended"):
        await kept.pop()()
    assert agent == ["core opens", "core closes"]
