"""The context of a tool call, for the tool."""

import math
from collections.abc import Awaitable, Callable, Coroutine, ItemsView
from dataclasses import dataclass, field
from itertools import count
from threading import get_ident
from time import time_ns
from typing import Any, Generic, Protocol

from anyio import from_thread
from typing_extensions import TypeVar

from agentrt._runtime.block import HIDDEN_CALL, JSONObject, ToolCallBlock, ToolResultBlock, new_name
from agentrt._runtime.boundary import json_size
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import SessionUnserializable, UsageError
from agentrt.event import AgentEvent, ConfirmResult
from agentrt.types import ToolResponse
from agentrt.workspace import FileSystemBase

_LoopResult = TypeVar("_LoopResult")
# Bytes of JSON. The whole conversation of a sub-agent, with its pictures, is kept by its call.
_MAX_SAVED = 64_000_000
_CALL_ID = lazy_pattern(r"[^/\ud800-\udfff]{1,128}")
_Deps = TypeVar("_Deps", default=Any)


class RunLike(Protocol):
    """The part of a call's reply that a tool's context, and a tool that calls another agent, use."""

    @property
    def id(self) -> str: ...
    @property
    def agent(self) -> Any: ...
    @property
    def parent(self) -> "RunLike | None": ...
    @property
    def depth(self) -> int: ...
    @property
    def root(self) -> "RunLike": ...
    def begin_child(self, call_id: str, state: Any) -> str: ...
    @property
    def is_seen(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def deadline(self) -> float: ...
    def emit(self, event: AgentEvent) -> object: ...
    async def relay(self, event: AgentEvent) -> None: ...
    def now(self) -> int: ...
    def new_id(self) -> str: ...
    def scratch(self, middleware: object) -> dict[str, Any]: ...


class CallerLike(Protocol):
    """The part of the loop that makes the calls of a tool."""

    async def call(self, name: str, arguments: JSONObject | None, call_id: str) -> ToolResponse: ...
    async def close(self) -> None: ...
    async def finish(self, response: ToolResponse) -> None: ...


async def _save_nothing() -> None:
    pass


@dataclass(slots=True, repr=False, eq=False)
class CallMemory:
    """The saved data of a resumable call, and the way to save it; empty outside a reply.

    `caller` makes the calls of the tool, and is made by `open_caller` for the first of them. `numbered` counts the
    calls without an id of their own, and `named` has the ids of the others.
    """

    kept: JSONObject = field(default_factory=dict)
    answers: dict[str, ConfirmResult | ToolResultBlock] = field(default_factory=dict)
    save: Callable[[], Awaitable[None]] = _save_nothing
    open_caller: Callable[[], CallerLike] | None = None
    caller: CallerLike | None = None
    numbered: int = 0
    named: set[str] = field(default_factory=set)

    def id_of_call(self, chosen: object) -> str:
        """Return the id of the next call: the chosen one, or its number."""
        if chosen is None:
            self.numbered += 1
            call_id = str(self.numbered)
            is_taken = call_id in self.named
        elif not isinstance(chosen, str) or not _CALL_ID.fullmatch(chosen) or chosen.startswith(HIDDEN_CALL):
            raise UsageError(
                f"ToolContext.call(id=...) must be a str of 1 to 128 characters without '/', not {chosen!r:.200}"
            )
        else:
            call_id = chosen
            is_taken = call_id in map(str, range(1, self.numbered + 1))
            self.named.add(call_id)
        if is_taken:
            raise UsageError(f"the id {call_id!r} of a call is also the number of another one: give all calls an id")
        return call_id


def check_kept(tool_name: str, kept: JSONObject) -> None:
    """Raise `SessionUnserializable` for something that a call keeps and that JSON cannot hold, or for too much."""
    # One by one, so that the error names the key; a key of another type would come back from JSON as a str.
    items: ItemsView[Any, Any] = kept.items()
    size = 0
    for key, value in items:
        problem = None if isinstance(key, str) else "its key is not a str"
        if problem is None:
            try:
                size += json_size({key: value})
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            raise SessionUnserializable(
                f"what the tool {tool_name!r:.100} keeps as {key!r:.100} cannot be saved: {problem}; keep strings, "
                f"finite numbers, lists and dicts in ToolContext.kept"
            )
    if size > _MAX_SAVED:
        raise SessionUnserializable(
            f"the tool {tool_name!r:.100} keeps {size:,} bytes, and a call may keep {_MAX_SAVED:,}, since all of it "
            f"is saved each time: keep large data elsewhere, and only its address in ToolContext.kept"
        )


class ToolContext(Generic[_Deps]):
    """The context of a call, received through a parameter with this annotation, which the model never sees.

    `deps` is what the caller of the reply gave as such, of the type `Deps` in a parameter annotated
    `ToolContext[Deps]`; types are not checked at run time.

    It belongs to one call. Without an agent (`Toolkit.call_tool_function`) it is *detached*: ids and clock are its own,
    and what the tool emits is kept in `emitted`. It may be used from the worker thread of a plain function too.
    """

    __slots__ = (
        "_ids",
        "_memory",
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
        memory: CallMemory | None = None,
    ) -> None:
        self.tool_call = tool_call
        self.agent = agent
        self.active_groups = active_groups
        self.deps = deps
        self.emitted: list[AgentEvent] = []
        self.run = run
        self._on_active_groups = on_active_groups
        self._memory = memory
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
        self._reply_id = self._reply_id or new_name()
        return self._reply_id

    @property
    def idempotency_key(self) -> str:
        """The key of this call in all of its runs: "session/reply/call", if the conversation has a state.

        Give it to what the tool asks, so that a call which runs again after its process ended takes effect once.
        """
        session_id = getattr(getattr(self.agent, "state", None), "session_id", "")
        return f"{session_id}/{self.reply_id}/{self.tool_call.id}"

    @property
    def workspace(self) -> FileSystemBase | None:
        """The files that the agent's tools may use; `None` where the agent has none."""
        return getattr(self.agent, "workspace", None)

    @property
    def deadline(self) -> float:
        """When the reply must be over, on the clock of `anyio.current_time`; infinite without a limit."""
        return math.inf if self.run is None else self.run.deadline

    @property
    def kept(self) -> JSONObject:
        """The data of this call for a resume: JSON, saved with the reply, and deleted with the result.

        Only a tool with `is_resumable` has it. It is saved whenever the reply is, and by `save`.
        """
        return self._resumable_memory().kept

    @property
    def answers(self) -> dict[str, ConfirmResult | ToolResultBlock]:
        """The answers that came so far to what this call has asked, by the ids that it gave its questions.

        A question for the user has a `ConfirmResult`, an external one a `ToolResultBlock`. They stay until the call has
        its result, so a call that is entered once more finds them again.
        """
        return self._resumable_memory().answers

    async def save(self) -> None:
        """Save the conversation with what is kept now.

        Raises `SessionUnserializable` for what JSON cannot hold, and for more than 64 MB.
        """
        memory = self._resumable_memory()
        check_kept(self.tool_call.name, memory.kept)
        await memory.save()

    def call(
        self, name: str, arguments: JSONObject | None = None, *, id: str | None = None
    ) -> Coroutine[Any, Any, ToolResponse]:
        """Call another tool, as the model would: it is decided on, run, shown and saved as any call.

        Returns its result, which may say that it failed or was denied, or `ToolResponse(waits=[...])`, which the tool
        is to return, joined with those of others: then it is entered again when there is an answer. Entered again, it
        must make the same calls: those that have a result get it at once. `id` is the number of the call in its tool
        call unless given; give it where several calls are made at once and their order may differ. Tools are those of
        `inner_toolkit`, if the tool has one, and else of the round, without this one.

        Only a tool with `is_resumable` may use it. Raises `UsageError` outside of a reply, and for a call that is not
        the one that was made under this id before. What a layer or the store raises leaves the reply. To be awaited on
        the event loop.
        """
        memory = self._resumable_memory()
        if memory.open_caller is None:
            raise UsageError(
                f"the tool {self.tool_call.name!r} used call() of its ToolContext outside of a reply: have an agent "
                f"call the tool"
            )
        # Here and not when it is awaited: side by side, the calls have the order in which they were written.
        call_id = memory.id_of_call(id)
        if memory.caller is None:
            memory.caller = memory.open_caller()
        return memory.caller.call(name, arguments, call_id)

    def _resumable_memory(self) -> CallMemory:
        if self._memory is None:
            if self.run is not None:
                raise UsageError(
                    f"the tool {self.tool_call.name!r} used kept, answers, save() or call() of its ToolContext, which "
                    f"only resumable calls have: set is_resumable = True on it"
                )
            self._memory = CallMemory()
        return self._memory

    def emit(self, event: AgentEvent) -> None:
        """Put an event into the reply's stream; it is seen at once, also while the tool waits."""
        if self.run is None:
            self.emitted.append(event)
        else:
            self._on_loop(self.run.emit, event)

    async def relay(self, event: AgentEvent) -> None:
        """Put an event of another reply, such as a sub-agent's, into this reply's stream, as soon as there is room.

        A slow reader slows down the other reply so, and nothing piles up. The event gets a number of this conversation
        in a copy, and changes nothing in this reply's message. To be awaited on the event loop.
        """
        if self.run is None:
            self.emitted.append(event)
        else:
            await self.run.relay(event)

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
