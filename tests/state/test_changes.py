"""What is new in a state since it was saved: exactly what a comparison of the whole would find."""

import gc
import pickle
import weakref
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import SessionUnserializable, UsageError
from agentrt.message import AssistantMsg, Msg, TextBlock, UserMsg
from agentrt.state import AgentState, ReplyContext, changes
from agentrt.state.changes import mark_saved, unsaved_changes
from agentrt.state.state import dump_messages, join_state


class Rows:
    """A store of messages one by one, as a database is."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.rest = b""
        self.revision = 0
        self.written = 0

    def save(self, state: AgentState, *, fails: bool = False) -> None:
        change = unsaved_changes(state, self)
        if fails:
            change.abandon()
            return
        texts = change.dump_messages()
        assert not (change.is_whole and change.start)
        self.written = len(texts)
        self.messages[change.start :] = texts
        self.rest = change.head
        self.revision += 1
        change.accept(self.revision, None)

    def load(self) -> AgentState:
        return join_state(self.rest, self.messages, self.revision, "the rows")


def new_message(number: int) -> Msg:
    return UserMsg("user", f"message {number}")


def edit(messages: list[Msg], action: str, index: int, number: int) -> None:
    """Change the list in one of the ways in which lists are changed."""
    index %= len(messages) + 1
    if action == "append":
        messages.append(new_message(number))
    elif action == "extend":
        messages += [new_message(number), AssistantMsg("assistant", "yes")]
    elif action == "insert":
        messages.insert(index, new_message(number))
    elif action == "take back":
        del messages[index:]
    elif action == "drop":
        del messages[:index]
    elif action == "reverse":
        messages.reverse()
    elif action == "clear":
        messages.clear()
    elif index < len(messages):
        if action == "replace":
            messages[index] = new_message(number)
        elif action == "replace by a copy":
            messages[index] = messages[index].copy()
        elif action == "remove":
            del messages[index]
        elif action == "repeat":
            messages.append(messages[index])
        elif action == "edit and replace":
            old = messages[index]
            old.content = f"edited {number}"
            messages[:] = [old.copy() if message is old else message for message in messages]


ACTIONS = [
    "append",
    "extend",
    "insert",
    "take back",
    "drop",
    "reverse",
    "clear",
    "replace",
    "replace by a copy",
    "remove",
    "repeat",
    "edit and replace",
    "new list",
    "edit",
    "edit block",
    "touch all",
    "save",
    "save that fails",
    "load",
]


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 8)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_saved_rows_are_the_state_whatever_was_edited(steps):
    rows, state = Rows(), AgentState(session_id="s")
    for number, (action, index) in enumerate([*steps, ("save", 0)]):
        state.sequence = number
        if action.startswith("save"):
            rows.save(state, fails=action != "save")
        elif action == "load" and rows.rest:
            state = rows.load()
            mark_saved(state, rows)
        elif action == "new list":
            state.context = list(state.context)
        elif action == "touch all" and state.context:
            state.context[0].name = f"name {number}"
            state.touch()
        elif action.startswith("edit") and action != "edit and replace" and index < len(state.context):
            message = state.context[index]
            if action == "edit":
                message.metadata["number"] = number
            else:
                message.content = [TextBlock(f"block {number}")]
            state.touch(message)
        else:
            edit(state.context, action, index, number)
        if action == "save":
            assert rows.load() == state


@given(st.lists(st.tuples(st.sampled_from(ACTIONS[:12]), st.integers(0, 8)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_only_what_follows_the_first_difference_is_written(steps):
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(number) for number in range(6)])
    rows.save(state)
    before = list(state.context)
    for number, (action, index) in enumerate(steps):
        edit(state.context, action, index, number)
    pairs = zip(before, state.context, strict=False)
    same = next(
        (index for index, (old, new) in enumerate(pairs) if old is not new), min(len(before), len(state.context))
    )
    rows.save(state)
    assert rows.written == len(state.context) - same


def test_message_edited_without_touch_is_the_blind_spot():
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(1)])
    rows.save(state)
    state.context[0].content = "edited"
    rows.save(state)
    assert rows.load().context[0].content == "message 1"
    state.touch(state.context[0])
    rows.save(state)
    assert rows.load() == state
    rows.save(state)
    assert rows.written == 0


def test_message_edited_while_it_is_being_saved_is_saved_again():
    rows, state = Rows(), AgentState(session_id="s")
    rows.save(state)
    for touch in (partial(state.touch), lambda: state.touch(state.context[-1])):
        state.context.append(new_message(1))
        change = unsaved_changes(state, rows)
        texts = change.dump_messages()
        state.context[-1].content = "edited"
        touch()
        rows.messages[change.start :] = texts
        change.accept(2, None)
        rows.save(state)
        assert rows.load() == state


def test_message_edited_while_a_save_shortens_the_list_is_saved():
    rows, state = Rows(), AgentState(context=[new_message(number) for number in range(5)])
    rows.save(state)
    message = state.context[0]

    class Shortened(list[Msg]):
        def __setitem__(self, index: Any, value: Any) -> None:
            del self[1:]
            super().__setitem__(index, value)

    record: Any = state.save_record
    state.context[1:] = [message]
    record.messages = Shortened([*record.messages, message])
    message.content = "edited"
    state.touch(message)
    rows.save(state)
    assert rows.load() == state


def test_save_that_begins_during_another_writes_everything():
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(1)])
    rows.save(state)
    first = unsaved_changes(state, rows)
    state.context.append(new_message(2))
    second = unsaved_changes(state, rows)
    assert (first.is_whole, second.is_whole, second.start) == (False, True, 0)
    first.accept(7, None)
    assert state.revision == 7
    second.accept(8, None)
    state.context.append(new_message(3))
    assert unsaved_changes(state, rows).start == 2


def test_save_that_never_ended_makes_the_next_a_whole_one():
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(1)])
    rows.save(state)
    unsaved_changes(state, rows)
    rows.save(state)
    assert rows.written == 1
    rows.save(state)
    assert rows.written == 0


def of_another_store(state: AgentState, rows: Rows) -> tuple[AgentState, Rows]:
    other = Rows()
    other.messages, other.revision = list(rows.messages), rows.revision
    return state, other


def of_another_session(state: AgentState, rows: Rows) -> tuple[AgentState, Rows]:
    state.session_id = "t"
    return state, rows


def begun_again(state: AgentState, rows: Rows) -> tuple[AgentState, Rows]:
    state.revision = 0
    return state, rows


@pytest.mark.parametrize(
    "make",
    [
        of_another_store,
        of_another_session,
        begun_again,
        lambda state, rows: (copy(state), rows),
        lambda state, rows: (deepcopy(state), rows),
        lambda state, rows: (replace(state), rows),
        lambda state, rows: (pickle.loads(pickle.dumps(state)), rows),
        lambda state, rows: (AgentState.model_validate_json(state.model_dump_json()), rows),
    ],
)
def test_a_state_that_the_store_does_not_know_is_saved_whole(make: Any):
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(1), new_message(2)])
    rows.save(state)
    state, rows = make(state, rows)
    rows.save(state)
    assert rows.written == 2
    rows.save(state)
    assert rows.written == 0


def test_touch_refuses_a_message_that_is_not_in_the_conversation():
    state = AgentState(context=[new_message(1)])
    with pytest.raises(UsageError, match=r"not in this conversation: change .* in state\.context itself"):
        state.touch(state.context[0].copy())
    state.touch()
    state.touch(state.context[0])
    state.reply_context = ReplyContext("r", new_message(2), 3, observed=[new_message(3)])
    state.touch(state.reply_context.message)
    state.touch(state.reply_context.observed[0])


@pytest.mark.parametrize("many", [1, 300])
def test_the_first_message_that_cannot_be_saved_is_named(many):
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(0)])
    rows.save(state)
    state.context += [new_message(number) for number in range(many)]
    state.context[-1].metadata["number"] = float("nan")
    for _ in range(2):
        with pytest.raises(SessionUnserializable, match=rf"its context\[{many}\] holds"):
            rows.save(state)
    del state.context[-1]
    rows.save(state)
    assert rows.load() == state


@pytest.mark.parametrize("broken", [None, 5, "text"])
@pytest.mark.parametrize("many", [1, 300])
def test_what_is_not_a_message_is_refused(many, broken):
    state = AgentState(session_id="s", context=[new_message(number) for number in range(many)])
    state.context.append(broken)
    with pytest.raises(SessionUnserializable, match=rf"its context\[{many}\] holds"):
        Rows().save(state)


def test_what_is_written_later_is_what_it_was_at_the_save():
    rows, state = Rows(), AgentState(session_id="s", context=[new_message(number) for number in range(300)])
    before = dump_messages(state.context, "s", 0)
    change = unsaved_changes(state, rows)
    for message in state.context:
        message.content = "edited"
    assert change.dump_messages() == before


def test_a_store_does_not_keep_states_alive():
    class Message(Msg):
        __slots__ = ("__weakref__",)

    rows, state = Rows(), AgentState(session_id="s", context=[Message("user", "Hi", "user")])
    reference = weakref.ref(state.context[0])
    rows.save(state)
    del state
    gc.collect()
    assert reference() is None


def test_a_record_is_neither_compared_nor_saved():
    state = AgentState(session_id="s")
    before = state.model_dump_json()
    other = copy(state)
    Rows().save(state)
    state.revision = 0
    assert state == other
    assert state.model_dump_json() == before
    assert changes.unsaved_changes(other, object()).is_whole
