"""Seeing every suspension of a piece of code, and what it leaves behind, on both event loops.

On asyncio a task factory puts the coroutine of each new task into a driver that steps it; on trio an instrument is told
after each step. Generators are seen through the interpreter's own hooks. So tasks that were started before are not
seen, nor threads, nor what an event loop does between the steps of its tasks.
"""

import asyncio
import gc
import os
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

from agentrt.concurrency.event_loop import running_trio

__all__ = ["Watch", "current_task", "place_of"]

_DEEPEST = 200
_SHOWN = 5
_PARTS = ("cr", "ag", "gi")


class Watch:
    """While entered: calls `suspended` at each suspension of a task that was started meanwhile, with its coroutine.

    On asyncio `thrown` is called with each exception that is thrown into one; trio does not tell.
    """

    def __init__(self, suspended: Callable[[Any], None], thrown: Callable[[Any, BaseException], None]) -> None:
        self.suspended = suspended
        self.thrown = thrown
        self.collected: list[str] = []
        self.tasks: set[Any] = set()
        self._generators: list[weakref.ref[Any]] = []
        self._restore = ExitStack()

    def __enter__(self) -> "Watch":
        trio = running_trio()
        if trio is None:
            loop = asyncio.get_running_loop()
            factory = loop.get_task_factory()
            self._restore.callback(loop.set_task_factory, factory)
            loop.set_task_factory(_Factory(self, factory))
        else:
            instrument = _Instrument(self)
            trio.lowlevel.add_instrument(instrument)
            self._restore.callback(trio.lowlevel.remove_instrument, instrument)
        self._hooks = sys.get_asyncgen_hooks()
        self._restore.callback(sys.set_asyncgen_hooks, *self._hooks)
        sys.set_asyncgen_hooks(self._generator_begins, self._generator_is_lost)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    def left(self, besides: Any = None) -> list[str]:
        """Name the tasks that still run, but for one, and the generators that are still open."""
        tasks = [each for each in self.tasks if each is not besides and not _is_done(each)]
        open_ones = [each for reference in self._generators if (each := reference()) is not None]
        generators = [f"the generator {_name(each)}" for each in open_ones if each.ag_frame is not None]
        return [f"the task {_name(_coroutine_of(task))}" for task in tasks] + generators

    def _generator_begins(self, generator: Any) -> None:
        self._generators.append(weakref.ref(generator))
        if self._hooks.firstiter is not None:
            self._hooks.firstiter(generator)

    def _generator_is_lost(self, generator: Any) -> None:
        self.collected.append(_name(generator))
        if self._hooks.finalizer is not None:
            self._hooks.finalizer(generator)


class _Factory:
    """Makes tasks of asyncio whose coroutines are driven."""

    def __init__(self, watch: Watch, factory: Any) -> None:
        self._watch = watch
        self._make = factory or _plain_task

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        driven = _Driven(coroutine, self._watch) if isinstance(coroutine, Coroutine) else coroutine
        task = self._make(loop, driven, **options)
        self._watch.tasks.add(task)
        task.add_done_callback(self._watch.tasks.discard)
        return task


def _plain_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    return asyncio.Task(coroutine, loop=loop, **options)


class _Driven(Coroutine[Any, Any, Any]):
    """Steps a coroutine, and says when it is suspended."""

    def __init__(self, coroutine: Any, watch: Watch) -> None:
        self.driven = coroutine
        self._watch = watch

    def send(self, value: Any) -> Any:
        waits_for = self.driven.send(value)
        self._watch.suspended(self.driven)
        return waits_for

    def throw(self, *error: Any) -> Any:
        self._watch.thrown(self.driven, error[0])
        waits_for = self.driven.throw(*error)
        self._watch.suspended(self.driven)
        return waits_for

    def close(self) -> None:
        self.driven.close()

    def __await__(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:  # what anyio and debuggers look at: cr_frame, cr_running, ...
        return getattr(self.driven, name)


class _Instrument:
    """Is told by trio of each task and each step."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def task_spawned(self, task: Any) -> None:
        self._watch.tasks.add(task)

    def task_exited(self, task: Any) -> None:
        self._watch.tasks.discard(task)

    def after_task_step(self, task: Any) -> None:
        if task in self._watch.tasks:
            self._watch.suspended(task.coro)


def current_task() -> Any:
    """Return the event loop's own object for the task that runs; `None` in a thread that has no event loop."""
    trio = running_trio()
    if trio is not None:
        return trio.lowlevel.current_task()
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def place_of(coroutine: Any) -> str:
    """Say where a suspended coroutine is: its innermost functions, outermost of these first."""
    shown = [f"{frame.f_code.co_name} ({_short(frame)})" for frame in _frames(coroutine) if _is_worth_it(frame)]
    return " > ".join(shown[-_SHOWN:])


def _frames(awaitable: Any) -> Iterator[FrameType]:
    for _ in range(_DEEPEST):
        part = next((each for each in _PARTS if hasattr(awaitable, f"{each}_frame")), None)
        if part is None:
            awaitable = _inside(awaitable)
        else:
            frame = getattr(awaitable, f"{part}_frame")
            if frame is not None:
                yield frame
            awaitable = getattr(awaitable, "gi_yieldfrom" if part == "gi" else f"{part}_await")
        if awaitable is None:
            return


def _inside(awaitable: Any) -> Any:
    # The awaitable of `__anext__` does not say whose it is, but the garbage collector knows.
    kinds = ("async_generator", "coroutine", "generator", "async_generator_asend", "async_generator_athrow")
    return next((each for each in gc.get_referents(awaitable) if type(each).__name__ in kinds), None)


def _short(frame: FrameType) -> str:
    folder, file = os.path.split(frame.f_code.co_filename)
    return f"{os.path.basename(folder)}/{file}:{frame.f_lineno}"


def _is_worth_it(frame: FrameType) -> bool:
    module = f"{frame.f_globals.get('__name__')}."
    return not module.startswith(("anyio.", "asyncio.", "trio.", f"{__package__}."))


def _is_done(task: Any) -> bool:
    return isinstance(task, asyncio.Task) and task.done()


def _coroutine_of(task: Any) -> Any:
    return task.get_coro() if isinstance(task, asyncio.Task) else task.coro


def _name(each: Any) -> str:
    each = each.driven if isinstance(each, _Driven) else each
    return str(getattr(each, "__qualname__", type(each).__name__)).replace(".<locals>", "")
