"""How far a reply has come: what the loop notes about it between the first event and the last save.

A reply in progress is in one phase. What must be saved when its stream is left, for whatever reason, follows from that.

    phase     what holds                                        what may come next
    NEW       nothing of this run is in the state               OPEN; ENDED, if it fails before its input is taken
    OPEN      the state holds the reply as it stands            PARKED, ENDED
    PARKED    a question is put; saving it is due               WAITING; OPEN, if it is stopped or started again
    WAITING   the same, saved                                   PARKED, if layers changed it; OPEN, as before
    ENDED     one end is on record; saving it is due            SAVED
    SAVED     the same, saved                                   ENDED, if layers changed the answer

    left in             what is done before the conversation is given back
    NEW, OPEN           open calls get results, the end "interrupted" is recorded, all is saved
    NEW, still asking   nothing, except that numbers which layers used are saved: the question of an earlier run stands
    PARKED, ENDED       saved
    WAITING, SAVED      nothing, except that numbers which layers used after the save are saved

Three things are independent of the phase. `ReplyRun.ended`: nothing can be emitted any more; it is set with ENDED, or
before that by an end which a layer of on_reply made up. `origin`: whether the reply began in this run. `is_flowing`: an
event has left, and the reply neither ended nor asked, so that most events leave without a second look.
"""

from collections.abc import Iterable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, get_args

from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.conversation.turns import Claim
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.decoding.decoder import Decoder
from agentrt._runtime.decoding.recorder import Recorder
from agentrt._runtime.model_interface.block_comparison import spoken_blocks
from agentrt.event import (
    AgentEvent,
    AnyEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import APPLY, CALL_EVENTS, Msg, ToolCallBlock, ToolResultBlock
from agentrt.state import ReplyContext
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.call import PreparedCall
from agentrt.types import PermissionDecision

_CALL_STARTS = {ToolCallStartEvent, ToolResultStartEvent}
_NONE_SENT: set[tuple[type, str]] = set()  # shared: an empty set takes as much memory as two events
_EVENTS: frozenset[type[AgentEvent]] = frozenset(get_args(get_args(AnyEvent)[0]))
PLAIN_INSIDE = _EVENTS - {ReplyEndEvent, ToolResultEndEvent}
"""The events that need no bookkeeping but their content as they enter the stream of a reply: nearly all."""
FLOWING = _EVENTS - {ReplyEndEvent}
"""The events that may leave in the middle of a reply."""
PLAIN_OUTSIDE = _EVENTS - {ReplyStartEvent, ReplyResumedEvent, ReplyEndEvent, *_CALL_STARTS}
"""The events that need no bookkeeping as they leave it."""
_START_OF: dict[type, type] = {ToolCallBlock: ToolCallStartEvent, ToolResultBlock: ToolResultStartEvent}
QuestionEvent = RequireUserConfirmEvent | RequireExternalExecutionEvent
"""The event by which a parking reply asks."""
_QUESTIONS = frozenset(get_args(QuestionEvent))
TEXT_RESULT_EVENTS = (ToolResultStartEvent, ToolResultTextDeltaEvent, ToolResultEndEvent)
"""The events of a result that is text."""
_Event = TypeVar("_Event", bound=AgentEvent)


class Phase(Enum):
    """How far a reply has come; see the table above."""

    NEW = "new"
    OPEN = "open"
    PARKED = "parked"
    WAITING = "waiting"
    ENDED = "ended"
    SAVED = "saved"


class Origin(Enum):
    """Where a reply comes from."""

    INPUT = "an input began it in this run"
    PARKED = "it was parked, and its listener has seen it begin"
    LEFT = "a process left it unfinished, so its listener learns once more what it holds"


# In Python 3.11 a member looked up on its class takes seven times as long as a name of the module.
_NEW, _OPEN, _PARKED, _WAITING, _ENDED, _SAVED = Phase
_FROM_INPUT, _FROM_PARKED, _FROM_LEFT = Origin


@dataclass(frozen=True, slots=True)
class CoreAnswer:
    """The core's answer, as it was then, and the ids of its blocks in the reply's message.

    It stands for none where the core says something about the end of the reply that no event told, such as that its
    rounds are used up.
    """

    message: Msg
    block_ids: frozenset[str]


class ReplyProgress:
    """The loop's record of one reply; `ReplyRun.progress`."""

    # Defaults of the class, since most of these are never set in a short reply.
    phase = Phase.NEW
    origin = Origin.INPUT
    has_begun = is_flowing = is_out_of_date = False
    ids = events_recorded = _expected = 0
    continuations: tuple[str, ...] = ()
    message: Msg | None = None
    parked_context: ReplyContext | None = None
    form: AnswerForm | None = None  # that the caller asked for
    start_event: ReplyStartEvent | ReplyResumedEvent | None = None
    end_event: ReplyEndEvent | None = None
    sent_end: ReplyEndEvent | None = None  # as observers have seen it: layers may have changed it
    last_event: AgentEvent | None = None
    attempt: Decoder | None = None  # of asking the model in this round
    recorder: Recorder | None = None  # of what leaves on_reply, where that has layers
    core_answer: CoreAnswer | None = None
    cut_call: str | None = None  # the id of the call in which the model came to its limit
    passthrough: Mailbox | None = None  # to which the loop's events go inside a class's own `reply`
    checked: tuple[ToolBase, dict[str, Any], PermissionDecision] | None = None
    _starts_sent = _NONE_SENT

    def __init__(self, claim: Claim, sequence: int, toolkit: Toolkit) -> None:
        self.reply_id = claim.reply_id
        self.sequence = self._first_seq = sequence
        self.lasting_toolkit = self.offered_toolkit = toolkit  # of all rounds, and what this round was offered of it
        self.has_toolsets = toolkit.has_toolsets
        # Whether each id is in use: not yet, for a hidden call that a layer has got and not given.
        self.call_ids: dict[str, bool] = {}
        self.prepared: dict[str, PreparedCall] = {}

    @property
    def is_parked(self) -> bool:
        """Whether this run has put a question."""
        return self.phase is _PARKED or self.phase is _WAITING

    @property
    def is_saved(self) -> bool:
        """Whether the question or the end is saved as it stands."""
        return self.phase is _SAVED or self.phase is _WAITING

    @property
    def is_new(self) -> bool:
        """Whether nothing of this run is in the state."""
        return self.phase is _NEW

    @property
    def was_left(self) -> bool:
        """Whether a process left it unfinished."""
        return self.origin is _FROM_LEFT

    @property
    def has_saved_end(self) -> bool:
        """Whether its end is on record, and saved as it stands."""
        return self.phase is _SAVED

    def begin(self) -> None:
        """Note that the first event leaves."""
        self.has_begun = self.is_flowing = True

    def open(self, message: Msg) -> None:
        """Note that the reply is in progress, with this message."""
        self.phase = _OPEN
        self.message = message

    def restore(self, context: ReplyContext) -> None:
        """Take up a reply where it was left."""
        self.message = context.message
        self.origin = _FROM_PARKED if context.parked else _FROM_LEFT
        self.ids = context.ids
        self.note_resumed(context)

    def note_resumed(self, context: ReplyContext) -> None:
        """Record that the listener has, or is about to get, everything that the reply holds."""
        calls = [block for block in context.blocks if isinstance(block, (ToolCallBlock, ToolResultBlock))]
        self.call_ids = dict.fromkeys((call.id for call in calls), True)
        self._starts_sent = {(_START_OF[call.__class__], call.id) for call in calls}

    def reopen(self, context: ReplyContext) -> None:
        """Note that the reply is in progress again: answered, started again, or stopped while it asked."""
        context.parked = False
        self.phase = _OPEN

    def park(self, context: ReplyContext) -> None:
        """Note that a question is put."""
        context.parked = True
        self.phase = _PARKED
        self.is_flowing = False
        self.parked_context = context

    def end(self, event: ReplyEndEvent) -> None:
        """Record the one end."""
        self.record_event(event)
        self._expected = (self._expected if self._expected > self.sequence else self.sequence) + 1
        self.phase = _ENDED
        self.is_flowing = False
        self.end_event = event

    def has_sent(self, final: Msg) -> bool:
        """Say whether what the core answered is what was sent and what is returned, as in most replies."""
        end, answer, recorder, message = self.end_event, self.core_answer, self.recorder, self.message
        if end is None or answer is None or recorder is None or message is None:
            return False
        return (
            final.content == answer.message.content
            and [block.id for block in recorder.blocks] == [block.id for block in message.get_content_blocks()]
            and final.structured_output == end.structured_output
        )

    def replaced_ids(self, context: ReplyContext | None) -> frozenset[str]:
        """Return the ids of the blocks that the last message of on_reply stands for."""
        if self.end_event is not None:
            return self.core_answer.block_ids if self.core_answer is not None else frozenset()
        blocks = context.blocks[context.round_start :] if context is not None else []
        if any(isinstance(block, ToolCallBlock) for block in blocks):
            return frozenset()  # what was said before a call is not an answer
        return frozenset(block.id for block in spoken_blocks(blocks))

    def take_output(self, final: Msg) -> bool:
        """Take over the structured output of the last message; returns whether it differs from the core's."""
        output, end = final.structured_output, self.end_event
        if end is None or self.message is None or output == end.structured_output:
            return False
        self.message.structured_output = deepcopy(output)
        end.structured_output = deepcopy(output)
        return True

    def mark_saved(self) -> None:
        """Note that the question or the end is saved."""
        self.phase = _SAVED if self.end_event is not None else _WAITING

    def mark_changed(self) -> None:
        """Note that a saved question or end is not what was saved any more."""
        if self.is_saved:
            self.phase = _ENDED if self.end_event is not None else _PARKED

    def record_event(self, event: _Event) -> _Event:
        """Apply an event to the reply's message, as it enters the stream."""
        self.events_recorded += 1
        if event.reply_id == self.reply_id and self.message is not None:
            apply = APPLY.get(event.__class__)  # what `append_event` does, which is a call more for each event
            if apply is not None and (event.__class__ not in CALL_EVENTS or "/" not in event.tool_call_id):  # type: ignore[attr-defined]  # these have it
                apply(self.message, event)
        return event

    def assign_seq(self, event: _Event) -> _Event:
        """Number an event as it leaves the stream; of one that has a number, of another reply say, a copy leaves."""
        if event.seq:
            event = copy(event)
        self.sequence += 1
        event.seq = self.sequence
        if event.__class__ in _QUESTIONS and self.parked_context is not None:
            self.note_asked(self.parked_context, event, self.sequence)  # type: ignore[arg-type]  # a question
        if event.__class__ in _CALL_STARTS and event.reply_id == self.reply_id:
            self.note_start(event)
        return event

    def note_start(self, event: AgentEvent) -> None:
        """Note that the listener gets the start of a call or of its result."""
        if self._starts_sent is _NONE_SENT:
            self._starts_sent = set()
        self._starts_sent.add((event.__class__, event.tool_call_id))  # type: ignore[attr-defined]  # these have it

    def note_asked(self, context: ReplyContext, event: QuestionEvent, seq: int) -> None:
        """Note when, and with which number, calls are asked about; another number than what was saved is saved again.

        It is another one where a layer holds events back, or adds some.
        """
        for call in event.tool_calls if event.reply_id == self.reply_id else ():
            decision = context.decision_about(call.id)
            if decision is not None and decision.asked_seq != seq:
                decision.asked_at, decision.asked_seq = event.created_at, seq
                self.mark_changed()

    def fill_missing_starts(self, events: Iterable[AgentEvent]) -> Iterator[AgentEvent]:
        """Make the events that close open calls fit what the listener has seen of these calls."""
        names: dict[str, str] | None = None
        for event in events:
            if isinstance(event, TEXT_RESULT_EVENTS):
                if (ToolCallStartEvent, event.tool_call_id) not in self._starts_sent:
                    continue
                has_started = (ToolResultStartEvent, event.tool_call_id) in self._starts_sent
                if not has_started and not isinstance(event, ToolResultStartEvent):
                    names = self.call_names() if names is None else names
                    name = names.get(event.tool_call_id, "")
                    yield ToolResultStartEvent(event.reply_id, event.tool_call_id, name)
            yield event

    def call_names(self) -> dict[str, str]:
        """Return the names of the tools that the reply's calls are for, by the id of the call."""
        calls = self.message.get_content_blocks("tool_call") if self.message else []
        return {call.id: call.name for call in calls}

    def discard_attempt(self, event: object) -> None:
        """Forget what the model said so far, if the event says so, and note in it which blocks that were."""
        if isinstance(event, ModelCallRetryEvent) and event.reply_id == self.reply_id and self.attempt is not None:
            event.block_ids = self.attempt.discard()

    def expect(self, events: int) -> None:
        """Count further events, which are on their way out, among those whose numbers are saved as used."""
        self._expected = max(self._expected, self.sequence) + events

    @property
    def highest_seq(self) -> int:
        """The highest number that an event of this reply has, or will have once it is out."""
        highest = self._first_seq + self.events_recorded
        if self.sequence > highest:  # compared one by one, since `max` takes three times as long
            highest = self.sequence
        return highest if highest > self._expected else self._expected
