"""The agent at a URL: its card, and calls by JSON-RPC that are answered at once or as a stream.

The protocol's own SDK is not used: it reads answers of any length, and on trio it leaves generators behind.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import anyio
import pydantic
from anyio.lowlevel import current_token

from agentrt.boundary import strict_json
from agentrt.errors import ConfigError, Malformed, ModelError, RateLimited, Rejected, Timeout, Transient
from agentrt.model import Timeouts
from agentrt.model.remote.sse import EventReader
from agentrt.text import escape_controls, one_line, whole_characters

__all__ = ["A2AConnection", "RpcResults", "WaitingTime"]

_Waited = TypeVar("_Waited")
_CARD_PATH = "/.well-known/agent-card.json"
_MAX_CARD_BYTES = 1_000_000
_CLOSING_SECONDS = 5.0
_LONGEST_CONNECT = 86_400.0
_INTERNAL_ERROR = -32603


class WaitingTime:
    """Limits the time of waiting for one answer; the time that its reader takes in between does not count."""

    def __init__(self, timeouts: Timeouts, source: str) -> None:
        self._timeouts = timeouts
        self._source = source
        self._left = timeouts.total

    async def wait(self, work: Awaitable[_Waited]) -> _Waited:
        """Return the result of the work; raises `Timeout` if it takes longer than the limits allow."""
        begun, limit = anyio.current_time(), min(self._timeouts.idle, self._left)
        with anyio.move_on_after(max(limit, 0)):
            result = await work
            self._left -= anyio.current_time() - begun
            return result
        name = "idle" if self._timeouts.idle < self._left else "total"
        seconds = getattr(self._timeouts, name)
        what = "sent nothing for" if name == "idle" else "is not done after"
        raise Timeout(
            f"{self._source} {what} {seconds:g} s ({name}): to wait longer, give timeouts=Timeouts({name}=...)"
        )


class A2AConnection:
    """Connections with one agent, each of one event loop; `aclose` closes those of the current event loop."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None,
        timeouts: Timeouts,
        max_bytes: int,
        http_client: Callable[[], object] | None,
    ) -> None:
        parts = urlsplit(url)
        # The query chooses among the agents of a server.
        path = parts.path if parts.path.endswith(".json") else f"{parts.path.rstrip('/')}{_CARD_PATH}"
        self.card_url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        self.source = f"the agent at {parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self.timeouts = timeouts
        self.max_bytes = max_bytes
        # Wrapped, so that `vars()` does not show what may be secret.
        self._headers = {name: pydantic.SecretStr(value) for name, value in (headers or {}).items()}
        self._http_client = http_client
        self._clients: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        self._card: dict[str, Any] | None = None

    async def card(self, time: WaitingTime) -> dict[str, Any]:
        """Return the agent's card, which is read once."""
        # Replies that begin at the same time each read the card, which costs less than waiting for each other.
        if self._card is None:
            results = RpcResults(self, await self._request("GET", self.card_url, None, time), time, _MAX_CARD_BYTES)
            try:
                card = await results.read_body()
            finally:
                await results.aclose()
            self.interface(card)
            self._card = card
        return self._card

    def interface(self, card: Mapping[str, Any]) -> str:
        """Return the URL at which the agent speaks A2A 1.0 by JSON-RPC; raises `Rejected` where there is none."""
        interfaces = card.get("supportedInterfaces")
        for interface in interfaces if isinstance(interfaces, list) else []:
            if not isinstance(interface, dict) or interface.get("protocolBinding") != "JSONRPC":
                continue
            url, version = interface.get("url"), interface.get("protocolVersion")
            if (
                isinstance(url, str)
                and str(version).partition(".")[0] == "1"
                and url.startswith(("http://", "https://"))
            ):
                # Compared as text, since the card may have something that is not a URL.
                root = "{}://{}".format(*urlsplit(self.card_url))
                if self._headers and url != root and not url.startswith((f"{root}/", f"{root}?")):
                    raise Rejected(
                        f"the card of {self.source} leads to another server, {url!r:.200}, which would be sent the "
                        f"headers of this one: write A2AAgent with a URL of that server"
                    )
                return url
        raise Rejected(f"the card of {self.source} names no interface of A2A 1.0 by JSON-RPC, the only one spoken here")

    async def call(self, method: str, params: Mapping[str, Any], time: WaitingTime) -> "RpcResults":
        """Call a method, and return its results, which are read as they come."""
        # Checked before each call, since the headers must not go to another server.
        url = self.interface(await self.card(time))
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return RpcResults(self, await self._request("POST", url, body, time), time, self.max_bytes)

    async def aclose(self) -> None:
        client = self._clients.pop(current_token().native_token, None)
        if client is not None:
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await client.aclose()

    def _client(self) -> Any:
        # One for each event loop, since a connection belongs to the one that opened it.
        loop = current_token().native_token
        if loop not in self._clients:
            try:
                import httpx2
            except ModuleNotFoundError as error:
                raise ConfigError("A2AAgent needs the extra 'a2a': pip install \"agentrt[a2a]\"") from error
            self._clients[loop] = httpx2.AsyncClient() if self._http_client is None else self._http_client()
        return self._clients[loop]

    async def _request(self, method: str, url: str, body: object, time: WaitingTime) -> Any:
        """Return the response to a request as soon as its head has come."""
        client = self._client()
        headers = {name: value.get_secret_value() for name, value in self._headers.items()}
        headers |= {"A2A-Version": "1.0", "Accept": "application/json, text/event-stream"}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        try:
            content = None if body is None else whole_characters(json.dumps(body, ensure_ascii=False)).encode()
            # The other limits are kept here, where a ping does not count.
            timeout = (min(self.timeouts.connect, _LONGEST_CONNECT), None, None, None)
            request = client.build_request(method, url, content=content, headers=headers, timeout=timeout)
            # No redirect is followed, which would take the headers to another server.
            response = await time.wait(client.send(request, stream=True, follow_redirects=False))
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to the HTTP client
            failure = self.failure(error)
        else:
            if response.status_code < 300:
                return response
            failure = self._refusal(response, url)
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await response.aclose()
        # Outside of the `except`, or the client's error, which may hold a secret, would become its context.
        raise failure

    def failure(self, error: Exception) -> ModelError:
        """Return what a call raises where the HTTP client has raised `error`."""
        # By name, since a client of the user's own may have other classes. Its message may hold a secret.
        name = type(error).__name__
        if name in ("InvalidURL", "UnsupportedProtocol", "LocalProtocolError", "UnicodeEncodeError"):
            return Rejected(f"no request can be sent to {self.source} ({name}): are its URL and the headers right?")
        what = "cannot be reached" if name.startswith("Connect") else "did not answer"
        return Transient(f"{self.source} {what} ({name}): does it run, and is its URL right?")

    def _refusal(self, response: Any, url: str) -> ModelError:
        status = response.status_code
        if status in (401, 403):
            return Rejected(f"{self.source} refuses this client ({status}): give A2AAgent(headers=...) that it knows")
        if url == self.card_url and (status == 404 or status < 400):
            return Rejected(
                f"{self.source} has no card at {urlsplit(url).path!r:.200} ({status}): is this an A2A agent?"
            )
        if status == 429:
            seconds = response.headers.get("retry-after", "")
            return RateLimited(
                f"{self.source} asks to slow down", retry_after=float(seconds) if seconds.isdecimal() else None
            )
        return Transient(f"{self.source} failed ({status})") if status >= 500 else Rejected(f"{self.source}: {status}")


class RpcResults:
    """The results of one call, as they come; the caller closes it."""

    def __init__(self, connection: A2AConnection, response: Any, time: WaitingTime, max_bytes: int) -> None:
        self._connection = connection
        self._response = response
        self._time = time
        self._max_bytes = max_bytes
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        self._events = EventReader()
        self._unread: deque[bytes] = deque()
        self._is_stream = "text/event-stream" in response.headers.get("content-type", "")
        self._is_over = self._is_bare_task = False
        self._first: dict[str, Any] | None = None

    async def next(self) -> dict[str, Any] | None:
        """Return the next result, `None` at the end; raises `ModelError` for an error of the remote agent."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if not self._is_stream:
            return None if self._is_over else self._result(await self.read_body())
        while not self._unread:
            if self._is_over:
                return None
            # Comments are not events, but each restarts the idle limit: they show that the other side is there.
            chunk = await self._read()
            events = self._events.end() if chunk is None else self._events.feed(chunk)
            self._unread += [event.data for event in events]
        return self._result(self._parse(self._unread.popleft()))

    async def peek(self) -> "RpcResults":
        """Wait for the first result, and return this; raises for a call that was refused, which is closed then."""
        try:
            self._first = await self.next()
        except BaseException:
            await self.aclose()
            raise
        return self

    def as_task(self) -> "RpcResults":
        """Return this, and have its result read as a task, as `GetTask` returns one."""
        self._is_bare_task = True
        return self

    async def read_body(self) -> dict[str, Any]:
        """Return the whole body, a JSON object."""
        body = bytearray()
        while (chunk := await self._read()) is not None:
            body += chunk
        return self._parse(bytes(body))

    async def aclose(self) -> None:
        with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
            if not self._is_over:
                # Closing httpx2's generator leaves those inside it suspended; a read that is cancelled ends them all.
                with anyio.CancelScope() as scope, suppress(Exception):
                    scope.cancel()
                    while True:
                        await anext(self._chunks)
                await self._chunks.aclose()
            await self._response.aclose()

    async def _read(self) -> bytes | None:
        try:
            chunk = await self._time.wait(anext(self._chunks))
        except StopAsyncIteration:
            self._is_over = True
            return None
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to the HTTP client
            self._is_over = True
            failure = self._connection.failure(error)
        else:
            self._max_bytes -= len(chunk)
            if self._max_bytes >= 0:
                return chunk
            failure = Malformed(
                f"{self._connection.source} sends more than it may: A2AAgent(max_bytes=...) allows more"
            )
        raise failure

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            value = strict_json(body)
            # An escape may be half of a surrogate pair, and no state could be saved with that.
            if b"\\u" in body:
                value = json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Malformed(f"{self._connection.source} sends what is not a JSON object: is this an A2A agent?")
        return value

    def _result(self, response: dict[str, Any]) -> dict[str, Any]:
        # The message is not trusted: it is cut, put in one line, and shown without control codes.
        error, result = response.get("error"), response.get("result")
        if isinstance(error, dict):
            words = escape_controls(one_line(str(error.get("message"))))
            kind = Transient if error.get("code") == _INTERNAL_ERROR else Rejected
            raise kind(f"{self._connection.source} refuses the call ({error.get('code')!r:.50}): {words}")
        if not isinstance(result, dict):
            raise Malformed(f"{self._connection.source} answers with neither a result nor an error")
        return {"task": result} if self._is_bare_task else result
