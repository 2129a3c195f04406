"""Checks whether a custom store keeps its promises: each operation alone, and in random order."""

import multiprocessing
import pickle
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection
from time import monotonic
from traceback import format_exception
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from agentrt._runtime.block import new_name
from agentrt.errors import SessionConflict, SessionCorrupt, SessionUnserializable, UsageError
from agentrt.message import AssistantMsg, Msg, TextBlock, UserMsg
from agentrt.state import AgentState, ReplyContext

OpenStore = Callable[[], Any]
"""Opens a store over the place of the check; each call acts like another process."""

Damage = Callable[[str], Awaitable[None] | None]
"""Damages the saved data of the session with that id."""

PassTime = Callable[[float], Awaitable[None]]
"""Advances the clock by a number of seconds."""

# Texts that some databases, JSON libraries or protocols do not preserve.
_ODD_TEXTS = ["", "NaN", "a\0b", "\u2028", "\U0001f600", "e\u0301", '{"a": "b"}', "line\nline", "x" * 10_000]
_CANCEL_POINTS = 12
_KILL_SECONDS = 30.0
_SHORT_TTL = 0.4  # seconds, if they really have to pass
_TTL = 3600.0
_SECRET = "4111 1111 1111 1111"


class StoreProblems(AssertionError):
    """A store breaks promises; `problems` lists them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join([f"the store breaks {len(problems)} promises:", *problems]))
        self.problems = list(problems)


@dataclass
class StoreReport:
    """The result of `check_store`; `missing` names the operations that the store does not have.

    `untried` names the arguments that were left out, without which some promises cannot be checked.
    """

    checked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lacks = f"; without {', '.join(self.missing)}" if self.missing else ""
        return f"{len(self.checked)} promises are kept{lacks}"


class _BrokenPromise(Exception):
    """The finding of a check."""


async def check_store(
    open_store: OpenStore,
    *,
    open_expiring: Callable[[float], Any] | None = None,
    pass_time: PassTime | None = None,
    damages: Mapping[str, Damage] | None = None,
    runs: int = 20,
    steps: int = 30,
    kills: int = 2,
    seed: int = 0,
) -> StoreReport:
    """Check that a store keeps the promises of `SessionStore`; raises `StoreProblems` with all broken ones.

    `open_store` opens the store, again and again over one place, which may hold other data too. Operations besides
    `save` and `load` are checked if the store has them. `runs` conversations of `steps` random operations follow the
    `seed`. `kills` processes are killed while they save; for that, `open_store` must be picklable, such as a function
    of a module or a `functools.partial` of one; 0 skips this.

    `open_expiring` opens the store with the given `ttl` in seconds, `pass_time` advances the clock of a store
    with a clock of its own. `damages` are functions that each damage the saved data of the session with that id, by
    their names.
    """
    if kills:
        try:
            pickle.dumps(open_store)
        except Exception as error:  # it may fail in any way
            raise UsageError(
                f"check_store() was given {open_store!r:.200}, which has no pickle, so that no process can be started "
                f"to be killed in a save: write a function of a module, or kills=0"
            ) from error
    check = _StoreCheck(open_store, runs, steps, kills, random.Random(seed))
    check.open_expiring, check.pass_time, check.damages = open_expiring, pass_time, damages
    report, problems = StoreReport(), []
    report.untried = [name for name in _ARGUMENTS.values() if getattr(check, name) is None]
    # A broken promise does not stop the check: the author sees all of them at once.
    for promise, needs in _PROMISES.items():
        if _ARGUMENTS.get(promise) in report.untried:
            continue
        async with AsyncExitStack() as opened:
            check.opened = opened
            store = await check.open()
            report.missing += [name for name in needs if not hasattr(store, name) and name not in report.missing]
            if any(not hasattr(store, name) for name in needs):
                continue
            try:
                await getattr(check, promise)()
            except Exception as error:  # noqa: BLE001  # the boundary to the store, which may fail in any way
                problem = str(error) if isinstance(error, _BrokenPromise) else f"{type(error).__name__}: {error!s:.300}"
                problems.append(f"- {promise.replace('_', ' ')}: {problem}")
            report.checked.append(promise.replace("_", " "))
    if problems:
        raise StoreProblems(problems)
    return report


_PROMISES: dict[str, list[str]] = {
    "load_gives_what_was_saved": [],
    "what_is_saved_shares_nothing_with_the_state": [],
    "a_state_that_json_cannot_hold_is_refused_and_the_saved_one_stays": [],
    "of_two_writers_one_wins_and_the_other_gets_a_conflict": [],
    "of_many_writers_at_once_one_wins": [],
    "a_new_state_does_not_overwrite_a_saved_one": [],
    "every_edit_of_the_history_is_saved": [],
    "a_cancelled_save_is_done_whole_or_not_at_all": [],
    "a_killed_process_leaves_a_whole_state": [],
    "a_deleted_session_is_not_saved_over": ["delete"],
    "a_list_has_every_session_once": ["list", "delete"],
    "describe_says_of_a_session_what_a_list_says": ["describe", "list", "delete"],
    "a_fork_has_the_finished_messages_and_shares_nothing": ["fork"],
    "a_fork_outlives_the_session_that_it_comes_from": ["fork", "delete"],
    "an_expired_session_is_gone_and_not_saved_over": ["list", "expire"],
    "a_damaged_session_is_refused_without_its_content": ["delete"],
    "sessions_do_not_disturb_each_other": [],
}
"""The promises, which are methods of the check, with the operations that each one needs."""

_ARGUMENTS = {
    "an_expired_session_is_gone_and_not_saved_over": "open_expiring",
    "a_damaged_session_is_refused_without_its_content": "damages",
}
"""The promises that are checked only with an argument."""


def _require_that(is_kept: object, problem: str) -> None:
    if not is_kept:
        raise _BrokenPromise(problem)


def _numbered_message(number: int) -> Msg:
    if number % 2:
        return AssistantMsg("assistant", [TextBlock(f"answer {number}")])
    return UserMsg("user", f"message {number}")


def _edit(messages: list[Msg], chance: random.Random, number: int) -> str:
    """Change the context in one of the ways that need no `touch`; returns its name."""
    kind = chance.choice(["append", "append", "append two", "drop last", "drop first", "replace", "reverse", "insert"])
    index = chance.randrange(len(messages) + 1)
    if kind == "append" or not messages:
        messages.append(_numbered_message(number))
    elif kind == "append two":
        messages += [_numbered_message(number), _numbered_message(number + 1)]
    elif kind == "drop last":
        del messages[-1:]
    elif kind == "drop first":
        del messages[:1]
    elif kind == "replace":
        messages[index % len(messages)] = _numbered_message(number)
    elif kind == "reverse":
        messages.reverse()
    else:
        messages.insert(index, _numbered_message(number))
    return kind


class _StoreCheck:
    """The checks; each has its own sessions, with unique ids."""

    opened: AsyncExitStack
    open_expiring: Callable[[float], Any] | None = None
    pass_time: PassTime | None = None
    damages: Mapping[str, Damage] | None = None

    # Each promise has its own stores, which are closed before the next one.
    def __init__(self, open_store: OpenStore, runs: int, steps: int, kills: int, chance: random.Random) -> None:
        self._open_store = open_store
        self._runs, self._steps, self._kills = runs, steps, kills
        self._chance = chance

    async def open(self, ttl: float | None = None) -> Any:
        store = self._open_store() if ttl is None or self.open_expiring is None else self.open_expiring(ttl)
        return await self.opened.enter_async_context(store) if hasattr(store, "__aenter__") else store

    async def load(self, store: Any, session_id: str) -> AgentState:
        state = await store.load(session_id)
        _require_that(isinstance(state, AgentState), f"load() returned {state!r:.100} for a session that was saved")
        return state  # type: ignore[no-any-return]  # it is checked

    async def require_saved(self, store: Any, state: AgentState, when: str) -> None:
        loaded = await self.load(store, state.session_id)
        _require_that(loaded.revision == state.revision, f"{when}, load() gives another revision than save() has set")
        _require_that(loaded == state, f"{when}, load() gives another state than was saved")

    async def load_gives_what_was_saved(self) -> None:
        store, other = await self.open(), await self.open()
        _require_that(await store.load(new_name()) is None, "load() gave something for a session that was never saved")
        for text in _ODD_TEXTS:
            state = AgentState(session_id=new_name(), summary=text, context=[UserMsg("user", text or "-")])
            state.middleware_data["M"] = {text: [text, 1, 2.5, None, True, 2**53]}
            await store.save(state)
            await self.require_saved(store, state, f"with the text {text!r:.20}")
            # A second store does not share the memory of the first one.
            await self.require_saved(other, state, "opened again")
        context = ReplyContext("r", AssistantMsg("assistant", "half"), 10, parked=True)
        state = AgentState(session_id=new_name(), reply_context=context, labels={"owner": "ann"})
        await store.save(state)
        await self.require_saved(other, state, "with a reply in progress")

    async def what_is_saved_shares_nothing_with_the_state(self) -> None:
        store = await self.open()
        state = AgentState(session_id=new_name(), context=[UserMsg("user", "1")], middleware_data={"M": {"n": [1]}})
        await store.save(state)
        # A store that keeps the object itself would see these changes.
        saved = deepcopy(state)
        state.middleware_data["M"]["n"].append(2)
        state.context.append(UserMsg("user", "2"))
        first = await self.load(store, state.session_id)
        _require_that(first == saved, "a change of the state after save() has changed what is saved")
        first.middleware_data["M"]["n"].append(3)
        first.context.clear()
        _require_that(
            await self.load(store, state.session_id) == saved, "two load() calls give states that share something"
        )

    async def a_state_that_json_cannot_hold_is_refused_and_the_saved_one_stays(self) -> None:
        store = await self.open()
        values: list[Any] = [object(), float("nan"), "\ud800", AgentState]
        for value in values:
            state = AgentState(session_id=new_name(), context=[UserMsg("user", "1")])
            await store.save(state)
            revision, saved = state.revision, deepcopy(state)
            state.middleware_data["M"] = {"value": value}
            try:
                await store.save(state)
            except SessionUnserializable:
                pass
            else:
                raise _BrokenPromise(f"save() took {value!r:.40}, which JSON cannot hold")
            _require_that(state.revision == revision, "a save that failed has changed the revision of the state")
            _require_that(
                await self.load(store, state.session_id) == saved, "a save that failed has changed what is saved"
            )

    async def of_two_writers_one_wins_and_the_other_gets_a_conflict(self) -> None:
        store, other = await self.open(), await self.open()
        session_id = new_name()
        await store.save(AgentState(session_id=session_id))
        first, second = await self.load(store, session_id), await self.load(other, session_id)
        first.summary, second.summary = "first", "second"
        await store.save(first)
        # Otherwise the next save of the same state would pass for one based on the winner's.
        revision = second.revision
        await self.require_conflict(other, second, "a state that is based on an older revision")
        _require_that(
            second.revision == revision, "a save that got SessionConflict has changed the revision of the state"
        )
        await self.require_saved(other, first, "after a conflict")

    async def require_conflict(self, store: Any, state: AgentState, what: str) -> None:
        try:
            await store.save(state)
        except SessionConflict:
            return
        raise _BrokenPromise(f"save() took {what}, without SessionConflict")

    async def of_many_writers_at_once_one_wins(self) -> None:
        stores = [await self.open() for _ in range(3)]
        for _ in range(self._runs):
            session_id = new_name()
            await stores[0].save(AgentState(session_id=session_id))
            states = [await self.load(store, session_id) for store in stores]
            winners: list[AgentState] = []

            async def save(store: Any, state: AgentState, winners: list[AgentState] = winners) -> None:
                with suppress(SessionConflict):
                    await store.save(state)
                    winners.append(state)

            async with anyio.create_task_group() as tasks:
                for number, (store, state) in enumerate(zip(stores, states, strict=True)):
                    state.summary = str(number)
                    tasks.start_soon(save, store, state)
            _require_that(len(winners) == 1, f"of 3 writers on one revision, {len(winners)} have saved")
            await self.require_saved(stores[0], winners[0], "after three writers at once")

    async def a_new_state_does_not_overwrite_a_saved_one(self) -> None:
        store = await self.open()
        state = AgentState(session_id=new_name(), summary="old")
        await store.save(state)
        await self.require_conflict(
            store, AgentState(session_id=state.session_id), "a new state of a session that is there"
        )
        await self.require_saved(store, state, "after a conflict")

    async def every_edit_of_the_history_is_saved(self) -> None:
        for _ in range(self._runs):
            stores = [await self.open(), await self.open()]
            store = stores[0]
            state = AgentState(session_id=new_name())
            steps: list[str] = []
            for number in range(self._steps):
                steps.append(_edit(state.context, self._chance, 2 * number))
                # An edit in place, which a store need only save after `touch`.
                if state.context and self._chance.random() < 0.2:
                    message = self._chance.choice(state.context)
                    message.metadata["edited"] = number
                    if hasattr(state, "touch"):
                        state.touch(message)
                    steps.append("touch")
                if self._chance.random() < 0.5:
                    await store.save(state)
                    steps.append("save")
                    await self.require_saved(self._chance.choice(stores), state, f"after {', '.join(steps[-6:])}")
                    if self._chance.random() < 0.3:  # like another process
                        store = self._chance.choice(stores)
                        state = await self.load(store, state.session_id)
                        steps.append("load")

    async def a_cancelled_save_is_done_whole_or_not_at_all(self) -> None:
        store = await self.open()
        for point in range(_CANCEL_POINTS):
            state = AgentState(session_id=new_name(), summary="0", context=[UserMsg("user", "0")])
            await store.save(state)
            before = deepcopy(state)
            state.summary = "1"
            state.context = [UserMsg("user", "0"), UserMsg("user", "1")]
            expected = deepcopy(state)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.save, state)
                # Each point is one step of the event loop later in the save.
                for _ in range(point):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            found = await self.load(store, state.session_id)
            expected.revision = found.revision
            _require_that(found in (before, expected), "a save that was cancelled has saved a part of the state")
            try:
                await store.save(state)
            except SessionConflict:
                raise _BrokenPromise("after a save that was cancelled, the same state gets SessionConflict") from None
            await self.require_saved(store, state, "after a save that was cancelled")

    async def a_killed_process_leaves_a_whole_state(self) -> None:
        for _ in range(self._kills):
            session_id, reported = new_name(), 0
            ours, theirs = multiprocessing.Pipe(duplex=False)
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=anyio.run, args=(_save_for_ever, self._open_store, session_id, theirs))
            process.start()
            theirs.close()
            with anyio.fail_after(_KILL_SECONDS):
                while reported < 5:
                    reported = await anyio.to_thread.run_sync(ours.recv)
            process.kill()
            await anyio.to_thread.run_sync(process.join)
            # Numbers sent before its death are still in the pipe.
            with suppress(EOFError):
                while True:
                    reported = ours.recv()
            ours.close()
            process.close()
            state = await self.load(await self.open(), session_id)
            found = int(state.summary)
            # One save may have ended just before the process could report it.
            _require_that(
                found in (reported, reported + 1), f"a killed process had saved {reported}, and {found} was found"
            )
            # Each number has its own messages, so that the saved ones identify their saves.
            texts = [message.content for message in state.context]
            _require_that(texts == _texts_after(found), "a killed process has left a part of a save")

    async def a_deleted_session_is_not_saved_over(self) -> None:
        store, other = await self.open(), await self.open()
        old = AgentState(session_id=new_name(), context=[UserMsg("user", "secret")])
        await store.save(old)
        await store.save(old)
        await other.delete(old.session_id)
        await other.delete(old.session_id)
        _require_that(await store.load(old.session_id) is None, "load() gives a session that was deleted")
        await self.require_conflict(store, old, "a state of a session that was deleted")
        new = AgentState(session_id=old.session_id, summary="new")
        await store.save(new)
        await self.require_saved(other, new, "after the session was deleted and created again")
        await store.save(new)
        # A revision that is used twice would let the old state pass for the new one.
        await self.require_conflict(store, old, "a state of a deleted session that was created again")

    async def a_list_has_every_session_once(self) -> None:
        store, other = await self.open(), await self.open()
        # Few ids, so that sessions are deleted and created again.
        prefix, states = new_name(), dict[str, AgentState]()
        for number in range(self._steps):
            session_id = f"{prefix}/{self._chance.choice('aAbé')}{self._chance.randrange(12)}"
            action = self._chance.choice(["save", "save", "save", "delete", "list"])
            if action == "save":
                state = states.setdefault(session_id, AgentState(session_id=session_id))
                state.context.append(_numbered_message(number))
                state.labels = {"owner": self._chance.choice(["ann", "bob"]), "all": prefix}
                await store.save(state)
            elif action == "delete":
                await store.delete(session_id)
                states.pop(session_id, None)
            for options in ({"prefix": prefix}, {"prefix": f"{prefix}/a"}, {"labels": {"owner": "ann", "all": prefix}}):
                await self._compare_list(self._chance.choice([store, other]), states, options)

    async def _compare_list(self, store: Any, states: dict[str, AgentState], options: dict[str, Any]) -> None:
        found, cursor, limit = [], None, self._chance.choice([1, 2, 5, 100])
        while True:
            page = await store.list(**options, limit=limit, cursor=cursor)
            _require_that(len(page.sessions) <= limit, f"list(limit={limit}) gave {len(page.sessions)} sessions")
            found += page.sessions
            cursor = page.cursor
            if cursor is None:
                break
        labels = options.get("labels", {}).items()
        matching = [
            states[session_id]
            for session_id in sorted(states)
            if session_id.startswith(options.get("prefix", "")) and labels <= states[session_id].labels.items()
        ]
        ids = [info.session_id for info in found]
        _require_that(ids == [state.session_id for state in matching], f"list({options}, limit={limit}) gave {ids}")
        for info, state in zip(found, matching, strict=True):
            about = (info.revision, info.messages, info.labels, info.status)
            expected = (state.revision, len(state.context), state.labels, "idle")
            _require_that(about == expected, f"list() says {about} of a session that is saved as {expected}")
            _require_that(0 < info.created_at <= info.updated_at, "list() gives times that cannot be")

    async def describe_says_of_a_session_what_a_list_says(self) -> None:
        store, other = await self.open(), await self.open()
        name = new_name()
        states = [AgentState(session_id=f"{name}{end}", labels={"owner": "ann"}) for end in ("", "/1", "/10", "A")]
        # A session whose id is a prefix of the others is a different session, whether it exists or not.
        for state in reversed(states):
            await self._require_no_description(other, state.session_id, "was never saved")
            await store.save(state)
        await self._compare_descriptions(store, other, name)
        context = ReplyContext("r", AssistantMsg("assistant", "half"), 10, parked=True)
        states[1].reply_context, states[2].labels = context, {"owner": "bob"}
        states[2].context.append(_numbered_message(0))
        for state in states:
            await store.save(state)
        await self._compare_descriptions(store, other, name)
        await self._require_growing_size(store, other, states[2])
        await store.delete(name)
        await self._require_no_description(other, name, "was deleted")

    async def _compare_descriptions(self, store: Any, other: Any, prefix: str) -> None:
        for info in (await store.list(prefix=prefix)).sessions:
            found = await other.describe(info.session_id)
            _require_that(found == info, f"describe() says {found!r:.300} of a session, and list() {info!r:.300}")

    async def _require_growing_size(self, store: Any, other: Any, state: AgentState) -> None:
        before = getattr(await other.describe(state.session_id), "size", None)
        if before is None:
            return
        # No compression makes it as short as the old message.
        state.context.append(UserMsg("user", self._chance.randbytes(20_000).hex()))
        await store.save(state)
        after = (await other.describe(state.session_id)).size
        _require_that(
            0 < before < after,
            f"describe() gives the size {after!r:.40} with a long message, and {before!r:.40} without",
        )
        state.context.pop()
        await store.save(state)

    async def _require_no_description(self, store: Any, session_id: str, why: str) -> None:
        found = await store.describe(session_id)
        _require_that(found is None, f"describe() gives {found!r:.300} for a session that {why}")

    async def a_fork_has_the_finished_messages_and_shares_nothing(self) -> None:
        store, other = await self.open(), await self.open()
        context = ReplyContext("r", AssistantMsg("assistant", "half"), 10)
        messages = [_numbered_message(number) for number in range(5)]
        state = AgentState(session_id=new_name(), context=messages, reply_context=context)
        await store.save(state)
        # Both are saved after the fork: shared rows would show here.
        for count in (None, 0, 3):
            new_id = new_name()
            fork = await store.fork(state.session_id, new_id, messages=count)
            _require_that(fork.session_id == new_id, "fork() returned a state of another session")
            _require_that(fork.reply_context is None, "a fork has a reply in progress")
            _require_that(fork.context == messages[:count], f"fork(messages={count}) has other messages")
            await self.require_saved(other, fork, "after a fork")
            fork.context.append(_numbered_message(99))
            await store.save(fork)
            await self.require_saved(other, state, "after a save of its fork")
        try:
            await store.fork(state.session_id, new_id)
        except SessionConflict:
            pass
        else:
            raise _BrokenPromise("fork() took the id of a session that is there")
        state.context.clear()
        await store.save(state)
        await self.require_saved(other, fork, "after a save of the session that it was forked from")

    async def a_fork_outlives_the_session_that_it_comes_from(self) -> None:
        store, other = await self.open(), await self.open()
        state = AgentState(session_id=new_name(), context=[_numbered_message(number) for number in range(3)])
        await store.save(state)
        fork = await store.fork(state.session_id, new_name())
        nested = await store.fork(fork.session_id, new_name(), messages=2)
        await store.delete(state.session_id)
        for kept in (fork, nested):
            await self.require_saved(other, kept, "after delete() of the session that it was forked from")
        await store.delete(nested.session_id)
        await self.require_saved(other, fork, "after delete() of a fork of it")

    async def an_expired_session_is_gone_and_not_saved_over(self) -> None:
        ttl = _SHORT_TTL if self.pass_time is None else _TTL
        pass_time = self.pass_time or anyio.sleep
        store, prefix = await self.open(ttl), new_name()
        old, left, renewed, fresh = (
            AgentState(session_id=f"{prefix}/{name}") for name in ("old", "left", "renewed", "fresh")
        )
        await store.save(old)
        await store.save(left)
        saved_at = -inf
        for _ in range(3):
            try:
                await store.save(renewed)
            except SessionConflict:
                # On a busy machine, more time may have passed.
                is_late = monotonic() - saved_at > 0.9 * ttl
                _require_that(is_late, "a session has expired that was saved again within its ttl")
            saved_at = monotonic()
            await pass_time(ttl / 2)
        _require_that(await store.load(old.session_id) is None, "load() gives a session that has expired")
        ids = {info.session_id for info in (await store.list(prefix=prefix)).sessions}
        _require_that(ids <= {renewed.session_id}, "list() has sessions that have expired")
        if hasattr(store, "describe"):
            await self._require_no_description(store, old.session_id, "has expired")
        await self.require_conflict(store, old, "a state of a session that has expired")
        saved_at = monotonic()
        await store.save(fresh)
        await store.save(AgentState(session_id=old.session_id))
        await self.require_conflict(store, old, "a state of an expired session that was created again")
        removed = await store.expire()
        _require_that(removed >= 1, f"expire() has removed {removed} sessions, though one had expired")
        is_there = await store.load(fresh.session_id) is not None
        is_late = monotonic() - saved_at > 0.9 * ttl
        _require_that(is_there or is_late, "expire() has removed a session that had not expired")
        await self.require_conflict(store, left, "a state of a session that expire() has removed")

    async def a_damaged_session_is_refused_without_its_content(self) -> None:
        for name, damage in (self.damages or {}).items():
            store, other = await self.open(), await self.open()
            states = [AgentState(session_id=new_name(), summary=_SECRET) for _ in range(2)]
            for state in states:
                state.context = [UserMsg("user", _SECRET) for _ in range(3)]
                await store.save(state)
            damaged, sound = states
            damaging = damage(damaged.session_id)
            if damaging is not None:
                await damaging
            for reader in (store, other):
                await self._require_corrupt(reader, damaged.session_id, name)
                await self.require_saved(reader, sound, f"beside a session that was damaged by {name!r}")
            await store.delete(damaged.session_id)
            _require_that(await other.load(damaged.session_id) is None, "load() gives a damaged session after delete()")
            new = AgentState(session_id=damaged.session_id)
            await store.save(new)
            await self.require_saved(other, new, "created again after it was damaged")

    async def _require_corrupt(self, store: Any, session_id: str, damage: str) -> None:
        try:
            await store.load(session_id)
        except SessionCorrupt as error:
            # The causes are shown with it in every log.
            text = "".join(format_exception(error))
            _require_that(_SECRET not in text, f"the error of load() after {damage!r} quotes what was saved")
            _require_that(session_id in str(error), f"the error of load() after {damage!r} does not name its session")
        else:
            raise _BrokenPromise(f"load() gives a session that was damaged by {damage!r}, without SessionCorrupt")

    async def sessions_do_not_disturb_each_other(self) -> None:
        # Equal as a file name, as a pattern of SQL, or in a database that ignores case.
        store, name = await self.open(), new_name()
        ids = [f"{name}{end}" for end in ("", "/", "/..", " ", "a", "A", "\u00e9", "e\u0301", "%", "_", "*", "'", '"')]
        states = [AgentState(session_id=session_id, summary=session_id) for session_id in ids]
        for state in states:
            await store.save(state)
        for state in states:
            await self.require_saved(store, state, "among other sessions")


def _texts_after(number: int) -> list[str]:
    """Return the messages of a session after the save of `number` by `_save_for_ever`."""
    texts: list[str] = []
    for save in range(1, number + 1):
        texts += [f"{save} {'x' * 2000}"] * (save % 3)
        if save % 7 == 0:
            del texts[:2]
    return texts


async def _save_for_ever(open_store: OpenStore, session_id: str, pipe: "Connection[int, int]") -> None:
    """Save one number after the other, and report each saved one; runs in a process that is killed."""
    store = open_store()
    state = AgentState(session_id=session_id)
    number = 0
    while True:
        number += 1
        state.summary = str(number)
        state.context += [UserMsg("user", f"{number} {'x' * 2000}") for _ in range(number % 3)]
        if number % 7 == 0:
            del state.context[:2]
        await store.save(state)
        pipe.send(number)
