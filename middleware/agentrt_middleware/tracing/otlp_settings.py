"""The settings of `setup_tracing`: its arguments, the OTEL_* variables, and their precedence.

An argument wins over a variable, and a variable for traces over the one for all signals. An empty variable
counts as not set. No error shows an endpoint or the value of a header, since both may hold a key.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from opentelemetry.util.re import parse_env_headers

from agentrt.errors import ConfigError

_OtlpChoice = TypeVar("_OtlpChoice", bound=str)

OtlpProtocol = Literal["http/protobuf", "grpc"]

USUAL_PORTS: dict[OtlpProtocol, int] = {"http/protobuf": 4318, "grpc": 4317}

_COMPRESSIONS: dict[OtlpProtocol, tuple[str, ...]] = {
    "http/protobuf": ("none", "gzip", "deflate"),
    "grpc": ("none", "gzip"),
}
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# OpenTelemetry's parser logs invalid input, so only valid input may reach it.
_HEADER_VARIABLE = re.compile(r"[ \t]*[A-Za-z0-9_.%-]+[ \t]*=[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """The settings of an exporter."""

    protocol: OtlpProtocol
    endpoint: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    timeout: float
    """Seconds for one batch, including retries."""
    compression: str

    @property
    def scheme(self) -> str:
        """ "http", "https", or whatever stands first in an address that only gRPC understands."""
        return urlsplit(self.endpoint).scheme

    @property
    def port(self) -> int | None:
        port = self.endpoint.partition("://")[2].partition("/")[0].rpartition(":")[2]
        return int(port) if port.isdecimal() else None


def read_settings(
    protocol: OtlpProtocol | None, endpoint: str | None, headers: Mapping[str, str] | None, default_timeout: float
) -> OtlpSettings:
    """Return the settings from the arguments and the environment; raises `ConfigError` for invalid ones."""
    source, value = _variable("PROTOCOL")
    if protocol is None:
        chosen = _one_of(USUAL_PORTS, source, value.lower() or "http/protobuf")
    else:
        chosen = _one_of(USUAL_PORTS, "setup_tracing(protocol=...)", protocol)
    source, value = _variable("COMPRESSION")
    compression = _one_of(_COMPRESSIONS[chosen], source, value.lower() or "none")
    return OtlpSettings(
        protocol=chosen,
        endpoint=_choose_endpoint(chosen, endpoint),
        headers=_merge_headers(headers or {}),
        timeout=_choose_timeout(default_timeout),
        compression=compression,
    )


def _variable(option: str) -> tuple[str, str]:
    """Return the name and the value of the effective variable; the value is empty if none is set."""
    for name in (f"OTEL_EXPORTER_OTLP_TRACES_{option}", f"OTEL_EXPORTER_OTLP_{option}"):
        value = os.environ.get(name, "").strip()
        if value:
            return name, value
    return "", ""


def _one_of(choices: Iterable[_OtlpChoice], source: str, value: str) -> _OtlpChoice:
    for choice in choices:
        if choice == value:
            return choice
    raise ConfigError(f"{source} must be {' or '.join(map(repr, choices))}, not {value!r:.100}")


def _choose_endpoint(protocol: OtlpProtocol, argument: str | None) -> str:
    if argument is not None:
        parts = _check_address("setup_tracing(endpoint=...)", argument, protocol)
        return parts.geturl() if parts.path.strip("/") else _with_traces_path(parts.geturl(), protocol)
    source, value = _variable("ENDPOINT")
    if not value:
        return _with_traces_path(f"http://localhost:{USUAL_PORTS[protocol]}", protocol)
    if protocol == "grpc" and not value.lower().startswith(("http://", "https://")):
        # The specification allows all forms of gRPC: "host:port", "dns:///host:port", "unix:/path".
        if not value.isprintable() or set(value) & {" ", "?", "#"}:
            raise ConfigError(f"{source} must be an address such as 'http://localhost:4317' or 'localhost:4317'")
        if "@" in value:
            raise _credentials_in_endpoint(source)
        return value
    url = _check_address(source, value, protocol).geturl()
    return _with_traces_path(url, protocol) if source == "OTEL_EXPORTER_OTLP_ENDPOINT" else url


def _with_traces_path(url: str, protocol: OtlpProtocol) -> str:
    return url if protocol == "grpc" else f"{url.removesuffix('/')}/v1/traces"


def _check_address(source: str, value: str, protocol: OtlpProtocol) -> SplitResult:
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (AttributeError, TypeError, ValueError):
        is_address = False
    if not is_address or not value.isprintable() or " " in value:
        raise ConfigError(
            f"{source} must be an address such as 'http://localhost:{USUAL_PORTS[protocol]}', with http, or with https "
            f"for a collector that encrypts"
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{source} has a query after a '?', which the exporter would log whenever the collector fails: leave it "
            f"out, and give a key as headers={{...}} or in OTEL_EXPORTER_OTLP_HEADERS"
        )
    if protocol == "grpc" and "@" in parts.netloc:
        raise _credentials_in_endpoint(source)
    return parts


def _credentials_in_endpoint(source: str) -> ConfigError:
    return ConfigError(
        f"{source} has a user or a key before an '@', which gRPC does not send and the exporter would log: leave it "
        f"out, and give a key as headers={{...}} or in OTEL_EXPORTER_OTLP_HEADERS"
    )


def _merge_headers(argument: Mapping[Any, Any]) -> dict[str, str]:
    source, value = _variable("HEADERS")
    for number, part in enumerate(value.split(","), 1):
        if part.strip() and not _HEADER_VARIABLE.fullmatch(part):
            raise ConfigError(
                f"{source} must be a list such as 'name=value,other=value': its entry {number}, which is not shown, "
                f"cannot be read; encode special characters of a value as in a URL (';' is %3B)"
            )
    merged: dict[str, str] = {}
    for place, headers in ((source, parse_env_headers(value, liberal=True)), ("setup_tracing(headers=...)", argument)):
        name: object
        text: object
        for name, text in headers.items():
            # Unchecked, the exporter would fail with each batch, and log the value.
            if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name) or name.lower().endswith("-bin"):
                raise ConfigError(
                    f"{place} has a header whose name cannot be sent, and is not shown: use letters, digits, '-', '_' "
                    f"and '.', and no '-bin' at the end"
                )
            if not (isinstance(text, str) and text.isascii() and text.isprintable() and text == text.strip()):
                raise ConfigError(
                    f"{place}: the value of {name!r:.100} cannot be sent, and is not shown: it must be a str of ASCII "
                    f"characters, without a line break and without spaces around it"
                )
            merged[name.lower()] = text  # gRPC refuses capitals
    return merged


def _choose_timeout(default: float) -> float:
    source, value = _variable("TIMEOUT")
    if not source:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):  # written so that nan is refused
        raise ConfigError(f"{source} must be a number of seconds above 0, not {value!r:.100}")
    return seconds
