"""The kit for stores passes those that ship, and finds what is wrong with stores that are not right."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from agentrt.errors import SessionCorrupt, UsageError
from agentrt.state import (
    AgentState,
    FileStateStore,
    InMemoryStateStore,
    SessionInfo,
    SessionPage,
    SQLiteStore,
    check_revision,
    fork_state,
    next_revision,
    state_from_json,
    state_to_json,
)
from agentrt.state.database import sqlite
from agentrt.state.file import hash_name
from agentrt.testing import ExactStore, StoreProblems, StoreReport, check_store


class SharedStore:
    """A base of stores of one's own, over a dict that all instances share, as processes share a database."""

    def __init__(self, saved: dict[str, tuple[int, bytes]]) -> None:
        self.saved = saved

    async def save(self, state: AgentState) -> None:
        text = state_to_json(state)
        revision, _ = self.saved.get(state.session_id, (0, b""))
        check_revision(state, revision)
        await self.write(state, next_revision(revision), text)

    async def write(self, state: AgentState, revision: int, text: bytes) -> None:
        self.saved[state.session_id] = revision, text
        state.revision = revision

    async def load(self, session_id: str) -> AgentState | None:
        if session_id not in self.saved:
            return None
        revision, text = self.saved[session_id]
        return state_from_json(text, revision, "the dict")

    async def delete(self, session_id: str) -> None:
        self.saved.pop(session_id, None)


class LastWriterWins(SharedStore):
    async def save(self, state: AgentState) -> None:
        await self.write(state, next_revision(self.saved.get(state.session_id, (0, b""))[0]), state_to_json(state))


class LosesCompareAndSet(SharedStore):
    async def write(self, state: AgentState, revision: int, text: bytes) -> None:
        await checkpoint()
        await super().write(state, revision, text)


class SavesHalf(SharedStore):
    """Writes the messages, and then what else there is."""

    async def write(self, state: AgentState, revision: int, text: bytes) -> None:
        if state.session_id in self.saved:
            half = state_from_json(self.saved[state.session_id][1], 0, "the dict")
            half.context = state.context
            self.saved[state.session_id] = revision - 1, state_to_json(half)
            await checkpoint()
        await super().write(state, revision, text)


class WrongOrder(SharedStore):
    async def load(self, session_id: str) -> AgentState | None:
        state = await super().load(session_id)
        if state is not None:
            state.context.sort(key=lambda message: message.created_at)
        return state


class AppendsOnly(SharedStore):
    async def write(self, state: AgentState, revision: int, text: bytes) -> None:
        older = await self.load(state.session_id)
        if older is not None:
            longer = state_from_json(text, revision, "the dict")
            longer.context = older.context + longer.context[len(older.context) :]
            text = state_to_json(longer)
        await super().write(state, revision, text)


class RevisionsComeBack(SharedStore):
    async def write(self, state: AgentState, revision: int, text: bytes) -> None:
        await super().write(state, state.revision + 1, text)


class SavesOverDeleted(SharedStore):
    async def save(self, state: AgentState) -> None:
        if state.session_id not in self.saved:
            state.revision = 0
        await super().save(state)


class SetsTheRevisionFirst(SharedStore):
    async def save(self, state: AgentState) -> None:
        revision, _ = self.saved.get(state.session_id, (0, b""))
        base, state.revision = state.revision, next_revision(revision)
        if base != revision:
            check_revision(state, -1)
        await self.write(state, state.revision, state_to_json(state))


class LoadsOneObject(SharedStore):
    states: dict[str, AgentState]

    async def load(self, session_id: str) -> AgentState | None:
        state = await super().load(session_id)
        self.states = getattr(self, "states", {})
        if state is not None and self.states.setdefault(session_id, state).revision != state.revision:
            self.states[session_id] = state
        return self.states.get(session_id)


class TakesWhatDoesNotLoad(SharedStore):
    async def save(self, state: AgentState) -> None:
        sound = deepcopy(state)
        sound.middleware_data.get("M", {}).pop("value", None)
        await super().save(sound)
        state.revision = sound.revision


class FoldsCase(SharedStore):
    async def save(self, state: AgentState) -> None:
        name = state.session_id
        state.session_id = name.lower()
        try:
            await super().save(state)
        finally:
            state.session_id = name

    async def load(self, session_id: str) -> AgentState | None:
        state = await super().load(session_id.lower())
        if state is not None:
            state.session_id = session_id
        return state


class ForksShareRows(SharedStore):
    """Marks a fork as one, and writes both where either is saved."""

    async def fork(self, session_id: str, new_id: str, *, messages: int | None = None) -> AgentState:
        state = await self.load(session_id)
        assert state is not None
        fork = fork_state(state, new_id, messages)
        await self.save(fork)
        self.saved[f"twin of {new_id}"] = 1, session_id.encode()
        return fork

    async def write(self, state: AgentState, revision: int, text: bytes) -> None:
        await super().write(state, revision, text)
        twin = self.saved.get(f"twin of {state.session_id}")
        if twin is not None:
            other = state_from_json(text, 0, "the dict")
            other.session_id = twin[1].decode()
            self.saved[other.session_id] = self.saved[other.session_id][0], state_to_json(other)


class ForksTheReply(SharedStore):
    async def fork(self, session_id: str, new_id: str, *, messages: int | None = None) -> AgentState:
        state = await self.load(session_id)
        assert state is not None
        state.session_id, state.revision = new_id, 0
        state.context = state.context[:messages]
        await self.save(state)
        return state


class DeletesForks(InMemoryStateStore):
    async def fork(self, session_id: str, new_id: str, *, messages: int | None = None) -> AgentState:
        fork = await super().fork(session_id, new_id, messages=messages)
        self.forks = [*getattr(self, "forks", []), (session_id, new_id)]
        return fork

    async def delete(self, session_id: str) -> None:
        await super().delete(session_id)
        for origin, fork in getattr(self, "forks", []):
            if origin == session_id:
                await super().delete(fork)


class SkipsAtPageEnds(InMemoryStateStore):
    async def list(self, **options: Any) -> SessionPage:
        page = await super().list(**options)
        if page.cursor is None:
            return page
        following = await super().list(**options | {"cursor": page.cursor, "limit": 1})
        return SessionPage(page.sessions, following.sessions[0].session_id)


class DescribesTheFirst(InMemoryStateStore):
    async def describe(self, session_id: str) -> SessionInfo | None:
        page = await self.list(prefix=session_id, limit=1)
        return page.sessions[0] if page.sessions else None


class DescribesFromMemory(InMemoryStateStore):
    async def describe(self, session_id: str) -> SessionInfo | None:
        self.known = getattr(self, "known", {})
        info = await super().describe(session_id)
        return info and self.known.setdefault(session_id, info)


class SaysOneSize(InMemoryStateStore):
    async def list(self, **options: Any) -> SessionPage:
        page = await super().list(**options)
        return replace(page, sessions=[replace(info, size=1_000) for info in page.sessions])

    async def describe(self, session_id: str) -> SessionInfo | None:
        info = await super().describe(session_id)
        return info and replace(info, size=1_000)


class KeepsOldLabels(InMemoryStateStore):
    async def save(self, state: AgentState) -> None:
        labels = dict(state.labels)
        if state.revision:
            state.labels = {"owner": "ann", "all": labels.get("all", "")}
        await super().save(state)
        state.labels = labels


class Clock:
    """A clock that stands still, for the stores with a `ttl` below."""

    def __init__(self) -> None:
        self.now = 0.0

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds


class ExpiringStore(SharedStore):
    """A store with a `ttl` that is right, and a base of those that are not."""

    def __init__(self, saved: dict[str, tuple[int, bytes]], clock: Clock, ttl: float | None = None) -> None:
        super().__init__(saved)
        self.clock, self.ttl = clock, ttl
        self.ends: dict[str, float] = saved.setdefault("ends", {})  # type: ignore[arg-type, assignment]

    def is_expired(self, session_id: str) -> bool:
        return session_id in self.ends and self.ends[session_id] <= self.clock.now

    def forget_expired(self, session_id: str) -> None:
        if self.is_expired(session_id):
            self.saved.pop(session_id, None)

    async def save(self, state: AgentState) -> None:
        self.forget_expired(state.session_id)
        await super().save(state)
        self.renew(state.session_id)

    def renew(self, session_id: str) -> None:
        self.ends[session_id] = self.clock.now + (1e9 if self.ttl is None else self.ttl)

    async def load(self, session_id: str) -> AgentState | None:
        return None if self.is_expired(session_id) else await super().load(session_id)

    async def list(self, *, prefix: str = "", **options: Any) -> SessionPage:
        ids = [each for each in self.ends if each in self.saved and each.startswith(prefix)]
        return SessionPage([SessionInfo(each, 1, 1, 1, 1) for each in ids if not self.is_expired(each)])

    async def expire(self) -> int:
        expired = [each for each in self.ends if each in self.saved and self.is_expired(each)]
        for session_id in expired:
            self.forget_expired(session_id)
        return len(expired)


class NeverExpires(ExpiringStore):
    def is_expired(self, session_id: str) -> bool:
        return False


class ExpiresInTheMiddle(ExpiringStore):
    def renew(self, session_id: str) -> None:
        if session_id not in self.ends or self.is_expired(session_id):
            super().renew(session_id)


class SavesOverExpired(ExpiringStore):
    def forget_expired(self, session_id: str) -> None:
        pass


class ListsExpired(ExpiringStore):
    async def list(self, *, prefix: str = "", **options: Any) -> SessionPage:
        ids = [each for each in self.ends if each in self.saved and each.startswith(prefix)]
        return SessionPage([SessionInfo(each, 1, 1, 1, 1) for each in ids])


class DescribesExpired(ExpiringStore):
    async def describe(self, session_id: str) -> SessionInfo | None:
        return SessionInfo(session_id, 1, 1, 1, 1) if session_id in self.saved else None


class ExpiresAll(ExpiringStore):
    async def expire(self) -> int:
        count = await super().expire()
        for session_id in self.ends:
            self.saved.pop(session_id, None)
        return count


class CountsNothing(ExpiringStore):
    async def expire(self) -> int:
        await super().expire()
        return 0


EXPIRING: dict[type[ExpiringStore], str] = {
    NeverExpires: r"load\(\) gives a session that has expired",
    ExpiresInTheMiddle: "a session has expired that was saved again within its ttl",
    SavesOverExpired: "took a state of a session that has expired, without SessionConflict",
    ListsExpired: r"list\(\) has sessions that have expired",
    DescribesExpired: r"describe\(\) gives .* for a session that has expired",
    ExpiresAll: r"expire\(\) has removed a session that had not expired",
    CountsNothing: r"expire\(\) has removed 0 sessions, though one had expired",
}


async def check_expiring(cls: type[ExpiringStore]) -> StoreReport:
    saved: dict[str, tuple[int, bytes]] = {}
    clock = Clock()
    open_expiring = partial(cls, saved, clock)
    return await check_store(
        partial(cls, saved, clock), open_expiring=open_expiring, pass_time=clock.pass_time, kills=0, runs=1, steps=2
    )


async def test_store_that_expires_as_it_should_passes():
    class WithoutLabels(ExpiringStore):
        delete = None

        def __getattribute__(self, name: str) -> Any:
            if name == "delete":  # the list above is too simple for what is tried with `delete`
                raise AttributeError
            return super().__getattribute__(name)

    report = await check_expiring(WithoutLabels)
    assert "an expired session is gone and not saved over" in report.checked
    assert report.untried == ["damages"]


@pytest.mark.parametrize("faulty", EXPIRING, ids=lambda cls: cls.__name__)
async def test_store_that_does_not_expire_as_it_should_is_found(faulty):
    with pytest.raises(StoreProblems, match=f"an expired session is gone and not saved over: .*{EXPIRING[faulty]}"):
        await check_expiring(faulty)


class LoadsWhatIsLeft(SharedStore):
    async def load(self, session_id: str) -> AgentState | None:
        try:
            return await super().load(session_id)
        except SessionCorrupt:
            return AgentState(session_id=session_id)


class QuotesWhatIsDamaged(SharedStore):
    async def load(self, session_id: str) -> AgentState | None:
        try:
            return await super().load(session_id)
        except SessionCorrupt:
            raise SessionCorrupt(f"{session_id}: {self.saved[session_id][1]!r}") from None


class NamesNoSession(SharedStore):
    """As `SharedStore` itself, whose error says "the dict"."""


class NamesItsSession(SharedStore):
    async def load(self, session_id: str) -> AgentState | None:
        try:
            return await super().load(session_id)
        except SessionCorrupt:
            raise SessionCorrupt(f"the session {session_id} is damaged") from None


class KeepsTheDamage(NamesItsSession):
    async def delete(self, session_id: str) -> None:
        if await self.load(session_id) is not None:
            await super().delete(session_id)


DAMAGED: dict[type[SharedStore], str] = {
    LoadsWhatIsLeft: "gives a session that was damaged by 'half', without SessionCorrupt",
    QuotesWhatIsDamaged: "after 'half' quotes what was saved",
    NamesNoSession: "after 'half' does not name its session",
    KeepsTheDamage: "SessionCorrupt: the session .* is damaged",
}


async def check_damaged(cls: type[SharedStore]) -> StoreReport:
    saved: dict[str, tuple[int, bytes]] = {}

    def cut(session_id: str) -> None:
        revision, text = saved[session_id]
        saved[session_id] = revision, text[: len(text) // 2]

    return await check_store(partial(cls, saved), damages={"half": cut}, kills=0, runs=1, steps=2)


async def test_store_that_refuses_what_is_damaged_passes():
    report = await check_damaged(NamesItsSession)
    assert "a damaged session is refused without its content" in report.checked


@pytest.mark.parametrize("faulty", DAMAGED, ids=lambda cls: cls.__name__)
async def test_store_that_hides_or_shows_damage_is_found(faulty):
    with pytest.raises(StoreProblems, match=f"a damaged session is refused without its content: .*{DAMAGED[faulty]}"):
        await check_damaged(faulty)


FAULTY: dict[type, str] = {
    LastWriterWins: "of two writers one wins.*without SessionConflict",
    LosesCompareAndSet: "of many writers at once one wins: of 3 writers on one revision, 3 have saved",
    SavesHalf: "a cancelled save is done whole or not at all.*a part of the state",
    WrongOrder: "every edit of the history is saved",
    AppendsOnly: "every edit of the history is saved",
    RevisionsComeBack: "a deleted session is not saved over.*that was created again",
    SavesOverDeleted: "a deleted session is not saved over.*a state of a session that was deleted",
    SetsTheRevisionFirst: "has changed the revision of the state",
    LoadsOneObject: "give states that share something",
    TakesWhatDoesNotLoad: "which JSON cannot hold",
    FoldsCase: "sessions do not disturb each other",
    ForksShareRows: "a fork has the finished messages and shares nothing",
    ForksTheReply: "a fork has a reply in progress",
    DeletesForks: "a fork outlives the session that it comes from",
    DescribesTheFirst: "describe says of a session what a list says: .* for a session that was never saved",
    DescribesFromMemory: "describe says of a session what a list says: .* of a session, and list",
    SaysOneSize: "describe says of a session what a list says: .* size 1000 with a long message, and 1000 without",
    SkipsAtPageEnds: "a list has every session once",
    KeepsOldLabels: r"load\(\) gives another state",
}


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda cls: cls.__name__)
async def test_store_that_is_not_right_is_found(faulty):
    if issubclass(faulty, InMemoryStateStore):
        store = faulty()
        open_store: Callable[[], Any] = lambda: store  # noqa: E731
    else:
        saved: dict[str, tuple[int, bytes]] = {}
        open_store = partial(faulty, saved)
    with pytest.raises(StoreProblems, match=FAULTY[faulty]):
        await check_store(open_store, kills=0, runs=8)


async def test_store_with_save_and_load_alone_passes_what_it_has():
    saved: dict[str, tuple[int, bytes]] = {}
    report = await check_store(partial(SharedStore, saved), kills=0, runs=5)
    assert (report.missing, report.untried) == (["list", "describe", "fork"], ["open_expiring", "damages"])
    assert len(report.checked) == 11
    assert str(report) == "11 promises are kept; without list, describe, fork"


async def test_store_in_memory_passes():
    store = InMemoryStateStore()
    report = await check_store(lambda: store, kills=0, runs=10)
    assert report.missing == []


_MESSAGE = "session = (SELECT number FROM sessions WHERE id = :id) AND position = 1"
DAMAGING_SQL = [
    f"DELETE FROM messages WHERE {_MESSAGE}",
    f"UPDATE messages SET message = substr(message, 1, 40) WHERE {_MESSAGE}",
    "UPDATE sessions SET head = substr(head, 1, 40) WHERE id = :id",
]


@pytest.mark.slow
async def test_store_of_files_passes(tmp_path):
    def cut(session_id: str) -> None:
        path = tmp_path / f"{hash_name(session_id)}.state"
        path.write_bytes(path.read_bytes().replace(b"4111", b"4112"))

    report = await check_store(
        partial(FileStateStore, tmp_path),
        open_expiring=lambda ttl: FileStateStore(tmp_path, ttl=ttl),
        damages={"a flip": cut},
        kills=0,
        runs=3,
        steps=15,
    )
    assert report.untried == []


async def test_store_over_sqlite_passes(tmp_path, monkeypatch):
    open_store = partial(SQLiteStore, tmp_path / "x.db", durability="process")
    passed = 0.0

    async def pass_time(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(sqlite, "time_ns", lambda: time.time_ns() + int(passed * 1e9))

    def damage(sql: str, session_id: str) -> None:
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
            connection.execute(sql, {"id": session_id})

    report = await check_store(
        open_store,
        open_expiring=lambda ttl: open_store(ttl=ttl),
        pass_time=pass_time,
        damages={sql: partial(damage, sql) for sql in DAMAGING_SQL},
        kills=0,
        runs=4,
        steps=20,
    )
    assert report.untried == []


@pytest.mark.slow
@pytest.mark.usefixtures("resource_tracker_runs")
async def test_stores_pass_with_many_steps_and_killed_processes(tmp_path):
    await check_store(partial(FileStateStore, tmp_path), kills=3)
    await check_store(partial(SQLiteStore, tmp_path / "x.db"), kills=3)


async def test_what_cannot_be_started_in_a_process_is_refused():
    with pytest.raises(UsageError, match=r"has no pickle.* or kills=0"):
        await check_store(lambda: InMemoryStateStore())


async def test_exact_store_finds_an_edit_that_would_be_lost(tmp_path):
    async with SQLiteStore(tmp_path / "x.db", durability="process") as inner:
        store = ExactStore(inner)
        state = AgentState(session_id="s")
        state.summary = "1"
        await store.save(state)
        state.context.append(await _message())
        await store.save(state)
        assert await store.load("s") == state
        state.context[0].content = "edited"
        with pytest.raises(UsageError, match=r"context\[0\] .* was edited in place.*touch"):
            await store.save(state)
        state.touch(state.context[0])
        await store.save(state)
        assert (await store.list()).sessions[0].messages == 1


async def _message() -> Any:
    from agentrt.message import UserMsg

    return UserMsg("user", "as it was")
