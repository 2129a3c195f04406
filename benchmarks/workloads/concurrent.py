"""Many replies at the same time, each in a conversation of its own, which all wait for their models at once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from agentrt import Agent, AgentState, MiddlewareBase, Msg
from agentrt.message import TextBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.state import StateStore
from agentrt.types import JSONSchema, ToolChoice
from benchmarks import floor, rich_floor
from benchmarks.workloads.agents import await_answer, read_answer
from benchmarks.workloads.floors import system_message
from benchmarks.workloads.script import ANSWER, QUESTION, SYSTEM_PROMPT, Workload, expect

__all__ = ["AgentReplies", "FloorReplies", "Replies", "RichReplies"]


class Gate:
    """Keeps callers waiting until all are there, and someone opens it."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self.is_full = asyncio.Event()
        self.is_open = asyncio.Event()

    async def wait(self) -> None:
        """Wait until the gate opens."""
        self._missing -= 1
        if not self._missing:
            self.is_full.set()
        await self.is_open.wait()


class Replies(Workload):
    """As many replies at once, each in a task of its own; all begin, wait for the model, and finish.

    With asyncio's own tasks and events, which cost least, so that the ratios are those of the replies.
    """

    def __init__(self, count: int, while_waiting: Callable[[], None] = lambda: None) -> None:
        self._count = count
        self._while_waiting = while_waiting
        self._texts: list[str] = []
        self.gate = Gate(count)

    async def __call__(self) -> None:
        self.gate = Gate(self._count)
        tasks = [asyncio.create_task(self.ask()) for _ in range(self._count)]
        await self.gate.is_full.wait()
        self._while_waiting()
        self.gate.is_open.set()
        self._texts = await asyncio.gather(*tasks)

    def check(self) -> None:
        expect(self._texts, [ANSWER] * self._count)

    async def ask(self) -> str:
        """Return the answer in a new conversation."""
        raise NotImplementedError


class FloorReplies(Replies):
    """The replies on the floor."""

    def __init__(self, count: int, while_waiting: Callable[[], None] = lambda: None) -> None:
        super().__init__(count, while_waiting)
        self._loop = floor.Loop(self._model)

    async def _model(self, messages: list[floor.Message], tools: list[dict[str, Any]]) -> floor.Chunk:
        await self.gate.wait()
        return floor.Chunk(ANSWER)

    async def ask(self) -> str:
        return (await self._loop.reply([floor.Message("system", SYSTEM_PROMPT)], QUESTION)).content


class RichReplies(Replies):
    """The replies on the rich floor."""

    def __init__(self, count: int, while_waiting: Callable[[], None] = lambda: None) -> None:
        super().__init__(count, while_waiting)
        self._loop = rich_floor.Loop(self._model)

    async def _model(self, messages: list[rich_floor.Message], tools: list[dict[str, Any]]) -> floor.Chunk:
        await self.gate.wait()
        return floor.Chunk(ANSWER)

    async def ask(self) -> str:
        conversation = rich_floor.Conversation(messages=[system_message()])
        return (await self._loop.reply(conversation.messages, QUESTION)).blocks[-1].text


class GatedChatModel(ChatModelBase):
    """Waits at a gate, and then gives the answer."""

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        super().__init__(model="gated", stream=False)
        self._wait = wait

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        await self._wait()
        return ChatResponse([TextBlock(ANSWER)])


class AgentReplies(Replies):
    """The replies on agentrt, of one agent; awaited, or read event by event."""

    def __init__(
        self,
        count: int,
        while_waiting: Callable[[], None] = lambda: None,
        *,
        within: Sequence[MiddlewareBase] = (),
        store: StateStore | None = None,
        reads: bool = False,
    ) -> None:
        super().__init__(count, while_waiting)
        model = GatedChatModel(lambda: self.gate.wait())
        self._answer = read_answer if reads else await_answer
        self._agent = Agent(
            name="assistant", system_prompt=SYSTEM_PROMPT, model=model, middlewares=within, state_store=store
        )

    async def ask(self) -> str:
        return (await self._answer(self._agent.with_state(AgentState()))).get_text_content() or ""
