"""The SDK's client that conversations share, and what a server says with a status that is not a success."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import anyio

__all__ = ["CLOSE_SECONDS", "SharedClient", "Unsuccessful", "raise_for_status"]

CLOSE_SECONDS = 5.0  # for closing a connection
_MAX_ERROR_BYTES = 65_536
_MAX_ERROR_SECONDS = 5.0


class SharedClient:
    """An SDK's client and who uses it; one that was given up is closed by the last to leave."""

    def __init__(self, sdk: Any) -> None:
        self.sdk = sdk
        # Weak, so that a stream that was dropped without being closed no longer counts. That rests on reference
        # counting: without it, such a stream counts until it is collected.
        self._users: WeakSet[object] = WeakSet()
        self._is_given_up = False

    def enter(self, user: object) -> None:
        """Note that `user` uses the client; any object will do, since only its identity matters."""
        self._users.add(user)

    async def leave(self, user: object) -> None:
        """Note that `user` is done; closes the client if it was given up and has no other user."""
        self._users.discard(user)
        await self._close_if_unused()

    async def give_up(self) -> None:
        """Close the client, at once or with the last of its users."""
        self._is_given_up = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_given_up and not self._users:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.sdk.close()


class Unsuccessful(Exception):
    """The server answered with a status that is not a success; never leaves the package."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"status {status}")  # the SDKs may log it
        self.status = status
        self.headers = headers
        self.body = body


async def raise_for_status(response: Any) -> None:
    """Raise `Unsuccessful` for a status that is not a success; a hook for responses of httpx2's clients.

    The SDKs read such a body to its end, and when that fails, or never ends, its status is lost.
    """
    if response.is_success:
        return
    body = bytearray()
    # At most half of what the call has left: the status must still be reported in time.
    seconds_left = anyio.current_effective_deadline() - anyio.current_time()
    with anyio.move_on_after(min(_MAX_ERROR_SECONDS, seconds_left / 2)) as scope, suppress(Exception):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= _MAX_ERROR_BYTES:
                scope.cancel()  # httpx2's generators are left suspended by a `break`
    raise Unsuccessful(response.status_code, response.headers, bytes(body[:_MAX_ERROR_BYTES]))
