"""Microsoft Agent Framework.

Its middlewares await; a streamed reply passes through hooks that they leave in the context.
A run without a session holds nothing, so the messages of a conversation are given with each run.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionMiddleware,
    Message,
)
from agent_framework.observability import ChatTelemetryLayer

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

Conversation = tuple[Agent, list[Message]]


# These layers are those of the package's own clients.
class Model(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    def __init__(
        self, answers: Sequence[Message], updates: Sequence[ChatResponseUpdate] = (), seconds: float = 0.0
    ) -> None:
        super().__init__()
        self._answers = cycle(answers)
        self._updates = updates
        self._seconds = seconds
        self.request: Sequence[Message] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        self.request = messages
        return self._build_response_stream(self._stream()) if stream else self._respond()

    async def _respond(self) -> ChatResponse:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return ChatResponse(messages=[next(self._answers)])

    async def _stream(self) -> AsyncIterator[ChatResponseUpdate]:
        for update in self._updates:
            yield update


class PassOnModelCalls(ChatMiddleware):
    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()


class PassOnToolCalls(FunctionMiddleware):
    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()


class PassOnStream(ChatMiddleware):
    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        context.stream_transform_hooks.append(self.see)
        await call_next()

    def see(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        return update


class Peer(PeerBase):
    layers = ((PassOnModelCalls, "process"), (PassOnToolCalls, "process"))
    stream_layers = ((PassOnStream, "see"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [
            Message("assistant", [Content.from_function_call(id, "add", arguments=script.ARGUMENTS)])
            for id in script.call_ids(rounds)
        ]
        return Model([*calls, Message("assistant", [script.ANSWER])], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model([], [_update() for _ in range(script.DELTAS)])

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Agent:
        middleware = [layer() for _ in range(layers) for layer in (PassOnModelCalls, PassOnToolCalls)]
        return self._agent(model, tools, middleware)

    def make_streaming_agent(self, model: Model, layers: int = 0) -> Agent:
        return self._agent(model, [], [PassOnStream() for _ in range(layers)])

    def _agent(self, model: Model, tools: Sequence[script.Tool], middleware: Sequence[Any]) -> Agent:
        return Agent(client=model, instructions=script.SYSTEM_PROMPT, tools=list(tools), middleware=list(middleware))

    async def open_conversation(self, agent: Agent, held: int = 0) -> Conversation:
        pairs = [[Message("user", [script.QUESTION]), Message("assistant", [script.ANSWER])] for _ in range(held // 2)]
        return agent, [message for pair in pairs for message in pair]

    async def take_turn(self, conversation: Conversation) -> str:
        agent, messages = conversation
        messages.append(Message("user", [script.QUESTION]))
        response = await agent.run(messages)
        messages += response.messages
        return str(response.text)

    async def take_first_turn(self, agent: Agent) -> str:
        return str((await agent.run(script.QUESTION)).text)

    async def stream_first_turn(self, agent: Agent) -> tuple[int, str]:
        count = 0
        stream = agent.run(script.QUESTION, stream=True)
        async for update in stream:
            count += bool(update.text)
        return count, (await stream.get_final_response()).text

    def results(self, model: Model) -> list[tuple[str, str]]:
        contents = [content for message in model.request for content in message.contents]
        return [(content.call_id, content.result) for content in contents if content.type == "function_result"]


def _update() -> ChatResponseUpdate:
    return ChatResponseUpdate(role="assistant", contents=[Content.from_text(script.PIECE)])
