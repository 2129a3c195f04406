"""Tool retry runs a tool again when it fails."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import pytest

from agentrt import Agent, Toolkit
from agentrt.errors import ChainError, MiddlewareConfigError, ToolError
from agentrt.event import CustomEvent, ToolResultEndEvent, ToolResultTextDeltaEvent
from agentrt.message import TextBlock, ToolResultState
from agentrt.middleware import MiddlewareBase, ToolRetryMiddleware, TracingMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase, ToolChunk, ToolResponse
from tests.loop.helpers import call, items_of
from tests.middleware.fake_time import Least, in_jumping_time, rebuilt


class Flaky(ToolBase):
    """Returns or raises the next of its outcomes at each run."""

    name = "flaky"
    is_read_only = True
    input_schema = {"type": "object", "properties": {}}  # noqa: RUF012  # it is the class's own

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.runs = 0

    async def call(self) -> Any:
        self.runs += 1
        outcome = self.outcomes[min(self.runs, len(self.outcomes)) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        if callable(outcome):
            return await outcome()
        return outcome


def state(name: str) -> ToolResponse:
    return ToolResponse([TextBlock(f"it is {name}")], ToolResultState(name))


def at_once(*arguments: Any, **options: Any) -> ToolRetryMiddleware:
    return ToolRetryMiddleware(*arguments, random=Least(), **options)


def agent_with(tool: Any, *layers: MiddlewareBase, calls: int = 1) -> Agent:
    name = tool.name
    script = [[call(str(number), name) for number in range(calls)], "done"]
    return Agent("tester", model=ScriptedChatModel(script), toolkit=Toolkit(tools=[tool]), middlewares=list(layers))


def ends(items: list[Any]) -> list[tuple[str, str]]:
    return [(event.tool_call_id, str(event.state)) for event in items if isinstance(event, ToolResultEndEvent)]


def announced(items: list[Any]) -> list[tuple[str, int]]:
    return [
        (event.value["reason"], event.value["attempt"])
        for event in items
        if isinstance(event, CustomEvent) and event.name == "tool_retry"
    ]


@pytest.mark.parametrize("failure", [ValueError("x"), ToolError("y"), state("error"), state("timeout")])
async def test_a_failed_tool_runs_again_and_the_last_result_counts(failure: Any) -> None:
    agent = agent_with(Flaky(failure, failure, "fine"), at_once())
    items = await items_of(agent)
    assert ends(items) == [("0", "success")]
    reason = "timeout" if getattr(failure, "state", "") == "timeout" else "error"
    assert announced(items) == [(reason, 1), (reason, 2)]
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert [block.text for block in result.output] == ["fine"]


async def test_the_last_failure_is_the_result_when_no_run_succeeds() -> None:
    tool = Flaky(ValueError("first"), ValueError("second"))
    items = await items_of(agent_with(tool, at_once(max_retries=1)))
    assert tool.runs == 2
    assert ends(items) == [("0", "error")]
    assert "second" in "".join(event.delta for event in items if isinstance(event, ToolResultTextDeltaEvent))


@pytest.mark.parametrize("name", ["unknown", "denied", "interrupted"])
async def test_an_unknown_denied_or_interrupted_call_never_runs_again(name: str) -> None:
    tool = Flaky(state(name), "fine")
    items = await items_of(agent_with(tool, at_once(["*"])))
    assert tool.runs == 1
    assert ends(items) == [("0", name)]


@pytest.mark.parametrize(
    ("tools", "is_read_only", "runs"),
    [
        (None, True, 3),
        (None, False, 1),
        (["flaky"], False, 3),
        (["get_*", "fl*"], False, 3),
        (["other"], True, 1),
        ([], True, 1),
        (lambda call: call.name == "flaky", False, 3),
        (lambda call: False, True, 1),
    ],
)
async def test_only_tools_that_may_run_twice_are_retried(tools: Any, is_read_only: bool, runs: int) -> None:
    tool = Flaky(ValueError("x"))
    tool.is_read_only = is_read_only
    await items_of(agent_with(tool, at_once(tools)))
    assert tool.runs == runs


async def test_a_raised_tool_error_is_retried_and_stays_unchanged() -> None:
    error = ValueError("x")
    tool = Flaky(error, "fine")
    tool.raise_tool_errors = True
    items = await items_of(agent_with(tool, at_once()))
    assert (announced(items), ends(items)) == ([("ValueError", 1)], [("0", "success")])
    tool = Flaky(error)
    tool.raise_tool_errors = True
    with pytest.raises(ValueError, match="x") as raised:
        await items_of(agent_with(tool, at_once()))
    assert raised.value is error
    assert tool.runs == 3


async def test_a_chain_error_of_a_layer_is_not_retried() -> None:
    class Broken(MiddlewareBase):
        entered = 0

        async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
            self.entered += 1
            async for item in next_handler(tool_cal=None):
                yield item

    broken = Broken()
    with pytest.raises(ChainError):
        await items_of(agent_with(Flaky("fine"), at_once(), broken))
    assert broken.entered == 1


async def test_the_end_of_a_result_replaces_what_failed_runs_streamed() -> None:
    runs = 0

    async def report() -> AsyncGenerator[ToolChunk, None]:
        nonlocal runs
        runs += 1
        yield ToolChunk([TextBlock(f"page {runs}, ")])
        if runs == 1:
            raise ValueError("cut")
        yield ToolChunk([TextBlock("the end")])

    agent = agent_with(FunctionTool(report), at_once(["report"]))
    items = await items_of(agent)
    streamed = [event.delta for event in items if isinstance(event, ToolResultTextDeltaEvent)]
    assert streamed == ["page 1, ", "report failed: ValueError: cut", "page 2, ", "the end"]
    for message in (rebuilt(items), agent.state.context[-1]):
        (result,) = message.get_content_blocks("tool_result")
        assert "".join(block.text for block in result.output) == "page 2, the end"


async def test_a_lost_result_does_not_count_as_a_failure() -> None:
    class Loses(MiddlewareBase):
        async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
            async for item in next_handler():
                if not isinstance(item, ToolResponse):
                    yield item

    tool = Flaky("fine")
    items = await items_of(agent_with(tool, at_once(), Loses()))
    assert ends(items) == [("0", "error")]
    assert tool.runs == 1


async def test_calls_side_by_side_are_retried_each_by_itself() -> None:
    tool = Flaky(ValueError("1"), "fine", ValueError("3"), "fine")
    items = await items_of(agent_with(tool, at_once(), calls=2))
    assert sorted(ends(items)) == [("0", "success"), ("1", "success")]


@in_jumping_time
@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_leaving_ends_the_wait_and_runs_nothing_else(leave: str) -> None:
    tool = Flaky(ValueError("x"))
    agent = agent_with(tool, ToolRetryMiddleware(initial_delay=1e6, max_delay=1e6))
    with anyio.CancelScope() as scope:
        async with agent.reply_stream("go") as events:
            async for event in events:
                if isinstance(event, CustomEvent) and leave == "close":
                    break
                if isinstance(event, CustomEvent):
                    scope.cancel()
    assert scope.cancelled_caught == (leave == "cancel")
    assert tool.runs == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToolRetryMiddleware("search"),
        lambda: ToolRetryMiddleware([1]),  # type: ignore[list-item]  # on purpose
        lambda: ToolRetryMiddleware(max_retries=-1),
        lambda: ToolRetryMiddleware(initial_delay=-1),
    ],
)
def test_invalid_options_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(MiddlewareConfigError, match="ToolRetryMiddleware"):
        make()


def test_tool_retry_stands_inside_tracing() -> None:
    with pytest.raises(MiddlewareConfigError, match="put"):
        agent_with(Flaky("fine"), ToolRetryMiddleware(), TracingMiddleware())
