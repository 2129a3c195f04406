"""An HTTP API of a provider: its URL, headers and key, and the errors of its answers."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import ClassVar, NoReturn, Self

from agentrt._runtime.block import JSONObject
from agentrt._runtime.hidden import HiddenDict
from agentrt._runtime.http.credentials import Credentials
from agentrt._runtime.http.limits import MAX_BYTES, CallTimer, Timeouts
from agentrt._runtime.http.peer import HTTPPeer, HTTPResponse
from agentrt._runtime.representation import is_secret, never_raises
from agentrt.errors import Rejected, UsageError
from agentrt.model.remote.provider_errors import ProviderErrors, json_or_text
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.settings import (
    ConnectionOptions,
    check_connection,
    check_option_names,
    check_url,
    read_credentials,
)
from agentrt.model.remote.stream import AnswerStream


@dataclass(frozen=True, slots=True)
class ProviderAPI:
    """A provider's API: its URL and headers, and the environment variables that override them."""

    url: str
    key_variable: str
    url_variable: str = ""
    other_key_variable: str = ""
    """The environment variable that is used if the first one is not set."""
    key_header: tuple[str, str] = ("authorization", "Bearer {}")
    headers: Mapping[str, str] = field(default_factory=dict)
    header_variables: Mapping[str, str] = field(default_factory=dict)
    """The headers that take the values of environment variables, by variable."""
    headers_variable: str = ""
    """The environment variable with complete headers, one per line."""

    def usual_key_variable(self) -> str:
        other = self.other_key_variable
        return other if os.environ.get(other) and not os.environ.get(self.key_variable) else self.key_variable

    def environment_headers(self) -> dict[str, str]:
        lines = os.environ.get(self.headers_variable, "").splitlines()
        named = {header: os.environ.get(variable, "") for variable, header in self.header_variables.items()}
        whole = {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
        return {name: value for name, value in {**named, **whole}.items() if name and value}


# The environment variables of the providers' own SDKs.
OPENAI_API = ProviderAPI(
    "https://api.openai.com/v1",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    header_variables={"OPENAI_ORG_ID": "OpenAI-Organization", "OPENAI_PROJECT_ID": "OpenAI-Project"},
    headers_variable="OPENAI_CUSTOM_HEADERS",
)
ANTHROPIC_API = ProviderAPI(
    "https://api.anthropic.com",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    key_header=("x-api-key", "{}"),
    headers={"anthropic-version": "2023-06-01"},
    headers_variable="ANTHROPIC_CUSTOM_HEADERS",
)
GEMINI_API = ProviderAPI(
    "https://generativelanguage.googleapis.com/v1beta",
    "GEMINI_API_KEY",
    other_key_variable="GOOGLE_API_KEY",
    key_header=("x-goog-api-key", "{}"),
)
OLLAMA_API = ProviderAPI("http://localhost:11434", "OLLAMA_API_KEY")
BEDROCK_API = ProviderAPI(
    "https://bedrock-runtime.us-east-1.amazonaws.com", "AWS_BEARER_TOKEN_BEDROCK", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"
)


class RemoteEndpoint:
    """The connection of a chat model or an embedding model behind an HTTP API.

    A subclass defines the API (`_api`) and the path (`_path`). It may be used by any number of tasks at
    once, and in one event loop after the other: it keeps one client per event loop, which `aclose` closes; one that is
    used again opens a new one, and a copy has clients of its own. There are no retries, and no redirect is
    followed.

    Raises `ConfigError` when the key is missing, for a `base_url` with a password or a query in it, and for an option
    that does not exist.
    """

    model: str
    account: str | None
    _api: ClassVar[ProviderAPI]
    _path: ClassVar[str] = ""

    def __init__(self, model: str, connection: ConnectionOptions) -> None:
        cls, api = type(self).__name__, self._api
        check_option_names(type(self), connection, ConnectionOptions.__annotations__)
        check_connection(model, connection, cls)
        url = connection.get("base_url") or os.environ.get(api.url_variable, "")
        self.base_url = str(url).strip() or api.url
        check_url(self.base_url, cls)
        self.timeouts = connection.get("timeouts") or Timeouts()
        self.max_bytes = connection.get("max_bytes", MAX_BYTES)
        extra_body = dict(connection.get("extra_body") or {})
        self._extra_body = HiddenDict(extra_body)
        key_variable = connection.get("key_variable", api.usual_key_variable())
        errors = ProviderErrors(model, self.base_url, key_variable)
        extra_headers = connection.get("extra_headers") or {}
        public_headers = {name.lower(): value for name, value in extra_headers.items() if not is_secret(name, value)}
        # They change its answers, besides the settings of a subclass; the account has the other headers.
        self._answer_fields = {
            "extra_body": fingerprint(extra_body),
            "extra_headers": fingerprint(public_headers),
        }
        replaced = {name.lower() for name in extra_headers}
        headers = {**api.headers, **api.environment_headers()}
        headers = {name: value for name, value in headers.items() if name.lower() not in replaced}
        key, sign = read_credentials(connection, key_variable, cls, model)
        credentials = Credentials(
            errors.source, {**headers, **extra_headers}, key=key, key_header=api.key_header, sign=sign
        )
        self._errors = replace(errors, secrets=credentials)
        self._peer = HTTPPeer(f"base_url={self._errors.shown_url!r}", credentials, connection.get("http_client"))
        # Models with the same key share the limits of an account; the hash identifies the key without revealing it.
        self.account = f"{self._errors.shown_url}#{credentials.identity}"

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self._errors.shown_url!r})"

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__ = {**self.__dict__, "_peer": self._peer.copy()}
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.__copy__()  # apart from the clients, there are only settings, which never change

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} holds a key and open connections, and cannot be pickled: keep its spec, and make it again with "
            f"chat_model(spec) where it is used"
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop; those in use close when their calls and streams have ended.

        The next call opens new ones.
        """
        await self._peer.aclose()

    @property
    def _is_own_server(self) -> bool:
        """Whether the URL is the provider's own, not that of another server with its API."""
        return self.base_url.rstrip("/") == self._api.url

    def _path_for(self, body: JSONObject) -> str:
        """Return the path of the request, below the base URL."""
        return self._path

    def _headers(self) -> dict[str, str]:
        return self._peer.credentials.headers

    async def _open(self, body: JSONObject, reader: AnswerReader, *, streams: bool) -> AnswerStream:
        """Return the response to a request once its headers have arrived."""
        content = self._encode({**body, **self._extra_body})
        timer = CallTimer(self.timeouts, self._errors.source, streams=streams)
        headers = {"content-type": "application/json"}
        response = await self._send("POST", self._path_for(body), content, headers, timer, self.max_bytes)
        return AnswerStream(response, reader, timer, self._errors)

    async def _send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timer: CallTimer, size: float
    ) -> HTTPResponse:
        """Return the response to a request once its headers have arrived; raises the provider's error for a status.

        `path` is below the base URL, unless it is a whole URL of the same server. `size` is the most bytes of the body.
        """
        url = path if "://" in path else f"{self.base_url.rstrip('/')}{path}"
        headers = {"accept": "application/json", **headers, **self._headers()}
        response = await self._peer.send(method, url, content, headers, timer, size)
        if response.is_success:
            return response
        reason = json_or_text((await response.read_error()).decode(errors="replace"))
        raise self._errors.error_for_status(response.status, response.headers, reason)

    def _encode(self, body: JSONObject) -> bytes:
        try:
            return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            why = self._errors.describe(error)
        raise Rejected(f"a request to {self._errors.source} could not be sent ({why})")


def fingerprint(value: object) -> str:
    """Return text that equal values share, and that shows no secret in them; "" for an empty value."""
    return sha256(json.dumps(value, skipkeys=True, default=repr).encode()).hexdigest()[:16] if value else ""
