"""A queue that is bounded, fair, and never loses or doubles an item, on either event loop."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio.abc
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt._runtime.output.queue import MessageQueue
from agentrt.errors import ConfigError


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


class Waiters:
    """Tasks that wait one behind the other, and what became of them."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self._group = group
        self.log: list[object] = []
        self.scopes: list[anyio.CancelScope] = []

    async def add(self, name: object, act: Callable[[], Awaitable[object]]) -> None:
        """Start a task that acts, and return once it waits."""
        scope = anyio.CancelScope()
        self.scopes.append(scope)
        self._group.start_soon(self._run, name, act, scope)
        await settled()

    async def _run(self, name: object, act: Callable[[], Awaitable[object]], scope: anyio.CancelScope) -> None:
        with scope:
            try:
                self.log.append((name, await act()))
            except anyio.EndOfStream:
                self.log.append((name, "end"))


def drained(queue: MessageQueue[int]) -> list[int]:
    items = []
    while not queue.empty():
        items.append(queue.get_nowait())
    return items


async def test_items_come_out_in_the_order_they_went_in():
    queue: MessageQueue[int] = MessageQueue()
    for n in range(3):
        await queue.put(n)
    assert queue.qsize() == 3
    assert [await queue.get() for _ in range(3)] == [0, 1, 2]
    assert queue.empty()


async def test_a_full_queue_serves_its_writers_first_come_first_served():
    queue: MessageQueue[int] = MessageQueue(2)
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        for n in range(6):
            await waiters.add(n, lambda n=n: queue.put(n))
        assert queue.full()
        assert [name for name, _ in waiters.log] == [0, 1]
        assert [await queue.get() for _ in range(6)] == list(range(6))


async def test_get_serves_readers_first_come_first_served():
    queue: MessageQueue[int] = MessageQueue()
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        for n in range(6):
            await waiters.add(n, queue.get)
        for n in range(6):
            queue.put_nowait(n)  # all at once, before any of them wakes
        await waiters.add("later", queue.get)
        queue.put_nowait(6)
    assert waiters.log == [*((n, n) for n in range(6)), ("later", 6)]


async def test_put_serves_writers_first_come_first_served():
    queue: MessageQueue[int] = MessageQueue(6)
    for n in range(6):
        queue.put_nowait(n)
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        for n in range(6):
            await waiters.add(n, lambda n=n: queue.put(n))
        drained(queue)
        await waiters.add("later", lambda: queue.put(6))
        assert drained(queue) == list(range(6))
    assert drained(queue) == [6]


async def test_nowait_calls_overtake_no_waiting_task():
    queue: MessageQueue[int] = MessageQueue(1)
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        await waiters.add("reader", queue.get)
        queue.put_nowait(1)
        with pytest.raises(anyio.WouldBlock):
            queue.get_nowait()
        await settled()
        queue.put_nowait(2)
        await waiters.add("writer", lambda: queue.put(3))
        assert queue.get_nowait() == 2
        with pytest.raises(anyio.WouldBlock):
            queue.put_nowait(4)
    assert waiters.log == [("reader", 1), ("writer", None)]
    assert drained(queue) == [3]


async def test_what_cannot_be_done_at_once_would_block():
    queue: MessageQueue[int] = MessageQueue(1)
    with pytest.raises(anyio.WouldBlock):
        queue.get_nowait()
    queue.put_nowait(1)
    with pytest.raises(anyio.WouldBlock):
        queue.put_nowait(2)
    assert drained(queue) == [1]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_an_item_for_a_reader_being_cancelled_goes_to_one_reader(cancel_first):
    queue: MessageQueue[int] = MessageQueue()
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        for name in "abc":
            await waiters.add(name, queue.get)
        acts: list[Callable[[], object]] = [waiters.scopes[0].cancel, lambda: queue.put_nowait(1)]
        for act in acts if cancel_first else reversed(acts):
            act()
        await settled()
        group.cancel_scope.cancel()
    assert waiters.log in ([("b", 1)], *([] if cancel_first else [[("a", 1)]]))


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_room_for_a_writer_being_cancelled_goes_to_one_writer(cancel_first):
    queue: MessageQueue[int] = MessageQueue(1)
    queue.put_nowait(0)
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        for n in (1, 2):
            await waiters.add(n, lambda n=n: queue.put(n))
        acts: list[Callable[[], object]] = [waiters.scopes[0].cancel, queue.get_nowait]
        for act in acts if cancel_first else reversed(acts):
            act()
        await settled()
        group.cancel_scope.cancel()
    assert waiters.log in ([(2, None)], *([] if cancel_first else [[(1, None)]]))
    assert drained(queue) == [name for name, _ in waiters.log]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_by_asyncio_itself_loses_nothing(anyio_backend):
    queue: MessageQueue[int] = MessageQueue()
    first, second = (asyncio.ensure_future(queue.get()) for _ in range(2))
    await settled()
    queue.put_nowait(1)
    first.cancel()
    assert await second == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_closed_queue_is_read_to_its_end():
    queue: MessageQueue[int] = MessageQueue()
    await queue.put(1)
    queue.close()
    assert await queue.get() == 1
    with pytest.raises(anyio.EndOfStream):
        await queue.get()
    with pytest.raises(anyio.EndOfStream):
        queue.get_nowait()


async def test_closing_releases_all_waiting_tasks():
    empty: MessageQueue[int] = MessageQueue()
    full: MessageQueue[int] = MessageQueue(1)
    full.put_nowait(0)
    async with anyio.create_task_group() as group:
        waiters = Waiters(group)
        for name in "ab":
            await waiters.add(name, empty.get)
        for name in "cd":
            await waiters.add(name, lambda: full.put(1))
        empty.close()
        full.close()
    assert sorted(waiters.log) == [("a", "end"), ("b", "end"), ("c", None), ("d", None)]
    assert drained(full) == [0]


async def test_writing_to_a_closed_queue_neither_waits_nor_grows_it():
    queue: MessageQueue[int] = MessageQueue(1)
    queue.close()
    for n in range(3):
        await queue.put(n)
        queue.put_nowait(n)
    assert queue.empty()


async def test_putting_and_getting_notice_a_cancellation():
    queue: MessageQueue[int] = MessageQueue()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await queue.put(1)
    assert queue.empty()
    queue.put_nowait(1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await queue.get()
    assert drained(queue) == [1]


def test_a_queue_needs_no_event_loop_and_no_closing():
    queue: MessageQueue[int] = MessageQueue()
    queue.put_nowait(1)
    assert queue.get_nowait() == 1
    del queue
    gc.collect()  # a warning would fail the test


@pytest.mark.parametrize("maxsize", [0, -1, 1.5, True, None, "5"])
def test_a_size_that_is_none_is_refused_with_its_value(maxsize):
    with pytest.raises(ConfigError, match="whole number of at least 1, not") as caught:
        MessageQueue(maxsize)
    assert repr(maxsize) in str(caught.value)


@given(
    maxsize=st.integers(1, 3),
    steps=st.lists(st.sampled_from(["put", "get", "cancel oldest", "cancel newest", "run", "get_nowait"]), max_size=40),
    backend=st.sampled_from(["asyncio", "trio"]),
)
def test_cancelling_neither_loses_nor_repeats_nor_reorders_items(maxsize, steps, backend):
    anyio.run(_disorder, maxsize, steps, backend=backend)


async def _disorder(maxsize: int, steps: list[str]) -> None:
    queue: MessageQueue[int] = MessageQueue(maxsize)
    put: list[int] = []
    got: list[int] = []
    scopes: list[anyio.CancelScope] = []

    async def write(n: int) -> None:
        await queue.put(n)
        put.append(n)

    async def read() -> None:
        got.append(await queue.get())

    async def run(scope: anyio.CancelScope, act: Callable[[], Awaitable[None]]) -> None:
        with scope:
            await act()

    async with anyio.create_task_group() as group:
        for n, step in enumerate(steps):
            if step in ("put", "get"):
                scopes.append(anyio.CancelScope())
                group.start_soon(run, scopes[-1], (lambda n=n: write(n)) if step == "put" else read)
            elif step == "run":
                await anyio.lowlevel.checkpoint()
            elif step == "get_nowait":
                with suppress(anyio.WouldBlock):
                    got.append(queue.get_nowait())
            elif scopes:
                scopes.pop(0 if step == "cancel oldest" else -1).cancel()
            assert queue.qsize() <= maxsize
        for scope in scopes:
            scope.cancel()
    got += drained(queue)
    assert got == put
