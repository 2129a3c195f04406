"""Tasks of the runtime's own: the only file that starts one.

A generator must not hold a task group or cancel scope while it yields, so whatever has to run beside its consumer runs
in a *host*: one task that owns the scope, and that the consumer's side always stops and waits for.
"""

import asyncio
import logging
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any

import anyio

from agentrt.errors import AgentRTError, UsageError

__all__ = [
    "Host",
    "Mailbox",
    "Reaper",
    "Wish",
    "checkpoint",
    "in_event_loop",
    "inside_of",
    "running_trio",
    "shielded",
    "soon",
]

inside_of: ContextVar[frozenset[Hashable]] = ContextVar("agentrt_inside_of", default=frozenset())
"""The replies that the current task is working for; not their ids, which two conversations may share."""

_logger = logging.getLogger("agentrt")
_MAILBOX_SIZE = 64
_MOST_POSTED = 10_000
_STOP_SECONDS = 10.0
_tasks: set[asyncio.Task[None]] = set()
_orphans: list[Any] = []  # generators that are kept until an ending event loop has closed them


class Mailbox:
    """Events on their way from whoever makes them to the reply's stream, in order.

    `is_read` says that the reader of a `Host` takes them; otherwise the core of the reply does, between other events.
    """

    __slots__ = ("_freed", "_wanted", "is_read", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.is_read = False
        self._wanted: anyio.Event | None = None
        self._freed: anyio.Event | None = None

    def post(self, item: Any) -> None:
        """Leave an item at once; raises `UsageError` when ten thousand lie there that nobody has taken."""
        if len(self.items) >= _MOST_POSTED:
            raise UsageError(f"{_MOST_POSTED} events were emitted and none was taken: is anyone reading the stream?")
        self.items.append(item)
        self.wake()

    async def put(self, item: Any) -> None:
        """Leave an item as soon as there is room."""
        while len(self.items) >= _MAILBOX_SIZE:
            self._freed = self._freed or anyio.Event()
            await self._freed.wait()
        self.items.append(item)
        self.wake()

    def take(self) -> Iterator[Any]:
        """Yield what is there, until nothing is."""
        items = self.items
        while items:
            yield items.popleft()
        if self._freed is not None:
            self._freed.set()
            self._freed = None

    def keep(self, kind: type) -> None:
        """Drop everything else: what was left behind when the reading stopped early."""
        kept = [item for item in self.items if isinstance(item, kind)]
        self.items.clear()
        self.items.extend(kept)

    async def wait(self) -> None:
        """Return when something is there, or at a call of `wake`."""
        self._wanted = anyio.Event()
        await self._wanted.wait()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._wanted is not None:
            self._wanted.set()
            self._wanted = None


class Host:
    """Runs one coroutine function in a task of its own, and tells the mailbox's reader when it is over.

        async with Host(reply, mailbox, main) as host:
            while await host.running():
                for event in mailbox.take():
                    yield event
            result = await host.outcome()

    The task has the deadline of whoever enters the block, unless it is to have none. Leaving the block stops the task
    and waits for it, for a bounded time, whatever the reason for leaving.
    """

    __slots__ = (
        "_error",
        "_has_deadline",
        "_mailbox",
        "_main",
        "_over",
        "_reply",
        "_result",
        "_returned",
        "_scope",
        "_stopped",
    )

    def __init__(
        self, reply: Hashable, mailbox: Mailbox, main: Callable[[], Awaitable[Any]], *, has_deadline: bool = True
    ) -> None:
        self._reply = reply
        self._mailbox = mailbox
        self._main = main
        self._has_deadline = has_deadline
        self._over = False
        self._stopped: anyio.Event | None = None
        self._returned = False
        self._result: Any = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> "Host":
        self._mailbox.is_read = True
        deadline = anyio.current_effective_deadline() if self._has_deadline else math.inf
        self._scope = anyio.CancelScope(deadline=deadline)
        _spawn(self._run, self._end)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._mailbox.is_read = False
        if self._over:
            return
        self._stopped = anyio.Event()
        self._scope.cancel()
        if not await shielded(_STOP_SECONDS, self._stopped.wait):
            _logger.error("a tool or middleware did not stop within %s s of being cancelled", _STOP_SECONDS)

    async def running(self) -> bool:
        """Wait for something to take; `False` once the task is over and everything was taken."""
        if self._mailbox.items:
            return True
        if not self._over:
            await self._mailbox.wait()
        return bool(self._mailbox.items) or not self._over

    async def outcome(self) -> Any:
        """Return what the coroutine returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        if not self._returned:
            # Our own deadline, shared with the task, is the usual reason; then this is where it shows.
            await anyio.lowlevel.checkpoint()
            raise AgentRTError("a task of the runtime was cancelled from outside")
        return self._result

    async def _run(self) -> None:
        inside_of.set(inside_of.get() | {self._reply})
        try:
            with self._scope:
                self._result = await self._main()
                self._returned = True
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001  # handed to the side that waits, in `outcome`
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._over = True
        self._mailbox.wake()
        if self._stopped is not None:
            self._stopped.set()


class Reaper:
    """Closes a generator in a task of its own, on the event loop where the reaper was made; callable in any thread."""

    __slots__ = ("_soon", "loop")

    def __init__(self) -> None:
        trio = running_trio()
        self.loop = loop = asyncio.get_running_loop() if trio is None else None
        self._soon = loop.call_soon_threadsafe if loop else trio.lowlevel.current_trio_token().run_sync_soon

    def reap(self, generator: AsyncGenerator[Any, None]) -> None:
        """Have the generator closed soon; nothing happens when the loop is gone, and its generators with it."""

        async def close() -> None:
            leaving = (anyio.get_cancelled_exc_class(), KeyboardInterrupt, SystemExit)
            try:
                await generator.aclose()
            except leaving:
                raise
            except BaseException as error:  # noqa: BLE001  # nobody is left to raise it to; it would end trio's run
                _logger.error("closing an abandoned reply failed: %s", type(error).__name__)
                rest = error.subgroup(leaving) if isinstance(error, BaseExceptionGroup) else None
                if rest is not None:
                    raise rest from None

        def start() -> None:
            try:
                _spawn(close, _nothing)
            except RuntimeError:  # a trio that is ending takes no more tasks, but closes every generator that it finds
                _orphans[:] = [each for each in _orphans if each.ag_frame is not None]
                _orphans.append(generator)

        with suppress(RuntimeError):
            self._soon(start)


def _spawn(main: Callable[[], Any], end: Callable[[], None]) -> None:
    """Start a task; `end` is called when it is over, also when somebody cancelled it before it began."""
    trio = running_trio()
    if trio is not None:
        trio.lowlevel.spawn_system_task(main, context=copy_context())
        return
    task = asyncio.get_running_loop().create_task(main())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    task.add_done_callback(lambda _: end())


def _nothing() -> None:
    pass


def running_trio() -> Any:
    """Return the module trio where it runs the current code, `None` elsewhere."""
    trio = sys.modules.get("trio")
    lowlevel = getattr(trio, "lowlevel", None)  # missing while another thread is still importing trio
    return trio if lowlevel is not None and lowlevel.in_trio_run() else None


def soon() -> Callable[[Callable[[], object]], object]:
    """Return what has the running event loop call a function, from any thread or signal handler."""
    trio = running_trio()
    if trio is None:
        return asyncio.get_running_loop().call_soon_threadsafe
    return trio.lowlevel.current_trio_token().run_sync_soon  # type: ignore[no-any-return]  # trio is not imported here


class Wish:
    """Waits in its event loop for something that another thread may grant."""

    __slots__ = ("_event", "_soon", "result")

    def __init__(self) -> None:
        self._soon = soon()
        self._event = anyio.Event()
        self.result: str | BaseException | None = None

    async def granted(self) -> None:
        await self._event.wait()

    def grant(self, result: str | BaseException | None = None) -> bool:
        """Let the wait end; `False` when its event loop is gone."""
        self.result = result  # before the wait can end
        try:
            self._soon(self._event.set)
        except RuntimeError:
            self.result = None
            return False
        return True


async def checkpoint() -> None:
    """Let the event loop do its other work, and a cancellation come through, for half of what anyio takes for it."""
    trio = running_trio()
    await (asyncio.sleep(0) if trio is None else trio.lowlevel.checkpoint())


async def shielded(seconds: float, work: Callable[[], Awaitable[Any]]) -> bool:
    """Await `work()` for at most so long, whatever is cancelled meanwhile, and say whether it was done.

    A `task.cancel()` of asyncio's own goes through every shield, and may come in every turn of the event loop. So there
    the work runs once, in a task of its own, and only the wait for it starts again; then the cancellation is raised.
    """
    if running_trio() is not None:
        return await _run_in_time(seconds, work)
    task = asyncio.get_running_loop().create_task(_run_in_time(seconds, work))
    pierced: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except anyio.get_cancelled_exc_class() as error:
                pierced = error
    if pierced is not None:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not report it: the cancellation is raised in its place
        raise pierced
    return not task.cancelled() and task.result()  # only an event loop that ends cancels it


async def _run_in_time(seconds: float, work: Callable[[], Awaitable[Any]]) -> bool:
    with anyio.move_on_after(seconds, shield=True) as scope:
        await work()
    return not scope.cancelled_caught


def in_event_loop() -> bool:
    """Say whether this is called inside a running event loop."""
    if running_trio() is not None:
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
