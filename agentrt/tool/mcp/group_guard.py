"""Ends the processes of a server when this program dies, even by a signal that it cannot handle."""

import os
from contextlib import suppress
from subprocess import DEVNULL

import anyio
from anyio.abc import Process

__all__ = ["GroupGuard"]

# It reads the group, and then nothing until this program says that the group has ended, or is not there any more. The
# steps after that are those of the connection: a server may end by itself when its input has ended.
# The signal that Linux can send at the death of a parent is of no use: it comes when the thread that started the child
# ends, such as one of a pool, and reaches the child alone, which may be `npx`, and not the server behind it.
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
    """A small process in a session of its own; without a shell, it does nothing."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_watching = False

    async def start(self) -> None:
        """Start it, before the group: in between, this program may die."""
        with suppress(OSError):
            self._process = await anyio.open_process(
                ["/bin/sh", "-c", _GUARD_SCRIPT],
                env={"PATH": os.defpath},
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
            )

    async def watch(self, group: int) -> None:
        """Have it end this group of processes when this program is not there any more."""
        self._is_watching = True
        await self._write(f"{group}\n")

    async def close(self) -> None:
        """End it, since the group has ended; or because there is none."""
        if self._is_watching:
            await self._write("ended\n")
        if self._process is not None:
            with anyio.move_on_after(_GUARD_SECONDS):  # then it is killed
                await self._process.aclose()

    async def _write(self, text: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._process.stdin.send(text.encode())
