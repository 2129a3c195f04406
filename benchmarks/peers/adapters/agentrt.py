"""agentrt, in its own row."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import cycle
from typing import Any

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt.event import TextBlockDeltaEvent
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.types import JSONSchema, ToolChoice
from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase


class Model(ChatModelBase):
    def __init__(self, answers: Sequence[ChatResponse], chunks: Sequence[ChatResponse] = (), seconds: float = 0.0):
        super().__init__(model="canned", stream=bool(chunks))
        self._answers = cycle(answers)
        self._chunks = chunks
        self._seconds = seconds
        self.request: list[Msg] = []

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        self.request = messages
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return self._stream() if self._chunks else next(self._answers)

    async def _stream(self) -> AsyncGenerator[ChatResponse, None]:
        for chunk in self._chunks:
            yield chunk


class PassOnCalls(MiddlewareBase):
    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return await next_handler(**input_kwargs)

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler(**input_kwargs):
            yield item


class PassOnStream(MiddlewareBase):
    async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler(**input_kwargs):
            yield item


class Peer(PeerBase):
    layers = ((PassOnCalls, "on_model_call"), (PassOnCalls, "on_acting"))
    stream_layers = ((PassOnStream, "on_reasoning"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [ChatResponse([ToolCallBlock(id, "add", script.ARGUMENTS)]) for id in script.call_ids(rounds)]
        return Model([*calls, ChatResponse([TextBlock(script.ANSWER)])], seconds=seconds)

    def make_streaming_model(self) -> Model:
        pieces = [ChatResponse([TextBlock(script.PIECE, id="text")], is_last=False) for _ in range(script.DELTAS)]
        return Model([], [*pieces, ChatResponse([TextBlock(script.PIECE * script.DELTAS, id="text")])])

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Agent:
        return self._agent(model, Toolkit(tools=list(tools)), [PassOnCalls() for _ in range(layers)])

    def make_streaming_agent(self, model: Model, layers: int = 0) -> Agent:
        return self._agent(model, Toolkit(), [PassOnStream() for _ in range(layers)])

    def _agent(self, model: Model, toolkit: Toolkit, middlewares: Sequence[MiddlewareBase]) -> Agent:
        return Agent(
            name="assistant",
            system_prompt=script.SYSTEM_PROMPT,
            model=model,
            toolkit=toolkit,
            middlewares=list(middlewares),
        )

    async def open_conversation(self, agent: Agent, held: int = 0) -> Agent:
        state = AgentState()
        for _ in range(held // 2):
            state.context += [UserMsg("user", script.QUESTION), AssistantMsg("assistant", script.ANSWER)]
        return agent.with_state(state)

    async def take_turn(self, conversation: Agent) -> str:
        answer = await conversation.reply(UserMsg("user", script.QUESTION))
        return answer.get_text_content() or ""

    async def take_first_turn(self, agent: Agent) -> str:
        agent.state.context.clear()
        return await self.take_turn(agent)

    async def stream_first_turn(self, agent: Agent) -> tuple[int, str]:
        agent.state.context.clear()
        count = 0
        item: object = None
        async with agent.reply_stream(UserMsg("user", script.QUESTION), yield_final_msg=True) as items:
            async for item in items:
                if type(item) is TextBlockDeltaEvent:
                    count += 1
        return count, (item.get_text_content() or "") if isinstance(item, Msg) else ""

    def results(self, model: Model) -> list[tuple[str, str]]:
        blocks = [block for msg in model.request for block in msg.get_content_blocks()]
        return [(block.id, _text(block)) for block in blocks if isinstance(block, ToolResultBlock)]


def _text(result: ToolResultBlock) -> str:
    if isinstance(result.output, str):
        return result.output
    return "".join(part.text for part in result.output if isinstance(part, TextBlock))
