"""A coroutine that is read: in one task, by one reader at a time, left without a trace."""

import asyncio
import gc
import traceback
import weakref
from contextlib import aclosing
from contextvars import ContextVar

import anyio.lowlevel
import pytest

from agentrt._runtime.concurrency.coroutine_reader import CoroutineReader, ReaderLeft, close_with_event_loop, hand_out
from agentrt._runtime.conversation.reply_stream import ReplyStream


class Work:
    """Tells the numbers below `count`, waits after each, and notes how it ends."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.log: list[object] = []

    async def __call__(self) -> str:
        try:
            for number in range(self.count):
                await hand_out(number)
                await anyio.lowlevel.checkpoint()
        except BaseException as error:
            self.log.append(type(error))
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.log.append("over")
        return "done"


async def test_all_that_is_told_comes_and_then_the_result():
    assert [item async for item in CoroutineReader(Work())] == [0, 1, 2, "done"]
    assert [item async for item in CoroutineReader(Work(), gives_result=False)] == [0, 1, 2]


async def test_work_runs_in_the_task_and_context_of_its_reader():
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen = []

    async def work() -> None:
        for number in (1, 2):
            seen.append((anyio.get_current_task().id, variable.get()))
            variable.set(10 * number)
            await hand_out(number)

    variable.set(5)
    async for _ in CoroutineReader(work):
        pass
    assert seen == [(anyio.get_current_task().id, 5), (anyio.get_current_task().id, 10)]
    assert variable.get() == 20


async def test_readers_nest_without_addresses():
    async def outer() -> None:
        async for item in CoroutineReader(Work(2)):
            await hand_out(f"from inside: {item}")

    assert [item async for item in CoroutineReader(outer)] == ["from inside: 0", "from inside: 1", "from inside: done"]


def test_a_reply_stream_shares_no_code_with_the_reader_in_it():
    assert ReplyStream.__anext__.__code__ == CoroutineReader.__anext__.__code__
    assert ReplyStream.__anext__.__code__ is not CoroutineReader.__anext__.__code__


async def test_leaving_raises_reader_left_and_waits_for_the_clean_up():
    work = Work()
    async with aclosing(CoroutineReader(work)) as reader:
        async for _ in reader:
            break
    assert work.log == [ReaderLeft, "over"]
    assert not reader.is_open
    assert [item async for item in reader] == []


async def test_error_of_the_work_is_raised_once():
    async def fail() -> None:
        await hand_out(1)
        raise LookupError

    reader = CoroutineReader(fail)
    assert await anext(reader) == 1
    with pytest.raises(LookupError):
        await anext(reader)
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_reader_that_never_began_makes_no_coroutine():
    work = Work()
    reader = CoroutineReader(work)
    await reader.aclose()
    assert [item async for item in reader] == []
    assert work.log == []


async def test_cancellation_of_the_reader_reaches_the_work():
    async def wait() -> None:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            log.append("cancelled")
            raise

    log: list[str] = []
    with anyio.CancelScope() as scope:
        await anext(CoroutineReader(wait))
    assert scope.cancelled_caught
    assert log == ["cancelled"]


def test_error_that_somebody_keeps_does_not_keep_the_reader():
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("kept")

    async def wait_for_it() -> None:
        try:
            await asyncio.create_task(fail())  # whose future hands the error to this task
        except ValueError as error:
            kept.append(error)
        await hand_out("failed")

    async def read_and_drop() -> None:
        reader = CoroutineReader(wait_for_it)
        assert await anext(reader) == "failed"
        readers.append(weakref.ref(reader))

    kept: list[ValueError] = []
    readers: list[weakref.ref[object]] = []
    asyncio.run(read_and_drop())
    gc.collect()
    assert readers[0]() is None
    assert [frame.name for frame in traceback.extract_tb(kept[0].__traceback__)] == ["wait_for_it", "fail"]


async def test_scope_around_each_step_is_none_of_the_works():
    reader = CoroutineReader(Work(2))
    items = []
    while True:
        item = await anext(reader, None)
        if item is None:
            break
        items.append(item)
    assert items == [0, 1, "done"]


async def test_another_task_reads_on():
    reader, items = CoroutineReader(Work(2)), []

    async def read() -> None:
        items.append(await anext(reader))

    for _ in range(3):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
    assert items == [0, 1, "done"]


async def test_two_tasks_do_not_read_at_once():
    began = anyio.Event()

    async def wait() -> None:
        began.set()
        await anyio.sleep_forever()

    async def read() -> None:
        await anext(reader)

    reader = CoroutineReader(wait)
    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await began.wait()
        with pytest.raises(RuntimeError, match="read by another task"):
            await anext(reader)
        with pytest.raises(RuntimeError, match="read by another task"):
            await reader.aclose()
        group.cancel_scope.cancel()


async def test_work_that_tells_after_its_reader_left_is_an_error():
    async def stubborn() -> None:
        try:
            await hand_out(1)
        finally:
            await hand_out(2)

    reader = CoroutineReader(stubborn)
    await anext(reader)
    with pytest.raises(RuntimeError, match="after its reader had left"):
        await reader.aclose()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_open_reader_is_closed_when_its_event_loop_ends(backend):
    work = Work()
    reader = CoroutineReader(work)

    async def main() -> None:
        close_with_event_loop(reader)
        await anext(reader)

    anyio.run(main, backend=backend)
    gc.collect()
    assert work.log == [ReaderLeft, "over"]
    assert not reader.is_open


def test_wait_that_is_gone_leaves_the_work_to_be_closed():
    work = Work()

    async def main() -> None:
        reader = CoroutineReader(work)
        assert await anext(reader) == 0
        step = reader.__anext__()
        step.send(None)
        step.close()
        assert not reader.is_running
        await reader.aclose()

    asyncio.run(main())
    assert work.log == [ReaderLeft, "over"]
