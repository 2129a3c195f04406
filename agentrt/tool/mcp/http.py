"""An MCP server behind a URL."""

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from agentrt._runtime.http import Credentials, HTTPPeer
from agentrt.errors import Rejected
from agentrt.tool.mcp.messages import MessageStream
from agentrt.tool.mcp.stdio import MAX_MESSAGE
from agentrt.types import SignRequest

__all__ = ["NOT_SENT", "ServerURL"]

NOT_SENT = -32_099
"""The code of the error that answers a request which did not reach the server."""

_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_KNOWN_SIGNATURES = 100  # of the last requests, for masking them in messages


class ServerURL:
    """The address of a server; `status` is the HTTP status of its last answer, if that was an error.

    `problem` names why the last request did not reach it, and `refusal` says why it was not even sent.
    """

    def __init__(self, url: str, headers: Mapping[str, str], auth: SignRequest | None, timeout: float) -> None:
        self.url = url
        self.status: int | None = None
        self.problem = self.refusal = ""
        self._credentials = Credentials(f"the MCP server at {self.shown_url}", headers, sign=auth)
        self._timeout = timeout
        self._signed: deque[_SignedRequest] = deque(maxlen=_KNOWN_SIGNATURES)

    @property
    def secrets(self) -> list[str]:
        """The secrets to mask in messages about the server."""
        return list(self._credentials)

    @property
    def shown_url(self) -> str:
        """The URL without what may be a secret: a password, or a query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Any, None]:
        """Open the streams of the SDK, over a client whose answers are of a limited size."""
        async with (
            HTTPPeer("its URL", self._credentials, self._new_client).make_client() as client,
            # Without what may be a secret: the client logs the URL of each request.
            streamable_http_client(self.shown_url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
        ):
            read_stream, write_stream = streams
            yield MessageStream(read_stream), write_stream

    async def sign(self, request: httpx2.Request) -> None:
        """Add the headers that sign the request; raises `Rejected` when the function for that fails."""
        signed = _SignedRequest()
        self._signed.append(signed)
        body = await request.aread()
        request.headers.update(await self._credentials.signature(signed, request.method, str(request.url), body))

    def _new_client(self) -> httpx2.AsyncClient:
        parts = urlsplit(self.url)
        return httpx2.AsyncClient(
            headers=self._credentials.headers,
            auth=None if parts.username is None else (unquote(parts.username), unquote(parts.password or "")),
            timeout=httpx2.Timeout(self._timeout, read=None),  # calls have time limits of their own
            transport=_Transport(self, parts.query),
            event_hooks={"response": [self._limit_message]},
        )

    async def _limit_message(self, response: Any) -> None:
        # Of streams, the SDK limits each event.
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream.max_bytes = inf if is_stream else MAX_MESSAGE


class _SignedRequest:
    """Stands for a request as long as its signature is to be masked."""


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, server: ServerURL, query: str) -> None:
        self._query = query.encode()
        self._inner = httpx2.AsyncHTTPTransport()
        self._server = server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        server = self._server
        if self._query:
            url = request.url.copy_with(query=self._query)
            request = httpx2.Request(
                request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
            )
        try:
            await server.sign(request)
            response = await self._inner.handle_async_request(request)
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
        # Kept, since the SDK raises the same error for each status. A GET does not count: many servers refuse it.
        if request.method == "POST":
            server.status = response.status_code if response.status_code >= 300 else None
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _failed_response(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    # As a response: an exception would end the connection, with all calls in progress.
    failure = {"code": code, "message": message}
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": failure}, request=request)
