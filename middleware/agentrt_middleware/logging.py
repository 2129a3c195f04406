"""Logging: writes one line to the log for each noteworthy event of a reply."""

import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from time import perf_counter
from typing import Any, ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.event import (
    AgentEvent,
    CustomEvent,
    ExceedMaxItersEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    ReplyEndEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolCallDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.hooks import MiddlewareBase, NextReply, ReplyValues
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolResultState
from agentrt_middleware.attempts import only_if
from agentrt_middleware.context.requests import CONTEXT_LAYERS
from agentrt_middleware.reply_info import input_of, messages_of

_logger = logging.getLogger("agentrt")
_NEEDS_NO_QUOTES = re.compile(r"[\w.:/@+-]+")
_NOT_LOGGED = "[not shown: redact failed]"
_UNKNOWN_TOOL = "_OTHER"
_MAX_LOGGED_CHARACTERS = 2_000  # of one text in a line

_Fields = Mapping[str, object]


class LoggingMiddleware(MiddlewareBase):
    """Logs the start and end of a reply, and each of its model calls, retries, tool calls, questions and custom events.

    A line is `MODEL_CALL_END agent_name=assistant seconds=0.71 ...`, in logfmt. Its record carries the same fields as
    attributes (`extra`), with the line's first word as `event`, for handlers that write JSON. Failures and retries are
    warnings, everything else has the given `level`. The default `logger` is "agentrt".

    The content of messages, answers and tool calls is logged only with `content=True`, the text of an error never. If a
    model calls a tool that does not exist, the tool's name is content as well, and `_OTHER` is logged in its place.
    `redact` is called with every text that is logged, and its result is logged instead; if it fails, the text is not
    logged. A failure in here, such as that of a handler, does not break the reply. `clock` is in seconds.
    """

    inherited = True

    wraps: ClassVar = {
        **dict.fromkeys((*CONTEXT_LAYERS, "GuardrailMiddleware", "BudgetMiddleware"), "it logs what they let through"),
        "RedactionMiddleware": "it logs what is redacted",
    }

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        content: bool = False,
        redact: Callable[[str], str] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if logger is not None and not isinstance(logger, (logging.Logger, logging.LoggerAdapter)):
            raise MiddlewareConfigError(
                f"LoggingMiddleware(logger=...) must be a logger, not {logger!r:.200}: write logging.getLogger(name)"
            )
        if type(level) is not int:  # `isinstance` would let `True` pass
            raise MiddlewareConfigError(
                f"LoggingMiddleware(level=...) must be a level such as logging.INFO, not {level!r:.200}"
            )
        if redact is not None and not callable(redact):
            raise MiddlewareConfigError(
                f"LoggingMiddleware(redact=...) must be a function of a str, not {redact!r:.200}"
            )
        self.content = content
        self._logger = logger
        self._level = level
        self._redact = redact
        self.clock = clock

    def _may_log(self, _: object = None, *, is_failure: bool = True) -> bool:
        # By default, a line of the highest level.
        try:
            return self.is_logged(is_failure=is_failure)
        except Exception:  # noqa: BLE001  # of a logger of the user's own, which must not break the reply
            return True

    @only_if(_may_log)
    async def on_reply(
        self, agent: AgentBase, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        reply = _ReplyLog(self, agent)
        reply.begin(input_of(input_kwargs))
        handlers = _handlers(content=bool(self.content), only_failures=not self._may_log(is_failure=False))
        try:
            async for item in next_handler(**input_kwargs):
                handler = handlers.get(item.__class__)
                if handler is not None:
                    reply.see(handler, item)
                yield item
        except BaseException as error:
            reply.leave(error)
            raise

    def is_logged(self, *, is_failure: bool) -> bool:
        """Say whether lines of this level are logged now."""
        level = max(self._level, logging.WARNING) if is_failure else self._level
        return (self._logger or _logger).isEnabledFor(level)

    def log(self, event: str, fields: _Fields, *, is_failure: bool) -> None:
        """Log one line, without the fields that are `None`."""
        level = max(self._level, logging.WARNING) if is_failure else self._level
        clean_fields = {name: self._clean(value) for name, value in fields.items() if value is not None}
        words = [event]
        for name, value in clean_fields.items():
            # Names come from models: a line break in one must not look like a line of the log.
            is_plain = isinstance(value, str) and _NEEDS_NO_QUOTES.fullmatch(value)
            words.append(f"{name}={value if is_plain else json.dumps(value)}")
        # As an argument, so that a "%" in it is not a format.
        (self._logger or _logger).log(level, "%s", " ".join(words), extra={"event": event, **clean_fields})

    def _clean(self, value: object) -> object:
        """Return the value as it may be logged: rounded, redacted, cut."""
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        if not isinstance(value, str):
            return value
        text = str(value)  # an enum of strings becomes a plain str
        if self._redact is not None:
            try:
                text = self._redact(text)
            except Exception:  # noqa: BLE001  # the error is not logged: it may hold what was to be redacted
                return _NOT_LOGGED
            if not isinstance(text, str):
                return _NOT_LOGGED
        return text if len(text) <= _MAX_LOGGED_CHARACTERS else f"{text[:_MAX_LOGGED_CHARACTERS]}..."


class _ReplyLog:
    def __init__(self, logs: LoggingMiddleware, agent: AgentBase) -> None:
        self._logs = logs
        self._run = agent.run
        self._id = agent.run.id
        self._common = {"agent_name": agent.name, "reply_id": self._id, "session_id": agent.state.session_id}
        self._model: str | None = None
        self._started_at: dict[str, float] = {}  # of "reply", "model", and tool calls by id
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, str] = {}

    def begin(self, inputs: object) -> None:
        self._safely(self._see_input, inputs)

    def see(self, handler: "_Handler", item: AgentEvent | Msg) -> None:
        # The events of a sub-agent's reply pass through too.
        if isinstance(item, Msg) or item.reply_id == self._id:
            self._safely(handler, self, item)

    def leave(self, error: BaseException) -> None:
        """Log that the reply was cut short; a failed reply has emitted its end before the error."""
        if isinstance(error, Exception):
            self._safely(self._line, "REPLY_FAILED", {"error_type": type(error).__name__}, True)
        else:
            event = "REPLY_CLOSED" if isinstance(error, GeneratorExit) else "REPLY_CANCELLED"
            self._safely(self._line, event, {"seconds": self._seconds_since_start("reply")})

    def _safely(self, function: Callable[..., None], *values: object) -> None:
        try:  # noqa: SIM105  # `suppress` would take three calls more
            function(*values)
        except Exception:  # noqa: BLE001  # logging must not break the reply; the log itself fails, so be silent
            pass

    def _line(self, event: str, fields: _Fields, is_failure: bool = False) -> None:
        if self._logs.is_logged(is_failure=is_failure):
            self._logs.log(event, {**self._common, **fields}, is_failure=is_failure)

    def _start_clock(self, subject: str) -> None:
        self._started_at[subject] = self._logs.clock()

    def _seconds_since_start(self, subject: str) -> float | None:
        started_at = self._started_at.pop(subject, None)
        return None if started_at is None else self._logs.clock() - started_at

    def _see_input(self, inputs: object) -> None:
        self._start_clock("reply")
        messages = messages_of(inputs)
        fields: dict[str, object] = {"input_type": getattr(inputs, "type", None) if messages is None else "messages"}
        if messages is not None and self._logs.content:
            fields["input"] = "\n".join(filter(None, (message.get_text_content() for message in messages)))
        self._line("REPLY_START", fields)

    def see_model_start(self, event: ModelCallStartEvent) -> None:
        self._start_clock("model")
        self._model = event.model_name

    def see_model_end(self, event: ModelCallEndEvent) -> None:
        fields = {
            "model": self._model,
            "seconds": self._seconds_since_start("model"),
            "input_tokens": event.input_tokens,
            "output_tokens": event.output_tokens,
            "cache_input_tokens": event.cache_input_tokens,
            "estimated": event.estimated,
            "replayed": event.replayed,
            "finished_reason": event.finished_reason,
        }
        self._line("MODEL_CALL_END", fields)

    def see_retry(self, event: ModelCallRetryEvent) -> None:
        # The reason of our own middlewares begins with the error's type; others may quote a provider.
        error_type = event.reason.partition(",")[0]
        reason = event.reason if self._logs.content else error_type if error_type.isidentifier() else None
        fields = {"model": self._model, "reason": reason}
        self._line(event.type, {**fields, "attempt": event.attempt, "wait_seconds": event.wait_seconds}, True)

    def see_tool_input(self, event: ToolCallDeltaEvent) -> None:
        self._inputs[event.tool_call_id] = self._inputs.get(event.tool_call_id, "") + event.delta

    def see_tool_start(self, event: ToolResultStartEvent) -> None:
        self._start_clock(event.tool_call_id)

    def _loggable_name(self, call: ToolCallBlock) -> str:
        # The model made up a name that no tool has, so it is content.
        # Looked up now: replies and rounds may have their own tools.
        return call.name if self._logs.content or self._run.tool_of(call) is not None else _UNKNOWN_TOOL

    def see_tool_output(self, event: ToolResultTextDeltaEvent) -> None:
        self._outputs[event.tool_call_id] = self._outputs.get(event.tool_call_id, "") + event.delta

    def see_tool_end(self, event: ToolResultEndEvent) -> None:
        call_id, is_failure = event.tool_call_id, event.state is not ToolResultState.SUCCESS
        if not self._logs.is_logged(is_failure=is_failure):
            for noted in (self._started_at, self._inputs, self._outputs):
                noted.pop(call_id, None)
            return
        output = self._outputs.pop(call_id, None)
        if event.output is not None:  # the whole output, which replaces the streamed one
            output = "".join(block.text for block in event.output if isinstance(block, TextBlock))
        fields = {
            "tool_name": self._loggable_name(ToolCallBlock(event.tool_call_id, event.tool_call_name)),
            "tool_call_id": call_id,
            "state": str(event.state),
            "seconds": self._seconds_since_start(call_id),
            "tool_input": self._inputs.pop(call_id, None),
            "tool_output": output if self._logs.content else None,
        }
        self._line("TOOL_RESULT_END", fields, is_failure)

    def see_question(self, event: RequireUserConfirmEvent | RequireExternalExecutionEvent) -> None:
        self._line(event.type, {"tool_names": [self._loggable_name(call) for call in event.tool_calls]})

    def see_exceed(self, event: ExceedMaxItersEvent) -> None:
        self._line(event.type, {}, True)

    def see_custom(self, event: CustomEvent) -> None:
        self._line("CUSTOM", {"name_of_event": event.name, "value": repr(event.value) if self._logs.content else None})

    def see_end(self, event: ReplyEndEvent) -> None:
        fields = {"finished_reason": event.finished_reason, "seconds": self._seconds_since_start("reply")}
        self._line("REPLY_END", fields, event.finished_reason != "completed")

    def see_message(self, message: Msg) -> None:
        self._line("REPLY_MESSAGE", {"output": message.get_text_content()})


_Handler = Callable[[_ReplyLog, Any], None]
_EVENT_HANDLERS: dict[type, _Handler] = {
    CustomEvent: _ReplyLog.see_custom,
    ExceedMaxItersEvent: _ReplyLog.see_exceed,
    ModelCallEndEvent: _ReplyLog.see_model_end,
    ModelCallRetryEvent: _ReplyLog.see_retry,
    ModelCallStartEvent: _ReplyLog.see_model_start,
    Msg: _ReplyLog.see_message,
    ReplyEndEvent: _ReplyLog.see_end,
    RequireExternalExecutionEvent: _ReplyLog.see_question,
    RequireUserConfirmEvent: _ReplyLog.see_question,
    ToolCallDeltaEvent: _ReplyLog.see_tool_input,
    ToolResultEndEvent: _ReplyLog.see_tool_end,
    ToolResultStartEvent: _ReplyLog.see_tool_start,
    ToolResultTextDeltaEvent: _ReplyLog.see_tool_output,
}
_OF_CONTENT = {Msg, ToolCallDeltaEvent, ToolResultTextDeltaEvent}
_OF_NO_FAILURE = {CustomEvent, ModelCallEndEvent, Msg, RequireExternalExecutionEvent, RequireUserConfirmEvent}


@cache
def _handlers(*, content: bool, only_failures: bool) -> dict[type, _Handler]:
    """Return the handlers of the events to log; all others cost one look-up."""
    left_out = (set() if content else _OF_CONTENT) | (_OF_NO_FAILURE if only_failures else set())
    return {kind: handler for kind, handler in _EVENT_HANDLERS.items() if kind not in left_out}
