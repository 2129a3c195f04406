"""The running event loop, asyncio or trio: the only file that starts a task of the runtime."""

import asyncio
import sys
from asyncio.tasks import _enter_task, _leave_task  # documented for those who step tasks themselves
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import cache
from typing import Any, Protocol

import anyio.lowlevel
from anyio.abc import AsyncBackend

RESPONSES_PER_CHECKPOINT = 256
"""After this many responses of a stream its reader lets the event loop do its other work."""

# The event loop of asyncio keeps no strong reference to a task, so one that waits could be collected in the middle.
_running_tasks: set[asyncio.Task[None]] = set()

# What a future says of itself while it is handed over to the task that awaits it; `asyncio.isfuture` looks for it too.
_HANDED_OVER = "_asyncio_future_blocking"


def running_trio() -> Any:
    """Return the module trio where it runs the current code, `None` elsewhere."""
    trio = sys.modules.get("trio")
    lowlevel = getattr(trio, "lowlevel", None)  # missing while another thread is still importing trio
    return trio if lowlevel is not None and lowlevel.in_trio_run() else None


def running_loop() -> object:
    """Return what stands for the running event loop, and is alive for as long as it: the same in each call."""
    # What anyio's `current_token` returns, at a tenth of its price.
    trio = running_trio()
    return asyncio.get_running_loop() if trio is None else trio.lowlevel.current_trio_token()


class Event(Protocol):
    """An event of an event loop."""

    def set(self) -> object: ...
    async def wait(self) -> object: ...


# anyio's own look up the event loop at each call, which costs more than all that they do.


def new_event() -> Event:
    """Return an event for tasks of the running event loop."""
    trio = running_trio()
    return asyncio.Event() if trio is None else trio.Event()


def new_cancel_scope(deadline: float) -> Any:
    """Return a cancel scope for a task of the running event loop; one of anyio where asyncio runs."""
    trio = running_trio()
    make: Callable[..., Any] = _asyncio_backend().create_cancel_scope if trio is None else trio.CancelScope
    return make(deadline=deadline)


@cache
def _asyncio_backend() -> type[AsyncBackend]:
    return anyio.lowlevel.current_token().backend_class


def current_deadline() -> float:
    """Return the nearest deadline of the scopes that the current task is in."""
    trio = running_trio()
    backend: Any = _asyncio_backend() if trio is None else trio
    deadline: float = backend.current_effective_deadline()
    return deadline


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


def spawn(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    trio = running_trio()
    if trio is None:
        _keep(asyncio.get_running_loop().create_task(main()))
    else:
        trio.lowlevel.spawn_system_task(main, context=copy_context())


def spawn_and_step(main: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Start a task and, on asyncio, take its first step before returning: what never waits is over by then.

    The step has its own context, and is the new task's by every measure. Returns whether it has cancelled the caller,
    who should then wait once, so that the cancellation arrives here and not wherever the caller waits next. Where the
    user has a task factory, it decides when the task begins: one may put code of its own around the coroutine.
    """
    if running_trio() is not None:
        spawn(main)
        return False
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    cancellations = 0 if caller is None else caller.cancelling()
    if loop.get_task_factory() is not None:
        task, is_over = loop.create_task(main()), False  # without a context, which a factory need not take
    elif sys.version_info >= (3, 12):
        task = asyncio.Task(main(), loop=loop, eager_start=True)
        is_over = task.done()
    else:
        task, is_over = _step_new_task(loop, caller, main())
    if not is_over:
        _keep(task)
    return caller is not None and caller.cancelling() > cancellations


def _keep(task: asyncio.Task[None]) -> None:
    _running_tasks.add(task)
    task.add_done_callback(_running_tasks.discard)


def _step_new_task(
    loop: asyncio.AbstractEventLoop, caller: asyncio.Task[Any] | None, coroutine: Coroutine[Any, Any, None]
) -> tuple[asyncio.Task[None], bool]:
    """Do what an eager task does where asyncio has none; returns whether the work is over as well.

    Then the event loop holds the task, which has one step left.
    """
    context = copy_context()
    stepped = _SteppedCoroutine(coroutine)
    task: asyncio.Task[None] = asyncio.Task(stepped, loop=loop, context=context)
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        context.run(stepped.take_first_step)
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return task, stepped.is_over


class _SteppedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose first step is taken before that of its task, which then repeats what came of it."""

    __slots__ = ("_awaited", "_coroutine", "_error", "_is_repeated", "_waits_for_future", "is_over")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._is_repeated = False
        self.is_over = False
        self._awaited: Any = None
        self._waits_for_future = False
        self._error: BaseException | None = None

    def take_first_step(self) -> None:
        try:
            self._awaited = awaited = self._coroutine.send(None)
        except StopIteration:
            self.is_over = True
        except BaseException as error:  # noqa: BLE001  # raised in the task
            self._error = error
        else:
            if getattr(awaited, _HANDED_OVER, None):
                setattr(awaited, _HANDED_OVER, False)  # as a task does that takes it: others may await it meanwhile
                self._waits_for_future = True

    def send(self, value: None) -> Any:
        if self._is_repeated:
            return self._coroutine.send(value)
        return self._repeat_first_step()

    def throw(self, *error: Any) -> Any:
        # A task that is cancelled cancels what it waits for, and is given its cancellation by that.
        if self._is_repeated or not (self.is_over or self._error is not None or self._cancel_awaited(error[0])):
            self._is_repeated = True
            return self._coroutine.throw(*error)
        return self._repeat_first_step()

    def _repeat_first_step(self) -> Any:
        self._is_repeated = True
        if self.is_over:
            raise StopIteration
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame: they would keep each other alive
        awaited, self._awaited = self._awaited, None
        if self._waits_for_future:
            setattr(awaited, _HANDED_OVER, True)
        return awaited

    def _cancel_awaited(self, error: BaseException) -> bool:
        # With its message, by which a scope of anyio knows its own cancellation.
        return self._waits_for_future and bool(self._awaited.cancel(*error.args[:1]))

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:  # what anyio and debuggers look at: cr_frame, cr_running, ...
        return getattr(self._coroutine, name)


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
    with anyio.CancelScope(shield=True):  # against the scopes of anyio, which would cancel each wait again
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
