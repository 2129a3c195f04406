"""The events of a reply as server-sent events, whose ids are the events' numbers."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from json import dumps

import anyio
from starlette.types import Receive, Scope, Send

from agentrt.errors import AgentRTError, UsageError
from agentrt.event import AnyEvent, ReplyEndEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.runner import ReplyHandle
from agentrt.serving.limits import Limits

_logger = logging.getLogger("agentrt")
_QUESTION_EVENTS = (RequireUserConfirmEvent, RequireExternalExecutionEvent)
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # or nginx would keep the events back
}


class EventStream:
    """A response of server-sent events, which lasts until `messages` end or its reader leaves.

    `on_leave` is awaited if the reader leaves before. `name` is for the log.
    """

    def __init__(
        self,
        messages: Callable[[], AsyncGenerator[bytes, None]],
        limits: Limits,
        *,
        name: str,
        on_leave: Callable[[], Awaitable[object]] | None,
        headers: dict[str, str],
    ) -> None:
        self._messages = messages
        self._limits = limits
        self._name = name
        self._on_leave = on_leave
        self._headers = [(name.encode(), value.encode()) for name, value in {**_HEADERS, **headers}.items()]
        # A ping must not come in the middle of an event.
        self._sending = anyio.Lock()
        self._is_left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        # Starlette answers HEAD by the route of GET, and it has no body.
        if scope["method"] != "HEAD":
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_reader, receive, group.cancel_scope)
                group.start_soon(self._ping, send, group.cancel_scope)
                async with aclosing(self._messages()) as messages:
                    async for message in messages:
                        await self._send(send, message, group.cancel_scope)
                group.cancel_scope.cancel()
        if not self._is_left:
            await send({"type": "http.response.body", "body": b""})
        elif self._on_leave is not None:
            await self._on_leave()

    async def _watch_reader(self, receive: Receive, scope: anyio.CancelScope) -> None:
        # What else comes is the body, which was read or is of no interest.
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_left = True
        scope.cancel()

    async def _ping(self, send: Send, scope: anyio.CancelScope) -> None:
        while True:
            await anyio.sleep(self._limits.ping_seconds)
            # A comment, which clients skip: proxies close what is silent for long.
            await self._send(send, b": ping\n\n", scope)

    async def _send(self, send: Send, message: bytes, scope: anyio.CancelScope) -> None:
        async with self._sending:
            with anyio.move_on_after(self._limits.stall_seconds) as patience:
                await send({"type": "http.response.body", "body": message, "more_body": True})
        if patience.cancelled_caught:
            # Without the end of the body the connection is closed; the reader may come back with Last-Event-ID.
            _logger.info("a reader of %s was cut: it took nothing for too long", self._name)
            self._is_left = True
            scope.cancel()


async def reply_messages(
    handle: ReplyHandle, after: int, read_status: Callable[[ReplyHandle], Awaitable[str]]
) -> AsyncGenerator[bytes, None]:
    """Follow a reply until it is over or waits for an answer; the last message says which.

    `read_status` says how it stands, where no event has said it.
    """
    status = ""
    try:
        async with aclosing(handle.events(after=after)) as events:
            async for event in events:
                status = status_after(event, handle.reply_id)
                if isinstance(event, ReplyEndEvent) and event.error is not None:
                    event = replace(event, error=public_error(event.finished_reason, event.error))
                yield f"id: {event.seq}\ndata: {event.to_json()}\n\n".encode()
        # A client that came back after the last event gets no event that says it.
        status = status or await read_status(handle)
    except UsageError:
        return  # the runner was closed, and another process continues what it left: a reader comes back
    except (AgentRTError, OSError) as error:
        # The store is away. Without "done", a reader comes back.
        _logger.warning("a reader of reply %s was left: %s", handle.reply_id, type(error).__name__)
        return
    yield f"event: done\ndata: {dumps({'reply_id': handle.reply_id, 'status': status})}\n\n".encode()


def status_after(event: AnyEvent, reply_id: str) -> str:
    """Return how the reply stands after that event: "" while it runs, "waiting", or how it ended."""
    if event.reply_id != reply_id:
        return ""  # of a sub-agent
    if isinstance(event, ReplyEndEvent):
        return event.finished_reason
    return "waiting" if isinstance(event, _QUESTION_EVENTS) else ""


def encode_data(value: object) -> bytes:
    """Return an event that has no name and no id, as other protocols send theirs."""
    return f"data: {dumps(value)}\n\n".encode()


def public_error(reason: str | None, error: str | None) -> str | None:
    """Return what a client sees of the error of a reply: the name of an exception, and not its words."""
    return error.partition(":")[0] if error is not None and reason in ("error", "failed") else error
