"""Lifespans: entered once for all users, left once by the last, in the task that entered them."""

from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

import anyio
import pytest

from agentrt._runtime.concurrency.lifespan import enter_lifespan, lifespan_failure
from agentrt.errors import AgentRTError

CURRENT: ContextVar[str] = ContextVar("current", default="")


class Part:
    """Writes down who enters and leaves it, in which task."""

    def __init__(self, log: list[str], name: str = "a", fails: str = "") -> None:
        self.log = log
        self.name = name
        self.fails = fails
        self.task = 0
        self.gate = anyio.Event()
        self.gate.set()

    @asynccontextmanager
    async def lifespan(self):
        self.task = anyio.get_current_task().id
        try:
            await self.gate.wait()
            if self.fails == "entering":
                raise ValueError(self.name)
            self.log.append(f"+{self.name}{CURRENT.get()}")
            async with anyio.create_task_group() as group:
                self.group = group
                group.start_soon(anyio.sleep_forever)
                yield
                group.cancel_scope.cancel()
        finally:
            assert anyio.get_current_task().id == self.task
            self.log.append(f"-{self.name}")
            if self.fails == "leaving":
                raise ValueError(self.name)


async def fail() -> None:
    raise KeyError("broken")


async def fail_in(part: Any) -> None:
    """Have a task of the lifespan fail, and wait until that has ended it."""
    part.group.start_soon(fail)
    while lifespan_failure(part) is None:
        await anyio.lowlevel.checkpoint()


async def test_users_share_one_lifespan_in_any_order() -> None:
    log: list[str] = []
    part, first, second = Part(log), AsyncExitStack(), AsyncExitStack()
    CURRENT.set("of the first user")
    assert await enter_lifespan(first, part, "a") is True
    assert await enter_lifespan(second, part, "a") is False
    await first.aclose()
    assert log == ["+a"]
    await second.aclose()
    assert log == ["+a", "-a"]
    async with AsyncExitStack() as third:
        assert await enter_lifespan(third, part, "a") is True
    assert log == ["+a", "-a"] * 2


async def test_a_copy_of_a_part_in_use_has_a_lifespan_of_its_own() -> None:
    log: list[str] = []
    part = Part(log)
    async with AsyncExitStack() as stack:
        await enter_lifespan(stack, part, "a")
        other = copy(part)
        other.name = "b"
        async with AsyncExitStack() as inner:
            assert await enter_lifespan(inner, other, "b")
            assert log == ["+a", "+b"]
        assert log == ["+a", "+b", "-b"]
    assert log == ["+a", "+b", "-b", "-a"]


async def test_users_may_leave_from_another_task() -> None:
    log: list[str] = []
    part, stack = Part(log), AsyncExitStack()
    async with anyio.create_task_group() as group:
        group.start_soon(enter_lifespan, stack, part, "a")
    async with anyio.create_task_group() as group:
        group.start_soon(stack.aclose)
    assert log == ["+a", "-a"]


async def test_users_who_come_at_once_enter_it_once() -> None:
    log: list[str] = []
    part = Part(log)
    part.gate = anyio.Event()

    async def use() -> None:
        async with AsyncExitStack() as stack:
            await enter_lifespan(stack, part, "a")

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(use)
        await anyio.wait_all_tasks_blocked()
        part.gate.set()
    assert log.count("+a") == log.count("-a") >= 1
    assert log[:2] == ["+a", "-a"]


@pytest.mark.parametrize(
    ("name", "stage", "order"), [("c", "entering", "+a +b -c -b -a"), ("b", "leaving", "+a +b +c -c -b -a")]
)
async def test_a_failure_is_raised_after_all_that_is_open_is_left(name: str, stage: str, order: str) -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match=name) as caught:
        async with AsyncExitStack() as stack:
            for part in (Part(log, each, *([stage] if each == name else ())) for each in "abc"):
                await enter_lifespan(stack, part, f"layer {part.name}")
    assert log == order.split()
    assert caught.value.__notes__ == [f"agentrt: raised by the lifespan of layer {name}"]


async def test_a_user_who_is_cancelled_while_entering_leaves_nothing() -> None:
    log: list[str] = []
    part = Part(log)
    part.gate = anyio.Event()
    with anyio.move_on_after(0.01):
        async with AsyncExitStack() as stack:
            await enter_lifespan(stack, part, "a")
    assert log == ["-a"]
    part.gate.set()
    async with AsyncExitStack() as stack:
        await enter_lifespan(stack, part, "a")
    assert log == ["-a", "+a", "-a"]


async def test_a_cancelled_user_leaves_it() -> None:
    log: list[str] = []
    with anyio.CancelScope() as scope:
        async with AsyncExitStack() as stack:
            await enter_lifespan(stack, Part(log), "a")
            scope.cancel()
            await anyio.sleep_forever()
    assert log == ["+a", "-a"]


async def test_a_lifespan_that_ends_by_itself_fails_its_next_user() -> None:
    log: list[str] = []
    part = Part(log)
    async with AsyncExitStack() as stack:
        await enter_lifespan(stack, part, "a")
        assert lifespan_failure(part) is None
        await fail_in(part)
        assert isinstance(lifespan_failure(part), ExceptionGroup)
        with pytest.raises(ExceptionGroup):
            async with AsyncExitStack() as second:
                await enter_lifespan(second, part, "a")
    assert log == ["+a", "-a"]
    async with AsyncExitStack() as stack:  # once all have left, it is entered anew
        await enter_lifespan(stack, part, "a")
    assert log == ["+a", "-a", "+a", "-a"]


async def test_an_end_that_nobody_has_seen_is_raised_at_the_end() -> None:
    part, stack = Part([]), AsyncExitStack()
    await enter_lifespan(stack, part, "a")
    await fail_in(part)
    with pytest.raises(ExceptionGroup):
        await stack.aclose()


async def test_an_end_without_an_error_is_a_failure() -> None:
    class Quiet:
        @asynccontextmanager
        async def lifespan(self) -> Any:
            try:
                async with anyio.create_task_group() as self.group:
                    yield
            except* KeyError:
                pass

    part = Quiet()
    with pytest.raises(AgentRTError, match="the lifespan of Quiet ended while it was used"):
        async with AsyncExitStack() as stack:
            await enter_lifespan(stack, part, "a")
            await fail_in(part)


async def test_a_new_user_waits_until_the_last_one_has_left() -> None:
    log: list[str] = []

    class Slow(Part):
        @asynccontextmanager
        async def lifespan(self):
            log.append("+")
            yield
            await self.gate.wait()
            log.append("-")

    part, first, second = Slow(log), AsyncExitStack(), AsyncExitStack()
    await enter_lifespan(first, part, "a")
    part.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(first.aclose)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(enter_lifespan, second, part, "a")
        await anyio.wait_all_tasks_blocked()
        assert log == ["+"]
        part.gate.set()
    await second.aclose()
    assert log == ["+", "-", "+", "-"]
