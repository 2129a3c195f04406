"""A process that answers and records without a pause, until it is killed: `python killed_recorder.py DATABASE`."""

import sys
from time import time_ns
from typing import Any

import anyio

from agentrt import Agent, AgentState
from agentrt.message import Msg
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import SQLiteStore


async def main(path: str) -> None:
    store = SQLiteStore(path, durability="process")

    def answer(messages: list[Msg], tools: Any) -> str:
        return f"answer to {len(messages)} messages"

    model = ScriptedChatModel([answer] * 100_000)
    state = await store.load("s1") or AgentState(session_id="s1")
    agent = Agent("a", "", model, middlewares=[RunRecorder(store)], state=state, state_store=store)
    while True:
        await agent.reply("Go on")
        sys.stdout.write(f"{len(agent.state.context)} {time_ns()}\n")
        sys.stdout.flush()


anyio.run(main, sys.argv[1])
