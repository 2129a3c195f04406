"""Whose turn it is in a conversation."""

from collections import deque
from threading import RLock
from typing import Literal, Protocol

import anyio

from agentrt.block import new_id
from agentrt.concurrency.background_task import enclosing_replies
from agentrt.concurrency.event_loop import CrossThreadEvent
from agentrt.concurrency.interrupt import Interruption
from agentrt.concurrency.reaper import Reaper
from agentrt.errors import AgentBusyError
from agentrt.state import AgentState

__all__ = ["Claim", "ConversationLock", "CurrentReply", "WhenBusy", "lock_of"]

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
_awaited_by: dict[int | None, "ConversationLock"] = {}


class Claim:
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
        self.turns: ConversationLock | None = None
        self.awaits: list[ConversationLock] = []

    def give_back(self) -> None:
        """Let go of the conversation, if this reply has it."""
        if self.turns is not None:
            self.turns.give_back(self)


class CurrentReply(Protocol):
    """What is needed of a reply in progress in order to stop it."""

    id: str
    interruption: Interruption


class ConversationLock:
    """One reply at a time: who has the conversation, and who waits for it, in order.

    They belong to the state object, which several agents may share, also in several threads and event loops. `run` is
    the reply in progress.
    """

    __slots__ = ("_holder", "_lock", "_waiting", "run")

    def __init__(self) -> None:
        self.run: CurrentReply | None = None
        self._holder: Claim | None = None
        self._lock = RLock()  # a dropped stream may be collected under it
        self._waiting: deque[tuple[Claim, CrossThreadEvent]] = deque()

    def take_free(self, ticket: Claim, when_busy: WhenBusy) -> bool:
        """Take the conversation if nobody has it, and nothing has to be noted for those who may wait for it."""
        if when_busy == "wait":
            return False
        with self._lock:
            if self._holder is not None:
                return False
            self._holder = ticket
        ticket.turns = self
        ticket.reaper = Reaper()
        return True

    async def take(self, ticket: Claim, when_busy: WhenBusy) -> None:
        """Take the conversation; raises `AgentBusyError` when another reply has it and will not let go by itself."""
        if when_busy == "wait":
            ticket.task = anyio.get_current_task().id
        if not self._claim(ticket):
            await self._take_later(ticket, when_busy)
        ticket.turns = self
        ticket.reaper = Reaper()

    def _claim(self, ticket: Claim) -> bool:
        with self._lock:
            if self._holder is None:
                self._holder = ticket
            return self._holder is ticket

    async def _take_later(self, ticket: Claim, when_busy: WhenBusy) -> None:
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

    async def _wait_without_deadlock(self, ticket: Claim) -> None:
        """Wait; raises `AgentBusyError` if the reply that has the conversation waits for this one in turn."""
        outer = [reply for reply in enclosing_replies.get() if isinstance(reply, Claim)]
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

    def _refuse_deadlock(self, outer: list[Claim], ticket: Claim) -> None:
        seen: set[ConversationLock] = set()
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

    def give_back(self, ticket: Claim) -> None:
        """Let go of the conversation; whoever has waited longest has it next."""
        with self._lock:
            if self._holder is not ticket:
                return
            self._holder = self.run = None
            while self._waiting and self._holder is None:
                following, turn = self._waiting.popleft()
                self._holder = following  # before the wait can end
                if not turn.set():
                    self._holder = None

    async def _wait(self, ticket: Claim, seconds: float | None) -> None:
        turn = CrossThreadEvent()
        with self._lock:
            if self._claim(ticket):  # given back in another thread just now
                return
            self._waiting.append((ticket, turn))
        try:
            with anyio.move_on_after(seconds):
                await turn.wait()
        except BaseException:  # cancelled: the turn must go on to the next, whether it was given already or not
            self._leave(ticket, turn)
            raise
        if self._holder is not ticket:
            self._leave(ticket, turn)
            raise AgentBusyError(f"the reply before this one was abandoned and is still not closed after {seconds} s")

    def _leave(self, ticket: Claim, turn: CrossThreadEvent) -> None:
        with self._lock:
            if self._holder is ticket:
                self.give_back(ticket)
            elif (ticket, turn) in self._waiting:
                self._waiting.remove((ticket, turn))


_making_turns = RLock()


def lock_of(state: AgentState) -> ConversationLock:
    """Return the turns of the conversation that the state object is."""
    turns: ConversationLock | None = getattr(state, "in_process", None)
    if turns is None:
        with _making_turns:
            turns = getattr(state, "in_process", None)
            if turns is None:
                state.in_process = turns = ConversationLock()
    return turns
