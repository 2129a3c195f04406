"""Layers that emit events while they wait say so; who does not is told what to write."""

import gc
import sys
import warnings
import weakref

import anyio
import pytest

from agentrt import MiddlewareBase
from agentrt.event import CustomEvent
from agentrt.model import ChatResponse
from agentrt.tool import ToolContext
from tests.loop.helpers import add, agent_of, call, items_of, short


class Direct(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        agent.run.emit(CustomEvent("emitted"))
        return await next_handler()


class ThroughHelper(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            self._tell(agent.run.emit)
            yield item

    def _tell(self, emit):
        emit(CustomEvent("emitted"))


async def responses_of(result):
    if isinstance(result, ChatResponse):
        yield result
        return
    async for response in result:
        yield response


class InStream(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        async def stream(result):
            agent.run.emit(CustomEvent("emitted"))
            async for response in responses_of(result):
                yield response

        return stream(await next_handler())


class InStreamOfMethod(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return self._stream(agent, await next_handler())

    async def _stream(self, agent, result):
        agent.run.emit(CustomEvent("emitted"))
        async for response in responses_of(result):
            yield response


class InStreamBesideReply(InStreamOfMethod):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


class InPrompt(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        agent.run.emit(CustomEvent("emitted"))
        return current_prompt


class Around(Direct):
    """Has hooks whose events flow in any case beside the one that emits."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


async def reply_and_warnings(*middlewares):
    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=list(middlewares))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        items = await items_of(agent)
    return [short(item) for item in items], [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "cls", [Direct, ThroughHelper, InStream, InStreamOfMethod, InStreamBesideReply, InPrompt, Around]
)
async def test_class_that_emits_without_saying_so_is_warned_of_once(cls):
    names, messages = await reply_and_warnings(cls())
    assert "emitted" in names
    assert messages == [
        f"{cls.__name__} emitted an event that is not seen before its hook returns control: set `emits = True` on "
        f"{cls.__name__}, or `emits = False` if that is soon enough"
    ]


async def test_warning_is_shown_at_the_first_hook_of_the_class():
    with pytest.warns(UserWarning, match="Direct emitted") as caught:
        await agent_of(["done"], middlewares=[Direct()]).reply("go")
    assert (caught[0].filename, caught[0].lineno) == (__file__, Direct.on_model_call.__code__.co_firstlineno)


async def test_warning_names_the_layer_not_an_object_it_calls():
    class Delegating(MiddlewareBase):
        emitter = Direct()

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await self.emitter.on_model_call(agent, input_kwargs, next_handler)

    with pytest.warns(UserWarning, match="set `emits = True` on Delegating,"):
        await agent_of(["done"], middlewares=[Delegating()]).reply("go")


@pytest.mark.parametrize("says", [True, False])
async def test_class_that_says_whether_it_emits_draws_no_warning(says):
    names, messages = await reply_and_warnings(type("Says", (Direct,), {"emits": says})())
    assert "emitted" in names
    assert messages == []


async def test_events_of_reply_and_reasoning_layers_draw_no_warning():
    class Flowing(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            agent.run.emit(CustomEvent("emitted"))
            async for item in next_handler():
                yield item

        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                agent.run.emit(CustomEvent("emitted"))
                yield item

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler()

    names, messages = await reply_and_warnings(Flowing())
    assert "emitted" in names
    assert messages == []


async def test_event_of_a_tool_inside_a_layer_draws_no_warning():
    class Inside(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item

    async def work(context: ToolContext) -> str:
        """Work."""
        context.emit(CustomEvent("emitted"))
        agent.run.emit(CustomEvent("emitted"))
        return "done"

    async def work_without_context() -> str:
        """Work."""
        agent.run.emit(CustomEvent("emitted"))
        return "done"

    calls = [[call("1", "work")], [call("2", "work_without_context")], "done"]
    agent = agent_of(calls, work, work_without_context, middlewares=[Inside()])
    names = [short(item) for item in await items_of(agent)]
    assert names.count("emitted") == 3


async def test_event_from_a_task_of_the_layer_draws_no_warning():
    class InTask(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            async def work():
                agent.run.emit(CustomEvent("emitted"))

            async with anyio.create_task_group() as group:
                group.start_soon(work)
            return await next_handler()

    names, messages = await reply_and_warnings(InTask())
    assert "emitted" in names
    assert messages == []


async def test_function_that_serves_two_hooks_draws_no_warning():
    class Both(MiddlewareBase):
        async def _both(self, agent, input_kwargs, next_handler):
            if "inputs" in input_kwargs:
                agent.run.emit(CustomEvent("emitted"))
            async for item in next_handler():
                yield item

        on_reply = on_acting = _both

    names, messages = await reply_and_warnings(Both())
    assert "emitted" in names
    assert messages == []


async def test_helper_of_two_hooks_is_warned_of_in_the_late_one():
    class Helped(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            self._tell(agent)
            async for item in next_handler():
                yield item

        async def on_model_call(self, agent, input_kwargs, next_handler):
            self._tell(agent)
            return await next_handler()

        def _tell(self, agent):
            agent.run.emit(CustomEvent("emitted"))

    _, messages = await reply_and_warnings(Helped())
    assert len(messages) == 1


@pytest.mark.anyio
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="others have no reference counts")
async def test_what_a_tool_has_is_freed_after_it_emitted():
    kept = []

    class Large:
        pass

    async def emit_and_leave(context: ToolContext) -> str:
        large = Large()
        kept.append(weakref.ref(large))
        context.emit(CustomEvent("emitted"))
        return "left"

    agent = agent_of([[call("1", "emit_and_leave")], "Done."], emit_and_leave)
    gc.disable()
    try:
        await agent.reply("go")
        assert [ref() for ref in kept] == [None]
    finally:
        gc.enable()
