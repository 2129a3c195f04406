"""The login of one owner at one server: the flow of the SDK, with what it must remember between processes."""

import re
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, PKCEParameters
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import issuers_match, union_scopes
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, PrivateAttr

from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.oauth.settings import OAuth, OAuthClient, is_this_machine
from agentrt.types import JSONObject

SendLoginRequest = Callable[[httpx2.Request], Awaitable[httpx2.Response]]

_PENDING_SECONDS = 30 * 24 * 3600.0
_KEPT_SECONDS = 365 * 24 * 3600.0
_TOKEN_ERROR = re.compile(
    r'"error"\s*:\s*"(access_denied|invalid_[a-z]{1,30}|unauthorized_client|unsupported_grant_type|server_error|'
    r'temporarily_unavailable)"'
)

_FAILURES_OF_SDK = {
    r"^Protected resource .* does not match": "its metadata is for another resource",
    r"issuer mismatch|iss mismatch|missing iss": "its authorization server says that it is another one",
    r"^Registration failed|^Invalid registration|registered the client": (
        "its authorization server does not register clients by itself: register one, and give OAuth(client=...)"
    ),
}


class _StoredLogin(OAuthClientProvider):
    """The storage of the SDK's flow: the tokens of an owner, and the metadata of the server that gave them."""

    oauth: OAuth
    owner: str
    server_url: str
    refused = ""  # the access token that the server has refused
    is_stale = True  # the store may have another login than this one
    _forgotten = 0  # how many logins had been deleted when the store was read
    _client: JSONObject | None = None  # that the tokens were given to

    @property
    def has_login(self) -> bool:
        """Whether a request may be sent without asking the store first: with a token, or before any refusal."""
        context = self.context
        self.is_stale = self.is_stale or self._forgotten != self.oauth.forgotten
        return self._initialized and not self.is_stale and (context.current_tokens is None or context.is_token_valid())

    @property
    def secrets(self) -> list[str]:
        """The secrets to mask in messages."""
        tokens, client = self.context.current_tokens, self.context.client_info
        found = (tokens and tokens.access_token, tokens and tokens.refresh_token, client and client.client_secret)
        return [secret for secret in found if secret]

    def remember(self) -> JSONObject:
        """Return what another process needs to continue: whose login it is, and the metadata that was checked."""
        context = self.context
        return {
            "owner": self.owner,
            "server": self.server_url,
            "scope": context.client_metadata.scope,
            "protocol": context.protocol_version,
            "issuer": context.auth_server_url,
            "client": _entry_of(context.client_info),
            "metadata": _entry_of(context.oauth_metadata),
            "resource": _entry_of(context.protected_resource_metadata),
        }

    def restore(self, entry: JSONObject) -> None:
        """Take over what `remember` returned."""
        context = self.context
        context.protocol_version = context.protocol_version or entry["protocol"]
        context.auth_server_url = entry["issuer"]
        context.oauth_metadata = metadata_of(entry)
        resource = entry["resource"]
        context.protected_resource_metadata = resource and ProtectedResourceMetadata.model_validate(resource)

    def authorize(self, request: httpx2.Request) -> None:
        """Give the request the token, in place of the one that it may have."""
        request.headers.pop("authorization", None)
        self._add_auth_header(request)

    def reload_if_stale(self) -> None:
        """Have the flow read the store before its next request, if another login may be there."""
        if self.is_stale:
            self._initialized = False

    @property
    def _key(self) -> tuple[str, ...]:
        return self.oauth.key_of(self.server_url, self.owner)

    async def _initialize(self) -> None:
        self._forgotten = self.oauth.forgotten  # before the store is read
        await super()._initialize()  # type: ignore[no-untyped-call,unused-ignore]
        self.is_stale = False

    async def get_tokens(self) -> OAuthToken | None:
        entry = await self.oauth.store.get(*self._key)
        if entry is None or entry["tokens"]["access_token"] == self.refused:
            return None
        self.restore(entry)
        self._client = entry["client"]
        self.context.token_expiry_time = entry["expires_at"]
        return OAuthToken.model_validate(entry["tokens"])

    async def set_tokens(self, tokens: OAuthToken) -> None:
        entry = {**self.remember(), "tokens": _entry_of(tokens), "expires_at": self.context.token_expiry_time}
        await self.oauth.store.put(*self._key, entry=entry, seconds=_KEPT_SECONDS)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        client = self.oauth.client
        if isinstance(client, OAuthClient):
            return OAuthClientInformationFull(
                client_id=client.client_id,
                client_secret=client.secret,
                redirect_uris=[AnyUrl(self.oauth.redirect_uri)],
                token_endpoint_auth_method="none" if client.secret is None else f"client_secret_{client.secret_in}",
                issuer=client.issuer,
            )
        # Tokens are good for the client that they were given to. A new login is by the one of all owners, since a
        # registration belongs to the application.
        entry = self._client or await self.oauth.store.get("client", self.server_url, self.oauth.redirect_uri)
        client_info = None if entry is None else OAuthClientInformationFull.model_validate(entry)
        is_expired = client_info is not None and 0 < (client_info.client_secret_expires_at or 0) < time.time()
        return None if is_expired else client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if isinstance(self.oauth.client, OAuthClient):
            raise RefusedLogin("it leads to another authorization server than the issuer of the client")
        entry = _entry_of(client_info)
        await self.oauth.store.put(
            "client", self.server_url, self.oauth.redirect_uri, entry=entry, seconds=_KEPT_SECONDS
        )

    async def drop(self) -> None:
        """Forget the tokens that the server refused, unless another process has new ones."""
        tokens = self.context.current_tokens
        self.refused = tokens.access_token if tokens is not None else self.refused
        self.context.clear_tokens()
        self.is_stale = True
        self._client = None
        if tokens is not None and await self.get_tokens() is None:
            taken = await self.oauth.store.take(*self._key)
            if taken is not None and taken["tokens"]["access_token"] != self.refused:
                # Another process has stored new ones since the line before the last.
                await self.oauth.store.put(*self._key, entry=taken, seconds=_KEPT_SECONDS)


class CodeProvider(_StoredLogin):
    """Logs a user in with an authorization code; raises `LoginNeeded` where the user must agree first."""

    def __init__(self, oauth: OAuth, owner: str, server_url: str) -> None:
        self.oauth, self.owner, self.server_url = oauth, owner, server_url
        self.demanded: str | None = None  # scopes that the last refusal named
        self._is_refreshing = False
        is_local = is_this_machine(urlsplit(oauth.redirect_uri).hostname)
        super().__init__(
            server_url,
            _ScopedMetadata(
                self,
                redirect_uris=[AnyUrl(oauth.redirect_uri)],
                client_name="agentrt",
                application_type="native" if is_local else "web",
            ),
            storage=self,
            redirect_handler=self._ask,
            callback_handler=self._callback,
            client_metadata_url=oauth.client if isinstance(oauth.client, str) else None,
        )

    def scope_of(self, listed: str | None) -> str | None:
        """Return the scopes to ask for: those of the user and those of a refusal, or else those that are `listed`."""
        if self.oauth.scopes is None:
            return listed
        granted = self.context.current_tokens.scope if self.context.current_tokens else None
        scope = union_scopes(union_scopes(" ".join(self.oauth.scopes), granted), self.demanded)
        # Without it, many servers give no token that can be refreshed.
        return union_scopes(scope, "offline_access" if "offline_access" in (listed or "").split() else None)

    async def exchange(self, pending: JSONObject, code: str, send: SendLoginRequest) -> None:
        """Exchange the code that a user's consent gave for tokens, in the login that `begin` has stored."""
        self.restore(pending)
        self.context.client_info = OAuthClientInformationFull.model_validate(pending["client"])
        self.context.client_metadata.scope = pending["scope"]
        request = await self._exchange_token_authorization_code(code, pending["verifier"])
        await self._handle_token_response(await send(request))

    def _select_authorization_server(self, advertised: list[str]) -> str:
        client = self.oauth.client
        issuer = client.issuer if isinstance(client, OAuthClient) else None
        matching = (server for server in advertised if issuer is not None and issuers_match(server, issuer))
        return next(matching, advertised[0])

    async def _perform_authorization(self) -> httpx2.Request:
        tokens, scopes = self.context.current_tokens, set((self.context.client_metadata.scope or "").split())
        # The SDK refreshes by the clock alone. A server may refuse a token earlier, and no user is needed then.
        self._is_refreshing = bool(
            tokens and tokens.refresh_token and tokens.access_token != self.refused and self._covers(tokens, scopes)
        )
        if self._is_refreshing:
            return await self._refresh_token()
        return await super()._perform_authorization()

    def _covers(self, tokens: OAuthToken, scopes: set[str]) -> bool:
        demanded = set((self.demanded or "").split())
        return (demanded or scopes) <= set((tokens.scope or "").split())

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if not self._is_refreshing:
            await super()._handle_token_response(response)
            return
        self._is_refreshing = False
        if not await self._handle_refresh_response(response):
            await super()._perform_authorization()  # which stops to ask the user

    async def _handle_refresh_response(self, response: httpx2.Response) -> bool:
        tried = self.context.current_tokens
        if response.status_code == 429 or response.status_code >= 500:
            # Nothing is dropped for a server that has a bad day.
            raise RefusedLogin(f"its authorization server answered with the status {response.status_code}: try again")
        if await super()._handle_refresh_response(response):
            return True
        # Another process may have used the refresh token, which is good for one use.
        stored = await self.get_tokens()
        if stored is not None and tried is not None and stored.access_token != tried.access_token:
            self.context.current_tokens = stored
            return True
        self.context.current_tokens = tried
        await self.drop()
        return False

    async def _ask(self, url: str) -> None:
        self.is_stale = True  # the callback may come to another process, which stores the tokens
        # Without a user name, which can look like the host of another server.
        raise LoginNeeded(urlsplit(url).netloc.rpartition("@")[2], partial(self._begin, url, self.remember()))

    async def _begin(self, url: str, pending: JSONObject, question: JSONObject) -> str:
        # The SDK keeps its own verifier in this process alone.
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        entry = {**pending, "verifier": pkce.code_verifier, "question": question}
        await self.oauth.store.put(*pending_key(state), entry=entry, seconds=_PENDING_SECONDS)
        return str(httpx2.URL(url).copy_merge_params({"code_challenge": pkce.code_challenge, "state": state}))

    async def _callback(self) -> AuthorizationCodeResult:
        raise AssertionError("the user was not asked")


class MachineProvider(_StoredLogin, ClientCredentialsOAuthProvider):
    """Logs the process in, by the secret of its client."""

    demanded: str | None = None

    def __init__(self, oauth: OAuth, server_url: str) -> None:
        self.oauth, self.owner, self.server_url = oauth, "", server_url
        client = oauth.client
        assert isinstance(client, OAuthClient)
        assert client.secret is not None
        super().__init__(
            server_url,
            storage=self,
            client_id=client.client_id,
            client_secret=client.secret,
            token_endpoint_auth_method="client_secret_basic" if client.secret_in == "basic" else "client_secret_post",
            scope=None if oauth.scopes is None else " ".join(oauth.scopes),
            issuer=client.issuer,
        )


class _ScopedMetadata(OAuthClientMetadata):
    """Metadata in which the SDK notes the scopes that a server lists, while its user may have chosen others."""

    _provider: Any = PrivateAttr(None)

    def __init__(self, provider: CodeProvider, **fields: Any) -> None:
        super().__init__(**fields)
        self._provider = provider

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._provider.scope_of(value) if name == "scope" else value)


def metadata_of(entry: JSONObject) -> OAuthMetadata | None:
    """Return the metadata of the authorization server in an entry of the store."""
    return None if entry["metadata"] is None else OAuthMetadata.model_validate(entry["metadata"])


def pending_key(state: str) -> tuple[str, str]:
    """Return the key of a login that waits for its callback."""
    return "pending", sha256(state.encode("utf-8", "replace")).hexdigest()


class RefusedLogin(OAuthFlowError):
    """A login that is not continued, for a reason in our own words."""


def describe_failure(error: Exception) -> str:
    """Return why a login failed, without what a server said, which may repeat a secret."""
    text = str(error)
    if isinstance(error, RefusedLogin):
        return text
    # In the words of the standard, which everybody can look up.
    if code := _TOKEN_ERROR.search(text):
        return code[1]
    return next(
        (words for pattern, words in _FAILURES_OF_SDK.items() if re.search(pattern, text)), type(error).__name__
    )


def _entry_of(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)
