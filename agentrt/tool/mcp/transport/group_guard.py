"""Ends the processes of a server when this program dies, even by a signal that it cannot handle."""

import os
from contextlib import suppress
from subprocess import DEVNULL

import anyio
from anyio.abc import Process

# It reads the id of the group, and then blocks until this program reports that the group has ended, or dies. After a
# death it ends the group as a connection does: first the server has time to end by itself, as its input has ended.
# PR_SET_PDEATHSIG of Linux does not help: it fires when the thread that started the child ends, such as one of a pool,
# and reaches only the child, which may be `npx`, and not the server behind it.
_GUARD_SCRIPT = """
read group || exit
read word && exit
sleep 2
kill -s TERM -- "-$group"
sleep 2
kill -s KILL -- "-$group"
"""
_GUARD_SECONDS = 2.0


class GroupGuard:
    """A small shell process in its own session; on a system without /bin/sh, nothing is guarded."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_watching = False

    async def start(self) -> None:
        """Start the guard, before the group, since this program may die in between."""
        with suppress(OSError):
            self._process = await anyio.open_process(
                ["/bin/sh", "-c", _GUARD_SCRIPT],
                env={"PATH": os.defpath},
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
            )

    async def watch(self, group: int) -> None:
        """Have the guard end this group of processes if this program dies."""
        self._is_watching = True
        await self._write(f"{group}\n")

    async def close(self) -> None:
        """End the guard, after the group has ended or could not be started."""
        if self._is_watching:
            await self._write("ended\n")
        if self._process is not None:
            with anyio.move_on_after(_GUARD_SECONDS):  # after that it is killed
                await self._process.aclose()

    async def _write(self, text: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._process.stdin.send(text.encode())
