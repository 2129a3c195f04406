"""Work that runs one at a time, where one run serves all who waited for it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Thread
from typing import Any

import anyio.lowlevel
import pytest

from agentrt._runtime.concurrency.coalescing import CoalescedWork


class Saving:
    """Saves what was written so far, slowly: a save is over once `go_on` allows one more."""

    def __init__(self) -> None:
        self.work = CoalescedWork()
        self.written: list[str] = []
        self.saved: list[list[str]] = []
        self.running = 0
        self.begun = anyio.Event()
        self.permits = anyio.Semaphore(0)
        self.errors: list[Exception | None] = []

    async def write(self, text: str) -> None:
        self.written.append(text)
        await self.work.run(self.save)
        assert any(text in saved for saved in self.saved), "it was told that this is saved"

    async def save(self) -> None:
        assert not self.running, "two saves at a time"
        self.running += 1
        snapshot = list(self.written)
        self.begun.set()
        try:
            await self.permits.acquire()
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
            self.saved.append(snapshot)
        finally:
            self.running -= 1

    def go_on(self, saves: int = 100) -> None:
        for _ in range(saves):
            self.permits.release()


async def settle() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def saving() -> Saving:
    return Saving()


async def test_saves_asked_for_meanwhile_become_one_with_all_of_them(saving):
    async with anyio.create_task_group() as group:
        group.start_soon(saving.write, "a")
        await saving.begun.wait()
        for text in "bcd":
            group.start_soon(saving.write, text)
        await settle()
        saving.go_on()
    assert [sorted(snapshot) for snapshot in saving.saved] == [["a"], ["a", "b", "c", "d"]]


async def test_what_comes_during_the_second_save_needs_a_third(saving):
    async with anyio.create_task_group() as group:
        group.start_soon(saving.write, "a")
        await saving.begun.wait()
        group.start_soon(saving.write, "b")
        await settle()
        saving.go_on(1)
        await settle()
        group.start_soon(saving.write, "c")
        await settle()
        saving.go_on()
    assert saving.saved == [["a"], ["a", "b"], ["a", "b", "c"]]


async def test_saves_one_after_the_other_are_as_many_saves(saving):
    saving.go_on()
    for text in "abc":
        await saving.write(text)
    assert len(saving.saved) == 3


async def run_and_note(saving: Saving, text: str, outcomes: dict[str, Any]) -> None:
    try:
        await saving.write(text)
    except OSError as error:
        outcomes[text] = error
    else:
        outcomes[text] = "saved"


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_save_that_fails_fails_for_its_own_caller_only(failing: int, saving: Saving):
    full = OSError("full")
    saving.errors = [*[None] * failing, full]
    outcomes: dict[str, Any] = {}
    async with anyio.create_task_group() as group:
        group.start_soon(run_and_note, saving, "a", outcomes)
        await saving.begun.wait()
        for text in "bc":
            group.start_soon(run_and_note, saving, text, outcomes)
            await settle()
        saving.go_on()
    failed = [text for text, outcome in outcomes.items() if outcome is full]
    assert failed == ["ab"[failing]]
    assert set(outcomes) == {"a", "b", "c"}
    await saving.write("d")
    assert saving.saved[-1] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("leaving", ["a", "b", "c"])
async def test_a_cancelled_caller_keeps_no_other_from_being_saved(leaving: str, saving: Saving):
    scopes = {text: anyio.CancelScope() for text in "abc"}
    done: list[str] = []

    async def write(text: str) -> None:
        with scopes[text]:
            await saving.write(text)
            done.append(text)

    async with anyio.create_task_group() as group:
        for text in "abc":
            group.start_soon(write, text)
            await settle()
        scopes[leaving].cancel()
        await settle()
        saving.go_on()
    assert sorted(done) == sorted({"a", "b", "c"} - {leaving})
    await saving.write("d")
    assert not saving.running


@pytest.mark.parametrize("others", [0, 1])
async def test_a_caller_cancelled_as_its_turn_comes_passes_it_on(others: int, saving: Saving):
    scope = anyio.CancelScope()
    done: list[str] = []

    async def first() -> None:
        await saving.write("a")
        scope.cancel()  # before the next task has taken its turn

    async def second() -> None:
        with scope:
            await saving.write("b")

    async def third() -> None:
        await saving.write("c")
        done.append("c")

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await saving.begun.wait()
        group.start_soon(second)
        await settle()
        for _ in range(others):
            group.start_soon(third)
            await settle()
        saving.go_on()
    assert done == ["c"] * others
    await saving.write("d")
    assert saving.saved[-1][-1] == "d"


async def test_a_caller_whose_wait_takes_too_long_leaves(saving):
    async with anyio.create_task_group() as group:
        group.start_soon(saving.write, "a")
        await saving.begun.wait()
        with anyio.move_on_after(0) as scope:
            await saving.write("b")
        assert scope.cancelled_caught
        saving.go_on()
    assert saving.saved == [["a"]]


def test_callers_in_many_threads_and_event_loops_are_all_served():
    work, running, saved, written = CoalescedWork(), [], [], []
    told: list[bool] = []

    async def save() -> None:
        assert not running
        running.append(1)
        snapshot = list(written)
        await anyio.lowlevel.checkpoint()
        running.pop()
        saved.append(snapshot)

    async def write(name: str) -> None:
        for number in range(50):
            written.append((name, number))
            await work.run(save)
            told.append((name, number) in saved[-1] or any((name, number) in snapshot for snapshot in saved[-20:]))

    backends: list[str] = ["asyncio", "trio", "asyncio", "trio"]
    threads = [
        Thread(target=partial(anyio.run, write, f"{backend}{index}", backend=backend))
        for index, backend in enumerate(backends)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert told == [True] * 200
    assert len(saved) <= 200


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_work_serves_one_event_loop_after_the_other(backend: str):
    work = CoalescedWork()
    saves: list[int] = []

    async def save() -> None:
        saves.append(1)
        await anyio.lowlevel.checkpoint()

    async def write_twice() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(work.run, save)
            group.start_soon(work.run, save)

    for _ in range(2):
        anyio.run(write_twice, backend=backend)
    assert len(saves) == 4


def test_an_event_loop_that_ends_in_a_save_leaves_it_to_others():
    work = CoalescedWork()
    saved: list[str] = []

    async def hang() -> None:
        await asyncio.Event().wait()

    async def save() -> None:
        saved.append("saved")

    def run(*saves: Callable[[], Awaitable[object]]) -> None:
        async def main() -> None:
            tasks = [asyncio.ensure_future(work.run(one)) for one in saves]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del tasks

        asyncio.run(main())

    run(hang, hang)  # which asyncio.run cancels
    anyio.run(work.run, save)
    assert saved == ["saved"]
