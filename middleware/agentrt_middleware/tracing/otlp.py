"""Sends spans to a collector, for programs that have not set up OpenTelemetry yet."""

import atexit
import logging
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Protocol
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider

from agentrt.errors import ConfigError, UsageError
from agentrt_middleware.validation import check_number

__all__ = ["SpanDelivery", "setup_tracing"]

_logger = logging.getLogger("agentrt")


class _Provider(Protocol):
    """What is used of the SDK's tracer provider, which may not be installed."""

    def force_flush(self) -> bool: ...

    def shutdown(self) -> None: ...


class _Exporter(Protocol):
    @property
    def undelivered(self) -> int: ...

    def shutdown(self) -> None: ...


class SpanDelivery:
    """Sends spans to a collector, in batches from a thread of its own; `setup_tracing` returns one."""

    def __init__(self, provider: _Provider, exporter: _Exporter, shutdown_seconds: float) -> None:
        self._provider = provider
        self._exporter = exporter
        self._seconds = shutdown_seconds
        self._is_shut_down = False
        atexit.register(self.shutdown)

    @property
    def undelivered(self) -> int:
        """How many finished spans the collector does not have: those that wait, and those that were dropped."""
        return self._exporter.undelivered

    def flush(self, seconds: float | None = None) -> bool:
        """Send the waiting spans now; returns whether that ended in time. Blocks: from a coroutine, use a thread."""
        return _finish_within(self._provider.force_flush, self._seconds if seconds is None else seconds)

    def shutdown(self, seconds: float | None = None) -> bool:
        """Send the waiting spans and stop; after `seconds`, by default those of `setup_tracing`, the rest is dropped.

        Returns whether that ended in time. The end of the program does the same. Blocks, as `flush` does.
        """
        if self._is_shut_down:
            return True
        self._is_shut_down = True
        atexit.unregister(self.shutdown)
        is_finished = _finish_within(self._provider.shutdown, self._seconds if seconds is None else seconds)
        if not is_finished:
            self._exporter.shutdown()  # cancels the retries that the exporter still has before it
        if self.undelivered:
            _logger.warning("%d spans were not delivered to the collector", self.undelivered)
        return is_finished


def setup_tracing(
    endpoint: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    service_name: str | None = None,
    shutdown_seconds: float = 5.0,
) -> SpanDelivery:
    """Send the spans of this process to an OTLP collector, over HTTP and in batches.

    `endpoint` is the collector's address; one without a path gets "/v1/traces". A key belongs into `headers`. Options
    that are not given come from the OTEL_* variables; the default endpoint is http://localhost:4318. This sets the
    global tracer provider, and raises `UsageError` if there is one already. It raises `ConfigError` if the extra is
    missing, and for an endpoint or a header that cannot be used or that the exporter would log. Spans that the
    collector does not accept are dropped. The end of the program waits for the collector no longer than
    `shutdown_seconds`.
    """
    url = None if endpoint is None else _traces_url(endpoint)
    for name, value in (headers or {}).items():
        _check_header(name, value)
    check_number("setup_tracing(shutdown_seconds=...)", shutdown_seconds)
    if not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        raise _provider_exists()
    try:
        from agentrt_middleware.tracing.otlp_sdk import make_provider
    except ImportError as error:
        raise ConfigError(
            'setup_tracing() needs OpenTelemetry\'s SDK and exporter: pip install "agentrt[otel]"'
        ) from error
    provider, exporter = make_provider(url, headers, service_name, shutdown_seconds)
    trace.set_tracer_provider(provider)
    if trace.get_tracer_provider() is not provider:  # another thread was faster; OpenTelemetry only logs that
        provider.shutdown()
        raise _provider_exists()
    return SpanDelivery(provider, exporter, shutdown_seconds)


def _provider_exists() -> UsageError:
    return UsageError(
        "setup_tracing() found a tracer provider, which cannot be replaced: leave the call out, since "
        "TracingMiddleware() uses that provider, or make the call once, before anything else sets a provider"
    )


def _traces_url(endpoint: str) -> str:
    # The errors do not show the endpoint, which may hold a key.
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
            "setup_tracing(endpoint=...) has a query after a '?', which the exporter would log whenever the "
            "collector fails: leave it out, and give a key as headers={...}"
        )
    return endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


def _check_header(name: object, value: object) -> None:
    # Unchecked, the exporter would fail with each batch, and log the value.
    is_ascii = all(isinstance(text, str) and text.isascii() for text in (name, value))
    if not (is_ascii and isinstance(value, str) and value.isprintable() and value == value.strip()):
        raise ConfigError(
            f"setup_tracing(headers=...): the value of {name!r:.100} cannot be sent, and is not shown: it must be a "
            f"str of ASCII characters, without a line break and without spaces around it"
        )


def _finish_within(work: Callable[[], object], seconds: float) -> bool:
    """Do the work in a thread; say whether it ended within `seconds`."""
    thread = Thread(target=work, name="agentrt-tracing", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down, and allows no new threads
        work()
        return True
    thread.join(seconds)
    return not thread.is_alive()
