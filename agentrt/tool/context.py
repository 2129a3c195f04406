"""What a tool may know about the call that runs it."""

import math
from collections.abc import Callable
from itertools import count
from threading import get_ident
from time import time_ns
from typing import Any, Generic, Protocol

from anyio import from_thread
from typing_extensions import TypeVar

from agentrt.block import ToolCallBlock, new_id
from agentrt.errors import UsageError
from agentrt.event import AgentEvent
from agentrt.representation import never_raises
from agentrt.workspace import FileSystemBase

__all__ = ["RunLike", "ToolContext"]

_LoopResult = TypeVar("_LoopResult")
_Deps = TypeVar("_Deps", default=Any)


class RunLike(Protocol):
    """What a tool's context needs of the reply that it belongs to."""

    @property
    def id(self) -> str: ...
    @property
    def deadline(self) -> float: ...
    def emit(self, event: AgentEvent) -> object: ...
    def now(self) -> int: ...
    def new_id(self) -> str: ...


class ToolContext(Generic[_Deps]):
    """What a tool receives through a parameter with this annotation; the model never sees that parameter.

    `deps` is what the caller of the reply gave as such, of the type `Deps` in a parameter annotated
    `ToolContext[Deps]`; types are not checked at run time.

    It belongs to one call. Without an agent (`Toolkit.call_tool_function`) it is *detached*: ids and clock are its own,
    and what the tool emits is kept in `emitted`. It may be used from the worker thread of a plain function too.
    """

    __slots__ = (
        "_ids",
        "_on_active_groups",
        "_reply_id",
        "_thread",
        "active_groups",
        "agent",
        "deps",
        "emitted",
        "run",
        "tool_call",
    )

    def __init__(
        self,
        tool_call: ToolCallBlock,
        agent: Any = None,
        run: RunLike | None = None,
        *,
        active_groups: list[str] | None = None,
        on_active_groups: Callable[[list[str]], object] | None = None,
        deps: _Deps = None,  # type: ignore[assignment]  # who annotates another type gives one
    ) -> None:
        self.tool_call = tool_call
        self.agent = agent
        self.active_groups = active_groups
        self.deps = deps
        self.emitted: list[AgentEvent] = []
        self.run = run
        self._on_active_groups = on_active_groups
        self._thread = get_ident()
        self._reply_id: str | None = None
        self._ids = count(1)  # used only outside of a reply

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the call {self.tool_call.id!r} of {self.tool_call.name!r}>"

    @property
    def reply_id(self) -> str:
        """The reply's id."""
        if self.run is not None:
            return self.run.id
        self._reply_id = self._reply_id or new_id()
        return self._reply_id

    @property
    def workspace(self) -> FileSystemBase | None:
        """The files that the agent's tools may use; `None` where the agent has none."""
        return getattr(self.agent, "workspace", None)

    @property
    def deadline(self) -> float:
        """When the reply must be over, on the clock of `anyio.current_time`; infinite without a limit."""
        return math.inf if self.run is None else self.run.deadline

    def emit(self, event: AgentEvent) -> None:
        """Put an event into the reply's stream; it is seen at once, also while the tool waits."""
        if self.run is None:
            self.emitted.append(event)
        else:
            self._on_loop(self.run.emit, event)

    def now(self) -> int:
        """Return the time in nanoseconds since the epoch, by the reply's clock."""
        return time_ns() if self.run is None else self._on_loop(self.run.now)

    def new_id(self) -> str:
        """Return an id that nothing else in the reply has."""
        return f"{self.reply_id}-{next(self._ids)}" if self.run is None else self._on_loop(self.run.new_id)

    def set_active_groups(self, names: list[str]) -> None:
        """Set the groups of tools that the conversation offers from its next round on."""
        if self._on_active_groups is None:
            raise UsageError("this tool call belongs to no conversation: use Toolkit.update_tool_groups instead")
        self._on_loop(self._on_active_groups, names)
        self.active_groups = names

    def _on_loop(self, function: Callable[..., _LoopResult], *arguments: object) -> _LoopResult:
        # Only the thread of the event loop may touch what belongs to the reply.
        return from_thread.run_sync(function, *arguments) if get_ident() != self._thread else function(*arguments)
