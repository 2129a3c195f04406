"""Owners in the queue: each has a share of it, and they take turns, whoever came first."""

import sqlite3
from typing import Any

import anyio
import pytest

from agentrt import AgentState
from agentrt.errors import ConfigError, QueueFull
from agentrt.message import UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.runner.queue import QueueRoom
from agentrt.runner.requests import make_request
from agentrt.runner.sqlite.queue import _QUEUE_MIGRATIONS, SQLiteQueue
from agentrt.state import SQLiteStore
from tests.runner.conftest import answer_to, approved_pay, call_or_answer, last_words, make_agent, work

ANN, BOB = {"owner": "ann"}, {"owner": "bob"}


def noting_agent(order: list[str], *tools: Any) -> Any:
    """Return an agent that notes what it is told, in the order in which its replies run."""

    def note(messages: Any, form: Any) -> Any:
        if not last_words(messages).startswith("call "):
            order.append(last_words(messages))
        return call_or_answer(messages, form)

    return make_agent(*tools, model=ScriptedChatModel([note] * 100))


async def test_owners_take_turns_and_sessions_keep_their_order(store):
    order: list[str] = []
    async with Runner(noting_agent(order), store, max_concurrency=1) as runner, anyio.create_task_group() as group:
        for session, words in (("a1", "ann 1"), ("a1", "ann 2"), ("a2", "ann 3"), ("a1", "ann 4")):
            last = await runner.submit(session, words, labels=ANN)
        for words in ("bob 1", "bob 2"):
            await runner.submit("b", words, labels=BOB)
        await runner.submit("c", "nobody")
        group.start_soon(runner.work)
        await last.result()
        await runner.drain()
    assert order == ["ann 1", "bob 1", "nobody", "ann 2", "bob 2", "ann 3", "ann 4"]


async def test_reply_of_another_owner_starts_next(sqlite, waiting):
    order: list[str] = []
    async with work(Runner(noting_agent(order, waiting.wait), sqlite, max_concurrency=1)) as runner:
        await runner.submit("a", "call wait", labels=ANN)
        handles = [await runner.submit(f"a{number}", f"ann {number}", labels=ANN) for number in range(20)]
        await waiting.begun.wait()
        handles.append(await runner.submit("b", "bob", labels=BOB))
        waiting.release.set()
        for handle in handles:
            await handle.result()
    assert order == ["bob", *(f"ann {number}" for number in range(20))]


async def test_owner_who_comes_again_and_again_keeps_nobody_out():
    queue, room = SQLiteQueue(None, max_per_owner=9), QueueRoom(100, 100)
    await queue.open()
    for number in range(3):
        await queue.add(make_request(f"a{number}", "r", UserMsg("Hi"), {}, owner="ann"), 0, room)
    claimed = []
    for number in range(6):
        await queue.add(make_request(f"b{number}", "r", UserMsg("Hi"), {}, owner="bob"), 0, room)
        found = await queue.claim("worker")
        claimed.append(found.request.owner)
    await queue.close()
    assert claimed == ["ann", "bob"] * 3


async def test_owner_has_only_so_many_replies_at_a_time(sqlite, waiting):
    runner = Runner(make_agent(waiting.wait), sqlite, max_concurrency=4, max_concurrency_per_owner=2)
    async with work(runner):
        handles = [await runner.submit(f"a{number}", "call wait", labels=ANN) for number in range(4)]
        # Bob's runs while two of Ann's wait, and the other two do not begin.
        assert (await (await runner.submit("b", "Hi", labels=BOB)).result()).get_text_content() == "You said: Hi"
        assert waiting.runs == 2
        waiting.release.set()
        for handle in handles:
            await handle.result()
    assert waiting.runs == 4


async def test_label_of_the_session_says_whose_share_it_takes(sqlite):
    await sqlite.save(AgentState(session_id="a1", labels=ANN))
    async with Runner(make_agent(), sqlite) as runner:
        await runner.submit("a1", "1", labels=BOB, max_queued_per_owner=2)  # a label of its own does not count
        await runner.submit("a2", "2", labels=ANN, max_queued_per_owner=2, reply_id="known")
        with pytest.raises(QueueFull, match="2 replies of this owner wait") as error:
            await runner.submit("a3", "3", labels=ANN, max_queued_per_owner=2)
        assert error.value.scope == "owner"
        await runner.submit("a2", "2", labels=ANN, max_queued_per_owner=2, reply_id="known")  # it has its place
        await runner.submit("b1", "1", labels=BOB, max_queued_per_owner=1)
        for _ in range(3):
            await runner.submit("c", "nobody has no share", max_queued_per_owner=1)


async def test_answer_takes_the_turn_of_the_owner_of_its_session(sqlite):
    runner = Runner(make_agent(approved_pay()), sqlite)
    async with runner, anyio.create_task_group() as group:
        group.start_soon(runner.work)
        handle = await runner.submit("a", "call pay", labels=ANN)
        [*_, question] = [event async for event in handle.events()]
        await runner.drain()
    async with runner:
        await runner.answer("a", answer_to(question))
        assert [request.owner for request in await runner._queue.pending_answers("a", handle.reply_id)] == ["ann"]


async def test_reply_id_is_looked_for_among_sessions_of_its_owner(sqlite):
    async with Runner(make_agent(), sqlite) as runner:
        await runner.submit("a", "Hi", reply_id="k1", labels=ANN)
        for number in range(3):
            await runner.submit(f"b{number}", "Hi", reply_id="k1", labels=BOB)
        assert await runner.find_sessions("k1", limit=2) == ["b2", "b1"]
        assert await runner.find_sessions("k1", owner="ann", limit=2) == ["a"]


async def test_number_of_replies_of_an_owner_is_checked(sqlite):
    with pytest.raises(ConfigError, match="max_concurrency_per_owner"):
        Runner(make_agent(), sqlite, max_concurrency_per_owner=0)


async def test_queue_of_version_1_opens_and_sessions_keep_their_order(tmp_path):
    store = SQLiteStore(tmp_path / "states.db", durability="process")
    async with store:
        await store.save(AgentState(session_id="old", labels=ANN))
    with sqlite3.connect(tmp_path / "states.db") as connection:
        for statement in _QUEUE_MIGRATIONS[0].split(";\n"):
            connection.execute(statement)
        for session, words, labels in (("new", "ann new", '{"owner": "ann"}'), ("old", "first", "null")):
            request = make_request(session, f"r-{session}", make_agent().with_state(AgentState()).check_input(words))
            row = (session, request.reply_id, "message", request.key, request.digest, request.input, labels)
            connection.execute(
                "INSERT INTO runner_queue (session, reply, kind, key, digest, input, labels, due_at, status) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 0, 'queued')",
                row,
            )
    connection.close()
    order: list[str] = []
    async with (
        Runner(noting_agent(order), SQLiteStore(tmp_path / "states.db"), max_concurrency=1) as runner,
        anyio.create_task_group() as group,
    ):
        last = await runner.submit("old", "second")
        await runner.submit("new", "ann newer")
        group.start_soon(runner.work)
        await last.result()
        await runner.drain()
    assert order == ["ann new", "first", "ann newer", "second"]
