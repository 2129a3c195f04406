"""Law 4: a layer may skip `next_handler`, call it once, or call it again."""

from typing import Any

import anyio.lowlevel
import pytest

from agentrt.errors import ChainError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import (
    STREAMS,
    Guard,
    Log,
    call_model,
    compile_with,
    enter,
    event,
    log_scope,
    message,
    read_texts,
    response,
    text_of,
)

# Zero


async def test_stream_layer_may_answer_without_the_core(agent: Log) -> None:
    class Short(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield message("short")

    assert await read_texts(enter(compile_with(Short(), Guard("inner")), "on_reply", agent)) == ["short"]
    assert agent == []


async def test_call_layer_may_answer_without_the_core(agent: Log) -> None:
    class Short(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return response("short")

    assert text_of(await enter(compile_with(Short(), Guard("inner")), "on_model_call", agent)) == "short"
    assert agent == []


async def test_stream_that_is_never_read_is_never_started(agent: Log) -> None:
    class Unread(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            next_handler()
            yield event("own")

    assert await read_texts(enter(compile_with(Unread(), Guard("inner")), "on_reasoning", agent)) == ["own"]
    assert agent == []


# Once


@pytest.mark.parametrize("hook", STREAMS)
async def test_super_passes_a_stream_through(hook: str, agent: Log) -> None:
    class Through(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in super().on_reply(agent, input_kwargs, next_handler):
                yield item

        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in super().on_reasoning(agent, input_kwargs, next_handler):
                yield item

        async def on_acting(self, agent, input_kwargs, next_handler):
            async for item in super().on_acting(agent, input_kwargs, next_handler):
                yield item

    assert await read_texts(enter(compile_with(Through(), Through()), hook, agent)) == ["a", "b", "c"]
    assert agent == ["core opens", "core closes"]


async def test_super_passes_a_call_through() -> None:
    class Through(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await super().on_model_call(agent, input_kwargs, next_handler)

    assert text_of(await enter(compile_with(Through(), Through()), "on_model_call", Log())) == "answer"


async def test_super_passes_a_prompt_through() -> None:
    class Through(MiddlewareBase):
        async def on_system_prompt(self, agent, current_prompt):
            return await super().on_system_prompt(agent, current_prompt) + "!"

    assert await enter(compile_with(Through(), Through()), "on_system_prompt", Log()) == "prompt!!"


async def test_super_passes_on_what_was_changed_in_place() -> None:
    class Change(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            input_kwargs["messages"] = ["another"]
            return await super().on_model_call(agent, input_kwargs, next_handler)

    async def call_model(agent: Log, messages: Any, tools: Any, tool_choice: Any, current_model: Any) -> Any:
        return response(messages[0])

    assert text_of(await enter(compile_with(Change(), on_model_call=call_model), "on_model_call", Log())) == "another"


# Many


class Retry(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        for attempt in (1, 2, 3):
            try:
                async for item in next_handler():
                    yield item
            except ConnectionError:
                if attempt == 3:
                    raise
            else:
                return

    async def on_model_call(self, agent, input_kwargs, next_handler):
        for attempt in (1, 2, 3):
            try:
                return await next_handler()
            except ConnectionError:
                if attempt == 3:
                    raise
        raise AssertionError


class Flaky:
    """A core that fails a given number of times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    async def reason(self, agent: Log, tool_choice: Any) -> Any:
        self.calls += 1
        with log_scope(agent, f"core {self.calls}"):
            yield event("a")
            if self.calls <= self.failures:
                raise ConnectionError
            yield event("b")

    async def call_model(self, agent: Log, **values: Any) -> Any:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError
        return response(f"answer {self.calls}")


async def test_a_stream_may_be_tried_again(agent: Log) -> None:
    chains = compile_with(Retry(), Guard("inner"), on_reasoning=Flaky(1).reason)
    assert await read_texts(enter(chains, "on_reasoning", agent)) == ["a", "a", "b"]
    assert agent == [
        *("inner opens", "core 1 opens", "core 1 closes", "inner closes"),
        *("inner opens", "core 2 opens", "core 2 closes", "inner closes"),
    ]


async def test_the_last_error_of_a_retried_stream_leaves() -> None:
    flaky = Flaky(9)
    with pytest.raises(ConnectionError):
        await read_texts(enter(compile_with(Retry(), on_reasoning=flaky.reason), "on_reasoning", Log()))
    assert flaky.calls == 3


async def test_a_call_may_be_tried_again() -> None:
    chains = compile_with(Retry(), Guard("inner"), on_model_call=Flaky(2).call_model)
    assert text_of(await enter(chains, "on_model_call", Log())) == "answer 3"


async def test_retries_multiply() -> None:
    flaky = Flaky(99)
    with pytest.raises(ConnectionError):
        await enter(compile_with(Retry(), Retry(), on_model_call=flaky.call_model), "on_model_call", Log())
    assert flaky.calls == 9


async def test_a_call_may_be_made_again_with_another_value() -> None:
    class Fallback(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            try:
                return await next_handler()
            except ConnectionError:
                return await next_handler(messages=["fallback"])

    async def call_model(agent: Log, messages: Any, tools: Any, tool_choice: Any, current_model: Any) -> Any:
        if messages != ["fallback"]:
            raise ConnectionError
        return response("from the fallback")

    chains = compile_with(Fallback(), on_model_call=call_model)
    assert text_of(await enter(chains, "on_model_call", Log())) == "from the fallback"


async def test_a_stream_may_be_read_again_after_its_end() -> None:
    class Twice(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            for _ in range(2):
                async for item in next_handler():
                    yield item

    assert await read_texts(enter(compile_with(Twice(), Twice()), "on_reasoning", Log())) == ["a", "b", "c"] * 4


class Restart(MiddlewareBase):
    """Reads one item and begins again, three times in all."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        for _ in range(2):
            async for item in next_handler():
                yield item
                break
        agent.append("last")
        async for item in next_handler():
            yield item


async def test_next_call_closes_the_suspended_stream_innermost_first(agent: Log) -> None:
    chains = compile_with(Guard("1"), Restart(), Guard("2"), Guard("3"))
    assert await read_texts(enter(chains, "on_reasoning", agent)) == ["a", "a", "a", "b", "c"]
    opening, closing = ["2 opens", "3 opens", "core opens"], ["core closes", "3 closes", "2 closes"]
    assert agent == ["1 opens", *opening, *closing, *opening, "last", *closing, *opening, *closing, "1 closes"]


async def test_restarts_may_be_nested(agent: Log) -> None:
    assert await read_texts(enter(compile_with(Restart(), Restart()), "on_reasoning", agent)) == ["a", "a", *"aaabc"]
    opened = [line for line in agent if line != "last"]
    assert opened == ["core opens", "core closes"] * 5


async def test_next_call_raises_while_the_earlier_stream_runs(agent: Log) -> None:
    reading = anyio.Event()

    class Overlap(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            stream = next_handler()

            async def read() -> None:
                await anext(stream)

            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await reading.wait()
                with pytest.raises(ChainError) as caught:
                    next_handler()
                agent.append(str(caught.value))
                group.cancel_scope.cancel()
            yield event("done")

    async def waiting(agent: Log, tool_choice: Any) -> Any:
        reading.set()
        await anyio.sleep_forever()
        yield

    assert await read_texts(enter(compile_with(Overlap(), on_reasoning=waiting), "on_reasoning", agent)) == ["done"]
    assert agent == [
        "Overlap.on_reasoning called next_handler() while the stream of its last call is running: "
        "finish or close that stream first"
    ]


async def test_reading_two_streams_of_one_layer_side_by_side_raises(agent: Log) -> None:
    reading = anyio.Event()

    class SideBySide(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            first, second = next_handler(), next_handler()

            async def read() -> None:
                await anext(first)

            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await reading.wait()
                with pytest.raises(ChainError, match="while the stream of its last call is running"):
                    await anext(second)
                group.cancel_scope.cancel()
            yield event("done")

    async def waiting(agent: Log, tool_choice: Any) -> Any:
        with log_scope(agent, "core"):
            reading.set()
            await anyio.sleep_forever()
            yield

    assert await read_texts(enter(compile_with(SideBySide(), on_reasoning=waiting), "on_reasoning", agent)) == ["done"]
    assert agent == ["core opens", "core closes"]


async def test_only_the_last_of_several_streams_need_be_read(agent: Log) -> None:
    class Wasteful(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            next_handler()
            next_handler()
            async for item in next_handler():
                yield item

    assert await read_texts(enter(compile_with(Wasteful()), "on_reasoning", agent)) == ["a", "b", "c"]
    assert agent == ["core opens", "core closes"]


async def test_streams_may_be_opened_first_and_read_in_turn(agent: Log) -> None:
    class Ahead(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            for stream in [next_handler() for _ in range(3)]:
                async for item in stream:
                    yield item

    assert await read_texts(enter(compile_with(Ahead()), "on_reasoning", agent)) == ["a", "b", "c"] * 3
    assert agent == ["core opens", "core closes"] * 3


async def test_two_calls_at_once_raise(agent: Log) -> None:
    class Both(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            results = []

            async def call() -> None:
                try:
                    results.append(text_of(await next_handler()))
                except ChainError as error:
                    results.append(str(error))

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                group.start_soon(call)
            agent.extend(results)
            return response("done")

    async def slow(agent: Log, **values: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return response("slow")

    await enter(compile_with(Both(), on_model_call=slow), "on_model_call", agent)
    assert agent == [
        "Both.on_model_call called next_handler() while its last call is running: await that one first",
        "slow",
    ]


async def test_a_call_may_be_made_again_after_one_that_was_cancelled() -> None:
    class Impatient(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await next_handler()
            return await next_handler()

    async def slow(agent: Log, **values: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return await call_model(agent, **values)

    assert text_of(await enter(compile_with(Impatient(), on_model_call=slow), "on_model_call", Log())) == "answer"
