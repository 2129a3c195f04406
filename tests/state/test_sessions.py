"""What stores say about their sessions: lists, forks, expiry."""

import os
import time
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import ConfigError, SessionConflict, UsageError
from agentrt.message import AssistantMsg, ToolCallBlock, UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.state import (
    AgentState,
    FileStateStore,
    InMemoryStateStore,
    ReplyContext,
    SessionStore,
    SQLiteStore,
    file_store,
    memory_store,
)
from agentrt.state.database import sqlite
from agentrt.state.file import hash_name
from agentrt.tool import FunctionTool, Toolkit
from tests.state.conftest import checked_before_the_database

IDS = ["b", "a", "a/2", "a/10", "\u00e9", "\U0001f600", "\uffff", "z", "A"]


async def all_ids(store: SessionStore, **options: Any) -> list[str]:
    found, cursor = [], None
    while True:
        page = await store.list(cursor=cursor, **options)
        found += [info.session_id for info in page.sessions]
        cursor = page.cursor
        if cursor is None:
            return found


async def test_list_has_every_session_once_in_order_of_ids(store):
    for session_id in IDS:
        await store.save(AgentState(session_id=session_id))
    assert await all_ids(store) == sorted(IDS)
    assert await all_ids(store, limit=2) == sorted(IDS)
    assert await all_ids(store, limit=len(IDS)) == sorted(IDS)


@pytest.mark.parametrize("prefix", ["a", "a/", "\uffff", "\U0001f600", "nobody", "\U0010ffff", "\ud7ff"])
async def test_list_by_prefix_has_the_ids_that_begin_with_it(store, prefix):
    for session_id in IDS:
        await store.save(AgentState(session_id=session_id))
    assert await all_ids(store, prefix=prefix) == sorted(each for each in IDS if each.startswith(prefix))


async def test_list_by_labels_has_the_sessions_with_all_of_them(store):
    labels = {"1": {"owner": "ann"}, "2": {"owner": "ann", "kind": 'a "b"'}, "3": {"owner": "bob"}, "4": {}}
    for session_id, each in labels.items():
        await store.save(AgentState(session_id=session_id, labels=each))
    assert await all_ids(store, labels={"owner": "ann"}) == ["1", "2"]
    assert await all_ids(store, labels={"owner": "ann"}, limit=1) == ["1", "2"]
    assert await all_ids(store, labels={"owner": "ann", "kind": 'a "b"'}) == ["2"]
    assert await all_ids(store, labels={"owner": "carl"}) == []
    state = await store.load("1")
    state.labels = {"owner": "bob"}
    await store.save(state)
    assert await all_ids(store, labels={"owner": "ann"}) == ["2"]
    assert await all_ids(store, labels={"owner": "bob"}) == ["1", "3"]
    await store.delete("3")
    await store.save(AgentState(session_id="3"))
    assert await all_ids(store, labels={"owner": "bob"}) == ["1"]


async def test_list_says_what_is_saved(store):
    state = AgentState(session_id="s", context=[UserMsg("Hi!")], labels={"owner": "ann"})
    await store.save(state)
    state.context.append(AssistantMsg("assistant", "Hello."))
    await store.save(state)
    [info] = (await store.list()).sessions
    assert (info.session_id, info.revision, info.messages) == ("s", state.revision, 2)
    assert (info.status, info.labels) == ("idle", {"owner": "ann"})
    assert 1_600_000_000 < info.created_at / 1e9 <= info.updated_at / 1e9 < 10_000_000_000


async def test_a_session_is_described_as_a_list_does(store):
    for session_id in IDS:
        await store.save(AgentState(session_id=session_id, context=[UserMsg("Hi!")], labels={"owner": "ann"}))
    assert [await store.describe(session_id) for session_id in sorted(IDS)] == (await store.list()).sessions
    await store.delete("a")  # with which other ids begin
    for missing in ("a", "a/", "nobody", "\ud7ff"):
        assert await store.describe(missing) is None


async def test_size_follows_what_a_session_holds(store):
    async def size() -> int:
        info = await store.describe("s")
        assert (await store.list(prefix="s")).sessions[0] == info
        return info.size

    state = AgentState(session_id="s")
    await store.save(state)
    assert 0 < await size() < 5_000
    texts = ["x" * 30_000, "y" * 10, "z" * 30_000]
    for text in texts:
        before = await size()
        state.context.append(UserMsg(text))
        await store.save(state)
        assert len(text) <= await size() - before < len(text) + 5_000
    if not isinstance(store, FileStateStore):  # its journal has what was said until it is written anew
        del state.context[1:]
        await store.save(state)
        assert 30_000 < await size() < 40_000
    await store.delete("s")
    await store.save(AgentState(session_id="s"))
    assert await size() < 5_000


async def test_files_of_other_sessions_stay_closed_for_one(tmp_path, monkeypatch):
    store, opened = FileStateStore(tmp_path), []
    for number in range(20):
        await store.save(AgentState(session_id=str(number)))
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda path, *options: opened.append(path) or open_file(path, *options))
    info = await store.describe("7")
    assert (info.session_id, opened) == ("7", [tmp_path / f"{hash_name('7')}.state"])


async def test_copy_of_a_store_in_use_has_the_same_sessions(store):
    state = AgentState(session_id="s", context=[UserMsg("Hi!")])
    await store.save(state)
    agent = Agent("assistant", model=ScriptedChatModel([]), state_store=store)
    for copied in (copy(store), deepcopy(store), deepcopy(agent).state_store):
        assert await copied.load("s") == state


async def test_status_follows_the_reply_in_progress(store):
    statuses = []

    async def pay() -> str:
        [info] = (await store.list()).sessions
        statuses.append(info.status)
        return "paid"

    model = ScriptedChatModel([[ToolCallBlock("1", "pay", "{}")], [ToolCallBlock("2", "ask", "{}")], "Done."])
    tools = Toolkit([FunctionTool(pay), FunctionTool(pay, name="ask", ask=True)])
    agent = Agent("assistant", model=model, toolkit=tools, state_store=store)
    await agent.reply("Pay!")
    [info] = (await store.list()).sessions
    assert (statuses, info.status) == (["running"], "waiting")


async def test_fork_has_the_first_messages_and_shares_nothing(store):
    state = AgentState(session_id="s", context=[UserMsg(str(number)) for number in range(5)], labels={"owner": "ann"})
    state.middleware_data["M"] = {"n": [1]}
    await store.save(state)
    fork = await store.fork("s", "t", messages=2)
    assert ([each.content for each in fork.context], fork.labels) == (["0", "1"], {"owner": "ann"})
    fork.middleware_data["M"]["n"].append(2)
    fork.context.append(UserMsg("other"))
    await store.save(fork)
    assert await store.load("s") == state
    assert [each.content for each in (await store.load("t")).context] == ["0", "1", "other"]
    assert await store.fork("s", "u") != state
    await store.delete("s")
    assert len((await store.load("u")).context) == 5


async def test_fork_has_no_reply_in_progress(store):
    context = ReplyContext("r", AssistantMsg("assistant", "half"), 10, observed=[UserMsg("bob", "by the way")])
    state = AgentState(session_id="s", context=[UserMsg("Hi!")], reply_context=context)
    await store.save(state)
    fork = await store.fork("s", "t")
    assert fork.reply_context is None
    assert [each.content for each in fork.context] == ["Hi!", "by the way"]


async def test_fork_onto_a_session_that_is_there_is_refused(store):
    await store.save(AgentState(session_id="s"))
    await store.save(AgentState(session_id="t", summary="mine"))
    with pytest.raises(SessionConflict, match="'t' is already saved"):
        await store.fork("s", "t")
    with pytest.raises(SessionConflict, match="'s' is already saved"):
        await store.fork("s", "s")
    assert (await store.load("t")).summary == "mine"


@checked_before_the_database
@pytest.mark.parametrize("messages", [-1, 2, True, 1.0, "1"])
async def test_fork_of_more_messages_than_there_are_is_refused(store, messages):
    await store.save(AgentState(session_id="s", context=[UserMsg("Hi!")]))
    with pytest.raises(UsageError, match=r"fork\(messages=\.\.\.\) must be .* from 0 to 1, or None"):
        await store.fork("s", "t", messages=messages)
    assert await store.load("t") is None


async def test_fork_of_a_session_that_is_not_there_is_refused(store):
    with pytest.raises(UsageError, match="'nobody' is not saved here"):
        await store.fork("nobody", "t")
    with pytest.raises(UsageError, match="a session id must be"):
        await store.fork("nobody", "")


async def test_forks_last_reply_is_one_that_it_has(store):
    agent = Agent("assistant", model=ScriptedChatModel(["One.", "Two."]), state_store=store)
    await agent.reply("1", reply_id="first")
    await agent.reply("2", reply_id="second")
    session_id = agent.state.session_id
    assert (await store.fork(session_id, "all")).last_reply.reply_id == "second"
    assert (await store.fork(session_id, "two", messages=2)).last_reply is None


@checked_before_the_database
@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": True},
        {"limit": "3"},
        {"prefix": None},
        {"cursor": ""},
        {"cursor": 3},
        {"labels": ["a"]},
        {"labels": {"a": 1}},
        {"labels": {"": "a"}},
        {"labels": {"a": "b\0"}},
        {"labels": {str(number): "" for number in range(65)}},
    ],
    ids=str,
)
async def test_what_cannot_be_asked_for_is_refused_by_name(store, options):
    [name] = options
    with pytest.raises(UsageError, match=rf"list\({name}=\.\.\.\)"):
        await store.list(**options)


@checked_before_the_database
@pytest.mark.parametrize("labels", [{"a": 1}, {1: "a"}, {"a" * 501: "b"}, {"a": "\ud800"}, [], {"a\0": ""}])
async def test_state_with_labels_that_are_none_is_not_saved(store, labels):
    state = AgentState(session_id="s", labels=labels)
    if labels:
        with pytest.raises(UsageError, match=r"state\.labels"):
            await store.save(state)
        assert await store.load("s") is None


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that puts the clocks of stores ahead, by so many seconds in all."""

    def pass_time(seconds: float) -> None:
        for module in (memory_store, file_store, sqlite):
            monkeypatch.setattr(module, "time_ns", lambda: time.time_ns() + int(seconds * 1e9))

    return pass_time


LOCAL = pytest.mark.parametrize("open_store", ["memory", "file", "sqlite"], indirect=True)


@LOCAL
async def test_expired_session_is_gone_and_not_saved_over(open_store, pass_time):
    store = await open_store(ttl=3600)
    old = AgentState(session_id="old", labels={"a": "b"}, context=[UserMsg("1")])
    await store.save(old)
    pass_time(3500)
    assert await store.load("old") == old
    assert await store.expire() == 0
    pass_time(3700)
    assert await store.load("old") is None
    assert await all_ids(store) == []
    with pytest.raises(SessionConflict, match="'old' is not saved here, or no longer"):
        await store.save(old)
    assert await store.expire() == 1
    assert await store.expire() == 0
    with pytest.raises(SessionConflict, match="'old' is not saved here, or no longer"):
        await store.save(old)


@LOCAL
async def test_expired_session_may_be_begun_again(open_store, pass_time):
    store = await open_store(ttl=3600)
    old = AgentState(session_id="s", labels={"a": "b"}, context=[UserMsg("1"), UserMsg("2")])
    await store.save(old)
    pass_time(3700)
    new = AgentState(session_id="s", context=[UserMsg("3")])
    await store.save(new)
    pass_time(0)  # of files, the time is that of the disk
    assert await store.load("s") == new
    assert new.revision > old.revision
    assert await all_ids(store, labels={"a": "b"}) == []
    with pytest.raises(SessionConflict):
        await store.save(old)


@pytest.mark.parametrize("open_store", ["postgres", "redis"], indirect=True)
async def test_session_expires_by_the_clock_of_the_server(open_store):
    store, lasting = await open_store(ttl=0.05), await open_store(ttl=3600)
    old = AgentState(session_id="s", context=[UserMsg("1")], labels={"a": "b"})
    await lasting.save(AgentState(session_id="t"))
    await store.save(old)
    await anyio.sleep(0.06)  # the clock is the server's
    assert await all_ids(store) == ["t"]
    with pytest.raises(SessionConflict, match="'s' is not saved here, or no longer"):
        await store.save(old)
    new = AgentState(session_id="s", context=[UserMsg("2")])
    await lasting.save(new)
    assert await store.load("s") == new
    assert await store.expire() == 0
    assert await all_ids(store, labels={"a": "b"}) == []
    short = AgentState(session_id="u")
    await store.save(short)
    await anyio.sleep(0.06)
    assert await store.expire() == 1


@LOCAL
async def test_store_without_ttl_keeps_sessions(open_store, pass_time):
    store = await open_store()
    await store.save(AgentState(session_id="s"))
    pass_time(1e9)
    assert await store.load("s") is not None
    assert await store.expire() == 0


@pytest.mark.parametrize("ttl", [0, -1, True, "1", 1e10, float("nan"), float("inf")])
def test_ttl_that_is_not_a_time_is_refused(tmp_path, ttl):
    for make in (
        InMemoryStateStore,
        lambda ttl: FileStateStore(tmp_path, ttl=ttl),
        lambda ttl: SQLiteStore("x", ttl=ttl),
    ):
        with pytest.raises(ConfigError, match=r"ttl=\.\.\.\) must be a number of seconds above 0"):
            make(ttl=ttl)
