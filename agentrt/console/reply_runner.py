"""One reply, running in the event loop's thread while the main thread waits and can be interrupted."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["Turn"]

_T = TypeVar("_T")
_BLINK = 0.5  # seconds; on Windows Ctrl-C is not heard while a thread waits


class Turn:
    """Runs a coroutine function to its end, or until Ctrl-C; must be used in the main thread.

    Ctrl-C cancels what runs and waits until that has put everything in order; pressed again, it raises
    `KeyboardInterrupt`.
    """

    def __init__(self, portal: BlockingPortal, main: Callable[[], Awaitable[_T]]) -> None:
        self._portal = portal
        self._main = main
        self._scope: anyio.CancelScope | None = None
        self._stopped = False

    def run(self) -> None:
        """Run it; what it raises is raised, but for the cancellation."""
        news: SimpleQueue[str] = SimpleQueue()  # may be filled by a signal handler, at any moment
        before = signal.signal(signal.SIGINT, lambda *_: news.put("interrupt"))
        try:
            future = self._portal.start_task_soon(self._run)
            future.add_done_callback(lambda _: news.put("done"))
            while _next(news) != "done":
                self._interrupt()
            future.result()
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self) -> None:
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True
        self._portal.start_task_soon(self._cancel)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        with anyio.CancelScope() as self._scope:
            await self._main()


def _next(news: SimpleQueue[str]) -> str:
    while True:
        with suppress(Empty):
            return news.get(timeout=_BLINK)
