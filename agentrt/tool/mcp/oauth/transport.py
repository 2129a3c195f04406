"""Requests that carry a token, and those to get one: only to addresses that are allowed, and with bounded answers."""

from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import anyio
import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from agentrt._runtime.http.body import limit_body
from agentrt._runtime.http.certificates import ssl_context
from agentrt._runtime.http.proxy import proxy_for
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.oauth.provider import CodeProvider, MachineProvider, RefusedLogin
from agentrt.tool.mcp.oauth.settings import OAuth

_LEGACY_METADATA = "/.well-known/oauth-authorization-server"
_MAX_LOGIN_ANSWER = 1_000_000
_MAX_LOGIN_SECONDS = 30.0
_MAX_LOGIN_REQUESTS = 20
_WHERE = "it leads to an address"
_UNICAST = IPv6Network("2000::/3")
_PRIVATE_REMEDY = "give OAuth(allow_private=True) if you trust the server"

SendRequest = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Authorization:
    """Sends the requests of one owner to a server with the owner's token.

    Raises `LoginNeeded` where the user must log in first, and another error where the login fails.
    """

    def __init__(self, oauth: OAuth, owner: str, server_url: str) -> None:
        self._oauth, self._server_url = oauth, server_url
        self._provider: CodeProvider | MachineProvider = (
            CodeProvider(oauth, owner, server_url)
            if oauth.grant == "authorization_code"
            else MachineProvider(oauth, server_url)
        )

    @property
    def secrets(self) -> list[str]:
        """The secrets to mask in messages."""
        return self._provider.secrets

    async def send(self, request: httpx2.Request, send: SendRequest) -> httpx2.Response:
        """Return the response of the server, from which a refusal is left out if a login could repair it."""
        await request.aread()
        try:
            return await self._send(request, send)
        except LoginNeeded:
            # The user may have logged in through another process meanwhile.
            provider = self._provider
            refused = request.headers.get("authorization")
            tokens = await provider.get_tokens()
            if tokens is None or refused == f"Bearer {tokens.access_token}":
                raise
            return await self._send(request, send)

    async def _send(self, request: httpx2.Request, send: SendRequest) -> httpx2.Response:
        provider, refusal, refused = self._provider, None, None
        # Only a call has a user who waits; listening to the server and leaving it ask for no login.
        is_asked = request.method == "POST"
        if provider.has_login or not is_asked:
            # Outside of the flow, which sends one request at a time.
            provider.authorize(request)
            response = await send(request)
            if not is_asked or not _is_refusal(response):
                return response
            refusal, refused = response, request.headers.get("authorization")
        else:
            provider.reload_if_stale()
        flow = provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            for _ in range(_MAX_LOGIN_REQUESTS):
                if outgoing is not request:
                    response = await send_for_login(self._oauth, self._server_url, outgoing)
                    if provider.context.auth_server_url is None and outgoing.url.path == _LEGACY_METADATA:
                        response = self._with_origin_as_issuer(response, outgoing.url)
                elif refusal is not None and refused == request.headers.get("authorization"):
                    response, refusal = refusal, None
                else:
                    response = await send(request)
                if outgoing is request and _is_refusal(response):
                    provider.demanded = extract_scope_from_www_auth(response)
                    await _read_whole(response)
                try:
                    outgoing = await flow.asend(response)
                except StopAsyncIteration:
                    if response.status_code == 401:
                        await provider.drop()  # the server refuses even a new token
                    return response
            raise RefusedLogin(f"it took more than {_MAX_LOGIN_REQUESTS} requests")
        finally:
            await flow.aclose()

    @staticmethod
    def _with_origin_as_issuer(response: httpx2.Response, url: httpx2.URL) -> httpx2.Response:
        """Return legacy metadata with the origin that it came from as issuer, in place of an issuer of the same origin.

        Before servers named their authorization servers (2025-03-26), metadata was at the root, whatever the path of
        the issuer, and the SDK refuses such a path.
        """
        try:
            metadata = response.json()
            origin = str(url.copy_with(path="/", query=None))
            if httpx2.URL(metadata["issuer"]).copy_with(path="/", query=None) != origin:
                return response
        except (ValueError, KeyError, TypeError, httpx2.InvalidURL):
            return response  # which the SDK refuses
        return httpx2.Response(response.status_code, json={**metadata, "issuer": origin}, request=response.request)


async def send_for_login(oauth: OAuth, server_url: str, request: httpx2.Request) -> httpx2.Response:
    """Return the whole response to a request for metadata, a registration or a token; no redirect is followed."""
    with anyio.move_on_after(_MAX_LOGIN_SECONDS):
        url, server = request.url, httpx2.URL(server_url)
        # Chosen by the name, and asked for the address that was checked: to the proxy, the name could be another's.
        proxy = proxy_for(str(url))
        is_same_origin = (url.scheme, url.host, url.port) == (server.scheme, server.host, server.port)
        if not oauth.allow_private and not is_same_origin:
            request = await _pinned(request)
        async with httpx2.AsyncHTTPTransport(verify=ssl_context(), proxy=proxy) as transport:
            response = await transport.handle_async_request(request)
            response.request = request
            await _read_whole(response)
            return response
    raise RefusedLogin(f"no answer within {_MAX_LOGIN_SECONDS:g} seconds")


async def _read_whole(response: httpx2.Response) -> None:
    await limit_body(response)
    response.stream.max_bytes = _MAX_LOGIN_ANSWER  # type: ignore[union-attr]  # a LimitedBody
    try:
        await response.aread()
    finally:
        await response.aclose()


async def _pinned(request: httpx2.Request) -> httpx2.Request:
    """Return the request for an address that was checked; raises `RefusedLogin` for one that is not public."""
    url = request.url
    if url.scheme != "https":
        raise RefusedLogin(f"{_WHERE} without https: {_PRIVATE_REMEDY}")
    found = await anyio.getaddrinfo(url.host, url.port or 443)
    addresses = [ip_address(entry[4][0]) for entry in found]
    if not all(_is_public(address) for address in addresses):
        raise RefusedLogin(f"{_WHERE} in a private network: {_PRIVATE_REMEDY}")
    # The name is not looked up again, since the second answer may be another.
    extensions = {**request.extensions, "sni_hostname": url.host}
    return httpx2.Request(
        request.method,
        url.copy_with(host=str(addresses[0])),
        headers=request.headers,  # with the name as Host
        stream=request.stream,
        extensions=extensions,
    )


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return _is_public(address.ipv4_mapped)
        # Others may stand for an IPv4 address, which gateways (NAT64, 6to4) would send the request to.
        if address not in _UNICAST or address.sixtofour:
            return False
    return address.is_global and not address.is_multicast


def _is_refusal(response: httpx2.Response) -> bool:
    if response.status_code == 401:
        return True
    return response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
