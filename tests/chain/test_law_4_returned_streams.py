"""Law 4, for the streams that calls return: a further call first closes those of the call before."""

from typing import Any

import anyio
import pytest

from agentrt._runtime.chain.chains import Chains
from agentrt.errors import ChainError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import Guard, Log, compile_with, enter, log_scope, read_texts, response, stream_model, text_of


class Refuse(Guard):
    """Watches a stream with a plain `async for`, and raises in the middle of the first one."""

    refused = False

    async def _relay(self, agent: Log, stream: Any) -> Any:
        with log_scope(agent, self.name):
            async for item in stream:
                if not self.refused:
                    self.refused = True
                    raise ConnectionError
                yield item


class Again(MiddlewareBase):
    """Continues with another stream where one breaks."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return self._go_on(agent, await next_handler(), next_handler)

    async def _go_on(self, agent: Log, stream: Any, next_handler: Any) -> Any:
        with log_scope(agent, "again"):
            try:
                async for item in stream:
                    yield item
                return
            except ConnectionError:
                agent.append("further call")
            async for item in await next_handler():
                yield item


class One(MiddlewareBase):
    """Lets one call through at a time, to the end of its stream."""

    def __init__(self) -> None:
        self.places = anyio.Semaphore(1)

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await self.places.acquire()
        return self._relay(await next_handler())

    async def _relay(self, stream: Any) -> Any:
        try:
            async for item in stream:
                yield item
        finally:
            self.places.release()


async def test_next_call_in_mid_stream_closes_streams_further_in(agent: Log) -> None:
    chains = compile_with(Guard("1"), Again(), Refuse("2"), Guard("3"), on_model_call=stream_model)
    assert await read_texts(await enter(chains, "on_model_call", agent)) == ["a", "b", "c"]
    assert agent == [
        *("1 opens", "again opens", "2 opens", "3 opens", "core opens"),
        *("2 closes", "further call", "core closes", "3 closes"),
        *("2 opens", "3 opens", "core opens", "core closes", "3 closes", "2 closes"),
        *("again closes", "1 closes"),
    ]


async def test_streams_of_the_next_call_close_before_those_around_them(agent: Log) -> None:
    chains = compile_with(Guard("1"), Again(), Refuse("2"), Guard("3"), on_model_call=stream_model)
    stream = await enter(chains, "on_model_call", agent)
    await anext(stream)
    agent.clear()
    await stream.aclose()
    assert agent == ["core closes", "3 closes", "2 closes", "again closes", "1 closes"]


async def test_resource_held_by_a_stream_is_free_for_the_next_call() -> None:
    chains = compile_with(Again(), Refuse("guard"), One(), on_model_call=stream_model)
    assert await read_texts(await enter(chains, "on_model_call", Log())) == ["a", "b", "c"]


async def test_next_call_closes_the_stream_under_a_layer_that_raised(agent: Log) -> None:
    class RefuseAtOnce(MiddlewareBase):
        refused = False

        async def on_model_call(self, agent, input_kwargs, next_handler):
            stream = await next_handler()
            await anext(stream)
            if not self.refused:
                self.refused = True
                raise ConnectionError
            return stream

    class Retry(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            try:
                return await next_handler()
            except ConnectionError:
                return await next_handler()

    chains = compile_with(Retry(), RefuseAtOnce(), One(), on_model_call=stream_model)
    assert await read_texts(await enter(chains, "on_model_call", agent)) == ["b", "c"]
    assert agent == ["core opens", "core closes"] * 2


async def test_next_call_closes_the_stream_in_its_own_task() -> None:
    tasks: list[int] = []

    class Twice(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            first = await next_handler()

            async def read_one() -> None:
                await anext(first)

            async with anyio.create_task_group() as group:
                group.start_soon(read_one)
            return await next_handler()

    async def core(agent: Log, **values: Any) -> Any:
        async def pieces() -> Any:
            try:
                yield response("a", is_last=False)
                yield response("b")
            finally:
                tasks.append(anyio.get_current_task().id)

        return pieces()

    stream = await enter(compile_with(Twice(), on_model_call=core), "on_model_call", Log())
    assert tasks == [anyio.get_current_task().id]
    await read_texts(stream)


async def test_first_of_two_streams_is_closed_when_the_next_is_opened(agent: Log) -> None:
    class KeepFirst(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            first = await next_handler()
            assert text_of(await anext(first)) == "a"
            await next_handler()
            return first

    assert (
        await read_texts(await enter(compile_with(KeepFirst(), on_model_call=stream_model), "on_model_call", agent))
        == []
    )
    assert agent == ["core opens", "core closes"]


def reading_in_another_task(agent: Log) -> Chains:
    """Chains whose one layer calls again while its first stream is being read."""
    reading = anyio.Event()

    class Overlap(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            stream = await next_handler()

            async def read() -> None:
                await anext(stream)

            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await reading.wait()
                with pytest.raises(ChainError) as caught:
                    await next_handler()
                agent.append(str(caught.value))
                group.cancel_scope.cancel()
            return response("done")

    async def waiting(agent: Log, **values: Any) -> Any:
        async def pieces() -> Any:
            with log_scope(agent, "core"):
                reading.set()
                await anyio.sleep_forever()
                yield

        return pieces()

    return compile_with(Overlap(), Guard("1"), on_model_call=waiting)


async def test_next_call_raises_while_the_last_stream_is_being_read(agent: Log) -> None:
    assert text_of(await enter(reading_in_another_task(agent), "on_model_call", agent)) == "done"
    assert agent == [
        "1 opens",
        "core opens",
        "Overlap.on_model_call called next_handler() while the stream of its last call is running: "
        "finish or close that stream first",
        "core closes",
        "1 closes",
    ]


async def test_failing_clean_up_raises_from_the_next_call_after_others(agent: Log) -> None:
    class BadCleanUp(Guard):
        async def _relay(self, agent: Log, stream: Any) -> Any:
            try:
                async for item in stream:
                    yield item
            finally:
                raise LookupError("clean-up")

    class Twice(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await anext(await next_handler())
            with pytest.raises(LookupError, match="clean-up"):
                await next_handler()
            return await next_handler()

    chains = compile_with(Twice(), Guard("1"), BadCleanUp("2"), on_model_call=stream_model)
    stream = await enter(chains, "on_model_call", agent)
    assert agent == ["1 opens", "core opens", "core closes", "1 closes"]
    with pytest.raises(LookupError, match="clean-up"):
        await read_texts(stream)
