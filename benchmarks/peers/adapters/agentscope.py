"""AgentScope. An agent holds one conversation, so each conversation is an agent over the same model and toolkit.

It builds a validator for each tool call (`jsonschema.validate`), and offers no way to keep one.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import cycle
from typing import Any

from agentscope.agent import Agent
from agentscope.credential import CredentialBase
from agentscope.event import TextBlockDeltaEvent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import AssistantMsg, Msg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from pydantic import BaseModel

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="It only adds.")


class Parameters(BaseModel):
    pass


class Model(ChatModelBase):
    def __init__(self, answers: Sequence[Any], pieces: int = 0, seconds: float = 0.0) -> None:
        super().__init__(CredentialBase(), "canned", Parameters(), stream=bool(pieces))
        self.formatter = OpenAIChatFormatter()  # asked which media the model takes
        self._answers = cycle(answers)
        self._pieces = pieces
        self._seconds = seconds
        self.request: list[Msg] = []

    async def _call_api(
        self, model_name: str, messages: list[Msg], tools: Any = None, tool_choice: Any = None, **kwargs: Any
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        self.request = messages
        if self._seconds:
            await asyncio.sleep(self._seconds)
        # The agent changes the blocks that it gets, so they are made for each call.
        return self._stream() if self._pieces else ChatResponse(content=[next(self._answers)()], is_last=True)

    async def _stream(self) -> AsyncGenerator[ChatResponse, None]:
        for _ in range(self._pieces):
            yield ChatResponse(content=[TextBlock(text=script.PIECE, id="text")], is_last=False, id="answer")


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
        return Model([*(_call(id) for id in script.call_ids(rounds)), _answer], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model([], pieces=script.DELTAS)

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> Agent:
        return _agent(model, tools, [PassOnCalls() for _ in range(layers)])

    def make_streaming_agent(self, model: Model, layers: int = 0) -> Agent:
        return _agent(model, [], [PassOnStream() for _ in range(layers)])

    async def open_conversation(self, agent: Agent, held: int = 0) -> Agent:
        conversation = Agent("assistant", script.SYSTEM_PROMPT, agent.model, toolkit=agent.toolkit)
        for _ in range(held // 2):
            conversation.state.context += [UserMsg("user", script.QUESTION), AssistantMsg("assistant", script.ANSWER)]
        return conversation

    async def take_turn(self, conversation: Agent) -> str:
        answer = await conversation.reply(UserMsg("user", script.QUESTION))
        return answer.get_text_content() or ""

    async def take_first_turn(self, agent: Agent) -> str:
        agent.state.context.clear()
        return await self.take_turn(agent)

    async def stream_first_turn(self, agent: Agent) -> tuple[int, str]:
        agent.state.context.clear()
        count = 0
        item: Any = None
        async for item in agent.reply_stream(UserMsg("user", script.QUESTION), yield_final_msg=True):
            if type(item) is TextBlockDeltaEvent:
                count += 1
        return count, (item.get_text_content() or "") if isinstance(item, Msg) else ""

    def results(self, model: Model) -> list[tuple[str, str]]:
        blocks = [block for msg in model.request for block in msg.get_content_blocks()]
        return [(block.id, _text(block)) for block in blocks if isinstance(block, ToolResultBlock)]


def _agent(model: Model, tools: Sequence[script.Tool], middlewares: Sequence[MiddlewareBase]) -> Agent:
    toolkit = Toolkit(tools=[FunctionTool(tool, permission=ALLOWED) for tool in tools])
    return Agent("assistant", script.SYSTEM_PROMPT, model, toolkit=toolkit, middlewares=list(middlewares))


def _call(id: str) -> Any:
    return lambda: ToolCallBlock(id=id, name="add", input=script.ARGUMENTS)


def _answer() -> TextBlock:
    return TextBlock(text=script.ANSWER)


def _text(result: ToolResultBlock) -> str:
    if isinstance(result.output, str):
        return result.output
    return "".join(part.text for part in result.output if isinstance(part, TextBlock))
