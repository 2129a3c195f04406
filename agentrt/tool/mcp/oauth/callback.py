"""The end of a login: the browser comes back with a code, which is exchanged for tokens."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio.abc import Listener, SocketStream
from mcp.client.auth.utils import validate_authorization_response_iss

from agentrt._runtime.concurrency.event_loop import run_shielded, spawn
from agentrt.errors import ConfigError, StoreError, ToolError
from agentrt.tool.mcp.oauth.provider import CodeProvider, describe_failure, metadata_of, pending_key
from agentrt.tool.mcp.oauth.settings import DEFAULT_REDIRECT, FinishedLogin, OAuth, is_this_machine
from agentrt.tool.mcp.oauth.transport import send_for_login

_MAX_PARAMETER = 4_000
_MAX_CALLBACK_HEAD = 16_384
_CALLBACK_SECONDS = 10.0
LOGGED_IN = "You are logged in. You may close this page."
UNKNOWN_LOGIN = "Not logged in: this login is unknown, has expired, or was already used. Begin it again."


async def finish_login(
    oauth: OAuth, parameters: Mapping[str, str], server_url: str | None, owner: str | None
) -> FinishedLogin | None:
    """Exchange the code in the parameters of a callback for tokens, and keep them for the owner who was asked."""
    key = pending_key(parameters.get("state", "")[:_MAX_PARAMETER])
    pending = await oauth.store.get(*key)
    if pending is None or server_url not in (None, pending["server"]):
        return None
    if owner not in (None, pending["owner"]):
        raise ToolError("another user started this login: nothing was stored")
    # Taken, since of two callbacks with the same state one must find nothing.
    if await oauth.store.take(*key) is None:
        return None
    code = parameters.get("code", "")
    if "error" in parameters or not 0 < len(code) <= _MAX_PARAMETER:
        raise ToolError("the login was refused: nothing was stored, and it can be started again")
    provider = CodeProvider(oauth, pending["owner"], pending["server"])
    try:
        validate_authorization_response_iss(parameters.get("iss"), metadata_of(pending))
        await provider.exchange(pending, code, partial(send_for_login, oauth, pending["server"]))
    except Exception as error:  # noqa: BLE001  # whatever the SDK raises for what a server says
        failure = describe_failure(error)
        if failure in ("invalid_client", "unauthorized_client"):
            # The authorization server has forgotten it: the next login registers another.
            await oauth.store.take("client", pending["server"], oauth.redirect_uri)
    else:
        question = pending["question"]
        return FinishedLogin(pending["owner"], pending["server"], question["session"], question["call"])
    # Outside of the `except`, or the error, which may quote a token, would become its context.
    raise ToolError(f"the login failed: {failure}")


class LoginListener:
    """Finishes the logins whose browsers come to the `redirect_uri` on this machine, inside `async with`."""

    def __init__(self, oauth: OAuth) -> None:
        parts = urlsplit(oauth.redirect_uri)
        if not is_this_machine(parts.hostname) or parts.scheme != "http":
            raise ConfigError(
                f"OAuth.listen is for a redirect_uri of this machine, such as {DEFAULT_REDIRECT!r}, not "
                f"{oauth.redirect_uri!r:.200}: an application has the route instead"
            )
        self._oauth, self._host, self._port, self._path = oauth, parts.hostname, parts.port or 80, parts.path or "/"
        self._scope, self._ended = anyio.CancelScope(), anyio.Event()

    async def __aenter__(self) -> None:
        try:
            listener = await anyio.create_tcp_listener(local_host=self._host, local_port=self._port)
        except OSError as error:
            raise ConfigError(
                f"OAuth.listen cannot use the port {self._port} of {self._host} ({type(error).__name__}): end the "
                f"program that has it, or give another OAuth(redirect_uri=...)"
            ) from None
        # In a task of its own, since no task group may be open in the caller's block.
        spawn(partial(self._serve, listener))

    async def __aexit__(self, *_: object) -> None:
        self._scope.cancel()
        await run_shielded(_CALLBACK_SECONDS, self._ended.wait)

    async def _serve(self, listener: Listener[SocketStream]) -> None:
        try:
            with self._scope:
                async with listener:
                    await listener.serve(self._answer)
        finally:
            self._ended.set()

    async def _answer(self, stream: SocketStream) -> None:
        async with stream:
            # A browser opens connections that it does not use, and closes others early.
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream, TimeoutError):
                head = b""
                with anyio.fail_after(_CALLBACK_SECONDS):
                    while b"\r\n\r\n" not in head and len(head) < _MAX_CALLBACK_HEAD:
                        head += await stream.receive()
                # Not within that time: the code is good once, and its exchange has limits of its own.
                page = await self._response(head.partition(b"\r\n")[0].decode("latin-1"))
                with anyio.fail_after(_CALLBACK_SECONDS):
                    await stream.send(page)

    async def _response(self, request_line: str) -> bytes:
        method, _, target = request_line.rpartition(" ")[0].partition(" ")
        path, _, query = target.partition("?")
        if method != "GET" or path != self._path:
            return _page(404, "Not Found", "There is nothing here.")
        try:
            login = await self._oauth.finish(dict(parse_qsl(query)))
        except ToolError as error:
            return _page(400, "Bad Request", f"Not logged in: {error}.")
        except StoreError as error:  # or this listener would end, and nobody could log in any more
            return _page(503, "Service Unavailable", f"Not logged in: {error}.")
        return _page(400, "Bad Request", UNKNOWN_LOGIN) if login is None else _page(200, "OK", LOGGED_IN)


def _page(status: int, reason: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
