"""One line in the log for each thing of interest that happens in a reply."""

import json
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, ClassVar

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
from agentrt.message import Msg, TextBlock, ToolResultState
from agentrt_middleware.reply_info import input_of

__all__ = ["LoggingMiddleware"]

_logger = logging.getLogger("agentrt")
_PLAIN = re.compile(r"[\w.:/@+-]+")
_NOT_SHOWN = "[not shown: redact failed]"
_NO_TOOL = "_OTHER"
_MOST_TEXT = 2_000  # characters of one text in a line

Fields = dict[str, Any]


class LoggingMiddleware(MiddlewareBase):
    """Logs a reply's beginning and end, and in between each model call, retry, tool call, question and custom event.

    A line is `MODEL_CALL_END agent_name=assistant seconds=0.71 ...`, in logfmt; its record carries the same fields as
    attributes (`extra`), with the line's first word as `event`, for handlers that write JSON. Failures and retries are
    warnings, all else has the `level`. `logger` is "agentrt" unless another is given.

    What people, models and tools say is left out unless `content=True`, and so are the texts of errors in any case. A
    name by which a model calls a tool that does not exist is something that it says: in its place stands `_OTHER`.
    `redact` is called for every text that is logged, and what it returns is logged in its place; a text for which it
    fails is not logged. Nothing that fails here, a handler say, breaks a reply. `clock` is in seconds.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        content: bool = False,
        redact: Callable[[str], str] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if redact is not None and not callable(redact):
            raise MiddlewareConfigError(f"LoggingMiddleware(redact=...) is a function of a text, not {redact!r:.200}")
        self.content = content
        self._logger = logger or _logger
        self._level = level
        self._redact = redact
        self._clock = clock

    async def on_reply(
        self, agent: Any, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        reply = _Reply(self, agent)
        reply.begin(input_of(input_kwargs))
        try:
            async for item in next_handler(**input_kwargs):
                reply.see(item)
                yield item
        except BaseException as error:
            reply.leave(error)
            raise

    def _log(self, event: str, fields: Fields, is_failure: bool) -> None:
        level = max(self._level, logging.WARNING) if is_failure else self._level
        if not self._logger.isEnabledFor(level):
            return
        shown = {name: self._shown(value) for name, value in fields.items() if value is not None}
        text = " ".join([event, *(f"{name}={_quoted(value)}" for name, value in shown.items())])
        self._logger.log(level, "%s", text, extra={"event": event, **shown})

    def _shown(self, value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, list):
            return [self._shown(each) for each in value]
        return self._clean(str(value)) if isinstance(value, str) else value

    def _clean(self, text: str) -> str:
        if self._redact is not None:
            try:
                text = self._redact(text)
            except Exception:  # noqa: BLE001  # what it was to take out may be in the error as well
                return _NOT_SHOWN
            if not isinstance(text, str):
                return _NOT_SHOWN
        return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


class _Reply:
    """The lines of one reply."""

    def __init__(self, layer: LoggingMiddleware, agent: Any) -> None:
        self._layer = layer
        self._id = agent.run.id
        self._toolkit = agent.run.toolkit
        self._common = {"agent_name": agent.name, "reply_id": self._id, "session_id": agent.state.session_id}
        self._model: str | None = None
        self._since: dict[str, float] = {}
        self._tools: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def begin(self, inputs: Any) -> None:
        self._safely(self._begin, inputs)

    def see(self, item: AgentEvent | Msg) -> None:
        see = self._SEEN.get(item.__class__)
        if see is not None and (isinstance(item, Msg) or item.reply_id == self._id):
            self._safely(see, self, item)

    def leave(self, error: BaseException) -> None:
        """Log that the reply stops short; the end of a reply that failed comes as an event, before its error."""
        if isinstance(error, Exception):
            self._safely(self._line, "REPLY_FAILED", {"error_type": type(error).__name__}, True)
        else:
            event = "REPLY_CLOSED" if isinstance(error, GeneratorExit) else "REPLY_CANCELLED"
            self._safely(self._line, event, {"seconds": self._passed("reply")})

    def _safely(self, function: Callable[..., None], *values: Any) -> None:
        with suppress(Exception):  # whoever watches must not break what is watched, and the log is where to say so
            function(*values)

    def _line(self, event: str, fields: Fields, is_failure: bool = False) -> None:
        self._layer._log(event, {**self._common, **fields}, is_failure)

    def _begin(self, inputs: Any) -> None:
        self._start("reply")
        told = [inputs] if isinstance(inputs, Msg) else inputs
        kind = "messages" if isinstance(told, list) else getattr(inputs, "type", None)
        fields: Fields = {"input_type": kind}
        if isinstance(told, list) and self._layer.content:
            fields["input"] = "\n".join(filter(None, (each.get_text_content() for each in told)))
        self._line("REPLY_START", fields)

    def _start(self, what: str) -> None:
        self._since[what] = self._layer._clock()

    def _passed(self, what: str) -> float | None:
        since = self._since.pop(what, None)
        return None if since is None else self._layer._clock() - since

    def _see_model_start(self, event: ModelCallStartEvent) -> None:
        self._start("model")
        self._model = event.model_name

    def _see_model_end(self, event: ModelCallEndEvent) -> None:
        fields = {
            "model": self._model,
            "seconds": self._passed("model"),
            "input_tokens": event.input_tokens,
            "output_tokens": event.output_tokens,
            "cache_input_tokens": event.cache_input_tokens,
            "estimated": event.estimated,
            "finished_reason": event.finished_reason,
        }
        self._line("MODEL_CALL_END", fields)

    def _see_retry(self, event: ModelCallRetryEvent) -> None:
        # A reason begins with the error's type where our own layers give it; another's may be a provider's words.
        kind = event.reason.partition(",")[0]
        reason = event.reason if self._layer.content else kind if kind.isidentifier() else None
        fields = {"model": self._model, "reason": reason}
        self._line(event.type, {**fields, "attempt": event.attempt, "wait_seconds": event.wait_seconds}, True)

    def _see_call_text(self, event: ToolCallDeltaEvent) -> None:
        if self._layer.content:
            self._texts[event.tool_call_id] = self._texts.get(event.tool_call_id, "") + event.delta

    def _see_tool_start(self, event: ToolResultStartEvent) -> None:
        self._start(event.tool_call_id)
        self._tools[event.tool_call_id] = self._name_of(event.tool_call_name)

    def _name_of(self, tool: str) -> str:
        # A name that no tool has is the model's own words.
        return tool if self._layer.content or self._toolkit.get(tool) is not None else _NO_TOOL

    def _see_tool_text(self, event: ToolResultTextDeltaEvent) -> None:
        if self._layer.content:
            name = f"result of {event.tool_call_id}"
            self._texts[name] = self._texts.get(name, "") + event.delta

    def _see_tool_end(self, event: ToolResultEndEvent) -> None:
        call_id = event.tool_call_id
        output = self._texts.pop(f"result of {call_id}", None)
        if event.output is not None:
            output = "".join(block.text for block in event.output if isinstance(block, TextBlock))
        fields = {
            "tool_name": self._tools.pop(call_id, None),
            "tool_call_id": call_id,
            "state": str(event.state),
            "seconds": self._passed(call_id),
            "tool_input": self._texts.pop(call_id, None),
            "tool_output": output if self._layer.content else None,
        }
        self._line("TOOL_RESULT_END", fields, event.state is not ToolResultState.SUCCESS)

    def _see_question(self, event: RequireUserConfirmEvent | RequireExternalExecutionEvent) -> None:
        self._line(event.type, {"tool_names": [self._name_of(call.name) for call in event.tool_calls]})

    def _see_exceed(self, event: ExceedMaxItersEvent) -> None:
        self._line(event.type, {}, True)

    def _see_custom(self, event: CustomEvent) -> None:
        self._line("CUSTOM", {"name_of_event": event.name, "value": repr(event.value) if self._layer.content else None})

    def _see_end(self, event: ReplyEndEvent) -> None:
        fields = {"finished_reason": event.finished_reason, "seconds": self._passed("reply")}
        self._line("REPLY_END", fields, event.finished_reason != "completed")

    def _see_message(self, message: Msg) -> None:
        if self._layer.content:
            self._line("REPLY_MESSAGE", {"output": message.get_text_content()})

    _SEEN: ClassVar[dict[type, Callable[..., None]]] = {
        CustomEvent: _see_custom,
        ExceedMaxItersEvent: _see_exceed,
        ModelCallEndEvent: _see_model_end,
        ModelCallRetryEvent: _see_retry,
        ModelCallStartEvent: _see_model_start,
        Msg: _see_message,
        ReplyEndEvent: _see_end,
        RequireExternalExecutionEvent: _see_question,
        RequireUserConfirmEvent: _see_question,
        ToolCallDeltaEvent: _see_call_text,
        ToolResultEndEvent: _see_tool_end,
        ToolResultStartEvent: _see_tool_start,
        ToolResultTextDeltaEvent: _see_tool_text,
    }


def _quoted(value: Any) -> str:
    # Names come from models: a line break in one must not look like a line of the log.
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)
    return text if not isinstance(value, str) or _PLAIN.fullmatch(text) else json.dumps(text)
