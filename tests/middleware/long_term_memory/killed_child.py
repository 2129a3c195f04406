"""A conversation with a memory, in a process that is killed at a save: `killed_child.py FOLDER NUMBER BACKEND`."""

import os
import signal
import sys
from pathlib import Path

import anyio

from agentrt import Agent, AgentState
from agentrt.memory import LongTermMemory
from agentrt.middleware import LongTermMemoryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.rag import SQLiteTextStore
from agentrt.state import FileStateStore


class KillingStore(FileStateStore):
    saves_left = 0

    async def save(self, state: AgentState) -> None:
        await super().save(state)
        type(self).saves_left -= 1
        if self.saves_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path, saves: int) -> None:
    KillingStore.saves_left = saves
    store = KillingStore(folder)
    state = await store.load("s") or AgentState(session_id="s")
    memory = LongTermMemory(SQLiteTextStore(folder / "memory.db"))
    layer = LongTermMemoryMiddleware(memory, owner="ann", mode="static_control")
    model = ScriptedChatModel(["Yes."] * 9)
    agent = Agent("a", "", model, middlewares=[layer], state=state, state_store=store)
    if state.reply_context is not None:
        await agent.reply(None)
    while (count := sum(msg.role == "assistant" for msg in agent.state.context)) < 3:
        await agent.reply(f"Question {count}?")
    await layer.flush(agent)  # the last reply may have ended in a process that was killed before it was recorded


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), backend=sys.argv[3])
