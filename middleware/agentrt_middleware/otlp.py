"""Sending spans to a collector, for programs that have no OpenTelemetry set up yet."""

import atexit
import logging
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

from agentrt.errors import ConfigError, UsageError

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

    `endpoint` is the collector's address; one without a path gets "/v1/traces". What is not given is taken from the
    OTEL_* variables, and at last http://localhost:4318. Sets the global tracer provider: raises `UsageError` where
    there is one already, and `ConfigError` when the extra is missing. Spans that the collector does not take are
    dropped, and the end of the program waits for it no longer than `shutdown_seconds`.
    """
    url = None if endpoint is None else _traces_url(endpoint)
    if not isinstance(trace.get_tracer_provider(), (ProxyTracerProvider, NoOpTracerProvider)):
        raise UsageError(
            "setup_tracing() found a tracer provider, and that cannot be replaced: leave the call out, since "
            "TracingMiddleware() uses what is there, or make it once and before anything else sets one"
        )
    try:
        from agentrt_middleware.otlp_sdk import make_provider
    except ImportError as error:
        raise ConfigError(
            'setup_tracing() needs OpenTelemetry\'s SDK and exporter: pip install "agentrt[otel]"'
        ) from error
    provider, exporter = make_provider(url, headers, service_name, shutdown_seconds)
    trace.set_tracer_provider(provider)
    return SpanDelivery(provider, exporter, shutdown_seconds)


def _traces_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # Not shown: it may hold a key.
        raise ConfigError(
            "setup_tracing(endpoint=...) must be an address such as 'http://localhost:4318', with http or https"
        )
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


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
