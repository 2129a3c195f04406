"""Tasks of the runtime's own: they are bounded, stopped, waited for, and closed from anywhere."""

import asyncio
import gc
import logging
import threading
import traceback
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio.lowlevel
import pytest
import trio

from agentrt import AgentState, MiddlewareBase
from agentrt._runtime.concurrency import background_task
from agentrt._runtime.concurrency.background_task import BackgroundTask, enclosing_replies, run_in_own_context
from agentrt._runtime.concurrency.event_loop import in_event_loop, run_shielded
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.concurrency.reaper import Reaper
from agentrt.errors import AgentRTError, UsageError
from agentrt.state import InMemoryStateStore
from tests.loop.helpers import agent_of, call

ROOM = 64
MOST = 10_000


async def read(task: BackgroundTask) -> list[object]:
    """Take everything until the task is over."""
    return [item async for item in task]


class Waiting:
    """A coroutine function that waits for ever, and says when it began and when it stopped."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.log: list[str] = []

    async def __call__(self) -> None:
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.log.append("stopped")


# The mailbox


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def main() -> Waiting:
    return Waiting()


async def test_items_are_taken_in_the_order_they_came(mailbox):
    for n in range(3):
        mailbox.post(n)
    await mailbox.put(3)
    assert list(mailbox.take()) == [0, 1, 2, 3]
    assert list(mailbox.take()) == []


async def test_item_that_comes_while_others_are_taken_is_taken_too(mailbox):
    mailbox.post("a")
    taken = []
    for item in mailbox.take():
        taken.append(item)
        if item == "a":
            mailbox.post("b")
    assert taken == ["a", "b"]


async def test_posts_that_are_never_taken_are_refused_in_the_end(mailbox):
    for n in range(MOST):
        mailbox.post(n)
    with pytest.raises(UsageError) as caught:
        mailbox.post("one too many")
    assert str(caught.value) == "10000 events were emitted and none was taken: is anyone reading the stream?"
    assert sum(1 for _ in mailbox.take()) == MOST
    mailbox.post("again")


async def test_put_waits_for_room_and_keeps_the_order(mailbox):
    async def put_all() -> None:
        for n in range(2 * ROOM):
            await mailbox.put(n)

    async with anyio.create_task_group() as group:
        group.start_soon(put_all)
        await anyio.wait_all_tasks_blocked()
        assert len(mailbox.items) == ROOM
        assert list(mailbox.take()) == list(range(ROOM))
        await anyio.wait_all_tasks_blocked()
        assert list(mailbox.take()) == list(range(ROOM, 2 * ROOM))


async def test_many_waiting_for_room_never_overfill_the_mailbox(mailbox):
    most = 0
    async with anyio.create_task_group() as group:
        for n in range(3 * ROOM):
            group.start_soon(mailbox.put, n)
        taken: list[object] = []
        while len(taken) < 3 * ROOM:
            await anyio.wait_all_tasks_blocked()
            most = max(most, len(mailbox.items))
            taken += mailbox.take()
    assert most == ROOM
    assert sorted(taken) == list(range(3 * ROOM))


@pytest.mark.parametrize("how", ["post", "wake"])
async def test_a_reader_waits_until_something_comes_or_it_is_woken(how, mailbox):
    log = []

    async def wait() -> None:
        await mailbox.wait()
        log.append("woken")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert log == []
        mailbox.post("a") if how == "post" else mailbox.wake()
        await anyio.wait_all_tasks_blocked()
        assert log == ["woken"]


def test_a_mailbox_that_nobody_reads_needs_no_event_loop(mailbox):
    mailbox.wake()
    mailbox.post("a")
    assert list(mailbox.take()) == ["a"]


# The background task


async def test_return_value_of_the_task_is_the_outcome():
    async def main() -> str:
        await anyio.lowlevel.checkpoint()
        return "done"

    async with BackgroundTask("r", Mailbox(), main) as task:
        assert await read(task) == []
        assert await task.outcome() == "done"


class Parts:
    """Work of several parts, the tasks that took them, and how many of them a cancellation has stopped."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.all_wait = anyio.Event()
        self.tasks: set[int] = set()
        self.stopped = 0

    def begin(self) -> int:
        self.tasks.add(anyio.get_current_task().id)
        return self.left.pop(0)

    async def never_wait(self) -> None:
        while self.left:
            self.begin()

    async def wait_for_all(self) -> None:
        while self.left:
            self.begin()
            if not self.left:
                self.all_wait.set()
            await self.all_wait.wait()

    async def wait_for_ever(self) -> None:
        try:
            await self.wait_for_all()
            await anyio.sleep_forever()
        finally:
            self.stopped += 1

    async def fail_last(self) -> None:
        try:
            await self.wait_for_all()
            if len(self.tasks) == 3 and anyio.get_current_task().id == max(self.tasks):
                raise LookupError
            await anyio.sleep_forever()
        finally:
            self.stopped += 1

    def run(self, main: Any) -> BackgroundTask[None]:
        return BackgroundTask("r", Mailbox(), main, max_tasks=len(self.left), has_more=self.left.__len__)


async def test_parts_that_wait_have_a_task_each():
    parts = Parts(3)
    async with parts.run(parts.wait_for_all) as task:
        assert await read(task) == []
        await task.outcome()
    assert len(parts.tasks) == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_parts_that_never_wait_need_one_task(anyio_backend):
    parts = Parts(3)
    async with parts.run(parts.never_wait) as task:
        assert await read(task) == []
        await task.outcome()
    assert len(parts.tasks) == 1


async def test_leaving_stops_all_tasks_of_the_work():
    parts = Parts(3)
    async with parts.run(parts.wait_for_ever):
        await parts.all_wait.wait()
    assert parts.stopped == 3


async def test_error_in_one_task_stops_the_others():
    parts = Parts(3)
    async with parts.run(parts.fail_last) as task:
        await read(task)
        with pytest.raises(LookupError):
            await task.outcome()
    assert parts.stopped == 3


async def test_all_items_are_taken_before_the_end_shows(mailbox):
    async def main() -> None:
        for n in range(3 * ROOM):
            await mailbox.put(n)

    async with BackgroundTask("r", mailbox, main) as task:
        assert await read(task) == list(range(3 * ROOM))
        await task.outcome()


async def test_error_of_the_task_is_raised_by_the_outcome(mailbox):
    error = ValueError("broken")

    async def main() -> None:
        mailbox.post("first")
        raise error

    async with BackgroundTask("r", mailbox, main) as task:
        assert await read(task) == ["first"]
        with pytest.raises(ValueError, match="broken") as caught:
            await task.outcome()
    assert caught.value is error


async def test_a_group_of_errors_is_raised_as_the_group_that_it_is():
    group = ExceptionGroup("two of them, one is left", [ValueError("broken")])

    async def main() -> None:
        raise group

    async with BackgroundTask("r", Mailbox(), main) as task:
        await read(task)
        with pytest.raises(ExceptionGroup) as caught:
            await task.outcome()
    assert caught.value is group


async def test_leaving_stops_the_task_and_waits_for_it(main):
    async with BackgroundTask("r", Mailbox(), main):
        await main.began.wait()
        assert main.log == []
    assert main.log == ["stopped"]


async def test_leaving_by_an_error_stops_the_task_and_raises_the_error(main):
    with pytest.raises(KeyError):
        async with BackgroundTask("r", Mailbox(), main):
            await main.began.wait()
            raise KeyError("mine")
    assert main.log == ["stopped"]


async def test_leaving_at_once_leaves_no_task_either():
    async with BackgroundTask("r", Mailbox(), Waiting()):
        pass


async def test_a_reader_that_is_cancelled_takes_the_task_along(main):
    async def run() -> None:
        async with BackgroundTask("r", Mailbox(), main) as task:
            await anext(task)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await main.began.wait()
        group.cancel_scope.cancel()
    assert main.log == ["stopped"]


async def test_generator_that_reads_a_task_may_be_closed_at_a_yield(mailbox, main):
    async def announce() -> None:
        mailbox.post("a")
        await main()

    async def items() -> AsyncGenerator[object, None]:
        async with BackgroundTask("r", mailbox, announce) as task:
            async for item in task:
                yield item

    stream = items()
    assert await anext(stream) == "a"
    await stream.aclose()
    assert main.log == ["stopped"]


async def test_a_task_that_does_not_stop_is_abandoned_and_logged(monkeypatch, caplog):
    monkeypatch.setattr(background_task, "_MAX_STOP_SECONDS", 0)
    began, release, over = anyio.Event(), anyio.Event(), anyio.Event()

    async def main() -> None:
        with anyio.CancelScope(shield=True):
            began.set()
            await release.wait()
            over.set()

    with caplog.at_level(logging.ERROR, "agentrt"):
        async with BackgroundTask("r", Mailbox(), main):
            await began.wait()
    assert caplog.messages == ["a tool or middleware did not stop within 0 s of being cancelled"]
    release.set()
    await over.wait()
    await anyio.wait_all_tasks_blocked()


async def test_the_task_has_its_readers_deadline():
    seen: list[float] = []

    async def main() -> None:
        seen.append(anyio.current_effective_deadline())

    async with BackgroundTask("r", Mailbox(), main) as task:
        await read(task)
    assert seen == [anyio.current_effective_deadline()]


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_deadline_stops_the_task_and_shows_as_the_readers_own(seconds, main):
    with pytest.raises(TimeoutError):
        with anyio.fail_after(seconds):
            async with BackgroundTask("r", Mailbox(), main) as task:
                await read(task)
                await task.outcome()
    assert main.log == ["stopped"]


async def test_task_has_its_reply_among_the_enclosing_ones():
    mine: ContextVar[str] = ContextVar("mine", default="nothing")
    mine.set("set by the reader")
    seen = []

    async def main() -> None:
        seen.append((enclosing_replies.get(), mine.get()))

    async def nest() -> None:
        await main()
        async with BackgroundTask("inner", Mailbox(), main) as task:
            await read(task)

    async with BackgroundTask("outer", Mailbox(), nest) as task:
        await read(task)
        await task.outcome()
    assert seen == [(("outer",), "set by the reader"), (("outer", "inner"), "set by the reader")]
    assert enclosing_replies.get() == ()


async def test_work_in_its_own_context_is_awaited_as_any_other():
    mine: ContextVar[str] = ContextVar("mine", default="nothing")
    mine.set("outer")
    log = []

    async def work(end: Exception | str) -> str:
        log.append(mine.get())
        mine.set("inner")
        await anyio.lowlevel.checkpoint()
        log.append(mine.get())
        if isinstance(end, Exception):
            raise end
        return end

    assert await run_in_own_context(work("done")) == "done"
    with pytest.raises(LookupError):
        await run_in_own_context(work(LookupError()))
    assert (log, mine.get()) == (["outer", "inner"] * 2, "outer")


async def test_work_in_its_own_context_is_cancelled_in_it():
    mine: ContextVar[str] = ContextVar("mine", default="nothing")
    seen = []

    async def work() -> None:
        mine.set("inner")
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(mine.get())

    with anyio.move_on_after(0) as scope:
        await run_in_own_context(work())
    assert scope.cancelled_caught
    assert (seen, mine.get()) == (["inner"], "nothing")


async def test_error_in_its_own_context_keeps_nothing_alive():
    class Held:
        pass

    async def work(held: Held) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError

    held = Held()
    ref = weakref.ref(held)
    gc.disable()
    try:
        with anyio.move_on_after(0), suppress(LookupError):
            await run_in_own_context(work(held))
        del held
        await anyio.lowlevel.checkpoint()  # the event loop forgets the last step of this task
        assert ref() is None
    finally:
        gc.enable()


only_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@only_asyncio
async def test_task_cancelled_from_outside_is_an_error_of_the_runtime(anyio_backend, main):
    before = asyncio.all_tasks()
    async with BackgroundTask("r", Mailbox(), main) as task:
        await main.began.wait()
        for started in asyncio.all_tasks() - before:
            started.cancel()
        assert await read(task) == []
        with pytest.raises(AgentRTError) as caught:
            await task.outcome()
    assert str(caught.value) == "a task of the runtime was cancelled from outside"
    assert main.log == ["stopped"]


@only_asyncio
async def test_task_cancelled_before_it_began_does_not_hang_its_reader(anyio_backend, monkeypatch):
    monkeypatch.setattr(background_task, "_MAX_STOP_SECONDS", 0.1)
    before = asyncio.all_tasks()
    async with BackgroundTask("r", Mailbox(), Waiting()) as task:
        for started in asyncio.all_tasks() - before:
            started.cancel()
        await read(task)
        with pytest.raises(AgentRTError):
            await task.outcome()


class Stop(BaseException):
    """What `except Exception` does not catch, as `pytest.fail` raises it."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_base_exception_of_the_task_is_raised_by_the_outcome(backend):
    async def main() -> None:
        raise Stop("now")

    async def run() -> None:
        async with BackgroundTask("r", Mailbox(), main) as task:
            await read(task)
            await task.outcome()

    with pytest.raises(Stop):
        anyio.run(run, backend=backend)


# The reaper


class Generator:
    """A generator that says where it was closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = anyio.Event()
        self.thread = 0
        self.error = error
        self.items = self._items()

    async def _items(self) -> AsyncGenerator[str, None]:
        try:
            yield "a"
            yield "b"
        finally:
            await anyio.lowlevel.checkpoint()
            self.thread = threading.get_ident()
            self.closed.set()
            if self.error is not None:
                raise self.error


async def test_a_generator_is_closed_in_a_task_of_its_own():
    generator = Generator()
    reaper = Reaper()
    await anext(generator.items)
    reaper.reap(generator.items)
    assert not generator.closed.is_set()
    await generator.closed.wait()
    await anyio.wait_all_tasks_blocked()
    assert generator.items.ag_frame is None


async def test_generator_dropped_in_any_thread_is_closed_in_its_own():
    generator = Generator()
    reaper = Reaper()
    await anext(generator.items)
    thread = threading.Thread(target=reaper.reap, args=(generator.items,))
    thread.start()
    thread.join()
    await generator.closed.wait()
    assert generator.thread == threading.get_ident()
    await anyio.wait_all_tasks_blocked()


async def test_failure_to_close_is_logged(caplog):
    generator = Generator(ValueError("broken"))
    reaper = Reaper()
    await anext(generator.items)
    with caplog.at_level(logging.ERROR, "agentrt"):
        reaper.reap(generator.items)
        await generator.closed.wait()
        await anyio.wait_all_tasks_blocked()
    assert caplog.messages == ["closing an abandoned reply failed: ValueError"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_dropping_a_generator_without_its_loop_is_silent(backend, caplog):
    async def main() -> tuple[Reaper, Generator]:
        generator = Generator()
        await anext(generator.items)
        return Reaper(), generator

    reaper, generator = anyio.run(main, backend=backend)
    reaper.reap(generator.items)
    thread = threading.Thread(target=reaper.reap, args=(generator.items,))
    thread.start()
    thread.join()
    gc.collect()
    assert caplog.messages == []


# Where we are


async def test_inside_a_loop_is_known():
    assert in_event_loop()


def test_outside_a_loop_is_known():
    assert not in_event_loop()


async def test_a_worker_thread_is_outside_the_loop():
    assert not await anyio.to_thread.run_sync(in_event_loop)


# What must be done, whatever is cancelled


async def test_shielded_work_runs_once_however_often_it_is_cancelled(anyio_backend_name):
    begun, done = [], anyio.Event()

    async def work() -> None:
        begun.append(1)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        done.set()

    async def leave() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            assert await run_shielded(5, work)

    async with anyio.create_task_group() as group:
        if anyio_backend_name == "asyncio":
            inner = asyncio.create_task(leave())

            async def wait_for_it() -> None:
                await inner

            group.start_soon(wait_for_it)
        else:
            group.start_soon(leave)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()  # which on asyncio cancels the inner task anew in each turn of the loop
    assert (len(begun), done.is_set()) == (1, True)


async def test_shielded_work_that_takes_too_long_is_cancelled():
    assert not await run_shielded(0.01, anyio.sleep_forever)


async def test_error_of_shielded_work_is_raised():
    async def fail() -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        await run_shielded(5, fail)


async def test_end_is_saved_when_the_readers_task_is_cancelled_often(anyio_backend_name):
    class Slow(InMemoryStateStore):
        saves = 0

        async def save(self, state: AgentState) -> None:
            self.saves += 1
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            await super().save(state)

    running = anyio.Event()

    async def wait() -> str:
        running.set()
        await anyio.sleep_forever()
        return "never"

    agent = agent_of([[call("1", "wait")]], wait, state_store=Slow())
    async with anyio.create_task_group() as group:
        if anyio_backend_name == "asyncio":
            reader = asyncio.create_task(agent.reply("go"))

            async def wait_for_it() -> None:
                await reader

            group.start_soon(wait_for_it)
        else:
            group.start_soon(agent.reply, "go")
        await running.wait()
        group.cancel_scope.cancel()
    saved = await agent.state_store.load(agent.state.session_id)
    assert saved.last_reply.finished_reason == "interrupted"
    assert agent.state_store.saves == 3  # the input, before the tools, the end


# The reaper


class Odd(BaseException):
    """No error, and nothing that ends a program either."""


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), ExceptionGroup("x", [ValueError("x")]), BaseExceptionGroup("x", [Odd("x")]), Odd("x")],
    ids=lambda error: type(error).__name__,
)
async def test_dropped_reply_that_fails_to_close_ends_nothing_else(error, caplog):
    class Fails(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                raise error

    agent = agent_of(["one two", "three"], middlewares=[Fails()])
    async for _ in agent.reply_stream("go"):
        break
    await anyio.wait_all_tasks_blocked()
    assert [record.getMessage() for record in caplog.records] == [
        f"closing an abandoned reply failed: {type(error).__name__}"
    ]
    assert agent.state.last_reply.finished_reason == "interrupted"


def test_dropped_reply_still_raises_what_ends_a_program():
    async def stream():
        try:
            yield 1
        finally:
            raise BaseExceptionGroup("x", [KeyboardInterrupt(), ValueError("x")])

    async def main() -> None:
        generator = stream()
        await anext(generator)
        Reaper().reap(generator)
        await anyio.sleep_forever()

    with pytest.raises(trio.TrioInternalError) as caught:
        trio.run(main)
    told = "".join(traceback.format_exception(caught.value))
    assert "KeyboardInterrupt" in told
    assert "ValueError: x" not in told


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_part_begins_after_one_has_failed_at_once():
    parts = [1, 2, 3]

    async def work() -> None:
        raise SystemExit(parts.pop(0))

    async with BackgroundTask("reply", Mailbox(), work, max_tasks=3, has_more=parts.__len__) as task:
        assert await read(task) == []
        with pytest.raises(SystemExit):
            await task.outcome()
    assert parts == [2, 3]
