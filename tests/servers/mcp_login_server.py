"""An MCP server that wants a login, with the authorization server of the SDK beside it; prints its port.

Each login is that of a new user, "user-1", "user-2" and so on. All that is secret in it begins with "canary-".
"""

import secrets
import socket
import sys
import time
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CANARY = "canary-"


class Users(OAuthAuthorizationServerProvider[Any, Any, Any]):
    """Every user agrees at once; tokens are opaque, and refresh tokens are good for one use."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.refresh_tokens: dict[str, RefreshToken] = {}
        self.is_down = False
        self.counts = {"logins": 0, "refreshes": 0, "registrations": 0}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.counts["registrations"] += 1
        if client_info.client_secret:
            client_info.client_secret = f"{CANARY}secret-{client_info.client_secret}"
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.counts["logins"] += 1
        code = AuthorizationCode(
            code=f"{CANARY}code-{secrets.token_hex(16)}",
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            subject=f"user-{self.counts['logins']}",
            **params.model_dump(include={"code_challenge", "redirect_uri", "redirect_uri_provided_explicitly"}),
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.subject)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh_tokens.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.is_down:
            raise RuntimeError
        self.counts["refreshes"] += 1
        del self.refresh_tokens[refresh_token.token]
        return self._issue(client, scopes, refresh_token.subject)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: Any) -> None:
        self.tokens.pop(token.token, None)

    def _issue(self, client: OAuthClientInformationFull, scopes: list[str], subject: str | None) -> OAuthToken:
        access, refresh = (f"{CANARY}{kind}-{secrets.token_hex(16)}" for kind in ("access", "refresh"))
        owner: Any = {"client_id": client.client_id, "scopes": scopes, "subject": subject}
        self.tokens[access] = AccessToken(token=access, **owner)
        self.refresh_tokens[refresh] = RefreshToken(token=refresh, **owner)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes))


def make_server(port: int) -> Any:
    users, origin = Users(), f"http://127.0.0.1:{port}"
    server = MCPServer(
        "s",
        auth_server_provider=users,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(origin),
            resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
            required_scopes=["read"],
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["read"], default_scopes=["read"]
            ),
            validate_token_resource=False,
        ),
    )

    @server.tool()
    def whoami() -> str:
        """Return the user whose token the request has."""
        token = get_access_token()
        return "nobody" if token is None else str(token.subject)

    @server.resource("users://me")
    def me() -> str:
        return whoami()

    async def control(request: Request) -> Response:
        """Do what an administrator would: "access" revokes access tokens, "all" refresh tokens too; or "down"."""
        users.is_down = "down" in request.query_params
        what = request.query_params.get("revoke")
        if what is not None:
            users.tokens.clear()
        if what == "all":
            users.refresh_tokens.clear()
        return JSONResponse(users.counts)

    server.custom_route("/control", methods=["GET"])(control)
    return server.streamable_http_app()


def main() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(make_server(port), log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
