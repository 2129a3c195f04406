"""The changes of a state since its last save, for stores that keep the messages of a conversation one by one.

A message counts as saved while the context holds the same object in the same place. So messages that
were appended, dropped, replaced, removed or moved are found, and one that was edited in place if `AgentState.touch`
was called.
"""

from contextlib import suppress
from operator import indexOf, is_
from typing import Any

from agentrt.message import Msg
from agentrt.state.state import AgentState, dump_messages, split_state, unserializable

# The messages that are serialised at once, on the event loop: this takes about as long as a write to the disk.
_MAX_AT_ONCE = 100
# Stands in for a message that was edited in place: no context holds this object.
_EDITED: Any = object()


class SaveRecord:
    """The last save of a state object: the store, the revision and the messages.

    `place` is the store's own note of it. `change` is the change that is being saved. `doubtful` is the store's
    token of a save whose outcome is unknown. A state that is copied or loaded has no record, unless its store notes
    one.
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
        """Record that the store holds `messages`, a list that nobody else changes."""
        self.owner, self.place, self.messages = owner, place, messages
        self.session_id, self.revision = state.session_id, state.revision

    def forget(self, message: Msg | None) -> None:
        """Have the next save write this message, or all of them."""
        change = self.change  # first: if a thread completes it meanwhile, the list below has it
        if change is not None:
            change.forget(message)
        if message is None:
            self.messages = None
        elif self.messages is not None:
            _forget_in(self.messages, message)


class StateChange:
    """The changes that a save has to write, as of the call of `unsaved_changes`.

    The store has the first `start` messages already. `head` is the JSON of the state without its messages and
    its revision. `is_whole` says that the save is based on nothing in the store, or on an unknown save.
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
            or record.change is not None  # its save may have succeeded or not
            or record.owner is not owner
            or record.session_id != state.session_id
            or record.revision != state.revision
        ):
            known = None
        self.is_whole = known is None
        self.kept: list[Msg] = known or []
        # The messages at the start that are the same objects. By `is` alone: a list compares different objects by
        # value, so a message that was edited, and then replaced by a copy of itself, would pass for the saved one.
        if all(map(is_, self.kept, context)):  # nearly always, and twice as fast as the search below
            self.start = min(len(self.kept), len(context))
        else:
            self.start = indexOf(map(is_, self.kept, context), False)
        self.messages: list[Msg] = context[self.start :]
        self._texts: list[bytes] | None = None
        self._copies: list[Msg] = []
        if len(self.messages) <= _MAX_AT_ONCE:
            self.head, self._texts = split_state(state, self.messages)
        else:
            self.head, _ = split_state(state, [])
            with suppress(Exception):  # of an object that is not a message, or of a value in it
                self._copies = [message.copy() for message in self.messages]
            if not self._copies:
                raise unserializable(state)
        record.change = self  # last: a change that cannot be serialised is not being saved

    @property
    def place(self) -> Any:
        """The store's note of the save that this is based on."""
        return None if self.is_whole else self._record.place

    @property
    def skipped(self) -> int:
        """The revision of a failed save, which a reader may have seen."""
        return self._record.skipped

    def dump_messages(self) -> list[bytes]:
        """Return the messages from `start` on, each as a line of loadable JSON; to be called in a thread.

        Raises `SessionUnserializable`.
        """
        if self._texts is None:
            self._texts = []
            # In parts, so that the event loop runs in between.
            for first in range(0, len(self._copies), _MAX_AT_ONCE):
                part = self._copies[first : first + _MAX_AT_ONCE]
                self._texts += dump_messages(part, self.state.session_id, self.start + first)
        return self._texts

    def accept(self, revision: int, place: Any) -> None:
        """Record that the change was saved as `revision`, and set the revision of the state."""
        state, record = self.state, self._record
        state.revision, record.doubtful = revision, None
        if record.change is not self:  # another save started meanwhile, and decides
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
        """Record that the store has moved the saved data."""
        self._record.place = place

    def abandon(self, revision: int = 0) -> None:
        """Record that the change was not saved; a reader may still have seen it as `revision`."""
        record = self._record
        record.skipped = max(record.skipped, revision)
        if record.change is self:
            record.change = None

    def doubt(self, attempt: object) -> None:
        """Record that the outcome of the save is unknown, and the token by which the store can identify it."""
        record = self._record
        # The store's content is unknown too, so the next save is a whole one.
        record.doubtful, record.messages = attempt, None
        if record.change is self:
            record.change = None

    @property
    def doubtful(self) -> object:
        """The token of the last save of this state, if its outcome is unknown."""
        return self._record.doubtful

    def forget(self, message: Msg | None) -> None:
        """Have the next save write the message, or all of them."""
        if message is None:
            self._record.change = None  # the messages of this save do not count as known
        else:
            _forget_in(self.messages, message)


def unsaved_changes(state: AgentState, owner: object) -> StateChange:
    """Return the changes of the state since `owner`, a store, last saved it.

    A call of `accept`, `abandon` or `doubt` ends it; until then, or without one, other changes are whole ones.
    Raises `SessionUnserializable`.
    """
    return StateChange(state, owner)


def mark_saved(state: AgentState, owner: object, place: Any = None) -> None:
    """Record that `owner`, a store, has the state as it is, so that only later changes are saved."""
    _record_of(state).set(owner, state, place, list(state.context))


def _record_of(state: AgentState) -> SaveRecord:
    record: SaveRecord | None = getattr(state, "save_record", None)
    if record is None:
        record = state.save_record = SaveRecord()
    return record


def _forget_in(messages: list[Msg], message: Msg) -> None:
    # A copy, and no error for missing items: a save that ends meanwhile in a thread may shorten the list.
    for index, other in enumerate(list(messages)):
        if other is message:
            with suppress(IndexError):
                messages[index] = _EDITED
