"""Layers that emit events while they wait say so, and events of the others come when their hooks return control."""

import gc
import sys
import weakref

import anyio
import pytest

from agentrt import MiddlewareBase
from agentrt.event import CustomEvent
from agentrt.testing.kit.baseline import answer_alone
from agentrt.testing.kit.session import KitRun
from agentrt.tool import ToolContext
from tests.loop.helpers import add, agent_of, call, items_of, short


class Waiting(MiddlewareBase):
    """Emits, and waits until the reader has seen it, or for a moment where it cannot see it."""

    def __init__(self) -> None:
        self.seen = anyio.Event()
        self.was_seen = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        agent.run.emit(CustomEvent("emitted"))
        with anyio.move_on_after(10 if self.emits else 0):
            await self.seen.wait()
            self.was_seen = True
        return await next_handler()


@pytest.mark.parametrize("emits", [True, False])
async def test_event_of_a_class_that_says_so_is_seen_while_it_waits(emits):
    layer = type("Layer", (Waiting,), {"emits": emits})()
    names = []
    async with agent_of(["done"], middlewares=[layer]).reply_stream("go") as stream:
        async for event in stream:
            names.append(short(event))
            if names[-1] == "emitted":
                layer.seen.set()
    assert names.count("emitted") == 1
    assert layer.was_seen is emits


class InPrompt(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        agent.run.emit(CustomEvent("emitted"))
        return current_prompt


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("says", [None, True, False])
async def test_kit_finds_a_class_that_emits_and_does_not_say_so(says, anyio_backend):
    run = KitRun(InPrompt if says is None else type("Says", (InPrompt,), {"emits": says}), patience=30)
    await answer_alone(run)
    remedy = "set `emits = True` on InPrompt, or `emits = False` if that is soon enough"
    assert [remedy in problem for problems in run.problems.values() for problem in problems] == [True][
        says is not None :
    ]


async def test_emitting_layer_runs_in_a_task_of_its_own_read_or_not():
    tasks = []

    class Emitting(MiddlewareBase):
        emits = True

        async def on_model_call(self, agent, input_kwargs, next_handler):
            tasks.append(anyio.get_current_task().id)
            return await next_handler()

    await agent_of(["done"], middlewares=[Emitting()]).reply("go")
    await items_of(agent_of(["done"], middlewares=[Emitting()]))
    assert len(tasks) == 2
    assert anyio.get_current_task().id not in tasks


async def test_events_of_tools_with_and_without_a_context_are_all_seen():
    async def work(context: ToolContext) -> str:
        context.emit(CustomEvent("emitted"))
        agent.run.emit(CustomEvent("emitted"))
        return "done"

    async def work_without_context() -> str:
        agent.run.emit(CustomEvent("emitted"))
        return "done"

    calls = [[call("1", "work")], [call("2", "work_without_context")], "done"]
    agent = agent_of(calls, work, work_without_context)
    names = [short(item) for item in await items_of(agent)]
    assert names.count("emitted") == 3


async def test_event_from_a_task_of_the_layer_is_seen():
    class InTask(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            async def work():
                agent.run.emit(CustomEvent("emitted"))

            async with anyio.create_task_group() as group:
                group.start_soon(work)
            return await next_handler()

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[InTask()])
    assert [short(item) for item in await items_of(agent)].count("emitted") == 2


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
