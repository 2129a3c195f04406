"""Law 9: errors keep their type on the way out, with one note that names the layer that raised."""

import asyncio
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from agentrt._runtime.chain.chains import Chains
from agentrt.errors import ChainContractError
from agentrt.hooks import MiddlewareBase
from tests.chain.helpers import STREAMS, Guard, Log, compile_with, enter, event, read_texts, response

Notes = list[str]


async def run(chains: Chains, hook: str) -> None:
    result = enter(chains, hook, Log())
    if hook not in STREAMS:
        result = await result
    if hasattr(result, "__aiter__"):
        await read_texts(result)


async def failure(chains: Chains, hook: str, kind: type[BaseException] = LookupError) -> tuple[BaseException, Notes]:
    """Return the error that leaves the chain, and its notes."""
    with pytest.raises(kind) as caught:
        await run(chains, hook)
    return caught.value, getattr(caught.value, "__notes__", [])


class Raise(MiddlewareBase):
    """Raises one error object, in every hook, at the moment that a test wants."""

    def __init__(self, error: BaseException, moment: str = "before", key: str | None = None) -> None:
        self.error, self.moment, self.key = error, moment, key

    async def _raise(self, agent, input_kwargs, next_handler):
        if self.moment == "before":
            raise self.error
        async for item in next_handler():
            yield item
            if self.moment == "mid":
                raise self.error
        if self.moment == "after":
            raise self.error

    on_reply = on_reasoning = on_acting = _raise

    async def on_model_call(self, agent, input_kwargs, next_handler):
        if self.moment == "before":
            raise self.error
        result = await next_handler()
        if self.moment == "after":
            raise self.error
        return result

    async def on_system_prompt(self, agent, current_prompt):
        if self.moment == "never":
            return current_prompt
        raise self.error


HOOK_NAMES = [*STREAMS, "on_model_call", "on_system_prompt"]
MOMENTS = [(hook, moment) for hook in STREAMS for moment in ("before", "mid", "after")]
MOMENTS += [("on_model_call", "before"), ("on_model_call", "after"), ("on_system_prompt", "before")]


@pytest.mark.parametrize(("hook", "moment"), MOMENTS)
async def test_error_of_a_layer_is_unchanged_with_one_note_naming_it(hook: str, moment: str) -> None:
    error = LookupError("original")
    caught, notes = await failure(compile_with(Guard("1"), Raise(error, moment), Guard("2")), hook)
    assert caught is error
    assert (caught.args, caught.__cause__) == (("original",), None)
    [note] = notes
    line = getattr(Raise, hook).__code__.co_firstlineno
    assert note == f"agentrt: raised by Raise in {hook} ({__file__}:{line})"


@pytest.mark.parametrize("moment", ["before", "mid", "after"])
async def test_a_tool_calls_reader_is_told_which_layer_failed(moment: str) -> None:
    stream = enter(compile_with(Guard("1"), Raise(LookupError(), moment)), "on_acting", Log())
    with pytest.raises(LookupError) as caught:
        for _ in range(10):
            await anext(stream)
    [note] = caught.value.__notes__
    assert "raised by Raise in on_acting" in note


def raising_core(hook: str, error: BaseException) -> Any:
    async def stream(agent: Log, **values: Any) -> Any:
        raise error
        yield

    async def call(agent: Log, **values: Any) -> Any:
        raise error

    return stream if hook in STREAMS else call


@pytest.mark.parametrize("hook", HOOK_NAMES)
async def test_an_error_of_the_core_has_no_note(hook: str) -> None:
    error = LookupError("core")
    layers = [Raise(ValueError(), "never", "1"), Raise(ValueError(), "never", "2")]
    caught, notes = await failure(compile_with(*layers, **{hook: raising_core(hook, error)}), hook)
    assert caught is error
    assert notes == []


@pytest.mark.parametrize("hook", HOOK_NAMES)
async def test_an_error_raised_three_times_has_one_note(hook: str) -> None:
    chains = compile_with(Guard("1"), Raise(LookupError("the same object")))
    for _ in range(3):
        _, notes = await failure(chains, hook)
    assert len(notes) == 1


async def test_error_seen_three_times_by_a_retry_has_one_note() -> None:
    class Retry(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            for attempt in range(3):
                try:
                    async for item in next_handler():
                        yield item
                except LookupError:
                    if attempt == 2:
                        raise

    _, notes = await failure(compile_with(Retry(), Raise(LookupError())), "on_reasoning")
    assert len(notes) == 1
    assert "raised by Raise in" in notes[0]


async def test_notes_added_by_others_are_kept() -> None:
    error = LookupError()
    error.add_note("mine")
    _, notes = await failure(compile_with(Raise(error)), "on_reasoning")
    assert (notes[0], len(notes)) == ("mine", 2)


@pytest.mark.parametrize("hook", HOOK_NAMES)
@pytest.mark.parametrize("guilty", ["first", "second"])
async def test_guilty_one_of_two_middlewares_of_one_class_is_named(hook: str, guilty: str) -> None:
    error = LookupError()
    layers = [Raise(error, "before" if name == guilty else "never", name) for name in ("first", "second")]
    _, [note] = await failure(compile_with(*layers), hook)
    assert f"raised by Raise ('{guilty}') in {hook}" in note


async def test_layer_that_refers_to_another_is_not_mistaken_for_it() -> None:
    class Peer(MiddlewareBase):
        peer: Any = None

        async def on_reasoning(self, agent, input_kwargs, next_handler):
            peer = self.peer
            if peer is not None:
                raise LookupError
            async for item in next_handler():
                yield item

    first, second = Peer(), Peer()
    first.key, second.key, second.peer = "first", "second", first
    _, [note] = await failure(compile_with(first, second), "on_reasoning")
    assert "('second')" in note


async def test_error_in_a_helper_of_a_layer_names_the_layer() -> None:
    class Helped(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in self.relay(next_handler()):
                yield item

        async def relay(self, stream):
            async for item in stream:
                raise LookupError
                yield item

    _, [note] = await failure(compile_with(Guard("1"), Helped(), Guard("2")), "on_reasoning")
    assert "raised by Helped in on_reasoning" in note


async def test_layer_that_translates_an_error_is_named() -> None:
    class Translate(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            except LookupError as error:
                raise ValueError("translated") from error

    caught, [note] = await failure(compile_with(Translate(), Raise(LookupError())), "on_reasoning", ValueError)
    assert "raised by Translate in" in note
    assert isinstance(caught.__cause__, LookupError)


async def test_layer_that_reraises_an_error_is_not_named() -> None:
    class Again(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            except LookupError:
                raise

    _, [note] = await failure(compile_with(Again(), Raise(LookupError()), Again()), "on_reasoning")
    assert "raised by Raise in" in note


async def test_inherited_hook_and_its_override_are_told_apart() -> None:
    class Child(Raise):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await super().on_model_call(agent, input_kwargs, next_handler)

    error = LookupError()
    _, [note] = await failure(compile_with(Raise(error, "never"), Child(error)), "on_model_call")
    assert "raised by Child in" in note
    _, [note] = await failure(compile_with(Child(LookupError(), "never"), Raise(LookupError())), "on_model_call")
    assert "raised by Raise in" in note


async def test_contract_error_at_the_end_of_the_chain_gets_no_note() -> None:
    class Wrong(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield "text"

    _, notes = await failure(compile_with(Wrong()), "on_reasoning", ChainContractError)
    assert notes == []


# The streams that calls return


async def pieces_then(error: Exception | None) -> Any:
    yield response("a", is_last=False)
    if error is not None:
        raise error


def streaming_core(error: Exception | None) -> Any:
    async def call_model(agent: Log, **values: Any) -> Any:
        return pieces_then(error)

    return call_model


async def test_an_error_in_the_stream_of_the_core_has_no_note() -> None:
    error = LookupError("cut")
    caught, notes = await failure(compile_with(Guard("1"), on_model_call=streaming_core(error)), "on_model_call")
    assert caught is error
    assert notes == []


class Pieces:
    """A stream that is not a generator, as those of models that read a connection."""

    def __aiter__(self) -> "Pieces":
        return self

    async def __anext__(self) -> Any:
        raise LookupError

    async def aclose(self) -> None:
        pass


class Relay(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        async for item in await next_handler():
            last = item
        return last


async def test_error_in_a_stream_object_of_the_core_has_no_note() -> None:
    async def call_model(agent: Log, **values: Any) -> Any:
        return Pieces()

    chains = compile_with(Relay(), on_model_call=call_model, on_reasoning=lambda agent, **values: Pieces())
    for hook in ("on_model_call", "on_reasoning"):
        _, notes = await failure(chains, hook)
        assert notes == []


class ReturnPieces(MiddlewareBase):
    def __init__(self, key: str, stops: bool = True) -> None:
        self.key, self.stops = key, stops

    async def on_model_call(self, agent, input_kwargs, next_handler):
        if not self.stops:
            await next_handler()
        return Pieces()


async def test_error_in_a_stream_object_names_the_layer_returning_it() -> None:
    _, [note] = await failure(compile_with(Relay(), ReturnPieces("1")), "on_model_call")
    assert "raised by ReturnPieces ('1') in on_model_call" in note


async def test_error_in_stream_objects_of_one_class_names_no_layer() -> None:
    layers = [ReturnPieces("outer", stops=False), ReturnPieces("inner")]
    _, notes = await failure(compile_with(Relay(), *layers), "on_model_call")
    assert notes == []


async def test_error_in_the_stream_of_the_core_is_not_the_readers() -> None:
    class Drain(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            async for item in await next_handler():
                last = item
            return last

    _, notes = await failure(compile_with(Drain(), on_model_call=streaming_core(LookupError())), "on_model_call")
    assert notes == []


async def test_error_in_a_wrapper_stream_names_the_layer() -> None:
    class Wrap(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return self.relay(await next_handler())

        async def relay(self, stream):
            async for item in stream:
                raise LookupError
                yield item

    _, notes = await failure(compile_with(Wrap(), on_model_call=streaming_core(None)), "on_model_call")
    assert len(notes) == 1
    assert "raised by Wrap in on_model_call" in notes[0]


async def test_error_in_a_wrapper_names_the_right_one_of_one_class() -> None:
    class Wrap(MiddlewareBase):
        def __init__(self, key: str) -> None:
            self.key = key

        async def on_model_call(self, agent, input_kwargs, next_handler):
            stream = await next_handler()

            async def relay():
                async for item in stream:
                    if self.key == "second":
                        raise LookupError
                    yield item

            return relay()

    _, [note] = await failure(
        compile_with(Wrap("first"), Wrap("second"), on_model_call=streaming_core(None)), "on_model_call"
    )
    assert "('second')" in note


async def test_error_of_a_core_stream_made_elsewhere_has_no_note() -> None:
    async def elsewhere() -> Any:
        yield event("a")
        raise LookupError

    def core(agent: Log, tool_choice: Any) -> Any:
        return elsewhere()

    _, notes = await failure(compile_with(Guard("1"), on_reasoning=core), "on_reasoning")
    assert notes == []


# Control flow


class Stop(BaseException):
    """What a runtime would use as control flow."""


@pytest.mark.parametrize("hook", HOOK_NAMES)
async def test_control_flow_has_no_note(hook: str) -> None:
    error = Stop()
    caught, notes = await failure(compile_with(Guard("1"), Raise(error)), hook, Stop)
    assert caught is error
    assert notes == []


async def test_a_cancellation_has_no_note() -> None:
    class Cancel(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            agent.scope.cancel()
            await anyio.sleep_forever()
            yield

    agent = Log()
    with anyio.CancelScope() as agent.scope:
        with pytest.raises(anyio.get_cancelled_exc_class()) as caught:
            await read_texts(enter(compile_with(Guard("1"), Cancel()), "on_reasoning", agent))
        assert not hasattr(caught.value, "__notes__")
        raise caught.value
    assert agent.scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_has_no_note(anyio_backend: str) -> None:
    class Cancel(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    task = asyncio.create_task(enter(compile_with(Cancel()), "on_model_call", Log()))
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert not hasattr(caught.value, "__notes__")


# Chains in chains


class Through(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


def nest_chains(outer: list[Any], inner: list[Any], **cores: Any) -> Chains:
    """Return the chains of a reply whose core enters another chain."""
    inside = compile_with(*inner, **cores)

    async def reply(agent: Log, inputs: Any, structured_schema: Any) -> Any:
        async with aclosing(enter(inside, "on_reasoning", agent)) as stream:
            async for item in stream:
                yield item

    return compile_with(*outer, on_reply=reply)


async def test_error_of_an_inner_chain_is_noted_there_only() -> None:
    _, [note] = await failure(nest_chains([Guard("1")], [Through(), Raise(LookupError())]), "on_reply")
    assert "raised by Raise in on_reasoning" in note


async def test_an_error_of_the_core_of_an_inner_chain_has_no_note() -> None:
    core = raising_core("on_reasoning", LookupError())
    _, notes = await failure(nest_chains([Guard("1")], [Through()], on_reasoning=core), "on_reply")
    assert notes == []


async def test_class_in_both_chains_is_not_blamed_for_the_core() -> None:
    core = raising_core("on_reasoning", LookupError())
    _, notes = await failure(nest_chains([Guard("1")], [Guard("2")], on_reasoning=core), "on_reply")
    assert notes == []


async def test_error_of_an_outer_layer_names_it_not_the_inner_chain() -> None:
    chains = nest_chains([Guard("1"), Raise(LookupError(), "mid")], [Through()])
    _, [note] = await failure(chains, "on_reply")
    assert "raised by Raise in on_reply" in note


class BothHooks(MiddlewareBase):
    """One function serves two hooks, and raises in the hook of the round if it has an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def _both(self, agent, input_kwargs, next_handler):
        if self.error is not None and "tool_choice" in input_kwargs:
            raise self.error
        async for item in next_handler():
            yield item

    on_reply = on_reasoning = _both


async def test_function_of_two_hooks_is_not_blamed_for_the_core() -> None:
    layers = [BothHooks()]
    _, notes = await failure(
        nest_chains(layers, layers, on_reasoning=raising_core("on_reasoning", LookupError())), "on_reply"
    )
    assert notes == []


async def test_function_of_two_hooks_is_named_with_the_right_hook() -> None:
    layers = [BothHooks(LookupError())]
    _, [note] = await failure(nest_chains(layers, layers), "on_reply")
    assert "raised by BothHooks in on_reasoning" in note


async def test_a_chain_inside_itself_names_the_deepest_layer() -> None:
    class Recursive(MiddlewareBase):
        def __init__(self, key: str) -> None:
            self.key = key

        async def on_model_call(self, agent, input_kwargs, next_handler):
            if input_kwargs["messages"] == [self.key]:
                raise LookupError
            return await next_handler()

    async def call_model(agent: Log, messages: Any, **values: Any) -> Any:
        return await chains.on_model_call(agent, messages=["inner"], **values)

    chains = compile_with(Recursive("outer"), Recursive("inner"), on_model_call=call_model)
    _, [note] = await failure(chains, "on_model_call")
    assert "raised by Recursive ('inner') in" in note
