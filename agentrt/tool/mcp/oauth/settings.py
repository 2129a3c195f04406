"""How to log in at an MCP server. Nothing of the SDK is loaded before a server is reached."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from agentrt._runtime.hidden import HiddenStr
from agentrt._runtime.options import check_bool
from agentrt._runtime.representation import never_raises, repr_as_call
from agentrt._runtime.text import mask, repr_of
from agentrt.errors import ConfigError
from agentrt.tool.mcp.oauth.token_store import TokenStore

Grant = Literal["authorization_code", "client_credentials"]

DEFAULT_REDIRECT = "http://127.0.0.1:8765/oauth/callback"
"""Fixed, since servers compare the whole address with the one that was registered."""


class OAuthClient:
    """A client that was registered with the authorization server `issuer`, by hand.

    The `secret` goes only to that issuer, wherever the MCP server points to; a client without one is public.
    `secret_in` says where token requests have it: in a header ("basic") or in the body ("post").
    """

    def __init__(
        self,
        client_id: str,
        secret: str | None = None,
        *,
        issuer: str | None = None,
        secret_in: Literal["basic", "post"] = "basic",
    ) -> None:
        given_id: Any = client_id
        if not (isinstance(given_id, str) and given_id.isprintable() and given_id):
            raise ConfigError(f"OAuthClient(client_id=...) must be a str, and not empty, not {repr_of(client_id)}")
        given_secret: Any = secret
        if given_secret is not None and not (isinstance(given_secret, str) and given_secret):
            # Without the value, which may be a secret.
            raise ConfigError(
                f"OAuthClient({client_id!r:.100}, secret=...) must be a str, and not empty, not "
                f"{type(secret).__name__}; is the variable set that it is read from?"
            )
        if issuer is not None and not _is_url(issuer):
            raise ConfigError(
                f"OAuthClient({client_id!r:.100}, issuer=...) must be the URL of the authorization server, not "
                f"{mask(repr_of(issuer))}"
            )
        if secret is not None and issuer is None:
            raise ConfigError(
                f"OAuthClient({client_id!r:.100}, secret=...) needs issuer=..., the URL of the authorization server "
                f"that the secret is for: otherwise the MCP server decides who gets it"
            )
        if secret_in not in ("basic", "post"):
            raise ConfigError(
                f'OAuthClient({client_id!r:.100}, secret_in=...) must be "basic" or "post", not {secret_in!r:.100}'
            )
        self.client_id, self.issuer, self.secret_in = client_id, issuer, secret_in
        self._secret = None if secret is None else HiddenStr(secret)

    @property
    def secret(self) -> str | None:
        """The secret, `None` for a public client."""
        return self._secret

    @never_raises
    def __repr__(self) -> str:
        return repr_as_call("OAuthClient", {"client_id": repr(self.client_id), "issuer": repr(self.issuer)})


class FinishedLogin(NamedTuple):
    """A login that has succeeded: whose, at which server, and the question that asked for it."""

    owner: str
    server_url: str
    session_id: str
    call_id: str


class OAuth:
    """The login at an MCP server with OAuth 2.1; `MCPToolset(auth=...)` takes it.

    With the `grant` "authorization_code", each owner of a conversation agrees in a browser: the call that needs it
    waits with a question that has the URL. The owner is the label "owner" of the conversation, which a served
    application sets; without one it is the process. With "client_credentials" the process logs in by the secret of
    `client`, and nobody is asked.

    `client` is the registered client, or the URL of a document that describes it; without it one is registered at the
    first login. `scopes` are asked for, with those that the server demands in a refusal; without them, those that the
    server lists. After the login the browser is sent to `redirect_uri`: the route `/oauth/callback` of an application,
    or an address of this machine where `listen` waits. Tokens are kept in `store`, by default in memory.

    Metadata, registration and tokens are asked for at public addresses over HTTPS only, and at the MCP server's own
    origin. `allow_private` lifts that, such as for an authorization server in a private network.
    """

    def __init__(
        self,
        *,
        scopes: Sequence[str] | None = None,
        client: OAuthClient | str | None = None,
        grant: Grant = "authorization_code",
        redirect_uri: str = DEFAULT_REDIRECT,
        store: TokenStore | None = None,
        allow_private: bool = False,
    ) -> None:
        self.scopes = _checked_scopes(scopes)
        given_client: Any = client
        if given_client is not None and not isinstance(given_client, (OAuthClient, str)):
            raise ConfigError(f"OAuth(client=...) must be an OAuthClient or a URL, not {type(client).__name__}")
        if isinstance(client, str) and (not client.startswith("https://") or urlsplit(client).path in ("", "/")):
            raise ConfigError(
                f"OAuth(client=...) as a str must be the https:// URL of a document that describes the client, with a "
                f"path, not {mask(repr_of(client))}"
            )
        if grant not in ("authorization_code", "client_credentials"):
            raise ConfigError(
                f'OAuth(grant=...) must be "authorization_code" or "client_credentials", not {grant!r:.100}'
            )
        if grant == "client_credentials" and not (isinstance(client, OAuthClient) and client.secret):
            raise ConfigError(
                'OAuth(grant="client_credentials") needs client=OAuthClient(client_id, secret, issuer=...)'
            )
        if not _is_redirect(redirect_uri):
            raise ConfigError(
                f"OAuth(redirect_uri=...) must begin with https://, or with http:// and an address of this machine "
                f"such as {DEFAULT_REDIRECT!r}, without a fragment, not {mask(repr_of(redirect_uri))}"
            )
        given_store: Any = store
        if given_store is not None and not isinstance(given_store, TokenStore):
            raise ConfigError(f"OAuth(store=...) must be a TokenStore, not {type(store).__name__}")
        check_bool("OAuth(allow_private=...)", allow_private)
        self.client, self.grant, self.redirect_uri, self.allow_private = client, grant, redirect_uri, allow_private
        self.store = TokenStore() if store is None else store
        self.forgotten = 0

    def check_url(self, name: str, url: str | None) -> None:
        """Raise `ConfigError` for the URL of a server that tokens must not go to."""
        if url is None:
            raise ConfigError(f"MCPToolset({name!r}, auth=OAuth(...)) is for a server behind a url=")
        if url.startswith("http://") and not (self.allow_private or is_this_machine(urlsplit(url).hostname)):
            raise ConfigError(
                f"MCPToolset({name!r}, url=..., auth=OAuth(...)) would send tokens unencrypted: write https://, or "
                f"OAuth(allow_private=True) in a private network"
            )

    def listen(self) -> AbstractAsyncContextManager[None]:
        """Return what finishes logins inside `async with`, where `redirect_uri` is an address of this machine."""
        from agentrt.tool.mcp.oauth.callback import LoginListener

        return LoginListener(self)

    async def finish(
        self, parameters: Mapping[str, str], *, server_url: str | None = None, owner: str | None = None
    ) -> FinishedLogin | None:
        """Store the tokens for the parameters with which a browser came to `redirect_uri`.

        Returns `None` for a login that is unknown, was used before, or is not for `server_url`. Raises `ToolError` for
        one of another owner than `owner`, the user of the browser where that is known, and for one that is refused.
        """
        from agentrt.tool.mcp.oauth.callback import finish_login

        return await finish_login(self, parameters, server_url, owner)

    async def forget(self, server_url: str, owner: str = "") -> bool:
        """Remove the tokens of an owner for a server; returns whether there were any.

        Open connections of this object use them no longer; those of other processes do until the server refuses them.
        """
        taken = await self.store.take(*self.key_of(server_url, owner))
        self.forgotten += 1  # connections compare it with what they read before
        return taken is not None

    def key_of(self, server_url: str, owner: str) -> tuple[str, ...]:
        """Return the key of a login in the store: of a user, or of a client that logs in by its secret."""
        if self.grant == "authorization_code":
            return "login", owner, server_url
        assert isinstance(self.client, OAuthClient)
        return "client login", self.client.client_id, self.client.issuer or "", " ".join(self.scopes or ()), server_url

    @never_raises
    def __repr__(self) -> str:
        return repr_as_call("OAuth", {"scopes": repr(self.scopes), "grant": repr(self.grant)})


def is_this_machine(host: str | None) -> bool:
    """Say whether the host of a URL is this machine."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _checked_scopes(scopes: Any) -> tuple[str, ...] | None:
    if scopes is None:
        return None
    is_list = isinstance(scopes, Sequence) and not isinstance(scopes, str)
    # The characters of RFC 6749; one with a space would be two.
    if not is_list or not all(
        isinstance(scope, str) and scope and all("!" <= letter <= "~" and letter not in '"\\' for letter in scope)
        for scope in scopes
    ):
        raise ConfigError(f'OAuth(scopes=...) must be a list of names, such as ["read"], not {repr_of(scopes)}')
    return tuple(scopes)


def _is_url(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("https://", "http://")) and value.isprintable()


def _is_redirect(value: Any) -> bool:
    if not _is_url(value) or "#" in value:
        return False
    try:
        parts = urlsplit(value)
        is_valid = parts.port != 0 and bool(parts.hostname)
    except ValueError:  # such as a port that is not a number
        return False
    return is_valid and (parts.scheme == "https" or is_this_machine(parts.hostname))
