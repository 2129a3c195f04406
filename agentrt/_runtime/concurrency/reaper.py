"""Closes the streams that nobody holds any more."""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Protocol

import anyio

from agentrt._runtime.concurrency.event_loop import running_trio, spawn


class Closable(Protocol):
    """A generator, or what can be closed like one."""

    def aclose(self) -> Awaitable[None]: ...


_logger = logging.getLogger("agentrt")
# Generators for a trio run that is ending to close: it closes all that are still alive, so they are kept here.
_orphans: list[Any] = []


class Reaper:
    """Closes a generator in a task of its own, on the event loop where the reaper was made; callable in any thread."""

    __slots__ = ("_call_soon", "loop")

    def __init__(self) -> None:
        trio = running_trio()
        # Found now, since a generator may be dropped in any thread, and while its loop ends.
        self.loop = loop = asyncio.get_running_loop() if trio is None else None
        self._call_soon = loop.call_soon_threadsafe if loop else trio.lowlevel.current_trio_token().run_sync_soon

    def reap(self, generator: Closable) -> None:
        """Have it closed soon; does nothing when the loop is gone, and its generators with it."""

        async def close() -> None:
            leaving = (anyio.get_cancelled_exc_class(), KeyboardInterrupt, SystemExit)
            try:
                await generator.aclose()
            except leaving:
                raise
            except BaseException as error:  # noqa: BLE001  # nobody is left to raise it to; it would end trio's run
                _logger.error("closing an abandoned reply failed: %s", type(error).__name__)
                # What ends a program, or cancels this task, still does.
                rest = error.subgroup(leaving) if isinstance(error, BaseExceptionGroup) else None
                if rest is not None:
                    raise rest from None

        def start() -> None:
            try:
                spawn(close)
            except RuntimeError:  # a trio run that is ending takes no more tasks
                _orphans[:] = [orphan for orphan in _orphans if getattr(orphan, "ag_frame", None) is not None]
                _orphans.append(generator)

        with suppress(RuntimeError):  # the loop is closed
            self._call_soon(start)
