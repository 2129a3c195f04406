"""Random conversations in which any of the APIs may have given each answer, in that API's own words.

The answers are bodies as the APIs give them, read by the adapters: what a test sends on to another API is what a
program would send.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from agentrt import Msg
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    SystemMsg,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
    UserMsg,
)
from agentrt.model import AnthropicChatModel, BedrockChatModel, GeminiChatModel, OpenAIChatModel, OpenAIResponsesModel
from agentrt.model.remote.client import RemoteChatModel

JSONObject = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

KEY = "sk-canary-0123456789"
PNG = "aWNvbg=="
MODELS: dict[str, RemoteChatModel] = {
    "chat": OpenAIChatModel("gpt-5-mini", api_key=KEY, stream=False),
    "responses": OpenAIResponsesModel("gpt-5-mini", api_key=KEY, stream=False),
    "anthropic": AnthropicChatModel(
        "claude-sonnet-4-5", api_key=KEY, stream=False, thinking={"type": "enabled", "budget_tokens": 2000}
    ),
    "gemini": GeminiChatModel("gemini-3-flash", api_key=KEY, stream=False),
    "bedrock": BedrockChatModel(
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        region="us-east-1",
        api_key=KEY,
        stream=False,
        thinking={"type": "enabled", "budget_tokens": 2000},
    ),
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    for name in ("add", "look")
]

texts = st.sampled_from(["Hm", "Ich schaue — 🚀", " ", "", "a\n\nb ", "…"])
names = st.sampled_from(["add", "look", "get weather", "ü", "m" * 90])
inputs: st.SearchStrategy[JSONObject] = st.sampled_from([{}, {"a": 1}, {"q": "Rom — 🚀", "n": [1, {"x": None}]}])
files = st.sampled_from(
    [
        DataBlock(Base64Source(PNG, "image/png")),
        DataBlock(Base64Source(PNG, "image/bmp"), "a.bmp"),
        DataBlock(URLSource("https://a.example/b.png", "image/png")),
        DataBlock(URLSource(f"data:image/png;base64,{PNG}", "image/png")),
        DataBlock(URLSource("file:///a.png", "image/png")),
        DataBlock(Base64Source("JVBERi0=", "application/pdf"), "a b.pdf"),
        DataBlock(Base64Source(PNG, "audio/wav")),
        DataBlock(Base64Source("R3LDvMOfZQ==", "text/plain"), "a.txt"),
        DataBlock(Base64Source(PNG, "model/obj")),
    ]
)


@dataclass
class _Counter:
    """Numbers for the ids of one conversation: APIs give each id once, some servers do not."""

    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def _chat_answer(draw: Draw, number: _Counter, calls: int) -> JSONObject:
    message: JSONObject = {"role": "assistant", "content": draw(texts), "reasoning_content": draw(texts)}
    if calls:
        # A server with few ids, as there are some, and one with long ones.
        make_id = draw(st.sampled_from(["call_{}", "call_" + "x" * 60 + "{}", "call_0"]))
        message["tool_calls"] = [
            {
                "id": make_id.format(number.next()),
                "type": "function",
                "function": {"name": draw(names), "arguments": draw(inputs.map(json.dumps) | st.just('{"half": '))},
            }
            for _ in range(calls)
        ]
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def _responses_answer(draw: Draw, number: _Counter, calls: int) -> JSONObject:
    def reasoning() -> JSONObject:
        summary = [{"type": "summary_text", "text": text} for text in draw(st.lists(texts, max_size=2))]
        item = {"type": "reasoning", "id": f"rs_{number.next()}", "summary": summary}
        return {**item, "encrypted_content": draw(st.sampled_from(["gAAA", None]))}

    def hosted() -> JSONObject:
        action = {"type": "search", "query": "Rom"}
        search = {"type": "web_search_call", "id": f"ws_{number.next()}", "status": "completed", "action": action}
        picture = {"type": "image_generation_call", "id": f"ig_{number.next()}", "status": "completed", "result": PNG}
        code = {
            "type": "code_interpreter_call",
            "id": f"ci_{number.next()}",
            "container_id": "cntr_1",
            "code": "1",
            "outputs": None,
            "status": "completed",
        }
        mcp = {"type": "mcp_call", "id": f"mcp_{number.next()}", "name": "x", "server_label": "s", "arguments": "{}"}
        custom = {"type": "custom_tool_call", "call_id": "ct", "name": "x", "input": "1"}
        item: JSONObject = draw(st.sampled_from([search, picture, code, mcp, custom]))
        return item

    def message() -> JSONObject:
        text = draw(texts)
        cited = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 1}
        part = {"type": "output_text", "text": text, "annotations": draw(st.sampled_from([[], [cited]]))}
        item = {"type": "message", "id": f"msg_{number.next()}", "role": "assistant", "content": [part]}
        return {**item, **draw(st.sampled_from([{}, {"phase": "commentary"}]))}

    kinds = st.sampled_from([reasoning, hosted, message])
    output = [kind() for kind in draw(st.lists(kinds, max_size=4))]
    output += [
        {
            "type": "function_call",
            "id": f"fc_{number.next()}",
            "call_id": f"call_{number.next()}",
            "name": draw(names),
            "arguments": draw(inputs.map(json.dumps)),
        }
        for _ in range(calls)
    ]
    return {"id": "r", "status": "completed", "output": output}


def _anthropic_answer(draw: Draw, number: _Counter, calls: int) -> JSONObject:
    def thinking() -> list[JSONObject]:
        thought = {"type": "thinking", "thinking": draw(texts), "signature": "c2ln"}
        return [draw(st.sampled_from([thought, {"type": "redacted_thinking", "data": "c2VhbA=="}]))]

    def search() -> list[JSONObject]:
        use_id = f"srvtoolu_{number.next()}"
        use = {"type": "server_tool_use", "id": use_id, "name": "web_search", "input": {"query": "Rom"}}
        result = {"type": "web_search_tool_result", "tool_use_id": use_id, "content": []}
        return [use, result] if draw(st.integers(0, 5)) else [use]

    def text() -> list[JSONObject]:
        words = draw(texts.filter(str.strip))
        place = {"type": "web_search_result_location", "url": "https://a.example", "title": None}
        cited = {**place, "cited_text": "A", "encrypted_index": "ZW5j"}
        return [
            {"type": "text", "text": "Also: "},
            {"type": "text", "text": words, "citations": draw(st.sampled_from([None, [cited], [cited, cited]]))},
        ]

    content = thinking() if draw(st.booleans()) else []
    for kind in draw(st.lists(st.sampled_from([thinking, search, text]), max_size=4)):
        content += kind()
    content += [
        {"type": "tool_use", "id": f"toolu_{number.next()}", "name": draw(names), "input": draw(inputs)}
        for _ in range(calls)
    ]
    return {"id": "m", "content": content, "stop_reason": "end_turn"}


def _gemini_answer(draw: Draw, number: _Counter, calls: int) -> JSONObject:
    signature = {"thoughtSignature": "c2ln"}
    code = [{"executableCode": {"language": "PYTHON", "code": "1"}, **signature}]
    code += [{"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}]
    search = [{"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {}}, **signature}]
    search += [{"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {}}}]
    picture = {"inlineData": {"mimeType": "image/png", "data": PNG}}
    kinds: list[list[JSONObject]] = [
        [{"text": draw(texts), "thought": True}],
        [{"text": draw(texts)}],
        [{"text": draw(texts), **signature}],
        [{**picture, **signature}],
        [picture],
        code,
        search,
    ]
    parts = [part for kind in draw(st.lists(st.sampled_from(kinds), max_size=4)) for part in kind]
    for place in range(calls):
        call: JSONObject = {"functionCall": {"name": draw(names), "args": draw(inputs)}}
        if draw(st.booleans()):
            call["functionCall"]["id"] = f"fc{number.next()}"
        parts.append({**call, **signature} if place == 0 else call)
    grounds = {"groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}]}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [draw(st.sampled_from([candidate, {**candidate, "groundingMetadata": grounds}]))]}


def _bedrock_answer(draw: Draw, number: _Counter, calls: int) -> JSONObject:
    def thinking() -> JSONObject:
        thought = {"reasoningText": {"text": draw(texts), "signature": "c2ln"}}
        return {"reasoningContent": draw(st.sampled_from([thought, {"redactedContent": "c2VhbA=="}]))}

    def text() -> JSONObject:
        return {"text": draw(texts)}

    def cited() -> JSONObject:
        citation = {"title": "A", "location": {"web": {"url": "https://a.example"}}}
        return {"citationsContent": {"content": [{"text": draw(texts)}], "citations": [citation]}}

    content = [kind() for kind in draw(st.lists(st.sampled_from([thinking, text, cited]), max_size=4))]
    content += [
        {"toolUse": {"toolUseId": f"tooluse_{number.next()}", "name": draw(names), "input": draw(inputs)}}
        for _ in range(calls)
    ]
    return {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "end_turn"}


_ANSWERS = {
    "chat": _chat_answer,
    "responses": _responses_answer,
    "anthropic": _anthropic_answer,
    "gemini": _gemini_answer,
    "bedrock": _bedrock_answer,
}


def _read(api: str, body: JSONObject) -> list[ContentBlock]:
    reader = MODELS[api]._reader([])
    reader.read(body)
    return reader.answer().content


@st.composite
def _results(draw: Draw, calls: Sequence[ToolCallBlock]) -> list[ContentBlock]:
    """What follows a round's calls: their results in any order, some of them still due, and notes in between."""
    outputs = texts | st.lists(st.builds(TextBlock, texts) | files, max_size=3)
    states = st.sampled_from(list(ToolResultState))
    answered = draw(st.permutations([call for call in calls if draw(st.integers(0, 6))]))
    blocks: list[ContentBlock] = [ToolResultBlock(call.id, call.name, draw(outputs), draw(states)) for call in answered]
    if draw(st.booleans()):
        blocks.insert(draw(st.integers(0, len(blocks))), HintBlock("Hurry."))
    return blocks


@st.composite
def _replies(draw: Draw, number: _Counter) -> Msg:
    """A reply of up to four rounds, in which a fallback may have changed the model."""
    blocks: list[ContentBlock] = []
    for _ in range(draw(st.integers(1, 4))):
        api = draw(st.sampled_from(list(_ANSWERS)))
        round_ = _read(api, _ANSWERS[api](draw, number, draw(st.integers(0, 3))))
        calls = [block for block in round_ if isinstance(block, ToolCallBlock)]
        blocks += [*round_, *draw(_results(calls))]
    return AssistantMsg("a", blocks)


@st.composite
def conversations(draw: Draw) -> list[Msg]:
    """A conversation, from which compression or a layer may have taken messages and blocks."""
    number = _Counter()
    messages: list[Msg] = [SystemMsg("system", draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        question = draw(st.lists(st.builds(TextBlock, texts) | files, min_size=1, max_size=3))
        messages += [UserMsg("Ann Lee", question), draw(_replies(number))]
    if draw(st.booleans()):
        messages.append(UserMsg("user", "And now?"))
    if draw(st.integers(0, 3)) == 0:
        for message in messages:
            message.content = [block for block in message.get_content_blocks() if draw(st.integers(0, 9))]
    return messages[draw(st.sampled_from([0, 0, 0, 1, 2])) :]
