"""A span that is current for one step at a time and never gets in the way of what it watches."""

import logging
from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from agentrt_middleware.tracing.conventions import ERROR_TYPE

__all__ = ["Current", "GenAISpan", "Isolated"]

_logger = logging.getLogger("agentrt")
_NOT_SHOWN = "[not shown: redact failed]"
_MOST_TEXT = 20_000  # characters of one text; a collector that is sent megabytes drops the lot

_Result = TypeVar("_Result")
Attributes = Mapping[str, Any]


class Isolated:
    """Calls what only watches: where that fails the result is `None`, and the first failure is logged by its type."""

    __slots__ = ("_redact", "_told")

    def __init__(self, redact: Callable[[str], str] | None) -> None:
        self._redact = redact
        self._told = False

    def __call__(self, function: Callable[..., _Result], *values: Any, **named: Any) -> _Result | None:
        try:
            return function(*values, **named)
        except Exception as error:  # noqa: BLE001  # an observer that fails is no reason for a reply to fail
            if not self._told:
                self._told = True
                # By its type alone: the text may hold what was to be redacted.
                _logger.warning(
                    "tracing failed, and the reply goes on without it: %s; this is said once", type(error).__name__
                )
            return None

    def clean(self, text: str) -> str:
        """Return the text as it may leave: redacted, in whole characters, and cut where it is too long."""
        if self._redact is not None:
            redacted = self(self._redact, text)
            text = redacted if isinstance(redacted, str) else _NOT_SHOWN
        if not text.isascii():
            text = text.encode(errors="replace").decode()  # half a character, and the exporter loses what it is in
        return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."

    def cleaned(self, attributes: Attributes) -> dict[str, Any]:
        """Return the attributes that have a value, as they may leave."""
        return {name: self._value(value) for name, value in attributes.items() if value is not None}

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.clean(value)
        return [self.clean(each) for each in value] if isinstance(value, (list, tuple)) else value


class Current:
    """Makes a context current inside `with`, for one step, which must end in the task that it began in."""

    __slots__ = ("_token", "context")

    def __init__(self, context: Context) -> None:
        self.context = context
        self._token: Any = None

    def __enter__(self) -> None:
        self._token = attach(self.context)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A step that is thrown away where it waits may be closed in any context, and then this one has nothing to undo.
        if kind is not GeneratorExit or get_current() is self.context:
            detach(self._token)


class GenAISpan(Current):
    """One span; inside `with span:` it is current.

    `stop` notes when the work was over, and `end` sends the span, with what was added to it in between.
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
            attributes=isolated.cleaned(attributes),
            start_time=started_at,
            record_exception=False,  # its text may hold anything
            set_status_on_exception=False,
        )
        self._span = trace.INVALID_SPAN if span is None else span
        self.is_recording = bool(isolated(self._span.is_recording))
        around = get_current() if parent is None else parent
        super().__init__(around if span is None else trace.set_span_in_context(span, around))

    def set_content(self, name: str, make: Callable[..., str | None], *values: Any) -> None:
        """Set what `make` makes of the values; it is handed `clean` for each piece, since JSON cannot be cut as one."""
        value = self._isolated(make, *values, self._isolated.clean) if self.is_recording else None
        if value is not None and not self.is_ended:
            self._isolated(self._span.set_attribute, name, value)

    def set(self, attributes: Attributes) -> None:
        """Set the attributes that have a value."""
        if self.is_recording and not self.is_ended:
            self._isolated(self._span.set_attributes, self._isolated.cleaned(attributes))

    def fail(self, error_type: str) -> None:
        """Mark the span as failed, in one word."""
        self.set({ERROR_TYPE: error_type})
        if self.is_recording and not self.is_ended:
            self._isolated(self._span.set_status, Status(StatusCode.ERROR, error_type))

    def add_event(self, name: str, attributes: Attributes, at: int) -> None:
        if self.is_recording and not self.is_ended:
            self._isolated(self._span.add_event, name, self._isolated.cleaned(attributes), at)

    def stop(self, at: int | None = None) -> None:
        if self.stopped_at is None:
            self.stopped_at = at or time_ns()

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._isolated(self._span.end, self.stopped_at)
