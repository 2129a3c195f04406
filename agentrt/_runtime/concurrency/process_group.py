"""The processes of one group: signals to all of them, and the end of the one that leads it."""

import os
from contextlib import suppress

import anyio
from anyio.abc import Process


async def has_ended(process: Process, seconds: float) -> bool:
    """Wait for the end of the process for at most this many seconds; returns whether it has ended."""
    # Not by `wait()`, which on asyncio also waits for the pipes, and these a grandchild may keep open.
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return process.returncode is not None


def signal_group(process: Process, number: int) -> bool:
    """Send a signal to all processes of the group; returns whether there were any."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)  # the id of its leader is that of the group, also when the leader has ended
            return True
        if number:
            process.kill()
    return False


async def close_pipes(process: Process) -> None:
    """Close this end of the process's pipes."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.aclose()
    # A pipe that a process outside of the group keeps open would keep the transport of asyncio open.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(OSError):
            transport.close()
