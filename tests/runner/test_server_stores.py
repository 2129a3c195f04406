"""The runner on stores that are servers: its queue is in memory, and what has begun is in the store."""

import anyio
import pytest

from agentrt.runner import Runner
from tests.loop.helpers import rebuilt
from tests.runner.conftest import answer_to, approved_pay, make_agent, work
from tests.runner.test_taking_over import leave_reply, look
from tests.state.conftest import open_store, postgres, postgres_schema, redis

__all__ = ["open_store", "postgres", "postgres_schema", "redis"]  # fixtures

pytestmark = pytest.mark.slow
on_servers = pytest.mark.parametrize("open_store", ["postgres", "redis"], indirect=True)


@on_servers
async def test_replies_are_answered_and_asked_on_a_server(open_store):
    store = await open_store()
    async with work(Runner(make_agent(approved_pay()), store)) as runner:
        await (await runner.submit("s", "Hi!", labels={"owner": "ann"})).result()
        handle = await runner.submit("s", "call pay")
        events = [event async for event in handle.events()]
        await runner.answer("s", answer_to(events[-1]))
        events += [event async for event in handle.events(after=events[-1].seq)]
        message = await handle.result()
        state = await store.load("s")
    assert message.get_text_content() == "paid, as you said: call pay"
    assert state.labels == {"owner": "ann"}
    assert rebuilt(events).content == state.context[-1].content


@on_servers
async def test_reply_whose_process_died_goes_on_from_a_server(open_store):
    await leave_reply(await open_store())
    async with work(Runner(make_agent(look), await open_store())) as runner:
        handle = await runner.submit("s", "And?")
        assert (await handle.result()).get_text_content() == "You said: And?"
        message = await runner.handle("s", "r").result()
    assert message.finished_reason == "completed"


@on_servers
async def test_worker_of_a_server_hands_its_reply_over(open_store, waiting):
    async with Runner(make_agent(waiting.wait), await open_store()) as runner, anyio.create_task_group() as group:
        group.start_soon(runner.work)
        handle = await runner.submit("s", "call wait")
        await waiting.begun.wait()
        group.cancel_scope.cancel()
    async with work(Runner(make_agent(waiting.wait), await open_store())) as runner:
        message = await runner.handle("s", handle.reply_id).result()
        state = await (await open_store()).load("s")
    results = state.context[-1].get_content_blocks("tool_result")
    assert (message.finished_reason, [result.state for result in results]) == ("completed", ["unknown"])
