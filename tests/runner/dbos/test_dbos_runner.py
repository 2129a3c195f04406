"""The runner of many machines: what one process promises of it."""

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from agentrt.errors import ConfigError, InvalidInputError, QueueFull, ResumeError, SessionIOError, UsageError
from agentrt.event import ReplyEndEvent, RequireUserConfirmEvent
from agentrt.model import ScriptedChatModel
from agentrt.runner import DBOSRunner
from agentrt.runner.dbos.version import version_of
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import rebuilt
from tests.runner.conftest import answer_to, approved_pay, make_agent, work

SECRET = "hunter2-secret"
URL = f"postgresql://agentrt:{SECRET}@127.0.0.1:1/agents"


@pytest.mark.slow
async def test_reply_is_answered_once_and_followed_from_elsewhere(new_runner, store, caplog):
    model = ScriptedChatModel(["One, two, three."], stream=True)
    handlers = list(logging.getLogger().handlers)
    async with new_runner(make_agent()) as elsewhere, work(new_runner(make_agent(model=model))) as runner:
        handle = await elsewhere.submit("ann/1\0", "Count!", reply_id="key", labels={"owner": "ann"})
        events = [event async for event in handle.events()]
        assert (await handle.result()).get_text_content() == "One, two, three."
        await runner.submit("ann/1\0", "Count!", reply_id="key")
        with pytest.raises(InvalidInputError, match=r"'key' of session .* was asked for with another input"):
            await runner.submit("ann/1\0", "Count again!", reply_id="key")
        later = [event async for event in elsewhere.events("ann/1\0", "key", after=events[3].seq)]
        assert await elsewhere.find_sessions("key") == ["ann/1\0"]
        assert await elsewhere.find_sessions("other") == []
        assert await elsewhere.has_reply("ann/1\0", "key")
        assert not await elsewhere.has_reply("ann", "key")
        state = await store.load("ann/1\0")
    assert len(model.calls) == 1
    assert [event.seq for event in later] == [event.seq for event in events[4:]]
    assert rebuilt(events).content == state.context[-1].content
    assert state.labels == {"owner": "ann"}
    assert logging.getLogger().handlers == handlers
    assert "dbos" not in {record.name for record in caplog.records}


@pytest.mark.slow
async def test_question_is_answered_from_elsewhere_and_holds_others(new_runner, store):
    async with new_runner(make_agent(approved_pay())) as client:
        first = await client.submit("s", "call pay")
        second = await client.submit("s", "And?")
        async with work(new_runner(make_agent(approved_pay()))):
            events = [event async for event in first.events()]
            question = events[-1]
            assert isinstance(question, RequireUserConfirmEvent)
            with pytest.raises(ResumeError) as error:
                await client.submit("s", "Hello?")
            assert error.value.code == "pending"
            await client.answer("s", answer_to(question))
            with pytest.raises(ResumeError):
                await client.answer("s", answer_to(question, confirmed=False))
            events += [event async for event in first.events(after=question.seq)]
            assert (await second.result()).get_text_content() == "You said: And?"
    state = await store.load("s")
    assert [message.id for message in state.context if message.role == "assistant"] == [first.reply_id, second.reply_id]
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))
    assert rebuilt(events).content == state.context[1].content


@pytest.mark.slow
async def test_queued_running_and_parked_replies_are_interrupted(new_runner, waiting):
    async with new_runner(make_agent(waiting.wait, approved_pay())) as client:
        queued = await client.submit("s", "Hi!")
        assert await queued.interrupt()
        assert (await queued.result()).finished_reason == "interrupted"
        async with work(new_runner(make_agent(waiting.wait, approved_pay()))):
            running = await client.submit("t", "call wait")
            await waiting.begun.wait()
            assert await running.interrupt()
            assert (await running.result()).finished_reason == "interrupted"
            assert not await running.interrupt()
            parked = await client.submit("s", "call pay")
            assert (await parked.result()).finished_reason is None
            assert await parked.interrupt()
            assert (await parked.result()).finished_reason == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("deletes", ["runner", "store"])
async def test_deleted_session_comes_back_only_by_a_later_input(new_runner, store, deletes, waiting):
    async with new_runner(make_agent(waiting.wait)) as client:
        handles = [await client.submit("s", text) for text in ("Hi!", "call wait", "And?")]  # to a session that is new
        async with work(new_runner(make_agent(waiting.wait))):
            await waiting.begun.wait()
            last = [event async for event in handles[0].events()][-1]
            assert [event async for event in client.events("s", handles[0].reply_id, after=last.seq)] == []
            handles.append(await client.submit("s", "And then?"))
            await (client.delete("s") if deletes == "runner" else store.delete("s"))
            waiting.release.set()
            ends = [(await handle.result()).finished_reason for handle in handles[1:]]
            assert ends == ["interrupted"] * 3
            assert await store.load("s") is None
            assert (await (await client.submit("s", "Hello!")).result()).finished_reason == "completed"
    state = await store.load("s")
    assert [message.get_text_content() for message in state.context] == ["Hello!", "You said: Hello!"]


@pytest.mark.slow
async def test_later_again_and_full_on_many_machines(new_runner, store):
    async with new_runner(make_agent(), max_queued=2, max_queued_per_session=1) as client:
        await client.submit("a", "1", at=datetime.now(UTC) + timedelta(hours=1))
        with pytest.raises(QueueFull, match="1 replies wait in session 'a'"):
            await client.submit("a", "2")
        await client.submit("b", "1", at=datetime.now(UTC) + timedelta(hours=1))
        with pytest.raises(QueueFull, match="2 replies wait in the queue"):
            await client.submit("c", "1")
    async with new_runner(make_agent()) as client:
        at, ann = datetime.now(UTC) + timedelta(hours=1), {"owner": "ann"}
        await client.submit("d", "1", at=at, labels=ann, max_queued_per_owner=1)
        with pytest.raises(QueueFull, match="1 replies of this owner wait"):
            await client.submit("e", "1", labels=ann, max_queued_per_owner=1)
        await client.submit("f", "1", at=at, labels={"owner": "bob"}, max_queued_per_owner=1)
    worker = new_runner(make_agent())
    worker.every(1, "tick", "Tick!")
    async with work(worker) as runner:
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        handle = await runner.submit("s", "Later!", at=at)
        await handle.result()
        assert datetime.now(UTC) >= at
        while (await store.load("tick")) is None:
            await runner.submit("s", "Is it time?")
            await (await runner.submit("s", "And now?")).result()


@pytest.mark.slow
async def test_follower_gets_the_end_of_a_reply_without_first_events(new_runner, store):
    model = ScriptedChatModel(["One, two, three."], stream=True)
    async with work(new_runner(make_agent(model=model))) as runner:
        handle = await runner.submit("s", "Count!")
        await handle.result()
        rows = await runner._database.read_events("s", handle.reply_id, 0)
        await runner._database.run(partial(forget_batches_up_to, runner._database, rows[0].last))
        events = [event async for event in runner.events("s", handle.reply_id)]
        state = await store.load("s")
    assert isinstance(events[-1], ReplyEndEvent)
    assert rebuilt(events).content == state.context[-1].content


def forget_batches_up_to(database: Any, last: int, deadline: float) -> None:
    with database.connect(deadline) as connection:
        statement = f"UPDATE {database.schema}.agentrt_events SET follows = %s WHERE last >= %s"
        connection.execute(statement, [last, last])


@pytest.mark.slow
async def test_worker_that_drains_hands_its_reply_over(new_runner, store, waiting):
    async with new_runner(make_agent(waiting.wait), drain_seconds=0) as runner, anyio.create_task_group() as group:
        group.start_soon(runner.work)
        handle = await runner.submit("s", "call wait")
        await waiting.begun.wait()
        await runner.drain()
    async with work(new_runner(make_agent(waiting.wait))) as runner:
        message = await runner.handle("s", handle.reply_id).result()
        events = [event async for event in runner.events("s", handle.reply_id)]
    assert (message.finished_reason, waiting.runs) == ("completed", 1)  # it is not idempotent, so it is not run again
    state = await store.load("s")
    assert [block.state for block in state.context[-1].get_content_blocks("tool_result")] == ["unknown"]
    assert rebuilt(events).content == state.context[-1].content


@pytest.mark.slow
@pytest.mark.parametrize(("why", "deaths"), [("died", 0), ("frozen", 1)])
async def test_worker_that_is_alive_after_all_is_no_death(new_runner, why, deaths):
    begun, taken = anyio.Event(), anyio.Event()

    async def wait() -> str:
        """Wait until others have taken the reply, and ended it."""
        begun.set()
        await taken.wait()
        return "waited"

    tool: Any = wait
    async with work(new_runner(make_agent(tool))) as runner:
        handle = await runner.submit("s", "call wait", reply_id="r")
        await begun.wait()
        queue = runner._queue
        assert await anyio.to_thread.run_sync(queue.take_from_dead, queue.executor, why) == [("s", "r")]
        assert (await handle.result()).finished_reason == "completed"
        taken.set()
        [request] = await queue._latest("s", "r")
        assert request.workflow_id.endswith("/2")
        while (await queue.read_claimed(request.workflow_id)).deaths != deaths:  # noqa: ASYNC110
            await anyio.sleep(0.05)  # the first one says so when it sees that it has lost the reply


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_is_refused_with_the_reason(anyio_backend):
    with pytest.raises(UsageError, match="DBOSRunner needs asyncio, since DBOS"):
        async with DBOSRunner(make_agent(), InMemoryStateStore(), URL):
            pass


async def test_server_that_is_away_is_told_without_the_password():
    with pytest.raises(SessionIOError, match=r"the queue in PostgreSQL at 127.0.0.1:1/agents cannot be used") as error:
        async with DBOSRunner(make_agent(), InMemoryStateStore(), URL):
            pass
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        (f"mysql://u:{SECRET}@h/x", {}, r"DBOSRunner\(database_url=...\) must begin with 'postgresql://'"),
        (URL, {"schema": "A b"}, r"DBOSRunner\(schema=...\) must be a name"),
        (URL, {"accepts": "abc"}, r"DBOSRunner\(accepts=...\) takes versions"),
        (URL, {"accepts": None}, r"DBOSRunner\(accepts=...\) takes versions"),
        (URL, {"lease_seconds": 0}, r"DBOSRunner\(lease_seconds=...\) must be a finite number of seconds"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_short(url, options, problem):
    with pytest.raises(ConfigError, match=problem) as error:
        DBOSRunner(make_agent(), InMemoryStateStore(), url, **options)
    assert SECRET not in str(error.value)
    assert SECRET not in repr(DBOSRunner(make_agent(), InMemoryStateStore(), URL))


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dbos", None)
    with pytest.raises(ConfigError, match=r'pip install "agentrt\[durable\]"'):
        DBOSRunner(make_agent(), InMemoryStateStore(), URL)


def test_version_is_that_of_the_chains_and_tools():
    one, same, other = (
        DBOSRunner(make_agent(*tools), InMemoryStateStore(), URL) for tools in ([], [], [approved_pay()])
    )
    assert one.version == same.version != other.version


@pytest.mark.parametrize("place", ["toolkit", "group", "sub-agent"])
def test_version_changes_with_a_signature_in_any_place(place):
    def pay(amount: int) -> str:
        return f"paid {amount}"

    def pay_to(amount: int, receiver: str) -> str:
        return f"paid {amount} to {receiver}"

    def version(function: Callable[..., str]) -> str:
        tool = FunctionTool(function, name="pay")
        agent = make_agent(*[tool] * (place != "group"))
        if place == "group":
            agent.toolkit.create_tool_group("money", "Pays.")
            agent.toolkit.register_tool_function(tool, group_name="money")
        return version_of(make_agent(agent.as_tool("Pays.")) if place == "sub-agent" else agent)

    assert version(pay) == version(pay) != version(pay_to)


def test_version_of_agents_that_call_each_other_has_an_end():
    one, other = make_agent(), make_agent()
    one.toolkit.register_tool_function(other.as_tool("Asks the other one.", name="other"))
    other.toolkit.register_tool_function(one.as_tool("Asks the one.", name="one"))
    assert version_of(one) != version_of(make_agent())
