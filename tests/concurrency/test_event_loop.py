"""Starting a task whose first step is taken at once, on Pythons with eager tasks and on those without."""

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from agentrt._runtime.concurrency.background_task import BackgroundTask
from agentrt._runtime.concurrency.event_loop import spawn_and_step
from agentrt._runtime.concurrency.mailbox import Mailbox

PATIENCE = 30
only_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
var: ContextVar[str] = ContextVar("var", default="unset")


def plain_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


def old_factory(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop)


def wrapping_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Put code around each task, as tools that trace programs do."""

    async def wrap() -> Any:
        var.set("the factory's")
        return await coroutine

    return asyncio.Task(wrap(), loop=loop, **options)


STEPPING: list[Any] = [None, asyncio.eager_task_factory] if sys.version_info >= (3, 12) else [None]


@pytest.fixture(params=STEPPING, ids=lambda factory: getattr(factory, "__name__", "no factory"))
async def factory(request, anyio_backend):
    """Each way to make a task that begins at once."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(request.param)
    yield request.param
    loop.set_task_factory(before)


async def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start `main` and wait until it is over."""
    over = anyio.Event()

    async def to_the_end() -> None:
        try:
            await main()
        finally:
            over.set()

    spawn_and_step(to_the_end)
    await over.wait()


@only_asyncio
async def test_work_that_never_waits_is_over_at_once(factory, anyio_backend):
    log = []

    async def main() -> None:
        log.append("done")

    spawn_and_step(main)
    assert log == ["done"]


async def test_work_that_waits_runs_to_its_end():
    log = []

    async def main() -> None:
        for n in range(3):
            await anyio.lowlevel.checkpoint()
            log.append(n)

    await run(main)
    assert log == [0, 1, 2]


@only_asyncio
async def test_all_steps_belong_to_one_new_task(factory, anyio_backend):
    caller, seen = asyncio.current_task(), []

    async def main() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    await run(main)
    assert seen[0] is seen[1]
    assert seen[0] is not caller
    assert asyncio.current_task() is caller


async def test_scope_of_the_first_step_may_be_left_in_a_later_one():
    log = []

    async def main() -> None:
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        log.append(scope.cancelled_caught)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)

    await run(main)
    assert log == [True]


@only_asyncio
async def test_timeout_of_asyncio_spans_the_steps(factory, anyio_backend):
    log = []

    async def main() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(PATIENCE)
        except TimeoutError:
            log.append("late")

    await run(main)
    assert log == ["late"]


async def test_steps_share_a_context_that_their_caller_does_not_see():
    var.set("the caller's")
    seen = []

    async def main() -> None:
        seen.append(var.get())
        var.set("the task's")
        await anyio.lowlevel.checkpoint()
        seen.append(var.get())

    await run(main)
    assert seen == ["the caller's", "the task's"]
    assert var.get() == "the caller's"


@only_asyncio
@pytest.mark.parametrize("waits_for", ["a future", "a turn of the loop", "a task"])
async def test_cancellation_before_the_second_step_arrives_at_the_wait(factory, anyio_backend, waits_for):
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    started: list[asyncio.Task[Any]] = []
    log = []

    async def wait() -> None:
        await future

    async def main() -> None:
        started.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            if waits_for == "a future":
                await future
            else:
                await (asyncio.sleep(0) if waits_for == "a turn of the loop" else inner)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    inner = asyncio.get_running_loop().create_task(wait())
    await asyncio.sleep(0)  # so that it has begun
    spawn_and_step(main)
    started[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await started[0]
    assert log == ["cancelled"]
    assert future.cancelled() == (waits_for != "a turn of the loop")
    inner.cancel()
    await asyncio.wait([inner])


@only_asyncio
async def test_cancelling_after_the_future_is_done_is_not_lost(factory, anyio_backend):
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    started: list[asyncio.Task[Any]] = []

    async def main() -> None:
        started.append(asyncio.current_task())  # type: ignore[arg-type]
        await future

    spawn_and_step(main)
    future.set_result(None)
    started[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await started[0]


@only_asyncio
async def test_error_of_the_first_step_is_the_tasks_own(factory, anyio_backend):
    started: list[asyncio.Task[Any]] = []

    async def main() -> None:
        started.append(asyncio.current_task())  # type: ignore[arg-type]
        raise KeyError("mine")

    spawn_and_step(main)
    with pytest.raises(KeyError, match="mine"):
        await started[0]


@only_asyncio
async def test_first_step_that_raises_a_cancellation_cancels_its_task(factory, anyio_backend):
    started: list[asyncio.Task[Any]] = []

    async def main() -> None:
        started.append(asyncio.current_task())  # type: ignore[arg-type]
        raise asyncio.CancelledError

    spawn_and_step(main)
    await asyncio.wait(started)
    assert started[0].cancelled()


@only_asyncio
async def test_first_step_leaves_no_cycle_behind(anyio_backend):
    async def main() -> None:
        pass

    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            spawn_and_step(main)
        await asyncio.sleep(0)
        assert gc.collect() == 0
    finally:
        gc.enable()


@only_asyncio
async def test_debuggers_see_the_coroutine_of_a_stepped_task(factory, anyio_backend):
    started: list[asyncio.Task[Any]] = []
    release = asyncio.Event()

    async def main() -> None:
        started.append(asyncio.current_task())  # type: ignore[arg-type]
        await release.wait()

    spawn_and_step(main)
    assert started[0].get_stack()[0].f_code.co_name == "main"
    release.set()
    await started[0]


@only_asyncio
async def test_first_steps_may_wait_for_the_same_future(factory, anyio_backend):
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    log = []

    async def main() -> None:
        log.append(await future)

    spawn_and_step(main)
    spawn_and_step(main)
    asyncio.get_running_loop().call_soon(future.set_result, "done")
    await future  # the caller as well
    await asyncio.sleep(0)
    assert log == ["done", "done"]


async def test_scope_cancelled_after_the_first_step_ends_there():
    over, scope, log = anyio.Event(), anyio.CancelScope(), []

    async def main() -> None:
        with scope:
            await anyio.Event().wait()
        log.append(scope.cancelled_caught)
        await anyio.lowlevel.checkpoint()  # no stray cancellation is left
        over.set()

    spawn_and_step(main)
    scope.cancel()
    await over.wait()
    assert log == [True]


@only_asyncio
async def test_cancellation_before_the_second_step_keeps_its_message(factory, anyio_backend):
    started: list[asyncio.Task[Any]] = []
    log = []

    async def main() -> None:
        started.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            log.append(error.args)

    spawn_and_step(main)
    started[0].cancel("enough")
    await started[0]
    assert log == [("enough",)]


@only_asyncio
@pytest.mark.parametrize("made_by", [plain_factory, old_factory, wrapping_factory])
async def test_factory_of_the_user_decides_how_a_task_begins(anyio_backend, made_by):
    log = []

    async def main() -> None:
        log.append(var.get())
        await asyncio.sleep(0)
        log.append(var.get())

    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(made_by)
    try:
        await run(main)
    finally:
        loop.set_task_factory(before)
    assert log == ["the factory's" if made_by is wrapping_factory else "unset"] * 2


# The caller whom the first step cancels


@only_asyncio
async def test_first_step_says_whether_it_cancelled_its_caller(factory, anyio_backend):
    caller = asyncio.current_task()
    assert caller is not None

    async def cancel() -> None:
        caller.cancel()

    async def leave_alone() -> None:
        pass

    assert not spawn_and_step(leave_alone)
    assert spawn_and_step(cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    caller.uncancel()


async def test_scope_that_the_first_step_cancels_ends_its_reader_there():
    stopped = anyio.Event()

    async def main() -> None:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    with anyio.CancelScope() as scope:
        async with BackgroundTask("r", Mailbox(), main) as task:
            async for _ in task:
                pass
            await task.outcome()
    assert scope.cancelled_caught
    assert stopped.is_set()
    await anyio.lowlevel.checkpoint()  # no stray cancellation is left
    await anyio.lowlevel.checkpoint()


@only_asyncio
async def test_reader_cancelled_by_a_whole_task_is_cancelled_there(anyio_backend):
    log = []

    async def main() -> None:
        scope.cancel()

    with anyio.CancelScope() as scope:
        async with BackgroundTask("r", Mailbox(), main):
            log.append("entered")
    assert scope.cancelled_caught
    assert log == []
    await asyncio.sleep(0)  # no stray cancellation is left
