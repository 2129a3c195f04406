"""The agent under test, and the wrappers of its store and its model."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import anyio.lowlevel

from agentrt.event import AgentEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ModelResult
from agentrt.state import AgentState, StateStore
from agentrt.testing.harness.invariants import problems_of_request
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

_OnPlace = Callable[[str], None]


class _Stream(Protocol):
    def __aiter__(self) -> AsyncIterator[AgentEvent | Msg]: ...
    async def aclose(self) -> None: ...


class Checkable(Protocol):
    """The part of an agent that the harness uses; every `Agent` has it."""

    state: AgentState
    state_store: StateStore | None
    model: ChatModelBase

    def reply_stream(
        self, inputs: str | ReplyInput = None, structured_schema: Any = None, *, yield_final_msg: bool = False
    ) -> _Stream: ...
    def interrupt(self) -> object: ...
    def with_state(self, state: AgentState) -> "Checkable": ...


class FaultyStore:
    """The agent's own store, which may fail before or after each operation; `saved` is the last state.

    `on_place` is called with each place, and raises where a fault is due.
    """

    def __init__(self, store: StateStore, on_place: _OnPlace) -> None:
        self.store = store
        self.saved = ""
        self._on_place = on_place

    async def save(self, state: AgentState) -> None:
        # A real store waits, so a cancellation can arrive here; a store in memory would not.
        await anyio.lowlevel.checkpoint()
        self._on_place("before saving")
        await self.store.save(state)
        # As text, since the state keeps changing; and only once the store has it.
        self.saved = state.model_dump_json()
        self._on_place("after saving")

    async def load(self, session_id: str) -> AgentState | None:
        await anyio.lowlevel.checkpoint()
        self._on_place("before loading")
        return await self.store.load(session_id)


class FaultyModel(ChatModelBase):
    """The agent's own model, which may fail before a call, and before each piece of its answer.

    `on_call` is called with each call, and `on_place` as in `FaultyStore`; `problems` lists invalid requests.
    """

    def __init__(self, model: ChatModelBase, on_place: _OnPlace, on_call: Callable[[str], None]) -> None:
        super().__init__(model=model.model, stream=model.stream, context_size=model.context_size)
        self.problems: list[str] = []
        self._model = model
        self._on_place = on_place
        self._on_call = on_call

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        self._on_call("the model")
        # Before the fault, so that every request is checked, even one that fails.
        problems = problems_of_request(messages)
        self.problems += [f"a model was sent a broken request: {problem}" for problem in problems]
        self._on_place("before asking")
        await anyio.lowlevel.checkpoint()
        result = await self._model(messages, tools, tool_choice)
        self._on_place("after asking")
        return result if isinstance(result, ChatResponse) else self._stream(result)

    async def _stream(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        async with aclosing(stream):
            async for piece in stream:
                await anyio.lowlevel.checkpoint()
                self._on_place("in the middle of an answer")
                yield piece

    async def aclose(self) -> None:
        await self._model.aclose()
