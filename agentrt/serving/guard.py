"""The first checks of every request: hosts, origins, the number of requests, failures."""

import logging
import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.errors import ConfigError
from agentrt.serving.failure import ApiError, failure_body
from agentrt.serving.responses import JsonResponse

_logger = logging.getLogger("agentrt")
# No user, no path: what a browser puts there is a name and a port.
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class RequestGuard:
    """Lets a request pass, or refuses it, and answers for what fails behind it.

    A page of another site must not reach a server that its reader runs: the name in `Host` is checked where there is no
    authentication, since a foreign name may be made to lead to this machine, and a foreign `Origin` is always refused.
    """

    def __init__(self, app: ASGIApp, *, is_local: bool, origins: Collection[str], max_requests: int) -> None:
        self._app = app
        self._is_local = is_local
        self._origins = frozenset(origins)
        self._max_requests = max_requests
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What starts and stops the application is not a request.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _without_sniffing(send)
        try:
            self._check(scope)
        except ApiError as error:
            await JsonResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        # Nothing is awaited since the check, so two requests cannot both take the last place.
        self._requests += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._requests -= 1

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # Two of them may be read differently by a proxy and by this.
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            raise ApiError(400, "host", "a request needs one Host header, with the name of this server")
        # A Unix socket has no address, and only this machine reaches it.
        client = scope.get("client")
        if self._is_local and not (is_loopback(match["name"]) and (client is None or is_loopback(client[0]))):
            raise ApiError(
                403, "host", "this server has no authentication, so it answers only to localhost and 127.0.0.1"
            )
        # Programs send none, and a page cannot leave it out of a request that changes something.
        for origin in headers.getlist("origin"):
            if origin not in self._origins and _origin_host(origin) != hosts[0].lower():
                raise ApiError(
                    403, "origin", "pages of this origin may not use this server, unless allow_origins has it"
                )
        # After the other checks, so that a foreign page is refused alike on a busy server.
        if self._requests >= self._max_requests:
            raise ApiError(
                503,
                "busy",
                "this server is answering as many requests as it can: try again",
                details={"limit": "connections"},
                headers={"Retry-After": "1"},
            )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_begun = False

        async def note_begin(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note_begin)
        except Exception as error:  # noqa: BLE001  # the last place: what was raised may quote a secret
            _logger.error("%s %.200r failed: %s", scope["method"], scope["path"], type(error).__name__)
            # A response has one status: what fails behind it can only end the connection.
            if not is_begun:
                body = failure_body("internal", "this server failed: its log says where")
                await JsonResponse(body, 500)(scope, receive, send)


def _without_sniffing(send: Send) -> Send:
    """Return a `send` that tells browsers not to take a response, which may repeat a client's text, for a page."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return send_with_header


def _origin_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as an address of version 6 without its end
        return None


def is_loopback(host: str) -> bool:
    """Say whether a name or an address leads to this machine alone."""
    host = host.strip("[]").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        # The part behind "%" is a network interface, which ip_address takes for version 6 alone.
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_origins(origins: object) -> tuple[str, ...]:
    """Return the origins; raises `ConfigError` for what a browser would never send as one."""
    if isinstance(origins, str) or not isinstance(origins, Collection):
        raise ConfigError(f"allow_origins must be a list, such as ['https://chat.example'], not {origins!r:.200}")
    for origin in origins:
        parts = urlsplit(origin) if isinstance(origin, str) else None
        if parts is None or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc.lower()}":
            raise ConfigError(
                f"allow_origins holds {origin!r:.200}, which is not an origin: write, say, 'https://chat.example', in "
                f"lower case and without a path; '*' would let every page use the server"
            )
    return tuple(origins)
