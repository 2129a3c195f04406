"""Authentication: the owner of a request."""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from inspect import isawaitable
from typing import Any

from starlette.requests import Request

from agentrt._runtime.representation import never_raises
from agentrt.errors import ConfigError
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.owner import Owner, Owners, check_owner_name

Authenticate = Callable[[Request], Awaitable[str | None]]
"""Returns the owner of a request, or `None` if the sender is unknown."""


class BearerTokens:
    """Finds the owner by the token in `Authorization: Bearer TOKEN`.

    An owner may have several tokens, so one can be replaced while another is in use.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        items: object = tokens  # of any type, since callers are not all type-checked
        if not isinstance(items, Mapping) or not items:
            raise ConfigError(f"BearerTokens takes a non-empty dict from tokens to owners, not {type(tokens).__name__}")
        # Digests: a lookup takes a time that says nothing about a token, and no token stays in memory.
        self._owners: dict[bytes, str] = {}
        for number, (token, owner) in enumerate(items.items(), 1):
            if not isinstance(token, str) or not token or not token.isascii() or any(map(str.isspace, token)):
                raise ConfigError(f"token {number} of BearerTokens must be ASCII text without spaces, and not empty")
            check_owner_name(owner, f"the owner of token {number} of BearerTokens")
            self._owners[_token_digest(token)] = owner

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(set(self._owners.values()))} owners>"

    async def __call__(self, request: Request) -> str | None:
        """Return the owner of the request's token, or `None`."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._owners.get(_token_digest(token.strip())) if scheme.lower() == "bearer" else None


async def identify(auth: Authenticate | None, owners: Owners, request: Request) -> Owner:
    """Return the owner of a request; raises `ApiError` for an unknown one, and `ConfigError` for an invalid name."""
    if auth is None:
        return owners.get(None)
    found: Any = auth(request)
    owner = await found if isawaitable(found) else found
    if owner is None:
        raise ApiError(
            401,
            "unauthenticated",
            "this request is not authenticated: send a valid Authorization header",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return owners.get(owner)


def _token_digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
