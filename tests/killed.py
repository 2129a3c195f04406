"""Processes that kill themselves with SIGKILL at one place, and the programs that fork them."""

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import anyio
import pytest

from agentrt import AgentState
from agentrt.state import FileStateStore

Reach = Callable[[str], None]
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="there is neither SIGKILL nor fork")


class TellingStore(FileStateStore):
    def __init__(self, directory: Path, reach: Reach) -> None:
        super().__init__(directory)
        self.reach = reach

    async def save(self, state: AgentState) -> None:
        self.reach("before a save")
        await super().save(state)
        self.reach("after a save")


def end_threads() -> None:
    """Wait for the threads of replies that are over: a fork has none of them, but the locks that they hold."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(30)
            assert not thread.is_alive(), thread


def run_in_fork(
    live: Callable[[Path, Reach], Awaitable[None]], directory: Path, backend: str, kill_at: int, where: str = ""
) -> bool:
    """Live in a process of its own, which is killed at that place; returns whether it was.

    Only the places whose names begin with `where` count.
    """
    pid = os.fork()
    if not pid:
        status = 1
        try:
            left = count(1)

            def reach(place: str) -> None:
                if place.startswith(where) and next(left) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            anyio.run(live, directory, reach, backend=backend)
            status = 0
        except BaseException:  # noqa: BLE001  # the status says so
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert status == 0, f"the process failed at {kill_at}"
    return False


def output_of(program: Path, *arguments: object) -> str:
    """Run a program that kills processes, and return what it prints."""
    command = [sys.executable, "-W", "error", str(program), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
