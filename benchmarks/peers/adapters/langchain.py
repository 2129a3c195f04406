"""LangChain.

A graph without a checkpointer holds nothing, so the messages of a conversation are given with each run.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

# Eleven model calls and ten tool calls are more steps than the graph takes by default.
CONFIG = {"recursion_limit": 100}

Conversation = tuple[Any, list[BaseMessage]]


class Model(BaseChatModel):
    _answers: Any = PrivateAttr()
    _seconds: float = PrivateAttr()
    _request: list[BaseMessage] = PrivateAttr(default_factory=list)

    def __init__(self, answers: Sequence[AIMessage] = (), seconds: float = 0.0) -> None:
        super().__init__()
        self._answers = cycle(answers)
        self._seconds = seconds

    @property
    def _llm_type(self) -> str:
        return "canned"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError("it answers in an event loop only")

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self._request = messages
        if self._seconds:
            await asyncio.sleep(self._seconds)
        # What is changed in a message (its id) must not be there the next time.
        return ChatResult(generations=[ChatGeneration(message=next(self._answers).model_copy())])

    @property
    def request(self) -> list[BaseMessage]:
        return self._request


class StreamingModel(Model):
    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(script.DELTAS):
            yield ChatGenerationChunk(message=AIMessageChunk(content=script.PIECE))


class PassOnCalls(AgentMiddleware):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    @property
    def name(self) -> str:
        return f"layer {self._number}"  # two of one name are refused

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class Peer(PeerBase):
    absent = MappingProxyType({"W4 layers": "a layer sees the finished message; the deltas leave by callbacks"})
    layers = ((PassOnCalls, "awrap_model_call"), (PassOnCalls, "awrap_tool_call"))

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        arguments = {"a": 3, "b": 4}  # models of this peer give them parsed
        calls = [
            AIMessage("", tool_calls=[{"name": "add", "args": arguments, "id": id}]) for id in script.call_ids(rounds)
        ]
        return Model([*calls, AIMessage(script.ANSWER)], seconds)

    def make_streaming_model(self) -> Model:
        return StreamingModel()

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Any:
        return create_agent(
            model,
            [tool(function) for function in tools],
            system_prompt=script.SYSTEM_PROMPT,
            middleware=[PassOnCalls(number) for number in range(layers)],
        )

    async def open_conversation(self, agent: Any, held: int = 0) -> Conversation:
        messages: list[BaseMessage] = []
        for _ in range(held // 2):
            messages += [HumanMessage(script.QUESTION), AIMessage(script.ANSWER)]
        return agent, messages

    async def take_turn(self, conversation: Conversation) -> str:
        agent, messages = conversation
        messages.append(HumanMessage(script.QUESTION))
        state = await agent.ainvoke({"messages": messages}, CONFIG)
        messages[:] = state["messages"]
        return str(messages[-1].content)

    async def take_first_turn(self, agent: Any) -> str:
        state = await agent.ainvoke({"messages": [HumanMessage(script.QUESTION)]}, CONFIG)
        return str(state["messages"][-1].content)

    async def stream_first_turn(self, agent: Any) -> tuple[int, str]:
        pieces = []
        question = {"messages": [HumanMessage(script.QUESTION)]}
        async for chunk, _ in agent.astream(question, CONFIG, stream_mode="messages"):
            if chunk.content:  # the last chunk is empty
                pieces.append(chunk.content)
        return len(pieces), "".join(pieces)

    def results(self, model: Model) -> list[tuple[str, str]]:
        return [(msg.tool_call_id, str(msg.content)) for msg in model.request if isinstance(msg, ToolMessage)]
