"""Whose turn it is in a conversation."""

from collections import deque
from collections.abc import Sequence
from threading import RLock
from typing import Literal, Protocol

import anyio

from agentrt._runtime.block import new_name
from agentrt._runtime.concurrency.background_task import enclosing_replies
from agentrt._runtime.concurrency.coalescing import CoalescedWork
from agentrt._runtime.concurrency.event_loop import CrossThreadEvent
from agentrt._runtime.concurrency.interrupt import Interruption
from agentrt._runtime.concurrency.reaper import Reaper
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt.errors import AgentBusyError, UsageError
from agentrt.event import AgentEvent
from agentrt.message import Msg
from agentrt.state import AgentState

WhenBusy = Literal["raise", "wait"]
_REAP_SECONDS = 15.0
_FOR_ITSELF = (
    "a reply cannot wait for itself: this call comes from inside the reply that has the conversation, "
    "from one of its tools or middlewares or from the code that reads its stream"
)
_FOR_EACH_OTHER = (
    "two replies would deadlock: the one that holds this conversation waits, itself or through "
    "others, for a conversation that this call was made in: ask before or after that reply, or in a separate "
    "conversation, agent.with_state(AgentState())"
)
# The lock that each task waits for; such a task may be the reader of another reply.
_awaited_by: dict[int | None, "ConversationLock"] = {}


class Claim:
    """One reply's claim on its conversation.

    `dropped` says that nobody holds its stream any more, `is_named` that the caller gave the reply its id; the numbers
    of its events are above `after`. `awaits` holds the locks that its tools and layers wait for. `final` is its final
    message, once its stream has come to its end, and `tells_message` says that it is the stream's last item, told while
    the reply still has the conversation. `is_handed_over` says that it is to stop without an end.
    `closing_events` are those that closed an abandoned reply. `form` is the form of the answer that the caller asked
    for.
    """

    # Defaults of the class, since most of these are never set in a short reply.
    dropped = is_handed_over = is_over = tells_message = False
    reaper: Reaper | None = None
    task: int | None = None
    lock: "ConversationLock | None" = None
    final: Msg | None = None
    closing_events: Sequence[AgentEvent] = ()
    part: "SteppedReply | None" = None
    form: AnswerForm | None = None
    _left: CrossThreadEvent | None = None

    def __init__(self, reply_id: str | None = None, after: int = 0) -> None:
        self.is_named = reply_id is not None
        self.reply_id = reply_id or new_name()
        self.after = after
        self.awaits: list[ConversationLock] = []

    def give_back(self) -> None:
        """Let go of the conversation, if this reply has it."""
        self.is_over = True
        if self.lock is not None:
            self.lock.give_back(self)
        if self._left is not None:
            self._left.set()

    def accept_hand_over(self, error: BaseException) -> None:
        """Raise what has stopped the reply, unless it was handed over, and so is to stop without an end."""
        if not self.is_handed_over:
            raise error

    async def leave_from_outside(self) -> None:
        """Have the task that reads the reply leave it, and wait until it has."""
        # The reader's task must close the stream: a step of it is at work there.
        run = None if self.lock is None else self.lock.run
        if run is None:
            raise UsageError(
                "hand_over() came while the reply waits for its turn in the conversation: cancel the task that waits"
            )
        self._left = CrossThreadEvent()
        if not self.is_over:  # it may have ended while the lines above ran, in another thread
            run.interruption.request("interrupted")
            await self._left.wait()


class SteppedReply(Protocol):
    """A stream that another one reads as a part of its own."""

    async def hand_over(self) -> None: ...


class CurrentReply(Protocol):
    """The part of a reply in progress that is used to stop it."""

    id: str
    interruption: Interruption


class ConversationLock:
    """One reply at a time: who has the conversation, and who waits for it, in order.

    It belongs to the state object, which several agents may share, also in several threads and event loops. `run` is
    the reply in progress, and `saves` runs the saves, from the first one on.
    """

    __slots__ = ("_holder", "_lock", "_waiting", "run", "saves")

    def __init__(self) -> None:
        self.run: CurrentReply | None = None
        self.saves: CoalescedWork | None = None
        self._holder: Claim | None = None
        self._lock = RLock()  # a dropped stream may be collected under it
        # Made when a reply has to wait: an empty one takes as much memory as ten events.
        self._waiting: deque[tuple[Claim, CrossThreadEvent]] | None = None

    def take_free(self, claim: Claim, when_busy: WhenBusy) -> bool:
        """Take the conversation if nobody has it, and nothing has to be noted for those who may wait for it."""
        if when_busy == "wait":
            return False
        with self._lock:
            if self._holder is not None:
                return False
            self._holder = claim
        claim.lock = self
        claim.reaper = Reaper()
        return True

    async def take(self, claim: Claim, when_busy: WhenBusy) -> None:
        """Take the conversation; raises `AgentBusyError` when another reply has it and will not let go by itself."""
        if when_busy == "wait":
            claim.task = anyio.get_current_task().id
        if not self._claim(claim):
            await self._take_later(claim, when_busy)
        claim.lock = self
        claim.reaper = Reaper()

    def _claim(self, claim: Claim) -> bool:
        with self._lock:
            if self._holder is None:
                self._holder = claim
            return self._holder is claim

    async def _take_later(self, claim: Claim, when_busy: WhenBusy) -> None:
        holder = self._holder
        if holder is not None and holder.dropped:
            await self._wait(claim, _REAP_SECONDS)
        elif when_busy == "wait":
            await self._wait_without_deadlock(claim)
        else:
            raise AgentBusyError(
                "this conversation already has a reply in progress: finish it, close it with `await stream.aclose()`, "
                "use `agent.with_state(AgentState())` for a separate conversation, or build the agent with "
                "when_busy='wait'"
            )

    async def _wait_without_deadlock(self, claim: Claim) -> None:
        """Wait; raises `AgentBusyError` if the reply that has the conversation waits for this one in turn."""
        claims = [getattr(reply, "claim", None) for reply in enclosing_replies.get()]
        outer = [held for held in claims if isinstance(held, Claim)]
        self._refuse_deadlock(outer, claim)
        assert claim.task is not None  # noted in `take`
        for reply in outer:
            reply.awaits.append(self)
        _awaited_by[claim.task] = self
        try:
            await self._wait(claim, None)
        finally:
            del _awaited_by[claim.task]
            for reply in outer:
                reply.awaits.remove(self)

    def _refuse_deadlock(self, outer: list[Claim], claim: Claim) -> None:
        seen: set[ConversationLock] = set()
        locks = [self]
        while locks:
            lock = locks.pop()
            holder = lock._holder
            if holder is None or lock in seen:
                continue
            seen.add(lock)
            if holder.task == claim.task or holder in outer:
                raise AgentBusyError(_FOR_ITSELF if lock is self else _FOR_EACH_OTHER)
            locks += holder.awaits
            if holder.task in _awaited_by:
                locks.append(_awaited_by[holder.task])

    def give_back(self, claim: Claim) -> None:
        """Let go of the conversation; the reply that has waited longest has it next."""
        with self._lock:
            if self._holder is not claim:
                return
            self._holder = self.run = None
            while self._waiting and self._holder is None:
                following, turn = self._waiting.popleft()
                self._holder = following  # before the wait can end
                if not turn.set():
                    self._holder = None

    async def _wait(self, claim: Claim, seconds: float | None) -> None:
        turn = CrossThreadEvent()
        with self._lock:
            if self._claim(claim):  # given back in another thread just now
                return
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((claim, turn))
        try:
            with anyio.move_on_after(seconds):
                await turn.wait()
        except BaseException:  # cancelled: the turn must pass to the next reply, whether it was given already or not
            self._leave(claim, turn)
            raise
        if self._holder is not claim:
            self._leave(claim, turn)
            raise AgentBusyError(f"the reply before this one was abandoned and is still not closed after {seconds} s")

    def _leave(self, claim: Claim, turn: CrossThreadEvent) -> None:
        with self._lock:
            if self._holder is claim:
                self.give_back(claim)
            elif self._waiting and (claim, turn) in self._waiting:
                self._waiting.remove((claim, turn))


_lock_of_locks = RLock()


def lock_of(state: AgentState) -> ConversationLock:
    lock: ConversationLock | None = getattr(state, "in_process", None)
    if lock is None:
        with _lock_of_locks:  # two threads may ask for it at once
            lock = getattr(state, "in_process", None)
            if lock is None:
                state.in_process = lock = ConversationLock()
    return lock


def saves_of(state: AgentState) -> CoalescedWork:
    """Return what runs the saves of the conversation that the state object is, one at a time."""
    lock = lock_of(state)
    if lock.saves is None:
        with _lock_of_locks:
            if lock.saves is None:
                lock.saves = CoalescedWork()
    return lock.saves
