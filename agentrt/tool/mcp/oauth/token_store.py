"""The tokens of all owners: each belongs to an owner and a server, and leaves the process only encrypted."""

import json
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from agentrt._runtime.hidden import NotPickled
from agentrt._runtime.options import import_extra
from agentrt._runtime.representation import never_raises
from agentrt.errors import ConfigError, StoreError
from agentrt.types import JSONObject


class TokenStore(NotPickled):
    """Keeps the tokens of MCP servers, encrypted with `key` at any place but memory.

    `url` is "memory:", "file:tokens.json", "sqlite:tokens.db", "postgresql://host/database" or "redis://host". Files
    have the mode 600. `key` is a key of Fernet, as `TokenStore.new_key()` returns it, or several: the first encrypts,
    and all decrypt, so that a key can be replaced. Neither owners nor servers can be read at the place, and an entry
    that was moved to another owner is refused.
    """

    def __init__(self, url: str = "memory:", *, key: str | Sequence[str] | None = None) -> None:
        from agentrt.tool.mcp.oauth.token_rows import open_rows  # here, since it loads databases

        self._rows = open_rows(url)
        if key is None and url != "memory:":
            raise ConfigError(
                f"TokenStore in {self._rows.place} needs key=..., since tokens are stored encrypted: make one with "
                f"TokenStore.new_key(), and keep it where your other secrets are"
            )
        self._fernet = None if key is None else self._make_fernet(key)

    @staticmethod
    def new_key() -> str:
        """Return a new random key."""
        return str(import_extra("TokenStore", "mcp", "cryptography", "fernet").fernet.Fernet.generate_key().decode())

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._rows.place}>"

    async def get(self, *key: str) -> JSONObject | None:
        """Return the entry of this key, `None` without one."""
        return self._open(key, await self._rows.read(row_key(key)))

    async def put(self, *key: str, entry: JSONObject, seconds: float) -> None:
        """Keep an entry for so long, in place of the one that the key has."""
        # With its key, so that one who can write to the place cannot give an owner the token of another.
        text = json.dumps([key, entry]).encode()
        value = text if self._fernet is None else self._fernet.encrypt(text)
        await self._rows.write(row_key(key), value, time.time() + seconds)

    async def take(self, *key: str) -> JSONObject | None:
        """Remove the entry of this key and return it; of several callers, one gets it."""
        return self._open(key, await self._rows.take(row_key(key)))

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones."""
        await self._rows.aclose()

    async def __aenter__(self) -> "TokenStore":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @staticmethod
    def _make_fernet(key: Any) -> Any:
        fernet = import_extra("TokenStore", "mcp", "cryptography", "fernet").fernet
        keys = [key] if isinstance(key, str) else key
        try:
            return fernet.MultiFernet([fernet.Fernet(one) for one in keys])
        except (ValueError, TypeError):
            pass
        # Outside of the `except`, whose error may quote the key.
        raise ConfigError(
            f"TokenStore(key=...) must be a key as TokenStore.new_key() returns it, or a list of such, not "
            f"{type(key).__name__} of another form"
        )

    def _open(self, key: tuple[str, ...], value: bytes | None) -> JSONObject | None:
        if value is None:
            return None
        kept_key: list[str] = []
        entry: JSONObject = {}
        problem = "it was stored for another owner or server"
        try:
            kept_key, entry = json.loads(value if self._fernet is None else self._fernet.decrypt(value))
        except Exception as error:  # noqa: BLE001  # InvalidToken, of a package that may be missing
            problem = type(error).__name__
        if kept_key == [*key]:
            return entry
        raise StoreError(
            f"a token in {self._rows.place} cannot be read ({problem}): if its key was replaced, give both, as in "
            f"TokenStore(url, key=[new, old]); else remove the entry"
        )


def row_key(key: tuple[str, ...]) -> str:
    """Return the key of an entry at its place, from which neither owner nor server can be read."""
    return sha256(json.dumps(key).encode()).hexdigest()
