"""Pydantic AI. A run holds nothing, so the messages of a conversation are given with each run.

Its layers are capabilities.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

from pydantic_ai import Agent, AgentRunResultEvent, PartDeltaEvent, PartStartEvent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import StreamedResponse

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

NOW = datetime.now(UTC)

Conversation = tuple[Agent, list[ModelMessage]]


class Model(PydanticModel):
    model_name = "canned"
    system = "canned"

    def __init__(self, answers: Sequence[Any] = (), seconds: float = 0.0) -> None:
        super().__init__()
        self._answers = cycle(answers)
        self._seconds = seconds
        self.messages: list[ModelMessage] = []

    async def request(self, messages: list[ModelMessage], settings: Any, parameters: Any) -> ModelResponse:
        self.messages = messages
        self.prepare_request(settings, parameters)
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return ModelResponse(parts=[next(self._answers)], timestamp=NOW)

    @asynccontextmanager
    async def request_stream(
        self, messages: list[ModelMessage], settings: Any, parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[StreamedResponse]:
        _, parameters = self.prepare_request(settings, parameters)
        yield Stream(parameters)


@dataclass
class Stream(StreamedResponse):
    model_name = "canned"
    provider_name = None
    provider_url = None
    timestamp = NOW

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        for _ in range(script.DELTAS):
            for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=script.PIECE):
                yield event

    async def close_stream(self) -> None:
        pass


class PassOnCalls(AbstractCapability[Any]):
    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        return await handler(args)


class PassOnStream(AbstractCapability[Any]):
    async def wrap_run_event_stream(self, ctx: Any, *, stream: Any) -> AsyncIterator[Any]:
        async for event in stream:
            yield event


class Peer(PeerBase):
    layers = ((PassOnCalls, "wrap_model_request"), (PassOnCalls, "wrap_tool_execute"))
    stream_layers = ((PassOnStream, "wrap_run_event_stream"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [ToolCallPart("add", script.ARGUMENTS, tool_call_id=id) for id in script.call_ids(rounds)]
        return Model([*calls, TextPart(script.ANSWER)], seconds)

    def make_streaming_model(self) -> Model:
        return Model()

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Agent:
        return _agent(model, tools, [PassOnCalls() for _ in range(layers)])

    def make_streaming_agent(self, model: Model, layers: int = 0) -> Agent:
        return _agent(model, [], [PassOnStream() for _ in range(layers)])

    async def open_conversation(self, agent: Agent, held: int = 0) -> Conversation:
        messages: list[ModelMessage] = []
        for _ in range(held // 2):
            messages.append(ModelRequest(parts=[UserPromptPart(script.QUESTION)]))
            messages.append(ModelResponse(parts=[TextPart(script.ANSWER)]))
        return agent, messages

    async def take_turn(self, conversation: Conversation) -> str:
        agent, messages = conversation
        result = await agent.run(script.QUESTION, message_history=messages)
        messages += result.new_messages()
        return str(result.output)

    async def take_first_turn(self, agent: Agent) -> str:
        return str((await agent.run(script.QUESTION)).output)

    async def stream_first_turn(self, agent: Agent) -> tuple[int, str]:
        count = 0
        text = ""
        async with agent.run_stream_events(script.QUESTION) as events:
            async for event in events:
                # The first piece comes with the start of its part.
                if isinstance(event, PartDeltaEvent | PartStartEvent):
                    count += 1
                elif isinstance(event, AgentRunResultEvent):
                    text = event.result.output
        return count, text

    def request_length(self, model: Model) -> int:
        return len(model.messages)

    def results(self, model: Model) -> list[tuple[str, str]]:
        parts = [part for message in model.messages for part in message.parts]
        return [(part.tool_call_id, part.content) for part in parts if isinstance(part, ToolReturnPart)]


def _agent(model: Model, tools: Sequence[script.Tool], capabilities: Sequence[Any]) -> Agent:
    return Agent(model, instructions=script.SYSTEM_PROMPT, tools=list(tools), capabilities=list(capabilities))
