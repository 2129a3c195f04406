"""The part of `setup_tracing` that needs OpenTelemetry's SDK; imported only when that is called."""

from collections.abc import Sequence
from threading import Lock

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agentrt_middleware.tracing.otlp_settings import OtlpSettings


class CountingExporter(SpanExporter):  # type: ignore[misc, unused-ignore]  # `Any` where the extra is missing
    """Counts the spans that have ended, and those that the collector accepted."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lock = Lock()
        self._ended = self._delivered = 0

    @property
    def undelivered(self) -> int:
        return self._ended - self._delivered

    def expect(self) -> None:
        with self._lock:  # spans end in any thread
            self._ended += 1

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._delivered += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _CountingProcessor(BatchSpanProcessor):  # type: ignore[misc, unused-ignore]  # as above
    def __init__(self, exporter: CountingExporter) -> None:
        super().__init__(exporter)
        self._counter = exporter

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._counter.expect()
        super().on_end(span)


def make_exporter(settings: OtlpSettings) -> CountingExporter:
    """Return an exporter over HTTP or gRPC; the packages of the other one are not imported."""
    headers, timeout = settings.headers, settings.timeout
    if settings.protocol == "grpc":
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        compression = grpc.Compression.Gzip if settings.compression == "gzip" else grpc.Compression.NoCompression
        # `None`: the exporter asks OTEL_EXPORTER_OTLP_INSECURE.
        insecure = True if settings.scheme == "http" else None
        return CountingExporter(
            GrpcExporter(settings.endpoint, insecure, headers=headers, timeout=timeout, compression=compression)
        )
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return CountingExporter(
        OTLPSpanExporter(
            settings.endpoint, headers=headers, timeout=timeout, compression=Compression(settings.compression)
        )
    )


def make_provider(exporter: CountingExporter, service_name: str | None) -> TracerProvider:
    attributes = {} if service_name is None else {"service.name": service_name}
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(_CountingProcessor(exporter))
    return provider
