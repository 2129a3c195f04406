"""Sending spans to a collector, for programs that have no OpenTelemetry set up yet."""

import atexit
import logging
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider

from agentrt.errors import ConfigError, UsageError
from agentrt_middleware.validation import check_number

__all__ = ["SpanDelivery", "setup_tracing"]

_logger = logging.getLogger("agentrt")


class SpanDelivery:
    """Spans on their way to a collector, in batches from a thread of their own; `setup_tracing` returns one."""

    def __init__(self, provider: Any, exporter: Any, shutdown_seconds: float) -> None:
        self._provider = provider
        self._exporter = exporter
        self._seconds = shutdown_seconds
        self._is_shut_down = False
        atexit.register(self.shutdown)

    @property
    def undelivered(self) -> int:
        """How many finished spans the collector does not have: those that wait, and those that were dropped."""
        count: int = self._exporter.undelivered
        return count

    def flush(self, seconds: float | None = None) -> bool:
        """Send what waits, now; returns whether it came to an end in time. Blocks: from a coroutine, use a thread."""
        return _in_time(self._provider.force_flush, self._seconds if seconds is None else seconds)

    def shutdown(self, seconds: float | None = None) -> bool:
        """Send what waits, and stop; after `seconds`, by default those of `setup_tracing`, the rest is dropped.

        Returns whether it came to an end in time. The end of the program does the same. Blocks, as `flush` does.
        """
        if self._is_shut_down:
            return True
        self._is_shut_down = True
        atexit.unregister(self.shutdown)
        in_time = _in_time(self._provider.shutdown, self._seconds if seconds is None else seconds)
        if not in_time:
            self._exporter.shutdown()  # gives up the attempts that were still to come
        if self.undelivered:
            _logger.warning("%d spans were not delivered to the collector", self.undelivered)
        return in_time


def setup_tracing(
    endpoint: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    service_name: str | None = None,
    shutdown_seconds: float = 5.0,
) -> SpanDelivery:
    """Send the spans of this process to an OTLP collector, over HTTP and in batches.

    `endpoint` is the collector's address; one without a path gets "/v1/traces". A key belongs into `headers`. What is
    not given is taken from the OTEL_* variables, and at last http://localhost:4318. Sets the global tracer provider:
    raises `UsageError` where there is one already, and `ConfigError` for what cannot be sent to, or would be logged,
    and when the extra is missing. Spans that the collector does not take are dropped, and the end of the program waits
    for it no longer than `shutdown_seconds`.
    """
    url = None if endpoint is None else _traces_url(endpoint)
    for name, value in (headers or {}).items():
        _check_header(name, value)
    check_number("setup_tracing(shutdown_seconds=...)", shutdown_seconds)
    if not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        raise _found_another()
    try:
        from agentrt_middleware.tracing.otlp_sdk import make_provider
    except ImportError as error:
        raise ConfigError(
            'setup_tracing() needs OpenTelemetry\'s SDK and exporter: pip install "agentrt[otel]"'
        ) from error
    provider, exporter = make_provider(url, headers, service_name, shutdown_seconds)
    trace.set_tracer_provider(provider)
    if trace.get_tracer_provider() is not provider:
        provider.shutdown()
        raise _found_another()
    return SpanDelivery(provider, exporter, shutdown_seconds)


def _found_another() -> UsageError:
    return UsageError(
        "setup_tracing() found a tracer provider, and that cannot be replaced: leave the call out, since "
        "TracingMiddleware() uses what is there, or make it once and before anything else sets one"
    )


def _traces_url(endpoint: str) -> str:
    # What is wrong with it is not shown: it may hold a key.
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (AttributeError, TypeError, ValueError):
        is_address = False
    if not is_address:
        raise ConfigError(
            "setup_tracing(endpoint=...) must be an address such as 'http://localhost:4318', with http or https"
        )
    if parts.query:
        raise ConfigError(
            "setup_tracing(endpoint=...) has something after a '?', which the exporter would log whenever the "
            "collector fails: leave it out, and give a key as headers={...}"
        )
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _check_header(name: Any, value: Any) -> None:
    # The exporter would find it out with each batch, and log the value.
    is_text = isinstance(name, str) and isinstance(value, str)
    if not (is_text and name.isascii() and value.isascii() and value.isprintable() and value == value.strip()):
        raise ConfigError(
            f"setup_tracing(headers=...): the value of {name!r:.100} cannot be sent, and is not shown: it must be text "
            f"of ASCII characters, without a line end and without spaces around it"
        )


def _in_time(work: Callable[[], Any], seconds: float) -> bool:
    """Do the work in a thread; say whether it was done within `seconds`."""
    thread = Thread(target=work, name="agentrt-tracing", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # too late in the life of the interpreter for a new thread
        work()
        return True
    thread.join(seconds)
    return not thread.is_alive()
