"""Law 5: however the chain ends, everything that was opened is closed, innermost first, before control returns."""

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio.lowlevel
import pytest

from agentrt._runtime.chain.chains import Chains
from agentrt.errors import ChainContractError, ChainError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import (
    STREAMS,
    Guard,
    Log,
    compile_with,
    enter,
    event,
    log_scope,
    read_texts,
    response,
    stream_model,
    text_of,
)

OPENED = ["1 opens", "2 opens", "3 opens", "core opens"]
CLOSED = ["core closes", "3 closes", "2 closes", "1 closes"]
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
streamed_or_returned = pytest.mark.parametrize("hook", ["on_reasoning", "on_model_call"])


def three(**cores: Any) -> Chains:
    return compile_with(Guard("1"), Guard("2"), Guard("3"), **{"on_model_call": stream_model, **cores})


async def open_stream(chains: Chains, hook: str, agent: Log) -> Any:
    """Return the stream of a hook, be it the hook's own or one that its call returns."""
    entered = enter(chains, hook, agent)
    return await entered if hook == "on_model_call" else entered


def cores_of(core: Any) -> dict[str, Any]:
    """Make a generator, which gets the log and a function that makes an item, the core of both kinds of hooks."""

    def reason(agent: Log, tool_choice: Any) -> Any:
        return core(agent, event)

    async def call_model(agent: Log, **values: Any) -> Any:
        return core(agent, partial(response, is_last=False))

    return {"on_reasoning": reason, "on_model_call": call_model}


# The consumer leaves


@pytest.mark.parametrize("hook", [*STREAMS, "on_model_call"])
async def test_closing_the_chain_closes_streams_innermost_first(hook: str, agent: Log) -> None:
    stream = await open_stream(three(), hook, agent)
    await anext(stream)
    assert agent == OPENED
    await stream.aclose()
    assert agent == OPENED + CLOSED


@streamed_or_returned
async def test_reading_to_the_end_closes_everything(hook: str, agent: Log) -> None:
    assert await read_texts(await open_stream(three(), hook, agent)) == ["a", "b", "c"]
    assert agent == OPENED + CLOSED


async def test_closing_before_the_first_item_opens_nothing(agent: Log) -> None:
    await enter(three(), "on_reasoning", agent).aclose()
    assert agent == []


async def test_closing_twice_closes_once(agent: Log) -> None:
    stream = enter(three(), "on_reasoning", agent)
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    assert agent == OPENED + CLOSED


async def test_everything_is_closed_in_the_task_that_closes() -> None:
    tasks: list[int] = []

    class Where(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                tasks.append(anyio.get_current_task().id)

    stream = enter(compile_with(Where(), Where()), "on_reasoning", Log())

    async def read_one() -> None:
        await anext(stream)

    for _ in range(2):
        async with anyio.create_task_group() as group:
            group.start_soon(read_one)
    await stream.aclose()
    assert tasks == [anyio.get_current_task().id] * 2


async def test_an_error_in_the_body_of_the_consumer_closes_everything(agent: Log) -> None:
    async def consume() -> None:
        async with aclosing(enter(three(), "on_reasoning", agent)) as stream:
            async for _ in stream:
                raise LookupError

    with pytest.raises(LookupError):
        await consume()
    assert agent == OPENED + CLOSED


async def test_an_error_that_the_consumer_throws_in_closes_everything(agent: Log) -> None:
    stream = enter(three(), "on_reasoning", agent)
    await anext(stream)
    with pytest.raises(LookupError):
        await stream.athrow(LookupError)
    assert agent == OPENED + CLOSED


@streamed_or_returned
async def test_a_cancelled_body_of_the_consumer_closes_everything(hook: str, agent: Log) -> None:
    with anyio.CancelScope() as scope:
        async with aclosing(await open_stream(three(), hook, agent)) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert agent == OPENED + CLOSED


# Cancelled while the chain runs


@streamed_or_returned
async def test_cancelled_scope_closes_everything_and_is_not_swallowed(hook: str, agent: Log) -> None:
    async def cancelled(agent: Log, item: Any) -> Any:
        with log_scope(agent, "core"):
            yield item("a")
            agent.scope.cancel()
            await anyio.sleep_forever()

    with anyio.CancelScope() as agent.scope:
        await read_texts(await open_stream(three(**cores_of(cancelled)), hook, agent))
    assert agent.scope.cancelled_caught
    assert agent == OPENED + CLOSED


@on_asyncio
@streamed_or_returned
async def test_native_cancellation_closes_everything_and_goes_through(
    anyio_backend: str, hook: str, agent: Log
) -> None:
    waits = asyncio.Event()

    async def waiting(agent: Log, item: Any) -> Any:
        with log_scope(agent, "core"):
            yield item("a")
            waits.set()
            await anyio.sleep_forever()

    async def consume() -> None:
        await read_texts(await open_stream(three(**cores_of(waiting)), hook, agent))

    task = asyncio.create_task(consume())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent == OPENED + CLOSED


async def test_stream_abandoned_before_a_cancellation_is_closed(agent: Log) -> None:
    class LeaveAndWait(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            with log_scope(agent, "leaver"):
                async for _ in next_handler():
                    break
                agent.scope.cancel()
                await anyio.sleep_forever()
                yield

    with anyio.CancelScope() as agent.scope:
        await read_texts(enter(compile_with(Guard("1"), LeaveAndWait(), Guard("2")), "on_reasoning", agent))
    assert sorted(agent[4:]) == ["1 closes", "2 closes", "core closes", "leaver closes"]


# A core or a layer raises


@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_an_error_in_the_core_closes_everything(when: str, agent: Log) -> None:
    async def core(agent: Log, tool_choice: Any) -> Any:
        with log_scope(agent, "core"):
            if when == "before":
                raise LookupError
            yield event("a")
            if when == "between":
                raise LookupError
        raise LookupError

    with pytest.raises(LookupError):
        await read_texts(enter(three(on_reasoning=core), "on_reasoning", agent))
    assert agent == OPENED + CLOSED


class Raise(MiddlewareBase):
    """Raises before it calls, between two items, or after the last one."""

    def __init__(self, when: str) -> None:
        self.when = when

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        with log_scope(agent, "2"):
            if self.when == "before":
                raise LookupError
            async for item in next_handler():
                yield item
                if self.when == "between":
                    raise LookupError
            raise LookupError


async def raised_by_a_layer(agent: Log, when: str) -> None:
    with pytest.raises(LookupError):
        await read_texts(enter(compile_with(Guard("1"), Raise(when), Guard("3")), "on_reasoning", agent))


async def test_an_error_in_a_layer_before_its_call_closes_everything(agent: Log) -> None:
    await raised_by_a_layer(agent, "before")
    assert agent == ["1 opens", "2 opens", "2 closes", "1 closes"]


async def test_an_error_in_a_layer_between_two_items_closes_everything(agent: Log) -> None:
    await raised_by_a_layer(agent, "between")
    assert sorted(agent[4:]) == sorted(CLOSED)
    assert agent.index("core closes") < agent.index("3 closes")


async def test_error_in_a_layer_after_the_last_item_closes_everything(agent: Log) -> None:
    await raised_by_a_layer(agent, "after")
    assert agent[4:] == CLOSED


@streamed_or_returned
async def test_wrong_item_closes_everything(hook: str, agent: Log) -> None:
    async def wrong(agent: Log, item: Any) -> Any:
        with log_scope(agent, "core"):
            yield "text"
            yield "text"

    with pytest.raises(ChainContractError, match=rf"{hook} passes on .*, but 'text' came out of it"):
        await read_texts(await open_stream(three(**cores_of(wrong)), hook, agent))
    assert agent == OPENED + CLOSED


# A layer stops early


class Leave(MiddlewareBase):
    """Passes on one item and stops, without closing what it was reading."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        with log_scope(agent, "leaver"):
            async for item in next_handler():
                yield item
                return


class More(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
        yield event("x")
        yield event("y")


async def consume(agent: Log, *middlewares: MiddlewareBase) -> Log:
    async for item in enter(compile_with(*middlewares), "on_reasoning", agent):
        agent.append(f"consumer gets {text_of(item)}")
    return agent


async def test_abandoned_stream_closes_before_the_next_item_leaves() -> None:
    agent = await consume(Log(), More(), Leave(), Guard("1"), Guard("2"))
    assert agent == [
        *("leaver opens", "1 opens", "2 opens", "core opens", "consumer gets a", "leaver closes"),
        *("core closes", "2 closes", "1 closes", "consumer gets x", "consumer gets y"),
    ]


async def test_stream_abandoned_by_outermost_closes_before_the_end() -> None:
    agent = await consume(Log(), Leave(), Guard("1"))
    assert agent[-3:] == ["leaver closes", "core closes", "1 closes"]


async def test_abandoned_stream_closes_before_an_outer_layer_reopens() -> None:
    class Again(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            for _ in range(2):
                async for item in next_handler():
                    yield item

    agent = await consume(Log(), Again(), Leave(), Guard("1"))
    one = ["leaver opens", "1 opens", "core opens", "consumer gets a", "leaver closes", "core closes", "1 closes"]
    assert agent == one * 2


async def test_streams_abandoned_by_several_layers_close_together() -> None:
    agent = await consume(Log(), More(), Leave(), Guard("1"), Leave(), Guard("2"))
    gone = agent.index("consumer gets x")
    assert sorted(agent[agent.index("consumer gets a") + 1 : gone]) == sorted(
        ["leaver closes", "leaver closes", "1 closes", "2 closes", "core closes"]
    )


async def test_stream_abandoned_after_a_retry_is_closed() -> None:
    class LeaveTheSecond(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            for _ in range(2):
                async for item in next_handler():
                    yield item
                    break

    agent = await consume(Log(), More(), LeaveTheSecond(), Guard("1"))
    one = ["1 opens", "core opens", "consumer gets a", "core closes", "1 closes"]
    assert agent == [*one, *one, "consumer gets x", "consumer gets y"]


async def test_layer_that_still_yields_keeps_its_inner_stream_open() -> None:
    class Linger(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
                break
            yield event("own")

    agent = await consume(Log(), More(), Linger())
    assert agent.index("consumer gets own") < agent.index("core closes") < agent.index("consumer gets x")


class Failing(MiddlewareBase):
    """Raises while the layers inside it are still open."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
            raise LookupError("original")


class Substitute(MiddlewareBase):
    """Yields an item instead of an error, while it handles the error or after that, and one more."""

    def __init__(self, *, handling: bool) -> None:
        self.handling = handling

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except LookupError:
            if self.handling:
                yield event("instead")
        if not self.handling:
            yield event("instead")
        yield event("more")


async def test_stream_of_a_failed_layer_closes_once_error_is_handled() -> None:
    """While the error is being handled it holds the failed layer's frame, and so the layer counts as running."""
    closed, instead = ["core closes", "1 closes"], ["consumer gets instead"]
    agent = await consume(Log(), Substitute(handling=False), Failing(), Guard("1"))
    assert agent[-4:] == [*closed, *instead, "consumer gets more"]
    agent = await consume(Log(), Substitute(handling=True), Failing(), Guard("1"))
    assert agent[-4:] == [*instead, *closed, "consumer gets more"]


async def test_stream_closes_at_the_end_if_next_handler_is_still_held() -> None:
    class Keep(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            agent.kept = next_handler
            async for item in next_handler():
                yield item
                return

    agent = await consume(Log(), More(), Keep(), Guard("1"))
    assert agent[-2:] == ["core closes", "1 closes"]


# A clean-up that fails


class BadCleanUp(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        finally:
            agent.append("bad closes")
            raise ValueError("clean-up")


class CleanUpFails(MiddlewareBase):
    """Reads nothing, yields one item, and raises while it is being closed."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            yield event("own")
        finally:
            agent.append("bad closes")
            raise ValueError("clean-up")


async def test_failing_clean_up_is_raised_after_the_others_are_closed(agent: Log) -> None:
    stream = enter(compile_with(Guard("1"), BadCleanUp(), Guard("2")), "on_reasoning", agent)
    await anext(stream)
    with pytest.raises(ValueError, match="clean-up"):
        await stream.aclose()
    assert agent[-4:] == ["core closes", "2 closes", "bad closes", "1 closes"]


async def test_innermost_of_several_failing_clean_ups_is_raised() -> None:
    class Worse(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                raise LookupError("outer clean-up")

    stream = enter(compile_with(Worse(), BadCleanUp()), "on_reasoning", Log())
    await anext(stream)
    with pytest.raises(ValueError, match="clean-up"):
        await stream.aclose()


async def test_failing_clean_up_does_not_hide_an_earlier_error(caplog: pytest.LogCaptureFixture, agent: Log) -> None:
    with caplog.at_level(logging.ERROR, "agentrt"), pytest.raises(LookupError, match="original"):
        await read_texts(enter(compile_with(Guard("1"), Failing(), BadCleanUp(), Guard("2")), "on_reasoning", agent))
    assert agent[-4:] == ["1 closes", "core closes", "2 closes", "bad closes"]
    [record] = caplog.records
    first, *_, last = record.getMessage().splitlines()
    assert "clean-up failed while 'LookupError' was being raised" in first
    assert last == "ValueError"


async def test_failing_clean_up_does_not_hide_a_cancellation(agent: Log) -> None:
    class Stop(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
                agent.scope.cancel()
                await anyio.sleep_forever()

    with anyio.CancelScope() as agent.scope:
        await read_texts(enter(compile_with(Stop(), CleanUpFails()), "on_reasoning", agent))
    assert agent.scope.cancelled_caught


@on_asyncio
async def test_failed_clean_up_does_not_hide_a_later_cancellation(anyio_backend: str) -> None:
    waits = asyncio.Event()

    class SlowCleanUp(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                waits.set()
                await anyio.sleep_forever()

    async def open_and_close() -> None:
        stream = enter(compile_with(SlowCleanUp(), CleanUpFails()), "on_reasoning", Log())
        await anext(stream)
        await stream.aclose()

    task = asyncio.create_task(open_and_close())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_clean_up_does_not_prevent_the_others(agent: Log) -> None:
    class SlowCleanUp(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                await anyio.lowlevel.checkpoint()
                agent.append("not reached")

    with anyio.CancelScope() as scope:
        async with aclosing(
            enter(compile_with(Guard("1"), SlowCleanUp(), Guard("2")), "on_reasoning", agent)
        ) as stream:
            await anext(stream)
            scope.cancel()
    assert agent[-3:] == ["core closes", "2 closes", "1 closes"]


async def test_core_that_is_not_a_generator_needs_no_aclose(agent: Log) -> None:
    class Plain:
        """The least that an async iterator can be."""

        def __init__(self, agent: Log, tool_choice: Any) -> None:
            self.left = ["b", "a"]

        def __aiter__(self) -> "Plain":
            return self

        async def __anext__(self) -> Any:
            if not self.left:
                raise StopAsyncIteration
            return event(self.left.pop())

    assert await read_texts(enter(compile_with(Guard("1"), on_reasoning=Plain), "on_reasoning", agent)) == ["a", "b"]
    assert agent == ["1 opens", "1 closes"]


async def test_core_that_is_not_a_generator_is_closed_by_its_aclose(agent: Log) -> None:
    class Source:
        def __init__(self, agent: Log, tool_choice: Any) -> None:
            self.agent = agent

        def __aiter__(self) -> "Source":
            return self

        async def __anext__(self) -> Any:
            return event("a")

        async def aclose(self) -> None:
            self.agent.append("source closes")

    stream = enter(compile_with(Guard("1"), on_reasoning=Source), "on_reasoning", agent)
    await anext(stream)
    await stream.aclose()
    assert agent == ["1 opens", "source closes", "1 closes"]


# What a clean-up opens


class OpensAgain(MiddlewareBase):
    """Calls `next_handler` once more while it is being closed, reads one item and leaves that stream open."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        finally:
            agent.append(f"{self.name} opens again")
            await anext(next_handler())


async def test_stream_opened_in_a_clean_up_closes_before_outer_ones(agent: Log) -> None:
    stream = enter(compile_with(Guard("1"), OpensAgain("2"), Guard("3")), "on_reasoning", agent)
    await anext(stream)
    del agent[:]
    await stream.aclose()
    again = ["2 opens again", "3 opens", "core opens", "core closes", "3 closes"]
    assert agent == ["core closes", "3 closes", *again, "1 closes"]


async def test_stream_opened_in_clean_up_of_a_first_call_is_closed(agent: Log) -> None:
    """The layer had answered by itself until then."""

    class AsksAtTheEnd(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                yield event("own")
            finally:
                await anext(next_handler())

    stream = enter(compile_with(AsksAtTheEnd(), Guard("1")), "on_reasoning", agent)
    await anext(stream)
    await stream.aclose()
    assert agent == ["1 opens", "core opens", "core closes", "1 closes"]


async def test_streams_opened_in_nested_clean_ups_are_closed(agent: Log) -> None:
    stream = enter(compile_with(OpensAgain("1"), OpensAgain("2")), "on_reasoning", agent)
    await anext(stream)
    await stream.aclose()
    assert agent.count("core opens") == agent.count("core closes") == 4


@pytest.mark.parametrize("leave", ["error", "end"])
async def test_stream_opened_in_a_clean_up_closes_however_chain_ends(leave: str, agent: Log) -> None:
    async def core(agent: Log, tool_choice: Any) -> Any:
        with log_scope(agent, "core"):
            yield event("a")
            if leave == "error" and agent.count("core opens") == 1:
                raise LookupError

    stream = read_texts(enter(compile_with(OpensAgain("1"), on_reasoning=core), "on_reasoning", agent))
    if leave == "error":
        with pytest.raises(LookupError):
            await stream
    else:
        await stream
    assert agent.count("core opens") == agent.count("core closes") == 2


async def test_stream_opened_in_a_clean_up_closes_before_the_next_item() -> None:
    agent = await consume(Log(), More(), Leave(), OpensAgain("1"), Guard("2"))
    assert agent.count("core opens") == agent.count("core closes") == 2
    assert agent.index("consumer gets x") == len(agent) - 2


async def test_stream_opened_in_a_clean_up_closes_before_the_next_call() -> None:
    class Twice(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
                break
            agent.append("calls again")
            async for item in next_handler():
                yield item

    agent = await consume(Log(), Twice(), OpensAgain("1"))
    first = ["core opens", "consumer gets a", "calls again"]
    assert agent[:7] == [*first, "core closes", "1 opens again", "core opens", "core closes"]
    assert agent.count("core opens") == agent.count("core closes") == 4


async def test_ended_chain_refuses_to_open_anything() -> None:
    kept = []

    class Keep(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            kept.append(next_handler)
            yield event("own")

    agent = await consume(Log(), Keep(), Guard("1"))
    with pytest.raises(ChainError, match=r"^Keep\.on_reasoning called next_handler\(\) after its chain had ended"):
        kept.pop()()
    assert agent == ["consumer gets own"]
