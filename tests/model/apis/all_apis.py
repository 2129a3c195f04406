"""All APIs with one answer each, for tests of what holds for all of them."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx2

from agentrt.errors import ModelError
from agentrt.message import ContentBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import (
    AnthropicChatModel,
    BedrockChatModel,
    GeminiChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    Quirks,
)
from agentrt.types import ChatResponse
from tests.model import wire_anthropic as wire
from tests.model import wire_bedrock
from tests.model.apis.answers import TOOLS
from tests.model.test_gemini import STREAM as GEMINI_STREAM
from tests.model.test_openai_responses import stream_events
from tests.model.wire_openai import HELLO, KEY, Answer, Server, call, delta, usage

JSONObject = dict[str, Any]

TEXT_APIS = ("chat", "responses", "anthropic", "gemini")
NAMES_OF_APIS = (*TEXT_APIS, "bedrock")


@dataclass
class Api:
    """A model, its server, and the events of an answer with all that an answer may hold."""

    model: Any
    server: Server
    sent: list[JSONObject] = field(repr=False)
    end: bytes = b""
    has_names: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, sent: list[JSONObject] | None = None) -> bytes:
        return b"".join(self.line(event) for event in (self.sent if sent is None else sent)) + self.end

    def line(self, event: Any) -> bytes:
        if self.headers:
            [(name, fields)] = event.items() if isinstance(event, dict) and len(event) == 1 else [("metadata", event)]
            return wire_bedrock.event_frame(str(name), fields)
        if not isinstance(event, dict):
            return b"data: 1\n\n"
        name = f"event: {event.get('type')}\n" if self.has_names else ""
        return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def chat_stream() -> list[JSONObject]:
    return [
        delta(role="assistant", content=""),
        delta(reasoning_content="Ich "),
        delta(reasoning_content="denke. 🚀"),
        delta(content="Größe — "),
        delta(content="🏛"),
        delta(**call(0, "c1", "add", '{"a": 1')),
        delta(**call(0, None, None, ', "b": "ü"}')),
        delta(**call(1, "c2", "add", "{}")),
        delta("tool_calls"),
        usage(20, 5),
    ]


def anthropic_stream() -> list[JSONObject]:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    return [
        wire.start(),
        *wire.thinking(0, "c2ln", "Ich ", "denke. 🚀"),
        *wire.block(1, search, {"type": "input_json_delta", "partial_json": '{"query": "Größe"}'}),
        *wire.block(2, found),
        *wire.text(3, "Größe — ", "🏛"),
        *wire.tool_use(4, "t1", "add", '{"a": 1', ', "b": "ü"}'),
        *wire.stop("tool_use"),
    ]


def bedrock_stream() -> list[JSONObject]:
    return wire_bedrock.message(
        wire_bedrock.thinking(0, "c2ln", "Ich ", "denke. 🚀"),
        wire_bedrock.text(1, "Größe — ", "🏛"),
        wire_bedrock.tool_use(2, "t1", "add", '{"a": 1', ', "b": "ü"}'),
        reason="tool_use",
    )


def new_api(name: str, *answers: Any) -> Api:
    """Return the API with a model and a server that gives these answers."""
    server = Server(*answers)
    options: dict[str, Any] = {
        "api_key": KEY,
        "base_url": "http://test.invalid/v1",
        "http_client": lambda: httpx2.AsyncClient(transport=server),
    }
    match name:
        case "chat":
            model: Any = OpenAIChatModel("some-model", quirks=Quirks(says_reason=True), **options)
            return Api(model, server, chat_stream(), b"data: [DONE]\n\n")
        case "responses":
            return Api(OpenAIResponsesModel("some-model", **options), server, stream_events(), has_names=True)
        case "anthropic":
            return Api(AnthropicChatModel("some-model", **options), server, anthropic_stream(), has_names=True)
        case "bedrock":
            model = BedrockChatModel("anthropic.claude-sonnet-4-5-20250929-v1:0", **options)
            return Api(model, server, bedrock_stream(), headers=wire_bedrock.BINARY)
        case _:
            return Api(GeminiChatModel("some-model", **options), server, GEMINI_STREAM)


def read(runner: asyncio.Runner, api: Api, *chunks: Any) -> ChatResponse | ModelError:
    """Return the whole answer, which begins with its pieces, or the error."""

    async def ask() -> ChatResponse | ModelError:
        response: ChatResponse
        api.server._answers = [Answer(chunks, headers=api.headers)]
        pieces: dict[str, str] = {}
        try:
            async for response in await api.model(HELLO, TOOLS):
                for block in () if response.is_last else response.content:
                    pieces[block.id] = pieces.get(block.id, "") + text_of(block)
        except ModelError as error:
            return error
        assert response.is_last
        whole = {block.id: text_of(block) for block in response.content}
        assert all(whole[id].startswith(text) for id, text in pieces.items())
        return response

    outcome: ChatResponse | ModelError = runner.run(ask())
    assert KEY not in repr(outcome)
    assert not api.server.open
    api.server.requests.clear()
    return outcome


def text_of(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case ThinkingBlock():
            return block.thinking
        case ToolCallBlock():
            return block.input
    return ""


def said(answer: ChatResponse | ModelError) -> Any:
    """Return what counts of an answer: all but the ids of blocks, which are made up anew."""
    if isinstance(answer, ModelError):
        return answer
    blocks = [(type(block).__name__, text_of(block), getattr(block, "name", "")) for block in answer.content]
    own = [json.loads(block.content) for block in answer.content if isinstance(block, ProviderBlock)]
    return blocks, own, answer.finished_reason
