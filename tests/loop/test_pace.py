"""Models that never wait leave the event loop its turns, and pay for few of them."""

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt._runtime.concurrency.event_loop import checkpoint
from agentrt.message import TextBlock
from agentrt.model import ChatModelBase, ChatResponse

REPLIES = 64


class NeverWaiting(ChatModelBase):
    async def _call(self, messages, tools, tool_choice):
        return ChatResponse([TextBlock("Yes.")])


async def turns_of_others(conversations: list[Agent]) -> int:
    """Return how many turns another task has while these conversations answer one after the other."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        await checkpoint()
        for agent in conversations:
            await agent.reply("Well?")
        group.cancel_scope.cancel()
    return turns


@pytest.mark.parametrize("are_new", [False, True], ids=["one conversation", "new conversations"])
async def test_models_that_never_wait_leave_turns(are_new):
    agent = Agent("a", model=NeverWaiting(model="m"))
    conversations = [agent.with_state(AgentState()) if are_new else agent for _ in range(REPLIES)]
    turns = await turns_of_others(conversations)
    assert REPLIES // 8 - 1 <= turns <= REPLIES // 8 + 2


async def test_agents_that_take_turns_leave_turns_to_others():
    agents = [Agent(name, model=NeverWaiting(model="m")) for name in "abcdefgh"]
    assert await turns_of_others(agents * (REPLIES // 8)) >= REPLIES // 8 - 1


async def test_a_thread_keeps_its_own_pace():
    """However often others ask in threads of their own, each event loop has its turns."""
    turns = []

    def converse() -> None:
        agent = Agent("a", model=NeverWaiting(model="m"))
        turns.append(anyio.run(turns_of_others, [agent] * REPLIES))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(anyio.to_thread.run_sync, converse)
    assert len(turns) == 4
    assert min(turns) >= REPLIES // 8 - 1
