"""After each save a fresh store loads the whole state, whatever was edited, copied, or failed before."""

import errno
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from copy import copy, deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import SessionConflict, SessionIOError, SessionUnserializable
from agentrt.message import AssistantMsg, Msg, TextBlock, UserMsg
from agentrt.state import AgentState, FileStateStore, file, file_store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="speaks of locks and modes as POSIX has them")

_FAILING = ("write", "fsync", "fdatasync", "ftruncate", "replace", "open")


class FailingOS:
    """The module `os`, where each operation that has a number in `fails` fails, and writes are short."""

    def __init__(self) -> None:
        self.fails: set[int] = set()
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in _FAILING:
            return function

        def operation(*arguments: Any) -> Any:
            self.count += 1
            if self.count in self.fails:
                raise OSError(errno.EIO, "broken")
            return function(arguments[0], arguments[1][:200]) if name == "write" else function(*arguments)

        return operation


async def saved_json(directory: Path, session_id: str) -> str | None:
    """Return the JSON of the saved state, as a process that has never seen it loads it."""
    state = await FileStateStore(directory).load(session_id)
    return None if state is None else state.model_dump_json()


def split(text: str | None) -> tuple[str, int]:
    """Return the JSON of a state apart from its revision, and that."""
    state = AgentState(session_id="none") if text is None else AgentState.model_validate_json(text)
    revision, state.revision = state.revision, 0
    return state.model_dump_json(), revision


class Conversations:
    """States over two directories; each save is compared with what a fresh store loads then."""

    def __init__(self, directory: Path, disk: FailingOS) -> None:
        self.directories = [directory / "one", directory / "two"]
        self.stores = [FileStateStore(self.directories[index]) for index in (0, 0, 1)]
        self.states = [AgentState(session_id="s"), AgentState(session_id="t")]
        self.disk = disk
        self.numbers = count()

    def new_message(self) -> Msg:
        number = next(self.numbers)
        if number % 3:
            return UserMsg("user", f"message {number} {'x' * (number % 5 * 30)}")
        return AssistantMsg("assistant", [TextBlock(f"answer {number}")])

    def change_list(self, which: int, action: str, index: int) -> None:
        context = self.states[which].context
        index %= len(context) + 1
        changes: dict[str, Callable[[], object]] = {
            "append": lambda: context.append(self.new_message()),
            "append many": lambda: context.extend(self.new_message() for _ in range(105)),
            "insert": lambda: context.insert(index, self.new_message()),
            "cut": lambda: context.__delitem__(slice(index, None)),
            "remove": lambda: context.__delitem__(slice(index, index + 1)),
            "reverse": context.reverse,
            "repeat": lambda: context.extend(context[index : index + 1]),
            "share": lambda: self.states[1 - which].context.extend(context[index : index + 1]),
            "another list": lambda: setattr(self.states[which], "context", [*context[index:], self.new_message()]),
        }
        changes[action]()

    def edit_message(self, which: int, action: str, index: int) -> None:
        for message in self.states[which].context[index : index + 1]:
            message.name = f"edited {next(self.numbers)}"
            for state in self.states:
                if action == "replace":  # by a copy, which is equal to it
                    state.context[:] = [other.copy() if other is message else other for other in state.context]
                elif action == "touch all":
                    state.touch()
                elif any(other is message for other in state.context):
                    state.touch(message)

    def change_state(self, which: int, action: str, size: int) -> None:
        state = self.states[which]
        if action == "summarise":
            state.summary = f"{next(self.numbers)} {'y' * 5 * size}"
        elif action == "rename":
            state.session_id = "t" if state.session_id == "s" else "s"
        elif action == "copy":
            self.states[which] = copy(state)
            self.states[which].context = [*state.context]
        elif action == "copy deeply":
            self.states[which] = deepcopy(state)
        else:
            self.states[which] = pickle.loads(pickle.dumps(state))

    async def load(self, which: int, store: int) -> None:
        loaded = await self.stores[store].load(self.states[which].session_id)
        if loaded is not None:
            self.states[which] = loaded

    async def save(self, which: int, store: int, fails: set[int]) -> None:
        state, directory = self.states[which], self.directories[store // 2]
        before = await saved_json(directory, state.session_id)
        _, revision = split(before)
        if state.revision != revision:
            with pytest.raises(SessionConflict):
                await self.stores[store].save(state)
            assert await saved_json(directory, state.session_id) == before
            state.revision = revision  # as someone does who wants this state to be the one that stays
        whole, _ = split(state.model_dump_json())
        self.disk.count, self.disk.fails = 0, fails
        try:
            await self.stores[store].save(state)
        except SessionIOError:
            self.disk.fails = set()
            after = await saved_json(directory, state.session_id)
            assert after == before or split(after)[0] == whole
            await self.stores[store].save(state)  # never a conflict: nobody else has saved
        finally:
            self.disk.fails = set()
        assert await saved_json(directory, state.session_id) == state.model_dump_json()
        assert split(state.model_dump_json())[0] == whole
        assert state.revision > revision

    async def save_broken(self, which: int, store: int) -> None:
        """A state that cannot be saved leaves the saved one, and can be saved once it is mended."""
        state, directory = self.states[which], self.directories[store // 2]
        before = await saved_json(directory, state.session_id)
        message = self.new_message()
        message.metadata["broken"] = float("nan")
        state.context.append(message)
        with pytest.raises((SessionUnserializable, SessionConflict)):
            await self.stores[store].save(state)
        assert await saved_json(directory, state.session_id) == before
        message.metadata.clear()

    async def delete(self, which: int, store: int) -> None:
        await self.stores[store].delete(self.states[which].session_id)


_LISTS = ["append", "append many", "insert", "cut", "remove", "reverse", "repeat", "share", "another list"]
_STATES = ["summarise", "rename", "copy", "copy deeply", "pickle"]
_which, _store, _fails = st.integers(0, 1), st.integers(0, 2), st.sets(st.integers(1, 12), max_size=2)
_steps = st.one_of(
    st.tuples(st.just("change_list"), _which, st.sampled_from(_LISTS), st.integers(0, 200)),
    st.tuples(st.just("edit_message"), _which, st.sampled_from(["touch", "touch all", "replace"]), st.integers(0, 20)),
    st.tuples(st.just("change_state"), _which, st.sampled_from(_STATES), st.integers(0, 200)),
    st.tuples(st.sampled_from(["load", "delete", "save_broken"]), _which, _store),
    st.tuples(st.just("save"), _which, _store, _fails),
    *[st.tuples(st.just("save"), _which, st.just(0), st.just(set[int]()))] * 2,
)


async def run(steps: list[Any], directory: Path, disk: FailingOS) -> None:
    conversations = Conversations(directory, disk)
    for which in (0, 1):
        conversations.states[which].context += [conversations.new_message() for _ in range(20)]
        await conversations.save(which, 0, set())
    for name, *arguments in steps:
        step = getattr(conversations, name)(*arguments)
        if step is not None:
            await step


@given(st.lists(_steps, min_size=10, max_size=30))
@settings(max_examples=5, deadline=None)
def test_what_is_loaded_is_the_state_whatever_was_done(steps):
    check_steps(steps)


@pytest.mark.slow
@given(st.lists(_steps, min_size=10, max_size=30))
@settings(max_examples=50, deadline=None)
def test_what_is_loaded_is_the_state_in_many_conversations(steps):
    check_steps(steps)


def check_steps(steps):
    disk = FailingOS()
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        for module in (file, file_store):
            patch.setattr(module, "os", disk)
        patch.setattr(file_store, "_MAX_SMALL", 500)
        patch.setattr(file_store, "_GROWTH", 2)
        anyio.run(run, steps, Path(directory), disk)
