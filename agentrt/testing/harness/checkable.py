"""What is put around the parts of an agent under test."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import anyio

from agentrt.hooks import ReplyInput
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ModelResult
from agentrt.state import AgentState, StateStore
from agentrt.testing.harness.invariants import problems_of_request
from agentrt.types import JSONSchema, ToolChoice

__all__ = ["Checkable", "WatchedModel", "WatchedStore"]

_Reach = Callable[[str], None]


class Checkable(Protocol):
    """What the harness needs of an agent; every `Agent` has it."""

    state: AgentState
    state_store: StateStore | None
    model: ChatModelBase

    def reply_stream(
        self, inputs: str | ReplyInput = None, structured_schema: Any = None, *, yield_final_msg: bool = False
    ) -> Any: ...
    def interrupt(self) -> object: ...
    def with_state(self, state: AgentState) -> "Checkable": ...


class WatchedStore:
    """The agent's own store, which may be told to fail before or after each of its works; `saved` is the last state."""

    def __init__(self, store: StateStore, reach: _Reach) -> None:
        self.store = store
        self.saved = ""
        self._reach = reach

    async def save(self, state: AgentState) -> None:
        await anyio.lowlevel.checkpoint()
        self._reach("before saving")
        await self.store.save(state)
        self.saved = state.model_dump_json()
        self._reach("after saving")

    async def load(self, session_id: str) -> AgentState | None:
        await anyio.lowlevel.checkpoint()
        self._reach("before loading")
        return await self.store.load(session_id)


class WatchedModel(ChatModelBase):
    """The agent's own model, which may be told to fail before it is asked, and before each piece of its answer."""

    def __init__(self, model: ChatModelBase, reach: _Reach, asked: Callable[[str], None]) -> None:
        super().__init__(model=model.model, stream=model.stream, context_size=model.context_size)
        self.own = model
        self.problems: list[str] = []
        self._reach = reach
        self._asked = asked

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        self._asked("the model")
        self.problems += [f"a model was sent a broken request: {each}" for each in problems_of_request(messages)]
        self._reach("before asking")
        await anyio.lowlevel.checkpoint()
        result = await self.own(messages, tools, tool_choice)
        self._reach("after asking")
        return result if not hasattr(result, "__aiter__") else self._stream(result)

    async def _stream(self, stream: Any) -> AsyncGenerator[Any, None]:
        try:
            async for piece in stream:
                await anyio.lowlevel.checkpoint()
                self._reach("in the middle of an answer")
                yield piece
        finally:
            await stream.aclose()

    async def aclose(self) -> None:
        await self.own.aclose()
