# ruff: noqa: T201
"""A program of a user: a chat with approvals, dependencies, a store and a middleware. Nothing is wrong in it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt.agent import ReplyStream
from agentrt.event import AgentEvent, AnyEvent, RequireUserConfirmEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import (
    ActingOverrides,
    ActingValues,
    ModelCallOverrides,
    ModelCallValues,
    NextActing,
    NextModelCall,
    NextReply,
    ReplyValues,
    RetryMiddleware,
    UsageMiddleware,
)
from agentrt.model import ChatResponse, ModelResult, ScriptedChatModel, chat_model
from agentrt.pipeline import MsgHub, fanout_pipeline, sequential_pipeline, stream_printing_messages
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.tool import FunctionTool, ToolChunk, ToolContext, ToolResponse


@dataclass
class Deps:
    user: str


async def remove(path: str, context: ToolContext[Deps]) -> str:
    """Remove a file."""
    return f"{context.deps.user} removed {path}"


class Redact(MiddlewareBase):
    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        messages = [msg for msg in input_kwargs["messages"] if msg.role != "system"]
        overrides: ModelCallOverrides = {"messages": messages}
        result = await next_handler(**overrides)
        if isinstance(result, ChatResponse):
            return result
        return self.pieces(result)

    async def pieces(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        async for piece in stream:
            for block in piece.content:
                if isinstance(block, TextBlock):
                    block.text = block.text.replace("x", "y")
            yield piece

    async def on_acting(
        self, agent: Agent, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = input_kwargs["tool_call"]
        overrides = ActingOverrides(tool_call=call)
        async for item in next_handler(**overrides):
            if isinstance(item, ToolResponse):
                print(item.state, item.content)
            yield item

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AnyEvent | Msg, None]:
        data = agent.run.scratch(self)
        data["n"] = 1
        if input_kwargs["inputs"] is None:
            yield Msg("a", "no", "assistant")
            return
        async for item in next_handler(**input_kwargs):
            match item:
                case Msg():
                    print(item.get_text_content())
                case AgentEvent():
                    print(item.type)
            yield item


async def sse(agent: Agent, text: str) -> AsyncIterator[str]:
    async with agent.reply_stream(UserMsg("user", text)) as events:
        async for event in events:
            match event.type:
                case "TEXT_BLOCK_DELTA":
                    yield json.dumps({"delta": event.delta})
                case "REQUIRE_USER_CONFIRM":
                    yield json.dumps({"ask": [call.name for call in event.tool_calls]})
                case _:
                    yield f"data: {event.to_json()}\n\n"
        print(events.message.usage)


async def text_of(stream: ReplyStream) -> str:
    return "".join([text async for text in stream.text()])


async def main() -> None:
    store = FileStateStore("folder")
    model = ScriptedChatModel([[ToolCallBlock("1", "remove", '{"path": "a"}')], "ok"])
    agent = Agent(
        "a",
        "You help.",
        model,
        Toolkit([FunctionTool(remove, ask=True)]),
        [Redact(), RetryMiddleware(), UsageMiddleware()],
        state=AgentState(session_id="s"),
        state_store=store,
    )
    question: RequireUserConfirmEvent | None = None
    async for event in agent.reply_stream("remove a", deps=Deps("ann")):
        if event.type == "REQUIRE_USER_CONFIRM":
            question = event
        elif event.type == "TOOL_RESULT_TEXT_DELTA":
            print(event.delta)
    state = await store.load("s")
    assert state is not None
    assert question is not None
    again = agent.with_state(state)
    msg = await again.reply(question.approve())
    print(msg.get_text_content(), msg.finished_reason, msg.structured_output)
    items = [item async for item in again.reply_stream("hi", yield_final_msg=True)]
    last = items[-1]
    if isinstance(last, Msg):
        print(last.get_text_content())
    async with MsgHub([agent, again]) as hub:
        await hub.broadcast(Msg("a", "b", "user"))
    print(await sequential_pipeline([agent], msg), await fanout_pipeline([agent], msg))
    async for msg2, is_last in stream_printing_messages([agent], agent("x")):
        print(msg2.get_text_content(), is_last)
    async for line in sse(agent, "x"):
        print(line)
    real = chat_model("rules")
    print(real.model, InMemoryStateStore(), await text_of(agent.reply_stream("x")))
    rebuilt = Msg("a", [], "assistant")
    async for event in agent.reply_stream("x"):
        rebuilt.append_event(event)
        restored = AgentEvent.from_json(event.to_json())
        if restored.type == "REPLY_END":
            print(restored.finished_reason)


asyncio.run(main())
