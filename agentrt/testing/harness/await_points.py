"""Observes every suspension of a piece of code, and the tasks and generators it leaves, on both event loops.

On asyncio a task factory wraps the coroutine of each new task and steps it; trio calls an instrument after each step.
Generators are observed through the interpreter's own hooks. Tasks that were started before are not observed, nor
threads, nor the work of an event loop between the steps of its tasks.
"""

import asyncio
import gc
import inspect
import os
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from agentrt._runtime.concurrency.coroutine_reader import CoroutineReader, close_at_end, leave, open_readers
from agentrt._runtime.concurrency.event_loop import running_trio

Task: TypeAlias = Any
"""A task of asyncio or of trio: the two have no class in common, and trio may not be installed."""

_AnyCoroutine: TypeAlias = Coroutine[Any, Any, Any]

_STEPS_TO_STOP = 50
_SECONDS_TO_STOP = 1.0
_MAX_AWAITS = 200  # of awaits, should they ever form a circle
_MAX_FRAMES_SHOWN = 5
_FRAME_PREFIXES = ("cr", "ag", "gi")  # of a coroutine, an async generator, a generator
_KINDS_WITH_FRAMES = ("async_generator", "coroutine", "generator", "async_generator_asend", "async_generator_athrow")
_READER_STEPS = (inspect.unwrap(CoroutineReader.__anext__).__code__, inspect.unwrap(leave).__code__)
_EVENT_LOOP_MODULES = ("anyio.", "asyncio.", "trio.", f"{__package__}.")


class AwaitWatcher:
    """While entered, calls `on_suspend` with the coroutine at each suspension of a task that was started meanwhile.

    On asyncio, `on_throw` is called with each exception that is thrown into one; trio does not report those.
    """

    def __init__(self, on_suspend: Callable[[_AnyCoroutine], None], on_throw: Callable[[BaseException], None]) -> None:
        self.on_suspend = on_suspend
        self.on_throw = on_throw
        self.lost_generators: list[str] = []
        self.tasks: set[Task] = set()
        # Weak references, so that the event loop finalises a generator that nothing else holds, which is reported.
        self._generators: list[weakref.ref[AsyncGenerator[object, object]]] = []
        self._restore = ExitStack()

    def __enter__(self) -> "AwaitWatcher":
        trio = running_trio()
        if trio is None:
            # A task factory of the user's own, such as an eager one, still creates the tasks.
            loop = asyncio.get_running_loop()
            factory = loop.get_task_factory()
            self._restore.callback(loop.set_task_factory, factory)
            loop.set_task_factory(_TaskFactory(self, factory))
        else:
            instrument = _Instrument(self)
            trio.lowlevel.add_instrument(instrument)
            self._restore.callback(trio.lowlevel.remove_instrument, instrument)
        self._streams_before = set(map(id, open_readers()))
        # The event loop's own hooks are still called: they finalise lost generators.
        self._hooks = sys.get_asyncgen_hooks()
        self._restore.callback(sys.set_asyncgen_hooks, *self._hooks)
        sys.set_asyncgen_hooks(self._on_first_iteration, self._on_finalize)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    def find_leftovers(self, besides: Task = None) -> list[str]:
        """Name the tasks that still run, except the given one, and the generators that are still open."""
        leftovers: list[str] = []
        for task in self.tasks:
            is_asyncio = isinstance(task, asyncio.Task)
            if task is not besides and not (is_asyncio and task.done()):
                leftovers.append(f"the task {_name(task.get_coro() if is_asyncio else task.coro)}")
        for reference in self._generators:
            generator = reference()
            if getattr(generator, "ag_frame", None) is not None:  # a closed generator has no frame
                leftovers.append(f"the generator {_name(generator)}")
        streams = [reader for reader in open_readers() if reader.is_open and id(reader) not in self._streams_before]
        return leftovers + [f"the stream {stream!r}" for stream in streams]

    async def wait_for_leftovers(self) -> None:
        """Wait, within limits, until the tasks told to stop have stopped."""
        for _ in range(_STEPS_TO_STOP):
            if not self.find_leftovers():
                return
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(_SECONDS_TO_STOP):
            while self.find_leftovers():  # noqa: ASYNC110  # nothing notifies us when it is over
                await anyio.sleep(0.005)

    def _on_first_iteration(self, generator: AsyncGenerator[object, object]) -> None:
        if (
            getattr(generator, "ag_code", None) is not close_at_end.__code__
        ):  # which is open for as long as the event loop
            self._generators.append(weakref.ref(generator))
        if self._hooks.firstiter is not None:
            self._hooks.firstiter(generator)

    def _on_finalize(self, generator: AsyncGenerator[object, object]) -> None:
        self.lost_generators.append(_name(generator))
        if self._hooks.finalizer is not None:
            self._hooks.finalizer(generator)


class _TaskFactory:
    """Makes tasks of asyncio whose coroutines are watched."""

    def __init__(self, watcher: AwaitWatcher, factory: Callable[..., Task] | None) -> None:
        self._watcher = watcher
        self._factory = factory

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Task:
        # Anything but a coroutine, such as an old-style generator, cannot be wrapped invisibly.
        watched = _WatchedCoroutine(coroutine, self._watcher) if isinstance(coroutine, Coroutine) else coroutine
        if self._factory is None:
            task: Task = asyncio.Task(watched, loop=loop, **options)
        else:
            task = self._factory(loop, watched, **options)
        self._watcher.tasks.add(task)
        task.add_done_callback(self._watcher.tasks.discard)
        return task


class _WatchedCoroutine(Coroutine[Any, Any, Any]):
    """Steps a coroutine, and reports when it is suspended."""

    def __init__(self, coroutine: _AnyCoroutine, watcher: AwaitWatcher) -> None:
        self.coroutine = coroutine
        self._watcher = watcher

    # The callback runs after the step: by then the coroutine is suspended, and its frames can be read.
    def send(self, value: object) -> object:
        awaited = self.coroutine.send(value)
        self._watcher.on_suspend(self.coroutine)
        return awaited

    def throw(self, *error: Any) -> object:
        self._watcher.on_throw(error[0])
        awaited = self.coroutine.throw(*error)
        self._watcher.on_suspend(self.coroutine)
        return awaited

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:  # for anyio and debuggers: cr_frame, cr_running, ...
        return getattr(self.coroutine, name)


class _Instrument:
    """Called by trio for each task and each step."""

    def __init__(self, watcher: AwaitWatcher) -> None:
        self._watcher = watcher

    def task_spawned(self, task: Task) -> None:
        self._watcher.tasks.add(task)

    def task_exited(self, task: Task) -> None:
        self._watcher.tasks.discard(task)

    def after_task_step(self, task: Task) -> None:
        if task in self._watcher.tasks:  # trio steps the tasks of everyone
            self._watcher.on_suspend(task.coro)


def current_task() -> Task:
    """Return the event loop's own object for the running task; `None` in a thread without an event loop."""
    trio = running_trio()
    if trio is not None:
        return trio.lowlevel.current_task()
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def describe_position(coroutine: object) -> str:
    """Say where a suspended coroutine is: its innermost functions, the outer ones first."""
    positions: list[str] = []
    for frame in _frames(coroutine):
        module = f"{frame.f_globals.get('__name__')}."
        if not module.startswith(_EVENT_LOOP_MODULES):
            folder, file = os.path.split(frame.f_code.co_filename)
            positions.append(f"{frame.f_code.co_name} ({os.path.basename(folder)}/{file}:{frame.f_lineno})")
    return " > ".join(positions[-_MAX_FRAMES_SHOWN:])


def _frames(awaitable: object) -> Iterator[FrameType]:
    for _ in range(_MAX_AWAITS):
        prefix = next((prefix for prefix in _FRAME_PREFIXES if hasattr(awaitable, f"{prefix}_frame")), None)
        if prefix is None:
            # The awaitable of `__anext__` does not name its generator, but the garbage collector knows it.
            referents = gc.get_referents(awaitable)
            awaitable = next((item for item in referents if type(item).__name__ in _KINDS_WITH_FRAMES), None)
        else:
            frame = getattr(awaitable, f"{prefix}_frame")
            if frame is not None and frame.f_code in _READER_STEPS:
                awaitable = frame.f_locals["work"]  # which it steps: to Python the two are not connected
                continue
            if frame is not None:
                yield frame
            awaitable = getattr(awaitable, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await")
        if awaitable is None:
            return


def _name(part: object) -> str:
    """Name a coroutine or a generator by its function."""
    function = part.coroutine if isinstance(part, _WatchedCoroutine) else part
    return str(getattr(function, "__qualname__", type(function).__name__)).replace(".<locals>", "")
