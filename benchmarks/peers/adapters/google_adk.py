"""Google's Agent Development Kit. Its layers are plugins, which have callbacks before and after a call."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import cycle
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types
from pydantic import PrivateAttr

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

# Without it a warning is logged for each call.
USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=5)
STREAMING = RunConfig(streaming_mode=StreamingMode.SSE)

Conversation = tuple[InMemoryRunner, str]


class Model(BaseLlm):
    _answers: Any = PrivateAttr()
    _pieces: int = PrivateAttr()
    _seconds: float = PrivateAttr()
    _request: Any = PrivateAttr(default=None)

    def __init__(self, answers: Sequence[types.Part], pieces: int = 0, seconds: float = 0.0) -> None:
        super().__init__(model="canned")
        self._answers = cycle(answers)
        self._pieces = pieces
        self._seconds = seconds

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self._request = llm_request
        if self._seconds:
            await asyncio.sleep(self._seconds)
        for _ in range(self._pieces):
            yield LlmResponse(content=_content("model", types.Part(text=script.PIECE)), partial=True)
        yield LlmResponse(content=_content("model", next(self._answers)), usage_metadata=USAGE)

    @property
    def request(self) -> LlmRequest:
        return self._request


class PassOnCalls(BasePlugin):
    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        pass

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        pass

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
        pass

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
        pass


class PassOnStream(BasePlugin):
    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        pass


class Peer(PeerBase):
    layers = ((PassOnCalls, "before_model_callback"), (PassOnCalls, "before_tool_callback"))
    stream_layers = ((PassOnStream, "after_model_callback"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        arguments = {"a": 3, "b": 4}  # models of this peer give them parsed
        calls = [
            types.Part(function_call=types.FunctionCall(id=id, name="add", args=arguments))
            for id in script.call_ids(rounds)
        ]
        return Model([*calls, types.Part(text=script.ANSWER)], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model([types.Part(text=script.PIECE * script.DELTAS)], pieces=script.DELTAS)

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> InMemoryRunner:
        return _runner(model, tools, [PassOnCalls(f"layer_{number}") for number in range(layers)])

    def make_streaming_agent(self, model: Model, layers: int = 0) -> InMemoryRunner:
        return _runner(model, [], [PassOnStream(f"layer_{number}") for number in range(layers)])

    async def open_conversation(self, agent: InMemoryRunner, held: int = 0) -> Conversation:
        service = agent.session_service
        session = await service.create_session(app_name=agent.app_name, user_id="user")
        for _ in range(held // 2):
            for author, text in (("user", script.QUESTION), ("assistant", script.ANSWER)):
                role = "user" if author == "user" else "model"
                event = Event(author=author, content=_content(role, types.Part(text=text)))
                await service.append_event(session, event)
        return agent, session.id

    async def take_turn(self, conversation: Conversation) -> str:
        runner, session_id = conversation
        question = _content("user", types.Part(text=script.QUESTION))
        text = ""
        async for event in runner.run_async(user_id="user", session_id=session_id, new_message=question):
            if event.is_final_response():
                text = event.content.parts[-1].text
        return text

    async def take_first_turn(self, agent: InMemoryRunner) -> str:
        session_id = await self._replace_session(agent)
        return await self.take_turn((agent, session_id))

    async def stream_first_turn(self, agent: InMemoryRunner) -> tuple[int, str]:
        session_id = await self._replace_session(agent)
        question = _content("user", types.Part(text=script.QUESTION))
        count = 0
        text = ""
        async for event in agent.run_async(
            user_id="user", session_id=session_id, new_message=question, run_config=STREAMING
        ):
            if event.partial:
                count += 1
            elif event.is_final_response():
                text = event.content.parts[-1].text
        return count, text

    async def _replace_session(self, runner: InMemoryRunner) -> str:
        """Open a session in place of the last one; an open session cannot be emptied."""
        service = runner.session_service
        await service.delete_session(app_name=runner.app_name, user_id="user", session_id="session")
        session = await service.create_session(app_name=runner.app_name, user_id="user", session_id="session")
        return str(session.id)

    def request_length(self, model: Model) -> int:
        return len(model.request.contents)

    def results(self, model: Model) -> list[tuple[str, str]]:
        parts = [part for content in model.request.contents for part in content.parts]
        responses = [part.function_response for part in parts if part.function_response]
        return [(response.id, response.response["result"]) for response in responses]


def _content(role: str, part: types.Part) -> types.Content:
    return types.Content(role=role, parts=[part])


def _runner(model: Model, tools: Sequence[script.Tool], plugins: Sequence[BasePlugin]) -> InMemoryRunner:
    agent = LlmAgent(
        name="assistant",
        model=model,
        instruction=script.SYSTEM_PROMPT,
        tools=[FunctionTool(tool) for tool in tools],
    )
    return InMemoryRunner(agent, app_name="benchmark", plugins=list(plugins))
