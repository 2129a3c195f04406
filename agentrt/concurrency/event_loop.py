"""The running event loop, asyncio or trio: the only file that starts a task of the runtime."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any

import anyio

__all__ = [
    "CrossThreadEvent",
    "call_soon_function",
    "checkpoint",
    "in_event_loop",
    "run_shielded",
    "running_trio",
    "spawn",
]

# The event loop of asyncio keeps no strong reference to a task, so one that waits could be collected in the middle.
_running_tasks: set[asyncio.Task[None]] = set()


def running_trio() -> Any:
    """Return the module trio where it runs the current code, `None` elsewhere."""
    trio = sys.modules.get("trio")
    lowlevel = getattr(trio, "lowlevel", None)  # missing while another thread is still importing trio
    return trio if lowlevel is not None and lowlevel.in_trio_run() else None


def in_event_loop() -> bool:
    """Say whether this is called inside a running event loop."""
    if running_trio() is not None:
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def call_soon_function() -> Callable[[Callable[[], object]], object]:
    """Return the function that has the running event loop call another one, from any thread or signal handler."""
    trio = running_trio()
    if trio is None:
        return asyncio.get_running_loop().call_soon_threadsafe
    return trio.lowlevel.current_trio_token().run_sync_soon  # type: ignore[no-any-return]  # trio is not imported here


def spawn(main: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None = None) -> None:
    """Start a task. On asyncio `on_end` is called when it is over, also when it was cancelled before it began.

    A system task of trio is cancelled only with its whole run, so there the task can call it.
    """
    trio = running_trio()
    if trio is not None:
        trio.lowlevel.spawn_system_task(main, context=copy_context())
        return
    task = asyncio.get_running_loop().create_task(main())
    _running_tasks.add(task)
    task.add_done_callback(_running_tasks.discard)
    if on_end is not None:
        task.add_done_callback(lambda _: on_end())


class CrossThreadEvent:
    """Waits in its event loop until another thread sets it, with a result perhaps."""

    __slots__ = ("_call_soon", "_event", "result")

    def __init__(self) -> None:
        self._call_soon = call_soon_function()
        self._event = anyio.Event()
        self.result: str | BaseException | None = None

    async def wait(self) -> None:
        await self._event.wait()

    def set(self, result: str | BaseException | None = None) -> bool:
        """End the wait; returns `False` when its event loop is gone."""
        self.result = result  # first: the wait may end at once, in another thread
        try:
            self._call_soon(self._event.set)
        except RuntimeError:
            self.result = None
            return False
        return True


async def checkpoint() -> None:
    """Let the event loop do its other work and raise a cancellation, at half the cost of anyio's own checkpoint."""
    trio = running_trio()
    await (asyncio.sleep(0) if trio is None else trio.lowlevel.checkpoint())


async def run_shielded(seconds: float, work: Callable[[], Awaitable[object]]) -> bool:
    """Await `work()` for at most this many seconds, whatever is cancelled meanwhile; returns whether it was done.

    A `task.cancel()` of asyncio goes through every shield, and may come in every turn of the event loop. So there the
    work runs once, in a task of its own, and only the wait for it starts again; then the cancellation is raised.
    """
    if running_trio() is not None:
        return await _run_in_time(seconds, work)
    task = asyncio.get_running_loop().create_task(_run_in_time(seconds, work))
    cancellation: BaseException | None = None
    with anyio.CancelScope(shield=True):  # against the scopes of anyio, which would cancel each wait anew
        while not task.done():
            try:
                await asyncio.wait([task])
            except anyio.get_cancelled_exc_class() as error:
                cancellation = error
    if cancellation is not None:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not report it: the cancellation is raised in its place
        raise cancellation
    return not task.cancelled() and task.result()  # only an event loop that ends cancels it


async def _run_in_time(seconds: float, work: Callable[[], Awaitable[object]]) -> bool:
    with anyio.move_on_after(seconds, shield=True) as scope:
        await work()
    return not scope.cancelled_caught
