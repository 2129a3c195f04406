"""An MCP server behind a URL."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from agentrt.tool.mcp.messages import MessageStream
from agentrt.tool.mcp.stdio import MAX_MESSAGE

__all__ = ["NOT_SENT", "ServerURL"]

NOT_SENT = -32_099
"""The code of the error that answers a request which did not reach the server."""

_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


class ServerURL:
    """The address of a server; `status` is the HTTP status of its last answer, if that was an error."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        self.url = url
        self._headers = dict(headers)
        self._timeout = timeout
        self.status: int | None = None
        self.problem = ""

    @property
    def secrets(self) -> list[str]:
        """What to mask in messages about the server."""
        return [word for value in self._headers.values() for word in value.split()]

    @property
    def shown_url(self) -> str:
        """The URL without what may be a secret: a password, or a query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Any, None]:
        """Open the streams of the SDK, over a client whose answers are of a limited size."""
        timeout = httpx2.Timeout(self._timeout, read=None)  # calls have time limits of their own
        parts = urlsplit(self.url)
        auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        transport = _LimitedTransport(self, parts.query)
        async with (
            httpx2.AsyncClient(headers=self._headers, auth=auth, timeout=timeout, transport=transport) as client,
            # Without what may be a secret: the client logs the URL of each request.
            streamable_http_client(self.shown_url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
        ):
            read_stream, write_stream = streams
            yield MessageStream(read_stream), write_stream


class _LimitedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, server: ServerURL, query: str) -> None:
        self._query = query.encode()
        self._inner = httpx2.AsyncHTTPTransport()
        self._server = server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._query:
            url = request.url.copy_with(query=self._query)
            request = httpx2.Request(
                request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
            )
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self._server.problem, self._server.status = type(error).__name__, None
            if request.method != "POST":
                raise
            # As a response: an exception would end the connection, with all calls in progress.
            code = NOT_SENT if isinstance(error, _NOT_CONNECTED) else CONNECTION_CLOSED
            failure = {"code": code, "message": f"the server cannot be reached ({self._server.problem})"}
            return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": failure}, request=request)
        self._server.problem = ""
        # Kept, since the SDK raises the same error for each status. A GET does not count: many servers refuse it.
        if request.method == "POST":
            self._server.status = response.status_code if response.status_code >= 300 else None
        # Of streams, the SDK limits each event.
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _LimitedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_MESSAGE:
                raise httpx2.StreamError(f"the answer has more than {MAX_MESSAGE:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
