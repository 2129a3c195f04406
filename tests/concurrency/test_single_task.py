"""A reply that one task reads to its end, as `await agent.reply()` does, stops like one whose events are read."""

from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg
from agentrt.agent import ReActConfig
from agentrt.state import InMemoryStateStore
from tests.loop.helpers import add, agent_of, call

ON_TRIO = pytest.mark.parametrize("anyio_backend", ["trio"])
BOTH_FORMS = pytest.mark.parametrize("form", ["awaited", "read"])


async def reply_of(agent: Agent, form: str) -> Msg:
    if form == "awaited":
        return await agent.reply("go")
    async with agent.reply_stream("go") as events:
        async for _ in events:
            pass
    return events.message


class SlowStore(InMemoryStateStore):
    """Awaits `wait()` in one of its saves, and notes that this save was finished."""

    def __init__(self, number: int, wait: Any) -> None:
        super().__init__()
        self.saves = self.finished = 0
        self._number, self._wait = number, wait

    async def save(self, state: AgentState) -> None:
        self.saves += 1
        if self.saves == self._number:
            await self._wait()
            self.finished += 1
        await super().save(state)


@BOTH_FORMS
@pytest.mark.parametrize("number", [2, 3])  # before the tool runs, and with its result
async def test_a_deadline_passed_in_a_save_ends_the_reply_after_it(form: str, number: int) -> None:
    async def wait() -> None:
        await anyio.sleep_until(agent.live_conversation.run.interruption.deadline + 0.05)

    store = SlowStore(number, wait)
    config = ReActConfig(max_seconds=0.1)
    agent = agent_of([[call("1", "add", a=1, b=2)], "next"], add, state_store=store, react_config=config)
    assert (await reply_of(agent, form)).finished_reason == "exceed_max_seconds"
    assert store.finished == 1
    assert await store.load(agent.state.session_id) == agent.state


@BOTH_FORMS
@pytest.mark.parametrize("number", [2, 3])
async def test_an_interruption_in_a_save_ends_the_reply_after_it(form: str, number: int) -> None:
    async def interrupt() -> None:
        for _ in range(3):
            agent.interrupt()
            await anyio.lowlevel.checkpoint()

    store = SlowStore(number, interrupt)
    agent = agent_of([[call("1", "add", a=1, b=2)], "next"], add, state_store=store)
    assert (await reply_of(agent, form)).finished_reason == "interrupted"
    assert store.finished == 1
    assert await store.load(agent.state.session_id) == agent.state


@BOTH_FORMS
async def test_work_after_a_save_can_still_be_interrupted(form: str) -> None:
    async def wait(messages: Any, tools: Any) -> str:
        waiting.set()
        await anyio.sleep_forever()
        return "never"

    async def interrupt() -> None:
        await waiting.wait()
        agent.interrupt()

    waiting = anyio.Event()
    agent = agent_of([[call("1", "add", a=1, b=2)], wait], add, state_store=InMemoryStateStore())
    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        assert (await reply_of(agent, form)).finished_reason == "interrupted"


@BOTH_FORMS
async def test_the_scope_of_the_caller_ends_it_and_is_left_alone(form: str) -> None:
    async def wait(messages: Any, tools: Any) -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return "never"

    agent = agent_of([[call("1", "add", a=1, b=2)], wait, "next"], add)
    with anyio.CancelScope() as scope:
        await reply_of(agent, form)
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()  # nothing of it is left
    assert (await reply_of(agent, form)).get_text_content() == "next"


@ON_TRIO
@BOTH_FORMS
async def test_of_a_group_of_errors_our_own_cancellation_is_taken_out(form: str) -> None:
    class Failing(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            agent_in_reply.interrupt()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class() as error:
                raise BaseExceptionGroup("both", [error, ValueError("mine")]) from None

    agent_in_reply = agent_of(["never", "next"], middlewares=[Failing()])
    with pytest.raises(ExceptionGroup) as caught:
        await reply_of(agent_in_reply, form)
    assert caught.group_contains(ValueError, match="mine", depth=1)
    assert len(caught.value.exceptions) == 1
    assert agent_in_reply.state.last_reply is not None
    assert agent_in_reply.state.last_reply.finished_reason == "error"


@ON_TRIO
async def test_a_reply_that_one_task_reads_has_one_scope(monkeypatch: Any) -> None:
    import trio

    made = []
    new_scope = trio.CancelScope
    monkeypatch.setattr(trio, "CancelScope", lambda **options: made.append(1) or new_scope(**options))
    agent = agent_of([[call("1", "add", a=1, b=2)], [call("2", "add", a=1, b=2)], "done"], add)
    await agent.reply("go")
    assert len(made) == 1
