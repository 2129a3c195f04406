"""Tracing: each reply, model call and tool call as an OpenTelemetry span."""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, ClassVar, TypeVar

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, SpanKind, Tracer, TracerProvider

from agentrt import MiddlewareBase, __version__
from agentrt.errors import MiddlewareConfigError
from agentrt.event import (
    AgentEvent,
    ExternalExecutionResultEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ToolResultEndEvent,
)
from agentrt.message import Msg, ToolCallBlock, ToolCallState, ToolResultState
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.attempts import Pieces, is_readable
from agentrt_middleware.reply_info import call_of, input_of, model_name_of
from agentrt_middleware.tracing import attributes, conventions
from agentrt_middleware.tracing.content import (
    arguments_json,
    call_names,
    input_messages,
    output_messages,
    plain_text,
    result_text,
    system_parts,
    tool_definitions,
)
from agentrt_middleware.tracing.metrics import GenAIMetrics
from agentrt_middleware.tracing.span import Current, GenAISpan, Isolated

__all__ = ["TracingMiddleware"]

_logger = logging.getLogger("agentrt")
_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_Attributes = dict[str, Any]

_FAILED = {state: state.value for state in ToolResultState} | {ToolResultState.ERROR: "tool_error"}
del _FAILED[ToolResultState.SUCCESS], _FAILED[ToolResultState.RUNNING]


def _only_where(is_traced: Callable[["TracingMiddleware", Any, Any], bool]) -> Callable[[_Hook], _Hook]:
    """Have the layer step aside where nothing is traced: the next one is called in its place."""

    def decorate(hook: _Hook) -> _Hook:
        in_context = _call_in_context if iscoroutinefunction(hook) else _stream_in_context

        @wraps(hook)
        def entry(self: "TracingMiddleware", agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            if is_traced(self, agent, input_kwargs):
                return hook(self, agent, input_kwargs, next_handler)
            context = None if self._found is None else agent.run.scratch(self).get("context")
            return next_handler(**input_kwargs) if context is None else in_context(context, input_kwargs, next_handler)

        return entry  # type: ignore[return-value]  # it gives what the hook would give

    return decorate


async def _call_in_context(context: Context, input_kwargs: Any, next_handler: Any) -> Any:
    with Current(context):
        return await next_handler(**input_kwargs)


async def _stream_in_context(context: Context, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
    steps, current = aiter(next_handler(**input_kwargs)), Current(context)
    while True:
        with current:
            try:
                item = await anext(steps)
            except StopAsyncIteration:
                break
        yield item


def _begins_reply(tracing: "TracingMiddleware", agent: Any, input_kwargs: Any) -> bool:
    """Begin the span of a reply; returns whether anything is to be recorded of the reply."""
    instruments = tracing._find()
    if instruments is None:
        return False
    reply = _Reply(instruments, agent, input_of(input_kwargs))
    if reply.span.is_recording or tracing._has_meters():
        agent.run.scratch(tracing)["reply"] = reply
        return True
    # It was not sampled, so what its models and tools call must not be either. Where our caller's span says so, they
    # know it already.
    caller = trace.get_current_span().get_span_context()
    if caller.trace_flags.sampled or not caller.is_valid:
        agent.run.scratch(tracing)["context"] = reply.span.context
    return False


def _is_in_reply(tracing: "TracingMiddleware", agent: Any, input_kwargs: Any) -> bool:
    return tracing._found is not None and "reply" in agent.run.scratch(tracing)


def _is_in_reply_or_alone(tracing: "TracingMiddleware", agent: Any, input_kwargs: Any) -> bool:
    # A conversation that is compressed between two replies asks its model as well.
    return _is_in_reply(tracing, agent, input_kwargs) or (agent.run.is_internal and tracing._find() is not None)


class TracingMiddleware(MiddlewareBase):
    """Traces replies: `invoke_agent {agent}`, and under it `chat {model}` and `execute_tool {tool}`.

    Works with the global tracer provider, or with the one that is given; while there is none, each hook hands over to
    the next layer and does nothing. `setup_tracing` sets one up. A reply that is not sampled costs no more, if there is
    no meter provider either, but for one span, in whose context its models and tools are called. A tool call that is
    denied, refused or run elsewhere has a span as well, without length. Retries and fallbacks are events on one chat
    span, so this stands outside of the layers that do that.

    Spans say nothing of what people, models and tools say. `capture_content=True` adds that; when not given, the
    standard variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT decides. `redact` is called for every text that
    leaves, captured or not, and what it returns leaves in its place; a text for which it fails does not leave. Texts of
    errors, bytes and addresses never do. A tracer that fails breaks no reply.
    """

    wraps: ClassVar[Sequence[type | str]] = (
        "ModelFallbackMiddleware",
        "RetryMiddleware",
        "CircuitBreakerMiddleware",
        "TimeoutMiddleware",
        "RateLimitMiddleware",
        "ToolRetryMiddleware",
    )

    def __init__(
        self,
        *,
        capture_content: bool | None = None,
        redact: Callable[[str], str] | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if redact is not None and not callable(redact):
            raise MiddlewareConfigError(f"TracingMiddleware(redact=...) is a function of a text, not {redact!r:.200}")
        self._captures = _captured_by_environment() if capture_content is None else capture_content
        self._isolated = Isolated(redact)
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._found_for: TracerProvider | None = None
        self._found: _Instruments | None = None

    @_only_where(_begins_reply)
    async def on_reply(
        self, agent: Any, input_kwargs: Any, next_handler: Any
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        reply: _Reply = agent.run.scratch(self)["reply"]
        try:
            steps = aiter(next_handler(**input_kwargs))
            while True:
                with reply.span:
                    try:
                        item = await anext(steps)
                    except StopAsyncIteration:
                        break
                see = _SEEN.get(item.__class__)
                if see is not None:
                    self._isolated(see, reply, item)
                yield item
        except BaseException as error:
            self._isolated(reply.leave, error)
            raise
        finally:
            self._isolated(reply.end)

    @_only_where(_is_in_reply_or_alone)
    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        chat = _Chat(self._instruments, agent.run.scratch(self).get("reply"), agent, input_kwargs)
        try:
            with chat.span:
                result = await next_handler(**input_kwargs)
        except BaseException as error:
            self._isolated(chat.stop, error)
            raise
        if not isinstance(result, ChatResponse):
            return self._pieces(chat, result)
        chat.response = result
        self._isolated(chat.stop)
        return result

    async def _pieces(self, chat: "_Chat", stream: Any) -> AsyncGenerator[ChatResponse, None]:
        try:
            steps = aiter(stream)
            while True:
                with chat.span:
                    try:
                        piece = await anext(steps)
                    except StopAsyncIteration:
                        break
                chat.see(piece)
                yield piece
        except BaseException as error:
            self._isolated(chat.stop, error)
            raise
        self._isolated(chat.stop)

    @_only_where(_is_in_reply)
    async def on_acting(
        self, agent: Any, input_kwargs: Any, next_handler: Any
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        tool = _Tool(self._instruments, agent.run.scratch(self)["reply"], call_of(input_kwargs))
        try:
            steps = aiter(next_handler(**input_kwargs))
            while True:
                with tool.span:
                    try:
                        item = await anext(steps)
                    except StopAsyncIteration:
                        break
                if isinstance(item, ToolResponse):
                    tool.response = item
                yield item
        except Exception as error:
            tool.failure = type(error).__qualname__
            raise
        finally:
            self._isolated(tool.stop)

    @property
    def _instruments(self) -> "_Instruments":
        assert self._found is not None  # the hooks look for them first
        return self._found

    def _find(self) -> "_Instruments | None":
        """Return what to trace with now, `None` while no provider is configured."""
        provider = trace.get_tracer_provider() if self._tracer_provider is None else self._tracer_provider
        if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)):
            return None
        if provider is not self._found_for:
            self._found_for = provider
            self._found = self._isolated(self._make, provider)
        return self._found

    def _has_meters(self) -> bool:
        meters = metrics.get_meter_provider() if self._meter_provider is None else self._meter_provider
        # The placeholder that stands for a missing provider has no public name.
        return not isinstance(meters, NoOpMeterProvider) and type(meters).__name__ != "_ProxyMeterProvider"

    def _make(self, provider: TracerProvider) -> "_Instruments":
        meters = metrics.get_meter_provider() if self._meter_provider is None else self._meter_provider
        meter = meters.get_meter("agentrt", __version__)
        tracer = provider.get_tracer("agentrt", __version__)
        return _Instruments(self._isolated, tracer, GenAIMetrics(meter), self._captures)


def _captured_by_environment() -> bool:
    value = os.environ.get(conventions.CAPTURE_VARIABLE, "")
    if value.upper() not in conventions.CAPTURE_VALUES:
        _logger.warning(
            "%s must be one of %s: no content is captured",
            conventions.CAPTURE_VARIABLE,
            ", ".join(conventions.CAPTURE_VALUES),
        )
    return conventions.CAPTURE_VALUES.get(value.upper(), False)


@dataclass(slots=True)
class _Instruments:
    """What spans are made with."""

    isolated: Isolated
    tracer: Tracer
    metrics: GenAIMetrics
    captures: bool

    def span(
        self, operation: str, describe: Callable[..., tuple[str, _Attributes]], *values: Any, **at: Any
    ) -> GenAISpan:
        """Begin the span of an operation on what `describe` names and describes."""
        subject, described = self.isolated(describe, *values) or (conventions.OTHER, {})
        kind = SpanKind.CLIENT if operation == conventions.CHAT else SpanKind.INTERNAL
        described[conventions.OPERATION] = operation
        return GenAISpan(self.isolated, self.tracer, f"{operation} {subject}", kind, described, **at)

    def content(self, span: GenAISpan, name: str, make: Callable[..., str | None], *values: Any) -> None:
        """Set what somebody said, if that is to be captured."""
        if self.captures:
            span.set_content(name, make, *values)

    def labels(self, labels: _Attributes) -> _Attributes:
        """Return the attributes of a metric that have a value, as they may leave."""
        return self.isolated.cleaned(labels)


class _Reply:
    """What one reply has open, and what came of it."""

    def __init__(self, instruments: _Instruments, agent: Any, inputs: Any) -> None:
        self.instruments = instruments
        self.agent = agent
        self.run = agent.run
        self.chat: _Chat | None = None
        self.chats = 0
        self.tools: dict[str, _Tool] = {}
        self.usage: ChatUsage | None = None
        self.reason: str | None = None
        self.failure: str | None = None
        self._started = perf_counter()
        is_external = isinstance(inputs, ExternalExecutionResultEvent)
        self._external = {each.id for each in inputs.execution_results} if is_external else set()
        self.span = instruments.span(conventions.INVOKE_AGENT, attributes.of_agent, agent, inputs)
        told = [inputs] if isinstance(inputs, Msg) else inputs
        if isinstance(told, list):
            instruments.content(self.span, conventions.INPUT_MESSAGES, input_messages, told)
            instruments.content(self.span, conventions.INPUT_VALUE, plain_text, told)

    def end_chat(self) -> None:
        if self.chat is not None:
            self.chat.end()
            self.chat = None

    def see_retry(self, event: ModelCallRetryEvent) -> None:
        if event.reply_id != self.run.id:
            return
        span = self.span if self.chat is None else self.chat.span
        retry: _Attributes = {conventions.RETRY_ATTEMPT: event.attempt, conventions.RETRY_WAIT: event.wait_seconds}
        if self.instruments.captures:
            retry[conventions.RETRY_REASON] = event.reason
        span.add_event(conventions.RETRY_EVENT, retry, event.created_at)

    def see_model_call_end(self, event: ModelCallEndEvent) -> None:
        if event.reply_id == self.run.id:
            self.end_chat()

    def see_tool_result(self, event: ToolResultEndEvent) -> None:
        """End the span of the call, or make one for a call that did not run here."""
        if event.reply_id != self.run.id:
            return
        tool = self.tools.get(event.tool_call_id)
        if tool is None:
            call = ToolCallBlock(event.tool_call_id, self.run.call_name(event.tool_call_id))
            tool = _Tool(self.instruments, self, call, event.created_at)
            tool.span.set({conventions.AGENT_IS_EXTERNAL: True if call.id in self._external else None})
        tool.end(event.state)

    def see_end(self, event: ReplyEndEvent) -> None:
        if event.reply_id == self.run.id:
            self.reason = event.finished_reason

    def see_message(self, message: Msg) -> None:
        calls = message.get_content_blocks("tool_call")
        asking = call_names(calls, ToolCallState.ASKING)
        submitted = call_names(calls, ToolCallState.SUBMITTED)
        self.span.set({conventions.AGENT_PENDING_CONFIRMATION: asking, conventions.AGENT_PENDING_EXTERNAL: submitted})
        if asking or submitted:
            self.reason = self.reason or "parked"
        ended = "stop" if self.reason in (None, "completed") else self.reason
        content = message.get_content_blocks()
        self.instruments.content(self.span, conventions.OUTPUT_MESSAGES, output_messages, content, ended)
        self.instruments.content(self.span, conventions.OUTPUT_VALUE, plain_text, [message])

    def leave(self, error: BaseException) -> None:
        """Note why the reply stops short; only an `Exception` is a failure."""
        if isinstance(error, Exception):
            self.reason, self.failure = "error", type(error).__qualname__
            self.span.fail(self.failure)
        else:
            self.reason = self.reason or ("closed" if isinstance(error, GeneratorExit) else "cancelled")

    def end(self) -> None:
        self.end_chat()
        for tool in self.tools.values():
            tool.end(None)
        self.span.set(
            {conventions.AGENT_FINISHED_REASON: self.reason or "completed", **attributes.of_usage(self.usage)}
        )
        self.span.end()
        name, model = self.agent.name, model_name_of(self.agent)
        labels = {conventions.AGENT_NAME: name, conventions.REQUEST_MODEL: model, conventions.ERROR_TYPE: self.failure}
        made = self.instruments
        made.metrics.agent(perf_counter() - self._started, self.chats, len(self.tools), made.labels(labels))


_SEEN: dict[type, Callable[[_Reply, Any], None]] = {
    ModelCallEndEvent: _Reply.see_model_call_end,
    ModelCallRetryEvent: _Reply.see_retry,
    Msg: _Reply.see_message,
    ReplyEndEvent: _Reply.see_end,
    ToolResultEndEvent: _Reply.see_tool_result,
}


class _Chat:
    """One call of a model, whatever the layers inside of it make of it.

    Its span is sent when the reply has seen its end, since the events of retries may be on their way until then.
    """

    def __init__(self, instruments: _Instruments, reply: _Reply | None, agent: Any, values: Any) -> None:
        self._instruments = instruments
        self._reply = reply
        self._model: ChatModelBase = values["current_model"]
        self._started = perf_counter()
        self._first: float | None = None
        self._pieces = Pieces(with_content=instruments.captures)
        self.response: ChatResponse | None = None
        if reply is not None:
            reply.end_chat()
            reply.chat = self
            reply.chats += 1
        self.span = instruments.span(conventions.CHAT, attributes.of_chat, agent, self._model)
        messages, choice = values["messages"], values["tool_choice"]
        tools = [] if choice is not None and choice.mode == "none" else values["tools"]
        instruments.content(self.span, conventions.SYSTEM_INSTRUCTIONS, system_parts, messages)
        instruments.content(self.span, conventions.INPUT_MESSAGES, input_messages, messages)
        instruments.content(self.span, conventions.TOOL_DEFINITIONS, tool_definitions, tools)

    def see(self, piece: Any) -> None:
        if self._first is None:
            self._first = perf_counter() - self._started
        if is_readable(piece):
            self._pieces.add(piece)
            if piece.is_last:
                self.response = piece

    def stop(self, error: BaseException | None = None) -> None:
        self.span.stop()
        failure = type(error).__qualname__ if isinstance(error, Exception) else None
        if failure is not None:
            self.span.fail(failure)
        response = self.response
        if response is None and error is None:  # a stream of pieces that came to its end
            response = self._pieces.whole()
        # One that was cut or left has no answer, which is an error to the conventions, and none to us.
        reason = "error" if response is None else response.finished_reason or "stop"
        usage = None if response is None else response.usage
        answering = None if response is None else attributes.answering(response)
        self.span.set(
            {
                conventions.FINISH_REASONS: [reason],
                conventions.TIME_TO_FIRST_CHUNK: self._first,
                conventions.RESPONSE_ID: None if response is None else response.id,
                conventions.RESPONSE_MODEL: answering,
                **attributes.of_usage(usage),
            }
        )
        made = self._instruments
        if response is not None:
            made.content(self.span, conventions.OUTPUT_MESSAGES, output_messages, response.content, reason)
        labels = made.labels(
            {
                **attributes.labels_of(self._model),
                conventions.RESPONSE_MODEL: answering,
                conventions.ERROR_TYPE: failure,
            }
        )
        made.metrics.chat(perf_counter() - self._started, usage, labels)
        if self._reply is None:
            self.end()
        elif usage is not None:
            self._reply.usage = usage if self._reply.usage is None else self._reply.usage + usage

    def end(self) -> None:
        self.span.end()


class _Tool:
    """One call of a tool: run here, from first to last, or only known by its result, and then it has no length."""

    def __init__(self, instruments: _Instruments, reply: _Reply, call: ToolCallBlock, at: int | None = None) -> None:
        self._instruments = instruments
        self._started = perf_counter()
        self._labels: _Attributes = {}
        self.response: ToolResponse | None = None
        self.failure: str | None = None
        before = reply.tools.get(call.id)
        if before is not None:  # a layer outside of this one runs the call again
            before.end(None)
        reply.tools[call.id] = self
        where = {} if at is None else {"parent": reply.span.context, "started_at": at}
        self.span = instruments.span(
            conventions.EXECUTE_TOOL,
            attributes.of_tool,
            reply.agent,
            reply.run.toolkit,
            call,
            instruments.captures,
            **where,
        )
        if at is not None:
            self.span.stop(at)
            return
        self._name = call.name
        instruments.content(self.span, conventions.TOOL_ARGUMENTS, arguments_json, call)

    def stop(self) -> None:
        self.span.stop()
        made = self._instruments
        if self.response is not None:
            made.content(self.span, conventions.TOOL_RESULT, result_text, self.response.content)
        labels = made.labels({conventions.TOOL_NAME: self._name, conventions.ERROR_TYPE: self.failure})
        made.metrics.tool(perf_counter() - self._started, labels)

    def end(self, state: ToolResultState | None) -> None:
        """Send the span with the state that is on record; without one, the call was left, which is no failure."""
        if self.span.is_ended:
            return
        own = None if self.response is None else self.response.state
        known = ToolResultState.ERROR if self.failure else state or own
        self.span.set({conventions.TOOL_STATE: (known or ToolResultState.INTERRUPTED).value})
        if known in _FAILED:
            self.span.fail(self.failure or _FAILED[known])
        self.span.end()
        self.response = None
