"""Programs that the tests run as processes of their own: as `python children.py DIRECTORY TIMES` it kills savers."""

import os
import random
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import anyio

from agentrt.errors import SessionConflict
from agentrt.message import UserMsg
from agentrt.state import AgentState, FileStateStore, file, file_store

NUMBER = struct.Struct("q")


class PiecewiseOS:
    """The module `os`, but no write takes more than 3,000 bytes, so that a process may be killed inside of a line.

    One of the writes into a file whose name ends with `wanted` kills it, unless that is empty.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._left = random.randint(1, 30)
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, *arguments: Any, **options: Any) -> int:
        descriptor = os.open(path, *arguments, **options)
        self._paths[descriptor] = str(path)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        written = os.write(descriptor, data[:3000])
        if self._wanted and written < len(data) and self._paths[descriptor].endswith(self._wanted):
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return written


def summary_of(number: int) -> str:
    """Return a text that tells its number and shows when a part of it is missing."""
    return f"{number} {'x' * 20_000} {number}"


def edit(texts: list[str], number: int) -> None:
    """Make of the texts of one save those of the next."""
    texts += [f"{number} {'y' * 500}"] * (number % 3)
    if number % 7 == 0:
        del texts[-2:]
    if number % 50 == 0:
        del texts[:30]


def texts_of(number: int) -> list[str]:
    texts: list[str] = []
    for each in range(1, number + 1):
        edit(texts, each)
    return texts


async def load(directory: str, store: FileStateStore | None = None) -> tuple[AgentState, int]:
    state = await (store or FileStateStore(directory)).load("s") or AgentState(session_id="s", summary=summary_of(0))
    number = int(state.summary.split()[0])
    assert state.summary == summary_of(number)
    assert [message.content for message in state.context] == texts_of(number)
    return state, number


async def save_for_ever(directory: str, pipe: int, wanted: str) -> None:
    """Save one number after the other, and tell each that is safe."""
    store = FileStateStore(directory)
    state, last = await load(directory, store)
    texts = texts_of(last)
    for number in range(last + 1, sys.maxsize):
        before = list(texts)
        edit(texts, number)
        pairs = zip(before, texts, strict=False)
        differing = (index for index, (old, new) in enumerate(pairs) if old != new)
        kept = next(differing, min(len(before), len(texts)))
        state.context[kept:] = [UserMsg("user", text) for text in texts[kept:]]
        state.summary = summary_of(number)
        await store.save(state)
        os.write(pipe, NUMBER.pack(number))
        if number == last + 1:
            file.os = file_store.os = PiecewiseOS(wanted)  # type: ignore[assignment]


def killed_once(directory: str, wanted: str) -> str:
    """Kill a process in the middle of its saves, by chance or in a file that is wanted; return where that was."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        anyio.run(save_for_ever, directory, its, wanted)
    os.close(its)
    [told] = NUMBER.unpack(os.read(ours, NUMBER.size))
    if not wanted:
        time.sleep(random.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while rest := os.read(ours, NUMBER.size):
        [told] = NUMBER.unpack(rest)
    os.close(ours)
    _, found = anyio.run(load, directory)
    assert found in (told, told + 1), f"told {told}, found {found}"
    if [*Path(directory).glob("*.tmp")]:
        return "in a new file"
    [path] = Path(directory).glob("*.state")
    return "elsewhere" if path.read_bytes().endswith(b"\n") else "in a line"


def kill(directory: str, times: str) -> None:
    # By chance alone, few are killed inside of a line where the disk is slow, and few elsewhere where it is quick.
    places = Counter(killed_once(directory, wanted) for wanted in islice(cycle(["", ".state", ".tmp"]), int(times)))
    sys.stdout.write(f"whole after {times} kills: {dict(sorted(places.items()))}")


async def increment(directory: str, times: str) -> None:
    """Add one to a number that other processes add to as well."""
    store = FileStateStore(directory)
    for _ in range(int(times)):
        await again_after_conflicts(partial(increment_once, store))


async def increment_once(store: FileStateStore) -> None:
    state = await store.load("s") or AgentState(session_id="s", summary="0")
    state.summary = str(int(state.summary) + 1)
    await store.save(state)


async def again_after_conflicts(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await work()
        except SessionConflict:
            await anyio.sleep(random.uniform(0, 0.005))


if __name__ == "__main__":
    kill(*sys.argv[1:])
