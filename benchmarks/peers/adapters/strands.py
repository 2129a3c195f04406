"""Strands Agents. An agent holds one conversation, so each conversation is an agent over the same model.

The default window would drop all but 40 messages, so the agents keep them all.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.middleware import ExecuteToolStage, InvokeModelStage
from strands.models import Model as StrandsModel

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase


class Model(StrandsModel):
    """Streams, as each model of this peer does."""

    def __init__(self, answers: Sequence[Sequence[Any]], seconds: float = 0.0) -> None:
        self._answers = cycle(answers)
        self._seconds = seconds
        self.request: list[Any] = []

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.request = messages
        if self._seconds:
            await asyncio.sleep(self._seconds)
        for event in next(self._answers):
            yield event

    def update_config(self, **model_config: Any) -> None:
        pass

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


async def pass_model_call(context: Any, next_fn: Any) -> AsyncIterator[Any]:
    async for event in next_fn(context):
        yield event


async def pass_tool_call(context: Any, next_fn: Any) -> AsyncIterator[Any]:
    async for event in next_fn(context):
        yield event


class Peer(PeerBase):
    layers = ((sys.modules[__name__], "pass_model_call"), (sys.modules[__name__], "pass_tool_call"))
    stream_layers = ((sys.modules[__name__], "pass_model_call"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [_call_events(id) for id in script.call_ids(rounds)]
        return Model([*calls, _text_events([script.ANSWER])], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model([_text_events([script.PIECE] * script.DELTAS)])

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Agent:
        agent = _agent(model, tools)
        for _ in range(layers):
            agent.add_middleware(InvokeModelStage, pass_model_call)
            agent.add_middleware(ExecuteToolStage, pass_tool_call)
        return agent

    def make_streaming_agent(self, model: Model, layers: int = 0) -> Agent:
        return self.make_agent(model, layers=layers)

    async def open_conversation(self, agent: Agent, held: int = 0) -> Agent:
        pairs = [[_message("user", script.QUESTION), _message("assistant", script.ANSWER)] for _ in range(held // 2)]
        return _agent(agent.model, messages=[message for pair in pairs for message in pair])

    async def take_turn(self, conversation: Agent) -> str:
        result = await conversation.invoke_async(script.QUESTION)
        return str(result.message["content"][-1]["text"])

    async def take_first_turn(self, agent: Agent) -> str:
        agent.messages.clear()
        return await self.take_turn(agent)

    async def stream_first_turn(self, agent: Agent) -> tuple[int, str]:
        agent.messages.clear()
        count = 0
        text = ""
        async for event in agent.stream_async(script.QUESTION):
            if "data" in event:
                count += 1
            elif "result" in event:
                text = event["result"].message["content"][-1]["text"]
        return count, text

    def results(self, model: Model) -> list[tuple[str, str]]:
        blocks = [
            block["toolResult"] for message in model.request for block in message["content"] if "toolResult" in block
        ]
        return [(block["toolUseId"], block["content"][0]["text"]) for block in blocks]


def _agent(model: StrandsModel, tools: Sequence[script.Tool] = (), messages: Any = None) -> Agent:
    return Agent(
        model=model,
        messages=messages,
        tools=[tool(function) for function in tools],
        system_prompt=script.SYSTEM_PROMPT,
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )


def _message(role: str, text: str) -> Any:
    return {"role": role, "content": [{"text": text}]}


def _text_events(pieces: Sequence[str]) -> list[Any]:
    deltas = [{"contentBlockDelta": {"delta": {"text": piece}}} for piece in pieces]
    return [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"start": {}}},
        *deltas,
        {"contentBlockStop": {}},
        {"messageStop": {"stopReason": "end_turn"}},
    ]


def _call_events(id: str) -> list[Any]:
    return [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"start": {"toolUse": {"toolUseId": id, "name": "add"}}}},
        {"contentBlockDelta": {"delta": {"toolUse": {"input": script.ARGUMENTS}}}},
        {"contentBlockStop": {}},
        {"messageStop": {"stopReason": "tool_use"}},
    ]
