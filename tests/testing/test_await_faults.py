"""The fault harness finds what is broken, says what and where in words, and leaves alone what is whole."""

import asyncio
import doctest
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
import trio

import agentrt.testing
from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt._runtime.loop import delivery
from agentrt.message import TextBlock
from agentrt.testing import FAULTS, InMemoryStateStore, ScriptedChatModel, ToolLog, check_every_suspension
from agentrt.tool import ToolResponse
from tests.loop.helpers import call

AT_SUSPENSION = r"at suspension \d+ \(in (\w+ \(.*\.py:\d+\) > .*|the reader of the stream)\): "


async def add(a: int, b: int) -> int:
    await anyio.lowlevel.checkpoint()
    return a + b


def agent(log: ToolLog, *middlewares: MiddlewareBase, cls: type[Agent] = Agent) -> Agent:
    return cls(
        "tester",
        model=ScriptedChatModel([[call("1", "add", a=1, b=2)], "It is three."], stream=False),
        toolkit=Toolkit(tools=[log.watch(add)]),
        middlewares=middlewares,
        state_store=InMemoryStateStore(),
    )


async def test_the_suspensions_of_a_sound_agent_are_counted():
    report = await check_every_suspension(agent, at_least=20)
    assert report.suspensions >= 20
    assert report.runs["cancel"] == report.suspensions
    assert str(report).startswith(f"{report.suspensions} suspensions; runs with a fault: ")


async def test_faults_at_a_part_of_the_places_reach_all_together():
    report = await check_every_suspension(agent, faults=["cancel", "interrupt", "kill"], every=3)
    assert report.suspensions % 3, "then three times the same third would be as many"
    assert sum(report.runs.values()) == report.suspensions


async def test_each_fault_has_a_place_however_few_are_tried():
    report = await check_every_suspension(agent, every=1_000)
    assert report.runs == dict.fromkeys(report.runs, 1)
    assert {"fail_model", "fail_store", "leave", "kill"} <= set(report.runs)


async def test_a_save_without_a_shield_is_found(monkeypatch):
    async def without_a_shield(seconds: float, work: Callable[[], Any]) -> bool:
        await work()
        return True

    monkeypatch.setattr(delivery, "run_shielded", without_a_shield)
    words = f"cancel {AT_SUSPENSION}in what was saved, the reply '.*' is neither over nor does it wait"
    with pytest.raises(AssertionError, match=words):
        await check_every_suspension(agent, faults=["cancel"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_shield_that_a_second_cancellation_breaks_is_found(monkeypatch):
    async def shielded_once(seconds: float, work: Callable[[], Any]) -> bool:
        with anyio.CancelScope(shield=True):
            await work()
        return True

    monkeypatch.setattr(delivery, "run_shielded", shielded_once)
    await check_every_suspension(agent, faults=["cancel", "cancel_task"])
    with pytest.raises(AssertionError, match=f"cancel_task_twice {AT_SUSPENSION}in what was saved, the reply '.*' is"):
        await check_every_suspension(agent, faults=["cancel_task_twice"])


async def test_a_result_that_is_lost_is_found(monkeypatch):
    monkeypatch.setattr(delivery, "close_open_calls", lambda agent, run: iter(()))
    with pytest.raises(AssertionError, match=f"cancel {AT_SUSPENSION}the call '1' of 'add' has no result"):
        await check_every_suspension(agent, faults=["cancel"])


@pytest.mark.slow
async def test_an_abandoned_task_is_found():
    stop = anyio.Event()

    class StartsATask(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            start_a_task(stop.wait)
            return await next_handler()

    with pytest.raises(AssertionError, match=r"left alone: the task Event\.wait was left behind"):
        await check_every_suspension(lambda log: agent(log, StartsATask()), faults=["cancel"])
    stop.set()
    await anyio.wait_all_tasks_blocked()


def start_a_task(main: Callable[[], Any]) -> None:
    try:
        asyncio.get_running_loop().create_task(main())
    except RuntimeError:
        trio.lowlevel.spawn_system_task(main)


@pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")  # trio says so as well
async def test_a_generator_that_is_not_closed_is_found():
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await anyio.lowlevel.checkpoint()
            yield number

    class Leaves(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for _ in numbers():
                break
            return await next_handler()

    with pytest.raises(AssertionError, match=r"left alone: the generator .*numbers was not closed, but lost"):
        await check_every_suspension(lambda log: agent(log, Leaves()), faults=["cancel"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_is_swallowed_is_found():
    class Deaf(Agent):
        async def reply_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with super().reply_stream(*args, **kwargs) as stream:
                with suppress(asyncio.CancelledError):
                    async for event in stream:
                        yield event

    with pytest.raises(AssertionError, match=f"cancel_task {AT_SUSPENSION}the cancellation was swallowed"):
        await check_every_suspension(lambda log: agent(log, cls=Deaf), faults=["cancel_task"])


async def test_a_result_that_is_emitted_before_it_is_saved_is_found():
    class SavesLate(Agent):
        async def save(self) -> None:
            context = self.state.reply_context
            if context is None or context.cur_iter or not context.message.get_content_blocks("tool_result"):
                await super().save()

    words = f"kill {AT_SUSPENSION}TOOL_RESULT_END of the call '1' was emitted before its result was saved"
    with pytest.raises(AssertionError, match=words):
        await check_every_suspension(lambda log: agent(log, cls=SavesLate), faults=["kill"])


@pytest.mark.parametrize(
    ("interrupt", "words"),
    [
        (lambda agent: True, f"interrupt {AT_SUSPENSION}the interruption was ignored, and it continued with the model"),
        (lambda agent: {}["no"], f"interrupt {AT_SUSPENSION}KeyError: 'no' was raised at once"),
    ],
)
async def test_an_interruption_that_is_not_heeded_is_found(monkeypatch, interrupt, words):
    monkeypatch.setattr(Agent, "interrupt", interrupt)
    with pytest.raises(AssertionError, match=words):
        await check_every_suspension(agent, faults=["interrupt"])


class RunsTwice(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        async for _ in next_handler():
            pass
        async for item in next_handler():
            yield item


class MakesItUp(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        yield ToolResponse([TextBlock("3")])


class LosesResults(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages = [message.copy() for message in input_kwargs["messages"]]
        for message in messages:
            if not isinstance(message.content, str):
                message.content = [block for block in message.content if block.type != "tool_result"]
        return await next_handler(messages=messages)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (RunsTwice, "'add' ran 2 times with the input .* of the call '1', but the results .* allow 1 at most"),
        (MakesItUp, "the call '1' of 'add' is reported as a success, but the tool did not finish"),
        (LosesResults, "a model was sent a broken request: the call '1' of 'add' has no result"),
    ],
)
async def test_runs_and_requests_that_contradict_the_state_are_found(layer, words):
    with pytest.raises(AssertionError, match=f"left alone: {words}"):
        await check_every_suspension(lambda log: agent(log, layer()), faults=[])


async def test_too_few_suspensions_are_an_error():
    with pytest.raises(AssertionError, match=r"there are \d+ suspensions, which is fewer than 1000"):
        await check_every_suspension(agent, at_least=1000)


async def test_a_fault_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(ValueError, match=f"'explode' is not a fault: choose from {', '.join(FAULTS)}"):
        await check_every_suspension(agent, faults=["cancel", "explode"])


@pytest.mark.slow
def test_the_example_in_the_documentation_runs():
    assert doctest.testmod(agentrt.testing).failed == 0


def test_expected_errors_are_not_logged_to_the_screen(program_runner):
    program = (
        "import anyio\n"
        "from agentrt import Agent\n"
        "from agentrt.state import InMemoryStateStore\n"
        "from agentrt.testing import ScriptedChatModel, check_every_suspension\n"
        "def make(log):\n"
        "    model = ScriptedChatModel(['one', 'two', 'three'])\n"
        "    return Agent('a', model=model, state_store=InMemoryStateStore())\n"
        "print(anyio.run(check_every_suspension, make))\n"
    )
    done = program_runner.run(program)
    assert "suspensions; runs with a fault" in done.stdout
    assert done.stderr == ""
