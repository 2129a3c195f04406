"""An HTTP API of a provider: the key, the SDK's client of each event loop, the errors of a request."""

import importlib
import os
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import Any, ClassVar, NoReturn, Self
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import pydantic
from anyio.lowlevel import current_token

from agentrt.block import JSONObject
from agentrt.errors import ConfigError, Malformed, ModelError, Rejected, Timeout, Transient, UsageError
from agentrt.model.remote.connection import SharedClient, Unsuccessful, raise_for_status
from agentrt.model.remote.log_filter import keep_headers_out_of_logs
from agentrt.model.remote.provider_errors import ProviderErrors, json_or_text
from agentrt.model.remote.settings import (
    MAX_BYTES,
    ConnectionOptions,
    Timeouts,
    check_connection,
    check_option_names,
    check_url,
    read_key,
)
from agentrt.model.remote.stream import AnswerReader, AnswerStream, CallTimer
from agentrt.representation import never_raises

__all__ = ["RemoteEndpoint"]

# Errors of httpx2 for a request that it does not send: a further attempt would meet them again.
_NOT_SENT = {"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"}


class RemoteEndpoint:
    """What a chat model and an embedding model behind an HTTP API share: how it is reached through its provider's SDK.

    A subclass says where (`_path`). It may be used by any number of tasks at once, and in one event loop after the
    other: it keeps one client per event loop, which `aclose` closes; one that is used again opens a new one, and a copy
    has clients of its own. Nothing is ever tried again, and no redirect is followed.

    Raises `ConfigError` when the SDK or the key is missing, for a `base_url` with a password or a query in it, and for
    an option that does not exist.
    """

    model: str
    account: str | None
    _sdk: ClassVar[str]
    """The package of the SDK."""
    _extra: ClassVar[str | None] = None
    """The name of our extra, if it is not that of the SDK."""
    _client_class: ClassVar[str]
    """The SDK's asynchronous client."""
    _path: ClassVar[str]
    """Where to post to, below the base URL."""
    _default_url: ClassVar[str]
    _url_variable: ClassVar[str | None] = None
    """The environment variable that holds the base URL when none is given."""
    _key_variable: ClassVar[str | None] = None
    """The environment variable that holds the key when neither a key nor another variable is given."""
    _client_options: ClassVar[Mapping[str, object]] = {}
    """Further options of the SDK's client."""

    def __init__(self, model: str, connection: ConnectionOptions) -> None:
        cls = type(self).__name__
        check_option_names(type(self), connection, ConnectionOptions.__annotations__)
        check_connection(model, connection, cls)
        url = connection.get("base_url") or os.environ.get(self._url_variable or "", "")
        self.base_url = str(url).strip() or self._default_url
        check_url(self.base_url, cls)
        self.timeouts = connection.get("timeouts") or Timeouts()
        self.max_bytes = connection.get("max_bytes", MAX_BYTES)
        self._import_sdk()
        key_variable = connection.get("key_variable", self._key_variable)
        self._key = read_key(connection.get("api_key"), key_variable, cls, model)
        # Wrapped, so that `vars(model)` does not show what may be secret.
        headers = connection.get("extra_headers") or {}
        self._extra_headers = {name: pydantic.SecretStr(value) for name, value in headers.items()}
        self._extra_body = dict(connection.get("extra_body") or {})
        self._http_client = connection.get("http_client")
        # By event loop, since a connection belongs to the loop that opened it.
        self._clients: WeakKeyDictionary[object, SharedClient] = WeakKeyDictionary()
        key = self._key.get_secret_value()
        self._errors = ProviderErrors(model, self.base_url, key_variable, (key, *map(str, headers.values())))
        # Two models share the limits of an account if they share its key; the hash tells so without telling the key.
        self.account = f"{self._errors.shown_url}#{sha256(key.encode()).hexdigest()[:16]}"

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self._errors.shown_url!r})"

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__ = {**self.__dict__, "_clients": WeakKeyDictionary()}
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.__copy__()  # all but the clients is settings, which nobody changes

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} holds a key and open connections, and cannot be pickled: keep its spec, and make it anew with "
            f"chat_model(spec) where it is used"
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop, those in use as soon as their calls and streams have ended.

        The next call opens new ones.
        """
        client = self._clients.pop(current_token().native_token, None)
        if client is not None:
            await client.give_up()

    async def _open(self, body: JSONObject, reader: AnswerReader, *, streams: bool) -> AnswerStream:
        """Return the answer to a request, of which only the head need be there."""
        body = {**body, **self._extra_body}
        client = self._client()  # before the timer: it takes a while the first time, and is not the provider's fault
        timer = CallTimer(self.timeouts, self._errors, streams=streams)
        # The timer identifies this call, as an object of its own that goes away when the stream is dropped.
        client.enter(timer)
        try:
            response = await self._send(client.sdk, body, timer)
        except BaseException:
            await client.leave(timer)
            raise
        return AnswerStream(response, reader, timer, self._errors, self.max_bytes, partial(client.leave, timer))

    def _headers(self) -> dict[str, str]:
        """Return the headers that go with every request."""
        return {name: value.get_secret_value() for name, value in self._extra_headers.items()}

    async def _send(self, sdk: Any, body: JSONObject, timer: CallTimer) -> Any:
        """Return the response as soon as its head is there; whatever fails before that is a `ModelError`."""
        try:
            return await timer.wait(self._post(sdk, body))
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to the SDK
            failure = self._sending_error(error)
        finally:
            timer.pause()
        # Outside of the `except`, or the SDK's error, which may hold a key, would become its context.
        raise failure

    def _http_timeout(self) -> Any:
        """Return the limits that the HTTP client is to keep."""
        import httpx2  # comes with the SDK, which is an extra

        # The other limits are ours: httpx2 would take a ping for an answer.
        connect = None if self.timeouts.connect == float("inf") else self.timeouts.connect
        return httpx2.Timeout(None, connect=connect)

    async def _post(self, sdk: Any, body: JSONObject) -> Any:
        import httpx2

        return await sdk.post(
            self._path,
            cast_to=httpx2.Response,
            body=body,
            options={
                "timeout": self._http_timeout(),
                "follow_redirects": False,
            },  # which would take the key to another server
            stream=True,  # or the SDK reads the body, however long it is
            stream_cls=self._import_sdk().AsyncStream,
        )

    def _client(self) -> SharedClient:
        loop = current_token().native_token
        client = self._clients.get(loop)
        if client is not None:
            return client
        try:
            client = self._clients[loop] = SharedClient(self._new_client())
            return client
        except Exception as error:  # noqa: BLE001  # the boundary to the SDK, and to the user's own client
            why = f"{self._errors.describe(error)}{_proxy_question(self.base_url)}"
            failure = Rejected(f"no HTTP client can be made for {self._errors.source}: {why}")
            failure.__cause__ = self._errors.safe_cause(error)
        raise failure

    def _new_client(self) -> Any:
        keep_headers_out_of_logs()
        sdk = self._import_sdk()
        http: Any = (self._http_client or sdk.DefaultAsyncHttpxClient)()
        if http.auth is None:  # which may want to see a 401 first
            http.event_hooks["response"].append(raise_for_status)
        client = getattr(sdk, self._client_class)(
            api_key=self._key.get_secret_value(),
            base_url=self.base_url,
            max_retries=0,  # retrying is a middleware's affair, which sees each attempt
            default_headers=self._headers(),  # those of a single request would be logged
            http_client=http,
            **self._client_options,
        )
        client._platform = "Unknown"  # or its first request starts a thread to find out, for a header
        return client

    def _import_sdk(self) -> ModuleType:
        try:
            return importlib.import_module(self._sdk)
        except ImportError as error:
            cls, extra = type(self).__name__, self._extra or self._sdk
            raise ConfigError(f'{cls} needs the package {self._sdk!r}: pip install "agentrt[{extra}]"') from error

    def _sending_error(self, error: Exception) -> ModelError:
        """Return what a call raises when the SDK or its HTTP client has raised `error`."""
        # The SDK may wrap what a hook of the HTTP client raises.
        for cause in (error, error.__cause__):
            if isinstance(cause, Unsuccessful):
                body = json_or_text(cause.body.decode(errors="replace"))
                return self._errors.error_for_status(cause.status, cause.headers, body)
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            # Its text is the body's, which the message repeats: the error itself has nothing to add.
            response: Any = error.response  # type: ignore[attr-defined]  # as every error with a status has
            return self._errors.error_for_status(status, response.headers, json_or_text(response.text))
        failure = self._error_without_answer(error.__cause__ or error)
        failure.__cause__ = self._errors.safe_cause(error)
        return failure

    def _error_without_answer(self, reason: BaseException) -> ModelError:
        # By name, since httpx2 is there only with an SDK, and an HTTP client of the user's own may have other classes.
        name, why = type(reason).__name__, self._errors.describe(reason)
        source, where = self._errors.source, f"base_url={self._errors.shown_url!r}"
        proxy = _proxy_question(self.base_url)
        if name == "ConnectTimeout":
            return Timeout(
                f"{source} could not be reached within {self.timeouts.connect:g} s (connect): is {where} right? "
                f"To wait longer, give timeouts=Timeouts(connect=...){proxy}"
            )
        if name.endswith("Timeout"):
            return Timeout(f"{source} was too slow for its HTTP client ({why})")
        if name == "ConnectError":
            return Transient(f"{source} could not be reached ({why}): is the server running, is {where} right?{proxy}")
        if name == "ProxyError":
            return Rejected(f"{source} could not be reached through the proxy ({why}){proxy}")
        if name == "DecodingError":
            return Malformed(f"{source} answered with what cannot be decoded ({why})")
        if name in _NOT_SENT or isinstance(reason, (TypeError, ValueError)):
            return Rejected(f"a request to {source} could not be sent ({why}): {where}")
        return Transient(f"{source} did not answer ({why})")


def _proxy_question(url: str) -> str:
    """Return the question whether the environment's proxy is right, if it names one: HTTP clients use it silently."""
    names = (name for word in (urlsplit(url).scheme, "all") for name in (f"{word}_proxy".upper(), f"{word}_proxy"))
    variables = [name for name in names if os.environ.get(name)]
    return f"; is the proxy in the environment's {' and '.join(variables)} right?" if variables else ""
