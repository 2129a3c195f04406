"""A reply as a stream, and whose turn it is in a conversation."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from threading import RLock
from types import TracebackType
from typing import Literal, NoReturn, Protocol

import anyio

from agentrt.agent.host import Reaper, Wish, inside_of
from agentrt.agent.interrupt import Interruption
from agentrt.block import new_id
from agentrt.errors import AgentBusyError
from agentrt.event import AgentEvent
from agentrt.message import Msg
from agentrt.state import AgentState

__all__ = ["CurrentReply", "ReplyStream", "Ticket", "Turns", "WhenBusy", "turns_of"]

WhenBusy = Literal["raise", "wait"]
_REAP_SECONDS = 15.0
_FOR_ITSELF = (
    "a reply cannot wait for itself: this call comes from inside the reply that has the conversation, "
    "from one of its tools or middlewares or from the code that reads its stream"
)
_FOR_EACH_OTHER = (
    "two replies would wait for each other for ever: the one that has this conversation waits, itself or through "
    "others, for a conversation that this call comes from inside of: ask before or after that reply, or in a "
    "conversation of its own, agent.with_state(AgentState())"
)
# The turns that each task waits for; such a task may be the reader of another reply.
_awaited_by: dict[int | None, "Turns"] = {}


class Ticket:
    """One reply's claim on its conversation.

    `drained` says that one task reads it from start to end, `printed` that what is read is printed, `dropped` that
    nobody holds its stream any more. `is_named` says that the caller gave the reply its id; the numbers of its events
    are above `after`. `awaits` holds the turns that its tools and layers wait for.
    """

    __slots__ = ("after", "awaits", "drained", "dropped", "is_named", "printed", "reaper", "reply_id", "task", "turns")

    def __init__(self, reply_id: str | None = None, after: int = 0) -> None:
        self.is_named = reply_id is not None
        self.reply_id = reply_id or new_id()
        self.after = after
        self.drained = self.dropped = self.printed = False
        self.reaper: Reaper | None = None
        self.task: int | None = None
        self.turns: Turns | None = None
        self.awaits: list[Turns] = []

    def give_back(self) -> None:
        """Let go of the conversation, if this reply has it."""
        if self.turns is not None:
            self.turns.give_back(self)


class CurrentReply(Protocol):
    """What is needed of a reply in progress in order to stop it."""

    id: str
    interruption: Interruption


class Turns:
    """One reply at a time: who has the conversation, and who waits for it, in order.

    They belong to the state object, which several agents may share, also in several threads and event loops. `run` is
    the reply in progress.
    """

    __slots__ = ("_holder", "_lock", "_waiting", "run")

    def __init__(self) -> None:
        self.run: CurrentReply | None = None
        self._holder: Ticket | None = None
        self._lock = RLock()  # a dropped stream may be collected under it
        self._waiting: deque[tuple[Ticket, Wish]] = deque()

    def take_free(self, ticket: Ticket, when_busy: WhenBusy) -> bool:
        """Take the conversation if nobody has it, and nothing has to be noted for those who may wait for it."""
        if when_busy == "wait" or not self._claim(ticket):
            return False
        ticket.turns = self
        ticket.reaper = Reaper()
        return True

    async def take(self, ticket: Ticket, when_busy: WhenBusy) -> None:
        """Take the conversation; raises `AgentBusyError` when another reply has it and will not let go by itself."""
        if when_busy == "wait":
            ticket.task = anyio.get_current_task().id
        if not self._claim(ticket):
            await self._take_later(ticket, when_busy)
        ticket.turns = self
        ticket.reaper = Reaper()

    def _claim(self, ticket: Ticket) -> bool:
        with self._lock:
            if self._holder is None:
                self._holder = ticket
            return self._holder is ticket

    async def _take_later(self, ticket: Ticket, when_busy: WhenBusy) -> None:
        holder = self._holder
        if holder is not None and holder.dropped:
            await self._wait(ticket, _REAP_SECONDS)
        elif when_busy == "wait":
            await self._wait_without_deadlock(ticket)
        else:
            raise AgentBusyError(
                "this conversation already has a reply in progress: finish it, close it with `await stream.aclose()`, "
                "use `agent.with_state(AgentState())` for a conversation beside it, or build the agent with "
                "when_busy='wait'"
            )

    async def _wait_without_deadlock(self, ticket: Ticket) -> None:
        """Wait; raises `AgentBusyError` if the reply that has the conversation waits for this one in turn."""
        outer = [reply for reply in inside_of.get() if isinstance(reply, Ticket)]
        self._refuse_deadlock(outer, ticket)
        assert ticket.task is not None  # noted in `take`
        for reply in outer:
            reply.awaits.append(self)
        _awaited_by[ticket.task] = self
        try:
            await self._wait(ticket, None)
        finally:
            del _awaited_by[ticket.task]
            for reply in outer:
                reply.awaits.remove(self)

    def _refuse_deadlock(self, outer: list[Ticket], ticket: Ticket) -> None:
        seen: set[Turns] = set()
        turns = [self]
        while turns:
            each = turns.pop()
            holder = each._holder
            if holder is None or each in seen:
                continue
            seen.add(each)
            if holder.task == ticket.task or holder in outer:
                raise AgentBusyError(_FOR_ITSELF if each is self else _FOR_EACH_OTHER)
            turns += holder.awaits
            if holder.task in _awaited_by:
                turns.append(_awaited_by[holder.task])

    def give_back(self, ticket: Ticket) -> None:
        """Let go of the conversation; whoever has waited longest has it next."""
        with self._lock:
            if self._holder is not ticket:
                return
            self._holder = self.run = None
            while self._waiting and self._holder is None:
                following, turn = self._waiting.popleft()
                self._holder = following  # before the wait can end
                if not turn.grant():
                    self._holder = None

    async def _wait(self, ticket: Ticket, seconds: float | None) -> None:
        turn = Wish()
        with self._lock:
            if self._claim(ticket):  # given back in another thread just now
                return
            self._waiting.append((ticket, turn))
        try:
            with anyio.move_on_after(seconds):
                await turn.granted()
        except BaseException:  # cancelled: the turn must go on to the next, whether it was given already or not
            self._leave(ticket, turn)
            raise
        if self._holder is not ticket:
            self._leave(ticket, turn)
            raise AgentBusyError(f"the reply before this one was abandoned and is still not closed after {seconds} s")

    def _leave(self, ticket: Ticket, turn: Wish) -> None:
        with self._lock:
            if self._holder is ticket:
                self.give_back(ticket)
            elif (ticket, turn) in self._waiting:
                self._waiting.remove((ticket, turn))


_making_turns = RLock()


def turns_of(state: AgentState) -> Turns:
    """Return the turns of the conversation that the state object is."""
    turns: Turns | None = getattr(state, "in_process", None)
    if turns is None:
        with _making_turns:
            turns = getattr(state, "in_process", None)
            if turns is None:
                state.in_process = turns = Turns()
    return turns


class ReplyStream:
    """A reply as it happens: an async iterator over events, and an async context manager that closes it.

    The reply starts, and takes the conversation, when the first item is asked for. Everything it opened is closed, in
    the closing task, when it ends, fails, or leaves the `async with` block. A stream that is merely dropped, by a plain
    `break` for example, is closed at once in a task of its own, and the next reply of the conversation waits for that.
    """

    __slots__ = ("_items", "_ticket")

    def __init__(self, items: AsyncGenerator[AgentEvent | Msg, None], ticket: Ticket) -> None:
        self._items = items
        self._ticket = ticket

    def __aiter__(self) -> "ReplyStream":
        return self

    def __anext__(self) -> Awaitable[AgentEvent | Msg]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        """Stop the reply and wait until everything it opened is closed."""
        await self._items.aclose()

    async def drain(self) -> AgentEvent | Msg | None:
        """Read the reply to its end and return its last item."""
        self._ticket.drained = True
        item: AgentEvent | Msg | None = None
        try:
            async for item in self._items:  # noqa: B007  # the last one is returned
                pass
        finally:
            await self._items.aclose()
        return item

    async def __aenter__(self) -> "ReplyStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._items.aclose()

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a reply stream is asynchronous: write `async for event in agent.reply_stream(...)` in an `async def`, "
            "or call `agent.run_sync(...)` for the final message alone"
        )

    def __await__(self) -> NoReturn:
        raise TypeError(
            "a reply stream is not awaited: write `async for event in agent.reply_stream(...)`, "
            "or `await agent.reply(...)` for the final message alone"
        )

    def __del__(self) -> None:
        # Nothing but scheduling here: this may run in any thread, and after the loop is gone.
        if getattr(self._items, "ag_frame", None) is not None:
            self._ticket.dropped = True
            if self._ticket.reaper is not None:
                self._ticket.reaper.reap(self._items)
