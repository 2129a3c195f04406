"""Every kind of conversation is whole, and goes on, wherever something goes wrong in it."""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from agentrt import Agent, AgentState, MiddlewareBase, Toolkit
from agentrt.event import CustomEvent, UserConfirmResultEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.state import FileStateStore
from agentrt.testing import FAULTS, InMemoryStateStore, ScriptedChatModel, ToolLog, approve, check_every_suspension
from agentrt.tool import FunctionTool, OpenQuestion, ToolBase, ToolContext, ToolResponse
from tests.loop.helpers import call


class City(BaseModel):
    name: str
    people: int


async def add(a: int, b: int) -> int:
    """Add two numbers, slowly, and clean up after it."""
    try:
        await anyio.lowlevel.checkpoint()
        return a + b
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()


async def count_up(to: int) -> AsyncIterator[str]:
    for number in range(to):
        await anyio.lowlevel.checkpoint()
        yield f"{number} "


async def report(to: int, context: ToolContext) -> str:
    for number in range(to):
        context.emit(CustomEvent("progress", number))
        await anyio.lowlevel.checkpoint()
    return "there"


def divide(a: int, b: int) -> float:
    return a / b


class Outside(ToolBase):
    """A tool that somebody else runs."""

    name = "outside"
    description = "Runs elsewhere."
    input_schema = {"type": "object", "properties": {"n": {"type": "integer"}}}  # noqa: RUF012
    is_external_tool = True


class CleansUp(MiddlewareBase):
    """Waits before and after everything that it wraps."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        try:
            await anyio.lowlevel.checkpoint()
            async for item in next_handler():
                yield item
        finally:
            await anyio.lowlevel.checkpoint()

    on_reasoning = on_acting = on_reply

    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            await anyio.lowlevel.checkpoint()
            return await next_handler()
        finally:
            await anyio.lowlevel.checkpoint()

    on_check_permission = on_model_call


def conversation(script: list[Any], *tools: Any, stream: bool | None = None, **options: Any) -> Agent:
    model = ScriptedChatModel(script, stream=stream)
    return Agent(
        "tester",
        "You are tested.",
        model,
        Toolkit(tools=list(tools)),
        **{"state_store": InMemoryStateStore()} | options,
    )


def plain(log: ToolLog, **options: Any) -> Agent:
    return conversation([[call("1", "add", a=1, b=2)], "It is three."], log.watch(add), stream=False, **options)


def without_a_store(log: ToolLog) -> Agent:
    return plain(log, state_store=None)


def streaming(log: ToolLog) -> Agent:
    script = [[TextBlock("I count. "), call("1", "count_up", to=3)], "There we are now.", "As I said."]
    return conversation(script, log.watch(count_up))


def side_by_side(log: ToolLog) -> Agent:
    calls = [call("1", "add", a=1, b=2), call("2", "count_up", to=2), call("3", "report", to=2)]
    return conversation([calls, "All done."], log.watch(add), log.watch(count_up), log.watch(report))


def in_a_thread(log: ToolLog) -> Agent:
    calls = [call("1", "divide", a=1, b=2), call("2", "divide", a=1, b=0)]
    return conversation([calls, "Half."], log.watch(divide))


def asking(log: ToolLog) -> Agent:
    calls = [call("1", "add", a=1, b=2), call("2", "add", a=3, b=4), call("3", "count_up", to=1)]
    return conversation([calls, "Three, seven."], FunctionTool(log.watch(add), ask=True), log.watch(count_up))


def deny_the_first(state: AgentState) -> UserConfirmResultEvent:
    answer = approve(state)
    answer.confirm_results[0].confirmed = False
    return answer


def external(log: ToolLog) -> Agent:
    calls = [call("1", "outside", n=1), call("2", "add", a=1, b=2), call("3", "outside", n=2)]
    return conversation([calls, "Done."], Outside(), log.watch(add))


class AsksTwice(ToolBase):
    """Asks, keeps what it was told, and asks once more."""

    name = "asks_twice"
    is_resumable = True

    async def call(self, context: ToolContext) -> Any:
        for question in ("first", "second"):
            await anyio.lowlevel.checkpoint()
            if question not in context.answers:
                return ToolResponse(waits=[OpenQuestion(ToolCallBlock(question, "go", "{}"))])
            context.kept[question] = True
            await context.save()
        return "both"


def asking_inside(log: ToolLog) -> Agent:
    calls = [call("1", "asks_twice"), call("2", "add", a=1, b=2), call("3", "asks_twice")]
    return conversation([calls, "Done."], AsksTwice(), log.watch(add))


def calling(log: ToolLog) -> Agent:
    async def run(context: ToolContext) -> Any:
        """Call a tool, one that asks, and then two side by side."""
        first = await context.call("add", {"a": 1, "b": 2})
        asked = await context.call("add_if_allowed", {"a": 3, "b": 4})
        if asked.waits:
            return asked
        counted: list[str] = []

        async def count(to: int) -> None:
            counted.append((await context.call("count_up", {"to": to}, id=f"to-{to}")).state)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count, 1)
            tasks.start_soon(count, 2)
        return " ".join([first.state, asked.state, *counted])

    tools = [log.watch(add), FunctionTool(add, name="add_if_allowed", ask=True), log.watch(count_up)]
    return conversation([[call("1", "run")], "Done."], FunctionTool(run, is_resumable=True), *tools)


def structured(log: ToolLog) -> Agent:
    form = ToolCallBlock("2", "GenerateStructuredOutput", '{"name": "Beijing", "people": 22000000}')
    return conversation([[call("1", "add", a=1, b=2)], "Not so.", [form]], log.watch(add))


def compressing(log: ToolLog) -> Agent:
    calls = [call("1", "add", a=1, b=2)]
    agent = conversation([calls, "word " * 400, "A summary.", "Words."], log.watch(add), stream=False)
    agent.model.context_size = 400
    return agent


def layered(log: ToolLog) -> Agent:
    layers = [type(f"Layer{number}", (CleansUp,), {})() for number in range(5)]
    calls = [call("1", "add", a=1, b=2), call("2", "count_up", to=2)]
    return conversation([calls, "All done."], log.watch(add), log.watch(count_up), middlewares=layers, stream=False)


def with_a_sub_agent(log: ToolLog) -> Agent:
    inner = conversation([[call("1", "add", a=1, b=2)], "It is three."], add)

    async def ask(question: str) -> str:
        answer = await inner.with_state(AgentState()).reply(question)
        return answer.get_text_content() or ""

    return conversation([[call("1", "ask", question="1 + 2?")], "It says three."], log.watch(ask))


@dataclass
class Kind:
    make: Callable[[ToolLog], Agent]
    at_least: int
    options: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "plain": Kind(plain, 25),
    "without a store": Kind(without_a_store, 20),
    "streaming, two turns": Kind(streaming, 50, {"inputs": ["go", "and again?"]}),
    "three tools side by side": Kind(side_by_side, 50),
    "tools in threads": Kind(in_a_thread, 35),
    "confirmed": Kind(asking, 50),
    "denied": Kind(asking, 45, {"answer": deny_the_first}),
    "executed outside": Kind(external, 40),
    "asked in the middle of a call": Kind(asking_inside, 60),
    "calls made by a tool": Kind(calling, 60),
    "structured output": Kind(structured, 40, {"structured_schema": City}),
    "compression": Kind(compressing, 35, {"inputs": ["go", "what did you say?"]}),
    "five layers that clean up": Kind(layered, 110),
    "a sub-agent in a tool": Kind(with_a_sub_agent, 34),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
WORST = ["cancel_task_twice", "interrupt", "kill", "drop", "break_store", "fail_model"]
"""These find nearly everything that the others find."""


async def check(kind: Kind, faults: Iterable[str], every: int = 1) -> None:
    report = await check_every_suspension(kind.make, faults=faults, at_least=kind.at_least, every=every, **kind.options)
    print(report)  # noqa: T201  # for `pytest -s`


@EACH_KIND
@pytest.mark.slow
async def test_a_conversation_is_whole_after_any_fault_at_any_place(kind, anyio_backend_name):
    await check(kind, FAULTS, every=1 if anyio_backend_name == "asyncio" else 3)


@pytest.mark.parametrize("faults", [WORST, pytest.param(FAULTS, marks=pytest.mark.slow)], ids=["worst", "all"])
@pytest.mark.usefixtures("disk_needs_no_time")
async def test_conversation_in_files_is_whole_after_a_fault_anywhere(tmp_path, faults):
    await check(Kind(lambda log: plain(log, state_store=FileStateStore(tmp_path)), 25), faults, every=3)
