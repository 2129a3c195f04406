"""`setup_tracing` sends spans to a collector, and a collector that is dead or hangs does not affect the program.

A process has one global tracer provider and sets it once, so each test that sets one has a process of its own.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from agentrt.errors import ConfigError, UsageError
from agentrt.middleware import setup_tracing
from agentrt_middleware.tracing.otlp_settings import OtlpProtocol
from tests.program_runner import ProgramRunner

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import sys
from agentrt import Agent
from agentrt.middleware import TracingMiddleware, setup_tracing
from agentrt.model import ScriptedChatModel

delivery = setup_tracing(sys.argv[1], headers={"x-key": "open sesame"}, service_name="shop", shutdown_seconds=30)
agent = Agent("assistant", model=ScriptedChatModel(["hello"]), middlewares=[TracingMiddleware()])
print(agent.run_sync("hi").get_text_content(), delivery.undelivered)
"""
# For collectors that take nothing, since a busy machine may take longer to deliver to the others.
IMPATIENT_PROGRAM = PROGRAM.replace("shutdown_seconds=30", "shutdown_seconds=0.5")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(program_runner: ProgramRunner) -> Run:
    """Run a program with these arguments and variables of the environment."""

    def run(program: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "NO_PROXY": "127.0.0.1", **variables}
        return program_runner.run(program, *arguments, environment=environment)

    return run


class Collector(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.got: list[tuple[str, str | None, ExportTraceServiceRequest]] = []


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["x-key"], ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


class GrpcCollector:
    """A collector in a process of its own: gRPC starts threads and opens files that stay as long as a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = f"127.0.0.1:{process.stdout.readline().strip()}"
        self.url = f"http://{self.address}"

    def stop(self) -> list[dict[str, Any]]:
        """Return what has arrived."""
        output, _ = self._process.communicate(timeout=60)
        return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def grpc_collector() -> Iterator[GrpcCollector]:
    command = [sys.executable, "-m", "tests.servers.otlp_grpc"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield GrpcCollector(process)
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given_path", "expected_path"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/of/mine", "/of/mine")]
)
def test_the_end_of_a_program_delivers_its_spans(
    collector: Collector, given_path: str, expected_path: str, run: Run
) -> None:
    done = run(PROGRAM, collector.url + given_path)
    assert done.stdout.split() == ["hello", "2"], done.stderr
    assert not done.stderr
    ((path, key, request),) = collector.got
    assert (path, key) == (expected_path, "open sesame")
    (resource,) = request.resource_spans
    assert ("service.name", "shop") in [
        (attribute.key, attribute.value.string_value) for attribute in resource.resource.attributes
    ]
    (scope,) = resource.scope_spans
    assert [span.name for span in scope.spans] == ["chat scripted", "invoke_agent assistant"]
    assert scope.spans[0].parent_span_id == scope.spans[1].span_id


def test_the_example_sends_two_replies_with_their_content(collector: Collector, run: Run) -> None:
    done = run((ROOT / "examples" / "tracing" / "trace_a_reply.py").read_text(encoding="utf-8"), collector.url)
    first, second, last = done.stdout.splitlines()
    assert (first, second) == ("It is sunny in Beijing.", "It is sunny in Shanghai.")
    assert last.endswith("did not take: 0")
    scopes = [scope for _, _, request in collector.got for scope in request.resource_spans[0].scope_spans]
    names = [span.name for scope in scopes for span in scope.spans]
    reply = ["chat rules", "execute_tool get_weather", "chat rules", "invoke_agent forecaster"]
    assert names == reply * 2
    assert "It is sunny in Shanghai." in str(collector.got)


@pytest.mark.slow
def test_flush_delivers_at_once_and_shutdown_twice_is_harmless(collector: Collector, run: Run) -> None:
    more = "print(delivery.flush(), delivery.undelivered, delivery.shutdown(), delivery.shutdown())"
    done = run(PROGRAM + more, collector.url)
    assert done.stdout.split() == ["hello", "2", "True", "0", "True", "True"], done.stderr
    assert len(collector.got) == 1


def to_grpc(program: str) -> str:
    return program.replace("sys.argv[1], ", 'sys.argv[1], protocol="grpc", ').replace("x-key", "X-Key")


def assert_loses_its_spans_alone(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout.split()) == (0, ["hello", "2"])
    assert "2 spans were not delivered to the collector" in done.stderr
    assert "open sesame" not in done.stderr


@pytest.mark.parametrize("program", [IMPATIENT_PROGRAM, to_grpc(IMPATIENT_PROGRAM)], ids=["http", "grpc"])
def test_a_refusing_collector_loses_the_spans_and_nothing_else(run: Run, program: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        done = run(program, f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert_loses_its_spans_alone(done)


def test_a_hanging_collector_delays_no_reply_and_no_exit(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(IMPATIENT_PROGRAM, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert (done.returncode, done.stdout.split()) == (0, ["hello", "2"])
    assert "2 spans were not delivered to the collector" in done.stderr


def test_a_shutdown_that_takes_too_long_returns_false(run: Run) -> None:
    more = "print(delivery.shutdown(0.01))"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(IMPATIENT_PROGRAM + more, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert done.stdout.split() == ["hello", "2", "False"]


GRPC_PROGRAM = to_grpc(PROGRAM)


def test_the_end_of_a_program_delivers_its_spans_over_grpc(grpc_collector: GrpcCollector, run: Run) -> None:
    done = run(GRPC_PROGRAM, grpc_collector.url)
    assert (done.stdout.split(), done.stderr) == (["hello", "2"], "")
    (batch,) = grpc_collector.stop()
    assert (batch["spans"], batch["service"]) == (["chat scripted", "invoke_agent assistant"], "shop")
    assert batch["metadata"]["x-key"] == "open sesame"


def test_grpc_delivers_at_a_flush_and_has_nothing_left_to_send(grpc_collector: GrpcCollector, run: Run) -> None:
    more = "print(delivery.flush(), delivery.undelivered, delivery.shutdown(), delivery.shutdown())"
    done = run(GRPC_PROGRAM + more, grpc_collector.url)
    assert done.stdout.split() == ["hello", "2", "True", "0", "True", "True"], done.stderr
    assert len(grpc_collector.stop()) == 1


FROM_ENVIRONMENT = """
from opentelemetry import trace
from agentrt.middleware import setup_tracing

delivery = setup_tracing()
trace.get_tracer("test").start_span("from the environment").end()
"""


def test_the_variables_alone_are_enough_for_grpc(grpc_collector: GrpcCollector, run: Run) -> None:
    done = run(
        FROM_ENVIRONMENT,
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_ENDPOINT=grpc_collector.address,  # the specification allows it without "http://"
        OTEL_EXPORTER_OTLP_INSECURE="true",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20sesame,x-team=a=b",
        OTEL_EXPORTER_OTLP_TIMEOUT="5",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_SERVICE_NAME="shop",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (batch,) = grpc_collector.stop()
    assert (batch["spans"], batch["service"]) == (["from the environment"], "shop")
    assert (batch["metadata"]["authorization"], batch["metadata"]["x-team"]) == ("Bearer sesame", "a=b")


def test_the_variables_alone_are_enough_for_http(collector: Collector, run: Run) -> None:
    done = run(
        FROM_ENVIRONMENT,
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"{collector.url}/base/",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=open sesame",
    )
    assert (done.returncode, done.stderr) == (0, "")
    ((path, key, _),) = collector.got
    assert (path, key) == ("/base/v1/traces", "open sesame")


@pytest.mark.slow
def test_grpc_loads_no_http_exporter_and_http_no_grpc(run: Run) -> None:
    program = """
import sys
from agentrt.middleware import setup_tracing
delivery = setup_tracing(protocol=sys.argv[1])
names = "grpc", "requests"
print([name for name in names if name in sys.modules])
"""
    assert run(program, "grpc").stdout.strip() == "['grpc']"
    assert run(program, "http/protobuf").stdout.strip() == "['requests']"


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "print(delivery.shutdown(0.01))"])
def test_a_hanging_grpc_collector_delays_no_reply_and_no_exit(more: str, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(to_grpc(IMPATIENT_PROGRAM) + more, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert (done.returncode, done.stdout.split()) == (0, ["hello", "2", *(["False"] if more else [])])
    assert "2 spans were not delivered to the collector" in done.stderr
    assert "open sesame" not in done.stderr


def test_grpc_to_an_http_collector_is_a_warning_at_the_end(collector: Collector, run: Run) -> None:
    done = run(to_grpc(IMPATIENT_PROGRAM), collector.url)
    assert_loses_its_spans_alone(done)


def test_http_to_a_grpc_collector_is_a_warning_at_the_end(grpc_collector: GrpcCollector, run: Run) -> None:
    done = run(IMPATIENT_PROGRAM, grpc_collector.url)
    assert_loses_its_spans_alone(done)
    assert grpc_collector.stop() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "wrong", "right"), [("grpc", 4318, 4317), ("http/protobuf", 4317, 4318), ("grpc", 4317, None)]
)
def test_port_of_the_other_protocol_is_a_warning(protocol: str, wrong: int, right: int | None, run: Run) -> None:
    program = (
        "import sys; from agentrt.middleware import setup_tracing; setup_tracing(sys.argv[1], protocol=sys.argv[2])"
    )
    done = run(program, f"http://127.0.0.1:{wrong}", protocol)
    assert done.returncode == 0
    assert (f"write port {right}" in done.stderr) == (right is not None), done.stderr


def test_a_second_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with pytest.raises(UsageError, match="leave the call out"):
        setup_tracing()


@pytest.mark.parametrize(
    ("protocol", "module"),
    [
        ("http/protobuf", "opentelemetry.sdk.trace"),
        ("http/protobuf", "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
        ("grpc", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"),
        ("grpc", "grpc"),
    ],
)
def test_without_the_extra_the_error_names_it(
    protocol: OtlpProtocol, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "agentrt_middleware.tracing.otlp_sdk", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"agentrt\[otel\]") as raised:
        setup_tracing(protocol=protocol)
    assert protocol in str(raised.value)


NO_ADDRESSES = [
    "",
    "localhost:4318",
    "ftp://localhost",
    "http://",
    "http://[::1",
    "http://key@host:no",
    "http://a:99999",
    4,
]


@pytest.mark.parametrize("endpoint", NO_ADDRESSES)
def test_an_endpoint_that_is_not_a_url_is_refused(endpoint: Any) -> None:
    with pytest.raises(ConfigError, match="http://localhost:4318"):
        setup_tracing(endpoint)


def test_an_endpoint_with_a_key_in_its_query_is_refused() -> None:
    with pytest.raises(ConfigError, match="headers=") as raised:
        setup_tracing("https://collector.example/v1/traces?key=sesame")
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize("value", ["sesame\n", " sesame", "sesame\r\nx: y", "s\u00e9same", 5, None, b"sesame"])
def test_an_unsendable_header_is_refused_without_its_value(value: Any) -> None:
    with pytest.raises(ConfigError, match="'x-key'") as raised:
        setup_tracing(headers={"x-key": value})
    assert "same" not in str(raised.value)


@pytest.mark.parametrize("seconds", [0, -1, "5", None])
def test_an_invalid_shutdown_deadline_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="shutdown_seconds"):
        setup_tracing(shutdown_seconds=seconds)


def test_a_no_op_provider_cannot_be_replaced_either(run: Run) -> None:
    program = """
from opentelemetry import trace
from agentrt.errors import UsageError
from agentrt.middleware import setup_tracing
trace.set_tracer_provider(trace.NoOpTracerProvider())
try:
    setup_tracing()
except UsageError:
    print("refused")
"""
    assert run(program).stdout.split() == ["refused"]


def test_the_middlewares_do_not_load_the_sdk(run: Run) -> None:
    done = run("import sys, agentrt.middleware; print([name for name in sys.modules if 'opentelemetry.sdk' in name])")
    assert done.stdout.strip() == "[]", done.stderr
