"""Timing: measures the time of model calls and tools."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import ActingValues, MiddlewareBase, ModelCallValues, NextActing, NextModelCall
from agentrt.model import ChatResponse, ModelResult
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.attempts import only_if, watch
from agentrt_middleware.reply_info import call_of

_logger = logging.getLogger("agentrt")
_Kind = Literal["model_call", "tool_call"]
_Ending = Literal["ok", "error", "cut"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one model call or tool call, in seconds.

    `name` is the name of the model or the tool. `first` is the time until the first piece of a streamed answer or
    output. `ended` is "ok", "error" (also for a tool result that is not a success) or "cut": left by its reader, or
    cancelled.
    """

    kind: _Kind
    name: str
    seconds: float
    first: float | None
    ended: _Ending
    agent_name: str
    reply_id: str


class TimingMiddleware(MiddlewareBase):
    """Measures each model call and each tool call, to the end of its stream, and calls `on_timing` with a `Timing`.

    Without `on_timing` the logger "agentrt" logs it at INFO. If the function fails, the reply continues, and the first
    failure is logged. The time includes the waits of layers further in. `clock` is in seconds.
    """

    inherited = False

    def __init__(
        self, on_timing: Callable[[Timing], object] | None = None, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        if on_timing is not None and not callable(on_timing):
            raise MiddlewareConfigError(
                f"TimingMiddleware(on_timing=...) must be a function of a Timing, not {on_timing!r:.200}"
            )
        self._on_timing = on_timing
        self.clock = clock
        self._has_failed = False

    def _is_heard(self, _: object) -> bool:
        return self._on_timing is not None or _logger.isEnabledFor(logging.INFO)

    @only_if(_is_heard)
    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        name = input_kwargs["current_model"].model
        return await watch(next_handler, input_kwargs, _Stopwatch(self, "model_call", name, agent))

    @only_if(_is_heard)
    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        stopwatch = _Stopwatch(self, "tool_call", call_of(input_kwargs).name, agent)
        failure: BaseException | None = None
        has_response = False
        try:
            async for item in next_handler(**input_kwargs):
                has_response = isinstance(item, ToolResponse)
                stopwatch.see(item)
                yield item
        except BaseException as error:
            failure = error
            raise
        finally:
            stopwatch.end(failure, is_whole=has_response)
            failure = None  # its traceback holds this frame: a reference cycle

    @staticmethod
    def _log(timing: Timing) -> None:
        _logger.info(
            "%s %r of %r took %.3f s (%s)", timing.kind, timing.name, timing.agent_name, timing.seconds, timing.ended
        )

    def report(self, timing: Timing) -> None:
        """Call `on_timing`; never raises."""
        try:
            (self._on_timing or self._log)(timing)
        except Exception as error:  # noqa: BLE001  # an observer that fails is no reason for a reply to fail
            if not self._has_failed:
                self._has_failed = True
                with suppress(Exception):  # a log handler may fail too
                    _logger.warning("on_timing failed: %s; later failures are not logged", type(error).__name__)


class _Stopwatch:
    def __init__(self, timing: TimingMiddleware, kind: _Kind, name: str, agent: AgentBase) -> None:
        self._timing = timing
        self._kind = kind
        self._name = name
        self._agent_name = agent.name
        self._reply_id = agent.run.id
        self._first: float | None = None
        self._has_failed = False
        self._started = timing.clock()

    def see(self, item: ChatResponse | ToolChunk | ToolResponse) -> None:
        if isinstance(item, ToolResponse):
            self._has_failed = item.state not in ("success", "running")
        elif self._first is None and not (isinstance(item, ChatResponse) and item.is_last):
            # A last response that comes first was not streamed.
            self._first = self._timing.clock() - self._started

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        seconds = self._timing.clock() - self._started
        ended: _Ending = "ok" if is_whole else "cut"
        if self._has_failed or isinstance(error, Exception):
            ended = "error"
        timing = Timing(self._kind, self._name, seconds, self._first, ended, self._agent_name, self._reply_id)
        self._timing.report(timing)
