"""A span that is current for one step at a time, and never breaks the observed work."""

import logging
from collections.abc import Callable
from contextvars import Token
from time import time_ns
from typing import ParamSpec, TypeVar, TypeVarTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from agentrt_middleware.tracing.conventions import ERROR_TYPE, Attributes

_logger = logging.getLogger("agentrt")
_NOT_TRACED = "[not shown: redact failed]"
_MAX_TEXT_CHARACTERS = 20_000  # of one text; collectors drop a batch of megabytes

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")
_Contents = TypeVarTuple("_Contents")


class Isolated:
    """Calls functions that only observe: if one fails, the result is `None`, and the first failure is logged."""

    __slots__ = ("_has_warned", "_redact")

    def __init__(self, redact: Callable[[str], str] | None) -> None:
        self._redact = redact
        self._has_warned = False

    def __call__(
        self, function: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # an observer that fails must not break the reply
            if not self._has_warned:
                self._has_warned = True
                # Only the error's type: its text may hold unredacted content.
                _logger.warning(
                    "tracing failed, and the reply continues without it: %s; later failures are not logged",
                    type(error).__name__,
                )
            return None

    def clean(self, text: str) -> str:
        """Return text that may leave the process: redacted, in whole characters, and cut if it is too long."""
        if self._redact is not None:
            redacted = self(self._redact, text)
            text = redacted if isinstance(redacted, str) else _NOT_TRACED
        if not text.isascii():
            # A lone surrogate cannot be encoded, and the exporter would lose the whole batch.
            text = text.encode(errors="replace").decode()
        return text if len(text) <= _MAX_TEXT_CHARACTERS else f"{text[:_MAX_TEXT_CHARACTERS]}..."

    def clean_attributes(self, attributes: Attributes) -> dict[str, AttributeValue]:
        """Return the attributes with a value, in a form that may leave the process."""
        cleaned: dict[str, AttributeValue] = {}
        for name, value in attributes.items():
            if isinstance(value, str):
                cleaned[name] = self.clean(value)
            elif isinstance(value, (list, tuple)):
                cleaned[name] = [self.clean(item) for item in value]
            elif value is not None:
                cleaned[name] = value
        return cleaned


class Current:
    """Makes a context current inside `with`, for one step, which must start and end in the same task."""

    __slots__ = ("_token", "context")

    def __init__(self, context: Context) -> None:
        self.context = context
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        self._token = attach(self.context)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An abandoned step may be closed in any context, where there is nothing to undo.
        if self._token is not None and (kind is not GeneratorExit or get_current() is self.context):
            detach(self._token)


class GenAISpan(Current):
    """One span; inside `with span:` it is current.

    `stop` records the end time of the work; `end` sends the span, including later additions.
    """

    __slots__ = ("_isolated", "_span", "is_ended", "is_recording", "stopped_at")

    def __init__(
        self,
        isolated: Isolated,
        tracer: Tracer,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        parent: Context | None = None,
        started_at: int | None = None,
    ) -> None:
        self._isolated = isolated
        self.stopped_at: int | None = None
        self.is_ended = False
        span = isolated(
            tracer.start_span,
            isolated.clean(name),
            parent,
            kind=kind,
            attributes=isolated.clean_attributes(attributes),
            start_time=started_at,
            record_exception=False,  # the text of an error may hold a secret
            set_status_on_exception=False,
        )
        self._span = trace.INVALID_SPAN if span is None else span
        self.is_recording = bool(isolated(self._span.is_recording))
        context = get_current() if parent is None else parent
        super().__init__(context if span is None else trace.set_span_in_context(span, context))

    def set_content(
        self, name: str, render: Callable[[*_Contents, Callable[[str], str]], str | None], *values: *_Contents
    ) -> None:
        """Set the text that `render` returns for the values.

        `render` also gets `clean`, for each text in the values: a JSON document as a whole could not be cut.
        """
        text = self._isolated(render, *values, self._isolated.clean) if self.is_recording else None
        if text is not None and not self.is_ended:
            self._isolated(self._span.set_attribute, name, text)

    def set(self, attributes: Attributes) -> None:
        """Set the attributes that have a value."""
        if self.is_recording and not self.is_ended:
            self._isolated(self._span.set_attributes, self._isolated.clean_attributes(attributes))

    def fail(self, error_type: str) -> None:
        """Mark the span as failed with an error of this type."""
        self.set({ERROR_TYPE: error_type})
        if self.is_recording and not self.is_ended:
            self._isolated(self._span.set_status, Status(StatusCode.ERROR, error_type))

    def add_event(self, name: str, attributes: Attributes, at: int) -> None:
        if self.is_recording and not self.is_ended:
            self._isolated(self._span.add_event, name, self._isolated.clean_attributes(attributes), at)

    def stop(self, at: int | None = None) -> None:
        if self.stopped_at is None:
            self.stopped_at = at or time_ns()

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._isolated(self._span.end, self.stopped_at)
