"""Runs one reply in the event loop's thread, while the main thread waits and can be interrupted."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import anyio
from anyio.from_thread import BlockingPortal

_WAIT_SECONDS = 0.5  # at a time; on Windows Ctrl-C does not arrive while a thread waits


class ReplyRunner:
    """Runs a coroutine function to its end, or until Ctrl-C; must be used in the main thread.

    Ctrl-C cancels it and waits until it has cleaned up; pressed again, it raises
    `KeyboardInterrupt`.
    """

    def __init__(self, portal: BlockingPortal, main: Callable[[], Awaitable[object]]) -> None:
        self._portal = portal
        self._main = main
        self._scope: anyio.CancelScope | None = None
        self._is_stopping = False

    def run(self) -> None:
        """Run the function; its errors are raised, except the cancellation."""
        signals: SimpleQueue[str] = SimpleQueue()  # a signal handler may fill it at any moment
        before = signal.signal(signal.SIGINT, lambda *_: signals.put("interrupt"))
        try:
            future = self._portal.start_task_soon(self._run)
            future.add_done_callback(lambda _: signals.put("done"))
            while True:
                with suppress(Empty):
                    if signals.get(timeout=_WAIT_SECONDS) == "done":
                        break
                    if self._is_stopping:
                        raise KeyboardInterrupt  # the second time: the user does not want to wait
                    self._is_stopping = True
                    self._portal.start_task_soon(self._cancel)
            future.result()
        finally:
            signal.signal(signal.SIGINT, before)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        with anyio.CancelScope() as self._scope:
            await self._main()
