"""Stopping a reply with thousands of open calls takes work in proportion to their number.

Counted in lines of the runtime's own code: twice as many calls take about twice as many lines.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import agentrt
from agentrt import Toolkit
from agentrt.agent import Agent, ReActConfig
from agentrt.event import (
    AgentEvent,
    ExternalExecutionResultEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultStartEvent,
    UserInterruptEvent,
)
from agentrt.message import AssistantMsg, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase

SOURCE = str(Path(agentrt.__file__).parent)
FEW, MANY = 100, 400


class Lines:
    """How many lines of the runtime were run."""

    count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        self.count += event == "line"
        return self._trace


async def wait(n: int) -> str:
    await anyio.sleep_forever()
    return "never"


class Elsewhere(ToolBase):
    name = "wait"
    is_external_tool = True
    input_schema = {"type": "object", "properties": {"n": {"type": "integer"}}}  # noqa: RUF012


def agent_with(calls: int, tool: ToolBase) -> Agent:
    written = [ToolCallBlock(f"c{n}", "wait", f'{{"n": {n}}}') for n in range(calls)]
    limits = ReActConfig(max_tool_calls=10_000)
    model = ScriptedChatModel([written, "done"])
    return Agent("tester", "", model, Toolkit(tools=[tool]), react_config=limits)


def check(agent: Agent, calls: int, state: ToolResultState) -> None:
    results = agent.state.context[1].get_content_blocks("tool_result")
    assert [result.state for result in results] == [state] * calls


async def interrupted(calls: int) -> int:
    agent, lines = agent_with(calls, FunctionTool(wait, is_concurrency_safe=False)), Lines()
    async with agent.reply_stream("go") as events:
        async for event in events:
            if isinstance(event, ToolResultStartEvent) and not lines.count:
                agent.interrupt()
                with lines.counted():
                    async for _ in events:
                        pass
    check(agent, calls, ToolResultState.INTERRUPTED)
    return lines.count


async def left(calls: int) -> int:
    agent, lines = agent_with(calls, FunctionTool(wait, is_concurrency_safe=False)), Lines()
    stream = agent.reply_stream("go")
    async for event in stream:
        if isinstance(event, ToolResultStartEvent):
            break
    with lines.counted():
        await stream.aclose()
    check(agent, calls, ToolResultState.INTERRUPTED)
    return lines.count


async def put_to_rest(calls: int) -> int:
    agent, lines = agent_with(calls, FunctionTool(wait, ask=True)), Lines()
    async with agent.reply_stream("go") as events:
        [question] = [event async for event in events if isinstance(event, RequireUserConfirmEvent)]
    with lines.counted():
        await agent.reply(UserInterruptEvent(question.reply_id))
    check(agent, calls, ToolResultState.INTERRUPTED)
    return lines.count


async def answered(calls: int) -> int:
    agent, lines = agent_with(calls, Elsewhere()), Lines()
    async with agent.reply_stream("go") as events:
        [given] = [event async for event in events if isinstance(event, RequireExternalExecutionEvent)]
    results = [ToolResultBlock(each.id, each.name, "done") for each in given.tool_calls]
    with lines.counted():
        await agent.reply(ExternalExecutionResultEvent(given.reply_id, results))
    check(agent, calls, ToolResultState.SUCCESS)
    return lines.count


async def rebuilt(calls: int) -> int:
    agent, lines = agent_with(calls, FunctionTool(wait, is_concurrency_safe=False)), Lines()
    heard: list[AgentEvent] = []
    async with agent.reply_stream("go") as events:
        async for event in events:
            heard.append(event)
            if isinstance(event, ToolResultStartEvent):
                agent.interrupt()
    message = AssistantMsg("", [])
    with lines.counted():
        for event in heard:
            message.append_event(event)
    assert message == agent.state.context[1]
    return lines.count


@pytest.mark.parametrize("stop", [interrupted, left, put_to_rest, answered, rebuilt], ids=lambda stop: stop.__name__)
async def test_work_is_in_proportion_to_the_number_of_open_calls(stop):
    few, many = await stop(FEW), await stop(MANY)
    assert many / few < 1.3 * MANY / FEW, (few, many)
