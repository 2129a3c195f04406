"""The agent at a URL: its card, and calls by JSON-RPC that are answered at once or as a stream.

The protocol's own SDK is not used: it does not limit the length of an answer.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agentrt._runtime.boundary import strict_json
from agentrt._runtime.http.credentials import Credentials
from agentrt._runtime.http.limits import CallTimer, Timeouts
from agentrt._runtime.http.peer import HTTPPeer, HTTPResponse
from agentrt._runtime.text import escape_controls, one_line, whole_characters
from agentrt.errors import Malformed, ModelError, RateLimited, Rejected, Transient
from agentrt.model.remote.sse import EventReader
from agentrt.types import SignRequest

_CARD_PATH = "/.well-known/agent-card.json"
_MAX_CARD_BYTES = 1_000_000
_INTERNAL_ERROR = -32603


class A2AConnection:
    """Connections to one agent, one for each event loop; `aclose` closes that of the current event loop."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None,
        auth: SignRequest | None,
        timeouts: Timeouts,
        max_bytes: float,
        http_client: Callable[[], object] | None,
    ) -> None:
        parts = urlsplit(url)
        # The query chooses among the agents of a server.
        path = parts.path if parts.path.endswith(".json") else f"{parts.path.rstrip('/')}{_CARD_PATH}"
        self.card_url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        self.source = f"the agent at {parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self.timeouts = timeouts
        self.max_bytes = max_bytes
        self._peer = HTTPPeer("its URL", Credentials(self.source, headers, sign=auth), http_client)
        self._card: dict[str, Any] | None = None

    def new_timer(self) -> CallTimer:
        """Return a timer for one message and its answer."""
        return CallTimer(self.timeouts, self.source)

    async def card(self, timer: CallTimer) -> dict[str, Any]:
        """Return the agent's card, which is fetched once."""
        # Replies that start at the same time each fetch the card, which costs less than waiting for each other.
        if self._card is None:
            results = RpcResults(
                self.source, await self._request("GET", self.card_url, None, timer, _MAX_CARD_BYTES), timer
            )
            try:
                card = await results.read_body()
            finally:
                await results.aclose()
            self.interface(card)
            self._card = card
        return self._card

    def interface(self, card: Mapping[str, Any]) -> str:
        """Return the agent's URL for A2A 1.0 by JSON-RPC; raises `Rejected` for a card without one."""
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
                # Compared as text, since the card may hold something that is not a URL.
                root = "{}://{}".format(*urlsplit(self.card_url))
                if self._peer.credentials and url != root and not url.startswith((f"{root}/", f"{root}?")):
                    raise Rejected(
                        f"the card of {self.source} leads to another server, {url!r:.200}, which would be sent the "
                        f"credentials of this one: write A2AAgent with a URL of that server"
                    )
                return url
        raise Rejected(f"the card of {self.source} names no interface of A2A 1.0 by JSON-RPC, the only one spoken here")

    async def call(self, method: str, params: Mapping[str, Any], timer: CallTimer) -> "RpcResults":
        """Call a method, and return its results, which are read as they come."""
        # Checked before each call, since the headers must not go to another server.
        url = self.interface(await self.card(timer))
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return RpcResults(self.source, await self._request("POST", url, body, timer, self.max_bytes), timer)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._peer.aclose()

    async def _request(self, method: str, url: str, body: object, timer: CallTimer, max_bytes: float) -> HTTPResponse:
        """Return the response to a request as soon as its headers have arrived."""
        headers = {**self._peer.credentials.headers, "A2A-Version": "1.0"}
        headers["Accept"] = "application/json, text/event-stream"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = whole_characters(json.dumps(body, ensure_ascii=False)).encode()
        response = await self._peer.send(method, url, content, headers, timer, max_bytes)
        if response.status < 300:
            return response
        await response.aclose()
        raise self._refusal(response, url)

    def _refusal(self, response: HTTPResponse, url: str) -> ModelError:
        status = response.status
        if status in (401, 403):
            return Rejected(f"{self.source} refuses this client ({status}): give A2AAgent(headers=...) or auth=...")
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
    """The results of one call, as they arrive; the caller closes it."""

    def __init__(self, source: str, response: HTTPResponse, timer: CallTimer) -> None:
        self._source = source
        self._response = response
        self._timer = timer
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
            # Comments are not events, but each restarts the idle limit: they show that the other side is alive.
            chunk = await self._read()
            events = self._events.end() if chunk is None else self._events.feed(chunk)
            self._unread += [event.data for event in events]
        return self._result(self._parse(self._unread.popleft()))

    async def peek(self) -> "RpcResults":
        """Wait for the first result, and return this object; closes the call and raises if it was refused."""
        try:
            self._first = await self.next()
        except BaseException:
            await self.aclose()
            raise
        return self

    def as_task(self) -> "RpcResults":
        """Return this object, and read its result as a task, as `GetTask` returns one."""
        self._is_bare_task = True
        return self

    async def read_body(self) -> dict[str, Any]:
        """Return the whole body, a JSON object."""
        body = bytearray()
        while (chunk := await self._read()) is not None:
            body += chunk
        return self._parse(bytes(body))

    async def aclose(self) -> None:
        await self._response.aclose()

    async def _read(self) -> bytes | None:
        try:
            chunk = await self._response.read()
        finally:
            self._timer.pause()  # the reader may take its time
        self._timer.note_progress()  # any data shows that the other side is alive
        self._is_over = chunk is None
        return chunk

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            value = strict_json(body)
            # An escape may be half of a surrogate pair, and a state with that could not be saved.
            if b"\\u" in body:
                value = json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Malformed(f"{self._source} sends what is not a JSON object: is this an A2A agent?")
        return value

    def _result(self, response: dict[str, Any]) -> dict[str, Any]:
        # The message is not trusted: it is truncated, put on one line, and stripped of control codes.
        error, result = response.get("error"), response.get("result")
        if isinstance(error, dict):
            words = escape_controls(one_line(str(error.get("message"))))
            kind = Transient if error.get("code") == _INTERNAL_ERROR else Rejected
            raise kind(f"{self._source} refuses the call ({error.get('code')!r:.50}): {words}")
        if not isinstance(result, dict):
            raise Malformed(f"{self._source} answers with neither a result nor an error")
        return {"task": result} if self._is_bare_task else result
