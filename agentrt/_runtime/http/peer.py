"""An HTTP API of another program: one client per event loop, bounded answers, and errors that show no secret."""

import os
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import anyio
from anyio.lowlevel import current_token

from agentrt._runtime.http.certificates import ssl_context
from agentrt._runtime.http.credentials import Credentials
from agentrt._runtime.http.limits import CLOSE_SECONDS, MAX_BYTES, CallTimer
from agentrt._runtime.http.log_filter import keep_headers_out_of_logs
from agentrt._runtime.http.proxy import proxy_question
from agentrt.errors import Malformed, ModelError, Rejected, Timeout, Transient

_DRAIN_SECONDS = 0.1  # for the end of a response, which its connection needs to be reused
_MAX_ERROR_BYTES = 65_536
_MAX_ERROR_SECONDS = 5.0
_MAX_CONNECTIONS = 1_000
_IDLE_CONNECTIONS = 100
_MAX_LINKS = 10
# Errors of httpx2 for a request that it does not send: a retry would fail again.
_NOT_SENT = {"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"}


class HTTPPeer:
    """An HTTP API, for any number of tasks, and for any number of event loops in turn.

    `place` is the setting that messages ask to check, as in "base_url='http://...'". There are no retries, and no
    redirect is followed. A client that `http_client` makes is closed like one of ours.
    """

    def __init__(self, place: str, credentials: Credentials, http_client: Callable[[], object] | None = None) -> None:
        self.source = credentials.source
        self.credentials = credentials
        self._place = place
        self._http_client = http_client
        # By event loop, since a connection belongs to the loop that opened it.
        self.clients: WeakKeyDictionary[object, _SharedClient] = WeakKeyDictionary()

    def copy(self) -> "HTTPPeer":
        """Return a peer with clients of its own."""
        return HTTPPeer(self._place, self.credentials, self._http_client)

    async def aclose(self) -> None:
        """Close the connections of this event loop; those in use close when their calls and streams have ended."""
        client = self.clients.pop(current_token().native_token, None)
        if client is not None:
            await client.give_up()

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timer: CallTimer,
        max_bytes: float = MAX_BYTES,
    ) -> "HTTPResponse":
        """Return the response to a request as soon as its headers have arrived; raises `ModelError` if none comes.

        `headers` win over the header of the key, and a signature wins over both.
        """
        client = self._client(url)  # before the timer: it is slow the first time, which is not the peer's fault
        # The timer identifies this call, as a separate object that disappears when the response is dropped.
        client.enter(timer)
        leave = partial(client.leave, timer)
        try:
            response = await self._response(client.http, method, url, body, headers, timer)
        except BaseException:
            await leave()
            raise
        response.stream.max_bytes = max_bytes
        return HTTPResponse(self, response, timer, leave)

    async def _response(
        self, http: Any, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timer: CallTimer
    ) -> Any:
        from agentrt._runtime.http.body import limit_body

        try:
            request = await self._request(http, method, url, body, headers, timer)
            response = await timer.wait(http.send(request, stream=True, follow_redirects=False))
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to the HTTP client
            failure = self._failure(error, url, timer)
        else:
            await limit_body(response)  # in case the client has no hooks
            return response
        finally:
            timer.pause()
        # Outside of the `except`, or the client's error, which may hold a secret, would become its context.
        raise failure

    async def _request(
        self, http: Any, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timer: CallTimer
    ) -> Any:
        import httpx2

        # The timer keeps the other limits: for httpx2, a ping is an answer.
        connect = None if timer.limits.connect == float("inf") else timer.limits.connect
        request = http.build_request(method, url, content=body, timeout=httpx2.Timeout(None, connect=connect))
        request.headers.update(await self._ask(timer, "api_key", self.credentials.key_headers(timer)))
        request.headers.update(headers)
        signature = self.credentials.signature(timer, method, str(request.url), body or b"")
        request.headers.update(await self._ask(timer, "auth", signature))
        return request

    async def _ask(self, timer: CallTimer, option: str, work: Awaitable[dict[str, str]]) -> dict[str, str]:
        return await timer.wait(work, f"the function {option}=... for {self.source}")

    def _client(self, url: str) -> "_SharedClient":
        loop = current_token().native_token
        client = self.clients.get(loop)
        if client is not None:
            return client
        try:
            client = self.clients[loop] = _SharedClient(self.make_client())
            return client
        except Exception as error:  # noqa: BLE001  # the boundary to the HTTP client, and to the user's function
            why = f"{summarize_error(error)}{proxy_question(url)}"
        raise Rejected(f"no HTTP client can be made for {self.source}: {why}")

    def make_client(self) -> Any:
        """Return a client of httpx2 whose answers are bounded; the caller closes it."""
        import httpx2  # slow to load

        from agentrt._runtime.http.body import limit_body

        keep_headers_out_of_logs()
        if self._http_client is None:
            limits = httpx2.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_IDLE_CONNECTIONS)
            http: Any = httpx2.AsyncClient(limits=limits, verify=ssl_context())
        else:
            http = self._http_client()
        if http.headers["user-agent"].startswith("python-httpx"):
            http.headers["user-agent"] = f"agentrt/{sys.modules['agentrt'].__version__}"  # loaded before its parts
        http.headers["accept-encoding"] = "gzip, deflate"  # only these can be decoded in slices of a limited size
        hooks = http.event_hooks["response"]
        # The first hook, since any other may read the body.
        if limit_body not in hooks:
            hooks.insert(0, limit_body)
        return http

    def _failure(self, error: Exception, url: str, timer: CallTimer) -> ModelError:
        """Return the error of a call whose HTTP client raised `error`."""
        # By name, since an HTTP client of the user's own may have other classes. Its text may hold a secret.
        name, why = type(error).__name__, summarize_error(error)
        source, where, proxy = self.source, self._place, proxy_question(url)
        if (refused := _refused_body(error, source)) is not None:
            return refused
        if name == "ConnectTimeout":
            return Timeout(
                f"{source} could not be reached within {timer.limits.connect:g} s (connect): is {where} right? "
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
        if name in _NOT_SENT or isinstance(error, (TypeError, ValueError)):
            return Rejected(f"a request to {source} could not be sent ({why}): is {where} right?")
        return Transient(f"{source} did not answer ({why})")


class HTTPResponse:
    """A response whose headers have arrived. `read` returns its body piece by piece; the caller closes it."""

    def __init__(self, peer: HTTPPeer, response: Any, timer: CallTimer, leave: Callable[[], Awaitable[None]]) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._peer = peer
        self._response = response
        self._body = response.stream
        self._timer = timer
        self._leave = leave  # tells the client that this call no longer uses it
        self._is_closed = False

    @property
    def size(self) -> int:
        """The bytes of the body that were read."""
        return int(self._body.size)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    async def read(self, progress: Callable[[], str] | None = None) -> bytes | None:
        """Return the next piece of the body, decoded, `None` at the end; raises `ModelError` for one that fails.

        `progress` says how much of the answer has come, for the message about one that was cut.
        """
        try:
            self._timer.check()
            return await self._timer.wait(anext(self._body))
        except StopAsyncIteration:
            return None
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to the HTTP client
            failure = self._failure(error, progress)
        # Outside of the `except`, or the client's error, which may hold a secret, would become its context.
        raise failure

    async def read_error(self) -> bytes:
        """Return the body of an error, or as much as arrives soon, and close the response."""
        body = bytearray()
        # At most half of the call's remaining time: the status must still be reported in time.
        seconds = min(_MAX_ERROR_SECONDS, self._timer.seconds_left / 2)
        try:
            with anyio.move_on_after(seconds), suppress(Exception):
                while len(body) < _MAX_ERROR_BYTES:
                    body += await anext(self._body)
        finally:
            await self.aclose()
        return bytes(body[:_MAX_ERROR_BYTES])

    async def drain(self) -> None:
        """Read the rest of a body whose content is complete, so that its connection can be reused."""
        # A failure here costs only the connection.
        with anyio.move_on_after(_DRAIN_SECONDS), suppress(Exception):
            while True:
                await anext(self._body)

    async def aclose(self) -> None:
        """Close the response, even when this is cancelled; closing it again does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._response.aclose()
                await self._body.aclose()  # even if the client considers the response closed
        finally:
            await self._leave()

    def cut_error(self, why: str, progress: Callable[[], str] | None = None) -> Transient:
        """Return the error for a body that ended too early."""
        amount = f"{self.size} bytes" if progress is None else progress()
        return Transient(f"{self._peer.source}: its answer was cut after {amount}: {why}")

    def _failure(self, error: Exception, progress: Callable[[], str] | None) -> ModelError:
        source, why = self._peer.source, summarize_error(error)
        if (refused := _refused_body(error, source)) is not None:
            return refused
        if type(error).__name__ == "DecodingError":
            return Malformed(f"{source} sent what cannot be decoded ({why})")
        return self.cut_error(why, progress)


class _SharedClient:
    """An HTTP client and its users; after it is given up, the last user closes it."""

    def __init__(self, http: Any) -> None:
        self.http = http
        # Weak, so that a stream dropped without being closed no longer counts. That rests on reference
        # counting: without it, such a stream counts until it is collected.
        self._users: WeakSet[object] = WeakSet()
        self._is_given_up = False

    def enter(self, user: object) -> None:
        """Register `user`; any object will do, since only its identity matters."""
        self._users.add(user)

    async def leave(self, user: object) -> None:
        """Unregister `user`; closes the client if it was given up and has no other user."""
        self._users.discard(user)
        await self._close_if_unused()

    async def give_up(self) -> None:
        """Close the client, at once or with the last of its users."""
        self._is_given_up = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_given_up and not self._users:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.http.aclose()


def _refused_body(error: Exception, source: str) -> Malformed | None:
    from agentrt._runtime.http.body import RefusedBody

    if not isinstance(error, RefusedBody):
        return None
    remedy = ": to take more, give max_bytes=..." if error.is_too_long else ""
    return Malformed(f"{source}: {error}{remedy}")  # its text is ours, and holds no secret


def summarize_error(error: BaseException) -> str:
    """Return the class of another library's error, with the operating system's words about it.

    The text of the error itself may hold a secret.
    """
    words, seen = "", 0
    link: BaseException | None = error
    while link is not None and not words and seen < _MAX_LINKS:  # causes may form a circle
        match link:
            case ssl.SSLCertVerificationError():
                words = link.verify_message
            case UnicodeError():
                words = str(getattr(link, "reason", ""))
            case socket.gaierror():
                words = str(link.strerror)
            case OSError(errno=int(number)):
                words = os.strerror(number)  # not the text of the error, to which event loops add more
            case BaseExceptionGroup():
                link = link.exceptions[0]
                continue
        link, seen = link.__cause__ or link.__context__, seen + 1
    return f"{type(error).__name__}{f': {words}' if words else ''}"
