"""What of a state is new since it was last saved: for stores that keep the messages of a conversation one by one.

A message counts as saved as long as the context holds the very object that was saved, in its place. So messages that
were appended, dropped, replaced, removed or moved are found, and one that was edited in place where `AgentState.touch`
was called.
"""

from contextlib import suppress
from operator import indexOf, is_
from typing import Any

from agentrt.message import Msg
from agentrt.state.state import AgentState, dump_messages, split_state, unserializable

__all__ = ["StateChange", "mark_saved", "unsaved_changes"]

# So many messages are serialised at once, on the event loop: about as long as a write to the disk takes.
_MAX_AT_ONCE = 100
# In the place of a message that was edited in place: nothing in a context is this object.
_EDITED: Any = object()


class SaveRecord:
    """What was last saved of a state object: by which store, as which revision, and which messages.

    `place` is the store's own note of it. `change` is the one that is being saved. `doubtful` is what a store knows a
    save by of which it is not known whether it was done. A state that is copied or loaded has no record, unless its
    store notes one.
    """

    __slots__ = ("change", "doubtful", "messages", "owner", "place", "revision", "session_id", "skipped")

    def __init__(self) -> None:
        self.owner: object = None
        self.session_id = ""
        self.revision = self.skipped = 0
        self.place: Any = None
        self.messages: list[Msg] | None = None
        self.change: StateChange | None = None
        self.doubtful: object = None

    def set(self, owner: object, state: AgentState, place: Any, messages: list[Msg]) -> None:
        """Note that `messages`, a list that nobody else changes, are what the store keeps of that state."""
        self.owner, self.place, self.messages = owner, place, messages
        self.session_id, self.revision = state.session_id, state.revision

    def forget(self, message: Msg | None) -> None:
        """Have the next save write this message, or all of them."""
        change = self.change  # first: where it becomes the record meanwhile, in a thread, the list below has it
        if change is not None:
            change.forget(message)
        if message is None:
            self.messages = None
        elif self.messages is not None:
            _forget_in(self.messages, message)


class StateChange:
    """What a save has to write, as the state was when `unsaved_changes` was called.

    The first `start` messages are those that the store has. `head` is the JSON of the state without its messages and
    its revision. `is_whole` says that the store has nothing that this is based on, or that it is not known what.
    """

    __slots__ = ("_copies", "_record", "_texts", "head", "is_whole", "kept", "messages", "owner", "start", "state")

    def __init__(self, state: AgentState, owner: object) -> None:
        context = state.context
        if not isinstance(context, list):
            raise unserializable(state)
        self.state, self.owner = state, owner
        self._record = record = _record_of(state)
        known = record.messages
        if (
            known is None
            or record.change is not None  # it may be saved or not, by now
            or record.owner is not owner
            or record.session_id != state.session_id
            or record.revision != state.revision
        ):
            known = None
        self.is_whole = known is None
        self.kept: list[Msg] = known or []
        self.start = _common_start(self.kept, context)
        self.messages: list[Msg] = context[self.start :]
        self._texts: list[bytes] | None = None
        self._copies: list[Msg] = []
        if len(self.messages) <= _MAX_AT_ONCE:
            self.head, self._texts = split_state(state, self.messages)
        else:
            self.head, _ = split_state(state, [])
            with suppress(Exception):  # of what is not a message, or of a value in it
                self._copies = [message.copy() for message in self.messages]
            if not self._copies:
                raise unserializable(state)
        record.change = self  # last: a change that cannot be saved is not being saved

    @property
    def place(self) -> Any:
        """The store's note of the save that this is based on."""
        return None if self.is_whole else self._record.place

    @property
    def skipped(self) -> int:
        """The revision of a failed save, which a reader may have seen."""
        return self._record.skipped

    def dump_messages(self) -> list[bytes]:
        """Return the messages from `start` on, each as a line of JSON that loads; to be called in a thread.

        Raises `SessionUnserializable`.
        """
        if self._texts is None:
            self._texts = []
            # In parts, between which the event loop runs.
            for first in range(0, len(self._copies), _MAX_AT_ONCE):
                part = self._copies[first : first + _MAX_AT_ONCE]
                self._texts += dump_messages(part, self.state.session_id, self.start + first)
        return self._texts

    def accept(self, revision: int, place: Any) -> None:
        """Note that the change is saved, as that revision, and set the revision of the state."""
        state, record = self.state, self._record
        state.revision, record.doubtful = revision, None
        if record.change is not self:  # another save began meanwhile, so nothing is known until that one is over
            record.messages = None
            return
        if self.is_whole:
            messages = self.messages
        else:
            messages = self.kept
            messages[self.start :] = self.messages
        record.set(self.owner, state, place, messages)
        record.change = None

    def move(self, place: Any) -> None:
        """Note that the store has moved what it saved."""
        self._record.place = place

    def abandon(self, revision: int = 0) -> None:
        """Note that the change was not saved; `revision` is one that a reader may have seen all the same."""
        record = self._record
        record.skipped = max(record.skipped, revision)
        if record.change is self:
            record.change = None

    def doubt(self, attempt: object) -> None:
        """Note that it is not known whether the change was saved, and what the store would know it by."""
        record = self._record
        # What the store has is not known either, so the next save is a whole one.
        record.doubtful, record.messages = attempt, None
        if record.change is self:
            record.change = None

    @property
    def doubtful(self) -> object:
        """What the store knows the last save of this state by, if it is not known whether that was done."""
        return self._record.doubtful

    def forget(self, message: Msg | None) -> None:
        """Have the save after this one write the message, or all of them."""
        if message is None:
            self._record.change = None  # what this one writes is then not taken for known
        else:
            _forget_in(self.messages, message)


def unsaved_changes(state: AgentState, owner: object) -> StateChange:
    """Return what is new in the state since `owner`, a store, last saved it.

    One call of `accept`, `abandon` or `doubt` ends it; until then, or if none comes, other changes are whole ones.
    Raises `SessionUnserializable`.
    """
    return StateChange(state, owner)


def mark_saved(state: AgentState, owner: object, place: Any = None) -> None:
    """Note that `owner`, a store, has the state as it is, so that only what is new from here on is saved."""
    _record_of(state).set(owner, state, place, list(state.context))


def _record_of(state: AgentState) -> SaveRecord:
    record: SaveRecord | None = getattr(state, "save_record", None)
    if record is None:
        record = state.save_record = SaveRecord()
    return record


def _common_start(kept: list[Msg], context: list[Msg]) -> int:
    """Return how many messages at the start are the same objects."""
    # By `is` alone: a list compares what is not the same by value, so that a message that was edited, and then replaced
    # by a copy of itself, would pass for the one that was saved.
    if all(map(is_, kept, context)):  # nearly always, and in half the time of what finds the first that differs
        return min(len(kept), len(context))
    return indexOf(map(is_, kept, context), False)


def _forget_in(messages: list[Msg], message: Msg) -> None:
    # A copy, and no error for what is gone: a save that ends meanwhile, in a thread, may make the list shorter.
    for index, other in enumerate(list(messages)):
        if other is message:
            with suppress(IndexError):
                messages[index] = _EDITED
