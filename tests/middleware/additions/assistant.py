"""An assistant with a plan, a memory and knowledge, all of them in files of one folder.

`assistant.py resume FOLDER BACKEND` answers what it waits for; `assistant.py work FOLDER BACKEND NUMBER` has it answer
two questions, and kills the process with SIGKILL at its NUMBER-th save of anything.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from agentrt import Agent, AgentState, Msg
from agentrt.memory import LongTermMemory
from agentrt.message import ToolCallBlock
from agentrt.middleware import LongTermMemoryMiddleware, PlanNotebook, RAGMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.rag import KnowledgeBase, SQLiteTextStore
from agentrt.state import FileStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import confirmation_of

QUESTIONS = ["When does the office open?", "How long is the coast?"]


class _Kill:
    points_left = 0

    @classmethod
    def pass_point(cls) -> None:
        cls.points_left -= 1
        if cls.points_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class StateStore(FileStateStore):
    async def save(self, state: AgentState) -> None:
        await super().save(state)
        _Kill.pass_point()


class TextStore(SQLiteTextStore):
    async def write(self, *arguments: Any, **options: Any) -> None:
        _Kill.pass_point()
        await super().write(*arguments, **options)
        _Kill.pass_point()


def memory_in(folder: Path) -> LongTermMemory:
    return LongTermMemory(TextStore(folder / "memory.db"))


def knowledge_in(folder: Path) -> KnowledgeBase:
    return KnowledgeBase("handbook", "How we work.", TextStore(folder / "knowledge.db"))


def blocks_of(messages: list[Msg]) -> dict[str, str]:
    """Return what the layers have added to a request, by its source."""
    return {str(block.source): block.hint for msg in messages for block in msg.get_content_blocks("hint")}


async def build(folder: Path, script: list[Any]) -> tuple[Agent, LongTermMemoryMiddleware]:
    async def pay(amount: int) -> str:
        return "paid"

    store = StateStore(folder / "states")
    layer = LongTermMemoryMiddleware(memory_in(folder), owner="ann", mode="static_control")
    agent = Agent(
        "assistant",
        "You help.",
        ScriptedChatModel(script),
        tools=[FunctionTool(pay, ask=True)],
        middlewares=[layer, RAGMiddleware(knowledge_in(folder), "both"), PlanNotebook()],
        state=await store.load("s") or AgentState(session_id="s"),
        state_store=store,
    )
    return agent, layer


async def resume(folder: Path) -> dict[str, Any]:
    """Say yes to what is asked; returns what the model read then, and what its answer cites."""
    agent, _ = await build(folder, ["Paid, see [2] and [1]."])
    message = await agent.reply(confirmation_of(agent))
    request = agent.model.calls[0].messages  # type: ignore[attr-defined]
    return {"added": blocks_of(request), "citations": message.metadata["citations"]}


def _work_on(messages: list[Msg], tools: Any) -> Any:
    """Plan first, then search, then answer: whatever was done before the process ended."""
    question = max(number for number, msg in enumerate(messages) if msg.get_text_content() in QUESTIONS)
    results = sum(len(msg.get_content_blocks("tool_result")) for msg in messages[question:])
    if results == 0:
        step = {"name": "look", "description": "look", "expected_outcome": "an answer"}
        plan = {"name": "answer", "description": "answer", "expected_outcome": "an answer", "subtasks": [step]}
        return [ToolCallBlock("", "create_plan", json.dumps(plan))]
    if results == 1:
        return [ToolCallBlock("", "search_knowledge", json.dumps({"query": messages[question].get_text_content()}))]
    return "See [1]."


async def work(folder: Path) -> None:
    await knowledge_in(folder).sync(folder / "docs")
    agent, layer = await build(folder, [_work_on] * 30)
    if agent.state.reply_context is not None:
        await agent.reply(None)
    while (count := sum(msg.role == "assistant" for msg in agent.state.context)) < len(QUESTIONS):
        await agent.reply(QUESTIONS[count])
    await layer.flush(agent)  # the last reply may have ended in a process that was killed before it was recorded


async def main(action: str, folder: Path, *numbers: int) -> None:
    _Kill.points_left = sum(numbers)
    if action == "resume":
        sys.stdout.write(json.dumps(await resume(folder)))
    else:
        await work(folder)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[4:]), backend=sys.argv[3])
