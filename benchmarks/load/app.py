"""The agent that is served: its model says `WORDS` words, one each `PAUSE` seconds, and pays when it is told to."""

import os
from collections.abc import AsyncGenerator
from typing import Any

import anyio

from agentrt import Agent, Msg
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.runner import Runner
from agentrt.state import SQLiteStore
from agentrt.tool import FunctionTool

__all__ = ["PAY", "agent", "answer_of", "runner"]

WORDS = int(os.environ.get("WORDS", "20"))
PAUSE = float(os.environ.get("PAUSE", "0"))
PAY = "pay"


def answer_of(turn: int, words: int = WORDS) -> str:
    """Return what the model says in that turn of a conversation, so that a reader knows what it must have got."""
    return "".join(f"word{turn}-{number} " for number in range(words))


class PacedModel(ChatModelBase):
    """Says the same in each process, by what is in the conversation alone."""

    def __init__(self) -> None:
        super().__init__(model="paced", stream=True)

    async def _call(self, messages: list[Msg], *_: Any) -> AsyncGenerator[ChatResponse, None]:
        return self._stream(messages)

    async def _stream(self, messages: list[Msg]) -> AsyncGenerator[ChatResponse, None]:
        inputs = [message for message in messages if message.role == "user"]
        results = sum(len(message.get_content_blocks("tool_result")) for message in messages)
        orders = sum(message.get_text_content() == PAY for message in inputs)
        if orders > results:
            yield ChatResponse([ToolCallBlock(f"c{results}", "pay", '{"amount": 20}')])
            return
        for number in range(WORDS):
            if PAUSE:
                await anyio.sleep(PAUSE)
            yield ChatResponse([TextBlock(f"word{len(inputs)}-{number} ")], is_last=False)


async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


agent = Agent("assistant", "You pay.", PacedModel(), tools=[FunctionTool(pay, ask=True)])
# For machines whose disks are slow: a save need not survive a loss of power.
runner = Runner(agent, SQLiteStore("agent.db", durability="process"), max_concurrency=400)
