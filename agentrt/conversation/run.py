"""The reply in progress, as middlewares and tools see it."""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from threading import get_ident
from time import time_ns
from typing import Any, NoReturn, TypeVar, get_args

import anyio
import anyio.from_thread

from agentrt.boundary import whole_characters
from agentrt.concurrency.background_task import enclosing_replies
from agentrt.concurrency.interrupt import Interrupted, create_interruption
from agentrt.concurrency.mailbox import Mailbox
from agentrt.conversation.step import Finish, Step
from agentrt.conversation.turns import Claim
from agentrt.decoding.decoder import Decoder
from agentrt.decoding.recorder import RECORDED, Recorder
from agentrt.errors import UsageError
from agentrt.event import (
    AgentEvent,
    AnyEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import APPLY, Msg, ToolCallBlock, ToolResultBlock
from agentrt.state import ReplyContext
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.call import PreparedCall
from agentrt.types import FinishedReason, PermissionDecision

__all__ = ["PLAIN_BETWEEN_LAYERS", "PLAIN_INSIDE", "PLAIN_OUTSIDE", "Answer", "Run"]

STARTS = {ToolCallStartEvent, ToolResultStartEvent}
_EVENTS: frozenset[type[AgentEvent]] = frozenset(get_args(get_args(AnyEvent)[0]))
PLAIN_INSIDE = _EVENTS - {ReplyEndEvent, ToolResultEndEvent}
"""The events of which nothing has to be noted as they enter the stream of a reply: nearly all."""
PLAIN_OUTSIDE = _EVENTS - {ReplyStartEvent, ReplyResumedEvent, ReplyEndEvent, *STARTS}
"""The events of which nothing has to be noted as they leave it."""
PLAIN_BETWEEN_LAYERS = PLAIN_OUTSIDE - RECORDED
"""The same where layers may change what is said."""
_START_OF: dict[type, type] = {ToolCallBlock: ToolCallStartEvent, ToolResultBlock: ToolResultStartEvent}
_OF_A_RESULT = (ToolResultStartEvent, ToolResultTextDeltaEvent, ToolResultEndEvent)
_Event = TypeVar("_Event", bound=AgentEvent)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the core answered, as it was then, and the ids of the blocks of the reply's message that it stands for.

    It stands for none where the core says something about the end of the reply that no event told, such as that its
    rounds are used up.
    """

    message: Msg
    block_ids: frozenset[str]


class Run:
    """One reply in progress: `agent.run` in a hook, and behind `ToolContext` in a tool."""

    # Defaults of the class, since most of these are never set in a short reply.
    is_internal = is_out_of_date = is_resumed = is_flowing = opened = goes_on = parked = ended = end_is_saved = False
    admitted = ids = _expected = 0
    start: ReplyStartEvent | ReplyResumedEvent | None = None
    end: ReplyEndEvent | None = None
    message: Msg | None = None
    attempt: Decoder | None = None
    recorder: Recorder | None = None
    answer: Answer | None = None
    last: AgentEvent | None = None
    cut_call: str | None = None
    outlet: Mailbox | None = None
    checked: tuple[ToolBase, dict[str, Any], PermissionDecision] | None = None

    def __init__(self, ticket: Claim, sequence: int, toolkit: Toolkit) -> None:
        assert ticket.reaper is not None  # it has the conversation
        self.id = ticket.reply_id
        self.ticket = ticket
        self.sequence = self._first = sequence
        self.toolkit = self.lasting_toolkit = toolkit
        self.drained = ticket.drained and not ticket.printed
        self.interruption = create_interruption(ticket.reaper.loop)
        self.inside = enclosing_replies.get() | {ticket}
        self.starts_out: set[tuple[type, str]] = set()
        self.mailbox = Mailbox()
        self.call_ids: set[str] = set()
        self.prepared: dict[str, PreparedCall] = {}
        self._hints: list[str] = []
        self._scratch: dict[int, dict[str, Any]] = {}
        self._thread = get_ident()

    @property
    def deadline(self) -> float:
        """When the caller's patience ends, on the clock of `anyio.current_time`; infinity when it does not."""
        return anyio.current_effective_deadline()

    now = staticmethod(time_ns)
    """The clock, in nanoseconds since the epoch."""

    def new_id(self) -> str:
        """Return an id that nothing else in this reply has."""
        self.ids += 1
        return f"{self.id}-{self.ids}"

    def next_seq(self) -> int:
        """Take the next sequence number of the conversation."""
        self.sequence += 1
        return self.sequence

    def scratch(self, middleware: object) -> dict[str, Any]:
        """Return the middleware's own data of this reply: empty at its start, gone at its end."""
        return self._scratch.setdefault(id(middleware), {})

    def emit(self, event: AgentEvent) -> None:
        """Send an event into the reply's stream, from any layer, tool or worker thread.

        It is seen at once, also while whoever emits it goes on to wait; a layer of `on_reply` or `on_reasoning` yields
        its events instead. `seq` and a missing `reply_id` are filled in, and so are the `block_ids` of a
        `ModelCallRetryEvent`.
        """
        if get_ident() != self._thread:
            anyio.from_thread.run_sync(self.emit, event)
            return
        if self.ended:
            raise UsageError(f"{event.type} was emitted after the reply {self.id!r} had ended")
        event.reply_id = event.reply_id or self.id
        if event.reply_id == self.id and isinstance(event, (ReplyStartEvent, ReplyResumedEvent, ReplyEndEvent)):
            raise UsageError(f"{event.type} cannot be emitted: the runtime begins and ends a reply")
        if not self.mailbox.is_read:
            self.discard_attempt(event)
        self.mailbox.post(event)

    def discard_attempt(self, event: object) -> None:
        """Forget what the model said so far, if the event says so, and note in it which blocks that were."""
        if isinstance(event, ModelCallRetryEvent) and event.reply_id == self.id and self.attempt is not None:
            event.block_ids = self.attempt.discard()

    def go_on(self, context: ReplyContext) -> None:
        """Take up a reply where it was left."""
        self.message = context.message
        self.is_resumed = not context.parked
        self.ids = context.ids
        calls = [block for block in context.blocks if isinstance(block, (ToolCallBlock, ToolResultBlock))]
        self.call_ids = {call.id for call in calls}
        self.starts_out = {(_START_OF[call.__class__], call.id) for call in calls}

    def continue_with(self, hint: str) -> None:
        """Ask for another round, with `hint` for the model, where the reply would otherwise be complete.

        It counts as a round, and none is granted beyond `max_iters`. Raises `UsageError` once the reply has ended.
        """
        if self.ended:
            raise UsageError("continue_with() came after the end of the reply: call it before REPLY_END passes")
        if not isinstance(hint, str):
            raise UsageError(f"continue_with() takes a str for the model, not {hint!r:.200}")
        self._hints.append(whole_characters(hint))

    def hinted(self, step: Step) -> bool:
        """Say whether a reply that is about to be complete is to go on instead."""
        return bool(self._hints) and isinstance(step, Finish) and step.reason == "completed"

    def take_hint(self) -> str:
        """Take the oldest hint."""
        return self._hints.pop(0)

    def stop(self, why: FinishedReason) -> NoReturn:
        """End the reply for that reason, from inside of its core."""
        self.interruption.reason = self.interruption.reason or why
        raise Interrupted

    def admit(self, event: _Event) -> _Event:
        """Apply an event to the reply's message, as it enters the stream."""
        self.admitted += 1
        if event.reply_id == self.id and self.message is not None:
            apply = APPLY.get(event.__class__)  # what `append_event` does, which is a call more for each event
            if apply is not None:
                apply(self.message, event)
        return event

    def let_out(self, event: _Event) -> _Event:
        """Number an event as it leaves the stream; of one that has a number, of another reply say, a copy leaves."""
        if event.seq:
            event = copy(event)
        self.sequence += 1
        event.seq = self.sequence
        if self.recorder is not None:
            self.recorder.record(event)
        if event.__class__ in STARTS:
            self.starts_out.add((event.__class__, event.tool_call_id))  # type: ignore[attr-defined]  # these have it
        return event

    def completed(self, events: Iterable[AgentEvent]) -> Iterator[AgentEvent]:
        """Make the events that settle open calls fit what the listener has seen of these calls."""
        names: dict[str, str] | None = None
        for event in events:
            if isinstance(event, _OF_A_RESULT):
                if (ToolCallStartEvent, event.tool_call_id) not in self.starts_out:
                    continue
                begun = (ToolResultStartEvent, event.tool_call_id) in self.starts_out
                if not begun and not isinstance(event, ToolResultStartEvent):
                    names = self._call_names() if names is None else names
                    name = names.get(event.tool_call_id, "")
                    yield ToolResultStartEvent(event.reply_id, event.tool_call_id, name)
            yield event

    def call_name(self, call_id: str) -> str:
        """Return the name of the tool that the call is for."""
        return self._call_names().get(call_id, "")

    def _call_names(self) -> dict[str, str]:
        calls = self.message.get_content_blocks("tool_call") if self.message else []
        return {call.id: call.name for call in calls}

    def expect(self, events: int) -> None:
        """Count further events, which are on their way out, among those whose numbers are saved as used."""
        self._expected = max(self._expected, self.sequence) + events

    @property
    def last_number(self) -> int:
        """The highest number that an event of this reply has, or will have once it is out."""
        return max(self.sequence, self._expected, self._first + self.admitted)
