"""The number of threads, as /proc has it: the kernel's own limit of processes does not hold for root."""

import json
import os
from contextlib import suppress
from pathlib import Path

import anyio

_COUNT_SECONDS = 0.02


async def watch_threads(info: int, limit: int) -> str:
    """Return that a sandbox has more threads than the limit, as soon as it has.

    `info` is the descriptor of the pipe to which bubblewrap writes the id of the first process.
    """
    text = b""
    while not text.rstrip().endswith(b"}"):
        await anyio.wait_readable(info)
        text += os.read(info, 10_000)
    processes = Path(f"/proc/{json.loads(text)['child-pid']}/root/proc")
    # Bubblewrap has one process of its own inside.
    while count_threads(processes) <= limit + 1:  # noqa: ASYNC110  # the kernel has no event for it
        await anyio.sleep(_COUNT_SECONDS)
    return f"more than {limit} processes at a time"


def count_threads(processes: Path, user: int | None = None) -> int:
    """Return how many threads this /proc shows: those of one user, or all that are in a sandbox."""
    count = 0
    with suppress(OSError):  # the sandbox has ended
        # Until the sandbox is ready, its first process sees the /proc of this machine.
        if user is None and processes.stat().st_dev == os.stat("/proc").st_dev:
            return 0
        for process in processes.glob("[0-9]*"):
            with suppress(OSError):  # this one has ended
                if user is None or process.stat().st_uid == user:
                    count += (process / "task").stat().st_nlink - 2  # one link for each thread
    return count
