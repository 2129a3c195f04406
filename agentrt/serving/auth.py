"""Who a request comes from."""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from inspect import isawaitable

from starlette.requests import Request

from agentrt.errors import ConfigError
from agentrt.representation import never_raises
from agentrt.serving.failure import ApiError

__all__ = ["Authenticate", "BearerTokens", "identify"]

Authenticate = Callable[[Request], Awaitable[str | None]]
"""Returns the owner that a request comes from, `None` for one that is not known."""

_MAX_OWNER = 500  # characters: what the label of a session takes


class BearerTokens:
    """Knows owners by the token that they send as `Authorization: Bearer TOKEN`.

    Several tokens may be of one owner, so that one can be replaced while another is in use.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        items: object = tokens  # of any type, since callers are not all type-checked
        if not isinstance(items, Mapping) or not items:
            raise ConfigError(
                f"BearerTokens takes a dict of owners by their tokens, with at least one, not {type(tokens).__name__}"
            )
        # Digests: a lookup takes a time that says nothing about a token, and no token stays in memory.
        self._owners: dict[bytes, str] = {}
        for number, (token, owner) in enumerate(items.items(), 1):
            if not isinstance(token, str) or not token or not token.isascii() or any(map(str.isspace, token)):
                raise ConfigError(f"token {number} of BearerTokens must be ASCII text without spaces, and not empty")
            if not isinstance(owner, str) or not 1 <= len(owner) <= _MAX_OWNER:
                raise ConfigError(
                    f"the owner of token {number} of BearerTokens must be a str of 1 to {_MAX_OWNER} characters, "
                    f"not {owner!r:.100}"
                )
            self._owners[_token_digest(token)] = owner

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(set(self._owners.values()))} owners>"

    async def __call__(self, request: Request) -> str | None:
        """Return the owner of the token in the request, if there is one."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._owners.get(_token_digest(token.strip())) if scheme.lower() == "bearer" else None


async def identify(auth: Authenticate | None, request: Request) -> str | None:
    """Return the owner, `None` where there are none; raises `ApiError` for a request of nobody."""
    if auth is None:
        return None
    found: object = auth(request)
    owner = await found if isawaitable(found) else found
    if owner is None:
        raise ApiError(
            401,
            "unauthenticated",
            "this server does not know who sends this request: send an Authorization header that it knows",
            headers={"WWW-Authenticate": "Bearer"},
        )
    # An owner that is cut or empty could be that of another.
    if not isinstance(owner, str) or not 1 <= len(owner) <= _MAX_OWNER:
        raise ConfigError(f"auth must return a str of 1 to {_MAX_OWNER} characters or None, not {owner!r:.100}")
    return owner


def _token_digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
