"""How a model behind an HTTP API is reached and how long it may take; wrong options are refused when it is made."""

import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from ipaddress import ip_address
from math import isfinite
from typing import TypedDict
from urllib.parse import urlsplit

import pydantic

from agentrt.errors import ConfigError
from agentrt.keywords import suggest_keywords, unknown_keywords

__all__ = [
    "MAX_BYTES",
    "ConnectionOptions",
    "Timeouts",
    "check_connection",
    "check_option",
    "check_option_names",
    "check_request_options",
    "check_url",
    "is_local",
    "option_names",
    "read_key",
]

MAX_BYTES = 64 * 2**20
"""The most bytes of one answer: the longest ones are well below that, at some 300 bytes for each streamed token."""


@suggest_keywords()
@dataclass(frozen=True, slots=True)
class Timeouts:
    """The longest that a model may take, in seconds; `math.inf` for no limit.

    `connect` is for reaching the server. `idle` is for the wait for each next piece of a streamed answer, the first
    included; what carries no content, such as a ping, does not count. `total` is for one whole call, without the time
    in which its reader does something else: a slow reader does not use it up, and a server that never stops sending
    does.
    """

    connect: float = 10
    idle: float = 60
    total: float = 600

    def __post_init__(self) -> None:
        for name in ("connect", "idle", "total"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:  # which NaN is not either
                raise ConfigError(f"Timeouts({name}=...) must be a number of seconds above 0, not {value!r}")


class ConnectionOptions(TypedDict, total=False):
    """What every model behind an HTTP API takes besides its own options; each may be left out."""

    api_key: "str | pydantic.SecretStr | None"
    """The key; any word will do for a server that asks for none. Left out, it comes from `key_variable`."""

    key_variable: str | None
    """The environment variable that holds the key, another than the provider's usual one."""

    base_url: str | None
    """Where the API is, as in "http://localhost:8000/v1", without a password and without a query.

    Left out, it comes from the provider's usual environment variable, or else it is the provider's own.
    """

    timeouts: Timeouts | None
    """The longest that a call may take."""

    extra_headers: Mapping[str, str] | None
    """Headers for every request, which replace those of the same name; treated as secrets."""

    extra_body: Mapping[str, object] | None
    """Fields for the body of every request, which replace those of the same name."""

    max_bytes: float
    """The most bytes of one answer, uncompressed and with everything around its text; `math.inf` for no limit.

    A longer one is `Malformed`; it is 64 MiB unless given.
    """

    http_client: Callable[[], object] | None
    """A function that makes the `httpx2.AsyncClient` to use.

    It is called once in each event loop, and the model closes what it returns.
    """


# Of both APIs, those that people set and no model has an option for.
_BODY_FIELDS = (
    "frequency_penalty logit_bias logprobs metadata n presence_penalty prediction prompt_cache_key service_tier store "
    "top_k top_logprobs user verbosity"
)
_REQUEST_REMEDIES = {
    **{name: f"write extra_body={{{name!r}: ...}}" for name in _BODY_FIELDS.split()},
    "background": "leave it out: an answer is awaited here; for one that takes long, give timeouts=Timeouts(total=...)",
    "betas": "write extra_headers={'anthropic-beta': ...}",
    "max_retries": "write Agent(..., middlewares=[RetryMiddleware(max_retries=...)])",
    "organization": "write extra_headers={'OpenAI-Organization': ...}",
    "project": "write extra_headers={'OpenAI-Project': ...}",
    "response_format": "write agent.reply(message, structured_schema=...)",
    "tool_choice": "write a middleware whose on_model_call calls next_handler(tool_choice=...)",
    "tools": "the agent has them: write Agent(..., tools=[...])",
}


def option_names(model: Callable[..., object]) -> list[str]:
    """Return the keywords that a class of models takes, those of its connection last."""
    names: dict[str, None] = {}
    for cls in getattr(model, "__mro__", (model,)):
        parameters = signature(cls).parameters.values()
        names |= dict.fromkeys(parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY)
        # What a class takes as `**options` it passes to the next one, up to `RemoteChatModel`, whose base takes none.
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            break
        names |= dict.fromkeys(ConnectionOptions.__annotations__)
    names.pop("model", None)
    model_options = [name for name in names if name not in ConnectionOptions.__annotations__]
    return [*model_options, *(name for name in ConnectionOptions.__annotations__ if name in names)]


def check_option_names(model: Callable[..., object], options: Iterable[str], known: Container[str]) -> None:
    """Raise `UnknownKeywordError` for options that are not among those known, with what was meant."""
    unknown = [name for name in options if name not in known]
    if unknown:
        names = option_names(model)
        remedies = _REQUEST_REMEDIES if "extra_body" in names else {}
        raise unknown_keywords(model.__name__, unknown, names, remedies)


def check_option(value: object, kind: type, place: str, example: str) -> None:
    """Raise `ConfigError` for an option that is neither left out nor of the type that it has to be."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{place} must be a {kind.__name__}, as in {example}, not {value!r:.100}")


def check_request_options(
    cls: str, numbers: Mapping[str, object], stop: object, formatter: object, **texts: object
) -> None:
    """Raise `ConfigError` for an option of a request that is neither left out nor what it must be.

    The server knows best which numbers and words it takes.
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
    """Raise `ConfigError` for a wrong model name or a wrong option; key and URL are checked where they are read.

    `cls` is the class that the message names.
    """
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{cls}(model=...) must be the name of a model, not {model!r:.100}")
    check_option(connection.get("timeouts"), Timeouts, f"{cls}(timeouts=...)", "timeouts=Timeouts(total=120)")
    for name, mapping, example in (
        ("extra_headers", connection.get("extra_headers"), '{"x-team": "blue"}'),
        ("extra_body", connection.get("extra_body"), '{"top_k": 40}'),
    ):
        if mapping is not None and not isinstance(mapping, Mapping):
            # It may hold secrets, so it is not shown.
            raise ConfigError(
                f"{cls}({name}=...) must be a dict, as in {example}, not of type {type(mapping).__name__!r}"
            )
    headers = connection.get("extra_headers") or {}
    if not all(isinstance(text, str) for header in headers.items() for text in header):
        raise ConfigError(f'{cls}(extra_headers=...) must have a str for each name and value, as in {{"x-team": "7"}}')
    http_client: object = connection.get("http_client")
    if http_client is not None and not callable(http_client):
        raise ConfigError(
            f"{cls}(http_client=...) must be a function that makes a client, not {http_client!r:.100}: "
            f"write http_client=lambda: httpx2.AsyncClient(...)"
        )
    size: object = connection.get("max_bytes", MAX_BYTES)
    if not isinstance(size, (int, float)) or not size > 0:
        raise ConfigError(f"{cls}(max_bytes=...) must be a number of bytes above 0, or math.inf, not {size!r:.100}")


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


def is_local(url: str) -> bool:
    """Say whether the URL leads to this machine or its network, by its host: what runs there is not known."""
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


def read_key(
    option: "str | pydantic.SecretStr | None", variable: str | None, cls: str, model: str
) -> "pydantic.SecretStr":
    """Return the key that was given, or else the environment's; raises `ConfigError` if it is missing or wrong.

    No message shows the key, not even a wrong one: it may be the right one with a typing error.
    """
    key = option if option is not None else os.environ.get(variable or "", "")
    if not isinstance(key, (str, pydantic.SecretStr)):
        raise ConfigError(f"{cls}(api_key=...) must be a str or a SecretStr, not of type {type(key).__name__!r}")
    text = (key.get_secret_value() if isinstance(key, pydantic.SecretStr) else key).strip()
    remedy = f"set {variable} or give api_key=..." if variable else "give api_key=..."
    if not text:
        raise ConfigError(
            f"{cls} has no API key for {model!r:.100}: {remedy} (any word will do for a server that asks for none)"
        )
    # A header cannot hold such characters, and the HTTP client would say so with the key in its message.
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError(f"{cls}'s API key has characters that no key can have: {remedy} again")
    return pydantic.SecretStr(text)
