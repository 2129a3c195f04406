"""What is saved when, and that a saved conversation is a whole one."""

import string

import anyio.lowlevel
import pytest

from agentrt import AgentState, MiddlewareBase
from agentrt.errors import SessionIOError
from agentrt.event import AgentEvent, ReplyEndEvent, ToolResultEndEvent
from agentrt.message import Msg, TextBlock, ToolCallState, ToolResultState, UserMsg
from agentrt.state import InMemoryStateStore
from tests.loop.helpers import add, agent_of, call, elsewhere, items_of, short


class Witness(InMemoryStateStore):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.saved: list[AgentState] = []

    async def save(self, state: AgentState) -> None:
        await super().save(state)
        copy = await self.load(state.session_id)
        assert copy == state
        self.saved.append(copy)
        self.log.append("save")


async def test_the_state_is_saved_at_each_of_the_four_save_points():
    store = Witness()

    async def note() -> str:
        store.log.append("tool runs")
        return "noted"

    agent = agent_of([[call("1", "note"), call("2", "note")], "done"], note, state_store=store)
    async with agent.reply_stream("go") as events:
        async for event in events:
            if isinstance(event, (ToolResultEndEvent, ReplyEndEvent)) or short(event) in ("RS", "MS"):
                store.log.append(short(event))
    runs = store.log.index("tool runs")
    assert store.log[: runs + 1] == ["save", "RS", "MS", "save", "tool runs"]
    for event in ("RESULT_END:1(success)", "RESULT_END:2(success)", "RE(completed)"):
        assert store.log[store.log.index(event) - 1] == "save"


async def test_the_saved_state_holds_the_calls_before_any_of_them_runs():
    store = Witness()
    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, state_store=store)
    await agent.reply("go")
    before_tools = store.saved[1].reply_context
    assert [block.state for block in before_tools.blocks] == [ToolCallState.PENDING]
    assert [message.role for message in store.saved[0].context] == ["user"]
    after_result = store.saved[2].reply_context
    assert after_result.message.get_content_blocks("tool_result")[0].state is ToolResultState.SUCCESS
    assert store.saved[-1].reply_context is None
    assert store.saved[-1].last_reply.finished_reason == "completed"


async def test_a_saved_conversation_continues_on_another_agent():
    store = InMemoryStateStore()
    first = agent_of(["I remember 7."], state_store=store)
    await first.reply("remember 7")
    state = await store.load(first.state.session_id)
    second = agent_of(["It was 7."], state=state)
    numbers = [item.seq for item in await items_of(second, "what was it?") if not isinstance(item, Msg)]
    assert [message.get_text_content() for message in second.model.calls[0].messages][1:3] == [
        "remember 7",
        "I remember 7.",
    ]
    assert numbers[0] == first.state.sequence + 1


async def test_a_reply_of_a_dead_process_is_closed_by_the_next_message():
    store = Witness()
    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, state_store=store)
    await agent.reply("go")
    left_by_a_dead_process = store.saved[1]
    revived = agent_of(["what I know"], add, state=left_by_a_dead_process)
    await revived.reply("what came of it?")
    result = revived.state.context[1].get_content_blocks("tool_result")[0]
    assert result.state is ToolResultState.UNKNOWN
    assert [message.role for message in revived.state.context] == ["user", "assistant", "user", "assistant"]


async def test_a_failed_reply_keeps_its_text_and_gives_calls_a_result():
    class Fail(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            raise ValueError("broken")
            yield

    calls = [call("1", "add", a=1, b=2), call("2", "add", a=1, b=2)]
    agent = agent_of([[TextBlock("see"), *calls]], add, middlewares=[Fail()])
    items: list[AgentEvent | Msg] = []
    with pytest.raises(ValueError, match="broken"):
        async with agent.reply_stream("go") as events:
            async for event in events:
                items.append(event)
    message = agent.state.context[-1]
    assert message.get_text_content() == "see"
    assert {result.state for result in message.get_content_blocks("tool_result")} == {ToolResultState.INTERRUPTED}
    assert short(items[-1]) == "RE(error)"
    assert sum(isinstance(item, ToolResultEndEvent) for item in items) == 2
    assert items[-1].error == agent.state.last_reply.error == "ValueError"


async def test_a_failing_model_leaves_one_end_and_no_empty_message():
    agent = agent_of([RuntimeError("sk-secret"), "better"])
    with pytest.raises(RuntimeError, match="sk-secret"):
        await agent.reply("go")
    assert "sk-secret" not in agent.state.model_dump_json()
    assert [message.role for message in agent.state.context] == ["user"]
    assert (await agent.reply("again")).get_text_content() == "better"


async def test_the_partial_text_of_a_cut_stream_is_kept():
    agent = agent_of([["half an ", "answer", ConnectionError("cut")], "whole"])
    with pytest.raises(ConnectionError):
        await agent.reply("go")
    assert agent.state.context[-1].get_text_content() == "half an answer"
    assert agent.state.context[-1].finished_reason == "error"


async def test_a_failed_save_stops_the_reply_before_its_tools_run():
    ran = []

    class Full(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            if state.reply_context and state.reply_context.blocks:
                raise OSError("disk full")

    async def note() -> str:
        ran.append(1)
        return "noted"

    agent = agent_of([[call("1", "note")], "done"], note, state_store=Full())
    with pytest.raises(OSError, match="disk full"):
        await agent.reply("go")
    assert ran == []
    assert agent.state.reply_context is None


async def test_an_abandoned_reply_is_saved_under_a_cancellation():
    store = InMemoryStateStore()
    running = anyio.Event()

    async def wait() -> str:
        running.set()
        await anyio.sleep_forever()
        return "never"

    agent = agent_of([[call("1", "wait")]], wait, state_store=store)
    async with anyio.create_task_group() as group:
        group.start_soon(agent.reply, "go")
        await running.wait()
        group.cancel_scope.cancel()
    saved = await store.load(agent.state.session_id)
    assert saved == agent.state
    assert saved.last_reply.finished_reason == "interrupted"
    assert saved.context[-1].get_content_blocks("tool_result")[0].state is ToolResultState.INTERRUPTED


async def test_data_of_a_conversation_is_saved_data_of_a_reply_is_not():
    class Count(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            agent.state_of(self).setdefault("replies", 0)
            agent.state_of(self)["replies"] += 1
            agent.run.scratch(self)["seen"] = agent.run.scratch(self).get("seen", 0) + 1
            seen.append(agent.run.scratch(self)["seen"])
            async for item in next_handler():
                yield item

    seen: list[int] = []
    store = InMemoryStateStore()
    agent = agent_of(["a", "b", "c"], middlewares=[Count()], state_store=store)
    await agent.reply("one")
    await agent.reply("two")
    saved = await store.load(agent.state.session_id)
    assert saved.middleware_data == {"Count": {"replies": 2}}
    assert seen == [1, 1]


def test_a_state_goes_to_json_and_back_unchanged():
    agent = agent_of([[call("1", "add", a=1, b=2)], "3"], add)
    agent.run_sync("go")
    state = agent.state
    assert AgentState.model_validate_json(state.model_dump_json()) == state


def test_a_session_id_has_22_letters_that_look_different():
    ids = {AgentState().session_id for _ in range(500)}
    assert len(ids) == 500
    assert {len(session_id) for session_id in ids} == {22}
    assert set("".join(ids)) == set(string.ascii_letters + string.digits) - set("01IOl")


@pytest.mark.parametrize("given", ["0123456789abcdef01234567", "x" * 128])
async def test_ids_of_any_other_kind_are_taken_and_kept(given):
    agent = agent_of(["3", "4"]).with_state(AgentState(session_id=given))
    assert (await agent.reply("go", reply_id=given)).id == given
    other = elsewhere(agent)
    assert other.state.session_id == given
    assert (await other.reply(reply_id=given)).get_text_content() == "3"


class SlowStore(InMemoryStateStore):
    """Saves in three turns of the event loop, and tells when two saves are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0
        self.saves = 0

    async def save(self, state: AgentState) -> None:
        self.running += 1
        self.saves += 1
        assert self.running == 1
        await super().save(state)  # as the state is now
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.running -= 1


async def test_saves_of_one_conversation_run_one_at_a_time():
    store = SlowStore()
    agent = agent_of(["hello"], state_store=store)
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(agent.observe, UserMsg("user", f"note {number}"))
    saved = await store.load(agent.state.session_id)
    assert saved.context == agent.state.context
    assert len(saved.context) == 10
    assert store.saves == 2  # the first, and one for the nine that came meanwhile


async def test_views_of_one_state_save_one_at_a_time():
    store = SlowStore()
    agent = agent_of(["hello"], state_store=store)
    async with anyio.create_task_group() as group:
        for view in (agent, agent.with_state(agent.state), agent.with_state(agent.state)):
            group.start_soon(view.observe, UserMsg("user", "note"))
    assert store.saves == 2
    assert len((await store.load(agent.state.session_id)).context) == 3


async def test_a_save_that_fails_fails_for_those_that_it_was_for():
    class Full(SlowStore):
        async def save(self, state: AgentState) -> None:
            if self.saves == 1:
                self.saves += 1
                raise SessionIOError("full")
            await super().save(state)

    store, outcomes = Full(), []
    agent = agent_of(["hello"], state_store=store)

    async def observe(text: str) -> None:
        try:
            await agent.observe(UserMsg("user", text))
        except SessionIOError:
            outcomes.append(f"{text} not saved")
        else:
            outcomes.append(f"{text} saved")

    async with anyio.create_task_group() as group:
        for text in "abc":
            group.start_soon(observe, text)
            await anyio.lowlevel.checkpoint()
    assert sorted(outcomes) == ["a saved", "b not saved", "c saved"]
    saved = await store.load(agent.state.session_id)
    assert [message.get_text_content() for message in saved.context] == ["a", "c"]
