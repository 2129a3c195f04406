"""How long model calls and tools take."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import ActingValues, MiddlewareBase, ModelCallValues, NextActing, NextModelCall
from agentrt.model import ChatResponse, ModelResult
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.attempts import watch
from agentrt_middleware.reply_info import call_of

__all__ = ["Timing", "TimingMiddleware"]

_logger = logging.getLogger("agentrt")
_Kind = Literal["model_call", "tool_call"]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one model call or one tool call took, in seconds.

    `name` is the model's or the tool's. `first` is the time until the first piece of a streamed answer or output.
    `ended` is "ok", "error" (also for a tool's result that is no success) or "cut": left by its reader, or cancelled.
    """

    kind: _Kind
    name: str
    seconds: float
    first: float | None
    ended: Literal["ok", "error", "cut"]
    agent_name: str
    reply_id: str


class TimingMiddleware(MiddlewareBase):
    """Measures each model call and each tool call, to the end of its stream, and hands a `Timing` to `on_timing`.

    Without `on_timing` it is logged, at INFO, by the logger "agentrt". A function that fails breaks no reply; the first
    failure is logged. Waits in layers further in are part of what is measured. `clock` is in seconds.
    """

    def __init__(
        self,
        on_timing: Callable[[Timing], object] | None = None,
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if on_timing is not None and not callable(on_timing):
            raise MiddlewareConfigError(
                f"TimingMiddleware(on_timing=...) is a function of a Timing, not {on_timing!r:.200}"
            )
        self._on_timing = on_timing or _log
        self._clock = clock
        self._has_failed = False

    async def on_model_call(
        self, agent: Any, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        name = input_kwargs["current_model"].model
        return await watch(next_handler, input_kwargs, _Measure(self, "model_call", name, agent))

    async def on_acting(
        self, agent: Any, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        measure = _Measure(self, "tool_call", call_of(input_kwargs).name, agent)
        failure: BaseException | None = None
        has_response = False
        try:
            async for item in next_handler(**input_kwargs):
                has_response = isinstance(item, ToolResponse)
                measure.see(item)
                yield item
        except BaseException as error:
            failure = error
            raise
        finally:
            measure.end(failure, is_whole=has_response)
            failure = None  # error and frame would hold each other

    def _report(self, timing: Timing) -> None:
        try:
            self._on_timing(timing)
        except Exception as error:  # noqa: BLE001  # an observer that fails is no reason for a reply to fail
            if not self._has_failed:
                self._has_failed = True
                with suppress(Exception):
                    _logger.warning("on_timing failed: %s; this is said once", type(error).__name__)


class _Measure:
    """The measuring of one call."""

    def __init__(self, layer: TimingMiddleware, kind: _Kind, name: str, agent: Any) -> None:
        self._layer = layer
        self._kind = kind
        self._name = name
        self._agent_name = agent.name
        self._reply_id = agent.run.id
        self._first: float | None = None
        self._has_failed = False
        self._started = layer._clock()

    def see(self, item: ChatResponse | ToolChunk | ToolResponse) -> None:
        if isinstance(item, ToolResponse):
            self._has_failed = item.state not in ("success", "running")
        elif self._first is None and not (isinstance(item, ChatResponse) and item.is_last):
            self._first = self._layer._clock() - self._started

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        seconds = self._layer._clock() - self._started
        ended: Literal["ok", "error", "cut"] = "ok" if is_whole else "cut"
        if self._has_failed or isinstance(error, Exception):
            ended = "error"
        timing = Timing(self._kind, self._name, seconds, self._first, ended, self._agent_name, self._reply_id)
        self._layer._report(timing)


def _log(timing: Timing) -> None:
    _logger.info(
        "%s %r of %r took %.3f s (%s)", timing.kind, timing.name, timing.agent_name, timing.seconds, timing.ended
    )
