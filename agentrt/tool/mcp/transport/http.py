"""An MCP server behind a URL."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from agentrt._runtime.http.certificates import ssl_context
from agentrt._runtime.http.credentials import Credentials
from agentrt._runtime.http.peer import HTTPPeer, summarize_error
from agentrt._runtime.http.proxy import proxy_for, proxy_question
from agentrt.errors import AgentRTError, Rejected
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.oauth.provider import describe_failure
from agentrt.tool.mcp.oauth.transport import Authorization
from agentrt.tool.mcp.transport.messages import MessageStream
from agentrt.tool.mcp.transport.stdio import MAX_MESSAGE
from agentrt.types import SignRequest

NOT_SENT = -32_099
"""The code of the error that answers a request which did not reach the server."""

LOGIN_NEEDED = -32_098
"""The code of the error that answers a request which waits for a login; its data has the number of that."""

_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_KNOWN_SIGNATURES = 100  # of the last requests, for masking them in messages
_KNOWN_LOGINS = 100


class ServerURL:
    """The address of a server; `status` is the HTTP status of its last answer, if that was an error.

    `problem` names why the last request did not reach it, and `refusal` says why it was not even sent.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], auth: SignRequest | None, timeout: float, *, is_sse: bool
    ) -> None:
        self.url = url
        self.is_sse = is_sse  # the transport of 2024-11-05: answers come on a stream of their own
        self.on_lost: Callable[[], object] = bool  # does nothing
        self.authorization: Authorization | None = None
        self.logins: dict[int, LoginNeeded] = {}  # that requests wait for, by number
        self.status: int | None = None
        self.problem = self.refusal = ""
        self._credentials = Credentials(f"the MCP server at {self.shown_url}", headers, sign=auth)
        self._timeout = timeout
        self._proxy = proxy_for(url)
        self._last_login = 0
        self._signed: deque[_SignedRequest] = deque(maxlen=_KNOWN_SIGNATURES)

    @property
    def secrets(self) -> list[str]:
        """The secrets to mask in messages about the server."""
        tokens = [] if self.authorization is None else self.authorization.secrets
        return [*self._credentials, *tokens]

    @property
    def shown_url(self) -> str:
        """The URL without what may be a secret: a password, or a query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def proxy_question(self) -> str:
        """Whether the proxy of the environment is right, where one is used."""
        return "" if self._proxy is None else proxy_question(self.url)

    @asynccontextmanager
    async def connect(self, on_lost: Callable[[], object]) -> AsyncGenerator[Any, None]:
        """Open the streams of the SDK, over a client whose answers are of a limited size.

        `on_lost` is called when an old server does not take a message, whose answer would never come.
        """
        self.on_lost = on_lost
        client = HTTPPeer("its URL", self._credentials, self._new_client).make_client()
        # Without what may be a secret: the client logs the URL of each request.
        if self.is_sse:
            make_client: Any = lambda **_: client  # noqa: E731  # its options are those that the client has
            async with sse_client(self.shown_url, httpx_client_factory=make_client) as streams:
                yield MessageStream(streams[0]), streams[1]
            return
        async with (
            client,
            streamable_http_client(self.shown_url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
        ):
            yield MessageStream(streams[0]), streams[1]

    async def sign(self, request: httpx2.Request) -> None:
        """Add the headers that sign the request; raises `Rejected` when the function for that fails."""
        signed = _SignedRequest()
        self._signed.append(signed)
        body = await request.aread()
        request.headers.update(await self._credentials.signature(signed, request.method, str(request.url), body))

    async def send(self, request: httpx2.Request, transport: httpx2.AsyncBaseTransport) -> httpx2.Response:
        """Return the response to a signed request, which has the token of the connection's owner."""
        if self.authorization is None:
            return await transport.handle_async_request(request)
        try:
            return await self.authorization.send(request, transport.handle_async_request)
        except LoginNeeded as login:
            number = self._last_login = self._last_login + 1
            self.logins[number] = login
            self.logins.pop(number - _KNOWN_LOGINS, None)
            return _failed_response(request, LOGIN_NEEDED, "the user must log in", {"login": number})
        except (httpx2.TransportError, Rejected):
            raise
        except AgentRTError as error:  # of the token store; its words are ours
            failure = str(error)
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises for what a server says
            failure = describe_failure(error)
        raise Rejected(f"the login at {self._credentials.source} failed: {failure}")

    def _new_client(self) -> httpx2.AsyncClient:
        parts = urlsplit(self.url)
        return httpx2.AsyncClient(
            headers=self._credentials.headers,
            auth=None if parts.username is None else (unquote(parts.username), unquote(parts.password or "")),
            timeout=httpx2.Timeout(self._timeout, read=None),  # calls have time limits of their own
            transport=_Transport(self, parts.query, self._new_transport()),
            event_hooks={"response": [self._limit_message]},
        )

    def _new_transport(self) -> httpx2.AsyncHTTPTransport:
        # The client itself would choose the proxy only for a transport of its own.
        try:
            return httpx2.AsyncHTTPTransport(verify=ssl_context(), proxy=self._proxy)
        except Exception as error:  # noqa: BLE001  # the boundary to the HTTP client
            why = f"{summarize_error(error)}{self.proxy_question}"
        self.refusal = f"no HTTP client can be made for {self._credentials.source}: {why}"
        raise Rejected(self.refusal)

    async def _limit_message(self, response: Any) -> None:
        # Of streams, the SDK limits each event.
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream.max_bytes = inf if is_stream else MAX_MESSAGE


class _SignedRequest:
    """Stands for a request as long as its signature is to be masked."""


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, server: ServerURL, query: str, inner: httpx2.AsyncHTTPTransport) -> None:
        self._query = query.encode()
        self._inner = inner
        self._server = server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        server = self._server
        if self._query and not request.url.query:  # an old server gives an address with a query of its own
            url = request.url.copy_with(query=self._query)
            request = httpx2.Request(
                request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
            )
        response = await self._response(request)
        if server.is_sse and request.method == "POST" and not response.is_success:
            server.on_lost()
        return response

    async def _response(self, request: httpx2.Request) -> httpx2.Response:
        server = self._server
        try:
            await server.sign(request)
            response = await server.send(request, self._inner)
        except Rejected as error:
            server.refusal, server.problem, server.status = str(error), "", None
            if request.method != "POST":
                raise
            return _failed_response(request, NOT_SENT, "the request could not be signed")
        except httpx2.TransportError as error:
            server.problem, server.refusal, server.status = type(error).__name__, "", None
            if request.method != "POST":
                raise
            code = NOT_SENT if isinstance(error, _NOT_CONNECTED) else CONNECTION_CLOSED
            return _failed_response(request, code, f"the server cannot be reached ({server.problem})")
        server.problem = server.refusal = ""
        # Kept, since the SDK raises the same error for each status. A GET does not count where many servers refuse it.
        if request.method == "POST" or server.is_sse:
            server.status = response.status_code if response.status_code >= 300 else None
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _failed_response(
    request: httpx2.Request, code: int, message: str, data: dict[str, int] | None = None
) -> httpx2.Response:
    # As a response: an exception would end the connection, with all calls in progress.
    failure = {"code": code, "message": message, "data": data}
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": failure}, request=request)
