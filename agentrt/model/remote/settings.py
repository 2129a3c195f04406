"""The connection and the time limits of a model behind an HTTP API; the constructor refuses wrong options."""

import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from ipaddress import ip_address
from math import isfinite
from typing import Any, TypedDict
from urllib.parse import urlsplit

import pydantic

from agentrt._runtime.block import JSONObject
from agentrt._runtime.hidden import HiddenDict
from agentrt._runtime.http.credentials import KeyOption, is_key
from agentrt._runtime.http.limits import MAX_BYTES, Timeouts
from agentrt._runtime.http.options import check_headers, check_http_client, check_max_bytes, check_sign
from agentrt._runtime.keywords.suggestions import unknown_keywords
from agentrt.errors import ConfigError
from agentrt.types import SignRequest


class ConnectionOptions(TypedDict, total=False):
    """The options of every model behind an HTTP API, besides its own; each may be left out."""

    api_key: KeyOption | None
    """The key, or a function that is called for it before each request, such as one that renews tokens.

    The function may be async, and returns a str. Any word will do for a server that asks for no key. Left out, the key
    comes from `key_variable`.
    """

    key_variable: str | None
    """The environment variable of the key, instead of the provider's usual one."""

    auth: SignRequest | None
    """A function that signs each request, instead of a key, such as for AWS or a gateway; it may be async.

    It is given the method, the URL and the body, and returns headers.
    """

    base_url: str | None
    """The URL of the API, as in "http://localhost:8000/v1", without a password and without a query.

    Left out, it comes from the provider's usual environment variable, or else it is the provider's own.
    """

    timeouts: Timeouts | None
    """The time limits of a call."""

    extra_headers: Mapping[str, str] | None
    """Headers for every request, which replace those of the same name; treated as secrets."""

    extra_body: Mapping[str, object] | None
    """Fields for the body of every request, which replace those of the same name."""

    max_bytes: float
    """The maximum size of one answer in bytes, uncompressed and with everything around its text; `math.inf`: no limit.

    A longer one is `Malformed`; it is 64 MiB unless given.
    """

    http_client: Callable[[], object] | None
    """A function that makes the `httpx2.AsyncClient` to use.

    It is called once in each event loop, and the model closes what it returns.
    """


def option_names(model: Callable[..., object]) -> list[str]:
    """Return the keywords of a class of models, those of its connection last."""
    names: dict[str, None] = {}
    for cls in getattr(model, "__mro__", (model,)):
        parameters = signature(cls).parameters.values()
        names |= dict.fromkeys(parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY)
        # Each class passes its `**options` to the next one, up to `RemoteChatModel`, whose base takes none.
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            break
        names |= dict.fromkeys(ConnectionOptions.__annotations__)
    names.pop("model", None)
    model_options = [name for name in names if name not in ConnectionOptions.__annotations__]
    return [*model_options, *(name for name in ConnectionOptions.__annotations__ if name in names)]


def check_option_names(model: Callable[..., object], options: Iterable[str], known: Container[str]) -> None:
    """Raise `UnknownKeywordError` for unknown options, with a suggestion."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise unknown_keywords(model.__name__, unknown, option_names(model))


def check_option(value: object, kind: type, place: str, example: str) -> None:
    """Raise `ConfigError` for an option that is given with a wrong type."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{place} must be a {kind.__name__}, as in {example}, not {value!r:.100}")


def check_request_options(
    cls: str, numbers: Mapping[str, object], stop: object, formatter: object, **texts: object
) -> None:
    """Raise `ConfigError` for an option of a request with a wrong type.

    The values are left to the server.
    """
    for name, value in numbers.items():
        is_number = isinstance(value, int) or (isinstance(value, float) and isfinite(value))
        if value is not None and (not is_number or isinstance(value, bool)):
            raise ConfigError(f"{cls}({name}=...) must be a number, not {value!r:.100}")
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{cls}({name}=...) must be a str, not {value!r:.100}")
    is_list = isinstance(stop, Sequence) and all(isinstance(text, str) for text in stop)
    if stop is not None and not is_list:
        raise ConfigError(f"{cls}(stop=...) must be a str or a list of them, not {stop!r:.100}")
    if formatter is not None and not callable(formatter):
        raise ConfigError(f"{cls}(formatter=...) must be a function of a list of messages, not {formatter!r:.100}")


def check_connection(model: object, connection: ConnectionOptions, cls: str) -> None:
    """Raise `ConfigError` for a wrong model name or option; key and URL are checked where they are read.

    `cls` is the class that the message names.
    """
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{cls}(model=...) must be the name of a model, not {model!r:.100}")
    check_option(connection.get("timeouts"), Timeouts, f"{cls}(timeouts=...)", "timeouts=Timeouts(total=120)")
    check_headers(f"{cls}(extra_headers=...)", connection.get("extra_headers"))
    body = connection.get("extra_body")
    if body is not None and not isinstance(body, Mapping):
        # The value may hold secrets, so it is not shown.
        kind = type(body).__name__
        raise ConfigError(f'{cls}(extra_body=...) must be a dict, as in {{"top_k": 40}}, not of type {kind!r}')
    check_http_client(f"{cls}(http_client=...)", connection.get("http_client"))
    check_max_bytes(f"{cls}(max_bytes=...)", connection.get("max_bytes", MAX_BYTES))


def check_server_tools(
    cls: str,
    tools: object,
    provider: str,
    example: str,
    is_hosted: Callable[[Mapping[str, Any]], bool] = lambda tool: isinstance(tool.get("type"), str),
) -> list[JSONObject]:
    """Return the tools that the provider runs itself, each as a dict; raises `ConfigError` for any other.

    The message shows the `example`, which is JSON.
    """
    place = f"{cls}(server_tools=...)"
    if not isinstance(tools, (list, tuple)):
        raise ConfigError(f"{place} must be a list, as in [{example}], not {tools!r:.100}")
    for tool in tools:
        if not isinstance(tool, Mapping) or not is_hosted(tool):
            raise ConfigError(
                f"{place} holds {tool!r:.100}: give tools that {provider} runs, as in {example}, and those of your own "
                f"to the toolkit"
            )
    return [HiddenDict(tool) for tool in tools]


def check_url(url: str, cls: str) -> None:
    """Raise `ConfigError` for a base URL without a scheme or a host, and for one with a password or a query."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ConfigError(
            f"{cls}'s base_url is {_url_without_secrets(url)!r}, which is not a whole URL: write it in full, as in "
            f"'http://localhost:8000/v1'"
        )
    # Query and fragment would be lost when the path is joined to the URL, and a password would be shown in messages.
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{cls}'s base_url must be {_url_without_secrets(url)!r} alone, without user, password, query or fragment: "
            f"give a key or a password as api_key=... or in extra_headers={{...}}, and parameters with "
            f"http_client=lambda: httpx2.AsyncClient(params={{...}})"
        )


def read_url(variable: str, url_of: Callable[[str], str]) -> str | None:
    """Return the URL that an environment variable stands for, `None` if it is not set.

    Raises `ConfigError` where `url_of` raises a `ValueError` for its value.
    """
    value = os.environ.get(variable, "").strip()
    try:
        return url_of(value) if value else None
    except ValueError as error:
        address = value.rpartition("@")[2]  # without a password
        raise ConfigError(
            f"{variable} is {address!r}, which is not the address of a server ({error}): correct it"
        ) from error


def is_local(url: str) -> bool:
    """Say whether the URL leads to this machine or its network, whose servers are unknown."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".internal", ".lan", ".local", ".localhost"))
    return address.is_private or address.is_loopback


def _url_without_secrets(url: str) -> str:
    address, *parameters = re.split("[?#]", url)
    if any("@" in part for part in parameters):  # a password with such a character in it
        return "..."
    return re.sub(r"^([^/]*://)?.*@", r"\1", address, flags=re.DOTALL)


def read_credentials(
    connection: ConnectionOptions, variable: str | None, cls: str, model: str
) -> tuple[KeyOption | None, SignRequest | None]:
    """Return the key or the signing function, and `None` for the other; raises `ConfigError` for a wrong one.

    No message shows the key, not even a wrong one: it may be the right one with a typing error.
    """
    option, sign = connection.get("api_key"), connection.get("auth")
    if sign is not None:
        if option is not None:
            raise ConfigError(f"{cls} was given both api_key= and auth=: give one of them")
        check_sign(f"{cls}(auth=...)", sign)
        return None, sign
    if callable(option):
        return option, None
    key: object = option if option is not None else os.environ.get(variable or "", "")
    if not isinstance(key, (str, pydantic.SecretStr)):
        raise ConfigError(
            f"{cls}(api_key=...) must be a str, a SecretStr or a function that returns a str, not of type "
            f"{type(key).__name__!r}"
        )
    text = (key.get_secret_value() if isinstance(key, pydantic.SecretStr) else key).strip()
    remedy = f"set {variable} or give api_key=..." if variable else "give api_key=..."
    if not text:
        raise ConfigError(
            f"{cls} has no API key for {model!r:.100}: {remedy} (any word will do for a server that asks for none)"
        )
    # A header cannot hold such characters, and the HTTP client's error would quote the key.
    if not is_key(text):
        raise ConfigError(f"{cls}'s API key has characters that no key can have: {remedy} again")
    return pydantic.SecretStr(text), None
