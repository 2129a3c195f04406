"""A collector that takes spans over gRPC: the real service, with the stubs of OpenTelemetry's own protocol.

Prints its port, then a line of JSON for each batch that has arrived, until its standard input is closed.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class Collector(TraceServiceServicer):
    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        resources = request.resource_spans
        batch = {
            "metadata": {key: value for key, value in context.invocation_metadata() if isinstance(value, str)},
            "spans": [span.name for resource in resources for scope in resource.scope_spans for span in scope.spans],
            "service": next(
                attribute.value.string_value
                for attribute in resources[0].resource.attributes
                if attribute.key == "service.name"
            ),
        }
        write_line(json.dumps(batch))
        return ExportTraceServiceResponse()


def write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Collector(), server)
    write_line(str(server.add_insecure_port("127.0.0.1:0")))
    server.start()
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
