"""OpenAI Agents SDK. A run without a session holds nothing, so the messages of a conversation are given with each run.

It has hooks, one set per run and one per agent, which observe: there is nothing to put N times around a call.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import Any

from agents import Agent, ModelResponse, Runner, Usage, function_tool
from agents import Model as AgentsModel
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

MAX_TURNS = 100  # ten rounds and the answer are more than the default

Conversation = tuple[Agent[Any], list[Any]]


class Model(AgentsModel):
    def __init__(self, answers: Sequence[Any] = (), events: Sequence[Any] = (), seconds: float = 0.0) -> None:
        self._answers = cycle(answers)
        self._events = events
        self._seconds = seconds
        self.request: Any = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.request = input
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return ModelResponse(output=[next(self._answers)], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for event in self._events:
            yield event


class Peer(PeerBase):
    absent = MappingProxyType(
        {
            "W3": "hooks observe, and there is one set per run and one per agent",
            "W4 layers": "no hook sees a delta",
        }
    )

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [
            ResponseFunctionToolCall(arguments=script.ARGUMENTS, call_id=id, name="add", type="function_call")
            for id in script.call_ids(rounds)
        ]
        return Model([*calls, _message(script.ANSWER)], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model(events=[*(_delta(number) for number in range(script.DELTAS)), _completion()])

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Agent[Any]:
        return Agent(
            name="assistant",
            instructions=script.SYSTEM_PROMPT,
            model=model,
            tools=[function_tool(tool) for tool in tools],
        )

    async def open_conversation(self, agent: Agent[Any], held: int = 0) -> Conversation:
        items: list[Any] = []
        for _ in range(held // 2):
            items.append({"role": "user", "content": script.QUESTION})
            items.append({"role": "assistant", "content": script.ANSWER})
        return agent, items

    async def take_turn(self, conversation: Conversation) -> str:
        agent, items = conversation
        items.append({"role": "user", "content": script.QUESTION})
        result = await Runner.run(agent, items, max_turns=MAX_TURNS)
        items[:] = result.to_input_list()
        return str(result.final_output)

    async def take_first_turn(self, agent: Agent[Any]) -> str:
        return str((await Runner.run(agent, script.QUESTION, max_turns=MAX_TURNS)).final_output)

    async def stream_first_turn(self, agent: Agent[Any]) -> tuple[int, str]:
        count = 0
        result = Runner.run_streamed(agent, script.QUESTION)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                count += 1
        return count, str(result.final_output)

    def results(self, model: Model) -> list[tuple[str, str]]:
        items = [] if isinstance(model.request, str) else model.request
        return [(item["call_id"], item["output"]) for item in items if item.get("type") == "function_call_output"]


def _message(text: str) -> ResponseOutputMessage:
    return ResponseOutputMessage(
        id="message",
        content=[ResponseOutputText(annotations=[], text=text, type="output_text")],
        role="assistant",
        status="completed",
        type="message",
    )


def _delta(number: int) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent(
        content_index=0,
        delta=script.PIECE,
        item_id="message",
        logprobs=[],
        output_index=0,
        sequence_number=number,
        type="response.output_text.delta",
    )


def _completion() -> ResponseCompletedEvent:
    response = Response(
        id="response",
        created_at=0,
        model="canned",
        object="response",
        output=[_message(script.PIECE * script.DELTAS)],
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
    )
    return ResponseCompletedEvent(response=response, sequence_number=script.DELTAS, type="response.completed")
