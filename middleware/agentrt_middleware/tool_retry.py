"""Retries of tools: runs a tool again when it fails."""

from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import ClassVar

import anyio

from agentrt.agent import AgentBase
from agentrt.errors import AgentRTError, MiddlewareConfigError, ToolError
from agentrt.event import CustomEvent
from agentrt.hooks import ActingValues, MiddlewareBase, NextActing
from agentrt.message import ToolCallBlock, ToolResultState
from agentrt.permission.glob import matches
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.validation import Backoff, check_number

_RETRIED_STATES = (ToolResultState.ERROR, ToolResultState.TIMEOUT)

RetryableTools = Sequence[str] | Callable[[ToolCallBlock], bool]


class ToolRetryMiddleware(MiddlewareBase):
    """Runs a tool call again, up to `max_retries` times, if it fails or exceeds its time.

    Only tools that may safely run twice are run again: those that are `is_read_only`, or those that `tools` chooses by
    names and patterns (`*`, `?`) or as a function of the call. An agent without a `Toolkit` needs `tools`. A call that
    was denied or interrupted, or whose outcome is `unknown`, never runs again. With `raise_tool_errors`, an exception
    of the tool counts as an error result.

    A `CustomEvent` "tool_retry" announces each retry before its wait. The wait is a random number of seconds: up
    to `initial_delay` the first time, twice that the second time, up to `max_delay`. Streamed output is shown at
    once; the end of the result replaces the output of failed attempts, since it holds only the last attempt's.
    """

    inherited = False
    emits = True
    wraps: ClassVar = {"ToolEmulatorMiddleware": "a result that could not be made up is tried again"}

    def __init__(
        self,
        tools: RetryableTools | None = None,
        *,
        max_retries: int = 2,
        initial_delay: float = 0.5,
        max_delay: float = 10.0,
        random: Random | None = None,
    ) -> None:
        is_list = isinstance(tools, (list, tuple)) and all(isinstance(name, str) for name in tools)
        if tools is not None and not is_list and not callable(tools):
            raise MiddlewareConfigError(
                f"ToolRetryMiddleware(tools=...) must be a list of names, or a function of a call, not {tools!r:.200}"
            )
        check_number("ToolRetryMiddleware(max_retries=...)", max_retries, least=0, whole=True)
        self.max_retries = max_retries
        self.initial_delay, self.max_delay = initial_delay, max_delay  # for `repr`, which finds options by name
        self._tools = tools
        self._backoff = Backoff("ToolRetryMiddleware", initial_delay, max_delay, random)

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = call_of(input_kwargs)
        max_retries = self.max_retries if self._may_run_twice(agent, call) else 0
        for failures in range(1, max_retries + 1):
            response = None
            try:
                async for item in next_handler(**input_kwargs):
                    if isinstance(item, ToolResponse):
                        response = item
                    else:
                        yield item
                if response is None:  # an inner layer lost it, which the end of the chain reports
                    return
                if response.state not in _RETRIED_STATES:
                    yield response
                    return
                reason = str(response.state)
            except Exception as error:
                if isinstance(error, AgentRTError) and not isinstance(error, ToolError):
                    raise  # the caller's fault or ours, not the tool's
                # Only the error's type: its text may hold a secret.
                reason = type(error).__name__
            wait = self._backoff.wait_after(failures)
            value = {"tool_call_id": call.id, "tool_name": call.name, "reason": reason}
            agent.run.emit(CustomEvent("tool_retry", {**value, "attempt": failures, "wait_seconds": wait}))
            await anyio.sleep(wait)
        # The last attempt, or the only one: its outcome is passed on unchanged.
        async for item in next_handler(**input_kwargs):
            yield item

    def _may_run_twice(self, agent: AgentBase, call: ToolCallBlock) -> bool:
        if self._tools is None:
            tool = agent.run.tool_of(call)
            return tool is not None and tool.is_read_only
        if callable(self._tools):
            return self._tools(call)
        return any(matches(pattern, call.name) for pattern in self._tools)
