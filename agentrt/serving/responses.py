"""Responses: in JSON, and those that are given up when their client leaves."""

from collections.abc import Awaitable, Callable
from json import dumps
from typing import Any

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send


class JsonResponse(JSONResponse):
    """An answer in JSON, also where a client or a model has written half of a surrogate pair."""

    def render(self, content: Any) -> bytes:
        text = dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # Such a half has no UTF-8 form, and what Python writes for it is the escape that JSON has.
        return text.encode("utf-8", "backslashreplace")


class AwaitedResponse:
    """Sends the response that `make_response` returns.

    If the client leaves before, `make_response` is cancelled, and `on_leave` is awaited.
    """

    def __init__(
        self, make_response: Callable[[], Awaitable[Response]], *, on_leave: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._make_response = make_response
        self._on_leave = on_leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_client, receive, group.cancel_scope)
            response = await self._make_response()
            group.cancel_scope.cancel()
        if response is not None:
            await response(scope, receive, send)
        elif self._on_leave is not None:
            await self._on_leave()

    async def _watch_client(self, receive: Receive, scope: anyio.CancelScope) -> None:
        # The server only reports that the client has left: it cancels nothing by itself.
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()
