"""Keeps a connection with a server open."""

from collections.abc import Callable
from typing import Any

import anyio

from agentrt.errors import ToolError

_FIRST_RESTART_PAUSE = 1.0
_MAX_RESTART_PAUSE = 60.0


class ConnectionKeeper:
    """Opens a connection when it is first needed, and again after it has ended, with growing pauses between failures.

    `make` returns a connection that is not open yet; `on_change` is called when a connection has ended.
    """

    def __init__(self, make: Callable[[], Any], seconds: float, on_change: Callable[[], None]) -> None:
        self._make, self._seconds, self._on_change = make, seconds, on_change
        self._connection: Any = None
        self._opening = anyio.Lock(fast_acquire=True)
        self._start_scope: anyio.CancelScope | None = None  # of a start in progress, which closing ends
        self._failures, self._failed_at = 0, 0.0
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for the connection or for an answer of its server."""
        connection = self._connection
        return not self._opening.locked() and (connection is None or connection.is_idle)

    async def connection(self) -> Any:
        """Return the open connection; raises `ToolError` for a server that cannot be started."""
        # One at a time: calls side by side must not start a server each.
        async with self._opening:
            connection = self._connection
            if connection is not None and not connection.is_dead:
                return connection
            if connection is not None:
                # Before it is closed, which takes time: no other caller may find the dead connection.
                self._connection = None
                self._note_failure(after_answer=connection.has_answered)
                self._on_change()  # it may have other tools when it comes back
                await connection.close()
            new = self._make()
            try:
                with anyio.CancelScope() as self._start_scope:
                    if not self._is_closed:
                        await self._pause()
                        await new.open(self._seconds)
                        self._connection = new
                        return new
            except ToolError:
                self._note_failure()
                raise
            finally:
                self._start_scope = None
            raise ToolError("the toolset was closed")

    async def close(self) -> None:
        """Close the connection for good; a start in progress ends with `ToolError`."""
        self._is_closed = True
        # A call in progress may be starting the server again, and must not leave it behind.
        if self._start_scope is not None:
            self._start_scope.cancel()
        async with self._opening:
            connection, self._connection = self._connection, None
        # A call that is in progress gets the result "unknown": its connection has ended.
        if connection is not None:
            await connection.close()

    def _note_failure(self, *, after_answer: bool = False) -> None:
        self._failures = 1 if after_answer else self._failures + 1
        self._failed_at = anyio.current_time()

    async def _pause(self) -> None:
        # Counted from the failure: a call that comes later need not wait.
        if self._failures:
            pause = min(_MAX_RESTART_PAUSE, _FIRST_RESTART_PAUSE * 2.0 ** (self._failures - 1))
            await anyio.sleep_until(self._failed_at + pause)
