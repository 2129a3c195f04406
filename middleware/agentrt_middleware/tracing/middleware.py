"""Tracing: each reply, model call and tool call as an OpenTelemetry span."""

import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from typing import Any, ClassVar, Self, TypeVar, TypeVarTuple

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, SpanKind, Tracer, TracerProvider

from agentrt import MiddlewareBase, __version__
from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.event import (
    AgentEvent,
    ExternalExecutionResultEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ToolResultEndEvent,
)
from agentrt.hooks import ActingValues, ModelCallValues, NextActing, NextModelCall, NextReply, ReplyValues
from agentrt.message import Msg, ToolCallBlock, ToolCallState, ToolResultState
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ModelResult
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.attempts import StreamedAnswer, is_readable
from agentrt_middleware.context.requests import CONTEXT_LAYERS, INSIDE_OF_CONTEXT
from agentrt_middleware.reply_info import call_of, input_of, messages_of, model_name_of
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
from agentrt_middleware.tracing.conventions import Attributes
from agentrt_middleware.tracing.metrics import GenAIMetrics
from agentrt_middleware.tracing.span import Current, GenAISpan, Isolated

_logger = logging.getLogger("agentrt")
_Hook = TypeVar("_Hook", bound=Callable[..., object])
_Streamed = TypeVar("_Streamed")
_Values = TypeVarTuple("_Values")

_NO_FAILURES = (ToolResultState.SUCCESS, ToolResultState.RUNNING)
# The `error.type` of a tool call that ended in one of these states.
_ERROR_TYPES = {state: state.value for state in ToolResultState if state not in _NO_FAILURES}
_ERROR_TYPES[ToolResultState.ERROR] = "tool_error"


def _only_if(
    is_traced: Callable[["TracingMiddleware", AgentBase, Any], bool], in_context: Callable[..., object] | None = None
) -> Callable[[_Hook], _Hook]:
    """Make a hook return the next layer's result directly when nothing is traced, so that it costs no frame per item.

    `in_context` calls the next layer of an unsampled reply, in the context that says so.
    """

    def decorate(hook: _Hook) -> _Hook:
        @wraps(hook)
        def entry(self: "TracingMiddleware", agent: AgentBase, input_kwargs: Any, next_handler: Any) -> Any:
            if is_traced(self, agent, input_kwargs):
                return hook(self, agent, input_kwargs, next_handler)
            if in_context is not None and self._instruments is not None:
                context = agent.run.scratch(self).get("context")
                if context is not None:
                    return in_context(context, input_kwargs, next_handler)
            return next_handler(**input_kwargs)

        return entry  # type: ignore[return-value]  # it returns what the hook would return

    return decorate


async def _call_in_context(context: Context, input_kwargs: ModelCallValues, next_handler: NextModelCall) -> ModelResult:
    with Current(context):
        result = await next_handler(**input_kwargs)
    if isinstance(result, ChatResponse):
        return result
    return _stream_in_context(context, {}, lambda: result)  # an inner layer may call the model again while it is read


# Here and in the hooks below, the loop over a stream is written out: a generator that makes a span current around each
# step would save the repetition, but cost every item one more frame.
async def _stream_in_context(
    context: Context, input_kwargs: Mapping[str, object], next_handler: Callable[..., AsyncIterator[_Streamed]]
) -> AsyncGenerator[_Streamed, None]:
    steps, current = aiter(next_handler(**input_kwargs)), Current(context)
    while True:
        with current:
            try:
                item = await anext(steps)
            except StopAsyncIteration:
                break
        yield item


class TracingMiddleware(MiddlewareBase):
    """Traces replies: `invoke_agent {agent}`, and under it `chat {model}` and `execute_tool {tool}`.

    Uses the global tracer provider, or the given one; `setup_tracing` sets one up. Without a provider each hook just
    delegates to the next layer. Without a meter provider, an unsampled reply costs no more than that,
    except one span, in whose context its models and tools are called. A tool call that is denied, refused or run
    elsewhere has a span too, without duration. Retries and fallbacks are events of one chat span, so this middleware
    stands outside the layers that make them.

    Spans hold no content: no messages, no answers, no arguments or results of tools. `capture_content=True` adds these;
    without it, the standard variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT decides. `redact` is called
    with every text that leaves the process, captured or not, and its result is sent instead; if it fails, the text is
    not sent. The texts of errors, bytes and URLs are never sent. A failing tracer does not break the reply.
    """

    inherited = True

    wraps: ClassVar = dict.fromkeys(
        (
            *CONTEXT_LAYERS,
            *INSIDE_OF_CONTEXT,
            "ToolErrorMiddleware",
            "ToolRetryMiddleware",
            "ToolEmulatorMiddleware",
        ),
        "its spans show what happens inside of it",
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
            raise MiddlewareConfigError(
                f"TracingMiddleware(redact=...) must be a function of a str, not {redact!r:.200}"
            )
        if capture_content is None:
            value = os.environ.get(conventions.CAPTURE_VARIABLE, "").upper()
            capture_content = conventions.CAPTURE_VALUES.get(value)
            if capture_content is None:
                # Its value is not logged: it may be a secret by mistake.
                known = ", ".join(conventions.CAPTURE_VALUES)
                _logger.warning("%s must be one of %s: no content is captured", conventions.CAPTURE_VARIABLE, known)
        self._capture_content = bool(capture_content)
        self._isolated = Isolated(redact)
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._provider_in_use: TracerProvider | None = None
        self._instruments: _Instruments | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return copy(self)  # to the same providers, which belong to the program and hold threads and connections

    # The conditions of the hooks.

    def _begin_reply(self, agent: AgentBase, input_kwargs: ReplyValues) -> bool:
        """Start the span of a reply; returns whether the reply is recorded."""
        instruments = self._find_instruments()
        if instruments is None:
            return False
        reply = _TracedReply(instruments, agent, input_of(input_kwargs))
        if reply.span.is_recording or self._has_meters():
            agent.run.scratch(self)["reply"] = reply
            return True
        # It is not sampled, so its model and tool calls must not be either. The caller's span tells them so
        # already, if there is one and it is unsampled.
        caller = trace.get_current_span().get_span_context()
        if caller.trace_flags.sampled or not caller.is_valid:
            agent.run.scratch(self)["context"] = reply.span.context
        return False

    def _is_in_reply(self, agent: AgentBase, input_kwargs: ActingValues) -> bool:
        return self._instruments is not None and "reply" in agent.run.scratch(self)

    def _is_in_reply_or_alone(self, agent: AgentBase, input_kwargs: ModelCallValues) -> bool:
        # A conversation that is compressed between replies calls its model outside any reply.
        is_in_reply = self._instruments is not None and "reply" in agent.run.scratch(self)
        return is_in_reply or (agent.run.is_internal and self._find_instruments() is not None)

    @_only_if(_begin_reply)
    async def on_reply(
        self, agent: AgentBase, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        reply: _TracedReply = agent.run.scratch(self)["reply"]
        try:
            steps = aiter(next_handler(**input_kwargs))
            while True:
                with reply.span:
                    try:
                        item = await anext(steps)
                    except StopAsyncIteration:
                        break
                handler = _HANDLERS.get(item.__class__)
                if handler is not None:
                    self._isolated(handler, reply, item)
                yield item
        except BaseException as error:
            self._isolated(reply.leave, error)
            raise
        finally:
            self._isolated(reply.end)

    @_only_if(_is_in_reply_or_alone, _call_in_context)
    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        assert self._instruments is not None  # the condition has looked for them
        chat = _TracedChat(self._instruments, agent.run.scratch(self).get("reply"), agent, input_kwargs)
        try:
            with chat.span:
                result = await next_handler(**input_kwargs)
        except BaseException as error:
            self._isolated(chat.stop, error)
            raise
        if not isinstance(result, ChatResponse):
            return self._trace_stream(chat, result)
        chat.response = result
        self._isolated(chat.stop)
        return result

    async def _trace_stream(
        self, chat: "_TracedChat", stream: AsyncIterator[ChatResponse]
    ) -> AsyncGenerator[ChatResponse, None]:
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

    @_only_if(_is_in_reply, _stream_in_context)
    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        assert self._instruments is not None  # the condition has looked for them
        tool_call = _TracedToolCall(self._instruments, agent.run.scratch(self)["reply"], call_of(input_kwargs))
        try:
            steps = aiter(next_handler(**input_kwargs))
            while True:
                with tool_call.span:
                    try:
                        item = await anext(steps)
                    except StopAsyncIteration:
                        break
                if isinstance(item, ToolResponse):
                    tool_call.response = item
                yield item
        except Exception as error:
            tool_call.error_type = type(error).__qualname__
            raise
        finally:
            self._isolated(tool_call.stop)

    def _find_instruments(self) -> "_Instruments | None":
        """Return the current tracer and meters, `None` while no provider is configured."""
        # Looked up for each reply, since a program may set the global provider at any time.
        provider = trace.get_tracer_provider() if self._tracer_provider is None else self._tracer_provider
        if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)):
            return None
        if provider is not self._provider_in_use:
            self._provider_in_use = provider
            self._instruments = self._isolated(self._make_instruments, provider)
        return self._instruments

    def _has_meters(self) -> bool:
        meters = metrics.get_meter_provider() if self._meter_provider is None else self._meter_provider
        # By the name of the class, since the placeholder for a missing provider is not public.
        return not isinstance(meters, NoOpMeterProvider) and type(meters).__name__ != "_ProxyMeterProvider"

    def _make_instruments(self, provider: TracerProvider) -> "_Instruments":
        meters = metrics.get_meter_provider() if self._meter_provider is None else self._meter_provider
        meter = meters.get_meter("agentrt", __version__)
        tracer = provider.get_tracer("agentrt", __version__)
        return _Instruments(self._isolated, tracer, GenAIMetrics(meter), self._has_meters, self._capture_content)


@dataclass(slots=True)
class _Instruments:
    isolated: Isolated
    tracer: Tracer
    metrics: GenAIMetrics
    has_meters: Callable[[], bool]
    captures_content: bool

    def span(
        self,
        operation: str,
        description: tuple[str, Attributes] | None,
        *,
        parent: Context | None = None,
        started_at: int | None = None,
    ) -> GenAISpan:
        """Start the span of an operation; `description` is the name of its subject, and its attributes."""
        subject, described = description or (conventions.OTHER, {})
        kind = SpanKind.CLIENT if operation == conventions.CHAT else SpanKind.INTERNAL
        described = {**described, conventions.OPERATION: operation}
        name = f"{operation} {subject}"
        return GenAISpan(self.isolated, self.tracer, name, kind, described, parent=parent, started_at=started_at)

    def set_content(
        self,
        span: GenAISpan,
        name: str,
        render: Callable[[*_Values, Callable[[str], str]], str | None],
        *values: *_Values,
    ) -> None:
        """Set an attribute with content, if content is captured."""
        if self.captures_content:
            span.set_content(name, render, *values)


class _TracedReply:
    """One reply: its span, and its open calls."""

    def __init__(self, instruments: _Instruments, agent: AgentBase, inputs: object) -> None:
        self.instruments = instruments
        self.agent = agent
        self.run = agent.run
        self.chat: _TracedChat | None = None
        self.chats = 0
        self.tool_calls: dict[str, _TracedToolCall] = {}
        self.usage: ChatUsage | None = None
        self.finished_reason: str | None = None
        self.error_type: str | None = None
        self._started_at = perf_counter()
        results = inputs.execution_results if isinstance(inputs, ExternalExecutionResultEvent) else []
        self._external_ids = {block.id for block in results}
        description = instruments.isolated(attributes.of_agent, agent, inputs)
        self.span = instruments.span(conventions.INVOKE_AGENT, description)
        messages = messages_of(inputs)
        if messages is not None:
            instruments.set_content(self.span, conventions.INPUT_MESSAGES, input_messages, messages)
            instruments.set_content(self.span, conventions.INPUT_VALUE, plain_text, messages)

    def end_chat(self) -> None:
        if self.chat is not None:
            self.chat.end()
            self.chat = None

    def see_retry(self, event: ModelCallRetryEvent) -> None:
        if event.reply_id != self.run.id:
            return
        span = self.span if self.chat is None else self.chat.span
        retry: Attributes = {
            conventions.RETRY_ATTEMPT: event.attempt,
            conventions.RETRY_WAIT: event.wait_seconds,
            conventions.RETRY_REASON: event.reason if self.instruments.captures_content else None,
        }
        span.add_event(conventions.RETRY_EVENT, retry, event.created_at)

    def see_model_call_end(self, event: ModelCallEndEvent) -> None:
        if event.reply_id == self.run.id:
            self.end_chat()

    def see_tool_result(self, event: ToolResultEndEvent) -> None:
        """End the span of the call, or create one for a call that did not run here."""
        if event.reply_id != self.run.id:
            return
        tool_call = self.tool_calls.get(event.tool_call_id)
        if tool_call is None:
            name = event.tool_call_name or self.run.call_name(event.tool_call_id)  # a layer's own event may lack it
            call = ToolCallBlock(event.tool_call_id, name)
            tool_call = _TracedToolCall(self.instruments, self, call, event.created_at)
            tool_call.span.set({conventions.AGENT_IS_EXTERNAL: True if call.id in self._external_ids else None})
        tool_call.end(event.state)

    def see_end(self, event: ReplyEndEvent) -> None:
        if event.reply_id == self.run.id:
            self.finished_reason = event.finished_reason

    def see_message(self, message: Msg) -> None:
        calls = message.get_content_blocks("tool_call")
        asking = call_names(calls, ToolCallState.ASKING)
        submitted = call_names(calls, ToolCallState.SUBMITTED)
        self.span.set({conventions.AGENT_PENDING_CONFIRMATION: asking, conventions.AGENT_PENDING_EXTERNAL: submitted})
        if asking or submitted:
            self.finished_reason = self.finished_reason or "parked"
        reason = self.finished_reason or "completed"
        content, finish_reason = message.get_content_blocks(), "stop" if reason == "completed" else reason
        self.instruments.set_content(self.span, conventions.OUTPUT_MESSAGES, output_messages, content, finish_reason)
        self.instruments.set_content(self.span, conventions.OUTPUT_VALUE, plain_text, [message])

    def leave(self, error: BaseException) -> None:
        """Record why the reply was cut short; only an `Exception` is a failure."""
        if isinstance(error, Exception):
            self.finished_reason, self.error_type = "error", type(error).__qualname__
            self.span.fail(self.error_type)
        else:
            reason = "closed" if isinstance(error, GeneratorExit) else "cancelled"
            self.finished_reason = self.finished_reason or reason

    def end(self) -> None:
        self.end_chat()
        for tool_call in self.tool_calls.values():
            tool_call.end(None)
        reason = self.finished_reason or "completed"
        self.span.set({conventions.AGENT_FINISHED_REASON: reason, **attributes.of_usage(self.usage)})
        self.span.end()
        if not self.instruments.has_meters():
            return
        labels: Attributes = {
            conventions.AGENT_NAME: self.agent.name,
            conventions.REQUEST_MODEL: model_name_of(self.agent),
            conventions.ERROR_TYPE: self.error_type,
        }
        clean_labels = self.instruments.isolated.clean_attributes(labels)
        seconds = perf_counter() - self._started_at
        self.instruments.metrics.record_agent(seconds, self.chats, len(self.tool_calls), clean_labels)


_HANDLERS: dict[type, Callable[[_TracedReply, Any], None]] = {
    ModelCallEndEvent: _TracedReply.see_model_call_end,
    ModelCallRetryEvent: _TracedReply.see_retry,
    Msg: _TracedReply.see_message,
    ReplyEndEvent: _TracedReply.see_end,
    ToolResultEndEvent: _TracedReply.see_tool_result,
}


class _TracedChat:
    """One call of a model, with all attempts of the inner layers.

    Its span is sent when the reply has seen the end of the call: until then, events of retries may be on their way.
    """

    def __init__(
        self, instruments: _Instruments, reply: _TracedReply | None, agent: AgentBase, values: ModelCallValues
    ) -> None:
        self._instruments = instruments
        self._reply = reply
        self._model: ChatModelBase = values["current_model"]
        self._started_at = perf_counter()
        self._time_to_first: float | None = None
        self._answer = StreamedAnswer(with_content=instruments.captures_content)
        self.response: ChatResponse | None = None
        self._is_internal = agent.run.is_internal
        if reply is not None:
            reply.chats += 1
            if not self._is_internal:  # it has no events, and may run beside the round's own call
                reply.end_chat()
                reply.chat = self
        description = instruments.isolated(attributes.of_chat, agent, self._model)
        self.span = instruments.span(conventions.CHAT, description)
        messages, choice = values["messages"], values["tool_choice"]
        tools = [] if choice is not None and choice.mode == "none" else values["tools"]
        instruments.set_content(self.span, conventions.SYSTEM_INSTRUCTIONS, system_parts, messages)
        instruments.set_content(self.span, conventions.INPUT_MESSAGES, input_messages, messages)
        instruments.set_content(self.span, conventions.TOOL_DEFINITIONS, tool_definitions, tools)

    def see(self, piece: ChatResponse) -> None:
        if self._time_to_first is None:
            self._time_to_first = perf_counter() - self._started_at
        if is_readable(piece):
            self._answer.add(piece)
            if piece.is_last:
                self.response = piece

    def stop(self, error: BaseException | None = None) -> None:
        """Record the end of the call, and its outcome."""
        self.span.stop()
        error_type = type(error).__qualname__ if isinstance(error, Exception) else None
        if error_type is not None:
            self.span.fail(error_type)
        response = self.response
        if response is None and error is None:  # the stream ended, so its pieces are the answer
            response = self._answer.response()
        usage = None if response is None else response.usage
        responding_model = None if response is None else attributes.responding_model(response)
        # A call that was cut short or abandoned has no answer: the conventions call that an error, although it is not a
        # failure to us.
        finish_reason = "error" if response is None else response.finished_reason or "stop"
        self.span.set(
            {
                conventions.FINISH_REASONS: [finish_reason],
                conventions.TIME_TO_FIRST_CHUNK: self._time_to_first,
                conventions.RESPONSE_ID: None if response is None else response.id,
                conventions.RESPONSE_MODEL: responding_model,
                **attributes.of_usage(usage),
            }
        )
        if response is not None:
            content = response.content
            self._instruments.set_content(
                self.span, conventions.OUTPUT_MESSAGES, output_messages, content, finish_reason
            )
        if self._instruments.has_meters():
            labels: Attributes = {
                **attributes.labels_of(self._model),
                conventions.RESPONSE_MODEL: responding_model,
                conventions.ERROR_TYPE: error_type,
            }
            clean_labels = self._instruments.isolated.clean_attributes(labels)
            self._instruments.metrics.record_chat(perf_counter() - self._started_at, usage, clean_labels)
        if self._reply is None or self._is_internal:
            self.end()
        if self._reply is not None and usage is not None:
            self._reply.usage = usage if self._reply.usage is None else self._reply.usage + usage

    def end(self) -> None:
        self.span.end()


class _TracedToolCall:
    """One tool call: run here, or known only by its result, which came at `result_at`."""

    def __init__(
        self, instruments: _Instruments, reply: _TracedReply, call: ToolCallBlock, result_at: int | None = None
    ) -> None:
        self._instruments = instruments
        self._started_at = perf_counter()
        self._name = call.name
        self.response: ToolResponse | None = None
        self.error_type: str | None = None
        earlier = reply.tool_calls.get(call.id)
        if earlier is not None:  # an outer layer runs the call again
            earlier.end(None)
        reply.tool_calls[call.id] = self
        captures_content = instruments.captures_content
        description = instruments.isolated(attributes.of_tool, reply.run, call, captures_content=captures_content)
        if result_at is None:
            self.span = instruments.span(conventions.EXECUTE_TOOL, description)
            instruments.set_content(self.span, conventions.TOOL_ARGUMENTS, arguments_json, call)
        else:
            # Created while no span is current, so its parent is explicit: the tool's own call, where a tool makes it.
            outer = reply.tool_calls.get(call.id.rpartition("/")[0])
            parent = (reply if outer is None else outer).span.context
            self.span = instruments.span(conventions.EXECUTE_TOOL, description, parent=parent, started_at=result_at)
            self.span.stop(result_at)

    def stop(self) -> None:
        """Record the end of the run; its state comes with the event of the result."""
        self.span.stop()
        if self.response is not None:
            content = self.response.content
            self._instruments.set_content(self.span, conventions.TOOL_RESULT, result_text, content)
        if not self._instruments.has_meters():
            return
        labels: Attributes = {conventions.TOOL_NAME: self._name, conventions.ERROR_TYPE: self.error_type}
        clean_labels = self._instruments.isolated.clean_attributes(labels)
        self._instruments.metrics.record_tool(perf_counter() - self._started_at, clean_labels)

    def end(self, state: ToolResultState | None) -> None:
        """Send the span with the recorded state; without one, the call was abandoned, which is not a failure."""
        if self.span.is_ended:
            return
        response_state = None if self.response is None else self.response.state
        state = ToolResultState.ERROR if self.error_type else state or response_state
        self.span.set({conventions.TOOL_STATE: (state or ToolResultState.INTERRUPTED).value})
        if state in _ERROR_TYPES:
            self.span.fail(self.error_type or _ERROR_TYPES[state])
        self.span.end()
        self.response = None  # released early: results may be large
