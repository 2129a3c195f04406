"""Sends spans to a collector, for programs that have not set up OpenTelemetry yet."""

import atexit
import logging
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Protocol

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider

from agentrt.errors import ConfigError, UsageError
from agentrt_middleware.tracing.otlp_settings import USUAL_PORTS, OtlpProtocol, read_settings
from agentrt_middleware.validation import check_number

_logger = logging.getLogger("agentrt")


class _Provider(Protocol):
    """The methods of the SDK's tracer provider that are used here; it may not be installed."""

    def force_flush(self) -> bool: ...

    def shutdown(self) -> None: ...


class _Exporter(Protocol):
    @property
    def undelivered(self) -> int: ...

    def shutdown(self) -> None: ...


class SpanDelivery:
    """Sends spans to a collector, in batches from a separate thread; `setup_tracing` returns one."""

    def __init__(self, provider: _Provider, exporter: _Exporter, shutdown_seconds: float) -> None:
        self._provider = provider
        self._exporter = exporter
        self._seconds = shutdown_seconds
        self._is_shut_down = False
        atexit.register(self.shutdown)

    @property
    def undelivered(self) -> int:
        """The number of finished spans that the collector does not have: waiting and dropped ones."""
        return self._exporter.undelivered

    def flush(self, seconds: float | None = None) -> bool:
        """Send the waiting spans now; returns whether that finished in time. Blocks: from a coroutine, use a thread."""
        return _finish_within(self._provider.force_flush, self._seconds if seconds is None else seconds)

    def shutdown(self, seconds: float | None = None) -> bool:
        """Send the waiting spans and stop; after `seconds`, by default those of `setup_tracing`, the rest is dropped.

        Returns whether that finished in time. The end of the program does the same. Blocks, like `flush`.
        """
        if self._is_shut_down:
            return True
        self._is_shut_down = True
        atexit.unregister(self.shutdown)
        is_finished = _finish_within(self._provider.shutdown, self._seconds if seconds is None else seconds)
        if not is_finished:
            self._exporter.shutdown()  # cancels pending retries of the exporter
        if self.undelivered:
            _logger.warning("%d spans were not delivered to the collector", self.undelivered)
        return is_finished


def setup_tracing(
    endpoint: str | None = None,
    *,
    protocol: OtlpProtocol | None = None,
    headers: Mapping[str, str] | None = None,
    service_name: str | None = None,
    shutdown_seconds: float = 5.0,
) -> SpanDelivery:
    """Send the spans of this process to an OTLP collector, over HTTP or gRPC and in batches.

    `endpoint` is the collector's address; over HTTP, one without a path gets "/v1/traces". A key belongs in
    `headers`. Missing arguments come from the OTEL_* variables, as OpenTelemetry specifies them (..._PROTOCOL,
    ..._ENDPOINT, ..._HEADERS, ..._COMPRESSION, ..._TIMEOUT in seconds, ...); headers come from both. Without any of
    these, spans go over HTTP to http://localhost:4318.

    This sets the global tracer provider, and raises `UsageError` if there is one already. It raises `ConfigError` if
    the extra is missing, and for an endpoint or a header that is invalid or that the exporter would log. Spans
    that the collector does not accept are dropped. The end of the program waits for the collector no longer than
    `shutdown_seconds`.
    """
    check_number("setup_tracing(shutdown_seconds=...)", shutdown_seconds)
    settings = read_settings(protocol, endpoint, headers, default_timeout=shutdown_seconds)
    if not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        raise _provider_exists()
    try:
        from agentrt_middleware.tracing.otlp_sdk import make_exporter, make_provider

        exporter = make_exporter(settings)
    except ImportError as error:
        raise ConfigError(
            f"setup_tracing(protocol={settings.protocol!r}) needs OpenTelemetry's SDK and exporters: "
            f'pip install "agentrt[otel]"'
        ) from error
    provider = make_provider(exporter, service_name)
    trace.set_tracer_provider(provider)
    if trace.get_tracer_provider() is not provider:  # another thread was faster; OpenTelemetry only logs this
        provider.shutdown()
        raise _provider_exists()
    other: OtlpProtocol = "http/protobuf" if settings.protocol == "grpc" else "grpc"
    if settings.port == USUAL_PORTS[other]:  # not an error: a port may be mapped to another one
        _logger.warning(
            "setup_tracing() sends %s to port %d, where collectors expect %s: if no spans arrive, write port %d, or "
            "protocol=%r",
            settings.protocol,
            settings.port,
            other,
            USUAL_PORTS[settings.protocol],
            other,
        )
    return SpanDelivery(provider, exporter, shutdown_seconds)


def _provider_exists() -> UsageError:
    return UsageError(
        "setup_tracing() found a tracer provider, which cannot be replaced: leave the call out, since "
        "TracingMiddleware() uses that provider, or make the call once, before anything else sets a provider"
    )


def _finish_within(work: Callable[[], object], seconds: float) -> bool:
    """Run the work in a thread; returns whether it ended within `seconds`."""
    thread = Thread(target=work, name="agentrt-tracing", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down, and allows no new threads
        work()
        return True
    thread.join(seconds)
    return not thread.is_alive()
