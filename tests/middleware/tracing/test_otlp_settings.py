"""What the arguments of `setup_tracing` and the OTEL_* variables say together, with no secret in an error."""

from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt_middleware.tracing.otlp_settings import OtlpSettings, read_settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("PROTOCOL", "ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{option}", raising=False)
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_TRACES_{option}", raising=False)


def read(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    *,
    protocol: Any = None,
    endpoint: Any = None,
    headers: Any = None,
) -> OtlpSettings:
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    return read_settings(protocol, endpoint, headers, default_timeout=5.0)


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        ({}, None, "http/protobuf"),
        ({"PROTOCOL": ""}, None, "http/protobuf"),
        ({"PROTOCOL": "grpc"}, None, "grpc"),
        ({"PROTOCOL": " GRPC "}, None, "grpc"),
        ({"PROTOCOL": "grpc", "TRACES_PROTOCOL": "http/protobuf"}, None, "http/protobuf"),
        ({"PROTOCOL": "grpc", "TRACES_PROTOCOL": ""}, None, "grpc"),
        ({"PROTOCOL": "grpc", "TRACES_PROTOCOL": "grpc"}, "http/protobuf", "http/protobuf"),
        ({"PROTOCOL": "http/json"}, "grpc", "grpc"),
    ],
)
def test_argument_wins_over_traces_and_that_over_all_signals(
    variables: dict[str, str], given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(monkeypatch, variables, protocol=given).protocol == expected


HTTP_ENDPOINTS = [
    ({}, None, "http://localhost:4318/v1/traces"),
    ({"ENDPOINT": ""}, None, "http://localhost:4318/v1/traces"),
    ({"ENDPOINT": "http://a:1"}, None, "http://a:1/v1/traces"),
    ({"ENDPOINT": "http://a:1/base/"}, None, "http://a:1/base/v1/traces"),
    ({"TRACES_ENDPOINT": "http://a:1/base"}, None, "http://a:1/base"),
    ({"ENDPOINT": "http://a:1", "TRACES_ENDPOINT": "https://b:2/own"}, None, "https://b:2/own"),
    ({"ENDPOINT": "http://a:1", "TRACES_ENDPOINT": "https://b:2/own"}, "http://c:3", "http://c:3/v1/traces"),
    ({}, "HTTPS://c:3/own", "https://c:3/own"),
]


@pytest.mark.parametrize(("variables", "given", "expected"), HTTP_ENDPOINTS)
def test_only_the_endpoint_of_traces_is_taken_as_it_is_over_http(
    variables: dict[str, str], given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(monkeypatch, variables, endpoint=given).endpoint == expected


GRPC_ENDPOINTS = [
    ({}, None, "http://localhost:4317", "http", 4317),
    ({"ENDPOINT": "http://a:1"}, None, "http://a:1", "http", 1),
    ({"ENDPOINT": "a:1"}, None, "a:1", "a", None),
    ({"ENDPOINT": "a:1", "TRACES_ENDPOINT": "unix:///run/otlp"}, None, "unix:///run/otlp", "unix", None),
    ({"ENDPOINT": "a:1"}, "https://b:4318", "https://b:4318", "https", 4318),
    ({}, "http://[::1]:4318", "http://[::1]:4318", "http", 4318),
    ({}, "http://[::1]", "http://[::1]", "http", None),
]


@pytest.mark.parametrize(("variables", "given", "expected", "scheme", "port"), GRPC_ENDPOINTS)
def test_endpoint_over_grpc_gets_no_path(
    variables: dict[str, str],
    given: str | None,
    expected: str,
    scheme: str,
    port: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = read(monkeypatch, variables, protocol="grpc", endpoint=given)
    assert (settings.endpoint, settings.scheme, settings.port) == (expected, scheme, port)


def test_headers_of_the_arguments_join_those_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"HEADERS": "lost=1", "TRACES_HEADERS": "Authorization=Bearer%20a, x-team = one ,,x-b=c=d"}
    settings = read(monkeypatch, variables, headers={"X-Team": "two"})
    assert settings.headers == {"authorization": "Bearer a", "x-team": "two", "x-b": "c=d"}


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [({}, 5.0), ({"TIMEOUT": ""}, 5.0), ({"TIMEOUT": "7"}, 7.0), ({"TIMEOUT": "7", "TRACES_TIMEOUT": "0.5"}, 0.5)],
)
def test_timeout_comes_from_the_variables(
    variables: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(monkeypatch, variables).timeout == seconds


REFUSED_VARIABLES = [
    ({"PROTOCOL": "http/json"}, "'http/protobuf' or 'grpc', not 'http/json'"),
    ({"TRACES_PROTOCOL": "http"}, "'http/protobuf' or 'grpc', not 'http'"),
    ({"ENDPOINT": "localhost:4318"}, "'http://localhost:4318'"),
    ({"TRACES_ENDPOINT": "localhost"}, "'http://localhost:4318'"),
    ({"ENDPOINT": "http://a:1/v1?key=sesame"}, "headers="),
    ({"ENDPOINT": "http://a:1/#sesame"}, "headers="),
    ({"ENDPOINT": "http://a b:1"}, "must be an address"),
    ({"PROTOCOL": "grpc", "ENDPOINT": "http://me:sesame@a:1"}, "headers="),
    ({"PROTOCOL": "grpc", "ENDPOINT": "sesame@a:1"}, "headers="),
    ({"PROTOCOL": "grpc", "ENDPOINT": "a:1?sesame"}, "must be an address"),
    ({"HEADERS": "a=b,sesame"}, "entry 2"),
    ({"HEADERS": 'key="sesame"'}, "entry 1"),
    ({"TRACES_HEADERS": "key=sesame;x"}, "entry 1"),
    ({"HEADERS": "key=sesame%0Ax"}, "'key'"),
    ({"HEADERS": "key-bin=sesame"}, "has a header whose name"),
    ({"TIMEOUT": "soon"}, "a number of seconds above 0, not 'soon'"),
    ({"TRACES_TIMEOUT": "0"}, "a number of seconds above 0, not '0'"),
    ({"TIMEOUT": "nan"}, "a number of seconds above 0, not 'nan'"),
    ({"COMPRESSION": "zip"}, "'none' or 'gzip' or 'deflate', not 'zip'"),
    ({"PROTOCOL": "grpc", "COMPRESSION": "deflate"}, "'none' or 'gzip', not 'deflate'"),
]


@pytest.mark.parametrize(("variables", "words"), REFUSED_VARIABLES)
def test_a_variable_that_cannot_be_used_is_named_without_secrets(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(monkeypatch, variables)
    message = str(raised.value)
    assert message.startswith(f"OTEL_EXPORTER_OTLP_{list(variables)[-1]} ") or "'key'" in message
    assert words in message
    assert "sesame" not in message + caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"protocol": "http"},
        {"protocol": 4},
        {"protocol": "grpc", "endpoint": "localhost:4317"},
        {"protocol": "grpc", "endpoint": "http://me:sesame@a:1"},
        {"endpoint": "http://a:1/#sesame"},
        {"endpoint": "http://a:1/v1/traces\n"},
        {"headers": {"x sesame": "a"}},
        {"headers": {"x-sesame-bin": "a"}},
        {"headers": {4: "a"}},
    ],
)
def test_an_argument_that_cannot_be_used_is_named(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^setup_tracing\((protocol|endpoint|headers)=\.\.\.\)") as raised:
        read(monkeypatch, {}, **arguments)
    assert "sesame" not in str(raised.value)


def test_settings_show_no_endpoint_and_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, {}, endpoint="http://sesame@a:1", headers={"key": "sesame"})
    assert "sesame" not in repr(settings)
