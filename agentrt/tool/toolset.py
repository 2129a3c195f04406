"""Tools whose list may change, such as those of a server."""

from collections.abc import Sequence
from typing import Self

import anyio

from agentrt._runtime.concurrency.event_loop import run_shielded, running_loop
from agentrt._runtime.text import repr_of
from agentrt.errors import ToolConfigError, UsageError
from agentrt.tool.base import ToolBase

_MAX_CLOSE_SECONDS = 60.0


class Toolset:
    """Tools whose list may change, such as those of a server; a `Toolkit` takes it beside tools and groups.

    A subclass sets `name` and overrides `list_tools`. `open` is called once before the first list, and `close` after
    the last call, in the same event loop but perhaps in another task. `async with` an agent or a toolkit that has the
    toolset opens and closes it, and so does `async with toolset`. If several overlap, the first one opens the toolset,
    and the last one closes it. A subclass need not call `super().__init__()`.

    Set `changed` to `True` when the list has changed: agents read it again before their next round, and the calls of a
    round run with the tools that the model was offered in it.
    """

    name: str = ""

    changed: bool = True
    """Whether `list_tools` may return another list than the last time."""

    _users = 0
    _lock: anyio.Lock | None = None
    _loop: object = None
    _tools: tuple[ToolBase, ...] = ()

    async def open(self) -> None:
        """Get ready to list tools and to run them, such as by starting a server."""

    async def close(self) -> None:
        """Release what `open` has acquired. It is shielded from cancellation, for at most 60 seconds."""

    async def list_tools(self) -> Sequence[ToolBase]:
        """Return the tools of this moment."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `list_tools`")

    async def tools(self) -> tuple[ToolBase, ...]:
        """Return the tools: the same tuple each time, until `changed` says that there are others.

        Raises `UsageError` when the toolset is not open.
        """
        self.check_open()
        if self.changed:
            # One caller reads the list, and those that wait meanwhile get the same.
            async with self._shared_lock():
                if self.changed:
                    self.changed = False  # before the call: the list may change again meanwhile
                    try:
                        self._tools = tuple(await self.list_tools())
                    except BaseException:
                        self.changed = True
                        raise
        return self._tools

    @property
    def is_open(self) -> bool:
        """Whether `async with` has opened it, and not closed it yet."""
        return self._users > 0

    @property
    def status(self) -> str:
        """Its status in `explain()`: "open", "not open", or the reason for having no tools."""
        return "open" if self.is_open else "not open"

    def check_open(self) -> None:
        """Raise `UsageError` unless the toolset is open in this event loop."""
        if not self.is_open:
            raise UsageError(
                f"the toolset {self.name!r} is not open: write `async with agent:` (or `async with toolkit:`) around "
                f"what uses its tools"
            )
        if self._loop is not running_loop():
            raise UsageError(
                f"the toolset {self.name!r} was opened in another event loop: give each event loop a toolset of its own"
            )

    async def __aenter__(self) -> Self:
        if self.is_open:
            self.check_open()
        async with self._shared_lock():
            if not self._users:
                self._loop, self.changed = running_loop(), True
                await self.open()
            self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        # Shielded: what `open` has started must not outlive the block.
        await run_shielded(_MAX_CLOSE_SECONDS, self._leave)

    async def _leave(self) -> None:
        async with self._shared_lock():
            self._users -= 1
            if not self._users:
                self._tools, self.changed = (), True
                await self.close()

    def __getstate__(self) -> dict[str, object]:
        # A copy is not open: what `open` has started is not copied.
        closed: dict[str, object] = {"_users": 0, "_lock": None, "_loop": None, "_tools": (), "changed": True}
        return {**vars(self), **closed}

    def _shared_lock(self) -> anyio.Lock:
        # Not in the constructor, which a subclass need not call.
        if self._lock is None or not (self._users or self._lock.locked()):  # it may be of another event loop
            self._lock = anyio.Lock()
        return self._lock


def check_toolset(toolset: Toolset) -> None:
    """Raise `ToolConfigError` for a toolset that cannot be told from others."""
    name: object = toolset.name
    if not isinstance(name, str) or not name.strip():
        raise ToolConfigError(f"{type(toolset).__name__} has no name: set `name`, a str, not {repr_of(name)}")
