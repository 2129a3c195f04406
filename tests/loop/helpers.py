"""What the tests of the loop share."""

import json
from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, field_validator

from agentrt import Agent, AgentState, Msg, Toolkit
from agentrt.event import AgentEvent, ConfirmResult, CustomEvent, UserConfirmResultEvent
from agentrt.message import AssistantMsg, ToolCallBlock
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolBase

SHORT = {
    "REPLY_START": "RS",
    "REPLY_RESUMED": "RESUMED",
    "REPLY_END": "RE",
    "MODEL_CALL_START": "MS",
    "MODEL_CALL_END": "ME",
    "MODEL_CALL_RETRY": "RETRY",
    "TEXT_BLOCK_START": "TX_START",
    "TEXT_BLOCK_DELTA": "TX_DELTA",
    "TEXT_BLOCK_END": "TX_END",
    "THINKING_BLOCK_START": "TH_START",
    "THINKING_BLOCK_DELTA": "TH_DELTA",
    "THINKING_BLOCK_END": "TH_END",
    "TOOL_CALL_START": "CALL_START",
    "TOOL_CALL_DELTA": "CALL_DELTA",
    "TOOL_CALL_END": "CALL_END",
    "TOOL_RESULT_START": "RESULT_START",
    "TOOL_RESULT_TEXT_DELTA": "RESULT_DELTA",
    "TOOL_RESULT_END": "RESULT_END",
    "EXCEED_MAX_ITERS": "EXCEED",
}


class Passing(MiddlewareBase):
    """A layer of on_reply that changes nothing."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


class AgainRound(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except ConnectionError:
            async for item in next_handler():
                yield item


class AgainReply(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except ConnectionError:
            async for item in next_handler():
                yield item


class Elsewhere(ToolBase):
    name = "elsewhere"
    is_external_tool = True
    max_output = 400_000
    input_schema: ClassVar = {"type": "object", "properties": {}}

    def __init__(self, *, ask: bool = False) -> None:
        self.ask = ask


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check(cls, n: int) -> int:
        if n % 2:
            raise ValueError("it must be even")
        return n


def call(call_id: str, name: str, **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, name, json.dumps(arguments))


def agent_of(responses: list[Any], *tools: Any, **options: Any) -> Agent:
    return Agent("tester", "You are tested.", ScriptedChatModel(responses), Toolkit(tools=list(tools)), **options)


def short(item: AgentEvent | Msg) -> str:
    """Name an item as the table of orders does: RS, MS, CALL_START:1, RE(completed), Msg."""
    if isinstance(item, Msg):
        return "Msg"
    name = SHORT.get(item.type, item.type)
    if hasattr(item, "tool_call_id"):
        return f"{name}:{item.tool_call_id}" + (f"({item.state})" if name == "RESULT_END" else "")
    if isinstance(item, CustomEvent):
        return item.name
    return f"{name}({item.finished_reason})" if name == "RE" else name


async def items_of(agent: Agent, inputs: Any = "go") -> list[AgentEvent | Msg]:
    async with agent.reply_stream(inputs, yield_final_msg=True) as stream:
        return [item async for item in stream]


async def items_with(agent: Agent, schema: Any) -> list[Any]:
    async with agent.reply_stream("go", schema, yield_final_msg=True) as stream:
        return [item async for item in stream]


def rebuilt(items: Iterable[AgentEvent | Msg]) -> Msg:
    """Return the message that a listener builds from the events of a reply."""
    message = AssistantMsg("", [])
    for item in items:
        if isinstance(item, AgentEvent):
            message.append_event(item)
    return message


def saved_state(agent: Agent) -> AgentState:
    """Return the state as another process loads it."""
    return AgentState.model_validate_json(agent.state.model_dump_json())


def elsewhere(agent: Agent) -> Agent:
    """Return the conversation as another process finds it."""
    return agent.with_state(saved_state(agent))


def confirmation_of(agent: Agent, *ids: str, confirmed: bool = True, **fields: Any) -> UserConfirmResultEvent:
    """Answer the open questions with these ids, or all."""
    event = agent.waiting()
    calls = [block for block in event.tool_calls if block.id in (ids or (block.id,))]
    return UserConfirmResultEvent(event.reply_id, [ConfirmResult(confirmed, block, **fields) for block in calls])


async def order_of(agent: Agent, inputs: Any = "go") -> str:
    """Return the reply's items by their short names, with runs of one name drawn together as NAME+."""
    names: list[str] = []
    for item in await items_of(agent, inputs):
        name = short(item)
        if names and names[-1].rstrip("+") == name:
            names[-1] = f"{name}+"
        else:
            names.append(name)
    return " ".join(names)


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def multiply(a: int, b: int = 2) -> int:
    return a * b


def offered(agent: Agent) -> list[list[str]]:
    return [[tool["function"]["name"] for tool in made.tools] for made in agent.model.calls]


def results(agent: Agent) -> list[str]:
    return [result.output[0].text for result in agent.state.context[-1].get_content_blocks("tool_result")]
