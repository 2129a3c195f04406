"""Programs that the tests run as processes of their own: `python children.py NAME DIRECTORY ARGUMENT`."""

import os
import random
import signal
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

from agentrt.errors import SessionConflict
from agentrt.state import AgentState, FileStateStore

NUMBER = struct.Struct("q")


def summary_of(number: int) -> str:
    """Return a text that tells its number and shows when a part of it is missing."""
    return f"{number} {'x' * 50_000} {number}"


async def load(directory: str) -> AgentState:
    return await FileStateStore(directory).load("s") or AgentState(session_id="s", summary=summary_of(0))


async def save_for_ever(directory: str, pipe: int) -> None:
    """Save one number after the other, and tell each that is safe."""
    store, state = FileStateStore(directory), await load(directory)
    for number in range(int(state.summary.split()[0]) + 1, sys.maxsize):
        state.summary = summary_of(number)
        await store.save(state)
        os.write(pipe, NUMBER.pack(number))


def killed_once(directory: str) -> bool:
    """Kill a process in the middle of its saves; return whether that left a temporary file."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        anyio.run(save_for_ever, directory, its)
    os.close(its)
    [told] = NUMBER.unpack(os.read(ours, NUMBER.size))
    time.sleep(random.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while rest := os.read(ours, NUMBER.size):
        [told] = NUMBER.unpack(rest)
    os.close(ours)
    found = anyio.run(load, directory).summary
    assert found in (summary_of(told), summary_of(told + 1)), f"told {told}, found {found[:20]!r}"
    return bool([*Path(directory).glob("*.tmp")])


def kill(directory: str, times: str) -> None:
    left = sum(killed_once(directory) for _ in range(int(times)))
    sys.stdout.write(f"whole after {times} kills, {left} of them with a temporary file")


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
    program, *arguments = sys.argv[1:]
    if program == "kill":
        kill(*arguments)
    else:
        anyio.run(increment, *arguments)
